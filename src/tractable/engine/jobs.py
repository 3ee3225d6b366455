"""Runs independent jobs: one after another in this process, or in parallel through one of joblib's backends."""

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
from tractable.core.words import tell
from tractable.engine.progress import as_say
from tractable.engine.stopping import ending, interruptible

# JAX settings on which a process's results depend; another process gets the same values.
CONFIG = (
    "jax_enable_x64", "jax_threefry_partitionable", "jax_default_prng_impl", "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
)  # fmt: skip
# Names of the errors with which loky, Dask and Ray report that a worker process has died.
DEATHS = ("BrokenExecutor", "KilledWorker", "RayActorError", "WorkerCrashedError")


class Ended(NamedTuple):
    """A job that has ended, with a result or without one."""

    index: int
    result: Any  # None if the job was stopped before it began, or if its result was lost
    lost: str = ""  # a sentence that says why the result was lost; empty if it was not lost
    caught_warnings: tuple = ()  # the other process's warnings, as arguments of ``tell``

    def tell(self) -> None:
        """Repeat in this process the warnings of another process."""
        for message, category in self.caught_warnings:  # the other process does not know the user's line
            tell(message, category)


class Heard:
    """Wraps a user's progress function for one of many fits; ``raised`` is true if that function raised an error."""

    def __init__(self, progress: Callable, prefix: str) -> None:
        self.progress, self.prefix, self.raised = as_say(progress), prefix, False

    def __call__(self, phase: str, done: int, of: int, values: Mapping[str, float] | None = None) -> None:
        self.raised = True
        self.progress(self.prefix + phase, done, of, values)
        self.raised = False


def why(error: Exception, heard: object = None) -> str:
    """A sentence that says why one of many fits failed.

    Raises ``error`` again if the fit did not cause it: if it is a warning that the user turned into an error, or an
    error of the user's own progress function (``heard``, of class ``Heard``).
    """
    if isinstance(error, Warning) or getattr(heard, "raised", False):
        raise error
    return str(error) if isinstance(error, TractableError) else f"{type(error).__name__}: {error}"


def many_processes(n_jobs: int | None, what: str) -> bool:
    """Whether jobs run in parallel, as ``n_jobs`` says; if it is None, ``joblib.parallel_config`` decides."""
    expect(f"{what}(n_jobs)", n_jobs, Jobs | None)
    workers: Any = n_jobs
    return joblib.effective_n_jobs(workers) != 1


def run_jobs(
    work: functools.partial,
    todo: Sequence[int],
    n_jobs: int | None,
    what: str,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """Run ``work(index)`` for every index, and yield the ended jobs in the order in which they end.

    An exception in ``work`` ends all jobs. If a process dies, because it was killed or out of memory, only one job is
    lost. joblib does not say which job, so all unfinished jobs that had begun are run again one by one, until one dies.

    Args:
        work: a function with all arguments but the first bound by name. Another process unpickles it only once. If a
            result refers to such an argument, or to an element of an argument that is a tuple, it refers to this
            process's own object again, and not to a copy.
        todo: the indices.
        n_jobs: number of processes as in joblib (−1: all cores); None is 1 or what ``joblib.parallel_config`` sets.
        what: the caller's name for error messages, such as "compare".
        stop: called between jobs; no further job begins once it returns true.

    Raises:
        SettingsError: joblib's backend forks processes, or ``work`` cannot be pickled. No job has run then.
    """
    if not many_processes(n_jobs, what):
        yield from (Ended(index, work(index)) for index in todo if not stop())
        return
    backend: Any = get_active_backend()[0]
    if type(backend) is MultiprocessingBackend:
        raise SettingsError(
            f"{what} takes joblib's backends loky, threading, dask and ray; got multiprocessing, which forks this "
            "process. A fork of a process that runs JAX would wait for ever. Choose one of those four."
        )
    send = functools.partial(_in_thread, work)
    if not getattr(backend, "supports_sharedmem", False):
        sent = _packed_work(work)
        # The bytes are sent as an array: joblib puts an array into shared memory once, for all local processes.
        send = functools.partial(_away, _settings(), hashlib.sha256(sent).hexdigest(), np.frombuffer(sent, np.uint8))
    remaining = list(todo)
    while remaining:
        started: list[int] = []
        try:
            for ended in _in_pool(send, work, remaining, n_jobs, backend, started):
                remaining.remove(ended.index)
                yield ended
                if stop():
                    return
        except Exception as error:
            suspects = [index for index in started if index in remaining]
            if not (_is_death(error) and suspects):
                raise
            for index in suspects:
                ended = Ended(index, None, _death(error))
                if len(suspects) > 1:
                    ended = _run_alone(send, work, index, n_jobs, backend)
                remaining.remove(index)
                yield ended
                if stop():
                    return
                if ended.lost:
                    break  # the others run in parallel again


def _in_pool(
    send: Callable, work: functools.partial, todo: Sequence[int], n_jobs: int | None, backend: object, started: list
) -> Iterator[Ended]:
    """Run jobs in a pool. Yield each job when it ends, or all jobs at the end if the backend returns them all at once.

    The indices of the jobs that have begun are appended to ``started``.
    """
    as_they_come = getattr(backend, "supports_return_generator", False)
    pool = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered" if as_they_come else "list")
    with _report_dead_workers(backend):
        results: Any = pool(joblib.delayed(send)(index) for index in tuple(todo) if not started.append(index))
        try:
            for one in results:
                if isinstance(one, Exception):
                    raise one
                yield unpack(one, work) if isinstance(one, bytes) else one
        finally:
            if as_they_come:
                # joblib warns of unfinished jobs; here they are stopped on purpose.
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    results.close()  # ends jobs in progress


@contextlib.contextmanager
def _report_dead_workers(backend: object) -> Iterator[None]:
    """A context in which a Dask job whose worker died returns the error, and no job is run in this process.

    Without this context joblib 1.6 waits for such a job for ever. It also runs jobs in this process if Dask has only
    one worker left.
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
    finally:  # removing the instance's functions uncovers the class's own
        del vars(backend)["submit"], vars(backend)["effective_n_jobs"]


def _run_alone(send: Callable, work: functools.partial, index: int, n_jobs: int | None, backend: object) -> Ended:
    """Run one job by itself in another process."""
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
        f"The process that ran this job ended without a word{by}: it was killed, ran out of memory, or crashed in "
        "compiled code. The other jobs are not affected; run this one by itself, with n_jobs=1, to see where it ends."
    )


# How work and results are pickled.


class _Pickler(cloudpickle.Pickler):
    """Pickles functions with their code, as cloudpickle does, and memory-mapped arrays as the path of their file."""

    known: Mapping[int, Any] = MappingProxyType({})  # names, by id, of the objects that the other process has too

    def persistent_id(self, obj: object) -> Any:
        return self.known.get(id(obj))

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, np.ndarray) and (where := _on_file(obj)) is not None:
            return _open_array, where
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    known: Mapping[Any, object] = MappingProxyType({})

    def persistent_load(self, pid: object) -> object:
        return self.known[pid]


def pack(value: object, work: functools.partial | None = None) -> bytes:
    """``value`` as bytes; the arguments of ``work`` are replaced by their names."""
    with io.BytesIO() as file:
        pickler = _Pickler(file)
        pickler.known = {id(argument): name for name, argument in _arguments(work).items()}
        pickler.dump(value)
        return file.getvalue()


def unpack(sent: bytes, work: functools.partial | None = None) -> Any:
    """The value that ``pack`` packed. Names of arguments of ``work`` become the objects of this process again."""
    with io.BytesIO(sent) as file:
        unpickler = _Unpickler(file)
        unpickler.known = _arguments(work)
        return unpickler.load()


def _arguments(work: functools.partial | None) -> dict[Any, Any]:
    """The arguments of ``work`` by name, and the elements of arguments that are tuples, by name and index."""
    own = {} if work is None else work.keywords
    return own | {(name, i): one for name, of in own.items() if isinstance(of, tuple) for i, one in enumerate(of)}


def _packed_work(work: functools.partial) -> bytes:
    try:
        return pack(work)
    except Exception as error:  # an object's own pickling may raise any error
        cause, culprit = error, "the job's function"
        for name, value in work.keywords.items():
            try:
                pack(value)
            except Exception as first_error:
                cause, culprit = first_error, f"the job's {name}"
                break
        raise SettingsError(
            f"Jobs are pickled for other processes, but {culprit} cannot be pickled ({cause}); use "
            "n_jobs=1, or threads: with joblib.parallel_config(backend='threading'). Files, locks and generators that "
            "a function refers to cannot be pickled: open them inside the function."
        ) from error


def _on_file(array: np.ndarray) -> tuple | None:
    """The file of a memory-mapped array, and where the array lies in it; None for an array in memory."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not array.size or min(array.strides, default=0) < 0:
        return None
    start = root.offset + array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    path = os.path.abspath(root.filename)
    return path, os.path.getsize(path), start, array.dtype, array.shape, array.strides


def _open_array(path: str, size: int, start: int, dtype: np.dtype, shape: tuple, strides: tuple) -> np.ndarray:
    if not os.path.exists(path) or os.path.getsize(path) != size:
        raise DataError(
            f"Rows on file are sent by their path: expected the file {path} of {size} bytes on every machine; this "
            f"machine has {'a file of another size' if os.path.exists(path) else 'no such file'}. Put the file on a "
            "shared disk."
        )
    extent = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    mapped: Any = np.memmap(path, np.uint8, "r", start, (extent,))
    return np.ndarray(shape, dtype, mapped, 0, strides)


def _settings() -> tuple[dict[str, Any], dict[str, str]]:
    """JAX's settings, and the environment variables that XLA reads when it starts.

    These include the number of threads, on which the rounding of a sum depends.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    width = os.environ.get("PJRT_NPROC") or os.environ.get("NPROC") or str(cores)
    flags = {name: os.environ[name] for name in ("XLA_FLAGS",) if name in os.environ}
    return {name: jax.config.values[name] for name in CONFIG}, {"PJRT_NPROC": width, **flags}


# The latest work that was sent to this process, by its hash. It is kept so that its programs are compiled only once.
_sent_work: dict[str, functools.partial] = {}


def _receive(settings: tuple[dict[str, Any], dict[str, str]], sent: np.ndarray) -> functools.partial:
    config, environment = settings
    os.environ.update(environment)
    for name, value in config.items():  # before arrays are unpacked, since their precision depends on these settings
        if jax.config.values[name] != value:
            jax.config.update(name, value)
    try:
        return unpack(sent.tobytes())
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"Another process cannot import a module that it needs ({error}). Install that module where the "
            "processes run, or send the module's code: cloudpickle.register_pickle_by_value(module)."
        ) from error


def _in_thread(work: Callable, index: int) -> Ended:
    """Run a job in a thread of this process. Its warnings are shown as all warnings of the process."""
    return Ended(index, work(index))


def _away(settings: tuple[dict[str, Any], dict[str, str]], digest: str, sent: np.ndarray, index: int) -> bytes:
    """Run a job in another process, and return it packed. Ctrl-C reaches a terminal's processes and ends the job."""
    with ending(leave=False), interruptible() as stop:
        if stop():
            return pack(Ended(index, None))
        work = _sent_work.get(digest)
        if work is None:
            work = _receive(settings, sent)
            _sent_work.clear()
            _sent_work[digest] = work
        # Python can catch warnings only for all threads together. So the warnings of a job that runs in a thread of a
        # cluster's process stay in the cluster's logs.
        is_main = threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings(record=True) if is_main else contextlib.nullcontext() as records:
            if is_main:
                warnings.simplefilter("always", TractableWarning)
            result = work(index)
        caught = tuple((str(w.message), w.category) for w in records or ())
    try:
        return pack(Ended(index, result, caught_warnings=caught), work)
    except Exception as error:  # an object's own pickling may raise any error
        return pack(Ended(index, None, f"Its result cannot be sent back to this process ({error}); use n_jobs=1."))
