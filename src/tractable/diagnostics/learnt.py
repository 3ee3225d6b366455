"""The result of a run, as methods, checks and report pages use it: a ``Posterior`` without its user's functions."""

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
    """The covariance that a stochastic-gradient chain is predicted to have, compared with the target's covariance."""

    covariance: np.ndarray  # Σ of the stationary distribution, (d, d) or its diagonal; inf if the chain is unstable
    target: np.ndarray  # the target's covariance T H⁻¹, at temperature T, with H the Hessian of −log p
    inflation: np.ndarray  # (d,) marginal sd divided by the target's, minus 1
    worst: float  # the largest |inflation| of the sd of any linear combination of the parameters


@as_learnt
@dataclass(eq=False)
class Learnt:
    """The result of a run; ``Posterior``, its subclass, describes the attributes."""

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
        """(chain, draw, d) stored draws of the unconstrained parameters; independent draws of q for a fitted q.

        q is the distribution that a variational method, or Laplace, fits to the posterior.
        """
        return self.belief.positions

    @property
    def point(self) -> np.ndarray | None:
        """(d,) the point estimate of a point method, unconstrained; None for other methods."""
        return self.belief.position

    @property
    def info(self) -> dict[str, np.ndarray]:
        """Traces of the run by name, each (chain, draw) or (start, step)."""
        return self.belief.info

    @property
    def curve(self) -> Curve | None:
        """The objective by step, and the held-out rows' score; None for methods that optimise nothing."""
        climbs = self.found.get("climb")  # traces of an optimisation, if those in ``info`` are of draws
        return Curve.of({"objective": pad_traces(climbs)} if climbs else self.info, self.thin)

    @property
    def weights(self) -> np.ndarray | None:
        """(chain, draw) weights of the draws; None if all have the same weight."""
        return self.belief.weights

    @property
    def phi(self) -> PyTree:
        """Weights of a ladder's inference network (a ladder is a model of hidden layers)."""
        return self.belief.network

    @property
    def fitted(self) -> Fitted | None:
        """φ, the parameters of q, and how q was fitted; None for methods without a q."""
        return self.belief if isinstance(self.belief, Fitted) else None

    @property
    def is_point(self) -> bool:
        """Whether the method found a point estimate."""
        return self.belief.position is not None

    @property
    def names(self) -> list[str]:
        """The names of the k numbers that make up the parameters."""
        return self.model.names

    @property
    def chains(self) -> int:
        """Number of chains."""
        return self.belief.chains

    @property
    def count(self) -> int:
        """Number of stored draws per chain."""
        return self.belief.count

    @property
    def thin(self) -> int:
        """Number of steps per stored draw."""
        return self.belief.thin

    @property
    def cost(self) -> Cost:
        """Numbers of gradients and log densities that the run evaluated, including optimisation before sampling."""
        cost = self.method.cost(self.belief, self.found, self.data)
        return cost._replace(gradients=cost.gradients + self.found.get("gradients before", 0.0))

    @property
    def rows(self) -> int | float:
        """Number of rows of the data; with weights, their sum."""
        return 0 if self.data is None else self.data.total

    @property
    def settings(self) -> dict[str, Any]:
        """The method's fields and the seed, as plain values."""
        return self.method.settings() | {"seed": self.seed}

    @functools.cached_property
    def values(self) -> np.ndarray:
        """(chain, draw, k) the parameters as flat vectors; a point estimate is one draw of one chain."""
        return self.belief.values(self.model)

    @functools.cached_property
    def draws(self) -> PyTree:
        """Draws as a pytree like the prior, with leading axes (chain, draw)."""
        return self.shaped(self.values)

    def shaped(self, values: np.ndarray) -> PyTree:
        """Turns flat values (..., k) into a pytree with the parameters' shapes."""
        example = jax.eval_shape(self.model.example, jax.random.key(0))
        leaves, treedef = jax.tree.flatten(example)
        cuts = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
        pieces = np.split(np.asarray(values), cuts, axis=-1)
        return jax.tree.unflatten(
            treedef, [p.reshape((*p.shape[:-1], *leaf.shape)) for p, leaf in zip(pieces, leaves, strict=True)]
        )

    def mean(self) -> PyTree:
        """The posterior mean; for a point method, the point estimate."""
        return self.shaped(self.flat_moments[0])

    def sd(self) -> PyTree:
        """The posterior standard deviation; for a point method, the standard error, or NaN where it has none."""
        return self.shaped(self.flat_moments[1])

    @functools.cached_property
    def flat_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the k numbers of the parameters, (k,) each."""
        nothing = np.zeros((0, 0, len(self.names)))
        return self.belief.moments(self.model, nothing if isinstance(self.belief, Moments) else self.values)

    @functools.cached_property
    def diagnosed(self) -> Diagnosed:
        """R-hat, effective sample sizes and Monte-Carlo standard errors of the k numbers of the parameters."""
        if self.unconstrained is None:
            raise RunError("This run kept no draws to diagnose.")
        return self.diagnose(self.values, self.model.fixed)

    def diagnose(self, values: np.ndarray, fixed: np.ndarray | None = None) -> Diagnosed:
        """The same diagnostics of values (chain, draw, k) computed from draws; ``fixed`` (k,) marks constant ones."""
        if self.weights is not None and len(np.unique(self.weights)) == 2 and np.min(self.weights) == 0:
            # In cyclical SGMCMC, draws from the exploring part of a cycle have weight 0; they do not count.
            values = values[:, self.weights.all(0)]
        return diagnose(values, fixed)

    @functools.cached_property
    def predicted_bias(self) -> Predicted | None:
        """How much step size and gradient noise change the draws' covariance; None for methods without that bias."""
        return self.method.predicted_bias(self)
