"""Monte-Carlo EM's climbs from their starts to their ends: the host decides when S grows and when it ends.

``method`` is a ``MonteCarloEM``, to the compiler a static argument.
"""

import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.data.rows import Data
from tractable.kernels import monte_carlo_em as drawn
from tractable.methods.drawing import ATTEMPTS
from tractable.methods.maximisation import beginnings
from tractable.methods.method import Session
from tractable.models.latent import LatentModel
from tractable.tools.errors import ModelError, RunError
from tractable.tools.leaves import restored

PyTree = Any
CHAINS = 4  # a datum, whose spread is the Monte-Carlo error
STALL = 6  # steps at one S, of which the later half gains no less than the earlier: noise
QUIET = 3  # steps in a row that are to say that it ends: noise makes one by chance (Booth & Hobert 1999)
DRAWN_ROWS = 1000  # that a start is tried on


class Way(NamedTuple):
    """Where one climb stands between two steps: enough to go on exactly, since every step draws anew."""

    theta: PyTree
    chains: PyTree
    calls: int  # of the sampler
    drawn: int  # a datum, altogether
    rate: float  # acceptance, of the last draws
    length: int  # of the next step's draws, S/4
    gains: np.ndarray  # nats, of every step taken
    errors: np.ndarray
    sizes: np.ndarray  # S
    recent: np.ndarray  # gains at this S
    small: int  # steps in a row that say it ends
    quiet: int  # steps in a row within their noise
    upper: float  # nats, at the last step
    ended: str  # as of ``End``; nothing while it goes on


class End(NamedTuple):
    """Where one climb of Monte-Carlo EM ended."""

    theta: PyTree
    draws: drawn.Draws  # given theta
    gains: np.ndarray  # nats, of every step taken
    errors: np.ndarray
    sizes: np.ndarray  # S
    rate: float  # acceptance, of the last draws
    drawn: int  # a datum, altogether
    upper: float  # nats, at the last step
    ended: str  # "settled", "ceiling", "steps" or "interrupted"


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _begun(method: Any, model: LatentModel, key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
    """Chains at z ~ p(z | θ), and room for their draws."""
    sampler = method.sampler(model)
    return sampler.begin(key, theta, rows), sampler.room(theta, rows, method.most // CHAINS)


@functools.partial(jax.jit, static_argnames=("method", "model"), donate_argnames="draws")
def _drawn(
    method: Any, model: LatentModel, key: jax.Array, theta: PyTree, chains: drawn.Chains, rows: PyTree,
    draws: drawn.Draws, count: jax.Array, burn: jax.Array, tune: jax.Array,
) -> tuple[drawn.Chains, drawn.Draws, drawn.DrawInfo]:  # fmt: skip
    return method.sampler(model).draw(key, theta, chains, rows, draws, count, burn, tune)


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _improved(method: Any, model: LatentModel, theta: PyTree, rows: PyTree, draws: drawn.Draws) -> drawn.Improved:
    m_step, exact = method.m_step(model), method.sampler(model).exact
    return drawn.improved(m_step, model.log_joint, method.log_prior(model), theta, rows, ones(rows), draws, exact)


def ones(rows: PyTree) -> jax.Array:
    return jnp.ones(jax.tree.leaves(rows)[0].shape[0])


class _Drawing:
    """The chains of one climb, on the host: where they are, what they drew, and how often they were asked."""

    def __init__(
        self, method: Any, model: LatentModel, rows: PyTree, theta: PyTree, key: jax.Array, way: Way | None = None
    ):
        self.method, self.model, self.rows, self.key = method, model, rows, key
        self.calls, self.total, self.rate = 0, 0, math.nan
        self.chains, self.draws = _begun(method, model, jax.random.fold_in(key, 0), theta, rows)
        if way is not None:
            self.chains, self.calls, self.total, self.rate = way.chains, way.calls, way.drawn, way.rate
            return
        half = method.warmup // 2
        if not method.sampler(model).exact:
            self.advance(theta, half - half // 2, half // 2, drawn.SHAPE)
            self.advance(theta, method.warmup - half, 0, drawn.STEP)

    def advance(self, theta: PyTree, count: int, burn: int, tune: int = 0) -> None:
        self.calls += 1
        self.chains, self.draws, info = _drawn(
            self.method, self.model, jax.random.fold_in(self.key, self.calls), theta, self.chains, self.rows,
            self.draws, jnp.array(count), jnp.array(burn), jnp.array(tune),
        )  # fmt: skip
        self.total += CHAINS * (count + burn)
        self.rate = float(info.acceptance)
        _noticed(info)

    def anew(self, theta: PyTree, length: int) -> None:
        """Draws given another θ."""
        self.draws = self.draws._replace(length=jnp.array(0))
        self.advance(theta, length, self.method.burn)


def climb(
    method: Any, model: LatentModel, rows: PyTree, theta: PyTree, key: jax.Array, session: Session, start: int,
    way: Way | None, keep: Callable,
) -> tuple[Way, End]:  # fmt: skip
    """One start to its end, from where it stood if it was saved; ``keep(way)`` is called before every step."""
    z_level = NormalDist().inv_cdf(method.level)
    drawing = _Drawing(method, model, rows, theta, key, way)
    if way is None:
        nothing = np.zeros(0)
        way = Way(
            theta, drawing.chains, 0, 0, math.nan, method.draws // CHAINS, nothing, nothing, nothing.astype(int),
            nothing, 0, 0, math.nan, "",
        )  # fmt: skip
    theta, length, recent, ended = way.theta, way.length, way.recent, way.ended
    gains, errors, sizes, small, quiet, upper = way.gains, way.errors, way.sizes, way.small, way.quiet, way.upper

    def stands(ended: str = "") -> Way:
        return Way(
            theta, drawing.chains, drawing.calls, drawing.total, drawing.rate, length, gains, errors, sizes, recent,
            small, quiet, upper, ended,
        )  # fmt: skip

    while not ended:
        before = stands()
        keep(before)
        drawing.anew(theta, length)
        while True:
            found = _improved(method, model, theta, rows, drawing.draws)
            gain, error = float(found.gain), float(found.error)
            if not math.isfinite(gain + error):
                raise RunError(
                    f"Step {len(gains)} of Monte-Carlo EM: the gain of log p(x, z | θ) is {gain} ± {error}. Is the "
                    "likelihood bounded, and finite wherever z may be drawn? A prior keeps θ where it is."
                )
            upper, lower = gain + z_level * error, gain - z_level * error
            grows = 2 * length * CHAINS <= method.most
            if upper < method.tolerance or lower > 0 or not grows or session.stop():
                break
            drawing.advance(theta, length, 0)
            length, recent = 2 * length, np.zeros(0)
        theta = found.theta
        gains, errors, recent = np.append(gains, gain), np.append(errors, error), np.append(recent, gain)
        sizes = np.append(sizes, length * CHAINS)
        session.say("climbing", start * method.steps + len(gains), method.starts * method.steps)
        small = small + 1 if upper < method.tolerance else 0
        quiet = 0 if lower > 0 else quiet + 1
        still = stalled(recent) and not small
        if small == QUIET:
            ended = "settled"
        elif session.stop():
            ended = "interrupted"
            keep(before, at_once=True)  # this step may have been cut short
        elif not grows and not small and (quiet >= QUIET or still):
            ended = "ceiling"
        elif len(gains) == method.steps:
            ended = "steps"
        elif still and grows:
            length, recent = 2 * length, np.zeros(0)
    last = stands(ended)
    drawing.anew(theta, length)
    return last, End(theta, drawing.draws, gains, errors, sizes, drawing.rate, drawing.total, upper, ended)


def stalled(gains: Sequence[float] | np.ndarray) -> bool:
    """Whether the later half of the last ``STALL`` gains at one S is no less than the earlier: noise is left."""
    if len(gains) < STALL:
        return False
    half = STALL // 2
    return bool(sum(gains[-half:]) >= sum(gains[-STALL:-half]))


def _noticed(info: drawn.DrawInfo) -> None:
    """A bound that is none, or draws that were given up, in a sentence."""
    excess = np.asarray(info.excess)
    if np.any(excess > 0):
        row = int(np.argmax(excess))
        raise RunError(
            f"log p(x | z, θ) of row {row} exceeds log M by {excess[row]:.4g}: bound(params, datum) is below the "
            "supremum over z, and draws under it are not of p(z | x, θ). Give a bound that holds at every θ."
        )
    if np.any(np.asarray(info.gave_up) > 0):
        row = int(np.argmax(np.asarray(info.gave_up)))
        raise RunError(
            f"Rejection gave row {row} up: too few of the proposals z ~ p(z | θ) are accepted. Use a tighter bound, or "
            "kernel='mala'."
        )


def ways(
    method: Any, model: LatentModel, rows: PyTree, thetas: PyTree, leaves: dict[str, np.ndarray] | None
) -> list[Way]:
    """Where climbs stood that were saved, start by start."""
    if not leaves:
        return []
    theta = jax.tree.map(lambda a: a[0], thetas)
    key = jax.eval_shape(lambda: jax.random.key(0))
    chains, _ = jax.eval_shape(functools.partial(_begun, method, model), key, theta, rows)
    nothing = np.zeros(0)
    one = Way(theta, chains, 0, 0, 0.0, 0, nothing, nothing, nothing, nothing, 0, 0, 0.0, "")
    count = 1 + max(int(name.partition("/")[0]) for name in leaves)
    return restored([one] * count, leaves)


def begun_at(method: Any, model: LatentModel, data: Data, key: jax.Array) -> PyTree:
    """θ to begin with, a leading axis of starts: as for EM; where z cannot be summed out, from the joint density."""
    if model.steps.begin is not None or model.sums is not None:
        return beginnings(model, data, key, method.starts)
    rows = data.take(slice(0, DRAWN_ROWS)).rows
    rows = jax.tree.map(jnp.asarray, rows[0] if rows[1] is None else rows)
    found = [_tried(method, model, rows, jax.random.fold_in(key, start)) for start in range(method.starts)]
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *found)


def _tried(method: Any, model: LatentModel, rows: PyTree, key: jax.Array) -> PyTree:
    """A θ at which the densities of rows are finite."""
    centre, width = jnp.zeros(model.space.size), 2.0
    if model.prior_is_callable:
        centre, width = model.space.ravel(model.unconstrain(model.example(jax.random.key(0)))), 1.0
    for attempt in range(ATTEMPTS):
        here = jax.random.fold_in(key, attempt)
        if model.start is not None:
            theta = model.start(here)
        else:
            shrunk = width * 0.7**attempt if attempt < ATTEMPTS - 1 else 0.0
            jitter = jax.random.uniform(here, centre.shape, minval=-1.0, maxval=1.0)
            theta = model.constrain(model.space.unravel(centre + shrunk * jitter))
        if bool(_fine(method, model, theta, jax.random.fold_in(here, 1), rows)):
            return theta
    raise ModelError(
        f"No θ to begin with was found in {ATTEMPTS} tries at which log p(θ) and log p(x, z | θ) of the first "
        f"rows are finite; the last was {theta}. Give begin=, a function (key, rows) -> params."
    )


@functools.partial(jax.jit, static_argnames=("method", "model"))
def _fine(method: Any, model: LatentModel, theta: PyTree, key: jax.Array, rows: PyTree) -> jax.Array:
    """Whether rows have a finite log joint density at z ~ p(z | θ)."""
    sampler = method.sampler(model)
    if sampler.exact:
        return jnp.isfinite(model.log_prior(theta))
    chains, draws = sampler.begin(key, theta, rows), sampler.room(theta, rows, 1)
    z = sampler.draw(key, theta, chains, rows, draws, 1, 0, 0)[1].z
    first = jax.tree.map(lambda a: a[0, :, 0], z)
    terms = jax.vmap(lambda datum, z: model.log_joint(theta, datum, z))(rows, first)
    return jnp.all(jnp.isfinite(terms)) & jnp.isfinite(model.log_prior(theta))
