"""Ladders: shapes along their leading axes, sizes that chain, where they begin, and the deep Gaussians made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import error
from scipy import stats

from tractable.core.errors import ModelError
from tractable.ladders import ladders
from tractable.ladders.ladder import EDGE, Ladder, bottom_up
from tractable.ladders.ladders import hierarchical, latent_gaussian
from tractable.ladders.layers import categorical, layer, normal_noise, standard_normal, top
from tractable.ladders.top_down import product, top_down

pytestmark = pytest.mark.laws

KEY = jax.random.key(0)


def belief() -> Ladder:
    three = categorical(3)
    return Ladder([layer(3, 4), layer(6, 3), top(2, three)], bottom_up([layer(4, 3), layer(3, 2, three)]))


LADDERS = {
    "belief": belief(),
    "one": latent_gaussian(4, 2, hidden=(5,)),
    "bottom-up": hierarchical(4, (3, 2), hidden=((5,), (4,)), family="poisson"),
    "top-down": hierarchical(4, (3, 2, 1), hidden=((5, 6), (), (4,)), family="normal", inference="top-down"),
}


@pytest.mark.parametrize("name", LADDERS)
def test_leading_axes(name):
    """(draw, row): many draws of many rows are each what one draw of one row would be."""
    ladder = LADDERS[name]
    params = ladder.initial(KEY)

    @jax.jit
    def all_at_once(params):
        x, _ = ladder.dreamt(jax.random.key(1), params["theta"], 5)
        h, q = ladder.drawn(jax.random.key(2), params, x, 3)
        assert all(d.batch_shape in ((1, 5), (3, 5)) for d in q)
        own = [d.log_prob(a) for d, a in zip(q, h, strict=True)]
        log_p, log_q = ladder.log_p(params["theta"], x[None], h), ladder.log_q(params, x[None], h)
        one = tuple(a[2, 4] for a in h)
        return h, log_p, log_q, own, ladder.log_p(params["theta"], x[4], one), ladder.log_q(params, x[4], one)

    h, log_p, log_q, own, one_p, one_q = all_at_once(params)
    assert [a.shape for a in h] == [(3, 5, made.size) for made in ladder.layers[1:]]
    assert [a.shape for a in (*log_p, *log_q)] == [(3, 5)] * (2 * ladder.depth + 1)
    np.testing.assert_allclose(log_q, own, rtol=1e-10)
    np.testing.assert_allclose([a[2, 4] for a in log_p], one_p, rtol=1e-10)
    np.testing.assert_allclose([a[2, 4] for a in log_q], one_q, rtol=1e-10)


def test_top_down_order_and_shares():
    """h^L is drawn first; q(h¹ | h², x) is the product of what x says and the prior, so that θ moves it."""
    ladder = LADDERS["top-down"]
    params, order = ladder.initial(KEY), []
    x = jnp.ones((2, 4))

    def choose(i, q):
        order.append(i)
        return q.base_dist.loc

    h, q = ladder.infer(params, x, choose)
    assert order == [2, 1, 0] and not ladder.recognition.upward
    # The same by a grid: N(μ̂, σ̂²) p(h¹ | h²), normalised.
    prior = ladder.generative(params["theta"], h)[1].base_dist
    phi = params["phi"]["layers"]["h1"]
    seen = x - params["phi"]["centre"][None]
    for name in ("layer0", "layer1"):
        seen = jnp.tanh(seen @ phi["up"][name]["weight"] + phi["up"][name]["bias"][None])
    eta = seen @ phi["head"]["layer0"]["weight"] + phi["head"]["layer0"]["bias"][None]
    mean, sd = eta[0, 0], 1e-3 + np.logaddexp(0, eta[0, 3])
    grid = np.linspace(-12, 12, 40_001)
    mass = stats.norm.pdf(grid, mean, sd) * stats.norm.pdf(grid, prior.loc[0, 0], prior.scale[0, 0])
    mass /= mass.sum()
    wanted = (mass * grid).sum()
    spread = np.sqrt((mass * (grid - wanted) ** 2).sum())
    np.testing.assert_allclose([q[0].base_dist.loc[0, 0], q[0].base_dist.scale[0, 0]], [wanted, spread], atol=1e-6)
    moved = params | {"theta": jax.tree.map(lambda a: a + 0.1, params["theta"])}
    assert error(ladder.infer(moved, x, lambda i, d: h[i])[1][0].base_dist.loc, q[0].base_dist.loc, 1e-3) > 1


@pytest.mark.test
def test_product_of_unequal_widths():
    """Single precision: what says nothing changes nothing, what says all decides."""
    import numpyro.distributions as dist

    def normal(mean, sd):
        return dist.Normal(jnp.float32(mean)[None], jnp.float32(sd)[None]).to_event(1)

    wide, narrow = normal(3.0, 1e6), normal(-1.0, 1e-3)
    for pair in ((wide, narrow), (narrow, wide)):
        got = product(*pair).base_dist
        np.testing.assert_allclose([got.loc[0], got.scale[0]], [-1.0, 1e-3], rtol=1e-6)


def test_same_arguments_same_ladder():
    assert latent_gaussian(9, 2, hidden=[4], family=normal_noise(0.3)) is latent_gaussian(
        9, latent=2, hidden=4, family=normal_noise(0.3)
    )
    assert hierarchical(9, [3, 2], hidden=[[4], 5]) is hierarchical(9, (3, 2), hidden=((4,), (5,)))
    assert latent_gaussian(9, 2, hidden=4) is not latent_gaussian(9, 2, hidden=5)


def test_pixels_begin_at_their_log_odds():
    rows = np.zeros((10, 4))
    rows[:3, 0] = rows[:9, 1] = rows[:, 2] = 1
    mean = np.clip(rows.mean(0), EDGE, 1 - EDGE)
    for family in ("bernoulli", "continuous bernoulli"):
        params = latent_gaussian(4, 2, hidden=(5,), family=family).initial(KEY, rows)
        np.testing.assert_allclose(params["theta"]["x"]["layer1"]["bias"], np.log(mean / (1 - mean)), rtol=1e-6)
        np.testing.assert_allclose(params["phi"]["centre"], rows.mean(0), rtol=1e-6)
    for noise in (None, "shared"):
        params = latent_gaussian(4, 2, hidden=(5,), family="normal", noise=noise).initial(KEY, 7 + rows)
        np.testing.assert_allclose(params["theta"]["x"]["layer1"]["bias"][:4], 7 + rows.mean(0), rtol=1e-6)
    many = latent_gaussian(4, 2, hidden=(3,) * 11)
    params = many.initial(KEY, rows)
    np.testing.assert_allclose(params["theta"]["x"]["layer11"]["bias"], np.log(mean / (1 - mean)), rtol=1e-6)


@pytest.mark.test
def test_discrete_layers():
    assert LADDERS["belief"].discrete == [1, 2] and LADDERS["top-down"].discrete == []
    counts = Ladder([layer(2, 3), top(2, "poisson")], bottom_up([layer(3, 2, "poisson")]))
    assert counts.discrete == [1] and counts.causes is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ladder([layer(3, 4), top(2)], bottom_up([layer(4, 2)])), "do not fit together: x of 4, h1 of 2"),
        (lambda: Ladder([layer(2, 4), top(2)], bottom_up([layer(5, 2)])), "does not fit this ladder"),
        (lambda: Ladder([layer(2, 4), top(2)], bottom_up([layer(4, 3)])), "the inference network draws \\(3,\\)"),
        (lambda: Ladder([layer(2, 4)], bottom_up([])), "one hidden layer or more; got 1"),
        (lambda: latent_gaussian(4, 0), "1 unit or more; got size=0"),
        (lambda: latent_gaussian(4, 2, family="gamma"), "got 'gamma'"),
        (lambda: latent_gaussian(4, 2, noise="shared"), "needs family='normal'; got family='bernoulli'"),
        (lambda: latent_gaussian(4, 2, family="normal", noise="own"), "None or 'shared'; got 'own'"),
        (lambda: latent_gaussian(4, 2, family="poisson", redraw=True), "draws binary pixels; x is Poisson"),
        (lambda: latent_gaussian(4, 2, weight_sd=-1.0), "weight_sd is None or a positive"),
        (lambda: hierarchical(4, (3, 2), hidden=((4,),)), "each of the 2 hidden layers"),
        (lambda: hierarchical(4, (3, 2), hidden=((4,), (4,)), inference="sideways"), "'bottom-up' or 'top-down'"),
        (lambda: top_down([layer(2, 4), top(2)], [(3,)]), "multiplies normal densities, and layer 1 is Bernoulli"),
        (lambda: top_down([layer(2, 4), standard_normal(2)], []), "each of the 1 hidden layers; got 0"),
        (
            lambda: top_down([layer(2, 4), standard_normal(2)], [(3,)], activation="swoosh"),
            "activation is one of",
        ),
    ],
)  # fmt: skip
def test_sentences(make, words):
    with pytest.raises(ModelError, match=words):
        make()


def test_widths_mirror():
    """The decoder's widths are the encoder's, the other way about."""
    ladder = hierarchical(7, (3, 2), hidden=((6, 5), (4,)))
    shapes = jax.tree.map(jnp.shape, ladder.initial(KEY))
    assert shapes["theta"]["x"]["layer0"]["weight"] == (3, 5) and shapes["theta"]["x"]["layer1"]["weight"] == (5, 6)
    assert shapes["phi"]["layers"]["h1"]["layer0"]["weight"] == (7, 6)
    assert shapes["phi"]["layers"]["h2"]["layer0"]["weight"] == (3, 4)
    assert ladders.INFERENCE == ("bottom-up", "top-down")
