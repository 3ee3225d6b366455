"""Posteriors read back from the folders they were saved to."""

import pathlib
import tomllib
from typing import Any, cast

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.bias import Predicted
from tractable.checks.report import Report
from tractable.core import Data, Model, as_data
from tractable.methods import from_settings
from tractable.methods.method import Method
from tractable.results.folder import RESULT, read
from tractable.results.identity import model_fingerprint
from tractable.results.posterior import Posterior
from tractable.tools import programs
from tractable.tools.checkpoint import read_sealed
from tractable.tools.errors import CheckpointError
from tractable.tools.shared import made_again
from tractable.tools.words import tell

PyTree = Any


def load(
    path: str | pathlib.Path, model: Model | None = None, data: Data | PyTree = None, *, method: Method | None = None
) -> Posterior:
    """A posterior that was saved, with the model it was of.

    Functions are not written to disk, so a model of one's own is given again; another log density is an error.

    Args:
        path: a folder from ``posterior.save``, or of ``infer(..., checkpoint=)`` or ``draws=``.
        model: the model the posterior is of. One of ``tractable.models``, from numbers and words, need not be given.
        data: its data, for the checks that look at them.
        method: the method, where one of its fields is a function (a schedule, an optimiser).
    """
    folder = pathlib.Path(path)
    if not (folder / RESULT).exists():
        raise CheckpointError(
            f"{folder} holds no posterior: expected posterior.json, settings.toml and draws.zarr in it."
        )
    data = None if data is None else as_data(data)
    about, settings = _told(folder)
    if model is None:
        if about.get("made") is None:
            raise CheckpointError(f"{folder} is of a model of one's own: give it, load(path, model).")
        model = cast(Model, made_again(about["made"]))
    comparable = about["model"].startswith(f"{programs.VERSION}:")  # else of an earlier version: not to be compared
    if data is not None and comparable and model_fingerprint(model, data) != about["model"]:
        raise CheckpointError(f"{folder} is of another model: its log density differs from that of the model given.")
    if model.names != about["names"]:
        raise CheckpointError(f"{folder} has parameters {about['names'][:6]}; the model given has {model.names[:6]}.")
    seed = settings.pop("seed", None)
    method = from_settings(settings) if method is None else method
    count = about.get("count", getattr(method, "draws", 1))
    belief = read(folder, model, method.weigh, about["thin"], seed, count, method.point, about.get("drawn", ""))
    found = dict(about["found"])
    for name in ("covariance", "information"):
        known = getattr(belief, name, None)
        found |= {} if known is None else {name: known}
    report = Report(about["verdict"], tuple(Check(**check) for check in about["checks"]), about["title"])
    posterior = Posterior(
        model, data, method, seed, belief, found, about["seconds"], about["interrupted"], judged=report
    )
    if about.get("bias") is not None:
        nothing, bias = np.zeros(0), about["bias"]
        posterior.predicted_bias = Predicted(nothing, nothing, np.asarray(bias["inflation"]), bias["worst"])
    return posterior


def _told(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a folder says of its posterior, and the settings."""
    about, beside = read_sealed(folder / RESULT)
    if beside is None:
        tell(
            f"{folder} was written by an earlier version of tractable, without checksums: damage, changes by hand or "
            "another model would not be noticed. Load it with the model it is of, and save it anew."
        )
    try:
        text = (folder / "settings.toml").read_bytes() if beside is None else beside["settings.toml"]
        return about, tomllib.loads(text.decode())
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'settings.toml'} is damaged ({error}). Restore it from a copy.") from error
