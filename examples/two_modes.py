"""A posterior with two modes: who finds both, and who says so when they do not?

Welling & Teh (2011, section 5.1): x ~ ½ N(θ₁, 2) + ½ N(θ₁ + θ₂, 2), a hundred points drawn from θ = (0, 1). Swapping
the components, (θ₁, θ₂) → (θ₁ + θ₂, −θ₂), leaves the likelihood as it is, so a second mode lies near (1, −1).
In two dimensions a grid gives the exact answer.

What to look for: the share of each method's draws in the lower mode (θ₂ < 0) against the grid's, and its
verdict. A wrong share beside "trust" would be a lie; beside "caution" or "reject" it is a fair warning.

    python examples/two_modes.py [--quick] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tractable as tr
from tractable import gallery
from tractable.tools.schedules import polynomial_between

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

example = gallery.example("gaussian-mixture")
model, data, _ = example.build()
grid = example.grid()
exact = grid.density[:, grid.second < 0].sum() / grid.density.sum()

# Welling & Teh's run: batches of one, ε from 0.01 down to 0.0001.
draws, thin = (1000, 50) if options.quick else (5000, 50)
steps = draws * thin
schedule = polynomial_between(0.01, 0.0001, steps)
methods = {
    "SGLD, decreasing steps": tr.SGLD(step_size=schedule, batch_size=1, draws=draws, thin=thin, warmup=0),
    "SGLD, cycles": tr.SGLD(step_size=0.04, batch_size=10, draws=draws, thin=thin, cycles=50, bias_tolerance=0.5),
    "NUTS": tr.NUTS(draws=draws),
}

print(f"{'':24}{'θ₂ < 0':>8}{'TV':>7}   {'by chain':24}{'R-hat':>7}{'seconds':>9}  verdict")
print(f"{'grid':24}{exact:8.3f}{0:7.3f}")
found = {}
for name, method in methods.items():
    began = time.perf_counter()
    posterior = tr.infer(model, data, method, seed=0)
    seconds = time.perf_counter() - began
    lower = posterior.values[..., 1] < 0
    weights = np.ones(lower.shape) if posterior.weights is None else posterior.weights
    share = np.average(lower, weights=weights)
    chains = "  ".join(f"{s:.2f}" for s in np.average(lower, weights=weights, axis=1))
    report = posterior.report()
    rhat = next(c.value for c in report.checks if c.name == "R-hat")
    print(
        f"{name:24}{share:8.3f}{abs(share - exact):7.3f}   {chains:24}{rhat:7.3f}{seconds:9.1f}  {report.verdict}"
    )
    found[name] = posterior
    print(report)
