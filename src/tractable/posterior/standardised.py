"""Posteriors of standardised columns, as estimators hold them: they refuse what would be read in the user's units."""

import dataclasses
import functools
import pathlib
from typing import NoReturn

from tractable.core.errors import RunError
from tractable.posterior.posterior import Posterior

# What speaks of parameters, rows or densities. How the fit went, and how far it can be trusted, has no units.
REFUSED = (
    "allocations", "derived", "diagnose", "diagnosed", "draws", "elbo", "encode", "extend", "flat_moments",
    "generate", "impute", "local", "log_evidence", "log_likelihood", "log_predictive", "loo", "mean", "paths",
    "pit", "point", "posterior_predictive", "predict", "predictive", "prior_predictive", "pruned", "reconstruct",
    "relabelled", "sample", "sd", "sensitivity", "spread", "summary", "to_arviz", "unconstrained", "values",
    "verify",
)  # fmt: skip


class Standardised(Posterior):
    """A posterior whose model is of standardised columns, though its owner's rows are not.

    Its report, seconds, settings and ``found`` are read as ever. Predictions, draws, means and all else that has units
    raise a RunError: the estimator gives them in the user's units, and ``standardised`` in the model's own.
    """

    @functools.cached_property
    def standardised(self) -> Posterior:
        """The same posterior in the units of its model: of columns with mean 0 and sd 1."""
        return Posterior(**_fields(self))

    def __repr__(self) -> str:
        return f"{super().__repr__()} of standardised columns"

    def write(self, folder: pathlib.Path, *, streamed: bool = False, units: str = "standardised") -> None:
        self.standardised.write(folder, streamed=streamed, units=units)


def as_standardised(posterior: Posterior) -> Standardised:
    """The posterior, of a model of standardised columns."""
    return Standardised(**_fields(posterior))


def _fields(posterior: Posterior) -> dict:
    return {field.name: getattr(posterior, field.name) for field in dataclasses.fields(posterior)}


def _refuse(name: str) -> property:
    def refuse(self: Standardised) -> NoReturn:
        raise RunError(
            f"posterior_.{name} would be of standardised columns, and not in your units. The estimator's own methods "
            f"and attributes, such as predict, are in yours; posterior_.standardised.{name} is of the standardised "
            "columns."
        )

    return property(refuse)


for _name in REFUSED:
    setattr(Standardised, _name, _refuse(_name))
