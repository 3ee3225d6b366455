"""One hundred flips of a coin: every method is compared with the exact posterior.

With a Beta(5, 5) prior and k heads in n flips the posterior is Beta(5 + k, 5 + n − k). The parameter θ
lies in (0, 1). Every method works with the logit of θ, and returns θ itself.

What to look for: the draws of the seven samplers follow the exact density. MAP finds the density's peak, and
MLE finds the peak of the likelihood. The normal curve around each of these two is made of its standard error, the only
width that a point estimate has. The verdict comes from each result's own report, which does not know the exact answer.
Rejection also estimates the log evidence log p(y).

    python examples/coin.py [--quick] [--out DIR]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from scipy import stats

import tractable as tr
from tractable.models import conjugate

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer draws")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

# The model: the prior, and the distribution of one datum.
flips = np.random.default_rng(0).binomial(1, 0.7, size=100)
model = tr.Model(
    prior={"theta": dist.Beta(5, 5)},
    likelihood=lambda params: dist.Bernoulli(params["theta"]),
)

# The exact posterior.
exact = conjugate.beta_bernoulli(flips, alpha=5, beta=5)

# The methods, with defaults for all but the number of draws and the batch size.
count = {"draws": 1000 if options.quick else 4000}
methods = [
    tr.MLE(),
    tr.MAP(),
    tr.Rejection(**count),
    tr.RandomWalk(**count),
    tr.MALA(**count),
    tr.HMC(**count),
    tr.NUTS(**count),
    tr.SGLD(**count, batch_size=10),
    tr.SGHMC(**count, batch_size=10),
]
posteriors = {type(method).__name__: tr.infer(model, flips, method, seed=1) for method in methods}

print(f"{flips.sum()} heads in {flips.size} flips, θ ~ Beta(5, 5)\n")
print(f"{'':12}{'mean':>8}{'sd':>8}{'sd / exact':>12}  verdict")
print(f"{'exact':12}{exact.mean:8.4f}{exact.sd:8.4f}{1:12.3f}")
for name, posterior in posteriors.items():
    mean, sd = posterior.mean()["theta"], posterior.sd()["theta"]
    print(f"{name:12}{mean:8.4f}{sd:8.4f}{sd / exact.sd:12.3f}  {posterior.report().verdict}")

found = posteriors["Rejection"].log_evidence()
print(f"\nlog evidence by rejection {found.estimate:.4f} ± {found.standard_error:.4f}, exact {exact.log_evidence:.4f}")

# The picture: the result of each method, in front of the exact density.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False})
figure, panels = plt.subplots(3, 3, figsize=(9, 6.6), sharex=True, sharey=True, layout="constrained")
theta = np.linspace(0.45, 0.8, 400)
density = stats.beta(exact.alpha, exact.beta).pdf(theta)
for panel, (name, posterior) in zip(panels.flat, posteriors.items(), strict=True):
    mean, sd = float(posterior.mean()["theta"]), float(posterior.sd()["theta"])
    panel.fill_between(theta, density, color="#c9d3df", linewidth=0, label="exact posterior")
    if posterior.is_point:
        panel.axvline(mean, color="#d1495b", linewidth=2, label="maximum")
        panel.plot(theta, stats.norm(mean, sd).pdf(theta), "--", color="#d1495b", label="normal, of its standard error")
    else:
        draws, weights = posterior.values.ravel(), posterior.weights
        panel.hist(
            draws, bins=40, range=(0.45, 0.8), density=True, weights=None if weights is None else weights.ravel(),
            histtype="step", color="#1b5e8c", linewidth=1.4, label="draws",
        )  # fmt: skip
    panel.set_title(name, loc="left", fontweight="bold", fontsize=10)
    about = f"mean {mean:.3f}\nsd {sd:.3f}"
    panel.text(0.98, 0.95, about, transform=panel.transAxes, ha="right", va="top", fontsize=8.5, color="#555555")
    panel.set_yticks([])
for panel in panels[-1]:
    panel.set_xlabel("θ, probability of heads")
known = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels()), strict=True))
known |= dict(zip(*reversed(panels[2, 2].get_legend_handles_labels()), strict=True))
figure.legend(known.values(), known.keys(), loc="outside upper right", ncols=4, frameon=False, fontsize=9)
figure.suptitle(f"{flips.sum()} heads in {flips.size} flips", x=0.01, ha="left", fontweight="bold")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "coin.png", dpi=150)
print(f"\nPicture: {options.out / 'coin.png'}")
