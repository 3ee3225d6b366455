"""The marginal likelihood p(y) = ∫ p(y|θ) p(θ) dθ of any model: an estimate, how far off it may be, and a verdict.

    "monte-carlo"   p(y) ≈ (1/S) Σ p(y|θ_s),                    θ_s ~ p(θ)
    "importance"    p(y) ≈ (1/S) Σ p(y, z_s)/q(z_s),            z_s ~ q, the weights' tail smoothed
    "annealed"      p(y) ≈ (1/S) Σ w_s from the prior; and 1/p(y) ≈ (1/S) Σ 1/w_s back from the posterior: a sandwich
    "laplace"       log p(y) ≈ log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|

All in logs and over the unconstrained z, whose density carries the log-determinant: log p(y) does not depend on how the
parameters are written. E log w < log E w: a mean of log weights is a lower bound, the log of their mean an estimate,
which is itself low by about var/(2S). Of a latent model at a given θ it is Σ_n log p(x_n|θ), datum by datum: these
biases are all of one sign and add up, Σ var/(2S), where errors add as squares. Neal 2001; Vehtari et al. 2024
(smoothing); Grosse, Ghahramani & Adams 2015 (the sandwich); MacKay 1992 (Laplace).
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ImproperUniform

from tractable import annealing, approximations, preflight
from tractable import run as loop
from tractable.annealing import Annealing, Mode, Normal, Watch, any_possible, nan_is_nothing, refuse, whole
from tractable.checks.convergence import Check
from tractable.checks.importance import khat
from tractable.core import Data, Model, as_data, is_distribution, log_density
from tractable.infer import infer
from tractable.kernels.annealed import effective, log_mean, relative_error, shares, stochastic_bound, summed
from tractable.latent import LatentModel
from tractable.methods.drawing import Drawing
from tractable.methods.hamiltonian import NUTS
from tractable.posterior import Posterior
from tractable.report import ORDER, number
from tractable.tools.errors import DataError, ModelError, RunError, SettingsError
from tractable.tools.progress import progress_of

PyTree = Any
QUANTILE = 2.5758  # of a normal, 99 % two-sided
WORK = 64  # numbers that a draw of a code takes beside its datum, about


class Evidence(NamedTuple):
    """log p(y), or log Z of a log density, and how far to trust it. Prints as a short table.

    Attributes:
        estimate: log p(y), nats.
        standard_error: of the estimate, by the delta method; NaN where there is none (Laplace).
        lower, upper: hold log p(y) with 99 %, if the checks hold. "monte-carlo": the estimate ∓ 2.58 standard errors.
            "annealed": stochastic bounds, each with 99.5 %: the mean over 16 blocks of chains of the log mean weight,
            forwards, less 2.95 standard errors of it (t, 15 degrees of freedom); and of minus the log mean inverse
            weight, backwards, plus as many; the upper one is +∞ without a backward run. "importance": the lower one
            likewise, from the weights before smoothing; the estimate plus 2.58 standard errors. "laplace": NaN.
            At a given θ: the estimate ∓ 2.58 standard errors, and above the bias besides; "annealed" +∞ above, or, with
            z, the backward estimates' sum plus t standard errors from their spread over data; "enumeration" itself.
        verdict: the worst of the checks', "trust", "caution" or "reject".
        checks: what was looked at.
        method: its name.
        seconds: of wall time, compilation included.
        log_weights: (S,), whose log mean is the estimate (before smoothing); Laplace's are those of its normal. At a
            given θ (N, S), whose rows' log means add up to it.
        reverse_log_weights: (S,) or (N, S), of the backward run; None elsewhere.
    """

    estimate: float
    standard_error: float
    lower: float
    upper: float
    verdict: str
    checks: list[Check]
    method: str
    seconds: float
    log_weights: np.ndarray
    reverse_log_weights: np.ndarray | None = None

    def __str__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        error = ", no error bar" if math.isnan(self.standard_error) else f" ± {self.standard_error:.2g}"
        lines = [f"log evidence by {self.method}: {self.verdict}", f"  {self.estimate:.6g} nats{error}"]
        if not math.isnan(self.lower):
            lines.append(f"  between {self.lower:.6g} and {self.upper:.6g} with 99 %, if the checks hold")
        lines += [f"  {c.verdict:7}  {c.name:{width}}  {number(float(c.value)):>9}  {c.sentence}" for c in self.checks]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class MonteCarlo:
    """Settings of "monte-carlo".

    Args:
        draws: S ≥ 100, of the prior.
    """

    draws: int = 100_000

    def __post_init__(self) -> None:
        whole(self, "draws", 100)


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Settings of "importance".

    Args:
        draws: S ≥ 100, of q.
        degrees: ν > 0 of the Student t that q is where no posterior is given.
        starts: climbs to modes, from which q is made.
    """

    draws: int = 10_000
    degrees: float | int = 5
    starts: int = 4

    def __post_init__(self) -> None:
        whole(self, "draws", 100)
        whole(self, "starts", 1)
        good = isinstance(self.degrees, float | int) and 0 < self.degrees < math.inf
        refuse(good, self, "degrees", "a positive number")


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """Settings of "laplace".

    Args:
        draws: S ≥ 100, of the normal, that judge it.
        starts: climbs to modes; several modes are found only from several.
    """

    draws: int = 4000
    starts: int = 4

    def __post_init__(self) -> None:
        whole(self, "draws", 100)
        whole(self, "starts", 1)


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """ "enumeration" has no settings."""


METHODS: dict[str, Any] = {
    "monte-carlo": MonteCarlo,
    "importance": Importance,
    "annealed": Annealing,
    "laplace": Laplace,
}
# At a given θ, with the settings there are and what they are by default.
AT_THETA: dict[str, tuple[Any, dict[str, Any]]] = {
    "enumeration": (Enumeration, {}),
    "monte-carlo": (MonteCarlo, {"draws": 1000}),
    "annealed": (Annealing, {"chains": 32, "temperatures": 100, "transitions": 1, "kernel": "mala", "pilot": 512}),
}


def log_evidence(
    model: Model,
    data: Any = None,
    method: str | None = None,
    *,
    theta: PyTree = None,
    z: PyTree = None,
    seed: int = 0,
    posterior: Posterior | None = None,
    progress: bool | Callable | None = None,
    **settings: Any,
) -> Evidence:
    """The log marginal likelihood of a model, in nats; of a log density alone, log Z = log ∫ e^{log density}.

    "monte-carlo" averages the likelihood over prior draws. It is unbiased for p(y), and fails all the same: the
    posterior holds a share of the prior's mass that falls off exponentially in the parameters and the digits the data
    add, so that a handful of draws carry the whole mean or none does; and as E log < log E, its logarithm is then far
    too low while its standard error, from weights that never saw the peak, looks small. Few parameters, few data.

    "importance" draws from a q near the posterior: one that was fitted, or a Student t at the modes. As good as q.

    "annealed" goes from the prior to the posterior by temperatures, and back from posterior draws, which bounds
    log p(y) from below and above; the gap is what is not known. The default; some thousand gradients a chain.

    "laplace" is one climb and one curvature, exact for a normal posterior; it knows no error, so its verdict is that of
    importance weights against it.

    Of a ``LatentModel`` at a given ``theta`` it is Σ_n log p(x_n|θ), z alone being summed out: exactly by "enumeration"
    where there is a sum or a closed form (the default then), else estimated for every datum by "monte-carlo" over
    z ~ p(z|θ) or "annealed" from p(z|θ) to p(z|x_n, θ). There is no "importance" per datum yet. Annealing has an upper
    bound only for simulated data, whose ``z`` is an exact draw of every posterior.

    A log density (``Model.from_log_density``) or a callable prior cannot be drawn from: "monte-carlo" and "annealed"
    then begin at a normal around the modes, of twice their sd; an unnormalised prior gives log ∫ p(y|θ) prior(θ) dθ.

    Args:
        model: what is believed; its priors proper.
        data: Data or arrays; those of ``posterior`` where left out; None for a model without a likelihood.
        method: "monte-carlo", "importance", "annealed" (the default) or "laplace"; with ``theta`` "enumeration" (the
            default where it can be), "monte-carlo" or "annealed".
        theta: parameters of a ``LatentModel``, in the user's space.
        z: with ``theta`` and "annealed": the causes that ``model.sample`` drew with these data, leading axis N ≥ 8.
        seed: of all randomness.
        posterior: of the same model and data. For "importance" a q (``MeanField``, ``FullRank``, ``LowRank``,
            ``Laplace``). For "annealed" draws to come back from (``NUTS``, ``HMC``, ``MALA``, ``RandomWalk``,
            ``Rejection``, whose draws are exact); NUTS runs where there is none.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        settings: of the method: ``draws`` (monte-carlo, importance, laplace), ``degrees`` (importance), ``starts``
            (importance, laplace); ``chains``, ``temperatures``, ``transitions``, ``kernel``, ``reverse``, ``pilot``
            (annealed). See ``MonteCarlo``, ``Importance``, ``Annealing`` and ``Laplace`` of this module. With ``theta``
            draws (1000), chains (32) and temperatures (100) are each datum's, and ``reverse`` is whether there is z.

    Ctrl-C and SIGTERM stop the call between its phases: where the forward weights are there they are returned, without
    an upper bound and with "caution".

    Raises:
        SettingsError: an unknown method or setting, one out of range, a posterior that does not fit the method.
        ModelError: an improper prior; no mode with a curvature, where one is needed.
        DataError: rows that are not in memory.
        RunError: no draw of the prior has a finite likelihood; an interruption before there is a weight.

    >>> import numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> found = log_evidence(coin, np.array([1, 1, 0]), "monte-carlo", draws=10_000)  # exactly −log 12
    >>> found.verdict, bool(abs(found.estimate + np.log(12)) < 4 * found.standard_error)
    ('trust', True)
    """
    began = time.perf_counter()
    if not isinstance(model, Model):
        raise SettingsError(f"log_evidence expects a Model; got {type(model).__name__}.")
    key = jax.random.key(seed)
    if theta is not None:
        latent, name, chosen, data = _latent_problem(model, data, method, theta, z, posterior, settings)
        with progress_of(progress) as bar, loop.interruptible() as stop:
            found = _at_theta(latent, data, key, chosen, theta, z, Watch(bar.say, stop))
    else:
        if z is not None:
            raise SettingsError("z= goes with theta=: the causes that model.sample(key, theta, n) drew with the data.")
        name = "annealed" if method is None else method
        chosen = _settings(name, settings)
        data = _data(model, data, posterior, name, chosen)
        with progress_of(progress) as bar, loop.interruptible() as stop:
            found = _by_method(model, data, key, seed, chosen, posterior, Watch(bar.say, stop))
    checks = [*found.checks, *_normalisation(model)] if theta is None else found.checks
    verdict = max((c.verdict for c in checks), key=ORDER.index)
    return found._replace(verdict=verdict, checks=checks, method=name, seconds=time.perf_counter() - began)


def _by_method(
    model: Model, data: Data | None, key: jax.Array, seed: int, chosen: Any, posterior: Posterior | None, watch: Watch
) -> Evidence:
    if isinstance(chosen, MonteCarlo):
        return _monte_carlo(model, data, key, chosen, watch)
    if isinstance(chosen, Importance):
        return _importance(model, data, key, chosen, posterior, watch)
    if isinstance(chosen, Laplace):
        return _laplace(model, data, key, chosen, watch)
    return _annealed(model, data, key, seed, chosen, posterior, watch)


# What weights say.


def smoothed(log_weights: Any) -> np.ndarray:
    """(S,) log weights with the largest replaced by quantiles of a Pareto tail fitted to them (PSIS).

    As they are where they are equal up to rounding, or not all finite.
    """
    log_weights = np.asarray(log_weights, np.float64)
    if not math.isfinite(khat(log_weights)):
        return log_weights
    from arviz_stats.base.array import array_stats  # a second of imports

    normalised = np.asarray(array_stats.psislw(log_weights.max() - log_weights)[0])  # it takes minus the log weights
    least = int(np.argmin(log_weights))  # one that smoothing leaves as it is: it knows what was taken off
    return normalised + (log_weights[least] - normalised[least])


def _grade(value: float, trust: float, caution: float) -> str:
    """Small is good."""
    return "trust" if value <= trust else "caution" if value <= caution else "reject"


def _weight_checks(log_weights: np.ndarray, good: float) -> list[Check]:
    """Effective number, tail and largest of weights."""
    size, number_of, largest = len(log_weights), effective(log_weights), float(np.max(shares(log_weights)))
    threshold = min(1 - 1 / math.log10(size), 0.7)
    finite = log_weights[np.isfinite(log_weights)]
    # An impossible draw is a weight of 0, which is no matter of the tail.
    floor = finite.min() if len(finite) else 0.0
    tail = khat(np.maximum(log_weights, floor)) if len(finite) > size // 2 else math.inf
    low = "; the mean is that of a few draws, and too low where the peak was not met" if number_of < good else ""
    return [
        Check("ESS", number_of, _grade(-number_of, -good, -20.0), f"effective draws of {size}{low}"),
        Check("k-hat", tail, _grade(tail, threshold, 0.7),
              f"tail of the weights; their mean can be relied on up to {threshold:.2g}"),
        Check("largest weight", largest, _grade(largest, 0.05, 0.2), "share of the sum that one draw carries"),
    ]  # fmt: skip


# Plain Monte Carlo.


def _monte_carlo(model: Model, data: Data | None, key: jax.Array, settings: MonteCarlo, watch: Watch) -> Evidence:
    rows = annealing.rows_of(data)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    together = annealing.together_of(model, data, settings.draws)
    watch.go("draws")
    log_weights = nan_is_nothing(_prior_weights(model, rows, base, key, settings.draws, together))
    watch.say("draws", 1, 1)
    estimate, error = log_mean(log_weights), relative_error(log_weights)
    any_possible(estimate)
    bias = -(error**2) / 2
    checks = [
        *_weight_checks(log_weights, 200.0),
        Check("Jensen bias", bias, _grade(-bias, 0.05, math.inf),
              "nats by which the logarithm of a mean is low, −var/(2S), were the weights tame"),
        *checks,
    ]  # fmt: skip
    lower, upper = estimate - QUANTILE * error, estimate + QUANTILE * error
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights)


@functools.partial(jax.jit, static_argnames=("model", "draws", "together"))
def _prior_weights(model: Model, rows: PyTree, base: Any, key: jax.Array, draws: int, together: int) -> jax.Array:
    """(draws,) log p(y|θ) at draws of the prior; of a base that is none, log p(y, z)/q(z)."""

    def one(key: jax.Array) -> jax.Array:
        if base is None:  # in the user's space: the way to the reals and back would cost digits
            return annealing.log_likelihood(model, rows, model.sample_prior(key))
        return annealing.bridge(model, rows, base)[1](annealing.draw(model, base, key))

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=together)


# Importance sampling, and Laplace, which is judged by it.


def _importance(
    model: Model, data: Data | None, key: jax.Array, settings: Importance, posterior: Posterior | None, watch: Watch
) -> Evidence:
    checks: list[Check] = []
    if posterior is not None:
        fitted: Any = posterior.fitted
        family, phi = fitted.family, fitted.phi
    else:
        watch.go("modes")
        found = annealing.modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
        normal = annealing.around(found)
        family = "student"
        phi = {"mean": normal.mean, "root": normal.root, "degrees": jnp.asarray(float(settings.degrees))}
        checks = _mode_checks(found, alone=False)
    log_weights = _weights_of(model, data, family, phi, key, settings.draws, watch)
    return _weighed(log_weights, checks)


def _weighed(log_weights: np.ndarray, checks: list[Check]) -> Evidence:
    better = smoothed(log_weights)
    estimate, error = log_mean(better), relative_error(better)
    any_possible(estimate)
    elbo, elbo_error = float(log_weights.mean()), 0.0
    if math.isfinite(elbo):
        elbo_error = float(log_weights.std(ddof=1) / math.sqrt(len(log_weights)))
    checks = [
        *_weight_checks(log_weights, 100.0),
        Check("ELBO", elbo, "trust", f"mean log weight ± {elbo_error:.2g}, a lower bound; KL(q ‖ p) below the truth"),
        *checks,
    ]  # fmt: skip
    lower, upper = min(stochastic_bound(log_weights), estimate), estimate + QUANTILE * error
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights)


def _laplace(model: Model, data: Data | None, key: jax.Array, settings: Laplace, watch: Watch) -> Evidence:
    watch.go("modes")
    found = annealing.modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
    best = found[0]
    phi = approximations.of_root(jnp.asarray(best.position), jnp.asarray(best.root))
    log_weights = _weights_of(model, data, "full rank", phi, key, settings.draws, watch)
    estimate, judge = annealing.laplace_value(best.value, best.root), log_mean(smoothed(log_weights))
    apart = estimate - judge
    checks = [
        *_weight_checks(log_weights, 100.0),
        Check("against weights", apart, _grade(abs(apart), 0.1, 1.0) if math.isfinite(apart) else "reject",
              f"nats above importance sampling from the same normal, {judge:.6g}; Laplace has no error bar"),
        *_mode_checks(found, alone=True),
    ]  # fmt: skip
    return Evidence(estimate, math.nan, math.nan, math.nan, "", checks, "", 0.0, log_weights)


def _weights_of(
    model: Model, data: Data | None, family: str, phi: Any, key: jax.Array, draws: int, watch: Watch
) -> np.ndarray:
    """(S,) log p(y, z) − log q(z), float64."""
    together = annealing.together_of(model, data, draws)
    watch.go("draws")
    log_weights = nan_is_nothing(_importance_weights(model, family, annealing.rows_of(data), phi, key, draws, together))
    watch.say("draws", 1, 1)
    return log_weights


@functools.partial(jax.jit, static_argnames=("model", "family", "draws", "together"))
def _importance_weights(
    model: Model, family: str, rows: PyTree, phi: Any, key: jax.Array, draws: int, together: int
) -> jax.Array:
    target = log_density(model, rows, flat=True)

    def one(key: jax.Array) -> jax.Array:
        if family == "student":
            z, log_q = _student(phi, key)
            return target(z) - log_q
        q = approximations.of(family, phi)
        z = q.sample(phi, jax.random.normal(key, (q.noise,), phi["mean"].dtype))
        return target(z) - q.log_prob(phi, z)

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=together)


def _student(phi: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """z = μ + L ε √(ν/χ²_ν) and its log density."""
    mean, root, degrees = phi["mean"], phi["root"], phi["degrees"]
    size = len(mean)
    key_normal, key_wide = jax.random.split(key)
    eps = jax.random.normal(key_normal, (size,), mean.dtype)
    white = eps / jnp.sqrt(2 * jax.random.gamma(key_wide, degrees / 2, dtype=mean.dtype) / degrees)
    half = (degrees + size) / 2
    constant = (
        jax.scipy.special.gammaln(half)
        - jax.scipy.special.gammaln(degrees / 2)
        - size / 2 * jnp.log(degrees * jnp.pi)
        - jnp.sum(jnp.log(jnp.diag(root)))
    )
    return mean + root @ white, constant - half * jnp.log1p(jnp.sum(jnp.square(white)) / degrees)


def _mode_checks(modes: list[Mode], alone: bool) -> list[Check]:
    """Whether there are several modes: Laplace sees one of them ``alone``."""
    if len(modes) == 1:
        return [Check("modes", 1, "trust", "places that climbs ended at")]
    masses = [annealing.laplace_value(mode.value, mode.root) for mode in modes]
    lead = masses[0] - masses[1]
    if not alone:
        return [Check("modes", len(modes), "caution", "places that climbs ended at; q is one t that reaches over them")]
    said = f"places that climbs ended at; the second holds e^−{lead:.2g} of the first's mass, and is left out"
    return [Check("modes", len(modes), "reject" if lead < 5 else "caution", said)]


# Annealed importance sampling, forwards and backwards.


def _annealed(
    model: Model, data: Data | None, key: jax.Array, seed: int, settings: Annealing, posterior: Posterior | None,
    watch: Watch,
) -> Evidence:  # fmt: skip
    rows = annealing.rows_of(data)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    together = annealing.together_of(model, data, settings.pilot)
    ladder = annealing.pilot(model, rows, base, jax.random.fold_in(key, 2), settings, together, watch)
    together = annealing.together_of(model, data, settings.chains)
    keys = jax.random.split(jax.random.fold_in(key, 3), settings.chains)
    runs = functools.partial(annealing.run, model, settings.kernel, settings.transitions, together, rows, base, ladder)
    watch.go("forward")
    log_weights, acceptance = runs(keys, None)
    log_weights = nan_is_nothing(log_weights)
    watch.say("forward", 1, 1)
    estimate, error = log_mean(log_weights), relative_error(log_weights)
    any_possible(estimate)
    stopped, back = watch.stop(), None
    if settings.reverse and not stopped and posterior is None:
        posterior = infer(model, data, NUTS(), seed=seed, progress=watch.say)
        stopped = posterior.interrupted or watch.stop()
    if settings.reverse and not stopped and posterior is not None:
        watch.say("backward", 0, 1)
        places = jnp.asarray(annealing.spread(posterior, settings.chains), jnp.result_type(float))
        keys = jax.random.split(jax.random.fold_in(key, 4), len(places))
        back = np.asarray(runs(keys, places)[0], np.float64)
        watch.say("backward", 1, 1)
    lower, upper = stochastic_bound(log_weights), math.inf if back is None else -stochastic_bound(-back)
    checks = [
        *_sandwich_checks(log_weights, back, lower, upper, posterior),
        *_way_checks(ladder, acceptance, log_weights.var()),
        *checks,
        *_stopped_check(stopped and settings.reverse),
    ]
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights, back)


def _way_checks(ladder: annealing.Ladder, acceptance: jax.Array, variance: float) -> list[Check]:
    """Of the temperatures and what moved at them."""
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    return [
        Check("temperatures", len(ladder.betas) - 1, "trust",
              f"steps between base and target{stages}; variance of log w {float(variance):.2g}"),
        Check("acceptance", float(np.min(acceptance)), "trust" if np.min(acceptance) >= 0.1 else "caution",
              "least mean over temperatures; chains that stand still learn nothing on the way"),
    ]  # fmt: skip


def _stopped_check(stopped: bool) -> list[Check]:
    said = "phases left when the call was stopped: no backward run"
    return [Check("interrupted", 1, "caution", said)] if stopped else []


def _sandwich_checks(
    log_weights: np.ndarray, back: np.ndarray | None, lower: float, upper: float, posterior: Posterior | None
) -> list[Check]:
    number_of = effective(log_weights)
    checks = [Check("ESS", number_of, _grade(-number_of, -50.0, -20.0), f"effective chains of {len(log_weights)}")]
    if back is None or posterior is None:
        return [*checks, Check("gap", math.inf, "caution", "no backward run, so no upper bound")]
    gap, apart = upper - lower, log_mean(log_weights) + log_mean(-back)
    error = math.hypot(relative_error(log_weights), relative_error(-back))
    sigmas = abs(apart) / error if error > 0 else 0.0
    agrees = sigmas <= 3 or abs(apart) <= 0.1
    exact = posterior.method.label == "rejection"
    judged = posterior.report().verdict
    how = (
        "exact, by rejection" if exact
        else f"from a chain whose report says {judged}: the upper bound is one as far as these are the posterior's"
    )  # fmt: skip
    return [
        *checks,
        Check("reverse ESS", effective(-back), _grade(-effective(-back), -50.0, -20.0), "the same, of inverse weights"),
        Check("gap", gap, _grade(gap, 1.0, 5.0) if gap >= 0 else "reject", "nats between the stochastic bounds"),
        Check("agreement", apart, "trust" if agrees else "caution" if abs(apart) <= 1 else "reject",
              f"nats, forward less backward estimate; {sigmas:.2g} standard errors"),
        Check("posterior draws", len(back), judged, how),
    ]  # fmt: skip


def _base(model: Model, data: Data | None, key: jax.Array, watch: Watch) -> tuple[Normal | None, list[Check]]:
    """None for a prior that can be drawn from, else a normal around the modes, and a sentence that says so."""
    if not model.prior_is_callable:
        return None, []
    watch.go("modes")
    modes = annealing.modes_of(model, data, key, 4)
    plural = "s" if len(modes) > 1 else ""
    said = f"no prior to draw from: draws begin at a normal around {len(modes)} mode{plural}, sd × {annealing.WIDER:g}"
    return annealing.normal_base(modes), [Check("base", model.space.size, "trust", said)]


# A latent model at a given θ.


def _at_theta(
    model: LatentModel, data: Data, key: jax.Array, chosen: Any, theta: PyTree, z: PyTree, watch: Watch
) -> Evidence:
    theta = jax.tree.map(jnp.asarray, theta)
    rows = data.arrays()
    if isinstance(chosen, Enumeration):
        watch.go("sum")
        terms = np.asarray(model.log_likelihoods(theta, rows), np.float64)
        watch.say("sum", 1, 1)
        value = float(terms.sum())
        verdict = "trust" if math.isfinite(value) else "reject"
        how = "values of z, summed over" if model.causes is not None else "z dealt with in closed form"
        count = jax.tree.leaves(model.causes)[0].shape[0] if model.causes is not None else 1
        checks = [Check("exact", count, verdict, f"{how}: no error but that of rounding")]
        return Evidence(value, 0.0, value, value, "", checks, "", 0.0, terms[:, None])
    if isinstance(chosen, MonteCarlo):
        together = _rows_together(data, chosen.draws)
        watch.go("draws")
        log_weights = nan_is_nothing(annealing.code_prior_weights(model, chosen.draws, together, theta, rows, key))
        watch.say("draws", 1, 1)
        return _codes(log_weights, None, 100.0, [])
    together = _rows_together(data, chosen.chains)
    ladder = annealing.code_pilot(model, theta, rows, jax.random.fold_in(key, 1), chosen, together, watch)
    runs = functools.partial(
        annealing.code_run, model, chosen.kernel, chosen.chains, chosen.transitions, together, theta, rows, ladder
    )
    watch.go("forward")
    log_weights, acceptance = runs(jax.random.fold_in(key, 2))
    log_weights = nan_is_nothing(log_weights)
    watch.say("forward", 1, 1)
    stopped, back = watch.stop(), None
    if z is not None and not stopped:
        watch.say("backward", 0, 1)
        z = jax.tree.map(jnp.asarray, z)
        back = np.asarray(runs(jax.random.fold_in(key, 3), z)[0], np.float64)
        watch.say("backward", 1, 1)
    checks = [*_way_checks(ladder, acceptance, log_weights.var(1).mean()), *_stopped_check(stopped and z is not None)]
    return _codes(log_weights, back, 10.0, checks, annealed=True)


def _codes(
    log_weights: np.ndarray, back: np.ndarray | None, good: float, checks: list[Check], annealed: bool = False
) -> Evidence:
    """What (N, S) log weights come to; ``good`` is the effective number that a datum should have."""
    impossible = np.flatnonzero(~np.isfinite(log_weights.max(1)))
    if len(impossible):
        raise RunError(
            f"No draw of z can have made row {impossible[0]}, nor {len(impossible) - 1} more: its log likelihood was "
            "finite at none, or without bound at one. Is it possible under theta? More draws, or method='annealed'?"
        )
    size, draws = log_weights.shape
    found = summed(log_weights)
    estimate, error, bias, least = found.estimate, found.error, found.bias, float(found.effective.min())
    lower, upper = estimate - QUANTILE * error, math.inf if annealed else estimate - bias + QUANTILE * error
    graded = "reject" if -bias > 0.1 * size else "trust" if -bias <= max(0.1, error / 2) else "caution"
    sandwich = []
    if annealed and back is None:
        said = "no exact posterior draws of z to run back from, so no upper bound"
        sandwich = [Check("gap", math.inf, "caution", said)]
    elif back is not None:
        upper = _upper(found.estimates, -summed(-back).estimates)
        gap = (upper - lower) / size
        graded_gap = _grade(gap, max(0.1, 1 / size), max(1.0, 5 / size)) if gap >= 0 else "reject"
        sandwich = [Check("gap", gap, graded_gap, f"nats a datum between the bounds; {upper - lower:.3g} in all")]
    checks = [
        Check("ESS", least, _grade(-least, -good, -0.2 * good), f"effective draws of {draws}, least of {size} data"),
        Check("Jensen bias", bias, graded, f"nats by which the sum is low, −Σ var/(2S) over {size} data, were the "
              f"weights tame: {abs(bias) / error if error > 0 else 0.0:.2g} standard errors, and not taken off"),
        *sandwich,
        *checks,
    ]  # fmt: skip
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights, back)


def _upper(forward: np.ndarray, back: np.ndarray) -> float:
    """Σ u_n + t(N−1) √N sd(u_n − f_n), of backward and forward estimates u_n and f_n of N data, (N,).

    E u_n ≥ log p(x_n|θ). A datum's chains come back from one draw, so only different data tell the error; subtracting
    f_n, which is independent of u_n, takes off what p(x_n) itself differs by and only adds to the spread.
    """
    from scipy.stats import t

    size = len(back)
    return float(back.sum() + t.ppf(0.995, size - 1) * math.sqrt(size) * np.std(back - forward, ddof=1))


def _rows_together(data: Data, draws: int) -> int:
    """Data that are worked on at once, with all their draws."""
    numbers = sum(max(1, int(np.prod(leaf.shape[1:]))) for leaf in jax.tree.leaves(data.rows))
    return int(min(data.size, 1024, max(1, annealing.HELD // (draws * (numbers + WORK)))))


# What is refused.


def _settings(method: str, settings: dict[str, Any], at_theta: bool = False) -> Any:
    """The method's, with those of the user; "reverse" at a given θ is whether there is z."""
    known: Any = AT_THETA if at_theta else METHODS
    if method not in known:
        where = ", theta=...) at a given θ" if at_theta else ")"
        raise SettingsError(f"log_evidence(method=...{where} is one of {', '.join(map(repr, known))}; got {method!r}.")
    kind, defaults = known[method] if at_theta else (known[method], {})
    fields = list(defaults) if at_theta else [field.name for field in dataclasses.fields(kind)]
    unknown = [name for name in settings if name not in fields]
    if unknown:
        raise SettingsError(
            f"log_evidence(method={method!r}) has no setting {', '.join(unknown)}; "
            f"expected some of {', '.join(fields) or 'none'}."
        )
    return kind(**(defaults | settings))


def _data(model: Model, data: Any, posterior: Posterior | None, method: str, settings: Any) -> Data | None:
    """The data, after the sentences about a model, data and posterior that do not fit."""
    data = None if data is None else as_data(data)
    if posterior is not None:
        _check_posterior(model, data, posterior, method, settings)
        data = posterior.data if data is None else data
    if data is not None:
        _check_resident(data)
    if not model.prior_is_callable:
        for leaf in jax.tree.leaves(model.prior, is_leaf=is_distribution):
            inner: Distribution = leaf
            while getattr(inner, "base_dist", None) is not None and not isinstance(inner, ImproperUniform):
                inner = inner.base_dist  # type: ignore[attr-defined]
            if isinstance(inner, ImproperUniform):
                raise ModelError(
                    "The evidence of an improper prior (ImproperUniform) is not defined: it scales with a constant "
                    "that the prior leaves open. Give every parameter a proper prior."
                )
    preflight.check(model, data)
    return data


def _check_posterior(model: Model, data: Data | None, posterior: Posterior, method: str, settings: Any) -> None:
    if not isinstance(posterior, Posterior):
        raise SettingsError(f"posterior= expects what infer returns; got {type(posterior).__name__}.")
    name = type(posterior.method).__name__
    if method in ("monte-carlo", "laplace"):
        raise SettingsError(f"method={method!r} takes no posterior=; it is for 'importance' and 'annealed'.")
    if posterior.model is not model:
        raise SettingsError("posterior= is of another model; expected infer of the very model given.")
    other = posterior.data
    if data is not None and (other is None or other.fingerprint != data.fingerprint):
        raise SettingsError("posterior= was fitted to other data; leave data out, or give those that were fitted.")
    if method == "importance" and (posterior.fitted is None or posterior.fitted.family == "part"):
        raise SettingsError(
            "method='importance' needs a q with a density over all parameters (MeanField, FullRank, LowRank, Laplace); "
            f"got a posterior by {name}. Leave posterior= out for a Student t at the modes."
        )
    exact = isinstance(posterior.method, Drawing) and not posterior.method.minibatch
    if method == "annealed" and not (exact and posterior.unconstrained is not None):
        raise SettingsError(
            "method='annealed' runs back from draws of an exact sampler (NUTS, HMC, MALA, RandomWalk, Rejection); got "
            f"a posterior by {name}, without such draws. Leave posterior= out to have NUTS run."
        )
    if method == "annealed" and posterior.chains * posterior.count < settings.chains:
        raise SettingsError(
            f"log_evidence(chains={settings.chains}) runs back from as many posterior draws; posterior= has "
            f"{posterior.chains * posterior.count}. Use fewer chains, or extend the posterior."
        )


def _check_resident(data: Data) -> None:
    if not data.resident:
        raise DataError(
            f"log_evidence looks at all {data.size} rows for every draw and needs them in memory, "
            f"{data.nbytes / 2**30:.1f} GiB; use Data(..., resident=True) if it allows, or fewer rows."
        )


def _normalisation(model: Model) -> list[Check]:
    if not model.prior_is_callable:
        return []
    if model.likelihood is None:
        return [
            Check("normalisation", 1, "trust", "log ∫ of the unnormalised density; no evidence, as there are no data")
        ]
    said = "the prior is a log density: this is the evidence only if it integrates to 1"
    return [Check("normalisation", 1, "caution", said)]


def _latent_problem(
    model: Model, data: Any, method: str | None, theta: PyTree, z: PyTree, posterior: Any, settings: dict[str, Any]
) -> tuple[LatentModel, str, Any, Data]:
    """The model, the method's name, its settings and the data, after the sentences about what does not fit."""
    if not isinstance(model, LatentModel):
        raise SettingsError(f"theta= is for a LatentModel, whose z is summed out; got a {type(model).__name__}.")
    if posterior is not None:
        raise SettingsError("theta= is one value of the parameters, and takes no posterior=; leave one of them out.")
    name = method or ("annealed" if model.log_prob is None else "enumeration")
    chosen = _settings(name, settings, at_theta=True)
    _check_theta(model, theta)
    if data is None or as_data(data).size == 0:
        raise DataError("log p(x|θ) is of data: log_evidence(model, data, theta=...) needs rows.")
    data = as_data(data)
    _check_resident(data)
    if name == "enumeration":
        if model.log_prob is None:
            raise ModelError("z of this model cannot be summed out; use method='annealed' or 'monte-carlo'.")
        preflight.check(model, data)
    else:
        _check_codes(model, data, theta, name)
    if z is not None:
        if name != "annealed":
            raise SettingsError(f"z= is what 'annealed' runs back from; method={name!r} takes none.")
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(z)}
        if sizes != {(data.size,)} or data.size < 8:
            raise SettingsError(
                f"z= has a leading axis of the N = {data.size} data, N ≥ 8 (their spread is the bound's error); got "
                f"{', '.join(str(np.shape(leaf)) for leaf in jax.tree.leaves(z))}."
            )
    return model, name, chosen, data


def _check_theta(model: LatentModel, theta: PyTree) -> None:
    wanted = jax.eval_shape(model.example, jax.random.key(0))
    shapes = [(jax.tree.structure(t), [np.shape(leaf) for leaf in jax.tree.leaves(t)]) for t in (wanted, theta)]
    if shapes[0] != shapes[1]:
        raise SettingsError(
            f"theta= expects parameters of shapes {jax.tree.map(np.shape, wanted)}; got "
            f"{jax.tree.map(np.shape, theta)}."
        )
    reals = jax.tree.leaves(model.unconstrain(jax.tree.map(jnp.asarray, theta)))
    if not all(np.all(np.isfinite(leaf)) for leaf in reals):
        raise SettingsError(f"theta= lies inside the parameters' supports, with finite numbers; got {theta}.")


def _check_codes(model: LatentModel, data: Data, theta: PyTree, name: str) -> None:
    """z can be drawn, and moved by small steps where it is to be; its factors are numbers."""
    if model.latent is None:
        raise ModelError(f"z of this model is dealt with in closed form; method={name!r} needs latent and likelihood.")
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.arrays())
    parts = jax.tree.leaves(model.latent(theta) if x is None else model.latent(theta, x), is_leaf=is_distribution)
    discrete = [type(part).__name__ for part in parts if part.support.is_discrete]
    if discrete and name == "annealed":
        raise ModelError(
            f"method='annealed' moves z by small steps, and z is discrete ({', '.join(discrete)}); use "
            f"method={'enumeration' if model.log_prob is not None else 'monte-carlo'!r}."
        )

    def factors(key: jax.Array) -> list[jax.Array]:
        code = annealing.code_of(model, theta, (y, x))
        z = code.sample(key)
        return model.factors(theta, z, y if x is None else (y, x))

    shapes = [term.shape for term in jax.eval_shape(factors, jax.random.key(0))]
    if shapes != [(), ()]:
        raise ModelError(
            "log p(x|z, θ) and log p(z|θ) of one datum are numbers; got shapes "
            f"{shapes[0]} and {shapes[1]}. Is a .to_event(1) missing?"
        )
