"""A pytree that was written down by leaf path comes back as it was."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tractable.core.errors import CheckpointError
from tractable.engine.leaves import beneath, flatten, nest, restore

pytestmark = pytest.mark.quick


class Stand(NamedTuple):
    groups: int
    gain: float
    done: bool
    ended: str
    key: jax.Array
    states: Any
    found: dict
    moments: Any = None


POSITION = {"w": jnp.arange(3.0), "a:float": jnp.ones((2, 1)), "b": {"int": jnp.zeros(())}}
STAND = Stand(
    3, float("inf"), True, "settled", jax.random.key(7),
    (POSITION, optax.adam(0.1).init(POSITION)), {"step": 0.1, "kind": "dense", "covariance": np.eye(2)},
)  # fmt: skip


def same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert type(a) is type(b) or isinstance(a, jax.Array)
        np.testing.assert_array_equal(a, b)


@pytest.mark.test
def test_there_and_back():
    arrays = flatten(STAND)
    assert all(isinstance(a, np.ndarray) and a.dtype.kind in "biufc" for a in arrays.values())
    shapes = jax.eval_shape(lambda: (POSITION, optax.adam(0.1).init(POSITION)))
    like = Stand(0, 0.0, False, "", jax.random.key(0), shapes, {})
    same(restore(like, arrays), STAND)


def test_a_path_is_a_name():
    arrays = flatten(STAND)
    assert {"groups:int", "gain:float", "done:bool", "ended:text", "key:key", "states/0/w"} <= set(arrays)
    assert nest(beneath(arrays, "found"))["kind"] == "dense"
    assert nest({"phi/mean": np.zeros(2), "family:text": arrays["ended:text"]}).keys() == {"phi", "family"}


def test_none_takes_a_leaf_where_there_is_one():
    assert restore({"a": None}, flatten({"a": 3})) == {"a": 3}
    assert restore({"a": None}, {}) == {"a": None}


def test_a_leaf_that_is_missing_is_said():
    with pytest.raises(CheckpointError, match="Expected an array 'b'"):
        restore({"a": 1, "b": 2}, flatten({"a": 1}))
