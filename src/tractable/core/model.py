"""The core types: Model (prior and likelihood), Data and Batch (rows), Kernel (a transition), Objective."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import IdentityTransform, IndependentTransform, Transform

from tractable.core import tree
from tractable.core.bits import CachedProperty
from tractable.core.errors import ModelError
from tractable.core.integrals import MOST, around, rule
from tractable.core.priors import check_prior, is_distribution, is_improper, sample_of
from tractable.core.rows import Batch, Data, Members, PlacedRows, Weighted, split_weights, whole
from tractable.core.rows import as_data as as_data
from tractable.core.shared import copy_recipe
from tractable.core.tree import PyTree
from tractable.core.words import Spelt, nearest

# A model's cached properties.
CACHED = ("bijectors", "space", "names", "fixed", "member", "double_copy", "representative", "_split")
NUMBERS = (int, float, np.number, np.ndarray, jax.Array)
PARALLEL = 1 << 16  # terms (rows × nodes) computed in parallel
Self = TypeVar("Self", bound="Model")

# Unless told otherwise, a GPU rounds the factors of float32 products to 10 bits: a log density of many rows is then off
# by nats, and draws and verdicts with it. Who wants that speed all the same, for a network, sets it.
if jax.config.values["jax_default_matmul_precision"] is None:
    jax.config.update("jax_default_matmul_precision", "highest")


class Objective(NamedTuple):
    """An objective that ``ascend`` maximises, by unbiased estimates.

    Attributes:
        draw: ``(key, count, params) -> noise`` with leading axis ``count``.
        value: ``(noise, params, batch) -> ()``.
        remember: ``params -> memory``, the gradient estimator's first memory; () by default.
        slope: ``(noise, params, batch, memory) -> (value, gradient, memory)``, for gradients other than the value's
            own; memory holds statistics of *earlier* steps, which keeps the estimate unbiased.
    """

    draw: Callable
    value: Callable
    remember: Callable = lambda params: ()
    slope: Callable | None = None


@dataclass(frozen=True)
class Kernel:
    """A transition, as three pure functions; its randomness is an argument.

    Attributes:
        init: ``(key, position) -> state``; every state has a ``position``.
        draw: ``(key, count, state, batch) -> noise`` of ``count`` consecutive steps, with leading axis ``count``;
            depends on the shapes of state and batch only.
        step: ``(noise, state, batch) -> (state, info)`` with the noise of one step; deterministic.
            Every leaf of ``info`` is a number, so that a run can average it.

    ``kernel(key, state, batch)`` draws and steps, for use by hand. Exact samplers ignore the batch.
    """

    init: Callable
    draw: Callable
    step: Callable

    def __call__(self, key: jax.Array, state: PyTree, batch: Batch | None = None) -> tuple[Any, Any]:
        noise = self.draw(key, 1, state, batch)
        return self.step(jax.tree.map(lambda x: x[0], noise), state, batch)


class Space(NamedTuple):
    """A model's parameters as one flat vector of unconstrained reals."""

    size: int  # d
    shapes: PyTree  # of the unconstrained parameters
    ravel: Callable[[PyTree], jax.Array]
    unravel: Callable[[jax.Array], PyTree]

    @property
    def names(self) -> list[str]:
        """Names of the d unconstrained numbers; made on demand, as a network has many."""
        return tree.names(self.shapes)


@dataclass(frozen=True)
class Through:
    """A likelihood that uses the input only through a predictor: y | x ~ observe(params, predictor(params, x)).

    Some methods use the predictor's structure (its noise, its Jacobian, whether it is linear).

    Attributes:
        predictor: ``(params, x) -> η``, an array.
        observe: ``(params, η) -> `` the distribution of one datum.
    """

    predictor: Callable
    observe: Callable

    def __call__(self, params: PyTree, x: PyTree = None) -> PyTree:
        if x is None:
            raise ModelError("This likelihood looks at inputs: give Data(y, given=x).")
        return self.observe(params, self.predictor(params, x))


jax.tree_util.register_dataclass(Through, ["predictor", "observe"], [])


def function_or_none(what: str, value: object, call: str) -> None:
    """A ModelError for another value where a function belongs, as a distribution, which can be called too."""
    if value is not None and (not callable(value) or is_distribution(value)):
        got = type(value).__name__
        raise ModelError(
            f"{what} expects a function, {call}; got {'a distribution, ' * is_distribution(value)}{got}. Write "
            f"lambda {call.partition('(')[2].partition(')')[0]}: … in its place."
        )


@dataclass(frozen=True, eq=False)
class Model(Spelt):
    """A prior of the parameters, and a likelihood of each datum.

    Args:
        prior: pytree of numpyro distributions, one for each parameter (its shape is the parameter's);
            or a callable log density, with example parameters in ``position``. A callable that can be drawn from has
            a ``sample(key) -> params``.
        likelihood: ``likelihood(params)``, or ``likelihood(params, x)`` if the data have a ``given``:
            the distribution of **one** datum (or a pytree of them shaped like one datum). The library
            maps, sums and scales it. It may have its own ``predict(params, x, (y, given))``, the distribution of y* at
            x given θ and the fitted rows; predictions then use it, as for a time series or a Gaussian process.
        position: example parameters if the prior is a callable; chains start near it.
        support: pytree of numpyro constraints shaped like ``position``; real by default.
        start: ``key -> params``, starting points, for models where neither the prior nor the origin is a good one,
            such as networks. By default methods start around the origin of the unconstrained space.
        derived: ``params -> `` dict of derived arrays, reported in summaries, in ArviZ and by
            ``posterior.derived()``.
        labels: names of a parameter's numbers, by the parameter's name, in place of ``weights[0]``.
        shared: whether programs compiled for this model serve all models that differ from it only in numbers: those
            of the prior, such as sds, and those a ``jax.tree_util.Partial`` passes to likelihood or start. The numbers
            are then arguments, not constants, which can change last digits.
        local: ``local(params)``: a dict of distributions of each group's own parameters, if the data have groups
            (``Data(..., group=)``). ``likelihood(params, x)`` then finds them in its params, by name.
        of_table: turns a table's rows into the likelihood's x, so that ``posterior.predict`` takes tables too.
        parts: models by name that share only x: θ is {name: θ of the part}, and the k-th number of y belongs to the
            k-th part (``networks.multi_output.side_by_side``). A method may then fit each part by itself.

    With ``local`` a datum is a group, and its own parameters z are integrated out:

        p(y_g | θ) = ∫ p(z | θ) Π_i p(y_i | z, θ) dz,     ∇ log p(y_g | θ) = E_{z ~ p(z | y_g, θ)} [∇ log p(y_g, z | θ)]

    by Newton's steps to the integrand's peak and quadrature nodes around it (``core.integrals.around``). So every
    method can fit θ, also by batches of groups: a step uses only its batch's groups, and no z is stored. A q(θ) extends
    to all unknowns as q(θ) Π_g p(z_g | y_g, θ), the best extension of that q(θ) (Hoffman & Blei 2015; Agrawal & Domke
    2021), SGLD's gradient follows by Fisher's identity (Patterson & Teh 2013), and funnels between z and its scale
    vanish. A group may have up to 16 numbers; integrals are exact if their posterior given θ is normal, and the report
    says how accurate they are. ``posterior.local()`` gives z.

    Bijections from the reals to the supports, with their log-determinants, let every method move in an unconstrained
    space; results are in the user's space.

    Raises:
        ModelError: the prior is discrete, or a callable without a position; a distribution stands where a function
            belongs; ``local`` is no dict of distributions, or reuses a parameter's name.

    >>> import numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(5, 5)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> coin.space.names
    ['theta']
    """

    prior: Any
    likelihood: Callable | None = None
    position: Any = None
    support: Any = None
    start: Callable[[jax.Array], Any] | None = None
    derived: Callable[[Any], dict[str, Any]] | None = None
    labels: Mapping[str, Sequence[str]] | None = None
    local: Callable[..., Any] | None = None
    shared: bool = field(default=False, kw_only=True)
    of_table: Callable[[Any], Any] | None = field(default=None, kw_only=True)
    parts: Mapping[str, "Model"] | None = field(default=None, kw_only=True)
    is_ladder: ClassVar[bool] = False  # whether the model is a ladder of hidden layers
    representative: ClassVar["Model | None"] = None  # an equal model whose programs serve this one (``share_programs``)

    def __post_init__(self) -> None:
        function_or_none("likelihood=", self.likelihood, "likelihood(params) or likelihood(params, x)")
        if isinstance(self.likelihood, Through):
            function_or_none("Through(predictor=)", self.likelihood.predictor, "predictor(params, x)")
            function_or_none("Through(observe=)", self.likelihood.observe, "observe(params, eta)")
        for name, call in {"start": "key", "derived": "params", "local": "params", "of_table": "table"}.items():
            function_or_none(f"{name}=", getattr(self, name), f"{name}({call})")
        if not self.prior_is_callable:
            check_prior(self.prior)
        elif self.position is None:
            raise ModelError("Model with a callable prior needs position=, example parameters it can be called with.")
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.position)[0] if self.prior_is_callable else ():
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise ModelError(f"position{jax.tree_util.keystr(path)} is not finite: {leaf}.")
        if self.local is not None:
            _check_local(self)

    def split_arrays(self) -> tuple["Model", tuple]:
        """The model that programs are compiled for, and the arrays passed as arguments (``core.shared``)."""
        if self.shared and not self.prior_is_callable:
            return self._split
        return self.representative or self, ()

    def join_arrays(self, arrays: tuple) -> "Model":
        """The model with these numbers in its prior, likelihood and start: the inverse of ``split_arrays``."""
        if not arrays:
            return self
        given, (leaves, structure) = iter(arrays), jax.tree.flatten(_numbered(self))
        leaves = [next(given) if isinstance(leaf, NUMBERS) else leaf for leaf in leaves]
        prior, likelihood, start = jax.tree.unflatten(structure, leaves)
        return replace(self, prior=prior, likelihood=likelihood, start=start)

    @CachedProperty
    def _split(self) -> tuple["Model", tuple]:
        leaves = [leaf for leaf in jax.tree.leaves(_numbered(self)) if isinstance(leaf, NUMBERS)]
        with jax.ensure_compile_time_eval():  # cached, so outside any trace; put on the device once
            arrays = tuple(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in leaves)
        return _of_form.setdefault(_form(self), self), arrays

    @functools.cached_property
    def double_copy(self) -> "Model":
        """The model for runs in double precision: itself, with arrays of its own.

        JAX (0.10) keeps what it has made of a NumPy array in one precision, and takes it for that of the other.
        """
        if type(self) is not Model or self.prior_is_callable:
            return self
        leaves, structure = jax.tree.flatten(_numbered(self))
        arrays = (np.ndarray, jax.Array)
        prior, likelihood, start = jax.tree.unflatten(
            structure, [np.array(leaf) if isinstance(leaf, arrays) else leaf for leaf in leaves]
        )
        parts = None if self.parts is None else {name: part.double_copy for name, part in self.parts.items()}
        return copy_recipe(self, replace(self, prior=prior, likelihood=likelihood, start=start, parts=parts))

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments; another process computes the cached properties again."""
        return {name: value for name, value in vars(self).items() if name.partition(" ")[0] not in CACHED}

    @classmethod
    def from_log_density(
        cls, log_density: Callable[[PyTree], jax.Array], position: PyTree, support: PyTree = None,
        derived: Callable[[Any], dict[str, Any]] | None = None,
    ) -> "Model":  # fmt: skip
        """A model from any unnormalised log density over a pytree of reals; it takes no data.

        Args:
            log_density: ``position -> scalar``; with ``support``, of the constrained values.
            position: an example position; chains start near it.
            support: pytree of numpyro constraints shaped like ``position``; real by default. The bijection's
                log-determinant is added.
            derived: as for ``Model``.
        """
        function_or_none("log_density", log_density, "log_density(position)")
        return cls(log_density, None, position, support, derived=derived)

    @property
    def prior_is_callable(self) -> bool:
        return callable(self.prior) and not is_distribution(self.prior)

    @property
    def drawable(self) -> bool:
        """Whether the prior can be drawn from."""
        if self.prior_is_callable:
            return hasattr(self.prior, "sample")
        return not any(map(is_improper, jax.tree.leaves(self.prior, is_leaf=is_distribution)))

    @CachedProperty
    def bijectors(self) -> list:
        """A bijection for each parameter, from the reals to its support, in the order of the leaves."""
        if not self.prior_is_callable:
            traced = any(isinstance(a, Tracer) for a in jax.tree.leaves(self.prior))
            # Bounds that are arrays are subtracted; first asked for within a trace, they would belong to it for ever.
            with contextlib.nullcontext() if traced else jax.ensure_compile_time_eval():
                return [biject_to(d.support) for d in jax.tree.leaves(self.prior, is_leaf=is_distribution)]
        count = len(jax.tree.leaves(self.position))
        if self.support is None:
            return [biject_to(constraints.real)] * count
        supports = jax.tree.leaves(self.support, is_leaf=lambda c: isinstance(c, constraints.Constraint))
        if len(supports) != count:
            raise ModelError(f"support has {len(supports)} constraints for {count} parameters; give one for each.")
        return [biject_to(c) for c in supports]

    @property
    def unbounded(self) -> list[bool]:
        """For each leaf, whether its support is all reals, so that the parameter equals its unconstrained value."""

        def identity(b: Transform) -> bool:
            return identity(b.base_transform) if isinstance(b, IndependentTransform) else type(b) is IdentityTransform

        return [identity(b) for b in self.bijectors]

    @property
    def real(self) -> np.ndarray:
        """``unbounded`` for each of the d unconstrained numbers, (d,)."""
        sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.space.shapes)]
        return np.repeat(self.unbounded, sizes)

    @CachedProperty
    def space(self) -> Space:
        """The flat unconstrained space in which methods move."""
        shapes = jax.eval_shape(lambda key: self.unconstrain(self.example(key)), jax.random.key(0))
        ravel, unravel = tree.raveller(shapes)
        return Space(tree.size(shapes), shapes, ravel, unravel)

    def example(self, key: jax.Array) -> PyTree:
        """Parameters of the right shapes: a draw from the prior, or the position."""
        if self.prior_is_callable:
            return jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), self.position)
        return self.sample_prior(key)

    def sample_prior(self, key: jax.Array) -> PyTree:
        """One draw of the parameters from the prior."""
        if self.prior_is_callable:
            return self.prior.sample(key)
        return sample_of(self.prior, key)

    def constrain(self, unconstrained: PyTree) -> PyTree:
        """From the reals to the user's parameters."""
        return self._biject(lambda b, u: b(u), unconstrained)

    def unconstrain(self, params: PyTree) -> PyTree:
        """From the user's parameters to the reals."""
        return self._biject(lambda b, p: b.inv(p), params)

    def params(self, position: jax.Array) -> PyTree:
        """The user's parameters of a flat unconstrained position (d,)."""
        return self.constrain(self.space.unravel(position))

    def position_of(self, params: PyTree) -> jax.Array:
        """The flat unconstrained position (d,) of the user's parameters."""
        return self.space.ravel(self.unconstrain(params))

    def part(self, name: str) -> np.ndarray:
        """Indices of a part's numbers in a flat position."""
        sizes = {each: part.space.size for each, part in (self.parts or {}).items()}
        start = sum(size for each, size in sizes.items() if each < name)  # a dict's leaves are sorted by name
        return np.arange(start, start + sizes[name])

    def _biject(self, function: Callable, *trees: PyTree) -> PyTree:
        leaves = [jax.tree.leaves(t) for t in trees]
        return jax.tree.unflatten(
            jax.tree.structure(trees[0]), [function(*each) for each in zip(self.bijectors, *leaves, strict=True)]
        )

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters at a flat unconstrained position, raveled: (k,)."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(self.params(position))])

    @functools.cached_property
    def names(self) -> list[str]:
        """One name for each of the k numbers of the user's parameters."""
        return tree.names(jax.eval_shape(self.example, jax.random.key(0)), self.labels)

    @CachedProperty
    def fixed(self) -> np.ndarray:
        """(k,) which numbers are constants of their support, such as the ones on a correlation matrix's diagonal."""
        if len(self.names) == self.space.size:
            return np.zeros(len(self.names), bool)
        places = jnp.asarray(np.random.default_rng(0).standard_normal((3, self.space.size)))
        values = np.asarray(jax.jit(jax.vmap(self.values))(places))
        return np.ptp(values, axis=0) <= 10 * np.finfo(values.dtype).eps * np.abs(values).max(0)

    @property
    def through(self) -> Through | None:
        """The likelihood if it goes through a predictor, else None."""
        return self.likelihood if isinstance(self.likelihood, Through) and self.local is None else None

    @property
    def network_weights(self) -> tuple[str, ...]:
        """Names of parameters that are a network's weights: its units are exchangeable, single weights mean little."""
        network = self.through is not None and self.start is not None and isinstance(self.prior, dict)
        return ("weights",) if network and "weights" in self.prior else ()

    def log_jacobian(self, unconstrained: PyTree, params: PyTree) -> jax.Array:
        """log |∂params/∂unconstrained|, summed over parameters."""
        return tree.total(self._jacobians(unconstrained, params))

    def _jacobians(self, unconstrained: PyTree, params: PyTree) -> PyTree:
        return self._biject(lambda b, u, p: jnp.sum(b.log_abs_det_jacobian(u, p)), unconstrained, params)

    def log_prior(self, params: PyTree) -> jax.Array:
        """log p(θ) of the user's parameters, a scalar."""
        if self.prior_is_callable:
            return self.prior(params)
        return tree.total(self._log_priors(params))

    def _log_priors(self, params: PyTree) -> PyTree:
        return jax.tree.map(lambda d, p: jnp.sum(d.log_prob(p)), self.prior, params, is_leaf=is_distribution)

    def log_priors(self, params: PyTree, unconstrained: PyTree) -> list[jax.Array]:
        """log p plus log-determinant of each parameter's own prior, leaf by leaf."""
        jacobians, terms = self._jacobians(unconstrained, params), self._log_priors(params)
        return [a + b for a, b in zip(jax.tree.leaves(terms), jax.tree.leaves(jacobians), strict=True)]

    def datum(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution of one datum, given its input if there is one."""
        likelihood = needed_likelihood(self)
        if self.local is not None:
            raise ModelError(
                "A datum of this model is a group of rows, which has a density and no one distribution: "
                "posterior.predict(x, group=...) predicts rows of known and of new groups."
            )
        return likelihood(params) if x is None else likelihood(params, x)

    def described(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution that rows are checked against before anything runs: that of one datum."""
        return self.datum(params, x)

    @property
    def ahead(self) -> Callable | None:
        """The likelihood's own ``predict(params, x, (y, given))``, or None."""
        return getattr(self.likelihood, "predict", None)

    def check_rows(self, data: Data) -> None:
        """Raises a DataError for impossible rows, in models that check more than the support."""

    def traced(self, position: jax.Array, batch: Batch | None) -> jax.Array:
        """The density to fingerprint the model by: its log posterior at a flat position."""
        return log_posterior(self, flat=True)(position, batch)

    def computed(self, params: PyTree, key: jax.Array, rows: PyTree) -> list:
        """What programs compute by this model's functions besides its density; models are identified by its trace.

        Args:
            rows: (y, given) of some rows, with a leading axis; None without data.
        """
        found = [self.example(key), self.constrain(self.unconstrain(params))]
        given = {"start": key, "derived": params} | ({"sample_prior": key} if self.drawable else {})
        found += [getattr(self, name)(value) for name, value in given.items() if getattr(self, name) is not None]
        if rows is None or self.likelihood is None:
            return found
        y, x = jax.tree.map(lambda a: a[0], rows)
        if self.local is not None:
            own = self.given(params)
            return [*found, _centre(own), own.computed(own.example(key), key, (y, x.given))]
        if self.through is not None:
            found.append(self.through.predictor(params, x))
        distributions = self.datum(params, x)
        leaves = jax.tree.leaves(distributions, is_leaf=is_distribution)
        return [*found, *(_properties(d, key, value) for d, value in zip(leaves, jax.tree.leaves(y), strict=True))]

    def log_likelihoods(self, params: PyTree, rows: tuple[PyTree, PyTree]) -> jax.Array:
        """log p(y_n | x_n, θ) of each row, (n,); of each group if there are groups."""
        if self.local is not None:
            return self.over_groups(lambda own, places, logs: jax.nn.logsumexp(logs), params, rows)

        def one(row: tuple[PyTree, PyTree]) -> jax.Array:
            y, x = row
            terms = jax.tree.map(lambda d, value: d.log_prob(value), self.datum(params, x), y, is_leaf=is_distribution)
            return tree.total(terms)

        return jax.vmap(one)(rows)

    def given(self, params: PyTree) -> "Model":
        """The model of one group's own parameters given θ: its prior is ``local(params)``."""
        likelihood, local = self.likelihood, self.local
        if likelihood is None or local is None:
            raise ModelError("This model has nothing that is a group's own: expected Model(..., local=).")
        return Model(local(params), lambda z, *x: likelihood({**params, **z}, *x))

    def over_groups(
        self, function: Callable, params: PyTree, rows: tuple[PyTree, Members], nodes: Callable | None = None
    ) -> PyTree:
        """``function(own, places, logs)`` for each group, leading axis (groups,).

        Args:
            function: takes the group's own model, J unconstrained quadrature nodes (J, k), and the logs of their
                contributions to p(y_g | θ), (J,).
            nodes: ``g -> (x (J, k), log weights (J,))`` for the g-th group; by default ``integrals.rule``.
        """
        fixed = rule(self.given(params).space.size)

        def one(g: jax.Array, row: tuple[PyTree, Members]) -> PyTree:
            y, (x, counts) = row
            own, still = self.given(params), self.given(jax.lax.stop_gradient(params))
            of_group, which = Weighted(y, x, counts), fixed if nodes is None else nodes(g)
            places, log_weights = around(log_density(still, of_group, flat=True), _centre(still), *which)
            return function(own, places, log_weights + jax.vmap(log_density(own, of_group, flat=True))(places))

        groups, members = rows[1].counts.shape
        at_once = max(1, PARALLEL // (members * len(fixed[1])))
        if groups <= at_once:
            return jax.vmap(one)(jnp.arange(groups), rows)
        return jax.lax.map(lambda now: jax.checkpoint(one)(*now), (jnp.arange(groups), rows), batch_size=at_once)

    @CachedProperty
    def member(self) -> "Model":
        """The model of a single row, with its group's own parameters at their prior means, to check rows against."""
        likelihood = needed_likelihood(self)

        def of_row(params: PyTree, *x: PyTree) -> PyTree:
            own = self.given(params)
            return likelihood({**params, **own.params(_centre(own))}, *x)

        return Model(self.prior, of_row, self.position, self.support, self.start)


# The first living model of each form, which programs of all models of that form are compiled for.
_of_form: weakref.WeakValueDictionary[Hashable, Model] = weakref.WeakValueDictionary()


def _form(model: Model) -> Hashable:
    """What a model with ``shared=True`` is apart from its numbers; functions are equal only if they are one object."""
    leaves, structure = jax.tree.flatten(_numbered(model))
    functions = [id(leaf) for leaf in leaves if not isinstance(leaf, NUMBERS)]
    places = [isinstance(leaf, NUMBERS) for leaf in leaves]
    separate = ("prior", "likelihood", "start", "parts")
    others = [id(getattr(model, f.name)) for f in fields(model) if f.name not in separate]
    parts = tuple((name, part.split_arrays()[0]) for name, part in (model.parts or {}).items())
    return type(model), jnp.result_type(float), structure, *places, *functions, *others, parts


def _numbered(model: Model) -> tuple:
    """The fields of a model whose numbers may be arguments of programs."""
    return model.prior, model.likelihood, model.start


def _properties(distribution: PyTree, key: jax.Array, value: ArrayLike) -> list:
    """The numbers of a distribution, a draw, and its moments, entropy and cdf where it has them."""
    found = [distribution]
    for call in (
        lambda: distribution.sample(key), lambda: distribution.mean, lambda: distribution.variance,
        lambda: distribution.entropy(), lambda: distribution.cdf(value),
    ):  # fmt: skip
        with contextlib.suppress(Exception):  # no program can ask for what it has not
            found.append(call())
    return found


def _centre(own: Model) -> jax.Array:
    """(k,) Newton's starting point: the prior's means, unconstrained; 0 where a mean does not exist."""
    means = jax.tree.map(lambda d: jnp.broadcast_to(d.mean, d.shape()), own.prior, is_leaf=is_distribution)
    flat = own.position_of(means)
    return jnp.where(jnp.isfinite(flat), flat, 0.0)


def _check_local(model: Model) -> None:
    """Raises a ModelError unless ``local`` returns a dict of distributions under new names, of at most MOST numbers."""
    params = jax.eval_shape(model.example, jax.random.key(0))
    names = sorted(params) if isinstance(params, dict) else []
    try:
        own = jax.eval_shape(lambda params: _named_locals(model, params), params)
    except KeyError as error:
        near = nearest(str(error.args[0]), names)
        raise ModelError(f"local(params) asks for {error.args[0]!r}; there are {', '.join(names)}.{near}") from error
    if both := sorted({*names} & {*own}):
        raise ModelError(f"{both[0]!r} is a parameter of all groups and of each: give local a name of its own.")
    if (size := tree.size(own)) > MOST:
        raise ModelError(f"local holds {size} numbers a group; at most {MOST} are integrated over.")


def _named_locals(model: Model, params: PyTree) -> dict:
    """One group's own parameters, by name."""
    own: Any = None if model.local is None else model.local(params)
    if not isinstance(params, dict) or not isinstance(own, dict):
        raise ModelError(
            "Model(local=...) expects a prior that is a dict, and local(params) to return a dict of distributions, "
            f'such as {{"a": dist.Normal(params["mu"], params["tau"])}}; got {type(own).__name__}.'
        )
    return model.given(params).example(jax.random.key(0))


def needed_likelihood(model: Model) -> Callable:
    """The likelihood; a ModelError if the model has none."""
    if model.likelihood is None:
        said = "This model has no likelihood, so it says nothing about data: pass data=None."
        raise ModelError(getattr(model.prior, "why", None) or said)
    return model.likelihood


def counted_log_likelihoods(model: Model, params: PyTree, rows: PyTree) -> jax.Array:
    """w_n log p(y_n | x_n, θ) of each row of ``core.arrays()``, (n,); w_n = 1 if the data have no weights."""
    rows, weights = split_weights(rows)
    terms = model.log_likelihoods(params, rows)
    return terms if weights is None else jnp.where(weights > 0, weights.astype(terms.dtype) * terms, 0.0)


def log_posterior(model: Model, *, flat: bool = False, jacobian: bool = True) -> Callable:
    """``(position, batch) -> log p(θ) + N/n Σ_n w_n log p(y_n|θ)``, unconstrained; unbiased for the full sum.

    Args:
        flat: positions are flat vectors (``model.space``) instead of pytrees.
        jacobian: include the log-determinant, which makes it a log density of the unconstrained position. Leave it out
            to find a mode of the user's parameters.
    """

    def of(position: PyTree, batch: Batch | None) -> jax.Array:
        params, prior = _prior(model, position, flat, jacobian)
        if batch is None or model.likelihood is None:
            return prior
        return prior + batch.scale * batch_log_likelihood(model, params, batch)

    return of


def batch_log_likelihood(model: Model, params: PyTree, batch: Batch) -> jax.Array:
    """Σ w_n log p(y_n | x_n, θ) of a batch's rows, unscaled; over all devices where they lie over several."""

    def of(params: PyTree, batch: Batch) -> jax.Array:
        return jnp.sum(batch.counted(model.log_likelihoods(params, batch.data)))

    return batch.summed(of, params)


def log_density(
    model: Model, rows: PyTree = None, *, flat: bool = False, jacobian: bool = True, terms: bool = False
) -> Callable:
    """``position -> log p(θ) + Σ_n w_n log p(y_n|θ)`` over all rows, unconstrained.

    Args:
        rows: ``core.arrays()``; None for a model without data.
        terms: return the summands, (N + 1,), instead of the sum: a Metropolis ratio from their differences keeps
            its digits in float32 if N is large.
    """

    def of(position: PyTree) -> jax.Array:
        params, prior = _prior(model, position, flat, jacobian)
        if rows is None or model.likelihood is None:
            return prior
        if isinstance(rows, PlacedRows):
            return prior + batch_log_likelihood(model, params, whole(rows))
        likelihoods = counted_log_likelihoods(model, params, rows)
        return jnp.append(likelihoods, prior) if terms else prior + jnp.sum(likelihoods)

    return of


def _prior(model: Model, position: PyTree, flat: bool, jacobian: bool) -> tuple[PyTree, jax.Array]:
    unconstrained = model.space.unravel(position) if flat else position
    params = model.constrain(unconstrained)
    prior = model.log_prior(params)
    if jacobian:
        prior = prior + model.log_jacobian(unconstrained, params)
    return params, prior
