"""Measures how noisy the score-function gradient of an inference network is, and how much each remedy helps."""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import SettingsError
from tractable.core.model import Data, PyTree
from tractable.core.settings import Count, expect, is_whole
from tractable.core.shared import compiled
from tractable.ladders import score
from tractable.ladders.ladder import Ladder

FIRST = 50  # draws per row from which c, σ̂ and missing baselines are estimated
HIDDEN, RIDGE = 100, 1e-3  # units of a missing baseline, and the ridge penalty of its regression


class Variances(NamedTuple):
    """Variances of one batch's gradient of φ, in the sum scale; arrays are (setting, L)."""

    names: tuple[str, ...]  # of the settings
    variance: np.ndarray  # trace of the covariance over draws of h
    error: np.ndarray  # its standard error
    signal: np.ndarray  # squared length of the mean slope; unbiased, so it can fall below 0
    signal_error: np.ndarray  # its standard error

    def __str__(self) -> str:
        """A table, each variance also as a share of the first setting's."""
        lines = [f"{'':30} layer      variance     ± error   of first   |mean|²/variance"]
        for name, i in itertools.product(range(len(self.names)), range(self.variance.shape[1])):
            spread, error = self.variance[name, i], self.error[name, i]
            lines.append(
                f"{self.names[name] if i == 0 else '':30} {'h' + str(i + 1):>5}  {spread:12.5g}  {error:10.2g}"
                f"  {spread / self.variance[0, i]:9.4f}  {self.signal[name, i] / spread:17.3g}"
            )
        return "\n".join(lines)


def gradient_variance(
    ladder: Ladder,
    params: dict[str, PyTree],
    data: Data,
    *,
    key: jax.Array,
    draws: int = 200,
    rows: int = 100,
    switches: dict[str, score.Reductions] | None = None,
) -> Variances:
    """Measured variance of NVIL's gradient of φ at one batch, layer by layer, under each remedy and all together.

        Var_i = tr Cov_h [ N/n Σ_rows (l_i − c_i − C_i)/max(1, σ̂_i) ∇_φ log q(h^i | h^{i−1}) ]

    All settings use the same draws, so their differences are sharper than their errors. A pair of draws estimates the
    variance by ½|g − g′|² and |mean|² by g·g′, both without bias. Normalising divides the gradient as well as its
    noise, so compare settings by |mean|²/variance. Local signals are unbiased, but *not* guaranteed to lower the
    variance: the terms left out may have been correlated with those that stay.

    Args:
        params: {"theta": θ, "phi": φ}, and "psi" where baselines have been learnt. Missing baselines are fitted to the
            batch in a first pass, a ridge regression on random tanh units; c and σ̂ always come from that pass.
        data: from which ``rows`` are taken at random, n ≥ 1 and at most all.
        draws: ≥ 4, an even number.
        switches: settings by name; by default no remedy, each remedy alone, and several combined.

    Raises:
        SettingsError: numbers out of range; switches that do not fit the ladder, or need several draws per row.
    """
    if not is_whole(draws, 4) or draws % 2:
        raise SettingsError(f"draws are taken in pairs: expected an even number, 4 or more; got {draws!r}.")
    expect("rows", rows, Count)
    chosen = _settings(ladder) if switches is None else switches
    for setting in chosen.values():
        score.check(ladder, setting, 1)
    pick, look, first, pairs = jax.random.split(key, 4)
    rows = min(rows, data.size)
    index = np.sort(np.asarray(jax.random.choice(pick, data.size, (rows,), replace=False)))
    x = ladder.look(look, jax.tree.map(lambda a: jnp.asarray(a[index]), data.rows[0]))
    measured = _measured(ladder, tuple(chosen.values()), draws // 2, params, x, data.size / rows, first, pairs)
    halves, crosses = (np.asarray(a, float) for a in measured)  # (pair, setting, L)
    root = math.sqrt(draws // 2)
    return Variances(
        tuple(chosen), halves.mean(0), halves.std(0, ddof=1) / root, crosses.mean(0), crosses.std(0, ddof=1) / root
    )


@compiled("ladder", "chosen", "pairs")
def _measured(
    ladder: Ladder, chosen: tuple, pairs: int, params: PyTree, x: PyTree, scale: jax.Array | float, first: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """½|g − g′|² and g·g′ of every pair of draws, (pair, setting, L)."""
    fixed = [_fixed(ladder, setting, params, x, first) for setting in chosen]

    def log_q(phi: PyTree, h: tuple) -> jax.Array:
        return jnp.stack(ladder.log_q(params | {"phi": phi}, jax.tree.map(lambda a: a[None], x), h))

    def pair(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        h, _ = ladder.drawn(key, params, x, 2)
        weights = jnp.stack([  # of ∇ log q(h^i | ·), (setting, L, draw, row)
            score.centre_signals(s, _residual(ladder, s, psi, params, x, h), memory)[0]
            for s, (psi, memory) in zip(chosen, fixed, strict=True)
        ])  # fmt: skip
        back = jax.vjp(lambda phi: log_q(phi, h), params["phi"])[1]
        sign = jnp.asarray([1.0, -1.0], weights.dtype)[None, :, None]

        def square(cotangent: jax.Array) -> jax.Array:
            return sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(back(cotangent)))  # pyright: ignore

        def of(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            alone = jnp.eye(ladder.depth)[:, :, None, None] * weights[None]  # one layer at a time
            separate, shared = (jnp.stack([square(w) for w in each]) for each in (alone * sign[None], alone))
            return separate / 2, (shared - separate) / 4

        return jax.lax.map(of, scale * weights)

    return jax.lax.map(pair, jax.random.split(key, pairs))


def _residual(ladder: Ladder, setting: score.Reductions, psi: PyTree, params: PyTree, x: PyTree, h: tuple) -> jax.Array:
    """l_i − C_i, (L, draw, row)."""
    rows = jax.tree.map(lambda a: a[None], x)
    log_p, log_q = jnp.stack(ladder.log_p(params["theta"], rows, h)), jnp.stack(ladder.log_q(params, rows, h))
    signal = score.signals(log_p, log_q, local=setting.local)
    if setting.baseline is None or not psi:
        return signal
    return signal - score.baselines(psi, score.baseline_inputs(ladder, params, x, h, setting.baseline), signal.shape)


def _fixed(
    ladder: Ladder, setting: score.Reductions, params: PyTree, x: PyTree, key: jax.Array
) -> tuple[PyTree, score.Memory]:
    """ψ, () without a baseline, and the memory of c and σ̂, from a first pass over the batch."""
    draw_key, psi_key = jax.random.split(key)
    h, _ = ladder.drawn(draw_key, params, x, FIRST)
    psi = () if setting.baseline is None else params.get("psi", ())
    if setting.baseline is not None and not psi:
        residual_of_rows = _residual(ladder, setting, (), params, x, h)
        begun = score.begin_baselines(ladder, psi_key, HIDDEN, baseline=setting.baseline)
        seen = score.baseline_inputs(ladder, params, x, h, setting.baseline)
        psi = {name: _regressed(begun[name], *each) for name, *each in zip(begun, seen, residual_of_rows, strict=True)}
    residual = _residual(ladder, setting, psi, params, x, h)
    one = jnp.ones((), residual.dtype)
    return psi, score.Memory(jnp.mean(residual, (1, 2)), jnp.var(residual, (1, 2)), one)


def _regressed(psi: dict[str, jax.Array], seen: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
    """A baseline with its hidden units kept, and its output fitted to ``target`` by ridge regression on them."""
    units = jnp.tanh(seen @ psi["weight"] + psi["bias"][None, None])
    units = jnp.broadcast_to(units, (*target.shape, units.shape[-1])).reshape(target.size, -1)
    mean, level = jnp.mean(units, axis=0), jnp.mean(target)
    separate = units - mean[None]
    gram = separate.T @ separate / target.size + RIDGE * jnp.eye(units.shape[1])
    out = jnp.linalg.solve(gram, separate.T @ (target.reshape(-1) - level) / target.size)
    return psi | {"out": out, "answer": level - mean @ out}


def _settings(ladder: Ladder) -> dict[str, score.Reductions]:
    """No remedy, each alone, and several combined, as far as the ladder's inference network allows."""
    upward = ladder.recognition.upward or ladder.depth == 1
    sees = "layers" if upward else "input"
    none = score.Reductions(centre=False, baseline=None, normalise=False, local=False)
    both = none._replace(centre=True, baseline=sees)
    found = {
        "none": none,
        "centre": none._replace(centre=True),
        "baseline": none._replace(baseline=sees),
        "normalise": none._replace(normalise=True),
        "local": none._replace(local=True),
        "centre, baseline": both,
        "centre, baseline, normalise": both._replace(normalise=True),
        "all": both._replace(normalise=True, local=upward),
    }
    return {name: setting for name, setting in found.items() if upward or not setting.local}
