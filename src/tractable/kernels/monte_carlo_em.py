"""Monte-Carlo EM: an E-step by draws of z, where it can be neither summed nor integrated out.

    E:  z_n1 … z_nS ~ p(z | x_n, θ),  exactly or by chains       M:  θ' = argmax Q̂ (+ log p)
    Q̂(θ') = Σ_n w_n (1/S) Σ_s log p(x_n, z_ns | θ')              gain = Q̂(θ') − Q̂(θ),  its standard error σ̂

Target: a stationary point of Σ_n w_n log p(x_n | θ), as S grows. With S fixed θ moves about that point for ever, and no
step is promised to go up. Wei & Tanner 1990; the gain and its error decide when S grows and when to stop: Caffo, Jank &
Jones 2005. Standard errors from the draws: Louis 1982.

Every datum has several chains of its own. They go on from step to step: only where they are is kept, and whatever
depends on θ (log densities, gradients) is computed anew. Chains are independent given θ, so the spread of their means
is σ̂, whatever the correlation within. Draws fill a buffer as far as they go, and sums over them are loops of that
length: memory is O(n S) of the largest S, and no S compiles anything anew.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from tractable.core import Kernel, is_distribution
from tractable.kernels.gradient_em import climbed
from tractable.kernels.hamiltonian import hmc, nuts
from tractable.kernels.mala import mala
from tractable.kernels.random_walk import random_walk
from tractable.kernels.rejection import rejection
from tractable.tools import tree
from tractable.tools.errors import ModelError

PyTree = Any
KERNELS = ("mala", "random-walk", "hmc", "nuts", "rejection")
AIMED = {"mala": 0.574, "hmc": 0.8, "nuts": 0.8}  # acceptance; a random walk's is 0.44 in one dimension and 0.3 in more
LEAPFROGS = 5
DEPTH = 6  # of NUTS's trees, at most
TRIED = 32  # places of which a chain begins at one
SHAPE, STEP = 1, 2  # what a warm-up tunes: the moves' proportions too, or ε alone
FORGETTING = 0.6  # κ of the Robbins–Monro steps t^−κ in log ε


class Chains(NamedTuple):
    """What an E-step hands on to the next."""

    position: Any  # (n, C, k) z as reals; nothing where draws are exact
    log_step: jax.Array  # () log ε, one for all data, frozen within an E-step
    scale: jax.Array  # (n, k) sds of the moves, whose geometric mean is 1
    time: jax.Array  # () E-steps since the warm-up


class Draws(NamedTuple):
    """z given every x, as far as drawn."""

    z: PyTree  # (room, n, C, ...)
    length: jax.Array  # () L ≤ room; S = C L


class Told(NamedTuple):
    """What drawing tells."""

    acceptance: jax.Array  # () mean; of rejection the share accepted, 1 where nothing is refused
    excess: jax.Array  # (n,) largest log p(x|z,θ) − log M seen; −∞ without a bound
    gave_up: jax.Array  # (n,) 1 where draws were given up


class Sampler(NamedTuple):
    """How z is drawn given every x.

    Attributes:
        begin: ``(key, theta, rows) -> Chains``.
        room: ``(theta, rows, most) -> Draws`` of length 0 with room for ``most``.
        draw: ``(key, theta, chains, rows, draws, count, burn, tune) -> (Chains, Draws, Told)``: ``count`` more draws of
            every chain, after ``burn`` steps that are thrown away. Where ``tune`` is not 0 nothing is kept, and ε moves
            at every step. All three may be traced.
        exact: whether draws are independent.
    """

    begin: Callable
    room: Callable
    draw: Callable
    exact: bool


class Codes(NamedTuple):
    """The z of one datum as k reals u."""

    size: int  # k
    constrain: Callable  # (theta, datum, u) -> z
    log_density: Callable  # (theta, datum, u) -> (), log p(x, z | θ) + log |∂z/∂u|
    sample: Callable  # (key, theta, datum) -> u of a z ~ p(z | θ)
    log_weight: Callable  # (theta, datum, u) -> (), log p(x | z, θ)


class Improved(NamedTuple):
    """An M-step, and what it gains."""

    theta: PyTree
    gain: jax.Array  # () Q̂(θ') − Q̂(θ) (+ log p(θ') − log p(θ)), nats
    error: jax.Array  # () σ̂ of the gain


class Information(NamedTuple):
    """What draws say of the curvature at φ, in the coordinates φ."""

    complete: jax.Array  # (d, d) E[−∂² log p(x, z)] − ∂² log p(θ), summed over data
    missing: jax.Array  # (d, d) Cov[∂ log p(x, z)]: observed = complete − missing
    noise: jax.Array  # (d, d) covariance of the mean score's Monte-Carlo error


def codes(latent: Callable, log_joint: Callable, theta: PyTree, datum: PyTree) -> Codes:
    """z as reals: bijections from its distributions' supports, with their log-determinants.

    Args:
        latent: ``(theta, datum) -> `` z's distribution, or a pytree of them.
        log_joint: ``(theta, datum, z) -> ()``, log p(x, z | θ).
        theta, datum: examples; only shapes are looked at.

    Raises:
        ModelError: a z that is discrete; a log joint that is not one number.
    """

    def parts(theta: PyTree, datum: PyTree) -> tuple[list, list, Any]:
        leaves, structure = jax.tree.flatten(latent(theta, datum), is_leaf=is_distribution)
        for leaf in leaves:
            if leaf.support.is_discrete:
                raise ModelError(
                    f"z's {type(leaf).__name__} is discrete, and chains move on the reals: give causes=, the values "
                    "of z, which are then drawn exactly."
                )
        return leaves, [biject_to(d.support) for d in leaves], structure

    def sampled(key: jax.Array, theta: PyTree, datum: PyTree) -> PyTree:
        leaves, bijectors, structure = parts(theta, datum)
        keys = jax.random.split(key, len(leaves))
        drawn = [b.inv(d.sample(k)) for b, d, k in zip(bijectors, leaves, keys, strict=True)]
        return jax.tree.unflatten(structure, drawn)

    shapes = jax.eval_shape(sampled, jax.random.key(0), theta, datum)
    ravel, unravel = tree.raveller(shapes)

    def opened(theta: PyTree, datum: PyTree, u: jax.Array) -> tuple[PyTree, jax.Array]:
        """z and log |∂z/∂u|."""
        _, bijectors, structure = parts(theta, datum)
        reals = jax.tree.leaves(unravel(u))
        values = [b(v) for b, v in zip(bijectors, reals, strict=True)]
        terms = [jnp.sum(b.log_abs_det_jacobian(v, z)) for b, v, z in zip(bijectors, reals, values, strict=True)]
        return jax.tree.unflatten(structure, values), tree.total(terms)

    def constrain(theta: PyTree, datum: PyTree, u: jax.Array) -> PyTree:
        return opened(theta, datum, u)[0]

    def log_density(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z, log_determinant = opened(theta, datum, u)
        return log_joint(theta, datum, z) + log_determinant

    def sample(key: jax.Array, theta: PyTree, datum: PyTree) -> jax.Array:
        return ravel(sampled(key, theta, datum))

    def log_weight(theta: PyTree, datum: PyTree, u: jax.Array) -> jax.Array:
        z = constrain(theta, datum, u)
        terms = [d.log_prob(v) for d, v in zip(parts(theta, datum)[0], jax.tree.leaves(z), strict=True)]
        return log_joint(theta, datum, z) - tree.total(terms)

    size = tree.size(shapes)
    got = jax.eval_shape(log_density, theta, datum, jax.eval_shape(ravel, shapes))
    if got.shape != ():
        raise ModelError(
            f"log p(x, z | θ) of one datum is one number; got shape {got.shape}. Where z or x has several numbers, its "
            "distribution wants .to_event()."
        )
    return Codes(size, constrain, log_density, sample, log_weight)


def made(kernel: str | Callable, log_density: Callable, step: jax.Array, scale: jax.Array) -> Kernel:
    """The kernel of a name for one datum's z, (k,), or the caller's own ``kernel(log_density)``."""
    if callable(kernel):
        return kernel(log_density)
    if kernel == "mala":
        return mala(log_density, step, scale)
    if kernel == "random-walk":
        return random_walk(log_density, step, scale)
    if kernel == "hmc":
        return hmc(log_density, step, jnp.square(scale), LEAPFROGS)
    return nuts(log_density, step, jnp.square(scale), DEPTH)


def by_chains(kernel: str | Callable, latent: Callable, log_joint: Callable, chains: int) -> Sampler:
    """Draws by Markov chains that go on from E-step to E-step.

    Args:
        kernel: "mala", "random-walk", "hmc", "nuts", or ``log_density -> Kernel`` on flat unconstrained z.
        latent, log_joint: as for ``codes``.
        chains: C ≥ 2 a datum.
    """

    def known(theta: PyTree, rows: PyTree) -> Codes:
        return codes(latent, log_joint, theta, jax.tree.map(lambda a: a[0], rows))

    def begin(key: jax.Array, theta: PyTree, rows: PyTree) -> Chains:
        code = known(theta, rows)

        def one(datum: PyTree, key: jax.Array) -> jax.Array:
            # One of several draws of p(z | θ), by its likelihood: a chain begun in a tail may never leave it.
            key_sample, key_choice = jax.random.split(key)
            tried = jax.vmap(lambda k: code.sample(k, theta, datum))(jax.random.split(key_sample, TRIED))
            weights = jax.vmap(lambda u: code.log_weight(theta, datum, u))(tried)
            weights = jnp.where(jnp.isnan(weights), -jnp.inf, weights)
            return tried[jax.random.categorical(key_choice, weights)]

        position = _each(one)(rows, jax.random.split(key, (_count(rows), chains)))
        dtype = position.dtype
        step = {"mala": 1.5, "random-walk": 2.0}.get(str(kernel), 0.5)
        return Chains(
            position,
            jnp.log(jnp.asarray(step, dtype)),
            jnp.ones((_count(rows), code.size), dtype),
            jnp.zeros((), dtype),
        )

    def room(theta: PyTree, rows: PyTree, most: int) -> Draws:
        code = known(theta, rows)
        shape = jax.eval_shape(lambda: begin(jax.random.key(0), theta, rows).position)
        z = jax.eval_shape(_each(lambda datum, u: code.constrain(theta, datum, u)), rows, shape)
        return _empty(z, most)

    def draw(
        key: jax.Array, theta: PyTree, now: Chains, rows: PyTree, draws: Draws, count: Any, burn: Any, tune: Any
    ) -> tuple[Chains, Draws, Told]:
        code = known(theta, rows)
        aim = AIMED.get(str(kernel), 0.44 if code.size == 1 else 0.3)
        fixed = callable(kernel)

        def of(at: tuple, log_step: jax.Array) -> Kernel:
            datum, scale = at
            return made(kernel, lambda u: code.log_density(theta, datum, u), jnp.exp(log_step), scale)

        def begun(at: tuple, u: jax.Array) -> Any:
            # Positions go on; the log density and its gradient are those of this θ.
            return of(at, now.log_step).init(key, u)

        places = rows, now.scale
        states = _each(begun)(places, now.position)
        dtype = now.position.dtype
        zero = jnp.zeros_like(now.position)
        origin = jnp.mean(now.position, axis=1, keepdims=True)  # (n, 1, k)

        def step(t: jax.Array, carry: tuple) -> tuple:
            states, log_step, z, rates, (first, second) = carry
            keys = jax.random.split(jax.random.fold_in(key, t), (_count(rows), chains))

            def move(at: tuple, moving: tuple) -> tuple:
                key, state = moving
                state, info = of(at, log_step)(key, state, None)
                return state, jnp.asarray(_acceptance(info), dtype)

            states, acceptance = _each(move)(places, (keys, states))
            rate = jnp.mean(acceptance)
            if not fixed:
                bolder = log_step + (t + 1.0) ** -FORGETTING * (rate - aim)
                log_step = jnp.where(tune > 0, bolder, log_step).astype(dtype)
            values = _each(lambda datum, u: code.constrain(theta, datum, u))(rows, states.position)
            z = _written(z, values, draws.length + t - burn, (t >= burn) & (tune == 0))
            away = jnp.where(t >= burn, states.position - origin, 0)
            return states, log_step, z, rates + rate, (first + away, second + jnp.square(away))

        total = burn + count
        start = (states, now.log_step, draws.z, jnp.zeros((), dtype), (zero, zero))
        states, log_step, z, rates, sums = jax.lax.fori_loop(0, total, step, start)
        rate = rates / jnp.maximum(total, 1)
        if not fixed:
            slowly = log_step + (now.time + 2.0) ** -FORGETTING * (rate - aim)
            log_step = jnp.where(tune > 0, log_step, slowly).astype(dtype)
        # Over the chains of a datum: within one, a direction in which steps are yet too short would seem narrow.
        first, second = (jnp.mean(total, axis=1) / jnp.maximum(count, 1) for total in sums)  # (n, k)
        variance = second - jnp.square(first)
        fine = jnp.isfinite(variance) & (variance > 0)
        logs = 0.5 * jnp.log(jnp.where(fine, variance, 1))
        scale = jnp.where(tune == SHAPE, jnp.exp(logs - jnp.mean(logs)), now.scale)  # ε has the size
        after = Chains(states.position, log_step, scale, now.time + jnp.where(tune > 0, 0, 1).astype(dtype))
        length = draws.length + jnp.where(tune > 0, 0, count)
        return after, Draws(z, length), _unbounded(rate, rows)

    return Sampler(begin, room, draw, exact=False)


def by_rejection(
    latent: Callable, log_likelihood: Callable, bound: Callable, chains: int, *, limit: int = 1 << 16
) -> Sampler:
    """Independent draws: z ~ p(z | θ), kept iff log u < log p(x | z, θ) − log M.

    Args:
        latent: as for ``codes``.
        log_likelihood: ``(theta, datum, z) -> ()``, log p(x | z, θ).
        bound: ``(theta, datum) -> ()``, log M ≥ sup_z log p(x | z, θ); one that is exceeded shows in ``Told.excess``.
        chains: C, draws made side by side.
        limit: proposals after which a draw is given up.
    """

    def fresh(key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
        code = codes(latent, log_likelihood, theta, jax.tree.map(lambda a: a[0], rows))

        def one(datum: PyTree, key: jax.Array) -> tuple:
            def sample(key: jax.Array) -> jax.Array:
                return code.sample(key, theta, datum)

            def log_weight(u: jax.Array) -> jax.Array:
                return log_likelihood(theta, datum, code.constrain(theta, datum, u))

            k = rejection(sample, log_weight, bound(theta, datum), limit=limit)
            key_init, key_draw = jax.random.split(key)
            state, info = k(key_draw, k.init(key_init, sample(key_init)), None)
            return code.constrain(theta, datum, state.position), info

        z, info = _each(one)(rows, jax.random.split(key, (_count(rows), chains)))
        return z, Told(1 / jnp.mean(info.tries), jnp.max(info.excess, axis=1), jnp.max(info.gave_up, axis=1))

    return _exact(fresh)


def by_values(responsibilities: Callable, values: PyTree, chains: int) -> Sampler:
    """Independent draws of a z of few values.

    Args:
        responsibilities: ``(theta, rows) -> (n, m)``.
        values: (m, ...) those of z.
        chains: C, draws made side by side.
    """

    def fresh(key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
        shares = responsibilities(theta, rows)
        logits = jnp.log(shares)[:, None, :]  # log 0 is never drawn
        index = jax.random.categorical(key, logits, axis=-1, shape=(shares.shape[0], chains))
        return jax.tree.map(lambda v: v[index], values), _unbounded(jnp.ones((), shares.dtype), rows)

    return _exact(fresh)


def _exact(fresh: Callable) -> Sampler:
    """A sampler of independent draws; ``fresh(key, theta, rows) -> (z, Told)`` makes one of every chain."""

    def begin(key: jax.Array, theta: PyTree, rows: PyTree) -> Chains:
        del key, rows
        zero = jnp.zeros((), _dtype(theta))
        return Chains((), zero, jnp.ones(0, zero.dtype), zero)

    def room(theta: PyTree, rows: PyTree, most: int) -> Draws:
        return _empty(jax.eval_shape(fresh, jax.random.key(0), theta, rows)[0], most)

    def draw(
        key: jax.Array, theta: PyTree, now: Chains, rows: PyTree, draws: Draws, count: Any, burn: Any, tune: Any
    ) -> tuple[Chains, Draws, Told]:
        del burn

        def step(t: jax.Array, carry: tuple) -> tuple:
            z, told = carry
            new, more = fresh(jax.random.fold_in(key, t), theta, rows)
            worst = Told(told.acceptance + more.acceptance, *(map(jnp.maximum, told[1:], more[1:])))
            return _written(z, new, draws.length + t, tune == 0), worst

        told = _unbounded(jnp.zeros((), _dtype(theta)), rows)
        z, told = jax.lax.fori_loop(0, count, step, (draws.z, told))
        told = told._replace(acceptance=told.acceptance / jnp.maximum(count, 1))
        return now, Draws(z, draws.length + jnp.where(tune > 0, 0, count)), told

    return Sampler(begin, room, draw, exact=True)


def drawn_statistics(statistics: Callable, rows: PyTree, weights: jax.Array, draws: Draws) -> PyTree:
    """Σ_n w_n (1/S) Σ_s T(x_n, z_ns); ``statistics`` is ``(datum, z) -> T``."""

    def of(z: PyTree) -> PyTree:  # of one draw of every chain
        return jax.tree.map(
            lambda t: _weighed(weights, jnp.mean(_real(t, weights), axis=1)), _each(statistics)(rows, z)
        )

    return jax.tree.map(lambda total: total / draws.length, _summed(of, draws))


def drawn_m_step(
    log_joint: Callable, log_prior: Callable | None, constrain: Callable, unconstrain: Callable, steps: int = 10
) -> Callable:
    """``(theta, rows, weights, draws) -> theta'``: ``steps`` of L-BFGS up Q̂ + log p(θ), never lower than its start.

    Args:
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()`` or None.
        constrain: flat unconstrained numbers (d,) to θ; ``unconstrain`` is its inverse. The density climbed is of θ.
    """

    def m_step(theta: PyTree, rows: PyTree, weights: jax.Array, draws: Draws) -> PyTree:
        q = expected_log_joint(log_joint, constrain, rows, weights, draws)

        def value(position: jax.Array) -> jax.Array:
            return q(position) if log_prior is None else q(position) + log_prior(constrain(position))

        return constrain(climbed(value, unconstrain(theta), steps))

    return m_step


def expected_log_joint(
    log_joint: Callable, constrain: Callable, rows: PyTree, weights: jax.Array, draws: Draws
) -> Callable:
    """``φ -> Σ_n w_n (1/S) Σ_s log p(x_n, z_ns | θ(φ))``.

    Its gradient is summed beside it: a loop of a length not known beforehand has no reverse mode.
    """

    def part(position: jax.Array, z: PyTree) -> jax.Array:
        theta = constrain(position)
        terms = _each(lambda datum, z: log_joint(theta, datum, z))(rows, z)  # (n, C)
        return _weighed(weights, jnp.mean(terms, axis=1))

    @jax.custom_vjp
    def q(position: jax.Array) -> jax.Array:
        return _summed(lambda z: part(position, z), draws) / draws.length

    def forward(position: jax.Array) -> tuple:
        value, slope = _summed(lambda z: jax.value_and_grad(part)(position, z), draws)
        return value / draws.length, slope / draws.length

    q.defvjp(forward, lambda slope, cotangent: (cotangent * slope,))
    return q


def improved(
    m_step: Callable,
    log_joint: Callable,
    log_prior: Callable | None,
    theta: PyTree,
    rows: PyTree,
    weights: jax.Array,
    draws: Draws,
    exact: bool,
) -> Improved:
    """An M-step on draws of z, and its gain with a standard error.

    Args:
        m_step: ``(theta, rows, weights, draws) -> theta'``.
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()``, where the M-step maximises it too, or None.
        weights: (n,) ≥ 0.
        draws: given ``theta``.
        exact: draws are independent; else only chains are.
    """
    new = m_step(theta, rows, weights, draws)
    new = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, theta)

    def change(datum: PyTree, z: PyTree) -> jax.Array:
        # Differences draw by draw: the two means differ by far less than either varies.
        return log_joint(new, datum, z) - log_joint(theta, datum, z)

    def of(z: PyTree) -> tuple:
        delta = jnp.where(weights[:, None] > 0, _each(change)(rows, z), 0)  # (n, C)
        return delta, jnp.square(delta)

    total, square = _summed(of, draws)
    chains = total.shape[1]
    mean = jnp.mean(total, axis=1) / draws.length  # (n,)
    gain = jnp.sum(weights * mean)
    if log_prior is not None:
        gain = gain + log_prior(new) - log_prior(theta)
    if exact:
        count = chains * draws.length
        variance = (jnp.sum(square, axis=1) / count - jnp.square(mean)) / (count - 1)
    else:
        variance = jnp.var(total / draws.length, axis=1, ddof=1) / chains
    error = jnp.sqrt(jnp.sum(jnp.square(weights) * jnp.maximum(variance, 0)))
    return Improved(new, gain, error)


def observed_information(
    log_joint: Callable,
    log_prior: Callable | None,
    constrain: Callable,
    position: jax.Array,
    rows: PyTree,
    weights: jax.Array,
    draws: Draws,
) -> Information:
    """Louis's identity by draws: −∂² log p(x|θ) = E[−∂² log p(x, z|θ)] − Cov[∂ log p(x, z|θ)], over z | x, θ.

    Args:
        log_joint: ``(theta, datum, z) -> ()``.
        log_prior: ``theta -> ()`` or None.
        constrain: flat numbers φ (d,) to θ.
        position: φ, of which z are draws.
    """
    here = jnp.where(weights > 0, weights, 0)

    def joint(phi: jax.Array, datum: PyTree, z: PyTree) -> jax.Array:
        return log_joint(constrain(phi), datum, z)

    def of(z: PyTree) -> tuple:
        curvature = jax.hessian(
            lambda phi: _weighed(weights, jnp.mean(_each(lambda datum, z: joint(phi, datum, z))(rows, z), axis=1))
        )(position)
        scores = _each(lambda datum, z: jax.grad(joint)(position, datum, z))(rows, z)  # (n, C, d)
        scores = jnp.where(here[:, None, None] > 0, scores, 0)
        return curvature, scores, jnp.einsum("n,ncd,nce->de", here, scores, scores)

    curvature, total, outer = _summed(of, draws)
    complete = -curvature / draws.length
    if log_prior is not None:
        complete = complete - jax.hessian(lambda phi: log_prior(constrain(phi)))(position)
    chains = total.shape[1]
    count, means = chains * draws.length, total / draws.length
    mean = jnp.mean(means, axis=1)  # (n, d)
    missing = (outer - count * jnp.einsum("n,nd,ne->de", here, mean, mean)) / (count - 1)
    apart = means - mean[:, None]
    noise = jnp.einsum("n,ncd,nce->de", jnp.square(here), apart, apart) / (chains * (chains - 1))
    return Information((complete + complete.T) / 2, missing, noise)


def bridged(
    log_joint: Callable, first: PyTree, second: PyTree, rows: PyTree, at_first: Draws, at_second: Draws
) -> jax.Array:
    """log p(x_n | second) − log p(x_n | first), (n,), from draws of z given each: a geometric bridge.

        p₂(x)/p₁(x) = E₁[√r] / E₂[1/√r],   r = p₂(x, z)/p₁(x, z)

    Meng & Wong 1996. Good where the two posteriors of z overlap.
    """

    def log_mean(draws: Draws, power: float) -> jax.Array:
        def add(index: jax.Array, total: jax.Array) -> jax.Array:
            z = jax.tree.map(lambda a: a[index], draws.z)
            ratio = _each(lambda datum, z: log_joint(second, datum, z) - log_joint(first, datum, z))(rows, z)
            return jnp.logaddexp(total, jax.nn.logsumexp(power * ratio, axis=1))

        total = jax.lax.fori_loop(0, draws.length, add, jnp.full(_count(rows), -jnp.inf, _dtype(first)))
        return total - jnp.log(draws.length * jax.tree.leaves(draws.z)[0].shape[2])

    return log_mean(at_first, 0.5) - log_mean(at_second, -0.5)


def _each(function: Callable) -> Callable:
    """``(rows, z) -> function(datum, z)`` of one draw of every chain of every datum, z leading with (n, C)."""
    return jax.vmap(lambda datum, z: jax.vmap(lambda z: function(datum, z))(z))


def _summed(function: Callable, draws: Draws) -> PyTree:
    """Σ_l function(z_l) over the draws there are."""

    def at(index: Any) -> PyTree:
        return function(jax.tree.map(lambda a: a[index], draws.z))

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(at, jnp.array(0)))
    return jax.lax.fori_loop(0, draws.length, lambda i, total: jax.tree.map(jnp.add, total, at(i)), zero)


def _weighed(weights: jax.Array, terms: jax.Array) -> jax.Array:
    """Σ_n w_n t_n; what has no weight does not count, whatever it is."""
    spread = jnp.expand_dims(weights, tuple(range(1, terms.ndim)))
    return jnp.sum(jnp.where(spread > 0, spread * terms, 0), axis=0)


def _real(t: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.asarray(t, jnp.result_type(t, weights))


def _written(buffer: PyTree, values: PyTree, index: jax.Array, kept: Any) -> PyTree:
    """The buffer with values at an index, where they are kept."""

    def write(a: jax.Array, v: jax.Array) -> jax.Array:
        at = jnp.clip(index, 0, a.shape[0] - 1)
        return a.at[at].set(jnp.where(kept, v.astype(a.dtype), a[at]))

    return jax.tree.map(write, buffer, values)


def _empty(shapes: PyTree, most: int) -> Draws:
    return Draws(jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes), jnp.array(0))


def _unbounded(acceptance: jax.Array, rows: PyTree) -> Told:
    nothing = jnp.full(_count(rows), -jnp.inf, acceptance.dtype)
    return Told(acceptance, nothing, jnp.zeros_like(nothing))


def _count(rows: PyTree) -> int:
    return jax.tree.leaves(rows)[0].shape[0]


def _dtype(theta: PyTree) -> Any:
    return jnp.result_type(float) if not (leaves := jax.tree.leaves(theta)) else jnp.result_type(*leaves)


def _acceptance(info: Any) -> Any:
    return getattr(info, "acceptance", jnp.nan)
