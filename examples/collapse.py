"""Posterior collapse and its cure: an autoencoder of grey digits with too large a noise, and one that learns its noise.

    p(x, z) = N(z; 0, I) N(x; f_θ(z), σ² I),   q(z | x) = N(μ_φ(x), diag s²_φ(x)),   20 units for 64 pixels in [0, 1]

To maximise −½ Σ (x − f)² − KL, with the plain squared error, is to assume σ = 1. If f is linear, this model is
probabilistic PCA (Tipping & Bishop 1999; Lucas, Tucker, Grosse & Norouzi 2019), and its best evidence bound (ELBO) is
known. At the best ELBO one unit is active for every eigenvalue λ > σ² of the data's covariance, up to the number of
units, and each active unit has a KL divergence of ½ log(λ/σ²) nats. A nat of KL adds at most λ₁/σ² nats to the
likelihood. At σ = 1 this is 0.66 nats, less than the KL costs, so the best model has no code at all.

What to look for: at σ = 1 every KL is 0 because this is the maximum, not because the optimisation failed. The
reconstructed digits and the drawn digits are all the mean digit, and the report says so. Warm-up ends at the same
place. Free bits raise the KL, but lower the ELBO. The cure is in the model: if σ has the right size, given or learnt,
there are as many active units as the eigenvalues predict, and the ELBO is the predicted one. A network in place of the
linear map collapses, and is cured, in the same way.

    python examples/collapse.py [--quick] [--out DIR]
"""

import argparse
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="three of the eight runs")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()
warnings.simplefilter("ignore", tr.errors.TractableWarning)  # the verdicts are printed

UNITS = 20
ACTIVE = 0.01  # a unit whose KL is above so many nats counts as active
images = np.asarray(load_digits(return_X_y=True)[0])
x = (images[:1000] / 16).astype(np.float32)  # as many rows as ``found["elbo"]`` of a fit is computed from
eigenvalues = np.linalg.eigvalsh(np.cov(x.T.astype(float), bias=True))[::-1]
right = float(np.sqrt(eigenvalues[UNITS:].mean()))  # σ at the maximum of the likelihood


def costs(sigma: float) -> np.ndarray:
    """KL of each unit of the best linear model at σ, (UNITS,), in nats a digit."""
    return np.log(np.maximum(eigenvalues[:UNITS] / sigma**2, 1)) / 2


def best(sigma: float) -> float:
    """The best ELBO of a linear map, nats a digit: that of a normal with variance max(λ, σ²), or σ² without a unit."""
    variances = np.full(len(eigenvalues), sigma**2)
    variances[:UNITS] = np.maximum(eigenvalues[:UNITS], sigma**2)
    return float(-np.sum(np.log(2 * np.pi * variances) + eigenvalues / variances) / 2)


def kl(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Mean of each unit's KL(q ‖ N(0, 1)) over the digits, in nats, the largest first."""
    return np.sort(np.mean((mean**2 + sd**2 - 1) / 2 - np.log(sd), 0))[::-1]


def autoencoder(sigma: float | None, hidden: tuple[int, ...]) -> tr.models.Ladder:
    """An autoencoder with the noise's sd ``sigma``, or with one that is learnt (None)."""
    if sigma is None:
        return tr.models.latent_gaussian(64, UNITS, hidden=hidden, family="normal", noise="shared")
    return tr.models.latent_gaussian(64, UNITS, hidden=hidden, family=tr.models.normal_noise(sigma))


runs = {  # σ or None if it is learnt, the network's hidden widths, further settings
    "linear, σ = 1": (1.0, (), {}),
    "… with warm-up": (1.0, (), {"warmup": 250}),
    "… with free bits": (1.0, (), {"free_bits": 0.1}),
    "linear, σ = 0.5": (0.5, (), {}),
    "linear, σ = 0.35": (0.35, (), {}),
    "linear, σ learnt": (None, (), {}),
    "network, σ = 1": (1.0, (50,), {}),
    "network, σ learnt": (None, (50,), {}),
}
if options.quick:
    runs = {name: runs[name] for name in ("linear, σ = 1", "linear, σ = 0.5", "linear, σ learnt")}
settings = {"epochs": 500, "batch_size": 250, "learning_rate": 2e-2}

print(f"{len(x):,} digits, {UNITS} units; {settings['epochs']} epochs; nats a digit, higher is better")
print(f"eigenvalues {', '.join(f'{v:.2f}' for v in eigenvalues[:6])} …; right σ {right:.3f}; law: what they predict\n")
print(f"{'':19}{'':>5}{'active units':>15}{'KL':>15}{'ELBO':>17}")
print(f"{'':19}{'σ':>5}" + f"{'found':>9}{'law':>6}" * 2 + f"{'found':>10}{'law':>8}{'seconds':>9}  verdict")
fits, paid, noise = {}, {}, {}
for name, (sigma, hidden, extra) in runs.items():
    began = time.perf_counter()
    ladder = autoencoder(sigma, hidden)
    posterior = fits[name] = tr.infer(ladder, tr.Data(x), tr.AutoEncoding(**settings, **extra), seed=0)
    codes = posterior.encode(x)
    paid[name] = kl(codes.mean[0], codes.sd[0])
    noise[name] = float(np.sqrt(ladder.generative(posterior.mean(), codes.mean)[0].variance).mean())
    asked = right if sigma is None else sigma
    law = "–", "–", "–"
    if not hidden:
        law = f"{np.sum(costs(asked) > 0)}", f"{costs(asked).sum():.2f}", f"{best(asked):.2f}"
    active, spent, elbo = np.sum(paid[name] > ACTIVE), paid[name].sum(), posterior.found["elbo"]
    took, verdict = time.perf_counter() - began, posterior.report().verdict
    print(f"{name:19}{noise[name]:5.3f}{active:9}{law[0]:>6}{spent:9.2f}{law[1]:>6}{elbo:10.2f}{law[2]:>8}", end="")
    print(f"{took:9.1f}  {verdict}", flush=True)

# Eight digits reconstructed from their codes, eight drawn ones, and how far both are from the mean digit.
shown, middle = x[:8], x.mean(0)
pictured = [name for name in runs if name in ("linear, σ = 1", "linear, σ learnt", "network, σ learnt")]
again = {name: fits[name].reconstruct(shown, draws=20) for name in pictured}
drawn = {name: fits[name].generate(8).mean for name in pictured}


def away(rows: np.ndarray) -> float:
    """Root mean square difference between the rows' pixels and those of the mean digit."""
    return float(np.sqrt(np.mean((rows - middle) ** 2)))


print(f"\ndistance from the mean digit, for each pixel: digits {away(shown):.3f}")
for name in pictured:
    print(f"{name:19}reconstructed {away(again[name]):.3f}, drawn {away(drawn[name]):.3f}")
check = next(c for c in fits["linear, σ = 1"].report().checks if "collapsed" in c.sentence)
print(f"\nThe report at σ = 1, {check.verdict}: {check.sentence.partition('. ')[2].partition('. ')[0]}.")

# The picture: the spectrum and σ², the number of active units and their KL, and the reconstructed and drawn digits.
figure = plt.figure(figsize=(13, 5.8), layout="constrained")
left, centre, right_side = figure.subfigures(1, 3, width_ratios=(0.8, 0.95, 1.25))
linear = {name: noise[name] for name in runs if name.startswith("linear")}
colours = {name: f"C{3 - i}" for i, name in enumerate(linear)}
axis = left.subplots()
axis.semilogy(np.arange(1, 41), eigenvalues[:40], ".", color="0.3")
for name, sigma in linear.items():
    axis.axhline(sigma**2, color=colours[name], linewidth=1)
    place = (1, "left") if sigma < 0.2 else (40, "right")
    axis.text(place[0], sigma**2 * 1.04, name.partition(", ")[2], color=colours[name], ha=place[1], va="bottom")
axis.set_title("Variances of the data, and of the noise", fontsize=11)
axis.axvline(UNITS + 0.5, color="0.7", linewidth=0.8, linestyle=":")
axis.text(UNITS, 6e-3, f"{UNITS} units", ha="right", color="0.5")
axis.set(xlabel="direction", ylabel="λ, and σ²", ylim=(5e-3, 1.6))

upper, lower = centre.subplots(2, 1)
grid = np.geomspace(0.07, 1.3, 500)
upper.plot(grid, [np.sum(costs(s) > 0) for s in grid], color="0.5", linewidth=1)
for name, colour in colours.items():
    upper.plot(noise[name], np.sum(paid[name] > ACTIVE), "o", color=colour)
    lower.plot(np.arange(1, UNITS + 1), paid[name], "o", color=colour, markersize=4)
    lower.plot(np.arange(1, UNITS + 1), costs(linear[name]), color=colour, linewidth=1)
for name in (name for name in runs if name.startswith("network")):
    upper.plot(noise[name], np.sum(paid[name] > ACTIVE), "o", color="0.2", markerfacecolor="none", markersize=9)
upper.set_title("Found (dots; rings for networks) and predicted (lines)", fontsize=11)
upper.set(xscale="log", xlabel="σ", ylabel="active units")
upper.set_xticks([0.1, 0.2, 0.35, 0.5, 1], ["0.1", "0.2", "0.35", "0.5", "1"])
upper.minorticks_off()
upper.set_yticks(range(0, UNITS + 1, 5))
lower.set(xlabel="unit", ylabel="KL, nats a digit")

rows = {"digits": shown}
rows |= {f"again\n{name.replace(', ', chr(10))}": again[name] for name in pictured}
rows |= {f"drawn\n{name.replace(', ', chr(10))}": drawn[name] for name in pictured}
for axis, (name, line) in zip(right_side.subplots(len(rows), 1), rows.items(), strict=True):
    gaps = np.pad(line.reshape(-1, 8, 8), ((0, 0), (0, 0), (0, 2)))  # (8, 8, 10)
    axis.imshow(np.concatenate(gaps, axis=1), cmap="gray_r", vmin=0, vmax=1)
    axis.text(-2, 3.5, name, ha="right", va="center", fontsize=8)
    axis.set_axis_off()
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "collapse.png", dpi=130)
print(f"\nPicture: {options.out / 'collapse.png'}")
