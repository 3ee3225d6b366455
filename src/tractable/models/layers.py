"""One layer of a ladder: a distribution whose parameters a network computes from the layer above (or below).

    η = network(above),   h ~ family(η)

Arrays carry any leading axes, (…, n): rows, and draws of the layers.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from tractable.beliefs.approximations import inverse_softplus, softplus
from tractable.models.architecture import Network, mlp
from tractable.models.binary_units import BinaryUnits
from tractable.models.continuous_bernoulli import ContinuousBernoulliLogits
from tractable.tools.errors import ModelError
from tractable.tools.settings import is_whole

PyTree = Any
SD_FLOOR = 1e-3  # of a normal layer whose sd is computed: without one the likelihood of x has no bound


class Soft(NamedTuple):
    """Discrete units that were relaxed, by their logits l: σ(l), l (…, n); softmax(l), l (…, n, levels)."""

    logits: jax.Array


class Family(NamedTuple):
    """What a layer's units are.

    Attributes:
        name: as sentences and reports call it.
        width: ``n -> `` numbers of η that n units take.
        distribution: ``η (…, width(n)) -> `` a distribution of one layer, batch shape (…).
        features: ``h -> (…, m)``, what the network of a neighbouring layer sees of it.
        seen: ``n -> m``.
        levels: values that one unit takes; 0 for a continuous one, or for infinitely many.
        discrete: draws have no derivative.
    """

    name: str
    width: Callable[[int], int]
    distribution: Callable[[jax.Array], Any]
    features: Callable[[Any], jax.Array]
    seen: Callable[[int], int]
    levels: int = 0
    discrete: bool = False


class Layer(NamedTuple):
    """p(h | above), or q(h | below).

    Attributes:
        size: n, its units.
        family: what they are.
        init: ``key -> params``.
        distribution: ``(params, above (…, m)) -> `` the layer's distribution, batch shape (…); ``above`` is None at the
            top.
    """

    size: int
    family: Family
    init: Callable[[jax.Array], PyTree]
    distribution: Callable[[PyTree, Any], Any]

    @property
    def seen(self) -> int:
        """m, numbers that a neighbouring layer's network sees of it."""
        return self.family.seen(self.size)

    def features(self, h: Any) -> jax.Array:
        """What a neighbouring layer's network sees of h."""
        return self.family.features(h)


def _real(h: Any) -> jax.Array:
    return jnp.asarray(h, jnp.result_type(float))


def _binary(h: Any) -> jax.Array:
    return jax.nn.sigmoid(h.logits) if isinstance(h, Soft) else _real(h)


bernoulli = Family("Bernoulli", lambda n: n, BinaryUnits, _binary, lambda n: n, 2, True)


def _halves(eta: jax.Array) -> Any:
    n = eta.shape[-1] // 2
    return dist.Normal(eta[..., :n], SD_FLOOR + softplus(eta[..., n:]), validate_args=False).to_event(1)


normal = Family("Normal", lambda n: 2 * n, _halves, _real, lambda n: n)


def normal_noise(sd: float) -> Family:
    """Normal units of mean η and a given sd > 0."""
    if not (isinstance(sd, int | float) and math.isfinite(sd) and sd > 0):
        raise ModelError(f"normal_noise(sd) expects a positive finite number; got {sd!r}.")
    return _normal_noise(float(sd))


@functools.cache  # one family for one sd, so that models of it are one too
def _normal_noise(sd: float) -> Family:
    def distribution(eta: jax.Array) -> Any:
        return dist.Normal(eta, jnp.full_like(eta, sd), validate_args=False).to_event(1)

    return Family("Normal", lambda n: n, distribution, _real, lambda n: n)


def categorical(levels: int) -> Family:
    """Units of ``levels`` values each, 0 … levels − 1; networks see them one-hot."""
    if not is_whole(levels, 2):
        raise ModelError(f"categorical(levels) expects a whole number, 2 or more; got {levels!r}.")
    return _categorical(int(levels))


@functools.cache
def _categorical(levels: int) -> Family:
    def distribution(eta: jax.Array) -> Any:
        logits = eta.reshape(*eta.shape[:-1], -1, levels)
        return dist.CategoricalLogits(logits, validate_args=False).to_event(1)

    def features(h: Any) -> jax.Array:
        soft = isinstance(h, Soft)
        shares = jax.nn.softmax(h.logits) if soft else jax.nn.one_hot(h, levels, dtype=jnp.result_type(float))
        return shares.reshape(*shares.shape[:-2], -1)

    return Family("Categorical", lambda n: n * levels, distribution, features, lambda n: n * levels, levels, True)


def _poisson(eta: jax.Array) -> Any:
    return dist.Poisson(jnp.exp(eta), validate_args=False).to_event(1)


poisson = Family("Poisson", lambda n: n, _poisson, lambda h: jnp.log1p(_real(h)), lambda n: n, 0, True)


def _continuous(eta: jax.Array) -> Any:
    return ContinuousBernoulliLogits(eta, validate_args=False).to_event(1)


continuous_bernoulli = Family("ContinuousBernoulli", lambda n: n, _continuous, _real, lambda n: n)

FAMILIES = {"bernoulli": bernoulli, "normal": normal, "continuous bernoulli": continuous_bernoulli, "poisson": poisson}


def family_of(family: str | Family) -> Family:
    """The family called so, or a sentence."""
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
    """A layer below (or, of an inference network, above) another.

    Args:
        above: m, the numbers that its network sees of the other layer (``Layer.seen``).
        size: n ≥ 1 units.
        family: "bernoulli", "normal" (mean and softplus sd), "continuous bernoulli", "poisson",
            ``categorical(levels)``, ``normal_noise(sd)``, or a ``Family`` of your own.
        hidden: widths of deterministic layers between; () for a linear map.
        activation: of those.
        network: a ``Network`` of your own from (m,) to (family.width(n),), in place of the perceptron.

    Raises:
        ModelError: sizes below 1, an unknown family, a network whose output has another length.
    """
    kind = family_of(family)
    _check_size(size)
    net = mlp(above, hidden, kind.width(size), activation) if network is None else network
    if network is not None:
        _check_network(net, above, kind, size)

    def distribution(params: PyTree, above: Any) -> Any:
        return kind.distribution(mapped(net.apply, params, above))

    return Layer(size, kind, lambda key: started(net, key), distribution)


def shared_noise(
    above: int, size: int, *, hidden: int | tuple[int, ...] = (), activation: str | Callable = "tanh"
) -> Layer:
    """Normal units that share one sd, which is learnt: x of probabilistic PCA, where the network is linear.

        η = network(above),   h ~ N(η, σ² I),   σ = 0.001 + softplus(ρ), 1 to begin with

    Args:
        As for ``layer``; params are the perceptron's and ``noise``, ρ ().
    """
    _check_size(size)
    net = mlp(above, hidden, size, activation)

    def eta(params: PyTree, above: Any) -> jax.Array:
        means = mapped(net.apply, params, above)
        return jnp.concatenate([means, jnp.broadcast_to(params["noise"], (*means.shape[:-1], 1))], axis=-1)

    def init(key: jax.Array) -> PyTree:
        return started(net, key) | {"noise": inverse_softplus(jnp.asarray(1 - SD_FLOOR))}

    return Layer(size, _one_sd, init, lambda params, above: _one_sd.distribution(eta(params, above)))


def _last_sd(eta: jax.Array) -> Any:
    sd = SD_FLOOR + softplus(eta[..., -1:])
    return dist.Normal(eta[..., :-1], jnp.broadcast_to(sd, eta[..., :-1].shape), validate_args=False).to_event(1)


_one_sd = Family("Normal", lambda n: n + 1, _last_sd, _real, lambda n: n)


def top(size: int, family: str | Family = "bernoulli") -> Layer:
    """A layer that nothing is above: its η is learnt, one for all data, and starts at 0."""
    kind = family_of(family)
    _check_size(size)

    def init(key: jax.Array) -> PyTree:
        del key
        eta = jnp.zeros(kind.width(size))
        if kind is normal:  # sd 1
            eta = eta.at[size:].set(inverse_softplus(jnp.asarray(1 - SD_FLOOR)))
        return {"bias": eta}

    def distribution(params: PyTree, above: Any) -> Any:
        del above
        return kind.distribution(params["bias"])

    return Layer(size, kind, init, distribution)


def standard_normal(size: int) -> Layer:
    """The top of a latent Gaussian model, N(0, I): nothing of it is learnt."""
    _check_size(size)

    def distribution(params: PyTree, above: Any) -> Any:
        del params, above
        return dist.Normal(jnp.zeros(size), jnp.ones(size), validate_args=False).to_event(1)

    return Layer(size, normal, lambda key: {}, distribution)


def mapped(apply: Callable, params: PyTree, x: jax.Array) -> Any:
    """A network of one input, over all leading axes of x (…, m)."""
    lead = x.shape[:-1]
    if not lead:
        return apply(params, x)
    flat = jax.vmap(apply, in_axes=(None, 0))(params, x.reshape(math.prod(lead), x.shape[-1]))
    return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), flat)


def started(net: Network, key: jax.Array) -> PyTree:
    return net.params if net.start is None else net.start(key)


def _check_size(size: Any) -> None:
    if not is_whole(size):
        raise ModelError(f"A layer has 1 unit or more; got size={size!r}.")


def _check_network(net: Network, above: int, family: Family, size: int) -> None:
    x = jax.ShapeDtypeStruct((above,), jnp.result_type(float))
    try:
        made = jax.eval_shape(net.apply, net.params, x)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The layer's network could not be called with the {above} numbers of its neighbour: {error}"
        ) from error
    wanted = (family.width(size),)
    if getattr(made, "shape", None) != wanted:
        raise ModelError(
            f"{size} {family.name} units take {wanted[0]} numbers; the layer's network returns shape "
            f"{getattr(made, 'shape', type(made).__name__)}."
        )
