"""Bayes by Backprop: the ELBO of a mean field over weights, whose KL is divided among the batches of an epoch.

The ELBO is the evidence lower bound, E_q[log p(y | w)] − KL(q(w) ‖ p(w)). Its second term is the complexity cost.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from tractable.core import tree
from tractable.core.approximations import log_normal, log_softplus, softplus, softplus_rate
from tractable.core.causes import base_of, log_prob_of
from tractable.core.errors import ModelError
from tractable.core.model import Batch, Model, Objective, PyTree, batch_log_likelihood, is_distribution
from tractable.core.settings import Count, expect
from tractable.networks.weight_noise import WeightNoise, flipout, local_reparameterisation

SMALL = 5_000  # largest number of weights of a small network


def kl_weight(weights: str, batch: Batch) -> Any:
    """π_i, the share of batch i in the complexity cost; Σ_i π_i = 1 over an epoch of M batches.

    "uniform" is 1/M. "geometric" is 2^{M−i}/(2^M − 1) = 2^{−i}/(1 − 2^{−M}) with i = 1..M in the order in which the
    batches are used (Blundell et al. 2015, section 3.4). The code computes the second form, which does not overflow.
    """
    if weights == "uniform":
        return 1.0 / batch.count
    return jnp.exp2(-(jnp.asarray(batch.index, jnp.result_type(float)) + 1)) / -math.expm1(-batch.count * math.log(2))


def bayes_by_backprop(
    model: Model, *, samples: int = 1, kl_weights: str = "uniform", noise: str = "shared", size: int = 1,
    given: PyTree = None, likelihood: Callable | None = None,
) -> Objective:  # fmt: skip
    """Minus the compression cost F of Blundell et al. 2015, for any model: q(w) = N(μ, σ²), σ = softplus(ρ).

        −F_i = (1/S) Σ_s [ Σ_{n in batch i} log p(y_n|w_s) − π_i (log q(w_s) − log p(w_s)) ]   (eq. 8; a sum over rows)

    The objective's value is M times −F_i, an estimate of the sum over all rows. So the values of an epoch average to
    −F exactly, whatever the batches' sizes and π. With M = 1 the likelihood of a batch counts N/n times and the cost
    once. For a parameter with a normal prior the cost is the KL in closed form. For other parameters, as under a scale
    mixture, it is log q − log p at the draw, differentiated through the draw and through the parameters of q. The
    objective's parameters are {"mean": tree, "rho": tree}, with the shapes of the model's unconstrained parameters.

    Args:
        samples: S ≥ 1 draws a step.
        kl_weights: "uniform" or "geometric".
        noise: "shared", one draw of the weights for all rows of a batch; "local", the local reparameterisation, and
            "flipout" make the rows' noise uncorrelated (``tractable.networks.weight_noise``), and need a likelihood
            that goes ``Through`` a predictor.
        size: rows of the largest batch; needed by "local" and "flipout".
        given: one row of inputs, of which only the shapes are used; needed by "local" and "flipout".
        likelihood: ``(flat w, batch, k) -> Σ_n log p(y_n|w)``, an estimate for all rows from a batch that counts k
            times; for noise="shared" only. By default k times the batch's own log likelihood.
    """
    expect("samples", samples, Count)
    if likelihood is not None and noise != "shared":
        raise ModelError(f"likelihood= takes one draw for all rows, so it needs noise='shared'; got {noise!r}.")
    fixed = _constant_parts(model, noise, given)._replace(likelihood=likelihood)

    def draw(key: jax.Array, count: int, phi: PyTree) -> PyTree:
        flat_noise = _noise(fixed, key, count * samples, size)
        return jax.tree.map(lambda a: a.reshape(count, samples, *a.shape[1:]), flat_noise)

    def value(noise: PyTree, phi: PyTree, batch: Batch | None) -> jax.Array:
        if samples == 1:  # not by vmap, because matrix products with a batch axis of length one are slower
            likelihood, log_ratio = _once(fixed, jax.tree.map(lambda a: a[0], noise), phi, batch)
        else:
            likelihood, log_ratio = jax.vmap(lambda noise: _once(fixed, noise, phi, batch))(noise)
        cost = -jnp.mean(log_ratio)
        for leaf, m, rho in zip(fixed.leaves, *map(jax.tree.leaves, (phi["mean"], phi["rho"])), strict=True):
            if leaf.normal is not None:
                cost = cost + normal_kl(m, rho, *leaf.normal)
        if batch is None:
            return jnp.mean(likelihood) - cost
        return batch.count * (_times(batch) * jnp.mean(likelihood) - kl_weight(kl_weights, batch) * cost)

    return Objective(draw, value)


class _Leaf(NamedTuple):
    """One of a model's parameters (a leaf of their pytree) under Bayes by Backprop."""

    name: str
    like: jax.ShapeDtypeStruct
    normal: tuple[Any, Any] | None  # centre and scale of a normal prior, whose KL is in closed form; else None
    inside: bool  # whether its noise differs between rows; such a parameter has no single value outside the predictor
    source: (
        str  # which noise it takes: "own" (``_noise``), "layers" (``WeightNoise``), or "none" if nothing uses a draw
    )


class _Fixed(NamedTuple):
    """What stays the same at every step of Bayes by Backprop."""

    model: Model
    leaves: list[_Leaf]
    structure: Any  # the structure of the parameters' pytree
    layered: WeightNoise | None  # the noise of "local" and "flipout"
    likelihood: Callable | None = None  # the user's estimate of all rows' log likelihood from a batch


def _times(batch: Batch) -> jax.Array:
    """The factor of a batch's likelihood, where its share of the cost has factor 1: N/n if M = 1, else 1."""
    return jnp.where(batch.count == 1, batch.scale, 1.0)


def _constant_parts(model: Model, noise: str, given: PyTree) -> _Fixed:
    layered = None if noise == "shared" else _layers(model, noise, given)
    paths, structure = jax.tree_util.tree_flatten_with_path(model.space.shapes)
    leaves = []
    for index, (path, like) in enumerate(paths):
        name, normal = tree.path_name(path), normal_prior(model, index)
        inside, source = layered is not None and name in layered.transformed, "own"
        if layered is not None and not (inside and normal is None):
            source = "none" if inside else "layers"
        leaves.append(_Leaf(name, like, normal, inside, source))
    return _Fixed(model, leaves, structure, layered)


def _noise(fixed: _Fixed, key: jax.Array, count: int, size: int) -> PyTree:
    """``count`` draws of the noise: (ε by name of leaf, noise of the layers)."""
    own = {leaf.name: leaf.like for leaf in fixed.leaves if leaf.source == "own"}
    key, layer_key = jax.random.split(key)
    own_noise = tree.normal_like(key, own, count) if own else {}
    layer_noise = () if fixed.layered is None else fixed.layered.draw(layer_key, count, size)
    return own_noise, layer_noise


def _once(fixed: _Fixed, noise: PyTree, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
    """For one draw: the batch's log likelihood, and the Monte-Carlo part of log p − log q."""
    own_noise, by_layer = noise
    means, rhos = jax.tree.leaves(phi["mean"]), jax.tree.leaves(phi["rho"])
    sds, values = [softplus(rho) for rho in rhos], []
    for leaf, m, s in zip(fixed.leaves, means, sds, strict=True):
        if leaf.source == "none":
            values.append(m)
        else:
            values.append(m + s * (own_noise if leaf.source == "own" else by_layer.batch)[leaf.name])
    log_ratio = _log_ratio(fixed, values, means, rhos)
    if batch is None:
        return jnp.zeros((), means[0].dtype), log_ratio
    if fixed.layered is None:
        unconstrained, times = jax.tree.unflatten(fixed.structure, values), batch.count * _times(batch)
        if fixed.likelihood is not None:
            return fixed.likelihood(fixed.model.space.ravel(unconstrained), batch, times) / times, log_ratio
        params = fixed.model.constrain(unconstrained)
        return batch_log_likelihood(fixed.model, params, batch), log_ratio
    n = batch.mask.shape[0]
    of_batch = by_layer._replace(
        example=jax.tree.map(lambda a: a[:n], by_layer.example), signs=jax.tree.map(lambda a: a[:n], by_layer.signs)
    )
    y, x = batch.data
    eta = fixed.layered.call(of_batch, phi["mean"], jax.tree.unflatten(fixed.structure, sds), x)
    # Parameters that only the predictor may use are NaN outside it.
    masked = [jnp.full_like(w, jnp.nan) if leaf.inside else w for leaf, w in zip(fixed.leaves, values, strict=True)]
    params, likelihood = fixed.model.constrain(jax.tree.unflatten(fixed.structure, masked)), fixed.model.through
    assert likelihood is not None  # ``_layers`` has checked it
    terms = jax.vmap(lambda e, y: log_prob_of(likelihood.observe(params, e), y))(eta, y)
    return jnp.sum(batch.counted(terms)), log_ratio


def _log_ratio(fixed: _Fixed, values: list, means: list, rhos: list) -> jax.Array:
    """log p(w) − log q(w) of one draw, over the parameters whose KL is not in closed form."""
    model, log_ratio = fixed.model, jnp.zeros((), means[0].dtype)
    if all(leaf.normal is not None for leaf in fixed.leaves):
        return log_ratio
    unconstrained = jax.tree.unflatten(fixed.structure, values)
    params = model.constrain(unconstrained)
    if model.prior_is_callable:
        log_ratio = model.log_prior(params) + model.log_jacobian(unconstrained, params)
        log_priors = [0.0] * len(values)
    else:
        log_priors = model.log_priors(params, unconstrained)
    for leaf, log_prior, w, m, rho in zip(fixed.leaves, log_priors, values, means, rhos, strict=True):
        if leaf.normal is None:
            log_ratio += log_prior - jnp.sum(log_normal(w - m, rho))
    return log_ratio


@jax.custom_vjp
def normal_kl(mean: jax.Array, rho: jax.Array, centre: ArrayLike, scale: ArrayLike) -> jax.Array:
    """Σ KL(N(μ, σ²) ‖ N(m, s²)) = Σ [ ½ (σ² + (μ − m)²)/s² − ½ − log(σ/s) ]; m and s are constants.

    The gradient is written by hand, (μ − m)/s² and (σ/s² − 1/σ) dσ/dρ, because this takes one pass over memory and
    automatic differentiation takes several.
    """
    sd = softplus(rho)
    square = (jnp.square(sd) + jnp.square(mean - centre)) / (2 * jnp.square(scale))
    return jnp.sum(square - 0.5 - log_softplus(rho) + jnp.log(scale))


def _kl_forward(mean: jax.Array, rho: jax.Array, *prior: ArrayLike) -> tuple[jax.Array, tuple]:
    return normal_kl(mean, rho, *prior), (mean, rho, *prior)


def _kl_backward(residuals: tuple, cotangent: jax.Array) -> tuple:
    mean, rho, centre, scale = residuals
    sd, rate = softplus(rho), softplus_rate(rho)
    inverse = 1 / jnp.square(jnp.asarray(scale, rho.dtype))
    relative = jnp.where(rho < -15, 1.0, rate / jnp.where(rho < -15, 1.0, sd))  # dlog σ/dρ
    along = cotangent * (mean - centre) * inverse, cotangent * (sd * rate * inverse - relative)
    return *along, jnp.zeros_like(jnp.asarray(centre)), jnp.zeros_like(jnp.asarray(scale))


normal_kl.defvjp(_kl_forward, _kl_backward)


def normal_prior(model: Model, index: int) -> tuple[Any, Any] | None:
    """Centre and scale of a parameter's normal prior on the reals, in the parameter's shape; None for other priors."""
    if model.prior_is_callable:
        return None
    prior = base_of(jax.tree.leaves(model.prior, is_leaf=is_distribution)[index])
    return (prior.loc, prior.scale) if type(prior) is dist.Normal else None


def _layers(model: Model, noise: str, given: PyTree) -> WeightNoise:
    likelihood = model.through
    if likelihood is None or given is None:
        raise ModelError(
            f"noise={noise!r} works inside the network, so it expects a likelihood that goes Through a predictor, as "
            "that of tr.models.neural_network does, and data with given=. Otherwise use noise='shared'."
        )
    make = {"local": local_reparameterisation, "flipout": flipout}[noise]
    return make(lambda u, x: likelihood.predictor(model.constrain(u), x), model.space.shapes, given)
