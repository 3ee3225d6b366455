"""Fast draws in single precision: standard normals, and logarithms of uniforms."""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # constants of Threefry-2x32 (Salmon et al. 2011), as is PARITY
PARITY = 0x1BD11BDA
# Coefficients of Giles' polynomials for the inverse error function, in the centre and the tail, highest power first.
CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
MOST = 1 << 32  # a key gives fewer numbers than this, as the counter has 32 bits
LARGE = 1 << 14  # this many numbers or more are drawn in pairs
EVEN = 2048  # a loop divided among cores uses vector instructions only if its length is a multiple of this
COSINE = [(-1) ** k * (math.pi / 2) ** (2 * k) / math.factorial(2 * k) for k in range(7)]  # cos(πx/2) in powers of x²


def normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike | None = None) -> jax.Array:
    """Independent standard normals.

    In single precision with Threefry keys, LARGE or more numbers come from ``in_pairs``. Fewer come from Giles' inverse
    error function (2012), with one logarithm each; they are at most 5.4 sds from 0. In all other cases
    ``jax.random.normal`` draws them.
    """
    if not cheap(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    if (size := math.prod(shape)) >= LARGE:
        return in_pairs(jax.random.key_data(key), size).reshape(shape)
    return standard(bits(key, shape))


def in_pairs(key: jax.Array, size: int) -> jax.Array:
    """``size`` standard normals in pairs (Box & Muller 1958) from a key (2,).

    R cos θ and R sin θ come from one word: 20 bits give u in R² = −2 log u, and 12 bits give θ. The 4,096 values of θ
    give the exact expectations of polynomials in the pair whose degree is below 4,096. The loop makes the compiler
    store the numbers, which it would otherwise compute again at every use.
    """
    block = -(-size // (4 * EVEN)) * EVEN
    words = jnp.stack(threefry(key, jax.lax.iota(jnp.uint32, block)))  # (2, block)

    def one_of_pair(words: jax.Array, quarters: jax.Array) -> tuple[jax.Array, jax.Array]:
        radius = jnp.sqrt(-2 * jnp.log((words >> 12).astype(jnp.float32) * 2.0**-20 + 2.0**-21))
        angle = words + (quarters << 10)  # the lower 12 bits count 4,096ths of a full turn
        x = (angle & 0x7FF).astype(jnp.float32) * 2.0**-10 - (1 - 2.0**-11)  # (−1, 1) is half a turn
        cosine = jnp.full_like(x, COSINE[-1])
        for c in COSINE[-2::-1]:
            cosine = cosine * (x * x) + c
        return words, jnp.where(angle & 0x800, -cosine, cosine) * radius

    numbers = jax.lax.scan(one_of_pair, words, jnp.arange(2, dtype=jnp.uint32))[1]  # (2, 2, block)
    return numbers.reshape(-1)[:size]


def log_uniform(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike | None = None) -> jax.Array:
    """log u with u uniform in (0, 1); in single precision u is the middle of one of 2²⁴ equal intervals, so never 0."""
    if not cheap(key, shape, dtype):
        return -jax.random.exponential(key, shape, dtype)
    return _log_of(bits(key, shape))


def _log_of(words: jax.Array) -> jax.Array:
    return jnp.log((words >> 8).astype(jnp.float32) * 2.0**-24 + 2.0**-25)


def log_uniform_at(key: jax.Array, place: jax.Array, dtype: DTypeLike | None = None) -> jax.Array:
    """The logarithm of one uniform number, at a place in [0, 2³²) of those that ``key`` gives."""
    if not cheap(key, (), dtype):
        return log_uniform(jax.random.fold_in(key, place), (), dtype)
    left, right = threefry(jax.random.key_data(key), jnp.asarray(place, jnp.uint32))
    return _log_of(left ^ right)


def cheap(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike | None) -> bool:
    """Whether this module draws the numbers itself, instead of ``jax.random``."""
    dtype = jnp.result_type(float) if dtype is None else jnp.dtype(dtype)
    return dtype == jnp.float32 and math.prod(shape) < MOST and "threefry2x32" in str(jax.random.key_impl(key))


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``jax.random.bits`` in 32-bit words, for a Threefry key and fewer than 2³² words."""
    left, right = threefry(jax.random.key_data(key), jax.lax.iota(jnp.uint32, math.prod(shape)))
    return (left ^ right).reshape(shape)


def threefry(key: jax.Array, counter: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two words of Threefry-2x32 (Salmon et al. 2011), twenty rounds, of uint32 counters (0, c) and a key (2,)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY)
    left, right = jnp.zeros_like(counter) + keys[0], counter + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            left = left + right
            right = (right << distance) | (right >> (32 - distance))
            right = right ^ left
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return left, right


def standard(words: jax.Array) -> jax.Array:
    """√2 erf⁻¹(x), where a word's upper 24 bits choose x, the middle of one of 2²⁴ equal intervals of (−1, 1)."""
    x = (words >> 8).astype(jnp.float32) * 2.0**-23 - (1.0 - 2.0**-24)
    w = -jnp.log((1 - x) * (1 + x))
    middle, far = w - 2.5, jnp.sqrt(w) - 3
    centre, tail = jnp.full_like(x, CENTRE[0]), jnp.full_like(x, TAIL[0])
    for a, b in zip(CENTRE[1:], TAIL[1:], strict=True):
        centre, tail = centre * middle + a, tail * far + b
    return math.sqrt(2) * x * jnp.where(w < 5, centre, tail)
