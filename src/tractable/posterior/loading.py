"""Loads posteriors from folders."""

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
from tractable.core.settings import is_whole, seeded
from tractable.core.shared import made_again
from tractable.core.words import tell
from tractable.diagnostics.learnt import Predicted
from tractable.diagnostics.report import ORDER, Report
from tractable.engine import programs
from tractable.engine.identity import density_trace, kinds_of, loaded_kinds
from tractable.engine.method import Method
from tractable.methods import from_settings
from tractable.posterior.folder import RESULT, read
from tractable.posterior.posterior import Posterior
from tractable.posterior.standardised import Standardised

T = TypeVar("T")


def load(
    path: str | pathlib.Path, model: Model | None = None, data: Data | PyTree = None, *, method: Method | None = None
) -> Posterior:
    """A saved posterior, with its model.

    Functions are not written to disk, so your own model must be given again; a different log density is an error, with
    its data or without.

    Args:
        path: a folder from ``posterior.save``, or from ``infer(..., checkpoint=)`` or ``draws=``.
        model: the posterior's model; not needed for one of ``tractable.models`` made from numbers and strings.
        data: its data, for checks that need them.
        method: the method, if one of its fields is a function (a schedule, an optimiser).
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
            raise CheckpointError(f"{folder} is of a model of one's own: give it, load(path, model).")
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
            known = getattr(belief, name, None)
            found |= {} if known is None else {name: known}
        kind = Standardised if entries.units else Posterior
        posterior = kind(
            model,
            data,
            method,
            entries.seed,
            belief,
            found,
            entries.seconds,
            entries.interrupted,
            judged=entries.report,
        )
        if entries.bias is not None:
            posterior.predicted_bias = entries.bias
        return posterior


def _other_names(saved: list[str], given: list[str]) -> str:
    """How two lists of parameters differ, in a few of their names."""
    if set(saved) == set(given):
        return f"its parameters come in the order {saved[:6]}, those of the model given in {given[:6]}"
    missing, new = (
        [name for name in one if name not in {*other}][:6] for one, other in ((saved, given), (given, saved))
    )
    said = [f"the model given has no parameter {missing}"] * bool(missing) + [f"the folder has none {new}"] * bool(new)
    return ", and ".join(said)


def _check_model(folder: pathlib.Path, entries: "Entries", model: Model, data: Data | None) -> None:
    """A CheckpointError for another log density than that which the posterior is of.

    It is traced again as it was then: on rows of the same kinds, and in as many bits. Where JAX is of another version,
    or the model holds constants in other bits, equal models may differ too, and a difference is only told.
    """
    then, here = entries.traced, (jnp.result_type(float).name, jax.__version__)
    if not entries.model.startswith(f"{programs.VERSION}:"):
        return  # an earlier version's, which cannot be compared
    if data is None and (then is None or then.rows == {}):
        return tell(f"{folder} does not say what its rows are like: models are compared where data are given.")
    rows, there = kinds_of(data) if data is not None else loaded_kinds(then and then.rows), then[1:] if then else here
    with jax.enable_x64(there[0] == "float64"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constants that are held in more bits
        same = density_trace(model, rows).fingerprint == entries.model
    if not same and there == here:
        raise CheckpointError(f"{folder} is of another model: its log density differs from that of the model given.")
    if not same:
        tell(
            f"The log density of {folder} differs from that of the model given, or is traced otherwise: it was saved "
            f"in {there[0]} by JAX {there[1]}, and this is {here[0]} and {here[1]}. Load it as it was saved to be sure."
        )


class Traced(NamedTuple):
    """How a posterior's model was traced for its fingerprint."""

    rows: Any  # ``saved_kinds``
    dtype: str
    jax: str


class Entries(NamedTuple):
    """The entries of a posterior's folder, checked."""

    report: Report
    names: list[str]
    model: str  # a fingerprint
    traced: Traced | None  # None if an earlier version wrote it
    made: dict[str, Any] | None
    settings: dict[str, Any]
    seed: int | None
    thin: int
    count: int | None  # draws per chain; None if an earlier version wrote it
    drawn: str
    found: dict[str, Any]
    seconds: dict[str, float]
    interrupted: bool
    bias: Predicted | None
    units: str  # of the model, where they are not the user's


def _entries(folder: pathlib.Path) -> Entries:
    """Reads and checks every entry: one of the wrong kind is a CheckpointError, even if the seal holds."""
    about, contents = read_sealed(folder / RESULT)
    if contents is None:
        tell(
            f"{folder} was written by an earlier version of tractable, without checksums: damage, changes by hand or "
            "another model would not be noticed. Load it with the model it is of, and save it anew."
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
        report, bias = Report(about["verdict"], checks, _of(str, about["title"])), about.get("bias")
        if bias is not None:
            nothing, inflation = np.zeros(0), np.asarray(bias["inflation"], np.float64)
            bias = Predicted(nothing, nothing, inflation, float(bias["worst"]))
        count = about.get("count")
        return Entries(
            report, [_of(str, name) for name in _of(list, about["names"])], _of(str, about["model"]),
            _traced(about.get("traced")), about.get("made"), settings,
            None if (seed := settings.pop("seed", None)) is None else seeded("seed", seed),
            _least(1, about["thin"]), None if count is None else _least(0, count), _of(str, about.get("drawn", "")),
            _of(dict, about["found"]), {name: float(s) for name, s in about["seconds"].items()},
            _of(bool, about["interrupted"]), bias, _of(str, about.get("units", "")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{folder / RESULT} is damaged, or was changed by hand ({type(error).__name__}: {error}). Restore the "
            "folder from a copy, or run again."
        ) from error


def _traced(saved: object) -> Traced | None:
    if saved is None:
        return None
    found = Traced(**_of(dict, saved))
    if found.rows != {}:
        loaded_kinds(found.rows)
    return found._replace(dtype=np.dtype(_of(str, found.dtype)).name, jax=_of(str, found.jax))


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r:.40}")
    return value


def _least(least: int, value: object) -> int:
    if not is_whole(value, least):
        raise ValueError(f"expected a whole number ≥ {least}, got {value!r:.40}")
    return _of(int, value)
