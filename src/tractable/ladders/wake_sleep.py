"""Wake–sleep and reweighted wake–sleep. A step has two halves: one updates θ and the other φ.

Each half follows the gradient of a log density at draws, which are held fixed. A "dream" is a draw (x, h) of the
model.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tractable.core import tree
from tractable.core.errors import SettingsError
from tractable.core.model import Batch, Objective, PyTree
from tractable.core.settings import Count, NotNegative, expect
from tractable.ladders.ladder import Ladder
from tractable.ladders.pathwise import draw_rows, each_row, k_sample, keyed_inputs, keys, sum_gradients


def wake_sleep(ladder: Ladder) -> Objective:
    """Wake–sleep (Hinton, Dayan, Frey & Neal 1995).

        wake:   θ follows ∇ log p_θ(x, h) at h ~ q_φ(h | x), x from the data
        sleep:  φ follows ∇ log q_φ(h | x) at a dream (x, h) ~ p_θ

    The wake half is an unbiased estimate of the ELBO's gradient in θ. The sleep half is an unbiased estimate of the
    gradient in φ of −E_p(x) KL(p(h | x) ‖ q(h | x)), an expectation over dreams and not over data. Together the halves
    are the gradient of no single objective, so nothing is sure to rise, not even the ELBO. If q is p(h | x), the wake
    half is the gradient of log p(x), as in EM. No draw is differentiated, so layers may be discrete.

    Both halves estimate sums over all N rows: each of a batch's n rows has one dream, and the sum over dreams is scaled
    by N/n like the sum over rows. The traced value is the ELBO from one draw, in nats.
    """
    return _objective(ladder, 1, 0.0, 1.0)


def reweighted_wake_sleep(
    ladder: Ladder, *, samples: int = 5, wake_phi: float = 1.0, sleep_phi: float = 0.0
) -> Objective:
    """Reweighted wake–sleep (Bornschein & Bengio 2015), with K draws of q(h | x) for each row.

        θ: Σ_k w̃_k ∇ log p_θ(x, h_k)
        φ: wake_phi Σ_k w̃_k ∇ log q_φ(h_k | x) + sleep_phi ∇ log q_φ(h | x),  the latter at a dream

    The weights w̃ sum to 1 and are held fixed. θ's half is an unbiased gradient of the K-sample bound
    E log (1/K) Σ_k w_k (where q does not depend on θ). The halves approximate ∇ log p(x) for θ and
    −∇ KL(p(h | x) ‖ q(h | x)) at the data for φ, both with a bias of O(1/K) from the self-normalised weights. At K = 1
    θ's half is the ELBO's gradient, and φ's half has mean 0. As in ``wake_sleep``, the halves together maximise no
    single objective, and each row has one dream. (wake_phi, sleep_phi) = (1, 0) is the paper's wake update of φ, and
    (0, 1) its sleep update. The traced value is the K-sample bound, in nats.

    Args: fields of ``methods.ReweightedWakeSleep``; ``check`` raises for invalid ones.
    """
    check("reweighted_wake_sleep", samples, wake_phi, sleep_phi)
    return _objective(ladder, samples, wake_phi, sleep_phi)


def check(name: str, samples: int, wake_phi: float | int, sleep_phi: float | int) -> None:
    """Raise a SettingsError for invalid settings of reweighted wake–sleep."""
    expect(f"{name}(samples=...)", samples, Count)
    expect(f"{name}(wake_phi=...)", wake_phi, NotNegative)
    expect(f"{name}(sleep_phi=...)", sleep_phi, NotNegative)
    if wake_phi == sleep_phi == 0:
        raise SettingsError(
            f"{name}(wake_phi=0, sleep_phi=0) would never update the inference network; make one of them > 0."
        )
    if wake_phi > 0 and samples < 2:
        raise SettingsError(
            f"{name}(samples=1, wake_phi={wake_phi}) would update φ by noise alone: a single weight is always 1, and "
            "∇ log q(h | x) has mean 0 where h ~ q. Take samples=2 or more, or learn φ from draws of the model "
            "(wake_phi=0, sleep_phi=1)."
        )


def slope_at(
    ladder: Ladder, params: dict[str, PyTree], draw: Callable, batch: Batch, *, wake_phi: float = 0.0,
    sleep_phi: float = 1.0,
) -> tuple[jax.Array, dict[str, PyTree]]:  # fmt: skip
    """The bound and the gradient of {θ, φ, …} at given draws.

    With K = 1, wake_phi = 0 and sleep_phi = 1 these are wake–sleep's.

    Args:
        draw: gives (x, h, dream) for a part of the batch's rows: x (n, …); h, draws of q(h | x), leading axes (K, n);
            dream, draws (x, h) of p, leading axis (n,), or None where sleep_phi is 0.
        batch: masked rows do not count, nor do their dreams. The rows may be spread over devices.
    """

    def halves(params: dict[str, PyTree], part: Batch) -> tuple[jax.Array, jax.Array]:
        x, h, dream = draw(part)
        fixed = params | {"theta": jax.lax.stop_gradient(params["theta"])}  # an inference network may share θ
        rows = jax.tree.map(lambda a: a[None], x)
        log_p = tree.total(ladder.log_p(params["theta"], rows, h))  # (K, n)
        log_q = tree.total(ladder.log_q(fixed, rows, h))
        log_w = jax.lax.stop_gradient(log_p - log_q)
        densities = log_p + wake_phi * log_q if wake_phi else log_p
        terms = jnp.sum(jax.nn.softmax(log_w, axis=0) * densities, axis=0)  # (n,)
        if sleep_phi and dream is not None:
            terms = terms + sleep_phi * tree.total(ladder.log_q(fixed, *jax.tree.map(lambda a: a[None], dream)))[0]
        return terms, jnp.sum(part.counted(k_sample(log_w)))

    gradient, bound = sum_gradients(ladder, params, halves, batch)
    return batch.scale * bound + ladder.log_prior(params["theta"]), gradient


def _objective(ladder: Ladder, samples: int, wake_phi: float, sleep_phi: float) -> Objective:
    def slope(noise: jax.Array, params: PyTree, batch: Batch, memory: tuple) -> tuple[jax.Array, PyTree, tuple]:
        def draw(part: Batch) -> tuple[PyTree, tuple, Any]:
            keys, x = keyed_inputs(ladder, noise, part)
            draw_keys, dream_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
            h = draw_rows(ladder, draw_keys, params, x, samples)
            dream = each_row(lambda key: ladder.dreamt(key, params["theta"], 1), dream_keys) if sleep_phi else None
            return x, h, dream

        return *slope_at(ladder, params, draw, batch, wake_phi=wake_phi, sleep_phi=sleep_phi), memory

    return Objective(keys, lambda noise, params, batch: slope(noise, params, batch, ())[0], slope=slope)
