"""Checks the predictions of networks: do chains or repeated fits agree, and does HMC leave predictions unchanged?

A network's units can be exchanged, and their signs flipped, without changing any prediction. Chains and fits may
therefore agree in every prediction and still differ in every weight. The verdict is about predictions only.
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

# The limits are explained in docs/decisions/018-networks-are-judged-by-predictions.md.
MOST_WEIGHTS = 2000  # maximum number of weights of a network whose draws are moved by Hamiltonian Monte Carlo (HMC)
WALKERS = 64  # number of draws that HMC moves
LAST = 8  # number of last trajectories whose ends are compared with the draws
STEPS = (24, 8)  # leapfrog steps in a trajectory; the second number is used if the first takes too much work
STEP = 2.5e5  # operations counted for each step of a fit in addition to its gradients, about 50 µs
SEEN = 1000  # number of rows from which a gradient's work is measured, if the data are on file
DRAWS = 200  # maximum number of draws of a chain that R-hat uses
NINE_IN_TEN, MIXED, DISAGREE = 0.9, 1.05, 1.2  # quantile of the rows' R-hat; its limits for trust and for caution
# Maximum number of operations in one gradient by which variances are checked. 32 gradients are computed at once, and a
# transformer's activations took one byte for about 130 operations.
AT_ONCE = 5e9
PAIRS, NUMBERS = 64, 1 << 22  # maximum number of pairs of draws by which variances are checked, and of numbers in them
# Factors by which q's variances may differ from optimal ones: up to SUITED in every array is trust; more than UNTRAINED
# over all arrays together is reject.
SUITED, UNTRAINED = 1.5, 4.0
SIGMAS = 2.58  # half the width of a 99 % interval, in standard errors
AGREE, MOVES, WIDTHS = "predictions agree", "predictions moved", "widths"  # names of checks


def side_of(learnt: Learnt, chains: slice = slice(None)) -> Side:
    """The run's ``Side``: draws of the weights, resampled if draws are weighted, and the model that predicts."""
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
    """Compares predictions between two halves of the chains, or between two fits, and before and after HMC moves.

    Args:
        learnt: the result of the run.
        thorough: whether there is no limit on work.
        allowed, share: the checks may take ``allowed`` operations, or this share of the run's own work if that is more.
        again: repeats the run with another seed.
        by_rows: whether held-out rows check the predictions too.
    """
    data = learnt.data
    if data is None or not can_be_compared(learnt.model, data):
        sentence = "a network is judged by its predictions: this check needs the training rows, and one y for each row"
        return [Check(AGREE, math.nan, "caution", sentence)]
    subset = data if data.resident else data.take(slice(0, SEEN))
    work = gradient_work(Target(learnt.model), subset.arrays()) * data.size / subset.size  # for a gradient on all rows
    spent = learnt.cost.gradients * work + learnt.found.get("steps", 0) * STEP
    allowed = math.inf if thorough else max(allowed, share * spent)
    given, seed, out = inputs(data), learnt.seed or 0, _widths(learnt, data, allowed, work)
    if learnt.chains > 1:
        halves = side_of(learnt, slice(0, None, 2)), side_of(learnt, slice(1, None, 2))
        out.append(_agree(*halves, given, seed, "two halves of the chains", "draw more, or drop the differing chain"))
        out.append(_check_mixing(learnt, data))
    elif spent <= allowed:
        names = "this fit and one from another seed"
        out.append(_agree(side_of(learnt), side_of(again()), given, seed, names, "use more steps (steps=, epochs=)"))
    else:
        sentence = "one fit does not show what another fit would predict; verify='thorough' makes a second fit"
        out.append(Check(AGREE, math.nan, "caution", sentence))
    out += _check_moves(learnt, data, given, allowed / work, seed)
    if learnt.chains == 1 and out[-1].name != MOVES and not by_rows:
        sentence = "fits may agree on wrong predictions, and no check here can tell: give held-out rows (held_out=)"
        out.append(Check("verified", math.nan, "caution", sentence))
    return out


def _widths(learnt: Learnt, data: Data, allowed: float, work: float) -> list[Check]:
    """Checks whether the variances of q, the fitted normal, maximise the evidence lower bound (ELBO) in each array.

    At the maximum of a normal q's ELBO, −E[(w − μ) ∂ log p/∂w] = 1 for every weight w with mean μ. If log p is
    quadratic, the left side is σ²/σ*², the variance of q over the optimal one. The expectation is estimated from pairs
    of draws w and 2μ − w, in which all terms linear in w − μ cancel.
    """
    belief, model = learnt.belief, learnt.model
    # Methods that maximise an ELBO set "cut". Laplace's variances have another origin.
    if "cut" not in learnt.found or not isinstance(belief, Fitted) or not belief.q.whole or belief.positions is None:
        return []
    mean, draws = np.asarray(belief.q.mean(belief.phi), np.float64), belief.positions[0]
    count = int(np.clip(NUMBERS // model.space.size, 4, min(PAIRS, len(draws))))
    deviations = draws[np.linspace(0, len(draws) - 1, count).astype(int)] - mean
    rows = int(np.clip(data.size * allowed / work / (2 * count), min(SEEN, data.size), data.size))
    rows, subset = max(1, min(rows, int(AT_ONCE * data.size / work))), data
    if rows < data.size:
        subset = data.take(np.sort(np.random.default_rng(learnt.seed or 0).permutation(data.size)[:rows]))
        subset.weights = np.full(rows, data.size / rows) * (1 if subset.weights is None else subset.weights)
    slopes = Target(model).look(subset.arrays(), np.concatenate([mean + deviations, mean - deviations]))[1]
    # (pair, d, 2): the terms −(w − μ) ∂ log p/∂w, and the squares of the draws' noise. Both vary with the same noise,
    # so that the ratio of their sums is known better than either sum.
    squares = np.square(deviations / np.asarray(belief.q.sd(belief.phi), np.float64))
    parts = np.stack([-deviations * (slopes[:count] - slopes[count:]) / 2, squares], 2)
    cuts = np.cumsum([leaf.size for leaf in jax.tree.leaves(model.space.shapes)])[:-1]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(model.space.shapes)[0]]
    names = [path_name(path).removeprefix("weights.") for path in paths]
    by_array = {name: _ratio(part) for name, part in zip(names, np.split(parts, cuts, axis=1), strict=True)}
    worst = max(by_array, key=lambda name: by_array[name][1])
    (ratio, factor), (_, overall) = by_array[worst], _ratio(parts)
    sentence = f"variance of q divided by the ELBO's optimal variance, in {worst}, where they differ most; 1 is optimal"
    if overall > UNTRAINED:
        return [Check(WIDTHS, ratio, "reject", f"{sentence}: q is not trained; use more steps (steps=, epochs=)")]
    verdict, remedy = ("trust", "") if factor <= SUITED else ("caution", ": use more steps (steps=, epochs=)")
    return [Check(WIDTHS, ratio, verdict, sentence + remedy)]


def _ratio(parts: np.ndarray) -> tuple[float, float]:
    """The ratio of the sums of (pair, weights, 2) parts, and the factor ≥ 1 by which it differs from 1 at least.

    With x the number nearest to 1 in the ratio's 99 % interval, the factor is the larger of x and 1/x.
    """
    terms, noise = parts.mean(1).T
    ratio = float(terms.mean() / noise.mean())
    margin = SIGMAS * float((terms - ratio * noise).std(ddof=1) / noise.mean()) / math.sqrt(len(terms))
    return ratio, max(1 / max(ratio + margin, 1e-6), ratio - margin, 1.0)


def _agree(first: Side, second: Side, given: PyTree, seed: int, names: str, remedy: str) -> Check:
    """Checks the distance between the predictions of two sets of draws; ``names`` describes the sets."""
    result = agreement(first, second, given, seed)
    verdict = result.verdict()
    sentence = f"total variation between the predictions of {names}, mean over rows; 0 if they agree"
    return Check(AGREE, result.distance, verdict, sentence if verdict == "trust" else f"{sentence}: {remedy}")


def _check_mixing(learnt: Learnt, data: Data) -> Check:
    """Checks whether the chains explored the same predictions, by R-hat of rows' log p(y | x, θ).

    Exchanging units does not change this density. Chains that stay where they began are only an ensemble of as many
    networks, even if their predictions are similar.
    """
    chains: Any = learnt.belief.positions
    indices = np.unique(np.linspace(0, chains.shape[1] - 1, min(DRAWS, chains.shape[1])).astype(int))
    rhat = diagnose(log_likelihoods(learnt.model, np.asarray(chains[:, indices]), data)).rhat
    quantile = float(np.quantile(np.where(np.isnan(rhat), np.inf, rhat), NINE_IN_TEN, method="higher"))
    verdict = "trust" if quantile <= MIXED else "caution" if quantile <= DISAGREE else "reject"
    sentence = "R-hat of the rows' log likelihood, 90 % quantile over rows; 1 if chains explored the same predictions"
    remedy = ": as an ensemble they may predict well; draw more, or raise thin="
    return Check("predictions mix", quantile, verdict, sentence if verdict == "trust" else sentence + remedy)


def _check_moves(learnt: Learnt, data: Data, given: PyTree, affordable: float, seed: int) -> list[Check]:
    """Checks whether HMC from the draws changes the predictions.

    Several chains by HMC, NUTS or Microcanonical were compared, and have moved along trajectories themselves. Only a
    thorough verification moves them again.
    """
    side, method = side_of(learnt), learnt.method
    are_compared = method.chained and method.follows and not method.minibatch and learnt.chains > 1
    if are_compared and "divergent" in learnt.info and affordable < math.inf:
        return []
    if side.model is not learnt.model or learnt.model.space.size > MOST_WEIGHTS or not data.resident:
        return []
    steps = [s for s in STEPS if (1 + moves.COUNTED) * moves.BLOCK * s * WALKERS <= affordable]
    begin = side.some(WALKERS).positions.astype(np.float64)
    chains: Any = learnt.belief.positions
    sds = np.sqrt(np.asarray(chains, np.float64).var(1).mean(0))  # within chains, which may differ by exchanged units
    if not steps or not np.all(sds > 0):
        return []
    result = moves.move(Target(learnt.model), data.arrays(), begin, begin.mean(0), sds, seed, longest=steps[0])
    if not result.usable and are_compared:
        return []  # chains of all rows that agree are evidence enough, where the posterior bends too much for the moves
    if not result.usable:
        sentence = "too few to compare: the target is so steep at the draws that q does not represent it"
        return [Check(MOVES, result.acceptance, "caution", f"share of HMC trajectories accepted, {sentence}")]
    end_draws = result.after[-LAST:].reshape(-1, begin.shape[1])
    comparison = agreement(Side(learnt.model, begin), Side(learnt.model, end_draws), given, seed)
    verdict = comparison.verdict()
    sentence = "total variation between predictions before and after HMC moved the draws; 0 if the draws are right"
    if verdict != "trust":
        sentence += ": use NUTS or SGLD, or calibrate on held-out rows"
    return [Check(MOVES, comparison.distance, verdict, sentence)]
