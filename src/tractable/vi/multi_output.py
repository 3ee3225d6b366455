"""The ELBO of a full-rank normal without Monte Carlo noise, for models with several linear predictors for each row.

η, the predictors of a row, are K numbers that are linear in the weights z, such as the logits of K classes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core import approximations
from tractable.core.batches import split_weights
from tractable.core.causes import log_prob_of
from tractable.core.model import Model, PyTree, log_posterior
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.small import cholesky
from tractable.vi import quadrature

# docs/decisions/028 has the experiments for these numbers.
MOST, MOST_NUMBERS = 1000, 16  # largest number of parameters d, and of predictors K of a row
MOST_VALUES = 1 << 26  # largest size of an array: of F_n L for all rows, and of the points for all rows
DRAWN = 64, 1024  # smallest and largest number of points at which a row's log likelihood is evaluated
EACH = 4  # number of points in all rows together, for each number of φ; with fewer points q overfits the points
# Largest number of steps of L-BFGS; number of last values whose rise is compared with the tolerance; number of pairs
# that L-BFGS remembers.
STEPS, WINDOW, MEMORY = 500, 6, 20
ROUNDING = 1e-4  # the largest error of η by its factors, as a share of the largest |η|
JITTER = 1e-6  # share of the trace of η's covariance that is added to its diagonal; it may be singular without this


class Factors(NamedTuple):
    """The predictors of all rows as η_n = c_n + F_n z, with F_n = Σ_j s_nj T_j.

    The few matrices T_j are shared by all rows. In a regression on a table, the s_nj are the row's inputs.

    Attributes:
        offsets: (N, K) c.
        shares: (N, r) s.
        parts: (r, K, d) T.
        precision: (d,) precisions of the weights' independent normal priors.
    """

    offsets: jax.Array
    shares: jax.Array
    parts: jax.Array
    precision: jax.Array


def structure(model: Model, data: Data | None) -> Factors | None:
    """The model's factors; None if the model has another form, or if the arrays would be too large.

        η_n = c_n + F_n z ∈ ℝᴷ,   q(z) = N(μ, L Lᵀ)  ⇒  η_n ~ N(c_n + F_n μ, F_n L Lᵀ F_nᵀ)

    So the expectation of a row's log likelihood is an integral over K numbers, whatever the number of weights (the
    local reparameterisation of Kingma, Salimans & Welling 2015). The integral is computed as a mean over points of a
    low-discrepancy sequence, other points for each row. They are the same at every step, so the bound has no noise.
    """
    size = model.space.size
    if data is None or size > MOST or model.local is not None:
        return None
    slopes = quadrature.slopes(model, data)
    if slopes is None or slopes.ndim != 3:
        return None
    if slopes.shape[1] > MOST_NUMBERS or data.size * slopes.shape[1] * size > MOST_VALUES:
        return None
    (y, given), _ = split_weights(data.arrays())
    first_rows = jax.tree.map(lambda a: a[: quadrature.PROBED], (y, given))
    if np.any(quadrature.depends_beyond_eta(model, *first_rows, jax.random.key(0))):
        return None
    precision = np.asarray(_precision(model, jax.random.key(1)))  # (point, d, d)
    diagonal = np.diagonal(precision, axis1=1, axis2=2)
    if np.abs(precision - np.diag(diagonal[0])).max() > 1e-4 * diagonal.max() or diagonal.min() <= 0:
        return None  # the priors are not independent normals
    # The number r of matrices T_j is the rank of the array of F_n z at random points z, with a row for each n. The
    # array needs more columns than r; ``width`` is more than twice the r of a table with K classes. The factors are
    # tested at the last point.
    width = 2 * (size // max(slopes.shape[1] - 1, 1) + 8)
    points = jax.random.normal(jax.random.key(2), (-(-width // slopes.shape[1]) + 1, size))
    offsets, changes = _offsets_and_changes(model, given, points)  # (N, K), (N, point, K) F_n z
    predictors = np.asarray(changes[:, :-1], np.float64).reshape(data.size, -1)
    import scipy.linalg

    decomposition: Any = scipy.linalg.qr(predictors.T, mode="economic", pivoting=True)
    pivots = np.abs(np.diag(decomposition[1]))
    rank = int(np.sum(pivots > 1e-5 * pivots[0]))
    if rank == predictors.shape[1]:
        return None
    basis = np.sort(decomposition[2][:rank])  # rows whose F_n span those of all rows
    shares = np.linalg.lstsq(predictors[basis].T, predictors.T, rcond=None)[0].T
    parts = _slopes(model, jax.tree.map(lambda a: a[basis], given))
    factors = Factors(offsets, jnp.asarray(shares, offsets.dtype), parts, jnp.asarray(diagonal[0]))
    error = _combine(factors, parts @ points[-1]) - changes[:, -1]
    return factors if float(jnp.abs(error).max()) <= ROUNDING * float(jnp.abs(changes).max()) else None


def climb(
    factors: Factors, model: Model, data: Data, mode: np.ndarray, root: np.ndarray | None,
    tolerance: float, stop: Callable[[], bool] = lambda: False,
) -> tuple[PyTree, dict[str, Any], np.ndarray]:  # fmt: skip
    """Maximise the ELBO of a full-rank normal, and return its φ, the report's numbers, and the climb's values.

    The climb is in coordinates u in which the normal approximation at the mode is standard: z = ẑ + R u with
    R Rᵀ = H⁻¹ and q(u) = N(a, A Aᵀ). A quasi-Newton method then needs some tens of evaluations.

    Args:
        mode: ẑ (d,).
        root: R (d, d), lower triangular; None if there is no curvature.
        tolerance: the climb ends when its last five steps have gained no more nats than this.
    """
    size, dtype = model.space.size, jnp.result_type(float)
    (y, _), counts = split_weights(data.arrays())
    unit = jnp.asarray(np.eye(size) if root is None else root, dtype)
    rows, numbers = factors.offsets.shape
    middle, eps = jnp.asarray(mode, dtype), jnp.asarray(_points(rows, numbers, size), dtype)
    flat = jnp.zeros(size + size * (size + 1) // 2, dtype)
    state, values, gain, before = optax.lbfgs(memory_size=MEMORY).init(flat), [], math.inf, flat
    while gain > tolerance and len(values) < STEPS and not stop():
        here = flat
        flat, state, value = _step(model, factors, (y, counts), (middle, unit), eps, here, state)
        if not math.isfinite(value):  # the previous step led to a bound that is not finite
            flat = before
            break
        before = here
        values.append(float(value))
        gain = values[-1] - values[-WINDOW] if len(values) >= WINDOW else math.inf
    mean, white = _unpack(flat, size)
    figures = quadrature.figures(max(values, default=math.nan), gain, len(values))
    return approximations.of_root(middle + unit @ mean, jnp.tril(unit @ white)), figures, np.array(values)


def elbo_function(
    model: Model, factors: Factors, y: PyTree, counts: jax.Array | None, eps: jax.Array
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function (μ (d,), L (d, d)) ↦ ELBO in nats, computed with the points ``eps`` (N, S, K).

    ``counts`` (N,) says how often each row counts; None is once.
    """
    likelihood: Any = model.likelihood
    params = model.params(jnp.zeros(model.space.size))  # any values will do: the likelihood depends on η alone

    def of(mean: jax.Array, root: jax.Array) -> jax.Array:
        middle = factors.offsets + _combine(factors, factors.parts @ mean)  # (N, K)
        spread = _combine(factors, factors.parts @ root)  # (N, K, d) F_n L
        covariance = jnp.einsum("nkd,nld->nkl", spread, spread)
        more = JITTER * jnp.trace(covariance, axis1=1, axis2=2) + jnp.finfo(mean.dtype).tiny ** 0.5
        lower = cholesky(covariance + more[:, None, None] * jnp.eye(middle.shape[1], dtype=mean.dtype))
        etas = middle[:, None] + jnp.einsum("nkl,nsl->nsk", lower, eps)

        def one(y: PyTree, etas: jax.Array) -> jax.Array:
            return jnp.mean(jax.vmap(lambda eta: log_prob_of(likelihood.observe(params, eta), y))(etas))

        terms = jax.vmap(one)(y, etas)
        terms = terms if counts is None else jnp.where(counts > 0, counts * terms, 0.0)
        prior = log_posterior(model, flat=True)(mean, None) - factors.precision @ jnp.sum(jnp.square(root), 1) / 2
        entropy = jnp.sum(jnp.log(jnp.diag(root))) + len(mean) * (1 + approximations.LOG_2PI) / 2
        return jnp.sum(terms) + prior + entropy

    return of


def _points(rows: int, numbers: int, size: int) -> np.ndarray:
    """(rows, S, numbers) standard normal points of a low-discrepancy sequence, each together with its negative.

    The points of a row have mean 0 and covariance 1. So a row's term is exact if it is quadratic in η.
    """
    from scipy.stats import norm, qmc

    target = EACH * size * (size + 3) / 2 / rows
    draws = int(2 ** np.ceil(np.log2(np.clip(target, *DRAWN))))
    draws = max(4 * numbers, min(draws, MOST_VALUES // (rows * numbers)))
    sequence = qmc.Sobol(numbers, scramble=False).fast_forward(1)  # the first point is 0, whose normal quantile is −∞
    half = norm.ppf(sequence.random(rows * (draws // 2))).reshape(rows, -1, numbers)
    roots = np.linalg.cholesky(np.einsum("nsk,nsl->nkl", half, half) / half.shape[1])
    half = np.swapaxes(np.linalg.solve(roots, np.swapaxes(half, 1, 2)), 1, 2)
    return np.concatenate([half, -half], 1)


def _unpack(flat: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The mean a (d,) and the root A (d, d), lower triangular with a positive diagonal, that one vector holds."""
    mean, log_sd, lower = jnp.split(flat, [size, 2 * size])
    rows, columns = np.tril_indices(size, -1)
    return mean, jnp.diag(jnp.exp(log_sd)).at[rows, columns].set(lower)


def _combine(factors: Factors, parts: jax.Array) -> jax.Array:
    """(N, ...) the sums Σ_j s_nj parts_j for every row n, of parts (r, ...)."""
    return jnp.tensordot(factors.shares, parts, 1)


@compiled("model", if_few=COMPILE_FASTEST)
def _step(model, factors, rows, units, eps, flat, state) -> tuple[jax.Array, Any, jax.Array]:
    """Take one step of L-BFGS, and return the new state and the ELBO before the step.

    ``units`` are (middle, unit), which map the climb's coordinates to z = middle + unit · u.
    """
    (middle, unit), (y, counts) = units, rows
    elbo, optimizer = elbo_function(model, factors, y, counts, eps), optax.lbfgs(memory_size=MEMORY)

    def downhill(flat: jax.Array) -> jax.Array:
        mean, white = _unpack(flat, len(middle))
        return -elbo(middle + unit @ mean, unit @ white)

    value, slope = optax.value_and_grad_from_state(downhill)(flat, state=state)
    updates, state = optimizer.update(slope, state, flat, value=value, grad=slope, value_fn=downhill)
    return flat + updates, state, -jnp.asarray(value)


@compiled("model", if_few=COMPILE_FASTEST)
def _precision(model: Model, key: jax.Array) -> jax.Array:
    """(point, d, d) minus the Hessian of the log prior at two random points."""
    prior = log_posterior(model, flat=True)
    return -jax.vmap(jax.hessian(lambda z: prior(z, None)))(jax.random.normal(key, (2, model.space.size)))


@compiled("model", if_few=COMPILE_FASTEST)
def _offsets_and_changes(model: Model, given: PyTree, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The offsets c (N, K), and F_n z (N, point, K) at ``points`` (point, d)."""
    of = functools.partial(quadrature.eta, model)
    offsets = jax.vmap(lambda x: of(jnp.zeros(points.shape[1]), x))(given)
    etas = jax.lax.map(lambda z: jax.vmap(lambda x: of(z, x))(given), points)
    return offsets, jnp.moveaxis(etas, 0, 1) - offsets[:, None]


@compiled("model", if_few=COMPILE_FASTEST)
def _slopes(model: Model, given: PyTree) -> jax.Array:
    """(row, K, d) the matrices F_n of some rows."""
    zero = jnp.zeros(model.space.size)
    return jax.vmap(lambda x: jax.jacrev(lambda z: quadrature.eta(model, z, x))(zero))(given)
