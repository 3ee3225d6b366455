"""Does a run survive being stopped, and a checkpoint a flipped bit?

Stops: a process that learns with ``checkpoint=`` is stopped at a random instant, started again on the same folder and
stopped again, until it was stopped ``--kills`` times; then it may finish. Each time that a run finishes, its numbers
must equal those of a run without stops, bit for bit. Eight stops of ten are by SIGKILL, one by Ctrl-C (SIGINT) and one
by SIGTERM. All methods of ``tests/every_method.py`` are run with up to a hundred times their draws, steps or epochs,
and also runs of the command line, which continue by ``--resume``.

Flips: one random bit of a random file of the newest checkpoint is flipped, or the file is cut at a random place. Then
``load`` must return the previous checkpoint, or exactly the arrays of the newest one.

Predicted: no failure of either kind. A flip that is not detected is in a part of the archive that is never read.

    python -W ignore benchmarks/endurance.py [--kills 20] [--only NAME ...] [--flips 200] [--quick]
"""

import dataclasses
import hashlib
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings

import numpy as np
from measuring import arguments, record, say_where, table

import tractable as tr
from tractable.core.errors import CheckpointError
from tractable.engine import checkpoint

TESTS = pathlib.Path(__file__).parents[1] / "tests"
STOPS = [signal.SIGKILL] * 8 + [signal.SIGINT, signal.SIGTERM]
LONGER = {"draws": 100, "steps": 50, "epochs": 20}  # factors over the numbers in the tests: a run of about a second
COMMANDS = {
    f"tractable fit, {method}": ["--example", "beta-bernoulli", "--method", method, "--set", f"draws={draws}"]
    for method, draws in {"nuts": 20_000, "sgld": 20_000, "random-walk": 200_000, "meanfield": 100_000}.items()
}


def names() -> list[str]:
    """Methods and commands, from another process: this process starts no JAX device, so that it can fork."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return [*pool.apply(methods), *COMMANDS]


def methods() -> list[str]:
    sys.path.insert(0, str(TESTS))
    from every_method import CASES

    return list(CASES)


def learn(name: str, folder: pathlib.Path | None, answer: pathlib.Path) -> None:
    """Run from the checkpoint to the end, and return the digest of the numbers."""
    warnings.simplefilter("ignore")
    found = command(name, folder or answer.with_suffix(".run")) if name in COMMANDS else method(name, folder)
    answer.write_text(hashlib.sha256(np.ascontiguousarray(found).tobytes()).hexdigest())


def method(name: str, folder: pathlib.Path | None) -> np.ndarray:
    sys.path.insert(0, str(TESTS))
    from every_method import CASES, numbers

    case = CASES[name]
    of = {field.name: getattr(case.method, field.name) for field in dataclasses.fields(case.method)}
    more = {field: of[field] * times for field, times in LONGER.items() if of.get(field)}
    if of.get("most"):  # for Monte Carlo EM, "draws" counts the draws of one step, and "most" is their largest number
        del more["draws"]
    longer = dataclasses.replace(case.method, **more)
    run = tr.infer(case.model, case.rows, longer, seed=5, progress=False, checkpoint=folder, verify=None)
    if run.interrupted:
        sys.exit("Ctrl-C gave back what there was: that is no end.")
    return numbers(run)


def command(name: str, folder: pathlib.Path) -> np.ndarray:
    from tractable.cli import main

    again = (folder / "run.json").exists()
    asked = ["--resume"] if again else [*COMMANDS[name], "--verify", "none", "--seed", "5"]
    sys.argv = ["tractable", "fit", *asked, "--out", str(folder), "--quiet"]
    try:
        main()
    except SystemExit as left:
        if left.code not in (0, None):
            raise
    return tr.load(folder).unconstrained


def stopped(name: str, stops: int, scratch: pathlib.Path, rng: random.Random) -> tuple[int, int, int, int]:
    """Counts for a method: stops, stops that left a checkpoint, runs that finished, and those with equal numbers."""
    context = multiprocessing.get_context("forkserver")
    folder, answer, whole = scratch / "run", scratch / "answer", scratch / "whole"

    def begun(into: pathlib.Path | None, digest: pathlib.Path) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=learn, args=(name, into, digest))
        process.start()
        return process

    for _ in range(2):  # the second run finds its compiled programs in the cache
        shutil.rmtree(whole.with_suffix(".run"), ignore_errors=True)
        began = time.monotonic()
        begun(None, whole).join()
        seconds = time.monotonic() - began
    spent = saved = ended = same = 0
    while ended == 0 or spent < stops or folder.exists():
        process, interrupted = begun(folder, answer), False
        process.join(rng.uniform(0.2, 1.0) * seconds if spent < stops else None)
        if process.is_alive():
            os.kill(process.pid or 0, rng.choice(STOPS))
            process.join()
            spent, saved, interrupted = spent + 1, saved + bool(list(folder.rglob("step-*"))), True
        if answer.exists() or not interrupted:  # the run finished, or failed by itself
            right = answer.exists() and answer.read_text() == whole.read_text()
            ended, same = ended + 1, same + right
            if not right:
                what = "other numbers" if answer.exists() else f"no numbers, exit code {process.exitcode}"
                print(f"{name}: {what} after {spent} stops", file=sys.stderr, flush=True)
            answer.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
    return spent, saved, ended, same


def flipped(count: int, rng: random.Random) -> dict[str, int]:
    """How many flips and cuts were refused (the previous checkpoint was used), harmless, or wrong."""
    seen = {"refused": 0, "harmless": 0, "wrong": 0}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        draws = np.random.default_rng(0)
        states = [{"a": draws.normal(size=(50, 3)), "b": np.arange(7) + i} for i in range(2)]
        for step, arrays in enumerate(states):
            checkpoint.save(folder / "sound", arrays, {"written": step}, step=step)
        for i in range(count):
            shutil.rmtree(folder / "hurt", ignore_errors=True)
            shutil.copytree(folder / "sound", folder / "hurt")
            newest = sorted((folder / "hurt").glob("step-*"))[-1]
            file = rng.choice(sorted(newest.iterdir()))
            content = bytearray(file.read_bytes())
            if i % 2:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            else:
                del content[rng.randrange(len(content)) :]
            file.write_bytes(content)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = checkpoint.load(folder / "hurt")
            except CheckpointError:
                seen["wrong"] += 1  # the previous checkpoint is undamaged, and should have been used
                continue
            step, arrays, manifest = found if found is not None else (-1, {}, {})
            same = step in (0, 1) and manifest.get("written") == step and arrays.keys() == states[step].keys()
            same = same and all(np.array_equal(arrays[k], states[step][k]) for k in arrays)
            seen[("harmless" if step == 1 else "refused") if same else "wrong"] += 1
    return seen


def main() -> None:
    """Stop runs, flip bits, and print what happened."""
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each method")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="methods as tests/every_method.py calls them")
    parser.add_argument("--flips", type=int, default=200)
    options = parser.parse_args()
    if options.quick:
        options.kills, options.flips, options.only = 2, 20, ["mala", "map adam"]
    rng = random.Random(0)
    say_where("Stops and flips")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": f"{scratch}/programs", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }  # fmt: skip
        multiprocessing.set_forkserver_preload(["tractable"])
        rows = []
        for name in options.only or names():
            folder = pathlib.Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            rows.append([name, *stopped(name, options.kills, folder, rng)])
            print(*rows[-1], file=sys.stderr, flush=True)
    head = ["method", "stops", "with a checkpoint there", "runs that ended", "same to the bit"]
    table(head, rows)
    record(__file__, head, [["all", *map(sum, zip(*(row[1:] for row in rows), strict=True))]])
    table(["of flips and cuts", "count"], [[k, v] for k, v in flipped(options.flips, rng).items()])
    if any(ended != same for *_, ended, same in rows):
        sys.exit("Some runs that were stopped ended with other numbers.")


if __name__ == "__main__":
    main()
