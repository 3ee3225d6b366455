"""Whether chains agree, and how much they know, by arviz-stats."""

import warnings
from typing import Any, NamedTuple

import numpy as np


class Diagnosed(NamedTuple):
    """One value for each parameter, (k,)."""

    rhat: np.ndarray  # rank-normalised split R-hat (Vehtari et al. 2021)
    bulk: np.ndarray  # effective draws for the centre
    tail: np.ndarray  # effective draws for the 5 % or the 95 % quantile, whichever has fewer
    mcse_mean: np.ndarray
    mcse_sd: np.ndarray
    stuck: int  # chains that never move in some parameter


def diagnose(draws: np.ndarray, fixed: np.ndarray | None = None) -> Diagnosed:
    """R-hat, effective draws and Monte-Carlo standard errors of draws (chain, draw, k).

    A chain that does not move has no effective draws: its R-hat and ESS, which arviz gives as NaN and the number of
    draws, become inf and 0. Of numbers that are ``fixed``, (k,), and so cannot move, both are NaN.
    """
    from arviz_stats.base.array import array_stats  # a second of imports, which a point does not need

    draws = np.asarray(draws, np.float64)
    constant = np.ptp(draws, axis=1) == 0 if draws.shape[1] else np.ones(draws.shape[::2], bool)  # (chain, k)
    if draws.shape[1] < 8:
        nothing = np.full(draws.shape[2], np.nan)
        return Diagnosed(nothing, np.zeros_like(nothing), np.zeros_like(nothing), nothing, nothing, 0)
    split = draws
    if len(draws) == 1:  # R-hat then compares the halves of the one chain
        half = draws.shape[1] // 2
        split = np.concatenate([draws[:, :half], draws[:, -half:]])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        over: dict[str, Any] = {"chain_axis": 0, "draw_axis": 1}
        rhat = array_stats.rhat(split, **over)
        bulk = array_stats.ess(draws, method="bulk", **over)
        tail = array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **over)
        mean, sd = (np.asarray(array_stats.mcse(draws, method=m, **over)) for m in ("mean", "sd"))
    held = np.zeros(draws.shape[2], bool) if fixed is None else fixed
    constant &= ~held
    stuck = constant.any(0)
    rhat, bulk, tail = (
        np.where(held, np.nan, np.where(stuck, still, a)) for a, still in ((rhat, np.inf), (bulk, 0.0), (tail, 0.0))
    )
    return Diagnosed(rhat, bulk, tail, mean, sd, int(constant.any(1).sum()))
