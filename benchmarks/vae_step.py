"""What does a step of a variational autoencoder cost beside the same written by hand?

The autoencoder has the widths 784–400–20, tanh units and binary pixels; a step takes 128 rows, one draw, and Adam at a
constant rate. ``AutoEncoding`` in the library's loop is compared with a scan in plain JAX of the same bound, with the
KL in closed form, noise drawn in blocks and batches cut from the same rows. pythae's VAE, with networks of these widths
and ReLU, without the rest of its trainer, is timed too if it is installed. The script prints milliseconds a step, and
the ratio of ours to theirs.

Predicted: the matrix products take nearly all of the time, and the compiler removes the leading axis of one draw, so
the ratio is at most 1.05. pythae, which Python dispatches, takes twice as long.

    python benchmarks/vae_step.py [--quick]
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import arguments, medians, record, say_where, table

import tractable as tr
from tractable.core.batches import Plan
from tractable.engine import run as loop
from tractable.ladders.amortised import Amortising
from tractable.ladders.autoencoding import AutoEncoding, ImportanceWeighted
from tractable.ladders.ladders import latent_gaussian

PIXELS, HIDDEN, LATENT, BATCH, ROWS, RATE = 784, 400, 20, 128, 12_800, 1e-3


def rows() -> np.ndarray:
    """Random binary pixels; their values do not change the time."""
    return (np.random.default_rng(0).random((ROWS, PIXELS)) < 0.2).astype(np.float32)


def ours(method: Any, steps: int) -> Callable:
    """The library's loop, as ``infer`` runs it, compiled before the timing."""
    ladder, data = latent_gaussian(PIXELS, LATENT, hidden=(HIDDEN,)), tr.Data(rows())
    plan = Plan(data.size, BATCH)
    program = Amortising(ladder, method)
    shape = loop.shape(steps, 1, 1, 1)
    tuned = {"steps": jnp.asarray(float(steps))}
    keys = jax.random.split(jax.random.key(1), 1)
    first = ladder.initial(jax.random.key(0), data.rows[0][:1000])
    states = loop.begin(program, tuned, None, keys, jax.tree.map(lambda a: jnp.asarray(a)[None], first))
    groups = -(-steps // shape.group)

    def go() -> Any:
        done = loop.run(
            loop.Loop(program, shape, plan), data, tuned, keys, loop.Start(states), groups, collect=("info",)
        )
        return jax.tree.leaves(done.states.position)

    return go


def by_hand(steps: int) -> Callable:
    """One scan over plain arrays."""
    x = jnp.asarray(rows())
    shapes = {"e0": (PIXELS, HIDDEN), "e1": (HIDDEN, 2 * LATENT), "d0": (LATENT, HIDDEN), "d1": (HIDDEN, PIXELS)}
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), 4), strict=True))
    params = {
        name: (jax.random.normal(keys[name], shape) / np.sqrt(shape[0]), jnp.zeros(shape[1]))
        for name, shape in shapes.items()
    }
    centre, adam = jnp.mean(x, 0), optax.adam(RATE)

    def bound(params: Any, eps: jax.Array, x: jax.Array) -> jax.Array:
        def dense(name: str, a: jax.Array) -> jax.Array:
            return a @ params[name][0] + params[name][1]

        mean, rho = jnp.split(dense("e1", jnp.tanh(dense("e0", x - centre))), 2, axis=-1)
        sd = 1e-3 + jax.nn.softplus(rho)
        logits = dense("d1", jnp.tanh(dense("d0", mean + sd * eps)))
        likelihood = jnp.sum(jax.nn.log_sigmoid((2 * x - 1) * logits))
        kl = jnp.sum((sd**2 + mean**2 - 1) / 2 - jnp.log(sd))
        return (likelihood - kl) * (ROWS / BATCH)

    def step(carry: Any, now: Any) -> tuple[Any, jax.Array]:
        params, memory = carry
        eps, start = now
        batch = jax.lax.dynamic_slice_in_dim(x, start, BATCH)
        value, slope = jax.value_and_grad(bound)(params, eps, batch)
        updates, memory = adam.update(jax.tree.map(jnp.negative, slope), memory, params)
        return (optax.apply_updates(params, updates), memory), value

    @functools.partial(jax.jit, static_argnames="count")
    def go(key: jax.Array, params: Any, count: int) -> Any:
        def block(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            noise_key, where_key = jax.random.split(key)
            eps = jax.random.normal(noise_key, (loop.BLOCK, BATCH, LATENT))
            starts = jax.random.randint(where_key, (loop.BLOCK,), 0, ROWS - BATCH)
            return jax.lax.scan(step, carry, (eps, starts))

        carry = params, adam.init(params)
        return jax.lax.scan(block, carry, jax.random.split(key, count // loop.BLOCK))

    return lambda: go(jax.random.key(1), params, steps)


def of_pythae(steps: int) -> Callable:
    """pythae's loss, its backward pass, and torch's Adam."""
    import torch
    from pythae.models import VAE, VAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder, BaseEncoder
    from torch import nn

    class Encoder(BaseEncoder):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.log_var = nn.Linear(PIXELS, HIDDEN), *(nn.Linear(HIDDEN, LATENT) for _ in "mv")

        def forward(self, x: Any) -> Any:
            seen = torch.relu(self.body(x))
            return ModelOutput(embedding=self.mean(seen), log_covariance=self.log_var(seen))

    class Decoder(BaseDecoder):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PIXELS), nn.Sigmoid())

        def forward(self, z: Any) -> Any:
            return ModelOutput(reconstruction=self.body(z))

    settings = VAEConfig(input_dim=(PIXELS,), latent_dim=LATENT, reconstruction_loss="bce")
    model = VAE(settings, Encoder(), Decoder())
    adam, x = torch.optim.Adam(model.parameters(), RATE), torch.from_numpy(rows())

    def go() -> float:
        loss = torch.zeros(())
        for t in range(steps):
            start = t * BATCH % (ROWS - BATCH + 1)
            loss = model({"data": x[start : start + BATCH]}).loss
            adam.zero_grad()
            loss.backward()
            adam.step()
        return loss.item()

    return go


def main() -> None:
    """Time all in turn and print medians; on another machine only the ratios hold."""
    options = arguments(__doc__).parse_args()
    steps, repeats = (loop.BLOCK, 1) if options.quick else (20 * loop.BLOCK, 7)
    adam = optax.adam(RATE)
    peers = {
        "by hand": by_hand(steps),
        "AutoEncoding": ours(AutoEncoding(batch_size=BATCH, optimizer=adam), steps),
        'AutoEncoding(gradient="path", kl="sampled")': ours(
            AutoEncoding(batch_size=BATCH, optimizer=adam, gradient="path", kl="sampled"), steps
        ),
        "AutoEncoding(samples=5)": ours(AutoEncoding(batch_size=BATCH, optimizer=adam, samples=5), steps),
        "ImportanceWeighted(samples=5)": ours(ImportanceWeighted(batch_size=BATCH, optimizer=adam), steps),
        'ImportanceWeighted(samples=5, gradient="reparameterised")': ours(
            ImportanceWeighted(batch_size=BATCH, optimizer=adam, gradient="reparameterised"), steps
        ),
    }
    if importlib.util.find_spec("pythae"):
        peers["pythae"] = of_pythae(steps)
    else:
        print("pythae is not installed: left out.")
    seconds = medians(peers, repeats)
    say_where(f"A step of {PIXELS}–{HIDDEN}–{LATENT}, {BATCH} rows")
    base = seconds["by hand"]
    head, lines = ["climb", "ms a step", "over by hand"], [[n, 1e3 * s / steps, s / base] for n, s in seconds.items()]
    table(head, lines)
    record(__file__, head, lines)


if __name__ == "__main__":
    main()
