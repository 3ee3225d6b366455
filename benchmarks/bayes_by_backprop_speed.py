"""What does uncertainty cost a step of training?

Milliseconds for each step of a 784-400-400-10 ReLU network with batches of 128 and Adam on random digits, in one scan;
all variants are timed in turn in one run. The lower limit is the deterministic network's step with the same optimiser.
Our variants run in ``tr.infer``'s own loop: Bayes by Backprop with one shared draw (normal prior and closed-form KL;
scale mixture and Monte Carlo KL), local reparameterisation, Flipout, and IVON. Then parts of the step are left out, to
see what each costs. NumPyro's SVI and bayesian-torch are timed too if they are installed.

Predicted: a step with the shared draw takes 2.0 to 2.5 times as long as the deterministic one, because Adam's state,
the softplus and the noise double the memory traffic of 478,410 weights, while the matrix products stay the same. Local
reparameterisation and Flipout take longer, because they add products. IVON takes 1.15 to 1.3 times as long: it keeps
as many running averages as Adam, has no softplus, no root and no division. (Measured: 1.35; with precisions in the
place of σ it was 1.5 to 1.95.)

    python benchmarks/bayes_by_backprop_speed.py [--quick]
"""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable import objectives
from tractable.core.model import Batch
from tractable.engine.ascend import ascend
from tractable.networks.ivon import ivon

BATCH = 128


def step_of(kernel: tr.Kernel, rows: tuple, steps: int, size: int, block: int = 1):
    """A compiled run of ``steps`` steps from a position."""

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state, key):
        def step(state, t):
            start = (t * BATCH) % (size - BATCH + 1)
            cut = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, BATCH), rows)
            batch = Batch(cut, jnp.ones(BATCH), size, t % (size // BATCH), size // BATCH)
            noise = jax.tree.map(lambda a: a[0], kernel.draw(jax.random.fold_in(key, t), 1, state, batch))
            return kernel.step(noise, state, batch)[0], None

        return jax.lax.scan(step, state, jnp.arange(steps))[0]

    return run


def candidates(steps: int, size: int) -> dict:
    """Functions, each of which takes ``steps`` steps when called, and continues where its last call ended."""
    rng = np.random.default_rng(0)
    rows = (jnp.asarray(rng.integers(0, 10, size), jnp.int32), jnp.asarray(rng.random((size, 784)), jnp.float32))
    net = tr.models.mlp(784, (400, 400), 10)
    normal = tr.models.neural_network(net, "categorical", prior=0.1)
    mixture = tr.models.neural_network(net, "categorical", prior=tr.models.scale_mixture())
    weights = normal.start(jax.random.key(0))
    given = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), rows[1])

    def phi() -> dict:
        return {"mean": jax.tree.map(jnp.copy, weights), "rho": jax.tree.map(lambda a: jnp.full_like(a, -4.0), weights)}

    kernels = {"deterministic": (ascend(objectives.log_joint(normal), optax.adam(1e-3)), weights)}
    for name, model, noise in (
        ("shared draw", normal, "shared"),
        ("shared draw, scale mixture", mixture, "shared"),
        ("local reparameterisation", normal, "local"),
        ("Flipout", normal, "flipout"),
    ):
        objective = objectives.bayes_by_backprop(model, noise=noise, size=BATCH, given=given)
        kernels[name] = ascend(objective, optax.adam(1e-3)), phi()
        if name == "shared draw":
            nothing = objective._replace(
                draw=lambda key, count, phi, o=objective: jax.tree.map(
                    jnp.zeros_like, jax.eval_shape(lambda: o.draw(jax.random.key(0), count, phi))
                )
            )
            kernels["shared draw, no noise drawn"] = ascend(nothing, optax.adam(1e-3)), phi()
    position = {"mean": weights, "sd": jax.tree.map(lambda a: jnp.full_like(a, 0.02), weights)}
    kernels["IVON"] = ivon(normal, 0.1, forget=1e-4), position
    out = {}
    for name, (kernel, position) in kernels.items():
        run, held = (
            step_of(kernel, rows, steps, size),
            [kernel.init(jax.random.key(1), jax.tree.map(jnp.copy, position))],
        )

        def once(run=run, held=held):
            held[0] = run(held[0], jax.random.key(2))
            return held[0].position

        out[name] = once
    return out


def numpyro_step(steps: int, size: int):
    """NumPyro's SVI with a mean-field guide on the same network, in one scan."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    rng = np.random.default_rng(0)
    y, x = jnp.asarray(rng.integers(0, 10, size), jnp.int32), jnp.asarray(rng.random((size, 784)), jnp.float32)
    shapes = [(784, 400), (400, 400), (400, 10)]

    def model(x, y):
        h = x
        for i, shape in enumerate(shapes):
            w = numpyro.sample(f"w{i}", dist.Normal(jnp.zeros(shape), 0.1).to_event(2))
            b = numpyro.sample(f"b{i}", dist.Normal(jnp.zeros(shape[1]), 0.1).to_event(1))
            h = h @ w + b
            h = jax.nn.relu(h) if i < 2 else h
        with numpyro.plate("data", size, subsample_size=BATCH):
            numpyro.sample("y", dist.Categorical(logits=h), obs=y)

    svi = SVI(model, AutoNormal(model, init_scale=0.02), optax.adam(1e-3), Trace_ELBO())
    held = [svi.init(jax.random.key(0), x[:BATCH], y[:BATCH])]

    @jax.jit
    def run(state):
        def step(state, t):
            start = (t * BATCH) % (size - BATCH + 1)
            cut = [jax.lax.dynamic_slice_in_dim(a, start, BATCH) for a in (x, y)]
            return svi.update(state, *cut)[0], None

        return jax.lax.scan(step, state, jnp.arange(steps))[0]

    def once():
        held[0] = run(held[0])
        return held[0].optim_state

    return once


def torch_steps(steps: int, size: int) -> dict:
    """bayesian-torch's linear layers, and PyTorch's, in a Python loop, as their documentation shows."""
    import bayesian_torch.layers as layers
    import torch
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    rng = np.random.default_rng(0)
    x, y = torch.tensor(rng.random((size, 784)), dtype=torch.float32), torch.tensor(rng.integers(0, 10, size))

    def network(layer) -> torch.nn.Sequential:
        relu = torch.nn.ReLU
        return torch.nn.Sequential(layer(784, 400), relu(), layer(400, 400), relu(), layer(400, 10))

    class Pair(torch.nn.Module):
        """Wraps a layer that returns (output, KL), so that a Sequential passes on the output alone."""

        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, return_kl=False)

    out = {}
    for name, layer, random in (
        ("PyTorch, deterministic", torch.nn.Linear, False),
        ("bayesian-torch", lambda a, b: Pair(layers.LinearReparameterization(a, b)), True),
        ("bayesian-torch, Flipout", lambda a, b: Pair(layers.LinearFlipout(a, b)), True),
    ):
        net = network(layer)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)

        def once(net=net, optimizer=optimizer, random=random):
            for t in range(steps):
                start = (t * BATCH) % (size - BATCH + 1)
                loss = torch.nn.functional.cross_entropy(net(x[start : start + BATCH]), y[start : start + BATCH])
                if random:
                    loss = loss + get_kl_loss(net) / size
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return np.zeros(())

        out[name] = once
    return out


def main() -> None:
    """Time them in turn."""
    parser = arguments(__doc__)
    parser.add_argument("--no-numpyro", action="store_true", help="leave NumPyro out")
    options = parser.parse_args()
    steps, size, repeats = (5, 512, 1) if options.quick else (60, 12_800, 7)
    runs = candidates(steps, size)
    if not options.no_numpyro:
        runs["NumPyro SVI"] = numpyro_step(steps, size)
    if importlib.util.find_spec("bayesian_torch") is None:
        print("bayesian-torch is not installed (pip install torch bayesian-torch): left out.\n")
    else:
        runs |= torch_steps(steps, size)
    seconds = medians(runs, repeats)
    base = seconds["deterministic"]
    say_where("A step of Bayes by Backprop, 784-400-400-10, batch 128, Adam")
    head, rows = ["step", "ms", "over deterministic"], [[n, 1e3 * s / steps, s / base] for n, s in seconds.items()]
    table(head, rows)
    record(__file__, head, rows)


if __name__ == "__main__":
    main()
