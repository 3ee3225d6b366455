"""What does inference cost a step of a ResNet and of a transformer, and how much memory?

Two networks for images of 28 × 28 pixels in ten classes: a ResNet-20 with group normalisation (an Equinox module of
270,000 weights), and a transformer over patches of 4 × 4 pixels (a Flax NNX module of 200,000 weights). Each step has
one batch and runs in one scan: by optax (SGD with momentum, and Adam, for the maximum of the posterior), Bayes by
Backprop, IVON and SGHMC with cyclical steps. All are timed in turn in one run. The state that a loop carries is given
in multiples of the weights.

With ``--train EPOCHS`` the library's methods learn 4,000 digits in so many epochs, from random starting weights: errors
in per cent and log losses in nats of 2,000 test digits, seconds, and verdicts. The last layer alone is inferred too,
on the features that MAP learnt. With ``--compute bfloat16`` the networks compute in bfloat16, and the weights stay in
single precision.

Predicted: the gradient takes nearly all the time, because every weight is used at tens to hundreds of places of an
image. So a step of IVON takes less than 1.15 times as long as one of Adam, and one of SGHMC less than 1.3 times one of
SGD. IVON carries 3 times the weights, as Adam does.

    python benchmarks/large.py --data DIR [--networks transformer] [--train 10] [--compute bfloat16] [--quick]

DIR holds mnist.npz (x_train, y_train, x_test, y_test). Flax is needed: pip install "flax>=0.12".
"""

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import arguments, data_folder, medians, record, say_where, table

import tractable as tr
from tractable import objectives
from tractable.adapters.flax import from_nnx
from tractable.core.model import Batch
from tractable.engine.ascend import ascend
from tractable.networks.architecture import Network
from tractable.networks.ivon import ivon

WIDTHS, BLOCKS, GROUPS = (16, 32, 64), 3, 8
PATCH, FEATURES, HEADS, LAYERS, SIDE = 4, 64, 4, 4, 28
BATCH, SD, PRIOR = 32, 0.02, 0.1
METHODS = ("SGD", "Adam", "Bayes by Backprop", "IVON", "SGHMC")


class Block(eqx.Module):
    """Two convolutions with group normalisation, added to their input."""

    convolutions: list
    norms: list
    shortcut: eqx.nn.Conv2d | None

    def __init__(self, before: int, after: int, key: jax.Array):
        keys, stride = jax.random.split(key, 3), after // before
        convolve = functools.partial(eqx.nn.Conv2d, kernel_size=3, padding=1, use_bias=False)
        self.convolutions = [
            convolve(before, after, stride=stride, key=keys[0]), convolve(after, after, key=keys[1])
        ]  # fmt: skip
        self.norms = [eqx.nn.GroupNorm(GROUPS, after) for _ in range(2)]
        same = before == after
        self.shortcut = None if same else eqx.nn.Conv2d(before, after, 1, stride, use_bias=False, key=keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        inner = self.norms[1](self.convolutions[1](jax.nn.relu(self.norms[0](self.convolutions[0](x)))))
        return jax.nn.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(eqx.Module):
    """ResNet-20 (He et al. 2016) for one image (28, 28), with group normalisation (Wu & He 2018)."""

    first: eqx.nn.Conv2d
    norm: eqx.nn.GroupNorm
    blocks: list
    last: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = iter(jax.random.split(key, 2 + BLOCKS * len(WIDTHS)))
        self.first = eqx.nn.Conv2d(1, WIDTHS[0], 3, padding=1, use_bias=False, key=next(keys))
        self.norm = eqx.nn.GroupNorm(GROUPS, WIDTHS[0])
        sizes = [WIDTHS[0], *(width for width in WIDTHS for _ in range(BLOCKS))]
        self.blocks = [Block(*pair, next(keys)) for pair in itertools.pairwise(sizes)]
        self.last = eqx.nn.Linear(WIDTHS[-1], 10, key=next(keys))

    def features(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.norm(self.first(x[None])))
        for block in self.blocks:
            x = block(x)
        return jnp.mean(x, (1, 2))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.features(x))


def transformer() -> Any:
    """A transformer over the patches of one image (28, 28), as a Flax NNX module."""
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.norms = nnx.List([nnx.LayerNorm(FEATURES, rngs=rngs) for _ in range(2)])
            self.attention = nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=rngs)
            self.wide = nnx.Linear(FEATURES, 4 * FEATURES, rngs=rngs)
            self.narrow = nnx.Linear(4 * FEATURES, FEATURES, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(self.norms[0](x))
            return x + self.narrow(jax.nn.gelu(self.wide(self.norms[1](x))))

    class Transformer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            count = (SIDE // PATCH) ** 2
            self.embedding = nnx.Linear(PATCH * PATCH, FEATURES, rngs=rngs)
            self.places = nnx.Param(0.02 * jax.random.normal(rngs.params(), (count, FEATURES)))
            self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
            self.norm = nnx.LayerNorm(FEATURES, rngs=rngs)
            self.last = nnx.Linear(FEATURES, 10, rngs=rngs)

        def features(self, x: jax.Array) -> jax.Array:
            across = SIDE // PATCH
            patches = x.reshape(across, PATCH, across, PATCH).swapaxes(1, 2).reshape(-1, PATCH * PATCH)
            x = self.embedding(patches) + self.places[...]
            for layer in self.layers:
                x = layer(x)
            return jnp.mean(self.norm(x), 0)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.last(self.features(x))

    return Transformer(nnx.Rngs(0))


class Candidate(NamedTuple):
    """A network's model of a digit's class, and the features that its last layer takes."""

    model: tr.Model
    features: Callable  # (weights, x (28, 28)) -> (64,)


def candidates(compute: str) -> dict[str, Candidate]:
    """Both networks, which compute in a given precision."""
    from flax import nnx

    example = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    weights, static = eqx.partition(ResNet(jax.random.key(0)), eqx.is_inexact_array)
    module = transformer()
    graph, _, rest = nnx.split(module, nnx.Param, ...)
    resnet = Network(weights, lambda w, x: eqx.combine(w, static)(x), example, output_axis=0)

    def rounded(function: Callable) -> Callable:
        def of(w: Any, x: jax.Array) -> jax.Array:
            return function(*jax.tree.map(lambda a: a.astype(compute), (w, x))).astype(jnp.float32)

        return of

    def candidate(network: Network, features: Callable) -> Candidate:
        network = Network(network.params, rounded(network.apply), example, network.output_axis)
        return Candidate(tr.models.neural_network(network, "categorical", prior=PRIOR), rounded(features))

    return {
        "ResNet-20": candidate(resnet, lambda w, x: eqx.combine(w, static).features(x)),
        "transformer": candidate(from_nnx(module, example), lambda w, x: nnx.merge(graph, w, rest).features(x)),
    }


def kernels(model: tr.Model, weights: Any, rate: Callable, steps: int) -> dict[str, tuple[tr.Kernel, Any]]:
    """The kernels of METHODS, and their starting positions. ``rate`` falls from 1 to 0 over the steps."""
    objective = objectives.log_joint(model)
    image = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    rho = float(np.log(np.expm1(SD)))
    phi = {"mean": weights, "rho": jax.tree.map(lambda a: jnp.full_like(a, rho), weights)}
    normal = {"mean": weights, "sd": jax.tree.map(lambda a: jnp.full_like(a, SD), weights)}
    return {
        "SGD": (ascend(objective, optax.sgd(lambda t: 3e-6 * rate(t), momentum=0.9)), weights),
        "Adam": (ascend(objective, optax.adam(lambda t: 1e-3 * rate(t))), weights),
        "Bayes by Backprop": (
            ascend(objectives.bayes_by_backprop(model, size=BATCH, given=image), optax.adam(lambda t: 1e-3 * rate(t))),
            phi,
        ),
        "IVON": (ivon(model, lambda t: 0.1 * rate(t)), normal),
        "SGHMC": (tr.kernels.sghmc(tr.log_posterior(model), tr.schedules.cyclical(3e-6, steps)), weights),
    }


def runner(kernel: tr.Kernel, size: int) -> Callable:
    """A compiled run of some steps, with random batches, from a state."""

    @functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
    def run(state: Any, rows: tuple, key: jax.Array, steps: int) -> Any:
        def step(state: Any, key: jax.Array) -> tuple[Any, None]:
            one, two = jax.random.split(key)
            index = jax.random.randint(one, (BATCH,), 0, size)
            batch = Batch(jax.tree.map(lambda a: a[index], rows), jnp.ones(BATCH), size, 0, size // BATCH)
            noise = jax.tree.map(lambda a: a[0], kernel.draw(two, 1, state, batch))
            return kernel.step(noise, state, batch)[0], None

        return jax.lax.scan(step, state, jax.random.split(key, steps))[0]

    return run


def costs(name: str, model: tr.Model, rows: tuple, steps: int, repeats: int) -> list[list]:
    """A row of the table for each method: milliseconds a step, its ratios to optax, and the state in weights."""
    weights = needed_start(model)(jax.random.key(0))
    calls, states, size = {}, {}, len(rows[0])
    for method, (kernel, position) in kernels(model, weights, lambda t: 1.0, 1000).items():
        states[method] = kernel.init(jax.random.key(1), jax.tree.map(jnp.copy, position))
        run = runner(kernel, size)

        def once(method: str = method, run: Callable = run) -> Any:
            states[method] = run(states[method], rows, jax.random.key(2), steps)
            return states[method].position

        calls[method] = once
    seconds = medians(calls, repeats)
    return [
        [name, method, 1e3 * seconds[method] / steps, seconds[method] / seconds["SGD"],
         seconds[method] / seconds["Adam"], bytes_of(states[method]) / bytes_of(weights)]
        for method in METHODS
    ]  # fmt: skip


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def needed_start(model: tr.Model) -> Callable:
    assert model.start is not None, "a network's model has a start"
    return model.start


def digits(folder: str | None, quick: bool) -> tuple[tr.Data, tr.Data]:
    """Digits to learn and to test, with pixels in [0, 1]."""
    with np.load(data_folder(folder, "mnist.npz")) as file:
        x, y, xt, yt = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    learn, test = (100, 50) if quick else (4000, 2000)
    return (
        tr.Data(y[:learn].astype(np.int32), given=x[:learn].astype(np.float32) / 255),
        tr.Data(yt[:test].astype(np.int32), given=xt[:test].astype(np.float32) / 255),
    )


def trained(name: str, candidate: Candidate, learn: tr.Data, test: tr.Data, epochs: int) -> list[list]:
    """A row for each method: how long it took, how well it predicts, and its verdict."""
    steps, found = epochs * learn.size // BATCH, []
    common = {"batch_size": BATCH, "epochs": epochs, "start": "random", "samples": 1}
    falling = functools.partial(optax.cosine_decay_schedule, decay_steps=steps)
    point = tr.MAP(optimizer=optax.adam(falling(1e-3)), steps=steps, batch_size=BATCH)
    everywhere = {
        "MAP by Adam": point,
        "ensemble of five": tr.DeepEnsemble(member=point, size=5),
        "Bayes by Backprop": tr.BayesByBackprop(**common, learning_rate=falling(1e-3)),
        "IVON": tr.IVON(**common, learning_rate=falling(0.1)),
        "SGHMC": tr.SGHMC(
            chains=1, warmup=steps // 2, draws=steps // 2, batch_size=BATCH, cycles=min(4, steps // 4), start="random"
        ),
    }
    last = {"Laplace": tr.Laplace(), "Bayes by Backprop": tr.BayesByBackprop(), "IVON": tr.IVON(), "NUTS": tr.NUTS()}

    def run(label: str, model: tr.Model, method: tr.Method, learn: tr.Data, test: tr.Data) -> tr.Posterior:
        began = time.perf_counter()
        posterior = tr.infer(model, learn, method, progress=False)
        seconds = time.perf_counter() - began
        shares = posterior.predict(test.given, draws=30).mean
        wrong = 100 * float(np.mean(np.argmax(shares, 1) != test.y))
        loss = -float(np.mean(np.log(np.maximum(shares[np.arange(test.size), test.y], 1e-12))))
        found.append([name, label, wrong, loss, seconds, posterior.report().verdict])
        print(found[-1], flush=True)
        return posterior

    posteriors = {label: run(label, candidate.model, method, learn, test) for label, method in everywhere.items()}
    weights = jax.tree.map(lambda a: a[0], posteriors["MAP by Adam"].spread(1)[0])["weights"]
    of_rows = jax.jit(lambda x: jax.lax.map(lambda x: candidate.features(weights, x), x, batch_size=100))
    inner = [tr.Data(data.y, given=np.asarray(of_rows(data.given))) for data in (learn, test)]
    model = tr.models.neural_network(tr.models.mlp(inner[0].given.shape[1], (), 10), "categorical", prior=PRIOR)
    for label, method in last.items():
        run(f"last layer, {label}", model, method, *inner)
    return found


def main() -> None:
    """Time the steps, and with ``--train`` learn digits."""
    parser = arguments(__doc__, data=True)
    parser.add_argument("--networks", default="ResNet-20,transformer", help="names with commas between them")
    parser.add_argument("--train", type=int, metavar="EPOCHS", help="learn digits in so many epochs")
    parser.add_argument("--compute", default="float32", choices=("float32", "bfloat16"), help="of the networks")
    options = parser.parse_args()
    learn, test = digits(options.data, options.quick)
    steps, repeats = (1, 1) if options.quick else (4, 5)
    networks = {name: each for name, each in candidates(options.compute).items() if name in options.networks}
    say_where(f"A step with {BATCH} images, in {options.compute}")
    head = ["network", "method", "ms", "over SGD", "over Adam", "state, in weights"]
    rows = [
        row
        for name, each in networks.items()
        for row in costs(name, each.model, (learn.y, learn.given), steps, repeats)
    ]
    table(head, rows)
    record(__file__, head, rows, names=2)
    if options.train:
        say_where(f"{learn.size:,} digits in {options.train} epochs")
        head = ["network", "inference", "error, %", "log loss", "seconds", "verdict"]
        rows = [row for name, each in networks.items() for row in trained(name, each, learn, test, options.train)]
        table(head, rows)
        record(__file__, head, rows, names=2)


if __name__ == "__main__":
    main()
