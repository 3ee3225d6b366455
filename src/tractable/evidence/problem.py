"""Checks the arguments of ``log_evidence``, before anything runs: model, data, posterior and the method's settings.

"Causes" are the latent variables z of a latent model, one for each row.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model, PyTree, as_data, is_distribution
from tractable.core.priors import is_improper
from tractable.engine import preflight
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import over_rows
from tractable.evidence.settings import Annealing, Way, settings_of
from tractable.evidence.targets import Targets, cause_target, of_causes, of_parameters
from tractable.posterior.posterior import Posterior


class Problem(NamedTuple):
    """The checked arguments of a call: what is estimated, and by which method."""

    method: str
    settings: Any  # settings of the method
    model: Model
    data: Data | None
    targets: Targets  # the density of the parameters, or, at a given θ, of every row's z; rows on one device
    posterior: Posterior | None = None
    z: PyTree = None  # one exact draw of every row's z, or None
    placement: OneDevice = ONE_DEVICE  # the devices of the rows
    seed: int = 0

    @property
    def key(self) -> jax.Array:
        """The random key of the call."""
        return jax.random.key(self.seed)

    @property
    def placed(self) -> Targets:
        """The targets with their rows on the devices of the placement."""
        return self.targets.placed_rows(self.placement)

    def on_mesh(self, mesh: int | str | Mesh | None) -> "Problem":
        """The same problem with rows on a mesh of devices; an error if there are no rows, or if rows have groups."""
        if mesh is not None and (self.data is None or self.model.likelihood is None):
            raise SettingsError("log_evidence(mesh=...) puts rows on devices, and there are no rows: leave it out.")
        if mesh is not None and self.model.local is not None:
            raise SettingsError("log_evidence(mesh=...) expects independent rows, without groups: leave it out.")
        return self._replace(placement=over_rows(mesh))


def problem_of_parameters(
    model: Model, data: Data | PyTree, posterior: Posterior | None, z: PyTree, method: str | None,
    settings: dict[str, Any],
) -> Problem:  # fmt: skip
    """The problem of log p(y) of a model; an error if model, data and posterior do not fit together."""
    if z is not None:
        raise SettingsError("z= needs theta=: z is what model.sample(key, theta, n) drew together with the data.")
    method = "annealed" if method is None else method
    method_settings = settings_of(method, settings)
    data = None if data is None else as_data(data)
    if posterior is not None:
        _check_posterior(model, data, posterior, method, method_settings)
        data = posterior.data if data is None else data
    if data is not None:
        _check_resident(data)
    if not model.prior_is_callable:
        for leaf in jax.tree.leaves(model.prior, is_leaf=is_distribution):
            if is_improper(leaf):
                raise ModelError(
                    "The evidence of an improper prior (ImproperUniform) is not defined: it depends on a constant that "
                    "such a prior does not fix. Give every parameter a proper prior."
                )
    preflight.check(model, data)
    return Problem(method, method_settings, model, data, of_parameters(model, data), posterior)


def _check_posterior(model: Model, data: Data | None, posterior: Posterior, method: str, settings: Way) -> None:
    """Raises a SettingsError unless the posterior is of this model and data, and serves the method."""
    if not isinstance(posterior, Posterior):
        raise SettingsError(f"posterior= expects what infer returns; got {type(posterior).__name__}.")
    name = type(posterior.method).__name__
    if method in ("monte-carlo", "laplace"):
        raise SettingsError(f"method={method!r} takes no posterior=; it is for 'importance' and 'annealed'.")
    if posterior.model is not model:
        raise SettingsError("posterior= is of another model; expected a result of infer with this same model object.")
    fitted_data = posterior.data
    if data is not None and (fitted_data is None or fitted_data.fingerprint != data.fingerprint):
        raise SettingsError("posterior= was fitted to other data; leave data out, or give the fitted data.")
    if method == "importance" and not (posterior.fitted and posterior.fitted.q.whole):
        raise SettingsError(
            "method='importance' needs a q with a density over all parameters (MeanField, FullRank, LowRank, Laplace); "
            f"got a posterior by {name}. Without posterior=, draws are from Student t's at the modes."
        )
    by = posterior.method
    exact = by.chained and not by.minibatch and getattr(by, "adjusted", True)
    if method == "annealed" and not (exact and posterior.unconstrained is not None):
        raise SettingsError(
            "method='annealed' runs back from draws of an exact sampler (NUTS, HMC, MALA, RandomWalk, Rejection, "
            f"Microcanonical with its accept step); got a posterior by {name}, without such draws. Leave posterior= "
            "out, so that NUTS makes them."
        )
    if isinstance(settings, Annealing) and posterior.chains * posterior.count < settings.chains:
        raise SettingsError(
            f"log_evidence(chains={settings.chains}) needs as many posterior draws for its backward run; posterior= "
            f"has {posterior.chains * posterior.count}. Use fewer chains, or extend the posterior."
        )


def problem_at_theta(
    model: Model, data: Data | PyTree, posterior: object, theta: PyTree, z: PyTree, method: str | None,
    settings: dict[str, Any],
) -> Problem:  # fmt: skip
    """The problem of Σ_n log p(x_n|θ) of a latent model; an error if model, data, θ and z do not fit together."""
    if not isinstance(model, LatentModel):
        raise SettingsError(f"theta= is for a LatentModel, whose z is summed out; got a {type(model).__name__}.")
    if posterior is not None:
        raise SettingsError("theta= is one value of the parameters, and takes no posterior=; leave one of them out.")
    method = method or ("annealed" if model.log_prob is None else "enumeration")
    method_settings = settings_of(method, settings, at_theta=True)
    _check_theta(model, theta)
    if data is None or as_data(data).size == 0:
        raise DataError("log_evidence(model, data, theta=...) needs data with at least one row; got none.")
    data = as_data(data)
    if data.weights is not None:
        raise DataError("log_evidence(theta=...) expects data without weights; these data have weights.")
    _check_resident(data)
    if method != "enumeration":
        _check_causes(model, data, theta, method)
    elif model.log_prob is None:
        raise ModelError("z of this model cannot be summed out; use method='annealed' or 'monte-carlo'.")
    else:
        preflight.check(model, data)
    if z is not None:
        if method != "annealed":
            raise SettingsError(f"z= is for the backward run of 'annealed'; method={method!r} takes no z=.")
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(z)]
        if {shape[:1] for shape in shapes} != {(data.size,)} or data.size < 8:
            raise SettingsError(
                f"z= needs a leading axis of N = {data.size}, one z for each of at least 8 data (their variation gives "
                f"the bound's error); got {', '.join(map(str, shapes))}."
            )
    theta, z = jax.tree.map(jnp.asarray, (theta, z))
    return Problem(method, method_settings, model, data, of_causes(model, theta, data), z=z)


def _check_resident(data: Data) -> None:
    """Raises a DataError if the rows are not in memory."""
    if not data.resident:
        raise DataError(
            f"log_evidence evaluates all {data.size} rows for every draw and needs them in memory, "
            f"{data.nbytes / 2**30:.1f} GiB; use Data(..., resident=True) if there is room, or fewer rows."
        )


def _check_theta(model: LatentModel, theta: PyTree) -> None:
    """Raises a SettingsError unless θ has the shapes of the model's parameters and lies inside their supports."""
    example = jax.eval_shape(model.example, jax.random.key(0))
    shapes = [(jax.tree.structure(t), [np.shape(leaf) for leaf in jax.tree.leaves(t)]) for t in (example, theta)]
    if shapes[0] != shapes[1]:
        raise SettingsError(
            f"theta= expects parameters of shapes {jax.tree.map(np.shape, example)}; got "
            f"{jax.tree.map(np.shape, theta)}."
        )
    reals = jax.tree.leaves(model.unconstrain(jax.tree.map(jnp.asarray, theta)))
    if not all(np.all(np.isfinite(leaf)) for leaf in reals):
        raise SettingsError(f"theta= expects finite numbers inside the parameters' supports; got {theta}.")


def _check_causes(model: LatentModel, data: Data, theta: PyTree, method: str) -> None:
    """Raises a ModelError unless z can be drawn, and log p(x|z, θ) and log p(z|θ) of a row are single numbers.

    For methods that move z by small steps, z must also be continuous.
    """
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.arrays())
    discrete = model.discrete_causes(theta, x)
    if discrete is None:
        raise ModelError(
            f"z of this model is integrated out in closed form; method={method!r} needs a model with latent and "
            "likelihood."
        )
    if discrete and method in ("annealed", "importance"):
        raise ModelError(
            f"method={method!r} moves z by small steps, but z is discrete ({', '.join(discrete)}); use "
            f"method={'enumeration' if model.log_prob is not None else 'monte-carlo'!r}."
        )

    def factors(key: jax.Array) -> list[jax.Array]:
        z = cause_target(model, theta, (y, x)).sample(key)
        return model.factors(theta, z, y if x is None else (y, x))[:2]

    shapes = [term.shape for term in jax.eval_shape(factors, jax.random.key(0))]
    if shapes != [(), ()]:
        raise ModelError(
            "log p(x|z, θ) and log p(z|θ) of one row should be single numbers; got shapes "
            f"{shapes[0]} and {shapes[1]}. Is a .to_event(1) missing?"
        )
