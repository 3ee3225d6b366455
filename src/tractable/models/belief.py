"""Sigmoid belief networks: ladders of discrete layers over binary data."""

from collections.abc import Callable, Sequence

import numpy as np

from tractable.models.architecture import check_units
from tractable.models.ladder import Ladder, bottom_up
from tractable.models.layers import Family, family_of, layer, top
from tractable.tools.errors import ModelError
from tractable.tools.shared import shared


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
    """A belief network of binary data (Neal 1992), and an inference network that climbs it from x.

        h^L ~ Bernoulli(σ(b)),   h^i | h^{i+1} ~ Bernoulli(σ(W h^{i+1} + b)),   x | h¹ likewise
        q(h^i | h^{i−1}) of the same form, bottom up, each with weights of its own; h⁰ = x

    Args:
        visible: D ≥ 1, numbers of x, each 0 or 1.
        hidden: units of h¹, …, h^L, the first next to x.
        between: widths of deterministic layers between two stochastic ones, from above to below; () for a linear map.
            The inference network has the same, the other way about.
        activation: of those: "tanh", "relu", …, or a function.
        family: of the hidden units: "bernoulli" or ``categorical(levels)``.
        weight_sd: of a normal prior on every weight of θ; None for maximum likelihood.
        redraw: rows are probabilities, from which x is drawn afresh at every visit.

    Returns:
        A Ladder, whose θ is {"x": …, "h1": …}. The same arguments give the same one.

    Raises:
        ModelError: sizes that are not whole numbers ≥ 1, no hidden layer, hidden units that are not discrete.

    >>> sigmoid_belief_network(64, (30, 20))
    Ladder(64 Bernoulli ← 30 Bernoulli ← 20 Bernoulli)
    """
    sizes = _sizes("hidden", hidden)
    if not sizes:
        raise ModelError("hidden= lists the units of one layer or more, the one next to x first; got none.")
    if not family_of(family).levels:
        raise ModelError(
            "A belief network's hidden units are 'bernoulli' or categorical(levels); got "
            f"{family_of(family).name}. tr.models.latent_gaussian makes ladders of normal ones."
        )
    widths = _sizes("between", between)
    return _belief_network(_sizes("visible", (visible,))[0], sizes, widths, activation, family, weight_sd, redraw)


@shared
def _belief_network(
    visible: int,
    hidden: tuple[int, ...],
    between: tuple[int, ...],
    activation: str | Callable,
    family: str | Family,
    weight_sd: float | None,
    redraw: bool,
) -> Ladder:
    seen = family_of(family).seen
    families = ["bernoulli", *[family] * len(hidden)]
    sizes = [visible, *hidden]
    down = [
        layer(seen(above), size, kind, hidden=between, activation=activation)
        for size, above, kind in zip(sizes[:-1], hidden, families, strict=False)
    ]
    up = [
        layer(below, size, family, hidden=between[::-1], activation=activation)
        for below, size in zip([visible, *map(seen, hidden[:-1])], hidden, strict=True)
    ]
    ladder = [*down, top(hidden[-1], family)]
    return Ladder(ladder, bottom_up(up), weight_sd=weight_sd, redraw=redraw)


def _sizes(name: str, sizes: int | Sequence[int]) -> tuple[int, ...]:
    """As a tuple of whole numbers, or a sentence."""
    listed = (sizes,) if isinstance(sizes, int | np.integer) else tuple(sizes)
    for size in listed:
        check_units(name, size)
    return tuple(int(size) for size in listed)
