"""What a call of ``log_evidence`` is about: model, data and a method's settings, checked before anything runs."""

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
    """A checked call: what is estimated, by which method, and from what."""

    method: str
    settings: Any  # of the method
    model: Model
    data: Data | None
    targets: Targets  # the parameters, or at a given θ the z of every row; rows on one device
    posterior: Posterior | None = None
    z: PyTree = None  # exact draws of every row's z
    placement: OneDevice = ONE_DEVICE  # of the rows
    seed: int = 0

    @property
    def key(self) -> jax.Array:
        """Of all randomness."""
        return jax.random.key(self.seed)

    @property
    def placed(self) -> Targets:
        """The targets with their rows on the devices of the placement."""
        return self.targets.placed_rows(self.placement)

    def on_mesh(self, mesh: int | str | Mesh | None) -> "Problem":
        """The same over a mesh; raises where there are no rows, or where they are not summed by themselves."""
        if mesh is not None and (self.data is None or self.model.likelihood is None):
            raise SettingsError("log_evidence(mesh=...) lays rows over devices, and there are none: leave it out.")
        if mesh is not None and self.model.local is not None:
            raise SettingsError("log_evidence(mesh=...) is of rows by themselves, without groups: leave it out.")
        return self._replace(placement=over_rows(mesh))


def problem_of_parameters(
    model: Model, data: Data | PyTree, posterior: Posterior | None, z: PyTree, method: str | None,
    settings: dict[str, Any],
) -> Problem:  # fmt: skip
    """log p(y) of a model; raises where model, data and posterior do not fit together."""
    if z is not None:
        raise SettingsError("z= goes with theta=: the causes that model.sample(key, theta, n) drew with the data.")
    method = "annealed" if method is None else method
    chosen = settings_of(method, settings)
    data = None if data is None else as_data(data)
    if posterior is not None:
        _check_posterior(model, data, posterior, method, chosen)
        data = posterior.data if data is None else data
    if data is not None:
        _check_resident(data)
    if not model.prior_is_callable:
        for leaf in jax.tree.leaves(model.prior, is_leaf=is_distribution):
            if is_improper(leaf):
                raise ModelError(
                    "The evidence of an improper prior (ImproperUniform) is not defined: it scales with a constant "
                    "that the prior leaves open. Give every parameter a proper prior."
                )
    preflight.check(model, data)
    return Problem(method, chosen, model, data, of_parameters(model, data), posterior)


def _check_posterior(model: Model, data: Data | None, posterior: Posterior, method: str, settings: Way) -> None:
    if not isinstance(posterior, Posterior):
        raise SettingsError(f"posterior= expects what infer returns; got {type(posterior).__name__}.")
    name = type(posterior.method).__name__
    if method in ("monte-carlo", "laplace"):
        raise SettingsError(f"method={method!r} takes no posterior=; it is for 'importance' and 'annealed'.")
    if posterior.model is not model:
        raise SettingsError("posterior= is of another model; expected infer of the very model given.")
    other = posterior.data
    if data is not None and (other is None or other.fingerprint != data.fingerprint):
        raise SettingsError("posterior= was fitted to other data; leave data out, or give those that were fitted.")
    if method == "importance" and not (posterior.fitted and posterior.fitted.q.whole):
        raise SettingsError(
            "method='importance' needs a q with a density over all parameters (MeanField, FullRank, LowRank, Laplace); "
            f"got a posterior by {name}. Leave posterior= out for Student t's at the modes."
        )
    exact = posterior.method.chained and not posterior.method.minibatch
    if method == "annealed" and not (exact and posterior.unconstrained is not None):
        raise SettingsError(
            "method='annealed' runs back from draws of an exact sampler (NUTS, HMC, MALA, RandomWalk, Rejection); got "
            f"a posterior by {name}, without such draws. Leave posterior= out to have NUTS run."
        )
    if isinstance(settings, Annealing) and posterior.chains * posterior.count < settings.chains:
        raise SettingsError(
            f"log_evidence(chains={settings.chains}) runs back from as many posterior draws; posterior= has "
            f"{posterior.chains * posterior.count}. Use fewer chains, or extend the posterior."
        )


def problem_at_theta(
    model: Model, data: Data | PyTree, posterior: object, theta: PyTree, z: PyTree, method: str | None,
    settings: dict[str, Any],
) -> Problem:  # fmt: skip
    """Σ_n log p(x_n|θ) of a latent model; raises where model, data, θ and z do not fit together."""
    if not isinstance(model, LatentModel):
        raise SettingsError(f"theta= is for a LatentModel, whose z is summed out; got a {type(model).__name__}.")
    if posterior is not None:
        raise SettingsError("theta= is one value of the parameters, and takes no posterior=; leave one of them out.")
    method = method or ("annealed" if model.log_prob is None else "enumeration")
    chosen = settings_of(method, settings, at_theta=True)
    _check_theta(model, theta)
    if data is None or as_data(data).size == 0:
        raise DataError("log p(x|θ) is of data: log_evidence(model, data, theta=...) needs rows.")
    data = as_data(data)
    if data.weights is not None:
        raise DataError("log_evidence(theta=...) is Σ_n log p(x_n|θ) of rows that count once; these data have weights.")
    _check_resident(data)
    if method != "enumeration":
        _check_causes(model, data, theta, method)
    elif model.log_prob is None:
        raise ModelError("z of this model cannot be summed out; use method='annealed' or 'monte-carlo'.")
    else:
        preflight.check(model, data)
    if z is not None:
        if method != "annealed":
            raise SettingsError(f"z= is what 'annealed' runs back from; method={method!r} takes none.")
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(z)]
        if {shape[:1] for shape in shapes} != {(data.size,)} or data.size < 8:
            raise SettingsError(
                f"z= has a leading axis of the N = {data.size} data, N ≥ 8 (their spread is the bound's error); got "
                f"{', '.join(map(str, shapes))}."
            )
    theta, z = jax.tree.map(jnp.asarray, (theta, z))
    return Problem(method, chosen, model, data, of_causes(model, theta, data), z=z)


def _check_resident(data: Data) -> None:
    if not data.resident:
        raise DataError(
            f"log_evidence looks at all {data.size} rows for every draw and needs them in memory, "
            f"{data.nbytes / 2**30:.1f} GiB; use Data(..., resident=True) if it allows, or fewer rows."
        )


def _check_theta(model: LatentModel, theta: PyTree) -> None:
    wanted = jax.eval_shape(model.example, jax.random.key(0))
    shapes = [(jax.tree.structure(t), [np.shape(leaf) for leaf in jax.tree.leaves(t)]) for t in (wanted, theta)]
    if shapes[0] != shapes[1]:
        raise SettingsError(
            f"theta= expects parameters of shapes {jax.tree.map(np.shape, wanted)}; got "
            f"{jax.tree.map(np.shape, theta)}."
        )
    reals = jax.tree.leaves(model.unconstrain(jax.tree.map(jnp.asarray, theta)))
    if not all(np.all(np.isfinite(leaf)) for leaf in reals):
        raise SettingsError(f"theta= lies inside the parameters' supports, with finite numbers; got {theta}.")


def _check_causes(model: LatentModel, data: Data, theta: PyTree, method: str) -> None:
    """Check that z can be drawn, that it is continuous if the method moves it, and that its factors are scalars."""
    y, x = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.arrays())
    discrete = model.discrete_causes(theta, x)
    if discrete is None:
        raise ModelError(
            f"z of this model is dealt with in closed form; method={method!r} needs latent and likelihood."
        )
    if discrete and method in ("annealed", "importance"):
        raise ModelError(
            f"method={method!r} looks for z by small steps, and z is discrete ({', '.join(discrete)}); use "
            f"method={'enumeration' if model.log_prob is not None else 'monte-carlo'!r}."
        )

    def factors(key: jax.Array) -> list[jax.Array]:
        z = cause_target(model, theta, (y, x)).sample(key)
        return model.factors(theta, z, y if x is None else (y, x))[:2]

    shapes = [term.shape for term in jax.eval_shape(factors, jax.random.key(0))]
    if shapes != [(), ()]:
        raise ModelError(
            "log p(x|z, θ) and log p(z|θ) of one datum are numbers; got shapes "
            f"{shapes[0]} and {shapes[1]}. Is a .to_event(1) missing?"
        )
