"""Transformers made of ladders: exact truths where there are any, and what scikit-learn asks."""

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from exact import probabilistic_pca_maximum
from montecarlo import Scores, Z, assert_holds, broken, error, z_mean
from scipy import special, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import tractable as tr
from tractable.core.errors import TractableWarning
from tractable.estimators import BeliefNetwork, VariationalAutoencoder, ladders
from tractable.estimators.base import limit_batch_size
from tractable.ladders.bounds import log_weights
from tractable.ladders.encoding import network_of

RNG = np.random.default_rng(0)
CENTRE, D = np.array([3.0, 0.0, -50.0, 1.0]), 4
X = RNG.normal(size=(500, 2)) @ RNG.normal(size=(2, D)) * [1.0, 2.0, 30.0, 0.5] + CENTRE
X = X + RNG.normal(size=X.shape) * [0.5, 1.0, 10.0, 0.25]
BITS = (RNG.normal(size=(300, 1)) * [1.0, 2.0, -2.0, 1.0] + RNG.normal(size=(300, D)) > 0).astype(float)
PPCA: dict[str, Any] = {"hidden": (), "learning_rate": 0.03, "epochs": 60, "random_state": 0}
BELIEF: dict[str, Any] = {"hidden": (3,), "epochs": 100, "batch_size": 50, "random_state": 0}
pytestmark = [
    pytest.mark.laws,
    pytest.mark.filterwarnings("ignore:Do not use this posterior"),
]  # of fits that are short on purpose


@functools.cache
def linear() -> VariationalAutoencoder:
    return VariationalAutoencoder(2, **PPCA).fit(X)


@functools.cache
def belief() -> BeliefNetwork:
    return BeliefNetwork(**BELIEF).fit(BITS)


def as_one_of(kind: type, fitted: Any) -> Any:
    """What another class makes of the same fit."""
    other = copy.copy(fitted)
    other.__class__ = kind
    return other


@pytest.mark.filterwarnings("default:Do not use this posterior")
def test_fit_says_that_a_verdict_is_reject():
    with pytest.warns(TractableWarning, match="Do not use this posterior: active h1 "):
        BeliefNetwork((2,), epochs=1, random_state=0).fit(BITS)


@parametrize_with_checks([VariationalAutoencoder(), BeliefNetwork()])
def test_scikit_learn_agrees(estimator, check):
    check(estimator)


# Probabilistic PCA, of which all is known.


def density(weight: np.ndarray, noise: float, bias: np.ndarray) -> Any:
    """N of the user's units, from W (d, q), σ² and b of standardised columns."""
    scale = X.std(0)
    covariance = (weight @ weight.T + noise * np.eye(D)) * np.outer(scale, scale)
    return stats.multivariate_normal(X.mean(0) + scale * bias, covariance)


def learnt() -> tuple[np.ndarray, float, np.ndarray]:
    theta = network_of(linear()._posterior, "test")[1]["theta"]["x"]
    layer = {name: np.asarray(a) for name, a in theta["layer0"].items()}
    return layer["weight"].T, float((1e-3 + np.log1p(np.exp(theta["noise"]))) ** 2), layer["bias"]


def pca_law(model: Any) -> Scores:
    """The score is near the maximum that probabilistic PCA has; of each row, near its density at what was learnt."""
    best = probabilistic_pca_maximum((X - X.mean(0)) / X.std(0), 2)
    maximum = density(np.asarray(best.loadings), float(best.noise), np.zeros(D)).logpdf(X).mean()
    told, exact = model.score_samples(X), density(*learnt()).logpdf(X)
    return {
        "maximum": error(model.score(X), maximum, 0.05),
        "rows": error(told, exact, 0.2),
        "mean of rows": error(told.mean(), exact.mean(), 0.005),
        "below": float(np.mean(told - exact) > 0.002) * 2,
        "bound": error(model.bound_, model.score(X), 0.01),
    }


class Standardised(VariationalAutoencoder):
    def _log_scale(self):
        return 0.0


class Inverted(VariationalAutoencoder):
    def _log_scale(self):
        return -super()._log_scale()


class Summed(VariationalAutoencoder):
    def score_samples(self, X):
        return super().score_samples(X) + np.log(ladders.SCORED)


class Uncentred(VariationalAutoencoder):
    def _units(self, x):
        return super()._units(x + self._scaling.centre)


def test_linear_is_probabilistic_pca():
    assert_holds(pca_law(linear()))


@pytest.mark.parametrize("mutant", [Standardised, Inverted, Summed, Uncentred])
def test_linear_is_probabilistic_pca_mutants(mutant):
    assert broken(pca_law(as_one_of(mutant, linear())))


def codes_law(model: Any) -> Scores:
    """E[z | x], E[x | z] and the moments of samples, at what was learnt."""
    weight, noise, bias = learnt()
    inverse = np.linalg.inv(weight.T @ weight + noise * np.eye(2)) @ weight.T
    units = (X - X.mean(0)) / X.std(0)
    z = RNG.normal(size=(7, 2))
    rows, truth = model.sample(4000), density(weight, noise, bias)
    turn = np.linalg.cholesky(np.linalg.inv(truth.cov))
    white = (rows - truth.mean) @ turn  # ~ N(0, I)
    return (
        {
            "codes": error(model.transform(X), (units - bias) @ inverse.T, 0.1),
            "rows of codes": error((model.inverse_transform(z) - X.mean(0)) / X.std(0), z @ weight.T + bias, 1e-9),
        }
        | {f"mean {i}": z_mean(white[:, i], 0.0, 1.0) for i in range(D)}
        | {f"variance {i}": z_mean(white[:, i] ** 2, 1.0, 2.0) for i in range(D)}
        | {f"covariance {i}": z_mean(white[:, i] * white[:, i - 1], 0.0, 1.0) for i in range(D)}
    )


class Meanless(VariationalAutoencoder):
    def _from_units(self, x):
        return self._scaling.scale * x


class Variances(VariationalAutoencoder):
    def _from_units(self, x):
        return self._scaling.centre + self._scaling.scale**2 * x


def test_codes():
    assert_holds(codes_law(linear()), 4000)


@pytest.mark.parametrize("mutant", [Meanless, Variances, Uncentred])
def test_codes_mutants(mutant):
    assert broken(codes_law(as_one_of(mutant, linear())))


def test_units():
    """Columns four times as large: the same codes, and densities lower by d log 4, to rounding."""
    far = VariationalAutoencoder(2, **PPCA).fit(4 * X)
    assert_holds(
        {
            "codes": error(far.transform(4 * X), linear().transform(X), 1e-10),
            "rows": error(far.inverse_transform(np.eye(2)), 4 * linear().inverse_transform(np.eye(2)), 1e-9),
            "scores": error(far.score_samples(4 * X), linear().score_samples(X) - D * np.log(4), 1e-9),
            "bound": error(far.bound_, linear().bound_ - D * np.log(4), 1e-9),
        }
    )


# Weights, whose mean is p(x).


def weights_law(scores: np.ndarray, exact: np.ndarray) -> Scores:
    """E[(1/K) Σ w] = p(x): of independent draws the ratio is 1 on average, and its log at most 0."""
    ratio = np.exp(scores - exact)
    wrong = abs(ratio.mean() - 1) / (ratio.std(ddof=1) / np.sqrt(len(ratio)))
    return {"mean ratio": wrong / Z, "spread": error(ratio.std(), 0.0, 2.0)}


def quadrature(model: VariationalAutoencoder, rows: np.ndarray) -> np.ndarray:
    """log ∫ N(z; 0, 1) p(x | z) dz of every row, one z."""
    nodes, weights = special.roots_hermitenorm(120)
    ladder, params = network_of(model._posterior, "test")
    h = jnp.asarray(nodes)[:, None, None] * jnp.ones((1, len(rows), 1))
    log_p = ladder.log_p(params["theta"], jnp.asarray(rows)[None], (h,))[0]
    return special.logsumexp(np.asarray(log_p), axis=0, b=weights[:, None] / np.sqrt(2 * np.pi))


@pytest.mark.parametrize(
    ("family", "objective", "rows"),
    [
        ("bernoulli", "elbo", BITS),
        ("continuous bernoulli", "elbo", special.expit(0.02 * X[:300] - 0.02 * CENTRE)),
        ("poisson", "iwae", np.floor(np.abs(X[:300, :3] - CENTRE[:3]) / [1, 2, 20])),
    ],
)
def test_weights_of_families(family, objective, rows):
    settings: dict[str, Any] = {"family": family, "objective": objective, "samples": 3, "learning_rate": 0.02}
    model = VariationalAutoencoder(1, hidden=(3,), epochs=40, random_state=0, **settings).fit(rows)
    # Equal rows have equal draws, of which one is kept.
    some = np.unique(rows, axis=0)
    told, exact = model.score_samples(some), quadrature(model, some)
    assert_holds(weights_law(told, exact))
    assert broken(weights_law(told + np.log(ladders.SCORED), exact))
    assert isinstance(model.posterior_.method, tr.ImportanceWeighted if objective == "iwae" else tr.AutoEncoding)
    drawn = model.sample(50)
    assert drawn.shape == (50, rows.shape[1]) and np.all(ladders.SUPPORTS[family].holds(drawn))
    assert model.inverse_transform([[0.3]]).shape == (1, rows.shape[1])


def test_weights_of_belief_networks():
    """Of rows 70 times over, each with draws of its own, against the sum over all causes."""
    ladder, params = network_of(belief()._posterior, "test")
    x = jnp.asarray(np.tile(BITS, (70, 1)))
    exact = np.asarray(ladder.summed_out(params["theta"], x))
    told = np.asarray(ladders._scores(ladder, params, jax.random.key(1), x, jnp.arange(len(x), dtype=jnp.uint32)))
    assert_holds(weights_law(told, exact))
    h, q = ladder.drawn(jax.random.key(2), params, x, 4)
    log_w = log_weights(ladder, params, x, h, q)[0]
    assert_holds(weights_law(np.asarray(log_w[0]), exact))
    assert broken(weights_law(np.asarray(jnp.mean(log_w, 0)), exact))  # the mean of logs, an ELBO
    assert broken(weights_law(np.asarray(ladder.log_p(params["theta"], x[None], h)[0][0]), exact))  # without the KL


# Belief networks.


def test_belief_network():
    fitted = belief()
    theta = network_of(fitted._posterior, "test")[1]["theta"]["x"]["layer0"]
    causes = np.array([[0, 1, 1], [1, 0, 0]], float)
    wanted = special.expit(causes @ np.asarray(theta["weight"]) + np.asarray(theta["bias"]))
    assert_holds(
        {
            "rows of codes": error(fitted.inverse_transform(causes), wanted, 1e-10),
            "codes": error(fitted.transform(BITS), fitted.posterior_.encode(BITS).mean[0], 1e-10),
            "score": error(fitted.score(BITS), fitted.posterior_.log_evidence(BITS).mean, 0.05),
            "bound": error(fitted.bound_, fitted.score(BITS), 0.05),
        }
    )
    # A column that depends on nothing but its share is what is begun from.
    assert fitted.score(BITS) > stats.bernoulli(BITS.mean(0)).logpmf(BITS).sum(1).mean() + 0.1


@pytest.mark.test("0")
@pytest.mark.parametrize("binarise", [0.5, None, 0])
def test_bits_stay_what_they_are(binarise):
    assert np.array_equal(
        BeliefNetwork(**BELIEF, binarise=binarise).fit(BITS).score_samples(BITS), belief().score_samples(BITS)
    )


def test_numbers_above_a_threshold_are_ones():
    real = np.where(BITS > 0, 7.5, 2.0) + 0.1 * RNG.normal(size=BITS.shape)
    fitted = BeliefNetwork(**BELIEF, binarise=5).fit(real)
    assert np.array_equal(fitted.score_samples(real), belief().score_samples(BITS))
    assert np.array_equal(fitted.transform(real), belief().transform(BITS))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("nvil", tr.NVIL(epochs=3, batch_size=40)),
        ("vimco", tr.VIMCO(epochs=3, batch_size=40)),
        ("wake-sleep", tr.WakeSleep(epochs=3, batch_size=40)),
        ("reweighted-wake-sleep", tr.ReweightedWakeSleep(epochs=3, batch_size=40)),
        (tr.VIMCO(samples=7, epochs=9, batch_size=999), tr.VIMCO(samples=7, epochs=9, batch_size=40)),
        (tr.VIMCO(samples=7, epochs=9, batch_size=20), tr.VIMCO(samples=7, epochs=9, batch_size=20)),
    ],
)
def test_methods(method, wanted):
    """By name with the estimator's settings, or as given; batches of 100 rows at most those there are."""
    assert limit_batch_size(BeliefNetwork((2,), method=method, epochs=3)._method(), 40) == wanted


# What scikit-learn asks.


@pytest.mark.parametrize(("fitted", "rows"), [(linear, X), (belief, BITS)])
def test_rows_are_judged_alone(fitted, rows):
    """In any order, some at a time, and equal ones alike."""
    model, order = fitted(), np.random.default_rng(1).permutation(len(rows))
    whole = model.score_samples(rows)
    assert_holds(
        {
            "order": error(model.score_samples(rows[order]), whole[order], 1e-10),
            "part": error(model.score_samples(rows[5:9]), whole[5:9], 1e-10),
            "codes": error(model.transform(rows[order[:5]]), model.transform(rows)[order[:5]], 1e-10),
            "equal": error(np.ptp(model.score_samples(np.repeat(rows[:1], 9, axis=0))), 0.0, 1e-10),
        }
    )


def test_random_state():
    same, other = clone(linear()).fit(X), clone(linear()).set_params(random_state=1).fit(X)
    assert np.array_equal(same.transform(X), linear().transform(X))
    assert np.array_equal(same.sample(5), linear().sample(5))
    assert not np.array_equal(other.transform(X), linear().transform(X))
    assert not np.array_equal(other.sample(5), linear().sample(5))
    drawing = as_one_of(VariationalAutoencoder, linear())
    drawing.random_state = np.random.RandomState(0)
    assert not np.array_equal(drawing.sample(5), drawing.sample(5))


def test_they_go_where_transformers_go():
    model = linear()
    back = pickle.loads(pickle.dumps(model))
    assert np.array_equal(back.score_samples(X), model.score_samples(X))
    assert back.report_.verdict == model.report_.verdict
    single = model.transform(X.astype(np.float32))
    assert single.dtype == np.float32 and model.inverse_transform(single).dtype == np.float32
    assert_holds({"single": error(single, model.transform(X), 1e-4)})
    assert model.transform(X).dtype == np.float64
    frame = pd.DataFrame(X, columns=list("abcd"))
    pipe = make_pipeline(StandardScaler(), VariationalAutoencoder(2, **PPCA)).set_output(transform="pandas")
    told = pipe.fit(frame).transform(frame)
    assert told.columns.tolist() == ["variationalautoencoder0", "variationalautoencoder1"]
    # Densities of standardised columns.
    assert_holds(
        {
            "codes": error(told.to_numpy(), model.transform(X), 0.02),
            "score": error(pipe.score(frame), model.score(X) + np.log(X.std(0)).sum(), 0.01),
        }
    )
    with pytest.raises(NotFittedError):
        clone(model).transform(X)


@pytest.mark.parametrize(
    ("estimator", "rows", "sentence"),
    [
        (VariationalAutoencoder(0), X, "1 unit or more; got size=0"),
        (VariationalAutoencoder(family="gamma"), X, "family is one of 'normal', 'bernoulli'"),
        (VariationalAutoencoder(family="bernoulli"), X, "X must be 0 or 1 for VariationalAutoencoder.*row 0, column 0"),
        (VariationalAutoencoder(family="continuous bernoulli"), X, "X must be from 0 to 1"),
        (VariationalAutoencoder(family="poisson"), np.abs(X), "X must be counts"),
        (VariationalAutoencoder(objective="vimco"), X, "objective is 'elbo' or 'iwae'; got 'vimco'"),
        (VariationalAutoencoder(objective="iwae", warmup=5), X, "Leave both at 0 for objective='iwae'"),
        (VariationalAutoencoder(batch_size=0), X, "batch_size"),
        (VariationalAutoencoder(epochs=0), X, "epochs"),
        (VariationalAutoencoder(), X[:1], "minimum of 2 is required"),
        (BeliefNetwork(()), BITS, "hidden= lists the number of units"),
        (BeliefNetwork(method="nuts"), BITS, "method must be 'nvil', 'vimco'.*got 'nuts'"),
        (BeliefNetwork(method=tr.MAP()), BITS, "method must be 'nvil', 'vimco'.*got MAP"),
        (BeliefNetwork(method=3), BITS, "method must be 'nvil', 'vimco'.*got 3"),
        (BeliefNetwork(method="autoencoding"), BITS, "whose draws have no derivative"),
        (BeliefNetwork(binarise=None), X, "X must be 0 or 1 for BeliefNetwork"),
        (BeliefNetwork(binarise="median"), X, "binarise is a threshold"),
    ],
)
def test_errors_are_sentences(estimator, rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(rows)


def test_codes_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"codes of shape \(n, 2\)"):
        linear().inverse_transform(np.ones((4, 3)))
    with pytest.raises(ValueError, match="X must be 0 or 1"):
        as_one_of(BeliefNetwork, belief()).set_params(binarise=None).transform(X)
