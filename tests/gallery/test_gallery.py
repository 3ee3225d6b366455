"""Every example builds, its density is finite, and its exact answer is that of its own model and data."""

import jax
import numpy as np
import pytest
from scipy import stats

from tractable.core.errors import DataError
from tractable.core.model import log_density
from tractable.gallery import conjugate
from tractable.gallery import models as gallery

pytestmark = pytest.mark.laws

EXACT = [name for name, each in gallery.EXAMPLES.items() if each.exact]


@pytest.mark.parametrize("name", gallery.EXAMPLES)
def test_builds(name):
    each = gallery.example(name)
    model, train, held_out = each.build()
    assert each.name == name and "\n" not in each.title
    assert each.build()[0] is model
    assert each.build()[1].fingerprint == train.fingerprint
    params = model.sample_prior(jax.random.key(0))
    for data in (train, held_out):
        if data is not None:
            assert np.isfinite(model.log_likelihoods(params, data.arrays())).all()


@pytest.mark.parametrize("name", gallery.EXAMPLES)
def test_gradient_is_finite_in_both_precisions(name):
    for precision in (True, False):
        with jax.enable_x64(precision):
            model, train, _ = gallery.example(name).build()
            position = model.space.ravel(model.unconstrain(model.sample_prior(jax.random.key(0))))
            slope = jax.jit(jax.grad(log_density(model, train.arrays(), flat=True)))(position)
            assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", EXACT)
def test_exact_answers_are_shaped_like_the_parameters(name):
    model, _, _ = gallery.example(name).build()
    params = model.sample_prior(jax.random.key(0))
    exact = gallery.example(name).exact()
    assert exact.keys() == params.keys()
    for parameter, (mean, sd) in exact.items():
        assert mean.shape == sd.shape == params[parameter].shape
        assert (sd > 0).all()


@pytest.mark.parametrize("name", EXACT)
def test_evidence_is_joint_over_posterior(name):
    """log p(y) = log p(y, θ) − log p(θ | y) at any θ: prior, likelihood, posterior and evidence agree."""
    each = gallery.example(name)
    model, data, _ = each.build()
    exact = each.exact()
    ((parameter, (mean, sd)),) = exact.items()
    if name == "beta-bernoulli":
        posterior = conjugate.beta_bernoulli(data.y, 5, 5)
        value = np.asarray(0.5)
        density = stats.beta.logpdf(value, posterior.alpha, posterior.beta)
    elif name == "normal-mean":
        value = mean + 0.3 * sd
        density = stats.norm.logpdf(value, mean, sd)
    elif name == "linear-regression":
        value = mean + 0.3 * sd
        posterior = conjugate.linear_regression(data.given, data.y, 0.7, 1.0)
        density = stats.multivariate_normal.logpdf(value, posterior.mean, posterior.covariance)
    else:
        grid = each.grid()
        i, j = np.unravel_index(grid.density.argmax(), grid.density.shape)
        value = np.array([grid.first[i], grid.second[j]])
        density = np.log(grid.density[i, j])
    params = {parameter: value}
    joint = model.log_prior(params) + model.log_likelihoods(params, data.arrays()).sum()
    np.testing.assert_allclose(each.log_evidence(), joint - density, atol=1e-8)


@pytest.mark.quick
def test_mixture_has_two_modes():
    grid = gallery.example("gaussian-mixture").grid()
    marginal = grid.density.sum(0)
    above = grid.second > 0
    peaks = [grid.density * chosen for chosen in (above, ~above)]
    (a, b), (c, d) = (np.unravel_index(p.argmax(), p.shape) for p in peaks)
    np.testing.assert_allclose([grid.first[a], grid.second[b]], [0, 1], atol=0.15)
    np.testing.assert_allclose([grid.first[c], grid.second[d]], [1, -1], atol=0.15)
    valley = marginal[np.abs(grid.second) < 0.2].max()
    assert valley < 0.6 * min(marginal[above].max(), marginal[~above].max())
    np.testing.assert_allclose(marginal[above].sum() / marginal.sum(), 0.5, atol=0.05)


@pytest.mark.quick
def test_mixture_grid_has_converged():
    fine = conjugate.mixture_grid(gallery.mixture(), n=321)
    grid = gallery.example("gaussian-mixture").grid()
    np.testing.assert_allclose(grid.log_mass, fine.log_mass, atol=1e-8)
    np.testing.assert_allclose(grid.sd, fine.sd, atol=1e-8)


@pytest.mark.test
@pytest.mark.parametrize("name", ["breast-cancer", "wine", "diabetes"])
def test_held_out_rows_are_a_fifth_and_standardised_by_the_rest(name):
    _, train, held_out = gallery.example(name).build()
    np.testing.assert_allclose(held_out.size / (train.size + held_out.size), 0.2, atol=0.005)
    np.testing.assert_allclose(train.given.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(train.given.std(0), 1)
    assert np.abs(held_out.given.mean(0)).max() > 1e-3
    if name == "diabetes":
        np.testing.assert_allclose([train.y.mean(), train.y.std()], [0, 1], atol=1e-12)


@pytest.mark.quick
def test_unknown_name():
    with pytest.raises(DataError, match="no example 'coin'; expected one of beta-bernoulli, normal-mean"):
        gallery.example("coin")
