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
    """A command of ``app``: our errors and warnings become lines on stderr, without a traceback."""

    @functools.wraps(function)
    def spoken(*args: Any, **kwargs: Any) -> None:
        from tractable.tools.errors import TractableError

        try:
            _check_paths(**kwargs)
            _run(functools.partial(function, *args, **kwargs))
        except TractableError as error:
            say(typed(str(error)), "red")
            raise typer.Exit(FAULT) from None
        except BrokenPipeError:  # whoever read what is printed has gone
            raise
        except OSError as error:
            say(f"{error}. Mend that, or choose another folder or file.", "red")
            raise typer.Exit(FAULT) from None

    return app.command()(spoken)


def _run(function: Callable) -> None:
    """What a command does, with JAX, its programs of earlier commands, and signals that end it in good order."""
    from tractable.tools.cache import cache_for_commands
    from tractable.tools.stopping import ending

    cache_for_commands()
    with notes(), ending():
        function()


def _check_paths(table: Path | None = None, run: Path | None = None, **_: object) -> None:
    """What is named must be there; asked here, before what takes seconds to import is imported."""
    from tractable.cli.folders import NO_RUN, holds_a_run
    from tractable.tools.errors import CheckpointError, DataError

    if table is not None and not table.exists():
        raise DataError(f"{table} does not exist. Expected a .csv or .parquet file.")
    if run is not None and not holds_a_run(run):
        raise CheckpointError(NO_RUN.format(run))


@command
def examples(failures: o.Failures = False, out: o.FailuresOut = None) -> None:
    """List the built-in examples, or with --failures twelve targets on which methods fail, and what they answer."""
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
    table: o.FitTable = None,
    example: o.Example = None,
    target: o.Target = None,
    method: o.MethodName = None,
    set_: o.Assignments = None,
    config: o.Config = None,
    seed: o.Seed = None,
    out: o.Out = None,
    held_out: o.HeldOut = 0.2,
    formula: o.Formula = None,
    family: o.FitFamily = None,
    exclude: o.Exclude = None,
    weights: o.Weights = None,
    exposure: o.Exposure = None,
    censored: o.Censored = None,
    event: o.Event = None,
    until: o.Until = None,
    sep: o.Sep = None,
    decimal: o.Decimal = None,
    model: o.FitKind = "glm",
    hidden: o.FitHidden = None,
    prior: o.Prior = None,
    components: o.Components = None,
    states: o.States = None,
    by: o.By = None,
    time: o.Time = None,
    covariance: o.Covariance = None,
    choose: o.Choose = None,
    latent: o.Latent = None,
    array: o.ArrayName = None,
    redraw: o.Redraw = False,
    missing: o.Missing = None,
    drop_missing: o.Drop = False,
    shifted: o.Shifted = None,
    verify: o.Verify = None,
    resume: o.Resume = False,
    jobs: o.Jobs = 1,
    quiet: o.Quiet = False,
) -> None:
    """Fit a model to an example or to data of your own, and say how far the result can be trusted.

    A table gets a generalised linear model, or a network: Normal for a number, Bernoulli for two classes, Categorical
    for more. With --formula its effects, their interactions and those of groups are what you write. With --model
    gaussian-mixture nothing is explained: mixtures of normals of all its numbers are fitted, one for each number of
    components, and one of them is chosen. With --model hidden-markov rows are steps of sequences, and states are found
    that follow one another. With --model vae or belief-network causes are learnt that are behind whole
    rows, of a table's numbers or of an array of images.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for a fault, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps what it has.
    """
    given = locals() | {"missing": o.missing_of(missing, drop_missing)}  # every option by its name
    from tractable.cli.fit import fit as run
    from tractable.cli.how import How

    run(model, given, How(method, config, tuple(set_ or ()), seed, out, resume, quiet, jobs))


@command
def compare(
    table: o.Table = None,
    example: o.Example = None,
    target: o.Target = None,
    methods: o.MethodNames = None,
    set_: o.EveryAssignment = None,
    jobs: o.Jobs = 1,
    seed: o.Seed = None,
    out: o.CompareOut = None,
    held_out: o.HeldOut = 0.2,
    formula: o.Formula = None,
    family: o.Family = None,
    exclude: o.Exclude = None,
    weights: o.Weights = None,
    exposure: o.Exposure = None,
    censored: o.Censored = None,
    event: o.Event = None,
    until: o.Until = None,
    sep: o.Sep = None,
    decimal: o.Decimal = None,
    model: o.Kind = "glm",
    hidden: o.Hidden = None,
    prior: o.Prior = None,
    missing: o.Missing = None,
    drop_missing: o.Drop = False,
    quiet: o.Quiet = False,
) -> None:
    """Put methods side by side on one model, against its exact posterior or, where there is none, a run of NUTS.

    Networks are held against no reference: their weights can be exchanged, so that no moment of one means anything.

    Exit code: 0, 2 for a fault or where every method failed, 130 or 143 where stopped.
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
    table: o.Table = None,
    example: o.Example = None,
    target: o.Target = None,
    method: o.MethodName = None,
    set_: o.Assignments = None,
    runs: o.Runs = 200,
    jobs: o.Jobs = 1,
    seed: o.Seed = None,
    out: o.CalibrateOut = None,
    formula: o.Formula = None,
    family: o.Family = None,
    exclude: o.Exclude = None,
    weights: o.Weights = None,
    exposure: o.Exposure = None,
    censored: o.Censored = None,
    event: o.Event = None,
    until: o.Until = None,
    sep: o.Sep = None,
    decimal: o.Decimal = None,
    model: o.Kind = "glm",
    hidden: o.Hidden = None,
    prior: o.Prior = None,
    missing: o.Missing = None,
    drop_missing: o.Drop = False,
    quiet: o.Quiet = False,
) -> None:
    """Ask whether a method recovers what a model has drawn, on simulated data like these.

    Parameters are drawn from the prior and rows from the likelihood, at the inputs of TABLE. Where the method is right,
    the rank of the truth among the draws of the posterior is uniform.

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
def report(run: o.Folder) -> None:
    """Print a run's verdict, and where its page is."""
    from tractable.cli.fit import report as shown

    shown(run)


@command
def predict(
    run: o.Folder,
    new: o.NewRows,
    out: o.PredictOut = Path("predictions.parquet"),
    level: o.Level = 0.9,
    calibrate: o.Calibrate = None,
    array: o.NewArray = None,
) -> None:
    """Predict the target for new rows, by a run that was fitted to a table.

    For a number: mean, sd, its aleatoric part (noise) and its epistemic part (what more data would teach), and an
    interval. For classes: the likeliest, the probability of each, and the epistemic sd of the likeliest's. By a
    mixture: the likeliest component, the probability of each, and the log density of the row. By a hidden-markov: the
    state of the likeliest path, the probability of each, and what it shows, also of rows that are missing. By a vae or
    belief-network: mean and sd of each hidden unit given the row, and two lower bounds of the row's log density, elbo
    and log_evidence.
    """
    from tractable.cli.fit import predict as predicted
    from tractable.cli.task import Request

    predicted(run, new, out, Request(level, calibrate, array))
