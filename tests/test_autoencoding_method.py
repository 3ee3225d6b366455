"""AutoEncoding and ImportanceWeighted as methods: settings, sentences, and what a run learns and says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import tractable as tr
from tractable.data.rows import whole
from tractable.methods.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.models.ladder import Ladder, bottom_up
from tractable.models.ladders import hierarchical, latent_gaussian
from tractable.models.layers import categorical, layer, top
from tractable.objectives import pathwise
from tractable.objectives.bounds import bounds
from tractable.tools.errors import ModelError, SettingsError

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
        (lambda: AutoEncoding(relaxation=0.0), "relaxation=...\\) expects a positive finite number"),
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
        AutoEncoding(relaxation=0.5),
        ImportanceWeighted(samples=7, gradient="reparameterised"),
    ):
        settings = method.settings()
        assert settings.pop("method") == method.label
        assert type(method)(**settings) == method


def test_discrete_layers():
    """Refused without a relaxation, in a sentence that says what to do; a relaxation of nothing is refused too."""
    data = tr.Data(BITS.astype(np.float32))
    for method in (AutoEncoding(), ImportanceWeighted()):
        with pytest.raises(ModelError, match=r"layer 1 is Bernoulli, whose draws have no derivative.*relaxation"):
            tr.infer(belief(), data, method)
    with pytest.raises(ModelError, match="this ladder has none"):
        tr.infer(latent_gaussian(6, 2), data, AutoEncoding(relaxation=0.5))
    counts = Ladder([layer(2, 6), top(2, "poisson")], bottom_up([layer(6, 2, "poisson")]))
    for method in (AutoEncoding(relaxation=0.5), AutoEncoding()):
        with pytest.raises(ModelError, match="layer 1 is Poisson"):
            tr.infer(counts, data, method)
    with pytest.raises(ModelError, match="learns ladders"):
        tr.infer(tr.models.factor_analysis(6, 2), data, AutoEncoding(relaxation=0.5))


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


def test_relaxed_on_a_discrete_model():
    """A relaxed climb is told of by the discrete model's own bound, in a check that warns; log p(x) is exact here."""
    ladder = belief()
    rows = BITS.astype(np.float32)
    method = AutoEncoding(relaxation=1.0, epochs=400, learning_rate=0.05)
    posterior = tr.infer(ladder, tr.Data(rows), method, seed=1, progress=False)
    theta = ladder.space.unravel(jnp.asarray(posterior.point))
    exact = float(np.asarray(ladder.summed_out(theta, jnp.asarray(rows))).mean())
    best = tr.infer(ladder, tr.Data(rows), tr.MAP(), seed=1, progress=False)
    reached = float(np.asarray(ladder.summed_out(ladder.space.unravel(jnp.asarray(best.point)), rows)).mean())
    print(f"relaxed {exact:.3f}, by enumeration {reached:.3f}, ELBO {posterior.found['elbo']:.3f}")
    assert posterior.found["elbo"] <= exact + 1e-3 and exact <= reached + 1e-3
    assert exact > reached - 0.3
    checks = {check.name: check for check in method.checks(posterior)}
    assert checks["relaxation"].verdict == "caution" and "biased" in checks["relaxation"].sentence
    assert "relaxation" not in {check.name for check in AutoEncoding().checks(posterior)}
    told = bounds(ladder, {"theta": theta, "phi": posterior.phi}, tr.Data(rows[:20]), jax.random.key(0), 5000)
    assert np.all(np.abs(told.log_evidence - np.asarray(ladder.summed_out(theta, rows[:20]))) < 6 * told.error + 1e-6)


@pytest.mark.test("2")
@pytest.mark.parametrize("levels", [2, 3])
def test_cold_relaxations(levels):
    """As τ → 0 the relaxed objective's log p(x | h) is the discrete one's: the mean value comes near the true bound."""
    family = "bernoulli" if levels == 2 else categorical(levels)
    below = layer(2 if levels == 2 else 2 * levels, 6)
    ladder = Ladder([below, top(2, family)], bottom_up([layer(6, 2, family)]))
    params = ladder.initial(jax.random.key(4))
    params["phi"]["layers"] = jax.tree.map(lambda a: 2 * a, params["phi"]["layers"])
    rows = jnp.asarray(BITS[:3], float)
    batch = whole((rows, None))

    def likelihood(noise, x):
        from tractable.objectives import relaxed

        h, _ = relaxed.drawn(noise, ladder, params, x, 1, 1e-3)
        return jnp.sum(ladder.generative(params["theta"], h)[0].log_prob(x[None]))

    keys = jax.random.split(jax.random.key(0), 20_000)
    soft = np.asarray(jax.jit(jax.vmap(likelihood, (0, None)))(keys, rows))
    q = ladder.infer(params, rows[None], lambda i, q: jnp.zeros((1, 3, 2), int))[1][0].base_dist
    # Exactly, over all pairs of values.
    each = np.indices((levels, levels)).reshape(2, -1).T
    h = jnp.broadcast_to(jnp.asarray(each)[:, None], (len(each), 3, 2))
    mass = jnp.exp(q.log_prob(h).sum(-1))
    wanted = float(jnp.sum(mass * ladder.generative(params["theta"], (h,))[0].log_prob(rows[None])))
    assert abs(soft.mean() - wanted) < 5.33 * soft.std() / np.sqrt(len(soft)) + 0.01
    # Of one draw the path form has the same value and θ's gradient, and cuts something of φ's.
    forms = [
        pathwise.autoencoding(ladder, relaxation=0.3, kl="sampled", gradient=gradient)
        for gradient in ("reparameterised", "path")
    ]
    both = jax.jit(lambda p: [jax.value_and_grad(form.value, 1)(jax.random.key(1), p, batch) for form in forms])(params)
    assert np.isfinite(both[0][0]) and all(np.all(np.isfinite(g)) for g in jax.tree.leaves(both))
    same = [(value, gradient["theta"]) for value, gradient in both]
    for mine, theirs in zip(*map(jax.tree.leaves, same), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    layers = [gradient["phi"]["layers"]["h1"]["layer0"]["weight"] for _, gradient in both]
    assert np.max(np.abs(layers[0] - layers[1])) > 1e-3


@pytest.mark.test
def test_warm_up_ends(monkeypatch):
    """Epochs become steps: a run of E epochs has the whole weight from W/E of its steps on."""
    seen = {}

    def record(ladder, **settings):
        seen["warmup"] = settings["warmup"]
        return right(ladder, **settings)

    right = pathwise.autoencoding
    monkeypatch.setattr("tractable.methods.autoencoding.autoencoding", record)
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
