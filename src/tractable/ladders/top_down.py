"""Top-down inference, in which a ladder's generative layers take part (Sønderby et al. 2016)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.tree import PyTree
from tractable.ladders.ladder import Choose, Recognition
from tractable.ladders.layers import Layer, map_network, normal, starting_weights
from tractable.networks.architecture import find_activation, mlp


def top_down(
    layers: Sequence[Layer], hidden: Sequence[tuple[int, ...]], *, activation: str | Callable = "tanh"
) -> Recognition:
    """Make an inference network that draws from h^L down, for a ``Ladder(layers, ...)`` with normal hidden layers.

        d¹ = f₁(x),  d² = f₂(d¹), …                                     deterministic, from the bottom up
        q(h^L | x) = N(μ̂_L, σ̂_L²)
        q(h^i | h^{i+1}, x) ∝ N(h^i; μ̂_i, σ̂_i²) p(h^i | h^{i+1}),      (μ̂_i, σ̂_i) a linear map of d^i

    If x says nothing about a layer, σ̂ → ∞: the layer keeps its prior and its KL is 0.

    Args:
        layers: [p(x | h¹), …, p(h^L)], the ladder's own; q depends on their θ too.
        hidden: widths of f_i for each of the L hidden layers; () for d^i = d^{i−1}.
        activation: the activation of the deterministic layers.

    Raises:
        ModelError: hidden layers that are not normal, or widths for another number of layers.
    """
    below, above = layers[0], tuple(layers[1:])
    for i, layer in enumerate(above):
        if layer.family.name != "Normal":
            raise ModelError(
                f"Inference from the top down multiplies normal densities, and layer {i + 1} is {layer.family.name}; "
                "use bottom_up."
            )
    if len(hidden) != len(above):
        raise ModelError(f"hidden= has widths for each of the {len(above)} hidden layers; got {len(hidden)}.")
    squash = find_activation(activation)[0]
    steps, heads, width = [], [], below.seen
    for layer, widths in zip(above, hidden, strict=True):
        steps.append(mlp(width, widths[:-1], widths[-1], activation) if widths else None)
        width = widths[-1] if widths else width
        heads.append(mlp(width, (), 2 * layer.size, activation))

    def init(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, (len(above), 2))
        return {
            f"h{i + 1}": {
                "up": {} if step is None else starting_weights(step, keys[i, 0]),
                "head": starting_weights(head, keys[i, 1]),
            }
            for i, (step, head) in enumerate(zip(steps, heads, strict=True))
        }

    def walk(theta: PyTree, phi: PyTree, x: jax.Array, choose: Choose) -> list:
        from_x, d = [], x
        for i, (step, head) in enumerate(zip(steps, heads, strict=True)):
            d = d if step is None else squash(map_network(step.apply, phi[f"h{i + 1}"]["up"], d))
            from_x.append(normal.distribution(map_network(head.apply, phi[f"h{i + 1}"]["head"], d)))
        of_layers: list = [None] * len(above)
        features = None
        for i in reversed(range(len(above))):
            q = from_x[i]
            of_layers[i] = q if features is None else product(q, above[i].distribution(theta[f"h{i + 1}"], features))
            features = above[i].features(choose(i, of_layers[i]))
        return of_layers

    return Recognition(init, walk, upward=False)


def product(one: Distribution, other: Distribution) -> Distribution:
    """The normal density proportional to the product of two normal densities, elementwise: precisions add.

    σ² = σ₁² σ₂² / (σ₁² + σ₂²),    μ = μ₂ + (μ₁ − μ₂) σ₂² / (σ₁² + σ₂²)
    """
    first, second = base_of(one), base_of(other)
    total = jnp.square(first.scale) + jnp.square(second.scale)
    mean = second.loc + (first.loc - second.loc) * jnp.square(second.scale) / total
    return dist.Normal(mean, first.scale * second.scale * jax.lax.rsqrt(total), validate_args=False).to_event(1)
