"""Censored rows, such as survival times: y of shape (n, 2) holds the bounds between which each value lies."""

import numpy as np

from tractable.core.errors import DataError
from tractable.core.words import listing

OPEN = float(np.finfo(np.float32).max)  # −OPEN: no lower bound; OPEN: no upper bound; infinity is not allowed in data
STATUS = {"left": -1, "none": 0, "right": 1}  # bambi's words and brms's numbers
WORDS = {"yes": 1, "true": 1, "y": 1, "t": 1, "no": 0, "false": 0, "n": 0, "f": 0} | STATUS


def censored(y: object, status: object = None, *, event: object = None, upper: object = None) -> np.ndarray:
    """Bounds (lower, upper) of y, (n, 2), as ``Data`` and ``models.Censored`` take them.

    Equal bounds mean that y was observed. Pass exactly one of status, event and upper.

    Args:
        y: (n,) finite numbers: the observed values or the known bounds; with ``upper``, the lower bounds.
        status: (n,) how each value is censored, as in brms and bambi: "none", 0 or False; "right", 1 or True if the
            value is larger than y; "left" or −1 if the value is smaller than y.
        event: (n,) 1 or True if the value was observed, 0 or False if it is right-censored, as in lifelines and R's
            Surv.
        upper: (n,) upper bounds, as in Surv's interval2: equal to y if the value was observed; NaN or ±inf means no
            bound on that side.

    Raises:
        DataError: not exactly one of the three is given, lengths differ, a status is unknown, a lower bound is above
            its upper bound, or a row has no bound.

    >>> censored([3.0, 5.0], event=[True, False])[:, 0].tolist()
    [3.0, 5.0]
    >>> bool(censored([3.0, 5.0], event=[True, False])[1, 1] == censored([np.nan], upper=[2.0])[0, 0] * -1)
    True
    """
    given = {name: a for name, a in (("status", status), ("event", event), ("upper", upper)) if a is not None}
    if len(given) != 1:
        raise DataError(f"censored expects one of status, event= and upper=; got {listing(given) or 'none'}.")
    (name, column), low = next(iter(given.items())), np.asarray(y, np.float64)
    column = np.asarray(column)
    if low.ndim != 1 or column.shape != low.shape:
        raise DataError(f"censored expects two columns of one length; got shapes {low.shape} and {column.shape}.")
    if name == "upper":
        return _between(low, np.asarray(column, np.float64))
    codes = _codes(name, column)
    if name == "event":
        codes = 1 - codes
    _refuse_first(~np.isfinite(low), "y is not finite", low)
    return np.stack([np.where(codes == -1, -OPEN, low), np.where(codes == 1, OPEN, low)], 1)


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    low = np.where(np.isnan(low) | (low <= -OPEN), -OPEN, low)
    high = np.where(np.isnan(high) | (high >= OPEN), OPEN, high)
    _refuse_first((low == -OPEN) & (high == OPEN), "y has no bound", low)
    _refuse_first(~(low <= high), "the lower bound is above the upper one", low)
    return np.stack([low, high], 1)


def _codes(name: str, column: np.ndarray) -> np.ndarray:
    """(n,) −1, 0 or 1 for each word, number or boolean of ``status`` or ``event``."""
    import pandas as pd  # imported here: pandas takes as long to import as all of tractable

    values = pd.Series(column)
    text = values.astype(str).str.strip().str.lower()
    codes = text.map(WORDS).fillna(pd.to_numeric(text, errors="coerce")).to_numpy(np.float64)
    allowed, expected = (-1, 0, 1), "'none', 'right' or 'left', or 0, 1 and −1"
    if name == "event":
        allowed, expected = (0, 1), "1 or True where y was observed, 0 or False where y is censored"
    wrong = ~np.isin(codes, allowed)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{name} expects {expected}; got {values[row]!r} in row {row} (the top row is 0).")
    return codes.astype(int)


def _refuse_first(wrong: np.ndarray, sentence: str, numbers: np.ndarray) -> None:
    """A DataError about the first row that is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"In row {row} (the top row is 0) {sentence}: {numbers[row]:g}. Correct the row, or leave it out."
        )


def known(y: np.ndarray) -> np.ndarray:
    """Whether each bound exists, (n, 2)."""
    return np.abs(y) < OPEN


def seen(y: np.ndarray) -> np.ndarray:
    """Whether each row's value was observed, (n,); True for every row of a y without bounds, (n,)."""
    return np.ones(len(y), bool) if y.ndim == 1 else y[:, 0] == y[:, 1]


def middle(y: np.ndarray) -> np.ndarray:
    """One number for each row, (n,), to standardise by: y, its one known bound, or the middle of both bounds."""
    if y.ndim == 1:
        return y
    exist = known(y)
    return np.sum(np.where(exist, y, 0.0), 1) / exist.sum(1)


def as_seen(drawn: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Drawn data (n, 2), censored like y: a number between the bounds of its censored row is replaced by the bounds."""
    t = drawn[:, 0]
    inside = ~seen(y) & (t >= y[:, 0]) & (t <= y[:, 1])
    return np.where(inside[:, None], y, drawn)
