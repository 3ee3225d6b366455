"""The result of inference: one interface for draws, fitted distributions and points."""

import functools
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tractable.core import approximations, tree
from tractable.core.arrays import columns_of
from tractable.core.belief import Draws, Point, draws_key, weighted_quantiles
from tractable.core.bits import as_learnt
from tractable.core.check import Check
from tractable.core.errors import CheckpointError, DataError, ModelError, RunError, SettingsError
from tractable.core.latent import LatentModel, latent_model
from tractable.core.model import Data, Model, PyTree, as_data, needed_likelihood
from tractable.core.rows import Labels
from tractable.core.settings import Count, Share, expect, seeded
from tractable.core.shared import recipe
from tractable.core.shown import as_html
from tractable.core.tree import row_shapes
from tractable.core.words import spelt
from tractable.core.writing import disk_errors
from tractable.diagnostics.evidence import Evidence
from tractable.diagnostics.groups import look as group_integrals
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.networks import side_of
from tractable.diagnostics.predictions import HELD_OUT, can_be_compared, held_out_checks
from tractable.diagnostics.relabelling import draw_latents, match_components, mean_allocations
from tractable.diagnostics.report import Report, judge, with_checks
from tractable.diagnostics.shape import HIDDEN
from tractable.diagnostics.verify import Verify, verify
from tractable.engine.abilities import needs, placement_of
from tractable.engine.forks import check_unforked
from tractable.engine.identity import density_trace, kinds_of, saved_kinds, share_programs
from tractable.engine.locks import lock
from tractable.engine.method import Method, named
from tractable.engine.session import open_session
from tractable.engine.sharding import over_rows
from tractable.engine.stopping import ending
from tractable.ladders import encoding as coding
from tractable.ladders import imputing
from tractable.mcmc.rejection_method import evidence
from tractable.posterior import groups, pointwise
from tractable.posterior import predict as prediction
from tractable.posterior.exchange import GROUPS, to_tree
from tractable.posterior.folder import RESULT, discard_draws, refuse_others, write
from tractable.posterior.scaling import power_scaled

DERIVED = 30  # a summary lists derived arrays of up to this many numbers
AGAIN = 0x5EED  # folded into the key of the second run that checks the first


@as_learnt
@dataclass(eq=False)
class Posterior(Learnt):
    """The result of ``infer``. Values are in the user's space, as pytrees shaped like the prior.

    Attributes:
        model, data, method, seed: the arguments of ``infer``.
        belief: the approximate posterior: draws, their moments, a point, or a q.
        found: numbers of the run, such as the step size that warm-up chose, or the bound.
        seconds: wall time by phase.
        interrupted: the run was stopped before its end.
        run_state: the run's state, for ``extend``.
        looked: results of ``verify``.
        judged: the report, once made.
    """

    method: Method
    judged: Report | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        stopped = ", interrupted" if self.interrupted else ""
        by = type(self.method).__name__
        return f"Posterior({self.belief.describe()} by {by}, {len(self.names)} numbers{stopped})"

    _repr_html_ = as_html

    def summary(self, level: float = 0.9, *, derived: bool = True) -> Any:
        """A pandas DataFrame, one row per number: mean, sd, an equal-tailed interval, and their accuracy.

        Columns: ``mean``, ``sd``; where draws were kept the interval's ends (``5%``, ``95%``), the mean's Monte-Carlo
        standard error ``mcse_mean``, effective draws in the bulk and the tails (``ess_bulk``, ``ess_tail``), ``r_hat``.

        Args:
            level: the interval's level, in (0, 1).
            derived: also list the model's derived quantities, arrays of at most 30 numbers.
        """
        import pandas as pd

        from tractable.posterior.summary import Summary

        expect("summary(level)", level, Share)
        has_draws = self.unconstrained is not None and self.count > 0
        own = self._table(self.names, self.values if has_draws else None, *self.flat_moments, level)
        can = derived and self.model.derived is not None and (has_draws or self.is_point)
        names, values = self._derived_numbers if can else ([], np.zeros(0))
        if not names:
            return Summary(own)
        flat = values.reshape(-1, values.shape[-1])
        mean, sd = flat[0], np.full(len(names), np.nan)
        if has_draws:
            weights = None if self.weights is None else self.weights.ravel()
            mean = np.average(flat, axis=0, weights=weights)
            sd = np.sqrt(np.average(np.square(flat - mean), axis=0, weights=weights))
        more = self._table(names, values if has_draws else None, mean, sd, level)
        return Summary(pd.concat([own, more]).rename_axis("parameter"))

    def _table(
        self, names: list[str], values: np.ndarray | None, mean: np.ndarray, sd: np.ndarray, level: float
    ) -> Any:
        """Rows of a summary; ``values`` (chain, draw, k), or None if no draws were kept."""
        import pandas as pd

        table, index = {"mean": mean, "sd": sd}, pd.Index(names, name="parameter")
        if values is None:
            return pd.DataFrame(table, index=index)
        low, high = (1 - level) / 2, (1 + level) / 2
        weights = None if self.weights is None else self.weights.ravel()
        bounds = weighted_quantiles(values.reshape(-1, len(names)), [low, high], weights)
        # What is derived may be a constant: it has no R-hat.
        seen = self.diagnosed if names is self.names else self.diagnose(values, np.ptp(values, axis=(0, 1)) == 0)
        table |= {
            f"{100 * low:g}%": bounds[0], f"{100 * high:g}%": bounds[1], "mcse_mean": seen.mcse_mean,
            "ess_bulk": seen.bulk, "ess_tail": seen.tail, "r_hat": seen.rhat,
        }  # fmt: skip
        return pd.DataFrame(table, index=index)

    def derived(self, *, draws: int | None = None) -> dict[str, np.ndarray]:
        """The model's derived quantities for each draw: arrays (chain, draw, ...) by name.

        Args:
            draws: draws per chain, at most, evenly spaced; by default all.
        """
        values, params = self._each(draws)
        found = pointwise.derived(self.model, params)
        return {name: a.reshape(*values.shape[:2], *a.shape[1:]) for name, a in found.items()}

    @functools.cached_property
    def _derived_numbers(self) -> tuple[list[str], np.ndarray]:
        """Names of the numbers in derived arrays of at most ``DERIVED`` numbers, and their values (chain, draw, m)."""
        values, params = self._each(None)
        found = pointwise.derived(self.model, params, most=DERIVED)
        flat = [np.asarray(a, np.float64).reshape(*values.shape[:2], -1) for a in found.values()]
        names = tree.names({name: a[0] for name, a in found.items()})
        return names, np.concatenate([np.zeros((*values.shape[:2], 0)), *flat], -1)

    def sample(self, key: jax.Array | int, n: int) -> PyTree:
        """n draws, leading axis (n,): new ones of a q; of chains kept ones, resampled by weight; a point n times."""
        expect("sample(n)", n, Count)
        if not isinstance(key, jax.Array):
            key = jax.random.key(seeded("sample(key)", key))
        return self.shaped(self.belief.sample(self.model, self.values, key, n))

    def pruned(self, share: float) -> "Posterior":
        """The mean field with its least certain parameters, the ``share`` with the lowest |μ|/σ, set to exactly zero.

        Blundell et al. 2015, section 5.1. Only unbounded parameters are counted and pruned.

        Args:
            share: in [0, 1).
        """
        if self.fitted is None or self.fitted.family != "mean field":
            raise SettingsError("pruned(share) expects a mean field, from BayesByBackprop or MeanField.")
        if not 0 <= share < 1:
            raise SettingsError(f"pruned(share) expects a share in [0, 1); got {share}.")
        real = np.flatnonzero(self.model.real)
        mean, sd = (np.array(a) for a in (self.fitted.phi["mean"], approximations.softplus(self.fitted.phi["rho"])))
        certain = np.abs(mean[real]) / sd[real]
        gone = real[np.argsort(certain, kind="stable")[: round(share * len(real))]]
        mean[gone] = 0
        rho = np.array(self.fitted.phi["rho"])
        rho[gone] = -np.inf  # σ = 0
        phi = {"mean": mean, "rho": rho}
        q = approximations.mean_field(len(mean))
        draws = np.asarray(approximations.drawn(q, phi, draws_key(self.seed), self.count))[None]
        fitted = replace(self.fitted, phi=phi, log_weights=None, positions=draws)
        return replace(self, belief=fitted, run_state=None, verification=(), judged=None)

    def relabelled(self) -> "Posterior":
        """The same draws with exchangeable components matched between draws (``relabelling.match_components``).

        If labels switch, a component's mean averages over all components; after matching, summaries, R-hat and plots of
        single components are meaningful. For mixtures with data in memory.
        """
        model = latent_model(self.model)
        if model is None or model.symmetry.permute is None or self.data is None or self.unconstrained is None:
            raise SettingsError("relabelled() expects draws of a mixture's components, and the data they explain.")
        shape = self.unconstrained.shape
        flat = match_components(model, self.data.arrays(), self.unconstrained.reshape(-1, shape[-1]))
        belief = replace(self.belief, positions=flat.reshape(shape))
        return replace(self, belief=belief, run_state=None, verification=(), judged=None)

    def allocations(self, data: Data | PyTree = None, *, draws: int = 100) -> np.ndarray:
        """p(z | x_n) of each row, (n, m) over the m values of z, averaged over the posterior; (n, T, m) for sequences.

        If labels switch, call it on ``posterior.relabelled()``.

        Args:
            data: rows; by default the fitted ones.
            draws: draws to average over, at most, evenly over chains and time.
        """
        model, params, weights = self._of_z("allocations", draws)
        return np.asarray(mean_allocations(model, self._rows_or(data).rows, params, jax.numpy.asarray(weights)))

    def paths(self, data: Data | PyTree = None, *, draws: int = 100, seed: int = 0) -> np.ndarray:
        """Draws of z from p(z, θ | x): paths (s, n, T), states of linear systems (s, n, T, d), or indices (s, n).

        θ may come from any method. After a sequence's last observed step a path is -1, and states go on.

        Args:
            data, draws: as for ``allocations``; each draw of θ has one of z.
            seed: of the draws of z.
        """
        model, params, weights = self._of_z("paths", draws)
        if self.weights is not None:
            picked = np.random.default_rng(seed).choice(len(weights), len(weights), p=weights)
            params = jax.tree.map(lambda a: a[picked], params)
        key = jax.random.key(seeded("paths(seed)", seed))
        return np.asarray(draw_latents(model, self._rows_or(data).rows, params, key))

    def _of_z(self, what: str, draws: int) -> tuple[LatentModel, PyTree, np.ndarray]:
        expect(f"{what}(draws)", draws, Count)
        model = latent_model(self.model)
        if model is None:
            raise SettingsError(f"{what}() expects a LatentModel, whose rows have a z each.")
        params, weights = self.spread(draws)
        return model, jax.tree.map(jax.numpy.asarray, params), weights

    def spread(self, most: int) -> tuple[PyTree, np.ndarray]:
        """At most ``most`` draws, evenly over chains and time, and their weights, which sum to 1."""
        flat = self.values.swapaxes(0, 1).reshape(-1, len(self.names))
        weights = np.ones(len(flat)) if self.weights is None else self.weights.T.ravel()
        weighted = np.flatnonzero(weights > 0)
        index = weighted[np.unique(np.linspace(0, len(weighted) - 1, min(most, len(weighted))).astype(int))]
        return self.shaped(flat[index]), weights[index] / weights[index].sum()

    @functools.cached_property
    def predictive(self) -> Model:
        """The model used for predictions: the one given, or for Laplace on a network its linearisation."""
        return self.method.predictive(self.model, self.belief)

    @spelt
    def predict(
        self, x: PyTree = None, level: float = 0.9, *, draws: int = 1000, seed: int = 0,
        calibrate: Data | PyTree = None, group: Labels | None = None, mesh: int | str | Mesh | None = None,
    ) -> prediction.Prediction:  # fmt: skip
        """The predictive distribution of new data at inputs ``x``, (n, ...); of one datum if the model has no inputs.

        Args:
            x: rows of inputs: an array, which may be memory-mapped, or a pytree of them; for a formula's model also a
                table; for a likelihood with its own ``predict`` what that takes, for sequences the steps ahead.
            level: the intervals' level, in (0, 1).
            draws: draws of the parameters, at most, evenly over chains and time.
            seed: of the data drawn for the intervals.
            calibrate: Data that took no part in the fit. The interval becomes mean ± q sd with q from their errors. For
                rows exchangeable with these it holds a new y with probability at least ``level``, in finite samples
                and whatever the model; on average over rows, not at each input. For numbers only.
            group: for a model with ``local``, (n,) labels of the rows' groups, known or new; by default every row has
                a new group.
            mesh: devices that the rows lie over, as for ``infer``: the same bits on any number of them.

        Raises:
            DataError: inputs unlike those fitted; fitted rows to calibrate by; a ladder, which predicts no y.
            SettingsError: an argument that this model does not take.
        """
        check_unforked()
        placement = over_rows(mesh)
        if mesh is not None and (self.model.local is not None or self.model.ahead is not None):
            raise SettingsError("predict(mesh=...) is of rows by themselves, without groups or time: leave it out.")
        if self.model.of_table is not None and columns_of(x) is not None:
            x = self.model.of_table(x)
        if self.model.local is not None:
            if calibrate is not None:
                raise SettingsError("predict(calibrate=...) is not for rows of groups, which are not exchangeable.")
            return groups.predict(self, x, group, level, draws, seed)
        if group is not None:
            raise SettingsError("predict(group=...) is for a model with local=; this one has no groups.")
        if self.phi is not None:
            raise DataError(
                "A ladder predicts no y from inputs: posterior.generate(n) draws new rows, posterior.reconstruct(x) "
                "gives rows again, and posterior.impute(x) fills in what is missing of them."
            )
        if calibrate is not None:
            calibrate = as_data(calibrate)
            if self.data is not None and calibrate.fingerprint == self.data.fingerprint:
                raise DataError("predict(calibrate=...) needs rows kept out of the fit; got those that were fitted.")
        expect("predict(draws)", draws, Count)
        own = self.model.ahead
        if own is not None:
            if calibrate is not None:
                raise SettingsError("predict(calibrate=...) is of rows; this likelihood predicts by a law of its own.")
            return prediction.ahead(own, *self.spread(draws), x, self._rows_or().rows, level=level, seed=seed)
        if self.data is not None:
            prediction.check_inputs(self.data.given, x, "predict(x)")
            kinds = (kinds_of(self.data)[0], None if x is None else row_shapes(prediction.rows_of(x)[0]))
            if kinds != kinds_of(self.data):  # of another dtype, say, for which the model may be another
                share_programs(self.model, kinds, self.data.size)
        return prediction.predict(
            self.predictive, *self.spread(draws), x, level=level, seed=seed, calibrate=calibrate, placement=placement
        )

    def local(self, group: Any = None, *, draws: int = 100) -> Any:
        """Mean and sd of groups' own parameters, by label (``groups.local_moments``): a pandas DataFrame.

        Args:
            group: labels; by default all.
            draws: draws of the parameters, at most, evenly over chains and time.
        """
        expect("local(draws)", draws, Count)
        return groups.local_moments(self.model, self.data, *self.spread(draws), group)

    def log_predictive(
        self, data: Data | PyTree, *, draws: int = 1000, mesh: int | str | Mesh | None = None
    ) -> np.ndarray:
        """log p(y*_n | D) = log mean_θ p(y*_n | θ), (n,), in nats; ``mesh`` as for ``predict``.

        For a ladder with an inference network, a lower bound of log p(x*_n | θ) by ``draws`` draws (``log_evidence``).
        """
        if mesh is not None and (self.phi is not None or self.model.local is not None):
            raise SettingsError("log_predictive(mesh=...) is of rows by themselves, without groups: leave it out.")
        if self.phi is not None:
            return coding.log_evidence(self, data, samples=draws).log_evidence
        data = as_data(data)
        if self.data is not None and self.model.local is None:
            prediction.check_inputs(self.data.given, data.given, "log_predictive(data)")
        return prediction.log_predictive(self.predictive, *self.spread(draws), data, over_rows(mesh))

    def log_likelihood(
        self, data: Data | PyTree = None, *, draws: int | None = None, mesh: int | str | Mesh | None = None
    ) -> np.ndarray:
        """w_n log p(y_n | x_n, θ_s) for each draw and row, (chain, draw, n), in nats; ``mesh`` as for ``predict``.

        Args:
            data: by default the fitted rows.
            draws: draws per chain, at most, evenly spaced; by default all.

        Raises:
            RunError: no draws were kept. ModelError: the likelihood cannot be evaluated row by row.
            DataError: there are no rows, or the answer would take more than 2 GiB.
        """
        values, params = self._each(draws)
        if mesh is not None and self.model.local is not None:
            raise SettingsError("log_likelihood(mesh=...) is of rows by themselves, without groups: leave it out.")
        found = pointwise.log_likelihoods(self.predictive, params, self._rows_or(data), over_rows(mesh))
        return found.reshape(*values.shape[:2], -1)

    def loo(self, *, draws: int = 4000, rows: int | None = None) -> pointwise.Loo:
        """Leave-one-out cross-validation by Pareto-smoothed importance sampling: a ``pointwise.Loo``.

        Draws of a q are corrected by importance weights if ``verify`` computed them. ``elpd`` is NaN if a k-hat says it
        is unreliable. In a model with ``local`` a datum is a group: it is left out with all of its rows, and predicted
        as a new group.

        Args:
            draws: draws to use, at most, evenly over chains and time; at least 100.
            rows: evaluate only this many, chosen at random, which widens ``se``: 10,000 and 1000 draws take seconds.

        Raises:
            RunError: a point, or fewer than 100 draws. DataError: there are no rows.
        """
        return pointwise.loo(self.predictive, *self._leaving(draws), rows=rows)

    def pit(self, *, draws: int = 1000, rows: int | None = None, seed: int = 0) -> np.ndarray:
        """Leave-one-out probability integral transforms Pr(y* < y_n | y without n) of rows of one number, (n,).

        Uniform on (0, 1) if predictions are right (Gelfand et al. 1992). Ties of discrete data are broken at random,
        and a censored row's place between its bounds is random. NaN for a row that is too influential to be left out
        by reweighing draws (see ``loo()``). In a model with ``local`` a row is left out with its whole group, and
        predicted as a row of a new group.

        Args:
            draws: draws to use, at most, each with one replicated datum per row; at least 100.
            rows: number of rows (or groups), evenly spaced; by default all.
            seed: of the replicated data.
        """
        seed = seeded("pit(seed)", seed)
        leaving = self._leaving(draws)
        if self.model.local is not None:
            return groups.transforms(self.model, *leaving, rows, seed)
        params, log_weights, data, efficiency = leaving
        if rows is not None and rows < data.size:
            data = data.take(np.linspace(0, data.size - 1, rows).astype(int))
        y = pointwise.single(data.y)
        drawn = pointwise.replicated(self.predictive, params, data.given, data.size, seed)
        parts = list(pointwise.left_out(self.predictive, params, log_weights, data, efficiency))
        return pointwise.placed(pointwise.concatenate_chunks(parts), drawn, y, seed)

    def posterior_predictive(
        self, x: PyTree = None, *, group: Labels | None = None, draws: int | None = None, seed: int = 0
    ) -> PyTree:
        """Replicated data for each draw, y*_n ~ p(y | x_n, θ_s): (chain, draw, n, ...) for each part of a datum.

        Args:
            x: rows of inputs; by default the fitted ones. A model without inputs replicates as many rows as it was
                fitted to.
            group: as for ``predict``, for a model with ``local``. Without x and group, the fitted rows in their groups:
                z_g ~ p(z | y_g, θ_s), y*_n ~ p(y | x_n, z_g, θ_s). Labels not in the data mean new groups.
            draws: draws per chain, at most, evenly spaced; by default all.
        """
        values, params = self._each(draws)
        drawn = self._replicated(params, x, group, seed)
        return jax.tree.map(lambda a: a.reshape(*values.shape[:2], *a.shape[1:]), drawn)

    def prior_predictive(
        self, x: PyTree = None, *, group: Labels | None = None, draws: int = 500, seed: int = 0
    ) -> PyTree:
        """Data from the prior predictive, (draw, n, ...): θ_s ~ p(θ), y*_n ~ p(y | x_n, θ_s).

        In a model with ``local``, also z_g ~ p(z | θ_s), shared by all rows of a ``group``.
        """
        params = pointwise.prior_draws(self.model, draws, seed)
        return self._replicated(params, x, group, seed, new=True)

    def _replicated(self, params: PyTree, x: PyTree, group: Labels | None, seed: int, new: bool = False) -> PyTree:
        """y*_n for parameters (s, ...): (s, n, ...); ``new``: parameters are from the prior, all groups new."""
        if self.model.local is not None:
            return groups.replicated(self.model, self.data, params, x, group, seed, new=new)
        if group is not None:
            raise SettingsError("group= is for a model with local=; this one has no groups.")
        return pointwise.replicated(self.model if new else self.predictive, params, *self._inputs_or(x), seed)

    def sensitivity(self, *, draws: int = 4000) -> Any:
        """How much the posterior moves if its prior, or its likelihood, is raised to a power near 1.

        A pandas DataFrame, one row per number; ``scaling.power_scaled`` explains the columns.
        """
        params, weights = self._drawn().spread(draws)
        return power_scaled(self.model, params, weights, self.names, self.data)

    def _each(self, draws: int | None) -> tuple[np.ndarray, PyTree]:
        """At most ``draws`` per chain, evenly spaced: values (chain, draw, k), and parameters (chain · draw, ...)."""
        if draws is not None:
            expect("draws", draws, Count)
        values = self._drawn().values
        if draws is not None and draws < values.shape[1]:
            values = values[:, np.linspace(0, values.shape[1] - 1, draws).astype(int)]
        return values, self.shaped(values.reshape(-1, values.shape[-1]))

    def _drawn(self) -> "Posterior":
        """Itself; a RunError if the run was stopped before its first draw."""
        if not self.is_point and not self.count and self.unconstrained is not None:
            raise RunError("The run was stopped before its first draw, so there are no parameters to speak of.")
        return self

    def _rows_or(self, data: Data | PyTree = None) -> Data:
        if self.phi is not None:
            raise ModelError("A ladder's rows have no density at θ in closed form: posterior.log_evidence bounds it.")
        if getattr(self.model.prior, "why", None):
            needed_likelihood(self.model)  # says why there are no rows
        data = self.data if data is None else as_data(data)
        if data is None or not data.size:
            raise DataError("There are no rows: this posterior learnt from none. Give them: data=Data(y, given=x).")
        return data

    def _inputs_or(self, x: PyTree) -> tuple[PyTree, int]:
        if x is not None:
            return prediction.rows_of(x)
        data = self._rows_or()
        return data.given, data.size

    def _leaving(self, draws: int) -> tuple[PyTree, np.ndarray, Data, float]:
        """For leave-one-out: draws, their log weights, the rows, and the effective sample size per draw."""
        data = self._rows_or()
        if self.is_point:
            raise RunError(
                "loo() and pit() leave rows out by reweighing draws; a point has none. Use a method that draws."
            )
        fitted = self._drawn().fitted
        if fitted is not None and fitted.log_weights is not None and self.predictive is self.model and data.resident:
            weighted = replace(fitted, positions=np.asarray(fitted.positions)[:, :draws])
            params = self.shaped(weighted.values(self.model)[0])
            return params, pointwise.corrected(self.model, data, weighted), data, 1.0
        params, weights = self.spread(draws)
        known = np.nanmean(self.diagnosed.bulk) if self.count > 8 and not self.method.independent else np.nan
        efficiency = 1.0 if fitted is not None or not known > 0 else min(1.0, float(known) / len(weights))
        return params, np.log(weights), data, efficiency

    def log_evidence(self, *args: Any, **settings: Any) -> Evidence:
        """This posterior's estimate of log p(y), nats, with its standard error and a verdict.

        Rejection estimates log p(y) as it runs. For a ladder with an inference network, ``log_evidence(data,
        samples=1000)`` bounds log p(x) by row (``encoding.log_evidence``). ``tr.log_evidence`` serves any model.

        Raises:
            RunError: the method does not estimate it.
        """
        if self.phi is not None:
            return coding.log_evidence(self, *args, **settings)
        if "tries" not in self.info:
            raise RunError(f"{type(self.method).__name__} does not estimate the evidence; Rejection does.")
        return evidence(self.info, self.found["log_bound"])

    # For ladders: functions whose first argument, ``posterior``, is self.
    encode, generate, reconstruct, elbo = coding.encode, coding.generate, coding.reconstruct, coding.elbo
    impute = imputing.impute

    def report(self, *, held_out: Data | PyTree = None) -> Report:
        """How far this can be trusted: a verdict, and the checks behind it. A loaded posterior keeps its saved report.

        Args:
            held_out: rows that took no part in the fit: adds checks of whether their densities and their coverage are
                as predicted; for a ladder, whether their bound equals that of fitted rows.
        """
        if self.judged is None:
            self.judged = judge(self)
        return self.judged if held_out is None else with_checks(self.judged, self._held_out(held_out))

    def _held_out(self, rows: Data | PyTree) -> list[Check]:
        if self.phi is not None:
            return [coding.gap_check(self, rows)]
        if not (self.is_point or self.count) or not can_be_compared(self.model, as_data(rows)):
            sentence = "rows held out were not looked at: that takes draws or a point, and one distribution a row"
            if self.model.local is not None:
                sentence = "groups held out were not looked at; posterior.log_predictive(them) tells their densities"
            return [Check(HELD_OUT, float("nan"), "caution", sentence)]
        return held_out_checks(side_of(self), as_data(rows), self.seed or 0)

    def verify(self, how: str | None = "auto", *, held_out: Data | PyTree = None) -> "Posterior":
        """The same posterior, checked again: did it miss modes, are its means and sds right, is its mass finite?

        For a network, whose weights are not identified: does it predict what other chains, or a second run, predict,
        and do predictions stay when the draws are moved under the target? Ladders and mixtures have their own checks.

        Args:
            how: "auto" spends at most a quarter of the run's own work, or about two seconds; "thorough" checks four
                times as much, however long it takes, and compares with chains by NUTS (for NUTS, by HMC); None makes no
                checks, and no verdict is then better than "caution".
            held_out: rows that took no part in the fit, to check predictions with.
        """
        expect("verify(how)", how, Verify)
        began = time.perf_counter()
        verification = (*verify(self, how, self._again, held_out is not None), *group_integrals(self))
        if held_out is not None:
            verification += tuple(self._held_out(held_out))
        seconds = self.seconds | {"verifying": time.perf_counter() - began}
        belief = self.belief
        if isinstance(belief, Point) and any(check.name == HIDDEN for check in verification):
            belief = replace(belief, covariance=None)
        return replace(self, belief=belief, verification=verification, seconds=seconds, judged=None)

    def _again(self, label: str | None = None) -> "Posterior":
        """The same run with another seed, or by another method."""
        method = self.method if label is None else named(label)()
        with open_session(self.model, self.data, self.seed, False) as session:
            outcome = method.learn(session._replace(key=jax.random.fold_in(session.key, AGAIN)))
        return Posterior(self.model, self.data, method, self.seed, *outcome)

    @ending()
    def extend(
        self, draws: int, *, progress: bool | Callable | None = None, verify: str | None = "auto",
        held_out: Data | PyTree = None, mesh: int | str | Mesh | None = None, reproducible: bool = True,
    ) -> "Posterior":  # fmt: skip
        """Continue for ``draws`` more kept draws per chain, with the same result as one longer run.

        ``verify`` and ``held_out`` are passed to ``verify()``, which checks the whole again; ``mesh`` and
        ``reproducible`` are those of ``infer``, to be given again for the bits of one longer run.
        """
        needs("extend()", self.method)
        if self.run_state is None or self.belief.positions is None:
            raise RunError(
                "Only a posterior of kept draws, from this process, can be extended; use checkpoint= across processes."
            )
        expect("extend(draws)", draws, Count)
        placement = placement_of(self.method, self.data, mesh, reproducible)
        with open_session(self.model, self.data, self.seed, progress, placement) as session:
            outcome = self.method.extended(session, self.belief, self.run_state, self.count + draws)
        if self.found.get("double"):
            outcome = outcome._replace(found=outcome.found | {"double": True})
        return Posterior(self.model, self.data, self.method, self.seed, *outcome).verify(verify, held_out=held_out)

    def to_arviz(
        self,
        *,
        groups: Sequence[str] = GROUPS,
        draws: int | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Any:
        """An ArviZ DataTree: posterior, sample_stats, log_likelihood, log_prior, posterior_predictive, prior,
        prior_predictive, observed_data, constant_data.

        Groups that the model or posterior cannot provide are left out; ``attrs["left_out"]`` says why. Rows have the
        dimension "row". Row weights multiply ``log_likelihood`` and are in ``constant_data``: ``arviz_stats.loo``
        leaves a row out with its whole weight, ``posterior.loo()`` with one count. In a model with ``local``,
        ``log_likelihood`` has the dimension "group", so that ArviZ leaves groups out too, and ``constant_data`` holds
        ``group_of_row``.

        Args:
            groups: the groups to make.
            draws: draws per chain, at most, evenly spaced, in every group; by default all, and 500 of the prior.
            dims, coords: axis names for each parameter or data variable, ``{"w": ["feature"]}``, and the labels along
                an axis, ``{"feature": ["age", "height"]}``.
            seed: of the data and parameters drawn.
        """
        return to_tree(self, groups, draws, dims, coords, seeded("to_arviz(seed)", seed))

    def save(self, path: str | pathlib.Path, *, overwrite: bool = False) -> None:
        """Write a folder that ``tractable.load`` reads: settings (TOML), draws (zarr), summary; no pickles.

        Args:
            overwrite: replace a posterior already there, once the new one is written.

        Raises:
            CheckpointError: a posterior is there already, another process writes the folder, or it cannot be written.
        """
        with lock(path):
            self._save(pathlib.Path(path), overwrite)

    def _save(self, folder: pathlib.Path, overwrite: bool) -> None:
        there = [folder / name for name in ("draws.zarr", "belief", "fitted") if (folder / name).exists()]
        if not there:
            refuse_others(folder)
            return self.write(folder)
        if not overwrite:
            raise CheckpointError(f"{folder} already holds draws; choose another folder, or give overwrite=True.")
        with disk_errors(folder), tempfile.TemporaryDirectory(dir=folder) as fresh:
            self.write(pathlib.Path(fresh))
            for old in there:
                discard_draws(folder) if old.name == "draws.zarr" else shutil.rmtree(old)
            for new in sorted(pathlib.Path(fresh).iterdir(), key=lambda new: new.name == RESULT):  # posterior.json last
                new.replace(folder / new.name)

    def write(self, folder: pathlib.Path, *, streamed: bool = False, units: str = "") -> None:
        """Write the posterior into a run's folder; ``streamed``: its draws are there already.

        ``units`` says which its model speaks, where these are not the user's.
        """
        if isinstance(self.belief, Draws) and not self.count:
            return  # stopped before its first draw
        report, bias = self.report(), self.predicted_bias
        about = {
            "names": self.names,
            "title": report.title,
            "verdict": report.verdict,
            "checks": [c._replace(place=None)._asdict() | {"value": float(c.value)} for c in report.checks],
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "found": {k: v for k, v in self.found.items() if isinstance(v, int | float | str | list)},
            "thin": self.thin,
            "count": self.count,
            "bias": None if bias is None else {"inflation": bias.inflation.tolist(), "worst": bias.worst},
            "model": density_trace(self.model, kinds_of(self.data)).fingerprint,
            "traced": {
                "rows": saved_kinds(kinds_of(self.data)),
                "dtype": jax.numpy.result_type(float).name,
                "jax": jax.__version__,
            },
            "made": recipe(self.model),
        } | ({"units": units} if units else {})
        summary = self.summary()
        if units:
            summary.index = summary.index + f" ({units})"
        write(folder, self.belief, self.model, self.settings, summary, about, streamed=streamed)
