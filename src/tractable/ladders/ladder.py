"""The model of a ladder, stochastic layers that generate x from the top layer down, and its inference network."""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from tractable.core import tree
from tractable.core.causes import MOST_VALUES, base_of
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel, flat
from tractable.core.model import Model, PyTree
from tractable.core.sums import enumerated
from tractable.ladders.layers import Layer, continuous_bernoulli

Choose = Callable[[int, Distribution], PyTree]  # (layer's index from 0, its distribution) -> its h
EDGE = 0.01  # pixel means are clipped to [0.01, 0.99], so that the starting biases are finite


class Recognition(NamedTuple):
    """An inference network.

    Attributes:
        init: ``key -> φ``.
        walk: ``(θ, φ, x (…, m), choose) -> [q(h¹ | ·), …, q(h^L | ·)]``. It calls ``choose(i, q)`` once per layer, in
            the order of drawing; ``choose`` returns that layer's h. x are the features that networks take as input.
        upward: whether the input of layer i is layer i − 1 alone, so that log q = Σ_i log q(h^i | h^{i−1}).
    """

    init: Callable[[jax.Array], PyTree]
    walk: Callable[[PyTree, PyTree, jax.Array, Choose], list]
    upward: bool = True


def bottom_up(layers: Sequence[Layer]) -> Recognition:
    """The inference network q(h¹ | x) q(h² | h¹) …: the input of each layer is the layer below."""
    layers = tuple(layers)

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(layers))
        return {f"h{i + 1}": layer.init(k) for i, (layer, k) in enumerate(zip(layers, keys, strict=True))}

    def walk(theta: PyTree, phi: PyTree, x: jax.Array, choose: Choose) -> list:
        q, below = [], x
        for i, layer in enumerate(layers):
            q.append(layer.distribution(phi[f"h{i + 1}"], below))
            below = layer.features(choose(i, q[-1]))
        return q

    return Recognition(init, walk)


class Ladder(LatentModel):
    """The model p(x | h¹) p(h¹ | h²) … p(h^L), and a network that infers h: q(h | x) = q(h¹ | x) q(h² | h¹) …

    The model of a variational autoencoder has one hidden layer (L = 1); a belief network has Bernoulli layers. The
    leading axes of arrays are (draw, row).

    Args:
        layers: [p(x | h¹), p(h¹ | h²), …, p(h^L)], made by ``layer``, ``top`` and ``standard_normal``, or your own.
        recognition: the inference network, ``bottom_up([q(h¹ | x), …])`` or another. It is no part of the model.
        weight_sd: sd of a normal prior N(0, sd²) on every weight of θ; None for maximum likelihood.
        redraw: if True, rows are probabilities of binary pixels, and x is drawn from them anew whenever a row is used
            (Burda, Grosse & Salakhutdinov 2016). The objective is the mean over such draws.

    θ, the generative weights, is a pytree {"x": …, "h1": …, …, "hL": …}. φ are the weights of the inference network,
    which belong to the approximation, not to the model. h is a tuple (h¹, …, h^L). If h takes at most ten thousand
    values, log p(x) is computed by summing over h, and any method (MAP, EM, NUTS …) learns θ exactly. Otherwise use
    AutoEncoding, ImportanceWeighted, NVIL, VIMCO, WakeSleep or ReweightedWakeSleep.

    Raises:
        ModelError: fewer than two layers, or layers whose sizes do not fit.
    """

    layers: tuple[Layer, ...]
    recognition: Recognition
    weight_sd: float | None
    redraw: bool
    is_ladder: ClassVar[bool] = True

    def __init__(
        self, layers: Sequence[Layer], recognition: Recognition, *, weight_sd: float | None = None, redraw: bool = False
    ) -> None:
        layers = tuple(layers)
        if len(layers) < 2:
            raise ModelError(f"A ladder has a layer for x and one hidden layer or more; got {len(layers)} in all.")
        if weight_sd is not None and not (math.isfinite(weight_sd) and weight_sd > 0):
            raise ModelError(f"weight_sd is None or a positive finite number; got {weight_sd!r}.")
        if redraw and layers[0].family.name != "Bernoulli":
            raise ModelError(f"redraw=True draws binary pixels; x is {layers[0].family.name}, not Bernoulli.")
        self.layers, self.recognition, self.weight_sd, self.redraw = layers, recognition, weight_sd, redraw
        prior = flat if weight_sd is None else functools.partial(_shrinkage, weight_sd)
        Model.__init__(self, prior, self._marginal, self._start(jax.random.key(0)), None, self._start)
        self._check_chain()
        values = None if redraw else self._values()
        if values is not None:
            self.sums = enumerated(self.log_joint, values)

    def __repr__(self) -> str:
        sizes = " ← ".join(f"{layer.size} {layer.family.name}" for layer in self.layers)
        return f"Ladder({sizes})"

    @property
    def depth(self) -> int:
        """L, the number of hidden layers."""
        return len(self.layers) - 1

    @property
    def network_weights(self) -> tuple[str, ...]:
        return tuple(self.layer_names)

    @property
    def visible(self) -> Layer:
        """The layer p(x | h¹)."""
        return self.layers[0]

    @property
    def discrete(self) -> list[int]:
        """Indices, from 1, of the hidden layers whose draws have no derivative."""
        return [i for i, layer in enumerate(self.layers) if i and (layer.family.discrete or layer.family.levels)]

    def initial(self, key: jax.Array, rows: ArrayLike | None = None) -> dict[str, PyTree]:
        """Starting parameters {"theta": θ, "phi": φ}.

        Given rows (n, …) of x, the input of the inference network is x minus its mean, and the biases of x start at the
        mean: at its log odds for pixels, at the mean itself for normal units.
        """
        theta_key, phi_key = jax.random.split(key)
        theta = self._start(theta_key)
        centre = jnp.zeros(self.visible.seen)
        if rows is not None:
            mean = jnp.mean(self.visible.features(jnp.asarray(rows)), axis=0)
            centre = mean.astype(centre.dtype)
            theta = self._set_bias(theta, centre)
        return {"theta": theta, "phi": {"centre": centre, "layers": self.recognition.init(phi_key)}}

    def look(self, key: jax.Array, rows: PyTree) -> PyTree:
        """x for rows: the rows themselves or, with redraw=True, binary pixels drawn from them."""
        return jax.random.bernoulli(key, rows).astype(jnp.result_type(float)) if self.redraw else rows

    def log_p(self, theta: PyTree, x: PyTree, h: tuple) -> list[jax.Array]:
        """[log p(x | h¹), log p(h¹ | h²), …, log p(h^L)] in nats, each with the leading axes of h."""
        values = (x, *h)
        return [p.log_prob(value) for p, value in zip(self.generative(theta, h), values, strict=True)]

    def generative(self, theta: PyTree, h: tuple) -> list[Any]:
        """The distributions [p(x | h¹), …, p(h^L)] at h."""
        above = [layer.features(value) for layer, value in zip(self.layers[1:], h, strict=True)]
        return [
            layer.distribution(theta[name], features)
            for layer, name, features in zip(self.layers, self.layer_names, [*above, None], strict=True)
        ]

    @property
    def layer_names(self) -> list[str]:
        """The layers' names x, h1, …, hL, the keys of θ."""
        return ["x", *(f"h{i}" for i in range(1, len(self.layers)))]

    def infer(self, params: dict[str, PyTree], x: PyTree, choose: Choose) -> tuple[tuple, list[Any]]:
        """h as ``choose`` picks it, layer by layer, and the inference network's [q(h¹ | ·), …, q(h^L | ·)]."""
        phi, h = params["phi"], [None] * self.depth

        def take(i: int, q: Distribution) -> PyTree:
            h[i] = choose(i, q)
            return h[i]

        features = self.visible.features(x)
        features = features - jax.lax.stop_gradient(phi["centre"]).reshape((1,) * (features.ndim - 1) + (-1,))
        distributions = self.recognition.walk(params["theta"], phi["layers"], features, take)
        return tuple(h), distributions

    def drawn(
        self, key: jax.Array, params: dict[str, PyTree], x: PyTree, draws: int, *, pathwise: bool = False
    ) -> tuple[tuple, list[Any]]:
        """Draw h ~ q(h | x) ``draws`` times for every row, leading axes (draw, row); also returns each layer's q.

        Args:
            x: (row, …).
            pathwise: whether gradients pass through the draws; otherwise the draws are constants.
        """
        keys = jax.random.split(key, self.depth)

        def choose(i: int, q: Distribution) -> PyTree:
            h = draws_of(q, keys[i], draws)
            return h if pathwise else jax.lax.stop_gradient(h)

        return self.infer(params, jax.tree.map(lambda a: a[None], x), choose)

    def log_q(self, params: dict[str, PyTree], x: PyTree, h: tuple) -> list[jax.Array]:
        """[log q(h¹ | ·), …, log q(h^L | ·)] at h, with the leading axes of h."""
        return [q.log_prob(value) for q, value in zip(self.infer(params, x, lambda i, q: h[i])[1], h, strict=True)]

    def dreamt(self, key: jax.Array, theta: PyTree, n: int) -> tuple[Any, tuple]:
        """Draw (x, h) from the model n times, from the top layer down; leading axis (n,)."""
        keys = jax.random.split(key, len(self.layers))
        above, values = None, []
        for layer, name, k in zip(reversed(self.layers), reversed(self.layer_names), keys, strict=True):
            p = layer.distribution(theta[name], above)
            value = p.sample(k, () if p.batch_shape else (n,))
            above = layer.features(value)
            values.append(value)
        x, *h = reversed(values)
        return x, tuple(h)

    def factors(self, params: PyTree, z: PyTree, datum: PyTree) -> list[jax.Array]:
        """[log p(x | h¹), log p(h¹ | h²), …, log p(h^L)] of one datum in nats."""
        return self.log_p(params, datum, tuple(z))

    def discrete_causes(self, params: PyTree, x: PyTree = None) -> list[str]:
        return [f"{self.layers[i].family.name} units of layer {i}" for i in self.discrete]

    def sample(self, key: jax.Array, params: PyTree, n: int, given: PyTree = None) -> tuple[PyTree, PyTree]:
        """Draw (x, h) n times, from the top layer down."""
        _no_inputs(given)
        return self.dreamt(key, params, n)

    def described(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution whose shape and support rows are checked against: p(x | h) at one value of h."""
        _no_inputs(x)
        p = self.generative(params, self._one_cause(params, ()))[0]
        # With redraw=True rows are probabilities in [0, 1], and so lie outside the support of a Bernoulli p(x | h).
        return continuous_bernoulli.distribution(base_of(p).logits) if self.redraw else p

    def summed_out(self, params: PyTree, rows: PyTree) -> jax.Array:
        if self.sums is None:
            raise ModelError(
                "The hidden layers take too many values to sum over: learn this ladder by NVIL, VIMCO, WakeSleep or "
                "ReweightedWakeSleep, or, where its hidden layers are normal, by AutoEncoding or ImportanceWeighted."
            )
        return self.sums.log_prob(params, rows)

    def outside(self) -> str:
        """Advice for data that lie outside the likelihood's support."""
        if self.visible.family.name == "Bernoulli":
            return (
                "Bernoulli pixels are 0 or 1: binarise them (x > 0.5), have binary pixels drawn whenever a row is used "
                "(redraw=True), or make x 'continuous bernoulli' or 'normal'."
            )
        return "Recode the data or choose another family for x."

    def _one_cause(self, params: PyTree, inputs: tuple) -> PyTree:
        return jax.tree.map(lambda a: a[0], self.dreamt(jax.random.key(0), params, 1)[1])

    def _start(self, key: jax.Array) -> PyTree:
        keys = jax.random.split(key, len(self.layers))
        return {name: layer.init(k) for layer, name, k in zip(self.layers, self.layer_names, keys, strict=True)}

    def _set_bias(self, theta: PyTree, mean: jax.Array) -> PyTree:
        """θ with the last bias of x's network set so that x has the given mean, if that network is a perceptron."""
        params, name, size = theta["x"], self.visible.family.name, self.visible.size
        pixels = name in ("Bernoulli", "ContinuousBernoulli")
        names = [key for key in params if re.fullmatch(r"layer\d+", key)] if isinstance(params, dict) else []
        if not (pixels or name == "Normal") or not names:
            return theta
        last = max(names, key=lambda key: int(key.removeprefix("layer")))
        bias = params[last].get("bias") if isinstance(params[last], dict) else None
        if bias is None or mean.shape != (size,) or bias.shape[0] < size:
            return theta
        inside = jnp.clip(mean, EDGE, 1 - EDGE)
        first = jnp.log(inside) - jnp.log1p(-inside) if pixels else mean
        bias = bias.at[:size].set(first.astype(bias.dtype))  # the rest belongs to a normal layer's sds
        return theta | {"x": params | {last: params[last] | {"bias": bias}}}

    def _values(self) -> tuple | None:
        """All m values of h, arrays with leading axis m; None if there are more than ten thousand."""
        hidden = self.layers[1:]
        levels = [layer.family.levels for layer in hidden for _ in range(layer.size)]
        if not all(levels) or math.prod(levels) > MOST_VALUES:
            return None
        index = np.indices(levels).reshape(len(levels), -1).T  # (m, units)
        cuts = np.cumsum([layer.size for layer in hidden])[:-1]
        return tuple(jnp.asarray(part) for part in np.split(index, cuts, axis=1))

    def _check_chain(self) -> None:
        key = jax.eval_shape(lambda: jax.random.key(0))
        try:
            x, h = jax.eval_shape(lambda k: self.dreamt(k, self._start(k), 2), key)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"The layers' sizes do not fit together: {_sizes(self.layers)}. The input of each layer's network "
                f"should be the features of the layer above ({error})."
            ) from error
        try:
            draws = jax.eval_shape(lambda k, x: self.drawn(k, self.initial(k), x, 1)[0], key, x)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ModelError(
                f"The inference network does not fit this ladder, {_sizes(self.layers)}: {error}"
            ) from error
        for i, (of_model, of_network) in enumerate(zip(h, draws, strict=True)):
            if of_network is None or of_model.shape[1:] != of_network.shape[2:]:
                raise ModelError(
                    f"Layer {i + 1} has shape {of_model.shape[1:]}, and the inference network draws "
                    f"{None if of_network is None else of_network.shape[2:]} for it; give both the same size."
                )


def _shrinkage(sd: float, theta: PyTree) -> jax.Array:
    """log p(θ) under the prior N(0, sd²) on every weight."""
    each = jax.tree.map(lambda w: jnp.sum(-jnp.square(w / sd) / 2 - math.log(sd) - math.log(2 * math.pi) / 2), theta)
    return tree.total(each)


def _no_inputs(given: PyTree) -> None:
    if given is not None:
        raise ModelError("A ladder takes no inputs: give Data(x) without given=.")


def ladder_of(model: object) -> Ladder | None:
    """The model if it is a ladder, else None."""
    return model if isinstance(model, Ladder) else None


def draws_of(q: Distribution, key: jax.Array, count: int) -> PyTree:
    """``count`` draws of q, (count, row, …). A q that depends on x alone has batch shape (1, row)."""
    if q.batch_shape[0] == count:
        return q.sample(key)
    many: Any = q.sample(key, (count,))
    return many[:, 0]


def _sizes(layers: Sequence[Layer]) -> str:
    return ", ".join(f"{'h' + str(i) if i else 'x'} of {layer.size}" for i, layer in enumerate(layers))
