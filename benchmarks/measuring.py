"""Functions that the scripts here share: timing, markdown tables, records of figures, and the data sets' folder."""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

RESULTS = pathlib.Path(__file__).with_name("results")  # a JSON file for each script, from which RESULTS.md is made
DIGITS = 4  # of a figure, as it is recorded
MEASURED: dict[str, dict[str, Any]] = {}  # what this process recorded, by script


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
    """The path DIR/wanted; if it does not exist, prints a message and exits with code 2."""
    if named is None or not (pathlib.Path(named) / wanted).exists():
        where = "No folder of data sets was named" if named is None else f"There is no {wanted} in {named}"
        print(f"{where}: pass --data DIR, or set TRACTABLE_DATA, to a folder that holds {wanted}.", file=sys.stderr)
        raise SystemExit(2)
    return pathlib.Path(named) / wanted


def medians(
    candidates: dict[str, Callable], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median seconds a call. All are called once to compile, and then in turn, so that a slow minute affects all.

    With ``time.process_time`` they are processor seconds, which do not count other processes on the machine.
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
    """Print a heading, and the machine that is measured: on other machines only the ratios hold."""
    device = jax.devices()[0]
    digits = "float64" if jax.config.jax_enable_x64 else "float32"
    print(f"## {title}\n")
    print(f"{os.cpu_count()} cores, {device.platform} ({device.device_kind}), {platform.python_implementation()} "
          f"{platform.python_version()}, JAX {jax.__version__}, {digits}.\n", flush=True)  # fmt: skip


def record(
    script: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    names: int = 1,
    columns: Sequence[str] = (),
    keep: bool = True,
) -> None:
    """Write a table's figures to ``results/SCRIPT.json``, with the command, the date, the machine and versions.

    ``python benchmarks/results_page.py`` then brings RESULTS.md and the pages that quote the figures up to date. A run
    with ``--quick`` measures nothing, and is not recorded. A script with several tables calls it for each.

    Args:
        script: the script's ``__file__``.
        head, rows: as for ``table``. Where the only column is "value", a row is a figure, without columns.
        names: so many of the first columns name a row, with commas between them.
        columns: those to record; by default all that name nothing.
        keep: whether rows of earlier runs stay that this run did not measure; the file lists them under "older".
    """
    if "--quick" in sys.argv:
        return
    path = RESULTS / f"{pathlib.Path(script).stem}.json"
    found = MEASURED.setdefault(path.stem, {})
    for row in rows:
        figures = {
            column: _rounded_figure(cell)
            for column, cell in zip(head[names:], row[names:], strict=True)
            if not columns or column in columns
        }
        name = ", ".join(str(_shown(cell)) for cell in row[:names])
        found[name] = figures["value"] if list(figures) == ["value"] else figures
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    earlier = {name: row for name, row in before.get("figures", {}).items() if keep and name not in found}
    data = {
        "script": f"benchmarks/{pathlib.Path(script).name}",
        "title": before.get("title", path.stem),
        **circumstances(script),
        "figures": earlier | found,
        "older": list(earlier),
        "notes": before.get("notes", ""),
    } | {key: before[key] for key in ("decision",) if key in before}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"Recorded in {path.name}; python benchmarks/results_page.py brings the pages up to date.", file=sys.stderr)


def circumstances(script: str) -> dict[str, Any]:
    """The command of this run of a script, its date, the machine and versions."""
    device = jax.devices()[0]
    digits = "float64" if jax.config.jax_enable_x64 else "float32"
    return {
        "command": shlex.join(["python", f"benchmarks/{pathlib.Path(script).name}", *map(_hide_path, sys.argv[1:])]),
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {device.platform} ({device.device_kind}), {digits}",
        "versions": {"python": platform.python_version(), "jax": jax.__version__},
    }


def _rounded_figure(cell: Any) -> Any:
    """A figure as JSON: text, a whole number, a number rounded to ``DIGITS``, or null if it is missing."""
    if isinstance(cell, str | int):
        return cell
    return None if cell is None or cell != cell else float(f"{float(cell):.{DIGITS}g}")


def _hide_path(argument: str) -> str:
    """An argument of the command line; PATH in place of a path of this machine."""
    return "PATH" if os.sep in argument or pathlib.Path(argument).exists() else argument
