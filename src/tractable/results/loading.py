"""Posteriors read back from the folders they were saved to."""

import json
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
from tractable.results.folder import model_fingerprint, read
from tractable.results.posterior import Posterior
from tractable.tools.errors import CheckpointError
from tractable.tools.shared import made_again

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
    if not (folder / "posterior.json").exists():
        raise CheckpointError(
            f"{folder} holds no posterior: expected posterior.json, settings.toml and draws.zarr in it."
        )
    data = None if data is None else as_data(data)
    about = json.loads((folder / "posterior.json").read_text())
    if model is None:
        if about.get("made") is None:
            raise CheckpointError(f"{folder} is of a model of one's own: give it, load(path, model).")
        model = cast(Model, made_again(about["made"]))
    if data is not None and model_fingerprint(model, data) != about["model"]:
        raise CheckpointError(f"{folder} is of another model: its log density differs from that of the model given.")
    if model.names != about["names"]:
        raise CheckpointError(f"{folder} has parameters {about['names'][:6]}; the model given has {model.names[:6]}.")
    settings = tomllib.loads((folder / "settings.toml").read_text())
    seed = settings.pop("seed", None)
    method = from_settings(settings) if method is None else method
    count = about.get("count", getattr(method, "draws", 1))
    belief = read(folder, model, method.weigh, about["thin"], seed, count, method.point)
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
