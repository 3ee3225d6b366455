"""The commands. Each imports what it needs when it runs."""

import functools
from collections.abc import Callable
from inspect import Parameter, Signature
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


def command(options: dict[str, o.Taken]) -> Callable:
    """Makes a function a command of ``app`` with these options, which it receives by name.

    The library's errors and warnings become lines on stderr.
    """

    def made(function: Callable) -> Callable:
        @functools.wraps(function)
        def spoken(**given: Any) -> None:
            from tractable.tools.errors import TractableError

            try:
                _check_paths(**given)
                if "missing" in given:
                    given["missing"] = o.missing_of(given["missing"], given["drop_missing"])
                _run(functools.partial(function, **given))
            except TractableError as error:
                say(typed(str(error)), "red")
                raise typer.Exit(FAULT) from None
            except BrokenPipeError:  # the reader of our output has closed it
                raise
            except OSError as error:
                say(f"{error}. Mend that, or choose another folder or file.", "red")
                raise typer.Exit(FAULT) from None

        each = [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=taken.kind, default=taken.default)
            for name, taken in options.items()
        ]
        described: Any = spoken
        described.__signature__ = Signature(each)
        described.__annotations__ = {one.name: one.annotation for one in each}
        return app.command()(spoken)

    return made


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


@command(o.EXAMPLES)
def examples(failures: bool, out: Path | None) -> None:
    """List the built-in examples; with --failures, run twelve targets on which methods fail, and show their answers."""
    from tractable.cli.terminal import console, line
    from tractable.models.gallery import EXAMPLES
    from tractable.pages.exhibit import Exhibit, Table
    from tractable.pages.terminal import to_terminal

    if failures:
        from tractable.cli.folders import fresh, may_write
        from tractable.pages.failures import write_failures

        if out is not None:
            may_write(out, "examples")
        page, verdicts = write_failures(fresh("failures") if out is None else out, say)
        console().print(to_terminal(verdicts))
        return line(f"Report: {page}")
    heads = ["name", "data and model", "what to look at"]
    rows = [[each.name, each.title, each.notes] for each in EXAMPLES.values()]
    console().print(to_terminal(Exhibit("", [Table(heads, rows, heads)])))


@command(o.FIT)
def fit(**given: Any) -> None:
    """Fit a model to an example or to data of your own, and say how far the result can be trusted.

    A table's target is explained by a generalised linear model, or a network; its family is guessed from its values
    and told, unless --family says it. With --formula you write the effects, interactions and group effects
    yourself. Other models have no target: gaussian-mixture fits mixtures of normals to all of a table's numbers, one
    for each number of components, and chooses one; hidden-markov takes rows as steps of sequences and finds the states
    behind them; vae and belief-network find latent causes of whole rows, of a table's numbers or an array of images.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for an error, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps its results so far.
    """
    from tractable.cli.joining import join, mesh_of, place_of

    devices, place = mesh_of(given["mesh"]), place_of(*map(given.get, ("mesh", "coordinator", "processes", "process")))
    leads = devices is None or join(place)  # before anything is computed
    from tractable.cli.fit import fit as run
    from tractable.cli.how import How

    own = {name: given[name] for name in ("method", "config", "seed", "out", "resume", "quiet", "jobs")}
    run(given["model"], given, How(**own, assignments=tuple(given["set_"] or ()), mesh=devices, leads=leads))


@command(o.COMPARE)
def compare(**given: Any) -> None:
    """Compare methods on one model, against its exact posterior or a run of NUTS, if that takes a minute at most.

    Networks have no reference: their units are exchangeable, so moments of single weights mean nothing.

    Exit code: 0; 2 for an error, or if every method failed; 130 or 143 if stopped.
    """
    from tractable.cli import comparing, kinds
    from tractable.cli.folders import may_write

    out = given["out"]
    if out is not None:
        may_write(out, "compare")
    kind = kinds.compared(given)
    own = given["methods"], given["set_"] or [], given["seed"] or 0, out, given["quiet"], given["jobs"]
    comparing.compare(kind.read(kind, given), *own)


@command(o.CALIBRATE)
def calibrate(**given: Any) -> None:
    """Check whether a method recovers the parameters that generated simulated data like these.

    Parameters are drawn from the prior and rows from the likelihood, at the inputs of TABLE. If the method is right,
    the rank of the true value among the posterior's draws is uniform.

    Exit code: as for fit.
    """
    from tractable.cli import calibrating, kinds
    from tractable.cli.settings import assignment, method_of

    given["held_out"], fields = 0.0, given["set_"] or []
    kind = kinds.compared(given)
    task = kind.read(kind, given)
    chosen, _ = method_of(given["method"], None, fields, kind.usual(task) or kind.method)
    chosen = kind.adapted_method(task, chosen, "batch_size" in {assignment(text)[0] for text in fields})
    own = given["runs"], given["jobs"], given["seed"] or 0, given["out"], given["quiet"]
    calibrating.calibrate(task, chosen, *own)


@command(o.PACK)
def pack(**given: Any) -> None:
    """Write a table or an array too large for memory in random order, in shards that fit and tr.Data read.

    Methods that read a file batch by batch need its rows in random order. With --target the table is encoded too, as
    fit would, and tractable fit FOLDER goes on from there. A pack that was killed goes on when the command is given
    again, and writes the same bytes.
    """
    from tractable.cli.packing import pack as packed

    packed(given)


@command(o.RUN)
def report(run: Path) -> None:
    """Print a run's verdict, and where its page is."""
    from tractable.cli.fit import report as shown

    shown(run)


@command(o.PREDICT)
def predict(run: Path, new: Path, out: Path, level: float, calibrate: Path | None, array: str | None) -> None:
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
