"""How many kinds of rows a table holds: mixtures with several K are fitted, of which one is chosen."""

import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from tractable.checks.report import Report, number
from tractable.cli.columns import Column
from tractable.cli.mixtures import CHOICES, Asked, Problem, components_of
from tractable.cli.models import MIXTURE
from tractable.cli.speech import counted
from tractable.core import Data
from tractable.infer import infer
from tractable.methods import EM, CoordinateAscent, Method
from tractable.methods.points import standard_errors
from tractable.methods.signal import interruptible
from tractable.models import bayesian_gaussian_mixture, mixture
from tractable.models.latent import LatentModel
from tractable.results.posterior import Posterior
from tractable.tools.errors import RunError, SettingsError, TractableError, TractableWarning

CHUNK = 1 << 14  # rows looked at at once
CLOSE = 2.0  # of BIC, a difference that says next to nothing (Kass & Raftery 1995)


def suits(method: Method) -> EM:
    """The method, or a sentence where it is not one for mixtures."""
    if isinstance(method, EM):
        return method
    raise SettingsError(f"--model {MIXTURE} is learnt by --method em; got {method.label}.")


def model_of(components: int, features: int, covariance: str, gaps: bool = False) -> LatentModel:
    """The mixture of standardised rows."""
    return (mixture.with_missing if gaps else mixture.gaussian_mixture)(components, features, covariance)


class Candidate(NamedTuple):
    """A mixture of K components, fitted."""

    components: int
    posterior: Posterior | None  # its components by descending weight; None where the fit failed
    log_likelihood: float  # nats, of the rows fitted in the table's units
    parameters: int
    bic: float
    aic: float
    held_out: float  # nats a row
    seconds: float
    verdict: str
    why: str  # not more than caution; empty where it is trusted
    evidence: float = math.nan  # nats, of the rows fitted in the table's units; where it was asked for


class Found(NamedTuple):
    """What a command came to."""

    candidates: list[Candidate]
    table: pd.DataFrame  # a row for each K
    best: int  # index of the one chosen
    remarks: list[str]
    interrupted: bool

    @property
    def chosen(self) -> Candidate:
        return self.candidates[self.best]

    @property
    def posterior(self) -> Posterior:
        posterior = self.chosen.posterior
        if posterior is None:
            raise RunError("The mixture chosen has no fit.")
        return posterior


def learn(problem: Problem, method: EM, seed: int, progress: Callable[[str, int, int], None]) -> Found:
    """A fit for each K, and the one that is chosen.

    Raises:
        RunError: where every fit failed.
    """
    candidates, said, stopped = [], {}, False
    with interruptible() as stop:
        for components in problem.tried:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TractableWarning)
                one = candidate(problem, method, components, seed, progress)
            said[components] = [w for w in caught if issubclass(w.category, TractableWarning)]
            candidates.append(one)
            stopped = stop() or (one.posterior is not None and one.posterior.interrupted)
            if stopped:
                break
    if all(one.posterior is None for one in candidates):
        raise RunError(f"No mixture could be fitted. {candidates[-1].why}")
    table = criteria(candidates, method)
    best = chosen(table, problem.asked.choose)
    candidates[best] = with_errors(candidates[best], method)
    table = criteria(candidates, method)
    for warning in said[candidates[best].components]:  # those of mixtures that are not used help nobody
        warnings.warn(warning.message, TractableWarning, stacklevel=2)
    remarks = remarked(candidates, table, best, problem.asked, stopped)
    return Found(candidates, table, best, remarks, stopped)


def candidate(problem: Problem, method: EM, components: int, seed: int, progress: Callable) -> Candidate:
    """One fit, and how well it does."""
    began, d = time.perf_counter(), len(problem.columns)
    model = model_of(components, d, problem.asked.covariance, problem.gaps)
    plain = model_of(components, d, problem.asked.covariance)
    free = plain.parameters or 0

    def say(phase: str, done: int, of: int) -> None:
        progress(f"{counted(components, 'component')}, {phase}", done, of)

    try:
        data = Data(problem.rows, missing="keep" if problem.gaps else "raise")
        quick = dataclasses.replace(method, errors=False)
        posterior = infer(model, data, quick, seed=seed, progress=say)
    except TractableError as error:
        nothing, spent = math.nan, time.perf_counter() - began
        return Candidate(components, None, nothing, free, nothing, nothing, nothing, spent, "failed", str(error))
    n = len(problem.rows)
    density, _ = told(model, posterior.mean(), np.concatenate([problem.rows, problem.held_out]), problem.columns)
    total, rest = float(density[:n].sum()), density[n:]
    report = posterior.report()
    return Candidate(
        components, posterior, total, free, -2 * total + free * math.log(n), -2 * total + 2 * free,
        float(rest.mean()) if len(rest) else math.nan, time.perf_counter() - began, report.verdict, doubts(report),
        evidence(problem, components, method.starts, seed, say) if problem.asked.choose == "evidence" else math.nan,
    )  # fmt: skip


def evidence(problem: Problem, components: int, starts: int, seed: int, say: Callable) -> float:
    """A lower bound on log p(rows), nats, in the table's units: variational Bayes, and its K! equal modes.

        ELBO + log K!,   π ~ Dirichlet(1), and of the standardised columns μ_k | Λ_k ~ N(0, Λ_k⁻¹), E[Λ_k] = I

    Bishop 2006, section 10.2.4.
    """
    n, d = problem.rows.shape
    model = bayesian_gaussian_mixture(components, d, problem.asked.covariance, weight_concentration=1.0)
    q = infer(model, Data(problem.rows), CoordinateAscent(starts=starts, draws=1), seed=seed, progress=say)
    units = n * sum(math.log(column.sd) for column in problem.columns)
    return float(q.found["objective"]) + math.lgamma(components + 1) - units


def with_errors(one: Candidate, method: EM) -> Candidate:
    """The same fit with the standard errors of its estimates, which only the chosen one needs."""
    posterior: Any = one.posterior
    if not method.errors or posterior.interrupted:
        return one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TractableWarning)  # the report says it
        found = standard_errors(posterior.model, posterior.data, posterior.point, method.prior)
    posterior = dataclasses.replace(posterior, found=posterior.found | found, method=method, judged=None)
    report = posterior.report()
    return one._replace(posterior=posterior, verdict=report.verdict, why=doubts(report))


def doubts(report: Report) -> str:
    """The checks that are not trusted, as one sentence; empty where all are."""
    return "; ".join(f"{c.name} {number(float(c.value))}, {c.sentence}" for c in report.checks if c.verdict != "trust")


@functools.partial(jax.jit, static_argnames="model")
def _told(model: LatentModel, theta: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model.log_prob(theta, x), model.responsibilities(theta, x)  # pyright: ignore[reportOptionalCall]


def told(model: LatentModel, theta: Any, rows: np.ndarray, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Of standardised rows log p(x) in the table's units (n,), in nats, and the responsibilities (n, K)."""
    n, width, precision = len(rows), max(1, min(CHUNK, len(rows))), jnp.result_type(float)
    theta = jax.tree.map(lambda a: jnp.asarray(a, precision), theta)
    padded = np.concatenate([rows, np.zeros((-n % width, rows.shape[1]))])
    parts = [_told(model, theta, jnp.asarray(padded[i : i + width], precision)) for i in range(0, len(padded), width)]
    density, share = (np.concatenate([np.asarray(p[j], np.float64) for p in parts])[:n] for j in (0, 1))
    scale = np.log([column.sd for column in columns])  # log |dx / d standardised| of the numbers there are
    return density - np.where(np.isnan(rows), 0, scale).sum(1), share


def criteria(candidates: Sequence[Candidate], method: EM) -> pd.DataFrame:
    """A row for each K; log likelihood, BIC and AIC in nats of the rows fitted, held-out in nats a row."""
    rows = [
        {
            "components": c.components, "parameters": c.parameters, "log likelihood": c.log_likelihood, "BIC": c.bic,
            "AIC": c.aic, "held-out": c.held_out, "evidence": c.evidence,
            "starts that agree": 0 if c.posterior is None else c.posterior.found["starts that agree"],
            "starts": method.starts, "seconds": c.seconds, "verdict": c.verdict,
        }
        for c in candidates
    ]  # fmt: skip
    return pd.DataFrame(rows)


def chosen(table: pd.DataFrame, by: str) -> int:
    """The row with the best criterion of those not rejected, of equal ones the first; of the rejected where all are."""
    choice = CHOICES[by]
    score = choice.sign * table[choice.column].to_numpy(np.float64)
    score = np.where(np.isfinite(score), score, -np.inf)
    sound = table["verdict"].isin(["trust", "caution"]).to_numpy() & (score > -np.inf)
    return int(np.argmax(np.where(sound, score, -np.inf) if sound.any() else score))


def remarked(candidates: Sequence[Candidate], table: pd.DataFrame, best: int, asked: Asked, stopped: bool) -> list[str]:
    """What is to be said of the choice."""
    choice, name = CHOICES[asked.choose], CHOICES[asked.choose].column
    score, out = choice.sign * table[name].to_numpy(np.float64), []
    verdicts, tried = list(table["verdict"]), list(table["components"])
    if verdicts[best] == "reject":
        out.append("Every mixture is rejected by its checks; the best of them is shown, and is not to be used.")
    for i, one in enumerate(candidates):
        if verdicts[i] == "failed":
            out.append(f"{counted(one.components, 'component')} could not be fitted: {one.why}")
        elif verdicts[i] == "reject" and verdicts[best] != "reject" and score[i] > score[best]:
            cause = next(c for c in one.posterior.report().checks if c.verdict == "reject")  # pyright: ignore[reportOptionalMemberAccess]
            out.append(
                f"{counted(one.components, 'component')} would do better by {name}, but that fit is rejected and "
                f"not chosen: {cause.name} {number(float(cause.value))}, {cause.sentence}."
            )
    if stopped and len(tried) < len(components_of(asked.components)):
        out.append(f"The run was stopped: more than {counted(tried[-1], 'component')} were not tried.")
    elif best == len(tried) - 1 > 0:
        out.append(f"{choice.said} is best at {tried[best]} components, the most that were tried: try more.")
    near = [k for i, k in enumerate(tried) if i != best and score[best] - score[i] < CLOSE and verdicts[i] != "failed"]
    near = [k for k in near if verdicts[tried.index(k)] != "reject"]
    if name == "BIC" and near:
        out.append(f"BIC is within {CLOSE:g} at {' and '.join(map(str, near))}: the rows hardly tell these apart.")
    return out
