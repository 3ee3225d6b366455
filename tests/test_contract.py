"""Every public kernel keeps the contract."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from contract import check_kernel

from tractable import kernels
from tractable.core import schedules
from tractable.core.model import Batch, Objective
from tractable.sgmcmc.gradients import control_variates

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("strict_ranks")]

BATCH = Batch((jnp.array([0.5, -1.0, 2.0]), None), jnp.array([1.0, 1.0, 0.0]), 7, 0, 3)
CHOLESKY = [[1.0, 0.0], [0.4, 0.8]]


def tree_position(dtype: Any) -> dict:
    return {"a": jnp.array([0.3, -0.2], dtype), "b": jnp.array(0.1, dtype)}


def flat_position(dtype: Any) -> jax.Array:
    return jnp.array([0.3, -0.2], dtype)


def log_density(position: Any) -> jax.Array:
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))


def log_posterior(position: Any, batch: Batch) -> jax.Array:
    terms = -0.5 * (batch.data[0] - jax.tree.leaves(position)[0][0]) ** 2
    return log_density(position) + batch.scale * jnp.sum(batch.mask * terms)


def anchored(log_posterior: Any) -> Any:
    def estimate(position: Any, batch: Batch) -> Any:
        zero = jax.tree.map(jnp.zeros_like, position)
        return control_variates(log_posterior, zero, zero)(position, batch)

    return estimate


def with_matrix(make: Any) -> Any:
    return lambda dtype: (make(jnp.array(CHOLESKY, dtype)), flat_position(dtype))


def on_trees(kernel: Any) -> Any:
    return lambda dtype: (kernel, tree_position(dtype))


def shaped(make: Any) -> Any:
    """A scale for every coordinate of a pytree."""
    scale = {"a": [0.5, 2.0], "b": 0.7}

    def of(dtype: Any) -> tuple:
        leaves = {"a": jnp.array(scale["a"], dtype), "b": jnp.array(scale["b"], dtype)}
        return make(leaves), tree_position(dtype)

    return of


def uniform(dtype: Any) -> Any:
    def sample(key: jax.Array) -> dict:
        a, b = jax.random.split(key)
        return {"a": jax.random.uniform(a, (2,), dtype), "b": jax.random.uniform(b, (), dtype)}

    return sample


OBJECTIVE = Objective(
    lambda key, count, params: jax.random.normal(key, (count,)),
    lambda noise, params, batch: log_posterior(params, batch) + 0.1 * noise * params["b"],
)
STOCHASTIC = {
    "ascend": on_trees(kernels.ascend(OBJECTIVE, optax.adam(0.1))),
    "sgld": on_trees(kernels.sgld(log_posterior, 0.1)),
    "sgld schedule": on_trees(kernels.sgld(log_posterior, schedules.polynomial(0.1, 2.0))),
    "sgld rmsprop": on_trees(kernels.sgld(log_posterior, 0.1, preconditioner=kernels.rmsprop())),
    "sgld vector": shaped(lambda s: kernels.sgld(log_posterior, 0.1, preconditioner=kernels.fixed(s))),
    "sgld matrix": with_matrix(
        lambda s: kernels.sgld(log_posterior, 0.1, preconditioner=kernels.fixed(s), noise_scale=0.3 * s)
    ),
    "sgld control variates": on_trees(kernels.sgld(log_posterior, 0.1, gradient=anchored)),
    "sghmc": on_trees(kernels.sghmc(log_posterior, 0.1, 0.2)),
    "sghmc matrix": with_matrix(lambda s: kernels.sghmc(log_posterior, 0.1, 0.2, preconditioner=kernels.fixed(s))),
}
EXACT = {
    "hmc": lambda dtype: (
        kernels.hmc(log_density, 0.3, jnp.ones(3, dtype), 4),
        tree_position(dtype),
    ),
    "nuts": lambda dtype: (
        kernels.nuts(log_density, 0.3, jnp.ones(3, dtype), 4),
        tree_position(dtype),
    ),
    "microcanonical": lambda dtype: (
        kernels.microcanonical(log_density, 0.3, jnp.ones(3, dtype), 1.6),
        tree_position(dtype),
    ),
    "microcanonical unadjusted": lambda dtype: (
        kernels.microcanonical(log_density, 0.3, jnp.ones(3, dtype), 1.6, adjusted=False),
        tree_position(dtype),
    ),
    "mala": on_trees(kernels.mala(log_density, 0.5)),
    "mala vector": shaped(lambda s: kernels.mala(log_density, 0.5, s)),
    "mala matrix": with_matrix(lambda s: kernels.mala(log_density, 0.5, s)),
    "mala summands": with_matrix(lambda s: kernels.mala(lambda x: -0.5 * x**2, 0.5, s)),
    "random walk": on_trees(kernels.random_walk(log_density, 0.5)),
    "random walk vector": shaped(lambda s: kernels.random_walk(log_density, 0.5, s)),
    "random walk matrix": with_matrix(lambda s: kernels.random_walk(log_density, 0.5, s)),
    "rejection": lambda dtype: (
        kernels.rejection(uniform(dtype), log_density, 0.0, width=4),
        tree_position(dtype),
    ),
}


@pytest.mark.test("sgld", "sgld rmsprop", "sghmc", "ascend")
@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic(name):
    check_kernel(STOCHASTIC[name], BATCH)


@pytest.mark.test("rejection", "random walk", "hmc", "mala")
@pytest.mark.parametrize("name", EXACT)
def test_exact(name):
    check_kernel(EXACT[name])


def test_every_kernel_is_here():
    words = {
        "Block",
        "Expected",
        "Proposal",
        "annealed",
        "enumerated",
        "observed",
        "asymmetric",
        "fixed",
        "gaussian",
        "langevin",
        "metropolis",
        "rmsprop",
    }
    tested = {name.replace("random walk", "random_walk").split()[0] for name in STOCHASTIC | EXACT}
    elsewhere = {"em", "online_em", "gibbs"}  # latent/test_em.py and mcmc/test_gibbs.py hold them to it
    assert tested == set(kernels.__all__) - words - elsewhere
