"""Do weights with a distribution classify digits as well as dropout does, and do they know a letter when they see one?

The set-up is that of Blundell et al. 2015, section 5.1: a 784-400-400-10 ReLU network, pixels / 126, no augmentation
and batches of 128. The first 50,000 images are learnt from, the other 10,000 serve to choose settings, and the test set
is used only for the printed results. The methods are momentum SGD, an ensemble of five such networks, SGD with dropout
(inputs 0.2, hidden units 0.5), Bayes by Backprop (``networks.bayes_by_backprop`` climbed by ``engine.ascend``) with a
normal prior, with a scale mixture as prior, and with a normal prior and ρ at a hundredth of the rate of μ ("slow-rho"),
IVON (``networks.ivon``) with a normal prior, and Hamiltonian Monte Carlo on the first 1,000 images. An epoch is one
compiled scan over ``Data.windows``: contiguous rows of a copy shuffled once, in a new order and at a new offset each
time. Then weights of small |μ|/σ are removed from the fitted q (``Posterior.pruned``), and its error is measured again.
For every method the entropy of its predictions on digits is compared with that on letters (notMNIST).

Settings were chosen by validation errors in per cent, with seed 0; their standard error is 0.13 to 0.15. For SGD, after
five epochs: momentum 0.95, and a rate of 0.01 with and without dropout (without dropout the rates 0.001, 0.01, 0.03
gave 4.33, 2.33, 2.16; with dropout 0.01, 0.03 gave 3.32, 3.57). For Bayes by Backprop, by 10 draws after thirty epochs:
one shared draw a step, σ = 0.02 at the start, and Adam with a rate that falls from 0.001 to 0 along half a cosine
over the epochs asked for. The mixture with π = ¾, −log σ₁ = 0, −log σ₂ = 6 gave 1.75. (With one setting changed: rates
of 0.0003 and 0.003 gave 2.36 and 1.96; σ = 0.05 gave 2.22; local reparameterisation 2.09; −log σ₂ = 8 1.81; −log σ₁ = 2
and π = ½ or ¼ 2.47 and 2.53.) The normal prior of sd 1 gave 1.83 (sds of 0.4 and 3 gave 1.92 and 1.82; 1/√fan-in 3.79).

Published test errors in per cent follow, for 400, 800 and 1200 units. Those with [M] are from memory of the paper's
table 1, not verified. Those with [R] are the last of 600 epochs in the result files of an independent reproduction
(saxena-mayur/Weight-Uncertainty-in-Neural-Networks):

    SGD                    1.83  1.84  1.88 [M]    2.11  1.96  1.94 [R]
    dropout                1.51  1.33  1.36 [M]    1.54  1.36  1.27 [R]
    BBB, normal prior      1.82  1.99  2.04 [M]
    BBB, scale mixture     1.36  1.34  1.32 [M]    1.75  1.71  1.58 [R]
    scale mixture, pruned  1.24, 1.24, 1.24, 1.29, 1.39 with 0, 50, 75, 95, 98 % removed [M]; did not reproduce [R]

Predicted: dropout is best, below 1.5; the scale mixture lies between its reproduction and the paper's figure, 1.4 to
1.75; the normal prior and SGD are near 1.8. Half of the weights can be removed at no cost, and 95 % for at most 0.1
more errors. Letters have more entropy than digits under every method, with the largest AUROC for Bayes by Backprop; SGD
is the worst calibrated.

    python benchmarks/mnist.py --data DIR [--epochs 600] [--units 400] [--methods sgd,mixture] [--out FILE.csv]

DIR holds mnist.npz (x_train, y_train, x_test, y_test) and notmnist.npz (x_test). ``--openml`` fetches MNIST through
scikit-learn, which needs a network. Writes benchmarks/figures/mnist.png.
"""

import csv
import functools
import math
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import arguments, data_folder, record, say_where, table

import tractable as tr
from tractable import objectives
from tractable.core import approximations
from tractable.core.batches import Plan, place, window
from tractable.diagnostics import calibration
from tractable.diagnostics.belief import Fitted
from tractable.engine.ascend import ascend
from tractable.networks.ivon import ivon, phi_of
from tractable.networks.network import Network

FIGURE = pathlib.Path(__file__).parent / "figures" / "mnist.png"
UNITS = (400, 800, 1200)
BATCH, MOMENTUM, DRAWS = 128, 0.95, 10
KEEP = (0.8, 0.5, 0.5)  # shares of the inputs and of each hidden layer's units that dropout keeps
SHARES = (0.0, 0.5, 0.75, 0.95, 0.98)
COLUMNS = ("method", "units", "seed", "epoch", "test error, mean", "test error, draws", "validation error", "seconds",
           "objective a row")  # fmt: skip
# Test error in per cent for UNITS: the paper's [M], a reproduction's [R].
PUBLISHED = {
    "sgd": ((1.83, 1.84, 1.88), (2.11, 1.96, 1.94)),
    "dropout": ((1.51, 1.33, 1.36), (1.54, 1.36, 1.27)),
    "gaussian": ((1.82, 1.99, 2.04), None),
    "mixture": ((1.36, 1.34, 1.32), (1.75, 1.71, 1.58)),
}
PUBLISHED_PRUNED = (1.24, 1.24, 1.24, 1.29, 1.39)  # [M] for SHARES, 1200 units
COLOURS = {
    "sgd": "#555555",
    "dropout": "#E69F00",
    "gaussian": "#0072B2",
    "mixture": "#D55E00",
    "ivon": "#009E73",
    "ensemble": "#000000",
    "slow-rho": "#56B4E9",
    "hmc": "#CC79A7",
}


@dataclass(frozen=True)
class Settings:
    """The optimiser's settings of one method, chosen on the validation images."""

    rate: float  # learning rate: of SGD on the mean over a batch, or of Adam for Bayes by Backprop
    prior: Any = None
    sd: float = 0.02  # σ of every weight to begin with
    noise: str = "shared"
    decay: bool = False  # whether the rate falls to 0 along half a cosine over all epochs
    slow: float = 1.0  # the rate of ρ over that of μ


METHODS = {
    "sgd": Settings(1e-2),
    "ensemble": Settings(1e-2),
    "dropout": Settings(1e-2),
    "gaussian": Settings(1e-3, 1.0, decay=True),
    "mixture": Settings(1e-3, tr.models.scale_mixture(0.75, 1.0, float(np.exp(-6))), decay=True),
    "slow-rho": Settings(1e-3, 1.0, decay=True, slow=0.01),
    "ivon": Settings(0.1, 1.0, decay=True),
    "hmc": Settings(0.0, 1.0),
}
MEMBERS = 5  # networks of the ensemble
HMC_ROWS, HMC = 1000, tr.HMC(chains=2, warmup=60, draws=40, leapfrogs=20)


class Images(NamedTuple):
    """Pixels / 126 (n, 784) and classes (n,); letters are None if there is no file of them."""

    train: tr.Data
    validation: tr.Data
    test: tr.Data
    letters: np.ndarray | None


class Way(NamedTuple):
    """How a method learns and predicts."""

    kernel: tr.Kernel
    position: Any
    point: Callable  # (key, position, x (n, 784)) -> logits (n, 10), without any draw
    drawn: Callable | None  # the same, from one draw of the weights or of dropout's masks
    model: tr.Model


def load(named: str | None, openml: bool, quick: bool) -> Images:
    """Images, the published cut."""
    letters = None
    if openml:
        x, y = online()
    else:
        with np.load(data_folder(named, "mnist.npz")) as d:
            x, y = (np.concatenate([d[f"{part}_train"], d[f"{part}_test"]]) for part in "xy")
    file = None if named is None else pathlib.Path(named) / "notmnist.npz"
    if file is not None and file.exists():
        with np.load(file) as d:
            letters = scaled(d["x_test"])
    else:
        print("There is no notmnist.npz: letters are left out.", flush=True)
    cuts = (slice(0, 2000), slice(50_000, 51_000), slice(60_000, 61_000))
    if not quick:
        cuts = (slice(0, 50_000), slice(50_000, 60_000), slice(60_000, 70_000))
    train, validation, test = (tr.Data(np.asarray(y[cut], np.int32), scaled(x[cut])) for cut in cuts)
    return Images(train, validation, test, letters)


def online() -> tuple[np.ndarray, np.ndarray]:
    """From OpenML, where training and test images come as one table, training first."""
    from sklearn.datasets import fetch_openml

    try:
        x, y = fetch_openml("mnist_784", version=1, return_X_y=True, as_frame=False)
    except Exception as error:
        print(f"MNIST is not to be had from OpenML ({error}): pass --data DIR instead.", file=sys.stderr)
        raise SystemExit(2) from error
    return np.asarray(x), np.asarray(y, int)


def scaled(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / 126


def dropout(network: Network, width: int) -> tuple[objectives.Objective, Callable]:
    """N/n Σ log p(y|x, masks), with random units of every row dropped and the others scaled up; and one random pass."""

    def masks(key: jax.Array, shape: tuple[int, ...], x_width: int) -> list[jax.Array]:
        layers = network.params.values()
        widths = [x_width, *(len(layer["bias"]) for layer in layers)][: len(KEEP)]
        keys = jax.random.split(key, len(KEEP))
        return [jax.random.bernoulli(k, p, (*shape, w)) / p for k, p, w in zip(keys, KEEP, widths, strict=True)]

    def thinned(masks: list[jax.Array], weights: Any, x: jax.Array) -> jax.Array:
        for i, mask in enumerate(masks):
            x = (jax.nn.relu(x) if i else x) * mask  # (n, units)
            x = x @ weights[f"layer{i}"]["weight"] + weights[f"layer{i}"]["bias"]
        return x

    def value(noise: list[jax.Array], position: Any, batch: tr.Batch) -> jax.Array:
        y, x = batch.data
        log_p = jax.nn.log_softmax(thinned(noise, position["weights"], x))
        terms = jnp.take_along_axis(log_p, y[:, None], 1)[:, 0]
        return batch.scale * jnp.sum(jnp.where(batch.mask > 0, terms, 0.0))

    def drawn(key: jax.Array, position: Any, x: jax.Array) -> jax.Array:
        return thinned(masks(key, x.shape[:1], x.shape[1]), position["weights"], x)

    return objectives.Objective(lambda key, count, _: masks(key, (count, width), 784), value), drawn


def way(label: str, settings: Settings, units: int, plan: Plan, steps: int, seed: int) -> Way:
    """A method by name, at its start."""
    network = tr.models.mlp(784, (units, units), 10)
    key = jax.random.key(seed)
    rate = optax.cosine_decay_schedule(settings.rate, steps) if settings.decay else settings.rate
    if settings.prior is None:
        model = tr.models.neural_network(network, "categorical")
        objective, drawn = objectives.log_joint(model, prior=False), None
        if label == "dropout":
            objective, drawn = dropout(network, plan.width)
        # Objectives are sums over rows, and published rates are of means.
        optimizer = optax.chain(optax.scale(1 / plan.size), optax.sgd(rate, MOMENTUM))

        def point(key: jax.Array, position: Any, x: jax.Array) -> jax.Array:
            return network.apply(position["weights"], x)

        return Way(ascend(objective, optimizer), needed_start(model)(key), point, drawn, model)
    model = tr.models.neural_network(network, "categorical", prior=settings.prior)
    mean = needed_start(model)(key)

    def at_mean(key: jax.Array, position: Any, x: jax.Array) -> jax.Array:
        return network.apply(position["mean"]["weights"], x)

    def at_draw(key: jax.Array, position: Any, x: jax.Array) -> jax.Array:
        phi = phi_of(position) if "sd" in position else position
        means, treedef = jax.tree.flatten(phi["mean"])
        drawn = [
            m + approximations.softplus(rho) * jax.random.normal(k, m.shape)
            for m, rho, k in zip(means, jax.tree.leaves(phi["rho"]), jax.random.split(key, len(means)), strict=True)
        ]
        return network.apply(jax.tree.unflatten(treedef, drawn)["weights"], x)

    if label == "ivon":
        kernel = ivon(model, rate)
        position = {"mean": mean, "sd": jax.tree.map(lambda a: jnp.full_like(a, settings.sd), mean)}
        return Way(kernel, position, at_mean, at_draw, model)
    objective = objectives.bayes_by_backprop(
        model, noise=settings.noise, size=plan.width, given=jax.ShapeDtypeStruct((784,), jnp.float32)
    )
    begun = float(approximations.inverse_softplus(jnp.asarray(settings.sd)))
    phi = {"mean": mean, "rho": jax.tree.map(lambda a: jnp.full_like(a, begun), mean)}
    rates = {"mean": rate, "rho": lambda t: settings.slow * (rate(t) if callable(rate) else rate)}
    optimizer = optax.multi_transform(
        {name: optax.adam(one) for name, one in rates.items()},
        lambda phi: {name: jax.tree.map(lambda _, name=name: name, part) for name, part in phi.items()},
    )
    return Way(ascend(objective, optimizer), phi, at_mean, at_draw, model)


def needed_start(model: tr.Model) -> Callable:
    if model.start is None:
        raise TypeError("A network's model has a start.")
    return model.start


@functools.partial(jax.jit, static_argnames=("kernel", "plan"), donate_argnames="state")
def epoch(kernel: tr.Kernel, plan: Plan, state: Any, windows: Any, key: jax.Array, number: jax.Array) -> tuple:
    """One pass over the rows: the state after it, and the mean of the objective."""
    order, noise_key = jax.random.split(key)

    def step(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        batch = window(windows, plan, *place(plan, order, t))
        noise = kernel.draw(jax.random.fold_in(noise_key, t), 1, state, batch)
        state, info = kernel.step(jax.tree.map(lambda a: a[0], noise), state, batch)
        return state, info.objective

    state, values = jax.lax.scan(step, state, number * plan.count + jnp.arange(plan.count))
    return state, jnp.mean(values)


@functools.partial(jax.jit, static_argnames="one")
def averaged(one: Callable, position: Any, keys: jax.Array, x: jax.Array) -> jax.Array:
    """log (1/S) Σ_s softmax(logits_s), (n, 10), of a draw a key."""
    logs = jax.lax.map(lambda key: jax.nn.log_softmax(one(key, position, x)), keys)  # (S, n, 10)
    return jax.nn.logsumexp(logs, 0) - jnp.log(len(keys))


def predicted(way: Way, position: Any, x: jax.Array, seed: int = 0) -> np.ndarray:
    """Log probabilities (n, 10) of the method's prediction: by 10 draws if it has draws, otherwise by the point."""
    if way.drawn is None:
        return np.asarray(averaged(way.point, position, jax.random.split(jax.random.key(0), 1), x))
    return np.asarray(averaged(way.drawn, position, jax.random.split(jax.random.key(seed), DRAWS), x))


def at_point(way: Way, position: Any, x: jax.Array) -> np.ndarray:
    return np.asarray(averaged(way.point, position, jax.random.split(jax.random.key(0), 1), x))


def error(log_probabilities: np.ndarray, y: np.ndarray) -> float:
    """Per cent."""
    return 100 * float(np.mean(log_probabilities.argmax(-1) != y))


def looked_at(number: int, epochs: int) -> bool:
    """Whether epoch ``number`` of 1..epochs is evaluated: often at first."""
    return number in (1, 2, 3, 5, 7, 10, 15, 30, 50, epochs) or number % 20 == 0


def trained(label: str, way: Way, images: Images, plan: Plan, epochs: int, seed: int, note: Callable) -> tuple:
    """A method's final state, and seconds an epoch; ``note`` gets a row for every epoch that is evaluated."""
    windows = images.train.windows(plan.width)
    test, validation = (jnp.asarray(part.given) for part in (images.test, images.validation))
    state = way.kernel.init(jax.random.key(seed), jax.tree.map(jnp.copy, way.position))
    key = jax.random.fold_in(jax.random.key(seed), 1)
    taken = []
    compiled = epoch.lower(way.kernel, plan, state, windows, key, jnp.array(0)).compile()
    for number in range(1, epochs + 1):
        began = time.perf_counter()
        state, value = compiled(state, windows, key, jnp.array(number - 1))
        value = float(value)
        taken.append(time.perf_counter() - began)
        if not np.isfinite(value):
            print(f"{label}: not finite in epoch {number}; lower --rate.", file=sys.stderr)
            raise SystemExit(1)
        if looked_at(number, epochs):
            found = (
                error(at_point(way, state.position, test), images.test.y),
                float("nan") if way.drawn is None else error(predicted(way, state.position, test), images.test.y),
                error(predicted(way, state.position, validation), images.validation.y),
            )
            note((number, *found, sum(taken), value / images.train.size))
    return state.position, float(np.median(taken))


def ensemble(images: Images, units: int, plan: Plan, epochs: int, seed: int, note: Callable) -> tuple[Way, Any, float]:
    """Five networks by SGD: how they predict together, their weights, and the seconds an epoch of all."""
    runs = []
    for member in range(MEMBERS * seed, MEMBERS * (seed + 1)):
        one = way("sgd", METHODS["sgd"], units, plan, epochs * plan.count, member)
        runs.append(trained("ensemble", one, images, plan, epochs, member, lambda row: None))
    return *together(one, [position["weights"] for position, _ in runs], images, note, epochs), sum(s for _, s in runs)


def hmc(images: Images, units: int, seed: int, note: Callable) -> tuple[Way, Any, float]:
    """Chains on a subset of the images: how ten draws of each predict together, the draws, and the run's seconds."""
    one = way("gaussian", METHODS["gaussian"], units, Plan(HMC_ROWS, BATCH), 1, seed)
    began = time.perf_counter()
    subset = tr.Data(images.train.y[:HMC_ROWS], images.train.given[:HMC_ROWS])
    posterior = tr.infer(one.model, subset, HMC, seed=seed)
    print(posterior.report())
    positions: Any = posterior.belief.positions
    flat = positions[:, :: HMC.draws // DRAWS].reshape(-1, positions.shape[-1])
    weights = [one.model.space.unravel(jnp.asarray(z))["weights"] for z in flat]
    return *together(one, weights, images, note, 1), time.perf_counter() - began


def together(one: Way, members: list, images: Images, note: Callable, epochs: int) -> tuple[Way, Any]:
    """A way to predict by the mean probabilities of several networks, and the networks' weights."""
    network = tr.models.mlp(784, tuple(len(layer["bias"]) for layer in members[0].values())[:-1], 10)

    def point(key: jax.Array, position: Any, x: jax.Array) -> jax.Array:
        logs = jax.lax.map(lambda weights: jax.nn.log_softmax(network.apply(weights, x)), position)
        return jax.nn.logsumexp(logs, 0) - math.log(len(members))

    all_of = one._replace(point=point, drawn=None)
    position = jax.tree.map(lambda *parts: jnp.stack(parts), *members)
    test, validation = (
        error(at_point(all_of, position, jnp.asarray(part.given)), part.y) for part in (images.test, images.validation)
    )
    note((epochs, test, float("nan"), validation, 0.0, float("nan")))
    return all_of, position


def pruned(way: Way, phi: Any, images: Images, seed: int) -> list[tuple[float, float, float]]:
    """For each share of weights removed, the test error of q's mean and of 10 draws."""
    ravel, unravel = way.model.space.ravel, way.model.space.unravel
    flat = {name: np.asarray(ravel(part)) for name, part in phi.items()}
    q = tr.Posterior(
        way.model, images.train, tr.BayesByBackprop(), seed,
        Fitted(positions=flat["mean"][None, None], family="mean field", phi=flat),
    )  # fmt: skip
    out, x = [], jnp.asarray(images.test.given)
    for share in SHARES:
        fitted: Any = q.pruned(share).fitted
        left = {name: unravel(jnp.asarray(part)) for name, part in fitted.phi.items()}
        errors = (error(log_p, images.test.y) for log_p in (at_point(way, left, x), predicted(way, left, x)))
        out.append((share, *errors))
    return out


def judged(log_p: np.ndarray, y: np.ndarray, of_letters: np.ndarray | None) -> dict[str, Any]:
    """Calibration on digits; entropies of digits and letters in nats, and how well they tell the two apart."""
    p = np.exp(np.asarray(log_p, np.float64))
    p /= p.sum(-1, keepdims=True)
    digits = calibration.entropy(p)
    out: dict[str, Any] = {
        "ece": calibration.ece(p, y),
        "log p": calibration.log_score(log_p[np.arange(len(y)), y]).mean,
        "digits": digits,
    }
    if of_letters is not None:
        out["letters"] = calibration.entropy(np.exp(np.asarray(of_letters, np.float64)))
        out["auroc"] = calibration.auroc(digits, out["letters"])
    return out


def main() -> None:
    """Train the methods in turn, then print the tables and draw the figure."""
    parser = arguments(__doc__ or "", data=True)
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--units", type=int, default=400, choices=UNITS, help="in each of two hidden layers")
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between them")
    parser.add_argument("--rate", type=float, help="learning rate of all methods named; by default each has its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="a CSV that a row is appended to for each epoch evaluated")
    parser.add_argument("--openml", action="store_true", help="fetch MNIST through scikit-learn")
    options = parser.parse_args()
    unknown = set(options.methods.split(",")) - set(METHODS)
    if unknown:
        parser.error(f"--methods expects names among {', '.join(METHODS)}; got {', '.join(sorted(unknown))}.")
    epochs = 2 if options.quick else options.epochs
    say_where(f"MNIST, 784-{options.units}-{options.units}-10, {epochs} epochs")
    images = load(options.data, options.openml, options.quick)
    plan = Plan(images.train.size, BATCH)
    curves: dict[str, list[tuple]] = {}
    ends, removed = {}, {}
    for label in options.methods.split(","):
        settings = METHODS[label]
        if options.rate is not None:
            settings = Settings(options.rate, settings.prior, settings.sd, settings.noise, settings.decay)
        rows = curves.setdefault(label, [])

        def note(row: tuple, label: str = label, rows: list = rows) -> None:
            rows.append(row)
            print(f"{label}, epoch {row[0]}: test {row[1]:.2f} (mean) {row[2]:.2f} (draws), validation {row[3]:.2f} %, "
                  f"objective {row[5]:.3f} a row, {row[4]:.0f} s", flush=True)  # fmt: skip
            append(options.out, (label, options.units, options.seed, *row))

        if label == "ensemble":
            made, position, seconds = ensemble(images, options.units, plan, epochs, options.seed, note)
        elif label == "hmc":
            made, position, seconds = hmc(images, options.units, options.seed, note)
        else:
            made = way(label, settings, options.units, plan, epochs * plan.count, options.seed)
            position, seconds = trained(label, made, images, plan, epochs, options.seed, note)
        log_p = predicted(made, position, jnp.asarray(images.test.given), seed=1)
        letters = None
        if images.letters is not None:
            letters = predicted(made, position, jnp.asarray(images.letters), seed=1)
        ends[label] = judged(log_p, images.test.y, letters) | {"seconds": seconds}
        if settings.prior is not None and label != "hmc":
            phi = phi_of(position) if "sd" in position else position
            removed[label] = pruned(made, phi, images, options.seed)
    print()
    show(curves, ends, removed, UNITS.index(options.units), options.seed)
    if options.quick:
        print("Quick: no figure written.")
    else:
        draw(curves, ends, removed, options.units)
        print(f"Figure: {FIGURE.relative_to(pathlib.Path(__file__).parents[1])}")


def append(file: pathlib.Path | None, row: tuple) -> None:
    if file is None:
        return
    fresh = not file.exists()
    with file.open("a", newline="") as handle:
        writer = csv.writer(handle)
        if fresh:
            writer.writerow(COLUMNS)
        writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in row])


def show(curves: dict, ends: dict, removed: dict, column: int, seed: int) -> None:
    """Tables: error over epochs, the end, pruning; the first seed's figures are recorded without its number."""
    chosen = [e for e in (1, 5, 10, 20, 50, 100, 200, 300, 600) if all(e in [r[0] for r in c] for c in curves.values())]
    last = max(r[0] for rows in curves.values() for r in rows)
    chosen = [*(e for e in chosen if e < last), last]
    by_epoch = []
    for label, rows in curves.items():
        found = {r[0]: r[1] if np.isnan(r[2]) else r[2] for r in rows}
        paper, again = PUBLISHED.get(label, (None, None))
        parts = [f"{of[column]:.2f} [{source}]" for of, source in ((paper, "M"), (again, "R")) if of is not None]
        published = ", ".join(parts) or "–"
        by_epoch.append(
            [label, *(f"{found.get(e, found[max(found)]):.2f}" for e in chosen), f"{rows[-1][1]:.2f}", published]
        )
    print("Test error, per cent; of 10 draws but for SGD and ensembles.\n")
    table(["method", *(f"epoch {e}" for e in chosen), "last, of the mean", "published, 600 epochs"], by_epoch)
    table(
        ["method", "ECE", "log p a row", "entropy, digits", "entropy, letters", "AUROC", "s an epoch"],
        [
            [label, f"{e['ece']:.4f}", f"{e['log p']:.4f}", f"{e['digits'].mean():.3f}",
             f"{e['letters'].mean():.3f}" if "letters" in e else "–", f"{e['auroc']:.4f}" if "auroc" in e else "–",
             e["seconds"]]
            for label, e in ends.items()
        ],
    )  # fmt: skip
    what = f", {last} epochs" + (f", seed {seed}" if seed else "")
    record(
        __file__,
        ["method", "error, %", "of the mean, %", "log loss", "AUROC of letters", "s an epoch"],
        [
            [label + (f", {HMC_ROWS:,} images" if label == "hmc" else what), row[-3],
             row[-2], -ends[label]["log p"], ends[label].get("auroc"), ends[label]["seconds"]]
            for label, row in zip(curves, by_epoch, strict=True)
        ],
    )  # fmt: skip
    if removed:
        print("Test error, per cent, with weights of small |μ|/σ removed: of the mean, of 10 draws.\n")
        table(
            ["removed", *removed, "published, 1200 units"],
            [
                [f"{100 * share:g} %", *(f"{r[i][1]:.2f}, {r[i][2]:.2f}" for r in removed.values()), f"{was} [M]"]
                for i, (share, was) in enumerate(zip(SHARES, PUBLISHED_PRUNED, strict=True))
            ],
        )


def draw(curves: dict, ends: dict, removed: dict, units: int) -> None:
    """Error over epochs; entropies of digits and letters; error over the share removed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for label, rows in curves.items():
        epochs = [r[0] for r in rows]
        own = [r[1] if np.isnan(r[2]) else r[2] for r in rows]
        left.plot(epochs, own, color=COLOURS[label], lw=1.5, label=label)
    left.set(xscale="log", yscale="log", xlabel="epoch", ylabel="test error, %", title="learning")
    left.legend(frameon=False)
    bins = np.linspace(0, np.log(10), 40)
    for label in ("sgd", "mixture"):
        if label not in ends or "letters" not in ends[label]:
            continue
        for kind, style in (("digits", "--"), ("letters", "-")):
            middle.hist(
                ends[label][kind], bins, histtype="step", color=COLOURS[label], ls=style, lw=1.4,
                label=f"{label}, {kind}",
            )  # fmt: skip
    middle.set(
        yscale="log", xlabel="entropy of the prediction, nats", ylabel="images", title="10,000 digits, 10,000 letters"
    )
    middle.set_ylim(0.6, 2e5)  # room for the legend above the first bin
    middle.legend(frameon=False, ncols=2, loc="upper center")
    for label, rows in removed.items():
        for column, style, what in ((2, "o-", "10 draws"), (1, "s:", "mean")):
            right.plot(
                range(len(rows)), [r[column] for r in rows], style, color=COLOURS[label], lw=1.4, ms=4,
                label=f"{label}, {what}",
            )  # fmt: skip
    right.set_xticks(range(len(SHARES)), [f"{100 * s:g}" for s in SHARES])
    right.set(yscale="log", xlabel="weights removed, %", ylabel="test error, %", title="pruning by |μ|/σ")
    right.legend(frameon=False)
    for panel in (left, right):
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(ticker.NullLocator())
        panel.grid(axis="y", color="0.92")
    left.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    left.xaxis.set_major_formatter("{x:g}")
    for panel in (left, middle, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"MNIST, 784-{units}-{units}-10", fontsize=11)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
