"""How noisy is the gradient of a Bayesian network, and how long does it take, by the way its noise is drawn?

A 784-400-400-10 ReLU network has weights N(mean, sd²) and one batch of 128 examples, in float32. The gradient of the
batch's log likelihood with respect to (mean, sd) is computed many times, with new noise each time. The variance over
the noise, averaged over a layer's weights, is divided by the variance for one shared draw of the weights. The time of
noise, value and gradient is divided by the time of the deterministic network.

Predicted: local reparameterisation and Flipout have at most a tenth of a shared draw's variance if examples disagree,
because the sum over n examples no longer has covariances. Local reparameterisation takes less time than Flipout, and
both take at most 3 times as long as the deterministic gradient on a CPU.

    python benchmarks/weight_noise.py [--quick]
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from measuring import arguments, medians, record, say_where, table

from tractable.networks.weight_noise import flipout, local_reparameterisation, shared_draw

WAYS = {"shared draw": shared_draw, "local": local_reparameterisation, "Flipout": flipout}


def network(widths: list[int], batch: int):
    """The network's function, He's initial weights, and a batch whose inputs are half zeros, as in images."""
    generator = np.random.default_rng(0)

    def apply(params, x):
        for layer in range(len(widths) - 1):
            x = x @ params[f"w{layer}"] + params[f"b{layer}"]
            x = jax.nn.relu(x) if layer < len(widths) - 2 else x
        return x

    mean = {}
    for layer, (a, b) in enumerate(itertools.pairwise(widths)):
        mean[f"w{layer}"] = generator.normal(0, np.sqrt(2 / a), (a, b)).astype(np.float32)
        mean[f"b{layer}"] = np.zeros(b, np.float32)
    x = np.maximum(generator.standard_normal((batch, widths[0]), dtype=np.float32), 0)
    y = generator.integers(0, widths[-1], batch).astype(np.int32)
    return apply, jax.tree.map(jnp.asarray, mean), jnp.asarray(x), jnp.asarray(y)


def log_likelihood(logits: jax.Array, y: jax.Array) -> jax.Array:
    """The log likelihood, summed over the batch."""
    return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def noisy(make, apply, x: jax.Array, y: jax.Array):
    """(key, (mean, sd)) -> value and gradient with new noise."""

    def evaluate(key: jax.Array, q: tuple):
        way = make(apply, q[0], x[0])
        noise = jax.tree.map(lambda a: a[0], way.draw(key, 1, len(x)))
        return jax.value_and_grad(lambda q: log_likelihood(way.call(noise, *q, x), y))(q)

    return evaluate


def variances(evaluate, q: tuple, draws: int) -> list[float]:
    """Variance over the noise, averaged over each array of (mean, sd)."""

    @jax.jit
    def go(q: tuple) -> list:
        centre = evaluate(jax.random.key(0), q)[1]  # near the mean, so that squares about it lose no digits

        def step(sums: tuple, key: jax.Array):
            off = jax.tree.map(jnp.subtract, evaluate(key, q)[1], centre)
            first, second = sums
            return (jax.tree.map(jnp.add, first, off), jax.tree.map(lambda s, o: s + o * o, second, off)), None

        zero = jax.tree.map(jnp.zeros_like, q)
        (first, second), _ = jax.lax.scan(step, (zero, zero), jax.random.split(jax.random.key(1), draws))
        return [
            jnp.mean(b / draws - (a / draws) ** 2) * draws / (draws - 1)
            for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
        ]

    return [float(value) for value in go(q)]


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    widths, batch, draws, repeats = ([20, 8, 8, 3], 16, 20, 2) if args.quick else ([784, 400, 400, 10], 128, 200, 41)
    say_where("How noisy is the gradient of a Bayesian network, and how long does it take?")
    apply, mean, x, y = network(widths, batch)
    leaves = [f"{part} {name}" for part in ("mean", "sd") for name in sorted(mean)]
    kept = [i for i, leaf in enumerate(leaves) if " w" in leaf]  # the layers' weights, sorted as jax sorts them

    for sd in (0.01, 0.05):
        q = (mean, jax.tree.map(lambda a, sd=sd: jnp.full_like(a, sd), mean))
        found = {name: variances(noisy(make, apply, x, y), q, draws) for name, make in WAYS.items()}
        print(f"### Variance of the gradient over {draws} draws of noise, over that of a shared draw; sd = {sd}\n")
        table(
            ["way", *(leaves[i] for i in kept)],
            [[name, *(v[i] / found["shared draw"][i] for i in kept)] for name, v in found.items()],
        )

    means = [i for i in kept if leaves[i].startswith("mean")]
    q = (mean, jax.tree.map(lambda a: jnp.full_like(a, 0.05), mean))
    deterministic = jax.jit(
        jax.value_and_grad(lambda mean, x: log_likelihood(jax.vmap(apply, (None, 0))(mean, x), y)),
    )
    keys = itertools.cycle(jax.random.split(jax.random.key(2), 16))
    candidates = {"deterministic": lambda: deterministic(mean, x)}
    for name, make in WAYS.items():
        go = jax.jit(noisy(make, apply, x, y))
        candidates[name] = lambda go=go: go(next(keys), q)
    seconds = medians(candidates, repeats)
    print(f"### Noise, value and gradient of a batch of {batch}\n")
    table(
        ["way", "ms", "over the deterministic"],
        [[name, 1e3 * s, s / seconds["deterministic"]] for name, s in seconds.items()],
    )
    ratios = {name: ", ".join(f"{v[i] / found['shared draw'][i]:.2f}" for i in means) for name, v in found.items()}
    figures = [[f"{name}, gradient variance", ratios[name]] for name in ("local", "Flipout")]
    figures += [[f"{name}, time", seconds[name] / seconds["deterministic"]] for name in WAYS]
    record(__file__, ["", "value"], figures)


if __name__ == "__main__":
    main()
