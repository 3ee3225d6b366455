"""The prior of a formula's common and group effects, and the coordinates in which methods sample or optimise them.

Common effects β are the same for all rows; a group effect u_t[g] is the effect of term t, such as 1|school, in group g.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

Prior = dist.Distribution


class Coordinates(NamedTuple):
    """The map from coordinates ζ to effects v = (β, sd, u) in the table's units.

        β = origin + root ζ,   sd_t = unit_t e^ζ,   u_t[g] = sd_t ζ if the group's rows say little about it, else
            unit_t ζ − lean_t (β − origin) − Σ_s means_ts u_s[g]

    Each number of v has its own ζ, and sd_t is the sd of u_t[g] over the groups. ``root`` makes the columns of x
    uncorrelated, with mean 0 and equal scale. If every effect's prior is normal, ``root`` is also rotated so that the
    coordinates are independent under that prior, as nested Laplace needs.

    The level of a group is its η at mean inputs if t is an intercept, and its slope if t is a slope. If a group has
    many rows, these determine its level, whatever β and sd are; so the coordinate is the level, in units of unit_t
    (centred). A group with few rows mostly follows its prior, so the coordinate is u/sd (non-centred; Papaspiliopoulos,
    Roberts & Sköld 2007).
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

    @property
    def common(self) -> int:
        return len(self.origin)

    @property
    def size(self) -> int:
        return self.common + len(self.sds) + sum(map(len, self.centred))

    def split(self, v: jax.Array) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        """β (p,), sds (T,), and each term's group effects."""
        p, t = self.common, len(self.sds)
        ends = np.cumsum([0, *map(len, self.centred)]) + p + t
        return v[:p], v[p : p + t], [v[a:b] for a, b in itertools.pairwise(ends)]


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
        head, logs, parts = plan.split(x)
        beta = jnp.asarray(plan.origin, x.dtype) + jnp.asarray(plan.root, x.dtype) @ head
        sds, u = jnp.exp(logs) * jnp.asarray(plan.unit, x.dtype), {}
        for t in plan.order:
            own = float(plan.unit[t]) * parts[t] - self._level(t, beta, u)
            u[t] = jnp.where(plan.centred[t], own, sds[t] * parts[t])
        return jnp.concatenate([beta, sds, *(u[t] for t in range(len(parts)))])

    def _inverse(self, y: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, parts = plan.split(y)
        head = jnp.linalg.solve(jnp.asarray(plan.root, y.dtype), beta - plan.origin)
        u, out = dict(enumerate(parts)), {}
        for t in plan.order:
            own = (parts[t] + self._level(t, beta, u)) / float(plan.unit[t])
            out[t] = jnp.where(plan.centred[t], own, parts[t] / sds[t])
        logs = jnp.log(sds / jnp.asarray(plan.unit, y.dtype))
        return jnp.concatenate([head, logs, *(out[t] for t in range(len(parts)))])

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        plan = self.plan
        whole = np.linalg.slogdet(plan.root)[1] if plan.common else 0.0
        inside = np.array([centred.sum() for centred in plan.centred], float)
        outside = np.array([len(centred) for centred in plan.centred], float) - inside
        logs = jnp.log(plan.split(y)[1])
        return whole + float(inside @ np.log(plan.unit)) + jnp.sum(jnp.asarray(outside + 1, x.dtype) * logs)

    def tree_flatten(self) -> tuple:
        return (), ((), {"plan": self.plan})


class _Reached(constraints.ParameterFreeConstraint):
    """The support of v: real numbers, the sds above 0."""

    event_dim = 1

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan

    def __call__(self, x: jax.Array) -> jax.Array:
        p, t = self.plan.common, len(self.plan.sds)
        return jnp.all(jnp.isfinite(x), -1) & jnp.all(x[..., p : p + t] > 0, -1)


biject_to.register(_Reached, lambda constraint: _ToEffects(constraint.plan))


class Effects(dist.Distribution):
    """The prior of v = (β, sd, u): u_t ~ N(0, sd_t²) given the sds, and all other parameters are independent."""

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

    def log_prob(self, value: jax.Array) -> jax.Array:
        return jnp.vectorize(self._log_prob, signature="(k)->()")(value)

    def _log_prob(self, v: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, u = plan.split(v)
        at = beta if plan.intercept < 0 else beta.at[plan.intercept].add(jnp.asarray(plan.mean, v.dtype) @ beta)
        usual = np.array([i for i in range(plan.common) if i not in plan.given], int)
        total = jnp.sum(dist.Normal(plan.loc[usual], plan.scale[usual]).log_prob(at[usual]))
        total += sum((jnp.sum(prior.log_prob(at[i])) for i, prior in plan.given.items()), jnp.zeros_like(total))
        for t, prior in enumerate(plan.sds):
            total += prior.log_prob(sds[t]) + jnp.sum(dist.Normal(0.0, sds[t]).log_prob(u[t]))
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
        u = [sd * jax.random.normal(jax.random.fold_in(fourth, t), (len(plan.centred[t]),)) for t, sd in enumerate(sds)]
        return jnp.concatenate([beta, *(jnp.reshape(sd, 1) for sd in sds), *u])
