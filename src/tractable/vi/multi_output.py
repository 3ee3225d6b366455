"""The ELBO of a full-rank normal, without its noise, where each row sees the weights through several numbers."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core import approximations
from tractable.core.causes import log_prob_of
from tractable.core.model import Model, PyTree, log_posterior
from tractable.core.rows import Data, split_weights
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.core.small import cholesky
from tractable.vi import quadrature

MOST, MOST_NUMBERS = 1000, 16  # most parameters, and numbers that a row sees
MOST_VALUES = 1 << 26  # most numbers held at once: of η's roots at all rows, and of η's draws
DRAWN = 64, 1024  # fewest and most draws of a row's η
EACH = 4  # draws of a number of η, in all rows, for every number of φ: with fewer the climb fits their noise
STEPS, WINDOW, MEMORY = 500, 6, 20  # most steps, values that tell what five added, and pairs that L-BFGS keeps
ROUNDING = 1e-4  # share of the largest |η| by which its factors may miss it
JITTER = 1e-6  # share of its trace added to η's covariance, which is singular where weights sum to zero


class Factors(NamedTuple):
    """η_n = c_n + F_n z with F_n = Σ_j s_nj T_j, as rows of a table share their columns.

    Attributes:
        offsets: (N, K) c.
        shares: (N, r) s.
        parts: (r, K, d) T.
        precision: (d,) of the weights' independent normal priors.
    """

    offsets: jax.Array
    shares: jax.Array
    parts: jax.Array
    precision: jax.Array


def structure(model: Model, data: Data | None) -> Factors | None:
    """The model's factors; None for other models, or where there would be too much to hold.

        η_n = c_n + F_n z ∈ ℝᴷ,   q(z) = N(μ, L Lᵀ)  ⇒  η_n ~ N(c_n + F_n μ, F_n L Lᵀ F_nᵀ)

    so the expectation of a row's log likelihood is an integral over K numbers, whatever the number of weights (the
    local reparameterisation of Kingma, Salimans & Welling 2015). Each row has points of its own of a low-discrepancy
    sequence, the same at every step, so that the bound has no noise.
    """
    size = model.space.size
    if data is None or size > MOST or model.local is not None:
        return None
    few = quadrature.slopes(model, data)
    if few is None or few.ndim != 3 or few.shape[1] > MOST_NUMBERS or data.size * few.shape[1] * size > MOST_VALUES:
        return None
    (y, given), _ = split_weights(data.arrays())
    some = jax.tree.map(lambda a: a[: quadrature.PROBED], (y, given))
    if np.any(quadrature.seen_beyond_eta(model, *some, jax.random.key(0))):
        return None
    precision = np.asarray(_precision(model, jax.random.key(1)))  # (point, d, d)
    diagonal = np.diagonal(precision, axis1=1, axis2=2)
    if np.abs(precision - np.diag(diagonal[0])).max() > 1e-4 * diagonal.max() or diagonal.min() <= 0:
        return None  # no independent normals
    width = 2 * (size // max(few.shape[1] - 1, 1) + 8)  # twice the columns of a table of classes
    points = jax.random.normal(jax.random.key(2), (-(-width // few.shape[1]) + 1, size))
    offsets, seen = _seen(model, given, points)  # (N, K), (N, point, K) F_n z
    predictors = np.asarray(seen[:, :-1], np.float64).reshape(data.size, -1)
    import scipy.linalg

    factored: Any = scipy.linalg.qr(predictors.T, mode="economic", pivoting=True)
    falls = np.abs(np.diag(factored[1]))
    rank = int(np.sum(falls > 1e-5 * falls[0]))
    if rank == predictors.shape[1]:
        return None
    chosen = np.sort(factored[2][:rank])
    shares = np.linalg.lstsq(predictors[chosen].T, predictors.T, rcond=None)[0].T
    parts = _slopes(model, jax.tree.map(lambda a: a[chosen], given))
    found = Factors(offsets, jnp.asarray(shares, offsets.dtype), parts, jnp.asarray(diagonal[0]))
    missed = _through(found, parts @ points[-1]) - seen[:, -1]
    return found if float(jnp.abs(missed).max()) <= ROUNDING * float(jnp.abs(seen).max()) else None


def climb(
    factors: Factors, model: Model, data: Data, mode: np.ndarray, root: np.ndarray | None,
    tolerance: float, stop: Callable[[], bool] = lambda: False,
) -> tuple[PyTree, dict[str, Any], np.ndarray]:  # fmt: skip
    """φ of the full-rank normal at the maximum of the ELBO, the climb's results, and its values.

    The climb is in units of the normal at the mode: z = ẑ + R u with R Rᵀ = H⁻¹ and q(u) = N(a, A Aᵀ), so that a
    quasi-Newton method needs some tens of evaluations.

    Args:
        mode, root: ẑ (d,) and R (d, d), lower triangular; None where there is no curvature.
        tolerance: nats gained in the last five steps at which the climb ends.
    """
    size, dtype = model.space.size, jnp.result_type(float)
    (y, _), counts = split_weights(data.arrays())
    unit = jnp.asarray(np.eye(size) if root is None else root, dtype)
    rows, numbers = factors.offsets.shape
    middle, eps = jnp.asarray(mode, dtype), jnp.asarray(_points(rows, numbers, size), dtype)
    flat = jnp.zeros(size + size * (size + 1) // 2, dtype)
    state, values, gain = optax.lbfgs(memory_size=MEMORY).init(flat), [], math.inf
    before = flat
    while gain > tolerance and len(values) < STEPS and not stop():
        here = flat
        flat, state, value = _step(model, factors, (y, counts), (middle, unit), eps, here, state)
        if not math.isfinite(value):  # the step before led out of the finite numbers
            flat = before
            break
        before = here
        values.append(float(value))
        gain = values[-1] - values[-WINDOW] if len(values) >= WINDOW else math.inf
    away, white = _opened(flat, size)
    found = quadrature.figures(max(values, default=math.nan), gain, len(values))
    return approximations.of_root(middle + unit @ away, jnp.tril(unit @ white)), found, np.array(values)


def expected(
    model: Model, factors: Factors, y: PyTree, counts: jax.Array | None, eps: jax.Array
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """``(μ (d,), L (d, d)) -> `` ELBO in nats by the points ``eps`` (N, S, K); ``counts``: how often rows count."""
    likelihood: Any = model.likelihood
    params = model.params(jnp.zeros(model.space.size))  # the likelihood sees η alone

    def of(mean: jax.Array, root: jax.Array) -> jax.Array:
        middle = factors.offsets + _through(factors, factors.parts @ mean)  # (N, K)
        spread = _through(factors, factors.parts @ root)  # (N, K, d) F_n L
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
    """(rows, S, numbers) points of a low-discrepancy sequence, each with its opposite; those of a row have mean 0 and
    covariance 1, so that a row's term is exact where it is quadratic in η."""
    from scipy.stats import norm, qmc

    wanted = EACH * size * (size + 3) / 2 / rows
    draws = int(2 ** np.ceil(np.log2(np.clip(wanted, *DRAWN))))
    draws = max(4 * numbers, min(draws, MOST_VALUES // (rows * numbers)))
    sequence = qmc.Sobol(numbers, scramble=False).fast_forward(1)  # the first point is 0, −∞ of a normal
    half = norm.ppf(sequence.random(rows * (draws // 2))).reshape(rows, -1, numbers)
    roots = np.linalg.cholesky(np.einsum("nsk,nsl->nkl", half, half) / half.shape[1])
    half = np.swapaxes(np.linalg.solve(roots, np.swapaxes(half, 1, 2)), 1, 2)
    return np.concatenate([half, -half], 1)


def _opened(flat: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """a (d,) and A (d, d), lower triangular with a positive diagonal, of one vector."""
    away, log_sd, lower = jnp.split(flat, [size, 2 * size])
    rows, columns = np.tril_indices(size, -1)
    return away, jnp.diag(jnp.exp(log_sd)).at[rows, columns].set(lower)


def _through(factors: Factors, parts: jax.Array) -> jax.Array:
    """Σ_j s_nj parts_j, (N, ...), of parts (r, ...)."""
    return jnp.tensordot(factors.shares, parts, 1)


@compiled("model", if_few=COMPILE_FASTEST)
def _step(model, factors, rows, units, eps, flat, state) -> tuple[jax.Array, Any, jax.Array]:
    """One step of L-BFGS, and the ELBO before it; z = middle + unit · u with ``units`` = (middle, unit)."""
    (middle, unit), (y, counts) = units, rows
    elbo, optimizer = expected(model, factors, y, counts, eps), optax.lbfgs(memory_size=MEMORY)

    def downhill(flat: jax.Array) -> jax.Array:
        away, white = _opened(flat, len(middle))
        return -elbo(middle + unit @ away, unit @ white)

    value, slope = optax.value_and_grad_from_state(downhill)(flat, state=state)
    updates, state = optimizer.update(slope, state, flat, value=value, grad=slope, value_fn=downhill)
    return flat + updates, state, -jnp.asarray(value)


@compiled("model", if_few=COMPILE_FASTEST)
def _precision(model: Model, key: jax.Array) -> jax.Array:
    """(point, d, d) minus the Hessian of the log prior at two points."""
    prior = log_posterior(model, flat=True)
    return -jax.vmap(jax.hessian(lambda z: prior(z, None)))(jax.random.normal(key, (2, model.space.size)))


@compiled("model", if_few=COMPILE_FASTEST)
def _seen(model: Model, given: PyTree, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    """c (N, K), and F_n z (N, point, K) at points (point, d)."""
    of = functools.partial(quadrature.eta, model)
    offsets = jax.vmap(lambda x: of(jnp.zeros(points.shape[1]), x))(given)
    seen = jax.lax.map(lambda z: jax.vmap(lambda x: of(z, x))(given), points)
    return offsets, jnp.moveaxis(seen, 0, 1) - offsets[:, None]


@compiled("model", if_few=COMPILE_FASTEST)
def _slopes(model: Model, given: PyTree) -> jax.Array:
    """(row, K, d) F_n."""
    zero = jnp.zeros(model.space.size)
    return jax.vmap(lambda x: jax.jacrev(lambda z: quadrature.eta(model, z, x))(zero))(given)
