"""scikit-learn's checks of the networks' estimators: by MAP, which takes a second where the default takes a minute.

The checks are about the interface: shapes, sentences, clones, weights of rows. ``tests/networks`` and ``benchmarks``
measure the fits by default. Laplace is no choice here: the checks' tables have more columns than rows, the noise goes
to zero, and no normal fits there, as its error says.
"""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import tractable as tr
from tractable.estimators import BayesianMLPClassifier, BayesianMLPRegressor

pytestmark = [
    pytest.mark.laws,
    pytest.mark.filterwarnings("ignore:Do not use this posterior"),  # tables of a few rows are rightly not trusted
]
SHORT = {"hidden": (8,), "activation": "tanh", "method": tr.MAP(), "verify": None}


@parametrize_with_checks([BayesianMLPRegressor(**SHORT), BayesianMLPClassifier(**SHORT)])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)
