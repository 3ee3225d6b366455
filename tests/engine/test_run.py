"""The loop: the same draws however it is cut, thinned, streamed or spread."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from contract_method import quick_compilation

import tractable as tr
from tractable.core.rows import SHUFFLE
from tractable.engine import run as loop

RNG = np.random.default_rng(2)
Y = 0.7 + RNG.normal(size=50)

pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")]


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Programs here run for less than they compile."""
    with quick_compilation():
        yield


def make() -> tr.Model:
    return tr.Model({"mu": dist.Normal(0.0, 2.0)}, lambda params: dist.Normal(params["mu"], 1.0))


MODEL = make()
WALK = tr.RandomWalk(chains=2, draws=150, warmup=0, preconditioner=None, thin=1)
NOISY = tr.SGLD(chains=2, draws=150, warmup=20, thin=1, batch_size=7, step_size=0.01, start="random")


def drawn(method, data=None, **options) -> np.ndarray:
    return tr.infer(MODEL, tr.Data(Y) if data is None else data, method, **options).unconstrained


@pytest.mark.parametrize("method", [WALK, NOISY], ids=["walk", "sgld"])
@pytest.mark.parametrize("seconds, most", [(1e-9, 64 << 20), (0.5, 1), (1e9, 2500)])
def test_cuts_change_nothing(method, seconds, most, monkeypatch):
    """Long segments or short, a large buffer or a small one."""
    before = drawn(method)
    monkeypatch.setattr(loop, "SEGMENT_SECONDS", seconds)
    monkeypatch.setattr(loop, "BUFFER_BYTES", most)
    np.testing.assert_array_equal(drawn(method), before)


def test_thinning_is_leaving_out(monkeypatch):
    """Every k-th draw of the run that is not thinned, whether k divides a block, or a block k, or neither."""
    monkeypatch.setattr(loop, "BLOCK", 12)
    whole = drawn(dataclasses.replace(WALK, draws=240))
    for thin in (3, 12, 24):  # a block stays 12 steps
        assert loop.shape(10, thin, 1, 2).block == 12
        thinned = drawn(dataclasses.replace(WALK, draws=240 // thin, thin=thin))
        if thin <= 12:
            np.testing.assert_array_equal(thinned, whole[:, thin - 1 :: thin])
        else:  # a group is then two blocks, whose keys differ: the law is the same, the numbers are not
            assert thinned.shape == (2, 10, 1) and np.all(np.isfinite(thinned))


def test_info_is_averaged_over_the_steps_since_the_last_draw(monkeypatch):
    monkeypatch.setattr(loop, "BLOCK", 12)
    data = tr.Data(Y)
    whole = tr.infer(MODEL, data, dataclasses.replace(WALK, draws=240)).info["acceptance"]
    thinned = tr.infer(MODEL, data, dataclasses.replace(WALK, draws=80, thin=3)).info["acceptance"]
    np.testing.assert_allclose(thinned, whole.reshape(2, 80, 3).mean(-1), atol=1e-12)


def test_moments_are_those_of_the_draws():
    method = dataclasses.replace(WALK, draws=150)
    kept = tr.infer(MODEL, tr.Data(Y), method)
    moments = tr.infer(MODEL, tr.Data(Y), method, draws="moments")
    assert moments.unconstrained is None
    np.testing.assert_allclose(moments.mean()["mu"], kept.values.mean(), rtol=1e-9)
    np.testing.assert_allclose(moments.sd()["mu"], kept.values.std(), rtol=1e-9)
    assert list(moments.summary().columns) == ["mean", "sd"]
    assert moments.report().verdict in ("trust", "caution", "reject")


@pytest.mark.parametrize(
    "settings", [{"step_size": tr.schedules.polynomial(0.1, 10.0)}, {"cycles": 3}], ids=["schedule", "cycles"]
)
def test_moments_weigh_draws_as_the_posterior_does(settings):
    """By the step where it falls; draws of a cycle's first half, which explores, count nothing."""
    method = tr.SGLD(chains=2, draws=300, warmup=50, thin=1, batch_size=5, start="random", **settings)
    kept = tr.infer(MODEL, tr.Data(Y), method)
    moments = tr.infer(MODEL, tr.Data(Y), method, draws="moments")
    plain = kept.values.mean()
    assert abs(kept.mean()["mu"] - plain) > 1e-4
    np.testing.assert_allclose(moments.mean()["mu"], kept.mean()["mu"], rtol=1e-9)
    np.testing.assert_allclose(moments.sd()["mu"], kept.sd()["mu"], rtol=1e-9)
    assert moments.report().verdict in ("trust", "caution", "reject")


@pytest.mark.parametrize(("draws", "cycles"), [(2, 1), (8, 4), (9, 4)])
def test_some_draws_of_cycles_count(draws, cycles):
    settings = {"chains": 2, "warmup": 10, "step_size": 0.01, "batch_size": 5, "draws": draws}
    kept = tr.infer(MODEL, tr.Data(Y), tr.SGHMC(**settings, cycles=cycles), verify=None)
    assert np.all(np.any(kept.belief.weights > 0, axis=1))
    with pytest.raises(tr.errors.SettingsError, match=rf"half as many as draws, {draws}; got {draws}"):
        tr.SGHMC(**settings, cycles=draws)


def test_streamed_batches_are_the_resident_ones(tmp_path):
    """From a file in the shuffled order, batch by batch, the same bits as from memory."""
    order = np.random.default_rng(SHUFFLE).permutation(len(Y))
    np.save(tmp_path / "y.npy", Y[order])
    streamed = drawn(NOISY, tr.Data(tmp_path / "y.npy", resident=False))
    np.testing.assert_array_equal(streamed, drawn(NOISY, tr.Data(Y)))


def test_control_variates_anchor_at_all_rows_on_file(tmp_path):
    np.save(tmp_path / "y.npy", Y)
    method = tr.SGLD(chains=2, draws=400, warmup=100, batch_size=10, gradient="control_variates")
    on_file, in_memory = (
        tr.infer(MODEL, data, method, verify=None) for data in (tr.Data(tmp_path / "y.npy", resident=False), tr.Data(Y))
    )
    assert abs(on_file.mean()["mu"] - in_memory.mean()["mu"]) < 0.5 * in_memory.sd()["mu"]
    np.testing.assert_allclose(on_file.sd()["mu"], in_memory.sd()["mu"], rtol=0.4)


@pytest.mark.test
def test_streaming_is_refused_where_all_rows_are_looked_at(tmp_path):
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(tr.errors.DataError, match="minibatches"):
        drawn(WALK, tr.Data(tmp_path / "y.npy", resident=False))


def test_one_trace_a_run():
    model = make()
    before = loop.traces
    tr.infer(model, tr.Data(Y), WALK)
    assert loop.traces == before + 1
    tr.infer(model, tr.Data(Y + 1), WALK, seed=5)
    assert loop.traces == before + 1


@pytest.mark.quick
def test_shape():
    """Whole draws a group, whole blocks a group, a buffer that is bounded; and time that never depends on draws."""
    for size in (1, 7, 1000, 30_000, 1 << 20):
        for thin in (1, 2, 3, 7, 49, 50, 51, 97, 128, 256, 1000):
            shapes = [loop.shape(draws, thin, size, chains=4) for draws in (1, 10, 999)]
            assert len({(s.block, s.group, s.stored) for s in shapes}) == 1
            for shape, draws in zip(shapes, (1, 10, 999), strict=True):
                assert shape.group % shape.thin == 0 and shape.group % shape.block == 0
                assert shape.block <= loop.BLOCK and shape.block * size <= max(loop.BLOCK_NUMBERS, size)
                assert shape.stored == shape.group // thin and shape.stored >= 1
                assert 1 <= shape.capacity <= max(1, -(-draws * thin // shape.group))
                nbytes = 4 * 4 * size * shape.stored * shape.capacity
                assert shape.capacity == 1 or nbytes <= loop.BUFFER_BYTES


@pytest.mark.test
def test_too_many_devices():
    with pytest.raises(tr.errors.SettingsError, match="JAX sees"):
        drawn(WALK, mesh=len(jax.devices()) + 1)


def test_progress_is_told_from_beginning_to_end():
    said: list[tuple] = []
    drawn(WALK, progress=lambda *now: said.append(now))
    assert said[-1] == ("drawing", 150, 150) and [done for _, done, _ in said] == sorted(d for _, d, _ in said)
    values: list[dict] = []
    drawn(WALK, progress=lambda phase, done, of, newest: values.append(newest))
    assert values and not any(values)  # chains have no curve
    assert jnp.result_type(float) == jnp.float64
