"""How well are rows predicted that no method has seen, with default settings?

The protocol is that of Hernández-Lobato & Adams 2015: one hidden layer of 50 ReLU units, the standard random 90/10
splits, and inputs and target standardised by the training part. The tables show the RMSE and the mean test log density
in the target's units, with mean and standard error over splits. Every method of the library runs on the same network
model with its defaults, except for the numbers of draws and leapfrogs of long chains. NAME-relevance is a method under
the prior "relevance", NAME-noise a method of a network that also gives the noise's sd at x, and "default" is
``BayesianMLPRegressor()``. "chains" draws short unadjusted chains that begin at trained networks, of 16, 16 units with
that noise, under the prior N(0, 0.7²); its settings were chosen on the first split.

The open rival is ``bde`` (``pip install sklearn-contrib-bde``), whose networks also give the noise's sd at x. It runs
with the settings of its README for airfoil: eight members of 16, 16 ReLU units, 5,000 steps of warm-up and 2,000
samples. The rows of airfoil and bike are split as in its own benchmark, and their figures are of standardised targets,
as it publishes them (ten members of four layers of 16, 50,000 steps of warm-up, 1,000 samples, ten cores).

Rankings on a few splits are chance, so a column shows the paired differences of log density to the method that
``--against`` names, with their standard errors. Seconds are processor seconds of a fit, with its compilation.

Predicted: full Laplace, a deep ensemble and the sampled posteriors have a better log density than grid-searched dropout
on most sets. Bayes by Backprop is better than probabilistic backpropagation (PBP), which has the same mean-field family
but makes only one pass of moment matching. The joint maximum has a very low log density wherever the network can fit
all rows exactly, because the noise goes to zero with the residuals.

    python benchmarks/uci.py --data DIR [--sets yacht,boston] [--methods map,laplace] [--splits 5] [--out FILE.csv]

DIR holds uci/NAME.npz (X, y, train_index, test_index). Results are appended to FILE one by one; results that are
already there are not computed again. ``--out FILE --splits 0`` prints the tables of a file.
"""

import collections
import contextlib
import csv
import functools
import importlib.util
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from measuring import arguments, data_folder, record, say_where, table
from scipy import special, stats

import tractable as tr
from tractable.core.errors import TractableError
from tractable.estimators import BayesianMLPRegressor

SETS = ("yacht", "boston", "energy", "concrete", "wine_red", "kin8nm", "naval", "airfoil", "bike")
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
    "microcanonical": tr.Microcanonical(chains=2, draws=300, warmup=300),
    "long": tr.HMC(chains=4, draws=300, warmup=1000, leapfrogs=100),
}
RELEVANCE, NOISE = "-relevance", "-noise"  # endings of a method's name: prior="relevance", and a heteroscedastic noise
METHODS |= {name + RELEVANCE: METHODS[name] for name in ("meanfield", "bbb", "sgld", "hmc", "long")}
METHODS |= {name + NOISE: METHODS[name] for name in ("bbb", "ensemble", "psgld", "hmc", "microcanonical")}
METHODS["hmc-start" + NOISE] = tr.HMC(chains=4, draws=300, warmup=300, leapfrogs=30, start=tr.MAP(optimizer="adam"))
METHODS["chains"] = tr.Microcanonical(
    chains=8, draws=150, warmup=100, adjusted=False, bias_tolerance=0.3, length=6.0, max_depth=7,
    start=tr.MAP(optimizer="adam"),
)  # fmt: skip
OTHERS = ("default", "bde")  # what is fitted otherwise than by ``infer``
STANDARDISED = ("airfoil", "bike")  # the sets whose figures are in units of the target's sd
RECORDED = 5  # the number of splits that a recorded figure has at least
# RMSE and log density of the literature.
LITERATURE = ("PBP", "dropout 2016", "dropout 2018, grid", "deep ensembles", "HMC 2016")
PUBLISHED = {
    name: dict(zip(LITERATURE, figures, strict=True))
    for name, figures in {
        "boston": ((3.01, -2.57), (2.97, -2.46), (2.90, -2.40), (3.28, -2.41), (2.76, -2.27)),
        "concrete": ((5.67, -3.16), (5.23, -3.04), (4.82, -2.94), (6.03, -3.06), (4.12, -2.72)),
        "energy": ((1.80, -2.04), (1.66, -1.99), (0.54, -1.21), (2.09, -1.38), (0.48, -0.93)),
        "kin8nm": ((0.10, 0.90), (0.10, 0.95), (0.08, 1.14), (0.09, 1.20), (0.06, 1.35)),
        "naval": ((0.01, 3.73), (0.01, 3.80), (0.0007, 4.45), (0.00, 5.63), (0.00, 7.31)),
        "wine_red": ((0.64, -0.97), (0.62, -0.93), (0.62, -0.93), (0.64, -0.94), (0.63, -0.91)),
        "yacht": ((1.02, -1.63), (1.11, -1.55), (0.67, -1.25), (1.58, -1.18), (0.56, -1.62)),
    }.items()
} | {"airfoil": {"bde, 240 s": (0.1215, 0.913)}, "bike": {"bde, 2,553 s": (0.2261, 0.7315)}}
COLUMNS = ("set", "split", "method", "rmse", "log density", "coverage", "seconds", "verdict")


def load(folder: pathlib.Path, name: str, split: int) -> tuple[np.ndarray, ...]:
    """Standardised training and test rows, and the target's unit."""
    with np.load(folder / f"{name}.npz") as d:
        x, y, train, test = d["X"], d["y"], d["train_index"][split], d["test_index"][split]
    spread = x[train].std(0)
    x = (x - x[train].mean(0)) / np.where(spread > 0, spread, 1)
    unit = y[train].std()
    y = (y - y[train].mean()) / unit
    unit = 1.0 if name in STANDARDISED else unit
    return *(a.astype(np.float32) for a in (x[train], y[train], x[test], y[test])), unit


def fit(label: str, x: np.ndarray, y: np.ndarray, seed: int) -> Callable[..., tuple]:
    """The function ``score`` of what a method learns."""
    if label == "bde":
        return functools.partial(score_bde, fit_bde(x, y, seed))
    if label == "default":
        posterior = BayesianMLPRegressor(random_state=seed).fit(x, y).posterior_.standardised
        return functools.partial(score, posterior)
    hidden, prior = ((16, 16), 0.7) if label == "chains" else ((50,), "scaled")
    prior = "relevance" if label.endswith(RELEVANCE) else prior
    likelihood, outputs = ("heteroscedastic", 2) if label.endswith((NOISE, "chains")) else ("normal", 1)
    model = tr.models.neural_network(tr.models.mlp(x.shape[1], hidden, outputs), likelihood, prior=prior)
    return functools.partial(score, tr.infer(model, tr.Data(y, x), METHODS[label], seed=seed, progress=False))


def score(posterior: tr.Posterior, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Predictive means of test rows, log densities of y, whether 90 % intervals contain y, and the verdict."""
    found, density = posterior.predict(x, draws=500), posterior.log_predictive(tr.Data(y, x), draws=500)
    return found.mean, density, (found.lower <= y) & (y <= found.upper), posterior.report().verdict


def fit_bde(x: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """A fitted regressor of the rival."""
    from bde import BdeRegressor
    from bde.loss import GaussianNLL

    model = BdeRegressor(
        hidden_layers=[16, 16], n_members=8, seed=seed, loss=GaussianNLL(), epochs=200, validation_split=0.15, lr=1e-3,
        weight_decay=1e-4, warmup_steps=5000, n_samples=2000, n_thinning=2, patience=10,
    )  # fmt: skip
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # it prints thousands of lines
        return model.fit(x=x, y=y[:, None])


def score_bde(model: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """As ``score``, of the equal mixture of the normals of all samples of all members; it has no verdict."""
    outputs = np.asarray(model.predict(x, raw=True), np.float64).reshape(-1, len(x), 2)
    centre, sd = outputs[..., 0], np.logaddexp(0, outputs[..., 1]) + 1e-6
    density = special.logsumexp(stats.norm.logpdf(y, centre, sd), axis=0) - np.log(len(outputs))
    return centre.mean(0), density, np.abs(stats.norm.cdf(y, centre, sd).mean(0) - 0.5) <= 0.45, "none"


def measured(folder: pathlib.Path, name: str, split: int, label: str) -> dict:
    """One method on one split."""
    x, y, x_test, y_test, unit = load(folder, name, split)
    jax.clear_caches()
    began = time.process_time()
    try:
        score_rows = fit(label, x, y, split)
    except TractableError as refused:
        print(f"{name}, split {split}: {label} refused: {refused}")
        nothing = (float("nan"),) * 4
        return dict(zip(COLUMNS, (name, split, label, *nothing, "refused"), strict=True))
    seconds = time.process_time() - began
    mean, density, inside, verdict = score_rows(x_test, y_test)
    error = float(unit * np.sqrt(np.mean(np.square(mean - y_test))))
    figures = error, float(np.mean(density) - np.log(unit)), float(np.mean(inside)), seconds
    return dict(zip(COLUMNS, (name, split, label, *figures, verdict), strict=True))


def mean_and_error(values: list[float], digits: str) -> str:
    """Mean and standard error over splits."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):{digits}} ± {error:.2g}" if values else ""


def show(rows: list[dict], against: str) -> None:
    """A table for each data set, with the published figures and paired differences to the method ``against``."""
    densities = []
    for name in SETS:
        lines, means = [], {}
        density = {
            (r["method"], int(r["split"])): float(r["log density"])
            for r in rows
            if r["set"] == name and r["verdict"] != "refused"
        }
        for label in (*METHODS, *OTHERS):
            tried = [r for r in rows if r["set"] == name and r["method"] == label]
            values = {c: [float(r[c]) for r in tried if r["verdict"] != "refused"] for c in COLUMNS[3:7]}
            if not values["rmse"]:
                continue
            pairs = [
                value - density[against, split]
                for (method, split), value in density.items()
                if method == label != against and (against, split) in density
            ]
            verdicts = collections.Counter(r["verdict"] for r in tried)
            lines.append(
                [
                    label, len(values["rmse"]), mean_and_error(values["rmse"], ".4g"),
                    mean_and_error(values["log density"], ".3f"), mean_and_error(pairs, "+.3f"),
                    np.mean(values["coverage"]), np.mean(values["seconds"]),
                    ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()),
                ]
            )  # fmt: skip
            if len(values["rmse"]) >= RECORDED:
                means[label] = np.mean(values["log density"])
        if means:
            densities.append([name, *map(means.get, (*METHODS, *OTHERS))])
        if lines:
            for source, figures in PUBLISHED[name].items():
                lines.append([f"*{source}*", None, f"{figures[0]:g}", f"{figures[1]:g}", "", None, None, ""])
            print(f"### {name}\n")
            table(["method", "splits", "RMSE", "log density", f"less {against}", "90 % covers", "s", "verdicts"], lines)
    columns = ["bbb", "hmc", "psgld", "laplace", "long-relevance"]
    if densities:
        record(__file__, ["set", *METHODS, *OTHERS], densities, columns=columns)


def main() -> None:
    """Compute the results that are missing, and print the tables."""
    parser = arguments(__doc__, data=True)
    parser.add_argument("--sets", default=",".join(SETS), help="names with commas between them")
    parser.add_argument("--methods", default=",".join((*METHODS, *OTHERS)), help="names with commas between them")
    parser.add_argument("--against", default="bde", help="the method of the paired differences")
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
        sets, methods, options.splits = ["yacht"], ["default"], 1
    if "bde" in methods and importlib.util.find_spec("bde") is None:
        print("bde is left out, because the package sklearn-contrib-bde is not installed.")
        methods.remove("bde")
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
    show(rows, options.against)


if __name__ == "__main__":
    main()
