"""Checks and draws of a prior that is a pytree of numpyro distributions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from numpyro import distributions as dist
from numpyro.distributions import Distribution, ExpandedDistribution, ImproperUniform, Independent

from tractable.core.bits import SINGLE_ONLY
from tractable.core.errors import ModelError
from tractable.core.tree import PyTree

# A number of Dirichlet(α) is below 1.2e-38, the smallest one in single precision, with probability ≈ e^(−87 α).
POINTED = (dist.Beta, dist.Dirichlet, dist.Gamma, dist.InverseGamma, dist.Weibull)
# Distributions of z = loc + scale · u, where u has the same distribution with loc 0 and scale 1.
LOCATED = (dist.Cauchy, dist.Gumbel, dist.Laplace, dist.Logistic, dist.Normal, dist.StudentT)
LEAST = 0.1  # α below which that probability, 1.6e-4, matters


def is_distribution(x: object) -> bool:
    """Whether ``x`` is a distribution; an ``is_leaf`` for pytrees of distributions, as each is itself a pytree."""
    return isinstance(x, Distribution)


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False)
class Fixed:
    """The class of a distribution, and its fields that are no arrays; printed where a structure is hashed."""

    kind: type
    fields: tuple


def in_order(distributions: PyTree) -> PyTree:
    """A pytree with the fields of each distribution in an order that is the same in every process.

    numpyro flattens a distribution in the order of a Python set, which differs between processes.
    """

    def split(value: PyTree) -> PyTree:
        if not is_distribution(value):
            return value
        kind, own = type(value), vars(value)
        fixed = tuple((name, own.get(name)) for name in sorted(kind.gather_pytree_aux_fields()))
        return Fixed(kind, fixed), [in_order(own.get(name)) for name in sorted(kind.gather_pytree_data_fields())]

    return jax.tree.map(split, distributions, is_leaf=is_distribution)


def sample_of(distributions: PyTree, key: jax.Array) -> PyTree:
    """One draw from each of a pytree of distributions."""
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [d.sample(k) for d, k in zip(leaves, keys, strict=True)])


def is_improper(distribution: Distribution) -> bool:
    """Whether the distribution, or the distribution that it wraps, is improper."""
    while getattr(distribution, "base_dist", None) is not None and not isinstance(distribution, ImproperUniform):
        distribution = distribution.base_dist  # type: ignore[attr-defined]
    return isinstance(distribution, ImproperUniform)


def exceeds_single(prior: PyTree) -> bool:
    """Whether single precision would round a part of the prior's mass to the edge of its support (Dirichlet(0.05)).

    There log densities are infinite, so that the run needs double precision.
    """
    if jnp.result_type(float) != jnp.float32 or jax.default_backend() in SINGLE_ONLY:
        return False
    bases = map(base_of, jax.tree.leaves(prior, is_leaf=is_distribution))
    numbers = (item for base in bases if isinstance(base, POINTED) for item in vars(base).items())
    return any(np.min(value) < LEAST for name, value in numbers if name.startswith("concentration"))


def base_of(distribution: object) -> Any:
    """The distribution of a single number, within a distribution of many independent ones."""
    while isinstance(distribution, Independent | ExpandedDistribution):
        distribution = distribution.base_dist
    return distribution


def standard_form(distribution: Any) -> tuple[Distribution, Callable]:
    """A distribution of u with location 0 and scale 1, and the function u ↦ z that gives z this distribution.

    It is the distribution itself, with z = u, if it is no family of locations and scales.
    """
    if isinstance(distribution, Independent):
        base, function = standard_form(distribution.base_dist)
        return base.to_event(distribution.reinterpreted_batch_ndims), function
    if isinstance(distribution, ExpandedDistribution):
        base, function = standard_form(distribution.base_dist)
        return base.expand(distribution.batch_shape), function
    if type(distribution) is dist.MultivariateNormal:
        loc, root = distribution.loc, distribution.scale_tril
        standard = dist.Normal().expand(distribution.batch_shape + distribution.event_shape).to_event(1)
        return standard, lambda u: loc + (root @ u[..., None])[..., 0]
    if type(distribution) not in LOCATED:
        return distribution, lambda u: u
    loc, scale, shape = distribution.loc, distribution.scale, distribution.batch_shape
    others = {n: getattr(distribution, n) for n in distribution.arg_constraints if n not in ("loc", "scale")}
    return type(distribution)(**others, loc=jnp.zeros(shape), scale=jnp.ones(shape)), lambda u: loc + scale * u


def in_words(distribution: Distribution) -> str:
    """The distribution as users write it, such as "Normal(loc=0, scale=2.5)"; unequal numbers appear by their shape."""
    distribution = base_of(distribution)
    arguments = {name: distribution.__dict__.get(name) for name in distribution.arg_constraints}
    words = [f"{name}={_number_or_shape(value)}" for name, value in arguments.items() if value is not None]
    return f"{type(distribution).__name__}({', '.join(words)})"


def _number_or_shape(value: ArrayLike) -> str:
    numbers = np.unique(np.asarray(value))
    return f"{numbers[0]:g}" if numbers.size == 1 else f"array of shape {np.shape(value)}"


def check_prior(prior: PyTree) -> None:
    """Raise a ModelError unless ``prior`` is a pytree of continuous distributions with valid parameters."""
    leaves = jax.tree_util.tree_flatten_with_path(prior, is_leaf=is_distribution)[0]
    if not leaves:
        raise ModelError("Model needs at least one parameter; its prior is empty.")
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if not is_distribution(leaf):
            raise ModelError(
                f"The prior of {name!r} is {type(leaf).__name__}; expected a numpyro distribution, such as "
                "dist.Normal(0, 1)."
            )
        if leaf.support.is_discrete:
            raise ModelError(
                f"The prior of {name!r} is discrete ({type(leaf).__name__}); expected a continuous distribution. Sum "
                "the parameter out of the likelihood, for example with dist.MixtureSameFamily."
            )
        _check_parameters(name, leaf)


def _check_parameters(name: str, distribution: Distribution) -> None:
    """Raise a ModelError for invalid parameters: numpyro's checks do not name the prior, and can be switched off."""
    for argument, constraint in distribution.arg_constraints.items():
        value = distribution.__dict__.get(argument)
        if value is None or isinstance(value, Tracer) or getattr(constraint, "is_discrete", False):
            continue
        try:
            valid = bool(np.all(np.asarray(constraint(np.asarray(value)))))
        except (TypeError, ValueError, NotImplementedError):
            continue
        if not valid:
            shown = np.asarray(value)
            detail = ""
            if shown.ndim == 2 and shown.shape[0] == shown.shape[1]:
                detail = f", smallest eigenvalue {np.linalg.eigvalsh((shown + shown.T) / 2)[0]:.3g}"
            raise ModelError(
                f"The prior of {name!r}, {type(distribution).__name__}, has an invalid {argument}: got {shown}"
                f"{detail}; expected {constraint}."
            )
