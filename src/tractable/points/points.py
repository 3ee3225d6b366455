"""Point estimates: maximum likelihood and maximum a posteriori.

A "climb" is the maximisation of a density from one starting point.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable.core.clock import work_time
from tractable.core.curve import pad_traces
from tractable.core.errors import ModelError
from tractable.core.model import Data, Kernel, Model, Objective, PyTree, counted_log_likelihoods
from tractable.core.settings import Count, Positive
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.maxima import curvature
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.engine.climb import HELD_OUT_STEPS, Climber, climb, held_out_best
from tractable.engine.drawing import chain_keys, starts_of
from tractable.engine.method import Check, Method, Optimiser, Outcome, Program, Session, on_all_rows
from tractable.engine.placement import ONE_DEVICE
from tractable.engine.search import Ends, Maximum, log_joint, maximum, standard_errors, total_of
from tractable.engine.session import Counter

HELD_ROWS = 10_000  # largest number of held-out rows that are read from file

# Key in ``found`` of √(gᵀ Λ⁻¹ g), with the gradient g at the end of the climb: how many posterior sds the end point is
# away from the maximum, by a quadratic approximation.
AWAY = "sds from the maximum"
NEAR = 0.05  # an end point within this many sds of the maximum is accepted, since rounding leaves a small gradient


class Climbed(NamedTuple):
    """The end points of the climbs from all starts."""

    maxima: list[Maximum]
    info: dict[str, np.ndarray]  # the climbs' traces
    found: dict[str, Any]  # results on the held-out rows; empty if no rows are held out
    interrupted: bool


@dataclass(frozen=True, kw_only=True)
class MAP(Method):
    """Maximum a posteriori: argmax_θ log p(θ) + Σ log p(y_n|θ), the density of the *user's* θ.

    Args:
        optimizer: "lbfgs", which uses all rows at every step and finds exact zeros under Laplace priors; or "adam",
            whose learning rate falls from 0.05 to 0 along half a cosine, or an optax optimiser. These use minibatches
            if ``batch_size`` is given. A schedule of rates is part of an optimiser, such as
            ``optax.adam(optax.exponential_decay(0.05, 500, 0.5))``, and so is the clipping of gradients.
        steps: largest number of iterations.
        batch_size: number of rows per step for optax optimisers; None takes all rows.
        tolerance: the gradient counts as 0 if its largest component, per datum, is at most this. L-BFGS goes on until
            that component is at most a hundredth of it.
        starts: number of climbs from random starting points. The best end point is the result, and the report says
            whether the end points agree. If verification finds a higher maximum, the climb is rerun from there.

    For at most 1000 parameters the report gives standard errors from the observed information, if verification confirms
    that they are the posterior's sds around its mean; ``infer(..., verify=None)`` shows them unverified. Without
    standard errors a maximum does not say how wide the posterior is: use it as a starting point, or if the number of
    rows is far above the number of parameters. A point of a network is judged by its gradient and its predictions.
    """

    label: ClassVar[str] = "map"
    point: ClassVar[bool] = True
    prior: ClassVar[bool] = True
    verified: ClassVar[bool] = True
    climbs: ClassVar[bool] = True
    outside: ClassVar[tuple[str, ...]] = ("tolerance", "starts")
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
    def sums_rows(self) -> bool:
        return self.optimizer != "lbfgs"  # the line search of L-BFGS runs on the host

    def objective(self, model: Model) -> Objective:
        """The objective to maximise."""
        return log_joint(model, prior=self.prior, flat=True)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        objective = self.objective(model)
        if self.batch_size is None:
            objective = on_all_rows(objective, rows)
        optimizer = self.optimizer
        if isinstance(optimizer, str):
            optimizer = optax.adam(optax.cosine_decay_schedule(0.05, self.steps))
        return ascend(objective, optimizer)

    def learn(self, session: Session) -> Outcome:
        if not self.prior and session.model.likelihood is None:
            raise ModelError("MLE needs a likelihood; for a log density alone use MAP.")
        start_time = work_time()
        climbs = self.climbed(session)
        best, figures = choose_best(climbs.maxima)
        figures |= climbs.found or standard_errors(session.model, session.data, best.position, self.prior)
        if "information" in figures:
            figures[AWAY] = math.sqrt(max(0.0, best.gradient @ np.linalg.solve(figures["information"], best.gradient)))
        seconds = {"climbing": work_time() - start_time}
        return Outcome(point_belief(best.position, climbs.info, figures), figures, seconds, climbs.interrupted)

    def climbed(self, session: Session, jacobian: bool = False) -> "Climbed":
        """Climb from all starts: by L-BFGS, or by an optax optimiser in a compiled loop that is saved as it runs.

        Args:
            jacobian: maximise the density of the unconstrained position instead; ``objective`` must then be that
                density.
        """
        positions = starts_of(session, session.key, self.starts)
        if self.optimizer != "lbfgs":
            return self._climb_by_optax(session, positions, jacobian)
        count = Counter(session, "climbing", len(positions) * self.steps)
        ends = Ends(self.steps, self.tolerance, session.stop)
        maxima = [
            maximum(session.model, session.data, position, self.prior, jacobian, ends, count)
            for position in np.asarray(positions)
        ]
        traces = {"objective": pad_traces([one.trace for one in maxima])}
        return Climbed(maxima, traces, {}, session.stop())

    def _climb_by_optax(self, session: Session, positions: jax.Array, jacobian: bool) -> "Climbed":
        """Climb from all starts by an optax optimiser, in the compiled loop."""
        model, data, plan = session.model, session.data, self.plan(session.data)
        program = Program(model, self, plan is not None and not data.resident, placement=session.placement)
        on_one_device, keys = program._replace(placement=ONE_DEVICE), chain_keys(session.key, self.starts)
        rows = None if data is None or plan is not None else data.arrays()
        shape = loop.shape(self.steps, 1, model.space.size, self.starts)
        at, interrupted = climb(
            Climber(session, "climbing", program, shape, plan, keys, long=True), None,
            lambda: loop.begin(on_one_device, None, rows, keys, positions), [-(-self.steps // shape.group)],
            None if session.held_out is None else lambda states: _score(model, states, session.held_out),
        )  # fmt: skip
        maxima = []
        for position in np.asarray(at.states.position):
            value, gradient = total_of(model, position, data, self.prior, jacobian)
            slope = float(np.max(np.abs(gradient)))
            gradient = np.asarray(gradient)
            maxima.append(Maximum(np.asarray(position), float(value), slope, self.steps, gradient, np.zeros(0)))
        return Climbed(maxima, at.traces(shape.group), at.found(shape.group), interrupted)

    def checks(self, posterior: Learnt) -> list[Check]:
        found, size = posterior.found, max(1, posterior.rows)
        if HELD_OUT_STEPS in found:
            return [held_out_best(found, "caution", ": the point predicts best, but it is not a maximum")]
        slope = found["slope"] / size
        # The tolerance is larger for a stochastic climb, whose end is noisy, and in float32, because of rounding.
        tolerance = self.tolerance * (100 if self.optimizer != "lbfgs" else 1)
        if jnp.result_type(float) == jnp.float32:
            tolerance = max(tolerance, 1e-5)
        distance = found.get(AWAY, math.inf)
        verdict = (
            "trust" if slope <= tolerance or distance <= NEAR
            else "caution" if slope <= 1e3 * tolerance or distance <= 10 * NEAR else "reject"
        )  # fmt: skip
        sentence = "largest component of the gradient per datum; 0 at a maximum"
        sentence += f": the end of the climb is {distance:.2g} sds from it" if math.isfinite(distance) else ""
        is_network = self.point and posterior.model.network_weights
        if verdict != "trust" and is_network:  # predictions can be good before it
            verdict, sentence = "caution", f"{sentence}: raise steps=, or give held_out= to stop where predictions do"
        out = [Check("gradient", slope, verdict, sentence)]
        out += [] if is_network else curvature(found, ridge=1e-6)
        if self.starts > 1:
            gap = found["agreement"]
            verdict = "trust" if gap <= 1e-3 * max(1.0, abs(found["objective"]) * 1e-3) else "caution"
            out.append(Check("starts", gap, verdict, "gap in nats between best and worst start"))
        return out


@dataclass(frozen=True, kw_only=True)
class MLE(MAP):
    """Maximum likelihood: argmax_θ Σ log p(y_n|θ).

    The prior only gives the parameters' names, shapes and supports. Arguments are as for ``MAP``.
    """

    label: ClassVar[str] = "mle"
    prior: ClassVar[bool] = False


def choose_best(maxima: list[Maximum]) -> tuple[Maximum, dict[str, Any]]:
    """The highest end point of several climbs, and results for the report.

    Raises:
        ModelError: the best end point holds numbers that are not finite.
    """
    best = max(maxima, key=lambda m: m.value if np.isfinite(m.value) else -np.inf)
    if not np.all(np.isfinite(best.position)):
        raise ModelError(f"No climb from {len(maxima)} starts stayed finite; check that the density is bounded above.")
    return best, {
        "objective": best.value,
        "slope": best.slope,
        "evaluations": sum(m.evaluations for m in maxima),
        "agreement": float(max(best.value - m.value for m in maxima)),
    }


def _score(model: Model, states: PyTree, held_out: Data) -> np.ndarray:
    """(m,) the log likelihood of every held-out row, for the starting point whose climb predicts these rows best."""
    rows = held_out if held_out.resident else held_out.take(slice(0, HELD_ROWS))
    scores = np.asarray(_scores(model, states.position, rows.arrays()), np.float64)
    return scores[np.argmax(scores.sum(1))]


@compiled("model", if_few=COMPILE_FASTEST)
def _scores(model: Model, positions: jax.Array, rows: PyTree) -> jax.Array:
    """The log likelihood of every row at every start's position, (start, m)."""
    return jax.lax.map(lambda z: counted_log_likelihoods(model, model.params(z), rows), positions)
