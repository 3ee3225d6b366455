"""Standard normals are the generator's bits, through the inverse of the normal distribution or by twos."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from tractable.core import noise

pytestmark = pytest.mark.laws

KEY = jax.random.key(7)


@pytest.mark.parametrize("shape", [(5,), (3, 7, 2), (1000,)])
def test_the_bits_are_those_of_jax(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    left, right = noise.threefry(jax.random.key_data(KEY), jnp.arange(size, dtype=jnp.uint32))
    assert np.array_equal((left ^ right).reshape(shape), jax.random.bits(KEY, shape, jnp.uint32))
    assert np.array_equal(noise.bits(KEY, shape), jax.random.bits(KEY, shape, jnp.uint32))


@pytest.mark.test
def test_both_words_are_the_published_ones() -> None:
    # Random123's known answers for twenty rounds: counter 0, key 0.
    left, right = noise.threefry(jnp.zeros(2, jnp.uint32), jnp.zeros(1, jnp.uint32))
    assert (int(left[0]), int(right[0])) == (0x6B200159, 0x99BA4EFE)


def test_the_inverse_is_exact_to_single_precision() -> None:
    """On a grid of words and on both ends, where the two polynomials are furthest from their middles."""
    upper = np.unique(np.concatenate([np.arange(0, 1 << 24, 997), np.arange(3000), (1 << 24) - 1 - np.arange(3000)]))
    found = np.asarray(noise.standard(jnp.asarray(upper.astype(np.uint32) << 8)), np.float64)
    exact = scipy.special.ndtri((upper + 0.5) / 2**24)
    # x itself is exact to 2⁻²⁴ only, which the inverse's slope magnifies next to ±1.
    slope = np.sqrt(2 * np.pi) * np.exp(exact**2 / 2)
    assert np.all(np.abs(found - exact) <= 4e-7 * np.abs(exact) + slope * 2.0**-25 + 1e-7)
    assert np.all(np.diff(found) > 0)
    assert found[0] == -found[-1] and np.isfinite(found[0]) and abs(found[0]) > 5.3


def test_they_are_normal() -> None:
    draws = np.asarray(noise.normal(KEY, (200_000,), jnp.float32), np.float64)
    assert scipy.stats.kstest(draws, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 5.4 / np.sqrt(len(draws))


@pytest.mark.parametrize("size", [noise.LARGE, 50_001])
def test_pairs_are_words_in_polar_coordinates(size: int) -> None:
    found = np.asarray(noise.normal(KEY, (size,), jnp.float32), np.float64)
    block = -(-size // (4 * noise.EVEN)) * noise.EVEN
    counter = jnp.arange(block, dtype=jnp.uint32)
    words = np.concatenate(noise.threefry(jax.random.key_data(KEY), counter)).astype(np.int64)
    radius = np.sqrt(-2 * np.log((words // 4096 + 0.5) / 2**20))
    turn = 2 * np.pi * (words % 4096 + 0.5) / 4096
    exact = np.concatenate([radius * np.sin(turn), radius * np.cos(turn)])[:size]
    np.testing.assert_allclose(found, exact, atol=3e-6)


def test_pairs_are_independent() -> None:
    """Members of a pair, and normals of one counter's two words."""
    size = 4 * 100 * noise.EVEN
    first, second = np.asarray(noise.normal(KEY, (size,), jnp.float32), np.float64).reshape(2, -1)
    for combined in ((first + second) / np.sqrt(2), (first - second) / np.sqrt(2)):
        assert scipy.stats.kstest(combined, "norm").pvalue > 1e-6
    assert scipy.stats.kstest((first**2 + second**2) / 2, "expon").pvalue > 1e-6
    ratio = np.arctan2(first, second) / (2 * np.pi) + 0.5
    assert scipy.stats.kstest(ratio, "uniform").pvalue > 1e-6
    left, right = first.reshape(2, -1)
    assert abs(np.mean(left * right)) < 5.4 / np.sqrt(len(left))
    assert abs(np.mean(left**2 * right**2) - 1) < 5.4 * np.sqrt(8 / len(left))


@pytest.mark.computes
def test_pairs_are_drawn_once_however_often_they_are_read() -> None:
    """Forward, backward, and for every row that a bias is added to."""

    def step(key: jax.Array, mean: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(mean: jax.Array) -> jax.Array:
            drawn = mean + noise.normal(key, (200, 100), jnp.float32)
            return jnp.sum(jnp.square(jnp.tanh(x @ drawn[1:] + drawn[0])))

        gradient = jax.grad(loss)(mean)
        return gradient, jnp.square(gradient) * noise.normal(key, (200, 100), jnp.float32)

    lowered = jax.jit(step).lower(KEY, jnp.zeros((200, 100)), jnp.ones((30, 199)))
    text = lowered.compile().as_text()
    assert 20 <= text.count(" shift-left(") < 30  # the generator's rounds
    assert text.count(f"constant({noise.COSINE[2]:.7f}") == 1  # a line of the cosine's polynomial


def test_logarithms_of_uniforms() -> None:
    draws = np.asarray(noise.log_uniform(KEY, (200_000,), jnp.float32), np.float64)
    assert np.all(draws < 0) and np.all(np.isfinite(draws))
    assert scipy.stats.kstest(-draws, "expon").pvalue > 1e-6
    wide = noise.log_uniform(KEY, (4,), jnp.float64)
    assert np.array_equal(wide, -jax.random.exponential(KEY, (4,), jnp.float64))


def test_shape_dtype_and_keys() -> None:
    assert noise.normal(KEY, (), jnp.float32).shape == ()
    assert noise.normal(KEY, (0, 3), jnp.float32).shape == (0, 3)
    assert noise.normal(KEY, (4,), jnp.float32).dtype == jnp.float32
    assert np.array_equal(noise.normal(KEY, (4,), jnp.float64), jax.random.normal(KEY, (4,), jnp.float64))
    other = jax.random.key(0, impl="rbg")
    assert np.array_equal(noise.normal(other, (4,), jnp.float32), jax.random.normal(other, (4,), jnp.float32))
    several = jax.vmap(lambda k: noise.normal(k, (6,), jnp.float32))(jax.random.split(KEY, 3))
    alone = [noise.normal(k, (6,), jnp.float32) for k in jax.random.split(KEY, 3)]
    assert np.array_equal(several, np.stack(alone))
