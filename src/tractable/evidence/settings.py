"""Settings of the ways to the evidence, and the sentences of those that are out of range."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from tractable.core import Data
from tractable.tools.counts import is_count
from tractable.tools.errors import DataError, SettingsError

KERNELS = ("mala", "random-walk")


@dataclass(frozen=True, kw_only=True)
class MonteCarlo:
    """Settings of "monte-carlo".

    Args:
        draws: S ≥ 100, of the prior.
    """

    draws: int = 100_000

    def __post_init__(self) -> None:
        whole(self, "draws", 100)


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Settings of "importance".

    Args:
        draws: S ≥ 100, of q.
        degrees: ν > 0 of the Student t that q is where no posterior is given.
        starts: climbs to modes, from which q is made; at a given θ for every datum.
    """

    draws: int = 10_000
    degrees: float | int = 5
    starts: int = 4

    def __post_init__(self) -> None:
        whole(self, "draws", 100)
        whole(self, "starts", 1)
        good = isinstance(self.degrees, float | int) and 0 < self.degrees < math.inf
        refuse(good, self, "degrees", "a positive number")


@dataclass(frozen=True, kw_only=True)
class Annealing:
    """Settings of "annealed".

    Args:
        chains: S ≥ 32, forwards and as many backwards.
        temperatures: T ≥ 2, about, spread over the pilot's stages; None chooses it so that log w has a variance
            of about ½, in 200..10,000.
        transitions: ≥ 1 at every temperature.
        kernel: "mala" or "random-walk".
        reverse: run backwards from posterior draws too, for the upper bound.
        pilot: ≥ 64 particles of the run that chooses temperatures, steps and covariances.
    """

    chains: int = 256
    temperatures: int | None = None
    transitions: int = 1
    kernel: str = "mala"
    reverse: bool = True
    pilot: int = 512

    def __post_init__(self) -> None:
        whole(self, "chains", 32)
        whole(self, "transitions", 1)
        whole(self, "pilot", 64)
        if self.temperatures is not None:
            whole(self, "temperatures", 2)
        refuse(self.kernel in KERNELS, self, "kernel", "'mala' or 'random-walk'")
        refuse(isinstance(self.reverse, bool), self, "reverse", "True or False")


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """Settings of "laplace".

    Args:
        draws: S ≥ 100, of the normal, that judge it.
        starts: climbs to modes; several modes are found only from several.
    """

    draws: int = 4000
    starts: int = 4

    def __post_init__(self) -> None:
        whole(self, "draws", 100)
        whole(self, "starts", 1)


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """ "enumeration" has no settings."""


METHODS: dict[str, Any] = {
    "monte-carlo": MonteCarlo,
    "importance": Importance,
    "annealed": Annealing,
    "laplace": Laplace,
}
# At a given θ, with the settings there are and what they are by default.
AT_THETA: dict[str, tuple[Any, dict[str, Any]]] = {
    "enumeration": (Enumeration, {}),
    "monte-carlo": (MonteCarlo, {"draws": 1000}),
    "importance": (Importance, {"draws": 1000, "degrees": 5, "starts": 4}),
    "annealed": (Annealing, {"chains": 32, "temperatures": 100, "transitions": 1, "kernel": "mala", "pilot": 512}),
}


def settings_of(method: str, settings: dict[str, Any], at_theta: bool = False) -> Any:
    """The method's, with those of the user; "reverse" at a given θ is whether there is z."""
    known: Any = AT_THETA if at_theta else METHODS
    if method not in known:
        where = ", theta=...) at a given θ" if at_theta else ")"
        raise SettingsError(f"log_evidence(method=...{where} is one of {', '.join(map(repr, known))}; got {method!r}.")
    kind, defaults = known[method] if at_theta else (known[method], {})
    fields = list(defaults) if at_theta else [field.name for field in dataclasses.fields(kind)]
    unknown = [name for name in settings if name not in fields]
    if unknown:
        raise SettingsError(
            f"log_evidence(method={method!r}) has no setting {', '.join(unknown)}; "
            f"expected some of {', '.join(fields) or 'none'}."
        )
    return kind(**(defaults | settings))


def whole(settings: Any, field: str, least: int) -> None:
    """A sentence where a setting is no whole number of at least so much."""
    refuse(is_count(getattr(settings, field), least), settings, field, f"a whole number ≥ {least}")


def refuse(good: bool, settings: Any, field: str, expected: str) -> None:
    """The sentence of a setting that is out of range."""
    if not good:
        raise SettingsError(f"log_evidence({field}=...) expects {expected}; got {getattr(settings, field)!r}.")


def check_resident(data: Data) -> None:
    if not data.resident:
        raise DataError(
            f"log_evidence looks at all {data.size} rows for every draw and needs them in memory, "
            f"{data.nbytes / 2**30:.1f} GiB; use Data(..., resident=True) if it allows, or fewer rows."
        )
