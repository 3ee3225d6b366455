"""What a notebook shows of results, and folders that are written over and read without their model."""

import json
import re
import sys

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core.errors import CheckpointError
from tractable.core.shared import made_again, recipe
from tractable.engine.progress import progress_of
from tractable.glm import linear
from tractable.pages import plots

pytestmark = pytest.mark.laws

X = np.random.default_rng(2).normal(size=(30, 2))
DATA = tr.Data(X @ np.array([1.0, 2.0]) + 0.3 * np.cos(np.arange(30)), given=X)


@pytest.fixture(scope="module")
def posterior() -> tr.Posterior:
    return tr.infer(linear.bayesian_linear(2, 0.3, 1.0), DATA, tr.MAP(), verify=None)


def test_results_are_shown(posterior):
    """Numbers that are there, within a style that ends with the result, and no page around it."""
    compared = tr.compare(posterior.model, DATA, [tr.MAP()], reference={"weights": (np.zeros(2), np.ones(2))})
    prediction = posterior.predict(X)
    shown = {"1]": posterior, "mean error": compared, "epistemic": prediction, "Rows not shown: 20": prediction}
    for words, result in shown.items():
        html = result._repr_html_()
        assert words in html and html.startswith('<div class="tractable">'), words
        assert "@scope (.tractable)" in html and "<html" not in html and not re.search(r"(?m)^ *body \{", html)
    report = posterior.report()
    assert all(check.sentence.split(",")[0].replace("'", "&#39;") in report._repr_html_() for check in report.checks)
    assert len(compared.plot().axes) > 0


def test_a_summary_prints_every_column(monkeypatch):
    model = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["a"], 1.0))
    walk = tr.RandomWalk(chains=2, draws=100, warmup=0, preconditioner=None)
    table = tr.infer(model, np.arange(5.0), walk, verify=None).summary()
    monkeypatch.setenv("COLUMNS", "50")
    assert all(str(column) in repr(table) for column in table.columns)
    assert len(table.columns) == 8 and "..." not in repr(table)


def test_a_folder_is_written_over_only_where_asked(posterior, tmp_path):
    posterior.save(tmp_path)
    other = tr.infer(linear.bayesian_linear(2, 0.3, 1.0), DATA, tr.Laplace(draws=20), verify=None)
    with pytest.raises(CheckpointError, match="overwrite=True"):
        other.save(tmp_path)
    other.save(tmp_path, overwrite=True)
    loaded = tr.load(tmp_path, other.model)
    assert loaded.method == other.method
    np.testing.assert_array_equal(loaded.values, other.values)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp")]


def test_a_built_in_model_is_made_again(posterior, tmp_path):
    """From what the folder says of it, which another process reads as well."""
    posterior.save(tmp_path / "own")
    made = json.loads((tmp_path / "own" / "posterior.json").read_text())["made"]
    assert (made["module"], made["name"]) == (
        "tractable.models.linear",
        "bayesian_linear",
    )  # as earlier versions write it
    assert list(made["arguments"].values())[:3] == [2, 0.3, 1.0]
    assert tr.load(tmp_path / "own", data=DATA).model is posterior.model
    mine = tr.Model(posterior.model.prior, posterior.model.likelihood)
    assert recipe(mine) is None
    tr.infer(mine, DATA, tr.MAP(), verify=None).save(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="model of your own"):
        tr.load(tmp_path / "mine")


@pytest.mark.parametrize(
    "make",
    [
        lambda: tr.models.neural_network(tr.models.mlp(2, (3,), 1), noise=0.5, prior=tr.models.scale_mixture()),
        lambda: tr.models.gaussian_mixture(2, 2, "tied", centre=np.array([0.1, 1 / 3])),
        lambda: tr.models.factor_analysis(3, 1),
        lambda: tr.models.bayesian_gaussian_mixture(2, 2, mean_prior=[0.1, 1 / 3]),
    ],
)
def test_a_recipe_makes_the_same_model(make):
    model = make()
    again = made_again(json.loads(json.dumps(recipe(model))))
    key = jax.random.key(0)
    assert (recipe(again), again.names) == (recipe(model), model.names)
    for one, other in zip(jax.tree.leaves(model.example(key)), jax.tree.leaves(again.example(key)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.test
def test_an_activation_of_ones_own_has_no_recipe():
    assert recipe(tr.models.neural_network(tr.models.mlp(2, (3,), 1, activation=jax.nn.gelu))) is None


@pytest.mark.quick
def test_a_notebook_has_a_bar(monkeypatch, capsys):
    """Where there is no terminal progress is silent, but in a notebook it goes where cells show what is printed.

    Without ipywidgets rich would warn in every cell, so there is no bar.
    """
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for kernel, widgets in ((False, True), (True, False), (True, True)):
        if kernel:
            monkeypatch.setitem(sys.modules, "ipykernel", sys)
        monkeypatch.setattr("importlib.util.find_spec", lambda name, widgets=widgets: sys if widgets else None)
        with progress_of(None) as say:
            say("drawing", 1, 2)
        seen = capsys.readouterr()
        assert bool(seen.out) == (kernel and widgets) and not seen.err


@pytest.mark.quick
def test_long_names_fit_into_figures():
    short = plots.short("weights[3] of the neighbourhood Zurich Oerlikon am See and of further ones", 24)
    assert all(len(line) <= 24 for line in short.splitlines()) and len(short.splitlines()) == 2
    assert plots.short("plan") == "plan"
