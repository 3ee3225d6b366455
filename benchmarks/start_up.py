"""How long until the first answer, and on what is it spent?

A job is a process from its start to its answer, with interpreter and imports. It runs three times: with an empty cache
of compiled programs, with the cache that the first run filled, and with that cache and other numbers of the same shape.
Without ``--data``, ``tractable fit`` gets a table of 720 simulated customers. The phases are those that the library
tells (``posterior.seconds``, and the last line of ``tractable fit``). Processor seconds (user and system) depend less
on other work on the machine than wall seconds. All candidates use JAX's own settings for the cache, and run in turn.
Python's bytecode exists already, as after any second start.

Predicted, on an idle machine: the import takes at most 1.1 times as long as NumPyro's. Help and errors take 0.8 s. The
coin by NUTS takes no longer than by NumPyro. A second ``infer`` of the same model compiles nothing.

    python benchmarks/start_up.py [--repeats N] [--jobs NAMES] [--data DIR] [--peers PYTHON]
"""

import compileall
import importlib.util
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from measuring import arguments, record, table

import tractable

if TYPE_CHECKING:
    import pandas as pd

ALL = "import tractable as tr; tr.infer, tr.models, tr.NUTS"
# Each job's numbers, drawn with the seed that is the process's argument.
COIN = "y = draw.binomial(1, 0.6, 100)"
SCHOOLS = """
sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]) + (seed > 0) * draw.normal(size=8)
"""
ROWS = """
x = draw.normal(size=(1000, 5)).astype(np.float32)
y = (draw.random(1000) < 1 / (1 + np.exp(-x @ np.arange(5) / 3))).astype(np.int32)
"""
CURVE = """
x = draw.uniform(-1, 1, size=(300, 1)).astype(np.float32)
y = np.sin(3 * x[:, 0]) + draw.normal(0, 0.1, 300).astype(np.float32)
"""
SEED = "import sys, numpy as np; seed = int(sys.argv[1]); draw = np.random.default_rng(seed)\n"
OURS = """
import numpyro.distributions as dist, tractable as tr
from tractable.core.clock import Stopwatch
watch = Stopwatch(whole_process=True)
tr.infer, tr.models, tr.NUTS
imported = watch.phases({{}}, "importing")
model = {model}
posterior = tr.infer(model, {data}, {method}, progress=False)
print(posterior.summary(), posterior.report().verdict)
phases = watch.phases(imported | posterior.seconds, "showing")
print("(" + ", ".join(f"{{name}} {{seconds:.3f}}" for name, seconds in phases.items()) + ")")
"""
NUMPYRO = """
import jax, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
s = numpyro.sample
def model(): {body}
sizes = dict(num_warmup=1000, num_samples=1000, num_chains=4)
chains = MCMC(NUTS(model), chain_method="vectorized", progress_bar=False, **sizes)
chains.run(jax.random.key(0))
chains.print_summary()
"""
NUTPIE = """
import nutpie, pymc as pm
with pm.Model() as model:
    {body}
print(nutpie.sample(nutpie.compile_pymc_model(model), tune=1000, draws=1000, chains=4, seed=0, progress_bar=False))
"""
STANLI = """
import stanli
model = stanli.Model(stan_code="data {{ {data} }} parameters {{ {parameters} }} model {{ {body} }}", data={given})
print(model.sample(seed=1, chains=4, warmup=1000, samples=1000, refresh=0).summary())
"""
JOBS = {
    "coin": COIN, "eight schools": SCHOOLS, "1,000 rows": ROWS, "network by Bayes by Backprop": CURVE,
    "network by HMC, as for tables": CURVE,
}  # fmt: skip
CODES = {
    "coin": {
        "tractable": OURS.format(
            model='tr.Model({"p": dist.Beta(5, 5)}, lambda t: dist.Bernoulli(t["p"]))', data="tr.Data(y)",
            method="tr.NUTS()",
        ),
        "numpyro": NUMPYRO.format(body='s("y", dist.Bernoulli(s("p", dist.Beta(5, 5))), obs=y)'),
        "nutpie": NUTPIE.format(body='pm.Bernoulli("y", pm.Beta("p", 5, 5), observed=y)'),
        "stanli": STANLI.format(
            data="array[100] int y;", parameters="real<lower=0, upper=1> p;", body="p ~ beta(5, 5); y ~ bernoulli(p);",
            given='{"y": y}',
        ),
    },
    "eight schools": {
        "tractable": OURS.format(
            model='tr.Model({"mu": dist.Normal(0, 5), "tau": dist.HalfCauchy(5), '
            '"z": dist.Normal(0, 1).expand([8]).to_event(1)}, '
            'lambda t, x: dist.Normal(t["mu"] + t["tau"] * t["z"][x["school"]], x["sd"]))',
            data='tr.Data(y, given={"school": np.arange(8), "sd": sd})', method="tr.NUTS()",
        ),
        "numpyro": NUMPYRO.format(
            body='s("y", dist.Normal(s("mu", dist.Normal(0, 5)) + s("tau", dist.HalfCauchy(5)) * '
            's("z", dist.Normal(0, 1).expand([8])), sd), obs=y)'
        ),
        "nutpie": NUTPIE.format(
            body='pm.Normal("y", pm.Normal("mu", 0, 5) + pm.HalfCauchy("tau", 5) * pm.Normal("z", shape=8), sd, '
            'observed=y)'
        ),
        "stanli": STANLI.format(
            data="vector[8] y; vector[8] sd;", parameters="real mu; real<lower=0> tau; vector[8] z;",
            body="mu ~ normal(0, 5); tau ~ cauchy(0, 5); z ~ std_normal(); y ~ normal(mu + tau * z, sd);",
            given='{"y": y, "sd": sd}',
        ),
    },
    "1,000 rows": {
        "tractable": OURS.format(
            model='tr.Model({"w": dist.Normal(0, 1).expand([5]).to_event(1)}, '
            'lambda t, x: dist.Bernoulli(logits=x @ t["w"]))', data="tr.Data(y, given=x)", method="tr.NUTS()",
        ),
        "numpyro": NUMPYRO.format(
            body='s("y", dist.Bernoulli(logits=x @ s("w", dist.Normal(0, 1).expand([5]).to_event(1))), obs=y)'
        ),
        "nutpie": NUTPIE.format(body='pm.Bernoulli("y", logit_p=x @ pm.Normal("w", shape=5), observed=y)'),
        "stanli": STANLI.format(
            data="array[1000] int y; matrix[1000, 5] x;", parameters="vector[5] w;",
            body="w ~ std_normal(); y ~ bernoulli_logit(x * w);", given='{"y": y, "x": x}',
        ),
    },
    **{
        f"network by {name}": {
            "tractable": OURS.format(
                model="tr.models.neural_network(tr.models.mlp(1, (20,), 1))", data="tr.Data(y, given=x)", method=method
            ),
        }
        for name, method in {
            "Bayes by Backprop": "tr.BayesByBackprop()",
            "HMC, as for tables": "tr.HMC(chains=2, warmup=300, draws=300, leapfrogs=30)",
        }.items()
    },
}  # fmt: skip
BY = {"tractable": "NUTS", "numpyro": "NumPyro", "nutpie": "nutpie", "stanli": "stanli"}
RUNS = ("first", "second", "other numbers")


class Used(NamedTuple):
    """What a whole process used."""

    wall: float
    cpu: float
    megabytes: float
    phases: dict[str, float]  # seconds by phase, if the process tells them


def fresh(code: str) -> tuple[float, float]:
    """Wall and processor seconds of ``code`` in a new interpreter, without the interpreter's own start."""
    clocks = "time.perf_counter(), time.process_time()"
    timed = f"import time; _a, _b = {clocks}\n{code}\n_c, _d = {clocks}\nprint(_c - _a, _d - _b)"
    said = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout.split()
    return float(said[-2]), float(said[-1])


def whole(command: list[str], cache: str) -> Used:
    """What a process uses whose programs are kept in ``cache``."""
    keep = {
        "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=os.environ | keep, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        took = time.perf_counter() - began
        out.seek(0)
        told = re.findall(r"\((importing [^()]*)\)", out.read())
    if status and "nosuch" not in command:
        raise RuntimeError(f"This process failed: {command}")
    pairs = re.findall(r"([a-z-]+) ([\d.]+)", told[-1]) if told else []
    # Linux counts this process's memory as the new process's, up to where that begins another program.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = used.ru_maxrss / 1024 if used.ru_maxrss > own else float("nan")
    return Used(took, used.ru_utime + used.ru_stime, most, {name: float(number) for name, number in pairs})


def imports(repeats: int) -> None:
    names = {"numpyro": "import numpyro", "all that infer needs": ALL, "import tractable": "import tractable"}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, code in names.items():
            seconds[name].append(fresh(code))
    medians = {name: [statistics.median(of) for of in zip(*taken, strict=True)] for name, taken in seconds.items()}
    wall, cpu = medians["numpyro"]
    print("### Importing\n")
    table(
        ["what", "seconds", "of NumPyro's", "CPU s", "of NumPyro's"],
        [[name, taken, taken / wall, used, used / cpu] for name, (taken, used) in medians.items()],
    )
    print()


def commands(peers: str | None, data: str | None, folder: pathlib.Path) -> dict[str, list[list[str]]]:
    """By job and candidate, the commands of the three runs; ``folder`` gets the tables of ``tractable fit``."""
    tool = str(pathlib.Path(sys.executable).with_name("tractable"))
    found = {f"tractable {ask}": [[tool, *ask.split()]] * 3 for ask in ("--help", "report nosuch")}
    for job, numbers in JOBS.items():
        for who, code in CODES[job].items():
            python = sys.executable if importlib.util.find_spec(who) else peers or ""
            if not python or subprocess.call([python, "-c", f"import {who}"], stderr=subprocess.DEVNULL):
                continue
            name = job if job.startswith("network") else f"{job} by {BY[who]}"
            found[name] = [[python, "-c", SEED + numbers + code, seed] for seed in "001"]
    import pandas as pd

    path, other = folder / "customers.csv", folder / "other.csv"
    frame = customers() if data is None else pd.read_csv(pathlib.Path(data) / "tables" / "customers.csv")
    frame.to_csv(path, index=False)
    frame.assign(tickets=frame["tickets"].sample(frac=1, random_state=0).to_numpy()).to_csv(other, index=False)
    fit = [tool, "fit", "--target", "tickets", "--missing", "impute", "--out"]
    found["tractable fit of 720 rows"] = [
        [*fit, str(folder / f"run{i}"), str(rows)] for i, rows in enumerate((path, path, other))
    ]
    return found


def customers() -> "pd.DataFrame":
    """A table of 720 rows: names, dates, text, yes or no, numbers with gaps, and counts that depend on some of them."""
    import pandas as pd

    draw, n = np.random.default_rng(0), 720
    plan, age = draw.integers(0, 3, n), draw.normal(40, 12, n).round()
    rate = np.exp(0.6 * (plan == 2) - 0.4 * (plan == 0) + 0.02 * (age - 40))
    table = {
        "customer_id": 100_000 + np.arange(n), "region": draw.choice(["North", "East", "South", "West"], n),
        "plan": np.array(["free", "basic", "pro"])[plan],
        "signup": pd.Timestamp("2022-10-01") + pd.to_timedelta(draw.integers(0, 1000, n), "D"),
        "age": np.where(draw.random(n) < 0.05, np.nan, age), "revenue": draw.gamma(2, 20, n).round(2),
        "newsletter": draw.choice(["yes", "no"], n), "spend": draw.normal(8, 3, n).round(2),
        "tickets": draw.negative_binomial(2, 2 / (2 + rate)),
    }  # fmt: skip
    return pd.DataFrame(table)


def jobs(repeats: int, chosen: str | None, peers: str | None, data: str | None) -> None:
    """Whole jobs, the candidates in turn."""
    found: dict[str, list[list[Used]]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for name, runs in commands(peers, data, pathlib.Path(folder)).items():
                if chosen is None or any(name.startswith(start) for start in chosen.split(";")):
                    cache = str(pathlib.Path(folder) / f"programs of {name}")
                    found.setdefault(name, []).append([whole(command, cache) for command in runs])
    head = ["job", *(f"{run}, {unit}" for run in RUNS for unit in ("s", "CPU s", "MB at most"))]
    median = {
        name: [[statistics.median(of) for of in zip(*(take[i][:3] for take in taken), strict=True)] for i in range(3)]
        for name, taken in found.items()
    }
    rows = [[name, *(value for run in runs for value in run)] for name, runs in median.items()]
    print("### Whole jobs: processes from start to end\n")
    table(head, rows)
    told = {name: taken for name, taken in found.items() if taken[0][0].phases}
    names = list(dict.fromkeys(phase for taken in told.values() for run in taken[0] for phase in run.phases))
    print("\n### What the time was spent on, s\n")
    table(
        ["job", "run", *names],
        [[name, run, *(statistics.median(take[i].phases.get(phase, 0.0) for take in taken) for phase in names)]
         for name, taken in told.items() for i, run in enumerate(RUNS)],
    )  # fmt: skip
    record(__file__, head, rows)


def main() -> None:
    parser = arguments(__doc__, data=True)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each job, the jobs in turn")
    parser.add_argument("--jobs", metavar="NAMES", help="beginnings of jobs' names, with semicolons between them")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python with nutpie and PyMC, or with stanli")
    args = parser.parse_args()
    repeats = 1 if args.quick else args.repeats
    compileall.compile_dir(tractable.__path__[0], quiet=1)
    print("## How long until the first answer?\n")
    imports(repeats)
    jobs(repeats, "coin by NUTS" if args.quick else args.jobs, args.peers, args.data)


if __name__ == "__main__":
    main()
