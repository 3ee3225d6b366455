"""Folders that version 0.1 wrote load, or are refused with what to do."""

import json
import shutil

import numpy as np
import pytest
from contract_method import small_groups
from every_method import CASES, numbers

import tractable as tr
from tractable.core.errors import CheckpointError, TractableWarning
from tractable.posterior.folder import new_store

pytestmark = pytest.mark.laws


def as_version_0_1(folder, traces):
    """The folder as that version would have written it: draws under other names, points as one draw."""
    shutil.rmtree(folder / "draws.zarr", ignore_errors=True)
    shutil.rmtree(folder / "belief", ignore_errors=True)
    new_store(folder, traces).append(traces)
    about = json.loads((folder / "posterior.json").read_text())
    for later in ("count", "sha256", "sealed", "files", "drawn"):
        about.pop(later, None)
    about["model"] = "0" * 64  # hashed otherwise
    (folder / "posterior.json").write_text(json.dumps(about))


def learnt(name, folder):
    case = CASES[name]
    with small_groups():
        posterior = tr.infer(case.model, case.rows, case.method, seed=3)
    posterior.save(folder)
    return case, posterior


def test_draws_load(tmp_path):
    case, posterior = learnt("random-walk", tmp_path / "run")
    info = {f"info.{name}": trace for name, trace in posterior.info.items()}
    as_version_0_1(tmp_path / "run", {"position": posterior.unconstrained} | info)
    with pytest.warns(TractableWarning, match="without checksums.* save it again"):
        loaded = tr.load(tmp_path / "run", case.model, case.rows)
    np.testing.assert_array_equal(numbers(loaded), numbers(posterior))
    assert loaded.info.keys() == posterior.info.keys() and loaded.report() == posterior.report()


@pytest.mark.test
def test_points_are_refused(tmp_path):
    case, posterior = learnt("map", tmp_path / "run")
    as_version_0_1(tmp_path / "run", {"position": np.asarray(posterior.point)[None, None]})
    told = pytest.warns(TractableWarning, match="without checksums")
    with told, pytest.raises(CheckpointError, match=r"earlier version of tractable.* run the method again"):
        tr.load(tmp_path / "run", case.model)
