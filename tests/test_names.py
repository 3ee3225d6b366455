"""What a user sees of a public name: its help, its signature, and what the reference says of it."""

import inspect
import pydoc
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest
import reference

import tractable as tr
from tractable.adapters import flax, numpyro

pytestmark = pytest.mark.quick

ADDRESS = re.compile(r"<function|<lambda|object at 0x")


def public_names() -> Iterator[tuple[str, Any]]:
    """Every public function and class, by its full name."""
    for part in (tr, *reference.PARTS, flax, numpyro):
        for name, it in reference.public(part).items():
            if not isinstance(it, ModuleType):
                yield f"{part.__name__}.{name}", it


def addresses(it: Any) -> list[str]:
    """The lines of a name's help and signature that show a function's address; not those of Python's own attributes."""
    lines = pydoc.plain(pydoc.render_doc(it)).splitlines()
    if callable(it) and not (isinstance(it, type) and issubclass(it, Exception)):
        lines.append(str(inspect.signature(it)))
    return [line for line in lines if ADDRESS.search(line) and not re.match(r"[ |]*_\w+ = ", line)]


def test_help_is_in_words():
    names = dict(public_names())
    assert len(names) > 150 and not {name: found for name, it in names.items() if (found := addresses(it))}


def test_an_address_is_seen():
    def slip(gradient=lambda x: x):
        """A function with a default that has no words."""

    assert addresses(slip)


ROWS = np.random.default_rng(1).normal(size=(40, 2))
MEAN = tr.Model({"m": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["m"], 1.0))
PAGE = reference.text()
KINDS = {name: it for name, it in reference.public(tr.estimators).items() if isinstance(it, type)}


def described(title: str) -> set[str]:
    """The names that a section of the reference describes."""
    section = re.search(rf"^### {title}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"no section {title!r}"
    lines = [line.partition(": ")[0].partition(" of ")[0] for line in section[1].splitlines()]
    return set(re.findall(r"`(\w+)`", "\n".join(lines)))


def undescribed(result: object, title: str = "") -> set[str]:
    """The names that ``dir`` shows of a result, and that its section lacks; without those of every tuple."""
    name = type(result).__name__
    known = described(title or f"Of {'an' if name[0] == 'E' else 'a'} `{name}`") | set(dir(tuple))
    return {each for each in dir(result) if not each.startswith("_")} - known


@pytest.mark.laws
def test_what_a_result_has_is_in_the_reference():
    posterior = tr.infer(MEAN, ROWS[:, 0], tr.Laplace(), verify=None)
    results = [
        MEAN, tr.Data(ROWS, weights=np.ones(40)), posterior, posterior.predict(), posterior.report(),
        tr.compare(MEAN, ROWS[:, 0], [tr.MAP()], reference={"m": (0.0, 1.0)}),
        tr.select(lambda k: tr.models.gaussian_mixture(k, 2), ROWS, [1], tr.EM(starts=1)),
        tr.calibrate(MEAN, tr.Laplace(), ROWS[:, 0], runs=20), tr.log_evidence(MEAN, ROWS[:, 0], "laplace"),
        tr.compare_models({"a": posterior, "b": posterior}),
    ]  # fmt: skip
    assert not {type(each).__name__: found for each in results if (found := undescribed(each))}


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_estimator_has_is_in_the_reference(kind):
    its = undescribed(KINDS[kind](), "Of an estimator")
    assert not {name for name in its if not reference.is_of_scikit_learn(KINDS[kind], name)}


@pytest.mark.laws
@pytest.mark.parametrize(
    "kind", ["BayesianGaussianMixture", "BayesianLinearRegression", "FactorAnalysis", "GaussianMixture"]
)
def test_what_a_fitted_estimator_has_is_in_the_reference(kind):
    its = undescribed(KINDS[kind]().fit(ROWS[:, 1:], ROWS[:, 0]), "Of an estimator")
    assert not {name for name in its if not reference.is_of_scikit_learn(KINDS[kind], name)}


def test_errors_are_public():
    assert sorted(tr.errors.__all__) == sorted(reference.public(tr.errors))
    assert "parsing" not in tr.errors.__all__
    with pytest.raises(tr.errors.DataError):
        tr.Data([])
    for name in tr.errors.__all__:
        assert issubclass(getattr(tr.errors, name), Exception) and f"- `{name}`: " in PAGE
