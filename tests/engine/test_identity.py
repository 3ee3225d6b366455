"""Models written twice share compiled programs; models that differ in anything a program computes never do."""

import functools
import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import tractable as tr
from tractable.adapters.numpyro import from_numpyro, split_numpyro
from tractable.core.batches import whole
from tractable.core.model import Model, Through
from tractable.core.shared import compiled
from tractable.engine.identity import kinds_of, share_programs
from tractable.engine.preflight import check
from tractable.ladders.ladder import Ladder
from tractable.latent.em import chunked

pytestmark = pytest.mark.laws

SCALE = 1.0
Y = tr.Data(np.array([0.3, 1.2, -0.4]))
AT = np.array([0.5, 1.0, -1.0])
X = tr.Data(Y.rows[0], given=AT)
ONES = tr.Data(np.array([1.0, 0.0, 1.0, 1.0]))
COUNTS = tr.Data(np.array([5, 9, 4]))
GROUPS = tr.Data(np.array([0.1, 0.5, 1.0, 0.2]), group=np.array([0, 0, 1, 1]))
THETA = {"theta": dist.Normal(0.0, 1.0)}
traces = []


def outcome(model: Model, params: Any, key: jax.Array, rows: Any) -> tuple:
    """All that programs take from a model: its log posterior, the slope, and the values of its functions."""
    traces.append(model)
    batch = None if rows is None else whole(rows)
    density = jax.value_and_grad(lambda u: model.traced(u, batch))(model.position_of(params))
    return density, model.computed(params, key, rows)


program = compiled("model")(outcome)


def run(model: Model, data: tr.Data | None, shared: bool = True) -> tuple:
    """``outcome``, by the shared program or by the model's own, traced afresh."""
    key = jax.random.key(1)
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), model.example(jax.random.key(0)))
    rows = None if data is None else data.arrays()
    if shared:
        check(model, data)
        return program(model, params, key, rows)
    return jax.jit(lambda *args: outcome(model, *args))(params, key, rows)


def same(one: Any, other: Any) -> bool:
    """Whether two results have the same containers, dtypes and numbers."""
    leaves = [jax.tree.leaves(each) for each in (one, other)]
    return str(jax.tree.structure(one)) == str(jax.tree.structure(other)) and all(
        jnp.result_type(a) == jnp.result_type(b) and np.array_equal(a, b, equal_nan=True)
        and np.array_equal(np.signbit(a), np.signbit(b))
        for a, b in zip(*leaves, strict=True)
    )  # fmt: skip


def owner(model: Model, data: tr.Data | None = Y) -> object:
    """The model that a model's programs are compiled for."""
    check(model, data)
    return model.split_arrays()[0]


def helper(z: jax.Array) -> jax.Array:
    return z * SCALE


def made(captured: Any = 2.0, prior: Any = None, **more: Any) -> Model:
    def likelihood(params: dict) -> dist.Distribution:
        return dist.Normal(helper(params["theta"]) + jnp.sum(jnp.asarray(captured)), 1.0)

    return Model({"theta": prior or dist.Normal(0.0, 1.0)}, likelihood, **more)


def with_default(value: float) -> Model:
    return Model(THETA, lambda params, scale=value: dist.Normal(params["theta"], scale))


class Own:
    """An object of a user's, whose method is a likelihood."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def likelihood(self, params: dict) -> dist.Distribution:
        return dist.Normal(params["theta"], self.scale)


def of_partial(value: float) -> Model:
    def likelihood(params: dict, scale: float) -> dist.Distribution:
        return dist.Normal(params["theta"], scale)

    return Model(THETA, functools.partial(likelihood, scale=value))


def element(size: int, value: float) -> Model:
    array = np.zeros(size)
    array[size // 2] = value
    return made(array)


def flagged(on: bool) -> Model:
    return Model(THETA, lambda params: dist.Normal(params["theta"] ** 2 if on else params["theta"], 1.0))


def bounded(high: float) -> Model:
    support = {"theta": dist.constraints.interval(0.0, high)}
    return Model.from_log_density(lambda p: -p["theta"], {"theta": 0.5}, support)


def at(position: float) -> Model:
    return Model.from_log_density(lambda p: -jnp.square(p["theta"]), {"theta": position})


def multiplied(by: Any) -> Model:
    return Model(THETA, lambda params: dist.Normal(params["theta"].astype(jnp.float32) * by, np.float32(1)))


class Shifted(dist.Normal):
    """A normal that says another mean than its own."""

    claimed = 0.0

    @property
    def mean(self) -> Any:
        mean: Any = self.loc
        return mean + self.claimed


def saying(mean: float) -> Model:
    return Model(THETA, lambda params: type("Shifted", (Shifted,), {"claimed": mean})(params["theta"], 1.0))


def transformed(scale: float) -> Model:
    move = dist.transforms.AffineTransform(0.0, scale)
    return Model(THETA, lambda p: dist.TransformedDistribution(dist.Normal(p["theta"], 1.0), [move]))


def ruled(slope: float) -> Model:
    """The same function by another rule of differentiation."""

    @jax.custom_jvp
    def function(z: jax.Array) -> jax.Array:
        return 2 * z

    function.defjvp(lambda primals, tangents: (function(primals[0]), slope * tangents[0]))
    return Model(THETA, lambda params: dist.Normal(function(params["theta"]), 1.0))


def grouped(sd: float, scale: float = 1.0) -> Model:
    return Model(
        {"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["z"], scale),
        local=lambda params: {"z": dist.Normal(params["mu"], sd)},
    )  # fmt: skip


def through(first: float, second: float) -> Model:
    return Model(
        THETA,
        Through(lambda params, x: first * params["theta"] * x, lambda params, eta: dist.Normal(second * eta, 1.0)),
    )


def coins(tosses: int = 10, fair: float = 0.5, **more: Any) -> tr.LatentModel:
    return tr.LatentModel(
        prior={"fair": dist.Beta(1, 1), "bias": dist.Uniform(0, 1)},
        latent=lambda p: dist.Bernoulli(p["fair"]),
        likelihood=lambda p, z: dist.Binomial(tosses, jnp.where(z == 1, fair, p["bias"])), **more,
    )  # fmt: skip


def stepped(statistic: float, step: float) -> tr.LatentModel:
    return coins(
        statistics=lambda datum, z: jnp.asarray([z, statistic * datum]),
        m_step=lambda sums: {"fair": 0.5 + 0 * sums[0], "bias": step + 0 * sums[1]},
    )


def in_chunks(size: int) -> tr.LatentModel:
    model = coins(statistics=lambda datum, z: z, m_step=lambda sums: {"fair": sums / 9, "bias": 0.5})
    return model.with_steps(e_step=chunked(model.e_step, size))


def line(scale: float) -> Callable:
    def program(x: Any, y: Any = None) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, scale))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    return program


def wide(size: int, name: str = "w", **more: Any) -> Model:
    return Model({name: dist.Normal(0.0, 1.0).expand([size])}, lambda p: dist.Normal(jnp.sum(p[name]), 1.0), **more)


def calling(value: float) -> Model:
    shape = jax.ShapeDtypeStruct((), jnp.result_type(float))
    return Model(THETA, lambda p: dist.Normal(jax.pure_callback(lambda z: z * value, shape, p["theta"]), 1.0))


# By name: a function that makes a model, arguments for the one and for the other, and data.
DIFFERENT: dict[str, tuple[Callable, tuple, tuple, tr.Data | None]] = {
    "a constant in a closure": (made, (2.0,), (3.0,), Y),
    "a constant in a list": (made, ([1.0, 2.0],), ([1.0, 2.5],), Y),
    "a default argument": (with_default, (1.0,), (2.0,), Y),
    "a bound method's object": (lambda s: Model(THETA, Own(s).likelihood), (1.0,), (2.0,), Y),
    "a partial": (of_partial, (1.0,), (2.0,), Y),
    "one element of an array": (element, (5, 1.0), (5, 2.0), Y),
    "one element of a large array": (element, (20_000, 1.0), (20_000, 2.0), Y),
    "the last bit": (made, (2.0,), (np.nextafter(2.0, 3.0),), Y),
    "a prior's number": (lambda s: made(prior=dist.Normal(0.0, s)), (1.0,), (2.0,), Y),
    "a prior's family": (lambda d: made(prior=d), (dist.Normal(0.0, 1.0),), (dist.Cauchy(0.0, 1.0),), Y),
    "a prior's bound": (lambda b: made(prior=dist.Uniform(0.0, b)), (1.0,), (2.0,), Y),
    "a bijector's bound": (bounded, (1.0,), (2.0,), None),
    "a position": (at, (0.0,), (1.0,), None),
    "a dtype": (multiplied, (np.float32(2),), (np.float64(2),), Y),
    "a weak type": (multiplied, (2.0,), (jnp.asarray(2.0, jnp.float64),), Y),
    "a NumPy scalar": (multiplied, (np.float64(0.1),), (np.float64(np.float32(0.1)),), Y),
    "a sign of zero": (
        lambda c: made(derived=lambda p: {"signed": jnp.copysign(p["theta"], c)}), (0.0,), (-0.0,), Y
    ),
    "a flag of Python's": (flagged, (True,), (False,), Y),
    "start": (lambda s: made(start=lambda key: {"theta": jnp.asarray(s)}), (0.0,), (1.0,), Y),
    "a derived value": (lambda c: made(derived=lambda p: {"new": c * p["theta"]}), (1.0,), (2.0,), Y),
    "a derived value's name": (lambda n: made(derived=lambda p: {n: p["theta"]}), ("a",), ("b",), Y),
    "the likelihood's mean": (saying, (0.0,), (1.0,), Y),
    "a transform": (transformed, (1.0,), (2.0,), Y),
    "a rule of differentiation": (ruled, (2.0,), (3.0,), Y),
    "local's prior": (grouped, (1.0,), (2.0,), GROUPS),
    "the rows' noise, with local": (grouped, (1.0, 1.0), (1.0, 2.0), GROUPS),
    "the predictor": (through, (1.0, 2.0), (2.0, 1.0), X),
    "the observation": (through, (1.0, 2.0), (1.0, 3.0), X),
    "a latent model's conditional": (coins, (10, 0.5), (10, 0.4), COUNTS),
    "a latent model's M-step": (stepped, (1.0, 0.5), (1.0, 0.6), COUNTS),
    "a latent model's statistics": (stepped, (1.0, 0.5), (2.0, 0.5), COUNTS),
    "a NumPyro program": (lambda s: from_numpyro(line(s), AT, Y.rows[0]), (1.0,), (2.0,), None),
    "a NumPyro program's data": (lambda y: from_numpyro(line(1.0), AT, y), (Y.rows[0],), (2 * Y.rows[0],), None),
    "shapes": (wide, (2,), (3,), Y),
    "a parameter's name": (wide, (2, "w"), (2, "v"), Y),
}  # fmt: skip


@pytest.mark.test("start", "shapes")
@pytest.mark.parametrize("name", DIFFERENT)
def test_models_that_differ_have_programs_of_their_own(name):
    """Each gives its own numbers after the other was run."""
    make, one, other, data = DIFFERENT[name]
    models = [make(*one), make(*other)]
    found = [run(model, data) for model in models]
    assert [owner(model, data) for model in models] == models
    assert not same(*found), "the two were to differ"
    assert same(found[1], run(make(*other), data, shared=False))


def test_globals_are_followed(monkeypatch):
    first = made()
    found = [run(first, Y)]
    monkeypatch.setitem(globals(), "SCALE", 2.0)  # named by the helper of the likelihood
    second = made()
    found.append(run(second, Y))
    assert owner(second) is second
    assert not same(*found)
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert same(run(made(), Y), found[0])


@pytest.mark.filterwarnings("ignore:The observed information")  # of five rows, which the names do not mind
def test_a_tables_levels_count():
    """Formulae with as many columns, scaled alike, whose names differ: programs may be one, names are each model's."""
    table = pd.DataFrame({"y": [1.0, 2.0, 2.5, 4.0, 3.1], "z": ["a", "b", "a", "b", "c"]})
    other = table.replace({"z": {"b": "d"}})
    fits = [
        tr.models.regression("y ~ z", each, family="normal") for each in (table, other, table.assign(y=2 * table["y"]))
    ]
    found = [tr.infer(fit.model, fit.data, tr.MAP(), verify=None, progress=False) for fit in fits]
    assert [each.names for each in found] == [fit.model.names for fit in fits]
    assert found[0].names != found[1].names
    for fit, each, twice in zip(fits, found, (1.0, 1.0, 2.0), strict=True):
        new = pd.DataFrame({"z": list(dict.fromkeys(other["z"] if fit is fits[1] else table["z"]))})
        assert np.allclose(each.predict(new).mean, twice * np.array([1.75, 3.0, 3.0]), atol=0.2 * twice)
    assert owner(fits[2].model, fits[2].data) is fits[2].model


class Owned(tr.Model):
    """A model of a user's class, whose methods no trace is sure to meet."""


@pytest.mark.parametrize("kind", ["callback", "subclass", "ladder"])
def test_what_a_trace_does_not_show_is_never_shared(kind):
    def ladder(_: float) -> Ladder:
        given = tr.models.sigmoid_belief_network(4, (2,))
        return Ladder(given.layers, given.recognition)

    make = {"callback": calling, "subclass": lambda c: Owned(THETA, made(c).likelihood), "ladder": ladder}[kind]
    data = tr.Data(np.eye(4)) if kind == "ladder" else Y
    models = [make(1.0), make(1.0)]
    assert [owner(model, data) for model in models] == models


def test_an_e_steps_chunks_count():
    """Chunks of other lengths add in another order."""
    models = [in_chunks(1), in_chunks(2), in_chunks(2)]
    assert [owner(model, COUNTS) for model in models] == [models[0], models[1], models[1]]


def test_a_series_predicts_by_its_own_function():
    """A likelihood's own ``predict`` is asked of the user's model, whichever model the programs are of."""

    def ahead(step: float) -> Model:
        def likelihood(params: dict) -> dist.Distribution:
            return dist.Normal(params["theta"], 1.0)

        likelihood.predict = lambda params, x, rows: dist.Normal(step + params["theta"] * jnp.ones(len(x)), 1.0)
        return Model(THETA, likelihood)

    means = [
        tr.infer(ahead(step), Y, tr.MAP(), verify=None, progress=False).predict(np.zeros((2, 1))).mean[0]
        for step in (0.0, 5.0)
    ]
    assert means[1] - means[0] == pytest.approx(5.0)


@pytest.mark.parametrize("change", ["array", "list", "cell"])
def test_an_earlier_one_whose_captures_changed_serves_none(change):
    """Traced again, for rows of another shape, the earlier model would be another model."""
    array, values = np.array([19.0, 1.0]), [23.0]

    def captured(late: float) -> tuple[Callable, Callable]:
        def move(to: float) -> None:
            nonlocal late
            late = to

        return (lambda params: dist.Normal(params["theta"] * late, 1.0)), move

    likelihood, move = captured(31.0)
    write = {"array": lambda: made(array), "list": lambda: made(values), "cell": lambda: Model(THETA, likelihood)}
    first = write[change]()
    found = run(first, Y)
    array[0], values[0] = 0.0, 0.0
    move(0.0)
    array, values = np.array([19.0, 1.0]), [23.0]
    likelihood, _ = captured(31.0)
    again = write[change]()
    assert owner(again) is again
    assert owner(write[change]()) is again
    assert same(run(write[change](), Y), found)


def test_rows_of_another_kind_are_looked_at_as_well():
    """Models may be equal on rows of one shape and differ on those of another."""

    def of(beyond: float) -> Model:
        def likelihood(params: dict, x: jax.Array) -> dist.Distribution:
            return dist.Normal(params["theta"] * (x if x.ndim == 0 else beyond * x[0]), 1.0)

        return Model(THETA, likelihood)

    first, again = of(1.0), of(2.0)
    assert owner(again, X) is again or owner(first, X) is owner(again, X)
    vectors = tr.Data(X.rows[0], given=AT[:, None])
    found = [run(model, vectors) for model in (first, again)]
    assert not same(*found)
    assert same(found[1], run(of(2.0), vectors, shared=False))


def test_inputs_of_another_dtype_are_looked_at_as_well():
    def of(beyond: float) -> Model:
        def likelihood(params: dict, x: jax.Array) -> dist.Distribution:
            return dist.Normal(params["theta"] * x * (1.0 if jnp.issubdtype(x.dtype, jnp.integer) else beyond), 1.0)

        return Model(THETA, likelihood)

    whole_numbers = tr.Data(Y.rows[0], given=np.array([1, 2, -1]))
    found = [tr.infer(of(by), whole_numbers, tr.MAP(), verify=None, progress=False) for by in (1.0, 2.0)]
    assert owner(found[1].model, whole_numbers) is found[0].model
    means = [each.predict(np.array([1.5])).mean for each in found]
    assert means[1] == pytest.approx(2 * means[0])


def test_a_model_of_another_precision_is_another():
    """Shapes and dtypes of its space are kept from its first use."""
    with jax.enable_x64(False):
        single = made(13.0)
        assert owner(single) is single
        assert single.space.unravel(jnp.zeros(1))["theta"].dtype == jnp.float32
    double = made(13.0)
    assert owner(double) is double


def test_nothing_is_kept_alive():
    first = made(41.0)
    share_programs(first, kinds_of(Y))
    del first
    gc.collect()
    again = made(41.0)
    share_programs(again, kinds_of(Y))
    assert again.split_arrays()[0] is again


def recursive(n: int) -> int:
    return n and recursive(n - 1)


NET = tr.models.mlp(1, (3,), 1)
VECTORS = tr.Data(X.rows[0], given=AT[:, None])
SAME: dict[str, tuple[Callable[[], Model], tr.Data | None]] = {
    "a closure": (lambda: made(2.5), Y),
    "a default argument": (lambda: with_default(2.5), Y),
    "a partial": (lambda: of_partial(2.5), Y),
    "a method of an equal object": (lambda: Model(THETA, Own(2.5).likelihood), Y),
    "a large array": (lambda: element(20_000, 2.5), Y),
    "a JAX array": (lambda: made(jnp.arange(3)), Y),
    "a recursive function": (lambda: made(prior=dist.Normal(float(recursive(3)), 2.5)), Y),
    "start and derived": (
        lambda: made(2.5, start=lambda key: {"theta": 0.5}, derived=lambda p: {"twice": 2 * p["theta"]}), Y
    ),
    "a callable prior": (lambda: bounded(2.5), None),
    "a network": (lambda: Model((m := tr.models.neural_network(NET)).prior, m.likelihood, start=m.start), VECTORS),
    "a predictor": (lambda: through(1.0, 2.5), X),
    "groups": (lambda: grouped(2.5), GROUPS),
    "a latent model": (lambda: coins(10, 0.45), COUNTS),
    "other starting points": (
        lambda: coins(10, 0.45).with_steps(begin=lambda key, rows: {"fair": 0.4, "bias": 0.9}), COUNTS
    ),
    "an M-step": (lambda: stepped(1.0, 0.45), COUNTS),
    "a NumPyro program": (lambda: from_numpyro(line(2.5), AT, Y.rows[0]), None),
    "a NumPyro program's rows": (lambda: split_numpyro(line(2.5), AT, Y.rows[0])[0], X),
    "a formula": (
        lambda: tr.models.regression("y ~ x", pd.DataFrame({"y": [1.0, 2.5, 4.1], "x": [0.0, 1.0, 2.0]})).model,
        tr.Data(X.rows[0], given=np.ones((3, 2))),
    ),
}  # fmt: skip


@pytest.mark.test("a closure", "groups")
@pytest.mark.parametrize("name", SAME)
def test_models_written_twice_share_programs(name):
    make, data = SAME[name]
    first, again = make(), make()
    assert first is not again
    found = run(first, data)
    before = len(traces)
    assert same(run(again, data), found)
    assert len(traces) == before
    assert same(run(make(), data, shared=False), found)


def test_labels_are_each_models_own():
    """Programs do not know them."""
    models = [wide(2, labels={"w": [n, "b"]}) for n in ("a", "c")]
    found = [tr.infer(model, Y, tr.MAP(), verify=None, progress=False) for model in models]
    assert owner(models[1]) is models[0]
    assert [each.names[0] for each in found] == ["a", "c"]


FEW = tr.NUTS(draws=40, warmup=60, chains=2)
FITS = {
    "model": (lambda number: (made(number), Y), FEW),
    "latent": (lambda number: (coins(round(number)), COUNTS), tr.EM(starts=2)),
    "program": (lambda number: (from_numpyro(line(number), AT, Y.rows[0]), None), FEW),
    "rows": (lambda number: split_numpyro(line(number), AT, Y.rows[0]), FEW),
    "groups": (lambda number: (grouped(number), GROUPS), tr.MAP()),
}


@pytest.mark.parametrize("kind", FITS)
def test_fits_of_models_written_again_compile_nothing(kind):
    """Results are those of the model compiled for itself."""
    fresh, method = FITS[kind]

    def fitted(number: float) -> tuple[int, dict]:
        (model, data), programs = fresh(number), []

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            programs.extend([event] if event.endswith("backend_compile_duration") else [])

        jax.monitoring.register_event_duration_secs_listener(listen)
        found = tr.infer(model, data, method, seed=1, verify=None, progress=False)
        jax.monitoring.unregister_event_duration_listener(listen)
        return len(programs), found.mean()

    first, again, other = fitted(43.0), fitted(43.0), fitted(44.0)
    assert first[0] > 0
    assert again[0] == 0
    assert other[0] > 0
    assert same(again[1], first[1])
    assert not same(other[1], first[1])
