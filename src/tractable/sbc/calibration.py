"""The result of a calibration: ranks of the true parameters, and what they say about the method's posteriors."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tractable.beliefs.check import Check
from tractable.checks.ranks import WIDEST, Shape, ecdf, p_value, shape
from tractable.checks.report import Report, worst
from tractable.sbc.panels import panel
from tractable.sbc.runs import LIKELIHOOD
from tractable.tools import checkpoint as files
from tractable.tools.errors import CheckpointError
from tractable.tools.words import counted
from tractable.tools.writing import write_figure, write_table

if TYPE_CHECKING:
    import pandas as pd

DOUBTED, REJECTED = 0.05, 0.01  # levels of false alarm over all quantities, for caution and for reject
BIAS, RATIO, GAP = 0.2, 1.25, 0.08  # tolerated bias in sds, ratio of sds, and distance of ECDFs (a mean 0.2 sd off)
NORMAL = 1.96  # sds, half a 95 % interval
CLEAR = 2.576  # standard errors beyond which a bias or width is named
FAILED = 0.05  # share of runs that may fail, or be ranked among too few draws
DISAGREE = 1.05  # R-hat above which chains disagree
NAMED, PANELS = 8, 4  # most quantities in a report, and in a plot
FOLDER = "calibration"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of ``calibrate``; n runs ended and are ranked.

    Attributes:
        names: of the q quantities: the k parameters, "log likelihood", the user's quantities.
        ranks: (n, q) ranks of the truth among L draws, 0 … L.
        draws: L.
        index: (n,) indices of the runs.
        effective: (n,) nearly independent draws of each run; if fewer than L, the truth was ranked among as many.
        rhat: (n,) largest R-hat of each run; NaN where draws have no order.
        failures: error sentences of the runs that failed, by index.
        method: its name.
        asked: the requested number of runs.
        interrupted: whether the calibration was stopped before its end.
    """

    names: list[str]
    ranks: np.ndarray = field(repr=False)
    draws: int
    index: np.ndarray = field(repr=False)
    effective: np.ndarray = field(repr=False)
    rhat: np.ndarray = field(repr=False)
    failures: dict[int, str]
    method: str
    asked: int
    interrupted: bool = False

    @property
    def runs(self) -> int:
        """n, the number of ranked runs."""
        return len(self.ranks)

    @functools.cached_property
    def p_values(self) -> np.ndarray:
        """(q,) probability that the ECDF of uniform ranks is as far out, by quantity (``checks.ranks.p_value``)."""
        return np.array([p_value(column, self.draws) for column in self.ranks.T])

    @functools.cached_property
    def adjusted(self) -> np.ndarray:
        """(q,) p-values adjusted for all quantities (Holm 1979): under uniform ranks P(the least < α) ≤ α."""
        order = np.argsort(self.p_values, kind="stable")
        steps = self.p_values[order] * np.arange(len(order), 0, -1)
        out = np.empty(len(order))
        out[order] = np.minimum(np.maximum.accumulate(steps), 1)
        return out

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """For each quantity the sd ratio and the bias that explain its ranks best."""
        return [shape(column, self.draws) for column in self.ranks.T]

    @functools.cached_property
    def verdicts(self) -> list[str]:
        """For each quantity "reject" where ranks are not uniform, "caution" where that is doubtful or the error small.

        Small is a mean within 0.2 of the right sd and an sd within 0.8 … 1.25 of it: many runs detect even that.
        """
        return [self._verdict(i) for i in range(len(self.names))]

    def _verdict(self, i: int) -> str:
        if self.adjusted[i] >= DOUBTED:
            return "trust"
        found, expected = self.shapes[i], np.arange(1, self.draws + 1) / (self.draws + 1)
        gap = float(np.max(np.abs(ecdf(self.ranks[:, i], self.draws) - expected)))
        little = abs(found.bias) <= BIAS and 1 / RATIO <= found.sd_ratio <= RATIO and gap <= GAP
        return "caution" if little or self.adjusted[i] >= REJECTED else "reject"

    @property
    def order(self) -> list[int]:
        """Indices of the quantities, the furthest from uniform first."""
        return np.argsort(self.p_values, kind="stable").tolist()

    def report(self) -> Report:
        """Whether the method is calibrated on this model and data like these.

        "trust": ranks look uniform, and there are runs enough to know a bias to ± 0.2 sd. A right method's ranks get
        less than "trust" with a probability of at most 5 %, and "reject" of at most 1 %.
        """
        checks = list(self._checks())
        return Report(worst(checks), tuple(checks), f"{self.method} calibrated by {counted(self.runs, 'run')}")

    def _checks(self) -> Iterator[Check]:
        least, n, q = self.order[0], self.runs, len(self.names)
        yield Check(
            "uniform ranks", float(self.adjusted[least]), max(self.verdicts, key=["trust", "caution", "reject"].index),
            f"least p-value of {q} quantities, adjusted for their number, at {self.names[least]}; where all is right "
            f"below {DOUBTED:g} 1 time in {1 / DOUBTED:g}, below {REJECTED:g} 1 in {1 / REJECTED:g}",
        )  # fmt: skip
        wrong = [i for i in self.order if self.verdicts[i] != "trust"]
        for i in wrong[:NAMED]:
            yield Check(self.names[i], float(self.adjusted[i]), self.verdicts[i], self.sentence(i))
        if len(wrong) > NAMED:
            yield Check("further", len(wrong) - NAMED, "caution", "quantities whose ranks are not uniform either")
        known, spread = NORMAL / math.sqrt(n), 100 * math.expm1(NORMAL / math.sqrt(2 * n))
        told = f"a mean's bias is told to ± {known:.2g} sd and an sd to {spread:.0f} %; within {BIAS} and 25 % is right"
        yield Check("runs", n, "trust" if known <= BIAS else "caution", told)
        if self.failures:
            share = len(self.failures) / (n + len(self.failures))
            first = next(iter(self.failures.values()))
            yield Check(
                "failed runs", len(self.failures), "caution" if share <= FAILED else "reject",
                f"are not ranked, and the verdict is of the others; the first: {first}",
            )  # fmt: skip
        few = int(np.sum(self.effective < self.draws))
        yield Check(
            "effective draws", float(np.min(self.effective)), "trust" if few <= FAILED * n else "caution",
            f"nearly independent, the least of a run; {counted(few, 'run')} had fewer than the {self.draws} that are "
            "ranked, and tell less",
        )  # fmt: skip
        if np.isfinite(self.rhat).any():
            apart = int(np.sum(self.rhat > DISAGREE))
            yield Check(
                "R-hat", float(np.nanmax(self.rhat)), "caution" if apart else "trust",
                f"largest; chains of {counted(apart, 'run')} disagree",
            )  # fmt: skip
        if self.interrupted:
            yield Check("interrupted", n, "caution", f"runs there were, of {self.asked}, when it was stopped")

    def sentence(self, i: int) -> str:
        """What a quantity's ranks say about its posteriors: ∪ too narrow, ∩ too wide, a slope too high or too low."""
        found, told = self.shapes[i], []
        spread, sloped = found.off(CLEAR)
        if spread:
            reach = math.exp(min(NORMAL * found.sd_error, 99))
            low, high = max(found.sd_ratio / reach, 1 / WIDEST), min(found.sd_ratio * reach, WIDEST)
            word = "too narrow, ∪" if found.sd_ratio < 1 else "too wide, ∩"
            told.append(f"{word}: sd {found.sd_ratio:.2g} of the right one ({low:.2g} to {high:.2g})")
        if sloped:
            word = "too high" if found.bias > 0 else "too low"
            off = NORMAL * found.bias_error
            told.append(f"{word}, a slope: mean off by {abs(found.bias):.2g} ± {off:.2g} right sds")
        if not told:
            return "ranks are not uniform, and neither narrow, wide nor sloped: look at the plot"
        if self.names[i] == LIKELIHOOD and sloped:
            less = found.bias < 0
            told.append(
                "draws explain the data less than the truth does, as where they are not learnt from" if less
                else "draws explain the data better than the truth does, as where rows count twice"
            )  # fmt: skip
        return "; ".join(told)

    def summary(self) -> "pd.DataFrame":
        """A row for each quantity: p-value, adjusted p-value, sd ratio and bias with 95 % intervals, verdict."""
        import pandas as pd

        ratio, log_error, bias, error, _ = (np.array(column) for column in zip(*self.shapes, strict=True))
        reach = np.exp(np.minimum(NORMAL * log_error, 99))
        return pd.DataFrame(
            {
                "p": self.p_values, "adjusted p": self.adjusted, "sd ratio": ratio, "sd ratio low": ratio / reach,
                "sd ratio high": ratio * reach, "bias": bias, "bias low": bias - NORMAL * error,
                "bias high": bias + NORMAL * error, "verdict": self.verdicts,
            },
            index=pd.Index(self.names, name="quantity"),
        )  # fmt: skip

    def __str__(self) -> str:
        return str(self.report())

    __repr__ = __str__

    def plot(self, path: str | Path) -> None:
        """Histogram and ECDF of up to four quantities, the furthest from uniform first.

        Args:
            path: of the image; its suffix gives the format.
        """
        from matplotlib.figure import Figure

        chosen = self.order[:PANELS]
        columns = min(2, len(chosen))
        rows = -(-len(chosen) // columns)
        canvas = Figure(figsize=(5.2 * columns, 3.4 * rows), layout="constrained")
        for part, i in itertools.zip_longest(canvas.subfigures(rows, columns, squeeze=False).ravel(), chosen):
            if i is not None:
                part.suptitle(self.names[i])
                panel(part, self.ranks[:, i], self.draws)
        write_figure(path, canvas)

    def save(self, path: str | Path) -> None:
        """Write ranks and names into a folder that ``Calibration.load`` reads, and ``summary.csv``; no pickles."""
        folder, about = Path(path), {n: getattr(self, n) for n in ("names", "draws", "method", "asked", "interrupted")}
        arrays = {name: getattr(self, name) for name in ("ranks", "index", "effective", "rhat")}
        files.save(folder / FOLDER, arrays, about | {"failures": self.failures}, step=0)
        write_table(folder / "summary.csv", self.summary(), index=True)

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read what ``save`` or ``calibrate(..., checkpoint=path)`` wrote."""
        saved = files.load(Path(path) / FOLDER)
        if saved is None:
            raise CheckpointError(f"{path} holds no calibration: expected one that was saved, or has come to its end.")
        about: dict[str, Any] = {**saved[1], **saved[2]}
        about["failures"] = {int(i): why for i, why in about["failures"].items()}
        return cls(**about)
