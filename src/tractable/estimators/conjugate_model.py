"""Conjugate mixtures of weighted rows, and their closed forms compiled once."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from tractable.core import Batch
from tractable.kernels.em import Expected
from tractable.models.conjugate_variational import Conjugate
from tractable.models.mixture import Gaussians, gaussian_mixture
from tractable.models.variational import ConjugateModel


class Counted(ConjugateModel):
    """A conjugate model of rows (x, w) that count w times.

    Two that differ in where they begin are one to the compiler, which does not see it.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.conjugate is other.conjugate

    def __hash__(self) -> int:
        return hash(self.conjugate)


@functools.lru_cache(maxsize=128)  # so that a second fit finds its compilation
def counting(conjugate: Conjugate) -> Conjugate:
    """The closed forms for rows (x, w) from those for rows x."""

    def weigh(q: Any, batch: Batch) -> Expected:
        x, weight = batch.data
        return conjugate.e_step(q, Batch(x, batch.mask * weight, batch.size))

    return dataclasses.replace(conjugate, e_step=weigh)


def counted(base: ConjugateModel, first: Callable) -> Counted:
    """The model of rows (x, w) from that of rows x; ``first`` is λ of a key and rows."""

    def log_prob(theta: Gaussians, rows: tuple) -> jax.Array:
        x, weight = rows
        return weight * base.summed_out(theta, x)

    return Counted.of(counting(base.conjugate), log_prob, base.position, base.support, base.prior, first)


@functools.lru_cache(maxsize=128)
def assigning(conjugate: Conjugate) -> Callable:
    """``(x, weight, responsibilities) -> λ``, compiled."""
    assigned: Any = conjugate.assigned
    return jax.jit(lambda x, weight, shares: conjugate.m_step(assigned(Batch(x, weight, x.shape[0]), shares)))


@functools.lru_cache(maxsize=128)
def told_by(conjugate: Conjugate, step: str) -> Callable:
    """A closed form, compiled."""
    return jax.jit(getattr(conjugate, step))


@functools.lru_cache(maxsize=128)
def laid_out(components: int, features: int, kind: str) -> Callable:
    """θ's, a leading axis of draws, as unconstrained numbers (draws, k); whatever is believed of them."""
    model = gaussian_mixture(components, features, kind, 0.0)
    return jax.jit(jax.vmap(lambda theta: model.space.ravel(model.unconstrain(theta))))
