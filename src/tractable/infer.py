"""``infer`` runs a method on a model and data."""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from tractable import preflight
from tractable import run as loop
from tractable.core import Model, as_data
from tractable.methods.amortised import Amortised
from tractable.methods.drawing import Drawing
from tractable.methods.maximisation import EM
from tractable.methods.method import Method, Session
from tractable.methods.variational import Variational
from tractable.posterior import Posterior
from tractable.saving import MEMORY_SHARE, ClimbSaver, Saver
from tractable.tools.counts import is_count
from tractable.tools.errors import RunError, SettingsError, TractableWarning
from tractable.tools.progress import Progress, progress_of
from tractable.tools.sharding import over_devices, rows_over

PyTree = Any


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
    shard = _over(method, devices)
    with progress_of(progress) as bar, loop.interruptible() as stop:
        saver = _saver(model, data, method, seed, draws, checkpoint)
        session = _session(model, data, jax.random.key(seed), stop, bar, saver, draws == "moments", shard)
        outcome = method.learn(session)
    posterior = Posterior.of(model, data, method, seed, outcome)
    if saver is not None:
        saver.finish(posterior)
    if posterior.interrupted:
        drawn = isinstance(method, Drawing)
        there = f"{posterior.count} of {method.draws} draws a chain are there" if drawn else "this is where it stood"
        warnings.warn(f"The run was interrupted: {there}.", TractableWarning, stacklevel=2)
    return posterior


def extend(posterior: Posterior, draws: int, *, progress: bool | Callable | None = None) -> Posterior:
    """The posterior with ``draws`` more kept draws a chain, as if they had been asked for at once."""
    method, standing = posterior.method, posterior.standing
    if not isinstance(method, Drawing) or standing is None or posterior.unconstrained is None:
        raise RunError(
            "Only a posterior of kept draws, from this process, can be extended; use checkpoint= across processes."
        )
    if not is_count(draws):
        raise SettingsError(f"extend(draws) expects a whole number ≥ 1; got {draws!r}.")
    with progress_of(progress) as bar, loop.interruptible() as stop:
        session = _session(
            posterior.model, posterior.data, jax.random.key(posterior.seed or 0), stop, bar, None, False,
            over_devices(None),
        )  # fmt: skip
        outcome = method.go_on(session, standing, posterior.count + draws)
    before = posterior.info | {"position": posterior.unconstrained}
    now = dict(outcome.info) | ({} if outcome.draws is None else {"position": outcome.draws})
    joined = {
        name: np.concatenate([kept, posterior.surplus[name], *([now[name]] if name in now else [])], 1)
        for name, kept in before.items()
    }
    outcome = outcome._replace(draws=joined.pop("position"), info=joined)
    return Posterior.of(posterior.model, posterior.data, method, posterior.seed, outcome, posterior.count + draws)


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


def _session(model, data, key, stop, bar: Progress, saver, moments: bool, shard: Callable) -> Session:
    return Session(
        model, data, key, stop, bar.say, shard,
        resume=None if saver is None else saver.standing,
        save=None if saver is None else saver.save,
        keep="moments" if moments else "draws" if saver is None else "elsewhere",
    )  # fmt: skip


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
