"""NVIL and VIMCO as methods: settings, what they refuse, and that they learn digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.engine import run as loop
from tractable.glm.linear import generalised_linear
from tractable.ladders.ladder import Ladder, Recognition, bottom_up
from tractable.ladders.ladders import sigmoid_belief_network
from tractable.ladders.layers import layer, top
from tractable.ladders.nvil_methods import NVIL, VIMCO
from tractable.ladders.variance import _settings, gradient_variance

pytestmark = pytest.mark.quick

DIGITS = (np.asarray(load_digits(return_X_y=True)[0]) > 8).astype(np.float32)
NET = sigmoid_belief_network(64, (12, 6))


def downward() -> Ladder:
    """A ladder whose top is inferred first, from x."""
    over = bottom_up([layer(4, 2), layer(2, 3)])

    def walk(theta, phi, x, choose):
        turned = {"h1": phi["h1"], "h2": phi["h2"]}
        found = over.walk(theta, turned, x, lambda i, q: choose(1 - i, q))
        return found[::-1]

    down = [layer(3, 4), layer(2, 3), top(2)]
    return Ladder(down, Recognition(over.init, walk, upward=False))


@pytest.mark.parametrize(
    "method", [NVIL(), NVIL(samples=3, leave_one_out=True, baseline=None, normalise=False), VIMCO(samples=7)]
)
def test_settings_come_back(method):
    settings = method.settings()
    assert settings.pop("method") == method.label
    assert type(method)(**settings) == method


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NVIL(samples=0), "samples"),
        (lambda: NVIL(leave_one_out=True), "samples.*≥ 2"),
        (lambda: NVIL(baseline="h"), "baseline.*'layers', 'input' or None"),
        (lambda: NVIL(baseline_size=0), "baseline_size"),
        (lambda: VIMCO(samples=1), "samples.*≥ 2"),
        (lambda: VIMCO(learning_rate=-1.0), "learning_rate"),
    ],
)
def test_fields_out_of_range_are_said(make, sentence):
    with pytest.raises(SettingsError, match=sentence):
        make()


def test_a_switch_is_on_or_off():
    with pytest.raises((SettingsError, TypeError), match="centre"):  # the test bed's own check may come first
        NVIL(centre="no")  # pyright: ignore[reportArgumentType]


@pytest.mark.laws
def test_a_ladder_inferred_from_the_top_goes_without_what_rests_on_the_bottom():
    ladder, data = downward(), tr.Data(DIGITS[:200, 20:24])
    with pytest.raises(SettingsError, match="local=False"):
        tr.infer(ladder, data, NVIL(epochs=1))
    with pytest.raises(SettingsError, match="baseline='input'"):
        tr.infer(ladder, data, NVIL(epochs=1, local=False))
    posterior = tr.infer(ladder, data, NVIL(epochs=10, local=False, baseline="input"))
    assert posterior.found["elbo"] > -4 * np.log(2) - 0.1
    assert not any(switches.local or switches.baseline == "layers" for switches in _settings(ladder).values())


@pytest.mark.test
def test_models_that_are_no_ladders_are_refused():
    with pytest.raises(ModelError, match="NVIL learns ladders"):
        tr.infer(generalised_linear(2, "normal"), tr.Data(np.zeros(200), np.zeros((200, 2))), NVIL())


@pytest.mark.laws
@pytest.mark.parametrize("method", [NVIL(epochs=30), VIMCO(epochs=20)])
def test_digits_are_learnt(method):
    """Pixels that know nothing of one another cost 24.4 nats."""
    mean = DIGITS.mean(0).clip(1e-3, 1 - 1e-3)
    alone = float(np.mean(np.sum(DIGITS * np.log(mean) + (1 - DIGITS) * np.log1p(-mean), 1)))
    before = loop.traces
    posterior = tr.infer(NET, tr.Data(DIGITS), method, seed=1)
    assert loop.traces == before + 1
    print(alone, posterior.found)
    assert posterior.found["bound"] > posterior.found["elbo"] > alone + 2.5
    assert np.all(np.isfinite(posterior.info["objective"]))


@pytest.mark.laws
def test_the_report_of_the_variance_is_a_table():
    params = NET.initial(jax.random.key(0), jnp.asarray(DIGITS))
    found = gradient_variance(NET, params, tr.Data(DIGITS), key=jax.random.key(0), draws=40, rows=30)
    lines = str(found).splitlines()
    assert len(lines) == 1 + 2 * len(found.names) and found.variance.shape == (len(found.names), 2)
    none, centre, everything = (found.variance[found.names.index(n)] for n in ("none", "centre", "all"))
    assert np.all(centre < none) and np.all(everything < centre)
    with pytest.raises(SettingsError, match="even number"):
        gradient_variance(NET, params, tr.Data(DIGITS), key=jax.random.key(0), draws=5)
    with pytest.raises(SettingsError, match="rows"):
        gradient_variance(NET, params, tr.Data(DIGITS), key=jax.random.key(0), rows=0)
