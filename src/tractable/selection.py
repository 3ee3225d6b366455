"""The function ``select``, which fits a model with each of several numbers of components and chooses one fit."""

import dataclasses
import functools
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tractable.core.errors import RunError, SettingsError, TractableWarning
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model, PyTree, as_data
from tractable.core.settings import check_seed, is_whole, members
from tractable.core.words import counted, tell
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.report import Report, number
from tractable.engine.jobs import Heard, many_processes, run_jobs, why
from tractable.engine.progress import progress_of
from tractable.engine.search import standard_errors
from tractable.engine.stopping import ending, interruptible
from tractable.inference import infer
from tractable.methods import EM, CoordinateAscent, Method
from tractable.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 2.0  # differences of BIC below this are hardly evidence (Kass & Raftery 1995)


class Criterion(NamedTuple):
    """A criterion by which the number of components is chosen."""

    column: str  # its column of the table
    sign: int  # 1 where more is better, −1 where less is better
    name: str  # its name as the first word of a sentence


CRITERIA = {
    "bic": Criterion("BIC", -1, "BIC"),
    "held-out": Criterion("held-out", 1, "The held-out log likelihood"),
    "evidence": Criterion("evidence", 1, "The bound on the log evidence"),
}


class Candidate(NamedTuple):
    """A fitted model of K components; NaN stands for values that were not requested or not found."""

    components: int  # K
    posterior: Posterior | None  # None where the fit failed
    log_likelihood: float  # of all fitted rows, nats
    parameters: int  # number of free parameters
    held_out: float  # mean log density of held-out rows, nats a row
    evidence: float  # lower bound on the log evidence of all fitted rows, nats
    seconds: float
    verdict: str
    why: str  # the checks that are not "trust", or why the fit failed; empty where every check is "trust"
    floored: bool = False  # True where a variance is at its lower limit, which then decides the likelihood


@dataclass(frozen=True, eq=False)
class Selection:
    """The result of ``select``."""

    table: "pd.DataFrame"  # a row for each K that was tried; ``select`` says what the columns are
    candidates: list[Candidate]  # the fits, in the same order
    best: int  # index of the chosen row
    by: str  # name of the criterion
    remarks: list[str]  # about the choice: fits that failed or were rejected, the largest K being best, near ties
    interrupted: bool = False  # whether the run was stopped, so that further K were not tried

    @property
    def components(self) -> int:
        """The chosen K."""
        return self.candidates[self.best].components

    @property
    def posterior(self) -> Posterior:
        """The posterior of the chosen model."""
        posterior = self.candidates[self.best].posterior
        if posterior is None:
            raise RunError("The chosen model could not be fitted, so there is no posterior.")
        return posterior

    def __str__(self) -> str:
        return "\n".join([self.table.to_string(index=False), f"{self.components} chosen by {self.by}.", *self.remarks])

    __repr__ = __str__


@ending()
def select(
    model_of: Callable[[int], LatentModel],
    data: PyTree,
    candidates: Iterable[int],
    method: Method | None = None,
    *,
    by: str = "bic",
    held_out: PyTree = None,
    bound_of: Callable[[int], Model] | None = None,
    seed: int = 0,
    progress: bool | Callable | None = None,
    checkpoint: str | pathlib.Path | None = None,
    noun: str = "component",
    n_jobs: int | None = None,
) -> Selection:
    """Fit a model with each of several numbers of components and choose one.

        BIC = −2 Σ log p(x_n | θ̂) + p log n,    AIC = −2 Σ log p(x_n | θ̂) + 2 p,    p free parameters in θ

    Args:
        model_of: ``K -> model``, such as ``lambda k: gaussian_mixture(k, 2)``.
        data: Data or arrays, n rows.
        candidates: numbers of components, each ≥ 1.
        method: a method that finds one θ; the default is ``EM()``.
        by: "bic", the lowest BIC; "held-out", the highest mean log density of ``held_out``; or "evidence", the highest
            lower bound on log p(data) that variational Bayes finds.
        held_out: rows that no fit uses, for the column "held-out".
        bound_of: for "evidence", ``K -> model`` of the same components under a conjugate prior, such as
            ``lambda k: bayesian_gaussian_mixture(k, 2)``. Its bound covers one of K! equal modes, so log K! is added.
        seed, progress: as for ``infer``; a progress function gets ``"3 components, phase"`` as the phase.
        noun: what K counts, for messages, such as "state".
        checkpoint: a folder, in which every fit is saved while it runs; fits that were killed continue from there.
        n_jobs: as for ``compare``; each number of components is a job. With several processes, progress counts jobs.

    Returns:
        A Selection, whose table has the columns components, parameters, log likelihood, BIC, AIC, held-out (nats a
        row), evidence, starts that agree (how many starts ended at the best maximum), starts (their number), seconds
        and verdict. A fit that its report rejects is chosen only if all fits are rejected; among equal fits the first
        is chosen. After Ctrl-C or SIGTERM the choice is among the fits so far.

    Raises:
        SettingsError: there are no candidates, or a candidate is not a whole number ≥ 1; ``by`` is unknown, or needs a
            ``held_out`` or ``bound_of`` that is missing; the method does not find one θ.
        RunError: every fit failed.

    >>> from tractable.models import gaussian_mixture
    >>> rows = np.concatenate([np.linspace(-6, -4, 30), np.linspace(4, 6, 30)])[:, None]
    >>> select(lambda k: gaussian_mixture(k, 1), rows, [1, 2], EM(starts=2)).components
    2
    """
    method = EM() if method is None else method
    expected = "numbers of components, each 1 or more, such as range(1, 6)"
    counts = members("select", candidates, is_whole, expected)
    _check(method, by, held_out, bound_of)
    seed = check_seed("select(seed)", seed)
    data, rest = as_data(data), None if held_out is None else as_data(held_out)
    parallel = many_processes(n_jobs, "select")
    work = functools.partial(
        _fit, components=tuple(counts), model_of=model_of, data=data, method=method, held_out=rest,
        bound_of=bound_of if by == "evidence" else None, seed=seed, noun=noun, parallel=parallel,
        progress=False if parallel else progress, checkpoint=None if checkpoint is None else pathlib.Path(checkpoint),
    )  # fmt: skip
    done, warnings_of = {}, {}
    with (
        interruptible() as stop,
        progress_of(progress if parallel else False) as say,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", TractableWarning)
        for job in run_jobs(work, range(len(counts)), n_jobs, "select", stop):
            job.tell()
            k, one = counts[job.index], job.result
            if job.lost:
                one = _lost(k, model_of(k), job.lost)
            elif parallel and one is not None and one.posterior is not None:  # ``_fit`` returned it without its model
                one = one._replace(posterior=dataclasses.replace(one.posterior, model=model_of(k)))
            warnings_of[job.index] = [w for w in caught if issubclass(w.category, TractableWarning)]
            caught.clear()
            if one is None:  # the job was stopped before it began
                continue
            done[job.index] = one
            say(f"numbers of {noun}s", len(done), len(counts))
            if one.posterior is not None and one.posterior.interrupted:
                break
    order, stopped = sorted(done), len(done) < len(counts) or stop()
    fits = [done[i] for i in order]
    stopped = stopped or any(one.posterior is not None and one.posterior.interrupted for one in fits)
    if all(one.posterior is None for one in fits):
        reason = fits[-1].why if fits else "The run was stopped before the first fit had ended."
        raise RunError(f"No model could be fitted. {reason}")
    size = model_of(counts[0]).observations(data) or data.size
    best = best_row(table_of(fits, method, size), by, [one.floored for one in fits])
    fits[best] = _with_errors(fits[best], method)
    table = table_of(fits, method, size)
    for warning in warnings_of[order[best]]:  # only the chosen model's warnings are of use
        tell(str(warning.message))
    return Selection(table, fits, best, by, remarks(fits, table, best, by, len(counts), stopped, noun), stopped)


def _check(method: object, by: str, held_out: PyTree, bound_of: Callable | None) -> None:
    if not getattr(method, "point", False):
        name = getattr(method, "label", None) or repr(method)
        raise SettingsError(f"select needs a method that finds one θ, such as EM(); got {name}.")
    if by not in CRITERIA:
        raise SettingsError(f"by is {', '.join(map(repr, CRITERIA))}; got {by!r}.")
    if by == "held-out" and held_out is None:
        raise SettingsError("by='held-out' needs rows that no fit uses: give held_out=.")
    if by == "evidence" and bound_of is None:
        raise SettingsError("by='evidence' bounds the evidence under a conjugate prior: give bound_of=.")


def _fit(
    index: int, *, components: tuple[int, ...], model_of: Callable[[int], LatentModel], data: Data, method: Method,
    held_out: Data | None, bound_of: Callable[[int], Model] | None, seed: int, noun: str, parallel: bool,
    progress: bool | Callable | None, checkpoint: pathlib.Path | None,
) -> Candidate:  # fmt: skip
    """Fit the model of one K, and bound its evidence if ``bound_of`` is given; if ``parallel``, return no model."""
    k = components[index]
    with progress_of(progress) as progress_function:
        say = Heard(progress_function, f"{counted(k, noun)}, ")
        fit, bound = (checkpoint and checkpoint / f"{k}-{what}" for what in ("components", "bound"))
        model, start_time = model_of(k), time.perf_counter()
        # Standard errors are computed only for the chosen fit, in ``_with_errors``.
        quick = dataclasses.replace(method, errors=False) if getattr(method, "errors", False) else method
        try:
            posterior = infer(model, data, quick, seed=seed, progress=say, checkpoint=fit)
        except Exception as error:
            return _lost(k, model, why(error, say), time.perf_counter() - start_time)
        total = float(posterior.log_predictive(data).sum(dtype=np.float64))
        rest = math.nan if held_out is None else float(posterior.log_predictive(held_out).mean(dtype=np.float64))
        report, seconds = posterior.report(), time.perf_counter() - start_time
        floored = any(check.name.endswith("at the floor") for check in report.checks)
        one = Candidate(
            k, posterior, total, model.parameters, rest, math.nan, seconds, report.verdict, _doubts(report), floored
        )
        if bound_of is not None:
            one = one._replace(evidence=evidence_bound(bound_of(k), data, k, method, seed, say, bound))
    no_model: Any = None
    if parallel:  # the main process makes the model again, by ``model_of``
        one = one._replace(posterior=dataclasses.replace(posterior, model=no_model))
    return one


def _lost(components: int, model: LatentModel, why: str, seconds: float = math.nan) -> Candidate:
    """The candidate that stands for a fit that failed."""
    nan = math.nan
    return Candidate(components, None, nan, model.parameters, nan, nan, seconds, "failed", why)


def evidence_bound(
    model: Model, data: Data, components: int, method: Method, seed: int = 0, progress: bool | Callable | None = False,
    checkpoint: pathlib.Path | None = None,
) -> float:  # fmt: skip
    """ELBO + log K!, a lower bound on log p(data) in nats, by variational Bayes (Bishop 2006, section 10.2.4)."""
    ascent = CoordinateAscent(starts=getattr(method, "starts", 1), draws=1)
    posterior = infer(model, data, ascent, seed=seed, progress=progress, checkpoint=checkpoint)
    return float(posterior.found["objective"]) + math.lgamma(components + 1)


def _with_errors(one: Candidate, method: Method) -> Candidate:
    """The same fit with the standard errors of its estimates, if the method computes them."""
    posterior: Any = one.posterior
    if not getattr(method, "errors", False) or posterior.interrupted:
        return one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)  # the report says the same as the warnings
        position, prior = posterior.belief.position, getattr(method, "prior", True)
        figures = posterior.found | standard_errors(posterior.model, posterior.data, position, prior)
    belief = point_belief(position, posterior.belief.info, figures)
    posterior = dataclasses.replace(posterior, belief=belief, found=figures, method=method, judged=None)
    report = posterior.report()
    return one._replace(posterior=posterior, verdict=report.verdict, why=_doubts(report))


def _doubts(report: Report) -> str:
    """The checks that are not "trust", as one text; empty where there are none."""
    return "; ".join(f"{c.name} {number(float(c.value))}, {c.sentence}" for c in report.checks if c.verdict != "trust")


def table_of(candidates: Sequence[Candidate], method: Method, rows: int) -> "pd.DataFrame":
    """The table of a Selection, with a row for each K."""
    import pandas as pd  # imported here because the import is slow

    lines = [
        {
            "components": c.components, "parameters": c.parameters, "log likelihood": c.log_likelihood,
            "BIC": -2 * c.log_likelihood + c.parameters * math.log(rows),
            "AIC": -2 * c.log_likelihood + 2 * c.parameters, "held-out": c.held_out, "evidence": c.evidence,
            "starts that agree": 0 if c.posterior is None else c.posterior.found.get("starts that agree", 1),
            "starts": getattr(method, "starts", 1), "seconds": c.seconds, "verdict": c.verdict,
        }
        for c in candidates
    ]  # fmt: skip
    return pd.DataFrame(lines)


def best_row(table: "pd.DataFrame", by: str, floored: Sequence[bool] = ()) -> int:
    """The index of the row with the best criterion, the first of equal rows.

    Fits that are rejected count only if all fits are. By BIC, fits with a variance at its lower limit count only if no
    other fit is left, because that limit decides their likelihood.
    """
    score = CRITERIA[by].sign * table[CRITERIA[by].column].to_numpy(np.float64)
    score = np.where(np.isfinite(score), score, -np.inf)
    sound = table["verdict"].isin(["trust", "caution"]).to_numpy() & (score > -np.inf)
    preferred = sound & ~np.asarray(floored, bool) if len(floored) and by == "bic" else sound
    eligible = preferred if preferred.any() else sound
    return int(np.argmax(np.where(eligible, score, -np.inf) if eligible.any() else score))


def remarks(
    candidates: Sequence[Candidate], table: "pd.DataFrame", best: int, by: str, asked: int, stopped: bool,
    noun: str = "component",
) -> list[str]:  # fmt: skip
    """Sentences about the choice; ``asked`` is how many numbers of components were to be tried."""
    column, sign, name = CRITERIA[by]
    score, out = sign * table[column].to_numpy(np.float64), []
    verdicts, counts = list(table["verdict"]), list(table["components"])
    if verdicts[best] == "reject":
        out.append("Every fit is rejected by its checks; the best of them is shown, but do not use it.")
    for i, one in enumerate(candidates):
        if verdicts[i] == "failed":
            out.append(f"{counted(one.components, noun)} could not be fitted: {one.why}")
        elif one.posterior is not None and verdicts[i] == "reject" != verdicts[best] and score[i] > score[best]:
            cause = next(c for c in one.posterior.report().checks if c.verdict == "reject")
            out.append(
                f"{counted(one.components, noun)} would do better by {column}, but that fit is rejected and "
                f"not chosen: {cause.name} {number(float(cause.value))}, {cause.sentence}."
            )
        elif one.floored and not candidates[best].floored and score[i] > score[best]:
            out.append(
                f"{counted(one.components, noun)} would do better by {column}, but only because a variance is at its "
                "lower limit, which decides the likelihood: some rows are equal in some direction."
            )
    if stopped and len(counts) < asked:
        out.append(f"The run was stopped: more than {counted(counts[-1], noun)} were not tried.")
    elif best == len(counts) - 1 > 0:
        out.append(f"{name} is best at {counted(counts[best], noun)}, the most that were tried: try more.")
    near = [k for i, k in enumerate(counts) if i != best and abs(score[best] - score[i]) < CLOSE]
    near = [str(k) for k in near if verdicts[counts.index(k)] not in ("failed", "reject")]
    if by == "bic" and near:
        out.append(f"BIC at {' and '.join(near)} is within {CLOSE:g} of the best: the data hardly decide between them.")
    return out
