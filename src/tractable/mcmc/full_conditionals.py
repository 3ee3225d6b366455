"""Finds the blocks of a model's unknowns whose full conditional can be drawn from exactly.

The unknowns are the parameters θ and, in a latent-variable model, a z for each row. A conditional's family is found by
derivatives, and tested at several places before it is used.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from tractable.core import tree
from tractable.core.errors import ModelError
from tractable.core.latent import latent_model
from tractable.core.model import Data, Model, PyTree, counted_log_likelihoods, whole
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.latent.conjugate_variational import conjugate_model
from tractable.mcmc import conditionals
from tractable.mcmc.conditionals import FAMILIES, MOST, Family
from tractable.mcmc.gibbs import State, Target, gather_leaves, miss

PLACES = 8  # number of random values of all unknowns at which a conditional is tested (docs/decisions/050)
# In unconstrained numbers, the values differ from a centre by at most this. With a larger range there would be matrices
# whose eigenvalues differ too much for single precision.
SPREAD = 1.0
HIDDEN = "z"  # the name of the block of the rows' z


class Part(NamedTuple):
    """Some leaves of θ, a pytree, with the family of their joint full conditional; hashable.

    ``leaves`` are indices of leaves. ``kind`` is the family's name, "" if there is none. ``colours`` and ``pattern``
    are the arguments of ``conditionals.normal``.
    """

    leaves: tuple[int, ...]
    kind: str
    colours: tuple[int, ...] = ()
    pattern: bytes = b""

    @property
    def family(self) -> Family:
        """The family with the name ``kind``."""
        return conditionals.normal(self.colours, self.pattern) if self.kind == "normal" else FAMILIES[self.kind]

    @property
    def gradients(self) -> int:
        """The gradient evaluations that finding the conditional costs."""
        return 2 + (max(self.colours) if self.colours else 0)


def leaf_names(model: Model) -> list[str]:
    """The names of the parameters, in the order of the leaves of θ."""
    shapes = jax.eval_shape(model.example, jax.random.key(0))
    return [tree.path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]


def hides(model: Model) -> bool:
    """Whether rows have a z that can be drawn.

    Raises:
        ModelError: rows have a continuous z, which cannot be drawn.
    """
    latent = latent_model(model)
    if latent is None:
        return False
    if latent.sums is None:
        raise ModelError(
            "Gibbs expects a z of few values for each row; got a model whose z is continuous. Use MonteCarloEM, or "
            "write z as a parameter with an entry for each row."
        )
    return latent.sums.drawn is not None and latent.sums.complete is not None


def target_of(model: Model, rows: PyTree) -> Target:
    """The target of Gibbs blocks for a model and its rows (``Data.arrays()``).

    If rows have a z that is not drawn, it is summed or integrated out.
    """
    latent = latent_model(model)
    shapes = jax.eval_shape(model.example, jax.random.key(0))
    structure, leaves = jax.tree.structure(shapes), jax.tree.leaves(model.space.shapes)
    ends = np.cumsum([0, *(int(np.prod(leaf.shape)) for leaf in leaves)]).tolist()
    drawn, complete = (None, None) if latent is None or latent.sums is None else latent.sums[5:7]
    observed = rows[0] if latent is not None and rows[1] is None else rows

    def params(position: jax.Array) -> list:
        return jax.tree.leaves(model.params(position))

    def summed_out(theta: list) -> jax.Array:
        params = jax.tree.unflatten(structure, theta)
        prior = model.log_prior(params)
        if rows is None or model.likelihood is None:
            return prior[None]
        return jnp.append(counted_log_likelihoods(model, params, rows), prior)

    def terms(theta: list, z: PyTree) -> jax.Array:
        if complete is None:
            return summed_out(theta)
        params = jax.tree.unflatten(structure, theta)
        return jnp.append(complete(params, observed, z), model.log_prior(params))

    def jacobian(position: jax.Array) -> jax.Array:
        unconstrained = model.space.unravel(position)
        return model.log_jacobian(unconstrained, model.constrain(unconstrained))

    def hidden(key: jax.Array, theta: list) -> PyTree:
        return () if drawn is None else drawn(key, jax.tree.unflatten(structure, theta), observed)

    return Target(
        params, lambda i, leaf: model.bijectors[i].inv(leaf).ravel(), tuple(pairwise(ends)),
        terms, summed_out, jacobian, hidden,
    )  # fmt: skip


def all_given(model: Model, rows: PyTree) -> tuple[Callable, Callable] | None:
    """The functions ``position(θ)`` and ``(key, z) -> θ`` of a model all of whose θ can be drawn at once, given z.

    None for other models.
    """
    conjugate = conjugate_model(model)
    given = None if conjugate is None else conjugate.conjugate.given
    if given is None:
        return None
    return model.position_of, lambda key, z: given(key, whole(rows), z)


def find_parts(model: Model, data: Data | None, groups: Sequence[Sequence[int]], seed: int = 0) -> list[Part]:
    """Divide the leaves of θ into parts with a known full conditional.

    Leaves of a group that are jointly normal form one part. Every other leaf is a part by itself, with ``kind`` "" if
    it has none of the families. Each family is tested at ``PLACES`` random values of all unknowns, z included: the
    conditional that derivatives find is compared with the log joint density at a draw from it (``mcmc.gibbs.miss``).
    """
    shapes = jax.tree.leaves(jax.eval_shape(model.example, jax.random.key(0)))
    leaves = [i for group in groups for i in group]
    possible = {i: conditionals.candidates(_support(model, i), shapes[i].size) for i in leaves}
    guesses = [Part((i,), kind) for i in leaves for kind in possible[i]]
    reals = [tuple(i for i in group if possible[i] == ["normal"]) for group in groups]
    guesses += [Part(real, "normal") for real in reals if len(real) > 1 and sum(shapes[i].size for i in real) <= MOST]
    rows = None if data is None else data.arrays()
    positions, keys = places(model, seed)
    good = fitting_parts(model, guesses, rows, keys, positions)
    single = {part.leaves[0]: part for part in reversed(good) if len(part.leaves) == 1}
    # If not all real-valued leaves of a group are normal, those that are may still be jointly normal.
    normals = [tuple(i for i in real if i in single) for real in reals]
    subsets = [Part(few, "normal") for few, real in zip(normals, reals, strict=True) if 1 < len(few) < len(real)]
    joint = [part for part in good + fitting_parts(model, subsets, rows, keys, positions) if len(part.leaves) > 1]
    taken = {i for part in joint for i in part.leaves}
    rest = [single.get(i, Part((i,), "")) for i in leaves if i not in taken]
    return sorted(joint + rest, key=lambda part: leaves.index(part.leaves[0]))


def places(model: Model, seed: int) -> tuple[jax.Array, jax.Array]:
    """The unconstrained positions at which conditionals are tested, and a key for each."""
    generator = np.random.default_rng(seed)
    centre = model.position_of(model.example(jax.random.key(0))) if model.prior_is_callable else 0.0
    offsets = generator.uniform(-SPREAD, SPREAD, (PLACES, model.space.size))
    return jnp.asarray(centre + offsets, jnp.result_type(float)), jax.random.split(jax.random.key(seed), PLACES)


def fitting_parts(model: Model, parts: list[Part], rows: PyTree, keys: jax.Array, positions: jax.Array) -> list[Part]:
    """The parts whose conditionals are of their families at all positions.

    Normal parts get the pattern of their precision.
    """
    if not parts:
        return []
    dense_parts = tuple(_dense(part, model) for part in parts)
    misses, precisions = misses_of(model, dense_parts, rows, keys, positions, curved=True)
    out, misses = [], np.asarray(misses)
    for part, misses_of_part, precision in zip(parts, misses.T, precisions, strict=True):
        if np.all(misses_of_part <= 1):
            sparse = conditionals.covariance_arguments(np.asarray(precision)) if part.kind == "normal" else ((), b"")
            out.append(Part(part.leaves, part.kind, *sparse))
    return out


def _dense(part: Part, model: Model) -> Part:
    """The part with a dense pattern if its family is normal, since its pattern is not known yet."""
    if part.kind != "normal":
        return part
    shapes = jax.tree.leaves(jax.eval_shape(model.example, jax.random.key(0)))
    size = sum(int(shapes[i].size) for i in part.leaves)
    return Part(part.leaves, part.kind, tuple(range(size)), b"\1" * size**2)


@compiled("model", "parts", "curved", if_few=COMPILE_FASTEST)
def misses_of(
    model: Model, parts: tuple[Part, ...], rows: PyTree, keys: jax.Array, positions: jax.Array, curved: bool = False
) -> tuple[jax.Array, list]:
    """(s, part) the ``mcmc.gibbs.miss`` of every part at every position; with ``curved`` also Hessians of normals.

    The Hessians are arrays (s, m, m), one for each part.
    """
    target = target_of(model, rows)

    def one(now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, list]:
        key, position = now
        theta = target.params(position)
        state = State(position, target.hidden(key, theta))
        misses, hessians = [], []
        for b, part in enumerate(parts):
            family = part.family
            misses.append(miss(target, family, part.leaves, jax.random.fold_in(key, b), state))
            x, put = gather_leaves(theta, part.leaves, family.flat)

            def log_joint(x: jax.Array, put: Callable = put) -> jax.Array:
                return jnp.sum(target.terms(put(x), state.hidden))

            hessians.append(jax.hessian(log_joint)(x) if curved and part.kind == "normal" else ())
        return jnp.stack(misses), hessians

    return jax.lax.map(one, (keys, positions))


def _support(model: Model, i: int) -> Any:
    """The support of the i-th leaf of θ."""
    if not model.prior_is_callable:
        return jax.tree.leaves(model.prior, is_leaf=lambda d: hasattr(d, "support"))[i].support
    if model.support is None:
        return constraints.real
    return jax.tree.leaves(model.support, is_leaf=lambda c: hasattr(c, "is_discrete"))[i]
