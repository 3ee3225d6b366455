"""How fast does SGLD learn to predict, in passes over the data?

Logistic regression with Laplace(0, 1) priors on a9a (32,561 rows, 123 binary columns, 16,281 test rows), as in
Welling & Teh 2011, section 5.2, but on the standard test set. Measured are the test accuracy and the mean test log
likelihood of the running posterior average (weighted by ε_t, over the later half of the draws so far) after 0.1 to 10
passes, for batches of 10 with a polynomial schedule from random starts. They are compared with SGLD("auto"), the mode
(MAP) and a short NUTS run. "auto" first climbs to a mode; the passes of this climb are not counted.

Predicted: an accuracy of 0.84 to 0.85, which is within about 1 % of its final value after less than one pass and stable
after ten (as in the paper, on a split of its own). The average has at least the log likelihood of the last draw. MAP
and NUTS are within 0.002 of the average.

    python benchmarks/a9a.py --data DIR [--quick] [--no-nuts]

DIR holds a9a.npz (x_train, y_train, x_test, y_test); without it the data come from OpenML through scikit-learn, which
needs a network. Writes benchmarks/figures/a9a.png.
"""

import pathlib
import time
import warnings

import jax
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table
from scipy import special

import tractable as tr
from tractable.glm.linear import generalised_linear, with_priors

PASSES = (0.1, 0.3, 1.0, 3.0, 10.0)
FIGURE = pathlib.Path(__file__).parent / "figures" / "a9a.png"
FIRST, LAST = 4e-5, 4e-6  # ε at the first and the last step; stable below 4 / largest curvature, which is about 1e4


def load(named: str | None) -> tuple[tr.Data, tr.Data]:
    """Training and test rows."""
    file = None if named is None else pathlib.Path(named) / "a9a.npz"
    if file is not None and file.exists():
        with np.load(file) as d:
            parts = {name: d[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    else:
        parts = online()
    return tuple(
        tr.Data(parts[f"y_{part}"].astype(np.int32), parts[f"x_{part}"].astype(np.float32))
        for part in ("train", "test")
    )


def online() -> dict[str, np.ndarray]:
    """From OpenML, where training and test rows come as one table, training first."""
    import sys

    from sklearn.datasets import fetch_openml

    try:
        x, y = fetch_openml("a9a", version=1, return_X_y=True, as_frame=False)
    except Exception as error:
        print(
            f"a9a is not to be had from OpenML ({error}): pass --data DIR, or set TRACTABLE_DATA, to a folder with "
            "a9a.npz.",
            file=sys.stderr,
        )
        raise SystemExit(2) from error
    x = np.asarray(x.todense() if hasattr(x, "todense") else x, np.float32)
    y = (np.asarray(y, float) > 0).astype(np.int32)
    return {"x_train": x[:32561], "y_train": y[:32561], "x_test": x[32561:], "y_test": y[32561:]}


def scores(probability: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and mean log likelihood of P(y = 1)."""
    of_truth = np.where(y == 1, probability, 1 - probability)
    return float(np.mean((probability > 0.5) == (y == 1))), float(np.mean(np.log(np.maximum(of_truth, 1e-12))))


def probabilities(posterior: tr.Posterior, x: np.ndarray, chain: int) -> np.ndarray:
    """(draw, row) P(y = 1) of a chain's draws."""
    w, a = posterior.draws["weights"][chain], posterior.draws["intercept"][chain]
    return special.expit(w @ x.T + a[:, None])


def running(posterior: tr.Posterior, test: tr.Data, passes_a_draw: float, chains: int) -> list[list]:
    """[passes, accuracy and log likelihood of the average, and of the last draw], means over chains, and the sd."""
    rows: dict[float, list] = {p: [] for p in PASSES}
    for chain in range(chains):
        p = probabilities(posterior, test.given, chain)
        weights = np.ones(len(p)) if posterior.weights is None else posterior.weights[chain]
        for passes in PASSES:
            count = min(len(p), max(1, round(passes / passes_a_draw)))
            if passes > 1.02 * len(p) * passes_a_draw:
                continue
            late = slice(count // 2, count)
            average = np.average(p[late], axis=0, weights=weights[late])
            rows[passes].append([*scores(average, test.y), *scores(p[count - 1], test.y)])
    return [[p, *np.mean(found, 0), np.std(found, axis=0)[0]] for p, found in rows.items() if found]


def sgld(label: str, method: tr.SGLD, model: tr.Model, train: tr.Data, test: tr.Data) -> tuple[str, list[list]]:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = tr.infer(model, train, method, progress=False)
        verdict = posterior.report().verdict
    per_draw = posterior.thin * method.batch_size / train.size
    step = posterior.found.get("step_size")
    print(
        f"{label}: {time.perf_counter() - began:.0f} s, {posterior.count} draws a chain, every {per_draw:.3f} passes"
        + (f", ε = {step:.3g}" if step else "") + f", verdict {verdict}.",
        flush=True,
    )  # fmt: skip
    return label, running(posterior, test, per_draw, method.chains)


def draw_figure(curves: dict[str, list[list]], lines: dict[str, tuple[float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    for axis, column, title in ((axes[0], 0, "test accuracy"), (axes[1], 1, "mean test log likelihood, nats")):
        for i, (label, rows) in enumerate(curves.items()):
            passes = [r[0] for r in rows]
            axis.plot(passes, [r[1 + column] for r in rows], "o-", color=f"C{i}", label=f"{label}, running average")
            axis.plot(
                passes, [r[3 + column] for r in rows], ".:", color=f"C{i}", alpha=0.6, label=f"{label}, last draw"
            )
        for i, (label, values) in enumerate(lines.items()):
            axis.axhline(values[column], color="0.3", linestyle=("--", "-.")[i % 2], linewidth=1, label=label)
        axis.set(xscale="log", xlabel="passes over the data", title=title)
    axes[1].legend(fontsize=7)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    parser = arguments(__doc__, data=True)
    parser.add_argument("--no-nuts", action="store_true", help="leave out NUTS, which takes most of the time")
    parser.add_argument("--nuts-draws", type=int, default=250)
    args = parser.parse_args()
    say_where("How fast does SGLD learn to predict on a9a?")
    train, test = load(args.data)
    if args.quick:
        train = train.take(slice(0, 3000))
    laplace = {"intercept": dist.Laplace(0.0, 1.0), "weights": dist.Laplace(0.0, 1.0)}
    model = with_priors(generalised_linear(train.given.shape[1], "bernoulli"), laplace)
    passes, chains = (3, 2) if args.quick else (10, 4)
    curves = {}
    batch = 10
    thin = max(1, round(0.01 * train.size / batch))
    steps = int(passes * train.size / batch)
    # The curvature grows with N, so a step size that is stable on all rows is needlessly small on few.
    schedule = tr.schedules.polynomial_between(FIRST * 32561 / train.size, LAST * 32561 / train.size, steps)
    label, rows = sgld(
        "SGLD, batch 10, polynomial",
        tr.SGLD(
            chains=chains, draws=-(-steps // thin), thin=thin, warmup=0, batch_size=batch, step_size=schedule,
            start="random",
        ),
        model, train, test,
    )  # fmt: skip
    curves[label] = rows
    every = max(1, round(0.01 * train.size / 100))
    label, rows = sgld(
        "SGLD, batch 100, auto",
        tr.SGLD(
            chains=chains, draws=-(-int(passes * train.size / 100) // every), thin=every, warmup=0, batch_size=100
        ),
        model, train, test,
    )  # fmt: skip
    curves[label] = rows
    lines: dict[str, tuple[float, float]] = {}
    taken: dict[str, tuple[float, str]] = {}
    others: dict[str, tr.Method] = {"MAP": tr.MAP()}
    if not args.no_nuts:
        draws, warmup = (30, 50) if args.quick else (args.nuts_draws, 300)
        others["NUTS"] = tr.NUTS(chains=2, draws=draws, warmup=warmup, max_depth=4 if args.quick else 8)
    for name, method in others.items():
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = tr.infer(model, train, method, progress=False)
            verdict = posterior.report().verdict
        if posterior.is_point:
            point = jax.tree.map(np.asarray, posterior.mean())
            p = special.expit(test.given @ point["weights"] + point["intercept"])
        else:
            p = np.mean([probabilities(posterior, test.given, c).mean(0) for c in range(2)], axis=0)
        lines[name] = scores(p, test.y)
        taken[name] = (time.perf_counter() - began, verdict)
    print()
    table(
        ["method", "passes", "accuracy of the average", "± sd over chains", "log likelihood of the average",
         "accuracy of the last draw", "log likelihood of the last draw"],
        [[label, f"{r[0]:g}", f"{r[1]:.4f}", f"{r[5]:.4f}", f"{r[2]:.4f}", f"{r[3]:.4f}", f"{r[4]:.4f}"]
         for label, rows in curves.items() for r in rows]
        + [[f"{name} ({taken[name][0]:.0f} s, {taken[name][1]})", "", f"{v[0]:.4f}", "", f"{v[1]:.4f}", "", ""]
           for name, v in lines.items()],
    )  # fmt: skip
    averages = {
        f"{label}, {r[0]:g} {'pass' if r[0] == 1 else 'passes'}": r[1:3] for label, rows in curves.items() for r in rows
    }
    record(
        __file__,
        ["method", "accuracy of the average", "log likelihood of the average"],
        [[name, *(f"{value:.4f}" for value in found)] for name, found in (averages | lines).items()],
    )
    if args.quick:
        print("Quick: no figure written.")
    else:
        draw_figure(curves, lines)
        print(f"Figure: {FIGURE.relative_to(pathlib.Path(__file__).parents[1])}")


if __name__ == "__main__":
    main()
