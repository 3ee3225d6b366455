"""The sections of a network's page: its weights, layer by layer, and an ensemble's members."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, Normal, kl_divergence
from numpyro.distributions.transforms import Transform

from tractable.core import approximations
from tractable.core.causes import base_of
from tractable.core.model import is_distribution
from tractable.pages.parameters import is_ensemble, is_weight, listed
from tractable.pages.sections import Cell, Section, Table
from tractable.posterior.posterior import Posterior

KL_DRAWS = 200  # how many draws estimate the KL divergence of an array of weights whose prior is not normal
MEMBERS = (
    "The members are separate solutions from different starts, with equal weights in predictions. The differences of "
    "their predictions are the ensemble's uncertainty; the spread of a single parameter says little."
)


def table_of(posterior: Posterior) -> Table:
    """A table of a network's arrays of weights: their sizes, and KL(q ‖ prior) in nats if q is a product of normals.

    A nat is the unit of the natural logarithm.
    """
    model, normals, rows = posterior.model, marginals(posterior), []
    priors, sds = jax.tree.leaves(model.prior, is_leaf=is_distribution), jax.tree.leaves(posterior.sd())
    leaves = jax.tree_util.tree_flatten_with_path(posterior.mean())[0]
    weights = [i for i, (path, _) in enumerate(leaves) if is_weight(model, path)]
    bijectors, unbounded = model.bijectors, model.unbounded  # computed here, so that no JAX trace keeps them

    @jax.jit
    def divergences(normals: list[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
        return [divergence(*normals[i], priors[i], bijectors[i], unbounded[i]) for i in weights]

    from_prior = dict(zip(weights, divergences(normals), strict=True)) if normals else {}
    for i in weights:
        path, mean = leaves[i]
        size, sd = np.abs(np.asarray(mean, np.float64)), np.asarray(sds[i], np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = [np.mean(size), np.mean(sd), np.mean(size / sd)]
        if normals:
            kl = float(from_prior[i])
            values += [kl, kl / size.size]
        cells = (Cell(float(value), ".3g" if abs(value) < 1000 else ",.0f") for value in values)
        name = jax.tree_util.keystr(path[1:], simple=True, separator=".") or "weights"
        rows.append([name, Cell(size.size, ",d"), *cells])
    more = ["KL from prior", "per weight"] if normals else []
    return Table(["weights", "count", "mean |μ|", "mean σ", "mean |μ|/σ", *more], rows, layout="wide")


def marginals(posterior: Posterior) -> list[tuple[jax.Array, jax.Array]]:
    """The mean and sd of every unconstrained parameter if q is a product of normals; else an empty list."""
    fitted = posterior.fitted
    if fitted is None or set(fitted.phi) != {"mean", "rho"}:
        return []
    phi = jax.tree.map(jnp.asarray, fitted.phi)
    q, unravel = approximations.of(fitted.family, phi), posterior.model.space.unravel
    return list(zip(*(jax.tree.leaves(unravel(moment(phi))) for moment in (q.mean, q.sd)), strict=True))


def divergence(mean: jax.Array, sd: jax.Array, prior: Distribution, bijection: Transform, unbounded: bool) -> jax.Array:
    """KL(N(mean, sd²) ‖ prior) in nats, over one parameter's unconstrained numbers.

    It is exact for a normal prior, and is estimated from draws for another prior.
    """
    q, base = Normal(mean, sd), base_of(prior)
    if isinstance(base, Normal) and unbounded:
        loc, scale = (jnp.broadcast_to(jnp.asarray(a), mean.shape) for a in (base.loc, base.scale))
        return jnp.sum(kl_divergence(q, Normal(loc, scale)))
    draws: Any = q.sample(jax.random.key(0), (KL_DRAWS,))

    def log_prior(z: jax.Array) -> jax.Array:
        value = bijection(z)
        return jnp.sum(prior.log_prob(value)) + jnp.sum(bijection.log_abs_det_jacobian(z, value))

    return jnp.mean(jnp.sum(q.log_prob(draws).reshape(KL_DRAWS, -1), 1) - jax.vmap(log_prior)(draws))


def layers(posterior: Posterior) -> list[Section]:
    """A table of the network's layers."""
    if not posterior.model.network_weights or listed(posterior.model).all():
        return []
    table = table_of(posterior)
    note = "μ and σ are a weight's mean and sd. Single weights mean little, because hidden units can be exchanged."
    note += " σ is how far members differ." if is_ensemble(posterior) else " |μ|/σ is low if the data said little."
    if "KL from prior" in table.heads:
        note += " KL(q ‖ prior), in nats, measures how much the data changed the weights; the ELBO subtracts it."
    return [Section("Layers", [table], note)]


def members(posterior: Posterior) -> list[Section]:
    """A table of an ensemble's members."""
    if not is_ensemble(posterior):
        return []
    heights = (posterior.found.get(f"objective {i}", math.nan) for i in range(posterior.chains))
    rows = [[i + 1, Cell(float(height), ",.2f")] for i, height in enumerate(heights)]
    return [Section("Members", [Table(["member", "log posterior density, in nats"], rows)], MEMBERS)]
