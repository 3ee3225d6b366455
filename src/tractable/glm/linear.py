"""Models with a linear predictor η = a + xᵀw, and the mixture model of Welling & Teh 2011.

The inputs should be standardised, so that one prior scale suits every weight.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.model import Model, Through
from tractable.core.numbers import Real, positive
from tractable.core.priors import is_distribution
from tractable.core.shared import shared
from tractable.core.words import listing, nearest
from tractable.glm.families import CLASSES, FAMILIES, SphericalT


@shared
def generalised_linear(
    features: int, family: str, classes: int | None = None, weight_scale: Real | None = 2.5,
    intercept_scale: Real = 5.0,
) -> Model:  # fmt: skip
    """A generalised linear model for standardised inputs. The same arguments give the same ``Model``.

        η = a + xᵀw,   w ~ N(0, weight_scale²),   a ~ N(0, intercept_scale²)
        normal:             y ~ N(η, noise²),  noise ~ HalfNormal(1);  y standardised
        student-t:          (y − η)/noise ~ t with 4 degrees of freedom,  noise ~ HalfNormal(1);  y minus its median,
                            divided by 1.48 times its median absolute deviation
        lognormal:          log y ~ N(η, noise²),  noise ~ HalfNormal(1);  y > 0, divided by its geometric mean
        gamma:              y with mean e^η, sd variation · e^η,  variation ~ HalfNormal(1);  y > 0, divided by its mean
        weibull:            P(y > t) = exp(−(t e^−η)^shape),  shape ~ LogNormal(0, 1);  y > 0, divided by its mean
        exponential:        as weibull with shape 1, so that the mean of y is e^η
        beta:               y ~ Beta with mean m = 1 / (1 + e^−η), variance spread² m (1 − m),  spread ~ U(0, 1)
        poisson:            y ~ Poisson(e^η)
        negative-binomial:  y with mean e^η, variance e^η + dispersion² e^2η,  dispersion ~ HalfNormal(1)
        zero-inflated-poisson, zero-inflated-negative-binomial:
                            0 with probability extra_zeros ~ U(0, 1), else a count of the base family
        hurdle-poisson, hurdle-negative-binomial:
                            0 with probability zeros ~ U(0, 1), else a count above 0 of the base family
        bernoulli:          y ~ Bernoulli(1 / (1 + e^−η));  y in {0, 1}
        categorical:        y ~ Categorical(softmax(η));  y in 0..classes−1, η has length classes
        ordered:            P(y ≤ k) = 1 / (1 + e^(η − cₖ));  y in 0..classes−1, cutpoints c in place of a

    Counts need an offset, the log of their mean or of an exposure: use ``with_offset``.

    If only bounds of y are known, use ``with_censoring``.

    The default scales suit logistic regression. A weight of 2.5 multiplies the odds by twelve for each sd of its input,
    and few effects are larger. An intercept of −7, for a class of one in a thousand, is 1.4 prior sds from 0.

    If there are many columns for the number of rows, a fixed prior scale dominates the predictions' uncertainty. With
    ``weight_scale=None`` the weights' common scale is learnt from the rows: the prior is a Cauchy distribution in D
    dimensions, ``pooled(D)``.

    The softmax is symmetric: no class is the reference. A constant added to every η changes nothing, so weights and
    intercepts sum to zero over the classes, with Normal priors conditioned on that sum. Differences between classes
    then have the same distribution as under independent Normals, and the data inform every direction.

    Args:
        features: D, the number of columns of x.
        family: the family of y given η.
        classes: C ≥ 2, the number of classes, only for "categorical" and "ordered".
        weight_scale, intercept_scale: prior sds > 0. ``weight_scale=None`` learns the weights' sd, but not for
            "categorical".

    Returns:
        A Model with ``intercept`` (), ``weights`` (D,) and the family's further parameter (); for "categorical" with
        ``intercept`` (C,) and ``weights`` (D, C); for "ordered" with ``weights`` (D,) and ``cutpoints`` (C − 1,).

    Raises:
        ModelError: the family is unknown, the number of classes does not fit it, or a scale is not positive.

    >>> sorted(generalised_linear(3, "normal").prior)
    ['intercept', 'noise', 'weights']
    >>> generalised_linear(3, "normal") is generalised_linear(features=3, family="normal")
    True
    """
    positive(features=features, intercept_scale=intercept_scale)
    if weight_scale is not None:
        positive(weight_scale=weight_scale)
    if family not in FAMILIES:
        raise ModelError(f"family is one of {', '.join(map(repr, FAMILIES))}; got {family!r}.")
    if (classes is None) == (family in CLASSES) or (classes is not None and classes < 2):
        raise ModelError(
            f"classes= is a number, 2 or more, for {' and '.join(CLASSES)} alone; got {classes} for {family!r}."
        )
    kind = FAMILIES[family]
    if family == "categorical":
        if weight_scale is None:
            raise ModelError("weight_scale=None learns the scale of a single predictor; for classes give a number.")
        weights = dist.ZeroSumNormal(weight_scale, (classes,)).expand((features,))
        prior = {"intercept": dist.ZeroSumNormal(intercept_scale, (classes,)), "weights": weights}
    else:
        weights = (
            pooled_prior(features)
            if weight_scale is None
            else dist.Normal(np.zeros(features, jnp.result_type(float)), weight_scale)
        )
        prior = {"weights": weights} | kind.others(classes or 0)
        if kind.intercept:
            prior["intercept"] = dist.Normal(0.0, intercept_scale)
    return Model(prior, Through(predictor, kind.observe))


def pooled_prior(features: int) -> dist.Distribution:
    """The prior of D weights of standardised columns that share a scale s: a Cauchy distribution in D dimensions.

        w | s ~ N(0, s² I),   s² ~ InverseGamma(1/2, 0.09 / 2D)

    Given s, Σ wⱼ² is D s² on average; the prior median of this is 0.2 of the variance of a standardised y. Related
    priors are the Cauchy prior of each weight by Gelman, Jakulin, Pittau & Su 2008, and the normal prior with a fixed s
    of ridge regression (Hoerl & Kennard 1970).
    """
    return SphericalT(1.0, features, 0.3 / math.sqrt(features))


# docs/decisions/027 has the experiments for these numbers.
# By default a scale is learnt only if there are at most this many columns, or at most this many rows, since INLA then
# takes a thousand Cholesky roots of matrices of the smaller size.
MOST_POOLED = 400
OF_CLASSES = 1.5  # prior sd of η in models of classes, whose weights do not share a learnt scale
# Few rows are fewer than FEW_ROWS for each column; many columns are at least MANY_COLUMNS.
FEW_ROWS, MANY_COLUMNS = 5, 10


def weight_scale_for(features: int, rows: float, family: str) -> float | None:
    """The default ``weight_scale`` for a table.

    It is 2.5, unless the table has many columns and few rows for each. For classes it is then 1.5/√D, with which every
    η has a prior sd of 1.5. For other families it is then None, so that the weights' scale is learnt; with more than
    400 columns and more than 400 rows this would take too long, and it stays 2.5.
    """
    if features < MANY_COLUMNS or not 0 < rows < FEW_ROWS * features:
        return 2.5
    if family in CLASSES:
        return OF_CLASSES / math.sqrt(features)
    return None if min(features, rows) <= MOST_POOLED else 2.5


def with_priors(model: Model, priors: Mapping[str, Any]) -> Model:
    """The model with new priors for some of its parameters, by name. Equal priors give the same ``Model``.

    Args:
        model: a model whose prior is a dict of distributions.
        priors: for each name a distribution with the parameter's shape, or a scalar one for all its entries.

    Raises:
        ModelError: a name is unknown, a shape does not fit, or a prior has a larger support than its parameter.

    >>> model = with_priors(generalised_linear(3, "normal"), {"weights": dist.Laplace(0.0, 1.0)})
    >>> model.prior["weights"].shape()
    (3,)
    """
    if type(model.prior) is not dict:
        raise ModelError(
            f"with_priors expects a model whose prior is a dict of distributions; got a {type(model.prior).__name__}."
        )
    new_priors = []
    for name, prior in sorted(priors.items()):
        if name not in model.prior:
            known = listing(sorted(model.prior))
            raise ModelError(f"There is no parameter {name!r}; the model has {known}.{nearest(name, model.prior)}")
        if not is_distribution(prior):
            raise ModelError(f"The prior of {name!r} is a numpyro distribution; got {type(prior).__name__}.")
        shape = model.prior[name].shape()
        if prior.shape() not in ((), shape):
            raise ModelError(f"The prior of {name!r} is of shape {shape}, or of one number; got {prior.shape()}.")
        _check_support(name, prior, model.prior[name])
        leaves, structure = jax.tree.flatten(prior)
        new_priors.append((name, structure, tuple(tuple(np.ravel(leaf).tolist()) for leaf in leaves),
                           tuple(np.shape(leaf) for leaf in leaves)))  # fmt: skip
    return _with_priors(model, tuple(new_priors)) if new_priors else model


def _check_support(name: str, prior: dist.Distribution, usual: dist.Distribution) -> None:
    """Raise an error if a prior has a larger support than its parameter.

    For example, a noise is positive, and the weights of a softmax sum to zero over the classes.
    """
    if isinstance(base_of(usual), dist.ZeroSumNormal) != isinstance(base_of(prior), dist.ZeroSumNormal):
        raise ModelError(
            f"The prior of {name!r} is a ZeroSumNormal if the parameter sums to zero over classes, and only then; got "
            f"{type(prior).__name__}."
        )
    if usual.shape() != ():
        return
    probe = np.array([-1.0, 1.0])
    supports: list[Any] = [usual.support, prior.support]
    old, new = (np.asarray(support(probe)) for support in supports)
    if np.any(new & ~old):
        raise ModelError(
            f"The prior of {name!r}, {type(prior).__name__}, allows negative numbers; expected one such as "
            f"{type(usual).__name__}."
        )


@shared
def _with_priors(model: Model, priors: tuple) -> Model:
    new = {}
    for name, structure, leaves, shapes in priors:
        parts = [jnp.reshape(jnp.asarray(a), shape) for a, shape in zip(leaves, shapes, strict=True)]
        prior = jax.tree.unflatten(structure, parts)
        new[name] = prior.expand(model.prior[name].shape()) if prior.shape() == () else prior
    return replace(model, prior=model.prior | new)


@shared
def bayesian_linear(features: int, noise_sd: Real, weight_sd: Real) -> Model:
    """Linear regression with a known noise sd; ``conjugate.linear_regression`` gives the exact posterior.

        y ~ N(xᵀw, noise_sd²),   w ~ N(0, weight_sd²);   both sds > 0, x has D columns

    There is no intercept: centre y, or give x a column of ones. θ is ``weights`` (D,).
    """
    positive(features=features, noise_sd=noise_sd, weight_sd=weight_sd)
    return Model(
        {"weights": dist.Normal(jnp.zeros(features), weight_sd)},
        Through(lambda params, x: jnp.dot(x, params["weights"]), lambda params, eta: dist.Normal(eta, noise_sd)),
    )


@shared
def gaussian_mixture_2d() -> Model:
    """The mixture with tied means of Welling & Teh 2011 (section 5.1), whose posterior has two modes.

        θ₁ ~ N(0, 10),   θ₂ ~ N(0, 1),   x ~ ½ N(θ₁, 2) + ½ N(θ₁ + θ₂, 2)   (variances)

    Swapping the components, (θ₁, θ₂) → (θ₁ + θ₂, −θ₂), does not change the likelihood. θ is ``theta`` (2,); a datum is
    one x.
    """

    def likelihood(params: dict[str, Any]) -> dist.Distribution:
        first, shift = params["theta"]
        components = dist.Normal(jnp.stack([first, first + shift]), np.sqrt(2.0))
        return dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([0.5, 0.5])), components)

    return Model({"theta": dist.Normal(jnp.zeros(2), jnp.sqrt(jnp.array([10.0, 1.0])))}, likelihood)


def draw_mixture(size: int, theta: tuple[float, float] = (0.0, 1.0), seed: int = 0) -> np.ndarray:
    """Random data x (size,) for ``gaussian_mixture_2d``.

    z ~ Bernoulli(½),   x = θ₁ + z θ₂ + √2 ε,   ε ~ N(0, 1)
    """
    generator = np.random.default_rng(seed)
    z = generator.integers(0, 2, size)
    return generator.normal(theta[0] + z * theta[1], np.sqrt(2.0))


def predictor(params: dict[str, Any], x: ArrayLike) -> jax.Array:
    """The predictor η = a + xᵀw of one datum: one number, or (C,) numbers if there is a column of weights per class."""
    return params.get("intercept", 0.0) + jnp.dot(x, params["weights"])
