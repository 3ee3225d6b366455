"""Shows the progress of a run as a bar on a terminal or in a notebook."""

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping

Say = Callable[..., None]  # a progress function (phase, done, of, values): ``values`` are a climb's numbers by name


@contextlib.contextmanager
def progress_of(choice: bool | Say | None) -> Iterator[Say]:
    """The progress function for a user's choice.

    A function is used as it is, but a function of only three arguments is called without the values. True shows a bar,
    False shows nothing, and None shows a bar on a terminal, or in a notebook with ipywidgets, only.
    """
    if callable(choice):
        yield as_say(choice)
        return
    # Without ipywidgets a notebook has no bar: rich would show nothing, and warn in every cell.
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if choice is False or (choice is None and not (notebook or sys.stderr.isatty())):
        yield lambda phase, done, of, values=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[curve]}")
    console = Console(stderr=not notebook, force_jupyter=None if notebook else False)
    with Bar(*columns, *times, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def say(phase: str, done: int, of: int, values: Mapping[str, float] | None = None) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=of, curve="")
            curve = ", ".join(f"{name} {value:.6g}" for name, value in (values or {}).items())
            bar.update(tasks[phase], completed=done, total=of, curve=curve)

        yield say


def as_say(function: Callable) -> Say:
    """A user's function of three or four arguments as a progress function, whose last argument may be left out."""
    if not _takes(function, ("", 0, 0, {})):
        return lambda phase, done, of, values=None: function(phase, done, of)
    if _takes(function, ("", 0, 0)):
        return function
    return lambda phase, done, of, values=None: function(phase, done, of, values or {})


def _takes(function: Callable, arguments: tuple) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # a builtin function may have no signature; it is called with all four
    return True
