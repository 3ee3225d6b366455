"""Columns of many levels: partial pooling against sums over a grid, levels never seen, and the command line."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from commands import run
from scipy import stats

import tractable as tr
from tractable.cli import models as kinds
from tractable.core.errors import DataError, TractableWarning
from tractable.core.model import log_density
from tractable.glm.linear import generalised_linear
from tractable.posterior.readings import as_table, readings_of
from tractable.tables.encoder import Encoder, encode, fit_encoder
from tractable.tables.levels import with_levels

pytestmark = pytest.mark.laws

LEVELS, EACH = 200, 3
RNG = np.random.default_rng(0)
CITY = np.repeat(np.arange(LEVELS), EACH)
X = RNG.normal(3.0, 2.0, CITY.size)
Y = 10 + X + RNG.normal(0, 1.5, LEVELS)[CITY] + RNG.normal(0, 2.0, CITY.size)
TABLE = pd.DataFrame({"y": Y, "x": X, "city": [f"c{i:03d}" for i in CITY]})
NAMES = [f"c{i:03d}" for i in range(LEVELS)]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    with pytest.warns(TractableWarning, match="'city' has 200 distinct values: each has an effect of its own"):
        return fit_encoder(TABLE, "y", pool=None)


@pytest.mark.test
def test_columns_and_levels(encoder: Encoder):
    assert encoder.features == ["x"]
    again = Encoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    with pytest.warns(TractableWarning, match="'q': their effects are drawn from the levels' distribution"):
        rows = encode(again, pd.DataFrame({"x": [1.0, 2.0], "city": ["c007", "q"]}))
    assert rows.groups is not None
    assert rows.groups["level"].tolist() == [[7], [LEVELS]]
    model = kinds.model_of(again, {})
    assert model.names[:4] == ["intercept", "sd(1|city)", "1|city[c000]", "1|city[c001]"]
    # Several classes, and tables with no other input, are as they were: the rarest share a level.
    with pytest.warns(TractableWarning, match="'any other' is the level"):
        fit_encoder(TABLE[["y", "city"]], "y", pool=None)
    with pytest.warns(TractableWarning, match="'any other' is the level"):
        fit_encoder(TABLE, "y")


@pytest.mark.test
def test_density_is_that_written_by_hand(encoder: Encoder):
    rows = encode(encoder, TABLE)
    model = kinds.model_of(encoder, {})
    params = jax.tree.map(lambda a: jnp.asarray(a, float), model.sample_prior(jax.random.key(0)))
    v, w, noise = (np.asarray(params[name], np.float64) for name in ("levels", "weights", "noise"))
    a, sd, u = v[0], v[1], v[2:]
    x, y = (X - X.mean()) / X.std(), (Y - Y.mean()) / Y.std()
    expected = stats.norm.logpdf(y, a + w[0] * x + u[CITY], noise).sum() + stats.norm.logpdf(u, 0, sd).sum()
    expected += stats.norm.logpdf(a, 0, 5) + stats.norm.logpdf(w, 0, 2.5).sum()
    expected += stats.halfnorm.logpdf(sd, scale=2.5) + stats.halfnorm.logpdf(noise)

    def density(given: dict) -> float:
        return float(log_density(model, tr.Data(rows.y, given).arrays(), jacobian=False)(model.unconstrain(params)))

    given = rows.given
    np.testing.assert_allclose(density(given), expected, rtol=1e-9)
    # Mutants: the next level's effect, that of levels never seen, and levels out of step with rows.
    for wrong in (given["level"] + 1, 0 * given["level"] + LEVELS, np.roll(given["level"], 1, 0)):
        assert abs(density(given | {"level": wrong}) - expected) > 0.1


@pytest.mark.test
def test_a_missing_level_has_no_effect(encoder: Encoder):
    """η of None is that of a row without levels; where training lacked values, None is a level of its own."""
    x = pd.DataFrame({"x": [1.0, 1.0], "city": [None, "c003"]})
    model = kinds.model_of(encoder, {})
    params = model.sample_prior(jax.random.key(3))
    none, third = jax.vmap(lambda row: model.through.predictor(params, row))(encode(encoder, x).given)
    names = model.labels["levels"]
    np.testing.assert_allclose(third - none, params["levels"][names.index("1|city[c003]")], rtol=1e-6)
    weight = params["weights"][0] * (1.0 - X.mean()) / X.std()
    np.testing.assert_allclose(none, params["levels"][0] + weight, rtol=1e-6)
    with pytest.warns(TractableWarning, match="each has an effect of its own"):
        lacking = fit_encoder(TABLE.assign(city=TABLE["city"].where(TABLE.index % 50 > 0)), "y", "impute", pool=None)
    level = lacking.columns[1].levels.index("city is missing")
    assert encode(lacking, x).groups["level"].tolist() == [[level], [lacking.columns[1].levels.index("c003")]]


@pytest.mark.test
@pytest.mark.filterwarnings("ignore:Column")
def test_named_columns_are_pooled(tmp_path):
    """Text, whole numbers and dates of any number of levels are pooled if named; so the shell and shards do."""
    few = pd.DataFrame({"y": Y, "x": X, "code": CITY % 7, "city": [f"c{i % 9}" for i in CITY]})
    few["when"] = pd.Timestamp("2024-05-31") + pd.to_timedelta(CITY % 3, "D")
    for name, levels in [("code", 7), ("city", 9), ("when", 3)]:
        encoder = fit_encoder(few, "y", pool=[name])
        assert [term.name for term in encoder.levels] == [f"1|{name}"]
        assert len(encoder.levels[0].groups) == levels + 1 and encode(encoder, few).x.shape[1] == len(encoder.features)
    both = fit_encoder(few, "y", pool=["code", "city"])
    assert [term.name for term in both.levels] == ["1|code", "1|city"]
    assert fit_encoder(few, "y", pool=None) == fit_encoder(few, "y") == fit_encoder(few, "y", pool=[])
    days = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(CITY, "D"))
    for text in (days.dt.strftime("%d.%m.%Y"), days.dt.strftime("%Y-%m-%d"), pd.Series(CITY).map("{} days".format)):
        assert not fit_encoder(
            few.assign(when=text), "y", pool=None
        ).levels  # dates and durations as text are no levels
    few.to_csv(tmp_path / "few.csv", index=False)
    packed = run("pack", tmp_path / "few.csv", "--target", "y", "--pool", "code,city", "--out", tmp_path / "s")
    assert packed.exit_code == 0, packed.output
    for table in ("few.csv", "s"):
        options = [] if table == "s" else ["--pool", "city", "--pool", "code"]
        arguments = ["fit", str(tmp_path / table), "--target", "y", *options, "--method", "map", "--held-out", "0"]
        result = run(*arguments, "--verify", "none", "--out", tmp_path / f"{table} run")
        assert result.exit_code in (0, 3), result.output
        summary = pd.read_csv(tmp_path / f"{table} run" / "summary.csv", index_col=0)
        assert {"sd(1|code)", "1|code[6]", "1|city[c8]"} <= set(summary.index)


@pytest.mark.test
@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"pool": ["town"]}, "'town' is not a column"),
        ({"pool": ["y"]}, "'y' is not a column of the table other than the target"),
        ({"pool": ["city"], "exclude": ["city"]}, "excluded or have another role"),
        ({"pool": ["city", "x"], "exclude": ["z"]}, r"leaves no other input; .* y ~ \(1 \| city\) \+ \(1 \| x\)"),
        (
            {"pool": ["city"], "family": "categorical"},
            "expects one target of numbers or two classes; got 'y' of several",
        ),
        ({"pool": ["city"], "target": ["y", "z"]}, "expects one target"),
        ({"pool": ["city"], "formula": "y ~ x"}, r"write a term \(1 \| city\)"),
    ],
)
def test_a_column_that_cannot_be_pooled_is_refused(given, match):
    table = TABLE.assign(y=np.arange(len(TABLE)) % 3, z=Y)
    target = "" if "formula" in given else given.pop("target", "y")
    with pytest.raises(DataError, match=match), warnings.catch_warnings(action="ignore"):
        fit_encoder(table, target, **given)


def exact() -> dict[str, np.ndarray]:
    """Means and sds of sd, noise, the weight, and levels' effects: normal given both sds, over which a grid sums.

    Of equal levels σ²I + τ²ZZᵀ is known by its two eigenvalues, and a and w are two numbers.
    """
    x, y = (X - X.mean()) / X.std(), (Y - Y.mean()) / Y.std()
    both = np.column_stack([np.ones_like(x), x])
    within = [a - np.repeat(a.reshape(LEVELS, EACH, -1).mean(1), EACH, 0).reshape(a.shape) for a in (both, y)]
    means = [a.reshape(LEVELS, EACH, -1).mean(1) for a in (both, y)]
    logs, told, squares = [], [], []
    for noise in np.linspace(0.5, 0.95, 41):
        for sd in np.linspace(0.15, 0.9, 51):
            across = noise**2 + EACH * sd**2
            gram = within[0].T @ within[0] / noise**2 + EACH * means[0].T @ means[0] / across + np.diag([1 / 25, 0.16])
            cross = within[0].T @ within[1] / noise**2 + EACH * means[0].T @ means[1][:, 0] / across
            covariance = np.linalg.inv(gram)
            beta = covariance @ cross
            square = within[1] @ within[1] / noise**2 + EACH * means[1][:, 0] @ means[1][:, 0] / across
            determinants = LEVELS * ((EACH - 1) * np.log(noise**2) + np.log(across)) + np.linalg.slogdet(gram)[1]
            logs.append(-0.5 * (square - cross @ beta + determinants) - sd**2 / 12.5 - noise**2 / 2)
            shrink = EACH * sd**2 / across
            u = shrink * (means[1][:, 0] - means[0] @ beta)
            variance = sd**2 * (1 - shrink) + shrink**2 * np.einsum("gi,ij,gj->g", means[0], covariance, means[0])
            row = np.concatenate([[sd, noise, beta[1]], u])
            told.append(row)
            squares.append(row**2 + np.concatenate([[0, 0, covariance[1, 1]], variance]))
    mass = np.exp(np.array(logs) - max(logs))
    mass /= mass.sum()
    mean = mass @ np.array(told)
    return {"mean": mean, "sd": np.sqrt(mass @ np.array(squares) - mean**2)}


@pytest.mark.computes
def test_pooling_is_exact(encoder: Encoder):
    """Effects are drawn towards none as far as the rows say, by an sd that is learnt; a level never seen spreads."""
    rows, model = encode(encoder, TABLE), kinds.model_of(encoder, {})
    posterior = tr.infer(
        model, tr.Data(rows.y, rows.given), tr.NUTS(warmup=400, draws=400), seed=0, verify=None, progress=False
    )
    names = ["sd(1|city)", "noise", "weights[x]", *(f"1|city[{name}]" for name in NAMES)]
    told = as_table(readings_of(posterior, None), 0.9, None).loc[names]  # in the model's units, as the exact ones
    right = exact()
    effective = np.minimum(told["ess_bulk"], 1600).to_numpy()
    z = (told["mean"] - right["mean"]) / (right["sd"] / np.sqrt(effective))
    assert np.abs(z).max() < 5.33, z.abs().sort_values().tail(3)
    ratio = np.log(told["sd"] / right["sd"]) * np.sqrt(np.minimum(told["ess_tail"].to_numpy(), 1600) / 2)
    assert np.abs(ratio).max() < 2 * 5.33, ratio.abs().sort_values().tail(3)  # tails of few draws
    # Shrinkage: of a level's own mean, three rows leave what the closed form says.
    own = (Y - np.polyval(np.polyfit(X, Y, 1), X)).reshape(LEVELS, EACH).mean(1) / Y.std()
    slope = np.polyfit(own, told["mean"].to_numpy()[3:], 1)[0]
    assert 0.5 < slope < 0.75  # 3 τ² / (3 τ² + σ²) = 0.63 of those that made it
    # A level never seen spreads as the levels do, and the sd's own doubt with it.
    names, values = posterior.names, posterior.values.reshape(-1, len(posterior.names))
    new, known = (values[:, names.index(f"1|city[{name}]")].std() for name in ("new", NAMES[7]))
    assert abs(new / np.hypot(right["mean"][0], right["sd"][0]) - 1) < 0.15 and known < 0.8 * new


def test_a_model_without_an_intercept_has_levels_too(encoder: Encoder):
    """Grades have cutpoints for one; counts are given an offset beside x."""
    model = with_levels(generalised_linear(1, "ordered", 3), encoder.levels, [np.ones(LEVELS + 1)], [1.0])
    assert "intercept" not in model.names and model.names[2] == "sd(1|city)"
    params = model.sample_prior(jax.random.key(1))
    position = model.position_of(params)
    np.testing.assert_allclose(model.params(position)["levels"], params["levels"], rtol=1e-6)


def test_command_line(tmp_path):
    path, folder, out = tmp_path / "t.csv", tmp_path / "run", tmp_path / "p.csv"
    TABLE.to_csv(path, index=False)
    options = ("--method", "map", "--verify", "none", "--held-out", 0, "--quiet", "--out", folder)
    done = run("fit", path, "--target", "y", *options)
    assert done.exit_code in (0, 3), done.output
    TABLE.drop(columns="y").assign(city="nowhere").to_csv(path, index=False)
    assert run("predict", folder, path, "--out", out).exit_code == 0
    assert np.corrcoef(pd.read_csv(out)["mean"], X)[0, 1] > 0.99  # of the level of none
    assert "sd(1|city)" in (folder / "report.html").read_text()
