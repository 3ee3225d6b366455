"""The report is one file that stands alone, says the verdict and leaves nothing unescaped."""

import dataclasses
import io
import re
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from exact import crps_normal
from markupsafe import escape
from rich.console import Console
from scipy import signal, stats

from tractable.comparison import Comparison, compare
from tractable.core.approximations import inverse_softplus
from tractable.core.check import Check
from tractable.core.curve import SCORES
from tractable.core.errors import TractableWarning
from tractable.core.model import Data, Model
from tractable.diagnostics.belief import Draws, Fitted, Point
from tractable.diagnostics.report import Report
from tractable.glm.linear import generalised_linear
from tractable.inference import infer
from tractable.methods import MALA, MAP, NUTS, SGLD, BayesByBackprop, DeepEnsemble, MeanField, RandomWalk
from tractable.networks.network import mlp, neural_network
from tractable.pages import held_out, networks, parameters, plots, predictive, verdict
from tractable.pages.effects import effects_of
from tractable.pages.page import write_comparison_page, write_page
from tractable.pages.render import html as rendered
from tractable.pages.render import shown
from tractable.pages.sections import Cell, Section, Table, decimals, duration
from tractable.pages.terminal import to_terminal
from tractable.pages.terms import TERMS
from tractable.posterior.posterior import Posterior
from tractable.tables import encoder as tables
from tractable.tables.effects import effects
from tractable.tables.models import table_model, table_of, view_of
from tractable.tables.targets import PLAIN

pytestmark = pytest.mark.laws

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 2))
NUMBERS = Data(X @ [0.5, -1.0] + 0.3 * GENERATOR.normal(size=90), X)
BINARY = Data((X[:, 0] + GENERATOR.normal(size=90) > 0).astype(float), X)
CLASSES = Data(np.argmax(X @ np.ones((2, 3)) + GENERATOR.normal(size=(90, 3)), 1), X)
CAUTION = Report("caution", (), "NUTS")
SHORT = {"chains": 2, "draws": 40, "warmup": 20}


def coin() -> Model:
    return Model({"theta": dist.Beta(5, 5)}, lambda params: dist.Bernoulli(params["theta"]))


def body_of(sections) -> str:
    return rendered("", sections, "")


def fit(model, data, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)
        return infer(model, data, method, progress=False)


def read(path) -> str:
    text = path.read_text(encoding="utf-8")
    assert path.name == "report.html"
    assert "http" not in text and "<script" not in text
    assert not re.search(r"""(src|href)=(?!["']?#)""", text), "something is fetched"
    assert "url(" not in text.replace("url(#", "")
    assert ">nan<" not in text and ">inf<" not in text
    assert "#0a0b" not in text, "a stand-in for a colour is left"
    return text


def page(folder, posterior, **options) -> str:
    text = read(write_page(folder / "new", posterior, title="A title", **options))
    assert f"</svg>{posterior.report().verdict}</span>" in text
    for name in posterior.readings.names:
        assert escape(name) in text
    for check in posterior.report().checks:
        assert escape(check.name) in text
    return text


@pytest.fixture(scope="module")
def numbers():
    return fit(generalised_linear(2, "normal"), NUMBERS, MALA(**SHORT))


def test_draws_with_numbers_held_out(tmp_path, numbers):
    text = page(tmp_path, numbers, held_out=NUMBERS)
    for word in ("Trace", "Pairs", "RMSE", "coverage 90 %", "mean log predictive density", "Predictive checks"):
        assert word in text


def test_a_second_writing_is_the_same(tmp_path, numbers):
    first = page(tmp_path, numbers)
    assert page(tmp_path, numbers) == first


def test_one_chain(tmp_path):
    posterior = fit(generalised_linear(2, "bernoulli"), BINARY, MALA(chains=1, draws=40, warmup=20))
    text = page(tmp_path, posterior, held_out=BINARY)
    assert "Trace" in text
    assert "accuracy" in text and "Reliability diagram" in text


def test_many_classes(tmp_path):
    text = page(tmp_path, fit(generalised_linear(2, "categorical", 3), CLASSES, MAP()), held_out=CLASSES)
    assert "of every class" in text


def test_one_parameter_as_a_point(tmp_path):
    flips = Data([1, 0, 1, 1])
    text = page(tmp_path, fit(coin(), flips, MAP()), held_out=flips)
    assert "standard error" in text and "Pairs" not in text and "one point" in text


def test_sgld_shows_the_bias_it_predicts(tmp_path):
    posterior = fit(generalised_linear(2, "normal"), NUMBERS, SGLD(batch_size=30, **SHORT))
    text = page(tmp_path, posterior)
    assert "inflate" in text or "bias" in text


def test_weighted_draws(tmp_path):
    posterior = fit(coin(), Data([1, 0, 1, 1]), SGLD(batch_size=2, cycles=2, thin=1, **SHORT))
    assert posterior.weights is not None
    page(tmp_path, posterior)


def test_weighted_rows(tmp_path):
    text = page(tmp_path, fit(coin(), Data([1, 0, 1], weights=[1, 2.5, 2]), MAP()))
    assert "count as 5.5 by their weights" in text and "3 rows" in text


def test_moments_alone(tmp_path):
    posterior = infer(coin(), Data([1, 0, 1, 1]), MALA(**SHORT), progress=False, draws="moments")
    assert "moments only" in page(tmp_path, posterior, held_out=Data([1, 0]))


def test_interrupted_with_some_draws_or_one(tmp_path, numbers):
    for kept in (30, 1):
        info = {name: values[:, :kept] for name, values in numbers.info.items()}
        belief = dataclasses.replace(numbers.belief, positions=numbers.unconstrained[:, :kept], info=info)
        part = dataclasses.replace(numbers, interrupted=True, belief=belief, judged=None)
        text = read(write_page(tmp_path, part, title="A title", held_out=NUMBERS))
        assert "stopped before its end" in text and part.report().verdict in text


def test_stuck_chains_leave_no_number_that_is_none(tmp_path):
    posterior = fit(coin(), Data([1, 0, 1, 1]), RandomWalk(**SHORT))
    nowhere = np.zeros_like(posterior.unconstrained)
    posterior.belief = dataclasses.replace(posterior.belief, positions=nowhere)
    assert "reject" in page(tmp_path, posterior)


def test_text_is_escaped(tmp_path):
    model = Model({"<script>$a": dist.Normal(0, 1), "b&": dist.Normal(0, 1)},
                  lambda params: dist.Normal(params["<script>$a"] + params["b&"], 1.0))  # fmt: skip
    data = Data(np.array([0.1, 0.2, 0.4]))
    for method in (MAP(), MALA(**SHORT)):
        path = write_page(tmp_path, fit(model, data, method), title="<script>alert(1)</script>", held_out=data)
        text = read(path)
        assert "&lt;script&gt;alert(1)" in text and "&lt;script&gt;$a" in text and "b&amp;" in text


def test_a_table_is_told_in_its_own_words(tmp_path, numbers):
    """Its page names no number of the model, and has the intercept of a row of mean inputs."""
    frame = pd.DataFrame({"height<": X[:, 0], "width": X[:, 1], "mass": 100 * NUMBERS.y})
    encoder = tables.fit_encoder(frame, "mass")
    encoded = tables.encode(encoder, frame)
    own = dataclasses.replace(numbers, model=table_model(encoder))
    text = page(tmp_path, own, held_out=Data(encoded.y, encoded.x), encoder=encoder)
    assert "height&lt;" in text and "width" in text and "mean inputs" in text


def test_comparison(tmp_path):
    methods = [MAP(), MALA(**SHORT), SGLD(batch_size=1000)]
    found = compare(coin(), Data([1, 0, 1, 1]), methods, reference={"theta": (0.57, 0.1)}, progress=False)
    assert isinstance(found, Comparison)
    text = read(write_comparison_page(tmp_path, found, title="<b>Three"))
    assert "&lt;b&gt;Three" in text and "failed" in text and text.count("<details>") == 2
    for label in found.table.index:
        assert label in text
    assert "1000" in text  # the failure's sentence


def test_predictive_checks_are_of_rows():
    """Leave-one-out where there are draws enough, the rows' own predictions where not; nothing without rows."""
    drawn = np.random.default_rng(2).normal([0.5, -1.0, np.log(0.3), 0.0], 0.02, (2, 100, 4))
    model = generalised_linear(2, "normal")
    order = [model.names.index(name) for name in ("weights[0]", "weights[1]", "noise", "intercept")]
    draws = Draws(positions=drawn[..., np.argsort(order)])
    whole = Posterior(model, NUMBERS, NUTS(), 0, draws)
    facts, *figures = predictive.sections(whole)[0].parts
    assert list(facts) == ["elpd_loo", "p_loo", "largest k-hat", "sensitive to the prior"]
    assert facts["elpd_loo"].value == whole.loo().elpd and "all other rows" in predictive.sections(whole)[0].note
    assert [figure.title[:12] for figure in figures] == ["Distribution", "Histogram of"]
    few = dataclasses.replace(whole, belief=dataclasses.replace(draws, positions=drawn[:, :40, np.argsort(order)]))
    assert [figure.title[:12] for figure in predictive.sections(few)[0].parts] == ["Distribution"]
    outlying = Data(np.r_[NUMBERS.y[:-1], 9.0], X)
    facts = predictive.sections(Posterior(model, outlying, NUTS(), 0, draws))[0].parts[0]
    assert facts["elpd_loo"].value == "not known" and "1 row of 90" in facts["elpd_loo"].aside
    flips = Posterior(coin(), Data([1, 0, 1, 1]), NUTS(), 0, Draws(positions=drawn[..., 3:]))
    shares = predictive.sections(flips)[0].parts[1].frame()
    assert shares["share of rows"].tolist() == [0.25, 0.75] and (shares["replicated 5%"] <= 0.75).all()
    assert predictive.sections(dataclasses.replace(flips, data=None)) == []


@pytest.mark.quick
def test_how_numbers_look():
    assert [shown(v) for v in (float("nan"), float("inf"), None, True, 3.0, -0.12345)] == [
        "–", "–", "none", "true", "3", "−0.1235",
    ]  # fmt: skip
    assert shown(-0.001, ".2f") == "0.00" and shown(12345.6, ",.0f") == "12,346"
    assert decimals(np.array([2.0, 1.0])) == 2 and decimals(np.array([np.nan])) == 3
    assert [duration(s) for s in (0.25, 45, 600, 7200, float("nan"))] == ["0.25 s", "45 s", "10 min", "2.0 h", "–"]


def test_a_check_without_a_number(tmp_path, numbers):
    text = body_of([Section("", [verdict.checks([Check("<i>", float("nan"), "reject", "a < b")])])])
    assert "&lt;i&gt;" in text and "a &lt; b" in text and "<span>–</span>" in text


# A q, made by hand: the page does not ask how it was found.


def with_q(model, method, *, mean=0.3, sd=0.1, weights=None, bound=None, data=NUMBERS) -> Posterior:
    size = model.space.size
    generator = np.random.default_rng(1)
    mu, sigma = mean * generator.normal(size=size), sd * np.exp(0.1 * generator.normal(size=size))
    draws = mu + sigma * generator.normal(size=(1, 60, size))
    phi = {"mean": mu, "rho": np.asarray(inverse_softplus(jnp.asarray(sigma)))}
    info = {} if bound is None else {"objective": bound[None]}
    fitted = Fitted(positions=draws, family="mean field", phi=phi, log_weights=weights, info=info, thin=10)
    found = {"gain": 0.0, "gain error": 0.0, "steps": 600}
    return Posterior(model, data, method, 0, fitted, found)


def test_a_fitted_q_shows_its_climb_and_marginals_and_no_chains(tmp_path):
    bound = -200 + 30 * (1 - np.exp(-np.arange(60) / 10)) + np.random.default_rng(0).normal(size=60)
    posterior = with_q(
        generalised_linear(2, "normal"), MeanField(), weights=0.05 * GENERATOR.normal(size=400), bound=bound
    )
    text = page(tmp_path, posterior, held_out=NUMBERS)
    for word in (
        "<h2>Climb",
        "<h2>Marginals",
        "<h2>Pairs",
        "draws of q",
        "k-hat says how unequal",
        "CRPS",
    ):
        assert word in text, word
    for word in ("Trace", "Ranks", "Autocorrelation", "R-hat", "bulk ESS", "<h2>Layers", "chains × draws"):
        assert word not in text, word


@pytest.mark.test
def test_a_climb_without_a_trace_or_of_one_value_is_left_out():
    for bound in (None, np.array([1.0]), np.array([np.nan, -np.inf])):
        assert parameters.climb(with_q(coin(), MeanField(), bound=bound, data=Data([1, 0]))) == []
    broken = np.array([-np.inf, -1e9, -5.0, -4.0, np.nan, -3.0])
    found = parameters.climb(with_q(coin(), MeanField(), bound=broken, data=Data([1, 0])))
    assert "<svg" in body_of(found)


@pytest.mark.test
def test_the_state_that_held_out_rows_chose_is_marked():
    """By a dashed line in both curves, and in words; without held-out rows there is neither."""
    bound, scores = np.linspace(-9.0, -4.0, 60), np.array([[200, -1.0], [400, -0.8], [600, -0.9]])
    plain = with_q(coin(), MeanField(), bound=bound, data=Data([1, 0]))
    assert plain.fitted is not None
    fitted = replace(plain.fitted, info={**plain.fitted.info, SCORES: scores})
    chosen = Posterior(plain.model, plain.data, plain.method, 0, fitted, plain.found | {"held-out best": 400})
    first, second = (body_of(parameters.climb(posterior)) for posterior in (plain, chosen))
    assert first.count("<svg") == 1 and "dasharray" not in first and "dashed" not in first
    assert second.count("<svg") == second.count("dasharray") == 2
    assert "The result is the state after 400 steps (dashed), the last whose held-out score is not" in second


@pytest.fixture(scope="module")
def network():
    return neural_network(mlp(2, (12,), 1))


def test_a_network_is_told_by_layers(tmp_path, network):
    posterior = with_q(network, BayesByBackprop())
    text = read(write_page(tmp_path, posterior, title="A title", held_out=NUMBERS, shifted=X + 20))
    assert "layer1.weight" in text and "AUROC shifted" in text
    assert "49 weights of a network" in text
    assert "layer0.weight[" not in text and "layer1.bias[" not in text  # no number of its own
    assert list(parameters.summary(posterior)) == ["mean", "sd", "5%", "95%"]

    # By Bayes by Backprop or by chains, weights have no panels; of chains the noise has.
    drawn = np.random.default_rng(0).normal(size=(2, 30, network.space.size))
    chains = Posterior(network, NUMBERS, NUTS(), 0, Draws(positions=drawn))
    assert parameters.interesting(chains) == [0] == parameters.interesting(posterior)
    labels = body_of(parameters.figures(chains))
    assert "noise" in labels and "layer" not in labels and "Pairs" not in labels


@pytest.mark.test
def test_which_numbers_are_weights(network):
    assert parameters.listed_mask(network).tolist() == [not name.startswith("weights.") for name in network.names]
    small = neural_network(mlp(2, (3,), 1))
    for model in (small, generalised_linear(60, "normal"), coin()):  # few, or each with a meaning
        assert parameters.listed_mask(model).all()


def test_an_ensemble_lists_its_members(tmp_path, network):
    draws = np.random.default_rng(0).normal(size=(3, 1, network.space.size))
    found = {f"objective {i}": -40.0 - i for i in range(3)} | {"members": 3}
    posterior = Posterior(network, NUMBERS, DeepEnsemble(size=3), 0, Draws(positions=draws), found)
    text = read(write_page(tmp_path, posterior, title="A title", held_out=NUMBERS))
    for word in ("<h2>Members", "−42.00", "<dt>members</dt><dd>3</dd>", "how far members differ", "member.method"):
        assert word in text, word
    for word in ("Trace", "bulk ESS", "<h2>Marginals"):
        assert word not in text, word


@pytest.mark.test
def test_a_comparison_of_networks_has_no_marginals(tmp_path, network):
    posterior = with_q(network, BayesByBackprop())
    found = Comparison(pd.DataFrame({"verdict": ["caution"]}, index=["bbb"]), {"bbb": posterior}, {}, None)
    assert "<h2>Marginals" not in read(write_comparison_page(tmp_path, found, title="A title"))


@pytest.mark.test
def test_layers_are_those_of_the_weights(network):
    posterior = with_q(network, BayesByBackprop())
    leaves = networks.table_of(posterior).frame().set_index("weights")
    assert leaves["count"].to_dict() == {
        "layer0.bias": 12, "layer0.weight": 24, "layer1.bias": 1, "layer1.weight": 12,
    }  # fmt: skip
    mu, sigma = posterior.fitted.phi["mean"], np.log1p(np.exp(posterior.fitted.phi["rho"]))
    here = np.array([name.startswith("weights.layer0.weight") for name in network.names])
    found, expected = (
        leaves.loc["layer0.weight"],
        [np.abs(mu).mean() for mu in (mu[here], sigma[here], (mu / sigma)[here])],
    )
    np.testing.assert_allclose(found[["mean |μ|", "mean σ", "mean |μ|/σ"]].tolist(), expected, rtol=1e-8)


def test_scores_of_a_known_prediction():
    """y ~ N(θ, 1), θ ~ N(1, 0.5²): the prediction is N(1, 1.25), seen through another unit too."""
    generator = np.random.default_rng(3)
    model = Model({"theta": dist.Normal(0, 1)}, lambda p, x: dist.Normal(p["theta"] + 0.0 * x, 1.0))
    theta = stats.norm.ppf((np.arange(1000) + 0.5) / 1000, 1.0, 0.5)  # evenly over its quantiles
    y, x = generator.normal(1.0, np.sqrt(1.25), 300), np.zeros(300)
    posterior = Posterior(model, None, NUTS(), 0, Draws(positions=generator.permutation(theta).reshape(4, 250, 1)))
    held = Data(y, x)
    found = held_out.held_out_scores(posterior, held)
    value = {score.name: score.value for score in found.scores}
    of_y = stats.norm(1.0, np.sqrt(1.25))
    np.testing.assert_allclose(value["log predictive"], of_y.logpdf(y).mean(), atol=1e-3)
    np.testing.assert_allclose(value["RMSE"], np.sqrt(np.mean((y - 1) ** 2)), rtol=1e-6)
    # A share of 500 draws errs by at most 1/√2000; of a mean of 300 rows a seventeenth.
    below = of_y.cdf(y)
    np.testing.assert_allclose(found.below, below, atol=5.33 * np.sqrt(0.25 / held_out.DRAWN))
    exact = crps_normal(y, 1.0, np.sqrt(1.25)).mean()
    assert abs(value["CRPS"] - exact) < 5.33 * np.sqrt(1.25 / held_out.DRAWN / 300)
    for level in (50, 90, 95):
        inside = np.abs(found.below - 0.5) <= level / 200
        assert value[f"coverage {level} %"] == inside.mean()
        assert abs(inside.mean() - level / 100) < 5.33 * np.sqrt(0.25 / 300)
    np.testing.assert_allclose(value["sharpness"], 2 * 1.645 * np.sqrt(1.25), rtol=0.05)

    encoder = tables.fit_encoder(pd.DataFrame({"x": [0.0, 1.0], "y": [2.0, 8.0]}), "y", family="normal")  # sd 3
    of_table = Posterior(dataclasses.replace(model, table=table_of(encoder, None)), None, NUTS(), 0, posterior.belief)
    other = {score.name: score.value for score in held_out.held_out_scores(of_table, held, encoder).scores}
    for name in ("RMSE", "CRPS", "sharpness"):
        np.testing.assert_allclose(other[name], 3 * value[name], rtol=1e-6)
    np.testing.assert_allclose(other["log predictive"], value["log predictive"] - np.log(3), atol=1e-6)
    assert other["coverage 90 %"] == value["coverage 90 %"]


def test_scores_look_through_the_predictive_model():
    """Laplace predicts by another model than it was fitted with."""
    models = [Model({"theta": dist.Normal(0, 1)}, lambda p, m=m: dist.Normal(p["theta"] + m, 1.0)) for m in (0.0, 50.0)]
    posterior = Posterior(models[0], None, NUTS(), 0, Draws(positions=np.zeros((1, 30, 1))))
    data = Data(np.full(5, 50.0))
    np.testing.assert_allclose(held_out.transforms(posterior, data)[0], 1, rtol=1e-12)
    posterior.predictive = models[1]
    assert np.all(np.abs(held_out.transforms(posterior, data)[0] - 0.5) < 0.2)


@pytest.mark.test
def test_a_point_draws_as_many_data_as_a_sample():
    model = Model({"theta": dist.Normal(0, 1)}, lambda p: dist.Normal(p["theta"], 1.0))
    posterior = Posterior(model, None, MAP(), 0, Point(position=np.zeros(1)))
    below, crps = held_out.transforms(posterior, Data(np.array([-1.0, 0.0, 2.0])))
    error = 5.33 * np.sqrt(0.25 / held_out.DRAWN)
    np.testing.assert_allclose(below, stats.norm.cdf([-1.0, 0.0, 2.0]), atol=error)
    np.testing.assert_allclose(crps, crps_normal(np.array([-1.0, 0.0, 2.0]), 0.0, 1.0), atol=2 * error)


def test_a_family_that_does_not_describe_the_target_is_told():
    """Transforms of rows from the model are even, of counts too; those of another spread are not, either way."""
    even = (np.arange(2000) + 0.5) / 2000
    assert held_out.misfit(even) == held_out.misfit(even[::400]) == ""
    z = stats.norm.ppf(even)
    assert "too wide" in held_out.misfit(stats.norm.cdf(0.75 * z))
    assert "too narrow" in held_out.misfit(stats.norm.cdf(1.3 * z))
    for family, told in (("normal", True), ("student-t", False)):
        aim = tables.fit_encoder(pd.DataFrame({"x": np.arange(9.0), "y": np.arange(9.0) ** 2}), "y", family=family)
        assert ("--family student-t" in held_out.misfit(stats.norm.cdf(0.75 * z), aim)) is told
        assert "--family student-t" not in held_out.misfit(stats.norm.cdf(1.3 * z), aim)
    few = stats.norm.ppf((np.arange(12) + 0.5) / 12)  # of which counts tell nothing
    assert held_out.misfit(stats.norm.cdf(few)) == held_out.misfit(stats.norm.cdf(few / 1.5)) == ""
    assert "40 times too wide" in held_out.misfit(stats.norm.cdf(few / np.std(few) / 40))
    model = Model({"theta": dist.Normal(0, 1)}, lambda p: dist.Poisson(0.7 + 0.0 * p["theta"]))
    counts = Data(np.random.default_rng(5).poisson(0.7, held_out.SEEN))
    posterior = Posterior(model, None, MAP(), 0, Point(position=np.zeros(1)))
    below = held_out.transforms(posterior, counts)[0]
    assert stats.kstest(below, "uniform").pvalue > 1e-7 and held_out.misfit(below) == ""


@pytest.mark.quick
def test_errors_that_follow_one_another_in_time_are_told():
    """Of an autoregression with ρ = 0.6, in whatever order its rows stand; not of independent errors."""
    rng = np.random.default_rng(0)
    error, times = rng.normal(size=90), np.arange(90.0)
    lasting = signal.lfilter([0.8], [1, -0.6], error)
    mixed = rng.permutation(90)
    said = held_out.follows(stats.norm.cdf(lasting)[mixed], times[mixed], "month")
    assert "in month" in said and "correlation of 0." in said
    assert held_out.follows(stats.norm.cdf(error)[mixed], times[mixed], "month") == ""
    both = np.stack([stats.norm.cdf(error), stats.norm.cdf(lasting)], 1)
    assert "in month" in held_out.follows(both[mixed], times[mixed], "month")


@pytest.mark.test
def test_scores_of_classes_and_of_rows_from_elsewhere():
    """Certain where |x| is large: rows near 0 are told from those by their entropy, exactly."""
    model = Model({"w": dist.Normal(0, 1)}, lambda p, x: dist.BernoulliLogits(p["w"] * x))
    posterior = Posterior(model, None, MAP(), 0, Point(position=np.ones(1)))
    x, y = np.array([3.0, -3.0, 4.0, 5.0]), np.array([1, 0, 0, 1])
    found = held_out.held_out_scores(posterior, Data(y, x), None, np.array([0.1, 0.0, 3.5]))
    value = {score.name: score.value for score in found.scores}
    p = 1 / (1 + np.exp(-x))
    top = np.maximum(p, 1 - p)
    right = (p > 0.5) == y
    assert value["accuracy"] == 0.75
    np.testing.assert_allclose(value["Brier"], 2 * np.mean((p - y) ** 2), rtol=1e-6)
    np.testing.assert_allclose(value["log predictive"], np.mean(np.log(np.where(y == 1, p, 1 - p))), rtol=1e-6)
    np.testing.assert_allclose(value["ECE"], abs(np.mean(right - top)), rtol=1e-6)  # one bin of fifteen holds all
    np.testing.assert_allclose(value["AUROC shifted"], (4 + 4 + 2) / 12, rtol=1e-12)


@pytest.mark.quick
def test_densities_of_heavy_tails_are_drawn():
    """Of draws one of which is 10⁹ times as far out as the others, the others' density is shown."""
    x, height = plots.density(np.append(stats.expon.ppf((np.arange(3999) + 0.5) / 3999), 1e9))
    assert 0.95 < np.trapezoid(height, x) < 1.01 and x[-1] < 10


@pytest.mark.quick
@pytest.mark.parametrize(
    "values",
    [[], [1.0], [1.0, 2.0, np.nan], [np.inf] * 5, [3.0] * 9, [0.0] * 999 + [1.0], [0.0] * 500 + [1.0] * 500,
     np.arange(4.0), np.arange(1000) % 7, np.arange(1000) * 1e-30, np.arange(1000) * 1e30, 1e9 + np.arange(1000) * 1e-7,
     [-1e300, 0.0, 1.0, 2.0, 1e300]],
)  # fmt: skip
def test_densities_of_strange_draws_are_finite(values):
    x, height = plots.density(np.array(values))
    assert len(x) == len(height) and np.all(np.isfinite(x)) and np.all(np.isfinite(height)) and np.all(height >= 0)


@pytest.mark.quick
@pytest.mark.parametrize("apart", [0.0, 5.0, 100.0])
def test_a_density_is_as_narrow_as_its_modes(apart):
    """The error of a density of 4,000 draws is as small for two modes far apart as for one."""
    p = (np.arange(2000) + 0.5) / 2000
    x, height = plots.density(np.concatenate([stats.norm.ppf(p), stats.norm.ppf(p, apart)]))
    exact = (stats.norm.pdf(x) + stats.norm.pdf(x, apart)) / 2
    assert np.trapezoid(np.abs(height - exact), x) < 0.1


@pytest.mark.test
@pytest.mark.parametrize("family", ["normal", "student-t", "negative-binomial", "bernoulli", "categorical", "ordered"])
def test_effects_of_every_form_of_weights(family):
    """A softmax of three classes holds two numbers an input, unconstrained, and tells three effects."""
    y = np.arange(30) % (2 if family == "bernoulli" else 3)
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) ** 2 % 7, "y": y})
    encoder = tables.fit_encoder(frame, "y", family=family)
    classes = len(encoder.target.classes) if family in ("categorical", "ordered") else None
    model = generalised_linear(2, family, classes)
    position = np.linspace(-1.0, 1.0, model.space.size)
    model = replace(model, table=table_of(encoder, view_of(encoder, model)))
    told = effects(Posterior(model, None, MAP(), 0, Point(position=position)), encoder)
    weights = np.asarray(model.params(jnp.asarray(position))["weights"])
    unit = encoder.target.sd if family in PLAIN else 1.0
    expected = unit * (encoder.effects[1] @ weights).ravel()
    np.testing.assert_allclose(told["mean"], expected, rtol=1e-6)
    assert len(told) == (6 if family == "categorical" else 2)


@pytest.mark.test
def test_effects_of_draws_have_their_sds_and_quantiles():
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) ** 2 % 7, "y": np.sin(np.arange(30.0))})
    encoder = tables.fit_encoder(frame, "y", family="normal")
    model = table_model(encoder)
    positions = np.random.default_rng(0).normal(size=(2, 150, model.space.size))
    run = Posterior(model, None, NUTS(draws=150, chains=2), 0, Draws(positions=positions))
    told = effects(run, encoder)
    assert run.names[2:] == ["weights[a]", "weights[b]"] and told.index.to_list() == ["a", "b"]
    own = encoder.target.sd * run.values.reshape(300, -1)[:, 2:] @ encoder.effects[1].T
    np.testing.assert_allclose(told["mean"], own.mean(0), rtol=1e-6)
    np.testing.assert_allclose(told["sd"], own.std(0), rtol=1e-6)
    np.testing.assert_allclose(told[["5%", "95%"]].to_numpy().T, np.quantile(own, [0.05, 0.95], axis=0), rtol=1e-6)


# The page as a reader meets it.


@pytest.fixture(scope="module")
def customers():
    """A table with a number, levels that hold brackets and signs of HTML, and a date; and a posterior of it."""
    days = pd.date_range("2021-01-01", periods=90, freq="9D")
    frame = pd.DataFrame({
        "age": np.arange(90.0) % 37, "plan": np.array(["[basic]", "a<b", "c & d"])[np.arange(90) % 3], "since": days,
        "fee": np.arange(90) % 2 == 0, "mass": 100 * NUMBERS.y,
    })  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)
        encoder = tables.fit_encoder(frame, "mass", family="normal")
    model, encoded = table_model(encoder), tables.encode(encoder, frame)
    means = np.zeros(model.space.size)
    means[model.names.index("weights[fee]")] = 3.0
    drawn = means + 0.1 * np.random.default_rng(4).normal(size=(2, 100, model.space.size))
    return Posterior(model, Data(encoded.y, encoded.x), NUTS(), 0, Draws(positions=drawn), judged=CAUTION), encoder


def test_a_page_begins_with_the_answer_and_ends_with_the_settings(tmp_path, customers):
    posterior, encoder = customers
    held = posterior.data.take(np.arange(20))
    text = read(write_page(tmp_path, posterior, encoder=encoder, held_out=held, notes=["All rows were read."]))
    assert "<h1>Mass predicted from age, plan and 2 other columns</h1>" in text
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Effects", "Predictions of held-out rows", "Predictive checks", "How far to trust it", "How the rows were read",
        "Parameters", "Marginals", "Pairs", "Settings",
    ]  # fmt: skip
    (answer,) = re.findall('<p class="answer">(.*?)</p>', text)
    assert answer.startswith("The strongest effect: fee = True instead of False")
    assert "90 % of the posterior" in answer and posterior.report().verdict in answer
    for words in ("[basic]", "a&lt;b", "c &amp; d", "since: time of year", "one more year"):
        assert words in text
    drawn = Draws(positions=np.random.default_rng(0).normal(size=(2, 50, 1)))
    flips = Posterior(coin(), Data([1, 0]), NUTS(), 0, drawn, judged=CAUTION)
    titles = re.findall("<h2>(.*?)</h2>", read(write_page(tmp_path, flips, title="A title")))
    assert (titles[0], titles[-1]) == ("How far to trust it", "Settings")


def test_effects_are_grouped_and_sorted_by_strength(customers):
    groups = effects_of(*customers)
    assert groups[0][0].input.column == "fee"
    assert sorted(group[0].input.column for group in groups) == ["age", "fee", "plan", "since"]
    assert all(len({each.input.column for each in group}) == 1 for group in groups)
    for strengths in ([group[0].strength for group in groups], *([each.strength for each in g] for g in groups)):
        assert strengths == sorted(strengths, reverse=True)
    (plan,) = (group for group in groups if group[0].input.column == "plan")
    assert {each.input.change for each in plan} == {"[basic]", "a<b", "c & d"}


@pytest.mark.quick
def test_a_term_is_explained_once_where_it_stands_first():
    sections = [Section("A", ["R-hat of 1"]), Section("B", [Section("C", [{"R-hat": 1, "ESS": 2}])]), Section("KLM")]
    text = body_of(sections)
    parts = text.split("<h2>")
    assert text.count(TERMS["R-hat"]) == 1 and TERMS["R-hat"] in parts[1] and TERMS["ESS"] in parts[2]
    assert TERMS["KL"] not in text
    assert all(sentence.endswith(".") for sentence in TERMS.values())


@pytest.mark.quick
def test_nothing_scrolls_within_a_page_and_long_tables_are_in_pieces():
    table = Table(["name", *(f"c{i}" for i in range(14))], [[f"row {j}", *range(14)] for j in range(35)])
    text = body_of([Section("A", [table])])
    assert "overflow-x" not in text and "overflow:" not in text
    assert text.count("<table") == 4 and text.count("5 more rows") == 2
    assert all(len(piece.heads) <= 12 for piece in table.pieces)
    assert [head for piece in table.pieces for head in piece.heads[1:]] == list(table.heads[1:])
    assert 'data-label="c11"' in text


# One section, shown in three places.


@pytest.mark.quick
def test_a_section_is_the_same_on_a_page_a_terminal_and_as_a_frame():
    rows = [
        ["a<b", Cell(-0.12345, ".3f", poor=True), "trust", "x < y"],
        ["[bold]c", Cell(float("nan"), aside="± 2"), "reject", ""],
    ]
    table = Table(["name", "value", "verdict", "meaning"], rows, ["meaning"])
    section = Section("A & B", [{"how many": Cell(1234, ",d")}, table, Section("inside", ["A <sentence>."])], "Note.")
    text = body_of([section])
    for part in (
        "<h2>A &amp; B</h2>", '<p class="note">Note.</p>', "<dt>how many</dt><dd>1,234</dd>",
        '<th scope="row">a&lt;b</th><td class="flag" data-label="value"><span>−0.123</span></td>',
        '<span>–<span class="of">± 2</span></span>', "</svg>reject</span>", '<span>x &lt; y</span></td>',
        "<h3>inside</h3>", "<p>A &lt;sentence&gt;.</p>",
    ):  # fmt: skip
        assert part in text, part
    frame = table.frame()
    assert list(frame) == ["name", "value", "verdict", "meaning"] and frame["value"].iloc[0] == -0.12345
    assert frame.to_csv(index=False).splitlines()[1] == "a<b,-0.12345,trust,x < y"

    def printed(**most) -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(to_terminal(section, **most))
        return console.export_text()

    for part in ("A & B", "1,234", "a<b", "-0.123", "[bold]c", "– ± 2", "reject", "x < y"):
        assert part in printed(), part
    assert "inside" not in printed() and "Note" not in printed()  # sentences are the page's
    short = printed(rows=1, columns=2)
    assert "[bold]c" not in short and "trust" not in short
    assert "rows not shown: 1" in short and "columns not shown: 2" in short
