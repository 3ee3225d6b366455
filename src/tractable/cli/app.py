"""The commands. Each command imports the modules it needs when it runs, so that --help is fast."""

import functools
from collections.abc import Callable, Mapping
from importlib.metadata import version
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from tractable.cli import options as o
from tractable.cli.terminal import FAULT, Terminal, as_options, line, notes, say, show_result

Given = Mapping[str, Any]  # a command's options by name, and under "notes" the notes that it has printed so far
app = typer.Typer(
    name="tractable",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        line(f"tractable {version('tractable')}")
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool | None, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Approximate Bayesian inference, with posteriors that say how far they can be trusted."""


def command(parameters: list[Parameter]) -> Callable:
    """A decorator that turns a function of ``Given`` into a command of ``app`` with these parameters.

    The library's errors and warnings become lines on stderr.
    """

    def decorate(function: Callable[[Given], None]) -> Callable:
        @functools.wraps(function)
        def call(**given: Any) -> None:
            from tractable.core.errors import TractableError

            try:
                _check(function.__name__, given)
                _run(function, given)
            except TractableError as error:
                say(as_options(str(error)), "red")
                raise typer.Exit(FAULT) from None
            except BrokenPipeError:  # the program that reads the output, such as ``head``, has read enough
                raise typer.Exit from None
            except OSError as error:
                say(f"{error}. Correct this, or choose another folder or file.", "red")
                raise typer.Exit(FAULT) from None

        typed: Any = call
        typed.__signature__ = Signature(parameters)
        typed.__annotations__ = {one.name: one.annotation for one in parameters}
        return app.command()(call)

    return decorate


def _check(name: str, given: dict[str, Any]) -> None:
    """Raise an error for faults that can be found without a model, because the imports of models take seconds."""
    from tractable.cli.folders import NO_RUN, holds_a_run, may_write
    from tractable.core.errors import CheckpointError, DataError, SettingsError

    table, run, out = map(given.get, ("table", "run", "out"))
    if table is not None and not table.exists():
        raise DataError(f"{table} does not exist. Give the name of a .csv or .parquet file.")
    if run is not None and not holds_a_run(run):
        raise CheckpointError(NO_RUN.format(run))
    if out is not None and name in ("examples", "compare", "calibrate", "judge"):
        may_write(out, name)
    if given.pop("drop_missing", False):
        if given["missing"] not in (None, "drop"):
            raise SettingsError(f"--drop-missing and --missing {given['missing']} contradict each other; give one.")
        given["missing"] = "drop"


def _run(function: Callable[[Given], None], given: Given) -> None:
    """Run a command with the compiled programs of earlier commands; a signal stops it with its results so far."""
    from tractable.engine.cache import cache_for_commands
    from tractable.engine.identity import identified
    from tractable.engine.stopping import ending

    cache_for_commands()
    with notes() as texts, ending(), identified():
        function({**given, "notes": texts})


@command(o.parameters("failures out"))
def examples(given: Given) -> None:
    """List the built-in examples.

    With --failures, run twelve targets on which methods fail, and show the methods' answers.
    """
    from tractable.gallery.models import EXAMPLES
    from tractable.pages.sections import Section, Table
    from tractable.pages.terminal import to_terminal

    if given["failures"]:
        from tractable.cli.folders import fresh
        from tractable.pages.failures import write_failures

        out = given["out"] or fresh("failures")
        page, verdicts = write_failures(out, say)
        return show_result(False, out, [to_terminal(verdicts)], f"Report: {page}")
    heads = ["name", "data and model", "what to look at"]
    rows = [[each.name, each.title, each.notes] for each in EXAMPLES.values()]
    Terminal().print(to_terminal(Section("", [Table(heads, rows, heads)])))


@command(
    o.parameters(
        f"{o.EXPLAINED} method set_ config seed out held_out components states by time covariance choose latent array "
        "redraw shifted verify resume jobs mesh coordinator processes process quiet"
    )
)
def fit(given: Given) -> None:
    """Fit a model to an example or to your own data, and say how far the result can be trusted.

    A generalised linear model or a network explains the target of a table. Unless --family is given, the target's
    distribution is guessed from its values, and a note says so. With --formula you write the effects, interactions and
    group effects yourself. The other models have no target. gaussian-mixture fits mixtures of normals to all of a
    table's numbers, one for each number of components, and chooses one of them. hidden-markov takes rows as steps of
    sequences and finds hidden states that explain them. vae and belief-network find latent variables that explain whole
    rows, of a table's numbers or of an array of images.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for an error, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps its results so far.
    """
    from tractable.cli.joining import join_others

    mesh, leads = join_others(given)  # before anything is computed
    from tractable.cli.fit import fit as run

    run(given, mesh, leads)


@command(o.parameters(f"{o.EXPLAINED} methods set_ jobs seed out held_out quiet"))
def compare(given: Given) -> None:
    """Compare methods on one model, with its exact posterior or a run of NUTS as the reference.

    NUTS is the reference only if its run takes at most a minute. Networks have no reference: their units are
    exchangeable, so moments of single weights mean nothing.

    Exit code: 0; 2 for an error, or if every method failed; 130 or 143 if the command was stopped.
    """
    from tractable.cli.studies import compare as run

    run(given)


@command(o.parameters(f"{o.EXPLAINED} method set_ runs posterior jobs seed out quiet"))
def calibrate(given: Given) -> None:
    """Check whether a method recovers the parameters that generated simulated data like yours.

    Parameters are drawn from the prior and rows from the likelihood, at the inputs of TABLE. If the method is right,
    the rank of the true value among the posterior's draws is uniform. With --posterior they are drawn from the
    posterior of TABLE, and its rows are fitted with the simulated ones. To continue the runs in --out, give the same
    command again.

    Exit code: as for fit.
    """
    from tractable.cli.studies import calibrate as run

    run(given)


@command(o.parameters("draws program rows seed out verify quiet"))
def judge(given: Given) -> None:
    """Judge draws that another program made, such as Stan, PyMC or NumPyro: are they of this model's posterior?

    Exit code: as for fit.
    """
    from tractable.cli.judge import judge as run

    run(given)


@command(
    o.parameters(
        f"source out target columns seed rows_per_shard drop_missing quiet {o.FORMAT} {o.ENCODING}",
        out=(Path, Parameter.empty),
    )
)
def pack(given: Given) -> None:
    """Write a table or an array that is too large for memory as shards, with its rows in random order.

    Methods that read a file batch by batch need its rows in random order. tractable fit and tr.Data read the shards.
    With --target the table is also encoded, as fit would encode it; then use tractable fit FOLDER. If the command is
    killed, give it again: it continues, and writes the same bytes.
    """
    import pandas as pd

    from tractable.cli.reading import columns_in, names_in
    from tractable.core import shards
    from tractable.core.words import counted
    from tractable.tables import packing, sources

    source, out = given["source"], given["out"]
    table = sources.is_table(source)
    written = {name: given[name] for name in o.FORMAT.split() if given[name]}
    frame = next(sources.of_table(source, written).read(0, 1)) if table else pd.DataFrame()
    names = [str(name) for name in frame.columns]
    target, columns = (columns_in(given[name] or "", names) or None for name in ("target", "columns"))
    encoding = {name: given[name] for name in o.ENCODING.split() if given[name]}
    encoding |= {name: names_in(given[name], frame) for name in ("exclude", "pool") if given[name]}
    packing.pack(
        source, out, target=target, columns=columns, seed=given["seed"] or 0, rows_per_shard=given["rows_per_shard"],
        progress=False if given["quiet"] else None, **written, **encoding,
    )  # fmt: skip
    about = shards.manifest_of(out) or {}
    if given["quiet"]:
        return line(out)
    say(f"{counted(about['rows'], 'row')} in random order, {counted(len(about['shards']), 'shard')}, in {out}")


@command(o.parameters("run"))
def report(given: Given) -> None:
    """Print a run's verdict, and the path of its page."""
    from tractable.cli.fit import report as run

    run(given["run"])


@command(o.parameters("run new out level calibrate array", out=(Path, Path("predictions.parquet"))))
def predict(given: Given) -> None:
    """Predict the target for new rows, from a run that was fitted to a table.

    For a number: the mean, the sd with its aleatoric part (noise) and its epistemic part (which more data would
    reduce), and an interval. For classes: the most probable class, the probability of each class, and the epistemic sd
    of the most probable class's probability. For gaussian-mixture: the most probable component, the probability of each
    component, and the row's log density. For hidden-markov: the state on the most probable path, the probability of
    each state, and the expected numbers, also for missing rows. For vae and belief-network: the mean and sd of each
    latent unit given the row, and two lower bounds of the row's log density, elbo and log_evidence.
    """
    from tractable.cli.fit import predict as run

    run(given)
