"""How fast does ``tr.pack`` bring rows into random order, and in how much memory?

Packed are rows of 100 32-bit numbers in a .npy file, and a Parquet table with a target, ten numbers and a column of
text, each in a process of its own. The time is compared with ``cp`` of the same bytes; both are synced to the disk.
Memory is the process's own memory above that after the imports, without pages of mapped files, which the system can
reclaim.

Predicted: an array takes four to six times as long as a copy, because its bytes are read twice and written twice, with
two checksums. Memory stays below 600 MB, however many rows there are. A table takes as long as pandas and the encoder.

    python -W ignore benchmarks/pack.py [--quick] [--folder DIR]
"""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from measuring import arguments, record, say_where, table

WIDE = 100
PART = 100_000


def write_array(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, WIDE))
    for start in range(0, rows, PART):
        out[start : start + PART] = rng.standard_normal((len(out[start : start + PART]), WIDE), np.float32)
    out.flush()


def write_table(path: Path, rows: int) -> None:
    import pyarrow
    import pyarrow.parquet

    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, PART):
        count = min(PART, rows - start)
        columns = {f"x{i}": rng.standard_normal(count) for i in range(10)}
        columns |= {"colour": rng.choice(["red", "green", "blue"], count), "y": rng.standard_normal(count)}
        part = pyarrow.table(columns)
        writer = writer or pyarrow.parquet.ParquetWriter(path, part.schema)
        writer.write_table(part)
    if writer is not None:
        writer.close()


def packed(source: Path, out: Path, target: str | None, told: multiprocessing.Queue) -> None:
    import tractable as tr
    from tractable.tables import packing  # imported before memory is measured

    process, most, going = psutil.Process(), 0, True

    def own() -> int:
        now = process.memory_info()
        return now.rss - now.shared

    before = own()

    def watch() -> None:
        nonlocal most
        while going:
            most = max(most, own() - before)
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, spent = time.perf_counter(), sum(process.cpu_times()[:2])
    tr.pack(source, out, target=target, progress=False)
    seconds, spent = time.perf_counter() - began, sum(process.cpu_times()[:2]) - spent
    going = False
    watcher.join()
    assert packing.WORK not in os.listdir(out)
    told.put((seconds, spent, most))


def measured(folder: Path, rows: int, target: str | None) -> list:
    source = folder / ("rows.parquet" if target else "rows.npy")
    (write_table if target else write_array)(source, rows)
    os.sync()
    began = time.perf_counter()
    subprocess.run(["cp", source, folder / "copy"], check=True)
    os.sync()
    copy = time.perf_counter() - began
    (folder / "copy").unlink()
    told = multiprocessing.get_context("spawn").Queue()
    child = multiprocessing.get_context("spawn").Process(target=packed, args=(source, folder / "out", target, told))
    child.start()
    seconds, spent, most = told.get()
    child.join()
    size = source.stat().st_size
    source.unlink()
    shutil.rmtree(folder / "out")
    kind = "table" if target else "array"
    return [kind, rows, size / 1e9, copy, seconds, spent, seconds / copy, rows / seconds, most / 2**20]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--folder", default=None, help="where the files are made; by default the system's")
    options = parser.parse_args()
    say_where("Packing")
    sizes = [(10_000, None), (10_000, "y")] if options.quick else [
        (10**6, None), (10**7, None), (10**6, "y"), (5 * 10**6, "y")
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = [measured(Path(folder), count, target) for count, target in sizes]
    head = ["source", "rows", "GB", "cp, s", "pack, s", "CPU, s", "× cp", "rows/s", "memory, MB"]
    table(head, rows)
    record(__file__, head, rows, names=2)


if __name__ == "__main__":
    main()
