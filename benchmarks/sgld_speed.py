"""Does SGLD cost more than the SGD step it is made of?

The models are a logistic regression with a million rows and 50 columns, in batches of 1000, and a 784-400-400-10
network, in batches of 128. Ours is timed in ``tractable.engine.run`` (which ``infer`` calls between warm-up and report)
and in ``infer`` itself.

Predicted: a step takes at most 1.1 times as long as in a bare ``optax.sgd`` scan on contiguous batches. It is at least
5 times as fast as BlackJAX with gathers of random rows, as it is usually used. For the network it takes at most 1.3
times as long as an SGD step. The cost lies in the gather, not in the inference.

    python benchmarks/sgld_speed.py [--quick] [--only logistic|network]
"""

import functools
import itertools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable.engine import run as loop
from tractable.engine.drawing import chain_keys
from tractable.engine.method import Program

STEP = 1e-6  # ε; small enough that nothing diverges, and the arithmetic is the same for every ε


def ours(model: tr.Model, data: tr.Data, method: tr.SGLD, steps: int):
    """The main phase of ``infer``: all except the first measurements of curvature and noise."""
    program, plan, size = Program(model, method), method.plan(data), model.space.size
    shape = loop.shape(steps // method.thin, method.thin, size, 1)
    tuned = {"step_size": jnp.float32(STEP), "scale": jnp.float32(1.0)}
    keys = chain_keys(jax.random.key(0), 1)
    states = loop.begin(program, tuned, None, keys, jnp.zeros((1, size), jnp.float32))
    groups = steps // shape.group
    return lambda: loop.run(loop.Loop(program, shape, plan), data, tuned, keys, loop.Start(states), groups).states


def sgd(loss, position, rows: tuple, size: int, batch: int, steps: int, *, gather: bool):
    """A bare scan of optax.sgd, the fastest loop by hand if batches are slices of shuffled rows."""
    optimiser = optax.sgd(STEP / 2)

    @jax.jit
    def go(key, position, rows):
        def step(carry, now):
            position, memory = carry
            gradient = jax.grad(loss)(position, cut(rows, now, size, batch, gather))
            updates, memory = optimiser.update(gradient, memory, position)
            return (optax.apply_updates(position, updates), memory), None

        start = (position, optimiser.init(position))
        return jax.lax.scan(step, start, choices(key, steps, size, batch, gather))[0][0]

    return lambda: go(jax.random.key(1), position, rows)


def choices(key: jax.Array, steps: int, size: int, batch: int, gather: bool) -> jax.Array:
    """The numbers that choose a batch at each step: a key to draw rows with, or the first row of a slice."""
    return jax.random.split(key, steps) if gather else jax.random.randint(key, (steps,), 0, size - batch)


def cut(rows, now, size: int, batch: int, gather: bool):
    if gather:
        index = jax.random.randint(now, (batch,), 0, size)
        return jax.tree.map(lambda a: a[index], rows)
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, now, batch), rows)


def blackjax_scan(estimator, position, rows, size: int, batch: int, steps: int, *, gather: bool):
    """blackjax.sgld in a scan with a new key for each step, as in its documentation."""
    kernel = blackjax.sgld(estimator)

    @jax.jit
    def go(key, position, rows):
        def step(position, now):
            key, choice = now
            return kernel.step(key, position, cut(rows, choice, size, batch, gather), STEP / 2), None

        key_noise, key_batch = jax.random.split(key)
        now = (jax.random.split(key_noise, steps), choices(key_batch, steps, size, batch, gather))
        return jax.lax.scan(step, position, now)[0]

    return lambda: go(jax.random.key(2), position, rows)


def blackjax_python(estimator, position, rows, size: int, batch: int, steps: int):
    """blackjax.sgld from a Python loop over host batches gathered by numpy, as most tutorials do."""
    kernel = blackjax.sgld(estimator)
    step = jax.jit(kernel.step)
    generator = np.random.default_rng(0)
    host = jax.tree.map(np.asarray, rows)

    def go():
        at, key = position, jax.random.key(3)
        for _ in range(steps):
            key, key_now = jax.random.split(key)
            index = generator.integers(0, size, batch)
            at = step(key_now, at, jax.tree.map(lambda a, i=index: a[i], host), STEP / 2)
        return at

    return go


def logistic(quick: bool) -> None:
    size, columns, batch = (5_000, 50, 1000) if quick else (1_000_000, 50, 1000)
    steps, repeats = (1000, 1) if quick else (40_000, 5)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((size, columns), dtype=np.float32)
    truth = generator.standard_normal(columns).astype(np.float32) / 5
    y = (generator.random(size, dtype=np.float32) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    model = tr.Model(
        {"w": dist.Normal(jnp.zeros(columns), 1.0)}, lambda params, x: dist.Bernoulli(logits=jnp.dot(x, params["w"]))
    )
    data = tr.Data(y, x)
    method = tr.SGLD(
        chains=1, draws=steps // 1000, thin=1000, warmup=0, batch_size=batch, step_size=STEP, preconditioner=None,
        start="random",
    )  # fmt: skip
    rows, zero = (jnp.asarray(y), jnp.asarray(x)), jnp.zeros(columns, jnp.float32)  # random rows: no shuffle needed

    def loss(w, rows):
        y, x = rows
        logits = x @ w
        return size / batch * jnp.sum(jax.nn.softplus(logits) - y * logits) + 0.5 * jnp.sum(w**2)

    def log_likelihood(w, row):
        return row[0] * (row[1] @ w) - jax.nn.softplus(row[1] @ w)

    estimator = blackjax.sgmcmc.gradients.grad_estimator(lambda w: -0.5 * jnp.sum(w**2), log_likelihood, size)
    few = steps // 10
    bare = functools.partial(sgd, loss, zero, rows, size, batch)
    peer = functools.partial(blackjax_scan, estimator, zero, rows, size, batch)
    candidates = {
        "optax.sgd scan, contiguous batches (limit)": (bare(steps, gather=False), steps),
        "optax.sgd scan, row gather": (bare(few, gather=True), few),
        "tractable.engine.run": (ours(model, data, method, steps), steps),
        "BlackJAX sgld scan, contiguous batches": (peer(steps, gather=False), steps),
        "BlackJAX sgld scan, row gather": (peer(few, gather=True), few),
        "BlackJAX sgld, Python loop, row gather": (
            blackjax_python(estimator, zero, rows, size, batch, few // 4),
            few // 4,
        ),
    }
    seconds = medians({name: run for name, (run, _) in candidates.items()}, repeats)
    speed = {name: count / seconds[name] for name, (_, count) in candidates.items()}
    tr.infer(model, data, method, progress=False)
    drawing = [tr.infer(model, data, method, progress=False).seconds["drawing"] for _ in range(repeats)]
    speed["infer (seconds['drawing'])"] = steps / float(np.median(drawing))
    report("logistic", f"{size:,} × {columns}, batches of {batch}", speed, "BlackJAX sgld scan, row gather")


def network(quick: bool) -> None:
    size, batch = (2000, 128) if quick else (60_000, 128)
    steps, repeats = (8, 1) if quick else (600, 5)
    widths = [784, 400, 400, 10]
    generator = np.random.default_rng(0)
    x = generator.random((size, 784), dtype=np.float32)
    y = generator.integers(0, 10, size).astype(np.int32)

    def apply(params, x):
        for i in range(len(widths) - 1):
            x = x @ params[f"w{i}"] + params[f"b{i}"]
            x = jax.nn.relu(x) if i < len(widths) - 2 else x
        return x

    shapes = {}
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        shapes |= {f"w{i}": (a, b), f"b{i}": (b,)}
    prior = {name: dist.Normal(jnp.zeros(shape), 0.1) for name, shape in shapes.items()}
    model = tr.Model(prior, lambda params, x: dist.Categorical(logits=apply(params, x)))
    data = tr.Data(y, x)
    thin = steps // 2
    method = tr.SGLD(
        chains=1, draws=steps // thin, thin=thin, warmup=0, batch_size=batch, step_size=STEP, preconditioner=None,
        start="random",
    )  # fmt: skip
    rows = (jnp.asarray(y), jnp.asarray(x))
    zero = {name: jnp.zeros(shape, jnp.float32) for name, shape in shapes.items()}

    def loss(params, rows):
        y, x = rows
        logits = apply(params, x)
        picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
        decay = sum(jnp.sum(w**2) for w in params.values()) / (2 * 0.1**2)
        return size / batch * jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked) + decay

    def log_likelihood(params, row):
        return jax.nn.log_softmax(apply(params, row[1]))[row[0]]

    def log_prior(params):
        return -sum(jnp.sum(w**2) for w in params.values()) / (2 * 0.1**2)

    estimator = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, size)
    few = max(steps // 4, 4)
    candidates = {
        "optax.sgd scan, contiguous batches (limit)": (sgd(loss, zero, rows, size, batch, steps, gather=False), steps),
        "tractable.engine.run": (ours(model, data, method, steps), steps),
        "BlackJAX sgld scan, contiguous batches": (
            blackjax_scan(estimator, zero, rows, size, batch, few, gather=False), few,
        ),
        "BlackJAX sgld scan, row gather": (blackjax_scan(estimator, zero, rows, size, batch, few, gather=True), few),
    }  # fmt: skip
    seconds = medians({name: run for name, (run, _) in candidates.items()}, repeats)
    speed = {name: count / seconds[name] for name, (_, count) in candidates.items()}
    report("network", f"784-400-400-10, batches of {batch}", speed, "BlackJAX sgld scan, row gather")


def report(model: str, title: str, speed: dict[str, float], peer: str) -> None:
    limit = speed["optax.sgd scan, contiguous batches (limit)"]
    print(f"### {model}, {title}\n")
    head = ["model", "what", "steps/s", "ms a step", "time over the limit's", "speed over BlackJAX's"]
    lines = [[model, name, s, 1e3 / s, limit / s, s / speed[peer]] for name, s in speed.items()]
    table(head, lines)
    record(__file__, head, lines, names=2, columns=head[3:])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("logistic", "network"))
    args = parser.parse_args()
    say_where("Does SGLD cost more than the SGD step it is made of?")
    if args.only != "network":
        logistic(args.quick)
    if args.only != "logistic":
        network(args.quick)


if __name__ == "__main__":
    main()
