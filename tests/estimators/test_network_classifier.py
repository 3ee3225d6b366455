"""scikit-learn's checks of BayesianMLPClassifier with its defaults: fits of some fifty tables, in twenty minutes."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tractable.estimators import BayesianMLPClassifier

pytestmark = [
    pytest.mark.laws,
    pytest.mark.filterwarnings("ignore:Do not use this posterior"),  # tables of a few rows are rightly not trusted
    pytest.mark.filterwarnings("ignore:The observed information"),  # of a network's ridges, which a start does not mind
]


@parametrize_with_checks([BayesianMLPClassifier()])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)
