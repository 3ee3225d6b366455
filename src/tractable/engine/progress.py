"""Live progress: a bar on a terminal, one line otherwise."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping

Say = Callable[..., None]  # (phase, done, of, values={}): values of a climb's curve by name


@contextlib.contextmanager
def progress_of(choice: bool | Say | None) -> Iterator[Say]:
    """``choice`` if it is a function; else one that shows a bar (True; None on a terminal or notebook), or nothing.

    A function of three arguments is called without the values of the curve.
    """
    if callable(choice):
        yield choice if _takes_values(choice) else lambda phase, done, of, values=None: choice(phase, done, of)
        return
    notebook = "ipykernel" in sys.modules
    if choice is False or (choice is None and not (notebook or sys.stderr.isatty())):
        yield lambda phase, done, of, values=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[curve]}")
    with Bar(*columns, *times, console=Console(stderr=not notebook), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def say(phase: str, done: int, of: int, values: Mapping[str, float] | None = None) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=of, curve="")
            curve = ", ".join(f"{name} {value:.6g}" for name, value in (values or {}).items())
            bar.update(tasks[phase], completed=done, total=of, curve=curve)

        yield say


def _takes_values(function: Say) -> bool:
    try:
        inspect.signature(function).bind("", 0, 0, {})
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a builtin without a signature
    return True
