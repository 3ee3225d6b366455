"""The common base of scikit-learn style latent-variable densities, fitted by EM."""

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

from tractable.beliefs.belief import Belief
from tractable.beliefs.check import Check
from tractable.checks.report import Report, worst
from tractable.core import Batch, PyTree
from tractable.data.files import blocks, framed, on_file, opened
from tractable.data.rows import Data
from tractable.data.sharding import Over, over_rows
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian, Count, Scored
from tractable.estimators.rows import as_doubles, as_floats, compiled, finite, in_few_lengths, merged, middle
from tractable.kernels.em import OnlineState, online_em
from tractable.methods.maximisation import EM
from tractable.methods.points import point
from tractable.models.latent import Climbed, LatentModel
from tractable.results.posterior import Posterior
from tractable.tools.errors import DataError, ModelError, TractableWarning
from tractable.tools.settings import Range, expect_whole, is_number

COLLAPSED = "A component has collapsed, or a column is constant: a larger floor or fewer components keep it"
FORGETTING = 0.6  # κ of partial_fit, in (½, 1]
Tolerance = Annotated[
    float, Range("a share of the log likelihood, above 0 and finite", lambda value: is_number(value, 0))
]  # fmt: skip


class Running(NamedTuple):
    """What ``partial_fit`` keeps between batches."""

    statistics: PyTree  # scaled to ``size`` rows, of x minus the centre
    seen: float  # total weight of all rows so far
    size: float


class Density(Scored, DensityMixin, Bayesian):
    """Base of estimators of p(x) = ∫ p(x, z | θ) dz; subclasses define the model and the names of its parameters."""

    tol: Tolerance
    max_iter: Count
    n_init: Count
    chunk_size: Count
    missing: str = "raise"
    _model: Callable[..., LatentModel]  # (centre=None): means are in the user's coordinates, whatever the centre
    _attributes: Any  # θ's type filled with the names of the attributes that hold it
    _statistics: Callable[[PyTree], PyTree]  # average statistics per row about the centre, whose M-step is θ
    _check_rows: Callable[[int], None]  # raises if too few distinct rows
    _informed: bool = True  # whether standard errors come from the observed information
    _centre: np.ndarray
    _running: Running

    # Subclasses may override these.

    def _theta(self) -> PyTree:
        """θ from the attributes, relative to ``_centre``, in float64."""
        theta = self._attributes._make(np.asarray(getattr(self, name)) for name in self._attributes)
        return self._model().shifted(theta, -self._centre)

    def _tell(self, theta: PyTree) -> None:
        for name, value in zip(self._attributes, self._model().shifted(theta, self._centre), strict=True):
            setattr(self, name, value)

    def _beginning(self, model: LatentModel, origin: np.ndarray) -> tuple[Callable, int]:
        """``(key, rows) -> θ`` for rows minus ``origin``, and the number of starts to make."""
        return model.steps.begin, int(self.n_init)  # pyright: ignore[reportReturnType]

    def _turned(self, theta: PyTree, statistics: PyTree) -> tuple[PyTree, PyTree]:
        """The θ to report where several give the same density, and statistics rotated likewise."""
        return theta, statistics

    def _judged(self, found: Posterior, theta: PyTree, total: float) -> tuple[PyTree, list[Check]]:
        """Standard errors shaped like θ, or None if there are none; and the report's checks."""
        errors, checks = as_doubles(found.sd()), list(found.report().checks)
        if "eigenvalue" not in found.found:
            why = "there are so many numbers, or rows, that they would take long, or rows lie on file"
            checks.append(Check("standard errors", math.nan, "trust", f"not made: {why}"))
        return errors if finite(errors) else None, checks

    def fit(self, X: object, y: object = None, sample_weight: object = None) -> Any:
        """Learn from a table.

        Args:
            X: (n, d), an array or a frame of numbers. For rows that exceed memory, a memory-mapped array or the path of
                a ``.npy`` or ``.parquet`` file: each step reads it once, ``chunk_size`` rows at a time. A Parquet file
                is first copied to a temporary ``.npy``, likewise in chunks, so that passes are cheap.
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
        with opened(X, self.chunk_size) as (table, names):
            if on_file(table, self.chunk_size):
                self._fit_file(table, names, sample_weight)
            else:
                self._fit_memory(framed(table, names), sample_weight)
        return self

    def partial_fit(self, X: object, y: object = None, sample_weight: object = None) -> Any:
        """Learn from one more batch, by online EM: running statistics, and the θ that maximises given them.

            S ← (1 − γ) S + γ Σ wᵢ E[T(xᵢ, z)] / Σ wᵢ,    γ = (w / (W + w))^0.6,    θ ← M-step of S

        w is the weight of the batch, W that of all earlier rows: for equal batches the t-th has γ = t^−0.6. The first
        call fits its batch by ``fit``, so the batch must be large enough; after ``fit``, a call continues from there.
        Statistics of early batches, made at an outdated θ, fade: over epochs in random order θ converges to where EM on
        all rows does, with noise that falls like √γ. Cappé & Moulines 2009.

        Args: as for ``fit``, in memory.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(X, y, sample_weight)
        self._check_settings()
        x = self._validated(X, reset=False)
        x, weight = merged(x, self._weights(sample_weight, x))
        model, running, total = self._model(), self._running, weight.sum()
        inside = climbed(model)
        count, dtype = tables.length(len(x)), jnp.result_type(float)
        batch = Batch(
            jnp.asarray(tables.padded((x - self._centre).astype(dtype), count)),
            jnp.asarray(tables.padded((weight / total).astype(dtype), count, 0.0)),
            jnp.asarray(running.size, dtype),
        )
        seen = jnp.asarray(running.seen / total, dtype)
        state = OnlineState(as_floats(inside.into(self._theta())), seen, as_floats(running.statistics))
        state, info = online_step(inside.model)(state, batch)
        theta, statistics = inside.back(as_doubles(state.position)), as_doubles(state.statistics)
        if not finite(theta):
            raise DataError(
                "This batch drives the running statistics out of the finite numbers; nothing was learnt from it. Is a "
                "component without rows, or the floor of its variance 0?"
            )
        theta, statistics = self._turned(theta, statistics)
        self._running = running = Running(statistics, running.seen + total, running.size)
        self.converged_, self.n_iter_ = False, self.n_iter_ + 1
        self.lower_bound_ = float(info.objective) / running.size
        checks = [
            Check("steps", self.n_iter_, "caution", "batches came one by one: no gain says that θ has settled"),
            *model.examine(theta, max(1, round(running.seen))),
        ]
        report = judged(checks, f"online EM on {len(model.names)} numbers")
        self._conclude(theta, None, Posterior(model, None, EM(), None, Belief(), judged=report), self._centre)
        return self

    def score_samples(self, X: object, mesh: int | str | Mesh | None = None) -> np.ndarray:
        """log p(x | θ) of every row, (n,), nats; ``mesh``: devices that the rows lie over, as for ``tr.infer``."""
        return self._mapped("log_prob", X, over_rows(mesh))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows drawn from the model, (n, d), and their z: components (n,), or factors (n, q).

        Seeded by ``random_state``.
        """
        check_is_fitted(self, "posterior_")
        expect_whole("n_samples", n_samples)
        x, z = self._model().sample(jax.random.key(self._seeds()[0]), as_floats(self._theta()), int(n_samples))
        z = np.asarray(z)
        return np.asarray(x, np.float64) + self._centre, z.astype(int) if z.dtype.kind == "i" else z

    def _fit_memory(self, table: object, sample_weight: object) -> None:
        x = self._validated(table, reset=True, least=2)
        x, weight = merged(x, self._weights(sample_weight, x))
        self._check_rows(len(x))
        centre = middle([(x, weight)], self.n_features_in_)
        data = in_few_lengths(x - centre, weight, self._gaps)
        self._climb(self._model(), data, centre, centre, float(weight.sum()))

    def _fit_file(self, x: np.ndarray, names: list[str] | None, sample_weight: object) -> None:
        if x.ndim != 2 or x.dtype.kind not in "fiub":
            raise DataError(f"Expected rows of numbers on file, shape (n, d); got {x.dtype} of shape {x.shape}.")
        some = np.nan_to_num(np.asarray(x[:2], np.float64))
        self._checked(framed(some, names), reset=True, ensure_min_samples=2)
        weight = np.broadcast_to(np.ones(1), len(x))  # a view of one number
        if sample_weight is not None:
            weight = self._weights(sample_weight, x)
        self._check_rows(int(np.count_nonzero(weight)))
        data = Data(x, weights=None if sample_weight is None else weight, missing=self._gaps, resident=False)
        # Mapped rows are not shifted in place: the model subtracts the centre, computed in a first pass over the rows.
        centre = middle(blocks(x, weight, self.chunk_size), self.n_features_in_).astype(np.float32).astype(np.float64)
        self._climb(self._model(centre), data, np.zeros_like(centre), centre, float(weight.sum()))

    def _climb(self, base: LatentModel, data: Data, origin: np.ndarray, centre: np.ndarray, total: float) -> None:
        """EM on rows that have ``origin`` subtracted already."""
        begin, starts = self._beginning(base, origin)
        model = as_it_stands(base).with_steps(begin=lambda key, rows: begin(key, np.asarray(rows, np.float64)))
        method = EM(
            starts=starts, steps=int(self.max_iter), tolerance=float(self.tol), chunk=int(self.chunk_size),
            errors=self._informed,
        )  # fmt: skip
        found = self._inferred(model, data, method)
        inside = climbed(base)
        theta = inside.back(as_doubles(compiled(inside.model, "params")(jnp.asarray(found.belief.position))))
        self._settle(found, base.shifted(theta, origin - centre), centre, total)

    def _settle(self, found: Posterior, theta: PyTree, centre: np.ndarray, total: float) -> None:
        """Set what ``fit`` reports of a climb, and warn."""
        errors, checks = self._judged(found, theta, total)
        steps, objective, to_come = (found.found[name] for name in ("steps", "objective", "to come"))
        self.n_iter_, self.lower_bound_ = max(1, int(steps)), float(objective) / total
        # The extrapolated gain is a guess, least reliable where it was small enough to end the climb.
        ended = steps < self.max_iter
        allowed = 1000 * max(total, abs(objective)) if ended else 10 * max(1.0, abs(objective))
        self.converged_ = bool(to_come <= allowed * self.tol)
        if ended and not self.converged_:
            told = f"steps: the next left the finite numbers, or their digits. {COLLAPSED}"
            checks.append(Check("ended early", steps, "reject", told))
        self._running = Running(None, total, total)
        theta, _ = self._turned(theta, None)
        self._conclude(theta, errors, dataclasses.replace(found, judged=judged(checks, found.report().title)), centre)
        if not self.converged_:
            cause = COLLAPSED if ended else "Give more steps, a larger tol, or fewer components"
            warnings.warn(
                f"EM has not converged in {self.n_iter_} steps, of max_iter={self.max_iter}: {to_come:.3g} nats may be "
                f"to come. {cause}.",
                ConvergenceWarning,
                stacklevel=5,
            )
        for check in checks:
            # A bad curvature means a ridge: no degenerate fit to warn of.
            if check.name != "curvature" and (check.verdict == "reject" or "floor" in check.name):
                warnings.warn(
                    f"{check.name}, {check.value:.4g}: {check.sentence}. report_ says more.",
                    TractableWarning,
                    stacklevel=5,
                )

    def _conclude(self, theta: PyTree, errors: PyTree, posterior: Posterior, centre: np.ndarray) -> None:
        """Set the attributes, ``partial_fit``'s state, and the posterior in the user's coordinates."""
        self._centre, self.standard_errors_ = centre, errors
        self._tell(theta)
        if self._running.statistics is None:
            size = self._running.size
            statistics = jax.tree.map(lambda leaf: size * np.asarray(leaf), self._statistics(theta))
            self._running = self._running._replace(statistics=statistics)
        base = self._model()
        inside = climbed(base)
        there = as_floats(inside.into(base.shifted(theta, centre)))
        position = np.asarray(compiled(inside.model, "position_of")(there))
        belief = point(position, posterior.info, posterior.found)
        self.posterior_ = dataclasses.replace(posterior, model=base, data=None, belief=belief)

    def _validated(self, x: object, reset: bool, least: int = 1) -> np.ndarray:
        gaps = "allow-nan" if self.missing == "exact" else True
        return self._checked(x, reset=reset, ensure_all_finite=gaps, ensure_min_samples=least)

    @property
    def _gaps(self) -> str:
        return "keep" if self.missing == "exact" else "raise"

    def _mapped(self, step: str, X: object, over: Over | None = None) -> np.ndarray:
        """One of the model's functions at θ for each row, in chunks: (n, ...) in float64."""
        check_is_fitted(self, "posterior_")
        inside, dtype = climbed(self._model()), jnp.result_type(float)
        theta, apply = as_floats(inside.into(self._theta())), compiled(inside.model, step, over)

        def first(rows: jax.Array) -> jax.Array:
            found = apply(theta, rows)
            return found[0] if isinstance(found, tuple) else found

        with opened(X, self.chunk_size) as (table, names):
            filed = on_file(table, self.chunk_size)
            table = table if filed else self._validated(framed(table, names), reset=False)
            parts = (part for (part,) in tables.some_at_a_time(self.chunk_size, table))
            if filed:
                parts = (self._validated(framed(part, names), reset=False) for part in parts)
            return tables.mapped(first, (((part - self._centre).astype(dtype),) for part in parts))


def judged(checks: list[Check], title: str) -> Report:
    """A report made of these checks."""
    checks = [c._replace(value=float(c.value)) for c in checks]
    return Report(worst(checks), tuple(checks), title)


def climbed(model: LatentModel) -> Climbed:
    """The model's most accurate parametrisation for EM, with maps to and from it; its own if it has no other."""
    return model.steps.climbed or Climbed(model, lambda theta: theta, lambda theta: theta)


@functools.lru_cache(maxsize=128)  # a second fit then reuses the compiled programs
def as_it_stands(base: LatentModel) -> LatentModel:
    """The model without the shift of rows, which are centred already, and without sorting components."""
    return base.with_steps(shift=None, canonical=None)


@functools.lru_cache(maxsize=128)
def online_step(model: LatentModel) -> Callable:
    """``(OnlineState, Batch) -> (OnlineState, OnlineInfo)``; its time is W / w, so γ = (w / (W + w))^κ."""
    if model.halves is None:
        raise ModelError("partial_fit needs both halves of EM in closed form.")
    example = Batch(jnp.zeros((1, 1)), jnp.ones(1), 1)  # needed only by init
    kernel = online_em(*model.halves, lambda t: (1 + t) ** -FORGETTING, patience=1, example=example)
    return jax.jit(lambda state, batch: kernel.step(jnp.zeros(0), state, batch))
