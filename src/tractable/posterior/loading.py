"""Loads posteriors from the folders in which they were saved."""

import pathlib
import tomllib
import warnings
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.bits import in_double
from tractable.core.check import Check
from tractable.core.errors import CheckpointError
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.sealed import read_sealed
from tractable.core.settings import check_seed, is_whole
from tractable.core.shared import made_again
from tractable.core.words import tell
from tractable.diagnostics.learnt import Predicted
from tractable.diagnostics.report import ORDER, Report
from tractable.engine import programs
from tractable.engine.identity import density_trace, kinds_from_json, kinds_of
from tractable.engine.method import Method
from tractable.methods import from_settings
from tractable.posterior.folder import RESULT, read
from tractable.posterior.posterior import Posterior
from tractable.posterior.standardised import Standardised

T = TypeVar("T")


def load(
    path: str | pathlib.Path, model: Model | None = None, data: Data | PyTree = None, *, method: Method | None = None
) -> Posterior:
    """Loads a saved posterior.

    Functions are not written to disk, so a model of your own must be given again. If its log density differs from
    the saved one, that is an error, whether or not the data are given.

    Args:
        path: a folder written by ``posterior.save``, or by ``infer`` with ``checkpoint=`` or ``draws=``.
        model: the posterior's model; not needed for a model of ``tractable.models`` made from numbers and strings.
        data: the posterior's data, for checks that need them.
        method: the method, if one of its fields is a function (a schedule, an optimiser).

    Raises:
        CheckpointError: the folder holds no posterior, is damaged, or is of another model.
    """
    folder = pathlib.Path(path)
    if not (folder / RESULT).exists():
        raise CheckpointError(
            f"{folder} holds no posterior: expected posterior.json, settings.toml and draws.zarr in it."
        )
    data = None if data is None else as_data(data)
    entries = _entries(folder)
    if model is None:
        if entries.made is None:
            raise CheckpointError(f"{folder} is of a model of your own, which is not saved: use load(path, model).")
        model = cast(Model, made_again(entries.made))
    if model.names != entries.names:
        raise CheckpointError(f"{folder} is of another model: {_other_names(entries.names, model.names)}.")
    double = bool(entries.found.get("double"))
    model = model.double_copy if double else model
    with in_double(double):
        _check_model(folder, entries, model, data)
        method = from_settings(entries.settings) if method is None else method
        count = getattr(method, "draws", 1) if entries.count is None else entries.count
        belief = read(folder, model, method.weigh, entries.thin, entries.seed, count, method.point, entries.drawn)
        found = dict(entries.found)
        for name in ("covariance", "information"):
            matrix = getattr(belief, name, None)
            found |= {} if matrix is None else {name: matrix}
        kind = Standardised if entries.units else Posterior
        run = entries.seed, belief, found, entries.seconds, entries.interrupted
        posterior = kind(model, data, method, *run, judged=entries.report)
        if entries.bias is not None:
            posterior.predicted_bias = entries.bias
        return posterior


def _other_names(saved: list[str], given: list[str]) -> str:
    """How two lists of parameters differ, with a few of their names."""
    if set(saved) == set(given):
        return f"its parameters have the order {saved[:6]}, those of the model given have the order {given[:6]}"
    only_saved, only_given = (
        [name for name in names if name not in {*others}][:6] for names, others in ((saved, given), (given, saved))
    )
    parts = [f"the model given has no parameters {only_saved}"] * bool(only_saved)
    parts += [f"the folder has no parameters {only_given}"] * bool(only_given)
    return ", and ".join(parts)


def _check_model(folder: pathlib.Path, entries: "Entries", model: Model, data: Data | None) -> None:
    """Raises a CheckpointError if the model's log density differs from that of the saved posterior.

    JAX traces the log density, which means that it makes a program of it. It does so as for the folder: on rows of the
    same shapes and dtypes, and in the same precision. With another version of JAX, or if the model holds constants in
    another precision, traces of equal models may differ too. A difference is then only a warning.
    """
    traced, here = entries.traced, (jnp.result_type(float).name, jax.__version__)
    if not entries.model.startswith(f"{programs.VERSION}:"):
        return  # a fingerprint of an earlier version, which cannot be compared
    if data is None and (traced is None or traced.rows == {}):
        return tell(f"{folder} does not describe its rows. Give data too, to compare the model given with its model.")
    rows = kinds_of(data) if data is not None else kinds_from_json(traced and traced.rows)
    there = traced[1:] if traced else here
    with jax.enable_x64(there[0] == "float64"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of constants of higher precision
        is_equal = density_trace(model, rows).fingerprint == entries.model
    if not is_equal and there == here:
        raise CheckpointError(f"{folder} is of another model: its log density differs from that of the model given.")
    if not is_equal:
        tell(
            f"The model given may differ from the model in {folder}, which was saved in {there[0]} by JAX {there[1]}; "
            f"this is {here[0]} and JAX {here[1]}. To find out, load it in {there[0]} with JAX {there[1]}."
        )


class Traced(NamedTuple):
    """How JAX traced the log density of a posterior's model for its fingerprint."""

    rows: Any  # shapes and dtypes of the rows, as ``kinds_to_json`` gives them
    dtype: str  # "float32" or "float64"
    jax: str  # JAX's version


class Entries(NamedTuple):
    """The checked entries of a posterior's folder."""

    report: Report
    names: list[str]  # names of the parameters
    model: str  # fingerprint of the log density
    traced: Traced | None  # None if an earlier version wrote the folder
    made: dict[str, Any] | None  # how to make the model again; None for a user's own model
    settings: dict[str, Any]  # of the method
    seed: int | None
    thin: int  # number of steps per draw
    count: int | None  # draws per chain; None if an earlier version wrote the folder
    drawn: str  # identity of the draws
    found: dict[str, Any]
    seconds: dict[str, float]
    interrupted: bool
    bias: Predicted | None  # the predicted bias of a stochastic-gradient chain
    units: str  # the model's units if they are not the user's, otherwise ""


def _entries(folder: pathlib.Path) -> Entries:
    """Reads and checks every entry.

    An entry of the wrong type raises a CheckpointError, even if all checksums are right.
    """
    about, contents = read_sealed(folder / RESULT)
    if contents is None:
        tell(
            f"{folder} was written by an earlier version of tractable, without checksums: damage, changes by hand or "
            "another model would not be noticed. Load it with its own model, and save it again."
        )
    try:
        text = (folder / "settings.toml").read_bytes() if contents is None else contents["settings.toml"]
        settings = tomllib.loads(text.decode())
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{folder / 'settings.toml'} is damaged ({error}). Restore it from a copy.") from error
    try:
        checks = tuple(Check(**check) for check in about["checks"])
        if not {about["verdict"], *(check.verdict for check in checks)} <= {*ORDER}:
            raise ValueError(f"verdicts are {', '.join(ORDER)}")
        if not all(
            isinstance(check.value, float | int) and isinstance(check.name + check.sentence, str) for check in checks
        ):
            raise ValueError("a check has a name, a number and a sentence")
        report, bias = Report(about["verdict"], checks, _of_type(str, about["title"])), about.get("bias")
        if bias is not None:
            nothing, inflation = np.zeros(0), np.asarray(bias["inflation"], np.float64)
            bias = Predicted(nothing, nothing, inflation, float(bias["worst"]))
        count = about.get("count")
        return Entries(
            report, [_of_type(str, name) for name in _of_type(list, about["names"])], _of_type(str, about["model"]),
            _read_traced(about.get("traced")), about.get("made"), settings,
            None if (seed := settings.pop("seed", None)) is None else check_seed("seed", seed),
            _at_least(1, about["thin"]), None if count is None else _at_least(0, count),
            _of_type(str, about.get("drawn", "")),
            _of_type(dict, about["found"]), {name: float(s) for name, s in about["seconds"].items()},
            _of_type(bool, about["interrupted"]), bias, _of_type(str, about.get("units", "")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{folder / RESULT} is damaged, or was changed by hand ({type(error).__name__}: {error}). Restore the "
            "folder from a copy, or run again."
        ) from error


def _read_traced(entry: object) -> Traced | None:
    """The entry "traced", checked; None if the folder has no such entry."""
    if entry is None:
        return None
    traced = Traced(**_of_type(dict, entry))
    if traced.rows != {}:
        kinds_from_json(traced.rows)
    return traced._replace(dtype=np.dtype(_of_type(str, traced.dtype)).name, jax=_of_type(str, traced.jax))


def _of_type(kind: type[T], value: object) -> T:
    """The value, if it is of this type; otherwise a TypeError."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r:.40}")
    return value


def _at_least(minimum: int, value: object) -> int:
    """The value, if it is a whole number of at least ``minimum``; otherwise a ValueError."""
    if not is_whole(value, minimum):
        raise ValueError(f"expected a whole number ≥ {minimum}, got {value!r:.40}")
    return _of_type(int, value)
