"""Makes models from NumPyro programs: one density, or a prior and a likelihood of each row."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from tractable.adapters.plates import Density, KnownProgram, Program, joint_values, scaled
from tractable.adapters.row_split import separate_rows
from tractable.core.errors import ModelError
from tractable.core.model import Data, Model, PyTree, counted_log_likelihoods
from tractable.core.words import listing, tell


def from_numpyro(model: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Model:
    """Turn a NumPyro model and its data into a Model that is one density and needs no data.

    The data are the arguments ``args`` and ``kwargs`` of the program. The result works for any program, with point
    estimates and with samplers that use all rows: ``tr.infer(from_numpyro(model, x, y), None, tr.NUTS())``. Minibatch
    methods, predictions and diagnostics per row need the model of ``split_numpyro`` instead. Deterministic sites become
    ``model.derived``. Plates that subsample run at full size. Discrete latent sites are summed over exactly: row by row
    if they are in the plate of the observed rows, and else jointly.

    Raises:
        ModelError: there is no latent site; the support of a site depends on another site; or discrete sites have too
            many values.

    >>> import numpyro, numpyro.distributions as dist, tractable as tr
    >>> def coin(flips):
    ...     theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    ...     numpyro.sample("flips", dist.Bernoulli(theta).expand([len(flips)]), obs=flips)
    >>> from_numpyro(coin, jnp.array([1, 0, 1])).names
    ['theta']
    """
    known = KnownProgram(Program(model, args, kwargs, seed))
    return _summed_density(known, *separate_rows(known)) if known.discrete else _joint_density(known, None)


def split_numpyro(model: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[Model, Data | None]:
    """Separate a NumPyro model into a prior, a likelihood of each row, and the rows.

        model, data = split_numpyro(program, x, y)
        tr.infer(model, data, tr.SGLD(batch_size=100)).predict(x_new)

    The rows are those of the plate, or of the batch axis, that holds the observed sites. To get the distribution of one
    row, the program runs with the values of all latent sites, and with one row of each argument that has a value per
    row. Of a latent site within the plate, it takes the value at that row. The prior is a dict of the sites'
    distributions if these are independent, and else a log density that can be sampled. ``handlers.scale`` becomes the
    weights of the rows. Discrete sites within the plate become the latent z of a ``LatentModel``, which is an index
    of their joint values. At random positions, the log density of every row is compared with NumPyro's; the split is
    used only if they are equal.

    Returns:
        ``model, data``. ``data.given`` is the argument that has rows, or a dict of such arguments by name. If a latent
        site has a value per row, ``data.given`` also holds the row numbers, under the plate's name. If the program
        does not run on one row, it runs on all rows and one of them is taken, with a warning. If the rows cannot be
        separated, the model is one density of all rows and the data are None; minibatch methods then raise an error
        that says why.

    Raises:
        ModelError: as for ``from_numpyro``.

    >>> import numpyro, numpyro.distributions as dist
    >>> def line(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    >>> model, data = split_numpyro(line, jnp.array([1.0, 2.0]), jnp.array([1.1, 1.9]))
    >>> model.names, data
    (['slope'], Data(2 rows, y=float32[2], given=float32[2]))
    """
    known = KnownProgram(Program(model, args, kwargs, seed))
    split, why = separate_rows(known)
    if split and why:
        tell(why)
    return split or ((_summed_density(known, None, why) if known.discrete else _joint_density(known, why)), None)


def _joint_density(known: KnownProgram, why: str | None, discrete: Mapping[str, Any] | None = None) -> Model:
    """The program as one density of its continuous sites, with the values ``discrete`` of the discrete sites."""

    def joint(params: PyTree) -> jax.Array:
        trace = known.program.trace((discrete or {}) | params)
        return sum((scaled(site) for site in trace.values() if site["type"] == "sample"), start=jnp.zeros(()))

    return Model.from_log_density(Density(joint, why), known.position, known.support, known.derived)


def _summed_density(known: KnownProgram, split: tuple[Model, Data] | None, why: str) -> Model:
    """One density in which the discrete sites are summed over.

    With a split the sum is taken for each row; without one it is taken over all joint values of the sites.
    """
    if split is not None:
        model, data = split

        def by_rows(params: PyTree) -> jax.Array:
            return model.log_prior(params) + jnp.sum(counted_log_likelihoods(model, params, data.arrays()))

        return Model.from_log_density(Density(by_rows), known.position, known.support, known.derived)
    if any(site["scale"] is not None for site in known.discrete.values()):
        raise ModelError(f"The discrete sites {listing(known.discrete)} have a handlers.scale; expected none.")
    table, count = joint_values(known.discrete)
    shapes = {name: jnp.shape(site["value"]) for name, site in known.discrete.items()}

    def summed(params: PyTree) -> jax.Array:
        def at(i: jax.Array) -> jax.Array:
            z = {name: table[name][i].reshape(shape) for name, shape in shapes.items()}
            return _joint_density(known, None, z).prior(params)

        return logsumexp(jax.lax.map(at, jnp.arange(count), batch_size=16))

    return Model.from_log_density(Density(summed, why), known.position, known.support, known.derived)
