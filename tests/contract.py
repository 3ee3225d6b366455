"""What every kernel promises, whatever it samples or climbs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.model import Batch, Kernel


def check_kernel(
    make: Callable[[Any], tuple[Kernel, Any]],
    batch: Batch | None = None,
    *,
    key_reuse: bool = True,
    mixed: bool = True,
) -> None:
    """Hold a kernel to the contract, in float32 and in float64.

    Args:
        make: ``dtype -> (kernel, position)``.
        batch: what it steps with.
        key_reuse: check that every key is used once.
        mixed: check float32 with float64 switched on, where a constant of the wrong type would show.
    """
    for dtype, tolerance in ((jnp.float32, 1e-4), (jnp.float64, 1e-6)):
        with jax.enable_x64(mixed or dtype == jnp.float64):
            kernel, position = make(dtype)
            assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(position))
            _check_draw(kernel, position, batch)
            _check_step(kernel, position, batch, tolerance)
            _check_state(kernel, position, batch)
            _check_chains(kernel, position, batch, tolerance)
    if key_reuse:
        with jax.debug_key_reuse(True):
            first, second = jax.random.split(jax.random.key(1))
            state = kernel.init(first, position)
            jax.block_until_ready(jax.jit(kernel.__call__)(second, state, batch)[0])


def plain(tree: Any) -> Any:
    """Keys as numbers, so that trees can be compared; copies on the host."""
    return jax.tree.map(
        lambda x: np.array(jax.random.key_data(x) if jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key) else x),
        tree,
    )


def assert_close(a: Any, b: Any, tolerance: float) -> None:
    a, b = plain(a), plain(b)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def _first(noise: Any) -> Any:
    return jax.tree.map(lambda x: x[0], noise)


def _check_draw(kernel: Kernel, position: Any, batch: Batch | None) -> None:
    """The noise of a block has a leading axis of its steps, and depends on the key and on shapes only."""
    state = kernel.init(jax.random.key(0), position)
    noise = kernel.draw(jax.random.key(1), 5, state, batch)
    assert all(leaf.shape[:1] == (5,) for leaf in jax.tree.leaves(noise))

    other = kernel.init(jax.random.key(0), jax.tree.map(lambda x: 0.5 * x + 0.25, position))
    assert_close(noise, kernel.draw(jax.random.key(1), 5, other, batch), 0)
    if any(leaf.size for leaf in jax.tree.leaves(noise)):
        different = jax.tree.leaves(plain(kernel.draw(jax.random.key(2), 5, state, batch)))
        assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(plain(noise)), different, strict=True) if a.size)


def _check_step(kernel: Kernel, position: Any, batch: Batch | None, tolerance: float) -> None:
    """By hand, compiled or not, = draw then step, which is deterministic and traced once."""
    dtype, traces = jnp.result_type(*jax.tree.leaves(position)), 0

    @jax.jit
    def step(noise: Any, state: Any, batch: Batch | None) -> tuple[Any, Any]:
        nonlocal traces
        traces += 1
        return kernel.step(noise, state, batch)

    state = kernel.init(jax.random.key(0), position)
    noise = _first(kernel.draw(jax.random.key(1), 1, state, batch))
    before = plain((noise, state, batch))
    stepped = step(noise, state, batch)
    assert_close(stepped, step(noise, state, batch), 0)
    by_hand = kernel.__call__ if dtype == jnp.float64 else jax.jit(kernel.__call__)
    assert_close(stepped, by_hand(jax.random.key(1), state, batch), tolerance)
    assert_close(before, (noise, state, batch), 0)
    for _ in range(2):
        state, info = step(noise, state, batch)
    assert traces == 1
    for leaf in jax.tree.leaves(info):
        assert jnp.shape(leaf) == () and jnp.issubdtype(leaf.dtype, jnp.floating), info


def _check_state(kernel: Kernel, position: Any, batch: Batch | None) -> None:
    """A step keeps the structure, shape and type of every leaf, so that steps can be scanned."""
    state = kernel.init(jax.random.key(0), position)
    block = kernel.draw(jax.random.key(1), 3, state, batch)

    def steps(state: Any, block: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda state, noise: kernel.step(noise, state, batch), state, block)

    new, _ = jax.eval_shape(steps, state, block)
    assert shapes(new) == shapes(state)
    assert shapes(new.position) == shapes(position)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: f"{x.dtype}{x.shape}", tree)


def _check_chains(kernel: Kernel, position: Any, batch: Batch | None, tolerance: float) -> None:
    """A chain among many goes where it goes alone."""

    def chain(key: jax.Array, position: Any) -> tuple[Any, Any]:
        return kernel(key, kernel.init(jax.random.key(0), position), batch)

    positions = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x, 0.25 * x]), position)
    keys = jax.random.split(jax.random.key(3), 3)
    together, alone = jax.jit(jax.vmap(chain))(keys, positions), jax.jit(chain)
    for i in range(3):
        one = alone(keys[i], jax.tree.map(lambda x, i=i: x[i], positions))
        assert_close(jax.tree.map(lambda x, i=i: x[i], together), one, tolerance)
