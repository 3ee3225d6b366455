"""Named ladders: sigmoid belief networks, and variational autoencoders with one or several hidden layers."""

from collections.abc import Callable, Sequence

import numpy as np

from tractable.core.errors import ModelError
from tractable.core.settings import expect_whole
from tractable.core.shared import shared
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import Family, family_of, layer, shared_noise, standard_normal, top
from tractable.ladders.top_down import top_down

INFERENCE = ("bottom-up", "top-down")


def sigmoid_belief_network(
    visible: int,
    hidden: Sequence[int] = (200, 200),
    *,
    between: int | Sequence[int] = (),
    activation: str | Callable = "tanh",
    family: str | Family = "bernoulli",
    weight_sd: float | None = None,
    redraw: bool = False,
) -> Ladder:
    """Make a sigmoid belief network for binary data (Neal 1992), with a bottom-up inference network.

        h^L ~ Bernoulli(σ(b)),   h^i | h^{i+1} ~ Bernoulli(σ(W h^{i+1} + b)),   x | h¹ likewise
        q(h^i | h^{i−1}) of the same form, bottom up, each with its own weights; h⁰ = x

    Args:
        visible: D ≥ 1, length of x, each entry 0 or 1.
        hidden: numbers of units of h¹, …, h^L, the first next to x.
        between: widths of the deterministic layers between two stochastic ones, from the upper to the lower; () for a
            linear map. The inference network has the same widths in reverse.
        family: family of the hidden units: "bernoulli" or ``categorical(levels)``.
        activation, weight_sd, redraw, and the returned Ladder: as for ``latent_gaussian``.

    Raises:
        ModelError: sizes that are not whole numbers ≥ 1, no hidden layer, or hidden units that are not discrete.

    >>> sigmoid_belief_network(64, (30, 20))
    Ladder(64 Bernoulli ← 30 Bernoulli ← 20 Bernoulli)
    """
    units = {"hidden": _widths(hidden), "between": _widths(between), "visible": (visible,)}
    if not units["hidden"]:
        raise ModelError("hidden= lists the number of units of each hidden layer, h¹ (next to x) first; got none.")
    for name, sizes in units.items():
        for i, size in enumerate(sizes):
            expect_whole(name if name == "visible" else f"{name}[{i}]", size, ModelError, " of units")
    if not family_of(family).levels:
        raise ModelError(
            "A belief network's hidden units are 'bernoulli' or categorical(levels); got "
            f"{family_of(family).name}. tr.models.latent_gaussian makes ladders of normal units."
        )
    widths = (units["between"][::-1],) * len(units["hidden"])
    return _ladder(
        visible, "bernoulli", None, units["hidden"], family, widths, activation, "bottom-up", weight_sd, redraw
    )


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
    """Make the model of a variational autoencoder (Kingma & Welling 2014; Rezende, Mohamed & Wierstra 2014).

        z ~ N(0, I),    x ~ family(network(z)),    q(z | x) = N(μ(x), diag σ²(x))

    Both networks are perceptrons. With ``hidden=()``, a normal family and ``noise="shared"`` this is probabilistic PCA,
    whose maximum-likelihood estimate is known in closed form.

    Args:
        visible: D ≥ 1, length of a row of x.
        latent: length of z, ≥ 1.
        hidden: widths of the hidden layers between x and z: the encoder has them in this order, the decoder in reverse.
        family: family of x given z: "bernoulli", "continuous bernoulli" (grey pixels in [0, 1]), "normal" (a separate
            sd for every unit and row, at least 0.001), ``normal_noise(sd)``, "poisson", ``categorical(levels)``, or
            your own ``Family``.
        noise: for a normal x, "shared" means one learnt sd for all units and rows. None in all other cases.
        activation: "tanh", "relu", … or a function of arrays.
        weight_sd, redraw: as for ``Ladder``.

    Returns:
        A Ladder; the same arguments give the same object.

    Raises:
        ModelError: sizes below 1, an unknown family or activation, or a noise that does not suit the family.

    >>> latent_gaussian(784)
    Ladder(784 Bernoulli ← 20 Normal)
    >>> latent_gaussian(784, 20, hidden=[400]) is latent_gaussian(784)
    True
    """
    return hierarchical(
        visible, (latent,), hidden=(hidden,), family=family, noise=noise, activation=activation, weight_sd=weight_sd,
        redraw=redraw,
    )  # fmt: skip


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
    """Make a hierarchical variational autoencoder: L normal layers; each sets the mean and sd of the layer below.

        h^L ~ N(0, I),    h^i | h^{i+1} ~ N(μ_i, diag σ_i²),    x ~ family(network(h¹))

    Args:
        latents: sizes of (h¹, …, h^L), the layer next to x first.
        hidden: widths of the deterministic layers between x and h¹, between h¹ and h², …; one tuple per stochastic
            layer, from x up. The inference network has them in this order, the model in reverse.
        inference: "bottom-up": q(h¹ | x) q(h² | h¹) …; "top-down": q(h^L | x) … q(h¹ | h², x), the ladder of Sønderby
            et al. 2016, which shares θ with the model (``ladders.top_down``) and makes more use of the upper layers.
        Other arguments, Returns and Raises: as for ``latent_gaussian``; also ModelError if ``hidden`` has widths for
            another number of layers, or for an unknown inference.

    >>> hierarchical(784, (100, 50), inference="top-down")
    Ladder(784 Bernoulli ← 100 Normal ← 50 Normal)
    """
    sizes = _widths(latents)
    if inference not in INFERENCE:
        raise ModelError(f"inference is 'bottom-up' or 'top-down'; got {inference!r}.")
    if not isinstance(hidden, Sequence) or len(hidden) != len(sizes) or not sizes:
        raise ModelError(f"hidden= has widths for each of the {len(sizes)} hidden layers {sizes}; got {hidden!r}.")
    if noise not in (None, "shared"):
        raise ModelError(f"noise is None or 'shared'; got {noise!r}. For a known sd write family=normal_noise(sd).")
    if noise == "shared" and family != "normal":
        raise ModelError(f"noise='shared' needs family='normal'; got family={family!r}.")
    widths = tuple(map(_widths, hidden))
    return _ladder(visible, family, noise, sizes, "normal", widths, activation, inference, weight_sd, redraw)


@shared
def _ladder(
    visible: int, family: str | Family, noise: str | None, hidden: tuple[int, ...], kind: str | Family,
    widths: tuple[tuple[int, ...], ...], activation: str | Callable, inference: str, weight_sd: float | None,
    redraw: bool,
) -> Ladder:  # fmt: skip
    """A ladder with hidden layers of one ``kind``; ``widths`` are those of the networks between layers, from x up."""
    highest = standard_normal(hidden[-1]) if kind == "normal" else top(hidden[-1], kind)
    above = [family_of(kind).seen(size) for size in hidden]
    down = widths[0][::-1]
    if noise is None:
        bottom = layer(above[0], visible, family, hidden=down, activation=activation)
    else:
        bottom = shared_noise(above[0], visible, hidden=down, activation=activation)
    between = [
        layer(m, n, kind, hidden=each[::-1], activation=activation)
        for m, n, each in zip(above[1:], hidden[:-1], widths[1:], strict=True)
    ]
    layers = [bottom, *between, highest]
    if inference == "top-down":
        recognition = top_down(layers, widths, activation=activation)
    else:
        recognition = bottom_up([
            layer(m, n, kind, hidden=each, activation=activation)
            for m, n, each in zip([bottom.seen, *above[:-1]], hidden, widths, strict=True)
        ])  # fmt: skip
    return Ladder(layers, recognition, weight_sd=weight_sd, redraw=redraw)


def _widths(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (int(sizes),) if isinstance(sizes, int | np.integer) else tuple(sizes)
