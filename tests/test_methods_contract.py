"""Every public method keeps the contract."""

import dataclasses
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest
from contract_method import CLOSE, check_face, check_method, check_settings, small_groups
from every_method import CASES, REGRESSION, X, Y, numbers

import tractable as tr
from tractable.engine.abilities import ABILITIES
from tractable.methods import METHODS

pytestmark = [pytest.mark.test, pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")]

# Other settings of methods that are held to all of the contract by their own name.
VARIANTS = {name for name in CASES if any(name.startswith(f"{label} ") for label in METHODS)} - {"sgld rmsprop"}


# Killing, resuming, extending, pages and options live in the classes that methods inherit from: one method of each goes
# through all of them in ``make test``, the others show their face; in ``make laws`` all go through all.
BASES = ("map", "sgld", "meanfield", "em", "nvil")


@pytest.mark.test(*BASES)
@pytest.mark.parametrize("name", CASES)
def test_contract(name, tmp_path):
    check_method(CASES[name], tmp_path, variant=name in VARIANTS)


@pytest.mark.parametrize("name", [name for name in CASES if name not in VARIANTS and name not in BASES])
def test_face(name):
    case = CASES[name]
    with small_groups():
        check_face(tr.infer(case.model, case.rows, case.method, seed=3), case)
        check_settings(case.method)


def test_every_base_class_is_here():
    """Classes that several methods inherit from, and none of which is a method's own."""
    parents = {parent for method in METHODS.values() for parent in method.__mro__[1:] if issubclass(parent, tr.Method)}
    shared = {p for p in parents if sum(p in method.__mro__ for method in METHODS.values()) > 1} - {tr.Method}
    covered = {parent for name in BASES for parent in type(CASES[name].method).__mro__}
    assert all(p in covered or any(base in covered for base in p.__mro__[1:-1] if base in shared) for p in shared)


def test_every_method_is_here():
    assert {case.method.label for case in CASES.values()} == set(METHODS)


def test_the_docs_say_what_only_some_can():
    page = (Path(__file__).parents[1] / "docs" / "which-method.md").read_text(encoding="utf-8")
    methods = {type(case.method).__name__: case.method for case in CASES.values() if not case.method.minibatch}
    methods |= {type(case.method).__name__: case.method for case in CASES.values()} | methods
    for ability, (can, _) in ABILITIES.items():
        named = " ".join(f"`{name}`" for name in sorted(methods) if can(methods[name]))
        assert f"| `{ability}` | {named} |" in page, f"| `{ability}` | {named} |"


# Where warm-up pools chains (step size, covariance, modes), a chain depends on its companions by design;
# without warm-up it may not.
ALONE = {
    "rejection": tr.Rejection(draws=20),
    "random-walk": tr.RandomWalk(draws=20, warmup=0, preconditioner=None),
    "nuts": tr.NUTS(draws=20, warmup=0),
    "sgld": tr.SGLD(draws=20, warmup=10, thin=1, batch_size=8, step_size=0.01, start="random"),
}


@pytest.mark.laws
@pytest.mark.parametrize("name", ALONE)
def test_chain_does_not_depend_on_its_companions(name):
    with small_groups():
        four, two, one = (
            numbers(tr.infer(REGRESSION, tr.Data(Y, X), dataclasses.replace(ALONE[name], chains=c))) for c in (4, 2, 1)
        )
    np.testing.assert_allclose(four[:2], two, atol=CLOSE)
    np.testing.assert_allclose(four[:1], one, atol=CLOSE)


COIN = tr.Model({"theta": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["theta"]))


@pytest.mark.laws
@pytest.mark.parametrize("name", ["map", "sgld"])
def test_integer_data(name):
    """Whole numbers and truth values are data like others."""
    flips = np.random.default_rng(0).integers(0, 2, 24)
    with small_groups():
        drawn = [
            numbers(tr.infer(COIN, tr.Data(flips.astype(kind)), CASES[name].method))
            for kind in (np.int32, np.int8, bool)
        ]
    for other in drawn[1:]:
        np.testing.assert_allclose(other, drawn[0], atol=CLOSE)
    assert drawn[0].dtype == np.float64
