"""Is SGLD's bias the one predicted, over step sizes and batch sizes?

Two models are used: a coin (100 flips, Beta(5, 5) prior, sampled in logit space) and a normal mean (100 readings). The
inflation of the posterior sd is measured on a few hundred long chains that begin at the posterior. It is compared with
the prediction from the curvature h and the gradient's noise V, for independent batches, and for batches that visit
every row once in an epoch of M batches.

Predicted: for the normal mean the formula is exact at every step size ε and batch size n, |z| ≤ 5.33. For the coin,
whose curvature and noise change with θ, the formula holds to leading order in the inflation, so z grows when the
inflation exceeds some tens of per cent. Epoch batches inflate less than independent ones, most of all for small M.

The last rows use the published settings of this example: a coin sampled in θ itself, not its logit, with batches of one
and ε_t = a (b + t)^−0.55 with a = 1 and b = 1e8. For any run of realistic length this is a constant ε = 3.98e-5.

    python benchmarks/bias_table.py [--quick]
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table
from scipy import special

import tractable as tr
from tractable.core.batches import Plan
from tractable.core.errors import RunError
from tractable.engine import run as loop
from tractable.engine.drawing import chain_keys
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.gallery.models import ALPHA, BETA, coin, flips
from tractable.sgmcmc import bias

FRACTIONS = (0.02, 0.1, 0.5, 1.0, 2.0)  # εh
THIN = 3  # steps between draws; it does not divide an epoch's length, so draws come from all parts of an epoch


class Target(NamedTuple):
    """A posterior whose mean and sd are known, in the space in which the chain runs."""

    name: str
    model: tr.Model
    data: tr.Data
    mean: float
    sd: float
    quantiles: np.ndarray  # of the posterior: h and V are averaged over them, and chains begin there


class Bare(NamedTuple):
    """``sgmcmc.sgld`` as a program of ``tractable.engine.run``; moments are of the unconstrained position."""

    model: tr.Model
    streams: bool = False
    remedy: str = "Use a smaller step."
    placement: OneDevice = ONE_DEVICE

    def __call__(self, rows: Any, tuned: Any) -> tr.Kernel:
        return tr.kernels.sgld(tr.log_posterior(self.model, flat=True), tuned["step_size"])

    def observe(self, state: Any) -> jax.Array:
        return state.position

    def values(self, position: jax.Array) -> jax.Array:
        return position

    def weigh(self, info: dict[str, jax.Array]) -> None:
        return None

    def describe(self, position: jax.Array) -> str:
        return "theta"


def targets() -> list[Target]:
    y = flips()
    a, b = ALPHA + y.sum(), BETA + len(y) - y.sum()
    u = (np.arange(256) + 0.5) / 256
    logit = Target(
        "coin", coin(ALPHA, BETA), tr.Data(y), special.digamma(a) - special.digamma(b),
        math.sqrt(special.polygamma(1, a) + special.polygamma(1, b)), special.logit(special.betaincinv(a, b, u)),
    )  # fmt: skip
    readings = np.random.default_rng(1).normal(1.0, 2.0, 100)
    precision = 1 / 10.0**2 + 100 / 2.0**2
    mean = readings.sum() / 2.0**2 / precision
    model = tr.Model({"mu": dist.Normal(0.0, 10.0)}, lambda params: dist.Normal(params["mu"], 2.0))
    normal = Target(
        "normal mean", model, tr.Data(readings), mean, precision**-0.5, mean + special.ndtri(u) * precision**-0.5
    )
    return [logit, normal]


def natural() -> Target:
    y = flips()
    a, b = ALPHA + y.sum(), BETA + len(y) - y.sum()

    def prior(theta):
        return (ALPHA - 1) * jnp.log(theta) + (BETA - 1) * jnp.log1p(-theta)

    model = tr.Model(prior, lambda theta: dist.Bernoulli(theta), position=0.5)
    u = (np.arange(256) + 0.5) / 256
    return Target(
        "coin, θ itself", model, tr.Data(y), a / (a + b), math.sqrt(a * b / (a + b) ** 2 / (a + b + 1)),
        special.betaincinv(a, b, u),
    )  # fmt: skip


def measured_inflation(target: Target, plan: Plan, step: float, chains: int, steps: int) -> tuple[float, float]:
    """sd / exact sd − 1, and its Monte Carlo error; the first tenth of the run is left out."""
    program = Bare(target.model)
    tuned = {"step_size": jnp.asarray(step, jnp.result_type(float))}
    keys = chain_keys(jax.random.key(0), chains)
    begin = np.resize(target.quantiles, chains)[:, None]
    shape = loop.shape(steps // THIN, THIN, 1, chains, moments=True)
    states = loop.begin(program, tuned, None, keys, jnp.asarray(begin, jnp.result_type(float)))
    groups = steps // shape.group
    burnt = max(1, groups // 10)
    first = loop.run(
        loop.Loop(program, shape._replace(moments=False), plan), target.data, tuned, keys, loop.Start(states), burnt,
        collect=("info",),
    )  # fmt: skip
    rest = loop.run(
        loop.Loop(program, shape, plan), target.data, tuned, keys, loop.Start(first.states, burnt), groups,
        collect=("info",),
    )  # fmt: skip
    count, mean, square = (np.asarray(m, np.float64) for m in rest.moments[:3])  # no draw has a weight
    mean = mean[:, 0]
    second = square[:, 0] / count + np.square(mean - mean.mean())  # per chain, about the common mean
    variance, error = second.mean(), second.std(ddof=1) / math.sqrt(chains)
    sd = math.sqrt(variance)
    return sd / target.sd - 1, error / (2 * sd * target.sd)


def predicted(target: Target, plan: Plan, step: float) -> tuple[float, float, float, float]:
    """Inflation for independent and for epoch batches, h and V, both averaged over the posterior."""
    found = bias.measure(target.model, target.data, plan, target.quantiles[8::16, None], jax.random.key(0))
    # The sd of a normal with the averaged h may differ a little from the exact sd; the inflation is relative to it.
    independent = bias.stationary(found, step).inflation[0]
    epoch = bias.stationary(found, step, epoch=plan.count).inflation[0]
    return float(independent), float(epoch), float(found.curvature[0, 0]), float(found.noise[0, 0])


def main() -> None:
    args = arguments(__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    say_where("Is SGLD's bias the one predicted?")
    chains, scale = (64, 0.1) if args.quick else (512, 1.0)
    rows = []
    for target in targets()[1:] if args.quick else targets():
        for n in (10,) if args.quick else (1, 10, 50):
            for fraction in (0.5, 2.0) if args.quick else FRACTIONS:
                steps = int(scale * min(60_000, max(6_000, 1_000 / fraction)))
                h = predicted(target, Plan(100, n), 1e-6)[2]
                for independent in (True, False):
                    rows.append(row(target, Plan(100, n, independent), fraction / h, chains, steps))
    step = float(tr.schedules.polynomial(1.0, 1e8, 0.55)(0))
    for independent in (True, False):
        rows.append(row(natural(), Plan(100, 1, independent), step, chains, int(20_000 * scale)))
    told = ["predicted, independent", "predicted, epoch", "measured", "± MC"]
    table(["target", "batches", "εh", "ε", "n", *told, "z", "remark"], rows)
    record(__file__, ["", *told], [[f"{r[0]}, εh {r[2]:.2g}, n {r[4]}, {r[1]}", *r[5:9]] for r in rows])
    print("Inflations are sd over exact posterior sd, less 1; z is measured against the prediction of its kind.")


def row(target: Target, plan: Plan, step: float, chains: int, steps: int) -> list:
    independent, epoch, h, _ = predicted(target, plan, step)
    wanted = independent if plan.independent else epoch
    kind = "independent" if plan.independent else "epoch"
    head = [target.name, kind, step * h, step, plan.batch_size, independent, epoch]
    try:
        got, error = measured_inflation(target, plan, step, chains, steps)
    except RunError as stopped:
        return [*head, None, None, None, str(stopped)[:40]]
    return [*head, got, error, (got - wanted) / error, ""]


if __name__ == "__main__":
    main()
