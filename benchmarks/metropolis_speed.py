"""How fast do random walk, MALA and NUTS draw, beside BlackJAX and a hand-written loop?

Four chains run. The random walk's target is a 10-dimensional Gaussian; that of MALA and NUTS is a logistic regression
on the breast cancer data (569 × 31). Both libraries keep every step unless a row says otherwise. ESS is the smallest
bulk effective sample size of a parameter. BlackJAX runs as its documentation shows: vmap over chains of a scan, with a
new key for each step. Both use the same log density. Without a preconditioner both use the step at which BlackJAX's
acceptance is 0.234 (random walk) or 0.574 (MALA).

Predicted: in chain-steps a second the random walk is ≥ 3 × and MALA ≥ 1.8 × as fast as BlackJAX, because noise is drawn
for blocks of steps. In min ESS a second MALA is ≥ 5 × as fast, because its preconditioner is adapted. NUTS is
BlackJAX's own, so its ratio is about 1.

    python benchmarks/metropolis_speed.py [--quick] [--only random-walk|mala|nuts]
"""

import functools
import time
from collections.abc import Callable

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, medians, record, say_where, table
from sklearn.datasets import load_breast_cancer

import tractable as tr
from tractable.diagnostics.convergence import diagnose
from tractable.engine import run as loop
from tractable.engine.drawing import chain_keys
from tractable.engine.method import Program

CHAINS = 4


def peer(make: Callable, starts: jax.Array, steps: int):
    """``make(step size) -> blackjax algorithm`` in a vmapped scan; ``go(step size) -> (positions, acceptance)``."""

    @jax.jit
    def go(key, starts, step_size):
        algorithm = make(step_size)

        def chain(key, start):
            def step(state, key):
                state, info = algorithm.step(key, state)
                return state, (state.position, info.acceptance_rate)

            return jax.lax.scan(step, algorithm.init(start), jax.random.split(key, steps))[1]

        return jax.vmap(chain)(jax.random.split(key, CHAINS), starts)

    return lambda step_size: go(jax.random.key(1), starts, step_size)


def tuned(
    make: Callable, starts: jax.Array, first: float, target: float, falls: float = 1.0
) -> tuple[float, jax.Array]:
    """The step size at which acceptance is ``target``, and the chains' positions at the end of the search."""
    log_step, steps = np.log(first), 300
    go = jax.jit(lambda key, at, s: _probe(make(s), key, at, steps))
    for i in range(60):
        starts, rate = go(jax.random.key(100 + i), starts, jnp.float32(np.exp(log_step)))
        log_step += falls * 4 * (float(rate) - target) / (i + 4) ** 0.7
    return float(np.exp(log_step)), starts


def _probe(algorithm, key, starts, steps):
    def chain(key, start):
        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, info.acceptance_rate

        state, rates = jax.lax.scan(step, algorithm.init(start), jax.random.split(key, steps))
        return state.position, rates.mean()

    positions, rates = jax.vmap(chain)(jax.random.split(key, CHAINS), starts)
    return positions, rates.mean()


def by_hand(log_density: Callable, starts: jax.Array, step: float, steps: int, *, gradient: bool, block: int = 50):
    """The fastest loop: one scan, noise drawn in blocks, the current gradient carried; it returns positions only."""
    root = np.sqrt(step).astype(np.float32)
    value_and_grad = jax.value_and_grad(log_density)

    @jax.jit
    def go(key, starts):
        def chain(key, start):
            def one(state, noise):
                x, value, slope = state
                z, log_u = noise
                if gradient:
                    there = x + 0.5 * step * slope + root * z
                    value_there, slope_there = value_and_grad(there)
                    back = z + 0.5 * root * (slope + slope_there)
                    ratio = value_there - value + 0.5 * (z @ z - back @ back)
                else:
                    there = x + step * z
                    value_there, slope_there = log_density(there), slope
                    ratio = value_there - value
                accept = log_u < ratio
                new = jax.tree.map(
                    lambda a, b: jnp.where(accept, a, b), (there, value_there, slope_there), (x, value, slope)
                )
                return new, new[0]

            def blocks(state, key):
                a, b = jax.random.split(key)
                noise = (jax.random.normal(a, (block, start.size)), -jax.random.exponential(b, (block,)))
                return jax.lax.scan(one, state, noise)

            value, slope = value_and_grad(start) if gradient else (log_density(start), ())
            positions = jax.lax.scan(blocks, (start, value, slope), jax.random.split(key, steps // block))[1]
            return positions.reshape(steps, -1)

        return jax.vmap(chain)(jax.random.split(key, CHAINS), starts)

    return lambda: go(jax.random.key(2), starts)


def kernel_level(model: tr.Model, data, method, step_size: float, starts: jax.Array, steps: int):
    """``tractable.engine.run`` with a given step and no preconditioner."""
    program, size = Program(model, method), model.space.size
    shape = loop.shape(steps // method.thin, method.thin, size, CHAINS)
    settings = {"step_size": jnp.float32(step_size), "scale": jnp.ones(size, jnp.float32)}
    keys, rows = chain_keys(jax.random.key(3), CHAINS), None if data is None else data.arrays()
    states = loop.begin(program, settings, rows, keys, starts)
    groups = steps // shape.group
    return lambda: loop.run(loop.Loop(program, shape, None), data, settings, keys, loop.Start(states), groups)


def least(draws) -> float:
    return float(diagnose(np.asarray(draws))[1].min())


def inferred(model, data, method, repeats: int) -> tuple[float, float, float]:
    """Seconds of drawing and of warm-up, and min ESS, of ``infer``: medians over runs with compiled programs."""
    found = [tr.infer(model, data, method, progress=False, seed=i) for i in range(repeats + 1)][1:]
    drawing = np.median([p.seconds["drawing"] for p in found])
    warming = np.median([p.seconds["warm-up"] for p in found])
    return float(drawing), float(warming), float(np.median([least(p.unconstrained) for p in found]))


def compared(kernel: str, title: str, rows: dict[str, tuple[int, float, float]]) -> None:
    """name -> (steps a chain, seconds, min ESS). Rows that name nobody else are ours."""
    base_steps, base_seconds, base_ess = rows["BlackJAX"]
    speed, known = CHAINS * base_steps / base_seconds, base_ess / base_seconds
    print(f"### {kernel}, {title}\n")
    head = ["kernel", "what", "chain-steps/s", "× BlackJAX", "min ESS/s", "× BlackJAX, ESS"]
    lines = [
        [kernel, name, CHAINS * steps / s, CHAINS * steps / s / speed, ess / s, ess / s / known]
        for name, (steps, s, ess) in rows.items()
    ]
    table(head, lines)
    record(__file__, head, lines, names=2)


def random_walk(quick: bool) -> None:
    steps, repeats, size = (2_000, 2, 10) if quick else (100_000, 5, 10)

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    def make(s):
        return blackjax.normal_random_walk(log_density, s * jnp.ones(size))

    model = tr.Model.from_log_density(log_density, jnp.zeros(size))
    starts = jax.random.normal(jax.random.key(0), (CHAINS, size))
    step, starts = tuned(make, starts, 2.38 / np.sqrt(size), 0.234)
    run_peer = peer(make, starts, steps)
    thinned = 10
    ours = kernel_level(model, None, tr.RandomWalk(chains=CHAINS, preconditioner=None), step, starts, steps)
    ours_thin = kernel_level(
        model, None, tr.RandomWalk(chains=CHAINS, preconditioner=None, thin=thinned), step, starts, steps
    )
    limit = by_hand(log_density, starts, step, steps, gradient=False)
    seconds = medians(
        {
            "BlackJAX": lambda: run_peer(step),
            "limit": limit,
            "ours": lambda: ours().states,
            "thin": lambda: ours_thin().states,
        },
        repeats,
    )
    method = tr.RandomWalk(chains=CHAINS, draws=steps, warmup=2000)
    drawing, _, ess = inferred(model, None, method, repeats)
    compared(
        "random walk",
        f"{size}-d Gaussian, {CHAINS} chains of {steps:,} steps",
        {
            "BlackJAX": (steps, seconds["BlackJAX"], least(run_peer(step)[0])),
            "hand-written (limit)": (steps, seconds["limit"], least(limit())),
            "same step": (steps, seconds["ours"], least(ours().draws)),
            f"same step, every {thinned}th kept": (steps, seconds["thin"], least(ours_thin().draws)),
            "infer, sampling": (steps, drawing, ess),
        },
    )


@functools.cache
def regression() -> tuple[tr.Model, tr.Data]:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    x = np.column_stack([np.ones(len(x)), x]).astype(np.float32)
    model = tr.Model(
        {"w": dist.Normal(jnp.zeros(x.shape[1]), 1.0)}, lambda params, x: dist.Bernoulli(logits=jnp.dot(x, params["w"]))
    )
    return model, tr.Data(y.astype(np.float32), x)


def mala(quick: bool) -> None:
    steps, repeats = (1_000, 2) if quick else (50_000, 5)
    model, data = regression()
    log_density = tr.log_density(model, data.arrays(), flat=True)
    make = functools.partial(blackjax.mala, log_density)
    step, starts = tuned(make, jnp.zeros((CHAINS, model.space.size)), 0.005, 0.574)
    run_peer = peer(make, starts, steps)
    bare = tr.MALA(chains=CHAINS, preconditioner=None)
    ours = kernel_level(model, data, bare, 2 * step, starts, steps)  # ε is 2 × BlackJAX's
    limit = by_hand(log_density, starts, 2 * step, steps, gradient=True)
    seconds = medians({"BlackJAX": lambda: run_peer(step), "limit": limit, "ours": lambda: ours().states}, repeats)
    rows = {
        "BlackJAX": (steps, seconds["BlackJAX"], least(run_peer(step)[0])),
        "hand-written (limit)": (steps, seconds["limit"], least(limit())),
        "same step": (steps, seconds["ours"], least(ours().draws)),
    }
    for name in ("dense",) if quick else ("dense", "diagonal"):
        method = tr.MALA(chains=CHAINS, draws=steps, warmup=500 if quick else 2000, preconditioner=name)
        drawing, warming, ess = inferred(model, data, method, repeats)
        rows[f"infer, {name} preconditioner"] = (steps, drawing, ess)
        if name == "dense":
            rows["infer, dense preconditioner, with its warm-up"] = (steps, drawing + warming, ess)
    print(f"BlackJAX's acceptance at its step {step:.3g}: {float(run_peer(step)[1].mean()):.3f}.\n")
    compared("MALA", f"logistic regression 569 × 31, {CHAINS} chains of {steps:,} steps", rows)


def nuts(quick: bool) -> None:
    draws, warmup, repeats = (100, 150, 1) if quick else (1000, 1000, 3)
    model, data = regression()
    log_density = tr.log_density(model, data.arrays(), flat=True)

    @jax.jit
    def warm(keys, starts):
        def chain(key, start):
            adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
            (state, parameters), _ = adaptation.run(key, start, num_steps=warmup)
            return state, parameters

        return jax.vmap(chain)(keys, starts)

    @jax.jit
    def draw(keys, states, parameters):
        def chain(key, state, parameters):
            kernel = blackjax.nuts(log_density, **parameters).step

            def step(state, key):
                return (kernel(key, state)[0],) * 2

            return jax.lax.scan(step, state, jax.random.split(key, draws))[1].position

        return jax.vmap(chain)(keys, states, parameters)

    keys = jax.random.split(jax.random.key(0), CHAINS)
    states, parameters = warm(keys, jnp.zeros((CHAINS, model.space.size)))
    began = time.perf_counter()
    jax.block_until_ready(warm(keys, jnp.zeros((CHAINS, model.space.size))))
    warming = time.perf_counter() - began
    seconds = medians({"BlackJAX": lambda: draw(keys, states, parameters)}, repeats)["BlackJAX"]
    ess = least(draw(keys, states, parameters))
    ours, ours_warming, ours_ess = inferred(model, data, tr.NUTS(chains=CHAINS, draws=draws, warmup=warmup), repeats)
    compared(
        "NUTS",
        f"logistic regression 569 × 31, {CHAINS} chains of {draws:,} draws (steps are draws)",
        {
            "BlackJAX": (draws, seconds, ess),
            "BlackJAX, with its warm-up": (draws, seconds + warming, ess),
            "infer, sampling": (draws, ours, ours_ess),
            "infer, with its warm-up": (draws, ours + ours_warming, ours_ess),
        },
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=("random-walk", "mala", "nuts"))
    args = parser.parse_args()
    say_where("How fast do random walk, MALA and NUTS draw?")
    for name, part in {"random-walk": random_walk, "mala": mala, "nuts": nuts}.items():
        if args.only == name or (args.only is None and not (args.quick and name == "nuts")):
            part(args.quick)


if __name__ == "__main__":
    main()
