"""The effects of a table's columns on its target, in the units and names of the table."""

import pandas as pd

from tractable.posterior.posterior import Posterior
from tractable.tables.encoder import Encoder
from tractable.tables.targets import COUNTS

FURTHEST = 20  # how many levels of pooled columns (text of many levels) are listed: those with effects furthest from 0
SCALES = {  # the unit of an effect, by family; for normal and Student's t it is the target's own unit
    "lognormal": "log of the target", "gamma": "log of the mean", "weibull": "log of the time",
    "exponential": "log of the time", **dict.fromkeys(COUNTS, "log of the rate"),
    "bernoulli": "log odds", "beta": "log odds of the mean",
    "categorical": "log odds", "ordered": "log odds of a higher grade",
}  # fmt: skip


def effects(posterior: Posterior, encoder: Encoder | None) -> pd.DataFrame | None:
    """A table with a row for each effect: mean, sd and the central 90 %; None if the model has no linear weights.

    ``tables.models.view_of`` says what the effect of a column is; the effects of a formula are its parameters. For each
    term such as 1|school there is the sd of its effects between groups; for (1 + x | school) the correlation of both;
    and for text of many levels also the effects that are furthest from 0. Effects on several targets, or on several
    classes, are named "target.x". For point estimates, and for runs that stored only moments, the sd of an effect that
    combines several weights is NaN.
    """
    if encoder is None or not (names := effect_names(posterior, encoder)):
        return None
    table = posterior.summary(derived=False).rename_axis("effect")
    table = pd.DataFrame(table[[name for name in ("mean", "sd", "5%", "95%") if name in table]])
    if encoder.formula is not None or not encoder.levels:
        return table.loc[names]
    levels = table.loc[[label for term in encoder.levels for label in term.labels[:-1]]]  # without the level NEW
    far = (levels["mean"] / levels["sd"].where(levels["sd"] > 0, 1.0)).abs().sort_values(ascending=False, kind="stable")
    return pd.concat([table.loc[names], levels.loc[far.index[:FURTHEST]]])


def effect_names(posterior: Posterior, encoder: Encoder) -> list[str]:
    """The names of the effects among the posterior's numbers."""
    if encoder.formula is None:
        own = [*(encoder.effects[0] if encoder.columns else []), *(f"sd({term.name})" for term in encoder.levels)]
    else:
        own = [name for name in encoder.formula.labels if name != "Intercept"]
        own += [*(f"sd({term.name})" for term in encoder.formula.terms), *encoder.formula.correlations]
    wanted = {part + name for part in parts_of(encoder) for name in own}
    has_names = encoder.formula is not None or posterior.view is not None
    return [name for name in posterior.readings.names if name in wanted] if has_names else []


def parts_of(encoder: Encoder) -> list[str]:
    """The prefixes of the effects' names: those of several targets or of classes; else [""]."""
    if encoder.others:
        return [f"{aim.name}." for aim in encoder.targets]
    if encoder.target.family == "categorical":  # a formula's effects are against the first class
        return [f"{label}." for label in encoder.target.classes[encoder.formula is not None :]]
    return [""]
