"""The unknown as a normal q(z) over the unconstrained parameters, fitted by climbing a bound."""

import functools
import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tractable import approximations, objectives, quadrature
from tractable import run as loop
from tractable.approximations import Approximation
from tractable.checks.importance import khat_check, weigh
from tractable.core import Kernel, Model, log_posterior, whole
from tractable.kernels.ascend import ascend
from tractable.methods.drawing import chain_keys, starts
from tractable.methods.method import Check, Fitted, Method, Outcome, Program, Session, plan_batches
from tractable.methods.points import laplace_root, maximum
from tractable.tools import tree
from tractable.tools.data import Data, Plan, place, window
from tractable.tools.errors import ModelError, RunError, SettingsError

PyTree = Any
WINDOW = 200  # steps before a stage is first looked at
SHRINK = 0.3  # of the learning rate, from stage to stage
STAGES = 8
STAGE_SHARE = 0.6  # of the steps left, at most, that one stage may take
EVALUATED, FEW = 1000, 100  # paired draws of the bound, between stages; of a φ too large to average
WEIGHED = 1000  # draws whose weights are looked at, at the end
ROWS_WEIGHED = 1 << 28  # rows times draws times numbers up to which they are
SIGMAS = 2.0  # of the tests on the noisy bound
AVERAGED = 200_000  # numbers of φ up to which iterates are averaged; beyond, the last one stands for them
MODE_SIZE = 1000  # parameters up to which curvature is formed


class Climb(Program):
    """A kernel whose position is φ, not parameters; seen only where averages of it are affordable."""

    def observe(self, state: Any) -> jax.Array:
        if tree.size(state.position) > AVERAGED:
            return jnp.zeros(0)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state.position)])

    def describe(self, position: jax.Array) -> str:
        return "parameters of q"


@dataclass(frozen=True, kw_only=True)
class Variational(Method):
    """Common fields of the normal families.

    Args:
        divergence: "reverse" climbs the ELBO, KL(q ‖ p); "forward" KL(p ‖ q) by self-normalised importance sampling.
        gradient: "reparameterised", "path" (without the score of q) or "score" (``objectives.elbo``).
        control: control variate of the score function: None, "running-mean", "leave-one-out" or "fitted".
        samples: draws of q a step.
        batch_size: rows a step; None takes all.
        optimizer: "adam", whose learning rate is cut from stage to stage; or an optax optimiser, kept as it is.
        learning_rate: first step of Adam, in units of the start's standard deviations.
        steps: at most; the climb ends when a stage no longer gains ``tolerance``.
        tolerance: nats of the bound. A stage ends when its noisy bound shows no more trend; the run when the averaged
            iterates of two stages differ by less, on common random numbers, than this or than chance.
        tempering: temperatures T ≥ 1 of first stages, which flatten the posterior while q finds its place.
        start: "mode" (its curvature too, up to 1000 parameters) or "random".
        starts: climbs side by side; the best bound is kept and the report says whether they agree.
        solver: "quadrature" integrates over a linear predictor instead of drawing, which makes the bound
            deterministic; "stochastic" draws; "auto" the former where the model allows it.
        draws: independent draws of q that the posterior holds; ``sample`` makes fresh ones.
    """

    kind: ClassVar[str] = ""  # of ``approximations.of``
    divergence: str = "reverse"
    gradient: str = "reparameterised"
    control: str | None = "leave-one-out"
    samples: int = 8
    batch_size: int | None = None
    optimizer: Any = "adam"
    learning_rate: float = 0.1
    steps: int = 50_000
    tolerance: float = 0.01
    tempering: tuple[float, ...] = ()
    start: str = "mode"
    starts: int = 1
    solver: str = "auto"
    draws: int = 4000

    def __post_init__(self) -> None:
        self.check(self.divergence in ("reverse", "forward"), "divergence", "'reverse' or 'forward'")
        self.check(
            self.gradient in ("reparameterised", "path", "score"), "gradient", "'reparameterised', 'path' or 'score'"
        )
        self.check(self.control in objectives.CONTROLS, "control", "None, 'running-mean', 'leave-one-out' or 'fitted'")
        many = self.divergence == "forward" or (self.gradient == "score" and self.control == "leave-one-out")
        self.check_whole("samples", 2 if many else 1)
        if self.batch_size is not None:
            self.check_whole("batch_size")
        good = self.optimizer == "adam" or isinstance(self.optimizer, optax.GradientTransformation)
        self.check(good, "optimizer", "'adam' or an optax optimiser")
        self.check_positive("learning_rate")
        self.check_whole("steps")
        self.check_positive("tolerance")
        object.__setattr__(self, "tempering", tuple(float(t) for t in self.tempering))
        self.check(all(t >= 1 and math.isfinite(t) for t in self.tempering), "tempering", "temperatures ≥ 1")
        self.check(self.start in ("mode", "random"), "start", "'mode' or 'random'")
        self.check_whole("starts")
        self.check(
            self.solver in ("auto", "stochastic", "quadrature"), "solver", "'auto', 'stochastic' or 'quadrature'"
        )
        self.check_whole("draws")

    @property
    def minibatch(self) -> bool:
        return self.batch_size is not None

    def plan(self, data: Data | None) -> Plan | None:
        return None if self.batch_size is None else plan_batches(self, data, self.batch_size)

    def family(self, size: int) -> Approximation:
        """q over ``size`` numbers."""
        raise SettingsError(f"{type(self).__name__} has no family of its own; use MeanField, FullRank or LowRank.")

    def objective(self, model: Model, rows: PyTree, temperature: jax.Array) -> objectives.Objective:
        """The bound, on batches or on all rows; with a plan ``rows`` are only what batches are cut from."""
        q, target = self.family(model.space.size), log_posterior(model, flat=True)
        joint = target
        if self.batch_size is None:
            batch = None if rows is None else whole(rows)
            joint = lambda z, _: target(z, batch)  # noqa: E731
        if self.divergence == "forward":
            return objectives.inclusive(joint, q, samples=self.samples)
        return objectives.elbo(
            joint, q, samples=self.samples, gradient=self.gradient, control=self.control, temperature=temperature
        )

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        optimizer = self.optimizer
        if optimizer == "adam":
            scale = self.family(model.space.size).scale
            optimizer = optax.chain(
                optax.scale_by_adam(), scaled(tuned["learning_rate"], lambda phi: scale(phi, tuned["sd"]))
            )
        return ascend(self.objective(model, rows, tuned["temperature"]), optimizer)

    def learn(self, session: Session) -> Outcome:
        model, data = session.model, session.data
        q = self.family(model.space.size)
        began = time.perf_counter()
        interrupted, trace = False, {}
        exact = None
        if self.solver != "stochastic" and self.divergence == "reverse" and self.batch_size is None:
            exact = quadrature.structure(model, data)
        if exact is None and self.solver == "quadrature":
            raise ModelError(
                f"{type(self).__name__}(solver='quadrature') expects one linear predictor, normal or Laplace priors on "
                "its weights and at most one other number, on data in memory; this model has another shape. "
                "Use solver='stochastic'."
            )
        if exact is not None:
            phi, found = quadrature.climb(exact, q, model, data, stop=session.stop)
            interrupted = session.stop()
        else:
            phi, found, trace, interrupted = self._climb(session)
        climbed = time.perf_counter()
        weights = log_weights(model, data, q, phi, jax.random.fold_in(session.key, 1))
        if weights is not None:
            seen = weigh(weights)
            found |= {"elbo": seen.elbo, "elbo error": seen.error, "bound": seen.bound}
        draws = drawn(q, phi, draws_key(session.key), self.draws)
        seconds = {"climbing": climbed - began, "weighing": time.perf_counter() - climbed}
        fitted = Fitted(self.kind, jax.tree.map(np.asarray, phi), weights, trace)
        return Outcome(np.asarray(draws)[None], None, {}, None, None, found, interrupted, seconds, fitted)

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        """φ to begin with, a leading axis of starts."""
        return jax.vmap(self.family(model.space.size).init)(means, sds)

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        """φ of ``family`` from what the climb moved."""
        return phi

    def _climb(self, session: Session) -> tuple[PyTree, dict, dict, bool]:
        """Stages of stochastic ascent, each until its bound shows no trend; (φ, found, trace, interrupted).

        A stage is looked at after ``WINDOW`` steps, and again whenever it has doubled. It ends when its noisy bound
        shows no trend and, where iterates are averaged, the average of its last quarter gains nothing on that of the
        one before.
        """
        model, data, plan = session.model, session.data, self.plan(session.data)
        program = Climb(model, self, plan is not None and not data.resident)
        start_key, run_key = jax.random.split(session.key)
        means, sds = self.begin(session, start_key)
        positions = self.positions(model, means, sds)
        tuned = {"learning_rate": number(self.learning_rate), "temperature": number(1.0), "sd": sds[0]}
        keys = chain_keys(run_key, self.starts)
        rows = None if data is None or plan is not None else data.arrays()
        seen = _Seen(program, plan, data, rows, run_key, self.starts)
        signal_first = seen.signal(tuned, jax.tree.map(lambda a: a[0], positions))
        shape = self.shape(model, plan, positions)
        states = loop.begin(program, tuned, seen.within()[1], keys, positions)
        ravel, unravel = tree.raveller(jax.eval_shape(lambda p: jax.tree.map(lambda a: a[0], p), positions))
        averaging = tree.size(positions) // self.starts <= AVERAGED
        bounds, previous, averaged, done, interrupted = [], None, None, 0, False
        gain, error, small = math.inf, 0.0, 0
        most = -(-self.most(plan) // shape.group)
        rates = [
            self.learning_rate * SHRINK**k if self.optimizer == "adam" else self.learning_rate for k in range(STAGES)
        ]
        for rate, temperature in [(self.learning_rate, t) for t in self.tempering] + [(rate, 1.0) for rate in rates]:
            tuned |= {"learning_rate": number(rate), "temperature": number(temperature)}
            history, phis, length, begun = [], [], shape.capacity, done
            room = done + max(1, math.ceil(STAGE_SHARE * (most - done)))  # what is left is for smaller steps
            while done < room:
                result = loop.run(
                    program, shape, data, plan, tuned, keys, states,
                    groups=min(room, done + length), done=done, stop=session.stop,
                )  # fmt: skip
                states, done, interrupted = result.states, result.groups, result.interrupted
                history.append(result.info["objective"])
                phis.append(result.draws)
                session.say("climbing", done, most)
                trail = np.concatenate(phis, 1)
                quarter = trail.shape[1] // 4
                if interrupted or not settled(np.concatenate(history, 1)):
                    if interrupted:
                        break
                elif not averaging:
                    break
                else:
                    before, after = trail[:, -2 * quarter : -quarter].mean(1), trail[:, -quarter:].mean(1)
                    if not seen.gains(tuned, jax.vmap(unravel), before, after, self.tolerance):
                        break
                length = done - begun
            if not history:
                break
            bounds.append(np.concatenate(history, 1))
            last = np.asarray(jax.vmap(ravel)(states.position))
            averaged = np.concatenate(phis, 1)[:, -max(1, 2 * quarter) :].mean(1) if averaging else last
            if previous is not None and temperature == 1.0:
                gain, error = seen.gain(tuned, jax.vmap(unravel), previous, averaged)
                small = small + 1 if abs(gain) <= max(self.tolerance, SIGMAS * error) else 0
                if gain < -max(self.tolerance, SIGMAS * error):  # it drifted off: back, with smaller steps
                    averaged = previous
                    back = jax.vmap(unravel)(jnp.asarray(previous))
                    states = loop.begin(program, tuned, seen.within()[1], keys, back)
            previous = averaged if temperature == 1.0 else None
            if interrupted or small == 2 or done >= most:
                break
        if averaged is None:
            raise RunError("The climb was stopped before its first window was done.")
        pair = jax.vmap(unravel)(jnp.asarray(averaged))
        values = seen.values(tuned, pair)
        best = int(np.argmax(values.mean(1)))
        phi = jax.tree.map(lambda a: a[best], pair)
        found = {
            "objective": float(values[best].mean()),
            "gain": gain,
            "gain error": error,
            "steps": done * shape.group,
            "agreement": float(values[best].mean() - values.mean(1).min()),
            "signal at start": signal_first,
            "signal": seen.signal(tuned, phi),
        }
        return self.flat(model, phi), found, {"bound": np.concatenate(bounds, 1)[best]}, interrupted

    def most(self, plan: Plan | None) -> int:
        """Steps at most."""
        return self.steps

    def shape(self, model: Model, plan: Plan | None, positions: PyTree) -> loop.Shape:
        """The loop's: a segment is a window, of whole epochs where there are batches."""
        thin = 10
        noise = self.samples * self.family(model.space.size).noise
        shape = loop.shape(10**6, thin, noise, self.starts)
        epoch = 1 if plan is None else plan.count
        window = max(WINDOW, epoch * -(-WINDOW // epoch)) if epoch <= 10 * WINDOW else epoch
        return shape._replace(capacity=-(-window // shape.group))

    def begin(self, session: Session, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(start, d) means and standard deviations to begin with."""
        model, data = session.model, session.data
        positions = starts(model, data, key, self.starts)
        size = model.space.size
        if self.start == "random" or size > MODE_SIZE or (data is not None and not data.resident):
            scale = 0.1 if model.start is None else 0.01  # a network's start is a point that more noise would drown
            return positions, jnp.full(positions.shape, scale, positions.dtype)
        means, sds = [], []
        for position in positions:
            found = maximum(model, data, position, steps=500, tolerance=1e-4, jacobian=True, stop=session.stop)
            root = laplace_root(model, data, found.position)
            good = np.all(np.isfinite(found.position))
            means.append(found.position if good else np.asarray(position))
            # Of a mean field at its optimum, were the posterior normal: 1/√Λᵢᵢ.
            sds.append(np.full(size, 0.1) if root is None or not good else conditional_sd(root))
        return jnp.asarray(np.stack(means), positions.dtype), jnp.asarray(np.stack(sds), positions.dtype)

    def checks(self, posterior: Any) -> list[Check]:
        found, out = posterior.found, []
        gain, error = found["gain"], found["gain error"]
        done = abs(gain) <= max(self.tolerance, SIGMAS * error)
        out.append(
            Check(
                "bound's gain", gain, "trust" if done else "caution",
                "nats that the last stage of the climb added; 0 once it has converged",
            )
        )  # fmt: skip
        if posterior.fitted is not None and posterior.fitted.log_weights is not None:
            out.append(khat_check(weigh(posterior.fitted.log_weights)))
        else:
            out.append(Check("k-hat", math.nan, "caution", "not computed at this size: judge by predictions held out"))
        if self.starts > 1:
            agree = found["agreement"] <= 1.0
            out.append(
                Check(
                    "starts", found["agreement"], "trust" if agree else "caution", "nats between best and worst start"
                )
            )
        if math.isfinite(found.get("signal at start", math.nan)):
            out.append(
                Check(
                    "gradient signal", found["signal at start"], "trust",
                    "‖E g‖² over the noise of one step's gradient, where the climb began",
                )
            )  # fmt: skip
        return out


@dataclass(frozen=True, kw_only=True)
class MeanField(Variational):
    """Independent normals over the unconstrained parameters (ADVI, Kucukelbir et al. 2017).

    Cheap and scalable. Understates sds where parameters are correlated (1/Λᵢᵢ for Σᵢᵢ): do not use its intervals
    where the report's k-hat says otherwise; use FullRank or NUTS.

    Args: as for ``Variational``.
    """

    label: ClassVar[str] = "meanfield"
    kind: ClassVar[str] = "mean field"

    def family(self, size: int) -> Approximation:
        return approximations.mean_field(size)


@dataclass(frozen=True, kw_only=True)
class FullRank(Variational):
    """A normal of any covariance: d(d + 3)/2 numbers, up to some hundreds of parameters.

    Args: as for ``Variational``.
    """

    label: ClassVar[str] = "fullrank"
    kind: ClassVar[str] = "full rank"

    def family(self, size: int) -> Approximation:
        return approximations.full_rank(size)


@dataclass(frozen=True, kw_only=True)
class LowRank(Variational):
    """A normal of covariance diag(σ²) + F Fᵀ (Ong, Nott & Smith 2018).

    Args:
        rank: columns of F. Others as for ``Variational``.
    """

    label: ClassVar[str] = "lowrank"
    kind: ClassVar[str] = "low rank"
    rank: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole("rank")

    def family(self, size: int) -> Approximation:
        return approximations.low_rank(size, min(self.rank, size))


class _Seen(NamedTuple):
    """Looks at the bound beside the climb, on noise and batches of its own."""

    program: Climb
    plan: Plan | None
    data: Any  # Data, or None
    rows: PyTree
    key: jax.Array
    starts: int

    def within(self) -> tuple[Plan | None, PyTree]:
        """Plan and rows in memory: of data on file one first batch stands for all."""
        if self.plan is None:
            return None, self.rows
        if self.data.resident:
            return self.plan, self.data.windows(self.plan.width)
        first = self.data.take(slice(0, self.plan.width))
        return Plan(first.size, first.size), first.windows(first.size)

    def values(self, tuned: PyTree, phis: PyTree) -> np.ndarray:
        """(φ, draw) the noisy bound of several φ on common random numbers."""
        plan, rows = self.within()
        return np.asarray(_values(self.program, plan, tuned, rows, phis, self.key), np.float64)

    def gain(self, tuned: PyTree, unravel: Any, before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
        """What ``after`` (start, p) gains on ``before``, at the start that gains most surely; and its error."""
        values = self.values(tuned, unravel(jnp.concatenate([jnp.asarray(before), jnp.asarray(after)])))
        gains = values[self.starts :] - values[: self.starts]
        errors = gains.std(1, ddof=1) / math.sqrt(gains.shape[1])
        worst = int(np.argmax(gains.mean(1) - SIGMAS * errors))
        return float(gains[worst].mean()), float(errors[worst])

    def gains(self, tuned: PyTree, unravel: Any, before: np.ndarray, after: np.ndarray, tolerance: float) -> bool:
        """Whether it gains more than the tolerance and than chance."""
        gain, error = self.gain(tuned, unravel, before, after)
        return gain > max(tolerance, SIGMAS * error)

    def signal(self, tuned: PyTree, phi: PyTree) -> float:
        """‖E g‖² / tr Cov g of one step's gradient estimate."""
        plan, rows = self.within()
        return float(_signal(self.program, plan, tuned, rows, phi, self.key))


def scaled(rate: jax.Array, scale: Any) -> optax.GradientTransformation:
    """Updates times −rate and, number by number, ``scale(params)``."""

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(lambda u, s: -rate * s * u, updates, scale(params)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def number(value: float) -> jax.Array:
    return jnp.asarray(value, jnp.result_type(float))


def settled(history: np.ndarray) -> bool:
    """Whether the last half of a noisy trace (start, window) shows no trend upward.

    The means of its two halves differ by less than ``SIGMAS`` standard errors, from batch means, which allow for
    dependence between neighbours.
    """
    tail = history[:, history.shape[1] // 2 :]
    half = tail.shape[1] // 2
    if half < 5:
        return False
    first, last = tail[:, :half], tail[:, -half:]
    batches = 5
    width = half // batches

    def error(x: np.ndarray) -> np.ndarray:
        means = x[:, : width * batches].reshape(len(x), batches, width).mean(2)
        return means.var(1, ddof=1) / batches

    gain = last.mean(1) - first.mean(1)
    return bool(np.all(gain <= SIGMAS * np.sqrt(error(first) + error(last))))


def conditional_sd(root: np.ndarray) -> np.ndarray:
    """1/√Λᵢᵢ of Σ = root rootᵀ."""
    precision_root = np.linalg.inv(root)
    return 1 / np.sqrt(np.square(precision_root).sum(0))


@functools.partial(jax.jit, static_argnames=("program", "plan"))
def _values(program: Climb, plan: Plan | None, tuned: PyTree, rows: PyTree, phis: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned["temperature"])
    first = jax.tree.map(lambda a: a[0], phis)

    def once(t: jax.Array) -> jax.Array:
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, first))
        return jax.vmap(lambda phi: objective.value(noise, phi, batch))(phis)

    return jax.lax.map(once, jnp.arange(EVALUATED if tree.size(first) <= AVERAGED else FEW)).T


@functools.partial(jax.jit, static_argnames=("program", "plan"))
def _signal(program: Climb, plan: Plan | None, tuned: PyTree, rows: PyTree, phi: PyTree, key: jax.Array) -> jax.Array:
    method: Any = program.method
    objective = method.objective(program.model, rows, tuned["temperature"])
    count = 32

    def once(carry: tuple, t: jax.Array) -> tuple[tuple, None]:
        total, square, memory = carry
        batch = None if plan is None else window(rows, plan, *place(plan, key, t))
        noise = jax.tree.map(lambda a: a[0], objective.draw(jax.random.fold_in(key, t), 1, phi))
        if objective.slope is None:
            gradient = jax.grad(objective.value, argnums=1)(noise, phi, batch)
        else:
            _, gradient, memory = objective.slope(noise, phi, batch, memory)
        return (jax.tree.map(jnp.add, total, gradient), square + tree.dot(gradient, gradient), memory), None

    nothing = jax.tree.map(jnp.zeros_like, phi)
    start = (nothing, jnp.zeros((), jax.tree.leaves(phi)[0].dtype), objective.remember(phi))
    (total, square, _), _ = jax.lax.scan(once, start, jnp.arange(count))
    mean = tree.dot(total, total) / count**2
    noise = (square / count - mean) * count / (count - 1)
    return jnp.maximum(mean - noise / count, 0) / jnp.maximum(noise, jnp.finfo(noise.dtype).tiny)


def draws_key(seed: jax.Array | int | None) -> jax.Array:
    """Of the draws that a posterior holds: they are made again when it is loaded."""
    key = seed if isinstance(seed, jax.Array) else jax.random.key(seed or 0)
    return jax.random.fold_in(key, 2)


def drawn(q: Approximation, phi: PyTree, key: jax.Array, count: int) -> jax.Array:
    """(count, d) independent draws of q."""
    noise = jax.random.normal(key, (count, q.noise), phi["mean"].dtype)
    return jax.vmap(lambda eps: q.sample(phi, eps))(noise)


def log_weights(model: Model, data: Data | None, q: Approximation, phi: PyTree, key: jax.Array) -> np.ndarray | None:
    """log p(y, z) − log q(z) of independent draws of q, (S,); None where that is too much work."""
    size = 1 if data is None else data.size
    if data is not None and (not data.resident or size * WEIGHED * model.space.size > ROWS_WEIGHED * 64):
        return None
    rows = None if data is None else data.arrays()
    return np.asarray(_weights(model, q, rows, phi, key), np.float64)


@functools.partial(jax.jit, static_argnames=("model", "q"))
def _weights(model: Model, q: Approximation, rows: PyTree, phi: PyTree, key: jax.Array) -> jax.Array:
    target = log_posterior(model, flat=True)
    batch = None if rows is None else whole(rows)
    eps = jax.random.normal(key, (WEIGHED, q.noise), phi["mean"].dtype)

    def one(eps: jax.Array) -> jax.Array:
        z = q.sample(phi, eps)
        return target(z, batch) - q.log_prob(phi, z)

    return jax.lax.map(one, eps, batch_size=16)
