"""What the scripts here share: fair timing, markdown tables, and where the data sets are."""

import argparse
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax


def arguments(doc: str, *, data: bool = False) -> argparse.ArgumentParser:
    """A parser that shows the script's docstring, with the options that all scripts have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures nothing")
    if data:
        parser.add_argument(
            "--data", default=os.environ.get("TRACTABLE_DATA"), metavar="DIR", help="data sets; $TRACTABLE_DATA"
        )
    return parser


def data_folder(named: str | None, wanted: str) -> pathlib.Path:
    """DIR/wanted, or a sentence and exit 2."""
    if named is None or not (pathlib.Path(named) / wanted).exists():
        where = "No folder of data sets was named" if named is None else f"There is no {wanted} in {named}"
        print(f"{where}: pass --data DIR, or set TRACTABLE_DATA, to a folder that holds {wanted}.", file=sys.stderr)
        raise SystemExit(2)
    return pathlib.Path(named) / wanted


def medians(
    candidates: dict[str, Callable], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds a call. All are called once to compile, then in turn, so that a slow minute is everybody's.

    By ``time.process_time`` they are a processor's, whoever else works on the machine.
    """
    for run in candidates.values():
        jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            began = clock()
            jax.block_until_ready(run())
            seconds[name].append(clock() - began)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def table(head: list[str], rows: list[list]) -> None:
    """Print a markdown table; numbers are right-aligned and rounded to three digits."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(len(str(c)) for c in column) for column in zip(head, *cells, strict=True)]
    numeric = [all(not isinstance(row[i], str) for row in rows) for i in range(len(head))]

    def line(row: list[str]) -> str:
        padded = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "| " + " | ".join(padded) + " |"

    print(line(head))
    print("|" + "|".join("-" * (w + 1) + (":" if n else "-") for w, n in zip(widths, numeric, strict=True)) + "|")
    for row in cells:
        print(line(row))
    print(flush=True)


def _shown(cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell is None or cell != cell:
        return "–"
    value = float(cell)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"


def say_where(title: str) -> None:
    """A heading, and the machine the numbers are of: only ratios carry over to another."""
    device = jax.devices()[0]
    digits = "float64" if jax.config.jax_enable_x64 else "float32"
    print(f"## {title}\n")
    print(f"{os.cpu_count()} cores, {device.platform} ({device.device_kind}), {platform.python_implementation()} "
          f"{platform.python_version()}, JAX {jax.__version__}, {digits}.\n", flush=True)  # fmt: skip
