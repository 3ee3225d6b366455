"""The base of methods that draw chains: starting points, warm-up, the main run, saving and resuming."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core.clock import work_time
from tractable.core.errors import CheckpointError, ModelError
from tractable.core.model import Model, PyTree, whole
from tractable.core.rows import Data
from tractable.core.settings import Count, at_least
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.belief import Belief, Cost, Draws, Moments
from tractable.engine import preflight
from tractable.engine import run as loop
from tractable.engine.leaves import beneath, nest, restore
from tractable.engine.method import Method, Outcome, Program, Session
from tractable.engine.session import PARTS

POSITION = "position"  # name of the trace that holds the draws
# Number of attempts to find a starting point of finite density: first near the origin or the model's example position,
# then from the prior.
ATTEMPTS, FROM_PRIOR = 20, 100


class Chains(NamedTuple):
    """The state of a run that draws chains: all that is needed to continue it exactly."""

    groups: int  # groups of steps done since the start of the first run (``run.Shape`` explains groups and blocks)
    keys: jax.Array  # (chain,)
    states: PyTree  # leading axis (chain,)
    tuned: dict[str, jax.Array]  # arrays that the kernel is built with, from warm-up
    thin: int  # steps per kept draw
    block: int  # steps whose noise is drawn at once
    found: dict[str, Any]  # results of warm-up for the report
    moments: loop.Moments | None  # running moments, for runs that keep no draws
    surplus: dict[str, np.ndarray]  # traces of draws beyond the requested number, since a run ends with a full group


class WarmUp(NamedTuple):
    """The result of a warm-up."""

    positions: jax.Array  # (chain, d)
    tuned: dict[str, jax.Array]  # arrays that the kernel is built with
    found: dict[str, Any]  # results for the report
    thin: int  # steps per kept draw


@dataclass(frozen=True, kw_only=True)
class Drawing(Method):
    """The common fields of methods that draw chains.

    Args:
        chains: independent chains, from independent starting points.
        draws: kept draws per chain.
        warmup: steps per chain in which the method tunes itself; their draws are thrown away.
        thin: steps per kept draw.
    """

    chained: ClassVar[bool] = True
    verified: ClassVar[bool] = True
    unsaved: ClassVar[tuple[str, ...]] = ()  # traces that only the warm-up reads
    outside: ClassVar[tuple[str, ...]] = ("chains", "draws")
    chains: Count = 4
    draws: Count = 1000
    warmup: Annotated[int, at_least(0)] = 1000
    thin: Count = 1

    @property
    def advice(self) -> str:
        return "draw more, or change the parameters"

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        """Run the warm-up: it gives the main run's first positions and tuned values. By default nothing is tuned."""
        return WarmUp(positions, {}, {}, int(self.thin))

    def watch(self, info: dict[str, np.ndarray], states: PyTree, session: Session) -> None:
        """Raise an error if the run cannot continue; called after every segment of the run."""

    def starts(self, session: Session, key: jax.Array) -> jax.Array:
        """(chain, d) unconstrained starting points."""
        return starts(session.model, session.data, key, self.chains)

    def program(self, session: Session) -> Program:
        """The program of the main run."""
        streams = self.minibatch and session.data is not None and not session.data.resident
        return Program(session.model, self, streams, placement=session.placement)

    def learn(self, session: Session) -> Outcome:
        program = self.program(session)
        data, plan = session.data, self.plan(session.data)
        start_time = work_time()
        if session.resume is not None:
            return self.go_on(session, self.resumed(session, session.resume), self.draws)
        start_key, warm_keys, keys = _keys(session.key, self.chains)
        positions = self.starts(session, start_key)
        positions, tuned, found, thin = self.warm_up(session, program, warm_keys, positions)
        if session.stop():  # an interrupted warm-up is discarded; a resumed run repeats it
            no_draws = self.belief({}, session.model, thin)
            return Outcome(no_draws, found, {"warm-up": work_time() - start_time}, True)
        shape = self.shape(session, program, thin)
        rows = None if plan is not None else loop.rows_of(program, data, None)
        states = loop.begin(program, tuned, rows, keys, positions)
        chains = Chains(0, keys, states, tuned, thin, shape.block, found, None, {})
        return self.go_on(session, chains, self.draws, warmup_seconds=work_time() - start_time)

    def resumed(self, session: Session, leaves: dict[str, np.ndarray]) -> "Chains":
        """The chains, restored from the arrays that were saved."""
        data, program = session.data, self.program(session)
        tuned = jax.tree.map(jnp.asarray, nest(beneath(leaves, "tuned")))
        rows = None if data is None or self.minibatch else jax.eval_shape(data.arrays)
        keys = jax.eval_shape(lambda: chain_keys(jax.random.key(0), self.chains))
        position = jax.ShapeDtypeStruct((self.chains, session.model.space.size), jnp.result_type(float))
        states = jax.eval_shape(lambda t, r, k, p: jax.vmap(program(r, t).init)(k, p), tuned, rows, keys, position)
        moments = loop.some_moments() if session.moments else None
        like = Chains(0, keys, states, {}, 1, 1, {}, moments, {})
        return restore(like, leaves)._replace(tuned=tuned)

    def go_on(
        self,
        session: Session,
        chains: "Chains",
        draws: int,
        before: dict[str, np.ndarray] | None = None,
        warmup_seconds: float = 0.0,
    ) -> Outcome:
        """Run until each chain has ``draws`` kept draws, the draws of earlier runs included.

        Args:
            before: traces of the earlier draws, if they are not in the saved folder.
        """
        program = self.program(session)
        data, saver = session.data, session.saver
        shape = self.shape(session, program, chains.thin, draws)._replace(block=chains.block)
        groups = -(-draws * shape.thin // shape.group)
        every = 1 if saver is None else max(1, min(shape.capacity, groups // PARTS))

        def on_segment(drawn, info, states, done, moments):
            info = {name: trace for name, trace in info.items() if name not in self.unsaved}
            self.watch(info, states, session)
            if saver is not None:
                now = chains._replace(groups=done, states=states, moments=moments, surplus={})
                try:
                    saver.save(now, None if session.moments else {POSITION: drawn, **info})
                except CheckpointError as error:
                    if error.partial is not None:
                        reached = self.belief(error.partial, session.model, chains.thin)
                        error.partial = Outcome(reached, chains.found, {}, True)
                    raise
            session.say("drawing", done * shape.stored, groups * shape.stored)

        in_memory, start_time = saver is None and not session.moments, work_time()
        result = loop.run(
            loop.Loop(program, shape, self.plan(data), self.long), data, chains.tuned, chains.keys,
            loop.Start(chains.states, chains.groups, chains.moments), groups,
            loop.Host(on_segment, session.stop, every), ("draws", "info") if in_memory else (),
        )  # fmt: skip
        chains = chains._replace(groups=result.groups, states=result.states, moments=result.moments, surplus={})
        seconds = {
            "warm-up": warmup_seconds,
            "drawing": work_time() - start_time,
        }
        if session.moments:
            moments = result.moments or loop.some_moments()
            counts, means, squares = (np.asarray(m) for m in moments[:3])
            totals = None if moments.weight is None else np.asarray(moments.weight)
            belief = Moments(counts=counts, means=means, squares=squares, totals=totals, thin=chains.thin)
            return Outcome(belief, chains.found, seconds, result.interrupted, chains)
        traces = {name: trace for name, trace in result.info.items() if name not in self.unsaved}
        new = {POSITION: result.draws, **traces} if result.draws is not None else {}
        traces = saver.drawn() if saver is not None else concatenate_traces(before or {}, new)
        chains = chains._replace(surplus={name: trace[:, draws:] for name, trace in traces.items()})
        belief = self.belief({name: trace[:, :draws] for name, trace in traces.items()}, session.model, chains.thin)
        return Outcome(belief, chains.found, seconds, result.interrupted, chains)

    def belief(self, traces: dict[str, np.ndarray], model: Model, thin: int) -> Draws:
        """The draws that the traces hold; without traces, chains of length 0."""
        info = {name: trace for name, trace in traces.items() if name != POSITION}
        no_draws = np.zeros((self.chains, 0, model.space.size), jnp.result_type(float))
        positions = traces.get(POSITION, no_draws)
        return Draws(positions=positions, info=info, weights=self.weigh(info) if info else None, thin=thin)

    def extended(self, session: Session, belief: Belief, chains: "Chains", draws: int) -> Outcome:
        """Continue until each chain has ``draws`` kept draws: the same draws as in a single run of that length."""
        before = concatenate_traces({POSITION: np.asarray(belief.positions), **belief.info}, chains.surplus)
        return self.go_on(session, chains, draws, before)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        if "gradients" in belief.info:  # the info of a draw is a mean over its ``thin`` steps
            gradients = float(np.sum(belief.info["gradients"], dtype=np.float64) * belief.thin)
            return Cost(gradients + found.get("gradients of warm-up", 0.0), 0.0)
        # With control variates every batch is evaluated twice: at the position, and at a fixed point, the anchor.
        evaluations = 2 if getattr(self, "gradient", "") == "control_variates" else 1
        return Cost(self.steps(belief) * self.share(data) * evaluations, 0.0)

    def bytes_kept(self, model: Model) -> int:
        return self.chains * self.draws * model.space.size * jnp.result_type(float).itemsize

    def steps(self, belief: Belief) -> float:
        """The number of steps of all chains together, warm-up included."""
        return float(belief.chains * (belief.count * belief.thin + self.warmup))

    def shape(self, session: Session, program: Program, thin: int, draws: int | None = None) -> loop.Shape:
        """The loop's shape. Warm-up and main run have the same shape, so one compiled program serves both."""
        count = self.draws if draws is None else draws
        shape = loop.shape(count, thin, session.model.space.size, self.chains, moments=session.moments)
        return shape._replace(capacity=capacity(shape, session, program, self.chains))


def capacity(shape: loop.Shape, session: Session, program: Program, chains: int) -> int:
    """The largest number of groups in a segment whose draws, and whose batches from file, fit the device's buffer."""
    if not program.streams:
        return shape.capacity
    data, plan = session.data, program.method.plan(session.data)
    width = data.size if plan is None else plan.width
    bytes_a_group = chains * shape.group * width * data.nbytes // data.size
    return max(1, min(shape.capacity, loop.BUFFER_BYTES // max(bytes_a_group, 1)))


def chain_keys(key: jax.Array, chains: int) -> jax.Array:
    """One key for each chain. The key of chain c does not depend on the number of chains."""
    return _folded(key, np.arange(chains))


_folded = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))


@compiled("chains", if_few=COMPILE_FASTEST)
def _keys(key: jax.Array, chains: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A run's keys: one for the starting points, and one for each chain's warm-up and each chain's main run."""
    start, warm, run = jax.random.split(key, 3)
    return start, chain_keys(warm, chains), chain_keys(run, chains)


def starts(model: Model, data: Data | None, key: jax.Array, chains: int) -> jax.Array:
    """(chain, d) unconstrained starting points of finite density.

    They come from the model's own ``start`` if it has one. Otherwise each coordinate is uniform on (−2, 2). If the
    model is a log density with an example position, each coordinate is uniform within 1 of that position instead. The
    interval shrinks at every further attempt. If no attempt finds a finite density, the points are drawn from the
    prior.
    """
    batch = None if data is None else whole(data.first(1000))
    attempts = functools.cache(functools.partial(_attempts, key, chains, model.space.size))
    points, start = [], model.start

    def candidates(chain: int) -> Iterator[np.ndarray]:
        for attempt in range(ATTEMPTS):
            keys, jitters = attempts(attempt)
            if start is None:
                yield _starting_point(model, np.asarray(jitters)[chain], attempt)
            else:
                yield np.asarray(model.position_of(start(keys[chain])))
        if start is None and model.drawable:
            for each in jax.random.split(attempts(ATTEMPTS)[0][chain], FROM_PRIOR):
                yield np.asarray(model.position_of(model.sample_prior(each)))

    for chain in range(chains):
        for position in candidates(chain):
            value, slope = preflight.value_and_slope(model, position, batch)
            if np.isfinite(value) and np.all(np.isfinite(slope)):
                points.append(position)
                break
        else:
            raise ModelError(preflight.explain(model, jnp.asarray(position), data))
    return jnp.asarray(np.stack(points))


@compiled("chains", "size", if_few=COMPILE_FASTEST)
def _attempts(key: jax.Array, chains: int, size: int, attempt: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The keys of all chains for an attempt at a starting point, and uniform numbers (chain, d) on (−1, 1)."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(chain_keys(key, chains), attempt)
    return keys, jax.vmap(lambda key: _jitter(key, size))(keys)


def _jitter(key: jax.Array, size: int) -> jax.Array:
    return jax.random.uniform(key, (size,), minval=-1.0, maxval=1.0)


def starts_of(session: Session, key: jax.Array, count: int) -> jax.Array:
    """(count, d) unconstrained starting points of climbs: first ``session.near`` if it is given, then by ``starts``."""
    if session.near is None:
        return starts(session.model, session.data, key, count)
    near = jnp.asarray([session.near], jnp.result_type(float))
    return near if count == 1 else jnp.concatenate([near, starts(session.model, session.data, key, count - 1)])


def starting_point(model: Model, key: jax.Array, attempt: int) -> jax.Array:
    """(d,) a random starting point to try; at the last of the ``ATTEMPTS`` it is the origin or the example itself."""
    return jnp.asarray(_starting_point(model, np.asarray(_jitter(key, model.space.size)), attempt))


def _starting_point(model: Model, jitter: np.ndarray, attempt: int) -> np.ndarray:
    """As ``starting_point``, for a jitter (d,) on (−1, 1); NumPy computes it, so nothing is compiled."""
    centre, width = np.zeros_like(jitter), 2.0
    if model.prior_is_callable:
        centre, width = np.asarray(model.position_of(model.example(jax.random.key(0)))), 1.0
    return centre + (width * 0.7**attempt if attempt < ATTEMPTS - 1 else 0.0) * jitter


def concatenate_traces(before: dict[str, np.ndarray], now: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The traces of two parts of a run, one after the other; either part may lack a trace."""
    both = {name: np.concatenate([before[name], now[name]], 1) for name in before.keys() & now.keys()}
    return before | now | both
