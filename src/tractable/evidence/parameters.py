"""p(y), of parameters given all rows: by draws of the prior, by draws of a q, by annealing, and by Laplace's value."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs import approximations
from tractable.beliefs.check import Check
from tractable.checks.evidence import QUANTILE, Evidence, gap_check, grade, size_check, weight_checks
from tractable.core import Data, Model
from tractable.evidence import targets, weights
from tractable.evidence.annealing import both_ways, pilot_of_parameters
from tractable.evidence.modes import WIDER, Mode, around, laplace_value, modes_of, normal_base
from tractable.evidence.settings import Annealing, Importance, Laplace, MonteCarlo
from tractable.evidence.targets import Normal
from tractable.evidence.weights import StudentT, Watch
from tractable.infer import infer
from tractable.kernels.annealed import effective, log_mean, relative_error, stochastic_bound
from tractable.methods.hamiltonian import NUTS
from tractable.results.posterior import Posterior


def by_monte_carlo(
    model: Model, data: Data | None, seed: int, settings: MonteCarlo, posterior: Posterior | None, watch: Watch
) -> Evidence:
    key = jax.random.key(seed)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    target = targets.of_parameters(model, data, base)
    log_weights = weights.possible(target, weights.weigh(target, key, settings.draws, watch))[0]
    estimate, error = log_mean(log_weights), relative_error(log_weights)
    bias = -(error**2) / 2
    checks = [
        *weight_checks(log_weights, 200.0),
        Check("Jensen bias", bias, grade(-bias, 0.05, math.inf),
              "nats by which the logarithm of a mean is low, −var/(2S), were the weights tame"),
        *checks,
    ]  # fmt: skip
    return Evidence(estimate, error, estimate - QUANTILE * error, estimate + QUANTILE * error, checks, log_weights)


def by_importance(
    model: Model, data: Data | None, seed: int, settings: Importance, posterior: Posterior | None, watch: Watch
) -> Evidence:
    key, target, checks = jax.random.key(seed), targets.of_parameters(model, data), []
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
    model: Model, data: Data | None, seed: int, settings: Laplace, posterior: Posterior | None, watch: Watch
) -> Evidence:
    key = jax.random.key(seed)
    watch.go("modes")
    found = modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
    best = found[0]
    phi = approximations.of_root(jnp.asarray(best.position), jnp.asarray(best.root))
    target = targets.of_parameters(model, data)
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
    model: Model, data: Data | None, seed: int, settings: Annealing, posterior: Posterior | None, watch: Watch
) -> Evidence:
    key = jax.random.key(seed)
    base, checks = _base(model, data, jax.random.fold_in(key, 1), watch)
    target = targets.of_parameters(model, data, base)
    ladder = pilot_of_parameters(target, settings, jax.random.fold_in(key, 2), watch)

    def exact() -> jax.Array | None:
        """Draws of the posterior, by NUTS where none was given."""
        nonlocal posterior
        if posterior is None:
            posterior = infer(model, data, NUTS(), seed=seed, progress=watch.say)
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
    """(count, d) draws evenly over time, and over chains: the fewer between, the less alike."""
    flat = np.asarray(posterior.unconstrained).swapaxes(0, 1)
    flat = flat.reshape(-1, flat.shape[-1])
    # Blocks of the bound are of one stretch of time each, so that draws alike share one.
    return flat[np.linspace(0, len(flat) - 1, count).astype(int)]


def _base(model: Model, data: Data | None, key: jax.Array, watch: Watch) -> tuple[Normal | None, list[Check]]:
    """None for a prior that can be drawn from, else a normal around the modes, and a sentence that says so."""
    if not model.prior_is_callable:
        return None, []
    watch.go("modes")
    modes = modes_of(model, data, key, 4)
    plural = "s" if len(modes) > 1 else ""
    said = f"no prior to draw from: draws begin at a normal around {len(modes)} mode{plural}, sd × {WIDER:g}"
    return normal_base(modes), [Check("base", model.space.size, "trust", said)]


def _mode_checks(modes: list[Mode], alone: bool) -> list[Check]:
    """Whether there are several modes: Laplace sees one of them ``alone``."""
    if len(modes) == 1:
        return [Check("modes", 1, "trust", "places that climbs ended at")]
    masses = [laplace_value(mode.value, mode.root) for mode in modes]
    lead = masses[0] - masses[1]
    if not alone:
        return [Check("modes", len(modes), "caution", "places that climbs ended at; q is one t that reaches over them")]
    said = f"places that climbs ended at; the second holds e^−{lead:.2g} of the first's mass, and is left out"
    return [Check("modes", len(modes), "reject" if lead < 5 else "caution", said)]
