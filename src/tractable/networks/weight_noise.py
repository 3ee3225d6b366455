"""Noise on the weights of a network that differs between the examples of a minibatch (docs/decisions/037).

For independent weights w ~ N(mean, sd²), the gradient of Σ_n E[ℓ_n(f(w, x_n))] over a minibatch is estimated from one
draw of the noise. The estimate's expectation depends only on the joint distribution of each single example's
activations, which all functions here keep exact. Its variance depends on the correlation between examples, which they
reduce. ``apply`` is traced once. A contraction is a matrix product or a convolution; when the trace is evaluated over
the batch, its contractions with weights are replaced.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, primitives

from tractable.core import tree
from tractable.core.tree import PyTree

CALLS = (primitives.jit_p, primitives.closed_call_p, primitives.remat_p)  # calls whose inner equations are inlined
RELABELS = (  # primitives that only rearrange or cast a weight
    primitives.transpose_p, primitives.reshape_p, primitives.squeeze_p, primitives.broadcast_in_dim_p,
    primitives.convert_element_type_p, primitives.copy_p,
)  # fmt: skip


class WeightNoise(NamedTuple):
    """A network with noise on its weights, over a minibatch; the noise is passed as a value.

    Attributes:
        draw: ``(key, count, size) -> Noise`` for ``count`` evaluations (the leading axis) on batches of ``size``
            examples.
        call: ``(noise, mean, sd, x) -> outputs`` with the noise of one evaluation; ``mean`` and ``sd`` (≥ 0) are
            pytrees like the parameters; every leaf of ``x`` and of the outputs has a leading axis of n examples.
            The function is deterministic; sd = 0 gives ``apply(mean, x_n)``, with finite gradients.
        transformed: names of the leaves whose noise differs between the examples.
        shared: names of the leaves whose noise the examples share, each with the reason.
    """

    draw: Callable
    call: Callable
    transformed: tuple[str, ...]
    shared: dict[str, str]


class Noise(NamedTuple):
    """The noise of a WeightNoise, by name of leaf; all normals are N(0, 1)."""

    batch: dict[str, jax.Array]  # normals that the examples share, shaped like the leaf
    example: dict[str, jax.Array]  # normals of each example, (n, …)
    signs: dict[str, tuple[jax.Array, jax.Array]]  # ±1, (n, …), for the inputs of a contraction and for its outputs


class _Leaf(NamedTuple):
    """How one leaf of the parameters is made random."""

    name: str
    like: jax.ShapeDtypeStruct
    way: str = "shared"  # or "own" (a draw for each example), "local", "flipout"
    why: str = ""  # the reason for "shared"
    output: Any = None  # for "local": ShapeDtypeStruct of the contraction's output
    signs: tuple = ()  # for "flipout": ShapeDtypeStructs of the signs for the contraction's activation and output


class _Random(NamedTuple):
    """A random weight before its contraction."""

    mean: jax.Array
    spread: jax.Array  # sd for "local"; sd × ε for "flipout"
    noise: Any  # ε of the outputs for "local"; signs for the activation and for the output for "flipout"


class _Use(NamedTuple):
    """An equation of the trace that a weight enters, at most transposed, reshaped or cast before."""

    eqn: JaxprEqn | None  # None if the weight is itself an output of the network
    position: int  # the weight's position among the equation's operands
    meets_data: bool  # whether another operand depends on the example


def shared_draw(apply: Callable, params: PyTree, x: PyTree) -> WeightNoise:
    """Use one draw of the weights for the whole batch: w = mean + sd ε, ε ~ N(0, I), output_n = apply(w, x_n).

    Part of the variance of a gradient over n examples then does not fall as 1/n (Blundell et al. 2015, section 3).

    Args:
        apply: ``(params, x) -> outputs`` for one example; any JAX function, any pytree of outputs.
        params: pytree of floating-point arrays, or their ShapeDtypeStructs.
        x: one example, or its ShapeDtypeStructs.
    """
    return _weight_noise(apply, params, x, lambda leaf, uses: leaf._replace(why="as asked"))


def local_reparameterisation(apply: Callable, params: PyTree, x: PyTree) -> WeightNoise:
    """Draw the products of activations and weights instead of the weights (Kingma, Salimans & Welling 2015, eq. 6).

        (x·W)_n = x_n·M + √(x_n²·S²) ε_n,   ε_n ~ N(0, I) of the output's shape

    This applies to a W that is used once, in a contraction over all axes of an activation: a dense layer. A weight that
    is added to an activation (a bias) is drawn for each example. All other weights share a draw over the batch, for the
    reason that ``shared`` gives. If a weight is applied at several positions of an example (rows of a (T, d) input, a
    convolution), or used twice, its products are correlated, and separate draws of the products would not be.

    An sd whose square underflows (below 1e-19 in float32) counts as 0. Calls under ``jax.jit`` and ``jax.checkpoint``
    are inlined, so ``jax.checkpoint`` saves no memory there. Scans and functions with custom derivatives are not
    inlined. The arguments are those of ``shared_draw``.

    >>> layer = lambda params, x: x @ params["w"] + params["b"]
    >>> params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
    >>> network = local_reparameterisation(layer, params, jnp.zeros(3))
    >>> network.transformed
    ('b', 'w')
    >>> noise = jax.tree.map(lambda a: a[0], network.draw(jax.random.key(0), 1, 5))
    >>> network.call(noise, params, params, jnp.zeros((5, 3))).shape
    (5, 2)
    """

    def contraction(leaf: _Leaf, eqn: JaxprEqn, position: int) -> _Leaf:
        if eqn.primitive is primitives.conv_general_dilated_p:
            return leaf._replace(why="is convolved, so the positions of an example share it")
        if _aval(eqn.invars[1 - position]).ndim > len(_axes(eqn, position)[0]):
            return leaf._replace(why="is applied at several positions of an example, which share it")
        output = _aval(eqn.outvars[0])
        return leaf._replace(way="local", output=jax.ShapeDtypeStruct(output.shape, output.dtype))

    return _weight_noise(apply, params, x, functools.partial(_by_use, contraction), _local)


def flipout(apply: Callable, params: PyTree, x: PyTree) -> WeightNoise:
    """Use one perturbation of the weights for the batch, with signs drawn for each example (Wen et al. 2018, eq. 4).

        (x·W)_n = x_n·M + ((x_n ∘ s_n)·ΔW) ∘ r_n,   ΔW = sd ε,   ε ~ N(0, I),   s_n, r_n uniform on ±1

    This applies to a W that is used once, in a contraction with an activation or as the filter of a convolution.
    ΔW ∘ s_n r_nᵀ has the distribution of ΔW for any s_n and r_n, and all positions of an example share these signs (in
    a convolution there is one sign per channel). So flipout is valid in cases where local reparameterisation is not. It
    costs a second product instead of a normal for each output. A weight that is added to an activation (a bias) is
    drawn for each example. All other weights share a draw, for the reason that ``shared`` gives. A layer's
    perturbations of two examples are uncorrelated but not independent, because they share ε. Arguments and inlined
    calls are as for ``local_reparameterisation``.

    >>> layer = lambda params, x: x @ params["w"] + params["b"]
    >>> flipout(layer, {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}, jnp.zeros((7, 3))).transformed
    ('b', 'w')
    """

    def contraction(leaf: _Leaf, eqn: JaxprEqn, position: int) -> _Leaf:
        plain = position == 1 and eqn.params.get("batch_group_count", 1) == 1
        if eqn.primitive is primitives.conv_general_dilated_p and not plain:
            return leaf._replace(why="is convolved, but not as the filter of a plain convolution")
        activation, output = _aval(eqn.invars[1 - position]), _aval(eqn.outvars[0])
        signs = tuple(
            jax.ShapeDtypeStruct(tuple(aval.shape[i] for i in axes), aval.dtype)
            for aval, axes in zip((activation, output), _axes(eqn, position), strict=True)
        )
        return leaf._replace(way="flipout", signs=signs)

    return _weight_noise(apply, params, x, functools.partial(_by_use, contraction), _flipout)


def _local(product: Callable, axes: tuple, weight: _Random, activation: jax.Array) -> jax.Array:
    """Local reparameterisation of a product, mean + √variance ε; its gradient is 0 where the variance is 0."""
    variance = product(activation * activation, weight.spread * weight.spread)
    positive = variance > 0
    sd = jnp.where(positive, jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)
    return product(activation, weight.mean) + sd * weight.noise


def _flipout(product: Callable, axes: tuple, weight: _Random, activation: jax.Array) -> jax.Array:
    """Flipout of a product: mean plus the batch's perturbation, with signs on its inputs and its outputs."""
    mean, (input_signs, output_signs) = product(activation, weight.mean), weight.noise
    perturbation = product(activation * _along(input_signs, axes[0], activation.ndim), weight.spread)
    return mean + perturbation * _along(output_signs, axes[1], mean.ndim)


def _axes(eqn: JaxprEqn, position: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of a contraction's activation, and those of its output, along which every index has its own weights."""
    numbers = eqn.params["dimension_numbers"]
    if eqn.primitive is primitives.conv_general_dilated_p:
        return (numbers.lhs_spec[1],), (numbers.out_spec[1],)  # channels
    sum_axes, batched = numbers
    axes_in = tuple(sorted((*sum_axes[1 - position], *batched[1 - position])))
    # The output's axes are the batched ones, the remaining ones of the first operand, and those of the second.
    free = _aval(eqn.invars[position]).ndim - len(sum_axes[position]) - len(batched[position])
    first = len(batched[0]) if position == 0 else _aval(eqn.outvars[0]).ndim - free
    return axes_in, tuple(range(first, first + free))


def _aval(atom: Var | Literal) -> Any:
    """The shape and dtype of an equation's input or output."""
    return atom.aval


def _along(signs: jax.Array, axes: Sequence[int], ndim: int) -> jax.Array:
    """``signs`` broadcast to ``ndim`` axes: its own axes are put at ``axes``, with axes of length one elsewhere."""
    return jnp.expand_dims(signs, tuple(i for i in range(ndim) if i not in axes))


def _by_use(contraction: Callable, leaf: _Leaf, uses: list[_Use]) -> _Leaf:
    """How a leaf is made random, from its uses in the trace.

    A leaf that is added to or multiplied with an activation has a draw for each example. For a leaf that enters one
    contraction, and nothing else, ``contraction`` decides. All other leaves share a draw.
    """
    if len(uses) != 1:
        return leaf._replace(why=f"is used {len(uses)} times" if uses else "is not used")
    eqn, position, meets_data = uses[0]
    if eqn is None:
        return leaf._replace(why="is an output")
    if not meets_data:
        return leaf._replace(why=f"enters {eqn.primitive.name} without an activation")
    weight = _aval(eqn.invars[position])
    if eqn.primitive in (primitives.add_p, primitives.sub_p, primitives.mul_p) and leaf.like.size <= weight.size:
        return leaf._replace(way="own")
    if eqn.primitive not in (primitives.dot_general_p, primitives.conv_general_dilated_p):
        return leaf._replace(why=f"enters {eqn.primitive.name}")
    if weight.size != leaf.like.size:
        return leaf._replace(why="is repeated before its contraction")
    return contraction(leaf, eqn, position)


def _weight_noise(
    apply: Callable, params: PyTree, x: PyTree, decide: Callable, rule: Callable | None = None
) -> WeightNoise:
    """The WeightNoise in which ``decide`` says how each leaf is made random, and ``rule`` computes the contractions."""
    params, x = jax.eval_shape(lambda *a: a, params, x)
    jaxpr, consts, outputs = _trace(apply, params, x)
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    paths_and_uses = zip(paths, _uses(jaxpr, len(paths)), strict=True)
    leaves = [decide(_Leaf(tree.path_name(path), shape), uses) for (path, shape), uses in paths_and_uses]

    def draw(key: jax.Array, count: int, size: int) -> Noise:
        key_normals, key_signs = jax.random.split(key)
        batch = {leaf.name: leaf.like for leaf in leaves if leaf.way in ("shared", "flipout")}
        shapes = {leaf.name: leaf.like if leaf.way == "own" else leaf.output for leaf in leaves}
        example = {name: _batch_shape(shape, size) for name, shape in shapes.items() if name not in batch}
        signs = {
            leaf.name: tuple(_batch_shape(s, size) for s in leaf.signs) for leaf in leaves if leaf.way == "flipout"
        }
        batch, example = tree.normal_like(key_normals, (batch, example), count)
        shapes, treedef = jax.tree.flatten(signs)
        keys = jax.random.split(key_signs, max(1, len(shapes)))
        flips = [jax.random.rademacher(k, (count, *a.shape), a.dtype) for k, a in zip(keys, shapes, strict=False)]
        return Noise(batch, example, jax.tree.unflatten(treedef, flips))

    def call(noise: Noise, mean: PyTree, sd: PyTree, x_batch: PyTree) -> PyTree:
        means, sds = ([jnp.asarray(a) for a in jax.tree.leaves(part)] for part in (mean, sd))

        def one(example: dict, signs: dict, x: PyTree) -> PyTree:
            weights = []
            for leaf, m, s in zip(leaves, means, sds, strict=True):
                if leaf.way == "local":
                    weights.append(_Random(m, s, example[leaf.name]))
                elif leaf.way == "flipout":
                    weights.append(_Random(m, s * noise.batch[leaf.name], signs[leaf.name]))
                else:
                    weights.append(m + s * (example if leaf.way == "own" else noise.batch)[leaf.name])
            values = _evaluate(jaxpr, consts, [*weights, *jax.tree.leaves(x)], functools.partial(_contract, rule))
            return jax.tree.unflatten(outputs, values)

        # vmap does not map the weights, so they stay matrices, and a contraction over the batch is one matrix product.
        return jax.vmap(one)(noise.example, noise.signs, x_batch)

    shared = {leaf.name: leaf.why for leaf in leaves if leaf.way == "shared"}
    return WeightNoise(draw, call, tuple(leaf.name for leaf in leaves if leaf.name not in shared), shared)


def _trace(apply: Callable, params: PyTree, x: PyTree) -> tuple[Jaxpr, list, Any]:
    """``apply`` for one example as a jaxpr with calls inlined; its constants; the structure of its outputs."""
    closed, outputs = jax.make_jaxpr(apply, return_shape=True)(params, x)

    def inline_calls(*leaves: Any) -> list:
        return _evaluate(closed.jaxpr, closed.consts, leaves, _open)

    flat = jax.make_jaxpr(inline_calls)(*jax.tree.leaves((params, x)))
    return flat.jaxpr, flat.consts, jax.tree.structure(outputs)


def _evaluate(jaxpr: Jaxpr, consts: Sequence, args: Sequence, special: Callable) -> list:
    """Evaluate a jaxpr: its outputs.

    ``special(eqn, inputs, plain)`` gives the outputs of each equation; ``plain(*inputs)`` computes it unchanged.
    """
    values: dict[Var, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(atom: Var | Literal) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        values.update(zip(eqn.outvars, special(eqn, inputs, functools.partial(_plain, jaxpr, eqn)), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _plain(jaxpr: Jaxpr, eqn: JaxprEqn, *inputs: Any) -> list:
    """Compute one equation unchanged, as a jaxpr of its own, so that a custom derivative keeps its rule."""
    values = {atom: value for atom, value in zip(eqn.invars, inputs, strict=True) if not isinstance(atom, Literal)}
    single = jaxpr.replace(constvars=[], invars=[*values], outvars=eqn.outvars, eqns=[eqn])
    return jaxpr_as_fun(ClosedJaxpr(single, ()))(*values.values())


def _open(eqn: JaxprEqn, inputs: Sequence, plain: Callable) -> list:
    """Evaluate the equations inside a call (a Jaxpr or ClosedJaxpr) one by one; other equations unchanged."""
    if eqn.primitive not in CALLS:
        return plain(*inputs)
    inner = eqn.params["call_jaxpr" if eqn.primitive is primitives.closed_call_p else "jaxpr"]
    return _evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs, _open)


def _contract(rule: Callable | None, eqn: JaxprEqn, inputs: Sequence, plain: Callable) -> list:
    """Evaluate an equation: rearrange a random weight, or contract it by ``rule``; other equations unchanged.

    A weight is ``_Random`` only if a single contraction is its only use.
    """
    position = next((i for i, value in enumerate(inputs) if isinstance(value, _Random)), None)
    if position is None or rule is None:
        return plain(*inputs)
    weight = inputs[position]
    if eqn.primitive in RELABELS:
        return [_Random(plain(weight.mean)[0], plain(weight.spread)[0], weight.noise)]

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return plain(*((w, x) if position == 0 else (x, w)))[0]

    return [rule(product, _axes(eqn, position), weight, inputs[1 - position])]


def _uses(jaxpr: Jaxpr, count: int) -> list[list[_Use]]:
    """For each weight the equations that it enters; the first ``count`` inputs are weights, the others are data."""
    uses: list[list[_Use]] = [[] for _ in range(count)]
    weight_of = {var: index for index, var in enumerate(jaxpr.invars[:count])}
    data = set(jaxpr.invars[count:])
    for eqn in jaxpr.eqns:
        variables = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        meets_data = any(var in data for var in variables)
        if eqn.primitive in RELABELS and variables and variables[0] in weight_of:
            weight_of[eqn.outvars[0]] = weight_of[variables[0]]
            continue
        for position, atom in enumerate(eqn.invars):
            if not isinstance(atom, Literal) and atom in weight_of:
                uses[weight_of[atom]].append(_Use(eqn, position, meets_data))
        if meets_data:
            data.update(eqn.outvars)
    for atom in jaxpr.outvars:
        if not isinstance(atom, Literal) and atom in weight_of:
            uses[weight_of[atom]].append(_Use(None, 0, False))
    return uses


def _batch_shape(shape: jax.ShapeDtypeStruct, size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *shape.shape), shape.dtype)
