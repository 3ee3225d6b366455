"""The log density of a model as a function of the parameters that INLA approximates by one normal distribution.

``Conditional`` is log p(y, β, u) as a function of the weights β, given another parameter u. ``Joint`` is log p(y, z) as
a function of all parameters z. Both give the value, the gradient ("slope") and the curvature −∇². Rows are summed in
blocks in single precision, and the blocks' sums are added in double precision.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core import tree
from tractable.core.batches import split_weights
from tractable.core.causes import log_prob_of
from tractable.core.model import Model, PyTree, log_density
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, ONCE, compiled
from tractable.engine.session import Counter
from tractable.vi import quadrature
from tractable.vi.quadrature import Linear

ROWS = 1024  # number of rows in a single-precision sum; longer sums would round away small differences of log densities
LEAST = 1e-9  # the smallest eigenvalue that a curvature may have, as a share of the largest


class Conditional:
    """log p(y, β, u) as a function of β (d,).

    ``quadratic`` says whether the log density has looked quadratic in β at every β so far. If it is quadratic, β given
    u is exactly normal.
    """

    def __init__(self, model: Model, data: Data, linear: Linear, count: Counter) -> None:
        self.model, self.linear, self.count, self.size = model, linear, count, data.size
        self.rows = Rows.of(model, data)
        self.fixed = jax.device_put(linear._replace(other=None))
        self.acting = linear.weights > 0
        # (d,) prior precisions of the weights; 1 for a parameter that is not a weight.
        self.prior = np.where(self.acting, 1 / np.square(linear.scale), 1.0)
        self.prior_given = self.prior
        self.gram: np.ndarray | None = None
        self.quadratic = True
        self.curved: dict[float, float] = {}  # for each u, the −∂²/∂η² that all rows have at the first β
        self.compared = False  # whether the curvature was compared at two values of β, for one u

    def set_scale(self, scale: np.ndarray | None) -> None:
        """Set the prior sd of each weight whose entry of ``scale`` (d,) is above 0 to this entry."""
        if scale is not None:
            self.prior = np.where(scale > 0, 1 / np.square(np.maximum(scale, 1e-30)), self.prior_given)

    def slope(self, beta: np.ndarray, u: float) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, the gradient (d,) and −∇² (d, d) in β.

        At the index of u the gradient is set to 0, and the diagonal of −∇² to 1.
        """
        # u is an array, since a Python float and a NumPy float would each compile a program.
        flat, given_u = (np.asarray(each, self.rows.offsets.dtype) for each in (beta, u))

        self.count()
        values, slopes, curved, prior = _sums(self.model, self.linear.other, self.fixed, self.rows, flat, given_u)
        value = float(np.sum(np.asarray(values, np.float64))) + float(prior)
        slope, (least, most) = np.sum(np.asarray(slopes, np.float64), 0), np.asarray(curved, np.float64)
        if not np.all(np.isfinite([value, least, most, *slope])):  # the step was too far; Newton's method halves it
            return -np.inf, np.zeros(len(beta)), np.diag(self.prior)
        if most - least <= 1e-5 * most:  # all rows have the same −∂²/∂η², so the curvature is a multiple of Σ f fᵀ
            if self.gram is None:
                self.gram = self.rows.gram()
            curvature, first = most * self.gram, self.curved.get(u)
            # If all rows have the same η, they have the same −∂²/∂η² under any likelihood. So this value is also
            # compared with the one at the first β.
            self.quadratic = self.quadratic and (first is None or abs(most - first) <= 1e-5 * most)
            self.curved[u], self.compared = first or most, self.compared or first is not None
        else:
            self.count()
            curvature = np.asarray(_curvature(self.model, self.linear.other, self.rows, flat, given_u), np.float64)
            self.quadratic = False
        offset = self._offset(beta)
        value -= float(np.sum(self.prior * offset**2)) / 2
        precision = curvature + np.diag(self.prior)
        if not np.all(np.isfinite(precision)):
            return -np.inf, np.zeros(len(beta)), np.diag(self.prior)
        # −∂²/∂η² can be negative, as for an outlier under Student's t.
        return value, slope * self.acting - self.prior * offset, precision if least >= 0 else _positive(precision)

    def log_densities(self, positions: np.ndarray) -> np.ndarray:
        """(draw,) log p(y, β, u) up to a constant."""
        flat = np.asarray(positions, self.rows.offsets.dtype)
        values = _log_densities(self.model, self.linear.other, self.fixed, self.rows, flat)
        return np.asarray(values, np.float64) - np.sum(self.prior * self._offset(positions) ** 2, 1) / 2

    def _offset(self, beta: np.ndarray) -> np.ndarray:
        return np.where(self.acting, beta - self.linear.centre, 0.0)


class Joint:
    """log p(y, z) as a function of all parameters z (d,)."""

    quadratic = compared = False

    def __init__(self, model: Model, data: Data, linear: Linear, count: Counter) -> None:
        self.model, self.linear, self.count, self.size = model, linear, count, data.size
        self.rows = in_blocks(*split_weights(data.arrays()))

    def set_scale(self, scale: np.ndarray | None) -> None:
        """Do nothing, since ``Joint`` has no weights with a learnt common scale."""

    def slope(self, position: np.ndarray, _: float) -> tuple[float, np.ndarray, np.ndarray]:
        """The value, the gradient (d,) and −∇² (d, d), whose eigenvalues are made positive for Newton steps."""
        flat = np.asarray(position, jnp.result_type(float))
        size = len(position)

        self.count()
        values, slopes, curved = (np.asarray(a, np.float64) for a in _joint_terms(self.model, self.rows, flat))
        slope = np.sum(slopes, 0)
        if not np.all(np.isfinite(slope)) or not np.all(np.isfinite(curved)):  # the step was too far, and is halved
            return -np.inf, np.zeros(size), np.eye(size)
        return float(np.sum(values)), slope, _positive(curved)

    def log_densities(self, positions: np.ndarray) -> np.ndarray:
        """(draw,) log p(y, z)."""
        terms = _joint_densities(self.model, self.rows, np.asarray(positions, jnp.result_type(float)))
        return np.sum(np.asarray(terms, np.float64), 1)


Density = Conditional | Joint


def _positive(curvature: np.ndarray) -> np.ndarray:
    """A symmetric matrix with its eigenvalues replaced by their absolute values, so that Newton steps go uphill."""
    values, basis = np.linalg.eigh(curvature)
    values = np.maximum(np.abs(values), LEAST * np.abs(values).max())
    return (basis * values) @ basis.T


class Rows(NamedTuple):
    """Rows in blocks, as arrays (block, row, …); rows of count 0 fill the last block."""

    y: PyTree
    offsets: jax.Array  # (b, n)
    features: jax.Array  # (b, n, d)
    counts: jax.Array  # (b, n)

    @classmethod
    def of(cls, model: Model, data: Data) -> "Rows":
        """The rows of the data in blocks, with the offsets and features of their linear predictor."""
        (y, given), counts = split_weights(data.arrays())
        features = quadrature.features_of(model, given)
        (y, (offsets, features)), counts = in_blocks((y, features), counts)
        return cls(y, offsets, features, counts)

    def gram(self) -> np.ndarray:
        """(d, d) the matrix Σ f fᵀ, in double precision.

        In single precision it could have negative eigenvalues if there are fewer rows than columns.
        """
        total: Any = 0.0
        for features, counts in zip(self.features, self.counts, strict=True):
            block = np.asarray(features, np.float64)
            total = total + (block * np.asarray(counts, np.float64)[:, None]).T @ block
        return total

    def summed(self, values: jax.Array) -> jax.Array:
        """(b,) the sums over each block of values (b, n), each times its row's count."""
        return jnp.sum(jnp.where(self.counts > 0, self.counts * values, 0.0), 1)


def in_blocks(rows: PyTree, counts: ArrayLike | None) -> tuple[PyTree, jax.Array]:
    """Rows in blocks (b, n, …) and their counts (b, n). Copies of the last row with count 0 fill the last block."""
    total = len(jax.tree.leaves(rows)[0])
    counts = np.ones(total, jnp.result_type(float)) if counts is None else counts
    size = min(ROWS, total)
    rest = -total % size

    def blocks(rows: ArrayLike, **how: Any) -> jax.Array:
        rows = np.asarray(rows)  # NumPy compiles nothing
        padded = np.pad(rows, ((0, rest), *((0, 0),) * (rows.ndim - 1)), **how)
        return jax.device_put(padded.reshape(-1, size, *rows.shape[1:]))

    return jax.tree.map(functools.partial(blocks, mode="edge"), rows), blocks(counts)


def _of_row(model: Model, other: int | None, beta: jax.Array, u: jax.Array) -> Any:
    """The function (η, y) -> log p(y | η, u) of one row."""
    likelihood: Any = model.likelihood
    params = model.params(beta if other is None else beta.at[other].set(u))
    return lambda eta, y: log_prob_of(likelihood.observe(params, eta), y)


@compiled("model", "other", if_few=COMPILE_FASTEST, few=ONCE)
def _sums(model, other, linear, rows, beta, u) -> tuple[jax.Array, ...]:
    """Σ log p (b,) of each block, its gradient (b, d), the smallest and largest −∂²/∂η² (2,), and log p(u)."""
    one = _of_row(model, other, beta, u)
    etas = rows.offsets + rows.features @ beta
    values, slopes = jax.vmap(jax.vmap(jax.value_and_grad(one)))(etas, rows.y)
    curved = -jax.vmap(jax.vmap(jax.grad(jax.grad(one))))(etas, rows.y)
    counted = rows.counts > 0
    curved = jnp.stack([jnp.where(counted, curved, jnp.inf).min(), jnp.where(counted, curved, -jnp.inf).max()])
    slopes = jnp.einsum("bn,bnd->bd", jnp.where(counted, rows.counts * slopes, 0.0), rows.features)
    prior = jnp.zeros(()) if other is None else quadrature.other_prior(model, linear, other, u)
    return rows.summed(values), slopes, curved, prior


@compiled("model", "other", if_few=COMPILE_FASTEST, few=ONCE)
def _curvature(model, other, rows, beta, u) -> jax.Array:
    """(d, d) the curvature Σ (−∂²/∂η²) f fᵀ of the log likelihood in the weights."""
    one = jax.grad(jax.grad(_of_row(model, other, beta, u)))

    def block(part: Rows) -> tuple[jax.Array, None]:
        curved = -jax.vmap(one)(part.offsets + part.features @ beta, part.y)
        weighed = part.features * jnp.where(part.counts > 0, part.counts * curved, 0.0)[:, None]
        return weighed.T @ part.features, None

    # This sum must be accurate: if columns add up to 1, one direction has no curvature except the prior's.
    return tree.sum_over(block, rows)[0]


@compiled("model", "other", if_few=COMPILE_FASTEST, few=ONCE)
def _log_densities(model, other, linear, rows, positions) -> jax.Array:
    """(draw,) log p(y, u | β) at each position."""

    def one(position: jax.Array) -> jax.Array:
        beta = position if other is None else position.at[other].set(0.0)
        u = jnp.zeros(()) if other is None else position[other]
        etas = rows.offsets + rows.features @ beta
        values = rows.summed(jax.vmap(jax.vmap(_of_row(model, other, beta, u)))(etas, rows.y))
        prior = jnp.zeros(()) if other is None else quadrature.other_prior(model, linear, other, u)
        return jnp.sum(values) + prior

    return jax.lax.map(one, positions, batch_size=16)


def _block_of(model: Model) -> Any:
    """The function (rows and counts of a block, z) -> Σ log p over the block."""

    def of(block: tuple[PyTree, jax.Array], position: jax.Array) -> jax.Array:
        rows, counts = block
        terms = model.log_likelihoods(model.params(position), rows)
        return jnp.sum(jnp.where(counts > 0, counts * terms, 0.0))

    return of


@compiled("model")
def _joint_terms(model, rows, position) -> tuple[jax.Array, ...]:
    """The terms (b + 1,) of log p(y, z), their gradients (b + 1, d), and −∇² (d, d) of their sum.

    There is one term for each block; the last is the log prior.
    """
    one, prior = _block_of(model), log_density(model, flat=True)

    def block(part: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return -jax.hessian(one, 1)(part, position), jax.value_and_grad(one, 1)(part, position)

    curved, (values, slopes) = tree.sum_over(block, rows)
    value, slope = jax.value_and_grad(prior)(position)
    curved -= jax.hessian(prior)(position)
    return jnp.append(values, value), jnp.concatenate([slopes, slope[None]]), curved


@compiled("model")
def _joint_densities(model, rows, positions) -> jax.Array:
    """(draw, b + 1) the terms of log p(y, z) for each position: one for each block, and the log prior last."""
    one, prior = _block_of(model), log_density(model, flat=True)

    def terms(position: jax.Array) -> jax.Array:
        values = jax.lax.map(lambda part: one(part, position), rows)
        return jnp.append(values, prior(position))

    return jax.lax.map(terms, positions, batch_size=16)
