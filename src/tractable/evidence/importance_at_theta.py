"""Importance sampling of every datum's code at a given θ: a mixture of Student t around the modes of p(z|x_n, θ).

    p(x_n|θ) ≈ (1/S) Σ_s p(x_n, u_s|θ)/q_n(u_s),   q_n(u) = Σ_k ρ_k t_ν(u; û_k, Λ_k⁻¹)

û_k are the places where climbs from p(z|θ) ended, Λ_k the curvature of −log p(x_n, u|θ) there, and ρ_k the shares of
the mass that the normals around them hold (Laplace). u are flat reals whose density carries the log-determinant.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.importance import khat
from tractable.core import Data
from tractable.evidence.codes import code_of, code_spread, keys_of, rows_together
from tractable.evidence.importance import student_log_prob, student_white
from tractable.evidence.modes import LOG_2PI
from tractable.evidence.result import Watch, grade, nan_is_nothing
from tractable.evidence.settings import Importance
from tractable.kernels.gradient_em import climbed
from tractable.models.latent import LatentModel
from tractable.tools.errors import ModelError
from tractable.tools.small import cholesky, inverse

PyTree = Any
CLIMB = 40  # steps of L-BFGS to a mode
SPREAD = 32  # data, and draws of each, that the prior's sds are found from
CURVED = 100  # numbers of a code up to which its curvature is formed
APART = 0.5  # sds, in the root mean square over numbers, by which modes differ
LOOKED_AT = 100  # data whose tails are looked at: those with the fewest effective draws
HEAVY = 0.05  # of them may have heavy tails by chance
MASS = 20.0  # nats of the likeliest mode's mass below which a mode is none


class Around(NamedTuple):
    """What a datum's draws are taken from; K climbs, of which some are left out."""

    mean: jax.Array  # (K, d) û_k
    factor: jax.Array  # (K, d, d) L of Λ_k = L Lᵀ
    share: jax.Array  # (K,) ρ_k, 0 of those left out
    modes: jax.Array  # () distinct places with a curvature; 0 where there is none, and the prior's sds stand in


def importance_of_codes(
    model: LatentModel, data: Data, key: jax.Array, settings: Importance, theta: PyTree, watch: Watch
) -> tuple[np.ndarray, list[Check]]:
    """(N, S) log weights of every datum, and what q and the weights' tails look like.

    Raises:
        ModelError: codes of more than 100 numbers.
    """
    rows = data.arrays()
    few = jax.tree.map(lambda a: a[np.linspace(0, data.size - 1, min(data.size, SPREAD)).astype(int)], rows)
    spread = code_spread(model, SPREAD, theta, few, jax.random.fold_in(key, 0))
    size = len(spread)
    if size > CURVED:
        raise ModelError(
            f"The curvature of a code of {size} numbers is not formed, at most {CURVED}; use method='annealed'."
        )
    watch.go("modes")
    together = rows_together(data, settings.starts * size)
    around = _around(model, settings.starts, together, theta, rows, spread, jax.random.fold_in(key, 1))
    watch.go("draws")
    together = rows_together(data, settings.draws * settings.starts)
    degrees = jnp.asarray(float(settings.degrees), spread.dtype)
    key = jax.random.fold_in(key, 2)
    log_weights = nan_is_nothing(_weights(model, settings.draws, together, theta, rows, around, degrees, key))
    watch.say("draws", 1, 1)
    return log_weights, [_tail_check(log_weights), _mode_check(np.asarray(around.modes))]


def _tail_check(log_weights: np.ndarray) -> Check:
    size, draws = log_weights.shape
    weights = np.exp(log_weights - log_weights.max(1, keepdims=True))
    few = np.argsort(weights.sum(1) ** 2 / np.sum(weights**2, axis=1))[:LOOKED_AT]
    finite = np.where(np.isfinite(log_weights[few]), log_weights[few], np.nan)
    tails = np.array([khat(np.nan_to_num(row, nan=float(np.nanmin(row)))) for row in finite if np.isfinite(row).any()])
    threshold = min(1 - 1 / np.log10(draws), 0.7)
    heavy = float(np.mean(tails > threshold)) if len(tails) else 1.0  # of so many estimates the largest says little
    said = f"share of data whose weights have a k-hat above {threshold:.2g}, among {len(few)} of {size}"
    return Check("heavy tails", heavy, grade(heavy, HEAVY, np.inf), said)


def _mode_check(modes: np.ndarray) -> Check:
    several, none = int(np.sum(modes > 1)), int(np.sum(modes == 0))
    said = f"most places that a datum's climbs ended at; {several} of {len(modes)} data have several"
    said += f", {none} none with a curvature" if none else ""
    return Check("modes", int(modes.max()), "caution" if several or none else "trust", said)


@functools.partial(jax.jit, static_argnames=("model", "starts", "together"))
def _around(
    model: LatentModel, starts: int, together: int, params: PyTree, rows: PyTree, spread: jax.Array, key: jax.Array
) -> Around:
    """Every datum's, leading axis N; climbs are in units of the prior's sds."""
    size = len(spread)

    def one(both: tuple[jax.Array, PyTree]) -> Around:
        code = code_of(model, params, both[1])

        def target(v: jax.Array) -> jax.Array:
            return code.log_base(spread * v) + code.log_ratio(spread * v)

        def climb(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            begin = code.flat(code.sample(key)) / spread
            end = climbed(target, begin, CLIMB)
            factor = cholesky(-jax.hessian(target)(end))
            return end, target(end), factor

        ends, values, factors = jax.vmap(climb)(jax.random.split(both[0], starts))  # (K, d), (K,), (K, d, d)
        mass = values + size * LOG_2PI / 2 - jnp.sum(jnp.log(jnp.diagonal(factors, axis1=1, axis2=2)), 1)
        mass = jnp.where(jnp.isfinite(mass) & jnp.all(jnp.isfinite(ends), axis=1), mass, -jnp.inf)
        off = jnp.einsum("kji,klj->kli", factors, ends[None] - ends[:, None])  # (k, l, d): l from k, in sds of k
        near = jnp.sum(jnp.square(off), 2) < APART**2 * size
        earlier = jnp.tril(jnp.ones((starts, starts), bool), -1).T  # k before l
        found = jnp.isfinite(mass) & (mass >= jnp.max(mass) - MASS)
        kept = found & ~jnp.any(near & earlier & found[:, None], axis=0)
        modes = jnp.sum(kept)
        # Without a curvature anywhere q is as wide as the prior, about the highest end.
        alone = jnp.arange(starts) == jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
        share = jnp.where(modes > 0, jax.nn.softmax(jnp.where(kept, mass, -jnp.inf)), alone.astype(mass.dtype))
        factors = jnp.where((kept & (modes > 0))[:, None, None], factors, jnp.eye(size, dtype=factors.dtype))
        return Around(jnp.where(jnp.isfinite(ends), ends, 0) * spread, factors / spread[:, None], share, modes)

    return jax.lax.map(one, (keys_of(key, rows), rows), batch_size=together)


@functools.partial(jax.jit, static_argnames=("model", "draws", "together"))
def _weights(
    model: LatentModel, draws: int, together: int, params: PyTree, rows: PyTree, around: Around, degrees: jax.Array,
    key: jax.Array,
) -> jax.Array:  # fmt: skip
    """(N, draws) log p(x_n, u|θ) − log q_n(u)."""

    def one(each: tuple[jax.Array, PyTree, Around]) -> jax.Array:
        code, (mean, factor, share, _) = code_of(model, params, each[1]), each[2]
        roots = jnp.swapaxes(inverse(factor), 1, 2)  # R of Λ⁻¹ = R Rᵀ

        def draw(key: jax.Array) -> jax.Array:
            which, key = jax.random.split(key)
            k = jax.random.categorical(which, jnp.log(share))
            u = mean[k] + roots[k] @ student_white(key, mean.shape[1], degrees)
            white = jnp.einsum("kji,kj->ki", factor, u[None] - mean)
            volumes = -jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), 1)
            terms = jax.vmap(student_log_prob, (0, 0, None))(white, volumes, degrees)
            return code.log_base(u) + code.log_ratio(u) - jax.nn.logsumexp(terms, b=share)

        return jax.vmap(draw)(jax.random.split(each[0], draws))

    return jax.lax.map(one, (keys_of(key, rows), rows, around), batch_size=together)
