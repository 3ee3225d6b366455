"""The end of Monte-Carlo EM: the best climb, its standard errors, and the report's checks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.curve import pad_traces
from tractable.core.errors import RunError
from tractable.core.latent import LatentModel
from tractable.core.rows import Data
from tractable.core.shared import compiled
from tractable.core.tree import PyTree
from tractable.diagnostics.maxima import agreement, curvature
from tractable.diagnostics.report import check_share
from tractable.engine.method import Check
from tractable.engine.search import INFORMATION
from tractable.latent.em_method import SAME
from tractable.latent.latent_draws import Draws
from tractable.latent.monte_carlo_climb import End, ones
from tractable.latent.monte_carlo_em import Information, bridge, observed_information

# Nats (natural logarithms) by which the objective is below its maximum if θ is half a standard error from it.
HALF = 0.125
WORK = 1 << 36  # largest product rows × draws × parameters for which Louis's standard errors are computed
FEW = 20  # effective draws per datum below which the Monte-Carlo error itself is a guess


def checks(method: Any, figures: dict[str, Any], size: int | float) -> list[Check]:
    """The report's checks of the climbs, their draws, and the maximum."""
    settled = figures["ended"] == "settled"
    # In the slowest direction a step gains a share 1 − r of what is left, where r is ``found["hidden"]``.
    remainder = figures["gain bound"] / (1 - figures.get("hidden", 0.0))
    verdict = "reject" if remainder > 4 else "trust" if settled and remainder <= HALF else "caution"
    gain = f"nats at most, by the last gain; {HALF:g} is half a standard error of θ. It ended: {figures['ended']}"
    sizes = f"for each datum at the end; {method.draws} at the start, {method.most} at most"
    tolerance = f"{max(SAME * size, HALF):.3g} nats"
    ridge = 1e-2 if "condition" in figures else math.inf  # not 1e-6 as for EM: eigenvalues from draws are noisy
    by_draws = "smallest eigenvalue of the observed information, by draws; above 0 at a proper maximum"
    return [
        Check("left to climb", remainder, verdict, gain),
        Check("draws", figures["draws at the end"], "trust" if settled else "caution", sizes),
        *_checks_of_draws(figures),
        *agreement(figures, method.starts, tolerance, figures["agreement"]),
        *curvature(figures, ridge, by_draws),
    ]


def _checks_of_draws(figures: dict[str, Any]) -> list[Check]:
    out = []
    if "worst monte carlo error" in figures:
        share = figures["worst monte carlo error"]
        verdict = "trust" if share <= 0.2 else "caution" if share <= 1 else "reject"
        sentence = "in standard errors, of the worst linear combination of θ"
        out.append(Check("Monte-Carlo error", share, verdict, sentence))
    rate = figures["acceptance"]
    if figures["exact draws"]:
        out.append(Check("acceptance", rate, "trust", "draws of z are independent"))
    elif math.isfinite(rate):
        out.append(check_share("acceptance", rate, 0.1, 0.98, "share of the E-step's proposals accepted"))
    if "effective draws" in figures:
        effective = figures["effective draws"]
        sentence = f"for each datum at the end, of the gradient of log p(x, z | θ); below {FEW}, errors are guesses"
        out.append(Check("effective draws", effective, "caution" if effective < FEW else "trust", sentence))
    return out


@compiled("method", "model")
def _information(method: Any, model: LatentModel, point: jax.Array, rows: PyTree, draws: Draws) -> Information:
    prior = method.log_prior(model)
    return observed_information(model.log_joint, prior, model.params, point, rows, ones(rows), draws)


@compiled("model")
def _log_likelihood(model: LatentModel, theta: PyTree, rows: PyTree) -> jax.Array:
    return jnp.sum(model.summed_out(theta, rows))


@compiled("model")
def _bridge(model: LatentModel, first: PyTree, second: PyTree, rows: PyTree, one: Draws, other: Draws) -> jax.Array:
    return jnp.sum(bridge(model.log_joint, first, second, rows, one, other))


def conclude(
    method: Any, model: LatentModel, data: Data, rows: PyTree, ends: list[End]
) -> tuple[np.ndarray, dict, dict]:
    """The end point of the best climb, the traces, and numbers for the report."""
    values, summed = _objectives(method, model, rows, ends), model.sums is not None
    if not np.any(np.isfinite(values)):
        raise RunError("None of the climbs ended at a finite objective. Is the likelihood bounded?")
    best = int(np.nanargmax(np.where(np.isfinite(values), values, -np.inf)))
    end, states = ends[best].state, [end.state for end in ends]
    info = {
        "objective": pad_traces([np.cumsum(state.gains) for state in states]),
        "gain": pad_traces([state.gains for state in states]),
        "gain error": pad_traces([state.errors for state in states]),
        "draws": pad_traces([state.sizes.astype(float) for state in states]),
    }
    finite = values[np.isfinite(values)]
    figures: dict[str, Any] = {
        "objective": float(values[best]) if summed else math.nan,
        "steps": len(end.gains),
        "evaluations": int(sum(state.drawn for state in states)),
        "draws at the end": int(end.sizes[-1]),
        "gain": float(end.gains[-1]),
        "gain error": float(end.errors[-1]),
        "gain bound": end.upper,
        "ended": end.ended,
        "acceptance": end.rate,
        "exact draws": method.sampler(model).exact,
        "agreement": float(values[best] - finite.min()),
        "starts that agree": int(np.sum(np.isfinite(values) & (values >= values[best] - max(SAME * data.size, HALF)))),
    }
    point = model.position_of(end.theta)
    if point.size <= INFORMATION and data.size * end.sizes[-1] * point.size <= WORK:
        figures |= _errors(method, model, rows, point, ends[best])
    return np.asarray(point), info, figures


def _objectives(method: Any, model: LatentModel, rows: PyTree, ends: list[End]) -> np.ndarray:
    """The objective at every climb's end, nats; where z cannot be summed out, only up to a constant."""
    prior = method.log_prior(model)
    if model.sums is not None:
        values = np.array([float(_log_likelihood(model, end.state.theta, rows)) for end in ends])
    else:
        first, draws = ends[0].state.theta, ends[0].draws
        values = np.array([float(_bridge(model, first, end.state.theta, rows, draws, end.draws)) for end in ends])
    if prior is not None:
        prior = jax.jit(prior)
        values = values + np.array([float(prior(end.state.theta)) for end in ends])
    return values


def _errors(method: Any, model: LatentModel, rows: PyTree, point: jax.Array, end: End) -> dict[str, Any]:
    """Standard errors by Louis's identity, and the Monte-Carlo error of θ."""
    complete, missing, noise = (np.asarray(a, np.float64) for a in _information(method, model, point, rows, end.draws))
    information = complete - missing
    if not np.all(np.isfinite(information)):
        return {"eigenvalue": float("nan")}
    values = np.linalg.eigvalsh(information)
    out: dict[str, Any] = {"eigenvalue": float(values[0]), "condition": float(values[0] / values[-1])}
    if values[0] <= 0 or np.linalg.eigvalsh(complete)[0] <= 0:
        return out
    inverse = np.linalg.inv(information)
    slope = np.asarray(jax.jacobian(model.values)(point), np.float64)  # (k, d)
    out["covariance"] = slope @ inverse @ slope.T
    out["information"] = information
    step = np.linalg.solve(
        complete, np.linalg.solve(complete, noise).T
    )  # covariance of an M-step's noise at the last S
    rate = np.linalg.solve(complete, missing)  # θ' − θ* ≈ rate (θ − θ*)
    spread = np.zeros_like(step)
    for size in end.state.sizes:  # the noise of earlier steps decays at EM's own rate
        spread = rate @ spread @ rate.T + step * end.state.sizes[-1] / size
    root = np.linalg.cholesky(information)
    out["monte carlo error"] = np.sqrt(np.maximum(np.diag(slope @ spread @ slope.T), 0))
    out["worst monte carlo error"] = float(np.sqrt(max(0.0, np.linalg.eigvalsh(root.T @ spread @ root)[-1])))
    out["hidden"] = float(np.clip(np.linalg.eigvals(rate).real.max(), 0, 1 - 1e-9))
    noise_share = np.trace(np.linalg.solve(complete, noise))
    if noise_share > 0:
        out["effective draws"] = float(np.trace(rate) / noise_share)
    return out
