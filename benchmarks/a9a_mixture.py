"""How many kinds of rows are in a9a? Density of its binary columns by mixtures of Bernoullis.

    p(x | θ) = Σ_k π_k Π_i μ_ki^{x_i} (1 − μ_ki)^{1 − x_i},    μ_ki ~ Beta(2, 2)

There are 32,561 training rows of 123 columns, and 16,281 held-out rows; EM runs from four starts for every K. The
columns are one-hot codes of the answers to 14 questions. K = 1, with independent columns, is therefore far from the
truth, and no K can express that exactly one of the m columns of a question is 1.

Predicted: held-out log p(x) rises steeply up to K = 10 and more slowly after, and still rises at K = 100 (12,399
parameters, one for 2.6 rows), because every probability has prior counts. BIC, which penalises the number of
parameters, is best between 20 and 50. From K = 5 on, the four starts end at different maxima, some tenths of a nat a
row apart (as they did on 2,000 rows), and few agree. The time grows as K times the number of steps.

    python benchmarks/a9a_mixture.py --data DIR [--quick]

DIR holds a9a.npz. Writes benchmarks/figures/a9a_mixture.png.
"""

import pathlib
import time
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from measuring import arguments, data_folder, record, say_where, table

import tractable as tr

COMPONENTS = (1, 2, 5, 10, 20, 50, 100)
STARTS = 4
FIGURE = pathlib.Path(__file__).parent / "figures" / "a9a_mixture.png"


class Fitted(NamedTuple):
    components: int
    held_out: float  # mean log p(x), nats a row
    seen: float  # the same of training rows
    bic: float  # 2 log p(x | θ) − parameters · log n, of training rows: up is better
    seconds: float
    agree: int  # starts within 0.001 nats a row of the best
    apart: float  # nats a row between the best and the last
    steps: int
    verdict: str


def fitted(components: int, train: np.ndarray, test: np.ndarray) -> Fitted:
    """The best of EM's four climbs, and its scores on training and held-out rows."""
    model = tr.models.mixture.bernoulli_mixture(components, train.shape[1])
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = tr.infer(model, tr.Data(train), tr.EM(starts=STARTS), progress=False)
    seconds = time.perf_counter() - began
    theta = jax.tree.map(jnp.asarray, posterior.mean())
    score = jax.jit(lambda rows: jnp.sum(model.log_prob(theta, rows)))

    def total(x: np.ndarray) -> float:  # in parts, in double precision
        return sum(float(score(part)) for part in np.array_split(x, max(1, len(x) // 4000)))

    seen, found = total(train), posterior.found
    return Fitted(
        components,
        total(test) / len(test),
        seen / len(train),
        2 * seen - model.parameters * np.log(len(train)),
        seconds,
        found["starts that agree"],
        found["agreement"] / len(train),
        found["steps"],
        posterior.report().verdict,
    )


def draw_figure(fits: list[Fitted], rows: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    components = [f.components for f in fits]
    left.plot(components, [f.seen for f in fits], "o:", color="C0", alpha=0.6, label="training rows")
    left.plot(components, [f.held_out for f in fits], "o-", color="C0", label="held out")
    left.set(xscale="log", xlabel="K", title="mean log p(x), nats a row")
    left.legend(frameon=False)
    right.plot(components, [f.bic / (2 * rows) for f in fits], "o-", color="C1")
    right.set(xscale="log", xlabel="K", title="BIC over 2n, nats a row; up is better")
    for axis in (left, right):
        axis.set_xticks(components, [str(c) for c in components])
        axis.minorticks_off()
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def main() -> None:
    args = arguments(__doc__ or "", data=True).parse_args()
    file = data_folder(args.data, "a9a.npz")
    say_where("How many kinds of rows are in a9a?")
    with np.load(file) as parts:
        train, test = (parts[name].astype(np.float32) for name in ("x_train", "x_test"))
    if args.quick:
        train, test = train[:2000], test[:1000]
    fits = []
    for components in (1, 2, 5) if args.quick else COMPONENTS:
        fits.append(fitted(components, train, test))
        print(f"K = {components}: {fits[-1].held_out:.3f} nats a row, {fits[-1].seconds:.0f} s", flush=True)
    print()
    head = ["", "held out", "training rows", "−BIC/2n", f"starts that agree, of {STARTS}", "last start below", "steps",
            "seconds", "verdict"]  # fmt: skip
    lines = [
        [f"K = {f.components}", f"{f.held_out:.3f}", f"{f.seen:.3f}", f"{f.bic / (2 * len(train)):.3f}", f.agree,
         f.apart, f.steps, f.seconds, f.verdict]
        for f in fits
    ]  # fmt: skip
    print("Nats a row; up is better, of −BIC/2n too.\n")
    table(head, lines)
    record(__file__, head, lines)
    best = max(fits, key=lambda f: f.held_out)
    chosen = max(fits, key=lambda f: f.bic)
    print(f"Best held out K = {best.components}; by BIC K = {chosen.components}.")
    if args.quick:
        print("Quick: no figure written.")
    else:
        draw_figure(fits, len(train))
        print(f"Figure: {FIGURE.relative_to(pathlib.Path(__file__).parents[1])}")


if __name__ == "__main__":
    main()
