"""Small helpers on pytrees of arrays."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from tractable.core.noise import normal
from tractable.core.view import Label, as_label

PyTree = Any
Numbers: TypeAlias = ArrayLike | float | int  # anything NumPy can make an array of


def row_shapes(arrays: PyTree, *size: int) -> PyTree:
    """Shapes and dtypes of rows, as JAX holds them: their leading axis removed, or replaced by ``size``."""
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((*size, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype)), arrays
    )


def normal_like(key: jax.Array, tree: PyTree, count: int) -> PyTree:
    """Standard normal noise of the tree's shapes for ``count`` steps; every leaf has a leading axis ``count``."""
    leaves, treedef = jax.tree.flatten(tree)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    dtype = jnp.result_type(*leaves)
    flat = normal(key, (count, sum(sizes)), dtype)
    pieces = jnp.split(flat, np.cumsum(sizes)[:-1], axis=1) if len(leaves) > 1 else [flat]
    return jax.tree.unflatten(
        treedef,
        [piece.reshape((count, *leaf.shape)).astype(leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)],
    )


def raveller(shapes: PyTree) -> tuple[Callable[[PyTree], jax.Array], Callable[[jax.Array], PyTree]]:
    """The functions ``ravel`` and ``unravel`` between pytrees of these shapes and flat vectors.

    They agree with ``jax.flatten_util.ravel_pytree``, whose ``unravel`` has a derivative that takes twenty times as
    long as a network's gradient; here it is one concatenation.
    """
    leaves, treedef = jax.tree.flatten(shapes)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves]).tolist()

    def split(flat: jax.Array) -> PyTree:
        pieces = [jax.lax.slice(flat, (start,), (end,)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        return jax.tree.unflatten(treedef, [p.reshape(leaf.shape) for p, leaf in zip(pieces, leaves, strict=True)])

    def ravel(tree: PyTree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    unravel = jax.custom_vjp(split)
    unravel.defvjp(lambda flat: (split(flat), None), lambda _, cotangent: (ravel(cotangent),))
    return ravel, unravel


def size(tree: PyTree) -> int:
    """The number of entries of all arrays of a pytree."""
    return sum(int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(tree))


def total(tree: PyTree) -> jax.Array:
    """The sum of a pytree's leaves."""
    return functools.reduce(jnp.add, jax.tree.leaves(tree))


def sum_over(part: Callable[[PyTree], tuple[PyTree, PyTree]], over: PyTree) -> tuple[PyTree, PyTree]:
    """The sum of the first results of ``part(x)`` over the entries x of ``over``, and the second results, stacked.

    The sum is compensated (Kahan 1965): its rounding error is about that of one addition, even with thousands of terms.
    """

    def add(carry: tuple[PyTree, PyTree], x: PyTree) -> tuple[tuple[PyTree, PyTree], PyTree]:
        before, lost = carry
        term, outputs = part(x)
        new = jax.tree.map(lambda a, b: a - b, term, lost)
        after = jax.tree.map(jnp.add, before, new)
        return (after, jax.tree.map(lambda t, s, y: (t - s) - y, after, before, new)), outputs

    shapes = jax.eval_shape(part, jax.tree.map(lambda a: a[0], over))[0]
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (sums, _), outputs = jax.lax.scan(add, (zero, zero), over)
    return sums, outputs


def dot(a: PyTree, b: PyTree) -> jax.Array:
    """The inner product of two pytrees."""
    return total(jax.tree.map(jnp.vdot, a, b))


def all_finite(tree: PyTree) -> jax.Array:
    """Whether every floating-point number in the tree is finite."""
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(checks)) if checks else jnp.array(True)


def where(condition: jax.Array, a: PyTree, b: PyTree) -> PyTree:
    """``a`` if the scalar condition is true, else ``b``, for pytrees of arrays and of random keys."""
    return jax.tree.map(lambda x, y: jax.lax.select(condition, x, y), a, b)


def names(tree: PyTree, labels: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """A name for each number, such as ``w[0, 1]``, in the order of ``ravel_pytree``; each is a ``Label``.

    Args:
        labels: for a leaf's name, the names of its numbers, which replace names such as ``w[0, 1]``.
    """
    out: list[str] = []
    labels = labels or {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        stem, shape = path_name(path), jnp.shape(leaf)
        if stem in labels:
            out += map(as_label, labels[stem])
            continue
        out += [Label(stem, ", ".join(map(str, index)) if shape else None) for index in np.ndindex(*shape)]
    return out


def keys(tree: PyTree) -> list[str]:
    """The distinct keys of all dictionaries in a pytree."""
    paths = (path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0])
    dict_keys = (key.key for path in paths for key in path if isinstance(key, jax.tree_util.DictKey))
    return list(dict.fromkeys(map(str, dict_keys)))


def path_name(path: tuple) -> str:
    """The name of a leaf, such as ``weights.layer0.bias``."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
