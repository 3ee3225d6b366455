"""The evidence of a latent model at a given θ: Σ_n log p(x_n|θ), estimated datum by datum."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.check import Check
from tractable.checks import preflight
from tractable.core import Data, Model, as_data, is_distribution
from tractable.evidence.annealed import stopped_check, way_checks
from tractable.evidence.codes import code_of, code_pilot, code_prior_weights, code_run, rows_together
from tractable.evidence.importance_at_theta import importance_of_codes
from tractable.evidence.result import QUANTILE, Evidence, Watch, grade, nan_is_nothing
from tractable.evidence.settings import Enumeration, Importance, MonteCarlo, check_resident, settings_of
from tractable.kernels.annealed import summed
from tractable.models.ladder import Ladder
from tractable.models.latent import LatentModel
from tractable.tools.errors import DataError, ModelError, RunError, SettingsError

PyTree = Any


def at_theta(
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
        together = rows_together(data, chosen.draws)
        watch.go("draws")
        log_weights = nan_is_nothing(code_prior_weights(model, chosen.draws, together, theta, rows, key))
        watch.say("draws", 1, 1)
        return evidence_of_codes(log_weights, None, 100.0, [])
    if isinstance(chosen, Importance):
        log_weights, checks = importance_of_codes(model, data, key, chosen, theta, watch)
        return evidence_of_codes(log_weights, None, 100.0, checks)
    together = rows_together(data, chosen.chains)
    ladder = code_pilot(model, theta, rows, jax.random.fold_in(key, 1), chosen, together, watch)
    runs = functools.partial(
        code_run, model, chosen.kernel, chosen.chains, chosen.transitions, together, theta, rows, ladder
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
    checks = [*way_checks(ladder, acceptance, log_weights.var(1).mean()), *stopped_check(stopped and z is not None)]
    return evidence_of_codes(log_weights, back, 10.0, checks, annealed=True)


def evidence_of_codes(
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
        graded_gap = grade(gap, max(0.1, 1 / size), max(1.0, 5 / size)) if gap >= 0 else "reject"
        sandwich = [Check("gap", gap, graded_gap, f"nats a datum between the bounds; {upper - lower:.3g} in all")]
    checks = [
        Check("ESS", least, grade(-least, -good, -0.2 * good), f"effective draws of {draws}, least of {size} data"),
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


def latent_problem(
    model: Model, data: Any, method: str | None, theta: PyTree, z: PyTree, posterior: Any, settings: dict[str, Any]
) -> tuple[LatentModel, str, Any, Data]:
    """The model, the method's name, its settings and the data, after the sentences about what does not fit."""
    if not isinstance(model, LatentModel):
        raise SettingsError(f"theta= is for a LatentModel, whose z is summed out; got a {type(model).__name__}.")
    if posterior is not None:
        raise SettingsError("theta= is one value of the parameters, and takes no posterior=; leave one of them out.")
    name = method or ("annealed" if model.log_prob is None else "enumeration")
    chosen = settings_of(name, settings, at_theta=True)
    _check_theta(model, theta)
    if data is None or as_data(data).size == 0:
        raise DataError("log p(x|θ) is of data: log_evidence(model, data, theta=...) needs rows.")
    data = as_data(data)
    if data.weights is not None:
        raise DataError("log_evidence(theta=...) is Σ_n log p(x_n|θ) of rows that count once; these data have weights.")
    check_resident(data)
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
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.arrays())
    if isinstance(model, Ladder):
        discrete = [f"{model.layers[i].family.name} units of layer {i}" for i in model.discrete]
    elif model.latent is None:
        raise ModelError(f"z of this model is dealt with in closed form; method={name!r} needs latent and likelihood.")
    else:
        parts = jax.tree.leaves(model.latent(theta) if x is None else model.latent(theta, x), is_leaf=is_distribution)
        discrete = [type(part).__name__ for part in parts if part.support.is_discrete]
    if discrete and name in ("annealed", "importance"):
        raise ModelError(
            f"method={name!r} looks for z by small steps, and z is discrete ({', '.join(discrete)}); use "
            f"method={'enumeration' if model.log_prob is not None else 'monte-carlo'!r}."
        )

    def factors(key: jax.Array) -> list[jax.Array]:
        code = code_of(model, theta, (y, x))
        z = code.sample(key)
        return model.factors(theta, z, y if x is None else (y, x))[:2]

    shapes = [term.shape for term in jax.eval_shape(factors, jax.random.key(0))]
    if shapes != [(), ()]:
        raise ModelError(
            "log p(x|z, θ) and log p(z|θ) of one datum are numbers; got shapes "
            f"{shapes[0]} and {shapes[1]}. Is a .to_event(1) missing?"
        )
