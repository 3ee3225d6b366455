"""The closed-form functions of a mixture of normals, for complete rows and for rows with missing numbers."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from numpyro.distributions import constraints

from tractable.core.check import Check
from tractable.core.errors import ModelError
from tractable.core.latent import Climbed, LatentModel
from tractable.core.model import Batch
from tractable.core.numbers import LOG_2PI, Numbers, Real
from tractable.core.small import cholesky, inverse, inverse_root
from tractable.core.sums import Expected, draw_function, observed
from tractable.latent import linear_mixture
from tractable.latent.columns import check_sizes, minus_centre, origin_of
from tractable.latent.linear_mixture import Family, Frame, Moments, congruence, multiply
from tractable.latent.normal_wishart import is_matrix

COVARIANCES = ("full", "tied", "diagonal", "spherical")


class Gaussians(NamedTuple):
    """θ of a mixture of normals."""

    weights: Any  # (K,) π
    means: Any  # (K, d)
    covariances: Any  # full (K, d, d), tied (d, d), diagonal (K, d), spherical (K,)


class Setting(NamedTuple):
    """The settings of a mixture of normals, and its closed-form functions.

    If squares were summed about one origin, a component's variance would be the difference of two numbers that are
    (distance/sd)² times as large, where distance is that of its mean from the origin. Rounding errors of a matrix scale
    with its largest eigenvalue. So rows and statistics are expressed in the *frame* of each component, coordinates
    y = L⁻¹ (x − m), where m is its mean and L the root of its covariance (``linear_mixture.Frame``). An M-step then
    multiplies the root by a factor near the identity. In single precision a distance of a thousand sds, or sds that
    differ by a factor of a thousand, then cost three of the seven decimal digits and not six (docs/decisions/038).
    """

    components: int  # K
    features: int  # d
    covariance: str  # one of COVARIANCES
    floor: float  # of variances
    origin: tuple[float, ...]  # (d,) the centre, rounded to single precision: both precisions use the same one
    rooted: bool = False  # whether θ holds Cholesky roots in place of covariances that are matrices

    @property
    def centre(self) -> np.ndarray:
        return np.array([self.origin], np.float32)  # (1, d)

    def family(self, constant: Callable[[Any], jax.Array]) -> Family:
        """The family whose logits are ``constant(theta)`` (K,) − log |L| − ½ |y|²."""

        def logits(theta: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            frame = self.frame(theta)
            y, diagonal = self.to_frame(frame, x), frame.roots
            if is_matrix(self.covariance):
                diagonal = jnp.diagonal(diagonal, axis1=1, axis2=2)
            log_det = jnp.sum(jnp.log(jnp.broadcast_to(diagonal, frame.means.shape)), axis=1)
            return (constant(theta) - log_det)[:, None] - 0.5 * jnp.sum(y**2, axis=1), y

        return Family(partial(minus_centre, self.centre), logits, self.summed)

    @lru_cache(maxsize=128)  # noqa: B019
    def mixture(self) -> LatentModel:
        """The mixture; equal settings give the same object."""
        position, support = self.example()
        tied = self.covariance == "tied"
        model = self.family(lambda theta: jnp.log(theta.weights) - 0.5 * self.features * LOG_2PI).model(
            self.m_step, position, support=support, sample=self.sample, begin=self.begin,
            examine=self.examine, shift=lambda theta, offset: theta._replace(means=theta.means + offset),
            canonical=partial(linear_mixture.by_weight, tied=tied), permute=partial(linear_mixture.permute, tied=tied),
        )  # fmt: skip
        return model.with_steps(climbed=self.climbed(Setting.mixture))

    @lru_cache(maxsize=128)  # noqa: B019
    def mixture_of_gaps(self) -> LatentModel:
        """The mixture for rows in which NaN marks missing numbers."""
        return self.mixture().with_steps(
            e_step=self.e_step_of_gaps,
            log_prob=lambda theta, x: self.shares(theta, x)[1],
            responsibilities=lambda theta, x: self.shares(theta, x)[0].T,
            drawn=draw_function(self.joint_of_gaps),
            complete=linear_mixture.complete_by(self.joint_of_gaps),
            climbed=self.climbed(Setting.mixture_of_gaps),
        )  # fmt: skip

    def climbed(self, make: Callable[["Setting"], LatentModel]) -> Climbed | None:
        """The same mixture with Cholesky roots in place of covariances; EM takes its steps on the roots.

        It is None if the covariances are not matrices. Both mixtures have the same unconstrained position.
        ``LatentModel.climbed`` adds the starting points and checks.
        """
        if self.rooted or not is_matrix(self.covariance):
            return None

        def into(theta: Gaussians) -> Gaussians:
            matrices = np.asarray(theta.covariances, np.float64)
            try:
                return theta._replace(covariances=np.linalg.cholesky(matrices))
            except np.linalg.LinAlgError:  # the climb from NaN ends with an error that says so
                return theta._replace(covariances=np.full_like(matrices, np.nan))

        def back(theta: Gaussians) -> Gaussians:
            roots = np.asarray(theta.covariances, np.float64)
            return theta._replace(covariances=roots @ np.swapaxes(roots, -1, -2))

        return Climbed(make(self._replace(rooted=True)), into, back)

    def frame(self, theta: Any) -> Frame:
        """The frame of θ; or of the λ of a ``MixturePosterior``, whose covariances are E[Λ]⁻¹."""
        features, means, covariances = self.features, jnp.asarray(theta.means), jnp.asarray(theta.covariances)
        if is_matrix(self.covariance):
            covariances = covariances.reshape(-1, features, features)
            roots = covariances if self.rooted else cholesky(covariances)
        else:
            roots = jnp.sqrt(covariances.reshape(self.components, -1))
        return Frame(means - self.centre.astype(means.dtype), roots)

    def to_frame(self, frame: Frame, x: jax.Array) -> jax.Array:
        """Rows (n, d), from which the centre is already subtracted, in the frame of every component: y (K, d, n)."""
        if not is_matrix(self.covariance):
            return (x.T[None] - frame.means[:, :, None]) / frame.roots[:, :, None]
        inverses = inverse(frame.roots)
        rows = jnp.matmul(inverses.reshape(-1, self.features), x.T, precision="highest")
        return rows.reshape(*inverses.shape[:2], -1) - multiply(inverses, frame.means)[:, :, None]

    def summed(self, theta: Any, share: jax.Array, y: jax.Array) -> Moments:
        """The statistics of rows y (K, d, n) in the frame of θ, for responsibilities (K, n)."""
        return self._moments_in(self.frame(theta), share, y)

    def statistics(self, batch: Batch, responsibilities: ArrayLike) -> Moments:
        """The statistics of a batch for guessed responsibilities (n, K)."""
        share = jnp.asarray(responsibilities, jnp.result_type(float))
        weights = jnp.asarray(batch.mask, share.dtype)
        x = jnp.where(weights[:, None] > 0, minus_centre(self.centre, observed(batch), share.dtype), 0)
        share = (weights[:, None] * share).T
        count = jnp.sum(share, axis=1)[:, None]
        means = jnp.matmul(share, x, precision="highest") / jnp.where(count > 0, count, 1)
        frame = Frame(means, self.units(share.dtype))
        return self._moments_in(frame, share, self.to_frame(frame, x))

    def _moments_in(self, frame: Frame, share: jax.Array, y: jax.Array) -> Moments:
        count = jnp.sum(share, axis=1)
        first = jnp.einsum("kin,kn->ki", y, share, precision="highest")
        if is_matrix(self.covariance):  # one component at a time is twice as fast as all at once
            second = jax.lax.map(lambda of: jnp.matmul(of[0] * of[1][None], of[0].T, precision="highest"), (y, share))
        else:
            second = jnp.einsum("kin,kn->ki", y**2, share, precision="highest")
        frame = jax.tree.map(lambda leaf: jnp.sum(count) * leaf, frame)
        return Moments(count, first, self.pooled(second), frame)

    def pooled(self, second: jax.Array) -> jax.Array:
        """Second moments (K, ...), summed over components if "tied", or over columns if "spherical"."""
        over = {"tied": 0, "spherical": 1}.get(self.covariance)
        return second if over is None else jnp.sum(second, axis=over)

    def units(self, dtype: DTypeLike) -> jax.Array:
        """The roots of a frame whose covariances are the identity."""
        components, features, covariance, *_ = self
        if not is_matrix(covariance):
            return jnp.ones((components, features if covariance == "diagonal" else 1), dtype)
        count = components if covariance == "full" else 1
        return jnp.broadcast_to(jnp.eye(features, dtype=dtype), (count, features, features))

    def spreads(self, statistics: Moments) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Centred means (K, d), covariances (1 or K, ...) about them in the frame's units, and the frame's roots.

        All of them are finite even for a component without rows.
        """
        count, first, second, frame_sums = jax.tree.map(jnp.asarray, statistics)
        total = jnp.sum(count)
        frame = Frame(*(leaf / jnp.where(total > 0, total, 1) for leaf in frame_sums))
        frame = frame._replace(roots=jnp.where(total > 0, frame.roots, self.units(frame.roots.dtype)))
        count = count + 10 * jnp.finfo(count.dtype).eps
        shift = first / count[:, None]
        if is_matrix(self.covariance):
            outer = count[:, None, None] * shift[:, :, None] * shift[:, None, :]
            step = multiply(frame.roots, shift)
        else:
            outer, step = count[:, None] * shift**2, frame.roots * shift
        size = jnp.sum(count) if self.covariance == "tied" else count
        scatter = second - self.pooled(outer)
        return frame.means + step, scatter / size.reshape(size.shape + (1,) * (scatter.ndim - size.ndim)), frame.roots

    def m_step(self, statistics: Moments) -> Gaussians:
        means, spread, roots = self.spreads(statistics)
        count = jnp.asarray(statistics.count)
        count = count + 10 * jnp.finfo(count.dtype).eps  # keeps a component without rows finite
        means = means + self.centre.astype(means.dtype)
        return Gaussians(count / jnp.sum(count), means, self.covariances(spread, roots))

    def covariances(self, spread: jax.Array, roots: jax.Array) -> jax.Array:
        """Covariances (or their roots) in the units of x, plus the floor; ``spread`` is in units of a frame's roots."""
        if self.covariance == "spherical":
            return roots[:, 0] ** 2 * spread / self.features + self.floor
        if self.covariance == "diagonal":
            return roots**2 * spread + self.floor
        return self._matrices(spread.reshape(-1, self.features, self.features), roots).reshape(spread.shape)

    def _matrices(self, spread: jax.Array, roots: jax.Array) -> jax.Array:
        """L V Lᵀ + floor I for matrices V; if ``rooted``, its root: L times the root of V + floor L⁻¹L⁻ᵀ."""
        unit = jnp.eye(self.features, dtype=spread.dtype)[None]
        if not self.rooted:
            return congruence(roots, spread) + self.floor * unit
        inverses = inverse(roots)
        spread = spread + self.floor * jnp.matmul(inverses, jnp.swapaxes(inverses, 1, 2), precision="highest")
        # In some directions a component of few rows has no variance, only rounding errors, which may be negative.
        largest = jnp.max(jnp.diagonal(spread, axis1=1, axis2=2), axis=1)[:, None, None]
        spread = spread + 4 * self.features * jnp.finfo(spread.dtype).eps * largest * unit
        return jnp.matmul(roots, cholesky(spread), precision="highest")

    def sample(self, key: jax.Array, theta: Gaussians, n: int) -> tuple[jax.Array, jax.Array]:
        """Rows (n, d) and their components (n,)."""
        components, features, covariance, *_ = self
        key_component, key_noise = jax.random.split(key)
        k = linear_mixture.draw_components(key_component, theta.weights, n)
        noise = jax.random.normal(key_noise, (n, features), theta.means.dtype)
        roots = self.frame(theta).roots
        if is_matrix(covariance):
            roots = jnp.broadcast_to(roots, (components, features, features))
            return theta.means[k] + jnp.einsum("nij,nj->ni", roots[k], noise, precision="highest"), k
        return theta.means[k] + roots[k] * noise, k

    def begin(self, key: jax.Array, rows: ArrayLike) -> Gaussians:
        """A starting θ from clusters of rows."""
        components, features, covariance, floor, *_ = self
        x, shares = linear_mixture.cluster_rows(key, rows, components)
        count = shares.sum(0)
        means = shares.T @ x / count[:, None]
        # A small cluster does not determine a covariance: all components start with the pooled one within clusters.
        residuals = x - shares @ means
        pooled = residuals.T @ residuals / len(x) + floor * np.eye(features)
        pooled[np.diag_indices(features)] += 1e-3 * x.var(0)
        variances = np.diag(pooled)
        spread = {"diagonal": variances, "spherical": variances.mean()}.get(covariance, pooled)
        shape = np.shape(spread) if covariance == "tied" else (components, *np.shape(spread))
        return Gaussians(count / len(x), means, np.broadcast_to(spread, shape))

    def example(self) -> tuple[Gaussians, Gaussians]:
        """An example θ, and its support."""
        components, features, covariance, *_ = self
        matrix = is_matrix(covariance)
        unit = np.eye(features) if matrix else np.ones(features if covariance == "diagonal" else ())
        units = unit if covariance == "tied" else np.broadcast_to(unit, (components, *unit.shape))
        position = Gaussians(np.full(components, 1 / components), np.zeros((components, features)), units)
        positive = constraints.positive_definite if matrix else constraints.positive
        positive = constraints.lower_cholesky if self.rooted else positive
        return position, Gaussians(constraints.simplex, constraints.real, positive)

    def examine(self, theta: Gaussians, size: int) -> list[Check]:
        """The report's checks of a maximum: the rows of the smallest component, and variances at the floor."""
        checks = linear_mixture.counts_check(theta, size, self.features + 1)
        count, floor = np.asarray(theta.weights, np.float64) * size, self.floor
        covariances = np.asarray(theta.covariances, np.float64)
        if is_matrix(self.covariance):
            least = np.broadcast_to(np.linalg.eigvalsh(covariances)[..., 0], count.shape)
        else:
            least = covariances.reshape(len(count), -1).min(1)
        # Without a floor, the variance of a component of equal rows is only the rounding error of its mean.
        rounding = float(jnp.finfo(jnp.result_type(float)).eps * np.ptp(np.asarray(theta.means), axis=0).max()) ** 2
        at = least <= max(4 * floor, rounding)
        if not at.any():
            return checks
        if np.any(count[at] < 2 * (self.features + 1)):
            verdict, what = "reject", "they collapsed onto few rows, where the likelihood is unbounded"
        elif floor == 0:
            verdict, what = "reject", "they collapsed onto rows that are equal, where the likelihood is unbounded"
        else:
            verdict, what = "caution", "only the floor keeps their variance from being smaller"
        sentence = f"with a variance at the floor, {floor:g}: {what}"
        return [*checks, Check("components at the floor", float(at.sum()), verdict, sentence)]

    def conditionals(self, theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """log π_k N(x_o; μ_k, Σ_k) (K, n), and for z = x − μ_k: E[z | x_o, k] (K, n, d), E[zzᵀ | x_o, k] (K, n, d, d).

        The observed entries of a row are x_o.
        """
        components, features, covariance, *_ = self
        x, frame = minus_centre(self.centre, x, theta.means.dtype), self.frame(theta)
        if is_matrix(covariance):
            roots = jnp.broadcast_to(frame.roots, (components, features, features))
            matrices = jnp.matmul(roots, jnp.swapaxes(roots, 1, 2), precision="highest")
        else:
            matrices = (frame.roots**2)[:, :, None] * jnp.eye(features, dtype=x.dtype)[None]
        every = jax.vmap(jax.vmap(conditional, (0, None, None)), (None, 0, 0))
        log_probs, filled, second = every(x, frame.means, matrices)
        return log_probs + jnp.log(theta.weights)[:, None], filled, second

    def shares(self, theta: Gaussians, x: ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Responsibilities (K, n) and log densities (n,) of rows with missing numbers."""
        return linear_mixture.normalise(self.joint_of_gaps(theta, x))

    def joint_of_gaps(self, theta: Gaussians, x: ArrayLike) -> jax.Array:
        """log π_k N(x_o; μ_k, Σ_k) of rows with missing numbers, (K, n)."""
        return self.conditionals(theta, jnp.asarray(x))[0]

    def e_step_of_gaps(self, theta: Gaussians, batch: Batch) -> Expected:
        """The E-step for rows in which NaN marks missing numbers."""
        logits, filled, second = self.conditionals(theta, jnp.asarray(observed(batch)))
        share, log_probs = linear_mixture.normalise(logits)
        weights, frame = batch.mask.astype(logits.dtype), self.frame(theta)
        share = share * weights[None]
        count = jnp.sum(share, axis=1)
        first = jnp.einsum("kn,kni->ki", share, filled, precision="highest")
        sums = jnp.einsum("kn,knij->kij", share, second, precision="highest")
        if is_matrix(self.covariance):
            inverses = inverse(frame.roots)
            first, sums = multiply(inverses, first), congruence(inverses, sums)
        else:
            first, sums = first / frame.roots, jnp.diagonal(sums, axis1=1, axis2=2) / frame.roots**2
        frame = jax.tree.map(lambda leaf: jnp.sum(count) * leaf, frame)
        return Expected(Moments(count, first, self.pooled(sums), frame), jnp.sum(weights * log_probs))


def setting_of(components: int, features: int, covariance: str, floor: Real, centre: Numbers | None) -> Setting:
    """The setting for these arguments; raises ModelError if one is out of range."""
    check_sizes(components=components, features=features)
    if covariance not in COVARIANCES:
        raise ModelError(f"covariance is 'full', 'tied', 'diagonal' or 'spherical'; got {covariance!r}.")
    if not 0 <= floor < np.inf:
        raise ModelError(f"floor is a variance, 0 or more and finite; got {floor}.")
    return Setting(components, features, covariance, float(floor), origin_of(centre, features))


def conditional(x: jax.Array, mean: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log N(x_o), E[z | x_o] and E[zzᵀ | x_o] of one row (d,) and one component, for z = x − mean."""
    present = ~jnp.isnan(x)
    inner = jnp.where(present[:, None] & present[None, :], matrix, jnp.eye(x.size, dtype=matrix.dtype))
    root = inverse_root(inner)
    deviation = jnp.where(present, x - mean, 0)
    white = jnp.matmul(root, deviation, precision="highest")
    cross = jnp.matmul(root, jnp.where(present[:, None], matrix, 0), precision="highest")
    log_prob = -0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(present) * LOG_2PI
    filled = jnp.where(present, deviation, white @ cross)
    rest = jnp.where(present[:, None] | present[None, :], 0, matrix - cross.T @ cross)
    return log_prob, filled, filled[:, None] * filled[None, :] + rest
