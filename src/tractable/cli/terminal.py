"""The only module that writes on a terminal.

Tables, notes and names of folders may come from anybody, so this module never interprets them as markup.
"""

import contextlib
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.segment import Segment

from tractable.core.shown import printable

FAULT, REJECTED = 2, 3  # exit codes
ROWS, COLUMNS = 12, 9  # the largest number of rows and columns of a table that are shown
WIDE = 120  # the width of the text, in characters, if the output is not a terminal
# Python arguments in the library's messages that are options of the command line.
ARGUMENT = re.compile(
    r"\b(missing|family|array|redraw|mesh|exclude|pool|exposure|censored|event|until|thousands|decimal|na_values)="
    r"('[^']*'|\[[^]]*\]|\w+)?"
)


class Terminal(Console):
    """A console that prints text as it is: without markup or emoji, and with control characters as Python escapes."""

    def __init__(self, *, stderr: bool = False) -> None:
        wide = None if (sys.stderr if stderr else sys.stdout).isatty() else WIDE
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, width=wide)

    def print(self, *objects: Any, **named: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **named)

    def render(self, *args: Any, **named: Any) -> Iterable[Segment]:
        for segment in super().render(*args, **named):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def line(text: object, style: str = "", *, stderr: bool = False) -> None:
    """Print one line without breaking it, however long it is."""
    Terminal(stderr=stderr).print(str(text), style=style, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """Print a line on stderr."""
    line(text, style, stderr=True)


def as_options(sentence: str) -> str:
    """A message of the library, with options of the command line in place of Python's arguments.

    >>> as_options("pass missing='drop', or choose another family=; redraw=True draws binary ones.")
    'pass --missing drop, or choose another --family; --redraw draws binary ones.'
    """

    def option(match: re.Match) -> str:
        value = ",".join(re.findall("'([^']*)'", match[2] or "")) or (match[2] or "").replace("True", "")
        return f"--{match[1].replace('_', '-')} {value and shlex.quote(value)}".strip()

    sentence = ARGUMENT.sub(option, sentence).replace("same checkpoint=", "same --out, and --resume,")
    return sentence.replace("solver='stochastic'", "--set solver=stochastic")


@contextlib.contextmanager
def notes() -> Iterator[list[str]]:
    """A context in which each of the library's warnings becomes one note on stderr; yields the list of the notes."""
    from tractable.core.errors import TractableWarning

    texts: list[str] = []

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if (text := as_options(str(message))) not in texts:
            texts.append(text)
            say(f"Note: {text}", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of other packages are not shown
        warnings.simplefilter("always", TractableWarning)
        warnings.showwarning = note
        yield texts


def show_result(quiet: bool, folder: object, parts: Iterable[Any], last: str) -> None:
    """Print the parts of a result and then the line ``last``; or, if ``quiet``, only the name of the folder."""
    if quiet:
        return line(folder)
    for each in parts:
        Terminal().print(each)
    line(last)


def verdict(word: str, results: Sequence, title: str) -> Any:
    """The parts of a report as a terminal shows them: its verdict, checks and title."""
    from tractable.pages.sections import Section
    from tractable.pages.terminal import to_terminal
    from tractable.pages.verdict import checks

    return to_terminal(Section(title, [checks(results)], verdict=word))


def end(interrupted: bool, verdict: str) -> None:
    """Exit with the run's code: that of the signal if the run was stopped, 3 if its verdict is "reject"."""
    if interrupted:
        from tractable.engine.stopping import exit_code

        raise typer.Exit(exit_code())
    if verdict == "reject":
        raise typer.Exit(REJECTED)
