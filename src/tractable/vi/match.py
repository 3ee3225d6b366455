"""Batch and match: a normal q whose scores agree with those of the posterior, and the nearest one of low rank.

An iteration draws z_b from q = N(μ, Σ), and computes the scores g_b = ∇ log p(z_b). The next q is the normal q' that
minimises

    (λ/2) Ê‖∇ log q'(z_b) − g_b‖²_Σ' + KL(q ‖ q').

Here Ê is the mean over the draws, and ‖x‖²_Σ = xᵀ Σ x. With the means z̄, ḡ and the covariances C, Γ of draws and
scores, and a = λ/(1 + λ),

    Σ' U Σ' + Σ' = V,    U = λΓ + a ḡḡᵀ = Q Qᵀ,    V = Σ + λC + a (μ − z̄)(μ − z̄)ᵀ,
    Σ' = V − V Q [½ + (QᵀVQ + ¼)^½]⁻² QᵀV,         μ' = a (Σ'ḡ + z̄) + (1 − a) μ.

For a normal posterior the iterations converge without noise, since its scores agree exactly (Cai, Modi, Pillaud-Vivien,
Margossian, Gower, Blei & Saul 2024, arXiv:2402.14758). The nearest covariance of low rank, by KL(q ‖ ·), has the same
variances as Σ, where the maximum of the bound over that family has too small ones. It is found once, at the end; Modi,
Cai & Saul 2024 (arXiv:2410.22292) find it in every iteration.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike

from tractable.core.approximations import LOG_2PI
from tractable.core.model import Model, PyTree, log_density
from tractable.core.rows import Data
from tractable.core.shared import COMPILE_FAST, compiled

DRAWS = 32  # number of draws in an iteration
# Numbers of iterations whose moments are averaged; each average is compared with the one before.
BLOCKS = 4, 4, 8, 16, 32, 64
STILL = 0.01  # movement between two blocks after which the iterations end
ABREAST = 8  # number of gradients that are computed in parallel
STEPS = 200  # number of steps of the factor analysis
LEAST = 1e-6  # smallest share of a variance that factors leave unexplained


class Matched(NamedTuple):
    """The normal that the iterations reach.

    Attributes:
        mean, covariance: (d,) and (d, d) averages over the last block of iterations.
        movement: the largest change of a mean, in sds, or of a log sd between this block and the one before.
        bounds: (iteration,) estimates of the ELBO.
    """

    mean: np.ndarray
    covariance: np.ndarray
    movement: float
    bounds: np.ndarray


@np.errstate(all="ignore")  # what overflows is not finite, and ends the iterations
def match(
    density: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], mean: np.ndarray, root: np.ndarray,
    rng: np.random.Generator, stop: Callable[[], bool],
) -> Matched | None:  # fmt: skip
    """The normal that is matched from N(mean, root rootᵀ) on; None if one is not finite, or after ``stop``.

    Args:
        density: maps positions (n, d) to log p (n,) and its gradients (n, d).
        mean, root: (d,) and lower triangular (d, d) start, such as a Laplace approximation.
        rng: source of the draws.
        stop: called before every iteration; true ends them.
    """
    size, bounds, movement = len(mean), [], math.inf
    centre, spread, sd = np.full(size, math.inf), np.eye(size), np.ones(size)
    for block in BLOCKS:
        before, old, centre, spread = centre, sd, np.zeros(size), np.zeros((size, size))
        for _ in range(block):
            draws = mean + rng.standard_normal((DRAWS, size)) @ root.T
            values, scores = density(draws)
            if stop() or not np.all(np.isfinite(scores)):
                return None
            bounds.append(values.mean() + np.log(np.diag(root)).sum() + size * (1 + LOG_2PI) / 2)
            strength = DRAWS * size / len(bounds)  # λ
            share, scale = strength / (1 + strength), math.sqrt(strength / DRAWS)
            draw, score = draws.mean(0), scores.mean(0)
            factor = np.vstack([scale * (scores - score), math.sqrt(share) * score]).T  # Q (d, n + 1)
            wide = np.hstack([root, scale * (draws - draw).T, math.sqrt(share) * (mean - draw)[:, None]])  # V = W Wᵀ
            product = wide @ (wide.T @ factor)
            try:
                eigenvalues, basis = np.linalg.eigh(factor.T @ product)
                less = product @ basis / (0.5 + np.sqrt(np.maximum(eigenvalues, 0) + 0.25))
                covariance = wide @ wide.T - less @ less.T
                root = np.linalg.cholesky(covariance)
            except np.linalg.LinAlgError:
                return None
            mean = share * (covariance @ score + draw) + (1 - share) * mean
            centre += mean / block
            spread += covariance / block
        sd = np.sqrt(np.diag(spread))
        movement = float(np.abs([(centre - before) / sd, np.log(sd / old)]).max())
        if movement <= STILL:
            break
    return Matched(centre, spread, movement, np.asarray(bounds))


def nearest_of_low_rank(covariance: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The ψ (d,) and F (d, rank) for which KL(N(0, covariance) ‖ N(0, diag(ψ) + F Fᵀ)) is smallest.

    By EM for factor analysis (Rubin & Thayer 1982), which begins at the probabilistic PCA of the correlations. The
    result has the variances of ``covariance``, as every fixed point of EM has.
    """
    sd = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(sd, sd)
    values, basis = np.linalg.eigh(correlation)
    rest = values[: len(sd) - rank]
    factor = basis[:, -rank:] * np.sqrt(np.maximum(values[-rank:] - (rest.mean() if len(rest) else 0), LEAST))
    unique = np.maximum(1 - np.square(factor).sum(1), LEAST)
    for _ in range(STEPS):
        scaled = factor / unique[:, None]
        inner = np.linalg.inv(np.eye(rank) + factor.T @ scaled)  # the covariance of the factors, given z
        cross = correlation @ (scaled @ inner)
        factor = np.linalg.solve(inner + inner @ scaled.T @ cross, cross.T).T
        unique = np.maximum(1 - (factor * cross).sum(1), LEAST)
    unique = np.maximum(1 - np.square(factor).sum(1), LEAST)
    return sd**2 * unique, sd[:, None] * factor


def density_of(model: Model, data: Data | None, dtype: DTypeLike) -> Callable[[np.ndarray], tuple]:
    """The function of positions (n, d) that ``match`` takes, for all rows."""
    rows = None if data is None else data.arrays()

    def density(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, scores = _values_and_scores(model, rows, positions.astype(dtype))
        return np.asarray(values, np.float64), np.asarray(scores, np.float64)

    return density


@compiled("model", if_few=COMPILE_FAST)
def _values_and_scores(model: Model, rows: PyTree, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(n,) unnormalised log p at unconstrained positions (n, d), and its gradients (n, d)."""
    return jax.lax.map(jax.value_and_grad(log_density(model, rows, flat=True)), positions, batch_size=ABREAST)
