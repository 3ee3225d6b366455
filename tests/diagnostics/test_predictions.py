"""Predictions are compared and scored exactly; networks are judged by them; rows kept out end a climb."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import tractable as tr
from tractable.core.errors import DataError
from tractable.diagnostics import moves, networks, predictions
from tractable.diagnostics.belief import Draws
from tractable.diagnostics.predictions import Side, agreement, held_out_checks
from tractable.engine.climb import HeldOutBest
from tractable.estimators import BayesianMLPRegressor
from tractable.posterior.posterior import Posterior

pytestmark = pytest.mark.laws

NORMAL = tr.Model({"mean": dist.Normal(0, 10), "sd": dist.LogNormal(0, 1)}, lambda p: dist.Normal(p["mean"], p["sd"]))
COIN = tr.Model({"logit": dist.Normal(0, 10)}, lambda p: dist.Bernoulli(logits=p["logit"]))
NET = tr.models.neural_network(tr.models.mlp(1, (3,), 1, activation="tanh"), noise=0.3)
ROOMY = tr.models.neural_network(tr.models.mlp(1, (20,), 1, activation="tanh"), noise=0.1)


def normals(mean: float, sd: float, count: int = 100, spread: float = 0.0, seed: int = 0) -> Side:
    """Draws that all predict N(mean, sd²), or whose means have an sd of their own."""
    means = mean + spread * np.random.default_rng(seed).standard_normal(count)
    return Side(NORMAL, np.column_stack([means, np.full(count, math.log(sd))]))


def rows(count: int, noise: float, seed: int) -> tr.Data:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-2, 2, (count, 1))
    return tr.Data(np.sin(2 * x[:, 0]) + noise * generator.standard_normal(count), given=x)


DATA, BEYOND = rows(40, 0.3, 1), rows(200, 0.3, 2)


def verdicts(posterior: Posterior) -> dict[str, str]:
    return {check.name: check.verdict for check in posterior.report().checks}


@pytest.mark.test
@pytest.mark.parametrize("shift", [0.2, 0.5, 3.0])
def test_shifted_normals_lie_as_far_apart_as_they_do(shift):
    """Total variation of N(0, 1) and N(δ, 1): 2 Φ(δ/2) − 1. Of one row of 200 data it is known to 0.5/√200."""
    found = np.mean([agreement(normals(0, 1), normals(shift, 1), None, seed).distance for seed in range(20)])
    assert found == pytest.approx(2 * norm.cdf(shift / 2) - 1, abs=4 * 0.5 / math.sqrt(20 * 200))


@pytest.mark.test
def test_scaled_normals_lie_as_far_apart_as_they_do():
    """N(0, 1) and N(0, s²) cross where z² = 2 log s / (1 − 1/s²)."""
    scale = 1.25
    z = math.sqrt(2 * math.log(scale) / (1 - 1 / scale**2))
    exact = 2 * ((norm.cdf(z) - norm.cdf(-z)) - (norm.cdf(z / scale) - norm.cdf(-z / scale))) / 2
    found = np.mean([agreement(normals(0, 1), normals(0, scale), None, seed).distance for seed in range(20)])
    assert found == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(20 * 200))


@pytest.mark.test
def test_coins_lie_as_far_apart_as_they_do():
    first, second = (Side(COIN, np.full((100, 1), logit)) for logit in (0.0, 1.0))
    exact = abs(1 / (1 + math.exp(-1.0)) - 0.5)
    found = np.mean([agreement(first, second, None, seed).distance for seed in range(20)])
    assert found == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(20 * 200))


@pytest.mark.test
def test_draws_of_one_distribution_do_not_lie_apart():
    """The distance of two sets of draws by chance, here 0.07, is taken off; its sd is 0.02 over such sets."""
    pairs = [(normals(0, 0.5, spread=1.0, seed=2 * i), normals(0, 0.5, spread=1.0, seed=2 * i + 1)) for i in range(20)]
    assert np.mean([agreement(*pair, None, seed).distance for seed, pair in enumerate(pairs)]) < 0.03


@pytest.mark.test
def test_a_draw_does_not_judge_the_datum_that_it_made():
    """θ ten sds apart from one another: a datum of one is e⁻⁵⁰ likely under the others, e⁻⁶ under its own."""
    apart = Side(NORMAL, np.column_stack([np.linspace(-500, 500, 100), np.zeros(100)]))
    assert predictions.score_rows(apart, tr.Data(np.zeros(50)), 0).expected.mean() < -20


def test_right_predictions_are_trusted():
    data = tr.Data(np.random.default_rng(0).standard_normal(1000))
    assert {c.verdict for c in held_out_checks(normals(0, 1), data, 0)} == {"trust"}


@pytest.mark.test("0.4-words0")
@pytest.mark.parametrize(("sd", "words"), [(0.4, ("too certain", "too narrow")), (3.0, ("too cautious", "too wide"))])
def test_wrong_predictions_are_told(sd, words):
    data = tr.Data(np.random.default_rng(0).standard_normal(1000))
    checks = held_out_checks(normals(0, sd), data, 0)
    assert all(c.verdict != "trust" and word in c.sentence for c, word in zip(checks, words, strict=True))


def test_a_shifted_prediction_is_told():
    checks = held_out_checks(normals(1.5, 1), tr.Data(np.random.default_rng(0).standard_normal(1000)), 0)
    assert [c.verdict for c in checks] == ["reject", "reject"]


@pytest.mark.test
def test_one_point_predicts_too():
    """A maximum is one draw: what it predicts is drawn from again and again."""
    data = tr.Data(np.random.default_rng(0).standard_normal(1000))
    assert {c.verdict for c in held_out_checks(Side(NORMAL, np.zeros((1, 2))), data, 0)} == {"trust"}


@pytest.mark.test
def test_a_class_is_within_what_is_likely_as_often_as_it_should_be():
    """p = 0.97: the densest 90 % of a coin is its likely side, of which ties let a share lie outside."""
    y = (np.random.default_rng(0).random(1000) < 0.97).astype(int)
    found = predictions.score_rows(Side(COIN, np.full((100, 1), math.log(0.97 / 0.03))), tr.Data(y), 0)
    assert np.mean(found.covered <= 0.9) == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / 1000))


# Networks.


def of_chains(positions: np.ndarray) -> Posterior:
    """What such chains of NET's weights are judged as."""
    info = {name: np.full(positions.shape[:2], value) for name, value in (("acceptance", 0.8), ("not_a_number", 0.0))}
    belief = Draws(positions=positions, info=info)
    return Posterior(NET, DATA, tr.MALA(), 0, belief, {"step_size": 0.1}).verify()


def drawn(scale: float, mirrored: bool) -> np.ndarray:
    """(4, 200, d) independent draws around a fit; half of the chains with the first unit's sign turned."""
    point = tr.infer(NET, DATA, tr.MAP(), verify=None).point
    positions = point + scale * np.random.default_rng(0).standard_normal((4, 200, len(point)))
    if mirrored:
        turned = jax.vmap(jax.vmap(mirror))(jnp.asarray(positions[::2]))
        positions[::2] = np.asarray(turned)
    return positions


def mirror(position: jax.Array) -> jax.Array:
    """tanh(−a) = −tanh(a): a hidden layer whose weights and whose way out change sign predicts the same."""
    weights = NET.space.unravel(position)
    names = sorted(weights["weights"])
    first, last = (weights["weights"][name] for name in (names[0], names[-1]))
    first = jax.tree.map(jnp.negative, first)
    last = {name: -leaf if leaf.ndim == 2 else leaf for name, leaf in last.items()}
    return NET.space.ravel({**weights, "weights": weights["weights"] | {names[0]: first, names[-1]: last}})


@pytest.mark.test
def test_mirrored_chains_agree_in_what_they_predict():
    found = verdicts(of_chains(drawn(0.02, mirrored=True)))
    assert found[networks.AGREE] == "trust" and found["predictions mix"] == "trust"
    assert "R-hat" not in found


def test_chains_that_do_not_move_are_an_ensemble():
    drawn_once = drawn(0.3, mirrored=False)[:, :1]
    stuck = drawn_once + 1e-4 * np.random.default_rng(1).standard_normal((4, 200, drawn_once.shape[2]))
    assert verdicts(of_chains(stuck))["predictions mix"] == "reject"


@pytest.mark.test
def test_a_chain_elsewhere_is_seen():
    positions = drawn(0.02, mirrored=False)
    positions[0] = 0  # a network that predicts 0 everywhere
    found = verdicts(of_chains(positions))
    assert found[networks.AGREE] != "trust" and found["predictions mix"] == "reject"


@pytest.mark.test
def test_moves_that_nobody_accepts_say_nothing_of_chains_of_all_rows(monkeypatch):
    """They say that no step of HMC suits the draws. Chains were compared; draws of another program need the moves."""

    def refuse(target, rows, begin, *rest, **options):
        return moves.Moved(begin[None], 0.0)

    monkeypatch.setattr(moves, "move", refuse)
    first = of_chains(drawn(0.1, False))
    assert "predictions moved" not in verdicts(first)
    params = NET.space.unravel
    theta = jax.vmap(jax.vmap(lambda z: NET.constrain(params(z))))(jnp.asarray(first.belief.positions))
    given = tr.judge(jax.tree.map(np.asarray, theta), NET, DATA)
    assert verdicts(given)["predictions moved"] == "caution"


def test_chains_by_hmc_are_moved_again_by_a_thorough_verification_only(monkeypatch):
    """Their own trajectories are such moves, and the chains were compared. One chain has none to compare with."""
    calls = []

    def refuse(target, rows, begin, *rest, **options):
        calls.append(len(begin))
        return moves.Moved(begin[None], 0.0)

    monkeypatch.setattr(moves, "move", refuse)
    positions = drawn(0.1, False)

    def count(chains: int, method: tr.Method, affordable: float) -> int:
        calls.clear()
        info = {"divergent": np.zeros((chains, 200))} if isinstance(method, tr.HMC) else {}
        belief = Draws(positions=positions[:chains], info=info)
        networks._check_moves(
            Posterior(NET, DATA, method, 0, belief, {}), DATA, predictions.inputs(DATA), affordable, 0
        )
        return len(calls)

    assert count(4, tr.HMC(), 1e9) == 0
    assert count(4, tr.HMC(), math.inf) == count(1, tr.HMC(), 1e9) == count(4, tr.MALA(), 1e9) == 1


def test_draws_too_narrow_are_moved():
    """The prior alone, known exactly: q of a tenth of its sd, and what it predicts for a function of the weights."""
    data = tr.Data(np.zeros(4), given=np.linspace(-1, 1, 4)[:, None], weights=np.full(4, 1e-9))
    size = NET.space.size
    root = np.asarray(jax.vmap(lambda k: NET.space.ravel(NET.unconstrain(NET.sample_prior(k))))(
        jax.random.split(jax.random.key(0), 2000)
    )).std(0)  # fmt: skip

    def judged(scale: float) -> str:
        positions = scale * root * np.random.default_rng(0).standard_normal((1, 2000, size))
        learnt = Posterior(NET, data, tr.MALA(), 0, Draws(positions=positions), {})
        [check] = networks._check_moves(learnt, data, predictions.inputs(data), math.inf, 0)
        return check.verdict

    assert judged(1.0) == "trust" and judged(0.1) != "trust"


def test_bayes_by_backprop_begins_at_the_best_of_several_maxima():
    """Two fits agree, as each begins at the highest of six maxima; and rows kept out are predicted as expected."""
    posterior = tr.infer(NET, DATA, tr.BayesByBackprop(), held_out=BEYOND)
    found = verdicts(posterior)
    assert found[networks.AGREE] == "trust" and "held-out best" in found
    assert {"held-out surprise", "held-out coverage"} <= set(found)


@pytest.mark.test
def test_a_fit_that_another_contradicts_is_told(monkeypatch):
    first = tr.infer(NET, DATA, tr.Laplace(), verify=None)
    flat = Posterior(NET, DATA, tr.MALA(), 0, Draws(positions=np.zeros((1, 100, NET.space.size))), {})
    monkeypatch.setattr(Posterior, "_again", lambda self: flat)
    assert verdicts(first.verify())[networks.AGREE] != "trust"


def test_nothing_says_that_fits_that_agree_are_right_but_rows_kept_out():
    posterior = tr.infer(NET, DATA, tr.Laplace())
    assert verdicts(posterior)["verified"] == "caution"
    assert "verified" not in verdicts(posterior.verify(held_out=BEYOND))


# What is not looked at is not trusted.


@pytest.mark.test
def test_many_numbers_are_not_trusted():
    wide = tr.Model.from_log_density(lambda z: -jnp.sum(z**2) / 2, jnp.zeros(201))
    posterior = tr.infer(wide, None, tr.MAP())
    assert posterior.report().verdict == "caution" and "201 numbers" in str(posterior.report())


def test_moments_alone_are_not_trusted():
    posterior = tr.infer(NORMAL, tr.Data(np.zeros(5)), tr.MALA(draws=500, warmup=500), draws="moments")
    assert verdicts(posterior)["verified"] == "caution"


# Rows kept out end a climb.


@pytest.mark.quick
def test_the_peak_is_the_last_that_does_no_worse():
    rng = np.random.default_rng(0)
    level = rng.standard_normal(100)
    peak = HeldOutBest.of(level - 1)
    scores = [-0.5, 0.0, 0.001, -0.3, -0.6]
    kept = []
    for groups, score in enumerate(scores):
        peak, good = peak.after(level + score + 0.01 * rng.standard_normal(100), groups)
        kept.append(good)
    assert kept == [True, True, True, False, False]
    assert peak.groups == 2 and peak.scorings == 2


FEW = rows(12, 0.3, 3)  # which twenty units fit to the last digit under noise=0.1


@pytest.mark.parametrize("method", [
    tr.MAP(optimizer="adam", steps=2000), tr.BayesByBackprop(batch_size=None, start="random", learning_rate=0.02),
])  # fmt: skip
def test_a_climb_ends_where_rows_kept_out_are_predicted_best(method):
    """Never worse than the whole climb by more than chance, and told in the report."""
    whole = tr.infer(ROOMY, FEW, method, verify=None)
    ended = tr.infer(ROOMY, FEW, method, held_out=BEYOND, verify=None)
    assert "held-out best" in {c.name for c in ended.report().checks}
    gain = ended.log_predictive(BEYOND) - whole.log_predictive(BEYOND)
    assert gain.mean() > -2 * gain.std() / math.sqrt(len(gain))


def test_a_map_that_would_overfit_stops_early():
    ended = tr.infer(ROOMY, FEW, tr.MAP(optimizer="adam", steps=2000), held_out=BEYOND, verify=None)
    whole = tr.infer(ROOMY, FEW, tr.MAP(optimizer="adam", steps=2000), verify=None)
    assert ended.found["held-out best"] < 2000
    assert ended.log_predictive(BEYOND).mean() > whole.log_predictive(BEYOND).mean() + 0.5


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", [
    tr.MAP(optimizer="adam", steps=500), tr.BayesByBackprop(batch_size=10, epochs=300, start="random"),
])  # fmt: skip
def test_it_goes_on_bit_for_bit(method, tmp_path):
    """A climb that rows kept out end, killed half-way, ends where it would have ended."""
    whole = tr.infer(ROOMY, FEW, method, held_out=BEYOND, verify=None)
    seen = []

    def killing(phase: str, done: int, of: int) -> None:
        seen.append(done)
        if (
            phase in ("climbing", "climbing the bound")
            and of > 0
            and done * 2 > of
            and not (tmp_path / "again").exists()
        ):
            (tmp_path / "again").touch()
            raise Killed

    def go() -> Posterior:
        return tr.infer(ROOMY, FEW, method, held_out=BEYOND, verify=None, checkpoint=tmp_path / "run", progress=killing)

    with pytest.raises(Killed):
        go()
    again = go()
    for name in ("point", "unconstrained"):
        assert np.array_equal(getattr(again, name), getattr(whole, name)) if getattr(whole, name) is not None else True
    assert again.found["held-out best"] == whole.found["held-out best"]


def test_a_ladder_ends_where_rows_kept_out_are_worth_most():
    ladder = tr.models.latent_gaussian(6, 2, hidden=(30,))
    rng = np.random.default_rng(0)
    x, beyond = (rng.random((n, 6)) < 0.5 for n in (30, 300))
    method = tr.AutoEncoding(epochs=400, batch_size=10, learning_rate=0.01)
    whole = tr.infer(ladder, tr.Data(x.astype(float)), method)
    ended = tr.infer(ladder, tr.Data(x.astype(float)), method, held_out=tr.Data(beyond.astype(float)))
    assert ended.found["held-out best"] < 1200
    bounds = [p.elbo(tr.Data(beyond.astype(float))).mean() for p in (ended, whole)]
    assert bounds[0] > bounds[1] + 0.05
    assert verdicts(ended)["held-out best"] == "trust" and "trend" not in verdicts(ended)


@pytest.mark.test
@pytest.mark.parametrize("held_out", [DATA, "text"])
def test_rows_kept_out_are_rows_that_were_not_fitted(held_out):
    with pytest.raises(DataError):
        tr.infer(NET, DATA, tr.MAP(), held_out=held_out)


def test_a_share_of_a_table_is_kept_out():
    x = np.random.default_rng(0).uniform(-2, 2, (60, 1))
    model = BayesianMLPRegressor(hidden=(3,), method=tr.MAP(), held_out=0.25, random_state=0).fit(x, np.sin(x[:, 0]))
    names = {c.name: c.sentence for c in model.report_.checks}
    assert "15 held-out rows" in names["held-out coverage"]


def test_what_cannot_be_held_against_rows_says_so_and_loses_nothing():
    """Moments alone, and a row of several distributions."""
    y = np.random.default_rng(0).standard_normal(60)
    posterior = tr.infer(NORMAL, tr.Data(y[:40]), tr.MALA(draws=200), draws="moments", held_out=tr.Data(y[40:]))
    pair = tr.Model({"a": dist.Normal(0, 1)}, lambda p: {"u": dist.Normal(p["a"], 1.0), "v": dist.Normal(p["a"], 2.0)})
    both = [tr.Data({"u": part, "v": part}) for part in (y[:40], y[40:])]
    for found in (posterior, tr.infer(pair, both[0], tr.MAP(), held_out=both[1])):
        assert verdicts(found)["held-out surprise"] == "caution"
