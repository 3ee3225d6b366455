"""The function ``compare``, which runs several methods on one model and measures how far each is from a reference."""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tractable.core import tree
from tractable.core.clock import COMPILING
from tractable.core.errors import SettingsError, TractableError
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.settings import check_seed, members
from tractable.core.shown import as_html
from tractable.core.words import nearest, spelt, tell
from tractable.core.writing import write_atomically, write_figure
from tractable.diagnostics.belief import weighted_quantiles
from tractable.diagnostics.target import Target, gradient_work
from tractable.engine.jobs import Heard, many_processes, run_jobs, why
from tractable.engine.locks import lock
from tractable.engine.progress import progress_of
from tractable.engine.stopping import ending, interruptible
from tractable.inference import infer
from tractable.methods import NUTS, Method
from tractable.posterior.pointwise import FEWEST, affordable
from tractable.posterior.posterior import Posterior
from tractable.posterior.verification import verify_and_improve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure, FigureBase

COLUMNS = (
    "seconds", "compiling", "gradients", "densities", "ess", "mean error", "sd ratio", "held-out", "elpd_loo", "se_loo",
    "p_loo", "k-hat", "verdict",
)  # fmt: skip
# Okabe & Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F3C8D", "#8C6D31")
FORMS = {
    "seconds": ".2f", "compiling": ".2f", "gradients": ",.0f", "densities": ",.0f", "ess": ",.0f", "mean error": ".3f",
    "sd ratio": ".3f", "held-out": ".4f", "elpd_loo": ",.1f", "se_loo": ",.1f", "p_loo": ".1f", "k-hat": ".2f",
}  # fmt: skip
PANELS = 4  # largest number of parameters in a plot
LEFT_OUT = 1000  # largest number of rows for leave-one-out predictions
LEAPFROGS = 15  # typical number of leapfrog steps in a transition of NUTS
OPERATIONS = 3e11  # arithmetic operations that a machine is assumed to do in a minute
COUNTED_ROWS = 10_000  # a gradient's operations are counted on at most this many rows, and scaled to all rows
CLOCK = "clock.json"  # file with a method's times, in its folder once its run has ended
SMOOTHED = 4000  # largest number of draws that a density estimate uses


@dataclass(frozen=True)
class Reference:
    """The answer that methods are compared with: moments of the k parameters, and their densities if they are known.

    Attributes:
        names: names of the k parameters.
        mean, sd: (k,).
        densities: ``value -> density`` for each parameter, or None.
        posterior: the posterior that the moments are from; None if the moments were given as numbers.
    """

    names: list[str]
    mean: np.ndarray
    sd: np.ndarray
    densities: tuple[Callable | None, ...] = field(default=(), repr=False)
    posterior: Posterior | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of ``compare``.

    Attributes:
        table: a row for each method; ``compare`` says what the columns are.
        posteriors: posteriors of the methods that ended with a result, by the table's labels.
        failures: error messages of the other methods, by label.
        reference: the answer that the methods are measured against, or None.
        interrupted: whether the comparison was stopped, so that later methods were not run.
    """

    table: "pd.DataFrame"
    posteriors: dict[str, Posterior]
    failures: dict[str, str]
    reference: Reference | None
    interrupted: bool = False

    @property
    def others(self) -> dict[str, Posterior]:
        """All posteriors except the reference's."""
        known = None if self.reference is None else self.reference.posterior
        return {label: posterior for label, posterior in self.posteriors.items() if posterior is not known}

    def __str__(self) -> str:
        lines = [as_text(self.table).to_string()]
        lines += [f"{label} failed: {sentence}" for label, sentence in self.failures.items()]
        return "\n".join(lines)

    __repr__ = __str__
    _repr_html_ = as_html

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Plot every method's marginals of up to four parameters: those where methods are furthest from the reference.

        Args:
            path: path of an image; its suffix gives the format; None writes nothing.

        Returns:
            A matplotlib Figure, which a notebook shows.
        """
        from matplotlib.figure import Figure

        if not self.posteriors:
            raise SettingsError("There is nothing to plot: every method failed.")
        indices = interesting(self)
        columns = min(2, len(indices))
        rows = -(-len(indices) // columns)
        canvas = Figure(figsize=(5.2 * columns, 3.2 * rows), layout="constrained")
        for panel, index in zip(canvas.subfigures(rows, columns, squeeze=False).ravel(), indices, strict=False):
            panel.suptitle(next(iter(self.posteriors.values())).names[index])
            overlay(panel, self, index)
        if path is not None:
            write_figure(path, canvas)
        return canvas


@spelt
@ending()
def compare(
    model: Model,
    data: Data | PyTree,
    methods: Sequence[Method],
    *,
    seed: int = 0,
    held_out: Data | PyTree = None,
    reference: Mapping[str, tuple] | Posterior | Method | None = None,
    progress: bool | Callable | None = None,
    on_result: Callable[[str, Posterior], object] | None = None,
    n_jobs: int | None = None,
    checkpoint: str | Path | None = None,
) -> Comparison:
    """Run several methods on one model and measure each against the same answer.

    Args:
        model, data, seed, progress: as for ``infer``; a progress function gets ``"method: phase"`` as the phase.
        methods: at least one method. A method that raises an error becomes a row "failed"; the others run on.
        held_out: data that no method uses, for the log predictive density.
        reference: ``{name: (mean, sd)}``, where a name is that of a parameter, with arrays of its shape, or that of a
            single number, as in ``model.names``. A third element of the tuple may give the marginal density: a function
            of one value, or a list with one function for each number. Or a Posterior. Or a method, which runs after
            the others and has the label "reference". With None NUTS is run if it is forecast to take a minute or less;
            otherwise a warning says why there is no reference.
        on_result: called with the label and the posterior of each method as it ends.
        n_jobs: number of processes, counted as in joblib (−1 means one for each core). joblib starts them on the
            backend that ``joblib.parallel_config`` sets: loky by default, threading, dask or ray. Each method is a job;
            results are those of ``n_jobs=1``. A method whose process dies becomes a row "failed". None means 1 unless
            ``parallel_config`` says otherwise. With several processes, progress counts methods.
        checkpoint: a folder. Each method's run is saved in a folder of its own, ``checkpoint/label``, and a run that
            was killed continues from there, bit for bit; its ``seconds`` are then those since it continued.

    Returns:
        A Comparison, whose table has the columns

            seconds      wall time without compiling and without verification;
            compiling    seconds spent tracing and compiling;
            gradients    number of gradients of the log density over all rows, by all chains: minibatches count by their
                         share of the rows. Warm-up is counted if its length is known beforehand, so not for NUTS and
                         HMC; the search of SGLD and SGHMC for the mode is not counted;
            densities    number of log densities evaluated without a gradient;
            ess          smallest bulk effective sample size of a parameter; NaN for a point estimate;
            mean error   largest |mean − reference mean| / reference sd;
            sd ratio     sd / reference sd, of the parameter for which it is furthest from 1;
            held-out     mean log predictive density of a held-out datum, in nats;
            elpd_loo     sum of the rows' log densities in nats, each row predicted from the others (``posterior.loo``),
                         if there are draws and rows and it takes little time; NaN if a row's Pareto k-hat is above
                         its limit, min(1 − 1/log₁₀ S, 0.7) for S draws;
            se_loo       the standard error of elpd_loo;
            p_loo        effective number of parameters;
            k-hat        largest Pareto k-hat of the rows that are left out one at a time;
            verdict      ``posterior.report().verdict``, or "failed".

    Raises:
        SettingsError: no methods, or something that is not a method; a reference that does not fit the parameters.
    """
    seed, is_method = check_seed("compare(seed)", seed), lambda each: isinstance(each, Method)
    methods = members("compare", methods, is_method, "a list of methods such as [MAP(), NUTS()]")
    data, held_out = (None if d is None else as_data(d) for d in (data, held_out))
    reference_method, known = NUTS(), None
    if isinstance(reference, Method):
        reference_method = reference
    elif reference is not None:
        known = as_reference(model, reference)
    names, seeds = labels(methods), [seed] * len(methods)
    if known is None and (reference is not None or affords_reference(model, data)):
        # The reference runs last, with another seed, so that it is no copy of a NUTS among the methods.
        names, seeds = [*names, "reference"], [*seeds, (seed + 1) % 2**32]
    parallel = many_processes(n_jobs, "compare")
    work = functools.partial(
        _fit, model=model, data=data, methods=(*methods, reference_method),
        runs=list(zip(names, seeds, strict=True)), held_out=held_out, progress=False if parallel else progress,
        folder=None if checkpoint is None else Path(checkpoint),
    )  # fmt: skip
    posteriors, failures, rows, interrupted = {}, {}, {}, False
    with lock(checkpoint), interruptible() as stop, progress_of(progress if parallel else False) as say:
        for job in run_jobs(work, range(len(names)), n_jobs, "compare", stop):
            job.tell()
            fit = Fit({"verdict": "failed"}, None, job.lost) if job.lost else job.result
            if fit is None:
                continue
            label, posterior = names[job.index], fit.posterior
            rows[label] = fit.row
            say("methods", len(rows), len(names))
            if posterior is None:
                failures[label] = fit.failure
                continue
            interrupted = interrupted or posterior.interrupted
            if posterior.is_point or posterior.count or not posterior.interrupted:
                posteriors[label] = posterior
                if on_result is not None:
                    on_result(label, posterior)
            if posterior.interrupted:
                break
            if label == "reference":
                known = as_reference(model, posterior)
        interrupted = interrupted or len(rows) < len(names)
    posteriors, failures = ({n: of[n] for n in names if n in of} for of in (posteriors, failures))
    return Comparison(_table(names, rows, posteriors, known), posteriors, failures, known, interrupted)


def _table(names: list[str], rows: dict, posteriors: dict, reference: Reference | None) -> "pd.DataFrame":
    """The table of the methods' rows and their distances from the reference, whose own row comes first."""
    import pandas as pd

    if reference is not None:
        for label, posterior in posteriors.items():
            if posterior is not reference.posterior:
                rows[label] |= distances(posterior, reference)
    rows = {name: rows[name] for name in sorted(names, key=lambda name: name != "reference") if name in rows}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("method")


class Fit(NamedTuple):
    """A method's row of the table, with its posterior or the message of its error."""

    row: dict[str, Any]
    posterior: Posterior | None
    failure: str = ""


def _fit(
    index: int, *, model: Model, data: Data | None, methods: tuple[Method, ...], runs: list[tuple[str, int]],
    held_out: Data | None, progress: bool | Callable | None, folder: Path | None,
) -> Fit:  # fmt: skip
    """Fit one method and verify the result; its row is without the distances from the reference.

    ``runs`` are the methods' names and seeds. Another process returns the methods of this one, not copies of them,
    because they are the elements of a tuple (``jobs.pack``).
    """
    method, (name, seed) = methods[index], runs[index]
    report_progress = Heard(progress, f"{name}: ") if callable(progress) else progress
    own_folder = None if folder is None else folder / (name or "method")
    try:
        unverified = infer(model, data, method, seed=seed, progress=report_progress, verify=None, checkpoint=own_folder)
        compiling = unverified.seconds[COMPILING]
        clock = {COMPILING: compiling, "seconds": sum(unverified.seconds.values()) - compiling}
        posterior = verify_and_improve(unverified, "auto")
        if posterior.interrupted and not (posterior.is_point or posterior.count):
            return Fit({"verdict": posterior.report().verdict}, posterior)
        if own_folder is not None and not posterior.interrupted:
            # The times are those of the call in which the fit ended; a later call only reads the saved result.
            if (own_folder / CLOCK).exists():
                clock = json.loads((own_folder / CLOCK).read_text())
            else:
                write_atomically(own_folder / CLOCK, json.dumps(clock).encode())
        return Fit(row_of(posterior, clock, held_out), posterior)
    except Exception as error:
        return Fit({"verdict": "failed"}, None, why(error, report_progress))


def affords_reference(model: Model, data: Data | None) -> bool:
    """Whether NUTS is forecast to take a minute or less, from the number of arithmetic operations in a gradient.

    Warns:
        TractableWarning: NUTS would take longer; the warning gives the forecast and says how to get a reference.
    """
    method, few = NUTS(), data is None or data.size <= COUNTED_ROWS
    rows = None if data is None else data.first(COUNTED_ROWS)
    work = gradient_work(Target(model), rows) * (1 if data is None or few else data.size / COUNTED_ROWS)
    minutes = method.chains * (method.warmup + method.draws) * LEAPFROGS * work / OPERATIONS
    if minutes <= 1:
        return True
    tell(
        f"No reference is run, as NUTS is forecast to take about {minutes:,.0f} minutes; mean error and sd ratio stay "
        "empty. Pass reference=NUTS() to run it nevertheless, or another method, a posterior or known moments."
    )
    return False


def row_of(posterior: Posterior, clock: dict[str, float], held_out: Data | PyTree = None) -> dict[str, Any]:
    """A posterior's row of the table, without the distances from the reference."""
    gradients, densities = posterior.cost
    row: dict[str, Any] = {**clock, "gradients": gradients, "densities": densities}
    if not posterior.is_point:
        row["ess"] = float(np.min(posterior.diagnosed.bulk[~posterior.model.fixed]))
    if held_out is not None:
        row["held-out"] = float(np.mean(posterior.log_predictive(held_out), dtype=np.float64))
    draws = affordable(posterior.model, posterior.data)
    if draws >= FEWEST:  # leave-one-out is possible, and takes little time compared with the run
        with contextlib.suppress(TractableError):
            loo = posterior.loo(draws=draws, rows=LEFT_OUT)
            row |= {"elpd_loo": loo.elpd, "se_loo": loo.se, "p_loo": loo.p, "k-hat": loo.khat}
    return row | {"verdict": posterior.report().verdict}


def marginal_errors(posterior: Posterior, reference: Reference) -> tuple[np.ndarray, np.ndarray]:
    """|mean − reference mean| / reference sd, and sd / reference sd, of the k parameters."""
    mean, sd = posterior.flat_moments
    with np.errstate(divide="ignore", invalid="ignore"):  # a reference's sd may be 0
        error, ratio = np.abs(mean - reference.mean) / reference.sd, np.asarray(sd, np.float64) / reference.sd
    fixed = posterior.model.fixed
    return np.where(fixed, 0.0, error), np.where(fixed, 1.0, ratio)


def distances(posterior: Posterior, reference: Reference) -> dict[str, float]:
    """The columns "mean error" and "sd ratio", which say how far the marginal moments are from the reference's."""
    error, ratio = marginal_errors(posterior, reference)
    out = {"mean error": float(np.max(error))}
    if np.all(ratio > 0):
        out["sd ratio"] = float(ratio[np.argmax(np.abs(np.log(ratio)))])
    return out


def as_reference(model: Model, reference: Mapping[str, tuple] | Posterior) -> Reference:
    """Make a Reference from a posterior or from given moments, with the parameters in the order of ``model.names``."""
    if isinstance(reference, Posterior):
        mean, sd = reference.flat_moments
        return Reference(model.names, mean, np.asarray(sd), (), reference)
    moments: dict[str, tuple] = {}
    for name, (mean, sd, *rest) in reference.items():
        mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
        if mean.shape != sd.shape or not np.all(sd > 0):
            raise SettingsError(
                f"reference[{name!r}] expects a mean and a positive sd of one shape; got {mean} and {sd}."
            )
        densities = np.broadcast_to(np.array(rest[0] if rest else None, dtype=object), mean.shape).ravel()
        for each, *values in zip(tree.names({name: mean}), mean.ravel(), sd.ravel(), densities, strict=True):
            moments[each] = tuple(values)
    if set(moments) != set(model.names):
        strange = next((name for name in moments if name not in model.names), "")
        raise SettingsError(
            f"The reference expects {', '.join(model.names[:6])}{' …' * (len(model.names) > 6)}; "
            f"got {', '.join(list(moments)[:6])}{' …' * (len(moments) > 6)}.{nearest(strange, model.names)}"
        )
    mean, sd, densities = zip(*(moments[name] for name in model.names), strict=True)
    return Reference(model.names, np.array(mean), np.array(sd), densities)


def labels(methods: Sequence[Method]) -> list[str]:
    """The methods' labels; a label that is repeated gets a number from its second occurrence on."""
    out: list[str] = []
    for method in methods:
        same = sum(m.label == method.label for m in methods[: len(out)])
        out.append(method.label if not same else f"{method.label}-{same + 1}")
    return out


def as_text(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table as text, with rounded numbers; columns without a number are left out."""
    import pandas as pd

    filled = table.dropna(axis=1, how="all")
    cells = {name: ["–" if pd.isna(v) else format(v, FORMS.get(name, "")) for v in filled[name]] for name in filled}
    return pd.DataFrame(cells, index=filled.index, dtype=object)


def interesting(comparison: Comparison, most: int = PANELS) -> list[int]:
    """Indices of up to ``most`` parameters: those on which methods are furthest from the reference, if there is one."""
    worst = np.zeros(len(next(iter(comparison.posteriors.values())).names))
    if comparison.reference is not None:
        for posterior in comparison.others.values():
            error, ratio = marginal_errors(posterior, comparison.reference)
            with np.errstate(all="ignore"):
                width = np.abs(np.log(ratio))
            worst = np.maximum(worst, np.nan_to_num(error + np.where(np.isfinite(width), width, 0)))
    return sorted(np.argsort(-worst, kind="stable")[:most].tolist())


def overlay(
    canvas: "FigureBase", comparison: Comparison, index: int, colours: Sequence[str] = COLOURS, grey: str = "0.5"
) -> None:
    """Draw one parameter by every method: densities above, means and 90 % intervals below; the reference in grey."""
    reference, others = comparison.reference, comparison.others
    top, axes = canvas.subplots(2, 1, sharex=True, height_ratios=[1.3, 0.16 * len(others) + 0.1])
    for row, (posterior, colour) in enumerate(zip(others.values(), itertools.cycle(colours), strict=False)):
        mean, sd = (float(moment[index]) for moment in posterior.flat_moments)
        ends = mean - 1.645 * np.nan_to_num(sd), mean + 1.645 * np.nan_to_num(sd)
        if posterior.unconstrained is not None:
            values, weights = column(posterior, index)
            low, *ends, high = weighted_quantiles(values[:, None], [0.001, 0.05, 0.95, 0.999], weights)[:, 0].tolist()
            grid = np.linspace(low, high, 200)
            if (density := smooth(values, weights, grid)) is not None:
                top.plot(grid, density, color=colour, linewidth=1)
        axes.hlines(row, *ends, color=colour, linewidth=1.8)
        axes.plot([mean], [row], "o", color=colour, markersize=4)
    if reference is not None:
        mean, sd = reference.mean[index], reference.sd[index]
        axes.axvspan(mean - 1.645 * sd, mean + 1.645 * sd, color=grey, alpha=0.13, linewidth=0)
        axes.axvline(mean, color=grey, linewidth=0.8, dashes=(4, 3))
        grid = mean + sd * np.linspace(-4.5, 4.5, 200)
        top.fill_between(grid, reference_density(reference, index, grid), color=grey, alpha=0.2, linewidth=0)
        low, high = axes.get_xlim()
        # Values more than ten sds from the reference's mean are cut off.
        axes.set_xlim(max(low, mean - 10 * sd), min(high, mean + 10 * sd))
    top.set(ylim=(0, None), yticks=[])
    top.xaxis.set_tick_params(length=0)
    top.spines[:].set_visible(False)
    axes.set_yticks(range(len(others)), list(others))
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.spines[["left", "top", "right"]].set_visible(False)


def column(posterior: Posterior, index: int) -> tuple[np.ndarray, np.ndarray]:
    """One parameter's draws of all chains, and their weights, each (draw · chain,)."""
    values = posterior.values[..., index].astype(np.float64)
    weights = np.ones(values.shape) if posterior.weights is None else posterior.weights
    return values.T.ravel(), weights.T.ravel()


def smooth(values: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray | None:
    """A kernel estimate of a marginal density at ``grid``; None if all draws are equal, or fewer than three."""
    every = -(-len(values) // SMOOTHED)
    values, weights = values[::every], weights[::every]
    if len(values) < 3 or not np.ptp(values[weights > 0]) > 0:
        return None
    from scipy.stats import gaussian_kde

    return gaussian_kde(values, weights=weights)(grid)


def reference_density(reference: Reference, index: int, grid: np.ndarray) -> np.ndarray:
    """The reference's marginal density at ``grid``; if it is not known, the density of a normal of the same moments."""
    if reference.posterior is not None:
        density = smooth(*column(reference.posterior, index), grid)
        if density is not None:
            return density
    known = reference.densities[index] if reference.densities else None
    if known is not None:
        return np.asarray(known(grid))
    from scipy.stats import norm

    return norm.pdf(grid, reference.mean[index], reference.sd[index])
