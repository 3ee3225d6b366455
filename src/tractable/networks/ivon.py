"""Variational online Newton (IVON): the mean field of Bayes by Backprop, learnt by steps that its sds scale."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.core import tree
from tractable.core.approximations import inverse_softplus
from tractable.core.model import Batch, Kernel, Model, Objective, PyTree, batch_log_likelihood
from tractable.networks.bayes_by_backprop import SMALL, normal_prior

MOMENTUM = 0.9  # β₁, the share of earlier steps in the average of the gradients (Shen et al. 2024, appendix C)
# A Newton step whose root mean square, in sds of q, exceeds LONGEST is shortened to it: the noise of small batches
# makes such steps, and they would diverge.
LONGEST = 0.1
# σ forgets over LEAST + EPOCHS N/n steps, with the first of EPOCHS for small networks and the second for others. A
# batch estimates a precision with a relative error of at most about √(N/n), of which a tenth is left after 50 epochs;
# without batches the noise of the weights falls to a tenth over LEAST steps. Large networks predict best if σ grows
# slowly from a small one (decision 63); on MNIST 250 epochs have the authors' β₂ = 0.99999.
LEAST, EPOCHS = 100, (50, 250)
# The KL is computed once every EVERY steps, because it only shows how far the climb is, and its logarithms take as long
# as the rest of the update.
EVERY = 32


class State(NamedTuple):
    """The position of a climb, {"mean": tree, "sd": tree}, and what the next step needs."""

    position: PyTree
    slope: PyTree  # weighted average of earlier gradients of the loss
    key: jax.Array  # (2,) the data of the key of the last pair's noise, which takes no memory of the weights' size
    kl: jax.Array  # () KL(q ‖ p) over the parameters with normal priors, when it was last computed
    steps: jax.Array  # () number of steps taken


class Info(NamedTuple):
    """The trace of one step of a climb."""

    objective: jax.Array  # () noisy value of the ELBO at the position before the step


class _Part(NamedTuple):
    """One of the parameters, and what moves it in a step."""

    mean: jax.Array
    sd: jax.Array
    slope: jax.Array  # corrected average of the gradients of the loss
    cross: jax.Array  # G ε
    centre: jax.Array | float  # of a normal prior
    pull: jax.Array | float  # precision of a normal prior; 0 for other priors, which are part of the loss

    @property
    def downhill(self) -> jax.Array:
        return self.slope + self.pull * (self.mean - self.centre)


def ivon(
    model: Model, learning_rate: float | jax.Array | Callable, *, forget: float | None = None, samples: int = 1,
    target: Objective | None = None,
) -> Kernel:  # fmt: skip
    """The kernel of IVON (Shen et al. 2024, algorithm 1): q(w) = N(m, σ²), whose σ also scale the steps.

        w = m + σ ε,  G = ∇ loss(w)        loss = −log p(y, w), without its normal priors
        s ← β₁ s + (1 − β₁) G
        σ ← σ (1 − x/2 + x²/8),  x = ρ (ε σ G + Λ σ² − 1)        Λ, c: precision and centre of a normal prior, or 0
        m ← m − α σ u,  u = σ (s/(1 − β₁ᵗ) + Λ (m − c)), shortened to a root mean square of LONGEST

    The fixed point is the maximum of the ELBO over q, as for Bayes by Backprop: E[ε G/σ] is the expected curvature of
    the loss (by Stein's identity), so 1/σ² = E[∇² loss] + Λ. The authors move the precision P = 1/σ² by the factor
    1 + x + x²/2 (Lin et al. 2020). Both factors are positive, and those of eˣ and e^(−x/2) to the second order; with σ
    a step has no root and no division. Steps come in pairs with noise ε and −ε, which cancels the noise of σ that a
    constant gradient causes. Positions are {"mean": tree, "sd": tree}, with the shapes of the model's unconstrained
    parameters; a state is three times as large as the weights.

    Args:
        learning_rate: α > 0, a share of a full Newton step; or a function of the number of steps taken.
        forget: ρ = 1 − β₂ in (0, 1), the weight of one step in σ; None takes 1/(LEAST + EPOCHS N/n) for batches of
            n of N rows.
        samples: S ≥ 1 draws a step, over which G and ε G are averaged.
        target: an estimate of −loss for all rows; by default ``partial_log_joint(model)``.
    """
    target = partial_log_joint(model) if target is None else target
    epochs = EPOCHS[0] if model.space.size <= SMALL else EPOCHS[1]
    priors = [(0.0, 0.0) if prior is None else (prior[0], _precision(prior)) for prior in _priors(model)]

    def init(key: jax.Array, position: PyTree) -> State:
        slope = jax.tree.map(jnp.zeros_like, position["mean"])
        cost = jnp.zeros((), jax.tree.leaves(slope)[0].dtype)
        return State(position, slope, jax.random.key_data(key), cost, jnp.zeros((), int))

    def draw(key: jax.Array, count: int, state: State, batch: Batch | None = None) -> jax.Array:
        return jax.random.split(key, count)

    def step(key: jax.Array, state: State, batch: Batch | None) -> tuple[State, Info]:
        mean, sd = state.position["mean"], state.position["sd"]
        first = state.steps % 2 == 0
        pair = jnp.where(first, jax.random.key_data(key), state.key)
        noise = tree.normal_like(jax.random.wrap_key_data(pair, impl=jax.random.key_impl(key)), mean, samples)
        sign = jnp.where(first, 1.0, -1.0).astype(state.kl.dtype)
        value, gradient, cross = _gradients(target, state.position, noise, sign, batch)
        slope = jax.tree.map(lambda s, g: MOMENTUM * s + (1 - MOMENTUM) * g, state.slope, gradient)
        # Of all weights a product takes less time than a division.
        corrected = jax.tree.map(lambda s: s * (1 / (1 - MOMENTUM ** (state.steps + 1.0))), slope)
        leaves = zip(*map(jax.tree.leaves, (mean, sd, corrected, cross)), priors, strict=True)
        parts = [_Part(*arrays, *prior) for *arrays, prior in leaves]
        rate = learning_rate(state.steps) if callable(learning_rate) else learning_rate
        rate = rate / jnp.maximum(1, _newton_length(parts) / LONGEST)
        weight = 1 / (LEAST + epochs * (1 if batch is None else batch.scale)) if forget is None else forget
        unflatten = jax.tree.structure(mean).unflatten
        position = {
            "mean": unflatten([part.mean - rate * jnp.square(part.sd) * part.downhill for part in parts]),
            "sd": unflatten([_new_sd(part, weight) for part in parts]),
        }
        cost = jax.lax.cond(state.steps % EVERY == 0, lambda: kl(model, state.position), lambda: state.kl)
        return State(position, slope, pair, cost, state.steps + 1), Info(value - cost)

    return Kernel(init, draw, step)


def partial_log_joint(model: Model) -> Objective:
    """The objective whose value is log p(y, w), with N/n times a batch's rows, without the terms of normal priors.

    Normal priors act on the mean and the sd of q in closed form.
    """
    normal = [prior is not None for prior in _priors(model)]
    dtype = jax.tree.leaves(model.space.shapes)[0].dtype

    def value(noise: PyTree, unconstrained: PyTree, batch: Batch | None) -> jax.Array:
        params, out = model.constrain(unconstrained), jnp.zeros((), dtype)
        if model.prior_is_callable:
            out = model.log_prior(params) + model.log_jacobian(unconstrained, params)
        elif not all(normal):
            terms = model.log_priors(params, unconstrained)
            out = sum((term for term, closed in zip(terms, normal, strict=True) if not closed), out)
        return out if batch is None else out + batch.scale * batch_log_likelihood(model, params, batch)

    return Objective(lambda key, count, params: jnp.zeros((count, 0)), value)


def kl(model: Model, position: PyTree) -> jax.Array:
    """KL(q ‖ p) over parameters with normal priors, and minus the entropy of q over the others."""
    total = jnp.zeros((), jax.tree.leaves(position["mean"])[0].dtype)
    leaves = map(jax.tree.leaves, (position["mean"], position["sd"]))
    for m, sd, prior in zip(*leaves, _priors(model), strict=True):
        if prior is None:
            total -= jnp.sum(jnp.log(sd) + (math.log(2 * math.pi) + 1) / 2)
        else:
            pull = _precision(prior)
            total += jnp.sum(pull * (jnp.square(m - prior[0]) + sd**2) - 1 - jnp.log(pull * sd**2)) / 2
    return total


def phi_of(position: PyTree) -> PyTree:
    """φ of Bayes by Backprop, {"mean", "rho"}, at a position {"mean", "sd"}."""
    return {"mean": position["mean"], "rho": jax.tree.map(inverse_softplus, position["sd"])}


def _gradients(
    target: Objective, position: PyTree, noise: PyTree, sign: jax.Array, batch: Batch | None
) -> tuple[jax.Array, PyTree, PyTree]:
    """The value of −loss, its gradient G, and G ε: means over the draws at ``sign`` times ``noise``."""

    def at(noise: PyTree) -> tuple[jax.Array, PyTree, PyTree]:
        eps = jax.tree.map(lambda e: sign * e, noise)
        w = jax.tree.map(lambda m, sd, e: m + sd * e, position["mean"], position["sd"], eps)
        value, uphill = jax.value_and_grad(target.value, argnums=1)((), w, batch)
        return value, jax.tree.map(jnp.negative, uphill), jax.tree.map(lambda g, e: -g * e, uphill, eps)

    if jax.tree.leaves(noise)[0].shape[0] == 1:  # not by vmap: matrix products with an axis of length one are slower
        return at(jax.tree.map(lambda a: a[0], noise))
    return jax.tree.map(lambda a: jnp.mean(a, 0), jax.vmap(at)(noise))


def _newton_length(parts: list[_Part]) -> jax.Array:
    """The root mean square of u, a full Newton step in sds of q."""
    square = sum(jnp.sum(jnp.square(part.sd * part.downhill)) for part in parts)
    return jnp.sqrt(square / sum(part.mean.size for part in parts))


def _new_sd(part: _Part, forget: float | jax.Array) -> jax.Array:
    """σ (1 − x/2 + x²/8), where |x| is at most 1."""
    x = jnp.clip(forget * (part.cross * part.sd + part.pull * jnp.square(part.sd) - 1), -1, 1)
    return part.sd * (1 - x / 2 + x * x / 8)


def _precision(prior: tuple) -> jax.Array:
    """1/s² of a normal prior (c, s)."""
    return 1 / jnp.square(jnp.asarray(prior[1], jnp.result_type(float)))


def _priors(model: Model) -> list[tuple | None]:
    """Centre and scale of every parameter's normal prior; None for another prior."""
    return [normal_prior(model, index) for index in range(len(jax.tree.leaves(model.space.shapes)))]
