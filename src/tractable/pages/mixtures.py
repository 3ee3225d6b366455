"""The sections of the pages of mixtures and hidden Markov models.

They show the choice of the number of components or states, the components or states, and the rows.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from scipy import stats

from tractable.pages.plots import WIDE, dots, drawing, squares, triangle
from tractable.pages.sections import Cell, Section, Table, decimals, duration
from tractable.pages.style import BAD, COLOURS, LINE, MUTED, PAPER
from tractable.selection import CRITERIA, Selection

DRAWN = 1500  # the largest number of rows in a scatter plot
PAIRED = 4  # the largest number of columns that are drawn against each other
MORE = {"held-out": ".3f", "evidence": ",.1f"}  # the optional criteria, with their number formats
NEVER = 1e-6  # a probability of leaving a state below this counts as 0, given the errors of single precision
SHOWN = 4  # the largest number of sequences that are drawn
STEPS = 300  # the largest number of steps of a sequence that are drawn: its last ones
LABEL = 18  # the largest number of characters of a column's name in a figure


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


def state_sections(
    found: Selection, states: States, rows: np.ndarray, paths: np.ndarray, held_out: int
) -> list[Section]:
    """The sections on the choice of the number of states, the states, their transitions and the sequences.

    Args:
        rows: (n, T, d) the fitted sequences, in the table's units; NaN where a number is missing.
        paths: (n, T) each sequence's most probable path, as states from 0; −1 after its last step.
        held_out: the number of held-out sequences.
    """
    table = found.table
    said = (
        f"The number of states was chosen by {CRITERIA[found.by].column}. BIC = −2 log L + (free parameters) · log n, "
        "with likelihood L and n observed steps: less is better."
    )
    if "held-out" in more_of(table):
        said += f" Held-out is the mean log density, in nats, of {held_out:,} sequences that no fit used."
    parts = [*found.remarks, *criteria(table, found.best, "states"), tried_table(table, found.best, "states")]
    note = "The column in which the states differ most. A step has the colour of its state on the most probable path."
    drawn = sequences(states, rows, paths)
    return [
        Section("Number of states", parts, said),
        *states_shown(states),
        Section("Sequences", [drawn], note, "chart"),
    ]


def states_shown(states: States) -> list[Section]:
    """Tables of the states and of their transitions."""
    steps = f"steps of {states.unit}" if states.unit else "steps"
    lines: list[list[Any]] = [
        ["share of time", *(Cell(float(v), ".3f") for v in states.share)],
        ["at the first step", *(Cell(float(v), ".3f") for v in states.initial)],
        [f"mean duration, in {steps}", *(Cell(float(v), ",.1f") if np.isfinite(v) else "endless" for v in states.stay)],
    ]
    spreads = states.spreads
    for j, name in enumerate(states.names):
        values = states.values[:, j]
        form = f",.{decimals(values if spreads is None else spreads[:, j])}f"
        aside = [""] * len(values) if spreads is None else [f"± {s:{form}}" for s in spreads[:, j]]
        lines.append([name, *(Cell(float(v), form, a) for v, a in zip(values, aside, strict=True))])
    heads = ["", *(str(k + 1) for k in range(len(states.share)))]
    what = "the mean, ± sd, in the table's units" if spreads is not None else f"the {states.says.removesuffix(' of')}"
    moves: list[list[Any]] = [[f"from {i + 1}"] for i in range(len(states.share))]
    for (i, j), p in np.ndenumerate(states.transition):
        error = states.errors[i, j]
        moves[i].append(Cell(float(p), ".3f", f"± {error:.3f}" if np.isfinite(error) else ""))
    return [
        Section("States", [Table(heads, lines)], f"In order of their share of time. For each column, {what}."),
        Section("Transitions", [Table(["", *(f"to {head}" for head in heads[1:])], moves)],
                "The probability of the next step's state, ± its standard error."),
    ]  # fmt: skip


def sections(
    found: Selection, components: Components, rows: np.ndarray, likeliest: np.ndarray, covariance: str, held_out: int
) -> list[Section]:
    """The sections on the choice of the number of components, the components and the rows.

    Args:
        rows: (n, d) the fitted rows, in the table's units; NaN where a number is missing.
        likeliest: (n,) each row's most probable component, from 0.
        covariance: the covariance type.
        held_out: the number of held-out rows.
    """
    table, more = found.table, more_of(found.table)
    said = (
        f"The number of components was chosen by {CRITERIA[found.by].column}. BIC = −2 log L + (free parameters) · "
        "log n and AIC = −2 log L + 2 · (free parameters), with likelihood L and n rows: less is better."
    )
    if "held-out" in more:
        said += f" Held-out is the mean log density, in nats, of {held_out:,} rows that no fit used: more is better."
    if "evidence" in more:
        said += " Evidence is a lower bound on log p(rows), in nats, by variational Bayes: more is better."
    if unsound(table).any():
        said += " A fit with the verdict reject is not chosen; it is a cross in the figures."
    parts = [*found.remarks, *criteria(table, found.best), tried_table(table, found.best)]
    return [
        Section("Number of components", parts, said),
        components_of(components, len(rows), covariance),
        rows_of(components, rows, likeliest),
    ]


def facts(found: Selection, rows: np.ndarray, noun: str = "components") -> dict[str, Any]:
    """The facts of the fit: numbers of rows, columns, components and parameters, and the time."""
    return {
        "rows of data" if rows.ndim == 2 else "sequences": Cell(len(rows), ",d"),
        "columns": Cell(rows.shape[-1], ",d"),
        noun: Cell(found.components, aside=f"{in_words(found.table['components'].tolist())} tried"),
        "free parameters": Cell(found.candidates[found.best].parameters, ",d"),
        "wall time": duration(float(found.table["seconds"].to_numpy().sum())),
    }


def in_words(tried: list[int]) -> str:
    """Numbers as text; successive numbers are shown as a range.

    >>> in_words([2, 3, 4, 5]), in_words([2, 5])
    ('2 to 5', '2, 5')
    """
    if len(tried) > 2 and tried == list(range(tried[0], tried[-1] + 1)):
        return f"{tried[0]} to {tried[-1]}"
    return ", ".join(map(str, tried))


def more_of(table: pd.DataFrame) -> list[str]:
    """The optional criteria for which the table has values."""
    return [name for name in MORE if name in table and np.isfinite(table[name]).any()]


def unsound(table: pd.DataFrame) -> np.ndarray:
    """Whether each candidate's verdict is neither "trust" nor "caution", (candidates,)."""
    return ~table["verdict"].isin(["trust", "caution"]).to_numpy()


def tried_table(table: pd.DataFrame, best: int, noun: str = "components") -> Table:
    """A table of every K that was tried, with its criteria and a mark at the chosen one."""
    usual = dict.fromkeys(("log likelihood", "BIC", "AIC"), ",.1f") | {name: MORE[name] for name in more_of(table)}
    heads = [noun, "parameters", *usual, "starts that agree", "time", "verdict"]
    rows = [
        [
            Cell(row["components"], "d", "← chosen" if i == best else ""), Cell(row["parameters"], ",d"),
            *(Cell(row[name], form) for name, form in usual.items()),
            f"{row['starts that agree']} of {row['starts']}", duration(row["seconds"]), row["verdict"],
        ]
        for i, row in enumerate(table.to_dict("records"))
    ]  # fmt: skip
    return Table(heads, rows, layout="wide")


def criteria(table: pd.DataFrame, best: int, noun: str = "components") -> list[Section]:
    """Figures of each criterion against the number of components."""
    drawn = []
    for name in ("BIC", *more_of(table)) if len(table) > 1 else ():
        values = table[name].to_numpy(np.float64)
        if np.isfinite(values).sum() > 1:
            caption = f"{name}, {'less' if name == 'BIC' else 'more'} is better"
            drawn.append(criterion(table["components"].to_numpy(), values, best, unsound(table), noun, caption=caption))
    return [Section("", drawn, layout="panels two")] if drawn else []


def components_of(found: Components, rows: int, covariance: str) -> Section:
    """A table with each component's weight, means and sds."""
    lines: list[list[Any]] = [["weight π", *(Cell(float(w), ".3f") for w in found.weights)]]
    if np.isfinite(found.errors).any():
        lines.append(["its standard error", *(Cell(float(e), ".3f") for e in found.errors)])
    lines.append(["π · rows", *(Cell(float(w * rows), ",.1f") for w in found.weights)])
    for name, means, sds in zip(found.names, found.means.T, found.sds.T, strict=True):
        form = f",.{decimals(sds)}f"
        lines.append([name, *(Cell(float(m), form, f"± {s:{form}}") for m, s in zip(means, sds, strict=True))])
    heads = ["", *(str(k + 1) for k in range(len(found.weights)))]
    note = f"In order of weight. For each column, the mean ± sd in the table's units; covariances are {covariance}."
    return Section("Components", [Table(heads, lines)], note)


def rows_of(found: Components, rows: np.ndarray, likeliest: np.ndarray) -> Section:
    """A figure of the rows, coloured by their most probable component, with the components' ellipses."""
    shown = most_distinct(found)
    some = np.linspace(0, len(rows) - 1, min(DRAWN, len(rows))).astype(int)
    few = found._replace(
        names=[name if len(name) <= LABEL else f"{name[: LABEL - 1]}…" for name in np.array(found.names)[shown]],
        means=found.means[:, shown], covariances=found.covariances[:, shown][:, :, shown],
    )  # fmt: skip
    if len(shown) > 1:
        note = "Rows have the colour of their most probable component; an ellipse holds 90 % of each component. On the "
        note += "diagonal: the histogram of all rows, and the density of each component times its weight."
    else:
        note = "The histogram of all rows, and the density of each component times its weight."
    if len(shown) < len(found.names):
        note += f" Shown are the {len(shown)} columns, of {len(found.names)}, in which the components differ most."
    if len(some) < len(rows):
        note += f" Shown are {len(some):,} evenly spaced rows of {len(rows):,}."
    drawn = ellipses(few, rows[np.ix_(some, shown)], likeliest[some])
    return Section("Rows and components", [drawn], note, "chart pairs")


def most_distinct(found: Components) -> np.ndarray:
    """The indices, in order, of at most ``PAIRED`` columns in which the components differ most.

    They are the columns in which the components' means explain the largest share of the variance.
    """
    weights = found.weights[:, None]
    between = (weights * np.square(found.means - (weights * found.means).sum(0))).sum(0)
    within = (weights * np.square(found.sds)).sum(0)
    share = between / (between + within)
    return np.sort(np.argsort(-share, kind="stable")[:PAIRED])


@drawing("A criterion against the number of components", (3.7, 2.3))
def criterion(canvas: Canvas, tried: np.ndarray, values: np.ndarray, best: int, unsound: np.ndarray, noun: str) -> None:
    """Draw a criterion (k,) against the numbers of components that were tried.

    The chosen number is a filled dot. Fits that are ``unsound`` (n,) are crosses, which the line leaves out.
    """
    axes = canvas.subplots()
    sound, crossed = (which & np.isfinite(values) for which in (~unsound, unsound))
    axes.plot(tried[sound], values[sound], "o-", color=COLOURS[0], markerfacecolor=PAPER, markersize=4.5)
    axes.plot(tried[crossed], values[crossed], "x", color=BAD, markersize=5.5)
    if np.isfinite(values[best]):
        axes.plot(tried[best], values[best], "o", color=BAD if unsound[best] else COLOURS[0], markersize=8)
    axes.margins(x=0.05, y=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel(noun)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.6)


@drawing("Rows and components in every pair of columns", lambda found, *_: squares(1.75, 0.9, len(found.names)))
def ellipses(canvas: Canvas, found: Components, values: np.ndarray, likeliest: np.ndarray) -> None:
    """Draw rows (n, k) in every pair of columns, with ellipses that hold 90 % of each component.

    Rows have the colour of their most probable component (n,). A missing number is NaN.
    """
    circle = np.stack([np.cos(turn := np.linspace(0, 2 * np.pi, 73)), np.sin(turn)])
    radius = np.sqrt(stats.chi2.ppf(0.9, 2))
    every = [COLOURS[i % len(COLOURS)] for i in range(len(found.weights))]

    def alone(axes: Axes, column: int) -> None:
        there = values[np.isfinite(values[:, column]), column]
        bins = int(np.clip(2 * len(there) ** (1 / 3), 8, 40))
        axes.hist(there, bins, density=True, color=MUTED, alpha=0.28, linewidth=0)
        for i, colour in enumerate(every):
            mean, sd = found.means[i, column], float(np.sqrt(found.covariances[i, column, column]))
            x = mean + sd * np.linspace(-3.5, 3.5, 120)
            axes.plot(x, found.weights[i] * stats.norm.pdf(x, mean, sd), color=colour)

    def pair(axes: Axes, column: int, row: int) -> None:
        at = [column, row]
        for i, colour in enumerate(every):
            if (its := likeliest == i).any():
                dots(axes, values[its, column], values[its, row], colour, 2.2, 0.5)
        for i, colour in enumerate(every):
            roots, basis = np.linalg.eigh(found.covariances[i][np.ix_(at, at)])
            x, y = found.means[i][at][:, None] + basis @ (radius * np.sqrt(np.maximum(roots, 0))[:, None] * circle)
            axes.plot(x, y, color=colour, linewidth=1.3)
            around = {"boxstyle": "circle,pad=0.12", "facecolor": PAPER, "edgecolor": colour, "linewidth": 0.8}
            x, y = found.means[i][at]
            axes.text(x, y, str(i + 1), color=colour, fontsize=7, ha="center", va="center", bbox=around)

    triangle(canvas, found.names, alone, pair)


@drawing(
    "Sequences in the colours of their most probable states",
    lambda states, rows, _: (WIDE, 0.5 + min(len(rows), SHOWN)),
)
def sequences(canvas: Canvas, states: States, rows: np.ndarray, paths: np.ndarray) -> None:
    """Draw some of the sequences (n, T, d), one below another, coloured by their most probable states (n, T)."""
    column = 0
    if states.spreads is not None and len(states.share) > 1:
        column = int(np.argmax(states.values.var(0) / np.square(states.spreads).mean(0)))
    some = np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).astype(int)
    every = np.atleast_1d(canvas.subplots(len(some), sharex=True, sharey=True))
    for axes, index in zip(every, some, strict=True):
        last = int(np.sum(paths[index] >= 0))
        first = max(0, last - STEPS)
        step, values, path = np.arange(first, last), rows[index, first:last, column], paths[index, first:last]
        axes.plot(step + 1, values, color=MUTED, linewidth=0.6, alpha=0.6)
        for k in range(len(states.share)):
            here = path == k
            dots(axes, step[here] + 1, values[here], COLOURS[k % len(COLOURS)], 5.0, 0.9)
        axes.spines["left"].set_visible(False)
        axes.yaxis.set_major_locator(MaxNLocator(3))
    every[-1].set_xlabel("step")
