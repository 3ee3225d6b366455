"""Microcanonical Langevin: the adjusted kernel leaves π as it is, and the other's bias is the predicted one."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from mcmc.test_hamiltonian import DENSE, LOWER, MEAN, compare_with_normal, log_density
from montecarlo import Scores, Z, assert_holds, broken, ks, replicate
from scipy import stats

import tractable as tr
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import log_density as density_of
from tractable.kernels import microcanonical
from tractable.mcmc.hamiltonian import Point
from tractable.mcmc.microcanonical import leapfrog, turn, variance_ratios

pytestmark = pytest.mark.test

C = 20_000
module = importlib.import_module("tractable.mcmc.microcanonical")
quiet = pytest.mark.filterwarnings("ignore::tractable.core.errors.TractableWarning")


def normal_law(step_size: float = 1.0, inverse_mass: jax.Array = DENSE, length: float = 1.6, steps: int = 2) -> Scores:
    """θ ~ N(m, L Lᵀ) ⇒ L⁻¹(θ' − m) ~ N(0, I) some transitions on."""
    key_start, key = jax.random.split(jax.random.key(0))
    start = MEAN + jax.random.normal(key_start, (C, 3)) @ LOWER.T
    state, info = replicate(microcanonical(log_density, step_size, inverse_mass, length), key, start, steps)
    print("acceptance", float(info.acceptance.mean()), "gradients", float(info.gradients.mean()))
    return compare_with_normal(state.position)


@pytest.mark.parametrize(("step_size", "length"), [(0.3, 1.6), (1.0, 1.6), (1.4, 4.0)])
def test_exact_draws_of_a_normal_stay_exact(step_size: float, length: float) -> None:
    """At steps so large that many trajectories are rejected, too."""
    assert_holds(normal_law(step_size, length=length), C)


MUTANTS = {
    "no kinetic energy": lambda direction, gained: jnp.zeros_like(gained),
    "d for d − 1": lambda direction, gained: gained * direction.size / (direction.size - 1),
    "half the kinetic energy": lambda direction, gained: gained / 2,
}


@pytest.mark.laws
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_energy_breaks_the_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(direction: jax.Array, force: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
        reached, gained = turn(direction, force, time)
        return reached, MUTANTS[name](direction, gained)

    monkeypatch.setattr(module, "turn", wrong)
    assert broken(normal_law())


def test_exact_draws_of_a_funnel_and_of_constrained_parameters_stay_exact() -> None:
    """v ~ N(0, 1), x | v ~ N(0, eᵛ); a ~ Gamma(2, 1) and b ~ Beta(2, 3) on their own scales."""
    prior = {"a": dist.Gamma(2.0, 1.0), "b": dist.Beta(2.0, 3.0), "v": dist.Normal(0.0, 1.0)}
    model = tr.Model(prior | {"x": dist.Normal(0.0, 1.0)}, None)
    plain = density_of(model, None, flat=True)
    place = {name: int(np.argmax(np.array(model.names) == name)) for name in model.names}
    v, x = place["v"], place["x"]

    def funnel(position: jax.Array) -> jax.Array:
        return plain(position.at[x].multiply(jnp.exp(-position[v] / 2))) - position[v] / 2

    keys = jax.random.split(jax.random.key(1), C)
    start = jax.vmap(lambda key: model.position_of(model.sample_prior(key)))(keys)
    start = start.at[:, x].multiply(jnp.exp(start[:, v] / 2))
    state, info = replicate(microcanonical(funnel, 0.5, jnp.ones(4), 1.6), jax.random.key(2), start, 3)
    values = np.asarray(jax.vmap(model.values)(state.position))
    laws = {"a": stats.gamma(2.0).cdf, "b": stats.beta(2.0, 3.0).cdf, "v": stats.norm.cdf}
    scores = {name: ks(values[:, place[name]], cdf) for name, cdf in laws.items()}
    scores["x"] = ks(values[:, x] * np.exp(-values[:, v] / 2), stats.norm.cdf)
    assert 0.5 < float(info.acceptance.mean()) < 0.99
    assert float(jnp.mean(jnp.abs(state.position - start))) > 0.3
    assert_holds(scores, C)


def far_from_normal(x: jax.Array) -> jax.Array:
    return -jnp.sum(x**4) / 4 + jnp.prod(jnp.sin(x)) - 0.5 * (x[0] - x[1]) ** 2


def one_step(flat: jax.Array, size: int, step_size: float) -> tuple[jax.Array, jax.Array]:
    """A leapfrog step of (θ, u), joined in one vector, and its energy error."""
    root, evaluate = jnp.linspace(0.5, 1.5, size), jax.value_and_grad(far_from_normal)
    position, direction = flat[:size], flat[size:]
    value, slope = evaluate(position)
    end, _, error = leapfrog(
        evaluate, root, step_size, module.End(position, direction, root * slope), Point(position, value, slope)
    )
    return jnp.concatenate([end.position, end.direction]), error


@pytest.mark.parametrize("size", [2, 3, 6])
def test_the_energy_error_is_the_density_times_the_volume(size: int) -> None:
    """−log of π(θ')/π(θ) times the determinant of the step on θ and on the sphere's tangent spaces."""
    for seed in range(5):
        position, normal = jax.random.normal(jax.random.key(seed), (2, size))
        begin = jnp.concatenate([position, normal / jnp.linalg.norm(normal)])
        reached, error = one_step(begin, size, 0.8)

        def frame(direction: jax.Array) -> np.ndarray:
            tangent = np.linalg.svd(np.asarray(direction)[None])[2][1:].T  # (d, d − 1)
            return np.block([[np.eye(size), np.zeros((size, size - 1))], [np.zeros((size, size)), tangent]])

        jacobian = np.asarray(jax.jacobian(lambda z: one_step(z, size, 0.8)[0])(begin))
        volume = np.linalg.slogdet(frame(reached[size:]).T @ jacobian @ frame(begin[size:]))[1]
        change = far_from_normal(reached[:size]) - far_from_normal(begin[:size])
        assert abs(float(error) + float(change) + volume) < 1e-9 and abs(volume) > 1e-3


def test_a_step_can_be_reversed() -> None:
    for seed in range(5):
        position, normal = jax.random.normal(jax.random.key(seed), (2, 4))
        begin = jnp.concatenate([position, normal / jnp.linalg.norm(normal)])
        flip = jnp.concatenate([jnp.ones(4), -jnp.ones(4)])
        reached, error = one_step(begin, 4, 0.8)
        back, undone = one_step(reached * flip, 4, 0.8)
        np.testing.assert_allclose(back * flip, begin, atol=1e-10)
        assert abs(float(error + undone)) < 1e-10


def test_a_turn_solves_its_equation() -> None:
    """du/dt = (I − u uᵀ) f / √(d − 1), and the energy grows by √(d − 1) u·f, by many small Euler steps."""
    force, direction = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.0, 0.6, 0.8])
    u, energy, count = np.asarray(direction), 0.0, 20_000
    for _ in range(count):
        middle = u + 0.5 / count * (force - u * (u @ force)) / math.sqrt(2)
        energy += math.sqrt(2) * float(middle @ force) / count
        u = u + np.asarray(force - middle * (middle @ force)) / math.sqrt(2) / count
        u = u / np.linalg.norm(u)
    reached, gained = turn(direction, force, 1.0)
    np.testing.assert_allclose(reached, u, atol=1e-6)
    assert abs(float(gained) - energy) < 1e-6


@pytest.mark.parametrize("strength", [0.0, 1e-30, 1e3, 1e12])
def test_a_force_of_any_size_turns_to_a_direction(strength: float) -> None:
    for dtype in (jnp.float32, jnp.float64):
        direction = jnp.array([0.6, 0.8, 0.0], dtype)
        reached, gained = turn(direction, strength * jnp.array([0.0, 1.0, 0.0], dtype), 0.1)
        assert abs(float(jnp.linalg.norm(reached)) - 1) < 1e-6 and bool(jnp.isfinite(gained))


@pytest.mark.parametrize("curvatures", [(1.0, 1.0, 1.0), (2.0, 1.0, 0.5, 0.5, 1.0, 1.0)], ids=["equal", "unequal"])
def test_the_unadjusted_variances_are_the_predicted_ones(curvatures: tuple) -> None:
    """In a long run on a normal target; ε⁴ is allowed for."""
    h, step_size, chains, steps = jnp.array(curvatures), 0.7, 4000, 60
    kernel = microcanonical(lambda x: -0.5 * jnp.sum(h * x**2), step_size, jnp.ones(len(h)), 1.6, adjusted=False)
    start = jax.random.normal(jax.random.key(3), (chains, len(h))) / jnp.sqrt(h)

    def chain(key: jax.Array, position: jax.Array) -> jax.Array:
        def one(state: Point, key: jax.Array) -> tuple[Point, jax.Array]:
            state = kernel(key, state, None)[0]
            return state, h * state.position**2

        return jax.lax.scan(one, kernel.init(key, position), jax.random.split(key, steps))[1][20:].mean(0)

    squares = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(4), chains), start))
    predicted, found = variance_ratios(step_size, np.asarray(h)), squares.mean(0)
    error = Z * squares.std(0) / math.sqrt(chains)
    print("found", found, "predicted", predicted, "error", error)
    assert np.all(np.abs(found - predicted) < error + 0.1 * step_size**4)
    assert np.abs(predicted - 1).max() > 2 * (error + 0.1 * step_size**4).max() or len(set(curvatures)) == 1


def correlated(size: int = 6) -> tuple[tr.Model, np.ndarray]:
    sds = np.geomspace(0.1, 10, size)
    covariance = (0.5 + 0.5 * np.eye(size)) * np.outer(sds, sds)
    inverse = jnp.asarray(np.linalg.inv(covariance))
    return tr.Model.from_log_density(lambda x: -0.5 * x @ inverse @ x, jnp.zeros(size)), covariance


@pytest.mark.parametrize("tolerance", [0.05, 0.2])
def test_the_reported_bias_is_the_true_one(tolerance: float) -> None:
    model, covariance = correlated()
    method = tr.Microcanonical(adjusted=False, bias_tolerance=tolerance, chains=32, draws=2000)
    posterior = tr.infer(model, None, method, progress=False, verify=None)
    predicted, draws = posterior.predicted_bias, np.asarray(posterior.unconstrained)
    ratios = (draws**2).mean(1) / np.diag(covariance)  # (chain, d)
    error = Z * ratios.std(0) / 2 / math.sqrt(len(ratios))
    found = np.sqrt(ratios.mean(0)) - 1
    print("found", found, "predicted", predicted.inflation, "error", error)
    assert np.all(np.abs(found - predicted.inflation) < error + 0.2 * predicted.inflation)
    assert 0.1 * tolerance < predicted.worst <= tolerance and predicted.inflation.max() <= predicted.worst + 1e-12
    check = next(check for check in posterior.report().checks if check.name == "predicted bias")
    assert check.verdict == "trust" and check.value == predicted.worst


def test_adjusted_there_is_no_bias_to_report() -> None:
    model, covariance = correlated()
    posterior = tr.infer(model, None, tr.Microcanonical(), progress=False)
    flat, seen = posterior.unconstrained.reshape(-1, 6), posterior.diagnosed
    sds = np.sqrt(np.diag(covariance))
    assert posterior.predicted_bias is None and posterior.report().verdict == "trust", posterior.report()
    assert np.all(np.abs(flat.mean(0)) < Z * seen.mcse_mean)
    assert np.all(np.abs(flat.std(0) - sds) < Z * seen.mcse_sd)
    assert abs(posterior.info["acceptance"].mean() - 0.9) < 0.1 and posterior.info["gradients"].mean() < 8
    assert posterior.cost.gradients == posterior.info["gradients"].sum() + posterior.found["gradients of warm-up"]


# What must never be trusted.


def verdicts(model: tr.Model, method: tr.Microcanonical) -> dict[str, str]:
    report = tr.infer(model, None, method, progress=False).report()
    print(report)
    return {"all": report.verdict} | {check.name: check.verdict for check in report.checks}


STIFF = tr.Model.from_log_density(lambda x: -0.5e300 * jnp.sum(x**2), jnp.ones(2))


@quiet
@pytest.mark.parametrize("adjusted", [True, False])
def test_chains_that_never_move_are_rejected(adjusted: bool) -> None:
    found = verdicts(STIFF, tr.Microcanonical(adjusted=adjusted, warmup=0, draws=100))
    assert found["all"] == "reject" and found["stuck chains"] == "reject"


@pytest.mark.parametrize("size", [0.0, math.nan, math.inf])
def test_no_step_size_makes_a_draw_that_is_not_finite(size: float) -> None:
    for adjusted in (True, False):
        kernel, start = microcanonical(log_density, size, jnp.ones(3), 1.6, adjusted, 7), jnp.ones((10, 3))
        state, _ = replicate(kernel, jax.random.key(0), start, 3)
        np.testing.assert_array_equal(state.position, start)


@quiet
def test_where_the_density_is_no_number_nothing_is_trusted() -> None:
    model = tr.Model.from_log_density(lambda x: jnp.where(x[0] < 0.5, -0.5 * jnp.sum(x**2), jnp.nan), jnp.zeros(2))
    found = verdicts(model, tr.Microcanonical(adjusted=False, draws=500, warmup=300))
    assert found["all"] == "reject" and found["divergences"] != "trust"
    posterior = tr.infer(model, None, tr.Microcanonical(draws=500, warmup=300), progress=False)
    assert np.all(np.isfinite(posterior.unconstrained)) and posterior.unconstrained[..., 0].max() < 0.5


@pytest.mark.parametrize("slope", [math.inf, math.nan, 1e300])
def test_a_gradient_that_is_not_finite_moves_nothing(slope: float) -> None:
    @jax.custom_jvp
    def steep(x: jax.Array) -> jax.Array:
        return -0.5 * jnp.sum(x**2)

    steep.defjvp(lambda x, dx: (steep(x[0]), slope * jnp.sum(dx[0])))
    for adjusted in (True, False):
        state, info = replicate(
            microcanonical(steep, 0.5, jnp.ones(3), 1.6, adjusted), jax.random.key(0), jnp.ones((10, 3)), 1
        )
        np.testing.assert_array_equal(state.position, np.ones((10, 3)))
        assert np.all(info.divergent == 1) and np.all(info.acceptance == 0)


@quiet
def test_an_unadjusted_funnel_is_not_trusted() -> None:
    model = tr.Model.from_log_density(
        lambda z: -(z[0] ** 2) / 18 - 0.5 * jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) - 4.5 * z[0], jnp.zeros(10)
    )
    assert verdicts(model, tr.Microcanonical(adjusted=False))["all"] == "reject"


@quiet
def test_a_bias_beyond_the_limit_is_rejected() -> None:
    """Steps that an aim of a third of the sds allows, judged by the usual tolerance."""
    posterior = tr.infer(
        correlated()[0], None, tr.Microcanonical(adjusted=False, bias_tolerance=0.9), progress=False, verify=None
    )
    object.__setattr__(posterior.method, "bias_tolerance", 0.01)
    check = next(check for check in posterior.method.checks(posterior) if check.name == "predicted bias")
    assert check.verdict == "reject" and check.value > 0.04


def test_one_dimension_is_refused() -> None:
    with pytest.raises(ModelError, match=r"at least 2 parameters.*this model has 1\. Use NUTS\(\)"):
        tr.infer(tr.Model.from_log_density(lambda x: -(x**2), jnp.zeros(())), None, tr.Microcanonical(), progress=False)
    with pytest.raises(ModelError, match="one dimension"):
        kernel = microcanonical(lambda x: -jnp.sum(x**2), 0.1, jnp.ones(1))
        kernel(jax.random.key(0), kernel.init(jax.random.key(0), jnp.zeros(1)), None)


@quiet
def test_biased_draws_are_no_start_of_a_backward_run() -> None:
    model = tr.Model({"mu": dist.Normal(jnp.zeros(2), 1.0).to_event(1)}, lambda p: dist.Normal(p["mu"].sum(), 1.0))
    method = tr.Microcanonical(adjusted=False, draws=50, warmup=50)
    posterior = tr.infer(model, tr.Data(np.zeros(5)), method, progress=False, verify=None)
    with pytest.raises(SettingsError, match="exact sampler"):
        tr.log_evidence(model, tr.Data(np.zeros(5)), method="annealed", posterior=posterior)


@pytest.mark.quick
def test_gibbs_takes_only_the_adjusted() -> None:
    assert tr.Gibbs({"x": tr.Microcanonical()}).settings()["blocks"] == "x: microcanonical"
    with pytest.raises(SettingsError, match="for every block"):
        tr.Gibbs({"x": tr.Microcanonical(adjusted=False)})
