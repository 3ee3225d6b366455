"""Models of several targets of the same rows, each target with its own coefficients and further parameters."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from tractable.core.errors import ModelError
from tractable.core.model import Model, PyTree, Through
from tractable.core.shared import shared
from tractable.core.view import as_label
from tractable.glm.families import FAMILIES, MULTI_OUTPUT
from tractable.glm.linear import generalised_linear
from tractable.networks.network import SD_FLOOR


def side_by_side(parts: Mapping[str, Model], family: str) -> Model:
    """Make a model of y (K,) from a model for each of its K numbers; these models share only x.

        y_k | x ~ family(η_k, θ_k),   η_k of x and θ_k,   p(θ) = Π_k p_k(θ_k)   so that   p(θ | y) = Π_k p(θ_k | y_k)

    Correlated residuals are not modelled: each target has its own noise. Methods learn or draw all θ_k at once, except
    ``INLA``, which fits the parts one after another.

    Args:
        parts: models by name, in the order of y's numbers; their likelihoods go ``Through`` a predictor.
        family: the family of all targets, one of ``glm.families.MULTI_OUTPUT``.

    Returns:
        A Model whose parameters are those of each part under its name: {"a": {"weights", "intercept", "noise"}, …}.
    """
    if family not in MULTI_OUTPUT:
        raise ModelError(f"Several targets are numbers of one family, {', '.join(MULTI_OUTPUT)}; got {family!r}.")
    kind = FAMILIES[family]
    others = list(kind.others(0))

    def observe(params: dict[str, Any], eta: jax.Array) -> dist.Distribution:
        each: Any = kind.observe({other: jnp.stack([params[name][other] for name in parts]) for other in others}, eta)
        return each.to_event(1)

    return with_stacked_predictors(parts, observe, parts=dict(parts))


def with_stacked_predictors(
    models: Mapping[str, Model], observe: Callable[..., dist.Distribution], **fields: Any
) -> Model:
    """Make a model whose η (K,) has one predictor from each part; parameters are named ``name.parameter``."""
    predictors: dict[str, Callable] = {}
    for name, part in models.items():
        if part.through is None:
            raise ModelError(f"Each part's likelihood must go Through a predictor; that of {name!r} does not.")
        predictors[name] = part.through.predictor

    def predictor(params: dict[str, Any], x: PyTree) -> jax.Array:
        return jnp.stack([of(params[name], x) for name, of in predictors.items()])

    labels = {
        f"{name}.{key}": [as_label(label).of_part(f"{name}.") for label in own]
        for name, part in models.items()
        for key, own in (part.labels or {}).items()
    }
    prior = {name: part.prior for name, part in models.items()}
    return Model(prior, Through(predictor, observe), labels=labels or None, **fields)


@shared
def several_linear(
    names: Sequence[str], features: int, family: str = "normal", weight_scale: float | None = 2.5,
    intercept_scale: float = 5.0,
) -> Model:  # fmt: skip
    """Make a ``generalised_linear`` model for each target and join them by ``side_by_side``.

    Equal arguments give the same Model object.

    >>> several_linear(["height", "weight"], 1).names[:3]
    ['height.intercept', 'height.noise', 'height.weights[0]']
    """
    part = generalised_linear(features, family, None, weight_scale, intercept_scale)
    return side_by_side(dict.fromkeys(names, part), family)


@functools.cache
def multi_output_likelihood(
    likelihood: str, count: int
) -> tuple[Callable[..., dist.Distribution], dict[str, dist.Distribution]]:
    """The likelihood of ``count`` numbers per row, each with its own noise, and the priors of these noises.

    The numbers are independent given the network's output, and share the network's hidden layers. Equal arguments give
    the same object.
    """

    def observe(output: jax.Array, extra: dict[str, jax.Array]) -> dist.Distribution:
        if likelihood == "heteroscedastic":
            each = dist.Normal(output[:count], jax.nn.softplus(output[count:]) + SD_FLOOR)
        elif likelihood == "student-t":
            each = dist.StudentT(4.0, output, extra["noise"])
        else:
            each = dist.Normal(output, extra["noise"])
        return each.to_event(1)

    return observe, {} if likelihood == "heteroscedastic" else {"noise": dist.HalfNormal(1.0).expand((count,))}
