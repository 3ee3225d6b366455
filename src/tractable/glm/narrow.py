"""Models with fewer weights for tables of more columns than rows.

With D columns and fewer rows, the likelihood depends on the D weights only through their projection on the span of the
rows. This projection has as many numbers as there are independent rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial
from jax.typing import ArrayLike

from tractable.core.batches import split_weights
from tractable.core.causes import base_of, log_prob_of
from tractable.core.model import Model, PyTree, Through, is_distribution
from tractable.core.rows import Data
from tractable.core.shared import compiled
from tractable.glm.families import SphericalT

ROUNDING = 1e-4  # largest change of η that projecting the weights may cause, as a share of the largest |η|
LEAST = 1e-6  # a direction whose singular value is a smaller share of the largest one is only rounding error
Array = TypeVar("Array", jax.Array, np.ndarray)


class Narrow(NamedTuple):
    """A model with r weights in place of D, and the functions between its positions and those of the full model.

    Let w = m + s u, where the prior of u is isotropic (normal, spherical t, or normal with sum zero over classes). Let
    V (D, r) be an orthonormal basis of the rows' span. The likelihood depends on u only through a = Vᵀ u, whose prior
    is of the same kind in r dimensions. So the posterior of a is that of a smaller model. The rest of u is orthogonal
    to V. The data say nothing about it, so its posterior given a is its prior given a.

    Attributes:
        model: the smaller model, with a (r,) or (r, C) in place of the weights.
        widened: the function ``(rng, positions (draw, d')) -> (draw, d)`` to positions of the full model; for each draw
            of a it draws the weights given a.
        projected: the function ``(draw, d) -> (draw, d')`` to positions of the smaller model.
    """

    model: Model
    widened: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    projected: Callable[[np.ndarray], np.ndarray]


def narrow_model(model: Model, data: Data | None) -> Narrow | None:
    """The smaller model for these data; None if no parameter has more numbers along its first axis than there are rows.

    It is also None if the likelihood does not depend on this parameter through a linear predictor alone.
    """
    if data is None or not data.resident or model.through is None or model.local is not None:
        return None
    if type(model.prior) is not dict or not all(map(is_distribution, model.prior.values())):
        return None
    wide = [name for name, prior in model.prior.items() if _isotropic(prior) and prior.shape()[0] > data.size]
    if len(wide) != 1:
        return None
    (name,) = wide
    y, given = split_weights(data.arrays())[0]
    prior, shape = base_of(model.prior[name]), model.prior[name].shape()
    place, scale = (np.broadcast_to(np.ravel(np.asarray(a, np.float64)), shape[:1]) for a in _place(prior))
    slopes = np.asarray(_slopes(model, name, given, jax.random.key(0)), np.float64)  # (row, D)
    _, values, basis = np.linalg.svd(slopes * scale, full_matrices=False)
    basis = basis[values > LEAST * values[0]].T
    put = _Put(*(jnp.asarray(a, jnp.result_type(float)) for a in (place, scale, basis)))
    if len(basis.T) == 0 or not _agree(model, put, name, given) or _outside_predictor(model, name, y, given):
        return None
    inner: Any = model.likelihood
    # The arrays of a Partial are arguments of compiled programs, so all tables of this size share the same programs.
    likelihood = Through(Partial(_through, name, put, inner.predictor), Partial(_through, name, put, inner.observe))
    new_prior = model.prior | {name: _in(prior, (basis.shape[1], *shape[1:]))}
    small = replace(model, prior=new_prior, likelihood=likelihood, start=None, derived=None, labels=None, shared=True)

    def widened(rng: np.random.Generator, positions: np.ndarray) -> np.ndarray:
        params = jax.tree.map(np.asarray, _params(small, jnp.asarray(positions, jnp.result_type(float))))
        a = params[name]  # (draw, r, ...)
        u = rng.standard_normal((len(a), *shape), np.float32)
        if isinstance(prior, dist.ZeroSumNormal):
            u -= u.mean(-1, keepdims=True)
        if isinstance(prior, SphericalT):  # given some of its numbers, the others are a t with more degrees of freedom
            freedom, ranks = float(np.asarray(prior.df)), a.shape[1]
            spread = (freedom + np.sum(np.square(a), 1)) / rng.chisquare(freedom + ranks, len(a))
            u *= np.sqrt(spread)[:, None].astype(np.float32)
        v = basis.astype(np.float32)
        own = np.einsum("dr,sd...->sr...", v, u, optimize=True)  # Vᵀ u, which is replaced by a
        u += np.einsum("dr,sr...->sd...", v, a - own, optimize=True)
        full = params | {name: jnp.asarray(_along(place, u[0]) + _along(scale, u[0]) * u)}
        return np.asarray(_positions(model, full), np.float64)

    def projected(positions: np.ndarray) -> np.ndarray:
        params = _params(model, jnp.asarray(positions, jnp.result_type(float)))
        a = jax.vmap(put.inverse)(params[name])
        return np.asarray(_positions(small, params | {name: a}), np.float64)

    return Narrow(small, widened, projected)


def _isotropic(prior: dist.Distribution) -> bool:
    """Whether a prior is the same in all directions once each number is shifted by its mean and divided by its sd.

    The mean and the sd may differ only along the first axis.
    """
    kind, axes = type(base_of(prior)), len(prior.shape())
    if kind is dist.ZeroSumNormal:
        return axes == 2 and len(prior.event_shape) == 1
    return axes == 1 and kind in (dist.Normal, SphericalT)


def _place(prior: dist.Distribution) -> tuple[ArrayLike, ArrayLike]:
    """The mean m and the scale s of a prior: one for all numbers, or one for each along the first axis."""
    return getattr(prior, "loc", 0.0), getattr(prior, "scale", 1.0)


def _in(prior: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """The prior of u in fewer dimensions, which is the prior of a."""
    if isinstance(prior, SphericalT):
        return SphericalT(prior.df, shape[0], 1.0)
    if isinstance(prior, dist.ZeroSumNormal):
        return dist.ZeroSumNormal(1.0, shape[1:]).expand(shape[:1])
    return dist.Normal(jnp.zeros(shape), 1.0)


class _Put(NamedTuple):
    """The map from a to the weights w = m + s V a."""

    place: jax.Array  # (D,) m
    scale: jax.Array  # (D,) s
    basis: jax.Array  # (D, r) V

    def __call__(self, a: jax.Array) -> jax.Array:
        u = jnp.tensordot(self.basis, a, 1)
        return _along(self.place, u) + _along(self.scale, u) * u

    def inverse(self, weights: jax.Array) -> jax.Array:
        """The a of weights w: the projection of u = (w − m)/s."""
        u = (weights - _along(self.place, weights)) / _along(self.scale, weights)
        return jnp.tensordot(self.basis.T, u, 1)


def _along(numbers: Array, like: jax.Array | np.ndarray) -> Array:
    """Numbers (D,) in a shape that broadcasts along the first axis of ``like``."""
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))


def _through(name: str, put: _Put, inner: Callable, params: dict[str, jax.Array], seen: PyTree) -> PyTree:
    """The full model's ``predictor`` or ``observe``, applied to parameters that hold a in place of the weights."""
    return inner(params | {name: put(params[name])}, seen)


def _agree(model: Model, put: _Put, name: str, given: PyTree) -> bool:
    """Whether the η of every row stays the same if u is replaced by its projection, at two random positions."""
    for number in range(2):
        params = model.params(jax.random.normal(jax.random.key(number), (model.space.size,)))
        projection = params | {name: put(put.inverse(params[name]))}
        eta, eta_of_projection = (np.asarray(_etas(model, each, given)) for each in (params, projection))
        if not np.all(np.abs(eta - eta_of_projection) <= ROUNDING * np.abs(eta).max()):
            return False
    return True


@compiled("model")
def _etas(model: Model, params: PyTree, given: PyTree) -> jax.Array:
    """The predictors η of all rows."""
    likelihood: Any = model.likelihood
    return jax.vmap(lambda x: likelihood.predictor(params, x))(given)


@compiled("model", "name")
def _slopes(model: Model, name: str, given: PyTree, key: jax.Array) -> jax.Array:
    """(row, D) derivatives of η in the parameter, along its first axis.

    If η or the parameter has further axes, a random combination along them is taken.
    """
    likelihood: Any = model.likelihood
    params = model.params(jnp.zeros(model.space.size))

    def of_row(x: PyTree) -> jax.Array:
        def eta(weights: jax.Array) -> jax.Array:
            value = likelihood.predictor(params | {name: weights}, x)
            return jnp.vdot(jax.random.normal(key, value.shape), value)

        slope = jax.grad(eta)(params[name])
        return slope if slope.ndim == 1 else slope @ jax.random.normal(key, slope.shape[1:])

    return jax.vmap(of_row)(given)


@compiled("model", "name")
def _outside_predictor(model: Model, name: str, y: PyTree, given: PyTree) -> jax.Array:
    """Whether the likelihood depends on the parameter otherwise than through η, as if the noise depended on it."""
    likelihood: Any = model.likelihood
    params = model.params(jax.random.normal(jax.random.key(2), (model.space.size,)) / 8)

    def of_row(y: PyTree, x: PyTree) -> jax.Array:
        eta = likelihood.predictor(params, x)
        return jax.grad(lambda w: log_prob_of(likelihood.observe(params | {name: w}, eta), y))(params[name])

    return jnp.any(jax.vmap(of_row)(y, given) != 0)


@compiled("model")
def _params(model: Model, positions: jax.Array) -> PyTree:
    """The user's parameters at unconstrained positions (draw, d)."""
    return jax.vmap(model.params)(positions)


@compiled("model")
def _positions(model: Model, params: PyTree) -> jax.Array:
    """(draw, d) the unconstrained positions of the user's parameters."""
    return jax.vmap(model.position_of)(params)
