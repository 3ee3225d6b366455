"""Runs and posteriors on disk: settings (TOML), draws (zarr), summary, checkpoints; no pickles."""

import json
import pathlib
import shutil
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import tomli_w

from tractable.core import Data, Model, whole
from tractable.methods.amortised import Amortised
from tractable.methods.drawing import Drawing
from tractable.methods.method import Fitted, Method, Program, Standing
from tractable.results.network_files import digest, network_fingerprint, save_network
from tractable.tools import checkpoint as files
from tractable.tools.errors import CheckpointError, TractableWarning

VERSION = "0.1.0"
MEMORY_SHARE = 0.5  # of the memory available that draws may take


class Saver:
    """Writes a run to a folder as it goes: draws to zarr, and where it stands to a checkpoint."""

    def __init__(
        self, folder: pathlib.Path, model: Model, data: Data | None, method: Drawing, seed: int, *, resumable: bool
    ):
        self.folder, self.model, self.method, self.resumable = folder, model, method, resumable
        self.store: Any = None
        self.standing: Standing | None = None
        self.manifest = identity(model, data, method, seed)
        saved = opened(folder, self.manifest)
        if saved is None:
            if (folder / "draws.zarr").exists():
                self._clear()
            return
        if not resumable:
            raise CheckpointError(
                f"{folder} holds the checkpoint of a run; pass it as checkpoint=, or choose another folder."
            )
        _, arrays, manifest = saved
        self.standing = self._restored(arrays, manifest, data)
        self.store = store_of(folder)
        self.store.truncate(manifest["draws"])

    def _clear(self) -> None:
        """Draws that no checkpoint vouches for: a run killed before its first save."""
        shutil.rmtree(self.folder / "draws.zarr")

    def save(self, draws: np.ndarray, info: dict[str, np.ndarray], standing: Standing) -> None:
        """One segment."""
        arrays = {"position": draws} | {f"info.{name}": values for name, values in info.items()}
        if self.store is None:
            fields = {name: (a.shape[2:], a.dtype.name) for name, a in arrays.items()}
            chunk = max(draws.shape[1], 1)
            self.store = new_store(self.folder / "draws.zarr", fields, chains=len(draws), chunk=chunk)
        self.store.append(arrays)
        if self.resumable:
            self._checkpoint(standing, self.store.count)

    def _checkpoint(self, standing: Standing, draws: int) -> None:
        leaves = jax.tree.leaves(standing.states)
        arrays = {"keys": np.asarray(jax.random.key_data(standing.keys))}
        arrays |= {f"states.{i:03d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        arrays |= {f"tuned.{name}": np.asarray(value) for name, value in standing.tuned.items()}
        found = {k: v for k, v in standing.found.items() if isinstance(v, int | float | str)}
        manifest = {
            "identity": self.manifest, "draws": draws, "thin": standing.thin, "block": standing.block,
            "found": found,
        }  # fmt: skip
        files.save(self.folder / "checkpoint", arrays, manifest, step=standing.groups)

    def _restored(self, arrays: dict[str, np.ndarray], manifest: dict, data: Data | None) -> Standing:
        keys = jax.random.wrap_key_data(jnp.asarray(arrays["keys"]))
        tuned = {
            name.removeprefix("tuned."): jnp.asarray(value)
            for name, value in arrays.items()
            if name.startswith("tuned.")
        }
        program = Program(self.model, self.method)
        position = jax.ShapeDtypeStruct((len(keys), self.model.space.size), jnp.result_type(float))
        rows = None if data is None or self.method.minibatch else jax.eval_shape(data.arrays)
        like = jax.eval_shape(lambda t, r, k, p: jax.vmap(program(r, t).init)(k, p), tuned, rows, keys, position)
        states = jax.tree.unflatten(
            jax.tree.structure(like), [jnp.asarray(arrays[n]) for n in sorted(arrays) if n.startswith("states.")]
        )
        groups = manifest["draws"] * manifest["thin"] // max(manifest["thin"], manifest["block"])
        return Standing(groups, keys, states, tuned, manifest["thin"], manifest["block"], None, manifest["found"])

    def finish(self, posterior: Any) -> None:
        """Hand the draws on disk to the posterior and write its summary beside them."""
        if self.store is None:
            return
        posterior.unconstrained, posterior.info = read_draws(self.store)
        posterior.trim(self.method.draws)
        describe(posterior, self.folder)


class ClimbSaver:
    """Keeps where a climb stands in a folder, and at last what it came to."""

    def __init__(self, folder: pathlib.Path, model: Model, data: Data | None, method: Method, seed: int):
        self.folder = folder
        self.manifest = identity(model, data, method, seed)
        saved = opened(folder, self.manifest)
        if saved is None:
            self.save({}, {}, 0)  # whose folder this is, however soon the run ends
        self.standing = (saved[1], saved[2]["numbers"]) if saved is not None and saved[2]["numbers"] else None

    def save(self, arrays: dict[str, np.ndarray], numbers: dict[str, str], step: int) -> None:
        """Where it stands."""
        files.save(self.folder / "checkpoint", arrays, {"identity": self.manifest, "numbers": numbers}, step=step)

    def finish(self, posterior: Any) -> None:
        """What it came to and its summary beside the checkpoint."""
        if posterior.phi is not None:
            shutil.rmtree(self.folder / "draws.zarr", ignore_errors=True)
            _save_draws(posterior, self.folder)
        elif posterior.fitted is not None:
            _save_fitted(posterior.fitted, self.folder)
            describe(posterior, self.folder)


def opened(folder: pathlib.Path, manifest: dict[str, Any]) -> tuple[int, dict[str, np.ndarray], dict] | None:
    """The newest checkpoint of a run's folder, made if missing; another run's is an error."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = files.load(folder / "checkpoint")
    if saved is None:
        if (folder / "posterior.json").exists():
            raise CheckpointError(f"{folder} holds the result of another run; choose another folder.")
        return None
    different = files.differences(saved[2]["identity"], manifest)
    if different:
        raise CheckpointError(
            f"{folder} holds another run, which cannot be gone on with: "
            + "; ".join(different)
            + ". Choose another folder, or ask for what it was."
        )
    return saved


def new_store(*args: Any, **kwargs: Any) -> Any:
    """``DrawStore.create``; zarr is imported by those who write or read draws, not by everyone."""
    from tractable.tools.store import DrawStore

    return DrawStore.create(*args, **kwargs)


def store_of(folder: pathlib.Path) -> Any:
    """The draws of a run's folder."""
    from tractable.tools.store import DrawStore

    return DrawStore.open(folder / "draws.zarr")


def read_draws(store: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Positions and traces of a store, as many as memory allows: evenly spaced where that is not all of them."""
    needed = store.chains * store.count * int(np.prod(store.fields["position"][0])) * 4
    stride = int(-(-needed // (MEMORY_SHARE * psutil.virtual_memory().available)))
    if stride > 1:
        warnings.warn(
            f"{store.path} holds {needed / 2**30:.1f} GiB of draws, more than memory allows: "
            f"every {stride}th is used here.",
            TractableWarning,
            stacklevel=3,
        )

    def read(name: str) -> np.ndarray:
        if stride <= 1:
            return store.read(name)
        starts = range(0, store.count, store.chunk)
        return np.concatenate(
            [store.read(name, i, min(i + store.chunk, store.count))[:, -i % stride :: stride] for i in starts], 1
        )

    return read("position"), {n.removeprefix("info."): read(n) for n in store.fields if n.startswith("info.")}


def identity(model: Model, data: Data | None, method: Method, seed: int) -> dict[str, Any]:
    """What a run is: two runs with the same identity are the same run."""
    return {
        "tractable": VERSION,
        "jax": jax.__version__,
        "partitionable keys": bool(getattr(jax.config, "jax_threefry_partitionable", True)),
        "dtype": jnp.result_type(float).name,
        "seed": seed,
        "data": "none" if data is None else data.fingerprint,
        "model": model_fingerprint(model, data),
        "method": method.settings(),
    } | ({"inference network": network_fingerprint(method.needed(model))} if isinstance(method, Amortised) else {})


def model_fingerprint(model: Model, data: Data | None) -> str:
    """SHA-256 of the log posterior as JAX sees it, constants included."""
    batch = None
    if data is not None:
        batch = whole(jax.tree.map(lambda a: jnp.zeros((2, *a.shape[1:]), jnp.asarray(a[:1]).dtype), data.rows))
    return digest(jax.make_jaxpr(model.traced)(jnp.zeros(model.space.size), batch))


def describe(posterior: Any, folder: pathlib.Path) -> None:
    """Settings, summary and verdict beside the draws."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = _without_null(posterior.settings)
    files.write_atomically(folder / "settings.toml", tomli_w.dumps(plain).encode())
    files.write_atomically(folder / "summary.csv", posterior.summary().to_csv().encode())
    report, predicted = posterior.report(), posterior.predicted_bias
    about = {
        "tractable": VERSION,
        "names": posterior.names,
        "title": report.title,
        "verdict": report.verdict,
        "checks": [c._asdict() | {"value": float(c.value)} for c in report.checks],
        "seconds": posterior.seconds,
        "interrupted": posterior.interrupted,
        "found": {k: v for k, v in posterior.found.items() if isinstance(v, int | float | str)},
        "thin": posterior.thin,
        "bias": None if predicted is None else {"inflation": predicted.inflation.tolist(), "worst": predicted.worst},
        "model": model_fingerprint(posterior.model, posterior.data),
    }
    files.write_atomically(folder / "posterior.json", json.dumps(about, indent=1).encode())


def _without_null(settings: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null."""
    return {k: "none" if v is None else _without_null(v) if isinstance(v, dict) else v for k, v in settings.items()}


def _save_fitted(fitted: Fitted, folder: pathlib.Path) -> None:
    arrays = {f"phi.{name}": np.asarray(value) for name, value in fitted.phi.items()}
    arrays |= {f"trace.{name}": np.asarray(value) for name, value in fitted.trace.items()}
    if fitted.log_weights is not None:
        arrays["log_weights"] = fitted.log_weights
    files.save(folder / "fitted", arrays, {"family": fitted.family}, step=0)


def load_fitted(folder: pathlib.Path) -> Fitted | None:
    if not (folder / "fitted").exists():
        return None
    saved = files.load(folder / "fitted")
    if saved is None:
        raise CheckpointError(f"{folder / 'fitted'} holds nothing; fit anew.")
    _, arrays, manifest = saved

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}

    return Fitted(manifest["family"], under("phi."), arrays.get("log_weights"), under("trace."))


def save(posterior: Any, path: str | pathlib.Path) -> None:
    """Write a posterior to a folder; no pickles."""
    folder = pathlib.Path(path)
    if (folder / "draws.zarr").exists() or (folder / "fitted").exists():
        raise CheckpointError(f"{folder} already holds draws; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if posterior.fitted is not None:  # its draws are made again from φ
        _save_fitted(posterior.fitted, folder)
        describe(posterior, folder)
        return
    _save_draws(posterior, folder)


def _save_draws(posterior: Any, folder: pathlib.Path) -> None:
    """Draws or a point, with φ and a summary."""
    positions = posterior.unconstrained if posterior.point is None else posterior.point[None, None]
    if positions is None:
        raise CheckpointError("This run kept moments, not draws: there is nothing to save but posterior.summary().")
    arrays = {"position": np.asarray(positions)}
    arrays |= {f"info.{name}": np.asarray(v) for name, v in posterior.info.items() if not posterior.is_point}
    if posterior.is_point and "covariance" in posterior.found:
        arrays["covariance"] = np.asarray(posterior.found["covariance"])[None, None]
    fields = {name: (a.shape[2:], a.dtype.name) for name, a in arrays.items()}
    store = new_store(
        folder / "draws.zarr", fields, chains=len(arrays["position"]), chunk=max(1, arrays["position"].shape[1])
    )
    store.append(arrays)
    if posterior.phi is not None:
        save_network(posterior.model, posterior.phi, folder)
    describe(posterior, folder)
