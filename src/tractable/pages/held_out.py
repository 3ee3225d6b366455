"""The sections that show how well held-out data are predicted."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from scipy.special import bdtr, bdtrc, chdtr, ndtr, ndtri

from tractable.core.censored import seen
from tractable.core.censoring import censors
from tractable.core.errors import DataError
from tractable.core.model import Data, PyTree
from tractable.diagnostics import calibration
from tractable.diagnostics.censoring import concordance
from tractable.diagnostics.censoring import crps as bounded
from tractable.pages.plots import drawing, tidy
from tractable.pages.sections import Section, Table, text
from tractable.pages.style import COLOURS, INK, MUTED
from tractable.posterior.pointwise import replicate
from tractable.posterior.posterior import Posterior
from tractable.posterior.predict import Prediction
from tractable.tables.encoder import Encoder

SEEN = 2000  # the largest number of rows whose probability integral transforms are computed
DRAWN = 500  # how many predictive draws each row has
LEVELS = (0.5, 0.9, 0.95)  # levels of the intervals
UNLIKELY = 1e-4  # the page warns of rows that would have a smaller probability than this if predictions were right
FOLLOWED = 500  # the errors of about this many of the last fitted rows are examined in the order of time
# The number of tests that share the probability ``UNLIKELY``, and the smallest factor by which intervals are called too
# wide because rows lie close to their predictions.
TESTS, WIDE = 4, 2.0


class Score(NamedTuple):
    """A number about predictions, and what it means."""

    name: str
    value: float
    meaning: str


class HeldOut(NamedTuple):
    """Scores of held-out rows, and the arrays that their figures need."""

    scores: list[Score]
    y: np.ndarray | None  # None if a datum has many parts
    probabilities: np.ndarray | None  # (n, classes)
    below: np.ndarray | None  # for numbers: the share of each row's prediction below the observed value
    misfit: str = ""  # sentences that warn if rows do not vary as predicted, or if errors are correlated in time


def held_out_scores(
    posterior: Posterior, data: Data, encoder: Encoder | None = None, shifted: PyTree = None
) -> HeldOut:
    """Scores of the predictions of held-out rows, in the target's own units.

    ``shifted`` are inputs of rows unlike the fitted ones; a score says how well the predictive uncertainty
    distinguishes them from the held-out rows.
    """
    # A density depends on the units: p(y) = p(standardised y) / sd.
    densities = np.asarray(posterior.log_predictive(data), np.float64)
    log = calibration.log_score(densities)
    scores = [Score("log predictive", log.mean, f"± {log.error:.2g}; mean log predictive density of a row, in nats")]
    try:
        predicted = posterior.predict(data.given)
    except DataError:  # a datum of many parts
        return HeldOut(scores, None, None, None)
    y, p, below = np.asarray(data.y), None, None
    if predicted.probabilities is not None:
        p = np.broadcast_to(predicted.probabilities, (len(y), predicted.probabilities.shape[-1]))
        p, codes = np.asarray(p, np.float64), y.astype(int)
        usual = 100 * np.bincount(codes).max() / len(codes)
        right = f"share of rows whose most probable class is right; the most frequent class has {usual:.1f} %"
        scores += [
            Score("accuracy", calibration.accuracy(p, codes), right),
            Score("ECE", calibration.ece(p, codes), "gap between confidence and accuracy; less is better"),
            Score("Brier", calibration.brier(p, codes), "squared error of the probabilities, 0 to 2; less is better"),
        ]
    else:
        below, crps = transforms(posterior, data)
        scores += scores_of_numbers(posterior, data, predicted, below, crps, encoder)
    if shifted is not None:
        scores.append(score_of_shift(predicted, posterior.predict(shifted)))
    notes = [] if below is None else [misfit(below, encoder), *_in_order(posterior, data, below, encoder)]
    return HeldOut(scores, y, p, below, " ".join(filter(None, notes)))


def score_of_shift(predicted: Prediction, shifted: Prediction) -> Score:
    """How well the predictive uncertainty distinguishes shifted rows from others."""
    what = "sd" if predicted.entropy is None else "entropy"
    doubt, elsewhere = (np.asarray(getattr(each, what)) for each in (predicted, shifted))
    doubt, elsewhere = (a.mean(1) if a.ndim > 1 else a for a in (doubt, elsewhere))
    means = f"chance that a shifted row has a larger {what} than a held-out row; 0.5 if the shift has no effect"
    return Score("AUROC shifted", calibration.auroc(doubt, elsewhere), means)


def scores_of_numbers(
    posterior: Posterior, data: Data, predicted: Prediction, below: np.ndarray, crps: np.ndarray,
    encoder: Encoder | None,
) -> list[Score]:  # fmt: skip
    """The scores of predicted numbers: errors and interval widths of each target, and the coverage of all."""
    unit, y = unit_of(encoder), np.asarray(data.y)
    multi_output = encoder is not None and bool(encoder.others)
    whose = [f" {aim.name}" for aim in encoder.targets] if encoder is not None and multi_output else [""]
    crps, width = np.mean(unit * crps, 0), np.asarray(predicted.upper, float) - np.asarray(predicted.lower, float)
    width = np.mean(np.broadcast_to(unit * width, y.shape if multi_output else len(y)), 0)
    if censors(posterior.model, data.given):
        mean = np.broadcast_to(predicted.mean, len(y))[places(data)]
        lost = 100 * np.mean(~seen(y))
        means = f"share of pairs put in the right order, 0.5 by chance; {lost:.1f} % of the rows are censored"
        scores = [Score("concordance", concordance(sample_rows(data).y, mean), means)]
    else:
        mean, sds = np.broadcast_to(predicted.mean, y.shape), np.atleast_1d(unit * y.std(0))
        errors = np.atleast_1d(np.sqrt(np.mean(np.square(unit * (mean - y)), 0)))
        scores = [
            Score(f"RMSE{of}", float(error), f"typical error of the predictive mean; the sd of the data is {text(sd)}")
            for of, error, sd in zip(whose, errors, sds, strict=True)
        ]
    scores += [
        Score(f"CRPS{of}", float(one), "distance of the prediction from the observed number; less is better")
        for of, one in zip(whose, np.atleast_1d(crps), strict=True)
    ]
    for level in LEVELS:
        error = 100 * math.sqrt(level * (1 - level) / below.size)
        means = f"share of rows inside their {100 * level:g} % interval; expected {level:g} ± {error / 100:.2g}"
        scores.append(Score(f"coverage {100 * level:g} %", coverage(below, level), means))
    return scores + [
        Score(f"sharpness{of}", float(one), "mean width of the 90 % interval")
        for of, one in zip(whose, np.atleast_1d(width), strict=True)
    ]


def misfit(below: np.ndarray, encoder: Encoder | None = None) -> str:
    """A sentence if intervals hold more or fewer rows than they should, by more than chance; else ""."""
    count = below.size
    covered_rows = np.array([round(count * coverage(below, level)) for level in LEVELS])
    chances = 2 * np.minimum(bdtr(covered_rows, count, LEVELS), bdtrc(covered_rows - 1, count, LEVELS))  # binomial
    worst = int(np.argmin(chances))
    share, level = covered_rows[worst] / count, LEVELS[worst]
    said = f"{100 * share:.0f} % of the held-out rows lie inside their {100 * level:g} % interval: predictions are too "
    said += "wide" if share > level else "narrow"
    # With few rows, counts show only gross errors. The rows' distances from the middle show more: for right predictions
    # the sum of the squared normal scores Φ⁻¹(below) is χ²-distributed, with as many degrees of freedom as rows.
    middle = np.abs(ndtri(np.clip(below, 1 / (2 * DRAWN), 1 - 1 / (2 * DRAWN))))
    close = float(np.sum(np.square(middle)))
    if chdtr(count, close) < min(UNLIKELY / TESTS, chances[worst]) and close < count / WIDE**2:
        times = min(math.sqrt(count / max(close, 1e-9)), DRAWN / 5)
        said = f"Held-out rows lie so close to their predictions that these seem to be {times:.2g} times too wide"
    elif chances[worst] > UNLIKELY / TESTS:
        return ""
    normal = encoder is not None and encoder.target.family == "normal"
    robust = " If some values lie far from all others, try --family student-t."
    robust = robust if normal and share > level else ""
    return (
        f"{said}. Possible causes are the model's family, what the model leaves out, the priors (if there are about as "
        f"many columns as rows) or, if the verdict is not trust, the posterior.{robust}"
    )


def _in_order(posterior: Posterior, data: Data, below: np.ndarray, encoder: Encoder | None) -> list[str]:
    """The sentence of ``follows`` about the last fitted rows and the held-out rows of the same times.

    Time is the table's first column of dates. Fitted rows are predicted in parts of as many rows as are held out, so
    that nothing new is compiled.
    """
    moving = [] if encoder is None or encoder.formula else [f for f in encoder.features if f.endswith(": trend")]
    if encoder is None or not moving or posterior.data is None or not posterior.data.resident:
        return []
    at, held_out = encoder.features.index(moving[0]), sample_rows(data)
    fitted, new = (
        np.asarray(rows.given["x"] if isinstance(rows.given, dict) else rows.given)[:, at]
        for rows in (posterior.data, held_out)
    )
    count = held_out.size * max(1, FOLLOWED // held_out.size)
    last = np.argsort(fitted, kind="stable")[-min(count, len(fitted) // held_out.size * held_out.size) :]
    parts = np.split(last, len(last) // held_out.size) if len(fitted) >= held_out.size else []
    among = new >= fitted[last].min()
    of_rows = [*(transforms(posterior, posterior.data.take(part))[0] for part in parts), below[among]]
    return [follows(np.concatenate(of_rows), np.append(fitted[last[: held_out.size * len(parts)]], new[among]),
                    moving[0].removesuffix(": trend"))]  # fmt: skip


def follows(below: np.ndarray, times: np.ndarray, name: str) -> str:
    """A sentence if the errors of rows and of the next rows in time are correlated by more than chance; else "".

    If rows are independent, the correlation of the normal scores Φ⁻¹(below) of n neighbours has an sd of about
    1/√n (Bartlett 1946). Rows of the same time are put in random order.
    """
    order = np.lexsort((np.random.default_rng(0).random(len(times)), times))
    scores = ndtri(np.clip(below, 1 / (2 * DRAWN), 1 - 1 / (2 * DRAWN)))[order].reshape(len(times), -1)
    scores -= scores.mean(0)
    correlation = np.sum(scores[1:] * scores[:-1], 0) / np.maximum(np.sum(scores**2, 0), 1e-300)
    if ndtr(-correlation.max() * math.sqrt(len(times))) > UNLIKELY / TESTS / len(correlation):
        return ""
    return (
        f"Errors are correlated in {name}: those of neighbouring rows have a correlation of {correlation.max():.2f}. "
        "The model leaves out something that persists from row to row. So effects, and above all predictions of later "
        "times, are less certain than reported. Give the target's previous value as a column, or fit a model of "
        "sequences."
    )


def unit_of(encoder: Encoder | None) -> Any:
    """The factor from the model's units of y to the table's units: a number, or (K,) for many targets."""
    return 1.0 if encoder is None else encoder.units[0]


def coverage(below: np.ndarray, level: float) -> float:
    """The share of rows that lie within their central intervals of this level."""
    return float(np.mean(np.abs(below - 0.5) <= level / 2))


def sentence(found: HeldOut | None, encoder: Encoder | None) -> str:
    """How good the predictions are, in words; empty for data without one number or class a row."""
    if found is None:
        return ""
    value, target = {score.name: score.value for score in found.scores}, "" if encoder is None else encoder.target.name
    of = f" of {target}" if target else ""
    if found.probabilities is not None and found.y is not None:
        usual = 100 * np.bincount(found.y.astype(int)).max() / len(found.y)
        said = f"The most probable class{of} is right in {100 * value['accuracy']:.0f} % of the held-out rows"
        return f"{said}; the most frequent class has {usual:.0f} %."
    if "RMSE" in value and found.y is not None:
        sd = text(float(f"{float(np.std(unit_of(encoder) * found.y)):.3g}"))
        off = f"Predictions{of} for held-out rows are typically {value['RMSE']:.3g} off"
        return f"{off}; the mean of all rows would be {sd} off."
    return ""


def sections(found: HeldOut, encoder: Encoder | None) -> list[Section]:
    """A figure of the calibration of held-out predictions, and their scores."""
    drawn, note = [], found.misfit
    if found.probabilities is not None and found.y is not None:
        two, happened = found.probabilities.shape[1] == 2, np.eye(found.probabilities.shape[1])[found.y.astype(int)]
        drawn = [reliability(*((a[:, 1] if two else a.ravel()) for a in (found.probabilities, happened)))]
        names = () if encoder is None else encoder.target.classes
        which = f"of {names[1] if names else 'class 1'}" if two else "of every class"
        note += f" The figure shows how often a class occurred against its predicted probability, {which}. If the "
        note += "probabilities are calibrated, the dots lie on the line."
    elif found.below is not None:
        drawn = [pit(found.below.ravel())]
        note += " The figure shows the share of each row's prediction that lies below the row. If the predictions are "
        note += "calibrated, the histogram is flat and most bars end between the dashed lines."
    heads = ["score", "value", "what it means"]
    return [Section("Predictions of held-out rows", [*drawn, Table(heads, found.scores, heads[2:])], note.strip())]


def places(data: Data) -> np.ndarray:
    """The indices of at most ``SEEN`` evenly spaced rows."""
    return np.unique(np.linspace(0, data.size - 1, min(SEEN, data.size)).astype(int))


def sample_rows(data: Data) -> Data:
    """At most ``SEEN`` evenly spaced rows of the data."""
    return data if data.size <= SEEN else data.take(places(data))


def transforms(posterior: Posterior, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The probability integral transform and the CRPS of at most ``SEEN`` rows, from predictive draws.

    The transform is the share of draws below the observed number. If draws equal the number, or if only bounds of a
    censored number are known, the transform is placed at random between its two possible shares. So it is uniform for
    counts too (Czado, Gneiting & Held 2009). CRPS is the continuous ranked probability score.
    """
    first = sample_rows(data)
    params, weights = posterior.spread(DRAWN)
    each = -(-DRAWN // len(weights))  # if there are few draws, or a point, each gives many numbers for a row
    params = jax.tree.map(lambda a: np.repeat(np.asarray(a), each, 0), params)
    drawn = np.asarray(replicate(posterior.predictive, params, first.given, first.size, 0), np.float64)
    weights, y = np.repeat(weights, each) / each, np.asarray(first.y)
    bounds = y.ndim > drawn.ndim - 1
    low, high = (y[:, 0], y[:, 1]) if bounds else (y, y)
    below, up_to = (np.tensordot(weights, a, 1) for a in (drawn < low, drawn <= high))
    placed = below + (up_to - below) * np.random.default_rng(0).random(low.shape)
    return placed, bounded(y, drawn, weights) if bounds else calibration.crps_draws(y, drawn, weights)


@drawing("Reliability diagram", 2.9)
def reliability(canvas: Canvas, probability: np.ndarray, happened: np.ndarray) -> None:
    """Draw how often classes occurred against their predicted probability.

    The bins hold equally many rows; the bars are 90 % Wilson intervals.
    """
    axes, order = canvas.subplots(), np.argsort(probability, kind="stable")
    bins = [b for b in np.array_split(order, min(10, max(1, len(order) // 10))) if len(b)]
    given = np.array([probability[b].mean() for b in bins])
    share, sizes = np.array([happened[b].mean() for b in bins]), np.array([len(b) for b in bins])
    z2 = 1.645**2
    centre = (share + z2 / (2 * sizes)) / (1 + z2 / sizes)
    half = np.sqrt(z2 * (share * (1 - share) / sizes + z2 / (4 * sizes**2))) / (1 + z2 / sizes)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, dashes=(4, 3))
    axes.vlines(given, centre - half, centre + half, color=COLOURS[0], linewidth=1.2)
    axes.plot(given, share, "o", color=COLOURS[0], markersize=4.5)
    axes.set_ylim(-0.04, 1.04)
    axes.set_ylabel("share that occurred")
    axes.set_xlabel("predicted probability")
    tidy(axes)


@drawing("Histogram of probability integral transforms", 2.6)
def pit(canvas: Canvas, values: np.ndarray) -> None:
    """Draw a histogram of the predictive probability below each observed number; it is flat if they are calibrated."""
    axes, bins = canvas.subplots(), 10 if len(values) < 500 else 20
    low, high = np.searchsorted(bdtr(np.arange(len(values)), len(values), 1 / bins), [0.025, 0.975])
    axes.hist(values, np.linspace(0, 1, bins + 1).tolist(), color=COLOURS[0], alpha=0.5, rwidth=0.92)
    axes.axhline(len(values) / bins, color=INK, linewidth=0.9)
    for edge in (low, high):
        axes.axhline(edge, color=INK, linewidth=0.7, dashes=(4, 3))
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the prediction below the row")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.spines["left"].set_visible(False)
