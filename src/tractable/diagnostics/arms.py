"""Finds arms of a density: ridges that lead from its mode to mass that a posterior's draws may have missed.

The density of a cross has two bars and one maximum. Draws that fill one bar look right there, and all climbs end at the
maximum, which these draws surround. But a climb that begins near the other bar first falls onto it and then follows it.
So the points of a climb's path show where the density is far above every normal that is known so far.
"""

from collections.abc import Sequence

import numpy as np

from tractable.core.tree import PyTree
from tractable.diagnostics import climbs
from tractable.diagnostics.climbs import Mode, Path
from tractable.diagnostics.target import Target

ARMS = 8  # maximum number of arms
MOST_PARAMETERS = 50  # maximum number of parameters; with more, importance sampling could not weigh an arm
WILD = 1e6  # entries of a scaled curvature, 1 for a normal, above which the density is no ridge
EXCESS = 6.0  # nats by which the density at a point of an arm exceeds every known normal


def find_arms(
    target: Target, rows: PyTree, path: Path, centre: np.ndarray, root: np.ndarray, modes: Sequence[Mode]
) -> list[Mode]:
    """Normals around points of climbs at which the density exceeds the posterior's normal and those of all modes.

    Args:
        target: the log density.
        rows: the data, as ``target`` takes them.
        path: points of high density on the climbs' paths.
        centre, root: mean (d,) of the posterior under test, and a root (d, d) of its covariance.
        modes: the maxima at which climbs ended.
    """
    positions, values = path
    if not len(values) or len(centre) > MOST_PARAMETERS:
        return []
    normals = [Mode(centre, float(values.max()), root, 0.0), *modes]
    excess = np.min([values - _normal_at(normal, positions) for normal in normals], 0)
    arms: list[Mode] = []
    while len(arms) < ARMS and np.max(excess) > EXCESS:
        highest = int(np.argmax(excess))
        arm = _arm(target, rows, positions[highest], float(values[highest]), centre, root)
        excess[highest] = -np.inf
        if arm is not None:
            arms.append(arm)
            excess = np.minimum(excess, values - _normal_at(arm, positions))
    return arms


def _normal_at(normal: Mode, positions: np.ndarray) -> np.ndarray:
    """(n,) a mode's value, less the nats by which its normal falls from the mode to each position."""
    white = np.linalg.solve(normal.root, (positions - normal.position).T)
    return normal.value - np.sum(np.square(white), 0) / 2


def _arm(
    target: Target, rows: PyTree, position: np.ndarray, value: float, centre: np.ndarray, root: np.ndarray
) -> Mode | None:
    """The normal around a Newton step from a position, with the curvature there; None if that is not finite.

    If the density is a mixture of normals, and one of them dominates at the position, the result is this one. Where the
    density hardly bends, the sd is about the distance from the centre: an arm is about as long as the way along it.
    """
    squares = np.sum(np.square(root), 1)
    steps, least = 0.1 * np.sqrt(squares), 0.25 / (np.square(position - centre) + squares)
    for _ in range(3):  # differences over a tenth of the posterior's sds, then over a tenth of the arm's own
        curvature = climbs.precision(target, rows, position, steps)
        if not np.all(np.isfinite(curvature)):
            return None
        scale = np.sqrt(np.maximum(np.abs(np.diag(curvature)), least))
        steps = 0.1 / scale
    correlation = curvature / np.outer(scale, scale)
    if not np.max(np.abs(correlation)) <= WILD:
        return None
    curvatures, basis = np.linalg.eigh(correlation)
    way = max(1.0, float(np.sum(np.square(scale * (position - centre)))))
    is_flat, curvatures = np.abs(curvatures) < 1 / way, np.maximum(np.abs(curvatures), 1 / way)
    slope = target.look(rows, position[None])[1][0]
    peak = position + basis @ np.where(is_flat, 0.0, basis.T @ (slope / scale) / curvatures) / scale
    height = float(target.at(rows, peak[None])[0])
    if height < value:
        peak, height = position, value
    # The triangular root of the covariance B Λ⁻¹ Bᵀ by QR, which rounding cannot make indefinite.
    upper = np.linalg.qr((basis / np.sqrt(curvatures)).T).R
    return Mode(peak, height, (upper * np.sign(np.diag(upper))[:, None]).T / scale[:, None], 0.0)
