"""Settings of the methods that estimate the evidence, with their ranges."""

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
    """Settings of "monte-carlo": S draws from the prior."""

    draws: Annotated[int, at_least(100)] = 100_000


@dataclass(frozen=True, kw_only=True)
class Importance(Way):
    """Settings of "importance".

    Args:
        draws: S, from q.
        degrees: degrees of freedom ν of q, Student t's where no posterior is given.
        starts: climbs to the modes around which q is made; at a given θ, for every datum.
    """

    draws: Annotated[int, at_least(100)] = 10_000
    degrees: Annotated[float | int, Range("a positive number", lambda value: is_number(value, 0))] = 5
    starts: Count = 4


@dataclass(frozen=True, kw_only=True)
class Annealing(Way):
    """Settings of "annealed".

    Args:
        chains: S forwards, and as many backwards.
        temperatures: about T, spread over the pilot's stages; None chooses T in 200..10,000 so that the
            variance of log w is about ½.
        transitions: at every temperature.
        reverse: whether to run backwards from posterior draws too, for the upper bound.
        pilot: particles of the run that chooses temperatures, step sizes and covariances.
    """

    chains: Annotated[int, at_least(32)] = 256
    temperatures: Annotated[int, at_least(2)] | None = None
    transitions: Count = 1
    kernel: Literal["mala", "random-walk"] = "mala"
    reverse: bool = True
    pilot: Annotated[int, at_least(64)] = 512


@dataclass(frozen=True, kw_only=True)
class Laplace(Way):
    """Settings of "laplace": draws of the normal, whose weights judge it; and climbs, each to one mode."""

    draws: Annotated[int, at_least(100)] = 4000
    starts: Count = 4


METHODS = {"monte-carlo": MonteCarlo, "importance": Importance, "annealed": Annealing, "laplace": Laplace}
# Of each method at a given θ, the settings' class and the defaults that differ. "enumeration" has no settings.
AT_THETA: dict[str, tuple[type[Way], dict[str, Any]]] = {
    "enumeration": (Way, {}),
    "monte-carlo": (MonteCarlo, {"draws": 1000}),
    "importance": (Importance, {"draws": 1000}),
    "annealed": (Annealing, {"chains": 32, "temperatures": 100}),
}


def settings_of(method: str, settings: dict[str, Any], at_theta: bool = False) -> Way:
    """The method's settings with the user's in place; at a given θ there is no "reverse": z= decides it."""
    known = AT_THETA if at_theta else {name: (kind, {}) for name, kind in METHODS.items()}
    if method not in known:
        where = ", theta=...) at a given θ" if at_theta else ")"
        raise SettingsError(f"log_evidence(method=...{where} is one of {', '.join(map(repr, known))}; got {method!r}.")
    kind, defaults = known[method]
    names = [field.name for field in dataclasses.fields(kind) if not (at_theta and field.name == "reverse")]
    if unknown := [name for name in settings if name not in names]:
        raise SettingsError(
            f"log_evidence(method={method!r}) has no setting {', '.join(unknown)}; "
            f"expected some of {', '.join(names) or 'none'}."
        )
    return kind(**(defaults | settings))
