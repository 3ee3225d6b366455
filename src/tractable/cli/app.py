"""The commands. Each imports what it needs when it runs."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tractable.cli import options as o
from tractable.cli.speech import FAULT, notes, say

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
            with notes():
                function(*args, **kwargs)
        except TractableError as error:
            say(str(error), "red")
            raise typer.Exit(FAULT) from None

    return app.command()(spoken)


@command
def examples() -> None:
    """List the built-in examples."""
    from tractable.cli import show
    from tractable.models.gallery import EXAMPLES
    from tractable.pages.exhibit import Exhibit, Table
    from tractable.pages.terminal import to_terminal

    heads, rows = ["name", "data and model", "what to look at"], [(e.name, e.title, e.notes) for e in EXAMPLES.values()]
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
    family: o.FitFamily = None,
    model: o.FitKind = "glm",
    hidden: o.FitHidden = None,
    prior: o.Prior = None,
    components: o.Components = None,
    covariance: o.Covariance = None,
    choose: o.Choose = None,
    latent: o.Latent = None,
    array: o.ArrayName = None,
    redraw: o.Redraw = False,
    missing: o.Missing = None,
    drop_missing: o.Drop = False,
    shifted: o.Shifted = None,
    resume: o.Resume = False,
    quiet: o.Quiet = False,
) -> None:
    """Fit a model to an example or to data of your own, and say how far the result can be trusted.

    A table gets a generalised linear model, or a network: Normal for a number, Bernoulli for two classes, Categorical
    for more. With --model gaussian-mixture nothing is explained: mixtures of normals of all its numbers are fitted, one
    for each number of components, and one of them is chosen. With --model vae or belief-network causes are learnt that
    are behind whole rows, of a table's numbers or of an array of images.

    Exit code: 0 for the verdicts trust and caution, 3 for reject, 2 for a fault, 130 or 143 for a run stopped by
    Ctrl-C or SIGTERM, which keeps what it has.
    """
    from tractable.cli import ladder_fit, mixture_fit, models, supervised
    from tractable.cli.how import How, run_gone_on_with
    from tractable.cli.problem import missing_of

    how = How(method, config, tuple(set_ or ()), seed, out, resume, quiet)
    of_all = {"held_out": held_out, "missing": missing_of(missing, drop_missing)}
    mixed = {"components": components, "covariance": covariance, "choose": choose}
    deep = {"latent": latent, "array": array, "redraw": redraw}
    rows = {"family": family, "hidden": hidden}
    of_target = {"prior": prior, "shifted": shifted}
    given = mixed | deep | rows | of_target | {"target": target, "example": example, "resume": resume}
    if model == models.MIXTURE:
        models.check_options(model, given)
        mixture_fit.fit(table, of_all | mixed, how)
        return
    saved = run_gone_on_with(how)
    kind = models.model_gone_on_with(how.out, saved, model) if saved else model
    models.check_options(kind, given)
    if kind in models.LADDERS:
        ladder_fit.fit(table, kind, of_all | deep | rows, how, saved)
        return
    of_all["missing"] = of_all["missing"] or "raise"
    supervised.fit(table, example, target, of_all | rows | of_target | {"model": kind}, how, saved)


@command
def compare(
    table: o.Table = None,
    example: o.Example = None,
    target: o.Target = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them.  \\[default: map,mala,nuts,sgld; of a network map,bbb,ensemble]",
            show_default=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]FIELD=VALUE", help="A field of one method, or of all which have it."),
    ] = None,
    seed: o.Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder.  \\[default: runs/NAME-compare]", show_default=False)
    ] = None,
    held_out: o.HeldOut = 0.2,
    family: o.Family = None,
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
    from tractable.cli import comparing
    from tractable.cli.problem import missing_of, problem_from
    from tractable.tools.errors import CheckpointError

    if out is not None and (out / "draws.zarr").exists():
        raise CheckpointError(f"{out} holds the run of one method; choose another --out.")
    problem = problem_from(
        table, example, target, missing=missing_of(missing, drop_missing) or "raise",
        held_out=held_out, family=family, model=model, hidden=hidden, prior=prior,
    )  # fmt: skip
    comparing.compare(problem, methods, set_ or [], seed or 0, out, quiet)


@command
def report(run: o.Folder) -> None:
    """Print a run's verdict, and where its page is."""
    import pandas as pd

    from tractable.cli import models, show
    from tractable.cli.problem import read_run
    from tractable.pages.comparison import results_table
    from tractable.pages.terminal import to_terminal
    from tractable.tools.errors import CheckpointError

    entries, console = read_run(run), show.console()
    if "methods" in entries and (run / "comparison.csv").exists():
        console.print(to_terminal(results_table(pd.read_csv(run / "comparison.csv", index_col=0))))
        for label, sentence in entries["failures"].items():
            console.print(f"{label} failed: {sentence}", soft_wrap=True, markup=False)
    elif (run / "posterior.json").exists():
        about = json.loads((run / "posterior.json").read_text(encoding="utf-8"))
        model = entries["problem"].get("model")
        if model == models.MIXTURE:
            from tractable.pages.exhibit import Exhibit
            from tractable.pages.mixtures import tried_table

            tried = pd.read_csv(run / "criterion.csv")
            best = list(tried["components"]).index(entries["problem"]["chosen"])
            console.print(to_terminal(Exhibit("Components tried", [tried_table(tried, best)])))
        elif model in models.LADDERS:
            from tractable.cli.ladders import bounds_table

            console.print(bounds_table(about["found"], entries["problem"]))
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
    run: o.Folder,
    new: Annotated[
        Path,
        typer.Argument(
            help="A .csv or .parquet file with the inputs' columns; or an .npz, where the run was of one.",
            metavar="NEW",
        ),
    ],
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
    array: Annotated[
        str | None,
        typer.Option(
            help="Which array of an .npz.  \\[default: the only one, x_test, or the one fitted]", show_default=False
        ),
    ] = None,
) -> None:
    """Predict the target for new rows, by a run that was fitted to a table.

    For a number: mean, sd, its aleatoric part (noise) and its epistemic part (what more data would teach), and an
    interval. For classes: the likeliest, the probability of each, and the epistemic sd of the likeliest's. By a
    mixture: the likeliest component, the probability of each, and the log density of the row. By a vae or
    belief-network: mean and sd of each hidden unit given the row, and two lower bounds of the row's log density, elbo
    and log_evidence.
    """
    from tractable.cli import models, predicting
    from tractable.cli.problem import read_run
    from tractable.tools.errors import DataError

    spec = read_run(run)["problem"]
    kind = spec.get("model")
    if "example" in spec:
        raise DataError(f"{run} is of the example {spec['example']!r}; predict expects a run of a table.")
    if out.suffix not in (".parquet", ".csv"):
        raise DataError(f"--out expects a .parquet or .csv file; got {out}.")
    if array is not None and kind not in models.LADDERS:
        raise DataError(f"--array is of an .npz, which runs of {' and '.join(models.LADDERS)} take; got {new}.")
    if kind == models.MIXTURE or kind in models.LADDERS:
        if calibrate is not None:
            what = "mixture" if kind == models.MIXTURE else kind
            raise DataError(f"--calibrate is for intervals of a number; a {what} gives none.")
        what = "predictions" if kind == models.MIXTURE else "rows of codes and bounds"
        predicting.leave(predicting.of_rows(run, spec, new, array), out, what)
        return
    predicting.leave(predicting.of_target(run, spec, new, level, calibrate), out)
