"""The page of targets (densities) on which methods fail: each density, and every method's answer and verdict."""

import pathlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Canvas

from tractable.core.check import Check
from tractable.core.errors import TractableError
from tractable.diagnostics.report import ORDER
from tractable.gallery.failures import FAILURES, Failure
from tractable.gallery.failures import failure as failure_of
from tractable.inference import infer
from tractable.kernels import gaussian
from tractable.methods import HMC, MALA, MAP, NUTS, SGLD, FullRank, Laplace, MeanField, Method, RandomWalk
from tractable.pages.plots import dots, drawing, tidy
from tractable.pages.render import write
from tractable.pages.sections import Section, Table
from tractable.pages.style import COLOURS, INK, MUTED
from tractable.posterior.posterior import Posterior

DRAWN = 400  # the largest number of draws in a picture
WORDS = ("trust", "caution", "reject", "failed")
MEANT = "The verdicts on the methods' answers. A method that gives only a point is judged only by its point."
MASSES = (0.99, 0.9, 0.5)  # the probability within each contour

# Every method runs on every target with its default settings. For some targets there are also methods with settings
# that make them fail.
USUAL: dict[str, Method] = {
    "MAP": MAP(), "Laplace": Laplace(), "MeanField": MeanField(), "FullRank": FullRank(), "RandomWalk": RandomWalk(),
    "MALA": MALA(), "HMC": HMC(), "NUTS": NUTS(),
}  # fmt: skip
BESIDES: dict[str, dict[str, Method]] = {
    "large-step": {
        "SGLD, large step": SGLD(batch_size=50, step_size=3e-4, preconditioner=None),
        "SGLD": SGLD(batch_size=50),
    },
    "stuck-chain": {"RandomWalk, wide": RandomWalk(proposal=gaussian(1000.0))},
    "unconverged": {"FullRank, few steps": FullRank(steps=50, start="random", solver="stochastic")},
}


class Answer(NamedTuple):
    """A method's answer to a target."""

    method: str
    posterior: Posterior | None  # None if the method raised an error, whose text is ``refusal``
    refusal: str = ""

    @property
    def verdict(self) -> str:
        return "failed" if self.posterior is None else self.posterior.report().verdict

    @property
    def worst(self) -> Check | None:
        """The first of the checks that have the worst verdict."""
        if self.posterior is None:
            return None
        return max(self.posterior.report().checks, key=lambda c: ORDER.index(c.verdict))


def answers(failure: Failure, seed: int = 0) -> list[Answer]:
    """Every method's answer to a target, or the error that it raised."""
    found = []
    model, data = failure.build()
    for label, method in {**BESIDES.get(failure.name, {}), **USUAL}.items():
        try:
            found.append(Answer(label, infer(model, data, method, seed=seed, progress=False)))
        except TractableError as error:
            found.append(Answer(label, None, str(error)))
    return found


def write_failures(
    folder: str | pathlib.Path, say: Callable[[str], object] = lambda text: None, names: Iterable[str] | None = None
) -> tuple[pathlib.Path, Section]:
    """Write ``report.html`` with every method's answers to targets on which some methods fail.

    Returns:
        The file's path, and a section with the verdicts.
    """
    shown, verdicts = [], []
    for failure in FAILURES.values() if names is None else map(failure_of, names):
        say(f"{failure.name}: {failure.title}")
        found = answers(failure)
        shown.append(section(failure, found))
        verdicts.append([failure.name, *("; ".join(a.method for a in found if a.verdict == word) for word in WORDS)])
    summary = Section("", [Table(["target", *WORDS], verdicts, WORDS)], MEANT)
    return write(folder, "Where methods fail", [summary, *shown], "Every method with its defaults"), summary


def section(failure: Failure, found: Iterable[Answer]) -> Section:
    """A table of every method's answer, and pictures of the target's density with the draws of each method."""
    found, names = list(found), failure.build()[0].names
    mean, sd = failure.exact()
    exactly = dict(zip(names, map(around, mean, sd), strict=True)) if failure.proper else {"exactly": "no posterior"}
    table = Table(["method", *names, "verdict", "why"], [row(answer) for answer in found], [*names, "why"])
    grid = failure.grid()
    shown = [over(grid, failure, answer.posterior, caption=answer.method) for answer in found if answer.posterior]
    return Section(failure.title, [exactly, table, *shown], failure.notes)


def around(mean: float | np.floating, sd: float | np.floating) -> str:
    """A number ± its sd as text; without an sd, the number alone."""
    return f"{mean:.2f}" + (f" ± {sd:.2f}" if np.isfinite(sd) else "")


def row(answer: Answer) -> list:
    """A method's row in the table of a target."""
    if answer.posterior is None:
        return [answer.method, "", "", answer.verdict, answer.refusal]
    worst = answer.worst
    why = "" if worst is None or worst.verdict == "trust" else f"{worst.name}: {worst.sentence}"
    return [answer.method, *map(around, *answer.posterior.flat_moments), answer.verdict, why]


@drawing("A density, and a method's draws over it", 3.2)
def over(
    canvas: Canvas, grid: tuple[np.ndarray, np.ndarray, np.ndarray], failure: Failure, posterior: Posterior
) -> None:
    """Draw the contours of the target's density, with the method's draws on top."""
    axes = canvas.subplots()
    x, y, mass = grid
    ordered = np.sort(mass.ravel())[::-1]
    levels = [ordered[np.searchsorted(np.cumsum(ordered), share)] for share in MASSES]
    axes.contour(x, y, mass.T, levels=sorted(set(levels)), colors=MUTED, linewidths=0.8)
    flat = posterior.point[None] if posterior.point is not None else posterior.unconstrained
    flat = np.asarray(flat, np.float64).reshape(-1, 2)
    flat = flat[:: -(-len(flat) // DRAWN)]
    inside = np.all([(low <= v) & (v <= high) for v, (low, high) in zip(flat.T, failure.window, strict=True)], 0)
    first, second = flat[inside].T
    if posterior.is_point:
        axes.plot(first, second, "o", color=INK, markersize=5)
    else:
        dots(axes, first, second, COLOURS[0], 1.7, 0.5)
    axes.set_xlim(*failure.window[0])
    axes.set_ylim(*failure.window[1])
    tidy(axes, 3, 3)
