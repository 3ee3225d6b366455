"""Handwritten digits as a mixture of normals: how many components, with what covariances, and what digits it draws.

    p(x | θ) = Σ_k π_k N(x; μ_k, Σ_k)

The data are the first 24 principal components (93 % of the variance) of 1,797 digits of 8 × 8 pixels; a fifth of the
digits is held out. EM runs from two starts for each kind of covariance and number of components K. The labels of the
digits are used for the purity alone.

What to look for: ten components with full covariances describe held-out digits better than sixty with tied or diagonal
ones, by more than 2 nats a digit. Sixty components with a tied covariance have half as many parameters, and a better
BIC. Purity is the share of held-out digits that have the commonest label of their component; it grows with K, and says
nothing about the density. Twenty full covariances have 6,499 parameters, learnt from 1,438 rows. Their held-out density
is a little better, but the report rejects them: in components of few rows, only the floor keeps some variances from
going to zero. Digits are drawn from the candidate with the best held-out density among those not rejected. The verdict
"caution" is for candidates whose two starts end at different maxima.

    python examples/digits_mixture.py [--quick] [--out DIR]
"""

import argparse
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="two candidates instead of six")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()
warnings.simplefilter("ignore", tr.errors.TractableWarning)  # the verdicts are printed

DIMENSIONS = 24
FLOOR = 0.3  # least variance along any direction; pixels go from 0 to 16, and the 24th component's variance is 8
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
train, test = order[len(order) // 5 :], order[: len(order) // 5]
projection = PCA(DIMENSIONS, random_state=0).fit(images[train])
x, held_out = (projection.transform(images[rows]).astype(np.float32) for rows in (train, test))

candidates = [("full", 10), ("full", 20), ("tied", 30), ("tied", 60), ("diagonal", 30), ("diagonal", 60)]
if options.quick:
    candidates = [("full", 10), ("diagonal", 30)]

print(
    f"{len(x)} digits, {len(held_out)} held out; nats a digit; BIC = 2 log p(x | θ) − numbers · log n, up is better\n"
)
print(f"{'':12}{'K':>4}{'numbers':>9}{'learnt':>9}{'held out':>10}{'BIC':>10}{'purity':>8}{'seconds':>9}  verdict")
found = {}
for kind, components in candidates:
    began = time.perf_counter()
    model = tr.models.mixture.gaussian_mixture(components, DIMENSIONS, kind, floor=FLOOR)
    posterior = tr.infer(model, x, tr.EM(starts=2, steps=200, tolerance=1e-5), seed=0)
    theta = jax.tree.map(jnp.asarray, posterior.mean())
    learnt, beyond = (np.asarray(model.log_prob(theta, rows), np.float64) for rows in (x, held_out))
    bic = 2 * learnt.sum() - model.parameters * np.log(len(x))
    nearest, theirs = (np.asarray(model.responsibilities(theta, rows)).argmax(1) for rows in (x, held_out))
    counts = np.zeros((components, 10))
    np.add.at(counts, (nearest, labels[train]), 1)
    purity = np.mean(counts.argmax(1)[theirs] == labels[test])
    verdict, seconds = posterior.report().verdict, time.perf_counter() - began
    numbers = f"{components:4}{model.parameters:9,}{learnt.mean():9.2f}{beyond.mean():10.2f}{bic:10,.0f}{purity:8.3f}"
    print(f"{kind:12}{numbers}{seconds:9.1f}  {verdict}", flush=True)
    if verdict != "reject":
        found[kind, components] = beyond.mean(), model, theta

kind, components = max(found, key=lambda name: found[name][0])
_, model, theta = found[kind, components]
drawn, which = model.sample(jax.random.key(1), theta, 28)
shares = np.asarray(theta.weights)
print(f"\nDrawn from {components} {kind} covariances; shares of {shares.min():.2f} to {shares.max():.2f}")

# The picture: held-out digits, digits drawn from the model, and the mean of every component.
columns = 14
biggest = np.argsort(shares)[::-1][:columns]
seen = images[test][: 2 * columns]
parts = {
    "Held out": seen,
    f"The same through {DIMENSIONS} principal components": projection.inverse_transform(held_out[: 2 * columns]),
    "Drawn from the mixture": projection.inverse_transform(np.asarray(drawn)),
    "Means of its components, by share": projection.inverse_transform(np.asarray(theta.means)[biggest]),
}
heights = [-(-len(rows) // columns) for rows in parts.values()]
figure = plt.figure(figsize=(9.2, 6.6), layout="constrained")
for panel, (title, rows) in zip(figure.subfigures(len(parts), 1, height_ratios=heights), parts.items(), strict=True):
    grid = panel.subplots(-(-len(rows) // columns), columns, squeeze=False)
    panel.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    for i, axis in enumerate(grid.flat):
        axis.set_axis_off()
        if i < len(rows):
            axis.imshow(rows[i].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16, interpolation="bilinear")
        if i < len(rows) and title.startswith("Means"):
            axis.set_title(f"{shares[biggest[i]]:.2f}", fontsize=8, color="#555555", pad=2)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "digits_mixture.png", dpi=150)
print(f"\nPicture: {options.out / 'digits_mixture.png'}")
