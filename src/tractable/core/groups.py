"""Models of groups of rows, each with local parameters that quadrature integrates out."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from tractable.core import tree
from tractable.core.batches import Members, Weighted
from tractable.core.bits import CachedProperty
from tractable.core.density import log_density, needed_likelihood
from tractable.core.errors import ModelError
from tractable.core.integrals import MOST, around, rule
from tractable.core.prior import Prior
from tractable.core.priors import is_distribution, standard_form
from tractable.core.sums import Sums
from tractable.core.tree import PyTree
from tractable.core.words import nearest

PARALLEL = 1 << 16  # largest number of terms (rows × quadrature nodes) that are computed in parallel


class Grouped(Prior):
    """The part of a ``Model`` that concerns ``local``, the prior of each group's local parameters z.

    Each group is one datum. The model's ``sums`` integrates z out, as the ``sums`` of a ``LatentModel`` sums out the z
    of a row.
    """

    local: Callable[..., Any] | None

    @property
    def sums(self) -> Sums | None:
        """How the z of each datum is summed or integrated out; None if a datum has no z."""
        return None if self.local is None else Sums(self._log_prob_of_groups)

    def _log_prob_of_groups(self, params: PyTree, rows: tuple[PyTree, Members]) -> jax.Array:
        """log p(y_g | θ) of each group, (groups,)."""
        return self.over_groups(lambda z, logs: jax.nn.logsumexp(logs), params, rows)

    def given(self, params: PyTree) -> Prior:
        """The model of one group's z given θ, with the prior ``local(params)``."""
        likelihood, local = self.likelihood, self.local
        if likelihood is None or local is None:
            raise ModelError("This model has no parameters of groups: expected Model(..., local=).")
        model = cast(Any, type(self))
        return model(local(params), lambda z, *x: likelihood({**params, **z}, *x))

    def _standard(self, params: PyTree) -> tuple[Prior, Callable]:
        """The model of one group's u given θ, and the function u ↦ z, such as z = μ + σ u for z ~ N(μ, σ²).

        Integrals over u stay exact where σ is smaller than the rounding errors of z.
        """
        own = self.given(params)
        leaves, structure = jax.tree.flatten(own.prior, is_leaf=is_distribution)
        forms = [standard_form(d) for d in leaves]

        def local(u: PyTree) -> PyTree:
            values = structure.flatten_up_to(u)
            return jax.tree.unflatten(structure, [f(value) for (_, f), value in zip(forms, values, strict=True)])

        likelihood = needed_likelihood(own)
        standard = cast(Any, type(self))(
            jax.tree.unflatten(structure, [d for d, _ in forms]), lambda u, *x: likelihood(local(u), *x)
        )
        return standard, local

    def over_groups(
        self, function: Callable, params: PyTree, rows: tuple[PyTree, Members], nodes: Callable | None = None
    ) -> PyTree:
        """``function(z, logs)`` of each group, with leading axis (groups,).

        Args:
            function: takes the local parameters at J quadrature nodes, leaves (J, ...), and the logarithms of the
                nodes' contributions to p(y_g | θ), (J,).
            nodes: ``g -> (x (J, k), log weights (J,))``, the rule for the g-th group; by default ``integrals.rule``.
        """
        fixed = rule(self.given(params).space.size)

        def one(g: jax.Array, row: tuple[PyTree, Members]) -> PyTree:
            y, (x, counts) = row
            (own, local), (constant, _) = self._standard(params), self._standard(jax.lax.stop_gradient(params))
            group, (nodes_of_group, log_weights) = Weighted(y, x, counts), fixed if nodes is None else nodes(g)
            density = log_density(constant, group, flat=True)
            places, log_weights = around(density, prior_centre(constant), nodes_of_group, log_weights)
            logs = log_weights + jax.vmap(log_density(own, group, flat=True))(places)
            return function(jax.vmap(lambda place: local(own.params(place)))(places), logs)

        groups, members = rows[1].counts.shape
        at_once = max(1, PARALLEL // (members * len(fixed[1])))
        if groups <= at_once:
            return jax.vmap(one)(jnp.arange(groups), rows)
        return jax.lax.map(lambda now: jax.checkpoint(one)(*now), (jnp.arange(groups), rows), batch_size=at_once)

    @CachedProperty
    def member(self) -> Any:
        """The model of a single row with the group's z at its prior mean, for checks of rows."""
        likelihood, model = needed_likelihood(self), cast(Any, type(self))

        def of_row(params: PyTree, *x: PyTree) -> PyTree:
            own = self.given(params)
            return likelihood({**params, **own.params(prior_centre(own))}, *x)

        return model(self.prior, of_row, self.position, self.support, self.start)

    def check_local(self) -> None:
        """Raise a ModelError unless ``local`` returns a dict of distributions with new names and few numbers."""
        params = jax.eval_shape(self.example, jax.random.key(0))
        names = sorted(params) if isinstance(params, dict) else []
        try:
            own = jax.eval_shape(self._local_example, params)
        except KeyError as error:
            near = nearest(str(error.args[0]), names)
            raise ModelError(
                f"local(params) asks for {error.args[0]!r}; expected one of {', '.join(names)}.{near}"
            ) from error
        if both := sorted({*names} & {*own}):
            raise ModelError(f"{both[0]!r} is in the prior and in local: expected another name in local.")
        if (size := tree.size(own)) > MOST:
            raise ModelError(f"local has {size} numbers a group; the library integrates over at most {MOST}.")

    def _local_example(self, params: PyTree) -> dict:
        """Example values of one group's z, by name."""
        own: Any = None if self.local is None else self.local(params)
        if not isinstance(params, dict) or not isinstance(own, dict):
            raise ModelError(
                "Model(local=...) expects a prior that is a dict, and local(params) to return a dict of distributions, "
                f'such as {{"a": dist.Normal(params["mu"], params["tau"])}}; got {type(own).__name__}.'
            )
        return self.given(params).example(jax.random.key(0))


def prior_centre(own: Prior) -> jax.Array:
    """The prior's means as an unconstrained position (k,), with 0 where a mean does not exist.

    Newton's method starts from there.
    """
    means = jax.tree.map(lambda d: jnp.broadcast_to(d.mean, d.shape()), own.prior, is_leaf=is_distribution)
    flat = own.position_of(means)
    return jnp.where(jnp.isfinite(flat), flat, 0.0)
