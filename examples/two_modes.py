"""A posterior with two modes: which methods find both, and which reports say so if a method does not?

The model is that of Welling & Teh (2011, section 5.1): x ~ ½ N(θ₁, 2) + ½ N(θ₁ + θ₂, 2), with a hundred points drawn at
θ = (0, 1). Exchanging the components, (θ₁, θ₂) → (θ₁ + θ₂, −θ₂), does not change the likelihood, so a second mode lies
near (1, −1). In two dimensions a grid gives the exact answer.

What to look for: the share of draws in the lower mode (θ₂ < 0), of all chains together and of each chain, compared with
the share on the grid. With decreasing steps, SGLD's chains soon no longer leave their modes. The share over all chains
is then right only if the chains happened to start in the right shares, and R-hat shows the fault ("reject"). In a cycle
the steps begin large again, so chains cross between the modes at each new cycle. NUTS crosses the ridge between the
modes. Both find both modes, and more draws give more accurate shares.

    python examples/two_modes.py [--quick] [--out DIR]
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tractable as tr
from tractable.models import gallery

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--quick", action="store_true", help="fewer steps")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

example = gallery.example("gaussian-mixture")
model, data, _ = example.build()
grid = example.grid()
below = np.heaviside(-grid.second, 0.5)  # 1 where θ₂ < 0; θ₂ = 0 is a line of the grid, of which half is counted
exact = (grid.density @ below).sum() / grid.density.sum()

# Welling & Teh's run: batches of one, ε from 0.01 down to 0.0001.
draws, thin = (1000, 50) if options.quick else (5000, 50)
steps = draws * thin
schedule = tr.schedules.polynomial_between(0.01, 0.0001, steps)
methods = {
    "SGLD, decreasing steps": tr.SGLD(step_size=schedule, batch_size=1, draws=draws, thin=thin, warmup=0),
    # A cycle's first steps are large, so that chains cross between modes; draws come from the cycle's second half.
    "SGLD, cycles": tr.SGLD(step_size=0.03, batch_size=10, draws=draws, thin=thin, cycles=25, bias_tolerance=0.5),
    "NUTS": tr.NUTS(draws=draws),
}

print(
    f"share of θ₂ < 0 and its total variation from the grid's, pooled and of each chain; {4 * steps:,} steps of SGLD\n"
)
print(f"{'':24}{'share':>7}{'TV':>7}   {'share by chain':25}{'TV':>6}{'R-hat':>8}{'seconds':>9}  verdict")
print(f"{'grid':24}{exact:7.3f}")
found = {}
for name, method in methods.items():
    began = time.perf_counter()
    posterior = tr.infer(model, data, method, seed=0)
    seconds = time.perf_counter() - began
    lower = posterior.values[..., 1] < 0
    weights = np.ones(lower.shape) if posterior.weights is None else posterior.weights
    share = np.average(lower, weights=weights)
    by_chain = np.average(lower, weights=weights, axis=1)
    alone = np.abs(by_chain - exact).mean()  # mean error of a single chain's share
    shares = "  ".join(f"{s:.2f}" for s in by_chain)
    report = posterior.report()
    rhat = next(c.value for c in report.checks if c.name == "R-hat")
    numbers = f"{share:7.3f}{abs(share - exact):7.3f}   {shares:25}{alone:6.3f}{rhat:8.3f}{seconds:9.1f}"
    print(f"{name:24}{numbers}  {report.verdict}")
    found[name] = posterior, share, alone, report.verdict

# The picture: contours of the grid's density, which enclose 10 to 95 % of its mass, and draws on top of them.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
figure, panels = plt.subplots(2, 2, figsize=(8.6, 7), sharex=True, sharey=True, layout="constrained")
ordered = np.sort(grid.density.ravel())[::-1]
mass = np.cumsum(ordered) / ordered.sum()
levels = [ordered[np.searchsorted(mass, share)] for share in (0.95, 0.75, 0.5, 0.25, 0.1)]
panels[0, 0].contourf(grid.first, grid.second, grid.density.T, [*levels, ordered[0]], cmap="Blues")
panels[0, 0].set_title(f"The exact posterior, on a grid\n{100 * exact:.0f} % below", loc="left", fontsize=10)
for panel, (name, (posterior, share, alone, verdict)) in zip(panels.flat[1:], found.items(), strict=True):
    draws = posterior.sample(0, 1500)["theta"]
    upper = draws[:, 1] >= 0
    panel.scatter(*draws[upper].T, s=4, color="#1b5e8c", alpha=0.45, linewidth=0)
    panel.scatter(*draws[~upper].T, s=4, color="#d1495b", alpha=0.45, linewidth=0)
    panel.set_title(
        f"{name}: {verdict}\n{100 * share:.0f} % below; one chain is off by {100 * alone:.0f} points",
        loc="left", fontsize=10,
    )  # fmt: skip
for panel in panels.flat:
    panel.contour(grid.first, grid.second, grid.density.T, levels, colors="#444444", linewidths=0.6)
    panel.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    panel.set(xlim=(-1.2, 2), ylim=(-2.8, 2.8))
for panel in panels[-1]:
    panel.set_xlabel("θ₁, mean of the first component")
for panel in panels[:, 0]:
    panel.set_ylabel("θ₂, how far the second lies above")
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "two_modes.png", dpi=150)
print(f"\nPicture: {options.out / 'two_modes.png'}")
