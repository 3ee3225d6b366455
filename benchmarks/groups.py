"""Does a step cost more, or a run more memory, where there are more groups?

Counts in G = 1e3, 1e4 and 1e5 groups of 1 to 10 rows, y ~ Poisson(exp(a_g + w·x)), a_g ~ N(μ, τ²): in a fresh process
each the gradient on a batch of 100 groups, then a whole run of the mean field, with the
peak memory of the process and how far its means lie from the parameters that made the data.

Predicted: a step looks at its batch's groups alone, so that its time is flat in G; memory grows by the rows themselves,
some 300 bytes a group, and what looks at all groups (the report, ``posterior.local()``) takes them some at a time.

    python benchmarks/groups.py [--quick]
"""

import json
import resource
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, say_where, table

import tractable as tr
from tractable.data.rows import Plan, place, window

BATCH, STEPS = 100, 500
TRUE = {"mu": 0.3, "tau": 0.45, "w": np.array([0.3, -0.2])}
MODEL = tr.Model(
    {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfNormal(2.0), "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1)},
    lambda p, x: dist.Poisson(jnp.exp(p["a"] + x @ p["w"])),
    local=lambda p: {"a": dist.Normal(p["mu"], p["tau"])},
)


def rows(groups: int) -> tr.Data:
    """Rows of so many groups, which lie anywhere."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(groups), rng.integers(1, 11, groups)))
    own, x = rng.normal(TRUE["mu"], TRUE["tau"], groups), rng.normal(size=(len(group), 2))
    return tr.Data(rng.poisson(np.exp(own[group] + x @ TRUE["w"])), given=x, group=group)


def step_time(data: tr.Data) -> float:
    """Milliseconds that choosing a batch of groups and the gradient on it take."""
    plan, target = Plan(data.size, BATCH), tr.log_posterior(MODEL, flat=True)

    @jax.jit
    def go(key, position, rows):
        def step(position, t):
            slope = jax.grad(target)(position, window(rows, plan, *place(plan, key, t)))
            return position + 1e-9 * slope, None

        return jax.lax.scan(step, position, jnp.arange(STEPS))[0]

    given = jax.random.key(0), jnp.array([0.3, -0.8, 0.3, -0.2]), data.windows(plan.width)
    jax.block_until_ready(go(*given))
    began = time.perf_counter()
    jax.block_until_ready(go(*given))
    return 1000 * (time.perf_counter() - began) / STEPS


def measured(groups: int) -> dict:
    """What one process of so many groups came to."""
    data = rows(groups)
    took = step_time(data)
    began = time.perf_counter()
    posterior = tr.infer(MODEL, data, tr.MeanField(batch_size=BATCH), progress=False)
    learnt = time.perf_counter() - began
    began = time.perf_counter()
    posterior.local(draws=20)
    told = time.perf_counter() - began
    mean, sd = posterior.mean(), posterior.sd()
    off = [np.max(np.abs(mean[name] - TRUE[name]) / sd[name]) for name in TRUE]
    return {
        "groups": groups, "step, ms": took, "mean field, s": learnt, "all locals, s": told,
        "data, MB": data.nbytes / 2**20, "peak, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worst mean, sds off": float(max(off)), "verdict": posterior.report().verdict,
    }  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        print(json.dumps(measured(int(sys.argv[2]))))
        sys.exit()
    chosen = arguments(__doc__ or "").parse_args()
    say_where("Groups")
    found = []
    for count in (1000,) if chosen.quick else (1000, 10_000, 100_000):
        ran = subprocess.run(
            [sys.executable, __file__, "--one", str(count)], stdout=subprocess.PIPE, text=True, check=True
        )
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    table(list(found[0]), [list(row.values()) for row in found])
