"""Sigmoid belief networks: their density by hand, and the sentences about sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import assert_holds, error, z_mean

from tractable.core.errors import ModelError
from tractable.ladders.ladders import sigmoid_belief_network
from tractable.ladders.layers import categorical

pytestmark = pytest.mark.laws


def log_bernoulli(x: np.ndarray, eta: np.ndarray) -> float:
    p = 1 / (1 + np.exp(-eta))
    return float(np.sum(np.where(x > 0, np.log(p), np.log1p(-p))))


def test_the_density_is_the_products_of_sigmoids():
    net = sigmoid_belief_network(3, (2, 1), between=4)
    params = net.initial(jax.random.key(0))
    theta = jax.tree.map(lambda a: np.asarray(a) + 0.3, params["theta"])

    def eta(layer: dict, h: np.ndarray) -> np.ndarray:
        first, last = layer["layer0"], layer["layer1"]
        return np.tanh(h @ first["weight"] + first["bias"]) @ last["weight"] + last["bias"]

    x, total, scores, log_p = np.array([1.0, 0.0, 1.0]), 0.0, {}, jax.jit(net.log_p)
    for i, h in enumerate((a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)):
        h1, h2 = np.array(h[:2]), np.array(h[2:])
        wanted = [
            log_bernoulli(x, eta(theta["x"], h1)), log_bernoulli(h1, eta(theta["h1"], h2)),
            log_bernoulli(h2, theta["h2"]["bias"]),
        ]  # fmt: skip
        got = log_p(theta, x[None], (h1[None].astype(float), h2[None].astype(float)))
        scores[f"state {i}"] = error(np.ravel(got), wanted, 1e-12)
        total += np.exp(sum(wanted))
    evidence = jax.jit(net.summed_out)(theta, x[None])[0]
    assert_holds(scores | {"evidence": error(evidence, np.log(total), 1e-12)})


def test_what_it_draws_has_the_density_it_says():
    net = sigmoid_belief_network(3, (2, 1), family=categorical(3))
    theta = net.initial(jax.random.key(3))["theta"]
    x, h = jax.jit(lambda key: net.dreamt(key, theta, 20_000))(jax.random.key(1))
    every = ((np.arange(8)[:, None] >> np.arange(3)[None]) & 1).astype(float)
    p = np.exp(np.asarray(net.summed_out(theta, jnp.asarray(every))))
    assert abs(p.sum() - 1) < 1e-12 and int(h[0].max()) == 2
    seen = np.asarray(x) @ np.array([1, 2, 4])
    assert_holds({str(i): z_mean(seen == i, p[i], p[i] * (1 - p[i])) for i in range(8)}, 20_000)


def test_widths_between_are_mirrored_by_the_inference_network():
    net = sigmoid_belief_network(6, (4, 3), between=(5, 7))
    shapes = jax.tree.map(jnp.shape, net.initial(jax.random.key(0)))
    assert [shapes["theta"]["x"][f"layer{i}"]["weight"] for i in range(3)] == [(4, 5), (5, 7), (7, 6)]
    assert [shapes["phi"]["layers"]["h1"][f"layer{i}"]["weight"] for i in range(3)] == [(6, 7), (7, 5), (5, 4)]
    assert net.recognition.upward and net.depth == 2 and net.discrete == [1, 2]


def test_the_same_arguments_are_the_same_object():
    one = sigmoid_belief_network(6, (4, 3), between=5)
    assert sigmoid_belief_network(6, [4, 3], between=(5,)) is one
    assert sigmoid_belief_network(6, (4, 3), between=5, weight_sd=1.0) is not one
    assert one.weight_sd is None and not one.redraw
    assert sigmoid_belief_network(6, (4,), redraw=True).redraw


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"visible": 0}, r"visible is a whole number of units"),
        ({"visible": 4, "hidden": ()}, "each hidden layer"),
        ({"visible": 4, "hidden": (3, 0)}, r"hidden\[\d\] is a whole number of units"),
        ({"visible": 4, "between": (0,)}, r"between\[\d\] is a whole number of units"),
        ({"visible": 4, "family": "normal"}, "latent_gaussian"),
        ({"visible": 4, "family": "Bernouli"}, "family is one of"),
        ({"visible": 4, "weight_sd": -1.0}, "weight_sd"),
        ({"visible": 4, "activation": "tan"}, "activation is one of"),
    ],
)
def test_what_cannot_be_is_said(arguments, sentence):
    with pytest.raises(ModelError, match=sentence):
        sigmoid_belief_network(**arguments)
