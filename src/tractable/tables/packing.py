"""``tr.pack``, which writes rows in random order into shards (files that hold a part of the rows each)."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import CheckpointError, DataError
from tractable.core.sealed import plain, read_sealed, write_sealed
from tractable.core.settings import check_seed
from tractable.core.shards import KIND, MANIFEST, Rows, manifest_of
from tractable.core.tree import PyTree
from tractable.core.words import spelt
from tractable.core.writing import disk_errors, refuse_links, refuse_links_in, sync, write_atomically
from tractable.engine.locks import LOCK, lock
from tractable.engine.progress import progress_of
from tractable.tables import sources
from tractable.tables.encoder import Encoded, Encoder, encode, fit_encoder
from tractable.tables.files import FORMAT
from tractable.tables.numerals import Form
from tractable.tables.sources import FRAME, Say, Source

SHARD = 1 << 27  # the approximate size of a shard, in bytes
CHUNK = 1 << 25  # the smallest number of bytes that are read at a time
APPENDED = 1 << 14  # chunks are so large (up to 8 CHUNK) that about this many bytes of a chunk go to each shard
LEARNT = 1 << 18  # the largest number of rows, drawn at random, from which an encoder is learnt
WORK, JOURNAL = ".packing", "journal.json"  # the folder of an unfinished pack, and the record in it of what is done


@spelt
def pack(
    source: PyTree,
    out: str | Path,
    *,
    target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
    rows_per_shard: int | None = None,
    progress: bool | Say | None = None,
    **encoding: Any,
) -> Path:
    """Write rows in random order into a folder of shards, which ``tr.Data(folder)`` reads; return the folder.

    Methods that read a file batch by batch take neighbouring rows together. In a file that is sorted, or was written
    day by day, neighbouring rows are similar, so such a batch is not a random sample. Therefore every row is assigned
    to a random shard, and every shard is shuffled (Rao 1961; Sandelius 1962). Each of the N! orders is equally likely,
    and the sizes of shards differ by chance. The source is read once and every row is written twice; this takes about
    500 MB of memory, whatever N is.

    If ``pack`` is killed, call it again: it continues and writes the same bytes. Finished shards stay; if the source
    was not read to its end, it is read again. The manifest, which names every file with its SHA-256, is written last.

    Args:
        source: a path to a .npy, .npz, .csv, .parquet, .arrow, .feather or .zarr file, a pattern such as "x/*.npy", an
            array, or a dict of arrays or paths with N rows each. Compressed arrays of an .npz are held in memory.
        out: the folder; it is made if necessary. Shards are ``out/00000.npy`` …; with several arrays they are
            ``out/name/00000.npy`` ….
        target: the column, or columns, of a table to explain. The table is then encoded as by
            ``encoder.fit_encoder``, which learns from at most 262,144 of its rows, drawn at random; ``Data(out)`` has
            y, inputs and weights. Without a target, the columns of numbers become one array (n, d).
        columns: the columns of a table to pack; by default all columns or, without a target, all columns of numbers.
        seed: the seed of the random order.
        rows_per_shard: the approximate number of rows of a shard; by default as many as take 128 MiB.
        progress: True shows a progress bar, False shows none; or a function of (phase, number done, number in all).
        encoding: other arguments of ``fit_encoder``: missing, family, exclude, weights, exposure, formula and so on;
            and sep, decimal, thousands and na_values, which say how a .csv is written (``files.read_table``).

    Raises:
        DataError: the source cannot be read or encoded (the message says where), or the folder holds other files.
        CheckpointError: the disk is full, the folder cannot be written to, or another process is writing to it.
    """
    out, seed = Path(out), check_seed("pack(seed)", seed)
    if rows_per_shard is not None and rows_per_shard < 1:
        raise DataError(f"pack(rows_per_shard=...) expects at least 1; got {rows_per_shard}.")
    written = {name: encoding.pop(name) for name in FORMAT if encoding.get(name)}
    if encoding and target is None and "formula" not in encoding:
        raise DataError(f"pack({next(iter(encoding))}=...) is for a table with a target=; none was given.")
    encoded, table = target is not None or "formula" in encoding, sources.is_table(source)
    if not table and (encoded or columns is not None):
        raise DataError("pack(target=..., columns=...) are for a table: .csv, .parquet, .arrow or .feather.")
    how = {"target": target, "columns": columns, "seed": seed, "rows_per_shard": rows_per_shard, **encoding}
    rows, arrays = (sources.of_table(Path(source), written), {}) if table else sources.of_arrays(source)
    asked = plain({"source": rows.about, **how, **written})
    _refuse_others(out, asked)
    work = out / WORK
    if manifest_of(out) is not None:
        shutil.rmtree(work, ignore_errors=True)  # left by a pack that was killed after it wrote the manifest
        return out
    with lock(out), progress_of(progress) as say:
        state = _state_of(work, asked)
        if "arrays" not in state:
            if table:
                rows = sources.add_types(rows, Path(source), written, say)
                marks = Form("", written.get("thousands", ""), written.get("decimal", ""))
                encoding |= {"marks": marks}
                records = _encode_table(rows, how, encoding, say) if encoded else _numbers(rows, Path(source), columns)
            else:
                records = Records(_types(arrays), lambda part: part, {})
            sizes = _scatter(rows, records, work, seed, rows_per_shard, say)
            state |= {"sizes": sizes, "arrays": records.types, "about": records.about, "shards": []}
            write_sealed(work / JOURNAL, state)
        _shuffle(state, out, seed, say)
        _conclude(state, out)
    return out


class Records(NamedTuple):
    """How each part of the source becomes records, which have a field for each array."""

    types: dict[str, Any]  # for each array, the type of its numbers and the shape of a row
    arrays: Callable[[Any], dict[str, np.ndarray]]  # a function from a part of the source to its arrays
    about: dict[str, Any]  # entries for the manifest


def _refuse_others(out: Path, asked: dict[str, Any]) -> None:
    """Raise a DataError if the folder holds files that this pack would not have written."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; expected a folder for shards, or none yet.")
    before = manifest_of(out)
    if before is None and out.is_dir() and not (out / WORK / JOURNAL).is_file():
        there = [path.name for path in out.iterdir() if path.name not in (WORK, LOCK)]
        if there:
            raise DataError(f"{out} holds {there[0]!r}, which is not part of a pack. Choose an empty or a new folder.")
    if before is not None and before["asked"] != asked:
        raise DataError(
            f"{out} holds shards of {_names(before['asked'])} that were packed with other arguments, or from an "
            "earlier version of the source. Choose another folder, or delete this one."
        )


def _names(asked: dict[str, Any]) -> str:
    return ", ".join(name for name, *_ in asked["source"]["files"]) or "an array"


def _state_of(work: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """The state of an unfinished pack in the folder, or of a new pack."""
    refuse_links_in(work)  # files in this folder are appended to, so none may be a link
    state = {"asked": asked}
    if (work / JOURNAL).is_file():
        try:
            state = read_sealed(work / JOURNAL)[0]
        except CheckpointError as error:
            raise DataError(f"{error} Or delete {work}, and the pack begins again.") from error
        if state["asked"] != asked:
            raise DataError(
                f"{work.parent} holds an unfinished pack of {_names(state['asked'])} with other arguments, or of an "
                "earlier version of the source. Choose another folder, or delete this one."
            )
    write_sealed(work / JOURNAL, state)
    return state


# -- records -----------------------------------------------------------------------------------------


def _types(arrays: Mapping[str, Rows]) -> dict[str, Any]:
    """The type and the shape of one row of each array, in the form of the manifest."""
    for name, a in arrays.items():
        if name and not (name.replace("_", "a").replace("-", "a").isalnum() and name.isascii()):
            raise DataError(f"{name!r} names a folder of shards: expected letters, digits, _ and -. Rename the array.")
        if a.dtype.kind not in "fiub":
            raise DataError(f"{name or 'The array'} holds {a.dtype}; expected numbers.")
    return {name: {"dtype": a.dtype.newbyteorder("=").str, "shape": list(a.shape[1:])} for name, a in arrays.items()}


def _record(types: dict[str, Any]) -> np.dtype:
    """The type of one row of all arrays."""
    return np.dtype([(name or "rows", each["dtype"], tuple(each["shape"])) for name, each in types.items()])


def _taken(records: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The records in another order; they are moved as bytes, because field by field takes four times as long."""
    return np.take(records.view(f"V{records.dtype.itemsize}"), order).view(records.dtype)


def _numbers(rows: Source, path: Path, columns: Sequence[str] | None) -> Records:
    """A table's columns of numbers as one array."""
    names, dtype = sources.columns_of_numbers(next(rows.read(0, min(FRAME, rows.size))), path, columns)
    types = _types({"": np.empty((0, len(names)), dtype)})
    return Records(types, lambda part: {"": sources.numbers_of(part, names, dtype)}, {"columns": names})


def _encode_table(rows: Source, how: dict[str, Any], encoding: dict[str, Any], say: Say) -> Records:
    """A table's rows as arrays made by an encoder, which is learnt from some of the rows."""
    encoder = fit_encoder(_sample(rows, how, say), how["target"] or "", **encoding)
    encoder = Encoder.from_dict(encoder.to_dict())  # the encoder that a reader of the manifest will have

    def arrays(part: pd.DataFrame) -> dict[str, np.ndarray]:
        found: Encoded = encode(encoder, _chosen(part, how))
        named = {"y": found.y, "x": found.x, "offset": found.offset, "weights": found.weights}
        return {name: a for name, a in (named | (found.groups or {})).items() if a is not None}

    head = next(rows.read(0, min(FRAME, rows.size)))
    return Records(_types(arrays(head)), arrays, {"encoder": encoder.to_dict()})


def _chosen(frame: pd.DataFrame, how: dict[str, Any]) -> pd.DataFrame:
    """The columns to pack; raise a DataError if one does not exist."""
    if how["columns"] is None:
        return frame
    target = how["target"] or []
    names = [*how["columns"], *([target] if isinstance(target, str) else target)]
    if absent := [name for name in names if name not in frame]:
        raise DataError(f"The table has no column {absent[0]!r}; it has {', '.join(map(repr, frame.columns[:12]))}.")
    return frame.loc[:, list(dict.fromkeys(names))]


def _sample(rows: Source, how: dict[str, Any], say: Say) -> pd.DataFrame:
    """At most ``LEARNT`` random rows, each with the same probability, in the table's order."""
    rng, done, parts = np.random.default_rng([how["seed"], 2]), 0, []
    chosen = np.sort(rng.choice(rows.size, min(LEARNT, rows.size), replace=False))
    for frame in rows.read(0, FRAME):
        first, last = np.searchsorted(chosen, [done, done + len(frame)])
        parts.append(_chosen(frame, how).iloc[chosen[first:last] - done])
        done += len(frame)
        say("learning", done, rows.size)
    return pd.concat(parts, ignore_index=True)


# -- the order ---------------------------------------------------------------------------------------


def dealt(seed: int, chunk: int, rows: int, count: int) -> np.ndarray:
    """The random shard, from 0 to count − 1, of each row of a chunk, (rows,)."""
    return _chance(seed, 0, chunk).integers(count, size=rows)


def shuffled(seed: int, shard: int, rows: int) -> np.ndarray:
    """A random order of the rows that were assigned to a shard, (rows,)."""
    return _chance(seed, 1, shard).permutation(rows)


def _chance(seed: int, phase: int, i: int) -> np.random.Generator:
    """The random generator of one chunk or shard; it is the same in every call, so that a killed pack can continue."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(phase, i))))


def _scatter(rows: Source, records: Records, work: Path, seed: int, per_shard: int | None, say: Say) -> list[int]:
    """Append every row to the file of its random shard, chunk by chunk; return the size of each file in bytes.

    Such a file, whose rows are not shuffled yet, is called a bucket.
    """
    kind = _record(records.types)
    width = kind.itemsize
    count = max(1, round(rows.size / (per_shard or max(1, SHARD // width))))
    chunk = max(1, max(CHUNK, min(8 * CHUNK, APPENDED * count)) // width)
    chunk = min(chunk, FRAME) if records.about else chunk  # only tables have ``about``
    free, sizes = shutil.disk_usage(work).free, np.zeros(count, np.int64)
    if free < rows.size * width + SHARD:
        raise CheckpointError(
            f"The shards need about {rows.size * width:,} bytes in {work.parent}; {free:,} are free. "
            "Free some space, or choose another folder."
        )
    with disk_errors(work):
        buckets = [work / f"{i:05d}" for i in range(count)]
        for bucket in buckets:
            bucket.write_bytes(b"")
        for i, part in enumerate(rows.read(0, chunk)):
            try:
                arrays = records.arrays(part)
            except DataError as error:
                raise DataError(f"{error} (Rows are counted from row {i * chunk} of the source.)") from error
            found = np.empty(len(next(iter(arrays.values()))), kind)
            for name, a in arrays.items():
                found[name or "rows"] = a
            which = dealt(seed, i, len(found), count)
            found = _taken(found, np.argsort(which, kind="stable"))
            counts = np.bincount(which, minlength=count)
            for bucket, rows_of_it in zip(buckets, np.split(found, np.cumsum(counts)[:-1]), strict=True):
                if len(rows_of_it):
                    with open(bucket, "ab") as file:
                        file.write(rows_of_it.view(np.uint8).data)
            sizes += counts * width
            say("scattering", min(rows.size, (i + 1) * chunk), rows.size)
        for bucket in buckets:
            sync(bucket)
    return sizes.tolist()


def _shuffle(state: dict[str, Any], out: Path, seed: int, say: Say) -> None:
    """Write the rows of every bucket in random order as a shard; delete a bucket once its shard is in the journal."""
    kind, sizes, shards = _record(state["arrays"]), state["sizes"], state["shards"]
    for i in range(len(shards), len(sizes)):
        bucket = out / WORK / f"{i:05d}"
        with disk_errors(out):
            found = np.fromfile(bucket, kind)
        if found.nbytes != sizes[i]:
            raise DataError(f"{bucket} was changed while it was packed; delete {out} and pack again.")
        found = _taken(found, shuffled(seed, i, len(found)))
        shard = {"name": f"{i:05d}.npy", "rows": len(found), "sha256": {}, "sound": {}}
        for name in state["arrays"]:
            a = np.ascontiguousarray(found[name or "rows"])
            shard["sound"][name] = _is_sound(a)
            if len(a):
                file = BytesIO()
                np.save(file, a)
                refuse_links(out / name)
                write_atomically(out / name / shard["name"], file.getbuffer())
                shard["sha256"][name] = hashlib.sha256(file.getbuffer()).hexdigest()
        shards.append(shard)
        write_sealed(out / WORK / JOURNAL, state)
        bucket.unlink()
        say("shuffling", i + 1, len(sizes))


def _is_sound(a: np.ndarray) -> bool:
    """Whether all numbers are finite and fit into 32 bits."""
    if a.dtype.kind == "b" or (a.dtype.kind in "iu" and a.dtype.itemsize < 4) or not a.size:
        return True
    low, high = a.min(), a.max()
    limits = np.finfo(np.float32) if a.dtype.kind == "f" else np.iinfo(f"{a.dtype.kind}4")
    return bool(np.isfinite(low) and np.isfinite(high) and limits.min <= low and high <= limits.max)


def _conclude(state: dict[str, Any], out: Path) -> None:
    """Write the manifest, which shows that the pack is complete, and then delete the journal."""
    shards = [shard for shard in state["shards"] if shard["rows"]]
    if not shards:
        raise DataError(f"No row of {_names(state['asked'])} is left when rows with missing values are left out.")
    sound = {name: all(shard["sound"][name] for shard in shards) for name in state["arrays"]}
    arrays = {name: each | {"sound": sound[name]} for name, each in state["arrays"].items()}
    listed = [{key: value for key, value in shard.items() if key != "sound"} for shard in shards]
    size = sum(shard["rows"] for shard in shards)
    about = {"kind": KIND, "rows": size, "arrays": arrays, "shards": listed, "asked": state["asked"]}
    write_sealed(out / MANIFEST, about | state["about"])
    shutil.rmtree(out / WORK, ignore_errors=True)
