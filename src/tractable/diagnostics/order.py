"""Whether the rows of a file are in random order, as batches that are runs of its rows need."""

import jax
import numpy as np
import scipy  # whose parts are imported when they are first used

from tractable.core.batches import Plan
from tractable.core.check import Check
from tractable.core.rows import Data

WINDOWS = 256  # looked at
READ = 1 << 16  # rows read for that, at most
COLUMNS = 256  # looked at, of each array
CHANCE = 1e-7  # that rows in random order are told of
LOUD = 1.5  # times the noise of random batches, above which it is told


def order_check(data: Data | None, plan: Plan | None) -> list[Check]:
    """A caution where batches are windows of a file whose neighbouring rows are alike; else nothing."""
    if data is None or plan is None or data.shuffled or plan.count < 2 or plan.width < 2:
        return []
    ratio, name = noise_of_windows(data, plan.width)
    if not name:
        return []
    sentence = (
        f"times the noise of random batches, in {name}: neighbouring rows of the file are alike, and batches are "
        "windows of it, whose gradients are noisier than they are taken to be. tr.pack(file, folder) brings the rows "
        "into random order; fit tr.Data(folder)"
    )
    return [Check("order of rows", ratio, "caution", sentence)]


def noise_of_windows(data: Data, width: int) -> tuple[float, str]:
    """The largest over columns of the variance of windows' means over that of random batches', and the column's name.

    n var(window means) / var(rows), of ranks among the rows that are looked at: n rows of each of 256 windows at random
    places. It is 1 + (n − 1)ρ, where ρ is how correlated two rows of a window are; where n is less than the width, the
    ratio at the width follows. A name is given where it is above 1.5 and beyond chance, 1e-7 over all columns (the F
    test of windows against rows within them, to which ranks in random order all but exactly keep); else it is "".
    """
    windows = min(WINDOWS, data.size // width)
    if windows < 2:
        return 1.0, ""
    rng = np.random.default_rng(0)
    starts = np.sort(rng.choice(data.size // width, windows, replace=False)) * width
    count = min(width, max(2, READ // windows))
    index = (starts[:, None] + np.linspace(0, width - 1, count).astype(int)).ravel()
    found, tried = [], 0
    for path, leaf in jax.tree_util.tree_flatten_with_path({"y": data.y, "given": data.given})[0]:
        columns = np.asarray(leaf[index]).reshape(len(index), -1)[:, :COLUMNS]
        where = jax.tree_util.keystr(path).replace("['y']", "y").replace("['given']", "given")
        for at in range(columns.shape[1]):
            name, tried = where if columns.shape[1] == 1 else f"column {at} of {where}", tried + 1
            ranks = scipy.stats.rankdata(columns[:, at]).reshape(windows, -1)
            n = ranks.shape[1]
            between, within, rows = n * ranks.mean(1).var(ddof=1), ranks.var(1, ddof=1).mean(), ranks.var(ddof=1)
            if rows > 0:
                # How likely so large a ratio is in random order.
                p = scipy.stats.f.sf(between / within, windows - 1, windows * (n - 1)) if within else 0.0
                found.append((float(between / rows), float(p), name))
    likely = [(ratio, name) for ratio, p, name in found if p < CHANCE / tried]
    if not likely:
        return 1.0, ""
    ratio, name = max(likely)
    ratio = 1 + (ratio - 1) * (width - 1) / (count - 1)
    return (ratio, name) if ratio > LOUD else (ratio, "")
