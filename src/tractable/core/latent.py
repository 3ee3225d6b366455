"""Latent-variable models: each datum has its own hidden cause z."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from tractable.core import tree
from tractable.core.batches import whole
from tractable.core.causes import list_values, log_prob_of, values_of
from tractable.core.check import Check
from tractable.core.errors import ModelError
from tractable.core.model import Batch, Data, Model, PyTree, function_or_none, is_distribution, sample_of
from tractable.core.sums import EStep, MStep, OfRows, Sums, enumerated
from tractable.core.words import nearest

Self = TypeVar("Self", bound="LatentModel")


# Members of ``Steps`` and ``own`` that no compiled program uses.
_NOT_COMPILED = {"begin", "examine", "first", "check", "observations", "ahead"}


class Climbed(NamedTuple):
    """A reparametrised model on which EM works in place of the original, as its rounding errors are smaller in float32.

    Attributes:
        model: a ``LatentModel`` with the same unconstrained numbers.
        into, back: ``theta -> theta``, from the original model's θ to this model's θ and back, on the host in float64;
            leading axes are allowed.
    """

    model: Any
    into: Callable[[PyTree], PyTree]
    back: Callable[[PyTree], PyTree]


class Steps(NamedTuple):
    """A model's functions for EM and for checks; each may be None.

    Attributes:
        m_step: ``statistics -> params``, the maximum of Q (+ log p(θ)), where Q is EM's expected log p(x, z | θ).
        statistics: ``(datum, z) -> T``, the statistics whose sum the M-step needs; datum is y, or (y, x).
        begin: ``(key, rows) -> params``, a starting point.
        examine: ``(params, size) -> [Check, ...]``, checks of a maximum found from ``size`` rows.
        climbed: a ``Climbed``, the model on which EM works in place of this one.
        check: ``rows -> None``, raises a DataError for impossible rows; the rows are on the host.
        observations: ``rows -> int``, the number of observations if a datum holds several; the rows are on the host.
        ahead: ``(params, x, (y, given)) -> `` the distribution of the data that follow the fitted rows, for
            ``posterior.predict(x)``; the distribution has a mean, a variance and ``sample(key, shape)``.
    """

    m_step: MStep | None = None
    statistics: Callable[[PyTree, PyTree], PyTree] | None = None
    begin: Callable[[jax.Array, PyTree], PyTree] | None = None
    examine: Callable[[PyTree, int], list[Check]] | None = None
    climbed: Climbed | None = None
    check: Callable[[PyTree], None] | None = None
    observations: Callable[[PyTree], int] | None = None
    ahead: Callable[[PyTree, Any, PyTree], Any] | None = None


class Symmetry(NamedTuple):
    """Transformations of θ that give an equal model, and θ's number of free parameters; each may be None.

    Attributes:
        shift: ``(params, offset) -> params``, θ of the same model for x + offset. EM then centres the data, which
            makes rounding errors in single precision smaller.
        canonical: ``params -> params``, the θ to report among equal maxima.
        permute: ``(params, order (K,)) -> params``, θ with its components in another order, for
            ``posterior.relabelled()``.
        parameters: number of free parameters of θ, if it differs from the size of θ's space.
    """

    shift: Callable[[PyTree, Any], PyTree] | None = None
    canonical: Callable[[PyTree], PyTree] | None = None
    permute: Callable[[PyTree, jax.Array], PyTree] | None = None
    parameters: int | None = None


def _member(group: str, name: str) -> Any:
    """A property that returns the member ``name`` of a model's ``sums`` or ``steps``, or None if there is none."""
    return property(lambda model: getattr(getattr(model, group), name, None))


def _call(function: Callable | None, *arguments: PyTree) -> Any:
    """The function's value; None without a function."""
    return None if function is None else function(*arguments)


class LatentModel(Model):
    """A prior p(θ), and p(z | θ) and p(x | z, θ) of one datum; any method fits θ, with z summed out.

    Args:
        prior: the prior of θ, as for ``Model``; also a callable log density with ``position`` and ``support``.
        latent: ``latent(params)``, or ``latent(params, x)`` if the data have a ``given``: the distribution of one
            datum's z, or a pytree of distributions. Discrete z are summed over exactly.
        likelihood: ``likelihood(params, z)`` or ``likelihood(params, z, x)``: the distribution of a datum given its z.
        causes: the values of z, a pytree of arrays with a leading axis; by default the values of the support. Required
            if ``latent`` takes x.
        statistics, m_step, begin, examine: as in ``Steps``. Without an M-step EM maximises Q by its gradient. Without
            ``begin`` EM starts at a draw from the prior.
        position, support, start, derived: as for ``Model``.

    For a z that is summed or integrated out by functions of your own, such as a Markov chain or a normal z, use
    ``LatentModel.from_steps``.

    Attributes:
        sums: a ``core.sums.Sums``, how z is summed out; None if z cannot be summed out. Its members ``e_step``,
            ``log_prob``, ``responsibilities``, ``encode`` and ``causes`` are attributes of the model too, each possibly
            None.
        steps: ``Steps``; its ``m_step`` is an attribute of the model too.
        symmetry: ``Symmetry``.

    Raises:
        ModelError: the prior or z is not made of distributions, or z has too many values.

    >>> import numpyro.distributions as dist
    >>> coins = LatentModel(
    ...     prior={"fair": dist.Beta(1, 1), "bias": dist.Uniform(0, 1)},
    ...     latent=lambda p: dist.Bernoulli(p["fair"]),
    ...     likelihood=lambda p, z: dist.Binomial(10, jnp.where(z == 1, 0.5, p["bias"])),
    ... )
    >>> rows = jnp.array([5, 9])
    >>> coins.responsibilities({"fair": 0.5, "bias": 0.9}, rows)[:, 1].round(2).tolist()
    [0.99, 0.02]
    """

    own: ClassVar[tuple[str, ...]] = ()  # attributes that a subclass adds to sums, steps and symmetry
    origin: "LatentModel | None" = None  # a model that differs from this one only in starting points and checks
    latent: Callable[..., PyTree] | None = None  # None if z is handled in closed form
    conditional: Callable[..., PyTree] | None = None
    sampler: Callable[[jax.Array, PyTree, int], tuple[PyTree, PyTree]] | None = None
    sums: Sums | None = None
    steps = Steps()
    symmetry = Symmetry()

    def __init__(
        self, prior: PyTree, latent: Callable, likelihood: Callable, *, causes: PyTree = None,
        statistics: Callable | None = None, m_step: MStep | None = None, begin: Callable | None = None,
        examine: Callable | None = None, position: PyTree = None, support: PyTree = None,
        start: Callable | None = None, derived: Callable[[Any], dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        function_or_none("latent=", latent, "latent(params) or latent(params, x)")
        function_or_none("likelihood=", likelihood, "likelihood(params, z) or likelihood(params, z, x)")
        functions = {"statistics": statistics, "m_step": m_step, "begin": begin, "examine": examine}
        for name, function in functions.items():
            function_or_none(f"{name}=", function, f"{name}(…)")
        super().__init__(prior, self._marginal, position, support, start, derived)
        if (m_step is None) != (statistics is None):
            raise ModelError("statistics= and m_step= go together, as m_step takes sums of statistics: pass both.")
        self.latent, self.conditional = latent, likelihood
        self.steps = Steps(m_step, statistics, begin, examine)
        values = values_of(latent, self.example) if causes is None else list_values(causes)
        if values is not None:
            self.sums = enumerated(self.log_joint, values, statistics)

    @classmethod
    def from_steps(
        cls: type[Self], e_step: EStep | None, m_step: MStep | None, log_prob: OfRows, position: PyTree, *,
        support: PyTree = None, prior: PyTree = None, responsibilities: OfRows | None = None,
        encode: Callable | None = None, sample: Callable | None = None, begin: Callable | None = None,
        examine: Callable | None = None, shift: Callable | None = None, canonical: Callable | None = None,
        permute: Callable | None = None, parameters: int | None = None, drawn: Callable | None = None,
        complete: Callable | None = None,
    ) -> Self:  # fmt: skip
        """A model whose z is summed or integrated out by functions of your own.

        Args:
            e_step, log_prob, responsibilities, encode, drawn, complete: as in ``core.sums.Sums``; they take rows as
                ``core.sums.observed`` returns them.
            m_step, begin, examine: as in ``Steps``.
            position: example parameters.
            support: pytree of numpyro constraints shaped like the parameters; real by default.
            prior: log p(θ), ``params -> ()``, or a pytree of distributions; flat by default, for maximum likelihood.
            sample: ``(key, params, n) -> (x, z)``.
            shift, canonical, permute, parameters: as in ``Symmetry``.
        """
        self = cls.__new__(cls)
        Model.__init__(self, flat if prior is None else prior, self._marginal, position, support)
        self.sampler = sample
        self.sums = Sums(log_prob, e_step, responsibilities, encode, None, drawn, complete)
        self.steps = Steps(m_step, None, begin, examine)
        self.symmetry = Symmetry(shift, canonical, permute, parameters)
        return self

    def with_steps(self: Self, **changed: Any) -> Self:
        """The same model with the named members of ``sums``, ``steps`` or ``symmetry`` replaced."""
        groups = Sums, Steps, Symmetry
        known = [*(name for group in groups for name in group._fields), *self.own]
        if unknown := sorted(set(changed) - set(known)):
            near = nearest(unknown[0], known)
            raise ModelError(f"LatentModel has no {', '.join(unknown)}; its steps are {', '.join(known)}.{near}")
        of_sums, of_steps, of_symmetry = ({n: changed[n] for n in g._fields if n in changed} for g in groups)
        copy = type(self).__new__(type(self))
        vars(copy).update(vars(self) | {"representative": None})
        Model.__init__(copy, self.prior, copy._marginal, self.position, self.support, self.start, self.derived)
        if of_sums:
            copy.sums = Sums(**of_sums) if self.sums is None else self.sums._replace(**of_sums)
        if set(changed) & {*Sums._fields, "m_step"}:  # ``climbed`` was made from functions that are replaced here
            of_steps = {"climbed": None} | of_steps
        copy.steps, copy.symmetry = self.steps._replace(**of_steps), self.symmetry._replace(**of_symmetry)
        for name in set(self.own) & set(changed):
            setattr(copy, name, changed[name])
        copy.origin = (self.origin or self) if set(changed) <= _NOT_COMPILED else None
        return copy

    def split_arrays(self) -> tuple[Model, tuple]:
        """As ``Model.split_arrays``; models that differ only in starting points and checks share compiled programs."""
        return Model.split_arrays(self.origin or self)

    log_prob, e_step, responsibilities, encode, causes = (
        _member("sums", name) for name in ("log_prob", "e_step", "responsibilities", "encode", "causes")
    )
    m_step, ahead = _member("steps", "m_step"), _member("steps", "ahead")

    @property
    def halves(self) -> tuple[EStep, MStep] | None:
        """The E-step and the M-step if both have a closed form, else None."""
        return None if self.e_step is None or self.m_step is None else (self.e_step, self.m_step)

    @property
    def climbed(self) -> "LatentModel":
        """The model on which EM works: that of ``steps.climbed`` with this model's starts and checks, or this model."""
        if self.steps.climbed is None:
            return self
        (model, into, back), begin, examine = self.steps.climbed, self.steps.begin, self.steps.examine
        return _without_symmetry(model, self.symmetry.shift is None, self.symmetry.canonical is None).with_steps(
            begin=begin and (lambda key, rows: into(begin(key, rows))),
            examine=examine and (lambda params, size: examine(back(params), size)),
        )

    @property
    def parameters(self) -> int:
        """The number of free parameters of θ, for information criteria."""
        free = self.symmetry.parameters
        return self.space.size if free is None else free

    def shifted(self, params: PyTree, offset: ArrayLike) -> PyTree:
        """θ of the same model for x + offset."""
        if self.symmetry.shift is None:
            raise ModelError("This model has no shift: expected LatentModel.from_steps(..., shift=).")
        return self.symmetry.shift(params, offset)

    def observations(self, data: Data) -> int | None:
        """The number of observations in the rows if a datum may hold several, else None."""
        count = self.steps.observations
        return None if count is None else count(data.rows[0] if data.given is None else data.rows)

    def check_rows(self, data: Data) -> None:
        """Raise a DataError for impossible rows, if the model has such a check."""
        if self.steps.check is not None and data.size:
            self.steps.check(data.rows[0] if data.given is None else data.rows)

    def examine(self, params: PyTree, size: int) -> list[Check]:
        """Checks, for the report, of a maximum found from ``size`` rows."""
        return [] if self.steps.examine is None else self.steps.examine(params, size)

    def __repr__(self) -> str:
        sums = "closed form" if self.latent is None else "not summed out" if self.sums is None else "enumerated"
        return f"LatentModel({', '.join(self.names[:6])}{', …' * (len(self.names) > 6)}; z {sums})"

    def factors(self, params: PyTree, z: PyTree, datum: PyTree) -> list[jax.Array]:
        """[log p(x | z, θ), log p(z | θ)] of one datum, in nats; datum is y, or (y, x) with inputs."""
        y, x = datum if isinstance(datum, tuple) and len(datum) == 2 else (datum, None)
        latent, conditional = self.densities
        inputs = () if x is None else (x,)
        return [log_prob_of(conditional(params, z, *inputs), y), log_prob_of(latent(params, *inputs), z)]

    @property
    def densities(self) -> tuple[Callable[..., PyTree], Callable[..., PyTree]]:
        """The arguments ``latent`` and ``likelihood``; a ModelError if z is handled in closed form."""
        if self.latent is None or self.conditional is None:
            raise ModelError("This model handles z in closed form, so p(z | θ) and p(x | z, θ) cannot be evaluated.")
        return self.latent, self.conditional

    def discrete_causes(self, params: PyTree, x: PyTree = None) -> list[str] | None:
        """Types of the discrete distributions in z, by name; None if z is handled in closed form."""
        if self.latent is None:
            return None
        parts = jax.tree.leaves(self.latent(params) if x is None else self.latent(params, x), is_leaf=is_distribution)
        return [type(part).__name__ for part in parts if part.support.is_discrete]

    def log_joint(self, params: PyTree, datum: PyTree, z: PyTree) -> jax.Array:
        """log p(x, z | θ) of one datum, in nats."""
        return tree.total(self.factors(params, z, datum))

    def sample(self, key: jax.Array, params: PyTree, n: int, given: PyTree = None) -> tuple[PyTree, PyTree]:
        """Draw z ~ p(z | θ), then x ~ p(x | z, θ), n times; returns (x, z) with leading axis n.

        Args:
            given: n rows of inputs, if the model takes inputs.
        """
        if self.sampler is not None:
            return self.sampler(key, params, n)
        if self.latent is None:
            raise ModelError("This model cannot draw data: expected LatentModel.from_steps(..., sample=).")
        latent, conditional = self.densities

        def one(key: jax.Array, x: PyTree) -> tuple[PyTree, PyTree]:
            inputs = () if x is None else (x,)
            above, below = jax.random.split(key)
            z = sample_of(latent(params, *inputs), above)
            return sample_of(conditional(params, z, *inputs), below), z

        return jax.vmap(one)(jax.random.split(key, n), given)

    def summed_out(self, params: PyTree, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), (n,); a ModelError if z cannot be summed out."""
        if self.sums is None:
            raise ModelError(
                "z is continuous, and cannot be summed out. Fit θ with MonteCarloEM, which draws z, and estimate "
                "p(x | θ) with tr.log_evidence; or pass a closed form of log p(x | θ) to LatentModel.from_steps."
            )
        return self.sums.log_prob(params, rows)

    def described(self, params: PyTree, x: PyTree = None) -> PyTree:
        """The distribution against which rows are checked: p(x | z, θ) at one value of z."""
        if self.conditional is None:
            return super().described(params, x)
        inputs = () if x is None else (x,)
        return self.conditional(params, self._one_cause(params, inputs), *inputs)

    def traced(self, position: jax.Array, batch: Batch | None) -> jax.Array:
        """The density whose JAX program identifies the model: the joint density at one z if z cannot be summed out."""
        if self.sums is not None or batch is None:
            return super().traced(position, batch)
        params, (y, x) = self.params(position), jax.tree.map(lambda a: a[0], batch.data)
        z = self._one_cause(params, () if x is None else (x,))
        return self.log_prior(params) + self.log_joint(params, y if x is None else (y, x), z)

    def computed(self, params: PyTree, key: jax.Array, rows: PyTree) -> list:
        """As ``Model.computed``, with the functions of ``sums``, ``steps`` and ``symmetry``.

        Raises:
            NotImplementedError: EM works on another model, whose functions are not traced here.
        """
        if self.steps.climbed is not None:
            raise NotImplementedError
        values = super().computed(params, key, rows)
        if rows is None:
            return values
        sums, steps, symmetry = self.sums or Sums(self.summed_out), self.steps, self.symmetry
        first, given = jax.tree.map(lambda a: a[0], rows), jax.tree.map(lambda a: a[:1], rows[1])
        x, row, inputs = (rows[0], first[0], ()) if given is None else (rows, first, (first[1],))
        z = None if self.latent is None else sample_of(self.latent(params, *inputs), key)
        of_row = totals = _call(steps.statistics, row, z)
        if sums.e_step is not None:
            totals = sums.e_step(params, whole(rows)).statistics
        shares, z_draws = _call(sums.responsibilities, params, x), _call(sums.drawn, key, params, x)
        order = None if symmetry.permute is None else jnp.arange(shares.shape[-1])
        return [
            *values, z, of_row, totals, shares, z_draws, self.causes, symmetry.parameters,
            _call(self.latent, params, *inputs), _call(self.conditional, params, z, *inputs),
            self.sample(key, params, 1, given), _call(steps.m_step, totals),
            _call(sums.encode, params, x), _call(sums.complete, params, x, z_draws), _call(symmetry.canonical, params),
            _call(symmetry.shift, params, first[0]), _call(symmetry.permute, params, order),
        ]  # fmt: skip

    def _one_cause(self, params: PyTree, inputs: tuple) -> PyTree:
        if self.causes is not None:
            return jax.tree.map(lambda v: v[0], self.causes)
        return sample_of(self.densities[0](params, *inputs), jax.random.key(0))

    def _marginal(self, params: PyTree, x: PyTree = None) -> "Marginal":
        return Marginal(self, params, x)


class Marginal(Distribution):
    """p(x | θ) of one datum, with z summed out."""

    pytree_data_fields = ("params", "x")
    pytree_aux_fields = ("model",)

    def __init__(self, model: LatentModel, params: PyTree, x: PyTree = None) -> None:
        self.model, self.params, self.x = model, params, x
        super().__init__((), _event_shape(model, params, x), validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.real, len(self.event_shape))

    def log_prob(self, value: PyTree) -> jax.Array:
        one = jax.tree.map(lambda a: jnp.asarray(a)[None], value if self.x is None else (value, self.x))
        return self.model.summed_out(self.params, one)[0]

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> PyTree:
        count = int(np.prod(sample_shape))
        given = None if self.x is None else jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *a.shape)), self.x)
        draws = self.model.sample(key, self.params, count, given)[0]
        return jax.tree.map(lambda a: a.reshape(*sample_shape, *a.shape[1:]), draws)

    def _component_moments(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For each value of z, p(z | θ), and the mean and variance of x given z."""
        if self.model.latent is None or self.model.causes is None:
            raise NotImplementedError
        latent, conditional = self.model.densities
        inputs = () if self.x is None else (self.x,)

        def one(z: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
            given = conditional(self.params, z, *inputs)
            if not is_distribution(given):
                raise NotImplementedError
            return log_prob_of(latent(self.params, *inputs), z), given.mean, given.variance

        log_shares, means, variances = jax.vmap(one)(self.model.causes)
        return jax.nn.softmax(log_shares), means, variances

    @property
    def mean(self) -> jax.Array:
        shares, means, _ = self._component_moments()
        return jnp.tensordot(shares, means, 1)

    @property
    def variance(self) -> jax.Array:
        shares, means, variances = self._component_moments()
        return jnp.tensordot(shares, variances + jnp.square(means - jnp.tensordot(shares, means, 1)[None]), 1)


@functools.lru_cache(maxsize=128)  # so that a second run reuses the compiled programs
def _without_symmetry(model: LatentModel, drop_shift: bool, drop_canonical: bool) -> LatentModel:
    """The model without ``shift``, without ``canonical``, or without both."""
    return model.with_steps(**{"shift": None} if drop_shift else {}, **{"canonical": None} if drop_canonical else {})


def flat(params: PyTree) -> jax.Array:
    """log p(θ) = 0, an improper flat prior."""
    return jnp.zeros((), jnp.result_type(float, *jax.tree.leaves(params)))


def _event_shape(model: LatentModel, params: PyTree, x: PyTree) -> tuple[int, ...]:
    """The shape of a datum that the model's sampler draws; () without a sampler.

    Data of another shape are refused before a run starts.
    """
    sampler = model.sampler
    if sampler is None:
        return ()
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        datum = jax.eval_shape(lambda k, p: sampler(k, p, 1)[0], key, params)
    except TypeError:
        return ()
    return datum.shape[1:]


def latent_model(model: Model) -> LatentModel | None:
    """The model if it is a ``LatentModel``, else None."""
    return model if isinstance(model, LatentModel) else None
