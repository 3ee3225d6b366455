"""Variational inference: a normal q(z) over the unconstrained parameters, by a bound or by scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from tractable.core import approximations
from tractable.core.approximations import Approximation
from tractable.core.batches import Batch, Plan
from tractable.core.clock import work_time
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.settings import Count, Positive, Range, is_number, members
from tractable.core.shared import compiled
from tractable.core.words import tell
from tractable.diagnostics.belief import Belief, Cost, Fitted, draws_key
from tractable.diagnostics.importance import khat_check, log_weights, weigh
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.shape import SHAPE
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.engine.bound import SIGMAS
from tractable.engine.climb import HELD_OUT_STEPS, held_out_best
from tractable.engine.drawing import starts_of
from tractable.engine.method import Check, Method, Optimiser, Outcome, Rate, Session
from tractable.engine.placement import ONE_DEVICE
from tractable.engine.search import Ends, conditional_sd, laplace_root, maximum, mode_and_root
from tractable.engine.staged_climb import WINDOW, Problem, climb_in_stages
from tractable.vi import linear_response, multi_output, quadrature
from tractable.vi.elbo import Control, Gradient, elbo, inclusive
from tractable.vi.match import DRAWS, Matched, density_of, match, nearest_of_low_rank

# Bounds and gains are in nats, the units of the natural logarithm.
THIN = 10  # number of steps of a climb for each value of its traces
MODE_SIZE = 1000  # largest number of parameters for which a climb starts at the mode
# Control variates correct batches if there are at least this many rows for each parameter, and if the starting points
# differ by at most this many standard deviations (docs/decisions/030).
ROWS_EACH, NEAR = 20, 3.0
VAGUE = 0.1  # error in nats above which a bound alone is no reason to trust means and sds (docs/decisions/030)
UNKNOWN = 0.1  # sds with which a climb begins where there is no curvature
MOVED = 0.2  # movement of matched moments, in sds, above which a climb replaces them
FAR = 1.0  # gain of the last stage in nats above which the result is rejected


@dataclass(frozen=True, kw_only=True)
class Variational(Method):
    """The common fields of the methods that fit a normal q.

    The bound is maximised in a climb, which has several stages (``engine.staged_climb``).

    Args:
        divergence: "reverse" minimises KL(q ‖ p) by maximising the ELBO; "forward" minimises KL(p ‖ q) by
            self-normalised importance sampling.
        gradient: "reparameterised", "path" (without the score of q) or "score" (see ``vi.elbo``).
        control: control variate of the score function: None, "running-mean", "leave-one-out" or "fitted".
        samples: draws of q per step.
        batch_size: rows per step; None takes all rows.
        optimizer: "adam", whose learning rate falls from stage to stage; or an optax optimiser, used unchanged, such as
            ``optax.chain(optax.clip_by_global_norm(1e3), optax.adam(0.01))``. Its gradients are those of minus the
            bound for all rows.
        learning_rate: Adam's first learning rate, in units of the starting standard deviations; or a schedule, a
            function of the number of steps taken that returns a rate ≥ 0, such as
            ``optax.cosine_decay_schedule(0.1, 5000)``. With a schedule, here or inside an optax optimiser, rates do not
            fall from stage to stage: the climb takes all ``steps`` steps.
        steps: largest number of steps; the climb ends earlier once stages gain less than ``tolerance``, unless there is
            a schedule.
        tolerance: a difference of the bound in nats (units of the natural logarithm). A stage ends when its noisy bound
            shows no trend. The run ends when the bounds at the averaged iterates of successive stages, on common random
            numbers, differ by less than this or by no more than chance.
        tempering: temperatures T ≥ 1 of the first stages. They flatten the posterior, so that q first finds roughly
            where it lies.
        start: "mode" starts at the mode, with sds from the curvature there, for up to 1000 parameters; or "random".
        starts: number of climbs. The result is the one with the best bound, and the report says whether they agree.
        solver: "quadrature" integrates over a linear predictor instead of drawing, which makes the bound deterministic;
            it runs on one device. FullRank can also integrate over several predictors, such as those of classes.
            "stochastic" draws. "auto" takes quadrature if the model allows it.
        draws: independent draws of q in the posterior; ``sample`` makes new ones.
    """

    kind: ClassVar[str] = ""  # the family's name in ``approximations.of``
    verified: ClassVar[bool] = True
    climbs: ClassVar[bool] = True
    outside: ClassVar[tuple[str, ...]] = (
        "learning_rate", "steps", "tolerance", "tempering", "start", "starts", "solver", "draws",
    )  # fmt: skip
    divergence: Literal["reverse", "forward"] = "reverse"
    gradient: Gradient = "reparameterised"
    control: Control = "leave-one-out"
    samples: Count = 8
    batch_size: Count | None = None
    optimizer: Literal["adam"] | Optimiser = "adam"
    learning_rate: Rate = 0.1
    steps: Count = 50_000
    tolerance: Positive = 0.01
    tempering: Annotated[
        tuple[float, ...],
        Range("temperatures ≥ 1", lambda temperatures: np.ndim(temperatures) == 1),
    ] = ()
    start: Literal["mode", "random"] = "mode"
    starts: Count = 1
    solver: Literal["auto", "stochastic", "quadrature"] = "auto"
    draws: Count = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.tempering):
            what = f"{type(self).__name__}(tempering=...)"
            members(what, self.tempering, lambda t: is_number(t) and t >= 1, "temperatures ≥ 1")
        object.__setattr__(self, "tempering", tuple(float(t) for t in self.tempering))
        many = self.divergence == "forward" or (self.gradient == "score" and self.control == "leave-one-out")
        self.check(not many or self.samples > 1, "samples", "a whole number ≥ 2")

    def family(self, size: int) -> Approximation:
        """q over ``size`` numbers."""
        raise SettingsError(f"{type(self).__name__} has no family of its own; use MeanField, FullRank or LowRank.")

    def objective(self, model: Model, rows: PyTree, tuned: PyTree) -> Objective:
        """The bound, on minibatches if there is a ``batch_size``, otherwise on all ``rows``."""
        q, target, temperature = self.family(model.space.size), log_posterior(model, flat=True), tuned["temperature"]
        every = whole(rows) if self.batch_size is None and rows is not None else None
        corrected = anchored_likelihood(model, tuned["anchor"]) if "anchor" in tuned else None

        def joint(z: jax.Array, batch: Batch | None) -> jax.Array:
            if corrected is not None and batch is not None:
                return target(z, None) + corrected(z, batch, batch.scale)
            return target(z, batch if every is None else every)

        if self.divergence == "forward":
            return inclusive(joint, q, samples=self.samples)
        return elbo(
            joint, q, samples=self.samples, gradient=self.gradient, control=self.control, temperature=temperature
        )

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        optimizer = self.optimizer
        if optimizer == "adam":
            scale = self.family(model.space.size).scale
            optimizer = optax.chain(self.adam(tuned), scaled(lambda phi: scale(phi, tuned["sd"])))
        return ascend(self.objective(model, rows, tuned), optimizer)

    def rate(self, tuned: PyTree) -> Any:
        """The schedule of learning rates if there is one, otherwise the rate of the stage."""
        return self.learning_rate if callable(self.learning_rate) else tuned["learning_rate"]

    def adam(self, tuned: PyTree) -> optax.GradientTransformation:
        """Adam, with its own numerical constants."""
        return optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(self.rate(tuned)))

    def learn(self, session: Session) -> Outcome:
        model, data = session.model, session.data
        start_time = work_time()
        solved = self._solve(session)
        if solved is not None:
            phi, found, values = solved
            interrupted, traces, every = session.stop(), {"objective": values[None]}, 1
        else:
            climbed = climb_in_stages(self, session)
            phi, found, interrupted = self.flat(model, climbed.phi), climbed.found, climbed.interrupted
            traces, every = climbed.traces, THIN
        family, phi = self.answer(session, phi, found)
        q = approximations.of(family, phi)
        end_time = work_time()
        weights = log_weights(model, data, q, phi, jax.random.fold_in(session.key, 1))
        if weights is not None:
            estimate = weigh(weights)
            found |= {"elbo": estimate.elbo, "elbo error": estimate.error, "bound": estimate.bound}
        draws = approximations.draws_of(q, phi, draws_key(session.key), self.draws)
        seconds = {"climbing": end_time - start_time, "weighing": work_time() - end_time}
        phi = jax.tree.map(np.asarray, phi)
        fitted = Fitted(
            positions=np.asarray(draws)[None], family=family, phi=phi, log_weights=weights, info=traces, thin=every
        )
        return Outcome(fitted, found, seconds, interrupted)

    def _solve(self, session: Session) -> tuple[PyTree, dict[str, Any], np.ndarray] | None:
        """φ, numbers for the report, and the bound's values in a climb without noise; None for unsuitable models."""
        model, data, stop = session.model, session.data, session.stop
        exact = factors = None
        if self.solver != "stochastic" and self.divergence == "reverse" and self.batch_size is None:
            exact = quadrature.structure(model, data)
            factors = multi_output.structure(model, data) if exact is None and self.kind == "full rank" else None
        if exact is None and factors is None:
            if self.solver != "quadrature":
                return None
            raise ModelError(
                f"{type(self).__name__}(solver='quadrature') expects one linear predictor, normal or Laplace priors of "
                "its weights, at most one other parameter, and data in memory (or with FullRank, several predictors, "
                "such as those of classes, and no other parameter); got another model. Use solver='stochastic'."
            )
        if session.placement is not ONE_DEVICE:  # fifty evaluations on one device cost less than a climb on many
            tell(
                f"{type(self).__name__} integrates over this model's linear predictor on one device, so mesh= has no "
                "effect. If one device cannot hold the rows, give solver='stochastic'."
            )
        if exact is not None:
            return quadrature.climb(exact, self.family(model.space.size), model, data, stop=stop)
        assert factors is not None
        start = np.zeros(model.space.size, jnp.result_type(float))
        mode = maximum(model, data, start, jacobian=True, ends=Ends(500, 1e-4, stop)).position
        root = laplace_root(model, data, mode)
        return multi_output.climb(factors, model, data, mode, root, self.tolerance, stop)

    def answer(self, session: Session, phi: PyTree, found: dict[str, Any]) -> tuple[str, PyTree]:
        """The name of a family and its φ, given that of the climb; numbers for the report are added to ``found``."""
        return self.kind, phi

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        on_all = found.get("gradients for sds", 0)
        if "steps" not in found:  # the climb was by quadrature, with all rows in each evaluation
            return Cost(found["evaluations"] + on_all, 0.0)
        gradients = found["steps"] * self.samples * self.starts + found.get("gradients for σ", 0)
        return Cost(gradients * self.share(data) + on_all, 0.0)

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        """The first φ of each climb, with a leading axis of starting points."""
        return jax.vmap(self.family(model.space.size).init)(means, sds)

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        """The φ of ``family`` at a position of the climb."""
        return phi

    def most(self, plan: Plan | None) -> int:
        """The largest number of steps."""
        return self.steps

    def finish(self, problem: Problem, phi: PyTree, steps: int) -> tuple[PyTree, dict[str, Any]]:
        """The φ after the work that follows a climb of ``steps`` steps, if any, and numbers for the report about it."""
        return phi, {}

    def shape(self, model: Model, data: Data | None, plan: Plan | None, positions: PyTree) -> loop.Shape:
        """The shape of the climb's compiled loop. A segment has as many steps as a stage before its first check.

        With batches that are not corrected (``corrects``), these steps are a whole number of epochs, so that the noise
        of the batches sums to zero.
        """
        noise = self.samples * self.family(model.space.size).noise
        shape = loop.shape(10**6, THIN, noise, self.starts, moments=True)
        epoch = 1 if plan is None or self.corrects(model, data) else plan.count
        window = max(WINDOW, epoch * -(-WINDOW // epoch)) if epoch <= 10 * WINDOW else epoch
        return shape._replace(capacity=-(-window // shape.group))

    def begin(self, session: Session, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(start, d) the means and the standard deviations with which climbs begin."""
        model, data = session.model, session.data
        positions = starts_of(session, key, self.starts)
        if not self.at_mode(model, data):
            scale = 0.1 if model.start is None else 0.01  # more noise would hide a network's starting weights
            return positions, jnp.full(positions.shape, scale, positions.dtype)
        modes = [mode_and_root(session, position) for position in np.asarray(positions)]
        means = np.stack([mode for mode, _ in modes])
        # If the posterior were normal, the best mean field would have the sds 1/√Λᵢᵢ.
        sds = np.stack([np.full(model.space.size, UNKNOWN) if r is None else conditional_sd(r) for _, r in modes])
        return jnp.asarray(means, positions.dtype), jnp.asarray(sds, positions.dtype)

    def anchor(self, session: Session, means: jax.Array, sds: jax.Array) -> dict[str, jax.Array]:
        """A place near the mode, with the log likelihood of all rows and its gradient there; empty without correction.

        Batches are corrected by these values (see ``anchored_likelihood``). If there are many rows for each parameter,
        a batch's log likelihood is nearly quadratic over the width of the posterior, and little of its noise remains.
        The average over a climb then has errors far below the posterior's sds.
        """
        near = np.all(np.abs(np.asarray(means) - np.asarray(means[0])) <= NEAR * np.asarray(sds[0]))
        if session.data is None or not near or not self.corrects(session.model, session.data):
            return {}
        value, slope = _likelihood(session.model, means[0], whole(session.data.arrays()))
        is_finite = np.isfinite(value) and np.all(np.isfinite(slope))
        return {"place": means[0], "value": value, "slope": slope} if is_finite else {}

    @property
    def sums_rows(self) -> bool:
        return True

    def at_mode(self, model: Model, data: Data | None) -> bool:
        """Whether the climb begins at the mode, with the curvature there."""
        return self.start != "random" and model.space.size <= MODE_SIZE and (data is None or data.resident)

    def corrects(self, model: Model, data: Data | None) -> bool:
        """Whether batches are corrected by an anchor."""
        if data is None or self.batch_size is None or model.start is not None or not self.at_mode(model, data):
            return False
        return data.size >= max(ROWS_EACH * model.space.size, self.batch_size + 1)

    def checks(self, posterior: Learnt) -> list[Check]:
        found, out = posterior.found, []
        if HELD_OUT_STEPS in found:
            out.append(held_out_best(found))
            if found[HELD_OUT_STEPS] < found["steps"]:
                return out  # the climb ended early on purpose, so its gain does not matter
        out.append(self._movement_check(found) if "movement" in found else self._gain_check(posterior))
        weights = None if posterior.fitted is None else posterior.fitted.log_weights
        # Verification tests more than the importance weights of q do; k-hat is for results without it.
        if weights is not None and not posterior.verification:
            out.append(khat_check(weigh(weights)))
        elif not posterior.verification:
            out.append(Check("k-hat", math.nan, "caution", "not computed at this size: judge by held-out predictions"))
        if self.starts > 1:
            verdict = "trust" if found["agreement"] <= 1.0 else "caution"
            out.append(Check("starts", found["agreement"], verdict, "nats between the best and the worst bound"))
        return out

    def _movement_check(self, found: dict[str, Any]) -> Check:
        """What matched moments still moved; moments that moved by more than ``MOVED`` were replaced by a climb."""
        sentence = "sds by which means and sds moved between the last two averages over iterations"
        return Check("movement", found["movement"], "trust", sentence)

    def _gain_check(self, posterior: Learnt) -> Check:
        found = posterior.found
        gain, error = found["gain"], found["gain error"]
        chance = max(self.tolerance, SIGMAS * error)
        far = abs(gain) > FAR + chance and posterior.model.start is None  # networks are judged by their predictions
        verdict = "trust" if abs(gain) <= chance else "reject" if far else "caution"
        sentence = "nats that the last stage of the climb added to the bound; 0 once the climb has converged"
        sentence += "" if verdict == "trust" else ": raise steps= or epochs="
        shaped = any(c.name == SHAPE and c.verdict == "trust" for c in posterior.verification)
        if verdict == "trust" and found.get("cut", False) and not shaped:
            verdict = "caution"
            sentence += ": a stage used up its steps before its bound settled, so further stages could add more"
        if verdict == "trust" and chance > VAGUE and posterior.model.start is None and not shaped:
            verdict = "caution"
            sentence += f"; known to ± {chance:.2g}, which would hide a mean that is 0.2 sd off: raise batch_size="
        return Check("bound's gain", gain, verdict, sentence)


@dataclass(frozen=True, kw_only=True)
class MeanField(Variational):
    """Independent normals over the unconstrained parameters (ADVI, Kucukelbir et al. 2017).

    It is cheap and scales to many parameters. If parameters are correlated, it understates their variances: it finds
    1/Λᵢᵢ instead of Σᵢᵢ, where Λ = Σ⁻¹. The report's k-hat is the tail index of the importance weights of q. If it is
    high, do not use this method's intervals; use ``linear_response=True``, FullRank or NUTS.

    Args:
        linear_response: also estimate the covariance, from how the means of q would move if log p changed
            (``vi.linear_response``); the result is then a normal with that covariance. It is exact for a normal
            posterior and good where the means are right. It takes 256 gradients a parameter on all rows, for at most
            200 parameters. The other fields are those of ``Variational``.
    """

    label: ClassVar[str] = "meanfield"
    kind: ClassVar[str] = "mean field"
    outside: ClassVar[tuple[str, ...]] = (*Variational.outside, "linear_response")
    linear_response: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(not self.linear_response or self.divergence == "reverse", "linear_response", "divergence='reverse'")

    def needed(self, model: Model) -> Any:
        model = super().needed(model)
        if self.linear_response and model.space.size > linear_response.MOST:
            raise ModelError(
                f"MeanField(linear_response=True) expects at most {linear_response.MOST} parameters; got "
                f"{model.space.size}. Leave it out, or use LowRank() or NUTS()."
            )
        return model

    def plan(self, data: Data | None) -> Plan | None:
        if self.linear_response and data is not None and not data.resident:
            raise DataError("MeanField(linear_response=True) expects rows in memory; got rows on file: leave it out.")
        return super().plan(data)

    def family(self, size: int) -> Approximation:
        return approximations.mean_field(size)

    @property
    def advice(self) -> str:
        return super().advice if self.linear_response else f"give linear_response=True, or {super().advice}"

    def answer(self, session: Session, phi: PyTree, found: dict[str, Any]) -> tuple[str, PyTree]:
        if not self.linear_response:
            return super().answer(session, phi, found)
        model, data, q = session.model, session.data, self.family(session.model.space.size)
        mean, sd = np.asarray(q.mean(phi)), np.asarray(q.sd(phi))
        root = linear_response.root_of_covariance(model, data, mean, sd, jax.random.fold_in(session.key, 2))
        found |= {"gradients for sds": linear_response.gradients(len(mean)), "linear response": root is not None}
        if root is None:
            return super().answer(session, phi, found)
        return "full rank", approximations.of_root(jnp.asarray(mean), jnp.asarray(root, mean.dtype))

    def checks(self, posterior: Learnt) -> list[Check]:
        if posterior.found.get("linear response", True):
            return super().checks(posterior)
        sentence = "the bound has no maximum where the climb ended, so sds are those of the mean field: raise steps="
        return [*super().checks(posterior), Check("linear response", math.nan, "caution", sentence)]


@dataclass(frozen=True, kw_only=True)
class FullRank(Variational):
    """A normal with a full covariance, which has d(d + 3)/2 numbers; for up to some hundreds of parameters.

    Args: as for ``Variational``.
    """

    label: ClassVar[str] = "fullrank"
    kind: ClassVar[str] = "full rank"

    def family(self, size: int) -> Approximation:
        return approximations.full_rank(size)


@dataclass(frozen=True, kw_only=True)
class LowRank(Variational):
    """A normal with covariance diag(σ²) + F Fᵀ (Ong, Nott & Smith 2018), whose sds are those of a full covariance.

    For at most 1,000 parameters and rows in memory, ``vi.match`` finds a full covariance whose scores agree with those
    of the posterior, in at most 4,096 gradients, and returns the nearest covariance of this form; it has the same sds.
    The maximum of the bound has smaller ones, wherever more than ``rank`` directions are correlated. The bound is
    maximised for networks, batches, a mesh, the forward divergence, start="random", an optimiser or a schedule of one's
    own, solver="stochastic" or "quadrature", and where the matched normal still moves by 0.2 sd (docs/decisions/066).

    Args:
        rank: the number of columns of F. The other fields are those of ``Variational``.
    """

    label: ClassVar[str] = "lowrank"
    kind: ClassVar[str] = "low rank"
    rank: Count = 5

    def family(self, size: int) -> Approximation:
        return approximations.low_rank(size, min(self.rank, size))

    def _solve(self, session: Session) -> tuple[PyTree, dict[str, Any], np.ndarray] | None:
        matched = self._match(session) if self._matches(session) else None
        if matched is None or not matched.movement <= MOVED:  # it may be NaN
            return super()._solve(session)
        unique, factor = nearest_of_low_rank(matched.covariance, min(self.rank, len(matched.mean)))
        phi = {"mean": matched.mean, "rho": approximations.inverse_softplus(jnp.sqrt(unique)), "factor": factor}
        found = {"movement": matched.movement, "evaluations": DRAWS * len(matched.bounds), "solver": "match"}
        phi = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), phi)
        return phi, found | {"objective": float(matched.bounds[-1])}, matched.bounds

    def _matches(self, session: Session) -> bool:
        """Whether scores are matched before a climb is tried."""
        model, data = session.model, session.data
        default = self.solver == "auto" and self.divergence == "reverse" and self.optimizer == "adam"
        on_all = self.batch_size is None and session.placement is ONE_DEVICE and self.at_mode(model, data)
        return default and on_all and model.start is None and not callable(self.learning_rate)

    def _match(self, session: Session) -> Matched | None:
        start = np.asarray(starts_of(session, session.key, 1)[0])
        mode, root = mode_and_root(session, start)
        root = UNKNOWN * np.eye(len(mode)) if root is None else root
        rng = np.random.default_rng(np.asarray(jax.random.key_data(session.key)))
        return match(density_of(session.model, session.data, start.dtype), mode, root, rng, session.stop)


def anchored_likelihood(model: Model, anchor: dict[str, jax.Array]) -> Callable:
    """A function that estimates the log likelihood of all rows from a batch, with control variates.

        (z, batch, k) ↦ k [l̂(z) − l̂(a) − ∇l̂(a)ᵀ(z − a)] + l(a) + ∇l(a)ᵀ(z − a)

    Here l̂ is the batch's log likelihood, and l that of all rows. Like k l̂(z), the estimate of l(z) is unbiased, but
    the part of its noise that is linear in z − a cancels. These are the control variates of Baker, Fearnhead, Fox &
    Nemeth 2019, applied to the value, so the gradient has them too.

    Args:
        anchor: "place" is a (d,), "value" is l(a), and "slope" is ∇l(a).
    """
    place = anchor["place"]

    def terms(z: jax.Array, batch: Batch) -> jax.Array:
        return model.log_likelihoods(model.params(z), batch.data)

    def likelihood(z: jax.Array, batch: Batch) -> jax.Array:
        return jnp.sum(batch.counted(terms(z, batch)))

    def gained(z: jax.Array, batch: Batch) -> jax.Array:
        return jnp.sum(batch.counted(terms(z, batch) - terms(place, batch)))

    def corrected(z: jax.Array, batch: Batch, scale: ArrayLike) -> jax.Array:
        slope = batch.summed(jax.grad(likelihood), place)  # the same for every draw of q
        remainder = scale * (batch.summed(gained, z) - jnp.dot(slope, z - place))
        return remainder + anchor["value"] + jnp.dot(anchor["slope"], z - place)

    return corrected


@compiled("model")
def _likelihood(model: Model, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The log likelihood Σ w_n log p(y_n | θ) and its gradient at an unconstrained position."""
    return jax.value_and_grad(lambda z: jnp.sum(batch.counted(model.log_likelihoods(model.params(z), batch.data))))(
        position
    )


def scaled(scale: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
    """An optax transformation that multiplies updates, elementwise, by ``scale(params)``."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda u, s: s * u, updates, scale(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
