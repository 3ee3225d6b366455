"""Checks whether single precision is accurate enough for data whose numbers are far from zero."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.arrays import CHUNK
from tractable.core.check import Check
from tractable.core.rows import Data


def digits_check(data: Data | None) -> list[Check]:
    """A caution if the rounding step of some column's numbers exceeds the standard error of its mean; else no check.

        2⁻²³ |mean| > sd / √N

    The left side is about the distance between neighbouring 32-bit numbers of the column's size. Every parameter,
    residual or result of that size is then rounded by more than its statistical error, and no computation in 32 bits
    can reveal it. If rows are many, the mean and the sd are those of the first rows.
    """
    if data is None or data.size < 2 or jnp.result_type(float) != jnp.float32:
        return []
    total, worst = data.total, (1.0, "", 0.0, 0.0)
    rows = data if data.labels is None else data.members()
    for path, leaf in jax.tree_util.tree_flatten_with_path({"y": rows.y, "given": rows.given})[0]:
        if leaf.dtype.kind != "f":
            continue
        columns = np.asarray(leaf[:CHUNK], np.float64).reshape(min(len(leaf), CHUNK), -1)
        if not np.isfinite(columns).all():
            columns = np.ma.masked_invalid(columns)
        middle, sd = (np.ma.filled(moment, 0.0) for moment in (columns.mean(0), columns.std(0)))
        spacing = np.spacing(np.abs(middle).astype(np.float32)).astype(np.float64)
        # The sd of equal numbers may be above 0 by rounding, so the numbers themselves are compared too.
        varies = (sd > 0) & np.ma.filled(columns.max(0) > columns.min(0), False)
        ratio = np.where(varies, spacing * np.sqrt(total) / np.where(varies, sd, 1), 0)
        i = int(np.argmax(ratio)) if ratio.size else 0
        if ratio.size and ratio[i] > worst[0]:
            array = jax.tree_util.keystr(path).replace("['y']", "y").replace("['given']", "given")
            name = array if len(ratio) == 1 else f"column {i} of {array}"
            worst = (float(ratio[i]), name, float(middle[i]), float(sd[i]))
    ratio, name, middle, sd = worst
    if not name:
        return []
    sentence = (
        f"standard errors of the mean lie between two neighbouring 32-bit numbers of {name} ({middle:.3g} ± {sd:.3g}): "
        "they are too far from zero. Subtract their mean, or call jax.config.update('jax_enable_x64', True) for 64 bits"
    )
    return [Check("digits", ratio, "caution", sentence)]
