"""Are the linear estimators right, and how long do they take beside scikit-learn's?

    python benchmarks/linear_speed.py [--quick] [--rows 500000] [--columns 50]

Half of the columns are normal, the others every level of one categorical column, one-hot, so that with an intercept the
design has a ridge which only the prior closes. Processor seconds of a second fit, of one thread, from the table to the
report, and the clock's of the posterior alone, which a fit without the second look tells; sds beside exact ones: of
linear regression (XᵀX/σ² + 1/s²)⁻¹ at the posterior mean of σ, of logistic regression the inverse information at the
posterior mean, both in double precision.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import time
import warnings
from typing import Any

import numpy as np
from measuring import arguments, record
from scipy.special import expit
from sklearn.linear_model import BayesianRidge, LogisticRegression

from tractable.estimators import BayesianLinearRegression, BayesianLogisticRegression


def one_hot(rows: int, columns: int) -> np.ndarray:
    """(rows, columns): normal columns, then every level of one categorical column."""
    rng, levels = np.random.default_rng(0), columns // 2
    hot = np.eye(levels)[rng.choice(levels, rows, p=np.arange(1, levels + 1) / (levels * (levels + 1) / 2))]
    return np.column_stack([rng.normal(size=(rows, columns - levels)), hot])


def seconds(fit: Any) -> float:
    """Processor seconds of a second call."""
    fit()
    began = time.process_time()
    fit()
    return time.process_time() - began


def exact(model: Any, x: np.ndarray, curvature: Any) -> np.ndarray:
    """(D,) sds of the standardised columns' weights, by the inverse of the information with the prior's."""
    design = np.column_stack([model._scaling.inputs(x), np.ones(len(x))])
    scales = np.append(np.full(x.shape[1], model.weight_scale or 2.5), model.intercept_scale)
    precision = design.T @ (design * curvature) + np.diag(scales**-2.0)
    return np.sqrt(np.diag(np.linalg.inv(precision)))[:-1]


def fit_row(kind: str, model: Any, took: float, ratio: np.ndarray) -> list:
    """A row, after it was printed: of a fit without the second look the posterior alone, else all up to the report."""
    alone = sum(model.posterior_.standardised.seconds[phase] for phase in ("climbing", "drawing"))
    print(
        f"{kind}, verify={model.verify}: {took:.2f} s, of which the posterior {alone:.2f} s by the clock, sds "
        f"{ratio.min():.4f} to {ratio.max():.4f} of exact, {model.report_.verdict}",
        flush=True,
    )
    what, took = ("posterior alone", alone) if model.verify is None else ("table to report", took)
    return [f"{kind}, {what}", took, f"{ratio.min():.4f} to {ratio.max():.4f}"]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=50)
    asked = parser.parse_args()
    rows, columns = (2000, 12) if asked.quick else (asked.rows, asked.columns)
    warnings.simplefilter("ignore")
    x, rng = one_hot(rows, columns), np.random.default_rng(1)
    eta = x @ rng.normal(0, 0.3, columns)
    y, lines = eta + rng.normal(0, 2.0, rows), []
    for verify in (None, "auto"):
        ours = BayesianLinearRegression(random_state=0, verify=verify)
        mine = seconds(lambda ours=ours: ours.fit(x, y))
        sd = ours.posterior_.standardised.sd()["weights"]
        ratio = sd / exact(ours, x, np.full((rows, 1), 1 / float(ours.posterior_.standardised.mean()["noise"]) ** 2))
        lines.append(fit_row("linear", ours, mine, ratio))
    peers = [seconds(lambda: BayesianRidge().fit(x, y))] * 2
    print(f"BayesianRidge: {peers[0]:.2f} s", flush=True)
    labels = (rng.random(rows) < expit(eta)).astype(int)
    for verify in (None, "auto"):
        ours = BayesianLogisticRegression(random_state=0, verify=verify)
        mine = seconds(lambda ours=ours: ours.fit(x, labels))
        mean, sd = ours.posterior_.standardised.mean(), ours.posterior_.standardised.sd()["weights"]
        p = expit(ours._scaling.inputs(x) @ np.asarray(mean["weights"], np.float64) + float(mean["intercept"]))
        ratio = sd / exact(ours, x, (p * (1 - p))[:, None])
        lines.append(fit_row("logistic", ours, mine, ratio))
    peers += [seconds(lambda: LogisticRegression(max_iter=1000).fit(x, labels))] * 2
    print(f"LogisticRegression: {peers[-1]:.2f} s")
    head = ["fit", "s", "sds, times exact", "scikit-learn, s"]
    record(__file__, head, [[*line, peer] for line, peer in zip(lines, peers, strict=True)])


if __name__ == "__main__":
    main()
