"""The marginal likelihood p(y) = ∫ p(y|θ) p(θ) dθ of any model: an estimate, how far off it may be, a verdict."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tractable.beliefs import approximations
from tractable.beliefs.check import Check
from tractable.checks import preflight
from tractable.checks.evidence import QUANTILE, Evidence, gap_check, grade, size_check, weight_checks
from tractable.core import Data, Model, PyTree, as_data, is_distribution
from tractable.data.sharding import OverDevices, over_rows
from tractable.evidence import targets, weights
from tractable.evidence.annealing import both_ways, pilot_of_parameters
from tractable.evidence.at_theta import at_theta, latent_problem
from tractable.evidence.settings import Annealing, Importance, Laplace, MonteCarlo, Way, check_resident, settings_of
from tractable.evidence.targets import Normal
from tractable.evidence.weights import WIDER, Mode, StudentT, Watch, around, laplace_value, modes_of
from tractable.inference import infer
from tractable.kernels.annealed import effective, log_mean, relative_error, stochastic_bound
from tractable.methods.hamiltonian import NUTS
from tractable.results.posterior import Posterior
from tractable.tools.errors import ModelError, SettingsError
from tractable.tools.priors import is_improper
from tractable.tools.progress import progress_of
from tractable.tools.settings import seeded
from tractable.tools.stopping import ending, interruptible

__all__ = ["Evidence", "log_evidence"]


@ending()
def log_evidence(
    model: Model,
    data: Data | PyTree = None,
    method: str | None = None,
    *,
    theta: PyTree = None,
    z: PyTree = None,
    seed: int = 0,
    posterior: Posterior | None = None,
    progress: bool | Callable | None = None,
    mesh: int | str | Mesh | None = None,
    **settings: Any,
) -> Evidence:
    """The log marginal likelihood of a model, in nats; of a log density alone, log Z = log ∫ e^{log density}.

        "monte-carlo"   p(y) ≈ (1/S) Σ p(y|θ_s),                    θ_s ~ p(θ)
        "importance"    p(y) ≈ (1/S) Σ p(y, z_s)/q(z_s),            z_s ~ q, the weights' tail smoothed
        "annealed"      p(y) ≈ (1/S) Σ w_s from the prior; 1/p(y) ≈ (1/S) Σ 1/w_s back from the posterior
        "laplace"       log p(y) ≈ log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|

    over the unconstrained z, whose density includes the Jacobian's log-determinant. E log w < log E w: a mean of log
    weights is a lower bound; the log of their mean is an estimate, itself low by about var/(2S). Neal 2001; Vehtari et
    al. 2024 (smoothing); Grosse, Ghahramani & Adams 2015 (the sandwich); MacKay 1992 (Laplace).

    "monte-carlo" is unbiased for p(y), and yet fails for all but few parameters and few data. The posterior's share of
    the prior's mass falls exponentially with the number of parameters and the digits that the data add, so a handful of
    draws carry the whole mean, or none does. The estimate is then far too low, and its standard error looks small,
    since no weight saw the peak. "importance" draws from a q near the posterior, a fitted one or a Student t at the
    modes, and is as good as q. "annealed", the default, goes from the prior to the posterior by temperatures, and back
    from posterior draws; that bounds log p(y) from below and above, and the gap is what is not known. It takes some
    thousand gradients a chain. "laplace" is one climb and one curvature, exact for a normal posterior; it has no error
    bar, so importance weights judge it.

    For a ``LatentModel`` at a given ``theta`` the result is Σ_n log p(x_n|θ): only z is summed out. "enumeration" does
    so exactly where there is a sum or a closed form (the default then). Other methods estimate every datum:
    "monte-carlo" over z ~ p(z|θ), "importance" from a Student t at every mode of p(z|x_n, θ) that climbs find, and
    "annealed" from p(z|θ) to p(z|x_n, θ). The data's biases then all have one sign and add up; errors add as squares.
    Annealing has an upper bound only for simulated data, whose ``z`` is an exact draw of every posterior.

    A log density (``Model.from_log_density``) or a callable prior cannot be drawn from: "monte-carlo" and "annealed"
    then start from a normal around the modes with twice their sd. An unnormalised prior gives log ∫ p(y|θ) prior(θ) dθ.

    Args:
        model: with proper priors.
        data: Data or arrays; by default those of ``posterior``; None for a model without a likelihood.
        method: one of these; by default "annealed", or with ``theta`` "enumeration" where that is possible.
        theta: parameters of a ``LatentModel``, in the user's space.
        z: with ``theta`` and "annealed": the causes that ``model.sample`` drew with these data, leading axis N ≥ 8.
        seed: of all randomness.
        posterior: of the same model and data. For "importance" a q (``MeanField``, ``FullRank``, ``LowRank``,
            ``Laplace``). For "annealed" draws from which to run back (``NUTS``, ``HMC``, ``MALA``, ``RandomWalk``,
            ``Rejection``, whose draws are exact); NUTS runs where none is given.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        mesh: devices that the rows lie over, as for ``infer``: the same bits on any number of them. Climbs to modes,
            and pilots at a given ``theta``, run on one device.
        settings: of the method: ``draws`` (monte-carlo, importance, laplace), ``degrees`` (importance), ``starts``
            (importance, laplace); ``chains``, ``temperatures``, ``transitions``, ``kernel``, ``reverse``, ``pilot``
            (annealed). With ``theta``, draws (1000), starts (4), chains (32) and temperatures (100) are per datum, and
            ``z`` takes the place of ``reverse``.

    Ctrl-C and SIGTERM stop the call between its phases. If the forward weights are complete, they are returned without
    an upper bound and with "caution".

    Raises:
        SettingsError: an unknown method or setting, one out of range, a posterior that does not fit the method.
        ModelError: an improper prior; no mode with a curvature, where one is needed.
        DataError: rows that are not in memory.
        RunError: no draw of the prior has a finite likelihood; an interruption before there are weights.

    >>> import numpy as np
    >>> import numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> found = log_evidence(coin, np.array([1, 1, 0]), "monte-carlo", draws=10_000)  # exactly −log 12
    >>> found.verdict, bool(abs(found.estimate + np.log(12)) < 4 * found.standard_error)
    ('trust', True)
    """
    began = time.perf_counter()
    if not isinstance(model, Model):
        raise SettingsError(f"log_evidence expects a Model; got {type(model).__name__}.")
    seed = seeded("log_evidence(seed)", seed)
    if theta is not None:
        latent, name, chosen, data = latent_problem(model, data, method, theta, z, posterior, settings)
        over = _over(latent, data, mesh)
        with _watching(progress, over) as watch:
            found = at_theta(latent, data, seed, chosen, theta, z, watch, over)
    else:
        if z is not None:
            raise SettingsError("z= goes with theta=: the causes that model.sample(key, theta, n) drew with the data.")
        name = "annealed" if method is None else method
        chosen = settings_of(name, settings)
        data = _data(model, data, posterior, name, chosen)
        over = _over(model, data, mesh)
        with _watching(progress, over) as watch:
            found = OF_PARAMETERS[name](model, data, seed, chosen, posterior, watch, over)
    checks = [*found.checks, *_normalisation(model)] if theta is None else found.checks
    return found._replace(checks=checks, method=name, seconds=time.perf_counter() - began)


def _over(model: Model, data: Data | None, mesh: int | str | Mesh | None) -> OverDevices | None:
    """The mesh that rows lie over; raises where there are none, or where they are not summed by themselves."""
    lying = over_rows(mesh)
    if lying is not None and (data is None or model.likelihood is None):
        raise SettingsError("log_evidence(mesh=...) lays rows over devices, and there are none: leave it out.")
    if lying is not None and model.local is not None:
        raise SettingsError("log_evidence(mesh=...) is of rows by themselves, without groups: leave it out.")
    return lying


@contextlib.contextmanager
def _watching(progress: bool | Callable | None, over: OverDevices | None) -> Iterator[Watch]:
    """Progress shown by one process of a mesh, and a stop asked of one that stops all."""
    with progress_of(progress if over is None or over.is_writer else False) as say, interruptible() as stop:
        yield Watch(say, stop if over is None else over.any_process(stop))


def _data(model: Model, data: Data | PyTree, posterior: Posterior | None, method: str, settings: Way) -> Data | None:
    """The data; raises where model, data and posterior do not fit together."""
    data = None if data is None else as_data(data)
    if posterior is not None:
        _check_posterior(model, data, posterior, method, settings)
        data = posterior.data if data is None else data
    if data is not None:
        check_resident(data)
    if not model.prior_is_callable:
        for leaf in jax.tree.leaves(model.prior, is_leaf=is_distribution):
            if is_improper(leaf):
                raise ModelError(
                    "The evidence of an improper prior (ImproperUniform) is not defined: it scales with a constant "
                    "that the prior leaves open. Give every parameter a proper prior."
                )
    preflight.check(model, data)
    return data


def _check_posterior(model: Model, data: Data | None, posterior: Posterior, method: str, settings: Way) -> None:
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
    if method == "importance" and not (posterior.fitted and posterior.fitted.q.whole):
        raise SettingsError(
            "method='importance' needs a q with a density over all parameters (MeanField, FullRank, LowRank, Laplace); "
            f"got a posterior by {name}. Leave posterior= out for a Student t at the modes."
        )
    exact = posterior.method.chained and not posterior.method.minibatch
    if method == "annealed" and not (exact and posterior.unconstrained is not None):
        raise SettingsError(
            "method='annealed' runs back from draws of an exact sampler (NUTS, HMC, MALA, RandomWalk, Rejection); got "
            f"a posterior by {name}, without such draws. Leave posterior= out to have NUTS run."
        )
    if isinstance(settings, Annealing) and posterior.chains * posterior.count < settings.chains:
        raise SettingsError(
            f"log_evidence(chains={settings.chains}) runs back from as many posterior draws; posterior= has "
            f"{posterior.chains * posterior.count}. Use fewer chains, or extend the posterior."
        )


def _normalisation(model: Model) -> list[Check]:
    if not model.prior_is_callable or model.drawable:
        return []
    if model.likelihood is None:
        return [
            Check("normalisation", 1, "trust", "log ∫ of the unnormalised density; no evidence, as there are no data")
        ]
    said = "the prior is a log density: this is the evidence only if it integrates to 1"
    return [Check("normalisation", 1, "caution", said)]


def by_monte_carlo(
    model: Model, data: Data | None, seed: int, settings: MonteCarlo, posterior: Posterior | None, watch: Watch,
    over: OverDevices | None,
) -> Evidence:  # fmt: skip
    """log p(y) = log E p(y | θ) over draws of the prior, or of a normal around the modes if it cannot be drawn."""
    key = jax.random.key(seed)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    target = targets.of_parameters(model, data, base).laid(over)
    log_weights = weights.possible(target, weights.weigh(target, key, settings.draws, watch))[0]
    estimate, error = log_mean(log_weights), relative_error(log_weights)
    bias = -(error**2) / 2
    checks = [
        *weight_checks(log_weights, 200.0),
        Check("Jensen bias", bias, grade(-bias, 0.05, math.inf),
              "nats by which the logarithm of a mean is too low, −var/(2S), if the weights are tame"),
        *checks,
    ]  # fmt: skip
    return Evidence(estimate, error, estimate - QUANTILE * error, estimate + QUANTILE * error, checks, log_weights)


def by_importance(
    model: Model, data: Data | None, seed: int, settings: Importance, posterior: Posterior | None, watch: Watch,
    over: OverDevices | None,
) -> Evidence:  # fmt: skip
    """log p(y) by importance sampling from the posterior's q, or from a Student t around the modes."""
    key, target, checks = jax.random.key(seed), targets.of_parameters(model, data).laid(over), []
    if posterior is not None:
        fitted: Any = posterior.fitted
        propose, q = weights.fitted(fitted.family), fitted.phi
    else:
        watch.go("modes")
        found = modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
        normal = around(found)
        propose, q = weights.student, StudentT(jnp.asarray(float(settings.degrees)), *normal)
        checks = _mode_checks(found, alone=False)
    log_weights = weights.weigh(target, key, settings.draws, watch, propose=propose, phi=q)
    log_weights = weights.possible(target, log_weights)[0]
    better = weights.smoothed(log_weights)
    estimate, error = log_mean(better), relative_error(better)
    elbo, elbo_error = float(log_weights.mean()), 0.0
    if math.isfinite(elbo):
        elbo_error = float(log_weights.std(ddof=1) / math.sqrt(len(log_weights)))
    checks = [
        *weight_checks(log_weights, 100.0),
        Check("ELBO", elbo, "trust", f"mean log weight ± {elbo_error:.2g}, a lower bound; KL(q ‖ p) below the truth"),
        *checks,
    ]  # fmt: skip
    lower = min(stochastic_bound(log_weights), estimate)
    return Evidence(estimate, error, lower, estimate + QUANTILE * error, checks, log_weights)


def by_laplace(
    model: Model, data: Data | None, seed: int, settings: Laplace, posterior: Posterior | None, watch: Watch,
    over: OverDevices | None,
) -> Evidence:  # fmt: skip
    """log p(y) by Laplace's approximation at the modes."""
    key = jax.random.key(seed)
    watch.go("modes")
    found = modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
    best = found[0]
    phi = approximations.of_root(jnp.asarray(best.position), jnp.asarray(best.root))
    target = targets.of_parameters(model, data).laid(over)
    log_weights = weights.weigh(target, key, settings.draws, watch, propose=weights.fitted("full rank"), phi=phi)[0]
    estimate, judge = laplace_value(best.value, best.root), log_mean(weights.smoothed(log_weights))
    apart = estimate - judge
    checks = [
        *weight_checks(log_weights, 100.0),
        Check("against weights", apart, grade(abs(apart), 0.1, 1.0) if math.isfinite(apart) else "reject",
              f"nats above importance sampling from the same normal, {judge:.6g}; Laplace has no error bar"),
        *_mode_checks(found, alone=True),
    ]  # fmt: skip
    return Evidence(estimate, math.nan, math.nan, math.nan, checks, log_weights)


def by_annealing(
    model: Model, data: Data | None, seed: int, settings: Annealing, posterior: Posterior | None, watch: Watch,
    over: OverDevices | None,
) -> Evidence:  # fmt: skip
    """log p(y) by annealed importance sampling, along a ladder of temperatures chosen by a pilot run."""
    key = jax.random.key(seed)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    target = targets.of_parameters(model, data, base).laid(over)
    ladder = pilot_of_parameters(target, settings, jax.random.fold_in(key, 2), watch)

    def exact() -> jax.Array | None:
        """Posterior draws; NUTS makes them where no posterior was given."""
        nonlocal posterior
        if posterior is None:
            devices = None if over is None else over.mesh
            posterior = infer(model, data, NUTS(), seed=seed, progress=watch.say, mesh=devices)
            if posterior.interrupted or watch.stop():
                return None
        return jnp.asarray(_spread(posterior, settings.chains), jnp.result_type(float))

    keys = jax.random.fold_in(key, 3), jax.random.fold_in(key, 4)
    forward, back, way = both_ways(target, settings, ladder, keys, exact if settings.reverse else None, watch)
    log_weights, back = forward[0], None if back is None else back[0]
    lower, upper = stochastic_bound(log_weights), math.inf if back is None else -stochastic_bound(-back)
    number_of = effective(log_weights)
    checks = [
        size_check(number_of, 50.0, 20.0, f"effective chains of {len(log_weights)}"),
        *_sandwich_checks(log_weights, back, upper - lower, posterior), *way, *checks,
    ]  # fmt: skip
    return Evidence(log_mean(log_weights), relative_error(log_weights), lower, upper, checks, log_weights, back)


def _sandwich_checks(
    log_weights: np.ndarray, back: np.ndarray | None, gap: float, posterior: Posterior | None
) -> list[Check]:
    if back is None or posterior is None:
        return [gap_check(None, "no backward run, so no upper bound")]
    number_of, apart = effective(-back), log_mean(log_weights) + log_mean(-back)
    error = math.hypot(relative_error(log_weights), relative_error(-back))
    sigmas = abs(apart) / error if error > 0 else 0.0
    agrees = sigmas <= 3 or abs(apart) <= 0.1
    judged = posterior.report().verdict
    how = (
        "exact, by rejection" if posterior.method.exact
        else f"from a chain whose report says {judged}: the upper bound is one as far as these are the posterior's"
    )  # fmt: skip
    return [
        size_check(number_of, 50.0, 20.0, "the same, of inverse weights", "reverse ESS"),
        gap_check(gap, "nats between the stochastic bounds"),
        Check("agreement", apart, "trust" if agrees else "caution" if abs(apart) <= 1 else "reject",
              f"nats, forward less backward estimate; {sigmas:.2g} standard errors"),
        Check("posterior draws", len(back), judged, how),
    ]  # fmt: skip


def _spread(posterior: Posterior, count: int) -> np.ndarray:
    """(count, d) draws, evenly spaced over all chains and over time."""
    flat = np.asarray(posterior.unconstrained).swapaxes(0, 1)
    flat = flat.reshape(-1, flat.shape[-1])
    # Ordered by time: each block of the bound then covers one stretch, and correlated draws share a block.
    return flat[np.linspace(0, len(flat) - 1, count).astype(int)]


def _base(model: Model, data: Data | None, key: jax.Array, watch: Watch) -> tuple[Normal | None, list[Check]]:
    """None for a prior that can be drawn from; otherwise a normal around the modes, and a check that says so."""
    if not model.prior_is_callable or model.drawable:
        return None, []
    watch.go("modes")
    modes = modes_of(model, data, key, 4)
    plural = "s" if len(modes) > 1 else ""
    said = f"no prior to draw from: draws begin at a normal around {len(modes)} mode{plural}, sd × {WIDER:g}"
    normal = around(modes)
    return normal._replace(root=WIDER * normal.root), [Check("base", model.space.size, "trust", said)]


def _mode_checks(modes: list[Mode], alone: bool) -> list[Check]:
    """Checks for several modes; ``alone`` where the estimate covers only the first, as Laplace's does."""
    if len(modes) == 1:
        return [Check("modes", 1, "trust", "places that climbs ended at")]
    masses = [laplace_value(mode.value, mode.root) for mode in modes]
    lead = masses[0] - masses[1]
    if not alone:
        return [Check("modes", len(modes), "caution", "places that climbs ended at; q is one t that reaches over them")]
    said = f"places that climbs ended at; the second holds e^−{lead:.2g} of the first's mass, and is left out"
    return [Check("modes", len(modes), "reject" if lead < 5 else "caution", said)]


OF_PARAMETERS: dict[str, Callable[..., Evidence]] = {
    "monte-carlo": by_monte_carlo, "importance": by_importance, "annealed": by_annealing, "laplace": by_laplace,
}  # fmt: skip
