"""Bayes by Backprop: the ELBO of a mean field over weights, its KL divided among the batches of an epoch."""

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


def kl_weight(weights: str, batch: Batch) -> Any:
    """π_i, a batch's share of the complexity cost; Σ_i π_i = 1 over an epoch.

    "uniform": 1/M. "geometric": 2^{M−i}/(2^M − 1) = 2^{−i}/(1 − 2^{−M}), i = 1..M in the order visited (Blundell et
    al. 2015, section 3.4); the second form does not overflow.
    """
    if weights == "uniform":
        return 1.0 / batch.count
    return jnp.exp2(-(jnp.asarray(batch.index, jnp.result_type(float)) + 1)) / -math.expm1(-batch.count * math.log(2))


def bayes_by_backprop(
    model: Model, *, samples: int = 1, kl_weights: str = "uniform", noise: str = "shared", size: int = 1,
    given: PyTree = None, likelihood: Callable | None = None,
) -> Objective:  # fmt: skip
    """Minus the compression cost of Blundell et al. 2015, for any model: q(w) = N(μ, σ²), σ = softplus(ρ).

        −F_i = (1/S) Σ_s [ Σ_{n in batch i} log p(y_n|w_s) − π_i (log q(w_s) − log p(w_s)) ]   (eq. 8; a sum over rows)

    The value is in the sum scale, M times that, so that the values of an epoch average to −F exactly, whatever the
    batches' sizes and π. With M = 1 a batch stands alone: its likelihood counts N/n times, its cost once. A parameter
    with a normal prior has its KL in closed form as cost; others, as under a scale mixture, have log q − log p at the
    draw, with the direct gradient through log q kept. The objective's params are {"mean": tree, "rho": tree}, shaped
    like the model's unconstrained parameters.

    Args:
        samples: S ≥ 1 draws a step.
        kl_weights: "uniform" or "geometric".
        noise: "shared", one draw for the batch; "local", the local reparameterisation, and "flipout", which decorrelate
            its rows (``tractable.networks.weight_noise``) and need a likelihood that goes ``Through`` a predictor.
        size: rows of the largest batch; for the noise of "local" and "flipout".
        given: one row of inputs (shapes suffice); for the same.
        likelihood: ``(flat w, batch, k) -> Σ_n log p(y_n|w)`` of all rows, as a batch that counts k times tells; with
            noise "shared". By default k times the batch's own.
    """
    expect("samples", samples, Count)
    if likelihood is not None and noise != "shared":
        raise ModelError(f"likelihood= is told one draw for all rows, so it goes with noise='shared'; got {noise!r}.")
    fixed = _fixed(model, noise, given)._replace(likelihood=likelihood)

    def draw(key: jax.Array, count: int, phi: PyTree) -> PyTree:
        drawn = _noise(fixed, key, count * samples, size)
        return jax.tree.map(lambda a: a.reshape(count, samples, *a.shape[1:]), drawn)

    def value(noise: PyTree, phi: PyTree, batch: Batch | None) -> jax.Array:
        if samples == 1:  # without vmap, as products with a batch axis of one are slower
            likelihood, log_ratio = _once(fixed, jax.tree.map(lambda a: a[0], noise), phi, batch)
        else:
            likelihood, log_ratio = jax.vmap(lambda noise: _once(fixed, noise, phi, batch))(noise)
        cost = -jnp.mean(log_ratio)
        for leaf, m, rho in zip(fixed.leaves, *map(jax.tree.leaves, (phi["mean"], phi["rho"])), strict=True):
            if leaf.normal is not None:
                cost = cost + normal_kl(m, rho, *leaf.normal)
        if batch is None:
            return jnp.mean(likelihood) - cost
        return batch.count * (_alone(batch) * jnp.mean(likelihood) - kl_weight(kl_weights, batch) * cost)

    return Objective(draw, value)


class _Leaf(NamedTuple):
    """One of a model's parameters under Bayes by Backprop."""

    name: str
    like: jax.ShapeDtypeStruct
    normal: tuple[Any, Any] | None  # centre and scale of a normal prior, whose cost is in closed form
    inside: bool  # its noise differs between examples, so there is no one value of it outside the predictor
    source: str  # of its ε: "own", "layers"; "none" where neither cost nor likelihood uses a draw


class _Fixed(NamedTuple):
    """What stays the same at every step of Bayes by Backprop."""

    model: Model
    leaves: list[_Leaf]
    structure: Any  # of the parameters
    layered: WeightNoise | None  # of "local" and "flipout"
    likelihood: Callable | None = None  # of all rows, by a batch


def _alone(batch: Batch) -> jax.Array:
    """N/n for a batch that stands alone, else 1: how often its likelihood counts where costs are divided."""
    return jnp.where(batch.count == 1, batch.scale, 1.0)


def _fixed(model: Model, noise: str, given: PyTree) -> _Fixed:
    layered = None if noise == "shared" else _layers(model, noise, given)
    paths, structure = jax.tree_util.tree_flatten_with_path(model.space.shapes)
    leaves = []
    for index, (path, like) in enumerate(paths):
        name, normal = tree.path_name(path), _normal(model, index)
        inside, source = layered is not None and name in layered.transformed, "own"
        if layered is not None and not (inside and normal is None):
            source = "none" if inside else "layers"
        leaves.append(_Leaf(name, like, normal, inside, source))
    return _Fixed(model, leaves, structure, layered)


def _noise(fixed: _Fixed, key: jax.Array, count: int, size: int) -> PyTree:
    """``count`` draws of (ε by name of leaf, noise of the layers)."""
    own = {leaf.name: leaf.like for leaf in fixed.leaves if leaf.source == "own"}
    key, layer_key = jax.random.split(key)
    mine = tree.normal_like(key, own, count) if own else {}
    theirs = () if fixed.layered is None else fixed.layered.draw(layer_key, count, size)
    return mine, theirs


def _once(fixed: _Fixed, noise: PyTree, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
    """For one draw: the batch's log likelihood, and the Monte-Carlo part of log p − log q."""
    own, theirs = noise
    means, rhos = jax.tree.leaves(phi["mean"]), jax.tree.leaves(phi["rho"])
    sds, drawn = [softplus(rho) for rho in rhos], []
    for leaf, m, s in zip(fixed.leaves, means, sds, strict=True):
        if leaf.source == "none":
            drawn.append(m)
        else:
            drawn.append(m + s * (own if leaf.source == "own" else theirs.batch)[leaf.name])
    log_ratio = _log_ratio(fixed, drawn, means, rhos)
    if batch is None:
        return jnp.zeros((), means[0].dtype), log_ratio
    if fixed.layered is None:
        unconstrained, times = jax.tree.unflatten(fixed.structure, drawn), batch.count * _alone(batch)
        if fixed.likelihood is not None:
            return fixed.likelihood(fixed.model.space.ravel(unconstrained), batch, times) / times, log_ratio
        params = fixed.model.constrain(unconstrained)
        return batch_log_likelihood(fixed.model, params, batch), log_ratio
    n = batch.mask.shape[0]
    cut = theirs._replace(
        example=jax.tree.map(lambda a: a[:n], theirs.example), signs=jax.tree.map(lambda a: a[:n], theirs.signs)
    )
    y, x = batch.data
    eta = fixed.layered.call(cut, phi["mean"], jax.tree.unflatten(fixed.structure, sds), x)
    # Parameters that only the predictor may use are NaN outside it.
    shown = [jnp.full_like(w, jnp.nan) if leaf.inside else w for leaf, w in zip(fixed.leaves, drawn, strict=True)]
    seen, likelihood = fixed.model.constrain(jax.tree.unflatten(fixed.structure, shown)), fixed.model.through
    assert likelihood is not None  # ``_layers`` has checked it
    terms = jax.vmap(lambda e, y: log_prob_of(likelihood.observe(seen, e), y))(eta, y)
    return jnp.sum(batch.counted(terms)), log_ratio


def _log_ratio(fixed: _Fixed, drawn: list, means: list, rhos: list) -> jax.Array:
    """log p(w) − log q(w) of one draw, over the parameters whose cost has no closed form."""
    model, log_ratio = fixed.model, jnp.zeros((), means[0].dtype)
    if all(leaf.normal is not None for leaf in fixed.leaves):
        return log_ratio
    unconstrained = jax.tree.unflatten(fixed.structure, drawn)
    params = model.constrain(unconstrained)
    if model.prior_is_callable:
        log_ratio = model.log_prior(params) + model.log_jacobian(unconstrained, params)
        each = [0.0] * len(drawn)
    else:
        each = model.log_priors(params, unconstrained)
    for leaf, value, w, m, rho in zip(fixed.leaves, each, drawn, means, rhos, strict=True):
        if leaf.normal is None:
            log_ratio += value - jnp.sum(log_normal(w - m, rho))
    return log_ratio


@jax.custom_vjp
def normal_kl(mean: jax.Array, rho: jax.Array, centre: ArrayLike, scale: ArrayLike) -> jax.Array:
    """Σ KL(N(μ, σ²) ‖ N(m, s²)) = Σ [ ½ (σ² + (μ − m)²)/s² − ½ − log(σ/s) ]; m and s are constants.

    The gradient is written by hand, (μ − m)/s² and (σ/s² − 1/σ) dσ/dρ: one pass over memory, where automatic
    differentiation of the terms makes several.
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


def _normal(model: Model, index: int) -> tuple[Any, Any] | None:
    """Centre and scale of a parameter's normal prior on the reals, in the parameter's shape; None for other priors."""
    if model.prior_is_callable:
        return None
    prior = base_of(jax.tree.leaves(model.prior, is_leaf=is_distribution)[index])
    return (prior.loc, prior.scale) if type(prior) is dist.Normal else None


def _layers(model: Model, noise: str, given: PyTree) -> WeightNoise:
    likelihood = model.through
    if likelihood is None or given is None:
        raise ModelError(
            f"noise={noise!r} looks inside the network, so it expects a likelihood that goes Through a predictor, as "
            "that of tr.models.neural_network does, and data with a given. Use noise='shared'."
        )
    make = {"local": local_reparameterisation, "flipout": flipout}[noise]
    return make(lambda u, x: likelihood.predictor(model.constrain(u), x), model.space.shapes, given)
