"""Runs a NumPyro program at full size or for one row of a plate, and gives the distribution of one row of a site."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from tractable.core import tree
from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.settings import seeded

Sites = dict[str, Any]  # the sites of a trace, by name
# Distributions rebuilt from their parameters, so that a row keeps its distribution's type. Others are wrapped in Row.
KINDS = (
    dist.Normal, dist.StudentT, dist.Laplace, dist.Cauchy, dist.LogNormal, dist.Gamma, dist.Beta, dist.Exponential,
    dist.Poisson, dist.NegativeBinomial2, dist.BernoulliLogits, dist.BernoulliProbs, dist.BinomialLogits,
    dist.BinomialProbs, dist.CategoricalLogits, dist.CategoricalProbs, dist.OrderedLogistic, dist.ZeroInflatedPoisson,
    dist.Weibull, dist.Gumbel, dist.InverseGamma, dist.Pareto, dist.HalfNormal, dist.HalfCauchy, dist.Logistic,
    dist.VonMises, dist.GammaPoisson, dist.BetaBinomial, dist.BetaProportion, dist.GeometricProbs, dist.GeometricLogits,
    dist.NegativeBinomialProbs, dist.NegativeBinomialLogits, dist.Dirichlet, dist.AsymmetricLaplace,
    dist.AsymmetricLaplaceQuantile, dist.SoftLaplace, dist.LogUniform, dist.Uniform, dist.Kumaraswamy, dist.Gompertz,
    dist.DiscreteUniform, dist.Levy, dist.Chi2,
)  # fmt: skip


class Plates(Messenger):
    """Runs every plate at its full size, even if it subsamples; the named plate, if any, at a single row."""

    def __init__(self, fn: Callable, plate: str | None = None, at: ArrayLike = 0) -> None:
        super().__init__(fn)
        self.plate, self.at = plate, at

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size = msg["args"][0]
            alone = msg["name"] == self.plate
            msg["args"] = (size, 1 if alone else size)
            with jax.ensure_compile_time_eval():  # NumPy arrays need concrete indices, not tracers
                msg["value"] = jnp.reshape(self.at, (1,)) if alone else jnp.arange(size)


class Program:
    """A NumPyro model and its arguments.

    Attributes:
        arrays: the arrays among its arguments, by name: ``x``, or ``data.x`` within a dict.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: dict[str, Any], seed: int) -> None:
        self.model, self.key = model, jax.random.key(seeded("from_numpyro(seed)", seed))
        self.bound = inspect.signature(model).bind(*args, **kwargs)
        leaves, self.structure = jax.tree_util.tree_flatten_with_path(dict(self.bound.arguments))
        self.leaves = {tree.path_name(path): leaf for path, leaf in leaves}
        self.arrays = {name: leaf for name, leaf in self.leaves.items() if jnp.ndim(leaf) and hasattr(leaf, "dtype")}

    def trace(
        self,
        values: Mapping[str, Any],
        arrays: Mapping[str, Any] | None = None,
        plate: str | None = None,
        at: ArrayLike = 0,
    ) -> Sites:
        """Every site, with latent sites at ``values`` and ``arrays`` in place of the arguments of the same names."""
        return self._run(handlers.substitute(self._seeded(self.key, plate, at), dict(values)), arrays)

    def values(self, key: jax.Array, radius: float = 2.0) -> Sites:
        """Every site; latent sites uniform within ``radius`` of the unconstrained origin, discrete sites drawn."""
        anywhere = init_to_uniform(radius=radius)  # pyright: ignore[reportArgumentType]
        return self._run(handlers.substitute(self._seeded(key), substitute_fn=anywhere), None)

    def drawn(self, key: jax.Array) -> Sites:
        """Every site, with latent sites drawn from their priors."""
        return self._run(self._seeded(key), None)

    def _seeded(self, key: jax.Array, plate: str | None = None, at: ArrayLike = 0) -> Callable:
        return handlers.seed(Plates(self.model, plate, at), key)

    def _run(self, model: Callable, arrays: Mapping[str, Any] | None) -> Sites:
        leaves = [(arrays or {}).get(name, leaf) for name, leaf in self.leaves.items()]
        arguments = jax.tree.unflatten(self.structure, leaves)
        # The arguments in the order of the signature, which a pytree does not keep.
        ordered = {name: arguments[name] for name in self.bound.arguments}
        bound = inspect.BoundArguments(self.bound.signature, ordered)  # pyright: ignore[reportArgumentType]
        trace = handlers.trace(model).get_trace(*bound.args, **bound.kwargs)
        for site in trace.values():
            if site["type"] == "sample" and site["is_observed"]:  # one distribution may serve many observations
                fn, shape = site["fn"], jnp.shape(site["value"])
                batch = jnp.broadcast_shapes(fn.batch_shape, shape[: len(shape) - fn.event_dim])
                site["fn"] = fn if batch == fn.batch_shape else fn.expand(batch)
        return trace


def log_prob(site: Mapping[str, Any]) -> jax.Array:
    """log p of a site's value, nats, with the site's batch shape; not scaled."""
    return jnp.broadcast_to(site["fn"].log_prob(site["value"]), site["fn"].batch_shape)


def scaled(site: Mapping[str, Any]) -> jax.Array:
    """The site's total log p, (), scaled as in NumPyro."""
    return jnp.sum(log_prob(site) * (1.0 if site["scale"] is None else site["scale"]))


def axis_of(fn: dist.Distribution, dim: int) -> int:
    """The axis of a site's value that a plate of (negative) ``dim`` lies along."""
    return len(fn.batch_shape) + dim


def row_of(fn: dist.Distribution, dim: int, row: ArrayLike = 0) -> dist.Distribution:
    """The distribution of one row of a site, with batch shape ().

    Args:
        dim: the (negative) batch dimension of the rows.
        row: the row's index; ignored if the site has a single row.
    """
    base: Any = fn if isinstance(fn, dist.Independent) else base_of(fn)
    rest = fn.batch_shape[: axis_of(fn, dim)] + fn.batch_shape[axis_of(fn, dim) + 1 :]
    if type(base) not in KINDS or any(size > 1 for size in rest):
        return Row(fn, jnp.asarray(row), dim)
    # All batch axes but the rows' have length 1, so only the rows' axis needs indexing.
    fields = {}
    for name, constraint in type(base).arg_constraints.items():
        value = jnp.asarray(getattr(base, name))
        shape = value.shape[value.ndim - constraint.event_dim :]
        batch = value.reshape(-1, *shape)
        fields[name] = batch[0 if len(batch) == 1 else row]
    made = type(base)(**fields)
    return made.expand(rest).to_event(len(rest)) if rest else made


def parts_of(fn: dist.Distribution) -> list:
    """All that a distribution is made of; totals are no leaves of its pytree."""
    base: Any = base_of(fn.fn if isinstance(fn, Row) else fn)
    return [*jax.tree.leaves(fn), *jax.tree.leaves(getattr(base, "total_count", None))]


class Row(dist.Distribution):
    """One row of a batched distribution; the other batch axes become part of the datum."""

    pytree_data_fields = ("fn", "row")
    pytree_aux_fields = ("dim",)

    def __init__(self, fn: dist.Distribution, row: jax.Array, dim: int) -> None:
        self.fn, self.row, self.dim = fn, row, dim
        at = axis_of(fn, dim)
        super().__init__((), (*fn.batch_shape[:at], *fn.batch_shape[at + 1 :], *fn.event_shape), validate_args=False)

    def _cut(self, values: jax.Array, before: int = 0) -> jax.Array:
        """This row of values (..., batch, event)."""
        at = before + axis_of(self.fn, self.dim)
        return jnp.take(values, self.row if values.shape[at] > 1 else 0, axis=at)

    @property
    def support(self) -> Any:
        return self.fn.support

    def log_prob(self, value: Any) -> jax.Array:
        whole = jnp.broadcast_to(jnp.expand_dims(value, axis_of(self.fn, self.dim)), self.fn.shape())
        return jnp.sum(self._cut(jnp.broadcast_to(jnp.asarray(self.fn.log_prob(whole)), self.fn.batch_shape)))

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        try:
            return self._cut(jnp.asarray(self.fn.sample(key, sample_shape)), len(sample_shape))
        except ValueError as error:  # a total that NumPyro must know when it compiles
            kind = type(base_of(self.fn)).__name__
            raise ModelError(f"A row of {kind} cannot be drawn by itself: {error}") from error

    @property
    def mean(self) -> jax.Array:
        return self._cut(jnp.broadcast_to(self.fn.mean, self.fn.shape()))

    @property
    def variance(self) -> jax.Array:
        return self._cut(jnp.broadcast_to(self.fn.variance, self.fn.shape()))
