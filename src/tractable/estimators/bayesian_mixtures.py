"""The Bayesian mixture of normals with scikit-learn's interface, fitted by variational Bayes."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from tractable.core.check import Check
from tractable.core.errors import DataError
from tractable.core.model import Batch
from tractable.core.settings import Count, Range, is_number
from tractable.diagnostics.belief import Draws
from tractable.estimators import rows as tables
from tractable.estimators.density import Plan
from tractable.estimators.frames import Frame, from_frame, log_size, map_moments, map_points, prior_frame, to_frame
from tractable.estimators.mixtures import COVARIANCES, Mixture
from tractable.latent.conjugate_models import ConjugateModel, bayesian_gaussian_mixture
from tractable.latent.conjugate_variational import Conjugate
from tractable.latent.coordinate_ascent import CoordinateAscent
from tractable.latent.linear_mixture import cluster_rows
from tractable.latent.mixture import Gaussians
from tractable.latent.variational_mixture import MixturePosterior
from tractable.posterior.posterior import Posterior

Process = Annotated[
    Literal["dirichlet_process", "dirichlet_distribution"], "one of dirichlet_process, dirichlet_distribution"
]
Positive = Annotated[float, Range("a number above 0 and finite", lambda value: is_number(value, 0))]


@dataclass(eq=False, repr=False)
class BayesianGaussianMixture(Mixture):
    """A mixture of normals with a posterior of weights, means and precisions, by variational Bayes.

        π ~ Dirichlet(α₀, …, α₀), or stick-breaking, v_k ~ Beta(1, α₀);   μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
        full, tied: Λ ~ Wishart(ν₀, C₀⁻¹);   diag: Λ_i ~ Gamma(ν₀/2, C₀_i/2);   spherical: λ ~ Gamma(d ν₀/2, d C₀/2)

    Coordinate ascent from several starts approximates the posterior by q(π, μ, Λ) q(z). Components that the data do
    not need lose their weight, so n_components is an upper bound. Names and defaults are those of scikit-learn, and so
    are the results for "full". For other covariance types scikit-learn's updates do not maximise its bound
    (``latent.variational_mixture`` says where they differ). Beyond scikit-learn, this estimator has weighted rows,
    posterior sds, the exact bound, the exact predictive density and a report. Rows are centred and scaled by the prior
    in double precision. Bishop 2006, section 10.2; Blei & Jordan 2006.

    ``score_samples`` is log ∫ p(x | θ) q(θ) dθ, the log density of a mixture of Student t distributions. scikit-learn
    instead sums exp E log p(x, k | θ) over k, which is smaller and not a density. ``fit`` warns if reg_covar makes up
    most of a variance. To fit by batches with a prior of your own, use ``CoordinateAscent(batch_size=...)`` with
    ``models.bayesian_gaussian_mixture``.

    Args:
        n_components: K ≥ 1, the largest number of components.
        covariance_type, max_iter, warm_start: as for ``GaussianMixture``.
        tol: > 0; the ascent stops when the gain still to come, by extrapolation, is below this share of the bound. The
            bound is that of rows in units of the prior's sds, so that the rows' own units do not matter.
        reg_covar: ≥ 0, in the units of x²; added to the variances of the default covariance_prior, which stay positive
            in this way if a column is constant. scikit-learn instead adds it in every M-step, which corresponds to no
            prior and breaks the bound.
        n_init: number of starts, ≥ 1, by k-means++; the result with the largest bound is kept.
        weight_concentration_prior_type: "dirichlet_process" or "dirichlet_distribution".
        weight_concentration_prior: α₀ > 0; 1/K by default.
        mean_precision_prior: β₀ > 0; the prior mean m₀ counts as much as β₀ rows; 1 by default.
        mean_prior: m₀, (d,); the rows' mean by default.
        degrees_of_freedom_prior: ν₀, above d − 1 for full and tied, else above 0; d by default.
        covariance_prior: C₀, positive definite, in the units of x²: full and tied (d, d), diag (d,), spherical a
            number. By default the rows' covariance, Σ w (x − x̄)(x − x̄)ᵀ / (Σ w − 1), its diagonal, or its mean.
        random_state: int, RandomState or None, for starts, draws and samples.
        draws: number of independent draws of θ from q in ``posterior_``, ≥ 1.

    Attributes:
        weights_: (K,), E[π]. For a Dirichlet process they are normalised to sum 1 as in scikit-learn, although the
            components beyond the K-th also have a share.
        means_: (K, d), E[μ].
        covariances_, precisions_, precisions_cholesky_: E[Λ]⁻¹, E[Λ] and its root, of the shapes that
            ``GaussianMixture`` has.
        weight_concentration_: (K,); for a Dirichlet process a pair of such arrays, the Beta parameters of v_k.
        mean_precision_: (K,), β.
        degrees_of_freedom_: (K,), ν; a number if tied.
        weight_concentration_prior_, mean_precision_prior_, mean_prior_: the prior that was used.
        degrees_of_freedom_prior_, covariance_prior_: the prior that was used.
        standard_errors_: a tuple of the posterior sds of weights, means and covariances, of their shapes, computed from
            the draws. For a component without rows they are the prior's sds; where the prior has no sd, they are large
            and arbitrary.
        lower_bound_: the bound on log p(rows), in nats (units of the natural logarithm) per row. scikit-learn's bound
            leaves out constants, so the two cannot be compared.
        converged_, n_iter_: whether the best start's ascent converged, and how many steps it took.
        posterior_: draws of θ, of type ``Gaussians``; for a Dirichlet process with one more component, which stands for
            all components beyond the K-th.
        report_, n_features_in_, feature_names_in_: as for ``GaussianMixture``.

    >>> X = np.random.default_rng(0).normal(size=(60, 1)) + np.repeat([0.0, 8.0], [40, 20])[:, None]
    >>> mixture = BayesianGaussianMixture(4, random_state=0, draws=50).fit(X)
    >>> np.sort(mixture.weights_).round(1).tolist()
    [0.0, 0.0, 0.3, 0.7]
    """

    _: KW_ONLY
    weight_concentration_prior_type: Process = "dirichlet_process"
    weight_concentration_prior: Positive | None = None
    mean_precision_prior: Positive | None = None
    mean_prior: ArrayLike | None = None
    degrees_of_freedom_prior: float | None = None
    covariance_prior: ArrayLike | None = None
    draws: Count = 1000
    _log_density = "predictive_log_prob"

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (n, d) from the predictive density, each with its own θ from q, and their components, (n,).

        ``random_state`` is the seed. For a Dirichlet process, label K stands for all components beyond the K-th.
        """
        # These rows have the mean precisions. Below, draws of the precisions rescale each row's offset from its mean.
        x, labels = super().sample(n_samples)
        q, prior, d = self._estimate, self._prior, x.shape[1]
        beta = np.append(q.mean_precision, prior["mean_precision"])[labels, None]
        nu_beyond = q.degrees_of_freedom if self.covariance_type == "tied" else prior["degrees_of_freedom"]
        nu = np.append(np.broadcast_to(q.degrees_of_freedom, len(q.means)), nu_beyond)[labels, None]
        nu = d * nu if self.covariance_type == "spherical" else nu
        free, columns = nu - d + 1 if self._matrices else nu, d if self.covariance_type == "diag" else 1
        chi = np.random.default_rng(self._seeds()[0]).chisquare(free, (len(x), columns))
        means = self._frame.centre + self._theta().means[labels]
        return means + np.sqrt((1 + 1 / beta) * nu / chi) * (x - means), labels

    def _plan(self, x: np.ndarray, weight: np.ndarray) -> Plan:
        """The plan to run coordinate ascent in coordinates in which the prior's covariance is 1 (a ``Frame``)."""
        centre, checks = weight @ x / weight.sum(), ()
        covariance, freedom = self.covariance_prior, self.degrees_of_freedom_prior
        if covariance is None:
            lift = float(self.reg_covar)
            covariance, at_floor = default_covariance(x - centre, weight, self.covariance_type, lift)
            sentence = f"in which the rows vary by less than reg_covar = {lift:g}, which the prior's variance includes"
            checks = (Check("directions at the floor", at_floor, "caution", sentence),) if at_floor else ()
        prior = {
            "weight_concentration": self.weight_concentration_prior or 1 / self.n_components,
            "mean_precision": self.mean_precision_prior or 1.0,
            "mean_prior": centre if self.mean_prior is None else np.asarray(self.mean_prior, np.float64),
            "degrees_of_freedom": len(centre) if freedom is None else freedom,
            "covariance_prior": np.asarray(covariance, np.float64),
        }
        frame = prior_frame(centre, prior["covariance_prior"])
        self._mixture(prior, centre)  # raises an error for a prior out of range
        model = self._frame_model(prior, frame)
        method = CoordinateAscent(
            starts=1 if self.n_components == 1 else int(self.n_init), steps=int(self.max_iter),
            tolerance=float(self.tol), draws=int(self.draws),
        )  # fmt: skip
        first = self._first_step(model, frame, float(weight.sum()))
        return Plan(frame, model.with_steps(first=first), method, prior, checks)

    @property
    def _process(self) -> bool:
        return self.weight_concentration_prior_type == "dirichlet_process"

    def _model(self) -> ConjugateModel:
        return self._mixture(self._prior, self._frame.centre)

    def _mixture(self, prior: dict[str, Any], centre: np.ndarray) -> ConjugateModel:
        kind = COVARIANCES[self.covariance_type]
        size = int(self.n_components), len(centre)
        return bayesian_gaussian_mixture(*size, kind, process=self._process, centre=centre, **prior)

    def _frame_model(self, prior: dict[str, Any], frame: Frame) -> ConjugateModel:
        """The model of rows in the frame's coordinates."""
        unit = np.eye(len(frame.root)) if frame.root.ndim == 2 else np.ones(frame.root.shape)
        mean = to_frame(frame, prior["mean_prior"][None])[0]
        return self._mixture(prior | {"mean_prior": mean, "covariance_prior": unit}, np.zeros(len(mean)))

    def _forms(self) -> Conjugate:
        return self._frame_model(self._prior, self._frame).conjugate

    def _first_step(self, model: ConjugateModel, frame: Frame, total: float) -> Callable:
        """A function ``(key, rows) -> λ`` that gives the first parameters of q, in the frame's coordinates.

        They come from k-means++ on the rows' original scales; or, for a warm start, from the last fit.
        """
        forms = model.conjugate
        if self.warm_start and hasattr(self, "posterior_"):
            last = from_frame(self._frame, self._estimate)
            last = map_moments(frame.inverse, last._replace(means=last.means - frame.centre))
            if [np.shape(leaf) for leaf in last] == [np.shape(leaf) for leaf in forms.prior]:
                return lambda key, rows: last

        def first(key: jax.Array, rows: np.ndarray) -> MixturePosterior:
            x, shares = cluster_rows(key, map_points(frame.root, np.asarray(rows, np.float64)), int(self.n_components))
            count, dtype = tables.length(len(x)), jnp.result_type(float)
            weight = tables.pad_rows(np.full(len(x), total / len(x), dtype), count, 0.0)
            x, shares = (tables.pad_rows(a.astype(dtype), count) for a in (map_points(frame.inverse, x), shares))
            batch = Batch(x, jnp.asarray(weight), count)
            return tables.program(forms, "m_step")(tables.program(forms, "assigned")(batch, shares))

        return first

    def _read(self, posterior: Posterior) -> MixturePosterior:
        return tables.as_doubles(MixturePosterior(*(posterior.found[f"lambda {i}"] for i in range(5))))

    def _theta(self) -> Gaussians:
        return self._in_scale(self._forms().mean(tables.as_floats(self._estimate)))

    def _in_scale(self, theta: Gaussians) -> Gaussians:
        """θ in the user's scale, computed from θ for rows in the frame's coordinates."""
        return map_moments(self._frame.root, tables.as_doubles(theta))

    def _results(self, posterior: Posterior, total: float) -> tuple[Gaussians, list[Check], dict[str, Any]]:
        k, q = int(self.n_components), from_frame(self._frame, self._estimate)
        draws = self._in_scale(jax.tree.map(lambda leaf: leaf[0], posterior.draws))
        # A weight that underflowed to 0 would have no logarithm.
        weights = np.maximum(draws.weights, np.finfo(jnp.result_type(float)).tiny)
        draws = draws._replace(weights=weights, means=draws.means + self._frame.centre)
        weights, means, covariances = (np.std(leaf, axis=0) for leaf in draws)
        errors = Gaussians(weights[:k], means[:k], covariances if self.covariance_type == "tied" else covariances[:k])
        bound = posterior.found["objective"] - total * log_size(self._frame)
        checks = [c._replace(value=bound) if c.name == "bound" else c for c in posterior.report().checks]
        used = float(np.sum(q.mean_precision - self._prior["mean_precision"] >= 1))
        sentence = f"of {k} explain a row or more; the other components are as in the prior"
        checks.append(Check("components in use", used, "trust", sentence))
        position_of = tables.program(self._frame_model(self._prior, self._frame), "position_of")
        positions = jax.vmap(position_of)(tables.as_floats(draws))
        numbers = {"objective": bound, "elbo": bound} | {f"lambda {i}": leaf for i, leaf in enumerate(q)}
        belief = Draws(positions=np.asarray(positions)[None])
        return errors, checks, {"belief": belief, "found": posterior.found | numbers}

    def _attributes(self) -> dict[str, Any]:
        q, shares = from_frame(self._frame, self._estimate), self._theta().weights[: int(self.n_components)]
        return {
            **{f"{name.removesuffix('_prior')}_prior_": value for name, value in self._prior.items()},
            "weight_concentration_": tuple(q.concentration) if self._process else q.concentration,
            "mean_precision_": q.mean_precision, "degrees_of_freedom_": q.degrees_of_freedom,
            "weights_": shares / shares.sum(), "means_": q.means, "covariances_": q.covariances,
            **self._precisions(q.covariances),
        }  # fmt: skip


def default_covariance(off: np.ndarray, weight: np.ndarray, kind: str, lift: float) -> tuple[np.ndarray, int]:
    """The default covariance of the prior: that of the rows, plus ``lift`` on the variances.

    Args:
        off: (n, d), the rows minus their mean.
        weight: (n,), how often each row counts.
        kind: the covariance type.
        lift: ``reg_covar``.

    Returns:
        The covariance; and the number of directions in which ``lift`` is at least half of the variance.
    """
    total = weight.sum()
    if not total > 1:
        raise DataError(
            f"sample_weight says how often each row counts, and sums to {total:.4g}: one row or less has no "
            "covariance. Give weights that sum to the number of rows, or give covariance_prior."
        )
    if kind in ("full", "tied"):
        covariance = (weight[:, None] * off).T @ off / (total - 1)
        covariance = (covariance + covariance.T) / 2
        return covariance + lift * np.eye(len(covariance)), int(np.sum(np.linalg.eigvalsh(covariance) <= lift))
    variances = weight @ off**2 / (total - 1)
    variances = variances if kind == "diag" else np.mean(variances)
    return np.asarray(variances + lift), int(np.sum(variances <= lift))
