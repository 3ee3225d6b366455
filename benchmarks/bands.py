"""How wide are a network's bands, where there are data and where there are none?

Four networks of 20 or 10 tanh units:

- cubic: twenty points with known noise, under strong priors. The reference is a stored NUTS run of 8,000 draws;
- gap: 40 rows of sin 3x with nothing between −1 and 1, default priors, noise learnt;
- moons: 100 points of two classes in the plane;
- eight: 200 rows of eight inputs.

The reference of the last three is NUTS with 8 chains of 2,000 draws. For each method the table shows the
root-mean-square error of the mean of f (of the probability for classes), in units of its reference sd, and the ratio
of f's sd to the reference's. Both are averaged over new inputs like the data and over inputs outside: in the gap and
beyond the range, and three times as far from the centre for the moons and the eight inputs. "reference, again" is the
same run with another seed, whose row shows the references' own error.

Predicted: chains are right within a few per cent, or some ten per cent where they do not mix. Mean fields are too
narrow outside the data, where the band's width comes from correlations between weights. A linearised Laplace is right
inside and too wide outside. Ensembles of maxima are too narrow except where their members disagree.

    python benchmarks/bands.py --data DIR [--quick] [--methods nuts,laplace] [--networks gap,moons]

DIR holds toy/bnn_cubic.npz. Writes benchmarks/figures/bands.png.
"""

import pathlib
import time
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, data_folder, record, say_where, table
from sklearn.datasets import make_moons

import tractable as tr

FIGURE = pathlib.Path(__file__).parent / "figures" / "bands.png"
REFERENCE = tr.NUTS(chains=8, warmup=1000, draws=2000)
METHODS = {
    "hmc": tr.HMC(chains=2, warmup=300, draws=300, leapfrogs=30),  # the default for tables
    "nuts": tr.NUTS(),
    "sgld": tr.SGLD(batch_size=10),
    "bbb": tr.BayesByBackprop(),
    "ivon": tr.IVON(),
    "fullrank": tr.FullRank(samples=20),
    "laplace": tr.Laplace(),
    "ensemble": tr.DeepEnsemble(size=10),
}
DRAWS = 4000  # of a posterior's predictions


class Network(NamedTuple):
    """A network's model and data, and inputs at which its predictions are compared."""

    model: tr.Model
    data: tr.Data
    grid: np.ndarray
    inside: np.ndarray  # which inputs are like the data's
    mean: np.ndarray | None = None  # of f at these inputs, where a reference is stored
    sd: np.ndarray | None = None


def cubic(file: pathlib.Path) -> Network:
    """Twenty points and a network of 20 units, with the stored reference."""
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
    x, y, grid = (reference[name].astype(np.float32) for name in ("x", "y", "x_grid"))
    inside = (grid >= x.min()) & (grid <= x.max())
    model = tr.Model(prior, likelihood, start=start)
    return Network(model, tr.Data(y, x), grid, inside, reference["f_mean"], reference["f_sd"])


def gap(rng: np.random.Generator) -> Network:
    """Rows on two stretches of a curve."""
    x = np.sort(rng.uniform(1, 2, 40) * np.repeat([-1, 1], 20))[:, None]
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=40)
    grid = np.linspace(-4, 4, 81)[:, None]
    inside = (np.abs(grid[:, 0]) >= 1) & (np.abs(grid[:, 0]) <= 2)
    model = tr.models.neural_network(tr.models.mlp(1, 10, 1, activation="tanh"))
    return Network(model, tr.Data(y, x), grid, inside)


def moons(rng: np.random.Generator) -> Network:
    """Two interleaved half circles."""
    x, y = make_moons(100, noise=0.2, random_state=0)
    like, _ = make_moons(100, noise=0.2, random_state=1)
    middle, sd = x.mean(0), x.std(0)
    like, x = (like - middle) / sd, (x - middle) / sd
    model = tr.models.neural_network(tr.models.mlp(2, 10, 1, activation="tanh"), likelihood="bernoulli")
    return Network(model, tr.Data(y, x), np.concatenate([like, 3 * like]), np.repeat([True, False], 100))


def eight(rng: np.random.Generator) -> Network:
    """Eight inputs, of which five matter."""
    x, like = rng.normal(size=(200, 8)), rng.normal(size=(100, 8))
    f = np.sin(2 * x[:, 0] * x[:, 1]) + 0.5 * x[:, 2] ** 2 + x[:, 3] - 0.5 * x[:, 4]
    y = f + 0.3 * rng.normal(size=200)
    model = tr.models.neural_network(tr.models.mlp(8, 10, 1, activation="tanh"))
    data = tr.Data((y - y.mean()) / y.std(), x)
    return Network(model, data, np.concatenate([like, 3 * like]), np.repeat([True, False], 100))


def run(network: Network, method: tr.Method, seed: int) -> tuple[np.ndarray, np.ndarray, float, str]:
    """The mean and sd of f, processor seconds of the fit with its checks, and the verdict."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = tr.infer(network.model, network.data, method, seed=seed, progress=False)
        seconds = time.process_time() - began
        found = posterior.predict(network.grid.astype(np.float32), draws=DRAWS)
    return found.mean, found.epistemic, seconds, posterior.report().verdict


def pair(values: list[float]) -> str:
    """Two figures of inputs inside and outside, as text."""
    return ", ".join(f"{value:.2g}" if value < 0.995 else f"{value:.2f}" for value in values)


def main() -> None:
    """Run all methods on each network in turn."""
    parser = arguments(__doc__, data=True)
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between them")
    parser.add_argument("--networks", default="cubic,gap,moons,eight", help="names with commas between them")
    options = parser.parse_args()
    file = data_folder(options.data, "toy/bnn_cubic.npz")
    make = {"cubic": lambda rng: cubic(file), "gap": gap, "moons": moons, "eight": eight}
    rows, drawn, found = [], {}, {}
    for name in ["cubic"] if options.quick else options.networks.split(","):
        network = make[name](np.random.default_rng(0))
        methods = {label: METHODS[label] for label in (["laplace"] if options.quick else options.methods.split(","))}
        mean, sd = network.mean, network.sd
        if mean is None or sd is None:
            mean, sd, _, _ = run(network, REFERENCE, seed=0)
        if not options.quick:
            methods = {"reference, again": REFERENCE, **methods}
        bands = {}
        for label, method in methods.items():
            middle, spread, seconds, verdict = run(network, method, seed=1)
            error, ratio = (middle - mean) / sd, spread / sd
            parts = (network.inside, ~network.inside)
            errors = [np.sqrt(np.mean(error[part] ** 2)) for part in parts]
            ratios = [np.exp(np.mean(np.log(np.maximum(ratio[part], 1e-3)))) for part in parts]
            rows.append([name, label, *errors, *ratios, seconds, verdict])
            print(*rows[-1], sep=", ", flush=True)
            bands[label] = middle, spread
            found.setdefault(label, {}).update({
                name: pair(ratios), f"{name}, means": pair(errors), f"{name}, s": seconds, f"{name}, verdict": verdict,
            })  # fmt: skip
        drawn[name] = network, mean, sd, bands
    say_where("The bands of four small networks against long NUTS runs")
    head = ["network", "method", "mean, inside", "mean, outside", "sd, inside", "sd, outside", "seconds", "verdict"]
    table(head, rows)
    columns = list(next(iter(found.values())))
    record(__file__, ["method", *columns], [[label, *each.values()] for label, each in found.items()])
    if not options.quick:
        draw([each for each in drawn.values() if np.squeeze(each[0].grid).ndim == 1])


def draw(curves: list[tuple]) -> None:
    """Bands of two sds: a row of panels for each curve, with the reference in the background."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = [label for label in curves[0][-1] if label != "reference, again"]
    figure, panels = plt.subplots(
        len(curves), len(labels), figsize=(1.8 * len(labels), 2.6 * len(curves)), sharex="row", sharey="row",
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for row, (network, mean, sd, bands) in zip(panels, curves, strict=True):
        grid = np.squeeze(network.grid)
        for panel, label in zip(row, labels, strict=True):
            middle, spread = bands[label]
            panel.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color="0.85", lw=0)
            panel.plot(grid, middle, color="#0072B2", lw=1.4)
            for side in (-2, 2):
                panel.plot(grid, middle + side * spread, color="#0072B2", lw=0.9, ls="--")
            panel.plot(np.squeeze(network.data.given), network.data.y, "k.", ms=3)
            panel.set_ylim((mean - 4 * sd).min(), (mean + 4 * sd).max())
            panel.spines[["top", "right"]].set_visible(False)
    for panel, label in zip(panels[0], labels, strict=True):
        panel.set_title(label, fontsize=10)
    figure.suptitle("f ± 2 sd: dashed, each method; grey, a long NUTS run", fontsize=11)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)
    print(f"Bands: {FIGURE}")


if __name__ == "__main__":
    main()
