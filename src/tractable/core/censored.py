"""Censored rows, such as survival times: y of shape (n, 2) holds the bounds between which each value lies."""

import numpy as np

from tractable.core.errors import DataError
from tractable.core.words import listing

OPEN = float(np.finfo(np.float32).max)  # −OPEN, OPEN: no bound on that side. Finite, as data must be
STATUS = {"left": -1, "none": 0, "right": 1}  # bambi's words and brms's numbers
WORDS = {"yes": 1, "true": 1, "y": 1, "t": 1, "no": 0, "false": 0, "n": 0, "f": 0} | STATUS


def censored(y: object, status: object = None, *, event: object = None, upper: object = None) -> np.ndarray:
    """Bounds (lower, upper) of y, (n, 2), as ``Data`` and ``models.Censored`` take them.

    Equal bounds mean an observed y. Give one of status, event and upper.

    Args:
        y: (n,) finite numbers: the observed values or known bounds; with ``upper``, the lower bounds.
        status: (n,) how each is censored, as in brms and bambi: "none" or 0 or False, "right" or 1 or True (the value
            is larger), "left" or −1 (it is smaller).
        event: (n,) whether each was observed, as in lifelines and R's Surv: 1 or True; else it is right-censored.
        upper: (n,) upper bounds, as in Surv's interval2: equal to y if observed; NaN or ±inf means no bound on that
            side.

    Raises:
        DataError: none or several of the three are given, lengths differ, a status is unknown, a lower bound is above
            its upper one, or a row has no bound.

    >>> censored([3.0, 5.0], event=[True, False])[:, 0].tolist()
    [3.0, 5.0]
    >>> bool(censored([3.0, 5.0], event=[True, False])[1, 1] == censored([np.nan], upper=[2.0])[0, 0] * -1)
    True
    """
    given = {name: a for name, a in (("status", status), ("event", event), ("upper", upper)) if a is not None}
    if len(given) != 1:
        raise DataError(f"censored expects one of status, event= and upper=; got {listing(given) or 'none'}.")
    (what, column), low = next(iter(given.items())), np.asarray(y, np.float64)
    column = np.asarray(column)
    if low.ndim != 1 or column.shape != low.shape:
        raise DataError(f"censored expects a column each; got shapes {low.shape} and {column.shape}.")
    if what == "upper":
        return _between(low, np.asarray(column, np.float64))
    codes = _codes(what, column)
    if what == "event":
        codes = 1 - codes
    _first(~np.isfinite(low), "y is not finite", low)
    return np.stack([np.where(codes == -1, -OPEN, low), np.where(codes == 1, OPEN, low)], 1)


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    low = np.where(np.isnan(low) | (low <= -OPEN), -OPEN, low)
    high = np.where(np.isnan(high) | (high >= OPEN), OPEN, high)
    _first((low == -OPEN) & (high == OPEN), "nothing bounds y", low)
    _first(~(low <= high), "the lower bound is above the upper one", low)
    return np.stack([low, high], 1)


def _codes(what: str, column: object) -> np.ndarray:
    """(n,) −1, 0 or 1 for each word, number or boolean."""
    import pandas as pd  # imported here: takes as long to import as all of tractable

    values = pd.Series(np.asarray(column))
    text = values.astype(str).str.strip().str.lower()
    codes = text.map(WORDS).fillna(pd.to_numeric(text, errors="coerce")).to_numpy(np.float64)
    known = (0, 1) if what == "event" else (-1, 0, 1)
    meant = "1 or True where y was seen, 0 or False where not" if what == "event" else (
        "'none', 'right' or 'left', or 0, 1 and −1"
    )  # fmt: skip
    wrong = ~np.isin(codes, known)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{what} expects {meant}; got {values[row]!r} in row {row} (the top row is 0).")
    return codes.astype(int)


def _first(wrong: np.ndarray, sentence: str, numbers: np.ndarray) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"In row {row} (the top row is 0) {sentence}: {numbers[row]:g}. Mend it, or leave the row out.")


def known(y: np.ndarray) -> np.ndarray:
    """(n, 2) which bounds exist."""
    return np.abs(y) < OPEN


def seen(y: np.ndarray) -> np.ndarray:
    """(n,) whether each row's y was observed; all were if y is (n,)."""
    return np.ones(len(y), bool) if y.ndim == 1 else y[:, 0] == y[:, 1]


def middle(y: np.ndarray) -> np.ndarray:
    """(n,) one number for each row, to scale by: y itself, its one known bound, or the middle of both."""
    if y.ndim == 1:
        return y
    there = known(y)
    return np.sum(np.where(there, y, 0.0), 1) / there.sum(1)


def as_seen(drawn: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Replicated data (n, 2) censored like y: a drawn number within a censored row's bounds becomes these bounds."""
    t = drawn[:, :1]
    inside = ~seen(y) & (t[:, 0] >= y[:, 0]) & (t[:, 0] <= y[:, 1])
    return np.where(inside[:, None], y, drawn)
