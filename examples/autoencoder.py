"""A variational autoencoder of handwritten digits: two numbers code 64 pixels, and missing pixels are filled in.

    p(x, z) = N(z; 0, I) Π_j Bernoulli(x_j; f_θ(z)_j),   q(z | x) = N(μ_φ(x), diag σ²_φ(x))

The data are 1,797 digits of 8 × 8 pixels, black or white, of which a fifth is held out. The same network is learnt
twice: by the evidence bound ELBO, and by the importance-weighted bound of 20 draws.

What to look for: with more draws for each digit, the density of held-out digits is better, but a single draw of q is
worth less: the ELBO is lower, and so is the effective sample size (ESS) of the weights. Then the lower half of each
held-out digit is taken away, and weighted draws of z fill it in from the upper half. The log loss of the filled-in
pixels is well below the log loss of each pixel's own frequency. A reconstruction has a still lower log loss, because
it is made from all pixels of the digit.

    python examples/autoencoder.py [--quick] [--out DIR]
"""

import argparse
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import load_digits

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="30 epochs instead of 300")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()
warnings.simplefilter("ignore", tr.errors.TractableWarning)  # the verdicts are printed

images, labels = load_digits(return_X_y=True)
x = (images > 8).astype(np.float32)  # the pixels of ``images`` go from 0 to 16
order = np.random.default_rng(0).permutation(len(x))
train, test = x[order[len(x) // 5 :]], x[order[: len(x) // 5]]

ladder = tr.models.latent_gaussian(64, 2, hidden=(100, 50))
settings = {"epochs": 30 if options.quick else 300, "learning_rate": 3e-3}
methods = {"ELBO": tr.AutoEncoding(**settings), "20 draws": tr.ImportanceWeighted(samples=20, **settings)}

print(f"{len(train):,} digits, {len(test)} held out; {settings['epochs']} epochs; nats a digit, higher is better\n")
print(f"{'climbed':10}{'ELBO':>8}{'of 1000':>9}{'ESS %':>7}{'seconds':>9}  verdict   held out")
learnt = {}
for name, method in methods.items():
    began = time.perf_counter()
    posterior = learnt[name] = tr.infer(ladder, tr.Data(train), method, seed=0)
    seen = posterior.log_evidence(test, samples=1000)
    share = 100 * np.median(seen.effective) / seen.samples
    took = time.perf_counter() - began
    verdict = posterior.report().verdict
    print(f"{name:10}{seen.elbo.mean():8.2f}{seen.mean:9.2f}{share:7.1f}{took:9.1f}  {verdict}", flush=True)

# The lower half of each held-out digit is taken away, and filled in from the upper half.
posterior, lower = learnt["20 draws"], np.arange(64) >= 32
gaps = np.where(lower, np.nan, test)
filled = posterior.impute(gaps, samples=200)


def log_loss(p: np.ndarray) -> float:
    """Mean log loss of the lower half's pixels, in nats, for the probabilities p that they are 1."""
    p = np.clip(p[:, lower], 1e-4, 1 - 1e-4)
    return float(-np.mean(np.where(test[:, lower] > 0.5, np.log(p), np.log1p(-p))))


frequency = np.broadcast_to(train.mean(0), test.shape)
print("\nlower half, log loss of a pixel in nats")
print(f"its own frequency    {log_loss(frequency):.3f}")
print(f"imputed              {log_loss(filled.mean):.3f}")
print(f"reconstructed        {log_loss(posterior.reconstruct(test, draws=20)):.3f}")

# The picture: the codes, the digits that the decoder draws from them, and the filled-in halves.
figure = plt.figure(figsize=(11, 7.4), layout="constrained")
left, right = figure.subfigures(1, 2)
upper, middle = left.subfigures(2, 1, height_ratios=(1.1, 1))
axis = upper.subplots()
codes = posterior.encode(test).mean[0]
dots = axis.scatter(*codes.T, c=labels[order[: len(x) // 5]], cmap="tab10", s=12)
upper.colorbar(dots, ax=axis, ticks=range(10))
axis.set(xlabel="z₁", ylabel="z₂", title="Codes of held-out digits, by the digit")
middle.suptitle("Held out · its upper half, filled in · a draw", x=0.01, ha="left", fontsize=11)
for column, axes in enumerate(middle.subplots(3, 9).T):
    for axis, row in zip(axes, (test[column], filled.mean[column], filled.draws[0, column]), strict=True):
        axis.set_axis_off()
        axis.imshow(row.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axis.axhline(3.5, color="tab:red", linewidth=0.6)
side = 14
levels = norm.ppf((np.arange(side) + 0.5) / side)  # quantiles of z: neighbours enclose equal shares of the prior
grid = np.stack(np.meshgrid(levels, levels[::-1]), -1).reshape(-1, 2).astype(np.float32)
pixels = np.asarray(ladder.generative(posterior.mean(), (grid,))[0].mean)
sheet = pixels.reshape(side, side, 8, 8).swapaxes(1, 2).reshape(8 * side, 8 * side)
axis = right.subplots()
axis.set_axis_off()
axis.imshow(sheet, cmap="gray_r", vmin=0, vmax=1)
axis.set_title("P(x = 1 | z) over equal shares of the prior of z")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "autoencoder.png", dpi=130)
print(f"\nPicture: {options.out / 'autoencoder.png'}")
