"""Targets whose evidence is estimated: each is a base density, from which draws can be made, times a ratio.

A target is the density of a model's parameters, or of the latent z (the "cause") of one row of a latent model.
"""

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

MOST_NUMBERS = 1 << 24  # maximum number of numbers (rows × draws) in memory at once
MOST_AT_ONCE = 1024  # maximum number of draws or targets that are computed at once
WORK = 64  # about how many numbers a draw of one row's z needs in memory, in addition to the row


class Target(NamedTuple):
    """One density, in two parts: log f_β(u) = log p₀(u) + β r(u) and Z = ∫ e^{log p₀(u) + r(u)} du.

    u are unconstrained coordinates, whose densities include the Jacobian's log-determinant. A state is a value of θ or
    z in the user's space.
    """

    sample: Callable  # key -> state, a draw of the base
    log_likelihood: Callable  # state -> (), r at a state
    flat: Callable  # state -> u (d,)
    log_base: Callable  # u -> (), log p₀, normalised
    log_ratio: Callable  # u -> (), r at u


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["shared", "rows"], meta_fields=["model", "target", "many"]
)
@dataclass(frozen=True)
class Targets:
    """One target for all rows together, or one for each row. It is a pytree, so that compiled functions accept it.

        θ given y      one target      p₀ = p(θ), r = log p(y|θ)           Z = p(y)
        z_n given x_n  N targets       p₀ = p(z|θ), r = log p(x_n|z, θ)    Z = p(x_n|θ)

    Attributes:
        model: the model.
        target: ``(model, shared, rows) -> Target``, for all rows or for one row.
        shared: values that all targets use in addition to their rows: θ, or a base in place of the prior.
        rows: the data's rows, leading axis N; ``PlacedRows`` if they are on several devices.
        many: whether each row has its own target.
    """

    model: Model
    target: Callable
    shared: PyTree
    rows: PyTree
    many: bool

    @property
    def placement(self) -> OneDevice:
        """The devices of the rows."""
        return self.rows.over if isinstance(self.rows, PlacedRows) else ONE_DEVICE

    @property
    def count(self) -> int:
        """Number of targets."""
        if not self.many:
            return 1
        return self.rows.size if isinstance(self.rows, PlacedRows) else jax.tree.leaves(self.rows)[0].shape[0]

    def placed_rows(self, placement: OneDevice) -> "Targets":
        """The same targets with the rows on the devices of a placement."""
        if not isinstance(placement, OverDevices):
            return self
        rows, weights = split_weights(self.rows)
        placed_rows = PlacedRows(*placement.lay(rows, weights), jax.tree.leaves(rows)[0].shape[0], placement)
        return dataclasses.replace(self, rows=placed_rows)

    def ran(self, function: Callable, *args: PyTree, **static: Any) -> Any:
        """The result of ``function(targets, *args, **static)``, also if some rows are on devices of other processes."""
        function = functools.partial(function, **static)
        return self.placement.run(function, self, *args)

    def some(self, count: int) -> "Targets":
        """The targets of at most ``count`` rows, evenly spaced."""
        index = np.linspace(0, self.count - 1, min(self.count, count)).astype(int)
        return dataclasses.replace(self, rows=jax.tree.map(lambda a: a[index], self.rows))

    def at_once(self, draws: int) -> int:
        """The number of draws of one target, or of targets with all their draws, that fit into memory at once."""
        rows, parts = (self.rows.rows, self.rows.over.shards) if isinstance(self.rows, PlacedRows) else (self.rows, 1)
        numbers = sum(max(1, math.prod(leaf.shape[self.many :])) for leaf in jax.tree.leaves(rows)) or 1
        if self.many:
            return int(min(self.count, MOST_AT_ONCE, max(1, MOST_NUMBERS // (draws * (numbers + WORK)))))
        largest = int(min(draws, MOST_AT_ONCE, max(1, MOST_NUMBERS // (numbers // parts + self.model.space.size))))
        # Blocks have equal sizes if possible, because a smaller last block needs another program.
        return -(-draws // -(-draws // largest))

    def each(self, function: Callable, key: jax.Array, own: PyTree = None, draws: int = 1) -> Any:
        """The results of ``function(target, key, own)`` for each of many targets; axis N comes first.

        ``own`` are arguments for each target, with leading axis N. ``draws`` draws of each target are in memory at
        once.
        """

        def of_target(inputs: tuple[PyTree, jax.Array, PyTree]) -> Any:
            rows, key, own = inputs
            return function(self.target(self.model, self.shared, rows), key, own)

        def of_targets(inputs: tuple[PyTree, jax.Array, PyTree]) -> Any:
            return jax.lax.map(of_target, inputs, batch_size=self.at_once(draws))

        keys = jax.random.split(key, self.count)
        if not isinstance(self.rows, PlacedRows):
            return of_targets((self.rows, keys, own))
        return self.rows.over.by_rows(of_targets, self.rows.rows, (keys, own), self.count)

    def flat(self, states: PyTree) -> jax.Array:
        """The unconstrained coordinates (N, d) of one state of each of many targets."""
        return self.each(lambda target, _, state: target.flat(state), jax.random.key(0), states)

    def over(
        self, function: Callable, key: jax.Array, draws: int, own: PyTree = None, work: int = 1, each: bool = False
    ) -> tuple:
        """Runs ``function(target, key, own) -> (value, info)`` for every draw.

        Args:
            function: the function of one draw.
            key: key from which each draw gets its own.
            draws: number of draws for each target.
            own: further arguments. For many targets they have the leading axis N, followed by an axis of draws if
                ``each`` is True. For one target the leading axis is that of draws.
            work: for many targets, the memory of a draw as a multiple of that of one evaluation of the density.
            each: whether each draw of a target has its own arguments.

        Returns:
            All values, (N, draws, …) or for one target (draws, …), and the mean of the infos over draws and targets.
        """

        def of_target(target: Target, key: jax.Array, own: PyTree) -> tuple:
            of_draw = functools.partial(function, target)
            values, info = jax.vmap(of_draw, (0, 0 if each else None))(jax.random.split(key, draws), own)
            return values, _mean(info)

        if self.many:
            values, info = self.each(of_target, key, own, draws * work)
            return values, _mean(info)

        def of_draws(rows: PyTree, inputs: tuple[jax.Array, PyTree]) -> tuple:
            target = self.target(self.model, self.shared, rows)
            return jax.lax.map(lambda x: function(target, *x), inputs, batch_size=self.at_once(draws))

        on_devices = self.placement.map_devices(of_draws, (BY_ROW, ON_ALL), ON_ALL)
        values, info = on_devices(self.rows, (jax.random.split(key, draws), own))
        return values, _mean(info)


def _mean(info: PyTree) -> PyTree:
    """The mean of every leaf over its first axis."""
    return jax.tree.map(lambda a: jnp.mean(a, 0), info)


def of_parameters(model: Model, data: Data | None) -> Targets:
    """The target of the parameters θ given all rows; the base is the prior."""
    return Targets(model, parameters_target, None, None if data is None else data.arrays(), many=False)


def of_causes(model: LatentModel, theta: PyTree, data: Data) -> Targets:
    """The targets of each row's latent z_n, given x_n and θ."""
    return Targets(model, cause_target, theta, data.arrays(), many=True)


def parameters_target(model: Model, base: PyTree, rows: PyTree) -> Target:
    """The target of θ given rows. A state is θ; with a ``base`` (a ``Mixture``) in place of the prior, it is u."""
    if base is None:

        def flat(params: PyTree) -> jax.Array:
            return model.position_of(params).astype(jnp.result_type(float))

        def likelihood(params: PyTree) -> jax.Array:
            return log_likelihood(model, rows, params)

        # A draw's likelihood is computed from θ itself: transforming θ to the reals and back would add rounding errors.
        log_prior = log_density(model, None, flat=True)
        return Target(model.sample_prior, likelihood, flat, log_prior, lambda u: likelihood(model.params(u)))
    target = log_density(model, rows, flat=True)

    def log_ratio(u: jax.Array) -> jax.Array:
        return target(u) - base.log_prob(u)

    return Target(base.sample, log_ratio, lambda u: u, base.log_prob, log_ratio)


def log_likelihood(model: Model, rows: PyTree, params: PyTree) -> jax.Array:
    """The log likelihood Σ_n w_n log p(y_n|θ); 0 without data."""
    zero = jnp.zeros((), jnp.result_type(float))
    return zero if rows is None else batch_log_likelihood(model, params, whole(rows))


def cause_target(model: Any, theta: PyTree, row: tuple[PyTree, PyTree]) -> Target:
    """The target of z given one row (y, x). A state is z; bijections map reals to the supports of its parts."""
    y, x = row
    datum = y if x is None else (y, x)
    if model.latent is None:  # the layers h¹ … h^L of a ladder, which are unconstrained

        def sample(key: jax.Array) -> PyTree:
            return jax.tree.map(lambda a: a[0], model.dreamt(key, theta, 1)[1])

        transforms = [IdentityTransform()] * model.depth
    else:
        latent = model.latent(theta) if x is None else model.latent(theta, x)
        parts, structure = jax.tree.flatten(latent, is_leaf=is_distribution)
        # Discrete parts need no bijection, because they are only drawn.
        transforms = [IdentityTransform() if part.support.is_discrete else biject_to(part.support) for part in parts]

        def sample(key: jax.Array) -> PyTree:
            keys = jax.random.split(key, len(parts))
            return structure.unflatten([part.sample(k) for part, k in zip(parts, keys, strict=True)])

    def reals_of(z: PyTree) -> list[Any]:
        return [transform.inv(value) for transform, value in zip(transforms, jax.tree.leaves(z), strict=True)]

    shapes = jax.eval_shape(sample, jax.random.key(0))
    ravel, unravel = tree.raveller(jax.eval_shape(reals_of, shapes))

    def flat(z: PyTree) -> jax.Array:
        return ravel(reals_of(z)).astype(jnp.result_type(float))

    def state_of(u: jax.Array) -> PyTree:
        values = [transform(real) for transform, real in zip(transforms, unravel(u), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    def likelihood(z: PyTree) -> jax.Array:
        return model.factors(theta, z, datum)[0]

    def log_base(u: jax.Array) -> jax.Array:
        z, reals = state_of(u), unravel(u)
        triples = zip(transforms, reals, jax.tree.leaves(z), strict=True)
        volumes = [jnp.sum(transform.log_abs_det_jacobian(real, value)) for transform, real, value in triples]
        return sum([*model.factors(theta, z, datum)[1:], *volumes], jnp.zeros((), u.dtype))

    return Target(sample, likelihood, flat, log_base, lambda u: likelihood(state_of(u)))
