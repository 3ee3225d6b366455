"""The models that densities are learnt with: of weighted rows, their steps compiled once, θ on the host and back."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import Batch
from tractable.kernels.em import Expected
from tractable.models.latent import LatentModel

PyTree = Any


class Weighted(LatentModel):
    """A model of rows (x, w) that count w times: Σ w log p(x | θ).

    Two that differ in where they begin and in how they are judged are one to the compiler, which sees neither.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.e_step is other.e_step

    def __hash__(self) -> int:
        return hash(self.e_step)


@functools.lru_cache(maxsize=128)  # so that a second fit finds its compilation
def weighted(base: LatentModel) -> Weighted:
    """The model of rows (x, w) from that of rows x, both halves in closed form."""
    e_step: Any = base.e_step

    def weigh(theta: PyTree, batch: Batch) -> Expected:
        x, weight = batch.data
        return e_step(theta, Batch(x, batch.mask * weight, batch.size))

    def log_prob(theta: PyTree, rows: tuple) -> jax.Array:
        x, weight = rows
        return weight * base.summed_out(theta, x)

    return Weighted.from_steps(
        weigh, base.m_step, log_prob, base.position,
        support=base.support, sample=base.sampler, parameters=base.parameters,
    )  # fmt: skip


def moved(model: LatentModel, theta: PyTree, offset: np.ndarray) -> PyTree:
    """θ of rows to which ``offset`` is added."""
    return model.shifted(theta, offset)


def finite(theta: PyTree) -> bool:
    """Whether every number of θ is finite."""
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(theta))


def as_floats(theta: PyTree) -> PyTree:
    """On the device, in the current precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), theta)


def as_doubles(theta: PyTree) -> PyTree:
    """On the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), theta)


@functools.lru_cache(maxsize=128)
def compiled(model: LatentModel, step: str) -> Callable:
    """A step of a model, compiled once."""
    return jax.jit(getattr(model, step))
