"""What comes back from inference: one face for draws and for a point."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.beliefs import approximations
from tractable.checks import bias
from tractable.checks.convergence import Diagnosed, diagnose
from tractable.checks.evidence import EvidenceOf
from tractable.checks.report import Report, judge, with_check
from tractable.core import Data, Model, as_data
from tractable.data.rows import CHUNK
from tractable.data.sharding import over_devices
from tractable.methods.drawing import Drawing
from tractable.methods.langevin import SGLD
from tractable.methods.method import Fitted, Method, Outcome, Standing
from tractable.methods.rejection import evidence
from tractable.methods.session import sitting
from tractable.methods.variational import drawn, draws_key
from tractable.models.relabelling import matched
from tractable.results import encoding as coding
from tractable.results import imputing
from tractable.results import predict as prediction
from tractable.results.folder import save
from tractable.tools.counts import is_count
from tractable.tools.errors import DataError, RunError, SettingsError

PyTree = Any
MEASURED_AT = 8  # draws over which curvature and gradient noise are averaged for the report


@dataclass(eq=False)
class Posterior:
    """The result of ``infer``. Values are in the user's space, as pytrees shaped like the prior.

    Attributes:
        model, data, method, seed: what was asked.
        unconstrained: (chain, draw, d) kept positions, or None.
        point: (d,) the unconstrained maximum of a point method, or None.
        info: traces of the run, each (chain, draw).
        weights: (chain, draw), where draws do not count alike; None where they do.
        phi: weights of a ladder's inference network.
        fitted: φ of a q, whose independent draws ``unconstrained`` then holds; None of other methods.
        found: what warm-up chose (step size, bound, …).
        seconds: wall time by phase.
        interrupted: the run was stopped before its end.
    """

    model: Model
    data: Data | None
    method: Method
    seed: int | None
    unconstrained: np.ndarray | None = None
    point: np.ndarray | None = None
    info: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    weights: np.ndarray | None = field(default=None, repr=False)
    found: dict[str, Any] = field(default_factory=dict, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    standing: Standing | None = field(default=None, repr=False)
    surplus: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    judged: Report | None = field(default=None, repr=False)
    fitted: Fitted | None = field(default=None, repr=False)
    phi: PyTree = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        model: Model,
        data: Data | None,
        method: Method,
        seed: int | None,
        outcome: Outcome,
        draws: int | None = None,
    ) -> "Posterior":
        """A posterior from what a method learnt; draws past those asked for wait in ``surplus`` for ``extend``."""
        posterior = cls(
            model, data, method, seed, outcome.draws, outcome.point, outcome.info, outcome.weights, outcome.found,
            outcome.seconds, outcome.interrupted, outcome.standing, fitted=outcome.fitted, phi=outcome.phi,
        )  # fmt: skip
        posterior.trim(getattr(method, "draws", 0) if draws is None else draws)
        return posterior

    def trim(self, draws: int) -> None:
        """Set draws past ``draws`` aside: a run ends with a whole block of steps, which may be more than asked for."""
        if self.unconstrained is None or self.fitted is not None:
            return
        traces = {"position": self.unconstrained, **self.info}
        self.surplus = {name: trace[:, draws:] for name, trace in traces.items()}
        self.unconstrained = self.unconstrained[:, :draws]
        self.info = {name: trace[:, :draws] for name, trace in self.info.items()}
        self.weights = self.method.weigh(self.info)

    def __repr__(self) -> str:
        what = "a point" if self.is_point else f"{self.chains} chains of {self.count} draws"
        what = f"q with {self.count} draws" if self.fitted is not None else what
        stopped = ", interrupted" if self.interrupted else ""
        return f"Posterior({what} by {type(self.method).__name__}, {len(self.names)} numbers{stopped})"

    @property
    def is_point(self) -> bool:
        return self.point is not None

    @property
    def names(self) -> list[str]:
        """One name for each of the k numbers of the parameters."""
        return self.model.names

    @property
    def chains(self) -> int:
        if self.unconstrained is not None:
            return len(self.unconstrained)
        return len(self.standing.keys) if self.standing else 1

    @property
    def count(self) -> int:
        """Kept draws a chain."""
        return 0 if self.unconstrained is None else self.unconstrained.shape[1]

    @property
    def thin(self) -> int:
        return self.standing.thin if self.standing else self.found.get("thin", 1)

    @property
    def rows(self) -> int:
        return 0 if self.data is None else self.data.size

    @property
    def settings(self) -> dict[str, Any]:
        """The method's fields and the seed, as plain values."""
        return self.method.settings() | {"seed": self.seed}

    @functools.cached_property
    def values(self) -> np.ndarray:
        """(chain, draw, k) the parameters laid out flat; a point is one draw of one chain."""
        flat = self.unconstrained if self.point is None else self.point[None, None]
        if flat is None:
            raise RunError("This run kept moments, not draws: .mean() and .sd() are what it knows.")
        return _values(self.model, np.asarray(flat))

    @functools.cached_property
    def draws(self) -> PyTree:
        """Draws as a pytree shaped like the prior, leading axes (chain, draw)."""
        return self.shaped(self.values)

    def shaped(self, values: np.ndarray) -> PyTree:
        """(..., k) flat values as a pytree of the parameters' shapes."""
        example = jax.eval_shape(self.model.example, jax.random.key(0))
        leaves, treedef = jax.tree.flatten(example)
        cuts = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
        pieces = np.split(np.asarray(values), cuts, axis=-1)
        return jax.tree.unflatten(
            treedef, [p.reshape((*p.shape[:-1], *leaf.shape)) for p, leaf in zip(pieces, leaves, strict=True)]
        )

    def mean(self) -> PyTree:
        """Posterior mean; a point method's maximum."""
        return self.shaped(self._moments[0])

    def sd(self) -> PyTree:
        """Posterior standard deviation; a point method's standard error, NaN where it has none."""
        return self.shaped(self._moments[1])

    @functools.cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if self.is_point:
            covariance = self.found.get("covariance")
            unknown = np.full(len(self.names), np.nan)
            with np.errstate(invalid="ignore"):  # a variance that rounding made negative is not known
                return self.values[0, 0], unknown if covariance is None else np.sqrt(np.diag(covariance))
        if self.standing is not None and self.standing.moments is not None:
            return pooled_moments(self.standing.moments)
        flat = self.values.reshape(-1, len(self.names)).astype(np.float64)
        if not len(flat):
            return np.full(len(self.names), np.nan), np.full(len(self.names), np.nan)
        weights = None if self.weights is None else self.weights.ravel()
        mean = np.average(flat, axis=0, weights=weights)
        if self.fitted is not None:
            return self._exact(mean, flat.std(0))
        return mean, np.sqrt(np.average(np.square(flat - mean), axis=0, weights=weights))

    def _exact(self, mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q's own moments where a parameter lives on the reals, and those of its draws elsewhere."""
        fitted: Any = self.fitted
        q = approximations.of(fitted.family, fitted.phi)
        own = np.asarray(q.mean(fitted.phi)), np.asarray(q.sd(fitted.phi))
        if len(own[0]) != len(mean):
            return mean, sd
        sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.model.space.shapes)]
        kept = np.repeat(self.model.unbounded, sizes)
        return np.where(kept, own[0], mean), np.where(kept, own[1], sd)

    @functools.cached_property
    def diagnosed(self) -> Diagnosed:
        """R-hat, effective draws and Monte-Carlo errors of the k parameters."""
        if self.unconstrained is None:
            raise RunError("This run kept no draws to diagnose.")
        values = self.values
        if self.weights is not None and len(np.unique(self.weights)) == 2 and np.min(self.weights) == 0:
            values = values[:, self.weights.all(0)]  # a cycle's exploring part is not a draw
        return diagnose(values)

    def summary(self, level: float = 0.9) -> Any:
        """A pandas DataFrame, a row a number: mean, sd, an equal-tailed interval, and how well they are known."""
        import pandas as pd

        mean, sd = self._moments
        if self.unconstrained is None or not self.count:
            return pd.DataFrame({"mean": mean, "sd": sd}, index=pd.Index(self.names, name="parameter"))
        low, high = (1 - level) / 2, (1 + level) / 2
        flat = self.values.reshape(-1, len(self.names))
        weights = None if self.weights is None else self.weights.ravel()
        bounds = weighted_quantiles(flat, [low, high], weights)
        seen = self.diagnosed
        return pd.DataFrame(
            {
                "mean": mean, "sd": sd, f"{100 * low:g}%": bounds[0], f"{100 * high:g}%": bounds[1],
                "mcse_mean": seen.mcse_mean, "ess_bulk": seen.bulk, "ess_tail": seen.tail, "r_hat": seen.rhat,
            },
            index=pd.Index(self.names, name="parameter"),
        )  # fmt: skip

    def sample(self, key: jax.Array | int, n: int) -> PyTree:
        """n draws, leading axis (n,): fresh ones of a q, else with replacement and by weight; a point is repeated."""
        key = jax.random.key(key) if isinstance(key, int) else key
        if self.fitted is not None:
            q = approximations.of(self.fitted.family, self.fitted.phi)
            return self.shaped(_values(self.model, np.asarray(drawn(q, self.fitted.phi, key, n))))
        flat = self.values.reshape(-1, len(self.names))
        weights = None if self.weights is None else jnp.asarray(self.weights.ravel() / self.weights.sum())
        index = jax.random.choice(key, len(flat), (n,), p=weights)
        return self.shaped(flat[np.asarray(index)])

    def pruned(self, share: float) -> "Posterior":
        """The mean field with its least certain parameters at zero, exactly: the ``share`` of lowest |μ|/σ.

        Blundell et al. 2015, section 5.1. Only parameters on the reals are counted and pruned.

        Args:
            share: in [0, 1).
        """
        if self.fitted is None or self.fitted.family != "mean field":
            raise SettingsError("pruned(share) expects a mean field, from BayesByBackprop or MeanField.")
        if not 0 <= share < 1:
            raise SettingsError(f"pruned(share) expects a share in [0, 1); got {share}.")
        sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.model.space.shapes)]
        real = np.flatnonzero(np.repeat(self.model.unbounded, sizes))
        mean, sd = (np.array(a) for a in (self.fitted.phi["mean"], approximations.softplus(self.fitted.phi["rho"])))
        certain = np.abs(mean[real]) / sd[real]
        gone = real[np.argsort(certain, kind="stable")[: round(share * len(real))]]
        mean[gone] = 0
        rho = np.array(self.fitted.phi["rho"])
        rho[gone] = -np.inf  # σ = 0
        phi = {"mean": mean, "rho": rho}
        q = approximations.mean_field(len(mean))
        draws = np.asarray(drawn(q, phi, draws_key(self.seed), self.count))[None]
        fitted = self.fitted._replace(phi=phi, log_weights=None)
        return Posterior(
            self.model, self.data, self.method, self.seed, draws, found=self.found, seconds=self.seconds, fitted=fitted
        )

    def relabelled(self) -> "Posterior":
        """The same draws, with exchangeable components matched from draw to draw (``relabelling.matched``).

        Where labels switch, the mean of a component's parameter is one of all components': summaries, R-hat and plots
        of single components mean something afterwards. For mixtures, of data in memory.
        """
        model: Any = self.model
        if getattr(model, "permute", None) is None or self.data is None or self.unconstrained is None:
            raise SettingsError("relabelled() expects draws of a mixture's components, and the data they explain.")
        shape = self.unconstrained.shape
        flat = matched(model, self.data.arrays(), self.unconstrained.reshape(-1, shape[-1]))
        return replace(self, unconstrained=flat.reshape(shape), standing=None, surplus={}, judged=None)

    def spread(self, most: int) -> tuple[PyTree, np.ndarray]:
        """At most ``most`` draws evenly over chains and time, and their weights, which sum to 1."""
        flat = self.values.swapaxes(0, 1).reshape(-1, len(self.names))
        weights = np.ones(len(flat)) if self.weights is None else self.weights.T.ravel()
        kept = np.flatnonzero(weights > 0)
        index = kept[np.unique(np.linspace(0, len(kept) - 1, min(most, len(kept))).astype(int))]
        return self.shaped(flat[index]), weights[index] / weights[index].sum()

    @functools.cached_property
    def predictive(self) -> Model:
        """The model that predictions go through: the one given, but for Laplace on a network its linearisation."""
        return self.model if self.fitted is None else self.method.predictive(self.model, self.fitted)

    def predict(
        self, x: Any = None, level: float = 0.9, *, draws: int = 1000, seed: int = 0, calibrate: Any = None
    ) -> prediction.Prediction:
        """The predictive distribution of new data at inputs ``x``, (n, ...); one datum where there are none.

        Args:
            x: rows of inputs: an array, also memory-mapped, or a pytree of them.
            level: of the intervals, in (0, 1).
            draws: of the parameters, at most, evenly over chains and time.
            seed: of the data drawn for the intervals.
            calibrate: Data that took no part in the fit. The interval becomes mean ± q sd with q from their errors,
                and holds a new y with probability at least ``level`` over rows exchangeable with these, in finite
                samples and whatever the model; on average over rows, not at each input. For numbers only.
        """
        if self.phi is not None:
            raise DataError(
                "A ladder predicts no y from inputs: posterior.generate(n) draws new rows, posterior.reconstruct(x) "
                "gives rows again, and posterior.impute(x) fills in what is missing of them."
            )
        if calibrate is not None:
            calibrate = as_data(calibrate)
            if self.data is not None and calibrate.fingerprint == self.data.fingerprint:
                raise DataError("predict(calibrate=...) needs rows kept out of the fit; got those that were fitted.")
        return prediction.predict(self.predictive, *self.spread(draws), x, level=level, seed=seed, calibrate=calibrate)

    def log_predictive(self, data: Any, *, draws: int = 1000) -> np.ndarray:
        """log p(y*_n | D) = log mean_θ p(y*_n | θ), (n,), in nats.

        Of a ladder with an inference network a lower bound of log p(x*_n | θ) by so many draws (``log_evidence``).
        """
        if self.phi is not None:
            return coding.log_evidence(self, data, samples=draws).log_evidence
        return prediction.log_predictive(self.predictive, *self.spread(draws), as_data(data))

    @functools.cached_property
    def predicted_bias(self) -> bias.Predicted | None:
        """What the step and the gradient's noise do to every marginal sd; None for methods without that bias.

        H and V are measured anew, averaged over draws of this run.
        """
        if not isinstance(self.method, SGLD) or self.data is None:
            return None
        if self.standing is None or self.unconstrained is None:
            return None
        flat = self.unconstrained.reshape(-1, self.unconstrained.shape[-1])
        index = np.linspace(0, len(flat) - 1, MEASURED_AT).astype(int)
        tuned, plan = self.standing.tuned, self.method.plan(self.data)
        measured = bias.measure(self.model, self.data, plan, flat[index], jax.random.key(0), self.method, tuned)
        step = float(np.average(self.info["step_size"], weights=self.weights))
        injected = tuned.get("noise_scale")
        injected = None if injected is None else np.asarray(injected, np.float64)
        return self.method.predicted(measured, step, np.asarray(tuned["scale"], np.float64), plan, injected)

    @property
    def log_evidence(self) -> EvidenceOf:
        """log p(y) as this posterior estimates it: ``posterior.log_evidence()`` gives an ``Evidence``, and
        ``estimate, error = posterior.log_evidence`` its first two numbers.

        Of a ladder with an inference network a bound of log p(x) row by row, ``posterior.log_evidence(data,
        samples=1000)``, see ``encoding.log_evidence``; Rejection estimates log p(y) on its way.

        Raises:
            RunError: a method that does not estimate it.
        """
        if self.phi is not None:
            return EvidenceOf(functools.partial(coding.log_evidence, self))
        if "tries" not in self.info:
            raise RunError(f"{type(self.method).__name__} does not estimate the evidence; Rejection does.")
        return EvidenceOf(functools.partial(evidence, self.info, self.found["log_bound"]))

    # Of ladders; arguments and errors as for the functions of these names in ``coding`` and ``imputing``.

    def encode(self, x: Any, *, draws: int = 0, seed: int = 0) -> coding.Encoded:
        """q(h | x): mean and sd of every layer, (row, n), and ``draws`` of h, (draw, row, n)."""
        return coding.encode(self, x, draws=draws, seed=seed)

    def generate(self, n: int, *, seed: int = 0) -> coding.Generated:
        """n new rows x, the mean of each given its h¹, and h."""
        return coding.generate(self, n, seed=seed)

    def reconstruct(self, x: Any, *, draws: int = 1, seed: int = 0) -> np.ndarray:
        """E[x | h], averaged over ``draws`` of h ~ q(h | x), (row, n)."""
        return coding.reconstruct(self, x, draws=draws, seed=seed)

    def impute(self, x: Any, *, draws: int = 100, samples: int = 1000, steps: int = 5, seed: int = 0) -> Any:
        """Mean and draws of what is missing of x (NaN) given what is seen."""
        return imputing.impute(self, x, draws=draws, samples=samples, steps=steps, seed=seed)

    def elbo(self, data: Any, *, samples: int = 100, seed: int = 0) -> np.ndarray:
        """E_q[log p(x, h) − log q(h | x)] of every row, (row,), nats: at most log p(x)."""
        return coding.elbo(self, data, samples=samples, seed=seed)

    def report(self, *, held_out: Any = None) -> Report:
        """How far this can be trusted: a verdict, and the checks that made it. What was loaded keeps its own.

        Args:
            held_out: rows that took no part; of a ladder their bound is held against that of rows learnt from.
        """
        if self.judged is None:
            self.judged = judge(self)
        return self.judged if held_out is None else with_check(self.judged, coding.gap_check(self, held_out))

    def extend(self, draws: int, *, progress: bool | Callable | None = None) -> "Posterior":
        """Go on for ``draws`` more kept draws a chain; the same as if they had been asked for at once."""
        if not isinstance(self.method, Drawing) or self.standing is None or self.unconstrained is None:
            raise RunError(
                "Only a posterior of kept draws, from this process, can be extended; use checkpoint= across processes."
            )
        if not is_count(draws):
            raise SettingsError(f"extend(draws) expects a whole number ≥ 1; got {draws!r}.")
        count = self.count + draws
        with sitting(self.model, self.data, self.seed, progress, over_devices(None)) as (session, _):
            outcome = self.method.go_on(session, self.standing, count)
        before = self.info | {"position": self.unconstrained}
        now = dict(outcome.info) | ({} if outcome.draws is None else {"position": outcome.draws})
        joined = {
            name: np.concatenate([kept, self.surplus[name], *([now[name]] if name in now else [])], 1)
            for name, kept in before.items()
        }
        outcome = outcome._replace(draws=joined.pop("position"), info=joined)
        return Posterior.of(self.model, self.data, self.method, self.seed, outcome, count)

    def to_arviz(self) -> Any:
        """An ArviZ DataTree with groups posterior and sample_stats."""
        import arviz_base

        draws = self.draws
        if not isinstance(draws, dict):
            draws = {name: self.values[..., i] for i, name in enumerate(self.names)}
        groups = {"posterior": draws}
        if self.info:
            groups["sample_stats"] = dict(self.info)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # as an ensemble's members are
            return arviz_base.from_dict(groups)

    def save(self, path: Any) -> None:
        """Write a folder that ``tractable.load`` reads: settings (TOML), draws (zarr), summary; no pickles."""
        save(self, path)


def pooled_moments(moments: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd over chains from each chain's running moments."""
    count, means, squares = (np.asarray(m, np.float64) for m in moments)
    mean = means.mean(0)
    within = squares.sum(0) / count.sum()
    return mean, np.sqrt(within + np.square(means - mean).mean(0))


def weighted_quantiles(values: np.ndarray, levels: list[float], weights: np.ndarray | None) -> np.ndarray:
    """(level, k) quantiles of (n, k) values."""
    if weights is None:
        return np.quantile(values, levels, axis=0)
    order = np.argsort(values, axis=0)
    mass = np.cumsum(np.take(weights, order), axis=0)
    mass /= mass[-1]
    index = np.stack([np.argmax(mass >= level, axis=0) for level in levels])
    return np.take_along_axis(np.take_along_axis(values, order, 0), index, 0)


def _values(model: Model, flat: np.ndarray) -> np.ndarray:
    shape, rows = flat.shape, flat.reshape(-1, flat.shape[-1])
    if not len(rows):
        return np.zeros((*shape[:-1], len(model.names)), flat.dtype)
    out = [np.asarray(_constrained(model, rows[i : i + CHUNK])) for i in range(0, len(rows), CHUNK)]
    return np.concatenate(out).reshape(*shape[:-1], -1)


@functools.partial(jax.jit, static_argnames="model")
def _constrained(model: Model, flat: jax.Array) -> jax.Array:
    return jax.vmap(model.values)(flat)
