"""The prior of a pytree of parameters, and the flat unconstrained space in which methods work."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import ExpTransform, IdentityTransform, IndependentTransform, Transform

from tractable.core import tree
from tractable.core.bits import CachedProperty
from tractable.core.errors import DataError, ModelError
from tractable.core.priors import is_distribution, is_improper, sample_of
from tractable.core.tree import PyTree
from tractable.core.words import listing

# For each bijection of single numbers, NumPy's function and its inverse, which need no compiled program.
NUMPY: dict[type, tuple[Callable, Callable]] = {IdentityTransform: (np.array, np.array), ExpTransform: (np.exp, np.log)}


class Space(NamedTuple):
    """The space of a model's parameters as one flat vector of unconstrained reals."""

    size: int  # d
    shapes: PyTree  # of the unconstrained parameters
    ravel: Callable[[PyTree], jax.Array]
    unravel: Callable[[jax.Array], PyTree]

    @property
    def names(self) -> list[str]:
        """Names of the d unconstrained numbers."""
        return tree.names(self.shapes)


def _base_transform(bijection: Transform) -> Transform:
    """The bijection of a single number."""
    while isinstance(bijection, IndependentTransform):
        bijection = bijection.base_transform
    return bijection


class Prior:
    """The part of a ``Model`` that needs no data; ``Model`` describes the attributes."""

    prior: Any
    likelihood: Callable | None
    position: Any
    support: Any
    start: Callable[[jax.Array], Any] | None
    labels: Mapping[str, Sequence[str]] | None

    def log_likelihoods(self, params: PyTree, rows: PyTree) -> jax.Array:
        """log p(y_n | x_n, θ) of each row, (n,), which ``Model`` computes."""
        raise ModelError("A prior has no likelihood: expected a Model.")

    @property
    def prior_is_callable(self) -> bool:
        """Whether the prior is a log density in place of distributions."""
        return callable(self.prior) and not is_distribution(self.prior)

    @property
    def drawable(self) -> bool:
        """Whether ``sample_prior`` can draw from the prior."""
        if self.prior_is_callable:
            return hasattr(self.prior, "sample")
        return not any(map(is_improper, jax.tree.leaves(self.prior, is_leaf=is_distribution)))

    @CachedProperty
    def bijectors(self) -> list:
        """The bijection from the reals to the support of each parameter, in the order of the leaves."""
        if not self.prior_is_callable:
            traced = any(isinstance(a, Tracer) for a in jax.tree.leaves(self.prior))
            # ``biject_to`` computes with bounds that are arrays. During a trace, JAX would tie the result to the trace.
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
        """For each leaf, whether its support is all reals: the parameter then equals its unconstrained value."""

        return [type(_base_transform(b)) is IdentityTransform for b in self.bijectors]

    @property
    def numpy_bijections(self) -> list[tuple[Callable, Callable]] | None:
        """NumPy's bijection of each leaf, and its inverse; None if NumPy lacks one."""
        found = [NUMPY.get(type(_base_transform(b))) for b in self.bijectors]
        return [each for each in found if each] if all(found) else None

    @property
    def real(self) -> np.ndarray:
        """For each of the d unconstrained numbers, whether its parameter is ``unbounded``, (d,)."""
        sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.space.shapes)]
        return np.repeat(self.unbounded, sizes)

    @CachedProperty
    def space(self) -> Space:
        """The flat unconstrained space in which methods work."""
        shapes = jax.eval_shape(lambda key: self.unconstrain(self.example(key)), jax.random.key(0))
        ravel, unravel = tree.raveller(shapes)
        return Space(tree.size(shapes), shapes, ravel, unravel)

    def example(self, key: jax.Array) -> PyTree:
        """Parameters of the right shapes: a draw from the prior, or ``position`` if the prior is a callable."""
        if self.prior_is_callable:
            return jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), self.position)
        return self.sample_prior(key)

    def sample_prior(self, key: jax.Array) -> PyTree:
        """One draw of the parameters from the prior."""
        if self.prior_is_callable:
            return self.prior.sample(key)
        if not self.drawable:
            raise ModelError(
                "A prior that is ImproperUniform cannot be drawn from, so no run can begin. Give a wide proper prior, "
                "such as Normal(0.0, 100.0), or make the model by Model.from_log_density."
            )
        return sample_of(self.prior, key)

    def constrain(self, unconstrained: PyTree) -> PyTree:
        """Map unconstrained values to the user's parameters."""
        return self._biject(lambda b, u: b(u), unconstrained)

    def unconstrain(self, params: PyTree) -> PyTree:
        """Map the user's parameters to unconstrained values."""
        return self._biject(lambda b, p: b.inv(p), params)

    def params(self, position: jax.Array) -> PyTree:
        """The user's parameters at a flat unconstrained position (d,)."""
        return self.constrain(self.space.unravel(position))

    def position_of(self, params: PyTree) -> jax.Array:
        """The flat unconstrained position (d,) of the user's parameters."""
        return self.space.ravel(self.unconstrain(params))

    def _biject(self, function: Callable, *trees: PyTree) -> PyTree:
        leaves = [jax.tree.leaves(t) for t in trees]
        return jax.tree.unflatten(
            jax.tree.structure(trees[0]), [function(*each) for each in zip(self.bijectors, *leaves, strict=True)]
        )

    def values(self, position: jax.Array) -> jax.Array:
        """The user's parameters at a flat unconstrained position (d,), as one vector (k,)."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(self.params(position))])

    @functools.cached_property
    def names(self) -> list[str]:
        """One name for each of the k numbers of the user's parameters."""
        return tree.names(jax.eval_shape(self.example, jax.random.key(0)), self.labels)

    @CachedProperty
    def fixed(self) -> np.ndarray:
        """Which of the k numbers are constant on their support, such as the diagonal of a correlation matrix, (k,)."""
        if len(self.names) == self.space.size:
            return np.zeros(len(self.names), bool)
        places = jnp.asarray(np.random.default_rng(0).standard_normal((3, self.space.size)))
        values = np.asarray(jax.jit(jax.vmap(self.values))(places))
        return np.ptp(values, axis=0) <= 10 * np.finfo(values.dtype).eps * np.abs(values).max(0)

    def log_jacobian(self, unconstrained: PyTree, params: PyTree) -> jax.Array:
        """log |∂params/∂unconstrained|, the sum over all parameters."""
        return tree.total(self._jacobians(unconstrained, params))

    def _jacobians(self, unconstrained: PyTree, params: PyTree) -> PyTree:
        return self._biject(lambda b, u, p: jnp.sum(b.log_abs_det_jacobian(u, p)), unconstrained, params)

    def log_prior(self, params: PyTree) -> jax.Array:
        """log p(θ) of the user's parameters, a scalar."""
        if self.prior_is_callable:
            return self.prior(params)
        return tree.total(self._log_priors(params))

    def _log_priors(self, params: PyTree) -> PyTree:
        if isinstance(self.prior, dict) and (not isinstance(params, dict) or {*params} != {*self.prior}):
            got = f"a dict of {listing(params)}" if isinstance(params, dict) else type(params).__name__
            raise DataError(f"θ should be a dict of the parameters {listing(self.prior)}; got {got}.")
        return jax.tree.map(lambda d, p: jnp.sum(d.log_prob(p)), self.prior, params, is_leaf=is_distribution)

    def log_priors(self, params: PyTree, unconstrained: PyTree) -> list[jax.Array]:
        """For each leaf θ_i, which has a prior of its own, log p(θ_i) plus the log-determinant of its bijection."""
        jacobians, terms = self._jacobians(unconstrained, params), self._log_priors(params)
        return [a + b for a, b in zip(jax.tree.leaves(terms), jax.tree.leaves(jacobians), strict=True)]
