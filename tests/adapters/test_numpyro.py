"""NumPyro programs, split and whole, against NumPyro's own densities."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro import handlers
from numpyro.infer import log_likelihood
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density as theirs

import tractable as tr
from tractable.adapters.numpyro import from_numpyro, split_numpyro
from tractable.adapters.plates import KINDS, Row, row_of
from tractable.core.batches import Batch
from tractable.core.errors import ModelError, TractableWarning
from tractable.core.latent import LatentModel
from tractable.core.model import log_density, log_posterior
from tractable.posterior import pointwise

pytestmark = pytest.mark.laws

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -1.0] + 0.3 * RNG.normal(size=N)
COUNTS, GROUP = RNG.poisson(1.0, N), RNG.integers(0, 3, N)
SD = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])


def weights():
    return numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))


def regression(x, y=None, batch=None):
    w, noise = weights(), numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.deterministic("ratio", w[0] / noise)
    numpyro.deterministic("mean", x @ w)
    with numpyro.plate("rows", len(x), subsample_size=batch) as rows:
        inputs = numpyro.subsample(x, event_dim=1)
        numpyro.sample("y", dist.Normal(inputs @ w, noise), obs=y[rows])


def schools(sd, y=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", len(sd)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sd), obs=y)


def grouped(data):
    tau, scale = numpyro.sample("tau", dist.HalfCauchy(5.0)), numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(0.0, tau))
    numpyro.sample("measured", dist.Normal(scale, 1.0), obs=0.5)  # of no row
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.StudentT(4.0, effect[data["group"]], scale), obs=data["y"])


def both(x, y, counts):
    w = weights()
    with numpyro.plate("rows", len(x)), handlers.scale(scale=0.5):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        numpyro.sample("counts", dist.Poisson(jnp.exp(x @ w)), obs=counts)


def table(y):  # rows of two plates: rows are the larger one's
    with numpyro.plate("columns", 2, dim=-1):
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", N, dim=-2), numpyro.plate("columns", 2, dim=-1):
        numpyro.sample("y", dist.Laplace(centre, 1.0).mask(y > -1.0), obs=y)


def pairs(y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.Normal(shares, 1.0).to_event(1), obs=y)
    numpyro.factor("preferred", -(shares[0] ** 2))


PROGRAMS = {
    "regression": (regression, (X, Y, 5), regression, (X, Y)),
    "hierarchical": (schools, (SD, EFFECTS), None, None),
    "reparam": (handlers.reparam(schools, config={"theta": LocScaleReparam(0)}), (SD, EFFECTS), None, None),
    "groups": (grouped, ({"group": GROUP, "y": Y},), None, None),
    "two sites, scaled": (both, (X, Y, COUNTS), None, None),
    "two plates, masked": (table, (X,), None, None),
    "vectors and a factor": (pairs, (X,), None, None),
}
DRAWN = {"regression", "reparam", "two sites, scaled", "two plates, masked"}  # of independent priors


@pytest.fixture(scope="module")
def split():
    found = {}

    def of(name):
        if name not in found:
            found[name] = split_numpyro(*itertools.chain([PROGRAMS[name][0]], PROGRAMS[name][1]))
        return found[name]

    return of


def drawn(program, args, seed):
    trace = handlers.trace(handlers.seed(program, seed)).get_trace(*args)
    return {name: site["value"] for name, site in trace.items() if site["type"] == "sample" and not site["is_observed"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_split_and_whole_are_numpyros(name, split):
    program, args, plain, plain_args = PROGRAMS[name]
    model, data = split(name)
    plain, plain_args = plain or program, plain_args or args
    params = drawn(plain, plain_args, 3)
    want = float(theirs(plain, plain_args, {}, params)[0])
    by_rows = jax.jit(log_density(model, data.arrays(), jacobian=False))(model.unconstrain(params))
    assert float(by_rows) == pytest.approx(want, rel=1e-10)
    assert isinstance(model.prior, dict) == (name in DRAWN)
    assert data.size == len(jax.tree.leaves(args)[0])
    whole = from_numpyro(program, *args)
    assert whole.likelihood is None
    assert float(jax.jit(whole.log_prior)(params)) == pytest.approx(want, rel=1e-10)


def test_rows_alone_are_numpyros(split):
    """log p(y_n | θ), and draws of a prior whose sites are not independent."""
    model, data = split("hierarchical")
    params = pointwise.prior_draws(model, 400, 1)
    ours = pointwise.log_likelihoods(model, params, data)
    want = log_likelihood(schools, {k: jnp.asarray(v) for k, v in params.items()}, SD, EFFECTS)["y"]
    np.testing.assert_allclose(ours, want, rtol=1e-10)
    spread = (params["theta"][:, 0] - params["mu"]) / params["tau"]
    assert scipy.stats.kstest(spread, "norm").pvalue > 1e-4
    assert scipy.stats.kstest(params["tau"] / 5, "halfcauchy").pvalue > 1e-4


def test_batches_are_unbiased(split):
    """N/n of a batch, over all batches, is the whole."""
    model, data = split("two sites, scaled")
    position = model.position_of(drawn(both, (X, Y, COUNTS), 1))
    of, rows = log_posterior(model, flat=True), jax.tree.map(lambda a: jnp.asarray(a)[:, None], data.rows)
    counts = jnp.asarray(data.weights)[:, None]
    parts = jax.jit(jax.vmap(lambda row, count: of(position, Batch(row, count, N, rows=1))))(rows, counts)
    whole = jax.jit(log_density(model, data.arrays(), flat=True))(position)
    assert np.mean(parts) == pytest.approx(float(whole), rel=1e-10)


def test_what_is_known_of_linear_models_serves_a_program():
    """Ridge regression has a posterior in closed form, which Laplace and INLA's structure give."""

    def ridge(x, y=None):
        w = weights()
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    model, data = split_numpyro(ridge, X, Y)
    assert model.through is not None
    precision = X.T @ X / 0.25 + np.eye(2) / 4
    centre, covariance = np.linalg.solve(precision, X.T @ Y / 0.25), np.linalg.inv(precision)
    posterior = tr.infer(model, data, tr.INLA(draws=1000), verify=None)
    off = (posterior.values[0].mean(0) - centre) / np.sqrt(np.diag(covariance))
    assert np.all(np.abs(off) < 4.5 / np.sqrt(1000))
    new = np.array([[1.0, 2.0]])
    told = posterior.predict(new)
    assert abs(told.mean[0] - new[0] @ centre) < 4.5 * np.sqrt(new[0] @ covariance @ new[0] / 1000)
    assert told.aleatoric[0] == pytest.approx(0.5)
    assert posterior.loo().khat < 0.7


def test_deterministic_sites_are_told(split):
    model, data = split("regression")
    posterior = tr.infer(model, data, tr.INLA(draws=200), verify=None)
    found = posterior.derived()
    draws = posterior.draws
    np.testing.assert_allclose(found["ratio"], draws["w"][..., 0] / draws["noise"], rtol=1e-10)
    np.testing.assert_allclose(found["mean"], draws["w"] @ X.T, rtol=1e-10)
    table = posterior.summary()
    assert list(table.index) == [*posterior.names, *(f"mean[{i}]" for i in range(N)), "ratio"]
    assert table.loc["ratio", "mean"] == pytest.approx(found["ratio"].mean())
    assert table.loc["ratio", "5%"] == pytest.approx(np.quantile(found["ratio"], 0.05))
    assert len(posterior.summary(derived=False)) == len(posterior.names)
    tree = posterior.to_arviz(groups=["posterior"], draws=20)
    np.testing.assert_array_equal(tree.posterior["ratio"], posterior.derived(draws=20)["ratio"])
    from tractable.pages.parameters import numbers

    assert "ratio" in [row[0].value for row in numbers(posterior).parts[0].rows]


def chained(y):  # the second site looks at the first
    w = numpyro.sample("w", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(w))
        u = numpyro.sample("u", dist.Categorical(logits=jnp.log(jnp.where(z[:, None] == 1, w, 0.3)) * jnp.arange(3)))
        numpyro.sample("y", dist.Normal(z - u * w, 0.7), obs=y)


def shared_switch(y):
    z = numpyro.sample("z", dist.Bernoulli(0.3))
    m = numpyro.sample("m", dist.Normal(z, 1.0))
    numpyro.deterministic("shifted", m + z)
    numpyro.deterministic("twice", 2 * m)
    numpyro.sample("y", dist.Normal(m + z, 1.0), obs=y)


def test_discrete_sites_are_summed_out():
    model, data = split_numpyro(chained, Y)
    assert isinstance(model, LatentModel)
    tr.EM().needed(model)
    joint = np.zeros((N, 2, 3))
    w = 0.4
    for z, u in itertools.product(range(2), range(3)):
        of_u = (w if z else 0.3) ** np.arange(3)
        joint[:, z, u] = (w if z else 1 - w) * of_u[u] / of_u.sum() * scipy.stats.norm.pdf(Y, z - u * w, 0.7)
    marginal = joint.sum((1, 2))
    np.testing.assert_allclose(jax.jit(model.log_likelihoods)({"w": w}, data.rows), np.log(marginal), rtol=1e-10)
    shares = jax.jit(model.responsibilities)({"w": w}, data.y)
    np.testing.assert_allclose(shares, joint.reshape(N, 6) / marginal[:, None], rtol=1e-8)
    whole = float(jax.jit(from_numpyro(chained, Y).log_prior)({"w": w}))
    assert whole == pytest.approx(np.log(marginal).sum() + scipy.stats.beta.logpdf(w, 2, 2), rel=1e-10)


def test_a_discrete_site_of_all_rows_is_summed_out_of_the_whole():
    model, data = split_numpyro(shared_switch, Y)
    assert data is None
    m = 0.2
    each = [
        np.log(p) + scipy.stats.norm.logpdf(m, z) + scipy.stats.norm.logpdf(Y, m + z).sum()
        for z, p in enumerate([0.7, 0.3])
    ]
    assert float(model.log_prior({"m": m})) == pytest.approx(np.logaddexp(*each), rel=1e-10)
    assert list(model.derived({"m": m})) == ["twice"]  # the other has no value without z
    with pytest.raises(ModelError, match="'z' is shared by all rows"):
        tr.infer(model, None, tr.SGLD(batch_size=3))


def series(y):
    slope = numpyro.sample("slope", dist.Uniform(-1.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * y[:-1], 1.0), obs=y[1:])


def standardised(x, y):
    w = weights()
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal((x - x.mean(0)) @ w, 1.0), obs=y)


def indexed(size):
    w = weights()
    with numpyro.plate("rows", size, subsample_size=3) as rows:
        numpyro.sample("y", dist.Normal(jnp.asarray(X)[rows] @ w, 1.0), obs=jnp.asarray(Y)[rows])


def test_a_wrong_guess_is_not_given():
    model, data = split_numpyro(series, Y)
    assert data is None
    assert float(model.log_prior({"slope": 0.3})) == pytest.approx(float(theirs(series, (Y,), {}, {"slope": 0.3})[0]))
    with pytest.raises(ModelError, match=r"minibatches of rows.* depend on 'y'"):
        tr.infer(model, None, tr.SGLD(batch_size=3))
    with pytest.warns(TractableWarning, match=r"its log densities differ.* runs it on all 12 rows"):
        model, data = split_numpyro(standardised, X, Y)
    assert list(data.given) == ["rows"]
    params = drawn(standardised, (X, Y), 1)
    want = scipy.stats.norm.logpdf(Y, (X - X.mean(0)) @ params["w"])
    np.testing.assert_allclose(model.log_likelihoods(params, data.rows), want, rtol=1e-10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, data = split_numpyro(indexed, N)  # by the plate's index: no run of the whole
    want = scipy.stats.norm.logpdf(Y, X @ params["w"])
    np.testing.assert_allclose(model.log_likelihoods(params, data.rows), want, rtol=1e-10)


def test_a_row_that_was_not_learnt_from_has_no_effect_of_its_own(split):
    model, _ = split("hierarchical")
    params = {"mu": jnp.asarray(0.0), "tau": jnp.asarray(1.0), "theta": jnp.arange(8.0)}
    rows = {"sd": jnp.full(2, 2.0), "school": jnp.array([3, 8])}
    means = jax.vmap(lambda row: model.datum(params, row).mean)(rows)
    assert means[0] == 3 and np.isnan(means[1])


def made(kind):
    """A distribution of five unlike rows, and data from it."""
    arguments = {}
    for number, (name, constraint) in enumerate(kind.arg_constraints.items()):
        if name == "cutpoints":
            arguments[name] = jnp.array([-1.0, 0.5])
        elif name == "total_count":
            arguments[name] = jnp.arange(3, 8)
        elif name in ("low", "high"):  # bounds, the upper one far above
            arguments[name] = 0.5 + 0.1 * np.arange(5) + 9 * (name == "high")
            arguments[name] = arguments[name].astype(int) if kind is dist.DiscreteUniform else arguments[name]
        else:
            shape = (5, 3) if constraint.event_dim else (5,)
            transform = dist.biject_to(constraint)
            size = transform.inverse_shape(shape)
            arguments[name] = transform(0.3 * jnp.asarray(np.random.default_rng(number).normal(size=size)))
    fn = kind(**arguments)
    return fn, fn.sample(jax.random.key(1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_rows_of_plain_distributions(kind):
    fn, y = made(kind)
    assert not isinstance(row_of(fn, -1, 0), Row)
    told = jax.vmap(lambda row, value: row_of(fn, -1, row).log_prob(value))(jnp.arange(5), y)
    np.testing.assert_allclose(told, fn.log_prob(y), rtol=1e-9)


def masked(x, kept, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)), handlers.mask(mask=kept):
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def test_masked_rows_are_left_out_without_effect():
    """A row that is masked says nothing of θ: no tail of weights to smooth, and nothing to lose."""
    y, kept = X[:, 0] + RNG.normal(size=N), np.arange(N) % 4 > 0
    model, data = split_numpyro(masked, X[:, 0], kept, y)
    posterior = tr.infer(model, data, tr.Laplace(), verify=None)
    found, alone = (
        posterior.loo(),
        tr.infer(*split_numpyro(masked, X[kept, 0], kept[kept], y[kept]), tr.Laplace(), verify=None),
    )
    np.testing.assert_array_equal(found.khats == -np.inf, ~kept)
    np.testing.assert_allclose(found.pointwise[~kept], 0, atol=1e-12)
    np.testing.assert_allclose(found.elpd, alone.loo().elpd, atol=1e-6)


def survival(time, ended):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", len(time)):
        numpyro.factor("seen", jnp.where(ended, jnp.log(rate), 0.0) - rate * time)


def test_a_factor_has_no_data_to_replicate():
    time, ended = RNG.exponential(1.0, N), RNG.random(N) < 0.7
    posterior = tr.infer(*split_numpyro(survival, time, ended), tr.Laplace(), verify=None)
    with pytest.raises(ModelError, match="no data can be simulated"):
        posterior.posterior_predictive()
    told = posterior.to_arviz(draws=20, kind="datatree")
    assert "posterior" in told.children and "posterior_predictive" not in told.children
    rate = posterior.draws["rate"]
    np.testing.assert_allclose(
        posterior.log_likelihood().sum(-1), ended.sum() * np.log(rate) - rate * time.sum(), rtol=1e-5
    )


def votes(totals, y):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", len(totals)):
        numpyro.sample("y", dist.Multinomial(totals, shares, total_count_max=9), obs=y)


def test_totals_of_rows_are_inputs():
    """NumPyro keeps a total beside the leaves of a distribution."""
    totals = RNG.integers(3, 9, N)
    y = np.stack([RNG.multinomial(n, [0.2, 0.3, 0.5]) for n in totals])
    with warnings.catch_warnings():
        warnings.simplefilter("error", TractableWarning)
        _, data = split_numpyro(votes, totals, y)
    np.testing.assert_array_equal(data.given, totals)


def nothing():
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=1.0)


def moving():
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("u", dist.Uniform(0.0, s))


def endless(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(numpyro.sample("z", dist.Poisson(rate)), 1.0), obs=y)


def between(y):  # an effect of each row's own, given its z
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(numpyro.sample("effect", dist.Normal(m + z, 1.0)), 1.0), obs=y)


def many(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5).expand([10]))
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)) + z.sum(), 1.0), obs=y)


@pytest.mark.test
@pytest.mark.parametrize(
    ("program", "args", "sentence"),
    [
        (nothing, (), "no latent site"),
        (moving, (), "support of 'u' depends on 's'"),
        (endless, (Y,), r"'z' is discrete \(Poisson\); expected finitely many"),
        (between, (Y,), r"have 4.1e\+03 joint values"),
        (many, (Y,), "have 1.02e\\+03 joint values; expected at most 512"),
    ],
    ids=["nothing unknown", "moving support", "infinite", "an effect given z", "too many"],
)
def test_what_cannot_be_is_refused(program, args, sentence):
    for door in (split_numpyro, from_numpyro):
        with pytest.raises(ModelError, match=sentence):
            door(program, *args)


def plate_of_n(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def plate_of_latents(x, y=None):
    with numpyro.plate("rows", N):
        numpyro.sample("y", dist.Normal(numpyro.sample("z", dist.Normal(0.0, 1.0)) * x, 1.0), obs=y)


def plate_that_subsamples(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", N, subsample_size=4) as rows:
        numpyro.sample("y", dist.Normal(slope * x[rows], 1.0), obs=y[rows])


@pytest.mark.parametrize("make", [from_numpyro, split_numpyro])
@pytest.mark.parametrize("program", [plate_of_n, plate_of_latents, plate_that_subsamples])
def test_a_plate_of_another_size_than_the_rows_is_named(program, make):
    with pytest.raises(ModelError, match=r"plates have the sizes {'rows': 12}, and .* rows, {'x': 4, 'y': 4}"):
        make(program, X[:4, 0], Y[:4])
    with pytest.raises(ModelError, match=r"other numbers of rows, {'y': 4}"):
        make(program, X[:, 0], Y[:4])


def test_a_programs_own_error_is_not_renamed():
    def program(x):
        numpyro.sample("slope", dist.Normal(0.0, 1.0))
        raise ValueError("of the program's own")

    with pytest.raises(ValueError, match=r"^of the program's own"):
        from_numpyro(program, X)
