"""Checks whether learning a ladder worked: how loose the bound is, which units are used, how far q is from p(h | x).

A layer's "cost" is the mean of log q(h^i | ·) − log p(h^i | ·) over draws of q: what the layer subtracts from the ELBO.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.core.rows import Data
from tractable.core.shared import compiled
from tractable.core.tree import PyTree
from tractable.diagnostics.evidence import grade
from tractable.ladders.bounds import MOST_NUMBERS, bounds, moments_of_codes
from tractable.ladders.ladder import Ladder

ACTIVE = 0.01  # Var_x E[h | x] above which a unit is active (Burda, Grosse & Salakhutdinov 2016, section 5.2)
COLLAPSED = 0.1  # nats a row; if the costs of all layers sum to less, h says nothing about x
LOOSE = 1.0  # nats a row: the largest gap of the bound for the verdict "trust"
FEW, NONE = 10.0, 1.5  # smallest effective number of a row's draws for the verdicts "trust" and "caution"
SIGMAS = 2.58  # standard errors within which a difference may be chance, at 99 %


def measure_ladder(ladder: Ladder, params: PyTree, data: Data, key: jax.Array, draws: int) -> dict[str, Any]:
    """Measure the numbers that the report shows, on the given rows.

    They are: the means over rows of the ELBO, of the bound by ``draws`` draws and of each layer's cost
    log q − log p, in nats; the effective share of the median row's draws; the number of units of each layer that depend
    on x; and, where h can be enumerated, the mean KL(q(h | x) ‖ p(h | x)) in nats.
    """
    bound_key, unit_key = jax.random.split(key)
    of_rows = bounds(ladder, params, data, bound_key, draws)
    x = jax.tree.map(jnp.asarray, data.rows[0])
    values = {"elbo": float(of_rows.elbo.mean()), "bound": float(of_rows.log_evidence.mean())}
    values |= {"samples": of_rows.samples, "weights' sample size": float(np.median(of_rows.ess)) / of_rows.samples}
    values |= {f"cost h{i + 1}": float(cost) for i, cost in enumerate(of_rows.costs.mean(0))}
    values |= {f"active h{i + 1}": n for i, n in enumerate(active_units(ladder, params, x, unit_key, draws))}
    if ladder.causes is not None:
        values["q against the posterior"] = float(divergence(ladder, params, x).mean())
    return values


def active_units(ladder: Ladder, params: PyTree, x: jax.Array, key: jax.Array, draws: int) -> list[int]:
    """For each layer, the number of units whose mean depends on x: Var_x E_q[h | x] > 0.01 for any of a unit's levels.

    The Monte-Carlo variance of the means is subtracted first.
    """
    units = sum(layer.seen for layer in ladder.layers[1:])
    draws_at_once = int(np.clip(MOST_NUMBERS // (4 * units * len(x)), 1, draws))
    spreads = zip(ladder.layers[1:], _spreads(ladder, draws_at_once, params, x, key), strict=True)
    varies = (np.asarray(spread).reshape(layer.size, -1) > ACTIVE for layer, spread in spreads)
    return [int(layer.any(1).sum()) for layer in varies]


@compiled("ladder", "draws")
def _spreads(ladder: Ladder, draws: int, params: PyTree, x: jax.Array, key: jax.Array) -> list[jax.Array]:
    """For each layer Var_x E_q[h^i | x] of its units, (m,), less the Monte-Carlo variance."""
    look_key, draw_key = jax.random.split(key)
    codes = moments_of_codes(ladder, params, ladder.look(look_key, x), draw_key, draws)
    return [jnp.var(mean, axis=0) - jnp.mean(error, axis=0) for mean, _, error in codes]


def divergence(ladder: Ladder, params: PyTree, x: jax.Array) -> np.ndarray:
    """KL(q(h | x) ‖ p(h | x)) of each row in nats, (n,), by summing over all h; for as many rows as fit in memory."""
    count = jax.tree.leaves(ladder.causes)[0].shape[0]
    units = sum(layer.seen for layer in ladder.layers)
    return np.asarray(_divergence(ladder, params, x[: max(1, MOST_NUMBERS // (4 * units * count))]))


@compiled("ladder")
def _divergence(ladder: Ladder, params: PyTree, x: jax.Array) -> jax.Array:
    causes: Any = ladder.causes
    h = jax.tree.map(lambda a: a[:, None], causes)  # (m, 1, n)
    log_q = sum(ladder.log_q(params, x[None], h))  # (m, row)
    log_p = sum(ladder.log_p(params["theta"], x[None], h))
    log_p = log_p - jax.nn.logsumexp(log_p, axis=0, keepdims=True)
    q = jnp.exp(log_q)
    return jnp.sum(jnp.where(q > 0, q * (log_q - log_p), 0.0), axis=0)


def check_ladder(found: dict[str, Any], depth: int) -> list[Check]:
    """Make the checks of a learnt ladder from the numbers of ``measure_ladder``.

    The log of a mean of K weights has an error of about √(1/K_eff) nats, where K_eff is the effective number of draws.
    The error is 0.3 at K_eff = 10, the limit ``FEW``; at 1.5 a single draw makes up most of the sum. A gap of the ELBO
    is a property of q, not a fault of θ.
    """
    settled, samples = bool(found["settled"]), found["samples"]
    gap, effective = found["bound"] - found["elbo"], found["weights' sample size"] * samples
    trend = (
        "0 if the noisy bound shows that it no longer rises; 1 if it rises or the run is too short: take more epochs="
    )
    loss = f"nats a row by which a bound from {samples} draws exceeds the ELBO, which loses at least so much through q"
    if gap > LOOSE:
        loss += ". Compare models by log_evidence(); a richer inference network narrows the gap"
    checks = [
        Check("trend", float(not settled), trust_if(settled), trend),
        Check("bound gap", gap, trust_if(gap <= LOOSE), loss),
        sample_size_check(effective, samples),
        *_units(found, depth),
    ]
    if "gradient signal" in found:
        signal = "‖E g‖² over the noise of one step's gradient g, at the end: near 0 at a maximum, or if noise is large"
        checks.append(Check("gradient signal", found["gradient signal"], "trust", signal))
    if "q against the posterior" in found:
        distance = found["q against the posterior"]
        sentence = "mean KL(q(h | x) ‖ p(h | x)) in nats a row, summed over all h: how far the ELBO is below log p(x)"
        checks.append(Check("q against the posterior", distance, trust_if(distance <= LOOSE), sentence))
    return checks


def trust_if(good: bool) -> str:
    """The verdict of a check that never rejects: "trust" where it is good, else "caution"."""
    return "trust" if good else "caution"


def sample_size_check(effective: float, samples: int) -> Check:
    """Checks the effective number of draws among a row's weighted draws, in the median row."""
    sentence = f"effective share of {samples} weighted draws of q, in the median row"
    if effective < FEW:
        sentence += f": q is far from p(h | x); the bound is known to about {math.sqrt(1 / effective):.1f} nats a row"
    return Check("weights' sample size", effective / samples, grade(-effective, -FEW, -NONE), sentence)


def _units(found: dict[str, Any], depth: int) -> list[Check]:
    costs, counts = ([found[f"{what} h{i + 1}"] for i in range(depth)] for what in ("cost", "active"))
    collapsed = sum(costs) < COLLAPSED or not sum(counts)
    checks = []
    for i, (cost, count) in enumerate(zip(costs, counts, strict=True)):
        h = f"h{i + 1}"
        sentence = f"units of {h} whose mean depends on x (variance > {ACTIVE:g}); {h} costs {cost:.3g} nats"
        if collapsed:
            sentence += (
                ". Training collapsed: h does not depend on x, unless the numbers of x are independent. If x is normal "
                "and its noise sd is larger than x's own variation, learn it (noise='shared'). Otherwise lower the "
                "weight of h's KL at first (AutoEncoding(warmup=..., free_bits=...)), or take a smaller learning_rate="
            )
        elif not count:
            sentence += f": {h} is not used, and a ladder without it does as well"
        cost_sentence = f"nats a row: mean of log q({h} | ·) − log p({h} | ·)"
        checks.append(Check(f"active {h}", count, "reject" if collapsed else trust_if(count > 0), sentence))
        checks.append(Check(f"cost {h}", cost, "reject" if collapsed else "trust", cost_sentence))
    return checks


def held_out_check(gap: float, error: float, rows: int) -> Check:
    """Checks how much lower the bound is on held-out rows than on fitted rows."""
    chance = gap <= SIGMAS * error
    sentence = f"nats a row by which the bound of fitted rows exceeds that of {rows} held-out rows, ± {error:.2g}"
    if not chance:
        sentence += ": the fit is overfitted. Quote the held-out bound; fewer epochs=, weight_sd= or more rows help"
    return Check("held-out gap", gap, trust_if(chance), sentence)
