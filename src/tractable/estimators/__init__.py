"""Scikit-learn estimators whose predictions have uncertainty.

    model = BayesianMLPRegressor(calibration=0.2).fit(X, y)
    lower, upper = model.predict_interval(X_new).T

    clusters = GaussianMixture(3).fit(X)
    clusters.report_, clusters.standard_errors_

They work wherever scikit-learn's own estimators work: in pipelines, cross-validation, searches and pickles.
"""

from tractable.estimators.bayesian_mixtures import BayesianGaussianMixture
from tractable.estimators.factors import FactorAnalysis
from tractable.estimators.ladders import BeliefNetwork, VariationalAutoencoder
from tractable.estimators.linear import BayesianCountRegression, BayesianLinearRegression, BayesianLogisticRegression
from tractable.estimators.mixtures import GaussianMixture
from tractable.estimators.networks import BayesianMLPClassifier, BayesianMLPRegressor

__all__ = [
    "BayesianCountRegression",
    "BayesianGaussianMixture",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianMLPClassifier",
    "BayesianMLPRegressor",
    "BeliefNetwork",
    "FactorAnalysis",
    "GaussianMixture",
    "VariationalAutoencoder",
]
