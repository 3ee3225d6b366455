"""Independent jobs: one after another in this process, or in parallel over a backend of joblib."""

import contextlib
import functools
import hashlib
import io
import os
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import cloudpickle
import jax
import joblib
import numpy as np
from joblib.parallel import MultiprocessingBackend, get_active_backend

from tractable.core.errors import DataError, SettingsError, TractableError, TractableWarning
from tractable.core.settings import Jobs, expect
from tractable.engine.stopping import ending, interruptible

# JAX settings that a process's results depend on.
CONFIG = (
    "jax_enable_x64", "jax_threefry_partitionable", "jax_default_prng_impl", "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
)  # fmt: skip
DEATHS = ("BrokenExecutor", "KilledWorker", "RayActorError", "WorkerCrashedError")  # loky's, Dask's, Ray's


class Ended(NamedTuple):
    """A job that has ended, with a result or without one."""

    index: int
    result: Any  # None where it was stopped before it began, or lost
    lost: str = ""  # why there is no result, a sentence; empty where nothing went wrong
    caught_warnings: tuple = ()  # warnings of another process, as ``warnings.warn_explicit`` takes them

    def tell(self) -> None:
        """Warn here of what another process warned of."""
        for message, category, file, line in self.caught_warnings:
            warnings.warn_explicit(message, category, file, line)


class Heard:
    """A user's progress function for one of many fits; ``raised`` says whether an error came from that function."""

    def __init__(self, progress: Callable, prefix: str) -> None:
        self.progress, self.prefix, self.raised = progress, prefix, False

    def __call__(self, phase: str, done: int, of: int) -> None:
        self.raised = True
        self.progress(self.prefix + phase, done, of)
        self.raised = False


def why(error: Exception, heard: object = None) -> str:
    """A sentence on why one of many fits failed.

    Raises ``error`` where it is no fault of the fit: a warning that the user turned into an error, or an error of the
    user's own progress function.
    """
    if isinstance(error, Warning) or getattr(heard, "raised", False):
        raise error
    return str(error) if isinstance(error, TractableError) else f"{type(error).__name__}: {error}"


def many_processes(n_jobs: int | None, what: str) -> bool:
    """Whether jobs run in parallel: by ``n_jobs``, or by ``joblib.parallel_config`` where it is None."""
    expect(f"{what}(n_jobs)", n_jobs, Jobs | None)
    workers: Any = n_jobs
    return joblib.effective_n_jobs(workers) != 1


def finished(
    work: functools.partial,
    todo: Sequence[int],
    n_jobs: int | None,
    what: str,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """``work(index)`` of every index, in the order in which they end.

    An exception of ``work`` ends all jobs; a process that dies, killed or out of memory, ends one. To find out which
    one, each of the jobs that had begun by then is run once more by itself, until one dies again.

    Args:
        work: a function with all but its first argument given by name. Another process unpickles it once; where a
            result refers to one of these arguments, or to an element of a tuple, it does so again when it is back.
        todo: the indices.
        n_jobs: as joblib counts processes; None is 1 unless ``joblib.parallel_config`` says otherwise.
        what: the caller's name for error messages, such as "compare".
        stop: called between jobs; true ends them.

    Raises:
        SettingsError: a backend that forks, or something in ``work`` that no pickle holds; before anything runs.
    """
    if not many_processes(n_jobs, what):
        yield from (Ended(index, work(index)) for index in todo if not stop())
        return
    backend: Any = get_active_backend()[0]
    if type(backend) is MultiprocessingBackend:
        raise SettingsError(
            f"{what} takes joblib's backends that do not fork a process that runs JAX, which would wait for ever: "
            "loky, threading, dask, ray; got multiprocessing."
        )
    send = functools.partial(_in_thread, work)
    if not getattr(backend, "supports_sharedmem", False):
        sent = _packed_work(work)
        # As an array, which joblib hands to local processes in shared memory, once.
        send = functools.partial(_away, _settings(), hashlib.sha256(sent).hexdigest(), np.frombuffer(sent, np.uint8))
    left = list(todo)
    while left:
        begun: list[int] = []
        try:
            for ended in _in_pool(send, work, left, n_jobs, backend, begun):
                left.remove(ended.index)
                yield ended
                if stop():
                    return
        except Exception as error:
            suspects = [index for index in begun if index in left]
            if not (_is_death(error) and suspects):
                raise
            for index in suspects:
                ended = Ended(index, None, _death(error))
                if len(suspects) > 1:
                    ended = _alone(send, work, index, n_jobs, backend)
                left.remove(index)
                yield ended
                if stop():
                    return
                if ended.lost:
                    break  # the others run in parallel again


def _in_pool(
    send: Callable, work: functools.partial, todo: Sequence[int], n_jobs: int | None, backend: object, begun: list[int]
) -> Iterator[Ended]:
    """Jobs as they end; all at the end, from a backend that returns all results at once."""
    as_they_come = getattr(backend, "supports_return_generator", False)
    pool = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered" if as_they_come else "list")
    with _report_dead_workers(backend):
        found: Any = pool(joblib.delayed(send)(index) for index in tuple(todo) if not begun.append(index))
        try:
            for one in found:
                if isinstance(one, Exception):
                    raise one
                yield unpacked(one, work) if isinstance(one, bytes) else one
        finally:
            if as_they_come:
                with warnings.catch_warnings(action="ignore", category=UserWarning):  # that jobs are left, on purpose
                    found.close()  # ends jobs in progress


@contextlib.contextmanager
def _report_dead_workers(backend: object) -> Iterator[None]:
    """Within, a job of Dask whose worker died returns the error, and no job is run in this process.

    joblib 1.6 would wait for such a job for ever, and would run jobs in this process where only one worker is left.
    """
    submit, cores = (getattr(backend, name, None) for name in ("submit", "effective_n_jobs"))
    if type(backend).__name__ != "DaskDistributedBackend" or submit is None or cores is None:
        yield
        return

    def submit_and_watch(batch: Sequence, callback: Callable | None = None) -> Any:
        job = submit(batch, callback)
        if callback is not None:
            job.add_done_callback(lambda job: callback([job.exception()] * len(batch)) if job.exception() else None)
        return job

    vars(backend).update(submit=submit_and_watch, effective_n_jobs=lambda n_jobs: max(2, cores(n_jobs)))
    try:
        yield
    finally:  # the class's own are there again
        del vars(backend)["submit"], vars(backend)["effective_n_jobs"]


def _alone(send: Callable, work: functools.partial, index: int, n_jobs: int | None, backend: object) -> Ended:
    """One job in a process that is not this one."""
    try:
        (ended,) = _in_pool(send, work, [index], n_jobs, backend, [])
        return ended
    except Exception as error:
        if not _is_death(error):
            raise
        return Ended(index, None, _death(error))


def _is_death(error: Exception) -> bool:
    return any(kind.__name__ in DEATHS for kind in type(error).__mro__)


def _death(error: Exception) -> str:
    codes = re.search(r"\{(.*?)\}", str(error))
    by = f" ({codes[1]})" if codes else ""
    return (
        f"The process that ran it ended without a word{by}: killed, out of memory, or by a fault of compiled code. "
        "What ran beside it is whole; run this one by itself, with n_jobs=1, to see where it ends."
    )


# What is sent, and what comes back.


class _Pickler(cloudpickle.Pickler):
    """Functions by value, as cloudpickle has them, and rows on file by their path."""

    known: Mapping[int, Any] = MappingProxyType({})  # by id, names of what the other side has

    def persistent_id(self, obj: object) -> Any:
        return self.known.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, np.ndarray) and (where := _on_file(obj)) is not None:
            return _opened, where
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    known: Mapping[Any, object] = MappingProxyType({})

    def persistent_load(self, pid: object) -> object:
        return self.known[pid]


def packed(value: object, work: functools.partial | None = None) -> bytes:
    """``value`` as bytes; of what ``work`` was given, only the names."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.known = {id(given): name for name, given in _given(work).items()}
        pickler.dump(value)
        return file.getvalue()


def unpacked(sent: bytes, work: functools.partial | None = None) -> Any:
    """What was packed, with the very objects that this process gave to ``work``."""
    with io.BytesIO(sent) as file:
        unpickler = _Unpickler(file)
        unpickler.known = _given(work)
        return unpickler.load()


def _given(work: functools.partial | None) -> dict[Any, Any]:
    """Arguments of ``work``, and the elements of those that are tuples, by their names and places."""
    given = {} if work is None else work.keywords
    return given | {(name, i): one for name, of in given.items() if isinstance(of, tuple) for i, one in enumerate(of)}


def _packed_work(work: functools.partial) -> bytes:
    try:
        return packed(work)
    except Exception as error:  # whatever an object's own way of being pickled raises
        why, culprit = error, "what it runs"
        for name, value in work.keywords.items():
            try:
                packed(value)
            except Exception as found:
                why, culprit = found, f"its {name}"
                break
        raise SettingsError(
            f"For several processes {culprit} is pickled, and cannot be sent to other processes ({why}); use n_jobs=1, "
            "or threads: with joblib.parallel_config(backend='threading'). Files, locks and generators that a function "
            "refers to cannot be pickled: open them within it."
        ) from error


def _on_file(array: np.ndarray) -> tuple | None:
    """Where in which file an array lies; None of one in memory."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not array.size or min(array.strides, default=0) < 0:
        return None
    start = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    path = os.path.abspath(root.filename)
    return path, os.path.getsize(path), start, array.dtype, array.shape, array.strides


def _opened(path: str, size: int, start: int, dtype: np.dtype, shape: tuple, strides: tuple) -> np.ndarray:
    if not os.path.exists(path) or os.path.getsize(path) != size:
        raise DataError(
            f"Rows on file are sent by their path: expected {path} of {size} bytes on every machine; there is "
            f"{'another of that name' if os.path.exists(path) else 'none'} on this one. Put it on a shared disk."
        )
    extent = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    mapped: Any = np.memmap(path, np.uint8, "r", start, (extent,))
    return np.ndarray(shape, dtype, mapped, 0, strides)


def _settings() -> tuple[dict[str, Any], dict[str, str]]:
    """Settings of JAX, and what XLA reads when it begins: sums depend on the number of threads they are split over."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    width = os.environ.get("PJRT_NPROC") or os.environ.get("NPROC") or str(cores)
    flags = {name: os.environ[name] for name in ("XLA_FLAGS",) if name in os.environ}
    return {name: jax.config.values[name] for name in CONFIG}, {"PJRT_NPROC": width, **flags}


_sent_work: dict[str, functools.partial] = {}  # the last work that was sent to this process, which so compiles once


def _receive(settings: tuple[dict[str, Any], dict[str, str]], sent: np.ndarray) -> functools.partial:
    config, environment = settings
    os.environ.update(environment)
    for name, value in config.items():  # before arrays are unpacked: their precision depends on it
        if jax.config.values[name] != value:
            jax.config.update(name, value)
    try:
        return unpacked(sent.tobytes())
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"Another process cannot import what it is to run ({error}). Install that module where the processes "
            "run, or send it whole: cloudpickle.register_pickle_by_value(module)."
        ) from error


def _in_thread(work: Callable, index: int) -> Ended:
    """A job in a thread, whose warnings go where all of the process's go."""
    return Ended(index, work(index))


def _away(settings: tuple[dict[str, Any], dict[str, str]], digest: str, sent: np.ndarray, index: int) -> bytes:
    """A job in another process, packed; Ctrl-C, which all processes of a terminal receive, ends it."""
    with ending(leave=False), interruptible() as stop:
        if stop():
            return packed(Ended(index, None))
        work = _sent_work.get(digest)
        if work is None:
            work = _receive(settings, sent)
            _sent_work.clear()
            _sent_work[digest] = work
        # Warnings are caught for a process, not for a thread; those of a cluster's threads stay in its logs.
        only = threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings(record=True) if only else contextlib.nullcontext() as heard:
            if only:
                warnings.simplefilter("always", TractableWarning)
            result = work(index)
        caught = tuple((str(w.message), w.category, w.filename, w.lineno) for w in heard or ())
    try:
        return packed(Ended(index, result, caught_warnings=caught), work)
    except Exception as error:  # whatever an object's own way of being pickled raises
        return packed(Ended(index, None, f"Its result cannot be sent back to this process ({error}); use n_jobs=1."))
