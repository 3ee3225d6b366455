"""Adds an effect for each of the many levels of a text column, with partial pooling."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.errors import ModelError
from tractable.core.model import Model, Through
from tractable.core.view import Label, unique_labels
from tractable.tables.coordinates import Coordinates, Effects

NEW = "new"  # the group of a factor that stands for all groups that were not in training
WIDE = 2.5  # the scale of the half-normal prior of the sd of levels' effects


class Term(NamedTuple):
    """An effect with its own value in each group of a factor."""

    name: str  # "1|school", "x|school"
    factor: str  # "school"
    groups: tuple[str, ...]  # the groups in training, and then NEW
    start: int  # index of the first group's effect in u, the vector of all group effects

    @property
    def labels(self) -> list[Label]:
        return [Label(self.name, group) for group in self.groups]

    @property
    def slope(self) -> str:
        """The column whose effect varies by group: "x", or "1" for an intercept."""
        return self.name.removesuffix(f"|{self.factor}")


def with_levels(model: Model, terms: Sequence[Term], rows: Sequence[np.ndarray], spreads: Sequence[float]) -> Model:
    """The model plus an effect for each level of some columns; the inputs of a row are ``{"x": …, "level": (T,)}``.

        η = predictor(x) + Σ_t u_t[level_t],  u_t[k] ~ N(0, sd_t²),  sd_t ~ HalfNormal(2.5)

    The effect of a level with few rows is close to 0, the effect of the mean level. The effect of a level with many
    rows is the one that these rows show. This is partial pooling: Gelman & Hill 2007, chapter 12. The last level of
    each term stands for levels that were not in training; its effect is N(0, sd_t²). A missing level, whose index lies
    beyond all effects, has the effect 0.

    Args:
        model: a model whose likelihood is a ``core.model.Through`` with a predictor of one number.
        terms: T terms, one for each column, with the index of its first effect.
        rows: for each column the number of rows of each level, (K + 1,); the last, for new levels, is 0.
        spreads: guesses of each sd_t in sds of the noise. They choose the coordinates in which methods move; the model
            does not depend on them.

    Returns:
        A Model with a parameter ``levels`` in place of the intercept: its first number is the intercept, and the others
        are named "sd(1|city)", "1|city[Bonn]", "1|city[new]".
    """
    through, count = model.through, len(terms)
    if through is None:
        raise ModelError("with_levels expects a model whose likelihood is Through a predictor; this one is not.")
    predictor, observe = through.predictor, through.observe
    # The rows of a level with many rows determine the sum of intercept and effect, so this sum is the coordinate.
    own: Any = model.prior.get("intercept")
    p = int(own is not None)
    centre, width = (np.full(p, value) for value in ((own.loc, own.scale) if own is not None else (0.0, 1.0)))
    plan = Coordinates(
        np.zeros(p), np.eye(p), -1, np.zeros(p), centre, width, {}, [dist.HalfNormal(WIDE)] * count,
        [many * spread**2 > 1 for many, spread in zip(rows, spreads, strict=True)], np.ones(count), np.ones((count, p)),
        np.zeros((count, count)), list(range(count)), None,
    )  # fmt: skip

    def shifted(params: dict[str, Any], given: dict[str, Any]) -> jax.Array:
        x = {name: value for name, value in given.items() if name != "level"}
        each = params["levels"]
        eta = predictor(params | {"intercept": each[0]} if p else params, x if len(x) > 1 else x["x"])
        return eta + jnp.sum(each[p + count :].at[given["level"]].get(mode="fill", fill_value=0.0))

    own_labels = [Label("intercept")] * p + [Label(f"sd({term.name})") for term in terms]
    labels = unique_labels([*own_labels, *(label for term in terms for label in term.labels)])
    prior = {name: prior for name, prior in model.prior.items() if name != "intercept"} | {"levels": Effects(plan)}
    return replace(model, prior=prior, likelihood=Through(shifted, observe), labels={"levels": labels})
