"""A name that was removed says what to write in its place."""

import importlib

import pytest

from tractable.tools import removed

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("package", ["tractable", "tractable.models"])
def test_a_removed_name_has_a_sentence(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(removed.INSTEAD, f"{package}.old_name", "write new_name.")
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=rf"{package}\.old_name was removed in 0\.2; write new_name\."):
        module.old_name  # noqa: B018
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'other'"):
        module.other  # noqa: B018
    assert not hasattr(module, "other")


def test_removed_names_are_gone_and_their_packages_answer() -> None:
    for full, sentence in removed.INSTEAD.items():
        package, name = full.rsplit(".", 1)
        module = importlib.import_module(package)
        assert not hasattr(module, name), f"{full} is back; take it out of INSTEAD."
        assert name not in module.__all__
        assert sentence.endswith(".") and "write" in sentence
