"""``select``: fits a model with each of several numbers of components and chooses one fit."""

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
from tractable.core.settings import is_whole, seeded
from tractable.core.words import counted
from tractable.diagnostics.belief import point_belief
from tractable.diagnostics.report import Report, number
from tractable.engine.jobs import Heard, finished, many_processes, why
from tractable.engine.progress import progress_of
from tractable.engine.search import standard_errors
from tractable.engine.stopping import ending, interruptible
from tractable.inference import infer
from tractable.methods import EM, CoordinateAscent, Method
from tractable.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 2.0  # a difference of BIC that means next to nothing (Kass & Raftery 1995)


class Criterion(NamedTuple):
    """A criterion by which the number of components is chosen."""

    column: str  # of the table
    sign: int  # 1 where more is better, −1 where less is
    name: str  # as a sentence begins


CRITERIA = {
    "bic": Criterion("BIC", -1, "BIC"),
    "held-out": Criterion("held-out", 1, "The held-out log likelihood"),
    "evidence": Criterion("evidence", 1, "The bound on the log evidence"),
}


class Candidate(NamedTuple):
    """A fitted model of K components; NaN for values that were not requested or not found."""

    components: int
    posterior: Posterior | None  # None where the fit failed
    log_likelihood: float  # nats, of the rows fitted
    parameters: int  # free numbers
    held_out: float  # nats a row
    evidence: float  # nats, of the rows fitted
    seconds: float
    verdict: str
    why: str  # the checks without "trust", or why the fit failed; empty where all is well
    floored: bool = False  # a floor of variances sets the likelihood, which is then no measure of the fit


@dataclass(frozen=True, eq=False)
class Selection:
    """The result of ``select``."""

    table: "pd.DataFrame"  # a row for each K that was tried; ``select`` says what the columns are
    candidates: list[Candidate]  # the fits, in the same order
    best: int  # the row that is chosen
    by: str  # the name of the criterion
    remarks: list[str]  # about the choice: fits that failed or were rejected, an optimum at the edge, near ties
    interrupted: bool = False  # the run was stopped, and further K were not tried

    @property
    def components(self) -> int:
        """The chosen K."""
        return self.candidates[self.best].components

    @property
    def posterior(self) -> Posterior:
        """Posterior of the chosen model."""
        posterior = self.candidates[self.best].posterior
        if posterior is None:
            raise RunError("The model chosen has no fit.")
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

        BIC = −2 Σ log p(x_n | θ̂) + p log n,    AIC = −2 Σ log p(x_n | θ̂) + 2 p,    p free numbers in θ

    Args:
        model_of: ``K -> model``, such as ``lambda k: gaussian_mixture(k, 2)``.
        data: Data or arrays, n rows.
        candidates: numbers of components, each ≥ 1.
        method: finds one θ, such as ``EM()``, the default.
        by: "bic", the least BIC; "held-out", the highest mean log density of ``held_out``; or "evidence", the highest
            lower bound on log p(data) that variational Bayes finds.
        held_out: rows that no fit uses, for the column "held-out".
        bound_of: for "evidence", ``K -> model`` of the same components under a conjugate prior, such as
            ``lambda k: bayesian_gaussian_mixture(k, 2)``. Its bound counts one of K! equal modes; log K! is added.
        seed, progress: as for ``infer``; a progress function hears ``"3 components, phase"``.
        noun: what K counts, for messages, such as "state".
        checkpoint: a folder. Every fit is saved there as it goes; fits that were killed continue from there.
        n_jobs: as for ``compare``: each number of components is a job. Progress then counts jobs.

    Returns:
        A Selection, whose table has the columns components, parameters, log likelihood, BIC, AIC, held-out (nats a
        row), evidence, starts that agree, starts, seconds and verdict. A fit that its report rejects is chosen only
        if all are rejected; among equal fits the first is chosen. After Ctrl-C or SIGTERM the choice is among the fits
        made so far.

    Raises:
        SettingsError: no candidates, or some that are no counts; an unknown ``by``, or one whose ``held_out`` or
            ``bound_of`` is missing; a method that does not find one θ.
        RunError: every fit failed.

    >>> from tractable.models import gaussian_mixture
    >>> rows = np.concatenate([np.linspace(-6, -4, 30), np.linspace(4, 6, 30)])[:, None]
    >>> select(lambda k: gaussian_mixture(k, 1), rows, [1, 2], EM(starts=2)).components
    2
    """
    method, tried = EM() if method is None else method, list(candidates)
    _check(method, tried, by, held_out, bound_of)
    seed = seeded("select(seed)", seed)
    data, rest = as_data(data), None if held_out is None else as_data(held_out)
    parallel = many_processes(n_jobs, "select")
    work = functools.partial(
        _fitted, components=tuple(tried), model_of=model_of, data=data, method=method, held_out=rest,
        bound_of=bound_of if by == "evidence" else None, seed=seed, noun=noun, parallel=parallel,
        progress=False if parallel else progress, checkpoint=None if checkpoint is None else pathlib.Path(checkpoint),
    )  # fmt: skip
    done, warned = {}, {}
    with (
        interruptible() as stop,
        progress_of(progress if parallel else False) as say,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", TractableWarning)
        for ended in finished(work, range(len(tried)), n_jobs, "select", stop):
            ended.tell()
            k, one = tried[ended.index], ended.result
            if ended.lost:
                one = _lost(k, model_of(k), ended.lost)
            elif parallel and one is not None and one.posterior is not None:
                one = one._replace(posterior=dataclasses.replace(one.posterior, model=model_of(k)))
            warned[ended.index] = [w for w in caught if issubclass(w.category, TractableWarning)]
            caught.clear()
            if one is None:  # stopped before it began
                continue
            done[ended.index] = one
            say(f"numbers of {noun}s", len(done), len(tried))
            if one.posterior is not None and one.posterior.interrupted:
                break
    fits, stopped = [done[i] for i in sorted(done)], len(done) < len(tried) or stop()
    stopped = stopped or any(one.posterior is not None and one.posterior.interrupted for one in fits)
    warned = [warned[i] for i in sorted(done)]
    if all(one.posterior is None for one in fits):
        why = fits[-1].why if fits else "The run was stopped before the first had ended."
        raise RunError(f"No model could be fitted. {why}")
    size = model_of(tried[0]).observations(data) or data.size
    best = chosen(table_of(fits, method, size), by, [one.floored for one in fits])
    fits[best] = _with_errors(fits[best], method)
    table = table_of(fits, method, size)
    for warning in warned[best]:  # warnings of models that were not chosen help nobody
        warnings.warn(warning.message, TractableWarning, stacklevel=2)
    said = remarks(fits, table, best, by, len(tried), stopped, noun)
    return Selection(table, fits, best, by, said, stopped)


def _check(method: object, tried: list, by: str, held_out: PyTree, bound_of: Callable | None) -> None:
    if not getattr(method, "point", False):
        got = getattr(method, "label", None) or repr(method)
        raise SettingsError(f"select needs a method that gives a point, such as EM(); got {got}.")
    if not tried or not all(is_whole(k) for k in tried):
        raise SettingsError(f"select expects numbers of components, each 1 or more, such as range(1, 6); got {tried}.")
    if by not in CRITERIA:
        raise SettingsError(f"by is {', '.join(map(repr, CRITERIA))}; got {by!r}.")
    if by == "held-out" and held_out is None:
        raise SettingsError("by='held-out' looks at rows that no fit takes part of: give held_out=.")
    if by == "evidence" and bound_of is None:
        raise SettingsError("by='evidence' bounds the evidence under a conjugate prior: give bound_of=.")


def _fitted(
    index: int, *, components: tuple[int, ...], model_of: Callable[[int], LatentModel], data: Data, method: Method,
    held_out: Data | None, bound_of: Callable[[int], Model] | None, seed: int, noun: str, parallel: bool,
    progress: bool | Callable | None, checkpoint: pathlib.Path | None,
) -> Candidate:  # fmt: skip
    """The fit of one K, and its bound where there is one; without its model where it runs in another process."""
    k = components[index]
    with progress_of(progress) as heard:
        say = Heard(heard, f"{counted(k, noun)}, ")
        fit, bound = (checkpoint and checkpoint / f"{k}-{what}" for what in ("components", "bound"))
        model, began = model_of(k), time.perf_counter()
        # Only the chosen fit gets standard errors.
        quick = dataclasses.replace(method, errors=False) if getattr(method, "errors", False) else method
        try:
            posterior = infer(model, data, quick, seed=seed, progress=say, checkpoint=fit)
        except Exception as error:
            return _lost(k, model, why(error, say), time.perf_counter() - began)
        total = float(posterior.log_predictive(data).sum(dtype=np.float64))
        rest = math.nan if held_out is None else float(posterior.log_predictive(held_out).mean(dtype=np.float64))
        report, spent = posterior.report(), time.perf_counter() - began
        floored = any(check.name.endswith("at the floor") for check in report.checks)
        one = Candidate(
            k, posterior, total, model.parameters, rest, math.nan, spent, report.verdict, _doubts(report), floored
        )
        if bound_of is not None:
            one = one._replace(evidence=bounded(bound_of(k), data, k, method, seed, say, bound))
    bare: Any = None
    if parallel:  # the other side makes the model again, as it was made here
        one = one._replace(posterior=dataclasses.replace(posterior, model=bare))
    return one


def _lost(components: int, model: LatentModel, why: str, seconds: float = math.nan) -> Candidate:
    """A fit that there is not."""
    nothing = math.nan
    return Candidate(components, None, nothing, model.parameters, nothing, nothing, seconds, "failed", why)


def bounded(
    model: Model, data: Data, components: int, method: Method, seed: int = 0, progress: bool | Callable | None = False,
    checkpoint: pathlib.Path | None = None,
) -> float:  # fmt: skip
    """ELBO + log K!, a lower bound on log p(data), nats, by variational Bayes (Bishop 2006, section 10.2.4)."""
    ascent = CoordinateAscent(starts=getattr(method, "starts", 1), draws=1)
    found = infer(model, data, ascent, seed=seed, progress=progress, checkpoint=checkpoint).found
    return float(found["objective"]) + math.lgamma(components + 1)


def _with_errors(one: Candidate, method: Method) -> Candidate:
    """The same fit with the standard errors of its estimates, where the method finds them."""
    posterior: Any = one.posterior
    if not getattr(method, "errors", False) or posterior.interrupted:
        return one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)  # the report says the same
        position, prior = posterior.belief.position, getattr(method, "prior", True)
        found = posterior.found | standard_errors(posterior.model, posterior.data, position, prior)
    belief = point_belief(position, posterior.belief.info, found)
    posterior = dataclasses.replace(posterior, belief=belief, found=found, method=method, judged=None)
    report = posterior.report()
    return one._replace(posterior=posterior, verdict=report.verdict, why=_doubts(report))


def _doubts(report: Report) -> str:
    """The checks without "trust", as one sentence; empty where there are none."""
    return "; ".join(f"{c.name} {number(float(c.value))}, {c.sentence}" for c in report.checks if c.verdict != "trust")


def table_of(candidates: Sequence[Candidate], method: Method, rows: int) -> "pd.DataFrame":
    """A row for each K, a DataFrame."""
    import pandas as pd  # only here, as it takes a while

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


def chosen(table: "pd.DataFrame", by: str, floored: Sequence[bool] = ()) -> int:
    """The row with the best criterion among fits not rejected, or among all if all are; the first of equal rows.

    By BIC fits whose likelihood is set by a floor of variances come last: it says how low the floor is.
    """
    score = CRITERIA[by].sign * table[CRITERIA[by].column].to_numpy(np.float64)
    score = np.where(np.isfinite(score), score, -np.inf)
    sound = table["verdict"].isin(["trust", "caution"]).to_numpy() & (score > -np.inf)
    meant = sound & ~np.asarray(floored, bool) if len(floored) and by == "bic" else sound
    best = meant if meant.any() else sound
    return int(np.argmax(np.where(best, score, -np.inf) if best.any() else score))


def remarks(
    candidates: Sequence[Candidate], table: "pd.DataFrame", best: int, by: str, asked: int, stopped: bool,
    noun: str = "component",
) -> list[str]:  # fmt: skip
    """Remarks about the choice; ``asked`` is how many numbers of components were to be tried."""
    column, sign, name = CRITERIA[by]
    score, out = sign * table[column].to_numpy(np.float64), []
    verdicts, tried = list(table["verdict"]), list(table["components"])
    if verdicts[best] == "reject":
        out.append("Every fit is rejected by its checks; the best of them is shown, and is not to be used.")
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
                f"{counted(one.components, noun)} would do better by {column}, but only because a floor of variances "
                "sets the likelihood there: rows are equal in some direction."
            )
    if stopped and len(tried) < asked:
        out.append(f"The run was stopped: more than {counted(tried[-1], noun)} were not tried.")
    elif best == len(tried) - 1 > 0:
        out.append(f"{name} is best at {counted(tried[best], noun)}, the most that were tried: try more.")
    near = [k for i, k in enumerate(tried) if i != best and abs(score[best] - score[i]) < CLOSE]
    near = [k for k in near if verdicts[tried.index(k)] not in ("failed", "reject")]
    if by == "bic" and near:
        out.append(f"BIC is within {CLOSE:g} at {' and '.join(map(str, near))}: the rows hardly tell these apart.")
    return out
