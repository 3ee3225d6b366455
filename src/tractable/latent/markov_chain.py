"""The computations of a hidden Markov model: its E-step and M-step, its densities, its paths and its forecasts.

The passes over a sequence are in ``forward_backward``, and the densities of a step in ``emissions``. Sequences are
computed in parallel, in groups that fit a processor's cache or an accelerator's memory (docs/decisions/040).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tractable.core.check import Check
from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Batch, PyTree
from tractable.core.settings import is_whole
from tractable.core.sums import Expected, accumulate, observed
from tractable.latent import forward_backward as fb
from tractable.latent.emissions import Emission
from tractable.latent.series import expect_sequences, in_groups, steps_of, up_to_last

SMALL = 1280  # bytes of one step's densities up to which a CPU's loop over steps is one kernel, and twice as fast
LONG = 1 << 19  # number of densities (steps × states × sequences) above which a CPU computes the steps in pieces
PIECE = 1 << 14  # number of densities in a piece; a cache holds several arrays of this size
ROOM = 1 << 27  # largest number of densities in a group of sequences on an accelerator


class HiddenMarkov(NamedTuple):
    """θ of a hidden Markov model."""

    initial: Any  # (K,) π
    transition: Any  # (K, K) A; row i: p(z_{t+1} | z_t = i)
    emission: Any  # the emission's parameters, leading axis K


class ChainStatistics(NamedTuple):
    """Expected statistics summed over sequences, for the M-step."""

    initial: Any  # (K,) expected counts of first states
    transition: Any  # (K, K) expected counts of transitions
    emission: Any


class Chain(NamedTuple):
    """The settings of a hidden Markov model, and its computations."""

    emission: Emission
    counts: float  # c, pseudo-observations of π and of each row of A
    length: int | None  # of the sequences that the model draws

    # The E-step and the M-step.

    def log_b(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """Log densities of the steps given each state, (T, K, n), or (T, K) for one sequence."""
        return self.emission.log_density(theta.emission, self.emission.arrange(rows))

    def e_step(self, theta: HiddenMarkov, batch: Batch) -> Expected:
        weights, emission = jnp.asarray(batch.mask, theta.initial.dtype), self.emission
        y, k = self._check_rows(observed(batch)), emission.states

        def of_group(theta: HiddenMarkov, batch: Batch) -> Expected:
            # Rows of weight 0 may hold anything: all their steps count as missing.
            rows = jnp.asarray(batch.data, batch.mask.dtype)
            rows = jnp.where((batch.mask > 0).reshape(-1, *(1,) * (rows.ndim - 1)), rows, jnp.nan)
            if jax.default_backend() == "cpu" and rows.shape[0] * rows.shape[1] * k > LONG:
                return self.e_step_in_pieces(theta, rows, batch.mask)
            x = emission.arrange(rows)
            passes, log_prob = fb.smooth(theta.initial, theta.transition, emission.log_density(theta.emission, x))
            mask = batch.mask if log_prob.ndim else batch.mask[0]
            counted = up_to_last(emission.is_observed(x)) * mask[None]  # (T, n), or (T,) for one sequence
            first = (passes.smoothed[0] * mask[None]).reshape(k, -1).sum(1)
            moves = fb.moves(theta.transition, passes, counted[1:])
            sums = emission.sums(theta.emission, x, passes.smoothed * counted[:, None], jnp.sum(batch.mask))
            return Expected(ChainStatistics(first, moves, sums), jnp.sum(mask * log_prob))

        def of_all(theta: HiddenMarkov) -> Expected:
            return accumulate(of_group, theta, y, weights, self.lanes(y))

        # A CPU computes several θ one after another: all together they would exceed ``SMALL`` bytes per step.
        return (jax.custom_batching.sequential_vmap(of_all) if jax.default_backend() == "cpu" else of_all)(theta)

    def e_step_in_pieces(self, theta: HiddenMarkov, rows: jax.Array, weights: jax.Array) -> Expected:
        """The E-step of long sequences on a CPU, for one piece of their steps at a time."""
        emission, k, (n, steps) = self.emission, self.emission.states, rows.shape[:2]
        size = max(1, PIECE // (n * k))
        count = -(-steps // size)
        padding = jnp.full((n, count * size - steps, *rows.shape[2:]), jnp.nan, rows.dtype)
        rows, total = jnp.concatenate([rows, padding], axis=1), jnp.sum(weights)
        is_counted = up_to_last(emission.is_observed(emission.arrange(rows)))
        counted = (is_counted * (weights[None] if n > 1 else weights[0])).reshape(count, size, *is_counted.shape[1:])
        y = rows.reshape(n, count, size, *rows.shape[2:]).swapaxes(0, 1)
        pieces = y, counted, jnp.concatenate([counted[1:, 0], jnp.zeros_like(counted[:1, 0])])

        def log_b(piece: tuple) -> jax.Array:
            return self.log_b(theta, piece[0])

        def sums_of_piece(piece: tuple, passes: fb.Passes, crossing: jax.Array) -> tuple[PyTree, jax.Array]:
            y, counted, next_counted = piece
            shares = passes.smoothed * counted[:, None]
            sums = emission.sums(theta.emission, emission.arrange(y), shares, total / count)
            moves = fb.moves(theta.transition, passes, counted[1:])
            return sums, moves + jnp.sum((crossing * next_counted[None, None]).reshape(k, k, -1), axis=2)

        results = fb.smooth_in_pieces(theta.initial, theta.transition, log_b, pieces, sums_of_piece)
        (sums, moves), first, log_prob = results
        first = (first * counted[0, 0][None]).reshape(k, -1).sum(1)
        return Expected(ChainStatistics(first, moves, sums), jnp.sum(weights * log_prob))

    def m_step(self, sums: ChainStatistics) -> HiddenMarkov:
        initial, transition = jnp.asarray(sums.initial), jnp.asarray(sums.transition)
        tiny = 10 * jnp.finfo(initial.dtype).eps  # avoids log 0
        initial, transition = (a + self.counts + tiny for a in (initial, transition))
        transition = transition / jnp.sum(transition, axis=1, keepdims=True)
        return HiddenMarkov(initial / jnp.sum(initial), transition, self.emission.m_step(sums.emission))

    # Densities and paths.

    def lanes(self, rows: PyTree) -> int:
        """The number of sequences computed in parallel."""
        y, k = jax.tree.leaves(rows)[0], self.emission.states
        if jax.default_backend() != "cpu":
            return max(1, ROOM // (y.shape[1] * k))
        count = SMALL // (k * jnp.dtype(jnp.result_type(float)).itemsize)
        return count - count % 8 if count >= 8 else max(count, 4)

    def by_group(self, function: Callable, rows: PyTree) -> PyTree:
        """The results of ``function`` for all sequences, computed by groups of ``lanes(rows)`` sequences."""
        rows = self._check_rows(rows)
        return in_groups(function, rows, self.lanes(rows))

    def as_rows(self, path: jax.Array, x: PyTree) -> jax.Array:
        """Paths (T, …) as (n, T), −1 after the last observed step."""
        return jnp.where(up_to_last(self.emission.is_observed(x)), path, -1).reshape(len(path), -1).T

    def log_prob(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """log p(x_n | θ), (n,), in nats (natural logarithms)."""

        def of_group(rows: PyTree) -> jax.Array:
            return jnp.atleast_1d(fb.log_prob(theta.initial, theta.transition, self.log_b(theta, rows)))

        return self.by_group(of_group, rows)

    def smoothed(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """p(z_t | x_n, θ), (n, T, K); 0 after the last observed step."""

        def of_group(rows: PyTree) -> jax.Array:
            x = self.emission.arrange(rows)
            passes = fb.smooth(theta.initial, theta.transition, self.emission.log_density(theta.emission, x))[0]
            return _rows(passes.smoothed * up_to_last(self.emission.is_observed(x))[:, None])

        return self.by_group(of_group, rows)

    def filtered(self, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """p(z_t | x_1 … x_t, θ), (n, T, K)."""

        def of_group(rows: PyTree) -> jax.Array:
            b, _ = fb.log_b_scaled(self.log_b(theta, rows))
            return _rows(fb.forward(theta.initial, theta.transition, b)[0])

        return self.by_group(of_group, rows)

    def likeliest_paths(self, theta: HiddenMarkov, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        """Viterbi's path (n, T), −1 after the last observed step, and log p(x, path | θ) (n,)."""

        def of_group(rows: PyTree) -> tuple[jax.Array, jax.Array]:
            x = self.emission.arrange(rows)
            logs = self.emission.log_density(theta.emission, x)
            path, value = fb.viterbi(theta.initial, theta.transition, logs)
            return self.as_rows(path, x), jnp.atleast_1d(value)

        return self.by_group(of_group, rows)

    def draw_paths(self, key: jax.Array, theta: HiddenMarkov, rows: PyTree) -> jax.Array:
        """A draw of each sequence's path from p(z | x, θ), (n, T); −1 after the last observed step."""
        rows = self._check_rows(rows)
        uniform = jax.random.uniform(key, rows.shape[:2], theta.initial.dtype)

        def of_group(both: tuple[PyTree, jax.Array]) -> jax.Array:
            x = self.emission.arrange(both[0])
            b, _ = fb.log_b_scaled(self.emission.log_density(theta.emission, x))
            filtered, _ = fb.forward(theta.initial, theta.transition, b)
            uniform = both[1][0] if len(both[1]) == 1 else both[1].T
            return self.as_rows(fb.draw_path(uniform, theta.transition, filtered), x)

        return in_groups(of_group, (rows, uniform), self.lanes(rows))

    def joint_log_prob(self, theta: HiddenMarkov, rows: PyTree, path: jax.Array) -> jax.Array:
        """log p(x_n, path | θ), (n,), of paths (n, T) as ``draw_paths`` makes them."""
        logs, is_counted = _rows(self.log_b(theta, self._check_rows(rows))), path >= 0
        states = jnp.maximum(path, 0)
        of_steps = jnp.take_along_axis(logs, states[:, :, None], axis=2)[:, :, 0]
        moves = jnp.log(theta.transition)[states[:, :-1], states[:, 1:]]
        logs = jnp.where(is_counted, of_steps, 0).at[:, 1:].add(jnp.where(is_counted[:, 1:], moves, 0))
        return jnp.sum(logs, axis=1) + jnp.where(is_counted[:, 0], jnp.log(theta.initial)[states[:, 0]], 0)

    # Starts, checks, simulated sequences and forecasts.

    def begin(self, key: jax.Array, rows: PyTree) -> HiddenMarkov:
        """A starting θ: emissions from clusters of the steps, whatever their order, and moves that favour staying."""
        k, emission = self.emission.states, self.emission
        key_moves, key_emission = jax.random.split(key)
        moves = jax.random.dirichlet(key_moves, jnp.ones(k), (k,))
        moves = 0.5 * jnp.eye(k) + 0.25 * moves + 0.25 / k
        x = np.concatenate([x[~np.isnan(x).all(1)] for x in steps_of(rows)])
        steps, shares = emission.guess_states(key_emission, x)
        theta = jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), emission.example()[0])
        sums = emission.sums(theta, jnp.asarray(steps), jnp.asarray(shares), jnp.ones(()))
        return HiddenMarkov(jnp.full(k, 1 / k), moves, emission.m_step(sums))

    def examine(self, theta: HiddenMarkov, size: int) -> list[Check]:
        """The report's checks of a maximum."""
        least = self.emission.least_sd(theta.emission)
        if least > 2:
            return []
        sentence = "smallest sd / its floor: a state collapsed onto equal steps, where the density is unbounded"
        return [Check("states at the floor", least, "reject", sentence)]

    def permute(self, theta: HiddenMarkov, order: jax.Array) -> HiddenMarkov:
        """θ with its states in another order."""
        emission = jax.tree.map(lambda a: a[order], theta.emission)
        return HiddenMarkov(theta.initial[order], theta.transition[order][:, order], emission)

    def sample(self, key: jax.Array, theta: HiddenMarkov, n: int) -> tuple[jax.Array, jax.Array]:
        """n sequences and their states; the length is the ``steps=`` that the model was made with."""
        return self.simulate(key, theta, n, self.length or 1)

    def simulate(self, key: jax.Array, theta: HiddenMarkov, n: int, length: int) -> tuple[jax.Array, jax.Array]:
        """Sequences (n, T) or (n, T, d), and their states (n, T)."""
        key_states, key_x = jax.random.split(key)
        log_a = jnp.log(theta.transition)

        def step(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.random.categorical(key, log_a[state]), state

        first = jax.random.categorical(key_states, jnp.log(theta.initial)[None], shape=(n,))
        keys = jax.random.split(jax.random.fold_in(key_states, 1), length)
        states = jax.lax.scan(step, first, keys)[1].T  # (n, T)
        return self.draw_steps(key_x, theta, states), states

    def draw_steps(self, key: jax.Array, theta: HiddenMarkov, states: jax.Array) -> jax.Array:
        """Steps drawn given their states (n, T)."""

        def one(key: jax.Array, state: jax.Array) -> jax.Array:
            theta_k = jax.tree.map(lambda a: a[state], theta.emission)
            return jnp.asarray(self.emission.of_state(theta_k).sample(key))

        return jax.vmap(jax.vmap(one))(jax.random.split(key, states.shape), states).astype(jnp.result_type(float))

    def forecast(self, theta: HiddenMarkov, x: PyTree, rows: tuple[PyTree, PyTree]) -> "Forecast":
        """The distribution of the steps after the last observed one; x is the number of these steps, 1 by default."""
        if x is not None and not is_whole(x):
            raise SettingsError(f"predict(x) of sequences expects how many steps ahead, such as 7; got {x!r}.")
        y = rows[0]
        filtered = self.filtered(theta, y)  # (n, T, K)
        is_observed = self.emission.is_observed(self.emission.arrange(y)).reshape(filtered.shape[1], -1)  # (T, n)
        last = jnp.maximum(jnp.sum(up_to_last(is_observed), axis=0).astype(int) - 1, 0)
        shares = jnp.take_along_axis(filtered, last[:, None, None], axis=1)[:, 0]

        def step(shares: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            shares = jnp.matmul(shares, theta.transition, precision="highest")
            return shares, shares

        shares = jax.lax.scan(step, shares, length=1 if x is None else int(x))[1]
        return Forecast(self, theta, jnp.moveaxis(shares, 0, 1))

    def check(self, rows: PyTree) -> None:
        """Raise a DataError for sequences that no state can emit."""
        self._check_rows(rows)
        for x in steps_of(rows):
            self.emission.check(x)

    def _check_rows(self, rows: PyTree) -> jax.Array:
        """The rows on the device; raises a DataError if they have another shape."""
        if isinstance(rows, tuple):
            raise DataError("hidden_markov takes no inputs: leave given= out.")
        expect_sequences(rows, self.emission.features)
        return jnp.asarray(rows)


class Forecast(NamedTuple):
    """The distribution of the next H steps of n sequences; a class is represented by its indicators (one-hot)."""

    chain: Chain
    theta: HiddenMarkov
    shares: jax.Array  # (n, H, K) p(z | x) of the steps ahead

    def _moments(self) -> tuple[jax.Array, jax.Array]:
        """Mean and variance given each state, (K, …)."""

        def of_state(theta: PyTree) -> tuple[jax.Array, jax.Array]:
            step: Any = self.chain.emission.of_state(theta)
            if isinstance(step, dist.CategoricalProbs):
                probs = jnp.asarray(step.probs)
                return probs, probs * (1 - probs)
            return jnp.asarray(step.mean), jnp.asarray(step.variance)

        return jax.vmap(of_state)(jax.tree.map(jnp.asarray, self.theta.emission))

    @property
    def mean(self) -> jax.Array:
        return _mix(self.shares, self._moments()[0][None, None])

    @property
    def variance(self) -> jax.Array:
        means, variances = self._moments()
        mean = _mix(self.shares, means[None, None])
        return _mix(self.shares, variances[None, None] + jnp.square(means[None, None] - mean[:, :, None]))

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Independent draws from the marginal distribution of each step."""

        def one(key: jax.Array) -> jax.Array:
            key_states, key_steps = jax.random.split(key)
            states = jax.random.categorical(key_states, jnp.log(self.shares))
            steps = self.chain.draw_steps(key_steps, self.theta, states)
            levels = self._moments()[0].shape[1:]
            return steps if levels == steps.shape[2:] else jax.nn.one_hot(steps, levels[0], dtype=steps.dtype)

        draws = jax.lax.map(one, jax.random.split(key, int(np.prod(shape))))
        return draws.reshape(*shape, *draws.shape[1:])


def _rows(a: jax.Array) -> jax.Array:
    """(T, K, n) or (T, K) to (n, T, K)."""
    return a[None] if a.ndim == 2 else jnp.transpose(a, (2, 0, 1))


def _mix(shares: jax.Array, parts: jax.Array) -> jax.Array:
    """Σ_k shares_k parts_k, for shares (n, H, K) and parts (1 or n, 1 or H, K, …)."""
    return jnp.sum(shares.reshape(shares.shape + (1,) * (parts.ndim - 3)) * parts, axis=2)
