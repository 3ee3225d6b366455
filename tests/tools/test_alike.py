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
import numpyro
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.adapters.numpyro import from_numpyro, split_numpyro
from tractable.core import Model
from tractable.tools import alike

pytestmark = pytest.mark.quick

SCALE = 1.0


def helper(z: jax.Array) -> jax.Array:
    return jax.tree.map(lambda each: each * SCALE, z)


def likelihood_of(captured: Any) -> Callable:
    def likelihood(params: dict) -> dist.Distribution:
        return dist.Normal(helper(params["theta"]) + jnp.sum(jnp.asarray(captured)), 1.0)

    return likelihood


def made(captured: Any = 2.0, prior: Any = None, **more: Any) -> Model:
    return Model({"theta": dist.Normal(0.0, 1.0) if prior is None else prior}, likelihood_of(captured), **more)


def tree_equal(one: Any, other: Any) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


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


@pytest.mark.test
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


@pytest.mark.laws
def test_nothing_is_kept_for_the_table():
    first = made(41.0)
    assert form(first) is first
    del first
    gc.collect()
    again = made(41.0)
    assert form(again) is again


def coins(tosses: int) -> tr.LatentModel:
    return tr.LatentModel(
        prior={"fair": dist.Beta(1, 1), "bias": dist.Uniform(0, 1)},
        latent=lambda p: dist.Bernoulli(p["fair"]),
        likelihood=lambda p, z: dist.Binomial(tosses, jnp.where(z == 1, 0.5, p["bias"])),
    )


def line(scale: float) -> Callable:
    def program(x: Any, y: Any = None) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, scale))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    return program


X, Y = np.array([0.5, 1.0, -1.0]), np.array([0.3, 1.2, -0.4])
FEW = tr.NUTS(draws=40, warmup=60, chains=2)
FITS = {
    "model": (lambda number: (made(number), tr.Data(Y)), FEW),
    "latent": (lambda number: (coins(round(number)), np.array([5, 9, 4])), tr.EM(starts=2)),
    "program": (lambda number: (from_numpyro(line(number), X, Y), None), FEW),
    "rows": (lambda number: split_numpyro(line(number), X, Y), FEW),
}


@pytest.mark.laws
@pytest.mark.parametrize("kind", FITS)
def test_fits_of_models_written_again_compile_nothing(kind):
    """Results are those of the model compiled for itself."""
    fresh, method = FITS[kind]

    def fitted(number: float) -> tuple[int, dict]:
        (model, data), compiled = fresh(number), []

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            compiled.extend([event] if event.endswith("backend_compile_duration") else [])

        jax.monitoring.register_event_duration_secs_listener(listen)
        found = tr.infer(model, data, method, seed=1, verify=None, progress=False)
        jax.monitoring.unregister_event_duration_listener(listen)
        return len(compiled), found.mean()

    first, again, other = fitted(43.0), fitted(43.0), fitted(44.0)
    assert first[0] > 0
    assert again[0] == 0
    assert other[0] > 0
    assert tree_equal(again[1], first[1])
    assert not tree_equal(other[1], first[1])


@pytest.mark.laws
def test_every_part_of_a_latent_model_counts():
    parts = {
        "prior": {"theta": dist.Beta(1.0, 2.0)}, "latent": lambda p: dist.Bernoulli(0.25),
        "likelihood": lambda p, z: dist.Bernoulli(0.75 * p["theta"]), "causes": jnp.arange(2),
        "start": lambda key: {"theta": 0.5}, "derived": lambda p: {"odds": p["theta"] / (1 - p["theta"])},
    }  # fmt: skip
    common = {
        "prior": {"theta": dist.Beta(1.0, 1.0)}, "latent": lambda p: dist.Bernoulli(p["theta"]),
        "likelihood": lambda p, z: dist.Bernoulli(jnp.where(z == 1, 0.5, p["theta"])),
    }  # fmt: skip
    models = [tr.LatentModel(**common), *(tr.LatentModel(**common | {name: part}) for name, part in parts.items())]
    assert len({id(form(model)) for model in models}) == len(models)


@pytest.mark.test
def test_other_steps_make_another_model():
    """Other starting points share programs, other statistics do not."""
    model = coins(10)
    assert form(model) is model
    assert form(model.with_steps(begin=lambda key, rows: {"fair": 0.5, "bias": 0.9})) is model
    statistics, m_step = lambda datum, z: z, lambda t: {"fair": t, "bias": t}
    other = model.with_steps(statistics=statistics, m_step=m_step)
    assert form(other) is other
    again = coins(10).with_steps(begin=lambda key, rows: {"fair": 0.4, "bias": 0.9})
    assert form(again) is model


@pytest.mark.test("from_numpyro")
@pytest.mark.parametrize("read", [from_numpyro, split_numpyro])
def test_arguments_of_a_program_that_changed_are_seen(read):
    """What a NumPyro program was given may change in place, and then is another model's."""
    x = X.copy()
    first = read(line(45.0), x, Y)
    again = read(line(45.0), X, Y)
    first, again = (pair if isinstance(pair, Model) else pair[0] for pair in (first, again))
    assert form(first) is first
    assert form(again) is first
    x[0] = 7.0
    assert form(again) is again
