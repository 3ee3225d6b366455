"""Does a run survive being killed, and a checkpoint a flipped bit?

Kills: a process that draws with ``checkpoint=`` is killed (SIGKILL) at a random moment, started again on the same
folder, killed again, until ``--kills`` are spent; then it may finish. Its draws must be those of a run that nobody
touched, bit for bit. Flips: one random bit of a random file of the newest checkpoint is flipped, or the file cut short
at random; what ``load`` gives must be the checkpoint before, or this one's very arrays, never anything else.

Predicted: no failure of either kind; a flip that goes unnoticed sits where the archive holds nothing that is read.

    python benchmarks/endurance.py [--kills 200] [--flips 200] [--quick]
"""

import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np
from measuring import arguments, say_where, table

import tractable as tr
from tractable.models.gallery import EXAMPLES
from tractable.tools import checkpoint
from tractable.tools.errors import CheckpointError

METHODS = {
    "mala": tr.MALA(chains=2, warmup=64, draws=20_000, thin=64),
    "sgld": tr.SGLD(chains=2, warmup=100, draws=20_000, thin=50, batch_size=20, step_size=0.01),
}


def example() -> tuple:
    return EXAMPLES["beta-bernoulli"].build()[:2]


def child(name: str, folder: str) -> None:
    model, data = example()
    tr.infer(model, data, METHODS[name], seed=5, progress=False, checkpoint=folder)


def started(name: str, folder: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--child", name, str(folder)])


def killed(name: str, kills: int, whole: np.ndarray, rng: random.Random) -> tuple[int, int, bool]:
    """(kills, of which while it was saving or drawing, whether the draws are the same)."""
    spent = drawing = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "run"
        while spent < kills:
            process = started(name, folder)
            before = time.monotonic()
            # Until it has begun to save, or goes on; then at any moment of the next two seconds.
            known = set(folder.glob("checkpoint/step-*"))
            while process.poll() is None and time.monotonic() - before < 60:
                if set(folder.glob("checkpoint/step-*")) - known:
                    break
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.5))
            if process.poll() is not None:
                shutil.rmtree(folder)  # it was done: begin anew
                continue
            process.kill()
            process.wait()
            spent, drawing = spent + 1, drawing + bool(list(folder.glob("checkpoint/step-*")))
        started(name, folder).wait()
        model, data = example()
        return spent, drawing, np.array_equal(tr.load(folder, model, data).unconstrained, whole)


def flipped(count: int, rng: random.Random) -> dict[str, int]:
    """How many flips and cuts were refused (the checkpoint before was taken), harmless, or wrong."""
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
                seen["wrong"] += 1  # the one before is sound: it was to be taken
                continue
            step, arrays, manifest = found if found is not None else (-1, {}, {})
            same = step in (0, 1) and manifest.get("written") == step and arrays.keys() == states[step].keys()
            same = same and all(np.array_equal(arrays[k], states[step][k]) for k in arrays)
            seen[("harmless" if step == 1 else "refused") if same else "wrong"] += 1
    return seen


def main() -> None:
    """Kill, flip, tell."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
        return
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=200)
    options = parser.parse_args()
    if options.quick:
        options.kills, options.flips = 2, 20
    rng = random.Random(0)
    say_where("Kills and flips")
    model, data = example()
    rows = []
    for name, method in METHODS.items():
        whole = np.asarray(tr.infer(model, data, method, seed=5, progress=False).unconstrained)
        rows.append([name, *map(str, killed(name, options.kills // len(METHODS), whole, rng))])
    table(["method", "kills", "with a checkpoint there", "same to the bit"], rows)
    table(["of flips and cuts", "count"], [[k, v] for k, v in flipped(options.flips, rng).items()])


if __name__ == "__main__":
    main()
