"""The result of inference: one interface for draws, fitted distributions and point estimates."""

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tractable.core import approximations, tree
from tractable.core.bits import as_learnt
from tractable.core.check import Check
from tractable.core.clock import Stopwatch, add
from tractable.core.errors import CheckpointError, RunError, SettingsError, enough_memory
from tractable.core.latent import LatentModel, latent_model
from tractable.core.model import Data, PyTree, as_data
from tractable.core.settings import Count, Share, check_seed, expect
from tractable.core.shared import recipe
from tractable.core.shown import as_html
from tractable.core.view import View
from tractable.core.writing import disk_errors
from tractable.diagnostics.belief import Draws, Point, draws_key
from tractable.diagnostics.evidence import Evidence
from tractable.diagnostics.groups import look as group_integrals
from tractable.diagnostics.networks import side_of
from tractable.diagnostics.predictions import HELD_OUT, can_be_compared, held_out_checks
from tractable.diagnostics.relabelling import draw_latents, match_components, mean_allocations
from tractable.diagnostics.report import Report, judge, with_checks
from tractable.diagnostics.shape import HIDDEN
from tractable.diagnostics.verify import Verify, verify
from tractable.engine import preflight
from tractable.engine.abilities import needs, placement_of
from tractable.engine.identity import density_trace, kinds_of, kinds_to_json
from tractable.engine.locks import lock
from tractable.engine.session import open_session
from tractable.engine.stopping import ending
from tractable.ladders import encoding as coding
from tractable.ladders import imputing
from tractable.mcmc.rejection_method import evidence
from tractable.methods import Method, named
from tractable.posterior import pointwise
from tractable.posterior.exchange import GROUPS, as_kind, to_tree
from tractable.posterior.folder import RESULT, discard_draws, refuse_others, write
from tractable.posterior.predictive import Predictive
from tractable.posterior.readings import Readings, as_table, diagnostics_of, moments_of, readings_of

DERIVED = 30  # a summary lists derived arrays of at most this many numbers
AGAIN = 0x5EED  # folded into the random key of a second run, which checks the first run


@as_learnt
@dataclass(eq=False)
class Posterior(Predictive):
    """The result of ``infer``. Values are those of the user's parameters, as pytrees like the prior.

    Attributes:
        model, data, method, seed: the arguments of ``infer``.
        belief: the approximate posterior: draws, their moments, a point estimate, or a fitted distribution q.
        found: numbers of the run, such as the step size that warm-up chose, or the evidence lower bound.
        seconds: wall time by phase. The phases of ``infer`` add up to what a stopwatch shows; none but "compiling"
            includes compiling, and "preparing" is what no other phase counts. ``verify`` and ``extend`` add theirs.
        interrupted: whether the run was stopped before its end.
        run_state: the run's state, for ``extend``.
        verification: the checks that ``verify`` made.
        judged: the report; None until ``report`` is called.
    """

    method: Method
    judged: Report | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        note = ", interrupted" if self.interrupted else ""
        method = type(self.method).__name__
        return f"Posterior({self.method.describe(self.belief)} by {method}, {len(self.names)} numbers{note})"

    _repr_html_ = as_html

    def summary(self, level: float = 0.9, *, derived: bool = True) -> Any:
        """Summarises each number of the parameters in a pandas DataFrame, with one row per number.

        The columns are ``mean`` and ``sd``. If draws were kept, there are also the bounds of an equal-tailed interval
        (``5%``, ``95%``), the Monte-Carlo standard error of the mean ``mcse_mean``, the effective sample sizes for the
        centre and the tails (``ess_bulk``, ``ess_tail``), and ``r_hat``.

        Args:
            level: the interval's level, in (0, 1).
            derived: whether to list the model's derived quantities too, if they are arrays of at most 30 numbers.
        """
        import pandas as pd

        from tractable.posterior.summary import Summary

        expect("summary(level)", level, Share)
        table = as_table(self.readings, level, self.weights)
        if not derived or self.model.derived is None or (self.readings.values is None and not self.is_point):
            return Summary(table)
        derived_table = as_table(self._derived_numbers, level, self.weights)
        return Summary(pd.concat([table, derived_table]).rename_axis("parameter"))

    @property
    def view(self) -> View | None:
        """How the parameters become numbers in the units of a table; None if they are shown as they are."""
        return None if self.model.table is None else self.model.table.view

    @functools.cached_property
    def readings(self) -> Readings:
        """The numbers that summaries and figures show."""
        return readings_of(self._as_learnt, self.view)

    @property
    def _as_learnt(self) -> "Posterior":
        """The posterior whose draws and moments are those of the model's parameters."""
        return self

    def derived(self, *, draws: int | None = None) -> dict[str, np.ndarray]:
        """Computes the model's derived quantities for each draw: arrays (chain, draw, ...) by name.

        Args:
            draws: maximum number of draws per chain, evenly spaced; by default all draws.
        """
        values, params = self._each(draws)
        arrays = pointwise.derived(self.model, params)
        return {name: a.reshape(*values.shape[:2], *a.shape[1:]) for name, a in arrays.items()}

    @functools.cached_property
    def _derived_numbers(self) -> Readings:
        """The numbers of derived arrays of at most ``DERIVED`` numbers."""
        values, params = self._each(None)
        arrays = pointwise.derived(self.model, params, most=DERIVED)
        flat = [np.asarray(a, np.float64).reshape(*values.shape[:2], -1) for a in arrays.values()]
        names = tree.names({name: a[0] for name, a in arrays.items()})
        numbers = np.concatenate([np.zeros((*values.shape[:2], 0)), *flat], -1)
        if self.readings.values is None:  # a point estimate
            return Readings(names, numbers[0, 0], np.full(len(names), np.nan))
        return Readings(names, *moments_of(numbers, self.weights), numbers, diagnostics_of(self, numbers))

    def sample(self, key: jax.Array | int, n: int) -> PyTree:
        """Draws n parameters from the posterior, with the leading axis (n,).

        A fitted distribution q gives new draws. For chains, draws of the run are resampled by weight. A point estimate
        is repeated n times.
        """
        expect("sample(n)", n, Count)
        key = key if isinstance(key, jax.Array) else jax.random.key(check_seed("sample(key)", key))
        return self.shaped(self.belief.sample(self.model, self.values, key, n))

    def pruned(self, share: float) -> "Posterior":
        """Sets the ``share`` of a mean-field q's parameters with the lowest |μ|/σ to exactly zero.

        See Blundell et al. 2015, section 5.1. Only unbounded parameters are counted and pruned.

        Args:
            share: the share of parameters to prune, in [0, 1).
        """
        if self.fitted is None or self.fitted.family != "mean field":
            raise SettingsError("pruned(share) expects a mean-field result, from BayesByBackprop or MeanField.")
        if not 0 <= share < 1:
            raise SettingsError(f"pruned(share) expects a share in [0, 1); got {share}.")
        real = np.flatnonzero(self.model.real)
        mean, rho = (np.array(self.fitted.phi[name]) for name in ("mean", "rho"))
        certainty = np.abs(mean[real]) / np.asarray(approximations.softplus(rho[real]))
        pruned = real[np.argsort(certainty, kind="stable")[: round(share * len(real))]]
        mean[pruned], rho[pruned] = 0, -np.inf  # σ = 0
        phi = {"mean": mean, "rho": rho}
        draws = np.asarray(approximations.draws_of(self.fitted.q, phi, draws_key(self.seed), self.count))[None]
        fitted = replace(self.fitted, phi=phi, log_weights=None, positions=draws)
        return replace(self, belief=fitted, run_state=None, verification=(), judged=None)

    def relabelled(self) -> "Posterior":
        """Matches exchangeable components between draws (``relabelling.match_components``).

        If the labels of components switch during a run, each component's mean is an average over all components. After
        matching, summaries, R-hat and plots of single components are meaningful. For mixtures with data in memory.
        """
        model = latent_model(self.model)
        if model is None or model.symmetry.permute is None or self.data is None or self.unconstrained is None:
            raise SettingsError("relabelled() expects draws of a mixture's parameters, and the data of the fit.")
        shape = self.unconstrained.shape
        flat = match_components(model, self.data.arrays(), self.unconstrained.reshape(-1, shape[-1]))
        belief = replace(self.belief, positions=flat.reshape(shape))
        return replace(self, belief=belief, run_state=None, verification=(), judged=None)

    def allocations(self, data: Data | PyTree = None, *, draws: int = 100) -> np.ndarray:
        """The probabilities p(z | x_n) of each row's m values of z, averaged over the posterior.

        If labels switch during the run, call this on ``posterior.relabelled()``.

        Args:
            data: the rows; by default the fitted rows.
            draws: maximum number of draws to average over, evenly spaced over chains and time.

        Returns:
            (n, m); for sequences (n, T, m).
        """
        model, params, weights = self._of_z("allocations", draws)
        return np.asarray(mean_allocations(model, self._rows_or(data).rows, params, jax.numpy.asarray(weights)))

    def paths(self, data: Data | PyTree = None, *, draws: int = 100, seed: int = 0) -> np.ndarray:
        """Draws the latent z of each row from p(z, θ | x): one z for each draw of θ, which may come from any method.

        After a sequence's last observed step, paths are -1; the states of linear systems continue.

        Args:
            data, draws: as for ``allocations``.
            seed: seed of the draws of z.

        Returns:
            Paths (s, n, T), states of linear systems (s, n, T, d), or indices (s, n).
        """
        model, params, weights = self._of_z("paths", draws)
        if self.weights is not None:
            index = np.random.default_rng(seed).choice(len(weights), len(weights), p=weights)
            params = jax.tree.map(lambda a: a[index], params)
        key = jax.random.key(check_seed("paths(seed)", seed))
        return np.asarray(draw_latents(model, self._rows_or(data).rows, params, key))

    def _of_z(self, caller: str, draws: int) -> tuple[LatentModel, PyTree, np.ndarray]:
        """The latent-variable model, draws of its parameters, and their weights; error messages name ``caller``."""
        expect(f"{caller}(draws)", draws, Count)
        model = latent_model(self.model)
        if model is None:
            raise SettingsError(f"{caller}() expects a LatentModel, in which each row has a latent z.")
        params, weights = self.spread(draws)
        return model, jax.tree.map(jax.numpy.asarray, params), weights

    def log_evidence(self, *args: Any, **settings: Any) -> Evidence:
        """The run's own estimate of log p(y), in nats, with its standard error and a verdict.

        Rejection sampling estimates log p(y) while it runs. For a ladder (latent layers) with an inference network,
        ``log_evidence(data, samples=1000)`` bounds log p(x) of each row (``encoding.log_evidence``). For other methods
        and models, use ``tr.log_evidence``.

        Raises:
            RunError: the method does not estimate log p(y).
        """
        if self.phi is not None:
            return coding.log_evidence(self, *args, **settings)
        if "tries" not in self.info:
            raise RunError(f"{type(self.method).__name__} does not estimate the evidence; use tr.log_evidence.")
        return evidence(self.info, self.found["log_bound"])

    # For ladders: functions whose first argument, ``posterior``, is self.
    encode, generate, reconstruct, elbo = coding.encode, coding.generate, coding.reconstruct, coding.elbo
    impute = imputing.impute

    def report(self, *, held_out: Data | PyTree = None) -> Report:
        """How far the posterior can be trusted: a verdict, and the checks on which it rests.

        A loaded posterior has its saved report.

        Args:
            held_out: rows that took no part in the fit. They add checks of whether their log densities, and the
                coverage of predictions, are as expected; for a ladder, whether their bound equals that of fitted rows.
        """
        if self.judged is None:
            self.judged = judge(self)
        return self.judged if held_out is None else with_checks(self.judged, self._held_out(held_out))

    def _held_out(self, rows: Data | PyTree) -> list[Check]:
        """The checks of predictions for held-out rows."""
        if self.phi is not None:
            return [coding.gap_check(self, rows)]
        preflight.check_shapes(self.model, rows := as_data(rows))
        if not (self.is_point or self.count) or not can_be_compared(self.model, rows):
            sentence = "held-out rows were not checked: that needs draws or an estimate, and one distribution per row"
            if self.model.local is not None:
                sentence = "held-out groups were not checked; posterior.log_predictive gives their log densities"
            return [Check(HELD_OUT, float("nan"), "caution", sentence)]
        return held_out_checks(side_of(self), rows, self.seed or 0)

    def verify(self, how: str | None = "auto", *, held_out: Data | PyTree = None) -> "Posterior":
        """Verifies the posterior: did it miss modes, are its means and sds right, is its mass finite?

        The weights of a network are not identified, so its predictions are checked instead. Do other chains, or a
        second run, predict the same? Do predictions stay the same when Hamiltonian Monte Carlo moves the draws? Ladders
        and mixtures have their own checks.

        Args:
            how: "auto" uses at most a quarter of the run's own work, or about two seconds if that is more. "thorough"
                checks four times as much, even if it takes long, and compares with chains by NUTS (for NUTS, by HMC).
                None makes no checks; the verdict is then at best "caution".
            held_out: rows that took no part in the fit, by which predictions are checked.

        Returns:
            The same posterior with the new checks.
        """
        expect("verify(how)", how, Verify)
        watch = Stopwatch()
        try:
            with enough_memory():
                verification = (*verify(self, how, self._again, held_out is not None), *group_integrals(self))
                if held_out is not None:
                    verification += tuple(self._held_out(held_out))
        except RunError as error:  # a check that fails does not lose the result
            verification = (Check("verified", float("nan"), "caution", f"not verified: {error}"),)
        seconds = add(self.seconds, watch.phases({}, "verifying"))
        belief = self.belief
        if isinstance(belief, Point) and any(check.name == HIDDEN for check in verification):
            belief = replace(belief, covariance=None)
        return replace(self, belief=belief, verification=verification, seconds=seconds, judged=None)

    def _again(self, label: str | None = None) -> "Posterior":
        """The result of the same run with another random key, or of the method named ``label``."""
        method = self.method if label is None else named(label)()
        with open_session(self.model, self.data, self.seed, False) as session:
            outcome = method.learn(session._replace(key=jax.random.fold_in(session.key, AGAIN)))
        return Posterior(self.model, self.data, method, self.seed, *outcome)

    @ending()
    def extend(
        self, draws: int, *, progress: bool | Callable | None = None, verify: str | None = "auto",
        held_out: Data | PyTree = None, mesh: int | str | Mesh | None = None, reproducible: bool = True,
    ) -> "Posterior":  # fmt: skip
        """Continues the run for ``draws`` more kept draws per chain; the result is that of one longer run.

        Args:
            draws: number of additional draws per chain.
            progress: as for ``infer``.
            verify, held_out: arguments of ``verify()``, which checks all draws again.
            mesh, reproducible: as for ``infer``; with the values of the first run, the result equals that of one longer
                run to the last digit.
        """
        needs("extend()", self.method)
        if self.run_state is None or self.belief.positions is None:
            raise RunError(
                "Only a posterior with draws, made by this process, can be extended; use checkpoint= across processes."
            )
        expect("extend(draws)", draws, Count)
        placement, watch = placement_of(self.method, self.data, mesh, reproducible), Stopwatch()
        with open_session(self.model, self.data, self.seed, progress, placement) as session:
            outcome = self.method.extended(session, self.belief, self.run_state, self.count + draws)
        outcome = outcome._replace(seconds=add(self.seconds, watch.phases(outcome.seconds)))
        if self.found.get("double"):
            outcome = outcome._replace(found=outcome.found | {"double": True})
        return Posterior(self.model, self.data, self.method, self.seed, *outcome).verify(verify, held_out=held_out)

    def to_arviz(
        self, *, groups: Sequence[str] = GROUPS, draws: int | None = None,
        dims: Mapping[str, Sequence[str]] | None = None, coords: Mapping[str, Any] | None = None, seed: int = 0,
        kind: str | None = None,
    ) -> Any:  # fmt: skip
        """Converts the posterior to an ArviZ DataTree, or to an InferenceData if ArviZ before version 1 is installed.

        Its groups are posterior, sample_stats, log_likelihood, log_prior, posterior_predictive, prior,
        prior_predictive, observed_data, and constant_data. Groups that the model or posterior cannot provide are left
        out; ``attrs["left_out"]`` says why.

        Numbers with labels, such as the effects of a table's columns, are one variable a term: "z[b]" and "z[c]" are
        ``z``, with the dimension "z_level". Rows have the dimension "row". ``log_likelihood`` is multiplied by the
        rows' weights, which are in ``constant_data``. Therefore ``arviz_stats.loo`` leaves out a row with its whole
        weight, while ``posterior.loo()`` takes away at most 1 from the weight. In a model with ``local``,
        ``log_likelihood`` has the dimension "group", so that ArviZ leaves out groups too, and ``constant_data``
        contains ``group_of_row``.

        Args:
            groups: the groups to make.
            draws: maximum number of draws per chain in every group, evenly spaced; by default all draws, and 500 draws
                from the prior.
            dims, coords: axis names for each parameter or data variable, such as ``{"w": ["feature"]}``, and the labels
                along an axis, such as ``{"feature": ["age", "height"]}``.
            seed: seed of the simulated data and parameters.
            kind: "datatree" or "inferencedata"; by default what the installed ArviZ takes.
        """
        seed = check_seed("to_arviz(seed)", seed)
        return as_kind(to_tree(self._as_learnt, self.view, groups, draws, dims, coords, seed), kind)

    def save(self, path: str | pathlib.Path, *, overwrite: bool = False) -> None:
        """Saves the posterior in a folder that ``tractable.load`` reads: settings (TOML), draws (zarr), summary.

        Args:
            path: the folder.
            overwrite: whether to replace an existing posterior, after the new one has been written.

        Raises:
            CheckpointError: the folder holds a posterior already, another process writes it, or it cannot be written.
        """
        with lock(path):
            self._save(pathlib.Path(path), overwrite)

    def _save(self, folder: pathlib.Path, overwrite: bool) -> None:
        """Writes the folder, which is locked."""
        old_paths = [folder / name for name in ("draws.zarr", "belief", "fitted") if (folder / name).exists()]
        if not old_paths:
            refuse_others(folder)
            return self.write(folder)
        if not overwrite:
            raise CheckpointError(f"{folder} already holds draws; choose another folder, or give overwrite=True.")
        with disk_errors(folder), tempfile.TemporaryDirectory(dir=folder) as temporary:
            self.write(pathlib.Path(temporary))
            for path in old_paths:
                discard_draws(folder) if path.name == "draws.zarr" else shutil.rmtree(path)
            # posterior.json is moved last, because it marks the folder as complete.
            for path in sorted(pathlib.Path(temporary).iterdir(), key=lambda path: path.name == RESULT):
                path.replace(folder / path.name)

    def write(self, folder: pathlib.Path, *, streamed: bool = False, units: str = "") -> None:
        """Writes the posterior into a run's folder.

        Args:
            folder: the folder.
            streamed: whether the run has already stored the draws there.
            units: the units of the model's parameters, if they are not the user's.
        """
        if isinstance(self.belief, Draws) and not self.count:
            return  # the run was stopped before its first draw
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
                "rows": kinds_to_json(kinds_of(self.data)),
                "dtype": jax.numpy.result_type(float).name,
                "jax": jax.__version__,
            },
            "made": recipe(self.model),
        } | ({"units": units} if units else {})
        summary = self.summary()
        if units:
            summary.index = summary.index + f" ({units})"
        write(folder, self.belief, self.model, self.settings, summary, about, streamed=streamed)
