"""Estimates the marginal likelihood p(y) = ∫ p(y|θ) p(θ) dθ of any model, with its error and a verdict."""

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
from tractable.core.settings import check_seed
from tractable.diagnostics import evidence, importance
from tractable.diagnostics.evidence import QUANTILE, Evidence
from tractable.diagnostics.weights import effective, log_mean, relative_error, stochastic_bound, sum_up
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

DEGREES = 5.0  # degrees of freedom of the Student t's that replace a prior that cannot be drawn from
SPREAD = 32  # number of rows, and of draws for each row, from which the sds of z's prior are estimated
CURVED = 100  # maximum number of coordinates of one row's z for which a curvature is computed
LOOKED_AT = 100  # number of rows whose weights' tails are checked: those with the smallest effective sample sizes
HEAVY = 0.05  # largest share of these rows that may have heavy tails by chance
NO_WAY_BACK = "no exact posterior draws to run back from, so no upper bound"


@ending()
def log_evidence(
    model: Model, data: Data | PyTree = None, method: str | None = None, *, theta: PyTree = None, z: PyTree = None,
    seed: int = 0, posterior: Posterior | None = None, progress: bool | Callable | None = None,
    mesh: int | str | Mesh | None = None, **settings: Any,
) -> Evidence:  # fmt: skip
    """Estimates the log marginal likelihood of a model in nats; for a log density alone, log Z = log ∫ e^{log density}.

        "monte-carlo"   p(y) ≈ (1/S) Σ p(y|θ_s),                    θ_s ~ p(θ)
        "importance"    p(y) ≈ (1/S) Σ p(y, z_s)/q(z_s),            z_s ~ q, with the weights' tail smoothed
        "annealed"      p(y) ≈ (1/S) Σ w_s from the prior; 1/p(y) ≈ (1/S) Σ 1/w_s back from the posterior
        "laplace"       log p(y) ≈ log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|

    Here z are the unconstrained parameters, whose density includes the Jacobian's log-determinant. Because
    E log w < log E w, a mean of log weights is a lower bound. The log of the mean weight is an estimate, which is too
    low by about var/(2S). See Neal 2001; Vehtari et al. 2024 (smoothing); Grosse, Ghahramani & Adams 2015 (bounds from
    both sides); MacKay 1992 (Laplace).

    "monte-carlo" is unbiased for p(y), but fails unless there are few parameters and few data. The posterior's share of
    the prior's mass falls exponentially with the number of parameters, and with the precision that the data add. Then
    few draws, or none, decide the mean. The estimate is far too low, and its standard error is misleadingly small,
    because no draw came near the peak.

    "importance" draws from a q near the posterior: a fitted q, or Student t's at the modes. It is as good as q.

    "annealed", the default, goes from the prior to the posterior by temperatures, and back from posterior draws. This
    bounds log p(y) from below and above, and the gap between the bounds shows how uncertain it is. It takes some
    thousand gradients per chain.

    "laplace" takes one optimisation and one curvature, and is exact for a normal posterior. It has no error bar, so it
    is checked by importance weights.

    For a ``LatentModel`` at a given ``theta`` the result is Σ_n log p(x_n|θ): only the latent z is summed out.
    "enumeration" does this exactly, if there is a finite sum or a closed form; it is then the default. The other
    methods estimate log p(x_n|θ) of each row: "monte-carlo" by draws z ~ p(z|θ), "importance" by draws from Student
    t's at the modes of p(z|x_n, θ), and "annealed" by steps from p(z|θ) to p(z|x_n, θ). The biases of all rows have
    the same sign and add up, while their errors add as squares. "annealed" has an upper bound only for simulated data,
    whose ``z`` is an exact draw of every row's posterior.

    A log density (``Model.from_log_density``) or a callable prior cannot be drawn from. "monte-carlo" and "annealed"
    then start from Student t's with 5 degrees of freedom at the modes. If the prior is not normalised, the result is
    log ∫ p(y|θ) prior(θ) dθ.

    Args:
        model: a model with proper priors.
        data: Data or arrays; by default those of ``posterior``; None for a model without a likelihood.
        method: one of the names above; by default "annealed", or with ``theta`` "enumeration" if that is possible.
        theta: parameters of a ``LatentModel``, in the user's space.
        z: for "annealed" with ``theta``: the latent z that ``model.sample`` drew with these data, leading axis N ≥ 8.
        seed: seed of all random numbers.
        posterior: a posterior of the same model and data. For "importance" it is a q (from ``MeanField``, ``FullRank``,
            ``LowRank`` or ``Laplace``). For "annealed" it has draws from which to run back (from ``NUTS``, ``HMC``,
            ``MALA``, ``RandomWalk`` or ``Rejection``, whose draws are exact); by default NUTS makes them.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        mesh: the devices over which rows are distributed, as for ``infer``; results are the same to the last bit on any
            number of devices. Optimisations, and pilot runs at a given ``theta``, run on one device.
        settings: settings of the method: ``draws`` (monte-carlo, importance, laplace), ``degrees`` (importance),
            ``starts`` (importance, laplace); ``chains``, ``temperatures``, ``transitions``, ``kernel``, ``reverse``,
            ``pilot`` (annealed). With ``theta``, draws (1000), starts (4), chains (32) and temperatures (100) are per
            row, and ``z`` takes the place of ``reverse``.

    Ctrl-C and SIGTERM stop the call between its phases. If the forward weights are complete, the result is based on
    them, without an upper bound and with "caution".

    Raises:
        SettingsError: an unknown method or setting, a setting out of range, or a posterior unsuitable for the method.
        ModelError: an improper prior; or no mode with a curvature, if one is needed.
        DataError: rows that are not in memory.
        RunError: no draw of the prior has a finite likelihood; or an interruption before there are weights.

    >>> import numpy as np
    >>> import numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> found = log_evidence(coin, np.array([1, 1, 0]), "monte-carlo", draws=10_000)  # exactly −log 12
    >>> found.verdict, bool(abs(found.estimate + np.log(12)) < 4 * found.standard_error)
    ('trust', True)
    """
    start = time.perf_counter()
    if not isinstance(model, Model):
        raise SettingsError(f"log_evidence expects a Model; got {type(model).__name__}.")
    seed = check_seed("log_evidence(seed)", seed)
    if theta is None:
        problem = problem_of_parameters(model, data, posterior, z, method, settings)
    else:
        problem = problem_at_theta(model, data, posterior, theta, z, method, settings)
    problem = problem.on_mesh(mesh)._replace(seed=seed)
    placement = problem.placement
    with progress_of(progress if placement.is_writer else False) as say, interruptible() as stop:
        result = METHODS[problem.method](problem, Watch(say, placement.any_process(stop)))
    checks = [*result.checks, *_normalisation(model)] if theta is None else result.checks
    return result._replace(checks=checks, method=problem.method, seconds=time.perf_counter() - start)


def _normalisation(model: Model) -> list[Check]:
    """A check that says what the result is if the prior is only a log density; none for other priors."""
    if not model.prior_is_callable or model.drawable:
        return []
    verdict, sentence = "caution", "the prior is a log density: this is the evidence only if it integrates to 1"
    if model.likelihood is None:
        verdict, sentence = "trust", "log ∫ of the unnormalised density; it is no evidence, because there are no data"
    return [Check("normalisation", 1, verdict, sentence)]


def by_enumeration(problem: Problem, watch: Watch) -> Evidence:
    """Σ_n log p(x_n|θ), with z summed out, or integrated out in closed form."""
    targets, causes = problem.placed, getattr(problem.model, "causes", None)
    watch.go("sum")
    terms = np.asarray(targets.ran(jax.jit(_terms) if problem.placement.divides_rows else _terms), np.float64)
    watch.say("sum", 1, 1)
    value = float(terms.sum())
    count = 1 if causes is None else jax.tree.leaves(causes)[0].shape[0]
    what = "z integrated out in closed form" if causes is None else "values of z, summed over"
    verdict = "trust" if math.isfinite(value) else "reject"
    checks = [Check("exact", count, verdict, f"{what}: exact up to rounding errors")]
    zeros, ones = np.zeros(len(terms)), np.ones(len(terms))
    return Evidence(value, 0.0, value, value, checks, terms[:, None], log_evidence=terms, error=zeros, effective=ones)


def _terms(targets: Targets) -> jax.Array:
    """(N,) log p(x_n|θ), with z summed out."""
    rows, placement = targets.rows, targets.placement
    if not isinstance(placement, OverDevices):
        return targets.model.log_likelihoods(targets.shared, rows)
    return placement.by_rows(lambda x: targets.model.log_likelihoods(targets.shared, x[0]), rows.rows, (), rows.size)


def by_monte_carlo(problem: Problem, watch: Watch) -> Evidence:
    """The log mean likelihood of draws of the prior.

    If the prior cannot be drawn from, draws are from Student t's at the modes, and are weighted.
    """
    problem, checks = _with_base(problem, watch)
    log_weights = weights.weigh(problem.placed, problem.key, problem.settings.draws, watch)
    return _judge(problem, log_weights, checks, 100.0 if problem.targets.many else 200.0)


def by_importance(problem: Problem, watch: Watch) -> Evidence:
    """Importance sampling from the posterior's q, or from Student t's around the modes.

        p(y) ≈ (1/S) Σ_s p(y, u_s)/q(u_s),   q(u) = Σ_k ρ_k t_ν(u; û_k, Λ_k⁻¹)

    û_k are the modes that optimisations find, Λ_k the curvatures there, and ρ_k each mode's share of the mass, by
    Laplace's approximation. At a given θ, the z of each row has its own q.
    """
    settings, key, work, checks = problem.settings, problem.key, 1, []
    if problem.posterior is not None:
        fitted: Any = problem.posterior.fitted
        propose, q = proposals.proposal_of(fitted.family), fitted.phi
    else:
        watch.go("modes")
        q, counts = _students(problem)
        propose, work, checks = proposals.students, settings.starts, [_mode_check(counts)]
        key = jax.random.fold_in(key, 2)
    log_weights = weights.weigh(problem.placed, key, settings.draws, watch, propose, q, work)
    if problem.targets.many:
        return _judge(problem, log_weights, [_tail_check(log_weights), *checks])
    raw, smooth_weights = importance.weigh(log_weights[0]), weights.smooth_tail(log_weights[0])
    sentence = f"mean log weight ± {raw.error:.2g}: a lower bound of log p(y), too low by KL(q ‖ p)"
    result = _judge(problem, log_weights, [Check("ELBO", raw.elbo, "trust", sentence), *checks])
    estimate, error = log_mean(smooth_weights), relative_error(smooth_weights)
    lower, upper = min(stochastic_bound(log_weights[0]), estimate), estimate + error**2 / 2 + QUANTILE * error
    return result._replace(estimate=estimate, standard_error=error, lower=lower, upper=upper)


def _students(problem: Problem) -> tuple[proposals.Mixture, np.ndarray]:
    """Student t's around the modes of each target, and the targets' numbers of modes."""
    settings, key = problem.settings, jax.random.fold_in(problem.key, 1)
    if not problem.targets.many:
        modes = proposals.modes_of(problem.model, problem.data, key, settings.starts)
        return proposals.students_at(modes, float(settings.degrees)), np.array([len(modes)])
    subset = problem.targets.some(SPREAD)
    sds = jnp.std(weights.base_draws(subset, jax.random.fold_in(problem.key, 0), SPREAD)[0], axis=(0, 1))
    if len(sds) > CURVED:
        raise ModelError(
            f"method='importance' computes a curvature for a z of at most {CURVED} numbers; got {len(sds)}. Use "
            "method='annealed'."
        )
    degrees = jnp.asarray(float(settings.degrees), sds.dtype)
    spread = jnp.maximum(sds, 1e-12)
    q, counts = problem.placed.ran(proposals.modes_of_causes, spread, degrees, key, count=settings.starts)
    return q, np.asarray(counts)


def by_laplace(problem: Problem, watch: Watch) -> Evidence:
    """log p(y) by Laplace's approximation at the mode of largest mass, checked by importance weights of that normal."""
    watch.go("modes")
    modes = proposals.modes_of(problem.model, problem.data, jax.random.fold_in(problem.key, 1), problem.settings.starts)
    masses = [proposals.laplace_value(mode.value, mode.root) for mode in modes]
    phi = approximations.of_root(jnp.asarray(modes[0].position), jnp.asarray(modes[0].root))
    propose = proposals.proposal_of("full rank")
    log_weights = weights.weigh(problem.placed, problem.key, problem.settings.draws, watch, propose, phi)
    reference = log_mean(weights.smooth_tail(log_weights[0]))
    difference, mode_check = masses[0] - reference, _mode_check(np.array([len(modes)]))
    if len(modes) > 1:
        lead = masses[0] - masses[1]
        sentence = f"{mode_check.sentence}; the second has e^−{lead:.2g} of the first mode's mass, and is left out"
        mode_check = mode_check._replace(verdict="reject" if lead < 5 else "caution", sentence=sentence)
    sentence = f"nats above importance sampling from the same normal, {reference:.6g}; Laplace has no error bar"
    verdict = evidence.grade(abs(difference), 0.1, 1.0)
    checks = [Check("against weights", difference, verdict, sentence), mode_check]
    result = _judge(problem, log_weights, checks)
    return result._replace(estimate=masses[0], standard_error=math.nan, lower=math.nan, upper=math.nan)


def by_annealing(problem: Problem, watch: Watch) -> Evidence:
    """Annealed importance sampling by temperatures that a pilot run chooses, and back if there are exact draws."""
    problem, checks = _with_base(problem, watch)
    settings, targets, posterior = problem.settings, problem.placed, problem.posterior
    pilot_key, forward_key, back_key = (jax.random.fold_in(problem.key, i) for i in (2, 3, 4))
    ladder = annealing.pilot(problem.targets if targets.many else targets, settings, pilot_key, watch)

    def exact() -> jax.Array | None:
        """Exact draws of the targets; if no posterior was given, NUTS makes those of parameters."""
        nonlocal posterior
        if targets.many:
            return jnp.repeat(targets.flat(problem.z)[:, None], settings.chains, 1)
        if posterior is None:
            posterior = infer(
                problem.model, problem.data, NUTS(), seed=problem.seed, progress=watch.say, mesh=problem.placement.mesh
            )
            if posterior.interrupted or watch.stop():
                return None
        # Draws are ordered by time: correlated draws are then in the same block of the bound.
        flat = np.asarray(posterior.unconstrained).swapaxes(0, 1).reshape(-1, targets.model.space.size)
        return jnp.asarray(flat[np.linspace(0, len(flat) - 1, settings.chains).astype(int)], jnp.result_type(float))

    reverse = problem.z is not None if targets.many else settings.reverse
    log_weights, back, run_checks = annealing.both_ways(
        targets, settings, ladder, (forward_key, back_key), exact if reverse else None, watch
    )
    if targets.many:
        return _sandwich_of_rows(log_weights, back, [*run_checks, *checks])
    return _sandwich(log_weights, back, posterior, [*run_checks, *checks])


def _sandwich_of_rows(log_weights: np.ndarray, back: np.ndarray | None, checks: list[Check]) -> Evidence:
    """Σ_n log p(x_n|θ) between two bounds, from log weights (N, S) of a forward and a backward run.

    The upper bound is the sum of the rows' backward estimates u_n plus t(N−1) √N sd(u_n − f_n), where f_n are the
    forward estimates, and t(N−1) a quantile of Student's t. All backward chains of a row start at the same draw, so
    that only the variation over rows shows the error.
    """
    from scipy.stats import t

    forward, (size, chains) = sum_up(log_weights), log_weights.shape
    upper, gap = math.inf, evidence.gap_check(None, NO_WAY_BACK)
    if back is not None:
        backward = -sum_up(-back).estimates
        sd = np.std(backward - forward.estimates, ddof=1)
        upper = float(backward.sum() + t.ppf(0.995, size - 1) * math.sqrt(size) * sd)
        width = upper - (forward.estimate - QUANTILE * forward.error)
        gap = evidence.gap_check(width / size, f"nats per row between the bounds; {width:.3g} in all", size)
    return evidence.of_rows(forward, chains, [gap, *checks], (10.0, 2.0), upper, log_weights, back)


def _sandwich(
    log_weights: np.ndarray, back: np.ndarray | None, posterior: Posterior | None, checks: list[Check]
) -> Evidence:
    """log p(y) between two stochastic bounds, from log weights (1, S) of a forward and a backward run."""
    forward, back = log_weights[0], None if back is None else back[0]
    lower, upper, gap = stochastic_bound(forward), math.inf, [evidence.gap_check(None, NO_WAY_BACK)]
    if back is not None and posterior is not None:
        upper, gap = -stochastic_bound(-back), log_mean(forward) + log_mean(-back)
        error = math.hypot(relative_error(forward), relative_error(-back))
        sigmas = abs(gap) / error if error > 0 else 0.0
        agrees = sigmas <= 3 or abs(gap) <= 0.1
        verdict = posterior.report().verdict
        origin = (
            "exact, by rejection" if posterior.method.exact
            else f"from chains whose report says {verdict}; the upper bound holds only if they are from the posterior"
        )  # fmt: skip
        gap = [
            evidence.size_check(effective(-back), 50.0, 20.0, f"effective size of {len(back)} chains", "reverse ESS"),
            evidence.gap_check(upper - lower, "nats between the stochastic bounds"),
            Check("agreement", gap, "trust" if agrees else "caution" if abs(gap) <= 1 else "reject",
                  f"nats, forward minus backward estimate; {sigmas:.2g} standard errors"),
            Check("posterior draws", len(back), verdict, origin),
        ]  # fmt: skip
    size = evidence.size_check(effective(forward), 50.0, 20.0, f"effective size of {len(forward)} chains")
    return Evidence(log_mean(forward), relative_error(forward), lower, upper, [size, *gap, *checks], forward, back)


def _with_base(problem: Problem, watch: Watch) -> tuple[Problem, list[Check]]:
    """The problem with a base to draw from: if the prior cannot be drawn from, Student t's around the modes.

    A check then says so.
    """
    model = problem.model
    if problem.targets.many or not model.prior_is_callable or model.drawable:
        return problem, []
    watch.go("modes")
    modes = proposals.modes_of(model, problem.data, jax.random.fold_in(problem.key, 1), 4)
    targets = dataclasses.replace(problem.targets, shared=proposals.students_at(modes, DEGREES))
    sentence = f"modes; draws start from a Student t of {DEGREES:g} degrees around each: there is no prior to draw from"
    return problem._replace(targets=targets), [Check("base", len(modes), "trust", sentence)]


def _judge(problem: Problem, log_weights: np.ndarray, checks: list[Check], good: float = 100.0) -> Evidence:
    """The evidence from log weights (N, S); for one target, the tail of its weights is checked too."""
    result = evidence.of_rows(sum_up(log_weights), log_weights.shape[1], checks, (good, 20.0), log_weights=log_weights)
    if problem.targets.many:
        return result
    checks = [*result.checks, *evidence.tail_checks(log_weights[0])]
    no_rows = {"log_evidence": evidence.NO_ROWS, "error": evidence.NO_ROWS, "effective": evidence.NO_ROWS, "samples": 0}
    return result._replace(checks=checks, log_weights=log_weights[0], **no_rows)


def _tail_check(log_weights: np.ndarray) -> Check:
    """Checks for how many of the rows the weights have a heavy tail.

    The largest k-hat is not checked, because among many rows it is often large by chance.
    """
    size, draws = log_weights.shape
    index = np.argsort(sum_up(log_weights).effective)[:LOOKED_AT]
    threshold = importance.khat_limit(draws)
    heavy = float(np.mean([evidence.tail_index(row) > threshold for row in log_weights[index]]))
    sentence = f"share of rows whose weights have a k-hat above {threshold:.2g}, among {len(index)} of {size} rows"
    return Check("heavy tails", heavy, evidence.grade(heavy, HEAVY, np.inf), sentence)


def _mode_check(modes: np.ndarray) -> Check:
    """Checks the number of modes that were found for each target, (N,)."""
    several_modes, no_modes = int(np.sum(modes > 1)), int(np.sum(modes == 0))
    sentence = "modes at which climbs ended"
    if len(modes) > 1:
        sentence = f"modes of one row, at most; {several_modes} of {len(modes)} rows have more than one mode"
    sentence += f", and {no_modes} have none with a positive definite curvature" if no_modes else ""
    return Check("modes", int(modes.max()), "caution" if several_modes or no_modes else "trust", sentence)


METHODS: dict[str, Callable[[Problem, Watch], Evidence]] = {
    "enumeration": by_enumeration, "monte-carlo": by_monte_carlo, "importance": by_importance,
    "annealed": by_annealing, "laplace": by_laplace,
}  # fmt: skip
