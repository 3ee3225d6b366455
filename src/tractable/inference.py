"""``infer`` runs a method on a model and data."""

import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from jax.sharding import Mesh

from tractable.core.bits import in_double, need_double
from tractable.core.errors import CheckpointError, DataError, SettingsError
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.settings import expect, seeded
from tractable.core.words import nearest, spelt, tell
from tractable.diagnostics.verify import Verify
from tractable.engine import preflight
from tractable.engine.abilities import needs, placement_of
from tractable.engine.method import ALIASES, METHODS, Method, Outcome
from tractable.engine.session import open_session
from tractable.engine.stopping import ending
from tractable.posterior.posterior import Posterior
from tractable.posterior.run_identity import check_resumable, identity
from tractable.posterior.saving import RunFolder, check_room, open_folder
from tractable.posterior.verification import verify_and_improve


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
        progress: True, False, or ``(phase, done, of, values) -> None``, with the newest values of the climb's curve by
            name ({"objective": …, "held-out score": …}; a function of three arguments is called without); by default a
            bar on a terminal.
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
    expect("infer(verify)", verify, Verify)
    problem = check(model, data, method, seed, held_out)
    with in_double(problem.double), _open_folder(problem, draws, checkpoint, mesh, reproducible) as folder:
        posterior = learn(problem, folder, progress, moments=draws == "moments")
        posterior = verify_and_improve(posterior, verify, problem.held_out, progress, folder.saver)
        folder.write(posterior, streamed=method.chained)
    if posterior.interrupted:
        asked = f"{posterior.count} of {method.settings().get('draws')} draws a chain were kept"
        tell(f"The run was interrupted: {asked if method.chained else 'the result is its last state'}.")
    return posterior


class Problem(NamedTuple):
    """A model, rows and a method that fit each other.

    Attributes:
        double: whether the run computes in double precision.
    """

    model: Model
    data: Data | None
    method: Method
    seed: int
    held_out: Data | None
    double: bool

    def posterior(self, outcome: Outcome) -> Posterior:
        """The posterior of an outcome of the method."""
        return Posterior(self.model, self.data, self.method, self.seed, *outcome)


def check(model: Model, data: Data | PyTree, method: Method, seed: int, held_out: Data | PyTree) -> Problem:
    """The problem; raises an error in a sentence, before anything runs, where its parts do not fit each other."""
    if not isinstance(method, Method):
        raise SettingsError(f"infer expects a method such as NUTS(); got {method!r}.{_meant(method)}")
    if not isinstance(model, Model):
        raise SettingsError(f"infer expects a Model; got {type(model).__name__}.")
    seed = seeded("infer(seed)", seed)
    data, held_out = (None if rows is None else as_data(rows) for rows in (data, held_out))
    double = data is not None and data.resident and need_double(data.rows[0], data.rows[1], data.weights)
    with in_double(double):
        model = model.double_copy if double else model
        preflight.check(model, data)
        _check_held_out(model, data, held_out)
        method.needed(model)
        method.plan(data)
    return Problem(model, data, method, seed, held_out, double)


def learn(problem: Problem, folder: RunFolder, progress: bool | Callable | None, moments: bool) -> Posterior:
    """The posterior that the method learns.

    If the folder cannot be written, the error's ``partial`` is the posterior that was reached.
    """
    model, data, method, seed, held_out, double = problem
    try:
        with open_session(model, data, seed, progress, folder.placement, folder.saver, moments) as session:
            outcome = method.learn(session._replace(held_out=held_out))
    except CheckpointError as error:
        if error.partial is not None:
            error.partial = problem.posterior(error.partial)
        raise
    if double:
        outcome = outcome._replace(found=outcome.found | {"double": True})
    posterior = problem.posterior(outcome)
    folder.check(posterior)
    return posterior


def _open_folder(
    problem: Problem,
    draws: str | pathlib.Path | None,
    checkpoint: str | pathlib.Path | None,
    mesh: int | str | Mesh | None,
    reproducible: bool,
) -> AbstractContextManager[RunFolder]:
    """The folder that the run is saved to, and its placement on devices."""
    model, data, method, seed, held_out, _ = problem
    if checkpoint is not None:
        check_resumable(model, data, method)
    path = checkpoint
    if draws == "moments":
        needs("draws='moments'", method)
    elif draws is not None:
        needs("draws=FOLDER", method)
        path = draws if checkpoint is None else checkpoint
    if path is None and draws != "moments":
        check_room(model, method, None)
    placement = placement_of(method, data, mesh, reproducible)
    if path is None:
        return open_folder(None, {}, placement, model, method, resumable=False)
    run = identity(model, data, method, seed, held_out) | {"mesh": placement.bits}
    return open_folder(pathlib.Path(path), run, placement, model, method, resumable=checkpoint is not None)


def _meant(method: object) -> str:
    """A suggestion for a method given by its name or class."""
    name = str(getattr(method, "__name__", method))
    names = {label: kind.__name__ for label, kind in METHODS.items()}
    names |= {alias: names[label] for alias, label in ALIASES.items()} | {one.lower(): one for one in names.values()}
    found = names.get(name.lower())
    return nearest(name, names.values()) if found is None else f" Give {found}()."


def _check_held_out(model: Model, data: Data | None, held_out: Data | None) -> None:
    if held_out is None:
        return
    if data is None:
        raise DataError("infer(held_out=...) are rows like those learnt from, and there are no data.")
    if held_out.fingerprint == data.fingerprint:
        raise DataError("infer(held_out=...) needs rows kept out of the fit; got those that are fitted.")
    preflight.check(model, held_out)
