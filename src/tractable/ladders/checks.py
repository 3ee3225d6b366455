"""Whether learning a ladder worked: how loose the bound is, which units are used, how far q is from p(h | x)."""

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
COLLAPSED = 0.1  # nats a row; if all layers together cost less, h says nothing about x
LOOSE = 1.0  # nats a row that the bound may lose for "trust"
FEW, NONE = 10.0, 1.5  # effective draws of a row's weights, at least, for trust and for caution
SIGMAS = 2.58  # standard errors that chance explains, 99 %


def measure_ladder(ladder: Ladder, params: PyTree, data: Data, key: jax.Array, draws: int) -> dict[str, Any]:
    """Figures for the report, from some rows.

    The means over rows of the ELBO, of the bound by ``draws`` draws and of each layer's cost log q − log p, nats; the
    effective share of the median row's weights; the units of each layer that depend on x; and, where h can be
    enumerated, the mean KL(q(h | x) ‖ p(h | x)), nats.
    """
    bound_key, unit_key = jax.random.split(key)
    found = bounds(ladder, params, data, bound_key, draws)
    x = jax.tree.map(jnp.asarray, data.rows[0])
    values = {"elbo": float(found.elbo.mean()), "bound": float(found.log_evidence.mean()), "samples": found.samples}
    values |= {"weights' sample size": float(np.median(found.ess)) / found.samples}
    values |= {f"cost h{i + 1}": float(cost) for i, cost in enumerate(found.costs.mean(0))}
    values |= {f"active h{i + 1}": n for i, n in enumerate(active_units(ladder, params, x, unit_key, draws))}
    if ladder.causes is not None:
        values["q against the posterior"] = float(divergence(ladder, params, x).mean())
    return values


def active_units(ladder: Ladder, params: PyTree, x: jax.Array, key: jax.Array, draws: int) -> list[int]:
    """Units in each layer with Var_x E_q[h | x] > 0.01 for any of their levels, Monte-Carlo variance subtracted."""
    units = sum(layer.seen for layer in ladder.layers[1:])
    draws_at_once = int(np.clip(MOST_NUMBERS // (4 * units * len(x)), 1, draws))
    spreads = zip(ladder.layers[1:], _spreads(ladder, draws_at_once, params, x, key), strict=True)
    varies = (np.asarray(spread).reshape(layer.size, -1) > ACTIVE for layer, spread in spreads)
    return [int(layer.any(1).sum()) for layer in varies]


@compiled("ladder", "draws")
def _spreads(ladder: Ladder, draws: int, params: PyTree, x: jax.Array, key: jax.Array) -> list[jax.Array]:
    """Var_x E_q[h^i | x], (m,) for each layer."""
    look_key, draw_key = jax.random.split(key)
    codes = moments_of_codes(ladder, params, ladder.look(look_key, x), draw_key, draws)
    return [jnp.var(mean, axis=0) - jnp.mean(error, axis=0) for mean, _, error in codes]


def divergence(ladder: Ladder, params: PyTree, x: jax.Array) -> np.ndarray:
    """KL(q(h | x) ‖ p(h | x)) in nats, (n,), by summing over all h; for as many rows as fit in memory."""
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
    """The checks of a learnt ladder.

    The log of a mean of K weights has an error of about √(1/K_eff) nats: 0.3 at K_eff = 10, the limit ``FEW``; at 1.5 a
    single draw carries the sum. The ELBO's gap is a property of q, not a fault of θ.
    """
    settled, samples = bool(found["settled"]), found["samples"]
    gap, effective = found["bound"] - found["elbo"], found["weights' sample size"] * samples
    rising = "0 where the noisy bound shows that it no longer rises; more epochs= where it rises or a run is too short"
    lifted = f"nats a row by which {samples} draws raise the ELBO: q costs it at least as much"
    if gap > LOOSE:
        lifted += "; compare models by log_evidence(), and a richer inference network narrows it"
    checks = [
        Check("trend", float(not settled), trust_if(settled), rising),
        Check("bound gap", gap, trust_if(gap <= LOOSE), lifted),
        sample_size_check(effective, samples),
        *_units(found, depth),
    ]
    if "gradient signal" in found:
        signal = "‖E g‖² over the noise of one step's gradient g, at the end: 0 at a maximum or lost in noise"
        checks.append(Check("gradient signal", found["gradient signal"], "trust", signal))
    if "q against the posterior" in found:
        far = found["q against the posterior"]
        lost = "mean KL(q(h | x) ‖ p(h | x)) in nats a row, summed over all h: what the ELBO loses"
        checks.append(Check("q against the posterior", far, trust_if(far <= LOOSE), lost))
    return checks


def trust_if(good: bool) -> str:
    """The verdict of a check that can only be good or doubtful."""
    return "trust" if good else "caution"


def sample_size_check(effective: float, samples: int) -> Check:
    """Checks the effective share of a row's weights, in the median row."""
    said = f"share of {samples} draws of q that count, in the median row"
    if effective < FEW:
        said += f": q misses p(h | x); the bound is known to about {math.sqrt(1 / effective):.1f} nats a row"
    return Check("weights' sample size", effective / samples, grade(-effective, -FEW, -NONE), said)


def _units(found: dict[str, Any], depth: int) -> list[Check]:
    costs, counts = ([found[f"{what} h{i + 1}"] for i in range(depth)] for what in ("cost", "active"))
    collapsed = sum(costs) < COLLAPSED or not sum(counts)
    checks = []
    for i, (cost, count) in enumerate(zip(costs, counts, strict=True)):
        h = f"h{i + 1}"
        said = f"units of {h} whose mean depends on x (variance > {ACTIVE:g}); {h} costs {cost:.3g} nats"
        if collapsed:
            said += (
                ". Training collapsed: h says nothing of x, unless x holds nothing to say. Is the noise of a normal x "
                "larger than what varies in it? Learn it (noise='shared'). Otherwise let h cost less at first "
                "(AutoEncoding(warmup=..., free_bits=...)), or take a smaller learning_rate="
            )
        elif not count:
            said += f": {h} is not used, and a ladder without it does as well"
        paid = f"nats a row: mean of log q({h} | ·) − log p({h} | ·)"
        checks.append(Check(f"active {h}", count, "reject" if collapsed else trust_if(count > 0), said))
        checks.append(Check(f"cost {h}", cost, "reject" if collapsed else "trust", paid))
    return checks


def held_out_check(gap: float, error: float, rows: int) -> Check:
    """Checks how much lower the bound is on held-out rows."""
    chance = gap <= SIGMAS * error
    said = f"nats a row by which rows learnt from are likelier than {rows} held-out ones, ± {error:.2g}"
    if not chance:
        said += ": overfitted by so much. Quote the held-out bound; fewer epochs=, weight_sd= or more rows narrow it"
    return Check("held-out gap", gap, trust_if(chance), said)
