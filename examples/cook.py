"""Ratings of a cook whose mood we cannot see: the first example of a latent variable.

A model with a latent variable is the answer to three questions:

    What is θ?             how often the cook is in a good mood, the mean rating in a bad mood, what a good mood adds,
                           and the sd of the ratings: θ = (good, bad, lift, sd)
    What is z?             the mood of one evening: 1 good, 0 bad
    How is x generated?    z ~ Bernoulli(good), then x ~ N(bad + lift · z, sd²)

The answers are three arguments of the model: prior, latent and likelihood. You derive nothing else: the library's
E-step sums over the two moods, and its M-step climbs by gradients.

What to look for: EM finds θ, and its standard errors cover the true values. NUTS runs on the same model and agrees.
Each evening gets a probability of a good mood, and these probabilities are right as often as they say. The exact
log p(x | θ) sums two terms for each evening. Plain Monte Carlo over the moods gives too low a value, by Jensen's
inequality: the log of a mean of K draws is on average below the log of the expected value, by about
Σ_n Var p(x_n | z) / (2 K p(x_n)²). If each draw holds the moods of all evenings at once, no feasible K is enough.

    python examples/cook.py [--quick] [--out DIR]
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy import special, stats

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer draws")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()


def begin(key: jax.Array, ratings: jax.Array) -> dict:
    """The start of EM: the moods' mean ratings lie on both sides of the overall mean, at a random distance."""
    sd = jnp.std(ratings)
    apart = sd * jax.random.uniform(key, minval=1.0, maxval=3.0)
    return {"good": 0.5, "bad": jnp.mean(ratings) - apart / 2, "lift": apart, "sd": sd / 2}


# The model: the three answers. The prior's lift > 0 makes the mood with the higher ratings the good one.
model = tr.LatentModel(
    prior={"good": dist.Beta(1, 1), "bad": dist.Normal(5, 3), "lift": dist.HalfNormal(5), "sd": dist.HalfNormal(3)},
    latent=lambda p: dist.Bernoulli(p["good"]),
    likelihood=lambda p, z: dist.Normal(p["bad"] + p["lift"] * z, p["sd"]),
    begin=begin,
)
truth = {"good": 0.65, "bad": 4.0, "lift": 3.5, "sd": 1.2}
ratings, moods = (np.asarray(a) for a in model.sample(jax.random.key(0), truth, 300))

# Learn θ by two methods.
em = tr.infer(model, ratings, tr.EM(), seed=0)
draws = 250 if options.quick else 1000
nuts = tr.infer(model, ratings, tr.NUTS(draws=draws), seed=0)

print(f"{len(ratings)} evenings, ratings from {ratings.min():.1f} to {ratings.max():.1f}; no mood was seen.\n")
print("What is θ?")
print(f"{'':10}{'truth':>8}{'EM':>8}{'± se':>8}{'z':>7}{'NUTS':>10}{'± sd':>8}")
estimate, error, mean, sd = em.mean(), em.sd(), nuts.mean(), nuts.sd()
for name, value in truth.items():
    score = (estimate[name] - value) / error[name]
    numbers = f"{value:8.2f}{estimate[name]:8.3f}{error[name]:8.3f}{score:+7.2f}{mean[name]:10.3f}{sd[name]:8.3f}"
    print(f"{name:10}{numbers}")
print(f"EM: {em.report().verdict}, {em.found['starts that agree']} of 4 starts agree. NUTS: {nuts.report().verdict}.")

# The labels: the density stays the same if the moods' names are exchanged.
theta = {name: jnp.asarray(value) for name, value in estimate.items()}
swapped = {"good": 1 - theta["good"], "bad": theta["bad"] + theta["lift"], "lift": -theta["lift"], "sd": theta["sd"]}
logs = np.asarray(model.log_prob(theta, ratings), np.float64)  # (n,) nats
exact, other = logs.sum(), np.asarray(model.log_prob(swapped, ratings), np.float64).sum()
print(
    f"\nWith the moods' names exchanged log p(x | θ) is {other:.3f} instead of {exact:.3f}: the data do not name them."
    "\nThe prior's lift > 0 does; without it chains would switch labels, and their mean would mean nothing."
)

# What is z? One probability for each evening.
share = np.asarray(model.responsibilities(theta, ratings))[:, 1]
print("\nWhat is z?")
print(f"{'rating':>8}{'P(good)':>10}   it was")
for n in np.argsort(ratings)[np.linspace(0.05 * len(ratings), 0.95 * len(ratings), 7).astype(int)]:
    print(f"{ratings[n]:8.1f}{share[n]:10.3f}   {'good' if moods[n] else 'bad'}")
hit, said = np.mean((share > 0.5) == moods), np.mean(np.maximum(share, 1 - share))
print(f"The likelier mood is the true one on {hit:.1%} of evenings; the model says {said:.1%}.")

# How is x generated? p(x | θ) is a mean over the moods, which is computed exactly, or by drawing moods.
rng = np.random.default_rng(0)
good = float(theta["good"])
of_mood = np.stack(
    [stats.norm.logpdf(ratings, theta["bad"] + theta["lift"] * z, theta["sd"]) for z in (0, 1)]
)  # (2, n) log p(x | z)
weights = np.exp(of_mood - logs)  # p(x | z) / p(x)
squares = good * weights[1] ** 2 + (1 - good) * weights[0] ** 2  # E[(p(x | z) / p(x))²]
repeats = 100
print(f"\nHow likely are all ratings? log p(x | θ) = {exact:.2f} nats. If K draws of z estimate it, the error is")
print(f"{'':>6}{'K for each evening':>30}{'K for all at once':>26}")
print(f"{'K':>6}{'mean':>12}{'sd':>8}{'Jensen':>10}{'mean':>18}{'sd':>8}")
for count in (10, 100, 1000):
    ones = rng.binomial(count, good, (repeats, len(ratings)))
    each = np.log((ones * weights[1] + (count - ones) * weights[0]) / count).sum(1)  # (repeats,)
    whole = np.empty(repeats // 5)
    for i in range(len(whole)):
        z = rng.random((count, len(ratings))) < good
        whole[i] = special.logsumexp(np.where(z, of_mood[1], of_mood[0]).sum(1)) - np.log(count) - exact
    jensen = -np.sum(squares - 1) / (2 * count)
    print(f"{count:6}{each.mean():12.2f}{each.std():8.2f}{jensen:10.2f}{whole.mean():18.1f}{whole.std():8.1f}")
needed = np.sum(np.log10(squares))
print(
    "A mean of p(x | z) is unbiased, but its log is too low. If each draw holds all evenings' moods, it takes about"
    f"\n10^{needed:.0f} draws to know p(x | θ) within a factor of two or so."
)

# The picture: the ratings as a sum of two parts, and the objective over EM's steps.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), width_ratios=(1.5, 1), layout="constrained")
grid = np.linspace(0, 12, 400)
shares = (1 - good, good)
parts = [s * stats.norm.pdf(grid, theta["bad"] + theta["lift"] * z, theta["sd"]) for z, s in enumerate(shares)]
left.hist(ratings, bins=40, range=(0, 12), density=True, color="#c9d3df", label="300 ratings")
for part, colour, name in zip(parts, ("#d1495b", "#3a9b7a"), ("bad mood", "good mood"), strict=True):
    left.fill_between(grid, part, color=colour, alpha=0.15, linewidth=0)
    left.plot(grid, part, color=colour, linewidth=1.6, label=name)
left.plot(grid, sum(parts), color="#222222", linewidth=2, label="their sum, p(x | θ)")
left.set_title("What the ratings are made of", loc="left", fontweight="bold", fontsize=11)
left.set(xlabel="rating", ylabel="density", xlim=(0, 12))
left.legend(frameon=False, fontsize=9, loc="upper left")
for start, trace in enumerate(em.info["objective"]):
    gap = em.found["objective"] - trace
    right.plot(np.where(gap > 1e-3, gap, np.nan), ".-", color=plt.get_cmap("Blues")(0.4 + 0.18 * start), linewidth=1.4)
right.set(yscale="log", xlabel="step of EM", ylabel="nats below the maximum")
right.set_title("Four climbs; no step goes down", loc="left", fontweight="bold", fontsize=11)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "cook.png", dpi=150)
print(f"\nPicture: {options.out / 'cook.png'}")
