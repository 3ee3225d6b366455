"""How far a posterior can be trusted: the verdict, and the numbers behind it."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tractable.core.check import Check
from tractable.core.shown import as_html, printable
from tractable.diagnostics.belief import Moments
from tractable.diagnostics.digits import digits_check
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.order import order_check

ORDER = ("trust", "caution", "reject")


class Report(NamedTuple):
    """The worst verdict of the checks, and the checks.

    "trust": no check speaks against the result; the checks say what was examined.
    "caution": usable for what the check says (predictions, a point, an ordering), but not as a posterior.
    "reject": not to be used as a posterior; the check says what to do. A point is judged as a point.
    """

    verdict: str  # the worst of the checks'
    checks: tuple[Check, ...]  # name, value, verdict and a sentence each
    title: str  # its first line, when printed

    def __str__(self) -> str:
        return printable("\n".join([f"{self.title}: {self.verdict}", *lines_of(self.checks)]))

    __repr__ = __str__
    _repr_html_ = as_html


def judge(posterior: Learnt) -> Report:
    """The report of a posterior: its method's checks, those of its verification, and whether the run finished."""
    if posterior.is_point or posterior.count:
        checks = [*posterior.method.checks(posterior), *posterior.verification]
    elif isinstance(posterior.belief, Moments):
        checks = [*moment_checks(posterior), *posterior.verification]
    else:
        checks = [Check("draws", 0, "reject", "the run ended before its first draw")]
    if posterior.interrupted:
        checks.append(
            Check("interrupted", posterior.count, "caution", "draws per chain had been kept when the run was stopped")
        )
    checks += [*digits_check(posterior.data), *order_check(posterior.data, posterior.method.plan(posterior.data))]
    numbers = f"{len(posterior.names)} number{'s' if len(posterior.names) > 1 else ''}"
    return Report(worst(checks), tuple(checks), f"{type(posterior.method).__name__} on {numbers}")


def lines_of(checks: Sequence[Check]) -> list[str]:
    """Verdict, name, value and sentence of each, in columns."""
    width = max((len(c.name) for c in checks), default=0)
    return [f"  {c.verdict:7}  {c.name:{width}}  {number(float(c.value)):>9}  {c.sentence}" for c in checks]


def worst(checks: Iterable[Check]) -> str:
    """The verdict of several checks."""
    return max((c.verdict for c in checks), key=ORDER.index, default="caution")


def with_checks(report: Report, more: Iterable[Check]) -> Report:
    """The report with more checks added."""
    checks = (*report.checks, *more)
    return Report(worst(checks), checks, report.title)


def moment_checks(posterior: Learnt) -> list[Check]:
    """The one check that running moments allow: whether the chains' means agree."""
    belief: Any = posterior.belief
    mass = belief.counts if belief.totals is None else belief.totals
    moving = ~posterior.model.fixed
    means, squares = (np.asarray(m, np.float64)[:, moving] for m in (belief.means, belief.squares))
    within = (squares / np.asarray(mass, np.float64)[:, None]).mean(0)
    rhat = float(np.sqrt(1 + np.max(means.var(0, ddof=1) / within))) if len(means) > 1 else float("nan")
    verdict = "trust" if rhat <= 1.01 else "reject" if rhat > 1.05 else "caution"
    return [Check("R-hat of means", rhat, verdict, "from running moments; draws were not kept, so ESS is unknown")]


def number(value: float | int) -> str:
    """A number to four significant digits."""
    if value != value:
        return "n/a"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value)}"
    return f"{value:.4g}"


def chain_checks(posterior: Learnt) -> list[Check]:
    """R-hat, bulk and tail effective draws, and stuck chains, of the user's parameters."""
    seen, chains = posterior.diagnosed, posterior.chains
    if posterior.model.network_weights:  # chains that agree in all they predict agree in no single weight
        return _stuck(seen.stuck, chains)
    out = [Check("R-hat", float("nan"), "reject", "too few draws to tell whether chains agree; 8 a chain at least")]
    if np.any(np.isfinite(seen.rhat)) or seen.stuck:
        furthest = int(np.nanargmax(seen.rhat))
        rhat = float(seen.rhat[furthest])
        verdict = "trust" if rhat <= 1.01 else "caution" if rhat <= 1.05 else "reject"
        out = [Check("R-hat", rhat, verdict, f"largest, at {posterior.names[furthest]}; 1 where chains agree")]
    for name, values in (("bulk ESS", seen.bulk), ("tail ESS", seen.tail)):
        least = int(np.nanargmin(values)) if np.any(np.isfinite(values)) else 0
        value = float(values[least])
        # 100 a chain is where R-hat and ESS themselves can be believed (Vehtari et al. 2021).
        verdict = "trust" if value >= 100 * chains else "caution" if value >= 20 * chains else "reject"
        out.append(Check(name, value, verdict, f"least, at {posterior.names[least]}; effective draws"))
    return out + _stuck(seen.stuck, chains)


def _stuck(stuck: int, chains: int) -> list[Check]:
    out = []
    if stuck:
        out.append(Check("stuck chains", stuck, "reject", "chains that never moved in some parameter"))
    if chains == 1:
        out.append(Check("chains", 1, "caution", "one chain cannot see a mode it never visits; run four"))
    return out


def check_share(name: str, value: float | int, low: float | int, high: float | int, sentence: str) -> Check:
    """A share that should lie in [low, high]."""
    verdict = "trust" if low <= value <= high else "caution"
    return Check(name, value, verdict, f"{sentence}; usual between {low} and {high}")
