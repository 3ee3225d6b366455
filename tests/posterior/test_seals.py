"""A run's folder that was damaged or changed is refused in a sentence, or what is read is what was written."""

import hashlib
import json
import shutil
import warnings

import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.cli.folders import posterior_in, read_run, write_run
from tractable.core.errors import CheckpointError, TractableWarning
from tractable.core.sealed import read_sealed, seal, write_sealed

pytestmark = pytest.mark.quick

MODEL = tr.Model({"mu": dist.Normal(0.0, 2.0)}, lambda params: dist.Normal(params["mu"], 1.0))
Y = np.array([0.3, 0.9, 1.4])
RUN = {"problem": {"model": "glm", "missing": "raise", "scale": 13.9}, "seed": 0}
METHODS = {
    "draws": tr.RandomWalk(chains=2, draws=20, warmup=0, preconditioner=None),
    "fit": tr.Laplace(draws=20),
    "point": tr.MAP(),
}
MUTANTS = 34  # of each


@pytest.fixture(scope="module", params=METHODS)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("seals") / "run"
    with warnings.catch_warnings(action="ignore", category=TractableWarning):
        tr.infer(MODEL, Y, METHODS[request.param], verify=None).save(path)
    write_run(path, RUN)
    return path


def told(folder):
    """All that is read of a folder, to be compared bit for bit."""
    posterior = tr.load(folder, MODEL)
    numbers = posterior.point if posterior.is_point else posterior.unconstrained
    return np.asarray(numbers).tobytes(), str(posterior.report()), posterior.settings, read_run(folder)


def mutants(path, rng):
    """A file with one bit flipped, or cut."""
    whole = path.read_bytes()
    place = int(rng.integers(len(whole)))
    if rng.random() < 0.3:
        return whole[:place]
    return whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(8)))]) + whole[place + 1 :]


@pytest.mark.test
def test_flips_and_cuts_are_refused_or_harmless(folder, tmp_path):
    rng, before, refused = np.random.default_rng(7), told(folder), 0
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for number in range(MUTANTS):
        path = files[number % len(files)]
        kept = path.read_bytes()
        path.write_bytes(mutants(path, rng))
        try:
            assert told(folder) == before, path
        except CheckpointError as error:
            refused += 1
            assert str(folder) in str(error) and str(error).endswith("."), error
        finally:
            path.write_bytes(kept)
    assert told(folder) == before and refused > MUTANTS / 2


@pytest.mark.laws
def test_whole_draws_of_another_run_are_refused(tmp_path):
    """Of another seed, each with checksums that hold: all of them, or one chunk in its namesake's place."""
    with warnings.catch_warnings(action="ignore", category=TractableWarning):
        for seed in (0, 1):
            tr.infer(MODEL, Y, METHODS["draws"], verify=None, seed=seed).save(tmp_path / str(seed))
    own, other = (tmp_path / str(seed) / "draws.zarr" for seed in (0, 1))
    chunk = next(path for path in (own / "position").iterdir() if path.name.startswith("c."))
    kept = chunk.read_bytes()
    shutil.copyfile(other / "position" / chunk.name, chunk)
    with pytest.raises(CheckpointError, match=r"not the chunk that was written there\)\. Restore it"):
        tr.load(tmp_path / "0", MODEL)
    chunk.write_bytes(kept)
    tr.load(tmp_path / "0", MODEL)
    shutil.rmtree(own)
    shutil.copytree(other, own)
    with pytest.raises(CheckpointError, match=r"draws.zarr holds other draws than those .*Restore the folder"):
        tr.load(tmp_path / "0", MODEL)


FORGED = {
    "verdict": "sure", "checks": None, "title": 3, "names": 7, "model": None, "thin": 0, "count": -1, "drawn": "0" * 64,
    "seconds": {"all": "long"}, "interrupted": "no", "found": [], "bias": {"inflation": "x", "worst": 0},
}  # fmt: skip


@pytest.mark.test
def test_forged_entries_are_refused(tmp_path):
    """Their seal is made anew: it tells an accident, and is no signature."""
    with warnings.catch_warnings(action="ignore", category=TractableWarning):
        tr.infer(MODEL, Y, METHODS["draws"], verify=None).save(tmp_path)
    path = tmp_path / "posterior.json"
    known, _ = json.loads(path.read_text()), tr.load(tmp_path, MODEL)
    del known["sha256"]
    made = {"module": "tractable.glm.linear", "name": "replace", "arguments": {}}
    for name, value in (FORGED | {"made": made, "made ": None}).items():
        entries = {key: entry for key, entry in known.items() if key != name}
        path.write_text(json.dumps(seal(entries if name == "made " else entries | {name: value})))
        model = None if name.startswith("made") else MODEL
        with pytest.raises(
            CheckpointError, match=r"damaged, or was changed|other draws|expected a function of tractable|of your own"
        ):
            tr.load(tmp_path, model)
    for name in ("checks", "names", "thin", "seconds"):
        path.write_text(json.dumps(seal({key: entry for key, entry in known.items() if key != name})))
        with pytest.raises(CheckpointError, match=f"changed by hand .KeyError: '{name}'"):
            tr.load(tmp_path, MODEL)


@pytest.mark.test("point", "draws")
def test_files_that_are_gone_are_refused(folder):
    for name in ("settings.toml", "summary.csv"):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        with pytest.raises(CheckpointError, match=f"{name} is damaged.*copy, or run again"):
            tr.load(folder, MODEL)
        (folder / name).write_bytes(kept)


@pytest.mark.test("point")
def test_an_edited_verdict_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    about = json.loads((copy / "posterior.json").read_text())
    (copy / "posterior.json").write_text(json.dumps(about | {"verdict": "trust", "title": "all is well"}))
    for read in (posterior_in, lambda folder: tr.load(folder, MODEL)):
        with pytest.raises(CheckpointError, match=r"posterior.json is damaged, or was changed by hand"):
            read(copy)
    run = json.loads((copy / "run.json").read_text())
    run["problem"]["scale"] = 33.9
    (copy / "run.json").write_text(json.dumps(run))
    with pytest.raises(CheckpointError, match=r"run.json is damaged, or was changed by hand"):
        read_run(copy)


def test_seals_of_later_versions_and_files_without_one(tmp_path):
    path = tmp_path / "about.json"
    write_sealed(path, {"a": 1})
    assert read_sealed(path) == ({"a": 1}, {})
    path.write_text(json.dumps(seal({"a": 1, "sealed": 99, "files": {}})))
    with pytest.raises(CheckpointError, match="later version of tractable"):
        read_sealed(path)
    path.write_text('{"a": 1}')
    assert read_sealed(path) == ({"a": 1}, None)
    for content in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"sealed": 1}', b'{"files": {}, "sha256": 0}'):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="Restore the folder"):
            read_sealed(path)


def test_forged_manifests_reach_no_file_outside(tmp_path):
    """Sealed as they should be, by someone else: paths that climb, are absolute or linked, and other forms."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    path, known = inside / "about.json", hashlib.sha256(b"secret").hexdigest()
    for name in ("../secret", str(tmp_path / "secret"), "link", "a/../../secret", "\0", "n" * 300):
        path.write_text(json.dumps(seal({"sealed": 1, "files": {name: known}})))
        with pytest.raises(CheckpointError, match="Restore the folder") as caught:
            read_sealed(path)
        assert len(name) == 300 or name == "\0" or "outside its folder" in str(caught.value)
    for files in ([], None, 3, {"link": None}, {"link": {}}):
        path.write_text(json.dumps(seal({"sealed": 1, "files": files})))
        with pytest.raises(CheckpointError, match="Restore the folder"):
            read_sealed(path)
