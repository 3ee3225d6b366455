"""Methods: the user's frozen dataclasses, by family."""

import dataclasses
from typing import Any

from tractable.methods.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.methods.bayes_by_backprop import BayesByBackprop
from tractable.methods.coordinate_ascent import CoordinateAscent
from tractable.methods.ensemble import DeepEnsemble
from tractable.methods.hamiltonian import HMC, NUTS
from tractable.methods.langevin import SGHMC, SGLD
from tractable.methods.laplace import Laplace
from tractable.methods.maximisation import EM
from tractable.methods.method import Method
from tractable.methods.metropolis import MALA, RandomWalk
from tractable.methods.monte_carlo_em import MonteCarloEM
from tractable.methods.nvil import NVIL, VIMCO
from tractable.methods.online_em import OnlineEM
from tractable.methods.points import MAP, MLE
from tractable.methods.rejection import Rejection
from tractable.methods.variational import FullRank, LowRank, MeanField
from tractable.methods.wake_sleep import ReweightedWakeSleep, WakeSleep
from tractable.tools.errors import SettingsError

METHODS: dict[str, type[Method]] = {
    m.label: m
    for m in (
        MLE, MAP, Laplace, Rejection, RandomWalk, MALA, HMC, NUTS, SGLD, SGHMC,
        MeanField, FullRank, LowRank, BayesByBackprop, DeepEnsemble, EM, OnlineEM,
        MonteCarloEM, CoordinateAscent, AutoEncoding, ImportanceWeighted, NVIL, VIMCO,
        WakeSleep, ReweightedWakeSleep,
    )
}  # fmt: skip
ALIASES = {
    "metropolis": "random-walk",
    "rwm": "random-walk",
    "mean-field": "meanfield",
    "full-rank": "fullrank",
}

__all__ = [
    "EM", "HMC", "MALA", "MAP", "METHODS", "MLE", "NUTS", "NVIL", "SGHMC", "SGLD", "VIMCO", "AutoEncoding",
    "BayesByBackprop", "CoordinateAscent", "DeepEnsemble", "FullRank", "ImportanceWeighted", "Laplace", "LowRank",
    "MeanField", "Method", "MonteCarloEM", "OnlineEM", "RandomWalk", "Rejection", "ReweightedWakeSleep", "WakeSleep",
    "from_settings", "named",
]  # fmt: skip


def named(name: str) -> type[Method]:
    """The method of a name such as "nuts" or "metropolis"."""
    label = ALIASES.get(name.lower(), name.lower())
    if label not in METHODS:
        raise SettingsError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
    return METHODS[label]


def from_settings(settings: dict[str, Any]) -> Method:
    """The method that ``settings`` describe; fields that a file cannot hold (functions) are refused."""
    settings = dict(settings)
    kind = named(settings.pop("method", ""))
    fields = {field.name for field in dataclasses.fields(kind)}
    unknown = sorted(set(settings) - fields)
    if unknown:
        raise SettingsError(f"{kind.__name__} has no field {', '.join(unknown)}; it has {', '.join(sorted(fields))}.")
    settings = {
        name: None if value == "none" else tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
    }
    for name, value in settings.items():
        if isinstance(value, str) and (value.startswith("<") or "<function" in value):
            raise SettingsError(
                f"{kind.__name__}({name}=...) was a function, which a file cannot hold: give method= again."
            )
    return kind(**settings)
