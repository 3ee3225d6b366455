"""Writes and reads the folders of runs and posteriors: settings (TOML), draws (zarr), summary, checkpoints; no pickles.

A "sealed" file is one whose checksum is stored with it or in another sealed file, so that damage is noticed.
"""

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import psutil
import tomli_w

from tractable.core import approximations, sealed, tree
from tractable.core.errors import CheckpointError
from tractable.core.model import Model, PyTree
from tractable.core.words import tell
from tractable.core.writing import disk_errors, write_atomically, write_table
from tractable.diagnostics.belief import KINDS, Belief, Draws, Fitted, draws_key
from tractable.engine import checkpoint as files
from tractable.engine.drawing import POSITION
from tractable.engine.leaves import flatten, nest
from tractable.ladders.ladder import ladder_of
from tractable.posterior.run_identity import __version__, network_fingerprint, shapes_of

if TYPE_CHECKING:
    import pandas as pd

    from tractable.engine.store import DrawStore

RESULT = "posterior.json"  # written last, with the checksums of the other files
NETWORK = "network"  # subfolder with an inference network's weights
MEMORY_SHARE = 0.5  # share of the available memory that draws may use
# Fields of a belief (an approximate posterior) that its file does not hold: draws from a fitted distribution q are
# drawn again, and a network has its own file.
MADE_AGAIN = ("positions", "network")


def refuse_others(folder: pathlib.Path) -> None:
    """Raises a CheckpointError if a folder without a run holds a file that a run would overwrite."""
    for name in ("settings.toml", "summary.csv"):
        if os.path.lexists(folder / name):
            raise CheckpointError(
                f"{folder / name} exists already, and no run in this folder wrote it. Move it, or choose another "
                "folder."
            )


def new_store(folder: pathlib.Path, traces: dict[str, np.ndarray]) -> "DrawStore":
    """Makes a new store in a run's folder for traces (arrays with a value for each draw) like ``traces``."""
    from tractable.engine.store import DrawStore  # imported here, because zarr takes long to import

    fields = {name: (a.shape[2:], a.dtype.name) for name, a in traces.items()}
    chains, draws = next(iter(traces.values())).shape[:2]
    return DrawStore.create(folder / "draws.zarr", fields, chains=chains, chunk=max(draws, 1))


def check_drawn(store: "DrawStore", count: int, known: str) -> None:
    """Raises a CheckpointError unless the identity of the first ``count`` draws is ``known``; "" is not checked.

    The identity is a checksum. Draws may be undamaged and still belong to another run.
    """
    if known and store.identity(count) != known:
        raise CheckpointError(
            f"{store.path} holds other draws than those with which its folder was written. Restore the folder from a "
            "copy, or run again."
        )


def discard_draws(folder: pathlib.Path) -> None:
    """Deletes the draws in a folder, where no checkpoint refers to them.

    Raises:
        CheckpointError: no run of this library wrote them.
    """
    path = folder / "draws.zarr"
    if not os.path.lexists(path):
        return
    try:
        is_store = not path.is_symlink() and bool(store_of(folder))
    except CheckpointError:
        is_store = False
    if not is_store:
        raise CheckpointError(
            f"{path} is in the way, and it is not deleted: no run of tractable wrote it, or it is damaged. Move it, or "
            "choose another folder."
        )
    with disk_errors(path):
        shutil.rmtree(path)


def store_of(folder: pathlib.Path) -> "DrawStore":
    """Opens the store with the draws of a run's folder."""
    from tractable.engine.store import DrawStore

    return DrawStore.open(folder / "draws.zarr")


def read_draws(store: "DrawStore") -> dict[str, np.ndarray]:
    """A store's traces; if they do not fit into memory, evenly spaced draws, and a warning."""
    needed = store.chains * store.count * int(np.prod(store.fields[POSITION][0])) * 4
    stride = int(-(-needed // (MEMORY_SHARE * psutil.virtual_memory().available)))
    if stride <= 1:
        return {name: store.read(name) for name in store.fields}
    tell(
        f"{store.path} holds {needed / 2**30:.1f} GiB of draws, more than fit into memory: only one draw in {stride} "
        "is used."
    )
    starts = range(0, store.count, store.chunk)
    return {
        name: np.concatenate(
            [store.read(name, i, min(i + store.chunk, store.count))[:, -i % stride :: stride] for i in starts], 1
        )
        for name in store.fields
    }


def write(
    folder: pathlib.Path, belief: Belief, model: Model, settings: dict[str, Any], summary: "pd.DataFrame",
    about: dict[str, Any], *, streamed: bool = False,
) -> None:  # fmt: skip
    """Writes a posterior: draws (zarr) or another result (checkpoint), settings (TOML), summary (CSV), rest (JSON).

    The JSON file is written last, with the checksums of the other files. The store of draws has its own checksums.

    Args:
        folder: made if it does not exist.
        belief: the approximate posterior.
        model: the model.
        settings: the method's settings.
        summary: the table of the parameters.
        about: further entries of the JSON file.
        streamed: whether the run has already stored its draws.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    sealed_files = ["settings.toml", "summary.csv"]
    if not isinstance(belief, Draws):
        arrays = {f.name: getattr(belief, f.name) for f in dataclasses.fields(belief) if f.name not in MADE_AGAIN}
        saved = files.save(folder / "belief", flatten(arrays), {"kind": belief.kind}, step=0)
        sealed_files.append(f"belief/{saved.name}/manifest.json")
    elif not streamed:
        discard_draws(folder)
        traces = {POSITION: np.asarray(belief.positions), **{n: np.asarray(a) for n, a in belief.info.items()}}
        new_store(folder, traces).append(traces)
    if belief.network is not None:
        saved = save_network(model, belief.network, folder)
        sealed_files.append(f"{NETWORK}/{saved.name}/manifest.json")
    if isinstance(belief, Draws):
        about = about | {"drawn": store_of(folder).identity(about["count"])}
    write_atomically(folder / "settings.toml", tomli_w.dumps(_without_null(settings)).encode())
    write_table(folder / "summary.csv", summary, index=True)
    sealed.write_sealed(folder / RESULT, about | {"tractable": __version__}, sealed_files)


def read(
    folder: pathlib.Path, model: Model, weigh: Callable, thin: int, seed: int | None, count: int, point: bool,
    drawn: str,
) -> Belief:  # fmt: skip
    """Reads the approximate posterior; raises a CheckpointError if it is damaged, or of too early a version.

    Args:
        folder: the posterior's folder.
        model: the posterior's model.
        weigh: computes the draws' weights from their traces.
        thin: number of steps per stored draw.
        seed: the run's seed, with which the draws from a fitted distribution q are made again.
        count: number of draws per chain to read; the store may hold more, because a run takes its steps in blocks.
        point: whether the method gives a point estimate.
        drawn: the draws' identity, "" if an earlier version wrote them.
    """
    if not (folder / "belief").exists():
        if point or not (folder / "draws.zarr").exists():
            raise CheckpointError(
                f"{folder} was written by an earlier version of tractable, whose fitted distributions and point "
                "estimates cannot be read: run the method again, with the seed in settings.toml."
            )
        store = store_of(folder)
        check_drawn(store, count, drawn)
        if POSITION not in store.fields:
            raise CheckpointError(f"{store.path} holds no draws of parameters. Restore it from a copy, or run again.")
        traces = {name.removeprefix("info."): a[:, :count] for name, a in read_draws(store).items()}
        positions = traces.pop(POSITION)
        return Draws(positions=positions, info=traces, weights=weigh(traces) if traces else None, thin=thin)
    checkpoint = files.load(folder / "belief")
    if checkpoint is None:
        raise CheckpointError(f"{folder / 'belief'} holds nothing. Restore it from a copy, or run again.")
    _, leaves, manifest = checkpoint
    network = load_network(model, folder)
    try:
        kind: Any = KINDS[manifest["kind"]]
        belief = kind(**nest(leaves), network=network)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{folder / 'belief'} holds no result of a method ({error}). Restore it from a copy, or run again."
        ) from error
    if isinstance(belief, Fitted):
        draws = approximations.draws_of(belief.q, belief.phi, draws_key(seed), count)
        belief = dataclasses.replace(belief, positions=np.asarray(draws)[None])
    return belief


def _without_null(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with "none" in place of None, which TOML does not have."""
    return {k: "none" if v is None else _without_null(v) if isinstance(v, dict) else v for k, v in settings.items()}


def save_network(ladder: Model, phi: PyTree, folder: pathlib.Path) -> pathlib.Path:
    """Saves the weights φ of a ladder's inference network in a subfolder, and returns the path.

    A ladder is a network of latent layers. The paths in φ name the arrays.
    """
    arrays = {tree.path_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(phi)[0]}
    return files.save(folder / NETWORK, arrays, network_fingerprint(ladder), step=0)


def load_network(model: Model, folder: pathlib.Path) -> PyTree:
    """The saved φ in the ladder's structure, or None; raises a CheckpointError if φ is of another network."""
    if not (folder / NETWORK).exists():
        return None
    checkpoint = files.load(folder / NETWORK)
    if checkpoint is None:
        raise CheckpointError(f"{folder / NETWORK} holds nothing. Restore it from a copy, or run again.")
    ladder = ladder_of(model)
    if ladder is None:
        raise CheckpointError(
            f"{folder} holds a ladder's inference network; the model given is {type(model).__name__}."
        )
    _, arrays, manifest = checkpoint
    shapes, structure = jax.tree_util.tree_flatten_with_path(shapes_of(ladder)["phi"])
    names = [tree.path_name(path) for path, _ in shapes]
    if set(names) != set(arrays):
        raise CheckpointError(
            f"{folder} holds an inference network of {_few(sorted(arrays))}; that of the ladder given has "
            f"{_few(names)}."
        )
    for name, (_, leaf) in zip(names, shapes, strict=True):
        if arrays[name].shape != leaf.shape:
            raise CheckpointError(
                f"{folder} holds an inference network whose {name} has shape {arrays[name].shape}; that of the ladder "
                f"given has {leaf.shape}. Give the ladder with which it was learnt."
            )
    if manifest != network_fingerprint(ladder):
        raise CheckpointError(
            f"{folder} holds an inference network of the same sizes that computes something else: its activation, "
            "family or precision may differ. Give the ladder with which it was learnt."
        )
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def _few(names: list[str]) -> str:
    """At most four of the names, and the number of the other names."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
