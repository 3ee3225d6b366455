"""How a model's rows and numbers relate to a table of the user, in the table's names and units."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class View(NamedTuple):
    """An affine map from the parameters θ of a model to the numbers v that a user reads.

        v = matrix θ + shift

    For example, a weight of a standardised column becomes the effect of one more unit of that column.
    """

    names: tuple[str, ...]  # of the m numbers v
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
    view: View | None = None  # None if the parameters have the table's names and units
