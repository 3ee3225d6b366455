"""Whether single precision has the digits that rows far from zero need."""

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.arrays import CHUNK
from tractable.core.check import Check
from tractable.core.rows import Data


def digits_check(data: Data | None) -> list[Check]:
    """A caution where numbers of a column, in 32 bits, lie further apart than its mean is uncertain; else nothing.

        2⁻²³ |mean| > sd / √N

    There every position, every residual and every number of the result that is of the column's size is rounded by as
    much as it is to be known to, and nothing that is computed in 32 bits can see it. By the first rows of many.
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
        varies = (sd > 0) & np.ma.filled(columns.max(0) > columns.min(0), False)  # the sd of equals may be of rounding
        ratio = np.where(varies, spacing * np.sqrt(total) / np.where(varies, sd, 1), 0)
        at = int(np.argmax(ratio)) if ratio.size else 0
        if ratio.size and ratio[at] > worst[0]:
            where = jax.tree_util.keystr(path).replace("['y']", "y").replace("['given']", "given")
            name = where if len(ratio) == 1 else f"column {at} of {where}"
            worst = (float(ratio[at]), name, float(middle[at]), float(sd[at]))
    ratio, name, middle, sd = worst
    if not name:
        return []
    sentence = (
        f"{name}, {middle:.3g} ± {sd:.3g}, is too far from zero for 32 bits, whose numbers lie so many standard errors "
        "of its mean apart there. Subtract its middle, or keep 64 bits: jax.config.update('jax_enable_x64', True)"
    )
    return [Check("digits", ratio, "caution", sentence)]
