"""How good are deep ladders of binary digits, by the methods that climb them?

Belief networks of one to three layers of 200 units are learnt on MNIST binarised once, by NVIL, VIMCO, wake–sleep and
reweighted wake–sleep. Variational and importance-weighted autoencoders of one and two layers are learnt on MNIST whose
pixels are drawn again each time that a row is used. The table shows nats a digit of the test set: the evidence bound
ELBO and the K-sample bound (K = 1000, or 5000 by --samples). The report has the active units and the KL of each layer.

Published. Mnih & Gregor 2014 (table 1, bounds, NVIL / wake–sleep): 200 113.1 / 116.3, 200-200 99.8 / 106.9,
200-200-200 96.7 / 101.3. Maddison et al. 2017 (K-sample estimates, NVIL, VIMCO of 5): 200 104.4, 101.9; 200-200 92.9,
91.7. Bornschein & Bengio 2015 (reweighted wake–sleep, estimates): 103.1, 93.4, 90.1. Burda et al. 2016 (5000-sample
estimates, drawn pixels, VAE / IWAE): one layer 86.76 / 86.76 (k = 1), 86.47 / 85.54 (5), 86.35 / 84.78 (50); two layers
85.33 / 85.33, 85.01 / 83.89, 84.78 / 82.90. These took hundreds to thousands of epochs.

The binarisation is not that of Salakhutdinov & Murray: the pixels are another draw from the same distribution.

    python benchmarks/deep_mnist.py --data DIR [--ladders sbn-200,sbn-200-200] [--methods nvil,vimco] [--epochs 100]
        [--samples 1000] [--rows 10000] [--checkpoint DIR] [--out FILE.csv]

DIR holds mnist.npz (x_train, x_test: grey, 0 … 255) and mnist_binarised.npz (the same, packed bits). With --checkpoint
a run that was stopped continues; it is saved under LADDER-METHOD-EPOCHS. ``--openml`` fetches MNIST through
scikit-learn, which needs a network.
"""

import csv
import pathlib
import time
import warnings
from collections.abc import Callable

import numpy as np
from measuring import arguments, data_folder, record, say_where, table

import tractable as tr
from tractable.core.errors import TractableWarning
from tractable.engine.method import Method

warnings.simplefilter("ignore", TractableWarning)  # verdicts are printed

LADDERS: dict[str, Callable[[], tr.models.Ladder]] = {
    "sbn-200": lambda: tr.models.sigmoid_belief_network(784, (200,)),
    "sbn-200-200": lambda: tr.models.sigmoid_belief_network(784, (200, 200)),
    "sbn-200-200-200": lambda: tr.models.sigmoid_belief_network(784, (200, 200, 200)),
    "vae-50": lambda: tr.models.latent_gaussian(784, 50, hidden=(200, 200), redraw=True),
    "vae-100-50": lambda: tr.models.hierarchical(784, (100, 50), hidden=((200, 200), (100, 100)), redraw=True),
}
RATE = 3e-3  # Adam's first rate, which falls to 0 along half a cosine; the best of 1e-3, 3e-3 and 1e-2 for NVIL
METHODS: dict[str, Callable[..., Method]] = {
    "nvil": lambda **run: tr.NVIL(learning_rate=RATE, **run),
    "vimco": lambda **run: tr.VIMCO(samples=5, learning_rate=RATE, **run),
    "wake-sleep": lambda **run: tr.WakeSleep(learning_rate=RATE, **run),
    "rws": lambda **run: tr.ReweightedWakeSleep(samples=5, learning_rate=RATE, **run),
    "vae": lambda **run: tr.AutoEncoding(**run),
    "iwae-5": lambda **run: tr.ImportanceWeighted(samples=5, **run),
    "iwae-50": lambda **run: tr.ImportanceWeighted(samples=50, **run),
}
PUBLISHED = {  # as the docstring says: [bound], (estimate)
    ("sbn-200", "nvil"): "[113.1] (104.4)", ("sbn-200-200", "nvil"): "[99.8] (92.9)",
    ("sbn-200-200-200", "nvil"): "[96.7]", ("sbn-200", "vimco"): "(101.9)", ("sbn-200-200", "vimco"): "(91.7)",
    ("sbn-200", "wake-sleep"): "[116.3]", ("sbn-200-200", "wake-sleep"): "[106.9]",
    ("sbn-200-200-200", "wake-sleep"): "[101.3]", ("sbn-200", "rws"): "(103.1)", ("sbn-200-200", "rws"): "(93.4)",
    ("sbn-200-200-200", "rws"): "(90.1)", ("vae-50", "vae"): "(86.76)", ("vae-50", "iwae-5"): "(85.54)",
    ("vae-50", "iwae-50"): "(84.78)", ("vae-100-50", "vae"): "(85.33)", ("vae-100-50", "iwae-5"): "(83.89)",
    ("vae-100-50", "iwae-50"): "(82.90)",
}  # fmt: skip
HEAD = ["ladder", "method", "epochs", "ELBO", "bound", "±", "published, −", "verdict", "seconds"]


def images(options, redraw: bool) -> tuple[np.ndarray, np.ndarray]:
    """Training and test pixels, (n, 784) float32: binary, or the probabilities that they are drawn from."""
    if options.openml:
        from sklearn.datasets import fetch_openml

        grey = np.float32(fetch_openml("mnist_784", version=1, as_frame=False, parser="liac-arff").data) / 255
        drawn = grey if redraw else np.float32(np.random.default_rng(20140).random(grey.shape, np.float32) < grey)
        return drawn[:60_000], drawn[60_000:]
    with np.load(data_folder(options.data, "mnist.npz" if redraw else "mnist_binarised.npz")) as found:
        parts = [found[name] for name in ("x_train", "x_test")]
    if redraw:
        return np.float32(parts[0].reshape(-1, 784)) / 255, np.float32(parts[1].reshape(-1, 784)) / 255
    return np.float32(np.unpackbits(parts[0], axis=1)), np.float32(np.unpackbits(parts[1], axis=1))


def row(options, ladder_name: str, method_name: str) -> list:
    """One ladder by one method."""
    ladder = LADDERS[ladder_name]()
    train, test = images(options, ladder.redraw)
    if options.quick:
        train, test = train[:2000], test[:200]
    method = METHODS[method_name](epochs=options.epochs, batch_size=100)
    folder = None
    if options.checkpoint is not None:
        folder = pathlib.Path(options.checkpoint) / f"{ladder_name}-{method_name}-{options.epochs}"
    began = time.perf_counter()
    posterior = tr.infer(ladder, tr.Data(train), method, seed=options.seed, checkpoint=folder)
    seen = posterior.log_evidence(test[: options.rows], samples=options.samples)
    return [
        ladder_name, method_name, options.epochs, float(seen.elbo.mean()), seen.mean, seen.mean_error,
        PUBLISHED.get((ladder_name, method_name), ""), posterior.report().verdict, time.perf_counter() - began,
    ]  # fmt: skip


def main() -> None:
    parser = arguments(str(__doc__), data=True)
    parser.add_argument("--ladders", default="sbn-200")
    parser.add_argument("--methods", default="nvil")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000, help="test rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default=None)
    parser.add_argument("--openml", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="CSV that rows are added to")
    options = parser.parse_args()
    if options.quick:
        options.epochs, options.samples = min(options.epochs, 2), min(options.samples, 50)
    say_where("Deep ladders of MNIST, nats a digit of the test set")
    rows = []
    for ladder in options.ladders.split(","):
        for method in options.methods.split(","):
            rows.append(row(options, ladder, method))
            if options.out is not None:
                with options.out.open("a", newline="") as file:
                    csv.writer(file).writerow(rows[-1])
    table(HEAD, rows)
    record(__file__, HEAD, rows, names=3, columns=["ELBO", "bound", "published, −"])


if __name__ == "__main__":
    main()
