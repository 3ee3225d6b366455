"""The command ``judge``, which judges draws in files of other programs."""

import glob
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tractable.cli import folders
from tractable.cli.fit import SHOWING, describe_time
from tractable.cli.task import Arguments
from tractable.cli.terminal import end, show_result, verdict
from tractable.core.clock import Stopwatch
from tractable.core.errors import DataError, SettingsError
from tractable.core.words import listing
from tractable.pages.page import write_page
from tractable.verdict import judge as judge_draws


def judge(given: Arguments) -> None:
    """Read draws and a model, write the page, and exit with the verdict's code."""
    watch = Stopwatch(whole_process=True)
    seconds = watch.phases({}, "importing")
    draws = read_draws(given["draws"])
    model = _object(given["program"], "--model")
    data = None if given["rows"] is None else _object(given["rows"], "--rows")
    seconds = watch.phases(seconds, "reading")
    checked = None if given["verify"] == "none" else given["verify"] or "auto"
    posterior = judge_draws(draws, model, data, seed=given["seed"] or 0, verify=checked)
    report, name = posterior.report(), Path(given["draws"]).stem.strip("*_-") or "draws"
    folder = given["out"] or folders.fresh(f"judge-{name}")
    page = write_page(folder, posterior, title=f"Draws of {given['draws']}")
    seconds = watch.phases(seconds | posterior.seconds, SHOWING)
    parts = [verdict(*report)]
    show_result(given["quiet"], folder, parts, f"{describe_time(seconds)}. Report: {page}")
    end(False, report.verdict)


def read_draws(pattern: str) -> Any:
    """The draws in a file, or in all of Stan's files that match a pattern, as ``tractable.judge`` takes them."""
    paths = [Path(name) for name in sorted(glob.glob(pattern))]
    if not paths:
        raise DataError(f"{pattern} does not exist. Give the name of an .nc, .zarr, .npz or .csv file of draws.")
    kind = paths[0].suffix
    if kind == ".csv":
        return stan_draws(paths)
    if len(paths) > 1:
        raise DataError(f"{pattern} matches {len(paths)} files: several files must be Stan's .csv, one for each chain.")
    if kind == ".npz":
        with np.load(paths[0]) as arrays:
            return dict(arrays)
    if kind not in (".nc", ".zarr"):
        raise DataError(f"{paths[0]} is no file of draws: expected .nc, .zarr, .npz or .csv.")
    import xarray

    try:
        return xarray.open_datatree(paths[0], engine="zarr" if kind == ".zarr" else None)
    except ValueError as error:  # xarray finds no package that reads netCDF
        raise DataError(f"{paths[0]} cannot be read: pip install h5netcdf. ({str(error).splitlines()[0]})") from error


def stan_draws(paths: list[Path]) -> dict[str, Any]:
    """The draws in Stan's .csv files, a chain in each; columns such as ``beta.2.1`` become one array."""
    frames = [pd.read_csv(path, comment="#") for path in paths]
    for path, frame in zip(paths, frames, strict=True):
        if list(frame) != list(frames[0]) or len(frame) != len(frames[0]):
            raise DataError(f"{path} has other columns or another number of draws than {paths[0]}.")
    chains = np.stack([frame.to_numpy(np.float64) for frame in frames])  # (chain, draw, column)
    places: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for number, column in enumerate(frames[0]):
        name, *indices = re.split(r"[.:]", str(column))
        places.setdefault(name, []).append((tuple(int(index) - 1 for index in indices), number))
    arrays = {}
    for name, entries in places.items():
        array = np.empty((*chains.shape[:2], *np.max([index for index, _ in entries], 0, initial=-1).astype(int) + 1))
        for index, number in entries:
            array[(..., *index)] = chains[:, :, number]
        arrays[name] = array
    return arrays


def _object(text: str, option: str) -> Any:
    """The object FILE.py:NAME."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file():
        raise SettingsError(f"{option} expects FILE.py:NAME with a file that exists; got {text}.")
    names = runpy.run_path(path)
    if name not in names:
        public = [each for each in names if not each.startswith("_")]
        raise SettingsError(f"{path} has no {name!r}. It has {listing(public)}.")
    return names[name]
