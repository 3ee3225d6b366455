"""What many rows and many devices cost a step.

    python benchmarks/scale.py mesh [--rows 1000000] [--columns 50] [--steps 1000]
    python benchmarks/scale.py file [--rows 100000000] [--columns 10] [--steps 3000] [--folder DIR]
    python benchmarks/scale.py sent [--rows 200] [--columns 100000] [--steps 200]

``mesh`` times SGLD on a logistic regression with rows in memory, for several batch sizes: without a mesh (XLA's threads
share a step), with the batch's rows spread over 1, 2 and 4 devices of this host, and over 2 processes of one device
each. ``fast`` is ``reproducible=False``.

``file`` times the same with rows in shards on file, from 10,000 to ``--rows`` rows, in batches of 1,000. Memory is the
peak of the process's own memory, without pages of mapped files. The time of a checkpoint is the time that saving adds
to a run; the time of going on is that of calling a run again after it has ended.

``sent`` counts the bytes that two processes send over the loopback device in each step, including TCP's own. They are
compared with the least that a reduction of the gradient must send: 2 (P − 1)/P of its bytes from each of P processes.
Nothing else may use the loopback device meanwhile.

Every figure comes from a process of its own, and is the time of its main run without the first block, which compiles.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import psutil
from measuring import record, say_where, table

SHARD = 5_000_000  # rows in each file


def learnt(data: Any, columns: int, batch: int, steps: int, **options: Any) -> tuple[Any, float]:
    """The posterior, and seconds a step."""
    import numpyro.distributions as dist

    import tractable as tr
    from tractable.engine import run as loop

    model = tr.Model(
        {"w": dist.Normal(np.zeros(columns, np.float32), 1.0).to_event(1)},
        lambda params, x: dist.Bernoulli(logits=x @ params["w"]),
    )
    method = tr.SGLD(chains=1, draws=steps, warmup=0, thin=1, batch_size=batch, step_size=1e-8, start="random")
    posterior = tr.infer(model, data, method, verify=None, progress=False, **options)
    return posterior, posterior.seconds["drawing"] / (steps - loop.BLOCK)


def made(rows: int, columns: int) -> Any:
    """Data of a logistic regression; first connects to the other processes, if there are any."""
    import jax

    import tractable as tr

    if "PROCESS" in os.environ:
        address, process = os.environ["PROCESS"].split()
        jax.distributed.initialize(address, 2, int(process))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns), np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns) / columns**0.5))).astype(np.float32)
    return tr.Data(y, given=x)


def sent(rows: int, columns: int, steps: int, reproducible: bool) -> dict:
    """Bytes a step over the loopback device, by all processes: the difference of a longer and a shorter run."""
    import jax

    data = made(rows, columns)
    mesh, counted = jax.make_mesh((2,), ("row",)), []
    for length in (steps, 3 * steps):
        before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        learnt(data, columns, rows // 2, length, mesh=mesh, reproducible=reproducible, draws="moments")
        counted.append(psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before)
    return {"bytes": (counted[1] - counted[0]) / (2 * steps)}


def over_devices(rows: int, columns: int, steps: int, batch: int, devices: int, reproducible: bool) -> dict:
    """Seconds a step with rows in memory, and the last position."""
    import jax

    data = made(rows, columns)
    mesh = None if devices == 0 else jax.make_mesh((devices,), ("row",))
    posterior, seconds = learnt(data, columns, batch, steps, mesh=mesh, reproducible=reproducible)
    last = np.asarray(posterior.unconstrained)[0, -1]
    return {"seconds": seconds, "last": last.tobytes().hex()}


def on_file(folder: str, rows: int, columns: int, steps: int) -> dict:
    """Seconds a step with rows on file, and in all; bytes of the process's own memory, at the peak and at the start."""
    import tractable as tr

    process, most, going = psutil.Process(), 0, True

    def own() -> int:
        now = process.memory_info()
        return now.rss - now.shared

    def watch() -> None:
        nonlocal most
        while going:
            most = max(most, own())
            time.sleep(0.02)

    before, watching = own(), threading.Thread(target=watch)
    watching.start()
    began = time.perf_counter()
    files = [f"{folder}/{name}/{'*' if rows > SHARD else '000'}.npy" for name in ("y", "x")]
    data = tr.Data(files[0], given=files[1], resident=False)
    if data.size != rows:
        raise SystemExit(f"expected {rows:,} rows in {folder}; found {data.size:,}")
    opened = time.perf_counter() - began
    learnt(data, columns, 1_000, steps)  # compiles, and reads each shard for the first time
    _, seconds = learnt(data, columns, 1_000, steps)
    going = False
    watching.join()
    with tempfile.TemporaryDirectory() as saved:
        _, saving = learnt(data, columns, 1_000, steps, checkpoint=saved)
        began = time.perf_counter()
        learnt(data, columns, 1_000, steps, checkpoint=saved)
        again = time.perf_counter() - began
    return {"step": seconds, "opened": opened, "own": most - before, "saving": saving / seconds, "again": again}


CHILDREN = {"devices": over_devices, "file": on_file, "sent": sent}


def write(folder: pathlib.Path, rows: int, columns: int) -> None:
    """Shards of rows of a logistic regression."""
    beside = np.random.default_rng(1).normal(size=columns).astype(np.float32) / columns**0.5
    for name in ("x", "y"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for shard, start in enumerate(range(0, rows, SHARD)):
        rng = np.random.default_rng((0, shard))
        x = rng.standard_normal((min(SHARD, rows - start), columns), np.float32)
        y = (rng.random(len(x), np.float32) < 1 / (1 + np.exp(-x @ beside))).astype(np.float32)
        np.save(folder / "x" / f"{shard:03}.npy", x)
        np.save(folder / "y" / f"{shard:03}.npy", y)


def measured(kind: str, *asked: object, devices: int = 1, processes: int = 1) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(devices // processes, 1)}"
    given = os.environ | {"XLA_FLAGS": flags}
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        given["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    running = [
        subprocess.Popen(
            [sys.executable, __file__, "child", kind, json.dumps(asked)], stdout=subprocess.PIPE, text=True,
            env=given | ({"PROCESS": f"{address} {i}"} if processes > 1 else {}),
        )
        for i in range(processes)
    ]  # fmt: skip
    told = [one.communicate()[0] for one in running]
    if any(one.returncode for one in running):
        raise SystemExit(f"a measurement of {kind} {asked} failed")
    return json.loads(told[0].splitlines()[-1])


def mesh(rows: int, columns: int, steps: int) -> None:
    say_where(f"SGLD over a mesh: {rows:,} rows of {columns} columns")
    shown = []
    for batch in (size for size in (1_000, 20_000, 200_000, 1_000_000) if size <= rows):
        found = {}
        for devices, processes, fixed in ((0, 1, True), (1, 1, True), (2, 1, True), (4, 1, True), (2, 1, False),
                                          (2, 2, True), (2, 2, False)):  # fmt: skip
            asked = (rows, columns, steps, batch, devices, fixed)
            name = "none" if devices == 0 else str(devices) if processes == 1 else f"{processes} processes"
            name = name if fixed else f"{name}, fast"
            found[name] = measured("devices", *asked, devices=devices, processes=processes)
        for name, one in found.items():
            ratio = one["seconds"] / found["none"]["seconds"]
            same = "–" if name == "none" else "yes" if one["last"] == found["2"]["last"] else "no"
            shown.append([f"{batch:,}", name, f"{1e3 * one['seconds']:.3g}", f"{ratio:.2f}", same])
    head = ["rows of a batch", "devices", "ms a step", "to no mesh", "bits of 2 devices"]
    table(head, shown)
    fixed = [row for row in shown if not row[1].endswith("fast")]
    record(__file__, head, fixed, names=2, columns=["ms a step", "to no mesh"])


def file(rows: int, columns: int, steps: int, folder: pathlib.Path) -> None:
    say_where(f"SGLD on file: {columns} columns, batches of 1,000")
    shown, count = [], 10_000
    while count <= rows:
        with tempfile.TemporaryDirectory(dir=folder) as shards:
            write(pathlib.Path(shards), count, columns)
            found = measured("file", shards, count, columns, steps)
        shown.append([f"{count:,}", f"{count * (columns + 1) * 4 / 1e9:.3g}", 1e3 * found["step"], found["own"] / 1e6,
                      found["opened"], f"{found['saving']:.2f}", found["again"]])  # fmt: skip
        count *= 10
    table(["rows", "GB", "ms a step", "memory, MB", "opened, s", "step with a checkpoint", "going on, s"], shown)


def bytes_sent(rows: int, columns: int, steps: int) -> None:
    say_where(f"Bytes sent a step by two processes: SGLD, batches of {rows // 2} rows")
    shown = []
    for size in (50, 1_000, columns):
        for fixed in (True, False):
            found = measured("sent", rows, size, steps, fixed, devices=2, processes=2)["bytes"]
            least = 2 * 4 * size  # bytes: each of 2 processes sends (P − 1)/P = 1/2 of the gradient's 4 * size twice
            order = "fixed" if fixed else "XLA's"
            shown.append([f"{size:,}", order, f"{found:,.0f}", f"{least:,}", f"{found / least:.3g}"])
    table(["gradient's numbers", "order of sums", "bytes a step", "one reduction", "ratio"], shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, rows, columns, steps in (
        ("mesh", 1_000_000, 50, 1_000), ("sent", 200, 100_000, 200), ("file", 100_000_000, 10, 3_000),
    ):  # fmt: skip
        part = parts.add_parser(name)
        part.add_argument("--rows", type=int, default=rows)
        part.add_argument("--columns", type=int, default=columns)
        part.add_argument("--steps", type=int, default=steps)
    part.add_argument("--folder", type=pathlib.Path, help="where shards are written, and deleted again")
    child = parts.add_parser("child")
    child.add_argument("kind", choices=CHILDREN)
    child.add_argument("asked", type=json.loads)
    asked = parser.parse_args()
    if asked.part == "child":
        print(json.dumps(CHILDREN[asked.kind](*asked.asked)))
    elif asked.part == "mesh":
        mesh(asked.rows, asked.columns, asked.steps)
    elif asked.part == "sent":
        bytes_sent(asked.rows, asked.columns, asked.steps)
    else:
        file(asked.rows, asked.columns, asked.steps, asked.folder)


if __name__ == "__main__":
    main()
