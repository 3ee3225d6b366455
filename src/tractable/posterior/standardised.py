"""Posteriors of models of standardised columns, which raise an error where a result would have the wrong units.

Estimators standardise their columns (to mean 0 and sd 1) before they fit, and store such a posterior.
"""

import dataclasses
import functools
import pathlib
from typing import Any

from tractable.core.errors import RunError
from tractable.core.view import View
from tractable.posterior.posterior import Posterior

# Names of results that have units: of parameters, rows or densities. Reports and run times, for example, have none.
REFUSED = (
    "allocations", "derived", "diagnose", "diagnosed", "draws", "elbo", "encode", "extend", "flat_moments",
    "generate", "impute", "local", "log_evidence", "log_likelihood", "log_predictive", "loo", "mean", "paths",
    "pit", "point", "posterior_predictive", "predict", "predictive", "prior_predictive", "pruned", "reconstruct",
    "readings", "relabelled", "sample", "sd", "sensitivity", "spread", "summary", "to_arviz", "unconstrained", "values",
    "verify",
)  # fmt: skip
VIEWED = ("readings", "summary", "to_arviz")  # these have the user's units if the columns' view is known


@dataclasses.dataclass(eq=False, repr=False)
class Standardised(Posterior):
    """A posterior whose model is of standardised columns, while the user's rows are not standardised.

    Its report, seconds, settings and ``found`` can be used as usual. Predictions, draws, means and all other results
    with units raise a RunError: the estimator has them in the user's units, and ``standardised`` in the model's units.
    If ``columns``, the view of a linear model, is given, ``summary`` and ``to_arviz`` have the user's names and units.
    """

    columns: View | None = None

    @property
    def view(self) -> View | None:
        return self.columns

    @functools.cached_property
    def standardised(self) -> Posterior:
        """The same posterior in the units of its model, whose columns have mean 0 and sd 1."""
        return Posterior(**_fields(self))

    @property
    def _as_learnt(self) -> Posterior:
        return self.standardised

    def __repr__(self) -> str:
        return f"{super().__repr__()} of standardised columns"

    def write(self, folder: pathlib.Path, *, streamed: bool = False, units: str = "standardised") -> None:
        """Writes the posterior as ``Posterior.write`` does; the folder says that its units are standardised."""
        self.standardised.write(folder, streamed=streamed, units=units)


def as_standardised(posterior: Posterior, columns: View | None = None) -> Standardised:
    """The posterior, marked as that of a model of standardised columns."""
    return Standardised(**_fields(posterior), columns=columns)


def _fields(posterior: Posterior) -> dict:
    """The posterior's fields, with which a copy can be made."""
    return {field.name: getattr(posterior, field.name) for field in dataclasses.fields(Posterior)}


def _refuse(name: str) -> property:
    """A property that raises a RunError and says where to find ``name`` in either units."""

    def refuse(self: Standardised) -> Any:
        if name in VIEWED and self.columns is not None:
            return getattr(super(Standardised, self), name)
        raise RunError(
            f"posterior_.{name} would be in units of standardised columns, not in your units. The estimator's own "
            f"methods and attributes, such as predict, are in your units; posterior_.standardised.{name} is in units "
            "of the standardised columns."
        )

    return property(refuse)


for _name in REFUSED:
    setattr(Standardised, _name, _refuse(_name))
