"""Effects of the many levels of a text column, which are drawn towards each other as far as the rows say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core import Model, Through
from tractable.data.formula import Term
from tractable.models.coordinates import Coordinates, Effects
from tractable.tools.errors import ModelError

WIDE = 2.5  # prior sd of a learnt sd


def with_levels(model: Model, terms: Sequence[Term], rows: Sequence[np.ndarray], spreads: Sequence[float]) -> Model:
    """The model with an effect of each level of some columns; its data are given ``{"x": …, "level": (T,)}``.

        η = what the model's own predictor says of x + Σ_t u_t[level_t],  u_t[k] ~ N(0, sd_t²),  sd_t ~ HalfNormal(2.5)

    Few rows of a level, and its effect is near that of the mean level; many, and it is their own (partial pooling:
    Gelman & Hill 2007, chapter 12). The last level of each term is that of levels never seen: N(0, sd_t²).

    Args:
        model: whose likelihood goes ``Through`` a predictor of one number.
        terms: T columns, and where the effects of their levels lie among all.
        rows: of each column (K + 1,), how many rows each level has.
        spreads: guesses of each sd_t in sds of the noise, by which coordinates are chosen; the model is the same.

    Returns:
        A Model with ``levels`` in place of the intercept, which is its first number, under names such as "sd(1|city)",
        "1|city[Bonn]" and "1|city[new]".
    """
    through, count = model.through, len(terms)
    if through is None:
        raise ModelError("with_levels expects a model whose likelihood goes Through a predictor; this one does not.")
    predictor, observe = through.predictor, through.observe
    # A level that many rows tell is its rows' own: the intercept and its effect are one coordinate, their sum.
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
        return eta + jnp.sum(each[p + count :][given["level"]])

    labels = ["intercept"] * p + [
        *(f"sd({term.name})" for term in terms),
        *(label for term in terms for label in term.labels),
    ]
    prior = {name: prior for name, prior in model.prior.items() if name != "intercept"} | {"levels": Effects(plan)}
    return replace(model, prior=prior, likelihood=Through(shifted, observe), labels={"levels": labels})
