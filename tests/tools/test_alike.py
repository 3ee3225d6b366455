"""A model that is written again is compiled once; one that differs in anything that JAX traces is not taken for it."""

import functools
import gc
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core import Model
from tractable.tools import alike

SCALE = 1.0


def helper(z: jax.Array) -> jax.Array:
    return jax.tree.map(lambda each: each * SCALE, z)


def likelihood_of(captured: Any) -> Callable:
    def likelihood(params: dict) -> dist.Distribution:
        return dist.Normal(helper(params["theta"]) + jnp.sum(jnp.asarray(captured)), 1.0)

    return likelihood


def made(captured: Any = 2.0, prior: Any = None, **more: Any) -> Model:
    return Model({"theta": dist.Normal(0.0, 1.0) if prior is None else prior}, likelihood_of(captured), **more)


def form(model: Model) -> object:
    return model.apart()[0]


@pytest.mark.parametrize(
    "captured", [2.0, 2, (1.0, [2, {"a": 3.0}]), np.arange(3.0), jnp.arange(3), dist.Gamma, dist.Beta(1.0, 2.0)]
)
def test_the_same_written_again_is_compiled_once(captured):
    first, again = made(captured), made(captured)
    assert form(first) is first
    assert form(again) is first


def defaults(place: Any, by: Any) -> Callable:
    def function(z: float, first: Any = place, *, second: Any = by) -> tuple:
        return z, first, second

    return function


WIDE = {size: dist.ImproperUniform(dist.constraints.real, (), (size,)) for size in (2, 3)}
DIFFERENT = [
    1, 2, True, 2.0, 0.0, -0.0, float("inf"), "2", (2.0,), [2.0], {"a": 2.0}, {"b": 2.0}, np.float32(2), np.float64(2),
    OrderedDict(a=2.0),
    np.zeros(2), np.zeros(2, np.float32), np.zeros((1, 2)), np.ones(2), jnp.zeros(2), jnp.zeros(2, int), jnp.float32(2),
    jnp.asarray(2.0), jnp.asarray(2.0, float), dist.Beta(1.0, 2.0), dist.Beta(1.0, 3.0), dist.Gamma(1.0, 2.0),
    *WIDE.values(),
    dist.Normal(0.0, 1.0), dist.Normal(np.zeros(2), 1.0), dist.Normal(0.0, 1.0).expand([2]), dist.Beta, dist.Gamma,
    jnp.exp, jnp.log, np, jnp, lambda z: z, lambda z: 2 * z, defaults(1, 1), defaults(1, 2), defaults(2, 1),
    functools.partial(jnp.clip, min=0), functools.partial(jnp.clip, min=1), functools.partial(jnp.clip, max=0),
    jax.tree_util.Partial(jnp.clip, min=0), dist.constraints.positive, dist.constraints.interval(0, 1),
    dist.constraints.interval(0, 2), dist.transforms.AffineTransform(0, 1), dist.transforms.AffineTransform(0, 2),
]  # fmt: skip


def test_what_differs_is_told_apart():
    known = [alike.told(likelihood_of(each)) for each in DIFFERENT]
    assert None not in known
    assert len(set(known)) == len(known)


@pytest.mark.parametrize(
    "change",
    [
        {"prior": dist.Normal(0.0, 2.0)}, {"prior": dist.Normal(0.0, np.ones(1))}, {"labels": {"theta": ["a"]}},
        {"derived": lambda params: {"double": 2 * params["theta"]}}, {"start": lambda key: {"theta": jnp.zeros(())}},
    ],
)  # fmt: skip
def test_every_field_of_a_model_counts(change):
    first, other = made(), made(**change)
    assert form(first) is first
    assert form(other) is other


def test_a_model_of_another_precision_is_another():
    """Shapes and dtypes of its space are kept from its first use."""
    with jax.enable_x64(False):
        single = made(13.0)
        assert form(single) is single
        assert single.space.unravel(jnp.zeros(1))["theta"].dtype == jnp.float32
    double = made(13.0)
    assert form(double) is double


def test_globals_are_followed_and_looked_at_again(monkeypatch):
    first = made(17.0)
    assert form(first) is first
    monkeypatch.setitem(globals(), "SCALE", 2.0)  # named by the helper of the likelihood
    second = made(17.0)
    assert form(second) is second
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert form(made(17.0)) is first  # which would be traced as it was


@pytest.mark.parametrize("change", ["array", "list", "cell", "attribute"])
def test_an_earlier_one_whose_captures_changed_stands_for_none(change):
    """Traced again, for rows of another shape, the earlier model would be another model."""
    array, values, sizes = np.array([19.0, 1.0]), [23.0], [29.0]

    def captured(late: float) -> tuple[Callable, Callable]:
        def move(to: float) -> None:
            nonlocal late
            late = to

        return (lambda params: dist.Normal(params["theta"] * late, 1.0)), move

    likelihood, move = captured(31.0)
    write = {"array": lambda: made(array), "list": lambda: made(values), "attribute": lambda: made(dist.Delta(array))}
    write["cell"] = lambda: Model({"theta": dist.Normal(0.0, 1.0)}, likelihood)
    first = write[change]()
    assert form(first) is first
    array[0], values[0], sizes[0] = 0.0, 0.0, 0.0
    move(0.0)
    array, values = np.array([19.0, 1.0]), [23.0]
    likelihood, _ = captured(31.0)
    again = write[change]()
    assert form(again) is again
    assert form(write[change]()) is again


class Own:
    """A class of a user's, whose methods may name anything."""

    def __init__(self) -> None:
        self.size = 2.0

    def __call__(self, z: float) -> float:
        return z


class Table(dict):
    """A table of a user's."""


class Bound(functools.partial):
    """A call of a user's."""


def recursive(n: int) -> int:
    return n and recursive(n - 1)


@pytest.mark.parametrize(
    "unsure",
    [
        Own(), Own, Own().__call__, Table(), Bound(jnp.exp), types.ModuleType("own"), np.zeros(1 << 14), {1.0, 2.0},
        np.array([Own()]), recursive, jax.jit(lambda z: z), jax.random.key(0), iter([1.0]),
    ],
)  # fmt: skip
def test_nothing_is_taken_for_what_cannot_be_told(unsure):
    first, again = made(unsure), made(unsure)
    assert form(first) is first
    assert form(again) is again


def test_nothing_is_kept_for_the_table():
    first = made(41.0)
    assert form(first) is first
    del first
    gc.collect()
    again = made(41.0)
    assert form(again) is again


def test_fits_of_models_written_again_compile_nothing():
    """Draws are those of the model compiled for itself."""
    y = tr.Data(np.array([0.3, 1.2, -0.4]))

    def draws(shift: float, seed: int) -> np.ndarray:
        method = tr.NUTS(draws=40, warmup=60, chains=2)
        return tr.infer(made(shift), y, method, seed=seed, verify=None, progress=False).draws["theta"]

    def counted() -> tuple[int, np.ndarray]:
        compiled = []

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            compiled.extend([event] if event.endswith("backend_compile_duration") else [])

        jax.monitoring.register_event_duration_secs_listener(listen)
        found = draws(43.0, 1)
        jax.monitoring.unregister_event_duration_listener(listen)
        return len(compiled), found

    first, again = counted(), counted()
    assert first[0] > 0
    assert again[0] == 0
    np.testing.assert_array_equal(again[1], first[1])
    assert not np.array_equal(draws(44.0, 1), first[1])
