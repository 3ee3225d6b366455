"""How well are rows predicted that no method has seen, with default settings?

The protocol is that of Hernández-Lobato & Adams 2015: one hidden layer of 50 ReLU units, the standard random 90/10
splits, and inputs and target standardised by the training part. The tables show the RMSE and the mean test log density
in the target's units, with mean and standard error over splits. Every method of the library runs on the same network
model with its defaults, except for the numbers of draws and leapfrogs of long chains. NAME-relevance is a method under
the prior "relevance".

Predicted: full Laplace, a deep ensemble and the sampled posteriors have a better log density than grid-searched dropout
on most sets. Bayes by Backprop is better than probabilistic backpropagation (PBP), which has the same mean-field family
but makes only one pass of moment matching. The joint maximum has a very low log density wherever the network can fit
all rows exactly, because the noise goes to zero with the residuals.

    python benchmarks/uci.py --data DIR [--sets yacht,boston] [--methods map,laplace] [--splits 5] [--out FILE.csv]

DIR holds uci/NAME.npz (X, y, train_index, test_index). Results are appended to FILE one by one; results that are
already there are not computed again. ``--out FILE --splits 0`` prints the tables of a file.
"""

import csv
import pathlib
import time
import warnings

import numpy as np
from measuring import arguments, data_folder, record, say_where, table

import tractable as tr
from tractable.core.errors import TractableError

SETS = ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm", "naval")
METHODS = {
    "map": tr.MAP(),
    "laplace": tr.Laplace(draws=1000),
    "ensemble": tr.DeepEnsemble(),
    "meanfield": tr.MeanField(samples=2, batch_size=None, draws=1000),
    "bbb": tr.BayesByBackprop(),
    "sgld": tr.SGLD(batch_size=128, chains=2, draws=250),
    "psgld": tr.SGLD(batch_size=128, chains=2, draws=250, preconditioner="rmsprop"),
    "cyclical": tr.SGLD(batch_size=128, chains=2, draws=250, cycles=4),
    "hmc": tr.HMC(chains=2, draws=300, warmup=300, leapfrogs=30),
    "nuts": tr.NUTS(chains=2, draws=300, warmup=300),
    "long": tr.HMC(chains=4, draws=300, warmup=1000, leapfrogs=100),
}
RELEVANCE = "-relevance"  # ending of a method's name that means prior="relevance"
METHODS |= {name + RELEVANCE: METHODS[name] for name in ("meanfield", "bbb", "sgld", "hmc", "long")}
# RMSE and log density of the literature: PBP, dropout (2016), dropout with a grid search (2018), deep ensembles, HMC.
PUBLISHED = {
    "boston": ((3.01, -2.57), (2.97, -2.46), (2.90, -2.40), (3.28, -2.41), (2.76, -2.27)),
    "concrete": ((5.67, -3.16), (5.23, -3.04), (4.82, -2.94), (6.03, -3.06), (4.12, -2.72)),
    "energy": ((1.80, -2.04), (1.66, -1.99), (0.54, -1.21), (2.09, -1.38), (0.48, -0.93)),
    "kin8nm": ((0.10, 0.90), (0.10, 0.95), (0.08, 1.14), (0.09, 1.20), (0.06, 1.35)),
    "naval": ((0.01, 3.73), (0.01, 3.80), (0.0007, 4.45), (0.00, 5.63), (0.00, 7.31)),
    "wine_red": ((0.64, -0.97), (0.62, -0.93), (0.62, -0.93), (0.64, -0.94), (0.63, -0.91)),
    "yacht": ((1.02, -1.63), (1.11, -1.55), (0.67, -1.25), (1.58, -1.18), (0.56, -1.62)),
}
COLUMNS = ("set", "split", "method", "rmse", "log density", "coverage", "seconds", "verdict")


def load(folder: pathlib.Path, name: str, split: int) -> tuple[np.ndarray, ...]:
    """Standardised training and test rows, and the target's unit."""
    with np.load(folder / f"{name}.npz") as d:
        x, y, train, test = d["X"], d["y"], d["train_index"][split], d["test_index"][split]
    spread = x[train].std(0)
    x = (x - x[train].mean(0)) / np.where(spread > 0, spread, 1)
    unit = y[train].std()
    y = (y - y[train].mean()) / unit
    return *(a.astype(np.float32) for a in (x[train], y[train], x[test], y[test])), unit


def measured(folder: pathlib.Path, name: str, split: int, label: str) -> dict:
    """One method on one split."""
    x, y, x_test, y_test, unit = load(folder, name, split)
    prior = "relevance" if label.endswith(RELEVANCE) else "scaled"
    model = tr.models.neural_network(tr.models.mlp(x.shape[1], (50,), 1), prior=prior)
    began = time.perf_counter()
    try:
        posterior = tr.infer(model, tr.Data(y, x), METHODS[label], seed=split)
    except TractableError as refused:
        print(f"{name}, split {split}: {label} refused: {refused}")
        nothing = (float("nan"),) * 4
        return dict(zip(COLUMNS, (name, split, label, *nothing, "refused"), strict=True))
    seconds = time.perf_counter() - began
    density = float(np.mean(posterior.log_predictive(tr.Data(y_test, x_test), draws=500)) - np.log(unit))
    found = posterior.predict(x_test, draws=500)
    inside = float(np.mean((found.lower <= y_test) & (y_test <= found.upper)))
    error = float(unit * np.sqrt(np.mean(np.square(found.mean - y_test))))
    return dict(
        zip(COLUMNS, (name, split, label, error, density, inside, seconds, posterior.report().verdict), strict=True)
    )


def show(rows: list[dict]) -> None:
    """A table for each data set, with the published figures."""
    densities = []
    for name in SETS:
        mine = [r for r in rows if r["set"] == name]
        if not mine:
            continue
        print(f"### {name}\n")
        lines = []
        for label in METHODS:
            tried = [r for r in mine if r["method"] == label]
            found = [r for r in tried if r["verdict"] != "refused"]
            if not found:
                continue
            values = {c: np.array([float(r[c]) for r in found]) for c in COLUMNS[3:7]}
            error = {c: v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else np.nan for c, v in values.items()}
            lines.append(
                [
                    label + (f" ({len(tried) - len(found)} refused)" if len(found) < len(tried) else ""), len(found),
                    f"{values['rmse'].mean():.4g} ± {error['rmse']:.2g}",
                    f"{values['log density'].mean():.3f} ± {error['log density']:.2g}",
                    values["coverage"].mean(), values["seconds"].mean(),
                ]
            )  # fmt: skip
        means = {line[0].partition(" ")[0]: line[3].partition(" ")[0] for line in lines}
        densities.append([name, *map(means.get, METHODS)])
        for label, (rmse, density) in zip(
            ("PBP", "dropout 2016", "dropout 2018", "deep ensembles", "HMC 2016"), PUBLISHED[name], strict=True
        ):
            lines.append([f"*{label}*", None, f"{rmse:g}", f"{density:g}", None, None])
        table(["method", "splits", "RMSE", "log density", "90 % covers", "seconds"], lines)
    record(__file__, ["set", *METHODS], densities, columns=["bbb", "hmc", "psgld", "laplace", "long-relevance"])


def main() -> None:
    """Compute the results that are missing, and print the tables."""
    parser = arguments(__doc__, data=True)
    parser.add_argument("--sets", default=",".join(SETS), help="names with commas between them")
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between them")
    parser.add_argument("--splits", type=int, default=20, help="the first so many")
    parser.add_argument("--out", type=pathlib.Path, help="a CSV that results are appended to")
    options = parser.parse_args()
    folder = data_folder(options.data, "uci")
    rows: list[dict] = []
    if options.out is not None and options.out.exists():
        rows = list(csv.DictReader(options.out.open()))
    done = {(r["set"], int(r["split"]), r["method"]) for r in rows}
    sets, methods = options.sets.split(","), options.methods.split(",")
    if options.quick:
        sets, methods, options.splits = ["yacht"], ["laplace"], 1
    for name in sets:
        for label in methods:
            for split in range(options.splits):
                if (name, split, label) in done:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    rows.append(measured(folder, name, split, label))
                if options.out is not None:
                    fresh = not options.out.exists()
                    with options.out.open("a", newline="") as file:
                        writer = csv.DictWriter(file, COLUMNS)
                        if fresh:
                            writer.writeheader()
                        writer.writerow(rows[-1])
    say_where("UCI regression, one hidden layer of 50")
    show(rows)


if __name__ == "__main__":
    main()
