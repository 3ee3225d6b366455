"""Mixtures: scikit-learn's numbers, a naive second telling of every density, and wrong formulas that are caught.

A law takes ``make(components, features, covariance, floor)`` and returns scores; a wrong maker breaks one.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Scores, assert_holds, binomial, broken, error, z_mean
from scipy import stats
from sklearn import mixture as sk

from tractable.core.errors import DataError, ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import Batch, Data, whole
from tractable.core.sums import Expected, accumulate
from tractable.latent import mixture
from tractable.latent.em import em, online_em
from tractable.latent.linear_mixture import Frame
from tractable.latent.mixture import Bernoullis, Gaussians, Moments

pytestmark = [pytest.mark.laws, pytest.mark.usefixtures("strict_ranks")]

RNG = np.random.default_rng(3)
K, D, N = 3, 2, 150
TRUE = np.array([[-2.0, 0.5], [1.0, 2.0], [1.5, -1.5]])
X = TRUE[RNG.choice(K, N, p=[0.5, 0.3, 0.2])] + RNG.normal(size=(N, D)) * np.array([0.6, 1.0])
COUNTS = RNG.integers(0, 4, N)
KINDS = mixture.COVARIANCES
SKLEARN = {"full": "full", "tied": "tied", "diagonal": "diag", "spherical": "spherical"}


def start(covariance: str, seed: int = 0) -> Gaussians:
    """Weights, means and covariances with nothing in common."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(K, D, D))
    full = roots @ np.swapaxes(roots, 1, 2) + 0.5 * np.eye(D)
    spread = {
        "full": full,
        "tied": full[0],
        "diagonal": np.diagonal(full, axis1=1, axis2=2),
        "spherical": full[:, 0, 0],
    }
    weights = rng.dirichlet(np.full(K, 5.0))
    means = X[rng.choice(len(X), K, replace=False)]
    return Gaussians(jnp.array(weights), jnp.array(means), jnp.array(spread[covariance]))


def matrices(theta: Gaussians, covariance: str) -> jax.Array:
    """(K, d, d)."""
    if covariance in ("full", "tied"):
        return jnp.broadcast_to(theta.covariances, (K, D, D))
    return jnp.reshape(theta.covariances, (K, -1, 1)) * jnp.eye(D)[None]


# A naive telling, and its wrong ones.


def log_normal(x: jax.Array, mean: jax.Array, matrix: jax.Array, half: float = 0.5, sign: float = -1.0) -> jax.Array:
    """log N(x; μ, Σ) of all rows, (n,), by a linear solve."""
    off = x - mean[None, :]
    square = jnp.sum(off * jnp.linalg.solve(matrix, off.T).T, axis=1)
    return -half * square + sign * 0.5 * jnp.linalg.slogdet(matrix)[1] - 0.5 * D * jnp.log(2 * jnp.pi)


def joint(theta: Gaussians, x: jax.Array, covariance: str, weigh: bool = True, **wrong: float) -> jax.Array:
    """log p(x, k | θ), (n, K)."""
    terms = jax.vmap(lambda m, s: log_normal(x, m, s, **wrong))(theta.means, matrices(theta, covariance)).T
    return terms + jnp.log(theta.weights)[None, :] if weigh else terms


def about_the_origin(count: Any, first: Any, second: Any, covariance: str) -> Moments:
    """Statistics of x itself: second (K, d, d)."""
    roots = {"full": np.stack([np.eye(D)] * K), "tied": np.eye(D)[None], "diagonal": np.ones((K, D))}
    frame = Frame(np.zeros((K, D)), roots.get(covariance, np.ones((K, 1))))
    told = {
        "full": second,
        "tied": second.sum(0),
        "diagonal": jnp.diagonal(second, axis1=1, axis2=2),
        "spherical": jnp.trace(second, axis1=1, axis2=2),
    }[covariance]
    return Moments(count, first, told, jax.tree.map(lambda leaf: count.sum() * jnp.asarray(leaf, count.dtype), frame))


def naive(components: int, features: int, covariance: str = "full", floor: float = 0.0, **wrong: Any) -> LatentModel:
    """The E-step by densities and outer products; the M-step is the library's."""
    right = mixture.gaussian_mixture(components, features, covariance, floor)

    def e_step(theta: Gaussians, batch: Batch) -> Expected:
        x, terms = batch.data, joint(theta, batch.data, covariance, **wrong)
        r = jax.nn.softmax(terms, axis=1) * batch.mask[:, None]
        outer = x[:, :, None] * x[:, None, :]
        statistics = about_the_origin(r.sum(0), r.T @ x, jnp.einsum("nk,nij->kij", r, outer), covariance)
        return Expected(statistics, jnp.sum(batch.mask * jax.nn.logsumexp(terms, axis=1)))

    return right.with_steps(
        e_step=e_step,
        log_prob=lambda theta, x: jax.nn.logsumexp(joint(theta, x, covariance, **wrong), axis=1),
        responsibilities=lambda theta, x: jax.nn.softmax(joint(theta, x, covariance, **wrong), axis=1),
    )


def wrong_m_step(change: Callable) -> Callable:
    """``change(theta, statistics) -> theta`` after the right M-step."""

    def make(*args: Any, **kwargs: Any) -> LatentModel:
        right = mixture.gaussian_mixture(*args, **kwargs)
        return right.with_steps(m_step=lambda statistics: change(right.m_step(statistics), statistics))

    return make


def tied_unweighted(theta: Gaussians, statistics: Moments) -> Gaussians:
    """The means' outer products averaged over components, not over rows."""
    if theta.covariances.shape != (D, D):
        return theta
    total = jnp.sum(statistics.count)
    right = jnp.einsum("k,ki,kj->ij", theta.weights, theta.means, theta.means)
    mean = jnp.mean(theta.means[:, :, None] * theta.means[:, None, :], axis=0)
    return theta._replace(covariances=theta.covariances + right - mean * total / total)


def uncentred(theta: Gaussians, statistics: Moments) -> Gaussians:
    """Σ r xxᵀ / N_k, the mean's square left in."""
    if theta.covariances.shape != (K, D, D):
        return theta
    return theta._replace(covariances=theta.covariances + theta.means[:, :, None] * theta.means[:, None, :])


def divided_twice(theta: Gaussians, statistics: Moments) -> Gaussians:
    count = jnp.expand_dims(statistics.count, tuple(range(1, theta.covariances.ndim)))
    tied = theta.covariances.shape == (D, D)
    return theta if tied else theta._replace(covariances=theta.covariances / count)


def old_means(*args: Any, **kwargs: Any) -> LatentModel:
    """The covariance about the means that the E-step used: not the M-step's maximum."""
    right = mixture.gaussian_mixture(*args, **kwargs)

    def e_step(theta: Gaussians, batch: Batch) -> Expected:
        found = right.e_step(theta, batch)
        return Expected((found.statistics, theta.means), found.log_likelihood)

    def m_step(statistics: Any) -> Gaussians:
        new = right.m_step(statistics[0])
        if new.covariances.shape != (K, D, D):
            return new
        off = new.means - statistics[1]
        return new._replace(covariances=new.covariances + off[:, :, None] * off[:, None, :])

    return right.with_steps(e_step=e_step, m_step=m_step)


def mask_ignored(*args: Any, **kwargs: Any) -> LatentModel:
    right = mixture.gaussian_mixture(*args, **kwargs)
    return right.with_steps(e_step=lambda theta, batch: right.e_step(theta, batch._replace(mask=jnp.ones(len(X)))))


MUTANTS = {
    "log-determinant's sign": lambda *a, **k: naive(*a, **k, sign=1.0),
    "no half before the square": lambda *a, **k: naive(*a, **k, half=1.0),
    "no log weights": lambda *a, **k: naive(*a, **k, weigh=False),
    "the old means in the covariance": old_means,
    "the mean's square left in": wrong_m_step(uncentred),
    "N_k divided twice": wrong_m_step(divided_twice),
    "weights not normalised": wrong_m_step(lambda theta, s: theta._replace(weights=s.count)),
    "weights uniform": wrong_m_step(lambda theta, s: theta._replace(weights=jnp.full(K, 1 / K))),
    "tied covariance not weighted": wrong_m_step(tied_unweighted),
    "floor put in twice": wrong_m_step(
        lambda theta, s: theta._replace(covariances=theta.covariances + 1e-3 * (theta.covariances > 0))
    ),
    "mask ignored": mask_ignored,
}


def iterated(made: LatentModel, theta: Any, batch: Batch, steps: int) -> tuple[Any, np.ndarray]:
    """θ after so many steps of EM, and the objective before each."""
    kernel = em(made.e_step, made.m_step, made.log_prior)

    @jax.jit
    def go(theta: Any) -> Any:
        state = kernel.init(jax.random.key(0), theta)
        return jax.lax.scan(lambda state, _: kernel.step(jnp.zeros(0), state, batch), state, length=steps)

    state, info = go(theta)
    return state.position, np.asarray(info.objective)


# Laws.


def as_scikit_learn(make: Callable, kinds: Sequence[str] = KINDS, weighted: bool = False) -> Scores:
    """Twenty iterations from equal starts; weights are rows repeated."""
    scores = {}
    for kind in kinds:
        theta, floor, steps = start(kind), 1e-3, 20
        rows = np.repeat(X, COUNTS, axis=0) if weighted else X
        inverse = {"full": np.linalg.inv, "tied": np.linalg.inv}.get(kind, lambda a: 1 / a)
        theirs = sk.GaussianMixture(
            K, covariance_type=SKLEARN[kind], tol=0, reg_covar=floor, max_iter=steps, weights_init=theta.weights,
            means_init=theta.means, precisions_init=inverse(np.asarray(theta.covariances)), init_params="random",
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged
            theirs.fit(rows)
        made = make(K, D, kind, floor)
        batch = Batch(jnp.array(X), jnp.array(COUNTS, float) if weighted else jnp.ones(N), N)
        ours, _ = iterated(made, theta, batch, steps)
        bic = made.parameters * np.log(len(rows)) - 2 * float(jnp.sum(made.log_prob(ours, rows)))
        scores |= {
            f"{kind} weights": error(ours.weights, theirs.weights_, 1e-8),
            f"{kind} means": error(ours.means, theirs.means_, 1e-8),
            f"{kind} covariances": error(ours.covariances, theirs.covariances_, 1e-8),
            f"{kind} log prob": error(made.log_prob(ours, X), theirs.score_samples(X), 1e-8),
            f"{kind} responsibilities": error(made.responsibilities(ours, X), theirs.predict_proba(X), 1e-8),
            f"{kind} bic": error(bic, theirs.bic(rows), 1e-6),
        }
    return scores


def unconstrained(theta: Gaussians) -> Gaussians:
    """Logits for weights, so that a gradient lies in the simplex."""
    return theta._replace(weights=jnp.log(theta.weights))


def constrained(free: Gaussians) -> Gaussians:
    return free._replace(weights=jax.nn.softmax(free.weights))


def steps_are_exact(make: Callable, kinds: Sequence[str] = KINDS) -> Scores:
    """∇ log p(x) = E_z ∇ log p(x, z) at θ₀, and ∇Q(θ₁ | θ₀) = 0 after the M-step; all by the naive density."""
    scores = {}
    x, weights = jnp.array(X), jnp.array(COUNTS, float)
    for kind in kinds:
        theta, made = start(kind, 1), make(K, D, kind, 0.0)
        r = jax.nn.softmax(joint(theta, x, kind), axis=1)

        def bound(free: Gaussians, kind: str = kind, r: jax.Array = r) -> jax.Array:
            return jnp.sum(weights[:, None] * r * joint(constrained(free), x, kind)) / weights.sum()

        def marginal(free: Gaussians, made: LatentModel = made) -> jax.Array:
            return jnp.sum(weights * made.log_prob(constrained(free), x)) / weights.sum()

        free = unconstrained(theta)
        found = made.e_step(theta, Batch(x, weights, N))
        through = jax.grad(lambda f, made=made: made.e_step(constrained(f), Batch(x, weights, N)).log_likelihood)(free)
        after = jax.grad(bound)(unconstrained(made.m_step(found.statistics)))
        total = jnp.sum(weights * jax.nn.logsumexp(joint(theta, x, kind), axis=1))
        for name in Gaussians._fields:
            wanted = getattr(jax.grad(bound)(free), name)
            scores[f"{kind} Fisher's identity, {name}"] = error(getattr(jax.grad(marginal)(free), name), wanted, 1e-10)
            scores[f"{kind} e_step's gradient, {name}"] = error(getattr(through, name) / weights.sum(), wanted, 1e-10)
            scores[f"{kind} M-step, {name}"] = error(getattr(after, name), 0, 1e-10)
        scores[f"{kind} log likelihood"] = error(found.log_likelihood, total, 1e-8)
        scores[f"{kind} weights sum to one"] = error(jnp.sum(made.m_step(found.statistics).weights), 1, 1e-12)
        scores[f"{kind} responsibilities"] = error(made.responsibilities(theta, X), r, 1e-11)
    return scores


def relabelling_changes_nothing(make: Callable) -> Scores:
    scores = {}
    order = np.array([2, 0, 1])
    for kind in KINDS:
        made, theta = make(K, D, kind, 1e-6), start(kind)
        other = theta._replace(weights=theta.weights[order], means=theta.means[order])
        if kind != "tied":
            other = other._replace(covariances=theta.covariances[order])
        one, _ = iterated(made, theta, whole(jnp.array(X)), 5)
        two, _ = iterated(made, other, whole(jnp.array(X)), 5)
        scores[f"{kind} means"] = error(two.means, one.means[order], 1e-10)
        scores[f"{kind} weights"] = error(two.weights, one.weights[order], 1e-10)
    return scores


def test_as_scikit_learn():
    assert_holds(as_scikit_learn(mixture.gaussian_mixture))
    assert_holds(as_scikit_learn(mixture.gaussian_mixture, weighted=True))


def test_steps_are_exact():
    assert_holds(steps_are_exact(mixture.gaussian_mixture))
    assert_holds(steps_are_exact(naive))


def test_relabelling_changes_nothing():
    assert_holds(relabelling_changes_nothing(mixture.gaussian_mixture))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught_by_scikit_learn(name):
    """What an implementation of others would show."""
    assert broken(as_scikit_learn(MUTANTS[name], ["tied" if "tied" in name else "full"], weighted=True))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught_by_algebra(name):
    """What needs no other implementation."""
    assert broken(steps_are_exact(MUTANTS[name], ["tied" if "tied" in name else "full"]))


# Two that overlap some ten thousand sds from a third; and sds of which one is a thousandth of the others, at a slant.
APART = np.array([[5e3, 0.0], [5001.5, 0.5], [-5e3, 300.0]]), np.array([[1.0, 0.5], [0.0, 0.6]])
THIN = np.array([[0.0, 0.0], [1.0, 1.001], [-1.0, -1.0]]), np.array([[1.0, 1.0], [0.0, 1e-3]])


def in_single(make: Callable, case: tuple, kind: str, online: bool = False) -> Scores:
    """Thirty steps in single precision end where those in double do, on the same rows, and none falls by more than
    rounding: 1e-6 nats a row, and 1e-4 where the last bits of rows are 1e-4 sds. There what a step tells is within
    1e-3: by the processor and the rows 1e-5 to 2e-4 were seen, and of sums about one origin 1."""
    rng = np.random.default_rng(5)
    (means, root), labels = case, np.arange(N) % K
    x = jnp.array(means[labels] + rng.normal(size=(N, D)) @ root, jnp.float32)
    spread = {"full": [np.eye(D)] * K, "tied": np.eye(D), "diagonal": np.ones((K, D)), "spherical": np.ones(K)}[kind]
    theta = Gaussians(np.full(K, 1 / K), means + 0.3 * rng.normal(size=(K, D)), np.array(spread))

    def ended(made: LatentModel, dtype: type) -> tuple[Gaussians, np.ndarray]:
        inside, nothing = made.steps.climbed, jnp.zeros(0)
        begin = jax.tree.map(lambda a: jnp.asarray(a, dtype), theta if inside is None else inside.into(theta))
        made, rows = made.climbed, x.astype(dtype)
        batches = [Batch(part, jnp.ones(len(part), dtype), N) for part in (jnp.split(rows, 3) if online else [rows])]
        assert made.halves is not None
        kernel = online_em(*made.halves, 0.5, 1, example=batches[0]) if online else em(*made.halves)
        step, state, reached = jax.jit(kernel.step), kernel.init(jax.random.key(0), begin), []
        for t in range(30):
            state, info = step(nothing, state, batches[t % len(batches)])
            reached.append(float(info.objective))
        return state.position if inside is None else inside.back(state.position), np.array(reached)

    exact, reached = ended(mixture.gaussian_mixture(K, D, kind, 1e-9), jnp.float64)
    found, told = ended(make(K, D, kind, 1e-9), jnp.float32)
    wide = mixture.gaussian_mixture(K, D, kind, 1e-9)
    nats = [jnp.mean(wide.log_prob(jax.tree.map(jnp.float64, t), x.astype(float))) for t in (found, exact)]
    slack = 1e-4 if case is APART else 1e-6
    falls = 0.0 if online else np.minimum(np.diff(told), 0).min() / N
    return {
        "nats a row": error(nats[0], nats[1], 1e-4),
        "told": error(told[-1] / N, reached[-1] / N, 1e-3 if case is APART else 1e-4),
        "falls": error(falls, 0, slack),
    }


@pytest.mark.parametrize(("name", "kind"), [*(("apart", kind) for kind in KINDS), ("thin", "full"), ("thin", "tied")])
def test_single_precision(name, kind):
    """Sums of squares about one origin fail it, and where sds differ by 1000 so does a covariance that is no root."""
    case = APART if name == "apart" else THIN
    assert_holds(in_single(mixture.gaussian_mixture, case, kind))
    plain = lambda *a: mixture.gaussian_mixture(*a).with_steps(climbed=None)  # noqa: E731
    assert broken(in_single(naive if case is APART else plain, case, kind))


def test_single_precision_online():
    assert_holds(in_single(mixture.gaussian_mixture, APART, "full", online=True))
    assert broken(in_single(naive, APART, "full", online=True))


def far_away(make: Callable, kind: str, **given: Any) -> Scores:
    """Means a thousand sds from the origin: single precision against double, after ten steps from the same start."""
    x, theta = X + 1e3, start(kind)
    theta = theta._replace(means=theta.means + 1e3)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), theta)
    exact, _ = iterated(mixture.gaussian_mixture(K, D, kind, 1e-6, x.mean(0)), theta, whole(jnp.array(x)), 10)
    made = make(K, D, kind, 1e-6, **given)
    found, _ = iterated(made, single, whole(jnp.array(x, jnp.float32)), 10)
    assert found.covariances.dtype == jnp.float32
    return {
        "means": error(found.means - 1e3, exact.means - 1e3, 1e-3),
        "covariances": error(found.covariances, exact.covariances, 1e-3),
        "log prob": error(made.log_prob(found, jnp.array(x, jnp.float32)), made.log_prob(exact, x), 1e-3),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_far_from_the_origin(kind):
    """Four digits, with a centre and without."""
    assert_holds(far_away(mixture.gaussian_mixture, kind, centre=X.mean(0) + 1e3))
    assert_holds(far_away(mixture.gaussian_mixture, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_centre_changes_only_rounding(kind):
    theta, batch = start(kind), whole(jnp.array(X))
    one, _ = iterated(mixture.gaussian_mixture(K, D, kind, 1e-6), theta, batch, 5)
    two, _ = iterated(mixture.gaussian_mixture(K, D, kind, 1e-6, [0.7, -0.4]), theta, batch, 5)
    assert_holds({name: error(getattr(two, name), getattr(one, name), 1e-10) for name in Gaussians._fields})


def test_responsibilities_far_from_every_component():
    """Forty sds out, where densities underflow in single precision: by symmetry r₁ = 1 / (1 + e^(−2 x₁) π₂/π₁)."""
    theta = Gaussians(jnp.array([0.3, 0.7]), jnp.array([[1.0, 0.0], [-1.0, 0.0]]), jnp.stack([jnp.eye(D)] * 2))
    far = np.array([[0.3, 40.0], [-0.1, -40.0], [0.5, 40.0]])
    wanted = 1 / (1 + np.exp(-2 * far[:, 0]) * 0.7 / 0.3)
    made = mixture.gaussian_mixture(2, D)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), theta)
    r, r_single = made.responsibilities(theta, far), made.responsibilities(single, far.astype(np.float32))
    assert_holds(
        {
            "double": error(r[:, 0], wanted, 1e-12),
            "single": error(r_single[:, 0], wanted, 1e-3),
            "double sums to one": error(jnp.sum(r, 1), 1, 1e-12),
            "single sums to one": error(jnp.sum(r_single, 1), 1, 1e-6),
            "log prob": error(made.log_prob(theta, far[:1]), np.logaddexp(
                np.log(0.3) - 0.5 * (0.7**2 + 1600), np.log(0.7) - 0.5 * (1.3**2 + 1600)) - np.log(2 * np.pi), 1e-10),
        }
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_sample(kind):
    """Moments of the mixture, and the counts of its components."""
    made, theta, n = mixture.gaussian_mixture(K, D, kind), start(kind), 20_000
    x, k = made.sample(jax.random.key(5), theta, n)
    assert x.shape == (n, D) and k.shape == (n,)
    scores = {f"component {i}": binomial(int(np.sum(k == i)), n, float(theta.weights[i])) for i in range(K)}
    for i in range(K):
        rows, matrix = np.asarray(x[k == i]), np.asarray(matrices(theta, kind)[i])
        white = np.linalg.solve(np.linalg.cholesky(matrix), (rows - np.asarray(theta.means[i])).T)
        scores |= {
            f"{i} mean": z_mean(white, 0, 1),
            f"{i} variance": z_mean(white**2, 1, 2),
            f"{i} covariance": z_mean(white[0] * white[1], 0, 1),
        }
    assert_holds(scores, n)


def test_dead_and_duplicate():
    """A component too far to be chosen stays finite; rows all alike need the floor."""
    theta = start("full")
    away = theta._replace(means=theta.means.at[0].set(1e4))
    found, objective = iterated(mixture.gaussian_mixture(K, D), away, whole(jnp.array(X)), 5)
    assert all(np.isfinite(leaf).all() for leaf in found) and np.isfinite(objective).all()
    found, objective = iterated(mixture.gaussian_mixture(K, D), theta, whole(jnp.ones((20, D))), 5)
    assert all(np.isfinite(leaf).all() for leaf in found) and np.isfinite(objective).all()


def test_rows_as_data_has_them():
    """(y, None), integers and rows that do not count, whatever they hold."""
    made, theta = mixture.gaussian_mixture(K, D), start("full")
    bare = made.e_step(theta, whole(jnp.array(X)))
    assert_equal(made.e_step(theta, whole(Data(X).arrays())), bare)
    padded = np.concatenate([X, [[np.nan, np.inf]]])
    assert_equal(made.e_step(theta, Batch(jnp.array(padded), jnp.append(jnp.ones(N), 0.0), N)), bare)
    whole_numbers = np.round(X).astype(int)
    assert_equal(
        made.e_step(theta, whole(jnp.array(whole_numbers))), made.e_step(theta, whole(jnp.array(whole_numbers, float)))
    )


def assert_equal(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


# Missing numbers.


def by_conditioning(theta: Gaussians, x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p(x_o, k), E[x | k] and E[xxᵀ | k], row by row in NumPy."""
    logits, first, second = np.zeros((len(x), K)), np.zeros((len(x), K, D)), np.zeros((len(x), K, D, D))
    for n, row in enumerate(x):
        o, h = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
        for k, matrix in enumerate(np.asarray(matrices(theta, kind))):
            mean = np.asarray(theta.means[k])
            filled, left = row.copy(), np.zeros((D, D))
            logits[n, k] = np.log(theta.weights[k])
            filled[h], left[np.ix_(h, h)] = mean[h], matrix[np.ix_(h, h)]
            if o.size:
                logits[n, k] += stats.multivariate_normal(mean[o], matrix[np.ix_(o, o)]).logpdf(row[o])
                gain = matrix[np.ix_(h, o)] @ np.linalg.inv(matrix[np.ix_(o, o)])
                filled[h] += gain @ (row[o] - mean[o])
                left[np.ix_(h, h)] -= gain @ matrix[np.ix_(o, h)]
            first[n, k], second[n, k] = filled, np.outer(filled, filled) + left
    return logits, first, second


@pytest.mark.parametrize("kind", KINDS)
def test_missing_numbers(kind):
    """Nothing missing: the plain mixture. Some: textbook conditionals; EM does not go down."""
    plain, missing = mixture.gaussian_mixture(K, D, kind), mixture.with_missing(K, D, kind)
    theta, batch = start(kind), whole(jnp.array(X))
    assert_equal(jax.jit(missing.e_step)(theta, batch), plain.e_step(theta, batch), 1e-9)

    holes = np.where(RNG.random(X.shape) < 0.25, np.nan, X)
    assert np.isnan(holes).all(1).any() and not np.isnan(holes).any(1).all()
    logits, first, second = by_conditioning(theta, holes, kind)
    log_prob = np.log(np.exp(logits).sum(1))
    share = np.exp(logits - log_prob[:, None]) * COUNTS[:, None]
    found = jax.jit(missing.e_step)(theta, Batch(jnp.array(holes), jnp.array(COUNTS, float), N))
    sums = np.einsum("nk,nki->ki", share, first), np.einsum("nk,nkij->kij", share, second)
    wanted = jax.tree.map(jnp.asarray, about_the_origin(share.sum(0), *sums, kind))
    assert_equal(found.statistics, wanted.in_frame_of(found.statistics), 1e-9)
    np.testing.assert_allclose(missing.log_prob(theta, holes), log_prob, atol=1e-10)
    np.testing.assert_allclose(missing.responsibilities(theta, holes).sum(1), 1, atol=1e-12)

    without_floor = mixture.with_missing(K, D, kind, floor=0.0)
    _, objective = iterated(without_floor, theta, whole(jnp.array(holes)), 60)
    assert np.all(np.diff(objective) >= -1e-11 * abs(objective[0])) and objective[-1] > objective[0] + 1
    whole_step = accumulate(missing.e_step, theta, jnp.array(holes), chunk=64)
    assert_equal(whole_step, missing.e_step(theta, whole(jnp.array(holes))), 1e-9)


def test_missing_numbers_have_a_centre_too():
    theta, holes = start("full"), np.where(RNG.random(X.shape) < 0.2, np.nan, X)
    batch = whole(jnp.array(holes))
    one, _ = iterated(mixture.with_missing(K, D), theta, batch, 3)
    two, _ = iterated(mixture.with_missing(K, D, centre=[2.0, -1.0]), theta, batch, 3)
    assert_equal(one, two, 1e-9)


# Bernoullis.

BITS = (RNG.random((200, 4)) < np.array([[0.9, 0.8, 0.1, 0.2], [0.2, 0.1, 0.7, 0.9]])[RNG.integers(0, 2, 200)]).astype(
    int
)
COINS = Bernoullis(jnp.array([0.4, 0.6]), jnp.array([[0.6, 0.5, 0.3, 0.4], [0.3, 0.4, 0.6, 0.7]]))


def bernoulli_law(make: Callable) -> Scores:
    """Densities by SciPy; the M-step is the maximum of Q + log prior; EM climbs the log posterior."""
    made, counts = make(2, 4, 0.7), jnp.array(RNG.integers(0, 3, len(BITS)), float)
    terms = np.log(COINS.weights) + np.stack([stats.bernoulli.logpmf(BITS, m).sum(1) for m in COINS.means], 1)
    log_prob = np.logaddexp(terms[:, 0], terms[:, 1])
    r = jnp.array(np.exp(terms - log_prob[:, None]))
    found = made.e_step(COINS, Batch(jnp.array(BITS), counts, len(BITS)))

    def bound(logits: tuple) -> jax.Array:
        weights, means = jax.nn.softmax(logits[0]), jax.nn.sigmoid(logits[1])
        log_p = BITS[:, None, :] * jnp.log(means)[None] + (1 - BITS)[:, None, :] * jnp.log1p(-means)[None]
        q = jnp.sum(counts[:, None] * r * (log_p.sum(2) + jnp.log(weights)[None, :]))
        return q + jnp.sum(0.7 * jnp.log(means) + 0.7 * jnp.log1p(-means))

    new = made.m_step(found.statistics)
    slope = jax.grad(bound)((jnp.log(new.weights), jnp.log(new.means) - jnp.log1p(-new.means)))
    prior = stats.beta.logpdf(COINS.means, 1.7, 1.7).sum()
    _, objective = iterated(made, COINS, whole(jnp.array(BITS)), 100)
    return {
        "log prob": error(made.log_prob(COINS, BITS), log_prob, 1e-10),
        "responsibilities": error(made.responsibilities(COINS, BITS), r, 1e-10),
        "log likelihood": error(found.log_likelihood, np.sum(counts * log_prob), 1e-8),
        "slope of weights": error(slope[0], 0, 1e-9),
        "slope of means": error(slope[1], 0, 1e-9),
        "log prior": error(made.log_prior(COINS), prior, 1e-10),
        "falls": error(np.minimum(np.diff(objective), 0), 0, 1e-12 * abs(objective[0])),
    }


def wrong_bernoulli(m_step: Callable) -> Callable:
    return lambda *args: mixture.bernoulli_mixture(*args).with_steps(m_step=m_step)


def test_bernoulli():
    assert_holds(bernoulli_law(mixture.bernoulli_mixture))


@pytest.mark.parametrize(
    "m_step",
    [
        lambda s: Bernoullis(s.count / s.count.sum(), (s.first + 0.7) / (s.count[:, None] + 0.7)),
        lambda s: Bernoullis(s.count / s.count.sum(), s.first / s.count[:, None]),
        lambda s: Bernoullis(s.count / s.count.sum(), (s.first + 1.7) / (s.count[:, None] + 3.4)),
    ],
    ids=["counts added once below", "no prior", "posterior mean for mode"],
)
def test_bernoulli_mutants(m_step):
    assert broken(bernoulli_law(wrong_bernoulli(m_step)))


def test_bernoulli_sample():
    x, k = mixture.bernoulli_mixture(2, 4).sample(jax.random.key(2), COINS, 20_000)
    scores = {"k": binomial(int(np.sum(k == 0)), 20_000, 0.4)}
    for i in range(2):
        for j in range(4):
            chosen = np.asarray(x)[np.asarray(k) == i, j]
            scores[f"{i}, {j}"] = binomial(int(chosen.sum()), chosen.size, float(COINS.means[i, j]))
    assert_holds(scores)


def test_a_constant_column_keeps_its_likelihood():
    bits = np.column_stack([BITS, np.ones(len(BITS), int)])
    start = Bernoullis(COINS.weights, jnp.column_stack([COINS.means, jnp.full(2, 0.5)]))
    found, objective = iterated(mixture.bernoulli_mixture(2, 5), start, whole(jnp.array(bits)), 50)
    assert np.isfinite(objective).all() and np.all(found.means < 1) and np.all(found.means > 0)


# Settings.


@pytest.mark.quick
def test_same_arguments_same_functions():
    """So that a second fit finds its compilation."""
    centre = np.array([1.0, 2.0])
    assert mixture.gaussian_mixture(3, 2, centre=centre) is mixture.gaussian_mixture(3, 2, centre=[1.0, 2.0])
    assert mixture.with_missing(3, 2) is mixture.with_missing(3, 2)
    assert mixture.bernoulli_mixture(3, 2) is mixture.bernoulli_mixture(3, 2, 1)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: mixture.gaussian_mixture(0, 2), "components is a whole number, 1 or more; got 0"),
        (lambda: mixture.gaussian_mixture(2, 0), "features is a whole number"),
        (lambda: mixture.gaussian_mixture(2, 2, "diag"), "'full', 'tied', 'diagonal' or 'spherical'; got 'diag'"),
        (lambda: mixture.gaussian_mixture(2, 2, floor=-1.0), "floor is a variance"),
        (lambda: mixture.gaussian_mixture(2, 2, centre=[1.0]), "centre expects 2 finite numbers"),
        (lambda: mixture.with_missing(2, 2, centre=[1.0, np.nan]), "centre expects 2 finite numbers"),
        (lambda: mixture.bernoulli_mixture(2, 2, 0.0), "prior_counts must be positive"),
    ],
)
def test_settings(make, sentence):
    with pytest.raises(ModelError, match=sentence):
        make()


@pytest.mark.test
def test_rows_of_another_width():
    with pytest.raises(DataError, match=r"rows of 2 numbers.*got shape \(150, 1\)"):
        mixture.gaussian_mixture(K, D).e_step(start("full"), whole(jnp.array(X[:, :1])))
    with pytest.raises(DataError, match="rows of 2 numbers"):
        mixture.gaussian_mixture(K, D).log_prob(start("full"), X[0])
