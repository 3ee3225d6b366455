"""A model whose every datum has a cause of its own that is not seen.

    p(θ) ∏_n p(z_n | θ) p(x_n | z_n, θ)

With z summed out it is a ``Model`` like any other, so any method learns its θ; EM and its kin also look at z.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, constraints

from tractable.core import Model, is_distribution
from tractable.kernels.em import enumerated
from tractable.tools import tree
from tractable.tools.errors import ModelError

PyTree = Any
MOST_VALUES = 10_000  # of z that are summed over


_UNSEEN = {"begin", "examine", "first"}  # of a model's steps, by the compiler
_STEPS = (
    "latent", "conditional", "causes", "statistics", "e_step", "m_step", "log_prob", "responsibilities", "encode",
    "sampler", "begin", "examine", "shift", "canonical",
    "permute", "parameters",
)  # fmt: skip


class LatentModel(Model):
    """p(θ), p(z | θ) and p(x | z, θ) of one datum.

    Args:
        prior: of θ, as for ``Model``; a callable log density with ``position`` and ``support`` likewise.
        latent: ``latent(params)``, or ``latent(params, x)`` where the data have a ``given``: the distribution of one
            datum's z, or a pytree of them. Discrete ones are summed over exactly.
        likelihood: ``likelihood(params, z)`` or ``likelihood(params, z, x)``: of one datum given its z.
        causes: a pytree of arrays with a leading axis, the values of z; those of its support by default. Needed where
            ``latent`` looks at x.
        statistics: ``(datum, z) -> T``, what a closed-form M-step needs summed; datum is y, or (y, x).
        m_step: ``statistics -> params``, the maximum of Q (+ log p(θ)) in closed form. Without it EM climbs Q by its
            gradient.
        begin: ``(key, rows) -> params`` where EM begins, having seen data; by default a draw from the prior.
        examine: ``(params, size) -> [Check, ...]``, what a report should say of a maximum.
        position, support, start: as for ``Model``.

    A model whose z is summed or integrated out in closed form some other way (a chain, a normal code) is made by
    ``LatentModel.from_steps``.

    Attributes:
        e_step: ``(params, batch) -> Expected``, exact; None where z cannot be summed out.
        m_step: ``statistics -> params``, or None.
        log_prob: ``(params, rows) -> (n,)``, log p(x_n | θ) in nats; None where z cannot be summed out.
        responsibilities: ``(params, rows) -> (n, m)``, p(z | x_n, θ); None where there are none.

    Raises:
        ModelError: a prior or a z that is not made of distributions; too many values of z.

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

    latent: Any
    conditional: Any
    causes: PyTree
    statistics: Any
    e_step: Any
    m_step: Any
    log_prob: Any
    responsibilities: Any
    encode: Any
    sampler: Any
    begin: Any
    examine: Any
    shift: Any
    canonical: Any
    permute: Any
    parameters: int | None
    steps: ClassVar[tuple[str, ...]] = _STEPS
    compiled_as: "LatentModel | None" = None  # the model whose compiled programs serve this one too

    def __init__(
        self,
        prior: Any,
        latent: Callable,
        likelihood: Callable,
        *,
        causes: PyTree = None,
        statistics: Callable | None = None,
        m_step: Callable | None = None,
        begin: Callable | None = None,
        examine: Callable | None = None,
        position: Any = None,
        support: Any = None,
        start: Callable | None = None,
    ) -> None:
        super().__init__(prior, self._marginal, position, support, start)
        self._set(
            latent=latent, conditional=likelihood, statistics=statistics, m_step=m_step, begin=begin, examine=examine,
            e_step=None, log_prob=None, responsibilities=None, encode=None, sampler=None, shift=None,
            canonical=None, permute=None, parameters=None, causes=causes,
        )  # fmt: skip
        if (m_step is None) != (statistics is None):
            raise ModelError("statistics= and m_step= go together: one says what is summed, the other what it is for.")
        if causes is None:
            self._set(causes=self._support())
        if self.causes is not None:
            sums = enumerated(self.log_joint, self.causes, statistics)
            self._set(
                e_step=sums.e_step if m_step is not None else None,
                log_prob=sums.log_evidence,
                responsibilities=sums.responsibilities,
            )

    @classmethod
    def from_steps(
        cls,
        e_step: Callable | None,
        m_step: Callable | None,
        log_prob: Callable,
        position: PyTree,
        *,
        support: PyTree = None,
        prior: Any = None,
        responsibilities: Callable | None = None,
        encode: Callable | None = None,
        sample: Callable | None = None,
        begin: Callable | None = None,
        examine: Callable | None = None,
        shift: Callable | None = None,
        canonical: Callable | None = None,
        permute: Callable | None = None,
        parameters: int | None = None,
    ) -> "LatentModel":
        """A model whose z is dealt with in closed form.

        Args:
            e_step: ``(params, batch) -> Expected``, sums over rows weighted by ``batch.mask``.
            m_step: ``statistics -> params``, the maximum of Q (+ log p(θ)).
            log_prob: ``(params, rows) -> (n,)``, log p(x_n | θ) in nats; rows as ``kernels.em.observed`` has them.
            position: example parameters.
            support: pytree of numpyro constraints shaped like them; real by default.
            prior: log p(θ), ``params -> ()``, or a pytree of distributions; flat by default, of which the maximum is
                the likelihood's.
            responsibilities: ``(params, rows) -> (n, m)``.
            encode: ``(params, rows) -> ``means and covariance of a normal z.
            sample: ``(key, params, n) -> (x, z)``.
            shift: ``(params, offset) -> params`` of the same model of x + offset, where there is such: EM then looks at
                data about their mean, which keeps digits in single precision.
            canonical: ``params -> params``, the same density, its exchangeable components in a set order: one of
                many equal maxima is told.
            permute: ``(params, order (K,)) -> params``, exchangeable components in another order, for
                ``posterior.relabelled()``.
            parameters: how many free numbers θ has, where that is not the size of its space.
            Others as for ``LatentModel``.
        """
        self = cls.__new__(cls)
        Model.__init__(self, flat if prior is None else prior, self._marginal, position, support)
        self._set(
            latent=None, conditional=None, causes=None, statistics=None, e_step=e_step, m_step=m_step,
            log_prob=log_prob, responsibilities=responsibilities, encode=encode, sampler=sample, begin=begin,
            examine=examine, shift=shift, canonical=canonical, permute=permute, parameters=parameters,
        )  # fmt: skip
        return self

    def with_steps(self, **steps: Callable | None) -> "LatentModel":
        """The same model with another e_step, m_step, log_prob, responsibilities, encode, begin or examine."""
        made = type(self).__new__(type(self))
        Model.__init__(made, self.prior, made._marginal, self.position, self.support, self.start)
        kept = {name: value for name, value in vars(self).items() if name in self.steps}
        unknown = sorted(set(steps) - set(self.steps))
        if unknown:
            raise ModelError(f"LatentModel has no {', '.join(unknown)}; its steps are {', '.join(self.steps)}.")
        made._set(**(kept | steps), compiled_as=self._compiled() if set(steps) <= _UNSEEN else None)
        return made

    def __eq__(self, other: object) -> bool:
        """Models that differ only in where they begin and how they are judged are one to the compiler."""
        return isinstance(other, LatentModel) and self._compiled() is other._compiled()

    def __hash__(self) -> int:
        return object.__hash__(self._compiled())

    def _compiled(self) -> "LatentModel":
        return self.compiled_as or self

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        what = "closed form" if self.latent is None else "not summed out" if self.causes is None else "enumerated"
        return f"LatentModel({', '.join(self.names[:6])}{', …' * (len(self.names) > 6)}; z {what})"

    def factors(self, params: PyTree, z: PyTree, datum: PyTree) -> list[jax.Array]:
        """[log p(x | z, θ), log p(z | θ)] of one datum, nats; datum is y, or (y, x) where there are inputs."""
        y, x = datum if isinstance(datum, tuple) and len(datum) == 2 else (datum, None)
        if self.latent is None or self.conditional is None:
            raise ModelError("This model's z is dealt with in closed form; it has no factors.")
        inputs = () if x is None else (x,)
        observed = _log_prob(self.conditional(params, z, *inputs), y)
        return [observed, _log_prob(self.latent(params, *inputs), z)]

    def discrete_causes(self, params: PyTree, x: PyTree = None) -> list[str] | None:
        """What of one datum's z is discrete, so that no small step moves it; None where z is not drawn at all."""
        if self.latent is None:
            return None
        parts = jax.tree.leaves(self.latent(params) if x is None else self.latent(params, x), is_leaf=is_distribution)
        return [type(part).__name__ for part in parts if part.support.is_discrete]

    def log_joint(self, params: PyTree, datum: PyTree, z: PyTree) -> jax.Array:
        """log p(x, z | θ) of one datum, nats."""
        return tree.total(self.factors(params, z, datum))

    def sample(self, key: jax.Array, params: PyTree, n: int, given: PyTree = None) -> tuple[PyTree, PyTree]:
        """n data and their causes, (x, z), each with a leading axis of n: first z ~ p(z | θ), then x ~ p(x | z, θ).

        Args:
            given: rows of inputs, n of them, where the model looks at them.
        """
        if self.sampler is not None:
            return self.sampler(key, params, n)
        if self.latent is None or self.conditional is None:
            raise ModelError("This model was made of steps, without sample=.")
        latent, conditional = self.latent, self.conditional

        def one(key: jax.Array, x: PyTree) -> tuple[PyTree, PyTree]:
            inputs = () if x is None else (x,)
            above, below = jax.random.split(key)
            z = _sample(latent(params, *inputs), above)
            return _sample(conditional(params, z, *inputs), below), z

        return jax.vmap(one)(jax.random.split(key, n), given)

    def log_likelihoods(self, params: PyTree, rows: tuple[PyTree, PyTree]) -> jax.Array:
        """log p(x_n | θ) of every row, z summed out, (n,)."""
        return self.summed_out(params, rows[0] if rows[1] is None else rows)

    def summed_out(self, params: PyTree, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), or a sentence where z cannot be summed out."""
        if self.log_prob is None:
            raise ModelError(
                "z is continuous, and cannot be summed out: MonteCarloEM draws it; tr.log_evidence estimates p(x | θ). "
                "Or give LatentModel.from_steps a closed form of log p(x | θ)."
            )
        return self.log_prob(params, rows)

    def described(self, params: PyTree, x: PyTree = None) -> PyTree:
        """What rows are checked against: p(x | z, θ) at one value of z."""
        if self.conditional is None:
            return super().described(params, x)
        inputs = () if x is None else (x,)
        return self.conditional(params, self._one_cause(params, inputs), *inputs)

    def traced(self, position: jax.Array, batch: Any) -> jax.Array:
        """What tells this model from others, where z cannot be summed out: the joint density at one z."""
        if self.log_prob is not None or batch is None:
            return super().traced(position, batch)
        params, (y, x) = self.constrain(self.space.unravel(position)), jax.tree.map(lambda a: a[0], batch.data)
        z = self._one_cause(params, () if x is None else (x,))
        return self.log_prior(params) + self.log_joint(params, y if x is None else (y, x), z)

    def _one_cause(self, params: PyTree, inputs: tuple) -> PyTree:
        if self.causes is not None:
            return jax.tree.map(lambda v: v[0], self.causes)
        return _sample(self.latent(params, *inputs), jax.random.key(0))

    def _marginal(self, params: PyTree, x: PyTree = None) -> "Marginal":
        return Marginal(self, params, x)

    def _support(self) -> PyTree:
        """Every value of z, leading axis m; None where z is continuous or infinitely many."""
        try:
            found = self.latent(self.example(jax.random.key(0)))
        except TypeError as error:
            raise ModelError(
                f"latent(params) could not be called: {error}. Where it looks at inputs, give causes=, those of z."
            ) from error
        leaves, structure = jax.tree.flatten(found, is_leaf=is_distribution)
        for leaf in leaves:
            if not is_distribution(leaf):
                raise ModelError(f"latent(params) should return the distribution of z; got {type(leaf).__name__}.")
        if not leaves or not all(d.support.is_discrete and d.has_enumerate_support for d in leaves):
            return None
        each = [np.asarray(_values(d)) for d in leaves]
        count = int(np.prod([len(v) for v in each]))
        if count > MOST_VALUES:
            raise ModelError(
                f"z takes {count} values; at most {MOST_VALUES} are summed over. Sum part of it out by hand."
            )
        index = np.indices([len(v) for v in each]).reshape(len(each), -1)
        return jax.tree.unflatten(structure, [jnp.asarray(v[i]) for v, i in zip(each, index, strict=True)])


class Marginal(Distribution):
    """p(x | θ) of one datum, its z summed out."""

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
        drawn = self.model.sample(key, self.params, count, given)[0]
        return jax.tree.map(lambda a: a.reshape(*sample_shape, *a.shape[1:]), drawn)

    def _mixed(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """p(z), and mean and variance of x given each z."""
        model: Any = self.model
        if model.conditional is None or model.causes is None:
            raise NotImplementedError
        inputs = () if self.x is None else (self.x,)

        def one(z: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
            given = model.conditional(self.params, z, *inputs)
            if not is_distribution(given):
                raise NotImplementedError
            return _log_prob(model.latent(self.params, *inputs), z), given.mean, given.variance

        log_shares, means, variances = jax.vmap(one)(model.causes)
        return jax.nn.softmax(log_shares), means, variances

    @property
    def mean(self) -> jax.Array:
        shares, means, _ = self._mixed()
        return jnp.tensordot(shares, means, 1)

    @property
    def variance(self) -> jax.Array:
        shares, means, variances = self._mixed()
        return jnp.tensordot(shares, variances + jnp.square(means - jnp.tensordot(shares, means, 1)[None]), 1)


def flat(params: PyTree) -> jax.Array:
    """log p(θ) = 0: no preference, and no density either."""
    return jnp.zeros((), jnp.result_type(float, *jax.tree.leaves(params)))


def _log_prob(distributions: PyTree, value: PyTree) -> jax.Array:
    return tree.total(jax.tree.map(lambda d, v: d.log_prob(v), distributions, value, is_leaf=is_distribution))


def _sample(distributions: PyTree, key: jax.Array) -> PyTree:
    leaves, structure = jax.tree.flatten(distributions, is_leaf=is_distribution)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [d.sample(k) for d, k in zip(leaves, keys, strict=True)])


def _values(d: Any) -> Any:
    """Of a scalar distribution its values; of a vector of independent ones all combinations."""
    if d.batch_shape or d.event_shape:
        raise ModelError(
            f"z's {type(d).__name__} has shape {d.shape()}: give causes=, or a pytree of scalar distributions."
        )
    return d.enumerate_support(expand=False)


def _event_shape(model: LatentModel, params: PyTree, x: PyTree) -> tuple[int, ...]:
    """The shape of one datum, where it can be found out: a wrong one is refused before anything runs."""
    if model.sampler is None:
        return ()
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        drawn = jax.eval_shape(lambda k, p: model.sampler(k, p, 1)[0], key, params)
    except TypeError:
        return ()
    return drawn.shape[1:]
