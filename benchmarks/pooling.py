"""Are the levels of a column better pooled, or given effects of their own with a fixed prior?

Tables are simulated with one number x and a column of K levels, whose effects are N(0, τ²), in a normal or a Bernoulli
model. Both fits use the defaults of ``tractable.fit``: with ``pool=[]`` the levels are contrasts with the prior
N(0, 2.5²), with ``pool=["city"]`` their effects have a learnt sd. The gain is the difference of the mean log predictive
density of 4,000 new rows, in nats a row; the seconds are wall time, with compilation if shapes are new.

    python benchmarks/pooling.py    # half an hour
"""

import itertools
import time
import warnings

import numpy as np
import pandas as pd

import tractable as tr
from tractable.diagnostics.networks import side_of
from tractable.diagnostics.predictions import score_rows

FAMILIES, LEVELS, ROWS, SDS = ("normal", "bernoulli"), (5, 15, 40, 90), (3, 10, 40), (0.0, 0.3, 1.0)
NEW = 4000  # rows to predict


def simulate(family: str, levels: int, each: int, sd: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table to fit, in which every level occurs, and one to predict."""
    rng = np.random.default_rng(0)
    effects, tables = rng.normal(0, sd, levels), []
    for count in (levels * each, NEW):
        group, x = rng.integers(0, levels, count), rng.normal(size=count)
        group[:levels] = np.arange(levels)
        eta = 0.5 * x + effects[group]
        y = eta + rng.normal(size=count) if family == "normal" else rng.random(count) < 1 / (1 + np.exp(-eta))
        tables.append(pd.DataFrame({"x": x, "city": [f"c{i:03d}" for i in group], "y": y}))
    return tables[0], tables[1]


def main() -> None:
    warnings.simplefilter("ignore", tr.errors.TractableWarning)
    print("family levels rows/level sd | own: method seconds verdict | pooled: method seconds verdict | gain")
    for case in itertools.product(FAMILIES, LEVELS, ROWS, SDS):
        train, new = simulate(*case)
        densities, words = [], []
        for pool in ([], ["city"]):
            start = time.perf_counter()
            posterior = tr.fit(train, "y", family=case[0], pool=pool)
            seconds = time.perf_counter() - start
            scores = score_rows(side_of(posterior), posterior.model.table.data(new), 0)
            densities.append(float(scores.log_densities.mean()))
            words.append(f"{type(posterior.method).__name__} {seconds:.1f} {posterior.report().verdict}")
        print(*case, "|", " | ".join(words), "|", f"{densities[1] - densities[0]:+.4f}", flush=True)


if __name__ == "__main__":
    main()
