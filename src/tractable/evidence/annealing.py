"""The way from a base to the posterior by temperatures: how it is chosen, the runs along it and back.

    from p(θ), or a normal around the modes, to p(θ|y)

Whatever adapts (temperatures, step sizes, covariances) does so in a pilot on particles of its own. It is fixed before
any weight is made: weights of chains that adapt as they go are no longer unbiased. Neal 2001; Del Moral, Doucet & Jasra
2006 (the pilot); Grosse, Ghahramani & Adams 2015 (backwards).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Data, Kernel, Model, counted_log_likelihoods, log_density
from tractable.evidence.modes import LOG_2PI, Normal
from tractable.evidence.result import Watch, any_possible, nan_is_nothing
from tractable.evidence.settings import Annealing
from tractable.kernels.annealed import annealed, next_beta, shares
from tractable.kernels.mala import mala
from tractable.kernels.random_walk import random_walk
from tractable.methods.metropolis import DENSE
from tractable.results.posterior import Posterior
from tractable.tools.errors import RunError

PyTree = Any
HELD = 1 << 24  # numbers, rows times draws, that are held at once
STAGES = 500  # of a pilot, at most
ROUNDS = 4  # of step adaptation at a stage of the pilot
MOVES = 5  # transitions in each
LADDER = (200, 10_000)  # temperatures that are chosen, at least and at most
AIMED = {"mala": 0.574, "random-walk": 0.3}  # acceptance


def draw(model: Model, base: Normal | None, key: jax.Array) -> jax.Array:
    """A flat unconstrained draw of the prior, or of the base."""
    if base is None:
        return model.space.ravel(model.unconstrain(model.sample_prior(key))).astype(jnp.result_type(float))
    return base.mean + base.root @ jax.random.normal(key, base.mean.shape, base.mean.dtype)


def bridge(model: Model, rows: PyTree, base: Normal | None) -> tuple[Callable, Callable]:
    """(log p₀, r) over flat unconstrained positions."""
    if base is None:

        def log_ratio(z: jax.Array) -> jax.Array:
            return log_likelihood(model, rows, model.constrain(model.space.unravel(z)))

        return log_density(model, None, flat=True), log_ratio
    target = log_density(model, rows, flat=True)

    def log_base(z: jax.Array) -> jax.Array:
        white = jax.scipy.linalg.solve_triangular(base.root, z - base.mean, lower=True)
        return -jnp.sum(jnp.square(white)) / 2 - jnp.sum(jnp.log(jnp.diag(base.root))) - len(base.mean) * LOG_2PI / 2

    return log_base, lambda z: target(z) - log_base(z)


def log_likelihood(model: Model, rows: PyTree, params: PyTree) -> jax.Array:
    """Σ_n w_n log p(y_n|θ); 0 without data."""
    if rows is None:
        return jnp.zeros((), jnp.result_type(float))
    return jnp.sum(counted_log_likelihoods(model, params, rows))


def rows_of(data: Data | None) -> PyTree:
    """All rows on the device; None of a model without data."""
    return None if data is None else data.arrays()


def together_of(model: Model, data: Data | None, count: int) -> int:
    """Draws that are worked on at once, so that memory stays bounded."""
    rows = 1 if data is None else sum(max(1, int(np.prod(leaf.shape))) for leaf in jax.tree.leaves(data.rows))
    return int(min(count, 1024, max(1, HELD // (rows + model.space.size))))


class Ladder(NamedTuple):
    """What a pilot chose; fixed before any weight is made, so that the weights stay unbiased."""

    betas: jax.Array  # (T + 1,)
    stage: jax.Array  # (T + 1,) of each temperature, 0..K−1
    step_sizes: jax.Array  # (K,)
    scales: jax.Array  # (K, d, d), or (K, d) diagonals


def pilot(
    model: Model, rows: PyTree, base: Any, key: jax.Array, settings: Annealing, together: int, watch: Watch
) -> Ladder:
    """Temperatures, step sizes and covariances, from particles moved from base to target (Del Moral et al. 2006).

    Every stage takes β as far as half of the particles' effective number is kept, resamples, and moves them while the
    step size finds its acceptance. Temperatures are then laid evenly within the stages.
    """
    size = model.space.size
    keys = jax.random.split(jax.random.fold_in(key, 0), settings.pilot)
    places, ratios = _begin(model, together, rows, base, keys)
    beta, step = 0.0, first_step(settings.kernel, size)
    betas, steps, scales = [0.0], [], []
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    while beta < 1:
        watch.go("pilot", int(100 * beta), 100)
        ratios = nan_is_nothing(ratios)
        if not np.any(np.isfinite(ratios)):
            any_possible(-math.inf)
        if len(betas) > STAGES:
            raise RunError(
                f"The way from the base to the posterior took more than {STAGES} stages, β = {beta:.3g} so far: the "
                "prior is far wider than the data allow. Use a tighter one, or method='importance' with a fitted "
                "posterior."
            )
        new = next_beta(ratios, beta)
        weights = shares((new - beta) * ratios)
        chosen = rng.choice(settings.pilot, settings.pilot, p=weights)
        places, beta = jnp.asarray(np.asarray(places)[chosen]), new
        scale = _root(np.asarray(places, np.float64))
        for round_ in range(ROUNDS):
            keys = jax.random.split(jax.random.fold_in(key, 2 + len(betas) * ROUNDS + round_), settings.pilot)
            places, ratios, acceptance = _move(
                model, settings.kernel, together, rows, base, places, keys, jnp.asarray(beta), jnp.asarray(step),
                jnp.asarray(scale, places.dtype),
            )  # fmt: skip
            step *= math.exp(2 * (float(acceptance) - AIMED[settings.kernel]))
        betas.append(beta)
        steps.append(step)
        scales.append(scale)
    watch.say("pilot", 100, 100)
    stages = len(steps)
    # A stage has a variance of log w of about 1, which m steps within it divide by m; chains lag behind, hence 6.
    wanted = settings.temperatures or min(max(6 * stages**2, LADDER[0]), LADDER[1])
    each = max(1, -(-wanted // stages))
    fine = np.interp(np.arange(stages * each + 1) / each, np.arange(stages + 1), betas)
    stage = np.maximum(np.arange(stages * each + 1) - 1, 0) // each
    dtype = jnp.result_type(float)
    return Ladder(
        jnp.asarray(fine, dtype), jnp.asarray(stage), jnp.asarray(steps, dtype), jnp.asarray(np.stack(scales), dtype)
    )


def first_step(kind: str, size: int) -> float:
    """What suits a standard normal: Roberts & Rosenthal 2001."""
    return 2.38 / math.sqrt(size) if kind == "random-walk" else 1.65**2 / size ** (1 / 3)


def _root(places: np.ndarray) -> np.ndarray:
    """L of the particles' covariance, shrunk towards its diagonal; the sds alone where there are many parameters."""
    count, size = places.shape
    spread = np.maximum(places.std(0), 1e-12 * (1 + np.abs(places.mean(0))))
    if size > DENSE:
        return spread
    weight = count / (count + 2 * size)
    covariance = weight * np.atleast_2d(np.cov(places.T)) + (1 - weight) * np.diag(spread**2)
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:  # resampled to a few places
        return np.diag(spread)


@functools.partial(jax.jit, static_argnames=("model", "together"))
def _begin(model: Model, together: int, rows: PyTree, base: Any, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(S, d) draws of the base and their r (S,)."""
    log_ratio = bridge(model, rows, base)[1]

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = draw(model, base, key)
        return z, log_ratio(z)

    return jax.lax.map(one, keys, batch_size=together)


@functools.partial(jax.jit, static_argnames=("model", "kind", "together"))
def _move(
    model: Model, kind: str, together: int, rows: PyTree, base: Any, places: jax.Array, keys: jax.Array,
    beta: jax.Array, step: jax.Array, scale: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """Particles after a few transitions at one temperature, their r, and the mean acceptance."""
    log_base, log_ratio = bridge(model, rows, base)

    def one(both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, place = both
        kernel = kernel_named(kind, lambda z: log_base(z) + beta * log_ratio(z), step, scale)
        state, info = jax.lax.scan(
            lambda state, key: kernel(key, state), kernel.init(key, place), jax.random.split(key, MOVES)
        )
        return state.position, log_ratio(state.position), jnp.mean(info.acceptance)

    places, ratios, acceptance = jax.lax.map(one, (keys, places), batch_size=together)
    return places, ratios, jnp.mean(acceptance)


@functools.partial(jax.jit, static_argnames=("model", "kind", "transitions", "together"))
def run(
    model: Model, kind: str, transitions: int, together: int, rows: PyTree, base: Any, ladder: Ladder,
    keys: jax.Array, places: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(S,) log weights and the mean acceptance at each temperature (T,): forwards from the base, or backwards from
    ``places`` (S, d)."""
    log_base, log_ratio = bridge(model, rows, base)

    def kernel_of(density: Callable, t: jax.Array) -> Kernel:
        stage = ladder.stage[t]
        return kernel_named(kind, density, ladder.step_sizes[stage], ladder.scales[stage])

    def one(both: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        key, place = both
        first, key = jax.random.split(key)
        start = draw(model, base, first) if place is None else place
        ran = annealed(
            key, start, log_base, log_ratio, kernel_of, ladder.betas, transitions=transitions,
            backwards=place is not None,
        )  # fmt: skip
        return ran.log_weight, ran.info.acceptance

    log_weights, acceptance = jax.lax.map(one, (keys, places), batch_size=together)
    return log_weights, jnp.mean(acceptance, 0)


def kernel_named(kind: str, density: Callable, step: jax.Array, scale: jax.Array) -> Kernel:
    return (mala if kind == "mala" else random_walk)(density, step, scale)


def spread(posterior: Posterior, count: int) -> np.ndarray:
    """(count, d) draws evenly over time, and over chains: the fewer between, the less alike."""
    flat = np.asarray(posterior.unconstrained).swapaxes(0, 1)
    flat = flat.reshape(-1, flat.shape[-1])
    # Blocks of the bound are of one stretch of time each, so that draws alike share one.
    return flat[np.linspace(0, len(flat) - 1, count).astype(int)]
