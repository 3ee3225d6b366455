"""The one place that writes on a terminal: what tables, notes and folders hold may come from anybody."""

import contextlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.segment import Segment

from tractable.core.shown import printable

FAULT, REJECTED = 2, 3  # exit codes
ROWS, COLUMNS = 12, 9  # at most this many of a long table are shown
WIDE = 120  # columns of text where the output is no terminal
# Arguments that the library's messages advise, which a command line has as options.
ARGUMENT = re.compile(r"\b(missing|family|array|redraw|mesh|exclude|exposure|censored|event|until)=('[^']*'|\w+)?")


class Terminal(Console):
    """A console on which text stays text: no markup, no emoji, and control characters as Python writes them."""

    def __init__(self, *, stderr: bool = False) -> None:
        wide = None if (sys.stderr if stderr else sys.stdout).isatty() else WIDE
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, width=wide)

    def print(self, *objects: Any, **named: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **named)

    def render(self, *args: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **named):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def line(text: object, style: str = "", *, stderr: bool = False) -> None:
    """Print one line, however long."""
    Terminal(stderr=stderr).print(str(text), style=style, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line on stderr."""
    line(text, style, stderr=True)


def as_options(sentence: str) -> str:
    """A message of the library with the options of a command line in place of Python's arguments.

    >>> as_options("pass missing='drop', or choose another family=; redraw=True draws binary ones.")
    'pass --missing drop, or choose another --family; --redraw draws binary ones.'
    """

    def option(found: re.Match) -> str:
        value = (found[2] or "").strip("'").replace("True", "")
        return f"--{found[1]} {value}".strip()

    sentence = ARGUMENT.sub(option, sentence).replace("same checkpoint=", "same --out, and --resume,")
    return sentence.replace("solver='stochastic'", "--set solver=stochastic")


@contextlib.contextmanager
def notes() -> Iterator[list[str]]:
    """Inside, each of the library's warnings becomes one note on stderr; yields the list of the notes so far."""
    from tractable.core.errors import TractableWarning

    said: list[str] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if (text := as_options(str(message))) not in said:
            said.append(text)
            say(f"Note: {text}", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        warnings.simplefilter("always", TractableWarning)
        warnings.showwarning = note
        yield said


def show_result(quiet: bool, folder: object, shown: Iterable[Any], last: str) -> None:
    """Print what a command found, and ``last`` a line on its time or page; or its folder alone."""
    if quiet:
        return line(folder)
    for each in shown:
        Terminal().print(each)
    line(last)


def verdict(word: str, found: Sequence[Any]) -> Any:
    """The verdict and its checks, as a terminal shows them."""
    from tractable.pages.sections import Section
    from tractable.pages.terminal import to_terminal
    from tractable.pages.verdict import checks

    return to_terminal(Section("Verdict", [checks(found)], verdict=word))


def end(interrupted: bool, verdict: str) -> None:
    """Exit with the run's code: its signal's if it was stopped, 3 if its verdict is reject."""
    if interrupted:
        from tractable.engine.stopping import exit_code

        raise typer.Exit(exit_code())
    if verdict == "reject":
        raise typer.Exit(REJECTED)
