"""What does a step of NVIL cost in our loop, beside the least that JAX could do?

Milliseconds for each step of a belief network 784-200 with a baseline of 100 tanh units, batches of 100, Adam and all
variance reductions; all variants are timed in turn in one run. The lower limit is one scan written by hand for this
network alone, with the same draws, running statistics and Adam. Ours is timed as the kernel in a bare scan, and in
``tr.infer``'s own loop. Pyro's TraceGraph_ELBO, a Python loop, is timed too if it is installed.

Predicted: the loop takes at most 1.15 times as long as the scan by hand, because both have the same products and
compute log p and log q once. Pyro takes at least five times as long as ours.

    python benchmarks/nvil_step.py [--quick]
"""

import functools
import importlib.util
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import arguments, medians, record, say_where, table

from tractable.core.batches import Plan
from tractable.core.model import Batch
from tractable.core.rows import Data
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.ladders.amortised import Amortising
from tractable.ladders.ladders import sigmoid_belief_network
from tractable.ladders.nvil_methods import NVIL

VISIBLE, HIDDEN, UNITS, BATCH, RATE, DECAY = 784, 200, 100, 100, 1e-3, 0.8


def by_hand(x: jax.Array, steps: int) -> Callable:
    """One scan written for this network alone, without any line that it does not need."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    def zero(n: int) -> jax.Array:
        return jnp.zeros(n, jnp.float32)

    params = {
        "p": (normal(HIDDEN, VISIBLE), zero(VISIBLE)),
        "top": zero(HIDDEN),
        "q": (normal(VISIBLE, HIDDEN), zero(HIDDEN)),
        "c": (normal(VISIBLE, UNITS), zero(UNITS), zero(UNITS), zero(1)),
    }
    size, centre, optimizer = len(x), jnp.mean(x, 0), optax.adam(RATE)

    def log_bernoulli(value: jax.Array, eta: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.log_sigmoid((2 * value - 1) * eta), -1)

    def surrogate(params: dict, rows: jax.Array, u: jax.Array, mean: jax.Array, variance: jax.Array) -> tuple:
        seen = rows - centre
        eta = seen @ params["q"][0] + params["q"][1]
        h = (u < jax.nn.sigmoid(jax.lax.stop_gradient(eta))).astype(jnp.float32)
        log_q = log_bernoulli(h, eta)
        log_p = log_bernoulli(rows, h @ params["p"][0] + params["p"][1]) + log_bernoulli(h, params["top"])
        w, b, out, answer = params["c"]
        guess = jnp.tanh(seen @ w + b) @ out + answer
        residual = jax.lax.stop_gradient(log_p - log_q - guess)
        signal = (residual - mean) / jnp.sqrt(jnp.maximum(1, variance))
        climbed = jnp.sum(log_p + signal * (log_q + guess))
        return -size / BATCH * climbed, (jnp.mean(residual), jnp.var(residual))

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state: tuple, key: jax.Array) -> tuple:
        def step(state: tuple, t: jax.Array) -> tuple:
            params, memory, mean, variance = state
            rows = jax.lax.dynamic_slice_in_dim(x, (t * BATCH) % (size - BATCH + 1), BATCH)
            u = jax.random.uniform(jax.random.fold_in(key, t), (BATCH, HIDDEN))
            slope, (m, v) = jax.grad(surrogate, has_aux=True)(params, rows, u, mean, variance)
            updates, memory = optimizer.update(slope, memory, params)
            mean, variance = DECAY * mean + (1 - DECAY) * m, DECAY * variance + (1 - DECAY) * v
            return (optax.apply_updates(params, updates), memory, mean, variance), None

        return jax.lax.scan(step, state, jnp.arange(steps))[0]

    held = [(params, optimizer.init(params), jnp.zeros(()), jnp.zeros(()))]

    def once() -> dict:
        held[0] = run(held[0], jax.random.key(2))
        return held[0][0]

    return once


def ours(x: np.ndarray, steps: int) -> dict[str, Callable]:
    """The kernel in a bare scan, and in the loop that ``tr.infer`` runs."""
    net, method, data = sigmoid_belief_network(VISIBLE, (HIDDEN,)), NVIL(optimizer=optax.adam(RATE)), Data(x)
    first = method.initial(net, jax.random.key(0), x)
    kernel, rows = ascend(method.objective(net), optax.adam(RATE)), jnp.asarray(x)

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state, key):
        def step(state, t):
            cut = jax.lax.dynamic_slice_in_dim(rows, (t * BATCH) % (len(x) - BATCH + 1), BATCH)
            batch = Batch((cut, None), jnp.ones(BATCH), len(x), 0, len(x) // BATCH)
            noise = kernel.draw(jax.random.fold_in(key, t), 1, state, batch)
            return kernel.step(noise[0], state, batch)[0], None

        return jax.lax.scan(step, state, jnp.arange(steps))[0]

    held = [kernel.init(jax.random.key(1), jax.tree.map(jnp.copy, first))]

    def scanned() -> dict:
        held[0] = run(held[0], jax.random.key(2))
        return held[0].position

    program, plan, shape = Amortising(net, method), Plan(len(x), BATCH), loop.shape(steps, 1, 1, 1)
    keys, tuned = jax.random.split(jax.random.key(3), 1), {"steps": jnp.asarray(float(steps))}
    states = [loop.begin(program, tuned, None, keys, jax.tree.map(lambda a: jnp.asarray(a)[None], first))]
    groups = -(-steps // shape.group)

    def looped() -> dict:
        result = loop.run(
            loop.Loop(program, shape, plan), data, tuned, keys, loop.Start(states[0]), groups, collect=("info",)
        )
        states[0] = result.states
        return states[0].position

    return {"ours, a bare scan": scanned, "the loop of `tr.infer`": looped}


def pyro_steps(x: np.ndarray, steps: int) -> Callable:
    """Pyro's TraceGraph_ELBO with a baseline network and a decaying average, in a Python loop."""
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, TraceGraph_ELBO

    pyro.clear_param_store()
    pyro.enable_validation(False)
    down, up = torch.nn.Linear(HIDDEN, VISIBLE), torch.nn.Linear(VISIBLE, HIDDEN)
    guess = torch.nn.Sequential(torch.nn.Linear(VISIBLE, UNITS), torch.nn.Tanh(), torch.nn.Linear(UNITS, 1))
    rows = torch.tensor(x)
    centre = rows.mean(0)

    def model(x):
        pyro.module("down", down)
        top = pyro.param("top", torch.zeros(HIDDEN))
        with pyro.plate("rows", len(x)):
            h = pyro.sample("h", dist.Bernoulli(logits=top).expand([len(x), HIDDEN]).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=down(h)).to_event(1), obs=x)

    def guide(x):
        pyro.module("up", up)
        pyro.module("guess", guess)
        with pyro.plate("rows", len(x)):
            baseline = {"nn_baseline": lambda x: guess(x).squeeze(-1), "nn_baseline_input": x - centre,
                        "use_decaying_avg_baseline": True, "baseline_beta": DECAY}  # fmt: skip
            pyro.sample("h", dist.Bernoulli(logits=up(x - centre)).to_event(1), infer={"baseline": baseline})

    svi = SVI(model, guide, pyro.optim.Adam({"lr": RATE}), TraceGraph_ELBO())

    def once() -> np.ndarray:
        for t in range(steps):
            start = (t * BATCH) % (len(x) - BATCH + 1)
            svi.step(rows[start : start + BATCH])
        return np.zeros(())

    return once


def main() -> None:
    """Time them in turn."""
    options = arguments(__doc__).parse_args()
    # A multiple of the loop's groups of steps, so that all variants take the same number of steps.
    steps, size, repeats = (50, 500, 1) if options.quick else (300, 12_800, 7)
    x = (np.random.default_rng(0).random((size, VISIBLE)) < 0.2).astype(np.float32)
    runs = {"by hand, one scan": by_hand(jnp.asarray(x), steps)} | ours(x, steps)
    if importlib.util.find_spec("pyro") is None:
        print("Pyro is not installed (pip install pyro-ppl): left out.\n")
    else:
        runs["Pyro, TraceGraph_ELBO"] = pyro_steps(x, steps)
    seconds = medians(runs, repeats)
    base = seconds["by hand, one scan"]
    say_where("A step of NVIL, 784-200, batch 100, Adam, every switch on")
    head, rows = ["step", "ms", "over by hand"], [[n, 1e3 * s / steps, s / base] for n, s in seconds.items()]
    table(head, rows)
    record(__file__, head, rows)


if __name__ == "__main__":
    main()
