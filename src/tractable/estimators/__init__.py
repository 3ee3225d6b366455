"""Estimators for scikit-learn: tables in, predictions with their uncertainty out.

    model = BayesianMLPRegressor(calibration=0.2).fit(X, y)
    lower, upper = model.predict_interval(X_new).T

They go where scikit-learn's own go: pipelines, cross-validation, searches, pickles.
"""

from tractable.estimators.linear import BayesianLinearRegression, BayesianLogisticRegression
from tractable.estimators.networks import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
]
