"""Counts the arithmetic operations of a JAX program. Unlike a run time, the count is the same on every device."""

import math
from collections.abc import Callable

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

# Primitives that count as free, because they only move, compare or select numbers.
FREE = frozenset([
    "and", "eq", "ge", "gt", "le", "lt", "ne", "not", "or", "xor",
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice", "iota",
    "optimization_barrier", "pad", "random_unwrap", "random_wrap", "reshape", "rev", "select_n", "sharding_constraint",
    "slice", "split", "squeeze", "stop_gradient", "transpose",
])  # fmt: skip
# Operations for each number of the result, for primitives that take more than one. A transcendental function counts as
# ten operations. The other counts are about those of XLA's cost analysis for its implementation of the primitive.
EACH = dict.fromkeys(
    ("atan2", "cbrt", "cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rsqrt", "sin", "sqrt",
     "tan", "tanh"), 10,
) | {
    "acos": 25, "acosh": 47, "asin": 25, "asinh": 47, "atan": 10, "atanh": 25, "bessel_i0e": 93, "bessel_i1e": 93,
    "cosh": 40, "cumlogsumexp": 30, "digamma": 103, "erf_inv": 57, "erfc": 72, "gather": 10, "igamma": 240,
    "igamma_grad_a": 240, "lgamma": 93, "polygamma": 220, "random_bits": 29, "random_gamma": 480,
    "regularized_incomplete_beta": 460, "sinh": 40, "threefry2x32": 29, "zeta": 230,
}  # fmt: skip


def operations(program: ClosedJaxpr | Jaxpr) -> float:
    """The number of arithmetic operations of a traced program; a transcendental function counts as ten.

    A loop of unknown length counts as one iteration. A conditional counts as its most expensive branch. XLA's own cost
    analysis is not used: it counts every loop as one iteration, and most accelerators do not offer it.
    """
    return math.fsum(_count(equation) for equation in getattr(program, "jaxpr", program).eqns)


def _count(equation: JaxprEqn) -> float:
    """Operations of one equation, with those of the programs inside it."""
    name, given = equation.primitive.name, equation.params
    if name in FREE:
        return 0.0
    if name in PARTICULAR:
        return float(PARTICULAR[name](equation))
    inner = [part for value in given.values() for part in (value if isinstance(value, tuple | list) else [value])]
    programs = [operations(part) for part in inner if isinstance(part, ClosedJaxpr | Jaxpr)]
    if programs:
        return given["length"] * sum(programs) if name == "scan" else max(programs) if name == "cond" else sum(programs)
    size = max(map(_size, equation.outvars))
    if name.startswith(("reduce", "arg", "cum")):
        size = _size(equation.invars[0])
    return float(EACH.get(name, 1) * size)


def _shape(variable: Var | Literal) -> tuple[int, ...]:
    return getattr(variable.aval, "shape", ())


def _size(variable: Var | Literal) -> int:
    return math.prod(_shape(variable))


def _product(equation: JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = _shape(equation.invars[0])
    return 2.0 * _size(equation.outvars[0]) * math.prod(shape[axis] for axis in contracted)


def _convolution(equation: JaxprEqn) -> float:
    kernel, numbers = equation.invars[1], equation.params["dimension_numbers"]
    return 2.0 * _size(equation.outvars[0]) * _size(kernel) / _shape(kernel)[numbers.rhs_spec[0]]


def _cubic(share: float) -> Callable[[JaxprEqn], float]:
    """The count for a matrix operation of O(n³): ``share`` n operations for each number of matrices (…, n, n)."""
    return lambda equation: share * _size(equation.invars[0]) * _shape(equation.invars[0])[-1]


CALL = 2e5  # the count for a position at which a function on the host is called, about 40 µs

# Counts of primitives whose operations depend on more than the size of the result.
PARTICULAR: dict[str, Callable[[JaxprEqn], float]] = {
    "dot_general": _product,
    "pure_callback": lambda equation: CALL * _size(equation.outvars[0]),
    "conv_general_dilated": _convolution,
    **dict.fromkeys(
        ("scatter", "scatter_add", "scatter-add", "scatter_max", "scatter_min", "scatter_mul"),
        lambda equation: 10.0 * _size(equation.invars[2]),
    ),
    "sort": lambda equation: _size(equation.invars[0]) * math.log2(1 + _shape(equation.invars[0])[-1]),
    "integer_pow": lambda equation: _size(equation.outvars[0]) * max(1, int(math.log2(abs(equation.params["y"]) or 1))),
    "triangular_solve": lambda equation: _size(equation.outvars[0]) * _shape(equation.invars[0])[-1],
    "cholesky": _cubic(1 / 3),
    "lu": _cubic(2 / 3),
    "geqrf": _cubic(2.0),
    "qr": _cubic(2.0),
    "eigh": _cubic(9.0),
    "svd": _cubic(20.0),
}
