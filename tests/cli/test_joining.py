"""One fit shared by several processes: what is typed or in the environment, who speaks, and the bits of one process."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from commands import fault

from tractable.cli.joining import place_of
from tractable.core.errors import SettingsError
from tractable.posterior.folder import read_draws, store_of

pytestmark = pytest.mark.laws

RANK = {"MASTER_ADDR": "head", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    x = np.linspace(-1, 1, 24)
    path = tmp_path_factory.mktemp("table") / "t.csv"
    pd.DataFrame({"x": x, "y": 1 + 2 * x + np.random.default_rng(1).normal(0, 0.3, 24)}).to_csv(path, index=False)
    return path


def another(*words: object, devices: int = 1, patience: float = 300) -> subprocess.Popen:
    """A command, in a process of its own that sees as many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    program = f"from tractable.cli import joining, main; joining.PATIENCE = {patience}; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)], env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_two_processes_fit_as_one_with_two_devices(table, tmp_path):
    words = ["fit", table, "--target", "y", "--method", "metropolis", "--set", "chains=2", "--set", "draws=400",
             "--mesh", "auto", "--verify", "none", "--held-out", "0", "--quiet"]  # fmt: skip
    together = ["--out", tmp_path / "two", "--coordinator", f"127.0.0.1:{free()}", "--processes", 2]
    running = [another(*words, *together, "--process", i) for i in range(2)]
    running.append(another(*words, "--out", tmp_path / "one", devices=2))
    try:
        said = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert [out for out, _ in said] == [f"{tmp_path / 'two'}\n", "", f"{tmp_path / 'one'}\n"]
    assert said[1][1] == ""  # only process 0 speaks
    two, one = (tmp_path / name for name in ("two", "one"))
    assert {path.name for path in tmp_path.iterdir()} == {"two", "one"}
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    drawn, alone = (read_draws(store_of(folder)) for folder in (two, one))
    for name in alone:
        np.testing.assert_array_equal(drawn[name], alone[name])


def test_a_coordinator_that_nobody_answers_for(table, tmp_path):
    began = time.monotonic()
    late = another("fit", table, "--target", "y", "--mesh", "auto", "--out", tmp_path / "run", "--coordinator",
                   f"127.0.0.1:{free()}", "--processes", 2, "--process", 1, patience=0.5)  # fmt: skip
    _, said = late.communicate(timeout=60)
    assert late.returncode == 2 and "did not all meet at 127.0.0.1" in said and "Traceback" not in said, said
    assert time.monotonic() - began < 60 and not (tmp_path / "run").exists()


@pytest.mark.test
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--mesh", "many"), "--mesh expects a number of devices, or auto"),
        (("--mesh", "2", "--coordinator", "a:1"), "go together: give all"),
        (("--mesh", "2", "--processes", "2", "--process", "1"), "go together: give all"),
        (("--coordinator", "a:1", "--processes", "2", "--process", "1"), "go together: give all"),
        (("--mesh", "2", "--coordinator", "a:1", "--processes", "2", "--process", "2"), "got process 2 of 2 at 'a:1'"),
        (("--mesh", "2", "--coordinator", "a", "--processes", "2", "--process", "1"), "got process 1 of 2 at 'a'"),
        (("--mesh", "2", "--coordinator", "a:b", "--processes", "2", "--process", "1"), "HOST:PORT of process 0"),
        (("--mesh", "2", "--coordinator", "a:1", "--processes", "2", "--process", "-1"), "got process -1 of 2"),
        (("--mesh", len(jax.devices()) + 1), "force_host_platform_device_count"),
        (
            ("--mesh", "1", "--model", "gaussian-mixture"),
            "--mesh is for --model glm, mlp; got --model gaussian-mixture",
        ),
        (("--mesh", "1", "--method", "ensemble"), "leave --mesh out"),
    ],
)
def test_what_cannot_be_shared(words, sentence, table, tmp_path, monkeypatch):
    def nobody(**_: object) -> None:
        raise ValueError("coordinator_address should be defined.")  # as JAX says where it knows of no others

    monkeypatch.setattr(jax.distributed, "initialize", nobody)
    target = () if "gaussian-mixture" in words else ("--target", "y")
    assert sentence in " ".join(fault("fit", table, *target, "--out", tmp_path / "run", *words).split())
    assert not (tmp_path / "run").exists()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("told", "place"),
    [
        (RANK | {"RANK": "3"}, ("head:29500", 4, 3, None)),
        (RANK | {"RANK": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}, ("head:29501", 4, 3, None)),
        (RANK | {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, ("head:29500", 4, 3, [1])),
        (RANK | {"JOB_COMPLETION_INDEX": "2"}, ("head:29500", 4, 2, None)),
        (RANK, None),
        ({"JOB_COMPLETION_INDEX": "2"}, None),
    ],
)
def test_what_the_environment_says(told, place, monkeypatch):
    for name in (*RANK, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "JOB_COMPLETION_INDEX", "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    found = place_of("auto", None, None, None)
    assert (found and tuple(found.values())[:4]) == (place or {})
    monkeypatch.setenv("RANK", "first")
    if place is not None:
        with pytest.raises(SettingsError, match="'first'"):
            place_of("auto", None, None, None)
