"""Runs Hamiltonian Monte Carlo (HMC) from a posterior's own draws: if their moments change, the draws were wrong."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tractable.core.tree import PyTree
from tractable.diagnostics.target import Target

Look = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
State = tuple[np.ndarray, np.ndarray, np.ndarray]  # positions, values, slopes
BLOCK = 8  # trajectories in a block; the first blocks only search for the step size
COUNTED = 2  # number of later blocks, whose positions are used
LONGEST = 24  # maximum number of leapfrog steps in a trajectory
ACCEPTED = 0.65  # mean acceptance probability below which the step size is halved
SMALLEST = 0.02  # step size, in posterior sds, below which the search for it gives up


class Moved(NamedTuple):
    """The draws after the moves."""

    after: np.ndarray  # (t, c, d), the c draws after each of t trajectories
    acceptance: float  # mean acceptance probability of the last block

    @property
    def usable(self) -> bool:
        """Whether enough trajectories were accepted to compare the draws with those before the moves."""
        return self.acceptance >= 0.5


def move(
    target: Target, rows: PyTree, draws: np.ndarray, centre: np.ndarray, root: np.ndarray, seed: int,
    longest: int = LONGEST,
) -> Moved:  # fmt: skip
    """Runs HMC from each of (c, d) draws, in coordinates in which the posterior under test has unit covariance.

    ``root`` is a root (d, d) of that posterior's covariance, or its sds (d,) if a matrix would be too large.

    If the draws are from the target, HMC leaves their moments unchanged. A change shows in which direction the draws
    are wrong ("targeted accuracy diagnostic", Wang, Kasprzak & Huggins 2023).
    """
    generator, full = np.random.default_rng(seed), root.ndim == 2

    def place(x: np.ndarray) -> np.ndarray:
        return centre + (x @ root.T if full else x * root)

    def look(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):  # far from the draws, densities may overflow
            values, slopes = target.look(rows, place(x))
            return values, slopes @ root if full else slopes * root

    begin = np.linalg.solve(root, (draws - centre).T).T if full else (draws - centre) / root
    state = (begin, *look(begin))
    size = 1.2 * draws.shape[1] ** -0.25
    while True:  # search for the step size; each try starts at the draws, and only the last try's end state is kept
        steps = max(3, min(longest, math.ceil(0.5 * math.pi / size)))
        positions, state_after, rate = _run_block(look, state, size, steps, generator)
        if rate >= ACCEPTED or size < SMALLEST:
            break
        size *= 0.5
    after = [positions]
    if rate >= ACCEPTED:
        after = []
        for _ in range(COUNTED):
            positions, state_after, rate = _run_block(look, state_after, size, steps, generator)
            after.append(positions)
    return Moved(place(np.concatenate(after)), rate)


def _run_block(look: Look, state: State, size: float, steps: int, generator: np.random.Generator) -> tuple:
    """Positions (t, c, d) after each trajectory of a block, the last state, and the mean acceptance probability."""
    positions, rates = [], []
    for _ in range(BLOCK):  # trajectories that diverge overflow, and are rejected
        x, value, slope = state
        momentum = generator.standard_normal(x.shape)
        step = size * generator.uniform(0.8, 1.2, (len(x), 1))
        new, p, new_slope, new_value = x, momentum, slope, value
        for _ in range(steps):
            p = p + step / 2 * new_slope
            new = new + step * p
            new_value, new_slope = look(new)
            p = p + step / 2 * new_slope
        with np.errstate(over="ignore", invalid="ignore"):
            change = new_value - value + (np.sum(momentum**2, 1) - np.sum(p**2, 1)) / 2
        rate = np.where(np.isnan(change), 0.0, np.exp(np.minimum(change, 0.0)))
        accept = generator.random(len(x)) < rate
        each = accept[:, None]
        state = (np.where(each, new, x), np.where(accept, new_value, value), np.where(each, new_slope, slope))
        positions.append(state[0])
        rates.append(rate.mean())
    return np.stack(positions), state, float(np.mean(rates))
