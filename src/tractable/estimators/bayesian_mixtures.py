"""The Bayesian mixture of normals with scikit-learn's interface, by variational Bayes."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from tractable.beliefs.belief import Draws
from tractable.beliefs.check import Check
from tractable.core import Batch
from tractable.data.sharding import Over, over_rows
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian, Count, RandomState
from tractable.estimators.density import judged
from tractable.estimators.frames import Frame, framing, inwards, log_size, outwards, spread, spun
from tractable.estimators.mixture_priors import Prior, shares_of, students, varied
from tractable.estimators.mixtures import COVARIANCES, Clusters, Covariance, Lift, precision_roots, shaped
from tractable.estimators.rows import as_doubles, as_floats, compiled, in_few_lengths, merged, middle
from tractable.methods.coordinate_ascent import CoordinateAscent
from tractable.models.conjugate_variational import Conjugate
from tractable.models.linear_mixture import clustered
from tractable.models.mixture import Gaussians, gaussian_mixture
from tractable.models.variational import ConjugateModel, bayesian_gaussian_mixture
from tractable.models.variational_mixture import MixturePosterior
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, SettingsError, TractableWarning
from tractable.tools.settings import Range, expect_whole, is_number

Process = Annotated[
    Literal["dirichlet_process", "dirichlet_distribution"], "one of dirichlet_process, dirichlet_distribution"
]
Positive = Annotated[float, Range("a number above 0 and finite", lambda value: is_number(value, 0))]
Tolerance = Annotated[float, Range("a share of the bound, above 0 and finite", lambda value: is_number(value, 0))]
BLOCK = 1 << 12  # rows evaluated at a time


@dataclass(eq=False, repr=False)
class BayesianGaussianMixture(Clusters, DensityMixin, Bayesian):
    """A mixture of normals by variational Bayes: a posterior of weights, means and precisions.

        π ~ Dirichlet(α₀, …, α₀), or stick-breaking, v_k ~ Beta(1, α₀);   μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
        full, tied: Λ ~ Wishart(ν₀, C₀⁻¹);   diag: Λ_i ~ Gamma(ν₀/2, C₀_i/2);   spherical: λ ~ Gamma(d ν₀/2, d C₀/2)

    The posterior is approximated by q(π, μ, Λ) q(z), by coordinate ascent from several starts. Components that are not
    needed lose their weight: n_components is an upper bound. Names and defaults are scikit-learn's, and so are the
    results for "full"; for other types scikit-learn's updates do not climb its bound (``models.variational_mixture``
    says where they differ). Beyond scikit-learn: weighted rows, posterior sds, the true bound, the true predictive
    density and a report. Rows are centred and scaled by the prior, in double precision. Bishop 2006, section 10.2; Blei
    & Jordan 2006.

    There is no ``partial_fit``: the default prior needs all rows. With your own prior,
    ``CoordinateAscent(batch_size=...)`` fits a ``models.bayesian_gaussian_mixture`` by batches.

    Args:
        n_components: K ≥ 1, the largest number of components.
        covariance_type, max_iter, warm_start: as for ``GaussianMixture``.
        tol: > 0; a climb ends when its extrapolated further gain is below this share of the bound (of rows in the
            prior's units, so that the rows' own units do not matter).
        reg_covar: ≥ 0, in the units of x²: added to the variances of the default covariance_prior, which keeps it
            positive if a column is constant. scikit-learn adds it in every M-step instead, which matches no prior and
            breaks the bound.
        n_init: number of starts, ≥ 1, by k-means++; the one with the largest bound is kept.
        weight_concentration_prior_type: "dirichlet_process" or "dirichlet_distribution".
        weight_concentration_prior: α₀ > 0; 1/K by default.
        mean_precision_prior: β₀ > 0, the number of rows that m₀ counts as; 1 by default.
        mean_prior: m₀, (d,); the rows' mean by default.
        degrees_of_freedom_prior: ν₀, above d − 1 for full and tied, else above 0; d by default.
        covariance_prior: C₀, positive definite, in the units of x²: full and tied (d, d), diag (d,), spherical a
            number. By default the rows' covariance, Σ w (x − x̄)(x − x̄)ᵀ / (Σ w − 1), its diagonal, or its mean.
        random_state: int, RandomState or None, for starts, draws and samples.
        draws: number of independent draws of θ from q in ``posterior_``, ≥ 1.

    Attributes:
        weights_: (K,) E[π]; for a process normalised to sum 1, as scikit-learn's, though unused components have a
            share. means_: (K, d) E[μ].
        covariances_, precisions_, precisions_cholesky_: E[Λ]⁻¹, E[Λ] and its root, shaped as for ``GaussianMixture``.
        weight_concentration_: (K,); for a process a pair of them, v_k's Beta parameters. mean_precision_: (K,).
            degrees_of_freedom_: (K,); a number if tied.
        weight_concentration_prior_, mean_precision_prior_, mean_prior_, degrees_of_freedom_prior_,
            covariance_prior_: the prior used.
        standard_errors_: posterior sds of weights, means and covariances from the draws, a tuple of arrays shaped like
            them. For a component without rows they are the prior's; if the prior has no sd, large and arbitrary.
        lower_bound_: the bound on log p(rows), nats per row. scikit-learn's drops constants: they cannot be compared.
        converged_, n_iter_: the best start's.
        posterior_: draws of θ, ``Gaussians``; for a process with one more component, for all unused ones.
        report_, n_features_in_, feature_names_in_: as for ``GaussianMixture``.

    >>> X = np.random.default_rng(0).normal(size=(60, 1)) + np.repeat([0.0, 8.0], [40, 20])[:, None]
    >>> mixture = BayesianGaussianMixture(4, random_state=0, draws=50).fit(X)
    >>> np.sort(mixture.weights_).round(1).tolist()
    [0.0, 0.0, 0.3, 0.7]
    """

    n_components: Count = 1
    _: KW_ONLY
    covariance_type: Covariance = "full"
    tol: Tolerance = 1e-6
    reg_covar: Lift = 1e-6
    max_iter: Count = 1000
    n_init: Count = 4
    weight_concentration_prior_type: Process = "dirichlet_process"
    weight_concentration_prior: Positive | None = None
    mean_precision_prior: Positive | None = None
    mean_prior: ArrayLike | None = None
    degrees_of_freedom_prior: float | None = None
    covariance_prior: ArrayLike | None = None
    random_state: RandomState = None
    warm_start: bool = False
    draws: Count = 1000

    def fit(self, X: object, y: object = None, sample_weight: object = None) -> Any:
        """Learn from a table in memory, as ``GaussianMixture`` does; the prior's defaults use the weights too.

        Warns:
            ConvergenceWarning: max_iter steps were too few. TractableWarning: reg_covar is most of some variance.
        """
        self._check_settings()
        x = self._checked(X, reset=True, ensure_min_samples=2)
        x, weight = merged(x, self._weights(sample_weight, x))
        if len(x) < self.n_components:
            raise DataError(
                f"A mixture of n_components = {self.n_components} needs as many distinct rows of weight above 0; got "
                f"n_samples = {len(x)}. Give more rows, or fewer components."
            )
        centre = middle([(x, weight)], x.shape[1])
        prior, held = self._beforehand(x, weight, centre)
        frame = framing(centre, prior.covariance)
        model, white = self._modelled(prior, centre), self._white(prior, frame)
        found = self._inferred(
            white.with_steps(first=self._beginning(white, frame, float(weight.sum()))),
            in_few_lengths(inwards(frame, x), weight),
            CoordinateAscent(
                starts=1 if self.n_components == 1 else int(self.n_init), steps=int(self.max_iter),
                tolerance=float(self.tol), draws=int(self.draws),
            ),
        )  # fmt: skip
        self._conclude(found, model, prior, frame, float(weight.sum()), held)
        return self

    def predict_proba(self, X: object) -> np.ndarray:
        """q(z = k) for each row, (n, K): softmax of E log π_k N(x; μ_k, Λ_k⁻¹)."""
        return self._mapped("responsibilities", X)[0]

    def score_samples(self, X: object, mesh: int | str | Mesh | None = None) -> np.ndarray:
        """log ∫ p(x | θ) q(θ) dθ of each row, (n,), nats: a mixture of Student t's; ``mesh`` as for ``tr.infer``.

        scikit-learn instead sums exp E log p(x, k | θ) over k, which is smaller and no density.
        """
        told, frame = self._mapped("predictive_log_prob", X, over_rows(mesh))
        return told - log_size(frame)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows from the predictive density, (n, d), each with its own θ from q; and their components, (n,).

        Seeded by ``random_state``. For a process, label K stands for all unused components.
        """
        check_is_fitted(self, "posterior_")
        expect_whole("n_samples", n_samples)
        generator = check_random_state(self.random_state)
        weights, means, scales, free = self._students()
        labels = generator.choice(len(weights), int(n_samples), p=weights)
        noise = generator.standard_normal((len(labels), means.shape[1]))
        diagonal = self.covariance_type == "diag"
        # Each independent precision has its own χ².
        chi = generator.chisquare(free[labels][:, None], (len(labels), means.shape[1] if diagonal else 1))
        noise = noise / np.sqrt(chi / free[labels][:, None])
        if self.covariance_type in ("full", "tied"):
            step = np.einsum("nij,nj->ni", np.linalg.cholesky(scales)[labels], noise)
        else:
            step = np.sqrt(scales.reshape(len(weights), -1))[labels] * noise
        return means[labels] + step, labels.astype(int)

    def _beforehand(self, x: np.ndarray, weight: np.ndarray, centre: np.ndarray) -> tuple[Prior, int]:
        """The prior from the settings, and in how many directions reg_covar is most of its default covariance."""
        d, matrix = len(centre), self.covariance_type in ("full", "tied")
        mean, freedom = shaped("mean_prior", self.mean_prior, (d,)), self.degrees_of_freedom_prior
        freedom, least = d if freedom is None else freedom, d - 1 if matrix else 0
        if not is_number(freedom, least):
            raise SettingsError(f"degrees_of_freedom_prior is above {least} and finite, or None; got {freedom!r}.")
        shape = (d, d) if matrix else (d,) if self.covariance_type == "diag" else ()
        covariance, held = shaped("covariance_prior", self.covariance_prior, shape), 0
        if covariance is None:
            covariance, held = varied(x - centre, weight, self.covariance_type, float(self.reg_covar))
        elif matrix and not np.allclose(covariance, covariance.T, rtol=1e-6, atol=0):
            raise SettingsError("covariance_prior needs to be symmetric and positive definite.")
        alpha = 1 / self.n_components if self.weight_concentration_prior is None else self.weight_concentration_prior
        beta = 1 if self.mean_precision_prior is None else self.mean_precision_prior
        mean = centre if mean is None else mean
        return Prior(float(alpha), mean, float(beta), float(freedom), covariance), held

    @property
    def _process(self) -> bool:
        return self.weight_concentration_prior_type == "dirichlet_process"

    def _model(self) -> ConjugateModel:
        return self._modelled(self._prior(), self._centre)

    def _modelled(self, prior: Prior, centre: np.ndarray) -> ConjugateModel:
        return bayesian_gaussian_mixture(
            int(self.n_components), len(centre), COVARIANCES[self.covariance_type], process=self._process,
            weight_concentration=prior.weight_concentration, mean_prior=prior.mean, mean_precision=prior.mean_precision,
            degrees_of_freedom=prior.degrees_of_freedom, covariance_prior=prior.covariance, centre=centre,
        )  # fmt: skip

    def _white(self, prior: Prior, frame: Frame) -> ConjugateModel:
        """The model of rows x̃ in the frame's units."""
        unit = np.eye(len(frame.root)) if frame.root.ndim == 2 else np.ones(frame.root.shape)
        off = inwards(frame, prior.mean[None])[0]
        return self._modelled(prior._replace(mean=off, covariance=unit), np.zeros(len(off)))

    def _beginning(self, white: ConjugateModel, frame: Frame, total: float) -> Callable:
        """``(key, rows) -> λ`` in the frame's units: from k-means++ on the original scales, or the last fit's end."""
        k = int(self.n_components)
        if self.warm_start and hasattr(self, "posterior_"):
            before, like = self._within(frame), white.conjugate.prior
            if [np.shape(leaf) for leaf in before] == [np.shape(leaf) for leaf in like]:
                return lambda key, rows: before

        def first(key: jax.Array, rows: np.ndarray) -> MixturePosterior:
            x, shares = clustered(key, spun(frame.root, np.asarray(rows, np.float64)), k)
            count, dtype = tables.length(len(x)), jnp.result_type(float)
            mask = np.full(len(x), total / len(x))
            return assigning(white.conjugate)(
                tables.padded(spun(frame.inverse, x).astype(dtype), count),
                tables.padded(mask.astype(dtype), count, 0.0),
                tables.padded(shares.astype(dtype), count),
            )

        return first

    def _conclude(
        self, found: Posterior, model: ConjugateModel, prior: Prior, frame: Frame, total: float, held: int
    ) -> None:
        """Set attributes, draws and report in the user's units, and warn."""
        steps, to_come, objective = (found.found[name] for name in ("steps", "to come", "objective"))
        q = outwards(frame, as_doubles(MixturePosterior(*(found.found[f"lambda {i}"] for i in range(5)))))
        bound = objective - total * log_size(frame)  # the bound for x, from that for x̃
        self._tell(q, prior, frame.centre)
        self.n_iter_, self.lower_bound_ = min(max(1, int(steps)), int(self.max_iter)), float(bound / total)
        # The extrapolated gain is a guess, least reliable where it was small enough to end the climb.
        wide = 1000 if steps < self.max_iter else 10
        self.converged_ = bool(to_come <= wide * self.tol * max(1.0, abs(objective)))

        checks = [c._replace(value=bound) if c.name == "bound" else c for c in found.report().checks]
        used = float(np.sum(q.mean_precision - prior.mean_precision >= 1))
        explained = f"of {int(self.n_components)} explain a row or more; others are as the prior has them"
        told = f"directions in which the rows vary by less than reg_covar = {self.reg_covar:g}, which the prior has"
        checks.append(Check("components in use", used, "trust", explained))
        if held:
            checks.append(Check("directions at the floor", float(held), "caution", told))
        numbers = {"objective": bound, "elbo": bound} | {f"lambda {i}": leaf for i, leaf in enumerate(q)}
        self.posterior_ = dataclasses.replace(
            found, model=model, data=None, standing=None, belief=Draws(positions=self._drawn(found, frame)),
            found=found.found | numbers, judged=judged(checks, found.report().title),
        )  # fmt: skip
        if not self.converged_:
            warnings.warn(
                f"Coordinate ascent has not converged in {self.n_iter_} steps, of max_iter={self.max_iter}: "
                f"{to_come:.3g} nats may be to come. Give more steps, a larger tol, or fewer components.",
                ConvergenceWarning,
                stacklevel=3,
            )
        if held:
            warnings.warn(f"{held} {told}. report_ says more.", TractableWarning, stacklevel=3)

    def _tell(self, q: MixturePosterior, prior: Prior, centre: np.ndarray) -> None:
        self.precisions_cholesky_, self.precisions_ = precision_roots(q.covariances, self.covariance_type)
        self._centre = centre
        for name, value in prior._asdict().items():
            setattr(self, f"{name}_prior_", value)
        self.weight_concentration_ = tuple(q.concentration) if self._process else q.concentration
        self.means_, self.mean_precision_, self.degrees_of_freedom_ = q.means, q.mean_precision, q.degrees_of_freedom
        self.covariances_ = q.covariances
        shares = shares_of(q.concentration)[: int(self.n_components)]
        self.weights_ = shares / shares.sum()

    def _drawn(self, found: Posterior, frame: Frame) -> np.ndarray:
        """Draws as unconstrained numbers (1, draws, k); also sets the standard errors, the draws' sds."""
        k, kind = int(self.n_components), COVARIANCES[self.covariance_type]
        draws = as_doubles(found.draws)  # (1, draws, ...)
        # Shares that underflowed to 0 would have no logarithm.
        draws = Gaussians(
            np.maximum(draws.weights, np.finfo(jnp.result_type(float)).tiny),
            frame.centre + spun(frame.root, draws.means),
            spread(frame.root, draws.covariances),
        )
        own = draws if kind == "tied" else draws._replace(covariances=draws.covariances[:, :, :k])
        own = own._replace(weights=own.weights[:, :, :k], means=own.means[:, :, :k])
        self.standard_errors_ = Gaussians(*(np.std(leaf[0], axis=0) for leaf in own))
        flat = laid_out(k + self._process, len(frame.centre), kind)
        return np.asarray(flat(as_floats(jax.tree.map(lambda a: a[0], draws))))[None]

    def _prior(self) -> Prior:
        return Prior(*(getattr(self, f"{name}_prior_") for name in Prior._fields))

    def _q(self) -> MixturePosterior:
        concentration, freedom = np.asarray(self.weight_concentration_), np.asarray(self.degrees_of_freedom_)
        return MixturePosterior(concentration, self.means_, self.mean_precision_, freedom, self.covariances_)

    def _within(self, frame: Frame) -> MixturePosterior:
        q = self._q()
        return q._replace(means=inwards(frame, q.means), covariances=spread(frame.inverse, q.covariances))

    def _students(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return students(self._q(), self._prior(), self.covariance_type, self._process)

    def _mapped(self, step: str, X: object, over: Over | None = None) -> tuple[np.ndarray, Frame]:
        """A closed form of the model at λ for each row, by blocks: (n, ...) in float64; and its frame."""
        x, prior = self._checked(X), self._prior()
        frame = framing(self._centre, prior.covariance)
        apply, dtype = compiled(self._white(prior, frame).conjugate, step, over), jnp.result_type(float)
        q = as_floats(self._within(frame))
        parts = ((inwards(frame, part).astype(dtype),) for (part,) in tables.some_at_a_time(BLOCK, x))
        return tables.mapped(lambda rows: apply(q, rows), parts), frame


@functools.lru_cache(maxsize=128)
def assigning(conjugate: Conjugate) -> Callable:
    """Compiled M-step, ``(x, weight, responsibilities) -> λ``."""
    assigned: Any = conjugate.assigned
    return jax.jit(lambda x, weight, shares: conjugate.m_step(assigned(Batch(x, weight, x.shape[0]), shares)))


@functools.lru_cache(maxsize=128)
def laid_out(components: int, features: int, kind: str) -> Callable:
    """A function from draws of θ, leading axis draws, to unconstrained numbers (draws, k)."""
    model = gaussian_mixture(components, features, kind, 0.0)
    return jax.jit(jax.vmap(model.position_of))
