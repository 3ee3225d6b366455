"""The function ``compare_models``: which of several fitted models predicts left-out rows best, and by how much."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

from tractable.core.censoring import datum_of
from tractable.core.errors import DataError, ModelError, SettingsError
from tractable.core.shown import as_html, printable
from tractable.core.words import counted, spelt
from tractable.diagnostics.predictions import can_be_compared
from tractable.posterior.pointwise import Loo
from tractable.posterior.posterior import Posterior

if TYPE_CHECKING:
    import pandas as pd

# Limits below which the normal distribution of a difference is wrong (Sivula et al. 2020, arXiv:2008.10296).
NATS, ROWS = 4.0, 100
FAR = 1e30  # a bound of a censored number that does not exist is further away than this in any unit
STEPS = 100  # largest number of Newton steps, of which few are needed
FORMS = dict.fromkeys(("elpd_loo", "difference", "se", "p_loo"), "{:,.1f}") | {"k-hat": "{:.2f}", "weight": "{:.2f}"}


class ModelComparison(NamedTuple):
    """The result of ``compare_models``."""

    table: "pd.DataFrame"  # a row for each model, the best first; ``compare_models`` says what the columns are
    remarks: list[str]  # sentences that say which numbers of the table not to rely on
    loos: dict[str, Loo]  # the leave-one-out results by model, in the order of the table

    def __str__(self) -> str:
        table = self.table.to_string(na_rep="–", formatters={name: form.format for name, form in FORMS.items()})
        return printable("\n".join([table, *self.remarks]))

    __repr__ = __str__
    _repr_html_ = as_html


@spelt
def compare_models(
    posteriors: Mapping[str, Posterior], *, draws: int = 4000, rows: int | None = None
) -> ModelComparison:
    """Compares how well fitted models predict the same rows, each row left out in turn.

    The stacking weights π are those of the mixture Σ_k π_k p_k that predicts left-out rows best. They maximise
    Σ_n w_n log Σ_k π_k p_k(y_n | y without n) over π_k ≥ 0 with Σ_k π_k = 1 (Yao et al. 2018, equation 4).

    Args:
        posteriors: at least two posteriors of the same rows, by name. Their inputs may differ.
        draws, rows: as for ``posterior.loo``. If only some rows are evaluated, standard errors include the sampling
            error as if elpd were estimated from these rows alone, so that they are rather too large.

    Returns:
        A ModelComparison, whose table has the columns

            elpd_loo    expected log predictive density in nats, summed over rows (``posterior.loo``);
            difference  elpd_loo minus that of the best model;
            se          the standard error of the difference, from the differences of the rows' log densities;
            p_loo       effective number of parameters;
            k-hat       the largest k-hat (tail index of the weights) of a row;
            weight      the stacking weight.

        A model with a k-hat above its limit has no elpd_loo, difference and weight, and stands below the others.

    Raises:
        SettingsError: fewer than two posteriors, or something that is not a posterior.
        DataError: the posteriors have other rows, weights or groups.
        ModelError: some models give y a density and others a probability.
    """
    import pandas as pd

    expected = 'compare_models expects at least two posteriors by name, such as {"a": a, "b": b}'
    if not isinstance(posteriors, Mapping) or len(posteriors) < 2:
        got = list(posteriors) if isinstance(posteriors, Mapping) else f"a {type(posteriors).__name__}"
        raise SettingsError(f"{expected}; got {got}.")
    for name, posterior in posteriors.items():
        if not isinstance(posterior, Posterior):
            raise SettingsError(f"{expected}; got {type(posterior).__name__} as {name!r}.")
    check_rows(posteriors)
    loos = {name: posterior.loo(draws=draws, rows=rows) for name, posterior in posteriors.items()}
    loos = dict(sorted(loos.items(), key=lambda item: -np.nan_to_num(item[1].elpd, nan=-np.inf)))
    best, data = next(iter(loos.values())), next(iter(posteriors.values())).data
    counts = np.ones(len(best.index)) if data is None or data.weights is None else data.weights[best.index]
    known = [name for name, loo in loos.items() if not len(loo.failed)]
    lines = [(loo.elpd, loo.elpd - best.elpd, np.nan, loo.p, loo.khat, np.nan) for loo in loos.values()]
    table = pd.DataFrame(lines, pd.Index(loos, name="model"), list(FORMS))
    if known:
        log_densities, scale = np.stack([loos[name].pointwise for name in known], 1), best.size / len(best.index)
        table.loc[known, "se"] = [scale * paired_error(own - best.pointwise, counts) for own in log_densities.T]
        table.loc[known, "weight"] = stacking_weights(log_densities, counts)
    return ModelComparison(table, remarks(table, loos), loos)


def check_rows(posteriors: Mapping[str, Posterior]) -> None:
    """Raises an error unless all posteriors are of the same rows, and all give y a density or all a probability."""
    (first, reference), *others = posteriors.items()
    rows, discrete = _rows_of(reference), _is_discrete(reference)
    for name, posterior in others:
        own = _rows_of(posterior)
        if len(own) != len(rows) or not all(map(_equal, own, rows)):
            raise DataError(
                f"compare_models expects posteriors of the same rows; the y, weights or groups of {name!r}, "
                f"{posterior.data}, are not those of {first!r}, {reference.data}: fit both to the same rows, for "
                "example to those without missing values in any column."
            )
        if {discrete, _is_discrete(posterior)} == {True, False}:
            raise ModelError(
                f"compare_models expects models that all give y a density, or all a probability; only one of {first!r} "
                f"and {name!r} is a model of counts or classes: give both a likelihood of one kind."
            )


def _rows_of(posterior: Posterior) -> list[np.ndarray]:
    """What the posteriors of the same rows have in common: y in the units of its table, weights and groups."""
    data, table = posterior.data, posterior.model.table
    if data is None:
        return []
    y = data.y if table is None else table.decode(data.y)
    weights = np.ones(data.size) if data.weights is None else data.weights
    labels = np.arange(data.size) if data.labels is None else data.labels
    return [np.asarray(leaf[:]) for leaf in jax.tree.leaves((y, weights, labels))]


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays are equal, up to the rounding of numbers that were standardised."""
    if first.shape != second.shape or not all(np.issubdtype(a.dtype, np.number) for a in (first, second)):
        return np.array_equal(first, second)
    first, second = np.clip(first, -FAR, FAR), np.clip(second, -FAR, FAR)
    return np.allclose(first, second, 1e-5, 1e-5 * np.nanmedian(np.abs(first)), equal_nan=True)


def _is_discrete(posterior: Posterior) -> bool | None:
    """Whether the model gives each y a probability and not a density; None for a y without a single distribution."""
    if posterior.data is None or not can_be_compared(posterior.model, posterior.data):
        return None
    return bool(datum_of(posterior.model, posterior.data.given).support.is_discrete)


def paired_error(differences: np.ndarray, counts: np.ndarray) -> float:
    """The standard error of Σ_n w_n d_n over rows, with d_n (n,) the differences of the rows' log densities."""
    return float(np.sqrt(counts @ np.square(differences - np.average(differences, weights=counts))))


def stacking_weights(log_densities: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The weights π (k,) that maximise Σ_n w_n log Σ_k π_k p_nk, from log p (n, k) and w (n,).

    With f(π) the mean of log Σ_k π_k p_nk over rows, f(π) − (Σ_k π_k)²/2 has its maximum over π ≥ 0 where Σ_k π_k = 1,
    at the stacking weights. Newton's method for it solves a least-squares problem with π ≥ 0 in each step (as Kim et
    al. 2020, arXiv:1806.01412). At the maximum no ∂f/∂π_k exceeds 1; otherwise f could gain at most their excess.
    """
    densities, shares = np.exp(log_densities - log_densities.max(1, keepdims=True)), counts / counts.sum()
    weights = np.full(densities.shape[1], 1 / densities.shape[1])

    def objective(weights: np.ndarray) -> float:
        with np.errstate(divide="ignore"):
            return float(shares @ np.log(densities @ weights))

    for _ in range(STEPS):
        ratios = densities / (densities @ weights)[:, None]
        if np.max(shares @ ratios) <= 1 + 1e-9:
            break
        roots = np.sqrt(shares)
        new, _ = nnls(np.vstack([roots[:, None] * ratios, np.ones(len(weights))]), np.append(2 * roots, 0.0))
        step = new / new.sum() - weights
        while objective(weights + step) < objective(weights):
            step = step / 2
        weights = weights + step
    return weights


def remarks(table: "pd.DataFrame", loos: Mapping[str, Loo]) -> list[str]:
    """Sentences that say which numbers of the table not to rely on."""
    (best, first), others = next(iter(loos.items())), table.iloc[1:]
    out = [
        f"{name} has no elpd_loo: {counted(len(loo.failed), loo.unit)} of {len(loo.index):,} cannot be left out by "
        f"reweighting draws, as k-hat is up to {loo.khat:.2f}, good up to {loo.limit:.2f}."
        for name, loo in loos.items()
        if len(loo.failed)
    ]
    small, large = others["difference"] > -NATS, others["difference"] <= -2 * others["se"]
    if small.any():
        names = ", ".join(others.index[small])
        out.append(f"{names}: less than {NATS:g} nats below {best}, a small difference with an unreliable error.")
    if (unsure := others["se"].notna() & ~small & ~large).any():
        names = ", ".join(others.index[unsure])
        out.append(f"{names}: within two standard errors of {best}, so these rows do not decide.")
    if first.size < ROWS:
        few = counted(first.size, first.unit)
        out.append(f"{few}: with fewer than {ROWS}, the standard errors of differences are too small.")
    return out
