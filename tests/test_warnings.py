"""A warning names the line of the user's program that led to it, whatever lies between."""

import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

import tractable as tr
from tractable.adapters.numpyro import split_numpyro
from tractable.core.errors import TractableWarning
from tractable.estimators import BayesianLinearRegression, GaussianMixture

pytestmark = pytest.mark.laws

X = np.random.default_rng(1).normal(size=(40, 2))
Y = X @ np.array([1.0, 2.0]) + np.cos(np.arange(40))
MEAN = tr.Model({"m": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["m"], 1.0))
CAUCHY = tr.Model({"m": dist.Normal(0.0, 1.0)}, lambda params: dist.Cauchy(params["m"], 1.0))
COARSE = tr.SGLD(chains=2, draws=20, warmup=20, thin=1, batch_size=5, step_size=0.05, preconditioner=None)
BACKPROP = tr.BayesByBackprop(kl_weights="geometric", batch_size=1, steps=10, start="random")
MIXTURE = GaussianMixture(3, max_iter=1)


def line(x: np.ndarray | None, y: np.ndarray | None = None) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 40):
        numpyro.sample("y", dist.Normal(slope * jnp.asarray(X[:, 0]), 1.0), obs=y)


KINDS: dict[str, Callable] = {
    "a constant column": lambda: tr.models.regression("y ~ x + c", pd.DataFrame({"y": Y, "x": X[:, 0], "c": 1.0})),
    "a family": lambda: tr.models.regression("y ~ x", pd.DataFrame({"y": np.arange(40) % 8, "x": X[:, 0]})),
    "no mean": lambda: tr.infer(CAUCHY, Y, tr.MAP(), verify=None).predict(),
    "batches": lambda: tr.infer(MEAN, np.zeros(400), BACKPROP, verify=None),
    "a split": lambda: split_numpyro(line, None, jnp.asarray(Y)),
    "an estimator's climb": lambda: MIXTURE.fit(X),
    "an estimator's draws": lambda: BayesianLinearRegression(
        method=tr.NUTS(chains=2, draws=8, warmup=2), verify=None
    ).fit(X, Y),
    "a step size": lambda: tr.infer(MEAN, Y, COARSE, verify=None),
    "a search by scikit-learn": lambda: GridSearchCV(MIXTURE, {"n_components": [3]}, cv=2).fit(X),
    "another process": lambda: tr.compare(MEAN, Y, [COARSE, tr.MAP()], n_jobs=2, reference={"m": (0.0, 1.0)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_warning_names_the_users_line(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        KINDS[kind]()
    told = [w for w in caught if issubclass(w.category, TractableWarning | ConvergenceWarning)]
    assert told and {w.filename for w in told} == {__file__}
