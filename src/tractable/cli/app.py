"""The commands. Each imports what it needs when it runs."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tractable.cli import options as o
from tractable.cli.speech import FAULT, notes, say, typed

app = typer.Typer(
    name="tractable",
    help="Approximate Bayesian inference, with posteriors that say how far they can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def command(function: Callable) -> Callable:
    """Makes a function a command of ``app``; the library's errors and warnings become lines on stderr."""

    @functools.wraps(function)
    def spoken(*args: Any, **kwargs: Any) -> None:
        from tractable.tools.errors import TractableError

        try:
            _check_paths(**kwargs)
            _run(functools.partial(function, *args, **kwargs))
        except TractableError as error:
            say(typed(str(error)), "red")
            raise typer.Exit(FAULT) from None
        except BrokenPipeError:  # the reader of our output has closed it
            raise
        except OSError as error:
            say(f"{error}. Mend that, or choose another folder or file.", "red")
            raise typer.Exit(FAULT) from None

    return app.command()(spoken)


def _run(function: Callable) -> None:
    """Runs a command with earlier commands' compiled programs at hand; signals stop it in good order."""
    from tractable.tools.cache import cache_for_commands
    from tractable.tools.stopping import ending

    cache_for_commands()
    with notes(), ending():
        function()


def _check_paths(table: Path | None = None, run: Path | None = None, **_: object) -> None:
    """Raises an error if the named file or folder is absent; checked first, as later imports take seconds."""
    from tractable.cli.folders import NO_RUN, holds_a_run
    from tractable.tools.errors import CheckpointError, DataError

    if table is not None and not table.exists():
        raise DataError(f"{table} does not exist. Expected a .csv or .parquet file.")
    if run is not None and not holds_a_run(run):
        raise CheckpointError(NO_RUN.format(run))


@command
def examples(failures: o.Failures = False, out: o.FailuresOut = None) -> None:
    """List the built-in examples; with --failures, run twelve targets on which methods fail, and show their answers."""
    from tractable.cli import show
    from tractable.models.gallery import EXAMPLES
    from tractable.pages.exhibit import Exhibit, Table
    from tractable.pages.terminal import to_terminal

    if failures:
        from tractable.cli.folders import fresh
        from tractable.pages.failures import write_failures

        page, verdicts = write_failures(fresh("failures") if out is None else out, say)
        show.console().print(to_terminal(verdicts))
        return show.console().print(f"Report: {page}", soft_wrap=True)
    heads = ["name", "data and model", "what to look at"]
    rows = [[each.name, each.title, each.notes] for each in EXAMPLES.values()]
    show.console().print(to_terminal(Exhibit("", [Table(heads, rows, heads)])))


@command
def fit(
    table: o.FitTable = None, example: o.Example = None, target: o.Target = None, method: o.MethodName = None,
    set_: o.Assignments = None, config: o.Config = None, seed: o.Seed = None, out: o.Out = None,
    held_out: o.HeldOut = 0.2, formula: o.Formula = None, family: o.FitFamily = None, exclude: o.Exclude = None,
    weights: o.Weights = None, exposure: o.Exposure = None, censored: o.Censored = None, event: o.Event = None,
    until: o.Until = None, sep: o.Sep = None, decimal: o.Decimal = None, model: o.FitKind = "glm",
    hidden: o.FitHidden = None, prior: o.Prior = None, components: o.Components = None, states: o.States = None,
    by: o.By = None, time: o.Time = None, covariance: o.Covariance = None, choose: o.Choose = None,
    latent: o.Latent = None, array: o.ArrayName = None, redraw: o.Redraw = False, missing: o.Missing = None,
    drop_missing: o.Drop = False, shifted: o.Shifted = None, verify: o.Verify = None, resume: o.Resume = False,
    jobs: o.Jobs = 1, mesh: o.Mesh = None, coordinator: o.Coordinator = None, processes: o.Processes = None,
    process: o.Process = None, quiet: o.Quiet = False,
) -> None:  # fmt: skip
    """Fit a model to an example or to data of your own, and say how far the result can be trusted.

    A table's target is explained by a generalised linear model, or a network: by default Normal for a number, Bernoulli
    for two classes, Categorical for more. With --formula you write the effects, interactions and group effects
    yourself. Other models have no target: gaussian-mixture fits mixtures of normals to all of a table's numbers, one
    for each number of components, and chooses one; hidden-markov takes rows as steps of sequences and finds the states
    behind them; vae and belief-network find latent causes of whole rows, of a table's numbers or an array of images.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for an error, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps its results so far.
    """
    given = locals() | {"missing": o.missing_of(missing, drop_missing)}  # every option by its name
    from tractable.cli.joining import join, mesh_of, place_of

    devices, place = mesh_of(mesh), place_of(mesh, coordinator, processes, process)
    leads = devices is None or join(place)  # before anything is computed
    from tractable.cli.fit import fit as run
    from tractable.cli.how import How

    run(model, given, How(method, config, tuple(set_ or ()), seed, out, resume, quiet, jobs, devices, leads))


@command
def compare(
    table: o.Table = None, example: o.Example = None, target: o.Target = None, methods: o.MethodNames = None,
    set_: o.EveryAssignment = None, jobs: o.Jobs = 1, seed: o.Seed = None, out: o.CompareOut = None,
    held_out: o.HeldOut = 0.2, formula: o.Formula = None, family: o.Family = None, exclude: o.Exclude = None,
    weights: o.Weights = None, exposure: o.Exposure = None, censored: o.Censored = None, event: o.Event = None,
    until: o.Until = None, sep: o.Sep = None, decimal: o.Decimal = None, model: o.Kind = "glm",
    hidden: o.Hidden = None, prior: o.Prior = None, missing: o.Missing = None, drop_missing: o.Drop = False,
    quiet: o.Quiet = False,
) -> None:  # fmt: skip
    """Compare methods on one model, against its exact posterior or, if that is unknown, a run of NUTS.

    Networks have no reference: their units are exchangeable, so moments of single weights mean nothing.

    Exit code: 0; 2 for an error, or if every method failed; 130 or 143 if stopped.
    """
    given = locals() | {"missing": o.missing_of(missing, drop_missing)}  # every option by its name
    from tractable.cli import comparing, kinds
    from tractable.tools.errors import CheckpointError

    if out is not None and (out / "draws.zarr").exists():
        raise CheckpointError(f"{out} holds the run of one method; choose another --out.")
    kind = kinds.named(model)
    if kind.side_by_side is None:
        raise kinds.unknown(model)
    kinds.check_options(kind, given)
    comparing.compare(kind.read(kind, given), methods, set_ or [], seed or 0, out, quiet, jobs)


@command
def calibrate(
    table: o.Table = None, example: o.Example = None, target: o.Target = None, method: o.MethodName = None,
    set_: o.Assignments = None, runs: o.Runs = 200, jobs: o.Jobs = 1, seed: o.Seed = None, out: o.CalibrateOut = None,
    formula: o.Formula = None, family: o.Family = None, exclude: o.Exclude = None, weights: o.Weights = None,
    exposure: o.Exposure = None, censored: o.Censored = None, event: o.Event = None, until: o.Until = None,
    sep: o.Sep = None, decimal: o.Decimal = None, model: o.Kind = "glm", hidden: o.Hidden = None,
    prior: o.Prior = None, missing: o.Missing = None, drop_missing: o.Drop = False, quiet: o.Quiet = False,
) -> None:  # fmt: skip
    """Check whether a method recovers the parameters that generated simulated data like these.

    Parameters are drawn from the prior and rows from the likelihood, at the inputs of TABLE. If the method is right,
    the rank of the true value among the posterior's draws is uniform.

    Exit code: as for fit.
    """
    given = locals() | {"missing": o.missing_of(missing, drop_missing), "held_out": 0.0}  # every option by its name
    from tractable.cli import calibrating, kinds
    from tractable.cli.settings import assignment, method_of

    kind = kinds.named(model)
    if kind.side_by_side is None:
        raise kinds.unknown(model)
    kinds.check_options(kind, given)
    task = kind.read(kind, given)
    chosen, _ = method_of(method, None, set_ or [], kind.usual(task) or kind.method)
    sized = "batch_size" in {assignment(text)[0] for text in set_ or []}
    chosen = kind.adapted_method(task, chosen, sized)
    calibrating.calibrate(task, chosen, runs, jobs, seed or 0, out, quiet)


@command
def pack(
    source: o.PackTable, out: o.PackOut, target: o.Target = None, columns: o.Columns = None, seed: o.Seed = None,
    rows_per_shard: o.PerShard = None, formula: o.Formula = None, family: o.Family = None, exclude: o.Exclude = None,
    weights: o.Weights = None, exposure: o.Exposure = None, censored: o.Censored = None, event: o.Event = None,
    until: o.Until = None, missing: o.Missing = None, drop_missing: o.Drop = False, quiet: o.Quiet = False,
) -> None:  # fmt: skip
    """Write a table or an array too large for memory in random order, in shards that fit and tr.Data read.

    Methods that read a file batch by batch need its rows in random order. With --target the table is encoded too, as
    fit would, and tractable fit FOLDER goes on from there. A pack that was killed goes on when the command is given
    again, and writes the same bytes.
    """
    given = locals() | {"missing": o.missing_of(missing, drop_missing)}  # every option by its name
    from tractable.cli.packing import pack as packed

    packed(given)


@command
def report(run: o.Folder) -> None:
    """Print a run's verdict, and where its page is."""
    from tractable.cli.fit import report as shown

    shown(run)


@command
def predict(
    run: o.Folder, new: o.NewRows, out: o.PredictOut = Path("predictions.parquet"), level: o.Level = 0.9,
    calibrate: o.Calibrate = None, array: o.NewArray = None,
) -> None:  # fmt: skip
    """Predict the target for new rows, by a run that was fitted to a table.

    For a number: mean, sd, its aleatoric part (noise) and its epistemic part (what more data would reduce), and an
    interval. For classes: the likeliest, the probability of each, and the epistemic sd of the likeliest's. For a
    mixture: the likeliest component, the probability of each, and the row's log density. For a hidden-markov: the state
    on the likeliest path, the probability of each state, and the expected numbers, also for missing rows. For a vae or
    belief-network: mean and sd of each hidden unit given the row, and two lower bounds of the row's log density, elbo
    and log_evidence.
    """
    from tractable.cli.fit import predict as predicted
    from tractable.cli.task import Request

    predicted(run, new, out, Request(level, calibrate, array))
