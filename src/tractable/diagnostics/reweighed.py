"""A second estimate of the posterior's moments: adaptive importance sampling around its draws and other modes."""

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

LEAST_ESS = 200  # least effective sample size of the weights, and least number of draws, to judge by
FREEDOM = 4.0  # degrees of freedom of the t's from which places are drawn
KERNELS = 30  # local t's in every round but the first
ROUNDS = 4  # twice as many where a number has a long tail
LOW = 6  # most parameters for which local and very wide proposals help
ADAPTED = 20  # most parameters whose covariance weighted places tell; of more, it fits the places that told it
LONG = 15.0  # kurtosis of a number above which some places are sought where its variance comes from
QUANTILES = (0.5, 0.84, 0.995)  # of x² p(log x), between which its slope is taken
FAR_OUT = 30  # least number of places by which the slope is known
FURTHEST, LITTLE = 100, 1e-6  # places that reach furthest, and their mass at which a variance is held to be infinite,
FALLING = -0.3  # if the slope of log(x² p(log x)) among them is still above this


class Proposal(NamedTuple):
    """A multivariate t in a mixture."""

    centre: np.ndarray  # (d,)
    root: np.ndarray  # (d, d)
    share: float  # its weight in the mixture


class Reweighed(NamedTuple):
    """Places with importance weights."""

    positions: np.ndarray  # (n, d)
    values: np.ndarray  # (n, k) the user's parameters there
    weights: np.ndarray  # (n,) sum to 1
    log_weights: np.ndarray  # (n,)
    ess: float  # 1/Σw²
    khat: float

    @property
    def reliable(self) -> bool:
        """Whether the importance weights are good enough to judge by."""
        return self.ess >= LEAST_ESS and self.khat <= KHAT_USED

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of k numbers: mean, its standard error, sd, standard error of log sd; errors by the delta method.

        The last counts what lies beyond all places where a tail falls by a power, and is infinite where the variance
        is, as far as the places can tell.
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
        """Weights (m, 1) above 0, and values (m, k) there: far out they may overflow, and 0 · ∞ is no number."""
        counts = self.weights > 0
        return self.weights[counts, None], self.values[counts]

    @property
    def long(self) -> np.ndarray:
        """(k,) which numbers have a kurtosis above ``LONG``."""
        w, values = self.counting
        squares = np.square(values - np.sum(w * values, 0))
        return np.sum(w * squares**2, 0) > LONG * np.sum(w * squares, 0) ** 2

    def endless(self, which: np.ndarray) -> bool:
        """Whether x² p(log x) of each number of ``which`` (k,) still does not fall where next to no mass is left."""
        w, values = self.counting[0][:, 0], self.counting[1][:, which]
        for away in np.abs(values - np.sum(w[:, None] * values, 0)).T:
            last = np.argsort(away)[: -2 * FURTHEST - 1 : -1]
            x, mass = np.log(away[last]), w[last] * away[last] ** 2
            ends = x[[0, FURTHEST, -1]]
            if not ends[0] > ends[1] > ends[2]:  # many at one place: the number has a bound
                return False
            rise = mass[:FURTHEST].sum() / mass[FURTHEST:].sum() * (ends[1] - ends[2]) / (ends[0] - ends[1])
            if not (w[last].sum() < LITTLE and 2 * np.log(rise) / (ends[0] - ends[2]) > FALLING):
                return False
        return True


def reweigh(
    target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, modes: Sequence[Mode], count: int, seed: int
) -> Reweighed | None:
    """Importance sampling in rounds; each draws from t's fitted to the earlier ones (Cappé et al. 2004).

    Where a number has a long tail, some t's are fitted to the places where its variance comes from. A valley that
    bends or narrows on its way out leads there step by step.

    Places of all rounds are weighted against the mixture of all proposals (Veach & Guibas 1995; Cornuet et al. 2012).

    Args:
        centre, root: mean (d,) of the posterior under test, and a root of its covariance.
        modes: maxima that the climbs found, visited by the posterior or not.
        count: places in each round.
    """
    generator = np.random.default_rng(seed)
    size = len(centre)
    proposals = _first(centre, root, modes, size)
    positions, densities = np.zeros((0, size)), np.zeros(0)
    values = np.zeros((0, len(target.model.names)))
    drawn_from: list[list[Proposal]] = []
    by_round = np.zeros((0, 0))  # (rounds, places) log density of each place under each round's proposals
    for round_ in range(2 * ROUNDS):
        new = _drawn(generator, proposals, count)
        positions = np.concatenate([positions, new])
        densities = np.concatenate([densities, target.at(rows, new)])
        values = np.concatenate([values, values_of(target.model, new)])
        earlier = [_log_proposals(p, new) for p in drawn_from]
        drawn_from.append(proposals)
        newest = _log_proposals(proposals, positions)
        by_round = np.vstack([np.hstack([by_round, np.reshape(earlier, (-1, count))]), newest])
        log_weights = densities - _log_mixture(by_round)
        if not np.any(np.isfinite(log_weights)):
            return None
        proposals, long = _next(generator, positions, values, log_weights, modes, proposals)
        if round_ == ROUNDS - 1 and not long:
            break
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    weights = shares(finite)
    tail = khat(finite[np.isfinite(finite)])  # a place where the density is zero says nothing about the tail
    return Reweighed(positions, values, weights, finite, float(1 / np.sum(weights**2)), tail)


def _first(centre: np.ndarray, root: np.ndarray, modes: Sequence[Mode], size: int) -> list[Proposal]:
    inflate = 1.5 if size <= 3 else 1.0 + 1.0 / np.sqrt(size)
    found = [Proposal(centre, inflate * root, 0.5)]
    if size <= LOW:
        found += [Proposal(centre, 5 * root, 0.15), Proposal(centre, 25 * root, 0.1)]
    found += [Proposal(m.position, 1.2 * m.root, 0.4 / len(modes)) for m in modes]
    return _shared(found)


def _next(
    generator: np.random.Generator, positions: np.ndarray, values: np.ndarray, log_weights: np.ndarray,
    modes: Sequence[Mode], before: list[Proposal],
) -> tuple[list[Proposal], bool]:  # fmt: skip
    """t's around the weighted places: one with their mean and covariance, and in few dimensions local ones too.

    In many dimensions the first t stays, as the weights would be biased: places that shaped a covariance are near
    the middle of its t, and so count for too little.

    And whether some number has a long tail.
    """
    size, count = positions.shape[1], len(positions)
    # No weight counts for more than 1/(2 √count) of the sum: one place would become the whole answer.
    finite = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    cut = logsumexp(finite) - 0.5 * np.log(count) - np.log(2.0)
    clipped = np.minimum(finite, cut)
    w = shares(clipped)
    mean, whole, ess = _fitted(positions, w, before[0].root) if size <= ADAPTED else (*before[0][:2], 0.0)
    inflate = 1.0 if size > 3 else 1.15
    found = [Proposal(mean, inflate * whole, 0.5)]
    if size <= LOW:
        found += [Proposal(mean, 3 * whole, 0.1)]
        width = min(0.8, 1.1 * min(ess, 200.0) ** (-1 / (size + 4)))
        local = width * whole
        found += [Proposal(positions[i], local, 0.4 / KERNELS) for i in generator.choice(count, KERNELS, p=w)]
    outward = _outward(values, w)
    if outward is not None:
        mean, whole, _ = _fitted(positions, outward, before[0].root)
        found += [Proposal(mean, whole, 0.2)]
        if size <= LOW:
            found += [Proposal(positions[i], local, 0.3 / KERNELS) for i in generator.choice(count, KERNELS, p=outward)]
    found += [Proposal(m.position, 1.2 * m.root, 0.15 / len(modes)) for m in modes]
    return _shared(found), outward is not None


def _fitted(positions: np.ndarray, w: np.ndarray, wide: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, a root of the covariance and effective number of weighted places; ``wide`` counts where they are few."""
    size, ess = positions.shape[1], float(1 / np.sum(w**2))
    mean = w @ positions
    away = positions - mean
    covariance = (away * w[:, None]).T @ away
    shrink = ess / (ess + 2 * size)
    covariance = shrink * covariance + (1 - shrink) * wide @ wide.T
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    return mean, scale[:, None] * np.linalg.cholesky(covariance / np.outer(scale, scale) + 1e-6 * np.eye(size)), ess


def _outward(values: np.ndarray, w: np.ndarray) -> np.ndarray | None:
    """(n,) each place's share of the variances of numbers with long tails; None where none has one."""
    at = np.flatnonzero(w > 0)
    weights, seen = w[at, None], values[at]
    away = (seen - np.sum(weights * seen, 0)) ** 2
    variance = np.sum(weights * away, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = weights * away / variance
        long = np.isfinite(variance) & (np.sum(weights * away**2, 0) > LONG * variance**2)
    if not np.any(long):
        return None
    outward = np.zeros(len(w))
    outward[at] = np.mean(share[:, long], 1)
    return outward / outward.sum()


def _beyond(away: np.ndarray, w: np.ndarray) -> float:
    """The share of a variance that lies beyond all places ``away`` (n,) of weights w, if its tail falls by a power.

    x² p(log x) of a tail p(x > c) ~ c^−α falls by 2 − α in log x. This slope is taken from the density between the 50
    and 84 % quantiles of x² p to that between 84 and 99.5 %. The share is infinite where nothing falls, or few places
    are so far out. Of 2.5 degrees of freedom it is 5 to 10 %, by which the places' own variance is too small.
    """
    there = np.flatnonzero(away > 0)
    order = there[np.argsort(away[there])]
    x, mass = np.log(away[order]), w[order] * away[order] ** 2
    at = np.minimum(np.searchsorted(np.cumsum(mass) / mass.sum(), QUANTILES), len(x) - 1)
    middle, far, end = x[at]
    if at[2] - at[1] < FAR_OUT or not middle < far < end:
        return np.inf
    near, last = np.diff(QUANTILES)
    slope = 2 * np.log(last / near * (far - middle) / (end - far)) / (end - middle)
    if slope >= 0:
        return np.inf
    # Of a power's mass beyond ``far`` the part 1 − (end/far)^slope lies before ``end``.
    return max(0.0, float(last / -np.expm1(slope * (end - far)) - (1 - QUANTILES[1])))


def _shared(found: list[Proposal]) -> list[Proposal]:
    total = sum(p.share for p in found)
    return [p._replace(share=p.share / total) for p in found]


def _drawn(generator: np.random.Generator, proposals: list[Proposal], count: int) -> np.ndarray:
    size = len(proposals[0].centre)
    # Stratified: each proposal gets its share of the places, give or take one.
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
    shared: dict[int, list[Proposal]] = {}  # by root: local proposals differ in their centres alone
    for p in proposals:
        shared.setdefault(id(p.root), []).append(p)
    logs = []
    for fields in shared.values():
        inverse = np.linalg.inv(fields[0].root).T
        white = (positions - fields[0].centre) @ inverse
        centres = (np.stack([p.centre for p in fields]) - fields[0].centre) @ inverse
        away = np.sum(centres**2, 1)[:, None] - 2 * centres @ white.T + np.sum(white**2, 1)
        height = constant + np.log([p.share for p in fields]) - np.sum(np.log(np.abs(np.diag(fields[0].root))))
        logs.append(height[:, None] - (FREEDOM + size) / 2 * np.log1p(np.maximum(away, 0.0) / FREEDOM))
    return _log_sum(np.concatenate(logs))


def _log_mixture(by_round: np.ndarray) -> np.ndarray:
    """(n,) log density of the mixture of all rounds' proposals."""
    return _log_sum(by_round) - np.log(len(by_round))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """(n,) log Σ exp of (k, n) finite numbers."""
    top = logs.max(0)
    return top + np.log(np.sum(np.exp(logs - top), 0))
