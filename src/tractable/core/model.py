"""A model is a prior of the parameters and a likelihood of each datum."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tractable.core import tree
from tractable.core.batches import Batch, split_weights
from tractable.core.batches import whole as whole
from tractable.core.bits import CachedProperty
from tractable.core.density import batch_log_likelihood as batch_log_likelihood
from tractable.core.density import counted_log_likelihoods as counted_log_likelihoods
from tractable.core.density import density_from_gradients, log_posterior, needed_likelihood
from tractable.core.density import log_density as log_density
from tractable.core.errors import ModelError
from tractable.core.groups import Grouped, prior_centre
from tractable.core.kernel import Kernel as Kernel
from tractable.core.kernel import Objective as Objective
from tractable.core.priors import check_prior, in_order, in_words, is_distribution
from tractable.core.priors import sample_of as sample_of
from tractable.core.rows import Data, arrays_for
from tractable.core.rows import as_data as as_data
from tractable.core.shared import copy_recipe
from tractable.core.tree import PyTree
from tractable.core.view import Table
from tractable.core.words import Spelt

# A model's cached properties; there are more, in the names of which are spaces (``bits.CachedProperty``).
CACHED = ("names", "double_copy", "representative", "identities")
NUMBERS = (int, float, np.number, np.ndarray, jax.Array)

# By default JAX rounds the factors of float32 products on a GPU to 10 bits. The log density of many rows would then be
# wrong by several nats (units of the natural logarithm), and so would draws and verdicts. The faster products may be
# exact enough for a network: to get them, set the option before you import this library.
if jax.config.values["jax_default_matmul_precision"] is None:
    jax.config.update("jax_default_matmul_precision", "highest")


@dataclass(frozen=True)
class Through:
    """A likelihood that depends on the input only through a predictor: y | x ~ observe(params, predictor(params, x)).

    Some methods use the predictor's structure: its Jacobian, and whether it is linear.

    Attributes:
        predictor: ``(params, x) -> η``, an array.
        observe: ``(params, η) -> distribution`` of one datum.
    """

    predictor: Callable
    observe: Callable

    def __call__(self, params: PyTree, x: PyTree = None) -> PyTree:
        if x is None:
            raise ModelError("This likelihood needs inputs: pass Data(y, given=x).")
        return self.observe(params, self.predictor(params, x))


jax.tree_util.register_dataclass(Through, ["predictor", "observe"], [])


def function_or_none(what: str, value: object, call: str) -> None:
    """Raise a ModelError unless ``value`` is a function or None; a distribution is refused, though it is callable."""
    if value is not None and (not callable(value) or is_distribution(value)):
        got = type(value).__name__
        raise ModelError(
            f"{what} expects a function, {call}; got {'a distribution, ' * is_distribution(value)}{got}. Pass "
            f"lambda {call.partition('(')[2].partition(')')[0]}: … instead."
        )


@dataclass(frozen=True, eq=False)
class Model(Grouped, Spelt):
    """A prior of the parameters, and a likelihood of each datum.

    Args:
        prior: pytree of numpyro distributions, one for each parameter, of the parameter's shape; or a callable log
            density, with example parameters in ``position``. A callable with a method ``sample(key) -> params`` can be
            drawn from.
        likelihood: ``likelihood(params)``, or ``likelihood(params, x)`` if the data have a ``given``: the distribution
            of **one** datum, or a pytree of distributions shaped like one datum. The library maps, sums and scales the
            log density. A likelihood with a method ``predict(params, x, (y, given))``, the distribution of y* at x
            given θ and the fitted rows, makes predictions by this method, as for a time series or a Gaussian process.
        position: example parameters if the prior is a callable; chains start near them.
        support: pytree of numpyro constraints shaped like ``position``; real by default.
        start: ``key -> params``, starting points, for models such as networks for which draws from the prior and the
            origin are poor. By default methods start around the origin of the unconstrained space.
        derived: ``params -> `` dict of derived arrays, which summaries, ArviZ and ``posterior.derived()`` report.
        labels: for a parameter's name, the names of its numbers, which replace names such as ``weights[0]``.
        shared: set ``shared=True`` to reuse compiled programs for all models that differ only in numbers: the numbers
            of the prior, such as sds, and those that a ``jax.tree_util.Partial`` passes to likelihood or start. The
            numbers are then arguments of the programs instead of constants, which can change the last digits of
            results.
        local: ``local(params)``: a dict of distributions of each group's local parameters, for data with groups
            (``Data(..., group=)``). ``likelihood(params, x)`` finds the local parameters in its params, by name.
        table: the table that the model explains: ``posterior.predict`` then takes tables, and summaries have the
            table's names and units.
        parts: models by name that share only x: θ is {name: θ of the part}, and the k-th number of y belongs to the
            k-th part (``networks.multi_output.side_by_side``). A method may then fit each part by itself.

    With ``local`` a datum is a group, whose local parameters z are integrated out:

        p(y_g | θ) = ∫ p(z | θ) Π_i p(y_i | z, θ) dz,     ∇ log p(y_g | θ) = E_{z ~ p(z | y_g, θ)} [∇ log p(y_g, z | θ)]

    The integral is computed by Newton steps to the integrand's peak and quadrature nodes around the peak
    (``core.integrals.around``). Every method can therefore fit θ, also by batches of groups: a step uses the groups of
    its batch only, and no z is stored. A variational q(θ) extends to all unknowns as q(θ) Π_g p(z_g | y_g, θ), the best
    extension of that q(θ) (Hoffman & Blei 2015; Agrawal & Domke 2021). SGLD's gradient follows from Fisher's identity
    (Patterson & Teh 2013). The density of θ has no funnels between z and its scale. A group's z may have up to 16
    numbers. The integrals are exact if p(z | y_g, θ) is normal, and the report states their accuracy.
    ``posterior.local()`` returns z.

    All methods work in an unconstrained space, which bijections map to the supports; log densities include the
    log-determinants of the bijections, and results are in the user's space.

    Raises:
        ModelError: the prior is discrete, or a callable without a position; a distribution is passed in place of a
            function; ``local`` does not return a dict of distributions, or reuses a parameter's name.

    >>> import numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(5, 5)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> coin
    Model
      theta  Beta(concentration1=5, concentration0=5)
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
    table: Table | None = field(default=None, kw_only=True)
    parts: Mapping[str, "Model"] | None = field(default=None, kw_only=True)
    is_ladder: ClassVar[bool] = False  # whether the model is a ladder (a stack of hidden layers)
    representative: ClassVar["Model | None"] = None  # an equal model whose programs this one uses (``share_programs``)

    def __repr__(self) -> str:
        """A line for each parameter, with its shape and prior."""
        if self.prior_is_callable:
            return f"Model({', '.join(self.names[:6])}{', …' * (len(self.names) > 6)}; the prior is a log density)"
        leaves = jax.tree_util.tree_flatten_with_path(self.prior, is_leaf=is_distribution)[0]
        names = [f"{tree.path_name(path)} {prior.shape() or ''}".strip() for path, prior in leaves]
        width = max(map(len, names))
        return "\n".join(
            ["Model", *(f"  {name:{width}}  {in_words(prior)}" for name, (_, prior) in zip(names, leaves, strict=True))]
        )

    def __post_init__(self) -> None:
        function_or_none("likelihood=", self.likelihood, "likelihood(params) or likelihood(params, x)")
        if isinstance(self.likelihood, Through):
            function_or_none("Through(predictor=)", self.likelihood.predictor, "predictor(params, x)")
            function_or_none("Through(observe=)", self.likelihood.observe, "observe(params, eta)")
        for name, call in {"start": "key", "derived": "params", "local": "params"}.items():
            function_or_none(f"{name}=", getattr(self, name), f"{name}({call})")
        if not self.prior_is_callable:
            check_prior(self.prior)
        elif self.position is None:
            raise ModelError("Model with a callable prior needs position=, example parameters to call the prior with.")
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.position)[0] if self.prior_is_callable else ():
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise ModelError(f"position{jax.tree_util.keystr(path)} is not finite: {leaf}.")
        if self.local is not None:
            self.check_local()

    def fingerprint(self) -> str | None:
        """Identifies what all functions of the model compute; None where it is not known that this is up to date."""
        found = [identify() for identify in vars(self).get("identities", {}).values()]
        return " ".join(found) if found and None not in found else None

    def split_arrays(self) -> tuple["Model", tuple]:
        """The model for which programs are compiled, and the arrays that are their arguments (``core.shared``)."""
        if self.shared and not self.prior_is_callable:
            return self._split
        return self.representative or self, ()

    def join_arrays(self, arrays: tuple) -> "Model":
        """The model with ``arrays`` as the numbers of its prior, likelihood and start: inverts ``split_arrays``."""
        if not arrays:
            return self
        given, (leaves, structure) = iter(arrays), jax.tree.flatten(_numeric_fields(self))
        leaves = [next(given) if isinstance(leaf, NUMBERS) else leaf for leaf in leaves]
        prior, likelihood, start = jax.tree.unflatten(structure, leaves)
        return replace(self, prior=prior, likelihood=likelihood, start=start)

    @CachedProperty
    def _split(self) -> tuple["Model", tuple]:
        leaves = [leaf for leaf in jax.tree.leaves(_numeric_fields(self)) if isinstance(leaf, NUMBERS)]
        with jax.ensure_compile_time_eval():  # the cached arrays must not belong to a trace
            arrays = tuple(leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in leaves)
        return _of_form.setdefault(_form(self), self), arrays

    @functools.cached_property
    def double_copy(self) -> "Model":
        """The same model with copies of its arrays, for runs in double precision.

        JAX (0.10) caches its conversion of a NumPy array in one precision, and returns it in the other precision too.
        """
        if type(self) is not Model or self.prior_is_callable:
            return self
        leaves, structure = jax.tree.flatten(_numeric_fields(self))
        arrays = (np.ndarray, jax.Array)
        prior, likelihood, start = jax.tree.unflatten(
            structure, [np.array(leaf) if isinstance(leaf, arrays) else leaf for leaf in leaves]
        )
        parts = None if self.parts is None else {name: part.double_copy for name, part in self.parts.items()}
        return copy_recipe(self, replace(self, prior=prior, likelihood=likelihood, start=start, parts=parts))

    def __getstate__(self) -> dict[str, Any]:
        """The state without cached properties, which another process computes again."""
        return {name: value for name, value in vars(self).items() if name not in CACHED and " " not in name}

    @classmethod
    def from_log_density(
        cls, log_density: Callable[[PyTree], jax.Array], position: PyTree, support: PyTree = None,
        derived: Callable[[Any], dict[str, Any]] | None = None,
    ) -> "Model":  # fmt: skip
        """A model without data, from any unnormalised log density over a pytree of reals.

        Args:
            log_density: ``position -> scalar``; with ``support``, of the constrained values.
            position: an example position; chains start near it.
            support: pytree of numpyro constraints shaped like ``position``; real by default. The bijection's
                log-determinant is added.
            derived: as for ``Model``.
        """
        function_or_none("log_density", log_density, "log_density(position)")
        return cls(log_density, None, position, support, derived=derived)

    @classmethod
    def from_gradients(cls, function: Callable[[np.ndarray], tuple[float, np.ndarray]], size: int) -> "Model":
        """A model without data, from a log density and its gradient that another program computes.

        Args:
            function: ``position (size,) -> (log density, gradient (size,))`` with NumPy arrays of unconstrained reals,
                such as ``log_density_gradient`` of BridgeStan's model. It is called once for each position.
            size: how many numbers a position has.

        Raises:
            ModelError: ``function(zeros)`` is not such a pair.
        """
        function_or_none("function", function, "function(position)")
        return cls(density_from_gradients(function, size), position=jnp.zeros(size))

    def part(self, name: str) -> np.ndarray:
        """The indices of a part's numbers in a flat position; ``name`` is a key of ``parts``."""
        sizes = {each: part.space.size for each, part in (self.parts or {}).items()}
        start = sum(size for each, size in sizes.items() if each < name)  # a dict's leaves are sorted by name
        return np.arange(start, start + sizes[name])

    @property
    def through(self) -> Through | None:
        """The likelihood if it is a ``Through`` of a model without groups, else None."""
        return self.likelihood if isinstance(self.likelihood, Through) and self.local is None else None

    @property
    def network_weights(self) -> tuple[str, ...]:
        """Names of the parameters that are a network's weights; a single weight means little, as units can swap."""
        network = self.through is not None and self.start is not None and isinstance(self.prior, dict)
        return ("weights",) if network and "weights" in self.prior else ()

    def datum(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution of one datum, given its input x if the data have inputs."""
        likelihood = needed_likelihood(self)
        if self.local is not None:
            raise ModelError(
                "A datum of this model is a group of rows, which has a density but no distribution object. To predict "
                "rows of known and of new groups, use posterior.predict(x, group=...)."
            )
        return likelihood(params) if x is None else likelihood(params, x)

    def described(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution against which rows are checked before a run: that of one datum."""
        return self.datum(params, x)

    @property
    def ahead(self) -> Callable | None:
        """The likelihood's own ``predict(params, x, (y, given))``, or None."""
        return getattr(self.likelihood, "predict", None)

    def check_rows(self, data: Data) -> None:
        """Raise a DataError for impossible rows; subclasses check more than the support."""

    def traced(self, position: jax.Array, batch: Batch | None) -> jax.Array:
        """The density whose JAX program identifies the model: the log posterior at a flat position."""
        return log_posterior(self, flat=True)(position, batch)

    def computed(self, params: PyTree, key: jax.Array, rows: PyTree) -> list:
        """The values of all functions of the model but its density; their JAX program identifies the model.

        Args:
            rows: (y, given) of a few rows, with a leading axis; None without data.
        """
        values = [self.example(key), self.constrain(self.unconstrain(params))]
        given = {"start": key, "derived": params} | ({"sample_prior": key} if self.drawable else {})
        values += [getattr(self, name)(value) for name, value in given.items() if getattr(self, name) is not None]
        if rows is None or self.likelihood is None:
            return values
        y, x = jax.tree.map(lambda a: a[0], rows)
        if self.local is not None:
            own: Any = self.given(params)
            return [*values, prior_centre(own), own.computed(own.example(key), key, (y, x.given))]
        if self.through is not None:
            values.append(self.through.predictor(params, x))
        distributions = self.datum(params, x)
        leaves = jax.tree.leaves(distributions, is_leaf=is_distribution)
        return [*values, *(_properties(d, key, value) for d, value in zip(leaves, jax.tree.leaves(y), strict=True))]

    def log_likelihoods(self, params: PyTree, rows: Data | PyTree) -> jax.Array:
        """log p(y_n | x_n, θ) of each row, (n,), or of each group if the data have groups.

        Args:
            params: θ, shaped like the prior.
            rows: Data, or (y, given), or arrays of y alone.
        """
        pair, _ = split_weights(arrays_for(rows))
        if self.sums is not None:
            return self.sums.log_prob(params, pair[0] if pair[1] is None else pair)

        def one(row: tuple[PyTree, PyTree]) -> jax.Array:
            y, x = row
            terms = jax.tree.map(lambda d, value: d.log_prob(value), self.datum(params, x), y, is_leaf=is_distribution)
            return tree.total(terms)

        return jax.vmap(one)(pair)


# By form (``_form``), the first living model of that form, for which the programs of all such models are compiled.
_of_form: weakref.WeakValueDictionary[Hashable, Model] = weakref.WeakValueDictionary()


def _form(model: Model) -> Hashable:
    """A key that is equal for two models with ``shared=True`` if they differ only in numbers and share functions."""
    leaves, structure = jax.tree.flatten(_numeric_fields(model))
    functions = [id(leaf) for leaf in leaves if not isinstance(leaf, NUMBERS)]
    places = [isinstance(leaf, NUMBERS) for leaf in leaves]
    separate = ("prior", "likelihood", "start", "parts")
    others = [id(getattr(model, f.name)) for f in fields(model) if f.name not in separate]
    parts = tuple((name, part.split_arrays()[0]) for name, part in (model.parts or {}).items())
    return type(model), jnp.result_type(float), structure, *places, *functions, *others, parts


def _numeric_fields(model: Model) -> tuple:
    """The fields of a model whose numbers may be arguments of programs."""
    return model.prior, model.likelihood, model.start


def _properties(distribution: PyTree, key: jax.Array, value: ArrayLike) -> list:
    """A distribution, a draw, and its moments, entropy and cdf if they exist."""
    properties = [in_order(distribution)]
    for call in (
        lambda: distribution.sample(key), lambda: distribution.mean, lambda: distribution.variance,
        lambda: distribution.entropy(), lambda: distribution.cdf(value),
    ):  # fmt: skip
        with contextlib.suppress(Exception):  # no compiled program uses a property that does not exist
            properties.append(call())
    return properties
