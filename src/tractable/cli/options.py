"""The options of the commands: what --help says of each, the type of its value, and its default."""

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

HELP = {
    "table": "A .csv or .parquet file, for vae and belief-network also an .npz of arrays; or give --example.",
    "source": "A .csv, .parquet, .arrow, .feather, .npy, .npz or .zarr, or a pattern in quotes: 'x/*.npy'.",
    "run": "A folder made by fit or compare.",
    "new": "A .csv or .parquet file with the inputs' columns; or an .npz, if the run was fitted to one.",
    "example": "A built-in example; 'tractable examples' lists them.",
    "target": "The column of TABLE to explain, or several numbers as a,b; the others are inputs.",
    "method": "mle, map, laplace, inla, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, "
    "hmc, nuts, gibbs, sgld or sghmc; for a mixture or a hidden-markov em; for a vae or belief-network autoencoding, "
    "importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep.  \\[default: nuts; inla where it suits; "
    "for a network bbb, a mixture or hidden-markov em, a vae autoencoding, a belief-network nvil]",
    "methods": "Methods with commas between them.  \\[default: map,mala,nuts,sgld; for mlp map,bbb,ensemble]",
    "set_": "Set a field of the method, in compare METHOD.FIELD=VALUE for one; may be repeated.",
    "config": "Fields in TOML, such as a run's settings.toml.",
    "seed": "The seed of all randomness.  \\[default: 0]",
    "out": "The folder to write, or for predict a .csv or .parquet file.  \\[default: a new folder in runs]",
    "held_out": "Share of TABLE's rows held out to score predictions; 0 for none.",
    "formula": "A formula in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)'; effects are in TABLE's "
    "units.",
    "family": "The target's distribution: normal, student-t (for outliers), lognormal, gamma, weibull, exponential, "
    "beta, poisson, negative-binomial, bernoulli, categorical or ordered; by default guessed from its values, with a "
    "note. A vae's rows: normal, bernoulli, categorical, continuous-bernoulli (grey pixels) or poisson.",
    "exclude": "A column of TABLE that is not an input; may be repeated.",
    "weights": "A column that says how often each row counts.",
    "exposure": "For counts: a column, such as hours, that multiplies each row's rate.",
    "censored": "For a censored target: a column that says for each row none, right (the value is larger than the "
    "target says) or left (smaller); or 0, 1 and -1.",
    "event": "For times: a column that says whether the event was seen; if not, it comes later.",
    "until": "A column of upper bounds; the target holds the lower bounds.",
    "sep": "What separates the columns of a .csv, such as ';'.  \\[default: ,]",
    "decimal": "The decimal mark in a .csv, such as ','.  \\[default: .]",
    "model": "glm, a generalised linear model; mlp, a neural network. Without --target, for fit: gaussian-mixture, of "
    "TABLE's numbers; hidden-markov, of its sequences; vae, a variational autoencoder, or belief-network, of binary "
    "causes, both with --latent.",
    "hidden": "Widths of the network's hidden layers, such as 50,50.  \\[default: 50; for a vae 400, or 100 if rows "
    "have fewer than 100 numbers]",
    "prior": "The prior of a network's weights: scaled (by the widths), relevance (a learnt scale for each input; for "
    "long chains) or an sd, such as 0.5.  \\[default: scaled]",
    "components": "For a mixture: how many components to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]",
    "states": "For a hidden-markov: how many states to try, such as 3, 2,3,5 or 2..5.  \\[default: 1..5]",
    "by": "For a hidden-markov: the column with each row's sequence.",
    "time": "For a hidden-markov: the column with each row's time, a number or date.",
    "covariance": "For a mixture: full, tied, diagonal or spherical; for a hidden-markov: diagonal or full.  "
    "\\[default: full; for a hidden-markov diagonal]",
    "choose": "For a mixture or a hidden-markov: the criterion that chooses how many components, bic, held-out (log "
    "likelihood of held-out rows) or, for a mixture, evidence (a bound by variational Bayes).  \\[default: bic]",
    "latent": "For a vae: how many latent numbers a row has, such as 20; for several layers, such as 100,50, from the "
    "rows on. For a belief-network: the units of its layers, such as 200,200.",
    "array": "Which array of an .npz.  \\[default: the only one, or x_train, x or data; for predict x_test]",
    "redraw": "Take grey pixels as probabilities, and draw binary pixels from them at every visit.",
    "missing": "How to treat missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
    "inputs in (median, most frequent) and tells the model where; exact, for a mixture, uses the numbers there are "
    "and imputes none.  \\[default: raise]",
    "drop_missing": "The same as --missing drop.",
    "shifted": "A table of rows unlike TABLE's: the report shows whether their predictions are less certain.",
    "verify": "How thoroughly a glm's posterior is checked before its verdict can be trust: auto, a quarter of the "
    "run's own work or two seconds; thorough; none.  \\[default: auto]",
    "resume": "Continue the run in --out, exactly as if it had not stopped.",
    "jobs": "Number of processes that share independent fits; -1 for one per core.",
    "mesh": "For glm and mlp: over how many devices the run lies; auto for all of them.",
    "coordinator": "With --mesh, where the environment names none: the address of process 0.",
    "processes": "With --coordinator: how many processes share the run.",
    "process": "With --coordinator: the number of this one. 0 speaks and writes for all.",
    "runs": "Number of simulated data sets, 20 or more.",
    "columns": "Columns of TABLE to pack, as a,b; by default all, or all of numbers.",
    "rows_per_shard": "Rows of a shard, about.  \\[default: what takes 128 MiB]",
    "level": "The level of the predictive intervals.",
    "calibrate": "A file of rows, with the target, that took no part in the fit: a number's intervals then hold the "
    "share --level of rows like these, whatever the model (split conformal).",
    "failures": "Run targets on which methods fail: what each method answers, and its verdict.",
    "quiet": "Print the run's folder and nothing else.",
}  # fmt: skip
REQUIRED: Any = Parameter.empty
FLAGS = ("redraw", "drop_missing", "resume", "failures", "quiet")
TYPES: dict[str, tuple[Any, Any]] = {  # and defaults; of those not named, text that may be left out
    **dict.fromkeys(("source", "run", "new"), (Path, REQUIRED)),
    **dict.fromkeys(("table", "config", "out", "shifted", "calibrate"), (Path | None, None)),
    **dict.fromkeys(("set_", "exclude"), (list[str] | None, None)),
    **dict.fromkeys(("seed", "processes", "process", "rows_per_shard"), (int | None, None)),
    **dict.fromkeys(FLAGS, (bool, False)),
    **{"model": (str, "glm"), "held_out": (float, 0.2), "level": (float, 0.9), "jobs": (int, 1), "runs": (int, 200)},
}
ARGUMENTS = ("table", "source", "run", "new")  # taken without the name of an option
METAVARS = {"run": "RUN", "new": "NEW", "set_": "FIELD=VALUE", "mesh": "N|auto", "coordinator": "HOST:PORT"}
SPELT = {"set_": ("--set",), "quiet": ("--quiet", "-q")}
ENCODING = "formula family exclude weights exposure censored event until missing"  # what ``fit_encoder`` takes
EXPLAINED = f"table example target model hidden prior sep decimal drop_missing {ENCODING}"


def parameters(names: str, **own: tuple[Any, Any]) -> list[Parameter]:
    """Parameters of a command, as Typer reads them, in the order of ``HELP``; ``own`` types in place of the usual."""
    found = []
    for name in HELP:
        if name in names.split():
            kind, default = own.get(name) or TYPES.get(name, (str | None, None))
            spelt = SPELT.get(name, (f"--{name.replace('_', '-')}",))
            about: Any = {"help": HELP[name], "metavar": METAVARS.get(name)}
            described: Any = Argument(**about) if name in ARGUMENTS else Option(*spelt, **about)
            annotation = Annotated[kind, described]
            found.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default))
    return found
