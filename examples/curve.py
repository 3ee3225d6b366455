"""A curve with data on a third of the axis only: predictive bands should widen where there are no data.

    model = tr.models.neural_network(tr.models.mlp(1, (32, 32), 1), noise=NOISE)
    posterior = tr.infer(model, data, tr.BayesByBackprop(batch_size=None, samples=4, learning_rate=0.01))
    mean, sd, aleatoric, epistemic, lower, upper, *_ = posterior.predict(x, level=0.9)

The curve is that of Blundell et al. (2015, section 5.2): y = x + 0.3 sin 2π(x + e) + 0.3 sin 4π(x + e) + e with
e ~ N(0, 0.02²). A hundred x lie in [0, 0.5], and predictions are shown on [−0.4, 1.2]. One network is learnt in four
ways: by its maximum (MAP), by an ensemble of five maxima, by Bayes by Backprop, and by NUTS.

What to look for: the ratio of the width of the band for a new y at both ends to its width where there are data. The
ratio is 1.0 for MAP and 1.3 for the ensemble, so their bands hardly widen. It is 3.3 for Bayes by Backprop, and twice
as much, 6.2, for NUTS. The sd of f by Bayes by Backprop is 2.3 times that of NUTS where there are data, and 0.6 times
that of NUTS at the ends. No method predicts that the curve turns: a band only covers what the network and
the prior allow.

The second table varies Bayes by Backprop. The band widens because of the ReLUs, whose uncertain slopes continue; with
tanh, which saturates, it becomes narrower (0.9). A wider prior, N(0, 1) for every weight, widens the band more (22).
If the noise is learnt, the mean field explains much of the curve as noise (1.7). The start matters little here: from a
random start instead of a maximum the ratio is 3.8.

    python examples/curve.py [--quick] [--out DIR]
"""

import argparse
import dataclasses
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer steps and draws")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()


def curve(x: np.ndarray, e: np.ndarray | float = 0.0) -> np.ndarray:
    """The curve of Blundell et al., whose noise e enters in three places."""
    return x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e


rng = np.random.default_rng(1)
x = rng.uniform(0, 0.5, 100)
y = curve(x, rng.normal(0, 0.02, 100))
grid = np.linspace(-0.4, 1.2, 161)
inside, ends = (grid >= 0) & (grid <= 0.5), [0, -1]
unit = y.std()
NOISE = 0.05 / unit  # sd of the standardised y; more than the 0.02 of e, which the sines amplify up to sevenfold


def inputs(x: np.ndarray) -> np.ndarray:
    """x as the network's inputs (n, 1), standardised by the mean and sd of a uniform on [0, 0.5]."""
    return ((x - 0.25) / np.sqrt(0.5**2 / 12))[:, None]


def network(activation: str = "relu", prior: float | str = "scaled", noise: float | None = NOISE) -> tr.Model:
    """The model y ~ N(f(x), noise²) of the standardised y; f is a network with two layers of 32 units."""
    return tr.models.neural_network(tr.models.mlp(1, (32, 32), 1, activation), prior=prior, noise=noise)


data = tr.Data((y - y.mean()) / unit, given=inputs(x))
draws = 100 if options.quick else 300
bbb = tr.BayesByBackprop(
    batch_size=None, samples=4, learning_rate=0.01, steps=1500 if options.quick else 10_000, draws=1000
)
methods = {
    "MAP": tr.MAP(optimizer="adam"),
    "Ensemble of five": tr.DeepEnsemble(member=tr.MAP(optimizer="adam"), size=5),
    "Bayes by Backprop": bbb,
    "NUTS": tr.NUTS(draws=draws, warmup=draws, chains=2 if options.quick else 4),
}
colours = {"MAP": "#8a8f98", "Ensemble of five": "#e2952f", "Bayes by Backprop": "#1b5e8c", "NUTS": "#3a9b7a"}


def fit(name: str, model: tr.Model, method: tr.Method) -> tr.Prediction:
    """Learn, predict on the grid, and print the sd of f, in units of y, where there are data and at the ends."""
    began = time.perf_counter()
    posterior = tr.infer(model, data, method, seed=0)
    seconds = time.perf_counter() - began
    prediction = posterior.predict(inputs(grid), level=0.9)
    f, total = unit * prediction.epistemic, prediction.sd
    within, far = f[inside].mean(), f[ends].mean()
    ratio = f"{far / within:8.1f}" if within > 0 else f"{'–':>8}"
    band = total[ends].mean() / total[inside].mean()
    print(
        f"{name:24}{within:9.3f}{far:8.3f}{ratio}{band:11.2f}{seconds:9.1f}  {posterior.report().verdict}", flush=True
    )
    return prediction


print(f"{'':24}{'sd of f':>17}{'':8}{'band of y':>11}")
print(f"{'':24}{'inside':>9}{'ends':>8}{'ratio':>8}{'ratio':>11}{'seconds':>9}  verdict")
found = {name: fit(name, network(), method) for name, method in methods.items()}
if not options.quick:
    print("\nBayes by Backprop, with")
    fit("  start='random'", network(), dataclasses.replace(bbb, start="random"))
    fit("  prior N(0, 1)", network(prior=1.0), bbb)
    fit("  tanh for ReLU", network("tanh"), bbb)
    fit("  noise learnt", network(noise=None), bbb)

# The picture: one panel for each method.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, panels = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
for panel, (name, prediction) in zip(panels.flat, found.items(), strict=True):
    mean, sd = y.mean() + unit * prediction.mean, unit * prediction.epistemic
    lower, upper = (y.mean() + unit * bound for bound in (prediction.lower, prediction.upper))
    colour = colours[name]
    panel.fill_between(grid, lower, upper, color=colour, alpha=0.18, linewidth=0, label="90 % of new y")
    panel.fill_between(
        grid, mean - 1.645 * sd, mean + 1.645 * sd, color=colour, alpha=0.35, linewidth=0, label="90 % of f"
    )
    panel.plot(grid, mean, color=colour, linewidth=2, label="mean")
    panel.plot(grid, curve(grid), "--", color="#444444", linewidth=1, label="the curve")
    panel.plot(x, y, ".", color="#444444", markersize=4, label="data")
    ratio = prediction.sd[ends].mean() / prediction.sd[inside].mean()
    panel.set_title(f"{name}: at the ends {ratio:.1f} × as wide", loc="left", fontweight="bold", fontsize=11)
    panel.set(xlim=(-0.4, 1.2), ylim=(-1.6, 2.2))
for panel in panels[-1]:
    panel.set_xlabel("x")
for panel in panels[:, 0]:
    panel.set_ylabel("y")
panels[0, 0].legend(frameon=False, loc="upper left", fontsize=9)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "curve.png", dpi=150)
print(f"\nPicture: {options.out / 'curve.png'}")
