"""A second estimate of the posterior's moments, by adaptive importance sampling around its draws and other modes.

Points drawn from mixtures of multivariate t distributions ("places") get importance weights. Decisions behind it are in
docs/decisions/011-a-second-estimate-by-importance-sampling.md and 012-long-tails-and-infinite-variances.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from tractable.core.tree import PyTree
from tractable.diagnostics.belief import values_of
from tractable.diagnostics.climbs import Mode
from tractable.diagnostics.importance import KHAT_USED, khat
from tractable.diagnostics.target import Target
from tractable.diagnostics.weights import shares

LEAST_ESS = 200  # minimum effective sample size of the weights, and minimum number of draws, for a comparison
FREEDOM = 4.0  # degrees of freedom of the t's from which places are drawn
KERNELS = 30  # number of local t's (each around a single place) in every round except the first
ROUNDS = 4  # number of rounds; twice as many if some parameter has a long tail
LOW = 6  # maximum number of parameters for which local and very wide proposals are used
ADAPTED = 20  # maximum number of parameters for which a covariance is estimated from the weighted places
LONG = 15.0  # kurtosis above which a parameter has a long tail; some proposals are then put far out in that tail
# A variance is the integral of x² p(log x) over log x, with x the distance from the mean. The slope of log(x² p(log x))
# in log x is measured between these QUANTILES of the variance, if at least FAR_OUT places lie between the last two.
QUANTILES = (0.5, 0.84, 0.995)
FAR_OUT = 30
# A variance is taken to be infinite if the 2 · FURTHEST most distant places have less than LITTLE of the mass, and the
# slope of log(x² p(log x)) in log x among these places is still above FALLING.
FURTHEST, LITTLE, FALLING = 100, 1e-6, -0.3


class Proposal(NamedTuple):
    """A multivariate t distribution, as one component of a mixture."""

    centre: np.ndarray  # (d,)
    root: np.ndarray  # (d, d) a root of the scale matrix
    share: float  # weight in the mixture


class Reweighed(NamedTuple):
    """Places with importance weights."""

    positions: np.ndarray  # (n, d) unconstrained
    values: np.ndarray  # (n, k) the model's parameters at these positions
    weights: np.ndarray  # (n,) importance weights, which sum to 1
    log_weights: np.ndarray  # (n,)
    ess: float  # effective sample size 1/Σw²
    khat: float  # tail index of the weights

    @property
    def reliable(self) -> bool:
        """Whether the importance weights are good enough for a comparison."""
        return self.ess >= LEAST_ESS and self.khat <= KHAT_USED

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Means, their standard errors, sds, and standard errors of log sd, (k,) each; errors by the delta method.

        For long tails, the error of log sd also includes the variance beyond all places, if the tail follows a power
        law. It is infinite if the variance seems to be.
        """
        w, values = self.counting
        mean = np.sum(w * values, 0)
        away = values - mean
        variance = np.maximum(np.sum(w * away**2, 0), 1e-300)
        error = np.sqrt(np.sum((w * away) ** 2, 0))
        sd_error = np.sqrt(np.sum((w * (away**2 / variance - 1)) ** 2, 0)) / 2
        for i in np.flatnonzero(self.long):
            sd_error[i] = np.hypot(sd_error[i], _beyond(np.abs(away[:, i]), w[:, 0]) / 2)
        return mean, error, np.sqrt(variance), sd_error

    @property
    def counting(self) -> tuple[np.ndarray, np.ndarray]:
        """The positive weights (m, 1), and their values (m, k). Values of weight 0 may overflow, and 0 · ∞ is NaN."""
        counts = self.weights > 0
        return self.weights[counts, None], self.values[counts]

    @property
    def long(self) -> np.ndarray:
        """(k,) which parameters have a kurtosis above ``LONG``."""
        w, values = self.counting
        squares = np.square(values - np.sum(w * values, 0))
        return np.sum(w * squares**2, 0) > LONG * np.sum(w * squares, 0) ** 2

    def endless(self, which: np.ndarray) -> bool:
        """Whether all parameters marked in ``which`` (k,) seem to have infinite variances.

        For x, the distance of a parameter from its mean, the variance is the integral of x² p(log x) over log x. It
        seems infinite if this density does not fall even where almost no mass is left.
        """
        w, values = self.counting[0][:, 0], self.counting[1][:, which]
        for distance in np.abs(values - np.sum(w[:, None] * values, 0)).T:
            furthest = np.argsort(distance)[: -2 * FURTHEST - 1 : -1]
            x, mass = np.log(distance[furthest]), w[furthest] * distance[furthest] ** 2
            edges = x[[0, FURTHEST, -1]]
            if not edges[0] > edges[1] > edges[2]:  # many places at the same distance: the parameter is bounded
                return False
            rise = mass[:FURTHEST].sum() / mass[FURTHEST:].sum() * (edges[1] - edges[2]) / (edges[0] - edges[1])
            if not (w[furthest].sum() < LITTLE and 2 * np.log(rise) / (edges[0] - edges[2]) > FALLING):
                return False
        return True


def reweigh(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, modes: Sequence[Mode], count: int, seed: int
) -> Reweighed | None:
    """Importance sampling in rounds; each round draws from t's fitted to the earlier rounds (Cappé et al. 2004).

    If a parameter has a long tail, some t's are fitted to the places that contribute most to its variance. Along a
    curved or narrowing ridge, each round then reaches further out. Places of all rounds are weighted against the
    mixture of all rounds' proposals (Veach & Guibas 1995; Cornuet et al. 2012).

    Args:
        target: the log density.
        rows: the data, as ``target`` takes them.
        centre, root: mean (d,) of the posterior under test, and a root (d, d) of its covariance.
        modes: maxima that the climbs found, whether or not the posterior's draws visit them.
        count: number of places in each round.
        seed: seed of the random numbers.

    Returns:
        The weighted places; None if the density is 0 at all of them.
    """
    generator = np.random.default_rng(seed)
    size = len(centre)
    proposals = _first_proposals(centre, root, modes, size)
    positions, densities = np.zeros((0, size)), np.zeros(0)
    values = np.zeros((0, len(target.model.names)))
    all_proposals: list[list[Proposal]] = []
    by_round = np.zeros((0, 0))  # (rounds, places) log density of each place under each round's proposals
    for i in range(2 * ROUNDS):
        places = _draw_places(generator, proposals, count)
        positions = np.concatenate([positions, places])
        densities = np.concatenate([densities, target.at(rows, places)])
        values = np.concatenate([values, values_of(target.model, places)])
        by_earlier_rounds = [_log_proposals(p, places) for p in all_proposals]
        all_proposals.append(proposals)
        by_this_round = _log_proposals(proposals, positions)
        by_round = np.vstack([np.hstack([by_round, np.reshape(by_earlier_rounds, (-1, count))]), by_this_round])
        log_weights = densities - _log_mixture(by_round)
        if not np.any(np.isfinite(log_weights)):
            return None
        proposals, has_long_tail = _next_proposals(generator, positions, values, log_weights, modes, proposals)
        if i == ROUNDS - 1 and not has_long_tail:
            break
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    weights = shares(finite)
    tail = khat(finite[np.isfinite(finite)])  # a place where the density is zero says nothing about the tail
    return Reweighed(positions, values, weights, finite, float(1 / np.sum(weights**2)), tail)


def _first_proposals(centre: np.ndarray, root: np.ndarray, modes: Sequence[Mode], size: int) -> list[Proposal]:
    """The first round's t's: around the posterior's mean, with several widths, and around each mode."""
    inflate = 1.5 if size <= 3 else 1.0 + 1.0 / np.sqrt(size)
    proposals = [Proposal(centre, inflate * root, 0.5)]
    if size <= LOW:
        proposals += [Proposal(centre, 5 * root, 0.15), Proposal(centre, 25 * root, 0.1)]
    proposals += [Proposal(m.position, 1.2 * m.root, 0.4 / len(modes)) for m in modes]
    return _scale_shares(proposals)


def _next_proposals(
    generator: np.random.Generator, positions: np.ndarray, values: np.ndarray, log_weights: np.ndarray,
    modes: Sequence[Mode], previous: list[Proposal],
) -> tuple[list[Proposal], bool]:  # fmt: skip
    """The next round's t's, fitted to the weighted places, and whether some parameter has a long tail.

    One t has the places' mean and covariance. In few dimensions there are also local t's around random places. In more
    than ``ADAPTED`` dimensions, the first t stays as it is: a t with a covariance fitted to places would be too close
    around these places, and their weights would be too small.
    """
    size, count = positions.shape[1], len(positions)
    # Each weight is limited to 1/(2 √count) of the sum, so that no single place decides where the next t's are.
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    limit = logsumexp(finite) - 0.5 * np.log(count) - np.log(2.0)
    w = shares(np.minimum(finite, limit))
    mean, root, ess = _fit_normal(positions, w, previous[0].root) if size <= ADAPTED else (*previous[0][:2], 0.0)
    inflate = 1.0 if size > 3 else 1.15
    proposals = [Proposal(mean, inflate * root, 0.5)]
    if size <= LOW:
        proposals += [Proposal(mean, 3 * root, 0.1)]
        width = min(0.8, 1.1 * min(ess, 200.0) ** (-1 / (size + 4)))
        local = width * root
        proposals += [Proposal(positions[i], local, 0.4 / KERNELS) for i in generator.choice(count, KERNELS, p=w)]
    outward = _outward(values, w)
    if outward is not None:
        mean, root, _ = _fit_normal(positions, outward, previous[0].root)
        proposals += [Proposal(mean, root, 0.2)]
        if size <= LOW:
            indices = generator.choice(count, KERNELS, p=outward)
            proposals += [Proposal(positions[i], local, 0.3 / KERNELS) for i in indices]
    proposals += [Proposal(m.position, 1.2 * m.root, 0.15 / len(modes)) for m in modes]
    return _scale_shares(proposals), outward is not None


def _fit_normal(positions: np.ndarray, w: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, a root of the covariance and effective number of weighted places.

    The fewer the effective places, the more the covariance is shrunk towards that of the root ``wide``.
    """
    size, ess = positions.shape[1], float(1 / np.sum(w**2))
    mean = w @ positions
    deviations = positions - mean
    covariance = (deviations * w[:, None]).T @ deviations
    shrink = ess / (ess + 2 * size)
    covariance = shrink * covariance + (1 - shrink) * wide @ wide.T
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    return mean, scale[:, None] * np.linalg.cholesky(covariance / np.outer(scale, scale) + 1e-6 * np.eye(size)), ess


def _outward(values: np.ndarray, w: np.ndarray) -> np.ndarray | None:
    """(n,) each place's share in the variance of the parameters with long tails; None if there are no long tails."""
    positive = np.flatnonzero(w > 0)
    weights, numbers = w[positive, None], values[positive]
    squares = (numbers - np.sum(weights * numbers, 0)) ** 2
    variance = np.sum(weights * squares, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights * squares / variance
        is_long = np.isfinite(variance) & (np.sum(weights * squares**2, 0) > LONG * variance**2)
    if not np.any(is_long):
        return None
    outward = np.zeros(len(w))
    outward[positive] = np.mean(share[:, is_long], 1)
    return outward / outward.sum()


def _beyond(distance: np.ndarray, w: np.ndarray) -> float:
    """The share of a variance that lies beyond all places, if the tail follows a power law.

    For a tail P(x > c) ~ c^−α, log(x² p(log x)) has the slope 2 − α in log x. The slope is measured between two parts
    of the variance: from its 50 % to its 84 % quantile, and from there to its 99.5 % quantile. The share is infinite
    if the density does not fall, or if too few places lie so far out. For a t with 2.5 degrees of freedom the share is
    5 to 10 %: the places' own variance is too small by this much.

    Args:
        distance: (n,) distances of the places from the mean, in one parameter.
        w: (n,) weights of the places.
    """
    positive = np.flatnonzero(distance > 0)
    order = positive[np.argsort(distance[positive])]
    x, mass = np.log(distance[order]), w[order] * distance[order] ** 2
    index = np.minimum(np.searchsorted(np.cumsum(mass) / mass.sum(), QUANTILES), len(x) - 1)
    start, middle, end = x[index]
    if index[2] - index[1] < FAR_OUT or not start < middle < end:
        return np.inf
    inner_share, outer_share = np.diff(QUANTILES)
    slope = 2 * np.log(outer_share / inner_share * (middle - start) / (end - middle)) / (end - start)
    if slope >= 0:
        return np.inf
    # For a power law, the share 1 − exp(slope (end − middle)) of the mass beyond ``middle`` lies before ``end``.
    return max(0.0, float(outer_share / -np.expm1(slope * (end - middle)) - (1 - QUANTILES[1])))


def _scale_shares(proposals: list[Proposal]) -> list[Proposal]:
    """The proposals with shares that sum to 1."""
    total = sum(p.share for p in proposals)
    return [p._replace(share=p.share / total) for p in proposals]


def _draw_places(generator: np.random.Generator, proposals: list[Proposal], count: int) -> np.ndarray:
    """(count, d) draws from the mixture of proposals."""
    size = len(proposals[0].centre)
    # Stratified sampling: each proposal gets its share of the places, up to a difference of one.
    edges = np.floor(np.cumsum([p.share for p in proposals]) * count + generator.random()).astype(int)
    counts = np.diff(np.concatenate([[0], np.minimum(edges, count)]))
    counts[0] += count - counts.sum()
    out = []
    for p, n in zip(proposals, counts, strict=True):
        normal = generator.standard_normal((n, size))
        chi = generator.chisquare(FREEDOM, (n, 1)) / FREEDOM
        out.append(p.centre + (normal / np.sqrt(chi)) @ p.root.T)
    return np.concatenate(out)


def _log_proposals(proposals: list[Proposal], positions: np.ndarray) -> np.ndarray:
    """(n,) log density of the mixture of t's."""
    size = positions.shape[1]
    constant = gammaln((FREEDOM + size) / 2) - gammaln(FREEDOM / 2) - size / 2 * np.log(FREEDOM * np.pi)
    by_root: dict[int, list[Proposal]] = {}  # local proposals have the same root, and are evaluated together
    for p in proposals:
        by_root.setdefault(id(p.root), []).append(p)
    logs = []
    for group in by_root.values():
        inverse = np.linalg.inv(group[0].root).T
        white = (positions - group[0].centre) @ inverse
        centres = (np.stack([p.centre for p in group]) - group[0].centre) @ inverse
        squares = np.sum(centres**2, 1)[:, None] - 2 * centres @ white.T + np.sum(white**2, 1)
        height = constant + np.log([p.share for p in group]) - np.sum(np.log(np.abs(np.diag(group[0].root))))
        logs.append(height[:, None] - (FREEDOM + size) / 2 * np.log1p(np.maximum(squares, 0.0) / FREEDOM))
    return _log_sum(np.concatenate(logs))


def _log_mixture(by_round: np.ndarray) -> np.ndarray:
    """(n,) log density of the mixture of all rounds' proposals."""
    return _log_sum(by_round) - np.log(len(by_round))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """(n,) log Σ exp over the first axis of (k, n) finite numbers."""
    top = logs.max(0)
    return top + np.log(np.sum(np.exp(logs - top), 0))
