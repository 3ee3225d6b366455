"""What methods that draw have in common: starts, the main run, and how it is cut, saved and resumed."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable import run as loop
from tractable.checks import preflight
from tractable.core import Model, whole
from tractable.data.rows import Data
from tractable.methods.method import Method, Outcome, Program, Session, Standing
from tractable.tools.errors import ModelError

PyTree = Any
ATTEMPTS = 20  # at a start of finite density


@dataclass(frozen=True, kw_only=True)
class Drawing(Method):
    """Common fields of methods that draw.

    Args:
        chains: independent chains, from independent starts.
        draws: kept draws a chain.
        warmup: steps a chain that are thrown away, in which the method tunes itself.
        thin: steps a kept draw.
    """

    converges: ClassVar[bool] = True
    chains: int = 4
    draws: int = 1000
    warmup: int = 1000
    thin: int = 1

    def __post_init__(self) -> None:
        self.check_whole("chains")
        self.check_whole("draws")
        self.check_whole("warmup", 0)
        if self.thin != "auto":
            self.check_whole("thin")

    def warm_up(
        self, session: Session, program: Program, keys: jax.Array, positions: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array], dict[str, Any], int]:
        """(positions, tuned, found, thin) to begin the main run with; here nothing is tuned."""
        return positions, {}, {}, int(self.thin)

    def watch(self, info: dict[str, np.ndarray], states: PyTree, session: Session) -> None:
        """Looks at every segment; raises what cannot go on."""

    def starts(self, session: Session, key: jax.Array) -> jax.Array:
        """(chain, d) unconstrained positions to begin at."""
        return starts(session.model, session.data, key, self.chains)

    def program(self, session: Session) -> Program:
        streams = self.minibatch and session.data is not None and not session.data.resident
        return Program(session.model, self, streams)

    def learn(self, session: Session) -> Outcome:
        program = self.program(session)
        data, plan = session.data, self.plan(session.data)
        start_key, warm_key, run_key = jax.random.split(session.key, 3)
        began = time.perf_counter()
        if session.resume is None:
            positions = self.starts(session, start_key)
            positions, tuned, found, thin = self.warm_up(session, program, chain_keys(warm_key, self.chains), positions)
            shape = self.shape(session, program, thin)
            keys = session.shard(chain_keys(run_key, self.chains))
            rows = None if data is None or plan is not None else data.arrays()
            states = loop.begin(program, tuned, rows, keys, session.shard(positions))
            standing = Standing(0, keys, states, tuned, thin, shape.block, None, found)
        else:
            standing = session.resume
        return self.go_on(session, standing, self.draws, time.perf_counter() - began)

    def go_on(self, session: Session, standing: Standing, draws: int, warmed: float = 0.0) -> Outcome:
        """Run until there are ``draws`` kept draws a chain since the beginning of time."""
        program = self.program(session)
        data, plan = session.data, self.plan(session.data)
        keys, states, tuned = standing.keys, standing.states, standing.tuned
        shape = self.shape(session, program, standing.thin, draws)._replace(block=standing.block)
        groups = -(-draws * shape.thin // shape.group)
        every = max(1, min(shape.capacity, groups // session.chunks)) if session.save is not None else 1

        def on_segment(drawn, info, states, done, moments):
            self.watch(info, states, session)
            now = Standing(done, keys, states, tuned, shape.thin, shape.block, moments, standing.found)
            if session.save is not None:
                session.save(drawn, info, now)
            session.say("drawing", done * shape.kept, groups * shape.kept)

        result = loop.run(
            program, shape, data, plan, tuned, keys, states,
            groups=groups, done=standing.groups, moments=standing.moments,
            keep=session.keep == "draws", trace=session.keep == "draws",
            on_segment=on_segment, stop=session.stop, every=every,
        )  # fmt: skip
        standing = standing._replace(groups=result.groups, states=result.states, moments=result.moments)
        seconds = {
            "warm-up": warmed,
            "drawing": result.seconds - result.compile_seconds,
            "compiling": result.compile_seconds,
        }
        return Outcome(
            result.draws,
            None,
            result.info,
            self.weigh(result.info) if result.info else None,
            standing,
            standing.found,
            result.interrupted,
            seconds,
        )

    def shape(self, session: Session, program: Program, thin: int, draws: int | None = None) -> loop.Shape:
        """The loop's shape: the same in warm-up and in the main run, so that one compilation serves both."""
        count = self.draws if draws is None else draws
        shape = loop.shape(count, thin, session.model.space.size, self.chains, moments=session.keep == "moments")
        return shape._replace(capacity=capacity(shape, session, program, self.chains))


def capacity(shape: loop.Shape, session: Session, program: Program, chains: int) -> int:
    """Groups a segment: what is buffered on the device, draws and batches read from file, must fit."""
    if not program.streams:
        return shape.capacity
    data = session.data
    bytes_a_group = chains * shape.group * _width(program.method, data) * data.nbytes // data.size
    return max(1, min(shape.capacity, loop.BUFFER_BYTES // max(bytes_a_group, 1)))


def _width(method: Method, data: Data) -> int:
    plan = method.plan(data)
    return data.size if plan is None else plan.width


def chain_keys(key: jax.Array, chains: int) -> jax.Array:
    """Chain c's key depends on c alone, not on how many chains there are."""
    return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(chains))


def starts(model: Model, data: Data | None, key: jax.Array, chains: int) -> jax.Array:
    """(chain, d) unconstrained positions of finite density, one for each chain.

    The model's own start where it has one; else uniform on (−2, 2), or within 1 of the position a log density came
    with, nearer at every further attempt.
    """
    centre = jnp.zeros(model.space.size)
    width = 2.0
    if model.prior_is_callable:
        example = jax.random.key(0)
        centre, width = model.space.ravel(model.unconstrain(model.example(example))), 1.0
    batch = None if data is None else whole(jax.tree.map(lambda a: jnp.asarray(a[:1000]), data.rows))
    found, whole_keys = [], chain_keys(key, chains)
    for chain in range(chains):
        for attempt in range(ATTEMPTS):
            shrunk = width * 0.7**attempt if attempt < ATTEMPTS - 1 else 0.0
            jitter = jax.random.uniform(
                jax.random.fold_in(whole_keys[chain], attempt), centre.shape, minval=-1.0, maxval=1.0
            )
            position = centre + shrunk * jitter
            if model.start is not None:
                began = model.start(jax.random.fold_in(whole_keys[chain], attempt))
                position = model.space.ravel(model.unconstrain(began))
            value, slope = preflight.value_and_slope(model, position, batch)
            if np.isfinite(value) and np.all(np.isfinite(slope)):
                found.append(position)
                break
        else:
            raise ModelError(preflight.explain(model, position, data))
    return jnp.stack(found)
