"""Expectation–maximisation: a point θ that maximises the likelihood with z summed out."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.clock import work_time
from tractable.core.errors import DataError, ModelError, RunError, TractableWarning
from tractable.core.latent import LatentModel, latent_model
from tractable.core.model import Kernel, Model, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Count, Positive
from tractable.core.shared import compiled
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.maxima import agreement, curvature
from tractable.engine.drawing import chain_keys, starts
from tractable.engine.method import Check, Method, Optimiser, Outcome, Session
from tractable.engine.search import INFORMATION, standard_errors
from tractable.latent.em import chunked, em
from tractable.latent.em_climb import FALLEN, ROUNDING, Reached, SavedAttempts, climb, with_retries  # fmt: skip
from tractable.latent.gradient_em import by_enumeration, expected_log_joint, gradient_m_step

CHUNK = 1 << 14  # rows at a time in an E-step
START_ROWS = 10_000  # if data are on file, about so many of their rows are read to make a starting point
CONDITION = 1e10  # condition number up to which the inverse of an information matrix is trusted
RETRIES = 2  # how often starts that end with a collapsed component are tried again (docs/decisions/039)
SAME = 1e-3  # nats (natural logarithms) per datum within which two maxima count as one
FAR = 1e-2  # nats per datum; if one more step at the end gains more, the result is rejected
FALL = {"float32": 1e-5, "float64": 1e-10}  # a fall by less than this share of the objective is a rounding error
INFORMATION_WORK = 1 << 31  # largest product rows × parameters² for which standard errors are computed


@dataclass(frozen=True, kw_only=True)
class EM(Method):
    """Expectation–maximisation: a maximum of log p(θ) + Σ log p(x_n | θ), z summed out at every step.

        E:  S = Σ_n E[T(x_n, z) | x_n, θ]        M:  θ' = argmax Q(·; S)

    No step lowers the objective. Near a maximum, a step multiplies the distance to it by up to the share of information
    that z hides, so EM is slow where components overlap. It finds a local maximum, so it climbs from several starts,
    all in one compiled program.

    Args:
        starts: number of climbs, each from another starting point; the result is the end of the best climb, and the
            report says whether the climbs agree.
        steps: largest number of steps of a climb.
        tolerance: the climb ends when the gain still to come, by Aitken's extrapolation of the last gains, is below
            this share of the objective twice in a row.
        chunk: rows at a time in an E-step; memory besides the data is O(starts · chunk).
        optimizer: for an M-step without closed form: "lbfgs", or an optax optimiser, reset at every M-step. A step
            that would lower Q is rejected and the next one is half as long, so that the objective never falls. The
            report says how much an M-step by L-BFGS would add at the end.
        inner: the optimiser's steps in one M-step.
        prior: add log p(θ) to the objective; False climbs the likelihood alone. An M-step in closed form must maximise
            the same objective.
        errors: compute standard errors at the end, which takes as many gradients as θ has entries.

    It needs a ``LatentModel``. Standard errors come from the observed information, which is that of the complete data
    minus the part that z hides (Louis 1982). Each step reads data on file once.
    """

    label: ClassVar[str] = "em"
    point: ClassVar[bool] = True
    sums_rows: ClassVar[bool] = True
    starts: Count = 4
    steps: Count = 1000
    tolerance: Positive = 1e-6
    chunk: Count = CHUNK
    inner: Count = 10
    optimizer: Literal["lbfgs"] | Optimiser = "lbfgs"
    prior: bool = True
    errors: bool = True

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        e_step, m_step = self.halves(expect_latent_model(model, self))
        return em(chunked(e_step, self.chunk) if self.exact(model) else e_step, m_step, self.log_prior(model))

    def needed(self, model: Model) -> Any:
        """The model; raises ModelError where this method cannot learn it."""
        model = expect_latent_model(model, self)
        self.halves(model)
        return model

    def exact(self, model: Any) -> bool:
        """Whether E-step and M-step have closed forms with additive statistics."""
        return model.halves is not None

    def begin(self, model: Any, data: Data, key: jax.Array) -> PyTree:
        """The starting θ, with a leading axis of starts."""
        return initial_thetas(model, data, key, self.starts)

    def log_prior(self, model: Any) -> Callable | None:
        """The log prior if it is part of the objective (``prior=True``), else None."""
        return model.log_prior if self.prior else None

    def halves(self, model: LatentModel) -> tuple[Callable, Callable]:
        """E-step and M-step: the model's own, or an E-step that enumerates z and an M-step by gradient."""
        if model.halves is not None:
            return model.halves
        prior, steps, sums = self.log_prior(model), (self.inner, self.optimizer), model.sums
        if sums is None or sums.responsibilities is None or sums.causes is None:
            raise ModelError(
                f"{type(self).__name__} sums over z, but this model's z takes too many values or has no E-step: use "
                "MonteCarloEM, which draws z, or give the model an e_step in closed form (LatentModel.from_steps)."
            )
        q = functools.partial(expected_log_joint, model.log_joint)
        m_step = gradient_m_step(q, prior, model.params, model.position_of, *steps)
        return by_enumeration(sums.log_prob, sums.responsibilities, sums.causes), m_step

    def climb(self, session: Session) -> tuple[Any, Data, Any, Reached, dict[str, float]]:
        """The model, its rows, the mean subtracted from them (or None), the climbs' end points, and the time taken."""
        model = self.needed(session.model).climbed
        data, offset = subtract_mean(model, session.data)
        session = session._replace(data=data)
        start_time = work_time()
        thetas = self.begin(model, data, session.key)
        climb_time = work_time()
        if not data.resident and not self.exact(model):
            raise DataError("An M-step by gradient needs all rows in memory; these are on file. Give an m_step.")
        attempts, bad = SavedAttempts(session, thetas), np.zeros(0, bool)
        while True:
            reached = attempts.earlier
            if reached is not None:
                # From an unlucky start a component may collapse: such starts are tried again.
                bad = ~is_sound(model, reached, data.total)
                thetas = self.begin(model, data, jax.random.fold_in(session.key, attempts.count))
            again = climb(self, model, session, thetas, attempts)
            if reached is not None:
                again = with_retries(reached, again, bad & is_sound(model, again, data.total))
            reached = again
            if reached.interrupted or attempts.count == RETRIES or is_sound(model, reached, data.total).all():
                break
            attempts.again(reached)
        seconds = {"starting": climb_time - start_time, "climbing": work_time() - climb_time}
        return model, data, offset, reached, seconds

    def learn(self, session: Session) -> Outcome:
        model, data, offset, reached, seconds = self.climb(session)
        end_time = work_time()
        point, info, figures = conclude(self, model, data, reached)
        if not reached.interrupted and not self.exact(model) and self.optimizer != "lbfgs":
            value = self._objective_after_lbfgs(model, session._replace(data=data), point)
            figures["L-BFGS adds"] = value - figures["objective"]
        if offset is not None:
            point = np.asarray(shift_point(model, jnp.asarray(point), offset))
        seconds |= {"errors": work_time() - end_time}
        return Outcome(point_belief(point, info, figures), figures, seconds, reached.interrupted)

    def _objective_after_lbfgs(self, model: Any, session: Session, point: np.ndarray) -> float:
        """The objective, in nats, after one M-step by L-BFGS from a point."""
        theta = model.params(jnp.asarray(point))
        judge = dataclasses.replace(self, optimizer="lbfgs", steps=1)
        one = jax.tree.map(lambda a: a[None], theta)
        session = session.alone()
        return float(climb(judge, model, session, one, SavedAttempts(session, one)).objective[0])

    def checks(self, posterior: Learnt) -> list[Check]:
        figures = posterior.found
        size, out = figures.get("observations", max(1, posterior.rows)), []
        datum = "per observation" if "observations" in figures else "per datum"
        if "L-BFGS adds" in figures:
            remainder = figures["L-BFGS adds"] / size
            verdict = "trust" if remainder <= SAME else "caution" if remainder <= FAR else "reject"
            idle = figures["M-steps without gain"]
            refused = f"; in {idle} of {figures['steps']} M-steps, all steps would have lowered Q" if idle else ""
            sentence = f"nats per datum that one M-step by L-BFGS adds at the optimiser's end point{refused}"
            out.append(Check("L-BFGS adds", remainder, verdict, sentence))
        to_come = figures["to come"] / size
        limit = self.tolerance * abs(figures["objective"]) / size
        # The extrapolation is a guess from few gains, so ten times the limit is still trusted.
        verdict = "trust" if to_come <= 10 * limit else "caution"
        out.append(Check("gain to come", to_come, verdict, f"nats {datum}, extrapolated from the last gains"))
        fall, scale = figures["fall"], max(1.0, abs(figures["objective"]))
        is_rounding = fall <= FALL[str(jnp.result_type(float))] * scale
        sentence = "nats lost in one step; EM loses none unless a floor binds or an M-step misses its maximum"
        out.append(Check("largest fall", fall, "trust" if is_rounding else "caution", sentence))
        own, least = model_checks(posterior), figures.get("eigenvalue", math.nan)
        sentence = "smallest eigenvalue of the observed information; above 0 at a proper maximum"
        sentence += "" if least > 0 else "; where it is not, there are no standard errors"
        out += agreement(figures, self.starts, f"{SAME:g} nats {datum}", figures["agreement"] / size)
        out += curvature(figures, math.inf if any(c.verdict != "trust" for c in own) else 1e-6, sentence)
        if least > 0:
            condition = 1 / figures["condition"]
            verdict = "trust" if condition < CONDITION else "caution"
            flat = "condition number of the information matrix; large where the objective is almost flat"
            out.append(Check("condition", condition, verdict, flat))
        return out + own


def expect_latent_model(model: Model, method: Method) -> LatentModel:
    """The model as a LatentModel; raises ModelError if it has no z."""
    latent = latent_model(model)
    if latent is not None:
        return latent
    raise ModelError(
        f"{type(method).__name__} learns a LatentModel, in which every datum has a latent z; this model has no "
        "such z. Use MAP, or tr.LatentModel(prior, latent, likelihood)."
    )


def subtract_mean(model: LatentModel, data: Data) -> tuple[Data, Any]:
    """Rows in memory minus their mean, and the mean, if the model's ``shift`` can undo this; else the rows and None."""
    if data.total == 0:
        raise DataError("EM learns from rows: these data have none.")
    if model.symmetry.shift is None or not data.resident or data.given is not None:
        return data, None
    y = np.asarray(data.y)
    offset = np.nanmean(y, axis=0, dtype=np.float64)
    if data.weights is not None:
        offset = np.asarray(np.ma.average(np.ma.masked_invalid(y.astype(np.float64)), 0, data.weights))
    dtype = jnp.result_type(float)
    centred = Data((y - offset).astype(dtype), weights=data.weights, missing=data.missing)
    return centred, jnp.asarray(offset, dtype)


def initial_thetas(model: LatentModel, data: Data, key: jax.Array, count: int) -> PyTree:
    """The starting θ, with a leading axis of starts: by the model's own rule, or drawn from its prior."""
    if model.steps.begin is None:
        if model.prior_is_callable or model.start is not None:
            positions = starts(model, data, key, count)
            return jax.vmap(model.params)(positions)
        # A draw from the prior is a likely θ; points near the origin of the unconstrained space need not be likely.
        return _from_prior(model, chain_keys(key, count))
    return starting_points(model.steps.begin, data, key, count)


@compiled("model")
def _from_prior(model: LatentModel, keys: jax.Array) -> PyTree:
    return jax.vmap(model.sample_prior)(keys)


def starting_points(begin: Callable[[jax.Array, PyTree], PyTree], data: Data, key: jax.Array, count: int) -> PyTree:
    """The results of ``begin`` for ``count`` keys, with a leading axis of starts; it gets a sample of rows on file."""
    sample = data if data.resident else data.take(slice(0, None, max(1, data.size // START_ROWS)))
    rows = jax.tree.map(np.asarray, sample.equally_counted().rows)
    rows = rows[0] if rows[1] is None else rows
    thetas = [begin(k, rows) for k in chain_keys(key, count)]
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]), dtype), *thetas)


def conclude(method: EM, model: LatentModel, data: Data, reached: Reached) -> tuple[np.ndarray, dict, dict]:
    """The end point of the best climb, the traces, and numbers for the report."""
    flat = np.asarray(_positions(model, reached.theta))
    inside = np.all(np.isfinite(flat), axis=1)
    best, figures = choose_best(reached._replace(objective=np.where(inside, reached.objective, -np.inf)), model, data)
    point = flat[best]
    size = model.observations(data) or data.size
    if method.errors and len(point) <= INFORMATION and size * len(point) ** 2 <= INFORMATION_WORK:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TractableWarning)  # the report says the same
            figures |= standard_errors(model, data, point, method.prior)
    return point, {"objective": reached.trace}, figures


@compiled("model")
def _positions(model: LatentModel, thetas: PyTree) -> jax.Array:
    """The climbs' θ as unconstrained numbers (start, d). Among equal maxima, the model's ``canonical`` picks the θ."""
    canonical = model.symmetry.canonical
    return jax.vmap(model.position_of)(thetas if canonical is None else jax.vmap(canonical)(thetas))


@compiled("model")
def shift_point(model: LatentModel, point: jax.Array, offset: jax.Array) -> jax.Array:
    """The point (d,) of the θ that gives rows plus ``offset`` the density that ``point`` gives the rows."""
    return model.position_of(model.shifted(model.params(point), offset))


def choose_best(reached: Reached, model: Any, data: Data) -> tuple[int, dict[str, Any]]:
    """The index of the best climb, and numbers for the report."""
    values = np.where(np.isfinite(reached.objective), reached.objective, -np.inf)
    if not np.any(np.isfinite(values)):
        _expect_finite(data)
        raise RunError(
            f"None of {len(values)} climbs stayed finite. Is the likelihood bounded? A floor, a "
            "prior, or fewer components may bound it."
        )
    best = int(np.argmax(values))
    is_valid = is_sound(model, reached, data.total) & np.isfinite(values)
    if is_valid.any():  # a collapsed component must not win
        best = int(np.argmax(np.where(is_valid, values, -np.inf)))
    trace = reached.trace[best][np.isfinite(reached.trace[best])]
    gains = np.diff(np.append(trace, values[best]))
    observations = model.observations(data)
    limit = values[best] - SAME * (data.total if observations is None else observations)
    agrees = np.isfinite(values) & (values >= limit) & is_valid
    figures = ({} if observations is None else {"observations": observations}) | {
        "objective": float(values[best]),
        "evaluations": int(np.sum(np.isfinite(reached.trace))),
        "steps": len(trace),
        "agreement": float(values[best] - np.min(values[np.isfinite(values)])),
        "starts that agree": int(np.sum(agrees)),
        "degenerate starts": int(np.sum(~is_valid)),
        "fall": float(max(0.0, -gains.min(initial=0.0))),
        "M-steps without gain": int(np.sum(gains == 0)),
        "to come": _gain_to_come(gains, values[best], data.total),
    }
    return best, figures


def model_checks(posterior: Learnt) -> list[Check]:
    """The model's own checks of a maximum."""
    model = latent_model(posterior.model)
    return [] if model is None else model.examine(posterior.mean(), math.ceil(posterior.rows))


def _gain_to_come(gains: np.ndarray, objective: float, size: int | float) -> float:
    """Nats still to come, by Aitken's extrapolation of the last two gains; 0 if the last gain is a rounding error."""
    if len(gains) < 2:
        return math.inf if len(gains) else 0.0
    before, last = gains[-2:]
    digit = float(jnp.finfo(jnp.result_type(float)).eps) * max(1.0, abs(objective), size)
    if abs(last) <= (FALLEN if min(before, last) < 0 else ROUNDING) * digit:
        return 0.0
    rate = float(np.clip(last / before, 0, 0.999)) if before > 0 else 0.999
    return float(abs(last) * rate / (1 - rate))


def is_sound(model: LatentModel, reached: Reached, size: int | float) -> np.ndarray:
    """Whether the model's own checks accept each climb's end point, (start,)."""
    count = len(reached.objective)
    if model.steps.examine is None:
        return np.ones(count, bool)
    thetas = jax.tree.map(np.asarray, reached.theta)
    ends = [jax.tree.map(lambda a, i=i: a[i], thetas) for i in range(count)]
    return np.array([all(check.verdict != "reject" for check in model.examine(end, math.ceil(size))) for end in ends])


def _expect_finite(data: Data) -> None:
    """Raise a DataError about the first row with a number that is not finite, if there is such a row."""
    for name, part in (("y", data.y), ("given", data.given)):
        for leaf in jax.tree.leaves(part):
            bad = ~np.isfinite(np.asarray(leaf, np.float64)).reshape(data.size, -1).all(1)
            if bad.any():
                raise DataError(
                    f"{int(bad.sum())} of {data.size} rows of {name} hold NaN or infinite numbers; the first of them "
                    f"is row {int(np.argmax(bad))}. Drop or impute them; a mixture of normals takes NaN as missing by "
                    "models.mixture.with_missing."
                )
