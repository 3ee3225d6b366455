"""Fits a model to a table whose other columns explain a target."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tractable.core.errors import SettingsError
from tractable.core.model import Data, Model, PyTree
from tractable.core.settings import expect, is_number
from tractable.core.words import listing, spelt, tell
from tractable.diagnostics.verify import Verify
from tractable.engine.identity import kinds_of, share_programs
from tractable.engine.method import as_method
from tractable.glm.inla import learnable_blocks
from tractable.inference import infer
from tractable.methods import HMC, INLA, NUTS, BayesByBackprop, Method
from tractable.posterior.posterior import Posterior
from tractable.tables.encoder import Encoder, fit_encoder, with_numbers
from tractable.tables.files import as_table, read_table
from tractable.tables.models import LINEAR_PRIORS, data_of, table_model
from tractable.tables.numerals import BARE, Form
from tractable.tables.regression import formula_model

SPLIT_SEED = 0  # seed of the choice of held-out rows, which is thus the same for all runs on a table
ROLES = ("weights", "exposure", "censored", "event", "until")  # arguments that name a column with a special role
# A network is drawn by HMC, whose steps take a gradient of all rows, up to so many weights, and rows times weights
# (docs/decisions/065).
MOST_WEIGHTS, MOST = 5_000, 1_000_000
OF_NETWORKS = 0.2  # the share of rows that a network holds out by default: only such rows show wrong predictions


class Explained(NamedTuple):
    """A table's encoder, its rows to fit, and its held-out rows."""

    encoder: Encoder  # which columns explain the target, and how they become numbers
    data: Any  # Data, the rows to fit
    held_out: Data | None
    reason: str = ""  # why the target's family was guessed; empty if it was given, or for ordinary numbers


@spelt
def fit(
    table: object,
    target: str | Sequence[str],
    *,
    method: Method | str | None = None,
    family: str | None = None,
    exclude: Sequence[str] = (),
    missing: str = "raise",
    weights: str = "",
    exposure: str = "",
    censored: str = "",
    event: str = "",
    until: str = "",
    pool: Sequence[str] | None = None,
    hidden: Sequence[int] | None = None,
    prior: PyTree = None,
    held_out: float | None = None,
    seed: int = 0,
    verify: str | None = "auto",
    progress: bool | Callable | None = None,
) -> Posterior:
    """Explain a column of a table by the other columns, as the command ``tractable fit`` does.

    Numbers, True/False, text, dates and durations are read as such (``tables.encoder.Encoder``), columns that identify
    rows are left out, and the target's family is guessed from its values. Warnings say how columns were read.

    Args:
        table: a data frame of pandas or polars, an Arrow table, or the path of a CSV or Parquet file.
        target: the column to explain, several columns, or a formula such as "y ~ x + (1 | school)"
            (``tractable.regression``).
        method: a method or its name. By default ``INLA`` if it can integrate over the weights, else ``NUTS``; for a
            network ``HMC(chains=2, warmup=300, draws=300, leapfrogs=30)`` if it has at most 5,000 weights, and rows
            times weights are at most one million; else ``BayesByBackprop``.
        family: the target's family: "normal", "student-t", "lognormal", "gamma", "weibull", "exponential", "beta",
            "poisson", "negative-binomial" (both also after "zero-inflated-" or "hurdle-"), "bernoulli", "categorical"
            or "ordered". By default it is guessed from the values; a normal target is not mentioned.
        exclude: columns to leave out.
        missing: "raise", "drop" (leave out rows with missing values) or "impute" (fill in missing inputs).
        weights: a column of numbers ≥ 0, how often each row counts.
        exposure: for counts, a column of numbers > 0 by which each row's rate is multiplied.
        censored, event, until: a column that says which targets are bounds (``tractable.censored``).
        pool: columns of text, or of whole numbers that are names, whose levels have effects with a common sd, which is
            learnt (partial pooling, as ``(1 | school)`` in a formula). By default text of more than 100 levels; [] for
            none.
        hidden: the widths of a network's hidden layers; None for a generalised linear model.
        prior: "normal", or "horseshoe" if most inputs may have no effect, which needs ``NUTS``; for a network the prior
            of its weights, as for ``models.neural_network``. By default "normal", and "scaled" for a network.
        held_out: the share of rows, in [0, 1), that the fit does not use and that ``report()`` compares with their
            predictions: the same rows for every seed. By default 0, and 0.2 for a network.
        seed, verify, progress: as for ``infer``.

    Returns:
        A Posterior in the table's names and units: ``summary()`` lists the effect of one more unit of each number, of
        True, and of each level of text against the mean level, and as "intercept" η of a row of mean inputs;
        ``predict(table)`` takes tables, and its ``to_frame()`` gives a data frame; ``to_arviz()`` has a variable for
        each column.

    Raises:
        DataError: the table cannot be read, a column does not exist, values are missing, or the family does not suit.
        SettingsError: a setting is out of range.

    >>> import pandas as pd
    >>> hours = np.arange(40) % 8 + 1
    >>> frame = pd.DataFrame({"hours": hours, "music": np.arange(40) % 3 == 0})
    >>> frame["grade"] = 2.0 * hours - 3.0 * frame.music + np.random.default_rng(0).normal(0, 0.1, 40)
    >>> posterior = fit(frame, "grade")
    >>> posterior.summary()["mean"][["hours", "music"]].round(1).to_dict()
    {'hours': 2.0, 'music': -3.0}
    """
    expect("fit(verify)", verify, Verify)
    share = (0.0 if hidden is None else OF_NETWORKS) if held_out is None else held_out
    if not (is_number(share) and 0 <= share < 1):
        raise SettingsError(f"fit(held_out=...) expects a share of the rows in [0, 1); got {held_out!r}.")
    frame = read_table(table) if isinstance(table, str | Path) else as_table(table)
    is_formula = isinstance(target, str) and "~" in target and target not in frame
    if pool and hidden is not None:
        raise SettingsError(f"fit(pool={list(pool)!r}) is for a linear model; a network has no pooled effects.")
    if hidden is None and not (prior is None or (isinstance(prior, str) and prior in LINEAR_PRIORS)):
        raise SettingsError(f"fit(prior=...) of a linear model expects {listing(LINEAR_PRIORS)}; got {prior!r:.60}.")
    if is_formula and prior is not None:
        raise SettingsError("A formula takes priors by name: tractable.regression(formula, table, priors={...}).")
    if is_formula and hidden is not None:
        raise SettingsError("A formula has no hidden layers: name the target's column alone, or leave hidden= out.")
    pool = () if pool is None and (is_formula or hidden is not None) else pool  # such models pool nothing by default
    columns = {
        "exclude": exclude, "weights": weights, "exposure": exposure, "censored": censored, "event": event,
        "until": until, "formula": target if is_formula else "", "pool": pool,
    }  # fmt: skip
    names = [] if is_formula else [target] if isinstance(target, str) else [*target]
    found = explain(frame, names, share, missing, family, columns)
    if found.reason:
        tell(f"{found.encoder.explained} holds {found.reason}: family={found.encoder.target.family!r}.")
    model = formula_model(found.encoder) if is_formula else table_model(found.encoder, hidden, prior)
    learner = usual_method(model, found.data) if method is None else as_method(method)
    # Repeated fits of a network may agree on wrong predictions; only held-out rows show this, after the fit.
    first = verify if found.held_out is None else None
    posterior = infer(model, found.data, learner, verify=first, seed=seed, progress=progress)
    if found.held_out is None or posterior.interrupted:
        return posterior
    return posterior.verify(verify, held_out=found.held_out)


def usual_method(model: Model, data: Data) -> Method:
    """The default method: of a network ``network_method``, else nested Laplace (INLA) where it is suited, else NUTS.

    Nested Laplace is exact if y is normal; for other y its error is corrected by importance weights.
    """
    if model.network_weights:
        return network_method(model.space.size, data.size)
    share_programs(model, kinds_of(data), data.size)  # programs that tell what suits the model may come from files
    return INLA() if any(learnable_blocks(model, data)) else NUTS()


def network_method(weights: int, rows: int | float) -> Method:
    """The default method of a network: HMC for few weights and rows, else Bayes by Backprop."""
    is_small = weights <= MOST_WEIGHTS and weights * rows <= MOST
    return HMC(chains=2, warmup=300, draws=300, leapfrogs=30) if is_small else BayesByBackprop()


def explain(
    frame: pd.DataFrame, names: Sequence[str], held_out: float, missing: str, family: str | None,
    columns: Mapping[str, Any], marks: Form = BARE,
) -> Explained:  # fmt: skip
    """Encode a table whose other columns explain the targets ``names``; inputs are standardised by the rows to fit.

    Args:
        frame: the table.
        names: the targets; [] with a formula.
        held_out: the share of rows that the fit does not use.
        missing, family: as for ``fit_encoder``.
        columns: further arguments of ``fit_encoder``.
        marks: the separator of thousands and the decimal mark of numbers in text, where they are known.
    """
    # Numbers in text are read here, because the rows to fit may show less of how they are written than all rows.
    roles = [name for name in map(columns.get, ROLES) if name]
    frame, numerals = with_numbers(frame, columns["exclude"], columns["formula"], roles, marks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second call of fit_encoder gives the same warnings again
        draft = fit_encoder(frame, names, missing, family, **columns)  # an encoder of all rows
    aim, names = draft.target, [each.name for each in draft.targets]
    if missing != "raise":
        used = frame.columns if draft.formula is None else draft.formula.table.columns
        needed = [name for name in used if name not in columns["exclude"]] if missing == "drop" else names
        # A row may lack one of its two bounds.
        bounds = (aim.name, aim.bound_column) if aim.censoring == "upper" else ()
        needed = [name for name in needed if name not in bounds]
        frame = frame.loc[~frame[needed].replace([np.inf, -np.inf], np.nan).isna().any(axis=1)]
    needed = None if draft.formula is None else draft.formula.needed(frame)
    train, rest = split_rows(frame, aim.name, bool(aim.classes), held_out, needed)
    encoder = replace(fit_encoder(train, names, missing, aim.family, **columns), numerals=numerals)
    return Explained(encoder, data_of(encoder, train), data_of(encoder, rest) if len(rest) else None, aim.reason)


def held_out_mask(count: int, share: float) -> np.ndarray:
    """A random mask (count,) of the held-out rows; at least two rows remain to fit."""
    mask = np.zeros(count, bool)
    mask[np.random.default_rng(SPLIT_SEED).permutation(count)[: min(round(share * count), count - 2)]] = True
    return mask


def split_rows(
    frame: pd.DataFrame, target: str, classes: bool, share: float, needed: np.ndarray | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows to fit, and the held-out rows.

    The rows to fit include all rows marked ``needed`` and at least one row of every class.
    """
    mask = held_out_mask(len(frame), share)
    if needed is not None:
        mask &= ~needed
    if classes:
        labels: Any = frame[target].astype(str)
        # pandas' isin, as NumPy's would be slow: it compares texts pair by pair.
        mask &= labels.isin(labels[~mask].unique()).to_numpy()
    return frame.loc[~mask], frame.loc[mask]
