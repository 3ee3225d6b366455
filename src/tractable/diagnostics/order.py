"""Checks whether the rows of a file are in random order, as needed if each batch is a run of consecutive rows."""

import jax
import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.core.batches import Plan
from tractable.core.check import Check
from tractable.core.rows import Data

# These numbers belong to docs/decisions/002-the-order-of-rows-on-file.md.
WINDOWS = 256  # number of windows (runs of consecutive rows) that are compared
READ = 1 << 16  # maximum number of rows read for the check
COLUMNS = 256  # maximum number of columns checked in each array
CHANCE = 1e-7  # probability of a false alarm if rows are in random order
LOUD = 1.5  # ratio to the noise of random batches above which the user is warned


def order_check(data: Data | None, plan: Plan | None) -> list[Check]:
    """A caution if batches are windows of a file in which neighbouring rows are similar; else no check."""
    if data is None or plan is None or data.shuffled or plan.count < 2 or plan.width < 2:
        return []
    ratio, name = noise_of_windows(data, plan.width)
    if not name:
        return []
    sentence = (
        f"times the noise of random batches, in {name}: neighbouring rows of the file are similar, and each batch is a "
        "run of such rows, so that its gradient is noisier than the method assumes. Use tr.pack(file, folder) to put "
        "the rows into random order, and then fit tr.Data(folder)"
    )
    return [Check("order of rows", ratio, "caution", sentence)]


def noise_of_windows(data: Data, width: int) -> tuple[float, str]:
    """How much noisier windows are than random batches, in the worst column, and that column's name.

    The ratio is n var(window means) / var(rows). It is computed from n rows of each of 256 random windows, whose values
    in a column are replaced by their ranks. It equals 1 + (n − 1)ρ, where ρ is the correlation between two rows of a
    window. If n is less than the window's ``width``, the ratio for the full width follows from ρ.

    The name is "" unless the ratio is above 1.5 and statistically significant: by an F test of the variance between
    windows against the variance within them, at the level 1e-7 over all columns. For ranks in random order, the F
    distribution holds almost exactly.
    """
    windows = min(WINDOWS, data.size // width)
    if windows < 2:
        return 1.0, ""
    rng = np.random.default_rng(0)
    starts = np.sort(rng.choice(data.size // width, windows, replace=False)) * width
    count = min(width, max(2, READ // windows))
    index = (starts[:, None] + np.linspace(0, width - 1, count).astype(int)).ravel()
    ratios, tests = [], 0
    for path, leaf in jax.tree_util.tree_flatten_with_path({"y": data.y, "given": data.given})[0]:
        columns = np.asarray(leaf[index]).reshape(len(index), -1)[:, :COLUMNS]
        array = jax.tree_util.keystr(path).replace("['y']", "y").replace("['given']", "given")
        for i in range(columns.shape[1]):
            name, tests = array if columns.shape[1] == 1 else f"column {i} of {array}", tests + 1
            ranks = scipy.stats.rankdata(columns[:, i]).reshape(windows, -1)
            n = ranks.shape[1]
            of_means, of_rows = n * ranks.mean(1).var(ddof=1), ranks.var(1, ddof=1).mean()
            variance = ranks.var(ddof=1)
            if variance > 0:
                # The probability of so large a ratio if rows are in random order.
                p = scipy.stats.f.sf(of_means / of_rows, windows - 1, windows * (n - 1)) if of_rows else 0.0
                ratios.append((float(of_means / variance), float(p), name))
    significant = [(ratio, name) for ratio, p, name in ratios if p < CHANCE / tests]
    if not significant:
        return 1.0, ""
    ratio, name = max(significant)
    ratio = 1 + (ratio - 1) * (width - 1) / (count - 1)
    return (ratio, name) if ratio > LOUD else (ratio, "")
