"""What a command says beside its results, and how it ends."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import typer

T = TypeVar("T")

FAULT, REJECTED = 2, 3  # exit codes
TYPED = {  # advice in the library's messages -> what to type on a command line
    "missing='drop' when fitting": "--drop-missing when fitting",
    "missing='impute' when fitting": "--missing impute when fitting",
    "array= is of": "--array is of",
    "array='NAME'": "--array NAME",
    "choose another family=": "choose another --family",
    "family= says": "--family says",
    "family='lognormal' explains": "--family lognormal explains",
    "Say family='ordered'": "Say --family ordered",
    "missing='impute' is not for": "--missing impute is not for",
    "pass missing='drop'": "pass --drop-missing",
    "family='continuous-bernoulli'": "--family continuous-bernoulli",
    "redraw=True": "--redraw",
    "mesh= ": "--mesh ",
    "mesh=": "--mesh ",
    "solver='stochastic'": "--set solver=stochastic",
    "same checkpoint=": "same --out, and --resume,",
}


def typed(sentence: str) -> str:
    """A message of the library with Python arguments replaced by command-line options."""
    for told, words in TYPED.items():
        sentence = sentence.replace(told, words)
    return sentence


def noted(function: Callable[[], T]) -> tuple[T, list[str]]:
    """What ``function`` returns, and the notes that it makes, which are told at its end, in a command line's words."""
    from tractable.tools.errors import TractableWarning

    caught, said = [], []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", TractableWarning)
            return function(), said
    finally:
        said += dict.fromkeys(typed(str(each.message)) for each in caught)
        for each in caught:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Inside, each of the library's warnings becomes one note on stderr; other packages' warnings are hidden."""
    from tractable.tools.errors import TractableWarning

    said = set()

    def note(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(f"Note: {typed(str(message))}", "yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TractableWarning)
        warnings.showwarning = note
        yield


def say(text: str, style: str = "") -> None:
    """A line on stderr."""
    from tractable.cli.terminal import line

    line(text, style, stderr=True)


def end(interrupted: bool, verdict: str) -> None:
    """Exit with the run's code: its signal's if it was stopped, 3 if its verdict is reject."""
    if interrupted:
        from tractable.tools.stopping import exit_code

        raise typer.Exit(exit_code())
    if verdict == "reject":
        raise typer.Exit(REJECTED)
