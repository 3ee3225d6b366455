"""Importance sampling of codes at a given θ: weights whose mean is p(x_n|θ), exactly that where q is the posterior."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from contract_method import quick_compilation
from montecarlo import Scores, Z, assert_holds, broken, error
from scipy import stats

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.evidence import proposals, targets

pytestmark = pytest.mark.laws

PRIOR = {"m": dist.Normal(0.0, 1.0)}
THETA = {"m": jnp.array(0.3)}
LOADINGS = np.array([[1.0, 0.5], [0.2, -2.0], [0.7, 0.7]])
SHAPE = np.array([[1.0, 0.6], [0.6, 2.0]])
NOISE = 0.3
RNG = np.random.default_rng(8)
NORMALS = RNG.normal(size=(7, 3)) * [1.0, 2.5, 1.5]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def linear() -> LatentModel:
    """z ~ N(m, V), x | z ~ N(A z, s² I): the posterior is normal, so a t of many degrees is it."""
    return LatentModel(
        PRIOR, lambda p: dist.MultivariateNormal(p["m"] * jnp.ones(2), jnp.array(SHAPE)),
        lambda p, z: dist.Normal(jnp.array(LOADINGS) @ z, NOISE).to_event(1),
    )  # fmt: skip


def linear_truth() -> np.ndarray:
    covariance: Any = LOADINGS @ SHAPE @ LOADINGS.T + NOISE**2 * np.eye(3)
    return stats.multivariate_normal(LOADINGS @ np.full(2, 0.3), covariance).logpdf(NORMALS)


def fractions() -> LatentModel:
    """A code in (0, 1), a real one and an input: y | a, b, x ~ N(3a + b x, s²)."""
    return LatentModel(
        PRIOR, lambda p, x=None: {"a": dist.Beta(2.0, 3.0), "b": dist.Normal(p["m"], 1.0)},
        lambda p, z, x: dist.Normal(3.0 * z["a"] + z["b"] * x, NOISE),
    )  # fmt: skip


def drawn(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, x, and log p(y | x, θ) by quadrature over a: given a, y ~ N(3a + m x, x² + s²)."""
    x = np.linspace(-1.0, 1.0, size)
    y = np.asarray(fractions().sample(jax.random.key(5), THETA, size, jnp.asarray(x))[0])
    a = (np.arange(4000) + 0.5) / 4000
    given = stats.norm.pdf(y[:, None], 3.0 * a[None] + 0.3 * x[:, None], np.sqrt(x**2 + NOISE**2)[:, None])
    return y, x, np.log(given @ stats.beta.pdf(a, 2.0, 3.0) / 4000)


def found(model: LatentModel, data: Any, **settings: Any) -> Any:
    return tr.log_evidence(model, data, "importance", theta=THETA, **settings)


def check_of(evidence: Any, name: str) -> Any:
    return next(c for c in evidence.checks if c.name == name)


def where_q_is_the_posterior() -> Scores:
    """Every weight of a datum is p(x_n|θ)."""
    got = found(linear(), NORMALS, draws=100, degrees=1e7, starts=2)
    return {"weights": error(got.log_weights, linear_truth()[:, None] + np.zeros(100), 1e-5)}


def averages(size: int = 400, draws: int = 100) -> Scores:
    """E w = p(y_n|x_n, θ) with tails that are too heavy, among low data and high ones."""
    y, x, truth = drawn(size)
    got = found(fractions(), tr.Data(y, x), draws=draws, degrees=3, starts=2)
    relative = np.exp(got.log_weights - truth[:, None]).mean(1)
    low = y < np.median(y)
    return {
        name: abs(relative[half].mean() - 1) / (relative[half].std(ddof=1) / math.sqrt(half.sum())) / Z
        for name, half in (("low y", low), ("high y", ~low))
    }


def test_weights_are_right():
    assert_holds(where_q_is_the_posterior())
    assert_holds(averages(), 400)


def _no_jacobian(code: Any) -> Any:
    a, b = dist.Beta(2.0, 3.0), dist.Normal(0.3, 1.0)
    return code._replace(log_base=lambda u: a.log_prob(jax.nn.sigmoid(u[0])) + b.log_prob(u[1]))


RIGHT, RIGHT_INVERSE, RIGHT_TARGET = proposals.student_log_prob, proposals.inverse, targets.cause_target
WRONG: dict[str, tuple[Any, str, Callable, Callable]] = {
    "q without its volume": (
        proposals, "student_log_prob", lambda w, v, nu: RIGHT(w, 0 * v, nu), where_q_is_the_posterior
    ),
    "q of another width": (
        proposals, "student_log_prob", lambda w, v, nu: RIGHT(1.1 * w, v, nu), where_q_is_the_posterior
    ),
    "q of other degrees": (proposals, "student_log_prob", lambda w, v, nu: RIGHT(w, v, 2 * nu), averages),
    "the root for its transpose": (proposals, "inverse", lambda f: jnp.swapaxes(RIGHT_INVERSE(f), 1, 2), averages),
    "no log-determinant": (targets, "cause_target", lambda *a: _no_jacobian(RIGHT_TARGET(*a)), averages),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_caught(name, monkeypatch):
    where, field, wrong, law = WRONG[name]
    monkeypatch.setattr(where, field, wrong)
    assert broken(law())


# Several modes, and none.


def folded() -> LatentModel:
    """y ~ N(z², s²): z and −z do alike."""
    return LatentModel(PRIOR, lambda p: dist.Normal(p["m"], 1.0), lambda p, z: dist.Normal(z**2, 0.1))


def test_both_modes_are_drawn_from():
    y = np.linspace(0.5, 3.0, 20)
    z = np.linspace(-8, 8, 160_001)
    density = stats.norm.pdf(z, 0.3, 1.0) * stats.norm.pdf(y[:, None], z**2, 0.1)
    truth = np.log(density.sum(1) * (z[1] - z[0]))
    both = found(folded(), y, starts=12, draws=2000)
    each = np.log(np.exp(both.log_weights - truth[:, None]).mean(1))
    assert_holds({"sum": abs(both.estimate - truth.sum()) / both.standard_error / Z, "each": np.abs(each).max() / 0.3})
    check = check_of(both, "modes")
    assert check.value == 2 and check.verdict == "caution" and "20 of 20 rows have more than one mode" in check.sentence
    assert check_of(both, "ESS").verdict == "trust"
    one = found(folded(), y, starts=1, draws=2000)  # what one climb finds is at most the larger half
    assert one.estimate < truth.sum() - 3 and check_of(one, "modes").value == 1


def test_a_code_without_a_curvature():
    """Two Laplaces have corners for curvatures: q is as wide as the prior, and says so. p(y) = (1 + |y|) e^−|y| / 4."""
    corners = LatentModel(PRIOR, lambda p: dist.Laplace(0.0, 1.0), lambda p, z: dist.Laplace(z, 1.0))
    y = np.linspace(-3.0, 3.0, 31)
    got = found(corners, y, draws=2000)
    truth = float(np.sum(np.log1p(np.abs(y)) - np.abs(y) - math.log(4)))
    assert_holds({"sum": abs(got.estimate - truth) / got.standard_error / Z, "error": got.standard_error / 1.0})
    check = check_of(got, "modes")
    assert check.verdict == "caution" and "none with a positive definite curvature" in check.sentence


# What it is for.


def test_it_is_better_than_the_prior():
    """Of codes that the data pin down; trusted, and its interval holds the truth."""
    truth = float(linear_truth().sum())
    got, plain = (
        tr.log_evidence(linear(), NORMALS, name, theta=THETA, draws=500) for name in ("importance", "monte-carlo")
    )
    assert got.verdict == "trust" and got.method == "importance" and got.log_weights.shape == (7, 500)
    assert got.standard_error < plain.standard_error / 5
    assert_holds(
        {
            "estimate": abs(got.estimate - truth) / got.standard_error / Z,
            "inside": max(got.lower - truth, truth - got.upper, 0.0) / got.standard_error / (Z - 2.58),
        }
    )
    assert check_of(got, "heavy tails").verdict == "trust" and check_of(got, "modes").verdict == "trust"


def test_data_taken_together_or_apart(monkeypatch):
    one = found(linear(), NORMALS, draws=100)
    monkeypatch.setattr(targets.Targets, "at_once", lambda self, draws: 3)
    other = found(linear(), NORMALS, draws=100)
    assert_holds({"weights": error(one.log_weights, other.log_weights, 1e-6)})


def test_heavy_tails_are_noticed():
    """A normal q and a posterior of heavier tails."""
    heavy = LatentModel(PRIOR, lambda p: dist.StudentT(1.0, p["m"], 1.0), lambda p, z: dist.Normal(0.01 * z, 1.0))
    y = np.linspace(-1, 1, 30)
    assert check_of(found(heavy, y, degrees=1e7), "heavy tails").verdict == "caution"
    assert check_of(found(heavy, y, degrees=1.0), "heavy tails").verdict == "trust"


@pytest.mark.test
@pytest.mark.parametrize(
    ("settings", "kind", "sentence"),
    [
        ({"z": np.ones(7)}, SettingsError, "method='importance' takes no z="),
        ({"chains": 40}, SettingsError, "has no setting chains; expected some of draws, degrees, starts"),
        ({"degrees": 0.0}, SettingsError, "expects a positive number"),
        ({"starts": 0}, SettingsError, "a whole number ≥ 1"),
    ],
)
def test_settings(settings, kind, sentence):
    with pytest.raises(kind) as caught:
        found(linear(), NORMALS, **settings)
    assert sentence in str(caught.value)


@pytest.mark.test
def test_codes_that_do_not_do():
    coin = LatentModel(PRIOR, lambda p: dist.Bernoulli(0.5), lambda p, z: dist.Normal(z + p["m"], 1.0))
    with pytest.raises(ModelError, match="small steps, but z is discrete"):
        found(coin, np.ones(3))
    long = LatentModel(
        PRIOR, lambda p: dist.Normal(jnp.zeros(101), 1.0).to_event(1), lambda p, z: dist.Normal(z.sum(), 1.0)
    )
    with pytest.raises(ModelError, match=r"at most 100 numbers; got 101\. Use method='annealed'"):
        found(long, np.ones(3))
