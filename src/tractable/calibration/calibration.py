"""The result of a simulation-based calibration: the ranks of the truth, and what they say of a method."""

import functools
import math
import pathlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from tractable.calibration.ranks import Shape, draw_ranks, largest_gap, p_value, shape
from tractable.core.check import Check
from tractable.core.errors import CheckpointError
from tractable.core.settings import between, expect
from tractable.core.words import counted
from tractable.core.writing import write_figure, write_table
from tractable.diagnostics.report import ORDER, Report, worst
from tractable.engine import checkpoint as files

if TYPE_CHECKING:
    import pandas as pd

# Below an adjusted p-value of DOUBTED the verdict is "caution"; below REJECTED it is "reject", if the error is large.
DOUBTED, REJECTED = 0.05, 0.01
# Errors that count as small: bias of a mean in sds, ratio of sds, and distance between ECDFs; a mean that is 0.2 sd off
# causes a distance of 0.08.
BIAS, RATIO, GAP = 0.2, 1.25, 0.08
# Standard errors: NORMAL is half the width of a 95 % interval; a report names a bias or a wrong sd beyond CLEAR.
NORMAL, CLEAR = 1.96, 2.576
# Largest share of runs that may fail before the verdict is "reject", and largest share that may have fewer nearly
# independent draws than requested before it is "caution".
FAILED = 0.05
NAMED, PANELS = 8, 4  # maximum number of doubtful quantities that a report names, and of quantities that a plot shows


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of ``calibrate``: the ranks of the n runs that came to their end.

    Attributes:
        names: names of the q quantities: the k parameters, "log likelihood", the user's quantities.
        ranks: (n, q) ranks of the truth among L draws, 0 … L.
        draws: L.
        index: (n,) indices of the runs.
        effective: (n,) number of nearly independent draws of each run; if it is below L, the truth was ranked among
            only that many draws.
        failures: error messages of the runs that failed, by index.
        method: the method's name.
        asked: the requested number of runs.
        interrupted: whether the calibration was stopped before its end.
        independent: number of nearly independent draws of the posterior of ``data`` from which θ* was drawn; infinite
            if θ* was drawn from the prior.
    """

    names: list[str]
    ranks: np.ndarray = field(repr=False)
    draws: int
    index: np.ndarray = field(repr=False)
    effective: np.ndarray = field(repr=False)
    failures: dict[int, str]
    method: str
    asked: int
    interrupted: bool = False
    independent: float = math.inf

    @property
    def runs(self) -> int:
        """n, the number of ranked runs."""
        return len(self.ranks)

    @functools.cached_property
    def p_values(self) -> np.ndarray:
        """(q,) p-values: the probability that uniform ranks have an ECDF at least as far from uniform as these."""
        return np.array([p_value(column, self.draws) for column in self.ranks.T])

    @functools.cached_property
    def adjusted(self) -> np.ndarray:
        """(q,) p-values adjusted for all quantities (Holm 1979): under uniform ranks P(smallest < α) ≤ α."""
        steps = self.p_values[self.order] * np.arange(len(self.names), 0, -1)
        return np.minimum(np.maximum.accumulate(steps), 1)[np.argsort(self.order)]

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """For each quantity the ratio of sds and the bias that explain its ranks best."""
        return [shape(column, self.draws) for column in self.ranks.T]

    @functools.cached_property
    def verdicts(self) -> list[str]:
        """For each quantity "trust", "caution" or "reject".

        "reject" means that ranks are not uniform. "caution" means that this is uncertain, or that the error is small: a
        mean that is at most 0.2 of the right sd off, and an sd between 0.8 and 1.25 of it. Many runs detect even such
        errors.
        """
        ratio, _, bias, _ = np.array(self.shapes).T
        gaps = np.array([largest_gap(column, self.draws) for column in self.ranks.T])
        small = (np.abs(bias) <= BIAS) & (np.abs(np.log(ratio)) <= math.log(RATIO)) & (gaps <= GAP)
        mild = small | (self.adjusted >= REJECTED)
        return np.select([self.adjusted >= DOUBTED, mild], ["trust", "caution"], "reject").tolist()

    @property
    def order(self) -> list[int]:
        """The indices of the quantities in order of their p-values; the smallest is first."""
        return np.argsort(self.p_values, kind="stable").tolist()

    def report(self) -> Report:
        """Report whether the method is calibrated on this model and on data like these.

        "trust" means that nothing speaks against uniform ranks, and that there are enough runs to know a bias to
        ± 0.2 sd. The ranks of an exact method get a verdict below "trust" with a probability of at most 5 %, and
        "reject" with a probability of at most 1 %.
        """
        n, q, least = self.runs, len(self.names), self.order[0]
        reach, spread = NORMAL / math.sqrt(n), 100 * math.expm1(NORMAL / math.sqrt(2 * n))
        few, failed = int(np.sum(self.effective < self.draws)), len(self.failures)
        text = f"is the smallest of {counted(q, 'p-value')}, that of {self.names[least]}, adjusted for their number; "
        text += f"with uniform ranks it is below {DOUBTED} in 1 of 20 calibrations, and below {REJECTED} in 1 of 100"
        verdict = max(self.verdicts, key=ORDER.index)
        checks = [Check("uniform ranks", float(self.adjusted[least]), verdict, text)]
        for i in [i for i in self.order if self.verdicts[i] != "trust"][:NAMED]:
            checks.append(Check(self.names[i], float(self.adjusted[i]), self.verdicts[i], self.sentence(i)))
        text = f"give the bias of a mean to ± {reach:.2g} sd and an sd to {spread:.0f} %; {BIAS} sd and 25 % are small"
        checks.append(Check("runs", n, "trust" if reach <= BIAS else "caution", text))
        if failed:
            verdict = "caution" if failed <= FAILED * (n + failed) else "reject"
            text = f"are not ranked; the verdict is about the others. First error: {next(iter(self.failures.values()))}"
            checks.append(Check("failed runs", failed, verdict, text))
        verdict = "trust" if few <= FAILED * n else "caution"
        text = f"nearly independent draws in the worst run; {counted(few, 'run')} had fewer than {self.draws}"
        checks.append(Check("effective draws", float(np.min(self.effective)), verdict, text))
        if math.isfinite(self.independent):
            verdict = "trust" if self.independent >= n else "caution"
            text = f"nearly independent draws of the data's posterior, from which {counted(n, 'run')} took the true θ"
            checks.append(Check("draws of the data's posterior", self.independent, verdict, text))
        if self.interrupted:
            checks.append(Check("interrupted", n, "caution", f"of {self.asked} runs had ended at the interruption"))
        where = " near the posterior of the data" * math.isfinite(self.independent)
        return Report(worst(checks), tuple(checks), f"{self.method} calibrated by {counted(n, 'run')}{where}")

    def levels(self, level: float = 0.9) -> "pd.DataFrame":
        """The probabilities of a posterior's quantiles that are the ends of a recalibrated interval, for each quantity.

        Between these quantiles of its posterior the truth lay in a share ``level`` of the runs. Uniform ranks give 5 %
        and 95 % for a level of 0.9; posteriors that are too narrow give ends further out. The probabilities have an
        error of about sqrt(p (1 − p) / n) in n runs, and cannot be closer to 0 or 1 than 1 / (2 L + 2).
        """
        import pandas as pd

        expect("levels(level)", level, Annotated[float, between(0.0, 1.0)])
        ends = np.quantile((self.ranks + 0.5) / (self.draws + 1), [(1 - level) / 2, (1 + level) / 2], axis=0)
        return pd.DataFrame(ends.T, index=pd.Index(self.names, name="quantity"), columns=["lower", "upper"])

    def sentence(self, i: int) -> str:
        """What a quantity's ranks say about its posteriors.

        The histogram of ranks has the form ∪ where they are too narrow, ∩ where they are too wide, and a slope where
        they are too high or too low.
        """
        ratio, sd_error, bias, bias_error = self.shapes[i]
        faults = []
        if abs(math.log(ratio)) > CLEAR * sd_error:
            faults.append(f"too {'narrow, ∪' if ratio < 1 else 'wide, ∩'}: sd {ratio:.2g} of the right one")
        if abs(bias) > CLEAR * bias_error:
            faults.append(f"too {'high' if bias > 0 else 'low'}, a slope: mean off by {abs(bias):.2g} right sds")
        return "; ".join(faults) or "ranks are not uniform, but show no wrong sd and no bias: look at the plot"

    def summary(self) -> "pd.DataFrame":
        """A table with a row for each quantity: p-values, sd ratio and bias with 95 % limits, and verdict."""
        import pandas as pd

        ratio, sd_error, bias, bias_error = np.array(self.shapes).T
        factor, margin = np.exp(NORMAL * sd_error), NORMAL * bias_error
        columns = {
            "p": self.p_values, "adjusted p": self.adjusted, "sd ratio": ratio, "sd ratio low": ratio / factor,
            "sd ratio high": ratio * factor, "bias": bias, "bias low": bias - margin, "bias high": bias + margin,
            "verdict": self.verdicts,
        }  # fmt: skip
        return pd.DataFrame(columns, index=pd.Index(self.names, name="quantity"))

    def __str__(self) -> str:
        return str(self.report())

    __repr__ = __str__

    def plot(self, path: str | pathlib.Path) -> None:
        """Plot the histogram and the ECDF of the ranks of up to four quantities, those with the smallest p-values.

        Args:
            path: path of the image; its suffix gives the format.
        """
        from matplotlib.figure import Figure

        furthest = self.order[:PANELS]
        canvas = Figure(figsize=(4.6 * len(furthest), 3.6), layout="constrained")
        for part, i in zip(canvas.subfigures(1, len(furthest), squeeze=False)[0], furthest, strict=True):
            part.suptitle(self.names[i])
            draw_ranks(part, self.ranks[:, i], self.draws)
        write_figure(path, canvas)

    def save(self, path: str | pathlib.Path) -> None:
        """Write the calibration and ``summary.csv`` into a folder for ``Calibration.load``; nothing is pickled."""
        entries = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays = {name: entries.pop(name) for name in ("ranks", "index", "effective")}
        files.save(pathlib.Path(path) / "calibration", arrays, entries, step=0)
        write_table(pathlib.Path(path) / "summary.csv", self.summary(), index=True)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Calibration":
        """Read what ``save`` or ``calibrate(..., checkpoint=path)`` wrote."""
        contents = files.load(pathlib.Path(path) / "calibration")
        if contents is None:
            raise CheckpointError(f"{path} holds no calibration; expected the folder of a saved or finished one.")
        entries: dict[str, Any] = {**contents[1], **contents[2]}
        entries["failures"] = {int(i): reason for i, reason in entries["failures"].items()}
        return cls(**{each.name: entries[each.name] for each in fields(cls)})
