"""Beliefs are the results of methods: draws, their moments, a point, a fitted q, or a point with an inference network.

Positions are unconstrained and flat, (d,); values are the user's parameters, flat, (k,).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import approximations
from tractable.core.errors import RunError
from tractable.core.model import Model, PyTree
from tractable.core.rows import CHUNK
from tractable.core.shared import COMPILE_FASTEST, compiled

Pair = tuple[np.ndarray, np.ndarray]


class Cost(NamedTuple):
    """The evaluations of a run, summed over chains; a minibatch counts as its share of the rows."""

    gradients: float  # evaluations of the log density with its gradient
    densities: float  # evaluations without a gradient


@dataclass(frozen=True, eq=False, kw_only=True)
class Belief:
    """The common interface of beliefs; fields that a subclass does not use keep their defaults.

    Attributes:
        positions: (chain, draw, d) draws, or None.
        position: (d,) a single θ, or None.
        info: traces of the run, each (chain, draw) or (start, step); "held-out scores" is (evaluation, 2), the step and
            the score.
        weights: weights of the draws, (chain, draw); None if all are equal.
        network: weights φ of an inference network (see ``Coded``), or None.
        thin: steps per stored draw, or per value of an optimisation's traces.
    """

    kind: ClassVar[str] = ""  # the name of the class in a saved folder
    positions: np.ndarray | None = field(default=None, repr=False)
    position: np.ndarray | None = field(default=None, repr=False)
    info: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    weights: np.ndarray | None = field(default=None, repr=False)
    network: PyTree = field(default=None, repr=False)
    thin: int = 1

    @property
    def chains(self) -> int:
        return 1 if self.positions is None else len(self.positions)

    @property
    def count(self) -> int:
        """Draws per chain."""
        return 0 if self.positions is None else self.positions.shape[1]

    def describe(self) -> str:
        """The belief in a few words."""
        return self.kind

    def values(self, model: Model) -> np.ndarray:
        """The user's parameters, (chain, draw, k); a point counts as one draw of one chain."""
        flat = self.positions if self.position is None else self.position[None, None]
        if flat is None:
            raise RunError("This run stored the moments of its draws but no draws: use .mean() and .sd().")
        return values_of(model, np.asarray(flat))

    def moments(self, model: Model, values: np.ndarray) -> Pair:
        """Mean and sd (k,) of the user's parameters, from their values (chain, draw, k)."""
        flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if not len(flat):
            return np.full(flat.shape[-1], np.nan), np.full(flat.shape[-1], np.nan)
        return self._weighted_moments(flat)

    def _weighted_moments(self, flat: np.ndarray) -> Pair:
        """Weighted mean and sd over draws (n, …)."""
        weights = None if self.weights is None else self.weights.ravel()
        mean = np.average(flat, axis=0, weights=weights)
        return mean, np.sqrt(np.average(np.square(flat - mean), axis=0, weights=weights))

    def sample(self, model: Model, values: np.ndarray, key: jax.Array, n: int) -> np.ndarray:
        """(n, k) draws, resampled with replacement in proportion to their weights; a point is repeated."""
        flat = values.reshape(-1, values.shape[-1])
        weights = None if self.weights is None else np.asarray(self.weights, np.float64).ravel()
        weights = None if weights is None else weights / weights.sum()
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))  # NumPy compiles nothing
        return flat[generator.choice(len(flat), n, p=weights)]

    def unconstrained_moments(self) -> Pair | None:
        """Mean and sd of the unconstrained position, (d,) each; None without an sd."""
        if self.positions is None:
            return None
        return self._weighted_moments(np.asarray(self.positions, np.float64).reshape(-1, self.positions.shape[-1]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Draws(Belief):
    """Draws of θ."""

    kind: ClassVar[str] = "draws"

    def describe(self) -> str:
        return f"{self.chains} chains of {self.count} draws"


@dataclass(frozen=True, eq=False, kw_only=True)
class Moments(Belief):
    """Mean and sd of draws that were not stored.

    Attributes:
        counts: (chain,) number of draws.
        means: (chain, k) of the user's parameters.
        squares: (chain, k) Σ w (x − mean)².
        totals: (chain,) Σ w; None if all draws have the same weight.
    """

    kind: ClassVar[str] = "moments"
    counts: np.ndarray
    means: np.ndarray
    squares: np.ndarray
    totals: np.ndarray | None = None

    @property
    def chains(self) -> int:
        return len(self.counts)

    def describe(self) -> str:
        return f"moments of {self.chains} chains of {int(self.counts[0])} draws"

    def moments(self, model: Model, values: np.ndarray) -> Pair:
        """Mean and sd from the chains' running moments; all chains have the same weight."""
        means = self.means.astype(np.float64)
        mean, mass = means.mean(0), self.counts if self.totals is None else self.totals
        within = self.squares.sum(0, dtype=np.float64) / mass.sum(dtype=np.float64)
        return mean, np.sqrt(within + np.square(means - mean).mean(0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Point(Belief):
    """One θ, and its standard errors where they are known.

    Attributes:
        covariance: (k, k) of the user's parameters, or None.
        information: (d, d) observed information in unconstrained coordinates, or None.
    """

    kind: ClassVar[str] = "point"
    covariance: np.ndarray | None = field(default=None, repr=False)
    information: np.ndarray | None = field(default=None, repr=False)

    def describe(self) -> str:
        return "a point"

    def moments(self, model: Model, values: np.ndarray) -> Pair:
        with np.errstate(invalid="ignore"):  # a variance that rounding made negative becomes NaN
            unknown = np.full(values.shape[-1], np.nan)
            return values[0, 0], unknown if self.covariance is None else np.sqrt(np.diag(self.covariance))

    def unconstrained_moments(self) -> Pair | None:
        if self.information is None or self.position is None:
            return None
        return self.position, np.sqrt(np.diag(np.linalg.inv(self.information)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Coded(Point):
    """θ of a ladder (a model of hidden layers), and φ of the network that infers the layers from a row."""

    kind: ClassVar[str] = "coded"


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted(Belief):
    """A fitted q; ``positions`` are independent draws of it, (1, draw, d).

    Attributes:
        family: a name of ``approximations.of``.
        phi: φ of the family.
        log_weights: (S,) log p(y, z) − log q(z) at draws of q, or None.
    """

    kind: ClassVar[str] = "fitted"
    family: str
    phi: dict[str, np.ndarray] = field(repr=False)
    log_weights: np.ndarray | None = field(default=None, repr=False)

    @property
    def q(self) -> approximations.Approximation:
        return approximations.of(self.family, self.phi)

    def describe(self) -> str:
        return f"q with {self.count} draws"

    def moments(self, model: Model, values: np.ndarray) -> Pair:
        """The exact moments of q for unbounded parameters, and the moments of its draws for bounded parameters."""
        flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
        if not len(flat):
            return super().moments(model, values)
        mean, sd = flat.mean(0), flat.std(0)
        own_mean, own_sd = self.unconstrained_moments()
        if len(own_mean) != len(mean):
            return mean, sd
        return np.where(model.real, own_mean, mean), np.where(model.real, own_sd, sd)

    def sample(self, model: Model, values: np.ndarray, key: jax.Array, n: int) -> np.ndarray:
        """(n, k) fresh draws of q."""
        return values_of(model, np.asarray(approximations.draws_of(self.q, self.phi, key, n)))

    def unconstrained_moments(self) -> Pair:
        mean, sd = _moments_of_q(self.q, self.phi)
        return np.asarray(mean), np.asarray(sd)


KINDS: dict[str, type[Belief]] = {kind.kind: kind for kind in (Draws, Moments, Point, Coded, Fitted)}


def values_of(model: Model, flat: np.ndarray) -> np.ndarray:
    """(..., k) the user's parameters at unconstrained positions (..., d), computed in chunks to save memory."""
    flat = np.asarray(flat, jnp.result_type(float))
    shape, rows = flat.shape, flat.reshape(-1, flat.shape[-1])
    if not len(rows):
        return np.zeros((*shape[:-1], len(model.names)), flat.dtype)
    if (bijections := model.numpy_bijections) is not None:  # one function per leaf, so nothing needs to be compiled
        ends = np.cumsum([np.prod(leaf.shape, dtype=int) for leaf in jax.tree.leaves(model.space.shapes)])
        with np.errstate(over="ignore"):
            parts = [f(a) for (f, _), a in zip(bijections, np.split(flat, ends[:-1], -1), strict=True)]
        return np.concatenate(parts, -1)
    out = [np.asarray(_constrain(model, rows[i : i + CHUNK])) for i in range(0, len(rows), CHUNK)]
    return np.concatenate(out).reshape(*shape[:-1], -1)


@compiled("q", if_few=COMPILE_FASTEST)  # one program compiles faster than its ten operations one by one
def _moments_of_q(q: approximations.Approximation, phi: PyTree) -> tuple[jax.Array, jax.Array]:
    return q.mean(phi), q.sd(phi)


@compiled("model", if_few=COMPILE_FASTEST)
def _constrain(model: Model, flat: jax.Array) -> jax.Array:
    return jax.vmap(model.values)(flat)


def draws_key(seed: jax.Array | int | None) -> jax.Array:
    """The key of a posterior's draws from q; a saved posterior stores the seed and draws again when it is loaded."""
    key = seed if isinstance(seed, jax.Array) else jax.random.key(seed or 0)
    return jax.random.fold_in(key, 2)


def weighted_quantiles(values: np.ndarray, levels: list[float], weights: np.ndarray | None) -> np.ndarray:
    """Quantiles (level, k) of values (n, k); with weights, those of the weighted empirical distribution."""
    if weights is None:
        return np.quantile(values, levels, axis=0)
    return np.quantile(values, levels, axis=0, weights=weights, method="inverted_cdf")


def point_belief(position: np.ndarray, info: dict[str, np.ndarray], found: dict[str, Any]) -> Point:
    """A maximum, with its covariance and observed information if ``found``, the run's results by name, has them."""
    return Point(position=position, info=info, covariance=found.get("covariance"), information=found.get("information"))
