"""Networks as functions of weights and one input: perceptrons, Equinox modules, and pairs (params, apply)."""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core.errors import ModelError
from tractable.core.settings import expect_whole
from tractable.core.shared import COMPILE_FAST, compiled, shared
from tractable.core.tree import PyTree, path_name

RELU_GAIN = 2.0  # starting variance × fan-in: a ReLU halves the second moment, and 2 makes up for it (He et al. 2015)

ACTIVATIONS: dict[str, tuple[Callable, float]] = {  # function, and the gain by which activations keep their scale
    "relu": (jax.nn.relu, RELU_GAIN),
    "gelu": (jax.nn.gelu, RELU_GAIN),
    "silu": (jax.nn.silu, RELU_GAIN),
    "elu": (jax.nn.elu, RELU_GAIN),
    "tanh": (jnp.tanh, 1.0),
    "sigmoid": (jax.nn.sigmoid, 1.0),
    "identity": (lambda x: x, 1.0),
}


@dataclass(frozen=True, eq=False)
class Network:
    """A function of weights and one input.

    Args:
        params: pytree of real arrays, example weights: they give the shapes and, without ``start``, the spread of
            starting weights.
        apply: ``(params, x) -> output`` for one x, without a batch axis; deterministic.
        example: one x, or its ``jax.ShapeDtypeStruct``; with it, wrong shapes raise at once.
        output_axis: the axis of a weight that runs over a layer's outputs; the size of the other axes is the fan-in. It
            is −1 for x @ W (this library, Flax) and 0 for W @ x (Equinox, PyTorch).
        start: ``key -> params``, the starting weights. By default every leaf of the weights is drawn from a normal with
            the mean and sd of that leaf in ``params``, which its library initialised; a constant leaf starts at that
            constant.

    Raises:
        ModelError: no weights; weights that are not real, or not finite.
    """

    params: PyTree
    apply: Callable[..., Any]
    example: Any = None
    output_axis: int = -1
    start: Callable[[jax.Array], PyTree] | None = None
    # ``made(function, *arguments)``: a cache of objects built from this network; it is freed with the network.
    made: Callable[..., Any] = field(
        default_factory=lambda: functools.lru_cache(32)(operator.call), init=False, repr=False
    )

    def __post_init__(self) -> None:
        leaves = jax.tree_util.tree_flatten_with_path(self.params)[0]
        if not leaves:
            raise ModelError("A network needs weights; its params hold no array.")
        for path, leaf in leaves:
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ModelError(
                    f"The weight {path_name(path)!r} has dtype {jnp.result_type(leaf)}; expected real numbers. Keep "
                    "arrays that are not learnt inside apply, not among the params."
                )
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise ModelError(f"The weight {path_name(path)!r} is not finite: give example weights that are.")

    def __reduce__(self) -> tuple:
        """Pickle the arguments only; the cache is rebuilt in the other process."""
        return Network, (self.params, self.apply, self.example, self.output_axis, self.start)


def mlp(
    features: int, hidden: int | Sequence[int], outputs: int, activation: str | Callable[[jax.Array], Any] = "relu"
) -> Network:
    """Make a multilayer perceptron.

        h₀ = x,   hₗ = σ(hₗ₋₁ Wₗ + bₗ),   output = h_L W + b

    Weights start as in He et al. 2015, N(0, g/fan_in) with g = 2 for "relu", "gelu", "silu" and "elu", and g = 1 for
    all other activations; biases start at 0.

    Args:
        features, outputs: lengths of x and of the output, ≥ 1.
        hidden: widths of the hidden layers, each ≥ 1; a number for one layer, () for a linear map.
        activation: the function σ: "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "identity", or your own.

    Returns:
        A Network with weights ``layer0``, ``layer1``, …, each with ``weight`` (in, out) and ``bias`` (out,). The same
        arguments give the same Network.

    Raises:
        ModelError: a width below 1; an unknown activation.

    >>> net = mlp(8, (50,), 1)
    >>> jax.tree.map(jnp.shape, net.params["layer1"])
    {'bias': (1,), 'weight': (50, 1)}
    >>> net is mlp(8, [50], 1, activation="relu")
    True
    """
    middle = tuple(hidden) if isinstance(hidden, Sequence) else (hidden,)
    named = {f"hidden[{i}]": width for i, width in enumerate(middle)}
    for name, width in {"features": features, **named, "outputs": outputs}.items():
        expect_whole(name, width, ModelError, " of units")
    find_activation(activation)
    return _mlp((int(features), *map(int, middle), int(outputs)), activation)


def find_activation(activation: str | Callable) -> tuple[Callable, float]:
    """The activation of this name, and its starting gain; raises ModelError for unknown names."""
    if not isinstance(activation, str):
        return activation, 1.0
    if activation not in ACTIVATIONS:
        raise ModelError(f"activation is one of {', '.join(ACTIVATIONS)}, or a function; got {activation!r}.")
    return ACTIVATIONS[activation]


@compiled("widths", "gain", "dtype", if_few=COMPILE_FAST)
def _starting_weights(key: jax.Array, widths: tuple[int, ...], gain: float, dtype: np.dtype) -> PyTree:
    """The starting weights of ``mlp``, by layer."""

    weights = {}
    for i, layer_key in enumerate(jax.random.split(key, len(widths) - 1)):
        weight = float(np.sqrt(gain / widths[i])) * jax.random.normal(layer_key, widths[i : i + 2], dtype)
        weights[f"layer{i}"] = {"weight": weight, "bias": jnp.zeros(widths[i + 1], dtype)}
    return weights


@shared
def _mlp(widths: tuple[int, ...], activation: str | Callable) -> Network:
    dtype, (function, gain) = jnp.result_type(float), find_activation(activation)
    layers = [f"layer{i}" for i in range(len(widths) - 1)]
    gain = gain if len(layers) > 1 else 1.0  # without an activation no scale is lost
    start = functools.partial(_starting_weights, widths=widths, gain=gain, dtype=dtype)

    def apply(params: PyTree, x: ArrayLike) -> jax.Array:
        h = jnp.asarray(x)
        for i, name in enumerate(layers):
            h = h @ params[name]["weight"] + params[name]["bias"]  # (out,)
            if i < len(layers) - 1:
                h = function(h)
        return h

    return Network(start(jax.random.key(0)), apply, jax.ShapeDtypeStruct((widths[0],), dtype), -1, start)


def as_network(network: PyTree, example: PyTree) -> Network:
    """A Network from anything that ``neural_network`` takes."""
    if isinstance(network, Network):
        return network if example is None else replace(network, example=example)
    if isinstance(network, tuple) and len(network) == 2 and callable(network[1]):
        return Network(network[0], network[1], example)
    import equinox  # imported here because the import is slow

    if not isinstance(network, equinox.Module):
        raise ModelError(
            "neural_network expects mlp(...), an Equinox module, or a pair (params, apply); got "
            f"{type(network).__name__}. Convert a Flax module with tractable.adapters.flax.from_nnx."
        )

    def stateful(layer: equinox.Module) -> bool:
        return isinstance(layer, equinox.nn.StatefulLayer) and layer.is_stateful()

    # The error names the innermost layer of this kind, since the name of its type is the most specific.
    for layer in _layers(network, equinox.Module):
        kind = type(layer).__name__
        if stateful(layer) and not any(stateful(inner) for inner in _layers(layer, equinox.Module)[1:]):
            raise ModelError(
                f"The network has a {kind} layer, which keeps a state: statistics over a batch cannot be computed one "
                "datum at a time. Use LayerNorm."
            )
        if isinstance(layer, equinox.nn.Dropout) and not layer.inference and layer.p > 0:
            raise ModelError(
                f"The network has a {kind} layer that drops units at random, so it has no likelihood of its weights. "
                "Take it out, or switch it off with equinox.nn.inference_mode(network)."
            )
    if not callable(network):
        raise ModelError(f"{type(network).__name__} cannot be called with an input x; give it a __call__ method.")
    params, static = equinox.partition(network, equinox.is_inexact_array)
    return Network(params, lambda params, x: equinox.combine(params, static)(x), example, output_axis=0)


def _layers(module: PyTree, kind: type) -> list[Any]:
    """A module and all modules inside it."""
    modules = jax.tree.leaves(module, is_leaf=lambda m: m is not module and isinstance(m, kind))
    return [module, *(layer for m in modules if isinstance(m, kind) for layer in _layers(m, kind))]


def apply_network(network: Network, weights: PyTree, x: PyTree) -> PyTree:
    """The network's output for one x; raises ModelError if the shape of x does not fit."""
    shape = jax.tree.map(jnp.shape, x)
    if network.example is not None:
        expected = jax.tree.map(jnp.shape, network.example)
        if shape != expected:
            raise ModelError(
                f"The network takes one input of shape {expected}; got a row of shape {shape}. Change the data's "
                "given=, or the network's first layer."
            )
    try:
        return network.apply(weights, x)
    except ModelError:
        raise
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The network could not be applied to one input of shape {shape}, without a batch axis: {error}"
        ) from error


def fan_in(shape: tuple[int, ...], output_axis: int) -> int:
    """The number of inputs that each output sums over; 1 for vectors and scalars."""
    return int(np.prod(shape)) // shape[output_axis] if len(shape) > 1 else 1


def draw_weights(params: PyTree, key: jax.Array) -> PyTree:
    """Draw weights with the mean and sd of each leaf of ``params``; constant leaves stay as they are.

    NumPy draws them, because JAX would compile a program for each shape.
    """
    generator, dtype = np.random.default_rng(np.asarray(jax.random.key_data(key))), jnp.result_type(float)

    def draw(leaf: ArrayLike) -> jax.Array:
        values = np.asarray(leaf, np.float64)
        constant = values.size == 0 or np.ptp(values) == 0
        return jnp.asarray(values if constant else generator.normal(values.mean(), values.std(), values.shape), dtype)

    return jax.tree.map(draw, params)
