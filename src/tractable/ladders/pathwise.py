"""Variational and importance-weighted autoencoders: bounds with gradients through reparameterised draws h = h(φ, ε).

The rows of a batch may be divided among devices. A "part" is the rows of one device; the sums over a batch are sums
over its parts.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Batch, Objective, PyTree
from tractable.core.numbers import Number
from tractable.core.settings import Count, NotNegative, Positive, expect
from tractable.ladders.bounds import log_weights
from tractable.ladders.ladder import Ladder

Gradient = Literal["reparameterised", "path"]
ImportanceGradient = Literal["doubly", "reparameterised"]
KL = Literal["closed", "sampled"]


def keys(key: jax.Array, count: int, params: PyTree) -> jax.Array:
    """The ``draw`` of an objective whose noise is one random key per step."""
    return jax.random.split(key, count)


def sum_terms(ladder: Ladder, params: PyTree, terms: Callable, batch: Batch) -> jax.Array:
    """N/n Σ of the rows' terms, plus log p(θ); ``terms(params, part)`` gives the terms of a part, (n,)."""
    total = batch.summed(lambda params, part: jnp.sum(part.counted(terms(params, part))), params)
    return batch.scale * total + ladder.log_prior(params["theta"])


def value_of(ladder: Ladder, terms: Callable) -> Callable:
    """The ``value(noise, params, batch)`` of an objective: ``sum_terms`` of ``terms(noise, params, part)``."""
    return lambda noise, params, batch: sum_terms(ladder, params, functools.partial(terms, noise), batch)


def sum_gradients(ladder: Ladder, params: PyTree, terms: Callable, batch: Batch) -> tuple[PyTree, PyTree]:
    """The gradient of ``sum_terms``, and other sums over rows.

    Args:
        terms: ``(params, part) -> (terms (n,), other sums over the part)``. Only the terms are differentiated, and each
            part on its own, so a row's term must not depend on rows of other parts.
    """

    def gradient_of_part(params: PyTree, part: Batch) -> tuple[PyTree, PyTree]:
        def total(params: PyTree) -> tuple[jax.Array, PyTree]:
            of_rows, others = terms(params, part)
            return jnp.sum(part.counted(of_rows)), others

        return jax.grad(total, has_aux=True)(params)

    gradient, others = batch.summed(gradient_of_part, params)
    return with_prior(ladder, params, gradient, batch), others


def with_prior(ladder: Ladder, params: PyTree, gradient: PyTree, batch: Batch) -> PyTree:
    """N/n times a gradient that is summed over rows, plus, for θ, the gradient of log p(θ)."""
    gradient = jax.tree.map(lambda g: batch.scale * g, gradient)
    prior = jax.grad(ladder.log_prior)(params["theta"])
    return gradient | {"theta": jax.tree.map(jnp.add, gradient["theta"], prior)}


def keyed_inputs(ladder: Ladder, noise: jax.Array, batch: Batch) -> tuple[jax.Array, PyTree]:
    """Each row's key for its draws, (n,), and its x, (n, …). Both depend only on the noise and on the row's place.

    With redraw=True the ladder draws x from the row; otherwise x is the row.
    """
    keys = jax.vmap(jax.random.split)(batch.keys(noise))
    return keys[:, 1], each_row(ladder.look, keys[:, 0], batch.data[0])


def each_row(function: Callable, keys: jax.Array, *args: PyTree, axis: int = 0) -> PyTree:
    """Apply ``function(key, *args)`` to every row.

    The function sees one row at a time, as arrays whose first axis has length one. In what it returns, the row's axis
    of length one is ``axis``.
    """

    def one(key: jax.Array, *args: PyTree) -> PyTree:
        result = function(key, *jax.tree.map(lambda a: a[None], args))
        return jax.tree.map(lambda a: jnp.squeeze(a, axis), result)

    return jax.vmap(one, out_axes=axis)(keys, *args)


def draw_rows(
    ladder: Ladder, keys: jax.Array, params: PyTree, x: PyTree, draws: int, *, pathwise: bool = False
) -> tuple:
    """Draw h ~ q(h | x) for every row by the row's own key; leading axes (draw, row)."""
    return each_row(lambda key, x: ladder.drawn(key, params, x, draws, pathwise=pathwise)[0], keys, x, axis=1)


def autoencoding(
    ladder: Ladder, *, samples: int = 1, gradient: str = "reparameterised", kl: str = "closed", beta: float = 1.0,
    free_bits: float = 0.0, warmup: Number = 0,
) -> Objective:  # fmt: skip
    """The ELBO of a variational autoencoder, E_q[log p(x, h) − log q(h | x)] (Kingma & Welling 2014).

    By default the objective is the ELBO, log p(x) − KL(q(h | x) ‖ p(h | x)) summed over rows. With ``beta``,
    ``free_bits`` (λ) or ``warmup`` it is

        N/n Σ_rows log p(x | h¹)  −  min(1, t/warmup) β N Σ_j max(λ, mean over the batch of KL_j)

    where the sum is over hidden units j, and t is the step. The reported value is always an estimate of the ELBO
    itself.

    Args: fields of ``methods.AutoEncoding``, with ``warmup`` in steps, a number or a traced array, and
        gradient: "path" leaves out the score of q, which has mean zero; no noise is left where q is the posterior
            (Roeder, Wu & Duvenaud 2017, eq. 8). It needs kl="sampled", since a KL in closed form has no such score.
        kl: "closed" uses the closed form of KL(q(h^i | ·) ‖ p(h^i | h^{i+1})) where there is one and where it is valid:
            for h^L, and for i < L where h^{i+1} was drawn before h^i. In inference from the bottom up, h^{i+1} is drawn
            after h^i and depends on it. The KL at that h^{i+1} would have a biased gradient, so log q − log p at the
            draw is used instead. "sampled" uses log q − log p at the draw everywhere.
        beta: the weight of the KL (Higgins et al. 2017). Above 1 the objective is a looser bound of log p(x); below 1
            it is no bound.

    Raises:
        SettingsError: settings out of range, or gradient="path" with kl="closed".
        ModelError: discrete layers.
    """
    _check(ladder, samples, gradient, Gradient)
    expect("kl", kl, KL)
    expect("beta, the weight of the KL,", beta, Positive)
    expect("free_bits, nats a unit,", free_bits, NotNegative)
    check_costs(gradient, kl)
    closed = closed_layers(ladder) if kl == "closed" else frozenset()

    def parts(noise: jax.Array, params: PyTree, batch: Batch) -> tuple[jax.Array, list[jax.Array]]:
        """Means over draws: log p(x | h¹), (n,), and for each layer the costs (KL) of its units, (n, units)."""

        def of_row(key: jax.Array, x: PyTree) -> tuple[jax.Array, list[jax.Array]]:
            h, q = ladder.drawn(key, params, x, samples, pathwise=True)
            p = ladder.generative(params["theta"], h)
            density = _fixed_q(ladder, params, x, h) if gradient == "path" else q
            above = jax.tree.map(lambda a: a[None], x)
            layers = zip(q, density, p[1:], h, strict=True)
            costs = [jnp.mean(unit_costs(*each, i in closed), axis=0) for i, each in enumerate(layers)]
            return jnp.mean(p[0].log_prob(above), axis=0), costs

        return each_row(of_row, *keyed_inputs(ladder, noise, batch))

    def bound(likelihood: jax.Array, costs: list[jax.Array]) -> jax.Array:
        return likelihood - sum(jnp.sum(cost, -1) for cost in costs)

    def value(noise: jax.Array, params: PyTree, batch: Batch) -> jax.Array:
        return sum_terms(ladder, params, lambda params, part: bound(*parts(noise, params, part)), batch)

    steady = isinstance(warmup, int | float) and warmup == 0
    if steady and beta == 1 and free_bits == 0:
        return Objective(keys, value)

    def slope(noise: jax.Array, params: PyTree, batch: Batch, step: jax.Array) -> tuple:
        weight = beta if steady else beta * jnp.minimum(1.0, jnp.asarray(step, jnp.result_type(float)) / warmup)

        counts: list[Any] = [1.0] * ladder.depth  # per unit: 1 where its cost counts, 0 where it is below the free bits
        if free_bits:
            counts = _above(lambda params, part: parts(noise, params, part)[1], params, batch, free_bits)

        def terms(params: PyTree, part: Batch) -> tuple[jax.Array, jax.Array]:
            likelihood, costs = parts(noise, params, part)
            price = sum(jnp.sum(on * cost, -1) for on, cost in zip(counts, costs, strict=True))
            return likelihood - weight * price, jnp.sum(part.counted(bound(likelihood, costs)))

        slopes, bound_value = sum_gradients(ladder, params, terms, batch)
        return batch.scale * bound_value + ladder.log_prior(params["theta"]), slopes, step + 1

    return Objective(keys, value, lambda params: jnp.zeros((), jnp.int32), slope)


def importance_weighted(ladder: Ladder, *, samples: int = 5, gradient: str = "doubly") -> Objective:
    """The K-sample bound of importance-weighted autoencoders, E log (1/K) Σ_k w_k with w_k = p(x, h_k) / q(h_k | x).

    The bound rises with K to log p(x), and at K = 1 it is the ELBO (Burda et al. 2016). Its q is an importance proposal
    for K draws, broader than the ELBO's q, so a single draw of it tells less about h.

    Args:
        samples: K ≥ 1 draws of h per row and step.
        gradient: the estimator of φ's gradient. "reparameterised" is the gradient of the bound through its draws, whose
            signal-to-noise ratio falls as 1/√K (Rainforth et al. 2018). "doubly" is
            Σ_k w̃_k² (∂log w_k/∂h_k) (∂h_k/∂φ) with w̃ = w/Σw; it is equal in expectation, and has no noise where q is
            the posterior (Tucker et al. 2019). θ's gradient is Σ_k w̃_k ∇ log p(x, h_k) in both cases. If the
            inference network shares θ, the θ within q is treated like φ.

    Raises: as for ``autoencoding``.
    """
    _check(ladder, samples, gradient, ImportanceGradient)

    def terms(noise: jax.Array, params: PyTree, part: Batch) -> jax.Array:
        def of_row(key: jax.Array, x: PyTree) -> jax.Array:
            h, q = ladder.drawn(key, params, x, samples, pathwise=True)
            return k_sample(log_weights(ladder, params, x, h, q)[0])

        return each_row(of_row, *keyed_inputs(ladder, noise, part))

    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: PyTree) -> tuple:
        def of_part(params: PyTree, part: Batch) -> tuple[jax.Array, PyTree]:
            keys, x = keyed_inputs(ladder, noise, part)

            def log_weight(theta: PyTree, h: tuple) -> jax.Array:  # log w (K, n), with the parameters of q held fixed
                q = _fixed_q(ladder, params, x, h)
                return log_weights(ladder, {"theta": theta}, x, h, q)[0]

            h, back = jax.vjp(lambda params: draw_rows(ladder, keys, params, x, samples, pathwise=True), params)
            log_w, pull = jax.vjp(log_weight, params["theta"], h)
            bound_value, along = jax.value_and_grad(lambda log_w: jnp.sum(part.counted(k_sample(log_w))))(log_w)
            share = jax.nn.softmax(log_w, axis=0)
            theta, through = pull(along)  # ``through`` is w̃_k ∂log w_k/∂h_k for draw k of every row
            slopes = back(weigh_again(share, through))[0]
            return bound_value, slopes | {"theta": jax.tree.map(jnp.add, theta, slopes["theta"])}

        bound_value, slopes = batch.summed(of_part, params)
        bound_value = batch.scale * bound_value + ladder.log_prior(params["theta"])
        return bound_value, with_prior(ladder, params, slopes, batch), memory

    return Objective(keys, value_of(ladder, terms), slope=slope if gradient == "doubly" else None)


def k_sample(log_w: jax.Array) -> jax.Array:
    """log (1/K) Σ_k w_k over the leading axis."""
    return jax.nn.logsumexp(log_w, axis=0) - math.log(log_w.shape[0])


def weigh_again(share: jax.Array, slopes: PyTree) -> PyTree:
    """w̃² ∂log w/∂h from slopes w̃ ∂log w/∂h, (K, n, …), and w̃, (K, n)."""
    return jax.tree.map(lambda g: g * share.reshape(share.shape + (1,) * (g.ndim - 2)), slopes)


def unit_costs(q: Distribution, density: Distribution, p: Distribution, h: PyTree, closed: bool) -> jax.Array:
    """The costs of a layer's units, (draw, row, unit): the closed form KL(q ‖ p), or log q − log p at the draw h.

    A layer whose units are not independent has one cost, (draw, row, 1).

    Args:
        density: the q whose log density is differentiated; for gradient="path" its parameters are held fixed.
        closed: whether to use the closed form where there is one.
    """
    layers: list[Any] = [q, density, p]
    independent = all(isinstance(d, dist.Independent) and d.reinterpreted_batch_ndims == 1 for d in layers)
    if independent:
        layers = [d.base_dist for d in layers]
    try:
        cost = dist.kl_divergence(layers[0], layers[2]) if closed else None
    except NotImplementedError:  # no closed form is known
        cost = None
    if cost is None:
        cost = layers[1].log_prob(h) - layers[2].log_prob(h)
    return cost if independent else cost[..., None]


def closed_layers(ladder: Ladder) -> frozenset[int]:
    """The hidden layers, counted from 0, whose KL may be in closed form.

    They are the top layer, and layers that are drawn after the layer above, on which their p depends.
    """
    order: list[int] = []

    def walk(key: jax.Array) -> None:
        params = ladder.initial(key)
        x, h = ladder.dreamt(key, params["theta"], 1)
        ladder.infer(params, x, lambda i, q: (order.append(i), h[i])[1])

    jax.eval_shape(walk, jax.random.key(0))
    top = ladder.depth - 1
    return frozenset(i for i in order if i == top or order.index(i + 1) < order.index(i))


def _fixed_q(ladder: Ladder, params: PyTree, x: PyTree, h: tuple) -> list:
    """[q(h¹ | ·), …] with fixed parameters: gradients of the log density pass through h alone."""
    fixed = jax.lax.stop_gradient({name: params[name] for name in ("theta", "phi")})
    return ladder.infer(fixed, jax.tree.map(lambda a: a[None], x), lambda i, _: h[i])[1]


def _above(costs: Callable, params: PyTree, batch: Batch, free: float) -> list[jax.Array]:
    """For each layer (units,): 1.0 where a unit's mean cost over unmasked rows exceeds ``free``, else 0.0."""

    def sums(params: PyTree, part: Batch) -> tuple[jax.Array, list[jax.Array]]:
        return jnp.sum(part.mask), [jnp.sum(part.counted(cost), axis=0) for cost in costs(params, part)]

    rows, totals = batch.summed(sums, params)
    return [(total > free * rows).astype(total.dtype) for total in totals]


def _check(ladder: Ladder, samples: object, gradient: str, known: object) -> None:
    expect("samples, draws of h a row,", samples, Count)
    expect("gradient", gradient, known)
    if ladder.discrete:
        i = ladder.discrete[0]
        raise ModelError(
            f"This bound's gradient passes through draws of h, and layer {i} is {ladder.layers[i].family.name}, whose "
            "draws have no derivative. Use NVIL, VIMCO or wake–sleep."
        )


def check_costs(gradient: str, kl: str) -> None:
    """Raise a SettingsError where a gradient and a KL do not go together."""
    if gradient == "path" and kl == "closed":
        raise SettingsError(
            "gradient='path' leaves out the score of log q at the draw, which a KL in closed form does not have: "
            "use it with kl='sampled'."
        )
