"""Do predictions hold where a table has many columns for its rows?

    python benchmarks/wide_tables.py [--quick] [--seeds 4]

``BayesianLinearRegression()``, whose weights share a learnt scale for such tables, is compared with
``weight_scale=2.5`` and with scikit-learn's ``BayesianRidge``, which has the scale of maximal evidence and a normal
posterior. The columns are normal, independent or with a common part of half their variance; a few or all columns have
effects; the noise's sd is half the signal's. The table shows the RMSE, the share inside 90 % intervals and their width
on 400 new rows, in sds of y, and the seconds of a fit with its report; the first fit of a shape includes compiling.
"""

import time
import warnings

import numpy as np
from measuring import arguments, record, say_where, table
from sklearn.linear_model import BayesianRidge

from tractable.estimators import BayesianLinearRegression

NEW = 400
HEAD = ["rows × columns", "with effect", "common part", "", "RMSE", "inside 90 %", "width", "seconds", "verdict"]


def drawn(seed: int, rows: int, columns: int, effects: int, common: float) -> tuple[np.ndarray, np.ndarray]:
    """x (rows + NEW, columns) and y; the y of the rows to fit have sd 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows + NEW, columns))
    x = np.sqrt(1 - common) * x + np.sqrt(common) * rng.normal(size=(rows + NEW, 1))
    signal = x[:, :effects] @ rng.normal(size=effects) / np.sqrt(effects)
    y = signal + signal.std() / 2 * rng.normal(size=len(x))
    return x, y / y[:rows].std()


def judged(y: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[float]:
    return [
        float(np.sqrt(np.mean((y - mean) ** 2))),
        float(np.mean((y > low) & (y < high))),
        float(np.mean(high - low)),
    ]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=4)
    asked = parser.parse_args()
    shapes = [(60, 100, 5, 0.0), (60, 100, 100, 0.0), (60, 100, 5, 0.5), (45, 10, 3, 0.0), (150, 200, 10, 0.0)]
    shapes += [(100, 1000, 1000, 0.5), (400, 5000, 20, 0.5), (72, 7129, 7129, 0.5)]
    say_where("Tables of many columns for their rows")
    rows = []
    for count, columns, effects, common in shapes[3:4] if asked.quick else shapes:
        found: dict[str, list[list[float]]] = {}
        verdicts: dict[str, list[str]] = {}
        for seed in range(1 if asked.quick else asked.seeds):
            x, y = drawn(seed, count, columns, effects, common)
            learnt, new = (x[:count], y[:count]), (x[count:], y[count:])
            for name, scale in (("learnt scale", None), ("N(0, 2.5²)", 2.5)):
                began = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = BayesianLinearRegression(scale, random_state=0).fit(*learnt)
                took = time.perf_counter() - began
                told = [*judged(new[1], model.predict(new[0]), *model.predict_interval(new[0]).T), took]
                found.setdefault(name, []).append(told)
                verdicts.setdefault(name, []).append(model.report_.verdict)
            began = time.perf_counter()
            ridge = BayesianRidge().fit(*learnt)
            took = time.perf_counter() - began
            mean, sd = ridge.predict(new[0], return_std=True)
            found.setdefault("BayesianRidge", []).append(
                [*judged(new[1], mean, mean - 1.645 * sd, mean + 1.645 * sd), took]
            )
        for name, told in found.items():
            said = verdicts.get(name, [])
            shown = ", ".join(f"{word} {said.count(word)}" for word in dict.fromkeys(said)) or "–"
            rows.append([f"{count} × {columns}", effects, common, name, *np.mean(told, 0).tolist(), shown])
    table(HEAD, rows)
    record(__file__, HEAD, rows, names=4)


if __name__ == "__main__":
    main()
