"""Twelve two-dimensional targets on each of which a method fails; they show the failures and test the verdicts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.model import Data, Model, log_density
from tractable.core.words import find

Window = tuple[tuple[float, float], tuple[float, float]]
FINE = 401  # number of points along each side of the grid
Problem = tuple[Model, Data | None]


class Failure(NamedTuple):
    """A target, and how methods fail on it.

    Attributes:
        name: the name that users type.
        title: a description of the target.
        notes: which methods fail, and why.
        build: ``() -> (model, data or None)``.
        window: (low, high) of both unconstrained numbers: a region that holds almost all of the probability mass.
        proper: whether the target has a mean.
        known: mean and sd of both numbers; given only if the grid is too coarse to compute them.
    """

    name: str
    title: str
    notes: str
    build: Callable[[], Problem]
    window: Window
    proper: bool = True
    known: tuple[np.ndarray, np.ndarray] | None = None

    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both axes, (g,) each, and the probability mass on the grid, (g, g), which sums to 1.

        Rows are values of the first number, and columns are values of the second.
        """
        model, data = self.build()
        target = log_density(model, None if data is None else data.arrays(), flat=True)
        x, y = (np.linspace(*edges, FINE) for edges in self.window)
        points = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
        logs = np.asarray(jax.jit(lambda z: jax.lax.map(target, z, batch_size=256))(points), np.float64)
        heights = np.exp(logs - np.nanmax(logs)).reshape(FINE, FINE)
        return x, y, heights / heights.sum()

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of the two parameters, (2,) each; NaN for a target without a mean."""
        if self.known is not None:
            return self.known
        if not self.proper:
            return np.full(2, np.nan), np.full(2, np.nan)
        x, y, mass = self.grid()
        model, _ = self.build()
        points = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
        values = np.asarray(jax.vmap(model.values)(points), np.float64)
        mean = mass.ravel() @ values
        return mean, np.sqrt(mass.ravel() @ np.square(values - mean))


def failure(name: str) -> Failure:
    """The failure with this name.

    Raises:
        DataError: there is no such failure; the message lists the names.

    >>> failure("funnel").title
    'A scale, and a number on that scale'
    """
    return find("failure", name, FAILURES)


def _density(function: Callable[[jax.Array], jax.Array]) -> Callable[[], Problem]:
    model = Model.from_log_density(function, jnp.zeros(2))
    return lambda: (model, None)


def _spike(z: jax.Array) -> jax.Array:
    narrow, wide = -jnp.sum(z**2) / (2 * 0.1**2) - 2 * jnp.log(0.1), -jnp.sum(z**2) / 50 - 2 * jnp.log(5.0)
    return jnp.logaddexp(narrow, wide)


def _separable(z: jax.Array) -> jax.Array:
    x, sign = jnp.array([-2.0, -1.0, 1.0, 2.0]), jnp.array([-1.0, -1.0, 1.0, 1.0])
    return jnp.sum(jax.nn.log_sigmoid(sign * (z[0] + z[1] * x)))


def _mixture(params: dict[str, jax.Array]) -> dist.Distribution:
    return dist.MixtureSameFamily(dist.Categorical(probs=jnp.full(2, 0.5)), dist.Normal(params["mu"], 1.0))


SWITCHING = Model({"mu": dist.Normal(0, 5).expand([2]).to_event(1)}, _mixture)
LINE = Model(
    {"slope": dist.Normal(0, 5), "start": dist.Normal(0, 5)}, lambda p, x: dist.Normal(p["start"] + p["slope"] * x, 1.0)
)
READINGS = Model({"mean": dist.Normal(0, 10), "sd": dist.LogNormal(0, 2)}, lambda p: dist.Normal(p["mean"], p["sd"]))


def _switching() -> Problem:
    rng = np.random.default_rng(0)
    return SWITCHING, Data(np.concatenate([rng.normal(-2, 1, 20), rng.normal(2, 1, 20)]))


def _line() -> Problem:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 500)
    return LINE, Data(1 + 0.5 * x + rng.normal(size=500), given=x)


def _outliers() -> Problem:
    rng = np.random.default_rng(0)
    return READINGS, Data(np.concatenate([rng.normal(size=90), rng.normal(0, 12, 10)]))


FAILURES = {
    each.name: each
    for each in (
        Failure(
            "two-modes", "Two normals, 0.7 and 0.3 of the mass, eight sds apart along each number",
            "A method that starts at one point finds one mode; chains that are all in that mode agree with each other.",
            _density(
                lambda z: jnp.logaddexp(jnp.log(0.7) - jnp.sum(z**2) / 2, jnp.log(0.3) - jnp.sum((z - 8) ** 2) / 2)
            ), ((-5, 13), (-5, 13)),
        ),
        Failure(
            "funnel", "A scale, and a number on that scale",
            "A step that suits the funnel's wide part is too large for its narrow part; a normal fits neither part.",
            _density(lambda z: -(z[0] ** 2) / 18 - z[1] ** 2 * jnp.exp(-z[0]) / 2 - z[0] / 2),
            ((-9, 9), (-30, 30)), known=(np.zeros(2), np.array([3.0, np.exp(9 / 4)])),
        ),
        Failure(
            "banana", "A bent ridge",
            "A normal fits well near the mode, but most of the mass is elsewhere.",
            _density(lambda z: -(z[0] ** 2) / 8 - 2 * (z[1] - z[0] ** 2 / 2) ** 2), ((-9, 9), (-3, 40)),
        ),
        Failure(
            "spike-in-slab", "Half the mass in a spike of width 0.1, half in a slab of width 5",
            "Optimisers end in the spike, and a normal fits it well; they never reach the slab.",
            _density(_spike), ((-20, 20), (-20, 20)),
        ),
        Failure(
            "separable", "Logistic regression of data that a threshold separates, without a prior",
            "The likelihood increases without end, so there is no maximum and no posterior.",
            _density(_separable), ((-30, 30), (-5, 60)), proper=False,
        ),
        Failure(
            "improper", "Only the difference of two numbers is known",
            "The density is constant along an endless line, so no method's answer about the numbers has a meaning.",
            _density(lambda z: -((z[0] - z[1]) ** 2) / 2), ((-30, 30), (-30, 30)), proper=False,
        ),
        Failure(
            "label-switching", "A mixture of two normals whose means can change places",
            "The two modes differ only in the order of the labels; a chain stays in one mode.",
            _switching, ((-5, 5), (-5, 5)),
        ),
        Failure(
            "collapsed", "A normal with correlation 0.995",
            "A mean-field posterior gives each number's sd for a fixed value of the other: a tenth of the right sd.",
            _density(lambda z: -(z[0] ** 2 - 2 * 0.995 * z[0] * z[1] + z[1] ** 2) / (2 * (1 - 0.995**2))),
            ((-5, 5), (-5, 5)),
        ),
        Failure(
            "large-step", "A line through 500 points, by stochastic gradients",
            "If the step of SGLD is too large, the spread of its draws is that of the step and not of the posterior.",
            _line, ((0.3, 0.7), (0.4, 1.6)),
        ),
        Failure(
            "stuck-chain", "A standard normal, with a proposal that is a thousand times too wide",
            "Hardly any proposal is accepted, so the draws of a chain are a few positions, repeated many times.",
            _density(lambda z: -jnp.sum(z**2) / 2), ((-5, 5), (-5, 5)),
        ),
        Failure(
            "unconverged", "A normal whose mean is thirty sds from the optimiser's start",
            "While the bound still increases, q has not reached the posterior.",
            _density(lambda z: -jnp.sum((z - 30) ** 2) / 2), ((25, 35), (25, 35)),
        ),
        Failure(
            "misspecified", "Readings with outliers, modelled as normal",
            "The posterior is right but the model is wrong, which a verdict on the posterior cannot show: compare "
            "predictions with held-out rows.",
            _outliers, ((-3, 3), (0.5, 2.5)),
        ),
    )
}  # fmt: skip
