"""Draws data by NumPy, whose generators need no compiled program: JAX's of gamma and Poisson take seconds to compile.

A compiled program computes the parameters of the distributions of all rows and draws, and the host draws from them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.random import Generator, Philox

from tractable.core.priors import base_of

MOST_PARAMETERS = 4  # the largest number of parameters of a ``Way``
MOST_COUNT = 1 << 62  # counts beyond this are not told apart


class Way(NamedTuple):
    """How NumPy draws from a kind of distribution.

    Attributes:
        parameters: the function ``distribution -> parameters``.
        draw: the function ``(generator, *parameters) -> values``; the parameters are arrays of equal shape.
        whole: whether values are whole numbers.
    """

    parameters: Callable[..., Sequence[ArrayLike]]
    draw: Callable[..., np.ndarray]
    whole: bool = False

    @property
    def dtype(self) -> np.dtype:
        """The type of the values."""
        return jnp.result_type(int if self.whole else float)


def gamma(generator: Generator, shape: np.ndarray) -> np.ndarray:
    """Values of Gamma(shape, 1); NaN for shapes that are not finite, which NumPy refuses or never finishes."""
    fine = np.isfinite(shape) & (shape >= 0)
    return np.where(fine, generator.standard_gamma(np.where(fine, shape, 1.0)), np.nan)


def poisson(generator: Generator, rate: np.ndarray) -> np.ndarray:
    """Poisson counts; the rate itself where no count of this rate can be drawn, as for NaN."""
    fine = (rate >= 0) & (rate < MOST_COUNT)
    return np.where(fine, generator.poisson(np.where(fine, rate, 0.0)), rate)


def _student_t(generator: Generator, df: np.ndarray, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return loc + scale * generator.standard_normal(df.shape) / np.sqrt(2 * gamma(generator, df / 2) / df)


def _beta(generator: Generator, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    fine, edge = np.isfinite(a + b), jnp.finfo(jnp.result_type(float))
    a, b = (np.where(fine, np.maximum(each, edge.tiny), 1.0) for each in (a, b))
    return np.where(fine, np.clip(generator.beta(a, b), edge.tiny, 1 - edge.eps), np.nan)


def _class(generator: Generator, logits: np.ndarray) -> np.ndarray:
    """The class (…,) of logits (…, classes), by the Gumbel-max trick."""
    return np.argmax(logits + generator.gumbel(size=logits.shape), -1)


def mixed_poisson(generator: Generator, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Counts of the negative binomial distribution, or of Poisson's where the size is infinite."""
    is_poisson = np.isinf(size)
    rate = mean * gamma(generator, np.where(is_poisson, 1.0, size)) / size
    return poisson(generator, np.where(is_poisson, mean, rate))


def _below(generator: Generator, probability: np.ndarray) -> np.ndarray:
    return generator.random(probability.shape) < probability


# The ways by the function that draws in JAX, which a subclass shares unless it has a law of its own.
WAYS: dict[object, Way] = {
    dist.Normal.sample: Way(lambda d: (d.loc, d.scale), lambda g, loc, s: loc + s * g.standard_normal(loc.shape)),
    dist.HalfNormal.sample: Way(lambda d: (d.scale,), lambda g, s: s * np.abs(g.standard_normal(s.shape))),
    dist.Uniform.sample: Way(lambda d: (d.low, d.high), lambda g, low, high: low + (high - low) * g.random(low.shape)),
    dist.StudentT.sample: Way(lambda d: (d.df, d.loc, d.scale), _student_t),
    dist.Gamma.sample: Way(lambda d: (d.concentration, d.rate), lambda g, shape, rate: gamma(g, shape) / rate),
    dist.Weibull.sample: Way(
        lambda d: (d.scale, d.concentration), lambda g, s, k: s * g.standard_exponential(s.shape) ** (1 / k)
    ),
    dist.Exponential.sample: Way(lambda d: (d.rate,), lambda g, rate: g.standard_exponential(rate.shape) / rate),
    dist.Beta.sample: Way(lambda d: (d.concentration1, d.concentration0), _beta),
    dist.Poisson.sample: Way(lambda d: (d.rate,), poisson, whole=True),
    dist.NegativeBinomial2.sample: Way(lambda d: (d.concentration / d.rate, d.concentration), mixed_poisson, True),
    dist.BernoulliLogits.sample: Way(lambda d: (jax.nn.sigmoid(d.logits),), _below, whole=True),
    dist.BernoulliProbs.sample: Way(lambda d: (d.probs,), _below, whole=True),
    dist.CategoricalLogits.sample: Way(lambda d: (d.logits,), _class, whole=True),
    dist.CategoricalProbs.sample: Way(lambda d: (jnp.log(d.probs),), _class, whole=True),
}
LOG_NORMAL = Way(lambda d: (d.loc, d.scale), lambda g, loc, scale: np.exp(loc + scale * g.standard_normal(loc.shape)))


def way_of(distribution: object) -> Way | None:
    """How NumPy draws from a distribution; None if it cannot."""
    base = base_of(distribution)
    return LOG_NORMAL if type(base) is dist.LogNormal else WAYS.get(getattr(type(base), "sample", None))


def parameters_of(way: Way, distribution: dist.Distribution) -> ArrayLike:
    """The parameters of a distribution of numbers of shape (…), (parameter, …)."""
    base, shape, each = base_of(distribution), distribution.shape(), way.parameters(base_of(distribution))
    module = jnp if any(isinstance(p, Tracer) for p in each) else np
    return module.stack([module.broadcast_to(p, shape + np.shape(p)[len(base.batch_shape) :]) for p in each])


def simulate(way: Way, parameters: np.ndarray, index: np.ndarray, seed: int, count: int = 1) -> np.ndarray:
    """``count`` values for each row and draw, (row, draw × count, …), from their parameters (row, draw, parameter, …).

    The values of a row depend on the seed, the row's index and the row's parameters alone.
    """
    values = []
    for row, number in zip(parameters, index, strict=True):
        each = np.moveaxis(np.repeat(np.asarray(row, np.float64), count, 0), 1, 0)
        with np.errstate(all="ignore"):
            values.append(way.draw(Generator(Philox(key=[seed, number])), *each))
    drawn = np.stack(values)
    if way.whole:
        most = min(jnp.iinfo(way.dtype).max, MOST_COUNT)
        drawn = np.nan_to_num(drawn, nan=-1, posinf=most).clip(max=most)
    return drawn.astype(way.dtype)


def draws_of(distributions: Sequence[dist.Distribution], count: int, seed: int) -> list[np.ndarray] | None:
    """``count`` draws (count, …) from each distribution; None if NumPy cannot draw from all of them."""
    draws = []
    for number, each in enumerate(distributions):
        if (way := way_of(each)) is None:
            return None
        parameters = np.asarray(parameters_of(way, each))[None, None]
        draws.append(simulate(way, parameters, np.array([number]), seed, count)[0])
    return draws
