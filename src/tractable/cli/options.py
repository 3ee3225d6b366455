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
    "Of the target: normal, lognormal, gamma, weibull, exponential, beta, poisson, negative-binomial, bernoulli, "
    "categorical or ordered; by default told from its values, and said."
)
Family = Annotated[Text, Option(help=FAMILY)]
FitFamily = Annotated[
    Text,
    Option(
        help=f"{FAMILY} Of a vae's rows normal, bernoulli, categorical, continuous-bernoulli (grey pixels) or poisson."
    ),
]
Formula = Annotated[
    Text,
    Option(
        help="What explains what, in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)', in TABLE's units."
    ),
]
Exclude = Annotated[list[str] | None, Option(help="A column of TABLE that is no input; may be repeated.")]
Weights = Annotated[Text, Option(help="A column that says how often each row counts.")]
Exposure = Annotated[Text, Option(help="Of counts: a column, such as hours, that each row's rate is multiplied by.")]
Censored = Annotated[
    Text,
    Option(
        help="Of a target that is known up to a bound: a column that says in which rows, none, right or left, or 0, 1 "
        "and -1: it is larger, or smaller, than the target says."
    ),
]
Event = Annotated[
    Text, Option(help="Of times: a column that says whether the event was seen; where not, it comes later.")
]
Until = Annotated[Text, Option(help="A column of upper bounds, of which the target is the lower one.")]
Sep = Annotated[Text, Option(help="Between the columns of a .csv, such as ';'.  \\[default: ,]")]
Decimal = Annotated[Text, Option(help="Of the numbers of a .csv, such as ','.  \\[default: .]")]
HeldOut = Annotated[float, Option(help="Share of TABLE's rows kept back to score predictions; 0 for none.")]
Missing = Annotated[
    Text,
    Option(
        help="What becomes of missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, of a mixture, imputes nothing and takes "
        "the numbers there are.  \\[default: raise]"
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
        "nuts, sgld or sghmc; em of a mixture or a hidden-markov; autoencoding, importance-weighted, nvil, vimco, "
        "wake-sleep or reweighted-wake-sleep of a vae or belief-network.  \\[default: nuts; of a network bbb, of a "
        "mixture or a hidden-markov em, of a vae autoencoding, of a belief-network nvil]"
    ),
]
Assignments = Annotated[
    list[str] | None, Option("--set", metavar="FIELD=VALUE", help="A field of the method; may be repeated.")
]
Components = Annotated[
    Text, Option(help="Of a mixture: how many to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]")
]
States = Annotated[
    Text, Option(help="Of a hidden-markov: how many to try, such as 3, 2,3,5 or 2..5.  \\[default: 1..5]")
]
By = Annotated[Text, Option(help="Of a hidden-markov: the column that says which sequence a row is of.")]
Time = Annotated[Text, Option(help="Of a hidden-markov: the column, of numbers or dates, that says when.")]
Covariance = Annotated[
    Text,
    Option(
        help="Of a mixture: full, tied, diagonal or spherical; of a hidden-markov: diagonal or full.  "
        "\\[default: full; of a hidden-markov diagonal]"
    ),
]
Choose = Annotated[
    Text,
    Option(
        help="Of a mixture or a hidden-markov: what tells how many components, bic, held-out (log likelihood of what "
        "is kept back) or, of a mixture, evidence (a bound by variational Bayes).  \\[default: bic]"
    ),
]
Latent = Annotated[
    Text,
    Option(
        help="Of a vae: how many numbers are behind a row, such as 20; several layers, such as 100,50, from the rows "
        "on. Of a belief-network: units of its layers, such as 200,200."
    ),
]
ArrayName = Annotated[
    Text, Option("--array", help="Which array of an .npz.  \\[default: the only one, or x_train, x or data]")
]
Redraw = Annotated[
    bool, Option("--redraw", help="Grey pixels are probabilities: binary ones are drawn from them at every visit.")
]
Hidden = Annotated[Text, Option(help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50]")]
FitHidden = Annotated[
    Text,
    Option(
        help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50; of a vae 400, or 100 where rows "
        "have fewer than 100 numbers]"
    ),
]
Prior = Annotated[
    Text,
    Option(
        help="Of the network's weights: scaled (by the widths), relevance (scales are learnt, one for each input; for "
        "long chains) or an sd, such as 0.5.  \\[default: scaled]"
    ),
]
Shifted = Annotated[File, Option(help="Rows from elsewhere, to see whether predictions of them are less sure.")]
Seed = Annotated[int | None, Option(help="Of all randomness.  \\[default: 0]")]
Out = Annotated[File, Option(help="The run's folder.  \\[default: runs/NAME-METHOD; without --target runs/NAME-MODEL]")]
Config = Annotated[File, Option(help="Fields in TOML, such as a run's settings.toml.")]
Verify = Annotated[
    Text,
    Option(
        help="How much a glm's posterior is looked at again before it is called one to trust: auto, a quarter of the "
        "run's own work or two seconds; thorough; none.  \\[default: auto]"
    ),
]
Resume = Annotated[bool, Option("--resume", help="Go on with the run in --out, exactly as if it had not stopped.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print the run's folder and nothing else.")]
Folder = Annotated[Path, Argument(help="A folder made by fit or compare.", metavar="RUN")]

# Of examples alone.

Failures = Annotated[
    bool, Option("--failures", help="Targets on which methods fail: what each answers, and what its verdict says.")
]
FailuresOut = Annotated[File, Option(help="Of --failures: a folder for the page.  \\[default: runs/failures]")]

# Of compare alone.

MethodNames = Annotated[
    Text, Option(help="Names with commas between them.  \\[default: map,mala,nuts,sgld; of a network map,bbb,ensemble]")
]
EveryAssignment = Annotated[
    list[str] | None,
    Option("--set", metavar="[METHOD.]FIELD=VALUE", help="A field of one method, or of all which have it."),
]
Jobs = Annotated[
    int,
    Option(help="Processes that share fits that do not wait for each other; -1 for as many as there are cores."),
]
CompareOut = Annotated[File, Option(help="A folder.  \\[default: runs/NAME-compare]")]

# Of calibrate alone.

Runs = Annotated[int, Option(help="Simulated data sets, 20 at least.")]
CalibrateOut = Annotated[
    File, Option(help="A folder; the same command goes on with the runs in it.  \\[default: runs/NAME-calibrate]")
]

# Of predict alone.

NewRows = Annotated[
    Path,
    Argument(
        help="A .csv or .parquet file with the inputs' columns; or an .npz, where the run was of one.", metavar="NEW"
    ),
]
PredictOut = Annotated[Path, Option(help="A .parquet or .csv file to write.")]
Level = Annotated[float, Option(help="Of the predictive intervals.")]
Calibrate = Annotated[
    File,
    Option(
        help="Rows with the target that took no part in the fit: intervals of a number then hold the share --level "
        "of rows like these, whatever the model (split conformal)."
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
