"""The options of the commands: name -> what a value is, its default, and what --help says of it."""

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

from tractable.tools.errors import SettingsError

Text = str | None
File = Path | None
Texts = list[str] | None
Count = int | None
REQUIRED: Any = Parameter.empty


class Taken(NamedTuple):
    """A parameter of a command: its type, as Typer reads it, and its default."""

    kind: Any
    default: Any = None


def option(
    help: str, kind: object = Text, default: object = None, *, spelt: tuple[str, ...] = (), metavar: Text = None
) -> Taken:
    """An option; ``spelt`` names it where that is not the parameter's name."""
    told: Any = kind
    return Taken(Annotated[told, Option(*spelt, help=help, metavar=metavar)], default)


def flag(help: str, *spelt: str) -> Taken:
    """An option that is there or not."""
    return Taken(Annotated[bool, Option(*spelt, help=help)], False)


def argument(help: str, *, needed: bool = True, metavar: str | None = None) -> Taken:
    """A file or folder, which a command takes without the name of an option."""
    told = Argument(help=help, metavar=metavar)
    return Taken(Annotated[Path, told], REQUIRED) if needed else Taken(Annotated[File, told])


FAMILY = (
    "The target's distribution: normal, student-t (for outliers), lognormal, gamma, weibull, exponential, beta, "
    "poisson, negative-binomial, bernoulli, categorical or ordered; by default guessed from its values, with a note."
)
TABLE = {"table": argument("A .csv or .parquet file; or give --example.", needed=False)}
EXAMPLE = {"example": option("A built-in example; 'tractable examples' lists them.")}
TARGET = {"target": option("The column of TABLE to explain, or several numbers as a,b; the others are inputs.")}
METHOD = {
    "method": option(
        "mle, map, laplace, inla, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, hmc, "
        "nuts, gibbs, sgld or sghmc; for a mixture or a hidden-markov em; for a vae or belief-network autoencoding, "
        "importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep.  \\[default: nuts; inla where it "
        "suits; for a network bbb, a mixture or hidden-markov em, a vae autoencoding, a belief-network nvil]"
    ),
    "set_": option("Set a field of the method; may be repeated.", Texts, spelt=("--set",), metavar="FIELD=VALUE"),
}
HELD_OUT = {"held_out": option("Share of TABLE's rows held out to score predictions; 0 for none.", float, 0.2)}
COLUMNS = {
    "formula": option(
        "A formula in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)'; effects are in TABLE's units."
    ),
    "family": option(FAMILY),
    "exclude": option("A column of TABLE that is not an input; may be repeated.", Texts),
    "weights": option("A column that says how often each row counts."),
    "exposure": option("For counts: a column, such as hours, that multiplies each row's rate."),
    "censored": option(
        "For a censored target: a column that says for each row none, right (the value is larger than the target "
        "says) or left (smaller); or 0, 1 and -1."
    ),
    "event": option("For times: a column that says whether the event was seen; if not, it comes later."),
    "until": option("A column of upper bounds; the target holds the lower bounds."),
}
CSV = {
    "sep": option("What separates the columns of a .csv, such as ';'.  \\[default: ,]"),
    "decimal": option("The decimal mark in a .csv, such as ','.  \\[default: .]"),
}
NETWORK = {
    "model": option("glm, a generalised linear model, or mlp, a neural network.", str, "glm", spelt=("--model",)),
    "hidden": option("Widths of the network's hidden layers, such as 50,50.  \\[default: 50]"),
    "prior": option(
        "The prior of a network's weights: scaled (by the widths), relevance (a learnt scale for each input; for "
        "long chains) or an sd, such as 0.5.  \\[default: scaled]"
    ),
}
MISSING = {
    "missing": option(
        "How to treat missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, for a mixture, uses the numbers there are "
        "and imputes none.  \\[default: raise]"
    ),
    "drop_missing": flag("The same as --missing drop.", "--drop-missing"),
}
SEED = {"seed": option("The seed of all randomness.  \\[default: 0]", Count)}
JOBS = {"jobs": option("Number of processes that share independent fits; -1 for one per core.", int, 1)}
QUIET = {"quiet": flag("Print the run's folder and nothing else.", "--quiet", "-q")}
RUN = {"run": argument("A folder made by fit or compare.", metavar="RUN")}

EXAMPLES = {
    "failures": flag("Run targets on which methods fail: what each method answers, and its verdict.", "--failures"),
    "out": option("With --failures: a folder for the page.  \\[default: runs/failures]", File),
}

FIT = {
    "table": argument(
        "A .csv or .parquet file; or give --example. For vae and belief-network also an .npz of arrays.", needed=False
    ),
    **(EXAMPLE | TARGET | METHOD),
    "config": option("Fields in TOML, such as a run's settings.toml.", File),
    **SEED,
    "out": option(
        "The run's folder.  \\[default: runs/NAME-METHOD; for models without a target runs/NAME-MODEL]", File
    ),
    **(HELD_OUT | COLUMNS),
    "family": option(
        f"{FAMILY} A vae's rows: normal, bernoulli, categorical, continuous-bernoulli (grey pixels) or poisson."
    ),
    **(CSV | NETWORK),
    "model": option(
        "glm, a generalised linear model; mlp, a neural network. Without --target: gaussian-mixture, of TABLE's "
        "numbers; hidden-markov, of its sequences; vae, a variational autoencoder, or belief-network, of binary "
        "causes, both with --latent.",
        str,
        "glm",
        spelt=("--model",),
    ),
    "hidden": option(
        "Widths of the network's hidden layers, such as 50,50.  \\[default: 50; for a vae 400, or 100 if rows "
        "have fewer than 100 numbers]"
    ),
    "components": option("For a mixture: how many components to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]"),
    "states": option("For a hidden-markov: how many states to try, such as 3, 2,3,5 or 2..5.  \\[default: 1..5]"),
    "by": option("For a hidden-markov: the column with each row's sequence."),
    "time": option("For a hidden-markov: the column with each row's time, a number or date."),
    "covariance": option(
        "For a mixture: full, tied, diagonal or spherical; for a hidden-markov: diagonal or full.  "
        "\\[default: full; for a hidden-markov diagonal]"
    ),
    "choose": option(
        "For a mixture or a hidden-markov: the criterion that chooses how many components, bic, held-out (log "
        "likelihood of held-out rows) or, for a mixture, evidence (a bound by variational Bayes).  \\[default: bic]"
    ),
    "latent": option(
        "For a vae: how many latent numbers a row has, such as 20; for several layers, such as 100,50, from the "
        "rows on. For a belief-network: the units of its layers, such as 200,200."
    ),
    "array": option("Which array of an .npz.  \\[default: the only one, or x_train, x or data]"),
    "redraw": flag("Take grey pixels as probabilities, and draw binary pixels from them at every visit.", "--redraw"),
    **MISSING,
    "shifted": option(
        "A table of rows unlike TABLE's: the report shows whether their predictions are less certain.", File
    ),
    "verify": option(
        "How thoroughly a glm's posterior is checked before its verdict can be trust: auto, a quarter of the "
        "run's own work or two seconds; thorough; none.  \\[default: auto]"
    ),
    "resume": flag("Continue the run in --out, exactly as if it had not stopped.", "--resume"),
    **JOBS,
    "mesh": option("For glm and mlp: over how many devices the run lies; auto for all of them.", metavar="N|auto"),
    "coordinator": option(
        "With --mesh, where the environment names none: the address of process 0.", metavar="HOST:PORT"
    ),
    "processes": option("With --coordinator: how many processes share the run.", Count),
    "process": option("With --coordinator: the number of this one. 0 speaks and writes for all.", Count),
    **QUIET,
}

COMPARE = {
    **(TABLE | EXAMPLE | TARGET),
    "methods": option(
        "Methods with commas between them.  \\[default: map,mala,nuts,sgld; for a network map,bbb,ensemble]"
    ),
    "set_": option(
        "Set a field of one method, or of all that have it.", Texts, spelt=("--set",), metavar="[METHOD.]FIELD=VALUE"
    ),
    **(JOBS | SEED),
    "out": option("A folder.  \\[default: runs/NAME-compare]", File),
    **(HELD_OUT | COLUMNS | CSV | NETWORK | MISSING | QUIET),
}

CALIBRATE = {
    **(TABLE | EXAMPLE | TARGET | METHOD),
    "runs": option("Number of simulated data sets, 20 or more.", int, 200),
    **(JOBS | SEED),
    "out": option("A folder; the same command continues from the runs in it.  \\[default: runs/NAME-calibrate]", File),
    **(COLUMNS | CSV | NETWORK | MISSING | QUIET),
}

PACK = {
    "source": argument("A .csv, .parquet, .arrow, .feather, .npy, .npz or .zarr, or a pattern in quotes: 'x/*.npy'."),
    "out": option("The folder for the shards.", Path, REQUIRED),
    **TARGET,
    "columns": option("Columns of TABLE to pack, as a,b; by default all, or all of numbers."),
    **SEED,
    "rows_per_shard": option("Rows of a shard, about.  \\[default: what takes 128 MiB]", Count),
    **(COLUMNS | MISSING | QUIET),
}

PREDICT = {
    **RUN,
    "new": argument(
        "A .csv or .parquet file with the inputs' columns; or an .npz, if the run was fitted to one.", metavar="NEW"
    ),
    "out": option("The .parquet or .csv file to write.", Path, Path("predictions.parquet")),
    "level": option("The level of the predictive intervals.", float, 0.9),
    "calibrate": option(
        "A file of rows, with the target, that took no part in the fit: a number's intervals then hold the share "
        "--level of rows like these, whatever the model (split conformal).",
        File,
    ),
    "array": option("Which array of an .npz.  \\[default: the only one, x_test, or the one fitted]"),
}


def missing_of(missing: str | None, drop: bool) -> str | None:
    """What --missing and --drop-missing say together."""
    if drop and missing not in (None, "drop"):
        raise SettingsError(f"--drop-missing and --missing {missing} contradict each other; give one of them.")
    return "drop" if drop else missing
