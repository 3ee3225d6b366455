"""NVIL and VIMCO: bounds whose gradients are estimated by the score function, from log p and log q at draws of h.

A draw's learning signal says how good the draw is; the gradient for φ is the signal times ∇ log q(h | x). Signals are
arrays (layer, draw, row). The gradient of one surrogate function consists of all estimates: ∇ log p for θ, a signal
times ∇ log q for φ, and a signal times ∇ C for ψ, the parameters of the baselines C that predict the signals.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from tractable.core.errors import SettingsError
from tractable.core.model import Batch, Objective, PyTree
from tractable.core.settings import Count, at_least, expect
from tractable.ladders.ladder import Ladder
from tractable.ladders.layers import map_network
from tractable.ladders.pathwise import draw_rows, k_sample, keyed_inputs, keys, sum_gradients, value_of

Walk = Callable[[PyTree], tuple[tuple, list]]  # params -> (h, [q(h¹ | ·), …]), leading axes (draw, row)
WalkOfRows = Callable[[Batch], tuple[Any, Walk]]  # rows -> (x, the walk that draws their h)
BASELINES = ("layers", "input", None)


class Reductions(NamedTuple):
    """Variance reductions applied to the learning signals l_i of layers i before the signals weight ∇ log q.

    Attributes:
        centre: subtract c_i, the running mean of l_i − C_i.
        baseline: subtract C_i, a perceptron's prediction of l_i. With "layers" its input is that of layer i's inference
            network, x or h^{i−1}; with "input" it is x. None for no baseline.
        normalise: divide by max(1, σ̂_i), where σ̂_i is the running sd of l_i − C_i within batches.
        local: leave out of layer i's signal the terms that do not depend on h^i.
        leave_one_out: subtract the mean over the row's other draws, in place of c_i.
        decay: the factor in [0, 1) by which older batches lose weight in the running statistics at each step.
    """

    centre: bool = True
    baseline: str | None = "layers"
    normalise: bool = True
    local: bool = True
    leave_one_out: bool = False
    decay: float = 0.8


class Memory(NamedTuple):
    """Decaying sums of statistics of l_i − C_i over earlier batches; divided by ``weight`` they are averages."""

    mean: jax.Array  # (L,) sum of the batches' means
    variance: jax.Array  # (L,) sum of the batches' variances, each about the batch's own mean
    weight: jax.Array  # () sum of the batches' weights; 0 before the first batch

    def centre(self) -> jax.Array:
        """c, the average of the means, (L,); 0 before the first batch."""
        return self.mean / jnp.where(self.weight > 0, self.weight, 1)

    def scale(self) -> jax.Array:
        """max(1, σ̂), where σ̂² is the average of the variances, (L,)."""
        return jnp.sqrt(jnp.maximum(1, self.variance / jnp.where(self.weight > 0, self.weight, 1)))


def nvil(ladder: Ladder, *, samples: int = 1, **switches: Any) -> Objective:
    """Neural variational inference and learning: the ELBO, with the score function's gradient (Mnih & Gregor 2014).

        l_i = Σ_{j≥i−1} log p(h^j | h^{j+1}) − Σ_{j≥i} log q(h^j | h^{j−1}),   h⁰ = x, i = 1…L   (section 2.3, local)
        θ:  ∇ log p(x, h)
        φ:  Σ_i (l_i − c_i − C_i)/max(1, σ̂_i) ∇ log q(h^i | h^{i−1})
        ψ:  Σ_i (l_i − c_i − C_i)/max(1, σ̂_i) ∇ C_i

    ψ's direction increases −½ (l_i − c_i − C_i)², so that C_i learns to predict l_i − c_i. The formulas are
    summed over all N rows, and these sums are estimated from a batch. The estimates are unbiased for ∇ELBO except for
    the factor max(1, σ̂_i), which only scales the step of each layer's φ. (With an inference network that depends on θ,
    take normalise=False.) c and σ̂ are averages over *earlier* batches; in the first step c = 0 and σ̂ = 1. The paper's
    algorithm 1 includes the current batch. Subtracting the mean of B rows from each of them shrinks the expected
    gradient by 1/B, so this code deviates from the paper.

    Args:
        samples: S ≥ 1 draws of h per row and step.
        switches: fields of ``Reductions``; leave_one_out needs S ≥ 2. With local=False every layer's signal is l_1.

    With a baseline, the parameters also have the entry ``"psi"``, made by ``begin_baselines``.

    Raises:
        SettingsError: an unknown baseline, a decay outside [0, 1), or leave-one-out with one draw; local signals or
            baselines from layers where layers are not inferred from the bottom up.
    """
    reductions = Reductions(**switches)
    check(ladder, reductions, samples)
    walk_of = functools.partial(_walk_of_rows, ladder, samples)

    def terms(noise: jax.Array, params: PyTree, part: Batch) -> jax.Array:
        log_p, log_q, _ = _terms(ladder, params, *walk_of(noise, part))
        return jnp.mean(jnp.sum(log_p, 0) - jnp.sum(log_q, 0), axis=0)

    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: Memory) -> tuple:
        return slope_at(ladder, reductions, params, functools.partial(walk_of, noise), batch, memory)

    return Objective(keys, value_of(ladder, terms), functools.partial(remember, ladder), slope)


def vimco(ladder: Ladder, *, samples: int = 5) -> Objective:
    """The K-sample bound E log (1/K) Σ_k w_k, with the score function's gradient (Mnih & Rezende 2016, eq. 7–10).

        Σ_k (L̂ − L̂^{−k}) ∇ log q(h_k | x) + Σ_k w̃_k ∇ log w_k,   w̃ = w / Σ w
        L̂ = log (1/K) Σ_k w_k,   L̂^{−k} the same with the geometric mean of the other w in place of w_k

    There are K = ``samples`` ≥ 2 draws per row. The estimate is unbiased for every K, because L̂^{−k} does not depend on
    h_k.
    """
    expect("VIMCO compares each draw with the others: vimco(samples=...)", samples, Annotated[int, at_least(2)])
    walk_of = functools.partial(_walk_of_rows, ladder, samples)

    def terms(noise: jax.Array, params: PyTree, part: Batch) -> jax.Array:
        log_p, log_q, _ = _terms(ladder, params, *walk_of(noise, part))
        return k_sample(jnp.sum(log_p, 0) - jnp.sum(log_q, 0))

    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: tuple) -> tuple:
        return *multisample_slope_at(ladder, params, functools.partial(walk_of, noise), batch), memory

    return Objective(keys, value_of(ladder, terms), slope=slope)


def begin_baselines(ladder: Ladder, key: jax.Array, hidden: int = 100, *, baseline: str = "layers") -> PyTree:
    """Initial ψ: for each hidden layer a perceptron with one layer of ``hidden`` tanh units, whose output is 0.

    Args:
        hidden: number of tanh units, ≥ 1.
        baseline: the perceptrons' input, as in ``Reductions``.
    """
    expect("begin_baselines(hidden=...)", hidden, Count)
    sizes = [layer.seen for layer in ladder.layers[:-1]]
    if baseline == "input":
        sizes = sizes[:1] * ladder.depth

    def one(key: jax.Array, size: int) -> dict[str, jax.Array]:
        weight = jax.random.normal(key, (size, hidden)) / math.sqrt(size)
        return {"weight": weight, "bias": jnp.zeros(hidden), "out": jnp.zeros(hidden), "answer": jnp.zeros(())}

    each = zip(jax.random.split(key, ladder.depth), sizes, strict=True)
    return {f"c{i + 1}": one(k, size) for i, (k, size) in enumerate(each)}


def remember(ladder: Ladder, params: PyTree) -> Memory:
    """The memory before any batch."""
    dtype = jax.tree.leaves(params["phi"])[0].dtype
    return Memory(jnp.zeros(ladder.depth, dtype), jnp.zeros(ladder.depth, dtype), jnp.zeros((), dtype))


def slope_at(
    ladder: Ladder, switches: Reductions, params: PyTree, walk_of: WalkOfRows, batch: Batch, memory: Memory
) -> tuple[jax.Array, PyTree, Memory]:
    """NVIL's ELBO and gradient, as estimates of sums over all rows, and the memory after the batch.

    Args:
        walk_of: gives x (row, …) for a part of the batch's rows, and the walk that draws their h.
        batch: says which rows count, and with what weight; its rows may be spread over devices.
    """

    def terms(params: PyTree, part: Batch) -> tuple[jax.Array, tuple]:
        x, walk = walk_of(part)
        log_p, log_q, h = _terms(ladder, params, x, walk)
        learning_signal = jax.lax.stop_gradient(signals(log_p, log_q, local=switches.local))
        predicted = jnp.zeros_like(learning_signal)
        if switches.baseline is not None:
            predicted = baselines(
                params["psi"], baseline_inputs(ladder, params, x, h, switches.baseline), learning_signal.shape
            )
        residual = learning_signal - jax.lax.stop_gradient(predicted)
        of_inference, of_baseline = centre_signals(switches, residual, memory)
        surrogate = jnp.sum(log_p, 0) + jnp.sum(of_inference * log_q + of_baseline * predicted, 0)
        bound = jnp.mean(jnp.sum(log_p, 0) - jnp.sum(log_q, 0), axis=0)
        return jnp.mean(surrogate, axis=0), (jnp.sum(part.counted(bound)), row_sums(residual, part.mask, memory))

    gradient, (bound, sums) = sum_gradients(ladder, params, terms, batch)
    value = batch.scale * bound + ladder.log_prior(params["theta"])
    return value, gradient, update_memory(switches, memory, sums)


def multisample_slope_at(ladder: Ladder, params: PyTree, walk_of: WalkOfRows, batch: Batch) -> tuple[jax.Array, PyTree]:
    """VIMCO's K-sample bound and gradient, as estimates of sums over all rows; arguments as for ``slope_at``."""

    def terms(params: PyTree, part: Batch) -> tuple[jax.Array, jax.Array]:
        log_p, log_q, _ = _terms(ladder, params, *walk_of(part))
        log_w = jnp.sum(log_p, 0) - jnp.sum(log_q, 0)  # (K, row)
        bound = k_sample(log_w)  # its derivative at given draws is Σ_k w̃_k ∇ log w_k
        weights = jax.lax.stop_gradient(gains(log_w))
        return bound + jnp.sum(weights * jnp.sum(log_q, 0), axis=0), jnp.sum(part.counted(bound))

    gradient, bound = sum_gradients(ladder, params, terms, batch)
    return batch.scale * bound + ladder.log_prior(params["theta"]), gradient


def signals(log_p: jax.Array, log_q: jax.Array, *, local: bool) -> jax.Array:
    """l_i of every layer in nats, (L, draw, row): log p(h^{i−1} | h^i) + Σ_{j≥i} [log p(h^j | ·) − log q(h^j | ·)].

    With local=False every layer has the signal l_1.
    """
    learning_signal = log_p[:-1] + jax.lax.cumsum(log_p[1:] - log_q, axis=0, reverse=True)
    return learning_signal if local else jnp.broadcast_to(learning_signal[:1], learning_signal.shape)


def gains(log_w: jax.Array) -> jax.Array:
    """L̂ − L̂^{−k} of every draw in nats, (K, row): how much draw k raises the bound above that of the other draws."""
    count = log_w.shape[0]
    others = (jnp.sum(log_w, axis=0, keepdims=True) - log_w) / (count - 1)
    own = jnp.eye(count, dtype=bool)[:, :, None]
    without = jnp.where(own, others[:, None], log_w[None])  # (k, draw, row)
    return k_sample(log_w)[None] - jax.vmap(k_sample)(without)


def baseline_inputs(ladder: Ladder, params: PyTree, x: PyTree, h: tuple, baseline: str) -> list[jax.Array]:
    """The inputs of C_1 … C_L, each (draw or 1, row, …): x minus its mean, then h¹ … h^{L−1} or again x.

    No gradient passes through them.
    """
    features = ladder.visible.features(jax.tree.map(lambda a: a[None], x))
    first = features - params["phi"]["centre"].reshape((1,) * (features.ndim - 1) + (-1,))
    if baseline == "input":
        return [jax.lax.stop_gradient(first)] * ladder.depth
    below = [layer.features(value) for layer, value in zip(ladder.layers[1:-1], h[:-1], strict=True)]
    return [jax.lax.stop_gradient(features) for features in (first, *below)]


def baselines(psi: PyTree, inputs: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """C_i of every layer at its input, broadcast to ``shape``, (L, draw, row)."""

    def perceptron(psi: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.dot(jnp.tanh(x @ psi["weight"] + psi["bias"]), psi["out"]) + psi["answer"]

    each = [map_network(perceptron, psi[f"c{i + 1}"], x) for i, x in enumerate(inputs)]
    return jnp.stack([jnp.broadcast_to(one, shape[1:]) for one in each])


def row_sums(residual: jax.Array, mask: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The number of rows that count, (), and their sums of l_i − C_i − c_i and of its squares, (L,) each.

    Each row's terms are averaged over its draws. c is subtracted because squares of large numbers would have large
    rounding errors.
    """
    offset = residual - memory.centre()[:, None, None]
    counts = mask > 0

    def total(terms: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts[None], jnp.mean(terms, axis=1), 0), axis=1)

    return (jnp.sum(counts, dtype=residual.dtype), total(offset), total(jnp.square(offset)))


def update_memory(switches: Reductions, memory: Memory, sums: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
    """The memory after a batch, from ``row_sums`` of all its rows."""
    count, offset, square = sums
    rows = jnp.maximum(count, 1)
    offset = offset / rows
    spread = jnp.maximum(square / rows - jnp.square(offset), 0)
    keep, add = switches.decay, 1 - switches.decay
    mean = keep * memory.mean + add * (memory.centre() + offset)
    return Memory(mean, keep * memory.variance + add * spread, keep * memory.weight + add)


def centre_signals(switches: Reductions, residual: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array]:
    """The weights of ∇ log q(h^i | ·) and of ∇ C_i, from the residuals l_i − C_i; (L, draw, row) each.

    ``leave_one_out`` changes the weights of ∇ log q alone.
    """
    psi_weights = phi_weights = residual - memory.centre()[:, None, None] if switches.centre else residual
    if switches.leave_one_out:
        phi_weights = residual - (jnp.sum(residual, axis=1, keepdims=True) - residual) / (residual.shape[1] - 1)
    if switches.normalise:
        scale = memory.scale()[:, None, None]
        psi_weights, phi_weights = psi_weights / scale, phi_weights / scale
    return phi_weights, psi_weights


def check(ladder: Ladder, switches: Reductions, samples: int) -> None:
    """Raise a SettingsError for switches that are invalid, or that do not fit this ladder."""
    if switches.baseline not in BASELINES:
        raise SettingsError(f"baseline is one of {', '.join(map(repr, BASELINES))}; got {switches.baseline!r}.")
    decay = switches.decay
    if not (isinstance(decay, int | float) and 0 <= decay < 1):
        raise SettingsError(f"decay= of the running statistics is a number in [0, 1); got {decay!r}.")
    if switches.leave_one_out:
        what = "leave_one_out compares each draw with the row's other draws: nvil(samples=...)"
        expect(what, samples, Annotated[int, at_least(2)])
    expect("nvil(samples=...)", samples, Count)
    if ladder.recognition.upward or ladder.depth == 1:
        return
    for name, on, instead in (
        ("local=True", switches.local, "local=False"),
        ("baseline='layers'", switches.baseline == "layers", "baseline='input'"),
    ):
        if on:
            raise SettingsError(
                f"{name} needs inference from the bottom up, each h^i from h^(i−1) alone; this ladder's inference "
                f"network is not of that form. Use {instead}."
            )


def _walk_of_rows(ladder: Ladder, samples: int, noise: jax.Array, batch: Batch) -> tuple[Any, Walk]:
    """x of a batch's rows, and the function that draws their h at given parameters."""
    keys, x = keyed_inputs(ladder, noise, batch)

    def walk(params: PyTree) -> tuple[tuple, list]:
        h = draw_rows(ladder, keys, params, x, samples)
        return ladder.infer(params, jax.tree.map(lambda a: a[None], x), lambda i, _: h[i])

    return x, walk


def _terms(ladder: Ladder, params: PyTree, x: PyTree, walk: Walk) -> tuple[jax.Array, jax.Array, tuple]:
    """log p(x | h¹), …, (L + 1, draw, row), log q(h¹ | ·), …, (L, draw, row), and h; no gradient passes through h."""
    h, q = walk(params)
    h = jax.lax.stop_gradient(h)
    log_p = ladder.log_p(params["theta"], jax.tree.map(lambda a: a[None], x), h)
    return jnp.stack(log_p), jnp.stack([q_i.log_prob(h_i) for q_i, h_i in zip(q, h, strict=True)]), h
