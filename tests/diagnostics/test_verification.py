"""Every look at a posterior has an exact case on which it must speak, and one on which it must not."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy import stats

import tractable as tr
from tractable.comparison import row_of
from tractable.core.approximations import of_root
from tractable.core.check import Check
from tractable.core.errors import RunError, SettingsError
from tractable.core.model import Data, Model
from tractable.diagnostics import climbs, moves, reweighed, shape, subject, tails, verify, view
from tractable.diagnostics import modes as mode_checks
from tractable.diagnostics.belief import Draws, Fitted
from tractable.diagnostics.convergence import diagnose
from tractable.diagnostics.target import Target
from tractable.glm import linear
from tractable.mcmc.hamiltonian_methods import divergences
from tractable.posterior import verification
from tractable.posterior.posterior import Posterior
from tractable.tables.regression import regression

pytestmark = pytest.mark.test

CORRELATED = np.array([[2.0, 1.2, 0.0], [1.2, 1.0, 0.3], [0.0, 0.3, 4.0]])
FAR = 9.0
NARROW = 0.5  # sd of the second mode


def _normal(z: jax.Array) -> jax.Array:
    return -z @ jnp.linalg.solve(jnp.asarray(CORRELATED), z) / 2


def _two(z: jax.Array) -> jax.Array:
    """0.7 N(0, I) + 0.3 N(9, NARROW² I) in two dimensions."""
    first = jnp.log(0.7) - jnp.sum(z**2) / 2
    second = jnp.log(0.3) - jnp.sum((z - FAR) ** 2) / (2 * NARROW**2) - 2 * jnp.log(NARROW)
    return jnp.logaddexp(first, second)


def _plateau(z: jax.Array) -> jax.Array:
    """A mode on a plain that ends at 40."""
    return jnp.logaddexp(-jnp.sum(z**2) / 2, -6.0 - jnp.sum((z / 40) ** 8))


def _bent(z: jax.Array) -> jax.Array:
    """A banana: z₁ ~ N(0, 1), z₂ | z₁ ~ N(z₁²/2, 0.3²)."""
    return -(z[0] ** 2) / 2 - (z[1] - z[0] ** 2 / 2) ** 2 / (2 * 0.3**2)


NORMAL = Model.from_log_density(_normal, jnp.zeros(3))
TWO = Model.from_log_density(_two, jnp.zeros(2))
PLATEAU = Model.from_log_density(_plateau, jnp.zeros(2))
BENT = Model.from_log_density(_bent, jnp.zeros(2))
BENT_MEAN, BENT_SD = np.array([0.0, 0.5]), np.array([1.0, math.sqrt(0.3**2 + 0.5)])


def fitted(model: Model, mean: np.ndarray, root: np.ndarray, seed: int = 0) -> Posterior:
    """The posterior that a q = N(mean, root rootᵀ) is said to be."""
    phi = of_root(jnp.asarray(mean, float), jnp.asarray(root, float))
    draws = mean + np.random.default_rng(seed).standard_normal((4000, len(mean))) @ root.T
    belief = Fitted(positions=draws[None], family="full rank", phi=jax.tree.map(np.asarray, phi), log_weights=None)
    found = {"gain": 0.0, "gain error": 0.0, "steps": 1000, "evaluations": 1000}
    return Posterior(model, None, tr.FullRank(), seed, belief, found)


def verdicts(posterior: Posterior) -> dict[str, str]:
    return {c.name: c.verdict for c in posterior.report().checks}


@pytest.fixture(scope="module")
def two() -> list[climbs.Mode]:
    target, home = Target(TWO), np.zeros(2)
    begin = climbs.starts(target, None, home, np.eye(2), 24, 960, 0)
    return climbs.modes(target, None, climbs.climb(target, None, begin, home, np.eye(2)), np.eye(2))


def test_climbs_end_at_the_maximum() -> None:
    target, centre = Target(NORMAL), np.full(3, 5.0)
    begin = climbs.starts(target, None, centre, np.eye(3), 24, 960, 0)
    ends = climbs.climb(target, None, begin, centre, np.eye(3))
    assert np.all(ends.values > -1e-3)


def test_masses_are_those_of_a_mixture(two: list[climbs.Mode]) -> None:
    """Widths differ by a factor of 2, so a wrong determinant moves the log ratio by log 4 or more."""
    assert len(two) == 2
    np.testing.assert_allclose(two[0].log_mass - two[1].log_mass, math.log(7 / 3), atol=1e-3)
    np.testing.assert_allclose(two[1].position, FAR, atol=1e-2)


def test_a_plain_is_no_mode() -> None:
    """Climbs from 4 sds end at the mode, and those from 16 on the plain where they began, far from its edge."""
    target, home = Target(PLATEAU), np.zeros(2)
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], 1)
    begin = np.concatenate([radius * directions for radius in (4.0, 16.0)])
    found = climbs.modes(target, None, climbs.climb(target, None, begin, home, np.eye(2)), np.eye(2))
    assert len(found) == 1
    np.testing.assert_allclose(found[0].position, 0, atol=1e-2)


@pytest.mark.test("normal, from a third of its width")
@pytest.mark.parametrize(
    ("model", "mean", "sd", "start"),
    [
        (NORMAL, np.zeros(3), np.sqrt(np.diag(CORRELATED)), 0.3),
        (BENT, BENT_MEAN, BENT_SD, 0.5),
    ],
    ids=["normal, from a third of its width", "banana, from half its width"],
)
def test_reweighing_gives_the_moments_and_their_errors(
    model: Model, mean: np.ndarray, sd: np.ndarray, start: float
) -> None:
    """Of 20 seeds the errors of means and log sds are as large as they say, together and one by one."""
    target, size = Target(model), len(mean)
    scores = []
    for seed in range(20):
        found = reweighed.reweigh(target, None, np.zeros(size), start * np.diag(sd), [], 1000, seed)
        assert found is not None
        estimate, error, its_sd, sd_error = found.moments()
        scores += [(estimate - mean) / error, np.log(its_sd / sd) / sd_error]
    # Rounds that follow from one another leave a little bias in 20 x 2 d scores of variance 1.
    scores = np.concatenate(scores)
    assert np.mean(scores**2) < 2.5
    assert np.abs(scores).max() < 6


# u = log k ~ N(0, 1.5²), and w | k lies in a narrow valley that bends: N(u/2 + u²/10, 0.2²).
VALLEY = Model(
    {"k": dist.LogNormal(0.0, 1.5), "w": dist.Normal(0.0, 1e3)},
    lambda p: dist.Normal(p["w"] - jnp.log(p["k"]) / 2 - jnp.log(p["k"]) ** 2 / 10, 0.2),
)
SD_OF_K = math.exp(1.5**2 / 2) * math.sqrt(math.expm1(1.5**2))


@pytest.mark.laws
def test_a_variance_that_comes_from_far_down_a_valley_is_found() -> None:
    """Half of k's variance lies where u > 4.5, three sds out: where one draw in a thousand is."""
    rows = Data(np.zeros(1)).arrays()
    u, w = np.sqrt(1.5**2), np.sqrt(0.75**2 + 2 * 0.1**2 * 1.5**4 + 0.2**2)
    off, errors = [], []
    for seed in range(5):
        found = reweighed.reweigh(Target(VALLEY), rows, np.array([0.0, 0.225]), np.diag([u, w]), [], 1000, seed)
        assert found is not None
        _, _, sd, error = found.moments()
        off.append(np.abs(np.log(sd[0] / SD_OF_K)))
        errors.append(error[0])
    assert max(off) < 0.06 and max(errors) < 0.11  # of log sd; 0.23, and no estimate, by places around the middle alone
    assert np.max(np.divide(off, errors)) < 4


@pytest.mark.laws
def test_what_lies_beyond_all_places_is_part_of_the_error() -> None:
    """A t of 2.5 degrees of freedom has 4 % of its sd where no place is; its places' own error is 1 %."""
    model = Model({"x": dist.StudentT(2.5)}, lambda p: dist.Normal(p["x"] * 0, 1.0))
    rows, scores = Data(np.zeros(1)).arrays(), []
    for seed in range(10):
        found = reweighed.reweigh(Target(model), rows, np.zeros(1), np.eye(1), [], 1000, seed)
        assert found is not None
        _, _, sd, error = found.moments()
        scores.append(np.log(sd[0] / math.sqrt(5)) / error[0])
    assert np.max(np.abs(scores)) < 3.5


@pytest.mark.parametrize(
    ("prior", "finite"),
    [(dist.HalfCauchy(1.0), False), (dist.StudentT(1.5), False), (dist.StudentT(3.0), True),
     (dist.InverseGamma(2.7, 1.0), True), (dist.LogNormal(0.0, 2.0), True)],
    ids=["half-Cauchy", "t 1.5", "t 3", "inverse gamma 2.7", "log-normal"],
)  # fmt: skip
def test_a_variance_that_is_infinite_has_no_estimate(prior: dist.Distribution, finite: bool) -> None:
    model = Model({"x": prior, "theta": dist.Normal(0, 1)}, lambda p: dist.Normal(p["theta"], 1.0))
    found = reweighed.reweigh(Target(model), Data(np.zeros(1)).arrays(), np.zeros(2), np.eye(2), [], 1000, 0)
    assert found is not None
    assert np.isfinite(found.moments()[3]).tolist() == [True, finite]


# In twenty dimensions, 15 sds of the wider one apart: climbs from around it end there, but for those from the narrow.
NARROW_SD, WIDE_SD, APART = 0.6, 2.4, 36.0


def _two_in_twenty(z: jax.Array) -> jax.Array:
    narrow = math.log(0.25) - 20 * math.log(NARROW_SD) - jnp.sum(jnp.square(z / NARROW_SD)) / 2
    wide = math.log(0.75) - 20 * math.log(WIDE_SD) - jnp.sum(jnp.square((z - APART / math.sqrt(20)) / WIDE_SD)) / 2
    return jnp.logaddexp(narrow, wide)


@pytest.mark.laws
def test_where_a_first_result_stood_is_not_forgotten() -> None:
    """Begun again at a mode of more mass, whose own look cannot see the first one's."""
    model = Model.from_log_density(_two_in_twenty, jnp.full(20, -60.0))  # no climb begins near either
    first = tr.infer(model, None, tr.Laplace(), verify=None, progress=False)
    near = dataclasses.replace(first, found=first.found | {subject.BEFORE: [[0.0] * 20]})
    unvisited = [next(c for c in one.verify().verification if c.name == "modes") for one in (first, near)]
    assert [check.value for check in unvisited] == [1, 2]
    assert unvisited[1].verdict == "reject"
    again = verification._places(near)
    np.testing.assert_allclose(again, [[0.0] * 20, first.unconstrained.mean((0, 1))])


def test_climbs_also_begin_where_methods_do() -> None:
    target = Target(Model.from_log_density(_two_in_twenty, jnp.zeros(20)))
    centre, root = np.full(20, APART / math.sqrt(20)), WIDE_SD * np.eye(20)
    begin = climbs.starts(target, None, centre, root, 96, 960, 0)
    assert len(climbs.modes(target, None, climbs.climb(target, None, begin, centre, root), root)) == 2


def test_reweighing_finds_the_share_of_a_mode(two: list[climbs.Mode]) -> None:
    found = reweighed.reweigh(Target(TWO), None, np.zeros(2), np.eye(2), two, 1000, 0)
    assert found is not None
    assert found.khat < 0.7
    share = float(found.weights @ (found.positions[:, 0] > FAR / 2))
    np.testing.assert_allclose(share, 0.3, atol=5 * math.sqrt(0.21 / found.ess))


@pytest.fixture(scope="module")
def walked() -> tuple[np.ndarray, moves.Moved]:
    root = np.linalg.cholesky(CORRELATED)
    draws = np.random.default_rng(0).standard_normal((1024, 3)) @ root.T
    return draws, moves.move(Target(NORMAL), None, draws, np.zeros(3), root, 0)


def test_moves_leave_a_posteriors_draws_as_they_are(walked: tuple[np.ndarray, moves.Moved]) -> None:
    """By Kolmogorov and Smirnov, at the last trajectory, where draws of different walkers are independent."""
    before, moved = walked
    assert moved.usable
    last = moved.after[-1] / np.sqrt(np.diag(CORRELATED))
    assert all(stats.kstest(x, "norm").pvalue > 1e-4 / 3 for x in last.T)
    # And they do move: a walker's place tells nothing of where it came from.
    assert np.all(np.abs([np.corrcoef(before[:, i], moved.after[-1][:, i])[0, 1] for i in range(3)]) < 0.15)


def test_moves_widen_draws_that_are_too_narrow() -> None:
    root = np.linalg.cholesky(CORRELATED) / 2
    draws = np.random.default_rng(0).standard_normal((1024, 3)) @ root.T
    found = moves.move(Target(NORMAL), None, draws, np.zeros(3), root, 0)
    ratio = found.after[-1].std(0) / np.sqrt(np.diag(CORRELATED))
    np.testing.assert_allclose(ratio, 1, atol=5 / math.sqrt(2 * 1024))


SEPARABLE = Data(np.array([0, 0, 1, 1]), np.array([-2.0, -1.0, 1.0, 2.0]))
MIXED = Data(np.array([0, 1, 0, 1]), np.array([-2.0, -1.0, 1.0, 2.0]))
LOGISTIC = Model({"w": dist.Normal(0, 10)}, lambda p, x: dist.Bernoulli(logits=p["w"] * x))


def _slope(target: Target, data: Data | None, size: int) -> float:
    rows = None if data is None else data.arrays()
    return tails.slowest(target, rows, np.full(size, 0.5), np.eye(size), tails.PLATEAU_DEPTH, 0)[0]


def test_tails() -> None:
    def improper(z: jax.Array) -> jax.Array:
        return -((z[0] - z[1]) ** 2) / 2

    def cauchy(z: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.log1p(z**2))

    assert abs(_slope(Target(Model.from_log_density(improper, jnp.zeros(2))), None, 2)) < 1e-3
    np.testing.assert_allclose(_slope(Target(Model.from_log_density(cauchy, jnp.zeros(3))), None, 3), -2, atol=1e-2)
    assert _slope(Target(LOGISTIC, prior=False), SEPARABLE, 1) > tails.SLOWEST
    assert _slope(Target(LOGISTIC, prior=False), MIXED, 1) < -1
    assert _slope(Target(LOGISTIC), SEPARABLE, 1) < -1


def test_tails_that_rise_again_far_below_are_told_by_their_whole_fall() -> None:
    """On a ray 10⁴ sds out digits may say anything; the number shown is below −1 where the verdict is trust."""

    def returns(z: jax.Array) -> jax.Array:
        r = jnp.abs(z[0])
        return jnp.where(r < 3e4, -jnp.minimum(r**2, 1e6), -5e5)

    found = tails.check(Target(Model.from_log_density(returns, jnp.zeros(1))), None, np.zeros(1), np.eye(1), False, 0)
    assert found.verdict == "trust" and found.value < -1


SOUND = {"tails": "trust", "modes": "trust", "means and sds": "trust"}


def test_the_posterior_itself_is_trusted() -> None:
    found = verdicts(fitted(NORMAL, np.zeros(3), np.linalg.cholesky(CORRELATED)).verify())
    assert found == {"bound's gain": "trust"} | SOUND


@pytest.mark.parametrize("rows, features", [(20, 1), (3000, 10), (300, 190)])
def test_a_perfect_approximation_is_trusted_whatever_the_seed(rows: int, features: int) -> None:
    """Laplace's approximation of a normal posterior in single precision: no check finds fault with it."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(rows, features))
    y = x @ generator.normal(size=features) + generator.normal(size=rows)
    with jax.enable_x64(False):
        model, data = linear.bayesian_linear(features, 1.0, 1.0), tr.Data(y, x)
        reports = [tr.infer(model, data, tr.Laplace(), seed=seed, progress=False).report() for seed in range(10)]
    assert [report.verdict for report in reports] == ["trust"] * 10


@pytest.mark.parametrize("size", view.SIZES, ids=lambda size: f"{size.starts} climbs")
def test_every_size_of_look_judges(size: view.Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of many rows get the smallest: it has no climbs from places that stand out."""
    monkeypatch.setattr(verify, "affordable", lambda *_: size)
    right, wrong = (fitted(NORMAL, np.zeros(3), s * np.linalg.cholesky(CORRELATED)) for s in (1.0, 0.4))
    assert right.verify("auto").report().verdict != "reject"
    assert wrong.verify("auto").report().verdict == "reject"


@pytest.mark.laws
@pytest.mark.parametrize(
    ("mean", "width"),
    [(0.0, 0.7), (0.0, 1.4), (0.35, 1.0), (0.0, 1e-5)],
    ids=["narrow", "wide", "beside", "collapsed"],
)
def test_a_q_that_is_wrong_is_rejected(mean: float, width: float) -> None:
    root = np.linalg.cholesky(CORRELATED)
    centre = mean * np.sqrt(np.diag(CORRELATED))
    assert verdicts(fitted(NORMAL, centre, width * root).verify())["means and sds"] == "reject"


def test_a_bent_ridge_is_rejected() -> None:
    """N(0, Λ⁻¹) at the mode: its own k-hat is below 0.7 on most seeds."""
    assert verdicts(fitted(BENT, np.zeros(2), np.diag([1.0, 0.3])).verify())["means and sds"] == "reject"


def test_a_mode_not_visited_is_named() -> None:
    report = fitted(TWO, np.zeros(2), np.eye(2)).verify().report()
    check = next(c for c in report.checks if c.name == "modes")
    assert (report.verdict, check.verdict, check.value) == ("reject", "reject", 2)
    assert "theta[0] = 9, theta[1] = 9" in check.sentence
    assert "% of the mass and 0 % of the draws" in check.sentence


SPIKE, WITHIN = 0.1, jnp.asarray([0.8, -0.5])


def _spiked(z: jax.Array, sd: float = SPIKE, share: float = 0.5) -> jax.Array:
    """(1 − share) N(0, I) + share N(WITHIN, sd² I), within reach of the first but felt from near alone."""
    slab = math.log(1 - share) - jnp.sum(z**2) / 2
    within = jnp.sum((z - WITHIN[: z.size]) ** 2) / (2 * sd**2)
    return jnp.logaddexp(slab, math.log(share) - within - z.size * math.log(sd))


def test_a_spike_within_a_slab_is_named() -> None:
    """From 24 starts with 480 places within the slab, of which three in a thousand lie in the spike's reach."""
    model = Model.from_log_density(_spiked, jnp.zeros(2))
    assert verdicts(fitted(model, np.zeros(2), np.eye(2)).verify())["modes"] == "reject"


@pytest.mark.parametrize("sd", [0.1, 0.01])
def test_a_spikes_mass_is_looked_at_over_its_own_width(sd: float) -> None:
    target, place = Target(Model.from_log_density(lambda z: _spiked(z, sd, 0.3), jnp.zeros(1))), np.asarray(WITHIN[:1])
    ends = climbs.climb(target, None, np.stack([0 * place, place]), np.zeros(1), np.eye(1))
    found = climbs.modes(target, None, ends, np.eye(1))
    spike = min(found, key=lambda m: float(np.abs(m.position - place)[0]))
    np.testing.assert_allclose(spike.position, place, atol=sd / 10)
    # Laplace's mass counts the slab beneath the spike too, at most a tenth of it.
    np.testing.assert_allclose(spike.log_mass, math.log(0.3) + math.log(2 * math.pi) / 2, atol=0.25)


def test_a_maximum_that_few_climbs_met_stands_for_others() -> None:
    target, root, high, low = Target(TWO), np.eye(2), np.full(2, FAR), np.zeros(2)
    point = tr.infer(Model.from_log_density(_two, jnp.full(2, FAR)), None, tr.MAP(), verify=None)

    def said(at_low: int) -> Check:
        positions = np.stack([high] * (100 - at_low) + [low] * at_low)
        ends = climbs.Ends(positions, target.at(None, positions), np.zeros(100))
        return mode_checks.check_maximum(
            subject.Subject(point, high, root),
            view.View([], target, target, None, view.SIZES[0], ends, climbs.Path(high[None], np.zeros(1))),
            climbs.modes(target, None, ends, root),
        )

    assert [said(count).verdict for count in (0, 2, 30)] == ["trust", "caution", "trust"]
    assert "only 2 of 100 climbs reached the one near theta[0]" in said(2).sentence


@pytest.mark.parametrize(("wider", "verdict"), [(1.0, "caution"), (1.6, "reject")])
def test_where_tails_decide_moments_quantiles_tell(wider: float, verdict: str) -> None:
    """A t with two degrees of freedom has no variance; 60 % more width puts its 5 % point 1.3 half-widths off.

    Of 4,000 draws the standard error of that point is 0.13 half-widths, of 0.2 allowed: too near the limit to tell.
    """
    t = Model.from_log_density(lambda z: -1.5 * jnp.sum(jnp.log1p(z**2 / 2)), jnp.zeros(1))
    draws = wider * stats.t(2).ppf((np.arange(4000) + 0.5) / 4000)
    draws = np.random.default_rng(0).permutation(draws).reshape(4, 1000, 1)
    posterior = Posterior(t, None, tr.NUTS(), 0, Draws(positions=draws), {"gradients": 1e5})
    assert shape.has_heavy_tails(posterior)
    assert next(c.verdict for c in posterior.verify().verification if c.name == "means and sds") == verdict


def test_a_normals_tails_are_not_heavy() -> None:
    assert not shape.has_heavy_tails(fitted(NORMAL, np.zeros(3), np.linalg.cholesky(CORRELATED)))


def test_draws_are_looked_at_by_their_weights() -> None:
    """Draws of a t with two degrees of freedom that are weighted to a normal have a normal's tails."""
    normal = Model.from_log_density(lambda z: -jnp.sum(z**2) / 2, jnp.zeros(1))
    draws = np.random.default_rng(0).permutation(stats.t(2).ppf((np.arange(4000) + 0.5) / 4000))[None, :, None]
    weights = (stats.norm.pdf(draws) / stats.t(2).pdf(draws))[..., 0]
    found = {"gradients": 1e5, "khat": 0.0, "left": 0.0, "places": 1, "end": 20.0}
    posterior = Posterior(normal, None, tr.INLA(), 0, Draws(positions=draws, weights=weights), found)
    assert not shape.has_heavy_tails(posterior)
    assert shape.has_heavy_tails(Posterior(normal, None, tr.INLA(), 0, Draws(positions=draws), found))
    values = draws[0][subject.even_draws(posterior, 1000), 0]
    np.testing.assert_allclose([values.mean(), values.std()], [0, 1], atol=0.02)
    equal = Posterior(normal, None, tr.INLA(), 0, Draws(positions=draws[:, subject.even_draws(posterior, 4000)]), found)
    chances = [shape.compare_quantiles(each, values[:, None], None, 1e12).chance for each in (posterior, equal)]
    np.testing.assert_allclose(chances[0] / chances[1], np.sqrt(np.mean(weights**2)) / np.mean(weights), rtol=0.1)


@pytest.mark.quick
def test_weights_that_may_be_too_heavy() -> None:
    """With k-hat between 0.5 and 0.7 moves must agree with the weights; else those that can tell decide.

    Of good weights that see an error at the limit no moves say that there is none: they may not leave their mode.
    """
    right = shape.Compared(0.1, 0.05, "a", 0.02, 1.0)
    wrong = right._replace(error=1.5)
    near = right._replace(error=0.9)
    assert shape.prefers_moved(wrong, right, 0.6, False) and shape.prefers_moved(near, right, 0.6, False)
    assert not shape.prefers_moved(right, wrong, 0.6, False)
    assert not shape.prefers_moved(near, right, 0.1, False)
    at = right._replace(error=1.05)
    assert (at.verdict, near.verdict, right.verdict) == ("caution", "caution", "trust")
    assert near._replace(lenient=True).verdict == "trust" and at._replace(lenient=True).verdict == "caution"
    assert not shape.prefers_moved(near._replace(lenient=True), near, 0.1, True)
    assert shape.prefers_moved(right, at, 0.6, True) and not shape.prefers_moved(right, at, 0.1, True)
    assert shape.prefers_moved(wrong, at, 0.1, True)


def _chains(size: int) -> Posterior:
    """4,000 independent draws of a normal, as chains of NUTS."""
    normal = Model.from_log_density(lambda z: -jnp.sum(z**2) / 2, jnp.zeros(size))
    draws = np.random.default_rng(1).standard_normal((4, 1000, size))
    return Posterior(normal, None, tr.NUTS(), 0, Draws(positions=draws), {"gradients": 1e5})


def test_right_chains_are_trusted_by_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty sds the worst is known to 5 % by 1,000 places: near the limit is within it, as the chains agree."""
    monkeypatch.setattr(verify, "affordable", lambda *_: view.SIZES[-2])
    assert next(c.verdict for c in _chains(20).verify().verification if c.name == shape.SHAPE) == "trust"


@pytest.mark.parametrize(("error", "of_q", "of_chains"), [(0.5, "trust", "trust"), (0.7, "caution", "trust")])
def test_moves_alone_see_too_little_of_a_q(
    error: float, of_q: str, of_chains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "reweigh", lambda *_: None)
    monkeypatch.setattr(shape, "compare_moments", lambda *_: shape.Compared(error, 0.1, "z[0]", 0.1, 1.0))
    q = fitted(NORMAL, np.zeros(3), np.linalg.cholesky(CORRELATED))
    for posterior, verdict in ((q, of_q), (_chains(3), of_chains)):
        assert next(c.verdict for c in posterior.verify().verification if c.name == shape.SHAPE) == verdict


@pytest.mark.quick
def test_a_number_with_a_bound_has_a_variance() -> None:
    """A share that is 1 to the last digit at 150 places does not go on beyond them."""
    values = np.concatenate([np.ones(150), np.linspace(0.9, 0.99, 50), np.linspace(0.3, 0.6, 3800)])[:, None]
    w = np.concatenate([np.full(200, 1e-10), np.full(3800, 1 / 3800)])
    found = reweighed.Reweighed(values, values, w / w.sum(), np.log(w), 3800.0, 0.1)
    assert not found.endless(np.array([True]))


@pytest.mark.laws
def test_a_point_is_judged_as_a_point() -> None:
    """Standard errors are shown where they are a posterior's sds."""
    normal, bent = (tr.infer(model, None, tr.MAP()) for model in (NORMAL, BENT))
    assert (normal.report().verdict, bent.report().verdict) == ("trust", "trust"), bent.report()
    np.testing.assert_allclose(np.asarray(normal.sd()), np.sqrt(np.diag(CORRELATED)), rtol=1e-4)
    assert np.all(np.isnan(np.asarray(bent.sd())))
    assert "not shown" in str(bent.report())
    assert bent.report().title.endswith(", judged as a maximum and not as a posterior")


def test_a_higher_maximum_is_named() -> None:
    """The narrow mode is the higher one, by log(0.3/NARROW²/0.7), and the climb begins at the other."""
    report = tr.infer(TWO, None, tr.MAP(), verify=None).verify().report()
    check = next(c for c in report.checks if c.name == "higher maximum")
    assert report.verdict == "reject"
    np.testing.assert_allclose(check.value, math.log(0.3 / NARROW**2 / 0.7), atol=1e-3)


@pytest.mark.parametrize(("size", "verdict"), [(2, "trust"), (6, "caution")])
def test_a_maximum_among_lower_ones_is_not_trusted_in_many_dimensions(size, verdict):
    """As many normals as dimensions, far apart, the second a nat higher. A narrow one could be missed in six."""
    places = 10 * jnp.eye(size)

    def density(z: jax.Array) -> jax.Array:
        return jax.nn.logsumexp(jnp.eye(size)[1] - 0.5 * jnp.sum(jnp.square(z - places), 1))

    posterior = tr.infer(Model.from_log_density(density, jnp.zeros(size)), None, tr.MAP())
    check = next(c for c in posterior.report().checks if c.name == "starts that agree")
    assert check.verdict == verdict
    assert ("a higher one may be missing" in check.sentence) == (verdict == "caution")
    np.testing.assert_allclose(np.asarray(posterior.point).ravel(), places[1], atol=1e-3)


@pytest.mark.test("MAP")
@pytest.mark.parametrize("method", [tr.MAP(), tr.Laplace(), tr.MeanField()], ids=["MAP", "Laplace", "MeanField"])
def test_a_climb_begins_again_where_a_look_found_better(method: tr.Method) -> None:
    """The mode at 9 has nine tenths of the mass, and is the higher one; every climb begins near 0."""

    def two(z: jax.Array) -> jax.Array:
        return jnp.logaddexp(math.log(0.1) - jnp.sum(z**2) / 2, math.log(0.9) - jnp.sum((z - FAR) ** 2) / 2)

    model = Model.from_log_density(two, jnp.zeros(2))
    first, again = (tr.infer(model, None, method, verify=verify) for verify in (None, "auto"))
    np.testing.assert_allclose(first.mean(), 0, atol=0.1)
    np.testing.assert_allclose(again.mean(), FAR, atol=0.1)
    assert again.verification[0].name == "begun again"
    assert again.cost.gradients > first.cost.gradients
    assert again.report().verdict == ("trust" if method.point else "reject")  # a tenth of the mass is elsewhere
    np.testing.assert_allclose(again.found[subject.BEFORE], [subject.subject_of(first).centre])


@pytest.mark.laws
def test_maximum_likelihood_of_separable_data_is_rejected() -> None:
    found = verdicts(tr.infer(LOGISTIC, SEPARABLE, tr.MLE()))
    assert found["tails"] == "reject"
    assert verdicts(tr.infer(LOGISTIC, MIXED, tr.MLE()))["tails"] == "trust"


@pytest.mark.laws
def test_what_was_not_looked_at_is_not_trusted() -> None:
    posterior = fitted(NORMAL, np.zeros(3), np.linalg.cholesky(CORRELATED))
    assert posterior.verify(None).report().verdict == "caution"
    assert posterior.verify("thorough").report().verdict == "trust"
    assert posterior.verify().seconds["verifying"] > 0
    with pytest.raises(SettingsError, match=r"verify\(how\) expects 'auto', 'thorough' or None; got 'much'"):
        posterior.verify("much")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"infer\(verify\) expects"):
        tr.infer(NORMAL, None, tr.MAP(), verify="much")  # type: ignore[arg-type]


def test_looks_do_not_hang_on_the_clock() -> None:
    """The same seed gives the same checks."""
    posterior = fitted(BENT, BENT_MEAN, np.diag(BENT_SD))
    assert posterior.verify().verification == posterior.verify().verification


# Mutants: each is a wrong look, which the test beside it must notice.


@pytest.fixture(scope="module")
def of_many_levels() -> Posterior:
    """47 parameters, of which nested Laplace has the exact posterior."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(45), 12), rng.normal(size=540)
    y = 2 * rng.normal(size=45)[group] + x / 2 + rng.normal(size=540)
    rows = regression("y ~ x + group", pd.DataFrame({"y": y, "x": x, "group": [f"level {g}" for g in group]}))
    return tr.infer(rows.model, rows.data, tr.INLA(), progress=False, verify=None)


@pytest.mark.laws
def test_an_exact_posterior_of_many_parameters_is_trusted(of_many_levels: Posterior) -> None:
    """Places that shape a covariance count too little beneath it: the noise seemed 0.25 sd too large."""
    check = next(c for c in of_many_levels.verify("auto").verification if c.name == shape.SHAPE)
    assert check.verdict == "trust" and check.value < 0.7


def _inverted_determinant(patch: pytest.MonkeyPatch) -> None:
    right = climbs._mode

    def wrong(*arguments: object) -> climbs.Mode | None:
        mode = right(*arguments)
        return mode and mode._replace(log_mass=mode.log_mass - 2 * float(np.sum(np.log(np.diag(mode.root)))))

    patch.setattr(climbs, "_mode", wrong)


def _own_round_alone(patch: pytest.MonkeyPatch) -> None:
    """Weights against the last round's proposal, of places that were drawn from others."""
    right = reweighed._log_mixture
    patch.setattr(reweighed, "_log_mixture", lambda by_round: right(by_round[-1:]))


def _ends_with_the_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reweighed, "_beyond", lambda away, w: 0.0)


def _constant(patch: pytest.MonkeyPatch, module: object, name: str, value: float) -> None:
    patch.setattr(module, name, value)


def _passes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verify, "check_visits", lambda *_: Check("modes", 1.0, "trust", ""))


def _masses() -> None:
    target, home = Target(TWO), np.zeros(2)
    begin = climbs.starts(target, None, home, np.eye(2), 24, 960, 0)
    found = climbs.modes(target, None, climbs.climb(target, None, begin, home, np.eye(2)), np.eye(2))
    test_masses_are_those_of_a_mixture(sorted(found, key=lambda m: float(np.sum(m.position))))


@pytest.mark.test("passes")
@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        (_inverted_determinant, _masses),
        (_own_round_alone, lambda: test_reweighing_gives_the_moments_and_their_errors(
            NORMAL, np.zeros(3), np.sqrt(np.diag(CORRELATED)), 0.3)),
        (lambda patch: patch.setattr(reweighed, "_outward", lambda *_: None),
         test_a_variance_that_comes_from_far_down_a_valley_is_found),
        (_ends_with_the_places,
         lambda: test_a_variance_that_is_infinite_has_no_estimate(dist.HalfCauchy(1.0), False)),
        (_ends_with_the_places, test_what_lies_beyond_all_places_is_part_of_the_error),
        (lambda patch: _constant(patch, shape, "MEANS_OFF", 0.4), lambda: test_a_q_that_is_wrong_is_rejected(0.35, 1)),
        (lambda patch: _constant(patch, shape, "SDS_OFF", 1.6), lambda: test_a_q_that_is_wrong_is_rejected(0.0, 0.7)),
        (lambda patch: _constant(patch, mode_checks, "UNVISITED", 0.5), test_a_mode_not_visited_is_named),
        (lambda patch: _constant(patch, tails, "SLOWEST", 1.0), test_maximum_likelihood_of_separable_data_is_rejected),
        (_passes, test_a_mode_not_visited_is_named),
        (
            lambda patch: _constant(patch, tails, "SLOWING", tails.SLOWEST),
            lambda: test_a_plain_far_below_is_met_after_a_long_fall(),
        ),
        (lambda patch: _constant(patch, climbs, "BEGIN", 1e3), test_climbs_also_begin_where_methods_do),
        (
            lambda patch: _constant(patch, tails, "LEAST_RADIUS_BLURRED", 12.0),
            lambda: test_a_valley_is_followed_until_digits_end(),
        ),
    ],
    ids=["determinant", "mixture", "no way out", "any variance", "nothing beyond", "limit of means", "limit of sds",
         "share of a mode", "slowest fall", "passes", "long falls", "begins", "digits"],
)  # fmt: skip
def test_mutants_die(mutant, law, monkeypatch: pytest.MonkeyPatch) -> None:
    law()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        law()


@pytest.mark.laws
def test_the_mutant_that_adapts_to_few_places_dies(of_many_levels: Posterior, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reweighed, "ADAPTED", 1000)
    with pytest.raises(AssertionError):
        test_an_exact_posterior_of_many_parameters_is_trusted(of_many_levels)


# Valleys: a group's spread and what it scales go to zero together.
GROUPS = jnp.asarray([-1.5, -0.5, 0.5, 1.5])


def _hierarchy(z: jax.Array, prior: float) -> jax.Array:
    """y_j ~ N(θ_j, 1), θ_j ~ N(0, τ); z = (log τ, θ). log p(log τ) = −prior log τ²/2: flat where it is 0."""
    log_tau, theta = z[0], z[1:]
    effects = -jnp.sum(jnp.square(theta * jnp.exp(-log_tau))) / 2 - theta.size * log_tau
    return effects - jnp.sum(jnp.square(GROUPS - theta)) / 2 - prior * log_tau**2 / 2


def _upwards(z: jax.Array, prior: float) -> float:
    """The slope at the end of the valley in which τ goes to 0, from where τ = 1."""
    model = Model.from_log_density(lambda z: _hierarchy(z, prior), jnp.zeros(5))
    begin, sds = np.concatenate([[0.0], np.asarray(GROUPS) / 2]), np.ones(5)
    return float(tails.valley_slopes(Target(model), None, begin, sds, np.array([0]), np.array([-1.0]), False)[0])


def test_a_valley_is_followed_until_digits_end() -> None:
    """Groups about a mean μ: in single precision μ's curvature blurs at log τ = −8, which are five sds of log τ."""

    def slope(prior: float) -> float:
        def density(z: jax.Array) -> jax.Array:
            log_tau, mu, theta = z[0], z[1], z[2:]
            effects = -jnp.sum(jnp.square((theta - mu) * jnp.exp(-log_tau))) / 2 - theta.size * log_tau
            return effects - jnp.sum(jnp.square(GROUPS + 5 - theta)) / 2 - prior * log_tau**2 / 2

        single = Model.from_log_density(lambda z: density(z.astype(jnp.float32)).astype(z.dtype), jnp.zeros(6))
        begin, sds = np.concatenate([[0.0, 5.0], np.asarray(GROUPS) / 2 + 5]), np.array([1.6, 1, 1, 1, 1, 1])
        return float(tails.valley_slopes(Target(single), None, begin, sds, np.array([0]), np.array([-1.0]), False)[0])

    assert abs(slope(0.0)) < 0.5
    assert slope(1.0) < -10


@pytest.mark.parametrize(("prior", "verdict"), [(0.0, "reject"), (2.0, "trust")], ids=["flat", "proper"])
def test_a_maximum_below_an_endless_valley_is_none(prior: float, verdict: str) -> None:
    """y = ±10, ±30: a maximum where τ is about 22, a dip of 60 nats, and −4 log τ without end beyond it."""

    def density(z: jax.Array) -> jax.Array:
        log_tau, theta = z[0], z[1:]
        effects = -jnp.sum(jnp.square(theta * jnp.exp(-log_tau))) / 2 - theta.size * log_tau
        away = jnp.sum(jnp.square(20 * GROUPS - theta)) / 2
        return effects - away / 9 - prior * jnp.square(log_tau - 3) / 2

    begin = jnp.concatenate([jnp.full(1, 3.0), 20 * GROUPS])
    point = tr.infer(Model.from_log_density(density, begin), None, tr.MAP(), verify=None)
    found = subject.subject_of(point)
    assert found is not None
    assert tails.check(Target(point.model), None, found.centre, found.root, True, 0).verdict == verdict


def test_mass_that_escapes_along_a_valley_is_seen() -> None:
    """As τ → 0 the marginal density of log τ is a constant, and with log τ ~ N(0, 1) it is normal: slope −log τ²."""
    assert abs(_upwards(jnp.zeros(5), 0.0)) < 0.05
    assert _upwards(jnp.zeros(5), 1.0) < -50


def test_a_plain_far_below_is_met_after_a_long_fall() -> None:
    """y = ±3, ±9: at twenty sds of log τ, 80 nats down, the valley still falls; only beyond it is flat."""

    def slope(prior: float) -> float:
        def density(z: jax.Array) -> jax.Array:
            others = jnp.square(6 * GROUPS - z[1:]) - jnp.square(GROUPS - z[1:])
            return _hierarchy(z, prior) - jnp.sum(others) / 2

        begin, sds = np.concatenate([[1.9], 6 * np.asarray(GROUPS)]), np.array([0.25, 1, 1, 1, 1])
        target = Target(Model.from_log_density(density, jnp.zeros(5)))
        return float(tails.valley_slopes(target, None, begin, sds, np.array([0]), np.array([-1.0]), False)[0])

    assert slope(0.0) > tails.SLOWEST and slope(1.0) < -10


def test_a_marginal_along_a_valley_is_laplaces() -> None:
    """Of a normal exactly: −½ (z₀/sd₀)², up to the constant that all heights share."""
    target, sds = Target(NORMAL), np.sqrt(np.diag(CORRELATED))
    heights = []
    for place in (0.0, 1.0, 2.5):
        at = np.array([place * sds[0], 0.3, -0.2])
        height, found = tails.conditional_maxima(target, None, at[None], sds[None].copy(), np.array([0]), False)
        assert found == tails.FOUND
        heights.append(height[0])
    np.testing.assert_allclose(np.diff(heights), [-0.5, -0.5 * (2.5**2 - 1)], atol=1e-6)


@pytest.mark.laws
def test_a_maximum_that_recedes_is_no_maximum() -> None:
    """exp(−e^u): every step down adds less, and the climb stops where nothing is left to gain."""
    receding = Model.from_log_density(lambda z: -jnp.sum(jnp.exp(z)), jnp.zeros(2))
    posterior = tr.infer(receding, None, tr.MAP(), verify="auto")
    assert posterior.report().verdict != "trust"


def _met(count: int) -> int:
    """Of six seeds, how often a mode of half the other's sd, twelve sds away in five dimensions, was met."""

    def two(z: jax.Array) -> jax.Array:
        away = z - 12 / math.sqrt(5)
        return jnp.logaddexp(-jnp.sum(z**2) / 2, -2 * jnp.sum(away**2) + 5 * math.log(2.0))

    target, home = Target(Model.from_log_density(two, jnp.zeros(5))), np.zeros(5)
    places = [climbs.starts(target, None, home, np.eye(5), count, 40 * count, seed) for seed in range(6)]
    ends = [climbs.climb(target, None, begin, home, np.eye(5)).positions for begin in places]
    return sum(bool(np.any(np.linalg.norm(e - 12 / math.sqrt(5), axis=1) < 0.5)) for e in ends)


def test_a_narrow_mode_stands_out_of_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _met(24) == 6

    def anywhere(target, rows, normals, centre, root, widths, best):
        return centre + widths[:best, None] * normals[:best]

    monkeypatch.setattr(climbs, "_shell_outliers", anywhere)
    assert _met(24) < 6


def test_a_climb_on_the_ratio_meets_a_mode_that_is_not_felt_yet() -> None:
    """Where a narrow mode is e⁻⁴ of the density the slope leads away from it, and that of p/q to it."""

    def two(z: jax.Array) -> jax.Array:
        return jnp.logaddexp(-jnp.sum(z**2) / 2, -8 * jnp.sum((z - 3.0) ** 2) + 2 * math.log(4.0))

    target, home, root = Target(Model.from_log_density(two, jnp.zeros(2))), np.zeros(2), np.eye(2)
    along = np.linspace(0, 3, 3001)[:, None] * np.ones(2)
    ratio = -8 * np.sum((along - 3.0) ** 2, 1) + 2 * math.log(4.0) + np.sum(along**2, 1) / 2
    begin = along[np.argmin(np.abs(ratio + 4))][None]
    lifted = climbs.climb(target, None, begin, home, root, climbs.LIFTED, 1.0).positions
    ends = climbs.climb(target, None, np.concatenate([begin, lifted]), home, root).positions
    np.testing.assert_allclose(ends, [[0, 0], [3, 3]], atol=1e-2)


def test_places_around_lie_as_far_out_as_a_distant_modes_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(climbs, "_shell_outliers", lambda *given: asked.append(given[-2]) or np.zeros((1, 3)))
    climbs.starts(Target(NORMAL), None, np.zeros(3), np.eye(3), 24, 6, 0)
    np.testing.assert_allclose(3 * asked[1] ** 2, 3 + np.array(climbs.DISTANCES) ** 2)  # E|x|² of N(D e, I)


def test_nothing_stands_out_of_a_normals_shells() -> None:
    """Of a normal itself all in a shell are as high, up to rounding, in whatever units: no place is preferred."""
    target, root = Target(NORMAL), np.linalg.cholesky(CORRELATED)
    widths = np.resize((2.0, 3.0, 5.0, 8.0, 12.0), 1280)
    normals = np.random.default_rng(0).standard_normal((1280, 3), np.float32)
    found = climbs._shell_outliers(target, None, normals, np.zeros(3), root, widths, 40)
    white = np.linalg.solve(root, found.T).T
    sides = np.sign(white).mean(0)  # of independent signs, an sd of 40^-1/2
    assert np.all(np.abs(sides) < 5.33 / math.sqrt(40))


@pytest.mark.laws
@pytest.mark.parametrize(
    ("root", "verdict"), [(np.linalg.cholesky(CORRELATED), "trust"), (np.diag([0.6, 0.5, 1.9]), "reject")]
)
def test_a_thorough_look_holds_a_q_against_nuts(root: np.ndarray, verdict: str) -> None:
    found = verdicts(fitted(NORMAL, np.zeros(3), root).verify("thorough"))
    assert found["compared with NUTS"] == verdict


@pytest.mark.laws
@pytest.mark.parametrize("method", [tr.NUTS(draws=400), tr.Laplace(), tr.MAP()], ids=lambda m: m.label)
def test_constants_of_a_support_are_no_stuck_chains(method):
    """The first row of a correlation matrix's root is (1, 0) whatever the parameters."""
    rows = np.random.default_rng(3).normal(size=(250, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    model = tr.Model(
        {"L": dist.LKJCholesky(2, 1.0)}, lambda params: dist.MultivariateNormal(jnp.zeros(2), scale_tril=params["L"])
    )
    assert model.fixed.tolist() == [True, True, False, False]
    posterior = tr.infer(model, rows, method, seed=1)
    assert posterior.report().verdict == "trust", posterior.report()
    if not posterior.is_point:
        seen = posterior.summary()
        assert np.isnan(seen["r_hat"][:2]).all() and np.isfinite(seen["r_hat"][2:]).all()
        assert np.isfinite(row_of(posterior, {})["ess"])
    # A chain that stands still where it could move is stuck, all the same.
    draws = np.random.default_rng(4).normal(size=(4, 100, 2))
    draws[1] = draws[1, 0]
    assert diagnose(draws, np.array([True, False])).stuck == 1


@pytest.mark.laws
def test_constants_do_not_count_among_running_moments():
    model = tr.Model({"C": dist.LKJ(2, 1.0)}, lambda params: dist.Normal(params["C"][0, 1], 1.0))
    report = tr.infer(model, np.full(20, 0.3), tr.NUTS(draws=400), draws="moments", seed=1).report()
    assert report.checks[0].name == "R-hat of means" and report.checks[0].value < 1.05, report


@pytest.mark.parametrize(
    ("share", "shape", "verdict"),
    [
        (0.0, None, "trust"), (0.005, None, "caution"), (0.1, None, "reject"),
        (0.1, ("caution", 0.5), "caution"), (0.1, ("trust", 0.2), "caution"),
        (0.1, ("reject", 3.0), "reject"), (0.1, ("trust", math.nan), "reject"),  # which could not tell
    ],
)  # fmt: skip
def test_divergences_reject_where_nothing_else_speaks_for_the_draws(share, shape, verdict):
    draws = np.random.default_rng(0).normal(size=(4, 200, 1))
    divergent = np.arange(800).reshape(4, 200) < share * 800
    looked = [] if shape is None else [Check("means and sds", shape[1], shape[0], "")]
    belief = Draws(positions=draws, info={"divergent": divergent})
    posterior = Posterior(Model.from_log_density(lambda x: -x @ x / 2, jnp.zeros(1)), None, tr.NUTS(), 0, belief)
    posterior.verification = looked
    assert divergences(posterior, "").verdict == verdict


@pytest.mark.quick
def test_places_of_no_weight_may_overflow():
    """Of a scale drawn far out exp(u) is ∞, and 0 · ∞ is no number."""
    values = np.concatenate([np.random.default_rng(0).normal(size=(500, 2)), [[np.inf, 1.0]]])
    weights = np.append(np.full(500, 1 / 500), 0.0)
    told = reweighed.Reweighed(values, values, weights, np.log(np.maximum(weights, 1e-300)), 500.0, 0.1)
    mean, error, sd, sd_error = told.moments()
    np.testing.assert_allclose(mean, values[:500].mean(0), rtol=1e-12)
    np.testing.assert_allclose(sd, values[:500].std(0), rtol=1e-12)
    assert np.all(np.isfinite(error)) and np.all(np.isfinite(sd_error))


@pytest.mark.quick
def test_a_wild_curvature_is_no_mode():
    """The curvature of a horseshoe at a climb's end that overflows: LAPACK finds no eigenvalues of it."""
    curved = np.array([[1.0, 1e200, 3.0], [1e200, 2.0, 1e180], [3.0, 1e180, 1.0]])
    assert climbs._normal(np.zeros(3), 0.0, curved) is None
    mode = climbs._normal(np.zeros(3), 0.0, np.array([[1e-8, 0.0, 0.0], [0.0, 1e8, 0.5], [0.0, 0.5, 1.0]]))
    assert mode is not None


@pytest.mark.laws
@pytest.mark.parametrize("method", [tr.NUTS(), tr.Laplace()], ids=lambda m: m.label)
def test_a_simplex_with_empty_parts_has_finite_mass(method):
    """Stick-breaking runs out of digits 10⁴ sds out in single precision, where the density then stands still."""
    with jax.enable_x64(False):
        model = Model({"p": dist.Dirichlet(jnp.full(4, 0.3))}, lambda params: dist.Categorical(params["p"]))
        report = tr.infer(model, np.array([1], np.int32), method, seed=0).report()
        (tails_,) = [check for check in report.checks if check.name == "tails"]
    assert tails_.verdict == "trust", report


@pytest.mark.laws
def test_starts_far_from_the_origin_are_drawn_from_the_prior():
    """y ~ U(0, b), b ~ LogNormal(1, 2): below the largest y the likelihood is 0, and |log b| ≤ 2 lies below."""
    model = Model({"b": dist.LogNormal(1.0, 2.0)}, lambda params: dist.Uniform(0.0, params["b"]))
    posterior = tr.infer(model, np.array([3.0, 9.0, 5.0, 7.0, 2.0]), tr.NUTS(draws=500), seed=0, verify=None)
    assert np.all(posterior.draws["b"] > 9.0)


@pytest.mark.parametrize(
    "error",
    [MemoryError("5.96 GiB"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 5.96 GiB"), RunError("5.96 GiB")],
    ids=["NumPy", "JAX", "a second run"],
)
def test_a_result_outlives_a_check_that_fails(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to verify keeps the result, and a caution says what failed."""

    def fail(*_: object, **__: object) -> None:
        raise error

    rows = tr.Data(np.random.default_rng(1).normal(size=8))
    model = tr.Model({"m": dist.Normal(0.0, 1.0)}, lambda params: dist.Normal(params["m"], 1.0))
    first = tr.infer(model, rows, tr.MAP(), verify=None)
    monkeypatch.setattr("tractable.diagnostics.verify.subject_of", fail)
    for posterior in (tr.infer(model, rows, tr.MAP()), first.verify("thorough"), first.verify(held_out=rows)):
        assert posterior.mean() == first.mean()
        assert posterior.report().verdict == "caution"
        assert "5.96 GiB" in posterior.verification[-1].sentence


@pytest.mark.parametrize("error", [MemoryError("5.96 GiB"), RunError("5.96 GiB")], ids=["memory", "run"])
def test_a_result_outlives_an_improvement_that_fails(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(z: jax.Array) -> jax.Array:
        return -jnp.sum(z**2) / 2

    posterior = tr.infer(Model.from_log_density(one, jnp.zeros(2)), None, tr.MAP())
    found = Check("higher maximum", 1.0, "reject", "a check found a higher one", place=np.ones(2))
    posterior = dataclasses.replace(posterior, verification=(found,))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Posterior, "verify", lambda *_, **__: posterior)
    monkeypatch.setattr(tr.MAP, "learn", fail)
    again = verification.verify_and_improve(posterior, "auto")
    assert again.belief is posterior.belief
    assert [check.name for check in again.verification] == ["higher maximum", "begun again"]
    assert "5.96 GiB" in again.verification[-1].sentence
