"""What q's posterior offers beside the contract: pruning, fresh draws, exact moments, linearised predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.errors import CheckpointError, ModelError, SettingsError
from tractable.glm import linear
from tractable.points.laplace import last_layer, linearise

pytestmark = pytest.mark.laws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, -0.5, 0.0] + 0.3 * RNG.normal(size=60)
DATA = tr.Data(Y, X)
LINEAR = tr.models.linear.bayesian_linear(3, 0.3, 1.0)
NET = tr.models.neural_network(tr.models.mlp(3, (4,), 1, activation="tanh"), noise=0.3)


@pytest.fixture(scope="module")
def fitted():
    return tr.infer(LINEAR, DATA, tr.MeanField(draws=50))


def test_moments_are_those_of_q_and_not_of_its_draws(fitted):
    precision = X.T @ X / 0.09 + np.eye(3)
    exact = np.linalg.solve(precision, X.T @ Y / 0.09)
    np.testing.assert_allclose(fitted.mean()["weights"], exact, atol=1e-5)
    np.testing.assert_allclose(fitted.sd()["weights"], 1 / np.sqrt(np.diag(precision)), rtol=1e-4)


def test_draws_are_fresh(fitted):
    a, b = (fitted.sample(seed, 20_000)["weights"] for seed in (1, 2))
    assert not np.any(a == b)
    z = (a.mean(0) - fitted.mean()["weights"]) / (fitted.sd()["weights"] / np.sqrt(20_000))
    assert np.all(np.abs(z) < 5.33)


@pytest.mark.test
def test_pruned(fitted):
    """The weight that is noise goes first; the others stay as they were; a pruned weight is 0 in every draw."""
    mean, sd = fitted.mean()["weights"], fitted.sd()["weights"]
    least = int(np.argmin(np.abs(mean) / sd))
    pruned = fitted.pruned(0.34)
    values = pruned.values[0]
    assert np.all(values[:, least] == 0) and least == 2
    assert np.all(np.delete(values, least, 1) == np.delete(fitted.values[0], least, 1))
    assert np.all(np.isfinite(pruned.predict(X[:5]).mean))
    for share in (-0.1, 1.0):
        with pytest.raises(SettingsError, match="share"):
            fitted.pruned(share)
    with pytest.raises(SettingsError, match="mean-field"):
        tr.infer(LINEAR, DATA, tr.MAP()).pruned(0.5)


@pytest.mark.test
def test_last_layer_is_found():
    """Output weights and bias of the network, and nothing else."""
    names = NET.space.names
    assert {names[i].split("[")[0] for i in last_layer(NET, DATA)} == {"weights.layer1.weight", "weights.layer1.bias"}


def test_linearised_at_the_mode_is_the_network_there():
    """Value and first derivative agree with the network's at the mode; along a line it is straight."""
    mode = NET.space.ravel(NET.unconstrain(NET.start(jax.random.key(0))))
    straight = linearise(NET, mode)
    assert NET.likelihood is not None and straight.likelihood is not None
    direction = jax.random.normal(jax.random.key(1), mode.shape)

    def along(model, t):
        return model.likelihood(model.constrain(model.space.unravel(mode + t * direction)), jnp.asarray(X[0])).mean

    np.testing.assert_allclose(along(straight, 0.0), along(NET, 0.0), atol=1e-12)
    slope = [jax.grad(lambda t, m=m: along(m, t))(0.0) for m in (NET, straight)]
    np.testing.assert_allclose(*slope, rtol=1e-10)
    np.testing.assert_allclose(along(straight, 2.0) - along(straight, 1.0), slope[1], rtol=1e-9)


def test_laplace_of_a_normal_posterior_is_exact():
    """Hessian and Gauss–Newton both, and the diagonal is 1/Λᵢᵢ."""
    precision = X.T @ X / 0.09 + np.eye(3)
    for curvature in ("hessian", "gauss-newton"):
        found = tr.infer(LINEAR, DATA, tr.Laplace(curvature=curvature, draws=10))
        np.testing.assert_allclose(found.sd()["weights"], np.sqrt(np.diag(np.linalg.inv(precision))), rtol=1e-8)
        narrow = tr.infer(LINEAR, DATA, tr.Laplace(curvature=curvature, structure="diagonal", draws=10))
        np.testing.assert_allclose(narrow.sd()["weights"], 1 / np.sqrt(np.diag(precision)), rtol=1e-8)


def test_laplace_refuses_a_ridge():
    ridge = tr.Model.from_log_density(lambda z: -jnp.square(z[0] - z[1]), jnp.zeros(2))
    with pytest.raises(ModelError, match="ridge"):
        tr.infer(ridge, None, tr.Laplace())


@pytest.mark.test
def test_quadrature_refuses_what_it_cannot_integrate():
    with pytest.raises(ModelError, match="linear predictor"):
        tr.infer(NET, DATA, tr.MeanField(solver="quadrature"))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: tr.MeanField(samples=0), "samples"),
        (lambda: tr.MeanField(gradient="score", samples=1), "samples"),
        (lambda: tr.MeanField(gradient="pathwise"), "gradient"),
        (lambda: tr.MeanField(tempering=(4.0, 0.5)), r"tempering=.*temperatures ≥ 1; got 0.5 as member 1"),
        (lambda: tr.BayesByBackprop(kl_weights="equal"), "kl_weights"),
        (lambda: tr.BayesByBackprop(noise="dropout"), "noise"),
        (lambda: tr.BayesByBackprop(sd=0.0), "sd"),
        (lambda: tr.Laplace(structure="kronecker"), "structure"),
        (lambda: tr.DeepEnsemble(size=1), "size"),
        (lambda: tr.DeepEnsemble(member=tr.DeepEnsemble()), "member"),
        (lambda: tr.LowRank(rank=0), "rank"),
    ],
)
def test_settings_that_cannot_be(method, message):
    with pytest.raises(SettingsError, match=message):
        method()


@pytest.mark.quick
def test_geometric_weights_that_underflow_are_noted():
    data = tr.Data(np.zeros(300), np.zeros((300, 3)))
    with pytest.warns(UserWarning, match="geometric"):
        tr.BayesByBackprop(batch_size=2, kl_weights="geometric").plan(data)


def test_local_noise_needs_a_network_to_look_into():
    model = tr.Model({"w": dist.Normal(jnp.zeros(3), 1.0)}, lambda p, x: dist.Normal(x @ p["w"], 0.3))
    with pytest.raises(ModelError, match="Through"):
        tr.infer(model, DATA, tr.BayesByBackprop(noise="local", epochs=2))


@pytest.mark.parametrize("noise", ["local", "flipout"])
def test_noise_that_rows_do_not_share_learns_too(noise):
    """A network's own loop with batches of unequal size."""
    posterior = tr.infer(NET, DATA, tr.BayesByBackprop(noise=noise, batch_size=16, epochs=60, learning_rate=0.02))
    assert posterior.found["objective"] > -150 and np.all(np.isfinite(posterior.values))


def test_a_folder_is_one_run_s_however_soon_it_ends(tmp_path):
    """By quadrature nothing is saved on the way: asked for again the run is the same, and another one is refused."""
    model = linear.generalised_linear(X.shape[1], "normal")
    first = tr.infer(model, DATA, tr.MeanField(), seed=2, checkpoint=tmp_path)
    again = tr.infer(model, DATA, tr.MeanField(), seed=2, checkpoint=tmp_path)
    assert first.found["solver"] == "quadrature"
    np.testing.assert_array_equal(again.unconstrained, first.unconstrained)
    loaded = tr.load(tmp_path, model, DATA)
    np.testing.assert_array_equal(loaded.unconstrained, first.unconstrained)
    with pytest.raises(CheckpointError, match="holds another run"):
        tr.infer(model, DATA, tr.MeanField(), seed=3, checkpoint=tmp_path)


@pytest.mark.test
def test_what_has_no_draws_streams_none(tmp_path):
    with pytest.raises(SettingsError, match="no draws to stream"):
        tr.infer(linear.generalised_linear(X.shape[1], "normal"), DATA, tr.MAP(), draws=tmp_path)
