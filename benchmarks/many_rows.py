"""Is a posterior of many rows judged rightly, and how long does that take?

    python benchmarks/many_rows.py [--quick] [--rows 50000 200000 1000000] [--columns 10]

The models are regressions whose posterior is nearly a normal N(m, S), which is computed by Newton steps in double
precision. Every tenth column is 1 in fifty rows, however many rows there are, and 0 elsewhere. The library verifies
N(m, S) itself and four wrong posteriors: all means moved by 0.35 sds, sds 0.7 and 1.4 times the right ones, and all
means moved by 3 sds. The seconds are those of a second verification, with compiled programs; "run" is that of Laplace.
"""

import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table
from scipy.special import expit

import tractable as tr
from tractable.core.approximations import of_root
from tractable.diagnostics.belief import Fitted
from tractable.posterior.posterior import Posterior

SD = 2.0  # of the prior
WRONG = {"0.35 sd aside": (0.35, 1.0), "sds × 0.7": (0.0, 0.7), "sds × 1.4": (0.0, 1.4), "3 sds aside": (3.0, 1.0)}
Curves = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # slope and −curvature of log p(y | η)
MODELS: dict[str, tuple[Callable, Callable, Curves]] = {
    "linear": (
        lambda eta: dist.Normal(eta, 1.0), lambda rng, eta: rng.normal(eta),
        lambda y, eta: (y - eta, np.ones_like(eta)),
    ),
    "logistic": (
        lambda eta: dist.Bernoulli(logits=eta), lambda rng, eta: rng.random(len(eta)) < expit(eta),
        lambda y, eta: (y - expit(eta), expit(eta) * expit(-eta)),
    ),
    "Poisson": (
        lambda eta: dist.Poisson(jnp.exp(eta)), lambda rng, eta: rng.poisson(np.exp(eta)),
        lambda y, eta: (y - np.exp(eta), np.exp(eta)),
    ),
}  # fmt: skip


def rows_of(name: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    x[:, ::10] = rng.random((rows, len(range(0, columns, 10)))) < 50 / rows
    return x, MODELS[name][1](rng, x @ rng.normal(size=columns) * 0.3).astype(np.float32)


def exact(name: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and a root (d, d) of the covariance of the normal posterior."""
    x, w = x.astype(float), np.zeros(x.shape[1])
    for _ in range(20):
        slope, curvature = MODELS[name][2](y, x @ w)
        precision = (x * curvature[:, None]).T @ x + np.eye(len(w)) / SD**2
        w = w + np.linalg.solve(precision, x.T @ slope - w / SD**2)
    return w, np.linalg.cholesky(np.linalg.inv(precision))


def said_to_be(model: tr.Model, data: tr.Data, mean: np.ndarray, root: np.ndarray) -> Posterior:
    """The posterior that claims to be q = N(mean, root rootᵀ)."""
    draws = mean + np.random.default_rng(1).standard_normal((4000, len(mean))) @ root.T
    phi = jax.tree.map(np.asarray, of_root(jnp.asarray(mean, float), jnp.asarray(root, float)))
    belief = Fitted(positions=draws[None], family="full rank", phi=phi, log_weights=None)
    found = {"gain": 0.0, "gain error": 0.0, "steps": 1000, "evaluations": 1000}
    return Posterior(model, data, tr.FullRank(), 0, belief, found)


def seconds(call: Callable) -> float:
    call()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def judged(name: str, rows: int, columns: int) -> list:
    """A row of the table."""
    family = MODELS[name][0]
    x, y = rows_of(name, rows, columns)
    mean, root = exact(name, x, y)
    prior = {"w": dist.Normal(jnp.zeros(columns), SD).to_event(1)}
    model, data = tr.Model(prior, lambda params, x: family(x @ params["w"])), tr.Data(y, given=x)
    run = seconds(lambda: tr.infer(model, data, tr.Laplace(), seed=0, verify=None, progress=False))
    looks = seconds(lambda: said_to_be(model, data, mean, root).verify("auto"))
    sds, verdicts = np.sqrt(np.sum(root**2, 1)), []
    for aside, width in ((0.0, 1.0), *WRONG.values()):
        said = said_to_be(model, data, mean + aside * sds, width * root)
        verdicts.append(said.verify("auto").report().verdict)
    return [name, rows, columns, run, looks, *verdicts]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000, 1_000_000])
    parser.add_argument("--columns", type=int, default=10)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found = [judged(name, rows, asked.columns) for rows in ([5000] if asked.quick else asked.rows) for name in MODELS]
    say_where("Is a posterior of many rows judged rightly?")
    head = ["model", "rows", "columns", "run, s", "looks, s", "right", *WRONG]
    table(head, found)
    record(__file__, head, found, names=2)


if __name__ == "__main__":
    main()
