"""Compares a posterior's means and sds with a second estimate of them: weighted places, moved draws, or other chains.

Errors are in units of what is allowed: a fifth of a posterior sd for a mean, a factor of 1.25 for an sd. Where tails
are so heavy that sds do not settle, quantiles are compared in their place.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.diagnostics import moves
from tractable.diagnostics.belief import values_of, weighted_quantiles
from tractable.diagnostics.importance import khat
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import ORDER
from tractable.diagnostics.reweighed import LEAST_ESS, Reweighed
from tractable.diagnostics.subject import Subject, even_draws
from tractable.diagnostics.view import View

MEANS_OFF = 0.2  # allowed error of a mean, in posterior sds
SDS_OFF = 1.25  # allowed error of an sd, as a factor
REJECT_MARGIN = 2.5  # standard errors by which an error must exceed the limit for "reject"
UNCERTAIN = math.log(SDS_OFF) / REJECT_MARGIN  # standard error of log sd above which an sd is not compared
TRUST_MARGIN = 2.0  # standard errors by which an error must lie below the limit for "trust"
SETTLED = 1.02  # largest R-hat at which another method's chains are compared with a result
HEAVY = 0.35  # tail index of the draws (1/ν of a t) above which quantiles are compared too
SHORT = 1.25  # factor on errors that moved draws alone show: along a curved ridge the draws move too little
KHAT_ALONE = 0.5  # largest k-hat at which weights need no second estimate
SHAPE, ERRORS, HIDDEN = "means and sds", "standard errors", "no standard errors"  # names of checks


class Compared(NamedTuple):
    """The worst mean or sd of a posterior against another estimate of it; errors in units of the allowed error."""

    error: float  # the larger of |difference of means|/0.2 sd and |log ratio of sds|/log 1.25; 1 is the limit
    chance: float  # standard error of ``error``
    name: str  # of the parameter
    means: float  # |difference of means|, in sds
    ratio: float  # reported sd over the other estimate
    tails: bool = False  # whether quantiles were compared; ``chance`` then includes the error of the draws
    doubtful: bool = False  # whether a variance may be infinite where the reported sd is finite
    lenient: bool = False  # whether "trust" needs no margin below the limit

    @classmethod
    def worst(
        cls, errors: np.ndarray, chances: np.ndarray, names: Sequence[str], means: np.ndarray, ratios: np.ndarray
    ) -> "Compared":
        """The parameter that is most surely wrong; if none surely is, the one whose error may be largest."""
        surely, perhaps = errors - REJECT_MARGIN * chances, errors + chances
        i = int(np.argmax(surely if surely.max() > 1 else perhaps))
        return cls(float(errors[i]), float(chances[i]), names[i], float(means[i]), float(ratios[i]))

    @property
    def verdict(self) -> str:
        """The verdict, with margins for both errors.

        Chains are ``lenient``: their own checks say how accurate their moments are. This does not hold for a variance
        that comes from far out in the tails.
        """
        if self.error - REJECT_MARGIN * self.chance > 1:
            return "reject"
        slack = 0 if self.lenient else TRUST_MARGIN * self.chance
        return "trust" if self.error + slack < 1 and not self.doubtful else "caution"

    @property
    def rank(self) -> int:
        """0 for "trust", 1 for "caution", 2 for "reject"."""
        return ORDER.index(self.verdict)

    def describe(self) -> str:
        """The worst parameter and its errors, as text."""
        if self.tails:
            far = "; tails decide some sd, which is not compared" * self.doubtful
            return f"a quantile of {self.name} is {self.means:.2f} half-widths of the middle 68 % off{far}"
        return f"the mean of {self.name} is {self.means:.2f} sd off and its sd {self.ratio:.2f} times the right one"


def check_shape(subject: Subject, view: View, reweighed: Reweighed | None, endless: bool) -> Check:
    """Compares means and sds with importance sampling's; if its weights are too uneven, with those of moved draws.

    Args:
        endless: whether the density may fall too slowly along a ray for a variance to be finite.
    """
    chained = subject.learnt.method.chained
    reliable = reweighed is not None and reweighed.reliable
    compared, source = None, ""
    if reweighed is not None and reliable:
        source = f"{len(reweighed.values):,} weighted places with an ESS of {reweighed.ess:,.0f}"
        compared = _compare_weighted(subject, reweighed, endless)
    shape = math.inf if reweighed is None else reweighed.khat
    # The k-hat of so many weights is known to 0.1: where it may exceed the limit, weights alone cannot earn trust.
    doubted = compared is not None and not chained and shape > KHAT_ALONE
    if compared is None or doubted or (compared.verdict == "caution" and not compared.tails):
        moved, short = compare_moved(subject, view), ""
        if moved is not None and not chained and not reliable:
            moved = moved._replace(error=SHORT * moved.error, chance=SHORT * moved.chance)
            short = " (they see too little: a quarter is added)"
        if moved is not None and prefers_moved(moved, compared, shape, chained):
            compared, source = moved, f"{view.size.walkers} draws moved by Hamiltonian Monte Carlo{short}"
    return _shape_check(subject, compared, source)


def _shape_check(subject: Subject, compared: Compared | None, source: str) -> Check:
    chained = subject.learnt.method.chained
    if compared is None:
        verdict, error = "trust" if chained else "caution", math.nan
        sentence = "neither reweighting nor moving draws can tell whether means and sds are right"
        sentence += "; only the chains' agreement speaks for them" if chained and not subject.is_point else ""
    else:
        verdict, error = compared.verdict, compared.error
        sentence = f"largest error, where 1 is allowed: {compared.describe()}, by {source}"
    if subject.is_point:  # standard errors are shown only if they are the posterior's sds, and the point its mean
        if verdict == "trust":
            return Check(ERRORS, error, "trust", sentence)
        return Check(HIDDEN, error, "trust", f"not shown: {sentence}")
    if compared is not None and verdict == "caution":
        sentence += ": too near the limit to tell"
    elif compared is not None and verdict == "reject":
        sentence += ": draw more, or change the parameters" if chained else ": use another method, such as NUTS"
    return Check(SHAPE, error, verdict, sentence)


def was_compared(checks: Sequence[Check]) -> bool:
    """Whether means and sds were compared with another estimate, which does not reject them."""
    return any(c.name == SHAPE and c.verdict != "reject" and not math.isnan(c.value) for c in checks)


def prefers_moved(moved: Compared, weighted: Compared | None, shape: float, chained: bool) -> bool:
    """Whether moved draws decide and not the weights: if the weights cannot tell, or if the moves see a larger error.

    Weights are doubted if their k-hat, ``shape``, is large. If it is small and weights see an error at the limit or
    beyond, moves that see none may have stayed in the mode where they began. For chains, moves only have to reject.
    """
    if weighted is None:
        return True
    if (shape > KHAT_ALONE and not chained) or (shape <= KHAT_ALONE and (chained or weighted.error >= 1)):
        return moved.rank > weighted.rank
    return moved.verdict != "caution"


def _compare_weighted(subject: Subject, reweighed: Reweighed, endless: bool) -> Compared | None:
    """Compares with the moments of weighted places; with their quantiles if some sd is too uncertain."""
    learnt = subject.learnt
    moments = reweighed.moments()
    compared = compare_moments(learnt, *moments)
    if compared is not None:
        return compared._replace(lenient=learnt.method.chained and not reweighed.long.any())
    if subject.is_point:
        return None
    settled = (moments[3] <= UNCERTAIN) | learnt.model.fixed
    doubtful = not (endless or reweighed.endless(~settled))
    by_quantiles = compare_quantiles(learnt, reweighed.values, reweighed.weights, reweighed.ess)
    return by_quantiles._replace(doubtful=doubtful)


def compare_moved(subject: Subject, view: View) -> Compared | None:
    """Compares the posterior's moments with those of its draws after moves; None where these could not be moved."""
    learnt = subject.learnt
    draws = subject.draws(view.size.walkers)
    moved = moves.move(view.target, view.rows, draws, subject.centre, subject.root, subject.seed)
    if not moved.usable:
        return None
    values = values_of(view.target.model, moved.after).astype(np.float64)  # (t, c, k)
    walkers = values.mean(0)
    mean, sd = values.mean((0, 1)), values.std((0, 1))
    error = walkers.std(0, ddof=1) / math.sqrt(values.shape[1])
    squares = np.square(values - mean).mean(0)
    sd_error = squares.std(0, ddof=1) / math.sqrt(values.shape[1]) / np.maximum(squares.mean(0), 1e-300) / 2
    compared = compare_moments(learnt, mean, error, sd, sd_error)
    if compared is not None:
        compared = compared._replace(lenient=learnt.method.chained)
    return compare_tails(learnt, compared, values.reshape(-1, values.shape[-1]), float(values.shape[1]))


def compare_tails(learnt: Learnt, compared: Compared | None, values: np.ndarray, ess: float) -> Compared | None:
    """The worse of a comparison of moments and one of quantiles, if tails are heavy or moments cannot tell."""
    if learnt.is_point or (compared is not None and not has_heavy_tails(learnt)):
        return compared
    by_quantiles = compare_quantiles(learnt, values, None, ess)
    return by_quantiles if compared is None else max(compared, by_quantiles, key=lambda c: c.rank)


def compare_chains(learnt: Learnt, other: Learnt) -> Check:
    """Compares means and sds with those of another method's chains, whose Monte-Carlo errors count."""
    method = type(other.method).__name__
    name, diagnosed, (mean, sd) = f"{method} beside it", other.diagnosed, other.flat_moments
    if not np.all(diagnosed.rhat <= SETTLED):
        sentence = f"R-hat of {method}, whose chains do not agree and so cannot be compared"
        return Check(name, float(np.nanmax(diagnosed.rhat)), "caution", sentence)
    compared = compare_moments(learnt, mean, diagnosed.mcse_mean, sd, diagnosed.mcse_sd / sd)
    if compared is None:
        sentence = f"the sds by {method} are too uncertain to compare: tails decide them"
        return Check(name, math.nan, "caution", sentence)
    sentence = f"largest error, where 1 is allowed: {compared.describe()}, by {method}"
    verdict = compared._replace(lenient=learnt.method.chained).verdict
    return Check(name, compared.error, verdict, sentence)


def compare_moments(
    learnt: Learnt, mean: np.ndarray, error: np.ndarray, sd: np.ndarray, sd_error: np.ndarray
) -> Compared | None:
    """The worst mean or sd against another estimate; None where that estimate's sds are too uncertain.

    Args:
        mean, error, sd, sd_error: (k,) means, their standard errors, sds, and the standard errors of log sd.
    """
    own_mean, own_sd = learnt.flat_moments
    # A parameter at a kink of its prior has no sd, and a constant has none to compare.
    checked = np.flatnonzero(~np.isnan(own_sd) & ~learnt.model.fixed)
    own_mean, own_sd, names = own_mean[checked], own_sd[checked], [learnt.names[i] for i in checked]
    mean, error, sd, sd_error = mean[checked], error[checked], sd[checked], sd_error[checked]
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(own_mean - mean) / sd / MEANS_OFF
        ratio = np.abs(np.log(own_sd / sd)) / math.log(SDS_OFF)
        off_error, ratio_error = error / sd / MEANS_OFF, sd_error / math.log(SDS_OFF)
    if not len(checked) or not np.all(np.isfinite(off)) or np.max(sd_error) > UNCERTAIN:
        return None
    by_mean = off >= ratio
    errors, chances = np.where(by_mean, off, ratio), np.where(by_mean, off_error, ratio_error)
    return Compared.worst(errors, chances, names, off * MEANS_OFF, own_sd / sd)


def compare_quantiles(learnt: Learnt, values: np.ndarray, weights: np.ndarray | None, ess: float) -> Compared:
    """Compares the 5, 50 and 95 % quantiles; the allowed error is a fifth of the half-width of the middle 68 %.

    Args:
        values, weights: (n, k) and (n,) of the other estimate, whose effective sample size is ``ess``.
    """
    levels, moving = [0.05, 0.16, 0.5, 0.84, 0.95], ~learnt.model.fixed
    theirs = weighted_quantiles(values[:, moving], levels, weights)
    flat = learnt.values.reshape(-1, len(learnt.names))[:, moving]
    own_weights = None if learnt.weights is None else learnt.weights.ravel().astype(np.float64)
    own = weighted_quantiles(flat, levels, own_weights)
    half = (theirs[3] - theirs[1]) / 2
    off = np.abs(own - theirs)[[0, 2, 4]].max(0) / half
    own_ess = len(flat) if own_weights is None else own_weights.sum() ** 2 / np.sum(own_weights**2)
    count = learnt.diagnosed.tail[moving] if learnt.method.chained else np.full(len(off), own_ess)
    steps = [0.02, 0.08, 0.47, 0.53, 0.92, 0.98]  # either side of each of the three, for the slope dq/dp
    run = weighted_quantiles(flat, steps, own_weights)
    steep = np.stack([(run[i + 1] - run[i]) / (steps[i + 1] - steps[i]) for i in (0, 2, 4)]) / half
    spread = np.sqrt(np.array([0.05, 0.5, 0.95]) * np.array([0.95, 0.5, 0.05]))[:, None] * steep  # √p(1 − p) dq/dp
    chances = spread.max(0) * np.sqrt(1 / np.maximum(count, 1) + 1 / ess) / MEANS_OFF
    names = [learnt.names[i] for i in np.flatnonzero(moving)]
    worst = Compared.worst(off / MEANS_OFF, chances, names, off, (own[3] - own[1]) / 2 / half)
    return worst._replace(tails=True)


def has_heavy_tails(learnt: Learnt) -> bool:
    """Whether some parameter's draws have tails so heavy that an estimated sd does not settle."""
    flat = learnt.values.reshape(-1, len(learnt.names))[:, ~learnt.model.fixed]
    if len(flat) < LEAST_ESS:
        return False
    flat = flat[even_draws(learnt, len(flat))]
    with np.errstate(divide="ignore"):
        away = np.sort(np.log(np.abs(flat - np.median(flat, 0))), 0)[::-1]
    tail = away[: 3 * math.isqrt(len(flat))]
    hill = np.mean(tail - tail[-1], 0)  # overestimates the tail index: few parameters then need the costlier k-hat
    return any(khat(column[np.isfinite(column)]) > HEAVY for column in away.T[hill > HEAVY])
