"""The evidence by weights: draws of the prior, draws of a q, and Laplace's value, which such weights judge."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs import approximations
from tractable.beliefs.check import Check
from tractable.core import Data, Model, log_density
from tractable.evidence import annealing
from tractable.evidence.annealed import base_of
from tractable.evidence.modes import Mode, around, laplace_value, modes_of
from tractable.evidence.result import (
    QUANTILE,
    Evidence,
    Watch,
    any_possible,
    grade,
    nan_is_nothing,
    smoothed,
    weight_checks,
)
from tractable.evidence.settings import Importance, Laplace, MonteCarlo
from tractable.kernels.annealed import log_mean, relative_error, stochastic_bound
from tractable.results.posterior import Posterior

PyTree = Any


def by_monte_carlo(model: Model, data: Data | None, key: jax.Array, settings: MonteCarlo, watch: Watch) -> Evidence:
    rows = annealing.rows_of(data)
    base, checks = base_of(model, data, jax.random.fold_in(key, 1), watch)
    together = annealing.together_of(model, data, settings.draws)
    watch.go("draws")
    log_weights = nan_is_nothing(prior_weights(model, rows, base, key, settings.draws, together))
    watch.say("draws", 1, 1)
    estimate, error = log_mean(log_weights), relative_error(log_weights)
    any_possible(estimate)
    bias = -(error**2) / 2
    checks = [
        *weight_checks(log_weights, 200.0),
        Check("Jensen bias", bias, grade(-bias, 0.05, math.inf),
              "nats by which the logarithm of a mean is low, −var/(2S), were the weights tame"),
        *checks,
    ]  # fmt: skip
    lower, upper = estimate - QUANTILE * error, estimate + QUANTILE * error
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights)


@functools.partial(jax.jit, static_argnames=("model", "draws", "together"))
def prior_weights(model: Model, rows: PyTree, base: Any, key: jax.Array, draws: int, together: int) -> jax.Array:
    """(draws,) log p(y|θ) at draws of the prior; of a base that is none, log p(y, z)/q(z)."""

    def one(key: jax.Array) -> jax.Array:
        if base is None:  # in the user's space: the way to the reals and back would cost digits
            return annealing.log_likelihood(model, rows, model.sample_prior(key))
        return annealing.bridge(model, rows, base)[1](annealing.draw(model, base, key))

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=together)


def by_importance(
    model: Model, data: Data | None, key: jax.Array, settings: Importance, posterior: Posterior | None, watch: Watch
) -> Evidence:
    checks: list[Check] = []
    if posterior is not None:
        fitted: Any = posterior.fitted
        family, phi = fitted.family, fitted.phi
    else:
        watch.go("modes")
        found = modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
        normal = around(found)
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
        *weight_checks(log_weights, 100.0),
        Check("ELBO", elbo, "trust", f"mean log weight ± {elbo_error:.2g}, a lower bound; KL(q ‖ p) below the truth"),
        *checks,
    ]  # fmt: skip
    lower, upper = min(stochastic_bound(log_weights), estimate), estimate + QUANTILE * error
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights)


def by_laplace(model: Model, data: Data | None, key: jax.Array, settings: Laplace, watch: Watch) -> Evidence:
    watch.go("modes")
    found = modes_of(model, data, jax.random.fold_in(key, 1), settings.starts)
    best = found[0]
    phi = approximations.of_root(jnp.asarray(best.position), jnp.asarray(best.root))
    log_weights = _weights_of(model, data, "full rank", phi, key, settings.draws, watch)
    estimate, judge = laplace_value(best.value, best.root), log_mean(smoothed(log_weights))
    apart = estimate - judge
    checks = [
        *weight_checks(log_weights, 100.0),
        Check("against weights", apart, grade(abs(apart), 0.1, 1.0) if math.isfinite(apart) else "reject",
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
            z, log_q = student(phi, key)
            return target(z) - log_q
        q = approximations.of(family, phi)
        z = q.sample(phi, jax.random.normal(key, (q.noise,), phi["mean"].dtype))
        return target(z) - q.log_prob(phi, z)

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=together)


def student(phi: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """z = μ + L ε √(ν/χ²_ν) and its log density."""
    mean, root, degrees = phi["mean"], phi["root"], phi["degrees"]
    white = student_white(key, len(mean), degrees)
    return mean + root @ white, student_log_prob(white, jnp.sum(jnp.log(jnp.diag(root))), degrees)


def student_white(key: jax.Array, size: int, degrees: jax.Array) -> jax.Array:
    """ε √(ν/χ²_ν), (size,), of the type of ν."""
    key_normal, key_wide = jax.random.split(key)
    eps = jax.random.normal(key_normal, (size,), degrees.dtype)
    return eps / jnp.sqrt(2 * jax.random.gamma(key_wide, degrees / 2, dtype=degrees.dtype) / degrees)


def student_log_prob(white: jax.Array, log_volume: jax.Array, degrees: jax.Array) -> jax.Array:
    """log t_ν of μ + L white, white (d,), where log_volume is log |L|."""
    size = len(white)
    half = (degrees + size) / 2
    constant = (
        jax.scipy.special.gammaln(half)
        - jax.scipy.special.gammaln(degrees / 2)
        - size / 2 * jnp.log(degrees * jnp.pi)
        - log_volume
    )
    return constant - half * jnp.log1p(jnp.sum(jnp.square(white)) / degrees)


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
