"""A posterior of many rows is looked at by a few of them, whose density is corrected to that of all."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.approximations import of_root
from tractable.core.model import Data, Model
from tractable.diagnostics import few, verify, view
from tractable.diagnostics.belief import Fitted
from tractable.diagnostics.target import Target
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(5)
N, D, FEW = 8000, 3, 1024
X = RNG.normal(size=(N, D)) @ np.array([[1.0, 0.8, 0], [0, 1, 0.3], [0, 0, 1]])
X[:, 2] = RNG.random(N) < 40 / N  # about five of the few have it
W = np.array([0.5, -0.3, 0.7])
NUMBERS = X @ W + RNG.normal(size=N)
ANSWERS = (RNG.random(N) < 1 / (1 + np.exp(-X @ W))).astype(float)
COUNTS = RNG.integers(0, 3, N).astype(float)
PRIOR = {"w": dist.Normal(jnp.zeros(D), 2.0).to_event(1)}
LINEAR = Model(PRIOR, lambda p, x: dist.Normal(x @ p["w"], 1.0))
LOGISTIC = Model(PRIOR, lambda p, x: dist.Bernoulli(logits=x @ p["w"]))
EITHER = Model({"w": dist.Normal(0.0, 2.0)}, lambda p, x: dist.Normal(jnp.abs(p["w"]) * x[0], 1.0))  # two modes, ±
PRECISION = X.T @ X + np.eye(D) / 4
MEAN, ROOT = np.linalg.solve(PRECISION, X.T @ NUMBERS), np.linalg.cholesky(np.linalg.inv(PRECISION))


def mode(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The logistic posterior's mode and a root of its covariance there, by Newton's steps."""
    counts = np.ones(N) if data.weights is None else np.asarray(data.weights)
    w = np.zeros(D)
    for _ in range(20):
        p = 1 / (1 + np.exp(-X @ w))
        precision = (X * (counts * p * (1 - p))[:, None]).T @ X + np.eye(D) / 4
        w = w + np.linalg.solve(precision, X.T @ (counts * (ANSWERS - p)) - w / 4)
    return w, np.linalg.cholesky(np.linalg.inv(precision))


@pytest.mark.test("weights")
@pytest.mark.parametrize("weights", [None, COUNTS], ids=["each once", "weights"])
def test_near_the_posterior_few_rows_have_the_density_of_all(weights):
    data = Data(ANSWERS, given=X, weights=weights)
    centre, root = mode(data)
    centre, rows, target = centre + 0.5 * root[:, 0], data.arrays(), Target(LOGISTIC)
    some = few.sample_rows(target, data, rows, centre, root, FEW, 3)
    there = centre + RNG.standard_normal((200, D)) @ root.T
    anchored = target._replace(anchored=True)
    (value, slope), (all_value, all_slope) = anchored.look(some, centre[None]), target.look(rows, centre[None])
    np.testing.assert_allclose(value, all_value, rtol=1e-9)
    np.testing.assert_allclose(slope @ root, all_slope @ root, atol=1e-6)
    off = anchored.at(some, there) - target.at(rows, there)
    assert np.std(off) < 0.05
    np.testing.assert_allclose(
        np.unique(some[0].weights), np.unique(np.ones(N) if weights is None else weights) * N / FEW
    )
    assert np.std(target.at(some[0], there) - target.at(rows, there)) > 1  # uncorrected
    far = centre + 400 * root.T
    np.testing.assert_allclose(anchored.at(some, far), target.at(some[0], far) + some[1].height, rtol=1e-6)


@pytest.mark.parametrize("count", [64, 1024, 4000])
def test_the_corrected_density_has_no_hill_but_the_posterior(count):
    """A sample's own maximum lies up to √(N/n) sds away, and its values hundreds of nats above or below all rows'."""
    data, target = Data(NUMBERS, given=X), Target(LINEAR)
    rays = RNG.standard_normal((100, D))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    radii = np.arange(1.0, 100.0)
    for seed in range(20):
        some = few.sample_rows(target, data, data.arrays(), MEAN, ROOT, count, seed)
        places = MEAN + (radii[:, None, None] * rays) @ ROOT.T
        values = target._replace(anchored=True).at(some, np.concatenate([MEAN[None], places.reshape(-1, D)]))
        assert np.all((values[1:] - values[0]).reshape(len(radii), -1) < -0.1 * radii[:, None] ** 2)


def learnt(model: Model, data: Data, mean: np.ndarray, root: np.ndarray) -> Posterior:
    """What a q = N(mean, root rootᵀ) is said to have learnt."""
    phi = of_root(jnp.asarray(mean, float), jnp.asarray(root, float))
    draws = mean + np.random.default_rng(0).standard_normal((4000, len(mean))) @ root.T
    belief = Fitted(positions=draws[None], family="full rank", phi=jax.tree.map(np.asarray, phi), log_weights=None)
    found = {"gain": 0.0, "gain error": 0.0, "steps": 1000, "evaluations": 1000}
    return Posterior(model, data, tr.FullRank(), 0, belief, found)


@pytest.fixture
def on_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look fits but that at a sample, as where there are a hundred times as many rows."""
    monkeypatch.setattr(verify, "affordable", lambda *_: None)
    monkeypatch.setattr(verify, "affordable_on_few", lambda *_: view.Few(view.SIZES[1], FEW))


def found(posterior: Posterior) -> dict[str, str]:
    return {check.name: check.verdict for check in posterior.verify("auto").report().checks}


SOUND = {"rows looked at": "trust", "tails": "trust", "modes": "trust", "means and sds": "trust"}


@pytest.mark.usefixtures("on_few")
@pytest.mark.parametrize("weights", [None, COUNTS], ids=["each once", "weights"])
def test_what_is_right_is_trusted(weights):
    data = Data(ANSWERS, given=X, weights=weights)
    assert found(learnt(LOGISTIC, data, *mode(data))) == {"bound's gain": "trust"} | SOUND
    assert found(learnt(LINEAR, Data(NUMBERS, given=X), MEAN, ROOT)) == {"bound's gain": "trust"} | SOUND


@pytest.mark.test("0.35-1.0", "3.0-1.0")
@pytest.mark.usefixtures("on_few")
@pytest.mark.parametrize(("aside", "width"), [(0.0, 0.7), (0.0, 1.4), (0.35, 1.0), (3.0, 1.0)])
def test_what_is_wrong_is_rejected(aside, width):
    centre = MEAN + aside * np.sqrt(np.sum(ROOT**2, 1))
    assert found(learnt(LINEAR, Data(NUMBERS, given=X), centre, width * ROOT))["means and sds"] == "reject"


@pytest.mark.test
@pytest.mark.usefixtures("on_few")
def test_a_second_mode_is_weighed_by_all_rows():
    """Of a sample alone, far from its anchor, the heights of two equal modes would differ by chance."""
    y, sd = 0.7 * X[:, 0] + RNG.normal(size=N), 1 / np.sqrt(np.sum(X[:, 0] ** 2))
    mean = np.array([np.sum(y * X[:, 0]) * sd**2])
    one = learnt(EITHER, Data(y, given=X), mean, np.array([[sd]]))
    check = next(c for c in one.verify("auto").report().checks if c.name == "modes")
    assert (check.verdict, check.value) == ("reject", 2)
    assert "holds about 5" in check.sentence or "holds about 4" in check.sentence


@pytest.mark.parametrize("affordable", [None, view.SIZES[-1]], ids=["no other look", "all rows"])
def test_a_sample_that_does_not_stand_for_all_earns_no_trust(on_few, monkeypatch, affordable):
    """Three of 8,000 rows bend a direction, and the sample has none of them: its density is a normal there."""
    monkeypatch.setattr(verify, "affordable", lambda *_: affordable)
    x, y, last = X.copy(), ANSWERS.copy(), N - np.arange(1, 4)
    x[:, 2] = 0.0
    x[last, 2], y[last] = 1.0, 1.0
    model = Model({"w": dist.Normal(jnp.zeros(D), 6.0).to_event(1)}, LOGISTIC.likelihood)
    checks = found(tr.infer(model, Data(y, given=x), tr.Laplace(), seed=0, progress=False))
    assert checks.get("rows looked at") == ("caution" if affordable is None else None)
    assert checks.get("means and sds") == (None if affordable is None else "reject")


@pytest.mark.test
def test_a_sample_serves_under_a_proper_prior_only(monkeypatch):
    """Of rows alone a sample may be separable, or lack a column, where all rows are not and do not."""
    monkeypatch.setattr(view, "WORK", 1e8)
    monkeypatch.setattr(view, "LEAST_ROWS", 16)
    data = Data(NUMBERS, given=X)
    posterior, rows = learnt(LINEAR, data, MEAN, ROOT), data.arrays()
    assert view.affordable_on_few(posterior, Target(LINEAR), rows) is not None
    assert view.affordable_on_few(posterior, Target(LINEAR, prior=False), rows) is None


def test_few_rows_serve_where_all_are_too_many():
    """The default, of 150,000 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150_000, 4))
    y = (rng.random(150_000) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    model = Model({"w": dist.Normal(jnp.zeros(4), 2.0).to_event(1)}, LOGISTIC.likelihood)
    posterior = tr.infer(model, Data(y, given=x), tr.Laplace(), seed=0, progress=False)
    assert {c.name for c in posterior.report().checks} >= SOUND.keys()
    assert posterior.report().verdict == "trust"
