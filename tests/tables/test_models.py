"""A model of a table: its numbers, rows and predictions in the names and units of the table."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from commands import run
from scipy.special import expit, logit

import tractable as tr
from tractable.core.errors import ArgumentError, DataError, SettingsError, TractableWarning
from tractable.diagnostics.belief import Point
from tractable.estimators import BayesianCountRegression, BayesianLinearRegression, BayesianLogisticRegression
from tractable.posterior.posterior import Posterior
from tractable.tables import fit as fit_module
from tractable.tables.encoder import fit_encoder
from tractable.tables.models import table_model

pytestmark = [pytest.mark.laws, pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")]

G, N = np.random.default_rng(3), 60
TABLE = pd.DataFrame(
    {
        "size": G.normal(50.0, 7.0, N), "red": G.choice(["no", "yes"], N), "town": G.choice(["Ulm", "Bern", "Rom"], N),
        "when": pd.date_range("2020-01-01", periods=N, freq="11D").astype(str),
    }
)  # fmt: skip
Y = {
    "normal": 100 + 5 * G.normal(size=N), "student-t": 100 + 5 * G.standard_t(4, N), "lognormal": G.lognormal(2, 1, N),
    "gamma": G.gamma(3.0, 4.0, N), "weibull": G.weibull(2.0, N) * 9, "poisson": G.poisson(7.0, N),
    "negative-binomial": G.negative_binomial(2, 0.3, N), "bernoulli": G.choice(["a", "b"], N),
    "beta": G.beta(2.0, 3.0, N), "categorical": G.choice(["a", "b", "c"], N), "exponential": G.exponential(8.0, N),
    "zero-inflated-negative-binomial": G.negative_binomial(2, 0.3, N) * (G.random(N) < 0.7),
}  # fmt: skip
LINK = {"normal": lambda m: m, "student-t": lambda m: m, "bernoulli": logit, "beta": logit, "categorical": np.log}


def point(family: str) -> tuple[Posterior, pd.DataFrame, np.ndarray]:
    """A posterior of one random θ, its table, and its parameters."""
    frame = TABLE.assign(y=Y[family])
    model = table_model(fit_encoder(frame, "y", family=family))
    position = np.random.default_rng(1).normal(0.0, 0.3, model.space.size)
    return Posterior(model, None, tr.MAP(), 0, Point(position=position)), frame, position


def eta(posterior: Posterior, frame: pd.DataFrame, family: str) -> np.ndarray:
    """The linear predictor of rows in the table's units, from the predicted mean; of classes its logarithm."""
    found = posterior.predict(frame)
    return LINK.get(family, np.log)(np.float64(found.probabilities if family == "categorical" else found.mean))


@pytest.mark.parametrize("family", Y)
def test_effects_are_what_they_say(family):
    """One more unit, True in place of False, and another level change η as the effects say, in the table's units."""
    posterior, frame, _ = point(family)
    told, rows = posterior.summary(derived=False)["mean"], frame.head(4)
    change = {
        "size": (rows.assign(size=rows["size"] + 1.0), rows),
        "red": (rows.assign(red="yes"), rows.assign(red="no")),
        "town[Rom]-town[Ulm]": (rows.assign(town="Rom"), rows.assign(town="Ulm")),
    }
    for name, (after, before) in change.items():
        moved = eta(posterior, after, family) - eta(posterior, before, family)
        first, _, second = name.partition("-")
        if family == "categorical":
            moved = moved - moved.mean(1, keepdims=True)
            wanted = [told[f"{c}.{first}"] - (told[f"{c}.{second}"] if second else 0.0) for c in "abc"]
            np.testing.assert_allclose(moved, np.tile(wanted, (4, 1)), atol=2e-4, err_msg=name)
            continue
        wanted = told[first] - (told[second] if second else 0.0)
        unit = Y[family].std() if family in ("normal", "student-t") else 1.0
        np.testing.assert_allclose(moved, wanted, rtol=1e-3, atol=1e-4 * unit, err_msg=name)
    levels = [told[f"{'a.' if family == 'categorical' else ''}town[{level}]"] for level in ("Bern", "Rom", "Ulm")]
    np.testing.assert_allclose(sum(levels), 0.0, atol=1e-6 * np.abs(levels).max())


@pytest.mark.parametrize("family", ["normal", "student-t", "lognormal", "gamma", "weibull", "exponential", "beta"])
def test_densities_are_those_of_the_tables_units(family):
    """They integrate to 1 over the target, which the model itself scales."""
    posterior, frame, _ = point(family)
    t = np.linspace(-25.0, 15.0, 4001)
    grid = {"normal": 100 + 100 * t, "student-t": 100 + 100 * t, "beta": expit(t[np.abs(t) < 15])}.get(
        family, np.exp(t)
    )
    rows = pd.concat([frame.head(1)] * len(grid)).assign(y=grid)
    density = np.exp(np.float64(posterior.log_predictive(posterior.model.table.data(rows))))
    np.testing.assert_allclose(np.trapezoid(density, grid), 1.0, rtol=0.02)


def test_leave_one_out_is_in_the_tables_units():
    """A target in other units has densities in these units, and the same fit; a bounded row's probability has none."""
    frame = pd.DataFrame({"x": TABLE["size"], "y": Y["lognormal"], "died": np.arange(N) % 4 > 0})
    for settings in ({}, {"event": "died", "family": "weibull"}):
        loos, likelihoods = [], []
        for unit in (1.0, 1000.0):
            table = frame.assign(y=unit * frame["y"])[["x", "y", *(["died"] if settings else [])]]
            posterior = tr.fit(table, "y", method="laplace", progress=False, verify=None, **settings)
            loos.append(posterior.loo())
            likelihoods.append(posterior.log_likelihood(draws=10))
        moved = np.log(1000.0) * (frame["died"].to_numpy() if settings else np.ones(N))
        np.testing.assert_allclose(loos[0].pointwise - loos[1].pointwise, moved, atol=1e-3)
        np.testing.assert_allclose(
            loos[0].elpd - loos[1].elpd, moved.sum() + 0 * loos[0].elpd, rtol=1e-4
        )  # NaN if a k-hat is large
        np.testing.assert_allclose(likelihoods[0] - likelihoods[1], moved * np.ones_like(likelihoods[0]), atol=1e-2)


@pytest.mark.parametrize("family", ["normal", "poisson", "bernoulli"])
def test_the_intercept_is_that_of_a_row_of_mean_inputs(family):
    """η of the rows varies about it: its mean over the rows of training is the intercept."""
    posterior, frame, _ = point(family)
    told = posterior.summary(derived=False)["mean"]
    unit = Y[family].std() if family == "normal" else 1.0
    np.testing.assert_allclose(eta(posterior, frame, family).mean(), told["intercept"], atol=2e-4 * unit)
    assert posterior.names[:2] != ["intercept", "size"] and list(told.index[:2]) == ["intercept", "size"]


def test_several_targets_have_numbers_of_their_own():
    frame = TABLE.assign(y=Y["normal"], z=10 * Y["student-t"])
    posterior = tr.fit(frame, ["y", "z"], exclude=["when"], progress=False, verify=None)
    how = {"exclude": ["when"], "progress": False, "verify": None, "family": "normal"}
    each = {name: tr.fit(frame.drop(columns=other), name, **how) for name, other in (("y", "z"), ("z", "y"))}
    told = posterior.summary()
    for name, alone in each.items():
        found = alone.summary()
        mine = told.loc[[f"{name}.{row}" for row in found.index]]
        assert np.all(np.abs(mine["mean"].to_numpy() - found["mean"]) < 0.1 * found["sd"])
    predicted = posterior.predict(frame.head(2)).to_frame()
    assert {"mean(y)", "upper(z)"} <= set(predicted) and abs(predicted["mean(z)"] / 1000 - 1).max() < 0.2


def test_the_call_is_the_command(tmp_path):
    """The same draws to the last digit, and the same predictions."""
    path, frame = tmp_path / "t.csv", TABLE.assign(customer_id=1000 + np.arange(N)[::-1], y=Y["poisson"])
    frame.to_csv(path, index=False)
    done = run("fit", path, "--target", "y", "--held-out", 0, "--quiet", "--out", tmp_path / "run")
    assert done.exit_code in (0, 3), done.output
    shell, call = tr.load(tmp_path / "run"), tr.fit(path, "y", progress=False)
    np.testing.assert_array_equal(shell.values, call.values)
    pd.testing.assert_frame_equal(shell.summary(), call.summary())
    written = pd.read_csv(tmp_path / "run" / "summary.csv", index_col=0)
    assert list(written.index) == list(call.summary().index) and "town[Rom]" in written.index
    assert run("predict", tmp_path / "run", path, "--out", tmp_path / "p.csv").exit_code == 0
    written = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(written["mean"], call.predict(frame).to_frame()["mean"], rtol=1e-6)
    assert list(written)[:3] == ["row", "customer_id", "mean"] and (written["row"] == np.arange(N)).all()
    assert (written["customer_id"] == frame["customer_id"]).all()


def test_what_is_saved_knows_its_table(tmp_path):
    frame = TABLE.assign(y=Y["categorical"])
    posterior = tr.fit(frame, "y", method="laplace", progress=False)
    posterior.save(tmp_path / "a")
    again = tr.load(tmp_path / "a")
    pd.testing.assert_frame_equal(again.summary(), posterior.summary())
    pd.testing.assert_frame_equal(again.predict(frame).to_frame(), posterior.predict(frame).to_frame())
    assert set(again.predict(frame).to_frame()["class"]) <= {"a", "b", "c"}


def test_a_term_is_a_variable_of_arviz():
    posterior = tr.fit(TABLE.assign(y=Y["normal"]), "y", progress=False)
    tree = posterior.to_arviz(draws=50, groups=("posterior", "prior"))
    assert tree.posterior["town"].dims == ("chain", "draw", "town_level")
    assert tree.posterior["town_level"].values.tolist() == ["Bern", "Rom", "Ulm"]
    assert {"intercept", "size", "red", "noise"} <= set(tree.posterior) == set(tree.prior)
    mean = posterior.summary()["mean"]
    assert abs(float(tree.posterior["size"].mean()) - mean["size"]) < posterior.summary()["sd"]["size"]


STRANGE = ("noise", "intercept", "draw", "chain", "sample", "income [k]", "price/sqm", "g_level", "g[a]", "β", "a.b")


@pytest.mark.parametrize("formula", [False, True])
def test_any_name_of_a_column_is_a_name_of_a_number(formula):
    """Columns may be called as parameters and as ArviZ's axes: every number has a name of its own, everywhere."""
    rng, names = np.random.default_rng(3), [*STRANGE, "z"]
    frame = pd.DataFrame(rng.normal(size=(60, len(names))), columns=names).assign(g=np.resize(["a", "a[1]", "b]"], 60))
    frame["y"] = frame.to_numpy()[:, :-1].astype(float) @ np.arange(1.0, 1 + len(names)) + rng.normal(size=60)
    target = "y ~ " + " + ".join(f"`{name}`" for name in [*names, "g"]) if formula else "y"
    posterior = tr.fit(frame, target, method="laplace", progress=False)
    summary = posterior.summary()
    assert summary.index.is_unique
    of_column = [alone if (alone := f"{name} (column)") in summary.index else name for name in names]
    np.testing.assert_allclose(summary["mean"][of_column], np.arange(1.0, 1 + len(names)), atol=1.5)
    tree = posterior.to_arviz(groups=("posterior",), draws=20).posterior
    assert sum(int(np.prod(tree[name].shape[2:])) for name in tree) == len(summary)
    levels = set(tree[tree["g" if formula else "g (column)"].dims[2]].values.tolist())  # "g[a]" is also a column
    assert levels == ({"a[1]", "b]"} if formula else {"a", "a[1]", "b]"})
    for name in (name.replace("/", "_") for name in names):
        variable = alone if (alone := f"{name} (column)") in tree.data_vars else name
        assert tree[variable].dims == ("chain", "draw"), name


def test_formulas_and_networks_are_fitted_too():
    frame = TABLE.assign(y=Y["normal"])
    by_formula = tr.fit(frame, "y ~ size + (1 | town)", method="map", progress=False, verify=None)
    assert {"size", "sd(1|town)", "1|town[Rom]"} <= set(by_formula.summary().index)
    network = tr.fit(frame, "y", hidden=[3], method=tr.MAP(steps=20), progress=False, verify=None)
    assert abs(network.predict(frame).mean.mean() - 100) < 5 and network.view is None


@pytest.mark.parametrize(("hidden", "repeats", "expected"), [(8, 1, "hmc"), (8, 500, "bbb"), (5000, 1, "bbb")])
def test_small_networks_are_drawn_by_hmc(monkeypatch, hidden, repeats, expected):
    class Chosen(Exception):
        pass

    def stop(model, data, method, **_):
        raise Chosen(method.label)

    monkeypatch.setattr(fit_module, "infer", stop)
    frame = pd.concat([TABLE.assign(y=Y["normal"])] * repeats, ignore_index=True)
    with pytest.raises(Chosen, match=expected):
        tr.fit(frame, "y", hidden=[hidden])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"target": "z"}, "z"),
        ({"target": "y", "held_out": 1.0}, r"a share of the rows in \[0, 1\); got 1.0"),
        ({"target": "y ~ size", "hidden": [3]}, "A formula has no hidden layers"),
        ({"target": "y", "famly": "normal"}, "family"),
        ({"target": "y", "method": "nutz"}, "nuts"),
    ],
)
def test_what_is_refused(given, sentence):
    with pytest.raises((ArgumentError, DataError, SettingsError), match=sentence):
        tr.fit(TABLE.assign(y=Y["normal"]), **given, progress=False)


def test_estimators_take_the_columns_that_the_command_takes():
    """Effects are those of the call; new rows are encoded as the fitted ones; pickles and clones know the columns."""
    x = TABLE.drop(columns="when")
    made = BayesianLinearRegression(random_state=0).fit(x, Y["normal"])
    call = tr.fit(x.assign(y=Y["normal"]), "y", progress=False).summary()
    assert np.all(np.abs(made.posterior_.summary()["mean"] - call["mean"]) < 0.1 * call["sd"])
    assert list(made.feature_names_in_) == list(x) and made.n_features_in_ == 3
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict(x), made.predict(x))
    np.testing.assert_array_equal(made.predict(x.iloc[[5]]), made.predict(x)[5:6])
    with pytest.raises(DataError, match="X was a data frame with the columns 'size', 'red', 'town'"):
        made.predict(np.zeros((2, 3)))
    with pytest.raises(DataError, match="Fill them in, or use tractable"):
        BayesianLinearRegression().fit(x.assign(town=[None, *x["town"][1:]]), Y["normal"])
    for kind, y in ((BayesianCountRegression, Y["poisson"]), (BayesianLogisticRegression, Y["categorical"])):
        assert kind(random_state=0).fit(x, y).predict(x).shape == (N,)


def test_formats_of_predictions():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)
        posterior = tr.fit(TABLE.assign(y=Y["bernoulli"]), "y", method="laplace", progress=False)
    table = posterior.predict(TABLE.head(3)).to_frame()
    assert list(table) == ["class", "p(a)", "p(b)", "epistemic"]
    np.testing.assert_allclose(table["p(a)"] + table["p(b)"], 1.0, rtol=1e-6)
    bare = tr.fit(TABLE.assign(y=Y["normal"]), "y", progress=False).predict(TABLE.head(3))
    assert list(bare.to_frame()) == ["mean", "sd", "aleatoric", "epistemic", "lower", "upper"]
