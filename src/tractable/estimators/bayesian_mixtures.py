"""The mixture of normals whose parameters are believed, not estimated, as scikit-learn has it: variational Bayes."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from tractable.checks.convergence import Check
from tractable.core import Batch
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian
from tractable.estimators.density import MERGED, as_doubles, as_floats, as_rows, check_whole, judged, merged, middle
from tractable.estimators.mixtures import COVARIANCES, precision_roots, shaped
from tractable.infer import infer
from tractable.kernels.em import Expected
from tractable.methods.coordinate_ascent import CoordinateAscent
from tractable.models.conjugate_variational import Conjugate
from tractable.models.mixture import Gaussians, clustered, gaussian_mixture
from tractable.models.variational import ConjugateModel, bayesian_gaussian_mixture
from tractable.models.variational_mixture import MixturePosterior
from tractable.posterior import Posterior
from tractable.tools.data import Data
from tractable.tools.errors import DataError, SettingsError, TractableWarning

PROCESSES = {"dirichlet_process": True, "dirichlet_distribution": False}
BLOCK = 1 << 12  # rows that are told of at a time


class Prior(NamedTuple):
    """What is believed beforehand, in the user's units."""

    concentration: float  # α₀
    mean: np.ndarray  # (d,) m₀
    mean_precision: float  # β₀
    freedom: float  # ν₀
    covariance: np.ndarray  # C₀: full and tied (d, d), diag (d,), spherical ()


class Frame(NamedTuple):
    """x = centre + L x̃ with C₀ = L Lᵀ: in x̃ every table has the prior C₀ = 1, and so one compilation."""

    centre: np.ndarray  # (d,)
    root: np.ndarray  # L, shaped like C₀
    inverse: np.ndarray  # L⁻¹


class Counted(ConjugateModel):
    """A conjugate model of rows (x, w) that count w times.

    Two that differ in where they begin are one to the compiler, which does not see it.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.conjugate is other.conjugate

    def __hash__(self) -> int:
        return hash(self.conjugate)


@functools.lru_cache(maxsize=128)  # so that a second fit finds its compilation
def counting(conjugate: Conjugate) -> Conjugate:
    """The closed forms for rows (x, w) from those for rows x."""

    def weigh(q: Any, batch: Batch) -> Expected:
        x, weight = batch.data
        return conjugate.e_step(q, Batch(x, batch.mask * weight, batch.size))

    return dataclasses.replace(conjugate, e_step=weigh)


def counted(base: ConjugateModel, first: Callable) -> Counted:
    """The model of rows (x, w) from that of rows x; ``first`` is λ of a key and rows."""

    def log_prob(theta: Gaussians, rows: tuple) -> jax.Array:
        x, weight = rows
        return weight * base.summed_out(theta, x)

    made: Any = Counted.from_steps(None, None, log_prob, base.position, support=base.support, prior=base.prior)
    made._set(conjugate=counting(base.conjugate), first=first)
    return made


class BayesianGaussianMixture(DensityMixin, Bayesian):
    """A mixture of normals by variational Bayes: what is believed of weights, means and precisions after the rows.

        π ~ Dirichlet(α₀, …, α₀), or pieces of a stick, v_k ~ Beta(1, α₀);   μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
        full, tied: Λ ~ Wishart(ν₀, C₀⁻¹);   diag: Λ_i ~ Gamma(ν₀/2, C₀_i/2);   spherical: λ ~ Gamma(d ν₀/2, d C₀/2)

    by q(π, μ, Λ) q(z), coordinate ascent from several starts. Components that nothing needs lose their weight, so
    n_components is a bound, not a choice. scikit-learn's names and defaults, and for "full" its numbers; of other types
    it climbs other formulas than those of the bound (``models.variational_mixture`` says which). With weighted rows,
    posterior sds, the true bound, the true predictive density and a report besides. Rows are brought to the prior's
    centre and scale inside, in double precision. Bishop 2006, section 10.2; Blei & Jordan 2006.

    There is no ``partial_fit``: the default prior is made from all rows, which a batch does not know. On a prior of
    one's own ``CoordinateAscent(batch_size=...)`` learns a ``models.bayesian_gaussian_mixture`` from batches.

    Args:
        n_components: K ≥ 1, at most.
        covariance_type: "full", "tied" (one for all), "diag" or "spherical".
        tol: > 0; a climb ends when what is still to come, by extrapolation, is below this share of the bound
            (of rows in the prior's units, so that theirs do not matter).
        reg_covar: ≥ 0, in the units of x²: added to the variances of the default covariance_prior, which keeps it
            positive where a column is constant. scikit-learn adds it to every row's square instead, which no prior does
            and which breaks the bound.
        max_iter: steps at most, ≥ 1.
        n_init: starts, ≥ 1, by k-means++; the one of the largest bound is kept.
        weight_concentration_prior_type: "dirichlet_process" or "dirichlet_distribution".
        weight_concentration_prior: α₀ > 0; 1/K by default.
        mean_precision_prior: β₀ > 0, the rows that m₀ is worth; 1 by default.
        mean_prior: m₀, (d,); the rows' mean by default.
        degrees_of_freedom_prior: ν₀, above d − 1 where full or tied, else above 0; d by default.
        covariance_prior: C₀, positive definite, in the units of x²: full and tied (d, d), diag (d,), spherical a
            number; the rows' covariance, Σ w (x − x̄)(x − x̄)ᵀ / (Σ w − 1), its diagonal, or the mean of that.
        random_state: int, RandomState or None, of starts, draws and samples.
        warm_start: begin where the last fit ended.
        draws: independent draws of θ from q that ``posterior_`` holds, ≥ 1.

    Attributes:
        weights_: (K,) E[π]; of a process made to sum to 1, as scikit-learn's, though a share is left for components
            not used. means_: (K, d) E[μ].
        covariances_, precisions_: E[Λ]⁻¹ and E[Λ]: full (K, d, d), tied (d, d), diag (K, d), spherical (K,).
        precisions_cholesky_: likewise, U of precision = U Uᵀ; roots where diagonal.
        weight_concentration_: (K,); of a process two of them, of v_k ~ Beta. mean_precision_: (K,).
            degrees_of_freedom_: (K,); tied a number.
        weight_concentration_prior_, mean_precision_prior_, mean_prior_, degrees_of_freedom_prior_,
            covariance_prior_: the prior as it was used.
        standard_errors_: posterior sds of weights, means and covariances, a tuple of arrays shaped like them, from the
            draws. Of a component without rows they are the prior's, which may have none: then large, and by chance.
        lower_bound_: the bound on log p(rows), a row, nats. scikit-learn's drops constants, and compares with none.
        converged_, n_iter_: of the best start.
        posterior_: draws of θ, ``Gaussians``; a process has one component more, which stands for all not used.
        report_: how far to trust it.
        n_features_in_, feature_names_in_: of the rows fitted.

    >>> X = np.random.default_rng(0).normal(size=(60, 1)) + np.repeat([0.0, 8.0], [40, 20])[:, None]
    >>> mixture = BayesianGaussianMixture(4, random_state=0, draws=50).fit(X)
    >>> np.sort(mixture.weights_).round(1).tolist()
    [0.0, 0.0, 0.3, 0.7]
    """

    weights_: np.ndarray
    means_: np.ndarray
    covariances_: np.ndarray
    precisions_: np.ndarray
    precisions_cholesky_: np.ndarray
    weight_concentration_: Any
    mean_precision_: np.ndarray
    degrees_of_freedom_: Any
    standard_errors_: Gaussians
    lower_bound_: float
    converged_: bool
    n_iter_: int
    _centre: np.ndarray

    def __init__(
        self,
        n_components: Any = 1,
        *,
        covariance_type: Any = "full",
        tol: Any = 1e-6,
        reg_covar: Any = 1e-6,
        max_iter: Any = 1000,
        n_init: Any = 4,
        weight_concentration_prior_type: Any = "dirichlet_process",
        weight_concentration_prior: Any = None,
        mean_precision_prior: Any = None,
        mean_prior: Any = None,
        degrees_of_freedom_prior: Any = None,
        covariance_prior: Any = None,
        random_state: Any = None,
        warm_start: Any = False,
        draws: Any = 1000,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.weight_concentration_prior_type = weight_concentration_prior_type
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_precision_prior = mean_precision_prior
        self.mean_prior = mean_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.covariance_prior = covariance_prior
        self.random_state = random_state
        self.warm_start = warm_start
        self.draws = draws

    # What users call.

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, d), an array or a frame of numbers.
            y: ignored.
            sample_weight: (n,), ≥ 0, how often each row counts, in the prior's defaults too. Zero is as if the row were
                not there. Of up to 65,536 rows a whole number is as if it were there so often, to the last digit.

        Returns:
            The estimator.

        Raises:
            ValueError: no rows, fewer distinct rows than components, NaN, settings out of range; in a sentence.

        Warns:
            ConvergenceWarning: max_iter steps were too few. TractableWarning: reg_covar holds a column up.
        """
        del y
        self._check_settings()
        x = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        x, weight = merged(x, self._weights(sample_weight, x))
        if len(x) < self.n_components:
            raise DataError(
                f"A mixture of n_components = {self.n_components} begins with as many rows that differ and count; got "
                f"n_samples = {len(x)} of those. Give more rows, or fewer components."
            )
        centre = middle([(x, weight)], x.shape[1])
        prior, held = self._beforehand(x, weight, centre)
        frame = framing(centre, prior.covariance)
        model = self._modelled(prior, centre)
        rows = tables.length(len(x)) if len(x) <= MERGED else len(x)  # few lengths, few compilations
        dtype = jnp.result_type(float)
        data = Data(
            tables.padded(inwards(frame, x).astype(dtype), rows),
            given=tables.padded(weight.astype(dtype), rows, 0.0),
            resident=True,
        )
        white = self._white(prior, frame)
        found = infer(
            counted(white, self._beginning(white, frame)),
            data,
            CoordinateAscent(
                starts=1 if self.n_components == 1 else int(self.n_init),
                steps=int(self.max_iter),
                tolerance=float(self.tol),
                draws=int(self.draws),
            ),
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            progress=False,
        )
        self._conclude(found, model, prior, frame, float(weight.sum()), held)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """``fit`` and then ``predict``."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest component, (n,)."""
        return self.predict_proba(X).argmax(1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """q(z = k) of every row, (n, K): softmax of E log π_k N(x; μ_k, Λ_k⁻¹)."""
        return self._mapped("responsibilities", X)[0]

    def score_samples(self, X: Any) -> np.ndarray:
        """log ∫ p(x | θ) q(θ) dθ of every row, (n,), nats: a mixture of Student t's.

        scikit-learn tells exp E log p(x, k | θ) summed over k instead, which is less, and no density.
        """
        told, frame = self._mapped("predictive_log_prob", X)
        return told - log_size(frame)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of ``score_samples``."""
        del y
        return float(np.mean(self.score_samples(X)))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows from the predictive density, each of a θ of its own from q: (n, d), and their components, (n,).

        By ``random_state``. A process has a component K too: all those not used.
        """
        check_is_fitted(self, "posterior_")
        check_whole(n_samples=n_samples)
        generator = check_random_state(self.random_state)
        weights, means, scales, free = self._students()
        labels = generator.choice(len(weights), int(n_samples), p=weights)
        noise = generator.standard_normal((len(labels), means.shape[1]))
        diagonal = self.covariance_type == "diag"
        # A column of its own precision has a χ² of its own.
        chi = generator.chisquare(free[labels][:, None], (len(labels), means.shape[1] if diagonal else 1))
        noise = noise / np.sqrt(chi / free[labels][:, None])
        if self.covariance_type in ("full", "tied"):
            step = np.einsum("nij,nj->ni", np.linalg.cholesky(scales)[labels], noise)
        else:
            step = np.sqrt(scales.reshape(len(weights), -1))[labels] * noise
        return means[labels] + step, labels.astype(int)

    # How it is done.

    @property
    def _process(self) -> bool:
        return PROCESSES[self.weight_concentration_prior_type]

    def _model(self) -> ConjugateModel:
        """The model of rows x in the user's units."""
        return self._modelled(self._prior(), self._centre)

    def _modelled(self, prior: Prior, centre: np.ndarray) -> ConjugateModel:
        return bayesian_gaussian_mixture(
            int(self.n_components), len(centre), COVARIANCES[self.covariance_type], process=self._process,
            weight_concentration=prior.concentration, mean_prior=prior.mean, mean_precision=prior.mean_precision,
            degrees_of_freedom=prior.freedom, covariance_prior=prior.covariance, centre=centre,
        )  # fmt: skip

    def _white(self, prior: Prior, frame: Frame) -> ConjugateModel:
        """The model of rows x̃ of the frame."""
        unit = np.eye(len(frame.root)) if frame.root.ndim == 2 else np.ones(frame.root.shape)
        off = inwards(frame, prior.mean[None])[0]
        return self._modelled(prior._replace(mean=off, covariance=unit), np.zeros(len(off)))

    def _check_settings(self) -> None:
        """Settings that need no rows to be judged."""
        check_whole(n_components=self.n_components, n_init=self.n_init, max_iter=self.max_iter, draws=self.draws)
        if not isinstance(self.covariance_type, str) or self.covariance_type not in COVARIANCES:
            raise SettingsError(f"covariance_type is one of {', '.join(COVARIANCES)}; got {self.covariance_type!r}.")
        kind = self.weight_concentration_prior_type
        if not isinstance(kind, str) or kind not in PROCESSES:
            raise SettingsError(f"weight_concentration_prior_type is one of {', '.join(PROCESSES)}; got {kind!r}.")
        if not is_number(self.tol, 0):
            raise SettingsError(f"tol is a share of the bound, above 0 and finite; got {self.tol!r}.")
        if not (is_number(self.reg_covar, -1) and self.reg_covar >= 0):
            raise SettingsError(f"reg_covar is a variance, 0 or more and finite; got {self.reg_covar!r}.")
        for name in ("weight_concentration_prior", "mean_precision_prior"):
            value = getattr(self, name)
            if value is not None and not is_number(value, 0):
                raise SettingsError(f"{name} is a number above 0 and finite, or None; got {value!r}.")

    def _beforehand(self, x: np.ndarray, weight: np.ndarray, centre: np.ndarray) -> tuple[Prior, int]:
        """The prior, and in how many directions of its default reg_covar is all, or most."""
        d = len(centre)
        mean, freedom = shaped("mean_prior", self.mean_prior, (d,)), self.degrees_of_freedom_prior
        freedom, least = d if freedom is None else freedom, d - 1 if self.covariance_type in ("full", "tied") else 0
        if not is_number(freedom, least):
            raise SettingsError(f"degrees_of_freedom_prior is above {least} and finite, or None; got {freedom!r}.")
        shape = {"diag": (d,), "spherical": ()}.get(self.covariance_type, (d, d))
        covariance, held = shaped("covariance_prior", self.covariance_prior, shape), 0
        if covariance is None:
            covariance, held = self._varied(x - centre, weight)
        elif len(shape) == 2 and not np.allclose(covariance, covariance.T, rtol=1e-6, atol=0):
            raise SettingsError("covariance_prior needs to be symmetric and positive definite.")
        alpha, beta = self.weight_concentration_prior, self.mean_precision_prior
        prior = Prior(
            float(1 / self.n_components if alpha is None else alpha), centre if mean is None else mean,
            float(1 if beta is None else beta), float(freedom), covariance,
        )  # fmt: skip
        return prior, held

    def _varied(self, off: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, int]:
        """The rows' covariance in the prior's shape, reg_covar added."""
        total, lift = weight.sum(), float(self.reg_covar)
        if not total > 1:
            raise DataError(
                f"sample_weight says how often each row counts, and sums to {total:.4g}: of one row or less there is "
                "no covariance. Make the sum that of the rows, or give covariance_prior."
            )
        if self.covariance_type in ("full", "tied"):
            found = (weight[:, None] * off).T @ off / (total - 1)
            found = (found + found.T) / 2
            return found + lift * np.eye(len(found)), int(np.sum(np.linalg.eigvalsh(found) <= lift))
        found = weight @ off**2 / (total - 1)
        found = found if self.covariance_type == "diag" else np.mean(found)
        return np.asarray(found + lift), int(np.sum(found <= lift))

    def _beginning(self, white: ConjugateModel, frame: Frame) -> Callable:
        """``(key, rows) -> λ`` of the frame: by k-means++, in the columns' own scales, or where the last fit ended."""
        k = int(self.n_components)
        if self.warm_start and hasattr(self, "posterior_"):
            before, like = self._within(frame), white.conjugate.prior
            if [np.shape(leaf) for leaf in before] == [np.shape(leaf) for leaf in like]:
                return lambda key, rows: before

        def first(key: jax.Array, rows: tuple) -> MixturePosterior:
            x, weight = (np.asarray(part, np.float64) for part in rows)
            seen = as_rows(x[weight > 0], weight[weight > 0])
            x, shares = clustered(key, spun(frame.root, seen), k)
            count, dtype = tables.length(len(x)), jnp.result_type(float)
            mask = np.full(len(x), weight.sum() / len(x))
            return assigning(white.conjugate)(
                tables.padded(spun(frame.inverse, x).astype(dtype), count),
                tables.padded(mask.astype(dtype), count, 0.0),
                tables.padded(shares.astype(dtype), count),
            )

        return first

    def _conclude(
        self, found: Posterior, model: ConjugateModel, prior: Prior, frame: Frame, total: float, held: int
    ) -> None:
        """Attributes, draws and report in the user's units."""
        k, kind = int(self.n_components), COVARIANCES[self.covariance_type]
        steps, to_come, objective = (found.found[name] for name in ("steps", "to come", "objective"))
        q = outwards(frame, as_doubles(MixturePosterior(*(found.found[f"lambda {i}"] for i in range(5)))))
        draws = as_doubles(found.draws)  # (1, draws, ...)
        draws = Gaussians(
            draws.weights, frame.centre + spun(frame.root, draws.means), spread(frame.root, draws.covariances)
        )
        bound = objective - total * log_size(frame)  # of x from that of x̃
        roots, precisions = precision_roots(q.covariances, self.covariance_type)
        # A share that underflowed has no logarithm.
        draws = draws._replace(weights=np.maximum(draws.weights, np.finfo(jnp.result_type(float)).tiny))
        flat = laid_out(k + self._process, len(frame.centre), kind)(as_floats(jax.tree.map(lambda a: a[0], draws)))

        self._centre = frame.centre
        self.weight_concentration_prior_, self.mean_precision_prior_ = prior.concentration, prior.mean_precision
        self.mean_prior_, self.degrees_of_freedom_prior_ = prior.mean, prior.freedom
        self.covariance_prior_ = prior.covariance
        self.weight_concentration_ = tuple(q.concentration) if self._process else q.concentration
        self.means_, self.mean_precision_, self.degrees_of_freedom_ = q.means, q.mean_precision, q.degrees_of_freedom
        self.covariances_, self.precisions_cholesky_, self.precisions_ = q.covariances, roots, precisions
        shares = shares_of(q.concentration)[:k]
        self.weights_ = shares / shares.sum()
        own = draws if kind == "tied" else draws._replace(covariances=draws.covariances[:, :, :k])
        own = own._replace(weights=own.weights[:, :, :k], means=own.means[:, :, :k])
        self.standard_errors_ = Gaussians(*(np.std(leaf[0], axis=0) for leaf in own))
        self.n_iter_, self.lower_bound_ = min(max(1, int(steps)), int(self.max_iter)), float(bound / total)
        # What is extrapolated is a guess, and the less to be trusted where it was little enough to end the climb.
        wide = 1000 if steps < self.max_iter else 10
        self.converged_ = bool(to_come <= wide * self.tol * max(1.0, abs(objective)))

        checks = [c._replace(value=bound) if c.name == "bound" else c for c in found.report().checks]
        used = float(np.sum(q.mean_precision - prior.mean_precision >= 1))
        checks.append(
            Check("components in use", used, "trust", f"of {k} explain a row or more; others are as the prior has them")
        )
        if held:
            told = f"directions in which the rows vary by less than reg_covar = {self.reg_covar:g}, which the prior has"
            checks.append(Check("directions at the floor", float(held), "caution", told))
        numbers = {"objective": bound, "elbo": bound} | {f"lambda {i}": leaf for i, leaf in enumerate(q)}
        self.posterior_ = dataclasses.replace(
            found, model=model, data=None, standing=None, surplus={}, unconstrained=np.asarray(flat)[None],
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

    def _prior(self) -> Prior:
        return Prior(
            self.weight_concentration_prior_, self.mean_prior_, self.mean_precision_prior_,
            self.degrees_of_freedom_prior_, self.covariance_prior_,
        )  # fmt: skip

    def _q(self) -> MixturePosterior:
        """λ in the user's units."""
        return MixturePosterior(
            np.asarray(self.weight_concentration_), self.means_, self.mean_precision_,
            np.asarray(self.degrees_of_freedom_), self.covariances_,
        )  # fmt: skip

    def _within(self, frame: Frame) -> MixturePosterior:
        """λ in a frame."""
        q = self._q()
        return q._replace(means=inwards(frame, q.means), covariances=spread(frame.inverse, q.covariances))

    def _students(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The predictive density's weights, centres, squared scales and degrees, a leading axis of components."""
        q, prior = self._q(), self._prior()
        weights, d, kind = shares_of(q.concentration), q.means.shape[1], self.covariance_type
        means, beta = q.means, q.mean_precision
        nu, covariances = q.degrees_of_freedom, q.covariances
        if self._process:  # and all that are not used
            means, beta = np.vstack([means, prior.mean]), np.append(beta, prior.mean_precision)
            if kind != "tied":
                nu = np.append(nu, prior.freedom)
                covariances = np.concatenate([covariances, np.asarray(prior.covariance / prior.freedom)[None]])
        nu = np.broadcast_to(nu, len(means))
        covariances = np.broadcast_to(covariances, (len(means), *np.shape(prior.covariance)))
        free = nu - d + 1 if kind in ("full", "tied") else d * nu if kind == "spherical" else nu
        wider = (1 + 1 / beta) * (nu / free if kind in ("full", "tied") else 1.0)
        return weights, means, covariances * wider.reshape(-1, *[1] * (covariances.ndim - 1)), free

    def _mapped(self, step: str, X: Any) -> tuple[np.ndarray, Frame]:
        """A closed form of the model at λ, a block of rows at a time: (n, ...) in float64; and the frame it is of."""
        x = self._checked(X)
        prior = self._prior()
        frame = framing(self._centre, prior.covariance)
        apply, dtype = told_by(self._white(prior, frame).conjugate, step), jnp.result_type(float)
        q, out = as_floats(self._within(frame)), []
        for start in range(0, len(x), BLOCK):
            part = inwards(frame, x[start : start + BLOCK]).astype(dtype)
            found = apply(q, jnp.asarray(tables.padded(part, tables.length(len(part)))))
            out.append(np.asarray(found, np.float64)[: len(part)])
        return np.concatenate(out), frame


def framing(centre: np.ndarray, covariance: np.ndarray) -> Frame:
    """The frame in which a prior's C₀ is 1.

    Raises:
        DataError: C₀ is not positive definite.
    """
    try:
        if covariance.ndim < 2 and not np.all(covariance > 0):
            raise np.linalg.LinAlgError
        root = np.linalg.cholesky(covariance) if covariance.ndim == 2 else np.sqrt(covariance)
    except np.linalg.LinAlgError:
        raise DataError(
            "covariance_prior is not positive definite; by default it is the rows' covariance. Is a column constant, "
            "the sum of others, or are there fewer rows than columns? Use a larger reg_covar, fewer columns, or a "
            "covariance_prior of your own."
        ) from None
    inverse = np.linalg.inv(root) if root.ndim == 2 else 1 / root
    return Frame(centre, np.asarray(root), np.asarray(inverse))


def spun(root: np.ndarray, x: np.ndarray) -> np.ndarray:
    """L x of every point, (..., d)."""
    return x @ root.T if root.ndim == 2 else x * root


def spread(root: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """L Σ Lᵀ, of whatever shape a type has."""
    return root @ covariances @ root.T if root.ndim == 2 else covariances * root**2


def inwards(frame: Frame, x: np.ndarray) -> np.ndarray:
    """x̃ of rows, (n, d)."""
    return spun(frame.inverse, x - frame.centre)


def outwards(frame: Frame, q: MixturePosterior) -> MixturePosterior:
    """λ of x from λ of x̃."""
    return q._replace(means=frame.centre + spun(frame.root, q.means), covariances=spread(frame.root, q.covariances))


def log_size(frame: Frame) -> float:
    """log |L|: by so much log p(x̃) lies above log p(x)."""
    root = np.diag(frame.root) if frame.root.ndim == 2 else frame.root
    return float(np.sum(np.log(np.broadcast_to(root, len(frame.centre)))))


def shares_of(concentration: np.ndarray) -> np.ndarray:
    """E[π]: (K,), or of a process's Betas, (2, K), K + 1 shares, the last of them what is left of the stick."""
    if concentration.ndim == 1:
        return concentration / concentration.sum()
    piece, left = concentration / concentration.sum(0)
    return np.append(piece, 1.0) * np.append(1.0, np.cumprod(left))


def is_number(value: Any, least: int | float) -> bool:
    """Whether it is a finite number above ``least``."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return bool(number and least < value < math.inf)


@functools.lru_cache(maxsize=128)
def assigning(conjugate: Conjugate) -> Callable:
    """``(x, weight, responsibilities) -> λ``, compiled."""
    assigned: Any = conjugate.assigned
    return jax.jit(lambda x, weight, shares: conjugate.m_step(assigned(Batch(x, weight, x.shape[0]), shares)))


@functools.lru_cache(maxsize=128)
def told_by(conjugate: Conjugate, step: str) -> Callable:
    """A closed form, compiled."""
    return jax.jit(getattr(conjugate, step))


@functools.lru_cache(maxsize=128)
def laid_out(components: int, features: int, kind: str) -> Callable:
    """θ's, a leading axis of draws, as unconstrained numbers (draws, k); whatever is believed of them."""
    model = gaussian_mixture(components, features, kind, 0.0)
    return jax.jit(jax.vmap(lambda theta: model.space.ravel(model.unconstrain(theta))))
