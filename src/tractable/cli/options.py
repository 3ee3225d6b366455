"""The options that commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tractable.tools.errors import SettingsError

Text = str | None
File = Path | None

Table = Annotated[File, Argument(help="A .csv or .parquet file; or give --example.")]
FitTable = Annotated[
    File,
    Argument(help="A .csv or .parquet file; or give --example. For vae and belief-network also an .npz of arrays."),
]
Example = Annotated[Text, Option(help="A built-in example; 'tractable examples' lists them.")]
Target = Annotated[
    Text, Option(help="The column of TABLE to explain, or several numbers as a,b; the others are inputs.")
]
FAMILY = (
    "The target's distribution: normal, lognormal, gamma, weibull, exponential, beta, poisson, negative-binomial, "
    "bernoulli, categorical or ordered; by default guessed from its values, with a note."
)
Family = Annotated[Text, Option(help=FAMILY)]
FitFamily = Annotated[
    Text,
    Option(
        help=f"{FAMILY} A vae's rows: normal, bernoulli, categorical, continuous-bernoulli (grey pixels) or poisson."
    ),
]
Formula = Annotated[
    Text,
    Option(
        help="A formula in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)'; effects are in TABLE's units."
    ),
]
Exclude = Annotated[list[str] | None, Option(help="A column of TABLE that is not an input; may be repeated.")]
Weights = Annotated[Text, Option(help="A column that says how often each row counts.")]
Exposure = Annotated[Text, Option(help="For counts: a column, such as hours, that multiplies each row's rate.")]
Censored = Annotated[
    Text,
    Option(
        help="For a censored target: a column that says for each row none, right (the value is larger than the target "
        "says) or left (smaller); or 0, 1 and -1."
    ),
]
Event = Annotated[
    Text, Option(help="For times: a column that says whether the event was seen; if not, it comes later.")
]
Until = Annotated[Text, Option(help="A column of upper bounds; the target holds the lower bounds.")]
Sep = Annotated[Text, Option(help="What separates the columns of a .csv, such as ';'.  \\[default: ,]")]
Decimal = Annotated[Text, Option(help="The decimal mark in a .csv, such as ','.  \\[default: .]")]
HeldOut = Annotated[float, Option(help="Share of TABLE's rows held out to score predictions; 0 for none.")]
Missing = Annotated[
    Text,
    Option(
        help="How to treat missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, for a mixture, uses the numbers there are "
        "and imputes none.  \\[default: raise]"
    ),
]
Drop = Annotated[bool, Option("--drop-missing", help="The same as --missing drop.")]
Kind = Annotated[str, Option("--model", help="glm, a generalised linear model, or mlp, a neural network.")]
FitKind = Annotated[
    str,
    Option(
        "--model",
        help="glm, a generalised linear model; mlp, a neural network. Without --target: gaussian-mixture, of TABLE's "
        "numbers; hidden-markov, of its sequences; vae, a variational autoencoder, or belief-network, of binary "
        "causes, both with --latent.",
    ),
]
MethodName = Annotated[
    Text,
    Option(
        help="mle, map, laplace, inla, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, hmc, "
        "nuts, sgld or sghmc; for a mixture or a hidden-markov em; for a vae or belief-network autoencoding, "
        "importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep.  \\[default: nuts; inla where it "
        "suits; for a network bbb, a mixture or hidden-markov em, a vae autoencoding, a belief-network nvil]"
    ),
]
Assignments = Annotated[
    list[str] | None, Option("--set", metavar="FIELD=VALUE", help="Set a field of the method; may be repeated.")
]
Components = Annotated[
    Text, Option(help="For a mixture: how many components to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]")
]
States = Annotated[
    Text, Option(help="For a hidden-markov: how many states to try, such as 3, 2,3,5 or 2..5.  \\[default: 1..5]")
]
By = Annotated[Text, Option(help="For a hidden-markov: the column with each row's sequence.")]
Time = Annotated[Text, Option(help="For a hidden-markov: the column with each row's time, a number or date.")]
Covariance = Annotated[
    Text,
    Option(
        help="For a mixture: full, tied, diagonal or spherical; for a hidden-markov: diagonal or full.  "
        "\\[default: full; for a hidden-markov diagonal]"
    ),
]
Choose = Annotated[
    Text,
    Option(
        help="For a mixture or a hidden-markov: the criterion that chooses how many components, bic, held-out (log "
        "likelihood of held-out rows) or, for a mixture, evidence (a bound by variational Bayes).  \\[default: bic]"
    ),
]
Latent = Annotated[
    Text,
    Option(
        help="For a vae: how many latent numbers a row has, such as 20; for several layers, such as 100,50, from the "
        "rows on. For a belief-network: the units of its layers, such as 200,200."
    ),
]
ArrayName = Annotated[
    Text, Option("--array", help="Which array of an .npz.  \\[default: the only one, or x_train, x or data]")
]
Redraw = Annotated[
    bool, Option("--redraw", help="Take grey pixels as probabilities, and draw binary pixels from them at every visit.")
]
Hidden = Annotated[Text, Option(help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50]")]
FitHidden = Annotated[
    Text,
    Option(
        help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50; for a vae 400, or 100 if rows "
        "have fewer than 100 numbers]"
    ),
]
Prior = Annotated[
    Text,
    Option(
        help="The prior of a network's weights: scaled (by the widths), relevance (a learnt scale for each input; for "
        "long chains) or an sd, such as 0.5.  \\[default: scaled]"
    ),
]
Shifted = Annotated[File, Option(help="A file of rows from elsewhere, whose predictions should be less certain.")]
Seed = Annotated[int | None, Option(help="The seed of all randomness.  \\[default: 0]")]
Out = Annotated[File, Option(help="The run's folder.  \\[default: runs/NAME-METHOD; without --target runs/NAME-MODEL]")]
Config = Annotated[File, Option(help="Fields in TOML, such as a run's settings.toml.")]
Verify = Annotated[
    Text,
    Option(
        help="How thoroughly a glm's posterior is checked before its verdict can be trust: auto, a quarter of the "
        "run's own work or two seconds; thorough; none.  \\[default: auto]"
    ),
]
Resume = Annotated[bool, Option("--resume", help="Continue the run in --out, exactly as if it had not stopped.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print the run's folder and nothing else.")]
Folder = Annotated[Path, Argument(help="A folder made by fit or compare.", metavar="RUN")]

# Only for examples.

Failures = Annotated[
    bool, Option("--failures", help="Run targets on which methods fail: what each method answers, and its verdict.")
]
FailuresOut = Annotated[File, Option(help="With --failures: a folder for the page.  \\[default: runs/failures]")]

# Only for compare.

MethodNames = Annotated[
    Text,
    Option(help="Methods with commas between them.  \\[default: map,mala,nuts,sgld; for a network map,bbb,ensemble]"),
]
EveryAssignment = Annotated[
    list[str] | None,
    Option("--set", metavar="[METHOD.]FIELD=VALUE", help="Set a field of one method, or of all that have it."),
]
Jobs = Annotated[
    int,
    Option(help="Number of processes that share independent fits; -1 for one per core."),
]
Mesh = Annotated[
    Text, Option(metavar="N|auto", help="For glm and mlp: over how many devices the run lies; auto for all of them.")
]
Coordinator = Annotated[
    Text, Option(metavar="HOST:PORT", help="With --mesh, where the environment names none: the address of process 0.")
]
Processes = Annotated[int | None, Option(help="With --coordinator: how many processes share the run.")]
Process = Annotated[int | None, Option(help="With --coordinator: the number of this one. 0 speaks and writes for all.")]
CompareOut = Annotated[File, Option(help="A folder.  \\[default: runs/NAME-compare]")]

# Only for calibrate.

Runs = Annotated[int, Option(help="Number of simulated data sets, 20 or more.")]
CalibrateOut = Annotated[
    File, Option(help="A folder; the same command continues from the runs in it.  \\[default: runs/NAME-calibrate]")
]

# Only for pack.

PackTable = Annotated[
    Path, Argument(help="A .csv, .parquet, .arrow, .feather, .npy, .npz or .zarr, or a pattern in quotes: 'x/*.npy'.")
]
PackOut = Annotated[Path, Option(help="The folder for the shards.")]
Columns = Annotated[Text, Option(help="Columns of TABLE to pack, as a,b; by default all, or all of numbers.")]
PerShard = Annotated[int | None, Option(help="Rows of a shard, about.  \\[default: what takes 128 MiB]")]

# Only for predict.

NewRows = Annotated[
    Path,
    Argument(
        help="A .csv or .parquet file with the inputs' columns; or an .npz, if the run was fitted to one.",
        metavar="NEW",
    ),
]
PredictOut = Annotated[Path, Option(help="The .parquet or .csv file to write.")]
Level = Annotated[float, Option(help="The level of the predictive intervals.")]
Calibrate = Annotated[
    File,
    Option(
        help="A file of rows, with the target, that took no part in the fit: a number's intervals then hold the share "
        "--level of rows like these, whatever the model (split conformal)."
    ),
]
NewArray = Annotated[
    Text, Option("--array", help="Which array of an .npz.  \\[default: the only one, x_test, or the one fitted]")
]


def missing_of(missing: str | None, drop: bool) -> str | None:
    """What --missing and --drop-missing say together."""
    if drop and missing not in (None, "drop"):
        raise SettingsError(f"--drop-missing and --missing {missing} contradict each other; give one of them.")
    return "drop" if drop else missing
