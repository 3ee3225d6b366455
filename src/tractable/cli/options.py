"""The options of the commands: what a value is, its default, and what --help says of it."""

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument, Option

Text = str | None
File = Path | None
Texts = list[str] | None
Count = int | None
REQUIRED: Any = Parameter.empty


class Taken(NamedTuple):
    """A parameter of a command: its type, as Typer reads it, and its default."""

    kind: Any
    default: Any = None


def option(help: str, kind: Any = Text, default: Any = None, *spelt: str, metavar: Text = None) -> Taken:
    """An option; ``spelt`` names it where that is not the parameter's name."""
    return Taken(Annotated[kind, Option(*spelt, help=help, metavar=metavar)], default)


def argument(help: str, kind: Any = Path, default: Any = REQUIRED, metavar: Text = None) -> Taken:
    """A file or folder, which a command takes without the name of an option."""
    return Taken(Annotated[kind, Argument(help=help, metavar=metavar)], default)


OPTIONS = {
    "table": argument(
        "A .csv or .parquet file, for vae and belief-network also an .npz of arrays; or give --example.", File, None
    ),
    "source": argument("A .csv, .parquet, .arrow, .feather, .npy, .npz or .zarr, or a pattern in quotes: 'x/*.npy'."),
    "run": argument("A folder made by fit or compare.", metavar="RUN"),
    "new": argument(
        "A .csv or .parquet file with the inputs' columns; or an .npz, if the run was fitted to one.", metavar="NEW"
    ),
    "example": option("A built-in example; 'tractable examples' lists them."),
    "target": option("The column of TABLE to explain, or several numbers as a,b; the others are inputs."),
    "method": option(
        "mle, map, laplace, inla, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, hmc, "
        "nuts, gibbs, sgld or sghmc; for a mixture or a hidden-markov em; for a vae or belief-network autoencoding, "
        "importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep.  \\[default: nuts; inla where it "
        "suits; for a network bbb, a mixture or hidden-markov em, a vae autoencoding, a belief-network nvil]"
    ),
    "methods": option("Methods with commas between them.  \\[default: map,mala,nuts,sgld; for mlp map,bbb,ensemble]"),
    "set_": option(
        "Set a field of the method, in compare METHOD.FIELD=VALUE for one; may be repeated.", Texts, None, "--set",
        metavar="FIELD=VALUE",
    ),
    "config": option("Fields in TOML, such as a run's settings.toml.", File),
    "seed": option("The seed of all randomness.  \\[default: 0]", Count),
    "out": option("The folder to write.  \\[default: runs/NAME-METHOD; without a target runs/NAME-MODEL]", File),
    "held_out": option("Share of TABLE's rows held out to score predictions; 0 for none.", float, 0.2),
    "formula": option(
        "A formula in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)'; effects are in TABLE's units."
    ),
    "family": option(
        "The target's distribution: normal, student-t (for outliers), lognormal, gamma, weibull, exponential, beta, "
        "poisson, negative-binomial, bernoulli, categorical or ordered; by default guessed from its values, with a "
        "note. A vae's rows: normal, bernoulli, categorical, continuous-bernoulli (grey pixels) or poisson."
    ),
    "exclude": option("A column of TABLE that is not an input; may be repeated.", Texts),
    "weights": option("A column that says how often each row counts."),
    "exposure": option("For counts: a column, such as hours, that multiplies each row's rate."),
    "censored": option(
        "For a censored target: a column that says for each row none, right (the value is larger than the target "
        "says) or left (smaller); or 0, 1 and -1."
    ),
    "event": option("For times: a column that says whether the event was seen; if not, it comes later."),
    "until": option("A column of upper bounds; the target holds the lower bounds."),
    "sep": option("What separates the columns of a .csv, such as ';'.  \\[default: ,]"),
    "decimal": option("The decimal mark in a .csv, such as ','.  \\[default: .]"),
    "model": option(
        "glm, a generalised linear model; mlp, a neural network. Without --target, for fit: gaussian-mixture, of "
        "TABLE's numbers; hidden-markov, of its sequences; vae, a variational autoencoder, or belief-network, of "
        "binary causes, both with --latent.",
        str, "glm",
    ),
    "hidden": option(
        "Widths of the network's hidden layers, such as 50,50.  \\[default: 50; for a vae 400, or 100 if rows "
        "have fewer than 100 numbers]"
    ),
    "prior": option(
        "The prior of a network's weights: scaled (by the widths), relevance (a learnt scale for each input; for "
        "long chains) or an sd, such as 0.5.  \\[default: scaled]"
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
    "array": option("Which array of an .npz.  \\[default: the only one, or x_train, x or data; for predict x_test]"),
    "redraw": option(
        "Take grey pixels as probabilities, and draw binary pixels from them at every visit.", bool, False, "--redraw"
    ),
    "missing": option(
        "How to treat missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, for a mixture, uses the numbers there are "
        "and imputes none.  \\[default: raise]"
    ),
    "drop_missing": option("The same as --missing drop.", bool, False, "--drop-missing"),
    "shifted": option(
        "A table of rows unlike TABLE's: the report shows whether their predictions are less certain.", File
    ),
    "verify": option(
        "How thoroughly a glm's posterior is checked before its verdict can be trust: auto, a quarter of the "
        "run's own work or two seconds; thorough; none.  \\[default: auto]"
    ),
    "resume": option("Continue the run in --out, exactly as if it had not stopped.", bool, False, "--resume"),
    "jobs": option("Number of processes that share independent fits; -1 for one per core.", int, 1),
    "mesh": option("For glm and mlp: over how many devices the run lies; auto for all of them.", metavar="N|auto"),
    "coordinator": option(
        "With --mesh, where the environment names none: the address of process 0.", metavar="HOST:PORT"
    ),
    "processes": option("With --coordinator: how many processes share the run.", Count),
    "process": option("With --coordinator: the number of this one. 0 speaks and writes for all.", Count),
    "runs": option("Number of simulated data sets, 20 or more.", int, 200),
    "columns": option("Columns of TABLE to pack, as a,b; by default all, or all of numbers."),
    "rows_per_shard": option("Rows of a shard, about.  \\[default: what takes 128 MiB]", Count),
    "level": option("The level of the predictive intervals.", float, 0.9),
    "calibrate": option(
        "A file of rows, with the target, that took no part in the fit: a number's intervals then hold the share "
        "--level of rows like these, whatever the model (split conformal).",
        File,
    ),
    "failures": option(
        "Run targets on which methods fail: what each method answers, and its verdict.", bool, False, "--failures"
    ),
    "quiet": option("Print the run's folder and nothing else.", bool, False, "--quiet", "-q"),
}  # fmt: skip
ENCODING = "formula family exclude weights exposure censored event until missing"  # what ``fit_encoder`` takes
EXPLAINED = f"table example target model hidden prior sep decimal drop_missing {ENCODING}"


def taken(names: str, **own: Taken) -> dict[str, Taken]:
    """The options of those names, and a command's ``own``, in the order of ``OPTIONS``."""
    chosen = {name: OPTIONS[name] for name in names.split()} | own
    return {name: chosen[name] for name in OPTIONS if name in chosen}
