"""Which estimates of the evidence fail, and how: models whose log p(y) is known, by every method.

The exact values come from the formulas for Beta–Bernoulli, normal and linear-regression models, and from a grid for the
two modes. The funnel and the Student t are normalised densities from which a constant was subtracted; they have no
prior and no data, and the evidence is their log Z.

"Error" is estimate − truth in nats, "±" is the method's own standard error, and z is their ratio. A method does its
work if a large error comes with "reject" or "caution". Predicted: plain Monte Carlo is good for one parameter, and for
many parameters nats too low, with a ± below 1 and "reject". Laplace is exact for normal posteriors, too low by up to
log 2 for two modes, and wrong for heavy tails. Importance sampling is as good as its Student t proposal. The lower and
upper bounds of annealing hold the truth between them.

    python benchmarks/evidence_table.py [--quick]
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table

import tractable as tr
from tractable.core.errors import TractableError
from tractable.evidence.estimate import log_evidence
from tractable.gallery import conjugate
from tractable.gallery.models import NOISE_SD, PRIOR_SD, coin, normal_mean, readings
from tractable.glm import linear

HEAD = [
    "model",
    "method",
    "log p(y)",
    "error",
    "±",
    "z",
    "lower",
    "upper",
    "holds",
    "verdict",
    "worst check",
    "seconds",
]


class Problem(NamedTuple):
    """A model whose evidence is known."""

    name: str
    model: tr.Model
    data: Any
    truth: float


def flips(size: int) -> Problem:
    y = np.random.default_rng(0).binomial(1, 0.7, size)
    return Problem(f"coin, N = {size:,}", coin(5.0, 5.0), tr.Data(y), conjugate.beta_bernoulli(y, 5, 5).log_evidence)


def mean() -> Problem:
    y = readings()
    truth = conjugate.normal_mean(y, NOISE_SD, 0.0, PRIOR_SD).log_evidence
    return Problem("normal mean, N = 50", normal_mean(NOISE_SD, 0.0, PRIOR_SD), tr.Data(y), truth)


def regression(features: int, noise_sd: float = 0.3) -> Problem:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4 * features, features))
    y = x @ rng.normal(size=features) + noise_sd * rng.normal(size=len(x))
    truth = conjugate.linear_regression(x, y, noise_sd, 1.0).log_evidence
    return Problem(f"regression, d = {features}", linear.bayesian_linear(features, noise_sd, 1.0), tr.Data(y, x), truth)


def two_modes() -> Problem:
    x = linear.draw_mixture(100, seed=3)
    return Problem("two modes", linear.gaussian_mixture_2d(), tr.Data(x), conjugate.mixture_grid(x).log_mass)


def funnel(size: int = 4) -> Problem:
    """Neal's funnel (2003), less steep: v ~ N(0, 1.5²), x ~ N(0, e^v I)."""

    def density(z: jax.Array) -> jax.Array:
        return -((z[0] / 1.5) ** 2) / 2 - jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 - size / 2 * z[0]

    truth = math.log(1.5) + (size + 1) / 2 * math.log(2 * math.pi)
    return Problem(f"funnel, d = {size + 1}", tr.Model.from_log_density(density, jnp.zeros(size + 1)), None, truth)


def student(size: int = 5) -> Problem:
    """Independent Student t's of 2 degrees of freedom, whose variance is infinite."""
    log_z = -float(dist.StudentT(2.0).log_prob(0.0)) * size

    def density(z: jax.Array) -> jax.Array:
        return -1.5 * jnp.sum(jnp.log1p(z**2 / 2))

    return Problem(f"Student t, d = {size}", tr.Model.from_log_density(density, jnp.zeros(size)), None, log_z)


PROBLEMS: list[Callable[[], Problem]] = [
    lambda: flips(20), lambda: flips(2000), mean, lambda: regression(3), lambda: regression(20),
    lambda: regression(50), two_modes, funnel, student,
]  # fmt: skip
QUICK: dict[str, dict[str, Any]] = {
    "monte-carlo": {"draws": 20_000},
    "importance": {"draws": 4000},
    "laplace": {"draws": 2000},
    "annealed": {"chains": 64, "temperatures": 300, "pilot": 128},
}


def row(problem: Problem, method: str, settings: dict[str, Any]) -> list:
    try:
        found = log_evidence(problem.model, problem.data, method, **settings)
    except TractableError as refused:
        return [problem.name, method, problem.truth, *[None] * 5, "", "refused", str(refused)[:60], None]
    wrong = found.estimate - problem.truth
    known = found.standard_error > 1e-9
    holds = "" if math.isnan(found.lower) else "yes" if found.lower <= problem.truth <= found.upper else "no"
    order = {"trust": 0, "caution": 1, "reject": 2}
    worst = max(found.checks, key=lambda c: order[c.verdict])
    said = "" if found.verdict == "trust" else worst.name
    return [
        problem.name, method, problem.truth, wrong, found.standard_error,
        wrong / found.standard_error if known else None, found.lower - problem.truth, found.upper - problem.truth,
        holds, found.verdict, said, found.seconds,
    ]  # fmt: skip


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    jax.config.update("jax_enable_x64", True)
    say_where("Which estimates of the evidence fail, and how?")
    rows = []
    for build in PROBLEMS[::4] if args.quick else PROBLEMS:
        problem = build()
        rows += [row(problem, method, settings if args.quick else {}) for method, settings in QUICK.items()]
        table(HEAD, rows[-len(QUICK) :])
    holds = [line[HEAD.index("holds")] for line in rows]
    errors = [line[HEAD.index("error")] for line in rows if line[HEAD.index("verdict")] == "trust"]
    counts = {
        "estimates": len(rows), "off by more than 0.2 nats and trusted": sum(not abs(off) <= 0.2 for off in errors),
        "with bounds": len(rows) - holds.count(""), "bounds that hold the truth": holds.count("yes"),
    }  # fmt: skip
    record(__file__, ["", "value"], list(counts.items()))
    print("lower and upper are less the truth. Seconds include compilation, and NUTS for the way back of annealed.")


if __name__ == "__main__":
    main()
