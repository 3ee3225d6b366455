"""Predicts how far the draws of a stochastic-gradient sampler with a fixed step size are from its target.

H is the curvature −∇² log p(θ|D) of the target, V the covariance of one stochastic gradient (docs/decisions/031).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Plan, Weighted, batch_of_window, first_rows, narrow, place
from tractable.core.model import Model, PyTree, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.learnt import Predicted

DENSE = 400  # largest number of parameters for which H and V are measured as matrices, not only their diagonals
# V is measured from all N possible batches if N × batch size is at most ALL_WINDOWS, and if these batches together take
# at most WINDOW_BYTES bytes.
ALL_WINDOWS, WINDOW_BYTES = 1 << 21, 1 << 29
ROWS = 4096  # otherwise V is measured from this many single rows
FEW_ROWS = 256  # or from this many single rows, if only diagonals are measured


class Measured(NamedTuple):
    """H and V at one position, or averaged over several; matrices (d, d), or their diagonals (d,)."""

    curvature: np.ndarray  # H = −∇² log posterior
    noise: np.ndarray  # V, the covariance of one stochastic gradient


def stationary(
    measurement: Measured,
    step_size: float,
    scale: np.ndarray | float = 1.0,
    *,
    friction: float = 1.0,
    temperature: float = 1.0,
    epoch: int | None = None,
    injected: np.ndarray | None = None,
) -> Predicted:
    """Predict the stationary covariance Σ of SGLD (friction 1) or SGHMC for a normal target with precision H.

        θ' − μ = (I − (ε/2) P H)(θ − μ) + (ε/2) P ξ + √ε L z,   Cov ξ = V,   P = L Lᵀ

    Σ solves the Lyapunov equation of this recursion. In one dimension, with P = 1, Σ = (1/h) (1 + εV/4) / (1 − εh/4),
    and the recursion is stable iff ε < 4/h. If the batches of an epoch contain every row once, their noise sums to zero
    over the epoch, with covariance −V/(M − 1) between two batches. Σ is then smaller than for independent batches, and
    it is averaged here over the steps of an epoch. The computation takes O(d) time if H and V are diagonals.

    Args:
        measurement: H and V.
        step_size: ε.
        scale: L, a number, (d,) or (d, d).
        friction: α of SGHMC.
        temperature: T of the injected noise; the target's covariance is T H⁻¹.
        epoch: M, the number of batches in an epoch that contains each row once; None if batches are independent.
        injected: S, the scale of the injected noise, if it is not √ε L.

    >>> one = Measured(np.array([4.0]), np.array([32.0]))
    >>> round(float(stationary(one, 0.1).covariance[0]), 6)   # (1/4)(1 + 0.8)/(1 − 0.1)
    0.5
    """
    matrix = measurement.curvature.ndim == 2
    h, v = _whiten(measurement, scale)
    if matrix:
        values, basis = np.linalg.eigh(h)
        v = basis.T @ v @ basis
    else:
        values, basis = h, None
    first, second = (values[:, None], values[None, :]) if matrix else (values, values)
    unit = np.eye(len(values)) if matrix else np.ones_like(values)
    heat = step_size * temperature * unit
    if injected is not None:
        white = np.linalg.solve(_dense(scale, len(injected)), injected) if injected.ndim == 2 else injected / scale
        heat = temperature * (basis.T @ white @ white.T @ basis if matrix and basis is not None else white**2)
    to_parameters = np.broadcast_to(scale, values.shape) if basis is None else _dense(scale, len(values)) @ basis

    def unwhiten(whitened: np.ndarray) -> np.ndarray:
        return to_parameters @ whitened @ to_parameters.T if matrix else np.square(to_parameters) * whitened

    target = unwhiten(temperature * unit / values)
    if not (np.all(values > 0) and step_size * values.max() < (4 if friction >= 1 else 4 * (2 - friction))):
        return Predicted(np.full_like(target, np.inf), target, np.full(len(values), np.inf), np.inf)
    white, batches = _memories(step_size * first / 2, step_size * second / 2, friction, epoch)
    whitened = friction * heat * white + step_size**2 / 4 * v * batches
    covariance = unwhiten(whitened)
    variances, right = (np.diag(covariance), np.diag(target)) if matrix else (covariance, target)
    inflation = np.sqrt(np.maximum(variances, 0) / right) - 1
    # The worst linear combination is reported too: with correlated parameters, a direction of large curvature may be
    # many times too wide while every marginal sd is right.
    ratios = np.linalg.eigvalsh(whitened * np.sqrt(first * second) / temperature) if matrix else variances / right
    return Predicted(covariance, target, inflation, float(np.abs(np.sqrt(np.maximum(ratios, 0)) - 1).max()))


def largest_step(measurement: Measured, scale: np.ndarray | float, tolerance: float, **settings: Any) -> float:
    """Find the largest ε at which the predicted sd of every linear combination has a relative error ≤ ``tolerance``."""
    h, _ = _whiten(measurement, scale)
    top = max(np.linalg.eigvalsh(h).max() if h.ndim == 2 else h.max(), 1e-300)
    low, high = 1e-9 / top, 3.9 / top
    if stationary(measurement, high, scale, **settings).worst <= tolerance:
        return high
    for _ in range(60):
        middle = np.sqrt(low * high)
        if stationary(measurement, middle, scale, **settings).worst <= tolerance:
            low = middle
        else:
            high = middle
    return float(low)


def reduced_noise(measurement: Measured, step_size: float, scale: np.ndarray | float) -> np.ndarray | None:
    """S with S Sᵀ = εP − (ε²/4) P (V + H) P, the scale of injected noise that makes the stationary covariance H⁻¹.

    This holds for a normal target and independent batches. The result is None if ε is so large that S Sᵀ is not
    positive definite.
    """
    h, v = _whiten(measurement, scale)
    if h.ndim == 1:
        left = step_size - step_size**2 / 4 * (v + h)
        return None if left.min() <= 0 else np.broadcast_to(scale, h.shape) * np.sqrt(left)
    left = step_size * np.eye(len(h)) - step_size**2 / 4 * (v + h)
    if np.linalg.eigvalsh(left).min() <= 0:
        return None
    return _dense(scale, len(h)) @ np.linalg.cholesky(left)


def _memories(first: np.ndarray, second: np.ndarray, friction: float, epoch: int | None) -> tuple[Any, Any]:
    """The variance of the position per unit of white noise and of batch noise: Σ_kl r_k r'_l C(k − l).

    C is the noise's autocovariance. The sum is computed for every pair of values x = εh/2. A step moves the position
    towards the mode by the share x of its distance. After k steps a unit of noise has shrunk to
    r_k = Σ_s w_s (1 − y_s)^k, with w_s and y_s from ``_responses``. If the batches of an epoch contain every row once,
    C(l) = −(1 − l/M)/(M − 1) at lags 0 < l < M, averaged over the steps of an epoch, so that

        Σ_kl (1 − y)^k (1 − y')^l C(k − l) = (u(y) + u(y')) / (y + y' − y y'),   u(y) = ½ + Σ_l C(l) (1 − y)^l

    and u = ½ for independent batches.
    """
    white: Any = 0.0
    batches: Any = 0.0
    for weight, y in _responses(first, friction):
        for other, z in _responses(second, friction):
            total = weight * other / (y + z - y * z)
            white = white + total.real
            batches = batches + (total * (_half_sum(y, epoch) + _half_sum(z, epoch))).real
    return white, batches


def _responses(pull: np.ndarray, friction: float) -> list[tuple[Any, np.ndarray]]:
    """The (w_s, y_s) of ``_memories`` for x = ``pull``: weights, and the roots of y² − (α + x) y + x.

    For SGLD, where α = 1, the root 0 is left out.
    """
    if friction >= 1:
        return [(1.0, pull)]
    total = friction + pull
    gap = total**2 - 4 * pull
    least = 1e-8 * total**2  # avoids critical damping, where the two roots coincide and the weights divide by 0
    fast = (total + np.sqrt(np.where(np.abs(gap) < least, least, gap).astype(complex))) / 2
    slow = pull / fast  # accurate even if rounding would spoil (total − √gap)/2
    return [((1 - slow) / (fast - slow), slow), (-(1 - fast) / (fast - slow), fast)]


def _half_sum(y: np.ndarray, epoch: int | None) -> np.ndarray:
    """u(y) of ``_memories``."""
    if epoch is None:
        return np.full_like(y, 0.5)
    if epoch == 1:
        return np.zeros_like(y)
    small = np.abs(epoch * y) < 0.1  # a series is used there, since the formula below subtracts large numbers
    series, term = np.zeros_like(y), np.full_like(y, (epoch + 1) / 6)
    for k in range(1, 9):  # C(M + 1, k + 2) (−1)^(k + 1) y^k / (M (M − 1))
        term = term * (y if k == 1 else -y * (epoch - k) / (k + 2))
        series = series + term
    y = np.where(small, 1.0, y)
    a = 1 - y
    return np.where(small, series, 0.5 - (a / y - a * (1 - a**epoch) / (epoch * y**2)) / (epoch - 1))


def _whiten(measurement: Measured, scale: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """H and V in the coordinates L⁻¹ θ: Lᵀ H L and Lᵀ V L, or their diagonals."""
    h, v = np.asarray(measurement.curvature, float), np.asarray(measurement.noise, float)
    if h.ndim == 2:
        dense = _dense(scale, len(h))
        return dense.T @ h @ dense, dense.T @ v @ dense
    return np.square(scale) * h, np.square(scale) * v


def _dense(scale: np.ndarray | float, size: int) -> np.ndarray:
    scale = np.asarray(scale, float)
    return scale if scale.ndim == 2 else np.diag(np.broadcast_to(scale, size))


def measure(
    model: Model,
    data: Data,
    plan: Plan,
    positions: np.ndarray,
    key: jax.Array,
    source: Any = None,
    tuned: PyTree = None,
) -> Measured:
    """Measure H and V, averaged over flat unconstrained positions (k, d).

    A batch is n consecutive rows of the N shuffled rows. If there are few possible batches, V is the covariance of the
    stochastic gradient over all of them. Otherwise V is computed from the covariance V₁ over single rows, as
    V₁ (N − n)/(n (N − 1)), because the largest eigenvalue of a covariance of a few batches is too large. For at most
    400 parameters H is minus the Hessian of the log posterior. For more parameters, H and V are diagonals, and H is the
    prior's curvature plus the empirical Fisher information V₁/(N − 1), which is positive.

    Args:
        source: ``source.estimator(model, tuned)`` is the stochastic gradient; the plain minibatch gradient by default.
    """
    where = jnp.atleast_2d(jnp.asarray(positions, jnp.result_type(float)))
    dense = model.space.size <= DENSE
    n, size = plan.width, plan.size
    every = size * n <= ALL_WINDOWS and n * data.nbytes <= WINDOW_BYTES
    used = plan if every else Plan(size, 1)
    count = size if every else min(size, ROWS if dense else FEW_ROWS)
    if every:
        starts = jnp.arange(size)
    elif plan.far:
        anywhere = plan._replace(independent=True)
        starts = first_rows(plan, jax.vmap(lambda t: place(anywhere, key, t)[0])(jnp.arange(count)))
    else:
        starts = jax.random.randint(key, (count,), 0, size)
    if data.resident:
        rows = starts[:, None] + jnp.arange(used.width)
        stacked = jax.tree.map(lambda a: a[rows], data.windows(n))
    else:
        stacked = jax.tree.map(jnp.asarray, data.read(np.asarray(starts), used.width))
    some = data.sketched()
    rows = some.arrays() if data.resident else jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), stacked)

    def noise_of(position: jax.Array, stacked: PyTree) -> np.ndarray:
        total = np.asarray(_noise(model, used, source, dense, tuned, position, stacked), np.float64)
        return total / (size if every else count - 1)

    noises, curvatures = [], []
    for position in where:
        noise = noise_of(position, stacked)
        if dense:
            hessian = -np.asarray(_hessian(model, position, rows, narrow(some.size)), np.float64)
            curvatures.append((hessian + hessian.T) / 2)
        else:
            fisher = noise
            if isinstance(stacked, Weighted):  # a row of weight w adds w g gᵀ to H, so √w g stands for its gradient
                fisher = noise_of(position, stacked._replace(weights=jnp.sqrt(stacked.weights)))
            single = fisher * n * (size - 1) / max(size - n, 1) if every else fisher
            prior = -np.asarray(_prior_curvature(model, position), np.float64)
            curvatures.append(single / max(size - 1, 1) + np.maximum(prior, 0))
        noises.append(noise if every else noise * (size - n) / (n * (size - 1)))
    h, v = np.mean(curvatures, 0), np.mean(noises, 0)
    if plan.count == 1:
        v = np.zeros_like(v)
    return Measured(_positive(h), v)


def inverse_root(h: np.ndarray) -> np.ndarray:
    """The lower-triangular L with L Lᵀ = H⁻¹."""
    return np.linalg.cholesky(np.linalg.inv(h))


def _positive(h: np.ndarray) -> np.ndarray:
    """The curvature made positive definite: eigenvalues below 10⁻⁶ of the largest one are raised to 10⁻⁶ of it."""
    if h.ndim == 1:
        return np.maximum(h, 1e-6 * h.max())
    values, basis = np.linalg.eigh(h)
    if values.min() > 1e-6 * values.max():
        return h
    return (basis * np.maximum(values, 1e-6 * max(values.max(), 1e-300))) @ basis.T


@compiled("model", "plan", "source", "dense", if_few=COMPILE_FASTEST)
def _noise(model, plan, source, dense, tuned, position, stacked) -> jax.Array:
    """Σ (g − ḡ)(g − ḡ)ᵀ over the batches' gradients g; only its diagonal, in O(d) memory, if ``dense`` is False."""
    estimate = jax.grad(log_posterior(model, flat=True)) if source is None else source.estimator(model, tuned)

    def gradient(rows: PyTree) -> jax.Array:
        return estimate(position, batch_of_window(rows, plan, jnp.array(plan.width), jnp.array(0)))

    if dense:
        gradients = jax.lax.map(gradient, stacked, batch_size=32)
        centred = gradients - gradients.mean(0)
        return centred.T @ centred

    def add(carry: tuple, rows: PyTree) -> tuple:
        count, mean, square = carry
        new = gradient(rows)
        new_mean = mean + (new - mean) / (count + 1)
        return (count + 1, new_mean, square + (new - mean) * (new - new_mean)), None

    nothing = (0.0, jnp.zeros_like(position), jnp.zeros_like(position))
    return jax.lax.scan(add, nothing, stacked)[0][2]


@compiled("model", if_few=COMPILE_FASTEST)
def _hessian(model: Model, position: jax.Array, rows: PyTree, size: jax.Array) -> jax.Array:
    batch = whole(rows)._replace(size=size)
    gradient = jax.grad(log_posterior(model, flat=True))
    # Eight Hessian-vector products at a time: all d at once would need d copies of every row's intermediate results.
    return jax.lax.map(
        lambda e: jax.jvp(lambda p: gradient(p, batch), (position,), (e,))[1], jnp.eye(position.size), batch_size=8
    )


@compiled("model", if_few=COMPILE_FASTEST)
def _prior_curvature(model: Model, position: jax.Array) -> jax.Array:
    """The diagonal of the log prior's Hessian; exact if the prior factorises over parameters."""
    gradient = jax.grad(lambda p: log_posterior(model, flat=True)(p, None))
    return jax.jvp(gradient, (position,), (jnp.ones_like(position),))[1]
