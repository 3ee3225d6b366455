"""Methods side by side on one model."""

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.monitoring
import numpy as np

from tractable.core import tree
from tractable.core.errors import SettingsError, TractableError
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.settings import seeded
from tractable.core.shown import as_html
from tractable.core.words import nearest, spelt, tell
from tractable.core.writing import write_atomically, write_figure
from tractable.diagnostics.target import Target, gradient_work
from tractable.engine.jobs import Heard, finished, many_processes, why
from tractable.engine.locks import lock
from tractable.engine.progress import progress_of
from tractable.engine.stopping import ending, interruptible
from tractable.inference import infer
from tractable.methods import NUTS, Method
from tractable.posterior.pointwise import FEWEST, affordable
from tractable.posterior.posterior import Posterior, weighted_quantiles
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
PANELS = 4  # most parameters in a plot
LEFT_OUT = 1000  # most rows left out
LEAPFROGS = 15  # in a transition of NUTS, about
OPERATIONS = 3e11  # in a minute, about
SEEN = 10_000  # most rows from which the work of a gradient is counted
UNNAMED = "method"  # the folder of one without a label
CLOCK = "clock.json"  # in a method's folder, once its run has ended
SMOOTHED = 4000  # most draws for a density estimate


@dataclass(frozen=True)
class Reference:
    """The answer that methods are compared with: moments of the k parameters, and densities where known.

    Attributes:
        names: of the k parameters.
        mean, sd: (k,).
        densities: ``value -> density`` for each parameter, or None.
        posterior: the run that this came from; None where the answer was given as numbers.
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
        posteriors: of the methods that ended with a result, by the table's labels.
        failures: the error's sentence for each method that did not.
        reference: the answer that distances are measured from; None where there is none.
        interrupted: the comparison was stopped, and later methods were not run.
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
        lines = [shown(self.table).to_string()]
        lines += [f"{label} failed: {sentence}" for label, sentence in self.failures.items()]
        return "\n".join(lines)

    __repr__ = __str__
    _repr_html_ = as_html

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Overlaid marginals of up to four parameters, those on which methods differ most.

        Args:
            path: of an image; its suffix gives the format; None writes nothing.

        Returns:
            A matplotlib Figure, which a notebook shows.
        """
        from matplotlib.figure import Figure

        if not self.posteriors:
            raise SettingsError("There is nothing to plot: every method failed.")
        chosen = interesting(self)
        columns = min(2, len(chosen))
        rows = -(-len(chosen) // columns)
        canvas = Figure(figsize=(5.2 * columns, 3.2 * rows), layout="constrained")
        for panel, index in zip(canvas.subfigures(rows, columns, squeeze=False).ravel(), chosen, strict=False):
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
        model, data, seed, progress: as for ``infer``; a progress function hears ``"method: phase"``.
        methods: at least one. One that raises an error becomes a row "failed"; the others go on.
        held_out: data that no method sees, for the log predictive density.
        reference: ``{parameter: (mean, sd)}`` shaped like the parameters, or by the names of single numbers. Where
            known, a third element gives the marginal density, a function of one value, or a list with one for
            each number. Or a Posterior. Or a method, which runs after the others and is shown as "reference".
            None runs NUTS if it is forecast to take a minute or less, and warns otherwise.
        on_result: called with the label and the posterior of each method as it ends.
        n_jobs: number of processes, as joblib counts them, over its backend (``joblib.parallel_config``): loky by
            default, threading, dask, ray. Each method is a job; numbers are those of ``n_jobs=1``. A method whose
            process dies is a row "failed". None means 1 unless such a configuration is set. Progress then counts
            methods.
        checkpoint: a folder. Each method's run is saved in its own, ``checkpoint/label``, and goes on from there, bit
            for bit, when it was killed; ``seconds`` of one that went on are those since then.

    Returns:
        A Comparison, whose table has the columns
            seconds      wall time without compiling and without verification;
            compiling    seconds spent tracing and compiling;
            gradients    of the log density over all rows, by all chains: minibatches count by their share of
                         the rows. Warm-up counts where its length is known beforehand: not for NUTS and HMC,
                         and not the climb of SGLD and SGHMC to the mode;
            densities    log densities evaluated without a gradient;
            ess          bulk effective draws, the least over parameters; NaN for a point;
            mean error   largest |mean − reference mean| / reference sd;
            sd ratio     sd / reference sd where it is furthest from 1;
            held-out     mean log predictive density of a held-out datum, in nats;
            elpd_loo     sum of the rows' log densities in nats, each predicted from the others (``posterior.loo``), if
                         there are draws and rows and it takes little time; NaN where a row's k-hat is above
                         its limit, min(1 − 1/log₁₀ S, 0.7) for S draws;
            se_loo       its standard error;
            p_loo        effective number of parameters;
            k-hat        the largest over the rows left out;
            verdict      ``posterior.report().verdict``, or "failed".

    Raises:
        SettingsError: no methods, or something that is not a method; a reference that does not fit the parameters.
    """
    import pandas as pd

    seed = seeded("compare(seed)", seed)
    methods = list(methods)
    strangers = [each for each in methods if not isinstance(each, Method)]
    if not methods or strangers:
        got = repr(strangers[0]) if strangers else "none"
        raise SettingsError(f"compare expects a list of methods such as [MAP(), NUTS()]; got {got}.")
    data, held_out = (None if d is None else as_data(d) for d in (data, held_out))
    asked, known = NUTS(), None
    if isinstance(reference, Method):
        asked = reference
    elif reference is not None:
        known = as_reference(model, reference)
    every, seeds = (*methods, asked), [seed] * len(methods)
    names = labels(methods)
    if known is None and (reference is not None or affords_reference(model, data)):
        # Last, after the requested methods. With another seed, so as not to copy a NUTS among these.
        names, seeds = [*names, "reference"], [*seeds, (seed + 1) % 2**32]
    parallel = many_processes(n_jobs, "compare")
    work = functools.partial(
        _fitted, model=model, data=data, methods=every, names=names, seeds=seeds, held_out=held_out,
        progress=False if parallel else progress, folder=None if checkpoint is None else Path(checkpoint),
    )  # fmt: skip
    posteriors, failures, rows, interrupted = {}, {}, {}, False
    with lock(checkpoint), interruptible() as stop, progress_of(progress if parallel else False) as say:
        for ended in finished(work, range(len(names)), n_jobs, "compare", stop):
            ended.tell()
            fit = Fit({"verdict": "failed"}, None, ended.lost) if ended.lost else ended.result
            if fit is None:
                continue
            label, posterior = names[ended.index], fit.posterior
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
    if known is not None:
        for label, posterior in posteriors.items():
            if posterior is not known.posterior:
                rows[label] |= distances(posterior, known)
    rows = {name: rows[name] for name in sorted(names, key=lambda name: name != "reference") if name in rows}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("method")
    return Comparison(table, posteriors, failures, known, interrupted)


class Fit(NamedTuple):
    """A method's row of the table, and what it learnt, or why it failed."""

    row: dict[str, Any]
    posterior: Posterior | None
    failure: str = ""


def _fitted(
    index: int, *, model: Model, data: Data | None, methods: tuple[Method, ...], names: list[str], seeds: list[int],
    held_out: Data | None, progress: bool | Callable | None, folder: Path | None,
) -> Fit:  # fmt: skip
    """One method's fit, its verification and its row without distances."""
    method, report_progress = methods[index], Heard(progress, f"{names[index]}: ") if callable(progress) else progress
    inside = None if folder is None else folder / (names[index] or UNNAMED)
    try:
        with stopwatch() as clock:
            learnt = infer(
                model, data, method, seed=seeds[index], progress=report_progress, verify=None, checkpoint=inside
            )
        posterior = verify_and_improve(learnt, "auto")
        if posterior.interrupted and not (posterior.is_point or posterior.count):
            return Fit({"verdict": posterior.report().verdict}, posterior)
        if inside is not None and not posterior.interrupted:
            # The clock of the call in which the fit came to its end: a later one only reads what it learnt.
            if (inside / CLOCK).exists():
                clock = json.loads((inside / CLOCK).read_text())
            else:
                write_atomically(inside / CLOCK, json.dumps(clock).encode())
        return Fit(measured(posterior, clock, held_out), posterior)
    except Exception as error:
        return Fit({"verdict": "failed"}, None, why(error, report_progress))


def affords_reference(model: Model, data: Data | None) -> bool:
    """Whether NUTS is forecast to take a minute or less, from its gradients' operations as the compiler counts them.

    Warns:
        TractableWarning: NUTS would take longer; with the forecast, and how to run a reference all the same.
    """
    method, few = NUTS(), data is None or data.size <= SEEN
    rows = None if data is None else data.first(SEEN)
    work = gradient_work(Target(model), rows) * (1 if data is None or few else data.size / SEEN)
    minutes = method.chains * (method.warmup + method.draws) * LEAPFROGS * work / OPERATIONS
    if minutes <= 1:
        return True
    tell(
        f"No reference is run, as NUTS is forecast to take about {minutes:,.0f} minutes; mean error and sd ratio stay "
        "empty. Pass reference=NUTS() to have it all the same, or another method, a posterior or known moments."
    )
    return False


def measured(posterior: Posterior, clock: dict[str, float], held_out: Data | PyTree = None) -> dict[str, Any]:
    """A row of the table without the distances."""
    gradients, densities = posterior.cost
    row: dict[str, Any] = {**clock, "gradients": gradients, "densities": densities}
    if not posterior.is_point:
        row["ess"] = float(np.min(posterior.diagnosed.bulk[~posterior.model.fixed]))
    if held_out is not None:
        row["held-out"] = float(np.mean(posterior.log_predictive(held_out), dtype=np.float64))
    draws = affordable(posterior.model, posterior.data)
    if draws >= FEWEST:  # leave-one-out applies, and costs little compared with the run
        with contextlib.suppress(TractableError):
            found = posterior.loo(draws=draws, rows=LEFT_OUT)
            row |= {"elpd_loo": found.elpd, "se_loo": found.se, "p_loo": found.p, "k-hat": found.khat}
    return row | {"verdict": posterior.report().verdict}


def marginal_errors(posterior: Posterior, reference: Reference) -> tuple[np.ndarray, np.ndarray]:
    """|mean − reference mean| / reference sd, and sd / reference sd, of the k parameters."""
    mean, sd = posterior.flat_moments
    with np.errstate(divide="ignore", invalid="ignore"):  # a reference may have no width
        error, ratio = np.abs(mean - reference.mean) / reference.sd, np.asarray(sd, np.float64) / reference.sd
    fixed = posterior.model.fixed
    return np.where(fixed, 0.0, error), np.where(fixed, 1.0, ratio)


def distances(posterior: Posterior, reference: Reference) -> dict[str, float]:
    """How far the marginal moments are from the reference's."""
    error, ratio = marginal_errors(posterior, reference)
    out = {"mean error": float(np.max(error))}
    if np.all(ratio > 0):
        out["sd ratio"] = float(ratio[np.argmax(np.abs(np.log(ratio)))])
    return out


def as_reference(model: Model, reference: Mapping[str, tuple] | Posterior) -> Reference:
    """The reference in the order of ``model.names``."""
    if isinstance(reference, Posterior):
        mean, sd = reference.flat_moments
        return Reference(model.names, mean, np.asarray(sd), (), reference)
    found: dict[str, tuple] = {}
    for name, (mean, sd, *rest) in reference.items():
        mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
        if mean.shape != sd.shape or not np.all(sd > 0):
            raise SettingsError(
                f"reference[{name!r}] expects a mean and a positive sd of one shape; got {mean} and {sd}."
            )
        densities = np.broadcast_to(np.array(rest[0] if rest else None, dtype=object), mean.shape).ravel()
        for each, *values in zip(tree.names({name: mean}), mean.ravel(), sd.ravel(), densities, strict=True):
            found[each] = tuple(values)
    if set(found) != set(model.names):
        strange = next((name for name in found if name not in model.names), "")
        raise SettingsError(
            f"The reference expects {', '.join(model.names[:6])}{' …' * (len(model.names) > 6)}; "
            f"got {', '.join(list(found)[:6])}{' …' * (len(found) > 6)}.{nearest(strange, model.names)}"
        )
    mean, sd, densities = zip(*(found[name] for name in model.names), strict=True)
    return Reference(model.names, np.array(mean), np.array(sd), densities)


def labels(methods: Sequence[Method]) -> list[str]:
    """The methods' names; repeated names are numbered from the second on."""
    out: list[str] = []
    for method in methods:
        same = sum(m.label == method.label for m in methods[: len(out)])
        out.append(method.label if not same else f"{method.label}-{same + 1}")
    return out


def shown(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table as text, in meaningful digits; columns without a number are left out."""
    import pandas as pd

    filled = table.dropna(axis=1, how="all")
    return pd.DataFrame(
        {
            name: ["–" if pd.isna(v) else format(v, FORMS.get(name, "")) for v in filled[name]]
            for name in filled.columns
        },
        index=filled.index,
        dtype=object,
    )


@contextlib.contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Measures "seconds" and "compiling"; the first excludes the second."""
    spans: list[tuple[float, float]] = []

    def heard(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            spans.append((now - duration_secs, now))

    clock: dict[str, float] = {}
    jax.monitoring.register_event_duration_secs_listener(heard)
    began = time.perf_counter()
    try:
        yield clock
    finally:
        total = time.perf_counter() - began
        jax.monitoring.unregister_event_duration_listener(heard)
        # The union of the spans: a function's trace contains those of the functions that it calls.
        compiling, end = 0.0, -np.inf
        for low, high in sorted(spans):
            compiling += max(0.0, high - max(low, end))
            end = max(end, high)
        clock["compiling"] = float(compiling)
        clock["seconds"] = max(total - clock["compiling"], 0.0)


def interesting(comparison: Comparison, most: int = PANELS) -> list[int]:
    """Indices of the parameters on which methods are furthest from the reference; without one the first."""
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
    """One parameter by every method: densities above, means and 90 % intervals below; in grey the reference."""
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
        axes.set_xlim(max(low, mean - 10 * sd), min(high, mean + 10 * sd))  # cut off what lies far from the reference
    top.set(ylim=(0, None), yticks=[])
    top.xaxis.set_tick_params(length=0)
    top.spines[:].set_visible(False)
    axes.set_yticks(range(len(others)), list(others))
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.spines[["left", "top", "right"]].set_visible(False)


def column(posterior: Posterior, index: int) -> tuple[np.ndarray, np.ndarray]:
    """One number's draws of all chains, and their weights, each (draw · chain,)."""
    values = posterior.values[..., index].astype(np.float64)
    weights = np.ones(values.shape) if posterior.weights is None else posterior.weights
    return values.T.ravel(), weights.T.ravel()


def smooth(values: np.ndarray, weights: np.ndarray, grid: np.ndarray) -> np.ndarray | None:
    """A kernel estimate of a marginal density; None where the draws do not differ."""
    every = -(-len(values) // SMOOTHED)
    values, weights = values[::every], weights[::every]
    if len(values) < 3 or not np.ptp(values[weights > 0]) > 0:
        return None
    from scipy.stats import gaussian_kde

    return gaussian_kde(values, weights=weights)(grid)


def reference_density(reference: Reference, index: int, grid: np.ndarray) -> np.ndarray:
    """The reference's marginal density; where it is not known, a normal with its moments."""
    if reference.posterior is not None:
        density = smooth(*column(reference.posterior, index), grid)
        if density is not None:
            return density
    known = reference.densities[index] if reference.densities else None
    if known is not None:
        return np.asarray(known(grid))
    from scipy.stats import norm

    return norm.pdf(grid, reference.mean[index], reference.sd[index])
