"""Programs are forgotten before they have taken all of a process's memory mappings, and not sooner."""

import gc
from types import SimpleNamespace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import tractable as tr
from tractable.engine import mappings

pytestmark = pytest.mark.laws


@pytest.mark.skipif(not mappings.MAPS.exists(), reason="the system does not count them")
def test_a_program_holds_mappings():
    gc.collect()  # programs that other tests dropped give theirs back now, not while these are counted
    before = mappings.mappings()
    kept = [jax.jit(lambda x, i=i: x * i) for i in range(60)]  # a function that nobody holds takes its program along
    for function in kept:
        function(np.ones(3))
    assert before + 20 <= mappings.mappings() < before + 3000


def test_they_are_forgotten_when_there_are_many(monkeypatch):
    """A sawtooth: 700 a fit from 500 that stay, never above 10,000 more than were left."""
    there, forgotten, highest, clock = [500], [], 0, iter(np.arange(1e3))

    def forget():
        forgotten.append(there[0])
        there[0] = 500

    monkeypatch.setattr(mappings, "MOST", 10_000)
    monkeypatch.setattr(mappings._Left, "count", 0)
    monkeypatch.setattr(mappings._Left, "counted", -mappings.SECONDS)
    monkeypatch.setattr(mappings, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(mappings, "mappings", lambda: there[0])
    monkeypatch.setattr(jax, "clear_caches", forget)
    for _ in range(100):
        mappings.make_room()
        there[0] += 700
        highest = max(highest, there[0])
    assert 6 <= len(forgotten) <= 7 and highest <= 10_500 + 700 and min(forgotten) > 10_000


@pytest.mark.quick
def test_they_are_counted_once_a_second(monkeypatch):
    counted, clock = [], [0.0]
    monkeypatch.setattr(mappings._Left, "counted", -mappings.SECONDS)
    monkeypatch.setattr(mappings, "mappings", lambda: counted.append(clock[0]) or 0)
    monkeypatch.setattr(mappings, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for clock[0] in np.arange(0, 5, 0.25):
        mappings.make_room()
    assert counted == [0, 1, 2, 3, 4]


def test_every_run_looks(monkeypatch):
    looked = []
    monkeypatch.setattr("tractable.engine.session.make_room", lambda: looked.append(True))
    model = tr.Model({"mu": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["mu"], 1.0))
    tr.infer(model, np.zeros(3), tr.MAP(), verify=None)
    assert looked
