"""A variational autoencoder of handwritten digits: two codes for 64 pixels, and pixels that are missing.

    p(x, z) = N(z; 0, I) Π_j Bernoulli(x_j; f_θ(z)_j),   q(z | x) = N(μ_φ(x), diag σ²_φ(x))

1,797 digits of 8 × 8 pixels, black or white, a fifth held out. The same network by the ELBO and by a bound of 20 draws.

What to look for: more draws a digit give a better density, held out, and a q whose single draws are worth less (its
ELBO falls behind, its weights count for fewer). A lower half that was never seen is filled in from the upper one by
weighted draws of z: the pixels' log loss is well below that of each pixel's own frequency, and not as low as that of a
reconstruction, which has seen what it is asked for.

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
x = (images > 8).astype(np.float32)  # a pixel goes from 0 to 16
order = np.random.default_rng(0).permutation(len(x))
train, test = x[order[len(x) // 5 :]], x[order[: len(x) // 5]]

ladder = tr.models.latent_gaussian(64, 2, hidden=(100, 50))
settings = {"epochs": 30 if options.quick else 300, "learning_rate": 3e-3}
methods = {"ELBO": tr.AutoEncoding(**settings), "20 draws": tr.ImportanceWeighted(samples=20, **settings)}

print(f"{len(train):,} digits, {len(test)} held out; {settings['epochs']} epochs; nats a digit, up is better\n")
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

# The lower half is taken away, and filled in from the upper one.
posterior, lower = learnt["20 draws"], np.arange(64) >= 32
gaps = np.where(lower, np.nan, test)
filled = posterior.impute(gaps, samples=200)


def log_loss(p: np.ndarray) -> float:
    """Nats a pixel of the lower half."""
    p = np.clip(p[:, lower], 1e-4, 1 - 1e-4)
    return float(-np.mean(np.where(test[:, lower] > 0.5, np.log(p), np.log1p(-p))))


frequency = np.broadcast_to(train.mean(0), test.shape)
print("\nlower half, log loss of a pixel in nats")
print(f"its own frequency    {log_loss(frequency):.3f}")
print(f"imputed              {log_loss(filled.mean):.3f}")
print(f"reconstructed        {log_loss(posterior.reconstruct(test, draws=20)):.3f}")

# The picture: codes, what they draw, and the halves.
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
levels = norm.ppf((np.arange(side) + 0.5) / side)  # equal shares of the prior
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
