"""Models compared by the rows that they predict when these are left out, against exact answers."""

import math
import os

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from montecarlo import Z, assert_holds, broken, error
from scipy import stats

import tractable as tr
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.diagnostics.belief import Draws
from tractable.gallery import conjugate
from tractable.posterior import pointwise
from tractable.posterior.model_comparison import paired_error, stacking_weights

pytestmark = pytest.mark.test

N, SIZE = 150, 4000
Y = 1.2 + 0.8 * np.random.default_rng(5).normal(size=N)
MODELS = {"near": (0.8, 0.5, 1.5), "wide": (1.4, 0.5, 1.5), "far": (0.8, -3.0, 0.1)}  # noise, prior's mean and sd


def fitted(noise, mean, sd, y=Y, weights=None, seed=0, **data):
    """Independent draws of the exact posterior of a normal mean."""
    counted = y if weights is None else np.repeat(y, weights)
    exact = conjugate.normal_mean(counted, noise, mean, sd)
    draws = exact.mean + exact.sd * np.random.default_rng(seed).normal(size=(4, SIZE // 4, 1))
    model = tr.Model({"mu": dist.Normal(mean, sd)}, lambda params: dist.Normal(params["mu"], noise))
    return tr.Posterior(model, tr.Data(y, weights=weights, **data), tr.NUTS(), 0, Draws(positions=draws))


def without(noise, mean, sd):
    """log p(y_n | y without n), exactly, and the Monte Carlo error of its estimate by reweighting SIZE draws.

    Draws θ ~ N(m, s²) have weights 1/p(y_n | θ), whose mean is 1/p(y_n | y without n); the weights' second moment is
    known by integration.
    """
    whole, rest = conjugate.normal_mean(Y, noise, mean, sd), []
    grid = whole.mean + whole.sd * np.linspace(-8, 8, 4001)[:, None]
    density = stats.norm(whole.mean, whole.sd).pdf(grid)
    odds = 1 / stats.norm(grid, noise).pdf(Y)
    first, second = (np.sum(density * odds**k, 0) / density.sum() for k in (1, 2))
    for n in range(N):
        left = conjugate.normal_mean(np.delete(Y, n), noise, mean, sd)
        rest.append(stats.norm(left.mean, math.hypot(left.sd, noise)).logpdf(Y[n]))
    return np.array(rest), np.sqrt((second / first**2 - 1) / SIZE)


def law(found, se=None):
    """Elpds, differences and their standard errors; the errors of a sum over rows are at most the sum of errors."""
    exact = {name: without(*numbers) for name, numbers in MODELS.items()}
    best, scores = exact["near"], {}
    for name, (rows, errors) in exact.items():
        scores[f"elpd of {name}"] = error(found.table.loc[name, "elpd_loo"], rows.sum(), Z * errors.sum())
        if name != "near":
            tolerance = Z * (errors.sum() + best[1].sum())
            scores[f"difference of {name}"] = error(
                found.table.loc[name, "difference"], (rows - best[0]).sum(), tolerance
            )
            wanted = math.sqrt(N) * np.std(rows - best[0])
            scores[f"se of {name}"] = error((se or found.table["se"])[name], wanted, 0.05 * wanted)
    return scores


def test_differences_of_exact_models():
    found = tr.compare_models({name: fitted(*numbers) for name, numbers in reversed(MODELS.items())})
    assert_holds(law(found))
    assert list(found.table.index) == list(found.loos) == ["near", "wide", "far"]
    np.testing.assert_allclose(found.table["p_loo"], [loo.p for loo in found.loos.values()])
    np.testing.assert_allclose(found.table["k-hat"], [loo.khat for loo in found.loos.values()])
    assert found.table.loc["near", ["difference", "se"]].tolist() == [0, 0] and not found.remarks
    unpaired = {name: math.hypot(found.loos[name].se, found.loos["near"].se) for name in MODELS}
    assert broken(law(found, unpaired)), "standard errors as of two independent sets of rows"


def conditions(log_densities, weights, counts):
    """The first-order conditions: ∂f/∂π_k ≤ 1, with equality where π_k > 0, and Σ π = 1."""
    densities = np.exp(log_densities - log_densities.max(1, keepdims=True))
    slopes = counts / counts.sum() @ (densities / (densities @ weights)[:, None])
    return {
        "slopes": (slopes.max() - 1) / 1e-8,
        "slack": float(np.max(weights * np.abs(slopes - 1))) / 1e-6,
        "sum": error(weights.sum(), 1, 1e-12),
        "sign": float(-weights.min()) / 1e-12,
    }


@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0, 5.0, 300.0])
@pytest.mark.parametrize(("rows", "models"), [(40, 2), (1000, 6)])
def test_stacking_weights_fulfil_the_first_order_conditions(spread, rows, models):
    rng = np.random.default_rng(rows)
    log_densities = spread * (rng.normal(size=(rows, models)) + 0.1 * rng.normal(size=models))
    counts = rng.integers(1, 4, rows).astype(float)
    weights = stacking_weights(log_densities, counts)
    assert_holds(conditions(log_densities, weights, counts))
    if 1 <= spread < 300:  # weights ∝ exp(elpd), which are not those of stacking
        of_elpd = counts @ log_densities
        pseudo = np.exp(of_elpd - of_elpd.max())
        assert broken(conditions(log_densities, pseudo / pseudo.sum(), counts))


def test_a_mixture_of_models_for_complementary_rows():
    """Each model predicts rows that the other cannot, so its weight is the share of these rows."""
    y = np.repeat([-9.0, 9.0], [30, 70])
    low, high = (fitted(1.0, mean, 1e-3, y) for mean in (-9.0, 9.0))
    found = tr.compare_models({"low": low, "high": high})
    np.testing.assert_allclose(found.table.loc[["low", "high"], "weight"], [0.3, 0.7], atol=1e-6)


def test_equal_models_do_not_differ():
    found = tr.compare_models({"a": fitted(0.8, 0.5, 1.5), "b": fitted(0.8, 0.5, 1.5)})
    assert not found.table[["difference", "se"]].to_numpy().any() and found.table["weight"].tolist() == [0.5, 0.5]
    assert "b: less than 4 nats below a, a small difference with an unreliable error." in str(found)


def test_a_row_of_weight_two_counts_as_two_rows():
    counts = np.random.default_rng(2).integers(0, 3, N)
    tables = []
    for rows, weights in ((Y, counts), (np.repeat(Y, counts), None)):
        pair = [fitted(*MODELS[name], rows, weights) for name in ("near", "wide")]
        tables.append(tr.compare_models(dict(zip("ab", pair, strict=True))).table)
    pd.testing.assert_frame_equal(*tables, rtol=1e-6)


def test_some_rows_have_the_error_of_a_sample():
    pair = {name: fitted(*MODELS[name]) for name in ("near", "wide")}
    whole, some = tr.compare_models(pair), tr.compare_models(pair, rows=50)
    few = some.loos["wide"].pointwise - some.loos["near"].pointwise
    assert len(few) == 50
    np.testing.assert_allclose(some.table.loc["wide", "se"], N * np.std(few) / math.sqrt(50))
    z = (some.table["difference"] - whole.table["difference"])["wide"] / some.table.loc["wide", "se"]
    assert abs(z) < Z


def test_the_error_of_a_difference_is_that_of_its_sum():
    d, counts = np.array([1.0, 3.0, 5.0]), np.array([1.0, 2.0, 1.0])
    repeated = np.repeat(d, counts.astype(int))
    np.testing.assert_allclose(paired_error(d, counts), math.sqrt(4) * repeated.std())


def test_remarks_say_what_not_to_rely_on(monkeypatch):
    monkeypatch.setattr(pointwise, "MATCHED", 0)
    y = np.append(Y[:39], 30.0)
    found = tr.compare_models(
        {"a": fitted(0.8, 1.0, 1.0, y), "b": fitted(8.0, 1.0, 1.0, y), "c": fitted(9.0, 1.0, 1.0, y)}
    )
    assert list(found.table.index) == ["b", "c", "a"]
    assert found.table.loc["a", ["elpd_loo", "difference", "se", "p_loo", "weight"]].isna().all()
    assert found.table["weight"].sum() == pytest.approx(1)
    text, html = str(found), found._repr_html_()
    for sentence in (
        "a has no elpd_loo: 1 row of 40 cannot be left out by reweighting draws, as k-hat is up to",
        "40 rows: with fewer than 100, the standard errors of differences are too small.",
    ):
        assert sentence in text and sentence in html
    assert "–" in text and "<table" in html and all(name in html for name in found.table.columns)
    none = tr.compare_models({"a": fitted(0.8, 1.0, 1.0, y), "b": fitted(0.8, 1.0, 1.1, y)})
    assert none.table.drop(columns="k-hat").isna().all(axis=None) and len(none.remarks) == 3


@pytest.mark.laws
def test_tables_are_compared_in_their_units():
    """Student's t standardises by other numbers than the normal, and "z" is no input of one model."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=300), "z": rng.normal(size=300)})
    table["y"] = 100 + 20 * (table["x"] + rng.standard_t(3, 300))
    settings = {"method": tr.Laplace(), "verify": None}
    normal, other = tr.fit(table, "y", **settings), tr.fit(table, "y", exclude=["z"], family="student-t", **settings)
    found = tr.compare_models({"normal": normal, "t": other}).table
    assert found.index[0] == "t" and 0 < -found.loc["normal", "difference"] < 100
    counts = pd.DataFrame({"x": table["x"], "y": rng.poisson(9.0, 300)})
    kinds = {family: tr.fit(counts, "y", family=family, **settings) for family in ("normal", "poisson")}
    with pytest.raises(ModelError, match="that all give y a density, or all a probability; only one of 'normal' and"):
        tr.compare_models(kinds)
    with pytest.raises(DataError, match="the same rows"):
        tr.compare_models({"a": normal, "b": kinds["normal"]})


A = fitted(0.8, 0.5, 1.5)
REFUSED = {
    "one": ({"a": A}, SettingsError, r"^compare_models expects at least two posteriors by name, .*; got \['a'\]\."),
    "no posterior": ({"a": A, "b": Y}, SettingsError, r"expects at least two.*; got ndarray as 'b'\."),
    "other y": ({"a": A, "b": fitted(0.8, 0.5, 1.5, Y + 0.01)}, DataError, "the y, weights or groups of 'b', Data"),
    "fewer": ({"a": A, "b": fitted(0.8, 0.5, 1.5, Y[1:])}, DataError, r"'b', Data\(149 rows.*'a', Data\(150 rows"),
    "weights": ({"a": A, "b": fitted(0.8, 0.5, 1.5, weights=np.full(N, 2))}, DataError, "fit both to the same rows"),
    "groups": ({"a": A, "b": fitted(0.8, 0.5, 1.5, group=np.arange(N) // 2)}, DataError, "75 groups"),
}  # fmt: skip
if os.environ.get("TRACTABLE_TYPECHECK") == "0":  # otherwise beartype refuses a list first
    REFUSED["a list"] = [A, A], SettingsError, "expects at least two posteriors by name, .*; got a list"


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused_in_a_sentence(case):
    given, kind, sentence = REFUSED[case]
    with pytest.raises(kind, match=sentence) as raised:
        tr.compare_models(given)
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)
