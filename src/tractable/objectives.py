"""Objectives: ``value(noise, params, batch) -> scalar`` whose gradient is an unbiased uphill direction.

Up is better: these are log densities and bounds, never losses.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from tractable.approximations import Approximation, log_normal, log_softplus, softplus, softplus_rate
from tractable.core import Batch, Model, Through, is_distribution, log_posterior
from tractable.tools import tree
from tractable.tools.counts import is_count
from tractable.tools.errors import ModelError, SettingsError
from tractable.tools.noise import normal
from tractable.weight_noise import Noise, WeightNoise, flipout, local_reparameterisation

PyTree = Any
CONTROLS = (None, "running-mean", "leave-one-out", "fitted")
DECAY = 0.9  # of running statistics, a step


class Objective(NamedTuple):
    """What ``ascend`` climbs.

    Attributes:
        draw: ``(key, count, params) -> noise`` with a leading axis of ``count``.
        value: ``(noise, params, batch) -> ()``.
        remember: ``params -> memory`` an estimator begins with; None where it has none.
        slope: ``(noise, params, batch, memory) -> (value, gradient, memory)``, where the gradient is not the value's
            own; memory holds statistics of *earlier* steps, which keeps the estimate unbiased.
    """

    draw: Callable
    value: Callable
    remember: Callable = lambda params: ()
    slope: Callable | None = None


def log_joint(model: Model, *, prior: bool = True, flat: bool = False) -> Objective:
    """N/n Σ log p(y|θ) (+ log p(θ)): maximum likelihood, or a posteriori with the prior.

    The density is of the *user's* parameters, so the maximum is where they would look for it: it does not move
    with the parametrisation, and carries no log-determinant.
    """
    posterior = log_posterior(model, flat=flat, jacobian=False)

    def value(noise: Any, params: PyTree, batch: Batch | None) -> jax.Array:
        del noise
        if prior or batch is None:
            return posterior(params, batch)
        theta = model.constrain(model.space.unravel(params) if flat else params)
        terms = model.log_likelihoods(theta, batch.data)
        return batch.scale * jnp.sum(jnp.where(batch.mask > 0, terms, 0.0))

    return Objective(lambda key, count, params: jnp.zeros((count, 0)), value)


def elbo(
    log_joint: Callable,
    q: Approximation,
    *,
    samples: int = 1,
    gradient: str = "reparameterised",
    control: str | None = "leave-one-out",
    temperature: float | jax.Array = 1.0,
) -> Objective:
    """The evidence lower bound, E_q[log p(y, z)] + H[q] = log p(y) − KL(q ‖ p(z|y)).

    Args:
        log_joint: ``(z (d,), batch) -> ()``, in the sum scale (``tr.log_posterior(model, flat=True)``).
        q: the family; the objective's params are its φ.
        samples: S ≥ 1 draws of q a step.
        gradient: how φ's gradient is estimated.
            "reparameterised": through z = z(φ, ε), the entropy in closed form.
            "path": without the score of q, which has mean zero; no noise is left where q is the posterior
            (Roeder, Wu & Duvenaud 2017, eq. 8).
            "score": E_q[(log p − log q − b) ∇ log q], which asks nothing of log p but its value
            (Ranganath, Gerrish & Blei 2014, eq. 3).
        control: b of the score function.
            None; "running-mean": of earlier steps; "leave-one-out": the mean of the step's other draws (S ≥ 2);
            "fitted": for each number of φ the coefficient that earlier steps say is best (eq. 10).
        temperature: T; E_q[log p]/T + H[q] flattens the target while a climb begins.

    Raises:
        SettingsError: no samples, an unknown estimator, leave-one-out of one sample.
    """
    _check(samples, gradient, control)

    def weigh(phi: PyTree, z: jax.Array, batch: Batch | None) -> jax.Array:
        return jax.vmap(lambda z: log_joint(z, batch) / temperature - q.log_prob(phi, z))(z)  # (S,)

    def value(noise: jax.Array, phi: PyTree, batch: Batch | None) -> jax.Array:
        z = jax.vmap(lambda eps: q.sample(phi, eps))(noise)
        if gradient == "reparameterised":
            return jnp.mean(jax.vmap(lambda z: log_joint(z, batch))(z)) / temperature + q.entropy(phi)
        return jnp.mean(weigh(jax.lax.stop_gradient(phi), z, batch))

    if gradient != "score":
        return Objective(_normals(q, samples), value)
    return Objective(_normals(q, samples), value, _remember(control), _score_slope(weigh, q, control))


def _normals(q: Approximation, samples: int) -> Callable:
    """The ``draw`` of S draws of q a step."""

    def draw(key: jax.Array, count: int, phi: PyTree) -> jax.Array:
        return normal(key, (count, samples, q.noise), jax.tree.leaves(phi)[0].dtype)

    return draw


def _remember(control: str | None) -> Callable:
    """What a control variate begins with: sums, and how much weight they hold."""

    def remember(phi: PyTree) -> PyTree:
        zero = jnp.zeros((), jax.tree.leaves(phi)[0].dtype)
        if control == "running-mean":
            return zero, zero
        if control == "fitted":
            nothing = jax.tree.map(jnp.zeros_like, phi)
            return nothing, nothing
        return ()

    return remember


def _score_slope(weigh: Callable, q: Approximation, control: str | None) -> Callable:
    """The ``slope`` of the score function, (1/S) Σ_s (f_s − b) ∇ log q(z_s) with f = log p/T − log q."""

    def slope(noise: jax.Array, phi: PyTree, batch: Batch | None, memory: PyTree) -> tuple:
        z = jax.lax.stop_gradient(jax.vmap(lambda eps: q.sample(phi, eps))(noise))
        signal = jax.lax.stop_gradient(weigh(phi, z, batch))  # (S,)
        bound = jnp.mean(signal)
        if control == "fitted":
            return bound, *_fitted(q, phi, z, signal, memory)
        baseline, memory = _baseline(control, signal, bound, memory)
        centred = signal - baseline

        def surrogate(phi: PyTree) -> jax.Array:
            return jnp.mean(centred * jax.vmap(lambda z: q.log_prob(phi, z))(z))

        return bound, jax.grad(surrogate)(phi), memory

    return slope


def _baseline(control: str | None, signal: jax.Array, bound: jax.Array, memory: PyTree) -> tuple[jax.Array, PyTree]:
    """b of every draw, and the memory after this step."""
    if control == "leave-one-out":
        return (jnp.sum(signal) - signal) / (len(signal) - 1), memory
    if control == "running-mean":
        total, weight = memory
        after = DECAY * total + (1 - DECAY) * bound, DECAY * weight + (1 - DECAY)
        return total / jnp.where(weight > 0, weight, 1), after
    return jnp.zeros_like(bound), memory


def _fitted(
    q: Approximation, phi: PyTree, z: jax.Array, signal: jax.Array, memory: PyTree
) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """The gradient with b = E[f h²]/E[h²] of earlier steps for each number of φ, h = ∇ log q; and the memory."""
    scores = jax.vmap(lambda z: jax.grad(q.log_prob)(phi, z))(z)  # φ-shaped, each (S, ...)
    cross, square = memory
    best = jax.tree.map(lambda c, s: c / jnp.where(s > 0, s, 1), cross, square)

    def average(score: jax.Array, b: jax.Array) -> jax.Array:
        centred = signal.reshape(-1, *[1] * b.ndim) - b
        return jnp.mean(centred * score, 0)

    def second(weights: jax.Array) -> PyTree:
        return jax.tree.map(lambda h: jnp.tensordot(weights, jnp.square(h), 1) / len(signal), scores)

    seen = second(signal), second(jnp.ones_like(signal))
    memory = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, memory, seen)
    return jax.tree.map(average, scores, best), memory


def inclusive(log_joint: Callable, q: Approximation, *, samples: int = 100) -> Objective:
    """−KL(p(z|y) ‖ q), climbed by self-normalised importance sampling from q itself.

        ∇ = Σ_s w_s ∇ log q(z_s),   w_s ∝ p(y, z_s) / q(z_s),   Σ w_s = 1

    Its fixed point matches the posterior's moments: a mean field has the marginal variances Σᵢᵢ, where the reverse KL
    has 1/Λᵢᵢ. Biased by O(1/S) as all self-normalised weights (Bornschein & Bengio 2015, eq. 8). The value reported is
    the S-sample bound log (1/S) Σ p(y, z_s)/q(z_s).
    """
    if samples < 2:
        raise SettingsError(f"Self-normalised weights need at least 2 samples; got {samples}.")

    def weights(noise: jax.Array, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
        z = jax.vmap(lambda eps: q.sample(phi, eps))(noise)
        return z, jax.vmap(lambda z: log_joint(z, batch) - q.log_prob(phi, z))(z)

    def value(noise: jax.Array, phi: PyTree, batch: Batch | None) -> jax.Array:
        return jax.nn.logsumexp(weights(noise, phi, batch)[1]) - jnp.log(samples)

    def slope(noise: jax.Array, phi: PyTree, batch: Batch | None, memory: PyTree) -> tuple:
        z, log_weights = jax.lax.stop_gradient(weights(noise, phi, batch))
        share = jax.nn.softmax(log_weights)

        def surrogate(phi: PyTree) -> jax.Array:
            return jnp.sum(share * jax.vmap(lambda z: q.log_prob(phi, z))(z))

        return jax.nn.logsumexp(log_weights) - jnp.log(samples), jax.grad(surrogate)(phi), memory

    return Objective(_normals(q, samples), value, slope=slope)


def _check(samples: int, gradient: str, control: str | None) -> None:
    if not is_count(samples):
        raise SettingsError(f"An ELBO is estimated from draws of q: samples expects a whole number ≥ 1; got {samples}.")
    if gradient not in ("reparameterised", "path", "score"):
        raise SettingsError(f"gradient is 'reparameterised', 'path' or 'score'; got {gradient!r}.")
    if control not in CONTROLS:
        raise SettingsError(f"control is one of {', '.join(map(repr, CONTROLS))}; got {control!r}.")
    if gradient == "score" and control == "leave-one-out" and samples < 2:
        raise SettingsError("control='leave-one-out' needs samples of 2 or more: one draw leaves nothing to average.")


def kl_weight(weights: str, batch: Batch | None) -> Any:
    """π_i, the share of the complexity cost that a batch bears; Σ_i π_i = 1 over an epoch.

    "uniform": 1/M. "geometric": 2^{M−i}/(2^M − 1) = 2^{−i}/(1 − 2^{−M}), i = 1..M in the order visited (Blundell et
    al. 2015, section 3.4), in which form nothing overflows.
    """
    if batch is None:
        return 1.0
    if weights == "uniform":
        return 1.0 / batch.count
    return jnp.exp2(-(jnp.asarray(batch.index, jnp.result_type(float)) + 1)) / -math.expm1(-batch.count * math.log(2))


def bayes_by_backprop(
    model: Model,
    *,
    samples: int = 1,
    kl_weights: str = "uniform",
    noise: str = "shared",
    size: int = 1,
    given: Any = None,
) -> Objective:
    """Minus the compression cost of Blundell et al. 2015, for any model: q(w) = N(μ, σ²), σ = softplus(ρ).

        −F_i = (1/S) Σ_s [ Σ_{n in batch i} log p(y_n|w_s) − π_i (log q(w_s) − log p(w_s)) ]   (eq. 8; a sum over rows)

    in the sum scale, M times that, so that the values of an epoch average to −F exactly, whatever the batches' sizes
    and π. Where a parameter's prior is normal, its cost is the closed-form KL; elsewhere, under a scale mixture, the
    draw's own, with the direct terms through log q kept.

    Args:
        model: its parameters are {"mean": tree, "rho": tree} here, shaped like the unconstrained ones.
        samples: S ≥ 1 draws a step.
        kl_weights: "uniform" or "geometric".
        noise: "shared", one draw for the batch; "local", the local reparameterisation, and "flipout", which decorrelate
            its rows (``tractable.weight_noise``) and need a likelihood that goes ``Through`` a predictor.
        size: rows of the largest batch, for the noise of "local" and "flipout".
        given: one row of inputs (shapes suffice), likewise.
    """
    if not is_count(samples):
        raise SettingsError(f"samples expects a whole number ≥ 1; got {samples}.")
    fixed = _fixed(model, noise, given)

    def draw(key: jax.Array, count: int, phi: PyTree) -> PyTree:
        drawn = _noise(fixed, key, count * samples, size)
        return jax.tree.map(lambda a: a.reshape(count, samples, *a.shape[1:]), drawn)

    def value(noise: PyTree, phi: PyTree, batch: Batch | None) -> jax.Array:
        if samples == 1:  # a batch axis of one is not free: its products take a slower way
            likelihood, log_ratio = _once(fixed, jax.tree.map(lambda a: a[0], noise), phi, batch)
        else:
            likelihood, log_ratio = jax.vmap(lambda noise: _once(fixed, noise, phi, batch))(noise)
        cost = -jnp.mean(log_ratio)
        for leaf, m, rho in zip(fixed.leaves, *map(jax.tree.leaves, (phi["mean"], phi["rho"])), strict=True):
            if leaf.normal is not None:
                cost = cost + normal_kl(m, rho, *leaf.normal)
        count = 1 if batch is None else batch.count
        return count * (jnp.mean(likelihood) - kl_weight(kl_weights, batch) * cost)

    return Objective(draw, value)


class _Leaf(NamedTuple):
    """One of a model's parameters under Bayes by Backprop."""

    name: str
    like: jax.ShapeDtypeStruct
    normal: tuple[Any, Any] | None  # centre and scale of a normal prior, whose cost is in closed form
    inside: bool  # examples do not share its noise, so that it has one value only within the predictor
    source: str  # of its ε: "own", "layers"; "none" where neither the cost nor the likelihood sees a draw


class _Fixed(NamedTuple):
    """What stays the same at every step of Bayes by Backprop."""

    model: Model
    leaves: list[_Leaf]
    structure: Any  # of the parameters
    layered: WeightNoise | None  # of "local" and "flipout"


def _fixed(model: Model, noise: str, given: Any) -> _Fixed:
    shapes = model.space.shapes
    layered = None if noise == "shared" else _layers(model, noise, shapes, given)
    inner = () if layered is None else layered.transformed

    def leaf(index: int, path: Any, like: Any) -> _Leaf:
        name, normal = tree.path_name(path), _normal(model, index)
        inside, source = name in inner, "own"
        if layered is not None and not (inside and normal is None):
            source = "none" if inside else "layers"
        return _Leaf(name, like, normal, inside, source)

    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    return _Fixed(model, [leaf(i, *each) for i, each in enumerate(paths)], structure, layered)


def _noise(fixed: _Fixed, key: jax.Array, count: int, size: int) -> PyTree:
    """``count`` draws of (ε by name of leaf, noise of the layers)."""
    own = {leaf.name: jnp.zeros(leaf.like.shape, leaf.like.dtype) for leaf in fixed.leaves if leaf.source == "own"}
    key, layer_key = jax.random.split(key)
    mine = tree.normal_like(key, own, count) if own else {}
    theirs = () if fixed.layered is None else fixed.layered.draw(layer_key, count, size)
    return mine, theirs


def _once(fixed: _Fixed, noise: PyTree, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
    """Of one draw: log likelihood of the batch, and the Monte-Carlo part of log p − log q."""
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
        params = fixed.model.constrain(jax.tree.unflatten(fixed.structure, drawn))
        terms = fixed.model.log_likelihoods(params, batch.data)
    else:
        terms = _layered_terms(fixed, theirs, phi["mean"], sds, drawn, batch)
    return jnp.sum(jnp.where(batch.mask > 0, terms, 0.0)), log_ratio


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


def _layered_terms(fixed: _Fixed, noise: Noise, mean: PyTree, sds: list, drawn: list, batch: Batch) -> jax.Array:
    """log p(y_n|·) of every row, (n,), whose examples do not share the noise of the layers."""
    likelihood: Any = fixed.model.likelihood
    layered: Any = fixed.layered
    y, x = batch.data
    n = batch.mask.shape[0]
    cut = noise._replace(
        example=jax.tree.map(lambda a: a[:n], noise.example), signs=jax.tree.map(lambda a: a[:n], noise.signs)
    )
    eta = layered.call(cut, mean, jax.tree.unflatten(fixed.structure, sds), x)
    # What the predictor alone may see is not a number elsewhere.
    shown = [jnp.full_like(w, jnp.nan) if leaf.inside else w for leaf, w in zip(fixed.leaves, drawn, strict=True)]
    seen = fixed.model.constrain(jax.tree.unflatten(fixed.structure, shown))
    return jax.vmap(lambda e, y: _log_prob(likelihood.observe(seen, e), y))(eta, y)


@jax.custom_vjp
def normal_kl(mean: jax.Array, rho: jax.Array, centre: Any, scale: Any) -> jax.Array:
    """Σ KL(N(μ, σ²) ‖ N(m, s²)) = Σ [ ½ (σ² + (μ − m)²)/s² − ½ − log(σ/s) ]; m and s are taken as fixed.

    Its gradient is written out, (μ − m)/s² and (σ/s² − 1/σ) dσ/dρ: one pass over memory, where the derivative of every
    term makes several.
    """
    sd = softplus(rho)
    square = (jnp.square(sd) + jnp.square(mean - centre)) / (2 * jnp.square(scale))
    return jnp.sum(square - 0.5 - log_softplus(rho) + jnp.log(scale))


def _kl_forward(mean: jax.Array, rho: jax.Array, centre: Any, scale: Any) -> tuple[jax.Array, tuple]:
    return normal_kl(mean, rho, centre, scale), (mean, rho, centre, scale)


def _kl_backward(kept: tuple, cotangent: jax.Array) -> tuple:
    mean, rho, centre, scale = kept
    sd, rate = softplus(rho), softplus_rate(rho)
    inverse = 1 / jnp.square(jnp.asarray(scale, rho.dtype))
    relative = jnp.where(rho < -15, 1.0, rate / jnp.where(rho < -15, 1.0, sd))  # dlog σ/dρ
    along = cotangent * (mean - centre) * inverse, cotangent * (sd * rate * inverse - relative)
    return *along, jnp.zeros_like(jnp.asarray(centre)), jnp.zeros_like(jnp.asarray(scale))


normal_kl.defvjp(_kl_forward, _kl_backward)


def _normal(model: Model, index: int) -> tuple[Any, Any] | None:
    """Centre and scale of a parameter's normal prior on the reals, shaped for it; None for others."""
    if model.prior_is_callable:
        return None
    prior = jax.tree.leaves(model.prior, is_leaf=is_distribution)[index]
    while isinstance(prior, dist.Independent | dist.ExpandedDistribution):
        prior = prior.base_dist
    return (prior.loc, prior.scale) if type(prior) is dist.Normal else None


def _layers(model: Model, noise: str, shapes: PyTree, given: Any) -> WeightNoise:
    likelihood = model.likelihood
    if not isinstance(likelihood, Through) or given is None:
        raise ModelError(
            f"noise={noise!r} looks inside the network, so it expects a likelihood that goes Through a predictor, as "
            "that of tr.models.neural_network does, and data with a given. Use noise='shared'."
        )
    make = {"local": local_reparameterisation, "flipout": flipout}[noise]
    return make(lambda u, x: likelihood.predictor(model.constrain(u), x), shapes, given)


def _log_prob(distribution: PyTree, y: PyTree) -> jax.Array:
    return tree.total(jax.tree.map(lambda d, v: d.log_prob(v), distribution, y, is_leaf=is_distribution))
