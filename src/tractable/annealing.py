"""The way from a base to the posterior by temperatures: where it begins, how it is chosen, the runs along it and back.

    θ:                  from p(θ), or a normal around the modes, to p(θ|y);     pilot, then run
    codes at a given θ: from p(z|θ) to p(z|x_n, θ), for every datum n;          code_pilot, then code_run

Whatever adapts (temperatures, step sizes, covariances) does so in a pilot on particles of its own. It is fixed before
any weight is made: weights of chains that adapt as they go are no longer unbiased. Neal 2001; Del Moral, Doucet & Jasra
2006 (the pilot); Grosse, Ghahramani & Adams 2015 (backwards).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform

from tractable.core import Data, Kernel, Model, is_distribution, log_density
from tractable.kernels.annealed import annealed, next_beta, shares, sigmoidal
from tractable.kernels.mala import mala
from tractable.kernels.random_walk import random_walk
from tractable.latent import LatentModel
from tractable.methods.drawing import starts
from tractable.methods.metropolis import DENSE
from tractable.methods.points import laplace_root, maximum
from tractable.posterior import Posterior
from tractable.tools.errors import ModelError, RunError, SettingsError

PyTree = Any
LOG_2PI = math.log(2 * math.pi)
HELD = 1 << 24  # numbers, rows times draws, that are held at once
CURVED = 1000  # parameters up to which a curvature is formed
WIDER = 2.0  # sds of a base which is no prior, in those of the normal approximation
STAGES = 500  # of a pilot, at most
ROUNDS = 4  # of step adaptation at a stage of the pilot
MOVES = 5  # transitions in each
LADDER = (200, 10_000)  # temperatures that are chosen, at least and at most
AIMED = {"mala": 0.574, "random-walk": 0.3}
CODE_TEMPERATURES = 100
GAINS = (4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 1.0, 1.0)  # of rounds of the codes' pilot: down to a millionth of the first step


@dataclass(frozen=True, kw_only=True)
class Annealing:
    """Settings of "annealed".

    Args:
        chains: S ≥ 32, forwards and as many backwards.
        temperatures: T ≥ 2, about, spread over the pilot's stages; None chooses it so that log w has a variance
            of about ½, in 200..10,000.
        transitions: ≥ 1 at every temperature.
        kernel: "mala" or "random-walk".
        reverse: run backwards from posterior draws too, for the upper bound.
        pilot: ≥ 64 particles of the run that chooses temperatures, steps and covariances.
    """

    chains: int = 256
    temperatures: int | None = None
    transitions: int = 1
    kernel: str = "mala"
    reverse: bool = True
    pilot: int = 512

    def __post_init__(self) -> None:
        whole(self, "chains", 32)
        whole(self, "transitions", 1)
        whole(self, "pilot", 64)
        if self.temperatures is not None:
            whole(self, "temperatures", 2)
        refuse(self.kernel in AIMED, self, "kernel", "'mala' or 'random-walk'")
        refuse(isinstance(self.reverse, bool), self, "reverse", "True or False")


def whole(settings: Any, field: str, least: int) -> None:
    """A sentence where a setting is no whole number of at least so much."""
    value = getattr(settings, field)
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    refuse(bool(whole and value >= least), settings, field, f"a whole number ≥ {least}")


def refuse(good: bool, settings: Any, field: str, expected: str) -> None:
    """The sentence of a setting that is out of range."""
    if not good:
        raise SettingsError(f"log_evidence({field}=...) expects {expected}; got {getattr(settings, field)!r}.")


class Watch(NamedTuple):
    """Who is told of progress, and who may stop it."""

    say: Callable[[str, int, int], None]  # (phase, done, of)
    stop: Callable[[], bool]

    def go(self, phase: str, done: int = 0, of: int = 1) -> None:
        """On with a phase; a sentence where the call was interrupted and no weight has been made."""
        if self.stop():
            raise RunError(
                f"log_evidence was interrupted before its weights were made ({phase}: {done} of {of}), so there is "
                "nothing to estimate from. Run it again, with fewer chains or draws if it takes too long."
            )
        self.say(phase, done, of)


# Where it begins: the prior, or a normal around the modes.


class Mode(NamedTuple):
    """A mode of the unconstrained density, with the root of its inverse curvature."""

    position: np.ndarray  # (d,)
    value: float
    root: np.ndarray  # (d, d), lower triangular


class Normal(NamedTuple):
    """N(mean, root rootᵀ)."""

    mean: jax.Array  # (d,)
    root: jax.Array  # (d, d), lower triangular


def modes_of(model: Model, data: Data | None, key: jax.Array, count: int) -> list[Mode]:
    """The distinct modes that climbs from random starts end at, by the mass of the normal around each, descending."""
    size = model.space.size
    if size > CURVED:
        raise ModelError(
            f"The curvature of {size} parameters is not formed, at most {CURVED}; use method='annealed' on a prior "
            "that can be drawn from, or method='importance' with posterior=infer(model, data, MeanField())."
        )
    found: list[Mode] = []
    for start in starts(model, data, key, count):
        climbed = maximum(model, data, start, jacobian=True)
        if not (np.all(np.isfinite(climbed.position)) and math.isfinite(climbed.value)):
            continue
        root = laplace_root(model, data, climbed.position)
        if root is None or any(_same(climbed.position, mode) for mode in found):
            continue
        found.append(Mode(np.asarray(climbed.position, np.float64), float(climbed.value), root))
    if not found:
        raise ModelError(
            f"No climb of {count} ended at a mode with a curvature: a ridge, a saddle or a density without bound. Give "
            "the flat direction a proper prior, or posterior= an approximation that was fitted (importance)."
        )
    return sorted(found, key=lambda mode: -laplace_value(mode.value, mode.root))


def _same(position: np.ndarray, mode: Mode) -> bool:
    """Whether a climb ended within a twentieth of an sd of a mode."""
    away = np.linalg.solve(mode.root, position - mode.position)
    return float(np.linalg.norm(away)) < 0.05 * math.sqrt(len(position))


def around(modes: list[Mode]) -> Normal:
    """The normal with the moments of the normals around the modes, all counted alike: it is to reach each of them."""
    places = np.stack([mode.position for mode in modes])
    within = np.mean([mode.root @ mode.root.T for mode in modes], 0)
    apart = places - places.mean(0)
    covariance = within + apart.T @ apart / len(modes)
    dtype = jnp.result_type(float)
    return Normal(jnp.asarray(places.mean(0), dtype), jnp.asarray(np.linalg.cholesky(covariance), dtype))


def laplace_value(value: float, root: np.ndarray) -> float:
    """log p(y, ẑ) + (d/2) log 2π − ½ log |Λ|, of Λ⁻¹ = root rootᵀ, root (d, d) lower triangular."""
    return float(value + len(root) * LOG_2PI / 2 + np.sum(np.log(np.diag(root))))


def normal_base(modes: list[Mode]) -> Normal:
    """Where annealing begins without a prior to draw from: a normal around the modes, wider than they are."""
    normal = around(modes)
    return normal._replace(root=WIDER * normal.root)


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
    """Σ log p(y_n|θ); 0 without data."""
    if rows is None:
        return jnp.zeros((), jnp.result_type(float))
    return jnp.sum(model.log_likelihoods(params, rows))


def rows_of(data: Data | None) -> PyTree:
    """All rows on the device; None of a model without data."""
    return None if data is None else data.arrays()


def together_of(model: Model, data: Data | None, count: int) -> int:
    """Draws that are worked on at once, so that memory stays bounded."""
    rows = 1 if data is None else sum(max(1, int(np.prod(leaf.shape))) for leaf in jax.tree.leaves(data.rows))
    return int(min(count, 1024, max(1, HELD // (rows + model.space.size))))


def nan_is_nothing(log_weights: Any) -> np.ndarray:
    """In float64; NaN counts as impossible."""
    return np.nan_to_num(np.asarray(log_weights, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def any_possible(estimate: float) -> None:
    """A sentence where no draw, or a draw without bound, made the estimate."""
    if not math.isfinite(estimate):
        raise RunError(
            f"The mean weight is e^{estimate}: the log likelihood was finite at no draw, or without bound at one. Are "
            "the data possible under the prior? Look at model.log_likelihoods at a draw of model.sample_prior."
        )


# The way, and the runs along it.


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
    beta, step = 0.0, _first_step(settings.kernel, size)
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


def _first_step(kind: str, size: int) -> float:
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
        kernel = _kernel(kind, lambda z: log_base(z) + beta * log_ratio(z), step, scale)
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
        return _kernel(kind, density, ladder.step_sizes[stage], ladder.scales[stage])

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


def _kernel(kind: str, density: Callable, step: jax.Array, scale: jax.Array) -> Kernel:
    return (mala if kind == "mala" else random_walk)(density, step, scale)


def spread(posterior: Posterior, count: int) -> np.ndarray:
    """(count, d) draws evenly over time, and over chains: the fewer between, the less alike."""
    flat = np.asarray(posterior.unconstrained).swapaxes(0, 1)
    flat = flat.reshape(-1, flat.shape[-1])
    # Blocks of the bound are of one stretch of time each, so that draws alike share one.
    return flat[np.linspace(0, len(flat) - 1, count).astype(int)]


# The codes of a latent model at a given θ.


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


@functools.partial(jax.jit, static_argnames=("model", "draws", "together"))
def code_prior_weights(
    model: LatentModel, draws: int, together: int, params: PyTree, rows: PyTree, key: jax.Array
) -> jax.Array:
    """(N, draws) log p(x_n|z, θ) at draws of p(z|θ), every datum's its own: errors of the data then are independent."""

    def one(both: tuple[jax.Array, PyTree]) -> jax.Array:
        code = code_of(model, params, both[1])
        return jax.vmap(lambda key: code.log_likelihood(code.sample(key)))(jax.random.split(both[0], draws))

    return jax.lax.map(one, (_keys(key, rows), rows), batch_size=together)


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
            return _kernel(kind, density, ladder.step_sizes[stage], ladder.scales[stage])

        def chain(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            first, key = jax.random.split(key)
            ran = annealed(
                key, code.flat(code.sample(first) if each[2] is None else each[2]), code.log_base, code.log_ratio,
                kernel_of, ladder.betas, transitions=transitions, backwards=each[2] is not None,
            )  # fmt: skip
            return ran.log_weight, ran.info.acceptance

        log_weights, acceptance = jax.vmap(chain)(jax.random.split(each[0], chains))
        return log_weights, jnp.mean(acceptance, 0)

    log_weights, acceptance = jax.lax.map(one, (_keys(key, rows), rows, z), batch_size=together)
    return log_weights, jnp.mean(acceptance, 0)


def code_pilot(
    model: LatentModel, params: PyTree, rows: PyTree, key: jax.Array, settings: Annealing, together: int, watch: Watch
) -> Ladder:
    """A sigmoidal way, and for each of its temperatures the step at which some of the data's chains accept as often as
    they should; in units of the prior's sds, so that steps shrink about as 1/β does where the data say much."""
    size = jax.tree.leaves(rows)[0].shape[0]
    count = min(size, max(1, settings.pilot // settings.chains))
    few = jax.tree.map(lambda leaf: leaf[np.linspace(0, size - 1, count).astype(int)], rows)
    scale = _code_spread(model, settings.chains, params, few, jax.random.fold_in(key, 0))
    temperatures = settings.temperatures or CODE_TEMPERATURES
    dtype = jnp.result_type(float)
    steps = np.full(temperatures, _first_step(settings.kernel, len(scale)))
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
def _code_spread(model: LatentModel, draws: int, params: PyTree, rows: PyTree, key: jax.Array) -> jax.Array:
    """(d,) sds of p(z|θ), as flat reals."""

    def one(both: tuple[jax.Array, PyTree]) -> jax.Array:
        code = code_of(model, params, both[1])
        return jax.vmap(lambda key: code.flat(code.sample(key)))(jax.random.split(both[0], draws))

    drawn = jax.vmap(one)((_keys(key, rows), rows))  # (n, draws, d)
    return jnp.maximum(jnp.std(drawn, axis=(0, 1)), 1e-12)


def _keys(key: jax.Array, rows: PyTree) -> jax.Array:
    return jax.random.split(key, jax.tree.leaves(rows)[0].shape[0])
