"""The evidence by annealing, forwards from the prior and backwards from the posterior: a sandwich."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.check import Check
from tractable.core import Data, Model
from tractable.evidence import annealing
from tractable.evidence.modes import WIDER, Normal, modes_of, normal_base
from tractable.evidence.result import Evidence, Watch, any_possible, grade, nan_is_nothing
from tractable.evidence.settings import Annealing
from tractable.infer import infer
from tractable.kernels.annealed import effective, log_mean, relative_error, stochastic_bound
from tractable.methods.hamiltonian import NUTS
from tractable.results.posterior import Posterior

PyTree = Any


def by_annealing(
    model: Model, data: Data | None, key: jax.Array, seed: int, settings: Annealing, posterior: Posterior | None,
    watch: Watch,
) -> Evidence:  # fmt: skip
    rows = annealing.rows_of(data)
    base, checks = base_of(model, data, jax.random.fold_in(key, 1), watch)
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
        *way_checks(ladder, acceptance, log_weights.var()),
        *checks,
        *stopped_check(stopped and settings.reverse),
    ]
    return Evidence(estimate, error, lower, upper, "", checks, "", 0.0, log_weights, back)


def way_checks(ladder: annealing.Ladder, acceptance: jax.Array, variance: float) -> list[Check]:
    """Of the temperatures and what moved at them."""
    stages = f", in {len(ladder.scales)} stages of the pilot" if len(ladder.scales) < len(ladder.betas) - 1 else ""
    return [
        Check("temperatures", len(ladder.betas) - 1, "trust",
              f"steps between base and target{stages}; variance of log w {float(variance):.2g}"),
        Check("acceptance", float(np.min(acceptance)), "trust" if np.min(acceptance) >= 0.1 else "caution",
              "least mean over temperatures; chains that stand still learn nothing on the way"),
    ]  # fmt: skip


def stopped_check(stopped: bool) -> list[Check]:
    said = "phases left when the call was stopped: no backward run"
    return [Check("interrupted", 1, "caution", said)] if stopped else []


def _sandwich_checks(
    log_weights: np.ndarray, back: np.ndarray | None, lower: float, upper: float, posterior: Posterior | None
) -> list[Check]:
    number_of = effective(log_weights)
    checks = [Check("ESS", number_of, grade(-number_of, -50.0, -20.0), f"effective chains of {len(log_weights)}")]
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
        Check("reverse ESS", effective(-back), grade(-effective(-back), -50.0, -20.0), "the same, of inverse weights"),
        Check("gap", gap, grade(gap, 1.0, 5.0) if gap >= 0 else "reject", "nats between the stochastic bounds"),
        Check("agreement", apart, "trust" if agrees else "caution" if abs(apart) <= 1 else "reject",
              f"nats, forward less backward estimate; {sigmas:.2g} standard errors"),
        Check("posterior draws", len(back), judged, how),
    ]  # fmt: skip


def base_of(model: Model, data: Data | None, key: jax.Array, watch: Watch) -> tuple[Normal | None, list[Check]]:
    """None for a prior that can be drawn from, else a normal around the modes, and a sentence that says so."""
    if not model.prior_is_callable:
        return None, []
    watch.go("modes")
    modes = modes_of(model, data, key, 4)
    plural = "s" if len(modes) > 1 else ""
    said = f"no prior to draw from: draws begin at a normal around {len(modes)} mode{plural}, sd × {WIDER:g}"
    return normal_base(modes), [Check("base", model.space.size, "trust", said)]
