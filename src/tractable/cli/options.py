"""The options of the commands: the text that --help shows for each, the type of its value, and its default."""

from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

HELP = {
    "table": "A .csv or .parquet file; for vae and belief-network also an .npz file of arrays. Or give --example.",
    "source": "A .csv, .parquet, .arrow, .feather, .npy, .npz or .zarr file, or a pattern in quotes: 'x/*.npy'.",
    "draws": "Draws that another program made: an .nc or .zarr file of ArviZ, an .npz file of arrays (chain, draw, …) "
    "by name, or Stan's .csv, with a pattern in quotes for its chains: 'output_*.csv'.",
    "program": "The tr.Model of which the draws should be the posterior, as FILE.py:NAME.",
    "rows": "The model's data, as FILE.py:NAME.",
    "run": "A folder made by fit or compare.",
    "new": "A .csv or .parquet file with the columns of the inputs; or an .npz file, if the run was fitted to one.",
    "example": "A built-in example; 'tractable examples' lists them.",
    "target": "The column of TABLE to explain, or several columns of numbers as a,b; the other columns are inputs.",
    "method": "For glm and mlp: mle, map, laplace, inla, meanfield, fullrank, lowrank, bbb, ivon, ensemble, "
    "rejection, metropolis, mala, hmc, nuts, gibbs, sgld or sghmc. For gaussian-mixture and hidden-markov: em. For vae "
    "and belief-network: autoencoding, importance-weighted, nvil, vimco, wake-sleep or reweighted-wake-sleep.  "
    "\\[default: for glm inla where possible, else nuts; for mlp hmc if it is small, else bbb; for gaussian-mixture "
    "and hidden-markov em; for vae autoencoding; for belief-network nvil]",
    "methods": "Methods with commas between them.  \\[default: map,mala,nuts,sgld; for mlp map,bbb,ensemble]",
    "set_": "Set a field of the method; with compare, METHOD.FIELD=VALUE sets it for one method. May be repeated.",
    "config": "A TOML file of the method's fields, such as a run's settings.toml.",
    "seed": "The seed of all randomness.  \\[default: 0]",
    "out": "The folder to write; for predict, a .csv or .parquet file.  \\[default: a new folder in runs]",
    "held_out": "Share of TABLE's rows held out to score predictions; 0 for none.",
    "formula": "A formula in place of --target: 'y ~ x*z + bs(w, df=5) + (1 + x | school)'. Effects are then in the "
    "units of TABLE.",
    "family": "The target's distribution: normal, student-t (for outliers), lognormal, gamma, weibull, exponential, "
    "beta, poisson, negative-binomial, each of these two also after zero-inflated- or hurdle- (zeros of their own), "
    "bernoulli, categorical or ordered; for the rows of a vae: normal, bernoulli, categorical, continuous-bernoulli "
    "(grey pixels) or poisson. By default it is guessed from the values, and a note "
    "says so.",
    "exclude": "Columns of TABLE that are not inputs, as a,b; may be repeated.",
    "pool": "Columns of TABLE, as a,b, whose levels have effects with a common sd, which is learnt: the effects of "
    "levels with few rows are then close to 0; none for no such column.  \\[default: text of more than 100 levels]",
    "weights": "A column that says how often each row counts.",
    "exposure": "For counts: a column of exposures, such as hours of observation, that multiply each row's rate.",
    "censored": "For a censored target: a column with one of three values in each row: none (or 0); right (or 1), if "
    "the true value is larger than the target; left (or -1), if it is smaller.",
    "event": "For times: a column that says whether the event was observed; if it was not, the true time is later.",
    "until": "For true values between known bounds: a column of upper bounds; the target holds the lower bounds.",
    "sep": "What separates the columns of a .csv, such as ';'.  \\[default: ,]",
    "decimal": "The decimal mark in a .csv, such as ','.  \\[default: .]",
    "thousands": "What separates thousands in the numbers of a .csv, such as ','.  \\[default: seen from the numbers]",
    "na_values": "Words of a .csv that mean a missing value besides NA, NaN, null and the like, such as unknown,n/a.",
    "model": "With --target: glm, a generalised linear model; or mlp, a neural network. Without --target, for fit: "
    "gaussian-mixture, a mixture of normals; hidden-markov, for sequences of rows; vae, a variational autoencoder, or "
    "belief-network, with binary latent variables, both with --latent.",
    "hidden": "Widths of the network's hidden layers, such as 50,50.  \\[default: 50; for a vae 400, or 100 if rows "
    "have fewer than 100 numbers]",
    "prior": "The prior of weights. For glm: normal, or horseshoe if most inputs may have no effect. For mlp: scaled "
    "(by the widths), relevance (a learnt scale for each input; needs long chains) or an sd, such as 0.5.  "
    "\\[default: normal; for mlp scaled]",
    "components": "For gaussian-mixture: numbers of components to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]",
    "states": "For hidden-markov: numbers of states to try, such as 3, 2,3,5 or 2..5.  \\[default: 1..5]",
    "by": "For hidden-markov: the column that names each row's sequence.",
    "time": "For hidden-markov: the column with each row's time, a number or date.",
    "covariance": "For gaussian-mixture: full, tied, diagonal or spherical; for hidden-markov: diagonal or full.  "
    "\\[default: full; for hidden-markov diagonal]",
    "choose": "The criterion that chooses the number of components or states: bic, held-out (log likelihood of "
    "held-out rows) or, for gaussian-mixture, evidence (a bound by variational Bayes).  \\[default: bic]",
    "latent": "For vae: how many latent numbers a row has, such as 20; for several layers such as 100,50, where the "
    "first layer is next to the rows. For belief-network: the numbers of units of its layers, such as 200,200.",
    "array": "The array of an .npz file to read.  \\[default: the only one, or x_train, x or data; for predict x_test]",
    "redraw": "Take grey pixels as probabilities, and draw new binary pixels from them each time a row is used.",
    "missing": "How to treat missing values in TABLE: raise stops with an error; drop leaves out their rows; impute "
    "replaces an input's missing values (by the median or the most frequent value) and marks them in an extra input; "
    "exact, for gaussian-mixture, uses the numbers that a row has and imputes none.  \\[default: raise]",
    "drop_missing": "The same as --missing drop.",
    "shifted": "A table of rows that are unlike those of TABLE: the report shows whether their predictions are less "
    "certain.",
    "verify": "How thoroughly the result of a glm or the given draws are checked before the verdict can be trust: auto "
    "(the checks take a quarter of the run's own work, or two seconds), thorough or none.  \\[default: auto]",
    "resume": "Continue the run in --out, exactly as if it had not stopped.",
    "jobs": "The number of processes that share independent fits; -1 for one per core.",
    "mesh": "For glm and mlp: the number of devices that share the run; auto for all of them.",
    "coordinator": "With --mesh, if the environment does not name it: the address of process 0.",
    "processes": "With --coordinator: the number of processes that share the run.",
    "process": "With --coordinator: the number of this process. Process 0 prints and writes for all.",
    "runs": "The number of simulated data sets, 20 or more.",
    "posterior": "Draw the true parameters from the posterior of TABLE and not from the prior, and fit the simulated "
    "rows together with those of TABLE: is the method right near this posterior?",
    "columns": "The columns of TABLE to pack, as a,b.  \\[default: all; without --target, all columns of numbers]",
    "rows_per_shard": "The approximate number of rows of a shard.  \\[default: as many as take 128 MiB]",
    "level": "The level of the predictive intervals.",
    "calibrate": "A file of rows, with the target, that were not used in the fit. Intervals of a numeric target then "
    "contain it in a share --level of rows like these, under any model (split conformal prediction).",
    "failures": "Run targets on which methods fail, and show each method's answer and its verdict.",
    "quiet": "Print the run's folder and nothing else.",
}  # fmt: skip
REQUIRED: Any = Parameter.empty
FLAGS = ("redraw", "drop_missing", "resume", "posterior", "failures", "quiet")
# Types and defaults of the options; an option that is not named here is optional text.
TYPES: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(("source", "run", "new"), (Path, REQUIRED)),
    **dict.fromkeys(("draws", "program"), (str, REQUIRED)),
    **dict.fromkeys(("table", "config", "out", "shifted", "calibrate"), (Path | None, None)),
    **dict.fromkeys(("set_", "exclude", "pool"), (list[str] | None, None)),
    **dict.fromkeys(("seed", "processes", "process", "rows_per_shard"), (int | None, None)),
    **dict.fromkeys(FLAGS, (bool, False)),
    **{"model": (str, "glm"), "held_out": (float, 0.2), "level": (float, 0.9), "jobs": (int, 1), "runs": (int, 200)},
}
ARGUMENTS = ("table", "source", "draws", "run", "new")  # positional arguments
METAVARS = {
    "draws": "DRAWS",
    "program": "FILE.py:NAME",
    "rows": "FILE.py:NAME",
    "run": "RUN",
    "new": "NEW",
    "set_": "FIELD=VALUE",
    "mesh": "N|auto",
    "coordinator": "HOST:PORT",
}
SPELLINGS = {"program": ("--model",), "set_": ("--set",), "quiet": ("--quiet", "-q")}
ENCODING = "formula family exclude pool weights exposure censored event until missing"  # the options of ``fit_encoder``
FORMAT = "sep decimal thousands na_values"  # the options that say how a .csv is written
EXPLAINED = f"table example target model hidden prior drop_missing {FORMAT} {ENCODING}"


def parameters(names: str, **own: tuple[Any, Any]) -> list[Parameter]:
    """Parameters of a command, as Typer reads them, in the order of ``HELP``.

    ``names`` lists them; ``own`` gives types and defaults that replace those of ``TYPES``.
    """
    out = []
    for name in HELP:
        if name in names.split():
            kind, default = own.get(name) or TYPES.get(name, (str | None, None))
            spellings = SPELLINGS.get(name, (f"--{name.replace('_', '-')}",))
            about: Any = {"help": HELP[name], "metavar": METAVARS.get(name)}
            option: Any = Argument(**about) if name in ARGUMENTS else Option(*spellings, **about)
            out.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default))
    return out
