"""Hidden Markov models of sequences.

A datum is a whole sequence. Sequences of unequal length lie in one array, padded with NaN; a missing step is NaN too.
Both are summed over exactly, and transitions after the last observed step do not count. So no lengths are stored, and
batches, files, devices and folders treat sequences like any other rows.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import Distribution, constraints

from tractable.core.causes import log_prob_of
from tractable.core.check import Check
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, PyTree, is_distribution, sample_of
from tractable.core.numbers import Numbers, Real
from tractable.core.settings import expect_whole, is_whole
from tractable.core.shared import shared
from tractable.core.sums import Expected, accumulate, observed
from tractable.latent import emissions
from tractable.latent import forward_backward as fb
from tractable.latent.emissions import Emission
from tractable.latent.series import after, arrays, in_groups, observed_steps, steps_of

SMALL = 1280  # up to this many bytes per step, a CPU's loop over steps stays in one kernel and is twice as fast
LONG = 1 << 19  # densities of a group of sequences from which a processor takes their steps in pieces
PIECE = 1 << 14  # densities in a piece, which a cache holds several times
ROOM = 1 << 27  # numbers in a group of sequences on an accelerator
FAMILIES = ("normal", "multivariate-normal", "poisson", "bernoulli", "categorical")


class HiddenMarkov(NamedTuple):
    """θ of a hidden Markov model."""

    initial: Any  # (K,) π
    transition: Any  # (K, K) A; row i: p(z_{t+1} | z_t = i)
    emission: Any  # the emission's parameters, leading axis K


class Passes(NamedTuple):
    """Expected statistics summed over sequences, for the M-step of a built-in emission."""

    initial: Any  # (K,) expected counts of first states
    transition: Any  # (K, K) expected counts of transitions
    emission: Any


class Complete(NamedTuple):
    """Sequences with their posterior state probabilities, which make up Q for the user's own emission."""

    theta: HiddenMarkov  # θ_t
    rows: PyTree
    shares: jax.Array  # (T, K, n) p(z_t | x), times the sequences' weights
    initial: jax.Array  # (K,)
    transition: jax.Array  # (K, K)


def hidden_markov(
    states: int,
    emission: str | Callable[..., Distribution] = "normal",
    features: int | None = None,
    *,
    classes: int | None = None,
    prior: PyTree = None,
    prior_counts: Real = 1.0,
    centre: Numbers | Real | None = None,
    scale: Numbers | Real | None = None,
    floor: Real = 1e-6,
    steps: int | None = None,
) -> "HiddenMarkovModel":
    """A hidden Markov model of sequences.

        z_1 ~ π,  z_t ~ A[z_{t−1}],  x_t ~ emission(θ_{z_t});    π, rows of A ~ Dirichlet(1 + c)
        M-step:  π_i ∝ Σ p(z_1 = i | x) + c,    A_ij ∝ Σ_t p(z_t = i, z_{t+1} = j | x) + c,    emission: weighted by
        p(z_t | x), with c pseudo-observations in each state

    z is summed out by forward and backward passes, so any method can fit θ: ``EM`` in closed form, with standard
    errors; MAP, NUTS, SGLD (batches of sequences) by gradients. Sequences are (n, T), or (n, T, d); NaN marks missing
    numbers and pads short sequences, so give ``tr.models.sequences([...])`` or ``tr.Data(y, missing="keep")``.

    Args:
        states: K ≥ 1.
        emission: "normal" (numbers independent given the state), "multivariate-normal", "poisson", "bernoulli" or
            "categorical"; or a function that returns the distribution of one step: ``emission(params)`` of one state's
            parameters, or ``emission(params, x)`` with the step's inputs too (``sequences(y, given=x)``).
        features: d numbers per step; None if a step is one number.
        classes: L for a "categorical" emission, whose x is 0 … L − 1.
        prior: of a function's parameters: a pytree of distributions for one state; each state has its own parameters.
        prior_counts: c ≥ 0; 0 for maximum likelihood.
        centre, scale: prior guesses of the location and spread of a normal emission's numbers. With both, means and
            spreads have a prior worth c steps (``latent.emissions``), as NUTS and evidence need; without scale it is
            flat. For counts, centre is their expected mean, 1 by default.
        floor: ≥ 0, least variance of a normal emission, in the units of x²: without it the likelihood is unbounded.
        steps: T for sequences that the model draws itself (``model.sample``, ``tr.calibrate``); data must then have T.

    Returns:
        A ``HiddenMarkovModel``, whose θ is a ``HiddenMarkov``. States are sorted by the share of time spent in them.

    Raises:
        ModelError: a setting is out of range. DataError: sequences have another shape, or values no state can emit.

    >>> hidden_markov(3).parameters
    14
    """
    expect_whole("states", states, ModelError)
    if steps is not None:
        expect_whole("steps", steps, ModelError)
    if not 0 <= prior_counts < np.inf:
        raise ModelError(f"prior_counts is 0 or more and finite; got {prior_counts}.")
    if callable(emission):
        if prior is None or not all(map(is_distribution, jax.tree.leaves(prior, is_leaf=is_distribution))):
            raise ModelError(
                "An emission that is a function has parameters: give prior=, a pytree of distributions for one state, "
                'such as {"rate": dist.Gamma(2.0, 1.0)}.'
            )
        return Chain(Own(int(states), None, float(prior_counts), emission, prior), float(prior_counts), steps).model()
    if prior is not None:
        raise ModelError("prior= is of an emission that is a function; a built-in one has prior_counts=.")
    if emission not in FAMILIES:
        raise ModelError(f"emission is {', '.join(map(repr, FAMILIES))} or a function; got {emission!r}.")
    return built_in(states, emission, features, classes, prior_counts, centre, scale, floor, steps)


@shared
def built_in(
    states: int, emission: str, features: int | None, classes: int | None, prior_counts: Real,
    centre: Numbers | Real | None, scale: Numbers | Real | None, floor: Real, steps: int | None,
) -> "HiddenMarkovModel":  # fmt: skip
    """``hidden_markov`` with a built-in emission; equal arguments give the same model object."""
    if features is not None:
        expect_whole("features", features, ModelError)
    if not 0 <= floor < np.inf:
        raise ModelError(f"floor is a variance, 0 or more and finite; got {floor}.")
    if (emission == "categorical") != (classes is not None):
        raise ModelError("classes= is how many a 'categorical' emission has, and of no other.")
    if emission == "categorical" and features is not None:
        raise ModelError("A 'categorical' step is one class: leave features= out.")
    if emission == "multivariate-normal" and features is None:
        raise ModelError("A 'multivariate-normal' step is a vector: give features=.")
    own, c = (int(states), features), float(prior_counts)
    numbers = 1 if features is None else features
    if emission in ("normal", "multivariate-normal"):
        kind = emissions.Normal if emission == "normal" else emissions.FullNormal
        spread = None if scale is None or c == 0 else _numbers("scale", scale, numbers, positive=True)
        made = kind(*own, c, float(floor), _numbers("centre", 0.0 if centre is None else centre, numbers), spread)
    elif emission == "poisson":
        made = emissions.Poisson(*own, c, _numbers("centre", 1.0 if centre is None else centre, numbers, positive=True))
    elif emission == "bernoulli":
        made = emissions.Bernoulli(*own, c)
    else:
        expect_whole("classes", classes, ModelError)
        made = emissions.Categorical(*own, c, int(classes or 0))
    return Chain(made, c, steps).model()


def _numbers(name: str, value: Numbers | Real, count: int, positive: bool = False) -> tuple[float, ...]:
    found = np.broadcast_to(np.asarray(value, np.float64).ravel(), (count,)) if np.size(value) in (1, count) else None
    if found is None or not np.isfinite(found).all() or (positive and not (found > 0).all()):
        what = "positive finite numbers" if positive else "finite numbers"
        raise ModelError(f"{name} has {what}, one, or {count} of them, one a number of a step; got {value}.")
    return tuple(found.tolist())


@dataclass(frozen=True, eq=False)
class Own(Emission):
    """An emission that is the user's function; its statistics are the sequences themselves."""

    function: Callable[..., Distribution]
    prior: PyTree

    @functools.cached_property
    def priors(self) -> PyTree:
        """The priors of all states, leading axis K."""
        return jax.tree.map(lambda d: d.expand((self.states, *d.batch_shape)), self.prior, is_leaf=is_distribution)

    def arrange(self, y: PyTree) -> PyTree:
        return y

    def there(self, x: PyTree) -> jax.Array:
        y = x[0] if isinstance(x, tuple) else x
        return _lanes(~jnp.any(jnp.isnan(y.reshape(*y.shape[:2], -1)), axis=2))

    def log_density(self, theta: PyTree, x: PyTree) -> jax.Array:
        y, given = x if isinstance(x, tuple) else (x, None)
        gone = jnp.any(jnp.isnan(y.reshape(*y.shape[:2], -1)), axis=2)
        # A missing step is replaced by an observed one: the masked value must not make the gradient NaN.
        stand_in = y.reshape(-1, *y.shape[2:])[jnp.argmin(gone)]
        y = jnp.where(gone.reshape(*gone.shape, *(1,) * (y.ndim - 2)), stand_in[None, None], y)

        def of_state(theta: PyTree) -> jax.Array:
            def of_step(y: jax.Array, *x: jax.Array) -> jax.Array:
                shown: Any = self.function(theta, *x)
                whole = shown.support.is_discrete
                return log_prob_of(shown, y.astype(jnp.int32) if whole else y)

            return jax.vmap(jax.vmap(of_step))(y, *(() if given is None else (given,)))

        logs = jnp.where(gone[None], 0, jax.vmap(of_state)(theta))  # (K, n, T)
        return _lanes(jnp.transpose(logs, (1, 2, 0)))

    def of_state(self, theta: PyTree, *x: jax.Array) -> Distribution:
        return self.function(theta, *x)

    def draw_prior(self, key: jax.Array) -> PyTree:
        return sample_of(self.priors, key)


def _lanes(a: jax.Array) -> jax.Array:
    """(n, T, …) to (T, …, n), or to (T, …) for one sequence."""
    return a[0] if len(a) == 1 else jnp.moveaxis(a, 0, -1)


def _rows(a: jax.Array) -> jax.Array:
    """(T, K, n) or (T, K) to (n, T, K)."""
    return a[None] if a.ndim == 2 else jnp.transpose(a, (2, 0, 1))


class ChainPrior(NamedTuple):
    """``params -> log p(θ)``: Dirichlet(1 + c) for π and rows of A, and the emission's own prior."""

    chain: "Chain"

    def __call__(self, theta: HiddenMarkov) -> jax.Array:
        found = self.chain.emission.log_prior(theta.emission) if self.chain.counts else 0.0
        parts = dist.Dirichlet(1 + self.chain.counts * jnp.ones(self.chain.emission.states, theta.initial.dtype))
        return found + parts.log_prob(theta.initial) + jnp.sum(parts.log_prob(theta.transition))


class DrawablePrior(ChainPrior):
    """A ChainPrior from which θ can be drawn."""

    def sample(self, key: jax.Array) -> HiddenMarkov:
        first, moves, emission = jax.random.split(key, 3)
        k = self.chain.emission.states
        each = (1 + self.chain.counts) * jnp.ones(k)
        return HiddenMarkov(
            jax.random.dirichlet(first, each), jax.random.dirichlet(moves, each, (k,)),
            self.chain.emission.draw_prior(emission),
        )  # fmt: skip


class Chain(NamedTuple):
    """A hidden Markov model's specification, and its closed forms."""

    emission: Emission
    counts: float
    length: int | None  # of the sequences it draws

    def model(self) -> "HiddenMarkovModel":
        own, k = isinstance(self.emission, Own), self.emission.states
        simplex = constraints.simplex
        if isinstance(self.emission, Own):
            each = dist.Dirichlet(jnp.full(k, 1 + self.counts))
            prior, position, support = HiddenMarkov(each, each.expand((k,)), self.emission.priors), None, None
        else:
            position, support = self.emission.example()
            position = HiddenMarkov(np.full(k, 1 / k), np.full((k, k), 1 / k), position)
            support = HiddenMarkov(simplex, simplex, support)
            prior = (DrawablePrior if self.emission.drawable else ChainPrior)(self)
        made = HiddenMarkovModel.from_steps(
            self.e_step, None if own else self.m_step, self.log_prob, position, support=support, prior=prior,
            responsibilities=self.smoothed, sample=None if self.length is None else self.sample,
            begin=self.begin, examine=self.examine, permute=self.permuted,
            # States sorted by the share of time spent in them, the largest first.
            canonical=lambda theta: self.permuted(theta, jnp.argsort(-shares(theta))),
            drawn=self.drawn_paths, complete=self.complete,
        )  # fmt: skip
        made.chain = self
        return made.with_steps(
            check=self.check, observations=observed_steps, ahead=self.ahead, q=self.q if own else None
        )

    # Groups of sequences, computed in parallel.

    def log_b(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        return self.emission.log_density(theta.emission, self.emission.arrange(rows))

    def passed(self, theta: HiddenMarkov, rows: PyTree, weights: jax.Array) -> tuple:
        """The rows in the emission's layout, weighted p(z_t | x) (T, K, n), π's and A's counts, and Σ w log p(x)."""
        x = self.emission.arrange(rows)
        found, log_prob = fb.passed(theta.initial, theta.transition, self.emission.log_density(theta.emission, x))
        weights = weights if log_prob.ndim else weights[0]
        counted = after(self.emission.there(x)) * weights[None]  # (T, n), or (T,) for one sequence
        shares = found.smoothed * counted[:, None]
        first = (found.smoothed[0] * weights[None]).reshape(len(theta.initial), -1).sum(1)
        return x, shares, first, fb.moves(theta.transition, found, counted[1:]), jnp.sum(weights * log_prob)

    def e_step(self, theta: HiddenMarkov, batch: Batch) -> Expected:
        rows, weights = observed(batch), jnp.asarray(batch.mask, theta.initial.dtype)
        if isinstance(self.emission, Own):
            _, shares, first, moves, log_prob = self.passed(theta, _counting(rows, weights), weights)
            return Expected(Complete(theta, rows, shares, first, moves), log_prob)
        y, k = self._checked(rows), self.emission.states

        def of_group(theta: HiddenMarkov, batch: Batch) -> Expected:
            rows = _counting(batch.data, batch.mask)
            if jax.default_backend() == "cpu" and rows.shape[0] * rows.shape[1] * k > LONG:
                return self.in_pieces(theta, rows, batch.mask)
            x, shares, first, moves, log_prob = self.passed(theta, rows, batch.mask)
            sums = self.emission.sums(theta.emission, x, shares, jnp.sum(batch.mask))
            return Expected(Passes(first, moves, sums), log_prob)

        def of_all(theta: HiddenMarkov) -> Expected:
            return accumulate(of_group, theta, y, weights, self.lanes(y))

        # A CPU takes several θ one after another: in parallel their loops would exceed ``SMALL``.
        return (jax.custom_batching.sequential_vmap(of_all) if jax.default_backend() == "cpu" else of_all)(theta)

    def in_pieces(self, theta: HiddenMarkov, rows: jax.Array, weights: jax.Array) -> Expected:
        """The E-step of long sequences on a processor, a piece of their steps at a time."""
        emission, k, (n, steps) = self.emission, self.emission.states, rows.shape[:2]
        each = max(1, PIECE // (n * k))
        count = -(-steps // each)
        filled = jnp.full((n, count * each - steps, *rows.shape[2:]), jnp.nan, rows.dtype)
        rows, total = jnp.concatenate([rows, filled], axis=1), jnp.sum(weights)
        there = after(emission.there(emission.arrange(rows)))
        counted = (there * (weights[None] if n > 1 else weights[0])).reshape(count, each, *there.shape[1:])
        y = rows.reshape(n, count, each, *rows.shape[2:]).swapaxes(0, 1)
        pieces = y, counted, jnp.concatenate([counted[1:, 0], jnp.zeros_like(counted[:1, 0])])

        def log_b(piece: tuple) -> jax.Array:
            return emission.log_density(theta.emission, emission.arrange(piece[0]))

        def sums_of_piece(piece: tuple, found: fb.Passed, across: jax.Array) -> tuple[PyTree, jax.Array]:
            y, counted, later = piece
            sums = emission.sums(theta.emission, emission.arrange(y), found.smoothed * counted[:, None], total / count)
            moves = fb.moves(theta.transition, found, counted[1:])
            return sums, moves + jnp.sum((across * later[None, None]).reshape(k, k, -1), axis=2)

        (sums, moves), first, log_prob = fb.in_pieces(theta.initial, theta.transition, log_b, pieces, sums_of_piece)
        first = (first * counted[0, 0][None]).reshape(k, -1).sum(1)
        return Expected(Passes(first, moves, sums), jnp.sum(weights * log_prob))

    def lanes(self, rows: PyTree) -> int:
        """Number of sequences computed in parallel."""
        y, k = jax.tree.leaves(rows)[0], self.emission.states
        if jax.default_backend() != "cpu":
            return max(1, ROOM // (y.shape[1] * k))
        side = SMALL // (k * jnp.dtype(jnp.result_type(float)).itemsize)
        return side - side % 8 if side >= 8 else max(side, 4)

    def by_group(self, function: Callable, rows: PyTree) -> PyTree:
        """``function`` of as many sequences at a time as run in parallel."""
        rows = self._checked(rows)
        return in_groups(function, rows, self.lanes(rows))

    def as_rows(self, path: jax.Array, x: PyTree) -> jax.Array:
        """Paths (T, …) as (n, T), −1 after the last observed step."""
        return jnp.where(after(self.emission.there(x)), path, -1).reshape(len(path), -1).T

    def log_prob(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), (n,), nats."""

        def of_group(rows: PyTree) -> jax.Array:
            return jnp.atleast_1d(fb.log_prob(theta.initial, theta.transition, self.log_b(theta, rows)))

        return self.by_group(of_group, rows)

    def smoothed(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """p(z_t | x_n, θ), (n, T, K); 0 after the last observed step."""

        def of_group(rows: PyTree) -> jax.Array:
            x = self.emission.arrange(rows)
            found = fb.passed(theta.initial, theta.transition, self.emission.log_density(theta.emission, x))[0]
            return _rows(found.smoothed * after(self.emission.there(x))[:, None])

        return self.by_group(of_group, rows)

    def filtered(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """p(z_t | x_1 … x_t, θ), (n, T, K)."""

        def of_group(rows: PyTree) -> jax.Array:
            b, _ = fb.log_b_scaled(self.log_b(theta, rows))
            return _rows(fb.forward(theta.initial, theta.transition, b)[0])

        return self.by_group(of_group, rows)

    def paths(self, theta: HiddenMarkov, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Viterbi's path (n, T), −1 after the last observed step, and log p(x, path | θ) (n,)."""

        def of_group(rows: PyTree) -> tuple[jax.Array, jax.Array]:
            x = self.emission.arrange(rows)
            logs = self.emission.log_density(theta.emission, x)
            path, value = fb.viterbi(theta.initial, theta.transition, logs)
            return self.as_rows(path, x), jnp.atleast_1d(value)

        return self.by_group(of_group, rows)

    def drawn_paths(self, key: jax.Array, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """A path for each sequence from p(z | x, θ), (n, T); −1 after the last observed step."""
        rows = self._checked(rows)
        y = jax.tree.leaves(rows)[0]
        uniform = jax.random.uniform(key, y.shape[:2], theta.initial.dtype)

        def of_group(both: tuple[PyTree, jax.Array]) -> jax.Array:
            x = self.emission.arrange(both[0])
            b, _ = fb.log_b_scaled(self.emission.log_density(theta.emission, x))
            filtered, _ = fb.forward(theta.initial, theta.transition, b)
            return self.as_rows(fb.drawn_path(_lanes(both[1]), theta.transition, filtered), x)

        return in_groups(of_group, (rows, uniform), self.lanes(rows))

    def complete(self, theta: HiddenMarkov, rows: PyTree, path: jax.Array) -> jax.Array:
        """log p(x_n, path | θ), (n,), of paths (n, T) as ``drawn_paths`` makes them."""
        logs, there = _rows(self.log_b(theta, self._checked(rows))), path >= 0
        at = jnp.maximum(path, 0)
        shown = jnp.take_along_axis(logs, at[:, :, None], axis=2)[:, :, 0]
        moves = jnp.log(theta.transition)[at[:, :-1], at[:, 1:]]
        logs = jnp.where(there, shown, 0).at[:, 1:].add(jnp.where(there[:, 1:], moves, 0))
        return jnp.sum(logs, axis=1) + jnp.where(there[:, 0], jnp.log(theta.initial)[at[:, 0]], 0)

    def m_step(self, sums: Passes) -> HiddenMarkov:
        initial, transition = jnp.asarray(sums.initial), jnp.asarray(sums.transition)
        tiny = 10 * jnp.finfo(initial.dtype).eps  # keeps log 0 out
        initial, transition = (a + self.counts + tiny for a in (initial, transition))
        emission = self.emission.m_step(sums.emission)
        return HiddenMarkov(
            initial / jnp.sum(initial), transition / jnp.sum(transition, axis=1, keepdims=True), emission
        )

    def q(self, data: Complete) -> Callable[[HiddenMarkov], jax.Array]:
        """``theta -> Q``, for an emission without a closed-form M-step."""

        def value(theta: HiddenMarkov) -> jax.Array:
            shown = jnp.where(data.shares > 0, data.shares * self.log_b(theta, data.rows), 0)
            moves = jnp.sum(data.transition * jnp.log(theta.transition))
            return jnp.sum(shown) + jnp.sum(data.initial * jnp.log(theta.initial)) + moves

        return value

    def begin(self, key: jax.Array, rows: PyTree) -> HiddenMarkov:
        """A start: clusters the steps regardless of their order, and favours staying in a state."""
        k, emission = self.emission.states, self.emission
        key_moves, key_emission = jax.random.split(key)
        moves = jax.random.dirichlet(key_moves, jnp.ones(k), (k,))
        moves = 0.5 * jnp.eye(k) + 0.25 * moves + 0.25 / k
        if isinstance(emission, Own):
            return HiddenMarkov(jnp.full(k, 1 / k), moves, emission.draw_prior(key_emission))
        x = np.concatenate([x[~np.isnan(x).all(1)] for x in steps_of(rows)])
        chosen, shares = emission.guessed(key_emission, x)
        theta = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), emission.example()[0])
        sums = emission.sums(theta, jnp.asarray(chosen), jnp.asarray(shares), jnp.ones(()))
        return HiddenMarkov(jnp.full(k, 1 / k), moves, emission.m_step(sums))

    def examine(self, theta: HiddenMarkov, size: int) -> list[Check]:
        """The report's checks of a maximum."""
        least = self.emission.least_sd(theta.emission)
        if least > 2:
            return []
        sentence = (
            "least sd over its floor: a state collapsed onto steps that are equal, where nothing bounds the density"
        )
        return [Check("states at the floor", least, "reject", sentence)]

    def permuted(self, theta: HiddenMarkov, order: jax.Array) -> HiddenMarkov:
        """θ with its states in another order."""
        emission = jax.tree.map(lambda a: a[order], theta.emission)
        return HiddenMarkov(theta.initial[order], theta.transition[order][:, order], emission)

    def sample(self, key: jax.Array, theta: HiddenMarkov, n: int) -> tuple[jax.Array, jax.Array]:
        """Sequences (n, T) or (n, T, d) and their states (n, T)."""
        return self.simulated(key, theta, n, self.length or 1)

    def simulated(
        self, key: jax.Array, theta: HiddenMarkov, n: int, length: int, given: PyTree = None
    ) -> tuple[jax.Array, jax.Array]:
        key_states, key_x = jax.random.split(key)
        log_a = jnp.log(theta.transition)

        def step(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.random.categorical(key, log_a[state]), state

        first = jax.random.categorical(key_states, jnp.log(theta.initial)[None], shape=(n,))
        keys = jax.random.split(jax.random.fold_in(key_states, 1), length)
        states = jax.lax.scan(step, first, keys)[1].T  # (n, T)
        return self.shown(key_x, theta, states, given), states

    def shown(self, key: jax.Array, theta: HiddenMarkov, states: jax.Array, given: PyTree = None) -> jax.Array:
        """Draws of the emissions of states (n, T)."""

        def one(key: jax.Array, state: jax.Array, *x: jax.Array) -> jax.Array:
            theta_k = jax.tree.map(lambda a: a[state], theta.emission)
            return jnp.asarray(self.emission.of_state(theta_k, *x).sample(key))

        keys = jax.random.split(key, states.shape)
        drawn: Any = jax.vmap(jax.vmap(one))(keys, states, *(() if given is None else (given,)))
        return drawn.astype(jnp.result_type(float))

    def ahead(self, theta: HiddenMarkov, x: PyTree, rows: tuple[PyTree, PyTree]) -> "Ahead":
        """The distribution of the steps after the last observed one.

        Args:
            x: the number of steps, 1 by default; if the emission takes inputs, their inputs (n, H, …).
        """
        y, given = rows
        rows = y if given is None else rows
        if (given is not None) != (not is_whole(1 if x is None else x)):
            what = "inputs (n, H, ...) of the steps ahead" if given is not None else "how many steps ahead, such as 7"
            raise SettingsError(f"predict(x) of sequences expects {what}; got {x!r}.")
        count = (1 if x is None else int(x)) if given is None else jax.tree.leaves(x)[0].shape[1]
        now = self.filtered(theta, rows)  # (n, T, K)
        there = self.emission.there(self.emission.arrange(rows))
        seen = after(there[:, None] if there.ndim == 1 else there)  # (T, n), of one sequence too
        last = jnp.maximum(jnp.sum(seen, axis=0).astype(int) - 1, 0)
        now = jnp.take_along_axis(now, last[:, None, None], axis=1)[:, 0]

        def step(shares: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            shares = jnp.matmul(shares, theta.transition, precision="highest")
            return shares, shares

        shares = jnp.moveaxis(jax.lax.scan(step, now, length=count)[1], 0, 1)  # (n, H, K)
        return Ahead(self, theta, shares, None if given is None else jnp.asarray(x))

    def check(self, rows: PyTree) -> None:
        """Raises a DataError for sequences that no state can emit."""
        self._expect(rows)
        if not isinstance(self.emission, Own):
            for x in steps_of(rows):
                self.emission.check(x)

    def _checked(self, rows: PyTree) -> PyTree:
        self._expect(rows)
        return jax.tree.map(jnp.asarray, rows)

    def _expect(self, rows: PyTree) -> None:
        """Raises a DataError for rows of another shape."""
        shape, features = jnp.shape(jax.tree.leaves(rows)[0]), self.emission.features
        if isinstance(self.emission, Own):
            if len(shape) < 2:
                raise DataError(f"Expected sequences of shape (n, T, ...), filled up with NaN; got {shape}.")
            return
        if isinstance(rows, tuple):
            raise DataError("A built-in emission looks at no inputs: leave given= out, or write emission(params, x).")
        if len(shape) != (2 if features is None else 3) or shape[2:] not in ((), (features,)):
            what = "(n, T)" if features is None else f"(n, T, {features})"
            raise DataError(f"Expected sequences of shape {what}, filled up with NaN; got {shape}.")


class Ahead(NamedTuple):
    """The distribution of the next H steps of n sequences; classes are given by their indicators."""

    chain: Chain
    theta: HiddenMarkov
    shares: jax.Array  # (n, H, K)
    given: jax.Array | None  # (n, H, …)

    def _moments(self) -> tuple[jax.Array, jax.Array]:
        """Mean and variance given each state, (n or 1, H or 1, K, …)."""

        def at(*x: jax.Array) -> tuple[jax.Array, jax.Array]:
            def of_state(theta: PyTree) -> tuple[jax.Array, jax.Array]:
                shown: Any = self.chain.emission.of_state(theta, *x)
                categorical = isinstance(shown, dist.CategoricalProbs | dist.CategoricalLogits)
                classes = getattr(shown, "probs", None) if categorical else None
                moments = (shown.mean, shown.variance) if classes is None else (classes, classes * (1 - classes))
                return jnp.asarray(moments[0]), jnp.asarray(moments[1])

            return jax.vmap(of_state)(jax.tree.map(jnp.asarray, self.theta.emission))

        if self.given is None:
            return jax.tree.map(lambda a: a[None, None], at())
        return jax.vmap(jax.vmap(at))(self.given)

    @property
    def mean(self) -> jax.Array:
        return _mixed(self.shares, self._moments()[0])

    @property
    def variance(self) -> jax.Array:
        means, variances = self._moments()
        mean = _mixed(self.shares, means)
        return _mixed(self.shares, variances + jnp.square(means - mean[:, :, None]))

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws from each step's marginal distribution, independently."""
        count = int(np.prod(shape))

        def one(key: jax.Array) -> jax.Array:
            key_states, key_shown = jax.random.split(key)
            states = jax.random.categorical(key_states, jnp.log(self.shares))
            drawn: Any = self.chain.shown(key_shown, self.theta, states, self.given)
            levels = self._moments()[0].shape[3:]
            return drawn if levels == drawn.shape[2:] else jax.nn.one_hot(drawn, levels[0], dtype=drawn.dtype)

        drawn = jax.lax.map(one, jax.random.split(key, count))
        return drawn.reshape(*shape, *drawn.shape[1:])


def _mixed(shares: jax.Array, parts: jax.Array) -> jax.Array:
    """Σ_k shares_k parts_k, for shares (n, H, K) and parts (n or 1, H or 1, K, …)."""
    return jnp.sum(shares.reshape(shares.shape + (1,) * (parts.ndim - 3)) * parts, axis=2)


class HiddenMarkovModel(LatentModel):
    """A ``LatentModel`` of sequences, made by ``hidden_markov``.

    ``responsibilities(theta, y)`` gives p(z_t | x, θ), (n, T, K); ``filtered`` the same given steps up to t only;
    ``paths`` Viterbi's paths; ``drawn_paths`` draws of whole paths; ``simulate`` new sequences and their states.
    """

    own: ClassVar[tuple[str, ...]] = ("chain",)
    chain: Chain

    def filtered(self, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """p(z_t | x_1 … x_t, θ), (n, T, K)."""
        return self.chain.filtered(arrays(theta), y)

    def paths(self, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """The likeliest path of states of each sequence, (n, T), states from 0; −1 after the last observed step."""
        return self.chain.paths(arrays(theta), y)[0]

    def drawn_paths(self, key: jax.Array, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """A path for each sequence drawn from p(z | x, θ), (n, T); −1 after the last observed step."""
        return self.chain.drawn_paths(key, arrays(theta), y)

    def simulate(self, key: jax.Array, theta: HiddenMarkov, n: int, steps: int) -> tuple[jax.Array, jax.Array]:
        """n new sequences of ``steps`` steps, and their states, (n, T)."""
        return self.chain.simulated(key, arrays(theta), n, steps)


def shares(theta: HiddenMarkov) -> jax.Array:
    """(K,) the long-run share of time spent in each state, starting from π."""
    lazy = 0.5 * (theta.transition + jnp.eye(len(theta.initial), dtype=theta.transition.dtype))  # made aperiodic

    def twice(_: ArrayLike, power: jax.Array) -> jax.Array:
        power = jnp.matmul(power, power, precision="highest")
        return power / jnp.sum(power, axis=1, keepdims=True)

    return jnp.matmul(theta.initial, jax.lax.fori_loop(0, 30, twice, lazy), precision="highest")


def _counting(rows: PyTree, weights: jax.Array) -> PyTree:
    """The rows, with those of weight 0, which may hold anything, set to NaN (missing)."""
    y = jnp.asarray(rows[0] if isinstance(rows, tuple) else rows, weights.dtype)
    y = jnp.where((weights > 0).reshape(-1, *(1,) * (y.ndim - 1)), y, jnp.nan)
    return (y, rows[1]) if isinstance(rows, tuple) else y
