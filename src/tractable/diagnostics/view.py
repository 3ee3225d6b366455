"""Chooses how much work a verification does, and the density that it uses: that of all rows, or of a sample of them."""

import math
from typing import NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.core.tree import PyTree
from tractable.diagnostics import climbs
from tractable.diagnostics.few import sample_rows
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.subject import Subject
from tractable.diagnostics.target import Target, gradient_work

# Work is counted in arithmetic operations. The numbers were tuned in docs/decisions/010-climbs-to-modes.md and
# 017-many-rows-by-a-sample.md.
WORK = 1e10  # operations that a verification may always use, about two seconds
WORK_ON_MANY = 1.5e10  # the same for a sample of many rows, whose operations run in parallel
SHARE = 0.25  # a verification may also use this share of the run's own work, if that is more
FAR_BELOW = 100.0  # nats; the end of a climb this far below the highest end is no second mode
LEAST_ROWS = 1 << 14  # minimum number of rows in a sample
# Number of draws at which a sample's log density is compared with that of all rows, and the largest sd of the
# difference, in nats, for which the sample is used.
COMPARED_DRAWS, UNLIKE = 16, 0.2
LEAST_ON_ALL = 30  # number of gradients on all rows that a verification by a sample takes, except those for a curvature


class Size(NamedTuple):
    """How much work verification does."""

    starts: int  # number of climbs
    points: int  # points drawn inside the posterior, and as many distant ones; outliers of the density start climbs
    places: int  # draws in each round of importance sampling
    walkers: int  # draws moved by Hamiltonian Monte Carlo

    @property
    def gradients(self) -> float:
        """About how many gradients the climbs, the search for their starts, and importance sampling take."""
        return 60 * self.starts + 2 * self.points + 4 * self.places / 3


SIZES = [
    Size(24, 960, 1000, 256), Size(12, 480, 500, 128), Size(8, 320, 250, 64), Size(4, 160, 125, 32),
]  # fmt: skip
# MANY is used if a climb takes little work: in an experiment with 31 components of mixtures in five dimensions, 24
# starts missed 5 components, and 384 starts missed none.
MANY = Size(384, 15_360, 1000, 256)
# MOST is used if points take little work too, and there are more than FEW_NUMBERS parameters: of 20 narrow modes inside
# wide ones in five dimensions, MANY missed 7, and MOST missed none. With up to three parameters neither missed any.
MOST, FEW_NUMBERS = MANY._replace(points=150_000), 3
THOROUGH = Size(96, 3840, 4000, 1024)


class Few(NamedTuple):
    """A size of verification that a sample of the rows allows."""

    size: Size
    count: int  # number of rows in the sample


class View(NamedTuple):
    """The density that is compared with a posterior, of all rows or of a sample, and the ends of climbs on it.

    Attributes:
        checks: checks of the sample.
        target: the density of unconstrained positions.
        climbed: the density that climbs maximise; for a point estimate, without the Jacobian.
        rows: the rows, as ``target`` takes them.
        size: the amount of work.
        ends: the ends of the climbs.
        path: the points of high density that the climbs passed.
    """

    checks: list[Check]
    target: Target
    climbed: Target
    rows: PyTree
    size: Size
    ends: climbs.Ends
    path: climbs.Path


def affordable(learnt: Learnt, target: Target, rows: PyTree) -> Size | None:
    """The largest size that takes at most a quarter of the run's work or about two seconds; None if no size fits."""
    work = gradient_work(target, rows)
    if MANY.gradients * work <= WORK / 10:
        return MOST if MOST.gradients * work <= WORK / 5 and learnt.model.space.size > FEW_NUMBERS else MANY
    allowed = _allowed_work(learnt, work, WORK)
    return next((size for size in SIZES if size.gradients * work <= allowed), None)


def affordable_on_few(learnt: Learnt, target: Target, rows: PyTree) -> Few | None:
    """The largest size that a sample of the rows allows; None if no size fits, or if all rows can be used.

    All rows are still needed for the correction of the sample's density (``Anchor``), for the last part of climbs, and
    to compare the sample's density with theirs.
    """
    model, data, work = learnt.model, learnt.data, gradient_work(target, rows)
    if data is None or not target.prior or model.prior_is_callable or model.local is not None:
        return None
    if work * SIZES[0].gradients <= WORK:
        return None
    gradients = _allowed_work(learnt, work, WORK_ON_MANY) / work - (model.space.size + LEAST_ON_ALL)
    for size in SIZES:
        count = 1 << int(math.log2(max(1, min(data.size / 2, data.size * gradients / size.gradients))))
        if count >= LEAST_ROWS:
            return Few(size._replace(walkers=max(size.walkers, SIZES[1].walkers)), count)
    return None


def _allowed_work(learnt: Learnt, work: float, least: float) -> float:
    """Operations that a verification may use, if a gradient takes ``work`` operations."""
    return max(SHARE * (learnt.cost.gradients + learnt.cost.densities / 3) * work, least)


def view_all(subject: Subject, target: Target, climbed: Target, rows: PyTree, size: Size) -> View:
    """The density with the given rows, and the ends of climbs on it from overdispersed starts."""
    begin = climbs.starts(
        climbed, rows, subject.centre, subject.root, size.starts, size.points, subject.seed, subject.places_before
    )
    path: list[climbs.Path] = []
    ends = climbs.climb(climbed, rows, begin, subject.centre, subject.root, path=path)
    positions, values = (np.concatenate(parts) for parts in zip(*path, strict=True))
    near = values > np.max(values) - climbs.NEAR - len(subject.centre) / 2
    return View([], target, climbed, rows, size, ends, climbs.Path(positions[near], values[near]))


def view_few(subject: Subject, target: Target, climbed: Target, rows: PyTree, few: Few) -> tuple[Check, View | None]:
    """Checks whether a sample of the rows represents all rows, and returns its density; None if it does not.

    From the highest ends of climbs on the sample, the climbs continue on all rows. If several modes remain, the
    view has all rows, because the modes' masses must be compared.
    """
    centre, root = subject.centre, subject.root
    sample = sample_rows(target, subject.learnt.data, rows, centre, root, few.count, subject.seed)
    draws = subject.draws(COMPARED_DRAWS)
    error = float(np.std(target._replace(anchored=True).at(sample, draws) - target.at(rows, draws)))
    sentence = f"nats by which the log density of {few.count:,} rows, corrected to the gradient and curvature of all "
    sentence += "rows, differs from that of all rows"
    if not error <= UNLIKE:
        sentence += ": too much to verify by these rows, and all rows take too long; use verify='thorough' for all rows"
        return Check("rows looked at", error, "caution", sentence), None
    check = Check("rows looked at", error, "trust", sentence)
    anchored = target._replace(anchored=True), climbed._replace(anchored=True)
    view = view_all(subject, *anchored, sample, few.size)
    highest = climbs.places_met(view.ends, root)
    places = sorted(set(highest), key=lambda i: -view.ends.values[i])[: climbs.MODES]
    new_ends = climbs.climb(climbed, rows, view.ends.positions[places], centre, root)
    ends = climbs.Ends(*(a[[places.index(i) for i in highest if i in places]] for a in new_ends))
    # Far from the posterior, where its correction fades out, a sample's density has arms of its own.
    no_path = climbs.Path(np.zeros((0, len(centre))), np.zeros(0))
    modes = climbs.places_met(ends, root)[ends.values > ends.values.max() - FAR_BELOW]
    if len(set(modes)) > 1:
        return check, View([check], target, climbed, rows, SIZES[-1], ends, no_path)
    return check, view._replace(checks=[check], ends=ends, path=no_path)
