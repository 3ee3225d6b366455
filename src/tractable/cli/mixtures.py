"""How many kinds of rows a table holds: mixtures of normals of its numbers, for several K, of which one is chosen."""

import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.table import Table

from tractable.cli import show
from tractable.cli.models import MIXTURE
from tractable.cli.problem import split
from tractable.core import Data
from tractable.infer import infer
from tractable.latent import LatentModel
from tractable.methods import EM, CoordinateAscent, Method
from tractable.methods.points import standard_errors
from tractable.mixture_page import MORE, Components, write_mixture_page
from tractable.models import bayesian_gaussian_mixture, mixture
from tractable.posterior import Posterior
from tractable.report import Report
from tractable.run import interruptible
from tractable.saving import load
from tractable.tools import tables
from tractable.tools.errors import DataError, RunError, SettingsError, TractableError, TractableWarning

USUAL = "1..10"  # components tried
MOST = 1000  # components
MISSING = ("raise", "drop", "exact")
CHUNK = 1 << 14  # rows looked at at once
CLOSE = 2.0  # of BIC, a difference that says next to nothing (Kass & Raftery 1995)
SHOWN = 8  # components on a terminal


class Choice(NamedTuple):
    """What K is chosen by."""

    column: str  # of the table of all K
    sign: int  # 1 where more is better, −1 where less is
    said: str  # as a sentence begins


CHOICES = {
    "bic": Choice("BIC", -1, "BIC"),
    "held-out": Choice("held-out", 1, "The held-out log likelihood"),
    "evidence": Choice("evidence", 1, "The bound on the log evidence"),
}


@dataclass(frozen=True)
class Asked:
    """What a command line says of a mixture.

    Attributes:
        components: "3", "2,3,5", "2..10" or several of these with commas between.
        covariance: "full", "tied", "diagonal" or "spherical".
        choose: a name of ``CHOICES``.
        held_out: share of the rows, in [0, 1).
        missing: "raise", "drop" leaves rows with gaps out, "exact" takes the numbers there are.

    Raises:
        SettingsError, DataError: one that is none of these.
    """

    components: str = USUAL
    covariance: str = "full"
    choose: str = "bic"
    held_out: float = 0.2
    missing: str = "raise"

    def __post_init__(self) -> None:
        components_of(self.components)
        if self.covariance not in mixture.COVARIANCES:
            raise SettingsError(f"--covariance is {', '.join(mixture.COVARIANCES)}; got {self.covariance!r}.")
        if self.choose not in CHOICES:
            raise SettingsError(f"--choose is {', '.join(CHOICES)}; got {self.choose!r}.")
        if not 0 <= self.held_out < 1:
            raise DataError(f"--held-out expects a share of the rows in [0, 1); got {self.held_out:g}.")
        if self.choose == "held-out" and self.held_out == 0:
            raise SettingsError("--choose held-out looks at held-out rows: give --held-out a share above 0.")
        if self.choose == "evidence" and self.missing == "exact":
            raise SettingsError("--choose evidence knows no gaps: use --missing drop, or --choose bic.")
        if self.missing not in MISSING:
            raise SettingsError(f"--missing of a mixture is {', '.join(MISSING)}; got {self.missing!r}.")


def components_of(text: str) -> tuple[int, ...]:
    """The numbers of components that a text asks for, ascending.

    >>> components_of("2..4"), components_of("5, 2"), components_of("1,3..4")
    ((2, 3, 4), (2, 5), (1, 3, 4))
    """
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = (piece.strip() for piece in part.partition(".."))
        ends = (low, high) if dots else (low, low)
        if not all(end.isascii() and end.isdigit() and int(end) > 0 for end in ends):
            raise SettingsError(
                f"--components expects a number, a list such as 2,3,5 or a range such as 2..10, of 1 or more; got "
                f"{text!r}."
            )
        first, last = map(int, ends)
        if first > last:
            raise SettingsError(f"--components expects ranges from few to many, such as {last}..{first}; got {text!r}.")
        if last > MOST:
            raise SettingsError(f"--components takes at most {MOST}; got {text!r}.")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


class Column(NamedTuple):
    """A column of numbers, standardised by the mean and sd of the rows fitted."""

    name: str
    mean: float
    sd: float


@dataclass(frozen=True, eq=False)
class Problem:
    """A table's numbers.

    Attributes:
        name: short, for the run's folder.
        path: of the table.
        columns: the d that are used.
        rows: (n, d), standardised; NaN marks a gap where gaps are dealt with exactly.
        held_out: (m, d), rows that no fit sees.
        asked: what is wanted of them.
    """

    name: str
    path: Path
    columns: tuple[Column, ...]
    rows: np.ndarray
    held_out: np.ndarray
    asked: Asked

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def label(self) -> str:
        return f"{self.name} ({len(self.rows):,} rows of {counted(len(self.columns), 'number')})"

    @property
    def gaps(self) -> bool:
        return bool(np.isnan(self.rows).any() or np.isnan(self.held_out).any())

    @property
    def tried(self) -> tuple[int, ...]:
        """K."""
        return components_of(self.asked.components)

    def spec(self, chosen: int | None = None) -> dict[str, Any]:
        """What JSON can hold; enough to predict."""
        return {
            "table": str(self.path.resolve()),
            "model": MIXTURE,
            **dataclasses.asdict(self.asked),
            "columns": [column._asdict() for column in self.columns],
            "chosen": chosen,
        }


def from_table(path: Path, asked: Asked) -> Problem:
    """The numbers of a table; what is left out is told by warnings.

    Raises:
        DataError: no numbers, gaps that nothing was said of, more components than rows.
    """
    frame = tables.read_table(path)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1).reset_index(drop=True)
    numbers = [name for name in frame.columns if is_number(frame[name])]
    others = [name for name in frame.columns if name not in numbers]
    if not numbers:
        raise DataError(f"{path} has no column of numbers, which a mixture of normals is of; got {listing(others)}.")
    if others:
        tell(f"Left out, as they hold no numbers: {listing(others)}.")
    empty = [name for name in numbers if not np.isfinite(values_of(frame, [name])).any()]
    if empty:
        tell(f"Left out, as they hold no value at all: {listing(empty)}.")
    numbers = [name for name in numbers if name not in empty]
    frame = with_values(frame, numbers, asked.missing)
    kept, rest = split(frame, "", "normal", asked.held_out)
    columns = tuple(column for name in numbers if (column := standardised(kept, name)) is not None)
    if not columns:
        raise DataError(f"No column of numbers in {path} differs between rows, so there is nothing to learn from.")
    asks, n = components_of(asked.components)[-1], len(kept)
    if asks > n:
        raise DataError(
            f"--components asks for up to {asks}, of {counted(n, 'row')} to fit: each needs a row at least. Ask for "
            f"fewer{', or set --held-out 0' if len(rest) else ''}."
        )
    name = path.name.split(".")[0] or "table"
    return Problem(name, path, columns, encoded(columns, kept), encoded(columns, rest), asked)


def is_number(values: Any) -> bool:
    """Whether a column holds numbers; True and False are none."""
    return pd.api.types.is_numeric_dtype(values.dtype) and values.dtype.kind in "iuf"


def values_of(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """(n, d) float64; NaN where there is no value."""
    if not names:
        return np.zeros((len(frame), 0))
    return np.stack([frame[name].to_numpy(np.float64, na_value=np.nan) for name in names], 1)


def with_values(frame: pd.DataFrame, names: list[str], missing: str) -> pd.DataFrame:
    """The rows that are learnt from, or a sentence about the first gap."""
    values = values_of(frame, names)
    absent = np.isnan(values) if missing == "exact" else ~np.isfinite(values)
    refuse_infinite(values, names, missing == "exact")
    if missing == "raise" and absent.any():
        column = int(np.argmax(absent.any(0)))
        count, more = int(absent[:, column].sum()), int(absent.any(0).sum()) - 1
        raise DataError(
            f"Column {names[column]!r} has {counted(count, 'value')} missing or not finite, the first in row "
            f"{int(np.argmax(absent[:, column]))} (the top row is 0)"
            + (f"; {counted(more, 'more column')} likewise" if more else "")
            + ". Use --missing exact, which learns from the numbers there are and imputes nothing, or leave out such "
            "rows (--missing drop) or the column."
        )
    gone = absent.all(1) if missing == "exact" else absent.any(1)
    if gone.all():
        raise DataError("No row is left once those with missing values are left out. Use --missing exact.")
    if missing == "exact" and gone.any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} without any number.")
    return frame.loc[~gone]


def refuse_infinite(values: np.ndarray, names: Sequence[str], refused: bool = True) -> None:
    """A sentence about the first number that is infinite."""
    if refused and np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise DataError(f"Column {names[column]!r} is infinite in row {row} (the top row is 0); mend it.")


def standardised(frame: pd.DataFrame, name: str) -> Column | None:
    """Mean and sd of the values there are; None, and a warning, where they are all the same."""
    values = values_of(frame, [name])[:, 0]
    values = values[~np.isnan(values)]
    if not len(values) or np.ptp(values) == 0:
        same = f"is {values[0]:g} in every row" if len(values) else "holds no value"
        tell(f"Column {name!r} {same} that is fitted; it is left out.")
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(values.mean()), float(values.std())
    if not 0 < sd < math.inf:
        raise DataError(f"Column {name!r} cannot be standardised: its standard deviation is {sd}. Rescale it.")
    return Column(name, mean, sd)


def encoded(columns: Sequence[Column], frame: pd.DataFrame) -> np.ndarray:
    """(n, d) standardised rows."""
    mean, sd = (np.array([getattr(c, field) for c in columns]) for field in ("mean", "sd"))
    return (values_of(frame, [c.name for c in columns]) - mean) / sd


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
    return "; ".join(
        f"{c.name} {show.number(float(c.value))}, {c.sentence}" for c in report.checks if c.verdict != "trust"
    )


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
                f"not chosen: {cause.name} {show.number(float(cause.value))}, {cause.sentence}."
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


def components(posterior: Posterior, problem: Problem) -> Components:
    """θ in the table's units, and standard errors of the weights."""
    theta, errors = posterior.mean(), posterior.sd()
    mean, sd = (np.array([getattr(c, field) for c in problem.columns]) for field in ("mean", "sd"))
    k, d = theta.means.shape
    spread = np.asarray(theta.covariances, np.float64)
    if problem.asked.covariance in ("full", "tied"):
        spread = np.broadcast_to(spread, (k, d, d))
    else:
        spread = spread.reshape(k, -1, 1) * np.eye(d)
    means = np.asarray(theta.means, np.float64) * sd + mean
    weights, uncertain = (np.asarray(a.weights, np.float64) for a in (theta, errors))
    return Components(problem.names, weights, uncertain, means, spread * np.outer(sd, sd))


def write(found: Found, problem: Problem, folder: Path) -> None:
    """Posterior, tables and page of the mixture chosen."""
    posterior = found.posterior
    posterior.save(folder)
    shown = components(posterior, problem)
    shown.frame(len(problem.rows)).to_csv(folder / "components.csv", index=False)
    found.table.to_csv(folder / "criterion.csv", index=False)
    model = model_of(len(shown.weights), len(problem.columns), problem.asked.covariance, problem.gaps)
    _, share = told(model, posterior.mean(), problem.rows, problem.columns)
    sd, mean = (np.array([getattr(c, field) for c in problem.columns]) for field in ("sd", "mean"))
    write_mixture_page(
        folder, posterior,
        title=f"{problem.name} by a mixture of {counted(len(shown.weights), 'normal')}",
        table=found.table, best=found.best, by=CHOICES[problem.asked.choose].column, remarks=found.remarks,
        components=shown, rows=problem.rows * sd + mean, likeliest=share.argmax(1), covariance=problem.asked.covariance,
        held_out=len(problem.held_out),
    )  # fmt: skip


def predictions(spec: dict[str, Any], run: Path, new: Path) -> pd.DataFrame:
    """For each row of a table its log density, its likeliest component and the probability of each."""
    columns = [Column(**column) for column in spec["columns"]]
    names = [column.name for column in columns]
    frame = tables.read_table(new)
    frame = frame.set_axis(list(map(str, frame.columns)), axis=1)
    absent = [name for name in names if name not in frame]
    if absent:
        raise DataError(f"The table lacks {listing(absent)}; expected the columns {listing(names)}.")
    text = [name for name in names if not is_number(frame[name])]
    if text:
        raise DataError(f"Column {text[0]!r} held numbers when the mixture was fitted, and does not here.")
    values = values_of(frame, names)
    refuse_infinite(values, names)
    rows = encoded(columns, frame)
    gaps = np.isnan(rows).any(1)
    if gaps.any():
        tell(f"{counted(int(gaps.sum()), 'row')} with missing values: told by the numbers there are.")
    plain = model_of(spec["chosen"], len(columns), spec["covariance"])
    theta = load(run, plain).mean()
    model = model_of(spec["chosen"], len(columns), spec["covariance"], bool(gaps.any()))
    density, share = told(model, theta, rows, columns)
    told_of = {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
    return pd.DataFrame({"component": share.argmax(1) + 1, **told_of, "log density": density})


def criterion_table(table: pd.DataFrame, best: int) -> Table:
    """Every K on a terminal."""
    more = {name: style for name, style in MORE.items() if name in table and np.isfinite(table[name]).any()}
    heads = ["parameters", "log likelihood", "BIC", *more, "starts that agree"]
    out = show.table("Components tried", "components", *heads, "verdict", "", numbers=len(heads))
    for i, row in table.reset_index(drop=True).iterrows():
        held = [f"{row[name]:{style}}" for name, style in more.items()]
        word = str(row["verdict"])
        values = (f"{row[name]:,.1f}" for name in ("log likelihood", "BIC"))
        out.add_row(
            str(row["components"]), str(row["parameters"]), *values, *held,
            f"{row['starts that agree']} of {row['starts']}", f"[{show.COLOUR[word]}]{word}[/]",
            "← chosen" if i == best else "",
        )  # fmt: skip
    return out


def components_table(found: Components) -> Table:
    """The components on a terminal: a column each."""
    k = min(len(found.weights), SHOWN)
    more = f", the first {k} of {len(found.weights)}" if k < len(found.weights) else ""
    out = show.table(f"Components: mean (sd) of each column{more}", "", *(str(i + 1) for i in range(k)), numbers=k)
    out.add_row("weight π", *(f"{found.weights[i]:.3f}" for i in range(k)))
    if np.isfinite(found.errors).any():
        out.add_row("its standard error", *(f"{found.errors[i]:.3f}" for i in range(k)))
    for j, name in enumerate(found.names[: show.ROWS]):
        cells = (f"{found.means[i, j]:.3g} ({found.sds[i, j]:.2g})" for i in range(k))
        out.add_row(name, *cells)
    if len(found.names) > show.ROWS:
        out.add_row(f"and {len(found.names) - show.ROWS} more")
    return out


def tell(sentence: str) -> None:
    """A note to the user."""
    warnings.warn(sentence, TractableWarning, stacklevel=3)


def counted(count: int, noun: str) -> str:
    """One row, or 1,234 rows."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Sequence[str]) -> str:
    """Names in quotes, the first twelve."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted if len(quoted) <= 12 else [*quoted[:11], f"and {len(quoted) - 11} more"])
