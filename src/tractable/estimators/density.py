"""The base of mixtures and factor analysis: scikit-learn's interface to a latent-variable model and ``infer``."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from tractable.core.check import Check
from tractable.core.latent import Climbed, LatentModel
from tractable.core.model import PyTree
from tractable.core.settings import Count, Range, expect_whole, is_number
from tractable.core.words import tell
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.report import worst
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import over_rows
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian, Scored
from tractable.estimators.frames import Frame, log_size, prior_frame, to_frame
from tractable.latent.em_method import EM
from tractable.posterior.posterior import Posterior

BLOCK = 1 << 12  # how many rows are evaluated at a time
# The cause of a fit that broke off, in the words of warnings and the report.
COLLAPSED = "A component has collapsed, or a column is constant: use a larger floor of variances, or fewer components"
Tolerance = Annotated[
    float, Range("a share of the log likelihood or bound, above 0 and finite", lambda value: is_number(value, 0))
]  # fmt: skip


class Plan(NamedTuple):
    """How a table is learnt: rows in the coordinates of ``frame`` are given to ``infer`` with this model and method."""

    frame: Frame
    model: LatentModel  # the model of rows in the frame's coordinates, with its starting points
    method: EM
    prior: Any = None  # the prior in the user's units; None for a maximum of the likelihood
    checks: tuple[Check, ...] = ()  # the report's checks of the settings


class Density(Scored, DensityMixin, Bayesian):
    """Base of estimators of the density p(x) = ∫ p(x, z | θ) dz with latent z.

    By default the estimate of θ is a maximum of the likelihood, which EM finds.
    """

    tol: Tolerance
    max_iter: Count
    _model: Callable[[], LatentModel]  # the model in the user's units
    _check_rows: Callable[[int], None]  # raises for too few distinct rows, and for settings that do not suit the rows
    _attributes: Callable[[], dict[str, Any]]  # the results in the user's units, by scikit-learn's names
    _log_density = "log_prob"  # the name of the model's function that gives each row's log density
    _observed_information: bool = True  # whether standard errors come from the observed information
    _frame: Frame
    _prior: Any
    _estimate: PyTree  # θ, or the parameters λ of q(θ), for rows in the frame's coordinates, in float64

    def fit(self, X: object, y: object = None, sample_weight: object = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, d), an array or a data frame of numbers.
            y: ignored.
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(xᵢ|θ). Weight 0 has the same effect as
                leaving the row out. With up to 65,536 rows, a whole-number weight gives the same result, to the last
                digit, as repeating the row.

        Returns:
            The estimator.

        Raises:
            ValueError: no rows, fewer distinct rows than components, NaN, or settings out of range.

        Warns:
            ConvergenceWarning: max_iter steps were too few. TractableWarning: the fit is degenerate; ``report_`` says
                where.
        """
        self._check_settings()
        x = self._check_table(X, reset=True, ensure_min_samples=2)
        x, weight = tables.merge_equal_rows(x, self._weights(sample_weight, x))
        self._check_rows(len(x))
        plan = self._plan(x, weight)
        posterior = self._infer(plan.model, tables.as_padded_data(to_frame(plan.frame, x), weight), plan.method)
        self._frame, self._prior = plan.frame, plan.prior
        self._conclude(posterior, plan, float(weight.sum()))
        return self

    def score_samples(self, X: object, mesh: int | str | Mesh | None = None) -> np.ndarray:
        """log p(x | θ) of every row, (n,), in nats.

        ``mesh`` names the devices over which the rows are divided, as for ``tr.infer``.
        """
        return self._map_rows(self._log_density, X, over_rows(mesh)) - log_size(self._frame)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows (n, d) from the model, with their latent z: components (n,), or factors (n, q).

        ``random_state`` is the seed.
        """
        check_is_fitted(self, "posterior_")
        expect_whole("n_samples", n_samples)
        key, theta = jax.random.key(self._seeds()[0]), tables.as_floats(self._theta())
        x, z = self._model().sample(key, theta, int(n_samples))
        z = np.asarray(z)
        return np.asarray(x, np.float64) + self._frame.centre, z.astype(int) if z.dtype.kind == "i" else z

    def _plan(self, x: np.ndarray, weight: np.ndarray) -> Plan:
        """The plan to run EM on rows that are centred but not scaled."""
        frame, model = prior_frame(weight @ x / weight.sum(), np.ones(())), self._model()
        begin, starts = self._beginning(model, frame.centre)
        method = EM(
            starts=starts, steps=int(self.max_iter), tolerance=float(self.tol), errors=self._observed_information
        )
        return Plan(frame, without_shift(model).with_steps(begin=begin), method)

    def _beginning(self, model: LatentModel, centre: np.ndarray) -> tuple[Callable | None, int]:
        """A function ``(key, rows) -> θ`` that makes a start for rows minus their centre; and the number of starts."""
        return model.steps.begin, 1

    def _forms(self) -> Any:
        """The model whose functions take ``_estimate`` and rows in the frame's coordinates."""
        return em_parametrisation(self._model()).model

    def _theta(self) -> PyTree:
        """θ for rows minus their centre, in the user's scale, in float64."""
        return em_parametrisation(self._model()).back(self._estimate)

    def _read(self, posterior: Posterior) -> PyTree:
        """The estimate for rows in the frame's coordinates, in float64."""
        return tables.as_doubles(tables.program(self._forms(), "params")(jnp.asarray(posterior.belief.position)))

    def _results(self, posterior: Posterior, total: float) -> tuple[PyTree, list[Check], dict[str, Any]]:
        """The standard errors, checks and posterior of a fit.

        Returns:
            Standard errors shaped like θ, or None; the report's checks; fields of the posterior in the user's units.
        """
        errors, checks = tables.as_doubles(posterior.sd()), list(posterior.report().checks)
        if "eigenvalue" not in posterior.found:
            why = "not computed: with so many parameters or rows they would take long"
            checks.append(Check("standard errors", math.nan, "trust", why))
        theta = tables.as_floats(self._model().shifted(self._estimate, self._frame.centre))
        position = np.asarray(tables.program(self._forms(), "position_of")(theta))
        belief = point_belief(position, posterior.info, posterior.found)
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(errors))
        return errors if finite else None, checks, {"belief": belief}

    def _conclude(self, posterior: Posterior, plan: Plan, total: float) -> None:
        """Set the attributes and the posterior in the user's units, and warn of a bad fit."""
        steps, objective, to_come = (posterior.found[name] for name in ("steps", "objective", "to come"))
        stopped_early = steps < self.max_iter
        # The gain still to come is extrapolated from the last gains. If they were so small that they ended the climb,
        # the extrapolation is unreliable; so it may then be larger than after ``max_iter`` steps.
        allowed = 1000 * max(total, abs(objective)) if stopped_early else 10 * max(1.0, abs(objective))
        self.converged_, self.n_iter_ = bool(to_come <= allowed * self.tol), min(max(1, int(steps)), int(self.max_iter))
        self.lower_bound_ = float(objective - total * log_size(self._frame)) / total
        self._estimate = self._read(posterior)
        self.standard_errors_, checks, fields = self._results(posterior, total)
        checks += plan.checks
        if stopped_early and not self.converged_:
            sentence = f"steps: the next step gave numbers that are not finite, or mostly rounding errors. {COLLAPSED}"
            checks.append(Check("ended early", steps, "reject", sentence))
        report = posterior.report()._replace(verdict=worst(checks), checks=tuple(checks))
        fields |= {"model": self._model(), "data": None, "run_state": None, "judged": report}
        self.posterior_ = dataclasses.replace(posterior, **fields)
        self.__dict__.update(self._attributes())
        if not self.converged_:
            cause = COLLAPSED if stopped_early else "Allow more steps, a larger tol, or fewer components"
            tell(
                f"The climb has not converged in {self.n_iter_} steps, of max_iter={self.max_iter}: further steps may "
                f"gain {to_come:.3g} nats. {cause}.",
                ConvergenceWarning,
            )
        for check in checks:
            # A bad curvature means a ridge of the likelihood, which is not a degenerate fit; so it causes no warning.
            if check.name != "curvature" and (check.verdict == "reject" or "floor" in check.name):
                tell(f"{check.name}, {check.value:.4g}: {check.sentence}. report_ lists every check.")

    def _map_rows(self, step: str, X: object, placement: OneDevice = ONE_DEVICE) -> np.ndarray:
        """The first result of the model's function ``step`` for each row, (n, ...) in float64, computed by blocks."""
        x = self._check_table(X)
        apply, dtype = tables.program(self._forms(), step, placement), jnp.result_type(float)
        estimate = tables.as_floats(self._estimate)
        parts = ((to_frame(self._frame, part).astype(dtype),) for (part,) in tables.row_blocks(BLOCK, x))
        return tables.map_parts(lambda rows: jax.tree.leaves(apply(estimate, rows))[0], parts)


def em_parametrisation(model: LatentModel) -> Climbed:
    """The model's most accurate parametrisation for EM, with maps to and from it.

    A model without another parametrisation is returned with identity maps.
    """
    return model.steps.climbed or Climbed(model, lambda theta: theta, lambda theta: theta)


@functools.lru_cache(maxsize=128)  # a second fit then reuses the compiled programs
def without_shift(base: LatentModel) -> LatentModel:
    """The model without its shift of the rows, which are centred already, and without its sorting of components."""
    return base.with_steps(shift=None, canonical=None)
