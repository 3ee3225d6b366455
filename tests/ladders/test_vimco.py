"""VIMCO and leave-one-out: all (states)^K draws of a net of 8 states, against the K-sample bound and the ELBO.

The law takes ``slope``, ``(params, x, walk, batch) -> (value, gradient)``; a wrong one breaks it.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Scores, assert_holds, broken, error

from tractable.core.errors import SettingsError
from tractable.core.model import Batch
from tractable.ladders.ladders import sigmoid_belief_network
from tractable.ladders.score import (
    Memory,
    Reductions,
    begin_baselines,
    gains,
    multisample_slope_at,
    nvil,
    slope_at,
    vimco,
)

pytestmark = pytest.mark.laws

PyTree = Any
EXACT = 1e-10
SIZE = 7
NET = sigmoid_belief_network(3, (2, 1), weight_sd=1.3)
X = jnp.array([[1.0, 0.0, 1.0]])
MEMORY = Memory(jnp.array([-3.2, -0.7]), jnp.array([5.1, 0.2]), jnp.array(0.7))


def moved(tree: PyTree, seed: int) -> PyTree:
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(structure, [a + jax.random.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)])


PARAMS = moved(NET.initial(jax.random.key(1)), 2)
PSI = moved(begin_baselines(NET, jax.random.key(3), 3), 4)


def weighed(params: PyTree) -> tuple[jax.Array, jax.Array]:
    """log w and log q of every state, (8,)."""
    assert NET.causes is not None
    h = tuple(h[:, None] for h in NET.causes)
    log_q = jnp.sum(jnp.stack(NET.log_q(params, X[None], h)), 0)[:, 0]
    return jnp.sum(jnp.stack(NET.log_p(params["theta"], X[None], h)), 0)[:, 0] - log_q, log_q


def tuples(samples: int) -> jax.Array:
    return jnp.array(list(itertools.product(range(8), repeat=samples)))  # (8^K, K)


def bound(params: PyTree, samples: int) -> jax.Array:
    """Σ over all K-tuples of ∏ q · log (1/K) Σ w, in the sum scale."""
    log_w, log_q = weighed(params)
    every = tuples(samples)
    chance = jnp.exp(jnp.sum(log_q[every], axis=1))
    told = jnp.log(jnp.mean(jnp.exp(log_w[every]), axis=1))
    return SIZE * jnp.sum(chance * told) + NET.log_prior(params["theta"])


def mean_slope(slope: Callable, params: PyTree, samples: int) -> tuple[jax.Array, PyTree]:
    assert NET.causes is not None
    causes, batch = NET.causes, Batch((X, None), jnp.ones(1), SIZE)

    def one(chosen: jax.Array) -> tuple[jax.Array, PyTree]:
        h = tuple(h[chosen][:, None] for h in causes)  # (K, 1, units)
        return slope(params, X, lambda p: NET.infer(p, X[None], lambda i, q: h[i]), batch)

    every = tuples(samples)
    chance = jnp.exp(jnp.sum(weighed(params)[1][every], axis=1))
    return jax.tree.map(lambda a: jnp.tensordot(chance, a, 1), jax.vmap(one)(every))


def unbiased(slope: Callable, samples: int, params: PyTree, wanted: Callable) -> Scores:
    """The mean over all tuples of draws is the wanted value and its gradient."""
    (value, gradient), (best, right) = jax.jit(
        lambda p: (mean_slope(slope, p, samples), jax.value_and_grad(wanted)({k: p[k] for k in ("theta", "phi")}))
    )(params)
    scores = {"value": error(value, best, EXACT)}
    for part, each in right.items():
        pairs = zip(jax.tree.leaves(gradient[part]), jax.tree.leaves(each), strict=True)
        scores[part] = max(error(a, b, EXACT) for a, b in pairs)
    return scores


def of_vimco(params: PyTree, x: Any, walk: Callable, batch: Batch) -> tuple:
    return multisample_slope_at(NET, params, lambda part: (x, walk), batch)


@pytest.mark.test
@pytest.mark.parametrize("samples", [2, 3])
def test_vimco_is_unbiased_for_the_bound_of_several_draws(samples):
    assert_holds(unbiased(of_vimco, samples, PARAMS, lambda p: bound(p, samples)))


@pytest.mark.test("switches0")
@pytest.mark.parametrize(
    "switches",
    [
        Reductions(False, None, False, False, leave_one_out=True),
        Reductions(True, "layers", False, True, leave_one_out=True),
    ],
)
def test_leave_one_out_is_unbiased_for_the_elbo(switches):
    params = PARAMS | ({} if switches.baseline is None else {"psi": PSI})
    slope = lambda p, x, walk, batch: slope_at(NET, switches, p, lambda part: (x, walk), batch, MEMORY)[:2]  # noqa: E731
    assert_holds(unbiased(slope, 2, params, lambda p: bound(p, 1)))


def log_mean(log_w: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(log_w, axis=0) - jnp.log(log_w.shape[0])


def written(weigh: Callable, *, pathwise: bool = True) -> Callable:
    """VIMCO's slope with other weights of ∇ log q."""

    def slope(params: PyTree, x: Any, walk: Callable, batch: Batch) -> tuple:
        def surrogate(params: PyTree) -> tuple:
            h, q = walk(params)
            log_q = jnp.sum(jnp.stack([q_i.log_prob(h_i) for q_i, h_i in zip(q, h, strict=True)]), 0)
            log_w = jnp.sum(jnp.stack(NET.log_p(params["theta"], x[None], h)), 0) - log_q
            through = log_mean(log_w if pathwise else jax.lax.stop_gradient(log_w))
            climbed = through + jnp.sum(jax.lax.stop_gradient(weigh(log_w)) * log_q, axis=0)
            prior = NET.log_prior(params["theta"])
            return SIZE * jnp.sum(climbed) + prior, SIZE * jnp.sum(log_mean(log_w)) + prior

        (_, value), gradient = jax.value_and_grad(surrogate, has_aux=True)(params)
        return value, gradient

    return slope


def with_own_weight(log_w: jax.Array) -> jax.Array:
    """The geometric mean of all K, the left-out one among them."""
    count = log_w.shape[0]
    mean = jnp.broadcast_to(jnp.mean(log_w, axis=0, keepdims=True), log_w.shape)
    without = jnp.where(jnp.eye(count, dtype=bool)[:, :, None], mean[:, None], log_w[None])
    return log_mean(log_w)[None] - jax.vmap(log_mean)(without)


WRONG = {
    "its own weight in the mean": written(with_own_weight),
    "no pathwise part": written(gains, pathwise=False),
    "sign": written(lambda log_w: -gains(log_w)),
    "mean of the gains": written(lambda log_w: gains(log_w) / log_w.shape[0]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_slopes_are_caught(name):
    assert "phi" in broken(unbiased(WRONG[name], 2, PARAMS, lambda p: bound(p, 2)))


def test_the_reference_itself_is_right():
    assert_holds(unbiased(written(gains), 2, PARAMS, lambda p: bound(p, 2)))


@pytest.mark.test
def test_gains_are_the_papers():
    """A loop over k, in ordinary numbers: (1/K)(Σ_{j≠k} w_j + (∏_{j≠k} w_j)^{1/(K−1)}). And far from 1."""
    log_w = np.random.default_rng(0).normal(size=(5, 3)) * 2
    w, wanted = np.exp(log_w), np.zeros((5, 3))
    for k, row in itertools.product(range(5), range(3)):
        others = np.delete(w[:, row], k)
        wanted[k, row] = np.log(w[:, row].mean()) - np.log((others.sum() + np.prod(others) ** 0.25) / 5)
    np.testing.assert_allclose(gains(jnp.asarray(log_w)), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(gains(jnp.asarray(log_w - 5000)), wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.test
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: vimco(NET, samples=1), "whole number ≥ 2"),
        (lambda: nvil(NET, leave_one_out=True), "leave_one_out"),
        (lambda: nvil(NET, samples=0), "whole number ≥ 1"),
        (lambda: nvil(NET, baseline="rows"), "baseline is one of"),
        (lambda: nvil(NET, decay=1.0), "in \\[0, 1\\)"),
        (lambda: begin_baselines(NET, jax.random.key(0), 0), "hidden"),
    ],
)
def test_what_cannot_be_is_said(make, sentence):
    with pytest.raises(SettingsError, match=sentence):
        make()
