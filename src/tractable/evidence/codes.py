"""The codes of a latent model at a given θ: every datum's z as a flat vector of reals, drawn and annealed.

from p(z|θ) to p(z|x_n, θ), for every datum n: code_pilot, then code_run
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform

from tractable.core import Data, Kernel, is_distribution
from tractable.evidence.annealing import AIMED, HELD, Ladder, first_step, kernel_named
from tractable.evidence.result import Watch
from tractable.evidence.settings import Annealing
from tractable.kernels.annealed import annealed, sigmoidal
from tractable.models.latent import LatentModel

PyTree = Any
WORK = 64  # numbers that a draw of a code takes beside its datum, about
CODE_TEMPERATURES = 100
GAINS = (4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0, 1.0)  # of rounds of the codes' pilot: down to a millionth of the first step


class Code(NamedTuple):
    """A datum's z, and z as a flat vector u of reals whose density carries the log-determinant."""

    sample: Callable  # key -> z, of p(z|θ)
    log_likelihood: Callable  # z -> (), log p(x_n|z, θ)
    flat: Callable  # z -> u (d,)
    log_base: Callable  # u -> (), log p(z|θ) and the log-determinant
    log_ratio: Callable  # u -> (), log p(x_n|z, θ)


def code_of(model: LatentModel, params: PyTree, datum: tuple[PyTree, PyTree]) -> Code:
    """Of one datum (y, x)."""
    y, x = datum
    if model.latent is None:
        return _layered(model, params, y)
    latent = model.latent(params) if x is None else model.latent(params, x)
    parts, structure = jax.tree.flatten(latent, is_leaf=is_distribution)
    # What is discrete is drawn only, never moved.
    ways = [IdentityTransform() if part.support.is_discrete else biject_to(part.support) for part in parts]
    shapes = [way.inverse_shape(part.shape()) for way, part in zip(ways, parts, strict=True)]
    ends = np.cumsum([math.prod(shape) for shape in shapes])

    def sample(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(parts))
        return structure.unflatten([part.sample(k) for part, k in zip(parts, keys, strict=True)])

    def log_likelihood(z: PyTree) -> jax.Array:
        return model.factors(params, z, y if x is None else (y, x))[0]

    def flat(z: PyTree) -> jax.Array:
        reals = [way.inv(part) for way, part in zip(ways, structure.flatten_up_to(z), strict=True)]
        return jnp.concatenate([jnp.ravel(real) for real in reals]).astype(jnp.result_type(float))

    def reals(u: jax.Array) -> list[jax.Array]:
        return [real.reshape(shape) for real, shape in zip(jnp.split(u, ends[:-1]), shapes, strict=True)]

    def log_base(u: jax.Array) -> jax.Array:
        total = jnp.zeros((), u.dtype)
        for part, way, real in zip(parts, ways, reals(u), strict=True):
            z = way(real)
            total = total + jnp.sum(part.log_prob(z)) + jnp.sum(way.log_abs_det_jacobian(real, z))
        return total

    def log_ratio(u: jax.Array) -> jax.Array:
        return log_likelihood(structure.unflatten([way(real) for way, real in zip(ways, reals(u), strict=True)]))

    return Code(sample, log_likelihood, flat, log_base, log_ratio)


def _layered(ladder: Any, params: PyTree, x: PyTree) -> Code:
    """Of one row of a ladder: h¹ … h^L one after another, reals as they are."""

    def sample(key: jax.Array) -> PyTree:
        return jax.tree.map(lambda a: a[0], ladder.dreamt(key, params, 1)[1])

    shapes = [leaf.shape for leaf in jax.eval_shape(sample, jax.random.key(0))]
    ends = np.cumsum([math.prod(shape) for shape in shapes])

    def log_likelihood(h: PyTree) -> jax.Array:
        return ladder.factors(params, h, x)[0]

    def flat(h: PyTree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(part) for part in h]).astype(jnp.result_type(float))

    def layers(u: jax.Array) -> PyTree:
        return tuple(part.reshape(shape) for part, shape in zip(jnp.split(u, ends[:-1]), shapes, strict=True))

    def log_base(u: jax.Array) -> jax.Array:
        return sum(ladder.factors(params, layers(u), x)[1:], jnp.zeros((), u.dtype))

    return Code(sample, log_likelihood, flat, log_base, lambda u: log_likelihood(layers(u)))


def rows_together(data: Data, draws: int) -> int:
    """Data that are worked on at once, with all their draws."""
    numbers = sum(max(1, int(np.prod(leaf.shape[1:]))) for leaf in jax.tree.leaves(data.rows))
    return int(min(data.size, 1024, max(1, HELD // (draws * (numbers + WORK)))))


@functools.partial(jax.jit, static_argnames=("model", "draws", "together"))
def code_prior_weights(
    model: LatentModel, draws: int, together: int, params: PyTree, rows: PyTree, key: jax.Array
) -> jax.Array:
    """(N, draws) log p(x_n|z, θ) at draws of p(z|θ), every datum's its own: errors of the data then are independent."""

    def one(both: tuple[jax.Array, PyTree]) -> jax.Array:
        code = code_of(model, params, both[1])
        return jax.vmap(lambda key: code.log_likelihood(code.sample(key)))(jax.random.split(both[0], draws))

    return jax.lax.map(one, (keys_of(key, rows), rows), batch_size=together)


@functools.partial(jax.jit, static_argnames=("model", "kind", "chains", "transitions", "together"))
def code_run(
    model: LatentModel, kind: str, chains: int, transitions: int, together: int, params: PyTree, rows: PyTree,
    ladder: Ladder, key: jax.Array, z: PyTree = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(N, S) log weights and the mean acceptance at each temperature (T,): forwards from p(z|θ), or backwards from z of
    every datum, from which its S chains all begin."""

    def one(each: tuple[jax.Array, PyTree, PyTree]) -> tuple[jax.Array, jax.Array]:
        code = code_of(model, params, each[1])

        def kernel_of(density: Callable, t: jax.Array) -> Kernel:
            stage = ladder.stage[t]
            return kernel_named(kind, density, ladder.step_sizes[stage], ladder.scales[stage])

        def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            first, key = jax.random.split(key)
            ran = annealed(
                key, code.flat(code.sample(first) if each[2] is None else each[2]), code.log_base, code.log_ratio,
                kernel_of, ladder.betas, transitions=transitions, backwards=each[2] is not None,
            )  # fmt: skip
            return ran.log_weight, ran.info.acceptance

        log_weights, acceptance = jax.vmap(chain)(jax.random.split(each[0], chains))
        return log_weights, jnp.mean(acceptance, 0)

    log_weights, acceptance = jax.lax.map(one, (keys_of(key, rows), rows, z), batch_size=together)
    return log_weights, jnp.mean(acceptance, 0)


def code_pilot(
    model: LatentModel, params: PyTree, rows: PyTree, key: jax.Array, settings: Annealing, together: int, watch: Watch
) -> Ladder:
    """A sigmoidal way, and for each of its temperatures the step at which some of the data's chains accept as often as
    they should; in units of the prior's sds, so that steps shrink about as 1/β does where the data say much."""
    size = jax.tree.leaves(rows)[0].shape[0]
    count = min(size, max(1, settings.pilot // settings.chains))
    few = jax.tree.map(lambda leaf: leaf[np.linspace(0, size - 1, count).astype(int)], rows)
    scale = code_spread(model, settings.chains, params, few, jax.random.fold_in(key, 0))
    temperatures = settings.temperatures or CODE_TEMPERATURES
    dtype = jnp.result_type(float)
    steps = np.full(temperatures, first_step(settings.kernel, len(scale)))
    ladder = Ladder(
        sigmoidal(temperatures).astype(dtype), jnp.maximum(jnp.arange(temperatures + 1) - 1, 0),
        jnp.asarray(steps, dtype), jnp.broadcast_to(scale.astype(dtype), (temperatures, len(scale))),
    )  # fmt: skip
    for round_, gain in enumerate(GAINS):
        watch.go("pilot", round_, len(GAINS))
        acceptance = code_run(
            model, settings.kernel, settings.chains, settings.transitions, together, params, few, ladder,
            jax.random.fold_in(key, 1 + round_),
        )[1]  # fmt: skip
        steps *= np.exp(gain * (np.asarray(acceptance, np.float64) - AIMED[settings.kernel]))
        ladder = ladder._replace(step_sizes=jnp.asarray(steps, dtype))
    watch.say("pilot", len(GAINS), len(GAINS))
    return ladder


@functools.partial(jax.jit, static_argnames=("model", "draws"))
def code_spread(model: LatentModel, draws: int, params: PyTree, rows: PyTree, key: jax.Array) -> jax.Array:
    """(d,) sds of p(z|θ), as flat reals."""

    def one(both: tuple[jax.Array, PyTree]) -> jax.Array:
        code = code_of(model, params, both[1])
        return jax.vmap(lambda key: code.flat(code.sample(key)))(jax.random.split(both[0], draws))

    drawn = jax.vmap(one)((keys_of(key, rows), rows))  # (n, draws, d)
    return jnp.maximum(jnp.std(drawn, axis=(0, 1)), 1e-12)


def keys_of(key: jax.Array, rows: PyTree) -> jax.Array:
    return jax.random.split(key, jax.tree.leaves(rows)[0].shape[0])
