"""The methods random-walk Metropolis and MALA, which are tuned between blocks of warm-up steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import SettingsError
from tractable.core.model import Kernel, Model, PyTree, log_density
from tractable.core.rows import Data
from tractable.core.settings import Count, Share
from tractable.diagnostics.belief import Belief, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks, check_share
from tractable.engine import run as loop
from tractable.engine.drawing import Chains, Drawing, WarmUp
from tractable.engine.method import Check, Outcome, Program, Session
from tractable.engine.search import laplace_root, modes
from tractable.mcmc.mala import mala
from tractable.mcmc.metropolis import Proposal, metropolis
from tractable.mcmc.random_walk import random_walk

MANY = 10_000  # with at least this many rows, log ratios in float32 are sums of the differences of the rows' terms
DENSE = 200  # largest number of parameters for which "auto" estimates a full covariance


@dataclass(frozen=True, kw_only=True)
class Metropolis(Drawing):
    """The base of RandomWalk and MALA, whose warm-up tunes the acceptance rate and estimates the covariance."""

    sums_rows: ClassVar[bool] = True
    summands: ClassVar[bool] = True  # its kernel can take a log density as an array of summands
    preconditioner: Literal[None, "auto", "diagonal", "dense"] = "auto"
    target: Share | None = None

    def aim(self, size: int) -> float:
        """The target acceptance rate (Roberts & Rosenthal 1998)."""
        return self.target or 0.574

    def first_step(self, size: int) -> float:
        """A first step size ε, which suits a target of unit scale."""
        return 1.65**2 / size ** (1 / 3)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.on(self.density(model, rows), tuned)

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        """The kernel for a log density of position vectors, or for its summands."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def density(self, model: Model, rows: PyTree) -> Any:
        """The log density, or its summands if float32 needs them; rows on several devices give only their sum."""
        in_summands = rows is not None and in_terms(jax.tree.leaves(rows)[0].shape[0])
        return log_density(model, rows, flat=True, terms=in_summands)

    def go_on(self, session: Session, chains: Chains, *args: Any, **more: Any) -> Outcome:
        program, data, states = self.program(session), session.data, chains.states
        by_term = data is not None and not session.placement.divides_rows and in_terms(data.size)
        if (states.terms.ndim > 1) != by_term:
            # Either this run or the earlier one has its rows on several devices, so the states must be made again.
            rows = loop.rows_of(program, data, None)
            states = loop.begin(program, chains.tuned, rows, chains.keys, states.position)
        return super().go_on(session, chains._replace(states=states), *args, **more)

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        """Tune log ε by dual averaging towards the target acceptance rate, with three updates of the covariance.

        The step size changes only between blocks of steps. Acceptance rates and covariances are pooled over chains. The
        kernel itself does not adapt, so warm-up and main run share one compiled program.
        """
        size = session.model.space.size
        dtype = jnp.result_type(float)
        dense = self.preconditioner == "dense" or (self.preconditioner == "auto" and size <= DENSE)
        positions, laplace = around_modes(session, positions) if self.preconditioner else (positions, None)
        scale = jnp.eye(size, dtype=dtype) if dense else jnp.ones(size, dtype)
        if laplace is not None:
            scale = jnp.asarray(laplace if dense else np.sqrt(np.square(laplace).sum(1)), dtype)
        step = self.first_step(size)
        tuned = {"step_size": jnp.asarray(step, dtype), "scale": scale}
        shape = self.shape(session._replace(moments=False), program, self.thin)
        rows = loop.rows_of(program, session.data, None)
        states = loop.begin(program, tuned, rows, keys, positions)
        rounds = max(1, self.warmup // shape.group)
        tuning_rounds = [round(rounds * share) for share in (0.15, 0.35, 0.75)] if self.preconditioner else []
        averaging = Averaging.around(step)
        seen: list[np.ndarray] = []
        acceptance, searching = float("nan"), True
        compiled_loop, host = loop.Loop(program, shape, None), loop.Host(stop=session.stop)
        for round_ in range(rounds if self.warmup else 0):
            result = loop.run(compiled_loop, session.data, tuned, keys, loop.Start(states, round_), round_ + 1, host)
            if session.stop():
                break
            states = result.states
            seen.append(np.asarray(result.draws))
            by_chain = np.nanmean(result.info["acceptance"], 1)
            # If a chain is stuck in a tail, its acceptance rate alone decides; with the mean, it would stay there.
            acceptance = float(by_chain.min() if by_chain.min() < 0.25 * by_chain.mean() else by_chain.mean())
            # A very bad step size is first changed by large factors. Draws up to then are not used for the covariance.
            searching = searching and not 0.1 < acceptance < 0.95 and round_ < rounds // 2
            if searching:
                step *= 4.0 if acceptance > 0.5 else 0.2
                averaging, seen = Averaging.around(step), []
            else:
                averaging, step = averaging.updated(self.aim(size) - acceptance)
            if tuning_rounds and round_ + 1 >= tuning_rounds[0] and round_ + 1 < rounds and len(seen) > 1:
                tuning_rounds = tuning_rounds[1:]
                scale = jnp.asarray(root_of_covariance(np.concatenate(seen, 1), dense, laplace), dtype)
                step, seen = self.first_step(size), []
                averaging = Averaging.around(step)
            last = round_ == rounds - 1
            tuned = {"step_size": jnp.asarray(averaging.average if last else step, dtype), "scale": scale}
            session.say("warm-up", (round_ + 1) * shape.group, rounds * shape.group)
        found = {"step_size": float(tuned["step_size"]), "warm-up acceptance": acceptance}
        return WarmUp(states.position, tuned, found, self.thin)

    def checks(self, posterior: Learnt) -> list[Check]:
        rate = float(np.mean(posterior.info["acceptance"]))
        bad = float(np.mean(posterior.info["not_a_number"]))
        out = [*chain_checks(posterior), check_share("acceptance", rate, 0.05, 0.99, "share of proposals accepted")]
        if bad > 0:
            sentence = "share of proposals whose log density was NaN; they were rejected"
            out.append(Check("NaN proposals", bad, "caution" if bad > 0.01 else "trust", sentence))
        return out


def in_terms(rows: int) -> bool:
    """Whether log ratios with this many rows are sums of the differences of the rows' terms."""
    return rows >= MANY and jnp.result_type(float) == jnp.float32


def around_modes(session: Session, positions: jax.Array) -> tuple[jax.Array, np.ndarray | None]:
    """Starting points around the modes, and the root of the covariance of the normal approximation at a mode.

    The starting points have 2/√d times the width of the normal approximation. If there are too many parameters, or if a
    climb fails, the result is ``positions`` and None.

    From a random starting point a chain can take longer than the warm-up to reach the typical set, and on the way its
    draws say nothing about the covariance. Every chain climbs from its own random point, so several modes can be found.
    """
    if positions.shape[1] > DENSE:
        return positions, None
    climbed = modes(session, positions)
    if not np.all(np.isfinite(climbed)):
        return positions, None
    root = laplace_root(session.model, session.data, climbed[0])
    if root is None:
        return positions, None
    jitter = jax.random.normal(jax.random.fold_in(session.key, 5), positions.shape)
    offsets = 2 * np.asarray(jitter) @ root.T / np.sqrt(positions.shape[1])
    return jnp.asarray(climbed + offsets, positions.dtype), root


class Averaging(NamedTuple):
    """The state of dual averaging of log ε (Hoffman & Gelman 2014, eq. 6), with one update for each block of steps."""

    centre: float  # μ of the paper: the value of log ε towards which updates shrink
    gap: float = 0.0  # H̄ of the paper: running mean of the target acceptance less the acceptance
    weighted: float = 0.0  # running weighted mean of log ε
    time: int = 0  # number of updates

    @classmethod
    def around(cls, step: float) -> "Averaging":
        """The state before the first update, for step sizes around ``step``."""
        return cls(float(np.log(step)))

    def updated(self, miss: float) -> tuple["Averaging", float]:
        """The next state and step size, after a block whose acceptance rate was ``miss`` below the target."""
        time = self.time + 1
        # A block averages many acceptance probabilities, so updates can be larger than after a single draw.
        gap = self.gap + (miss - self.gap) / (time + 2)
        step = self.centre - np.sqrt(time) / 0.25 * gap
        share = time**-0.75
        weighted = share * step + (1 - share) * self.weighted
        return Averaging(self.centre, gap, weighted, time), float(np.exp(step))

    @property
    def average(self) -> float:
        """The averaged step size, for the main run."""
        return float(np.exp(self.weighted if self.time else self.centre))


def root_of_covariance(draws: np.ndarray, dense: bool, laplace: np.ndarray | None) -> np.ndarray:
    """The root of the mean covariance within chains of ``draws`` (chain, draw, d), shrunk towards another estimate.

    The other estimate is that of the normal approximation at a mode, with the root ``laplace``. If this is None, it is
    the diagonal of the covariance, which is estimated better than the other entries.
    """
    centred = draws - draws.mean(1, keepdims=True)
    flat = centred.reshape(-1, draws.shape[-1]).astype(np.float64)
    count, size = flat.shape
    # Fifty draws of a warm-up count as one independent draw.
    weight = count / (count + 50 * (size if dense else 1))
    covariance = flat.T @ flat / max(count - 1, 1)
    prior = np.diag(np.diag(covariance)) if laplace is None else laplace @ laplace.T
    shrunk = weight * covariance + (1 - weight) * prior + 1e-12 * np.eye(size)
    if not dense:
        return np.sqrt(np.diag(shrunk))
    try:
        return np.linalg.cholesky(shrunk)
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(np.diag(shrunk)))


@dataclass(frozen=True, kw_only=True)
class RandomWalk(Metropolis):
    """Random-walk Metropolis: θ' = θ + s L z; step size and covariance are adapted in warm-up.

    Args:
        chains, draws, warmup: as for every method that draws.
        thin: steps per kept draw, by default ten: in ten dimensions a step is worth a thirtieth of an independent draw.
        preconditioner: None, "diagonal", "dense" or "auto" (dense up to 200 parameters).
        target: the target acceptance rate; by default 0.44 in one dimension, 0.35 in two, 0.234 in three or more.
        proposal: your own ``kernels.Proposal`` for unconstrained position vectors, used unchanged; it need not be
            symmetric.

    It needs no gradient. With more than a few dozen parameters the effective sample size is small: prefer MALA or NUTS.
    """

    label: ClassVar[str] = "random-walk"
    thin: Count = 10
    proposal: Annotated[Proposal, "a kernels.Proposal"] | None = None

    def aim(self, size: int) -> float:
        return self.target or (0.44 if size == 1 else 0.35 if size == 2 else 0.234)

    def first_step(self, size: int) -> float:
        return 2.38 / np.sqrt(size)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return Cost(0.0, self.steps(belief))

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        if self.proposal is not None:
            return metropolis(density, self.proposal)
        return random_walk(density, tuned["step_size"], tuned["scale"])


@dataclass(frozen=True, kw_only=True)
class MALA(Metropolis):
    """The Metropolis-adjusted Langevin algorithm; step size and preconditioner are adapted in warm-up.

    Args:
        chains, draws, warmup, thin: as for every method that draws.
        preconditioner: None, "diagonal", "dense" or "auto" (dense up to 200 parameters).
        target: the target acceptance rate, by default 0.574.

    A step takes one gradient. NUTS is the better default; MALA is the exact counterpart of SGLD.
    """

    label: ClassVar[str] = "mala"

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        return mala(density, tuned["step_size"], tuned["scale"])
