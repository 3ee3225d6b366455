"""More columns than rows: the rows see weights only through their projection on the rows' span."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial
from jax.typing import ArrayLike

from tractable.core.causes import base_of, log_prob_of
from tractable.core.model import Model, PyTree, Through, is_distribution
from tractable.core.rows import Data, split_weights
from tractable.core.shared import compiled
from tractable.glm.families import SphericalT

ROUNDING = 1e-4  # share of the largest |η| that may change where weights are replaced by their projection
LEAST = 1e-6  # singular value, as a share of the largest, below which a direction is rounding
Array = TypeVar("Array", jax.Array, np.ndarray)


class Narrow(NamedTuple):
    """A model with r weights in place of D: the same posterior of what the rows see.

    Let w = m + s u with u isotropic a priori (normal, spherical t, or normal with sum zero over classes), and let V
    (D, r) be an orthonormal basis of the rows' span. The likelihood depends on u only through a = Vᵀ u, whose prior is
    of the same kind in r dimensions. What is left of u is orthogonal to V, and its prior given a is its posterior.

    Attributes:
        model: with a (r,) or (r, C) in place of the weights.
        widened: ``(rng, positions (draw, d')) -> (draw, d)``, positions of the first model: for each draw of a, one of
            the weights given a.
        projected: ``(draw, d) -> (draw, d')``, the way back.
    """

    model: Model
    widened: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    projected: Callable[[np.ndarray], np.ndarray]


def narrowed(model: Model, data: Data | None) -> Narrow | None:
    """The narrow model; None where no parameter has more numbers along its first axis than there are rows."""
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
    # Arrays of a Partial are arguments of programs, so that all tables of this size share these.
    likelihood = Through(Partial(_through, name, put, inner.predictor), Partial(_through, name, put, inner.observe))
    ranks = model.prior | {name: _in(prior, (basis.shape[1], *shape[1:]))}
    made = replace(model, prior=ranks, likelihood=likelihood, start=None, derived=None, labels=None, shared=True)

    def widened(rng: np.random.Generator, positions: np.ndarray) -> np.ndarray:
        params = jax.tree.map(np.asarray, _params(made, jnp.asarray(positions, jnp.result_type(float))))
        near = params[name]  # (draw, r, ...)
        beyond = rng.standard_normal((len(near), *shape), np.float32)
        if isinstance(prior, dist.ZeroSumNormal):
            beyond -= beyond.mean(-1, keepdims=True)
        if isinstance(prior, SphericalT):  # a t given part of its numbers is one with more degrees of freedom
            freedom, ranks = float(np.asarray(prior.df)), near.shape[1]
            spread = (freedom + np.sum(np.square(near), 1)) / rng.chisquare(freedom + ranks, len(near))
            beyond *= np.sqrt(spread)[:, None].astype(np.float32)
        flat = basis.astype(np.float32)
        inside = np.einsum("dr,sd...->sr...", flat, beyond, optimize=True)
        beyond += np.einsum("dr,sr...->sd...", flat, near - inside, optimize=True)
        full = params | {name: jnp.asarray(_along(place, beyond[0]) + _along(scale, beyond[0]) * beyond)}
        return np.asarray(_positions(model, full), np.float64)

    def projected(positions: np.ndarray) -> np.ndarray:
        params = _params(model, jnp.asarray(positions, jnp.result_type(float)))
        near = jax.vmap(put.inverse)(params[name])
        return np.asarray(_positions(made, params | {name: near}), np.float64)

    return Narrow(made, widened, projected)


def _isotropic(prior: dist.Distribution) -> bool:
    """Whether a prior is, but for means and sds of the numbers along its first axis, the same in all directions."""
    kind, axes = type(base_of(prior)), len(prior.shape())
    if kind is dist.ZeroSumNormal:
        return axes == 2 and len(prior.event_shape) == 1
    return axes == 1 and kind in (dist.Normal, SphericalT)


def _place(prior: dist.Distribution) -> tuple[ArrayLike, ArrayLike]:
    """m and s, of all numbers or of each along the first axis."""
    return getattr(prior, "loc", 0.0), getattr(prior, "scale", 1.0)


def _in(prior: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """The prior of u in fewer dimensions."""
    if isinstance(prior, SphericalT):
        return SphericalT(prior.df, shape[0], 1.0)
    if isinstance(prior, dist.ZeroSumNormal):
        return dist.ZeroSumNormal(1.0, shape[1:]).expand(shape[:1])
    return dist.Normal(jnp.zeros(shape), 1.0)


class _Put(NamedTuple):
    """w = m + s V a."""

    place: jax.Array  # (D,) m
    scale: jax.Array  # (D,) s
    basis: jax.Array  # (D, r) V

    def __call__(self, near: jax.Array) -> jax.Array:
        away = jnp.tensordot(self.basis, near, 1)
        return _along(self.place, away) + _along(self.scale, away) * away

    def inverse(self, weights: jax.Array) -> jax.Array:
        """a, the projection of w."""
        away = (weights - _along(self.place, weights)) / _along(self.scale, weights)
        return jnp.tensordot(self.basis.T, away, 1)


def _along(numbers: Array, like: jax.Array | np.ndarray) -> Array:
    """Numbers (D,) along the first axis of an array like this one."""
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))


def _through(name: str, put: _Put, inner: Callable, params: dict[str, jax.Array], seen: PyTree) -> PyTree:
    """The first model's predictor or its ``observe``, of parameters that hold a in place of the weights."""
    return inner(params | {name: put(params[name])}, seen)


def _agree(model: Model, put: _Put, name: str, given: PyTree) -> bool:
    """Whether η of every row is the same where u is replaced by its projection, at two random places."""
    for number in range(2):
        params = model.params(jax.random.normal(jax.random.key(number), (model.space.size,)))
        near = params | {name: put(put.inverse(params[name]))}
        one, other = (np.asarray(_etas(model, each, given)) for each in (params, near))
        if not np.all(np.abs(one - other) <= ROUNDING * np.abs(one).max()):
            return False
    return True


@compiled("model")
def _etas(model: Model, params: PyTree, given: PyTree) -> jax.Array:
    likelihood: Any = model.likelihood
    return jax.vmap(lambda x: likelihood.predictor(params, x))(given)


@compiled("model", "name")
def _slopes(model: Model, name: str, given: PyTree, key: jax.Array) -> jax.Array:
    """(row, D) a slope of η in the parameter, in a random direction of η and of the other axes of the parameter."""
    likelihood: Any = model.likelihood
    params = model.params(jnp.zeros(model.space.size))

    def of_row(x: PyTree) -> jax.Array:
        def eta(weights: jax.Array) -> jax.Array:
            found = likelihood.predictor(params | {name: weights}, x)
            return jnp.vdot(jax.random.normal(key, found.shape), found)

        slope = jax.grad(eta)(params[name])
        return slope if slope.ndim == 1 else slope @ jax.random.normal(key, slope.shape[1:])

    return jax.vmap(of_row)(given)


@compiled("model", "name")
def _outside_predictor(model: Model, name: str, y: PyTree, given: PyTree) -> jax.Array:
    """Whether the likelihood sees the parameter other than through η, as a noise that depends on it."""
    likelihood: Any = model.likelihood
    params = model.params(jax.random.normal(jax.random.key(2), (model.space.size,)) / 8)

    def of_row(y: PyTree, x: PyTree) -> jax.Array:
        eta = likelihood.predictor(params, x)
        return jax.grad(lambda w: log_prob_of(likelihood.observe(params | {name: w}, eta), y))(params[name])

    return jnp.any(jax.vmap(of_row)(y, given) != 0)


@compiled("model")
def _params(model: Model, positions: jax.Array) -> PyTree:
    return jax.vmap(model.params)(positions)


@compiled("model")
def _positions(model: Model, params: PyTree) -> jax.Array:
    return jax.vmap(model.position_of)(params)
