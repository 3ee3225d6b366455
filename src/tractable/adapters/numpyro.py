"""NumPyro models as they are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer.util import log_density

from tractable.core import Model
from tractable.tools.errors import ModelError

PyTree = Any


def from_numpyro(model: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Model:
    """The posterior of a NumPyro model, its data bound in ``args`` and ``kwargs``.

    The result is a log density over the model's latent sites with their supports, so points and exact samplers apply:
    ``tr.infer(from_numpyro(model, x, y), None, tr.NUTS())``. Minibatch methods need to see single data: write the model
    as ``tr.Model`` for those.

    Raises:
        ModelError: discrete latent sites, subsampled plates, or no latent site at all.

    >>> import numpyro, numpyro.distributions as dist, tractable as tr
    >>> def coin(flips):
    ...     theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    ...     numpyro.sample("flips", dist.Bernoulli(theta).expand([len(flips)]), obs=flips)
    >>> from_numpyro(coin, jnp.array([1, 0, 1])).names
    ['theta']
    """
    trace = handlers.trace(handlers.seed(model, jax.random.key(seed))).get_trace(*args, **kwargs)
    for name, site in trace.items():
        if site["type"] == "plate" and site["args"][0] > (site["args"][1] or site["args"][0]):
            raise ModelError(
                f"The plate {name!r} subsamples {site['args'][1]} of {site['args'][0]} rows, which would make every "
                "density a noisy one. Drop subsample_size, or write the model as tr.Model for minibatch methods."
            )
    sites = {name: site for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}
    if not sites:
        raise ModelError("This NumPyro model has no latent site: nothing is unknown. Did all of them get obs=?")
    for name, site in sites.items():
        if site["fn"].support.is_discrete:
            raise ModelError(
                f"The latent site {name!r} is discrete ({type(site['fn']).__name__}); the methods here move in a "
                "continuous space. Sum it out of the model."
            )

    def joint(params: PyTree) -> jax.Array:
        return jnp.asarray(log_density(model, args, kwargs, params)[0])

    position = {name: jnp.asarray(site["value"]) for name, site in sites.items()}
    return Model.from_log_density(joint, position, {name: site["fn"].support for name, site in sites.items()})
