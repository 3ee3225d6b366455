"""How long until the first answer: importing, the coin example cold, and a second fit of the same model?

Every measurement but the last is of fresh processes. The import is held against the heaviest thing it imports.

Predicted: ``import tractable`` within 0.3 s of its heaviest dependency; the coin example in under 10 s cold; a second
``infer`` of the same model compiles nothing.

    python benchmarks/start_up.py [--quick]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings

from measuring import arguments, table

PACKAGES = (
    "jax", "optax", "equinox", "numpyro", "blackjax", "sklearn", "scipy.stats", "pandas", "pyarrow",
    "matplotlib.pyplot",
    "arviz_base", "arviz_stats", "jinja2", "zarr", "typer", "rich",
)  # fmt: skip
METHODS = {"map": {}, "rejection": {}, "mala": {}, "nuts": {}, "sgld": {}}


def fresh(code: str) -> float:
    """Wall time of ``code`` in a fresh interpreter, the interpreter's own start left out: it prints the seconds."""
    timed = f"import time; _t = time.perf_counter()\n{code}\nprint(time.perf_counter() - _t)"
    return float(
        subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def imported() -> set[str]:
    """Which of the packages ``import tractable`` brings in."""
    code = f"import tractable, sys, json; print(json.dumps([p for p in {PACKAGES!r} if p in sys.modules]))"
    return set(
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    )


def imports(repeats: int) -> None:
    loaded = imported()
    names = ["tractable", *sorted(loaded)]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            seconds[name].append(fresh(f"import {name}"))
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    heaviest = max((n for n in names if n != "tractable"), key=lambda n: medians[n])
    print("### Importing\n")
    ordered = sorted(names, key=lambda n: -medians[n])
    table(
        ["import", "seconds", f"more than {heaviest}"],
        [[name, medians[name], medians[name] - medians[heaviest]] for name in ordered],
    )
    if left := [p for p in PACKAGES if p not in loaded]:
        print(f"Not imported by `import tractable`: {', '.join(left)}.\n")


def child(method: str) -> None:
    """Cold: import, build, infer, verdict; then again, counting what is compiled."""
    began = time.perf_counter()
    import jax

    import tractable as tr
    from tractable import run as loop
    from tractable.methods import from_settings
    from tractable.models.gallery import example

    ready = time.perf_counter()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    warnings.simplefilter("ignore")
    times, counts, traces = [], [], []
    for seed in (0, 0, 1):
        model, data, _ = example("beta-bernoulli").build()
        before, traced, start = len(compiled), loop.traces, time.perf_counter()
        posterior = tr.infer(model, data, from_settings({"method": method}), seed=seed, progress=False)
        verdict = posterior.report().verdict
        times.append(time.perf_counter() - start)
        counts.append(len(compiled) - before)
        traces.append(loop.traces - traced)
    print(json.dumps([ready - began, times, counts, traces, verdict]))


def answers(repeats: int) -> None:
    rows = []
    for method in METHODS:
        command = [sys.executable, __file__, "--child", method]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            for _ in range(repeats)
        ]
        imports_, first, second = (
            statistics.median(values)
            for values in ([r[0] for r in runs], [r[1][0] for r in runs], [r[1][1] for r in runs])
        )
        _, _, counts, traces, verdict = runs[0]
        rows.append(
            [
                method,
                imports_,
                first,
                imports_ + first,
                second,
                counts[0],
                counts[1],
                counts[2],
                traces[1] + traces[2],
                verdict,
            ]
        )
    print("### The coin example in a fresh process: seconds, and programs compiled\n")
    table(
        ["method", "import", "first fit", "cold answer", "second fit", "compiled by the first", "by the second",
         "by a third, another seed", "loop traces after the first", "verdict"],
        rows,
    )  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    print("## How long until the first answer?\n")
    if args.quick:
        global METHODS
        METHODS = {"map": {}}
    imports(1 if args.quick else 7)
    answers(1 if args.quick else 3)


if __name__ == "__main__":
    main()
