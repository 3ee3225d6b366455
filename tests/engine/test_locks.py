"""One folder, one run: who holds it is named, what was left is taken over, and nothing is held too long."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tractable.core.errors import CheckpointError, TractableWarning
from tractable.engine.locks import LOCK, lock

pytestmark = pytest.mark.quick

HOLDER = """
import sys, time
from tractable.engine.locks import lock
with lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def in_a_thread(work):
    """What ``work`` raised in another thread of this process, or None."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def hold(folder):
    with lock(folder):
        pass


def test_a_second_thread_gets_a_sentence_and_the_same_one_does_not(tmp_path):
    folder = tmp_path / "new" / "run"
    with lock(folder), lock(folder / ".." / "run"), lock(None):
        error = in_a_thread(lambda: hold(folder))
        assert json.loads((folder / LOCK).read_bytes())["process"] == os.getpid()
    assert isinstance(error, CheckpointError)
    assert f"process {os.getpid()} (this one) on " in str(error) and "since 20" in str(error)
    assert in_a_thread(lambda: hold(folder)) is None and not list(folder.iterdir())


def test_an_error_lets_go(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock(tmp_path):
        raise KeyboardInterrupt
    assert in_a_thread(lambda: hold(tmp_path)) is None


def test_of_many_threads_one_holds(tmp_path):
    inside, most, refused = [], [], []

    def work():
        for _ in range(50):
            try:
                with lock(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except CheckpointError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert max(most) == 1 and len(most) + len(refused) == 300


@pytest.mark.test
def test_another_process_is_named_and_a_killed_one_is_taken_over(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match=f"written by another run: process {holder.pid} on .*Wait for it"):
            hold(tmp_path)
        holder.send_signal(signal.SIGKILL)
    with pytest.warns(TractableWarning, match=rf"has gone \(process {holder.pid} on .*taken over"):
        hold(tmp_path)
    hold(tmp_path)  # told once


def test_another_host(tmp_path):
    (tmp_path / LOCK).write_text('{"process": 7, "host": "elsewhere", "since": "2026-01-01 00:00:00"}')
    for _ in range(2):  # and it stays
        with pytest.raises(CheckpointError, match=r"process 7 on elsewhere, since 2026.*delete .*\.lock"):
            hold(tmp_path)
    (tmp_path / LOCK).write_bytes(b"\x00\x00")  # as a power cut leaves it
    hold(tmp_path)


@pytest.mark.laws
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_fork_neither_holds_nor_lets_go(tmp_path):
    with lock(tmp_path):
        child = os.fork()
        if not child:  # what it holds is its own: not this folder
            try:
                hold(tmp_path)
            except CheckpointError:
                os._exit(3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert isinstance(in_a_thread(lambda: hold(tmp_path)), CheckpointError)
    hold(tmp_path)


def test_folders_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / ("n" * 300)):
        with pytest.raises(CheckpointError, match=r"Expected to write .*choose another folder"):
            hold(folder)
