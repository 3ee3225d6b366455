"""The unknown as a point: maximum likelihood and maximum a posteriori."""

import functools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax

from tractable import run as loop
from tractable.beliefs.belief import Point
from tractable.core import Kernel, Model, Objective, is_distribution, log_posterior, whole
from tractable.data.rows import Batch, Data, Plan
from tractable.kernels.ascend import ascend
from tractable.kernels.em import Expected, accumulate
from tractable.methods.drawing import chain_keys, starts
from tractable.methods.method import Check, Method, Optimiser, Outcome, Program, Session, plan_batches
from tractable.methods.stretches import Journal, stretched
from tractable.objectives.elbo import log_joint
from tractable.tools.errors import ModelError, TractableWarning
from tractable.tools.settings import Count, Positive

PyTree = Any
INFORMATION = 1000  # parameters up to which standard errors are computed
CURVED = 1 << 13  # rows whose curvature is looked at at once
CLIMB_BYTES = 1 << 30  # of data that a climb to a start looks at


class Maximum(NamedTuple):
    """Where a climb ended."""

    position: np.ndarray  # (d,) unconstrained
    value: float
    slope: float  # largest component of the gradient, of a smooth objective's own or its subgradient
    evaluations: int
    gradient: np.ndarray


@dataclass(frozen=True, kw_only=True)
class MAP(Method):
    """Maximum a posteriori: argmax_θ log p(θ) + Σ log p(y_n|θ), a density of the *user's* θ.

    Args:
        optimizer: "lbfgs" (all rows at every step; exact zeros under Laplace priors), or an optax optimiser or
            "adam", which climb on minibatches where ``batch_size`` is given.
        steps: iterations at most.
        batch_size: rows a step for optax optimisers; None takes all.
        tolerance: of the gradient's largest component, a datum.
        starts: climbs from random starts; the best is kept and the report says whether they agree.

    Reports standard errors from the observed information where there are at most 1000 parameters. A maximum
    does not know its own width otherwise: use it as a start or where N is far above the number of parameters.
    """

    label: ClassVar[str] = "map"
    point: ClassVar[bool] = True
    prior: ClassVar[bool] = True
    optimizer: Literal["lbfgs", "adam"] | Optimiser = "lbfgs"
    steps: Count = 2000
    batch_size: Count | None = None
    tolerance: Positive = 1e-6
    starts: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        good = self.batch_size is None or self.optimizer != "lbfgs"
        self.check(good, "batch_size", "None with 'lbfgs', whose line search needs all rows")

    @property
    def minibatch(self) -> bool:
        return self.batch_size is not None

    def plan(self, data: Data | None) -> Plan | None:
        return None if self.batch_size is None else plan_batches(self, data, self.batch_size)

    def objective(self, model: Model) -> Objective:
        """What is climbed."""
        return log_joint(model, prior=self.prior, flat=True)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        objective = self.objective(model)
        if self.batch_size is None:
            value, batch = objective.value, None if rows is None else whole(rows)
            objective = objective._replace(value=lambda noise, params, _: value(noise, params, batch))
        optimizer = self.optimizer
        if isinstance(optimizer, str):
            optimizer = optax.adam(optax.cosine_decay_schedule(0.05, self.steps))
        return ascend(objective, optimizer)

    def learn(self, session: Session) -> Outcome:
        model, data = session.model, session.data
        if not self.prior and model.likelihood is None:
            raise ModelError("MLE needs a likelihood; a log density alone has a MAP.")
        began = time.perf_counter()
        positions = starts(model, data, session.key, self.starts)
        if self.optimizer == "lbfgs":
            found, info, interrupted = self.searched(session, positions, prior=self.prior), {}, session.stop()
        else:
            found, info, interrupted = self._climb(session, positions)
        best = max(found, key=lambda m: m.value if np.isfinite(m.value) else -np.inf)
        if not np.all(np.isfinite(best.position)):
            raise ModelError(f"The climb from {self.starts} starts left the finite numbers; is the density bounded?")
        chosen = {
            "objective": best.value,
            "slope": best.slope,
            "evaluations": sum(m.evaluations for m in found),
            "agreement": float(max(best.value - m.value for m in found)),
        }
        chosen |= standard_errors(model, data, best.position, self.prior)
        seconds = {"climbing": time.perf_counter() - began}
        return Outcome(point(best.position, info, chosen), chosen, seconds, interrupted)

    def searched(self, session: Session, positions: jax.Array, **options: bool) -> list[Maximum]:
        """The maxima that L-BFGS finds from every position, saved as it goes."""
        journal = Journal(session, "climbing", len(positions) * self.steps)
        found = [
            maximum(
                session.model, session.data, position, steps=self.steps, tolerance=self.tolerance, stop=session.stop,
                journal=journal, **options,
            )
            for position in positions
        ]  # fmt: skip
        journal.close()
        return found

    def _climb(self, session: Session, positions: jax.Array) -> tuple[list[Maximum], dict, bool]:
        model, data, plan = session.model, session.data, self.plan(session.data)
        program = Program(model, self, plan is not None and not data.resident)
        keys = chain_keys(session.key, self.starts)
        rows = None if data is None or plan is not None else data.arrays()
        shape = loop.shape(self.steps, 1, model.space.size, self.starts)
        at, interrupted = stretched(
            session, "climbing", program, shape, data, plan, None, keys,
            lambda: loop.begin(program, None, rows, keys, positions), [-(-self.steps // shape.group)],
        )  # fmt: skip
        found = []
        for position in at.states.position:
            value, gradient = _total(model, position, None if data is None else whole_of(data), self.prior)
            slope = float(jnp.max(jnp.abs(gradient)))
            found.append(Maximum(np.asarray(position), float(value), slope, self.steps, np.asarray(gradient)))
        return found, at.info, interrupted

    def climb_all(self, session: Session) -> np.ndarray:
        """(start, d) where an optax optimiser's climbs end, from starts of the session's key."""
        positions = starts(session.model, session.data, session.key, self.starts)
        return np.stack([found.position for found in self._climb(session, positions)[0]])

    def checks(self, posterior: Any) -> list[Check]:
        found, size = posterior.found, max(1, posterior.rows)
        slope = found["slope"] / size
        # A stochastic climb stops within its noise, and float32 sums carry only so many digits.
        tolerance = self.tolerance * (100 if self.optimizer != "lbfgs" else 1)
        if jnp.result_type(float) == jnp.float32:
            tolerance = max(tolerance, 1e-5)
        verdict = "trust" if slope <= tolerance else "caution" if slope <= 1e3 * tolerance else "reject"
        out = [Check("gradient", slope, verdict, "largest component of the gradient a datum; 0 at a maximum")]
        if "eigenvalue" in found:
            # Rounding cannot tell a flat ridge (collinear columns) from a slight saddle; a clear one it can.
            ridge = found.get("condition", -1.0) > -1e-6
            verdict = "trust" if found["eigenvalue"] > 0 else "caution" if ridge else "reject"
            out.append(
                Check(
                    "curvature", found["eigenvalue"], verdict,
                    "smallest eigenvalue of the observed information; above 0 at a proper maximum",
                )
            )  # fmt: skip
        if self.starts > 1:
            agreement = found["agreement"]
            good = agreement <= 1e-3 * max(1.0, abs(found["objective"]) * 1e-3)
            out.append(
                Check("starts", agreement, "trust" if good else "caution", "gap in nats between best and worst start")
            )
        return out


@dataclass(frozen=True, kw_only=True)
class MLE(MAP):
    """Maximum likelihood: argmax_θ Σ log p(y_n|θ). The prior only says what the parameters are and where they live.

    Args: as for MAP.
    """

    label: ClassVar[str] = "mle"
    prior: ClassVar[bool] = False


def point(position: np.ndarray, info: dict[str, np.ndarray], found: dict[str, Any]) -> Point:
    """A maximum, with the standard errors that were found there."""
    return Point(position=position, info=info, covariance=found.get("covariance"), information=found.get("information"))


def maximum(
    model: Model,
    data: Data | None,
    start: jax.Array,
    prior: bool = True,
    steps: int = 2000,
    tolerance: float = 1e-6,
    jacobian: bool = False,
    stop: Callable[[], bool] = lambda: False,
    journal: Callable = lambda ask: ask(),
) -> Maximum:
    """The maximum reached from ``start`` by L-BFGS and, where there are few parameters, Newton's steps.

    Laplace priors have a kink at their centre. There w is split into centre + u − v with u, v ≥ 0, which makes
    the objective smooth and its zeros exact.

    Args:
        jacobian: climb the density of the unconstrained position instead of the user's parameters.
        stop: asked after every iteration; true ends the climb where it is.
        journal: is handed every evaluation, and may know its answer.
    """
    batch = whole_of(data) if data is not None else None
    split = _split(model, prior)

    def smooth(position: np.ndarray) -> tuple[float, np.ndarray]:
        def ask() -> tuple[float, np.ndarray]:
            value, gradient = _total(model, jnp.asarray(position, start.dtype), batch, prior, jacobian)
            return float(value), np.asarray(gradient, np.float64)

        return split.without_kinks(position, *journal(ask))

    def downhill(extended: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = split.with_parts(extended, *smooth(split.joined(extended)))
        return (-value, -gradient) if np.isfinite(value) else (1e300, np.zeros_like(gradient))

    def look(_: np.ndarray) -> None:
        if stop():
            raise StopIteration

    import scipy.optimize

    extended, bounds = split.opened(np.asarray(start, np.float64))
    rows = 1 if data is None else max(data.size, 1)
    result = scipy.optimize.minimize(
        downhill, extended, jac=True, method="L-BFGS-B", bounds=bounds, callback=look,
        options={"maxiter": steps, "maxfun": 4 * steps, "ftol": 1e-15, "gtol": tolerance * rows * 1e-2, "maxcor": 20},
    )  # fmt: skip
    position, evaluations = split.joined(result.x), int(result.nfev)
    if not len(split.index) and len(start) <= INFORMATION and np.all(np.isfinite(position)):
        position, extra = _polish(model, batch, position, prior, jacobian, start.dtype)
        evaluations += extra
    value, gradient = split.with_kinks(position, *smooth(position))
    return Maximum(position, value, float(np.abs(gradient).max()), evaluations, gradient)


class _Split(NamedTuple):
    """Numbers under Laplace priors as centre + u − v with u, v ≥ 0, in an extended position (θ with u for them, v)."""

    size: int  # d
    index: np.ndarray  # (m,) of the numbers which are split
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

    def joined(self, extended: np.ndarray) -> np.ndarray:
        """The position (d,) of an extended one."""
        position = extended[: self.size].copy()
        position[self.index] = self.centre + extended[self.index] - extended[self.size :]
        return position

    def without_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (d,) but for −rate |w − centre|, whose slope at its kink is what differentiation says."""
        away = position[self.index] - self.centre
        pull = _added(gradient, self.index, self.rate * np.where(away == 0, _slope_of_kink(), np.sign(away)))
        return value + float(self.rate @ np.abs(away)), pull

    def with_parts(self, extended: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient (d + m,) with −rate (u + v), from those without the kinks."""
        value -= float(self.rate @ (extended[self.index] + extended[self.size :]))
        return value, np.concatenate([_added(gradient, self.index, -self.rate), -gradient[self.index] - self.rate])

    def with_kinks(self, position: np.ndarray, value: float, gradient: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and least subgradient (d,), from those without the kinks."""
        away, slope = position[self.index] - self.centre, gradient[self.index]
        # At a kink the rate takes up what it can.
        beyond = np.sign(slope) * np.maximum(np.abs(slope) - self.rate, 0)
        whole = gradient.copy()
        whole[self.index] = np.where(away == 0, beyond, slope - self.rate * np.sign(away))
        return value - float(self.rate @ np.abs(away)), whole


@functools.cache
def _slope_of_kink() -> float:
    """That of |w| at 0, as the Laplace density is differentiated: any number of [−1, 1] would do, if it is known."""
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
    """Newton's steps while they climb: L-BFGS ends where the line search can no longer tell values apart."""
    value, gradient = _total(model, jnp.asarray(position, dtype), batch, prior, jacobian)
    evaluations = 1
    for _ in range(4):
        hessian = np.asarray(_curvature(model, jnp.asarray(position, dtype), batch, prior, jacobian), np.float64)
        try:
            step = np.linalg.solve(hessian, np.asarray(gradient, np.float64))
        except np.linalg.LinAlgError:
            break
        proposed = position + step
        new_value, new_gradient = _total(model, jnp.asarray(proposed, dtype), batch, prior, jacobian)
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
    batch = None if data is None else whole_of(data)
    where = jnp.asarray(position, jnp.result_type(float))
    information = np.asarray(_curvature(model, where, batch, prior, False), np.float64)
    if not np.all(np.isfinite(information)):
        return {"eigenvalue": float("nan")}
    # A parameter held at a Laplace prior's kink has no standard error, and is no direction of the maximum.
    rate, centre = _kinks(model) if prior else (np.zeros(len(position)), np.zeros(len(position)))
    free = np.flatnonzero((rate == 0) | (position != centre))
    block = information[np.ix_(free, free)]
    values = np.linalg.eigvalsh(block) if len(free) else np.ones(1)
    out: dict[str, Any] = {"eigenvalue": float(values.min()), "condition": float(values.min() / values.max())}
    if values.min() > 0:
        inverse = np.full_like(information, np.nan)
        inverse[np.ix_(free, free)] = np.linalg.inv(block)
        slope = np.asarray(_constrain_jacobian(model, where), np.float64)  # (k, d)
        if len(free) == len(position):
            out["covariance"] = slope @ inverse @ slope.T
        else:  # Laplace priors live on the reals: only what moves is carried through
            held = np.setdiff1d(np.arange(len(position)), free)
            out["covariance"] = slope[:, free] @ inverse[np.ix_(free, free)] @ slope[:, free].T
            out["covariance"][np.any(slope[:, held] != 0, axis=1)] = np.nan
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
    """The mode of the unconstrained density climbed to from every position, (chain, d); may hold non-finite numbers.

    By all rows, or by a first part of data that are large or on file.
    """
    model, data = session.model, session.data
    if data is not None and (not data.resident or data.nbytes > CLIMB_BYTES):
        data = data.take(slice(0, max(1, int(data.size * min(1.0, CLIMB_BYTES / data.nbytes) / 8))))
    out = []
    for done, position in enumerate(positions):
        session.say("climbing", done, len(positions))
        out.append(maximum(model, data, position, steps=500, tolerance=1e-4, jacobian=True, stop=session.stop).position)
    session.say("climbing", len(positions), len(positions))
    return np.stack(out)


def laplace_root(model: Model, data: Data | None, mode: np.ndarray) -> np.ndarray | None:
    """L with L Lᵀ the inverse curvature of the unconstrained log density at a mode; None where it has none."""
    batch = None if data is None else whole_of(data)
    curvature = np.asarray(_curvature(model, jnp.asarray(mode, jnp.result_type(float)), batch, True, True), np.float64)
    if not np.all(np.isfinite(curvature)):
        return None
    values, basis = np.linalg.eigh(curvature)
    if values.min() <= 1e-8 * values.max():
        return None
    return np.linalg.cholesky((basis / values) @ basis.T)


def whole_of(data: Data) -> Batch:
    """All rows as one batch on the device."""
    return whole(data.arrays())


def _kinks(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Rate 1/b and centre of every Laplace prior, laid out flat; rate 0 elsewhere."""
    if model.prior_is_callable:
        return np.zeros(model.space.size), np.zeros(model.space.size)
    example = model.space.unravel(jnp.zeros(model.space.size))

    def spread(pick: str):
        def leaf(d: Any, like: jax.Array) -> jax.Array:
            inner: Any = d
            while isinstance(inner, dist.Independent | dist.ExpandedDistribution):
                inner = inner.base_dist
            if not isinstance(inner, dist.Laplace):
                return jnp.zeros_like(like)
            value = 1 / jnp.asarray(inner.scale) if pick == "rate" else jnp.asarray(inner.loc)
            return jnp.broadcast_to(value, jnp.shape(like))

        tree = jax.tree.map(leaf, model.prior, example, is_leaf=is_distribution)
        return np.asarray(model.space.ravel(tree), np.float64)

    return spread("rate"), spread("centre")


@functools.partial(jax.jit, static_argnames=("model", "prior", "jacobian"))
def _total(model: Model, position: jax.Array, batch: Batch | None, prior: bool = True, jacobian: bool = False) -> Any:
    return jax.value_and_grad(_objective(model, batch, prior, jacobian))(position)


@functools.partial(jax.jit, static_argnames=("model", "prior", "jacobian"))
def _curvature(model: Model, position: jax.Array, batch: Batch | None, prior: bool, jacobian: bool) -> jax.Array:
    """−∇² of the objective; of many rows by chunks, in bounded memory."""

    def hessian(value: Callable) -> jax.Array:
        gradient = jax.grad(value)
        return jax.lax.map(lambda e: jax.jvp(gradient, (position,), (e,))[1], jnp.eye(position.size), batch_size=16)

    if batch is None or batch.mask.shape[0] <= CURVED:
        columns = hessian(_objective(model, batch, prior, jacobian))
        return -(columns + columns.T) / 2

    def part(_: jax.Array, some: Batch) -> Expected:
        def likelihood(position: jax.Array) -> jax.Array:
            terms = model.log_likelihoods(model.constrain(model.space.unravel(position)), some.data)
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


@functools.partial(jax.jit, static_argnames="model")
def _constrain_jacobian(model: Model, position: jax.Array) -> jax.Array:
    def constrained(position: jax.Array) -> jax.Array:
        params = model.constrain(model.space.unravel(position))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

    return jax.jacobian(constrained)(position)
