"""The ELBO (evidence lower bound) of q, estimated from draws of q, and the objective of the inclusive KL divergence."""

from collections.abc import Callable
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from tractable.core.approximations import Approximation
from tractable.core.errors import SettingsError
from tractable.core.model import Batch, Objective, PyTree
from tractable.core.noise import normal
from tractable.core.settings import Count, expect

Gradient = Literal["reparameterised", "path", "score"]
Control = Literal[None, "running-mean", "leave-one-out", "fitted"]
CONTROLS = get_args(Control)
DECAY = 0.9  # factor by which earlier steps lose weight in running statistics, per step


def elbo(
    log_joint: Callable, q: Approximation, *, samples: int = 1, gradient: str = "reparameterised",
    control: str | None = "leave-one-out", temperature: float | jax.Array = 1.0,
) -> Objective:  # fmt: skip
    """The evidence lower bound, E_q[log p(y, z)] + H[q] = log p(y) − KL(q ‖ p(z|y)).

    Args:
        log_joint: ``(z (d,), batch) -> ()``, the log joint density of z and all rows, which the batch may estimate
            (``tr.log_posterior(model, flat=True)``).
        q: the family; the objective's params are its parameters φ.
        samples: S ≥ 1 draws of q per step.
        gradient: estimator of the gradient in φ. "reparameterised": through z = z(φ, ε), with the entropy in closed
            form. "path": the same without the score of q, which has mean zero; the gradient has no noise if q is the
            posterior (Roeder, Wu & Duvenaud 2017, eq. 8). "score": E_q[(log p − log q − b) ∇ log q], which needs values
            of log p but no gradient of it (Ranganath, Gerrish & Blei 2014, eq. 3).
        control: the baseline b of the score function. None: 0; "running-mean": the mean of earlier steps;
            "leave-one-out": the mean of the step's other draws (S ≥ 2); "fitted": for each coordinate of φ the best
            coefficient, estimated from earlier steps (eq. 10).
        temperature: T; the objective is E_q[log p]/T + H[q]. T > 1 flattens the target at the start of a climb.

    Raises:
        SettingsError: there are no samples, the estimator is unknown, or "leave-one-out" has only one sample.
    """
    expect("An ELBO is estimated from draws of q: samples", samples, Count)
    expect("gradient", gradient, Gradient)
    expect("control", control, Control)
    if gradient == "score" and control == "leave-one-out" and samples < 2:
        raise SettingsError("control='leave-one-out' averages the other draws, so it needs 2 samples or more; got 1.")

    def weigh(phi: PyTree, z: jax.Array, batch: Batch | None) -> jax.Array:
        return jax.vmap(lambda z: log_joint(z, batch) / temperature - q.log_prob(phi, z))(z)  # (S,)

    def value(noise: jax.Array, phi: PyTree, batch: Batch | None) -> jax.Array:
        z = _sample(q, phi, noise)
        if gradient == "reparameterised":
            return jnp.mean(jax.vmap(lambda z: log_joint(z, batch))(z)) / temperature + q.entropy(phi)
        return jnp.mean(weigh(jax.lax.stop_gradient(phi), z, batch))

    if gradient != "score":
        return Objective(_normals(q, samples), value)

    def remember(phi: PyTree) -> PyTree:
        """The initial memory of a control variate: sums that are 0, and their weights, which are 0."""
        if control == "running-mean":
            return (jnp.zeros((), jax.tree.leaves(phi)[0].dtype),) * 2
        return (jax.tree.map(jnp.zeros_like, phi),) * 2 if control == "fitted" else ()

    def slope(noise: jax.Array, phi: PyTree, batch: Batch | None, memory: PyTree) -> tuple:
        """The gradient (1/S) Σ_s (f_s − b) ∇ log q(z_s) with f = log p/T − log q."""
        z = jax.lax.stop_gradient(_sample(q, phi, noise))
        signal = jax.lax.stop_gradient(weigh(phi, z, batch))  # (S,)
        bound = jnp.mean(signal)
        if control == "fitted":
            return bound, *_fitted_gradient(q, phi, z, signal, memory)
        baseline, memory = _baseline(control, signal, bound, memory)
        centred = signal - baseline
        surrogate = jax.grad(lambda phi: jnp.mean(centred * jax.vmap(lambda z: q.log_prob(phi, z))(z)))
        return bound, surrogate(phi), memory

    return Objective(_normals(q, samples), value, remember, slope)


def _normals(q: Approximation, samples: int) -> Callable:
    """The objective's function ``draw``, which makes the noise for S draws of q per step."""

    def draw(key: jax.Array, count: int, phi: PyTree) -> jax.Array:
        return normal(key, (count, samples, q.noise), jax.tree.leaves(phi)[0].dtype)

    return draw


def _sample(q: Approximation, phi: PyTree, noise: jax.Array) -> jax.Array:
    """(S, d) draws z of q, one for each noise ε."""
    return jax.vmap(lambda eps: q.sample(phi, eps))(noise)


def _baseline(control: str | None, signal: jax.Array, bound: jax.Array, memory: PyTree) -> tuple[jax.Array, PyTree]:
    """The baseline b for every draw, and the memory after this step."""
    if control == "leave-one-out":
        return (jnp.sum(signal) - signal) / (len(signal) - 1), memory
    if control == "running-mean":
        total, weight = memory
        after = DECAY * total + (1 - DECAY) * bound, DECAY * weight + (1 - DECAY)
        return total / jnp.where(weight > 0, weight, 1), after
    return jnp.zeros_like(bound), memory


def _fitted_gradient(
    q: Approximation, phi: PyTree, z: jax.Array, signal: jax.Array, memory: PyTree
) -> tuple[PyTree, tuple[PyTree, PyTree]]:
    """The gradient with baselines b = E[f h²]/E[h²] from earlier steps, one for each coordinate of φ; and the memory.

    Here h = ∇ log q is the score.
    """
    scores = jax.vmap(lambda z: jax.grad(q.log_prob)(phi, z))(z)  # a pytree like φ, with leading axis (S,)
    cross, square = memory
    best = jax.tree.map(lambda c, s: c / jnp.where(s > 0, s, 1), cross, square)

    def average(score: jax.Array, b: jax.Array) -> jax.Array:
        centred = signal.reshape(-1, *[1] * b.ndim) - b
        return jnp.mean(centred * score, 0)

    def mean_square(weights: jax.Array) -> PyTree:
        return jax.tree.map(lambda h: jnp.tensordot(weights, jnp.square(h), 1) / len(signal), scores)

    current = mean_square(signal), mean_square(jnp.ones_like(signal))
    memory = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, memory, current)
    return jax.tree.map(average, scores, best), memory


def inclusive(log_joint: Callable, q: Approximation, *, samples: int = 100) -> Objective:
    """The objective −KL(p(z|y) ‖ q), whose gradient is estimated by self-normalised importance sampling from q.

        ∇ = Σ_s w_s ∇ log q(z_s),   w_s ∝ p(y, z_s) / q(z_s),   Σ w_s = 1

    At its maximum q has the posterior's moments. So a mean field has the marginal variances Σᵢᵢ; with the reverse KL it
    would have 1/Λᵢᵢ, Λ = Σ⁻¹. The gradient is biased by O(1/S), as all self-normalised estimates are (Bornschein &
    Bengio 2015, eq. 8). The reported value is the S-sample bound log (1/S) Σ p(y, z_s)/q(z_s).
    """
    if samples < 2:
        raise SettingsError(f"Self-normalised weights need at least 2 samples; got {samples}.")

    def weights(noise: jax.Array, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
        z = _sample(q, phi, noise)
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
