"""Live progress: a bar on a terminal, one line otherwise."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Say = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress_of(choice: bool | Say | None) -> Iterator[Say]:
    """``choice`` if it is a function; else one that shows a bar (True; None on a terminal or notebook), or nothing."""
    if callable(choice):
        yield choice
        return
    notebook = "ipykernel" in sys.modules
    if choice is False or (choice is None and not (notebook or sys.stderr.isatty())):
        yield lambda phase, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn()
    times = TimeElapsedColumn(), TimeRemainingColumn()
    with Bar(*columns, *times, console=Console(stderr=not notebook), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def say(phase: str, done: int, of: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=of)
            bar.update(tasks[phase], completed=done, total=of)

        yield say
