"""Counts of operations, beside XLA's own of programs without loops, and by hand where there are some."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.diagnostics.operations import operations
from tractable.diagnostics.target import Target, gradient_work

pytestmark = pytest.mark.test

X = jnp.linspace(-1, 1, 40 * 3).reshape(40, 3)
W = jnp.linspace(0, 1, 3)


def _by_xla(function, *arguments):
    found = jax.jit(function).lower(*arguments).cost_analysis()
    return found.get("flops", 0.0) + 10 * found.get("transcendentals", 0.0)


def _loss(shown):
    return jax.value_and_grad(lambda w, y: jnp.sum(shown(X @ w).log_prob(y)))


CASES = {
    "normal": _loss(lambda eta: dist.Normal(eta, 1.0)),
    "logistic": _loss(lambda eta: dist.Bernoulli(logits=eta)),
    "counts": _loss(lambda eta: dist.Poisson(jnp.exp(eta))),
    "network": jax.value_and_grad(lambda w, y: jnp.sum(jnp.tanh(jnp.outer(jnp.tanh(X @ w), y) @ jnp.outer(y, y)))),
    "lgamma": lambda w, y: jax.lax.lgamma(y),
    "branch": lambda w, y: jax.lax.cond(w[0] > 0, lambda w: jnp.sin(w), lambda w: w, w),
}


@pytest.mark.laws
@pytest.mark.parametrize("name", CASES)
def test_a_count_is_near_the_compilers(name):
    program = CASES[name]
    counted = operations(jax.make_jaxpr(program)(W, jnp.ones(40)))
    assert counted == pytest.approx(_by_xla(program, W, jnp.ones(40)), rel=0.25, abs=5)


def test_products_are_counted_exactly():
    for a, b, times in (((7, 5), (5, 11), 7 * 5 * 11), ((4, 7, 5), (4, 5, 2), 4 * 7 * 5 * 2)):
        assert operations(jax.make_jaxpr(jnp.matmul)(jnp.ones(a), jnp.ones(b))) == 2 * times
    images, kernel = jnp.ones((2, 9, 9, 3)), jnp.ones((4, 4, 3, 8))
    numbers = ("NHWC", "HWIO", "NHWC")
    program = jax.make_jaxpr(
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=numbers)
    )
    assert operations(program(images, kernel)) == 2 * (2 * 6 * 6 * 8) * (4 * 4 * 3)


def test_a_loop_of_known_length_counts_every_turn():
    def steps(count):
        return operations(
            jax.make_jaxpr(lambda w: jax.lax.scan(lambda w, _: (jnp.sin(w) + w, None), w, length=count))(W)
        )

    assert steps(100) == 100 * steps(1) == 100 * 3 * 11
    unknown = jax.make_jaxpr(lambda w, n: jax.lax.fori_loop(0, n, lambda i, w: jnp.sin(w) + w, w))(W, 7)
    assert 33 <= operations(unknown) < 40


def test_the_work_of_a_gradient_grows_with_the_rows():
    model = tr.Model({"w": dist.Normal(jnp.zeros(3), 1.0).to_event(1)}, lambda t, x: dist.Normal(x @ t["w"], 1.0))
    few, many = (tr.Data(np.zeros(n), given=np.zeros((n, 3))).arrays() for n in (1000, 100_000))
    assert gradient_work(Target(model), many) == pytest.approx(100 * gradient_work(Target(model), few), rel=0.5)
