"""The evidence of a latent-variable model at a given θ: Σ_n log p(x_n|θ), estimated datum by datum."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.check import Check
from tractable.checks import preflight
from tractable.checks.evidence import QUANTILE, Evidence, gap_check, grade, of_rows
from tractable.checks.importance import khat, khat_limit
from tractable.core import Data, Model, PyTree, as_data
from tractable.data.sharding import OverDevices
from tractable.evidence import targets, weights
from tractable.evidence.annealing import both_ways, pilot_of_causes, spread
from tractable.evidence.settings import Annealing, Enumeration, Importance, MonteCarlo, check_resident, settings_of
from tractable.evidence.targets import Targets
from tractable.evidence.weights import Watch
from tractable.kernels.annealed import summed
from tractable.models.latent import LatentModel
from tractable.tools.errors import DataError, ModelError, SettingsError

SPREAD = 32  # data, and draws for each, from which the prior's sds are estimated
CURVED = 100  # most numbers in one z for which the curvature is formed
LOOKED_AT = 100  # data whose weights' tails are checked: those with the fewest effective draws
HEAVY = 0.05  # share of them that may have heavy tails by chance


def at_theta(
    model: LatentModel,
    data: Data,
    seed: int,
    chosen: Enumeration | MonteCarlo | Importance | Annealing,
    theta: PyTree,
    z: PyTree,
    watch: Watch,
    over: OverDevices | None = None,
) -> Evidence:
    """Σ_n log p(x_n|θ) by the method whose settings are ``chosen``; pilots look at few rows, on one device."""
    theta, key = jax.tree.map(jnp.asarray, theta), jax.random.key(seed)
    causes = targets.of_causes(model, theta, data)
    laid = causes.laid(over)
    if isinstance(chosen, Enumeration):
        return _by_enumeration(model, laid, watch)
    if isinstance(chosen, MonteCarlo):
        return _weighed(weights.possible(laid, weights.weigh(laid, key, chosen.draws, watch)), [])
    if isinstance(chosen, Importance):
        return _weighed(*_by_importance(causes, laid, key, chosen, watch))
    return _by_annealing(causes, laid, key, chosen, z, watch)


def _by_enumeration(model: LatentModel, causes: Targets, watch: Watch) -> Evidence:
    watch.go("sum")
    terms = _terms if causes.lying is None else jax.jit(_terms)
    terms = np.asarray(causes.ran(terms), np.float64)
    watch.say("sum", 1, 1)
    value = float(terms.sum())
    verdict = "trust" if math.isfinite(value) else "reject"
    how = "values of z, summed over" if model.causes is not None else "z dealt with in closed form"
    count = jax.tree.leaves(model.causes)[0].shape[0] if model.causes is not None else 1
    checks = [Check("exact", count, verdict, f"{how}: no error but that of rounding")]
    none, one = np.zeros(len(terms)), np.ones(len(terms))
    return Evidence(value, 0.0, value, value, checks, terms[:, None], log_evidence=terms, error=none, effective=one)


def _terms(causes: Targets) -> jax.Array:
    """(N,) log p(x_n|θ), z summed out."""
    rows = causes.rows
    if causes.lying is None:
        return causes.model.log_likelihoods(causes.shared, rows)
    return causes.lying.by_rows(lambda x: causes.model.log_likelihoods(causes.shared, x[0]), rows.rows, (), rows.size)


def _by_importance(
    causes: Targets, laid: Targets, key: jax.Array, settings: Importance, watch: Watch
) -> tuple[np.ndarray, list[Check]]:
    """(N, S) log weights of draws from Student t's around the modes of every datum's z, and checks of q and the tails.

        p(x_n|θ) ≈ (1/S) Σ_s p(x_n, u_s|θ)/q_n(u_s),   q_n(u) = Σ_k ρ_k t_ν(u; û_k, Λ_k⁻¹)

    û_k are the end points of climbs that start at draws of p(z|θ), Λ_k the curvatures there, and ρ_k each mode's share
    of the mass, by Laplace's approximation.
    """
    sds = spread(causes.some(SPREAD), SPREAD, jax.random.fold_in(key, 0))
    if len(sds) > CURVED:
        raise ModelError(
            f"The curvature of a code of {len(sds)} numbers is not formed, at most {CURVED}; use method='annealed'."
        )
    watch.go("modes")
    degrees = jnp.asarray(float(settings.degrees), sds.dtype)
    q, modes = laid.ran(weights.modes_of_causes, sds, jax.random.fold_in(key, 1), count=settings.starts)
    key = jax.random.fold_in(key, 2)
    log_weights = weights.weigh(
        laid, key, settings.draws, watch, propose=weights.students, own=q, phi=degrees, work=settings.starts
    )
    log_weights = weights.possible(laid, log_weights)
    return log_weights, [_tail_check(log_weights), _mode_check(np.asarray(modes))]


def _by_annealing(
    causes: Targets, laid: Targets, key: jax.Array, settings: Annealing, z: PyTree, watch: Watch
) -> Evidence:
    ladder = pilot_of_causes(causes, settings, jax.random.fold_in(key, 1), watch)
    exact = None if z is None else lambda: jax.tree.map(jnp.asarray, z)
    keys = jax.random.fold_in(key, 2), jax.random.fold_in(key, 3)
    log_weights, back, checks = both_ways(laid, settings, ladder, keys, exact, watch)
    forward, size = summed(log_weights), causes.count
    upper, gap = math.inf, gap_check(None, "no exact posterior draws of z to run back from, so no upper bound")
    if back is not None:
        upper = _upper(forward.estimates, -summed(-back).estimates)
        apart = upper - (forward.estimate - QUANTILE * forward.error)
        gap = gap_check(apart / size, f"nats a datum between the bounds; {apart:.3g} in all", size)
    return of_rows(forward, settings.chains, [gap, *checks], 10.0, upper, log_weights, back)


def _weighed(log_weights: np.ndarray, checks: list[Check]) -> Evidence:
    return of_rows(summed(log_weights), log_weights.shape[1], checks, 100.0, log_weights=log_weights)


def _upper(forward: np.ndarray, back: np.ndarray) -> float:
    """Σ u_n + t(N−1) √N sd(u_n − f_n), of backward and forward estimates u_n and f_n of N data, (N,).

    E u_n ≥ log p(x_n|θ). All chains of a datum start at one draw, so only the spread over data tells the error.
    """
    from scipy.stats import t

    size = len(back)
    return float(back.sum() + t.ppf(0.995, size - 1) * math.sqrt(size) * np.std(back - forward, ddof=1))


def _tail_check(log_weights: np.ndarray) -> Check:
    size, draws = log_weights.shape
    shares = np.exp(log_weights - log_weights.max(1, keepdims=True))
    few = np.argsort(shares.sum(1) ** 2 / np.sum(shares**2, axis=1))[:LOOKED_AT]
    finite = np.where(np.isfinite(log_weights[few]), log_weights[few], np.nan)
    tails = np.array([khat(np.nan_to_num(row, nan=float(np.nanmin(row)))) for row in finite if np.isfinite(row).any()])
    threshold = khat_limit(draws)
    heavy = float(np.mean(tails > threshold)) if len(tails) else 1.0  # the largest of many estimates would say little
    said = f"share of data whose weights have a k-hat above {threshold:.2g}, among {len(few)} of {size}"
    return Check("heavy tails", heavy, grade(heavy, HEAVY, np.inf), said)


def _mode_check(modes: np.ndarray) -> Check:
    several, none = int(np.sum(modes > 1)), int(np.sum(modes == 0))
    said = f"most places that a datum's climbs ended at; {several} of {len(modes)} data have several"
    said += f", {none} none with a curvature" if none else ""
    return Check("modes", int(modes.max()), "caution" if several or none else "trust", said)


def latent_problem(
    model: Model,
    data: Data | PyTree,
    method: str | None,
    theta: PyTree,
    z: PyTree,
    posterior: object,
    settings: dict[str, Any],
) -> tuple[LatentModel, str, Any, Data]:
    """The model, the method's name, its settings and the data; raises where they do not fit together."""
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
        _check_causes(model, data, theta, name)
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


def _check_causes(model: LatentModel, data: Data, theta: PyTree, name: str) -> None:
    """Check that z can be drawn, that it is continuous if the method moves it, and that its factors are scalars."""
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.arrays())
    discrete = model.discrete_causes(theta, x)
    if discrete is None:
        raise ModelError(f"z of this model is dealt with in closed form; method={name!r} needs latent and likelihood.")
    if discrete and name in ("annealed", "importance"):
        raise ModelError(
            f"method={name!r} looks for z by small steps, and z is discrete ({', '.join(discrete)}); use "
            f"method={'enumeration' if model.log_prob is not None else 'monte-carlo'!r}."
        )

    def factors(key: jax.Array) -> list[jax.Array]:
        z = targets.cause_target(model, theta, (y, x)).sample(key)
        return model.factors(theta, z, y if x is None else (y, x))[:2]

    shapes = [term.shape for term in jax.eval_shape(factors, jax.random.key(0))]
    if shapes != [(), ()]:
        raise ModelError(
            "log p(x|z, θ) and log p(z|θ) of one datum are numbers; got shapes "
            f"{shapes[0]} and {shapes[1]}. Is a .to_event(1) missing?"
        )
