"""Searches on the host: the maximum by L-BFGS and Newton steps on all rows, and the curvature there."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.causes import base_of
from tractable.core.errors import TractableWarning
from tractable.core.model import Batch, Model, Objective, PyTree, is_distribution, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.shared import compiled
from tractable.core.sums import Expected, accumulate
from tractable.engine.ascent import lbfgs
from tractable.engine.session import Session

INFORMATION = 1000  # parameters up to which standard errors are computed
COLUMNS = 16  # columns of a Hessian computed at once
CURVED = 1 << 13  # rows whose curvature is computed at once
NEARER = 4  # looks at all rows on the way to the mode, which some of them began
CLIMB_BYTES = 1 << 30  # most bytes of data for a climb to a starting point


class Maximum(NamedTuple):
    """The end point of a climb."""

    position: np.ndarray  # (d,) unconstrained
    value: float
    slope: float  # largest component of the gradient, or of the least subgradient at kinks
    evaluations: int
    gradient: np.ndarray
    trace: np.ndarray  # (iteration,) values


class Ends(NamedTuple):
    """When a climb ends."""

    steps: int = 2000  # most iterations
    tolerance: float = 1e-6  # of the largest component of the gradient, times rows / 100
    stop: Callable[[], bool] = lambda: False  # called after every iteration; true ends the climb there


BY_DEFAULT = Ends()


def maximum(
    model: Model,
    data: Data | None,
    start: jax.Array | np.ndarray,
    prior: bool = True,
    jacobian: bool = False,
    ends: Ends = BY_DEFAULT,
    count: Callable[[float], None] = lambda value: None,
) -> Maximum:
    """The maximum reached from ``start`` by L-BFGS and, for few parameters, Newton steps.

    Laplace priors have a kink at their centre. A parameter w under one is split into centre + u − v with u, v ≥ 0,
    which makes the objective smooth and its zeros exact.

    Args:
        jacobian: climb the density of the unconstrained position instead of the user's parameters.
        ends: when the climb ends.
        count: called with the value of every evaluation.
    """
    batch = all_rows(data)
    split = _split(model, prior)

    def smooth(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = total(model, np.asarray(position, start.dtype), batch, prior, jacobian)
        count(float(value))
        return split.without_kinks(position, float(value), np.asarray(gradient, np.float64))

    def uphill(extended: np.ndarray) -> tuple[float, np.ndarray]:
        return split.with_parts(extended, *smooth(split.original(extended)))

    extended, bounds = split.opened(np.asarray(start, np.float64))
    rows = 1 if data is None else max(data.size, 1)
    gtol = ends.tolerance * rows * 1e-2
    result = lbfgs(
        uphill, extended, ends.stop, bounds, maxiter=ends.steps, maxfun=4 * ends.steps, ftol=1e-15, gtol=gtol
    )
    position, evaluations = split.original(result.x), int(result.nfev)
    if not len(split.index) and len(start) <= INFORMATION and np.all(np.isfinite(position)):
        position, extra = _polish(model, batch, position, prior, jacobian, start.dtype)
        evaluations += extra
    value, gradient = split.with_kinks(position, *smooth(position))
    return Maximum(position, value, float(np.abs(gradient).max()), evaluations, gradient, result.trace)


class _Split(NamedTuple):
    """Splits parameters under Laplace priors into centre + u − v, u, v ≥ 0; the extended position is (θ with u, v)."""

    size: int  # d
    index: np.ndarray  # (m,) of the split parameters
    rate: np.ndarray  # (m,) 1/b
    centre: np.ndarray  # (m,)

    def opened(self, position: np.ndarray) -> tuple[np.ndarray, list | None]:
        """The extended position (d + m,), and its bounds."""
        if not len(self.index):
            return position, None
        away = position[self.index] - self.centre
        extended = np.concatenate([position, np.maximum(-away, 0)])
        extended[self.index] = np.maximum(away, 0)
        bounds: list = [(None, None)] * self.size + [(0, None)] * len(self.index)
        for i in self.index:
            bounds[i] = (0, None)
        return extended, bounds

    def original(self, extended: np.ndarray) -> np.ndarray:
        """The position (d,) of an extended one."""
        position = extended[: self.size].copy()
        position[self.index] = self.centre + extended[self.index] - extended[self.size :]
        return position

    def without_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (d,) without the terms −rate |w − centre|, whose slope at the kink is JAX's."""
        if not len(self.index):
            return value, gradient
        away = position[self.index] - self.centre
        pull = _added(gradient, self.index, self.rate * np.where(away == 0, _slope_of_kink(), np.sign(away)))
        return value + float(self.rate @ np.abs(away)), pull

    def with_parts(self, extended: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (d + m,) with −rate (u + v), from value and gradient without the kinks."""
        value -= float(self.rate @ (extended[self.index] + extended[self.size :]))
        return value, np.concatenate([_added(gradient, self.index, -self.rate), -gradient[self.index] - self.rate])

    def with_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and least subgradient (d,), from value and gradient without the kinks."""
        away, slope = position[self.index] - self.centre, gradient[self.index]
        # At a kink the prior balances slopes up to its rate.
        beyond = np.sign(slope) * np.maximum(np.abs(slope) - self.rate, 0)
        whole = gradient.copy()
        whole[self.index] = np.where(away == 0, beyond, slope - self.rate * np.sign(away))
        return value - float(self.rate @ np.abs(away)), whole


@functools.cache
def _slope_of_kink() -> float:
    """The slope of |w| at 0 that JAX takes in the Laplace density; any known number in [−1, 1] would do."""
    return -float(jax.grad(lambda w: dist.Laplace(0.0, 1.0).log_prob(w))(0.0))


def _split(model: Model, prior: bool) -> _Split:
    size = model.space.size
    rate, centre = _kinks(model) if prior else (np.zeros(size), np.zeros(size))
    index = np.flatnonzero(rate)
    return _Split(size, index, rate[index], centre[index])


def _added(vector: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = vector.copy()
    out[index] += values
    return out


def _polish(model, batch, position, prior, jacobian, dtype) -> tuple[np.ndarray, int]:
    """Newton steps while they climb: L-BFGS stops where its line search can no longer tell values apart."""
    value, gradient = map(np.asarray, total(model, np.asarray(position, dtype), batch, prior, jacobian))
    evaluations = 1
    for _ in range(4):
        hessian = np.asarray(curvature(model, np.asarray(position, dtype), batch, prior, jacobian), np.float64)
        try:
            step = np.linalg.solve(hessian, np.asarray(gradient, np.float64))
        except np.linalg.LinAlgError:
            break
        proposed = position + step
        new_value, new_gradient = map(np.asarray, total(model, np.asarray(proposed, dtype), batch, prior, jacobian))
        evaluations += 2
        better = np.abs(new_gradient).max() < np.abs(gradient).max() and new_value >= value - 1e-6 * abs(value)
        if not (np.isfinite(new_value) and better):
            break
        position, value, gradient = proposed, new_value, new_gradient
    return position, evaluations


def standard_errors(model: Model, data: Data | None, position: np.ndarray, prior: bool) -> dict[str, Any]:
    """Covariance of the user's parameters from the observed information, and its smallest eigenvalue.

    J = −∇² of the objective at the maximum; the delta method carries J⁻¹ through the change of variables.
    """
    if model.space.size > INFORMATION or (data is not None and not data.resident):
        return {}
    batch = all_rows(data)
    where = np.asarray(position, jnp.result_type(float))
    information = np.asarray(curvature(model, where, batch, prior, False), np.float64)
    if not np.all(np.isfinite(information)):
        return {"eigenvalue": float("nan")}
    # A parameter at a Laplace prior's kink has no standard error, and is left out of the curvature.
    rate, centre = _kinks(model) if prior else (np.zeros(len(position)), np.zeros(len(position)))
    free = np.flatnonzero((rate == 0) | (position != centre))
    block = information[np.ix_(free, free)]
    values = np.linalg.eigvalsh(block) if len(free) else np.ones(1)
    out: dict[str, Any] = {"eigenvalue": float(values.min()), "condition": float(values.min() / values.max())}
    if values.min() > np.finfo(np.float64).eps * values.max():  # or there is no inverse
        inverse = np.full_like(information, np.nan)
        inverse[np.ix_(free, free)] = np.linalg.inv(block)
        slope = np.asarray(_jacobian(model, where), np.float64)  # (k, d)
        if len(free) == len(position):
            out["covariance"] = slope @ inverse @ slope.T
        else:  # Laplace priors live on the reals: only the free parameters pass through the delta method
            at_kinks = np.setdiff1d(np.arange(len(position)), free)
            out["covariance"] = slope[:, free] @ inverse[np.ix_(free, free)] @ slope[:, free].T
            out["covariance"][np.any(slope[:, at_kinks] != 0, axis=1)] = np.nan
        out["information"] = information
    else:
        warnings.warn(
            f"The observed information has an eigenvalue of {values.min():.3g}: no standard errors. The maximum is "
            "at a boundary, a saddle or a ridge; look at the data's collinear columns, or use a proper prior.",
            TractableWarning,
            stacklevel=4,
        )
    return out


def modes(session: Session, positions: jax.Array) -> np.ndarray:
    """The mode of the unconstrained density that every position climbs to, (chain, d); may hold non-finite numbers.

    The climb uses all rows, or a first part of data that are large or on file.
    """
    model, data = session.model, None if session.data is None else session.data.sketched()
    some = data is not session.data  # of groups
    if data is not None and (not data.resident or data.nbytes > CLIMB_BYTES):
        data = data.take(slice(0, max(1, int(data.size * min(1.0, CLIMB_BYTES / data.nbytes) / 8))))
    out = []
    for done, position in enumerate(positions):
        session.say("climbing", done, len(positions))
        out.append(maximum(model, data, position, jacobian=True, ends=Ends(500, 1e-4, session.stop)).position)
    session.say("climbing", len(positions), len(positions))
    if some and session.data is not None and len(out[0]) <= INFORMATION:
        ends, which = np.unique(np.round(np.stack(out), 4), axis=0, return_inverse=True)
        roots = [laplace_root(model, data, end) if np.all(np.isfinite(end)) else None for end in ends]
        out = [nearer(model, session.data, end, root) for end, root in zip(ends, roots, strict=True)]
        return np.stack(out)[which.ravel()]
    return np.stack(out)


def nearer(model: Model, data: Data, position: np.ndarray, root: np.ndarray | None) -> np.ndarray:
    """The mode by all rows, from one by some that stand for them, and the root of their inverse curvature.

    θ ← θ + L Lᵀ ∇ log p(θ | y): where the curvature of m groups is right to 1/√m, each step leaves so much of the way.
    """
    if root is None or not data.resident:
        return position
    batch, best = all_rows(data), -np.inf
    proposed = position
    for _ in range(NEARER):
        value, gradient = total(model, np.asarray(proposed, jnp.result_type(float)), batch, True, True)
        if not (float(value) > best and np.all(np.isfinite(gradient))):
            break
        position, best = proposed, float(value)
        proposed = position + root @ (root.T @ np.asarray(gradient, np.float64))
    return position


def laplace_root(model: Model, data: Data | None, mode: np.ndarray) -> np.ndarray | None:
    """L with L Lᵀ the inverse curvature of the unconstrained log density at a mode; None if that is singular."""
    where = np.asarray(mode, jnp.result_type(float))
    precision = np.asarray(curvature(model, where, all_rows(data), True, True), np.float64)
    if not np.all(np.isfinite(precision)):
        return None
    values, basis = np.linalg.eigh(precision)
    if values.min() <= 1e-8 * values.max():
        return None
    return np.linalg.cholesky((basis / values) @ basis.T)


def all_rows(data: Data | None) -> Batch | None:
    """All rows as one batch on the device; None without data."""
    return None if data is None else whole(data.arrays())


def _kinks(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Rate 1/b and centre of every Laplace prior, flat (d,); rate 0 elsewhere."""
    if model.prior_is_callable:
        return np.zeros(model.space.size), np.zeros(model.space.size)
    example = jax.eval_shape(model.space.unravel, jax.ShapeDtypeStruct((model.space.size,), jnp.result_type(float)))

    def spread(pick: str) -> np.ndarray:  # by NumPy, which has nothing to compile
        def leaf(d: PyTree, like: jax.ShapeDtypeStruct) -> np.ndarray:
            inner = base_of(d)
            if not isinstance(inner, dist.Laplace):
                return np.zeros(like.shape)
            given = inner.scale if pick == "rate" else inner.loc
            value = np.asarray(given, jnp.result_type(given))
            return np.broadcast_to(1 / value if pick == "rate" else value, like.shape)

        tree = jax.tree.map(leaf, model.prior, example, is_leaf=is_distribution)
        return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)]).astype(np.float64)

    return spread("rate"), spread("centre")


@compiled("model", "prior", "jacobian")
def total(
    model: Model, position: jax.Array, batch: Batch | None, prior: bool = True, jacobian: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The objective and its gradient (d,)."""
    return jax.value_and_grad(_objective(model, batch, prior, jacobian))(position)


def total_of(
    model: Model, position: jax.Array | np.ndarray, data: Data | None, prior: bool = True, jacobian: bool = False
) -> tuple[float, np.ndarray]:
    """The same of all rows wherever they lie: those of a file some at a time, summed in double precision."""
    if data is None or data.resident:
        value, gradient = total(model, position, all_rows(data), prior, jacobian)
        return float(value), np.asarray(gradient)
    value, gradient = (np.asarray(a, np.float64) for a in total(model, position, None, prior, jacobian))
    for start in range(0, data.size, CURVED):
        batch = all_rows(data.take(slice(start, start + CURVED)))
        more = total(model, position, batch, False, False)
        value, gradient = (a + np.asarray(b, np.float64) for a, b in zip((value, gradient), more, strict=True))
    return float(value), gradient


@compiled("model", "prior", "jacobian")
def curvature(model: Model, position: jax.Array, batch: Batch | None, prior: bool, jacobian: bool) -> jax.Array:
    """−∇² of the objective (d, d); many rows are summed by chunks, in bounded memory."""

    def hessian(value: Callable) -> jax.Array:
        gradient, size = jax.grad(value), position.size
        at_once = min(COLUMNS, size)
        directions = jnp.eye(-(-size // at_once) * at_once, size)  # a remainder would compile a second program
        columns = jax.lax.map(lambda e: jax.jvp(gradient, (position,), (e,))[1], directions, batch_size=at_once)
        return columns[:size]

    if batch is None or batch.mask.shape[0] <= CURVED:
        columns = hessian(_objective(model, batch, prior, jacobian))
        return -(columns + columns.T) / 2

    def part(_: jax.Array, some: Batch) -> Expected:
        def likelihood(position: jax.Array) -> jax.Array:
            terms = model.log_likelihoods(model.params(position), some.data)
            return jnp.sum(some._replace(rows=batch.rows).counted(terms))

        return Expected(hessian(likelihood), jnp.zeros(()))

    columns = accumulate(part, position, batch.data, batch.mask, CURVED).statistics
    if prior or jacobian:
        columns = columns + hessian(_objective(model, None, True, jacobian))
    return -(columns + columns.T) / 2


def _objective(model: Model, batch: Batch | None, prior: bool, jacobian: bool) -> Any:
    if jacobian:
        return lambda position: log_posterior(model, flat=True)(position, batch)
    return lambda position: log_joint(model, prior=prior, flat=True).value(None, position, batch)


@compiled("model")
def _jacobian(model: Model, position: jax.Array) -> jax.Array:
    """Jacobian (k, d) of the user's parameters."""
    return jax.jacobian(model.values)(position)


def log_joint(model: Model, *, prior: bool = True, flat: bool = False) -> Objective:
    """N/n Σ log p(y|θ) (+ log p(θ)): for maximum likelihood, or with the prior for maximum a posteriori.

    The density is that of the *user's* parameters, without the Jacobian's log-determinant, so its maximum does not
    move with the unconstrained parametrisation.
    """
    posterior = log_posterior(model, flat=flat, jacobian=False)

    def value(noise: PyTree, params: PyTree, batch: Batch | None) -> jax.Array:
        if prior or batch is None:
            return posterior(params, batch)
        theta = model.constrain(model.space.unravel(params) if flat else params)
        terms = model.log_likelihoods(theta, batch.data)
        return batch.scale * jnp.sum(batch.counted(terms))

    return Objective(lambda key, count, params: jnp.zeros((count, 0)), value)
