"""Hidden Markov models of sequences: ``hidden_markov``, the model it makes, and θ's prior.

A datum is a sequence of steps. Sequences of unequal length are rows of one array, padded with NaN; NaN also marks a
missing step. Padding and missing steps are summed over exactly, and transitions after the last observed step do not
count. So no lengths are stored, and batches, files, devices and folders treat sequences like any other rows.
``markov_chain`` has the computations.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.numbers import Numbers, Real
from tractable.core.settings import expect_whole
from tractable.core.shared import shared
from tractable.core.words import removed, spelt
from tractable.latent import emissions
from tractable.latent.columns import check_sizes
from tractable.latent.markov_chain import Chain, HiddenMarkov
from tractable.latent.series import check_settings, expect_numbers, observed_steps, on_device

FAMILIES = ("normal", "multivariate-normal", "poisson", "bernoulli", "categorical")


@spelt
@removed(prior="an emission that is a function was removed too; write such a model as a LatentModel.")
def hidden_markov(
    states: int,
    emission: str = "normal",
    features: int | None = None,
    *,
    classes: int | None = None,
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
        emission: "normal" (independent numbers given the state), "multivariate-normal", "poisson", "bernoulli" or
            "categorical".
        features: d numbers per step; None if a step is one number.
        classes: L for a "categorical" emission, whose x is 0 … L − 1.
        prior_counts: c ≥ 0; 0 for maximum likelihood.
        centre, scale: prior guesses of the location and spread of a normal emission's numbers. With both, means and
            spreads have a prior worth c steps (``latent.emissions``), which NUTS and evidence need; without scale their
            prior is flat. For counts, centre is their expected mean, 1 by default.
        floor: ≥ 0, smallest variance of a normal emission, in the units of x²: without it the likelihood is unbounded.
        steps: T, length of the sequences that the model draws (``model.sample``, ``tr.calibrate``); the data must then
            have the same T.

    Returns:
        A ``HiddenMarkovModel``, whose θ is a ``HiddenMarkov``. States are sorted by the share of time spent in them.

    Raises:
        ModelError: a setting is out of range. DataError: sequences have another shape, or values that no state emits.

    >>> hidden_markov(3).parameters
    14
    """
    check_sizes(states=states)
    check_settings({"steps": steps, "features": features}, {"prior_counts": prior_counts, "floor": floor})
    if emission not in FAMILIES:
        raise ModelError(f"emission is {', '.join(map(repr, FAMILIES))}; got {emission!r}.")
    if (emission == "categorical") != (classes is not None):
        raise ModelError("classes= is the number of classes of a 'categorical' emission, and of no other.")
    if emission == "categorical" and features is not None:
        raise ModelError("A 'categorical' step is one class: leave features= out.")
    if emission == "multivariate-normal" and features is None:
        raise ModelError("A 'multivariate-normal' step is a vector: give features=.")
    return make_model(states, emission, features, classes, prior_counts, centre, scale, floor, steps)


@shared
def make_model(
    states: int, emission: str, features: int | None, classes: int | None, prior_counts: Real,
    centre: Numbers | Real | None, scale: Numbers | Real | None, floor: Real, steps: int | None,
) -> "HiddenMarkovModel":  # fmt: skip
    """``hidden_markov`` for settings that have been checked; equal arguments give the same model object."""
    sizes, c = (int(states), features), float(prior_counts)
    numbers = 1 if features is None else features
    if emission in ("normal", "multivariate-normal"):
        kind = emissions.Normal if emission == "normal" else emissions.FullNormal
        spread = None if scale is None or c == 0 else expect_numbers("scale", scale, numbers, 0.0)
        family = kind(
            *sizes, c, float(floor), expect_numbers("centre", 0.0 if centre is None else centre, numbers), spread
        )
    elif emission == "poisson":
        centres = expect_numbers("centre", 1.0 if centre is None else centre, numbers, 0.0)
        family = emissions.Poisson(*sizes, c, centres)
    elif emission == "bernoulli":
        family = emissions.Bernoulli(*sizes, c)
    else:
        expect_whole("classes", classes, ModelError)
        family = emissions.Categorical(*sizes, c, int(classes or 0))
    return build_model(Chain(family, c, steps))


def build_model(chain: Chain) -> "HiddenMarkovModel":
    """The model that computes with this chain."""
    emission, support = chain.emission.example()
    k, simplex = chain.emission.states, constraints.simplex
    model = HiddenMarkovModel.from_steps(
        chain.e_step, chain.m_step, chain.log_prob,
        HiddenMarkov(np.full(k, 1 / k), np.full((k, k), 1 / k), emission),
        support=HiddenMarkov(simplex, simplex, support),
        prior=(DrawablePrior if chain.emission.drawable else ChainPrior)(chain),
        responsibilities=chain.smoothed, sample=None if chain.length is None else chain.sample,
        begin=chain.begin, examine=chain.examine, permute=chain.permute,
        # States sorted by the share of time spent in them, the largest first.
        canonical=lambda theta: chain.permute(theta, jnp.argsort(-shares(theta))),
        drawn=chain.draw_paths, complete=chain.joint_log_prob,
    )  # fmt: skip
    model.chain = chain
    return model.with_steps(check=chain.check, observations=observed_steps, ahead=chain.forecast)


class HiddenMarkovModel(LatentModel):
    """A ``LatentModel`` of sequences, made by ``hidden_markov``.

    ``responsibilities(theta, y)`` gives p(z_t | x, θ), (n, T, K); ``filtered`` gives the same from the steps up to t
    only; ``paths`` gives Viterbi's paths, ``drawn_paths`` random paths, and ``simulate`` new sequences and their
    states.
    """

    own: ClassVar[tuple[str, ...]] = ("chain",)
    chain: Chain

    def filtered(self, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """p(z_t | x_1 … x_t, θ), (n, T, K)."""
        return self.chain.filtered(on_device(theta), y)

    def paths(self, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """Each sequence's likeliest path of states 0 … K − 1, (n, T); −1 after the last observed step."""
        return self.chain.likeliest_paths(on_device(theta), y)[0]

    def drawn_paths(self, key: jax.Array, theta: HiddenMarkov, y: ArrayLike) -> jax.Array:
        """A path for each sequence drawn from p(z | x, θ), (n, T); −1 after the last observed step."""
        return self.chain.draw_paths(key, on_device(theta), y)

    def simulate(self, key: jax.Array, theta: HiddenMarkov, n: int, steps: int) -> tuple[jax.Array, jax.Array]:
        """n new sequences of ``steps`` steps, and their states, (n, T)."""
        return self.chain.simulate(key, on_device(theta), n, steps)


class ChainPrior(NamedTuple):
    """``params -> log p(θ)``: Dirichlet(1 + c) for π and each row of A, and the emission's own prior."""

    chain: Chain

    def __call__(self, theta: HiddenMarkov) -> jax.Array:
        total = self.chain.emission.log_prior(theta.emission) if self.chain.counts else 0.0
        parts = dist.Dirichlet(1 + self.chain.counts * jnp.ones(self.chain.emission.states, theta.initial.dtype))
        return total + parts.log_prob(theta.initial) + jnp.sum(parts.log_prob(theta.transition))


class DrawablePrior(ChainPrior):
    """A ``ChainPrior`` from which θ can be drawn."""

    def sample(self, key: jax.Array) -> HiddenMarkov:
        first, moves, emission = jax.random.split(key, 3)
        k = self.chain.emission.states
        counts = (1 + self.chain.counts) * jnp.ones(k)
        return HiddenMarkov(
            jax.random.dirichlet(first, counts), jax.random.dirichlet(moves, counts, (k,)),
            self.chain.emission.draw_prior(emission),
        )  # fmt: skip


def shares(theta: HiddenMarkov) -> jax.Array:
    """The long-run share of time spent in each state, (K,), starting from π."""
    # A chain that stays in its state in half of the steps has the same shares; as it has no period, they converge.
    lazy = 0.5 * (theta.transition + jnp.eye(len(theta.initial), dtype=theta.transition.dtype))

    def square(_: ArrayLike, power: jax.Array) -> jax.Array:
        power = jnp.matmul(power, power, precision="highest")
        return power / jnp.sum(power, axis=1, keepdims=True)

    return jnp.matmul(theta.initial, jax.lax.fori_loop(0, 30, square, lazy), precision="highest")
