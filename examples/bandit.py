"""Eat the mushroom or pass? Thompson sampling by Bayes by Backprop, against greedy and ε-greedy.

    kernel = ascend(tr.objectives.bayes_by_backprop(model, samples=2), optax.adam(rate))
    state, _ = kernel(key, state, batch)  # learns from 64 of the last 4096 decisions
    weights = q.sample(state.position, noise)  # decides by one draw of the weights

The game is that of Blundell et al. (2015, section 5.3). To eat an edible mushroom gives a reward of 5, to eat a
poisonous one gives −35 or 5 with equal chance, and to pass gives nothing. An agent does not learn what the other action
would have given, so an agent that starts to pass too soon never finds out that this is wrong. ε-greedy acts at random
in a share ε of its decisions, and pays for this for ever. Thompson sampling tries actions of which it is unsure, and
stops when it is sure. Regret is the reward that an oracle expects, minus the reward of the agent.

The mushrooms (8124 rows, 117 columns of 0 and 1) are read with --data or --openml. Otherwise scikit-learn's 569 tumours
replace them, with malignant tumours as the poisonous ones and the same rewards. They only have the structure of the
problem; nothing medical is meant.

What to look for: every agent learns, and random actions cost most. On the mushrooms (--steps 50000 --runs 4) the median
regret at each agent's best learning rate is 7,800 for Thompson sampling, 8,500 for greedy, and 13,000 and 25,500 for
ε-greedy with ε = 1 % and 5 %. The runs of Thompson sampling and greedy overlap: greedy is better at rate 1e-3, 10,000
against 13,000, and on the tumours, 2,200 against 2,500. But one of four greedy runs at rate 1e-4 passed six of seven
edible mushrooms for 8,000 decisions, and ended at a regret of 31,500. The worst run of Thompson sampling at this rate
ended at 10,100.

    python examples/bandit.py [--quick] [--out DIR] [--data DIR | --openml]
        [--steps N] [--updates N] [--rates R R …] [--runs N]
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import pandas as pd
from sklearn.datasets import fetch_openml, load_breast_cancer

import tractable as tr
from tractable import approximations
from tractable.kernels import ascend

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="2,000 steps, two learning rates, two runs")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
parser.add_argument("--data", type=Path, metavar="DIR", help="folder of mushroom.npz: X_onehot, y = 1 for poisonous")
parser.add_argument("--openml", action="store_true", help="fetch the mushrooms from OpenML")
parser.add_argument("--steps", type=int, default=10_000, help="decisions a run")
parser.add_argument("--updates", type=int, default=2, help="minibatches after each decision (the paper: 64)")
parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-4, 1e-4], help="learning rates of Adam")
parser.add_argument("--runs", type=int, default=5, help="runs of each agent at each rate")
options = parser.parse_args()
if options.quick:
    options.steps, options.rates, options.runs = 2000, [1e-3, 3e-4], 2
if options.data and not (options.data / "mushroom.npz").exists():
    parser.error(f"there is no mushroom.npz in {options.data}")

BUFFER, BATCH = 4096, 64
PASS, EAT = 0, 1
GOOD, BAD = 5.0, -35.0
TENS = 0.1  # factor of the rewards before they are learnt: the prior expects functions of about this size
NOISE = 1.0 * TENS  # sd of the scaled rewards: with 1 for a reward, the loss is half its squared error, as in the paper


def problem() -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the data, the contexts (n, D), and which of them are bad (n,)."""
    if options.data:
        with np.load(options.data / "mushroom.npz") as file:
            return "mushrooms", file["X_onehot"], file["y"] == 1
    if options.openml:
        table, kind = fetch_openml("mushroom", version=1, as_frame=True, return_X_y=True)
        columns = pd.get_dummies(table, dummy_na=True)  # a missing stalk root is a kind of its own
        return "mushrooms", columns.loc[:, columns.any()].to_numpy(), (kind == "p").to_numpy()
    table: Any = load_breast_cancer()
    X = np.asarray(table.data)
    return "tumours", (X - X.mean(0)) / X.std(0), np.asarray(table.target) == 0


what, X, y = problem()
contexts, bad = jnp.asarray(X, jnp.float32), jnp.asarray(y)
actions = jnp.eye(2)  # PASS, EAT

# The model: reward ~ N(f(context, action), NOISE²).
network = tr.models.mlp(contexts.shape[1] + 2, (100, 100), 1)
model = tr.models.neural_network(network, noise=NOISE)
q = approximations.mean_field(model.space.size)


class Learner(NamedTuple):
    """The objective of an agent's kernel, the kernel's start, and the weights by which the agent decides."""

    objective: tr.objectives.Objective
    start: Callable[[Any], Any]  # params -> position
    weights: Callable[[jax.Array, Any], Any]  # (key, position) -> params


def around(params: Any) -> dict[str, Any]:
    """The start of q: a normal around the given weights, with σ = 0.02."""
    rho = approximations.inverse_softplus(jnp.asarray(0.02))
    return {"mean": params, "rho": jax.tree.map(lambda w: jnp.full_like(w, rho), params)}


def drawn(key: jax.Array, position: dict[str, Any]) -> Any:
    """One draw of the weights from q."""
    phi = {name: model.space.ravel(part) for name, part in position.items()}
    return model.space.unravel(q.sample(phi, jax.random.normal(key, (q.noise,))))


bayes = Learner(tr.objectives.bayes_by_backprop(model, samples=2), around, drawn)
point = Learner(tr.objectives.log_joint(model), lambda params: params, lambda key, position: position)
agents = {"Thompson": (bayes, 0.0), "greedy": (point, 0.0), "1 %-greedy": (point, 0.01), "5 %-greedy": (point, 0.05)}
colours = {"Thompson": "#1b5e8c", "greedy": "#d1495b", "1 %-greedy": "#e2952f", "5 %-greedy": "#3a9b7a"}


def value(params: Any, row: jax.Array, action: jax.Array) -> jax.Array:
    """f(context, action), the reward that the network expects of an action."""
    inputs = jnp.concatenate([contexts[row], actions[action]])
    return network.apply(params["weights"], inputs)[0]


@functools.partial(jax.jit, static_argnames=("learner", "steps", "updates"))
@functools.partial(jax.vmap, in_axes=(0, None, None, None, None, None))
def interact(
    key: jax.Array, learner: Learner, explore: float, rate: float, steps: int, updates: int
) -> tuple[jax.Array, jax.Array]:
    """The regret of every step, and whether the action was right; (steps,) each, and (runs, steps) by vmap.

    The sequence of contexts, and the reward of eating each, depend only on the key and are the same for all agents.
    """
    kernel = ascend(learner.objective, optax.adam(rate))
    key_start, key_world, key_agent = jax.random.split(key, 3)

    def step(carry: tuple, t: jax.Array) -> tuple[tuple, tuple]:
        state, buffer = carry
        key_row, key_luck = jax.random.split(jax.random.fold_in(key_world, t))
        keys = jax.random.split(jax.random.fold_in(key_agent, t), 5)

        row = jax.random.randint(key_row, (), 0, len(contexts))
        params = learner.weights(keys[0], state.position)
        best = jnp.argmax(jax.vmap(value, (None, None, 0))(params, row, jnp.array([PASS, EAT])))
        anything = jax.random.bernoulli(keys[1]).astype(best.dtype)
        action = jnp.where(jax.random.bernoulli(keys[2], explore), anything, best)

        harmed = bad[row] & jax.random.bernoulli(key_luck)
        reward = jnp.where(action == PASS, 0.0, jnp.where(harmed, BAD, GOOD))
        place, seen = t % BUFFER, jnp.minimum(t + 1, BUFFER)
        buffer = tuple(b.at[place].set(new) for b, new in zip(buffer, (row, action, TENS * reward), strict=True))

        def learn(state: Any, drawn: tuple) -> tuple[Any, None]:
            chosen, noise = drawn
            rows, taken, rewards = (b[chosen] for b in buffer)
            inputs = jnp.concatenate([contexts[rows], actions[taken]], -1)  # (64, D + 2)
            # The buffer's N rows count as the whole data set. It has N/64 batches, which share the weights' KL cost.
            batches: Any = seen / BATCH
            batch = tr.Batch((rewards, inputs), jnp.ones(BATCH), seen, 0, batches)
            return kernel.step(noise, state, batch)[0], None

        chosen = jax.random.randint(keys[3], (updates, BATCH), 0, seen)
        state, _ = jax.lax.scan(learn, state, (chosen, kernel.draw(keys[4], updates, state)))
        oracle = jnp.where(bad[row], 0.0, GOOD)
        return (state, buffer), (oracle - reward, (action == EAT) != bad[row])

    begin: Any = model.start  # key -> the weights with which the network begins
    state = kernel.init(key_start, learner.start(begin(key_start)))
    buffer = jnp.zeros(BUFFER, int), jnp.zeros(BUFFER, int), jnp.zeros(BUFFER)
    return jax.lax.scan(step, (state, buffer), jnp.arange(steps))[1]


steps, tenth = options.steps, options.steps // 10
share = np.mean(y)
always_pass, always_eat = GOOD * (1 - share), -(BAD + GOOD) / 2 * share  # regret a decision, expected
at_random = (always_pass + always_eat) / 2
print(f"{len(X):,} {what}, {share:.0%} bad; {options.runs} runs × {steps:,} decisions × {options.updates} updates")
print(
    f"regret a decision: always pass {always_pass:.2f}, at random {at_random:.2f}, 5 % of that {at_random / 20:.2f}\n"
)
print(f"{'':21}{'regret at the end':>24}{'a decision, of the':>20}{'right, of':>11}")
print(f"{'agent':12}{'rate':>9}{'median':>8}{'least':>8}{'most':>8}", end="")
print(f"{'first 10th':>12}{'last':>8}{'last 1000':>11}{'seconds':>9}")
keys = jax.random.split(jax.random.key(0), options.runs)
curves: dict[str, dict[float, np.ndarray]] = {name: {} for name in agents}
for name, (learner, explore) in agents.items():
    for rate in options.rates:
        began = time.perf_counter()
        regret, right = map(np.asarray, interact(keys, learner, explore, rate, steps, options.updates))
        seconds = time.perf_counter() - began
        curves[name][rate] = total = np.cumsum(regret, 1)  # (runs, steps)
        end = total[:, -1]
        first, last = regret[:, :tenth].mean(), regret[:, -tenth:].mean()
        numbers = f"{np.median(end):8.0f}{end.min():8.0f}{end.max():8.0f}{first:12.2f}{last:8.2f}"
        print(f"{name:12}{rate:9.4g}{numbers}{right[:, -1000:].mean():11.3f}{seconds:9.1f}", flush=True)

# The picture: each agent's regret over time at its best learning rate; and its final regret at every rate.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5), width_ratios=[1.35, 1], layout="constrained")
shown = np.unique(np.linspace(0, steps - 1, 500).astype(int))
for place, (name, by_rate) in enumerate(curves.items()):
    rates = sorted(by_rate)
    ends = np.array([by_rate[rate][:, -1] for rate in rates])  # (rates, runs)
    best = rates[int(np.argmin(np.median(ends, 1)))]
    total = by_rate[best][:, shown]
    left.fill_between(shown + 1, total.min(0), total.max(0), color=colours[name], alpha=0.12, linewidth=0)
    left.plot(shown + 1, np.median(total, 0), color=colours[name], linewidth=2, label=f"{name}, rate {best:g}")
    aside = np.array(rates) * 1.06 ** (place - 1.5)  # moved sideways, so that the agents' ranges do not overlap
    right.vlines(aside, ends.min(1), ends.max(1), color=colours[name], linewidth=2, alpha=0.5)
    right.plot(aside, np.median(ends, 1), "o-", color=colours[name], markersize=5, linewidth=1, label=name)
left.set(xlabel="decisions", ylabel="regret, summed", xlim=(0, steps))
left.set_title("Each agent at its best learning rate", loc="left", fontweight="bold", fontsize=11)
left.legend(frameon=False, loc="upper left")
right.set(xlabel="learning rate", ylabel=f"regret after {steps:,} decisions", xscale="log")
right.set_title("And at every rate", loc="left", fontweight="bold", fontsize=11)
right.set_xticks(options.rates, [f"{rate:g}" for rate in options.rates])
right.minorticks_off()
for panel in (left, right):
    panel.set_ylim(bottom=0)
figure.text(0.01, -0.03, f"Median and range of {options.runs} runs on {len(X):,} {what}.", fontsize=9, color="#555555")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "bandit.png", dpi=150, bbox_inches="tight")
print(f"\nPicture: {options.out / 'bandit.png'}")
