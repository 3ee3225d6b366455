"""The marginal likelihood p(y) = ∫ p(y|θ) p(θ) dθ of any model: an estimate, how far off it may be, a verdict."""

import time
from collections.abc import Callable
from typing import Any

import jax
from numpyro.distributions import Distribution, ImproperUniform

from tractable.beliefs.check import Check
from tractable.checks import preflight
from tractable.checks.evidence import Evidence
from tractable.core import Data, Model, as_data, is_distribution
from tractable.evidence.at_theta import at_theta, latent_problem
from tractable.evidence.parameters import by_annealing, by_importance, by_laplace, by_monte_carlo
from tractable.evidence.settings import Annealing, Way, check_resident, settings_of
from tractable.evidence.weights import Watch
from tractable.methods.signal import interruptible
from tractable.results.posterior import Posterior
from tractable.tools.errors import ModelError, SettingsError
from tractable.tools.progress import progress_of

__all__ = ["Evidence", "log_evidence"]

PyTree = Any
OF_PARAMETERS: dict[str, Callable[..., Evidence]] = {
    "monte-carlo": by_monte_carlo, "importance": by_importance, "annealed": by_annealing, "laplace": by_laplace,
}  # fmt: skip


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
    **settings: Any,
) -> Evidence:
    """The log marginal likelihood of a model, in nats; of a log density alone, log Z = log ∫ e^{log density}.

        "monte-carlo"   p(y) ≈ (1/S) Σ p(y|θ_s),                    θ_s ~ p(θ)
        "importance"    p(y) ≈ (1/S) Σ p(y, z_s)/q(z_s),            z_s ~ q, the weights' tail smoothed
        "annealed"      p(y) ≈ (1/S) Σ w_s from the prior; and 1/p(y) ≈ (1/S) Σ 1/w_s back from the posterior: a
            sandwich
        "laplace"       log p(y) ≈ log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|

    over the unconstrained z, whose density carries the log-determinant. E log w < log E w: a mean of log weights is a
    lower bound, the log of their mean an estimate, itself low by about var/(2S). Neal 2001; Vehtari et al. 2024
    (smoothing); Grosse, Ghahramani & Adams 2015 (the sandwich); MacKay 1992 (Laplace).

    "monte-carlo" is unbiased for p(y), and fails all the same: the posterior holds a share of the prior's mass that
    falls off exponentially in the parameters and the digits the data add, so that a handful of draws carry the whole
    mean or none does; the estimate is then far too low while its standard error, from weights that never saw the peak,
    looks small. For few parameters and few data. "importance" draws from a q near the posterior: one that was fitted,
    or a Student t at the modes. As good as q. "annealed" goes from the prior to the posterior by temperatures, and back
    from posterior draws, which bounds log p(y) from below and above; the gap is what is not known. The default; some
    thousand gradients a chain. "laplace" is one climb and one curvature, exact for a normal posterior; it knows no
    error, so its verdict is that of importance weights against it.

    Of a ``LatentModel`` at a given ``theta`` it is Σ_n log p(x_n|θ), z alone being summed out: exactly by "enumeration"
    where there is a sum or a closed form (the default then), else estimated for every datum by "monte-carlo" over z ~
    p(z|θ), by "importance" from a Student t about every mode of p(z|x_n, θ) that climbs find, or "annealed" from p(z|θ)
    to p(z|x_n, θ). Biases are then all of one sign and add up, where errors add as squares. Annealing has an upper
    bound only for simulated data, whose ``z`` is an exact draw of every posterior.

    A log density (``Model.from_log_density``) or a callable prior cannot be drawn from: "monte-carlo" and "annealed"
    then begin at a normal around the modes, of twice their sd; an unnormalised prior gives log ∫ p(y|θ) prior(θ) dθ.

    Args:
        model: what is believed; its priors proper.
        data: Data or arrays; those of ``posterior`` where left out; None for a model without a likelihood.
        method: one of these; by default "annealed", with ``theta`` "enumeration" where it can be.
        theta: parameters of a ``LatentModel``, in the user's space.
        z: with ``theta`` and "annealed": the causes that ``model.sample`` drew with these data, leading axis N ≥ 8.
        seed: of all randomness.
        posterior: of the same model and data. For "importance" a q (``MeanField``, ``FullRank``, ``LowRank``,
            ``Laplace``). For "annealed" draws to come back from (``NUTS``, ``HMC``, ``MALA``, ``RandomWalk``,
            ``Rejection``, whose draws are exact); NUTS runs where there is none.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        settings: of the method: ``draws`` (monte-carlo, importance, laplace), ``degrees`` (importance), ``starts``
            (importance, laplace); ``chains``, ``temperatures``, ``transitions``, ``kernel``, ``reverse``, ``pilot``
            (annealed). With ``theta`` draws (1000), starts (4), chains (32) and temperatures (100) are each datum's,
            and ``reverse`` is whether there is z.

    Ctrl-C and SIGTERM stop the call between its phases: where the forward weights are there they are returned, without
    an upper bound and with "caution".

    Raises:
        SettingsError: an unknown method or setting, one out of range, a posterior that does not fit the method.
        ModelError: an improper prior; no mode with a curvature, where one is needed.
        DataError: rows that are not in memory.
        RunError: no draw of the prior has a finite likelihood; an interruption before there is a weight.

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
    if theta is not None:
        latent, name, chosen, data = latent_problem(model, data, method, theta, z, posterior, settings)
        with progress_of(progress) as bar, interruptible() as stop:
            found = at_theta(latent, data, seed, chosen, theta, z, Watch(bar.say, stop))
    else:
        if z is not None:
            raise SettingsError("z= goes with theta=: the causes that model.sample(key, theta, n) drew with the data.")
        name = "annealed" if method is None else method
        chosen = settings_of(name, settings)
        data = _data(model, data, posterior, name, chosen)
        with progress_of(progress) as bar, interruptible() as stop:
            found = OF_PARAMETERS[name](model, data, seed, chosen, posterior, Watch(bar.say, stop))
    checks = [*found.checks, *_normalisation(model)] if theta is None else found.checks
    return found._replace(checks=checks, method=name, seconds=time.perf_counter() - began)


def _data(model: Model, data: Data | PyTree, posterior: Posterior | None, method: str, settings: Way) -> Data | None:
    """The data, after the sentences about a model, data and posterior that do not fit."""
    data = None if data is None else as_data(data)
    if posterior is not None:
        _check_posterior(model, data, posterior, method, settings)
        data = posterior.data if data is None else data
    if data is not None:
        check_resident(data)
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
    if not model.prior_is_callable:
        return []
    if model.likelihood is None:
        return [
            Check("normalisation", 1, "trust", "log ∫ of the unnormalised density; no evidence, as there are no data")
        ]
    said = "the prior is a log density: this is the evidence only if it integrates to 1"
    return [Check("normalisation", 1, "caution", said)]
