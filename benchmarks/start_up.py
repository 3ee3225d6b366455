"""How long until the first answer: importing, whole jobs beside peers, and a second fit of the same model?

A job is a whole process, with interpreter and imports: it runs once with an empty cache of compiled programs, and once
more with the cache that the first run filled. All candidates use JAX's own settings for the cache. The import is that
of all modules that ``infer`` needs. Both wall seconds and processor seconds (user and system) are shown; the latter
depend less on other work on the machine. Python's bytecode exists already, as after any second start.

Predicted, on an idle machine: the import takes at most 1.1 times as long as NumPyro's. Help and errors take 1 s. The
coin by NUTS takes 5 s, and 2.5 s the second time; NUTS on a table of 1,000 rows takes 10 s and 4 s. ``tractable fit``
of a small table uses less than 450 MB. A second ``infer`` of the same model compiles nothing.

    python benchmarks/start_up.py [--quick]
"""

import argparse
import compileall
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

from measuring import arguments, record, table

import tractable

ALL = "import tractable as tr; tr.infer, tr.models, tr.NUTS"
TABLE = """
import numpy as np
draw = np.random.default_rng(0)
x = draw.normal(size=(1000, 5)).astype(np.float32)
y = (draw.random(1000) < 1 / (1 + np.exp(-x @ np.arange(5) / 3))).astype(np.int32)
"""
COIN = "import numpy as np; y = np.tile([1, 0, 1, 1, 1, 0, 1, 1, 0, 1], 10)"
OURS = """
import numpyro.distributions as dist, tractable as tr
model = tr.Model(prior={prior}, likelihood={likelihood})
posterior = tr.infer(model, tr.Data(y{given}), tr.NUTS(), progress=False)
print(posterior.summary(), posterior.report().verdict)
"""
NUMPYRO = """
import jax, numpyro, numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
def model(): {body}
sizes = dict(num_warmup=1000, num_samples=1000, num_chains=4)
chains = MCMC(NUTS(model), chain_method="vectorized", progress_bar=False, **sizes)
chains.run(jax.random.key(0))
chains.print_summary()
"""
BLACKJAX = """
import blackjax, jax, jax.numpy as jnp
def chain(key):
    warm, draw = jax.random.split(key)
    adapt = blackjax.window_adaptation(blackjax.nuts, log_density, adaptation_info_fn=lambda *_: ())
    (state, parameters), _ = adapt.run(warm, start, num_steps=1000)
    step = blackjax.nuts(log_density, **parameters).step
    def once(state, key):
        state, _ = step(key, state)
        return state, state.position
    return jax.lax.scan(once, state, jax.random.split(draw, 1000))[1]
{density}
draws = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 4))
print(draws.mean((0, 1)), draws.std((0, 1)), blackjax.diagnostics.potential_scale_reduction(draws))
"""
JOBS = {
    "coin": {
        "tractable": COIN + OURS.format(
            prior='{"p": dist.Beta(5, 5)}', likelihood='lambda t: dist.Bernoulli(t["p"])', given=""
        ),
        "numpyro": COIN + NUMPYRO.format(
            body='numpyro.sample("y", dist.Bernoulli(numpyro.sample("p", dist.Beta(5, 5))), obs=y)'
        ),
        "blackjax": COIN + BLACKJAX.format(density="""
log_density = lambda z: jnp.sum(y * jax.nn.log_sigmoid(z) + (1 - y) * jax.nn.log_sigmoid(-z)) + 5 * (
    jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z))
start = jnp.zeros(())
"""),
    },
    "1,000 rows": {
        "tractable": TABLE + OURS.format(
            prior='{"w": dist.Normal(0, 1).expand([5]).to_event(1)}', given=", given=x",
            likelihood='lambda t, x: dist.Bernoulli(logits=x @ t["w"])',
        ),
        "numpyro": TABLE + NUMPYRO.format(
            body='w = numpyro.sample("w", dist.Normal(0, 1).expand([5]).to_event(1)); '
            'numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)'
        ),
        "blackjax": TABLE + BLACKJAX.format(density="""
log_density = lambda w: jnp.sum(y * (x @ w) - jnp.logaddexp(0.0, x @ w)) - 0.5 * w @ w
start = jnp.zeros(5)
"""),
    },
}  # fmt: skip
BY = {"tractable": "NUTS", "numpyro": "NumPyro", "blackjax": "BlackJAX"}
METHODS = {"map": {}, "rejection": {}, "mala": {}, "nuts": {}, "sgld": {}}


def fresh(code: str) -> tuple[float, float]:
    """Wall and processor seconds of ``code`` in a new interpreter, without the interpreter's own start."""
    clocks = "time.perf_counter(), time.process_time()"
    timed = f"import time; _a, _b = {clocks}\n{code}\n_c, _d = {clocks}\nprint(_c - _a, _d - _b)"
    said = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout.split()
    return float(said[-2]), float(said[-1])


def whole(command: list[str], cache: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MB of a whole process, whose programs are kept in ``cache``."""
    keep = {
        "JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    began = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | keep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


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


def jobs(repeats: int) -> None:
    """Whole jobs, the candidates in turn."""
    rows, small = [], pathlib.Path(tempfile.mkdtemp()) / "small.csv"
    exec(TABLE, numbers := {})
    lines = [",".join([*map(str, row), str(y)]) for row, y in zip(numbers["x"][:200], numbers["y"], strict=False)]
    small.write_text("\n".join(["a,b,c,d,e,y", *lines]))
    tool = str(pathlib.Path(sys.executable).with_name("tractable"))
    commands = {"tractable --help": [tool, "--help"], "tractable report nosuch": [tool, "report", "nosuch"]}
    fit = [tool, "fit", str(small), "--target", "y", "--out"]
    commands |= {"tractable fit of 200 rows": fit}
    for job, codes in JOBS.items():
        there = {who: code for who, code in codes.items() if importlib.util.find_spec(who)}
        commands |= {f"{job} by {BY[who]}": [sys.executable, "-c", code] for who, code in there.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as cache:
                out = [[str(pathlib.Path(cache) / f"run{i}")] if command is fit else [] for i in range(2)]
                first, second = (whole(command + out[i], cache + "/programs") for i in range(2))
                found[name].append([*first[:2], *second[:2], first[2]])
    rows = [[name, *map(statistics.median, zip(*taken, strict=True))] for name, taken in found.items()]
    print("### Whole jobs: processes from start to end\n")
    head = ["job", "first, s", "first, CPU s", "second, s", "second, CPU s", "MB at most"]
    table(head, rows)
    record(__file__, head, rows)
    print()


def child(method: str) -> None:
    """Cold: import, build, infer, verdict; then again, counting what is compiled."""
    began = time.perf_counter()
    import jax

    import tractable as tr
    from tractable.engine import run as loop
    from tractable.gallery.models import example
    from tractable.methods import from_settings

    ready = time.perf_counter()
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    warnings.simplefilter("ignore")
    times, counts, traces = [], [], []
    for seed in (0, 0, 1):
        model, data, _ = example("beta-bernoulli").build()
        before, traced, start = len(compiled), loop.traces, time.perf_counter()
        posterior = tr.infer(model, data, from_settings({"method": method}), seed=seed, progress=False)
        verdict = posterior.report().verdict
        times.append(time.perf_counter() - start)
        counts.append(len(compiled) - before)
        traces.append(loop.traces - traced)
    print(json.dumps([ready - began, times, counts, traces, verdict]))


def answers(repeats: int) -> None:
    rows = []
    for method in METHODS:
        command = [sys.executable, __file__, "--child", method]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
            for _ in range(repeats)
        ]
        imports_, first, second = (
            statistics.median(values)
            for values in ([r[0] for r in runs], [r[1][0] for r in runs], [r[1][1] for r in runs])
        )
        _, _, counts, traces, verdict = runs[0]
        rows.append(
            [
                method,
                imports_,
                first,
                imports_ + first,
                second,
                counts[0],
                counts[1],
                counts[2],
                traces[1] + traces[2],
                verdict,
            ]
        )
    print("### The coin example in a fresh process: seconds, and programs compiled\n")
    table(
        ["method", "import", "first fit", "cold answer", "second fit", "compiled by the first", "by the second",
         "by a third, another seed", "loop traces after the first", "verdict"],
        rows,
    )  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    compileall.compile_dir(tractable.__path__[0], quiet=1)
    print("## How long until the first answer?\n")
    if args.quick:
        global METHODS
        METHODS = {"map": {}}
    imports(1 if args.quick else 7)
    jobs(1 if args.quick else 5)
    answers(1 if args.quick else 3)


if __name__ == "__main__":
    main()
