"""Does EM of a Gaussian mixture go through a file in bounded memory and linear time?

There are 2,000,000 and 20,000,000 rows, d = 8, K = 10, full covariances, float32. The files of 64 MB and 640 MB are
written in chunks to a temporary folder and removed at the end. ``tr.infer(model, tr.Data(file, resident=False),
EM(starts=1, steps=s))`` makes one pass a step, and one more for the value at the end. The seconds of a pass are the
difference between a run of many passes and a run of few, divided by the difference in passes, so that compiling and
checking the rows cancel. For comparison, EM runs with all 2,000,000 rows in memory, in the same chunks, from the same
start.

Memory: every run is a process of its own, which reads the size of its anonymous pages (RssAnon of /proc/self/status)
every 10 ms. Pages of the mapped file are not among them: they belong to the file cache, and the system can reclaim them
at any time. There are two figures. The first is the peak of the whole process above its memory before it opened the
data; this is mostly compiling. The second is the peak of the timed runs above the memory after a run on the first
65,536 rows, whose chunk has the same size; it does not count memory that the allocator already had and used again.

Predicted: on file both peaks are the same at both sizes, and the second is a few chunks (65,536 rows of 45 features are
11 MiB), some tens of MiB. In memory the second is above the rows' own 61 MiB. Ten times the rows take ten times the
seconds a pass, and a pass on file takes at most 1.3 times as long as one in memory.

    python benchmarks/mixture_out_of_core.py [--quick] [--rows N ...] [--folder DIR]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import numpy as np
from measuring import arguments, record, say_where, table

FEATURES, COMPONENTS = 8, 10
CHUNK = 1 << 16
MIB = 2**20
REPEATS = 2  # the faster one counts, because other work on the machine only adds time
FEW, MANY = 1, 6  # steps; a run of s steps passes s + 1 times over a file


class Told(NamedTuple):
    """The figures of a run."""

    peak: float  # MiB of anonymous memory above what was held before the data were opened
    beside: float  # MiB above the memory held after a run on one chunk
    seconds: float  # a pass
    value: float  # log likelihood a row, nats, at the end
    evaluations: int


def write(path: pathlib.Path, rows: int) -> None:
    """Overlapping components in random order, a chunk at a time."""
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(COMPONENTS, FEATURES))
    roots = 0.5 * rng.normal(size=(COMPONENTS, FEATURES, FEATURES)) + np.eye(FEATURES)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, FEATURES))
    for first in range(0, rows, CHUNK):
        k = rng.integers(0, COMPONENTS, min(CHUNK, rows - first))
        noise = rng.normal(size=(len(k), FEATURES))
        file[first : first + CHUNK] = means[k] + np.einsum("nij,nj->ni", roots[k], noise)
    file.flush()


def anonymous() -> int:
    """Bytes of this process's anonymous memory, which is not mapped from a file."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon: this benchmark needs Linux 4.5 or newer.")


class Peak:
    """The largest anonymous memory between entering and leaving the context, measured every 10 ms."""

    def __enter__(self) -> "Peak":
        self.base = self.most = anonymous()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.wait(0.01):
            self.most = max(self.most, anonymous())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        self.most = max(self.most, anonymous())


def run(path: pathlib.Path, resident: bool) -> Told:
    """In a process of its own: EM of few and of many steps."""
    import jax.numpy as jnp

    import tractable as tr
    from tractable.latent.mixture import Gaussians, gaussian_mixture

    def begin(_: object, rows: np.ndarray) -> Gaussians:
        """Ten evenly spaced rows: the same ten for rows in memory and for rows on file."""
        chosen = np.arange(COMPONENTS) * (len(rows) // COMPONENTS)
        return Gaussians(
            np.full(COMPONENTS, 1 / COMPONENTS), rows[chosen], np.stack([5 * np.eye(FEATURES)] * COMPONENTS)
        )

    model = gaussian_mixture(COMPONENTS, FEATURES).with_steps(begin=begin)
    jnp.zeros(1).block_until_ready()  # starts the backend before memory is measured

    def fit(data: tr.Data, steps: int) -> tuple[float, tr.Posterior]:
        posterior = tr.infer(
            model, data, tr.EM(starts=1, steps=steps, tolerance=1e-300, chunk=CHUNK), seed=0, progress=False
        )
        return posterior.seconds["climbing"], posterior

    with Peak() as memory:
        first = tr.Data(np.load(path, mmap_mode="r")[:CHUNK], resident=resident)
        fit(first, MANY)  # compiles what a chunk needs
        with Peak() as later:
            data = tr.Data(str(path), resident=resident)
            for steps in (FEW, MANY) if resident else ():
                fit(data, steps)  # compiles: programs for all rows at once depend on the numbers of rows and steps
            again = [(fit(data, FEW), fit(data, MANY)) for _ in range(REPEATS)]
    (_, before), (_, after) = again[0]
    few, many = (min(pair[i][0] for pair in again) for i in (0, 1))
    passes = after.found["evaluations"] - before.found["evaluations"]
    return Told(
        (memory.most - memory.base) / MIB,
        (later.most - later.base) / MIB,
        (many - few) / passes,
        after.found["objective"] / data.size,
        after.found["evaluations"],
    )


def told(path: pathlib.Path, resident: bool) -> Told:
    """The figures of a new process, because a process does not return all memory that it used before."""
    command = [sys.executable, __file__, "--run", str(path), *(["--resident"] if resident else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Told(**json.loads(done.stdout.splitlines()[-1]))


def compared(sizes: list[int], folder: str | None) -> None:
    lines, on_file = [], []
    for i, rows in enumerate(sizes):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = pathlib.Path(place) / "rows.npy"
            began = time.perf_counter()
            write(path, rows)
            print(
                f"{rows:,} rows, {path.stat().st_size / MIB:.0f} MiB, written in {time.perf_counter() - began:.0f} s."
            )
            for resident in (False, True) if i == 0 else (False,):
                found = told(path, resident)
                if not resident:
                    on_file.append(found)
                where = "in memory" if resident else "on file"
                lines.append([
                    f"{rows:,}", where, found.peak, found.beside, found.seconds, 1e9 * found.seconds / rows,
                    f"{found.value:.5f}",
                ])  # fmt: skip
    print()
    head = ["rows", "data", "peak, MiB", "peak once compiled, MiB", "seconds a pass", "ns a row", "nats a row"]
    table(head, lines)
    record(__file__, head, lines, names=2, columns=["peak, MiB", "seconds a pass", "ns a row"])
    if len(on_file) > 1:
        first, last = on_file[0], on_file[-1]
        print(
            f"{sizes[-1] / sizes[0]:g} × the rows: {last.seconds / first.seconds:.2f} × the seconds, "
            f"{last.peak / first.peak:.2f} × the memory in all, {last.beside - first.beside:+.0f} MiB once compiled."
        )
    print(f"A pass on file takes {lines[0][4] / lines[1][4]:.2f} times one in memory ({lines[0][0]} rows).")


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, nargs="+", help="sizes; 2000000 20000000 by default")
    parser.add_argument(
        "--folder", help="where the files are written for a while; the system's temporary one by default"
    )
    parser.add_argument("--run", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--resident", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.run is not None:
        print(json.dumps(run(args.run, args.resident)._asdict()))
        return
    say_where("Does EM of a Gaussian mixture go through a file in bounded memory?")
    compared(args.rows or ([200_000, 800_000] if args.quick else [2_000_000, 20_000_000]), args.folder)


if __name__ == "__main__":
    main()
