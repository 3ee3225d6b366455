"""How a model's rows and numbers relate to a table of the user, in the table's names and units."""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Label(str):
    """The name of a number: its term and, for text and groups, the level of the term, as in "plan[basic]".

    A column may be called "income [k]", so a term and a level cannot be found in the text of a name.
    """

    term: str
    level: str | None

    def __new__(cls, term: str, level: str | None = None) -> "Label":
        label = super().__new__(cls, term if level is None else f"{term}[{level}]")
        label.term, label.level = term, level
        return label

    def __getnewargs__(self) -> tuple[str, str | None]:
        return self.term, self.level

    def of_part(self, prefix: str) -> "Label":
        """The name of the same number of one target or one class, such as "setosa.age"."""
        return Label(prefix + self.term, self.level)


def as_label(name: str) -> Label:
    """A name as a Label; of other text, the only pair of brackets holds the level if it stands at the end."""
    if isinstance(name, Label):
        return name
    found = re.fullmatch(r"([^][]+)\[([^][]*)\]", name)
    return Label(*found.groups()) if found else Label(name)


def unique_labels(labels: Iterable[Label], reserved: Collection[str] = ()) -> list[Label]:
    """The labels of a table's columns, with " (column)" after a term whose name stands for another number already.

    ``reserved`` are names of other numbers.

    >>> unique_labels([Label("age"), Label("noise"), Label("g", "a"), Label("g[a]")], {"noise"})
    ['age', 'noise (column)', 'g[a]', 'g[a] (column)']
    """
    labels, taken = list(labels), set(reserved)
    levels: dict[tuple[str, bool], list[str | None]] = {}  # of each term; a number and a text may have one name
    for label in labels:
        levels.setdefault((label.term, label.level is None), []).append(label.level)
    terms = {}
    for key, own in levels.items():
        term = key[0]
        while term in reserved or not taken.isdisjoint(Label(term, level) for level in own):
            term += " (column)"
        terms[key] = term
        taken.update(Label(term, level) for level in own)
    return [Label(terms[label.term, label.level is None], label.level) for label in labels]


class View(NamedTuple):
    """An affine map from the parameters θ of a model to the numbers v that a user reads.

        v = matrix θ + shift

    For example, a weight of a standardised column becomes the effect of one more unit of that column.
    """

    names: tuple[Label, ...]  # of the m numbers v
    matrix: Any  # (m, k) a sparse array of SciPy
    shift: np.ndarray  # (m,)

    def values(self, theta: ArrayLike) -> np.ndarray:
        """v (..., m) for flat parameters (..., k)."""
        flat = np.asarray(theta, np.float64)
        out = self.matrix @ flat.reshape(-1, flat.shape[-1]).T
        return out.T.reshape(*flat.shape[:-1], len(self.names)) + self.shift

    def sds(self, sd: np.ndarray) -> np.ndarray:
        """Standard deviations (m,) from those of the parameters (k,).

        They are NaN for numbers that combine several parameters, whose covariance is not known here.
        """
        return np.where(self.matrix.count_nonzero(axis=1) == 1, abs(self.matrix) @ np.asarray(sd, np.float64), np.nan)


class Table(NamedTuple):
    """The table that a model explains: ``posterior.predict`` takes such tables, and results have their units."""

    inputs: Callable[[Any], Any]  # from a table, with or without the target, to the likelihood's x
    data: Callable[[Any], Any]  # from a table with the target to Data
    in_units: Callable[[Any], Any]  # from a Prediction to one in the table's units
    log_units: Callable[[Any], Any]  # y -> (n,) nats by which log densities exceed those in the table's units
    decode: Callable[[Any], Any]  # from y to the target in the table's units, or to its class labels
    view: View | None = None  # None if the parameters have the table's names and units
