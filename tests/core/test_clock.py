"""Seconds by phase add up to what a stopwatch shows, in one call and in a whole process."""

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.core import clock
from tractable.core.clock import COMPILING, PREPARING, Stopwatch, add, compile_time, work_time

pytestmark = pytest.mark.laws

X = np.random.default_rng(0).normal(size=(200, 3))
MODEL = tr.Model(
    {"w": dist.Normal(jnp.zeros(3), 1.0).to_event(1)},
    tr.Through(lambda params, x: x @ params["w"], lambda params, eta: dist.Normal(eta, 1.0)),
)
DATA = tr.Data(X.sum(axis=1), given=X)
FEW: dict[str, Any] = {"chains": 2, "draws": 100, "warmup": 100}


def is_whole(phases: dict[str, float], seconds: float) -> bool:
    """Whether the phases add up to the seconds of a stopwatch, but for 5 % and the pauses of a busy machine."""
    return min(phases.values()) >= 0 and abs(sum(phases.values()) - seconds) <= 0.05 * seconds + 0.1


def timed(call: Callable[[], tr.Posterior]) -> tuple[tr.Posterior, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


@pytest.mark.quick
def test_events_within_events_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is reported at its end: two inner ones, the outer one around both, and a later one by itself."""
    ends = iter([3.0, 5.0, 6.0, 9.0])
    monkeypatch.setattr(clock, "_spans", [])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ends))
    for duration in (1.0, 1.0, 5.0, 2.0):
        clock._listen("/jax/core/compile/jaxpr_trace_duration", duration)
    clock._listen("/jax/another_event", 100.0)
    assert clock._spans == [(1.0, 6.0), (7.0, 9.0)] and compile_time() == 7.0


@pytest.mark.test
def test_the_clock_of_work_stands_still_while_jax_compiles() -> None:
    watch, start, begin = Stopwatch(), work_time(), time.perf_counter()
    jax.jit(lambda x: jnp.sin(x) * 3.21)(1.0).block_until_ready()
    worked, passed = work_time() - start, time.perf_counter() - begin
    phases = watch.phases({"climbing": worked, COMPILING: 99.0})
    assert phases[COMPILING] > 0 and 0 <= worked < passed
    assert list(phases) == ["climbing", PREPARING, COMPILING] and is_whole(phases, passed)
    assert add({"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 4.0}) == {"a": 1.0, "b": 5.0, "c": 4.0}


@pytest.mark.test
def test_a_process_knows_how_long_it_runs() -> None:
    """The time of its start is known to a hundredth of a second."""
    code = "from tractable.core.clock import Stopwatch\nprint(*Stopwatch(whole_process=True).phases({}).values())"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.1 < sum(map(float, done.stdout.split())) < time.perf_counter() - start + 0.05


@pytest.mark.parametrize(
    "method",
    [
        tr.NUTS(**FEW), tr.MAP(), tr.Laplace(), tr.MeanField(), tr.SGLD(batch_size=50, **FEW),
        tr.DeepEnsemble(size=2), tr.BayesByBackprop(epochs=20),
    ],
    ids=lambda method: method.label,
)  # fmt: skip
def test_phases_add_up(method: tr.Method) -> None:
    posterior, seconds = timed(lambda: tr.infer(MODEL, DATA, method, progress=False))
    assert is_whole(posterior.seconds, seconds), (posterior.seconds, seconds)


def test_phases_of_inla_add_up() -> None:
    model = tr.models.linear.generalised_linear(3, "poisson")
    y = np.random.default_rng(1).poisson(np.exp(0.3 * X.sum(axis=1)))
    posterior, seconds = timed(lambda: tr.infer(model, tr.Data(y, given=X), tr.INLA(), progress=False))
    assert is_whole(posterior.seconds, seconds), (posterior.seconds, seconds)


def test_phases_of_em_add_up_and_those_of_later_checks_are_added() -> None:
    rows = np.concatenate([X - 3, X + 3])
    model = tr.models.gaussian_mixture(2, 3)
    posterior, seconds = timed(lambda: tr.infer(model, tr.Data(rows), tr.EM(), progress=False))
    assert is_whole(posterior.seconds, seconds), (posterior.seconds, seconds)
    again, more = timed(posterior.verify)
    assert is_whole(again.seconds, seconds + more) and again.seconds["verifying"] > posterior.seconds["verifying"]


def test_phases_of_an_extended_run_add_up(tmp_path: Path) -> None:
    posterior, seconds = timed(lambda: tr.infer(MODEL, DATA, tr.NUTS(**FEW), checkpoint=tmp_path, progress=False))
    again, more = timed(lambda: posterior.extend(50, progress=False))
    assert is_whole(posterior.seconds, seconds) and is_whole(again.seconds, seconds + more)


def test_a_command_tells_the_time_since_its_start(tmp_path: Path) -> None:
    """The stopwatch stops when the last line is seen. The page's time ends before it is written."""
    table = "\n".join(["y,a,b,c", *(",".join(f"{v:.3f}" for v in (x.sum(), *x)) for x in X)])
    (tmp_path / "t.csv").write_text(table)
    options = ["--target", "y", "--out", str(tmp_path / "run"), "--method", "laplace"]
    command = [sys.executable, "-m", "tractable", "fit", str(tmp_path / "t.csv"), *options]
    start, lines = time.perf_counter(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append((line, time.perf_counter() - start))
    line, seen = lines[-1]
    total, rest = re.findall(r"^([\d.]+) s \((.*)\)\. Report", line)[0]
    phases = {name: float(number) for name, number in re.findall(r"([a-z-]+) ([\d.]+)", rest)}
    assert math.isclose(float(total), seen, rel_tol=0.05, abs_tol=0.3), (line, seen)
    assert math.isclose(sum(phases.values()), float(total), rel_tol=0.05, abs_tol=0.3)
    assert {"importing", "reading", "showing", COMPILING} <= set(phases)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    told = re.search(r"wall time</dt><dd>([\d.]+) s", page)
    assert told is not None and math.isclose(float(told[1]), float(total), rel_tol=0.1, abs_tol=0.5)
