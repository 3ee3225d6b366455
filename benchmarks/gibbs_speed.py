"""What a Gibbs sweep of the built-in mixture costs beside a loop written by hand, four chains by vmap.

    python benchmarks/gibbs_speed.py [rows]

Both draw the allocations of N rows, and then the Dirichlet, normal and inverse Wishart parameters of K = 5 normals in
d = 4. The loop is what one would write in JAX for this one model. It is timed with ``jax.random.categorical``, and with
one uniform number for each row instead. The library is timed twice too: drawing θ from the model's own statistics, and
from conditionals that it finds by derivatives, as it does for a user's models.
"""

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from measuring import record

import tractable as tr
from tractable.core.model import Data
from tractable.engine import run as loop
from tractable.engine.method import Program

K, D, CHAINS, SWEEPS = 5, 4, 4, 20


def simulated(rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 3, (K, D))
    return (centres[rng.integers(K, size=rows)] + rng.normal(size=(rows, D))).astype(np.float32)


def by_hand(x: jax.Array, keys: jax.Array, one_uniform: bool) -> jax.Array:
    """Means after SWEEPS sweeps: weights ~ Dirichlet(1/K), Σ ~ IW(d, I), μ | Σ ~ N(0, Σ)."""

    def sweep(carry: tuple, key: jax.Array) -> tuple[tuple, None]:
        weights, means, roots = carry  # roots of covariances
        key_z, key_pi, key_w, key_mu, key_chi = jax.random.split(key, 5)

        def log_prob(mean: jax.Array, root: jax.Array) -> jax.Array:
            white = jax.scipy.linalg.solve_triangular(root, (x - mean).T, lower=True)
            return -0.5 * jnp.sum(white**2, 0) - jnp.sum(jnp.log(jnp.diagonal(root)))

        logits = jax.vmap(log_prob)(means, roots) + jnp.log(weights)[:, None]  # (K, n)
        if one_uniform:
            below = jnp.cumsum(jnp.exp(logits - logits.max(0)), 0)
            z = jnp.sum(below[:-1] <= jax.random.uniform(key_z, (len(x),)) * below[-1], 0)
        else:
            z = jax.random.categorical(key_z, logits, axis=0)
        share = jax.nn.one_hot(z, K, axis=0, dtype=x.dtype)
        count, first = share.sum(1), share @ x
        second = jnp.einsum("kn,ni,nj->kij", share, x, x, optimize=[(0, 1), (0, 1)])
        weights = jax.random.dirichlet(key_pi, 1 / K + count)
        beta = 1 + count
        centre = first / beta[:, None]
        scatter = jnp.eye(D) + second - beta[:, None, None] * centre[:, :, None] * centre[:, None, :]
        nu = D + count
        chi = jnp.sqrt(2 * jax.random.gamma(key_chi, (nu[:, None] - jnp.arange(D)) / 2))
        lower = jnp.tril(jax.random.normal(key_w, (K, D, D)), -1) + chi[:, :, None] * jnp.eye(D)
        half = jax.vmap(lambda s, t: jnp.linalg.cholesky(s) @ jnp.linalg.inv(t).T)(scatter, lower)
        roots = jnp.linalg.cholesky(half @ jnp.swapaxes(half, 1, 2))
        noise = jax.random.normal(key_mu, (K, D)) / jnp.sqrt(beta)[:, None]
        return (weights, centre + jnp.einsum("kij,kj->ki", roots, noise), roots), None

    def chain(key: jax.Array) -> jax.Array:
        means = x[jax.random.randint(key, (K,), 0, len(x))]
        begun = (jnp.full(K, 1 / K), means, jnp.broadcast_to(jnp.eye(D), (K, D, D)))
        return jax.lax.scan(sweep, begun, jax.random.split(key, SWEEPS))[0][1]

    return jax.vmap(chain)(keys)


def best_of(run: Callable, times: int = 5) -> float:
    """Milliseconds for each sweep, the smallest of several measurements."""
    jax.block_until_ready(run())
    found = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - began)
    return 1e3 * min(found) / SWEEPS


def library(x: np.ndarray, keys: jax.Array, method: tr.Gibbs) -> Callable:
    """A run of SWEEPS sweeps of a method's blocks, from the clusters of the rows."""
    model, data = tr.models.bayesian_gaussian_mixture(K, D), Data(x)
    program, arrays = Program(model, method.scanned(model, data)), data.arrays()
    start = model.position_of(model.conjugate.mean(model.first(jax.random.key(0), x)))
    states = loop.begin(program, {}, arrays, keys, jnp.broadcast_to(start, (CHAINS, start.size)))
    shape = loop.Shape(1, SWEEPS, 1)
    return lambda: loop.run(loop.Loop(program, shape, None), data, {}, keys, loop.Start(states), 1).states.position


def main(rows: int) -> None:
    x, keys = simulated(rows), jax.random.split(jax.random.key(1), CHAINS)
    hand, given = jax.jit(by_hand, static_argnums=2), jnp.asarray(x)
    times = {
        "by hand": best_of(lambda: hand(given, keys, False)),
        "by hand, one uniform a row": best_of(lambda: hand(given, keys, True)),
        "Gibbs": best_of(library(x, keys, tr.Gibbs())),
        "Gibbs by derivatives": best_of(library(x, keys, tr.Gibbs({"weights": "exact"}))),
    }
    for name, took in times.items():
        print(f"{name}: {took:.3g} ms a sweep of {CHAINS} chains, {took / times['by hand']:.2f} of the first")
    record(__file__, ["", "ms a sweep"], list(times.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
