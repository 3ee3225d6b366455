"""Kalman filter and smoother: a hidden normal state, integrated out or drawn.

    z_1 ~ N(m, P),    z_t ~ N(A z_{t−1} + b_t, Q),    x_t ~ N(C z_t, diag r)
    entry by entry:        v = x_i − c_i m,  s = c_i P c_iᵀ + r_i,  k = P c_iᵀ / s,  m ← m + k v,
                           P ← (I − k c_i) P (I − k c_i)ᵀ + r_i k kᵀ,  log p(x) = Σ log N(v; 0, s)
    back:                  ρ ← c_iᵀ v / s + Lᵀ ρ,  N ← c_iᵀ c_i / s + Lᵀ N L,  L = I − k c_i;  over a step  Aᵀ ρ, Aᵀ N A
    E[z_t | x] = m_t + P_t ρ_t,    Cov[z_t | x] = P_t − P_t N_t P_t,    Cov[z_{t−1}, z_t | x] = F_{t−1} Aᵀ (I − N_t P_t)

m_t and P_t are mean and covariance before x_t is seen, F_t the covariance after. A missing entry, NaN, is skipped, and
so integrated out. No matrix is inverted, so Q may be singular (a trend without noise of its own). Correlated noise is
whitened first. Koopman & Durbin 2000; Durbin & Koopman 2012, sections 4.4, 4.5 and 6.4.

On a CPU the steps run one after another; on an accelerator long sequences take log T steps (Särkkä & García-Fernández
2021).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tractable.tools.small import inverse_root

LOG_2PI = 1.8378770664093453
LONG = 256  # steps from which an accelerator runs them in parallel
UNROLLED = 8  # entries per step up to which the loop over them is unrolled


class System(NamedTuple):
    """A linear system with normal noise."""

    mean: jax.Array  # (d,) of z_1
    covariance: jax.Array  # (d, d) of z_1
    transition: jax.Array  # (d, d) A
    state_noise: jax.Array  # (d, d) Q
    emission: jax.Array  # (p, d) C
    noise: jax.Array  # (p,) r, variances


class Filtered(NamedTuple):
    """The results of the forward pass over one sequence."""

    ahead: jax.Array  # (T, d) m_t, before step t is seen
    ahead_covariance: jax.Array  # (T, d, d) P_t
    mean: jax.Array  # (T, d) after step t is seen
    covariance: jax.Array  # (T, d, d) F_t
    log_prob: jax.Array  # (T,) log p(x_t | x_1 … x_{t−1})


class Smoothed(NamedTuple):
    """States given the whole sequence."""

    mean: jax.Array  # (T, d)
    covariance: jax.Array  # (T, d, d)
    cross: jax.Array  # (T, d, d) Cov[z_t, z_{t−1} | x]; 0 at the first step


class _Gains(NamedTuple):
    """Gains of every entry of every step; 0 for missing entries."""

    gain: jax.Array  # (T, p, d) k
    surprise: jax.Array  # (T, p) v / s
    precision: jax.Array  # (T, p) 1 / s


def filtered(system: System, x: jax.Array, drift: jax.Array, parallel: bool | None = None) -> Filtered:
    """The forward pass over one sequence x (T, p) with drifts b (T, d); the first drift is unused.

    Args:
        parallel: whether to run in log T steps; by default chosen by device and length.
    """
    if _chosen(x, parallel):
        return _filtered_in_parallel(system, x, drift)
    return _forward(system, x, drift)[0]


def smoothed(
    system: System, x: jax.Array, drift: jax.Array, parallel: bool | None = None
) -> tuple[Smoothed, jax.Array]:
    """Both passes, and log p(x), (). Args: as for ``filtered``."""
    if _chosen(x, parallel):
        found = _filtered_in_parallel(system, x, drift)
        return _smoothed_in_parallel(system, found), jnp.sum(found.log_prob)
    found, gains = _forward(system, x, drift)
    return _backward(system, found, gains), jnp.sum(found.log_prob)


def log_prob(system: System, x: jax.Array, drift: jax.Array) -> jax.Array:
    """log p(x), (), nats, with the states integrated out; its gradient is autodiff's, by one backward pass."""
    return jnp.sum(filtered(system, x, drift).log_prob)


def simulated(
    key: jax.Array, system: System, drift: jax.Array, roots: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Simulated states (T, d) and observations (T, p) of one sequence, as long as its drifts.

    Args:
        roots: roots (d, d) of the covariances of z_1 and of the state noise, R Rᵀ = Q.
    """
    key_z, key_x = jax.random.split(key)
    steps, d = drift.shape
    noise = jax.random.normal(key_z, (steps, d), drift.dtype)
    first = system.mean + jnp.matmul(roots[0], noise[0], precision="highest")

    def step(z: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        drift, noise = now
        z = _times(system.transition, z) + drift + _times(roots[1], noise)
        return z, z

    later = jax.lax.scan(step, first, (drift[1:], noise[1:]))[1]
    z = jnp.concatenate([first[None], later])
    x = jnp.matmul(z, system.emission.T, precision="highest")
    return z, x + jnp.sqrt(system.noise)[None] * jax.random.normal(key_x, x.shape, x.dtype)


def drawn(noise: jax.Array, system: System, x: jax.Array, drift: jax.Array) -> jax.Array:
    """A draw of the states from p(z | x), (T, d): the filter forward, then each state given the next, from the last.

        z_T ~ N(m_T, F_T),    z_t ~ N(m_t, F_t) given z_{t+1} = A z_t + b + noise, whose entries count as numbers seen

    ``noise`` (T, d), standard normal, is all that is random; the draw is linear in it. Where A is unstable no path runs
    away from x. The way back always takes T steps. Carter & Kohn 1994; Frühwirth-Schnatter 1994.
    """
    found = filtered(system, x, drift)
    unit, (apart, spread) = jnp.eye(len(system.mean), dtype=system.mean.dtype), _apart(system.state_noise)
    rows, unroll = jnp.matmul(apart, system.transition, precision="highest"), min(len(unit), UNROLLED)

    def entry(carry: tuple, one: tuple) -> tuple[tuple, jax.Array]:
        (mean, covariance), (row, noise) = carry, one
        sd = jnp.sqrt(jnp.maximum(jnp.sum(row * _times(covariance, row)), 0))
        value = jnp.sum(row * mean) + sd * noise
        return _updated(carry, (value, row, jnp.zeros_like(noise)))[0], value  # the next entries, given this one

    def step(later: tuple[jax.Array, jax.Array], now: tuple) -> tuple[tuple, jax.Array]:
        (z, drift), (mean, covariance, own_drift, noise) = later, now
        seen = _times(apart, z - drift), rows, spread
        carry = jax.lax.scan(_updated, (mean, covariance), seen, unroll=unroll)[0]
        z = jax.lax.scan(entry, carry, (unit, noise), unroll=unroll)[1]
        return (z, own_drift), z

    last = jax.lax.scan(entry, (found.mean[-1], found.covariance[-1]), (unit, noise[-1]), unroll=unroll)[1]
    each = jax.tree.map(lambda a: a[:-1], (found.mean, found.covariance, drift, noise))
    return jnp.concatenate([jax.lax.scan(step, (last, drift[-1]), each, reverse=True)[1], last[None]])


def _apart(covariance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """W, unit lower triangular, and variances v with W Q Wᵀ = diag v, also for a singular Q."""
    unit = jnp.eye(len(covariance), dtype=covariance.dtype)
    whiten, left = unit, covariance
    least = 10 * jnp.finfo(covariance.dtype).eps * jnp.diagonal(covariance)
    for j in range(len(covariance)):
        pivot = left[j, j]
        below = jnp.where(pivot > least[j], left[:, j] / jnp.where(pivot > least[j], pivot, 1), 0).at[: j + 1].set(0)
        without = unit - below[:, None] * unit[j][None]
        whiten = jnp.matmul(without, whiten, precision="highest")
        left = jnp.matmul(jnp.matmul(without, left, precision="highest"), without.T, precision="highest")
    return whiten, jnp.where(jnp.diagonal(left) > least, jnp.diagonal(left), 0)


def _updated(carry: tuple, one: tuple) -> tuple[tuple, tuple]:
    """Mean and covariance given one more number; its log density, and k, v / s and 1 / s."""
    (mean, covariance), (x, row, noise) = carry, one
    there = ~jnp.isnan(x)
    off = jnp.where(there, x, 0) - jnp.sum(row * mean)
    towards = _times(covariance, row)
    spread = jnp.sum(row * towards) + noise
    log_prob = jnp.where(there, -0.5 * (off**2 / spread + jnp.log(spread) + LOG_2PI), 0)
    there = there & (spread > 0)  # a number that is known already says nothing
    gain = jnp.where(there, towards / spread, 0)
    left = jnp.eye(len(mean), dtype=mean.dtype) - gain[:, None] * row[None]
    kept = jnp.matmul(jnp.matmul(left, covariance, precision="highest"), left.T, precision="highest")
    covariance = kept + noise * gain[:, None] * gain[None]
    told = gain, jnp.where(there, off / spread, 0), jnp.where(there, 1 / spread, 0)
    return (mean + gain * off, covariance), (log_prob, *told)


def _forward(system: System, x: jax.Array, drift: jax.Array) -> tuple[Filtered, _Gains]:
    def step(carry: tuple, now: tuple) -> tuple[tuple, tuple]:
        (ahead, ahead_covariance), (x, drift) = carry, now
        rows = x, system.emission, system.noise
        (mean, covariance), (logs, *gains) = jax.lax.scan(_updated, carry, rows, unroll=min(len(x), UNROLLED))
        found = Filtered(ahead, ahead_covariance, mean, covariance, jnp.sum(logs))
        return _moved(system, mean, covariance, drift), (found, _Gains(*gains))

    later = jnp.concatenate([drift[1:], jnp.zeros_like(drift[:1])])  # the drift added on the way to the next step
    return jax.lax.scan(step, (system.mean, system.covariance), (x, later))[1]


def _backward(system: System, found: Filtered, gains: _Gains) -> Smoothed:
    d = len(system.mean)
    unit = jnp.eye(d, dtype=system.mean.dtype)

    def number(carry: tuple, one: tuple) -> tuple[tuple, None]:
        (rho, narrowing), (row, gain, surprise, precision) = carry, one
        left = unit - gain[:, None] * row[None]
        rho = row * surprise + _times(left.T, rho)
        kept = jnp.matmul(jnp.matmul(left.T, narrowing, precision="highest"), left, precision="highest")
        return (rho, kept + precision * row[:, None] * row[None]), None

    def step(carry: tuple, gains: _Gains) -> tuple[tuple, tuple]:
        rows = (system.emission, *gains)
        told, _ = jax.lax.scan(number, carry, rows, reverse=True, unroll=min(len(gains.gain), UNROLLED))
        a = system.transition
        back = _times(a.T, told[0]), jnp.matmul(jnp.matmul(a.T, told[1], precision="highest"), a, precision="highest")
        return back, told

    begun = jnp.zeros_like(system.mean), jnp.zeros_like(system.covariance)
    rho, narrowing = jax.lax.scan(step, begun, gains, reverse=True)[1]
    p = found.ahead_covariance
    mean = found.ahead + jnp.einsum("tij,tj->ti", p, rho, precision="highest")
    pn = jnp.einsum("tij,tjk->tik", p, narrowing, precision="highest")
    covariance = p - jnp.einsum("tij,tjk->tik", pn, p, precision="highest")
    # Cov[z_t, z_{t−1}] = (I − P_t N_t) A F_{t−1}
    moved = jnp.einsum("ij,tjk->tik", system.transition, found.covariance[:-1], precision="highest")
    cross = moved - jnp.einsum("tij,tjk->tik", pn[1:], moved, precision="highest")
    return Smoothed(mean, _symmetric(covariance), jnp.concatenate([jnp.zeros_like(p[:1]), cross]))


def _moved(system: System, mean: jax.Array, covariance: jax.Array, drift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and covariance one step later."""
    a = system.transition
    spread = jnp.matmul(jnp.matmul(a, covariance, precision="highest"), a.T, precision="highest")
    return _times(a, mean) + drift, _symmetric(spread + system.state_noise)


def _chosen(x: jax.Array, parallel: bool | None) -> bool:
    return (jax.default_backend() != "cpu" and len(x) >= LONG) if parallel is None else parallel


def _times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.matmul(matrix, vector, precision="highest")


def _symmetric(matrices: jax.Array) -> jax.Array:
    return 0.5 * (matrices + jnp.swapaxes(matrices, -1, -2))


# In parallel (Särkkä & García-Fernández 2021): an element is a run of steps, its last state's law given the state
# before it, and that state's likelihood. Elements combine associatively.


class _Element(NamedTuple):
    """p(z_j | z_i, x) = N(a z_i + b, c) and p(x | z_i) ∝ exp(ηᵀ z_i − ½ z_iᵀ J z_i)."""

    a: jax.Array
    b: jax.Array
    c: jax.Array
    eta: jax.Array
    j: jax.Array


def _filtered_in_parallel(system: System, x: jax.Array, drift: jax.Array) -> Filtered:
    there = ~jnp.isnan(x)
    seen = jnp.where(there, x, 0)
    emission = jnp.where(there[:, :, None], system.emission[None], 0)  # (T, p, d)
    unit = jnp.eye(len(system.mean), dtype=x.dtype)

    def one(x: jax.Array, c: jax.Array, mean: jax.Array, spread: jax.Array, a: jax.Array) -> _Element:
        towards = jnp.matmul(c, spread, precision="highest")
        root = inverse_root(jnp.matmul(towards, c.T, precision="highest") + jnp.diag(system.noise))
        half = _times(root, x - _times(c, mean)), jnp.matmul(root, towards, precision="highest")
        gained = jnp.matmul(half[1].T, half[0], precision="highest")
        kept = spread - jnp.matmul(half[1].T, half[1], precision="highest")
        forth = jnp.matmul(jnp.matmul(root, c, precision="highest"), a, precision="highest")  # R⁻¹ C A
        left = unit - jnp.matmul(half[1].T, jnp.matmul(root, c, precision="highest"), precision="highest")
        return _Element(
            jnp.matmul(left, a, precision="highest"), mean + gained, kept,
            jnp.matmul(forth.T, half[0], precision="highest"), jnp.matmul(forth.T, forth, precision="highest"),
        )  # fmt: skip

    first = one(seen[0], emission[0], system.mean, system.covariance, jnp.zeros_like(unit))
    rest = jax.vmap(lambda x, c, drift: one(x, c, drift, system.state_noise, system.transition))(
        seen[1:], emission[1:], drift[1:]
    )
    elements = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)
    through = jax.lax.associative_scan(jax.vmap(_combined), elements)
    mean, covariance = through.b, _symmetric(through.c)
    moved = jax.vmap(lambda m, c, drift: _moved(system, m, c, drift))(mean[:-1], covariance[:-1], drift[1:])
    ahead = jnp.concatenate([system.mean[None], moved[0]])
    spread = jnp.concatenate([system.covariance[None], moved[1]])

    def density(x: jax.Array, c: jax.Array, there: jax.Array, mean: jax.Array, spread: jax.Array) -> jax.Array:
        inner = jnp.matmul(jnp.matmul(c, spread, precision="highest"), c.T, precision="highest")
        root = inverse_root(inner + jnp.diag(jnp.where(there, system.noise, 1)))
        z = _times(root, x - _times(c, mean))
        return jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(z**2) - 0.5 * LOG_2PI * jnp.sum(there)

    return Filtered(ahead, spread, mean, covariance, jax.vmap(density)(seen, emission, there, ahead, spread))


def _combined(one: _Element, two: _Element) -> _Element:
    """The element of two consecutive runs of steps."""
    unit = jnp.eye(one.a.shape[-1], dtype=one.a.dtype)
    across = jnp.linalg.solve((unit + jnp.matmul(one.c, two.j, precision="highest")).T, two.a.T).T  # a₂ (I + c₁ J₂)⁻¹
    back = jnp.linalg.solve((unit + jnp.matmul(two.j, one.c, precision="highest")).T, one.a).T  # a₁ᵀ (I + J₂ c₁)⁻¹
    return _Element(
        jnp.matmul(across, one.a, precision="highest"),
        _times(across, one.b + _times(one.c, two.eta)) + two.b,
        jnp.matmul(jnp.matmul(across, one.c, precision="highest"), two.a.T, precision="highest") + two.c,
        _times(back, two.eta - _times(two.j, one.b)) + one.eta,
        jnp.matmul(jnp.matmul(back, two.j, precision="highest"), one.a, precision="highest") + one.j,
    )


def _smoothed_in_parallel(system: System, found: Filtered) -> Smoothed:
    """Smoothing by the laws of z_t given z_{t+1}, N(G z_{t+1} + g, L), combined from the end."""

    def one(mean: jax.Array, covariance: jax.Array, ahead: jax.Array, spread: jax.Array) -> tuple:
        root = inverse_root(spread)
        moved = jnp.matmul(system.transition, covariance, precision="highest")
        half = jnp.matmul(root, moved, precision="highest")
        gain = jnp.matmul(half.T, root, precision="highest")
        return gain, mean - _times(gain, ahead), covariance - jnp.matmul(half.T, half, precision="highest")

    gain, offset, spread = jax.vmap(one)(
        found.mean[:-1], found.covariance[:-1], found.ahead[1:], found.ahead_covariance[1:]
    )
    steps = (
        jnp.concatenate([gain, jnp.zeros_like(found.covariance[-1:])]),
        jnp.concatenate([offset, found.mean[-1:]]),
        jnp.concatenate([spread, found.covariance[-1:]]),
    )

    def joined(later: tuple, earlier: tuple) -> tuple:
        (g2, m2, c2), (g1, m1, c1) = later, earlier
        both = jnp.matmul(jnp.matmul(g1, c2, precision="highest"), g1.T, precision="highest")
        return jnp.matmul(g1, g2, precision="highest"), _times(g1, m2) + m1, both + c1

    _, mean, covariance = jax.lax.associative_scan(jax.vmap(joined), steps, reverse=True)
    covariance = _symmetric(covariance)
    cross = jnp.einsum("tij,tkj->tik", covariance[1:], gain, precision="highest")
    return Smoothed(mean, covariance, jnp.concatenate([jnp.zeros_like(covariance[:1]), cross]))
