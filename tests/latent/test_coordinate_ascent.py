"""Variational Bayes in closed form: bounds that climb to rest, below evidences known exactly; wrong formulas caught.

A law takes ``make(...) -> Conjugate`` and returns scores; a wrong maker breaks one.
"""

import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from montecarlo import Scores, Z, assert_holds, broken, error, z_mean
from scipy import integrate, stats
from scipy.special import betaln, digamma, gammaln, logsumexp, polygamma
from sklearn import mixture as sk

from tractable.core.errors import DataError, ModelError
from tractable.core.model import Batch, Data, whole
from tractable.core.sums import Expected, accumulate
from tractable.latent import conjugate_models as variational
from tractable.latent import conjugate_variational as cv
from tractable.latent import variational_mixture as vm
from tractable.latent import variational_regression as vr
from tractable.latent.conjugate_models import NormalAndGamma, normal_gamma_posterior
from tractable.latent.conjugate_variational import Conjugate
from tractable.latent.em import em, online_em
from tractable.latent.mixture import COVARIANCES, Moments
from tractable.latent.variational_mixture import MixturePosterior
from tractable.latent.variational_regression import RegressionPosterior

pytestmark = [pytest.mark.laws, pytest.mark.usefixtures("strict_ranks")]

RNG = np.random.default_rng(5)
K, D, N = 3, 2, 60
X = np.array([[-2.0, 0.5], [1.0, 2.0], [1.5, -1.5]])[RNG.choice(K, N, p=[0.5, 0.3, 0.2])] + RNG.normal(size=(N, D)) * [
    0.6,
    1.0,
]
COUNTS = RNG.integers(0, 4, N).astype(float)
GUESS = RNG.dirichlet(np.ones(K), N)  # of which row is whose
SPREAD = np.array([[1.5, 0.4], [0.4, 0.8]])
ALL = [(kind, process) for kind in COVARIANCES for process in (False, True)]
CASES = pytest.mark.parametrize(("kind", "process"), ALL)
NOTHING = jnp.zeros(0)


def bayesian_gaussian_mixture(*args: Any, **given: Any) -> Conjugate:
    return vm.bayesian_gaussian_mixture(*args, **given).conjugate


def linear_regression_unknown_noise(*args: Any, **given: Any) -> Conjugate:
    return vr.bayesian_linear_regression(*args, **given).conjugate


def normal_gamma(*args: Any, **given: Any) -> Conjugate:
    return variational.normal_gamma(*args, **given).conjugate


def settings(kind: str, process: bool = False, features: int = D) -> dict[str, Any]:
    """A prior with nothing in common with the defaults."""
    spread = SPREAD[:features, :features]
    return {
        "covariance": kind,
        "process": process,
        "weight_concentration": 0.7,
        "mean_prior": np.array([0.3, -0.2])[:features],
        "mean_precision": 0.6,
        "degrees_of_freedom": 3.5,
        "covariance_prior": {"diagonal": np.diag(spread), "spherical": 1.2}.get(kind, spread),
    }


def sums_of(made: Conjugate, batch: Batch, shares: Any) -> Any:
    assert made.assigned is not None
    return made.assigned(batch, shares)


def shares_of(made: Conjugate, q: Any, x: Any) -> jax.Array:
    assert made.responsibilities is not None
    return made.responsibilities(q, x)


def bound(made: Conjugate, q: Any, batch: Batch) -> jax.Array:
    return made.e_step(q, batch).log_likelihood - made.divergence(q)


def climb(made: Conjugate, q: Any, batch: Batch, steps: int) -> tuple[Any, np.ndarray]:
    """λ after so many steps of coordinate ascent, and the ELBO before each."""
    kernel = em(made.e_step, made.m_step, lambda q: -made.divergence(q))

    @jax.jit
    def go(q: Any) -> Any:
        state = kernel.init(jax.random.key(0), q)
        return jax.lax.scan(lambda state, _: kernel.step(NOTHING, state, batch), state, length=steps)

    state, info = go(q)
    return state.position, np.asarray(info.objective)


def rest(made: Conjugate, rows: Any = X, steps: int = 400, guess: Any = GUESS) -> Any:
    batch = whole(jax.tree.map(jnp.array, rows))
    return climb(made, made.m_step(sums_of(made, batch, guess)), batch, steps)[0]


def falls(objective: np.ndarray) -> float:
    return error(np.minimum(np.diff(objective), 0), 0, 1e-12 * abs(objective[0]))


def scores_of(a: Any, b: Any, tolerance: float, name: str = "") -> Scores:
    """Leaf by leaf, relative to the largest number of the leaf where that exceeds one."""
    pairs = zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True)
    return {
        f"{name} {jax.tree_util.keystr(path)}": error(x, y, tolerance * max(1.0, float(np.abs(y).max())))
        for (path, x), y in pairs
    }


# The mixture, told again, with something to get wrong.


def expected(
    q: MixturePosterior,
    x: Any,
    kind: str,
    process: bool,
    weights: str = "digamma",
    log_det: str = "digamma",
    d_over_beta: float = 1.0,
    counted: bool = True,
    half: float = 0.5,
) -> jax.Array:
    """E_q log p(x, k), (n, K), by inverses and determinants."""
    components, features = q.means.shape
    nu = jnp.broadcast_to(q.degrees_of_freedom, (components,))
    if kind in ("full", "tied"):
        matrices = jnp.broadcast_to(q.covariances, (components, features, features))
    else:
        matrices = jnp.reshape(q.covariances, (components, -1, 1)) * jnp.eye(features)[None]
    wishart = kind in ("full", "tied") or log_det == "wishart"
    if log_det == "none":
        lost = 0.0
    elif wishart:
        halves = (nu[:, None] - jnp.arange(features)[None, :]) / 2
        lost = jnp.sum(jax.scipy.special.digamma(halves), 1) - features * jnp.log(nu / 2)
    else:
        a = nu * (features if kind == "spherical" else 1) / 2
        lost = features * (jax.scipy.special.digamma(a) - jnp.log(a))
    psi = jax.scipy.special.digamma if weights == "digamma" else jnp.log
    if process:
        piece, left = psi(q.concentration) - psi(q.concentration.sum(0))[None, :]
        log_weights = piece + jnp.array([jnp.sum(left[:k]) for k in range(components)])
    else:
        log_weights = psi(q.concentration) - psi(q.concentration.sum())
    off = jnp.asarray(x)[:, None, :] - q.means[None]
    precisions = jnp.linalg.inv(matrices) / (1.0 if counted else nu[:, None, None])
    squares = jnp.einsum("nki,kij,nkj->nk", off, precisions, off)
    constant = log_weights + 0.5 * (lost - jnp.linalg.slogdet(matrices)[1] - d_over_beta * features / q.mean_precision)
    return constant[None, :] - half * squares - 0.5 * features * jnp.log(2 * jnp.pi)


def naive(**wrong: Any) -> Callable:
    """The E-step by expected densities and outer products; all else is the library's."""

    def make(components: int, features: int, **given: Any) -> Conjugate:
        right = bayesian_gaussian_mixture(components, features, **given)
        kind, process = given["covariance"], given.get("process", False)

        def e_step(q: MixturePosterior, batch: Batch) -> Expected:
            terms = expected(q, batch.data, kind, process, **wrong)
            share = jax.nn.softmax(terms, axis=1)
            log_sums = jax.nn.logsumexp(terms, axis=1)
            return Expected(sums_of(right, batch, share), jnp.sum(batch.mask * log_sums))

        return replace(
            right,
            e_step=e_step,
            responsibilities=lambda q, x: jax.nn.softmax(expected(q, x, kind, process, **wrong), axis=1),
        )

    return make


def altered(change: Callable) -> Callable:
    """``change(q, statistics, settings) -> q`` after the right M-step."""

    def make(components: int, features: int, **given: Any) -> Conjugate:
        right = bayesian_gaussian_mixture(components, features, **given)
        return replace(right, m_step=lambda statistics: change(right.m_step(statistics), statistics, given))

    return make


def diverging(change: Callable) -> Callable:
    """``change(q, right) -> ()`` for the divergence."""

    def make(components: int, features: int, **given: Any) -> Conjugate:
        right = bayesian_gaussian_mixture(components, features, **given)
        return replace(right, divergence=lambda q: change(q, right))

    return make


def rescaled(q: MixturePosterior, nu: Any) -> MixturePosterior:
    """Other degrees of freedom with the same C; of matrices for each component."""
    old = q.degrees_of_freedom
    return q._replace(degrees_of_freedom=nu, covariances=q.covariances * (old / nu)[:, None, None])


def of_rows(s: Moments) -> jax.Array:
    """Each component's mean of its rows, by statistics of matrices; the centre is m₀ in single precision."""
    centre = np.float32(settings("full")["mean_prior"])[None, :]
    means, roots = (leaf / jnp.sum(s.count) for leaf in s.frame)
    return centre + means + jnp.einsum("kij,kj->ki", roots, s.first / s.count[:, None])


def no_pull(q: MixturePosterior, s: Moments, given: dict) -> MixturePosterior:
    """C without β₀ N/β (x̄ − m₀)(x̄ − m₀)ᵀ."""
    off = of_rows(s) - jnp.array(given["mean_prior"])[None, :]
    share = given["mean_precision"] * s.count / q.mean_precision / q.degrees_of_freedom
    return q._replace(covariances=q.covariances - share[:, None, None] * off[:, :, None] * off[:, None, :])


def not_shrunk(q: MixturePosterior, s: Moments, given: dict) -> MixturePosterior:
    return q._replace(means=of_rows(s))


def own_rows_after(q: MixturePosterior, s: Moments, given: dict) -> MixturePosterior:
    """The stick's rest counts a component's own rows too."""
    return q._replace(concentration=q.concentration.at[1].add(s.count))


def share_of_tied(q: MixturePosterior, s: Moments, given: dict) -> MixturePosterior:
    """scikit-learn's tied precision: N/K rows."""
    count, nu0 = jnp.sum(s.count), given["degrees_of_freedom"]
    scale = q.degrees_of_freedom * q.covariances - given["covariance_prior"]
    components = s.count.size
    nu = nu0 + count / components
    return q._replace(degrees_of_freedom=nu, covariances=(given["covariance_prior"] + scale / components) / nu)


MUTANTS: dict[str, tuple[Callable, str, bool]] = {
    "log E[π] for E[log π]": (naive(weights="log"), "full", False),
    "log E[v] for E[log v]": (naive(weights="log"), "full", True),
    "log |E Λ| for E[log |Λ|]": (naive(log_det="none"), "full", False),
    "no d/β": (naive(d_over_beta=0.0), "full", False),
    "d/β twice": (naive(d_over_beta=2.0), "full", False),
    "C⁻¹ for ν C⁻¹": (naive(counted=False), "full", False),
    "no half before the square": (naive(half=1.0), "full", False),
    "a Wishart's digammas in a diagonal": (naive(log_det="wishart"), "diagonal", False),
    "a Wishart's digammas in a sphere": (naive(log_det="wishart"), "spherical", False),
    "C not inverted": (
        altered(lambda q, s, g: q._replace(covariances=jnp.linalg.inv(q.covariances))), "full", False,
    ),
    "degrees of freedom not counted": (
        altered(lambda q, s, g: rescaled(q, jnp.full_like(q.mean_precision, g["degrees_of_freedom"]))), "full", False,
    ),
    "one degree of freedom more": (altered(lambda q, s, g: rescaled(q, q.degrees_of_freedom + 1)), "full", False),
    "no pull of the prior's mean in C": (altered(no_pull), "full", False),
    "means not shrunk": (altered(not_shrunk), "full", False),
    "mean's precision not counted": (
        altered(lambda q, s, g: q._replace(mean_precision=jnp.full_like(q.mean_precision, g["mean_precision"]))),
        "full", False,
    ),
    "concentration without the prior": (altered(lambda q, s, g: q._replace(concentration=s.count)), "full", False),
    "own rows in the stick's rest": (altered(own_rows_after), "full", True),
    "a share of the tied rows": (altered(share_of_tied), "tied", False),
    "divergence added": (diverging(lambda q, right: -right.divergence(q)), "full", False),
    "divergence halved": (diverging(lambda q, right: 0.5 * right.divergence(q)), "full", False),
    "divergence without weights": (
        diverging(lambda q, right: right.divergence(q._replace(concentration=jnp.asarray(right.prior.concentration)))),
        "full", False,
    ),
    "divergence without precisions": (
        diverging(lambda q, right: right.divergence(q._replace(
            degrees_of_freedom=jnp.asarray(right.prior.degrees_of_freedom),
            covariances=jnp.asarray(right.prior.covariances)))),
        "full", False,
    ),
    "divergence the other way, of means": (
        diverging(lambda q, right: right.divergence(q) - D * jnp.sum(
            jnp.log(q.mean_precision / right.prior.mean_precision))),
        "full", False,
    ),
}  # fmt: skip


# Laws of the mixture.


def steps_are_exact(make: Callable, kind: str, process: bool) -> Scores:
    """The E-step is the expected density's; after an M-step no number of λ can raise the bound, whatever the shares."""
    made = make(K, D, **settings(kind, process))
    x, batch = jnp.array(X), Batch(jnp.array(X), jnp.array(COUNTS), N)
    q = made.m_step(sums_of(made, batch, GUESS))

    @jax.jit
    def slope(q: MixturePosterior) -> MixturePosterior:
        def of(q: MixturePosterior) -> jax.Array:
            terms = jnp.sum(COUNTS[:, None] * GUESS * expected(q, x, kind, process))
            return (terms - made.divergence(q)) / N

        return jax.grad(of)(q)

    terms = expected(q, x, kind, process)
    share = jax.nn.softmax(terms, axis=1)
    found = made.e_step(q, batch)
    sums = sums_of(bayesian_gaussian_mixture(K, D, **settings(kind, process)), batch, share).in_frame_of(
        found.statistics
    )
    return {
        **scores_of(slope(q), jax.tree.map(jnp.zeros_like, q), 1e-10, "slope"),
        **scores_of(found.statistics, sums, 1e-10, "statistics"),
        "local part": error(found.log_likelihood, jnp.sum(COUNTS * jax.nn.logsumexp(terms, axis=1)), 1e-9),
        "shares": error(shares_of(made, q, x), share, 1e-11),
        "no divergence from the prior": error(made.divergence(jax.tree.map(jnp.asarray, made.prior)), 0, 1e-10),
    }


def log_multigamma(a: float, features: int) -> float:
    return float(features * (features - 1) / 4 * np.log(np.pi) + np.sum(gammaln(a - np.arange(features) / 2)))


def log_evidence(x: np.ndarray, z: np.ndarray, components: int, given: dict) -> float:
    """log p(x, z) with everything else integrated out, in NumPy."""
    features, kind, alpha = x.shape[1], given["covariance"], given["weight_concentration"]
    m0, beta, nu0 = given["mean_prior"], given["mean_precision"], given["degrees_of_freedom"]
    spread = np.asarray(given["covariance_prior"])
    counts = np.bincount(z, minlength=components)
    if given["process"]:
        total = sum(betaln(1 + counts[k], alpha + counts[k + 1 :].sum()) - betaln(1, alpha) for k in range(components))
    else:
        total = gammaln(components * alpha) - gammaln(components * alpha + len(x))
        total += np.sum(gammaln(alpha + counts) - gammaln(alpha))
    total += -0.5 * x.size * np.log(np.pi) + 0.5 * features * np.sum(np.log(beta / (beta + counts)))
    scatters = []
    for k in range(components):
        own = x[z == k]
        mean = own.mean(0) if len(own) else m0
        pull = beta * len(own) / (beta + len(own)) * np.outer(mean - m0, mean - m0)
        scatters.append((own - mean).T @ (own - mean) + pull)

    def of_matrix(count: int, scatter: np.ndarray) -> float:
        nu, dets = nu0 + count, [np.linalg.slogdet(c)[1] for c in (spread, spread + scatter)]
        return (
            log_multigamma(nu / 2, features) - log_multigamma(nu0 / 2, features) + 0.5 * (nu0 * dets[0] - nu * dets[1])
        )

    def of_gamma(nu0: float, count: int, scale: Any, scatter: Any) -> float:
        nu = nu0 + count
        terms = gammaln(nu / 2) - gammaln(nu0 / 2) + 0.5 * (nu0 * np.log(scale) - nu * np.log(scale + scatter))
        return float(np.sum(terms))

    if kind == "tied":
        return float(total + of_matrix(len(x), np.sum(scatters, axis=0)))
    if kind == "full":
        return float(total + sum(of_matrix(c, s) for c, s in zip(counts, scatters, strict=True)))
    if kind == "diagonal":
        return float(total + sum(of_gamma(nu0, c, spread, np.diag(s)) for c, s in zip(counts, scatters, strict=True)))
    return float(
        total
        + sum(
            of_gamma(nu0 * features, c * features, spread * features, np.trace(s))
            for c, s in zip(counts, scatters, strict=True)
        )
    )


def one_component_is_exact(make: Callable, kind: str, process: bool) -> Scores:
    """With one component q is the posterior: the ELBO is the log evidence, and predictions are its differences."""
    given = settings(kind, process)
    made, batch, label = make(1, D, **given), whole(jnp.array(X)), np.zeros(N, int)
    q = made.m_step(sums_of(made, batch, np.ones((N, 1))))
    scores = {"evidence": error(bound(made, q, batch), log_evidence(X, label, 1, given), 1e-8)}
    if not process:  # a stick has other pieces as well
        for new in (np.array([[0.5, 0.2]]), np.array([[-7.0, 9.0]])):
            gain = log_evidence(np.concatenate([X, new]), np.append(label, 0), 1, given)
            wanted = gain - log_evidence(X, label, 1, given)
            scores[f"predictive at {new[0]}"] = error(made.predictive_log_prob(q, new), wanted, 1e-8)
    return scores


def below_the_evidence(make: Callable, kind: str, process: bool) -> Scores:
    """Five rows, two components: every one of the 2⁵ ways they may be assigned, summed."""
    x, given = X[:5], settings(kind, process)
    made, batch = make(2, D, **given), whole(jnp.array(x))
    ways = itertools.product(range(2), repeat=len(x))
    exact = logsumexp([log_evidence(x, np.array(z), 2, given) for z in ways])
    gap = exact - float(bound(made, rest(made, x, 300, GUESS[:5, :2] / GUESS[:5, :2].sum(1, keepdims=True)), batch))
    return {"gap ≥ 0": -gap / 1e-10, "gap of no more than log 2 a row": gap / (5 * np.log(2))}


def rows_of_a_climb(make: Callable, kind: str, process: bool) -> Scores:
    """From six random starts no step goes down, and where it rests nothing has a slope."""
    made, batch = make(K, D, **settings(kind, process)), whole(jnp.array(X))
    guesses = jnp.array(np.random.default_rng(0).dirichlet(np.full(K, 0.3), (6, N)))
    kernel = em(made.e_step, made.m_step, lambda q: -made.divergence(q))

    @jax.jit
    @jax.vmap
    def go(guess: jax.Array) -> Any:
        state = kernel.init(jax.random.key(0), made.m_step(sums_of(made, batch, guess)))
        state, info = jax.lax.scan(lambda state, _: kernel.step(NOTHING, state, batch), state, length=1500)
        slope = jax.grad(lambda q: bound(made, q, batch) / N)(state.position)
        return info.objective, jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in slope]))

    objective, slope = map(np.asarray, go(guesses))
    climbed = objective[:, -1] - objective[:, 0]
    return {
        "falls": max(falls(each) for each in objective),
        "slope at rest": error(slope, 0, 1e-8),
        "climbed": 1 / float(climbed.min()),
    }


def as_scikit_learn(make: Callable, kind: str, features: int, process: bool, floor: float = 0.0) -> Scores:
    """Fifteen iterations from where theirs begin; tied, with K times the prior's rows."""
    rows, given, steps = X[:, :features], settings(kind, process, features), 15
    theirs = {
        "n_components": K,
        "covariance_type": "diag" if kind == "diagonal" else kind,
        "weight_concentration_prior_type": "dirichlet_process" if process else "dirichlet_distribution",
        "weight_concentration_prior": given["weight_concentration"],
        "mean_prior": given["mean_prior"],
        "mean_precision_prior": given["mean_precision"],
        "degrees_of_freedom_prior": given["degrees_of_freedom"],
        "covariance_prior": given["covariance_prior"],
    }
    first, last = (
        sk.BayesianGaussianMixture(
            **theirs, max_iter=n, tol=0, reg_covar=floor, random_state=0, init_params="k-means++"
        )
        for n in (1, 1 + steps)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they have not converged
        first.fit(rows)
        last.fit(rows)
    if kind == "tied":
        given["degrees_of_freedom"] *= K
        given["covariance_prior"] = given["covariance_prior"] * K
    made = make(K, features, floor=floor, **given)

    def of(model: Any) -> MixturePosterior:
        freedom = model.degrees_of_freedom_ * (K if kind == "tied" else 1)
        parts = model.weight_concentration_, model.means_, model.mean_precision_, freedom, model.covariances_
        return MixturePosterior(*(jnp.array(part) for part in parts))

    found, _ = climb(made, of(first), whole(jnp.array(rows)), steps)
    weights = made.mean(found).weights[:K]
    return {
        **scores_of(found, of(last), 1e-8),
        "shares": error(shares_of(made, found, rows), last.predict_proba(rows), 1e-8),
        "weights": error(weights / weights.sum(), last.weights_, 1e-8),
    }


@CASES
def test_steps_are_exact(kind, process):
    assert_holds(steps_are_exact(bayesian_gaussian_mixture, kind, process))
    assert_holds(steps_are_exact(naive(), kind, process))


@pytest.mark.test("tied-False")
@CASES
def test_one_component_is_exact(kind, process):
    assert_holds(one_component_is_exact(bayesian_gaussian_mixture, kind, process))


@CASES
def test_below_the_evidence(kind, process):
    assert_holds(below_the_evidence(bayesian_gaussian_mixture, kind, process))


@CASES
def test_no_step_goes_down(kind, process):
    assert_holds(rows_of_a_climb(bayesian_gaussian_mixture, kind, process))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name):
    """Algebra alone shows each."""
    make, kind, process = MUTANTS[name]
    assert broken(steps_are_exact(make, kind, process))


@pytest.mark.parametrize(
    "name",
    ["log |E Λ| for E[log |Λ|]", "no d/β", "a Wishart's digammas in a sphere", "C not inverted", "means not shrunk",
     "one degree of freedom more", "no pull of the prior's mean in C", "divergence without precisions"],
)  # fmt: skip
def test_mutants_by_the_evidence(name):
    """No second telling is needed where one component is all there is."""
    assert broken(one_component_is_exact(*MUTANTS[name]))


@pytest.mark.parametrize("name", ["log E[π] for E[log π]", "concentration without the prior"])
def test_mutants_by_the_climb(name):
    """Nor for weights, which one component knows nothing of: where they rest the bound has a slope."""
    assert broken(rows_of_a_climb(*MUTANTS[name]))


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize(
    ("kind", "features"),
    [("full", 2), ("tied", 2), ("full", 1), ("tied", 1), ("diagonal", 1), ("spherical", 1)],
)
def test_as_scikit_learn(kind, features, process):
    for floor in (0.0,) if kind == "tied" else (0.0, 1e-2):
        assert_holds(as_scikit_learn(bayesian_gaussian_mixture, kind, features, process, floor))


@pytest.mark.parametrize("kind", ["diagonal", "spherical"])
def test_where_scikit_learn_is_not_the_bound(kind):
    """Its digammas reproduce it, ours do not; with its own the bound's slope does not vanish."""
    its = naive(log_det="wishart")
    assert_holds(as_scikit_learn(its, kind, 2, False))
    assert broken(as_scikit_learn(bayesian_gaussian_mixture, kind, 2, False))
    assert broken(rows_of_a_climb(its, kind, False)) or broken(steps_are_exact(its, kind, False))


@pytest.mark.parametrize("process", [False, True])
def test_the_bound_of_scikit_learn_lacks_constants(process):
    """``lower_bound_`` of shares r and the λ that follows from them, less ours, is the same at every step."""
    given, gaps = settings("full", process), []
    made, batch = bayesian_gaussian_mixture(K, D, **given), whole(jnp.array(X))
    for steps in (2, 4, 9):
        pair = [
            sk.BayesianGaussianMixture(
                n_components=K, max_iter=n, tol=0, reg_covar=0, random_state=0,
                weight_concentration_prior_type="dirichlet_process" if process else "dirichlet_distribution",
                weight_concentration_prior=given["weight_concentration"], mean_prior=given["mean_prior"],
                mean_precision_prior=given["mean_precision"], degrees_of_freedom_prior=given["degrees_of_freedom"],
                covariance_prior=given["covariance_prior"],
            )
            for n in (steps, steps + 1)
        ]  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before, after = (model.fit(X) for model in pair)
        share = before.predict_proba(X)
        q = made.m_step(sums_of(made, batch, share))
        ours = np.sum(share * (np.asarray(expected(q, X, "full", process)) - np.log(share))) - made.divergence(q)
        gaps.append(after.lower_bound_ - float(ours))
    assert np.ptp(gaps) < 1e-7 * N and abs(gaps[0]) > 1


def additive_law(make: Callable, kind: str) -> Scores:
    """A weight is a row repeated; sums of chunks are the whole; what does not count may hold anything."""
    made = make(K, D, **settings(kind))
    repeated = jnp.array(np.repeat(X, COUNTS.astype(int), axis=0))
    q = made.m_step(sums_of(made, whole(jnp.array(X)), GUESS))
    bare, weighted = made.e_step(q, whole(repeated)), Batch(jnp.array(X), jnp.array(COUNTS), N)
    padded = Batch(jnp.append(jnp.array(X), jnp.full((1, D), jnp.nan), 0), jnp.append(jnp.array(COUNTS), 0.0), N)
    assigned = sums_of(made, weighted, GUESS), sums_of(made, whole(repeated), np.repeat(GUESS, COUNTS.astype(int), 0))
    return {
        **scores_of(made.e_step(q, weighted), bare, 1e-10, "repeated"),
        **scores_of(accumulate(made.e_step, q, jnp.array(X), jnp.array(COUNTS), 7), bare, 1e-10, "chunks"),
        **scores_of(made.e_step(q, padded), bare, 1e-10, "padded"),
        **scores_of(*assigned, 1e-10, "assigned"),
        **scores_of(made.e_step(q, whole(Data(X).arrays())), made.e_step(q, whole(jnp.array(X))), 1e-12, "of Data"),
    }


@pytest.mark.parametrize("kind", COVARIANCES)
def test_additive(kind):
    assert_holds(additive_law(bayesian_gaussian_mixture, kind))


def test_additive_mutants():
    def mean_for_sum(*args: Any, **given: Any) -> Conjugate:
        right = bayesian_gaussian_mixture(*args, **given)
        return replace(
            right,
            e_step=lambda q, batch: jax.tree.map(lambda s: s / jnp.sum(batch.mask), right.e_step(q, batch)),
        )

    assert broken(additive_law(mean_for_sum, "full"))


def test_stochastic_with_everything_in_the_batch():
    """A natural-gradient step of 1 is coordinate ascent."""
    made, batch = bayesian_gaussian_mixture(K, D, **settings("full")), whole(jnp.array(X))
    q = made.m_step(sums_of(made, batch, GUESS))
    wanted, objective = climb(made, q, batch, 10)
    kernel = online_em(made.e_step, made.m_step, 1.0, 1, example=batch, log_prior=lambda q: -made.divergence(q))
    state, reached = kernel.init(jax.random.key(0), q), []
    step = jax.jit(lambda state: kernel.step(NOTHING, state, batch))
    for _ in range(10):
        state, info = step(state)
        reached.append(info.objective)
    assert_holds(scores_of(state.position, wanted, 1e-10) | {"objective": error(np.array(reached), objective, 1e-9)})


def test_stochastic_steps_are_natural_gradients():
    """λ ← λ + γ (λ(N/n s̄) − λ) in natural parameters: sums plus the prior's."""
    made, gamma = bayesian_gaussian_mixture(K, D, **settings("spherical")), 0.3
    batches = [Batch(jnp.array(X[i : i + 20]), jnp.ones(20), N) for i in (0, 20)]
    kernel = online_em(made.e_step, made.m_step, gamma, 1, example=batches[0])
    q = made.m_step(sums_of(made, whole(jnp.array(X)), GUESS))
    first, _ = kernel.step(NOTHING, kernel.init(jax.random.key(0), q), batches[0])
    second, _ = kernel.step(NOTHING, first, batches[1])
    alone = made.m_step(jax.tree.map(lambda s: 3 * s, made.e_step(first.position, batches[1]).statistics))

    def natural(q: MixturePosterior) -> list:
        scale = q.degrees_of_freedom * q.covariances + q.mean_precision * jnp.sum(q.means**2, 1) / D
        return [q.concentration, q.mean_precision, q.mean_precision[:, None] * q.means, q.degrees_of_freedom, scale]

    mixed = jax.tree.map(lambda a, b: (1 - gamma) * a + gamma * b, natural(first.position), natural(alone))
    assert_holds(scores_of(natural(second.position), mixed, 1e-6))  # the centre is m₀ in single precision


def test_stochastic_reaches_coordinate_ascent():
    """Three epochs of 50 rows a batch against 200 passes: within 1 % of the ELBO."""
    rng = np.random.default_rng(1)
    x = np.array([[-3.0, 0.0], [0.0, 3.0], [3.0, -1.0]])[rng.choice(3, 3000)] + rng.normal(size=(3000, 2))
    made, all_rows = bayesian_gaussian_mixture(K, D), whole(jnp.array(x))
    nearest = np.square(x[:50, None] - np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])[None]).sum(2).argmin(1)
    start = made.m_step(sums_of(made, whole(jnp.array(x[:50])), 0.5 * np.eye(K)[nearest] + 0.5 / K))
    best, _ = climb(made, start, all_rows, 200)
    order = np.concatenate([rng.permutation(3000) for _ in range(3)]).reshape(-1, 50)
    kernel = online_em(made.e_step, made.m_step, patience=1, example=whole(jnp.array(x[:50])))

    @jax.jit
    def go(batches: jax.Array) -> Any:
        state = kernel.init(jax.random.key(0), start)
        return jax.lax.scan(lambda s, rows: kernel.step(NOTHING, s, Batch(rows, jnp.ones(50), 3000)), state, batches)[0]

    first, reached, wanted = (float(bound(made, q, all_rows)) for q in (start, go(jnp.array(x[order])).position, best))
    assert first < wanted - 0.05 * abs(wanted)  # there was something to learn
    assert abs(reached - wanted) < 0.01 * abs(wanted), (first, reached, wanted)


@pytest.mark.parametrize("process", [False, True])
def test_superfluous_components_die_out(process):
    """Five for two clusters: the other three return to the prior, and keep no weight."""
    rng = np.random.default_rng(2)
    x = np.where(rng.random((200, 1)) < 0.4, -5.0, 5.0) + rng.normal(size=(200, 2))
    made = bayesian_gaussian_mixture(5, 2, process=process, weight_concentration=1e-2)
    near = np.stack([x[:, 0] < 0, x[:, 0] >= 0], 1).astype(float)
    guess = np.concatenate([0.6 * near, rng.dirichlet(np.ones(3), 200) * 0.4], 1)
    q, objective = climb(made, made.m_step(sums_of(made, whole(jnp.array(x)), guess)), whole(jnp.array(x)), 1500)
    count = q.mean_precision - 1
    assert np.sum(np.asarray(count) > 1) == 2
    dead = np.asarray(count) < 1
    assert_holds(
        {
            "falls": falls(objective),
            "count": error(count[dead], 0, 1e-6),
            "means": error(q.means[dead], 0, 1e-6),
            "covariances": error(q.covariances[dead], np.eye(2) / 2, 1e-6),
            "weights": error(made.mean(q).weights[:5][dead], 0, 2e-4),
            "live weights": error(np.sort(count)[-2:].sum(), 200, 1e-3),
        }
    )


def draws_law(make: Callable, kind: str, process: bool, n: int = 20_000) -> Scores:
    """Draws from q: weights, whitened means and log determinants against closed forms; predictions, against densities
    of new rows averaged over draws."""
    made = make(2, D, **settings(kind, process))
    q = made.m_step(sums_of(made, whole(jnp.array(X[:12])), GUESS[:12, :2] / GUESS[:12, :2].sum(1, keepdims=True)))
    theta, mean = made.sample(jax.random.key(3), q, n), made.mean(q)
    total = 3 if process else 2
    full = {
        "full": lambda c, m: c,
        "tied": lambda c, m: jnp.broadcast_to(c[:, None], (len(c), total, D, D)),
        "diagonal": lambda c, m: c[..., None] * jnp.eye(D)[None, None],
        "spherical": lambda c, m: c[..., None, None] * jnp.eye(D)[None, None],
    }[kind]
    matrices = np.asarray(full(theta.covariances, theta.means))
    precisions, weights = np.linalg.inv(matrices), np.asarray(theta.weights)
    centre = np.asarray(full(mean.covariances[None], mean.means[None])[0])
    nu = np.broadcast_to(np.asarray(q.degrees_of_freedom), (2,))
    scores = {"weights sum to one": error(weights.sum(1), 1, 1e-10)}

    def z(x: np.ndarray, wanted: float) -> float:
        return abs(x.mean() - wanted) / (x.std() / np.sqrt(x.size)) / Z

    for k in range(total):
        beta = float(q.mean_precision[k]) if k < 2 else 0.6
        off = np.asarray(theta.means)[:, k] - np.asarray(mean.means)[k]
        square = beta * np.einsum("ni,nij,nj->n", off, precisions[:, k], off)
        inner = np.einsum("nij,ji->n", precisions[:, k], centre[k])
        scores |= {
            f"{k} weight": z(weights[:, k], float(mean.weights[k])),
            f"{k} square": z_mean(square, D, 2 * D),
            f"{k} mean": z(off[:, 0], 0.0),
            f"{k} precision": z(inner, D),
            f"{k} precision, apart": z(precisions[:, k, 0, 0], float(np.linalg.inv(centre[k])[0, 0])),
        }
        if k < 2:
            freedom = nu[k]
            if kind in ("full", "tied"):
                halves = (freedom - np.arange(D)) / 2
                wanted, variance = digamma(halves).sum() - D * np.log(freedom / 2), polygamma(1, halves).sum()
            else:
                a = freedom / 2 * (D if kind == "spherical" else 1)
                wanted = D * (digamma(a) - np.log(a))
                variance = polygamma(1, a) * (D**2 if kind == "spherical" else D)
            log_dets = -np.linalg.slogdet(matrices[:, k])[1] + np.linalg.slogdet(centre[k])[1]
            scores[f"{k} log det"] = z_mean(log_dets, wanted, variance)
    if not process:
        log_pi, a = np.log(weights[:, 0]), np.asarray(q.concentration)
        scores["log weight"] = z_mean(
            log_pi, digamma(a[0]) - digamma(a.sum()), polygamma(1, a[0]) - polygamma(1, a.sum())
        )
    new = np.array([[0.4, 0.3], [-2.0, 1.0], [2.5, -3.0]])
    off = new[:, None, None, :] - np.asarray(theta.means)[None]
    squares = np.einsum("mnki,nkij,mnkj->mnk", off, precisions, off)
    densities = np.exp(-0.5 * squares + 0.5 * np.linalg.slogdet(precisions)[1] - np.log(2 * np.pi))
    densities = np.sum(densities * weights, axis=2)
    for i, log_prob in enumerate(np.asarray(made.predictive_log_prob(q, new))):
        scores[f"density {i}"] = z(densities[i], np.exp(log_prob))
    grid = np.stack(np.meshgrid(*[np.arange(-45, 45, 0.25)] * 2), -1).reshape(-1, 2)
    mass = np.exp(np.asarray(made.predictive_log_prob(q, grid))).sum() * 0.25**2
    scores["mass"] = error(mass, 1, 0.02)  # heavy tails
    return scores


@CASES
def test_draws(kind, process):
    assert_holds(draws_law(bayesian_gaussian_mixture, kind, process), 20_000)


@functools.cache
def log_ratios(kind: str, process: bool, n: int = 20_000) -> tuple[Any, np.ndarray]:
    """A q, and log q(θ) − log p(θ) of its draws with SciPy's densities of precisions, which take five seconds."""
    made = bayesian_gaussian_mixture(2, D, **settings(kind, process))
    q = made.m_step(sums_of(made, whole(jnp.array(X[:12])), GUESS[:12, :2] / GUESS[:12, :2].sum(1, keepdims=True)))
    theta = jax.tree.map(np.asarray, made.sample(jax.random.key(8), q, n))

    def log_density(q: MixturePosterior) -> np.ndarray:
        q, total = jax.tree.map(np.asarray, q), np.zeros(n)
        weights = theta.weights[:, :2]
        if process:
            pieces = [weights[:, 0], weights[:, 1] / (1 - weights[:, 0])]  # densities of the pieces
            total += np.sum([stats.beta.logpdf(p, *q.concentration[:, k]) for k, p in enumerate(pieces)], axis=0)
        else:
            total += stats.dirichlet.logpdf((weights / weights.sum(1, keepdims=True)).T, q.concentration)
        for k in range(2):
            c, nu = q.covariances[k] * q.degrees_of_freedom[k], q.degrees_of_freedom[k]
            spread = theta.covariances[:, k]
            if kind == "full":
                precisions = np.linalg.inv(spread)
                total += stats.wishart.logpdf(np.moveaxis(precisions, 0, -1), nu, np.linalg.inv(c))
            else:
                precisions = np.eye(D) / spread[:, :, None]
                total += np.sum(stats.gamma.logpdf(1 / spread, nu / 2, scale=2 / c), axis=1)
            off = theta.means[:, k] - q.means[k]
            square = q.mean_precision[k] * np.einsum("ni,nij,nj->n", off, precisions, off)
            total += 0.5 * (D * np.log(q.mean_precision[k]) + np.linalg.slogdet(precisions)[1] - square)
        return total

    return q, log_density(q) - log_density(made.prior)


def divergence_by_draws(make: Callable, kind: str, process: bool) -> Scores:
    """E_q[log q(θ) − log p(θ)] over draws of the right model's q."""
    q, terms = log_ratios(kind, process)
    divergence = float(make(2, D, **settings(kind, process)).divergence(q))
    return {"mean": abs(terms.mean() - divergence) / (terms.std() / np.sqrt(len(terms))) / Z}


@pytest.mark.laws
@pytest.mark.parametrize(("kind", "process"), [("full", False), ("diagonal", True)])
def test_divergence_by_draws(kind, process):
    assert_holds(divergence_by_draws(bayesian_gaussian_mixture, kind, process), 20_000)


@pytest.mark.parametrize("name", [name for name in MUTANTS if name.startswith("divergence")])
def test_divergence_by_draws_mutants(name):
    assert broken(divergence_by_draws(MUTANTS[name][0], "full", False))


def drawn(change: Callable) -> Callable:
    def make(components: int, features: int, **given: Any) -> Conjugate:
        right = bayesian_gaussian_mixture(components, features, **given)
        return replace(right, **change(right))

    return make


@pytest.mark.parametrize(
    "change",
    [
        lambda right: {"sample": lambda key, q, n: right.sample(key, q._replace(
            degrees_of_freedom=q.degrees_of_freedom + 1), n)},
        lambda right: {"sample": lambda key, q, n: right.sample(key, q._replace(
            mean_precision=q.mean_precision * q.degrees_of_freedom), n)},
        lambda right: {"sample": lambda key, q, n: right.sample(key, q._replace(
            covariances=jnp.linalg.inv(q.covariances)), n)},
        lambda right: {"predictive_log_prob": lambda q, x: jax.nn.logsumexp(
            jnp.log(right.mean(q).weights)[None] + jnp.stack([jnp.array(stats.multivariate_normal(m, c).logpdf(x))
            for m, c in zip(*right.mean(q)[1:], strict=True)], 1), axis=1)},
        lambda right: {"predictive_log_prob": lambda q, x: right.predictive_log_prob(q._replace(
            mean_precision=1e6 * q.mean_precision), x)},
        lambda right: {"mean": lambda q: right.mean(q)._replace(
            covariances=right.mean(q).covariances * (q.degrees_of_freedom / (q.degrees_of_freedom - D - 1)
            )[:, None, None])},
    ],
    ids=["degrees", "precision of means", "C inverted", "plug-in density", "mean known", "E[Λ⁻¹] for E[Λ]⁻¹"],
)  # fmt: skip
def test_draws_mutants(change):
    assert broken(draws_law(drawn(change), "full", False))


@pytest.mark.parametrize("kind", COVARIANCES)
def test_single_precision_far_from_the_origin(kind):
    """Mean 1000, sd 1, with a prior there: four digits after ten steps."""
    given = settings(kind) | {"mean_prior": X.mean(0) + 1e3}
    x, made = X + 1e3, bayesian_gaussian_mixture(K, D, **given)
    q = made.m_step(sums_of(made, whole(jnp.array(x)), GUESS))
    wanted, objective = climb(made, q, whole(jnp.array(x)), 10)
    single, reached = climb(made, jax.tree.map(lambda a: a.astype(jnp.float32), q), whole(jnp.array(x, np.float32)), 10)
    assert single.means.dtype == jnp.float32
    assert_holds(
        {
            "means": error(single.means - 1e3, wanted.means - 1e3, 1e-3),
            "covariances": error(single.covariances, wanted.covariances, 1e-3),
            "objective": error(reached, objective, 0.05),
        }
    )


def test_a_floor_is_counted():
    """C_k gets N_k · floor, of every kind."""
    for kind in COVARIANCES:
        plain, made = (bayesian_gaussian_mixture(K, D, **settings(kind), floor=floor) for floor in (0.0, 0.2))
        s = sums_of(plain, whole(jnp.array(X)), GUESS)
        one, two = plain.m_step(s), made.m_step(s)
        count = N if kind == "tied" else np.asarray(s.count)
        rise = np.asarray(two.covariances - one.covariances)
        rise = rise * np.reshape(
            np.asarray(one.degrees_of_freedom), np.shape(count) + (1,) * (rise.ndim - np.ndim(count))
        )
        unit = np.eye(D) if kind in ("full", "tied") else np.ones(D if kind == "diagonal" else ())
        np.testing.assert_allclose(rise, 0.2 * np.multiply.outer(count, unit), atol=1e-10)


# One normal sample.

Y = RNG.normal(1.5, 0.7, 12)
PRIOR = {"mean": 0.4, "strength": 0.7, "shape": 1.3, "rate": 0.9}


def by_iteration(x: np.ndarray) -> NormalAndGamma:
    """The two updates in turn, 500 times."""
    m0, strength, a0, b0 = PRIOR.values()
    mean, tau, a = (strength * m0 + x.sum()) / (strength + x.size), 1.0, a0 + (x.size + 1) / 2
    for _ in range(500):
        precision = (strength + x.size) * tau
        b = b0 + 0.5 * (np.sum((x - mean) ** 2) + strength * (mean - m0) ** 2 + (x.size + strength) / precision)
        tau = a / b
    return NormalAndGamma(*map(jnp.asarray, (mean, precision, a, b)))


def normal_gamma_law(make: Callable) -> Scores:
    made, batch = make(**PRIOR), whole(jnp.array(Y))
    anywhere = NormalAndGamma(*map(jnp.asarray, (0.3, 2.0, 2.0, 1.5)))
    q = made.m_step(made.e_step(anywhere, batch).statistics)
    exact = normal_gamma_posterior(Y, **PRIOR)
    a = exact.shape
    gap = gammaln(a) - gammaln(a + 0.5) + a * np.log((a + 0.5) / a) + 0.5 * np.log(a + 0.5) - 0.5
    slope = jax.grad(lambda q: bound(made, q, batch))(q)
    return {
        **scores_of(q, by_iteration(Y), 1e-10, "iteration"),
        **scores_of(slope, jax.tree.map(jnp.zeros_like, q), 1e-9, "slope"),
        "mean of μ": error(q.mean, exact.mean, 1e-10),
        "mean of τ": error(q.shape / q.rate, exact.shape / exact.rate, 1e-10),
        "gap": error(exact.log_evidence - bound(made, q, batch), gap, 1e-9),
        "gap > 0": 1e-3 / gap,
        "falls": float(bound(made, anywhere, batch) - bound(made, q, batch)),
    }


def test_normal_gamma():
    assert_holds(normal_gamma_law(normal_gamma))


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q._replace(shape=q.shape - 0.5),
        lambda q: q._replace(rate=q.rate * (q.shape - 0.5) / q.shape),
        lambda q: q._replace(precision=q.precision - PRIOR["strength"] * q.shape / q.rate),
        lambda q: q._replace(precision=q.precision / (q.shape / q.rate)),
        lambda q: q._replace(mean=jnp.mean(Y)),
    ],
    ids=["no half for μ in the shape", "no variance of μ in the rate", "no λ₀ in the precision", "no τ", "not shrunk"],
)
def test_normal_gamma_mutants(change):
    def make(**given: float) -> Conjugate:
        right = normal_gamma(**given)
        return replace(right, m_step=lambda s: change(right.m_step(s)))

    assert broken(normal_gamma_law(make))


@pytest.mark.test("log E[τ] for E[log τ]", "no entropy of μ")
@pytest.mark.parametrize(
    "change",
    [
        lambda right: lambda q: -right.divergence(q),
        lambda right: lambda q: right.divergence(q) - 0.5 * jnp.log(q.precision),
        lambda right: lambda q: right.divergence(q) + 0.5 * (digamma(float(q.shape)) - jnp.log(q.shape)),
    ],
    ids=["sign", "no entropy of μ", "log E[τ] for E[log τ]"],
)
def test_normal_gamma_divergence_mutants(change):
    def make(**given: float) -> Conjugate:
        right = normal_gamma(**given)
        made = change(right)
        return replace(right, divergence=lambda q: jax.lax.stop_gradient(made(jax.lax.stop_gradient(q))))

    assert broken({k: s for k, s in normal_gamma_law(make).items() if k == "gap"})


def test_normal_gamma_posterior_by_quadrature():
    """Over (μ, log τ): evidence and moments."""
    m0, strength, a0, b0 = PRIOR.values()
    mu, u = np.linspace(-1.5, 4.5, 601), np.linspace(-5, 4, 901)
    tau = np.exp(u)[None, :]
    log_joint = (
        np.sum(stats.norm.logpdf(Y[:, None, None], mu[None, :, None], tau[None] ** -0.5), 0)
        + stats.norm.logpdf(mu[:, None], m0, (strength * tau) ** -0.5)
        + stats.gamma.logpdf(tau, a0, scale=1 / b0)
        + u[None, :]
    )
    cell = (mu[1] - mu[0]) * (u[1] - u[0])
    density = np.exp(log_joint - logsumexp(log_joint))
    exact = normal_gamma_posterior(Y, **PRIOR)
    assert_holds(
        {
            "evidence": error(logsumexp(log_joint) + np.log(cell), exact.log_evidence, 1e-8),
            "mean": error(np.sum(density * mu[:, None]), exact.mean, 1e-8),
            "precision": error(np.sum(density * tau), exact.shape / exact.rate, 1e-8),
            "precision squared": error(np.sum(density * tau**2), exact.shape * (exact.shape + 1) / exact.rate**2, 1e-7),
        }
    )


def small_draws_law(made: Conjugate, q: NormalAndGamma, n: int = 50_000) -> Scores:
    theta = made.sample(jax.random.key(1), q, n)
    mu, tau = map(np.asarray, theta)
    scores = {
        "μ": z_mean(mu, float(q.mean), 1 / float(q.precision)),
        "μ spread": z_mean((mu - float(q.mean)) ** 2 * float(q.precision), 1, 2),
        "τ": z_mean(tau, float(q.shape / q.rate), float(q.shape / q.rate**2)),
        "log τ": z_mean(np.log(tau), digamma(float(q.shape)) - np.log(float(q.rate)), polygamma(1, float(q.shape))),
        "apart": z_mean((mu - float(q.mean)) * np.sqrt(float(q.precision)) * (np.log(tau) - np.log(tau).mean()), 0,
                        float(polygamma(1, float(q.shape)))),
    }  # fmt: skip
    for y in (0.0, 1.4, 6.0):
        density = stats.norm.pdf(y, mu, tau**-0.5)
        wanted = float(jnp.exp(made.predictive_log_prob(q, jnp.array([y]))[0]))
        scores[f"density at {y}"] = abs(density.mean() - wanted) / (density.std() / np.sqrt(n)) / Z
    return scores


def test_normal_gamma_draws():
    made = normal_gamma(**PRIOR)
    q = made.m_step(made.e_step(jax.tree.map(jnp.asarray, made.prior), whole(jnp.array(Y))).statistics)
    assert_holds(small_draws_law(made, q), 50_000)
    wrong = replace(made, predictive_log_prob=lambda q, y: jnp.array(
        stats.norm.logpdf(y, q.mean, np.sqrt(q.rate / q.shape + 1 / q.precision))))  # fmt: skip
    assert broken(small_draws_law(wrong, q))
    without = replace(made, predictive_log_prob=lambda q, y: made.predictive_log_prob(q._replace(precision=jnp.inf), y))
    assert broken(small_draws_law(without, q))


def test_normal_of_unknown_precision():
    """Against SciPy's quadrature, and Student's t where nothing is added."""
    scores = {}
    for shape, rate in ((0.5, 0.3), (2.0, 5.0), (40.0, 30.0), (3000.0, 100.0)):
        off = np.array([0.0, 0.7, 4.0, 30.0])
        found = cv.log_normal_of_unknown_precision(jnp.array(off), jnp.zeros(4), jnp.array(shape), jnp.array(rate))
        scores[f"t {shape}"] = error(found, stats.t.logpdf(off, 2 * shape, scale=np.sqrt(rate / shape)), 1e-9)
        for variance in (0.01, 2.0):
            args = jnp.array(off[:3]), jnp.full(3, variance), jnp.array(shape), jnp.array(rate)
            found = cv.log_normal_of_unknown_precision(*args)
            for x, got in zip(off[:3], np.asarray(found), strict=True):

                def density(u: float, x: float = x, s: float = shape, r: float = rate, v: float = variance) -> float:
                    return stats.norm.pdf(x, 0, np.sqrt(v + np.exp(-u))) * np.exp(
                        s * u + s * np.log(r) - r * np.exp(u) - gammaln(s)
                    )

                u = np.log(shape / rate)
                edges = u + np.array([-60, -6, -2, -0.3, -0.05, 0.05, 0.3, 2, 6])
                parts = [
                    integrate.quad(density, *pair, epsabs=0, epsrel=1e-11, limit=500)[0]
                    for pair in itertools.pairwise(edges)
                ]
                scores[f"{shape} {variance} {x}"] = error(got, np.log(sum(parts)), 1e-8)
    assert_holds(scores)


def test_divergences():
    """Against quadrature, and each other."""
    a, b, a0, b0 = 2.3, 1.7, 0.8, 0.4

    def by_quadrature(family: Any, q: dict, p: dict, high: float) -> float:
        def term(x: float) -> float:
            return family.pdf(x, **q) * (family.logpdf(x, **q) - family.logpdf(x, **p))

        return integrate.quad(term, 0, high, epsabs=1e-12)[0]

    wanted = by_quadrature(stats.gamma, {"a": a, "scale": 1 / b}, {"a": a0, "scale": 1 / b0}, 40)
    of_beta = by_quadrature(stats.beta, {"a": 2.5, "b": 1.5}, {"a": 0.7, "b": 1.2}, 1)
    three, flat = stats.dirichlet([2.0, 0.9, 3.0]), stats.dirichlet([1.0, 1.0, 1.0])
    found = cv.dirichlet_divergence(jnp.array([2.0, 0.9, 3.0]), jnp.ones(3))
    assert_holds(
        {
            "Gamma": error(cv.gamma_divergence(a, b, a0, b0), wanted, 1e-8),
            "Beta": error(cv.dirichlet_divergence(jnp.array([2.5, 1.5]), jnp.array([0.7, 1.2])), of_beta, 1e-8),
            "Dirichlet against flat": error(found, flat.entropy() - three.entropy(), 1e-10),
        }
    )


# Regression.

P, R = 3, 25
INPUTS = RNG.normal(size=(R, P)) @ np.array([[1.0, 0.6, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 1.0]])
TARGET = INPUTS @ np.array([0.8, -0.5, 0.0]) + 0.6 * RNG.normal(size=R)
ROWS = jnp.array(TARGET), jnp.array(INPUTS)
A0, B0, ALPHA, PAIR = 1.4, 0.8, 0.7, (1.2, 1.9)
FORMS = [ALPHA, PAIR]


def regression_bound(q: RegressionPosterior, alpha: Any) -> jax.Array:
    """The ELBO as Σ E log p − Σ E log q, each density written out."""
    y, x = ROWS
    psi = jax.scipy.special.digamma
    tau, log_tau = q.shape / q.rate, psi(q.shape) - jnp.log(q.rate)
    size = jnp.sum(q.mean**2) + jnp.trace(q.covariance)
    square = jnp.sum((y - x @ q.mean) ** 2) + jnp.trace(x.T @ x @ q.covariance)

    def gamma_terms(a: Any, b: Any, mean: Any, log_mean: Any) -> jax.Array:
        return a * jnp.log(b) - jax.scipy.special.gammaln(a) + (a - 1) * log_mean - b * mean

    total = 0.5 * R * (log_tau - jnp.log(2 * jnp.pi)) - 0.5 * tau * square
    total += gamma_terms(A0, B0, tau, log_tau) - gamma_terms(q.shape, q.rate, tau, log_tau)
    of_alpha, log_alpha = alpha, jnp.log(alpha) if not isinstance(alpha, tuple) else 0.0
    if isinstance(alpha, tuple):
        c, d = q.precision_shape, q.precision_rate
        of_alpha, log_alpha = c / d, psi(c) - jnp.log(d)
        total += gamma_terms(alpha[0], alpha[1], of_alpha, log_alpha) - gamma_terms(c, d, of_alpha, log_alpha)
    total += 0.5 * P * (log_alpha - jnp.log(2 * jnp.pi)) - 0.5 * of_alpha * size
    return total + 0.5 * (jnp.linalg.slogdet(q.covariance)[1] + P * (1 + jnp.log(2 * jnp.pi)))


def sweeping(alpha: Any, sweeps: int, trace: float = 1.0, half: float = 0.5, count: float = 1.0) -> RegressionPosterior:
    """Coordinate updates by inverses; from τ and α where the library begins."""
    y, x = map(np.asarray, ROWS)
    learnt = isinstance(alpha, tuple)
    a = A0 + count * R / 2
    tau, precision = a / (B0 + 0.5 * y @ y), alpha[0] / alpha[1] if learnt else alpha
    c, d = (alpha[0] + P / 2, 1.0) if learnt else ((), ())
    for _ in range(sweeps):
        covariance = np.linalg.inv(tau * x.T @ x + precision * np.eye(P))
        mean = tau * covariance @ x.T @ y
        size = mean @ mean + trace * np.trace(covariance)
        b = B0 + 0.5 * (np.sum((y - x @ mean) ** 2) + trace * np.trace(x.T @ x @ covariance))
        tau = a / b
        if learnt:
            d = alpha[1] + half * size
            precision = c / d
    return RegressionPosterior(*(leaf if isinstance(leaf, tuple) else jnp.asarray(leaf)
                                 for leaf in (mean, covariance, a, b, c, d)))  # fmt: skip


def regression(alpha: Any) -> Conjugate:
    return linear_regression_unknown_noise(P, alpha, A0, B0)


def swept(**wrong: float) -> Callable:
    """The M-step by the textbook's sweeps over ``ROWS``."""

    def make(alpha: Any) -> Conjugate:
        return replace(regression(alpha), m_step=lambda s: sweeping(alpha, 400, **wrong))

    return make


def evidence_by_quadrature(alpha: Any) -> float:
    """Over log τ and, where it is learnt, log α: y ~ N(0, I/τ + XXᵀ/α)."""
    values, vectors = np.linalg.eigh(INPUTS @ INPUTS.T)
    along, u = TARGET @ vectors, np.linspace(-7, 7, 1401)
    grid = np.linspace(-9, 6, 601) if isinstance(alpha, tuple) else np.array([np.log(alpha)])
    tau, weight = np.exp(u)[:, None, None], np.exp(grid)[None, :, None]
    variance = 1 / tau + values / weight
    terms = np.sum(stats.norm.logpdf(along, 0, np.sqrt(variance)), 2)
    terms += (stats.gamma.logpdf(np.exp(u), A0, scale=1 / B0) + u)[:, None]
    step = u[1] - u[0]
    if isinstance(alpha, tuple):
        terms += (stats.gamma.logpdf(np.exp(grid), alpha[0], scale=1 / alpha[1]) + grid)[None, :]
        step *= grid[1] - grid[0]
    return float(logsumexp(terms) + np.log(step))


def regression_law(make: Callable, alpha: Any) -> Scores:
    """At rest nothing has a slope; the bound is the densities', and below the evidence."""
    made, batch = make(alpha), whole(ROWS)
    q = made.m_step(made.e_step(jax.tree.map(jnp.asarray, made.prior), batch).statistics)
    slope = jax.grad(lambda q: regression_bound(q, alpha))(q)
    slope = slope._replace(covariance=q.covariance @ slope.covariance)  # relative: rounding grows with its inverse
    value, exact = float(bound(made, q, batch)), evidence_by_quadrature(alpha)
    scores = {
        **scores_of(slope, jax.tree.map(jnp.zeros_like, q), 1e-8, "slope"),
        "bound": error(value, regression_bound(q, alpha), 1e-9),
        "gap > 0": 1e-3 / max(exact - value, 1e-300),
        "gap small": (exact - value) / 1.0,
    }
    if not isinstance(alpha, tuple):
        scores["none from the prior"] = error(made.divergence(jax.tree.map(jnp.asarray, made.prior)), 0, 1e-10)
    return scores


@pytest.mark.parametrize("alpha", FORMS)
def test_regression(alpha):
    assert_holds(regression_law(regression, alpha))
    assert_holds(regression_law(swept(), alpha))


@pytest.mark.parametrize(
    ("wrong", "alpha"),
    [
        ({"trace": 0.0}, ALPHA),
        ({"trace": 0.0}, PAIR),
        ({"half": 1.0}, PAIR),
        ({"count": 2.0}, ALPHA),
        ({"count": 0.0}, ALPHA),
    ],
    ids=["no traces", "no traces, α learnt", "no half for α", "n for n/2", "shape not counted"],
)
def test_regression_mutants(wrong, alpha):
    assert broken(regression_law(swept(**wrong), alpha))


@pytest.mark.test
@pytest.mark.parametrize(
    "change",
    [
        lambda value, q: -value,
        lambda value, q: value - 0.5 * jnp.linalg.slogdet(q.covariance)[1],
        lambda value, q: value + 0.5 * P,
    ],
    ids=["sign", "log |V| twice", "no −D"],
)
def test_regression_divergence_mutants(change):
    def make(*args: Any) -> Conjugate:
        right = regression(*args)
        return replace(right, divergence=lambda q: change(right.divergence(q), q))

    assert broken(regression_law(make, ALPHA))


@pytest.mark.parametrize("alpha", FORMS)
def test_one_step_is_all(alpha):
    """The first step of ``em`` is the sweeps to convergence, so that no later one moves."""
    _, objective = climb(regression(alpha), sweeping(alpha, 1), whole(ROWS), 4)
    assert objective[1] > objective[0]
    assert_holds({"em falls": falls(objective), "at once": error(objective[2:], objective[1], 1e-10)})


def test_regression_is_additive():
    """And its statistics do not look at λ: one pass is enough."""
    made, counts = regression(PAIR), np.random.default_rng(0).integers(0, 3, R)
    q, other = sweeping(PAIR, 3), sweeping(PAIR, 1)
    repeated = whole(jax.tree.map(lambda a: jnp.repeat(a, counts, axis=0), ROWS))
    weighted = Batch(ROWS, jnp.array(counts, float), R)
    hole = jax.tree.map(lambda a: jnp.where((counts > 0).reshape(-1, *[1] * (a.ndim - 1)), a, jnp.nan), ROWS)
    bare = made.e_step(q, repeated)
    assert_holds(
        {
            **scores_of(made.e_step(q, weighted), bare, 1e-10, "weights"),
            **scores_of(made.e_step(q, weighted._replace(data=hole)), bare, 1e-10, "holes"),
            **scores_of(accumulate(made.e_step, q, ROWS, jnp.array(counts, float), 4), bare, 1e-10, "chunks"),
            **scores_of(made.e_step(other, weighted).statistics, bare.statistics, 1e-10, "λ"),
            **scores_of(
                made.e_step(q, whole(Data(TARGET, given=INPUTS).arrays())), made.e_step(q, whole(ROWS)), 1e-12, "Data"
            ),
        }
    )


def regression_draws(made: Conjugate, q: RegressionPosterior, n: int = 50_000) -> Scores:
    theta, mean = made.sample(jax.random.key(4), q, n), made.mean(q)
    root = np.linalg.cholesky(np.asarray(q.covariance))
    white = np.linalg.solve(root, (np.asarray(theta.weights) - np.asarray(mean.weights)).T)
    scores = {
        "weights": z_mean(white, 0, 1),
        "spread": z_mean(white**2, 1, 2),
        "correlation": z_mean(white[0] * white[1], 0, 1),
    }
    for name, a, b in (("noise", q.shape, q.rate), ("weight", q.precision_shape, q.precision_rate)):
        draws, wanted = np.asarray(getattr(theta, f"{name}_precision")), float(getattr(mean, f"{name}_precision"))
        scores[f"{name} precision"] = z_mean(draws, wanted, float(a) / float(b) ** 2)
    for x, y in ((np.array([0.5, 1.0, -1.0]), 0.3), (np.array([6.0, -4.0, 5.0]), 9.0)):
        density = stats.norm.pdf(y, np.asarray(theta.weights) @ x, np.asarray(theta.noise_precision) ** -0.5)
        wanted = float(jnp.exp(made.predictive_log_prob(q, (jnp.array([y]), jnp.array([x])))[0]))
        scores[f"density at {y}"] = abs(density.mean() - wanted) / (density.std() / np.sqrt(n)) / Z
    return scores


def test_regression_draws():
    made, q = regression(PAIR), sweeping(PAIR, 50)
    assert_holds(regression_draws(made, q), 50_000)
    without = replace(
        made,
        predictive_log_prob=lambda q, rows: made.predictive_log_prob(q._replace(covariance=0 * q.covariance), rows),
    )
    assert broken(regression_draws(without, q))
    swapped = replace(made, sample=lambda key, q, n: made.sample(key, q._replace(rate=1 / q.rate), n))
    assert broken(regression_draws(swapped, q))


@pytest.mark.test
def test_single_precision_regression():
    wanted, q = sweeping(PAIR, 400), jax.tree.map(lambda a: a.astype(jnp.float32), sweeping(PAIR, 1))
    made, rows = regression(PAIR), jax.tree.map(lambda a: a.astype(jnp.float32), ROWS)
    found, _ = climb(made, q, whole(rows), 2)
    assert found.mean.dtype == jnp.float32
    assert_holds(scores_of(found, wanted, 1e-4))


# Settings.


@pytest.mark.quick
def test_same_arguments_same_functions():
    """So that a second fit finds its compilation."""
    assert bayesian_gaussian_mixture(3, 2, mean_prior=[0.0, 1]) is bayesian_gaussian_mixture(
        3, 2, mean_prior=np.array([0.0, 1.0]), weight_concentration=1 / 3, covariance_prior=np.eye(2)
    )
    assert linear_regression_unknown_noise(2, (1, 2)) is linear_regression_unknown_noise(2, (1.0, 2.0))
    assert normal_gamma(strength=2) is normal_gamma(0.0, 2.0)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bayesian_gaussian_mixture(0, 2), "components is a whole number, 1 or more; got 0"),
        (lambda: bayesian_gaussian_mixture(2, 2, "diag"), "'full', 'tied', 'diagonal' or 'spherical'; got 'diag'"),
        (lambda: bayesian_gaussian_mixture(2, 2, weight_concentration=0), "weight_concentration must be positive"),
        (lambda: bayesian_gaussian_mixture(2, 2, mean_precision=-1.0), "mean_precision must be positive"),
        (lambda: bayesian_gaussian_mixture(2, 3, degrees_of_freedom=2), "degrees_of_freedom is above 2 and finite"),
        (lambda: bayesian_gaussian_mixture(2, 3, "diagonal", degrees_of_freedom=0), "degrees_of_freedom is above 0"),
        (lambda: bayesian_gaussian_mixture(2, 2, floor=-1.0), "floor is a variance"),
        (lambda: bayesian_gaussian_mixture(2, 2, mean_prior=[1.0]), "mean_prior expects 2 finite numbers"),
        (lambda: bayesian_gaussian_mixture(2, 2, centre=[1.0, np.inf]), "centre expects 2 finite numbers"),
        (lambda: bayesian_gaussian_mixture(2, 2, covariance_prior=[1.0, 2.0]), r"finite, of shape \(2, 2\)"),
        (lambda: bayesian_gaussian_mixture(2, 2, covariance_prior=-np.eye(2)), "symmetric and positive definite"),
        (
            lambda: bayesian_gaussian_mixture(2, 2, "spherical", covariance_prior=0.0),
            "covariance_prior needs to be pos",
        ),
        (lambda: linear_regression_unknown_noise(0), "features is a whole number"),
        (lambda: linear_regression_unknown_noise(2, 0.0), "prior_precision must be positive"),
        (lambda: linear_regression_unknown_noise(2, (1.0, 0.0)), "prior_precision's rate must be positive"),
        (lambda: normal_gamma(strength=0.0), "strength must be positive"),
        (lambda: normal_gamma(mean=float("nan")), "mean must be finite"),
    ],
)
def test_settings(make, sentence):
    with pytest.raises(ModelError, match=sentence):
        make()


@pytest.mark.test
def test_rows_of_another_shape():
    mixture, line, small = bayesian_gaussian_mixture(K, D), regression(ALPHA), normal_gamma()
    with pytest.raises(DataError, match=r"rows of 2 numbers.*got shape \(60, 1\)"):
        mixture.e_step(mixture.prior, whole(jnp.array(X[:, :1])))
    with pytest.raises(DataError, match=r"\(y, x\) of shapes \(n,\) and \(n, 3\)"):
        line.e_step(line.prior, whole((ROWS[0], ROWS[1][:, :2])))
    with pytest.raises(DataError, match="one number a row"):
        small.e_step(small.prior, whole(jnp.array(X)))
    assert vm.normals(mixture.prior).means.shape == (K, D) and vr.SWEEPS > 1
