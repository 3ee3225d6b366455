"""A linear model's weights as effects, in the units and names of the fitted table."""

import jax
import numpy as np
import pandas as pd

from tractable.diagnostics.belief import weighted_quantiles
from tractable.posterior.posterior import Posterior
from tractable.tables.encoder import Encoder
from tractable.tables.targets import PLAIN

FURTHEST = 20  # how many levels of pooled columns (text of many levels) are listed: those with effects furthest from 0
SCALES = {  # the unit of an effect, by family; for normal and Student's t it is the target's own unit
    "lognormal": "log of the target", "gamma": "log of the mean", "weibull": "log of the time",
    "exponential": "log of the time", "poisson": "log of the rate",
    "negative-binomial": "log of the rate", "bernoulli": "log odds", "beta": "log odds of the mean",
    "categorical": "log odds", "ordered": "log odds of a higher grade",
}  # fmt: skip


def effects(posterior: Posterior, encoder: Encoder | None) -> pd.DataFrame | None:
    """A table with a row for each effect: mean, sd and the central 90 %; None if the model has no linear weights.

    The effect of a number is the change of the linear predictor η (of y, if normal) for one more unit. The effect of
    True/False is the change from False to True. The effect of a level is its difference from the mean of the levels,
    and the effect of a time in a cycle is its difference from the cycle's mean. With several classes, each class has
    its own effect, relative to the mean of the classes. For point estimates, and for runs that stored only moments, the
    sd of an effect that combines several weights is NaN.

    The effects of a formula are parameters themselves: the effects of its columns, and for each term such as 1|school
    the sd of its effects between groups. With several targets, each target's effects are in its own units and named
    "x · target".
    """
    if encoder is not None and encoder.formula is not None:
        columns = ("mean", "sd", "5%", "95%")
        table = posterior.summary()
        names = [name for name in effect_names(posterior, encoder) if name in table.index]
        return pd.DataFrame(table.loc[names, [c for c in columns if c in table]]).rename_axis("effect")
    if encoder is None:
        return None
    parts = parts_of(posterior, encoder)
    if len(parts) != len(encoder.targets):
        return None
    each = (_of_one(posterior, one, part) for one, part in zip(encoder.each, parts, strict=True))
    found = [table for table in each if table is not None]
    return pd.concat([*found, *_of_levels(posterior, encoder)]) if len(found) == len(parts) else None


def _of_levels(posterior: Posterior, encoder: Encoder) -> list[pd.DataFrame]:
    """For pooled columns, a table of the sds of their levels' effects, and of the effects that are furthest from 0."""
    if not encoder.levels:
        return []
    table, sds = posterior.summary(derived=False), [f"sd({term.name})" for term in encoder.levels]
    table = table[[name for name in ("mean", "sd", "5%", "95%") if name in table]]
    table = table.loc[posterior.model.labels["levels"]] if posterior.model.labels else table
    table = table * encoder.target.sd ** (encoder.target.family in PLAIN)
    own = table.drop(
        index=[*sds, *table.index.intersection(["intercept"]), *(term.labels[-1] for term in encoder.levels)]
    )
    far = (own["mean"] / own["sd"].where(own["sd"] > 0, 1.0)).abs().sort_values(ascending=False, kind="stable")
    return [pd.concat([table.loc[sds], own.loc[far.index[:FURTHEST]]]).rename_axis("effect")]


def effect_names(posterior: Posterior, encoder: Encoder) -> list[str]:
    """The names of a formula's effects in the posterior: "x", "sd(1|g)"; with several targets or classes "target.x"."""
    sds = [f"sd({term.name})" for term in encoder.formula.terms] if encoder.formula is not None else []
    names = [name for name in (*encoder.features, *sds) if name != "Intercept"]
    return [part + name for part in parts_of(posterior, encoder) for name in names]


def parts_of(posterior: Posterior, encoder: Encoder) -> list[str]:
    """The prefixes of the parameters' names for several targets, or for the classes of a formula; else [""]."""
    if encoder.others and posterior.model.parts is not None:
        return [f"{aim.name}." for aim in encoder.targets]
    if encoder.formula is not None and encoder.target.family == "categorical":
        return [f"{label}." for label in encoder.target.classes[1:]]
    return [""]


def _of_one(posterior: Posterior, encoder: Encoder, part: str) -> pd.DataFrame | None:
    """The effects on one target, whose parameters have names that begin with ``part``."""
    shape = _shape(posterior, part)
    if shape is None or shape[0] != len(encoder.features):
        return None
    names, rows = encoder.effects
    names = [f"{name} · {encoder.target.name}" for name in names] if part else names
    labels = [str(label) for label in encoder.target.classes] if len(shape) == 2 else []
    index = [f"{name} · {label}" for name in names for label in labels] if labels else names
    at = [i for i, name in enumerate(posterior.names) if name.startswith(f"{part}weights[")]

    def combined(flat: np.ndarray) -> np.ndarray:
        weights = flat[..., at].reshape(*flat.shape[:-1], *shape)
        return np.moveaxis(np.tensordot(weights, rows, (flat.ndim - 1, 1)), -1, flat.ndim - 1).reshape(
            *flat.shape[:-1], -1
        )

    mean, sd = posterior.flat_moments
    table = {"mean": combined(np.asarray(mean, np.float64))}
    if posterior.unconstrained is None or not posterior.count:
        alone = np.repeat(np.count_nonzero(rows, axis=1) == 1, len(index) // len(names))
        return pd.DataFrame(
            table | {"sd": np.where(alone, np.abs(combined(np.asarray(sd, np.float64))), np.nan)},
            index=pd.Index(index, name="effect"),
        )
    flat = combined(posterior.values.reshape(-1, len(posterior.names)).astype(np.float64))
    weights = None if posterior.weights is None else posterior.weights.ravel()
    low, high = weighted_quantiles(flat, [0.05, 0.95], weights)
    away = flat - table["mean"]
    unbiased = len(flat) / max(len(flat) - 1, 1) if weights is None else 1.0
    table["sd"] = np.sqrt(np.average(np.square(away), axis=0, weights=weights) * unbiased)
    return pd.DataFrame(table | {"5%": low, "95%": high}, index=pd.Index(index, name="effect"))


def _shape(posterior: Posterior, part: str) -> tuple[int, ...] | None:
    """The shape of the (constrained) parameter ``weights``, if it is one array; else None."""
    shapes = jax.eval_shape(posterior.model.example, jax.random.key(0))
    shapes = shapes.get(part.removesuffix(".")) if part and isinstance(shapes, dict) else shapes
    found = shapes.get("weights") if isinstance(shapes, dict) else None
    return getattr(found, "shape", None)
