"""AutoEncoding and ImportanceWeighted as methods: settings, sentences, and what a run learns and says."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.ladders import pathwise
from tractable.ladders.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.ladders import hierarchical, latent_gaussian
from tractable.ladders.layers import layer, top

pytestmark = pytest.mark.laws

DIGITS = (load_digits().data[:400] > 8).astype(np.float32)
RNG = np.random.default_rng(0)
BITS = (RNG.random((300, 2)) < 0.5).repeat(3, 1) ^ (RNG.random((300, 6)) < 0.08)


def belief(hidden: int = 2) -> Ladder:
    return Ladder([layer(hidden, 6), top(hidden)], bottom_up([layer(6, hidden)]))


@pytest.mark.test("<lambda>-use it with kl='sampled'")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AutoEncoding(samples=0), "samples=...\\) expects a whole number ≥ 1; got 0"),
        (lambda: AutoEncoding(gradient="doubly"), "'reparameterised' or 'path'; got 'doubly'"),
        (lambda: AutoEncoding(kl="open"), "'closed' or 'sampled'; got 'open'"),
        (lambda: AutoEncoding(gradient="path"), "use it with kl='sampled'"),
        (lambda: AutoEncoding(beta=0.0), "beta.*positive finite number; got 0.0"),
        (lambda: AutoEncoding(free_bits=-0.1), "free_bits.*got -0.1"),
        (lambda: AutoEncoding(warmup=101), "at most the 100 epochs there are; got 101"),
        (lambda: AutoEncoding(warmup=-1), "whole number ≥ 0; got -1"),
        (lambda: AutoEncoding(relaxation=0.5), "relaxation=...\\) was removed in 0.2; write NVIL"),
        (lambda: ImportanceWeighted(samples=0), "whole number ≥ 1; got 0"),
        (lambda: ImportanceWeighted(gradient="path"), "'doubly' or 'reparameterised'; got 'path'"),
    ],
)
def test_settings_sentences(make, words):
    with pytest.raises(SettingsError, match=words):
        make()


@pytest.mark.quick
def test_settings_are_kept():
    for method in (
        AutoEncoding(samples=2, kl="sampled", gradient="path", beta=2.0, free_bits=0.1, warmup=3),
        ImportanceWeighted(samples=7, gradient="reparameterised"),
    ):
        settings = method.settings()
        assert settings.pop("method") == method.label
        assert type(method)(**settings) == method


def test_discrete_layers():
    """They are refused in a sentence that says which methods learn them."""
    data = tr.Data(BITS.astype(np.float32))
    for method in (AutoEncoding(), ImportanceWeighted()):
        with pytest.raises(ModelError, match=r"layer 1 is Bernoulli, whose draws have no derivative.*NVIL"):
            tr.infer(belief(), data, method)
    counts = Ladder([layer(2, 6), top(2, "poisson")], bottom_up([layer(6, 2, "poisson")]))
    with pytest.raises(ModelError, match="layer 1 is Poisson"):
        tr.infer(counts, data, AutoEncoding())
    with pytest.raises(ModelError, match="learns ladders"):
        tr.infer(tr.models.factor_analysis(6, 2), data, AutoEncoding())


@pytest.mark.parametrize(
    ("ladder", "method"),
    [
        (latent_gaussian(64, 4, hidden=(20,)), AutoEncoding(epochs=60, learning_rate=5e-3)),
        (
            hierarchical(64, (6, 3), hidden=((20,), (8,)), inference="top-down"),
            AutoEncoding(epochs=60, learning_rate=5e-3, warmup=10, free_bits=0.05),
        ),
        (latent_gaussian(64, 4, hidden=(20,)), ImportanceWeighted(epochs=60, learning_rate=5e-3)),
    ],
)
def test_learns(ladder, method):
    """The climbed bound leaves that of independent pixels behind; the trace is the bound that was asked about."""
    posterior = tr.infer(ladder, tr.Data(DIGITS), method, seed=1, progress=False)
    p = np.clip(DIGITS.mean(0), 1e-3, 1 - 1e-3)
    alone = float((DIGITS * np.log(p) + (1 - DIGITS) * np.log(1 - p)).sum(1).mean())
    found = posterior.found
    assert found["elbo"] > alone + 1.5, (found, alone)
    assert found["elbo"] <= found["bound"]
    trace = posterior.info["objective"].ravel() / len(DIGITS)
    last = trace[-len(trace) // 10 :].mean()
    kind = found["elbo"] if isinstance(method, AutoEncoding) else found["bound"]
    assert abs(last - kind) < 1.0, (last, kind)


@pytest.mark.test
def test_warm_up_ends(monkeypatch):
    """Epochs become steps: a run of E epochs has the whole weight from W/E of its steps on."""
    seen = {}

    def record(ladder, **settings):
        seen["warmup"] = settings["warmup"]
        return right(ladder, **settings)

    right = pathwise.autoencoding
    monkeypatch.setattr("tractable.ladders.autoencoding.autoencoding", record)
    method, ladder = AutoEncoding(epochs=20, warmup=5), latent_gaussian(64, 2, hidden=(3,))
    method.kernel(ladder, None, {"steps": jnp.asarray(400.0)})
    assert seen["warmup"] == 100
    AutoEncoding(epochs=20).kernel(ladder, None, {"steps": jnp.asarray(400.0)})
    assert seen["warmup"] == 0


@pytest.mark.parametrize(("free_bits", "verdict"), [(0.0, None), (0.5, "caution")])
def test_a_kl_bought_at_a_loss_is_told(free_bits, verdict):
    """Bits that say nothing of one another: half a nat for each of four units buys a code of noise."""
    x = (np.random.default_rng(0).random((400, 8)) < 0.5).astype(float)
    method = tr.AutoEncoding(epochs=150, batch_size=50, learning_rate=5e-3, free_bits=free_bits)
    posterior = tr.infer(tr.models.latent_gaussian(8, 4, hidden=(20,)), tr.Data(x), method)
    found = {check.name: check.verdict for check in posterior.report().checks}
    assert found.get("ELBO for itself") == verdict
