"""The posterior under verification, with its mean and covariance.

They define white coordinates, in which the posterior has mean zero and unit covariance.
"""

from typing import NamedTuple

import numpy as np

from tractable.diagnostics.belief import Point, values_of
from tractable.diagnostics.learnt import Learnt

BEFORE = "places before"  # key in ``Learnt.found`` of the points at which earlier results of this run ended


class Subject(NamedTuple):
    """A posterior and its moments; the white coordinates x of an unconstrained position z solve z = centre + root x.

    Attributes:
        learnt: the posterior.
        centre: (d,) its unconstrained mean, or the point estimate.
        root: (d, d) a root of its covariance; the identity matrix for a point estimate without a covariance.
    """

    learnt: Learnt
    centre: np.ndarray
    root: np.ndarray

    @property
    def seed(self) -> int:
        """The run's seed; 0 if it had none."""
        return self.learnt.seed or 0

    @property
    def is_point(self) -> bool:
        """Whether the result is a point estimate."""
        return self.learnt.is_point

    @property
    def places_before(self) -> np.ndarray:
        """(k, d) points at which earlier results of the run ended; none unless it was repeated from a better point."""
        return np.reshape(np.asarray(self.learnt.found.get(BEFORE, []), np.float64), (-1, len(self.centre)))

    @property
    def positions(self) -> np.ndarray:
        """(n, d) the unconstrained draws of all chains."""
        return np.asarray(self.learnt.belief.positions, np.float64).reshape(-1, len(self.centre))

    def draws(self, count: int) -> np.ndarray:
        """(count, d) unconstrained draws from the posterior; for a point estimate, from the normal around it."""
        if self.is_point:
            normals = np.random.default_rng(self.seed).standard_normal((count, len(self.centre)))
            return self.centre + normals @ self.root.T
        return self.positions[even_draws(self.learnt, count)]

    def describe(self, position: np.ndarray) -> str:
        """The values of the first three parameters at an unconstrained position, as text."""
        values = values_of(self.learnt.model, position[None])[0]
        shown = ", ".join(f"{name} = {value:.3g}" for name, value in zip(self.learnt.names[:3], values, strict=False))
        return shown + (", …" if len(values) > 3 else "")


def subject_of(learnt: Learnt) -> Subject | None:
    """The posterior with its mean and a root of its covariance; None if some variance is zero or not finite."""
    belief, size = learnt.belief, learnt.model.space.size
    if isinstance(belief, Point):
        centre = np.asarray(learnt.point, np.float64)
        if belief.information is None or belief.unconstrained_moments() is None:
            return Subject(learnt, centre, np.eye(size))
        root = root_of(np.linalg.inv(belief.information))
    else:
        flat = np.asarray(belief.positions, np.float64).reshape(-1, size)
        weights = None if belief.weights is None else belief.weights.ravel()
        centre = np.average(flat, axis=0, weights=weights)
        root = root_of(np.atleast_2d(np.cov(flat.T, aweights=weights)))
    return None if root is None else Subject(learnt, centre, root)


def root_of(covariance: np.ndarray) -> np.ndarray | None:
    """The Cholesky factor (d, d) of a covariance; None if some variance is zero or some entry is not finite."""
    scale = np.sqrt(np.diag(covariance))
    if not np.all(np.isfinite(covariance)) or not np.all(scale > 0):
        return None
    correlation = covariance / np.outer(scale, scale)
    return scale[:, None] * np.linalg.cholesky((correlation + correlation.T) / 2 + 1e-9 * np.eye(len(scale)))


def even_draws(learnt: Learnt, count: int) -> np.ndarray:
    """Indices (count,) of evenly spaced draws; weighted draws are spaced evenly in their cumulative weights."""
    if learnt.weights is None:
        return np.linspace(0, learnt.belief.chains * learnt.count - 1, count).astype(int)
    sums = np.cumsum(learnt.weights.ravel(), dtype=np.float64)
    return np.searchsorted(sums, (np.arange(count) + 0.5) / count * sums[-1])
