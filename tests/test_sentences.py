"""What users are told who misspell a name, or hand over something of another shape."""

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.adapters.numpyro import from_numpyro
from tractable.core.errors import ArgumentError, DataError, ModelError, RunError, SettingsError
from tractable.core.settings import Seed, check_seed, expect
from tractable.estimators import BayesianLinearRegression

pytestmark = pytest.mark.test

X = np.random.default_rng(1).normal(size=(8, 3))
DATA = tr.Data(X @ np.array([1.0, 2.0, 3.0]) + 0.3 * np.cos(np.arange(8)), given=X)
PRIOR = {"slopes": dist.Normal(jnp.zeros(3), 1.0), "sigma": dist.HalfNormal(1.0)}


@pytest.fixture(scope="module")
def posterior() -> tr.Posterior:
    model = tr.Model(PRIOR, lambda params, x: dist.Normal(x @ params["slopes"], params["sigma"]))
    return tr.infer(model, DATA, tr.MAP(), verify=None)


def fit(model: tr.Model, method: tr.Method) -> tr.Posterior:
    return tr.infer(model, DATA, method)


def likely(name: str) -> tr.Model:
    return tr.Model(PRIOR, lambda params, x: dist.Normal(x @ params["slopes"], params[name]))


@pytest.mark.parametrize(
    ("act", "error", "sentence"),
    [
        (lambda: fit(likely("sgima"), tr.MAP()), ModelError, "asks for 'sgima'; .*'slopes'. Did you mean 'sigma'?"),
        (
            lambda: tr.infer(tr.Model.from_log_density(lambda p: -(p["zz"] ** 2), {"z": 0.0}), None, tr.MAP()),
            ModelError,
            "The log density asks for 'zz'; there are the parameters 'z'",
        ),
        (lambda: tr.NUTS(drws=5), ArgumentError, "NUTS has no 'drws'; .* Did you mean 'draws'?"),
        (lambda: tr.Data(X, givn=X), ArgumentError, "Did you mean 'given'?"),
        (lambda: tr.Model(PRIOR, liklihood=None), ArgumentError, "Did you mean 'likelihood'?"),
        (lambda: BayesianLinearRegression(levle=0.5), ArgumentError, "Did you mean 'level'?"),
        (lambda: tr.models.gaussian_mixture(2, 1, flor=0.1), ArgumentError, r"gaussian_mixture\(\) has no 'flor'"),
        (lambda: tr.models.bayesian_linear_regression(2, sweeps=4), ArgumentError, "was removed in 0.2; leave it out"),
        (lambda: tr.infer(likely("sigma"), DATA, tr.MAP(), chekpoint=""), TypeError, "Did you mean 'checkpoint'?"),
        (lambda: tr.methods.named("nust"), SettingsError, "no method 'nust'; .* Did you mean 'nuts'?"),
        (lambda: tr.methods.from_settings({"method": "nuts", "tune": 1}), SettingsError, "NUTS has no 'tune'"),
        # Of what kind a method is comes before its batches: these rows are fewer than any default's.
        (lambda: fit(likely("sigma"), tr.OnlineEM(batch_size=99)), ModelError, "OnlineEM learns a LatentModel"),
        (lambda: fit(likely("sigma"), tr.WakeSleep(batch_size=99)), ModelError, "WakeSleep learns ladders"),
        (lambda: fit(likely("sigma"), tr.CoordinateAscent(batch_size=99)), ModelError, "closed forms"),
        (lambda: expect("infer(seed)", 1.5, Seed), SettingsError, "infer.seed. expects a whole number .* got 1.5"),
        (lambda: tr.infer(likely("sigma"), DATA, tr.MAP(), seed=2**32), SettingsError, "whole number from 0 to"),
    ],
    ids=lambda value: None if callable(value) and not isinstance(value, type) else str(value)[-30:],
)
def test_a_slip_is_told(act: Callable, error: type[Exception], sentence: str):
    with pytest.raises(error, match=sentence):
        act()


DOORS: dict[str, Callable] = {  # (posterior, seed) -> what is drawn from it
    "infer": lambda p, seed: tr.infer(p.model, DATA, tr.MAP(), seed=seed),
    "compare": lambda p, seed: tr.compare(p.model, DATA, [tr.MAP()], seed=seed),
    "select": lambda p, seed: tr.select(lambda k: tr.models.gaussian_mixture(k, 3), X, [1], tr.EM(), seed=seed),
    "calibrate": lambda p, seed: tr.calibrate(p.model, tr.Laplace(), DATA, runs=20, seed=seed),
    "log_evidence": lambda p, seed: tr.log_evidence(p.model, DATA, "laplace", seed=seed),
    "sample": lambda p, seed: p.sample(seed, 2),
    "predict": lambda p, seed: p.predict(X, seed=seed),
    "posterior_predictive": lambda p, seed: p.posterior_predictive(seed=seed),
    "prior_predictive": lambda p, seed: p.prior_predictive(seed=seed),
    "pit": lambda p, seed: p.pit(seed=seed),
    "to_arviz": lambda p, seed: p.to_arviz(seed=seed),
    "split": lambda p, seed: DATA.split(0.5, seed),
    "random_state": lambda p, seed: BayesianLinearRegression(random_state=seed).fit(X, DATA.y),
    "from_numpyro": lambda p, seed: from_numpyro(lambda: None, seed=seed),
}


@pytest.mark.laws
@pytest.mark.parametrize("door", DOORS)
def test_a_seed_is_one_of_2_to_the_32_at_every_door(posterior, door):
    """2³² would draw what 0 draws, and True what 1 does."""
    for seed in (2**32, 2**64, -1, True):
        sentence = rf"{door}.* (expects|is) a whole number from 0 to 4294967295.*; got {seed}\."
        with pytest.raises(SettingsError, match=sentence):
            DOORS[door](posterior, seed)
    for seed in (2**32 - 1, np.uint32(7)):
        assert type(check_seed("seed", seed)) is int
    for seed in (1.0, np.float64(1.0), np.bool_(True), np.array(1), "1", None):
        with pytest.raises(SettingsError):
            check_seed("seed", seed)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (X[:, :2], r"predict\(x\) expects rows like the fitted ones, of shape \(3,\); got \(2,\)"),
        (X[0], r"of shape \(3,\); got \(\)"),
        (None, "predict.x. expects inputs like the fitted rows"),
        (X.astype(str), "x has dtype <U.*; expected numbers"),
        ({"x": X}, r"of shape \(3,\); got x \(3,\)\.$"),
        (np.ma.masked_array(X, np.max(X) == X), r"x is a masked array that hides 1 of its"),
        (X.astype("m8[s]"), r"x has dtype timedelta64\[s\]; expected numbers"),
    ],
    ids=["narrow", "one row", "nothing", "text", "named", "masked", "durations"],
)
def test_rows_to_predict_are_like_those_learnt_from(posterior, x, sentence):
    with pytest.raises(DataError, match=sentence):
        posterior.predict(x)


def test_rows_to_predict_are_not_cut_to_32_bits(posterior):
    for number, dtype in ((2**33, int), (1e300, float)):
        x = np.zeros(X.shape, dtype)
        x[1, 2] = number
        with (
            jax.enable_x64(False),
            pytest.raises(DataError, match=r"x holds [\w+]+ in row 1, column 2;"),
        ):
            posterior.predict(x)


@pytest.mark.laws
def test_rows_are_looked_at_where_the_data_are_not_known(posterior, tmp_path):
    """What was loaded without its data: the likelihood itself says what it does not accept."""
    posterior.save(tmp_path / "fit")
    loaded = tr.load(tmp_path / "fit", posterior.model)
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)
    for x, sentence in (
        (X[:, :2], r"does not accept a row of shape \(2,\)"),
        (None, "does not accept rows without inputs"),
    ):
        with pytest.raises(DataError, match=sentence):
            loaded.predict(x)


@pytest.mark.quick
def test_a_class_shows_its_own_signature():
    """Looking at names takes ``__new__``, which must not hide what a class takes."""
    assert list(inspect.signature(tr.Data).parameters) == [
        "y", "given", "weights", "missing", "allow_empty", "resident", "group"
    ]  # fmt: skip


class Process:
    """A Gaussian process: the fitted data are one row, all of its values."""

    def __call__(self, params, x):
        return dist.MultivariateNormal(jnp.zeros(len(x)), self.covariance(params, x, x) + 0.01 * jnp.eye(len(x)))

    def covariance(self, params, a, b):
        return params["scale"] ** 2 * jnp.exp(-0.5 * jnp.square(a[:, None] - b[None]))


class Predicting(Process):
    """The process with its own predictions."""

    def predict(self, params, x, rows):
        return dist.Normal(self.covariance(params, x, rows[1][0])[:, 0], 1.0)


PLACES = np.linspace(0.0, 5.0, 6)
SCALE = {"scale": dist.HalfNormal(1.0)}


@pytest.mark.laws
@pytest.mark.parametrize(
    ("likelihood", "given", "x", "sentence"),
    [
        (Process(), PLACES[None], None, r"got none\. All fitted data are one row.* a method predict"),
        (Process(), PLACES[None], PLACES, r"of shape \(6,\); got \(\)\. All fitted data are one row"),
        (lambda p: Process()(p, jnp.asarray(PLACES)), None, PLACES, "without inputs: .* a method predict"),
        (Predicting(), PLACES[None], None, "own method predict.* failed for no x: .* Give predict the x"),
        (Predicting(), PLACES[None], [0.5], "failed for x of type list"),
        (Predicting(), PLACES[None], 2.0, "failed for x of type float"),
        (Predicting(), PLACES[None], {"x": PLACES}, "failed for x of type dict"),
    ],
)  # fmt: skip
def test_one_row_that_is_a_whole_process_says_how_to_predict(likelihood, given, x, sentence):
    data = tr.Data(np.sin(PLACES)[None], given=given)
    fitted = tr.infer(tr.Model(SCALE, likelihood), data, tr.MAP(), verify=None)
    with pytest.raises(DataError, match=sentence):
        fitted.predict(x)


GIVEN = {"group": np.ones(8), "x": X}
BAD_ROWS = {  # (rows like those fitted) -> rows of another form
    "a tuple": lambda y: tr.Data(y, given=(np.ones(8), X)),
    "no inputs": lambda y: tr.Data(y),
    "an array": lambda y: tr.Data(y, given=X),
    "narrow": lambda y: tr.Data(y, given=GIVEN | {"x": X[:, :2]}),
    "other names": lambda y: tr.Data(y, given={"groups": np.ones(8), "x": X}),
    "a dict for y": lambda y: tr.Data({"y": y}, given=GIVEN),
    "two columns of y": lambda y: tr.Data(np.stack([y, y], 1), given=GIVEN),
}
ROW_DOORS: dict[str, Callable] = {  # what takes rows of the fitted form
    "log_likelihood": lambda p, rows: p.log_likelihood(rows),
    "log_predictive": lambda p, rows: p.log_predictive(rows),
    "report": lambda p, rows: p.report(held_out=rows),
    "verify": lambda p, rows: p.verify(None, held_out=rows),
    "calibrate": lambda p, rows: p.predict(GIVEN, calibrate=rows),
    "infer": lambda p, rows: tr.infer(p.model, p.data, tr.MAP(), verify=None, held_out=rows),
}


@pytest.fixture(scope="module")
def named_posterior() -> tr.Posterior:
    model = tr.Model(PRIOR, lambda params, x: dist.Normal(x["x"] @ params["slopes"] + x["group"], params["sigma"]))
    return tr.infer(model, tr.Data(DATA.y, given=GIVEN), tr.Laplace(), verify=None)


@pytest.mark.laws
@pytest.mark.parametrize("door", ROW_DOORS)
def test_rows_of_another_form_are_refused_in_a_sentence_at_every_door(named_posterior, door):
    for form in BAD_ROWS.values():
        with pytest.raises((DataError, ModelError)):
            ROW_DOORS[door](named_posterior, form(DATA.y))


@pytest.mark.laws
def test_inputs_of_another_form_are_told_the_form_that_is_wanted(named_posterior):
    for x in ((np.ones(8), X), X, None, {"groups": np.ones(8), "x": X}):
        with pytest.raises(
            DataError, match=r"predict\(x\) expects .*(as \{'group': …, 'x': …\}|Did you mean 'groups')"
        ):
            named_posterior.predict(x)
        for door in (named_posterior.posterior_predictive, named_posterior.prior_predictive):
            with pytest.raises((DataError, ModelError)) if x is not None else contextlib.nullcontext():
                door(x)


@pytest.mark.laws
@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda p: tr.compare(p.model, DATA, []), r"got \[\]"),
        (lambda p: tr.select(lambda k: tr.models.gaussian_mixture(k, 3), X, [1, 0]), "got 0 as member 1"),
        (lambda p: BayesianLinearRegression().fit(X, DATA.y).predict(X, quantiles=[0.1, 1.5]), "got 1.5 as member 1"),
        (lambda p: tr.models.mlp(2, [5, 0], 1), r"hidden\[1\] is a whole number of units.*got 0"),
        (lambda p: tr.models.sigmoid_belief_network(3, (5, -1)), r"hidden\[1\] is a whole number of units.*got -1"),
        (lambda p: tr.Data(X, weights=[1, 1, -1, 1, 1, 1, 1, 1]), "got -1 in row 2"),
    ],
)
def test_the_rejected_member_of_a_list_is_named(posterior, act, sentence):
    with pytest.raises((SettingsError, ModelError, DataError), match=sentence):
        act(posterior)


@pytest.mark.skipif(os.environ.get("TRACTABLE_TYPECHECK", "1") == "1", reason="beartype refuses the type first")
def test_a_value_of_another_type_has_a_sentence(posterior):
    untyped: Any = tr
    for methods, sentence in (
        ([tr.MAP(), "nuts"], "got 'nuts' as member 1"),
        ([tr.MAP(), tr.NUTS], "NUTS'> as member 1"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            untyped.compare(posterior.model, DATA, methods)
    with pytest.raises(SettingsError, match="'9' as member 89"):
        untyped.select(lambda k: tr.models.gaussian_mixture(k, 3), X, [*range(1, 90), "9"])
    with pytest.raises(SettingsError, match=r"got MAP\("):
        untyped.compare(posterior.model, DATA, tr.MAP())
    with pytest.raises(SettingsError, match="got 3"):
        untyped.select(lambda k: tr.models.gaussian_mixture(k, 3), X, 3)
    with pytest.raises(SettingsError, match=r"'b'.* got 3"):
        untyped.calibrate(posterior.model, tr.Laplace(), DATA, quantities={"b": 3})


MEAN = tr.Model({"m": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["m"], 1.0))


@pytest.mark.laws
def test_a_model_takes_data_in_every_form_that_infer_takes():
    theta, y = {"m": jnp.asarray(0.5)}, DATA.y
    want = dist.Normal(0.5, 1.0).log_prob(y)
    for rows in (
        y,
        list(y),
        jnp.asarray(y),
        tr.Data(y),
        tr.Data(y, weights=np.ones(8)),
        (y, None),
        tr.Data(y).arrays(),
    ):
        np.testing.assert_allclose(MEAN.log_likelihoods(theta, rows), want, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(lambda t, r=rows: MEAN.log_likelihoods(t, r))(theta), want, rtol=1e-6)
        total = want.sum() + dist.Normal(0.0, 1.0).log_prob(0.5)
        assert float(tr.log_density(MEAN, rows)(theta)) == pytest.approx(float(total), rel=1e-5)
        assert float(tr.log_posterior(MEAN)(theta, rows)) == pytest.approx(float(total), rel=1e-5)
    assert float(tr.log_density(MEAN, tr.Data(y, weights=2 * np.ones(8)))(theta)) == pytest.approx(
        float(total + want.sum()), rel=1e-5
    )
    for slip in (None, "no such file", []):
        with pytest.raises(DataError):
            MEAN.log_likelihoods(theta, slip)
    for params in (np.zeros(1), {"n": 0.0}, {"m": 0.0, "n": 0.0}, [0.0]):
        with pytest.raises(DataError, match="θ should be a dict of the parameters 'm'; got"):
            MEAN.log_prior(params)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 5.96 GiB"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5.96 GiB"),
    ],
    ids=["NumPy", "JAX"],
)
def test_memory_that_is_too_small_is_told_with_its_size(posterior, error, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise error

    with pytest.raises(RunError, match=r"Memory is too small: .*5\.96 GiB\.? Use fewer"):
        tr.infer(posterior.model, DATA, tr.SGLD(step_size=fail, batch_size=2, chains=1, draws=2, warmup=2, thin=1))
    monkeypatch.setattr("tractable.posterior.predict.predict", fail)
    with pytest.raises(RunError, match="Memory is too small"):
        posterior.predict(X)
