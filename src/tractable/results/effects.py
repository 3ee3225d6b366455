"""A linear model's weights in the units and names of the table that it was fitted to."""

import jax
import numpy as np
import pandas as pd

from tractable.beliefs.belief import weighted_quantiles
from tractable.data.encoder import Encoder
from tractable.results.posterior import Posterior

FURTHEST = 20  # levels of pooled columns that are told
SCALES = {  # what one unit of an effect is, by family; of a number the target's own units
    "lognormal": "log of the target", "gamma": "log of the mean", "weibull": "log of the time",
    "exponential": "log of the time", "poisson": "log of the rate",
    "negative-binomial": "log of the rate", "bernoulli": "log odds", "beta": "log odds of the mean",
    "categorical": "log odds", "ordered": "log odds of a higher grade",
}  # fmt: skip


def effects(posterior: Posterior, encoder: Encoder | None) -> pd.DataFrame | None:
    """What each input does, a row an effect: mean, sd and the middle 90 %; None of a model without linear weights.

    Of a number what one unit more of it adds to η (of a normal target to y); of True/False from one to the other; of a
    level how far it lies from the mean of the levels; of a cycle how far each time lies from the mean of the cycle.
    With several classes an effect is of each, against the mean of the classes. Of points and of runs that kept moments
    alone, the sd of an effect that is made of several weights is NaN.

    A formula's effects are parameters themselves: those of its columns, and the sd of each effect that groups have.
    Of several targets each one's are told in its own units, under "x · target".
    """
    if encoder is not None and encoder.formula is not None:
        columns = ("mean", "sd", "5%", "95%")
        told = posterior.summary()
        kept = [name for name in effect_names(posterior, encoder) if name in told.index]
        return pd.DataFrame(told.loc[kept, [c for c in columns if c in told]]).rename_axis("effect")
    if encoder is None:
        return None
    parts = parts_of(posterior, encoder)
    if len(parts) != len(encoder.targets):
        return None
    each = (_of_one(posterior, one, part) for one, part in zip(encoder.each, parts, strict=True))
    found = [table for table in each if table is not None]
    return pd.concat([*found, *_of_levels(posterior, encoder)]) if len(found) == len(parts) else None


def _of_levels(posterior: Posterior, encoder: Encoder) -> list[pd.DataFrame]:
    """Of pooled columns the sds of their levels, and the levels that lie furthest from none."""
    if not encoder.levels:
        return []
    told, sds = posterior.summary(derived=False), [f"sd({term.name})" for term in encoder.levels]
    told = told[[name for name in ("mean", "sd", "5%", "95%") if name in told]]
    told = told.loc[posterior.model.labels["levels"]] if posterior.model.labels else told
    told = told * encoder.target.sd ** (encoder.target.family == "normal")
    own = told.drop(
        index=[*sds, *told.index.intersection(["intercept"]), *(term.labels[-1] for term in encoder.levels)]
    )
    far = (own["mean"] / own["sd"].where(own["sd"] > 0, 1.0)).abs().sort_values(ascending=False, kind="stable")
    return [pd.concat([told.loc[sds], own.loc[far.index[:FURTHEST]]]).rename_axis("effect")]


def effect_names(posterior: Posterior, encoder: Encoder) -> list[str]:
    """Of a formula, names of its effects among the posterior's: "x", "sd(1|g)"; of several parts "part.x"."""
    sds = [f"sd({term.name})" for term in encoder.formula.terms] if encoder.formula is not None else []
    names = [name for name in (*encoder.features, *sds) if name != "Intercept"]
    return [part + name for part in parts_of(posterior, encoder) for name in names]


def parts_of(posterior: Posterior, encoder: Encoder) -> list[str]:
    """How names of parameters begin, of each of several targets, or of a formula's classes; "" of one."""
    if encoder.others and posterior.model.parts is not None:
        return [f"{aim.name}." for aim in encoder.targets]
    if encoder.formula is not None and encoder.target.family == "categorical":
        return [f"{label}." for label in encoder.target.classes[1:]]
    return [""]


def _of_one(posterior: Posterior, encoder: Encoder, part: str) -> pd.DataFrame | None:
    """Of one target, whose parameters' names begin with ``part``."""
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
    table["sd"] = np.sqrt(np.average(np.square(away), axis=0, weights=weights) * _unbiased(len(flat), weights))
    return pd.DataFrame(table | {"5%": low, "95%": high}, index=pd.Index(index, name="effect"))


def _unbiased(count: int, weights: np.ndarray | None) -> float:
    return count / max(count - 1, 1) if weights is None else 1.0


def _shape(posterior: Posterior, part: str) -> tuple[int, ...] | None:
    """Of the parameter ``weights``, where it is one array; None elsewhere. Unconstrained it may hold fewer numbers."""
    shapes = jax.eval_shape(posterior.model.example, jax.random.key(0))
    shapes = shapes.get(part.removesuffix(".")) if part and isinstance(shapes, dict) else shapes
    found = shapes.get("weights") if isinstance(shapes, dict) else None
    return getattr(found, "shape", None)
