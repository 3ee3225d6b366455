"""Does a K-sample bound cost more than the products it needs, and does its memory grow with rows or draws?

The bound is log (1/K) Σ_k p(x, h_k) / q(h_k | x) of held-out images, for a belief network 784-200 and a variational
autoencoder 784-200-200-50. `limit` is the time of the matrix products alone: of as many draws with the generative
weights, in parts of the same size as ours. `and sigmoids` adds the log σ of every pixel, which every such bound needs.
Then the peak memory of new processes is measured, above that of a bound of one row.

Predicted: the belief network takes twice the time of its products, because a pixel's log σ costs about as much as its
200 multiplications. The autoencoder, which has twice as many products, takes 1.5 times. Memory is the same for all
sizes.

    python benchmarks/k_sample.py [--quick] [--only time|memory] [--rows N] [--samples K]
"""

import functools
import itertools
import json
import pathlib
import resource
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable.ladders.bounds import bounds

PIXELS, PART = 784, 8192  # draws · rows of a bare product
LADDERS: dict[str, tuple[Callable[[], tr.models.Ladder], tuple[int, ...]]] = {
    "belief network": (lambda: tr.models.sigmoid_belief_network(PIXELS, (200,)), (200,)),
    "autoencoder": (lambda: tr.models.latent_gaussian(PIXELS, 50, hidden=(200, 200)), (50, 200, 200)),
}


def images(rows: int) -> np.ndarray:
    """Random binary pixels; their values do not change the time."""
    return (np.random.default_rng(0).random((rows, PIXELS)) < 0.2).astype(np.float32)


def evaluated(name: str, rows: int, samples: int) -> Callable:
    ladder = LADDERS[name][0]()
    data = tr.Data(images(rows))
    params = ladder.initial(jax.random.key(0), data.rows[0])
    return lambda: bounds(ladder, params, data, jax.random.key(1), samples).log_evidence


def products(name: str, rows: int, samples: int, sigmoids: bool) -> Callable:
    """Only the products of the generative network; the sums prevent the compiler from removing the products."""
    widths = (*LADDERS[name][1], PIXELS)
    keys = jax.random.split(jax.random.key(0), len(widths))
    weights = [jax.random.normal(k, (a, b)) / a**0.5 for k, a, b in zip(keys[1:], widths[:-1], widths[1:], strict=True)]
    h = jax.random.normal(keys[0], (PART, widths[0]))
    times = -(-rows * samples // PART)

    @functools.partial(jax.jit, static_argnames="count")
    def go(weights: list, h: jax.Array, count: int) -> jax.Array:
        def part(total: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            out = h + t
            for i, w in enumerate(weights):
                out = (jnp.tanh(out) if i else out) @ w
            out = jax.nn.log_sigmoid(out) if sigmoids else out
            return total + jnp.sum(out, 1), None

        return jax.lax.scan(part, jnp.zeros(PART), jnp.arange(count) * 1e-6)[0]

    return lambda: go(weights, h, times)


def times(rows: int, samples: int, repeats: int) -> None:
    out = []
    for name in LADDERS:
        seconds = medians(
            {
                "ours": evaluated(name, rows, samples),
                "limit": products(name, rows, samples, False),
                "sigmoids": products(name, rows, samples, True),
            },
            repeats,
        )
        widths = (*LADDERS[name][1], PIXELS)
        work = 2 * rows * samples * sum(a * b for a, b in itertools.pairwise(widths)) / 1e9
        out.append(
            [name, seconds["ours"], seconds["limit"], seconds["sigmoids"], seconds["ours"] / seconds["limit"],
             seconds["ours"] / seconds["sigmoids"], work / seconds["limit"]]
        )  # fmt: skip
    print(f"### Seconds for {rows:,} images, K = {samples:,}\n")
    head = ["ladder", "ours", "limit", "and sigmoids", "÷ limit", "÷ both", "limit, Gflop/s"]
    table(head, out)
    record(__file__, head, out)


def memory(sizes: list[tuple[int, int]]) -> None:
    def peak(name: str, rows: int, samples: int) -> float:
        asked = json.dumps([name, rows, samples])
        told = subprocess.run(
            [sys.executable, str(pathlib.Path(__file__)), "--child", asked], capture_output=True, text=True, check=True
        )
        return float(told.stdout.split()[-1])

    out = []
    for name in LADDERS:
        least = peak(name, 1, 1)
        out += [[name, n, k, peak(name, n, k) - least, n * PIXELS * 4 / 2**20] for n, k in sizes]
    print("### Peak memory above one row and one draw, MiB\n")
    table(["ladder", "images", "K", "MiB", "the images themselves"], out)


def main() -> None:
    parser = arguments(str(__doc__))
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--child", help="a memory measurement, as JSON")
    options = parser.parse_args()
    if options.child:
        evaluated(*json.loads(options.child))()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    rows, samples = (5, 50) if options.quick else (options.rows, options.samples)
    say_where("K-sample bounds")
    if options.only != "memory":
        times(rows, samples, 1 if options.quick else 3)
    if options.only != "time":
        memory([(5, 50)] if options.quick else [(100, 1000), (100, 5000), (1000, 1000)])


if __name__ == "__main__":
    main()
