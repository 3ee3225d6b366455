"""The ELBO by quadrature instead of draws, for models whose likelihood depends on θ through a linear predictor η.

docs/decisions/036 says when this is used, and what it costs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import DTypeLike

from tractable.core import approximations, tree
from tractable.core.approximations import Approximation
from tractable.core.batches import split_weights
from tractable.core.causes import base_of, log_prob_of
from tractable.core.model import Model, PyTree, is_distribution
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.engine.ascent import lbfgs

NODES = 20  # number of nodes of Gauss–Hermite quadrature
MOST = 5000  # largest number of parameters for which a linear predictor is looked for
# Limits for one Laplace approximation of all parameters (a dense Hessian): on the number of parameters, and on the
# number of those that are not weights.
MOST_TOGETHER, MOST_BESIDE = 400, 16
PROBED = 8  # number of rows, and of random points, at which linearity is tested


class Linear(NamedTuple):
    """The linear part of a model.

    Attributes:
        weights: (d,) 1 for a weight, which is a parameter that acts through η; 0 for the one other parameter.
        other: the index of the parameter that does not act through η, or None.
        laplace: (d,) whether a weight's prior is Laplace rather than normal.
        centre, scale: (d,) centres and scales of the weights' priors.
    """

    weights: np.ndarray
    other: int | None
    laplace: np.ndarray
    centre: np.ndarray
    scale: np.ndarray


def structure(model: Model, data: Data | None) -> Linear | None:
    """The model's linear part; None if the model has another form. Linearity is tested at random rows and points.

        η_n = c_n + f_nᵀ z,   q(z) normal  ⇒  η_n ~ N(c_n + f_nᵀ μ, f_nᵀ Σ f_n)

    So the expectation of a row's log likelihood is an integral over one number. If the likelihood has another parameter
    u, such as a noise scale, it is an integral over two numbers, since η given u is normal too. With Gauss–Hermite
    nodes the bound is deterministic, and a quasi-Newton method maximises it in some tens of evaluations (as in Challis
    & Barber 2013; Ormerod & Wand 2012).
    """
    features = slopes(model, data)
    if data is None or features is None or features.ndim != 2:  # in the last case η is not one number
        return None
    leaves = jax.tree.leaves(model.prior, is_leaf=is_distribution)
    shapes = [leaf.shape for leaf in jax.tree.leaves(model.space.shapes)]
    columns = []
    for prior, shape in zip(map(base_of, leaves), shapes, strict=True):
        normal_prior = _normal(prior)
        laplace = type(prior) is dist.Laplace
        of_weight = (prior.loc, prior.scale) if laplace else normal_prior or (0.0, 1.0)
        each = laplace or normal_prior is not None, laplace, *of_weight
        columns.append([np.broadcast_to(np.asarray(value), shape).ravel() for value in each])
    normal, laplace, centre, scale = map(np.concatenate, zip(*columns, strict=True))
    acting, (y, given) = np.any(features != 0, 0), _some_rows(data)
    # A parameter with a normal prior may act otherwise than through η, such as a log noise scale. It is no weight then.
    linear = normal & ~np.asarray(depends_beyond_eta(model, y, given, jax.random.key(0)))
    others = np.flatnonzero(~linear)
    if len(others) > 1 or np.any(acting[others]):
        return None
    return Linear(linear.astype(float), int(others[0]) if len(others) else None, laplace, centre, scale)


def joint_structure(model: Model, data: Data | None) -> Linear | None:
    """``structure`` for models for which one Laplace approximation covers all parameters; None for other models.

    In these models η is one or several numbers that are linear in weights with normal priors, and the likelihood may
    have a few more parameters. Examples are softmax regression and the regression of ordered grades.
    """
    features = None if model.space.size > MOST_TOGETHER else slopes(model, data)
    if features is None:
        return None
    size = model.space.size
    acting = np.any(features != 0, tuple(range(features.ndim - 1)))
    leaves = map(base_of, jax.tree.leaves(model.prior, is_leaf=is_distribution))
    sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(model.space.shapes)]
    normal = np.repeat([type(leaf) is dist.ZeroSumNormal or _normal(leaf) is not None for leaf in leaves], sizes)
    if np.any(acting & ~normal) or np.sum(~acting) > MOST_BESIDE:
        return None
    return Linear(np.ones(size), None, np.zeros(size, bool), np.zeros(size), np.ones(size))


def _normal(prior: dist.Distribution) -> tuple[Any, Any] | None:
    """The means and sds of a prior whose coordinates are independent normals; None for other priors.

    A formula's effects may have such a prior of another class than ``dist.Normal``.
    """
    return (prior.loc, prior.scale) if type(prior) is dist.Normal else getattr(prior, "normal_coordinates", None)


def climb(
    linear: Linear, q: Approximation, model: Model, data: Data, stop: Callable[[], bool] = lambda: False
) -> tuple[PyTree, dict[str, Any], np.ndarray]:
    """Maximise the ELBO, and return the φ at the maximum, the report's numbers, and the climb's values."""
    size = model.space.size
    dtype = jnp.result_type(float)
    start = q.init(jnp.zeros(size, dtype), jnp.full(size, 0.5, dtype))
    ravel, unravel = raveller(q, size, dtype)
    (y, given), counts = split_weights(data.arrays())
    offsets, features = features_of(model, given)
    fixed, rows = jax.tree.map(jnp.asarray, linear._replace(other=None)), (y, offsets, features, counts)

    def uphill(flat: np.ndarray) -> tuple[float, np.ndarray]:
        out = _value_and_slope(model, q, linear.other, fixed, rows, flat.astype(dtype))
        return float(out[0]), np.asarray(out[1], np.float64)

    result = lbfgs(
        uphill, np.asarray(ravel(start), np.float64), stop, maxiter=1000, maxfun=4000, ftol=1e-11,
        gtol=1e-6 * max(1, data.size),
    )  # fmt: skip
    value, slope = uphill(result.x)
    gain = float(slope @ (result.hess_inv @ slope)) / 2  # the gain that one more quasi-Newton step would have
    return unravel(jnp.asarray(result.x, dtype)), figures(value, gain, int(result.nfev)), result.trace


def figures(objective: float, gain: float, evaluations: int) -> dict[str, Any]:
    """The numbers that a climb by quadrature puts in the report. It has no noise, and one starting point."""
    fixed = {"gain error": 0.0, "evaluations": evaluations, "agreement": 0.0, "solver": "quadrature"}
    return {"objective": objective, "gain": gain, **fixed}


def elbo_function(
    model: Model, q: Approximation, other: int | None, linear: Linear, y: PyTree, offsets: jax.Array,
    features: jax.Array, counts: jax.Array | None = None,
) -> Callable[[PyTree], jax.Array]:  # fmt: skip
    """A function φ ↦ ELBO in nats (units of the natural logarithm), exact up to quadrature.

    ``counts`` (N,) says how often each row counts; None is once.
    """
    nodes, shares = np.polynomial.hermite_e.hermegauss(NODES)
    shares = jnp.asarray(shares / shares.sum(), offsets.dtype)
    nodes = jnp.asarray(nodes, offsets.dtype)
    likelihood: Any = model.likelihood

    def total(params: PyTree, etas: jax.Array) -> jax.Array:  # etas (N, node)
        def one(eta: jax.Array, y: PyTree) -> jax.Array:
            return log_prob_of(likelihood.observe(params, eta), y)

        terms = jax.vmap(lambda etas, y: jax.vmap(lambda eta: one(eta, y))(etas))(etas, y)
        return jnp.sum((terms if counts is None else counts[:, None] * terms) @ shares)

    def of(phi: PyTree) -> jax.Array:
        mean, sd = q.mean(phi), q.sd(phi)
        middle, spread = offsets + features @ mean, projected_sd(phi, features)  # (N,)
        if other is None:
            etas = middle[:, None] + spread[:, None] * nodes  # (N, node)
            data = total(model.params(mean), etas)
        else:
            cross, variance = covariance(phi, features, other), jnp.square(sd[other])
            # The sd of η given u.
            conditional_sd = jnp.sqrt(jnp.maximum(jnp.square(spread) - jnp.square(cross) / variance, 1e-12))

            def given_u(u: jax.Array) -> jax.Array:
                conditional_mean = middle + cross / variance * (u - mean[other])
                etas = conditional_mean[:, None] + conditional_sd[:, None] * nodes
                return total(model.params(mean.at[other].set(u)), etas)

            data = jax.lax.map(given_u, mean[other] + sd[other] * nodes) @ shares
        offset = mean - linear.centre
        normal = -(jnp.square(offset) + jnp.square(sd)) / (2 * jnp.square(linear.scale)) - jnp.log(linear.scale)
        ratio = offset / sd
        folded = sd * jnp.sqrt(2 / jnp.pi) * jnp.exp(-jnp.square(ratio) / 2)  # E_q |z − centre|
        folded = folded + offset * jax.lax.erf(ratio / jnp.sqrt(2.0))
        laplace = -folded / linear.scale - jnp.log(2 * linear.scale)
        of_weights = jnp.where(linear.laplace, laplace, normal - approximations.LOG_2PI / 2)  # E_q log p(z), (d,)
        prior = jnp.sum(jnp.where(linear.weights > 0, of_weights, 0.0))
        if other is not None:
            priors = jax.vmap(functools.partial(other_prior, model, linear, other))
            prior = prior + priors(mean[other] + sd[other] * nodes) @ shares
        return data + prior + q.entropy(phi)

    return of


def projected_sd(phi: PyTree, features: jax.Array) -> jax.Array:
    """(N,) the sd under q of fᵀz for every row."""
    sd = approximations.softplus(phi["rho"])
    if "lower" in phi:
        variance = jnp.sum(jnp.square(features @ approximations.root(phi)), 1)
    else:
        variance = jnp.square(features) @ jnp.square(sd)
        if "factor" in phi:
            variance = variance + jnp.sum(jnp.square(features @ phi["factor"]), 1)
    return jnp.sqrt(jnp.maximum(variance, jnp.finfo(sd.dtype).tiny))


def covariance(phi: PyTree, features: jax.Array, other: int) -> jax.Array:
    """(N,) the covariance under q of fᵀz and parameter ``other`` for every row; f is zero at this parameter."""
    if "lower" in phi:
        root = approximations.root(phi)
        return features @ (root @ root[other])
    if "factor" in phi:
        return features @ (phi["factor"] @ phi["factor"][other])
    return jnp.zeros(len(features), features.dtype)


def other_prior(model: Model, linear: Linear, other: int, u: jax.Array) -> jax.Array:
    """The log prior and log-determinant of the one parameter that is not a weight, at the unconstrained value ``u``."""
    weights = jnp.where(linear.weights > 0, linear.centre, 0.0)
    unconstrained = model.space.unravel(weights.at[other].set(u))
    params = model.constrain(unconstrained)
    at_centre = jnp.where(
        linear.laplace, -jnp.log(2 * linear.scale), -jnp.log(linear.scale) - approximations.LOG_2PI / 2
    )
    total = model.log_prior(params) + model.log_jacobian(unconstrained, params)
    return total - jnp.sum(jnp.where(linear.weights > 0, at_centre, 0.0))


@compiled("model", "q", "other", if_few=COMPILE_FASTEST)
def _value_and_slope(model, q, other, linear, rows, flat) -> tuple[jax.Array, jax.Array]:
    unravel = raveller(q, model.space.size, flat.dtype)[1]
    elbo = elbo_function(model, q, other, linear, *rows)
    return jax.value_and_grad(lambda flat: elbo(unravel(flat)))(flat)


def raveller(q: Approximation, size: int, dtype: DTypeLike) -> tuple[Callable, Callable]:
    """The functions from φ to one vector and back."""
    number = jax.ShapeDtypeStruct((size,), dtype)
    return tree.raveller(jax.eval_shape(q.init, number, number))


@compiled("model", if_few=COMPILE_FASTEST)
def features_of(model: Model, given: PyTree) -> tuple[jax.Array, jax.Array]:
    """The offsets c (N,) and the features f (N, d) of all rows."""
    zero = jnp.zeros(model.space.size)
    return jax.vmap(lambda x: jax.value_and_grad(lambda z: eta(model, z, x))(zero))(given)


def _some_rows(data: Data) -> tuple[PyTree, PyTree]:
    """y and inputs of a few random rows."""
    rows = np.random.default_rng(0).integers(0, data.size, PROBED)
    return jax.tree.map(lambda a: np.asarray(a[rows]), (data.y, data.given))


def slopes(model: Model, data: Data | None) -> np.ndarray | None:
    """(row, ..., d) the derivatives of η in all parameters at a few rows; None if they are not the same at all points.

    The result is also None if the model has no predictor η, too many parameters, or data on file.
    """
    if data is None or not data.resident or model.through is None or model.prior_is_callable:
        return None
    if model.space.size > MOST:
        return None
    try:
        slopes = _probe(model, _some_rows(data)[1], jax.random.key(0))  # (point, row, ..., d)
    except TypeError:  # η is not of real numbers
        return None
    if not isinstance(slopes, jax.Array):  # η is several arrays
        return None
    slopes = np.asarray(slopes)
    same = np.allclose(slopes, slopes[:1], rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(slopes[0]).max())))
    return slopes[0] if same else None


@compiled("model", if_few=COMPILE_FASTEST)
def _probe(model: Model, given: PyTree, key: jax.Array) -> jax.Array:
    """(point, row, ..., d) the derivatives of η at random points."""
    points = jax.random.normal(key, (PROBED, model.space.size))
    return jax.vmap(lambda z: jax.vmap(lambda x: jax.jacrev(lambda z: eta(model, z, x))(z))(given))(points)


@compiled("model", if_few=COMPILE_FASTEST)
def depends_beyond_eta(model: Model, y: PyTree, given: PyTree, key: jax.Array) -> jax.Array:
    """(d,) whether the likelihood depends on each parameter otherwise than through η."""
    likelihood: Any = model.likelihood

    def slope(z: jax.Array, y: PyTree, x: PyTree) -> jax.Array:
        fixed = eta(model, z, x)
        return jax.grad(lambda z: log_prob_of(likelihood.observe(model.params(z), fixed), y))(z)

    points = jax.random.normal(key, (PROBED, model.space.size))
    slopes = jax.vmap(lambda z: jax.vmap(lambda y, x: slope(z, y, x))(y, given))(points)  # (point, row, d)
    return jnp.any(slopes != 0, axis=(0, 1))


def eta(model: Model, z: jax.Array, x: PyTree) -> jax.Array:
    """The predictor of a row with inputs ``x`` at an unconstrained position ``z``."""
    likelihood: Any = model.likelihood
    return likelihood.predictor(model.params(z), x)
