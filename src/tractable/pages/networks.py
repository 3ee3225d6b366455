"""The sections of a network's page: its weights, layer by layer, and an ensemble's members."""

import math

import jax
import numpy as np

from tractable.pages.parameters import is_ensemble, is_weight, listed_mask
from tractable.pages.sections import Cell, Section, Table
from tractable.posterior.posterior import Posterior

MEMBERS = (
    "The members are separate solutions from different starts, with equal weights in predictions. The differences of "
    "their predictions are the ensemble's uncertainty; the spread of a single parameter says little."
)


def table_of(posterior: Posterior) -> Table:
    """A table of a network's arrays of weights and their sizes."""
    leaves, rows = jax.tree_util.tree_flatten_with_path(posterior.mean())[0], []
    for (path, mean), sd in zip(leaves, jax.tree.leaves(posterior.sd()), strict=True):
        if is_weight(posterior.model, path):
            size, sd = np.abs(np.asarray(mean, np.float64)), np.asarray(sd, np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                values = [np.mean(size), np.mean(sd), np.mean(size / sd)]
            name = jax.tree_util.keystr(path[1:], simple=True, separator=".") or "weights"
            rows.append([name, Cell(size.size, ",d"), *(Cell(float(value), ".3g") for value in values)])
    return Table(["weights", "count", "mean |μ|", "mean σ", "mean |μ|/σ"], rows)


def layers(posterior: Posterior) -> list[Section]:
    """A table of the network's layers."""
    if not posterior.model.network_weights or listed_mask(posterior.model).all():
        return []
    note = "μ and σ are a weight's mean and sd. Single weights mean little, because hidden units can be exchanged."
    note += " σ is how far members differ." if is_ensemble(posterior) else " |μ|/σ is low if the data said little."
    return [Section("Layers", [table_of(posterior)], note)]


def members(posterior: Posterior) -> list[Section]:
    """A table of an ensemble's members."""
    if not is_ensemble(posterior):
        return []
    heights = (posterior.found.get(f"objective {i}", math.nan) for i in range(posterior.chains))
    rows = [[i + 1, Cell(float(height), ",.2f")] for i, height in enumerate(heights)]
    return [Section("Members", [Table(["member", "log posterior density, in nats"], rows)], MEMBERS)]
