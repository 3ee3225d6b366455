"""Emission families: the density of a step's numbers given the state, and the sums and the maximum of an M-step.

Arrays of steps are (T, d) for one sequence, or (T, d, n) for several. NaN marks a missing number, which is integrated
out. Every family has a conjugate prior, worth as much as ``counts`` imagined steps in each state.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from tractable.core.errors import DataError
from tractable.core.numbers import LOG_2PI
from tractable.core.small import cholesky, inverse
from tractable.core.tree import PyTree
from tractable.latent.linear_mixture import cluster_rows


class Normals(NamedTuple):
    """θ of states that emit independent normal numbers."""

    mean: Any  # (K,) or (K, d)
    sd: Any  # the same shape


class FullNormals(NamedTuple):
    """θ of states that emit normal vectors."""

    mean: Any  # (K, d)
    covariance: Any  # (K, d, d)


class Rates(NamedTuple):
    """θ of states that emit Poisson counts."""

    rate: Any  # (K,) or (K, d)


class Chances(NamedTuple):
    """θ of states that emit zeros and ones, or one of L classes."""

    probs: Any  # of a 1: (K,) or (K, d); of classes: (K, L)


class Moments(NamedTuple):
    """Sums over the observed numbers, weighted by p(z = k | x), and relative to the mean m of each state."""

    count: Any  # (K, d); for vectors (K,)
    first: Any  # (K, d) x − m
    second: Any  # (K, d) (x − m)²; for vectors (K, d, d)
    frame: Any  # (K, d) weight · m, which can be added over sequences as the sums can
    weight: Any  # () total weight of the sequences

    def in_frame_of(self, other: "Moments") -> "Moments":
        """The same sums relative to the means of ``other``."""
        shift = self.frame / jnp.where(self.weight > 0, self.weight, 1) - other.frame / other.weight  # m − m'
        count = self.count if self.count.ndim == 2 else self.count[:, None]
        first = self.first + count * shift
        if self.second.ndim == 3:
            cross = self.first[:, :, None] * shift[:, None, :]
            correction = cross + jnp.swapaxes(cross, 1, 2) + count[:, :, None] * shift[:, :, None] * shift[:, None, :]
        else:
            correction = 2 * self.first * shift + count * shift**2
        frame = self.weight * other.frame / other.weight
        sums = Moments(self.count, first, self.second + correction, frame, self.weight)
        return jax.tree.map(lambda a, b: jnp.where(self.weight > 0, a, b), sums, self)


class Counts(NamedTuple):
    """Sums weighted by p(z = k | x): each state's number of steps, and the sum of what it emitted."""

    count: Any  # (K, d)
    first: Any  # (K, d) of x; for classes (K, L), the number of steps of each class


@dataclass(frozen=True)
class Emission:
    """A family of emission densities.

    Attributes:
        states: K.
        features: d, numbers per step; None if a step is a single number and sequences are (T,).
        counts: c ≥ 0, imagined steps in each state; 0 for a flat prior.
    """

    states: int
    features: int | None
    counts: float

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one state's parameters."""
        return () if self.features is None else (self.features,)

    def flat(self, leaf: ArrayLike, rank: int = 2) -> jax.Array:
        """A leaf of θ as (1, K, d), or (1, K, d, 1) if ``rank`` is 3, for several sequences."""
        array = jnp.asarray(leaf).reshape(1, self.states, -1)
        return array.reshape(array.shape + (1,) * (rank - 2))

    def shaped(self, leaf: jax.Array) -> jax.Array:
        """An array (K, d) in the shape of a leaf of θ."""
        return leaf.reshape(self.states, *self.shape)

    def example(self) -> tuple[PyTree, PyTree]:
        """An example θ, and its support."""
        raise NotImplementedError

    def log_density(self, theta: PyTree, x: jax.Array) -> jax.Array:
        """log b (T, K, …) for steps (T, d, …)."""
        raise NotImplementedError

    def sums(self, theta: PyTree, x: jax.Array, share: jax.Array, weight: jax.Array) -> PyTree:
        """The sums that ``m_step`` needs, from ``share``, which is the weighted p(z | x), (T, K, …).

        The total weight of the sequences is ``weight``.

        By default these are ``Counts``: how often each number was observed, and the sum of its values.
        """
        is_observed, x = split_missing(x)
        return Counts(sum_over_steps(share, is_observed.astype(share.dtype)), sum_over_steps(share, x))

    def m_step(self, sums: PyTree) -> PyTree:
        """The maximum of Q + log p(θ)."""
        raise NotImplementedError

    def of_state(self, theta: PyTree) -> Distribution:
        """The distribution of a step, given the θ of one state."""
        raise NotImplementedError

    def log_prior(self, theta: PyTree) -> jax.Array:
        """Log density of the prior, for ``counts`` > 0."""
        raise NotImplementedError

    def draw_prior(self, key: jax.Array) -> PyTree:
        """A draw of θ from the prior, for ``counts`` > 0."""
        raise NotImplementedError

    @property
    def drawable(self) -> bool:
        """Whether θ can be drawn from the prior."""
        return self.counts > 0

    def arrange(self, y: PyTree) -> jax.Array:
        """Sequences (n, T) or (n, T, d) as (T, d, n), or (T, d) if n = 1."""
        x = jnp.asarray(y, jnp.result_type(float)).reshape(*y.shape[:2], -1)
        return x[0] if len(x) == 1 else jnp.transpose(x, (1, 2, 0))

    def is_observed(self, x: jax.Array) -> jax.Array:
        """Which steps have any observed number, (T, …)."""
        return ~jnp.all(jnp.isnan(x), axis=1)

    def guess_states(self, key: jax.Array, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some of the steps, (m, d), and a guess of the probabilities of their states, (m, K)."""
        chosen, near = cluster_rows(key, x, self.states)
        random = np.asarray(jax.random.dirichlet(jax.random.fold_in(key, 1), jnp.ones(self.states), (len(chosen),)))
        return chosen, 0.8 * near + 0.2 * random

    def check(self, x: np.ndarray) -> None:
        """Raise a DataError if some of the steps (N, d) cannot be emitted by any state; NaN marks a missing number."""

    def least_sd(self, theta: PyTree) -> float:
        """The smallest sd of all states divided by the floor (the least sd allowed); ∞ for families without an sd."""
        return np.inf


def split_missing(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For steps (T, d, …): which numbers are observed, and the numbers, 0 if missing; both (T, 1, d, …)."""
    is_observed = ~jnp.isnan(x)
    return is_observed[:, None], jnp.where(is_observed, x, 0)[:, None]


def sum_over_steps(share: jax.Array, terms: jax.Array) -> jax.Array:
    """The sum over steps and sequences of shares (T, K, …) times terms (T, K or 1, d, …): (K, d)."""
    if terms.ndim == 3:  # one sequence: its steps become the last axis, along which a processor sums fastest
        return jnp.sum(jax.lax.optimization_barrier(share.T)[:, None] * jnp.transpose(terms, (1, 2, 0)), axis=-1)
    return jnp.sum(share[:, :, None] * terms, axis=(0, *range(3, terms.ndim)))


@dataclass(frozen=True)
class Normal(Emission):
    """x ~ N(m_k, s_k²), independently for each number.

    Prior, with centre and scale: m | s ~ N(centre, s²/c), s² ~ scaled inverse χ²(c, scale²); flat if scale is None.
    """

    floor: float  # of variances
    centre: tuple[float, ...]
    scale: tuple[float, ...] | None

    @property
    def drawable(self) -> bool:
        return self.counts > 0 and self.scale is not None

    def example(self) -> tuple[Normals, Normals]:
        ones = np.ones((self.states, *self.shape))
        return Normals(0 * ones, ones), Normals(constraints.real, constraints.positive)

    def log_density(self, theta: Normals, x: jax.Array) -> jax.Array:
        is_observed, x = split_missing(x)
        sd = self.flat(theta.sd, x.ndim - 1)
        z = (x - self.flat(theta.mean, x.ndim - 1)) / sd
        return jnp.sum(jnp.where(is_observed, -0.5 * z**2 - jnp.log(sd) - 0.5 * LOG_2PI, 0), axis=2)

    def sums(self, theta: Normals, x: jax.Array, share: jax.Array, weight: jax.Array) -> Moments:
        is_observed, x = split_missing(x)
        mean = self.flat(theta.mean)[0]
        deviation = jnp.where(is_observed, x - self.flat(theta.mean, x.ndim - 1), 0)
        count = sum_over_steps(share, is_observed.astype(share.dtype))
        first, second = sum_over_steps(share, deviation), sum_over_steps(share, deviation**2)
        return Moments(count, first, second, weight * mean, weight)

    def m_step(self, sums: Moments) -> Normals:
        count, first, second, frame, weight = jax.tree.map(jnp.asarray, sums)
        mean, c = frame / jnp.where(weight > 0, weight, 1), self.counts if self.scale is not None else 0.0
        tiny = 10 * jnp.finfo(count.dtype).eps  # so that a state without steps keeps its mean
        gap = jnp.asarray(self.centre, count.dtype)[None] - mean
        shift = (first + c * gap) / (count + c + tiny)
        scatter = second - 2 * shift * first + shift**2 * count
        if self.scale is None:
            variance = scatter / (count + tiny)
        else:
            scale = jnp.asarray(self.scale, count.dtype)[None]
            variance = (scatter + c * ((gap - shift) ** 2 + scale**2)) / (count + (c + 2 if c else 0) + tiny)
        return Normals(self.shaped(mean + shift), self.shaped(jnp.sqrt(jnp.maximum(variance, self.floor))))

    def of_state(self, theta: Normals) -> Distribution:
        return dist.Normal(theta.mean, theta.sd).to_event(len(self.shape))

    def log_prior(self, theta: Normals) -> jax.Array:
        if self.scale is None:
            return jnp.zeros((), jnp.result_type(theta.mean))
        mean, sd = self.flat(theta.mean)[0], self.flat(theta.sd)[0]
        centre, scale = (jnp.asarray(each, mean.dtype)[None] for each in (self.centre, self.scale))
        of_means = dist.Normal(centre, sd / np.sqrt(self.counts)).log_prob(mean)
        half = 0.5 * self.counts
        of_sds = dist.InverseGamma(half, half * scale**2).log_prob(sd**2) + jnp.log(2 * sd)  # with the Jacobian of sd²
        return jnp.sum(of_means + of_sds)

    def draw_prior(self, key: jax.Array) -> Normals:
        key_sd, key_mean = jax.random.split(key)
        half, size = 0.5 * self.counts, (self.states, len(self.centre))
        scale = jnp.broadcast_to(jnp.asarray(self.scale, jnp.result_type(float)), size)
        sd = jnp.sqrt(dist.InverseGamma(half, half * scale**2).sample(key_sd))
        mean = jnp.asarray(self.centre) + sd / np.sqrt(self.counts) * jax.random.normal(key_mean, size)
        return Normals(self.shaped(mean), self.shaped(sd))

    def check(self, x: np.ndarray) -> None:
        if np.isinf(x).any():
            raise DataError("The sequences hold infinite numbers; normal states expect finite ones, NaN for missing.")

    def least_sd(self, theta: Normals) -> float:
        return float(np.min(theta.sd)) / max(float(np.sqrt(self.floor)), 1e-300)


@dataclass(frozen=True)
class FullNormal(Normal):
    """x ~ N(m_k, C_k), vectors of correlated numbers; all numbers of a step are observed, or none is.

    Prior, with centre and scale: m | C ~ N(centre, C/c), C ~ inverse Wishart(c + d, c diag(scale²)); flat if scale is
    None.
    """

    def example(self) -> tuple[FullNormals, FullNormals]:
        d, like = self.shape[0], np.zeros((self.states, 1, 1))
        support = FullNormals(constraints.real, constraints.positive_definite)
        return FullNormals(np.zeros((self.states, d)), np.eye(d) + like), support

    def log_density(self, theta: FullNormals, x: jax.Array) -> jax.Array:
        d = self.shape[0]
        is_observed, x = split_missing(x)
        inverses = inverse(cholesky(theta.covariance))  # (K, d, d)
        deviation = x - self.flat(theta.mean, x.ndim - 1)  # (T, K, d, …)
        z = jnp.einsum("kij,tkj...->tki...", inverses, deviation, precision="highest")
        log_det = jnp.sum(jnp.log(jnp.diagonal(inverses, axis1=1, axis2=2)), axis=1)
        log_det = log_det.reshape(1, -1, *(1,) * (x.ndim - 3))
        return jnp.where(jnp.all(is_observed, axis=2), log_det - 0.5 * jnp.sum(z**2, axis=2) - 0.5 * d * LOG_2PI, 0)

    def sums(self, theta: FullNormals, x: jax.Array, share: jax.Array, weight: jax.Array) -> Moments:
        is_observed, x = split_missing(x)
        deviation = x - self.flat(theta.mean, x.ndim - 1)
        share = jnp.where(jnp.all(is_observed, axis=2), share, 0)
        flat = jnp.moveaxis(deviation, 2, -1).reshape(*deviation.shape[:2], -1, deviation.shape[2])  # (T, K, n, d)
        weighed = share.reshape(*share.shape[:2], -1, 1) * flat
        second = jnp.einsum("tkni,tknj->kij", weighed, flat, precision="highest")
        count = jnp.sum(share, axis=(0, *range(2, share.ndim)))
        return Moments(count, jnp.sum(weighed, axis=(0, 2)), second, weight * theta.mean, weight)

    def m_step(self, sums: Moments) -> FullNormals:
        count, first, second, frame, weight = jax.tree.map(jnp.asarray, sums)
        mean, d = frame / jnp.where(weight > 0, weight, 1), len(first[0])
        c = self.counts if self.scale is not None else 0.0
        tiny = 10 * jnp.finfo(count.dtype).eps
        gap = jnp.asarray(self.centre, count.dtype)[None] - mean
        shift = (first + c * gap) / (count + c + tiny)[:, None]
        cross = shift[:, :, None] * first[:, None, :]
        scatter = second - cross - jnp.swapaxes(cross, 1, 2) + count[:, None, None] * _outer(shift)
        if c:
            scatter = scatter + c * (_outer(gap - shift) + jnp.diag(jnp.asarray(self.scale, count.dtype) ** 2)[None])
        degrees = count + ((c + d) + d + 2 if c else 0) + tiny
        unit = self.floor * jnp.eye(d, dtype=count.dtype)[None]
        return FullNormals(mean + shift, scatter / degrees[:, None, None] + unit)

    def of_state(self, theta: FullNormals) -> Distribution:
        return dist.MultivariateNormal(theta.mean, scale_tril=cholesky(theta.covariance))

    def log_prior(self, theta: FullNormals) -> jax.Array:
        if self.scale is None:
            return jnp.zeros((), jnp.result_type(theta.mean))
        c, d = self.counts, self.shape[0]
        inverses = inverse(cholesky(theta.covariance))
        log_det = -2 * jnp.sum(jnp.log(jnp.diagonal(inverses, axis1=1, axis2=2)), axis=1)
        deviation = theta.mean - jnp.asarray(self.centre, theta.mean.dtype)[None]
        z = jnp.einsum("kij,kj->ki", inverses, deviation, precision="highest")
        of_means = -0.5 * (c * jnp.sum(z**2, axis=1) + log_det - d * np.log(c) + d * LOG_2PI)
        scale = jnp.asarray(self.scale, theta.mean.dtype)
        return jnp.sum(of_means) + jnp.sum(inverse_wishart_log_prob(theta.covariance, c, scale))

    def draw_prior(self, key: jax.Array) -> FullNormals:
        key_spread, key_mean = jax.random.split(key)
        c, d = self.counts, self.shape[0]
        scale = jnp.asarray(self.scale, jnp.result_type(float))
        covariance = inverse_wishart_draw(key_spread, c, scale, (self.states,))
        root = cholesky(covariance)
        noise = jax.random.normal(key_mean, (self.states, d))
        mean = jnp.asarray(self.centre) + jnp.einsum("kij,kj->ki", root, noise, precision="highest") / np.sqrt(c)
        return FullNormals(mean, covariance)

    def check(self, x: np.ndarray) -> None:
        super().check(x)
        gaps = np.isnan(x)
        if np.any(gaps.any(1) != gaps.all(1)):
            raise DataError(
                "Steps of multivariate-normal states are observed as a whole or not at all; some of these steps miss "
                "some numbers. Use emission='normal', whose numbers are independent given the state."
            )

    def least_sd(self, theta: FullNormals) -> float:
        least = np.linalg.eigvalsh(np.asarray(theta.covariance, np.float64))[:, 0].min()
        return float(np.sqrt(max(least, 0) / max(self.floor, 1e-300)))


def _outer(rows: jax.Array) -> jax.Array:
    return rows[:, :, None] * rows[:, None, :]


def inverse_wishart_log_prob(covariance: ArrayLike, counts: float, scale: jax.Array) -> jax.Array:
    """Log density of inverse Wishart(c + d, c diag(scale²)) at covariances (…, d, d)."""
    covariance = jnp.asarray(covariance)
    d = covariance.shape[-1]
    nu = counts + d
    inverses = inverse(cholesky(covariance))
    log_det = -2 * jnp.sum(jnp.log(jnp.diagonal(inverses, axis1=-2, axis2=-1)), axis=-1)
    trace = counts * jnp.sum(jnp.square(inverses * scale), axis=(-2, -1))
    normaliser = 0.5 * nu * (d * np.log(counts) + 2 * jnp.sum(jnp.log(scale))) - 0.5 * nu * d * np.log(2)
    multigamma = 0.25 * d * (d - 1) * np.log(np.pi) + jnp.sum(gammaln(0.5 * nu - 0.5 * jnp.arange(d)))
    return normaliser - multigamma - 0.5 * (nu + d + 1) * log_det - 0.5 * trace


def inverse_wishart_draw(key: jax.Array, counts: float, scale: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Covariances (*shape, d, d) from inverse Wishart(c + d, c diag(scale²))."""
    precise = dist.WishartCholesky(counts + len(scale), scale_tril=jnp.diag(1 / (np.sqrt(counts) * scale)))
    inverses = inverse(precise.sample(key, shape))  # Λ = L Lᵀ, C = L⁻ᵀ L⁻¹
    return jnp.einsum("...ji,...jl->...il", inverses, inverses, precision="highest")


@dataclass(frozen=True)
class Poisson(Emission):
    """x ~ Poisson(rate_k); prior Gamma(1 + c, c/centre), worth c/centre imagined steps with c counts in all."""

    centre: tuple[float, ...]

    def example(self) -> tuple[Rates, Rates]:
        return Rates(np.ones((self.states, *self.shape))), Rates(constraints.positive)

    def log_density(self, theta: Rates, x: jax.Array) -> jax.Array:
        is_observed, x = split_missing(x)
        rate = self.flat(theta.rate, x.ndim - 1)
        return jnp.sum(jnp.where(is_observed, x * jnp.log(rate) - rate - gammaln(x + 1), 0), axis=2)

    def m_step(self, sums: Counts) -> Rates:
        count, first = jax.tree.map(jnp.asarray, sums)
        tiny = 10 * jnp.finfo(count.dtype).eps
        exposure = self.counts / jnp.asarray(self.centre, count.dtype)[None]
        return Rates(self.shaped((first + self.counts + tiny) / (count + exposure + tiny)))

    def of_state(self, theta: Rates) -> Distribution:
        return dist.Poisson(theta.rate).to_event(len(self.shape))

    def _gamma(self, dtype: jnp.dtype) -> Distribution:
        centre = jnp.broadcast_to(jnp.asarray(self.centre, dtype), (self.states, len(self.centre)))
        return dist.Gamma(1 + self.counts, self.counts / centre)

    def log_prior(self, theta: Rates) -> jax.Array:
        rate = self.flat(theta.rate)[0]
        return jnp.sum(self._gamma(rate.dtype).log_prob(rate))

    def draw_prior(self, key: jax.Array) -> Rates:
        return Rates(self.shaped(jnp.asarray(self._gamma(jnp.result_type(float)).sample(key))))

    def check(self, x: np.ndarray) -> None:
        _check_whole(x, "Poisson states emit counts 0, 1, 2, …", np.inf)


@dataclass(frozen=True)
class Bernoulli(Emission):
    """x ~ Bernoulli(probs_k); prior Beta(1 + c, 1 + c)."""

    def example(self) -> tuple[Chances, Chances]:
        return Chances(np.full((self.states, *self.shape), 0.5)), Chances(constraints.unit_interval)

    def log_density(self, theta: Chances, x: jax.Array) -> jax.Array:
        is_observed, x = split_missing(x)
        probs = self.flat(theta.probs, x.ndim - 1)
        return jnp.sum(jnp.where(is_observed, jnp.log(jnp.where(x > 0, probs, 1 - probs)), 0), axis=2)

    def m_step(self, sums: Counts) -> Chances:
        count, first = jax.tree.map(jnp.asarray, sums)
        tiny = 10 * jnp.finfo(count.dtype).eps
        return Chances(self.shaped((first + self.counts + tiny) / (count + 2 * (self.counts + tiny))))

    def of_state(self, theta: Chances) -> Distribution:
        return dist.Bernoulli(probs=theta.probs).to_event(len(self.shape))

    def log_prior(self, theta: Chances) -> jax.Array:
        return jnp.sum(dist.Beta(1 + self.counts, 1 + self.counts).log_prob(theta.probs))

    def draw_prior(self, key: jax.Array) -> Chances:
        return Chances(jax.random.beta(key, 1 + self.counts, 1 + self.counts, (self.states, *self.shape)))

    def check(self, x: np.ndarray) -> None:
        _check_whole(x, "Bernoulli states emit 0 or 1", 1)


@dataclass(frozen=True)
class Categorical(Emission):
    """x is one of L classes, 0 … L − 1; prior Dirichlet(1 + c)."""

    classes: int

    def example(self) -> tuple[Chances, Chances]:
        return Chances(np.full((self.states, self.classes), 1 / self.classes)), Chances(constraints.simplex)

    def _indicators(self, x: jax.Array) -> jax.Array:
        """(T, L, …) whether each class was emitted; all False at a missing step."""
        classes = jnp.arange(self.classes, dtype=x.dtype).reshape(1, -1, *(1,) * (x.ndim - 2))
        return x == classes

    def log_density(self, theta: Chances, x: jax.Array) -> jax.Array:
        logs = jnp.log(theta.probs)
        logs = logs.reshape(1, *logs.shape, *(1,) * (x.ndim - 2))
        return jnp.sum(jnp.where(self._indicators(x)[:, None], logs, 0), axis=2)

    def sums(self, theta: Chances, x: jax.Array, share: jax.Array, weight: jax.Array) -> Counts:
        counts = sum_over_steps(share, self._indicators(x)[:, None].astype(share.dtype))
        return Counts(jnp.sum(counts, axis=1, keepdims=True), counts)

    def m_step(self, sums: Counts) -> Chances:
        counts = jnp.asarray(sums.first)
        counts = counts + self.counts + 10 * jnp.finfo(counts.dtype).eps
        return Chances(counts / jnp.sum(counts, axis=1, keepdims=True))

    def of_state(self, theta: Chances) -> Distribution:
        return dist.CategoricalProbs(theta.probs)

    def _dirichlet(self) -> Distribution:
        return dist.Dirichlet(jnp.full((self.states, self.classes), 1 + self.counts))

    def log_prior(self, theta: Chances) -> jax.Array:
        return jnp.sum(self._dirichlet().log_prob(theta.probs))

    def draw_prior(self, key: jax.Array) -> Chances:
        return Chances(self._dirichlet().sample(key))

    def guess_states(self, key: jax.Array, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The steps, and random probabilities of states for each class: classes have no distances to cluster by."""
        shares = np.asarray(jax.random.dirichlet(key, 0.5 * jnp.ones(self.states), (self.classes,)))
        return x, 0.9 * shares[x[:, 0].astype(int)] + 0.1 / self.states

    def check(self, x: np.ndarray) -> None:
        _check_whole(x, f"Categorical states emit classes 0 … {self.classes - 1}", self.classes - 1)


def _check_whole(x: np.ndarray, what: str, most: float | int) -> None:
    x = x[~np.isnan(x)]
    is_wrong = (x < 0) | (x > most) | (x != np.floor(x))
    if is_wrong.any():
        raise DataError(f"{what}, and NaN marks a missing step; got {x[np.argmax(is_wrong)]:g}.")
