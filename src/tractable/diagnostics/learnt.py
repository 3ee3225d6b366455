"""The result of a run as methods, checks and pages use it: a ``Posterior`` without the functions for its user."""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from tractable.core.bits import as_learnt
from tractable.core.check import Check
from tractable.core.curve import Curve, pad_traces
from tractable.core.errors import RunError
from tractable.core.model import Data, Model, PyTree
from tractable.diagnostics.belief import Belief, Cost, Fitted, Moments
from tractable.diagnostics.convergence import Diagnosed, diagnose


class Predicted(NamedTuple):
    """Stationary spread against the target's."""

    covariance: np.ndarray  # Σ, (d, d) or its diagonal; inf where the recursion is unstable
    target: np.ndarray  # T H⁻¹, at temperature T
    inflation: np.ndarray  # (d,) marginal sd over the target's, minus 1
    worst: float  # the largest |inflation| of the sd of any linear combination of the parameters


@as_learnt
@dataclass(eq=False)
class Learnt:
    """Attributes as ``Posterior`` describes them."""

    model: Model
    data: Data | None
    method: Any
    seed: int | None
    belief: Belief
    found: dict[str, Any] = field(default_factory=dict, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    run_state: PyTree = field(default=None, repr=False)
    verification: tuple[Check, ...] = field(default=(), repr=False)

    @property
    def unconstrained(self) -> np.ndarray | None:
        """(chain, draw, d) kept positions; for a fitted q, its independent draws."""
        return self.belief.positions

    @property
    def point(self) -> np.ndarray | None:
        """(d,) the unconstrained maximum of a point method."""
        return self.belief.position

    @property
    def info(self) -> dict[str, np.ndarray]:
        """Traces of the run, each (chain, draw) or (start, step)."""
        return self.belief.info

    @property
    def curve(self) -> Curve | None:
        """The climb's objective, and the held-out rows' score, by step; None of methods that do not climb."""
        climbs = self.found.get("climb")  # of methods whose traces are those of draws
        return Curve.of({"objective": pad_traces(climbs)} if climbs else self.info, self.thin)

    @property
    def weights(self) -> np.ndarray | None:
        """(chain, draw) weights of the draws; None where all count alike."""
        return self.belief.weights

    @property
    def phi(self) -> PyTree:
        """Weights of a ladder's inference network."""
        return self.belief.network

    @property
    def fitted(self) -> Fitted | None:
        """φ of a q, and how it was fitted."""
        return self.belief if isinstance(self.belief, Fitted) else None

    @property
    def is_point(self) -> bool:
        return self.belief.position is not None

    @property
    def names(self) -> list[str]:
        """One name for each of the k numbers of the parameters."""
        return self.model.names

    @property
    def chains(self) -> int:
        return self.belief.chains

    @property
    def count(self) -> int:
        """Kept draws per chain."""
        return self.belief.count

    @property
    def thin(self) -> int:
        """Steps per kept draw."""
        return self.belief.thin

    @property
    def cost(self) -> Cost:
        """Gradients and log densities that the run evaluated, with the gradients of any climb before it."""
        cost = self.method.cost(self.belief, self.found, self.data)
        return cost._replace(gradients=cost.gradients + self.found.get("gradients before", 0.0))

    @property
    def rows(self) -> int | float:
        """How many rows the data count as."""
        return 0 if self.data is None else self.data.total

    @property
    def settings(self) -> dict[str, Any]:
        """The method's fields and the seed, as plain values."""
        return self.method.settings() | {"seed": self.seed}

    @functools.cached_property
    def values(self) -> np.ndarray:
        """(chain, draw, k) the parameters laid out flat; a point is one draw of one chain."""
        return self.belief.values(self.model)

    @functools.cached_property
    def draws(self) -> PyTree:
        """Draws as a pytree shaped like the prior, leading axes (chain, draw)."""
        return self.shaped(self.values)

    def shaped(self, values: np.ndarray) -> PyTree:
        """(..., k) flat values as a pytree of the parameters' shapes."""
        example = jax.eval_shape(self.model.example, jax.random.key(0))
        leaves, treedef = jax.tree.flatten(example)
        cuts = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
        pieces = np.split(np.asarray(values), cuts, axis=-1)
        return jax.tree.unflatten(
            treedef, [p.reshape((*p.shape[:-1], *leaf.shape)) for p, leaf in zip(pieces, leaves, strict=True)]
        )

    def mean(self) -> PyTree:
        """Posterior mean; a point method's maximum."""
        return self.shaped(self.flat_moments[0])

    def sd(self) -> PyTree:
        """Posterior standard deviation; a point method's standard error, NaN where it has none."""
        return self.shaped(self.flat_moments[1])

    @functools.cached_property
    def flat_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the k numbers, (k,) each."""
        nothing = np.zeros((0, 0, len(self.names)))
        return self.belief.moments(self.model, nothing if isinstance(self.belief, Moments) else self.values)

    @functools.cached_property
    def diagnosed(self) -> Diagnosed:
        """R-hat, effective draws and Monte-Carlo errors of the k parameters."""
        if self.unconstrained is None:
            raise RunError("This run kept no draws to diagnose.")
        return self.diagnose(self.values, self.model.fixed)

    def diagnose(self, values: np.ndarray, fixed: np.ndarray | None = None) -> Diagnosed:
        """The same for values (chain, draw, k) computed from the draws; ``fixed`` (k,) says which cannot move."""
        if self.weights is not None and len(np.unique(self.weights)) == 2 and np.min(self.weights) == 0:
            values = values[:, self.weights.all(0)]  # weight 0: the exploring part of a cycle, which gives no draws
        return diagnose(values, fixed)

    @functools.cached_property
    def predicted_bias(self) -> Predicted | None:
        """How step size and gradient noise change every marginal sd; None for methods without that bias."""
        return self.method.predicted_bias(self)
