"""Linear-Gaussian state-space models: sequences that depend on a hidden normal state, which moves linearly.

The Kalman filter integrates the states out. Sequences lie in one array, padded with NaN, and a missing number is NaN
too (``models.series``); both are integrated out exactly.
"""

import functools
from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.beliefs.check import Check
from tractable.core import Batch, PyTree
from tractable.kernels import kalman
from tractable.kernels.em import Expected, accumulate, observed
from tractable.models.conjugate import Numbers, Real
from tractable.models.latent import LatentModel
from tractable.models.regressions import Leaf, Regression, Residuals, taken
from tractable.models.series import after, arrays, in_groups, observed_steps, steps_of
from tractable.tools.errors import DataError, ModelError, SettingsError
from tractable.tools.settings import expect_whole, is_whole
from tractable.tools.shared import shared
from tractable.tools.small import inverse_root

ROOM = 1 << 23  # most numbers in a group of sequences
Noise = Literal["diagonal", "full"]
Row = tuple[float | None, ...]  # None where an entry is learnt
Given = tuple[Row, ...]  # a matrix
KnownNoise = str | Row | Given  # "full", variances or a covariance
Initial = str | tuple[Given, KnownNoise]  # "step", "own", or known mean and noise


class LinearGaussian(NamedTuple):
    """θ of a linear system. A leaf is None if all its entries are known, a vector of the learnt ones if some are."""

    initial_mean: Leaf  # (d,) of z_1
    initial_noise: Leaf  # (d,) sds of z_1
    transition: Leaf  # (d, d) A
    control: Leaf  # (d, k) B
    state_noise: Leaf  # (d,) sds, or (d, d) covariance
    emission: Leaf  # (p, d) C
    feedthrough: Leaf  # (p, k) D
    offset: Leaf  # (p,) o
    noise: Leaf  # (p,) sds, or (p, p) covariance


class Sums(NamedTuple):
    """The sums over sequences that the M-step needs."""

    start: Residuals | None
    moves: Residuals
    shown: Residuals


class Whole(NamedTuple):
    """A system with all entries filled in, known and learnt."""

    mean: jax.Array  # (d,) of z_1
    covariance: jax.Array  # (d, d) of z_1
    dynamics: jax.Array  # (d, d + k + 1) [A B m]
    state_noise: jax.Array  # (d, d) Q
    emissions: jax.Array  # (p, d + k + 1) [C D o]
    noise: jax.Array  # (p,) variances or (p, p)


def linear_gaussian(
    latent: int,
    features: int | None = None,
    *,
    inputs: int = 0,
    transition: Numbers | None = None,
    emission: Numbers | None = None,
    offset: Numbers | Real | None = None,
    state_noise: Noise | Numbers = "diagonal",
    noise: Noise | Numbers = "diagonal",
    initial: Literal["step", "own"] | tuple[Numbers, Numbers] = "step",
    prior_counts: Real = 1.0,
    centre: Numbers | Real = 0.0,
    scale: Numbers | Real | None = None,
    state_scale: Numbers | Real | None = None,
    floor: Real = 1e-10,
    steps: int | None = None,
) -> "LinearGaussianModel":
    """A linear-Gaussian state-space model of sequences (Kalman's).

        z_1 ~ N(m, Q),    z_t ~ N(A z_{t−1} + B u_t, Q),    x_t ~ N(C z_t + D u_t + o, R)

    z is integrated out, so any method learns θ: ``EM`` in closed form, with standard errors; MAP, NUTS, SGLD (batches
    of sequences) by the gradient of log p(x). ``Gibbs`` draws z too, and θ given z, where no row without noise has
    learnt entries: given z these could not move. Sequences are (n, T) or (n, T, p). NaN marks missing numbers and pads
    short sequences, so give ``tr.models.sequences([...])`` or ``tr.Data(y, missing="keep")``; a single series is
    ``sequences([y])``. EM is slow along ridges between Q and R: in single precision it may stop short, which its
    report says; in double precision (``jax_enable_x64``) it does not. Shumway & Stoffer 1982.

    Args:
        latent: d ≥ 1, dimension of the state.
        features: p numbers per step; None if a step is a single number.
        inputs: k numbers u_t given with each step (``sequences(y, given=u)``); B and D are learnt.
        transition, emission, offset: the known entries of A (d, d), C (p, d), o (p,), NaN where learnt. By default all
            of A and o is learnt. C's first d rows are by default lower triangular with a unit diagonal; this needs
            p ≥ d and identifies the states (each stands for one of the first d numbers): otherwise every rotation of
            the state would fit equally well.
        state_noise, noise: Q and R: "diagonal" or "full", learnt; or known: sds (NaN where learnt) or a covariance.
            With a correlated R a step must be observed as a whole or not at all.
        initial: of z_1: "step", a separate mean and the noise of a step; "own", a separate mean and separate sds,
            which needs many sequences; or known (mean, sds or covariance).
        prior_counts: c ≥ 0, strength of the prior, which exists only with ``scale``: columns β of [A B m] and [C D o]
            have N(0, Q/λ) and N(0, R/λ), and the noises scaled inverse χ² or inverse Wishart worth c imagined steps; λ
            is c for inputs and means, c s² for C and 4 d c s² for A, for states of size s (``state_scale``).
        centre, scale: expected location and sds of x. Without scale θ has no prior.
        state_scale: (d,) expected sds of the state's steps; the first of scale by default.
        floor: ≥ 0, least learnt variance: without it the likelihood may be unbounded.
        steps: T, length of the sequences that the model draws (``model.sample``, ``tr.calibrate``).

    Returns:
        A ``LinearGaussianModel``, whose θ is a ``LinearGaussian``.

    Raises:
        ModelError: a setting out of range, or a matrix of the wrong shape. DataError: sequences of the wrong shape.

    >>> level = linear_gaussian(1, transition=[[1.0]], offset=0.0)  # a random walk that is seen with noise
    >>> level.names
    ['initial_mean[0]', 'state_noise[0]', 'noise[0]']
    """
    expect_whole("latent", latent, ModelError)
    if features is not None:
        expect_whole("features", features, ModelError)
    if not is_whole(inputs, least=0):
        raise ModelError(f"inputs is a whole number, 0 or more; got {inputs!r}.")
    if steps is not None:
        expect_whole("steps", steps, ModelError)
    for name, value in {"prior_counts": prior_counts, "floor": floor}.items():
        if not 0 <= value < np.inf:
            raise ModelError(f"{name} is 0 or more and finite; got {value}.")
    d, p = int(latent), 1 if features is None else int(features)
    learnt = np.full((d, d), np.nan)
    a = learnt if transition is None else _shaped("transition", transition, (d, d))
    if emission is None:
        if p < d:
            raise ModelError(
                f"emission= must say how {p} numbers show {d} states: C of shape ({p}, {d}), NaN where learnt, such as "
                f"{[[1.0] + [0.0] * (d - 1)]} if the first state is observed."
            )
        c = np.where(np.tri(p, d, -1) > 0, np.nan, np.eye(p, d))
    else:
        c = _shaped("emission", emission, (p, d))
    o = np.full((p, 1), np.nan) if offset is None else _shaped("offset", offset, (p, 1))
    q, r = _noise("state_noise", state_noise, d), _noise("noise", noise, p)
    start: Initial
    if not isinstance(initial, str):
        start = (_given(_shaped("initial", initial[0], (d, 1))), _noise("initial", initial[1], d))
    elif initial in ("step", "own"):
        start = initial
    else:
        raise ModelError(f"initial is 'step', 'own' or (mean, sds or covariance); got {initial!r}.")
    size = None if scale is None or prior_counts == 0 else _positive("scale", scale, p)
    states = None if size is None else _positive("state_scale", size[0] if state_scale is None else state_scale, d)
    middle = tuple(_shaped("centre", centre, (p, 1))[:, 0].tolist())
    return built(
        d, features, int(inputs), _given(a), _given(c), _given(o), q, r, start, float(prior_counts), middle, size,
        states, float(floor), steps,
    )  # fmt: skip


@shared
def built(
    latent: int, features: int | None, inputs: int, transition: Given, emission: Given, offset: Given,
    state_noise: KnownNoise, noise: KnownNoise, initial: Initial, prior_counts: float, centre: tuple[float, ...],
    scale: tuple[float, ...] | None, state_scale: tuple[float, ...] | None, floor: float, steps: int | None,
) -> "LinearGaussianModel":  # fmt: skip
    """``linear_gaussian`` for checked settings; the same arguments give the same model."""
    d, k, c = latent, inputs, prior_counts
    a, o, p = _matrix(transition), _matrix(offset), len(emission)
    learnt = np.full((d, k + 1), np.nan)
    q, r = _as_noise(state_noise), _as_noise(noise)
    of_moves = of_shown = of_start = None
    sizes: dict[str, np.ndarray | None] = {"d": None, "p": None}
    if scale is not None and state_scale is not None:
        s = np.array(state_scale)
        sizes = {"d": s, "p": np.array(scale)}
        of_moves = np.concatenate([4 * d * c * s**2, np.full(k + 1, c)])
        of_shown, of_start = np.concatenate([c * s**2, np.full(k + 1, c)]), np.array([c])
    first = learnt[:, k:] if initial == "step" else np.zeros((d, 1))
    moves = Regression(np.concatenate([a, learnt[:, :k], first], 1), q, of_moves, sizes["d"], c, floor)
    shown = Regression(
        np.concatenate([_matrix(emission), np.full((p, k), np.nan), o], 1), r, of_shown, sizes["p"], c, floor
    )
    start = None
    if initial == "own":
        start = Regression(learnt[:, :1], np.full(d, np.nan), of_start, sizes["d"], c, floor)
    elif not isinstance(initial, str):
        start = Regression(_matrix(initial[0]), _as_noise(initial[1]), None, None, c, floor)
    for name, each in {"state_noise": moves, "noise": shown}.items():
        if each.full and np.any(each.free != each.free[:1]):
            raise ModelError(
                f"{name} that is correlated needs the same entries of every row to be learnt in "
                f"{'transition' if each is moves else 'emission (none, if it is known)'}; or use 'diagonal'."
            )
    return Layout(d, features, k, start, moves, shown, np.array([centre]), steps).model()


class Layout(NamedTuple):
    """The settings of a linear system, and its closed forms."""

    latent: int  # d
    features: int | None
    inputs: int  # k
    initial: Regression | None  # of z_1 on 1; None if z_1 has the noise of a step
    dynamics: Regression  # of z_t on [z_{t−1}, u_t, whether t = 1]
    emissions: Regression  # of x_t − centre on [z_t, u_t, 1]
    centre: np.ndarray  # (1, p)
    length: int | None  # of the sequences that the model draws

    def model(self) -> "LinearGaussianModel":
        position, support = self.begun(0.5), self.support()
        known = self.initial is None or not self.initial.learns_noise
        drawable = self.emissions.prior is not None and (
            known or (self.initial is not None and self.initial.prior is not None)
        )
        flat = self.dynamics.prior is None
        sides = [side for side in (self.initial, self.dynamics, self.emissions) if side is not None]
        stuck = any(side.free[side.noiseless].any() for side in sides)  # learnt, and determined by z
        drawn = {} if stuck else {"drawn": self.drawn, "complete": self.complete}
        made = LinearGaussianModel.from_steps(
            self.e_step, self.m_step, self.log_prob, position, support=support,
            prior=None if flat else (DrawablePrior if drawable else SystemPrior)(self),
            sample=None if self.length is None else self.sample, begin=self.begin, examine=self.examine, **drawn,
        )  # fmt: skip
        made.layout = self
        return made.with_steps(check=self.check, observations=observed_steps, ahead=self.ahead)

    def whole(self, theta: LinearGaussian) -> Whole:
        d, k = self.latent, self.inputs
        first = theta.initial_mean if self.initial is None else None
        moves = self.dynamics.coefficients([
            (slice(0, d), theta.transition), (slice(d, d + k), theta.control), (slice(d + k, None), first)
        ])  # fmt: skip
        shown = self.emissions.coefficients([
            (slice(0, d), theta.emission), (slice(d, d + k), theta.feedthrough), (slice(d + k, None), theta.offset)
        ])  # fmt: skip
        shown = shown.at[:, -1].add(-jnp.asarray(self.centre[0], shown.dtype))  # for x − centre
        q = self.dynamics.covariance(theta.state_noise)
        if self.initial is None:
            mean, covariance = moves[:, -1], q
        else:
            mean = self.initial.coefficients([(slice(0, 1), theta.initial_mean)])[:, 0]
            covariance = self.initial.covariance(theta.initial_noise)
        return Whole(mean, covariance, moves, q, shown, self.emissions.variance(theta.noise))

    def theta(self, start: tuple | None, moves: tuple, shown: tuple) -> LinearGaussian:
        """θ from coefficients and noise leaves."""
        d, k = self.latent, self.inputs
        (a, state_noise), (c, noise) = moves, shown
        mean, initial_noise = (a[:, -1:], None) if start is None else start
        first = self.dynamics.known[:, -1:] if self.initial is None else self.initial.known
        known, of_x = self.dynamics.known, self.emissions.known
        offset = c[:, -1:] + jnp.asarray(self.centre.T, jnp.result_type(float))
        return LinearGaussian(
            taken(first, mean, (d,)), initial_noise, taken(known[:, :d], a[:, :d]),
            taken(known[:, d : d + k], a[:, d : d + k]), state_noise, taken(of_x[:, :d], c[:, :d]),
            taken(of_x[:, d : d + k], c[:, d : d + k]), taken(of_x[:, -1:], offset, (len(offset),)), noise,
        )  # fmt: skip

    def begun(self, stays: float) -> LinearGaussian:
        """A starting θ, with A = ``stays`` times the identity."""
        k = self.inputs

        def of(side: Regression, guess: np.ndarray) -> tuple:
            return np.where(side.free, guess, np.nan_to_num(side.known)), side.example()[0]

        moves = np.concatenate([stays * np.eye(self.latent), np.zeros((self.latent, k + 1))], 1)
        shown = np.concatenate(
            [np.eye(len(self.emissions.known), self.latent), np.zeros((len(self.emissions.known), k + 1))], 1
        )
        start = None if self.initial is None else of(self.initial, np.zeros((self.latent, 1)))
        return jax.tree.map(np.asarray, self.theta(start, of(self.dynamics, moves), of(self.emissions, shown)))

    def support(self) -> LinearGaussian:
        """The support of every leaf."""
        here = jax.tree.map(lambda _: constraints.real, self.begun(0.5))
        noises = {"state_noise": self.dynamics, "noise": self.emissions} | (
            {} if self.initial is None else {"initial_noise": self.initial}
        )
        return here._replace(**{name: side.example()[1] for name, side in noises.items()})

    def system(self, whole: Whole) -> tuple[kalman.System, jax.Array | None]:
        """The system that the filter uses, with white noise, and the matrix that whitens a step, or None."""
        d = self.latent
        rest = whole.mean, whole.covariance, whole.dynamics[:, :d], whole.state_noise
        c = whole.emissions[:, :d]
        if whole.noise.ndim == 1:
            return kalman.System(*rest, c, whole.noise), None
        root = inverse_root(whole.noise)
        return kalman.System(*rest, jnp.matmul(root, c, precision="highest"), jnp.ones(len(c), c.dtype)), root

    def parts(self, whole: Whole, x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The filter's inputs for one sequence (T, p): numbers, drifts, and the whitening's log determinant."""
        d, k = self.latent, self.inputs
        level = jnp.matmul(u, whole.emissions[:, d : d + k].T, precision="highest") + whole.emissions[None, :, -1]
        drift = jnp.matmul(u, whole.dynamics[:, d : d + k].T, precision="highest")
        off, root = x - level, self.system(whole)[1]
        if root is None:
            return off, drift, jnp.zeros((), off.dtype)
        there = ~jnp.any(jnp.isnan(off), axis=1)
        white = jnp.matmul(jnp.where(there[:, None], off, 0), root.T, precision="highest")
        volume = jnp.sum(jnp.log(jnp.diagonal(root))) * jnp.sum(there)
        return jnp.where(there[:, None], white, jnp.nan), drift, volume

    def sums(self, whole: Whole, x: jax.Array, u: jax.Array) -> tuple[Sums, jax.Array]:
        """The expected sums of one sequence, and log p(x)."""
        x_white, drift, volume = self.parts(whole, x, u)
        found, log_prob = kalman.smoothed(self.system(whole)[0], x_white, drift)
        one = jnp.ones((len(x), 1), x.dtype)
        shown = _shown(whole.emissions, found, x, jnp.concatenate([found.mean, u, one], 1), whole.noise.ndim == 2)
        later = after(~jnp.all(jnp.isnan(x), axis=1)).astype(x.dtype).at[0].set(0)
        before = jnp.concatenate([jnp.zeros_like(found.mean[:1]), found.mean[:-1]])
        is_first = jnp.zeros_like(one).at[0].set(1)
        regressors = jnp.concatenate([before, jnp.where(is_first > 0, 0, u), is_first], 1)
        counted = later + is_first[:, 0] * (self.initial is None)
        moves = _moves(whole.dynamics, found, regressors, counted, self.dynamics.full)
        start = None
        if self.initial is not None:
            off, spread = found.mean[0] - whole.mean, jnp.diagonal(found.covariance[0])
            unit = jnp.ones((1, 1, 1), x.dtype)
            start = Residuals(unit, off[:, None], off**2 + spread, jnp.ones_like(off), whole.mean[:, None], 1.0)
        return Sums(start, moves, shown), log_prob + volume

    def lanes(self, rows: PyTree) -> int:
        """The number of sequences to compute side by side."""
        y, d = jax.tree.leaves(rows)[0], self.latent
        each = y.shape[1] * (4 * d * d + len(self.emissions.known) * (d + self.inputs + 4))
        return max(1, ROOM // each)

    def laid(self, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Sequences minus the centre (n, T, p), and inputs (n, T, k)."""
        y, u = rows if isinstance(rows, tuple) else (rows, None)
        dtype = jnp.result_type(float)
        y = jnp.asarray(y, dtype).reshape(*y.shape[:2], -1) - jnp.asarray(self.centre, dtype)[None]
        return y, jnp.zeros((*y.shape[:2], 0), dtype) if u is None else jnp.asarray(u, dtype).reshape(*y.shape[:2], -1)

    def e_step(self, theta: LinearGaussian, batch: Batch) -> Expected:
        rows, dtype = self._checked(observed(batch)), jnp.result_type(float)
        weights = jnp.asarray(batch.mask, dtype)
        whole = self.whole(theta)

        def of_group(theta: LinearGaussian, batch: Batch) -> Expected:
            counts = batch.mask > 0
            x, u = self.laid(batch.data)
            x = jnp.where(counts[:, None, None], x, jnp.nan)  # sequences of weight 0 may hold anything
            sums, log_probs = jax.vmap(functools.partial(self.sums, whole))(x, jnp.where(counts[:, None, None], u, 0))

            def total(a: jax.Array) -> jax.Array:
                a = jnp.where(counts.reshape(-1, *(1,) * (a.ndim - 1)), a, 0)
                return jnp.tensordot(batch.mask, a, 1, precision="highest")

            return Expected(jax.tree.map(total, sums), jnp.sum(batch.mask * jnp.where(counts, log_probs, 0)))

        return accumulate(of_group, theta, rows, weights, self.lanes(rows))

    def m_step(self, sums: Sums) -> LinearGaussian:
        start = None
        if self.initial is not None and sums.start is not None:
            start = self.initial.maximum(sums.start)
        return self.theta(start, self.dynamics.maximum(sums.moves), self.emissions.maximum(sums.shown))

    def each(self, function: Callable, theta: LinearGaussian, rows: PyTree, *more: jax.Array) -> PyTree:
        """``function(system, x, drift, volume, *more)`` for every sequence, in groups; ``more`` has leading axis n."""
        rows, whole = self._checked(rows), self.whole(theta)

        def one(x: jax.Array, u: jax.Array, *more: jax.Array) -> PyTree:
            return function(self.system(whole)[0], *self.parts(whole, x, u), *more)

        def of_group(group: tuple) -> PyTree:
            return jax.vmap(one)(*self.laid(group[0]), *group[1:])

        return in_groups(of_group, (rows, *more), self.lanes(rows))

    def log_prob(self, theta: LinearGaussian, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), (n,), nats."""
        return self.each(lambda system, x, drift, volume: kalman.log_prob(system, x, drift) + volume, theta, rows)

    def smoothed(self, theta: LinearGaussian, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x] (n, T, d) and Cov[z_t | x] (n, T, d, d)."""
        return self.each(lambda system, x, drift, _: kalman.smoothed(system, x, drift)[0][:2], theta, rows)

    def filtered(self, theta: LinearGaussian, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x_1 … x_t] (n, T, d) and the covariances (n, T, d, d)."""
        return self.each(lambda system, x, drift, _: kalman.filtered(system, x, drift)[2:4], theta, rows)

    def drawn(self, key: jax.Array, theta: LinearGaussian, rows: PyTree) -> jax.Array:
        """Draws of every sequence's states from p(z | x), (n, T, d)."""
        noise = jax.random.normal(key, (*jax.tree.leaves(rows)[0].shape[:2], self.latent), jnp.result_type(float))
        return self.each(lambda system, x, drift, _, noise: kalman.drawn(noise, system, x, drift), theta, rows, noise)

    def complete(self, theta: LinearGaussian, rows: PyTree, path: jax.Array) -> jax.Array:
        """log p(x_n, path | θ), (n,), of paths (n, T, d); states after the last observed step do not count."""
        whole, (x, u) = self.whole(theta), self.laid(self._checked(rows))
        there = ~jnp.isnan(x)
        kept = after(jnp.any(there, -1).T).T.at[:, 0].set(1)[..., None]  # (n, T, 1)
        z = jnp.where(kept > 0, path, 0)
        one, first = jnp.ones_like(kept), jnp.zeros_like(kept).at[:, 0].set(1)
        before = jnp.concatenate([jnp.zeros_like(z[:, :1]), z[:, :-1]], 1)
        inputs = jnp.concatenate([before, jnp.where(first > 0, 0, u), first], -1)
        off = z - jnp.matmul(inputs, whole.dynamics.T, precision="highest")
        moved = kept if self.initial is None else kept - first
        found = jnp.sum(self.dynamics.log_density(off, moved, theta.state_noise), -1)
        level = jnp.matmul(jnp.concatenate([z, u, one], -1), whole.emissions.T, precision="highest")
        off = jnp.where(there, x - level, 0)
        found = found + jnp.sum(self.emissions.log_density(off, there, theta.noise), -1)
        if self.initial is None:
            return found
        return found + self.initial.log_density(z[:, 0] - whole.mean, one[:, 0], theta.initial_noise)

    def begin(self, key: jax.Array, rows: PyTree) -> LinearGaussian:
        """A starting θ: random shares of the numbers' sds for both noises, and learnt entries of C moved at random."""
        y, rng = np.concatenate(list(steps_of(rows))), np.random.default_rng(np.asarray(jax.random.key_data(key)))
        y = y[~np.isnan(y).all(1)]
        sd = np.maximum(np.nanstd(y, axis=0), 1e-6)
        size = sd[: self.latent] if len(sd) >= self.latent else np.full(self.latent, sd.mean())
        theta, stays = self.begun(rng.uniform(0.3, 0.95)), rng.uniform(0.1, 0.7)

        found: dict[str, Leaf] = {
            "state_noise": self.dynamics.as_leaf(stays * size),
            "noise": self.emissions.as_leaf(np.sqrt(1 - stays**2) * sd),
        }
        if self.initial is not None:
            found["initial_noise"] = self.initial.as_leaf(size)
        if theta.offset is not None:
            found["offset"] = np.nanmean(y, axis=0)[np.isnan(self.emissions.known[:, -1])]
        if theta.emission is not None:
            found["emission"] = theta.emission + 0.5 * rng.normal(size=theta.emission.shape)
        return theta._replace(**found)

    def examine(self, theta: LinearGaussian, size: int) -> list[Check]:
        """The report's checks of a maximum."""
        out, whole = [], self.whole(jax.tree.map(jnp.asarray, theta))
        noises = {"state noise": (self.dynamics, whole.state_noise), "noise": (self.emissions, whole.noise)}
        for name, (side, value) in noises.items():
            if not side.learns_noise:
                continue
            learnt = value if value.ndim == 1 else jnp.linalg.eigvalsh(value) if side.full else jnp.diagonal(value)
            least = float(jnp.min(learnt[np.isnan(side.noise)] if not side.full else learnt))
            if least <= 4 * side.floor:
                sentence = f"variance, at its floor {side.floor:g}: the likelihood is unbounded, or there is no noise"
                out.append(Check(f"{name} at its floor", least, "reject", sentence))
        return out

    def sample(self, key: jax.Array, theta: LinearGaussian, n: int) -> tuple[jax.Array, jax.Array]:
        """Sequences (n, T) or (n, T, p) and their states (n, T, d)."""
        if self.inputs:
            raise ModelError("This model's sequences follow inputs: use model.simulate(key, theta, n, given=u).")
        return self.simulated(key, theta, n, self.length or 1)

    def simulated(
        self, key: jax.Array, theta: LinearGaussian, n: int, length: int, given: ArrayLike | None = None
    ) -> tuple[jax.Array, jax.Array]:
        whole = self.whole(theta)
        dtype = whole.emissions.dtype
        u = jnp.zeros((n, length, 0), dtype) if given is None else jnp.asarray(given, dtype).reshape(n, length, -1)
        system, root = self.system(whole)
        roots = _root(whole.covariance), _root(whole.state_noise)
        back = None if root is None else jnp.linalg.inv(root)

        def one(key: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            off, drift, _ = self.parts(whole, jnp.zeros((length, len(whole.emissions)), dtype), u)
            level = off if back is None else jnp.matmul(off, back.T, precision="highest")  # minus the level
            z, x = kalman.simulated(key, system, drift, roots)
            x = x if back is None else jnp.matmul(x, back.T, precision="highest")
            return x - level + jnp.asarray(self.centre, dtype), z

        x, z = jax.vmap(one)(jax.random.split(key, n), u)
        return (x[:, :, 0] if self.features is None else x), z

    def ahead(self, theta: LinearGaussian, x: PyTree, rows: tuple[PyTree, PyTree]) -> "Ahead":
        """The distribution of the steps after the last observed one.

        Args:
            x: the number of steps, 1 by default; if the model has inputs, their inputs (n, H, k).
        """
        y, given = rows
        y = jnp.asarray(y)
        n, k = len(y), self.inputs
        if k == 0 and (given is not None or not is_whole(1 if x is None else x)):
            raise SettingsError(f"predict(x) of sequences expects how many steps ahead, such as 7; got {x!r}.")
        count = 1 if x is None else x
        if k > 0:
            shape = tuple(jnp.shape(0 if x is None else x))
            if len(shape) not in (2, 3) or shape[0] != n or int(np.prod(shape[2:])) != k:
                raise SettingsError(f"predict(x) expects inputs of the steps ahead, ({n}, H, {k}); got {shape}.")
            count = shape[1]
        whole = self.whole(jax.tree.map(jnp.asarray, theta))
        u = jnp.zeros((n, count, 0)) if k == 0 else jnp.asarray(x).reshape(n, count, k)
        means, covariances = self.filtered(theta, y if given is None else (y, given))
        seen = after(~jnp.all(jnp.isnan(y.reshape(*y.shape[:2], -1)), axis=2).T)
        last = jnp.maximum(jnp.sum(seen, axis=0).astype(int) - 1, 0)
        now = means[jnp.arange(n), last], covariances[jnp.arange(n), last]

        def one(now: tuple, u: jax.Array) -> tuple[jax.Array, jax.Array]:
            a, b = whole.dynamics[:, : self.latent], whole.dynamics[:, self.latent : self.latent + k]

            def step(now: tuple, u: jax.Array) -> tuple[tuple, tuple]:
                mean = jnp.matmul(a, now[0]) + jnp.matmul(b, u)
                ahead = mean, jnp.matmul(jnp.matmul(a, now[1]), a.T) + whole.state_noise
                return ahead, ahead

            return jax.lax.scan(step, now, u)[1]

        return Ahead(self, whole, *jax.vmap(one)(now, u), u)

    def check(self, rows: PyTree) -> None:
        """Raise a DataError if the sequences do not fit the model."""
        self._expect(rows)
        for x in steps_of(rows):
            if np.isinf(x).any():
                raise DataError("The sequences hold infinite numbers; expected finite ones, NaN for missing.")
            gaps = np.isnan(x)
            if self.emissions.full and np.any(gaps.any(1) != gaps.all(1)):
                raise DataError(
                    "With a full noise covariance a step is there as a whole or not at all; some have numbers missing. "
                    "Use noise='diagonal', or make such steps NaN."
                )
        if isinstance(rows, tuple) and np.isnan(np.asarray(rows[1])).any():
            raise DataError("Inputs are known at every step, also where numbers are missing; some are NaN.")

    def _checked(self, rows: PyTree) -> PyTree:
        self._expect(rows)
        return jax.tree.map(jnp.asarray, rows)

    def _expect(self, rows: PyTree) -> None:
        shape, k = jnp.shape(jax.tree.leaves(rows)[0]), self.inputs
        if len(shape) != (2 if self.features is None else 3) or shape[2:] not in ((), (self.features,)):
            what = "(n, T)" if self.features is None else f"(n, T, {self.features})"
            raise DataError(f"Expected sequences of shape {what}, filled up with NaN; got {shape}.")
        given = jnp.shape(rows[1]) if isinstance(rows, tuple) else None
        if given not in ([None] if k == 0 else [(*shape[:2], k), *([shape[:2]] if k == 1 else [])]):
            what = f"inputs (n, T, {k}), as inputs={k} says" if k else "no inputs; say inputs= to have them"
            raise DataError(f"Expected {what}; got {'none' if given is None else given}.")


class Ahead(NamedTuple):
    """The distribution of the next H steps of n sequences."""

    layout: Layout
    whole: Whole
    state: jax.Array  # (n, H, d)
    spread: jax.Array  # (n, H, d, d)
    given: jax.Array  # (n, H, k)

    @property
    def mean(self) -> jax.Array:
        regressors = jnp.concatenate([self.state, self.given, jnp.ones_like(self.state[..., :1])], -1)
        found = jnp.matmul(regressors, self.whole.emissions.T, precision="highest") + self.layout.centre[None]
        return found[..., 0] if self.layout.features is None else found

    @property
    def variance(self) -> jax.Array:
        c, r = self.whole.emissions[:, : self.layout.latent], self.whole.noise
        own = r if r.ndim == 1 else jnp.diagonal(r)
        found = jnp.einsum("pi,nhij,pj->nhp", c, self.spread, c, precision="highest") + own[None, None]
        return found[..., 0] if self.layout.features is None else found

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws from the marginals, independent between numbers and steps."""
        mean = self.mean
        noise = jax.random.normal(key, (*shape, *mean.shape), mean.dtype)
        return mean + jnp.sqrt(self.variance) * noise


class SystemPrior(NamedTuple):
    """log p(θ) of the learnt entries."""

    layout: Layout

    def __call__(self, theta: LinearGaussian) -> jax.Array:
        layout = self.layout
        whole = layout.whole(theta)
        found = layout.dynamics.log_prior(whole.dynamics, theta.state_noise)
        found = found + layout.emissions.log_prior(whole.emissions, theta.noise)
        if layout.initial is not None:
            found = found + layout.initial.log_prior(whole.mean[:, None], theta.initial_noise)
        return found


class DrawablePrior(SystemPrior):
    """A prior that can be sampled."""

    def sample(self, key: jax.Array) -> LinearGaussian:
        layout, keys = self.layout, jax.random.split(key, 3)
        start = layout.initial
        first = None
        if start is not None:
            first = start.draw(keys[0]) if start.learns_noise else (jnp.asarray(start.known), None)
        return layout.theta(first, layout.dynamics.draw(keys[1]), layout.emissions.draw(keys[2]))


class LinearGaussianModel(LatentModel):
    """A ``LatentModel`` of sequences, made by ``linear_gaussian``.

    ``smoothed`` gives states given the whole sequence, ``filtered`` given the steps so far, ``drawn_paths`` draws of
    states, ``simulate`` new sequences, and ``system`` the matrices of θ with known entries filled in.
    """

    own: ClassVar[tuple[str, ...]] = ("layout",)
    layout: Layout

    def smoothed(self, theta: LinearGaussian, y: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x] (n, T, d) and Cov[z_t | x] (n, T, d, d); rows are y, or (y, u)."""
        return self.layout.smoothed(arrays(theta), y)

    def filtered(self, theta: LinearGaussian, y: PyTree) -> tuple[jax.Array, jax.Array]:
        """E[z_t | x_1 … x_t] (n, T, d) and the covariances (n, T, d, d); rows are y, or (y, u)."""
        return self.layout.filtered(arrays(theta), y)

    def drawn_paths(self, key: jax.Array, theta: LinearGaussian, y: PyTree) -> jax.Array:
        """States of every sequence drawn from p(z | x, θ), (n, T, d); rows are y, or (y, u)."""
        return self.layout.drawn(key, arrays(theta), y)

    def simulate(
        self, key: jax.Array, theta: LinearGaussian, n: int, steps: int, given: ArrayLike | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """n new sequences of ``steps`` steps, and their states (n, T, d); ``given`` (n, T, k) are its inputs."""
        return self.layout.simulated(key, arrays(theta), n, steps, given)

    def system(self, theta: LinearGaussian) -> dict[str, np.ndarray]:
        """A, B, C, D, Q, R, the offset, and mean and covariance of z_1, known entries included."""
        d, k, whole = self.layout.latent, self.layout.inputs, self.layout.whole(arrays(theta))
        noise = jnp.diag(whole.noise) if whole.noise.ndim == 1 else whole.noise
        found = {
            "A": whole.dynamics[:, :d], "B": whole.dynamics[:, d : d + k], "C": whole.emissions[:, :d],
            "D": whole.emissions[:, d : d + k], "Q": whole.state_noise, "R": noise,
            "offset": whole.emissions[:, -1] + self.layout.centre[0],
            "mean": whole.mean, "covariance": whole.covariance,
        }  # fmt: skip
        return {name: np.asarray(value) for name, value in found.items()}


def _shown(beta: jax.Array, found: kalman.Smoothed, x: jax.Array, g: jax.Array, full: bool) -> Residuals:
    """The emission residuals of one sequence; x (T, p) minus the centre, regressors g (T, e)."""
    d = found.mean.shape[1]
    c = beta[:, :d]
    there = ~jnp.isnan(x)
    there = jnp.broadcast_to(jnp.all(there, axis=1, keepdims=True), there.shape) if full else there
    counts = there.astype(x.dtype)
    off = jnp.where(there, x - jnp.matmul(g, beta.T, precision="highest"), 0)
    by_row = counts[:, :1] if full else counts  # with a full covariance one matrix serves all rows
    spread = jnp.einsum("tm,tij->mij", by_row, found.covariance, precision="highest")
    regressors = jnp.einsum("tm,ti,tj->mij", by_row, g, g, precision="highest").at[:, :d, :d].add(spread)
    along = jnp.einsum("mi,mij->mj", c, jnp.broadcast_to(spread, (len(c), d, d)), precision="highest")
    cross = jnp.matmul(off.T, g, precision="highest").at[:, :d].add(-along)
    if full:
        square = jnp.matmul(off.T, off, precision="highest") + jnp.matmul(along, c.T, precision="highest")
        return Residuals(regressors, cross, square, jnp.sum(counts[:, 0]), beta, jnp.ones((), x.dtype))
    square = jnp.sum(off**2, axis=0) + jnp.sum(along * c, axis=1)
    return Residuals(regressors, cross, square, jnp.sum(counts, axis=0), beta, jnp.ones((), x.dtype))


def _moves(gamma: jax.Array, found: kalman.Smoothed, h: jax.Array, counted: jax.Array, full: bool) -> Residuals:
    """The transition residuals of one sequence; regressors h (T, e), weights of the steps (T,)."""
    d = found.mean.shape[1]
    a = gamma[:, :d]
    off = (found.mean - jnp.matmul(h, gamma.T, precision="highest")) * counted[:, None]
    before = jnp.concatenate([jnp.zeros_like(found.covariance[:1]), found.covariance[:-1]])
    now, past, cross = (jnp.tensordot(counted, each, 1) for each in (found.covariance, before, found.cross))
    regressors = jnp.matmul((h * counted[:, None]).T, h, precision="highest").at[:d, :d].add(past)
    along = cross - jnp.matmul(a, past, precision="highest")  # Cov[residual, z_{t−1}]
    towards = jnp.matmul(off.T, h, precision="highest").at[:, :d].add(along)
    spread = now - jnp.matmul(cross, a.T, precision="highest") - jnp.matmul(a, along.T, precision="highest")
    count, weight = jnp.sum(counted), jnp.ones((), h.dtype)
    square = jnp.matmul(off.T, off, precision="highest") + spread
    if full:
        return Residuals(regressors[None], towards, square, count, gamma, weight)
    return Residuals(regressors[None], towards, jnp.diagonal(square), jnp.full(d, count), gamma, weight)


def _root(covariance: jax.Array) -> jax.Array:
    """R with R Rᵀ = Q, also for a singular Q."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors * jnp.sqrt(jnp.maximum(values, 0))[None]


def _shaped(name: str, value: Numbers, shape: tuple[int, ...]) -> np.ndarray:
    found = np.asarray(value, np.float64)
    rows, columns = shape
    fits = found.shape == shape or (columns == 1 and found.shape in ((), (rows,))) or (rows == 1 and found.ndim == 1)
    if not fits or found.size not in (1, rows * columns) or np.isinf(found).any():
        raise ModelError(f"{name} is a matrix of shape {shape}, finite, NaN where it is learnt; got {found.tolist()}.")
    return np.array(np.broadcast_to(found.reshape(-1, columns) if found.ndim else found, shape))


def _given(matrix: np.ndarray) -> Given:
    return tuple(tuple(None if np.isnan(v) else v for v in row) for row in matrix.tolist())


def _matrix(given: Row | Given) -> np.ndarray:
    return np.array(given, np.float64)  # None is NaN


def _as_noise(given: KnownNoise) -> np.ndarray | str:
    return given if isinstance(given, str) else _matrix(given)


def _noise(name: str, value: Noise | Numbers, size: int) -> KnownNoise:
    """ "full", or variances (None where learnt), or a known covariance."""
    if isinstance(value, str):
        if value not in ("diagonal", "full"):
            raise ModelError(f"{name} is 'diagonal', 'full', sds or a covariance; got {value!r}.")
        return value if value == "full" else (None,) * size
    found = np.asarray(value, np.float64)
    if found.shape in ((), (size,)):
        found = np.broadcast_to(found, (size,)) ** 2
        return tuple(None if np.isnan(v) else v for v in found.tolist())
    fine = found.shape == (size, size) and np.isfinite(found).all() and np.allclose(found, found.T)
    if not fine or np.linalg.eigvalsh(found)[0] < -1e-9 * max(1.0, float(np.abs(found).max())):
        raise ModelError(
            f"{name} is {size} sds, NaN where one is learnt, or a covariance of shape ({size}, {size}); got "
            f"{np.asarray(value).tolist()}."
        )
    return _given(found) if np.any(found != np.diag(np.diagonal(found))) else tuple(np.diagonal(found).tolist())


def _positive(name: str, value: Numbers, count: int) -> tuple[float, ...]:
    found = np.asarray(value, np.float64).ravel()
    if found.size not in (1, count) or not np.isfinite(found).all() or not (found > 0).all():
        raise ModelError(f"{name} has positive finite numbers, one or {count} of them; got {value}.")
    return tuple(np.broadcast_to(found, (count,)).tolist())
