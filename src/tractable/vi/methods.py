"""Variational inference: a normal q(z) over the unconstrained parameters, fitted by climbing a bound."""

import math
import time
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
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree, log_posterior, whole
from tractable.core.rows import Batch, Data, Plan
from tractable.core.settings import Count, Positive, Range, is_number
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
from tractable.engine.method import Check, Method, Optimiser, Outcome, Session
from tractable.engine.placement import ONE_DEVICE
from tractable.engine.search import Ends, laplace_root, maximum, nearer
from tractable.engine.staged_climb import WINDOW, Problem, climb_in_stages
from tractable.vi import multi_output, quadrature
from tractable.vi.elbo import Control, Gradient, elbo, inclusive

THIN = 10  # steps of a climb for each value of its traces
MODE_SIZE = 1000  # parameters up to which a climb starts at the mode
ROWS_EACH, NEAR = 20, 3.0  # rows a parameter from which, and sds between starts up to which, batches are corrected
VAGUE = 0.1  # nats that a bound must be known to, where nothing else says that means and sds are right
FAR = 1.0  # nats of the last gain above which the result is rejected


@dataclass(frozen=True, kw_only=True)
class Variational(Method):
    """The common fields of the normal families.

    Args:
        divergence: "reverse" climbs the ELBO, KL(q ‖ p); "forward" KL(p ‖ q) by self-normalised importance sampling.
        gradient: "reparameterised", "path" (without the score of q) or "score" (``vi.elbo``).
        control: control variate of the score function: None, "running-mean", "leave-one-out" or "fitted".
        samples: draws of q per step.
        batch_size: rows per step; None takes all.
        optimizer: "adam", whose learning rate falls from stage to stage; or an optax optimiser, used unchanged.
        learning_rate: Adam's first learning rate, in units of the starting standard deviations.
        steps: most steps; the climb ends earlier once stages no longer gain ``tolerance``.
        tolerance: nats of the bound. A stage ends when its noisy bound shows no trend. The run ends when the averaged
            iterates of two stages differ, on common random numbers, by less than this or than chance.
        tempering: temperatures T ≥ 1 of the first stages, which flatten the posterior while q moves into place.
        start: "mode", with the curvature there, up to 1000 parameters; or "random".
        starts: climbs side by side; the best bound is kept and the report says whether they agree.
        solver: "quadrature" integrates over a linear predictor instead of drawing, which makes the bound
            deterministic, on one device (of FullRank also over several, as of classes); "stochastic" draws; "auto"
            takes quadrature where the model allows it.
        draws: independent draws of q in the posterior; ``sample`` makes fresh ones.
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
    learning_rate: Positive = 0.1
    steps: Count = 50_000
    tolerance: Positive = 0.01
    tempering: Annotated[
        tuple[float, ...],
        Range("temperatures ≥ 1", lambda ts: np.ndim(ts) == 1 and all(is_number(t) and t >= 1 for t in ts)),
    ] = ()
    start: Literal["mode", "random"] = "mode"
    starts: Count = 1
    solver: Literal["auto", "stochastic", "quadrature"] = "auto"
    draws: Count = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tempering", tuple(float(t) for t in self.tempering))
        many = self.divergence == "forward" or (self.gradient == "score" and self.control == "leave-one-out")
        self.check(not many or self.samples > 1, "samples", "a whole number ≥ 2")

    def family(self, size: int) -> Approximation:
        """q over ``size`` numbers."""
        raise SettingsError(f"{type(self).__name__} has no family of its own; use MeanField, FullRank or LowRank.")

    def objective(self, model: Model, rows: PyTree, tuned: PyTree) -> Objective:
        """The bound, on minibatches (cut from ``rows``) or on all ``rows``."""
        q, target, temperature = self.family(model.space.size), log_posterior(model, flat=True), tuned["temperature"]
        every = whole(rows) if self.batch_size is None and rows is not None else None
        corrected = anchored(model, tuned["anchor"]) if "anchor" in tuned else None

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
            optimizer = optax.chain(
                optax.scale_by_adam(), scaled(tuned["learning_rate"], lambda phi: scale(phi, tuned["sd"]))
            )
        return ascend(self.objective(model, rows, tuned), optimizer)

    def learn(self, session: Session) -> Outcome:
        model, data = session.model, session.data
        q = self.family(model.space.size)
        began = time.perf_counter()
        interrupted, traces, every = False, {}, 1
        solved = self._solved(session)
        if solved is not None:
            phi, found, values = solved
            interrupted, traces = session.stop(), {"objective": values[None]}
        else:
            climbed = climb_in_stages(self, session)
            phi, found, interrupted = self.flat(model, climbed.phi), climbed.found, climbed.interrupted
            traces, every = climbed.traces, THIN
        ended = time.perf_counter()
        weights = log_weights(model, data, q, phi, jax.random.fold_in(session.key, 1))
        if weights is not None:
            seen = weigh(weights)
            found |= {"elbo": seen.elbo, "elbo error": seen.error, "bound": seen.bound}
        draws = approximations.drawn(q, phi, draws_key(session.key), self.draws)
        seconds = {"climbing": ended - began, "weighing": time.perf_counter() - ended}
        phi = jax.tree.map(np.asarray, phi)
        fitted = Fitted(
            positions=np.asarray(draws)[None], family=self.kind, phi=phi, log_weights=weights, info=traces, thin=every
        )
        return Outcome(fitted, found, seconds, interrupted)

    def _solved(self, session: Session) -> tuple[PyTree, dict[str, Any], np.ndarray] | None:
        """φ, figures and values of a climb without noise, where the model has a linear predictor; None elsewhere."""
        model, data, stop = session.model, session.data, session.stop
        exact = factors = None
        if self.solver != "stochastic" and self.divergence == "reverse" and self.batch_size is None:
            exact = quadrature.structure(model, data)
            factors = multi_output.structure(model, data) if exact is None and self.kind == "full rank" else None
        if exact is None and factors is None:
            if self.solver != "quadrature":
                return None
            raise ModelError(
                f"{type(self).__name__}(solver='quadrature') expects one linear predictor, normal or Laplace priors on "
                "its weights and at most one other number, on data in memory (FullRank also several predictors, as of "
                "classes, and no other number); this model has another shape. Use solver='stochastic'."
            )
        if session.placement is not ONE_DEVICE:  # it takes some fifty evaluations, a climb a thousand steps
            tell(
                f"{type(self).__name__} integrates over this model's linear predictor on one device, so mesh= does "
                "nothing here. Where one device cannot hold the rows, give solver='stochastic'."
            )
        if exact is not None:
            return quadrature.climb(exact, self.family(model.space.size), model, data, stop=stop)
        assert factors is not None
        start = np.zeros(model.space.size, jnp.result_type(float))
        mode = maximum(model, data, start, jacobian=True, ends=Ends(500, 1e-4, stop)).position
        root = laplace_root(model, data, mode)
        return multi_output.climb(factors, model, data, mode, root, self.tolerance, stop)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        if "steps" not in found:  # by quadrature, each evaluation on all rows
            return Cost(found["evaluations"], 0.0)
        gradients = found["steps"] * self.samples * self.starts + found.get("gradients for σ", 0)
        return Cost(gradients * self.share(data), 0.0)

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        """The starting φ, with a leading axis of starts."""
        return jax.vmap(self.family(model.space.size).init)(means, sds)

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        """``family``'s φ from the climb's position."""
        return phi

    def most(self, plan: Plan | None) -> int:
        """The largest number of steps."""
        return self.steps

    def finish(self, problem: Problem, phi: PyTree, steps: int) -> tuple[PyTree, dict[str, Any]]:
        """φ after any work that follows a climb of ``steps`` steps, and figures about that work."""
        return phi, {}

    def shape(self, model: Model, data: Data | None, plan: Plan | None, positions: PyTree) -> loop.Shape:
        """The loop's: a segment is a window, of whole epochs where there are batches whose noise has to sum to zero."""
        noise = self.samples * self.family(model.space.size).noise
        shape = loop.shape(10**6, THIN, noise, self.starts, moments=True)
        epoch = 1 if plan is None or self.corrects(model, data) else plan.count
        window = max(WINDOW, epoch * -(-WINDOW // epoch)) if epoch <= 10 * WINDOW else epoch
        return shape._replace(capacity=-(-window // shape.group))

    def begin(self, session: Session, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(start, d) starting means and standard deviations."""
        model, data = session.model, session.data
        positions = starts_of(session, key, self.starts)
        if not self.at_mode(model, data):
            scale = 0.1 if model.start is None else 0.01  # more noise would swamp a network's starting weights
            return positions, jnp.full(positions.shape, scale, positions.dtype)
        means, sds, data = [], [], None if data is None else data.sketched()
        for position in np.asarray(positions):
            found = maximum(model, data, position, jacobian=True, ends=Ends(500, 1e-4, session.stop)).position
            good = np.all(np.isfinite(found))
            root = laplace_root(model, data, found)
            if good and data is not session.data and session.data is not None:
                found = nearer(model, session.data, found, root)
            means.append(found if good else np.asarray(position))
            # A mean field's optimum, were the posterior normal: 1/√Λᵢᵢ.
            sds.append(np.full(model.space.size, 0.1) if root is None or not good else conditional_sd(root))
        return jnp.asarray(np.stack(means), positions.dtype), jnp.asarray(np.stack(sds), positions.dtype)

    def anchor(self, session: Session, means: jax.Array, sds: jax.Array) -> dict[str, jax.Array]:
        """A place near the mode, and what all rows say there, by which batches are corrected; empty where none is.

        Where rows are many to a parameter they are nearly quadratic within the posterior's width, and what is left of
        a batch's noise is small: an average of climbs then knows means to far less than their sds.
        """
        near = np.all(np.abs(np.asarray(means) - np.asarray(means[0])) <= NEAR * np.asarray(sds[0]))
        if session.data is None or not near or not self.corrects(session.model, session.data):
            return {}
        value, slope = _likelihood(session.model, means[0], whole(session.data.arrays()))
        known = np.isfinite(value) and np.all(np.isfinite(slope))
        return {"place": means[0], "value": value, "slope": slope} if known else {}

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
                return out  # later states predicted worse
        gain, error = found["gain"], found["gain error"]
        chance = max(self.tolerance, SIGMAS * error)
        far = abs(gain) > FAR + chance and posterior.model.start is None  # networks are judged by their predictions
        verdict = "trust" if abs(gain) <= chance else "reject" if far else "caution"
        sentence = "nats that the last stage of the climb added; 0 once it has converged"
        sentence += "" if verdict == "trust" else ": raise steps= or epochs="
        shaped = any(c.name == SHAPE and c.verdict == "trust" for c in posterior.verification)
        if verdict == "trust" and found.get("cut", False) and not shaped:
            verdict = "caution"
            sentence += ": a stage had used up its steps before its bound settled, so that the next ones may add more"
        if verdict == "trust" and chance > VAGUE and posterior.model.start is None and not shaped:
            verdict = "caution"
            sentence += f"; known to ± {chance:.2g}, which does not tell a mean 0.2 sd off: raise batch_size="
        out.append(Check("bound's gain", gain, verdict, sentence))
        weights = None if posterior.fitted is None else posterior.fitted.log_weights
        if posterior.verification:
            pass  # the verification says more than q's own weights
        elif weights is not None:
            out.append(khat_check(weigh(weights)))
        else:
            out.append(Check("k-hat", math.nan, "caution", "not computed at this size: judge by held-out predictions"))
        if self.starts > 1:
            verdict = "trust" if found["agreement"] <= 1.0 else "caution"
            out.append(Check("starts", found["agreement"], verdict, "nats between best and worst start"))
        signal = found.get("signal at start", math.nan)
        if math.isfinite(signal):
            sentence = "‖E g‖² over the noise of one step's gradient, where the climb began"
            out.append(Check("gradient signal", signal, "trust", sentence))
        return out


@dataclass(frozen=True, kw_only=True)
class MeanField(Variational):
    """Independent normals over the unconstrained parameters (ADVI, Kucukelbir et al. 2017).

    Cheap and scalable. It understates variances where parameters are correlated (1/Λᵢᵢ for Σᵢᵢ): where the report's
    k-hat is high, do not use its intervals; use FullRank or NUTS.

    Args: as for ``Variational``.
    """

    label: ClassVar[str] = "meanfield"
    kind: ClassVar[str] = "mean field"

    def family(self, size: int) -> Approximation:
        return approximations.mean_field(size)


@dataclass(frozen=True, kw_only=True)
class FullRank(Variational):
    """A normal with a full covariance: d(d + 3)/2 numbers, for up to some hundreds of parameters.

    Args: as for ``Variational``.
    """

    label: ClassVar[str] = "fullrank"
    kind: ClassVar[str] = "full rank"

    def family(self, size: int) -> Approximation:
        return approximations.full_rank(size)


@dataclass(frozen=True, kw_only=True)
class LowRank(Variational):
    """A normal with covariance diag(σ²) + F Fᵀ (Ong, Nott & Smith 2018).

    Args:
        rank: columns of F. Other fields as for ``Variational``.
    """

    label: ClassVar[str] = "lowrank"
    kind: ClassVar[str] = "low rank"
    rank: Count = 5

    def family(self, size: int) -> Approximation:
        return approximations.low_rank(size, min(self.rank, size))


def anchored(model: Model, anchor: dict[str, jax.Array]) -> Callable:
    """``(z, batch, k) -> k [l̂(z) − l̂(a) − ∇l̂(a)ᵀ(z − a)] + l(a) + ∇l(a)ᵀ(z − a)``, l̂ the batch's log likelihood.

    As unbiased for l(z) as k l̂(z) is, and without what is linear in its noise: control variates of Baker, Fearnhead,
    Fox & Nemeth 2019 for the value, so that gradients have them too.

    Args:
        anchor: a as "place" (d,), l(a) of all rows as "value" and ∇l(a) as "slope".
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
        beyond = scale * (batch.summed(gained, z) - jnp.dot(slope, z - place))
        return beyond + anchor["value"] + jnp.dot(anchor["slope"], z - place)

    return corrected


@compiled("model")
def _likelihood(model: Model, position: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Σ w_n log p(y_n | θ) and its gradient at a flat position."""
    return jax.value_and_grad(lambda z: jnp.sum(batch.counted(model.log_likelihoods(model.params(z), batch.data))))(
        position
    )


def scaled(rate: jax.Array, scale: Callable[[PyTree], PyTree]) -> optax.GradientTransformation:
    """Multiplies updates by −rate and, elementwise, by ``scale(params)``."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda u, s: -rate * s * u, updates, scale(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def conditional_sd(root: np.ndarray) -> np.ndarray:
    """1/√Λᵢᵢ, where Λ⁻¹ = root rootᵀ."""
    precision_root = np.linalg.inv(root)
    return 1 / np.sqrt(np.square(precision_root).sum(0))
