"""What is made of files that were damaged, swapped or forged?

Every kind of folder that the library writes and every kind of file that it reads is made twice, with two seeds. A copy
of the first is damaged in one place, and then read. There are three kinds of damage. Accidents: a flipped bit, a cut, a
block of zeros or of random bytes, or a file that is empty, missing, replaced by a folder, or replaced by another file
of the folder. Swaps: the same file from the other run. Forgeries: a JSON manifest with one entry changed (paths that
lead upwards, are absolute or 300 letters long, sizes of terabytes, other types) and a checksum computed again (its
seal), or a link that leads out of the folder.

The outcomes are: "refused", with an error message of the library; "harmless", if the values read are those written;
"other", if the values differ but nothing could detect it, because a forgery's checksum is right or the file has none
(.npy, .csv, Parquet, TOML). "wrong" (values that differ although it could be detected), "traceback" and "crash" are
faults.

Predicted: no fault.

    python -W ignore benchmarks/damage.py [--mutants 1000] [--only KIND ...] [--quick]
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from measuring import arguments, record, say_where, table

ROWS = np.random.default_rng(0).normal(size=(30, 2))
FAULTS = ("wrong", "traceback", "crash")
SEEN = ("refused", "harmless", "other", *FAULTS)
ACCIDENTS = ("flip", "flip", "flip", "cut", "cut", "zeros", "garbage", "empty", "gone", "folder", "exchanged")
VALUES = [
    None, True, -1, 0, 3, 2.5, 10**18, -(10**30), 1e308, "", "x", "n" * 300, "../../../../etc/passwd", "/etc/passwd",
    "\0", "|O", "<f8", [], [[]], {}, [10**12, 10**6], {"a": None}, {"module": "os", "name": "getcwd", "arguments": {}},
    {"module": "tractable.core.writing", "name": "write_synced", "arguments": {"path": "/tmp/x", "content": ""}},
]  # fmt: skip


class Kind(NamedTuple):
    """One kind of folder or file: how it is written, and how it is read."""

    make: Callable[[Path, int], None]  # (folder, seed)
    told: Callable[[Path], object]  # all values that are read, for the comparison
    summed: bool = True  # whether everything in it has a checksum
    swaps: bool = True  # whether files of another run can be recognised


# -- kinds -------------------------------------------------------------------------------------------


def model():
    import numpyro.distributions as dist

    import tractable as tr

    if not MADE:
        MADE.append(tr.Model({"mu": dist.Normal(0.0, 2.0)}, lambda params: dist.Normal(params["mu"], 1.0)))
    return MADE[0]


MADE: list = []
Y = np.array([0.3, 0.9, 1.4])


def method(name: str):
    import tractable as tr

    walk = {"chains": 2, "warmup": 0, "preconditioner": None}
    return {"draws": tr.RandomWalk(draws=20, **walk), "fit": tr.Laplace(draws=20), "point": tr.MAP(),
            "long": tr.RandomWalk(draws=400, thin=1, **walk)}[name]  # fmt: skip


def saves(name: str) -> Callable[[Path, int], None]:
    def make(folder: Path, seed: int) -> None:
        import tractable as tr

        tr.infer(model(), Y + seed, method(name), seed=seed, verify=None).save(folder)

    return make


def loaded(folder: Path) -> object:
    import tractable as tr

    posterior = tr.load(folder, model())
    numbers = posterior.point if posterior.is_point else posterior.unconstrained
    return np.asarray(numbers).tobytes(), str(posterior.report()), str(posterior.settings)


def make_ladder(folder: Path, seed: int) -> None:
    import tractable as tr

    pixels = (np.random.default_rng(seed).random((30, 5)) > 0.4).astype(float)
    chosen = tr.AutoEncoding(epochs=3, batch_size=10)
    tr.infer(tr.models.latent_gaussian(5, 2, hidden=(4,)), pixels, chosen, seed=seed, verify=None).save(folder)


def ladder_loaded(folder: Path) -> object:
    import jax

    import tractable as tr

    posterior = tr.load(folder)
    network = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(posterior.belief.network)]
    return np.asarray(posterior.point).tobytes(), network, str(posterior.report())


def make_begun(folder: Path, seed: int) -> None:
    """A run that was stopped half-way."""
    import tractable as tr
    from tractable.engine import run

    run.SEGMENT_SECONDS = 0.0

    def stop(phase: str, done: int, of: int) -> None:
        if phase == "drawing" and 2 * done > of:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        tr.infer(model(), Y, method("long"), seed=seed, verify=None, checkpoint=folder, progress=stop)


def gone_on(folder: Path) -> object:
    import tractable as tr

    return tr.infer(model(), Y, method("long"), verify=None, checkpoint=folder).unconstrained.tobytes()


def make_calibration(folder: Path, seed: int) -> None:
    import tractable as tr

    tr.calibrate(model(), tr.Laplace(), Y, runs=20, draws=9, seed=seed, n_jobs=1, progress=False).save(folder)


def calibration_loaded(folder: Path) -> object:
    from tractable import Calibration

    found = Calibration.load(folder)
    return found.ranks.tobytes(), found.names, str(found.report())


def command(*words: object) -> str:
    """What a command prints; its sentence as an error."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from commands import run

    from tractable.core.errors import TractableError

    result = run(*words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 2:
        raise TractableError(result.stderr.strip())
    return result.output


def fits(*words: str) -> Callable[[Path, int], None]:
    def make(folder: Path, seed: int) -> None:
        folder.parent.mkdir(exist_ok=True, parents=True)
        given = folder.parent / f"t{seed}.csv"
        rows = np.random.default_rng(0).normal(size=(40, 3)).round(3) + seed
        np.savetxt(given, rows, fmt="%g", delimiter=",", header="a,b,c", comments="")
        command(words[0], given, *words[1:], "--seed", seed, "--out", folder, "--quiet")

    return make


def predicted(folder: Path) -> object:
    out = folder.parent / "out.csv"
    told = command("report", folder)
    command("predict", folder, folder.parent / "t0.csv", "--out", out)
    return told, out.read_text()


def reported(folder: Path) -> object:
    return command("report", folder)


def file_of(name: str) -> Callable[[Path, int], None]:
    """A file of rows in a folder of its own."""

    def make(folder: Path, seed: int) -> None:
        import pandas as pd

        folder.mkdir(parents=True)
        path, rows = folder / name, ROWS + seed
        frame = pd.DataFrame(rows, columns=["a", "b"])
        if name.endswith(".npy"):
            np.save(path, rows)
        elif name.endswith(".npz"):
            (np.savez if "stored" in name else np.savez_compressed)(path, x=rows)
        elif name.endswith(".parquet"):
            frame.to_parquet(path)
        elif name.endswith(".toml"):
            path.write_text('method = "nuts"\ndraws = 200\nseeds = [1, [2, 3]]\nnested = {a = 1.5}\n')
        else:
            frame.to_csv(path, index=False)

    return make


def rows_read(path: Path) -> object:
    """What every reader that accepts the file reads from it."""
    import jax

    import tractable as tr
    from tractable.cli.settings import read
    from tractable.tables.files import read_rows, read_table

    if path.suffix == ".toml":
        return str(read(path))
    found = []
    if path.suffix in (".npy", ".npz", ".parquet"):
        found += [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tr.Data(path).y)]
    if path.suffix in (".csv", ".gz", ".parquet"):
        found.append(read_table(path).to_csv())
    if path.suffix != ".gz":
        found.append(np.asarray(read_rows(path).values).tobytes())
    return found


FEW = ("--components", "1..2")
KINDS = {
    "draws": Kind(saves("draws"), loaded),
    "a fitted q": Kind(saves("fit"), loaded),
    "a point": Kind(saves("point"), loaded),
    "a ladder and its network": Kind(make_ladder, ladder_loaded),
    "a run to go on with": Kind(make_begun, gone_on),
    "a calibration": Kind(make_calibration, calibration_loaded),
    "tractable fit": Kind(fits("fit", "--target", "c"), predicted, swaps=False),
    "tractable fit, mixture": Kind(
        fits("fit", "--model", "gaussian-mixture", "--components", "1..2"), predicted, swaps=False
    ),
    "tractable compare": Kind(fits("compare", "--target", "c", "--methods", "map,laplace"), reported),
    **{
        name: Kind(
            file_of(name),
            lambda folder, name=name: rows_read(folder / name),
            "npz" in name or "gz" in name,
            swaps=False,
        )
        for name in ("rows.npy", "stored.npz", "deflated.npz", "rows.parquet", "rows.csv", "rows.csv.gz", "how.toml")
    },
}


# -- damage ------------------------------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    return sorted(
        p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".html", ".png") and p.name != ".lock"
    )


def forged(content: bytes, rng: np.random.Generator) -> bytes:
    """JSON with one entry changed or removed, and every checksum in it computed again."""
    from tractable.core.sealed import seal

    whole = json.loads(content)
    places: list[tuple] = []

    def walk(node: object) -> None:
        inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in inside:
            places.append((node, key))
            walk(value)

    walk(whole)
    node, key = places[int(rng.integers(len(places)))]
    if rng.random() < 0.15:
        del node[key]
    else:
        node[key] = VALUES[int(rng.integers(len(VALUES)))]

    def seal_again(node: object) -> object:
        if not isinstance(node, dict):
            return node
        inner = {name: seal_again(value) for name, value in node.items()}
        if isinstance(inner.get("sha256"), str) and len(inner) > 4:
            inner.pop("sha256")
            return seal(inner)
        return inner

    return json.dumps(seal_again(whole)).encode()


def hurt(folder: Path, sibling: Path, rng: np.random.Generator, swaps: bool) -> tuple[str, Path]:
    """What was done to which file."""
    there = files(folder)
    path = there[int(rng.integers(len(there)))]
    whole = path.read_bytes()
    place = int(rng.integers(len(whole) + 1)) if whole else 0
    chance = rng.random()
    manifests = [p for p in there if p.suffix == ".json" and p.parent.parent.name != "draws.zarr"]
    if chance < 0.2 and manifests:
        path = manifests[int(rng.integers(len(manifests)))]
        path.write_bytes(forged(path.read_bytes(), rng))
        return "forged", path
    if chance < 0.3 and swaps and (sibling / path.relative_to(folder)).is_file():
        shutil.copyfile(sibling / path.relative_to(folder), path)
        return "swapped", path
    if chance < 0.33:
        path.unlink()
        path.symlink_to("/etc/passwd")
        return "linked out", path
    act = ACCIDENTS[int(rng.integers(len(ACCIDENTS)))]
    if act == "flip" and whole:
        at = min(place, len(whole) - 1)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :])
    elif act == "cut":
        path.write_bytes(whole[:place])
    elif act in ("zeros", "garbage"):
        block = bytes(32) if act == "zeros" else rng.bytes(32)
        path.write_bytes(whole[:place] + block + whole[place + 32 :])
    elif act == "empty":
        path.write_bytes(b"")
    elif act == "exchanged" and len(there) > 1:
        other = there[int(rng.integers(len(there)))]
        content = other.read_bytes()
        other.write_bytes(whole)
        path.write_bytes(content)
    else:
        path.unlink()
        if act == "folder":
            path.mkdir()
    return act, path


def judged(kind: Kind, folder: Path, before: object, act: str) -> tuple[str, str]:
    from tractable.core.errors import TractableError

    try:
        found = kind.told(folder)
    except (TractableError, ValueError) as error:
        if not isinstance(error, TractableError):
            return "traceback", traceback.format_exc(limit=-4)
        return ("refused", "") if len(str(error)) < 2000 else ("traceback", f"a sentence of {len(str(error))} letters")
    except (Exception, RecursionError):
        return "traceback", traceback.format_exc(limit=-4)
    if found == before:
        return "harmless", ""
    return ("other", "") if act in ("forged", "linked out") or not kind.summed else ("wrong", "")


def child(name: str, count: int, seed: int, scratch: str, pipe) -> None:
    warnings.simplefilter("ignore")
    kind, folder, rng = KINDS[name], Path(scratch), np.random.default_rng(seed)
    for run in (0, 1):
        kind.make(folder / f"s{run}" / "run", run)
    sound, sibling, copy = folder / "s0" / "run", folder / "s1" / "run", folder / "s0" / "hurt"
    shutil.copytree(sound, copy, symlinks=True)
    before = kind.told(copy)
    for i in range(count):
        shutil.rmtree(copy)
        shutil.copytree(sound, copy, symlinks=True)
        act, path = hurt(copy, sibling, rng, kind.swaps)
        pipe.send(("trying", i, act, str(path.relative_to(copy))))
        seen, why = judged(kind, copy, before, act)
        pipe.send((seen, i, act, str(path.relative_to(copy)), why))
    pipe.send(None)


def harmed(name: str, count: int, seed: int = 0) -> tuple[Counter, list[tuple]]:
    """How often each outcome occurred, and the list of faults."""
    context, seen, faults = multiprocessing.get_context("spawn"), Counter(), []
    done = 0
    while done < count:
        with tempfile.TemporaryDirectory() as scratch:
            here, there = context.Pipe()
            process = context.Process(target=child, args=(name, count - done, seed + done, scratch, there))
            process.start()
            there.close()
            trying = None
            try:
                while (told := here.recv()) is not None:
                    if told[0] == "trying":
                        trying = told
                        continue
                    done += 1
                    seen[told[0]] += 1
                    if told[0] in FAULTS:
                        faults.append(told)
            except EOFError:
                if trying is None:
                    raise RuntimeError(f"{name} could not be made") from None
                done += 1
                seen["crash"] += 1
                faults.append(("crash", *trying[1:], ""))
            process.join()
    return seen, faults


def main() -> None:
    """Damage copies, read them, and print the outcomes."""
    parser = arguments(__doc__)
    parser.add_argument("--mutants", type=int, default=1000, help="in all")
    parser.add_argument("--only", nargs="*", metavar="KIND")
    options = parser.parse_args()
    chosen = options.only or list(KINDS)
    each = 3 if options.quick else -(-options.mutants // len(chosen))
    say_where("Damage")
    rows, faults = [], []
    for name in chosen:
        began = time.monotonic()
        seen, wrong = harmed(name, each)
        rows.append([name, *(seen[word] for word in SEEN)])
        faults += [(name, *fault) for fault in wrong]
        print(*rows[-1], f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for fault in wrong:
            print("   ", *fault, file=sys.stderr, flush=True)
    table(["what is read", *SEEN], rows)
    if not options.only:
        totals = dict(zip(SEEN, map(sum, list(zip(*rows, strict=True))[1:]), strict=True))
        record(__file__, ["", "value"], [["copies", sum(totals.values())], *([word, totals[word]] for word in FAULTS)])
    if faults:
        sys.exit(f"{len(faults)} faults.")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    main()
