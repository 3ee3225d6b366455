"""EM whose E-step cannot be exact: z is drawn (Monte-Carlo EM)."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.checks.convergence import check_share
from tractable.core import whole
from tractable.kernels import monte_carlo_em as drawn
from tractable.kernels.em import observed
from tractable.latent import LatentModel
from tractable.methods.drawing import ATTEMPTS, chain_keys
from tractable.methods.maximisation import SAME, beginnings, examined, latent
from tractable.methods.method import Check, Method, Outcome, Session
from tractable.methods.points import INFORMATION
from tractable.tools.data import Data
from tractable.tools.errors import DataError, ModelError, RunError, SettingsError

PyTree = Any
CHAINS = 4  # a datum, whose spread is the Monte-Carlo error
STALL = 6  # steps at one S, of which the later half gains no less than the earlier: noise
QUIET = 3  # steps in a row that are to say that it ends: noise makes one by chance (Booth & Hobert 1999)
HALF = 0.125  # nats below the maximum that are half a standard error
WORK = 1 << 36  # rows times draws times parameters up to which Louis's errors are computed
HIDDEN = 20  # effective draws a datum below which the Monte-Carlo error itself is a guess
DRAWN_ROWS = 1000  # that a start is tried on


@dataclass(frozen=True, kw_only=True)
class MonteCarloEM(Method):
    """EM whose z is drawn: a maximum of log p(θ) + Σ log p(x_n | θ) where z can be neither summed nor integrated out.

        E:  z_ns ~ p(z | x_n, θ), s = 1 … S      M:  θ' = argmax (1/S) Σ_s Σ_n log p(x_n, z_ns | θ') + log p(θ')

    **It does not promise to climb at every step**, as exact EM does: with S fixed θ wanders about the maximum for ever.
    S therefore grows: a step is taken if its gain in Q exceeds its Monte-Carlo error, gain − z_level σ̂ > 0, else S
    doubles, the draws there are being kept, and the step is made again. It ends when gain + z_level σ̂ < tolerance in
    three steps running (Caffo, Jank & Jones 2005). The gain is in the sample that chose θ', hence optimistic by up to
    d/(2S) nats, behind which errors hide where there are many parameters: S doubles too when the gains of six steps at
    one S stop shrinking. At ``most`` draws it ends after three steps within their noise.

    Args:
        kernel: what draws z given x: "mala", "random-walk", "hmc", "nuts" (four chains a datum, on unconstrained z,
            which go on from step to step), "rejection" (z ~ p(z|θ), needs ``bound``), or a function
            ``log_density -> Kernel`` of one datum's flat unconstrained z. A z of few values is drawn exactly, whatever
            is said here.
        draws: S a datum to begin with, a multiple of 4; never fewer at a later step.
        most: S at most; memory is O(rows · S).
        warmup: steps of the chains at the first θ, thrown away, in which their step size is found.
        burn: steps thrown away at every new θ.
        steps: of EM, at most.
        tolerance: nats of the whole objective (not a datum) that a step may still gain at the end, with its error. What
            is left is up to 1/(1 − r) of it, r the largest share of information that z hides; a θ half a nat below the
            maximum is one standard error off.
        level: of both bounds, one-sided, in (0.5, 1).
        starts: climbs from starts of their own; the best is kept and the report says how they agree.
        inner: steps of L-BFGS in an M-step that has no closed form.
        prior: climb log p(θ) too. False for a likelihood alone; a closed-form M-step must fit the choice.
        bound: ``(params, datum) -> log M`` with M ≥ sup_z p(x | z, θ), for "rejection"; datum is y, or (y, x). Equality
            is best; a bound that a draw exceeds is an error.

    Needs a ``LatentModel`` with ``latent`` and ``likelihood``, and rows in memory. Standard errors from the observed
    information, by Louis's identity over the last draws; ``found["monte carlo error"]`` is how far the same run with
    other draws would end, a standard deviation for every number of θ. ``found["objective"]`` is NaN where z cannot be
    summed out: ``tr.log_evidence`` estimates p(x | θ).
    """

    label: ClassVar[str] = "monte-carlo-em"
    point: ClassVar[bool] = True
    kernel: Any = "mala"  # pyright: ignore[reportIncompatibleMethodOverride]
    draws: int = 8
    most: int = 1024
    warmup: int = 200
    burn: int = 5
    steps: int = 200
    tolerance: float = 1e-2
    level: float = 0.95
    starts: int = 2
    inner: int = 10
    prior: bool = True
    bound: Callable | None = None

    def __post_init__(self) -> None:
        known = isinstance(self.kernel, str) and self.kernel in drawn.KERNELS
        names = ", ".join(repr(name) for name in drawn.KERNELS)
        self.check(known or callable(self.kernel), "kernel", f"one of {names}, or a function log_density -> Kernel")
        self.check_whole("draws", CHAINS)
        self.check(self.draws % CHAINS == 0, "draws", f"a multiple of {CHAINS}, the chains of a datum")
        self.check_whole("most", self.draws)
        self.check_whole("warmup", 0)
        self.check_whole("burn", 0)
        for field in ("steps", "starts", "inner"):
            self.check_whole(field)
        self.check_positive("tolerance")
        self.check_between("level", 0.5, 1)
        self.check(isinstance(self.prior, bool), "prior", "True or False")
        self.check(self.bound is None or callable(self.bound), "bound", "a function (params, datum) -> log M, or None")
        if self.kernel == "rejection" and self.bound is None:
            raise SettingsError(
                "MonteCarloEM(kernel='rejection') needs bound=, a function (params, datum) -> log M with "
                "M ≥ sup_z p(x | z, θ)."
            )

    def log_prior(self, model: Any) -> Callable | None:
        """What is climbed beside the likelihood."""
        return model.log_prior if self.prior else None

    def sampler(self, model: LatentModel) -> drawn.Sampler:
        """How z is drawn, or a sentence where it cannot be."""
        if model.latent is None or model.conditional is None:
            raise ModelError(
                "MonteCarloEM draws z from p(z | x, θ), and this model's z is dealt with in closed form: use EM, or "
                "tr.LatentModel(prior, latent, likelihood)."
            )
        if model.causes is not None and model.responsibilities is not None:
            return drawn.by_values(model.responsibilities, model.causes, CHAINS)
        given = model.latent

        def z_of(theta: PyTree, datum: PyTree) -> PyTree:
            has_inputs = isinstance(datum, tuple) and len(datum) == 2
            return given(theta, datum[1]) if has_inputs else given(theta)

        if self.kernel == "rejection":

            def log_likelihood(theta: PyTree, datum: PyTree, z: PyTree) -> jax.Array:
                return model.factors(theta, z, datum)[0]

            if self.bound is None:
                raise SettingsError("MonteCarloEM(kernel='rejection') needs bound=, a function (params, datum).")
            return drawn.by_rejection(z_of, log_likelihood, self.bound, CHAINS)
        return drawn.by_chains(self.kernel, z_of, model.log_joint, CHAINS)

    def m_step(self, model: LatentModel) -> Callable:
        """``(theta, rows, weights, draws) -> theta'``: the model's own of the mean statistics, or by gradient."""
        if model.m_step is not None and model.statistics is not None:
            maximise, statistics = model.m_step, model.statistics
            return lambda theta, rows, weights, draws: maximise(
                drawn.drawn_statistics(statistics, rows, weights, draws)
            )
        space = model.space
        return drawn.drawn_m_step(
            model.log_joint, self.log_prior(model),
            lambda u: model.constrain(space.unravel(u)), lambda theta: space.ravel(model.unconstrain(theta)),
            self.inner,
        )  # fmt: skip

    def learn(self, session: Session) -> Outcome:
        model, data = latent(session.model, self), session.data
        self.sampler(model)
        if data.size == 0:
            raise DataError("EM looks at rows: these data hold none.")
        if not data.resident:
            raise DataError(
                "MonteCarloEM keeps draws of every row's z in memory; these rows are on file. Use part of them, or "
                "Data(..., resident=True) if memory allows."
            )
        rows = observed(whole(data.arrays()))
        began = time.perf_counter()
        keys = chain_keys(session.key, self.starts)
        thetas = _beginnings(self, model, data, session.key)
        begun = time.perf_counter()
        ends = []
        for start in range(self.starts):
            theta = jax.tree.map(lambda a, i=start: a[i], thetas)
            ends.append(_climb(self, model, rows, theta, keys[start], session, start))
            if ends[-1].ended == "interrupted":
                break
        climbed = time.perf_counter()
        point, info, found = _concluded(self, model, data, rows, ends)
        seconds = {"starting": begun - began, "climbing": climbed - begun, "errors": time.perf_counter() - climbed}
        return Outcome(None, point, info, None, None, found, ends[-1].ended == "interrupted", seconds)

    def checks(self, posterior: Any) -> list[Check]:
        found, size = posterior.found, max(1, posterior.rows)
        settled = found["ended"] == "settled"
        # A step gains (1 − r) of what is left in the slowest direction.
        left = found["gain bound"] / (1 - found.get("hidden", 0.0))
        verdict = "reject" if left > 4 else "trust" if settled and left <= HALF else "caution"
        out = [
            Check(
                "left to climb", left, verdict,
                f"nats, bound from the last step's gain; half a standard error is {HALF:g}. It ended: {found['ended']}",
            ),
            Check(
                "draws", found["draws at the end"], "trust" if settled else "caution",
                f"a datum at the end, of {self.draws} to begin with and {self.most} at most",
            ),
        ]  # fmt: skip
        if "worst monte carlo error" in found:
            share = found["worst monte carlo error"]
            verdict = "trust" if share <= 0.2 else "caution" if share <= 1 else "reject"
            out.append(
                Check("Monte-Carlo error", share, verdict, "in standard errors, of the worst linear combination of θ")
            )
        if found["exact draws"]:
            out.append(Check("acceptance", found["acceptance"], "trust", "draws of z are independent"))
        elif math.isfinite(found["acceptance"]):
            out.append(
                check_share("acceptance", found["acceptance"], 0.1, 0.98, "share of the E-step's proposals accepted")
            )
        if "effective draws" in found:
            few = found["effective draws"] < HIDDEN
            out.append(
                Check(
                    "effective draws", found["effective draws"], "caution" if few else "trust",
                    f"a datum at the end, for the score; below {HIDDEN} errors are guesses",
                )
            )  # fmt: skip
        if self.starts > 1:
            same = found["starts that agree"]
            out.append(
                Check(
                    "starts that agree", same, "trust" if same > 1 else "caution",
                    f"of {self.starts} within {max(SAME * size, HALF):.3g} nats of the best; the last is "
                    f"{found['agreement']:.3g} below",
                )
            )  # fmt: skip
        if "eigenvalue" in found:
            saddle = found.get("condition", 0.0) < -1e-2  # more than draws make of a ridge
            verdict = "trust" if found["eigenvalue"] > 0 else "reject" if saddle else "caution"
            out.append(
                Check(
                    "curvature", found["eigenvalue"], verdict,
                    "smallest eigenvalue of the observed information, by draws; above 0 at a proper maximum",
                )
            )  # fmt: skip
        return out + examined(posterior)


class End(NamedTuple):
    """Where one climb of Monte-Carlo EM ended."""

    theta: PyTree
    draws: drawn.Draws  # given theta
    gains: list[float]  # nats, of every step taken
    errors: list[float]
    sizes: list[int]  # S
    rate: float  # acceptance, of the last draws
    drawn: int  # a datum, altogether
    upper: float  # nats, at the last step
    ended: str  # "settled", "ceiling", "steps" or "interrupted"


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _begun(method: MonteCarloEM, model: LatentModel, key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
    """Chains at z ~ p(z | θ), and room for their draws."""
    sampler = method.sampler(model)
    return sampler.begin(key, theta, rows), sampler.room(theta, rows, method.most // CHAINS)


@functools.partial(jax.jit, static_argnames=("method", "model"), donate_argnames="draws")
def _drawn(
    method: MonteCarloEM, model: LatentModel, key: jax.Array, theta: PyTree, chains: drawn.Chains, rows: PyTree,
    draws: drawn.Draws, count: jax.Array, burn: jax.Array, tune: jax.Array,
) -> tuple[drawn.Chains, drawn.Draws, drawn.Told]:  # fmt: skip
    return method.sampler(model).draw(key, theta, chains, rows, draws, count, burn, tune)


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _improved(
    method: MonteCarloEM, model: LatentModel, theta: PyTree, rows: PyTree, draws: drawn.Draws
) -> drawn.Improved:
    m_step, exact = method.m_step(model), method.sampler(model).exact
    return drawn.improved(m_step, model.log_joint, method.log_prior(model), theta, rows, _ones(rows), draws, exact)


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _information(
    method: MonteCarloEM, model: LatentModel, point: jax.Array, rows: PyTree, draws: drawn.Draws
) -> drawn.Information:
    space, prior = model.space, method.log_prior(model)
    return drawn.observed_information(
        model.log_joint, prior, lambda u: model.constrain(space.unravel(u)), point, rows, _ones(rows), draws
    )


@functools.partial(jax.jit, static_argnames="model")
def _log_likelihood(model: LatentModel, theta: PyTree, rows: PyTree) -> jax.Array:
    return jnp.sum(model.summed_out(theta, rows))


@functools.partial(jax.jit, static_argnames="model")
def _bridged(model: LatentModel, first: PyTree, second: PyTree, rows: PyTree, one: Any, other: Any) -> jax.Array:
    return jnp.sum(drawn.bridged(model.log_joint, first, second, rows, one, other))


def _ones(rows: PyTree) -> jax.Array:
    return jnp.ones(jax.tree.leaves(rows)[0].shape[0])


class _Drawing:
    """The chains of one climb, on the host: where they are, what they drew, and how often they were asked."""

    def __init__(self, method: MonteCarloEM, model: LatentModel, rows: PyTree, theta: PyTree, key: jax.Array):
        self.method, self.model, self.rows, self.key = method, model, rows, key
        self.calls, self.total, self.rate = 0, 0, math.nan
        self.chains, self.draws = _begun(method, model, jax.random.fold_in(key, 0), theta, rows)
        half = method.warmup // 2
        if not method.sampler(model).exact:
            self.advance(theta, half - half // 2, half // 2, drawn.SHAPE)
            self.advance(theta, method.warmup - half, 0, drawn.STEP)

    def advance(self, theta: PyTree, count: int, burn: int, tune: int = 0) -> None:
        self.calls += 1
        self.chains, self.draws, told = _drawn(
            self.method, self.model, jax.random.fold_in(self.key, self.calls), theta, self.chains, self.rows,
            self.draws, jnp.array(count), jnp.array(burn), jnp.array(tune),
        )  # fmt: skip
        self.total += CHAINS * (count + burn)
        self.rate = float(told.acceptance)
        _noticed(told)

    def anew(self, theta: PyTree, length: int) -> None:
        """Draws given another θ."""
        self.draws = self.draws._replace(length=jnp.array(0))
        self.advance(theta, length, self.method.burn)


def _climb(
    method: MonteCarloEM, model: LatentModel, rows: PyTree, theta: PyTree, key: jax.Array, session: Session, start: int
) -> End:
    """One start to its end; the host decides when S grows."""
    z_level = NormalDist().inv_cdf(method.level)
    drawing, length = _Drawing(method, model, rows, theta, key), method.draws // CHAINS
    gains, errors, sizes = [], [], []
    at_this_size: list[float] = []  # gains
    small, quiet, ended = 0, 0, "steps"
    while True:
        drawing.anew(theta, length)
        while True:
            found = _improved(method, model, theta, rows, drawing.draws)
            gain, error = float(found.gain), float(found.error)
            if not math.isfinite(gain + error):
                raise RunError(
                    f"Step {len(gains)} of Monte-Carlo EM: the gain of log p(x, z | θ) is {gain} ± {error}. Is the "
                    "likelihood bounded, and finite wherever z may be drawn? A prior keeps θ where it is."
                )
            upper, lower = gain + z_level * error, gain - z_level * error
            grows = 2 * length * CHAINS <= method.most
            if upper < method.tolerance or lower > 0 or not grows or session.stop():
                break
            drawing.advance(theta, length, 0)
            length, at_this_size = 2 * length, []
        theta = found.theta
        gains.append(gain)
        errors.append(error)
        sizes.append(length * CHAINS)
        at_this_size.append(gain)
        session.say("climbing", start * method.steps + len(gains), method.starts * method.steps)
        small = small + 1 if upper < method.tolerance else 0
        quiet = 0 if lower > 0 else quiet + 1
        still = stalled(at_this_size) and not small
        if small == QUIET:
            ended = "settled"
        elif session.stop():
            ended = "interrupted"
        elif not grows and not small and (quiet >= QUIET or still):
            ended = "ceiling"
        elif len(gains) < method.steps:
            if still and grows:
                length, at_this_size = 2 * length, []
            continue
        break
    drawing.anew(theta, length)
    return End(theta, drawing.draws, gains, errors, sizes, drawing.rate, drawing.total, upper, ended)


def stalled(gains: list[float]) -> bool:
    """Whether the later half of the last ``STALL`` gains at one S is no less than the earlier: noise is left."""
    if len(gains) < STALL:
        return False
    half = STALL // 2
    return sum(gains[-half:]) >= sum(gains[-STALL:-half])


def _noticed(told: drawn.Told) -> None:
    """A bound that is none, or draws that were given up, in a sentence."""
    excess = np.asarray(told.excess)
    if np.any(excess > 0):
        row = int(np.argmax(excess))
        raise RunError(
            f"log p(x | z, θ) of row {row} exceeds log M by {excess[row]:.4g}: bound(params, datum) is below the "
            "supremum over z, and draws under it are not of p(z | x, θ). Give a bound that holds at every θ."
        )
    if np.any(np.asarray(told.gave_up) > 0):
        row = int(np.argmax(np.asarray(told.gave_up)))
        raise RunError(
            f"Rejection gave row {row} up: too few of the proposals z ~ p(z | θ) are accepted. Use a tighter bound, or "
            "kernel='mala'."
        )


def _beginnings(method: MonteCarloEM, model: LatentModel, data: Data, key: jax.Array) -> PyTree:
    """θ to begin with, a leading axis of starts: as for EM; where z cannot be summed out, from the joint density."""
    if model.begin is not None or model.log_prob is not None:
        return beginnings(model, data, key, method.starts)
    rows = data.take(slice(0, DRAWN_ROWS)).rows
    rows = jax.tree.map(jnp.asarray, rows[0] if rows[1] is None else rows)
    sampler = method.sampler(model)

    @jax.jit
    def fine(theta: PyTree, key: jax.Array) -> jax.Array:
        """Whether rows have a finite log joint density at z ~ p(z | θ)."""
        if sampler.exact:
            return jnp.isfinite(model.log_prior(theta))
        chains, draws = sampler.begin(key, theta, rows), sampler.room(theta, rows, 1)
        z = sampler.draw(key, theta, chains, rows, draws, 1, 0, 0)[1].z
        first = jax.tree.map(lambda a: a[0, :, 0], z)
        terms = jax.vmap(lambda datum, z: model.log_joint(theta, datum, z))(rows, first)
        return jnp.all(jnp.isfinite(terms)) & jnp.isfinite(model.log_prior(theta))

    centre, width = jnp.zeros(model.space.size), 2.0
    if model.prior_is_callable:
        centre, width = model.space.ravel(model.unconstrain(model.example(jax.random.key(0)))), 1.0
    found = []
    for start in range(method.starts):
        for attempt in range(ATTEMPTS):
            here = jax.random.fold_in(jax.random.fold_in(key, start), attempt)
            if model.start is not None:
                theta = model.start(here)
            else:
                shrunk = width * 0.7**attempt if attempt < ATTEMPTS - 1 else 0.0
                jitter = jax.random.uniform(here, centre.shape, minval=-1.0, maxval=1.0)
                theta = model.constrain(model.space.unravel(centre + shrunk * jitter))
            if bool(fine(theta, jax.random.fold_in(here, 1))):
                found.append(theta)
                break
        else:
            raise ModelError(
                f"No θ to begin with was found in {ATTEMPTS} tries at which log p(θ) and log p(x, z | θ) of the first "
                f"rows are finite; the last was {theta}. Give begin=, a function (key, rows) -> params."
            )
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *found)


def _concluded(
    method: MonteCarloEM, model: LatentModel, data: Data, rows: PyTree, ends: list[End]
) -> tuple[np.ndarray, dict, dict]:
    """The best start's point, the traces, and what was found on the way."""
    prior, summed = method.log_prior(model), model.log_prob is not None
    if summed:
        values = np.array([float(_log_likelihood(model, end.theta, rows)) for end in ends])
    else:  # up to a constant
        first = ends[0]
        values = np.array([float(_bridged(model, first.theta, e.theta, rows, first.draws, e.draws)) for e in ends])
    if prior is not None:
        values = values + np.array([float(prior(end.theta)) for end in ends])
    if not np.any(np.isfinite(values)):
        raise RunError("None of the climbs ended at a finite objective. Is the likelihood bounded?")
    best = int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))
    end = ends[best]
    longest = max(len(e.gains) for e in ends)

    def padded(lists: list) -> np.ndarray:
        return np.array([[*map(float, each), *[math.nan] * (longest - len(each))] for each in lists])

    info = {
        "gain": padded([e.gains for e in ends]),
        "gain error": padded([e.errors for e in ends]),
        "draws": padded([e.sizes for e in ends]),
    }
    finite = values[np.isfinite(values)]
    found: dict[str, Any] = {
        "objective": float(values[best]) if summed else math.nan,
        "steps": len(end.gains),
        "evaluations": int(sum(e.drawn for e in ends)),
        "draws at the end": end.sizes[-1],
        "gain": end.gains[-1],
        "gain error": end.errors[-1],
        "gain bound": end.upper,
        "ended": end.ended,
        "acceptance": end.rate,
        "exact draws": method.sampler(model).exact,
        "agreement": float(values[best] - finite.min()),
        "starts that agree": int(np.sum(np.isfinite(values) & (values >= values[best] - max(SAME * data.size, HALF)))),
    }
    point = model.space.ravel(model.unconstrain(end.theta))
    if point.size <= INFORMATION and data.size * end.sizes[-1] * point.size <= WORK:
        found |= _errors(method, model, rows, point, end)
    return np.asarray(point), info, found


def _errors(method: MonteCarloEM, model: LatentModel, rows: PyTree, point: jax.Array, end: End) -> dict[str, Any]:
    """Louis's standard errors, and what of θ is Monte-Carlo noise."""
    complete, missing, noise = (np.asarray(a, np.float64) for a in _information(method, model, point, rows, end.draws))
    information = complete - missing
    if not np.all(np.isfinite(information)):
        return {"eigenvalue": float("nan")}
    values = np.linalg.eigvalsh(information)
    out: dict[str, Any] = {"eigenvalue": float(values[0]), "condition": float(values[0] / values[-1])}
    if values[0] <= 0 or np.linalg.eigvalsh(complete)[0] <= 0:
        return out
    inverse = np.linalg.inv(information)
    slope = np.asarray(jax.jacobian(model.values)(point), np.float64)  # (k, d)
    out["covariance"] = slope @ inverse @ slope.T
    out["information"] = information
    step = np.linalg.solve(complete, np.linalg.solve(complete, noise).T)  # of one M-step at the last S
    rate = np.linalg.solve(complete, missing)  # θ' − θ* ≈ rate (θ − θ*)
    spread = np.zeros_like(step)
    for size in end.sizes:  # draws of a step are forgotten at EM's own rate
        spread = rate @ spread @ rate.T + step * end.sizes[-1] / size
    root = np.linalg.cholesky(information)
    out["monte carlo error"] = np.sqrt(np.maximum(np.diag(slope @ spread @ slope.T), 0))
    out["worst monte carlo error"] = float(np.sqrt(max(0.0, np.linalg.eigvalsh(root.T @ spread @ root)[-1])))
    out["hidden"] = float(np.clip(np.linalg.eigvals(rate).real.max(), 0, 1 - 1e-9))
    scattered = np.trace(np.linalg.solve(complete, noise))
    if scattered > 0:
        out["effective draws"] = float(np.trace(rate) / scattered)
    return out
