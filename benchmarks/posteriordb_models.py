"""The posteriors of posteriordb as models, in the parameters of their reference draws.

``load(name, folder)`` reads ``folder/data.json`` and returns a Problem: the model, its data, and the function from the
model's parameters to the numbers that the reference lists. If the likelihood is a product over rows, the model is a
``Model`` with data, so that minibatch methods apply too; otherwise it is a log density."""

import json
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints

import tractable as tr

PyTree = Any


def all_numbers(params: PyTree) -> jax.Array:
    return ravel_pytree(params)[0]


class Problem(NamedTuple):
    """A model, its data, and the function from its parameters to the reference's numbers."""

    model: tr.Model
    data: tr.Data | None
    reference: Callable[[PyTree], jax.Array] = (
        all_numbers  # parameters -> the numbers in the order of the reference's names
    )
    nuts: Mapping[str, Any] = MappingProxyType({})  # settings of NUTS that this posterior needs

    def values(self, draws: PyTree) -> np.ndarray:
        """(chain, draw, k) the reference's numbers for draws of the parameters."""
        return np.asarray(jax.jit(jax.vmap(jax.vmap(self.reference)))(jax.tree.map(jnp.asarray, draws)))


class Reference(NamedTuple):
    """The result of a long run; see the data's README."""

    names: list[str]
    draws: np.ndarray  # (1000, k), every tenth draw, chain after chain
    mean: np.ndarray
    sd: np.ndarray
    mcse_mean: np.ndarray
    mcse_sd: np.ndarray
    rhat: np.ndarray


def read_reference(folder: pathlib.Path) -> Reference:
    """The reference of one posterior."""
    with np.load(folder / "reference.npz") as file:
        found = {name: file[name] for name in file.files}
    draws, mean, sd = found["draws"].astype(np.float64), found["mean"], found["std"]
    # The standard error sd/√(2 ESS) of an sd holds for normal tails; for heavier tails it uses the kurtosis instead
    # of 3. The effective sample size of squares can be lower than that of the mean, on both sides, but only the latter
    # is known.
    kurtosis = np.maximum(3.0, np.mean(((draws - mean) / sd) ** 4, axis=0))
    return Reference(
        [str(name) for name in found["names"]], draws, mean, sd, found["mcse_mean"],
        sd * np.sqrt((kurtosis - 1) / (4 * found["ess"])), found["rhat"],
    )  # fmt: skip


def load(name: str, folder: pathlib.Path) -> Problem:
    """The problem of that name; ``folder`` is its folder of posteriordb."""
    raw = json.loads((folder / "data.json").read_text())
    numbers = {key: np.asarray(value, np.float64) for key, value in raw.items()}
    return MODELS[name][1](numbers)


def flat(params: PyTree) -> jax.Array:
    """An improper constant prior."""
    return jnp.zeros(())


def regression(
    x: np.ndarray,
    y: np.ndarray,
    prior: Callable[[PyTree], jax.Array] = flat,
    nuts: dict[str, Any] | None = None,
) -> Problem:
    """y ~ N(xᵀβ, σ), with starts near least squares; the numbers are β, σ."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    beta, *_ = np.linalg.lstsq(x, y, rcond=None)
    sigma = float(np.std(y - x @ beta))
    model = tr.Model(
        prior,
        lambda params, x: dist.Normal(jnp.dot(x, params["beta"]), params["sigma"]),
        {"beta": beta, "sigma": sigma},
        {"beta": constraints.real, "sigma": constraints.positive},
    )
    return Problem(model, tr.Data(y, x), lambda p: jnp.append(p["beta"], p["sigma"]), nuts or {})


def with_ones(*columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(columns[0])), *columns])


def ark(d: dict) -> Problem:
    lags = int(d["K"])
    y = d["y"]
    x = np.stack([y[lags - k - 1 : len(y) - k - 1] for k in range(lags)], 1)
    model = tr.Model(
        {"alpha": dist.Normal(0.0, 10.0), "beta": dist.Normal(jnp.zeros(lags), 10.0), "sigma": dist.HalfCauchy(2.5)},
        lambda params, x: dist.Normal(params["alpha"] + jnp.dot(x, params["beta"]), params["sigma"]),
    )
    return Problem(
        model, tr.Data(y[lags:], x), lambda p: jnp.concatenate([p["alpha"][None], p["beta"], p["sigma"][None]])
    )


def earnings(d: dict) -> Problem:
    return regression(with_ones(d["height"]), np.log(d["earn"]), nuts={"dense": True})


def eight_schools_centred(d: dict) -> Problem:
    count = int(d["J"])

    def prior(p: PyTree) -> jax.Array:
        return (
            dist.Normal(0.0, 5.0).log_prob(p["mu"])
            + dist.HalfCauchy(5.0).log_prob(p["tau"])
            + dist.Normal(p["mu"], p["tau"]).log_prob(p["theta"]).sum()
        )

    model = tr.Model(
        prior,
        lambda params, x: dist.Normal(params["theta"][x["school"]], x["sigma"]),
        {"theta": np.zeros(count), "mu": 0.0, "tau": 3.0},
        {"theta": constraints.real, "mu": constraints.real, "tau": constraints.positive},
    )
    data = tr.Data(d["y"], {"school": np.arange(count), "sigma": d["sigma"]})
    return Problem(
        model, data, lambda p: jnp.concatenate([p["theta"], p["mu"][None], p["tau"][None]]), {"target": 0.99}
    )


def eight_schools_non_centred(d: dict) -> Problem:
    count = int(d["J"])
    model = tr.Model(
        {"z": dist.Normal(jnp.zeros(count), 1.0), "mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0)},
        lambda params, x: dist.Normal(params["mu"] + params["tau"] * params["z"][x["school"]], x["sigma"]),
    )
    data = tr.Data(d["y"], {"school": np.arange(count), "sigma": d["sigma"]})
    return Problem(
        model, data,
        lambda p: jnp.concatenate([p["mu"] + p["tau"] * p["z"], p["mu"][None], p["tau"][None]]), {"target": 0.95},
    )  # fmt: skip


def garch(d: dict) -> Problem:
    """beta1 in (0, 1 − alpha1) is (1 − alpha1) times a share in (0, 1); log(1 − alpha1) is that map's Jacobian."""
    y, first = jnp.asarray(d["y"]), float(d["sigma1"])

    def log_density(p: PyTree) -> jax.Array:
        beta1 = (1 - p["alpha1"]) * p["share"]

        def step(variance: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
            variance = p["alpha0"] + p["alpha1"] * (before - p["mu"]) ** 2 + beta1 * variance
            return variance, variance

        start = jnp.full((), first**2, y.dtype)
        variances = jnp.append(start, jax.lax.scan(step, start, y[:-1])[1])
        return dist.Normal(p["mu"], jnp.sqrt(variances)).log_prob(y).sum() + jnp.log1p(-p["alpha1"])

    model = tr.Model.from_log_density(
        log_density,
        {"mu": float(y.mean()), "alpha0": 1.0, "alpha1": 0.5, "share": 0.5},
        {
            "mu": constraints.real, "alpha0": constraints.positive, "alpha1": constraints.unit_interval,
            "share": constraints.unit_interval,
        },
    )  # fmt: skip
    return Problem(
        model, None, lambda p: jnp.stack([p["mu"], p["alpha0"], p["alpha1"], (1 - p["alpha1"]) * p["share"]])
    )


def gp_regr(d: dict) -> Problem:
    x, y = jnp.asarray(d["x"]), jnp.asarray(d["y"])
    distances = jnp.square(x[:, None] - x[None, :])

    def log_density(p: PyTree) -> jax.Array:
        kernel = p["alpha"] ** 2 * jnp.exp(-distances / (2 * p["rho"] ** 2)) + p["sigma"] * jnp.eye(len(x))
        prior = (
            dist.Gamma(25.0, 4.0).log_prob(p["rho"])
            + dist.HalfNormal(2.0).log_prob(p["alpha"])
            + dist.HalfNormal(1.0).log_prob(p["sigma"])
        )
        root = jnp.linalg.cholesky(kernel)
        white = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        return prior - 0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(root)))

    model = tr.Model.from_log_density(
        log_density,
        {"rho": 6.0, "alpha": 2.0, "sigma": 1.0},
        dict.fromkeys(("rho", "alpha", "sigma"), constraints.positive),
    )
    return Problem(model, None, lambda p: jnp.stack([p["rho"], p["alpha"], p["sigma"]]))


def hmm(d: dict) -> Problem:
    """The forward recursion, the first state with weight 1 for both; stay1 = P(1 | 1), leave2 = P(1 | 2)."""
    y = jnp.asarray(d["y"])

    def log_density(p: PyTree) -> jax.Array:
        rows = jnp.stack([p["stay1"], 1 - p["stay1"], p["leave2"], 1 - p["leave2"]]).reshape(2, 2)
        emissions = dist.Normal(p["mu"], 1.0).log_prob(y[:, None])  # (T, 2)

        def step(forward: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.logsumexp(forward[:, None] + jnp.log(rows), axis=0) + emission, None

        forward = jax.lax.scan(step, emissions[0], emissions[1:])[0]
        return jax.nn.logsumexp(forward) + dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(p["mu"]).sum()

    model = tr.Model.from_log_density(
        log_density,
        {"stay1": 0.6, "leave2": 0.1, "mu": np.array([3.0, 9.0])},
        {
            "stay1": constraints.unit_interval, "leave2": constraints.unit_interval,
            "mu": constraints.positive_ordered_vector,
        },
    )  # fmt: skip
    return Problem(
        model, None,
        lambda p: jnp.stack([p["stay1"], 1 - p["stay1"], p["leave2"], 1 - p["leave2"], p["mu"][0], p["mu"][1]]),
    )  # fmt: skip


def kidiq(d: dict) -> Problem:
    def prior(p: PyTree) -> jax.Array:
        return dist.HalfCauchy(2.5).log_prob(p["sigma"])

    return regression(with_ones(d["mom_hs"], d["mom_iq"]), d["kid_score"], prior, {"dense": True})


def kilpisjarvi(d: dict) -> Problem:
    means = jnp.stack([d["pmualpha"], d["pmubeta"]])
    sds = jnp.stack([d["psalpha"], d["psbeta"]])

    def prior(p: PyTree) -> jax.Array:
        return dist.Normal(means, sds).log_prob(p["beta"]).sum()

    return regression(with_ones(d["x"]), d["y"], prior, {"dense": True})


def gauss_mix(d: dict) -> Problem:
    def prior(p: PyTree) -> jax.Array:
        return (
            dist.Normal(0.0, 2.0).log_prob(p["mu"]).sum()
            + dist.HalfNormal(2.0).log_prob(p["sigma"]).sum()
            + dist.Beta(5.0, 5.0).log_prob(p["theta"])
        )

    def likelihood(p: PyTree) -> dist.Distribution:
        weights = dist.Categorical(probs=jnp.stack([p["theta"], 1 - p["theta"]]))
        return dist.MixtureSameFamily(weights, dist.Normal(p["mu"], p["sigma"]))

    model = tr.Model(
        prior, likelihood, {"mu": np.array([-1.0, 1.0]), "sigma": np.ones(2), "theta": 0.5},
        {"mu": constraints.ordered_vector, "sigma": constraints.positive, "theta": constraints.unit_interval},
    )  # fmt: skip
    return Problem(model, tr.Data(d["y"]), lambda p: jnp.concatenate([p["mu"], p["sigma"], p["theta"][None]]))


def mesquite(d: dict) -> Problem:
    logs = [np.log(d[name]) for name in ("diam1", "diam2", "canopy_height", "total_height", "density")]
    return regression(with_ones(*logs, d["group"]), np.log(d["weight"]))


def nes(d: dict) -> Problem:
    ages = [(d["age_discrete"] == level).astype(float) for level in (2, 3, 4)]
    x = with_ones(d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"])
    return regression(x, d["partyid7"])


def sblri(d: dict) -> Problem:
    def prior(p: PyTree) -> jax.Array:
        return dist.Normal(0.0, 10.0).log_prob(p["beta"]).sum() + dist.HalfNormal(10.0).log_prob(p["sigma"])

    return regression(d["X"], d["y"], prior, {"dense": True})


def radon(d: dict) -> Problem:
    counties = int(d["J"])
    model = tr.Model(
        {
            "z": dist.Normal(jnp.zeros(counties), 1.0),
            "beta": dist.Normal(jnp.zeros(2), 10.0),
            "mu_alpha": dist.Normal(0.0, 10.0),
            "sigma_alpha": dist.HalfNormal(1.0),
            "sigma_y": dist.HalfNormal(1.0),
        },
        lambda p, x: dist.Normal(
            p["mu_alpha"] + p["sigma_alpha"] * p["z"][x["county"]] + jnp.dot(x["inputs"], p["beta"]), p["sigma_y"]
        ),
    )
    given = {
        "county": d["county_idx"].astype(np.int32) - 1, "inputs": np.column_stack([d["log_uppm"], d["floor_measure"]])
    }  # fmt: skip

    def reference(p: PyTree) -> jax.Array:
        rest = jnp.stack([p["mu_alpha"], p["sigma_alpha"], p["sigma_y"]])
        return jnp.concatenate([p["mu_alpha"] + p["sigma_alpha"] * p["z"], p["beta"], rest])

    return Problem(model, tr.Data(d["log_radon"], given), reference)


def wells(d: dict) -> Problem:
    far, arsenic, educ = (
        (d[name] - d[name].mean()) / unit for name, unit in (("dist", 100), ("arsenic", 1), ("educ", 4))
    )
    x = with_ones(far, arsenic, educ, far * arsenic, far * educ, arsenic * educ)
    model = tr.Model(
        flat,
        lambda p, x: dist.Bernoulli(logits=jnp.dot(x, p["beta"])),
        {"beta": np.zeros(7)},
        {"beta": constraints.real},
    )
    return Problem(model, tr.Data(d["switched"].astype(np.int32), x), lambda p: p["beta"])


MODELS: dict[str, tuple[str, Callable[[dict], Problem]]] = {  # name -> (folder, model)
    "arK": ("arK-arK", ark),
    "earnings": ("earnings-logearn_height", earnings),
    "eight_schools_centred": ("eight_schools", eight_schools_centred),
    "eight_schools_non_centred": ("eight_schools", eight_schools_non_centred),
    "garch": ("garch-garch11", garch),
    "gp_regr": ("gp_pois_regr-gp_regr", gp_regr),
    "hmm_example": ("hmm_example-hmm_example", hmm),
    "kidiq": ("kidiq-kidscore_momhsiq", kidiq),
    "kilpisjarvi": ("kilpisjarvi_mod-kilpisjarvi", kilpisjarvi),
    "low_dim_gauss_mix": ("low_dim_gauss_mix-low_dim_gauss_mix", gauss_mix),
    "mesquite": ("mesquite-logmesquite", mesquite),
    "nes": ("nes1972-nes", nes),
    "radon": ("own_radon_mn_hierarchical", radon),
    "sblri": ("sblri-blr", sblri),
    "wells": ("own_wells_logistic", wells),
}
