"""What does each of NVIL's variance reductions buy on MNIST?

Belief networks 200 and 200-200 are learnt on MNIST binarised once: with all reductions switched on, with each one
switched off in turn, and with none. The script records the bound during the climb, and the bound of held-out rows at
its end. Mnih & Gregor 2014 show such curves (their figure 1): without centring and normalisation the climb is much
slower or fails, and baselines that depend on the input help deeper networks.

Predicted: without any reduction the bound is by far the worst. Centring gains most, because raw signals are −200 to
−100 nats. Without normalisation the difference is small, because Adam adapts to the scale. Local signals matter only
with two layers.

    python benchmarks/nvil_ablation.py --data DIR [--epochs 30] [--rates 3e-3,1e-3] [--quick]

DIR holds mnist_binarised.npz. Writes benchmarks/figures/nvil_ablation.png.
"""

import pathlib
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from deep_mnist import images
from measuring import arguments, record, say_where, table

import tractable as tr
from tractable.core.errors import TractableWarning

warnings.simplefilter("ignore", TractableWarning)  # short runs warn that they should continue
FIGURE = pathlib.Path(__file__).parent / "figures" / "nvil_ablation.png"
LADDERS = {"200": (200,), "200-200": (200, 200)}
OFF = {
    "everything": {},
    "no centring": {"centre": False},
    "no baseline": {"baseline": None},
    "no normalisation": {"normalise": False},
    "no local signals": {"local": False},
    "nothing": {"centre": False, "baseline": None, "normalise": False, "local": False},
}
BATCH = 100


def main() -> None:
    parser = arguments(str(__doc__), data=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rates", default="3e-3", help="of Adam at the start; the best of them is shown")
    parser.set_defaults(openml=False)
    options = parser.parse_args()
    train, test = images(options, False)
    if options.quick:
        train, test, options.epochs = train[:1000], test[:100], 2
    say_where("NVIL without each of its variance reductions, nats a digit")
    figure, axes = plt.subplots(1, len(LADDERS), figsize=(10, 4), layout="constrained", sharey=True)
    rows = []
    for axis, (ladder_name, hidden) in zip(axes, LADDERS.items(), strict=True):
        ladder = tr.models.sigmoid_belief_network(784, hidden)
        for name, off in OFF.items():
            if name == "no local signals" and len(hidden) == 1:
                continue  # with one layer there are no other layers' terms that a local signal could leave out
            tried = []
            for rate in map(float, options.rates.split(",")):
                began = time.perf_counter()
                method = tr.NVIL(epochs=options.epochs, batch_size=BATCH, learning_rate=rate, **off)
                posterior = tr.infer(ladder, tr.Data(train), method, seed=0)
                elbo = float(posterior.elbo(test, samples=20).mean())
                tried.append((elbo, rate, posterior.info["objective"][0] / len(train), time.perf_counter() - began))
            elbo, rate, climb, seconds = max(tried, key=lambda one: one[0])
            rows.append([ladder_name, name, rate, float(climb[-len(climb) // 20 :].mean()), elbo, seconds])
            epochs = climb[: options.epochs * (len(train) // BATCH)].reshape(options.epochs, -1).mean(1)
            axis.plot(
                np.arange(1, options.epochs + 1), epochs, color=f"C{[*OFF].index(name)}", label=name, linewidth=1.3
            )
        axis.set(title=f"784 ← {ladder_name}", xlabel="epoch", ylim=(-200, -110))
    axes[0].set_ylabel("bound, nats a digit")
    axes[-1].legend(frameon=False)
    FIGURE.parent.mkdir(exist_ok=True)
    if not options.quick:
        figure.savefig(FIGURE, dpi=130)
    table(["ladder", "switched off", "rate", "bound, last twentieth", "held-out ELBO", "seconds"], rows)
    elbos = {(row[0], row[1]): row[4] for row in rows}
    record(__file__, ["ladder", *OFF], [[ladder, *(elbos.get((ladder, name)) for name in OFF)] for ladder in LADDERS])


if __name__ == "__main__":
    main()
