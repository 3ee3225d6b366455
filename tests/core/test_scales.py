"""No column is too large or too small to be standardised, and its scale changes no answer."""

import numpy as np
import pandas as pd
import pytest

from tractable.core.scales import moments
from tractable.estimators import BayesianLinearRegression
from tractable.estimators.rows import Rows, scaling
from tractable.tables.columns import fit_column
from tractable.tables.encoder import encode, fit_encoder

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(31)
SCALES = [1e-300, 1e-200, 1e-163, 1e-155, 1e-30, 1.0, 1e30, 1e154, 1e155, 1e200, 1e300]
X, WEIGHT = RNG.normal(3.0, 2.0, (50, 3)), RNG.integers(0, 4, 50).astype(float)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("weight", [None, WEIGHT, 1e30 * WEIGHT, 1e-300 * WEIGHT, 1e307 * WEIGHT])
def test_moments_of_numbers_of_any_size(scale, weight):
    mean, sd = moments(X * scale, weight)
    share = None if weight is None else WEIGHT / WEIGHT.sum()
    wanted = np.average(X, axis=0, weights=share)
    np.testing.assert_allclose(mean / scale, wanted, rtol=1e-13)
    np.testing.assert_allclose(sd / scale, np.sqrt(np.average((X - wanted) ** 2, axis=0, weights=share)), rtol=1e-13)


def test_a_power_of_two_changes_no_digit():
    for power in (-900, -3, 0, 1, 900):
        for one, other in zip(moments(np.ldexp(X, power)), moments(X), strict=True):
            np.testing.assert_array_equal(one, np.ldexp(other, power))
    mean, sd = moments(np.full((7, 1), 0.1))
    assert mean[0] == pytest.approx(0.1) and sd[0] == 0
    assert moments(np.zeros((7, 1)))[1][0] == 0


@pytest.mark.parametrize("scale", SCALES)
def test_columns_of_tables_and_of_arrays(scale):
    (column,) = fit_column(pd.Series(X[:, 0] * scale, name="a"), False)
    assert (column.mean / scale, column.sd / scale) == (pytest.approx(X[:, 0].mean()), pytest.approx(X[:, 0].std()))
    found = scaling(Rows(X * scale, X[:, 0] / scale, np.ones(50)), True)
    np.testing.assert_allclose(found.inputs(X * scale).std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(found.targets(X[:, 0] / scale).std(), 1, rtol=1e-12)
    frame = pd.DataFrame({"x": X[:, 1] * scale, "y": X[:, 0] * scale})
    encoded = encode(fit_encoder(frame, "y", family="normal"), frame)
    np.testing.assert_allclose([encoded.x.std(), encoded.y.std()], 1, rtol=1e-12)


@pytest.mark.test
@pytest.mark.parametrize(("of_x", "of_y"), [(1e300, 1.0), (1e-300, 1.0), (1.0, 1e300), (1.0, 1e-300), (1e200, 1e200)])
def test_a_regression_in_other_units_is_the_same(of_x, of_y):
    y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=50)
    fits = [BayesianLinearRegression(verify=None).fit(X * [a, 1, 1], y * b) for a, b in ((1.0, 1.0), (of_x, of_y))]
    np.testing.assert_allclose(fits[1].coef_ / of_y * [of_x, 1, 1], fits[0].coef_, rtol=1e-5)
    np.testing.assert_allclose(fits[1].coef_std_ / of_y * [of_x, 1, 1], fits[0].coef_std_, rtol=0.05)  # of other draws
    np.testing.assert_allclose(fits[1].predict(X * [of_x, 1, 1]) / of_y, fits[0].predict(X), rtol=1e-5)
