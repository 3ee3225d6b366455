"""The settings of the methods that estimate the evidence, and their ranges."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from tractable.core.errors import SettingsError
from tractable.core.settings import Count, Range, Settings, at_least, is_number


@dataclass(frozen=True, kw_only=True)
class Way(Settings):
    """Settings of a method that estimates the evidence."""

    subject: ClassVar[str] = "log_evidence"


@dataclass(frozen=True, kw_only=True)
class MonteCarlo(Way):
    """Settings of "monte-carlo".

    Args:
        draws: S, the number of draws from the prior.
    """

    draws: Annotated[int, at_least(100)] = 100_000


@dataclass(frozen=True, kw_only=True)
class Importance(Way):
    """Settings of "importance".

    Args:
        draws: S, the number of draws from q.
        degrees: degrees of freedom ν of q, which consists of Student t's if no posterior is given.
        starts: number of optimisations that search for the modes around which q is made; at a given θ, per row.
    """

    draws: Annotated[int, at_least(100)] = 10_000
    degrees: Annotated[float | int, Range("a positive number", lambda value: is_number(value, 0))] = 5
    starts: Count = 4


@dataclass(frozen=True, kw_only=True)
class Annealing(Way):
    """Settings of "annealed".

    Args:
        chains: S, the number of chains forwards, and of chains backwards.
        temperatures: about the number of temperatures T, which are spread over the pilot's stages. None chooses T in
            200..10,000, so that the variance of log w is about ½.
        transitions: number of transitions at each temperature.
        kernel: the Markov kernel of the transitions.
        reverse: whether to run backwards from posterior draws too, for the upper bound.
        pilot: number of particles of the run that chooses temperatures, step sizes and covariances.
    """

    chains: Annotated[int, at_least(32)] = 256
    temperatures: Annotated[int, at_least(2)] | None = None
    transitions: Count = 1
    kernel: Literal["mala", "random-walk"] = "mala"
    reverse: bool = True
    pilot: Annotated[int, at_least(64)] = 512


@dataclass(frozen=True, kw_only=True)
class Laplace(Way):
    """Settings of "laplace".

    Args:
        draws: number of draws of the normal approximation, whose importance weights check it.
        starts: number of optimisations that search for modes.
    """

    draws: Annotated[int, at_least(100)] = 4000
    starts: Count = 4


METHODS = {"monte-carlo": MonteCarlo, "importance": Importance, "annealed": Annealing, "laplace": Laplace}
# For each method at a given θ, the class of its settings, and the defaults that differ. "enumeration" has no settings.
AT_THETA: dict[str, tuple[type[Way], dict[str, Any]]] = {
    "enumeration": (Way, {}),
    "monte-carlo": (MonteCarlo, {"draws": 1000}),
    "importance": (Importance, {"draws": 1000}),
    "annealed": (Annealing, {"chains": 32, "temperatures": 100}),
}


def settings_of(method: str, settings: dict[str, Any], at_theta: bool = False) -> Way:
    """The method's settings, with those that the user gives.

    At a given θ there is no setting "reverse": there is a backward run if z= is given.
    """
    methods = AT_THETA if at_theta else {name: (kind, {}) for name, kind in METHODS.items()}
    if method not in methods:
        call = "log_evidence(method=..., theta=...)" if at_theta else "log_evidence(method=...)"
        raise SettingsError(f"{call} expects one of {', '.join(map(repr, methods))}; got {method!r}.")
    kind, defaults = methods[method]
    names = [field.name for field in dataclasses.fields(kind) if not (at_theta and field.name == "reverse")]
    if unknown := [name for name in settings if name not in names]:
        raise SettingsError(
            f"log_evidence(method={method!r}) has no setting {', '.join(unknown)}; "
            f"expected some of {', '.join(names) or 'none'}."
        )
    return kind(**(defaults | settings))
