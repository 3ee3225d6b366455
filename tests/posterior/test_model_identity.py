"""A saved posterior goes with its own model alone, with its data or without."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.errors import CheckpointError, TractableWarning
from tractable.core.model import Through
from tractable.engine.identity import kinds_from_json, kinds_of, kinds_to_json

pytestmark = pytest.mark.test

Y = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
X = np.arange(10.0).reshape(5, 2)
GROUP = np.array([0, 1, 0, 1, 2])
MAP = tr.MAP(starts=1)


def plain(prior: Any = None, likelihood: Callable = lambda p: dist.Normal(p["a"], 1.0)) -> tr.Model:
    return tr.Model({"a": dist.Normal(0.0, 1.0) if prior is None else prior}, likelihood)


def linear(scale: float = 1.0, link: Callable = lambda eta: eta) -> tr.Model:
    return tr.Model(
        {"w": dist.Normal(jnp.zeros(2), 1.0).to_event(1)},
        Through(lambda p, x: x @ p["w"], lambda p, eta: dist.Normal(link(eta), scale)),
    )


def nested(shift: float = 0.0) -> tr.Model:
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0)},
        lambda p: {"one": dist.Normal(p["a"], 1.0), "two": dist.Normal(p["a"] + shift, 1.0)},
    )


def grouped(spread: float = 1.0) -> tr.Model:
    return tr.Model(
        {"a": dist.Normal(0.0, 1.0)},
        lambda p: dist.Normal(p["b"], 1.0),
        local=lambda p: {"b": dist.Normal(p["a"], spread)},
    )


def density(power: float = 2.0) -> tr.Model:
    return tr.Model.from_log_density(lambda z: -jnp.sum(jnp.abs(z["a"]) ** power), {"a": jnp.zeros(2)})


WEIGHTED = tr.Data(Y, weights=np.array([1.0, 2.0, 0.0, 1.0, 1.0]))
CASES: dict[str, tuple] = {
    "a prior's scale": (plain, Y, lambda: plain(dist.Normal(0.0, 1.1))),
    "a prior's family": (plain, Y, lambda: plain(dist.Cauchy(0.0, 1.0))),
    "a prior's support": (plain, Y, lambda: plain(dist.HalfNormal(1.0))),
    "a likelihood's scale": (plain, Y, lambda: plain(likelihood=lambda p: dist.Normal(p["a"], 2.0))),
    "a likelihood's family": (plain, Y, lambda: plain(likelihood=lambda p: dist.Laplace(p["a"], 1.0))),
    "what a likelihood sees": (plain, WEIGHTED, lambda: plain(likelihood=lambda p: dist.Normal(-p["a"], 1.0))),
    "a regression's noise": (linear, tr.Data(Y, given=X), lambda: linear(2.0)),
    "a regression's link": (linear, tr.Data(Y, given=X), lambda: linear(link=jnp.tanh)),
    "one of two likelihoods": (nested, {"one": Y, "two": Y}, lambda: nested(0.1)),
    "the spread of groups": (grouped, tr.Data(Y, group=GROUP), lambda: grouped(2.0)),
    "a log density": (density, None, lambda: density(4.0)),
    "whole numbers": (lambda: plain(likelihood=lambda p: dist.Poisson(jnp.exp(p["a"]))), Y.astype(int),
                      lambda: plain(likelihood=lambda p: dist.Poisson(jnp.exp(-p["a"])))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_another_model_is_refused_without_data_too(case, tmp_path):
    make, data, other = CASES[case]
    tr.infer(make(), data, MAP, verify=None, progress=False).save(tmp_path)
    assert tr.load(tmp_path, make()).point is not None  # written again, from the same lines
    assert tr.load(tmp_path, make(), data).point is not None
    for given in (None, data):
        with pytest.raises(CheckpointError, match="is of another model: its log density differs"):
            tr.load(tmp_path, other(), given)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick
def test_kinds_of_rows_are_saved(case):
    _, data, _ = CASES[case]
    kinds = kinds_of(None if data is None else data if isinstance(data, tr.Data) else tr.Data(data))
    again = kinds_from_json(kinds_to_json(kinds))
    assert jax.tree.structure(again) == jax.tree.structure(kinds) and jax.tree.leaves(again) == jax.tree.leaves(kinds)


@pytest.mark.quick
@pytest.mark.parametrize(
    "forged", [3, "rows", [], {"shape": 3}, {"set": []}, {"shape": [2], "dtype": "none"}, {"dict": 3}]
)
def test_forged_kinds_of_rows_are_none(forged):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        kinds_from_json(forged)


def test_a_posterior_saved_in_other_bits_is_compared_in_them(tmp_path):
    """Numbers are traced in as many bits as then; a difference may also be of constants that JAX holds in others."""
    with jax.enable_x64(False):
        tr.infer(plain(dist.Normal(0.1, 1.0)), Y, MAP, verify=None, progress=False).save(tmp_path)
    assert tr.load(tmp_path, plain(dist.Normal(0.1, 1.0))).point is not None
    with pytest.warns(TractableWarning, match="which was saved in float32 by JAX"):
        tr.load(tmp_path, plain(dist.Normal(0.2, 1.0)))
