"""Does choosing a batch cost more when there are more rows, and does memory grow with the number of steps?

A step is timed at N = 1e4 to 1e7 rows of four numbers: choosing a batch and slicing its rows alone, and a whole SGLD
step whose gradient costs almost nothing. They are compared with a gather of random rows. Then the peak memory of new
processes is measured after 1e5 and 1e6 steps, with draws thinned, reduced to moments, or streamed to a folder.

Predicted: the cost of choosing does not depend on N (a Feistel permutation of blocks takes O(1) a step, and slicing
reads the same number of cache lines). Memory does not grow with the number of steps, up to 50 MB.

    python benchmarks/batch_selection.py [--quick] [--only time|memory]
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable.core.batches import Plan, place, window
from tractable.engine import run as loop
from tractable.engine.drawing import chain_keys
from tractable.engine.method import Program

BATCH, COLUMNS = 1000, 4
MODEL = tr.Model(
    {"mean": dist.Normal(jnp.zeros(COLUMNS), 1.0)}, lambda params: dist.Normal(params["mean"], 1.0).to_event(1)
)


def slices(plan: Plan, rows, steps: int):
    """Choosing and slicing as the library does it; the sum prevents the compiler from removing the slice."""

    @jax.jit
    def go(key, rows):
        def step(total, t):
            batch = window(rows, plan, *place(plan, key, t))
            return total + jnp.sum(batch.data[0] * batch.mask[:, None]), None

        return jax.lax.scan(step, jnp.float32(0), jnp.arange(steps))[0]

    return lambda: go(jax.random.key(0), rows)


def gathers(plan: Plan, rows, steps: int):
    """The same with rows drawn at random."""

    @jax.jit
    def go(key, rows):
        def step(total, t):
            index = jax.random.randint(jax.random.fold_in(key, t), (BATCH,), 0, plan.size)
            return total + jnp.sum(rows[0][index]), None

        return jax.lax.scan(step, jnp.float32(0), jnp.arange(steps))[0]

    return lambda: go(jax.random.key(0), rows)


def choices(plan: Plan, steps: int):
    """Choosing alone."""

    @jax.jit
    def go(key):
        return jnp.sum(jax.vmap(lambda t: place(plan, key, t)[0])(jnp.arange(steps)) & 1)

    return lambda: go(jax.random.key(0))


def whole_steps(data: tr.Data, steps: int):
    """SGLD steps through ``tractable.engine.run``."""
    method = tr.SGLD(
        chains=1, draws=steps // 1000, thin=1000, warmup=0, batch_size=BATCH, step_size=1e-9, preconditioner=None,
        start="random",
    )  # fmt: skip
    program, plan = Program(MODEL, method), method.plan(data)
    shape = loop.shape(steps // 1000, 1000, COLUMNS, 1)
    tuned = {"step_size": jnp.float32(1e-9), "scale": jnp.ones(COLUMNS, jnp.float32)}
    keys = chain_keys(jax.random.key(0), 1)
    states = loop.begin(program, tuned, None, keys, jnp.zeros((1, COLUMNS), jnp.float32))
    return lambda: (
        loop.run(loop.Loop(program, shape, plan), data, tuned, keys, loop.Start(states), steps // 1000).states
    )


def times(quick: bool) -> None:
    sizes = [10_000, 100_000] if quick else [10_000, 100_000, 1_000_000, 10_000_000]
    steps, repeats = (2_000, 2) if quick else (100_000, 5)
    rows_of, first = [], {}
    for size in sizes:
        y = np.random.default_rng(0).standard_normal((size, COLUMNS), dtype=np.float32)
        data, plan = tr.Data(y), Plan(size, BATCH)
        rows = data.windows(plan.width)
        few = steps // 10
        counts = {"choose": steps, "slice": steps, "step": steps, "gather": few}
        seconds = medians(
            {
                "choose": choices(plan, steps),
                "slice": slices(plan, rows, steps),
                "step": whole_steps(data, steps),
                "gather": gathers(plan, rows, few),
            },
            repeats,
        )
        each = {name: 1e6 * taken / counts[name] for name, taken in seconds.items()}
        first = first or each
        rows_of.append(
            [size, each["choose"], each["slice"], each["slice"] / first["slice"], each["step"],
             each["step"] / first["step"], each["gather"], each["gather"] / first["gather"]]
        )  # fmt: skip
    print(f"### Microseconds a step, batches of {BATCH} rows of {COLUMNS} numbers\n")
    head = ["N", "choose", "choose + slice", f"÷ N={sizes[0]}", "SGLD step", "÷ ", "random gather", "÷  "]
    table(head, rows_of)
    record(__file__, head, rows_of, columns=["choose", "choose + slice", "SGLD step", "random gather"])


MODES = {
    "nothing run": {},
    "kept, thin=1000": {"thin": 1000},
    "draws='moments', thin=1": {"thin": 1, "draws": "moments"},
    "draws='moments', thin=1000": {"thin": 1000, "draws": "moments"},
    "draws=FOLDER, thin=10": {"thin": 10, "draws": "folder"},
    "draws=FOLDER, thin=1000": {"thin": 1000, "draws": "folder"},
}
WIDE = 50  # parameters of the model whose memory is measured: at thin=1, its 1e6 draws would take 200 MB


def child(mode: str, steps: int) -> None:
    """One run in a process of its own; prints its peak memory."""
    settings = MODES[mode]
    y = np.random.default_rng(0).standard_normal((10_000, WIDE), dtype=np.float32)
    model = tr.Model(
        {"mean": dist.Normal(jnp.zeros(WIDE), 1.0)}, lambda params: dist.Normal(params["mean"], 1.0).to_event(1)
    )
    if settings:
        method = tr.SGLD(
            chains=1, draws=steps // settings["thin"], thin=settings["thin"], warmup=0, batch_size=10, step_size=1e-6,
            preconditioner=None, start="random", bias_tolerance=0.99,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            draws = settings.get("draws")
            kept = tr.infer(model, tr.Data(y), method, progress=False, draws=folder if draws == "folder" else draws)
        assert kept is not None
    # ru_maxrss keeps its value over exec, so it would show the parent's memory; the kernel's VmHWM does not.
    status = pathlib.Path("/proc/self/status").read_text()
    print(json.dumps(int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024))


def memory(quick: bool) -> None:
    counts = [10_000, 20_000] if quick else [100_000, 1_000_000]
    modes = ["nothing run", "kept, thin=1000"] if quick else list(MODES)
    rows = []
    for mode in modes:
        peaks = []
        for steps in counts:
            command = [sys.executable, __file__, "--child", mode, str(steps)]
            done = subprocess.run(command, capture_output=True, text=True)
            peaks.append(float(done.stdout.split()[-1]) if done.returncode == 0 else float("nan"))
            if done.returncode:
                print(f"{mode}, {steps} steps failed: {done.stderr.strip().splitlines()[-1]}\n")
        growth = peaks[1] - peaks[0]
        rows.append([mode, *peaks, growth, "flat" if growth < 50 else "grows"])
    print(f"### Peak memory of a fresh process, MB, model of {WIDE} parameters\n")
    table(["draws", *[f"after {c:,} steps" for c in counts], "growth", "verdict"], rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("time", "memory"))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], int(args.child[1]))
        return
    say_where("Does choosing a batch cost more when there are more rows?")
    if args.only != "memory":
        times(args.quick)
    if args.only != "time":
        memory(args.quick)


if __name__ == "__main__":
    main()
