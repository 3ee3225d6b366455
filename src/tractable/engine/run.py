"""The loop that runs every kernel.

``run`` is the part on the host, that is in Python. It divides a run into segments of about half a second, and saves and
reports progress between them. ``advance`` is the part on the device: one compiled program that runs a segment.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import program_files, tree
from tractable.core.batches import Batch, Plan, first_rows, place
from tractable.core.errors import RunError
from tractable.core.model import Kernel, PyTree
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FAST, COMPILE_FASTEST, compiled
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.stopping import wait_for

BLOCK = 50  # steps whose noise is drawn at once, if the state is small
BLOCK_NUMBERS = 1 << 16  # largest number of random numbers that are drawn at once
BUFFER_BYTES = 64 << 20  # bytes of the largest buffer of draws on the device
SEGMENT_SECONDS = 0.5  # approximate duration of a segment, after which the host saves and reports progress
traces = 0  # how often ``advance`` has been traced in this process; tests read it


class Shape(NamedTuple):
    """How a loop divides its steps into blocks, groups and segments.

    One draw is kept every ``thin`` steps. A block is ``block`` steps, whose noise is drawn at once. One of the two
    numbers divides the other, and the larger is the length of a group. A segment is a number of groups. The noise of
    group g depends only on the key and g, and the batch of step t only on the key and t. So the result of a run does
    not depend on where segments end or where the run is resumed.
    """

    thin: int
    block: int
    capacity: int  # largest number of groups in a segment: the draws of this many groups fit the buffer
    moments: bool = False  # whether running moments are kept instead of draws

    @property
    def group(self) -> int:
        """The number of steps in a group."""
        return max(self.thin, self.block)

    @property
    def stored(self) -> int:
        """The number of draws kept in a group."""
        return self.group // self.thin


class Moments(NamedTuple):
    """Running moments of the user's parameters, for chains whose draws are not kept."""

    count: jax.Array  # () number of draws
    mean: jax.Array  # (k,)
    square: jax.Array  # (k,) Σ w (x − mean)²
    weight: jax.Array | None = None  # () Σ w; None if all draws have equal weight


def some_moments() -> Moments:
    """Empty moments, as an example of their structure."""
    return Moments(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


class Loop(NamedTuple):
    """Everything on which a loop's compiled program depends.

    Attributes:
        program: a hashable object such as ``engine.method.Program``. ``program(rows, tuned)`` is the kernel.
            ``program.observe(state)`` is the position (d,) that a draw keeps. ``program.values(position)`` are the
            values (k,) whose moments are kept, with weights ``program.weigh(info)``. ``program.streams`` says whether
            batches are read from file.
        shape: how the steps are divided into blocks and groups.
        plan: the order of batches; None if every step takes all rows.
        long: whether a step has thousands of operations. With few rows, compiling such a step with all optimisations
            takes longer than most runs, so it is compiled with fewer optimisations.
    """

    program: Callable
    shape: Shape
    plan: Plan | None
    long: bool = False


class Start(NamedTuple):
    """The state from which a run begins."""

    states: PyTree  # leading axis (chain,)
    groups: int = 0  # groups done by earlier calls
    moments: Moments | None = None  # running moments of earlier calls, if the loop keeps moments


class Host(NamedTuple):
    """The functions that the host calls between segments.

    Attributes:
        on_segment: called after every segment with ``(draws, info, states, groups done, moments)``.
        stop: the run ends, and counts as interrupted, once this function returns true. If a segment is still unfinished
            a second later, its results are dropped.
        every: the number of groups done at the end of a segment is a multiple of this number, except at the run's end.
    """

    on_segment: Callable | None = None
    stop: Callable[[], bool] = lambda: False
    every: int = 1


ALONE = Host()  # a host that does nothing between segments


class Run(NamedTuple):
    """The state of a loop, and its results."""

    states: PyTree  # leading axis (chain,)
    groups: int  # groups done since the start of the run, those of earlier calls included
    draws: np.ndarray | None  # (chain, draw, d) positions; None if they were not collected
    info: dict[str, np.ndarray]  # (chain, draw) each: means over the ``thin`` steps of a draw
    moments: Moments | None  # leading axis (chain,)
    interrupted: bool


def shape(draws: int, thin: int, size: int, chains: int, *, moments: bool = False) -> Shape:
    """The loop's shape for ``draws`` kept draws per chain and states of ``size`` numbers.

    The length of a block depends only on ``thin`` and ``size``, so a longer run begins exactly like a shorter run.
    """
    target = max(1, min(BLOCK, BLOCK_NUMBERS // max(size, 1)))
    divisors = [k for k in range(1, target + 1) if thin % k == 0]
    block = thin * (target // thin) if thin <= target else divisors[-1]
    group = max(thin, block)
    bytes_a_group = 4 * chains * size * (group // thin)
    groups = -(-draws * thin // group)
    return Shape(thin, block, max(1, min(groups, BUFFER_BYTES // max(bytes_a_group, 1))), moments)


def run(
    loop: Loop,
    data: Data | None,
    tuned: PyTree,
    keys: jax.Array,
    start: Start,
    groups: int,
    host: Host = ALONE,
    collect: tuple[str, ...] = ("draws", "info"),
) -> Run:
    """Run from ``start`` until ``groups`` groups are done, in segments of about half a second.

    Args:
        loop: the program, its shape and its plan of batches.
        data: the rows, or None.
        tuned: arrays that warm-up tuned for the program.
        keys: (chain,) typed keys.
        groups: the number of groups done at the end, those of earlier calls included.
        collect: which of "draws" and "info" the result holds; ``host.on_segment`` gets both in any case.

    Raises:
        RunError: a state is not finite. The message names the step and the parameter, and the error's ``partial`` is
            the run up to the last finite state.
    """
    rows, tuned, keys, at, buffer = _prepare(loop, data, tuned, keys, start)
    pieces, infos = [], []

    def result(states: PyTree, interrupted: bool) -> Run:
        draws = np.concatenate(pieces, 1) if pieces else None
        info = {name: np.concatenate([i[name] for i in infos], 1) for name in infos[0]} if infos else {}
        return Run(states, at.groups, draws, info, at.moments, interrupted)

    for segment in _segments(loop, data, (tuned, rows, keys), at, buffer, groups, host):
        at, draws = segment.reached, segment.draws
        pieces += [draws] if "draws" in collect and draws is not None else []
        infos += [segment.info] if "info" in collect else []
        if host.on_segment is not None:
            host.on_segment(draws, segment.info, segment.states, at.groups, at.moments)
        if not segment.is_finite:
            raise RunError(_diagnose(loop, data, tuned, keys, at), result(at.states, True))
        if host.stop():
            break
    return result(loop.program.placement.collect(at.states), at.groups < groups)


class _Segment(NamedTuple):
    """The results of a segment."""

    reached: Start  # the state after the segment, from which the next one begins
    states: PyTree  # the states of ``reached``, on one device
    draws: np.ndarray | None  # (chain, draw, d)
    info: dict[str, np.ndarray]  # each (chain, draw)
    is_finite: bool


def _prepare(
    loop: Loop, data: Data | None, tuned: PyTree, keys: jax.Array, start: Start
) -> tuple[PyTree, PyTree, jax.Array, Start, tuple]:
    """Rows, tuned values, keys, start and an empty buffer, on the devices where the program expects them."""
    program, plan, placement = loop.program, loop.plan, loop.program.placement
    rows, chains = rows_of(program, data, plan), keys.shape[0]
    tuned, keys, states, moments = placement.share((tuned, keys, start.states, start.moments))
    cut = data.read(np.zeros((), int), plan.width) if program.streams and data is not None and plan else None
    # The shapes of the rows on one device. Without batches one row is enough: the shapes of positions and info do not
    # depend on the number of rows.
    plain = rows
    if placement.divides_rows and not program.streams and data is not None:

        def one_device(a: np.ndarray) -> jax.ShapeDtypeStruct:
            length = 1 if plan is None else len(a) + plan.width
            return jax.ShapeDtypeStruct((length, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype))

        plain = data.each(one_device)
    alone = program._replace(placement=ONE_DEVICE)
    observed, info = _outputs.eval_shape(alone, plan, tuned, plain, cut, keys, states)
    if loop.shape.moments and moments is None:
        values = jax.eval_shape(program.values, observed)
        zeros, weight = jnp.zeros((chains, *values.shape), values.dtype), jax.eval_shape(program.weigh, info._asdict())
        weight = None if weight is None else jnp.zeros(chains, weight.dtype)
        moments = Moments(jnp.zeros(chains), zeros, jnp.copy(zeros), weight)
    keys, states, moments = placement.place((keys, states, moments), placement.by_chain)

    def buffer(x: jax.ShapeDtypeStruct) -> jax.Array:  # made by NumPy: JAX would compile a program for each shape
        return jnp.array(np.zeros((loop.shape.capacity * loop.shape.stored, chains, *x.shape), x.dtype))

    empty = None if loop.shape.moments else buffer(observed), jax.tree.map(buffer, info)
    at = Start(states, start.groups, moments)
    return rows, tuned, keys, at, placement.place(empty, placement.by_buffer)


def _segments(
    loop: Loop, data: Data | None, given: tuple[PyTree, PyTree, jax.Array], at: Start, buffer: tuple, groups: int,
    host: Host,
) -> Iterator[_Segment]:  # fmt: skip
    """Run segment after segment until all groups are done or one is dropped. ``given`` is (tuned, rows, keys)."""
    program, placement, every = loop.program, loop.program.placement, host.every
    (tuned, rows, keys), length = given, 1
    while at.groups < groups:
        g = at.groups
        last = min(groups, max(g + min(length, loop.shape.capacity) - every + 1, g // every * every + 1))
        last = min(groups, -(-last // every) * every)
        if program.streams and data is not None:
            rows = _read(loop, data, keys, g, last)
        before, made = time.perf_counter(), traces + program_files.loads
        results = buffer, jax.tree.map(jnp.copy, at.moments)  # copies, since ``advance`` overwrites its arguments
        states, (buffer, moments), reached, is_finite = (_advance_long if loop.long else advance)(
            loop, tuned, rows, keys, at.states, results, (jnp.array(g), jnp.array(last))
        )
        if placement.many_processes:
            jax.block_until_ready(reached)  # processes that stop at different times would wait for each other for ever
        elif not wait_for(reached, host.stop):
            return
        at, collected = Start(states, int(reached), moments), placement.collect(states)
        took = time.perf_counter() - before
        if (
            traces + program_files.loads == made
        ):  # the time of a segment that had to be compiled says nothing of the next one
            length = int(np.clip(length * SEGMENT_SECONDS / max(took, 1e-3), 1, 4 * length))
        length = int(placement.gather(length)[0]) if placement.many_processes else length
        count = (at.groups - g) * loop.shape.stored
        # The buffer is copied, since the next segment overwrites it. It is cut to length on the host: on the device
        # each length would need its own program.
        draws, info = jax.tree.map(lambda leaf, n=count: np.array(np.asarray(jnp.copy(leaf))[:n]), buffer)
        draws = None if draws is None else draws.swapaxes(0, 1)
        info = {name: value.swapaxes(0, 1) for name, value in info._asdict().items()}
        yield _Segment(at, collected, draws, info, bool(is_finite))


def rows_of(program: Callable, data: Data | None, plan: Plan | None) -> PyTree:
    """The rows as a program takes them (``placement.rows_of``); None without data, or if they are read from file."""
    if data is None or program.streams:
        return None
    return program.placement.rows_of(data, plan)


def begin(program: Callable, tuned: PyTree, rows: PyTree, keys: jax.Array, positions: PyTree) -> PyTree:
    """The first states of all chains, from positions with a leading axis of chains."""
    return program.placement.run(functools.partial(_begin, program), tuned, rows, keys, positions)


@compiled("program", if_few=COMPILE_FASTEST)
def _begin(program: Callable, tuned: PyTree, rows: PyTree, keys: jax.Array, positions: PyTree) -> PyTree:
    return program.placement.over_chains(lambda rows, *chain: program(rows, tuned).init(*chain))(rows, keys, positions)


# The part on the device.


def _advance_over_devices(
    loop: Loop, tuned: PyTree, rows: PyTree, keys: jax.Array, states: PyTree, results: tuple, span: tuple
) -> tuple[PyTree, tuple, jax.Array, jax.Array]:
    """Run the groups [first, last) of each chain, where ``span`` is (first, last); stop at the last finite state.

    ``results`` are the buffer of draws and info, and the moments. Their memory is used again for the new results.
    """
    global traces
    traces += 1
    placement = loop.program.placement
    chain, buffered, shared = placement.by_chain, placement.by_buffer, placement.on_all
    ins = placement.rows_spec(loop.program.streams), chain, chain, (buffered, chain)
    mine = functools.partial(_advance, loop, tuned, span)
    return placement.map_devices(mine, ins, (chain, (buffered, chain), shared, shared))(rows, keys, states, results)


advance = compiled("loop", donate=("results",))(_advance_over_devices)
_advance_long = compiled("loop", donate=("results",), if_few=COMPILE_FAST)(_advance_over_devices)


def _advance(
    loop: Loop, tuned: PyTree, span: tuple, rows: PyTree, keys: jax.Array, states: PyTree, results: tuple
) -> tuple:
    """Run the groups of ``advance`` for the chains of one device."""
    (first, last), shape, program, placement = span, loop.shape, loop.program, loop.program.placement
    kernel: Kernel = program(rows, tuned)

    def one_group(carry: tuple) -> tuple:
        g, states, ((draws, infos), moments), _ = carry
        cut = jax.tree.map(lambda a: a[:, g - first], rows) if loop.plan is not None and program.streams else None
        new, positions, info = placement.each_chain(
            lambda key, state, cut: _group(loop, kernel, rows, key, state, g, cut), keys, states, cut
        )
        fine = placement.every(tree.all_finite(new.position))
        states = tree.where(fine, new, states)
        at = (g - first) * shape.stored

        def put(buffered: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(buffered, jnp.swapaxes(x, 0, 1), at, 0)

        draws = None if draws is None else put(draws, positions)
        infos = jax.tree.map(put, infos, info)
        if moments is not None:
            values = placement.map_chains(jax.vmap(program.values), positions)
            moments = placement.map_chains(_add_to_moments, moments, values, program.weigh(info._asdict()))
        return g + fine, states, ((draws, infos), moments), fine

    def goes_on(carry: tuple) -> jax.Array:
        return (carry[0] < last) & carry[-1]

    g, states, results, fine = jax.lax.while_loop(goes_on, one_group, (first, states, results, jnp.array(True)))
    return states, results, g, fine


def _group(
    loop: Loop, kernel: Kernel, rows: PyTree, key: jax.Array, state: PyTree, g: jax.Array, cut: PyTree
) -> tuple[PyTree, PyTree, PyTree]:
    """Run one group of one chain, and return its state, kept positions and mean info.

    ``cut`` are the rows of the group's batches if they were read from file.
    """
    plan, shape, program = loop.plan, loop.shape, loop.program

    def step(state: PyTree, now: tuple) -> tuple[PyTree, PyTree]:
        noise, where, cut_now = now
        return kernel.step(noise, state, _batch(plan, rows, cut_now, where, program.placement))

    def steps(state: PyTree, now: PyTree) -> tuple[PyTree, PyTree]:
        state, info = jax.lax.scan(step, state, now)
        return state, jax.tree.map(lambda x: jnp.mean(x, 0), info)

    def randomness(state: PyTree, b: jax.Array) -> tuple:
        noise_key, batch_key = block_keys(key, g, b)
        times = g * shape.group + b * shape.block + jnp.arange(shape.block)
        noise = kernel.draw(noise_key, shape.block, state, None)
        where = None if plan is None else jax.vmap(functools.partial(place, plan, batch_key))(times)
        return noise, where, None if cut is None else jax.tree.map(lambda a: a[b], cut)

    if shape.thin > shape.block:  # one draw per group, after its last block

        def block(state: PyTree, b: jax.Array) -> tuple[PyTree, PyTree]:
            now = randomness(state, b)
            return step(state, jax.tree.map(lambda x: x[0], now)) if shape.block == 1 else steps(state, now)

        state, info = jax.lax.scan(block, state, jnp.arange(shape.group // shape.block))
        return state, program.observe(state)[None], jax.tree.map(lambda x: jnp.mean(x, 0)[None], info)

    def kept_draw(state: PyTree, now: PyTree) -> tuple[PyTree, PyTree]:
        state, info = steps(state, now)
        return state, (program.observe(state), info)

    now = jax.tree.map(lambda x: x.reshape(shape.stored, shape.thin, *x.shape[1:]), randomness(state, jnp.array(0)))
    state, (positions, info) = jax.lax.scan(kept_draw, state, now)
    return state, positions, info


def _batch(
    plan: Plan | None, rows: PyTree, cut: PyTree, where: tuple | None, placement: OneDevice = ONE_DEVICE
) -> Batch | None:
    """The batch at ``where`` in the plan, from the rows on the devices, or from ``cut`` if they were read from file."""
    if plan is None or where is None:
        return None
    return placement.window(rows, plan, *where) if cut is None else placement.windowed(cut, plan, *where[1:])


def block_keys(key: jax.Array, g: jax.Array | int, b: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """The key for the noise of block b of group g, and the key for all batches of the run."""
    noise_key, batch_key = jax.random.split(key)
    return jax.random.fold_in(jax.random.fold_in(noise_key, g), b), batch_key


def _add_to_moments(moments: Moments, xs: jax.Array, weights: jax.Array | None) -> Moments:
    """The moments with the values ``xs`` (draw, k) added, by Welford's recursion."""

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


@compiled("program", "plan")
def _outputs(program, plan, tuned, rows, cut, keys, states) -> tuple:
    """The position and info of one step. This never runs: only the shapes of its results are used."""
    kernel, state = program(rows, tuned), jax.tree.map(lambda x: x[0], states)
    noise = jax.tree.map(lambda x: x[0], kernel.draw(keys[0], 1, state, None))
    where = None if plan is None else (jnp.array(0), jnp.array(plan.width), jnp.array(0))
    state, info = kernel.step(noise, state, _batch(plan, rows, cut, where))
    return program.observe(state), info


@functools.partial(jax.jit, static_argnames=("plan", "shape", "capacity"))
def _starts(plan: Plan, shape: Shape, capacity: int, keys: jax.Array, first: jax.Array) -> jax.Array:
    """The places (chain, step) in the plan where the batches of ``capacity`` groups begin, from group ``first`` on."""
    times = first * shape.group + jnp.arange(capacity * shape.group)

    def chain(key: jax.Array) -> jax.Array:
        batch_key = block_keys(key, 0, 0)[1]
        return jax.vmap(lambda t: place(plan, batch_key, t)[0])(times)

    return jax.vmap(chain)(keys)


def _read(loop: Loop, data: Data, keys: jax.Array, first: int, last: int) -> PyTree:
    """Read the batches of groups [first, last) from file.

    The arrays are (chain, capacity, blocks per group, steps per block, rows per batch, ...).
    """
    shape, plan = loop.shape, loop.plan
    assert plan is not None  # a program that streams has batches
    starts = first_rows(plan, _starts(plan, shape, shape.capacity, keys, jnp.array(first)))
    starts = starts.reshape(keys.shape[0], shape.capacity, shape.group // shape.block, shape.block)[:, : last - first]
    return loop.program.placement.read(data, plan, starts, shape.capacity)


def _diagnose(loop: Loop, data: Data | None, tuned: PyTree, keys: jax.Array, at: Start) -> str:
    """An error message that names the step after which a state is not finite.

    The group is run again one step at a time. Its random numbers are the same, so it fails at the same step.
    """
    program, shape, plan = loop.program._replace(placement=ONE_DEVICE), loop.shape, loop.plan
    rows = rows_of(program, data, plan)
    kernel = program(rows, tuned)
    step, g = jax.jit(kernel.step), at.groups
    for chain in range(keys.shape[0]):
        state = jax.tree.map(lambda x, c=chain: x[c], at.states)
        for b in range(shape.group // shape.block):
            noise_key, batch_key = block_keys(keys[chain], jnp.array(g), jnp.array(b))
            noise = kernel.draw(noise_key, shape.block, state, None)
            for s in range(shape.block):
                t = g * shape.group + b * shape.block + s
                where = None if plan is None else place(plan, batch_key, jnp.array(t))
                cut = None
                if program.streams and data is not None and plan is not None and where is not None:
                    cut = data.read(first_rows(plan, where[0]), plan.width)
                state, _ = step(jax.tree.map(lambda x, s=s: x[s], noise), state, _batch(plan, rows, cut, where))
                if not bool(tree.all_finite(state.position)):
                    where = program.describe(program.observe(state))
                    return (
                        f"Step {t} of chain {chain} made {where} not finite. {program.remedy} "
                        "The run up to this step is in this error's .partial."
                    )
    return f"A state stopped being finite between steps {g * shape.group} and {(g + 1) * shape.group}. {program.remedy}"
