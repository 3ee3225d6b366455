"""Are draws of other samplers judged rightly, also if they were made wrong?

NumPyro's NUTS, and nutpie's if it is installed, draw from the built-in examples. ``tr.judge`` judges these draws, and
six sets that were made wrong: half of the draws' range is missing, the warm-up was kept, the Jacobian or the prior was
forgotten, all rows count twice, chains do not mix. If stanli is installed, it draws from three Stan programs and from
programs with two of these faults, and the draws are judged by the same models in Python. A set is right if its means
are within 0.2 sds of those of exact or long chains, and its sds within a factor of 1.25: then the fault changed little.

Predicted: no wrong set is trusted, and no right set of an unchanged density is rejected.

    python benchmarks/judge.py [--only NAME ...] [--quick]
"""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table
from numpyro.infer import MCMC, NUTS

import tractable as tr
from tractable.core.density import log_posterior
from tractable.core.model import whole
from tractable.gallery.models import example

NAMES = ("beta-bernoulli", "normal-mean", "linear-regression", "gaussian-mixture", "breast-cancer", "wine", "diabetes")
CHAINS, DRAWS, WARM_UP = 4, 1000, 1000
Density = Callable[[jax.Array], jax.Array]
Sets = dict[str, dict[str, np.ndarray]]  # for each set's name, draws (chain, draw, …) by parameter

X = np.linspace(-1, 1, 60, dtype=np.float32)
NOISE = np.random.default_rng(4)
SCHOOLS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
LINE = {"a": dist.Normal(0.0, 2.0), "b": dist.Normal(0.0, 2.0)}


class Stan(NamedTuple):
    """A Stan program and the same model in Python."""

    parameters: str
    priors: str
    likelihood: str
    y: np.ndarray
    x: np.ndarray  # of eight schools the standard errors
    model: tr.Model
    scale: str | None = None  # a parameter above 0, if there is a posterior without its Jacobian

    def program(self, likelihood: str, more: str = "") -> str:
        """The program with a likelihood and with more statements."""
        kind = "array[N] int" if self.y.dtype.kind == "i" else "vector[N]"
        rows = f"data {{ int N; {kind} y; vector[N] x; }} parameters {{ {self.parameters} }}"
        return f"{rows} model {{ {self.priors} {likelihood} {more} }}"

    @property
    def data(self) -> tr.Data:
        return tr.Data(self.y, given={"x": self.x, "row": np.arange(len(self.y))})


BY_STAN = {
    "eight-schools": Stan(
        "real a; real<lower=0> tau; vector[N] eta;", "a ~ normal(0, 5); tau ~ cauchy(0, 5); eta ~ std_normal();",
        "y ~ normal(a + tau * eta, x);", *np.array(SCHOOLS, np.float32),
        tr.Model(
            {"a": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "eta": dist.Normal(np.zeros(8, np.float32), 1.0)},
            lambda p, given: dist.Normal(p["a"] + p["tau"] * p["eta"][given["row"]], given["x"]),
        ),
    ),
    "counts": Stan(
        "real a; real b;", "a ~ normal(0, 2); b ~ normal(0, 2);", "y ~ poisson_log(a + b * x);",
        NOISE.poisson(np.exp(0.5 + X)), X,
        tr.Model(LINE, lambda p, given: dist.Poisson(jnp.exp(p["a"] + p["b"] * given["x"]))),
    ),
    "outliers": Stan(
        "real a; real b; real<lower=0> sigma;", "a ~ normal(0, 2); b ~ normal(0, 2); sigma ~ exponential(1);",
        "y ~ student_t(4, a + b * x, sigma);", (1 - X + 0.5 * NOISE.standard_t(4, 60)).astype(np.float32), X,
        tr.Model(
            LINE | {"sigma": dist.Exponential(1.0)},
            lambda p, given: dist.StudentT(4.0, p["a"] + p["b"] * given["x"], p["sigma"]),
        ), "sigma",
    ),
}  # fmt: skip


def densities(model: tr.Model, data: tr.Data | None) -> dict[str, Density]:
    """The log density of unconstrained positions, and three that are wrong."""
    batch = None if data is None else whole(data.arrays())
    right, bare = (functools.partial(log_posterior(model, flat=True, jacobian=j), batch=batch) for j in (True, False))
    prior = functools.partial(log_posterior(model, flat=True), batch=None)
    out: dict[str, Density] = {"right": right}
    if not all(model.unbounded):
        out["no Jacobian"] = bare
    if data is not None:
        out["no prior"] = lambda z: right(z) - prior(z) + 1e-3 * prior(z)  # a flat prior may have no posterior
        out["rows twice"] = lambda z: 2 * right(z) - prior(z)
    return out


def by_numpyro(density: Density, size: int, seed: int, collect: bool = False) -> np.ndarray:
    """(chain, draw, d) positions; with ``collect`` they begin with the warm-up's."""
    mcmc = MCMC(
        NUTS(potential_fn=lambda z: -density(z)), num_warmup=WARM_UP, num_samples=DRAWS, num_chains=CHAINS,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    starts = 2 * jax.random.uniform(jax.random.key(seed + 1), (CHAINS, size)) - 1
    if collect:
        mcmc.warmup(jax.random.key(seed), init_params=20 * starts, collect_warmup=True)
        return np.asarray(mcmc.get_samples(group_by_chain=True))[:, : DRAWS // 10]
    mcmc.run(jax.random.key(seed), init_params=starts)
    return np.asarray(mcmc.get_samples(group_by_chain=True))


def by_nutpie(density: Density, size: int, seed: int) -> np.ndarray:
    """(chain, draw, d) positions."""
    import nutpie

    both = jax.jit(jax.value_and_grad(density))

    def look(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = both(jnp.asarray(z))
        return float(value), np.asarray(slope, np.float64)

    model = nutpie.compiled_pyfunc.from_pyfunc(
        size, lambda: look, lambda *_: lambda z: {"z": np.asarray(z)}, ["float64"], [(size,)], ["z"]
    )
    tree = nutpie.sample(model, draws=DRAWS, tune=400, chains=CHAINS, cores=1, seed=seed, progress_bar=False)
    return tree.posterior["z"].to_numpy()


def by_stanli(stan: Stan) -> Sets:
    """Sets of draws of a Stan program and of programs with a fault."""
    import stanli

    programs = {"right, stanli": stan.program(stan.likelihood)}
    programs["rows twice, stanli"] = stan.program(stan.likelihood, stan.likelihood)
    if stan.scale is not None:
        programs["no Jacobian, stanli"] = stan.program(stan.likelihood, f"target += -log({stan.scale});")
    out, data = {}, {"N": len(stan.y), "y": stan.y.tolist(), "x": stan.x.tolist()}
    for name, program in programs.items():
        fit = stanli.Model(stan_code=program, data=data).sample(
            seed=5, chains=CHAINS, warmup=WARM_UP, samples=DRAWS, refresh=0
        )
        out[name] = {parameter: fit.draws(parameter) for parameter in stan.model.prior}
    return out


def sets_of(model: tr.Model, data: tr.Data | None, nutpie: bool) -> Sets:
    """Sets of draws, by name; those whose name does not begin with "right" have a fault."""
    size, all_densities = model.space.size, densities(model, data)
    out = {name: by_numpyro(density, size, 1) for name, density in all_densities.items()}
    right = out["right"]
    if nutpie:
        out["right, nutpie"] = by_nutpie(all_densities["right"], size, 2)
    first = right[..., 0]
    middle = np.median(first)
    halves = np.where(first > middle, first, 2 * middle - first)
    out["half missing"] = np.concatenate([halves[..., None], right[..., 1:]], -1)
    begin = by_numpyro(all_densities["right"], size, 3, collect=True)
    out["warm-up kept"] = np.concatenate([begin, right[:, : DRAWS - begin.shape[1]]], 1)
    ordered = right.reshape(-1, size)[np.argsort(first.ravel())]
    generator = np.random.default_rng(0)
    out["unmixed chains"] = np.stack([each[generator.permutation(DRAWS)] for each in np.split(ordered, CHAINS)])
    constrain = jax.jit(jax.vmap(jax.vmap(lambda z: model.constrain(model.space.unravel(z)))))
    return {name: jax.tree.map(np.asarray, constrain(jnp.asarray(positions))) for name, positions in out.items()}


def is_right(values: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> bool:
    """Whether draws (chain, draw, k) have the right means and sds."""
    flat = values.reshape(-1, values.shape[-1])
    ratio = flat.std(0) / sd
    return bool(np.all(np.abs(flat.mean(0) - mean) <= 0.2 * sd) and np.all((ratio > 0.8) & (ratio < 1.25)))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=(*NAMES, *BY_STAN), default=(*NAMES, *BY_STAN), metavar="NAME")
    chosen = parser.parse_args()
    say_where("Draws of other samplers are judged")
    warnings.filterwarnings("ignore")
    nutpie, stanli = (bool(importlib.util.find_spec(name)) for name in ("nutpie", "stanli"))
    counts, rows = {}, []
    names = [name for name in chosen.only if stanli or name not in BY_STAN]
    for name in names[:1] if chosen.quick else names:
        stan = BY_STAN.get(name)
        model, data = example(name).build()[:2] if stan is None else (stan.model, stan.data)
        long = tr.infer(model, data, tr.NUTS(draws=1000 if chosen.quick else 5000), seed=9, verify=None)
        mean, sd = long.flat_moments
        for kind, draws in (sets_of(model, data, nutpie) if stan is None else by_stanli(stan)).items():
            posterior = tr.judge(draws, model, data)
            verdict, right = posterior.report().verdict, is_right(posterior.values, mean, sd)
            unmixed = kind == "unmixed chains"
            group = "wrong" if unmixed or not right else "right" if kind.startswith("right") else "changed little"
            counts.setdefault(group, []).append(verdict)
            rows.append([name, kind, group, verdict])
    table(["example", "draws", "in truth", "verdict"], rows)
    words = ("trust", "caution", "reject")
    figures = [[f"{group}: {v}", verdicts.count(v)] for group, verdicts in counts.items() for v in words]
    table(["", "value"], figures)
    record(__file__, ["", "value"], figures, keep=False)


if __name__ == "__main__":
    main()
