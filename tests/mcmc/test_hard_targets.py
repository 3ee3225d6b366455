"""Targets on which NUTS with default settings may fail, but must not be trusted where it is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr

pytestmark = [pytest.mark.laws, pytest.mark.computes]


def test_twenty_five_modes_are_not_trusted():
    """Normals of sd 0.5 on a grid of five by five, five apart: chains stay in the modes where they began."""
    centres = jnp.asarray([[a, b] for a in range(-10, 11, 5) for b in range(-10, 11, 5)], float)
    model = tr.Model.from_log_density(
        lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - centres) ** 2, 1) / 0.25), jnp.zeros(2)
    )
    posterior = tr.infer(model, None, tr.NUTS(), progress=False)
    assert posterior.report().verdict != "trust"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_centred_funnel_is_not_trusted(seed):
    """Neal's funnel in ten dimensions: its neck is narrower than any step."""

    def density(z):
        widths = jnp.exp(z["v"] / 2)
        return dist.Normal(0.0, 3.0).log_prob(z["v"]) + dist.Normal(0.0, widths).log_prob(z["x"]).sum()

    model = tr.Model.from_log_density(density, {"v": jnp.zeros(()), "x": jnp.zeros(9)})
    posterior = tr.infer(model, None, tr.NUTS(), seed=seed, progress=False)
    assert posterior.report().verdict != "trust"


def test_centred_stochastic_volatility_is_right_or_not_trusted():
    """h_t = μ + φ (h_{t−1} − μ) + σ e_t in its usual parameters, against the same model in standard normals e_t."""
    rng = np.random.default_rng(0)
    h = np.zeros(100)
    for t in range(1, 100):
        h[t] = 0.95 * h[t - 1] + 0.2 * rng.normal()
    y = np.exp(h / 2) * rng.normal(size=100)

    def hyper(z):
        prior = dist.Normal(0.0, 1.0).log_prob(z["mu"]) + dist.Normal(0.0, 1.0).log_prob(z["atanh"] - 1.5)
        return prior + dist.Normal(-1.5, 0.5).log_prob(z["log_sd"]), jnp.tanh(z["atanh"]), jnp.exp(z["log_sd"])

    def path(z):
        """h from standard normals, its first element from the stationary law."""
        _, slope, sd = hyper(z)

        def step(before, e):
            now = z["mu"] + slope * (before - z["mu"]) + sd * e
            return now, now

        first = z["mu"] + sd / jnp.sqrt(1 - slope**2) * z["e"][0]
        return jnp.concatenate([first[None], jax.lax.scan(step, first, z["e"][1:])[1]])

    def centred(z):
        prior, slope, sd = hyper(z)
        first = dist.Normal(z["mu"], sd / jnp.sqrt(1 - slope**2)).log_prob(z["h"][0])
        steps = dist.Normal(z["mu"] + slope * (z["h"][:-1] - z["mu"]), sd).log_prob(z["h"][1:]).sum()
        return prior + first + steps + dist.Normal(0.0, jnp.exp(z["h"] / 2)).log_prob(y).sum()

    def standard(z):
        normals = dist.Normal(0.0, 1.0).log_prob(z["e"]).sum()
        return hyper(z)[0] + normals + dist.Normal(0.0, jnp.exp(path(z) / 2)).log_prob(y).sum()

    start = {"mu": jnp.zeros(()), "atanh": jnp.asarray(1.5), "log_sd": jnp.asarray(-1.5)}
    names = list(start)
    truth = tr.infer(
        tr.Model.from_log_density(standard, start | {"e": jnp.zeros(100)}), None, tr.NUTS(draws=2000, target=0.95),
        progress=False, verify=None,
    )  # fmt: skip
    posterior = tr.infer(
        tr.Model.from_log_density(centred, start | {"h": jnp.zeros(100)}), None, tr.NUTS(), progress=False
    )
    assert np.nanmax(truth.diagnosed.rhat) < 1.01
    errors = [abs(posterior.mean()[k] - truth.mean()[k]) / truth.sd()[k] for k in names]
    ratios = [posterior.sd()[k] / truth.sd()[k] for k in names]
    right = max(errors) < 0.2 and max(np.abs(np.log(ratios))) < np.log(1.25)
    assert right or posterior.report().verdict != "trust"
