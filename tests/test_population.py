"""The targets of ``benchmarks/trust.py`` are what they are said to be, and what it calls right is right.

That a target's exact draws have the density the methods are given is shown by Stein's identities, E[∂ log p(u)] = 0 and
E[(u − c) ∂ log p(u)] = −1 for every unconstrained number and any c, and, as they cannot see how much a mode weighs, by
quadrature.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Z, assert_holds
from scipy import stats

import tractable as tr

pytestmark = pytest.mark.laws

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import population
    import population_realistic as realistic
    import trust
finally:
    sys.path.remove(str(BENCHMARKS))

DRAWS = 20_000
VARIANTS = population.variants()
# Fourth moments that are infinite, or known by few draws.
WILD = ("heavy-tailed", "funnel", "normal sample")


def member(name: str, index: int = 0) -> population.Target:
    return population.target(VARIANTS[name], index)


@pytest.mark.parametrize("name", [n for n, v in VARIANTS.items() if v.family != "improper"])
def test_exact_draws_have_the_density_and_the_moments(name):
    target = member(name)
    model, truth, rows = target.variant.model, target.truth(), target.data().arrays()
    assert truth.sample is not None
    draws = truth.sample(np.random.default_rng(1), DRAWS)

    @jax.jit
    def stein(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions = jax.vmap(lambda values: model.position_of(trust.shaped(model, values)))(draws)
        slopes = jax.vmap(jax.grad(tr.log_density(model, rows, flat=True)))(positions)
        return slopes, (positions - jnp.median(positions, 0)) * slopes

    scores = {}
    for what, terms, wanted in zip(("slope", "Stein"), map(np.asarray, stein(draws)), (0, -1), strict=True):
        z = np.abs(terms.mean(0) - wanted) / (terms.std(0) / np.sqrt(DRAWS) + 1e-12)
        scores |= {f"{what} {i}": float(each) / Z for i, each in enumerate(z)}
    exists = np.isfinite(truth.sd)
    away = (draws - truth.mean)[:, exists] / truth.sd[exists]
    scores["means"] = float(np.abs(away.mean(0)).max(initial=0)) * np.sqrt(DRAWS) / Z
    if target.family not in WILD:
        squares = np.square(away)
        scores["sds"] = float((np.abs(squares.mean(0) - 1) / squares.std(0)).max()) * np.sqrt(DRAWS) / Z
    if truth.quantiles is not None:
        levels = np.array(trust.LEVELS)[:, None]
        below = (draws[:, None] < truth.quantiles).mean(0)
        scores["quantiles"] = float((np.abs(below - levels) / np.sqrt(levels * (1 - levels) / DRAWS)).max()) / Z
    assert_holds(scores, DRAWS)


@pytest.mark.parametrize(
    "name",
    ["modes far apart, d = 1, wide prior", "spike in a slab, d = 1, wide prior", "skewed, d = 1, wide prior",
     "plateau, d = 1, wide prior", "beta(1, 1)-binomial", "logistic, 30 rows, d = 1, prior sd 2.5"],
)  # fmt: skip
def test_quadrature_of_what_methods_are_given_finds_the_moments(name):
    """By the trapezoidal rule over the draws' range and half as much again."""
    target = member(name, 1)
    model, truth, rows = target.variant.model, target.truth(), target.data().arrays()
    ends = np.quantile(truth.sample(np.random.default_rng(0), DRAWS), [0, 1], axis=0)
    low, high = (float(model.position_of(trust.shaped(model, end))[0]) for end in ends)
    width = high - low
    axis = jnp.linspace(low - width / 2, high + width / 2, 200_001)[:, None]
    logs = jax.jit(jax.vmap(tr.log_density(model, rows, flat=True)))(axis)
    weights = np.exp(np.asarray(logs - logs.max()))
    weights /= weights.sum()
    values = np.asarray(jax.vmap(model.values)(axis))[:, 0]
    mean = weights @ values
    sd = np.sqrt(weights @ np.square(values - mean))
    np.testing.assert_allclose([(mean - truth.mean[0]) / truth.sd[0], sd / truth.sd[0]], [0, 1], atol=1e-4)


@pytest.mark.quick
def test_the_split_is_deterministic_and_near_half():
    every = [population.target(v, i) for v in VARIANTS.values() for i in range(population.MEMBERS)]
    assert len(every) == 1696 and len({t.family for t in every}) == 20
    tuned = sum(t.half == "tune" for t in every)
    assert abs(tuned - len(every) / 2) <= Z * np.sqrt(len(every)) / 2
    for one in every[::97]:
        again = population.target(one.variant, one.index)
        assert again.half == one.half
        jax.tree.map(np.testing.assert_array_equal, again.numbers, one.numbers)
    halves = {population.half_of("coin", 0, {"y": np.array([float(i)])}) for i in range(40)}
    assert halves == {"tune", "publish"}  # it is the numbers' half, not the index's


@pytest.mark.quick
def test_bounds_are_clopper_and_pearsons():
    for wrong, trusted in ((0, 299), (1, 473), (3, 10), (7, 7), (0, 1)):
        exact = stats.binomtest(wrong, trusted).proportion_ci(0.95, method="exact")
        np.testing.assert_allclose(trust.bounds(wrong, trusted), (exact.low, exact.high), rtol=1e-9)


class Said(NamedTuple):
    """A posterior as far as it is judged."""

    draws: Any
    point: Any = None
    spread: Any = None

    @property
    def names(self) -> list[str]:
        return [str(i) for i in range(np.shape(self.draws)[-1])]

    def mean(self) -> Any:
        return self.draws.mean((0, 1)) if self.point is None else self.point

    def sd(self) -> Any:
        return self.draws.std((0, 1)) if self.point is None else self.spread


@pytest.mark.parametrize("name", ["banana, d = 2", "heavy-tailed, d = 1", "normal, d = 100", "modes far apart, d = 2"])
def test_exact_draws_are_right_and_altered_ones_are_wrong(name):
    target = member(name, 3)
    truth = target.truth()
    draws = truth.sample(np.random.default_rng(0), 100_000)
    width = truth.sd if np.all(np.isfinite(truth.sd)) else truth.half
    centre = truth.mean

    def right(values: np.ndarray) -> bool:
        return trust.judged(target, truth, Said(values[None]), "nuts").right

    assert right(draws)
    assert right(draws + 0.1 * width)
    shifted = draws.copy()
    shifted[:, np.argmin(width)] += 0.3 * width.min()
    assert not right(shifted)
    assert not right(centre + 1.4 * (draws - centre))
    assert not right(centre + 0.7 * (draws - centre))
    assert not right(np.full_like(draws, np.nan))


@pytest.mark.quick
def test_a_missing_mode_is_wrong():
    target = next(t for t in map(lambda i: member("modes far apart, d = 2", i), range(9)) if not t.hard)
    draws = target.truth().sample(np.random.default_rng(0), 100_000)
    t = (draws - target.numbers["m"]) @ target.numbers["inverse"].T
    one = np.square(t - target.numbers["places"][0]).sum(1) < np.square(t - target.numbers["places"][1]).sum(1)
    assert not trust.judged(target, target.truth(), Said(draws[one][None]), "nuts").right


def test_a_point_is_right_at_the_maximum_alone_and_as_a_posterior_where_it_shows_errors():
    target = member("normal, d = 10")
    truth, nothing = target.truth(), np.full(10, np.nan)

    def said(point: np.ndarray, sd: np.ndarray) -> trust.Judged:
        return trust.judged(target, truth, Said(np.zeros((1, 1, 10)), point, sd), "map")

    assert said(truth.mean, nothing).right
    step = target.numbers["A"][:, 0]  # one sd of one ε: half a nat
    assert not said(truth.mean + step, nothing).right
    assert said(truth.mean + 0.3 * step, nothing).right
    assert said(truth.mean, truth.sd).right
    assert not said(truth.mean, 0.5 * truth.sd).right


@pytest.mark.test
@pytest.mark.parametrize("name", [n for n, v in VARIANTS.items() if v.family == "improper"])
def test_nothing_is_right_where_nothing_exists(name):
    target = next(t for t in map(lambda i: member(name, i), range(20)) if not t.truth().peaked)
    size = len(target.variant.model.names)
    draws = np.random.default_rng(0).standard_normal((1, 100, size))
    assert not trust.judged(target, target.truth(), Said(draws), "nuts").right
    assert not trust.judged(target, target.truth(), Said(draws, np.ones(size), np.full(size, np.nan)), "map").right


def options(folder: Path, *given: str) -> argparse.Namespace:
    return trust.arguments().parse_args(["--out", str(folder), "--float64", *given])


COIN = ("--only", "beta(1, 1)-binomial", "--methods", "map", "--budgets", "default", "--members", "8")


def test_a_run_goes_on_where_it_stood_and_members_share_a_compilation(tmp_path, capsys):
    trust.work(options(tmp_path, "--tune", *COIN))
    (file,) = tmp_path.iterdir()
    whole = file.read_text().splitlines()
    lines = [json.loads(line) for line in whole[1:]]
    assert len(lines) == len(population.members(VARIANTS["beta(1, 1)-binomial"], "tune", 8)) >= 3
    assert lines[0]["programs"] > 0 and all(line["programs"] == 0 for line in lines[1:])
    file.write_text("\n".join(whole[:-2]) + "\n" + whole[-2][:40])  # killed while it wrote
    trust.work(options(tmp_path, "--tune", *COIN))
    again = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    told = ("index", "half", "verdict", "right", "mean", "ratio", "checks")
    assert [[line[k] for k in told] for line in again] == [[line[k] for k in told] for line in lines]
    assert "| beta-binomial |" in capsys.readouterr().out


def test_halves_cannot_be_mixed_and_publishing_again_takes_a_reason(tmp_path):
    head = trust.header("publish", None) | {"source": "another"}
    name = "beta(1, 1)-binomial"
    old = trust.File(trust.path_of(tmp_path, "publish", "another", name), head)
    with pytest.raises(trust.Refused, match="pass --again REASON"):
        trust.work(options(tmp_path, "--publish", *COIN))
    trust.work(options(tmp_path, "--publish", "--again", "a check was mended", *COIN))
    heads, lines = trust.results(tmp_path, "publish", trust.source())
    assert heads[0]["again"] == "a check was mended" and {line["half"] for line in lines} == {"publish"}
    assert all("checks" not in line for line in lines)
    old.append(lines[0] | {"half": "tune"})
    with pytest.raises(trust.Refused, match="halves may not be mixed"):
        trust.read(old.path)
    with pytest.raises(trust.Refused, match="must not do"):
        trust.work(options(tmp_path, "--publish", "--wrong"))
    with pytest.raises(trust.Refused, match="no results of the half 'tune'"):
        trust.work(options(tmp_path, "--tune", "--table"))


@pytest.mark.quick
def test_the_half_to_choose_by_is_not_recorded(tmp_path):
    with pytest.raises(trust.Refused, match="--record is for the published half"):
        trust.work(options(tmp_path, "--tune", "--record", "--table"))


@pytest.mark.quick
def test_the_record_has_methods_and_the_families_that_were_wrong():
    line = {"variant": "a", "index": 0, "verdict": "trust", "right": True, "programs": 1, "run": 1.0, "checking": 0.5,
            "mean": 0.3, "ratio": 1.1}  # fmt: skip
    lines = [line | {"method": "map", "family": "normal"}]
    lines += [line | {"method": "nuts", "family": "banana", "index": 1, "right": False}]
    near, far = ([*lines, lines[1] | wrong] for wrong in ({"ratio": 0.65}, {"index": 2, "ratio": 0.6}))
    assert [trust.summary(some)[-1] for some in (near, far)] == [0, 1] and trust.is_far(line | {"mean": None})
    rows = {row[0]: dict(zip(trust.HEAD, row[1:], strict=True)) for row in trust.summaries(lines)}
    assert list(rows) == ["all", "map", "nuts", "banana"]
    assert rows["all"]["targets trusted"] == 2 and rows["all"]["wrong targets"] == rows["banana"]["wrong targets"] == 1


def test_a_long_run_knows_the_truth():
    """Of a member of ``population`` whose moments are known exactly, to three per cent of an sd."""
    target = member("linear, 60 rows, d = 3")
    exact, found = target.truth(), realistic.by_long_run(target.variant.model, target.data())
    assert found is not None and found.quantiles is not None
    assert np.all(np.abs(found.mean - exact.mean) < 0.05 * exact.sd)
    assert np.all(np.abs(found.sd / exact.sd - 1) < 0.05)


def test_a_long_run_that_meets_one_of_two_modes_a_chain_knows_nothing():
    far = tr.Model.from_log_density(lambda z: jnp.logaddexp(-((z[0] - 30) ** 2), -((z[0] + 30) ** 2)), jnp.zeros(1))
    assert realistic.by_long_run(far, None) is None


def test_realistic_targets_are_the_same_each_time():
    variants = realistic.variants()
    assert len(variants) >= 24 and not set(variants) & set(VARIANTS)
    for variant in variants.values():
        one, again = (population.target(variant, 3) for _ in range(2))
        assert one.half == again.half and one.data().size == again.data().size
        jax.tree.map(np.testing.assert_array_equal, one.numbers, again.numbers)


def test_densities_of_joint_rows_are_those_of_sums_written_out():
    y = np.array([2.0, 0, 3, 5, 1])
    by_place = [
        stats.poisson.logpmf(y[:k], 1.5).sum() + stats.poisson.logpmf(y[k:], 4.0).sum() for k in range(1, len(y))
    ]
    wanted = np.log(np.mean(np.exp(by_place)))
    np.testing.assert_allclose(realistic.Changing(1.5, 4.0, len(y)).log_prob(y), wanted, rtol=1e-6)
    law = stats.weibull_min(1.7, scale=np.exp(0.4))
    rows = np.array([[0.8, 1.0], [2.5, 0.0]])
    np.testing.assert_allclose(
        realistic.Lifetime(0.4, 1.7).log_prob(rows), [law.logpdf(0.8), law.logsf(2.5)], rtol=1e-6
    )


def test_a_realistic_study_runs_no_maxima_and_declines_what_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setattr(realistic, "by_long_run", lambda model, data: None)
    realistic.variants.cache_clear()
    only = (
        "--only",
        "Poisson counts at 40 times",
        "--methods",
        "map,laplace",
        "--budgets",
        "default",
        "--members",
        "4",
    )
    trust.work(options(tmp_path, "--tune", *only), trust.__file__, realistic=True)
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert {line["method"] for line in lines} == {"laplace"} and {line["said"] for line in lines} == {"no known truth"}
    realistic.variants.cache_clear()
