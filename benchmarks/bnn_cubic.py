"""How far is each method's predictive from the truth, where the truth can be had?

The data are twenty points, and the model is a network f of 20 tanh units with known noise. The reference is a long NUTS
run (8,000 draws, R-hat at most 1.001) of f on a grid of 81 inputs. For each method the table shows the
root-mean-square error of the mean of f, in units of its reference sd, and the ratio of f's sd to the reference's. Both
are averaged over the inputs within the range of the data and over those outside. For a run of NUTS the first should
equal its own Monte Carlo error, about √(1/ESS) with ESS the effective sample size.

Predicted: sampling methods are right within a few per cent. Mean fields are too narrow outside the data, where the
band's width comes from correlations between weights. A linearised Laplace is right inside and too wide outside.
Ensembles of maxima are too narrow except where their members disagree.

    python benchmarks/bnn_cubic.py --data DIR [--quick] [--methods nuts,laplace]

DIR holds toy/bnn_cubic.npz. Writes benchmarks/figures/bnn_cubic.png.
"""

import pathlib
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, data_folder, record, say_where, table

import tractable as tr

FIGURE = pathlib.Path(__file__).parent / "figures" / "bnn_cubic.png"
METHODS = {
    "nuts": tr.NUTS(draws=1000, warmup=1000),
    "hmc": tr.HMC(draws=1000, warmup=1000, leapfrogs=30),
    "mala": tr.MALA(draws=1000, warmup=2000, thin=20),
    "sgld": tr.SGLD(batch_size=10, draws=1000),
    "fullrank": tr.FullRank(samples=20),
    "lowrank": tr.LowRank(samples=20, rank=10),
    "meanfield": tr.MeanField(samples=20),
    "bbb": tr.BayesByBackprop(batch_size=None, samples=4, learning_rate=0.01, draws=1000),
    "laplace": tr.Laplace(curvature="gauss-newton"),
    "ensemble": tr.DeepEnsemble(size=10),
}


def problem(file: pathlib.Path) -> tuple[tr.Model, tr.Data, dict[str, np.ndarray]]:
    """The model, the data and the reference."""
    with np.load(file) as d:
        reference = {name: d[name] for name in d.files}
    hidden, wide, out = int(reference["hidden"]), float(reference["weight_sd"]), float(reference["out_sd"])
    noise = float(reference["noise_sd"])
    prior = {
        "w": dist.Normal(jnp.zeros(hidden), wide),
        "b": dist.Normal(jnp.zeros(hidden), wide),
        "v": dist.Normal(jnp.zeros(hidden), out / np.sqrt(hidden)),
        "c": dist.Normal(0.0, 1.0),
    }

    def start(key):
        return {name: d.sample(k) for (name, d), k in zip(prior.items(), jax.random.split(key, 4), strict=True)}

    likelihood = tr.Through(
        lambda params, x: params["v"] @ jnp.tanh(params["w"] * x + params["b"]) + params["c"],
        lambda params, f: dist.Normal(f, noise),
    )
    x, y = (reference[name].astype(np.float32) for name in ("x", "y"))
    return tr.Model(prior, likelihood, start=start), tr.Data(y, x), reference


def main() -> None:
    """Run them in turn."""
    parser = arguments(__doc__, data=True)
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between them")
    options = parser.parse_args()
    model, data, reference = problem(data_folder(options.data, "toy/bnn_cubic.npz"))
    grid, mean, sd = (reference[name] for name in ("x_grid", "f_mean", "f_sd"))
    inside = (grid >= reference["x"].min()) & (grid <= reference["x"].max())
    rows, bands = [], {}
    for label in ["laplace"] if options.quick else options.methods.split(","):
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior = tr.infer(model, data, METHODS[label], seed=1)
            seconds = time.perf_counter() - began
            found = posterior.predict(grid.astype(np.float32), draws=4000)
        error, ratio = (found.mean - mean) / sd, found.epistemic / sd
        parts = [np.sqrt(np.mean(error[part] ** 2)) for part in (inside, ~inside)]
        parts += [np.exp(np.mean(np.log(np.maximum(ratio[part], 1e-3)))) for part in (inside, ~inside)]
        rows.append([label, *parts, seconds, posterior.report().verdict])
        bands[label] = found.mean, found.epistemic
    say_where("The predictive of a small network against a long NUTS run")
    head = ["method", "mean, inside", "mean, outside", "sd, inside", "sd, outside", "seconds", "verdict"]
    table(head, rows)
    record(__file__, head, rows, columns=[*head[1:5], "verdict"])
    if not options.quick:
        draw(grid, mean, sd, reference, bands)


def draw(grid, mean, sd, reference, bands) -> None:
    """Bands of two sds, one panel for each method, with the reference in the background."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = 5
    figure, panels = plt.subplots(
        -(-len(bands) // columns), columns, figsize=(14, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for panel, (label, (middle, spread)) in zip(panels.flat, bands.items(), strict=False):
        panel.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color="0.85", lw=0)
        panel.plot(grid, middle, color="#0072B2", lw=1.4)
        for side in (-2, 2):
            panel.plot(grid, middle + side * spread, color="#0072B2", lw=0.9, ls="--")
        panel.plot(reference["x"], reference["y"], "k.", ms=4)
        panel.set_title(label, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels.flat[len(bands) :]:
        panel.set_visible(False)
    figure.suptitle("f ± 2 sd: dashed, each method; grey, a long NUTS run", fontsize=11)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)
    print(f"Bands: {FIGURE}")


if __name__ == "__main__":
    main()
