"""The climbs of Monte-Carlo EM, with S draws of z per datum.

After every step Python decides, outside of compiled functions, whether S grows and whether the climb ends. ``method``
is a ``MonteCarloEM``, which is a static argument of the compiled functions.
"""

import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import ModelError, RunError
from tractable.core.latent import LatentModel
from tractable.core.rows import Data
from tractable.core.shared import compiled
from tractable.core.tree import PyTree
from tractable.engine.drawing import ATTEMPTS, starting_point
from tractable.engine.leaves import restore
from tractable.engine.method import Session
from tractable.latent.em_method import initial_thetas
from tractable.latent.latent_chains import SHAPE, STEP
from tractable.latent.latent_draws import Chains, DrawInfo, Draws
from tractable.latent.monte_carlo_em import Improvement, improve

CHAINS = 4  # chains per datum, whose spread gives the Monte-Carlo error
STALL = 6  # number of steps at one S; if the later half of them gains as much as the earlier half, gains are noise
QUIET = 3  # a climb ends after so many small gains in a row, since one may be small by chance (Booth & Hobert 1999)
TRIAL_ROWS = 1000  # number of first rows at which a starting θ must have a finite density


class ClimbState(NamedTuple):
    """The state of one climb between two steps; the defaults are the values before the first step.

    As every step draws z anew, draws are not part of the state.
    """

    theta: PyTree
    chains: PyTree
    calls: int = 0  # calls of the sampler so far
    drawn: int = 0  # draws per datum so far
    rate: float = math.nan  # acceptance rate of the last draws
    length: int = 0  # draws per chain at the next step, S/4
    gains: np.ndarray = np.zeros(0)  # of every step, in nats (natural logarithms)
    errors: np.ndarray = np.zeros(0)  # nats, standard errors of the gains
    sizes: np.ndarray = np.zeros(0, int)  # S of every step
    recent: np.ndarray = np.zeros(0)  # gains at the present S
    small: int = 0  # steps in a row whose upper bound is below the tolerance
    quiet: int = 0  # steps in a row whose gain is within its noise
    upper: float = math.nan  # upper bound of the last step's gain, nats
    ended: str = ""  # "settled", "ceiling" (S is ``most``), "steps" or "interrupted"; "" before the end


class End(NamedTuple):
    """The end of one climb of Monte-Carlo EM."""

    state: ClimbState
    draws: Draws  # of z given the last θ


@compiled("method", "model")
def _begin(method: Any, model: LatentModel, key: jax.Array, theta: PyTree, rows: PyTree) -> tuple:
    """Chains started at z ~ p(z | θ), and an empty buffer for their draws."""
    sampler = method.sampler(model)
    return sampler.begin(key, theta, rows), sampler.room(theta, rows, method.most // CHAINS)


@compiled("method", "model", donate=("draws",))
def _draw(
    method: Any, model: LatentModel, key: jax.Array, theta: PyTree, chains: Chains, rows: PyTree, draws: Draws,
    steps: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[Chains, Draws, DrawInfo]:  # fmt: skip
    """More draws of every chain; ``steps`` are the sampler's ``count``, ``burn`` and ``tune``."""
    return method.sampler(model).draw(key, theta, chains, rows, draws, *steps)


@compiled("method", "model")
def _improve(method: Any, model: LatentModel, theta: PyTree, rows: PyTree, draws: Draws) -> Improvement:
    m_step, exact = method.m_step(model), method.sampler(model).exact
    return improve(m_step, model.log_joint, method.log_prior(model), theta, rows, ones(rows), draws, exact)


def ones(rows: PyTree) -> jax.Array:
    """A weight of 1 for each row."""
    return jnp.ones(jax.tree.leaves(rows)[0].shape[0])


class Climb(NamedTuple):
    """One climb of Monte-Carlo EM from one start; a ``ClimbState`` holds θ, the chains, and the gains so far."""

    method: Any
    model: LatentModel
    rows: PyTree
    key: jax.Array

    def begin(self, theta: PyTree, state: ClimbState | None) -> tuple[ClimbState, Draws]:
        """The saved state, or the one after the chains' warm-up if none is saved; and a buffer for draws."""
        chains, draws = _begin(self.method, self.model, jax.random.fold_in(self.key, 0), theta, self.rows)
        if state is not None:
            return state, draws
        state, half = ClimbState(theta, chains, length=self.method.draws // CHAINS), self.method.warmup // 2
        if not self.method.sampler(self.model).exact:
            state, draws = self.add_draws(state, draws, half - half // 2, half // 2, SHAPE)
            state, draws = self.add_draws(state, draws, self.method.warmup - half, 0, STEP)
        return state, draws

    def add_draws(
        self, state: ClimbState, draws: Draws, count: int, burn: int = 0, tune: int = 0
    ) -> tuple[ClimbState, Draws]:
        """``count`` more draws of every chain, given the present θ."""
        chains, draws, info = _draw(
            self.method, self.model, jax.random.fold_in(self.key, state.calls + 1), state.theta, state.chains,
            self.rows, draws, (jnp.array(count), jnp.array(burn), jnp.array(tune)),
        )  # fmt: skip
        _expect_valid(info)
        total = state.drawn + CHAINS * (count + burn)
        return state._replace(chains=chains, calls=state.calls + 1, drawn=total, rate=float(info.acceptance)), draws

    def redraw(self, state: ClimbState, draws: Draws) -> tuple[ClimbState, Draws]:
        """The state and buffer with new draws, given the present θ, in place of the old ones."""
        return self.add_draws(state, draws._replace(length=jnp.array(0)), state.length, self.method.burn)

    def step(self, state: ClimbState, draws: Draws, stop: Callable[[], bool]) -> tuple[ClimbState, Draws, bool]:
        """The results of one step of EM, in which S doubles until the gain is known well enough.

        The last result is whether S may grow further.
        """
        z_level = NormalDist().inv_cdf(self.method.level)
        state, draws = self.redraw(state, draws)
        while True:
            new = _improve(self.method, self.model, state.theta, self.rows, draws)
            gain, error = float(new.gain), float(new.error)
            if not math.isfinite(gain + error):
                raise RunError(
                    f"Step {len(state.gains)} of Monte-Carlo EM: the gain of log p(x, z | θ) is {gain} ± {error}. Is "
                    "the likelihood bounded, and finite wherever z may be drawn? A prior on θ may help."
                )
            upper, lower = gain + z_level * error, gain - z_level * error
            may_grow = 2 * state.length * CHAINS <= self.method.most
            if upper < self.method.tolerance or lower > 0 or not may_grow or stop():
                break
            state, draws = self.add_draws(state, draws, state.length)
            state = double_draws(state)
        state = state._replace(
            theta=new.theta, gains=np.append(state.gains, gain), errors=np.append(state.errors, error),
            sizes=np.append(state.sizes, state.length * CHAINS), recent=np.append(state.recent, gain), upper=upper,
            small=state.small + 1 if upper < self.method.tolerance else 0,
            quiet=0 if lower > 0 else state.quiet + 1,
        )  # fmt: skip
        return state, draws, may_grow

    def run(
        self, theta: PyTree, state: ClimbState | None, session: Session, start: int, save: Callable
    ) -> tuple[ClimbState, End]:
        """Climb from θ, or from a saved state, to the end; calls ``save(state)`` before every step."""
        (state, draws), most = self.begin(theta, state), self.method.steps
        while not state.ended:
            before = state
            save(before)
            state, draws, may_grow = self.step(state, draws, session.stop)
            done = start * most + len(state.gains)
            session.say("climbing", done, self.method.starts * most, {"objective": float(state.gains.sum())})
            is_stalled = has_stalled(state.recent) and not state.small
            if state.small == QUIET:
                state = state._replace(ended="settled")
            elif session.stop():
                state = state._replace(ended="interrupted")
                save(before, at_once=True)  # the last step may have been cut short, so the state before it is saved
            elif not may_grow and not state.small and (state.quiet >= QUIET or is_stalled):
                state = state._replace(ended="ceiling")
            elif len(state.gains) == most:
                state = state._replace(ended="steps")
            elif is_stalled and may_grow:
                state = double_draws(state)
        return state, End(*self.redraw(state, draws))


def double_draws(state: ClimbState) -> ClimbState:
    """The state with S doubled."""
    return state._replace(length=2 * state.length, recent=np.zeros(0))


def has_stalled(gains: Sequence[float] | np.ndarray) -> bool:
    """Whether the last ``STALL`` gains at one S are noise: the later half adds up to no less than the earlier half."""
    if len(gains) < STALL:
        return False
    half = STALL // 2
    return bool(sum(gains[-half:]) >= sum(gains[-STALL:-half]))


def _expect_valid(info: DrawInfo) -> None:
    """Raise a RunError if a draw exceeded the bound, or was given up."""
    excess = np.asarray(info.excess)
    if np.any(excess > 0):
        row = int(np.argmax(excess))
        raise RunError(
            f"log p(x | z, θ) of row {row} exceeds log M by {excess[row]:.4g}: bound(params, datum) is below the "
            "supremum over z, so that the draws do not have density p(z | x, θ). Give a bound that holds at every θ."
        )
    if np.any(np.asarray(info.gave_up) > 0):
        row = int(np.argmax(np.asarray(info.gave_up)))
        raise RunError(
            f"Rejection gave up on row {row}: too few proposals z ~ p(z | θ) are accepted. Use a tighter bound, or "
            "kernel='mala'."
        )


def restore_states(
    method: Any, model: LatentModel, rows: PyTree, thetas: PyTree, leaves: dict[str, np.ndarray] | None
) -> list[ClimbState]:
    """The saved states of climbs, one per start; empty if none are saved."""
    if not leaves:
        return []
    theta = jax.tree.map(lambda a: a[0], thetas)
    key = jax.eval_shape(lambda: jax.random.key(0))
    chains, _ = jax.eval_shape(functools.partial(_begin, method, model), key, theta, rows)
    count = 1 + max(int(name.partition("/")[0]) for name in leaves)
    return restore([ClimbState(theta, chains)] * count, leaves)


def starting_thetas(method: Any, model: LatentModel, data: Data, key: jax.Array) -> PyTree:
    """The starting θ, with a leading axis of starts.

    They are as for EM if z can be summed out, or if the model has a rule for them (``begin``). Otherwise each θ is
    drawn until its joint density with the first rows is finite.
    """
    if model.steps.begin is not None or model.sums is not None:
        return initial_thetas(model, data, key, method.starts)
    rows = data.take(slice(0, TRIAL_ROWS)).rows
    rows = jax.tree.map(jnp.asarray, rows[0] if rows[1] is None else rows)
    thetas = [_try_thetas(method, model, rows, jax.random.fold_in(key, start)) for start in range(method.starts)]
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, dtype) for leaf in leaves]), *thetas)


def _try_thetas(method: Any, model: LatentModel, rows: PyTree, key: jax.Array) -> PyTree:
    """A random θ at which the rows' joint densities are finite; raises ModelError if no try finds one."""
    for attempt in range(ATTEMPTS):
        subkey = jax.random.fold_in(key, attempt)
        theta = model.start(subkey) if model.start is not None else model.params(starting_point(model, subkey, attempt))
        if bool(_is_finite(method, model, theta, jax.random.fold_in(subkey, 1), rows)):
            return theta
    raise ModelError(
        f"In {ATTEMPTS} tries no starting θ was found at which log p(θ) and log p(x, z | θ) of the first rows are "
        f"finite; the last was {theta}. Give begin=, a function (key, rows) -> params."
    )


@compiled("method", "model")
def _is_finite(method: Any, model: LatentModel, theta: PyTree, key: jax.Array, rows: PyTree) -> jax.Array:
    """Whether the rows' log joint density is finite at z ~ p(z | θ)."""
    sampler = method.sampler(model)
    if sampler.exact:
        return jnp.isfinite(model.log_prior(theta))
    chains, draws = sampler.begin(key, theta, rows), sampler.room(theta, rows, 1)
    z = sampler.draw(key, theta, chains, rows, draws, 1, 0, 0)[1].z
    z = jax.tree.map(lambda a: a[0, :, 0], z)
    terms = jax.vmap(lambda datum, z: model.log_joint(theta, datum, z))(rows, z)
    return jnp.all(jnp.isfinite(terms)) & jnp.isfinite(model.log_prior(theta))
