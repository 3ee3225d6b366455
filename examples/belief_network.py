"""A belief network of handwritten digits, learnt in three ways: by score functions, from dreams, by weighted draws.

    p(x, h) = p(x | h¹) p(h¹ | h²) p(h²),   q(h | x) = q(h¹ | x) q(h² | h¹),   64 ← 30 ← 20 units of 0 and 1

The data are 1,797 digits of 8 × 8 pixels, black or white, of which a fifth is held out. NVIL climbs the evidence bound
ELBO by score-function gradients with baselines. Wake–sleep learns q from dreams, that is, from draws of the model.
Reweighted wake–sleep learns θ and q from five weighted draws for each digit. Epochs, batches and learning rates are
equal, and all three are compared by the same two bounds of log p(x): the ELBO, and the bound of 1000 draws.

What to look for: the three held-out ELBOs lie within a third of a nat. By the bound of a thousand draws, which is
nearer to log p(x), reweighted wake–sleep is better by 0.6 to 0.8 nats (two seeds). It learns θ from five draws, so θ
can make use of values of h that a single draw of q often misses; this lowers the ELBO, but not log p(x). Its lower
effective sample size (ESS) shows the same. Wake–sleep climbs no objective. It is 0.1 to 0.3 nats behind NVIL, but needs
no score functions and no baselines against their variance. The verdict "caution" is for runs whose bound still rises
at the end.

    python examples/belief_network.py [--quick] [--out DIR]
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
parser.add_argument("--quick", action="store_true", help="50 epochs instead of 300")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()
warnings.simplefilter("ignore", tr.errors.TractableWarning)  # the verdicts are printed

images: np.ndarray = load_digits().data
x = (images > 8).astype(np.float32)  # the pixels of ``images`` go from 0 to 16
order = np.random.default_rng(0).permutation(len(x))
train, test = (tr.Data(x[rows]) for rows in (order[len(x) // 5 :], order[: len(x) // 5]))

ladder = tr.models.sigmoid_belief_network(64, (30, 20))
settings = {"epochs": 50 if options.quick else 300, "batch_size": 100, "learning_rate": 1e-2}
methods = {
    "NVIL": tr.NVIL(**settings),
    "wake–sleep": tr.WakeSleep(**settings),
    "reweighted": tr.ReweightedWakeSleep(**settings),
}

share = np.clip(train.y.mean(0), 1e-3, 1 - 1e-3)
independent = np.mean(np.sum(test.y * np.log(share) + (1 - test.y) * np.log1p(-share), 1))
print(f"{train.size:,} digits, {test.size} held out; {settings['epochs']} epochs; nats a digit, higher is better")
print(f"independent pixels, held out: {independent:.2f}\n")
print(f"{'':12}{'learnt':>16}{'held out':>18}{'nats of':>14}")
print(f"{'':12}{'ELBO':>8}{'of 100':>8}{'ELBO':>10}{'of 1000':>8}", end="")
print(f"{'h¹':>8}{'h²':>6}{'ESS %':>7}{'seconds':>9}  verdict")
dreams = {}
for name, method in methods.items():
    began = time.perf_counter()
    posterior = tr.infer(ladder, train, method, seed=0)
    seen, learnt = posterior.log_evidence(test, samples=1000), posterior.found
    numbers = f"{learnt['elbo']:8.2f}{learnt['bound']:8.2f}{seen.elbo.mean():10.2f}{seen.mean:8.2f}"
    numbers += f"{learnt['cost h1']:8.1f}{learnt['cost h2']:6.1f}{100 * np.median(seen.effective) / seen.samples:7.1f}"
    print(f"{name:12}{numbers}{time.perf_counter() - began:9.1f}  {posterior.report().verdict}", flush=True)
    dreams[name] = posterior.generate(28).mean

# The picture: digits of the data, and digits that each learnt network draws.
columns = 14
parts = {"Held out": test.y[: 2 * columns]} | {f"Dreamt, {name}: P(x = 1 | h¹)": rows for name, rows in dreams.items()}
figure = plt.figure(figsize=(9.2, 6.6), layout="constrained")
for panel, (title, rows) in zip(figure.subfigures(len(parts), 1), parts.items(), strict=True):
    panel.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    for axis, row in zip(panel.subplots(2, columns).flat, rows, strict=True):
        axis.set_axis_off()
        axis.imshow(row.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "belief_network.png", dpi=150)
print(f"\nPicture: {options.out / 'belief_network.png'}")
