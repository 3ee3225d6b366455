"""Numbers at the edge of what digits hold: the answer is NumPy's in 64 bits, or a sentence, or it is not trusted."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import linalg

import tractable as tr
from tractable.core.errors import TractableError
from tractable.diagnostics.digits import digits_check
from tractable.estimators import BayesianLinearRegression, BayesianLogisticRegression, FactorAnalysis, GaussianMixture

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
N, D = 60, 4
X = RNG.normal(size=(N, D))
NOISE, LOGISTIC = RNG.normal(size=N), RNG.logistic(size=N)
LEFT, RIGHT = np.linalg.qr(RNG.normal(size=(N, D)))[0], np.linalg.qr(RNG.normal(size=(D, D)))[0]
SINGULAR = LEFT * np.logspace(0, -12, D) @ RIGHT * np.sqrt(N)  # of condition 10¹²
TABLES = {
    "far": X + 1e6,
    "constant": np.column_stack([X[:, :3], np.full(N, 3.3e5)]),
    "duplicated": np.column_stack([X[:, :3], X[:, 0]]),
    "scales": X * [1e-8, 1e8, 1.0, 1e-3],
    "condition": SINGULAR,
}
MEAN = tr.Model({"mu": dist.Normal(0.0, 1e7)}, lambda params: dist.Normal(params["mu"], 1.0))


@pytest.fixture(autouse=True)
def single():
    """All of it in 32 bits, and no word of what is not trusted."""
    with jax.enable_x64(False), warnings.catch_warnings(action="ignore"):
        yield


def standardised(x):
    scale = np.where(np.ptp(x, 0) > 0, x.std(0), 1.0)
    return np.column_stack([np.ones(len(x)), (x - x.mean(0)) / scale]), scale


PRIOR = np.diag([1 / 5.0**2] + [1 / 2.5**2] * D)


def regression(x, y):
    """Means and sds of the coefficients, the noise summed out: w ~ N(0, 2.5²), a ~ N(0, 5²), noise ~ HalfNormal(1)."""
    design, scale = standardised(x)
    targets = (y - y.mean()) / y.std()
    log_noise = np.linspace(np.log(1e-3), np.log(5.0), 2000)
    prior, ties = np.diag(PRIOR)[: design.shape[1]], design.T @ targets
    root = 1 / np.sqrt(prior)
    values, basis = linalg.eigh(root[:, None] * (design.T @ design) * root)
    values, basis = np.maximum(values, 0), root[:, None] * basis
    log_weight, means, squares = [], [], []
    for noise in np.exp(log_noise):
        precision = 1 + values / noise**2
        mean = basis @ (basis.T @ ties / noise**2 / precision)
        log_weight.append(
            -len(y) * np.log(noise) - 0.5 * (targets @ targets - mean @ ties) / noise**2
            - 0.5 * np.log(precision).sum() - 0.5 * noise**2 + np.log(noise)
        )  # fmt: skip
        means.append(mean)
        squares.append(np.square(basis) @ (1 / precision) + mean**2)
    weight = np.exp(np.array(log_weight) - max(log_weight))
    weight /= weight.sum()
    mean, square = weight @ np.array(means), weight @ np.array(squares)
    unit = y.std() / scale
    return mean[1:] * unit, np.sqrt(square - mean**2)[1:] * unit


def logistic(x, labels):
    """Means and sds of the coefficients, by importance sampling from a Student t at the maximum, and their errors."""
    design, scale = standardised(x)
    at = np.zeros(design.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-design @ at))
        curvature = design.T * (p * (1 - p)) @ design + PRIOR
        at += linalg.solve(curvature, design.T @ (labels - p) - PRIOR @ at)
    root, rng = linalg.cholesky(linalg.inv(curvature), lower=True), np.random.default_rng(1)
    z = rng.normal(size=(200_000, len(at))) / np.sqrt(rng.chisquare(8, size=(200_000, 1)) / 8)
    drawn = at + z @ root.T
    eta = drawn @ design.T
    target = (labels * eta - np.logaddexp(0, eta)).sum(1) - 0.5 * np.einsum("si,ij,sj->s", drawn, PRIOR, drawn)
    log_weight = target + 0.5 * (8 + len(at)) * np.log1p(np.square(z).sum(1) / 8)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ drawn
    sd = np.sqrt(weight @ np.square(drawn - mean))
    return mean[1:] / scale, sd[1:] / scale


@pytest.mark.parametrize("name", TABLES)
def test_linear_regression_of_hard_tables(name):
    x = TABLES[name]
    for y in (X @ [1.0, -2.0, 0.5, 0.0] + NOISE, 1e6 + NOISE):  # of which the second is far, and tells nothing
        found = BayesianLinearRegression(random_state=0).fit(x, y)
        mean, sd = regression(x, y)
        np.testing.assert_array_less(np.abs(found.coef_ - mean) / sd, 0.02)
        np.testing.assert_allclose(found.coef_std_ / sd, 1, atol=0.02)


@pytest.mark.parametrize("name", TABLES)
def test_logistic_regression_of_hard_tables(name):
    x, labels = TABLES[name], (X @ [1.0, -2.0, 0.5, 0.0] + LOGISTIC > 0).astype(int)
    found = BayesianLogisticRegression(random_state=0).fit(x, labels)
    mean, sd = logistic(x, labels)
    right = np.all(np.abs(found.coef_[0] - mean) / sd < 0.05) and np.allclose(found.coef_std_[0] / sd, 1, atol=0.05)
    assert right or found.report_.verdict != "trust", (found.coef_ - mean) / sd


SMALL = {
    "fewer rows than columns": (X[:3], X[:3, 0] + 1.0),
    "two rows": (X[:2], X[:2, 0]),
    "one row": (X[:1], X[:1, 0]),
    "equal targets": (X, np.full(N, 2.0)),
}


@pytest.mark.test("equal targets", "one row")
@pytest.mark.parametrize("name", SMALL)
def test_small_tables(name):
    x, y = SMALL[name]
    try:
        found = BayesianLinearRegression(random_state=0).fit(x, y)
    except TractableError as error:
        assert name in ("one row", "equal targets") and "one value" in str(error)
        return
    mean, sd = regression(x, y)
    right = np.all(np.abs(found.coef_ - mean) / sd < 0.05) and np.allclose(found.coef_std_ / sd, 1, atol=0.05)
    assert right or found.report_.verdict != "trust", ((found.coef_ - mean) / sd, found.coef_std_ / sd)


def of_design(x, y, method):
    """A normal model of a design as it is, of noise 1, with its exact answer along the directions that data know."""
    prior = {"w": dist.Normal(jnp.zeros(D), 1e3).to_event(1)}
    model = tr.Model(prior, lambda params, row: dist.Normal(row @ params["w"], 1.0))
    return tr.infer(model, tr.Data(y, x), method, progress=False)


@pytest.mark.test("map")
@pytest.mark.parametrize("method", [tr.MAP(), tr.Laplace(), tr.FullRank(steps=2000)], ids=lambda m: m.label)
def test_designs_of_condition_1e12(method):
    """The prior decides three of four directions, from far apart scales; the rest is a verdict."""
    y = SINGULAR @ np.ones(D) + NOISE
    covariance = linalg.inv(SINGULAR.T @ SINGULAR + np.eye(D) / 1e6)
    mean, sd = covariance @ SINGULAR.T @ y, np.sqrt(np.diag(covariance))
    found = of_design(SINGULAR, y, method)
    right = np.all(np.abs(found.mean()["w"] - mean) / sd < 0.1)
    if not found.is_point:
        right = right and np.allclose(found.sd()["w"] / sd, 1, atol=0.1)
    assert right or found.report().verdict != "trust", found.report()


FAR = 1e6 + RNG.normal(size=20_000)


@pytest.mark.computes
def test_rows_too_far_from_zero_for_32_bits_are_told():
    """μ to 1/√N = 0.007 where numbers lie 0.06 apart: an error of four sds in 32 bits; a run takes 64."""
    found = tr.infer(MEAN, FAR, tr.MAP(), progress=False)
    assert found.report().verdict == "trust" and abs(float(found.mean()["mu"]) - FAR.mean()) < 0.05 / np.sqrt(len(FAR))
    (told,) = digits_check(tr.Data(FAR))
    assert told.verdict == "caution" and told.value > 5
    far = {"y": FAR, "x": np.column_stack([FAR * 0, FAR])}
    assert not digits_check(tr.Data(FAR - 1e6)) and not digits_check(tr.Data(FAR[:200]))
    assert not digits_check(tr.Data(FAR.astype(int))) and not digits_check(tr.Data(far["x"] * 0))
    assert not digits_check(tr.Data(FAR - 1e6, np.full(len(FAR), 3.7400001)))  # whose mean is rounded: it has no spread
    (told,) = digits_check(tr.Data(FAR - 1e6, far["x"]))
    assert "column 1 of given (1e+06 ± " in told.sentence and told.verdict == "caution"
    np.testing.assert_allclose(told.value, 0.0625 * np.sqrt(len(FAR)) / FAR.std(), rtol=1e-9)
    with jax.enable_x64(True):
        assert not digits_check(tr.Data(FAR))


def test_mixtures_and_factors_far_from_zero():
    """An estimator moves the rows first: the same fit to a thousandth of an sd, at 10⁶ sds."""
    pairs = np.concatenate([X[:, :2] - 4, X[:, 2:] + 4])
    factors = np.outer(NOISE, [1.0, 2.0, -1.0]) + 0.5 * X[:, :3]
    for fit, rows, names in (
        (lambda x: GaussianMixture(2, random_state=0).fit(x), pairs, ("covariances_", "weights_")),
        (lambda x: FactorAnalysis(1, random_state=0).fit(x), factors, ("components_", "noise_variance_")),
    ):
        near, far = fit(rows), fit(rows + 1e6)
        for name in names:
            np.testing.assert_allclose(getattr(far, name), getattr(near, name), atol=2e-3)
        np.testing.assert_allclose(far.score(rows + 1e6), near.score(rows), atol=2e-3)


@pytest.mark.computes
@pytest.mark.parametrize("method", [tr.RandomWalk, tr.MALA])
def test_a_million_rows(method):
    """μ has the law N(ȳ, 1/N): ratios are of summands, as the difference of two sums in 32 bits sees nothing of it."""
    y = 0.3 + np.random.default_rng(5).normal(size=10**6)
    run = method(chains=2, draws=300, warmup=100, thin=1)
    found = tr.infer(MEAN, y, run, progress=False, verify=None)
    drawn = (found.values[:, :, 0].astype(np.float64) - y.mean()) * 1e3
    effective = found.summary()["ess_bulk"]["mu"]
    assert effective > 30
    assert abs(drawn.mean()) < 5.33 / np.sqrt(effective) + 0.03
    assert abs(np.log(drawn.std())) < 5.33 / np.sqrt(2 * effective) + 0.03
