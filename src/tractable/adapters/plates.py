"""Runs a NumPyro program, finds what its sites depend on, and takes one row of a site's distribution."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro import handlers
from numpyro.infer import init_to_uniform
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import Messenger

from tractable.core import tree
from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.model import PyTree
from tractable.core.priors import is_improper
from tractable.core.settings import check_seed
from tractable.core.words import listing

MOST = 512  # the largest number of joint values of discrete sites that are summed over
NEAR = 1e-6  # the example position is drawn within this radius of the unconstrained origin
Sites = dict[str, Any]  # the sites of a trace, by name
# A row of one of these distributions is built from the row's parameters and has the same type. A row of any other
# distribution is a ``Row``.
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
    """A NumPyro handler that runs every plate at its full size, even a plate that subsamples.

    Only the plate named ``plate`` runs with a single row, which has the number ``at``. ``sizes`` receives the size of
    each plate.
    """

    def __init__(self, fn: Callable, plate: str | None, at: ArrayLike, sizes: dict[str, int]) -> None:
        super().__init__(fn)
        self.plate, self.at, self.sizes = plate, at, sizes

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "plate":
            size = self.sizes[msg["name"]] = msg["args"][0]
            alone = msg["name"] == self.plate
            msg["args"] = (size, 1 if alone else size)
            with jax.ensure_compile_time_eval():  # the user's NumPy arrays need concrete indices, not tracers
                msg["value"] = jnp.reshape(self.at, (1,)) if alone else jnp.arange(size)


class Program:
    """A NumPyro model and its arguments.

    Attributes:
        arrays: the arrays among its arguments, by name: ``x``, or ``data.x`` within a dict.
        sizes: the sizes of its plates, by name, as far as it has run.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: dict[str, Any], seed: int) -> None:
        self.model, self.key = model, jax.random.key(check_seed("from_numpyro(seed)", seed))
        self.bound = inspect.signature(model).bind(*args, **kwargs)
        leaves, self.structure = jax.tree_util.tree_flatten_with_path(dict(self.bound.arguments))
        self.leaves = {tree.path_name(path): leaf for path, leaf in leaves}
        self.arrays = {name: leaf for name, leaf in self.leaves.items() if jnp.ndim(leaf) and hasattr(leaf, "dtype")}
        self.sizes: dict[str, int] = {}

    def trace(
        self, values: Mapping[str, Any], arrays: Mapping[str, Any] | None = None, plate: str | None = None,
        at: ArrayLike = 0,
    ) -> Sites:  # fmt: skip
        """All sites with latent sites at ``values``; ``arrays`` replace the arguments of the same names."""
        return self._run(handlers.substitute(self._seeded(self.key, plate, at), dict(values)), arrays)

    def values(self, key: jax.Array, radius: float = 2.0) -> Sites:
        """All sites, with random values of the latent sites.

        Continuous latent sites are uniform within ``radius`` of the unconstrained origin; discrete ones are drawn from
        their priors.
        """
        uniform = init_to_uniform(radius=radius)  # pyright: ignore[reportArgumentType]
        return self._run(handlers.substitute(self._seeded(key), substitute_fn=uniform), None)

    def draw(self, key: jax.Array) -> Sites:
        """All sites, with latent sites drawn from their priors."""
        return self._run(self._seeded(key), None)

    def _seeded(self, key: jax.Array, plate: str | None = None, at: ArrayLike = 0) -> Callable:
        return handlers.seed(Plates(self.model, plate, at, self.sizes), key)

    def _run(self, model: Callable, arrays: Mapping[str, Any] | None) -> Sites:
        leaves = [(arrays or {}).get(name, leaf) for name, leaf in self.leaves.items()]
        arguments = jax.tree.unflatten(self.structure, leaves)
        # A pytree sorts its keys, so this restores the order of the signature.
        values: Any = {name: arguments[name] for name in self.bound.arguments}
        bound = inspect.BoundArguments(self.bound.signature, values)
        trace = handlers.trace(model).get_trace(*bound.args, **bound.kwargs)
        for site in trace.values():
            # The distribution of an observed site may have fewer batch axes than its values.
            if site["type"] == "sample" and site["is_observed"]:
                fn, shape = site["fn"], jnp.shape(site["value"])
                batch = jnp.broadcast_shapes(fn.batch_shape, shape[: len(shape) - fn.event_dim])
                site["fn"] = fn if batch == fn.batch_shape else fn.expand(batch)
        return trace


class Density:
    """A log density of the latent sites.

    Attributes:
        why: the reason why the rows cannot be separated; None for a prior.
        sample: ``key -> params``; only a prior that can be sampled has this attribute.
    """

    def __init__(self, value: Callable, why: str | None = None, sample: Callable | None = None) -> None:
        self.value, self.why = value, why
        if sample is not None:
            self.sample = sample

    def __call__(self, params: PyTree) -> jax.Array:
        return jnp.asarray(self.value(params), jnp.result_type(float))


class KnownProgram:
    """A program with its sites by kind, and the latent sites on which each site depends."""

    def __init__(self, program: Program) -> None:
        self.program = program
        try:
            self.trace = program.values(program.key, NEAR)
        except (TypeError, ValueError, IndexError) as error:
            rows = {name: len(a) for name, a in program.arrays.items() if len(a) not in program.sizes.values()}
            if not rows or not program.sizes:
                raise
            raise ModelError(
                f"The program failed: {str(error).rstrip('.')}. Its plates have the sizes {program.sizes}, and some "
                f"arguments have other numbers of rows, {rows}. Pass all rows, or give the plate their number: every "
                "plate runs at its full size, even if it subsamples."
            ) from error
        sites = {name: site for name, site in self.trace.items() if site["type"] == "sample"}
        self.observed = {name: site for name, site in sites.items() if site["is_observed"]}
        latent = {name: site for name, site in sites.items() if not site["is_observed"]}
        if not latent:
            raise ModelError("This NumPyro model has no latent site: expected at least one sample site without obs=.")
        self.discrete = {name: site for name, site in latent.items() if site["fn"].support.is_discrete}
        self.first = {name: jnp.asarray(site["value"]) for name, site in self.discrete.items()}
        self.latent = {name: site for name, site in latent.items() if name not in self.discrete}
        if not self.latent:
            raise ModelError(f"All latent sites ({listing(latent)}) are discrete; expected a continuous site too.")
        self.upstream = eval_provenance(self._parts, **{name: site["value"] for name, site in latent.items()})
        for name in self.latent:
            if above := self.dependencies("support", name):
                raise ModelError(
                    f"The support of {name!r} depends on {listing(above)}; expected fixed bounds. Draw the site from a "
                    "fixed interval, such as (0, 1), and compute the value from it in a deterministic site."
                )

    def _parts(self, **values: jax.Array) -> dict[str, dict[str, list]]:
        """The parts of all sites that may depend on latent sites, as {part: {site: arrays}}."""
        trace = self.program.trace(values)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        return {
            "fn": {name: parts_of(site["fn"]) for name, site in sites.items()},
            "support": {name: jax.tree.leaves(site["fn"].support) for name, site in sites.items()},
            "scale": {name: jax.tree.leaves(site["scale"]) for name, site in sites.items()},
            "observed": {name: [site["value"]] for name, site in sites.items() if site["is_observed"]},
            "value": {name: [site["value"]] for name, site in trace.items() if site["type"] == "deterministic"},
        }

    def dependencies(self, part: str, name: str) -> frozenset[str]:
        """The latent sites on which the part ``part`` of the site ``name`` depends."""
        return frozenset().union(*self.upstream[part][name])

    @functools.cached_property
    def position(self) -> dict[str, jax.Array]:
        return self.values_of(self.trace)

    @functools.cached_property
    def random_values(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        """A function from a key to random values of the continuous latent sites, near the unconstrained origin."""
        return jax.jit(lambda key: self.values_of(self.program.values(key)))

    def values_of(self, trace: Mapping[str, Any]) -> dict[str, jax.Array]:
        """The values of the continuous latent sites in a trace."""
        return {name: jnp.asarray(trace[name]["value"]) for name in self.latent}

    @property
    def support(self) -> dict[str, Any]:
        return {name: site["fn"].support for name, site in self.latent.items()}

    @property
    def derived(self) -> Callable[[PyTree], dict[str, Any]] | None:
        """A function that computes the deterministic sites that depend on no discrete site; None if there are none."""
        names = [name for name in self.upstream["value"] if not self.dependencies("value", name) & set(self.discrete)]
        if not names:
            return None

        def derived(params: PyTree) -> dict[str, Any]:
            trace = self.program.trace(self.first | params)
            return {name: trace[name]["value"] for name in names}

        return derived

    def prior(self, rest: Mapping[str, Any]) -> Any:
        """The prior of the continuous latent sites, times the likelihood of ``rest``, the observed sites without rows.

        It is a dict of distributions if the latent sites are independent and ``rest`` is empty, and else a ``Density``.
        """
        # Draws of the program follow the density only if no site is scaled, improper or masked.
        can_draw = not any(
            site["scale"] is not None or is_improper(site["fn"]) or isinstance(site["fn"], dist.MaskedDistribution)
            for site in self.latent.values()
        )
        if can_draw and not rest and not any(self.dependencies("fn", name) for name in self.latent):
            return {name: site["fn"] for name, site in self.latent.items()}

        def value(params: PyTree) -> Any:
            trace = self.program.trace(self.first | params)
            return sum((scaled(trace[name]) for name in (*self.latent, *rest)), start=0.0)

        def sample(key: jax.Array) -> PyTree:
            return self.values_of(self.program.draw(key))

        return Density(value, None, sample if can_draw and not rest else None)

    def model_arguments(self, rest: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a ``Model`` without its likelihood."""
        prior = self.prior(rest)
        example = {} if isinstance(prior, dict) else {"position": self.position, "support": self.support}
        return {"prior": prior, "derived": self.derived} | example


def joint_values(sites: Mapping[str, Any], size: int | None = None) -> tuple[dict[str, jax.Array], int]:
    """The joint values of discrete sites.

    Args:
        sites: the discrete sites, by name.
        size: the number of entries of each site; None for all of its entries.

    Returns:
        The m joint values, {site: (m, entries)}, and m.
    """
    entries = [int(np.size(site["value"])) if size is None else size for site in sites.values()]
    supports = []
    for (name, site), number in zip(sites.items(), entries, strict=True):
        kind = type(base_of(site["fn"])).__name__
        if not site["fn"].has_enumerate_support or site["fn"].event_dim:
            raise ModelError(f"The latent site {name!r} is discrete ({kind}); expected finitely many values.")
        supports += [np.asarray(site["fn"].enumerate_support(expand=False)).ravel()] * number
    count = math.prod(float(len(values)) for values in supports)
    if count > MOST:
        raise ModelError(
            f"The discrete sites {listing(sites)} have {count:.3g} joint values; expected at most {MOST}, as they are "
            "summed over. If each row has values of its own, put the sites in the plate of the observed rows. For "
            "a sequence of states use models.hidden_markov. Or write the model without these sites."
        )
    index = np.indices([len(values) for values in supports]).reshape(len(supports), -1)
    columns = [jnp.asarray(values[i]) for values, i in zip(supports, index, strict=True)]
    cuts = np.cumsum(entries)
    parts = [columns[start:end] for start, end in zip([0, *cuts[:-1]], cuts, strict=True)]
    return {name: jnp.stack(part, -1) for name, part in zip(sites, parts, strict=True)}, int(count)


def log_prob(site: Mapping[str, Any]) -> jax.Array:
    """log p of a site's value, with the site's batch shape; without the site's scale."""
    return jnp.broadcast_to(site["fn"].log_prob(site["value"]), site["fn"].batch_shape)


def scaled(site: Mapping[str, Any]) -> jax.Array:
    """The sum of log p over a site, (), times the site's scale, as in NumPyro."""
    return jnp.sum(log_prob(site) * (1.0 if site["scale"] is None else site["scale"]))


def axis_of(fn: dist.Distribution, dim: int) -> int:
    """The axis of a site's value that belongs to a plate with (negative) dimension ``dim``."""
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
    # All batch axes except that of the rows have length 1, so only the axis of the rows needs an index.
    fields = {}
    for name, constraint in type(base).arg_constraints.items():
        value = jnp.asarray(getattr(base, name))
        shape = value.shape[value.ndim - constraint.event_dim :]
        batch = value.reshape(-1, *shape)
        fields[name] = batch[0 if len(batch) == 1 else row]
    row_fn = type(base)(**fields)
    return row_fn.expand(rest).to_event(len(rest)) if rest else row_fn


def parts_of(fn: dist.Distribution) -> list:
    """All arrays of a distribution, with its total count, which is not a leaf of its pytree."""
    base: Any = base_of(fn.fn if isinstance(fn, Row) else fn)
    return [*jax.tree.leaves(fn), *jax.tree.leaves(getattr(base, "total_count", None))]


class Row(dist.Distribution):
    """The distribution of one row of a batched distribution; its other batch axes become axes of the datum."""

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
        rows = jnp.broadcast_to(jnp.expand_dims(value, axis_of(self.fn, self.dim)), self.fn.shape())
        return jnp.sum(self._cut(jnp.broadcast_to(jnp.asarray(self.fn.log_prob(rows)), self.fn.batch_shape)))

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        try:
            return self._cut(jnp.asarray(self.fn.sample(key, sample_shape)), len(sample_shape))
        except ValueError as error:  # NumPyro needs a concrete total count
            kind = type(base_of(self.fn)).__name__
            raise ModelError(f"NumPyro cannot draw a single row of {kind}: {error}") from error

    @property
    def mean(self) -> jax.Array:
        return self._cut(jnp.broadcast_to(self.fn.mean, self.fn.shape()))

    @property
    def variance(self) -> jax.Array:
        return self._cut(jnp.broadcast_to(self.fn.variance, self.fn.shape()))
