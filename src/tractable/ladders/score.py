"""Bounds climbed by the score function, which needs only log p and log q of the hidden layers: NVIL and VIMCO.

Draws give learning signals (layer, draw, row), and these a surrogate whose gradient is the whole estimate: for θ by
∇ log p, for φ by a signal times ∇ log q, for the baselines ψ by a signal times ∇ C.
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
Walked = Callable[[Batch], tuple[Any, Walk]]  # rows -> (x, their walk)
BASELINES = ("layers", "input", None)


class Reductions(NamedTuple):
    """Variance reductions applied to the learning signals before they weight ∇ log q.

    Attributes:
        centre: subtract c_i, the running mean of l_i − C_i.
        baseline: subtract C_i, a perceptron: "layers", of the input of layer i's inference network, x or h^{i−1};
            "input", of x; None.
        normalise: divide by max(1, σ̂_i), the running sd of l_i − C_i within batches.
        local: leave out of layer i's signal the terms that do not depend on h^i.
        leave_one_out: subtract the mean over the row's other draws, in place of c_i.
        decay: of the running statistics, per step.
    """

    centre: bool = True
    baseline: str | None = "layers"
    normalise: bool = True
    local: bool = True
    leave_one_out: bool = False
    decay: float = 0.8


class Memory(NamedTuple):
    """Decaying sums of l_i − C_i over earlier batches; divided by their weight they are averages."""

    mean: jax.Array  # (L,)
    variance: jax.Array  # (L,), about each batch's own mean
    weight: jax.Array  # (), 0 before the first batch

    def centre(self) -> jax.Array:
        """c, (L,); 0 before the first batch."""
        return self.mean / jnp.where(self.weight > 0, self.weight, 1)

    def scale(self) -> jax.Array:
        """max(1, σ̂), (L,)."""
        return jnp.sqrt(jnp.maximum(1, self.variance / jnp.where(self.weight > 0, self.weight, 1)))


def nvil(ladder: Ladder, *, samples: int = 1, **switches: Any) -> Objective:
    """Neural variational inference and learning, the ELBO climbed by the score function (Mnih & Gregor 2014).

        l_i = Σ_{j≥i−1} log p(h^j | h^{j+1}) − Σ_{j≥i} log q(h^j | h^{j−1}),   h⁰ = x, i = 1…L   (section 2.3, local)
        θ:  ∇ log p(x, h)
        φ:  Σ_i (l_i − c_i − C_i)/max(1, σ̂_i) ∇ log q(h^i | h^{i−1})
        ψ:  Σ_i (l_i − c_i − C_i)/max(1, σ̂_i) ∇ C_i,   uphill on −½ (l_i − c_i − C_i)² alone

    in the sum scale. Unbiased for ∇ELBO up to max(1, σ̂_i), which only scales the step of each layer's φ (with an
    inference network that depends on θ, take normalise=False). c and σ̂ are averages over *earlier* batches, empty at
    first: c = 0 and σ̂ = 1 in the first step. The paper's algorithm 1 includes the current batch; with B rows its mean
    takes 1/B of the gradient away, so we deviate.

    Args:
        samples: S ≥ 1 draws of h per row and step.
        switches: fields of ``Reductions``; leave_one_out needs S ≥ 2. With local=False every layer's signal is l_1.

    With a baseline the params also hold ``"psi"``, made by ``begin_baselines``.

    Raises:
        SettingsError: an unknown baseline, a decay outside [0, 1), leave-one-out with one draw; local signals or
            layers' baselines where layers are not inferred from the bottom up.
    """
    chosen = Reductions(**switches)
    check(ladder, chosen, samples)
    walked = functools.partial(_walked, ladder, samples)

    def terms(noise: jax.Array, params: PyTree, part: Batch) -> jax.Array:
        log_p, log_q, _ = _terms(ladder, params, *walked(noise, part))
        return jnp.mean(jnp.sum(log_p, 0) - jnp.sum(log_q, 0), axis=0)

    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: Memory) -> tuple:
        return slope_at(ladder, chosen, params, functools.partial(walked, noise), batch, memory)

    return Objective(keys, value_of(ladder, terms), functools.partial(remember, ladder), slope)


def vimco(ladder: Ladder, *, samples: int = 5) -> Objective:
    """The K-sample bound E log (1/K) Σ_k w_k, climbed by the score function (Mnih & Rezende 2016, eq. 7–10).

        Σ_k (L̂ − L̂^{−k}) ∇ log q(h_k | x) + Σ_k w̃_k ∇ log w_k,   w̃ = w / Σ w
        L̂ = log (1/K) Σ_k w_k,   L̂^{−k} the same with the geometric mean of the other w in place of w_k

    with K = ``samples`` ≥ 2 draws per row. Unbiased for every K, since L̂^{−k} does not depend on h_k.
    """
    expect("Each draw is held against the others: vimco(samples=...)", samples, Annotated[int, at_least(2)])
    walked = functools.partial(_walked, ladder, samples)

    def terms(noise: jax.Array, params: PyTree, part: Batch) -> jax.Array:
        log_p, log_q, _ = _terms(ladder, params, *walked(noise, part))
        return k_sample(jnp.sum(log_p, 0) - jnp.sum(log_q, 0))

    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: tuple) -> tuple:
        return *multisample_slope_at(ladder, params, functools.partial(walked, noise), batch), memory

    return Objective(keys, value_of(ladder, terms), slope=slope)


def begin_baselines(ladder: Ladder, key: jax.Array, hidden: int = 100, *, baseline: str = "layers") -> PyTree:
    """Initial ψ: for each hidden layer a perceptron with one layer of ``hidden`` tanh units, whose output is 0.

    Args:
        hidden: ≥ 1 units.
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
    ladder: Ladder, switches: Reductions, params: PyTree, walked: Walked, batch: Batch, memory: Memory
) -> tuple[jax.Array, PyTree, Memory]:
    """NVIL's (ELBO, gradient, memory after the batch), in the sum scale.

    Args:
        walked: x (row, …) of a part of the batch's rows, and the walk that draws their h.
        batch: says which rows count, and how much; its rows may lie over devices.
    """

    def terms(params: PyTree, part: Batch) -> tuple[jax.Array, tuple]:
        x, walk = walked(part)
        log_p, log_q, h = _terms(ladder, params, x, walk)
        learning_signal = jax.lax.stop_gradient(signals(log_p, log_q, local=switches.local))
        guess = jnp.zeros_like(learning_signal)
        if switches.baseline is not None:
            guess = baselines(
                params["psi"], baseline_inputs(ladder, params, x, h, switches.baseline), learning_signal.shape
            )
        residual = learning_signal - jax.lax.stop_gradient(guess)
        of_inference, of_baseline = centre_signals(switches, residual, memory)
        mine = jnp.sum(log_p, 0) + jnp.sum(of_inference * log_q + of_baseline * guess, 0)
        bound = jnp.mean(jnp.sum(log_p, 0) - jnp.sum(log_q, 0), axis=0)
        return jnp.mean(mine, axis=0), (jnp.sum(part.counted(bound)), row_sums(residual, part.mask, memory))

    gradient, (bound, seen) = sum_gradients(ladder, params, terms, batch)
    value = batch.scale * bound + ladder.log_prior(params["theta"])
    return value, gradient, update_memory(switches, memory, seen)


def multisample_slope_at(ladder: Ladder, params: PyTree, walked: Walked, batch: Batch) -> tuple[jax.Array, PyTree]:
    """VIMCO's (K-sample bound, gradient), in the sum scale; arguments as for ``slope_at``."""

    def terms(params: PyTree, part: Batch) -> tuple[jax.Array, jax.Array]:
        log_p, log_q, _ = _terms(ladder, params, *walked(part))
        log_w = jnp.sum(log_p, 0) - jnp.sum(log_q, 0)  # (K, row)
        bound = k_sample(log_w)  # its derivative at given draws is Σ_k w̃_k ∇ log w_k
        weights = jax.lax.stop_gradient(gains(log_w))
        return bound + jnp.sum(weights * jnp.sum(log_q, 0), axis=0), jnp.sum(part.counted(bound))

    gradient, bound = sum_gradients(ladder, params, terms, batch)
    return batch.scale * bound + ladder.log_prior(params["theta"]), gradient


def signals(log_p: jax.Array, log_q: jax.Array, *, local: bool) -> jax.Array:
    """l_i of every layer, (L, draw, row), nats: log p(h^{i−1} | h^i) + Σ_{j≥i} [log p(h^j | ·) − log q(h^j | ·)]."""
    learning_signal = log_p[:-1] + jax.lax.cumsum(log_p[1:] - log_q, axis=0, reverse=True)
    return learning_signal if local else jnp.broadcast_to(learning_signal[:1], learning_signal.shape)


def gains(log_w: jax.Array) -> jax.Array:
    """L̂ − L̂^{−k} of every draw, (K, row) nats: how much draw k raises the bound over that of the other draws."""
    count = log_w.shape[0]
    others = (jnp.sum(log_w, axis=0, keepdims=True) - log_w) / (count - 1)
    own = jnp.eye(count, dtype=bool)[:, :, None]
    without = jnp.where(own, others[:, None], log_w[None])  # (k, draw, row)
    return k_sample(log_w)[None] - jax.vmap(k_sample)(without)


def baseline_inputs(ladder: Ladder, params: PyTree, x: PyTree, h: tuple, baseline: str) -> list[jax.Array]:
    """Inputs of C_1 … C_L, each (draw or 1, row, …): x minus its mean, then h¹ … h^{L−1} or x again; no gradient."""
    features = ladder.visible.features(jax.tree.map(lambda a: a[None], x))
    first = features - params["phi"]["centre"].reshape((1,) * (features.ndim - 1) + (-1,))
    if baseline == "input":
        return [jax.lax.stop_gradient(first)] * ladder.depth
    below = [layer.features(value) for layer, value in zip(ladder.layers[1:-1], h[:-1], strict=True)]
    return [jax.lax.stop_gradient(seen) for seen in (first, *below)]


def baselines(psi: PyTree, seen: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """C_i of every layer, broadcast to (L, draw, row)."""

    def answer(psi: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.dot(jnp.tanh(x @ psi["weight"] + psi["bias"]), psi["out"]) + psi["answer"]

    each = [map_network(answer, psi[f"c{i + 1}"], x) for i, x in enumerate(seen)]
    return jnp.stack([jnp.broadcast_to(guess, shape[1:]) for guess in each])


def row_sums(residual: jax.Array, mask: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How many rows count, (), and their sums of l_i − C_i − c_i and of its squares, (L,), averaged over draws.

    About c, so that no digits are lost to a large mean.
    """
    away = residual - memory.centre()[:, None, None]
    counts = mask > 0

    def total(terms: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(counts[None], jnp.mean(terms, axis=1), 0), axis=1)

    return (jnp.sum(counts, dtype=residual.dtype), total(away), total(jnp.square(away)))


def update_memory(switches: Reductions, memory: Memory, sums: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
    """The memory after a batch, from ``row_sums`` of all its rows."""
    count, away, square = sums
    rows = jnp.maximum(count, 1)
    away = away / rows
    spread = jnp.maximum(square / rows - jnp.square(away), 0)
    keep, add = switches.decay, 1 - switches.decay
    mean = keep * memory.mean + add * (memory.centre() + away)
    return Memory(mean, keep * memory.variance + add * spread, keep * memory.weight + add)


def centre_signals(switches: Reductions, residual: jax.Array, memory: Memory) -> tuple[jax.Array, jax.Array]:
    """Weights of ∇ log q(h^i | ·) and of ∇ C_i from l_i − C_i, (L, draw, row) each, held constant."""
    own = mine = residual - memory.centre()[:, None, None] if switches.centre else residual
    if switches.leave_one_out:
        mine = residual - (jnp.sum(residual, axis=1, keepdims=True) - residual) / (residual.shape[1] - 1)
    if switches.normalise:
        own, mine = own / memory.scale()[:, None, None], mine / memory.scale()[:, None, None]
    return mine, own


def check(ladder: Ladder, switches: Reductions, samples: int) -> None:
    """Raise for switches that are invalid, or that do not fit this ladder."""
    if switches.baseline not in BASELINES:
        raise SettingsError(f"baseline is one of {', '.join(map(repr, BASELINES))}; got {switches.baseline!r}.")
    decay = switches.decay
    if not (isinstance(decay, int | float) and 0 <= decay < 1):
        raise SettingsError(f"decay of the running statistics is in [0, 1); got {decay!r}.")
    if switches.leave_one_out:
        what = "leave_one_out holds each draw against the row's others: nvil(samples=...)"
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
                f"{name} rests on h^i being inferred from h^(i−1) alone, from the bottom up; this ladder's inference "
                f"network goes another way. Use {instead}."
            )


def _walked(ladder: Ladder, samples: int, noise: jax.Array, batch: Batch) -> tuple[Any, Walk]:
    """x of a batch's rows, and how h is drawn for them."""
    keys, x = keyed_inputs(ladder, noise, batch)

    def walk(params: PyTree) -> tuple[tuple, list]:
        h = draw_rows(ladder, keys, params, x, samples)
        return ladder.infer(params, jax.tree.map(lambda a: a[None], x), lambda i, _: h[i])

    return x, walk


def _terms(ladder: Ladder, params: PyTree, x: PyTree, walk: Walk) -> tuple[jax.Array, jax.Array, tuple]:
    """log p(x | h¹), … (L + 1, draw, row), log q(h¹ | ·), … (L, draw, row), and h, all at h held constant."""
    h, q = walk(params)
    h = jax.lax.stop_gradient(h)
    log_p = ladder.log_p(params["theta"], jax.tree.map(lambda a: a[None], x), h)
    return jnp.stack(log_p), jnp.stack([q_i.log_prob(h_i) for q_i, h_i in zip(q, h, strict=True)]), h
