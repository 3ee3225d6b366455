"""Online EM: a running average of minibatches' statistics, and the θ that an M-step makes from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import schedules
from tractable.core.batches import Batch, Plan, narrow
from tractable.core.clock import work_time
from tractable.core.errors import DataError, ModelError, RunError
from tractable.core.latent import LatentModel
from tractable.core.model import Kernel, Model, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Count, between
from tractable.core.shards import Rows
from tractable.core.shared import compiled
from tractable.core.sums import EStep, Expected, MStep
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.maxima import agreement, curvature
from tractable.engine import run as loop
from tractable.engine.bound import has_settled
from tractable.engine.climb import Climber, climb
from tractable.engine.drawing import capacity, chain_keys
from tractable.engine.method import Check, Method, Outcome, Program, Session, not_finite, plan_batches
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.search import INFORMATION, standard_errors
from tractable.latent import em_method
from tractable.latent.em import expected, online_em


@dataclass(frozen=True, kw_only=True)
class OnlineEM(Method):
    """Online EM: a running average of minibatches' sufficient statistics, and the θ that an M-step makes from it.

        S ← (1 − γ_t) S + γ_t (N/n) s̄_t(θ),   θ ← m_step(S),   γ_t = (1 + t)^−κ

    It is for data of many rows: a few passes bring θ near the maximum, while EM takes one pass per step. A step may
    lower the objective. The result is the mean of θ, in unconstrained coordinates, over the last half of the run, which
    averages out the batches' noise (Polyak & Juditsky 1992). Cappé & Moulines 2009.

    Args:
        batch_size: rows per step.
        epochs: passes over the data; the number of steps is rounded up to whole groups, as compiled loops take them.
        step_exponent: κ in (1/2, 1].
        patience: number of batches before the first M-step: the statistics of few rows may have no maximum.
        average: False returns the last θ in place of the mean.
        starts: number of climbs from different starting points, all at once; the result is the end of the best climb.
        chunk: rows at a time in the exact E-steps at the end.
        prior: add log p(θ) to the objective; an M-step in closed form must maximise the same objective.

    It needs a ``LatentModel`` with closed-form ``e_step`` and ``m_step``. Data on file are read batch by batch and
    should be stored in random order. Two passes at the end compute the objective and the gain of one exact step.
    """

    label: ClassVar[str] = "online-em"
    point: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True
    batch_size: Count = 100
    epochs: Count = 10
    step_exponent: Annotated[float, between(0.5, 1, closed=True)] = 0.6
    patience: Count = 5
    average: bool = True
    starts: Count = 1
    chunk: Count = em_method.CHUNK
    prior: bool = True

    def log_prior(self, model: Any) -> Callable | None:
        """The log prior if it is part of the objective (``prior=True``), else None."""
        return model.log_prior if self.prior else None

    def schedule(self) -> Callable:
        """The step sizes γ_t."""
        return schedules.polynomial(1.0, 1.0, float(self.step_exponent))

    def needed(self, model: Model) -> LatentModel:
        latent = em_method.expect_latent_model(model, self)
        _halves(latent, None)
        return latent

    def learn(self, session: Session) -> Outcome:
        model, data = self.needed(session.model).climbed, session.data
        if data.total == 0:
            raise DataError("EM learns from rows: these data have none.")
        start_time = work_time()
        start_key, run_key = jax.random.split(session.key)
        offset = _offset(model, data)
        thetas = em_method.initial_thetas(model, data, start_key, self.starts)
        if offset is not None:
            thetas = jax.vmap(lambda theta: model.shifted(theta, -offset))(thetas)
        climb_time = work_time()
        ends, info, interrupted = run_epochs(self, model, session, thetas, offset, run_key)
        end_time = work_time()
        end, figures = _judge_ends(self, model, data, offset, ends)
        figures |= {"steps": info["objective"].shape[1], "evaluations": int(info["objective"].size)}
        figures["settled"] = has_settled(info["objective"])
        if data.resident and end.size <= INFORMATION and data.size * end.size**2 <= em_method.INFORMATION_WORK:
            centred = data
            if offset is not None:
                centred = Data(np.asarray(data.y) - np.asarray(offset), weights=data.weights, missing="keep")
            figures |= standard_errors(model, centred, end, self.prior)
        point = end
        if offset is not None:
            point = np.asarray(em_method.shift_point(model, jax.device_put(end), offset))
        seconds = {"starting": climb_time - start_time, "climbing": end_time - climb_time}
        seconds |= {"errors": work_time() - end_time}
        return Outcome(point_belief(point, info, figures), figures, seconds, interrupted)

    def checks(self, posterior: Learnt) -> list[Check]:
        figures, size = posterior.found, max(1, posterior.rows)
        gain = figures["gain to come"] / size
        verdict = "trust" if abs(gain) <= em_method.SAME else "caution" if abs(gain) <= em_method.FAR else "reject"
        steady = figures["settled"]
        trend = "0 if the noisy objective has no upward trend in the last half of the run; if it has, raise epochs="
        return [
            Check("gain to come", gain, verdict, "nats per datum, in one exact step of EM from the end"),
            Check("trend", float(not steady), "trust" if steady else "caution", trend),
            *agreement(figures, self.starts, f"{em_method.SAME:g} nats per datum", figures["agreement"] / size),
            *curvature(figures, ridge=math.inf),
            *em_method.model_checks(posterior),
        ]


class OnlineProgram(NamedTuple):
    """Online EM as a program that the engine's loop runs; its position is θ itself."""

    model: LatentModel
    method: OnlineEM
    streams: bool  # whether batches are read from file
    width: int  # rows of a batch
    structure: Any  # of the pytree of a batch's rows
    shapes: tuple  # (shape, dtype) of one row of each leaf
    size: int | float  # rows of all data
    placement: OneDevice = ONE_DEVICE  # of its batches' rows
    remedy: str = "Did a component lose its rows or variance? A floor, a prior, larger batches or patience= may help."

    @classmethod
    def of(cls, model: LatentModel, method: OnlineEM, data: Data, plan: Plan, placement: OneDevice) -> "OnlineProgram":
        leaves, structure = jax.tree.flatten(data.rows)
        shapes = tuple((leaf.shape[1:], str(jnp.asarray(leaf[:1]).dtype)) for leaf in leaves)
        return cls(model, method, not data.resident, plan.width, structure, shapes, narrow(data.size), placement)

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        offset = tuned.get("offset")
        leaves = [jax.ShapeDtypeStruct((self.width, *shape), dtype) for shape, dtype in self.shapes]
        mask = jax.ShapeDtypeStruct((self.width,), jnp.result_type(float))
        example: Any = Batch(jax.tree.unflatten(self.structure, leaves), mask, self.size)  # pyright: ignore[reportArgumentType]
        prior = _prior_of_centred(self.model, offset, self.method.log_prior(self.model))
        return online_em(
            *_halves(self.model, offset), self.method.schedule(), self.method.patience,
            example=example, log_prior=prior,
        )  # fmt: skip

    def observe(self, state: PyTree) -> jax.Array:
        return self.model.position_of(state.position)

    def values(self, position: jax.Array) -> jax.Array:
        """The values whose mean over steps is taken: the unconstrained position itself."""
        return position

    def weigh(self, info: dict[str, jax.Array]) -> None:
        """None, which stands for equal weights of all steps."""

    def describe(self, position: jax.Array) -> str:
        return not_finite(self.model, position)


def _offset(model: LatentModel, data: Data) -> jax.Array | None:
    """The rows' mean, to be subtracted from them; None if the model has no ``shift`` that undoes this.

    Far from 0, rounding errors in single precision are larger. The mean is rounded to single precision, so that it does
    not depend on the order of the rows.
    """
    if model.symmetry.shift is None or data.given is not None:
        return None
    y = data.y
    if not isinstance(y, Rows):
        return None
    total, count = np.zeros(y.shape[1:]), np.zeros(y.shape[1:])
    for start in range(0, data.size, em_method.CHUNK):
        part = np.asarray(y[start : start + em_method.CHUNK], np.float64)
        times = np.ones(len(part)) if data.weights is None else data.weights[start : start + em_method.CHUNK]
        times = times.reshape(-1, *[1] * (part.ndim - 1))
        total += np.nansum(times * part, axis=0)
        count += np.sum(times * ~np.isnan(part), axis=0)
    return jnp.asarray((total / np.where(count > 0, count, 1)).astype(np.float32), jnp.result_type(float))


def _halves(model: LatentModel, offset: jax.Array | None) -> tuple[EStep, MStep]:
    """E-step and M-step for rows minus the offset; raises ModelError unless both have a closed form."""
    if model.halves is None:
        raise ModelError(
            "OnlineEM averages statistics, which only a model with e_step and m_step in closed form has: give "
            "LatentModel statistics= and m_step=, or use EM or MAP(optimizer='adam', batch_size=...)."
        )
    e_step, m_step = model.halves
    if offset is None:
        return e_step, m_step

    def e_step_of_centred(theta: PyTree, batch: Batch) -> Expected:
        y = batch.data[0]
        return e_step(theta, batch._replace(data=(y - offset.astype(y.dtype), None)))

    return e_step_of_centred, m_step


def _prior_of_centred(model: LatentModel, offset: jax.Array | None, log_prior: Callable | None) -> Callable | None:
    """The log prior as a function of the θ of centred rows."""
    if offset is None or log_prior is None:
        return log_prior
    return lambda theta: log_prior(model.shifted(theta, offset))


def run_epochs(
    method: OnlineEM, model: LatentModel, session: Session, thetas: PyTree, offset: jax.Array | None, key: jax.Array
) -> tuple[np.ndarray, dict, bool]:
    """Run every start through its epochs: unconstrained end points (start, d), traces, and whether interrupted."""
    data, plan = session.data, plan_batches(method, session.data, method.batch_size)
    program = OnlineProgram.of(model, method, data, plan, session.placement)
    tuned = {} if offset is None else {"offset": offset}
    keys = chain_keys(key, method.starts)
    steps = method.epochs * plan.count
    shape = loop.shape(steps, 1, model.space.size, method.starts, moments=True)
    reading = Program(model, method, program.streams)
    shape = shape._replace(capacity=capacity(shape, session, reading, method.starts))
    groups = -(-steps // shape.group)
    alone = program._replace(placement=ONE_DEVICE)
    at, interrupted = climb(
        Climber(session, "climbing", program, shape, plan, keys), tuned,
        lambda: loop.begin(alone, tuned, None, keys, thetas), [groups // 2, groups] if groups > 1 else [groups],
    )  # fmt: skip
    last = np.asarray(_positions(model, at.states.position))
    if method.average and at.moments is not None and not interrupted:
        last = np.asarray(at.moments.mean)
    return last, at.info, interrupted


@compiled("model")
def _positions(model: LatentModel, thetas: PyTree) -> jax.Array:
    """The starts' θ as unconstrained numbers, (start, d)."""
    return jax.vmap(model.position_of)(thetas)


@compiled("model")
def _params(model: LatentModel, position: jax.Array) -> PyTree:
    return model.params(position)


@compiled("model")
def _m_step(model: LatentModel, offset: jax.Array | None, statistics: PyTree) -> PyTree:
    return _halves(model, offset)[1](statistics)


def _judge_ends(
    method: OnlineEM, model: LatentModel, data: Data, offset: jax.Array | None, ends: np.ndarray
) -> tuple[np.ndarray, dict]:
    """The best end point (d,), for centred rows, and numbers for the report, such as its objective on all rows."""
    e_step, _ = _halves(model, offset)
    prior = _prior_of_centred(model, offset, method.log_prior(model))
    if not np.any(np.all(np.isfinite(ends), axis=1)):
        raise RunError("No climb of OnlineEM ended at finite numbers. Try larger batches, more patience, or a prior.")

    def objective_and_statistics(theta: PyTree) -> tuple[float, PyTree]:
        sums = expected(e_step, theta, data, method.chunk)
        return float(sums.log_likelihood) + (0.0 if prior is None else float(prior(theta))), sums.statistics

    dtype = jnp.result_type(float)
    thetas = [_params(model, jnp.asarray(end, dtype)) for end in ends]
    passes = [objective_and_statistics(theta) for theta in thetas]
    values = np.array([value for value, _ in passes])
    best = int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))
    theta = thetas[best]
    improved = _m_step(model, offset, passes[best][1])
    improved = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), improved, theta)
    finite = values[np.isfinite(values)]
    figures = {
        "objective": float(values[best]),
        "gain to come": objective_and_statistics(improved)[0] - float(values[best]),
        "agreement": float(values[best] - finite.min()) if finite.size else math.nan,
        "starts that agree": int(np.sum(np.isfinite(values) & (values >= values[best] - em_method.SAME * data.total))),
    }
    return ends[best], figures
