"""The effects of a table's columns, by strength: as a title, a sentence, figures and a table."""

import math
from typing import Any, NamedTuple

import numpy as np

from tractable.core.view import Label
from tractable.pages import plots
from tractable.pages.sections import Cell, Figure, Section, Table, text
from tractable.posterior.posterior import Posterior
from tractable.tables.columns import STATIONS, WEEKDAYS, YEAR, Column
from tractable.tables.effects import SCALES, effects, parts_of
from tractable.tables.encoder import Encoder, encode
from tractable.tables.targets import PLAIN

LINES = 40  # the largest number of lines in the figure
DOES = {  # what an effect does to a target, by the scale of the effects
    "": "changes {} by", "log of the target": "multiplies {} by", "log of the time": "multiplies {} by",
    "log of the mean": "multiplies the mean of {} by", "log of the rate": "multiplies the rate of {} by",
    "log odds": "multiplies the odds of {} by", "log odds of the mean": "multiplies the odds of the mean of {} by",
    "log odds of a higher grade": "multiplies the odds of a higher {} by",
}  # fmt: skip


class Input(NamedTuple):
    """What changes if an effect applies."""

    column: str  # the column of the table, or the term of the formula
    change: str  # how the column changes, such as "one more unit" or the name of a level
    words: str  # the change for a sentence
    span: float = 1.0  # by how much an effect is multiplied to compare inputs: for a number its sd
    time: str = ""  # the part of a date
    is_spread: bool = False  # whether the number is an sd between groups, or a correlation


class Effect(NamedTuple):
    """The effect of an input on one target, or on one of several classes."""

    input: Input
    part: str  # the target or the class; "" if there is one
    values: dict[str, float]  # "mean", "sd" and, if known, "5%" and "95%"
    unit: float  # by what an effect is divided to compare targets

    @property
    def interval(self) -> tuple[float, float, float]:
        """The mean and the ends of the interval, for the change that makes inputs comparable."""
        mean, sd = self.values["mean"], float(np.nan_to_num(self.values["sd"]))
        ends = self.values.get("5%", mean - 1.645 * sd), self.values.get("95%", mean + 1.645 * sd)
        middle, low, high = (self.input.span * value / self.unit for value in (mean, *ends))
        return middle, low, high

    @property
    def strength(self) -> tuple[float, float]:
        """The smallest size within the interval, and the size of the mean."""
        middle, low, high = self.interval
        return (0.0, 0.0) if self.input.is_spread else (max(low, -high, 0.0), abs(middle))

    @property
    def label(self) -> str:
        change = "one more sd" if self.input.span != 1 else self.input.change
        return f"{self.part}: {change}" if self.part else change


def title_of(encoder: Encoder) -> str:
    """What is predicted from what, such as "Tickets predicted from age, region and 7 other columns"."""
    names = list(dict.fromkeys(encoder.names if encoder.formula is None else encoder.formula.names))
    if len(names) > 3:
        names = [*names[:2], f"{len(names) - 2} other columns"]
    aims = in_words([aim.name for aim in encoder.targets])
    return f"{aims.capitalize() if aims.islower() else aims} predicted from {in_words(names) or 'no other column'}"


def in_words(names: list[str]) -> str:
    """Names as text, such as "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def effects_of(posterior: Posterior, encoder: Encoder | None) -> list[list[Effect]]:
    """The effects, a list for each column of the table, with the strongest first; empty for other models."""
    table = effects(posterior, encoder)
    if table is None or encoder is None:
        return []
    inputs = _inputs_of_formula(encoder) if encoder.formula is not None else _inputs_of_columns(encoder)
    sds = np.ones(len(encoder.targets))
    if encoder.others and encoder.target.family == "normal":  # each target has units of its own
        sds = np.ones_like(sds) * encoder.units[0]
    known = {
        part + name: (part.removesuffix("."), each, sds[i] if encoder.others else 1.0)
        for i, part in enumerate(parts_of(encoder)) for name, each in inputs.items()
    }  # fmt: skip
    groups: dict[str, list[Effect]] = {}
    for name, values in table.to_dict("index").items():
        part, its, unit = known[str(name)]
        groups.setdefault(its.column, []).append(Effect(its, part, {str(k): float(v) for k, v in values.items()}, unit))
    sorted_groups = [sorted(group, key=lambda each: each.strength, reverse=True) for group in groups.values()]
    return sorted(sorted_groups, key=lambda group: group[0].strength, reverse=True)


def _inputs_of_formula(encoder: Encoder) -> dict[str, Input]:
    formula: Any = encoder.formula
    sds = dict(zip(encoder.features, encode(encoder, formula.table).x.std(0), strict=True))
    out = {
        name: Input(label.term, "one more unit", f"one more unit of {label.term}", float(sds.get(label, 1.0)))
        if label.level is None
        else Input(label.term, label.level, f"{label.term} = {label.level}, compared with its first level,")
        for name, label in ((str(label), label) for label in formula.labels)
    }
    for term in formula.terms:
        of = "" if term.slope == "1" else f" of the effect of {term.slope}"
        out[f"sd({term.name})"] = Input(term.factor, f"sd{of} between groups", "", is_spread=True)
    for name in formula.correlations:
        out[name] = Input(name.partition(": ")[0], name.partition(": ")[2], "", is_spread=True)
    return out


def _inputs_of_columns(encoder: Encoder) -> dict[str, Input]:
    names = iter(encoder.effects[0] if encoder.columns else [])
    out = {}
    for column in encoder.columns:
        for label, row in zip(*column.effects(), strict=True):
            out[str(next(names))] = _input(column, label, row)
    for term in encoder.levels:
        out[f"sd({term.name})"] = Input(term.factor, "sd between its levels", "", is_spread=True)
        out |= {str(label): _level(term.factor, str(label.level)) for label in term.labels}
    return out


def _level(column: str, level: str) -> Input:
    return Input(column, level, f"{column} = {level}, compared with the mean of all levels,")


def _input(column: Column, label: Label, row: np.ndarray) -> Input:
    name, part = column.name, column.part
    if part in STATIONS:
        return Input(name, str(label.level), f"{name} at {label.level}, compared with the mean time,", time=part)
    if column.kind == "text":
        return _level(name, str(label.level))._replace(time=part)
    if label.term == column.absent:
        return Input(name, "missing", f"a missing {name}")
    if column.kind == "boolean":
        no, yes = column.levels or ("False", "True")
        return Input(name, f"{yes} instead of {no}", f"{name} = {yes} instead of {no}")
    change = f"one more {'year' if part == 'trend' else 'day' if part else 'unit'}"
    return Input(name, change, f"{change} of {name}", 1 / float(row[row != 0][0]), part * (part == "trend"))


def scale_of(encoder: Encoder) -> str:
    """The words for the scale of the effects, such as "log odds"; "" for the target's own units."""
    return "" if encoder.target.family in PLAIN else SCALES[encoder.target.family]


def sentence(groups: list[list[Effect]], encoder: Encoder) -> str:
    """The strongest effect in words; effects on a log scale are shown as factors."""
    strongest = max((each for group in groups for each in group), key=lambda each: each.strength, default=None)
    if strongest is None or strongest.input.is_spread:
        return ""
    target, scale = strongest.part or encoder.target.name, scale_of(encoder)
    if encoder.target.family == "bernoulli" and encoder.target.classes:
        target = f"{target} = {encoder.target.classes[1]}"
    mean, low, high = (value * strongest.unit / strongest.input.span for value in strongest.interval)
    if scale:
        mean, low, high = (math.exp(min(value, 700.0)) for value in (mean, low, high))
    form = f".{_places((high - low) / 3.3)}f" if high > low else None
    mean, low, high = (text(value, form, "−") for value in (mean, low, high))
    about = f" (90 % of the posterior: {low} to {high})" if low != high else ""
    begin = "The strongest effect" if strongest.strength[0] else "No effect differs clearly from 0; the largest"
    return f"{begin}: {strongest.input.words} {DOES[scale].format(target)} {mean}{about}."


def _places(sd: float) -> int:
    """The number of decimal places that shows one digit of an sd."""
    return min(8, max(0, -math.floor(math.log10(sd)))) if 0 < sd < math.inf else 2


def sections(groups: list[list[Effect]], encoder: Encoder | None) -> list[Section]:
    """The figures and the table of the effects."""
    if encoder is None or not groups:
        return []
    unit = f"the {scale_of(encoder)}" if scale_of(encoder) else f"units of {encoder.target.name}"
    if encoder.others and encoder.target.family == "normal":
        unit = "units of its target"
    elif encoder.target.family == "categorical" and encoder.formula is not None:
        unit = f"{unit} against {encoder.target.classes[0]}"
    other = "the mean of all levels" if encoder.formula is None else "the level that is not listed"
    note = f"Effects are in {unit}; that of a level is its difference from {other}. The strongest inputs come first: "
    note += "those whose 90 % interval, which the bars show, is furthest from 0. To compare inputs, the figure shows "
    note += "the effect of one more sd of a number"
    note += ", in sds of each target." if encoder.others and encoder.target.family == "normal" else "."
    return [Section("Effects", [*figure(groups), *curves(groups, encoder), table_of(groups)], note)]


def table_of(groups: list[list[Effect]]) -> Table:
    """A table with a row for each effect that has no curve."""
    shown = [each for group in groups for each in group if each.input.time in ("", "trend")]
    parted, rows = any(each.part for each in shown), []
    for effect in shown:
        sd = effect.values["sd"]
        form = f".{1 + _places(sd if sd > 0 else abs(effect.values['mean']))}f"
        first = [effect.input.column, *([effect.part] if parted else []), effect.input.change]
        rows.append([*first, *(Cell(value, form) for value in effect.values.values())])
    heads = ["input", *(["of"] if parted else []), "change"]
    return Table([*heads, *groups[0][0].values], rows, heads[1:])


def figure(groups: list[list[Effect]]) -> list[Figure]:
    """A figure of the effects with intervals, those of one column under its name; dates have figures of their own."""
    lines: list[tuple[str, Any, bool]] = []
    for group in groups:
        effects = [each for each in group if not each.input.time and "correlation" not in each.input.change]
        if len(effects) == 1:
            lines.append((effects[0].input.column, effects[0].interval, True))
        elif effects:
            lines.append((effects[0].input.column, (np.nan,) * 3, True))
            lines += [(each.label, each.interval, False) for each in effects]
    if not lines:
        return []
    labels, intervals, bold = zip(*lines[:LINES], strict=True)
    left_out = f", the first {LINES} lines of {len(lines)}" if len(lines) > LINES else ""
    return [plots.forest(labels, np.array(intervals), bold, caption=f"By strength{left_out}")]


def curves(groups: list[list[Effect]], encoder: Encoder) -> list[Figure]:
    """The effects of dates as curves over time, over the year, the week and the day."""
    drawn = []
    columns = {(column.name, column.part): column for column in encoder.columns}
    times = [WEEKDAYS, *(names for names, _ in STATIONS.values())]
    order = {name: i for names in times for i, name in enumerate(names)}
    for group in groups:
        for part, time in dict.fromkeys((each.part, each.input.time) for each in group if each.input.time):
            here = [each for each in group if (each.part, each.input.time) == (part, time)]
            here.sort(key=lambda each: order.get(each.input.change, len(order)))
            name = here[0].input.column
            middle, low, high = np.array([each.interval for each in here]).T
            if time == "trend":
                column = columns[name, time]
                away = np.linspace(-2, 2, 41)
                x: Any = 1970 + (column.mean + away * column.sd) / YEAR
                middle, low, high = away * middle, *np.sort([away * low, away * high], 0)
            else:
                x = [each.input.change for each in here]
            caption = ", ".join(filter(None, [f"{name}: {time}", part]))
            drawn.append(plots.curve(x, middle, low, high, caption=caption))
    return drawn
