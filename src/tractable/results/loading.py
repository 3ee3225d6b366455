"""Posteriors read back from the folders they were saved to."""

import json
import pathlib
import tomllib
from typing import Any

import numpy as np

from tractable import methods as method_names
from tractable.beliefs import approximations
from tractable.beliefs.check import Check
from tractable.checks.bias import Predicted
from tractable.checks.report import Report
from tractable.core import Model, as_data
from tractable.methods.drawing import Drawing
from tractable.methods.method import Method
from tractable.methods.variational import drawn, draws_key
from tractable.results.folder import load_fitted, model_fingerprint, read_draws, store_of
from tractable.results.network_files import load_network
from tractable.results.posterior import Posterior
from tractable.tools.errors import CheckpointError


def load(path: str | pathlib.Path, model: Model, data: Any = None, *, method: Method | None = None) -> Posterior:
    """A posterior that was saved, with the model it was of.

    Functions are not written to disk, so the model is given again; a model whose log density differs is an error.

    Args:
        path: a folder from ``posterior.save``, or of ``infer(..., checkpoint=)`` or ``draws=``.
        model: the model the posterior is of.
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
    if data is not None and model_fingerprint(model, data) != about["model"]:
        raise CheckpointError(f"{folder} is of another model: its log density differs from that of the model given.")
    if model.names != about["names"]:
        raise CheckpointError(f"{folder} has parameters {about['names'][:6]}; the model given has {model.names[:6]}.")
    settings = tomllib.loads((folder / "settings.toml").read_text())
    seed = settings.pop("seed", None)
    method = method_names.from_settings(settings) if method is None else method
    found = dict(about["found"]) | {"thin": about["thin"]}
    fitted = load_fitted(folder)
    if fitted is None:
        store = store_of(folder)
        positions, info = read_draws(store)
        if "covariance" in store.fields:
            found["covariance"] = store.read("covariance")[0, 0]
    else:
        q, info = approximations.of(fitted.family, fitted.phi), {}
        positions = np.asarray(drawn(q, fitted.phi, draws_key(seed), getattr(method, "draws", 1)))[None]
    is_point = fitted is None and method.point
    checks = tuple(Check(**check) for check in about["checks"])
    posterior = Posterior(
        model, data, method, seed,
        None if is_point else positions,
        positions[0, 0] if is_point else None,
        info,
        method.weigh(info) if isinstance(method, Drawing) else None,
        found, about["seconds"], about["interrupted"],
        judged=Report(about["verdict"], checks, about["title"]), fitted=fitted, phi=load_network(model, folder),
    )  # fmt: skip
    if about.get("bias") is not None:
        nothing = np.zeros(0)
        posterior.predicted_bias = Predicted(
            nothing, nothing, np.asarray(about["bias"]["inflation"]), about["bias"]["worst"]
        )
    return posterior
