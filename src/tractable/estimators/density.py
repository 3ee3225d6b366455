"""The base of mixtures and factor analysis: scikit-learn's interface to a latent-variable model and ``infer``."""

import dataclasses
import functools
import math
import warnings
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
from tractable.core.errors import TractableWarning
from tractable.core.latent import Climbed, LatentModel
from tractable.core.model import PyTree
from tractable.core.settings import Range, expect_whole, is_number
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.report import worst
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import over_rows
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian, Count, Scored
from tractable.estimators.frames import Frame, framing, inwards, log_size
from tractable.estimators.rows import as_doubles, as_floats, compiled, finite, in_few_lengths, merged, middle
from tractable.latent.em_method import EM
from tractable.posterior.posterior import Posterior

BLOCK = 1 << 12  # rows evaluated at a time
COLLAPSED = "A component has collapsed, or a column is constant: a larger floor or fewer components keep it"
Tolerance = Annotated[
    float, Range("a share of the log likelihood or bound, above 0 and finite", lambda value: is_number(value, 0))
]  # fmt: skip


class Plan(NamedTuple):
    """How a table is learnt: rows in ``frame`` are given to ``infer`` with this model and method."""

    frame: Frame
    model: LatentModel  # of rows in the frame, with its starting points
    method: EM
    prior: Any = None  # in the user's units; None for a maximum of the likelihood
    checks: tuple[Check, ...] = ()  # of the settings


class Density(Scored, DensityMixin, Bayesian):
    """Base of estimators of p(x) = ∫ p(x, z | θ) dz. By default θ is a maximum of the likelihood, found by EM."""

    tol: Tolerance
    max_iter: Count
    _model: Callable[[], LatentModel]  # in the user's units
    _check_rows: Callable[[int], None]  # raises for too few distinct rows, and for settings that do not suit the rows
    _attributes: Callable[[], dict[str, Any]]  # what was learnt, in the user's units, by scikit-learn's names
    _log_density = "log_prob"  # the name of the closed form that scores rows
    _informed: bool = True  # whether standard errors come from the observed information
    _frame: Frame
    _prior: Any
    _learnt: PyTree  # θ, or λ of q(θ), of rows in the frame, in float64

    def fit(self, X: object, y: object = None, sample_weight: object = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, d), an array or a frame of numbers.
            y: ignored.
            sample_weight: (n,), ≥ 0, how often each row counts: Σ wᵢ log p(xᵢ|θ). Weight 0 equals leaving the row out;
                with up to 65,536 rows, a whole number equals repeating the row, to the last digit.

        Returns:
            The estimator.

        Raises:
            ValueError: no rows, fewer distinct rows than components, NaN, or settings out of range.

        Warns:
            ConvergenceWarning: max_iter steps were too few. TractableWarning: something is degenerate; see ``report_``.
        """
        self._check_settings()
        x = self._checked(X, reset=True, ensure_min_samples=2)
        x, weight = merged(x, self._weights(sample_weight, x))
        self._check_rows(len(x))
        plan = self._plan(x, weight)
        found = self._inferred(plan.model, in_few_lengths(inwards(plan.frame, x), weight), plan.method)
        self._frame, self._prior = plan.frame, plan.prior
        self._conclude(found, plan, float(weight.sum()))
        return self

    def score_samples(self, X: object, mesh: int | str | Mesh | None = None) -> np.ndarray:
        """log p(x | θ) of every row, (n,), nats; ``mesh``: devices that the rows lie over, as for ``tr.infer``."""
        return self._mapped(self._log_density, X, over_rows(mesh)) - log_size(self._frame)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows drawn from the model, (n, d), and their z: components (n,), or factors (n, q).

        Seeded by ``random_state``.
        """
        check_is_fitted(self, "posterior_")
        expect_whole("n_samples", n_samples)
        key, theta = jax.random.key(self._seeds()[0]), as_floats(self._theta())
        x, z = self._model().sample(key, theta, int(n_samples))
        z = np.asarray(z)
        return np.asarray(x, np.float64) + self._frame.centre, z.astype(int) if z.dtype.kind == "i" else z

    def _plan(self, x: np.ndarray, weight: np.ndarray) -> Plan:
        """EM on rows that are centred, not scaled."""
        frame, model = framing(middle(x, weight), np.ones(())), self._model()
        begin, starts = self._beginning(model, frame.centre)
        method = EM(starts=starts, steps=int(self.max_iter), tolerance=float(self.tol), errors=self._informed)
        return Plan(frame, as_it_stands(model).with_steps(begin=begin), method)

    def _beginning(self, model: LatentModel, centre: np.ndarray) -> tuple[Callable | None, int]:
        """``(key, rows) -> θ`` for rows minus their centre, and the number of starts to make."""
        return model.steps.begin, 1

    def _forms(self) -> Any:
        """The closed forms of ``_learnt`` and rows in the frame."""
        return climbed(self._model()).model

    def _theta(self) -> PyTree:
        """θ of rows minus their centre, in the user's scale, in float64."""
        return climbed(self._model()).back(self._learnt)

    def _read(self, found: Posterior) -> PyTree:
        """What was learnt of rows in the frame, in float64."""
        return as_doubles(compiled(self._forms(), "params")(jnp.asarray(found.belief.position)))

    def _results(self, found: Posterior, total: float) -> tuple[PyTree, list[Check], dict[str, Any]]:
        """Standard errors shaped like θ, or None; the report's checks; the posterior's fields in the user's units."""
        errors, checks = as_doubles(found.sd()), list(found.report().checks)
        if "eigenvalue" not in found.found:
            why = "not made: there are so many numbers, or rows, that they would take long"
            checks.append(Check("standard errors", math.nan, "trust", why))
        theta = as_floats(self._model().shifted(self._learnt, self._frame.centre))
        position = np.asarray(compiled(self._forms(), "position_of")(theta))
        belief = point_belief(position, found.info, found.found)
        return errors if finite(errors) else None, checks, {"belief": belief}

    def _conclude(self, found: Posterior, plan: Plan, total: float) -> None:
        """Set the attributes and the posterior in the user's units, and warn."""
        steps, objective, to_come = (found.found[name] for name in ("steps", "objective", "to come"))
        # The extrapolated gain is a guess, least reliable where it was small enough to end the climb.
        ended = steps < self.max_iter
        allowed = 1000 * max(total, abs(objective)) if ended else 10 * max(1.0, abs(objective))
        self.converged_, self.n_iter_ = bool(to_come <= allowed * self.tol), min(max(1, int(steps)), int(self.max_iter))
        self.lower_bound_ = float(objective - total * log_size(self._frame)) / total
        self._learnt = self._read(found)
        self.standard_errors_, checks, fields = self._results(found, total)
        checks += plan.checks
        if ended and not self.converged_:
            sentence = f"steps: the next left the finite numbers, or their digits. {COLLAPSED}"
            checks.append(Check("ended early", steps, "reject", sentence))
        report = found.report()._replace(verdict=worst(checks), checks=tuple(checks))
        fields |= {"model": self._model(), "data": None, "run_state": None, "judged": report}
        self.posterior_ = dataclasses.replace(found, **fields)
        self.__dict__.update(self._attributes())
        if not self.converged_:
            cause = COLLAPSED if ended else "Give more steps, a larger tol, or fewer components"
            warnings.warn(
                f"The climb has not converged in {self.n_iter_} steps, of max_iter={self.max_iter}: {to_come:.3g} nats "
                f"may be to come. {cause}.",
                ConvergenceWarning,
                stacklevel=3,
            )
        for check in checks:
            # A bad curvature means a ridge: no degenerate fit to warn of.
            if check.name != "curvature" and (check.verdict == "reject" or "floor" in check.name):
                sentence = f"{check.name}, {check.value:.4g}: {check.sentence}. report_ says more."
                warnings.warn(sentence, TractableWarning, stacklevel=3)

    def _mapped(self, step: str, X: object, placement: OneDevice = ONE_DEVICE) -> np.ndarray:
        """A closed form by name, the first of its values for each row, by blocks: (n, ...) in float64."""
        x = self._checked(X)
        apply, learnt, dtype = compiled(self._forms(), step, placement), as_floats(self._learnt), jnp.result_type(float)
        parts = ((inwards(self._frame, part).astype(dtype),) for (part,) in tables.some_at_a_time(BLOCK, x))
        return tables.mapped(lambda rows: jax.tree.leaves(apply(learnt, rows))[0], parts)


def climbed(model: LatentModel) -> Climbed:
    """The model's most accurate parametrisation for EM, with maps to and from it; its own if it has no other."""
    return model.steps.climbed or Climbed(model, lambda theta: theta, lambda theta: theta)


@functools.lru_cache(maxsize=128)  # a second fit then reuses the compiled programs
def as_it_stands(base: LatentModel) -> LatentModel:
    """The model without the shift of rows, which are centred already, and without sorting components."""
    return base.with_steps(shift=None, canonical=None)
