"""Compares a posterior's means and sds with a second estimate of them.

The second estimate comes from importance sampling ("weighted places"), from the posterior's draws after Hamiltonian
Monte Carlo ("moved draws"), or from another method's chains. Errors are in units of the allowed error: a fifth of a
posterior sd for a mean, a factor of 1.25 for an sd. If tails are so heavy that estimated sds do not converge, quantiles
are compared instead.
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

MEANS_OFF = 0.2  # allowed error of a mean, in posterior sds (docs/decisions/009-what-a-right-posterior-is.md)
SDS_OFF = 1.25  # allowed error of an sd, as a factor
REJECT_MARGIN = 2.5  # standard errors by which an error must exceed the limit for "reject"
UNCERTAIN = math.log(SDS_OFF) / REJECT_MARGIN  # standard error of log sd above which an sd is not compared
TRUST_MARGIN = 2.0  # standard errors by which an error must lie below the limit for "trust"
SETTLED = 1.02  # largest R-hat at which another method's chains are compared with a result
HEAVY = 0.35  # tail index of the draws (1/ν for a t with ν degrees of freedom) above which quantiles are compared too
SHORT = 1.25  # factor on the error if only moved draws measure it: along a curved ridge, draws move too little
KHAT_ALONE = 0.5  # largest k-hat (tail index of importance weights) at which weights need no second estimate
PER_PARAMETER = 4  # least effective sample size for each parameter: the largest of many errors is large by chance
SHAPE, ERRORS, HIDDEN = "means and sds", "standard errors", "no standard errors"  # names of checks


class Compared(NamedTuple):
    """The parameter whose mean or sd differs most from another estimate; errors in units of the allowed error."""

    error: float  # the larger of |difference of means|/(0.2 sd) and |log ratio of sds|/log 1.25; 1 is the limit
    chance: float  # standard error of ``error``
    name: str  # name of the parameter
    means: float  # |difference of means| in sds; of quantiles, in half-widths of the middle 68 %
    ratio: float  # reported sd over the other estimate
    tails: bool = False  # whether quantiles were compared; ``chance`` then includes the error of the draws
    doubtful: bool = False  # whether some sd, which seems to be finite, was too uncertain to be compared
    lenient: bool = False  # whether "trust" needs no margin below the limit

    @classmethod
    def worst(
        cls, errors: np.ndarray, chances: np.ndarray, names: Sequence[str], means: np.ndarray, ratios: np.ndarray
    ) -> "Compared":
        """The parameter with the most significant error; if none is significant, the one whose error may be largest."""
        lower_bounds, upper_bounds = errors - REJECT_MARGIN * chances, errors + chances
        i = int(np.argmax(lower_bounds if lower_bounds.max() > 1 else upper_bounds))
        return cls(float(errors[i]), float(chances[i]), names[i], float(means[i]), float(ratios[i]))

    @property
    def verdict(self) -> str:
        """The verdict, with margins for the uncertainty of the comparison.

        Comparisons of chains are ``lenient``: R-hat and effective sample sizes already show how accurate the chains'
        moments are, except for a variance that comes from far out in the tails.
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
            doubt = "; tails decide some sd, which is not compared" * self.doubtful
            return f"a quantile of {self.name} is {self.means:.2f} half-widths of the middle 68 % off{doubt}"
        return f"the mean of {self.name} is {self.means:.2f} sd off and its sd {self.ratio:.2f} times the right one"


def check_shape(subject: Subject, view: View, reweighed: Reweighed | None, endless: bool) -> Check:
    """Compares means and sds with those of importance sampling, or of moved draws if the weights are too uneven.

    Args:
        subject: the posterior.
        view: the density.
        reweighed: the weighted places; None if there are none.
        endless: whether the density may fall so slowly along a ray that some variance is infinite.
    """
    chained = subject.learnt.method.chained and subject.learnt.method.follows
    enough = PER_PARAMETER * len(subject.centre)
    reliable = reweighed is not None and reweighed.reliable and reweighed.ess >= enough
    compared, source = None, ""
    if reweighed is not None and reliable:
        source = f"{len(reweighed.values):,} weighted places with an ESS of {reweighed.ess:,.0f}"
        compared = _compare_weighted(subject, reweighed, endless)
    shape = math.inf if reweighed is None else reweighed.khat
    # The estimated k-hat has an error of about 0.1. Above KHAT_ALONE the true k-hat may be too large, so that weights
    # alone are not trusted.
    needs_moves = compared is not None and not chained and shape > KHAT_ALONE
    if compared is None or needs_moves or (compared.verdict == "caution" and not compared.tails):
        by_moves, note = compare_moved(subject, view), ""
        if by_moves is not None and not chained and not reliable:
            by_moves = by_moves._replace(error=SHORT * by_moves.error, chance=SHORT * by_moves.chance)
            note = " (25 % is added, because moved draws show errors too small)"
        if by_moves is not None and prefers_moved(by_moves, compared, shape, chained):
            compared, source = by_moves, f"{view.size.walkers} draws moved by Hamiltonian Monte Carlo{note}"
    return _shape_check(subject, compared, source)


def _shape_check(subject: Subject, compared: Compared | None, source: str) -> Check:
    """The check with the verdict of a comparison, or without one if nothing could be compared."""
    chained = subject.learnt.method.chained and subject.learnt.method.follows
    if compared is None:
        verdict, error = "trust" if chained else "caution", math.nan
        sentence = "neither reweighting nor moving draws can tell whether means and sds are right"
        sentence += "; the only evidence is that chains agree" if chained and not subject.is_point else ""
    else:
        verdict, error = compared.verdict, compared.error
        sentence = f"largest error, where 1 is allowed: {compared.describe()}, by {source}"
    if subject.is_point:  # standard errors are shown only if the point is the posterior's mean, and they are its sds
        if verdict == "trust":
            return Check(ERRORS, error, "trust", sentence)
        return Check(HIDDEN, error, "trust", f"not shown: {sentence}")
    if compared is not None and verdict == "caution":
        sentence += ": too near the limit to tell"
    elif compared is not None and verdict == "reject":
        sentence += f": {subject.learnt.method.advice}"
    return Check(SHAPE, error, verdict, sentence)


def was_compared(checks: Sequence[Check]) -> bool:
    """Whether means and sds were compared with another estimate and not rejected."""
    return any(c.name == SHAPE and c.verdict != "reject" and not math.isnan(c.value) for c in checks)


def prefers_moved(by_moves: Compared, by_weights: Compared | None, shape: float, chained: bool) -> bool:
    """Whether moved draws decide instead of weighted places.

    They decide if there is no comparison by weights. Otherwise ``shape``, the weights' k-hat, matters:

    - Large k-hat, no chains: the worse verdict counts, because each estimate may miss an error.
    - Small k-hat, and either chains or weights that show an error beyond the limit: again the worse verdict counts.
      Moves that show no error may have stayed in the mode where they began.
    - All other cases: moved draws decide, unless their own verdict is "caution".
    """
    if by_weights is None:
        return True
    if (shape > KHAT_ALONE and not chained) or (shape <= KHAT_ALONE and (chained or by_weights.error >= 1)):
        return by_moves.rank > by_weights.rank
    return by_moves.verdict != "caution"


def _compare_weighted(subject: Subject, reweighed: Reweighed, endless: bool) -> Compared | None:
    """Compares with the moments of weighted places, or with their quantiles if some sd is too uncertain."""
    learnt = subject.learnt
    moments = reweighed.moments()
    compared = compare_moments(learnt, *moments)
    if compared is not None:
        return compared._replace(lenient=learnt.method.chained and not reweighed.long.any())
    if subject.is_point:
        return None
    is_certain = (moments[3] <= UNCERTAIN) | learnt.model.fixed
    doubtful = not (endless or reweighed.endless(~is_certain))
    by_quantiles = compare_quantiles(learnt, reweighed.values, reweighed.weights, reweighed.ess)
    return by_quantiles._replace(doubtful=doubtful)


def compare_moved(subject: Subject, view: View) -> Compared | None:
    """Compares the posterior's moments with those of its draws after HMC moves; None if moves were not accepted."""
    learnt = subject.learnt
    draws = subject.draws(view.size.walkers)
    result = moves.move(view.target, view.rows, draws, subject.centre, subject.root, subject.seed)
    if not result.usable:
        return None
    values = values_of(view.target.model, result.after).astype(np.float64)  # (t, c, k)
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
    """The worse of two comparisons: of moments, and of quantiles if tails are heavy or moments were not compared."""
    if learnt.is_point or (compared is not None and not has_heavy_tails(learnt)):
        return compared
    by_quantiles = compare_quantiles(learnt, values, None, ess)
    return by_quantiles if compared is None else max(compared, by_quantiles, key=lambda c: c.rank)


def compare_chains(learnt: Learnt, other: Learnt) -> Check:
    """Compares means and sds with those of another method's chains, with allowance for their Monte-Carlo errors."""
    method = type(other.method).__name__
    name, diagnosed, (mean, sd) = f"compared with {method}", other.diagnosed, other.flat_moments
    if not np.all(diagnosed.rhat <= SETTLED):
        sentence = f"R-hat of {method}: its chains do not agree, so that they cannot be compared with the result"
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
    """Compares means and sds with another estimate; None if that estimate's sds are too uncertain.

    Args:
        learnt: the posterior.
        mean, error, sd, sd_error: (k,) means, their standard errors, sds, and the standard errors of log sd.
    """
    own_mean, own_sd = learnt.flat_moments
    # Left out: a parameter at a kink of its prior, whose sd is NaN, and constants.
    checked = np.flatnonzero(~np.isnan(own_sd) & ~learnt.model.fixed)
    own_mean, own_sd, names = own_mean[checked], own_sd[checked], [learnt.names[i] for i in checked]
    mean, error, sd, sd_error = mean[checked], error[checked], sd[checked], sd_error[checked]
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = np.abs(own_mean - mean) / sd / MEANS_OFF
        ratio = np.abs(np.log(own_sd / sd)) / math.log(SDS_OFF)
        difference_error, ratio_error = error / sd / MEANS_OFF, sd_error / math.log(SDS_OFF)
    if not len(checked) or not np.all(np.isfinite(difference)) or np.max(sd_error) > UNCERTAIN:
        return None
    by_mean = difference >= ratio
    errors, chances = np.where(by_mean, difference, ratio), np.where(by_mean, difference_error, ratio_error)
    return Compared.worst(errors, chances, names, difference * MEANS_OFF, own_sd / sd)


def compare_quantiles(learnt: Learnt, values: np.ndarray, weights: np.ndarray | None, ess: float) -> Compared:
    """Compares the 5, 50 and 95 % quantiles; the allowed error is a fifth of the half-width of the middle 68 %.

    Args:
        learnt: the posterior.
        values, weights: (n, k) draws and (n,) weights of the other estimate, whose effective sample size is ``ess``.
    """
    levels, moving = [0.05, 0.16, 0.5, 0.84, 0.95], ~learnt.model.fixed
    other_quantiles = weighted_quantiles(values[:, moving], levels, weights)
    flat = learnt.values.reshape(-1, len(learnt.names))[:, moving]
    own_weights = None if learnt.weights is None else learnt.weights.ravel().astype(np.float64)
    own_quantiles = weighted_quantiles(flat, levels, own_weights)
    half = (other_quantiles[3] - other_quantiles[1]) / 2
    error = np.abs(own_quantiles - other_quantiles)[[0, 2, 4]].max(0) / half
    own_ess = len(flat) if own_weights is None else own_weights.sum() ** 2 / np.sum(own_weights**2)
    count = learnt.diagnosed.tail[moving] if learnt.method.chained else np.full(len(error), own_ess)
    # A quantile q at level p has the standard error √(p(1 − p)/n) dq/dp. The slope is that between two levels near p.
    steps = [0.02, 0.08, 0.47, 0.53, 0.92, 0.98]
    nearby = weighted_quantiles(flat, steps, own_weights)
    slope = np.stack([(nearby[i + 1] - nearby[i]) / (steps[i + 1] - steps[i]) for i in (0, 2, 4)]) / half
    p = np.array([0.05, 0.5, 0.95])[:, None]
    variances = p * (1 - p) / np.maximum(count, 1) + (
        p * (1 - p) / ess if weights is None else _level_variances(values[:, moving], weights, other_quantiles[::2], p)
    )
    chances = (slope * np.sqrt(variances)).max(0) / MEANS_OFF
    names = [learnt.names[i] for i in np.flatnonzero(moving)]
    ratios = (own_quantiles[3] - own_quantiles[1]) / 2 / half
    return Compared.worst(error / MEANS_OFF, chances, names, error, ratios)._replace(tails=True)


def _level_variances(values: np.ndarray, weights: np.ndarray, quantiles: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Variances (3, k) of the mass below estimated quantiles (3, k) at levels p (3, 1), Σ w² (1[x ≤ q] − p)².

    One place of large weight far out makes its level uncertain, however large the effective sample size is.
    """
    w = weights / weights.sum()
    return np.stack([w**2 @ np.square((values <= q) - level) for q, level in zip(quantiles, p, strict=True)])


def has_heavy_tails(learnt: Learnt) -> bool:
    """Whether some parameter's draws have tails so heavy that an estimated sd does not converge."""
    flat = learnt.values.reshape(-1, len(learnt.names))[:, ~learnt.model.fixed]
    if len(flat) < LEAST_ESS:
        return False
    flat = flat[even_draws(learnt, len(flat))]
    with np.errstate(divide="ignore"):
        logs = np.sort(np.log(np.abs(flat - np.median(flat, 0))), 0)[::-1]
    tail = logs[: 3 * math.isqrt(len(flat))]
    hill = np.mean(tail - tail[-1], 0)  # Hill's estimate of the tail index is too large, but needs less work than k-hat
    return any(khat(column[np.isfinite(column)]) > HEAVY for column in logs.T[hill > HEAVY])
