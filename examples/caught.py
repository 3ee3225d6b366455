"""A result that looks fine and is wrong: four chains agree, and the verdict says why they must not be used.

Two instruments measured one place in three coordinates, five and six times, and they disagree by 14 in each. The noise
has long tails (Student's t with 2 degrees of freedom), so each coordinate has a mode at each instrument. All chains of
NUTS end at the first instrument, and none crosses to the second. Every diagnostic of the chains is good, because all of
them are wrong in the same way. The verdict does not rely on the chains alone: it also searches for modes, and compares
means with those of weighted draws.

What to look for: R-hat is 1.00, there are more than a thousand effective draws, and the verdict is "reject". The
coordinates are independent, so a grid gives the exact posterior of each, and the share that the chains have missed.
(In one coordinate, long first steps of the warm-up take a chain across in one run of five, and R-hat shows it.)

    python examples/caught.py [--quick] [--out DIR]
"""

import argparse
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import tractable as tr

parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
parser.add_argument("--quick", action="store_true", help="has no effect: the example takes seconds")
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder of the picture")
options = parser.parse_args()

generator = np.random.default_rng(0)
measured = np.concatenate([generator.normal(0, 0.5, (5, 3)), generator.normal(24 / 3**0.5, 0.5, (6, 3))])
model = tr.Model(
    prior={"place": dist.Normal(np.zeros(3), 4.0)},
    likelihood=lambda params: dist.StudentT(2.0, params["place"], 1.0).to_event(1),  # of one measurement
)
posterior = tr.infer(model, tr.Data(measured), tr.NUTS(), seed=0)
report = posterior.report()
print(report)

grid = np.linspace(-5, 19, 2401)  # of the first coordinate
log_density = dist.Normal(0.0, 4.0).log_prob(grid)
log_density += dist.StudentT(2.0, grid[:, None], 1.0).log_prob(measured[:, 0]).sum(1)
density = np.exp(log_density - log_density.max())
density /= density.sum() * (grid[1] - grid[0])
missed = 100 * density[grid > 7].sum() * (grid[1] - grid[0])
drawn = np.ravel(posterior.draws["place"][..., 0])
print(f"\nThe exact posterior of place[0] has {missed:.0f} % of its mass above 7; of the draws there are "
      f"{100 * np.mean(drawn > 7):.0f} %.")  # fmt: skip

# The picture: what the user of one sampler sees, and what the verdict says of it.
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False})
figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained", width_ratios=(1.15, 1))
panels[0].hist(drawn, 40, density=True, color="#1b5e8c", alpha=0.55)
panels[0].fill_between(grid, density, color="#d1495b", alpha=0.25, linewidth=0)
panels[0].plot(grid, density, color="#d1495b", linewidth=1.2)
panels[0].set(xlabel="place[0]", yticks=[], xlim=(-4, 18))
panels[0].text(1.6, 0.9 * panels[0].get_ylim()[1], "four chains of NUTS,\nwhich agree", color="#1b5e8c", fontsize=9)
panels[0].text(3.2, 0.5 * panels[0].get_ylim()[1], "the exact posterior", color="#d1495b", fontsize=9)
panels[1].axis("off")
colours = {"trust": "#2a7f4f", "caution": "#a86500", "reject": "#b3261e"}
wanted = ("R-hat", "bulk ESS", "divergences", "modes")
rows = [check for check in report.checks if check.name in wanted]
panels[1].text(0, 0.97, f"Verdict: {report.verdict}", fontsize=14, weight="bold", color=colours[report.verdict])
for i, check in enumerate(rows):
    y = 0.82 - 0.15 * i
    panels[1].text(0, y, check.name, fontsize=10)
    panels[1].text(
        0.30, y, f"{check.value:.2f}" if check.name == "R-hat" else f"{check.value:,.0f}", fontsize=10, ha="left"
    )
    panels[1].text(0.52, y, check.verdict, fontsize=10, color=colours[check.verdict], weight="bold")
worst = next(check for check in report.checks if check.verdict == "reject")
panels[1].text(
    0,
    0.82 - 0.15 * len(rows) - 0.02,
    textwrap.fill(f"{worst.name}: {worst.value:.0f} {worst.sentence}", 44),
    fontsize=10,
    va="top",
)
options.out.mkdir(parents=True, exist_ok=True)
figure.savefig(options.out / "caught.png", dpi=150)
print(f"\nPicture: {options.out / 'caught.png'}")
