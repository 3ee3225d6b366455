"""The models a fit can be of, by name, and which options are whose."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tractable.tools.errors import CheckpointError, SettingsError

DEFAULT = "glm"
MIXTURE = "gaussian-mixture"
VAE, BELIEF = "vae", "belief-network"
LADDERS = (VAE, BELIEF)
OWN = {  # options of some models alone
    "components": (MIXTURE,),
    "covariance": (MIXTURE,),
    "choose": (MIXTURE,),
    "latent": LADDERS,
    "array": LADDERS,
    "redraw": LADDERS,
}
NOT_OF_MIXTURES = {
    "--resume": "fits of mixtures are not saved as they go; fit anew, into another --out.",
    "--target": "it explains no column, it describes all columns of numbers; leave --target out.",
    "--example": "it is of a table of your own.",
    "--family": "its components are normal.",
    "--hidden": "it has no hidden layers.",
    "--prior": "it has no network.",
    "--shifted": "it makes no predictions that could be less sure; tractable predict gives rows their log density.",
}
NOT_OF_LADDERS = {
    "--target": "it explains no column, it finds what is behind whole rows; leave --target out.",
    "--example": "it is of a file of your own.",
    "--prior": "its weights have none; they are climbed to a maximum.",
    "--shifted": "it predicts no target; tractable predict gives rows a bound on their log density.",
}
NOT_OF_BELIEF = {"--hidden": "it has no deterministic layers; --latent lists its layers of hidden units."}


def check_options(model: str, given: Mapping[str, Any]) -> None:
    """A sentence about the first option that was given and is not of the model."""
    refused = NOT_OF_MIXTURES if model == MIXTURE else NOT_OF_LADDERS if model in LADDERS else {}
    refused = refused | (NOT_OF_BELIEF if model == BELIEF else {})
    for option, why in refused.items():
        if given.get(option.removeprefix("--")):
            raise SettingsError(f"{option} is not for --model {model}: {why}")
    for option, models in OWN.items():
        if given.get(option) not in (None, False) and model not in models:
            raise SettingsError(f"--{option} is for --model {' and '.join(models)}; got --model {model}.")


def model_gone_on_with(folder: Path | None, saved: Mapping[str, Any], model: str) -> str:
    """The model of a saved run that is to be gone on with, where one was asked for or not."""
    if "method" not in saved:
        raise CheckpointError(f"{folder} is a comparison, which cannot be gone on with; compare again.")
    kept = saved["problem"].get("model", DEFAULT)
    if kept == MIXTURE:
        raise CheckpointError(f"{folder} is a {MIXTURE}: {NOT_OF_MIXTURES['--resume']}")
    if {kept, model} & set(LADDERS) and model not in (kept, DEFAULT):
        raise CheckpointError(f"{folder} is of --model {kept}; got --model {model}. Choose another --out.")
    return kept if kept in LADDERS else model
