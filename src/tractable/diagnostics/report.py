"""The report on a posterior: a verdict on how far it can be trusted, and the checks on which the verdict rests."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.core.shown import as_html, printable
from tractable.diagnostics.belief import Moments
from tractable.diagnostics.digits import digits_check
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.order import order_check

ORDER = ("trust", "caution", "reject")  # verdicts from best to worst


class Report(NamedTuple):
    """A verdict on a posterior, which is the worst verdict of its checks, and these checks.

    "trust": no check speaks against the result; the checks say what was examined.
    "caution": do not use the result as a posterior; it may serve for what the check says, such as predictions.
    "reject": do not use the result as a posterior; the check says what to do.

    A point estimate is judged as a maximum and not as a posterior, and a network by its predictions; the title says so.
    """

    verdict: str  # the worst verdict of the checks
    checks: tuple[Check, ...]  # each has a name, a value, a verdict and a sentence
    title: str  # the first words of the printed report

    def __str__(self) -> str:
        return printable("\n".join([f"{self.title}: {self.verdict}", *lines_of(self.checks)]))

    __repr__ = __str__
    _repr_html_ = as_html


def judge(posterior: Learnt) -> Report:
    """The report on a posterior, from the checks of its method, its verification, its data and the run's end."""
    if posterior.is_point or posterior.count:
        checks = [*posterior.method.checks(posterior), *posterior.verification]
    elif isinstance(posterior.belief, Moments):
        checks = [*moment_checks(posterior), *posterior.verification]
    else:
        checks = [Check("draws", 0, "reject", "the run ended before its first draw")]
    if posterior.interrupted:
        checks.append(Check("interrupted", posterior.count, "caution", "draws per chain were kept before the stop"))
    checks += [*digits_check(posterior.data), *order_check(posterior.data, posterior.method.plan(posterior.data))]
    numbers = f"{len(posterior.names)} number{'s' if len(posterior.names) > 1 else ''}"
    title = ", judged ".join([f"{type(posterior.method).__name__} on {numbers}", *_bases(posterior)])
    return Report(worst(checks), tuple(checks), title)


def _bases(posterior: Learnt) -> list[str]:
    """What the verdict is of, if it is not the posterior of every parameter."""
    if posterior.model.is_ladder:
        return ["by its bound and its hidden units"]
    if posterior.model.network_weights:
        return ["by its predictions for rows like the fitted ones, not beyond them, and not by its weights"]
    return ["as a maximum and not as a posterior"] if posterior.is_point else []


def lines_of(checks: Sequence[Check]) -> list[str]:
    """One line for each check, with its verdict, name, value and sentence in columns."""
    width = max((len(c.name) for c in checks), default=0)
    return [f"  {c.verdict:7}  {c.name:{width}}  {number(float(c.value)):>9}  {c.sentence}" for c in checks]


def worst(checks: Iterable[Check]) -> str:
    """The worst verdict of the checks; "caution" if there are none."""
    return max((c.verdict for c in checks), key=ORDER.index, default="caution")


def with_checks(report: Report, more: Iterable[Check]) -> Report:
    """The report with more checks added."""
    checks = (*report.checks, *more)
    return Report(worst(checks), checks, report.title)


def moment_checks(posterior: Learnt) -> list[Check]:
    """The check of a run that stored only moments, no draws: whether the chains' means agree."""
    belief: Any = posterior.belief
    mass = belief.counts if belief.totals is None else belief.totals
    moving = ~posterior.model.fixed
    means, squares = (np.asarray(m, np.float64)[:, moving] for m in (belief.means, belief.squares))
    within = (squares / np.asarray(mass, np.float64)[:, None]).mean(0)
    rhat = float(np.sqrt(1 + np.max(means.var(0, ddof=1) / within))) if len(means) > 1 else float("nan")
    verdict = "trust" if rhat <= 1.01 else "reject" if rhat > 1.05 else "caution"
    return [Check("R-hat of means", rhat, verdict, "from running moments; without draws, ESS is unknown")]


def number(value: float | int) -> str:
    """A number as text with four significant digits."""
    if value != value:
        return "n/a"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value)}"
    return f"{value:.4g}"


def chain_checks(posterior: Learnt) -> list[Check]:
    """Checks R-hat, bulk and tail effective sample sizes (ESS), and whether chains are stuck."""
    diagnosed, chains = posterior.diagnosed, posterior.chains
    if posterior.model.network_weights:  # a network's chains may agree in all predictions and differ in every weight
        return _stuck(diagnosed.stuck, chains)
    out = [Check("R-hat", float("nan"), "reject", "too few draws to compare chains: at least 8 per chain are needed")]
    if np.any(np.isfinite(diagnosed.rhat)) or diagnosed.stuck:
        worst_index = int(np.nanargmax(diagnosed.rhat))
        rhat = float(diagnosed.rhat[worst_index])
        verdict = "trust" if rhat <= 1.01 else "caution" if rhat <= 1.05 else "reject"
        out = [Check("R-hat", rhat, verdict, f"largest, at {posterior.names[worst_index]}; 1 where chains agree")]
    for name, values in (("bulk ESS", diagnosed.bulk), ("tail ESS", diagnosed.tail)):
        index = int(np.nanargmin(values)) if np.any(np.isfinite(values)) else 0
        value = float(values[index])
        # Vehtari et al. 2021 recommend 100 per chain: with fewer, R-hat and ESS are themselves unreliable.
        verdict = "trust" if value >= 100 * chains else "caution" if value >= 20 * chains else "reject"
        out.append(Check(name, value, verdict, f"smallest effective sample size, at {posterior.names[index]}"))
    return out + _stuck(diagnosed.stuck, chains)


def _stuck(stuck: int, chains: int) -> list[Check]:
    """Checks whether chains are stuck, and whether there is more than one chain."""
    out = []
    if stuck:
        out.append(Check("stuck chains", stuck, "reject", "chains that never moved in some parameter"))
    if chains == 1:
        out.append(Check("chains", 1, "caution", "one chain cannot reveal a mode that it never visits; run four"))
    return out


def check_bias(worst: float, tolerance: float, sentence: str) -> Check:
    """Checks the predicted relative error of an sd against the error that the user tolerates."""
    verdict = "trust" if worst <= 1.5 * tolerance else "caution" if worst <= 4 * tolerance else "reject"
    return Check("predicted bias", worst, verdict, sentence)


def check_share(name: str, value: float | int, low: float | int, high: float | int, sentence: str) -> Check:
    """Checks a share that should lie in [low, high]."""
    verdict = "trust" if low <= value <= high else "caution"
    return Check(name, value, verdict, f"{sentence}; usually between {low} and {high}")
