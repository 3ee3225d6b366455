"""The sections of the pages of mixtures and hidden Markov models.

They show the choice of the number of components or states, the components or states, and the rows.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from tractable.core.words import counted
from tractable.pages.plots import bare, dots, drawing, short, tidy
from tractable.pages.sections import Cell, Figure, Section, Table, duration, table_of
from tractable.pages.style import COLOURS, MUTED, PAPER
from tractable.selection import CRITERIA, Selection

DRAWN = 1500  # the largest number of rows in a scatter plot
PAIRED = 4  # the largest number of columns that are drawn against each other
NEVER = 1e-6  # a probability of leaving a state below this counts as 0, given the errors of single precision
SHOWN = 4  # the largest number of sequences that are drawn
STEPS = 300  # the largest number of steps of a sequence that are drawn: its last ones


class Components(NamedTuple):
    """The components of a mixture in the table's own units, in order of decreasing weight."""

    names: list[str]  # names of the d columns
    weights: np.ndarray  # (K,)
    errors: np.ndarray  # (K,), standard errors of the weights; NaN if there are none
    means: np.ndarray  # (K, d)
    covariances: np.ndarray  # (K, d, d)

    @property
    def sds(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.covariances, axis1=1, axis2=2))

    @property
    def answer(self) -> str:
        """The components in one sentence."""
        largest = f"the largest holds {100 * self.weights.max():.0f} % of them"
        return f"The rows fall into {counted(len(self.weights), 'group')} (components); {largest}."

    def frame(self, rows: int) -> pd.DataFrame:
        """A table with a row for each component; its "rows" are the component's weight times ``rows``."""
        count = len(self.weights)
        columns: dict[str, Any] = {
            "component": np.arange(1, count + 1), "weight": self.weights, "standard error": self.errors,
            "rows": self.weights * rows,
        }  # fmt: skip
        columns |= {f"mean of {name}": self.means[:, j] for j, name in enumerate(self.names)}
        columns |= {f"sd of {name}": self.sds[:, j] for j, name in enumerate(self.names)}
        return pd.DataFrame(columns)


class States(NamedTuple):
    """The states of a hidden Markov model in the table's own units, in order of decreasing share of time."""

    names: list[str]  # names of the m columns or classes that states emit
    values: np.ndarray  # (K, m) means of the columns, or rates or probabilities; ``says`` says which
    spreads: np.ndarray | None  # (K, m) sds; None if the values determine them
    share: np.ndarray  # (K,) the share of time spent in each state
    initial: np.ndarray  # (K,) probabilities of the first step's state
    transition: np.ndarray  # (K, K) probabilities of the next step's state
    errors: np.ndarray  # (K, K) standard errors of ``transition``; NaN if there are none
    says: str  # the words for ``values``, such as "mean of"
    unit: str  # the time between steps

    @property
    def stay(self) -> np.ndarray:
        """The mean number of steps that each state lasts, (K,); infinite for a state that is never left."""
        leaves = 1 - np.diagonal(self.transition)
        return np.divide(1, leaves, out=np.full_like(leaves, np.inf), where=leaves > NEVER)

    @property
    def answer(self) -> str:
        """The states in one sentence."""
        most = f"they spend {100 * self.share.max():.0f} % of the time in state {self.share.argmax() + 1}"
        return f"The sequences move between {counted(len(self.share), 'state')}; {most}."

    def frame(self) -> pd.DataFrame:
        """A table with a row for each state."""
        columns: dict[str, Any] = {
            "state": np.arange(1, len(self.share) + 1), "share of time": self.share, "first": self.initial,
            "steps it lasts": self.stay,
        }  # fmt: skip
        columns |= {f"{self.says} {name}": self.values[:, j] for j, name in enumerate(self.names)}
        if self.spreads is not None:
            columns |= {f"sd of {name}": self.spreads[:, j] for j, name in enumerate(self.names)}
        return pd.DataFrame(columns)

    def transitions(self) -> pd.DataFrame:
        """A table with a row for each state: the probabilities of the next state, and their standard errors."""
        to = range(len(self.share))
        columns: dict[str, Any] = {"state": [k + 1 for k in to]}
        columns |= {f"to {k + 1}": self.transition[:, k] for k in to}
        columns |= {f"standard error of {k + 1}": self.errors[:, k] for k in to}
        return pd.DataFrame(columns)


def sections(found: Selection, answer: str, shown: Sequence[Section], noun: str, held_out: int) -> list[Section]:
    """The answer, the choice of the number of components or states, and the sections ``shown``.

    Args:
        noun: "components" or "states".
        held_out: the number of held-out rows or sequences.
    """
    said = f"The number of {noun} was chosen by {CRITERIA[found.by].column}."
    if np.isfinite(found.table["held-out"]).any():
        said += f" Held-out is the mean log density, in nats, of {held_out:,} that no fit used: more is better."
    if np.isfinite(found.table["evidence"]).any():
        said += " Evidence is a lower bound on log p(rows), in nats, by variational Bayes: more is better."
    if "reject" in found.table["verdict"].tolist():
        said += " A fit with the verdict reject is not chosen."
    choice = Section(f"Number of {noun}", [*found.remarks, selection_table(found, noun)], said)
    return [Section("", note=answer), choice, *shown]


def selection_table(found: Selection, noun: str) -> Table:
    """A table of every K that was tried, with its criteria and a mark at the chosen one."""
    table = found.table.dropna(axis=1, how="all").rename(columns={"components": noun})
    rows = table_of(table.assign(seconds=[duration(each) for each in table["seconds"]])).cells
    rows[found.best][0] = rows[found.best][0]._replace(aside="← chosen")
    return Table(list(table.columns), rows)


def of_states(states: States, rows: np.ndarray, paths: np.ndarray) -> list[Section]:
    """The sections on the states, their transitions and the sequences.

    Args:
        rows: (n, T, d) the fitted sequences, in the table's units; NaN where a number is missing.
        paths: (n, T) each sequence's most probable path, as states from 0; −1 after its last step.
    """
    steps = f"steps of {states.unit}" if states.unit else "steps"
    note = f"In order of their share of time, in the table's units. Durations are in {steps}."
    return [
        Section("States", [table_of(states.frame())], note),
        Section("Transitions", [table_of(states.transitions())], "The probability of the next step's state."),
        Section("Sequences", sequences(states, rows, paths), "The column in which the states differ most. A step has "
                "the colour of its state on the most probable path."),
    ]  # fmt: skip


def of_components(components: Components, rows: np.ndarray, likeliest: np.ndarray, covariance: str) -> list[Section]:
    """The sections on the components and the rows.

    Args:
        rows: (n, d) the fitted rows, in the table's units; NaN where a number is missing.
        likeliest: (n,) each row's most probable component, from 0.
        covariance: the covariance type.
    """
    note = f"In order of weight, in the table's units; covariances are {covariance}."
    table = table_of(components.frame(len(rows)))
    return [Section("Components", [table], note), rows_of(components, rows, likeliest)]


def facts(found: Selection, rows: np.ndarray, noun: str = "components") -> dict[str, Any]:
    """The facts of the fit: numbers of rows, columns, components and parameters, and the time."""
    return {
        "rows of data" if rows.ndim == 2 else "sequences": Cell(len(rows), ",d"),
        "columns": Cell(rows.shape[-1], ",d"),
        noun: Cell(found.components, aside=f"{', '.join(map(str, found.table['components']))} tried"),
        "free parameters": Cell(found.candidates[found.best].parameters, ",d"),
        "wall time": duration(float(found.table["seconds"].to_numpy().sum())),
    }


def rows_of(found: Components, rows: np.ndarray, likeliest: np.ndarray) -> Section:
    """A figure of the rows, coloured by their most probable component, with the components' ellipses."""
    shown = most_distinct(found)
    some = np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)
    note = "The histograms of all rows, with the density of each component times its weight."
    if len(shown) > 1:
        note += " Rows have the colour of their most probable component; an ellipse holds 90 % of each component."
    if len(shown) < len(found.names):
        note += f" Shown are the {len(shown)} columns, of {len(found.names)}, in which the components differ most."
    if len(some) < len(rows):
        note += f" Shown are {len(some):,} evenly spaced rows of {len(rows):,}."
    drawn = [densities(found, i, rows[some, i], caption=found.names[i]) for i in shown]
    pairs = [(int(i), int(j)) for at, i in enumerate(shown) for j in shown[at + 1 :]]
    drawn += [ellipses(found, [i, j], rows[some][:, [i, j]], likeliest[some]) for i, j in pairs]
    return Section("Rows and components", drawn, note)


def most_distinct(found: Components) -> np.ndarray:
    """The indices, in order, of at most ``PAIRED`` columns in which the components differ most.

    They are the columns in which the components' means explain the largest share of the variance.
    """
    weights = found.weights[:, None]
    between = (weights * np.square(found.means - (weights * found.means).sum(0))).sum(0)
    within = (weights * np.square(found.sds)).sum(0)
    share = between / (between + within)
    return np.sort(np.argsort(-share, kind="stable")[:PAIRED])


@drawing("The rows' numbers and the components' densities")
def densities(canvas: Canvas, found: Components, column: int | np.integer, values: np.ndarray) -> None:
    """Draw the histogram of numbers (n,), and the density of each component in this column times its weight."""
    axes, there = canvas.subplots(), values[np.isfinite(values)]
    bins = int(np.clip(2 * len(there) ** (1 / 3), 8, 40))
    axes.hist(there, bins, density=True, color=MUTED, alpha=0.28, linewidth=0)
    for i, weight in enumerate(found.weights):
        mean, sd = found.means[i, column], found.sds[i, column]
        x = mean + sd * np.linspace(-3.5, 3.5, 120)
        height = weight * np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
        axes.plot(x, height, color=COLOURS[i % len(COLOURS)])
    bare(axes)


@drawing("Rows and components in two columns", 2.9)
def ellipses(canvas: Canvas, found: Components, columns: list[int], values: np.ndarray, likeliest: np.ndarray) -> None:
    """Draw rows (n, 2) in two columns, with ellipses that hold 90 % of each component.

    Rows have the colour of their most probable component (n,). A missing number is NaN.
    """
    axes, radius = canvas.subplots(), math.sqrt(-2 * math.log(0.1))
    circle = np.stack([np.cos(turn := np.linspace(0, 2 * np.pi, 73)), np.sin(turn)])
    every = [COLOURS[i % len(COLOURS)] for i in range(len(found.weights))]
    for i, colour in enumerate(every):
        x, y = values[likeliest == i].T
        dots(axes, x, y, colour, 2.2, 0.5)
    for i, colour in enumerate(every):
        centre = found.means[i][columns]
        roots, basis = np.linalg.eigh(found.covariances[i][np.ix_(np.array(columns), np.array(columns))])
        x, y = centre[:, None] + basis @ (radius * np.sqrt(np.maximum(roots, 0))[:, None] * circle)
        axes.plot(x, y, color=colour, linewidth=1.3)
        around = {"boxstyle": "circle,pad=0.12", "facecolor": PAPER, "edgecolor": colour, "linewidth": 0.8}
        axes.text(centre[0], centre[1], str(i + 1), color=colour, fontsize=7.5, ha="center", va="center", bbox=around)
    axes.set_xlabel(short(found.names[columns[0]]))
    axes.set_ylabel(short(found.names[columns[1]]))
    tidy(axes, 4, 4)


def sequences(states: States, rows: np.ndarray, paths: np.ndarray) -> list[Figure]:
    """Figures of some of the sequences (n, T, d), coloured by their most probable states (n, T)."""
    column = 0
    if states.spreads is not None and len(states.share) > 1:
        column = int(np.argmax(states.values.var(0) / np.square(states.spreads).mean(0)))
    some = np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).astype(int)
    return [sequence(rows[i, :, column], paths[i], caption=f"sequence {i + 1}") for i in some]


@drawing("A sequence in the colours of its most probable states")
def sequence(canvas: Canvas, values: np.ndarray, path: np.ndarray) -> None:
    """Draw a sequence (T,), with a dot in the colour of its state on the most probable path (T,) for each step."""
    axes, last = canvas.subplots(), int(np.sum(path >= 0))
    steps = np.arange(max(0, last - STEPS), last)
    axes.plot(steps + 1, values[steps], color=MUTED, linewidth=0.6, alpha=0.6)
    for state in np.unique(path[steps]):
        here = steps[path[steps] == state]
        dots(axes, here + 1, values[here], COLOURS[state % len(COLOURS)], 5.0, 0.9)
    axes.set_xlabel("step")
    tidy(axes, whole=True)
