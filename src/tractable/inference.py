"""``infer`` runs a method on a model and data."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import psutil
from jax.sharding import Mesh

from tractable.beliefs.check import Check
from tractable.checks import preflight
from tractable.checks.verify import BEFORE, LARGEST, Verify, frame_of
from tractable.core import Data, Model, PyTree, as_data
from tractable.data.sharding import Over
from tractable.methods.abilities import devices_of, needs
from tractable.methods.method import ALIASES, METHODS, Method, Outcome
from tractable.methods.session import Session, sitting
from tractable.methods.stretches import HELD
from tractable.results.folder import MEMORY_SHARE, Follower, Leader, Saver
from tractable.results.identity import check_resumable, identity
from tractable.results.posterior import Posterior
from tractable.tools.bits import in_double, need_double
from tractable.tools.errors import CheckpointError, DataError, RunError, SettingsError, TractableError
from tractable.tools.locks import held
from tractable.tools.settings import expect, seeded
from tractable.tools.stopping import ending
from tractable.tools.words import nearest, spelt, tell


@spelt
@ending()
def infer(
    model: Model,
    data: Data | PyTree,
    method: Method,
    *,
    seed: int = 0,
    progress: bool | Callable | None = None,
    draws: str | pathlib.Path | None = None,
    checkpoint: str | pathlib.Path | None = None,
    mesh: int | str | Mesh | None = None,
    reproducible: bool = True,
    verify: str | None = "auto",
    held_out: Data | PyTree = None,
) -> Posterior:
    """Learn the unknowns of a model from data.

    Where single precision rounds the rows' log density by more than 0.05 nats, as of counts of a million, or does not
    hold the squares of their numbers, the run and its posterior compute in double precision
    (``posterior.found["double"]``); JAX's own setting stays as it is.

    Args:
        model: priors and likelihood, or a log density.
        data: Data or arrays; None for a model that is just a log density.
        method: how to learn, for example ``NUTS()``.
        seed: of all randomness: equal seeds give equal results on equal machines.
        progress: True, False, or ``(phase, done, of) -> None``; by default a bar on a terminal.
        draws: where kept draws go: None for memory, "moments" to keep only their running mean and sd, or a folder to
            stream them to (zarr).
        checkpoint: a folder. The run is saved there as it goes, whatever the method. A run that was killed continues
            from there, bit for bit as if uninterrupted; with other data, model, settings or order of sums (``mesh``)
            that is an error.
        mesh: the devices that share the work, of this process or of all that ``jax.distributed`` has joined: how many,
            "auto" for all, or a ``jax.sharding.Mesh`` with axes "chain" and "row". A number goes over the chains of
            methods that draw, and over the rows of others; docs/many-machines.md says which method takes which axis.
            The numbers are the same to the last bit on 2, 4 and 8 devices, however many processes these belong to; on
            one device, without ``mesh``, and for EM by gradient, they may differ by rounding.
        reproducible: with False, sums over rows are added in any order, in one reduction of XLA's.
        verify: how thoroughly the result is checked against its density: "auto", "thorough" or None
            (``Posterior.verify``). If that finds a higher maximum or a mode of more mass, the climb starts again there.
        held_out: rows that the fit does not use. Step-wise fits of networks and ladders (``BayesByBackprop`` and its
            kin, MAP by "adam", ``AutoEncoding`` and all that learn an inference network) stop once these rows are
            predicted no better, and return the best state; every method's report says how well they are predicted.

    Returns:
        A Posterior; ``posterior.report()`` says how far to trust it. Ctrl-C stops the run at the end of a block, or a
        second later; what was reached is returned, marked ``interrupted``. A second Ctrl-C raises KeyboardInterrupt.
        SIGTERM ends the process with exit code 143, after saving what was reached.

    Raises:
        ModelError, DataError, SettingsError: before anything runs.
        RunError: a run that cannot go on; what was reached is in its ``partial``.
        CheckpointError: a checkpoint that is damaged or belongs to another run; a folder that another run is writing,
            or that can no longer be written (what was reached is in the error's ``partial``).
    """
    if not isinstance(method, Method):
        raise SettingsError(f"infer expects a method such as NUTS(); got {method!r}.{_meant(method)}")
    if not isinstance(model, Model):
        raise SettingsError(f"infer expects a Model; got {type(model).__name__}.")
    expect("infer(verify)", verify, Verify)
    seed = seeded("infer(seed)", seed)
    data, held_out = (None if rows is None else as_data(rows) for rows in (data, held_out))
    double = data is not None and data.resident and need_double(data.rows[0], data.rows[1], data.weights)
    with in_double(double):
        model = model.double_copy if double else model
        preflight.check(model, data)
        _check_held_out(model, data, held_out)
        method.needed(model)
        found = _inferred(
            model, data, method, seed, progress, draws, checkpoint, mesh, reproducible, verify, held_out, double
        )
    if found.interrupted:
        asked = f"{found.count} of {method.settings().get('draws')} draws a chain were kept"
        tell(f"The run was interrupted: {asked if method.chained else 'the result is its last state'}.")
    return found


def _inferred(
    model: Model, data: Data | None, method: Method, seed: int, progress: bool | Callable | None,
    draws: str | pathlib.Path | None, checkpoint: str | pathlib.Path | None, mesh: int | str | Mesh | None,
    reproducible: bool, verify: str | None, held_out: Data | None, double: bool,
) -> Posterior:  # fmt: skip
    """``infer`` of checked arguments, in the precision that ``double`` says and that is JAX's now."""
    if checkpoint is not None:
        check_resumable(model, data, method)
    method.plan(data)  # raises for batches that cannot be, before anything runs
    moments, folder = draws == "moments", checkpoint if checkpoint is not None or draws == "moments" else draws
    if moments:
        needs("draws='moments'", method)
    elif draws is not None:
        needs("draws=FOLDER", method)
    if folder is None and not moments:
        _check_room(model, method, None)
    lying = devices_of(method, data, mesh, reproducible)

    def opened() -> Saver | Leader | Follower | None:
        if folder is None:
            return None
        path, saver, fault = pathlib.Path(folder), None, None
        run = identity(model, data, method, seed, held_out) | {"mesh": "none" if lying is None else lying.bits}
        try:
            if lying is None or lying.leads:
                holding.enter_context(held(path))
                _check_room(model, method, path)
                saver = Saver(path, run, resumable=checkpoint is not None)
        except TractableError as error:
            fault = error
        return _agreed(path, run, lying, saver, fault)

    with contextlib.ExitStack() as holding, _kept(lambda reached: Posterior(model, data, method, seed, *reached)):
        with sitting(model, data, seed, progress, lying, opened, moments) as session, _others(lying):
            outcome = method.learn(session._replace(held_out=held_out))
        if double:
            outcome = outcome._replace(found=outcome.found | {"double": True})
        if session.saver is not None:
            _shared(session.saver.faults, lying, outcome)
        posterior = verified(Posterior(model, data, method, seed, *outcome), verify, held_out, progress, session)
        if folder is not None and session.saver is not None:
            _write(posterior, pathlib.Path(folder), method.chained, list(session.saver.faults), lying, outcome)
    return posterior


def verified(
    posterior: Posterior,
    verify: str | None,
    held_out: Data | None = None,
    progress: bool | Callable | None = False,
    first: Session | None = None,
) -> Posterior:
    """The posterior after verification; of one rejected, what its method turns to instead, saved beside ``first``."""
    posterior = _climbed_again(posterior.verify(verify, held_out=held_out), verify, held_out)
    turn = None if verify is None or posterior.interrupted else posterior.method.otherwise(posterior)
    if turn is None:
        return posterior
    method, check = turn
    if check.verdict != "reject":
        try:
            saver = None if first is None else first.saver
            inside = functools.partial(saver.inside, "instead") if saver is not None else lambda: None
            with sitting(posterior.model, posterior.data, posterior.seed, progress, opened=inside) as session:
                outcome = method.learn(session._replace(held_out=held_out))
            if not outcome.interrupted:
                return _in_place_of(posterior, method, outcome, verify, held_out, check)
            why = "it was stopped"
        except RunError as error:
            why = f"it failed: {error}"
        check = Check(f"{type(method).__name__} instead", float("nan"), "reject", why)
    return dataclasses.replace(posterior, looked=(*posterior.looked, check), judged=None)


def _climbed_again(posterior: Posterior, verify: str | None, held_out: Data | None) -> Posterior:
    """If verification found a better place, the result of the same climb started there."""
    place = next((check.place for check in posterior.looked if check.place is not None), None)
    early = HELD in posterior.found  # held-out rows ended the climb below its maximum, on purpose
    if place is None or early or posterior.interrupted or not posterior.method.climbs:
        return posterior
    with sitting(posterior.model, posterior.data, posterior.seed, False) as session:
        outcome = posterior.method.learn(session._replace(near=place, held_out=held_out))
    if outcome.interrupted:
        return posterior
    sentence = "the first climb ended lower, or at a mode of less mass; this one began where a look found better"
    check = Check("begun again", 1.0, "trust", sentence)
    return _in_place_of(posterior, posterior.method, outcome, verify, held_out, check)


def _in_place_of(
    first: Posterior, method: Method, outcome: Outcome, verify: str | None, held_out: Data | None, check: Check
) -> Posterior:
    """A second result, verified, with the first one's seconds and gradients; ``check`` says why there are two.

    The second one's verification also climbs from where the first one stood: it may be a mode that nothing else meets.
    """
    seconds = first.seconds | {name: first.seconds.get(name, 0.0) + more for name, more in outcome.seconds.items()}
    found = {"double": True} if first.found.get("double") else {}
    found |= outcome.found | {"gradients before": first.cost.gradients, BEFORE: _places(first)}
    again = Posterior(first.model, first.data, method, first.seed, outcome.belief, found, standing=outcome.standing)
    again = again.verify(verify, held_out=held_out)
    seconds = {name: seconds.get(name, 0.0) + again.seconds.get(name, 0.0) for name in seconds | again.seconds}
    return dataclasses.replace(again, looked=(check, *again.looked), seconds=seconds)


def _places(posterior: Posterior) -> list[list[float]]:
    """Where a result and those before it stood, unconstrained: the point, or the mean of the draws."""
    frame = frame_of(posterior) if posterior.model.space.size <= LARGEST else None
    return [*posterior.found.get(BEFORE, []), *([] if frame is None else [frame[0].tolist()])]


def _meant(method: object) -> str:
    """A suggestion for a method given by its name or class."""
    name = str(getattr(method, "__name__", method))
    names = {label: kind.__name__ for label, kind in METHODS.items()}
    names |= {alias: names[label] for alias, label in ALIASES.items()} | {one.lower(): one for one in names.values()}
    found = names.get(name.lower())
    return nearest(name, names.values()) if found is None else f" Give {found}()."


@contextlib.contextmanager
def _others(over: Over | None) -> Iterator[None]:
    """Say in a sentence that a process of the run has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if over is None or not over.several:
            raise
        raise RunError(
            "Another process of this run has ended, or cannot be reached. Start all of them again with the same "
            f"checkpoint= to go on from the last save. ({str(error).splitlines()[0]})"
        ) from error


def _check_held_out(model: Model, data: Data | None, held_out: Data | None) -> None:
    if held_out is None:
        return
    if data is None:
        raise DataError("infer(held_out=...) are rows like those learnt from, and there are no data.")
    if held_out.fingerprint == data.fingerprint:
        raise DataError("infer(held_out=...) needs rows kept out of the fit; got those that are fitted.")
    preflight.check(model, held_out)


def _agreed(
    path: pathlib.Path, run: dict[str, Any], lying: Over | None, saver: Saver | None, fault: TractableError | None
) -> Saver | Leader | Follower | None:
    """The saver of one process, once all could open the folder: the others look then, and nothing is written before."""
    if lying is not None and lying.several and lying.told(int(fault is not None)).any() and fault is None:
        fault = CheckpointError(f"The process that writes {path} cannot open it; its own message says why.")
    if fault is not None:
        raise fault
    if lying is None or not lying.several:
        return saver
    shared = Follower(path, run) if saver is None else Leader(saver)
    if len(set(lying.told(shared.step))) > 1:
        raise CheckpointError(f"{path} is not one folder for all processes: expected a path that they share.")
    return shared


def _write(
    posterior: Posterior, folder: pathlib.Path, streamed: bool, faults: list[CheckpointError], lying: Over | None,
    outcome: Outcome,
) -> None:  # fmt: skip
    """Write the posterior, by the process that leads; a fault of any raises in all.

    ``streamed``: draws are there already, as those of the method asked for; not those of one that ran in its place.
    """
    try:
        if not faults and (lying is None or lying.leads):
            posterior.write(folder, streamed=streamed)
    except CheckpointError as error:
        faults = [error]
    _shared(faults, lying, outcome)


def _shared(faults: Sequence[CheckpointError], over: Over | None, outcome: Outcome) -> None:
    """Raise this process's fault of writing, or say that the process has one which writes for this one."""
    anywhere = bool(faults)
    if over is not None and over.several:
        with _others(over):
            anywhere = over.told(len(faults)).any()
    if anywhere:
        said = "The process that writes the run's folder cannot go on writing it; its own message says why."
        fault = faults[0] if faults else CheckpointError(said)
        fault.partial = outcome
        raise fault


@contextlib.contextmanager
def _kept(posterior_of: Callable[[Outcome], Posterior]) -> Iterator[None]:
    """If a run's folder cannot be written, turn what it had reached into a posterior in the error's ``partial``."""
    try:
        yield
    except CheckpointError as error:
        if error.partial is not None:
            error.partial = posterior_of(error.partial)
        raise


def _check_room(model: Model, method: Method, folder: pathlib.Path | None) -> None:
    """Check that memory, or the folder's disk, has room for the draws; those of a run being continued count as free."""
    needed, free = method.bytes_kept(model), psutil.virtual_memory().available
    room, where, instead = MEMORY_SHARE * free, "", "draws=FOLDER to stream them"
    if folder is not None:
        there = sum(path.stat().st_size for path in folder.glob("draws.zarr/*/*") if path.is_file())
        room = free = shutil.disk_usage(folder).free + there
        where, instead = f"the disk of {folder} has ", "a folder on another disk"
    if needed > room:
        asked = method.settings()
        raise SettingsError(
            f"{asked['chains']} chains of {asked['draws']} draws of {model.space.size} numbers need "
            f"{needed / 2**30:.1f} GiB; {where}{free / 2**30:.1f} GiB {'are ' * (not where)}free. Use thin=, fewer "
            f"draws, draws='moments', or {instead}."
        )
