"""Checks how accurate the numerical integrals over each group's own parameters are."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Members
from tractable.core.check import Check
from tractable.core.integrals import rule
from tractable.core.model import Model
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.learnt import Learnt

PLACES, GROUPS = 16, 512  # maximum number of draws of θ, and of groups, that are examined
FINE, COARSE = 0.1, 0.5  # nats; the sd of the log density's error over draws is trusted up to FINE, caution to COARSE


def look(learnt: Learnt) -> list[Check]:
    """Compares the integrals with those of a finer quadrature rule at draws of θ; no check for models without groups.

    A constant error of Σ_g log p(y_g | θ) does not change the posterior; only differences between draws do. The check's
    value is therefore the error's sd over draws, in nats. For a point estimate it is the error's absolute value.
    """
    model, data = learnt.model, learnt.data
    places = learnt.belief.positions if learnt.point is None else learnt.point[None]
    if model.local is None or data is None or places is None or not places.size:
        return []
    flat = np.asarray(places).reshape(-1, model.space.size)
    flat = flat[np.unique(np.linspace(0, len(flat) - 1, min(len(flat), PLACES)).astype(int))]
    groups = data.take(np.unique(np.linspace(0, data.size - 1, min(data.size, GROUPS)).astype(int)))
    errors = np.asarray(_errors(model, jnp.asarray(flat), groups.rows), np.float64).sum(1) * data.size / groups.size
    error = float(errors.std() if len(errors) > 1 else abs(errors[0]))
    verdict = "trust" if error <= FINE else "caution" if error <= COARSE else "reject"
    sentence = f"nats by which a finer rule changes the log density (sd over draws), from {groups.size} groups"
    if verdict != "trust":
        sentence += ": given its rows, a group's own parameters are far from normal; use fewer parameters per group"
    return [Check("group integrals", error, verdict, sentence)]


@compiled("model", if_few=COMPILE_FASTEST)
def _errors(model: Model, positions: jax.Array, rows: tuple[jax.Array, Members]) -> jax.Array:
    """(s, groups) log p(y_g | θ_s) by a finer quadrature rule, minus its value by the model's own rule."""

    def error(position: jax.Array) -> jax.Array:
        params = model.params(position)
        fine_rule = rule(model.given(params).space.size, finer=True)
        values = [
            model.over_groups(lambda z, logs: jax.nn.logsumexp(logs), params, rows, nodes)
            for nodes in (None, lambda g: fine_rule)
        ]
        return values[1] - values[0]

    return jax.lax.map(error, positions)
