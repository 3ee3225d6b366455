"""The function ``infer``, which runs a method on a model and data."""

import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from jax.sharding import Mesh

from tractable.core.bits import in_double, need_double
from tractable.core.clock import Stopwatch
from tractable.core.errors import CheckpointError, DataError, SettingsError
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.priors import exceeds_single
from tractable.core.settings import check_seed, expect
from tractable.core.words import nearest, spelt, tell
from tractable.diagnostics.verify import Verify
from tractable.engine import preflight
from tractable.engine.abilities import needs, placement_of
from tractable.engine.identity import identified
from tractable.engine.method import ALIASES, Outcome
from tractable.engine.session import open_session
from tractable.engine.stopping import ending
from tractable.methods import METHODS, Method
from tractable.posterior.posterior import Posterior
from tractable.posterior.run_identity import check_resumable, identity
from tractable.posterior.saving import RunFolder, check_room, open_folder
from tractable.posterior.verification import verify_and_improve


@spelt
@ending()
@identified()
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

    The run and its posterior compute in double precision (``posterior.found["double"]`` is then True) if single
    precision would round the rows' log density by more than 0.05 nats, as for counts of a million, or cannot represent
    the squares of the rows' numbers, or if it has no numbers small enough for the prior, as for Dirichlet(0.05) or
    Gamma(0.01). JAX's own setting stays as it is.

    Args:
        model: priors and likelihood, or a log density.
        data: Data or arrays; None for a model that is just a log density.
        method: how to learn, for example ``NUTS()``.
        seed: the seed of all randomness: equal seeds give equal results on equal machines.
        progress: True, False, or a function ``(phase, done, of, values) -> None``, where ``values`` are the newest
            values of an optimisation's curve by name ({"objective": …, "held-out score": …}). A function of three
            arguments is called without them. By default there is a bar on a terminal.
        draws: where the kept draws are stored: None for memory, "moments" to keep only their running mean and sd, or a
            folder to which they are streamed (zarr).
        checkpoint: a folder, in which the run is saved while it runs, whatever the method. A run that was killed
            continues from there, bit for bit as if uninterrupted. If the data, model, settings or order of sums
            (``mesh``) differ from those of the saved run, this is an error.
        mesh: the devices that share the work: a number of devices, "auto" for all devices (of all processes that
            ``jax.distributed`` connects), or a ``jax.sharding.Mesh`` with axes "chain" and "row". If it is a number,
            methods that draw divide their chains among the devices, and other methods divide the rows;
            docs/many-machines.md says which method takes which axis. Results are the same to the last bit on 2, 4 and 8
            devices, however many processes these belong to. On one device, without ``mesh``, and for EM by gradient,
            they may differ by rounding.
        reproducible: with False, sums over rows are computed in an order that XLA chooses.
        verify: how thoroughly the result is checked against its density: "auto", "thorough" or None
            (``Posterior.verify``). If the check finds a higher maximum or a mode of more mass, the method starts again
            from there.
        held_out: rows that the fit does not use; every method's report says how well they are predicted. Stochastic
            optimisations (``BayesByBackprop`` and other variational methods, MAP by "adam", ``AutoEncoding`` and all
            methods that learn an inference network) stop once these rows are predicted no better, and return the best
            state.

    Returns:
        A Posterior; ``posterior.report()`` says how far to trust it. Ctrl-C stops the run once the steps under way are
        done, or after a second if they take longer; the posterior so far is returned, and its ``interrupted`` is True.
        A second Ctrl-C raises KeyboardInterrupt. SIGTERM ends the process with exit code 143, after the run's state was
        saved.

    Raises:
        ModelError, DataError, SettingsError: arguments that do not fit; raised before anything runs.
        RunError: a run that cannot go on; its ``partial`` is the posterior so far.
        CheckpointError: a checkpoint that is damaged or belongs to another run; a folder that another run is writing,
            or that can no longer be written (the error's ``partial`` is then the posterior so far).
    """
    watch = Stopwatch()
    expect("infer(verify)", verify, Verify)
    problem = check(model, data, method, seed, held_out)
    with in_double(problem.double), _open_folder(problem, draws, checkpoint, mesh, reproducible) as folder:
        posterior = learn(problem, folder, progress, moments=draws == "moments")
        posterior = verify_and_improve(posterior, verify, problem.held_out, progress, folder.saver)
        posterior.seconds = watch.phases(posterior.seconds)
        folder.write(posterior, streamed=method.chained)
    if posterior.interrupted:
        kept_draws = f"{posterior.count} of {method.settings().get('draws')} draws a chain were kept"
        tell(f"The run was interrupted: {kept_draws if method.chained else 'the result is its last state'}.")
    posterior.seconds = watch.phases(posterior.seconds)  # the time of writing the folder too
    return posterior


class Problem(NamedTuple):
    """A model, data and a method that were checked to fit each other.

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
        """The posterior that belongs to an outcome of the method."""
        return Posterior(self.model, self.data, self.method, self.seed, *outcome)


def check(model: Model, data: Data | PyTree, method: Method, seed: int, held_out: Data | PyTree) -> Problem:
    """The arguments of ``infer`` as a Problem; an error, before anything runs, if they do not fit each other."""
    if not isinstance(method, Method):
        raise SettingsError(f"infer expects a method such as NUTS(); got {method!r}.{_suggestion(method)}")
    if not isinstance(model, Model):
        raise SettingsError(f"infer expects a Model; got {type(model).__name__}.")
    seed = check_seed("infer(seed)", seed)
    data, held_out = (None if rows is None else as_data(rows) for rows in (data, held_out))
    double = data is not None and data.resident and need_double(data.rows[0], data.rows[1], data.weights)
    double = double or exceeds_single(model.prior)
    with in_double(double):
        model = model.double_copy if double else model
        preflight.check(model, data)
        _check_held_out(model, data, held_out)
        method.needed(model)
        method.plan(data)
    return Problem(model, data, method, seed, held_out, double)


def learn(problem: Problem, folder: RunFolder, progress: bool | Callable | None, moments: bool) -> Posterior:
    """Run the method and return the posterior that it learns.

    If the folder cannot be written, the error's ``partial`` is the posterior so far.
    """
    (model, data, method, seed, held_out, double), watch = problem, Stopwatch()
    try:
        with open_session(model, data, seed, progress, folder.placement, folder.saver, moments) as session:
            outcome = method.learn(session._replace(held_out=held_out))
        outcome = outcome._replace(seconds=watch.phases(outcome.seconds))
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
    """Open the folder that the run is saved to, if any, with the run's placement on devices."""
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


def _suggestion(method: object) -> str:
    """The end of an error about a method that was given by its name or as a class: it suggests an instance."""
    name = str(getattr(method, "__name__", method))
    names = {label: kind.__name__ for label, kind in METHODS.items()}
    names |= {alias: names[label] for alias, label in ALIASES.items()} | {one.lower(): one for one in names.values()}
    class_name = names.get(name.lower())
    return nearest(name, names.values()) if class_name is None else f" Give {class_name}()."


def _check_held_out(model: Model, data: Data | None, held_out: Data | None) -> None:
    if held_out is None:
        return
    if data is None:
        raise DataError("infer(held_out=...) takes rows like those of the data, and there are no data: leave it out.")
    if held_out.fingerprint == data.fingerprint:
        raise DataError("infer(held_out=...) needs rows kept out of the fit; got those that are fitted.")
    preflight.check(model, held_out)
