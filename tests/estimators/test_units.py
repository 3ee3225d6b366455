"""What an estimator holds speaks in the user's units, or refuses."""

import pickle

import numpy as np
import pytest

import tractable as tr
from tractable.core.errors import RunError
from tractable.estimators import (
    BayesianCountRegression,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    GaussianMixture,
    VariationalAutoencoder,
)
from tractable.posterior.posterior import Posterior
from tractable.posterior.standardised import REFUSED, VIEWED, Standardised

RNG = np.random.default_rng(0)
X = RNG.normal(5.0, 3.0, (60, 2))
Y = X @ [1.0, 2.0] + 1 + RNG.normal(size=60)
QUICK = {
    "linear": lambda: BayesianLinearRegression(random_state=0).fit(X, Y),
    "two targets": lambda: BayesianLinearRegression(random_state=0).fit(X, np.stack([Y, -Y], 1)),
    "laplace": lambda: BayesianLinearRegression(method="laplace", random_state=0).fit(X, Y),
    "more rows": lambda: BayesianLinearRegression(random_state=0).fit(X, Y).partial_fit(X, Y),
    "counts": lambda: BayesianCountRegression("poisson", random_state=0).fit(X, np.round(np.exp(X[:, 0] / 5))),
    "two classes": lambda: BayesianLogisticRegression(random_state=0).fit(X, Y > 15),
    "three classes": lambda: BayesianLogisticRegression(random_state=0).fit(X, np.digitize(Y, [10, 20])),
}
SLOW = {
    "network": lambda: BayesianMLPRegressor((3,), method="laplace", random_state=0).fit(X, Y),
    "network of classes": lambda: BayesianMLPClassifier((3,), method="laplace", random_state=0).fit(X, Y > 15),
    "autoencoder": lambda: VariationalAutoencoder(1, hidden=(), epochs=2, random_state=0).fit(X),
}
PLAIN = {
    "mixture": lambda: GaussianMixture(2, random_state=0).fit(X),
    "autoencoder of bits": lambda: VariationalAutoencoder(1, hidden=(), family="bernoulli", epochs=2).fit(X > 5),
}
pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore:Do not use this posterior")]


def assert_refuses(posterior):
    assert isinstance(posterior, Standardised) and "of standardised columns" in repr(posterior)
    for name in REFUSED if posterior.columns is None else set(REFUSED) - set(VIEWED):
        with pytest.raises(
            RunError, match=rf"posterior_.{name} would be in units of standardised columns.*standardised.{name}"
        ):
            getattr(posterior, name)
    assert posterior.report().verdict in ("trust", "caution", "reject")
    assert type(posterior.standardised) is Posterior and posterior.standardised is posterior.standardised


@pytest.mark.test
@pytest.mark.parametrize("name", QUICK)
def test_posteriors_of_standardised_columns_refuse(name):
    """All but what a linear model shows in the user's names and units: there the effects are the coefficients."""
    fitted = QUICK[name]()
    assert_refuses(fitted.posterior_)
    table, coefficients = fitted.posterior_.summary(), np.atleast_2d(fitted.coef_)
    prefixes = {"two targets": ["y0.", "y1."], "three classes": ["0.", "1.", "2."]}.get(name, [""])
    for row, prefix in zip(coefficients, prefixes, strict=True):
        np.testing.assert_allclose(table["mean"][[f"{prefix}x0", f"{prefix}x1"]], row, rtol=1e-4, atol=1e-6)
        middle = table["mean"][f"{prefix}intercept"] - row @ X.mean(0)
        np.testing.assert_allclose(middle, np.ravel(fitted.intercept_)[prefixes.index(prefix)], rtol=1e-4, atol=1e-4)
    draws = fitted.posterior_.to_arviz(groups=("posterior",)).posterior if fitted.posterior_.count else {}
    assert not len(draws) or f"{prefixes[0]}x1" in draws


@pytest.mark.laws
@pytest.mark.parametrize("name", SLOW)
def test_posteriors_of_networks_refuse(name):
    assert_refuses(SLOW[name]().posterior_)


@pytest.mark.laws
@pytest.mark.parametrize("name", PLAIN)
def test_posteriors_in_the_users_units_do_not(name):
    assert type(PLAIN[name]().posterior_) is Posterior


@pytest.mark.test
def test_saved_loaded_and_pickled_they_refuse_too(tmp_path):
    fitted = QUICK["linear"]()
    fitted.posterior_.save(tmp_path / "a")
    loaded = tr.load(tmp_path / "a")
    assert_refuses(loaded)
    assert_refuses(pickle.loads(pickle.dumps(fitted)).posterior_)
    assert "weights[x0] (standardised)" in (tmp_path / "a" / "summary.csv").read_text()
    inside, scaled = loaded.standardised, (X - X.mean(0)) / X.std(0)
    predicted = inside.predict(scaled.astype(np.float32)).mean * Y.std() + Y.mean()
    np.testing.assert_allclose(predicted, fitted.predict(X), rtol=5e-3)
    np.testing.assert_allclose(inside.mean()["weights"] * Y.std() / X.std(0), fitted.coef_, rtol=1e-5)


@pytest.mark.quick
def test_everything_that_has_units_is_listed():
    """A new method of a posterior is listed as refused, or here as one without units."""
    without = {
        "belief", "chains", "cost", "count", "curve", "data", "fitted", "found", "info", "interrupted", "is_point",
        "judged", "method", "model", "names", "phi", "predicted_bias", "report", "rows", "save", "seconds", "columns",
        "run_state", "seed", "settings", "shaped", "standardised", "thin", "verification", "view", "weights", "write",
    }  # fmt: skip
    public = {name for name in dir(Standardised) if not name.startswith("_")} | set(Standardised.__dataclass_fields__)
    assert public == without | set(REFUSED)
