"""Exact draws from a full conditional of a known family, whose parameters are found by two derivatives.

    p(x | all else) ∝ exp f(x)

If this density is of one of the families below, its natural parameters follow from the gradient of f and the derivative
of the gradient along one direction, at any x. Nothing else need be known of the model. Whether the density is of the
family is a separate question, which ``gibbs.miss`` answers: the difference of f between two values of x must be that of
the family's log density. George & McCulloch 1993 and Lunn et al. 2000 find conjugate families from the model's graph.

    normal         f = −½ xᵀP x + hᵀx                               P = −∇²f,  mean = x + P⁻¹∇f
    gamma          f = c log y − b y  with x = y^q, q = 1, −1, −½   c = −y² f″,  b = c/y − f′  (in y)
    beta           f = (a − 1) log x + (b − 1) log(1 − x)           a − 1 = x² (f′ − (1 − x) f″)
    Dirichlet      f = Σ (a_k − 1) log x_k                          in log x
    Wishart        f = c log |Λ| − ½ tr(B Λ), Λ = x or x⁻¹          c = −tr(Λ f″[Λ])/p,  B = 2 (c Λ⁻¹ − ∇f)

q = −1 is the inverse gamma distribution of a variance, and q = −½ that of an sd whose square has an inverse gamma
distribution. The numbers of a gamma or a beta, and the rows of a Dirichlet, are independent of each other given all
else.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core import small
from tractable.core.tree import PyTree

Real = float | int
MOST = 512  # largest number of numbers that are drawn together from one normal
SMALL = 32  # matrices of at most this size are factorised by loops over columns, larger ones by LAPACK


class Family(NamedTuple):
    """A family of densities of an array x.

    Attributes:
        found: the function ``(f, x) -> η`` that finds the parameters η from derivatives of f at x.
        drawn: the function ``(key, η) -> x`` that draws x.
        log_prob: the function ``(η, x) -> ()``, the log density up to a constant in x.
        proper: the function ``η -> ()`` that says whether η are parameters of a proper density.
        flat: whether x is one vector, whatever the shapes of its parts.
    """

    found: Callable
    drawn: Callable
    log_prob: Callable
    proper: Callable
    flat: bool = False


def both(f: Callable, x: jax.Array, along: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of f at x, and its derivative along a direction."""
    return jax.jvp(jax.grad(f), (x,), (along,))


# The normal family: η = (mean, root of the precision), for a vector x (m,).


@functools.lru_cache(maxsize=128)
def normal(colours: tuple[int, ...], pattern: bytes) -> Family:
    """The family of normals of m numbers whose precision matrix has a known pattern of entries that are not 0.

    Args:
        colours: (m,) the group of each column of the precision. Columns of a group have no row in which two of them are
            not 0, so one derivative of the gradient finds all of them (Curtis, Powell & Reid 1974).
        pattern: m² booleans, row by row, that are true for entries that are not 0; empty if the precision is diagonal.
    """
    size, groups = len(colours), max(colours) + 1
    mask = np.frombuffer(pattern, bool).reshape(size, size) if pattern else np.zeros((0, 0), bool)
    directions = np.equal.outer(np.arange(groups), np.array(colours))

    def found(f: Callable, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if not pattern:
            slope, curve = both(f, x, jnp.ones_like(x))
            return x - slope / curve, jnp.sqrt(-curve)
        slope, derivative = jax.linearize(jax.grad(f), x)
        columns = jax.vmap(derivative)(jnp.asarray(directions, x.dtype))[np.array(colours)]
        matrix = -jnp.where(mask, columns, 0)
        # Small matrices are factorised by loops: LAPACK, called for many matrices at once, may wait for ever.
        root = small.cholesky(matrix) if size <= SMALL else jnp.linalg.cholesky(matrix)
        return x + _solve(root, slope), root

    def drawn(key: jax.Array, eta: tuple) -> jax.Array:
        mean, root = eta
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + (noise / root if root.ndim == 1 else _back(root, noise))

    def log_prob(eta: tuple, x: jax.Array) -> jax.Array:
        mean, root = eta
        offset = x - mean
        white = offset * root if root.ndim == 1 else jnp.matmul(root.T, offset, precision="highest")
        return -0.5 * jnp.sum(white**2)

    def proper(eta: tuple) -> jax.Array:
        mean, root = eta
        diagonal = root if root.ndim == 1 else jnp.diagonal(root)
        return jnp.all(jnp.isfinite(mean)) & jnp.all((diagonal > 0) & jnp.isfinite(diagonal))

    return Family(found, drawn, log_prob, proper, True)


def covariance_arguments(precisions: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    """The arguments of ``normal`` for a sample of precisions (s, m, m).

    Groups of columns are chosen greedily: each column joins the first group with which it shares no row.
    """
    size = precisions.shape[-1]
    scale = np.sqrt(np.abs(np.einsum("sii->si", precisions)))
    nonzero = np.abs(precisions) > 1e-7 * scale[:, :, None] * scale[:, None, :]
    pattern = nonzero.any(0) | nonzero.any(0).T | np.eye(size, dtype=bool)
    if not np.any(pattern & ~np.eye(size, dtype=bool)):
        return (0,) * size, b""
    share_row = (pattern.astype(np.float32) @ pattern) > 0
    colours: list[int] = []
    for j in range(size):
        taken = {colours[i] for i in np.flatnonzero(share_row[j, :j])}
        colours.append(next(c for c in range(size) if c not in taken))
    return tuple(colours), pattern.tobytes()


def _back(root: jax.Array, vector: jax.Array) -> jax.Array:
    """The product L⁻ᵀ v, with L the root and v the vector."""
    if len(root) <= SMALL:
        return jnp.matmul(small.inverse(root).T, vector, precision="highest")
    return jax.scipy.linalg.solve_triangular(root, vector, trans=1, lower=True)


def _solve(root: jax.Array, vector: jax.Array) -> jax.Array:
    """The product (L Lᵀ)⁻¹ v, with L the root and v the vector."""
    if len(root) <= SMALL:
        forward = jnp.matmul(small.inverse(root), vector, precision="highest")
    else:
        forward = jax.scipy.linalg.solve_triangular(root, vector, lower=True)
    return _back(root, forward)


# Powers of a gamma: η = (c, b), two parameters for each number.


@functools.lru_cache(maxsize=8)
def power(q: Real) -> Family:
    """The family of x = y^q, where y has a gamma distribution."""

    def found(f: Callable, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = x ** (1 / q)
        slope, curve = both(lambda y: f(y**q), y, jnp.ones_like(y))
        c = -(y**2) * curve
        return c, c / y - slope

    def drawn(key: jax.Array, eta: tuple) -> jax.Array:
        c, b = eta
        return jnp.exp(q * (jax.random.loggamma(key, c + q) - jnp.log(b)))

    def log_prob(eta: tuple, x: jax.Array) -> jax.Array:
        c, b = eta
        return jnp.sum(c * jnp.log(x) / q - b * x ** (1 / q))

    def proper(eta: tuple) -> jax.Array:
        c, b = eta
        return jnp.all((c + q > 0) & (b > 0) & jnp.isfinite(c) & jnp.isfinite(b))

    return Family(found, drawn, log_prob, proper)


# Beta and Dirichlet: η are their usual parameters.


def _beta_found(f: Callable, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The parameters a and b of a beta distribution, from derivatives at x."""
    slope, curve = both(f, x, jnp.ones_like(x))
    left = 1 - x
    return 1 + x**2 * (slope - left * curve), 1 - left**2 * (slope + x * curve)


def _beta_drawn(key: jax.Array, eta: tuple) -> jax.Array:
    one, other = jax.random.split(key)
    log_a, log_b = jax.random.loggamma(one, eta[0]), jax.random.loggamma(other, eta[1])
    return _inside(jax.nn.sigmoid(log_a - log_b))


def _beta_log_prob(eta: tuple, x: jax.Array) -> jax.Array:
    return jnp.sum((eta[0] - 1) * jnp.log(x) + (eta[1] - 1) * jnp.log1p(-x))


def _positive(eta: PyTree) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all((a > 0) & jnp.isfinite(a)) for a in jax.tree.leaves(eta)]))


def _inside(x: jax.Array) -> jax.Array:
    """Numbers at least one rounding away from 0 and 1, whose unconstrained values would be infinite."""
    eps = jnp.finfo(x.dtype).eps
    return jnp.clip(x, eps, 1 - eps)


def _dirichlet_found(f: Callable, x: jax.Array) -> jax.Array:
    """The parameters a of a Dirichlet distribution, from derivatives in u, where x = softmax(u).

    With A = Σ (a − 1), the gradient is f_k = a_k − 1 − A x_k, and the second derivative along the largest x_k is
    −A x_k (1 − x_k). They are taken at a point that is moved towards the centre: if an x_k were near 1, A would be lost
    to rounding.
    """
    count = x.shape[-1]
    u = jnp.log(0.9 * x + 0.1 / count)
    largest = jax.nn.one_hot(jnp.argmax(u, axis=-1), count, dtype=u.dtype)
    slope, curve = both(lambda u: f(jax.nn.softmax(u, axis=-1)), u, largest)
    place = jax.nn.softmax(u, axis=-1)
    top = jnp.sum(largest * place, axis=-1, keepdims=True)
    total = -jnp.sum(largest * curve, axis=-1, keepdims=True) / (top * (1 - top))
    return 1 + slope + total * place


def _dirichlet_drawn(key: jax.Array, a: jax.Array) -> jax.Array:
    x = _inside(jax.nn.softmax(jax.random.loggamma(key, a), axis=-1))
    return x / jnp.sum(x, axis=-1, keepdims=True)


def _dirichlet_log_prob(a: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum((a - 1) * jnp.log(x))


# Wishart and inverse Wishart: η = (c, B), for matrices on the last two axes.


@functools.lru_cache(maxsize=8)
def wishart(inverse: bool) -> Family:
    """The family of x = Λ with a Wishart distribution, or of x = Λ⁻¹ with an inverse Wishart distribution."""

    def precision_of(x: jax.Array) -> jax.Array:
        """Λ, exactly symmetric."""
        if not inverse:
            return (x + jnp.swapaxes(x, -1, -2)) / 2
        back = small.inverse_root(x)
        return jnp.matmul(jnp.swapaxes(back, -1, -2), back, precision="highest")

    def found(f: Callable, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = precision_of(x)
        root = small.inverse_root(place)
        slope, curve = both(lambda y: f(precision_of(y)), place, place)
        c = -jnp.einsum("...ij,...ij->...", place, curve) / x.shape[-1]
        other = jnp.matmul(jnp.swapaxes(root, -1, -2), root, precision="highest")
        b = 2 * (c[..., None, None] * other - slope)
        return c, (b + jnp.swapaxes(b, -1, -2)) / 2

    def freedom(c: jax.Array, size: int) -> jax.Array:
        return 2 * c + (-(size + 1) if inverse else size + 1)

    def drawn(key: jax.Array, eta: tuple) -> jax.Array:
        c, b = eta
        size = b.shape[-1]
        key_diagonal, key_below = jax.random.split(key)
        # Degrees of freedom of the diagonal in Bartlett's decomposition.
        nu = freedom(c, size)[..., None] - jnp.arange(size, dtype=c.dtype)
        chi = jnp.sqrt(2 * jnp.exp(jax.random.loggamma(key_diagonal, nu / 2)))
        lower = jnp.tril(jax.random.normal(key_below, b.shape, b.dtype), -1)
        lower = lower + chi[..., None] * jnp.eye(size, dtype=b.dtype)
        root = small.cholesky(b)  # L with L Lᵀ = B, so that Λ = L⁻ᵀ T Tᵀ L⁻¹ with T = ``lower``
        if inverse:
            half = jnp.matmul(root, jnp.swapaxes(small.inverse(lower), -1, -2), precision="highest")
        else:
            half = jnp.matmul(jnp.swapaxes(small.inverse(root), -1, -2), lower, precision="highest")
        return jnp.matmul(half, jnp.swapaxes(half, -1, -2), precision="highest")

    def log_prob(eta: tuple, x: jax.Array) -> jax.Array:
        c, b = eta
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(small.cholesky(x), axis1=-2, axis2=-1)), axis=-1)
        trace = jnp.einsum("...ij,...ij->...", b, precision_of(x))
        return jnp.sum((-c if inverse else c) * log_det - trace / 2)

    def proper(eta: tuple) -> jax.Array:
        c, b = eta
        diagonal = jnp.diagonal(small.cholesky(b), axis1=-2, axis2=-1)
        return jnp.all(freedom(c, b.shape[-1]) > b.shape[-1] - 1) & jnp.all(diagonal > 0) & jnp.all(jnp.isfinite(c))

    return Family(found, drawn, log_prob, proper)


FAMILIES = {
    "gamma": power(1),
    "inverse gamma": power(-1),
    "root of an inverse gamma": power(-0.5),
    "beta": Family(_beta_found, _beta_drawn, _beta_log_prob, _positive),
    "Dirichlet": Family(_dirichlet_found, _dirichlet_drawn, _dirichlet_log_prob, _positive),
    "Wishart": wishart(False),
    "inverse Wishart": wishart(True),
}  # the normal family is made by ``normal``, for each pattern


def candidates(support: constraints.Constraint, size: int) -> list[str]:
    """The names of the families with the support of a parameter of ``size`` numbers."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint  # pyright: ignore[reportAttributeAccessIssue]
    unit = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if support in (constraints.real, constraints.real_vector):
        return ["normal"] if size <= MOST else []
    if support in (constraints.positive, constraints.nonnegative, constraints.softplus_positive):
        return ["gamma", "inverse gamma", "root of an inverse gamma"]
    if support == constraints.unit_interval or (_number(unit[0]) == 0 and _number(unit[1]) == 1):
        return ["beta"]
    if support == constraints.simplex:
        return ["Dirichlet"]
    return ["Wishart", "inverse Wishart"] if support == constraints.positive_definite else []


def _number(bound: ArrayLike | None) -> float | None:
    """A bound as a number, if all entries have the same; otherwise None."""
    if bound is None or np.size(bound) == 0 or np.ptp(np.asarray(bound)) != 0:
        return None
    return float(np.ravel(np.asarray(bound))[0])
