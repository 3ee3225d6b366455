"""The methods SGLD and SGHMC, which choose their step size by the bias that is predicted for it.

H is the curvature of the log posterior, V the covariance of a stochastic gradient, P = L Lᵀ the preconditioner and ε
the step size, as in ``sgmcmc.bias``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import schedules
from tractable.core.batches import Plan, whole
from tractable.core.check import Check
from tractable.core.errors import RunError, SettingsError
from tractable.core.model import Kernel, Model, PyTree, log_posterior
from tractable.core.rows import Data
from tractable.core.settings import Count, Positive, Share, at_least, between
from tractable.core.words import tell
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks, check_bias
from tractable.engine import run as loop
from tractable.engine.drawing import Drawing, WarmUp
from tractable.engine.method import Program, Session, plan_batches
from tractable.engine.preflight import value_and_slope
from tractable.engine.search import modes, total_of
from tractable.sgmcmc import bias, gradients, preconditioners
from tractable.sgmcmc.sghmc import sghmc
from tractable.sgmcmc.sgld import sgld

Step = float | jax.Array | Callable  # ε, or a schedule of it
MEASURED_AT = 8  # number of draws over which curvature and gradient noise are averaged for the report
RETRIES = 4  # how often a burn-in that diverged is tried again, each time at a tenth of the step size
LARGE = 10_000  # with at least this many parameters, positions are pytrees in the compiled loop
EXPLORE = 0.5  # share of a cycle that runs without injected noise, to find a mode
LONGEST = 256  # largest number of steps per kept draw with thin="auto"


@dataclass(frozen=True, kw_only=True)
class SGLD(Drawing):
    """Stochastic-gradient Langevin dynamics, whose bias at its step size is predicted (Welling & Teh 2011).

    Args:
        chains, draws, warmup: as for every method that draws chains. Each chain draws its own batches.
        thin: steps per kept draw; "auto" takes about the relaxation time of the slowest direction, at most 256 steps.
        batch_size: largest number of rows per step; the batches of an epoch are of nearly equal size.
        step_size: "auto", a constant ε, or a schedule ``t -> ε_t`` such as ``schedules.polynomial``; with a schedule,
            draws are weighted by ε_t. ε is Welling & Teh's: the drift is ε/2 times the gradient and the noise has
            variance ε (twice BlackJAX's step size).
        bias_tolerance: the largest relative error of the sd of any linear combination of the parameters.
            ``step_size="auto"`` keeps the predicted error within it; a given step size with a larger predicted error
            causes a warning.
        preconditioner: None, "diagonal" or "dense" (measured in warm-up), "rmsprop" (pSGLD), or "auto". "auto" with an
            automatic step size is dense for at most 400 parameters and diagonal for more; with a given step size it is
            None.
        gradient: "minibatch", or "control_variates" around the mode found in warm-up.
        cycles: number of cosine cycles in the run (Zhang et al. 2020), at most half as many as draws. The first half of
            each cycle explores; its draws have weight 0.
        temperature: T of the target p(θ|D)^{1/T}; 1 is the posterior.
        correct: reduce the variance of the injected noise by the variance that the gradient's noise and the finite
            step add. Batches are then drawn independently, so that their noise is white. This needs a constant ε and a
            preconditioner measured in warm-up.
        start: "mode" starts around modes, which are searched first; "random" starts at random points, as MALA does.

    MALA and NUTS have no such bias: prefer them if gradients over all rows are affordable.
    """

    label: ClassVar[str] = "sgld"
    sums_rows: ClassVar[bool] = True
    thin: Count | Literal["auto"] = "auto"
    batch_size: Count = 100
    step_size: Positive | Literal["auto"] | Annotated[Callable, "a schedule t -> ε_t"] = "auto"
    bias_tolerance: Share = 0.05
    preconditioner: Literal[None, "auto", "diagonal", "dense", "rmsprop"] = "auto"
    gradient: Literal["minibatch", "control_variates"] = "minibatch"
    cycles: Annotated[int, at_least(0)] = 0
    temperature: Positive = 1.0
    correct: bool = False
    start: Literal["mode", "random"] = "mode"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.cycles <= self.draws / 2, "cycles", f"at most half as many as draws, {self.draws}")
        if self.correct and (callable(self.step_size) or self.cycles or self.preconditioner == "rmsprop"):
            raise SettingsError(
                f"{type(self).__name__}(correct=True) needs a constant step size and a preconditioner that stays as "
                "measured; got a schedule, cycles or rmsprop."
            )

    @property
    def friction(self) -> float:
        return 1.0

    @property
    def _preconditioner(self) -> str | None:
        if self.preconditioner != "auto":
            return self.preconditioner
        return "dense" if self.step_size == "auto" else None

    def plan(self, data: Data | None) -> Plan:
        return plan_batches(self, data, self.batch_size, independent=self.correct)

    def estimator(self, model: Model, tuned: PyTree, *, flat: bool = True) -> Callable:
        """The stochastic gradient. Positions and ``tuned`` values are flat arrays if ``flat`` is True, else pytrees."""
        posterior = log_posterior(model, flat=flat)
        if self.gradient == "control_variates":
            return gradients.control_variates(posterior, tuned["anchor"], tuned["anchor_gradient"])
        return gradients.minibatch(posterior)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        if model.space.size < LARGE:
            return self._kernel(model, tuned, flat=True)
        # Large positions stay pytrees, because XLA compiles their concatenation into one slow, serial loop.
        unravel = model.space.unravel
        leafwise = {name: unravel(a) if jnp.ndim(a) == 1 else a for name, a in tuned.items()}
        kernel = self._kernel(model, leafwise, flat=False)
        return Kernel(lambda key, position: kernel.init(key, unravel(position)), kernel.draw, kernel.step)

    def _kernel(self, model: Model, tuned: PyTree, *, flat: bool) -> Kernel:
        step = self.step_size if callable(self.step_size) else tuned["step_size"]
        length = tuned.get("cycle")
        if self.cycles:
            step = schedules.cyclical(tuned["step_size"], length)

        def temperature_at(t: jax.Array) -> jax.Array:
            return jnp.where((t % length) < EXPLORE * length, 0.0, self.temperature)

        adapts = self._preconditioner == "rmsprop"
        conditioner = preconditioners.rmsprop() if adapts else preconditioners.fixed(tuned["scale"])
        settings = {
            "temperature": temperature_at if self.cycles else self.temperature,
            "preconditioner": conditioner,
            "gradient": lambda _: self.estimator(model, tuned, flat=flat),
        }
        return self._make(log_posterior(model, flat=flat), step, tuned, settings)

    def _make(self, posterior: Callable, step: Step, tuned: PyTree, settings: dict[str, Any]) -> Kernel:
        return sgld(posterior, step, noise_scale=tuned.get("noise_scale"), **settings)

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        """Choose P and ε from H and V, and burn in.

        The chains first climb to modes, where H is measured. Then they move to draws of the normal approximation there,
        at which H and V are measured, and P and ε are chosen. After the first half of burn-in H and V are measured
        where the chains are, and ε is chosen again. The bias concerns the draws, so H and V are measured around a mode
        and not at it: at the mode the gradient's noise differs, and with control variates it vanishes.
        """
        model, data, dtype = session.model, session.data, jnp.result_type(float)
        if self.start == "mode":
            ends = modes(session, positions)
            if not np.all(np.isfinite(ends)):
                raise RunError(
                    "The climb to a mode did not stay finite. Is the posterior proper? If it is, use start='random'."
                )
            positions = jnp.asarray(ends, dtype)
        tuned: dict[str, Any] = {}
        if self.gradient == "control_variates":
            part = whole(data.arrays() if data.resident else data.first(10_000))
            best = positions[int(np.argmax([float(value_and_slope(model, p, part)[0]) for p in positions]))]
            slope = total_of(model, best, data, jacobian=True)[1]  # over all rows, on file too
            tuned = {"anchor": best, "anchor_gradient": jnp.asarray(slope, dtype)}
        measurement = self._measure(session, positions, tuned)
        if self.start == "mode":
            root = (
                np.sqrt(1 / measurement.curvature)
                if measurement.curvature.ndim == 1
                else bias.inverse_root(measurement.curvature)
            )
            noise = np.asarray(jax.random.normal(jax.random.fold_in(session.key, 6), positions.shape))
            positions = positions + jnp.asarray(noise * root if root.ndim == 1 else noise @ root.T, dtype)
            measurement = self._measure(session, positions, tuned)
        scale = self.scale(measurement, self.plan(data))
        choice = self._choose(measurement, scale, self.plan(data))
        first = choice["step_size"]
        thin = self._thinning(measurement, first, scale)
        tuned |= self._tuning(measurement, first, scale, thin)
        if self.warmup and not self.cycles:
            positions, done = self._burn_in_or_smaller(session, program, tuned, keys, positions, thin)
            if self.step_size == "auto" or self.correct:
                measurement = self._measure(session, positions, tuned)
                step_size = float(tuned["step_size"])
                choice = self._choose(measurement, scale, self.plan(data))
                if step_size < 0.5 * first:  # a larger step size failed in burn-in, and could fail again
                    choice["step_size"] = min(choice["step_size"], step_size)
                tuned |= self._tuning(measurement, choice["step_size"], scale, thin)
            positions, _ = self._burn_in(session, program, tuned, keys, positions, thin, done)
        return WarmUp(positions, tuned, choice, thin)

    def _measure(self, session: Session, positions: jax.Array, tuned: dict[str, Any]) -> bias.Measured:
        session.say("measuring", 0, 1)
        distinct = np.unique(np.round(np.asarray(positions), 6), axis=0)
        key = jax.random.fold_in(session.key, 7)
        return bias.measure(session.model, session.data, self.plan(session.data), distinct, key, self, tuned)

    def _tuning(self, measurement: bias.Measured, step: float, scale: np.ndarray, thin: int) -> dict[str, jax.Array]:
        dtype = jnp.result_type(float)
        plain = self._preconditioner is None  # L is then the number 1, so that no step reads a vector of ones
        tuned = {"step_size": jnp.asarray(step, dtype), "scale": jnp.asarray(1.0 if plain else scale, dtype)}
        if self.correct:
            reduced = bias.reduced_noise(measurement, step, scale)
            if reduced is None:
                raise SettingsError(
                    f"{type(self).__name__}(correct=True) cannot correct the gradient's noise at step_size={step:g}: "
                    "it exceeds the injected noise. Use a smaller step size, larger batches or control variates."
                )
            tuned["noise_scale"] = jnp.asarray(reduced, dtype)
        if self.cycles:
            tuned["cycle"] = jnp.asarray(self.draws * thin // self.cycles)
        return tuned

    def _burn_in_or_smaller(self, session, program, tuned, keys, positions, thin) -> tuple[jax.Array, int]:
        """Run the first half of burn-in, with a smaller step size if needed, which is then stored in ``tuned``.

        If chains become non-finite, an automatic step size is divided by ten and burn-in is tried again: away from its
        mode, a network's posterior can have a far larger curvature than at the mode.
        """
        for _ in range(RETRIES if self.step_size == "auto" and not self.correct else 0):
            try:
                return self._burn_in(session, program, tuned, keys, positions, thin, 0)
            except RunError:
                tuned["step_size"] = tuned["step_size"] / 10
                tell(
                    "Chains did not stay finite at the automatic step size: curvature is larger away from the mode. "
                    f"Trying {float(tuned['step_size']):.3g}; MALA or NUTS are safer where they are affordable.",
                )
        return self._burn_in(session, program, tuned, keys, positions, thin, 0)

    def _burn_in(self, session, program, tuned, keys, positions, thin, done) -> tuple[jax.Array, int]:
        """Run half of the warm-up in the main run's compiled loop, and return positions and groups of steps done."""
        shape = self.shape(session, program, thin)
        groups = done + max(1, round(self.warmup / 2 / shape.group))
        states = loop.begin(program, tuned, None, keys, positions)
        result = loop.run(
            loop.Loop(program, shape, self.plan(session.data)), session.data, tuned, keys, loop.Start(states, done),
            groups, loop.Host(stop=session.stop), (),
        )  # fmt: skip
        session.say("warm-up", groups * shape.group, self.warmup)
        return jax.vmap(program.observe)(result.states), groups

    def scale(self, measurement: bias.Measured, plan: Plan) -> np.ndarray:
        """L of the preconditioner P = L Lᵀ, from H: P is the inverse curvature, or the diagonal of that inverse.

        For RMSprop, whose P adapts, L belongs to the limit of P.
        """
        h = measurement.curvature
        if self._preconditioner == "dense" and h.ndim == 2:
            return bias.inverse_root(h)
        if self._preconditioner in ("diagonal", "dense"):
            return np.sqrt(np.diag(np.linalg.inv(h)) if h.ndim == 2 else 1 / h)
        if self._preconditioner == "rmsprop":
            # The root of the limit of RMSprop's P, because gradients at the mode are noise of variance V.
            v = np.diag(measurement.noise) if measurement.noise.ndim == 2 else measurement.noise
            return 1 / np.sqrt(1e-5 + np.sqrt(v) / plan.size)
        return np.ones(len(h))

    def predicted(
        self, measurement: bias.Measured, step: float, scale: np.ndarray, plan: Plan, injected: np.ndarray | None = None
    ) -> bias.Predicted:
        """The predicted stationary covariance at a step size."""
        return bias.stationary(measurement, step, scale, injected=injected, **self._setting(plan))

    def _setting(self, plan: Plan) -> dict[str, Any]:
        """The arguments of ``bias.stationary`` other than H, V, ε and P."""
        epoch = None if plan.independent else plan.count
        return {"friction": self.friction, "temperature": self.temperature, "epoch": epoch}

    def _choose(self, measurement: bias.Measured, scale: np.ndarray, plan: Plan) -> dict[str, Any]:
        if callable(self.step_size):
            return {"step_size": float(self.step_size(jnp.array(0)))}
        if self.step_size != "auto":
            self._warn(measurement, float(self.step_size), scale, plan)
            return {"step_size": float(self.step_size)}
        step = bias.largest_step(measurement, scale, self.bias_tolerance, **self._setting(plan))
        return {"step_size": step}

    def _warn(self, measurement: bias.Measured, step: float, scale: np.ndarray, plan: Plan) -> None:
        if self.correct or self.cycles:  # the given step size is the largest in a cycle, which samples at smaller ones
            return
        worst = self.predicted(measurement, step, scale, plan).worst
        if not np.isfinite(worst):
            limit = bias.largest_step(measurement, scale, 10.0, **self._setting(plan))
            raise SettingsError(
                f"{type(self).__name__}(step_size={step:g}) is unstable on this posterior, whose largest curvature "
                f"allows about {limit:.2g}: use a smaller step, step_size='auto', or preconditioner='diagonal'."
            )
        if worst > self.bias_tolerance:
            safe = bias.largest_step(measurement, scale, self.bias_tolerance, **self._setting(plan))
            tell(
                f"step_size={step:g} is predicted to inflate the sd of a direction by {100 * worst:.0f} %, above "
                f"bias_tolerance={self.bias_tolerance:g}. Use step_size={safe:.2g}, correct=True or "
                "gradient='control_variates' to stay below it.",
            )

    def _thinning(self, measurement: bias.Measured, step: float, scale: np.ndarray) -> int:
        if self.thin != "auto":
            return int(self.thin)
        h = measurement.curvature
        if h.ndim == 2:
            dense = np.diag(scale) if np.ndim(scale) == 1 else scale
            slowest = np.linalg.eigvalsh(dense.T @ h @ dense).min()
        else:
            slowest = np.min(np.square(scale) * h)
        relaxation = 2 / max(step * slowest, 1e-12)
        # Powers of two, so that a second fit of the same model reuses the compiled program.
        return int(2 ** np.clip(np.round(np.log2(relaxation)), 0, np.log2(LONGEST)))

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        if self.cycles:
            return (info["temperature"] > 0.5 * self.temperature).astype(float)
        return info["step_size"] if callable(self.step_size) else None

    def predicted_bias(self, posterior: Learnt) -> bias.Predicted | None:
        """The predicted bias of every marginal sd, with H and V averaged over draws of the run; None if unknown."""
        chains, belief, data = posterior.run_state, posterior.belief, posterior.data
        if data is None or chains is None or belief.positions is None:
            return None
        flat = belief.positions.reshape(-1, belief.positions.shape[-1])
        index = np.linspace(0, len(flat) - 1, MEASURED_AT).astype(int)
        plan = self.plan(data)
        measurement = bias.measure(posterior.model, data, plan, flat[index], jax.random.key(0), self, chains.tuned)
        step = float(np.average(belief.info["step_size"], weights=belief.weights))
        injected = chains.tuned.get("noise_scale")
        injected = None if injected is None else np.asarray(injected, np.float64)
        return self.predicted(measurement, step, np.asarray(chains.tuned["scale"], np.float64), plan, injected)

    def checks(self, posterior: Learnt) -> list[Check]:
        out = chain_checks(posterior)
        predicted = posterior.predicted_bias
        if predicted is None:
            return out
        marginal = int(np.argmax(np.abs(predicted.inflation)))
        sentence = (
            "predicted relative error of an sd, in the worst direction, from step size and gradient noise; the worst "
            f"marginal is {posterior.model.space.names[marginal]}, {100 * predicted.inflation[marginal]:.2g} %"
        )
        if self._preconditioner == "rmsprop":
            sentence += "; the bias from the changes of the preconditioner is not included"
        out.append(check_bias(predicted.worst, self.bias_tolerance, sentence))
        return out


@dataclass(frozen=True, kw_only=True)
class SGHMC(SGLD):
    """Stochastic-gradient Hamiltonian Monte Carlo: SGLD with momentum (Chen et al. 2014).

    Args: as for SGLD, without ``correct``, and
        momentum_decay: friction α in (0, 1]; with 1 the method is SGLD with the same ε.
    """

    label: ClassVar[str] = "sghmc"
    momentum_decay: Annotated[float, between(0, 1, closed=True)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correct:
            raise SettingsError("SGHMC has no correct=True; use SGLD(correct=True), or leave it out.")

    @property
    def friction(self) -> float:
        return self.momentum_decay

    def _make(self, posterior: Callable, step: Step, tuned: PyTree, settings: dict[str, Any]) -> Kernel:
        return sghmc(posterior, step, self.momentum_decay, **settings)
