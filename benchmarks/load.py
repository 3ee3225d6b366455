"""How much can one process hold: rows, parameters, classes, columns, fits, time?

Each case runs in a process of its own. It reports the seconds, the peak of memory above the memory after the imports,
and the outcome: a verdict, or the message of the error. "flat" cases report how much memory grew from the first fifth
of the work to its end.

Predicted: memory is proportional to the data (two copies: the caller's and the device's). It does not grow with the
number of fits or with time. Work that does not fit in memory is refused before it begins.

    python -W ignore benchmarks/load.py [--only CASE ...] [--minutes 10] [--quick]
"""

import gc
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from measuring import arguments, record, say_where, table

MIB = 2**20


def resident() -> float:
    return psutil.Process().memory_info().rss / MIB


def maps() -> int:
    path = Path("/proc/self/maps")
    return len(path.read_text().splitlines()) if path.exists() else 0


def verdict(posterior) -> str:
    return posterior.report().verdict


def linear(rows: int, columns: int) -> str:
    from tractable.estimators import BayesianLinearRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns), np.float32)
    y = X @ rng.normal(size=columns).astype(np.float32) + rng.standard_normal(rows, np.float32)
    return verdict(BayesianLinearRegression(random_state=0).fit(X, y).posterior_)


def logistic(rows: int, columns: int) -> str:
    from tractable.estimators import BayesianLogisticRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns), np.float32)
    y = X @ rng.normal(size=columns).astype(np.float32) / 3 + rng.logistic(size=rows) > 0
    return verdict(BayesianLogisticRegression(random_state=0).fit(X, y).posterior_)


def classes(count: int, columns: int = 5) -> str:
    from tractable.estimators import BayesianLogisticRegression

    rng = np.random.default_rng(0)
    X = rng.standard_normal((3 * count, columns), np.float32)
    return verdict(BayesianLogisticRegression(random_state=0).fit(X, np.arange(len(X)) % count).posterior_)


def sized(size: int, method: str) -> str:
    """Independent normals of sds between 0.5 and 2."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import tractable as tr

    model = tr.Model({"a": dist.Normal(jnp.zeros(size), jnp.linspace(0.5, 2.0, size)).to_event(1)})
    methods = {"nuts": tr.NUTS(chains=2, draws=100, warmup=300), "meanfield": tr.MeanField()}
    return verdict(tr.infer(model, None, methods[method], progress=False))


def columns(count: int) -> str:
    """A CSV of 400 rows, learnt from the command line."""

    from tractable.cli import main

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, count)).round(3)
    names = [f"x{i}" for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        table = np.column_stack([X, (X[:, 0] + rng.normal(size=400)).round(3)])
        np.savetxt(f"{folder}/t.csv", table, fmt="%g", delimiter=",", header=",".join([*names, "y"]), comments="")
        sys.argv = ["tractable", "fit", f"{folder}/t.csv", "--target", "y", "--out", f"{folder}/run", "--quiet"]
        try:
            main()
        except SystemExit as left:
            if left.code:
                return f"exit code {left.code}"
        return "learnt" if (Path(folder) / "run" / "report.html").exists() else "no page"


def growth(work: Callable[[int], None], times: int) -> str:
    seen = []
    for i in range(times):
        work(i)
        if i % max(1, times // 20) == 0 or i == times - 1:
            gc.collect()
            seen.append((resident(), maps()))
    (at, mapped), (end, mapped_end) = seen[len(seen) // 5], seen[-1]
    return f"{end - at:+.0f} MiB, {mapped_end - mapped:+d} memory maps of {mapped_end}"


def equal_fits(times: int) -> str:
    """New models that are equal."""
    import numpyro.distributions as dist

    import tractable as tr

    rows = tr.Data(np.random.default_rng(0).normal(size=50))

    def work(i: int) -> None:
        model = tr.Model({"a": dist.Normal(0.0, 1.0)}, lambda p: dist.Normal(p["a"], 1.0))
        tr.infer(model, rows, tr.Laplace(), seed=i, progress=False).summary()

    return growth(work, times)


def unlike_fits(times: int) -> str:
    """An estimator on tables of different sizes."""
    from tractable.estimators import BayesianLinearRegression

    rng = np.random.default_rng(0)

    def work(i: int) -> None:
        X = rng.normal(size=(30 + i, 1 + i % 7))
        BayesianLinearRegression(random_state=0).fit(X, X[:, 0] + rng.normal(size=len(X)))

    return growth(work, times)


def long_run(minutes: float) -> str:
    """SGLD for so many minutes, with draws written to a folder: growth of memory after the first fifth of the time."""
    import tractable as tr
    from tractable.core.errors import TractableError
    from tractable.gallery.models import EXAMPLES

    model, data = EXAMPLES["beta-bernoulli"].build()[:2]
    ends = time.monotonic() + 60 * minutes
    seen = []

    def progress(phase: str, done: int, of: int) -> None:
        seen.append((time.monotonic(), resident()))
        if time.monotonic() > ends:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        method = tr.SGLD(chains=2, warmup=100, draws=10**9, thin=20, batch_size=20, step_size=0.01)
        try:
            tr.infer(model, data, method, draws=f"{folder}/draws", progress=progress, verify=None)
        except (KeyboardInterrupt, TractableError) as error:
            if not seen:
                return f"{type(error).__name__}: {error}"
    fifth = next(memory for when, memory in seen if when > ends - 48 * minutes)
    return f"{seen[-1][1] - fifth:+.0f} MiB"


CASES: dict[str, tuple[Callable, tuple]] = {
    "linear, 10⁷ × 10": (linear, (10**7, 10)),
    "linear, 10⁶ × 100": (linear, (10**6, 100)),
    "logistic, 10⁶ × 100": (logistic, (10**6, 100)),
    "1,000 classes": (classes, (1_000,)),
    "10,000 classes": (classes, (10_000,)),
    "NUTS, 10⁵ parameters": (sized, (10**5, "nuts")),
    "MeanField, 10⁵ parameters": (sized, (10**5, "meanfield")),
    "CSV of 5,000 columns": (columns, (5_000,)),
    "200 fits of equal fresh models": (equal_fits, (200,)),
    "200 fits of unlike sizes": (unlike_fits, (200,)),
}


def child(name: str, minutes: float, quick: bool, pipe) -> None:
    import warnings

    warnings.simplefilter("ignore")
    from tractable.core.errors import TractableError

    work, given = (long_run, (minutes,)) if name == "SGLD for long" else CASES[name]
    if quick:
        given = tuple(max(5, g // 100) if isinstance(g, int) and g > 99 else g for g in given)
    before, began = resident(), time.monotonic()
    try:
        found = work(*given)
    except (TractableError, MemoryError) as error:
        found = f"{type(error).__name__}: {error}"
    pipe.send((time.monotonic() - began, before, found))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", metavar="CASE")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the long run")
    options = parser.parse_args()
    say_where("Load")
    context, rows = multiprocessing.get_context("spawn"), []
    for name in options.only or [*CASES, "SGLD for long"]:
        here, there = context.Pipe()
        process = context.Process(target=child, args=(name, options.minutes, options.quick, there))
        process.start()
        there.close()
        highest = 0.0
        while process.is_alive():
            try:
                highest = max(highest, psutil.Process(process.pid).memory_info().rss / MIB)
            except psutil.NoSuchProcess:
                break
            process.join(0.05)
        try:
            taken, before, found = here.recv()
        except EOFError:  # the process was killed, or ended by an error that is not the library's
            taken, before, found = float("nan"), 0.0, f"ended with {process.exitcode}"
        rows.append([name, taken, highest - before, found])
        print(*rows[-1], file=sys.stderr, flush=True)
    head = ["what", "s", "peak, MiB", "result"]
    table(head, rows)
    record(__file__, head, rows)


if __name__ == "__main__":
    main()
