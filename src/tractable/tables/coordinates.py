"""The prior of a formula's common and group effects, and the coordinates in which methods sample or optimise them.

Common effects β are the same for all rows; a group effect u_t[g] is the effect of term t, such as 1|school, in group g.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import CorrCholeskyTransform, CorrMatrixCholeskyTransform, Transform

Prior = dist.Distribution


class Coordinates(NamedTuple):
    """The map from coordinates ζ to effects v = (β, sd, ρ, u) in the table's units.

        β = origin + root ζ,   sd_t = unit_t e^ζ,   Ω = L Lᵀ with L of ζ (``CorrCholeskyTransform``)
        u_t[g] = sd_t (Lζ)_t if the group's rows say little about it, else
            unit_t ζ − lean_t (β − origin) − Σ_s means_ts u_s[g]

    Each number of v has its own ζ, and sd_t is the sd of u_t[g] over the groups. Ω is the correlation matrix of the
    effects of a block of terms, and ρ its lower triangle; L = I for a term of no block. ``root`` makes the columns of x
    uncorrelated, with mean 0 and equal scale. If every effect's prior is normal, ``root`` is also rotated so that the
    coordinates are independent under that prior, as nested Laplace needs.

    The level of a group is its η at mean inputs if t is an intercept, and its slope if t is a slope. If a group has
    many rows, these determine its level, whatever β and sd are; so the coordinate is the level, in units of unit_t
    (centred). A group with few rows mostly follows its prior, so the coordinate is u/sd, or of correlated effects
    L⁻¹ u/sd (non-centred; Papaspiliopoulos, Roberts & Sköld 2007).
    """

    origin: np.ndarray  # (p,)
    root: np.ndarray  # (p, p)
    intercept: int  # the intercept's column; −1 without an intercept
    mean: np.ndarray  # (p,) means of the columns of x; 0 for the intercept's column
    loc: np.ndarray  # (p,) means of the default priors
    scale: np.ndarray  # (p,) sds of the default priors
    given: dict[int, Prior]  # the user's priors, by the index of the effect in β
    sds: list[Prior]  # the priors of the T sds
    centred: list[np.ndarray]  # for each term: which of its groups are centred, (G + 1,)
    unit: np.ndarray  # (T,) the scale of each term's coordinates
    lean: np.ndarray  # (T, p) the weights of β in a group's level
    means: np.ndarray  # (T, T) for an intercept t and a slope s of one factor: mean of the slope's column; else 0
    order: list[int]  # the terms in the order in which u is computed: slopes before intercepts
    normal: tuple[np.ndarray, np.ndarray] | None  # prior means and sds (k,) of ζ if these are independent normals

    blocks: Sequence[Sequence[int]] = ()  # terms with correlated effects; within a block they have the order ``order``
    correlations: Sequence[Prior] = ()  # the prior of each block's Ω

    @property
    def common(self) -> int:
        return len(self.origin)

    @property
    def size(self) -> int:
        return self.common + len(self.sds) + sum(map(_pairs, self.blocks)) + sum(map(len, self.centred))

    def split(self, v: jax.Array) -> tuple[jax.Array, jax.Array, list[jax.Array], list[jax.Array]]:
        """β (p,), sds (T,), each block's correlations, and each term's group effects."""
        p, t, blocks = self.common, len(self.sds), len(self.blocks)
        ends = np.cumsum([0, *map(_pairs, self.blocks), *map(len, self.centred)]) + p + t
        parts = [v[a:b] for a, b in itertools.pairwise(ends)]
        return v[:p], v[p : p + t], parts[:blocks], parts[blocks:]

    def given_before(
        self, t: int, sds: jax.Array, factors: Sequence[jax.Array], scores: Mapping[int, jax.Array]
    ) -> tuple[jax.Array | float, jax.Array]:
        """The mean and sd of u_t given the effects before it in its block, whose L⁻¹ u/sd are ``scores``."""
        for block, factor in zip(self.blocks, factors, strict=True):
            if t in block:
                row, before = factor[block.index(t)], block[: block.index(t)]
                mean = sum(row[j] * scores[s] for j, s in enumerate(before))
                return sds[t] * mean, sds[t] * row[len(before)]
        return 0.0, sds[t]


def _pairs(block: Sequence[int]) -> int:
    return len(block) * (len(block) - 1) // 2


def correlation_matrix(triangle: jax.Array) -> jax.Array:
    """The correlation matrix Ω (k, k) with the lower triangle ρ₁₀, ρ₂₀, ρ₂₁, … of k (k − 1)/2 numbers."""
    size = round(math.sqrt(2 * len(triangle) + 0.25) + 0.5)
    lower = jnp.zeros((size, size), triangle.dtype).at[np.tril_indices(size, -1)].set(triangle)
    return lower + lower.T + jnp.eye(size, dtype=triangle.dtype)


class _ToEffects(Transform):
    """From coordinates ζ (k,) to v = (β, sd, u)."""

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan

    def _level(self, t: int, beta: jax.Array, u: Mapping[int, jax.Array]) -> jax.Array:
        """The part of a group's level that does not come from u_t: lean_t (β − origin) + Σ_s means_ts u_s."""
        plan = self.plan
        level = jnp.asarray(plan.lean[t], beta.dtype) @ (beta - plan.origin)
        for s in np.flatnonzero(plan.means[t]):
            level = level + float(plan.means[t, s]) * u[int(s)]
        return level

    def __call__(self, x: jax.Array) -> jax.Array:
        plan = self.plan
        head, logs, free, parts = plan.split(x)
        beta = jnp.asarray(plan.origin, x.dtype) + jnp.asarray(plan.root, x.dtype) @ head
        sds, u, scores = jnp.exp(logs) * jnp.asarray(plan.unit, x.dtype), {}, {}
        factors: list[Any] = [CorrCholeskyTransform()(numbers) for numbers in free]
        for t in plan.order:
            own = float(plan.unit[t]) * parts[t] - self._level(t, beta, u)
            mean, sd = plan.given_before(t, sds, factors, scores)
            u[t] = jnp.where(plan.centred[t], own, mean + sd * parts[t])
            scores[t] = jnp.where(plan.centred[t], (own - mean) / sd, parts[t])
        triangles = [(factor @ factor.T)[np.tril_indices(len(factor), -1)] for factor in factors]
        return jnp.concatenate([beta, sds, *triangles, *(u[t] for t in range(len(parts)))])

    def _inverse(self, y: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, triangles, parts = plan.split(y)
        head = jnp.linalg.solve(jnp.asarray(plan.root, y.dtype), beta - plan.origin)
        factors = [jnp.linalg.cholesky(correlation_matrix(triangle)) for triangle in triangles]
        u, out, scores = dict(enumerate(parts)), {}, {}
        for t in plan.order:
            own = (parts[t] + self._level(t, beta, u)) / float(plan.unit[t])
            mean, sd = plan.given_before(t, sds, factors, scores)
            scores[t] = (parts[t] - mean) / sd
            out[t] = jnp.where(plan.centred[t], own, scores[t])
        logs = jnp.log(sds / jnp.asarray(plan.unit, y.dtype))
        free = [CorrCholeskyTransform().inv(factor) for factor in factors]
        return jnp.concatenate([head, logs, *free, *(out[t] for t in range(len(parts)))])

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        plan = self.plan
        whole = np.linalg.slogdet(plan.root)[1] if plan.common else 0.0
        inside = np.array([centred.sum() for centred in plan.centred], float)
        outside = np.array([len(centred) for centred in plan.centred], float) - inside
        logs = jnp.log(plan.split(y)[1])
        total = whole + float(inside @ np.log(plan.unit)) + jnp.sum(jnp.asarray(outside + 1, x.dtype) * logs)
        for block, free in zip(plan.blocks, plan.split(x)[2], strict=True):
            factor = CorrCholeskyTransform()(free)
            total += CorrCholeskyTransform().log_abs_det_jacobian(free, factor)
            total -= CorrMatrixCholeskyTransform().log_abs_det_jacobian(factor, factor)  # from L to Ω
            total += jnp.sum(jnp.asarray(outside[list(block)], x.dtype) * jnp.log(jnp.diagonal(factor)))
        return total

    def tree_flatten(self) -> tuple:
        return (), ((), {"plan": self.plan})


class _Reached(constraints.ParameterFreeConstraint):
    """The support of v: real numbers, the sds above 0, and ρ of positive definite matrices."""

    event_dim = 1

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.vectorize(self._contains, signature="(k)->()")(x)

    def _contains(self, v: jax.Array) -> jax.Array:
        _, sds, triangles, _ = self.plan.split(v)
        lowest = [jnp.linalg.eigvalsh(correlation_matrix(triangle))[:1] for triangle in triangles]
        return jnp.all(jnp.isfinite(v)) & jnp.all(jnp.concatenate([sds, *lowest]) > 0)


biject_to.register(_Reached, lambda constraint: _ToEffects(constraint.plan))


class Effects(dist.Distribution):
    """The prior of v = (β, sd, ρ, u): u_t ~ N(0, sd_t²) given sds and correlations; all others are independent."""

    arg_constraints: ClassVar = {}

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan
        super().__init__((), (plan.size,), validate_args=False)

    @property
    def normal_coordinates(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The prior means and sds of the coordinates if these are independent normals; else None.

        They are if there are no groups and all priors are normal.
        """
        return self.plan.normal

    @property
    def support(self) -> Any:
        return _Reached(self.plan)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        return jnp.vectorize(self._log_prob, signature="(k)->()")(value)

    def _log_prob(self, v: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, triangles, u = plan.split(v)
        at = beta if plan.intercept < 0 else beta.at[plan.intercept].add(jnp.asarray(plan.mean, v.dtype) @ beta)
        usual = np.array([i for i in range(plan.common) if i not in plan.given], int)
        total = jnp.sum(dist.Normal(plan.loc[usual], plan.scale[usual]).log_prob(at[usual]))
        total += sum((jnp.sum(prior.log_prob(at[i])) for i, prior in plan.given.items()), jnp.zeros_like(total))
        matrices = [correlation_matrix(triangle) for triangle in triangles]
        factors, scores, normals = [jnp.linalg.cholesky(matrix) for matrix in matrices], {}, {}
        for t in plan.order:
            mean, sd = plan.given_before(t, sds, factors, scores)
            scores[t], normals[t] = (u[t] - mean) / sd, dist.Normal(mean, sd)
        for t, prior in enumerate(plan.sds):
            total += prior.log_prob(sds[t]) + jnp.sum(normals[t].log_prob(u[t]))
        for prior, matrix in zip(plan.correlations, matrices, strict=True):
            total += prior.log_prob(matrix)
        return total

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        if not sample_shape:
            return self._sample(key)
        drawn = jax.vmap(self._sample)(jax.random.split(key, math.prod(sample_shape)))
        return drawn.reshape(*sample_shape, -1)

    def _sample(self, key: jax.Array) -> jax.Array:
        plan = self.plan
        first, second, third, fourth = jax.random.split(key, 4)
        beta = dist.Normal(plan.loc, plan.scale).sample(first)
        for i, prior in plan.given.items():
            beta = beta.at[i].set(prior.sample(jax.random.fold_in(second, i)))
        if plan.intercept >= 0:
            beta = beta.at[plan.intercept].add(-(jnp.asarray(plan.mean, beta.dtype) @ beta))
        sds = [prior.sample(jax.random.fold_in(third, t)) for t, prior in enumerate(plan.sds)]
        fifth = jax.random.fold_in(third, len(sds))
        matrices: list[Any] = [prior.sample(jax.random.fold_in(fifth, b)) for b, prior in enumerate(plan.correlations)]
        factors = [jnp.linalg.cholesky(matrix) for matrix in matrices]
        scores, u = {}, {}
        for t in plan.order:
            scores[t] = jax.random.normal(jax.random.fold_in(fourth, t), (len(plan.centred[t]),))
            mean, sd = plan.given_before(t, jnp.stack(sds), factors, scores)
            u[t] = mean + sd * scores[t]
        triangles = [matrix[np.tril_indices(len(matrix), -1)] for matrix in matrices]
        return jnp.concatenate([beta, *(jnp.reshape(sd, 1) for sd in sds), *triangles, *(u[t] for t in range(len(u)))])
