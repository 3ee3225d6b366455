"""Checks of networks: whether predictions agree from run to run, and stay the same when the target moves the draws.

Units can be exchanged and mirrored, so chains and fits that agree in every prediction need not agree in a single
weight. The verdict is therefore about predictions.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tractable.core.check import Check
from tractable.core.model import Data, PyTree
from tractable.core.tree import path_name
from tractable.diagnostics import moves
from tractable.diagnostics.belief import Fitted
from tractable.diagnostics.convergence import diagnose
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.predictions import Side, agreement, can_be_compared, inputs, log_likelihoods
from tractable.diagnostics.target import Target, gradient_work

MOST_WEIGHTS = 2000  # most weights for which draws are moved
WALKERS = 64  # draws moved
LAST = 8  # last trajectories, whose ends are compared with the draws
STEPS = (24, 8)  # leapfrog steps in a trajectory; the fewer where no more can be afforded
STEP = 2.5e5  # operations counted for each step of a fit besides its gradients: 50 µs
SEEN = 1000  # rows of data on file from which the work of a gradient is measured
DRAWS = 200  # most draws of a chain used for R-hat
NINE_IN_TEN, MIXED, DISAGREE = 0.9, 1.05, 1.2  # quantile of the rows' R-hat; its limits for trust and for caution
PAIRS, NUMBERS = 64, 1 << 22  # pairs of draws at which widths are judged; most numbers in them, where weights are many
SUITED, UNTRAINED = 1.5, 4.0  # factors by which variances may differ from those that the bound wants; beyond: reject
SIGMAS = 2.58  # standard errors that chance explains, 99 %
AGREE, MOVES, WIDTHS = "predictions agree", "predictions moved", "widths"


def side_of(learnt: Learnt, chains: slice = slice(None)) -> Side:
    """Draws of the network's weights, resampled where they are weighted, and the model that predicts from them."""
    belief, model = learnt.belief, learnt.method.predictive(learnt.model, learnt.belief)
    if belief.positions is None:
        return Side(model, np.asarray(belief.position)[None])
    flat = np.asarray(belief.positions[chains]).swapaxes(0, 1)  # (draw, chain, d): even spacing then covers all chains
    flat = flat.reshape(-1, flat.shape[-1])
    if belief.weights is not None:
        weights = belief.weights[chains].T.ravel().astype(np.float64)
        quantiles = (np.arange(len(flat)) + 0.5) / len(flat)
        flat = flat[np.searchsorted(np.cumsum(weights) / weights.sum(), quantiles)]
    return Side(model, flat)


def look(
    learnt: Learnt, thorough: bool, allowed: float, share: float, again: Callable[[], Learnt], by_rows: bool
) -> list[Check]:
    """Compares predictions: of two halves of the chains, or of two fits; and of the draws before and after moves.

    Args:
        thorough: lifts the limit on work.
        allowed, share: operations that may be spent, or this share of the run's own work where that is more.
        again: repeats the run from another seed.
        by_rows: whether held-out rows judge the predictions too.
    """
    data = learnt.data
    if data is None or not can_be_compared(learnt.model, data):
        sentence = "a network is judged by its predictions, which need the rows it learnt from and one y a row"
        return [Check(AGREE, math.nan, "caution", sentence)]
    seen = data if data.resident else data.take(slice(0, SEEN))
    work = gradient_work(Target(learnt.model), seen.arrays()) * data.size / seen.size  # of a gradient over all rows
    spent = learnt.cost.gradients * work + learnt.found.get("steps", 0) * STEP
    allowed = math.inf if thorough else max(allowed, share * spent)
    given, seed, out = inputs(data), learnt.seed or 0, _widths(learnt, data, allowed / work)
    if learnt.chains > 1:
        halves = side_of(learnt, slice(0, None, 2)), side_of(learnt, slice(1, None, 2))
        out.append(_agree(*halves, given, seed, "two halves of the chains", "draw more, or drop the chain that is off"))
        out.append(_mixed(learnt, data))
    elif spent <= allowed:
        what = "this fit and one from another seed"
        out.append(_agree(side_of(learnt), side_of(again()), given, seed, what, "let it climb on (steps=, epochs=)"))
    else:
        sentence = "one fit does not tell what another would predict; verify='thorough' makes another"
        out.append(Check(AGREE, math.nan, "caution", sentence))
    out += _moved(learnt, data, given, allowed / work, seed)
    if learnt.chains == 1 and out[-1].name != MOVES and not by_rows:
        sentence = "fits may agree on wrong predictions, and no check here can tell: give held-out rows (held_out=)"
        out.append(Check("verified", math.nan, "caution", sentence))
    return out


def _widths(learnt: Learnt, data: Data, affordable: float) -> list[Check]:
    """Whether q's variances are those that its bound wants for its means, in each array of weights.

    For every weight −E[(w − μ) ∂ log p/∂w] = 1 where a normal q's bound is highest, and σ²/σ*² where log p is
    quadratic. Pairs w, 2μ − w take out what is linear in w − μ.
    """
    belief, model = learnt.belief, learnt.model
    climbed = "cut" in learnt.found  # a bound, whose maximum this is about; Laplace's widths are the curvature's
    if not climbed or not isinstance(belief, Fitted) or not belief.q.whole or belief.positions is None:
        return []
    mean, draws = np.asarray(belief.q.mean(belief.phi), np.float64), belief.positions[0]
    count = int(np.clip(NUMBERS // model.space.size, 4, min(PAIRS, len(draws))))
    away = draws[np.linspace(0, len(draws) - 1, count).astype(int)] - mean
    rows = int(np.clip(data.size * affordable / (2 * count), min(SEEN, data.size), data.size))
    some = np.sort(np.random.default_rng(learnt.seed or 0).permutation(data.size)[:rows])
    seen = data.take(some) if rows < data.size else data
    if rows < data.size:
        seen.weights = np.full(rows, data.size / rows) * (1 if seen.weights is None else seen.weights)
    slopes = Target(model).look(seen.arrays(), np.concatenate([mean + away, mean - away]))[1]
    # (pair, d, 2): what the bound asks of, and the squares of the noise, which vary alike.
    squares = np.square(away / np.asarray(belief.q.sd(belief.phi), np.float64))
    parts = np.stack([-away * (slopes[:count] - slopes[count:]) / 2, squares], 2)
    cuts = np.cumsum([leaf.size for leaf in jax.tree.leaves(model.space.shapes)])[:-1]
    names = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(model.space.shapes)[0]]
    each = {name: _share(part) for name, part in zip(names, np.split(parts, cuts, axis=1), strict=True)}
    worst = max(each, key=lambda name: each[name][1])
    (share, factor), (_, overall) = each[worst], _share(parts)
    sentence = f"variances of q over those that its bound wants, in {worst}, where they differ most; 1 where learnt"
    if overall > UNTRAINED:
        return [Check(WIDTHS, share, "reject", f"{sentence}: q is not trained; let it climb on (steps=, epochs=)")]
    verdict, remedy = ("trust", "") if factor <= SUITED else ("caution", ": let it climb on (steps=, epochs=)")
    return [Check(WIDTHS, share, verdict, sentence + remedy)]


def _share(parts: np.ndarray) -> tuple[float, float]:
    """The ratio of the sums of (pair, weights, 2) parts, and the factor ≥ 1 by which it surely differs from 1."""
    found, noise = parts.mean(1).T
    share = float(found.mean() / noise.mean())
    chance = SIGMAS * float((found - share * noise).std(ddof=1) / noise.mean()) / math.sqrt(len(found))
    return share, max(1 / max(share + chance, 1e-6), share - chance, 1.0)


def _agree(first: Side, second: Side, given: PyTree, seed: int, what: str, remedy: str) -> Check:
    found = agreement(first, second, given, seed)
    verdict = found.verdict()
    sentence = f"total variation between the predictions of {what}, mean over rows; 0 where they agree"
    return Check(AGREE, found.distance, verdict, sentence if verdict == "trust" else f"{sentence}: {remedy}")


def _mixed(learnt: Learnt, data: Data) -> Check:
    """Whether the chains explored the same predictions: R-hat of rows' log p(y | x, θ); swapping units leaves it as is.

    Chains that stay where they began are only an ensemble of as many networks, however alike their predictions.
    """
    chains: Any = learnt.belief.positions
    chosen = np.unique(np.linspace(0, chains.shape[1] - 1, min(DRAWS, chains.shape[1])).astype(int))
    rhat = diagnose(log_likelihoods(learnt.model, np.asarray(chains[:, chosen]), data)).rhat
    worst = float(np.quantile(np.where(np.isnan(rhat), np.inf, rhat), NINE_IN_TEN, method="higher"))
    verdict = "trust" if worst <= MIXED else "caution" if worst <= DISAGREE else "reject"
    sentence = "R-hat of the rows' log likelihood, nine rows in ten below it; 1 where chains explored the same"
    remedy = ": as an ensemble they may predict well; draw more, or thin="
    return Check("predictions mix", worst, verdict, sentence if verdict == "trust" else sentence + remedy)


def _moved(learnt: Learnt, data: Data, given: PyTree, affordable: float, seed: int) -> list[Check]:
    """Whether Hamiltonian trajectories from the draws change the predictions."""
    side = side_of(learnt)
    if side.model is not learnt.model or learnt.model.space.size > MOST_WEIGHTS or not data.resident:
        return []
    steps = [s for s in STEPS if (1 + moves.COUNTED) * moves.BLOCK * s * WALKERS <= affordable]
    if not steps:
        return []
    begin = side.some(WALKERS).positions.astype(np.float64)
    chains: Any = learnt.belief.positions
    sds = np.sqrt(np.asarray(chains, np.float64).var(1).mean(0))  # within chains: one may mirror another
    if not np.all(sds > 0):
        return []
    moved = moves.move(Target(learnt.model), data.arrays(), begin, begin.mean(0), sds, seed, longest=steps[0])
    if not moved.usable:
        sentence = "too few to compare: the draws lie where the target is steep, so q does not stand for it"
        return [Check(MOVES, moved.acceptance, "caution", f"share of trajectories accepted, {sentence}")]
    after = moved.after[-LAST:].reshape(-1, begin.shape[1])
    found = agreement(Side(learnt.model, begin), Side(learnt.model, after), given, seed)
    verdict = found.verdict()
    sentence = "total variation between predictions before and after the target moved the draws; 0 where they are right"
    if verdict != "trust":
        sentence += ": use NUTS or SGLD, or calibrate on held-out rows"
    return [Check(MOVES, found.distance, verdict, sentence)]
