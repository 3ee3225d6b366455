"""Where the data are silent: a curve seen on a third of the axis, and bands that should widen on the rest.

    model = tr.models.neural_network(tr.models.mlp(1, (32, 32), 1), noise=NOISE)
    posterior = tr.infer(model, data, tr.BayesByBackprop(batch_size=None, samples=4, learning_rate=0.01))
    mean, sd, aleatoric, epistemic, lower, upper, *_ = posterior.predict(x, level=0.9)

Blundell et al. (2015, section 5.2): y = x + 0.3 sin 2π(x + e) + 0.3 sin 4π(x + e) + e, e ~ N(0, 0.02²), a hundred x in
[0, 0.5], shown on [−0.4, 1.2]. One network, learnt four ways: its maximum, five maxima, Bayes by Backprop, NUTS.

What to look for: the band of a new y at both ends, over that inside. The maximum's is as wide as ever (1.0), an
ensemble's nearly so (1.3); by Bayes by Backprop it widens (3.3), by NUTS twice as much (6.2). For f, the mean field's
sd is 2.3 times that of NUTS inside and 0.6 times at the ends. None foresees that the curve turns: a band holds what
the network and the prior leave open.

What makes it widen (the second table): ReLUs, whose uncertain slopes go on; tanh saturates and its band narrows (0.9).
A wider prior, N(0, 1) for every weight (22). With the noise learnt, a mean field takes much of the curve for noise
(1.7). Where it starts matters little here: 3.8 from a random start, not from a maximum.

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
    """Blundell et al.'s, with noise that enters in three places."""
    return x + 0.3 * np.sin(2 * np.pi * (x + e)) + 0.3 * np.sin(4 * np.pi * (x + e)) + e


rng = np.random.default_rng(1)
x = rng.uniform(0, 0.5, 100)
y = curve(x, rng.normal(0, 0.02, 100))
grid = np.linspace(-0.4, 1.2, 161)
inside, ends = (grid >= 0) & (grid <= 0.5), [0, -1]
unit = y.std()
NOISE = 0.05 / unit  # sd, of y as it is learnt; e is amplified up to sevenfold on its way into y


def inputs(x: np.ndarray) -> np.ndarray:
    """Standardised as the data's are, (n, 1)."""
    return ((x - 0.25) / np.sqrt(0.5**2 / 12))[:, None]


def network(activation: str = "relu", prior: float | str = "scaled", noise: float | None = NOISE) -> tr.Model:
    """y ~ N(f(x), noise²), standardised; f of two layers of 32 units."""
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
    """Learn, predict on the grid, and print a line: sd of f, in units of y, inside the data and at the ends."""
    began = time.perf_counter()
    posterior = tr.infer(model, data, method, seed=0)
    seconds = time.perf_counter() - began
    told = posterior.predict(inputs(grid), level=0.9)
    f, total = unit * told.epistemic, told.sd
    within, far = f[inside].mean(), f[ends].mean()
    ratio = f"{far / within:8.1f}" if within > 0 else f"{'–':>8}"
    band = total[ends].mean() / total[inside].mean()
    print(
        f"{name:24}{within:9.3f}{far:8.3f}{ratio}{band:11.2f}{seconds:9.1f}  {posterior.report().verdict}", flush=True
    )
    return told


print(f"{'':24}{'sd of f':>17}{'':8}{'band of y':>11}")
print(f"{'':24}{'inside':>9}{'ends':>8}{'ratio':>8}{'ratio':>11}{'seconds':>9}  verdict")
found = {name: fit(name, network(), method) for name, method in methods.items()}
if not options.quick:
    print("\nBayes by Backprop, with")
    fit("  start='random'", network(), dataclasses.replace(bbb, start="random"))
    fit("  prior N(0, 1)", network(prior=1.0), bbb)
    fit("  tanh for ReLU", network("tanh"), bbb)
    fit("  noise learnt", network(noise=None), bbb)

# The picture: a panel a method.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, panels = plt.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
for panel, (name, told) in zip(panels.flat, found.items(), strict=True):
    mean, sd = y.mean() + unit * told.mean, unit * told.epistemic
    lower, upper = (y.mean() + unit * bound for bound in (told.lower, told.upper))
    colour = colours[name]
    panel.fill_between(grid, lower, upper, color=colour, alpha=0.18, linewidth=0, label="90 % of new y")
    panel.fill_between(
        grid, mean - 1.645 * sd, mean + 1.645 * sd, color=colour, alpha=0.35, linewidth=0, label="90 % of f"
    )
    panel.plot(grid, mean, color=colour, linewidth=2, label="mean")
    panel.plot(grid, curve(grid), "--", color="#444444", linewidth=1, label="the curve")
    panel.plot(x, y, ".", color="#444444", markersize=4, label="data")
    ratio = told.sd[ends].mean() / told.sd[inside].mean()
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
