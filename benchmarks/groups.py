"""Does a step cost more, or a run more memory, where there are more groups; and is what defaults find right?

The first table is about counts in G = 1e3, 1e4 and 1e5 groups of 1 to 10 rows, y ~ Poisson(exp(a_g + w·x)),
a_g ~ N(μ, τ²). For each G a new process times the gradient on a batch of 100 groups, and then makes a whole run of the
mean field. The table shows the peak memory of the process, and how far the means lie from the true parameters.

Predicted: a step reads only its batch's groups, so its time does not depend on G. Memory grows only by the rows, some
300 bytes a group, because functions of all groups (the report, ``posterior.local()``) process a part of them at a time.

The second table is about normal random intercepts, y ~ N(a_g + w·x, σ²), a_g ~ N(μ, τ²), by each method's defaults in
batches, for the largest G. Here p(y | θ) has a closed form: sums over groups of one size are quadratic in (μ, w). So
NumPy computes the exact posterior, from 20,000 weighted draws around its mode. Predicted: means are within 0.2 sd, and
sds are 0.8 to 1.25 times the exact ones, or the verdict is not "trust". MeanField and BayesByBackprop correct their
batches by control variates around an anchor near the mode.

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
import scipy.optimize
from measuring import arguments, record, say_where, table

import tractable as tr
from tractable.core.batches import Plan, place, window

BATCH, STEPS = 100, 500
TRUE = {"mu": 0.3, "tau": 0.45, "w": np.array([0.3, -0.2])}
MODEL = tr.Model(
    {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfNormal(2.0), "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1)},
    lambda p, x: dist.Poisson(jnp.exp(p["a"] + x @ p["w"])),
    local=lambda p: {"a": dist.Normal(p["mu"], p["tau"])},
)


def rows(groups: int) -> tr.Data:
    """Rows of so many groups, in random order."""
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
    """The results of one process for so many groups."""
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
        "groups": groups, "gradient on 100 of them, ms": took, "mean field, s": learnt, "all locals, s": told,
        "data, MB": data.nbytes / 2**20, "peak, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worst mean, sds off": float(max(off)), "verdict": posterior.report().verdict,
    }  # fmt: skip


# Normal random intercepts, whose posterior is known.

NORMAL = tr.Model(
    {
        "mu": dist.Normal(0.0, 5.0), "sigma": dist.HalfNormal(2.0), "tau": dist.HalfNormal(2.0),
        "w": dist.Normal(jnp.zeros(2), 1.0).to_event(1),
    },
    lambda p, x: dist.Normal(p["a"] + x @ p["w"], p["sigma"]),
    local=lambda p: {"a": dist.Normal(p["mu"], p["tau"])},
)  # fmt: skip
DEFAULTS = {
    "MeanField": tr.MeanField(batch_size=BATCH), "SGLD": tr.SGLD(batch_size=BATCH),
    "BayesByBackprop": tr.BayesByBackprop(),
}  # fmt: skip


def intercepts(groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label, inputs and y of every row."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(groups), rng.integers(1, 11, groups)))
    x, own = rng.normal(size=(len(group), 2)), rng.normal(0.3, 0.6, groups)
    return group, x, own[group] + x @ TRUE["w"] + rng.normal(size=len(group))


def exact(group: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of (μ, σ, τ, w), from y_g ~ N(μ + X w, σ² I + τ² 1 1ᵀ)."""
    columns, size = np.column_stack([np.ones(len(y)), x, y]), np.bincount(group)
    sums = np.stack([np.bincount(group, column) for column in columns.T], 1)
    sizes, count = np.unique(size, return_counts=True)
    squares = np.stack([columns[size[group] == n].T @ columns[size[group] == n] for n in sizes])
    totals = np.stack([sums[size == n].T @ sums[size == n] for n in sizes])

    def log_density(z: np.ndarray) -> float:  # of μ, w, log τ, log σ
        of_group, noise = np.exp(2 * z[3:])
        rest = np.append(-z[:3], 1.0)
        spread = noise + sizes * of_group
        fit = (rest @ squares @ rest - of_group * (rest @ totals @ rest) / spread) / noise
        likelihood = -0.5 * np.sum(count * ((sizes - 1) * np.log(noise) + np.log(spread)) + fit)
        return likelihood - z[0] ** 2 / 50 - z[1:3] @ z[1:3] / 2 - (of_group + noise) / 8 + z[3] + z[4]

    found = scipy.optimize.minimize(lambda z: -log_density(z), np.array([0.3, 0.3, -0.2, -0.5, 0.0]), method="BFGS")
    step = np.eye(5) * 0.01 / np.sqrt(len(size))
    curved = [
        [
            sum(i * j * log_density(found.x + i * a + j * b) for i in (-1, 1) for j in (-1, 1))
            / (4 * a.sum() * b.sum())
            for a in step
        ]
        for b in step
    ]
    noise = np.random.default_rng(0).normal(size=(20_000, 5))
    places = found.x + 1.1 * noise @ np.linalg.cholesky(np.linalg.inv(-np.array(curved))).T
    logs = np.array([log_density(z) for z in places]) + np.square(noise).sum(1) / 2
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    values = np.column_stack([places[:, 0], np.exp(places[:, 4]), np.exp(places[:, 3]), places[:, 1:3]])
    mean = weights @ values
    return mean, np.sqrt(weights @ np.square(values - mean))


def beside_exact(groups: int, name: str, seed: int) -> dict:
    """A method with its defaults on so many groups, compared with the exact posterior."""
    group, x, y = intercepts(groups)
    mean, sd = exact(group, x, y)
    data, began, worked = tr.Data(y, given=x, group=group), time.perf_counter(), time.process_time()
    posterior = tr.infer(NORMAL, data, DEFAULTS[name], seed=seed, progress=False)
    took, worked = time.perf_counter() - began, time.process_time() - worked
    own_mean, own_sd = posterior.flat_moments
    return {
        "groups": groups, "method": name, "seed": seed, "s": took, "processor, s": worked,
        "peak, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worst mean, sds off": float(np.max(np.abs(own_mean - mean) / sd)),
        "sds, times exact": f"{np.min(own_sd / sd):.2f} to {np.max(own_sd / sd):.2f}",
        "verdict": posterior.report().verdict,
    }  # fmt: skip


def alone(*given: str) -> dict:
    """A row of the table, computed by a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--one", *given], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        count, *which = sys.argv[2:]
        print(json.dumps(beside_exact(int(count), which[0], int(which[1])) if which else measured(int(count))))
        sys.exit()
    chosen = arguments(__doc__ or "").parse_args()
    say_where("Groups")
    sizes = ("1000",) if chosen.quick else ("1000", "10000", "100000")
    found = [alone(count) for count in sizes]
    table(list(found[0]), [list(row.values()) for row in found])
    kept = ["gradient on 100 of them, ms", "peak, MB"]
    record(__file__, ["groups", *kept], [[row["groups"], *map(row.get, kept)] for row in found])
    found = [alone(sizes[-1], name, seed) for name in DEFAULTS for seed in (("0",) if chosen.quick else ("0", "1"))]
    table(list(found[0]), [list(row.values()) for row in found])
    kept = ["processor, s", "peak, MB", "worst mean, sds off", "sds, times exact"]
    names = [row["method"] + (f", seed {row['seed']}" if row["seed"] else "") for row in found]
    lines = [[row["groups"], name, *map(row.get, kept)] for name, row in zip(names, found, strict=True)]
    record(__file__, ["groups", "method", *kept], lines, names=2)
