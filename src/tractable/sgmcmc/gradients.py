"""Estimators of ∇ log posterior from a minibatch: ``(position, batch) -> gradient``, all unbiased.

A stochastic-gradient kernel takes an estimator as an argument, so a new estimator needs no new sampler.
"""

from collections.abc import Callable

import jax

from tractable.core.errors import DataError
from tractable.core.model import Batch, PyTree

Estimator = Callable[[PyTree, Batch], PyTree]


def needed(batch: Batch | None) -> Batch:
    """The batch; raises DataError without one, since a log posterior without rows is the prior."""
    if batch is None:
        raise DataError(
            "A stochastic-gradient kernel expects a batch at every step, and got None: it would sample the prior. Give "
            "a Batch, such as Batch(rows, jnp.ones(n), N), or use MALA or NUTS on a log density without data."
        )
    return batch


def minibatch(log_posterior: Callable) -> Estimator:
    """g(θ) = ∇ log p(θ) + N/n Σ_{i in batch} ∇ log p(y_i|θ)."""
    return jax.grad(log_posterior)


def control_variates(log_posterior: Callable, anchor: PyTree, anchor_gradient: PyTree) -> Estimator:
    """g(θ) = ĝ(θ) − ĝ(θ̂) + ∇ log p(θ̂|D), with ĝ the minibatch gradient and θ̂ an anchor near the mode.

    Its variance shrinks with |θ − θ̂|²; it is 0 for every θ if the log likelihoods share one quadratic term.
    Baker, Fearnhead, Fox & Nemeth 2019, eq. 7.

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
