"""Logistic regression on the breast cancer data, by four methods side by side.

455 tumours are learnt from and 114 are held out, each with thirty measurements. The classes are nearly separable, and
the measurements are strongly correlated (radius, perimeter and area tell almost the same). So the posterior is wide for
single coefficients, but narrow for predictions.

What to look for: NUTS and MALA, which have no bias, agree. SGLD's coefficients are larger than theirs. The difference
exceeds its predicted bias, which is about sds and not about means; its verdict is "caution". Where full gradients are
as cheap as here, prefer NUTS. MAP predicts as well here, but its coefficients are nearer zero: the peak of a skewed
posterior is not its mean.

    python examples/breast_cancer.py [--quick] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats
from sklearn.datasets import load_breast_cancer

import tractable as tr
from tractable.models import gallery

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer draws")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

# y ~ Bernoulli(1 / (1 + e^−(a + xᵀw))), w ~ N(0, 2.5²), a ~ N(0, 5²); inputs standardised, y = 1 is benign.
model, train, held_out = gallery.example("breast-cancer").build()
labels = load_breast_cancer().feature_names

draws = 500 if options.quick else 2000
methods = {
    "NUTS": tr.NUTS(draws=draws, warmup=draws),
    "MALA": tr.MALA(draws=4 * draws, warmup=2 * draws),
    "SGLD": tr.SGLD(draws=draws, warmup=draws, batch_size=50),
    "MAP": tr.MAP(),
}
colours = {"NUTS": "#1b5e8c", "MALA": "#3a9b7a", "SGLD": "#e2952f", "MAP": "#d1495b"}

print(f"{'':6}{'log predictive':>15}{'accuracy':>10}{'seconds':>9}  verdict")
posteriors, probabilities = {}, {}
for name, method in methods.items():
    began = time.perf_counter()
    posteriors[name] = posterior = tr.infer(model, train, method, seed=0)
    seconds = time.perf_counter() - began
    score = posterior.log_predictive(held_out).mean()  # nats a tumour; 0 would be certain and right
    probabilities[name] = posterior.predict(held_out.given).mean
    accuracy = np.mean((probabilities[name] > 0.5) == held_out.y)
    print(f"{name:6}{score:15.4f}{accuracy:10.3f}{seconds:9.1f}  {posterior.report().verdict}")

for name in ("NUTS", "SGLD"):
    print(f"\n{posteriors[name].report()}")

# The eight coefficients with the largest means, and their 90 % intervals, which for MAP are those of a normal.
means = {name: posterior.mean()["weights"] for name, posterior in posteriors.items()}
sds = {name: posterior.sd()["weights"] for name, posterior in posteriors.items()}
bounds = {
    name: np.quantile(posterior.draws["weights"], [0.05, 0.95], axis=(0, 1))
    for name, posterior in posteriors.items()
    if not posterior.is_point
}
bounds["MAP"] = means["MAP"] + 1.645 * np.array([[-1], [1]]) * sds["MAP"]
chosen = np.argsort(-np.abs(means["NUTS"]))[:8]
print(f"\n{'mean ± sd':26}" + "".join(f"{name:>16}" for name in methods))
for i in chosen:
    print(f"{labels[i]:26}" + "".join(f"{means[n][i]:8.2f} ± {sds[n][i]:5.2f}" for n in methods))

# The picture: the coefficients, and the calibration on the held-out tumours.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5), width_ratios=[1.35, 1], layout="constrained")
for offset, name in zip((-0.27, -0.09, 0.09, 0.27), methods, strict=True):
    rows = np.arange(len(chosen)) + offset
    left.hlines(rows, *bounds[name][:, chosen], color=colours[name], linewidth=2)
    left.plot(means[name][chosen], rows, "o", color=colours[name], markersize=5, label=name)
left.axvline(0, color="#999999", linewidth=0.8)
left.set_yticks(range(len(chosen)), labels[chosen])
left.invert_yaxis()
left.set_xlabel("coefficient (log odds of benign, an sd of the measurement)")
left.set_title("Coefficients, 90 % intervals", loc="left", fontweight="bold", fontsize=11)
left.legend(frameon=False, loc="best")

for offset, name in zip((-0.27, -0.09, 0.09, 0.27), methods, strict=True):
    group = np.digitize(probabilities[name], [0.1, 0.9])
    n = np.bincount(group, minlength=3)
    benign = np.bincount(group, held_out.y, minlength=3)
    places = np.arange(3) + offset
    right.vlines(places, *stats.beta(benign + 1, n - benign + 1).interval(0.9), color=colours[name], linewidth=2)
    said = np.bincount(group, probabilities[name], minlength=3) / np.maximum(n, 1)
    right.plot(places, said, "D", color="white", markeredgecolor=colours[name], markersize=6)
right.plot([], [], "D", color="white", markeredgecolor="#444444", label="mean predicted probability")
right.plot([], [], color="#444444", linewidth=2, label="share seen, 90 % interval")
right.legend(frameon=False, loc="upper left")
right.set_xticks(range(3), ["below 0.1", "0.1 to 0.9", "above 0.9"])
right.set(xlabel="predicted probability of benign", ylabel="share that is benign", ylim=(-0.02, 1.02))
right.set_title(f"Calibration on the {held_out.size} held out", loc="left", fontweight="bold", fontsize=11)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "breast_cancer.png", dpi=150)
print(f"\nPicture: {options.out / 'breast_cancer.png'}")
