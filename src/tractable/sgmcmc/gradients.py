"""Unbiased estimators of ∇ log posterior from a minibatch: functions ``(position, batch) -> gradient``.

A stochastic-gradient kernel takes an estimator as an argument, so a new estimator needs no new sampler.
"""

from collections.abc import Callable

import jax

from tractable.core.errors import DataError
from tractable.core.model import Batch, PyTree

Estimator = Callable[[PyTree, Batch], PyTree]


def require_batch(batch: Batch | None) -> Batch:
    """The batch itself; raises a DataError if there is none, since a log posterior without rows is the prior."""
    if batch is None:
        raise DataError(
            "A stochastic-gradient kernel expects a batch at every step; got None: it would sample the prior. Give a "
            "Batch, such as Batch(rows, jnp.ones(n), N), or use MALA or NUTS for a log density without data."
        )
    return batch


def minibatch(log_posterior: Callable) -> Estimator:
    """The plain minibatch gradient g(θ) = ∇ log p(θ) + N/n Σ_{i in batch} ∇ log p(y_i|θ)."""
    return jax.grad(log_posterior)


def control_variates(log_posterior: Callable, anchor: PyTree, anchor_gradient: PyTree) -> Estimator:
    """The gradient with control variates g(θ) = ĝ(θ) − ĝ(θ̂) + ∇ log p(θ̂|D) (Baker et al. 2019, eq. 7).

    ĝ is the minibatch gradient and θ̂ a fixed point near the mode, the anchor. The variance is about proportional to
    |θ − θ̂|²; it is 0 for every θ if the rows' log likelihoods are quadratic with the same quadratic term.

    Args:
        anchor: θ̂.
        anchor_gradient: the gradient of the full log posterior at θ̂ (0 only if θ̂ is the exact mode).
    """
    gradient = jax.grad(log_posterior)

    def estimate(position: PyTree, batch: Batch) -> PyTree:
        return jax.tree.map(
            lambda here, there, full: here - there + full,
            gradient(position, batch),
            gradient(anchor, batch),
            anchor_gradient,
        )

    return estimate
