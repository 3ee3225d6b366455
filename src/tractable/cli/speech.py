"""What a command says beside its results, and how it ends."""

import contextlib
import warnings
from collections.abc import Iterator

import typer

FAULT, REJECTED = 2, 3  # exit codes
TYPED = {  # what sentences of the library tell to do, as it is typed
    "missing='drop' when fitting": "--drop-missing",
    "missing='impute' when fitting": "--missing impute",
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
}


def typed(sentence: str) -> str:
    """A sentence of the library in the words of a command line."""
    for told, words in TYPED.items():
        sentence = sentence.replace(told, words)
    return sentence


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Within, the library's warnings are notes on stderr, each once; others are not for users of a command."""
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
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(text, style=style, markup=False)


def end(interrupted: bool, verdict: str) -> None:
    """Leave with the exit code of a run: that of its signal where it was stopped, 3 where it is rejected."""
    if interrupted:
        from tractable.tools.stopping import exit_code

        raise typer.Exit(exit_code())
    if verdict == "reject":
        raise typer.Exit(REJECTED)
