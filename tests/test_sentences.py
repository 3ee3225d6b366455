"""What users are told who misspell a name, or hand over something of another shape."""

import inspect
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.estimators import BayesianLinearRegression
from tractable.tools.errors import ArgumentError, DataError, ModelError, SettingsError
from tractable.tools.settings import Seed, expect

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


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (X[:, :2], r"predict\(x\) expects rows like those learnt from, of shape \(3,\); got \(2,\)"),
        (X[0], r"of shape \(3,\); got \(\)"),
        (None, "predict.x. expects inputs: rows like those learnt from"),
        (X.astype(str), "Rows to predict are numbers"),
        ({"x": X}, r"of shape \(3,\); got x \(3,\)"),
    ],
    ids=["narrow", "one row", "nothing", "text", "named"],
)
def test_rows_to_predict_are_like_those_learnt_from(posterior, x, sentence):
    with pytest.raises(DataError, match=sentence):
        posterior.predict(x)


def test_rows_are_looked_at_where_the_data_are_not_known(posterior, tmp_path):
    """What was loaded without its data: the likelihood itself says what it does not take."""
    posterior.save(tmp_path / "fit")
    loaded = tr.load(tmp_path / "fit", posterior.model)
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)
    for x, sentence in ((X[:, :2], r"does not take a row of shape \(2,\)"), (None, "does not take no inputs")):
        with pytest.raises(DataError, match=sentence):
            loaded.predict(x)


def test_a_class_shows_its_own_signature():
    """Looking at names takes ``__new__``, which must not hide what a class takes."""
    assert list(inspect.signature(tr.Data).parameters) == [
        "y", "given", "weights", "missing", "allow_empty", "resident", "group"
    ]  # fmt: skip
