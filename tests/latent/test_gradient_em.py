"""Generalised M-steps by an optax optimiser: none of them goes down, and they end where EM ends."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from montecarlo import Scores, assert_holds, broken, error

import tractable as tr
from tractable import methods
from tractable.core.errors import SettingsError
from tractable.core.model import whole
from tractable.latent import gradient_em
from tractable.latent.em import em
from tractable.latent.gradient_em import climb_by_lbfgs, climb_by_optax
from tractable.posterior.run_identity import functions

pytestmark = pytest.mark.laws

X = np.array([3.1, 4.4, 8.3, 7.7, 5.9, 9.0, 4.0, 6.6, 3.5, 8.8, 4.9, 7.1])
PRIOR = {"good": dist.Beta(2.0, 2.0), "mean": dist.Normal(jnp.array([4.0, 7.0]), 2.0).to_event(1)}
OPTIMIZERS = {
    "adam": optax.adam(0.05), "sgd": optax.sgd(0.02, momentum=0.9), "too long": optax.adam(30.0), "lbfgs": optax.lbfgs()
}  # fmt: skip


def cook(**steps: Any) -> tr.LatentModel:
    """Two moods; sd known, so that both halves have a closed form."""
    return tr.LatentModel(
        PRIOR, lambda p: dist.Bernoulli(p["good"]), lambda p, z: dist.Normal(p["mean"][z], 1.0), **steps
    )


def statistics(x: Any, z: Any) -> Any:
    mood = jnp.stack([1 - z, z]).astype(float)
    return mood, mood * x


def m_step(sums: Any) -> Any:
    count, total = sums
    means = (total + jnp.array([4.0, 7.0]) / 4) / (count + 0.25)
    return {"good": (count[1] + 1) / (jnp.sum(count) + 2), "mean": means}


BY_GRADIENT, CLOSED = cook(), cook(statistics=statistics, m_step=m_step)


# No step goes down.


def banana(u: jax.Array) -> jax.Array:
    return -((1 - u[0]) ** 2) - 20 * (u[1] - u[0] ** 2) ** 2


def cliff(u: jax.Array) -> jax.Array:  # NaN beyond 0.5
    return jnp.where(jnp.abs(u[0]) < 0.5, 10 * u[0] - u[1] ** 2, jnp.nan)


def never_down(ascent: Callable) -> Scores:
    """After any number of steps the value is no lower than after fewer; where it can rise it does."""
    scores: Scores = {}
    cases = [(banana, jnp.array([-1.0, 1.5]), name) for name in OPTIMIZERS] + [(cliff, jnp.array([0.1, 0.3]), "adam")]
    for hill, here, name in cases:
        heights = [float(hill(here))]
        for steps in (1, 2, 20):
            climb = jax.jit(functools.partial(ascent, hill, steps=steps, optimizer=OPTIMIZERS[name]))
            heights.append(float(hill(climb(here))))
        case = f"{name} {hill.__name__}"
        scores[f"{case} falls"] = -float(np.min(np.diff(heights))) / 1e-12
        scores[f"{case} stays"] = 0.0 if heights[-1] > heights[0] + 1e-2 else np.inf
    return scores


def unguarded(value: Callable, start: jax.Array, steps: int, optimizer: Any) -> jax.Array:
    """Whatever the optimiser says."""
    told = optax.with_extra_args_support(optimizer)

    def depth(u: jax.Array) -> jax.Array:
        return -value(u)

    def step(carry: tuple, _: None) -> tuple:
        here, gradient = jax.value_and_grad(depth)(carry[0])
        updates, state = told.update(gradient, carry[1], carry[0], value=here, grad=gradient, value_fn=depth)
        return (optax.apply_updates(carry[0], updates), state), None

    return jax.lax.scan(step, (start, told.init(start)), length=steps)[0][0]


def at_the_end(value: Callable, start: jax.Array, steps: int, optimizer: Any) -> jax.Array:
    """Whatever the optimiser says, unless it ends below its start: steps that are too long are never taken."""
    end = unguarded(value, start, steps, optimizer)
    return jnp.where(value(end) >= value(start), end, start)


def downhill(value: Callable, start: jax.Array, steps: int, optimizer: Any) -> jax.Array:
    return climb_by_optax(lambda u: -value(u), start, steps, optimizer)


def test_no_inner_step_goes_down():
    assert_holds(never_down(climb_by_optax))
    for wrong in (unguarded, at_the_end, downhill):
        assert broken(never_down(wrong)), wrong


@pytest.mark.test
def test_an_optimiser_of_exact_steps_is_that():
    """Gradient descent of −u² with rate ¼ halves u: all steps are taken, at their own length."""
    end = climb_by_optax(lambda u: -jnp.sum(u**2), jnp.array([8.0, -4.0]), 3, optax.sgd(0.25))
    assert_holds({"sgd": error(end, [1.0, -0.5], 1e-14)})
    half = climb_by_optax(
        lambda u: -jnp.sum(u**2), jnp.array([8.0]), 2, optax.sgd(1.5)
    )  # −2u is refused, then −½u is taken
    assert_holds({"halved": error(half, [-4.0], 1e-14)})


# EM by it.


def in_em(ascent: Callable) -> Scores:
    """Fifteen steps of EM whose M-steps are too long for Q: log p(x|θ) + log p(θ) does not fall."""
    space = BY_GRADIENT.space

    def step(known: Any) -> Any:
        q = gradient_em.expected_log_joint(BY_GRADIENT.log_joint, known)

        def value(u: jax.Array) -> jax.Array:
            theta = BY_GRADIENT.constrain(space.unravel(u))
            return q(theta) + BY_GRADIENT.log_prior(theta)

        start = space.ravel(BY_GRADIENT.unconstrain(known.theta))
        return BY_GRADIENT.constrain(space.unravel(ascent(value, start, 3, optax.adam(2.0))))

    e_step = gradient_em.by_enumeration(BY_GRADIENT.log_prob, BY_GRADIENT.responsibilities, BY_GRADIENT.causes)
    kernel = em(e_step, step, BY_GRADIENT.log_prior)
    state = kernel.init(jax.random.key(0), {"good": jnp.array(0.3), "mean": jnp.array([2.0, 9.5])})
    go, seen = jax.jit(lambda s: kernel.step(jnp.zeros(0), s, whole(jnp.array(X)))), []
    for _ in range(15):
        state, info = go(state)
        seen.append(float(info.objective))
    return {
        "falls": -float(np.min(np.diff(seen))) / 1e-10,
        "stays": 0.0 if seen[-1] > seen[0] + 1 else np.inf,
    }


@pytest.mark.test
def test_em_does_not_fall():
    assert_holds(in_em(climb_by_optax))
    assert broken(in_em(unguarded))


@pytest.fixture(scope="module")
def known() -> tr.Posterior:
    return tr.infer(CLOSED, tr.Data(X), tr.EM(tolerance=1e-12), seed=1)


@pytest.mark.parametrize("name", ["adam", "sgd", "too long"])
def test_it_ends_at_the_known_maximum(known, name):
    found = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(optimizer=OPTIMIZERS[name], starts=2), seed=1)
    short = (known.found["objective"] - found.found["objective"]) / len(X)
    assert_holds({"objective": abs(short) / 1e-3, "fall": found.found["fall"] / 1e-9})
    check = next(c for c in found.report().checks if c.name == "L-BFGS adds")
    assert check.verdict == "trust" and -1e-9 < check.value <= 1e-3


def test_a_climb_that_stands_still_says_so(known):
    """Steps far too short: gains so small that EM takes itself to be at rest."""
    stuck = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(optimizer=optax.sgd(1e-12), starts=1, errors=False), seed=1)
    assert known.found["objective"] - stuck.found["objective"] > 0.05 * len(X)
    check = next(c for c in stuck.report().checks if c.name == "L-BFGS adds")
    assert check.verdict == "reject" and check.value > 1e-2
    uphill = optax.sgd(-1.0)  # every step lowers Q, and none is taken
    stood = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(optimizer=uphill, starts=1, steps=4, errors=False), seed=1)
    assert stood.found["M-steps without gain"] == stood.found["steps"]
    check = next(c for c in stood.report().checks if c.name == "L-BFGS adds")
    assert check.verdict == "reject" and "all steps would have lowered Q" in check.sentence


def test_the_default_is_as_it_was(known):
    """L-BFGS of the method is ``climbed``, and the report has nothing to add."""
    found = tr.infer(BY_GRADIENT, tr.Data(X), tr.EM(tolerance=1e-12), seed=1)
    assert "L-BFGS adds" not in found.found and tr.EM().optimizer == "lbfgs"
    assert_holds({"objective": error(found.found["objective"], known.found["objective"], 1e-8)})
    assert float(banana(climb_by_lbfgs(banana, jnp.array([-1.0, 1.5]), 40))) > -1e-6


def test_settings():
    assert methods.from_settings(tr.EM(inner=3).settings()) == tr.EM(inner=3)
    given = tr.EM(optimizer=optax.adam(0.1))
    with pytest.raises(SettingsError, match=r"EM\(optimizer=...\) was a function"):
        methods.from_settings(given.settings())
    model, data = cook(), tr.Data(X)

    def known(optimizer: Any) -> str:
        return str(functions(tr.EM(optimizer=optimizer), model, data))

    assert known(optax.adam(0.1)) == known(optax.adam(0.1))  # in another process too: by what it computes
    others = (optax.adam(0.2), optax.adam(0.1, b1=0.5), optax.sgd(0.1), optax.lbfgs())
    assert len({known(o) for o in (*others, optax.adam(0.1))}) == 5
    assert not any("cannot" in known(o) for o in others)
    assert all(json.dumps(tr.EM(optimizer=o).settings()) for o in others)
    for wrong in ("adam", 0.1, None):
        with pytest.raises(SettingsError, match="'lbfgs' or an optax optimiser"):
            tr.EM(optimizer=wrong)
