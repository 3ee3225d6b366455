"""Does predicting cost more than the matrix products it needs, and does its memory grow with the rows?

Draws of a 784-400-400-10 classifier predict rows on the host. `limit` is the time of the three matrix products alone,
of every draw with chunks of the same rows. Then the peak memory of new processes is measured. A network with one output
and noise, whose intervals need simulated data and a sort, is measured too.

Predicted: predicting takes at most a third more time than the products, however many rows there are, and memory grows
only by the rows of the answer.

    python benchmarks/prediction.py [--quick] [--only time|memory] [--rows N] [--draws S]
"""

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable.posterior.predict import predict

WIDTHS = (784, 400, 400)
CHUNK = 2048  # rows of a bare product


def network(outputs: int) -> tr.Model:
    """A network with two hidden layers, for classes or for one number with noise."""
    widths = (*WIDTHS, outputs)
    prior = {f"w{i}": dist.Normal(jnp.zeros(shape), 1.0) for i, shape in enumerate(itertools.pairwise(widths))}

    def likelihood(params, x):
        out = jax.nn.relu(jax.nn.relu(x @ params["w0"]) @ params["w1"]) @ params["w2"]
        return dist.Normal(out[0], 0.5) if outputs == 1 else dist.Categorical(logits=out)

    return tr.Model(prior, likelihood)


def draws_of(outputs: int, draws: int) -> dict[str, np.ndarray]:
    """Weights of a network at its start."""
    generator, widths = np.random.default_rng(0), (*WIDTHS, outputs)
    out = {}
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        out[f"w{i}"] = generator.standard_normal((draws, a, b), dtype=np.float32)
        out[f"w{i}"] *= np.float32((2 / a) ** 0.5)
    return out


def products(params: dict[str, np.ndarray], x: np.ndarray):
    """Only the same products; the sums prevent the compiler from removing them."""
    params = jax.tree.map(jnp.asarray, params)

    @jax.jit
    def go(params, x):
        def draw(total, theta):
            return total + jnp.sum(jax.nn.relu(jax.nn.relu(x @ theta["w0"]) @ theta["w1"]) @ theta["w2"]), None

        return jax.lax.scan(draw, jnp.float32(0), params)[0]

    def run():
        return [go(params, x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]

    return run


def times(rows: int, draws: int, repeats: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, WIDTHS[0]), dtype=np.float32)
    weights = np.full(draws, 1 / draws)
    out = []
    for name, outputs in (("10 classes", 10), ("1 number", 1)):
        model, params = network(outputs), draws_of(outputs, draws)

        def ours(model=model, params=params):
            return predict(model, params, weights, x)

        seconds = medians({"ours": ours, "limit": products(params, x)}, repeats)
        work = 2 * rows * draws * sum(a[0].size for a in params.values()) / 1e9
        out.append(
            [name, seconds["ours"], seconds["limit"], seconds["ours"] / seconds["limit"], work / seconds["ours"]]
        )
    print(f"### Seconds for {rows:,} rows × {draws} draws of 784-400-400-C\n")
    head = ["predicted", "predict", "limit", "÷ limit", "Gflop/s"]
    table(head, out)
    record(__file__, head, out, columns=["÷ limit"])


def child(rows: int, draws: int) -> None:
    """One prediction in a process of its own; prints its peak memory, and the memory of the inputs and draws."""
    x = np.random.default_rng(1).standard_normal((rows, WIDTHS[0]), dtype=np.float32)
    params = draws_of(10, draws)
    predict(network(10), params, np.full(draws, 1 / draws), x)
    # ru_maxrss keeps its value over exec, so it would show the parent's memory; the kernel's VmHWM does not.
    status = pathlib.Path("/proc/self/status").read_text()
    given = x.nbytes + sum(a.nbytes for a in params.values())
    print(json.dumps([int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024, given / 2**20]))


def memory(sizes: list[tuple[int, int]]) -> None:
    out = []
    for rows, draws in sizes:
        done = subprocess.run(
            [sys.executable, __file__, "--child", str(rows), str(draws)], capture_output=True, text=True
        )
        if done.returncode:
            print(f"{rows} rows, {draws} draws failed: {done.stderr.strip().splitlines()[-1]}\n")
            continue
        peak, given = json.loads(done.stdout.split("\n")[-2])
        out.append([rows, draws, peak, given, peak - given])
    print("### Peak memory of a fresh process, MB, 10 classes\n")
    head = ["rows", "draws", "peak", "inputs and draws", "the rest"]
    table(head, out)
    record(__file__, ["", *head[2:]], [[f"{row[0]:,} rows × {row[1]} draws", *row[2:]] for row in out])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("time", "memory"))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*map(int, args.child))
        return
    rows, draws = (2_000, 4) if args.quick else (args.rows, args.draws)
    say_where("Does predicting cost more than the products it needs?")
    if args.only != "memory":
        times(rows, draws, 1 if args.quick else 3)
    if args.only != "time":
        memory([(rows, 1), (rows, draws)] if args.quick else [(1000, 1), (rows, 1), (1000, draws), (rows, draws)])


if __name__ == "__main__":
    main()
