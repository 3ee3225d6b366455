"""Rows in random order, in shards: ``tr.pack``."""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tractable.data.encoder import Encoded, Encoder, encode, fit_encoder
from tractable.data.shards import KIND, MANIFEST, manifest_of
from tractable.data.sources import FRAME, Say, Source, columns_of_numbers, is_table, known, numbers_of

from tractable.data.sources import of_arrays, of_table, typed  # isort: skip
from tractable.tools.checkpoint import plain, read_sealed, write_sealed
from tractable.tools.errors import CheckpointError, DataError
from tractable.tools.locks import LOCK, held
from tractable.tools.progress import progress_of
from tractable.tools.settings import seeded
from tractable.tools.tree import PyTree
from tractable.tools.words import spelt
from tractable.tools.writing import disk_errors, refuse_links, refuse_links_in, sync

SHARD = 1 << 27  # bytes of a shard, about
CHUNK = 1 << 25  # bytes read together, at least
APPENDED = 1 << 14  # bytes of a chunk that fall to a shard, at least
NOTED = 1 << 28  # bytes after which a kill loses nothing
LEARNT = 1 << 18  # rows, drawn at random, that an encoder is learnt from
WORK, JOURNAL = ".packing", "journal.json"


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

    Methods that read a file batch by batch take runs of neighbouring rows. Those of a file that is sorted, or was
    written day by day, are alike, and a batch of them is no sample. So every row draws its shard, and every shard is
    shuffled (Rao 1961; Sandelius 1962): each of the N! orders is equally likely, and sizes of shards differ by chance.
    The source is read once and every row written twice, some 400 MB in memory at a time, whatever N is.

    A pack that was killed goes on where it was when it is called again, and writes the same bytes. The manifest, which
    names every file with its SHA-256, is written last.

    Args:
        source: a path to .npy, .npz, .csv, .parquet, .arrow, .feather or .zarr, a pattern such as "x/*.npy", an array,
            or a dict of arrays or paths with N rows each. Compressed members of an .npz are held in memory.
        out: the folder, made if missing. Shards are ``out/00000.npy`` …; of several arrays ``out/name/00000.npy``.
        target: of a table, what is to be explained: the table is encoded as ``encoder.fit_encoder`` says, by as many as
            262,144 of its rows drawn at random, and ``Data(out)`` has y, what is given, and weights. Without it the
            columns of numbers become one array (n, d).
        columns: of a table, those to pack; by default all, or all of numbers.
        seed: of the order.
        rows_per_shard: about; by default what takes 128 MiB.
        progress: True shows a bar, False none; or a function of (phase, done, of).
        encoding: what else ``fit_encoder`` takes: missing, family, exclude, weights, exposure, formula and so on.

    Raises:
        DataError: a source that cannot be read or encoded, with where; a folder that holds something else.
        CheckpointError: the disk is full, or the folder cannot be written, or another process writes it.
    """
    out, seed = Path(out), seeded("pack(seed)", seed)
    if rows_per_shard is not None and rows_per_shard < 1:
        raise DataError(f"pack(rows_per_shard=...) expects at least 1; got {rows_per_shard}.")
    if encoding and target is None and "formula" not in encoding:
        raise DataError(f"pack({next(iter(encoding))}=...) is for a table with a target=; none was given.")
    explained = target is not None or "formula" in encoding
    table = is_table(source)
    if not table and (explained or columns is not None):
        raise DataError("pack(target=..., columns=...) are for a table: .csv, .parquet, .arrow or .feather.")
    how = {"target": target, "columns": columns, "seed": seed, "rows_per_shard": rows_per_shard, **encoding}
    rows, arrays = (of_table(Path(source)), {}) if table else of_arrays(source)
    asked = plain({"source": rows.about, **how})
    _refuse_others(out, asked)
    if manifest_of(out) is not None:
        shutil.rmtree(out / WORK, ignore_errors=True)  # of a pack that ended between its last two lines
        return out
    with held(out), progress_of(progress) as say:
        work = _begun(out, asked)
        if table:
            rows, made = _of_table(rows, Path(source), work, how, encoding, say)
        else:
            made = _Made(_record({name: (a.dtype, a.shape[1:]) for name, a in arrays.items()}), _filled)
        _scatter(rows, made, work, seed, rows_per_shard, say)
        _shuffle(made, work, out, seed, say)
        _conclude(made, work, out, asked)
    return out


@dataclass(frozen=True)
class _Made:
    """What is written of each part of the source: records, with a field an array."""

    kind: np.dtype
    records: Callable[[np.dtype, Any], np.ndarray]
    about: dict[str, Any] = field(default_factory=dict)  # for the manifest


@dataclass
class _Work:
    """A pack under way, as its journal has it."""

    folder: Path
    state: dict[str, Any]

    def note(self, **state: Any) -> None:
        self.state |= state
        write_sealed(self.folder / JOURNAL, self.state)

    def bucket(self, i: int) -> Path:
        return self.folder / f"{i:05d}"


def _refuse_others(out: Path, asked: dict[str, Any]) -> None:
    """A sentence about a folder that holds what this pack would not have written."""
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; expected a folder for shards, or none yet.")
    before = manifest_of(out)
    if before is None and out.is_dir() and not (out / WORK / JOURNAL).is_file():
        there = [path.name for path in out.iterdir() if path.name not in (WORK, LOCK)]
        if there:
            raise DataError(f"{out} holds {there[0]!r}, which is no part of a pack. Choose an empty or a new folder.")
    if before is not None and before["asked"] != asked:
        raise DataError(
            f"{out} holds shards of {_names(before['asked'])} that were packed otherwise, or before that changed. "
            "Choose another folder, or delete this one."
        )


def _names(asked: dict[str, Any]) -> str:
    return ", ".join(name for name, *_ in asked["source"]["files"]) or "an array"


def _begun(out: Path, asked: dict[str, Any]) -> _Work:
    """The pack that was under way in the folder, or a new one."""
    folder = out / WORK
    refuse_links_in(folder)  # its buckets are appended to
    if (folder / JOURNAL).is_file():
        try:
            state = read_sealed(folder / JOURNAL)[0]
        except CheckpointError as error:
            raise DataError(f"{error} Or delete {folder}, and the pack begins again.") from error
        if state["asked"] != asked:
            raise DataError(
                f"{out} holds an unfinished pack of {_names(state['asked'])}, asked for otherwise, or of what has "
                "changed since. Choose another folder, or delete this one."
            )
        return _Work(folder, state)
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    work = _Work(folder, {"asked": asked, "chunks": 0, "sizes": [], "scattered": False, "shards": []})
    work.note()
    return work


# -- records -----------------------------------------------------------------------------------------


def _record(arrays: dict[str, tuple[np.dtype, tuple[int, ...]]]) -> np.dtype:
    """The type of one row of all arrays."""
    for name, (dtype, _) in arrays.items():
        if name and not (name.replace("_", "a").replace("-", "a").isalnum() and name.isascii()):
            raise DataError(f"{name!r} is to name a folder of shards: expected letters, digits, _ and -; rename it.")
        if dtype.kind not in "fiub":
            raise DataError(f"{name or 'The array'} holds {dtype}; expected numbers.")
    return np.dtype([(name or "rows", dtype.newbyteorder("="), shape) for name, (dtype, shape) in arrays.items()])


def _filled(kind: np.dtype, part: dict[str, np.ndarray]) -> np.ndarray:
    out = np.empty(len(next(iter(part.values()))), kind)
    for name, a in part.items():
        out[name or "rows"] = a
    return out


def _taken(records: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Records in another order, moved as bytes: field by field it takes four times as long."""
    return np.take(records.view(f"V{records.dtype.itemsize}"), order).view(records.dtype)


def _by_name(encoded: Encoded) -> dict[str, np.ndarray]:
    """The arrays of encoded rows."""
    found = {"y": encoded.y, "x": encoded.x, "offset": encoded.offset, "weights": encoded.weights}
    return {name: a for name, a in (found | (encoded.groups or {})).items() if a is not None}


def _of_table(
    rows: Source, path: Path, work: _Work, how: dict[str, Any], encoding: dict[str, Any], say: Say
) -> tuple[Source, _Made]:
    """A table with its size and types, and what is made of its rows: encoded, or its columns of numbers."""
    if "learnt" not in work.state:
        rows, kinds = typed(rows, path, say)
        encoder = None
        if how["target"] is not None or "formula" in encoding:
            encoder = fit_encoder(_sample(rows, how, say), how["target"] or "", **encoding).to_dict()
        work.note(learnt={"size": rows.size, "kinds": kinds, "encoder": encoder})
    learnt = work.state["learnt"]
    rows = known(rows, path, learnt["size"], learnt["kinds"])
    head = next(rows.read(0, min(FRAME, rows.size)))
    if learnt["encoder"] is None:
        names, dtype = columns_of_numbers(head, path, how["columns"])
        kind = _record({"": (dtype, (len(names),))})
        return rows, _Made(
            kind, lambda kind, part: _filled(kind, {"": numbers_of(part, names, dtype)}), {"columns": names}
        )
    encoder = Encoder.from_dict(learnt["encoder"])

    def records(kind: np.dtype, part: pd.DataFrame) -> np.ndarray:
        return _filled(kind, _by_name(encode(encoder, _chosen(part, how))))

    arrays = _by_name(encode(encoder, _chosen(head, how)))

    kind = _record({name: (a.dtype, a.shape[1:]) for name, a in arrays.items()})
    return rows, _Made(kind, records, {"encoder": learnt["encoder"]})


def _chosen(frame: pd.DataFrame, how: dict[str, Any]) -> pd.DataFrame:
    """The columns that are to be packed; a sentence about one that is not there."""
    if how["columns"] is None:
        return frame
    target = how["target"] or []
    names = [*how["columns"], *([target] if isinstance(target, str) else target)]
    if absent := [name for name in names if name not in frame]:
        raise DataError(f"The table has no column {absent[0]!r}; it has {', '.join(map(repr, frame.columns[:12]))}.")
    return frame.loc[:, list(dict.fromkeys(names))]


def _sample(rows: Source, how: dict[str, Any], say: Say) -> pd.DataFrame:
    """At most ``LEARNT`` rows, any as likely as any other, in the table's order; all where there are no more."""
    rng, held_back = np.random.default_rng([how["seed"], 2]), []
    marks, done = np.zeros(0), 0
    for frame in rows.read(0, FRAME):
        marks = np.concatenate([marks, rng.random(len(frame))])
        held_back.append(_chosen(frame, how))
        done += len(frame)
        if len(marks) > 2 * LEARNT:
            held_back, marks = _fewest(held_back, marks)
        say("learning", done, rows.size)
    return _fewest(held_back, marks)[0][0]


def _fewest(frames: list[pd.DataFrame], marks: np.ndarray) -> tuple[list[pd.DataFrame], np.ndarray]:
    whole = pd.concat(frames, ignore_index=True)
    if len(whole) <= LEARNT:
        return [whole], marks
    kept = np.sort(np.argpartition(marks, LEARNT)[:LEARNT])
    return [whole.iloc[kept].reset_index(drop=True)], marks[kept]


# -- the order ---------------------------------------------------------------------------------------


def dealt(seed: int, chunk: int, rows: int, count: int) -> np.ndarray:
    """(rows,) the shard, 0 to count − 1, that each row of a chunk draws."""
    return _chance(seed, 0, chunk).integers(count, size=rows)


def shuffled(seed: int, shard: int, rows: int) -> np.ndarray:
    """(rows,) the order of a shard's rows, of those that it was dealt as the source has them."""
    return _chance(seed, 1, shard).permutation(rows)


def _chance(seed: int, phase: int, i: int) -> np.random.Generator:
    """The randomness of one chunk or shard: the same whenever it is asked for, so that a pack can go on."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(phase, i))))


def _scatter(rows: Source, made: _Made, work: _Work, seed: int, per_shard: int | None, say: Say) -> None:
    """Every row to the bucket of the shard that it draws, chunk by chunk."""
    if work.state["scattered"]:
        return
    width = made.kind.itemsize
    count = max(1, round(rows.size / (per_shard or max(1, SHARD // width))))
    chunk = max(1, max(CHUNK, min(8 * CHUNK, APPENDED * count)) // width)
    chunk = min(chunk, FRAME) if "learnt" in work.state else chunk
    sizes = np.array(work.state["sizes"] or [0] * count, np.int64)
    done, noted = work.state["chunks"], 0
    if not done:
        free = shutil.disk_usage(work.folder).free
        if free < rows.size * width + NOTED:
            raise CheckpointError(
                f"The shards need about {rows.size * width:,} bytes in {work.folder.parent}; {free:,} are free. "
                "Free some space, or choose another folder."
            )
    with disk_errors(work.folder):
        for i in range(count):  # what was written after the last note is written again
            if work.bucket(i).exists() or sizes[i]:
                os.truncate(work.bucket(i), int(sizes[i]))
        for i, part in enumerate(rows.read(done * chunk, chunk), done):
            try:
                found = made.records(made.kind, part)
            except DataError as error:
                raise DataError(f"{error} (Rows are counted from row {i * chunk} of the source.)") from error
            which = dealt(seed, i, len(found), count)
            found = _taken(found, np.argsort(which, kind="stable"))
            ends = np.cumsum(np.bincount(which, minlength=count))
            for bucket in np.flatnonzero(np.diff(ends, prepend=0)):
                start = ends[bucket - 1] if bucket else 0
                with open(work.bucket(int(bucket)), "ab") as file:
                    file.write(found[start : ends[bucket]].view(np.uint8).data)
            sizes += np.diff(ends, prepend=0) * width
            noted += found.nbytes
            if noted >= NOTED:
                _synced(work, count)
                work.note(chunks=i + 1, sizes=sizes.tolist())
                noted = 0
            say("scattering", min(rows.size, (i + 1) * chunk), rows.size)
        _synced(work, count)
    work.note(chunks=0, sizes=sizes.tolist(), scattered=True)


def _synced(work: _Work, count: int) -> None:
    for i in range(count):
        if work.bucket(i).exists():
            sync(work.bucket(i))


def _shuffle(made: _Made, work: _Work, out: Path, seed: int, say: Say) -> None:
    """Every bucket in random order as a shard; a bucket goes when its shard is noted."""
    sizes, shards = work.state["sizes"], list(work.state["shards"])
    noted, spent = 0, []
    for i in range(len(shards), len(sizes)):
        with disk_errors(out):
            found = np.fromfile(work.bucket(i), made.kind) if sizes[i] else np.empty(0, made.kind)
        if found.nbytes != sizes[i]:
            raise DataError(f"{work.bucket(i)} was changed while it was packed; delete {out} and pack again.")
        found = _taken(found, shuffled(seed, i, len(found)))
        shard = {"name": f"{i:05d}.npy", "rows": len(found), "sha256": {}, "sound": {}}
        for name in made.kind.names or ():
            a = np.ascontiguousarray(found[name])
            own = "" if name == "rows" else name
            shard["sound"][own] = _sound(a)
            if len(a):
                shard["sha256"][own] = _written(out / own / shard["name"], a)
        shards.append(shard)
        spent.append(i)
        noted += found.nbytes
        if noted >= NOTED or i == len(sizes) - 1:
            work.note(shards=shards)
            for each in spent:
                work.bucket(each).unlink(missing_ok=True)
            noted, spent = 0, []
        say("shuffling", i + 1, len(sizes))


def _sound(a: np.ndarray) -> bool:
    """Whether all numbers are finite and fit 32 bits."""
    if a.dtype.kind == "b" or (a.dtype.kind in "iu" and a.dtype.itemsize < 4) or not a.size:
        return True
    low, high = a.min(), a.max()
    limits = np.finfo(np.float32) if a.dtype.kind == "f" else np.iinfo(f"{a.dtype.kind}4")
    return bool(np.isfinite(low) and np.isfinite(high) and limits.min <= low and high <= limits.max)


def _written(path: Path, a: np.ndarray) -> str:
    """Write an array whole or not at all; the SHA-256 of its file."""
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(a))
    digest = hashlib.sha256(head.getvalue())
    digest.update(a.reshape(-1).view(np.uint8).data)
    tmp = path.with_name(f".tmp-{path.name}")
    for each in (path.parent, path, tmp):
        refuse_links(each)
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
        try:
            with open(tmp, "wb") as file:
                file.write(head.getvalue())
                file.write(a.reshape(-1).view(np.uint8).data)
            sync(tmp)
            os.replace(tmp, path)
        finally:
            tmp.unlink(missing_ok=True)
    return digest.hexdigest()


def _conclude(made: _Made, work: _Work, out: Path, asked: dict[str, Any]) -> None:
    """The manifest, which vouches for all; then the journal goes."""
    shards = [shard for shard in work.state["shards"] if shard["rows"]]
    if not shards:
        raise DataError(f"No row of {_names(asked)} is left once those with missing values are left out.")
    arrays = {}
    for name in made.kind.names or ():
        own, one = "" if name == "rows" else name, made.kind[name]
        sound = all(shard["sound"][own] for shard in shards)
        arrays[own] = {"dtype": one.base.str, "shape": list(one.shape), "sound": sound}
    told = [{k: v for k, v in shard.items() if k != "sound"} for shard in shards]
    size = sum(shard["rows"] for shard in shards)
    for name in arrays:
        sync(out / name)
    about = {"kind": KIND, "rows": size, "arrays": arrays, "shards": told, "asked": asked, **made.about}
    write_sealed(out / MANIFEST, about)
    shutil.rmtree(work.folder, ignore_errors=True)
