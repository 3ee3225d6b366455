"""Simulation-based calibration: tests whether a method recovers parameters that were drawn from the model's prior.

``calibrate`` makes the runs, and ``Calibration`` judges their ranks; ``calibration.ranks`` has the statistics of ranks.
A method is calibrated if its draws are draws of the posterior, which makes the ranks uniform (docs/decisions/053).
"""

import functools
import math
import pathlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from tractable.calibration.ranks import Shape, choose_draws, draw_ranks, largest_gap, p_value, rank, shape
from tractable.core.censored import as_seen
from tractable.core.censoring import censors
from tractable.core.check import Check
from tractable.core.errors import CheckpointError, DataError, ModelError, RunError, SettingsError, TractableWarning
from tractable.core.model import Data, Model, PyTree, as_data, counted_log_likelihoods, sample_of
from tractable.core.settings import at_least, expect, seeded
from tractable.core.shared import compiled
from tractable.core.words import counted, tell
from tractable.core.writing import write_figure, write_table
from tractable.diagnostics.convergence import diagnose
from tractable.diagnostics.report import ORDER, Report, worst
from tractable.engine import checkpoint as files
from tractable.engine import preflight
from tractable.engine.jobs import finished
from tractable.engine.leaves import nested
from tractable.engine.locks import lock
from tractable.engine.programs import fingerprint
from tractable.engine.session import open_session
from tractable.engine.stopping import ending
from tractable.inference import infer
from tractable.methods import Method
from tractable.posterior.posterior import Posterior
from tractable.posterior.run_identity import check_resumable, identity
from tractable.posterior.saving import Saver

if TYPE_CHECKING:
    import pandas as pd

FORM = 2  # version of a checkpoint's contents
LEAST = 20  # smallest number of runs that may be requested; 20 runs give the bias of a mean only to ± 0.44 sd
# Below an adjusted p-value of DOUBTED the verdict is "caution"; below REJECTED it is "reject", if the error is large.
DOUBTED, REJECTED = 0.05, 0.01
# Errors that count as small: bias of a mean in sds, ratio of sds, and distance between ECDFs; a mean that is 0.2 sd off
# causes a distance of 0.08.
BIAS, RATIO, GAP = 0.2, 1.25, 0.08
# Standard errors: NORMAL is half the width of a 95 % interval; a report names a bias or a wrong sd beyond CLEAR.
NORMAL, CLEAR = 1.96, 2.576
# Largest share of runs that may fail before the verdict is "reject", and largest share that may have fewer nearly
# independent draws than requested before it is "caution".
FAILED = 0.05
NAMED, PANELS = 8, 4  # maximum number of doubtful quantities that a report names, and of quantities that a plot shows


@ending()
def calibrate(
    model: Model,
    method: Method,
    data_like: Data | PyTree,
    *,
    runs: int = 200,
    draws: int = 99,
    quantities: Mapping[str, Callable] | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool | Callable | None = None,
    checkpoint: str | pathlib.Path | None = None,
) -> "Calibration":
    """Simulation-based calibration: infer from data that the model has drawn, and rank the true θ* among the draws.

        θ* ~ p(θ),   y ~ p(y | θ*, x),   θ_l ~ method(y),   r = #{l ≤ L: f(θ_l, y) < f(θ*, y)}

    If the method gives the posterior, r is uniform on 0 … L for each parameter, the log likelihood, and the user's
    ``quantities``. Ranks of parameters alone cannot tell a posterior from the prior; ranks of an f that depends on y
    can. The method is tested on this model, averaged over the prior. The model is not tested on your data. Where the
    prior is much wider than the posterior, most runs are far from the posterior of your data.

    Args:
        model: a model with a prior of proper distributions and a likelihood.
        method: a method whose posteriors have draws.
        data_like: an example of the data. As many rows are drawn, at the same ``given``; y is NaN where its y is.
        runs: n ≥ 20. With 100 runs, 85 of 100 calibrations detect a mean that is 0.4 sd off; with 200 runs all do. A
            mean that is 0.2 sd off is detected by 28 of 100 with 100 runs, by 54 with 200, and by 88 with 400.
        draws: L, the number of draws among which θ* is ranked, evenly chosen from a run's draws. If a run has fewer
            nearly independent draws than L, θ* is ranked among as many as it has.
        quantities: more functions f by name: ``(params, y) -> number``; ``(params, y, x)`` if the data have ``given``.
        seed: the seed of all randomness. Run i depends on the seed and on i only, not on the process that runs it.
        n_jobs: number of processes, counted as in joblib (−1 means all cores), on the backend that is set by
            ``joblib.parallel_config``: loky by default, threading or dask. Each process compiles once. None means 1
            unless such a configuration is set.
        progress: as for ``infer``.
        checkpoint: a folder, in which runs are saved as they end. A calibration that was killed continues from there,
            with the same ranks; a finished one continues if ``runs`` is larger.

    Returns:
        A Calibration: ``report()``, ``summary()``, ``plot(path)``. Its report counts the runs that failed and gives the
        first error. After Ctrl-C or SIGTERM the finished runs are returned, and ``interrupted`` is True.

    Raises:
        ModelError: an improper prior, or a callable one without sample(); a likelihood that cannot be drawn from.
        DataError: no rows, rows with weights, or rows not in memory.
        SettingsError: a setting out of range; a method that finds one θ.
        RunError: every run failed, or the calibration was stopped before one had ended.
        CheckpointError: a checkpoint that is damaged or belongs to another calibration.

    >>> import numpyro.distributions as dist
    >>> from tractable.methods import Rejection
    >>> coin = Model({"theta": dist.Beta(2.0, 2.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> found = calibrate(coin, Rejection(chains=1, draws=20), np.array([1, 0, 1]), runs=20, draws=19)
    >>> found.ranks.shape, found.names
    ((20, 2), ['theta', 'log likelihood'])
    """
    seed = seeded("calibrate(seed=...)", seed)
    data = _check(model, method, data_like, runs, draws, quantities)
    draws, quantities = int(draws), dict(quantities or {})
    if checkpoint is not None:
        check_resumable(model, data, method)

    def open_folder() -> Saver | None:
        if checkpoint is None:
            return None
        programs = {name: fingerprint(function, *_example(model, data)) for name, function in quantities.items()}
        own = {"calibration": {"draws": draws, "quantities": programs, "form": FORM}}
        return Saver(pathlib.Path(checkpoint), identity(model, data, method, seed) | own)

    functions = tuple(quantities.values())
    work = functools.partial(_run, model=model, method=method, data=data, seed=seed, draws=draws, functions=functions)
    with (
        lock(checkpoint),
        open_session(model, data, seed, progress, saver=open_folder()) as session,
        warnings.catch_warnings(action="ignore", category=TractableWarning),
    ):
        results = {int(i): result for i, result in nested(session.resume or {}).items()}
        todo, save = [i for i in range(runs) if i not in results], session.keeper()
        for job in finished(work, todo, n_jobs, "calibrate", session.stop):
            result = job.lost or job.result
            if result is None:  # the run was interrupted
                break
            results[job.index] = result if isinstance(result, str) else np.array(result)
            session.say("runs", len(results), runs)
            save(lambda: results)
        save(lambda: results, at_once=bool(results))
    outcomes = {i: results[i] for i in sorted(results) if i < runs}
    failures = {i: result for i, result in outcomes.items() if isinstance(result, str)}
    index = [i for i in outcomes if i not in failures]
    if not index:
        reason = next((f"run {i}: {text}" for i, text in failures.items()), "it was stopped before any had ended")
        raise RunError(f"No run of the calibration came to its end: {reason}")
    table, names = np.array([outcomes[i] for i in index]), [*model.names, "log likelihood", *quantities]
    calibration = Calibration(
        names, table[:, 1:].astype(int), draws, np.array(index), table[:, 0], failures, type(method).__name__, runs,
        interrupted=len(outcomes) < runs,
    )  # fmt: skip
    if calibration.interrupted:
        tell(f"The calibration was interrupted after {counted(calibration.runs, 'run')} of {runs}.")
    elif checkpoint is not None:
        calibration.save(checkpoint)
    return calibration


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of ``calibrate``: the ranks of the n runs that came to their end.

    Attributes:
        names: names of the q quantities: the k parameters, "log likelihood", the user's quantities.
        ranks: (n, q) ranks of the truth among L draws, 0 … L.
        draws: L.
        index: (n,) indices of the runs.
        effective: (n,) number of nearly independent draws of each run; if it is below L, the truth was ranked among
            only that many draws.
        failures: error messages of the runs that failed, by index.
        method: the method's name.
        asked: the requested number of runs.
        interrupted: whether the calibration was stopped before its end.
    """

    names: list[str]
    ranks: np.ndarray = field(repr=False)
    draws: int
    index: np.ndarray = field(repr=False)
    effective: np.ndarray = field(repr=False)
    failures: dict[int, str]
    method: str
    asked: int
    interrupted: bool = False

    @property
    def runs(self) -> int:
        """n, the number of ranked runs."""
        return len(self.ranks)

    @functools.cached_property
    def p_values(self) -> np.ndarray:
        """(q,) p-values: the probability that uniform ranks have an ECDF at least as far from uniform as these."""
        return np.array([p_value(column, self.draws) for column in self.ranks.T])

    @functools.cached_property
    def adjusted(self) -> np.ndarray:
        """(q,) p-values adjusted for all quantities (Holm 1979): under uniform ranks P(smallest < α) ≤ α."""
        steps = self.p_values[self.order] * np.arange(len(self.names), 0, -1)
        return np.minimum(np.maximum.accumulate(steps), 1)[np.argsort(self.order)]

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """For each quantity the ratio of sds and the bias that explain its ranks best."""
        return [shape(column, self.draws) for column in self.ranks.T]

    @functools.cached_property
    def verdicts(self) -> list[str]:
        """For each quantity "trust", "caution" or "reject".

        "reject" means that ranks are not uniform. "caution" means that this is uncertain, or that the error is small: a
        mean that is at most 0.2 of the right sd off, and an sd between 0.8 and 1.25 of it. Many runs detect even such
        errors.
        """
        ratio, _, bias, _ = np.array(self.shapes).T
        gaps = np.array([largest_gap(column, self.draws) for column in self.ranks.T])
        small = (np.abs(bias) <= BIAS) & (np.abs(np.log(ratio)) <= math.log(RATIO)) & (gaps <= GAP)
        mild = small | (self.adjusted >= REJECTED)
        return np.select([self.adjusted >= DOUBTED, mild], ["trust", "caution"], "reject").tolist()

    @property
    def order(self) -> list[int]:
        """The indices of the quantities in order of their p-values; the smallest is first."""
        return np.argsort(self.p_values, kind="stable").tolist()

    def report(self) -> Report:
        """Report whether the method is calibrated on this model and on data like these.

        "trust" means that nothing speaks against uniform ranks, and that there are enough runs to know a bias to
        ± 0.2 sd. The ranks of an exact method get a verdict below "trust" with a probability of at most 5 %, and
        "reject" with a probability of at most 1 %.
        """
        n, q, least = self.runs, len(self.names), self.order[0]
        reach, spread = NORMAL / math.sqrt(n), 100 * math.expm1(NORMAL / math.sqrt(2 * n))
        few, failed = int(np.sum(self.effective < self.draws)), len(self.failures)
        text = f"is the smallest of {counted(q, 'p-value')}, that of {self.names[least]}, adjusted for their number; "
        text += f"with uniform ranks it is below {DOUBTED} in 1 of 20 calibrations, and below {REJECTED} in 1 of 100"
        verdict = max(self.verdicts, key=ORDER.index)
        checks = [Check("uniform ranks", float(self.adjusted[least]), verdict, text)]
        for i in [i for i in self.order if self.verdicts[i] != "trust"][:NAMED]:
            checks.append(Check(self.names[i], float(self.adjusted[i]), self.verdicts[i], self.sentence(i)))
        text = f"give the bias of a mean to ± {reach:.2g} sd and an sd to {spread:.0f} %; {BIAS} sd and 25 % are small"
        checks.append(Check("runs", n, "trust" if reach <= BIAS else "caution", text))
        if failed:
            verdict = "caution" if failed <= FAILED * (n + failed) else "reject"
            text = f"are not ranked; the verdict is about the others. First error: {next(iter(self.failures.values()))}"
            checks.append(Check("failed runs", failed, verdict, text))
        verdict = "trust" if few <= FAILED * n else "caution"
        text = f"nearly independent draws in the worst run; {counted(few, 'run')} had fewer than {self.draws}"
        checks.append(Check("effective draws", float(np.min(self.effective)), verdict, text))
        if self.interrupted:
            checks.append(Check("interrupted", n, "caution", f"of {self.asked} runs had ended at the interruption"))
        return Report(worst(checks), tuple(checks), f"{self.method} calibrated by {counted(n, 'run')}")

    def sentence(self, i: int) -> str:
        """What a quantity's ranks say about its posteriors.

        The histogram of ranks has the form ∪ where they are too narrow, ∩ where they are too wide, and a slope where
        they are too high or too low.
        """
        ratio, sd_error, bias, bias_error = self.shapes[i]
        faults = []
        if abs(math.log(ratio)) > CLEAR * sd_error:
            faults.append(f"too {'narrow, ∪' if ratio < 1 else 'wide, ∩'}: sd {ratio:.2g} of the right one")
        if abs(bias) > CLEAR * bias_error:
            faults.append(f"too {'high' if bias > 0 else 'low'}, a slope: mean off by {abs(bias):.2g} right sds")
        return "; ".join(faults) or "ranks are not uniform, but show no wrong sd and no bias: look at the plot"

    def summary(self) -> "pd.DataFrame":
        """A table with a row for each quantity: p-values, sd ratio and bias with 95 % limits, and verdict."""
        import pandas as pd

        ratio, sd_error, bias, bias_error = np.array(self.shapes).T
        factor, margin = np.exp(NORMAL * sd_error), NORMAL * bias_error
        columns = {
            "p": self.p_values, "adjusted p": self.adjusted, "sd ratio": ratio, "sd ratio low": ratio / factor,
            "sd ratio high": ratio * factor, "bias": bias, "bias low": bias - margin, "bias high": bias + margin,
            "verdict": self.verdicts,
        }  # fmt: skip
        return pd.DataFrame(columns, index=pd.Index(self.names, name="quantity"))

    def __str__(self) -> str:
        return str(self.report())

    __repr__ = __str__

    def plot(self, path: str | pathlib.Path) -> None:
        """Plot the histogram and the ECDF of the ranks of up to four quantities, those with the smallest p-values.

        Args:
            path: path of the image; its suffix gives the format.
        """
        from matplotlib.figure import Figure

        furthest = self.order[:PANELS]
        canvas = Figure(figsize=(4.6 * len(furthest), 3.6), layout="constrained")
        for part, i in zip(canvas.subfigures(1, len(furthest), squeeze=False)[0], furthest, strict=True):
            part.suptitle(self.names[i])
            draw_ranks(part, self.ranks[:, i], self.draws)
        write_figure(path, canvas)

    def save(self, path: str | pathlib.Path) -> None:
        """Write the calibration and ``summary.csv`` into a folder for ``Calibration.load``; nothing is pickled."""
        entries = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays = {name: entries.pop(name) for name in ("ranks", "index", "effective")}
        files.save(pathlib.Path(path) / "calibration", arrays, entries, step=0)
        write_table(pathlib.Path(path) / "summary.csv", self.summary(), index=True)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Calibration":
        """Read what ``save`` or ``calibrate(..., checkpoint=path)`` wrote."""
        contents = files.load(pathlib.Path(path) / "calibration")
        if contents is None:
            raise CheckpointError(f"{path} holds no calibration; expected the folder of a saved or finished one.")
        entries: dict[str, Any] = {**contents[1], **contents[2]}
        entries["failures"] = {int(i): reason for i, reason in entries["failures"].items()}
        return cls(**{each.name: entries[each.name] for each in fields(cls)})


# Runs.


def _check(
    model: Model, method: Method, data_like: PyTree, runs: int, draws: int, quantities: Mapping[str, Callable] | None
) -> Data:
    """Check the arguments and return the data; raises an error where a calibration cannot work."""
    if not isinstance(model, Model) or not isinstance(method, Method):
        raise SettingsError(f"calibrate expects a Model and a method such as NUTS(); got {model!r} and {method!r}.")
    if method.point:
        raise SettingsError(
            f"calibrate ranks the truth among draws of a posterior, and {type(method).__name__} gives one θ; use a "
            "method that draws or fits a q, such as NUTS() or Laplace()."
        )
    expect("calibrate(runs=...)", runs, Annotated[int, at_least(LEAST)])
    expect("calibrate(draws=...)", draws, Annotated[int, at_least(9)])
    expect("calibrate(quantities=...)", quantities or {}, Annotated[Mapping, "functions by name"])
    data = as_data(data_like)
    if not model.drawable:
        raise ModelError(
            "calibrate draws parameters from the prior, and this prior is improper, or a log density without sample(): "
            "give Model a pytree of proper numpyro distributions."
        )
    if data.weights is not None or not data.resident or not data.size:
        given_rows = f"{counted(data.size, 'row')}{' on file' * (not data.resident)}"
        raise DataError(
            "calibrate draws each row of data_like once, in memory: expected one row at least, in memory, without "
            f"weights; got {given_rows}{' with weights' * (data.weights is not None)}."
        )
    preflight.check(model, data)
    method.plan(data)
    try:
        jax.eval_shape(functools.partial(_simulated, model), jax.random.key(0), data.given, np.arange(data.size))
    except NotImplementedError as error:
        raise ModelError("calibrate draws rows from the likelihood, and its distribution has no sample().") from error
    for name, function in (quantities or {}).items():
        expect(f"calibrate(quantities={{{name!r}: ...}})", function, Annotated[Callable, "a function of params and y"])
        shape = getattr(jax.eval_shape(function, *_example(model, data)), "shape", None)
        if shape is None or math.prod(shape) != 1:
            raise SettingsError(f"calibrate(quantities=...) expects one number from {name!r}; got shape {shape}.")
    return data


def _example(model: Model, data: Data) -> tuple:
    """Example arguments of a quantity: (params, y), or (params, y, x)."""
    return model.example(jax.random.key(0)), *_given(jax.tree.map(jnp.asarray, data.rows))


def _given(rows: tuple) -> tuple:
    """The arguments of a quantity from the rows (y, x): only y where there is no x."""
    return rows[:1] if rows[1] is None else rows


def simulate(model: Model, data: Data, key: jax.Array) -> tuple[PyTree, Data]:
    """Draw θ* ~ p(θ) and rows y_n ~ p(y | θ*, x_n) at the inputs of ``data``; values that are NaN there are NaN here.

    Raises:
        DataError: rows that are not finite, which happens where the prior has parameters at which the likelihood
            overflows.
    """
    params, y = _simulated(model, key, data.given, np.arange(data.size))

    def in_form(new: jax.Array, y: np.ndarray) -> np.ndarray:
        """The new numbers in the precision of y, with NaN where y is NaN; they are never truncated to integers."""
        return np.where(np.isnan(y), np.nan, new).astype(y.dtype) if y.dtype.kind == "f" else np.asarray(new)

    y = jax.tree.map(in_form, y, data.y)
    if censors(model, data.given):
        y = as_seen(y, data.y)
    return params, Data(y, data.given, missing="keep" if data.missing == "keep" else "raise", resident=True)


@compiled("model")
def _simulated(model: Model, key: jax.Array, given: PyTree, index: jax.Array | np.ndarray) -> tuple[PyTree, PyTree]:
    above, below = jax.random.split(key)
    params = model.sample_prior(above)

    def row(x: PyTree, i: jax.Array) -> PyTree:
        return sample_of(model.datum(params, x), jax.random.fold_in(below, i))

    return params, jax.vmap(row)(given, jnp.asarray(index))


def _run(
    index: int, *, model: Model, method: Method, data: Data, seed: int, draws: int, functions: tuple[Callable, ...]
) -> list[float] | str | None:
    """Draw θ* and y, infer, and rank θ* among the draws.

    Returns:
        The number of nearly independent draws and the q ranks on 0 … L. For a run that failed, the error's message; for
        a run that was interrupted, None.
    """
    rng = np.random.default_rng([seed, index])
    try:
        truth, data = simulate(model, data, jax.random.fold_in(jax.random.key(seed), index))
        posterior = infer(model, data, method, seed=int(rng.integers(1 << 31)), progress=False, verify=None)
    except (RunError, ModelError, DataError) as error:
        return str(error)
    if posterior.interrupted:
        return None
    positions: Any = posterior.unconstrained
    flat = positions.reshape(-1, positions.shape[-1])
    true, values = (np.asarray(a, np.float64) for a in _quantities(model, functions, truth, flat, data.arrays()))
    if np.isnan(true).any() or np.isnan(values).any():
        return "A quantity is NaN at the true θ or at a draw, and cannot be ranked."
    chains = positions.shape[:2]
    weights = np.ones(chains) if posterior.weights is None else np.asarray(posterior.weights, np.float64)
    effective = count_independent(posterior, values.reshape(*chains, -1), weights)
    sample = values[choose_draws(weights.ravel(), int(np.clip(effective, 1, draws)))]
    return [effective, *map(float, rank(true, sample, draws, rng))]


@compiled("model", "functions")
def _quantities(
    model: Model, functions: tuple[Callable, ...], truth: PyTree, positions: jax.Array, rows: tuple
) -> tuple[jax.Array, jax.Array]:
    """The q quantities at θ*, (q,), and at the unconstrained ``positions`` (S, d), (S, q)."""

    def values_at(params: PyTree) -> jax.Array:
        parameters = [jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]
        likelihood = jnp.sum(counted_log_likelihoods(model, params, rows))
        others = [jnp.reshape(function(params, *_given(rows)), (1,)) for function in functions]
        return jnp.concatenate([*parameters, likelihood[None], *others])

    size = sum(leaf.size for leaf in jax.tree.leaves(rows))
    width = min(len(positions), 1024, max(1, (1 << 24) // size))  # draws in memory at once
    return values_at(truth), jax.lax.map(lambda u: values_at(model.params(u)), positions, batch_size=width)


def count_independent(posterior: Posterior, values: np.ndarray, weights: np.ndarray) -> float:
    """The number of nearly independent draws, for the worst of the quantities (chain, draw, q).

    If draws are independent, their number is (Σw)²/Σw². For chains this is multiplied by ESS / (2 · number of draws),
    with the smaller of bulk and tail ESS (effective sample size). If a chain is thinned to that many draws, neighbours
    have a correlation of about e⁻⁴. A quantity that is the same for all draws is left out.
    """
    # In cyclical SGMCMC, draws from the exploring part of a cycle have weight 0; they do not count.
    counts = weights.any(0)
    values, weights = values[:, counts], weights[:, counts]
    share = float(np.sum(weights) ** 2 / np.sum(weights**2) / weights.size)
    method, varies = posterior.method, np.ptp(values, axis=(0, 1)) > 0
    if method.independent or method.exact or posterior.fitted is not None or not varies.any():
        return share * weights.size
    sizes = diagnose(values[..., varies])
    return share * float(np.nan_to_num(np.nanmin([sizes.bulk, sizes.tail]))) / 2
