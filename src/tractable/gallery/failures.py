"""Twelve two-dimensional targets, on each of which a method fails, to show the failure and to test verdicts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.model import Data, Model, log_density
from tractable.core.words import find

Window = tuple[tuple[float, float], tuple[float, float]]
FINE = 401  # points along each side of the grid
Built = tuple[Model, Data | None]


class Failure(NamedTuple):
    """A target, and how methods fail on it.

    Attributes:
        name: the name that users type.
        title: a description of the target.
        notes: which methods fail, and why.
        build: ``() -> (model, data or None)``.
        window: (low, high) of both unconstrained numbers, a region with almost all mass.
        proper: whether the target has a mean.
        known: mean and sd of both numbers, if the grid is too coarse to compute them.
    """

    name: str
    title: str
    notes: str
    build: Callable[[], Built]
    window: Window
    proper: bool = True
    known: tuple[np.ndarray, np.ndarray] | None = None

    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both axes, (g,) each, and the mass on the grid, (g, g), which sums to 1; columns are the second number."""
        model, data = self.build()
        target = log_density(model, None if data is None else data.arrays(), flat=True)
        x, y = (np.linspace(*edges, FINE) for edges in self.window)
        places = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
        logs = np.asarray(jax.jit(lambda z: jax.lax.map(target, z, batch_size=256))(places), np.float64)
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
        places = jnp.asarray(np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2))
        values = np.asarray(jax.vmap(model.values)(places), np.float64)
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


def _density(function: Callable[[jax.Array], jax.Array]) -> Callable[[], Built]:
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


def _switching() -> Built:
    rng = np.random.default_rng(0)
    return SWITCHING, Data(np.concatenate([rng.normal(-2, 1, 20), rng.normal(2, 1, 20)]))


def _line() -> Built:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 500)
    return LINE, Data(1 + 0.5 * x + rng.normal(size=500), given=x)


def _outliers() -> Built:
    rng = np.random.default_rng(0)
    return READINGS, Data(np.concatenate([rng.normal(size=90), rng.normal(0, 12, 10)]))


FAILURES = {
    each.name: each
    for each in (
        Failure(
            "two-modes", "Two normals, 0.7 and 0.3 of the mass, eight sds apart along each number",
            "Methods that start in one place find one mode, and chains that are all there agree.",
            _density(
                lambda z: jnp.logaddexp(jnp.log(0.7) - jnp.sum(z**2) / 2, jnp.log(0.3) - jnp.sum((z - 8) ** 2) / 2)
            ), ((-5, 13), (-5, 13)),
        ),
        Failure(
            "funnel", "A scale, and a number on that scale",
            "The neck is too narrow for a step that suits the mouth; a normal fits neither.",
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
            "Climbs end in the spike, and a normal fits it; the slab is never seen.",
            _density(_spike), ((-20, 20), (-20, 20)),
        ),
        Failure(
            "separable", "Logistic regression of data that a threshold separates, without a prior",
            "The likelihood rises for ever: there is no maximum, and no posterior.",
            _density(_separable), ((-30, 30), (-5, 60)), proper=False,
        ),
        Failure(
            "improper", "Only the difference of two numbers is known",
            "The density is as high everywhere along a line; what any method says of the numbers is made up.",
            _density(lambda z: -((z[0] - z[1]) ** 2) / 2), ((-30, 30), (-30, 30)), proper=False,
        ),
        Failure(
            "label-switching", "A mixture of two normals whose means can change places",
            "Each mode is the other with its labels exchanged; a chain stays in one.",
            _switching, ((-5, 5), (-5, 5)),
        ),
        Failure(
            "collapsed", "A normal with correlation 0.995",
            "A mean field has each number's sd with the other held fixed: a tenth of the right one.",
            _density(lambda z: -(z[0] ** 2 - 2 * 0.995 * z[0] * z[1] + z[1] ** 2) / (2 * (1 - 0.995**2))),
            ((-5, 5), (-5, 5)),
        ),
        Failure(
            "large-step", "A line through 500 points, by stochastic gradients",
            "SGLD with a step too large is as wide as its step, not as the posterior.",
            _line, ((0.3, 0.7), (0.4, 1.6)),
        ),
        Failure(
            "stuck-chain", "A plain normal, and a proposal a thousand times too wide",
            "Hardly any proposal is accepted, so a chain repeats a few positions as its draws.",
            _density(lambda z: -jnp.sum(z**2) / 2), ((-5, 5), (-5, 5)),
        ),
        Failure(
            "unconverged", "A plain normal, thirty sds from where the climb begins",
            "While the bound still rises, q has not arrived at the posterior.",
            _density(lambda z: -jnp.sum((z - 30) ** 2) / 2), ((25, 35), (25, 35)),
        ),
        Failure(
            "misspecified", "Readings with outliers, taken for normal",
            "The posterior is right but the model is wrong, which no verdict on a posterior sees: compare predictions "
            "with held-out rows.",
            _outliers, ((-3, 3), (0.5, 2.5)),
        ),
    )
}  # fmt: skip
