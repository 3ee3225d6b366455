"""Predictions against sums written out by hand and exact laws; the same however rows and draws are cut."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from montecarlo import Z, assert_holds, broken, error, of_p
from scipy import stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError, TractableWarning
from tractable.diagnostics import calibration
from tractable.posterior import chunking
from tractable.posterior import predict as prediction
from tractable.posterior.pointwise import log_predictive
from tractable.posterior.predict import Prediction, predict

pytestmark = pytest.mark.test

RNG = np.random.default_rng(0)
FEATURES, ROWS, DRAWS = 3, 23, 40
X = RNG.normal(size=(ROWS, FEATURES))
WEIGHTS = RNG.uniform(0.5, 2.0, DRAWS)
WEIGHTS[3] = 0.0
LINE = tr.Model(
    {"w": dist.Normal(jnp.zeros(FEATURES), 1.0), "noise": dist.HalfNormal(1.0)},
    lambda params, x: dist.Normal(x @ params["w"], params["noise"]),
)
LINES = {"w": RNG.normal(size=(DRAWS, FEATURES)), "noise": RNG.uniform(0.3, 2.0, DRAWS)}
SOFTMAX = tr.Model(
    {"w": dist.Normal(jnp.zeros((FEATURES, 4)), 1.0)}, lambda params, x: dist.Categorical(logits=x @ params["w"])
)
PLANES = {"w": RNG.normal(size=(DRAWS, FEATURES, 4))}
LOGISTIC = tr.Model(
    {"w": dist.Normal(jnp.zeros(FEATURES), 1.0)}, lambda params, x: dist.Bernoulli(logits=x @ params["w"])
)
EQUAL = np.full(DRAWS, 1 / DRAWS)


def quantiles(samples, shares, level):
    """Of (S, n) samples, one row at a time."""
    out = []
    for column in samples.T:
        order = np.argsort(column)
        mass = np.cumsum(shares[order]) / shares.sum()
        out.append([column[order][np.searchsorted(mass, q - 1e-9)] for q in ((1 - level) / 2, (1 + level) / 2)])
    return np.array(out).T


# Numbers.


def law_of_numbers(predict):
    """Moments written out over draws; the interval's ends cut the shares they should off the mixture of normals."""
    share = WEIGHTS / WEIGHTS.sum()
    means = LINES["w"] @ X.T
    mean = share @ means
    aleatoric, epistemic = share @ LINES["noise"] ** 2, share @ (means - mean) ** 2
    scores = {}
    told = predict(LINE, LINES, WEIGHTS, X, level=0.8)
    for name, wanted in {
        "mean": mean, "aleatoric": np.sqrt(aleatoric), "epistemic": np.sqrt(epistemic),
        "sd": np.sqrt(aleatoric + epistemic),
    }.items():  # fmt: skip
        scores[name] = error(getattr(told, name), wanted, 1e-10)
    # DRAWS strata of 26 samples each: no more random than their share of independent ones.
    effective = prediction.SAMPLES / (len(share) * np.sum(share**2))
    for name, q in (("lower", 0.1), ("upper", 0.9)):
        mass = share @ stats.norm.cdf((getattr(told, name) - means) / LINES["noise"][:, None])
        scores[name] = float(np.max(np.abs(mass - q)) / math.sqrt(q * (1 - q) / effective) / Z)
    return scores


def changed(**fields):
    """A prediction with fields computed in another, wrong, way from it."""
    return lambda *args, **kwargs: (p := predict(*args, **kwargs))._replace(**{k: of(p) for k, of in fields.items()})


def test_numbers():
    assert_holds(law_of_numbers(predict))
    half = stats.norm.isf(0.1)
    wrong = {
        "weights ignored": lambda model, params, w, x, level: predict(model, params, EQUAL, x, level=level),
        "sds added": changed(sd=lambda p: p.aleatoric + p.epistemic),
        "mean of sds": changed(aleatoric=lambda p: np.full(ROWS, np.average(LINES["noise"], weights=WEIGHTS))),
        "s − 1": changed(epistemic=lambda p: p.epistemic * math.sqrt(DRAWS / (DRAWS - 1))),
        "interval of the mean alone": changed(lower=lambda p: p.mean - half * p.epistemic),
        "one-sided": lambda model, params, w, x, level: predict(model, params, w, x, level=2 * level - 1),
    }
    for name, mutant in wrong.items():
        assert broken(law_of_numbers(mutant)), name


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_the_exact_predictive_of_a_linear_model(precision):
    """w | y ~ N(m, v): y* ~ N(x m, σ² + x² v), from 4000 quantiles of the posterior."""
    m, v, noise, level = 0.7, 0.3**2, 0.5, 0.9
    line = tr.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(x * params["w"], noise))
    w = (m + math.sqrt(v) * stats.norm.ppf((np.arange(4000) + 0.5) / 4000)).astype(precision)
    x = np.array([0.0, 1.0, -2.0, 5.0], precision)
    told = predict(line, {"w": w}, np.ones(len(w)), x, level=level)
    sd = np.sqrt(noise**2 + x**2 * v)
    np.testing.assert_allclose(told.mean, m * x, atol=1e-5)
    np.testing.assert_allclose(told.aleatoric, noise, rtol=1e-6)
    np.testing.assert_allclose(told.epistemic, np.abs(x) * math.sqrt(v), rtol=2e-3)
    np.testing.assert_allclose(told.sd, sd, rtol=2e-3)
    for end, q in ((told.lower, 0.05), (told.upper, 0.95)):
        mass = stats.norm.cdf(end, m * x, sd)
        assert np.all(np.abs(mass - q) < Z * math.sqrt(q * (1 - q) / len(w)))


@pytest.mark.laws
def test_several_numbers_a_row_and_none_given():
    pair = tr.Model(
        {"a": dist.Normal(jnp.zeros(2), 1.0)},
        lambda params: dist.Normal(params["a"], jnp.array([1.0, 2.0])).to_event(1),
    )
    told = predict(pair, {"a": np.array([[0.0, 1.0], [2.0, 1.0]])}, np.array([1.0, 3.0]))
    np.testing.assert_allclose(told.mean, [[1.5, 1.0]])
    np.testing.assert_allclose(told.aleatoric, [[1.0, 2.0]])
    np.testing.assert_allclose(told.epistemic, [[math.sqrt(0.75), 0.0]], atol=1e-12)
    assert told.lower.shape == (1, 2) and told.probabilities is told.entropy is told.mutual_information is None
    counts = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Poisson(jnp.exp(params["a"] * x)))
    told = predict(counts, {"a": np.array([0.5])}, np.ones(1), np.array([1.0, 4.0]))
    rate = np.exp([0.5, 2.0])
    np.testing.assert_allclose(told.sd, np.sqrt(rate))
    assert np.all(told.lower >= stats.poisson.ppf(0.02, rate)) and np.all(told.upper <= stats.poisson.ppf(0.98, rate))


# Classes.


def law_of_classes(predict):
    """Probabilities, their spread and both entropies, draw by draw."""
    share = WEIGHTS / WEIGHTS.sum()
    logits = np.einsum("nf,sfc->snc", X, PLANES["w"])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mean = np.tensordot(share, p, 1)
    told = predict(SOFTMAX, PLANES, WEIGHTS, X)
    lower, upper = quantiles(p.reshape(DRAWS, -1), share, 0.9)
    spread = np.sqrt(np.tensordot(share, (p - mean) ** 2, 1))
    return {
        "probabilities": error(told.probabilities, mean, 1e-10),
        "sd": error(told.sd, np.sqrt(mean * (1 - mean)), 1e-10),
        "epistemic": error(told.epistemic, spread, 1e-10),
        "lower": error(told.lower.ravel(), lower, 1e-10),
        "upper": error(told.upper.ravel(), upper, 1e-10),
        "entropy": error(told.entropy, -np.sum(mean * np.log(mean), -1), 1e-10),
        "information": error(told.mutual_information, share @ np.sum(p * np.log(p / mean), -1), 1e-10),
        "order": 2.0 * bool(np.any(told.mutual_information < 0) or np.any(told.mutual_information > told.entropy)),
    }


def test_classes():
    assert_holds(law_of_classes(predict))
    wrong = {
        "bits": changed(entropy=lambda p: p.entropy / math.log(2)),
        "mean entropy": changed(entropy=lambda p: p.entropy - p.mutual_information),
        "the entropy for its part": changed(mutual_information=lambda p: p.entropy),
        "weights ignored": lambda model, params, w, x: predict(model, params, EQUAL, x),
        "epistemic for all": changed(sd=lambda p: p.epistemic),
    }
    for name, mutant in wrong.items():
        assert broken(law_of_classes(mutant)), name


def test_two_classes_by_hand():
    """Draws that say ¾ and ¼: one bit of entropy, of which 1 − H₂(¾) is theirs; alike, nothing is."""
    log_odds = math.log(3)
    told = predict(LOGISTIC, {"w": np.array([[log_odds, 0, 0], [-log_odds, 0, 0]])}, np.ones(2), np.eye(3)[:2])
    np.testing.assert_allclose(told.mean, [0.5, 0.5])
    np.testing.assert_allclose(np.asarray(told.probabilities), 0.5)
    np.testing.assert_allclose(told.epistemic, [0.25, 0], atol=1e-12)
    np.testing.assert_allclose(told.aleatoric, [math.sqrt(3 / 16), 0.5])
    np.testing.assert_allclose(np.asarray(told.entropy), math.log(2))
    within = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    np.testing.assert_allclose(np.asarray(told.mutual_information), [math.log(2) - within, 0], atol=1e-12)
    np.testing.assert_allclose([told.lower, told.upper], [[0.25, 0.5], [0.75, 0.5]])


def test_information_is_that_of_the_checks():
    told = predict(LOGISTIC, {"w": LINES["w"]}, WEIGHTS, X)
    p = 1 / (1 + np.exp(-LINES["w"] @ X.T))
    each = np.stack([1 - p, p], -1)
    shares = WEIGHTS / np.sum(WEIGHTS)
    total, within = calibration.entropy(np.tensordot(shares, each, 1)), shares @ calibration.entropy(each)
    np.testing.assert_allclose(np.asarray(told.mutual_information), total - within, atol=1e-12)
    np.testing.assert_allclose(np.asarray(told.entropy), calibration.entropy(told.probabilities), atol=1e-12)


# However it is cut.


def spied(monkeypatch):
    """The chunks that were computed: (rows, draws, bytes kept)."""
    seen, inner = [], prediction._predict

    def spy(*args):
        sums, kept = inner(*args)
        seen.append((len(args[5][0]), len(args[3][1]), kept.nbytes))
        return sums, kept

    monkeypatch.setattr(prediction, "_predict", spy)
    return seen


@pytest.mark.test("weights0-model1-params1")
@pytest.mark.parametrize("model, params", [(LINE, LINES), (SOFTMAX, PLANES), (LOGISTIC, {"w": LINES["w"]})])
@pytest.mark.parametrize("weights", [WEIGHTS, EQUAL])
def test_any_cut_gives_the_same(monkeypatch, model, params, weights):
    y = np.zeros(ROWS) if model is LINE else np.zeros(ROWS, int)
    whole = predict(model, params, weights, X)
    density = log_predictive(model, params, weights, tr.Data(y, X))
    seen = spied(monkeypatch)
    monkeypatch.setattr(chunking, "DRAWS", sum(a[:17].nbytes for a in params.values()))
    for budget in (1, 300_000):
        monkeypatch.setattr(chunking, "BYTES", budget)
        for got, wanted in zip(predict(model, params, weights, X), whole, strict=True):
            assert (got is None) == (wanted is None)
            if got is not None:
                np.testing.assert_allclose(got, np.asarray(wanted), rtol=1e-11, atol=1e-11)
        again = log_predictive(model, params, weights, tr.Data(y, X))
        np.testing.assert_allclose(again, density, rtol=1e-12)
    assert {1} < {rows for rows, _, _ in seen} and max(draws for _, draws, _ in seen) <= 17


def test_a_row_alone_is_predicted_as_among_others():
    whole = predict(LINE, LINES, WEIGHTS, X)
    part = predict(LINE, LINES, WEIGHTS, X[:5])
    for got, wanted in zip(part[:6], whole[:6], strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted)[:5], rtol=1e-12)
    other = predict(LINE, LINES, WEIGHTS, X, seed=1)
    np.testing.assert_array_equal(whole.mean, other.mean)
    assert np.any(whole.lower != other.lower)


def wide_network(traces, width=256):
    """A network whose weights weigh more than what it makes of a row."""

    def likelihood(params, x):
        traces.append(1)
        return dist.Normal(jnp.tanh(x @ params["first"]) @ params["last"], 1.0)

    prior = {"first": dist.Normal(jnp.zeros((20, width)), 1.0), "last": dist.Normal(jnp.zeros(width), 1.0)}
    return tr.Model(prior, likelihood)


@pytest.mark.laws
def test_memory_is_bounded_and_chunks_compile_once(monkeypatch):
    """Activations are counted, weights are not; what is kept fits the budget; more chunks trace nothing more."""
    params = {"first": RNG.normal(size=(5, 20, 256)), "last": RNG.normal(size=(5, 256))}
    x, budget = RNG.normal(size=(301, 20)), 400_000
    counts = []
    for monkey in (1 << 40, budget):
        traces = []
        model = wide_network(traces)
        seen = spied(monkeypatch) if monkey == budget else []
        monkeypatch.setattr(chunking, "BYTES", monkey)
        predict(model, params, np.ones(5), x)
        counts.append(len(traces))
    assert counts[0] == counts[1] and len(seen) >= 6 and len({rows for rows, _, _ in seen}) == 1
    assert all(kept <= budget for _, _, kept in seen)
    datum = lambda theta, rows, index: prediction._datum(model, "number", theta, rows, index)  # noqa: E731
    per_row, _ = chunking.bytes_per_row(datum, params, x)
    assert 2 * 256 * 8 <= per_row <= 4 * 256 * 8 < params["first"][0].nbytes


@pytest.mark.laws
def test_rows_may_lie_in_a_file_or_in_a_tree(tmp_path):
    wanted = predict(LINE, LINES, EQUAL, X)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    in_tree = tr.Model(LINE.prior, lambda p, x: dist.Normal(x["a"] * p["w"][0] + x["b"] @ p["w"][1:], p["noise"]))
    for told in (
        predict(LINE, LINES, EQUAL, mapped),
        predict(LINE, LINES, EQUAL, jnp.asarray(X)),
        predict(LINE, LINES, EQUAL, X.tolist()),
        predict(in_tree, LINES, EQUAL, {"a": X[:, 0], "b": X[:, 1:]}),
    ):
        for got, want in zip(told[:6], wanted[:6], strict=True):
            assert isinstance(got, np.ndarray)
            np.testing.assert_allclose(got, np.asarray(want), rtol=1e-10, atol=1e-12)


def test_log_predictive():
    """log Σ w p(y|θ), also where every density underflows."""
    y = RNG.normal(size=ROWS)
    y[0] = 1e3
    terms = stats.norm.logpdf(y, LINES["w"] @ X.T, LINES["noise"][:, None])
    with np.errstate(divide="ignore"):
        wanted = np.logaddexp.reduce(terms + np.log(WEIGHTS / WEIGHTS.sum())[:, None], axis=0)
    np.testing.assert_allclose(log_predictive(LINE, LINES, WEIGHTS, tr.Data(y, X)), wanted, rtol=1e-10)


# Tails.


def heavy(df):
    return tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.StudentT(df, params["a"] + x, 1.0))


@pytest.mark.laws
def test_no_variance_is_infinite_and_never_nan(monkeypatch):
    monkeypatch.setattr(prediction, "SAMPLES", 40)
    x = np.array([0.0, 1.0])
    told = predict(heavy(1.5), {"a": np.array([0.0, 2.0])}, np.ones(2), x)
    np.testing.assert_allclose(told.mean, x + 1)
    assert np.all(np.isinf(told.sd)) and np.all(np.isinf(told.aleatoric))
    np.testing.assert_allclose(told.epistemic, 1.0)
    assert np.all(np.isfinite(told.lower)) and np.all(told.upper > told.lower)
    # One heavy draw among light ones is enough.
    mixed = tr.Model({"df": dist.HalfNormal(1.0)}, lambda params: dist.StudentT(params["df"], 0.0, 1.0))
    assert np.isinf(predict(mixed, {"df": np.array([2.0, 9.0, 9.0])}, np.ones(3)).sd[0])
    assert np.isfinite(predict(mixed, {"df": np.array([2.0, 9.0, 9.0])}, np.array([0.0, 1, 1])).sd[0])


@pytest.mark.laws
def test_no_mean_is_said(monkeypatch):
    monkeypatch.setattr(prediction, "SAMPLES", 40)
    cauchy = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Cauchy(params["a"] + x, 1.0))
    for model in (cauchy, heavy(1.0)):
        with pytest.warns(TractableWarning, match="no mean at 2 of 2"):
            told = predict(model, {"a": np.array([0.0, 2.0])}, np.ones(2), np.array([0.0, 1.0]))
        assert np.all(np.isnan(told.mean)) and np.all(np.isinf([told.sd, told.aleatoric, told.epistemic]))
        assert np.all(np.isfinite([told.lower, told.upper]))


def test_draws_of_hardly_any_weight_come_first():
    """Importance weights may lie below single precision, in which the first draws' mean would be 0 / 0."""
    model, params = LINE, jax.tree.map(lambda a: np.concatenate([a[:2], a]), LINES)
    for told, wanted in zip(predict(model, params, np.append([1e-60, 1e-42], WEIGHTS), X),
                            predict(model, LINES, WEIGHTS, X), strict=True):  # fmt: skip
        if wanted is not None:
            np.testing.assert_allclose(told, wanted, rtol=1e-6)


def test_a_broken_parameter_stays_nan():
    told = predict(LINE, {"w": np.full((1, 3), np.nan), "noise": np.ones(1)}, np.ones(1), X)
    assert np.all(np.isnan(told.mean)) and np.all(np.isnan(told.sd)) and np.all(np.isnan(told.upper))


# Intervals from rows kept out.


STEEP = tr.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(x * params["w"], 0.4))


def law_conformal(predict):
    """Given k-th smallest of m scores, the share of new rows inside is Beta(k, m + 1 − k): also of a wrong model."""
    rng = np.random.default_rng(8)
    kept, fresh, level = 499, 20_000, 0.9
    x = rng.normal(size=kept + fresh)
    y = np.sin(3 * x) + (0.2 + np.abs(x)) * rng.standard_t(3, x.size)
    told = predict(
        STEEP, {"w": np.array([0.1, 0.3])}, np.ones(2), x[kept:], level=level, calibrate=tr.Data(y[:kept], x[:kept])
    )
    inside = np.sum((told.lower <= y[kept:]) & (y[kept:] <= told.upper))
    share = stats.betabinom(fresh, k := math.ceil((kept + 1) * level), kept + 1 - k)
    center = (told.upper + told.lower) / 2
    reach = (told.upper - told.lower) / told.sd
    return {
        "coverage": of_p(2 * min(share.cdf(inside), share.sf(inside - 1), 0.5)),
        "centre": error(center, told.mean, 1e-10),
        "one q": error(reach, reach[0], 1e-9),
        "its value": error(reach[0] / 2, np.sort(np.abs(y[:kept] - 0.2 * x[:kept]) / _sd(x[:kept]))[k - 1], 1e-9),
    }


def _sd(x):
    return np.sqrt(0.4**2 + (0.1 * x) ** 2)


@pytest.mark.laws
def test_calibrated_intervals():
    assert_holds(law_conformal(predict))

    def uncalibrated(*args, calibrate, **kwargs):
        return predict(*args, **kwargs)

    def in_sample(model, params, weights, x, level, calibrate):
        few = tr.Data(calibrate.y[:30] * 0.5, calibrate.given[:30])
        return predict(model, params, weights, x, level=level, calibrate=few)

    def absolute(*args, **kwargs):
        told: Prediction = predict(*args, **kwargs)
        half = np.mean(told.upper - told.mean)
        return told._replace(lower=told.mean - half, upper=told.mean + half)

    assert {"coverage", "its value"} <= set(broken(law_conformal(uncalibrated)))
    assert {"coverage", "its value"} <= set(broken(law_conformal(in_sample)))
    assert "one q" in broken(law_conformal(absolute))


def test_calibration_of_several_numbers_and_of_none_given():
    pair = tr.Model(
        {"a": dist.Normal(jnp.zeros(2), 1.0)},
        lambda params: dist.Normal(params["a"], jnp.array([1.0, 2.0])).to_event(1),
    )
    y = RNG.normal(size=(19, 2))
    told = predict(pair, {"a": np.zeros((1, 2))}, np.ones(1), level=0.9, calibrate=tr.Data(y))
    np.testing.assert_allclose(told.upper, np.sort(np.abs(y), 0)[17][None])
    np.testing.assert_allclose(told.lower, -told.upper)


@pytest.mark.test
def test_a_flat_prior_is_refused_in_a_sentence():
    flat = {"a": dist.ImproperUniform(dist.constraints.real, (), ())}
    with pytest.raises(ModelError, match="ImproperUniform cannot be drawn from, so no run can begin"):
        tr.infer(tr.Model(flat, lambda params: dist.Normal(params["a"], 1.0)), np.zeros(3), tr.NUTS())


def test_faults():
    one = np.ones(1)
    line = {"w": np.zeros((1, 3)), "noise": one}
    y = RNG.normal(size=ROWS)
    delta = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params: dist.ImproperUniform(dist.constraints.real, (), ()))
    two = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params: {"y": dist.Normal(0.0, 1.0)})
    for kind, sentence, call in (
        (SettingsError, "in \\(0, 1\\); got 1.5", lambda: predict(LINE, line, one, X, level=1.5)),
        (DataError, r"equal length.*\(0, 3\)", lambda: predict(LINE, line, one, X[:0])),
        (DataError, r"got shapes \(\)", lambda: predict(LINE, line, one, 1.0)),
        (DataError, r"\(2, 3\), \(3, 3\)", lambda: predict(LINE, line, one, {"a": X[:2], "b": X[:3]})),
        (DataError, "several", lambda: predict(two, {"a": one}, one)),
        (ModelError, "mean and the variance", lambda: predict(delta, {"a": one}, one)),
        (SettingsError, "for numbers", lambda: predict(SOFTMAX, PLANES, EQUAL, X, calibrate=tr.Data(y.astype(int), X))),
        (DataError, "9 rows", lambda: predict(LINE, line, one, X, calibrate=tr.Data(y[:8], X[:8]))),
        (
            DataError,
            r"shape \(\); got \(23, 1\)",
            lambda: predict(LINE, line, one, X, calibrate=tr.Data(y[:, None], X)),
        ),
        (DataError, "finite variance", lambda: predict(heavy(2.0), {"a": one}, one, y, calibrate=tr.Data(y, y))),
    ):
        with pytest.raises(kind, match=sentence):
            call()


@pytest.mark.laws
def test_rows_that_were_fitted_do_not_calibrate():
    line = tr.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(x * params["w"], 1.0))
    x = RNG.normal(size=60)
    y = x + RNG.normal(size=60)
    fitted, kept = tr.Data(y[:40], x[:40]), tr.Data(y[40:], x[40:])
    posterior = tr.infer(line, fitted, tr.MAP())
    told = posterior.predict(x[:3], calibrate=kept)
    scores = np.sort(np.abs(kept.y - np.asarray(posterior.mean()["w"]) * kept.given))
    np.testing.assert_allclose(told.upper - told.mean, scores[math.ceil(21 * 0.9) - 1], rtol=1e-6)
    with pytest.raises(DataError, match="kept out of the fit"):
        posterior.predict(x[:3], calibrate=tr.Data(y[:40], x[:40]))
    assert isinstance(told, Prediction) and jax.tree.all(jax.tree.map(lambda a: isinstance(a, np.ndarray), told))


# By a likelihood's own law.


class Autoregression:
    """y_t ~ N(slope · y_t-1, noise²); a row is y_t, given the one before it."""

    def __call__(self, params, x):
        return dist.Normal(params["slope"] * x, params["noise"])

    def predict(self, params, x, rows):
        """y a number of steps after the last one, each of x."""
        steps = jnp.arange(1, 1 + max(x))
        spread = params["noise"] * jnp.sqrt(jnp.cumsum(params["slope"] ** (2 * (steps - 1))))
        at = jnp.asarray(x) - 1
        return dist.Normal((params["slope"] ** steps * rows[0][-1])[at], spread[at])


def test_a_series_is_predicted_ahead():
    """The law of total variance over draws of steps ahead, and an interval that holds what it says."""
    model = tr.Model({"slope": dist.Uniform(-1.0, 1.0), "noise": dist.HalfNormal(1.0)}, Autoregression())
    y = [1.0]
    for _ in range(60):
        y.append(0.8 * y[-1] + 0.5 * RNG.normal())
    posterior = tr.infer(model, tr.Data(np.array(y[1:]), given=np.array(y[:-1])), tr.Laplace(), verify=None)
    told = posterior.predict([1, 5], draws=200)
    params, weights = posterior.spread(200)
    for i, steps in enumerate([1, 5]):
        means = params["slope"] ** steps * y[-1]
        variances = params["noise"] ** 2 * np.sum(params["slope"][:, None] ** (2 * np.arange(steps)), 1)
        mean = weights @ means
        assert told.mean[i] == pytest.approx(mean)
        assert told.aleatoric[i] == pytest.approx(np.sqrt(weights @ variances))
        assert told.epistemic[i] == pytest.approx(np.sqrt(weights @ (means - mean) ** 2))
        for bound, level in ((told.lower, 0.05), (told.upper, 0.95)):
            below = weights @ stats.norm.cdf(bound[i], means, np.sqrt(variances))
            assert abs(below - level) < Z * np.sqrt(level * (1 - level) / 1000)
    with pytest.raises(SettingsError, match="own method predict"):
        posterior.predict([1], calibrate=y)


class Process:
    """A Gaussian process; a row is all of its values, given where they are."""

    def cov(self, params, a, b):
        return params["scale"] ** 2 * jnp.exp(-0.5 * jnp.square(a[:, None] - b[None]))

    def __call__(self, params, x):
        noisy = self.cov(params, x, x) + 0.01 * jnp.eye(len(x))
        return dist.MultivariateNormal(jnp.zeros(len(x)), noisy)

    def predict(self, params, x, rows):
        (y,), (seen,) = rows
        gain = jnp.linalg.solve(self.cov(params, seen, seen) + 0.01 * jnp.eye(len(seen)), self.cov(params, seen, x)).T
        left = self.cov(params, x, x) - gain @ self.cov(params, seen, x) + 0.01 * jnp.eye(len(x))
        return dist.MultivariateNormal(gain @ y, left)


def test_a_gaussian_process_is_predicted_where_it_was_not_seen():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x = np.linspace(0.0, 5.0, 12)
    y, new = np.sin(x), np.array([0.3, 4.0, 7.0])
    kernel = ConstantKernel(1.3**2) * RBF(1.0) + WhiteKernel(0.01)
    exact = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(x[:, None], y)
    mean, sd = exact.predict(new[:, None], return_std=True)
    told = prediction.ahead(Process().predict, {"scale": np.array([1.3])}, np.ones(1), new, (y[None], x[None]))
    np.testing.assert_allclose(told.mean, mean, atol=1e-6)
    np.testing.assert_allclose(told.sd, sd, atol=1e-6)
    assert np.all(told.epistemic < 1e-9)  # of one θ


def test_predictions_that_no_number_holds_are_told():
    model = tr.Model({"b": dist.Normal(0, 3)}, lambda p, x: dist.LogNormal(p["b"] * x, 0.1))
    theta = {"b": np.ones(5)}
    with pytest.warns(TractableWarning, match=r"2 of 4 predictions are too large .* the first in row 2"):
        found = predict(model, theta, np.ones(5), np.array([0.0, 1.0, 2000.0, 3000.0]), level=0.9, seed=0)
    np.testing.assert_allclose(found.mean[:2], np.exp([0.005, 1.005]), rtol=1e-5)
