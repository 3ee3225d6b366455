"""Normal families q_φ(z) over a flat unconstrained position z (d,).

    mean field   z = μ + σ ε                         φ = (μ, ρ)          2d numbers
    low rank     z = μ + σ ε₁ + F ε₂                 φ = (μ, ρ, F)       (2 + r) d
    full rank    z = μ + L ε                         φ = (μ, ρ, lower)   d + d(d + 1)/2

ε ~ N(0, I), σ = softplus(ρ) > 0, L lower triangular with diagonal σ. All are differentiable functions of φ.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core.errors import SettingsError
from tractable.core.shared import COMPILE_FAST, compiled

Phi = dict[str, Any]  # arrays
LOG_2PI = math.log(2 * math.pi)


class Approximation(NamedTuple):
    """A family q_φ(z) over z (d,).

    Attributes:
        init: ``(mean (d,), sd (d,)) -> φ`` of a q with these moments and (nearly) independent entries.
        noise: standard normal numbers needed per draw.
        sample: ``(φ, ε (noise,)) -> z (d,)``.
        log_prob: ``(φ, z (d,)) -> ()``.
        entropy: ``φ -> ()``, −E_q[log q].
        mean, sd: ``φ -> (d,)``.
        scale: ``(φ, sd (d,)) -> φ-shaped``: the change of each entry of φ that moves z by about sd.
        whole: whether q is a density of all d entries of z, and not of some only.
    """

    init: Callable[[jax.Array, jax.Array], Phi]
    noise: int
    sample: Callable[[Any, jax.Array], jax.Array]
    log_prob: Callable[[Any, jax.Array], jax.Array]
    entropy: Callable[[Any], jax.Array]
    mean: Callable[[Any], jax.Array]
    sd: Callable[[Any], Any]
    scale: Callable[[Any, jax.Array], Phi]
    whole: bool = True


@functools.cache  # a family is a static argument of jit: equal ones must be the same object
def mean_field(size: int) -> Approximation:
    """Independent normals. If the posterior is N(m, Σ), Λ = Σ⁻¹, the reverse KL is smallest at σᵢ² = 1/Λᵢᵢ ≤ Σᵢᵢ."""
    return Approximation(
        init=lambda mean, sd: {"mean": mean, "rho": inverse_softplus(sd)},
        noise=size,
        sample=lambda phi, eps: phi["mean"] + softplus(phi["rho"]) * eps,
        log_prob=lambda phi, z: jnp.sum(log_normal(z - phi["mean"], phi["rho"])),
        entropy=_entropy,
        mean=_mean,
        # NumPy computes the sds of a φ that it holds, so that nothing is compiled.
        sd=lambda phi: np.logaddexp(0, rho) if isinstance(rho := phi["rho"], np.ndarray) else softplus(rho),
        scale=_scale,
    )


@functools.cache
def full_rank(size: int) -> Approximation:
    """A normal with any covariance."""
    rows = _strict(size)[0]

    def log_prob(phi: Phi, z: jax.Array) -> jax.Array:
        white = jax.scipy.linalg.solve_triangular(root(phi), z - phi["mean"], lower=True)
        return -jnp.sum(jnp.square(white)) / 2 - jnp.sum(log_softplus(phi["rho"])) - size * LOG_2PI / 2

    return Approximation(
        init=lambda mean, sd: {"mean": mean, "rho": inverse_softplus(sd), "lower": jnp.zeros(len(rows), mean.dtype)},
        noise=size,
        sample=lambda phi, eps: phi["mean"] + root(phi) @ eps,
        log_prob=log_prob,
        entropy=_entropy,
        mean=_mean,
        sd=lambda phi: jnp.sqrt(jnp.sum(jnp.square(root(phi)), 1)),
        scale=lambda phi, sd: _scale(phi, sd) | {"lower": sd[rows]},
    )


def root(phi: Phi) -> jax.Array:
    """L of the full-rank family, (d, d)."""
    sd = softplus(phi["rho"])
    rows, columns = _strict(len(sd))
    return jnp.zeros((len(sd), len(sd)), sd.dtype).at[rows, columns].set(phi["lower"]) + jnp.diag(sd)


def of_root(mean: jax.Array, root: jax.Array) -> Phi:
    """φ of the full-rank normal N(mean, root rootᵀ), ``root`` lower triangular with a positive diagonal."""
    rows, columns = _strict(len(mean))
    return {"mean": mean, "rho": inverse_softplus(jnp.diag(root)), "lower": root[rows, columns]}


@functools.cache
def low_rank(size: int, rank: int) -> Approximation:
    """A normal with covariance diag(σ²) + F Fᵀ (Ong, Nott & Smith 2018), F with ``rank`` columns.

    The density uses the matrix-inversion and determinant lemmas, in time O(d r²). If F explains all variance of an
    entry, the entry's σ falls to 0, as in factor analysis (Heywood 1931), and |F/σ|² overflows in single precision. A
    QR decomposition of F/σ avoids the square.
    """

    def init(mean: jax.Array, sd: jax.Array) -> Phi:
        # At F = 0 the gradient of F is 0, so F starts with small, unequal columns.
        spread = jnp.cos(jnp.outer(jnp.arange(size) + 0.5, jnp.arange(rank) + 1.0) * math.pi / size).astype(mean.dtype)
        return {"mean": mean, "rho": inverse_softplus(sd), "factor": 0.1 * sd[:, None] * spread}

    def capacity(phi: Phi) -> tuple[jax.Array, jax.Array, jax.Array]:
        scaled = phi["factor"] * jnp.exp(-log_softplus(phi["rho"]))[:, None]  # (d, r) S = F/σ
        basis, root = jnp.linalg.qr(jnp.concatenate([scaled, jnp.eye(rank, dtype=scaled.dtype)]))
        return scaled, basis[:size], root  # Q R = [S; I], Rᵀ R = I + Sᵀ S

    def log_prob(phi: Phi, z: jax.Array) -> jax.Array:
        scaled, basis, root = capacity(phi)
        white = (z - phi["mean"]) * jnp.exp(-log_softplus(phi["rho"]))
        common = jax.scipy.linalg.solve_triangular(root, basis.T @ white)  # (r,) E[ε₂ | z]
        quadratic = jnp.sum(jnp.square(white - scaled @ common)) + jnp.sum(jnp.square(common))
        return -quadratic / 2 - log_determinant(phi, root) - size * LOG_2PI / 2

    def log_determinant(phi: Phi, root: jax.Array) -> jax.Array:
        """½ log |Σ|."""
        return jnp.sum(log_softplus(phi["rho"])) + jnp.sum(jnp.log(jnp.abs(jnp.diag(root))))

    return Approximation(
        init=init,
        noise=size + rank,
        sample=lambda phi, eps: phi["mean"] + softplus(phi["rho"]) * eps[:size] + phi["factor"] @ eps[size:],
        log_prob=log_prob,
        entropy=lambda phi: log_determinant(phi, capacity(phi)[2]) + size * (1 + LOG_2PI) / 2,
        mean=_mean,
        sd=lambda phi: jnp.sqrt(jnp.square(softplus(phi["rho"])) + jnp.sum(jnp.square(phi["factor"]), 1)),
        scale=lambda phi, sd: _scale(phi, sd) | {"factor": jnp.broadcast_to(sd[:, None], (size, rank))},
    )


def widen(phi: Phi, factor: float) -> Phi:
    """φ of q with every sd multiplied by ``factor``, for every family but ``part``; its leaves may be pytrees."""
    if "sd" in phi:  # of IVON
        return phi | {"sd": jax.tree.map(lambda sd: factor * sd, phi["sd"])}
    rho = jax.tree.map(lambda rho: inverse_softplus(factor * softplus(rho)), phi["rho"])
    return phi | {"rho": rho} | {name: factor * phi[name] for name in ("lower", "factor") if name in phi}


@functools.cache
def part(size: int, free: int) -> Approximation:
    """A normal with any covariance of the ``free`` entries of z that φ["index"] lists; others are fixed at φ["mean"].

    The density is that of the free entries. Only Laplace uses this family.
    """
    inner = full_rank(free)

    def of_free(phi: Phi) -> Phi:
        return {"mean": phi["mean"][phi["index"]], "rho": phi["rho"], "lower": phi["lower"]}

    def refuse(*_: object) -> Phi:
        raise SettingsError("Only Laplace fits a part of the parameters; use mean_field or full_rank.")

    return Approximation(
        init=refuse,
        noise=free,
        sample=lambda phi, eps: phi["mean"].at[phi["index"]].set(inner.sample(of_free(phi), eps)),
        log_prob=lambda phi, z: inner.log_prob(of_free(phi), z[phi["index"]]),
        entropy=lambda phi: inner.entropy(of_free(phi)),
        mean=_mean,
        sd=lambda phi: jnp.zeros(size, phi["mean"].dtype).at[phi["index"]].set(inner.sd(of_free(phi))),
        scale=refuse,
        whole=False,
    )


def of(family: str, phi: Phi) -> Approximation:
    """The family with this name, for a z of as many entries as φ has means."""
    size = len(phi["mean"])
    if family == "low rank":
        return low_rank(size, phi["factor"].shape[1])
    if family in ("mean field", "full rank"):
        return mean_field(size) if family == "mean field" else full_rank(size)
    return part(size, len(phi["index"]))


@jax.custom_jvp
def softplus(rho: ArrayLike) -> jax.Array:
    """σ = log(1 + e^ρ) = max(ρ, 0) + 2 artanh(e^−|ρ| / (2 + e^−|ρ|)), accurate up to rounding for every ρ.

    In single precision artanh is computed from eight terms of its series, which suffice as its argument is at most 1/3.
    A logarithm would take most of the time that a step of Bayes by Backprop spends outside the network.
    """
    rho = jnp.asarray(rho)
    if rho.dtype != jnp.float32:
        return jax.nn.softplus(rho)
    tail = jnp.exp(-jnp.abs(rho))
    z, series = tail / (2 + tail), 1 / 17
    square = jnp.square(z)
    for k in range(7, -1, -1):
        series = series * square + 1 / (2 * k + 1)
    return jnp.maximum(rho, 0) + 2 * z * series


softplus.defjvps(lambda tangent, _, rho: tangent * softplus_rate(rho))


def softplus_rate(rho: jax.Array) -> jax.Array:
    """dσ/dρ = 1 / (1 + e^−ρ), computed from the same exponential as ``softplus``, so that XLA computes it once."""
    tail = jnp.exp(-jnp.abs(rho))
    return jnp.where(rho < 0, tail, 1.0) / (1 + tail)


def log_softplus(rho: jax.Array) -> jax.Array:
    """log σ, finite and differentiable for every ρ.

    For ρ < −15, where rounding makes 1 + e^ρ inaccurate, the series ρ − e^ρ/2 replaces it.
    """
    small = rho < -15
    return jnp.where(small, rho - jnp.exp(jnp.minimum(rho, 0.0)) / 2, jnp.log(softplus(jnp.where(small, 0.0, rho))))


def inverse_softplus(sd: jax.Array) -> jax.Array:
    """ρ with softplus(ρ) = sd, sd > 0: log(e^sd − 1)."""
    sd = jnp.asarray(sd, jnp.result_type(float))
    return sd + jnp.log(-jnp.expm1(-sd))


def _strict(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns strictly below the diagonal."""
    rows, columns = np.tril_indices(size, -1)
    return rows.astype(np.int32), columns.astype(np.int32)


def _entropy(phi: Phi) -> jax.Array:
    """−E_q[log q] of a family with ½ log |Σ| = Σᵢ log σᵢ."""
    return jnp.sum(log_softplus(phi["rho"])) + len(phi["rho"]) * (1 + LOG_2PI) / 2


def _mean(phi: Phi) -> Any:
    """μ, as a NumPy array if φ is one."""
    return phi["mean"]


def _scale(phi: Phi, sd: jax.Array) -> Phi:
    # The units of ρ are 1 or sd: since dρ = dσ / sigmoid(ρ), a change of σ by a tenth changes ρ by 0.1 if σ is small,
    # and by σ/10 if σ is large.
    return {"mean": sd, "rho": jnp.maximum(1.0, sd)}


def log_normal(difference: jax.Array, rho: jax.Array) -> jax.Array:
    """log N(difference; 0, softplus(ρ)²), elementwise."""
    log_sd = log_softplus(rho)
    return -jnp.square(difference * jnp.exp(-log_sd)) / 2 - log_sd - LOG_2PI / 2


@compiled("q", "count", if_few=COMPILE_FAST)
def draws_of(q: Approximation, phi: Phi, key: jax.Array, count: int) -> jax.Array:
    """(count, d) independent draws from q."""
    return jax.vmap(lambda eps: q.sample(phi, eps))(jax.random.normal(key, (count, q.noise), phi["mean"].dtype))
