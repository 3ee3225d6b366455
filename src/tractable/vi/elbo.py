"""The ELBO of a q over θ, estimated from draws of q, and the log joint that point methods climb."""

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
DECAY = 0.9  # of running statistics, per step


def elbo(
    log_joint: Callable, q: Approximation, *, samples: int = 1, gradient: str = "reparameterised",
    control: str | None = "leave-one-out", temperature: float | jax.Array = 1.0,
) -> Objective:  # fmt: skip
    """The evidence lower bound, E_q[log p(y, z)] + H[q] = log p(y) − KL(q ‖ p(z|y)).

    Args:
        log_joint: ``(z (d,), batch) -> ()``, in the sum scale (``tr.log_posterior(model, flat=True)``).
        q: the family; the objective's params are its φ.
        samples: S ≥ 1 draws of q per step.
        gradient: estimator of φ's gradient. "reparameterised": through z = z(φ, ε), with the entropy in closed form.
            "path": the same without the score of q, which has mean zero; no noise is left where q is the posterior
            (Roeder, Wu & Duvenaud 2017, eq. 8). "score": E_q[(log p − log q − b) ∇ log q], which needs only values of
            log p, no gradient (Ranganath, Gerrish & Blei 2014, eq. 3).
        control: b of the score function. None: 0; "running-mean": the mean of earlier steps; "leave-one-out": the mean
            of the step's other draws (S ≥ 2); "fitted": for each coordinate of φ the best coefficient, estimated from
            earlier steps (eq. 10).
        temperature: T; E_q[log p]/T + H[q] flattens the target at the start of a climb.

    Raises:
        SettingsError: no samples, an unknown estimator, leave-one-out with one sample.
    """
    expect("An ELBO is estimated from draws of q: samples", samples, Count)
    expect("gradient", gradient, Gradient)
    expect("control", control, Control)
    if gradient == "score" and control == "leave-one-out" and samples < 2:
        raise SettingsError("control='leave-one-out' needs samples of 2 or more: one draw leaves nothing to average.")

    def weigh(phi: PyTree, z: jax.Array, batch: Batch | None) -> jax.Array:
        return jax.vmap(lambda z: log_joint(z, batch) / temperature - q.log_prob(phi, z))(z)  # (S,)

    def value(noise: jax.Array, phi: PyTree, batch: Batch | None) -> jax.Array:
        z = _sampled(q, phi, noise)
        if gradient == "reparameterised":
            return jnp.mean(jax.vmap(lambda z: log_joint(z, batch))(z)) / temperature + q.entropy(phi)
        return jnp.mean(weigh(jax.lax.stop_gradient(phi), z, batch))

    if gradient != "score":
        return Objective(_normals(q, samples), value)

    def remember(phi: PyTree) -> PyTree:
        """The initial memory of a control variate: zero sums, and the zero weight in them."""
        if control == "running-mean":
            return (jnp.zeros((), jax.tree.leaves(phi)[0].dtype),) * 2
        return (jax.tree.map(jnp.zeros_like, phi),) * 2 if control == "fitted" else ()

    def slope(noise: jax.Array, phi: PyTree, batch: Batch | None, memory: PyTree) -> tuple:
        """(1/S) Σ_s (f_s − b) ∇ log q(z_s) with f = log p/T − log q."""
        z = jax.lax.stop_gradient(_sampled(q, phi, noise))
        signal = jax.lax.stop_gradient(weigh(phi, z, batch))  # (S,)
        bound = jnp.mean(signal)
        if control == "fitted":
            return bound, *_fitted(q, phi, z, signal, memory)
        baseline, memory = _baseline(control, signal, bound, memory)
        centred = signal - baseline
        surrogate = jax.grad(lambda phi: jnp.mean(centred * jax.vmap(lambda z: q.log_prob(phi, z))(z)))
        return bound, surrogate(phi), memory

    return Objective(_normals(q, samples), value, remember, slope)


def _normals(q: Approximation, samples: int) -> Callable:
    """The objective's ``draw``: noise for S draws of q per step."""

    def draw(key: jax.Array, count: int, phi: PyTree) -> jax.Array:
        return normal(key, (count, samples, q.noise), jax.tree.leaves(phi)[0].dtype)

    return draw


def _sampled(q: Approximation, phi: PyTree, noise: jax.Array) -> jax.Array:
    """(S, d) z of every ε."""
    return jax.vmap(lambda eps: q.sample(phi, eps))(noise)


def _baseline(control: str | None, signal: jax.Array, bound: jax.Array, memory: PyTree) -> tuple[jax.Array, PyTree]:
    """b for every draw, and the memory after this step."""
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
    """The gradient with b = E[f h²]/E[h²] from earlier steps, for each coordinate of φ, h = ∇ log q; and the memory."""
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
    """−KL(p(z|y) ‖ q), with a gradient by self-normalised importance sampling from q itself.

        ∇ = Σ_s w_s ∇ log q(z_s),   w_s ∝ p(y, z_s) / q(z_s),   Σ w_s = 1

    Its fixed point matches the posterior's moments: a mean field has the marginal variances Σᵢᵢ, where the reverse KL
    has 1/Λᵢᵢ. Biased by O(1/S), as all self-normalised weights are (Bornschein & Bengio 2015, eq. 8). The reported
    value is the S-sample bound log (1/S) Σ p(y, z_s)/q(z_s).
    """
    if samples < 2:
        raise SettingsError(f"Self-normalised weights need at least 2 samples; got {samples}.")

    def weights(noise: jax.Array, phi: PyTree, batch: Batch | None) -> tuple[jax.Array, jax.Array]:
        z = _sampled(q, phi, noise)
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
