"""The K-sample bound on linear-Gaussian ladders: its order in K, its gradients beside sums over Gauss–Hermite nodes."""

import math
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ladders import test_autoencoding as autoencoding_laws
from ladders.test_autoencoding import COUNT, EVIDENCE, ROWS, SMALL, flat, from_mean, slope, somewhere, whole
from montecarlo import Scores, Z, assert_holds, broken, error

from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Objective
from tractable.ladders import pathwise
from tractable.ladders.ladder import Ladder, bottom_up
from tractable.ladders.layers import layer, top

pytestmark = pytest.mark.laws

Make = Callable[..., Objective]


def order(make: Make = pathwise.importance_weighted) -> Scores:
    """L₁ ≤ L₂ ≤ … ≤ log p(x), and near it at K = 1000 (Burda et al. 2016, theorem 1); all within their noise."""
    ladder = autoencoding_laws.pca_ladder()
    params = autoencoding_laws.pca_params(autoencoding_laws.BEST, autoencoding_laws.X.mean(0))
    bias = params["phi"]["layers"]["h1"]["layer0"]["bias"]
    params["phi"]["layers"]["h1"]["layer0"]["bias"] = bias + jnp.array([0.25, -0.2, 0.4, 0.7])
    rows, means, errors = 3, [], []
    for k, count in ((1, 3000), (2, 2000), (5, 2000), (50, 500), (1000, 100)):
        objective = make(ladder, samples=k)
        of = jax.jit(jax.vmap(lambda key, o=objective: o.value(key, params, whole(autoencoding_laws.X[:rows]))))
        values = np.asarray(of(jax.random.split(jax.random.key(k), count))) / rows
        means.append(values.mean())
        errors.append(values.std() / math.sqrt(count))
    print("bounds", np.round(means, 4), "±", np.round(errors, 4), "log p(x)", EVIDENCE[:rows].mean().round(4))
    scores = {}
    for i in range(1, len(means)):
        scores[f"rises {i}"] = (means[i - 1] - means[i]) / math.hypot(errors[i - 1], errors[i]) / Z
    wanted = EVIDENCE[:rows].mean()
    scores["below log p"] = max((m - wanted) / e for m, e in zip(means, errors, strict=True)) / Z
    scores["K = 1000"] = abs(means[-1] - wanted) / 0.02
    return scores


def one_sample(make: Make = pathwise.importance_weighted) -> Scores:
    """K = 1 is the ELBO, exactly: the same value for the same key; "doubly" is then the path gradient."""
    scores = {}
    for name in ("one", "top-down"):
        ladder, params, key = SMALL[name], somewhere(SMALL[name]), jax.random.key(3)
        for mine, theirs in (("reparameterised", "reparameterised"), ("doubly", "path")):
            pair = make(ladder, samples=1, gradient=mine), pathwise.autoencoding(ladder, gradient=theirs, kl="sampled")
            got, wanted = jax.jit(lambda p, pair=pair, key=key: [slope(o, key, p, whole(ROWS))[:2] for o in pair])(
                params
            )
            scores[f"{name}, {mine}"] = error(flat(got), flat(wanted), 1e-10)
    return scores


def gradients(make: Make = pathwise.importance_weighted, cases: Any = (("one", 2), ("top-down", 2))) -> Scores:
    """The mean of either gradient, θ and φ, is that of the exact bound; so is the mean value."""
    scores = {}
    for case, samples in cases:
        ladder, params = SMALL[case], somewhere(SMALL[case])
        count = 30 if case == "one" else 14

        def exact(p: Any, ladder: Any = ladder, samples: int = samples, count: int = count) -> jax.Array:
            return autoencoding_laws.reference(ladder, p, ROWS, samples, count)

        value, wanted = jax.jit(jax.value_and_grad(exact))(params)
        wanted = np.append(flat(wanted), value)
        objectives = {g: make(ladder, samples=samples, gradient=g) for g in get_args(pathwise.ImportanceGradient)}

        @jax.jit
        @jax.vmap
        def many(key: jax.Array, objectives: Any = objectives, params: Any = params) -> list[jax.Array]:
            each = [slope(o, key, params, whole(ROWS)) for o in objectives.values()]
            return [jnp.append(flat(gradient), value) for value, gradient, _ in each]

        for name, got in zip(objectives, many(jax.random.split(jax.random.key(5), COUNT)), strict=True):
            scores |= from_mean(f"{case}, K = {samples}, {name}", np.asarray(got), wanted)
            print(case, name, "trace of covariance", float(np.asarray(got)[:, :-1].var(0).sum()))
    return scores


def no_noise(make: Make = pathwise.importance_weighted) -> Scores:
    """Where q is the posterior every bound is log p(x), and the doubly reparameterised gradient of φ is 0."""
    made, wanted = autoencoding_laws.two_levels()
    scores = {}
    for name, (ladder, params) in made.items():
        objective = make(ladder, samples=4)
        of = jax.jit(lambda key, o=objective, p=params: slope(o, key, p, whole(autoencoding_laws.X)))
        value, gradient, _ = of(jax.random.key(4))
        scores[f"{name}: value"] = error(value, wanted.sum(), 1e-8)
        scores[f"{name}: φ"] = error(flat(gradient["phi"]["layers"]), 0.0, 1e-10)
    return scores


def padding(make: Make = pathwise.importance_weighted) -> Scores:
    """What a row that does not count holds moves nothing."""
    params, mask = somewhere(SMALL["one"]), jnp.array([1, 1, 0])
    objective = make(SMALL["one"], samples=3)
    of = jax.jit(lambda x: slope(objective, jax.random.key(0), params, whole(x, mask, 7))[:2])
    both = [of(jnp.vstack([ROWS, jnp.asarray(row)])) for row in ([[0.0, 0.0]], [[30.0, -50.0]])]
    return {"rows": error(flat(both[0]), flat(both[1]), 1e-12)}


def test_order():
    assert_holds(order())


def test_one_sample():
    assert_holds(one_sample())


@pytest.mark.test
def test_gradients():
    assert_holds(gradients(), COUNT)


@pytest.mark.test
def test_no_noise():
    assert_holds(no_noise())


def test_padding():
    assert_holds(padding())


def test_weights_that_are_not_squared(monkeypatch):
    """Σ w̃ ∂log w/∂h ∂h/∂φ, which is the gradient of no bound."""
    monkeypatch.setattr(pathwise, "weigh_again", lambda share, slopes: slopes)
    assert any("doubly: z" in name for name in broken(gradients(cases=[("one", 2)])))


def test_a_sum_that_is_no_mean(monkeypatch):
    """log Σ w without − log K."""
    monkeypatch.setattr(pathwise, "k_sample", lambda log_w: jax.nn.logsumexp(log_w, axis=0))
    assert "below log p" in broken(order())


def test_a_mean_of_logs(monkeypatch):
    """(1/K) Σ log w, which does not rise with K."""
    monkeypatch.setattr(pathwise, "k_sample", lambda log_w: jnp.mean(log_w, axis=0))
    assert "K = 1000" in broken(order())


@pytest.mark.test
def test_sentences():
    for settings, words in (({"samples": 0}, "samples"), ({"gradient": "path"}, "'doubly' or 'reparameterised'")):
        with pytest.raises(SettingsError, match=words):
            pathwise.importance_weighted(SMALL["one"], **settings)
    belief = Ladder([layer(2, 3), top(2)], bottom_up([layer(3, 2)]))
    with pytest.raises(ModelError, match="no derivative"):
        pathwise.importance_weighted(belief)
