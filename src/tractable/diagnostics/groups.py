"""How accurate the integrals over groups' own parameters are."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Members
from tractable.core.check import Check
from tractable.core.integrals import rule
from tractable.core.model import Model
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.learnt import Learnt

PLACES, GROUPS = 16, 512  # most draws of θ, and most groups, that are examined
FINE, COARSE = 0.1, 0.5  # sd, in nats, of the log density's error over draws, up to which it is trust, and caution


def look(learnt: Learnt) -> list[Check]:
    """Compares the integrals with a finer rule's at draws of θ; no check for models without groups.

    An error of Σ_g log p(y_g | θ) tilts the posterior only as far as it differs between draws: the value is the error's
    sd over draws, in nats. For a point it is the error itself.
    """
    model, data = learnt.model, learnt.data
    places = learnt.belief.positions if learnt.point is None else learnt.point[None]
    if model.local is None or data is None or places is None or not places.size:
        return []
    flat = np.asarray(places).reshape(-1, model.space.size)
    flat = flat[np.unique(np.linspace(0, len(flat) - 1, min(len(flat), PLACES)).astype(int))]
    some = data.take(np.unique(np.linspace(0, data.size - 1, min(data.size, GROUPS)).astype(int)))
    errors = np.asarray(_errors(model, jnp.asarray(flat), some.rows), np.float64).sum(1) * data.size / some.size
    error = float(errors.std() if len(errors) > 1 else abs(errors[0]))
    verdict = "trust" if error <= FINE else "caution" if error <= COARSE else "reject"
    sentence = f"nats by which a finer rule changes the log density (sd over draws), from {some.size} groups"
    if verdict != "trust":
        sentence += ": given its rows, a group's own parameters are far from normal; give each group fewer"
    return [Check("group integrals", error, verdict, sentence)]


@compiled("model", if_few=COMPILE_FASTEST)
def _errors(model: Model, positions: jax.Array, rows: tuple[jax.Array, Members]) -> jax.Array:
    """(s, groups) log p(y_g | θ_s) by a finer rule, minus that by the model's own rule."""

    def one(position: jax.Array) -> jax.Array:
        params = model.params(position)
        finer = rule(model.given(params).space.size, finer=True)
        both = [
            model.over_groups(lambda own, places, logs: jax.nn.logsumexp(logs), params, rows, nodes)
            for nodes in (None, lambda g: finer)
        ]
        return both[1] - both[0]

    return jax.lax.map(one, positions)
