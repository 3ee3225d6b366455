"""The log density of a datum's hidden cause z, a pytree of distributions, and the values that z can take."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.errors import ModelError
from tractable.core.model import PyTree, is_distribution
from tractable.core.priors import base_of as base_of

MOST_VALUES = 10_000  # largest number of values of z that are summed over


def log_prob_of(distributions: PyTree, value: PyTree) -> jax.Array:
    """log p of a pytree of values, nats."""
    return tree.total(jax.tree.map(lambda d, v: d.log_prob(v), distributions, value, is_leaf=is_distribution))


def list_values(causes: PyTree) -> PyTree:
    """The values of z, a pytree of arrays with leading axis m; a ModelError if a value is listed twice."""
    scalars = isinstance(causes, list) and all(np.ndim(value) == 0 for value in causes)
    causes = np.asarray(causes) if scalars else causes
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(causes)]
    lengths = {leaf.shape[:1] for leaf in leaves}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves) or "nothing"
        raise ModelError(f"causes= expects arrays of one leading axis, the values of z; got {shapes}.")
    rows = np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves], 1)
    _, first, index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[index.ravel()] != np.arange(len(rows)))
    if len(repeated):
        raise ModelError(
            f"causes= lists a value of z twice, in rows {first[index.ravel()[repeated[0]]]} and {repeated[0]}, which "
            "would count it twice: expected each value once."
        )
    return causes


def values_of(latent: Callable, example: Callable[[jax.Array], PyTree]) -> PyTree:
    """All values of z, a pytree of arrays with leading axis m; None if z has infinitely many values."""
    try:
        distributions = latent(example(jax.random.key(0)))
    except TypeError as error:
        raise ModelError(
            f"latent(params) could not be called: {error}. If it takes inputs, give causes=, the values of z."
        ) from error
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    for leaf in leaves:
        if not is_distribution(leaf):
            raise ModelError(f"latent(params) should return the distribution of z; got {type(leaf).__name__}.")
    if not leaves or not all(d.support.is_discrete and d.has_enumerate_support for d in leaves):
        return None
    for leaf in leaves:
        if leaf.shape() != ():
            kind, shape = type(leaf).__name__, leaf.shape()
            raise ModelError(f"z's {kind} has shape {shape}: give causes=, or a pytree of scalar distributions.")
    supports = [np.asarray(leaf.enumerate_support(expand=False)) for leaf in leaves]
    count = int(np.prod([len(support) for support in supports]))
    if count > MOST_VALUES:
        raise ModelError(f"z takes {count} values; expected at most {MOST_VALUES}. Sum a part of z out by hand.")
    index = np.indices([len(support) for support in supports]).reshape(len(supports), -1)
    return jax.tree.unflatten(structure, [jnp.asarray(v[i]) for v, i in zip(supports, index, strict=True)])
