"""Checks of the modes that climbs found: whether a point is the highest, and whether draws visit all that have mass."""

import math

import numpy as np

from tractable.core.belief import Point
from tractable.core.check import Check
from tractable.diagnostics import climbs
from tractable.diagnostics.climbs import Mode
from tractable.diagnostics.reweighed import Reweighed
from tractable.diagnostics.subject import Subject
from tractable.diagnostics.view import View

UNVISITED = 0.05  # share of the mass above which an unvisited mode rejects a posterior
RARE_SHARE = 0.02  # share of the climbs; a maximum met by no more of them suggests others that none met
BETTER = 0.1  # nats by which another maximum must be higher to reject a point


def check_maximum(subject: Subject, view: View, modes: list[Mode]) -> Check:
    """Whether a climb ended above the point, how many climbs agree with it, and whether other maxima may be unmet.

    A maximum that few climbs met suggests others that none met (Good 1953). A place at which an earlier result of the
    run ended counts as the start of a climb.
    """
    learnt, ends = subject.learnt, view.ends
    height = float(view.climbed.at(view.rows, subject.centre[None])[0])
    slack = BETTER + 1e-6 * abs(height)
    information = learnt.belief.information if isinstance(learnt.belief, Point) else None
    if information is not None and np.all(np.linalg.eigvalsh(information) > 0):
        normal = Mode(subject.centre, height, np.linalg.cholesky(np.linalg.inv(information)), 0.0)
        if not climbs.falls_as_normal(view.climbed, view.rows, normal):
            sentence = "the density around it does not fall as around a maximum, by half a nat at one standard error"
            return Check("starts that agree", math.nan, "caution", f"{sentence}: it may be a ridge, or recede")
    best = int(np.argmax(ends.values))
    above = float(ends.values[best]) - height
    if above > slack:
        where = subject.describe(ends.positions[best])
        sentence = f"nats by which another climb ended higher, at {where}; use starts={2 * len(ends.values)}"
        return Check("higher maximum", above, "reject", sentence, tuple(ends.positions[best].tolist()))
    met = climbs.climbs_at(ends, modes)
    if len(modes) > 1 and met.min() <= max(1, RARE_SHARE * len(ends.values)):
        rare, where = met.min(), subject.describe(modes[int(np.argmin(met))].position)
        sentence = f"maxima; of {len(ends.values)} climbs only {rare} met the one near {where}: others may be higher"
        return Check("starts that agree", float(len(modes)), "caution", sentence)
    same = int(np.sum(np.abs(ends.values - height) <= slack))
    sentence = f"of {len(ends.values)} climbs from overdispersed starts ended as high; none ended higher"
    return Check("starts that agree", float(same), "trust" if same else "caution", sentence)


def check_visits(subject: Subject, modes: list[Mode], reweighed: Reweighed | None) -> Check:
    """Compares each mode's share of the mass with its share of the draws."""
    if not modes:
        return Check("modes", 0.0, "trust", "no climb from an overdispersed start ended at a maximum that is not flat")
    masses = np.array([m.log_mass for m in modes])
    share = np.exp(masses - masses.max())
    share /= share.sum()
    if reweighed is not None and reweighed.reliable:
        share = reweighed.weights @ nearest_modes(modes, reweighed.positions)
    weights = None if subject.learnt.weights is None else subject.learnt.weights.ravel()
    drawn = np.average(nearest_modes(modes, subject.positions), axis=0, weights=weights)
    missed = np.flatnonzero((share > UNVISITED) & (drawn < share / 4))
    if not len(missed):
        sentence = "found by climbs from overdispersed starts; the draws visit all that hold more than 5 % of the mass"
        return Check("modes", float(len(modes)), "trust", sentence)
    worst = missed[int(np.argmax(share[missed]))]
    where, mass = subject.describe(modes[worst].position), f"about {100 * share[worst]:.0f} %"
    sentence = f"found; a mode near {where} holds {mass} of the mass and {100 * drawn[worst]:.0f} % of the draws"
    has_most = worst == int(np.argmax(share))
    place = tuple(modes[worst].position.tolist()) if has_most else None
    return Check("modes", float(len(modes)), "reject", sentence, place)


def nearest_modes(modes: list[Mode], positions: np.ndarray) -> np.ndarray:
    """(n, modes) one-hot: the mode whose t has the highest density at each position."""
    if len(modes) == 1:
        return np.ones((len(positions), 1))
    logs = []
    for m in modes:
        white = np.linalg.solve(m.root, (positions - m.position).T)
        # By t's with 4 degrees of freedom: far out, normals would differ by their tails alone.
        logs.append(m.value - (4 + len(m.position)) / 2 * np.log1p(np.sum(white**2, 0) / 4))
    best = np.argmax(np.stack(logs, 1), 1)
    return np.eye(len(modes))[best]
