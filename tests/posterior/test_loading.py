"""A sealed entry of the wrong kind is refused, whichever it is."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tractable.core.errors import CheckpointError
from tractable.posterior import loading

pytestmark = pytest.mark.quick

ABOUT: dict[str, Any] = {
    "checks": [{"name": "R-hat", "value": 1.0, "verdict": "trust", "sentence": "largest"}], "verdict": "trust",
    "title": "NUTS on 1 number", "names": ["a"], "model": "a fingerprint", "made": None, "thin": 1, "count": 100,
    "drawn": "", "found": {}, "seconds": {"drawing": 1.5}, "interrupted": False,
    "bias": {"inflation": [0.1], "worst": 0.2},
}  # fmt: skip


def told(monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]) -> loading.Entries:
    monkeypatch.setattr(loading, "read_sealed", lambda path: (about, {"settings.toml": b"seed = 3"}))
    return loading._entries(Path("a folder"))


def test_entries_as_they_were_saved(monkeypatch):
    found = told(monkeypatch, copy.deepcopy(ABOUT))
    assert found.report.checks[0].sentence == "largest" and found.seed == 3 and found.settings == {}
    assert found.bias is not None and found.bias.worst == 0.2 and found.seconds == {"drawing": 1.5}


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ("verdict", "fine"), ("title", 3), ("names", "a"), ("names", [3]), ("model", None), ("thin", 0), ("count", -1),
        ("drawn", None), ("found", []), ("seconds", {"drawing": "long"}), ("interrupted", 1), ("bias", {"worst": 0.2}),
    ],
)  # fmt: skip
def test_entries_of_the_wrong_kind(monkeypatch, entry, wrong):
    with pytest.raises(CheckpointError, match=r"a folder.* is damaged, or was changed by hand"):
        told(monkeypatch, ABOUT | {entry: wrong})
    with pytest.raises(CheckpointError, match="is damaged"):
        told(monkeypatch, {name: value for name, value in ABOUT.items() if name != "verdict"})


@pytest.mark.parametrize(
    ("part", "wrong"), [("name", 3), ("value", "1"), ("value", None), ("verdict", "fine"), ("sentence", 3)]
)
def test_checks_of_the_wrong_kind(monkeypatch, part, wrong):
    about = ABOUT | {"checks": [ABOUT["checks"][0] | {part: wrong}]}
    with pytest.raises(CheckpointError, match="is damaged"):
        told(monkeypatch, about)
