"""The exact answers for a target: its moments, or else its quantiles, and whether it and its maximum exist."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import tractable as tr

LEVELS = (0.05, 0.5, 0.95)
SPAN = 30.0  # nats below the maximum down to which quadrature goes
FINE = 301  # points along each side of the last grid


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The posterior of the k numbers a model reports, in their order.

    Attributes:
        mean, sd: (k,); NaN where a second moment does not exist, or where no posterior does.
        quantiles: (3, k) at 5, 50 and 95 %, where they are needed.
        half: (k,) half the width of the middle 68 %.
        proper: whether the density has a finite integral.
        peaked: whether the density of the user's parameters attains its maximum.
        likely: whether the likelihood alone attains its maximum.
        sample: ``(rng, n) -> (n, k)`` exact draws, or points of the quadrature's grid; None if there is no posterior.
    """

    mean: np.ndarray
    sd: np.ndarray
    quantiles: np.ndarray | None = None
    half: np.ndarray | None = None
    proper: bool = True
    peaked: bool = True
    likely: bool = True
    sample: Callable[[np.random.Generator, int], np.ndarray] | None = None


class Variant(NamedTuple):
    """One model object, which is compiled once, and the function that draws its members.

    Attributes:
        family: the family under which its results are counted.
        name: the variant's unique name.
        model: the model; all numbers of a member are passed to it as data.
        draw: ``(rng, hard) -> numbers``; hard ones are drawn for half of the members.
        data: ``numbers -> Data``.
        truth: ``numbers -> Truth``.
        methods: labels of further methods that apply, besides those that apply to any log density.
    """

    family: str
    name: str
    model: tr.Model
    draw: Callable[[np.random.Generator, bool], dict[str, Any]]
    data: Callable[[dict[str, Any]], tr.Data]
    truth: Callable[[dict[str, Any]], Truth]
    methods: tuple[str, ...] = ()


def nowhere(size: int, *, peaked: bool = False, likely: bool = False) -> Truth:
    """The truth about a target without a posterior."""
    nothing = np.full(size, np.nan)
    return Truth(mean=nothing, sd=nothing, proper=False, peaked=peaked, likely=likely)


def by_grid(
    log_density: Callable[[np.ndarray], np.ndarray],
    values: Callable[[np.ndarray], np.ndarray],
    box: list[tuple[float, float]],
    **known: bool,
) -> Truth:
    """Moments by the trapezoidal rule over one or two unconstrained parameters.

    If the density falls to 0 at the edges, the rule converges faster than any power of the spacing. Five times, the box
    is narrowed to the region within 30 nats of the maximum.

    Args:
        log_density: (n, d) -> (n,), of the unconstrained parameters.
        values: (n, d) -> (n, k), the numbers that the model reports.
        box: the first interval of each parameter.
        known: further fields of the ``Truth``.
    """
    sides = list(box)
    for _ in range(5):
        points, logs, axes = _evaluated(log_density, sides, 121 if len(box) == 2 else 4001)
        kept = points[logs > logs.max() - SPAN]
        steps = [axis[1] - axis[0] for axis in axes]
        sides = [(kept[:, i].min() - step, kept[:, i].max() + step) for i, step in enumerate(steps)]
    points, logs, _ = _evaluated(log_density, sides, FINE if len(box) == 2 else 20_001)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    at = values(points)
    mean = weights @ at
    sd = np.sqrt(weights @ np.square(at - mean))

    def sample(rng: np.random.Generator, n: int) -> np.ndarray:
        return at[rng.choice(len(at), n, p=weights)]

    return Truth(mean=mean, sd=sd, sample=sample, **known)


def _evaluated(
    log_density: Callable[[np.ndarray], np.ndarray], sides: list[tuple[float, float]], count: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    axes = [np.linspace(low, high, count) for low, high in sides]
    points = np.stack([a.ravel() for a in np.meshgrid(*axes, indexing="ij")], -1)
    logs = np.concatenate([log_density(part) for part in np.array_split(points, max(1, len(points) // 50_000))])
    return points, logs, axes


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int | None = None) -> Any:
    """Draws whose logarithms are uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))
