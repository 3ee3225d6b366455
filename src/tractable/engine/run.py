"""The loop of every kernel: blocks of steps run inside jit, and the host acts only between them."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.errors import RunError
from tractable.core.model import Kernel, PyTree
from tractable.core.rows import Batch, Data, Plan, first_rows, place
from tractable.core.shared import COMPILE_FAST, COMPILE_FASTEST, compiled
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.stopping import waited

BLOCK = 50  # steps whose noise is drawn at once, for small states
BLOCK_NUMBERS = 1 << 16  # numbers of noise drawn at once, at most
BUFFER_BYTES = 64 << 20  # bytes of draws held on the device between two visits of the host, at most
SEGMENT_SECONDS = 0.5  # time between two visits of the host, about
traces = 0  # how often ``advance`` has been traced in this process; tests read it


class Shape(NamedTuple):
    """The compile-time constants of a loop.

    One draw is kept every ``thin`` steps. Noise is drawn for ``block`` steps at a time; one of the two divides the
    other. A group, the unit of time, is the larger of them. Group g draws its noise from ``fold_in(key, g)`` and its
    batches from (key, t), so a run's result does not depend on how it is cut or resumed.
    """

    thin: int
    block: int
    capacity: int  # groups in the buffer
    moments: bool = False

    @property
    def group(self) -> int:
        return max(self.thin, self.block)

    @property
    def stored(self) -> int:
        return self.group // self.thin


class Moments(NamedTuple):
    """Running moments of the user's parameters, for a chain whose draws are not kept."""

    count: jax.Array  # ()
    mean: jax.Array  # (k,)
    square: jax.Array  # (k,) Σ w (x − mean)²
    weight: jax.Array | None = None  # () Σ w; None if all draws have equal weight


def some_moments() -> Moments:
    """Empty moments, as an example of their structure."""
    return Moments(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


class Run(NamedTuple):
    """The state of a loop, and its results."""

    states: PyTree  # leading axis (chain,)
    groups: int  # done since the start of the run, including earlier calls
    draws: np.ndarray | None  # (chain, draw, d) kept positions; None if only ``on_segment`` saw them
    info: dict[str, np.ndarray]  # each (chain, draw): means over the steps since the last draw
    moments: Moments | None  # leading axis (chain,)
    interrupted: bool
    seconds: float
    compile_seconds: float


def shape(draws: int, thin: int, size: int, chains: int, *, moments: bool = False) -> Shape:
    """The loop's shape for ``draws`` kept draws per chain and states of ``size`` numbers.

    A block's length depends only on thinning and size, so that a longer run starts exactly like a shorter one.
    """
    target = max(1, min(BLOCK, BLOCK_NUMBERS // max(size, 1)))
    divisors = [k for k in range(1, target + 1) if thin % k == 0]
    block = thin * (target // thin) if thin <= target else divisors[-1]
    group = max(thin, block)
    bytes_a_group = 4 * chains * size * (group // thin)
    groups = -(-draws * thin // group)
    return Shape(thin, block, max(1, min(groups, BUFFER_BYTES // max(bytes_a_group, 1))), moments)


def _advance_over_devices(
    program: Callable,
    loop: Shape,
    plan: Plan | None,
    tuned: PyTree,
    rows: PyTree,
    keys: jax.Array,
    states: PyTree,
    buffer: tuple[jax.Array | None, PyTree],
    moments: Moments | None,
    first: jax.Array,
    last: jax.Array,
) -> tuple[PyTree, tuple, Moments | None, jax.Array, jax.Array]:
    """Runs groups [first, last) of each chain with ``program(rows, tuned)``; stops at the last finite state."""
    global traces
    traces += 1
    placement = program.placement
    chain, buffered, shared = placement.by_chain, placement.by_buffer, placement.on_all
    ins = placement.rows_spec(program.streams), chain, chain, buffered, chain
    mine = functools.partial(_advance, program, loop, plan, tuned, first, last)
    return placement.map_devices(mine, ins, (chain, buffered, chain, shared, shared))(
        rows, keys, states, buffer, moments
    )


_static, _donated = ("program", "loop", "plan"), ("buffer", "moments")
advance = compiled(*_static, donate=_donated)(_advance_over_devices)
_advance_long = compiled(*_static, donate=_donated, if_few=COMPILE_FAST)(_advance_over_devices)


def _advance(program, loop, plan, tuned, first, last, rows, keys, states, buffer, moments) -> tuple:
    """``advance`` for the chains of one device."""
    kernel: Kernel = program(rows, tuned)
    placement = program.placement

    def group(key: jax.Array, state: PyTree, g: jax.Array, cut: PyTree) -> tuple[PyTree, PyTree, PyTree]:

        def step(state: PyTree, now: tuple) -> tuple[PyTree, PyTree]:
            noise, where, cut_now = now
            return kernel.step(noise, state, _batch(plan, rows, cut_now, where, placement))

        def steps(state: PyTree, now: PyTree) -> tuple[PyTree, PyTree]:
            state, info = jax.lax.scan(step, state, now)
            return state, jax.tree.map(lambda x: jnp.mean(x, 0), info)

        def randomness(state: PyTree, b: jax.Array) -> tuple:
            noise_key, batch_key = block_keys(key, g, b)
            times = g * loop.group + b * loop.block + jnp.arange(loop.block)
            noise = kernel.draw(noise_key, loop.block, state, None)
            where = None if plan is None else jax.vmap(functools.partial(place, plan, batch_key))(times)
            return noise, where, None if cut is None else jax.tree.map(lambda a: a[b], cut)

        if loop.thin > loop.block:  # one draw per group, after its last block

            def block(state: PyTree, b: jax.Array) -> tuple[PyTree, PyTree]:
                now = randomness(state, b)
                return step(state, jax.tree.map(lambda x: x[0], now)) if loop.block == 1 else steps(state, now)

            state, info = jax.lax.scan(block, state, jnp.arange(loop.group // loop.block))
            return state, program.observe(state)[None], jax.tree.map(lambda x: jnp.mean(x, 0)[None], info)

        def emission(state: PyTree, now: PyTree) -> tuple[PyTree, PyTree]:
            state, info = steps(state, now)
            return state, (program.observe(state), info)

        now = jax.tree.map(lambda x: x.reshape(loop.stored, loop.thin, *x.shape[1:]), randomness(state, jnp.array(0)))
        state, (positions, info) = jax.lax.scan(emission, state, now)
        return state, positions, info

    def one_group(carry: tuple) -> tuple:
        g, states, (draws, infos), moments, _ = carry
        cut = jax.tree.map(lambda a: a[:, g - first], rows) if plan is not None and program.streams else None
        new, positions, info = placement.each_chain(
            lambda key, state, cut: group(key, state, g, cut), keys, states, cut
        )
        fine = placement.every(tree.all_finite(new.position))
        states = tree.where(fine, new, states)
        at = (g - first) * loop.stored

        def put(buffered: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(buffered, jnp.swapaxes(x, 0, 1), at, 0)

        draws = None if draws is None else put(draws, positions)
        infos = jax.tree.map(put, infos, info)
        if moments is not None:
            values = placement.map_chains(jax.vmap(program.values), positions)
            moments = placement.map_chains(_updated, moments, values, program.weigh(info._asdict()))
        return g + fine, states, (draws, infos), moments, fine

    def going(carry: tuple) -> jax.Array:
        return (carry[0] < last) & carry[-1]

    carry = (first, states, buffer, moments, jnp.array(True))
    g, states, buffer, moments, fine = jax.lax.while_loop(going, one_group, carry)
    return states, buffer, moments, g, fine


def _batch(
    plan: Plan | None, rows: PyTree, cut: PyTree, where: tuple | None, placement: OneDevice = ONE_DEVICE
) -> Batch | None:
    """The batch at ``where``: from rows on the device or over devices, or from those that were cut from a file."""
    if plan is None or where is None:
        return None
    return placement.window(rows, plan, *where) if cut is None else placement.windowed(cut, plan, *where[1:])


def block_keys(key: jax.Array, g: jax.Array | int, b: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """Keys for a block's noise, and for the whole run's batches."""
    noise_key, batch_key = jax.random.split(key)
    return jax.random.fold_in(jax.random.fold_in(noise_key, g), b), batch_key


def _updated(moments: Moments, xs: jax.Array, weights: jax.Array | None) -> Moments:
    def one(m: Moments, now: tuple[jax.Array, jax.Array | None]) -> tuple[Moments, None]:
        x, w = now
        count, delta = m.count + 1, x - m.mean
        if w is None or m.weight is None:
            mean = m.mean + delta / count
            return Moments(count, mean, m.square + delta * (x - mean)), None
        weight = m.weight + w
        mean = m.mean + w * delta / jnp.where(weight > 0, weight, 1)
        return Moments(count, mean, m.square + w * delta * (x - mean), weight), None

    return jax.lax.scan(one, moments, (xs, weights))[0]


def begin(program: Callable, tuned: PyTree, rows: PyTree, keys: jax.Array, positions: PyTree) -> PyTree:
    """First states of all chains, from positions with a leading axis of chains."""
    return program.placement.run(functools.partial(_begin, program), tuned, rows, keys, positions)


@compiled("program", if_few=COMPILE_FASTEST)
def _begin(program: Callable, tuned: PyTree, rows: PyTree, keys: jax.Array, positions: PyTree) -> PyTree:
    return program.placement.over_chains(lambda rows, *chain: program(rows, tuned).init(*chain))(rows, keys, positions)


def run(
    program: Callable,
    loop: Shape,
    data: Any,
    plan: Any,
    tuned: PyTree,
    keys: jax.Array,
    states: PyTree,
    *,
    groups: int,
    done: int = 0,
    moments: Moments | None = None,
    keep: bool = True,
    trace: bool = True,
    on_segment: Callable | None = None,
    stop: Callable[[], bool] = lambda: False,
    every: int = 1,
    long: bool = False,
) -> Run:
    """Groups ``done`` to ``groups`` of a run, in segments of about half a second.

    Args:
        program: hashable; ``program(rows, tuned) -> Kernel``; ``program.observe(state) -> (d,)``, the position that
            a draw keeps; ``program.values((d,)) -> (k,)``, the values whose moments are kept, with weights
            ``program.weigh(info)``; ``program.streams``, whether batches are read from file.
        loop: the loop's shape.
        data, plan: Data and Plan, the rows and the order of their batches, or None; no plan hands over all rows.
        tuned: arrays that warm-up tuned for the program.
        keys: (chain,) typed keys.
        states: leading axis (chain,).
        moments: of the run so far, if ``loop.moments``.
        keep: collect draws; otherwise only ``on_segment`` sees them.
        trace: collect the steps' info; otherwise only ``on_segment`` sees it.
        on_segment: called with ``(draws, info, states, groups done, moments)`` at every visit of the host.
        stop: called at every visit; true ends the run, marked as interrupted. A segment still unfinished a second
            after the request to stop is dropped.
        every: visit only after multiples of this many groups.
        long: a step is thousands of operations, which with few rows take longer to compile well than to run.

    Raises:
        RunError: a state is not finite; says the step and the leaf, and holds the last good state.
    """
    rows, placement = rows_of(program, data, plan), program.placement
    alone = program._replace(placement=ONE_DEVICE)
    chains = keys.shape[0]
    tuned, keys, states, moments = placement.share((tuned, keys, states, moments))
    cut = data.read(np.zeros((), int), plan.width) if program.streams else None
    plain = _shapes(data, plan) if placement.divides_rows and not program.streams else rows
    observed, info = _outputs.eval_shape(alone, plan, tuned, plain, cut, keys, states)
    if loop.moments and moments is None:
        values = jax.eval_shape(program.values, observed)
        zeros, weight = jnp.zeros((chains, *values.shape), values.dtype), jax.eval_shape(program.weigh, info._asdict())
        weight = None if weight is None else jnp.zeros(chains, weight.dtype)
        moments = Moments(jnp.zeros(chains), zeros, jnp.copy(zeros), weight)
    keys, states, moments = placement.place((keys, states, moments), placement.by_chain)
    buffer = placement.place(_buffer(loop, chains, observed, info), placement.by_buffer)
    pieces, infos = [], []
    segment, started, compile_seconds, interrupted = 1, time.perf_counter(), 0.0, False
    g = done
    while g < groups:
        last = min(groups, max(g + min(segment, loop.capacity) - every + 1, g // every * every + 1))
        last = min(groups, -(-last // every) * every)
        if program.streams:
            rows = _read(data, plan, loop, keys, g, last, placement)
        before, traced = time.perf_counter(), traces
        given = jax.tree.map(jnp.copy, moments)  # a copy, as ``advance`` donates it
        then, buffer, after, reached, fine = (_advance_long if long else advance)(
            program, loop, plan, tuned, rows, keys, states, buffer, given, jnp.array(g), jnp.array(last)
        )
        if placement.many_processes:
            jax.block_until_ready(reached)  # processes that gave up at unlike times would wait for each other
        elif not waited(reached, stop):
            interrupted = True
            break
        states, moments, reached = then, after, int(reached)
        collected = placement.collect(states)
        took = time.perf_counter() - before
        if traces > traced:
            compile_seconds += took
        else:
            segment = int(np.clip(segment * SEGMENT_SECONDS / max(took, 1e-3), 1, 4 * segment))
        segment = int(placement.gather(segment)[0]) if placement.many_processes else segment
        count = (reached - g) * loop.stored
        draws, info = _first(buffer, count)
        draws = None if draws is None else draws.swapaxes(0, 1)
        seen = {name: value.swapaxes(0, 1) for name, value in info._asdict().items()}
        pieces += [draws] if keep and draws is not None else []
        infos += [seen] if trace else []
        g = reached
        if on_segment is not None:
            on_segment(draws, seen, collected, g, moments)
        if not fine:
            partial = _finish(states, g, pieces, infos, moments, True, started, compile_seconds)
            raise RunError(_diagnose(alone, loop, data, plan, tuned, keys, states, g), partial)
        if stop():
            interrupted = g < groups
            break
    return _finish(placement.collect(states), g, pieces, infos, moments, interrupted, started, compile_seconds)


def _first(buffer: PyTree, count: int) -> PyTree:
    """Copies on the host: the buffer itself is donated to the next segment.

    Whole buffers are copied and then cut: cutting on the device would compile a program for each segment's length.
    """
    return jax.tree.map(lambda leaf: np.array(np.asarray(jnp.copy(leaf))[:count]), buffer)


def _finish(states, g, pieces, infos, moments, interrupted, started, compile_seconds) -> Run:
    draws = np.concatenate(pieces, 1) if pieces else None
    info = {name: np.concatenate([i[name] for i in infos], 1) for name in infos[0]} if infos else {}
    return Run(states, g, draws, info, moments, interrupted, time.perf_counter() - started, compile_seconds)


def _shapes(data: Data, plan: Plan | None) -> PyTree:
    """What ``rows_of`` gives on one device, as shapes; of one row without batches, lest a state holds every row's."""

    def shape(a: np.ndarray) -> jax.ShapeDtypeStruct:
        count = 1 if plan is None else len(a) + plan.width
        return jax.ShapeDtypeStruct((count, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype))

    return data.each(shape)


def rows_of(program: Callable, data: Data | None, plan: Plan | None) -> PyTree:
    """The rows as a program takes them: all of them, or in the order of their batches; None if it reads them itself."""
    if data is None or program.streams:
        return None
    return program.placement.rows_of(data, plan)


@compiled("program", "plan")
def _outputs(program, plan, tuned, rows, cut, keys, states) -> tuple:
    """A step's position and info. Never run: only its shapes are used, which jit caches."""
    kernel, state = program(rows, tuned), jax.tree.map(lambda x: x[0], states)
    noise = jax.tree.map(lambda x: x[0], kernel.draw(keys[0], 1, state, None))
    where = None if plan is None else (jnp.array(0), jnp.array(plan.width), jnp.array(0))
    state, info = kernel.step(noise, state, _batch(plan, rows, cut, where))
    return program.observe(state), info


def _buffer(loop: Shape, chains: int, observed: jax.ShapeDtypeStruct, info: PyTree) -> tuple:
    """Buffers for a segment's draws (None if only moments are kept) and its steps' info."""

    def zeros(x: jax.ShapeDtypeStruct) -> jax.Array:  # a copy of NumPy's: JAX's would be a program for each shape
        return jnp.array(np.zeros((loop.capacity * loop.stored, chains, *x.shape), x.dtype))

    return None if loop.moments else zeros(observed), jax.tree.map(zeros, info)


@functools.partial(jax.jit, static_argnames=("plan", "loop", "capacity"))
def _starts(plan: Plan, loop: Shape, capacity: int, keys: jax.Array, first: jax.Array) -> jax.Array:
    times = first * loop.group + jnp.arange(capacity * loop.group)

    def chain(key: jax.Array) -> jax.Array:
        batch_key = block_keys(key, 0, 0)[1]
        return jax.vmap(lambda t: place(plan, batch_key, t)[0])(times)

    return jax.vmap(chain)(keys)


def _read(data: Data, plan: Plan, loop: Shape, keys: jax.Array, first: int, last: int, placement: OneDevice) -> PyTree:
    """Batches of groups [first, last) from file: (chain, capacity, blocks per group, steps per block, width, ...)."""
    starts = first_rows(plan, _starts(plan, loop, loop.capacity, keys, jnp.array(first)))
    starts = starts.reshape(keys.shape[0], loop.capacity, loop.group // loop.block, loop.block)[:, : last - first]
    return placement.read(data, plan, starts, loop.capacity)


def _diagnose(program, loop, data, plan, tuned, keys, states, g) -> str:
    """Replay the bad group one step at a time; its randomness is the same, so it goes wrong in the same place."""
    rows = rows_of(program, data, plan)
    kernel = program(rows, tuned)
    step = jax.jit(kernel.step)
    for chain in range(keys.shape[0]):
        state = jax.tree.map(lambda x, c=chain: x[c], states)
        for b in range(loop.group // loop.block):
            noise_key, batch_key = block_keys(keys[chain], jnp.array(g), jnp.array(b))
            noise = kernel.draw(noise_key, loop.block, state, None)
            for s in range(loop.block):
                t = g * loop.group + b * loop.block + s
                where = None if plan is None else place(plan, batch_key, jnp.array(t))
                cut = data.read(first_rows(plan, where[0]), plan.width) if where and plan and program.streams else None
                state, _ = step(jax.tree.map(lambda x, s=s: x[s], noise), state, _batch(plan, rows, cut, where))
                if not bool(tree.all_finite(state.position)):
                    where = program.describe(program.observe(state))
                    return (
                        f"Step {t} of chain {chain} left {where} not finite. {program.remedy} "
                        "What was reached before is in this error's .partial."
                    )
    return f"A state stopped being finite between steps {g * loop.group} and {(g + 1) * loop.group}. {program.remedy}"
