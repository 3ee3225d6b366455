"""Checks against the modes that climbs found: is a point the highest, and do draws visit all modes with much mass?"""

import math

import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.core.check import Check
from tractable.diagnostics import climbs
from tractable.diagnostics.belief import Point
from tractable.diagnostics.climbs import Mode
from tractable.diagnostics.reweighed import Reweighed
from tractable.diagnostics.subject import Subject
from tractable.diagnostics.view import View

UNVISITED = 0.05  # an unvisited mode with more than this share of the mass rejects a posterior
RARE_SHARE = 0.02  # a maximum that at most this share of the climbs reached suggests that others were missed
BETTER = 0.1  # nats by which another maximum must be higher to reject a point
# From this number of parameters on, a point is not trusted if more climbs end at lower maxima than at the point. Among
# points that were trusted without this rule on mixtures of normals far apart, 22 of 78 in twenty dimensions, 2 of 70 in
# five, and none of 83 in one or two were not at the highest maximum: no climb reaches a narrow one.
MANY_NUMBERS = 5


def check_maximum(subject: Subject, view: View, modes: list[Mode]) -> Check:
    """Checks whether some climb ended above the point, how many ended as high, and whether maxima may be missing.

    A maximum that few climbs reached suggests others that no climb reached (Good 1953), and so do lower maxima that
    most climbs reached, if there are many parameters. If the run was repeated, the points at which its earlier results
    ended count as starts of climbs.
    """
    learnt, ends = subject.learnt, view.ends
    height = float(view.climbed.at(view.rows, subject.centre[None])[0])
    slack = BETTER + 1e-6 * abs(height)
    information = learnt.belief.information if isinstance(learnt.belief, Point) else None
    if information is not None and np.all(np.linalg.eigvalsh(information) > 0):
        normal = Mode(subject.centre, height, np.linalg.cholesky(np.linalg.inv(information)), 0.0)
        if not climbs.falls_as_normal(view.climbed, view.rows, normal):
            sentence = "the density around the point does not fall by half a nat at one standard error"
            return Check("starts that agree", math.nan, "caution", f"{sentence}: it may be a ridge, not a maximum")
    best = int(np.argmax(ends.values))
    excess = float(ends.values[best]) - height
    if excess > slack:
        place = subject.describe(ends.positions[best])
        sentence = f"nats by which another climb ended higher, at {place}; use starts={2 * len(ends.values)}"
        return Check("higher maximum", excess, "reject", sentence, tuple(ends.positions[best].tolist()))
    counts = climbs.climbs_at(ends, modes)
    if len(modes) > 1 and counts.min() <= max(1, RARE_SHARE * len(ends.values)):
        place = subject.describe(modes[int(np.argmin(counts))].position)
        sentence = f"maxima; only {counts.min()} of {len(ends.values)} climbs reached the one near {place}"
        return Check("starts that agree", float(len(modes)), "caution", f"{sentence}: others may be higher")
    count = int(np.sum(np.abs(ends.values - height) <= slack))
    lower = sum(n for n, mode in zip(counts, modes, strict=True) if mode.value < height - slack)
    prevails = len(subject.centre) < MANY_NUMBERS or lower <= count
    sentence = f"of {len(ends.values)} climbs from overdispersed starts ended as high; none ended higher"
    sentence += "" if prevails else f", but {lower} ended at lower maxima: a higher one may be missing"
    return Check("starts that agree", float(count), "trust" if count and prevails else "caution", sentence)


def check_visits(subject: Subject, modes: list[Mode], reweighed: Reweighed | None) -> Check:
    """Compares each mode's share of the mass with its share of the draws."""
    if not modes:
        return Check("modes", 0.0, "trust", "no climb from an overdispersed start ended at a peaked maximum")
    share = scipy.special.softmax([m.log_mass for m in modes])
    if reweighed is not None and reweighed.reliable:
        share = reweighed.weights @ nearest_modes(modes, reweighed.positions)
    weights = None if subject.learnt.weights is None else subject.learnt.weights.ravel()
    share_of_draws = np.average(nearest_modes(modes, subject.positions), axis=0, weights=weights)
    unvisited = np.flatnonzero((share > UNVISITED) & (share_of_draws < share / 4))
    if not len(unvisited):
        sentence = "found by climbs from overdispersed starts; the draws visit all that hold more than 5 % of the mass"
        return Check("modes", float(len(modes)), "trust", sentence)
    worst = unvisited[int(np.argmax(share[unvisited]))]
    mode, shares = subject.describe(modes[worst].position), 100 * np.array([share[worst], share_of_draws[worst]])
    sentence = f"found; a mode near {mode} holds about {shares[0]:.0f} % of the mass and {shares[1]:.0f} % of the draws"
    place = tuple(modes[worst].position.tolist()) if worst == int(np.argmax(share)) else None
    return Check("modes", float(len(modes)), "reject", sentence, place)


def nearest_modes(modes: list[Mode], positions: np.ndarray) -> np.ndarray:
    """(n, modes) one-hot: for each position, the mode whose t distribution has the highest density there."""
    if len(modes) == 1:
        return np.ones((len(positions), 1))
    logs = []
    for m in modes:
        white = np.linalg.solve(m.root, (positions - m.position).T)
        # The t's have 4 degrees of freedom. Far from all modes, the comparison of normals would depend on tails alone.
        logs.append(m.value - (4 + len(m.position)) / 2 * np.log1p(np.sum(white**2, 0) / 4))
    return np.eye(len(modes))[np.argmax(logs, 0)]
