"""Pages of networks: what is known about the weights, layer by layer, and an ensemble's members."""

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

KL_DRAWS = 200  # draws for the KL of a leaf whose prior is not normal
MEMBERS = (
    "Separate solutions from different starts, with equal weights in predictions. How far their predictions differ "
    "is the ensemble's uncertainty; the spread of a single parameter says little."
)


def table_of(posterior: Posterior) -> Table:
    """A network's weights, array by array: sizes, and for a mean field KL(q ‖ prior) in nats."""
    model, normals, rows = posterior.model, marginals(posterior), []
    priors, sds = jax.tree.leaves(model.prior, is_leaf=is_distribution), jax.tree.leaves(posterior.sd())
    leaves = jax.tree_util.tree_flatten_with_path(posterior.mean())[0]
    weights = [i for i, (path, _) in enumerate(leaves) if is_weight(model, path)]
    bijectors, unbounded = model.bijectors, model.unbounded  # found here, so that no trace keeps them

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
    more = ["KL from prior", "a weight"] if normals else []
    return Table(["weights", "count", "mean |μ|", "mean σ", "mean |μ|/σ", *more], rows, layout="wide")


def marginals(posterior: Posterior) -> list[tuple[jax.Array, jax.Array]]:
    """Mean and sd of every parameter, unconstrained, if q is independent normals; else an empty list."""
    fitted = posterior.fitted
    if fitted is None or set(fitted.phi) != {"mean", "rho"}:
        return []
    phi = jax.tree.map(jnp.asarray, fitted.phi)
    q, unravel = approximations.of(fitted.family, phi), posterior.model.space.unravel
    return list(zip(*(jax.tree.leaves(unravel(moment(phi))) for moment in (q.mean, q.sd)), strict=True))


def divergence(mean: jax.Array, sd: jax.Array, prior: Distribution, bijection: Transform, unbounded: bool) -> jax.Array:
    """KL(N(mean, sd²) ‖ prior) in nats, over one parameter's unconstrained numbers; by draws for other priors."""
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
    note = "Single weights mean little: hidden units can be exchanged."
    note += " σ is how far members differ." if is_ensemble(posterior) else " |μ|/σ is low where the data said little."
    if "KL from prior" in table.heads:
        note += " KL(q ‖ prior), in nats, is what was learnt: the price that the bound pays."
    return [Section("Layers", [table], note)]


def members(posterior: Posterior) -> list[Section]:
    """A table of an ensemble's members."""
    if not is_ensemble(posterior):
        return []
    heights = (posterior.found.get(f"objective {i}", math.nan) for i in range(posterior.chains))
    rows = [[i + 1, Cell(float(height), ",.2f")] for i, height in enumerate(heights)]
    return [Section("Members", [Table(["member", "log posterior density, in nats"], rows)], MEMBERS)]
