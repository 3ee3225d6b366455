"""Targets whose evidence is estimated: densities split into a base to draw from and a log ratio to it."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IdentityTransform

from tractable.core import tree
from tractable.core.batches import PlacedRows, split_weights, whole
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model, PyTree, batch_log_likelihood, is_distribution, log_density
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import BY_ROW, ON_ALL, OverDevices

MOST_NUMBERS = 1 << 24  # most numbers (rows × draws) in memory at once
MOST_AT_ONCE = 1024  # most draws or targets computed at once
WORK = 64  # about how many numbers a draw of a cause needs besides its datum


class Target(NamedTuple):
    """One density in two parts: log f_β(u) = log p₀(u) + β r(u), Z = ∫ e^{log p₀(u) + r(u)} du, u unconstrained.

    A state is a draw of the base as θ or z in the user's space; densities of u include the Jacobian's log-determinant.
    """

    sample: Callable  # key -> state, of the base
    log_likelihood: Callable  # state -> (), r
    flat: Callable  # state -> u (d,)
    log_base: Callable  # u -> (), log p₀, normalised
    log_ratio: Callable  # u -> (), r


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["shared", "rows"], meta_fields=["model", "target", "many"]
)
@dataclass(frozen=True)
class Targets:
    """One target for all rows together, or one for every row. A pytree, so that compiled functions accept it.

        θ given y      one target      p₀ = p(θ), r = log p(y|θ)           Z = p(y)
        z_n given x_n  N targets       p₀ = p(z|θ), r = log p(x_n|z, θ)    Z = p(x_n|θ)

    Attributes:
        target: ``(model, shared, rows) -> Target``, for all rows or for one.
        shared: what all targets use besides their rows.
        rows: of the data, leading axis N; ``Laid`` where they lie over devices.
        many: whether every row has a target of its own.
    """

    model: Model
    target: Callable
    shared: PyTree
    rows: PyTree
    many: bool

    @property
    def placement(self) -> OneDevice:
        """Of the rows."""
        return self.rows.over if isinstance(self.rows, PlacedRows) else ONE_DEVICE

    @property
    def count(self) -> int:
        if not self.many:
            return 1
        return self.rows.size if isinstance(self.rows, PlacedRows) else jax.tree.leaves(self.rows)[0].shape[0]

    def placed_rows(self, placement: OneDevice) -> "Targets":
        """The same with the rows on the devices of a placement."""
        if not isinstance(placement, OverDevices):
            return self
        rows, weights = split_weights(self.rows)
        placed_rows = PlacedRows(*placement.lay(rows, weights), jax.tree.leaves(rows)[0].shape[0], placement)
        return dataclasses.replace(self, rows=placed_rows)

    def ran(self, function: Callable, *args: PyTree, **static: Any) -> Any:
        """``function(targets, *args, **static)``, also where the rows lie over devices of other processes."""
        function = functools.partial(function, **static)
        return self.placement.run(function, self, *args)

    def some(self, count: int) -> "Targets":
        """The same for at most ``count`` rows, evenly spaced."""
        index = np.linspace(0, self.count - 1, min(self.count, count)).astype(int)
        return dataclasses.replace(self, rows=jax.tree.map(lambda a: a[index], self.rows))

    def at_once(self, draws: int) -> int:
        """How many draws of one target, or how many targets with all their draws, fit in memory at once."""
        rows, parts = (self.rows.rows, self.rows.over.shards) if isinstance(self.rows, PlacedRows) else (self.rows, 1)
        numbers = sum(max(1, math.prod(leaf.shape[self.many :])) for leaf in jax.tree.leaves(rows)) or 1
        if self.many:
            return int(min(self.count, MOST_AT_ONCE, max(1, MOST_NUMBERS // (draws * (numbers + WORK)))))
        most = int(min(draws, MOST_AT_ONCE, max(1, MOST_NUMBERS // (numbers // parts + self.model.space.size))))
        return -(-draws // -(-draws // most))  # groups of one size where that can be: the rest is another program

    def each(self, function: Callable, key: jax.Array, own: PyTree = None, draws: int = 1) -> Any:
        """``function(target, key, own)`` for every one of many targets; results and ``own`` have leading axis N."""

        def one(each: tuple[PyTree, jax.Array, PyTree]) -> Any:
            return function(self.target(self.model, self.shared, each[0]), each[1], each[2])

        def some(each: tuple[PyTree, jax.Array, PyTree]) -> Any:
            return jax.lax.map(one, each, batch_size=self.at_once(draws))

        keys = jax.random.split(key, self.count)
        if not isinstance(self.rows, PlacedRows):
            return some((self.rows, keys, own))
        return self.rows.over.by_rows(some, self.rows.rows, (keys, own), self.count)

    def flat(self, states: PyTree) -> jax.Array:
        """(N, d), unconstrained, of a state of each of many targets."""
        return self.each(lambda target, _, state: target.flat(state), jax.random.key(0), states)

    def over(
        self, function: Callable, key: jax.Array, draws: int, own: PyTree = None, work: int = 1, each: bool = False
    ) -> tuple:
        """``function(target, key, own) -> (value, info)`` for every draw: all values, and the mean of the infos.

        Values are (N, draws, …), for one target (draws, …). ``own`` has an entry for each target (leading axis N); for
        one target, or with ``each``, for each draw. A draw takes ``work`` times the usual memory.
        """

        def every(target: Target, key: jax.Array, own: PyTree) -> tuple:
            of_draw = functools.partial(function, target)
            values, info = jax.vmap(of_draw, (0, 0 if each else None))(jax.random.split(key, draws), own)
            return values, _mean(info)

        if self.many:
            values, info = self.each(every, key, own, draws * work)
            return values, _mean(info)

        def all_draws(rows: PyTree, each: tuple[jax.Array, PyTree]) -> tuple:
            target = self.target(self.model, self.shared, rows)
            return jax.lax.map(lambda x: function(target, *x), each, batch_size=self.at_once(draws))

        every_device = self.placement.map_devices(all_draws, (BY_ROW, ON_ALL), ON_ALL)
        values, info = every_device(self.rows, (jax.random.split(key, draws), own))
        return values, _mean(info)


def _mean(info: PyTree) -> PyTree:
    return jax.tree.map(lambda a: jnp.mean(a, 0), info)


def of_parameters(model: Model, data: Data | None) -> Targets:
    """θ given all rows, from the prior."""
    return Targets(model, parameters_target, None, None if data is None else data.arrays(), many=False)


def of_causes(model: LatentModel, theta: PyTree, data: Data) -> Targets:
    """z_n given x_n and θ, for every row."""
    return Targets(model, cause_target, theta, data.arrays(), many=True)


def parameters_target(model: Model, base: PyTree, rows: PyTree) -> Target:
    """θ given rows. Its state is θ; with a ``base`` (``sample``, ``log_prob``) in place of the prior it is u."""
    if base is None:

        def flat(params: PyTree) -> jax.Array:
            return model.position_of(params).astype(jnp.result_type(float))

        def likelihood(params: PyTree) -> jax.Array:
            return log_likelihood(model, rows, params)

        # A draw's likelihood is computed in the user's space: transforming it to the reals and back would cost digits.
        log_prior = log_density(model, None, flat=True)
        return Target(model.sample_prior, likelihood, flat, log_prior, lambda u: likelihood(model.params(u)))
    target = log_density(model, rows, flat=True)

    def log_ratio(u: jax.Array) -> jax.Array:
        return target(u) - base.log_prob(u)

    return Target(base.sample, log_ratio, lambda u: u, base.log_prob, log_ratio)


def log_likelihood(model: Model, rows: PyTree, params: PyTree) -> jax.Array:
    """Σ_n w_n log p(y_n|θ); 0 without data."""
    none = jnp.zeros((), jnp.result_type(float))
    return none if rows is None else batch_log_likelihood(model, params, whole(rows))


def cause_target(model: Any, theta: PyTree, row: tuple[PyTree, PyTree]) -> Target:
    """z given one row (y, x). Its state is z; each part is mapped from the reals by the bijection to its support."""
    y, x = row
    datum = y if x is None else (y, x)
    if model.latent is None:  # a ladder's h¹ … h^L, one after another, unconstrained already

        def sample(key: jax.Array) -> PyTree:
            return jax.tree.map(lambda a: a[0], model.dreamt(key, theta, 1)[1])

        ways = [IdentityTransform()] * model.depth
    else:
        latent = model.latent(theta) if x is None else model.latent(theta, x)
        parts, structure = jax.tree.flatten(latent, is_leaf=is_distribution)
        # Discrete parts are only drawn, never moved.
        ways = [IdentityTransform() if part.support.is_discrete else biject_to(part.support) for part in parts]

        def sample(key: jax.Array) -> PyTree:
            keys = jax.random.split(key, len(parts))
            return structure.unflatten([part.sample(k) for part, k in zip(parts, keys, strict=True)])

    def reals_of(z: PyTree) -> list[Any]:
        return [way.inv(value) for way, value in zip(ways, jax.tree.leaves(z), strict=True)]

    drawn = jax.eval_shape(sample, jax.random.key(0))
    ravel, unravel = tree.raveller(jax.eval_shape(reals_of, drawn))

    def flat(z: PyTree) -> jax.Array:
        return ravel(reals_of(z)).astype(jnp.result_type(float))

    def opened(u: jax.Array) -> PyTree:
        values = [way(real) for way, real in zip(ways, unravel(u), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(drawn), values)

    def likelihood(z: PyTree) -> jax.Array:
        return model.factors(theta, z, datum)[0]

    def log_base(u: jax.Array) -> jax.Array:
        z, reals = opened(u), unravel(u)
        each = zip(ways, reals, jax.tree.leaves(z), strict=True)
        volumes = [jnp.sum(way.log_abs_det_jacobian(real, value)) for way, real, value in each]
        return sum([*model.factors(theta, z, datum)[1:], *volumes], jnp.zeros((), u.dtype))

    return Target(sample, likelihood, flat, log_base, lambda u: likelihood(opened(u)))
