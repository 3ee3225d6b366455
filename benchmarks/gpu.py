"""Is a posterior that a GPU finds the one that is exact, and how long does it take beside the processor's?

    python benchmarks/gpu.py [--quick] [--platforms cpu cuda cuda:tensorfloat32 cuda:highest]

The same jobs run with ``infer``'s defaults in float32, on each platform in a process of its own. The word after a colon
is the precision of matrix products that the user asks for. Regressions are compared with their posterior in double
precision, and errors are in posterior sds; the columns have mean 3 and sd 1, so that rounded products have an effect.
Run only one process at a time on a GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from many_rows import MODELS, SD, exact
from measuring import arguments, record, say_where, table
from scipy.special import expit

PLATFORMS = ["cpu", "cuda", "cuda:tensorfloat32"]
Job = Callable[[bool], dict[str, Any]]


def rows_of(family: str, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 1.0, (rows, columns)).astype(np.float32)
    eta = (x - 3.0) @ rng.normal(size=columns) * 0.3
    y = rng.normal(eta) if family == "linear" else rng.random(rows) < expit(eta)
    return x, y.astype(np.float32)


def regression(family: str, method: str, rows: int, columns: int) -> Job:
    """Largest error of a mean, in sds, and of an sd; seconds of both runs; the verdict."""

    def job(quick: bool) -> dict[str, Any]:
        import jax.numpy as jnp
        import numpyro.distributions as dist

        import tractable as tr

        n = 2000 if quick else rows
        x, y = rows_of(family, n, columns)
        mean, root = exact(family, x, y)
        sd = np.sqrt(np.sum(root**2, 1))
        prior = {"w": dist.Normal(jnp.zeros(columns), SD).to_event(1)}
        model, data = tr.Model(prior, lambda params, x: MODELS[family][0](x @ params["w"])), tr.Data(y, given=x)
        taken, posterior = twice(lambda: tr.infer(model, data, getattr(tr, method)(), seed=0, progress=False))
        found = posterior.summary()
        off = np.abs(found["mean"].to_numpy() - mean) / sd
        width = found["sd"].to_numpy() / sd
        verdict = posterior.report().verdict
        return taken | {
            "mean off, sds": off.max(),
            "sd ratio": width[np.argmax(np.abs(np.log(width)))],
            "says": verdict,
        }

    return job


def trained(make: Callable[[int], tuple[Any, Any, Callable[[int], Any]]], rows: int, epochs: int) -> Job:
    """Seconds of a run of one epoch, and milliseconds for each further step."""

    def job(quick: bool) -> dict[str, Any]:
        import tractable as tr

        n, more = (512, 1) if quick else (rows, epochs)
        model, data, method = make(n)

        def run(passes: int) -> dict[str, Any]:
            return twice(lambda: tr.infer(model, data, method(passes), seed=0, verify=None, progress=False))[0]

        taken = run(1)
        longer = run(1 + more)["second, s"] - taken["second, s"]
        return taken | {"ms a step": 1e3 * longer / (more * (n // 128))}

    return job


def network(rows: int) -> tuple[Any, Any, Callable[[int], Any]]:
    import tractable as tr

    rng = np.random.default_rng(0)
    x, y = rng.random((rows, 784), dtype=np.float32), rng.integers(0, 10, rows)
    model = tr.models.neural_network(tr.models.mlp(784, (400, 400), 10), "categorical", prior=0.1)
    return model, tr.Data(y, given=x), lambda epochs: tr.BayesByBackprop(epochs=epochs, batch_size=128)


def autoencoder(rows: int) -> tuple[Any, Any, Callable[[int], Any]]:
    import tractable as tr

    x = np.float32(np.random.default_rng(0).random((rows, 784)) < 0.2)
    return (
        tr.models.latent_gaussian(784, 20, hidden=(400,)),
        tr.Data(x),
        lambda epochs: tr.AutoEncoding(epochs=epochs, batch_size=128),
    )


def mixture(quick: bool) -> dict[str, Any]:
    """The score of the fitted estimator, in nats a row."""
    from tractable.estimators import GaussianMixture

    rng = np.random.default_rng(0)
    n = 5000 if quick else 200_000
    means, roots = 2 * rng.normal(size=(10, 8)), 0.5 * rng.normal(size=(10, 8, 8)) + np.eye(8)
    k = rng.integers(0, 10, n)
    x = means[k] + np.einsum("nij,nj->ni", roots[k], rng.normal(size=(n, 8))) + 50.0
    taken, fitted = twice(lambda: GaussianMixture(10, random_state=0).fit(x.astype(np.float32)))
    return taken | {"nats a row": float(fitted.score(x.astype(np.float32)))}


JOBS: dict[str, Job] = {
    "linear 50,000 × 20, Laplace": regression("linear", "Laplace", 50_000, 20),
    "linear 50,000 × 20, NUTS": regression("linear", "NUTS", 50_000, 20),
    "logistic 200,000 × 50, Laplace": regression("logistic", "Laplace", 200_000, 50),
    "logistic 200,000 × 50, MeanField": regression("logistic", "MeanField", 200_000, 50),
    "logistic 200,000 × 50, NUTS": regression("logistic", "NUTS", 200_000, 50),
    "mixture 200,000 × 8, K = 10": mixture,
    "Bayes by Backprop, 784-400-400-10": trained(network, 12_800, 5),
    "autoencoder, 784-20": trained(autoencoder, 12_800, 5),
}


def twice(call: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - began)
    return {"first, s": seconds[0], "second, s": seconds[1]}, found


def here(asked: argparse.Namespace) -> None:
    """This process's platform: one JSON line a job."""
    warnings.simplefilter("ignore")
    for name in asked.only or JOBS:
        try:
            found = JOBS[name](asked.quick)
        except Exception as error:  # a job that fails does not end the others
            found = {"says": f"{type(error).__name__}: {error}"[:200]}
        print(
            json.dumps({"job": name} | {k: v if isinstance(v, str) else float(v) for k, v in found.items()}), flush=True
        )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--platforms", nargs="+", default=PLATFORMS)
    parser.add_argument("--only", nargs="+", choices=list(JOBS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        return here(asked)
    jax.config.update("jax_platforms", "cpu")  # this process only starts others: a GPU's memory is theirs
    say_where("The same posteriors on each device")
    head = ["first, s", "second, s", "ms a step", "mean off, sds", "sd ratio", "nats a row", "says"]
    lines: list[list[Any]] = []
    for each in asked.platforms:
        platform, _, precision = each.partition(":")
        environment = os.environ | {"JAX_PLATFORMS": platform}
        if precision:
            environment["JAX_DEFAULT_MATMUL_PRECISION"] = precision
        command = [sys.executable, __file__, "--here", *(["--quick"] if asked.quick else [])]
        command += ["--only", *asked.only] if asked.only else []
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        numbers = [[one.get(name, float("nan")) for name in head[:-1]] for one in found]
        lines += [[one["job"], each, *those, one.get("says", "")] for one, those in zip(found, numbers, strict=True)]
    lines.sort(key=lambda line: list(JOBS).index(line[0]))
    table(["job", "on", *head], lines)
    record(
        __file__, ["job", "on", *head], lines, names=2, columns=["first, s", "second, s", "mean off, sds", "sd ratio"]
    )


if __name__ == "__main__":
    main()
