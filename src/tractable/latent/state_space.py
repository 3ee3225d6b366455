"""Linear-Gaussian state-space models: sequences that depend on a hidden normal state with linear dynamics.

The Kalman filter (``kalman``) integrates the states out. Sequences are rows of one array, padded with NaN, and a
missing number is NaN too (``series``). Padding and missing numbers are integrated out exactly. The M-step is one
regression (``regressions``),

    [z_1, z_t, x_t] on [z_{t−1}, z_t, u_t, 1],    β = [0 0 0 m; A 0 B 0; 0 C D o]

Each row of β has its own noise. The rows of z_1 count at the first step, those of z_t at later steps, and those of x_t
where x is observed. Known entries of β, zeros included, stay fixed.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core.check import Check
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, PyTree
from tractable.core.numbers import Numbers, Real
from tractable.core.settings import is_whole
from tractable.core.shared import shared
from tractable.core.sums import Expected, accumulate, observed
from tractable.latent import kalman, series
from tractable.latent.columns import check_sizes
from tractable.latent.kalman import LinearGaussian
from tractable.latent.regressions import Regression, Residuals, fill, learnt_entries, residuals

ROOM = 1 << 23  # largest number of entries in the arrays of a group of sequences
NOISES = ("initial_noise", "state_noise", "noise")


def linear_gaussian(
    latent: int,
    features: int | None = None,
    *,
    inputs: int = 0,
    prior_counts: Real = 1.0,
    centre: Numbers | Real = 0.0,
    scale: Numbers | Real | None = None,
    state_scale: Numbers | Real | None = None,
    floor: Real = 1e-10,
    steps: int | None = None,
    **known: Numbers | Real,
) -> "LinearGaussianModel":
    """A linear-Gaussian state-space model of sequences (Kalman's).

        z_1 ~ N(m, Q_1),    z_t ~ N(A z_{t−1} + B u_t, Q),    x_t ~ N(C z_t + D u_t + o, R)

    Q_1, Q and R are diagonal. A model with correlated Q equals one with diagonal Q and the default C, in other
    coordinates of the state. For a correlated R, add p states without memory, whose rows of A are 0. z is integrated
    out, so any method learns θ: ``EM`` in closed form, with standard errors; MAP, NUTS, SGLD (batches of sequences) by
    the gradient of log p(x). ``Gibbs`` draws z, and θ given z; every row with learnt entries then needs noise, since
    without noise z determines these entries. Sequences are (n, T) or (n, T, p). NaN marks missing numbers and pads
    short sequences, so give ``tr.models.sequences([...])`` or ``tr.Data(y, missing="keep")``; a single series is
    ``sequences([y])``. EM is slow where the data hardly distinguish Q from R. In single precision it may then stop
    short of the maximum, and its report says so; in double precision (``jax_enable_x64``) it does not. Shumway &
    Stoffer 1982.

    Args:
        latent: d ≥ 1, dimension of the state.
        features: p numbers per step; None if a step is a single number.
        inputs: k numbers u_t given with each step (``sequences(y, given=u)``).
        known: the known entries of θ, named as in ``LinearGaussian``, with NaN where learnt; one number stands for all
            entries. These are ``initial_mean`` m (d,), ``transition`` A (d, d), ``control`` B (d, k), ``emission`` C
            (p, d), ``feedthrough`` D (p, k), ``offset`` o (p,), and sds: ``initial_noise`` (d,), ``state_noise`` (d,)
            and ``noise`` (p,). By default all entries are learnt, with two exceptions. ``initial_noise`` equals
            ``state_noise``; to learn it too (``initial_noise=np.nan``) takes many sequences. And the first d rows of C
            are lower triangular with a unit diagonal. This needs p ≥ d and identifies the states, each of which stands
            for one of the first d numbers; otherwise every rotation of the state would fit equally well.
        prior_counts: c ≥ 0, strength of the prior, which exists only with ``scale``. Each entry of A, B, C, D, m and o
            has a normal prior of mean 0 (of mean ``centre`` for o) and variance s²/λ, where s is the sd of its row's
            noise; s² has a scaled inverse χ² prior worth c imagined steps. λ is c for B, D, m and o, c S² for C and 4 d
            c S² for A, where S is ``state_scale``.
        centre, scale: expected location and sds of x. Without scale θ has no prior.
        state_scale: (d,) expected sds of the state's steps; by default all equal the first number of ``scale``.
        floor: ≥ 0, smallest learnt variance: without it the likelihood may be unbounded.
        steps: T, length of the sequences that the model draws (``model.sample``, ``tr.calibrate``).

    Returns:
        A ``LinearGaussianModel``, whose θ is a ``LinearGaussian``.

    Raises:
        ModelError: a setting is out of range, or a matrix has the wrong shape. DataError: sequences have the wrong
            shape.

    >>> level = linear_gaussian(1, transition=[[1.0]], offset=0.0)  # a random walk that is observed with noise
    >>> level.names
    ['initial_mean[0]', 'state_noise[0]', 'noise[0]']
    """
    check_sizes(latent=latent)
    series.check_settings({"features": features, "steps": steps}, {"prior_counts": prior_counts, "floor": floor})
    if not is_whole(inputs, least=0):
        raise ModelError(f"inputs is a whole number, 0 or more; got {inputs!r}.")
    d, p, k = int(latent), 1 if features is None else int(features), int(inputs)
    shapes = LinearGaussian((d,), (d,), (d, d), (d, k), (d,), (p, d), (p, k), (p,), (p,))._asdict()
    if unknown := sorted(set(known) - set(shapes)):
        removed = "; initial= was removed, initial_mean= and initial_noise= say what is known of z_1"
        raise ModelError(
            f"linear_gaussian has no argument {unknown[0]}=; the entries that may be known are {', '.join(shapes)}"
            f"{removed if unknown[0] == 'initial' else ''}."
        )
    if p < d and "emission" not in known:
        raise ModelError(
            f"emission= must say how {p} numbers depend on {d} states: C, ({p}, {d}), with NaN where learnt, such as "
            f"{[[1.0] + [0.0] * (d - 1)]} if the first state is observed."
        )
    defaults: dict[str, Any] = dict.fromkeys(shapes, np.nan)
    defaults |= {"initial_noise": None, "emission": np.where(np.tri(p, d, -1) > 0, np.nan, np.eye(p, d))}
    template = LinearGaussian(*(_template(name, (defaults | known)[name], shapes[name]) for name in shapes))
    prior = None
    if scale is not None and prior_counts > 0:
        size = series.expect_numbers("scale", scale, p, 0.0)
        states = series.expect_numbers("state_scale", size[0] if state_scale is None else state_scale, d, 0.0)
        prior = (float(prior_counts), size, states)
    location = series.expect_numbers("centre", centre, p)
    return build_model(None if features is None else p, template, location, prior, float(floor), steps)


def _template(name: str, value: Numbers | Real | None, shape: tuple[int, ...]) -> Any:
    """The entries as nested tuples, with None where they are learnt; raises ModelError for a wrong shape or value."""
    if value is None:
        return None
    is_noise = name in NOISES
    entries = np.asarray(np.inf if isinstance(value, str) else value, np.float64)
    if entries.shape not in ((), shape) or np.isinf(entries).any() or (is_noise and (entries < 0).any()):
        what = "has sds" if is_noise else "is a matrix"
        got = value if isinstance(value, str) else entries.tolist()
        hint = " Covariances were removed: linear_gaussian's docstring says what to write instead." if is_noise else ""
        raise ModelError(f"{name} {what} of shape {shape}, finite, or NaN where learnt; got {got}.{hint}")

    def as_tuples(value: list | float) -> tuple | float | None:
        return tuple(map(as_tuples, value)) if isinstance(value, list) else None if np.isnan(value) else value

    return as_tuples(np.broadcast_to(entries, shape).tolist())


@shared
def build_model(
    features: int | None, known: tuple, centre: tuple[float, ...], prior: tuple | None, floor: float, steps: int | None
) -> "LinearGaussianModel":
    """``linear_gaussian`` for settings that have been checked; equal arguments give the same model object."""
    template = LinearGaussian(*(None if leaf is None else np.array(leaf, np.float64) for leaf in known))
    d, p = len(template.state_noise), len(template.noise)
    counts, size, states = (0.0, np.ones(p), np.ones(d)) if prior is None else prior
    free = np.isnan(coefficients(template, np))
    strength = np.where(free, counts, 0.0)
    strength[d : 2 * d, :d] *= 4 * d * np.square(states)
    strength[2 * d :, d : 2 * d] *= np.square(states)
    location = np.zeros(free.shape)
    location[2 * d :, -1] = centre
    n_tied = d if template.initial_noise is None else 0
    scale = np.concatenate([states, states, size])
    rows = Regression(free, row_noises(template, np), n_tied, strength, location, counts, scale, floor)
    return Layout(template, rows, features, steps).model()


class Layout(NamedTuple):
    """The settings of a linear system, and its computations."""

    known: LinearGaussian  # NaN where learnt; where initial_noise is None, z_1 has the noise of later steps
    rows: Regression  # the regression of the M-step, with a row for each of z_1, z_t and x_t's numbers
    features: int | None
    length: int | None  # of the sequences that the model draws

    def model(self) -> "LinearGaussianModel":
        position = self.guess(0.5)
        support = LinearGaussian(*(
            None if leaf is None else constraints.positive if name in NOISES else constraints.real
            for name, leaf in position._asdict().items()
        ))  # fmt: skip
        # Where a row has no noise, z determines the row's learnt entries, and Gibbs could not change them.
        is_stuck = self.rows.free[self.rows.noise == 0].any()
        gibbs = {} if is_stuck else {"drawn": self.draw_states, "complete": self.joint_log_prob}
        latent_model = LinearGaussianModel.from_steps(
            self.e_step, self.m_step, self.log_prob, position, support=support,
            prior=SystemPrior(self) if self.rows.counts > 0 else None,
            sample=functools.partial(self.simulate, length=self.length) if self.length and not self.inputs else None,
            begin=self.begin, examine=self.examine, **gibbs,
        )  # fmt: skip
        latent_model.layout = self
        return latent_model.with_steps(check=self.check, observations=series.observed_steps, ahead=self.forecast)

    @property
    def latent(self) -> int:
        return len(self.known.state_noise)

    @property
    def inputs(self) -> int:
        return self.known.control.shape[1]

    # θ has the learnt entries, and a system has all entries. The regression has them as coefficients β and sds.

    def system(self, theta: LinearGaussian) -> LinearGaussian:
        """θ with all entries filled in."""
        parts = zip(self.known, theta, strict=True)
        system = LinearGaussian(*(None if known is None else fill(known, leaf) for known, leaf in parts))
        return system if system.initial_noise is not None else system._replace(initial_noise=system.state_noise)

    def theta(self, system: LinearGaussian) -> LinearGaussian:
        """The learnt entries."""
        return LinearGaussian(*map(learnt_entries, self.known, system))

    def theta_of_regression(self, beta: jax.Array, sds: jax.Array) -> LinearGaussian:
        """The θ that the regression's coefficients and sds stand for."""
        d, end = self.latent, beta.shape[1] - 1
        return self.theta(LinearGaussian(
            beta[:d, end], sds[:d], beta[d : 2 * d, :d], beta[d : 2 * d, 2 * d : end], sds[d : 2 * d],
            beta[2 * d :, d : 2 * d], beta[2 * d :, 2 * d : end], beta[2 * d :, end], sds[2 * d :],
        ))  # fmt: skip

    def guess(self, persistence: float) -> LinearGaussian:
        """A starting θ, whose A is ``persistence`` times the identity."""
        d, (p, k) = self.latent, self.known.feedthrough.shape
        start = LinearGaussian(
            np.zeros(d), np.ones(d), persistence * np.eye(d), np.zeros((d, k)), np.ones(d),
            np.eye(p, d), np.zeros((p, k)), self.rows.location[2 * d :, -1], np.ones(p),
        )  # fmt: skip
        return self.theta(start)

    # Groups of sequences, computed in parallel.

    def split(self, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Sequences (n, T, p), and inputs (n, T, k)."""
        y, u = rows if isinstance(rows, tuple) else (rows, None)
        y = jnp.asarray(y, jnp.result_type(float)).reshape(*y.shape[:2], -1)
        u = jnp.zeros((*y.shape[:2], 0)) if u is None else u
        return y, jnp.asarray(u, y.dtype).reshape(*y.shape[:2], self.inputs)

    def lanes(self, rows: PyTree) -> int:
        """The number of sequences in a group."""
        (m, e), d = self.rows.free.shape, self.latent
        return max(1, ROOM // (jax.tree.leaves(rows)[0].shape[1] * (10 * d * d + m * (e + 4))))

    def map_sequences(self, function: Callable, theta: LinearGaussian, rows: PyTree, *arrays: jax.Array) -> PyTree:
        """``function(system, x, u, *arrays)`` for every sequence, in groups; ``arrays`` have leading axis n."""
        self.expect_shapes(rows)
        rows, system = series.on_device(rows), self.system(theta)

        def of_group(group: tuple) -> PyTree:
            return jax.vmap(functools.partial(function, system))(*self.split(group[0]), *group[1:])

        return series.in_groups(of_group, (rows, *arrays), self.lanes(rows))

    def log_prob(self, theta: LinearGaussian, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), (n,), in nats (natural logarithms)."""
        return self.map_sequences(kalman.log_prob, theta, rows)

    def draw_states(self, key: jax.Array, theta: LinearGaussian, rows: PyTree) -> jax.Array:
        """Draws of every sequence's states from p(z | x), (n, T, d)."""
        shape = *jax.tree.leaves(rows)[0].shape[:2], self.latent
        noise = jax.random.normal(key, shape, jnp.result_type(float))

        def one(system: LinearGaussian, x: jax.Array, u: jax.Array, noise: jax.Array) -> jax.Array:
            return kalman.draw_states(noise, system, x, u)

        return self.map_sequences(one, theta, rows, noise)

    def joint_log_prob(self, theta: LinearGaussian, rows: PyTree, path: jax.Array) -> jax.Array:
        """log p(x_n, path | θ), (n,), of paths (n, T, d); states after the last observed step do not count."""

        def one(system: LinearGaussian, x: jax.Array, u: jax.Array, z: jax.Array) -> jax.Array:
            y, regressors, weights = regression_of(z, x, u)
            residual = y - regressors @ coefficients(system).T
            return self.rows.log_density(residual, weights, row_noises(system))

        return self.map_sequences(one, theta, rows, path)

    def sums(self, system: LinearGaussian, x: jax.Array, u: jax.Array) -> tuple[Residuals, jax.Array]:
        """The expected sums of one sequence, and log p(x)."""
        states, log_prob = kalman.smooth(system, x, u)
        previous = jnp.concatenate([jnp.zeros_like(states.covariance[:1]), states.covariance[:-1]])
        spread = jnp.block([[previous, jnp.swapaxes(states.cross, 1, 2)], [states.cross, states.covariance]])
        unit, none = np.eye(self.latent), np.zeros((self.latent, self.latent))
        picks = np.block([[none, unit], [none, unit], [np.zeros((x.shape[1], 2 * len(unit)))]])
        return residuals(coefficients(system), *regression_of(states.mean, x, u), (picks, spread)), log_prob

    def e_step(self, theta: LinearGaussian, batch: Batch) -> Expected:
        rows = observed(batch)
        self.expect_shapes(rows)

        def of_group(theta: LinearGaussian, batch: Batch) -> Expected:
            x, u = self.split(batch.data)
            is_counted = batch.mask[:, None, None] > 0
            x, u = jnp.where(is_counted, x, jnp.nan), jnp.where(is_counted, u, 0)  # rows of weight 0 may hold anything
            sums = jax.vmap(functools.partial(self.sums, self.system(theta)))(x, u)
            return Expected(*jax.tree.map(lambda a: jnp.tensordot(batch.mask, a, 1), sums))

        weights = jnp.asarray(batch.mask, jnp.result_type(float))
        return accumulate(of_group, theta, series.on_device(rows), weights, self.lanes(rows))

    def m_step(self, sums: Residuals) -> LinearGaussian:
        return self.theta_of_regression(*self.rows.maximum(sums))

    # Starts, checks and simulated sequences.

    def begin(self, key: jax.Array, rows: PyTree) -> LinearGaussian:
        """A starting θ: both noises are random shares of the numbers' sds, and C's learnt entries are random."""
        y = np.concatenate(list(series.steps_of(rows)))
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        y, d = y[~np.isnan(y).all(1)], self.latent
        sd = np.maximum(np.nanstd(y, axis=0), 1e-6)
        size = sd[:d] if len(sd) >= d else np.full(d, sd.mean())
        theta, share = self.guess(rng.uniform(0.3, 0.95)), rng.uniform(0.1, 0.7)
        if theta.emission is not None:
            theta = theta._replace(emission=theta.emission + 0.5 * rng.normal(size=theta.emission.shape))
        sds = {"initial_noise": size, "state_noise": share * size, "noise": np.sqrt(1 - share**2) * sd}
        values = sds | {"offset": np.nanmean(y, axis=0)}
        return theta._replace(**{name: learnt_entries(getattr(self.known, name), a) for name, a in values.items()})

    def examine(self, theta: LinearGaussian, size: int) -> list[Check]:
        """The report's checks of a maximum."""
        out = []
        for name, sds in {"state noise": theta.state_noise, "noise": theta.noise}.items():
            least = np.inf if sds is None else float(np.min(np.square(sds)))
            if least <= 4 * self.rows.floor:
                sentence = f"variance; its floor is {self.rows.floor:g}: likelihood unbounded, or highest without noise"
                out.append(Check(f"{name} at its floor", least, "reject", sentence))
        return out

    def simulate(
        self, key: jax.Array, theta: LinearGaussian, n: int, length: int, given: ArrayLike | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Sequences (n, T) or (n, T, p) and their states (n, T, d)."""
        system = self.system(theta)
        u = jnp.zeros((n, length, 0)) if given is None else jnp.asarray(given, system.offset.dtype)
        u = u.reshape(n, length, self.inputs)
        z, x = jax.vmap(lambda key, u: kalman.simulate(key, system, u))(jax.random.split(key, n), u)
        return (x[:, :, 0] if self.features is None else x), z

    def forecast(self, theta: LinearGaussian, x: PyTree, rows: tuple[PyTree, PyTree]) -> dist.Normal:
        """The distributions of the steps after the last observed one, which the filter treats as missing steps.

        Args:
            x: the number of steps, 1 by default; if the model has inputs, the inputs of these steps, (n, H, k).
        """
        y, given = rows
        n, k = len(y), self.inputs
        count = 1 if x is None else x
        if k == 0 and (given is not None or not is_whole(count)):
            raise SettingsError(f"predict(x) of sequences expects how many steps ahead, such as 7; got {x!r}.")
        if k > 0:
            shape = jnp.shape(0 if x is None else x)
            if len(shape) not in (2, 3) or shape[0] != n or int(np.prod(shape[2:])) != k:
                raise SettingsError(f"predict(x) expects inputs of the steps ahead, ({n}, H, {k}); got {shape}.")
            count = shape[1]

        def one(system: LinearGaussian, x: jax.Array, u: jax.Array, inputs: jax.Array) -> tuple:
            length = jnp.maximum(jnp.sum(series.up_to_last(jnp.any(~jnp.isnan(x), axis=1))), 1).astype(int)
            x = jnp.concatenate([x, jnp.full((count, x.shape[1]), jnp.nan)])
            u = jax.lax.dynamic_update_slice_in_dim(jnp.concatenate([u, inputs]), inputs, length, 0)
            states = kalman.filter_states(system, x, u)
            mean, covariance = (jax.lax.dynamic_slice_in_dim(a, length, count) for a in states[:2])
            mean = mean @ system.emission.T + inputs @ system.feedthrough.T + system.offset[None]
            variance = jnp.einsum("pi,hij,pj->hp", system.emission, covariance, system.emission)
            return mean, jnp.sqrt(variance + (system.noise**2)[None])

        inputs = jnp.zeros((n, count, 0)) if k == 0 else jnp.asarray(x).reshape(n, count, k)
        mean, sd = self.map_sequences(one, theta, y if given is None else rows, inputs)
        return dist.Normal(mean[..., 0], sd[..., 0]) if self.features is None else dist.Normal(mean, sd)

    def check(self, rows: PyTree) -> None:
        """Raise a DataError if the sequences do not fit the model."""
        self.expect_shapes(rows)
        if any(np.isinf(x).any() for x in series.steps_of(rows)):
            raise DataError("The sequences hold infinite numbers; expected finite ones, or NaN for missing ones.")
        if isinstance(rows, tuple) and np.isnan(np.asarray(rows[1])).any():
            raise DataError("Inputs must be known at every step, even where numbers are missing; some inputs are NaN.")

    def expect_shapes(self, rows: PyTree) -> None:
        """Raise a DataError if sequences or inputs have other shapes than the model's."""
        y, k = jax.tree.leaves(rows)[0], self.inputs
        series.expect_sequences(y, self.features)
        shape = jnp.shape(y)
        given = jnp.shape(rows[1]) if isinstance(rows, tuple) else None
        if given not in ([None] if k == 0 else [(*shape[:2], k), *([shape[:2]] if k == 1 else [])]):
            what = f"inputs (n, T, {k}), because of inputs={k}" if k else "no inputs, because the model has no inputs="
            raise DataError(f"Expected {what}; got {'none' if given is None else given}.")


class SystemPrior(NamedTuple):
    """log p(θ) of the learnt entries."""

    layout: Layout

    def __call__(self, theta: LinearGaussian) -> jax.Array:
        system = self.layout.system(theta)
        return self.layout.rows.log_prior(coefficients(system), row_noises(system))

    def sample(self, key: jax.Array) -> LinearGaussian:
        return self.layout.theta_of_regression(*self.layout.rows.draw(key))


class LinearGaussianModel(LatentModel):
    """A ``LatentModel`` of sequences, made by ``linear_gaussian``.

    ``smoothed`` gives the states' means and covariances given the sequence, and ``filtered`` those given the steps so
    far. ``drawn_paths`` draws states, ``simulate`` draws new sequences, and ``system`` fills known entries into θ.
    """

    own: ClassVar[tuple[str, ...]] = ("layout",)
    layout: Layout

    def smoothed(self, theta: LinearGaussian, y: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x] (n, T, d) and Cov[z_t | x] (n, T, d, d); rows are y, or (y, u)."""
        return self.layout.map_sequences(lambda *sequence: kalman.smooth(*sequence)[0][:2], theta, y)

    def filtered(self, theta: LinearGaussian, y: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x_1 … x_t] (n, T, d) and the covariances (n, T, d, d); rows are y, or (y, u)."""
        return self.layout.map_sequences(lambda *sequence: kalman.filter_states(*sequence)[:2], theta, y)

    def drawn_paths(self, key: jax.Array, theta: LinearGaussian, y: PyTree) -> jax.Array:
        """States of every sequence drawn from p(z | x, θ), (n, T, d); rows are y, or (y, u)."""
        return self.layout.draw_states(key, theta, y)

    def simulate(
        self, key: jax.Array, theta: LinearGaussian, n: int, steps: int, given: ArrayLike | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """n new sequences of ``steps`` steps, and their states (n, T, d); ``given`` (n, T, k) are its inputs."""
        return self.layout.simulate(key, theta, n, steps, given)

    def system(self, theta: LinearGaussian) -> LinearGaussian:
        """θ with all entries filled in, known and learnt."""
        return jax.tree.map(np.asarray, self.layout.system(theta))


def coefficients(system: LinearGaussian, xp: ModuleType = jnp) -> Any:
    """β (2d + p, 2d + k + 1) of [z_1, z_t, x_t] on [z_{t−1}, z_t, u_t, 1]; ``xp`` is NumPy's or JAX's."""
    d, (p, k) = len(system.transition), system.feedthrough.shape
    return xp.block([
        [xp.zeros((d, 2 * d + k)), system.initial_mean[:, None]],
        [system.transition, xp.zeros((d, d)), system.control, xp.zeros((d, 1))],
        [xp.zeros((p, d)), system.emission, system.feedthrough, system.offset[:, None]],
    ])  # fmt: skip


def row_noises(system: LinearGaussian, xp: ModuleType = jnp) -> Any:
    """The sds of the rows' noises, (2d + p,)."""
    first = system.state_noise if system.initial_noise is None else system.initial_noise
    return xp.concatenate([first, system.state_noise, system.noise])


def regression_of(z: jax.Array, x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Targets (T, m), regressors (T, e) and weights (T, m) of the regression, from one sequence and its states."""
    is_observed, is_first = ~jnp.isnan(x), jnp.zeros_like(z).at[0].set(1)
    previous = jnp.concatenate([jnp.zeros_like(z[:1]), z[:-1]])
    is_later = series.up_to_last(jnp.any(is_observed, axis=1))[:, None] * (1 - is_first)
    targets = jnp.concatenate([z, z, jnp.where(is_observed, x, 0)], axis=1)
    regressors = jnp.concatenate([previous, z, u, jnp.ones_like(z[:, :1])], axis=1)
    return targets, regressors, jnp.concatenate([is_first, is_later, is_observed], axis=1).astype(z.dtype)
