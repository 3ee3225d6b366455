"""The part of a posterior that predicts rows and scores its predictions."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tractable.core.arrays import columns_of
from tractable.core.bits import as_learnt
from tractable.core.errors import DataError, ModelError, RunError, SettingsError
from tractable.core.model import Data, Model, PyTree, as_data, needed_likelihood
from tractable.core.rows import Labels
from tractable.core.settings import Count, check_seed, expect
from tractable.core.tree import row_shapes
from tractable.core.words import spelt
from tractable.diagnostics.learnt import Learnt
from tractable.engine import preflight
from tractable.engine.forks import check_unforked
from tractable.engine.identity import kinds_of, share_programs
from tractable.engine.sharding import over_rows
from tractable.ladders import encoding as coding
from tractable.posterior import groups, pointwise
from tractable.posterior import predict as prediction
from tractable.posterior.moment_matching import MOST_PARAMETERS, leave_out
from tractable.posterior.scaling import power_scaled


@as_learnt
@dataclass(eq=False)
class Predictive(Learnt):
    """The result of a run, with predictions from its draws; ``Posterior``, its subclass, describes the attributes."""

    def spread(self, most: int) -> tuple[PyTree, np.ndarray]:
        """At most ``most`` draws, evenly spaced over chains and time, and their weights, which sum to 1."""
        index, weights = _spread(self.values, self.weights, most)
        return self.shaped(_flat(self.values)[index]), weights

    @functools.cached_property
    def predictive(self) -> Model:
        """The model used for predictions: usually ``model``; for Laplace on a network, the network's linearisation."""
        return self.method.predictive(self.model, self.belief)

    @spelt
    def predict(
        self, x: PyTree = None, level: float = 0.9, *, draws: int = 1000, seed: int = 0,
        calibrate: Data | PyTree = None, group: Labels | None = None, mesh: int | str | Mesh | None = None,
    ) -> prediction.Prediction:  # fmt: skip
        """The predictive distribution of new data at inputs ``x``, (n, ...); of one y if the model has no inputs.

        Args:
            x: rows of inputs, as an array (which may be memory-mapped) or a pytree of arrays. The model of a table also
                takes a table, and the prediction is then in its units. A likelihood with its own ``predict`` takes what
                that method takes; for sequences, that is the number of steps ahead.
            level: the intervals' level, in (0, 1).
            draws: maximum number of draws of the parameters, evenly spaced over chains and time.
            seed: seed of the data simulated for the intervals.
            calibrate: Data that took no part in the fit, for numeric y only; with a table as x, a table with the
                target. The interval becomes mean ± q sd, with q from the errors of these rows. For rows exchangeable
                with them, the interval contains a new y with probability at least ``level``, in finite samples and for
                every model. This holds on average over rows, not at each input.
            group: for a model with ``local``, (n,) labels of the rows' groups, known or new; by default every row has
                a new group.
            mesh: the devices over which rows are distributed, as for ``infer``; results are the same to the last digit
                on any number of devices.

        Raises:
            DataError: inputs unlike those of the fit; fitted rows as ``calibrate``; a ladder, which predicts no y.
            SettingsError: an argument that this model does not take.
        """
        check_unforked()
        placement = over_rows(mesh)
        if mesh is not None and (self.model.local is not None or self.model.ahead is not None):
            raise SettingsError("predict(mesh=...) expects independent rows, without groups or time: leave it out.")
        table = self.model.table
        if table is not None and columns_of(x) is not None:
            if calibrate is not None and columns_of(calibrate) is not None:
                calibrate = table.data(calibrate)
            rows = table.inputs(x)
            return table.in_units(
                self.predict(rows, level, draws=draws, seed=seed, calibrate=calibrate, group=group, mesh=mesh)
            )
        if self.model.local is not None:
            if calibrate is not None:
                raise SettingsError("predict(calibrate=...) expects exchangeable rows, without groups: leave it out.")
            return groups.predict(self, x, group, level, draws, seed)
        if group is not None:
            raise SettingsError("predict(group=...) is for a model with local=; this model has no groups.")
        if self.phi is not None:
            raise DataError(
                "A ladder predicts no y from inputs: posterior.generate(n) draws new rows, posterior.reconstruct(x) "
                "reconstructs rows, and posterior.impute(x) fills in their missing values."
            )
        if calibrate is not None:
            calibrate = as_data(calibrate)
            if self.data is not None and calibrate.fingerprint == self.data.fingerprint:
                raise DataError("predict(calibrate=...) needs rows kept out of the fit; got the fitted rows.")
        expect("predict(draws)", draws, Count)
        law = self.model.ahead
        if law is not None:
            if calibrate is not None:
                raise SettingsError("predict(calibrate=...) is not for a likelihood with its own method predict.")
            return prediction.ahead(law, *self.spread(draws), x, self._rows_or().rows, level=level, seed=seed)
        if calibrate is not None:
            preflight.check_shapes(self.model, calibrate)
        if self.data is not None:
            prediction.check_inputs(self.data, x, "predict(x)")
            kinds = (kinds_of(self.data)[0], None if x is None else row_shapes(prediction.rows_of(x)[0]))
            if kinds != kinds_of(self.data):  # JAX traces the model anew for rows of another dtype, for example
                share_programs(self.model, kinds, self.data.size)
        return prediction.predict(
            self.predictive, *self.spread(draws), x, level=level, seed=seed, calibrate=calibrate, placement=placement
        )

    def local(self, group: Any = None, *, draws: int = 100) -> Any:
        """Mean and sd of each group's own parameters (``groups.local_moments``): a pandas DataFrame, rows by label.

        Args:
            group: labels of the groups; by default all groups.
            draws: maximum number of draws of the shared parameters, evenly spaced over chains and time.
        """
        expect("local(draws)", draws, Count)
        return groups.local_moments(self.model, self.data, *self.spread(draws), group)

    def log_predictive(
        self, data: Data | PyTree, *, draws: int = 1000, mesh: int | str | Mesh | None = None
    ) -> np.ndarray:
        """The log predictive density of each row, log p(y*_n | D) = log mean_θ p(y*_n | θ), (n,), in nats.

        For a ladder with an inference network, it is a lower bound of log p(x*_n | θ) from ``draws`` draws
        of the latent layers (``log_evidence``). ``mesh`` is explained at ``predict``.
        """
        if mesh is not None and (self.phi is not None or self.model.local is not None):
            raise SettingsError("log_predictive(mesh=...) expects independent rows, without groups: leave it out.")
        if self.phi is not None:
            return coding.log_evidence(self, data, samples=draws).log_evidence
        data = as_data(data)
        if self.data is not None and self.model.local is None:
            prediction.check_inputs(self.data, data.given, "log_predictive(data)")
        preflight.check_shapes(self.model, data)
        terms = pointwise.log_predictive(self.predictive, *self.spread(draws), data, over_rows(mesh))
        return terms - self._log_units(data).astype(terms.dtype)

    def log_likelihood(
        self, data: Data | PyTree = None, *, draws: int | None = None, mesh: int | str | Mesh | None = None
    ) -> np.ndarray:
        """The log likelihood w_n log p(y_n | x_n, θ_s) of each draw and row, (chain, draw, n), in nats.

        Args:
            data: the rows; by default the fitted rows.
            draws: maximum number of draws per chain, evenly spaced; by default all draws.
            mesh: as for ``predict``.

        Raises:
            RunError: no draws were kept.
            ModelError: the likelihood cannot be evaluated row by row.
            DataError: there are no rows, or the result would take more than 2 GiB.
        """
        values, params = self._each(draws)
        if mesh is not None and self.model.local is not None:
            raise SettingsError("log_likelihood(mesh=...) expects independent rows, without groups: leave it out.")
        data = self._rows_or(data)
        terms = pointwise.log_likelihoods(self.predictive, params, data, over_rows(mesh))
        units = self._log_units(data)
        terms -= (units if data.weights is None else data.weights * units).astype(terms.dtype)
        return terms.reshape(*values.shape[:2], -1)

    def loo(self, *, draws: int = 4000, rows: int | None = None) -> pointwise.Loo:
        """Leave-one-out cross-validation by Pareto-smoothed importance sampling: a ``pointwise.Loo``.

        Draws of a fitted q are corrected by importance weights, if the fit computed them. ``elpd`` is NaN if a k-hat
        (tail index of the weights) shows that it is unreliable. For rows with such a k-hat, draws are first moved
        (``moment_matching``). This is done for at most 50 rows, of weight 1 or more and held in memory, of a model with
        at most 100 unconstrained parameters and without ``local``. In a model with ``local``, a datum is a group: it is
        left out with all of its rows, and predicted as a new group.

        Args:
            draws: maximum number of draws, evenly spaced over chains and time; at least 100.
            rows: number of rows to evaluate, chosen at random; ``se`` is then larger. 10,000 rows and 1000 draws take
                seconds. By default all rows are evaluated.

        Raises:
            RunError: a point estimate, or fewer than 100 draws.
            DataError: there are no rows.
        """
        inputs, positions = self._leaving(draws), self._positions(draws)
        _, log_weights, data, efficiency = inputs
        match = None
        if positions is not None:
            match = functools.partial(leave_out, self.model, data, positions, log_weights, efficiency)
        return pointwise.loo(self.predictive, *inputs, rows=rows, units=self._log_units(data), match=match)

    def pit(self, *, draws: int = 1000, rows: int | None = None, seed: int = 0) -> np.ndarray:
        """Leave-one-out probability integral transforms Pr(y* < y_n | y without n) of rows with one number, (n,).

        They are uniform on (0, 1) if predictions are right (Gelfand et al. 1992). Ties of discrete data are broken at
        random, and the position of a censored row between its bounds is random. The result is NaN for a row that is too
        influential to be left out by reweighting draws (see ``loo()``). In a model with ``local``, a row is left out
        with its whole group, and predicted as a row of a new group.

        Args:
            draws: maximum number of draws, each with one simulated y per row; at least 100.
            rows: number of rows (or groups), evenly spaced; by default all.
            seed: seed of the simulated data.
        """
        seed = check_seed("pit(seed)", seed)
        inputs = self._leaving(draws)
        if self.model.local is not None:
            return groups.transforms(self.model, *inputs, rows, seed)
        params, log_weights, data, efficiency = inputs
        if rows is not None and rows < data.size:
            data = data.take(np.linspace(0, data.size - 1, rows).astype(int))
        y = pointwise.single(data.y)
        simulated = pointwise.replicate(self.predictive, params, data.given, data.size, seed)
        parts = list(pointwise.leave_out(self.predictive, params, log_weights, data, efficiency))
        return pointwise.leave_one_out_transforms(pointwise.concatenate_chunks(parts), simulated, y, seed)

    def posterior_predictive(
        self, x: PyTree = None, *, group: Labels | None = None, draws: int | None = None, seed: int = 0
    ) -> PyTree:
        """Simulates data for each draw, y*_n ~ p(y | x_n, θ_s): (chain, draw, n, ...) for each part of y.

        Args:
            x: rows of inputs; by default the fitted rows. A model without inputs simulates as many rows as were fitted.
            group: as for ``predict``, for a model with ``local``. Labels that are not in the data mean new groups.
                Without x and group, the rows are the fitted rows in their groups: z_g ~ p(z | y_g, θ_s),
                y*_n ~ p(y | x_n, z_g, θ_s).
            draws: maximum number of draws per chain, evenly spaced; by default all draws.
            seed: seed of the simulated data.
        """
        values, params = self._each(draws)
        simulated = self._replicate(params, x, group, seed)
        return jax.tree.map(lambda a: a.reshape(*values.shape[:2], *a.shape[1:]), simulated)

    def prior_predictive(
        self, x: PyTree = None, *, group: Labels | None = None, draws: int = 500, seed: int = 0
    ) -> PyTree:
        """Simulates data from the prior predictive distribution, (draw, n, ...): θ_s ~ p(θ), y*_n ~ p(y | x_n, θ_s).

        In a model with ``local``, z_g ~ p(z | θ_s) is drawn too, and shared by all rows of a ``group``. The arguments
        are those of ``posterior_predictive``.
        """
        params = pointwise.prior_draws(self.model, draws, seed)
        return self._replicate(params, x, group, seed, new=True)

    def _replicate(self, params: PyTree, x: PyTree, group: Labels | None, seed: int, new: bool = False) -> PyTree:
        """Simulated y*_n for parameters (s, ...): (s, n, ...).

        ``new`` says that the parameters are from the prior; all groups are then new.
        """
        if self.model.local is not None:
            return groups.replicate(self.model, self.data, params, x, group, seed, new=new)
        if group is not None:
            raise SettingsError("group= is for a model with local=; this model has no groups.")
        return pointwise.replicate(self.model if new else self.predictive, params, *self._inputs_or(x), seed)

    def sensitivity(self, *, draws: int = 4000) -> Any:
        """How much the posterior changes if the prior, or the likelihood, is raised to a power near 1.

        The result is a pandas DataFrame, with one row per number of the parameters; ``scaling.power_scaled`` explains
        the columns.
        """
        params, weights = self._require_draws().spread(draws)
        return power_scaled(self.model, params, weights, self.names, self.data)

    def _each(self, draws: int | None) -> tuple[np.ndarray, PyTree]:
        """At most ``draws`` per chain, evenly spaced: values (chain, draw, k), and parameters (chain · draw, ...)."""
        if draws is not None:
            expect("draws", draws, Count)
        values = self._require_draws().values
        if draws is not None and draws < values.shape[1]:
            values = values[:, np.linspace(0, values.shape[1] - 1, draws).astype(int)]
        return values, self.shaped(values.reshape(-1, values.shape[-1]))

    def _require_draws(self) -> "Predictive":
        """This posterior; a RunError if the run was stopped before its first draw."""
        if not self.is_point and not self.count and self.unconstrained is not None:
            raise RunError("The run was stopped before its first draw, so there are no draws of the parameters.")
        return self

    def _rows_or(self, data: Data | PyTree = None) -> Data:
        """The rows given, or the fitted rows; an error if there are none or if the model has no density of rows."""
        if self.phi is not None:
            raise ModelError("A ladder's log density of rows has no closed form: posterior.log_evidence bounds it.")
        if getattr(self.model.prior, "why", None):
            needed_likelihood(self.model)  # raises an error that says why there are no rows
        data = self.data if data is None else as_data(data)
        if data is None or not data.size:
            raise DataError("There are no rows: this posterior was fitted to none. Give them: data=Data(y, given=x).")
        if data is not self.data:
            preflight.check_shapes(self.model, data)
        return data

    def _inputs_or(self, x: PyTree) -> tuple[PyTree, int]:
        """The rows x, or the inputs of the fitted rows, and their number."""
        if x is not None:
            return prediction.rows_of(x)
        data = self._rows_or()
        return data.given, data.size

    def _log_units(self, data: Data) -> np.ndarray:
        """(n,) nats by which log densities exceed those in a table's units, as p(y) = p(standardised y) / sd."""
        table = self.model.table
        return np.zeros(data.size) if table is None else np.broadcast_to(table.log_units(data.y), data.size)

    def _leaving(self, draws: int) -> tuple[PyTree, np.ndarray, Data, float]:
        """For leave-one-out: draws, their log weights, the rows, and the effective sample size per draw."""
        data = self._rows_or()
        if self.is_point:
            raise RunError("loo() and pit() reweight draws, and a point estimate has none. Use a method that draws.")
        fitted = self._require_draws().fitted
        if fitted is not None and fitted.log_weights is not None and self.predictive is self.model and data.resident:
            weighted = replace(fitted, positions=np.asarray(fitted.positions)[:, :draws])
            params = self.shaped(weighted.values(self.model)[0])
            return params, pointwise.correction_weights(self.model, data, weighted), data, 1.0
        params, weights = self.spread(draws)
        ess = np.nanmean(self.diagnosed.bulk) if self.count > 8 and not self.method.independent else np.nan
        efficiency = 1.0 if fitted is not None or not ess > 0 else min(1.0, float(ess) / len(weights))
        return params, np.log(weights), data, efficiency

    def _positions(self, draws: int) -> np.ndarray | None:
        """(s, d) unconstrained positions of the draws of ``_leaving``; None if this model's draws cannot be moved."""
        positions, fitted, model, data = self.unconstrained, self.fitted, self.model, self._rows_or()
        if positions is None or model.local is not None or self.predictive is not model or not data.resident:
            return None
        if model.space.size > MOST_PARAMETERS or (fitted is not None and fitted.log_weights is None):
            return None
        index = slice(draws) if fitted is not None else _spread(self.values, self.weights, draws)[0]
        return _flat(np.asarray(positions, np.float64))[index]


def _spread(values: np.ndarray, weights: np.ndarray | None, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of at most ``most`` draws of ``_flat(values)`` that have weight, and their weights, which sum to 1."""
    weights = (np.ones(values.shape[:2]) if weights is None else weights).T.ravel()
    positive = np.flatnonzero(weights > 0)
    index = positive[np.unique(np.linspace(0, len(positive) - 1, min(most, len(positive))).astype(int))]
    return index, weights[index] / weights[index].sum()


def _flat(values: np.ndarray) -> np.ndarray:
    """Draws (chain, draw, k) as (draw · chain, k)."""
    return values.swapaxes(0, 1).reshape(-1, values.shape[-1])
