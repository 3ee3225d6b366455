"""A million rows from a file: SGLD uses a thousand rows for each step, and predicts the bias that this causes.

The rows are made in chunks and written to memory-mapped files. A run holds rows of less than 4 GiB, as here, in memory;
if there are more, it reads every batch from the file.
Stochastic gradients add noise, which widens the posterior. tractable measures that noise and the curvature, chooses the
step so that it predicts no marginal sd to be more than 5 % too large, and reports the prediction. Control variates
subtract the batch's gradient at the mode from every stochastic gradient, which leaves far less noise and allows longer
steps.

What to look for: with a million rows and 21 parameters the posterior is nearly normal, so the sd of MAP
(from the observed information) is nearly exact. The ratio of SGLD's sd to MAP's sd should be 1 plus the predicted bias.

    python examples/million_rows.py [--quick] [--out DIR]
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.lib.format import open_memmap

import tractable as tr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="20,000 rows")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

ROWS, FEATURES, CHUNK = 20_000 if options.quick else 1_000_000, 20, 10_000
rng = np.random.default_rng(0)
truth = np.concatenate([[-1.0], rng.normal(0, 0.5, FEATURES)])  # intercept, weights
mix = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(range(FEATURES), range(FEATURES)))).T

with tempfile.TemporaryDirectory() as folder:
    x_path, y_path = Path(folder) / "x.npy", Path(folder) / "y.npy"
    x = open_memmap(x_path, "w+", np.float32, (ROWS, FEATURES))
    y = open_memmap(y_path, "w+", np.int8, (ROWS,))
    for first in range(0, ROWS, CHUNK):
        rows = rng.normal(size=(CHUNK, FEATURES)) @ mix  # neighbouring inputs correlate at 0.5
        x[first : first + CHUNK] = rows
        chance = 1 / (1 + np.exp(-truth[0] - rows @ truth[1:]))
        y[first : first + CHUNK] = rng.random(CHUNK) < chance
    x.flush()
    y.flush()

    data = tr.Data(y_path, given=x_path)
    model = tr.models.linear.generalised_linear(FEATURES, "bernoulli")
    batch = 200 if options.quick else 1000
    count = {"draws": 500 if options.quick else 1000, "batch_size": batch, "warmup": 1000}
    methods = {
        "MAP": tr.MAP(),
        "SGLD": tr.SGLD(**count),
        "SGLD, control variates": tr.SGLD(**count, gradient="control_variates"),
    }
    posteriors = {name: tr.infer(model, data, method, seed=0) for name, method in methods.items()}
    reports = {name: posterior.report() for name, posterior in posteriors.items()}
    bias = {name: posterior.predicted_bias for name, posterior in posteriors.items()}

mean = {name: posterior.summary()["mean"].to_numpy() for name, posterior in posteriors.items()}
sd = {name: posterior.summary()["sd"].to_numpy() for name, posterior in posteriors.items()}
ratio = {name: sd[name] / sd["MAP"] for name in methods if name != "MAP"}

print(f"{data.size:,} rows × {FEATURES} inputs, batches of {batch}, {len(truth)} parameters\n")
print(f"{'':24}{'steps/s':>9}{'bias of sd':>12}{'sd / MAP':>10}{'off, in sd':>12}  verdict")
print(f"{'':24}{'':9}{'predicted':>12}{'mean':>10}{'largest':>12}")
for name in ratio:
    posterior = posteriors[name]
    speed = posterior.chains * posterior.count * posterior.thin / posterior.seconds["drawing"]
    off = np.abs((mean[name] - mean["MAP"]) / sd["MAP"]).max()
    numbers = f"{speed:9,.0f}{bias[name].inflation.mean():+12.1%}{ratio[name].mean():10.3f}{off:12.2f}"
    print(f"{name:24}{numbers}  {reports[name].verdict}")

names = posteriors["MAP"].names
print(f"\n{'':12}{'truth':>8}{'MAP ± standard error':>24}{'SGLD mean ± sd':>22}")
for i in range(5):
    point, drawn = (f"{mean[n][i]:.4f} ± {sd[n][i]:.4f}" for n in ("MAP", "SGLD"))
    print(f"{names[i]:12}{truth[i]:8.4f}{point:>24}{drawn:>22}")
print(f"... and {len(names) - 5} more")

# The picture: the estimates' distances from the true values, and the ratios of the sds.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5.6), sharey=True, layout="constrained")
colours = {"MAP": "#8a8f98", "SGLD": "#1b5e8c", "SGLD, control variates": "#e2952f"}
places = np.arange(len(names))
for offset, name in zip((-0.25, 0, 0.25), methods, strict=True):
    away, wide = mean[name] - truth, 1.645 * sd[name]
    left.errorbar(away, places + offset, xerr=wide, fmt="o", markersize=3.5, color=colours[name], label=name)
    if name in ratio:
        right.plot(ratio[name], places + offset, "o", markersize=4.5, color=colours[name])
        right.plot(1 + bias[name].inflation, places + offset, "|", markersize=9, color=colours[name])
left.axvline(0, color="#444444", linewidth=0.8)
left.set(xlabel="estimate − truth, with 90 % intervals", yticks=places, yticklabels=names)
left.invert_yaxis()
right.axvline(1, color="#444444", linewidth=0.8)
right.plot([], [], "o", color="#444444", markersize=4.5, label="measured")
right.plot([], [], "|", color="#444444", markersize=9, label="predicted")
right.set(xlabel="sd / MAP's standard error", xlim=(0.8, 1.2))
right.legend(frameon=False, fontsize=9)
figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False)
figure.suptitle(f"{data.size:,} rows", x=0.01, ha="left", fontweight="bold")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "million_rows.png", dpi=150)
print(f"\nPicture: {options.out / 'million_rows.png'}")
