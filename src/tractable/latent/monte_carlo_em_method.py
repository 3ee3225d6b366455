"""Monte-Carlo EM: the E-step draws z where it cannot be exact."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax

from tractable.core.clock import work_time
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Model, PyTree, whole
from tractable.core.settings import Count, Positive, Range, at_least, between, is_whole
from tractable.core.sums import observed
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.learnt import Learnt
from tractable.engine.drawing import chain_keys
from tractable.engine.method import Check, Method, Outcome, Session
from tractable.latent.em_method import expect_latent_model, model_checks
from tractable.latent.latent_chains import by_chains
from tractable.latent.latent_draws import Sampler, by_rejection, by_values
from tractable.latent.monte_carlo_climb import CHAINS, Climb, ClimbState, restore_states, starting_thetas
from tractable.latent.monte_carlo_em import drawn_m_step, drawn_statistics
from tractable.latent.monte_carlo_ends import checks, conclude


@dataclass(frozen=True, kw_only=True)
class MonteCarloEM(Method):
    """EM with draws of z: a maximum of log p(θ) + Σ log p(x_n | θ) where z can be neither summed nor integrated out.

        E:  z_ns ~ p(z | x_n, θ), s = 1 … S      M:  θ' = argmax (1/S) Σ_s Σ_n log p(x_n, z_ns | θ') + log p(θ')

    Unlike exact EM, **a step may lower the objective**: with S fixed, θ wanders about the maximum for ever. So S grows.
    Let gain be what a step adds to the function that the M-step maximises, σ̂ the gain's Monte-Carlo standard error,
    and z_level the normal quantile of ``level``. A step is taken if gain − z_level σ̂ > 0. Otherwise S doubles, the
    draws so far stay, and the step is repeated. The climb ends when gain + z_level σ̂ < tolerance in three steps in a
    row (Caffo, Jank & Jones 2005). The gain is measured on the draws that chose θ', so for a θ of d numbers it is too
    high by up to d/(2S) nats (natural logarithms), which can hide errors where d is large. So S also doubles when the
    gains of six steps at one S stop shrinking. At S = ``most`` the climb ends after three steps whose gains are within
    their noise.

    Args:
        kernel: how z is drawn given x: "mala", "random-walk", "hmc", "nuts" (four chains per datum, on unconstrained z,
            which go on from step to step), "rejection" (z ~ p(z|θ); it needs ``bound``), or a function
            ``log_density -> Kernel`` of one datum's flat unconstrained z. It is ignored where z takes few values,
            which are drawn exactly.
        draws: S at the start, draws of z per datum, a multiple of 4; S never shrinks.
        most: largest S; memory is O(rows · S).
        warmup: steps of the chains at the first θ, which tune their step size; these draws are thrown away.
        burn: steps of the chains at every new θ whose draws are thrown away.
        steps: largest number of EM steps of a climb.
        tolerance: nats of the whole objective (not per datum) that a step may still gain at the end, including the
            gain's error. Up to 1/(1 − r) times as much is left to climb, where r is the largest share of information
            that z hides. Where the objective is half a nat below its maximum, θ is one standard error off.
        level: confidence level of the one-sided bounds on the gain, in (0.5, 1).
        starts: number of climbs, each from another starting point; the result is the end of the best climb, and the
            report says whether the climbs agree.
        inner: steps of L-BFGS in an M-step that has no closed form.
        prior: add log p(θ) to the objective; False climbs the likelihood alone. An M-step in closed form must maximise
            the same objective.
        bound: ``(params, datum) -> log M`` with M ≥ sup_z p(x | z, θ), for "rejection"; datum is y, or (y, x). The
            smallest such M accepts the largest share of proposals; a draw that exceeds the bound raises an error.

    It needs a ``LatentModel`` with ``latent`` and ``likelihood``, and rows in memory. Standard errors come from the
    observed information, by Louis's identity over the last draws. For every entry of θ,
    ``found["monte carlo error"]`` is the sd of the end point over reruns with other random draws. Where z cannot be
    summed out, ``found["objective"]`` is NaN; ``tr.log_evidence`` estimates p(x | θ).
    """

    label: ClassVar[str] = "monte-carlo-em"
    point: ClassVar[bool] = True
    kernel: (  # pyright: ignore[reportIncompatibleMethodOverride]
        Literal["mala", "random-walk", "hmc", "nuts", "rejection"]
        | Annotated[Callable, "a function log_density -> Kernel"]
    ) = "mala"
    draws: Annotated[
        int, Range(f"a multiple of {CHAINS}, the number of chains per datum", lambda s: is_whole(s) and s % CHAINS == 0)
    ] = 8
    most: Count = 1024
    warmup: Annotated[int, at_least(0)] = 200
    burn: Annotated[int, at_least(0)] = 5
    steps: Count = 200
    tolerance: Positive = 1e-2
    level: Annotated[float, between(0.5, 1)] = 0.95
    starts: Count = 2
    inner: Count = 10
    prior: bool = True
    bound: Annotated[Callable, "a function (params, datum) -> log M"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.most >= self.draws, "most", f"a whole number ≥ {self.draws}")
        if self.kernel == "rejection" and self.bound is None:
            raise SettingsError(
                "MonteCarloEM(kernel='rejection') needs bound=, a function (params, datum) -> log M with "
                "M ≥ sup_z p(x | z, θ)."
            )

    def log_prior(self, model: Any) -> Callable | None:
        """The log prior if it is part of the objective (``prior=True``), else None."""
        return model.log_prior if self.prior else None

    def sampler(self, model: LatentModel) -> Sampler:
        """The sampler of z; raises ModelError if the model has no p(z | θ) to draw from."""
        latent, sums = model.latent, model.sums
        if latent is None:
            raise ModelError(
                "MonteCarloEM draws z from p(z | x, θ), and this model's z is dealt with in closed form: use EM, or "
                "tr.LatentModel(prior, latent, likelihood)."
            )
        if sums is not None and sums.causes is not None and sums.responsibilities is not None:
            return by_values(sums.responsibilities, sums.causes, CHAINS)

        def z_of(theta: PyTree, datum: PyTree) -> PyTree:
            has_inputs = isinstance(datum, tuple) and len(datum) == 2
            return latent(theta, datum[1]) if has_inputs else latent(theta)

        if self.kernel == "rejection" and self.bound is not None:

            def log_likelihood(theta: PyTree, datum: PyTree, z: PyTree) -> jax.Array:
                return model.factors(theta, z, datum)[0]

            return by_rejection(z_of, log_likelihood, self.bound, CHAINS)
        return by_chains(self.kernel, z_of, model.log_joint, CHAINS)

    def m_step(self, model: LatentModel) -> Callable:
        """``(theta, rows, weights, draws) -> theta'``.

        It is the model's own M-step on the statistics' mean over draws, if the model has one; otherwise L-BFGS.
        """
        maximise, statistics, *_ = model.steps
        if maximise is not None and statistics is not None:
            return lambda theta, rows, weights, draws: maximise(drawn_statistics(statistics, rows, weights, draws))
        prior = self.log_prior(model)
        return drawn_m_step(model.log_joint, prior, model.params, model.position_of, self.inner)

    def needed(self, model: Model) -> LatentModel:
        latent = expect_latent_model(model, self)
        self.sampler(latent)
        return latent

    def learn(self, session: Session) -> Outcome:
        model, data = self.needed(session.model), session.data
        if data.size == 0:
            raise DataError("EM learns from rows: these data have none.")
        if data.weights is not None:
            raise DataError(
                "MonteCarloEM takes rows that count once; these data have weights. Use EM or MAP where z can be summed "
                "out, or repeat rows whose weights are whole numbers."
            )
        if not data.resident:
            raise DataError(
                "MonteCarloEM keeps draws of every row's z in memory; these rows are on file. Use part of them, or "
                "Data(..., resident=True) if memory allows."
            )
        rows = observed(whole(data.arrays()))
        start_time = work_time()
        keys = chain_keys(session.key, self.starts)
        thetas = starting_thetas(self, model, data, session.key)
        climb_time = work_time()
        saved, keep = restore_states(self, model, rows, thetas, session.resume), session.keeper()
        ends, done = [], []
        for start in range(self.starts):
            theta = jax.tree.map(lambda a, i=start: a[i], thetas)
            state = saved[start] if start < len(saved) else None

            def save(state: ClimbState, at_once: bool = False) -> None:
                keep(lambda: [*done, state], at_once=at_once)

            state, end = Climb(self, model, rows, keys[start]).run(theta, state, session, start, save)
            ends.append(end)
            if end.state.ended == "interrupted":
                break
            done.append(state)
            keep(lambda: done, at_once=True)
        end_time = work_time()
        point, info, figures = conclude(self, model, data, rows, ends)
        seconds = {"starting": climb_time - start_time, "climbing": end_time - climb_time}
        seconds |= {"errors": work_time() - end_time}
        return Outcome(point_belief(point, info, figures), figures, seconds, ends[-1].state.ended == "interrupted")

    def checks(self, posterior: Learnt) -> list[Check]:
        return checks(self, posterior.found, max(1, posterior.rows)) + model_checks(posterior)
