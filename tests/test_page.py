"""The report is one file that stands alone, says the verdict and leaves nothing unescaped."""

import dataclasses
import re
import warnings

import numpy as np
import numpyro.distributions as dist
import pytest

from tractable.checks.convergence import Check
from tractable.compare import Comparison, compare
from tractable.core import Data, Model
from tractable.infer import infer
from tractable.markup import decimals, duration, shown
from tractable.methods import MALA, MAP, SGLD, RandomWalk
from tractable.models.linear import generalised_linear
from tractable.page import write_comparison_page, write_page
from tractable.tools import tables
from tractable.tools.errors import TractableWarning

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 2))
NUMBERS = Data(X @ [0.5, -1.0] + 0.3 * GENERATOR.normal(size=90), X)
BINARY = Data((X[:, 0] + GENERATOR.normal(size=90) > 0).astype(float), X)
CLASSES = Data(np.argmax(X @ np.ones((2, 3)) + GENERATOR.normal(size=(90, 3)), 1), X)
SHORT = {"chains": 2, "draws": 40, "warmup": 20}


def coin() -> Model:
    return Model({"theta": dist.Beta(5, 5)}, lambda params: dist.Bernoulli(params["theta"]))


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
    for name in posterior.names:
        assert name in text
    for check in posterior.report().checks:
        assert check.name in text
    return text


@pytest.fixture(scope="module")
def numbers():
    return fit(generalised_linear(2, "normal"), NUMBERS, MALA(**SHORT))


def test_draws_with_numbers_held_out(tmp_path, numbers):
    text = page(tmp_path, numbers, held_out=NUMBERS)
    for word in ("Trace", "Ranks", "Pairs", "RMSE", "Coverage", "mean log predictive density"):
        assert word in text
    assert "Predicted bias" not in text


def test_a_second_writing_is_the_same(tmp_path, numbers):
    first = page(tmp_path, numbers)
    assert page(tmp_path, numbers) == first


def test_one_chain(tmp_path):
    posterior = fit(generalised_linear(2, "bernoulli"), BINARY, MALA(chains=1, draws=40, warmup=20))
    text = page(tmp_path, posterior, held_out=BINARY)
    assert "Autocorrelation" in text and "Ranks" not in text
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
    assert "Predicted bias" in text and "with the predicted bias taken off" in text


def test_weighted_draws(tmp_path):
    posterior = fit(coin(), Data([1, 0, 1, 1]), SGLD(batch_size=2, cycles=2, thin=1, **SHORT))
    assert posterior.weights is not None
    page(tmp_path, posterior)


def test_moments_alone(tmp_path):
    posterior = infer(coin(), Data([1, 0, 1, 1]), MALA(**SHORT), progress=False, draws="moments")
    assert "moments only" in page(tmp_path, posterior, held_out=Data([1, 0]))


def test_interrupted_with_some_draws_or_one(tmp_path, numbers):
    for kept in (30, 1):
        part = dataclasses.replace(
            numbers,
            interrupted=True,
            unconstrained=numbers.unconstrained[:, :kept],
            info={name: values[:, :kept] for name, values in numbers.info.items()},
        )
        text = read(write_page(tmp_path, part, title="A title", held_out=NUMBERS))
        assert "stopped before its end" in text and part.report().verdict in text


def test_stuck_chains_leave_no_number_that_is_none(tmp_path):
    posterior = fit(coin(), Data([1, 0, 1, 1]), RandomWalk(**SHORT))
    posterior.unconstrained = np.zeros_like(posterior.unconstrained)
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
    import pandas as pd

    frame = pd.DataFrame({"height<": X[:, 0], "width": X[:, 1], "mass": 100 * NUMBERS.y})
    encoder = tables.fit_encoder(frame, "mass")
    encoded = tables.encode(encoder, frame)
    text = page(tmp_path, numbers, held_out=Data(encoded.y, encoded.x), encoder=encoder)
    assert "height&lt;" in text and "width" in text


def test_comparison(tmp_path):
    methods = [MAP(), MALA(**SHORT), SGLD(batch_size=1000)]
    found = compare(coin(), Data([1, 0, 1, 1]), methods, reference={"theta": (0.57, 0.1)}, progress=False)
    assert isinstance(found, Comparison)
    text = read(write_comparison_page(tmp_path, found, title="<b>Three"))
    assert "&lt;b&gt;Three" in text and "failed" in text and text.count("<details>") == 2
    for label in found.table.index:
        assert label in text
    assert "1000" in text  # the failure's sentence


def test_how_numbers_look():
    assert [shown(v) for v in (float("nan"), float("inf"), None, True, 3.0, -0.12345)] == [
        "–", "–", "none", "true", "3", "−0.1235",
    ]  # fmt: skip
    assert shown(-0.001, ".2f") == "0.00" and shown(12345.6, ",.0f") == "12,346"
    assert decimals(np.array([2.0, 1.0])) == 2 and decimals(np.array([np.nan])) == 3
    assert [duration(s) for s in (0.25, 45, 600, 7200, float("nan"))] == ["0.25 s", "45 s", "10 min", "2.0 h", "–"]


def test_a_check_without_a_number(tmp_path, numbers):
    from tractable.page import checks_table

    text = checks_table([Check("<i>", float("nan"), "reject", "a < b")])
    assert "&lt;i&gt;" in text and "a &lt; b" in text and "<td>–</td>" in text
