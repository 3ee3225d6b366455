"""A full-rank normal where a row sees the weights through several numbers: exact where the posterior is normal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Z

import tractable as tr
from tractable.core import approximations
from tractable.core.errors import ModelError
from tractable.core.model import Through, log_density
from tractable.glm.linear import generalised_linear
from tractable.vi import multi_output as several

pytestmark = pytest.mark.test

RNG = np.random.default_rng(8)
N, D, NOISE = 40, 3, 0.6
X = np.column_stack([np.ones(N), RNG.normal(size=N), RNG.normal(size=N)])
X[:, 2] *= np.arange(N) == 7  # a column that one row alone tells of
Y = X @ RNG.normal(size=(D, 2)) + NOISE * RNG.normal(size=(N, 2))
COUNTS = RNG.integers(0, 3, N).astype(float)
SCALES = np.array([[1.0, 2.0], [0.5, 1.5], [3.0, 0.7]])


def outputs(observe=lambda params, eta: dist.Normal(eta, NOISE).to_event(1), prior=None) -> tr.Model:
    """Two outputs of one table, seen with a noise that is known: the posterior is normal."""
    prior = dist.Normal(jnp.zeros((D, 2)), SCALES).to_event(2) if prior is None else prior
    return tr.Model({"w": prior}, Through(lambda params, x: x @ params["w"], observe))


def exact() -> tuple[np.ndarray, np.ndarray, float]:
    """Mean (d,), covariance (d, d) and log evidence of ``outputs`` on counted rows."""
    mean, covariance, evidence = np.zeros((D, 2)), np.zeros((2 * D, 2 * D)), 0.0
    rows = np.repeat(np.arange(N), COUNTS.astype(int))
    for k in range(2):
        prior = np.diag(SCALES[:, k] ** 2)
        precision = np.linalg.inv(prior) + (X * COUNTS[:, None]).T @ X / NOISE**2
        mean[:, k] = np.linalg.solve(precision, (X * COUNTS[:, None]).T @ Y[:, k] / NOISE**2)
        covariance[k::2, k::2] = np.linalg.inv(precision)
        of_y = X[rows] @ prior @ X[rows].T + NOISE**2 * np.eye(len(rows))
        sign, log_det = np.linalg.slogdet(of_y)
        assert sign == 1
        evidence -= (Y[rows, k] @ np.linalg.solve(of_y, Y[rows, k]) + log_det + len(rows) * np.log(2 * np.pi)) / 2
    return mean.ravel(), covariance, evidence


def far(model: tr.Model) -> dict[str, float]:
    """How far a fit is from ``exact``: means and sds in sds, correlations, nats."""
    fitted = tr.infer(model, tr.Data(Y, given=X, weights=COUNTS), tr.FullRank(solver="quadrature"), verify=None)
    mean, covariance, evidence = exact()
    sds = np.sqrt(np.diag(covariance))
    root = np.asarray(approximations.root(fitted.fitted.phi))
    off = (root @ root.T - covariance) / np.outer(sds, sds)
    return {
        "mean": np.abs(np.asarray(fitted.fitted.phi["mean"]) - mean).max() / sds.min(),
        "covariance": np.abs(off).max(), "nats": abs(fitted.found["objective"] - evidence),
    }  # fmt: skip


def test_a_normal_posterior_is_found():
    found = far(outputs())
    assert found["mean"] < 0.02 and found["covariance"] < 0.02 and found["nats"] < 0.02, found


CLASSES = generalised_linear(2, "categorical", 3)
LABELS = tr.Data(RNG.integers(0, 3, N), given=RNG.normal(size=(N, 2)), weights=COUNTS)


@functools.cache
def factors() -> several.Factors:
    found = several.structure(CLASSES, LABELS)
    assert found is not None
    return found


@pytest.mark.laws
def test_the_bound_is_that_of_draws():
    """The ELBO of classes at a q with correlations, against its mean over draws of q."""
    size = CLASSES.space.size
    root = np.tril(0.3 * RNG.normal(size=(size, size)), -1) + np.diag(RNG.uniform(0.3, 1.0, size))
    phi = approximations.of_root(jnp.asarray(RNG.normal(size=size)), jnp.asarray(root))
    q, target = approximations.full_rank(size), log_density(CLASSES, LABELS.arrays(), flat=True)
    zs = jax.vmap(functools.partial(q.sample, phi))(jax.random.normal(jax.random.key(0), (40_000, size)))
    draws = np.asarray(jax.lax.map(lambda z: target(z) - q.log_prob(phi, z), zs, batch_size=1000))
    eps = jnp.asarray(several._points(N, 3, 40))
    bound = several.elbo_function(CLASSES, factors(), LABELS.y, jnp.asarray(COUNTS), eps)
    found = float(bound(phi["mean"], jnp.asarray(root)))
    assert abs(found - draws.mean()) < Z * draws.std() / 200 + 0.02, (found, draws.mean(), draws.std() / 200)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("rows", "numbers", "size", "draws"),
    [(40, 3, 10, 64), (40, 3, 50, 256), (2, 2, 60, 1024), (500, 20, 60, 80)],
)
def test_points_have_the_moments_of_a_normal(rows, numbers, size, draws):
    """4 draws for every number of φ, d (d + 3)/2 in all rows, to the next power of 2: from 64 to 1024, 4 K at least."""
    few = min(rows, 50)
    points = several._points(rows, numbers, size)
    assert points.shape == (rows, draws, numbers)
    np.testing.assert_array_equal(points[:, : draws // 2], -points[:, draws // 2 :])
    covariance = np.einsum("nsk,nsl->nkl", points[:few], points[:few]) / draws
    np.testing.assert_allclose(covariance, np.tile(np.eye(numbers), (few, 1, 1)), atol=1e-10)


@pytest.mark.quick
def test_points_are_no_more_than_fit(monkeypatch):
    monkeypatch.setattr(several, "MOST_VALUES", 40 * 3 * 100)
    assert several._points(40, 3, 50).shape == (40, 100, 3)


@pytest.mark.laws
def test_as_high_as_a_climb_by_draws():
    ours, drawn = (
        tr.infer(CLASSES, LABELS, tr.FullRank(solver=solver, tolerance=0.005), verify=None, seed=1)
        for solver in ("auto", "stochastic")
    )
    assert ours.found["solver"] == "quadrature" and "solver" not in drawn.found
    error = np.hypot(ours.found["elbo error"], drawn.found["elbo error"])
    assert ours.found["elbo"] > drawn.found["elbo"] - Z * error - 0.02
    one, other = ours.unconstrained[0], drawn.unconstrained[0]
    assert np.abs(one.mean(0) - other.mean(0)).max() < 0.15 * other.std(0).min()
    np.testing.assert_allclose(one.std(0), other.std(0), rtol=0.1)


@pytest.mark.parametrize(
    "model",
    [
        outputs(prior=dist.Laplace(jnp.zeros((D, 2)), 1.0).to_event(2)),
        outputs(lambda params, eta: dist.Normal(eta, 0.1 + jnp.abs(params["w"]).mean()).to_event(1)),
        tr.Model({"w": dist.Normal(jnp.zeros((D, 2)), 1.0).to_event(2)}, Through(
            lambda params, x: jnp.sin(x @ params["w"]), lambda params, eta: dist.Normal(eta, 1.0).to_event(1))),
        generalised_linear(D, "normal"),
    ],
    ids=["laplace", "seen beside", "not linear", "one number"],
)  # fmt: skip
def test_other_models_are_left_alone(model):
    y = Y if model.likelihood is not None and model.names != generalised_linear(D, "normal").names else Y[:, 0]
    assert several.structure(model, tr.Data(y, given=X)) is None


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_scale_of_inputs_does_not_matter(scale):
    found = several.structure(CLASSES, tr.Data(LABELS.y, given=scale * np.asarray(LABELS.given)))
    assert found is not None and found.parts.shape == factors().parts.shape


def test_a_mean_field_of_classes_has_none():
    with pytest.raises(ModelError, match="or with FullRank, several predictors"):
        tr.infer(CLASSES, LABELS, tr.MeanField(solver="quadrature"))


def without_counts(right):
    return lambda model, factors, y, counts, eps: right(model, factors, y, None, eps)


def without_prior_width(right):
    def of(model, factors, *rest):
        return right(model, factors._replace(precision=0 * factors.precision), *rest)

    return of


def without_entropy(right):
    def of(*args):
        bound = right(*args)
        return lambda mean, root: bound(mean, root) - jnp.sum(jnp.log(jnp.diag(root))) / 2

    return of


MUTANTS = [without_counts, without_prior_width, without_entropy]


@pytest.mark.test("without_prior_width")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(monkeypatch, mutant):
    monkeypatch.setattr(several, "elbo_function", mutant(several.elbo_function))
    noise = NOISE + 1e-9 * (1 + MUTANTS.index(mutant))  # so that each is compiled anew
    found = far(outputs(lambda params, eta: dist.Normal(eta, noise).to_event(1)))
    assert found["mean"] > 0.02 or found["covariance"] > 0.02, found
