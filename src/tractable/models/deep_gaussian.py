"""Ladders of normal hidden layers: variational autoencoders, with one hidden layer or several."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tractable.models.ladder import Ladder, bottom_up
from tractable.models.layers import Family, Layer, layer, shared_noise, standard_normal
from tractable.models.top_down import top_down
from tractable.tools.errors import ModelError
from tractable.tools.shared import shared

INFERENCE = ("bottom-up", "top-down")


def latent_gaussian(
    visible: int,
    latent: int = 20,
    *,
    hidden: int | Sequence[int] = (400,),
    family: str | Family = "bernoulli",
    noise: str | None = None,
    activation: str | Callable = "tanh",
    weight_sd: float | None = None,
    redraw: bool = False,
) -> Ladder:
    """The model of a variational autoencoder (Kingma & Welling 2014; Rezende, Mohamed & Wierstra 2014).

        z ~ N(0, I),    x ~ family(network(z)),    q(z | x) = N(μ(x), diag σ²(x))

    Both networks are perceptrons. With ``hidden=()``, a normal family and ``noise="shared"`` it is probabilistic PCA,
    whose maximum is known.

    Args:
        visible: D ≥ 1, numbers in a row of x.
        latent: numbers in z, ≥ 1.
        hidden: widths of the decoder's layers from z on; the encoder has the same, from x on.
        family: of x given z: "bernoulli", "continuous bernoulli" (grey pixels in [0, 1]), "normal" (an sd of its own
            for every unit and row, at least 0.001), ``normal_noise(sd)``, "poisson", ``categorical(levels)``, or a
            ``Family`` of your own.
        noise: "shared": of a normal x, one sd for all units and rows, which is learnt; None otherwise.
        activation: "tanh", "relu", … or a function of arrays.
        weight_sd, redraw: as for ``Ladder``.

    Returns:
        A Ladder; the same arguments give the same one.

    Raises:
        ModelError: sizes below 1, an unknown family or activation, a noise that the family does not have.

    >>> latent_gaussian(784)
    Ladder(784 Bernoulli ← 20 Normal)
    >>> latent_gaussian(784, 20, hidden=[400]) is latent_gaussian(784)
    True
    """
    _check_noise(family, noise)
    return _deep_gaussian(
        visible, (latent,), (_widths(hidden),), family, noise, activation, "bottom-up", weight_sd, redraw
    )


def hierarchical(
    visible: int,
    latents: Sequence[int] = (100, 50),
    *,
    hidden: Sequence[int | Sequence[int]] = ((200, 200), (100, 100)),
    family: str | Family = "bernoulli",
    noise: str | None = None,
    inference: str = "bottom-up",
    activation: str | Callable = "tanh",
    weight_sd: float | None = None,
    redraw: bool = False,
) -> Ladder:
    """A hierarchical variational autoencoder: L normal layers, each of which sets mean and sd of the one below.

        h^L ~ N(0, I),    h^i | h^{i+1} ~ N(μ_i, diag σ_i²),    x ~ family(network(h¹))

    Args:
        visible: D ≥ 1, numbers in a row of x.
        latents: sizes of (h¹, …, h^L), from x on.
        hidden: widths between x and h¹, between h¹ and h², …; one tuple for each hidden layer, used both ways.
        inference: "bottom-up": q(h¹ | x) q(h² | h¹) …; "top-down": q(h^L | x) … q(h¹ | h², x), the ladder of Sønderby
            et al. 2016, which shares θ with the model (``models.top_down``) and keeps more of its upper layers alive.
        Others as for ``latent_gaussian``.

    Returns:
        A Ladder; the same arguments give the same one.

    Raises:
        ModelError: as for ``latent_gaussian``; widths for another number of layers; an unknown inference.

    >>> hierarchical(784, (100, 50), inference="top-down")
    Ladder(784 Bernoulli ← 100 Normal ← 50 Normal)
    """
    sizes = tuple(latents) if isinstance(latents, Sequence) else (latents,)
    if inference not in INFERENCE:
        raise ModelError(f"inference is 'bottom-up' or 'top-down'; got {inference!r}.")
    if not isinstance(hidden, Sequence) or len(hidden) != len(sizes) or not sizes:
        raise ModelError(f"hidden= has widths for each of the {len(sizes)} hidden layers {sizes}; got {hidden!r}.")
    _check_noise(family, noise)
    widths = tuple(_widths(each) for each in hidden)
    return _deep_gaussian(visible, sizes, widths, family, noise, activation, inference, weight_sd, redraw)


@shared
def _deep_gaussian(
    visible: int,
    latents: tuple[int, ...],
    hidden: tuple[tuple[int, ...], ...],
    family: str | Family,
    noise: str | None,
    activation: str | Callable,
    inference: str,
    weight_sd: float | None,
    redraw: bool,
) -> Ladder:
    top = standard_normal(latents[-1])

    def down(below: int, above: int, widths: tuple[int, ...]) -> Layer:
        return layer(above, below, "normal", hidden=widths[::-1], activation=activation)

    if noise is None:
        bottom = layer(latents[0], visible, family, hidden=hidden[0][::-1], activation=activation)
    else:
        bottom = shared_noise(latents[0], visible, hidden=hidden[0][::-1], activation=activation)
    between = [down(*each) for each in zip(latents[:-1], latents[1:], hidden[1:], strict=True)]
    layers = [bottom, *between, top]
    if inference == "top-down":
        recognition = top_down(layers, hidden, activation=activation)
    else:
        below = [bottom.seen, *latents[:-1]]
        recognition = bottom_up([
            layer(m, n, "normal", hidden=widths, activation=activation)
            for m, n, widths in zip(below, latents, hidden, strict=True)
        ])  # fmt: skip
    return Ladder(layers, recognition, weight_sd=weight_sd, redraw=redraw)


def _widths(hidden: Any) -> tuple[int, ...]:
    return (int(hidden),) if isinstance(hidden, int | np.integer) else tuple(hidden)


def _check_noise(family: str | Family, noise: str | None) -> None:
    if noise not in (None, "shared"):
        raise ModelError(f"noise is None or 'shared'; got {noise!r}. A given sd is family=normal_noise(sd).")
    if noise == "shared" and family != "normal":
        raise ModelError(f"noise='shared' is of a 'normal' x; got family={family!r}.")
