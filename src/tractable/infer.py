"""``infer`` runs a method on a model and data."""

import functools
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import psutil

from tractable.checks import preflight
from tractable.core import Model, as_data
from tractable.data.sharding import over_devices, rows_over
from tractable.methods.amortised import Amortised
from tractable.methods.drawing import Drawing
from tractable.methods.maximisation import EM
from tractable.methods.method import Method
from tractable.methods.session import sitting
from tractable.methods.variational import Variational
from tractable.results.folder import MEMORY_SHARE, ClimbSaver, Saver
from tractable.results.posterior import Posterior
from tractable.tools.errors import SettingsError, TractableWarning


def infer(
    model: Model,
    data: Any,
    method: Method,
    *,
    seed: int = 0,
    progress: bool | Callable | None = None,
    draws: str | pathlib.Path | None = None,
    checkpoint: str | pathlib.Path | None = None,
    devices: int | None = None,
) -> Posterior:
    """Learn the unknowns of a model from data.

    Args:
        model: what is believed.
        data: Data or arrays; None for a model that is just a log density.
        method: how to learn, for example ``NUTS()``.
        seed: of all randomness: equal seeds give equal results on equal machines.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        draws: where kept draws go: None for memory, "moments" to keep only their running mean and sd, or a folder to
            stream them to (zarr).
        checkpoint: a folder. A run that draws or climbs is saved there as it goes, and one that was killed goes on
            from there, bit for bit as if it had not been; with other data, model or settings that is an error.
        devices: over how many devices the chains of methods that draw are laid, or the rows of EM and
            CoordinateAscent, whose sums are then theirs added up. Other methods run on one.

    Returns:
        A Posterior; ``posterior.report()`` says how far to trust it. Ctrl-C and SIGTERM stop the run at a block's edge
        and return what there is, marked ``interrupted``.

    Raises:
        ModelError, DataError, SettingsError: before anything runs.
        RunError: a run that cannot go on; what was reached is in its ``partial``.
        CheckpointError: a checkpoint that is damaged or belongs to another run.
    """
    if not isinstance(method, Method):
        raise SettingsError(f"infer expects a method such as NUTS(); got {method!r}.")
    if not isinstance(model, Model):
        raise SettingsError(f"infer expects a Model; got {type(model).__name__}.")
    data = None if data is None else as_data(data)
    preflight.check(model, data)
    method.plan(data)  # batches that cannot be, before anything runs
    _check_memory(model, method, draws if checkpoint is None else checkpoint)
    shard, saved = _over(method, devices), functools.partial(_saver, model, data, method, seed, draws, checkpoint)
    with sitting(model, data, seed, progress, shard, saved, draws == "moments") as (session, saver):
        outcome = method.learn(session)
    posterior = Posterior.of(model, data, method, seed, outcome)
    if saver is not None:
        saver.finish(posterior)
    if posterior.interrupted:
        drawn = isinstance(method, Drawing)
        there = f"{posterior.count} of {method.draws} draws a chain are there" if drawn else "this is where it stood"
        warnings.warn(f"The run was interrupted: {there}.", TractableWarning, stacklevel=2)
    return posterior


def _saver(model, data, method, seed, draws, checkpoint) -> Saver | ClimbSaver | None:
    """Where the run is saved as it goes."""
    folder = checkpoint if checkpoint is not None else draws if draws not in (None, "moments") else None
    if folder is None:
        return None
    if isinstance(method, Drawing):
        return Saver(pathlib.Path(folder), model, data, method, seed, resumable=checkpoint is not None)
    climbs = isinstance(method, Variational | Amortised) or (isinstance(method, EM) and not method.minibatch)
    if climbs and checkpoint is not None:
        return ClimbSaver(pathlib.Path(folder), model, data, method, seed)
    name = type(method).__name__
    raise SettingsError(
        f"{name} has no draws to stream; posterior.save(FOLDER) writes its result."
        if checkpoint is None
        else f"{name} is not saved as it goes, so it takes no checkpoint=; posterior.save(FOLDER) writes its result."
    )


def _over(method: Method, devices: int | None) -> Callable:
    """How chains or rows are laid over devices, or a sentence of a method that has neither."""
    if devices is None or isinstance(method, Drawing):
        return over_devices(devices)
    if isinstance(method, EM) and not method.minibatch:
        return rows_over(devices)
    if devices != 1:
        raise SettingsError(
            f"{type(method).__name__} runs on one device; got devices={devices}. Chains of methods that draw (NUTS, "
            "SGLD) and the rows of EM and CoordinateAscent lie over several: leave devices= out, or use one of those."
        )
    return over_devices(None)


def _check_memory(model: Model, method: Method, elsewhere: Any) -> None:
    if elsewhere is not None or not isinstance(method, Drawing):
        return
    needed = method.chains * method.draws * model.space.size * jnp.zeros(()).dtype.itemsize
    available = psutil.virtual_memory().available
    if needed > MEMORY_SHARE * available:
        raise SettingsError(
            f"{method.chains} chains of {method.draws} draws of {model.space.size} numbers need "
            f"{needed / 2**30:.1f} GiB; {available / 2**30:.1f} GiB are free. Use thin=, fewer draws, "
            "draws='moments', or draws=FOLDER to stream them."
        )
