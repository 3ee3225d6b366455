"""Finds maxima on the host, that is in Python: by L-BFGS and Newton steps on all rows, with the curvature there."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.causes import base_of
from tractable.core.model import Batch, Model, Objective, PyTree, is_distribution, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FAST, compiled
from tractable.core.sums import Expected, accumulate
from tractable.core.words import tell
from tractable.engine.ascent import lbfgs
from tractable.engine.session import Session

INFORMATION = 1000  # largest number of parameters for which standard errors are computed
COLUMNS = 16  # number of columns of a Hessian that are computed at once
CURVED = 1 << 13  # number of rows whose curvature is computed at once
NEARER = 4  # largest number of evaluations on all rows that improve a mode which was found on a sample of groups
CLIMB_BYTES = 1 << 30  # largest number of bytes of data that a climb to a starting point uses


class Maximum(NamedTuple):
    """The end point of a climb."""

    position: np.ndarray  # (d,) unconstrained
    value: float  # the objective there
    slope: float  # largest absolute component of ``gradient``
    evaluations: int  # number of evaluations of the objective
    gradient: np.ndarray  # (d,) gradient of the objective; the smallest subgradient at a kink
    trace: np.ndarray  # (iteration,) values of the objective


class Ends(NamedTuple):
    """The conditions that end a climb."""

    steps: int = 2000  # largest number of iterations
    tolerance: float = 1e-6  # the climb ends if no component of the gradient exceeds tolerance × number of rows / 100
    stop: Callable[[], bool] = lambda: False  # called after every iteration; true ends the climb


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
    """The maximum that is reached from ``start`` by L-BFGS and, for few parameters, Newton steps.

    The density of a Laplace prior has a kink at its centre. A parameter with such a prior is written as centre + u − v
    with u, v ≥ 0. The objective is then smooth, and parameters can be exactly at their centre.

    Args:
        prior: include the log prior in the objective.
        jacobian: maximise the density of the unconstrained position instead of that of the user's parameters.
        ends: the conditions that end the climb.
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

    extended, bounds = split.extended(np.asarray(start, np.float64))
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
    """Writes each parameter with a Laplace prior as centre + u − v, with u, v ≥ 0.

    The extended position (d + m,) has u in the place of such a parameter, and all v at its end.
    """

    size: int  # number d of parameters
    index: np.ndarray  # (m,) indices of the split parameters
    rate: np.ndarray  # (m,) rate 1/b of their priors
    centre: np.ndarray  # (m,) centre of their priors

    def extended(self, position: np.ndarray) -> tuple[np.ndarray, list | None]:
        """The extended position (d + m,), and its bounds."""
        if not len(self.index):
            return position, None
        offset = position[self.index] - self.centre
        extended = np.concatenate([position, np.maximum(-offset, 0)])
        extended[self.index] = np.maximum(offset, 0)
        bounds: list = [(None, None)] * self.size + [(0, None)] * len(self.index)
        for i in self.index:
            bounds[i] = (0, None)
        return extended, bounds

    def original(self, extended: np.ndarray) -> np.ndarray:
        """The position (d,) that an extended position stands for."""
        position = extended[: self.size].copy()
        position[self.index] = self.centre + extended[self.index] - extended[self.size :]
        return position

    def without_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (d,) without the terms −rate |w − centre| of the Laplace priors.

        ``gradient`` comes from JAX, which chose some slope for these terms at their kink.
        """
        if not len(self.index):
            return value, gradient
        offset = position[self.index] - self.centre
        smooth = _add_at(gradient, self.index, self.rate * np.where(offset == 0, _slope_of_kink(), np.sign(offset)))
        return value + float(self.rate @ np.abs(offset)), smooth

    def with_parts(self, extended: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Add −rate (u + v) to a value and gradient without the kinks; the result's gradient is (d + m,)."""
        value -= float(self.rate @ (extended[self.index] + extended[self.size :]))
        return value, np.concatenate([_add_at(gradient, self.index, -self.rate), -gradient[self.index] - self.rate])

    def with_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """The value and the smallest subgradient (d,), from a value and gradient without the kinks."""
        offset, slope = position[self.index] - self.centre, gradient[self.index]
        # At a kink, the prior cancels the slope of the other terms if this is at most the prior's rate in size.
        excess = np.sign(slope) * np.maximum(np.abs(slope) - self.rate, 0)
        subgradient = gradient.copy()
        subgradient[self.index] = np.where(offset == 0, excess, slope - self.rate * np.sign(offset))
        return value - float(self.rate @ np.abs(offset)), subgradient


@functools.cache
def _slope_of_kink() -> float:
    """The slope of |w| at 0 that JAX uses in the gradient of the Laplace density."""
    return -float(jax.grad(lambda w: dist.Laplace(0.0, 1.0).log_prob(w))(0.0))


def _split(model: Model, prior: bool) -> _Split:
    size = model.space.size
    rate, centre = _kinks(model) if prior else (np.zeros(size), np.zeros(size))
    index = np.flatnonzero(rate)
    return _Split(size, index, rate[index], centre[index])


def _add_at(vector: np.ndarray, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = vector.copy()
    out[index] += values
    return out


def _polish(model, batch, position, prior, jacobian, dtype) -> tuple[np.ndarray, int]:
    """Take up to four Newton steps, while they improve: L-BFGS ends once values differ by no more than rounding."""
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
    """The covariance of the user's parameters from the observed information J, and the smallest eigenvalue of J.

    J is −∇² of the objective at the maximum. J⁻¹ is the covariance of the unconstrained parameters, and the delta
    method gives the covariance of the user's parameters. The result is empty if there are too many parameters, or if
    the data are on file. If J has no inverse, a warning says so, but not of a network: its units can be exchanged and
    its climbs end on ridges or near saddles as a rule, so that it is judged by its predictions.
    """
    if model.space.size > INFORMATION or (data is not None and not data.resident):
        return {}
    batch = all_rows(data)
    where = np.asarray(position, jnp.result_type(float))
    information = np.asarray(curvature(model, where, batch, prior, False), np.float64)
    if not np.all(np.isfinite(information)):
        return {"eigenvalue": float("nan")}
    # A parameter at the kink of its Laplace prior has no standard error. It is left out of the curvature.
    rate, centre = _kinks(model) if prior else (np.zeros(len(position)), np.zeros(len(position)))
    free = np.flatnonzero((rate == 0) | (position != centre))
    block = information[np.ix_(free, free)]
    values = np.linalg.eigvalsh(block) if len(free) else np.ones(1)
    out: dict[str, Any] = {"eigenvalue": float(values.min()), "condition": float(values.min() / values.max())}
    if values.min() > np.finfo(np.float64).eps * values.max():  # otherwise there is no inverse
        inverse = np.full_like(information, np.nan)
        inverse[np.ix_(free, free)] = np.linalg.inv(block)
        slope = np.asarray(_jacobian(model, where), np.float64)  # (k, d)
        if len(free) == len(position):
            out["covariance"] = slope @ inverse @ slope.T
        else:
            # A user's parameter that depends on a parameter at a kink has no standard error. The other ones depend only
            # on parameters that are not at a kink.
            at_kinks = np.setdiff1d(np.arange(len(position)), free)
            out["covariance"] = slope[:, free] @ inverse[np.ix_(free, free)] @ slope[:, free].T
            out["covariance"][np.any(slope[:, at_kinks] != 0, axis=1)] = np.nan
        out["information"] = information
    elif not model.network_weights:
        tell(
            f"The observed information has an eigenvalue of {values.min():.3g}: no standard errors. The maximum is "
            "at a boundary, a saddle or a ridge; check the data for collinear columns, or use a proper prior.",
        )
    return out


def modes(session: Session, positions: jax.Array) -> np.ndarray:
    """(chain, d) the modes of the unconstrained density that climbs from ``positions`` reach.

    They may hold numbers that are not finite. The climbs use all rows, but only the first part of data that are large
    or on file. If there are very many groups of rows, the climbs use a sample of them, and a few steps on all rows
    follow.
    """
    model, data = session.model, None if session.data is None else session.data.sketched()
    is_sample = data is not session.data
    if data is not None and (not data.resident or data.nbytes > CLIMB_BYTES):
        data = data.take(slice(0, max(1, int(data.size * min(1.0, CLIMB_BYTES / data.nbytes) / 8))))
    out = []
    for done, position in enumerate(positions):
        session.say("climbing", done, len(positions))
        out.append(maximum(model, data, position, jacobian=True, ends=Ends(500, 1e-4, session.stop)).position)
    session.say("climbing", len(positions), len(positions))
    if is_sample and session.data is not None and len(out[0]) <= INFORMATION:
        ends, which = np.unique(np.round(np.stack(out), 4), axis=0, return_inverse=True)
        roots = [laplace_root(model, data, end) if np.all(np.isfinite(end)) else None for end in ends]
        out = [nearer(model, session.data, end, root) for end, root in zip(ends, roots, strict=True)]
        return np.stack(out)[which.ravel()]
    return np.stack(out)


def mode_and_root(session: Session, start: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The mode (d,) that a climb from ``start`` reaches, and the root (d, d) of the inverse curvature there.

    If there is no mode, the result is ``start``; without it or its curvature the root is None. With very many groups of
    rows, the climb and the curvature are those of a sample of them.
    """
    model, data = session.model, None if session.data is None else session.data.sketched()
    mode = maximum(model, data, start, jacobian=True, ends=Ends(500, 1e-4, session.stop)).position
    if not np.all(np.isfinite(mode)):
        return start, None
    root = laplace_root(model, data, mode)
    if data is not session.data and session.data is not None:
        mode = nearer(model, session.data, mode, root)
    return mode, root


def nearer(model: Model, data: Data, position: np.ndarray, root: np.ndarray | None) -> np.ndarray:
    """The mode given all rows, from the mode given a sample of them.

    The step is θ ← θ + L Lᵀ ∇ log p(θ | y), where ``root`` L is the root of the inverse curvature of the sample. The
    curvature of m groups has a relative error of about 1/√m, so each step multiplies the distance to the mode by about
    1/√m.
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
    """L, where L Lᵀ is the inverse curvature of the unconstrained log density at a mode; None if it has no inverse."""
    where = np.asarray(mode, jnp.result_type(float))
    precision = np.asarray(curvature(model, where, all_rows(data), True, True), np.float64)
    if not np.all(np.isfinite(precision)):
        return None
    values, basis = np.linalg.eigh(precision)
    if values.min() <= 1e-8 * values.max():
        return None
    return np.linalg.cholesky((basis / values) @ basis.T)


def conditional_sd(root: np.ndarray) -> np.ndarray:
    """(d,) the sds 1/√Λᵢᵢ of each parameter given the others, where Λ⁻¹ = root rootᵀ."""
    return 1 / np.sqrt(np.square(np.linalg.inv(root)).sum(0))


def all_rows(data: Data | None) -> Batch | None:
    """All rows as one batch on the device; None without data."""
    return None if data is None else whole(data.arrays())


def _kinks(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """(d,) rate 1/b and (d,) centre of each parameter's Laplace prior; the rate is 0 if it has another prior."""
    if model.prior_is_callable:
        return np.zeros(model.space.size), np.zeros(model.space.size)
    example = jax.eval_shape(model.space.unravel, jax.ShapeDtypeStruct((model.space.size,), jnp.result_type(float)))

    def spread(pick: str) -> np.ndarray:  # NumPy computes it, so nothing is compiled
        def leaf(d: PyTree, like: jax.ShapeDtypeStruct) -> np.ndarray:
            inner = base_of(d)
            if not isinstance(inner, dist.Laplace):
                return np.zeros(like.shape)
            parameter = inner.scale if pick == "rate" else inner.loc
            value = np.asarray(parameter, jnp.result_type(parameter))
            return np.broadcast_to(1 / value if pick == "rate" else value, like.shape)

        tree = jax.tree.map(leaf, model.prior, example, is_leaf=is_distribution)
        return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)]).astype(np.float64)

    return spread("rate"), spread("centre")


@compiled("model", "prior", "jacobian", if_few=COMPILE_FAST)
def total(
    model: Model, position: jax.Array, batch: Batch | None, prior: bool = True, jacobian: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The objective on the rows of a batch, and its gradient (d,)."""
    return jax.value_and_grad(_objective(model, batch, prior, jacobian))(position)


def total_of(
    model: Model, position: jax.Array | np.ndarray, data: Data | None, prior: bool = True, jacobian: bool = False
) -> tuple[float, np.ndarray]:
    """The objective on all rows, and its gradient (d,).

    Rows on file are read in parts, whose sums are added in double precision.
    """
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
    """(d, d) −∇² of the objective; many rows are summed in chunks, so that memory is bounded."""

    def hessian(value: Callable) -> jax.Array:
        gradient, size = jax.grad(value), position.size
        at_once = min(COLUMNS, size)
        # Padded to a multiple of ``at_once``: a remainder would need a second program.
        directions = jnp.eye(-(-size // at_once) * at_once, size)
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
    """(k, d) the derivative of the user's parameters with respect to the unconstrained position."""
    return jax.jacobian(model.values)(position)


def log_joint(model: Model, *, prior: bool = True, flat: bool = False) -> Objective:
    """The objective N/n Σ log p(y|θ) of maximum likelihood; with ``prior`` log p(θ) is added, for MAP estimation.

    The density is that of the *user's* parameters, without the Jacobian's log-determinant. So its maximum does not
    depend on the unconstrained parametrisation.
    """
    posterior = log_posterior(model, flat=flat, jacobian=False)

    def value(noise: PyTree, params: PyTree, batch: Batch | None) -> jax.Array:
        if prior or batch is None:
            return posterior(params, batch)
        theta = model.constrain(model.space.unravel(params) if flat else params)
        terms = model.log_likelihoods(theta, batch.data)
        return batch.scale * jnp.sum(batch.counted(terms))

    return Objective(lambda key, count, params: jnp.zeros((count, 0)), value)
