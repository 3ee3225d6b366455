"""The commands. Each imports what it needs when it runs."""

import contextlib
import functools
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tractable.cli.problem import Problem
    from tractable.methods import Method
    from tractable.posterior import Posterior

FAULT, REJECTED = 2, 3  # exit codes

app = typer.Typer(
    name="tractable",
    help="Approximate Bayesian inference, with posteriors that say how far they can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Table = Annotated[Path | None, typer.Argument(help="A .csv or .parquet file; or give --example.", show_default=False)]
Example = Annotated[str | None, typer.Option(help="A built-in example; 'tractable examples' lists them.")]
Target = Annotated[str | None, typer.Option(help="The column of TABLE to explain; the others are inputs.")]
Family = Annotated[str | None, typer.Option(help="normal, bernoulli or categorical; by default the target's type.")]
HeldOut = Annotated[float, typer.Option(help="Share of TABLE's rows kept back to score predictions; 0 for none.")]
Drop = Annotated[bool, typer.Option("--drop-missing", help="Leave out rows of TABLE with missing values.")]
Seed = Annotated[int | None, typer.Option(help="Of all randomness.  [default: 0]", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run's folder and nothing else.")]
Folder = Annotated[Path, typer.Argument(help="A folder made by fit or compare.", metavar="RUN")]


def command(function: Callable) -> Callable:
    """A command of ``app``: our errors and warnings become lines on stderr, without a traceback."""

    @functools.wraps(function)
    def spoken(*args: Any, **kwargs: Any) -> None:
        from tractable.tools.errors import TractableError

        try:
            with notes():
                function(*args, **kwargs)
        except TractableError as error:
            say(str(error), "red")
            raise typer.Exit(FAULT) from None

    return app.command()(spoken)


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Within, the library's warnings are notes on stderr, each once; others are not for users of a command."""
    from tractable.tools.errors import TractableWarning

    said = set()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(f"Note: {message}", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TractableWarning)
        warnings.showwarning = note
        yield


def say(text: str, style: str = "") -> None:
    """A line on stderr."""
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(text, style=style, markup=False)


@command
def examples() -> None:
    """List the built-in examples."""
    from tractable.cli import show
    from tractable.gallery import EXAMPLES

    out = show.table("", "name", "data and model", "what to look at")
    for each in EXAMPLES.values():
        out.add_row(each.name, each.title, each.notes)
    show.console().print(out)


@command
def fit(
    table: Table = None,
    example: Example = None,
    target: Target = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="mle, map, rejection, metropolis, mala, hmc, nuts, sgld or sghmc.  [default: nuts]", show_default=False
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; may be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Fields in TOML, such as a run's settings.toml.")] = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.  [default: runs/NAME-METHOD]", show_default=False)
    ] = None,
    held_out: HeldOut = 0.2,
    family: Family = None,
    drop_missing: Drop = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly as if it had not stopped.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to an example or to a table of your own, and say how far the result can be trusted.

    A table gets a generalised linear model: Normal for a number, Bernoulli for two classes, Categorical for more.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for a fault, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps what it has.
    """
    from tractable.cli.problem import problem_of, read_run, write_run
    from tractable.cli.settings import made, method_of
    from tractable.tools.errors import CheckpointError, SettingsError

    saved: dict[str, Any] = {}
    if resume:
        if out is None:
            raise SettingsError("--resume expects --out, the folder of the run to go on with.")
        saved = read_run(out)
        if "method" not in saved:
            raise CheckpointError(f"{out} is a comparison, which cannot be gone on with; compare again.")
    elif out is not None and any((out / name).exists() for name in ("run.json", "posterior.json", "draws.zarr")):
        raise CheckpointError(f"{out} already holds a run. Go on with it by --resume, or choose another --out.")
    if saved and table is None and example is None:
        problem = problem_of(saved["problem"])
    else:
        problem = problem_from(table, example, target, held_out, drop_missing, family)
    if saved and method is None and config is None and not set_:
        chosen, kept_seed = (
            made({k: v for k, v in saved["method"].items() if v is not None} | nones(saved)),
            saved["seed"],
        )
    else:
        chosen, kept_seed = method_of(method or saved.get("method", {}).get("method"), config, set_ or [])
    number = int(next(s for s in (seed, kept_seed, saved.get("seed"), 0) if s is not None))

    folder = out if out is not None else fresh(f"{problem.name}-{chosen.label}")
    if not saved:
        write_run(folder, {"problem": problem.spec, "method": chosen.settings(), "seed": number})
    if not quiet:
        say(f"{chosen.label} on {problem.label}, into {folder}")
    try:
        posterior = learn(problem, chosen, number, folder, quiet)
    except BaseException:
        if not saved and {path.name for path in folder.iterdir()} <= {"run.json"}:
            shutil.rmtree(folder)  # nothing was learnt
        raise
    conclude(posterior, problem, folder, quiet)


def learn(problem: "Problem", method: "Method", seed: int, folder: Path, quiet: bool) -> "Posterior":
    """The posterior, which is then in the folder too."""
    from tractable.infer import infer
    from tractable.saving import load

    points = method.label in ("map", "mle")
    if points and (folder / "posterior.json").exists():
        return load(folder, problem.model, problem.data)
    progress = False if quiet else None
    posterior = infer(
        problem.model, problem.data, method, seed=seed, progress=progress, checkpoint=None if points else folder
    )
    if points:
        shutil.rmtree(folder / "draws.zarr", ignore_errors=True)  # of a run killed while it was saved
        posterior.save(folder)
    return posterior


def conclude(posterior: "Posterior", problem: "Problem", folder: Path, quiet: bool) -> None:
    """Page, tables and exit code of a fit."""
    from tractable.cli import show
    from tractable.cli.problem import scores
    from tractable.page import named, write_page
    from tractable.run import interruptible

    title = f"{problem.name} by {type(posterior.method).__name__}"
    write_page(folder, posterior, title=title, held_out=problem.held_out, encoder=problem.encoder)
    report = posterior.report()
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        summary = posterior.summary()
        console.print(show.parameters(summary.set_axis(named(posterior.names, problem.encoder), axis=0)))
        if problem.held_out is not None:
            console.print(show.held_out(scores(posterior, problem)))
        console.print(show.verdict(report.verdict, [c._asdict() for c in report.checks]))
        console.print(f"{show.seconds(posterior.seconds)}. Report: {folder / 'report.html'}", soft_wrap=True)
    if posterior.interrupted:
        raise typer.Exit(128 + int(getattr(interruptible, "signal", 2)))
    if report.verdict == "reject":
        raise typer.Exit(REJECTED)


@command
def compare(
    table: Table = None,
    example: Example = None,
    target: Target = None,
    methods: Annotated[str, typer.Option(help="Names with commas between them.")] = "map,mala,nuts,sgld",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]FIELD=VALUE", help="A field of one method, or of all which have it."),
    ] = None,
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder.  [default: runs/NAME-compare]", show_default=False)
    ] = None,
    held_out: HeldOut = 0.2,
    family: Family = None,
    drop_missing: Drop = False,
    quiet: Quiet = False,
) -> None:
    """Put methods side by side on one model, against its exact posterior or, where there is none, a run of NUTS.

    Exit code: 0, 2 for a fault or where every method failed, 130 or 143 where stopped.
    """
    from tractable.cli import show
    from tractable.cli.problem import write_run
    from tractable.cli.settings import methods_of
    from tractable.compare import compare as side_by_side
    from tractable.compare import shown
    from tractable.page import write_comparison_page
    from tractable.run import interruptible
    from tractable.tools.errors import CheckpointError
    from tractable.tools.progress import progress_of

    if out is not None and (out / "draws.zarr").exists():
        raise CheckpointError(f"{out} holds the run of one method; choose another --out.")
    problem = problem_from(table, example, target, held_out, drop_missing, family)
    chosen = methods_of(methods, set_ or [])
    folder = out if out is not None else fresh(f"{problem.name}-compare")
    if not quiet:
        say(f"{', '.join(m.label for m in chosen)} on {problem.label}, into {folder}")
    with progress_of(False if quiet else None) as bar:
        found = side_by_side(
            problem.model, problem.data, chosen, seed=seed or 0, held_out=problem.held_out,
            reference=exact(problem), progress=bar.say,
        )  # fmt: skip
    settings = [method.settings() for method in chosen]
    write_run(folder, {"problem": problem.spec, "methods": settings, "seed": seed or 0, "failures": found.failures})
    found.table.to_csv(folder / "comparison.csv")
    if found.posteriors:
        write_comparison_page(folder, found, title=f"{problem.name}: methods side by side")
        found.plot(folder / "marginals.png")
    if quiet:
        typer.echo(folder)
    else:
        show.console().print(show.comparison(shown(found.table)))
    for label, sentence in found.failures.items():
        say(f"{label} failed: {sentence}", "red")
    if not quiet and found.posteriors:
        show.console().print(f"Report: {folder / 'report.html'}", soft_wrap=True)
    if found.interrupted:
        raise typer.Exit(128 + int(getattr(interruptible, "signal", 2)))
    if not found.posteriors:
        raise typer.Exit(FAULT)


@command
def report(run: Folder) -> None:
    """Print a run's verdict, and where its page is."""
    import json

    import pandas as pd

    from tractable.cli import show
    from tractable.cli.problem import read_run
    from tractable.compare import shown
    from tractable.tools.errors import CheckpointError

    entries, console = read_run(run), show.console()
    if "methods" in entries and (run / "comparison.csv").exists():
        console.print(show.comparison(shown(pd.read_csv(run / "comparison.csv", index_col=0))))
        for label, sentence in entries["failures"].items():
            console.print(f"{label} failed: {sentence}", soft_wrap=True, markup=False)
    elif (run / "posterior.json").exists():
        about = json.loads((run / "posterior.json").read_text(encoding="utf-8"))
        console.print(show.verdict(about["verdict"], about["checks"]))
        console.print(f"{show.seconds(about['seconds'])}.")
    else:
        raise CheckpointError(
            f"The run in {run} has not come to a result yet; go on with tractable fit --resume --out {run}."
        )
    page = run / "report.html"
    console.print(f"Report: {page}" if page.exists() else "It has no report.html.", soft_wrap=True)


@command
def predict(
    run: Folder,
    new: Annotated[Path, typer.Argument(help="A .csv or .parquet file with the inputs' columns.", metavar="NEW")],
    out: Annotated[Path, typer.Option(help="A .parquet or .csv file to write.")] = Path("predictions.parquet"),
    level: Annotated[float, typer.Option(help="Of the predictive intervals.")] = 0.9,
) -> None:
    """Predict the target for new rows, by a run that was fitted to a table.

    For a number: mean, sd, its aleatoric part (noise) and its epistemic part (what more data would teach), and an
    interval. For classes: the likeliest, the probability of each, and the epistemic sd of the likeliest's.
    """
    from tractable.cli.problem import model_of, predictions, read_run
    from tractable.saving import load
    from tractable.tools.errors import DataError
    from tractable.tools.tables import Encoder, encode, read_table

    spec = read_run(run)["problem"]
    if "encoder" not in spec:
        raise DataError(f"{run} is of the example {spec['example']!r}; predict expects a run of a table.")
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    encoder = Encoder.from_dict(spec["encoder"])
    posterior = load(run, model_of(encoder))
    frame = read_table(new)
    found = predictions(
        encoder, posterior.predict(encode(encoder, frame.drop(columns=encoder.target.name, errors="ignore")).x, level)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        found.to_csv(out, index=False)
    else:
        found.to_parquet(out, index=False)
    typer.echo(f"{len(found)} predictions in {out}")


def problem_from(
    table: Path | None, example: str | None, target: str | None, held_out: float, drop: bool, family: str | None
) -> "Problem":
    """The example or the table that was asked for."""
    from tractable.cli.problem import from_example, from_table
    from tractable.tools.errors import DataError

    if example is not None and table is None:
        return from_example(example)
    if table is not None and example is None:
        return from_table(table, target, held_out=held_out, drop=drop, family=family)
    got = "neither" if table is None else "both"
    raise DataError(f"Expected either a table with --target, or --example; got {got}.")


def exact(problem: "Problem") -> dict[str, tuple] | None:
    """The exact answer of an example, with marginal densities where they are at hand."""
    from scipy.interpolate import CubicSpline
    from scipy.stats import beta

    from tractable.gallery import EXAMPLES

    known = EXAMPLES.get(problem.spec.get("example", ""))
    if known is None or known.exact is None:
        return None
    moments = known.exact()
    if known.name == "beta-bernoulli":  # a Beta is known by its mean and sd
        mean, sd = moments["theta"]
        total = mean * (1 - mean) / sd**2 - 1
        return {"theta": (mean, sd, lambda theta: beta.pdf(theta, mean * total, (1 - mean) * total))}
    if known.grid is not None:
        grid = known.grid()
        step = (grid.first[1] - grid.first[0], grid.second[1] - grid.second[0])
        marginals = [
            CubicSpline(grid.first, grid.density.sum(1) * step[1]),
            CubicSpline(grid.second, grid.density.sum(0) * step[0]),
        ]
        ((parameter, (mean, sd)),) = moments.items()
        return {parameter: (mean, sd, marginals)}
    return moments


def nones(saved: dict[str, Any]) -> dict[str, None]:
    """The settings which are None: in JSON they can be told from those left out."""
    return {k: None for k, v in saved["method"].items() if v is None}


def fresh(name: str) -> Path:
    """runs/NAME, or with the first number that makes it new; made."""
    for number in range(1, 100_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise RuntimeError(f"runs/ holds 100,000 folders named {name}.")
