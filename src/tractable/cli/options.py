"""The options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tractable.tools.errors import SettingsError

Table = Annotated[Path | None, typer.Argument(help="A .csv or .parquet file; or give --example.", show_default=False)]
FitTable = Annotated[
    Path | None,
    typer.Argument(
        help="A .csv or .parquet file; or give --example. For vae and belief-network also an .npz of arrays.",
        show_default=False,
    ),
]
Example = Annotated[str | None, typer.Option(help="A built-in example; 'tractable examples' lists them.")]
Target = Annotated[str | None, typer.Option(help="The column of TABLE to explain; the others are inputs.")]
Family = Annotated[str | None, typer.Option(help="normal, bernoulli or categorical; by default the target's type.")]
FitFamily = Annotated[
    str | None,
    typer.Option(
        help="normal, bernoulli or categorical; by default the target's type. Of a vae's rows also "
        "continuous-bernoulli (grey pixels) or poisson (counts); by default told from the numbers.",
        show_default=False,
    ),
]
HeldOut = Annotated[float, typer.Option(help="Share of TABLE's rows kept back to score predictions; 0 for none.")]
Missing = Annotated[
    str | None,
    typer.Option(
        help="What becomes of missing values in TABLE: raise refuses them, drop leaves their rows out, impute fills "
        "inputs in (median, most frequent) and tells the model where; exact, of a mixture, imputes nothing and takes "
        "the numbers there are.  \\[default: raise]",
        show_default=False,
    ),
]
Drop = Annotated[bool, typer.Option("--drop-missing", help="The same as --missing drop.")]
Kind = Annotated[str, typer.Option("--model", help="glm, a generalised linear model, or mlp, a neural network.")]
FitKind = Annotated[
    str,
    typer.Option(
        "--model",
        help="glm, a generalised linear model; mlp, a neural network. Without --target: gaussian-mixture, of TABLE's "
        "numbers; vae, a variational autoencoder, or belief-network, of binary causes, both with --latent.",
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="mle, map, laplace, meanfield, fullrank, lowrank, bbb, ensemble, rejection, metropolis, mala, hmc, "
        "nuts, sgld or sghmc; em of a mixture; autoencoding, importance-weighted, nvil, vimco, wake-sleep or "
        "reweighted-wake-sleep of a vae or belief-network.  \\[default: nuts; of a network bbb, of a mixture em, of a "
        "vae autoencoding, of a belief-network nvil]",
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method; may be repeated.")
]
Components = Annotated[
    str | None,
    typer.Option(
        help="Of a mixture: how many to try, such as 3, 2,3,5 or 2..10.  \\[default: 1..10]", show_default=False
    ),
]
Covariance = Annotated[
    str | None,
    typer.Option(help="Of a mixture: full, tied, diagonal or spherical.  \\[default: full]", show_default=False),
]
Choose = Annotated[
    str | None,
    typer.Option(
        help="Of a mixture: what tells how many components, bic, held-out (log likelihood of the rows kept back) or "
        "evidence (a bound by variational Bayes).  \\[default: bic]",
        show_default=False,
    ),
]
Latent = Annotated[
    str | None,
    typer.Option(
        help="Of a vae: how many numbers are behind a row, such as 20; several layers, such as 100,50, from the rows "
        "on. Of a belief-network: units of its layers, such as 200,200.",
        show_default=False,
    ),
]
ArrayName = Annotated[
    str | None,
    typer.Option(
        "--array", help="Which array of an .npz.  \\[default: the only one, or x_train, x or data]", show_default=False
    ),
]
Redraw = Annotated[
    bool,
    typer.Option("--redraw", help="Grey pixels are probabilities: binary ones are drawn from them at every visit."),
]
Hidden = Annotated[
    str | None,
    typer.Option(help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50]", show_default=False),
]
FitHidden = Annotated[
    str | None,
    typer.Option(
        help="Widths of the network's hidden layers, such as 50,50.  \\[default: 50; of a vae 400, or 100 where rows "
        "have fewer than 100 numbers]",
        show_default=False,
    ),
]
Prior = Annotated[
    str | None,
    typer.Option(
        help="Of the network's weights: scaled (by the widths), relevance (scales are learnt, one for each input; for "
        "long chains) or an sd, such as 0.5.  \\[default: scaled]",
        show_default=False,
    ),
]
Shifted = Annotated[
    Path | None,
    typer.Option(help="Rows from elsewhere, to see whether predictions of them are less sure.", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Of all randomness.  \\[default: 0]", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option(
        help="The run's folder.  \\[default: runs/NAME-METHOD; without --target runs/NAME-MODEL]", show_default=False
    ),
]
Config = Annotated[Path | None, typer.Option(help="Fields in TOML, such as a run's settings.toml.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, exactly as if it had not stopped.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run's folder and nothing else.")]
Folder = Annotated[Path, typer.Argument(help="A folder made by fit or compare.", metavar="RUN")]


def missing_of(missing: str | None, drop: bool) -> str | None:
    """What --missing and --drop-missing say together."""
    if drop and missing not in (None, "drop"):
        raise SettingsError(f"--drop-missing and --missing {missing} contradict each other; give one of them.")
    return "drop" if drop else missing
