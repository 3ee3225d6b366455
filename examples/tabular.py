"""Calibrated prediction intervals from a table in four lines: diabetes after a year, from ten measurements.

    model = BayesianMLPRegressor(method="bbb", calibration=0.3, random_state=0)
    model.fit(X_train, y_train)
    mean = model.predict(X_test)
    lower, upper = model.predict_interval(X_test).T

The data are 442 patients (Efron et al. 2004), of whom 110 are held out. The estimators standardise the columns and y,
and learn a posterior of the network's weights, here by Bayes by Backprop. 30 % of the training rows do not enter the
fit but calibrate the intervals (split conformal prediction). The intervals then contain 90 % of new patients, even if
the network is wrong.

What to look for: the share of held-out patients inside the intervals is 0.90 up to chance, which is about 0.04 for 99
patients that calibrate and 110 that test. The network explains hardly more than the linear model: its R² is 0.38, and
that of the linear model 0.35 (--quick).

    python examples/tabular.py [--quick] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import tractable as tr
from tractable.estimators import BayesianLinearRegression, BayesianMLPRegressor

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=110, random_state=0)

steps = 1000 if options.quick else 20_000
models = {
    "network": BayesianMLPRegressor(method=tr.BayesByBackprop(steps=steps), calibration=0.3, random_state=0),
    "linear": BayesianLinearRegression(calibration=0.3, random_state=0),
}
colours = {"network": "#1b5e8c", "linear": "#d1495b"}

print(f"{'':8}{'R²':>6}{'inside 90 %':>13}{'width':>8}{'seconds':>9}  verdict")
means, intervals = {}, {}
for name, model in models.items():
    began = time.perf_counter()
    model.fit(X_train, y_train)
    seconds = time.perf_counter() - began
    means[name] = model.predict(X_test)
    intervals[name] = lower, upper = model.predict_interval(X_test).T
    inside, width = np.mean((lower <= y_test) & (y_test <= upper)), np.mean(upper - lower)
    verdict = model.report_.verdict
    print(f"{name:8}{model.score(X_test, y_test):6.2f}{inside:13.3f}{width:8.0f}{seconds:9.1f}  {verdict}")

# The linear model's coefficients, in the data's units.
linear = models["linear"]
print(f"\n{'coefficient':12}{'mean':>8}{'sd':>8}")
for name, mean, sd in zip(linear.feature_names_in_, linear.coef_, linear.coef_std_, strict=True):
    print(f"{name:12}{mean:8.0f}{sd:8.0f}")

plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, panels = plt.subplots(1, 2, figsize=(10.5, 5), sharey=True, layout="constrained")
for panel, name in zip(panels, models, strict=True):
    order = np.argsort(means[name])
    place, (lower, upper) = np.arange(len(order)), intervals[name]
    seen = np.asarray(y_test)[order]
    outside = (seen < lower[order]) | (seen > upper[order])
    panel.fill_between(place, lower[order], upper[order], color=colours[name], alpha=0.18, label="90 % interval")
    panel.plot(place, means[name][order], color=colours[name], linewidth=2, label="mean")
    panel.plot(place[~outside], seen[~outside], ".", color="#444444", markersize=6, label="patient held out")
    panel.plot(place[outside], seen[outside], "x", color="#e2952f", markersize=7, label="outside")
    panel.set_xlabel("patients, by predicted progression")
    panel.set_title(f"{name.capitalize()}: {np.mean(~outside):.0%} inside", loc="left", fontweight="bold", fontsize=11)
panels[0].set_ylabel("progression after a year")
panels[0].legend(frameon=False, loc="upper left")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "tabular.png", dpi=150)
print(f"\nPicture: {options.out / 'tabular.png'}")
