"""One layer of a ladder: a distribution whose parameters a network computes from the layer above (or below).

    η = network(above),   h ~ family(η)

Arrays carry any leading axes, (…, n): rows, and draws of the layers.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from tractable.approximations import inverse_softplus, softplus
from tractable.models.linear import BernoulliLogits
from tractable.models.network import Network, mlp
from tractable.tools.errors import ModelError

PyTree = Any
SD_FLOOR = 1e-3  # of a normal layer whose sd is computed: without one the likelihood of x has no bound


class Family(NamedTuple):
    """What a layer's units are.

    Attributes:
        name: as sentences and reports call it.
        width: ``n -> `` numbers of η that n units take.
        distribution: ``η (…, width(n)) -> `` a distribution of one layer, batch shape (…).
        features: ``h -> (…, m)``, what the network of a neighbouring layer sees of it.
        seen: ``n -> m``.
        levels: values that one unit takes; 0 for a continuous one, or for infinitely many.
    """

    name: str
    width: Callable[[int], int]
    distribution: Callable[[jax.Array], Any]
    features: Callable[[Any], jax.Array]
    seen: Callable[[int], int]
    levels: int = 0


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


def _bernoulli(eta: jax.Array) -> Any:
    return BernoulliLogits(eta, validate_args=False).to_event(1)


bernoulli = Family("Bernoulli", lambda n: n, _bernoulli, _real, lambda n: n, 2)


def _halves(eta: jax.Array) -> Any:
    n = eta.shape[-1] // 2
    return dist.Normal(eta[..., :n], SD_FLOOR + softplus(eta[..., n:]), validate_args=False).to_event(1)


normal = Family("Normal", lambda n: 2 * n, _halves, _real, lambda n: n)


def normal_noise(sd: float) -> Family:
    """Normal units of mean η and a given sd > 0."""
    if not (isinstance(sd, int | float) and math.isfinite(sd) and sd > 0):
        raise ModelError(f"normal_noise(sd) expects a positive finite number; got {sd!r}.")

    def distribution(eta: jax.Array) -> Any:
        return dist.Normal(eta, jnp.full_like(eta, sd), validate_args=False).to_event(1)

    return Family("Normal", lambda n: n, distribution, _real, lambda n: n)


def categorical(levels: int) -> Family:
    """Units of ``levels`` values each, 0 … levels − 1; networks see them one-hot."""
    if not isinstance(levels, int | np.integer) or levels < 2:
        raise ModelError(f"categorical(levels) expects a whole number, 2 or more; got {levels!r}.")

    def distribution(eta: jax.Array) -> Any:
        logits = eta.reshape(*eta.shape[:-1], -1, levels)
        return dist.CategoricalLogits(logits, validate_args=False).to_event(1)

    def features(h: Any) -> jax.Array:
        one_hot = jax.nn.one_hot(h, levels, dtype=jnp.result_type(float))
        return one_hot.reshape(*one_hot.shape[:-2], -1)

    return Family("Categorical", lambda n: n * levels, distribution, features, lambda n: n * levels, int(levels))


def _poisson(eta: jax.Array) -> Any:
    return dist.Poisson(jnp.exp(eta), validate_args=False).to_event(1)


poisson = Family("Poisson", lambda n: n, _poisson, lambda h: jnp.log1p(_real(h)), lambda n: n)


class ContinuousBernoulliLogits(dist.Distribution):
    """p(x | λ) = C(λ) λ^x (1 − λ)^(1−x) on [0, 1], λ = σ(η), log C = log(η / tanh(η/2)).

    Loaiza-Ganem & Cunningham 2019. The density that a binary cross-entropy of grey pixels lacks the constant of.
    """

    arg_constraints = {"logits": constraints.real}  # noqa: RUF012
    support = constraints.unit_interval  # pyright: ignore[reportAssignmentType]
    reparametrized_params = ["logits"]  # noqa: RUF012
    pytree_data_fields = ("logits",)

    def __init__(self, logits: Any, *, validate_args: bool | None = None) -> None:
        self.logits = jnp.asarray(logits)
        super().__init__(self.logits.shape, (), validate_args=validate_args)

    def log_prob(self, value: Any, intermediates: Any = None) -> jax.Array:
        return value * self.logits - jax.nn.softplus(self.logits) + _log_constant(self.logits)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        u = jax.random.uniform(key, (*sample_shape, *self.batch_shape), self.logits.dtype)
        # The distribution function is (e^{ηx} − 1)/(e^η − 1), of which this is the inverse; x mirrors with η's sign.
        size = jnp.abs(self.logits)
        near = size < 1e-3
        safe = jnp.where(near, 1.0, size)
        x = 1 + jnp.log(u + (1 - u) * jnp.exp(-safe)) / safe
        x = jnp.where(near, u, x)
        return jnp.clip(jnp.where(self.logits < 0, 1 - x, x), 0, 1)

    @property
    def mean(self) -> jax.Array:
        near = jnp.abs(self.logits) < 1e-2
        safe = jnp.where(near, 1.0, self.logits)
        return jnp.where(near, 0.5 + self.logits / 12, 1 / -jnp.expm1(-safe) - 1 / safe)

    @property
    def variance(self) -> jax.Array:
        near = jnp.abs(self.logits) < 0.1
        safe = jnp.where(near, 1.0, self.logits)
        half = jnp.clip(safe / 2, -300, 300)
        exact = 1 / jnp.square(safe) - 1 / jnp.square(2 * jnp.sinh(half))
        return jnp.where(near, 1 / 12 - jnp.square(self.logits) / 240, exact)


def _log_constant(eta: jax.Array) -> jax.Array:
    """log(η / tanh(η/2)), even in η and log 2 at 0; by its series where the quotient loses its digits."""
    near = jnp.abs(eta) < 0.05
    safe = jnp.where(near, 1.0, eta)
    square = jnp.square(jnp.where(near, eta, 0.0))
    series = math.log(2) + square / 12 - jnp.square(square) * 7 / 1440
    return jnp.where(near, series, jnp.log(safe / jnp.tanh(safe / 2)))


def _continuous(eta: jax.Array) -> Any:
    return ContinuousBernoulliLogits(eta, validate_args=False).to_event(1)


continuous_bernoulli = Family("ContinuousBernoulli", lambda n: n, _continuous, _real, lambda n: n)

FAMILIES = {
    "bernoulli": bernoulli,
    "normal": normal,
    "continuous bernoulli": continuous_bernoulli,
    "poisson": poisson,
}


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
    start = net.start or (lambda key: net.params)

    def distribution(params: PyTree, above: Any) -> Any:
        return kind.distribution(mapped(net.apply, params, above))

    return Layer(size, kind, start, distribution)


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


def _check_size(size: Any) -> None:
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
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
