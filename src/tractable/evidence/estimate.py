"""The marginal likelihood p(y) = ∫ p(y|θ) p(θ) dθ of any model: an estimate, how far off it may be, a verdict."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tractable.core import approximations
from tractable.core.check import Check
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Data, Model, PyTree
from tractable.core.settings import seeded
from tractable.diagnostics import evidence, importance
from tractable.diagnostics.evidence import QUANTILE, Evidence
from tractable.diagnostics.weights import effective, log_mean, relative_error, stochastic_bound, summed
from tractable.engine.progress import progress_of
from tractable.engine.sharding import OverDevices
from tractable.engine.stopping import ending, interruptible
from tractable.evidence import annealing, proposals, weights
from tractable.evidence.problem import Problem, problem_at_theta, problem_of_parameters
from tractable.evidence.targets import Targets
from tractable.evidence.weights import Watch
from tractable.inference import infer
from tractable.mcmc.hamiltonian_methods import NUTS
from tractable.posterior.posterior import Posterior

__all__ = ["Evidence", "log_evidence"]

DEGREES = 5.0  # of Student t's in place of a prior
SPREAD = 32  # data, and draws for each, from which the prior's sds are estimated
CURVED = 100  # most numbers in one z for which the curvature is formed
LOOKED_AT = 100  # data whose weights' tails are checked: those with the fewest effective draws
HEAVY = 0.05  # share of them that may have heavy tails by chance
NO_WAY_BACK = "no exact posterior draws to run back from, so no upper bound"


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
    since no weight saw the peak. "importance" draws from a q near the posterior, a fitted one or Student t's at the
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
    then start from Student t's of 5 degrees at the modes. An unnormalised prior gives log ∫ p(y|θ) prior(θ) dθ.

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
    if theta is None:
        problem = problem_of_parameters(model, data, posterior, z, method, settings)
    else:
        problem = problem_at_theta(model, data, posterior, theta, z, method, settings)
    problem = problem.on_mesh(mesh)._replace(seed=seed)
    placement = problem.placement
    with progress_of(progress if placement.is_writer else False) as say, interruptible() as stop:
        found = METHODS[problem.method](problem, Watch(say, placement.any_process(stop)))
    checks = [*found.checks, *_normalisation(model)] if theta is None else found.checks
    return found._replace(checks=checks, method=problem.method, seconds=time.perf_counter() - began)


def _normalisation(model: Model) -> list[Check]:
    if not model.prior_is_callable or model.drawable:
        return []
    verdict, said = "caution", "the prior is a log density: this is the evidence only if it integrates to 1"
    if model.likelihood is None:
        verdict, said = "trust", "log ∫ of the unnormalised density; no evidence, as there are no data"
    return [Check("normalisation", 1, verdict, said)]


def by_enumeration(problem: Problem, watch: Watch) -> Evidence:
    """Σ_n log p(x_n|θ), z summed out, or integrated out in closed form."""
    targets, causes = problem.placed, getattr(problem.model, "causes", None)
    watch.go("sum")
    terms = np.asarray(targets.ran(jax.jit(_terms) if problem.placement.divides_rows else _terms), np.float64)
    watch.say("sum", 1, 1)
    value = float(terms.sum())
    count = 1 if causes is None else jax.tree.leaves(causes)[0].shape[0]
    how = "z dealt with in closed form" if causes is None else "values of z, summed over"
    verdict = "trust" if math.isfinite(value) else "reject"
    checks = [Check("exact", count, verdict, f"{how}: no error but that of rounding")]
    none, one = np.zeros(len(terms)), np.ones(len(terms))
    return Evidence(value, 0.0, value, value, checks, terms[:, None], log_evidence=terms, error=none, effective=one)


def _terms(targets: Targets) -> jax.Array:
    """(N,) log p(x_n|θ), z summed out."""
    rows, placement = targets.rows, targets.placement
    if not isinstance(placement, OverDevices):
        return targets.model.log_likelihoods(targets.shared, rows)
    return placement.by_rows(lambda x: targets.model.log_likelihoods(targets.shared, x[0]), rows.rows, (), rows.size)


def by_monte_carlo(problem: Problem, watch: Watch) -> Evidence:
    """The log mean likelihood of draws of the prior, or of Student t's at the modes if it cannot be drawn from."""
    problem, checks = _with_base(problem, watch)
    log_weights = weights.weigh(problem.placed, problem.key, problem.settings.draws, watch)
    return _judged(problem, log_weights, checks, 100.0 if problem.targets.many else 200.0)


def by_importance(problem: Problem, watch: Watch) -> Evidence:
    """Importance sampling from the posterior's q, or from Student t's around the modes.

        p(y) ≈ (1/S) Σ_s p(y, u_s)/q(u_s),   q(u) = Σ_k ρ_k t_ν(u; û_k, Λ_k⁻¹)

    û_k are the end points of climbs, Λ_k the curvatures there, and ρ_k each mode's share of the mass, by Laplace's
    approximation. At a given θ the z of every datum has a q of its own.
    """
    settings, key, work, checks = problem.settings, problem.key, 1, []
    if problem.posterior is not None:
        fitted: Any = problem.posterior.fitted
        propose, q = proposals.fitted(fitted.family), fitted.phi
    else:
        watch.go("modes")
        q, counts = _students(problem)
        propose, work, checks = proposals.students, settings.starts, [_mode_check(counts)]
        key = jax.random.fold_in(key, 2)
    log_weights = weights.weigh(problem.placed, key, settings.draws, watch, propose, q, work)
    if problem.targets.many:
        return _judged(problem, log_weights, [_tail_check(log_weights), *checks])
    raw, better = importance.weigh(log_weights[0]), weights.smoothed(log_weights[0])
    said = f"mean log weight ± {raw.error:.2g}, a lower bound; KL(q ‖ p) below the truth"
    found = _judged(problem, log_weights, [Check("ELBO", raw.elbo, "trust", said), *checks])
    estimate, error = log_mean(better), relative_error(better)
    lower, upper = min(stochastic_bound(log_weights[0]), estimate), estimate + error**2 / 2 + QUANTILE * error
    return found._replace(estimate=estimate, standard_error=error, lower=lower, upper=upper)


def _students(problem: Problem) -> tuple[proposals.Mixture, np.ndarray]:
    """Student t's around the modes, and the number of modes, of every target."""
    settings, key = problem.settings, jax.random.fold_in(problem.key, 1)
    if not problem.targets.many:
        found = proposals.modes_of(problem.model, problem.data, key, settings.starts)
        return proposals.students_at(found, float(settings.degrees)), np.array([len(found)])
    few = problem.targets.some(SPREAD)
    sds = jnp.std(weights.base_draws(few, jax.random.fold_in(problem.key, 0), SPREAD)[0], axis=(0, 1))
    if len(sds) > CURVED:
        raise ModelError(
            f"The curvature of a code of {len(sds)} numbers is not formed, at most {CURVED}; use method='annealed'."
        )
    degrees = jnp.asarray(float(settings.degrees), sds.dtype)
    spread = jnp.maximum(sds, 1e-12)
    q, counts = problem.placed.ran(proposals.modes_of_causes, spread, degrees, key, count=settings.starts)
    return q, np.asarray(counts)


def by_laplace(problem: Problem, watch: Watch) -> Evidence:
    """log p(y) by Laplace's approximation at the highest mode, judged by importance weights of that normal."""
    watch.go("modes")
    found = proposals.modes_of(problem.model, problem.data, jax.random.fold_in(problem.key, 1), problem.settings.starts)
    masses = [proposals.laplace_value(mode.value, mode.root) for mode in found]
    phi = approximations.of_root(jnp.asarray(found[0].position), jnp.asarray(found[0].root))
    propose = proposals.fitted("full rank")
    log_weights = weights.weigh(problem.placed, problem.key, problem.settings.draws, watch, propose, phi)
    judge = log_mean(weights.smoothed(log_weights[0]))
    above, places = masses[0] - judge, _mode_check(np.array([len(found)]))
    if len(found) > 1:
        lead = masses[0] - masses[1]
        said = f"{places.sentence}; the second holds e^−{lead:.2g} of the first's mass, and is left out"
        places = places._replace(verdict="reject" if lead < 5 else "caution", sentence=said)
    said = f"nats above importance sampling from the same normal, {judge:.6g}; Laplace has no error bar"
    checks = [Check("against weights", above, evidence.grade(abs(above), 0.1, 1.0), said), places]
    none = {"standard_error": math.nan, "lower": math.nan, "upper": math.nan}
    return _judged(problem, log_weights, checks)._replace(estimate=masses[0], **none)


def by_annealing(problem: Problem, watch: Watch) -> Evidence:
    """Annealed importance sampling along a ladder of temperatures that a pilot run chose, and back if possible."""
    problem, checks = _with_base(problem, watch)
    settings, targets, posterior = problem.settings, problem.placed, problem.posterior
    pilot_key, forward_key, back_key = (jax.random.fold_in(problem.key, i) for i in (2, 3, 4))
    ladder = annealing.pilot(problem.targets if targets.many else targets, settings, pilot_key, watch)

    def exact() -> jax.Array | None:
        """Exact draws of the targets; NUTS makes those of parameters where no posterior was given."""
        nonlocal posterior
        if targets.many:
            return jnp.repeat(targets.flat(problem.z)[:, None], settings.chains, 1)
        if posterior is None:
            posterior = infer(
                problem.model, problem.data, NUTS(), seed=problem.seed, progress=watch.say, mesh=problem.placement.mesh
            )
            if posterior.interrupted or watch.stop():
                return None
        # Ordered by time: each block of the bound then covers one stretch, and correlated draws share a block.
        flat = np.asarray(posterior.unconstrained).swapaxes(0, 1).reshape(-1, targets.model.space.size)
        return jnp.asarray(flat[np.linspace(0, len(flat) - 1, settings.chains).astype(int)], jnp.result_type(float))

    reverse = problem.z is not None if targets.many else settings.reverse
    log_weights, back, way = annealing.both_ways(
        targets, settings, ladder, (forward_key, back_key), exact if reverse else None, watch
    )
    if targets.many:
        return _sandwich_of_rows(log_weights, back, [*way, *checks])
    return _sandwich(log_weights, back, posterior, [*way, *checks])


def _sandwich_of_rows(log_weights: np.ndarray, back: np.ndarray | None, checks: list[Check]) -> Evidence:
    """Σ_n log p(x_n|θ) from weights forwards and backwards; E log mean 1/w ≥ −log p(x_n|θ) for every row.

    The upper bound is the sum of backward estimates u_n plus t(N−1) √N sd(u_n − f_n), f_n the forward ones: all chains
    of a row start at one draw, so only the spread over rows tells the error.
    """
    from scipy.stats import t

    forward, (size, chains) = summed(log_weights), log_weights.shape
    upper, gap = math.inf, evidence.gap_check(None, NO_WAY_BACK)
    if back is not None:
        over = -summed(-back).estimates
        spread = np.std(over - forward.estimates, ddof=1)
        upper = float(over.sum() + t.ppf(0.995, size - 1) * math.sqrt(size) * spread)
        width = upper - (forward.estimate - QUANTILE * forward.error)
        gap = evidence.gap_check(width / size, f"nats a datum between the bounds; {width:.3g} in all", size)
    return evidence.of_rows(forward, chains, [gap, *checks], (10.0, 2.0), upper, log_weights, back)


def _sandwich(
    log_weights: np.ndarray, back: np.ndarray | None, posterior: Posterior | None, checks: list[Check]
) -> Evidence:
    """log p(y) between stochastic bounds, from weights (1, S) forwards and backwards."""
    forward, back = log_weights[0], None if back is None else back[0]
    lower, upper, gap = stochastic_bound(forward), math.inf, [evidence.gap_check(None, NO_WAY_BACK)]
    if back is not None and posterior is not None:
        upper, gap = -stochastic_bound(-back), log_mean(forward) + log_mean(-back)
        error = math.hypot(relative_error(forward), relative_error(-back))
        sigmas = abs(gap) / error if error > 0 else 0.0
        agrees = sigmas <= 3 or abs(gap) <= 0.1
        judged = posterior.report().verdict
        how = (
            "exact, by rejection" if posterior.method.exact
            else f"from a chain whose report says {judged}: the upper bound is one as far as these are the posterior's"
        )  # fmt: skip
        gap = [
            evidence.size_check(effective(-back), 50.0, 20.0, "the same, of inverse weights", "reverse ESS"),
            evidence.gap_check(upper - lower, "nats between the stochastic bounds"),
            Check("agreement", gap, "trust" if agrees else "caution" if abs(gap) <= 1 else "reject",
                  f"nats, forward less backward estimate; {sigmas:.2g} standard errors"),
            Check("posterior draws", len(back), judged, how),
        ]  # fmt: skip
    number_of = evidence.size_check(effective(forward), 50.0, 20.0, f"effective chains of {len(forward)}")
    return Evidence(log_mean(forward), relative_error(forward), lower, upper, [number_of, *gap, *checks], forward, back)


def _with_base(problem: Problem, watch: Watch) -> tuple[Problem, list[Check]]:
    """Where a prior cannot be drawn from, draws begin at Student t's around the modes, and a check says so."""
    model = problem.model
    if problem.targets.many or not model.prior_is_callable or model.drawable:
        return problem, []
    watch.go("modes")
    found = proposals.modes_of(model, problem.data, jax.random.fold_in(problem.key, 1), 4)
    targets = dataclasses.replace(problem.targets, shared=proposals.students_at(found, DEGREES))
    said = f"modes around which draws begin, by Student t's of {DEGREES:g} degrees: there is no prior to draw from"
    return problem._replace(targets=targets), [Check("base", len(found), "trust", said)]


def _judged(problem: Problem, log_weights: np.ndarray, checks: list[Check], good: float = 100.0) -> Evidence:
    """The evidence from log weights (N, S); of one density the tail of its weights is checked too."""
    found = evidence.of_rows(summed(log_weights), log_weights.shape[1], checks, (good, 20.0), log_weights=log_weights)
    if problem.targets.many:
        return found
    checks = [*found.checks, *evidence.tail_checks(log_weights[0])]
    whole = {"log_evidence": evidence.NO_ROWS, "error": evidence.NO_ROWS, "effective": evidence.NO_ROWS, "samples": 0}
    return found._replace(checks=checks, log_weights=log_weights[0], **whole)


def _tail_check(log_weights: np.ndarray) -> Check:
    """Of many rows the share whose weights have a heavy tail: the largest of many k-hats would say little."""
    size, draws = log_weights.shape
    few = np.argsort(summed(log_weights).effective)[:LOOKED_AT]
    threshold = importance.khat_limit(draws)
    heavy = float(np.mean([evidence.tail_index(row) > threshold for row in log_weights[few]]))
    said = f"share of data whose weights have a k-hat above {threshold:.2g}, among {len(few)} of {size}"
    return Check("heavy tails", heavy, evidence.grade(heavy, HEAVY, np.inf), said)


def _mode_check(modes: np.ndarray) -> Check:
    """Of the numbers of modes that were found of every target."""
    with_modes, none = int(np.sum(modes > 1)), int(np.sum(modes == 0))
    said = "places that climbs ended at"
    if len(modes) > 1:
        said = f"most places that a datum's climbs ended at; {with_modes} of {len(modes)} data have several"
    said += f", {none} none with a curvature" if none else ""
    return Check("modes", int(modes.max()), "caution" if with_modes or none else "trust", said)


METHODS: dict[str, Callable[[Problem, Watch], Evidence]] = {
    "enumeration": by_enumeration, "monte-carlo": by_monte_carlo, "importance": by_importance,
    "annealed": by_annealing, "laplace": by_laplace,
}  # fmt: skip
