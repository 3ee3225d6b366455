"""Measures how noisy the score-function gradient of an inference network is, with and without variance reductions."""

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

FIRST_DRAWS = 50  # number of draws per row from which c, σ̂ and missing baselines are estimated
HIDDEN, RIDGE = 100, 1e-3  # number of tanh units of a missing baseline; penalty of the ridge regression that fits it


class Variances(NamedTuple):
    """The variances of one batch's estimate of φ's gradient, a sum over all rows; arrays are (setting, L)."""

    names: tuple[str, ...]  # the settings' names
    variance: np.ndarray  # trace of the gradient's covariance over draws of h
    error: np.ndarray  # the standard error of ``variance``
    signal: np.ndarray  # squared length of the mean gradient; the estimate is unbiased, so it can fall below 0
    signal_error: np.ndarray  # the standard error of ``signal``

    def __str__(self) -> str:
        """A table, which gives each variance also as a share of the first setting's variance."""
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
    """Measure the variance of NVIL's gradient of φ at one batch, layer by layer, under several settings.

        Var_i = tr Cov_h [ N/n Σ_rows (l_i − c_i − C_i)/max(1, σ̂_i) ∇_φ log q(h^i | h^{i−1}) ]

    A setting is a combination of variance reductions (``score.Reductions``). All settings use the same draws, so
    differences between them are more exact than the errors suggest. A pair of draws with gradients g and g′ estimates
    the variance by ½|g − g′|², and |mean|² by g·g′, both without bias. Normalising divides the gradient as well as its
    noise, so compare settings by |mean|²/variance. Local signals are unbiased, but they do *not* always lower the
    variance: the terms left out may be correlated with those that stay.

    Args:
        params: {"theta": θ, "phi": φ}, and "psi" where baselines have been learnt. Missing baselines are fitted to the
            batch in a first pass, by ridge regression on random tanh units; c and σ̂ always come from that pass.
        data: the data, of which n = ``rows`` rows (n ≥ 1, at most all) are taken at random.
        draws: number of draws of h, ≥ 4 and even.
        switches: settings by name; by default no reduction, each reduction alone, and several combined.

    Raises:
        SettingsError: numbers out of range; switches that do not fit the ladder, or need several draws per row.
    """
    if not is_whole(draws, 4) or draws % 2:
        raise SettingsError(f"draws are taken in pairs: expected an even number, 4 or more; got {draws!r}.")
    expect("rows", rows, Count)
    settings = _settings(ladder) if switches is None else switches
    for setting in settings.values():
        score.check(ladder, setting, 1)
    pick, look, first, pairs = jax.random.split(key, 4)
    rows = min(rows, data.size)
    index = np.sort(np.asarray(jax.random.choice(pick, data.size, (rows,), replace=False)))
    x = ladder.look(look, jax.tree.map(lambda a: jnp.asarray(a[index]), data.rows[0]))
    estimates = _estimates(ladder, tuple(settings.values()), draws // 2, params, x, data.size / rows, first, pairs)
    halves, crosses = (np.asarray(a, float) for a in estimates)  # (pair, setting, L)
    root = math.sqrt(draws // 2)
    return Variances(
        tuple(settings), halves.mean(0), halves.std(0, ddof=1) / root, crosses.mean(0), crosses.std(0, ddof=1) / root
    )


@compiled("ladder", "settings", "pairs")
def _estimates(
    ladder: Ladder, settings: tuple, pairs: int, params: PyTree, x: PyTree, scale: jax.Array | float, first: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """½|g − g′|² and g·g′ of every pair of draws, (pair, setting, L) each.

    One backward pass gives g − g′ (from weights of opposite signs) and another gives g + g′; g·g′ is the difference of
    their squares over 4.
    """
    fixed = [_first_pass(ladder, setting, params, x, first) for setting in settings]

    def log_q(phi: PyTree, h: tuple) -> jax.Array:
        return jnp.stack(ladder.log_q(params | {"phi": phi}, jax.tree.map(lambda a: a[None], x), h))

    def pair(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        h, _ = ladder.drawn(key, params, x, 2)
        weights = jnp.stack([  # of ∇ log q(h^i | ·), (setting, L, draw, row)
            score.centre_signals(s, _residual(ladder, s, psi, params, x, h), memory)[0]
            for s, (psi, memory) in zip(settings, fixed, strict=True)
        ])  # fmt: skip
        back = jax.vjp(lambda phi: log_q(phi, h), params["phi"])[1]
        sign = jnp.asarray([1.0, -1.0], weights.dtype)[None, :, None]

        def square(cotangent: jax.Array) -> jax.Array:
            return sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(back(cotangent)))  # pyright: ignore

        def of_setting(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            by_layer = jnp.eye(ladder.depth)[:, :, None, None] * weights[None]  # one layer at a time
            difference, total = (jnp.stack([square(w) for w in each]) for each in (by_layer * sign[None], by_layer))
            return difference / 2, (total - difference) / 4

        return jax.lax.map(of_setting, scale * weights)

    return jax.lax.map(pair, jax.random.split(key, pairs))


def _residual(ladder: Ladder, setting: score.Reductions, psi: PyTree, params: PyTree, x: PyTree, h: tuple) -> jax.Array:
    """The residuals l_i − C_i of a setting, (L, draw, row); without ψ they are l_i."""
    rows = jax.tree.map(lambda a: a[None], x)
    log_p, log_q = jnp.stack(ladder.log_p(params["theta"], rows, h)), jnp.stack(ladder.log_q(params, rows, h))
    signal = score.signals(log_p, log_q, local=setting.local)
    if setting.baseline is None or not psi:
        return signal
    return signal - score.baselines(psi, score.baseline_inputs(ladder, params, x, h, setting.baseline), signal.shape)


def _first_pass(
    ladder: Ladder, setting: score.Reductions, params: PyTree, x: PyTree, key: jax.Array
) -> tuple[PyTree, score.Memory]:
    """ψ (or () without a baseline), and the memory that gives c and σ̂, from a first pass over the batch."""
    draw_key, psi_key = jax.random.split(key)
    h, _ = ladder.drawn(draw_key, params, x, FIRST_DRAWS)
    psi = () if setting.baseline is None else params.get("psi", ())
    if setting.baseline is not None and not psi:
        residual_of_rows = _residual(ladder, setting, (), params, x, h)
        start = score.begin_baselines(ladder, psi_key, HIDDEN, baseline=setting.baseline)
        inputs = score.baseline_inputs(ladder, params, x, h, setting.baseline)
        each_layer = zip(start, inputs, residual_of_rows, strict=True)
        psi = {name: _fit_baseline(start[name], *each) for name, *each in each_layer}
    residual = _residual(ladder, setting, psi, params, x, h)
    one = jnp.ones((), residual.dtype)
    return psi, score.Memory(jnp.mean(residual, (1, 2)), jnp.var(residual, (1, 2)), one)


def _fit_baseline(psi: dict[str, jax.Array], inputs: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
    """The baseline with the same hidden units, and its output fitted to ``target`` by ridge regression on them."""
    units = jnp.tanh(inputs @ psi["weight"] + psi["bias"][None, None])
    units = jnp.broadcast_to(units, (*target.shape, units.shape[-1])).reshape(target.size, -1)
    mean, level = jnp.mean(units, axis=0), jnp.mean(target)
    centred = units - mean[None]
    gram = centred.T @ centred / target.size + RIDGE * jnp.eye(units.shape[1])
    out = jnp.linalg.solve(gram, centred.T @ (target.reshape(-1) - level) / target.size)
    return psi | {"out": out, "answer": level - mean @ out}


def _settings(ladder: Ladder) -> dict[str, score.Reductions]:
    """No reduction, each reduction alone, and several combined, as far as the ladder's inference network allows."""
    upward = ladder.recognition.upward or ladder.depth == 1
    baseline = "layers" if upward else "input"
    none = score.Reductions(centre=False, baseline=None, normalise=False, local=False)
    both = none._replace(centre=True, baseline=baseline)
    settings = {
        "none": none,
        "centre": none._replace(centre=True),
        "baseline": none._replace(baseline=baseline),
        "normalise": none._replace(normalise=True),
        "local": none._replace(local=True),
        "centre, baseline": both,
        "centre, baseline, normalise": both._replace(normalise=True),
        "all": both._replace(normalise=True, local=upward),
    }
    return {name: setting for name, setting in settings.items() if upward or not setting.local}
