"""How soon is a mean field fitted, warm and cold, beside NumPyro and BlackJAX?

The model is a logistic regression on the breast cancer data (569 × 31, prior N(0, 1)). The goal is a bound within 0.05
nat of the best bound of a mean field, measured by quadrature, without noise. The other libraries climb with Adam by the
bound's reparameterised gradient, with ten draws a step, in one scan. Each uses that rate of 0.1, 0.03, 0.01 and 0.003
which reaches the goal first, and stops at the step at which it does, which in practice nobody knows. Our climb with the
same Adam and the same number of draws is stopped in the same way. ``infer`` decides by itself when to stop, inspects
the model before, and weights draws of q after. "Cold" is the time of a new process from the end of the imports to the
fitted q, with compilation; there the other libraries take all steps in one call.

Predicted: warm, quadrature is ten times as fast as NumPyro, because 50 evaluations replace thousands of steps, and the
plain gradient is no slower than the others'. Cold, only compilation matters, and a quarter more code takes a quarter
more time.

    python benchmarks/mean_field_speed.py [--quick]
"""

import functools
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from measuring import arguments, medians, record, say_where, table
from sklearn.datasets import load_breast_cancer

import tractable as tr
from tractable import objectives
from tractable.core import approximations
from tractable.engine.ascend import ascend
from tractable.vi import quadrature

SAMPLES = 10
RATES = (0.1, 0.03, 0.01, 0.003)
NEAR = 0.05  # nats
LOOK = 50  # steps between two evaluations of the bound, which find the first step that is near
MOST = 30_000


class Climber(NamedTuple):
    """Another library's climb: ``go(state, steps)``, ``first(rate)``, and q's mean and sd from a state."""

    begin: Callable
    go: Callable
    q: Callable


@functools.cache
def problem() -> tuple[tr.Model, tr.Data]:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    x = np.column_stack([np.ones(len(x)), x]).astype(np.float32)
    seen = tr.Through(lambda params, x: jnp.dot(x, params["w"]), lambda params, eta: dist.Bernoulli(logits=eta))
    return tr.Model({"w": dist.Normal(jnp.zeros(x.shape[1]), 1.0)}, seen), tr.Data(y.astype(np.float32), x)


@functools.cache
def exact_bound() -> Callable:
    """(mean, sd) -> the bound, by quadrature."""
    model, data = problem()
    linear = quadrature.structure(model, data)
    q = approximations.mean_field(model.space.size)
    # η = x·w by construction: the features are the rows.
    of = quadrature.elbo_function(model, q, None, linear, data.y, jnp.zeros(data.size), jnp.asarray(data.given))
    return jax.jit(lambda mean, sd: of({"mean": mean, "rho": approximations.inverse_softplus(sd)}))


def numpyro_climber(rate: float) -> Climber:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    _, data = problem()
    x, y = jnp.asarray(data.given), jnp.asarray(data.y)

    def model():
        w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)

    svi = SVI(model, AutoNormal(model), optax.adam(rate), Trace_ELBO(num_particles=SAMPLES))

    def begin():
        return svi.init(jax.random.key(0))

    @functools.partial(jax.jit, static_argnames="steps")
    def go(state, steps):
        return jax.lax.scan(lambda s, _: (svi.update(s)[0], None), state, None, length=steps)[0]

    def q(state):
        params = svi.get_params(state)
        return params["w_auto_loc"], params["w_auto_scale"]

    return Climber(begin, go, q)


def blackjax_climber(rate: float) -> Climber:
    import blackjax

    model, data = problem()
    log_density = tr.log_density(model, data.arrays(), flat=True)
    algorithm = blackjax.meanfield_vi(log_density, optax.adam(rate), SAMPLES)

    def begin():
        return algorithm.init(jnp.zeros(model.space.size)), jax.random.key(0)

    @functools.partial(jax.jit, static_argnames="steps")
    def go(state, steps):
        def step(carry, _):
            state, key = carry
            key, now = jax.random.split(key)
            return (algorithm.step(now, state)[0], key), None

        return jax.lax.scan(step, state, None, length=steps)[0]

    return Climber(begin, go, lambda state: (state[0].mu, jnp.exp(state[0].rho)))


def our_climber(rate: float) -> Climber:
    """Our objective and kernel, with noise drawn for ``LOOK`` steps at a time; the caller decides when to stop."""
    model, data = problem()
    family = approximations.mean_field(model.space.size)
    target = tr.log_density(model, data.arrays(), flat=True)
    kernel = ascend(objectives.elbo(lambda z, _: target(z), family, samples=SAMPLES), optax.adam(rate))

    def begin():
        size = model.space.size
        return kernel.init(jax.random.key(0), family.init(jnp.zeros(size), jnp.full(size, 0.1))), jnp.array(0)

    @functools.partial(jax.jit, static_argnames="steps")
    def go(state, steps):
        def block(carry, _):
            state, t = carry
            noise = kernel.draw(jax.random.fold_in(jax.random.key(1), t), LOOK, state)
            return (jax.lax.scan(lambda s, z: (kernel.step(z, s, None)[0], None), state, noise)[0], t + 1), None

        return jax.lax.scan(block, state, None, length=steps // LOOK)[0]

    return Climber(begin, go, lambda s: (s[0].position["mean"], approximations.softplus(s[0].position["rho"])))


CLIMBERS = {
    "NumPyro AutoNormal": numpyro_climber,
    "BlackJAX meanfield_vi": blackjax_climber,
    "tractable, the plain gradient": our_climber,
}
METHODS: dict[str, dict[str, Any]] = {
    "tractable, infer, quadrature": {},
    "tractable, infer, stochastic": {"solver": "stochastic"},
}


def reached(make: Callable, best: float, most: int) -> tuple[float, int | None]:
    """The rate that reaches the goal first, and its steps; None if no rate reaches it within ``most`` steps."""
    found: tuple[float, int | None] = (RATES[0], None)
    for rate in RATES:
        climber = make(rate)
        state = climber.begin()
        for done in range(LOOK, (found[1] or most + 1), LOOK):
            state = climber.go(state, LOOK)
            if best - float(exact_bound()(*climber.q(state))) < NEAR:
                found = rate, done
                break
    return found


def fitted(name: str) -> tr.Posterior:
    model, data = problem()
    return tr.infer(model, data, tr.MeanField(**METHODS[name]), progress=False)


def cold(name: str, rate: float, steps: int) -> float:
    """Seconds in a fresh process, imports left out."""
    words = [sys.executable, __file__, "--cold", name, str(rate), str(steps)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


def one_cold(name: str, rate: float, steps: int) -> None:
    for peer in ("blackjax", "numpyro.infer.autoguide"):
        importlib.import_module(peer)
    problem()
    began = time.perf_counter()
    if name in METHODS:
        fitted(name)
    else:
        climber = CLIMBERS[name](rate)
        jax.block_until_ready(climber.q(climber.go(climber.begin(), steps)))
    print(time.perf_counter() - began)


def main() -> None:
    """Find the number of steps of each climb, time the climbs in turn, and then time cold processes."""
    if sys.argv[1:2] == ["--cold"]:
        one_cold(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
        return
    options = arguments(__doc__).parse_args()
    repeats, most = (1, 200) if options.quick else (7, MOST)
    posteriors = {name: fitted(name) for name in METHODS}
    bound = {n: float(exact_bound()(p.fitted.phi["mean"], approximations.softplus(p.fitted.phi["rho"])))
             for n, p in posteriors.items()}  # fmt: skip
    best = max(bound.values())
    chosen = {name: reached(make, best, most) for name, make in CLIMBERS.items()}
    runs: dict[str, Callable] = {name: functools.partial(fitted, name) for name in METHODS}
    for name, make in CLIMBERS.items():
        rate, steps = chosen[name]
        climber = make(rate)
        runs[name] = lambda c=climber, s=steps or most: c.q(c.go(c.begin(), s))
    timed = {n: (lambda run=run: getattr(run(), "values", None)) if n in METHODS else run for n, run in runs.items()}
    warm = medians(timed, repeats)
    climbing = {n: statistics.median(fitted(n).seconds["climbing"] for _ in range(repeats)) for n in METHODS}
    base = warm["NumPyro AutoNormal"]
    say_where("Mean field, logistic regression 569 × 31, to 0.05 nat of its best bound")
    rows = []
    for name in (*CLIMBERS, *METHODS):
        rate, steps = chosen.get(name, (0.0, None))
        about = f"{steps:,} at {rate:g}" if steps else "not reached" if name in CLIMBERS else "its own"
        started = statistics.median(cold(name, rate, steps or most) for _ in range(1 if options.quick else 3))
        gap = None if name in CLIMBERS else best - bound[name]
        rows.append([name, about, gap, 1e3 * warm[name], base / warm[name], started])
        if name in METHODS:
            rows.append(["… its climb alone", "", None, 1e3 * climbing[name], base / climbing[name], None])
    head = ["fit", "steps, rate", "nats missing", "warm, ms", "speed over NumPyro's", "cold, s"]
    table(head, rows)
    record(__file__, head, rows, columns=["warm, ms", "speed over NumPyro's"])
    print(f"The best bound is {best:.3f}.")


if __name__ == "__main__":
    main()
