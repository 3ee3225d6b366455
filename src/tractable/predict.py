"""From draws of the parameters to predictions, their parts and their intervals."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from tractable.core import Data, Model, needed_likelihood
from tractable.tools.errors import DataError, SettingsError

PyTree = Any
ROWS = 256  # inputs predicted at once
SAMPLES = 1000  # data drawn for an interval, at least


class Prediction(NamedTuple):
    """The predictive distribution at n inputs, averaged over the posterior.

    For classes every field is of the class indicators: ``mean`` is then the probabilities, (n, classes) or, for two
    classes coded 0 and 1, (n,).
    """

    mean: np.ndarray  # (n, ...) E[y*]
    sd: np.ndarray  # total: √(aleatoric² + epistemic²)
    aleatoric: np.ndarray  # √E[Var(y*|θ)]: noise that more data do not remove
    epistemic: np.ndarray  # √Var(E[y*|θ]): ignorance of θ that they do
    lower: np.ndarray  # equal-tailed interval of y* (of the probability, for classes)
    upper: np.ndarray
    probabilities: np.ndarray | None = None  # (n, classes)


def predict(
    model: Model, params: PyTree, weights: np.ndarray, x: Any, *, level: float = 0.9, seed: int = 0
) -> Prediction:
    """The predictive distribution at inputs x (n, ...) from weighted draws of the parameters (s, ...).

    Total variance = aleatoric + epistemic (the law of total variance).
    """
    needed_likelihood(model)
    if not 0 < level < 1:
        raise SettingsError(f"predict(level=...) expects a number in (0, 1); got {level}.")
    first = jax.tree.map(lambda a: a[0], params)
    rows = x if x is None else jax.tree.map(jnp.asarray, x)
    row = None if rows is None else jax.tree.map(lambda a: a[0], rows)
    example = model.datum(first, row)
    if not isinstance(example, Distribution):
        raise DataError("predict handles a likelihood of one distribution; this one returns several.")
    kind = "classes" if "Categorical" in type(example).__name__ else (
        "binary" if "Bernoulli" in type(example).__name__ else "number"
    )  # fmt: skip
    key = jax.random.key(seed)
    # An interval is of drawn data: a point, or a few draws, give several each.
    each = -(-SAMPLES // len(weights)) if kind == "number" else 1
    params = jax.tree.map(lambda a: jnp.repeat(jnp.asarray(a), each, axis=0), params)
    share = jnp.repeat(jnp.asarray(weights, jnp.result_type(float)), each) / each
    if rows is None:
        rows = jnp.zeros((1, 0))
        out = _predict(model, kind, False, params, share, rows, level, key)
    else:
        out = _predict(model, kind, True, params, share, rows, level, key)
    mean, aleatoric, epistemic, lower, upper = (np.asarray(a) for a in out)
    probabilities = None
    if kind == "classes":
        probabilities = mean
    elif kind == "binary":
        probabilities = np.stack([1 - mean, mean], -1)
    return Prediction(
        mean, np.sqrt(aleatoric + epistemic), np.sqrt(aleatoric), np.sqrt(epistemic), lower, upper, probabilities
    )


@functools.partial(jax.jit, static_argnames=("model", "kind", "given"))
def _predict(model, kind, given, params, weights, rows, level, key) -> tuple:
    keys = jax.random.split(key, weights.shape[0])

    def at(row: tuple) -> tuple:
        x, index = row

        def draw(theta: PyTree, key: jax.Array) -> tuple:
            d = model.datum(theta, x if given else None)
            if kind == "number":
                return d.mean, d.variance, d.sample(jax.random.fold_in(key, index))
            p = d.probs
            return p, p * (1 - p), p

        means, variances, samples = jax.vmap(draw)(params, keys)

        def average(a: jax.Array) -> jax.Array:
            return jnp.tensordot(weights, a, 1)

        mean = average(means)
        epistemic = jnp.maximum(average(jnp.square(means - mean)), 0)
        order = jnp.argsort(samples, axis=0)
        mass = jnp.cumsum(weights[order], axis=0)
        ordered = jnp.take_along_axis(samples, order, 0)

        def quantile(q: jax.Array) -> jax.Array:
            return jnp.take_along_axis(ordered, jnp.argmax(mass >= q * mass[-1], 0)[None], 0)[0]

        return mean, average(variances), epistemic, quantile((1 - level) / 2), quantile((1 + level) / 2)

    count = jax.tree.leaves(rows)[0].shape[0]
    return jax.lax.map(at, (rows, jnp.arange(count)), batch_size=ROWS)


def log_predictive(model: Model, params: PyTree, weights: np.ndarray, data: Data) -> np.ndarray:
    """log Σ_s w_s p(y_n|θ_s) of every row, (n,); one draw at a time, so memory is O(n)."""
    needed_likelihood(model)
    params = jax.tree.map(jnp.asarray, params)
    rows = jax.tree.map(jnp.asarray, data.rows)
    return np.asarray(_log_predictive(model, params, jnp.log(jnp.asarray(weights, jnp.result_type(float))), rows))


@functools.partial(jax.jit, static_argnames="model")
def _log_predictive(model: Model, params: PyTree, log_weights: jax.Array, rows: PyTree) -> jax.Array:
    def add(total: jax.Array, draw: tuple) -> tuple[jax.Array, None]:
        theta, log_weight = draw
        return jnp.logaddexp(total, log_weight + model.log_likelihoods(theta, rows)), None

    start = jnp.full(jax.tree.leaves(rows)[0].shape[0], -jnp.inf, log_weights.dtype)
    return jax.lax.scan(add, start, (params, log_weights))[0]
