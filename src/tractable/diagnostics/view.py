"""How much work a verification does, and the density that it compares with the posterior: by all rows or a sample."""

import math
from typing import NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.core.tree import PyTree
from tractable.diagnostics import climbs
from tractable.diagnostics.few import sampled
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.subject import Subject
from tractable.diagnostics.target import Target, gradient_work

WORK = 1e10  # operations that verification may always spend: about two seconds
WORK_ON_MANY = 1.5e10  # the same for many rows, whose operations run in parallel
SHARE = 0.25  # share of the run's own work that verification may spend, if that is more
FAR_BELOW = 100.0  # nats below the highest end of a climb; the end of a climb lower than that is no second mode
LEAST_ROWS = 1 << 14  # fewest rows of a sample
COMPARED_DRAWS, UNLIKE = 16, 0.2  # draws at which a sample's density is compared with that of all rows; limit in nats
LEAST_ON_ALL = 30  # gradients on all rows, besides those of a curvature, that a verification by a sample takes


class Size(NamedTuple):
    """How much work verification does."""

    starts: int  # of climbs
    points: int  # screened for outliers, within the posterior and around it each
    places: int  # drawn in each round of importance sampling
    walkers: int  # draws moved by Hamiltonian Monte Carlo

    @property
    def gradients(self) -> float:
        """About how many gradients the climbs, the screening of their starts and importance sampling take."""
        return 60 * self.starts + 2 * self.points + 4 * self.places / 3


SIZES = [
    Size(24, 960, 1000, 256), Size(12, 480, 500, 128), Size(8, 320, 250, 64), Size(4, 160, 125, 32),
]  # fmt: skip
# If a climb is cheap, many are made: of 31 components of mixtures in five dimensions 24 starts missed 5, 384 none.
MANY = Size(384, 15_360, 1000, 256)
# So are points: of 20 spikes in slabs of five dimensions MANY missed 7, MOST none. With at most three parameters
# neither missed any.
MOST, FEW_NUMBERS = MANY._replace(points=150_000), 3
THOROUGH = Size(96, 3840, 4000, 1024)


class Few(NamedTuple):
    """A size of verification that a sample of the rows allows."""

    size: Size
    count: int  # of rows


class View(NamedTuple):
    """The density that is compared with a posterior, by all rows or a sample, and where climbs on it ended.

    Attributes:
        checks: of the sample.
        target: the density of unconstrained positions.
        climbed: the density that climbs maximise: for a point, without the Jacobian.
        rows: as ``target`` takes them.
        size: the work to do.
        ends: of the climbs.
    """

    checks: list[Check]
    target: Target
    climbed: Target
    rows: PyTree
    size: Size
    ends: climbs.Ends


def affordable(learnt: Learnt, target: Target, rows: PyTree) -> Size | None:
    """The largest size within a quarter of the run's work or two seconds, counted in operations; None if none fits."""
    work = gradient_work(target, rows)
    if MANY.gradients * work <= WORK / 10:
        return MOST if MOST.gradients * work <= WORK / 5 and learnt.model.space.size > FEW_NUMBERS else MANY
    allowed = _allowed_work(learnt, work, WORK)
    return next((size for size in SIZES if size.gradients * work <= allowed), None)


def affordable_on_few(learnt: Learnt, target: Target, rows: PyTree) -> Few | None:
    """The largest size that a sample of the rows allows; None if no size fits, or if all rows can be afforded.

    All rows are still needed for the sample's anchor, for the ends of climbs, and to compare the sample with them.
    """
    model, data, work = learnt.model, learnt.data, gradient_work(target, rows)
    if data is None or not target.prior or model.prior_is_callable or model.local is not None:
        return None
    if work * SIZES[0].gradients <= WORK:
        return None
    left = _allowed_work(learnt, work, WORK_ON_MANY) / work - (model.space.size + LEAST_ON_ALL)
    for size in SIZES:
        count = 1 << int(math.log2(max(1, min(data.size / 2, data.size * left / size.gradients))))
        if count >= LEAST_ROWS:
            return Few(size._replace(walkers=max(size.walkers, SIZES[1].walkers)), count)
    return None


def _allowed_work(learnt: Learnt, work: float, least: float) -> float:
    """Operations that verification may spend, if a gradient takes ``work``."""
    return max(SHARE * (learnt.cost.gradients + learnt.cost.densities / 3) * work, least)


def view_all(subject: Subject, target: Target, climbed: Target, rows: PyTree, size: Size) -> View:
    """The density with the rows given, and where climbs from overdispersed starts end on it."""
    begin = climbs.starts(
        climbed, rows, subject.centre, subject.root, size.starts, size.points, subject.seed, subject.places_before
    )
    return View([], target, climbed, rows, size, climbs.climb(climbed, rows, begin, subject.centre, subject.root))


def view_few(subject: Subject, target: Target, climbed: Target, rows: PyTree, few: Few) -> tuple[Check, View | None]:
    """Whether a sample of the rows represents all rows, and the density by it; None where it does not.

    Climbs go on from the highest places at which they end on the sample, on all rows. Where several modes are left
    their masses are compared, which needs all rows.
    """
    centre, root = subject.centre, subject.root
    sample = sampled(target, subject.learnt.data, rows, centre, root, few.count, subject.seed)
    draws = subject.draws(COMPARED_DRAWS)
    off = float(np.std(target._replace(anchored=True).at(sample, draws) - target.at(rows, draws)))
    sentence = f"nats by which the density of {few.count:,} rows, corrected to the slope and curvature of all, is off"
    if not off <= UNLIKE:
        sentence += ": too much to verify by these rows, and all rows take too long; use verify='thorough' for all"
        return Check("rows looked at", off, "caution", sentence), None
    check = Check("rows looked at", off, "trust", sentence)
    anchored = target._replace(anchored=True), climbed._replace(anchored=True)
    view = view_all(subject, *anchored, sample, few.size)
    which = climbs.places_met(view.ends, root)
    places = sorted(set(which), key=lambda i: -view.ends.values[i])[: climbs.MODES]
    further = climbs.climb(climbed, rows, view.ends.positions[places], centre, root)
    ends = climbs.Ends(*(a[[places.index(i) for i in which if i in places]] for a in further))
    high = climbs.places_met(ends, root)[ends.values > ends.values.max() - FAR_BELOW]
    if len(set(high)) > 1:
        return check, View([check], target, climbed, rows, SIZES[-1], ends)
    return check, view._replace(checks=[check], ends=ends)
