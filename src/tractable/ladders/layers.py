"""One layer of a ladder: a distribution whose parameters a network computes from the layer above (or below).

η is the output of that network, from which a family makes the distribution of the layer's units.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from tractable.core.approximations import inverse_softplus, softplus
from tractable.core.errors import ModelError
from tractable.core.settings import is_whole
from tractable.core.shared import shared
from tractable.core.tree import PyTree
from tractable.ladders.units import BinaryUnits, ContinuousBernoulliLogits
from tractable.networks.architecture import Network, mlp

SD_FLOOR = 1e-3  # smallest sd of a normal layer whose sd is learnt: without it the likelihood of x is unbounded


def _real(h: PyTree) -> jax.Array:
    return jnp.asarray(h, jnp.result_type(float))


def _one_each(n: int) -> int:
    return n


class Family(NamedTuple):
    """The kind of a layer's units.

    Attributes:
        name: the name in messages and reports.
        width: ``n -> length of η`` for n units.
        distribution: ``η -> distribution`` of a layer; η is (…, width(n)), and the batch shape (…).
        features: ``h -> (…, m)``, the input that h gives to a neighbouring layer's network.
        seen: ``n -> m``, the number of features of n units.
        levels: number of values of a unit; 0 for a continuous unit or infinitely many values.
        discrete: whether units are discrete, so that draws have no derivative.
    """

    name: str
    width: Callable[[int], int]
    distribution: Callable[[jax.Array], Distribution]
    features: Callable[[PyTree], jax.Array]
    seen: Callable[[int], int]
    levels: int = 0
    discrete: bool = False


class Layer(NamedTuple):
    """The distribution p(h | above), or q(h | below): h ~ family(network(above)).

    Arrays may have any leading axes, (…, n).

    Attributes:
        size: n, the number of units.
        family: the units' kind.
        init: ``key -> params``.
        distribution: ``(params, above (…, m)) -> `` the layer's distribution, batch shape (…); ``above`` is None at the
            top.
    """

    size: int
    family: Family
    init: Callable[[jax.Array], PyTree]
    distribution: Callable[[PyTree, jax.Array | None], Distribution]

    @property
    def seen(self) -> int:
        """m, the number of features that a neighbouring layer's network takes as input."""
        return self.family.seen(self.size)

    def features(self, h: PyTree) -> jax.Array:
        """The features of h, (…, m), which a neighbouring layer's network takes as input."""
        return self.family.features(h)


def _halves(eta: jax.Array) -> Distribution:
    n = eta.shape[-1] // 2
    return dist.Normal(eta[..., :n], SD_FLOOR + softplus(eta[..., n:]), validate_args=False).to_event(1)


def _last_sd(eta: jax.Array) -> Distribution:
    sd = SD_FLOOR + softplus(eta[..., -1:])
    return dist.Normal(eta[..., :-1], jnp.broadcast_to(sd, eta[..., :-1].shape), validate_args=False).to_event(1)


def _continuous(eta: jax.Array) -> Distribution:
    return ContinuousBernoulliLogits(eta, validate_args=False).to_event(1)


def _poisson(eta: jax.Array) -> Distribution:
    return dist.Poisson(jnp.exp(eta), validate_args=False).to_event(1)


bernoulli = Family("Bernoulli", _one_each, BinaryUnits, _real, _one_each, 2, True)
normal = Family("Normal", lambda n: 2 * n, _halves, _real, _one_each)
one_sd = Family("Normal", lambda n: n + 1, _last_sd, _real, _one_each)
continuous_bernoulli = Family("ContinuousBernoulli", _one_each, _continuous, _real, _one_each)
poisson = Family("Poisson", _one_each, _poisson, lambda h: jnp.log1p(_real(h)), _one_each, discrete=True)
FAMILIES = {"bernoulli": bernoulli, "normal": normal, "continuous bernoulli": continuous_bernoulli, "poisson": poisson}


@shared  # the same sd gives the same object, so that models made with it are the same object too
def normal_noise(sd: float) -> Family:
    """Normal units with mean η and a given sd > 0."""
    if not (isinstance(sd, int | float) and math.isfinite(sd) and sd > 0):
        raise ModelError(f"normal_noise(sd) expects a positive finite number; got {sd!r}.")

    def distribution(eta: jax.Array) -> Distribution:
        return dist.Normal(eta, jnp.full_like(eta, float(sd)), validate_args=False).to_event(1)

    return Family("Normal", _one_each, distribution, _real, _one_each)


@shared
def categorical(levels: int) -> Family:
    """Units with ``levels`` values each, 0 … levels − 1; their features are one-hot."""
    if not is_whole(levels, 2):
        raise ModelError(f"categorical(levels) expects a whole number, 2 or more; got {levels!r}.")

    def distribution(eta: jax.Array) -> Distribution:
        logits = eta.reshape(*eta.shape[:-1], -1, levels)
        return dist.CategoricalLogits(logits, validate_args=False).to_event(1)

    def features(h: PyTree) -> jax.Array:
        one_hot = jax.nn.one_hot(h, levels, dtype=jnp.result_type(float))
        return one_hot.reshape(*one_hot.shape[:-2], -1)

    def each(n: int) -> int:
        return n * levels

    return Family("Categorical", each, distribution, features, each, levels, True)


def family_of(family: str | Family) -> Family:
    """The family of this name, or the family itself; raises ModelError for unknown names."""
    if isinstance(family, Family):
        return family
    if family not in FAMILIES:
        raise ModelError(
            f"A layer's family is one of {', '.join(map(repr, FAMILIES))}, categorical(levels), normal_noise(sd) or a "
            f"Family; got {family!r}."
        )
    return FAMILIES[family]


def layer(
    above: int,
    size: int,
    family: str | Family = "bernoulli",
    *,
    hidden: int | tuple[int, ...] = (),
    activation: str | Callable = "tanh",
    network: Network | None = None,
) -> Layer:
    """Make a layer that lies below another layer, or above it in an inference network.

    Args:
        above: m, the number of features of the other layer (``Layer.seen``).
        size: n ≥ 1, the number of units.
        family: "bernoulli", "normal" (mean and softplus sd), "continuous bernoulli", "poisson",
            ``categorical(levels)``, ``normal_noise(sd)``, or your own ``Family``.
        hidden: widths of the deterministic layers between the two; () for a linear map.
        activation: activation of the deterministic layers.
        network: your own ``Network`` from (m,) to (family.width(n),), in place of the perceptron.

    Raises:
        ModelError: sizes below 1, an unknown family, or a network with the wrong output length.
    """
    kind = family_of(family)
    _check_size(size)
    net = mlp(above, hidden, kind.width(size), activation) if network is None else network
    if network is not None:
        try:
            output = jax.eval_shape(net.apply, net.params, jax.ShapeDtypeStruct((above,), jnp.result_type(float)))
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"The layer's network could not be called with the {above} numbers of the neighbouring layer: {error}"
            ) from error
        shape, expected = getattr(output, "shape", type(output).__name__), (kind.width(size),)
        if shape != expected:
            raise ModelError(
                f"{size} {kind.name} units take {expected[0]} numbers; the layer's network returns shape {shape}."
            )
    return Layer(
        size, kind, functools.partial(starting_weights, net),
        lambda params, above: kind.distribution(map_network(net.apply, params, above)),
    )  # fmt: skip


def shared_noise(
    above: int, size: int, *, hidden: int | tuple[int, ...] = (), activation: str | Callable = "tanh"
) -> Layer:
    """Make a layer of normal units that share one learnt sd; with a linear network, p(x | h) of probabilistic PCA.

        η = network(above),   h ~ N(η, σ² I),   σ = 0.001 + softplus(ρ), starting at 1

    Args:
        As for ``layer``. The layer's parameters are those of the perceptron, and the scalar ρ under the name "noise".
    """
    _check_size(size)
    net = mlp(above, hidden, size, activation)

    def init(key: jax.Array) -> PyTree:
        return starting_weights(net, key) | {"noise": inverse_softplus(jnp.asarray(1 - SD_FLOOR))}

    def distribution(params: PyTree, above: PyTree) -> Distribution:
        means = map_network(net.apply, params, above)
        noise = jnp.broadcast_to(params["noise"], (*means.shape[:-1], 1))
        return one_sd.distribution(jnp.concatenate([means, noise], axis=-1))

    return Layer(size, one_sd, init, distribution)


def top(size: int, family: str | Family = "bernoulli") -> Layer:
    """Make the top layer: one η for all data, which is learnt and starts at 0 (for normal units, mean 0 and sd 1)."""
    kind = family_of(family)
    _check_size(size)

    def init(key: jax.Array) -> PyTree:
        eta = jnp.zeros(kind.width(size))
        if kind is normal:  # sd 1
            eta = eta.at[size:].set(inverse_softplus(jnp.asarray(1 - SD_FLOOR)))
        return {"bias": eta}

    return Layer(size, kind, init, lambda params, above: kind.distribution(params["bias"]))


def standard_normal(size: int) -> Layer:
    """Make the top layer of a latent Gaussian model, N(0, I), which has no parameters."""
    _check_size(size)

    def distribution(params: PyTree, above: jax.Array | None) -> Distribution:
        return dist.Normal(jnp.zeros(size), jnp.ones(size), validate_args=False).to_event(1)

    return Layer(size, normal, lambda key: {}, distribution)


def map_network(apply: Callable, params: PyTree, x: jax.Array) -> PyTree:
    """Apply a network, whose input is a vector (m,), over all leading axes of x (…, m)."""
    lead = x.shape[:-1]
    if not lead:
        return apply(params, x)
    flat = jax.vmap(apply, in_axes=(None, 0))(params, x.reshape(math.prod(lead), x.shape[-1]))
    return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), flat)


def starting_weights(net: Network, key: jax.Array) -> PyTree:
    """The network's starting weights."""
    return net.params if net.start is None else net.start(key)


def _check_size(size: object) -> None:
    if not is_whole(size):
        raise ModelError(f"A layer has 1 unit or more; got size={size!r}.")
