"""Bayesian neural networks: models that consist of a network with unknown weights, a likelihood and priors."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints

from tractable.core.errors import ModelError
from tractable.core.model import Model, Through, is_distribution
from tractable.core.numbers import Number, Real, positive
from tractable.core.shared import recorded, shared
from tractable.core.tree import PyTree, path_name
from tractable.glm.families import FAMILIES
from tractable.networks.architecture import Network, apply_network, as_network, draw_weights, fan_in, mlp

__all__ = ["Network", "ScaleMixture", "mlp", "neural_network", "scale_mixture"]

NARROW = float(np.exp(-6.0))  # default sd of a scale mixture's narrow component, from Blundell et al. 2015
SD_FLOOR = 1e-3  # smallest sd of a heteroscedastic network: without it the likelihood is unbounded
SCALE = 2.0  # scale of the half-normal prior of learnt scales s; all s = 1 would be the prior "scaled"


class ScaleMixture(dist.Distribution):
    """The distribution π N(0, wide²) + (1 − π) N(0, narrow²), which ``scale_mixture`` makes."""

    arg_constraints: ClassVar = {
        "share": constraints.unit_interval,
        "wide": constraints.positive,
        "narrow": constraints.positive,
    }
    support = constraints.real  # pyright: ignore[reportAssignmentType]

    def __init__(self, share: Number, wide: Number, narrow: Number, *, validate_args: bool | None = None) -> None:
        self.share, self.wide, self.narrow = share, wide, narrow
        super().__init__((), (), validate_args=validate_args)

    def log_prob(self, value: ArrayLike, intermediates: PyTree = None) -> jax.Array:
        # Computed from log densities, because the narrow density underflows in the tails.
        return jnp.logaddexp(
            jnp.log(self.share) + dist.Normal(0.0, self.wide).log_prob(value),
            jnp.log1p(-self.share) + dist.Normal(0.0, self.narrow).log_prob(value),
        )

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        component_key, normal_key = jax.random.split(key)
        wide = jax.random.bernoulli(component_key, self.share, sample_shape)
        return jnp.where(wide, self.wide, self.narrow) * jax.random.normal(normal_key, sample_shape)

    @property
    def mean(self) -> jax.Array:
        return jnp.zeros(())

    @property
    def variance(self) -> jax.Array:
        return jnp.asarray(self.share * self.wide**2 + (1 - self.share) * self.narrow**2)


@shared
def scale_mixture(share: Real = 0.5, wide: Real = 1.0, narrow: Real = NARROW) -> ScaleMixture:
    """Make a spike-and-slab prior of two normals, under which most weights are near 0 and a few are free.

        p(w) = π N(w; 0, σ₁²) + (1 − π) N(w; 0, σ₂²),   independent weights;   variance π σ₁² + (1 − π) σ₂²

    It is equation 7 of Blundell et al. 2015, who choose π from ¼, ½, ¾, −log σ₁ from 0, 1, 2 and −log σ₂ from 6, 7, 8.

    Args:
        share: π in (0, 1), weight of the wide component.
        wide: σ₁ > 0, an sd.
        narrow: σ₂ in (0, σ₁], an sd; e⁻⁶ by default.

    Returns:
        A scalar distribution; ``.expand(shape)`` for many. The same arguments give the same object.

    Raises:
        ModelError: a share outside (0, 1), or sds that are not positive or in the wrong order.

    >>> print(scale_mixture().log_prob(15.0).round(2))
    -114.11
    """
    positive(wide=wide, narrow=narrow)
    if not 0 < share < 1:
        raise ModelError(f"share is the wide component's weight, a number between 0 and 1; got {share}.")
    if narrow > wide:
        raise ModelError(f"narrow is the smaller sd; got narrow={narrow} and wide={wide}. Swap them.")
    return ScaleMixture(float(share), float(wide), float(narrow))


# For each likelihood the shape of the network's output in words, and a function that says whether a shape is right.
LIKELIHOODS: dict[str, tuple[str, Callable[[tuple[int, ...]], bool]]] = {
    "normal": ("(), (1,) or (D,)", lambda shape: 0 not in shape),
    "student-t": ("(), (1,) or (D,)", lambda shape: 0 not in shape),
    "heteroscedastic": ("(2,), a mean and a raw scale", lambda shape: shape == (2,)),
    "categorical": ("(C,), a logit for each of C ≥ 2 classes", lambda shape: len(shape) == 1 and shape[0] > 1),
    **{
        name: (f"() or (1,), {what}", lambda shape: shape in ((), (1,)))
        for name, what in {
            "bernoulli": "a logit", "beta": "a logit of the mean", "lognormal": "a mean of log y",
            **{name: "a log rate" for name in FAMILIES if name.endswith(("poisson", "binomial"))},
            "gamma": "a log mean", "weibull": "a log scale", "exponential": "a log mean",
        }.items()
    },
}  # fmt: skip
NOISY = ("normal", "student-t")  # likelihoods with a learnable noise
PRIORS = ("scaled", "relevance")  # named priors of the weights


def _of(likelihood: str, output: jax.Array, params: dict[str, Any], df: float) -> dist.Distribution | None:
    """The distribution of one datum given the network's output."""
    if likelihood == "categorical":
        return dist.CategoricalLogits(output)
    if likelihood == "heteroscedastic":
        mean, raw = output
        return dist.Normal(mean, jax.nn.softplus(raw) + SD_FLOOR)
    if output.shape == (1,):
        output = output[0]
    if likelihood not in NOISY:
        return FAMILIES[likelihood].observe(params, output)
    noise = params["noise"]
    centred = dist.Normal(output, noise) if likelihood == "normal" else dist.StudentT(df, output, noise)
    return centred.to_event(output.ndim)


@recorded
def neural_network(
    network: PyTree, likelihood: str | Callable[..., dist.Distribution] = "normal", *, prior: PyTree = "scaled",
    noise: Real | None = None, df: Real = 4.0, extra: dict[str, dist.Distribution] | None = None,
    example: PyTree = None,
) -> Model:  # fmt: skip
    """Make a model of y given the output of a network f with unknown weights w.

        normal:           y ~ N(f(x), noise²)                      f: () or (1,) for a scalar y, (D,) for y (D,)
        student-t:        y ~ f(x) + noise · t_df                  the same
        heteroscedastic:  y ~ N(f₀, (softplus(f₁) + 0.001)²)       f: (2,)
        categorical:      y ~ Categorical(softmax(f(x)))           f: (C,), y in 0..C−1
        bernoulli:        y ~ Bernoulli(1 / (1 + e^−f(x)))         f: () or (1,), y in {0, 1}
        poisson:          y ~ Poisson(e^f(x))                      f: () or (1,)

    and "lognormal", "gamma", "weibull", "exponential", "beta" and "negative-binomial" with η = f(x) as in
    ``models.linear.generalised_linear``.

    Standardise x, and y if it is a measurement.

    The prior "scaled" is N(0, 1/fan_in) for weights and N(0, 1) for biases. The fan-in is the product of all axes but
    the outputs'; vectors and scalars have a fan-in of 1. At standardised inputs, |x|² = D, a ReLU network's output
    then has variance 2 exactly, whatever its widths and depth, and a tanh network's output has a variance between 1 and
    2. If all weights had the same sd instead, the functions would grow with the width (Neal 1996). Embeddings, and
    layers whose weights multiply each other, need a prior of their own.

    The prior "relevance" learns the size of weights, and which inputs matter (MacKay 1995; Neal 1996, chapter 4):

        w = s · v,   v ~ "scaled",   s ~ HalfNormal(2)

    There is one s per array of weights, but one s per input for the first matrix applied to x. Chains must be longer,
    because only the product s · v matters for the likelihood. In an experiment (docs/decisions/034) long chains
    predicted tables of about ten inputs better than under "scaled", and tables of few inputs worse. A joint maximum
    over s and v overfits: do not use this prior with MAP or Laplace.

    Args:
        network: a Network, such as ``mlp(8, (50,), 1)``; an Equinox module called with one x; or a pair
            ``(params, apply)`` whose layers compute x @ W. ``tractable.adapters.flax.from_nnx`` converts a Flax module.
        likelihood: a name above, or ``(output, extra) -> distribution`` of one datum.
        prior: the prior of the weights: "scaled"; "relevance"; an sd > 0 for all weights; a scalar distribution for all
            weights, such as ``scale_mixture()``; ``(path, shape) -> distribution``, with paths such as "layer0.weight";
            or a pytree of distributions with the structure of the weights.
        noise: the sd (for student-t the scale), > 0; None learns it under HalfNormal(1).
        df: > 0, degrees of freedom of student-t.
        extra: priors, by name, of the further parameters of your own likelihood function.
        example: one x; if it is given, a network that does not fit its likelihood raises here, not in ``infer``.

    Returns:
        A Model whose parameters are ``weights`` (the network's own pytree) and, if learnt, ``noise`` () or the
        ``extra``. Under "relevance" ``weights`` is v, and ``scales`` is a pytree of the same structure with every s,
        () or (D,). Methods start at the network's own starting weights, at scales of 1, and at a noise within a factor
        e of 1. The same Network and arguments give the same Model, for which a second fit compiles nothing; a pair or a
        module gives a new Model each time.

    Raises:
        ModelError: an unknown likelihood or prior; a setting that belongs to another likelihood; a network whose output
            does not fit; layers that keep a state or drop units at random.

    >>> model = neural_network(mlp(3, (2,), 1))
    >>> model.names[:4]
    ['noise', 'weights.layer0.bias[0]', 'weights.layer0.bias[1]', 'weights.layer0.weight[0, 0]']
    """
    if isinstance(example, list) and all(isinstance(number, float | int) for number in jax.tree.leaves(example)):
        example = np.asarray(example, np.float64)  # a row that was written as numbers, as ``save`` writes it
    network = as_network(network, example)
    positive(df=df)
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise ModelError(f"likelihood is one of {', '.join(LIKELIHOODS)}, or a function; got {likelihood!r}.")
        if extra:
            raise ModelError(f"extra= is for a likelihood function of your own; {likelihood!r} takes none.")
    if noise is not None:
        if likelihood not in NOISY:
            raise ModelError("noise= is for likelihood='normal' and 'student-t'; leave it out, or use extra=.")
        positive(noise=noise)
    for name in ("weights", "scales") if _is_relevance(prior) else ("weights",):
        if name in (extra or {}):
            raise ModelError(f"{name!r} names the network's own parameters; rename the parameter in extra=.")
    arguments = (network, jnp.result_type(float), likelihood, prior, noise, float(df), tuple((extra or {}).items()))
    return _call_cached(network, _model, arguments)


def _model(
    network: Network, precision: np.dtype, likelihood: str | Callable, prior: PyTree, noise: Real | None, df: float,
    extra: tuple,
) -> Model:  # fmt: skip
    """The Model for checked arguments. ``precision`` is only there as a part of the cache's key."""
    arguments = (network, precision, likelihood, _is_relevance(prior), noise, df, extra)
    others, through, start = _call_cached(network, _parts, arguments)
    return Model({"weights": _priors(prior, network), **others}, through, start=start)


def _parts(
    network: Network, precision: np.dtype, likelihood: str | Callable, relevance: bool, noise: Real | None, df: float,
    extra: tuple,
) -> tuple[dict[str, PyTree], Through, Callable]:  # fmt: skip
    """What all models of one network share, whatever the weights' prior.

    These are the priors of the other parameters, the likelihood and the starting values.
    """
    others = dict(extra)
    if likelihood in NOISY:
        others |= {"noise": dist.HalfNormal(1.0)} if noise is None else {}
    elif isinstance(likelihood, str) and likelihood in FAMILIES:
        others |= FAMILIES[likelihood].others(0)
    scales = _scale_priors(network) if relevance else None

    def predictor(params: dict[str, Any], x: PyTree) -> jax.Array:
        weights = params["weights"]
        if scales is not None:
            weights = jax.tree.map(functools.partial(_scale_weight, network.output_axis), params["scales"], weights)
        return apply_network(network, weights, x)

    def observe(params: dict[str, Any], output: jax.Array) -> dist.Distribution | None:
        if not isinstance(likelihood, str):
            return likelihood(output, {name: value for name, value in params.items() if name in dict(extra)})
        _check_output(likelihood, output)
        return _of(likelihood, output, {"noise": noise, **params}, df)

    def start(key: jax.Array) -> dict[str, Any]:
        key, *keys = jax.random.split(key, 1 + len(others))
        weights = network.start(key) if network.start is not None else draw_weights(network.params, key)
        first = {"weights": weights, **{n: _near(d, k) for (n, d), k in zip(others.items(), keys, strict=True)}}
        if scales is not None:
            first["scales"] = jax.tree.map(lambda d: jnp.ones(d.shape()), scales, is_leaf=is_distribution)
        return first

    if network.example is not None:
        output = jax.eval_shape(functools.partial(apply_network, network), network.params, network.example)
        if isinstance(likelihood, str):
            _check_output(likelihood, output)
    return others if scales is None else {**others, "scales": scales}, Through(predictor, observe), start


def _scale_weight(output_axis: int, scale: jax.Array, weight: jax.Array) -> jax.Array:
    """s · v, with one scale for the whole array or one for each input."""
    return weight * (jnp.expand_dims(scale, output_axis) if jnp.ndim(scale) else scale)


def _check_output(likelihood: str, output: PyTree) -> None:
    expected, fits = LIKELIHOODS[likelihood]
    shape = getattr(output, "shape", None)
    if shape is None:
        raise ModelError(f"The network should return one array; got {type(output).__name__}.")
    if not fits(shape):
        raise ModelError(
            f"likelihood={likelihood!r} needs a network whose output for one x has shape {expected}; got {shape}. "
            "Change the network's last layer, or the likelihood."
        )


def _priors(prior: PyTree, network: Network) -> PyTree:
    """The prior of every leaf of the weights."""
    prior_of, priors = _prior_of_each(prior, network), []
    leaves, treedef = jax.tree_util.tree_flatten_with_path(network.params)
    for path, leaf in leaves:
        name, shape = path_name(path), jnp.shape(leaf)
        one = prior_of(name, shape)
        if not is_distribution(one):
            raise ModelError(f"The prior of the weight {name!r} is {type(one).__name__}; expected a distribution.")
        if one.shape() not in ((), shape):
            raise ModelError(
                f"The prior of the weight {name!r} has shape {one.shape()}; expected {shape}, or () for each number."
            )
        priors.append(one if one.shape() == shape else one.expand(shape))
    return jax.tree.unflatten(treedef, priors)


def _prior_of_each(prior: PyTree, network: Network) -> Callable[[str, tuple[int, ...]], Any]:
    """The function ``(path, shape) -> distribution`` of a leaf; raises ModelError for an invalid prior."""
    if isinstance(prior, str):
        if prior not in PRIORS:
            raise ModelError(f"prior is 'scaled', 'relevance', an sd, or distributions; got {prior!r}.")
        return lambda path, shape: dist.Normal(0.0, float(1 / np.sqrt(fan_in(shape, network.output_axis))))
    if is_distribution(prior):
        if prior.shape() != ():
            raise ModelError(
                "A prior for all weights is a distribution of one number, of shape (); got "
                f"{type(prior).__name__} of shape {prior.shape()}. For other priors give (path, shape) -> distribution."
            )
        return lambda path, shape: prior
    if isinstance(prior, float | int | np.number):
        positive(prior=float(prior))
        return lambda path, shape: dist.Normal(0.0, float(prior))
    leaves, structure = jax.tree_util.tree_flatten_with_path(prior, is_leaf=is_distribution)
    if leaves and all(is_distribution(leaf) for _, leaf in leaves):
        if structure != jax.tree.structure(network.params):
            raise ModelError(
                "A pytree of priors has the structure of the weights, "
                f"{jax.tree.structure(network.params)}; got {structure}."
            )
        by_name = {path_name(path): leaf for path, leaf in leaves}
        return lambda path, shape: by_name[path]
    if callable(prior):
        return prior
    raise ModelError(
        "prior is 'scaled', 'relevance', an sd, a distribution, (path, shape) -> distribution, or a pytree of "
        f"distributions; got {type(prior).__name__}."
    )


def _is_relevance(prior: PyTree) -> bool:
    return isinstance(prior, str) and prior == "relevance"


def _scale_priors(network: Network) -> PyTree:
    """Priors of s: (D,) for the first matrix whose fan-in is the length D of x, () for every other array of weights."""
    features = np.shape(network.example)[:1] if network.example is not None else ()
    leaves, treedef = jax.tree.flatten(network.params)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    takes_x = [len(shape) == 2 and (fan_in(shape, network.output_axis),) == features for shape in shapes]
    first = takes_x.index(True) if any(takes_x) else -1
    one = dist.HalfNormal(SCALE)
    return jax.tree.unflatten(treedef, [one.expand(features) if i == first else one for i in range(len(shapes))])


def _near(prior: dist.Distribution, key: jax.Array) -> jax.Array:
    """A starting value: uniform within 1 of the unconstrained origin, mapped to the prior's support."""
    bijection = biject_to(prior.support)
    like = jax.eval_shape(lambda k: bijection.inv(prior.sample(k)), key)
    return bijection(jax.random.uniform(key, like.shape, like.dtype, -1.0, 1.0))


def _call_cached(network: Network, function: Callable, arguments: tuple) -> Any:
    """``function(*arguments)``, cached in the network if the arguments can be hashed."""
    try:
        hash(arguments)
    except TypeError:
        return function(*arguments)
    return network.made(function, *arguments)
