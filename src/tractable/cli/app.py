"""The commands. Each imports what it needs when it runs."""

import contextlib
import functools
import json
import math
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
MIXTURE = "gaussian-mixture"
NOT_OF_MIXTURES = {
    "--resume": "fits of mixtures are not saved as they go; fit anew, into another --out.",
    "--target": "it explains no column, it describes all columns of numbers; leave --target out.",
    "--example": "it is of a table of your own.",
    "--family": "its components are normal.",
    "--hidden": "it has no hidden layers.",
    "--shifted": "it makes no predictions that could be less sure; tractable predict gives rows their log density.",
}

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
Missing = Annotated[
    str | None,
    typer.Option(
        help="What becomes of missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, of a mixture, imputes nothing and takes "
        "the numbers there are.  [default: raise]",
        show_default=False,
    ),
]
Drop = Annotated[bool, typer.Option("--drop-missing", help="The same as --missing drop.")]
Kind = Annotated[str, typer.Option("--model", help="glm, a generalised linear model, or mlp, a neural network.")]
FitKind = Annotated[
    str,
    typer.Option(
        "--model",
        help="glm, a generalised linear model; mlp, a neural network; or gaussian-mixture, of TABLE's numbers and "
        "without --target.",
    ),
]
Components = Annotated[
    str | None,
    typer.Option(
        help="Of a mixture: how many to try, such as 3, 2,3,5 or 2..10.  [default: 1..10]", show_default=False
    ),
]
Covariance = Annotated[
    str | None,
    typer.Option(help="Of a mixture: full, tied, diagonal or spherical.  [default: full]", show_default=False),
]
Choose = Annotated[
    str | None,
    typer.Option(
        help="Of a mixture: what tells how many components, bic, held-out (log likelihood of the rows kept back) or "
        "evidence (a bound by variational Bayes).  [default: bic]",
        show_default=False,
    ),
]
Hidden = Annotated[
    str | None,
    typer.Option(help="Widths of the network's hidden layers, such as 50,50.  [default: 50]", show_default=False),
]
Shifted = Annotated[
    Path | None,
    typer.Option(help="Rows from elsewhere, to see whether predictions of them are less sure.", show_default=False),
]
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
            help="mle, map, laplace, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, hmc, "
            "nuts, sgld or sghmc; em of a mixture.  [default: nuts; of a network bbb, of a mixture em]",
            show_default=False,
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
    model: FitKind = "glm",
    hidden: Hidden = None,
    components: Components = None,
    covariance: Covariance = None,
    choose: Choose = None,
    missing: Missing = None,
    drop_missing: Drop = False,
    shifted: Shifted = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly as if it had not stopped.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to an example or to a table of your own, and say how far the result can be trusted.

    A table gets a generalised linear model, or a network: Normal for a number, Bernoulli for two classes, Categorical
    for more. With --model gaussian-mixture nothing is explained: mixtures of normals of all its numbers are fitted, one
    for each number of components, and one of them is chosen.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for a fault, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps what it has.
    """
    from tractable.cli.problem import default_method, problem_of, read_run, suits, write_run
    from tractable.cli.settings import made, method_of
    from tractable.tools.errors import CheckpointError, SettingsError

    mixed = {"components": components, "covariance": covariance, "choose": choose}
    if model == MIXTURE:
        for option, value in {
            "--resume": resume, "--target": target, "--example": example, "--family": family, "--hidden": hidden,
            "--shifted": shifted,
        }.items():  # fmt: skip
            if value:
                raise SettingsError(f"{option} is not for --model {MIXTURE}: {NOT_OF_MIXTURES[option]}")
        asked = {"held_out": held_out, "missing": missing_of(missing, drop_missing)} | mixed
        fit_mixtures(table, asked, method, config, set_ or [], seed, out, quiet)
        return
    for option, value in mixed.items():
        if value is not None:
            raise SettingsError(f"--{option} is for --model {MIXTURE}; got --model {model}.")
    saved: dict[str, Any] = {}
    if resume:
        if out is None:
            raise SettingsError("--resume expects --out, the folder of the run to go on with.")
        saved = read_run(out)
        if "method" not in saved:
            raise CheckpointError(f"{out} is a comparison, which cannot be gone on with; compare again.")
        if saved["problem"].get("model") == MIXTURE:
            raise CheckpointError(f"{out} is a {MIXTURE}: {NOT_OF_MIXTURES['--resume']}")
    elif out is not None and holds_a_run(out):
        raise CheckpointError(f"{out} already holds a run. Go on with it by --resume, or choose another --out.")
    if saved and table is None and example is None:
        problem = problem_of(saved["problem"])
    else:
        problem = problem_from(
            table, example, target, missing, drop_missing,
            held_out=held_out, family=family, model=model, hidden=hidden, shifted=shifted,
        )  # fmt: skip
    if saved and method is None and config is None and not set_:
        chosen, kept_seed = (
            made({k: v for k, v in saved["method"].items() if v is not None} | nones(saved)),
            saved["seed"],
        )
    else:
        named = method or saved.get("method", {}).get("method")
        chosen, kept_seed = method_of(named, config, set_ or [], default_method(problem))
    suits(chosen, problem)
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
    from tractable.methods.drawing import Drawing
    from tractable.methods.variational import Variational
    from tractable.saving import load

    at_once = not isinstance(method, Drawing | Variational)  # such a run is not saved as it goes
    about = folder / "posterior.json"
    if not isinstance(method, Drawing) and about.exists() and not json.loads(about.read_text())["interrupted"]:
        return load(folder, problem.model, problem.data)
    progress = False if quiet else None
    posterior = infer(
        problem.model, problem.data, method, seed=seed, progress=progress, checkpoint=None if at_once else folder
    )
    if at_once:
        shutil.rmtree(folder / "draws.zarr", ignore_errors=True)  # of a run killed while it was saved
        posterior.save(folder)
    return posterior


def conclude(posterior: "Posterior", problem: "Problem", folder: Path, quiet: bool) -> None:
    """Page, tables and exit code of a fit."""
    from tractable.cli import show
    from tractable.cli.problem import scores
    from tractable.exhibits import weights_of
    from tractable.page import named, told, write_page
    from tractable.run import interruptible

    title = f"{problem.name} by {type(posterior.method).__name__}"
    write_page(
        folder, posterior,
        title=title, held_out=problem.held_out, encoder=problem.encoder, shifted=problem.shifted,
    )  # fmt: skip
    report = posterior.report()
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        summary, weights = told(posterior), weights_of(posterior.model)
        labels = named(posterior.names, problem.encoder)
        others = summary.set_axis(labels, axis=0)[~weights]
        if len(others) or not weights.any():
            console.print(show.parameters(others, int(weights.sum())))
        else:
            console.print(f"{int(weights.sum()):,} weights of the network: see the report.\n")
        if problem.held_out is not None:
            console.print(show.held_out(scores(posterior, problem)))
        console.print(show.verdict(report.verdict, [c._asdict() for c in report.checks]))
        console.print(f"{show.seconds(posterior.seconds)}. Report: {folder / 'report.html'}", soft_wrap=True)
    if posterior.interrupted:
        raise typer.Exit(128 + int(getattr(interruptible, "signal", 2)))
    if report.verdict == "reject":
        raise typer.Exit(REJECTED)


def fit_mixtures(
    table: Path | None,
    asked: dict[str, Any],
    method: str | None,
    config: Path | None,
    assignments: list[str],
    seed: int | None,
    out: Path | None,
    quiet: bool,
) -> None:
    """Mixtures of normals of a table's numbers: one is chosen, and left in the folder with its page."""
    from tractable.cli import mixtures, show
    from tractable.cli.problem import write_run
    from tractable.cli.settings import method_of
    from tractable.run import interruptible
    from tractable.tools.errors import CheckpointError, DataError
    from tractable.tools.progress import progress_of

    if table is None:
        raise DataError(f"--model {MIXTURE} expects a table: tractable fit TABLE --model {MIXTURE}.")
    wanted = mixtures.Asked(**{name: value for name, value in asked.items() if value is not None})
    named, kept_seed = method_of(method, config, assignments, "em")
    em = mixtures.suits(named)
    number = int(next(s for s in (seed, kept_seed, 0) if s is not None))
    if out is not None and holds_a_run(out):
        raise CheckpointError(f"{out} already holds a run. Choose another --out.")
    problem = mixtures.from_table(table, wanted)

    folder = out if out is not None else fresh(f"{problem.name}-{MIXTURE}")
    about = {"problem": problem.spec(), "method": em.settings(), "seed": number}
    write_run(folder, about)
    if not quiet:
        say(f"mixtures of normals on {problem.label}, into {folder}")
    try:
        with progress_of(False if quiet else None) as bar:
            found = mixtures.learn(problem, em, number, bar.say)
    except BaseException:
        if {path.name for path in folder.iterdir()} <= {"run.json"}:
            shutil.rmtree(folder)  # nothing was learnt
        raise
    write_run(folder, about | {"problem": problem.spec(found.chosen.components)})
    mixtures.write(found, problem, folder)
    report = found.posterior.report()
    for remark in found.remarks:
        say(f"Note: {remark}", "yellow")
    if quiet:
        typer.echo(folder)
    else:
        console = show.console()
        console.print(mixtures.criterion_table(found.table, found.best))
        console.print(mixtures.components_table(mixtures.components(found.posterior, problem)))
        checks = [c._asdict() | {"value": float(c.value)} for c in report.checks]
        console.print(show.verdict(report.verdict, checks))
        console.print(f"{found.table['seconds'].sum():.1f} s. Report: {folder / 'report.html'}", soft_wrap=True)
    if found.interrupted:
        raise typer.Exit(128 + int(getattr(interruptible, "signal", 2)))
    if report.verdict == "reject":
        raise typer.Exit(REJECTED)


@command
def compare(
    table: Table = None,
    example: Example = None,
    target: Target = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them.  [default: map,mala,nuts,sgld; of a network map,bbb,ensemble]",
            show_default=False,
        ),
    ] = None,
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
    model: Kind = "glm",
    hidden: Hidden = None,
    missing: Missing = None,
    drop_missing: Drop = False,
    quiet: Quiet = False,
) -> None:
    """Put methods side by side on one model, against its exact posterior or, where there is none, a run of NUTS.

    Networks are held against no reference: their weights can be exchanged, so that no moment of one means anything.

    Exit code: 0, 2 for a fault or where every method failed, 130 or 143 where stopped.
    """
    from tractable.cli import show
    from tractable.cli.problem import suits, write_run
    from tractable.cli.settings import methods_of
    from tractable.compare import compare as side_by_side
    from tractable.compare import shown
    from tractable.page import write_comparison_page
    from tractable.run import interruptible
    from tractable.tools.errors import CheckpointError
    from tractable.tools.progress import progress_of

    if out is not None and (out / "draws.zarr").exists():
        raise CheckpointError(f"{out} holds the run of one method; choose another --out.")
    problem = problem_from(
        table, example, target, missing, drop_missing, held_out=held_out, family=family, model=model, hidden=hidden
    )
    usual = "map,bbb,ensemble" if problem.spec.get("model") == "mlp" else "map,mala,nuts,sgld"
    chosen = methods_of(usual if methods is None else methods, set_ or [])
    for each in chosen:
        suits(each, problem)
    folder = out if out is not None else fresh(f"{problem.name}-compare")
    if not quiet:
        say(f"{', '.join(m.label for m in chosen)} on {problem.label}, into {folder}")
    with progress_of(False if quiet else None) as bar:
        found = side_by_side(
            problem.model, problem.data, chosen, seed=seed or 0, held_out=problem.held_out,
            reference=reference_of(problem), progress=bar.say,
        )  # fmt: skip
    settings = [method.settings() for method in chosen]
    write_run(folder, {"problem": problem.spec, "methods": settings, "seed": seed or 0, "failures": found.failures})
    found.table.to_csv(folder / "comparison.csv")
    if found.posteriors:
        write_comparison_page(folder, found, title=f"{problem.name}: methods side by side")
        if problem.spec.get("model") != "mlp":
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
        if entries["problem"].get("model") == MIXTURE:
            from tractable.cli.mixtures import criterion_table

            tried = pd.read_csv(run / "criterion.csv")
            best = list(tried["components"]).index(entries["problem"]["chosen"])
            console.print(criterion_table(tried, best))
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
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Rows with the target that took no part in the fit: intervals of a number then hold the share --level "
            "of rows like these, whatever the model (split conformal).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Predict the target for new rows, by a run that was fitted to a table.

    For a number: mean, sd, its aleatoric part (noise) and its epistemic part (what more data would teach), and an
    interval. For classes: the likeliest, the probability of each, and the epistemic sd of the likeliest's. By a
    mixture: the likeliest component, the probability of each, and the log density of the row.
    """
    from tractable.cli.problem import as_rows, inputs, model_in, predictions, read_run, typed
    from tractable.saving import load
    from tractable.tools.errors import DataError
    from tractable.tools.tables import read_table

    spec = read_run(run)["problem"]
    mixed = spec.get("model") == MIXTURE
    if "encoder" not in spec and not mixed:
        raise DataError(f"{run} is of the example {spec['example']!r}; predict expects a run of a table.")
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    if mixed:
        from tractable.cli import mixtures

        if calibrate is not None:
            raise DataError("--calibrate is for intervals of a number; a mixture gives none.")
        leave(mixtures.predictions(spec, run, new), out)
        return
    model, encoder = model_in(spec)
    posterior, x, kept_out = load(run, model), inputs(encoder, new), None
    if calibrate is not None:
        frame = read_table(calibrate)
        if encoder.target.name not in frame:
            raise DataError(f"--calibrate needs rows with the target {encoder.target.name!r}; {calibrate} lacks it.")
        with typed():
            kept_out = as_rows(encoder, frame)
    leave(predictions(encoder, posterior.predict(x, level, calibrate=kept_out)), out)


def leave(found: Any, out: Path) -> None:
    """Write a table of predictions."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        found.to_csv(out, index=False)
    else:
        found.to_parquet(out, index=False)
    typer.echo(f"{len(found)} predictions in {out}")


def problem_from(
    table: Path | None, example: str | None, target: str | None, missing: str | None, drop: bool, **choices: Any
) -> "Problem":
    """The example or the table that was asked for."""
    from tractable.cli.problem import Choices, from_example, from_table
    from tractable.tools.errors import DataError, SettingsError

    chosen = Choices(missing=missing_of(missing, drop) or "raise", **choices)
    if example is not None and table is None:
        own = ("model", "hidden", "shifted")
        if any(choices.get(name) not in (None, "glm") for name in own):
            raise SettingsError("--model, --hidden and --shifted are for a table; an example has a model of its own.")
        return from_example(example)
    if table is not None and example is None:
        return from_table(table, target, chosen)
    got = "neither" if table is None else "both"
    raise DataError(f"Expected either a table with --target, or --example; got {got}.")


def missing_of(missing: str | None, drop: bool) -> str | None:
    """What --missing and --drop-missing say together."""
    from tractable.tools.errors import SettingsError

    if drop and missing not in (None, "drop"):
        raise SettingsError(f"--drop-missing and --missing {missing} contradict each other; give one of them.")
    return "drop" if drop else missing


def holds_a_run(folder: Path) -> bool:
    """Whether a folder is another run's already."""
    return any((folder / name).exists() for name in ("run.json", "posterior.json", "draws.zarr"))


def reference_of(problem: "Problem") -> Any:
    """What a comparison is held against: the exact answer; of a network nothing; else None, for a run of NUTS."""
    if problem.spec.get("model") == "mlp":
        return dict.fromkeys(problem.model.names, (math.nan, math.inf))  # from which every distance is NaN
    return exact(problem)


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
