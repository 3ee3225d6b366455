"""What do the defaults of `tractable fit` make of tables that nobody here made?

The tables are those that statsmodels and scikit-learn ship (`pip install statsmodels`). Each is fitted by a new process
with no option but the target; a fifth of the rows is held out. "family" is the family guessed from the target's values;
"inside 50 %" and "90 %" are the shares of held-out rows within those intervals. If statsmodels can maximise the
family's likelihood and there are ten rows or more for each column, effects are compared with maximum likelihood. "means
off" is the largest difference of a posterior mean from the maximum, in standard errors; "sds" is the range of posterior
sds divided by standard errors. Priors are wide, so these should be near 0 and 1.

Predicted: no table ends in an error. All are trusted except those whose few rows leave a skewed posterior. With many
rows, means are off by less than 0.3 and the ratios of sds are between 0.9 and 1.1.

    python benchmarks/real_tables.py [--quick] [--out DIR]
"""

import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from measuring import arguments, record, table

from tractable.cli.folders import read_run
from tractable.cli.models import model_in
from tractable.pages.held_out import held_out_scores
from tractable.posterior.loading import load
from tractable.tables.effects import effects
from tractable.tables.fit import split_rows

# A module of statsmodels.datasets, or of scikit-learn's loaders, and the target.
TABLES = [
    ("spector", "GRADE"), ("anes96", "vote"), ("anes96", "PID"), ("fair", "affairs"), ("fair", "rate_marriage"),
    ("randhie", "mdvis"), ("longley", "TOTEMP"), ("stackloss", "STACKLOSS"), ("copper", "WORLDCONSUMPTION"),
    ("engel", "foodexp"), ("statecrime", "murder"), ("cpunish", "EXECUTIONS"), ("committee", "BILLS104"),
    ("ccard", "AVGEXP"), ("star98", "NABOVE"), ("scotland", "YES"), ("grunfeld", "invest"), ("strikes", "duration"),
    ("macrodata", "infl"), ("modechoice", "choice"), ("load_diabetes", "target"), ("load_iris", "target"),
    ("load_wine", "target"), ("load_breast_cancer", "target"), ("load_linnerud", "Pulse"),
]  # fmt: skip
ROWS_A_COLUMN = 10


def frame_of(source: str) -> pd.DataFrame:
    if source.startswith("load_"):
        from sklearn import datasets

        return getattr(datasets, source)(as_frame=True).frame
    import statsmodels.api

    return getattr(statsmodels.api.datasets, source).load_pandas().data


def likeliest(frame: pd.DataFrame, target: str, family: str) -> tuple[pd.Series, pd.Series] | None:
    """Maximum likelihood and standard errors of each column's effect, by statsmodels; None for other families."""
    import statsmodels.api as sm

    x, y = frame.drop(columns=target), frame[target]
    if any(column.dtype.kind not in "biuf" for _, column in x.items()) or len(frame) < ROWS_A_COLUMN * x.shape[1]:
        return None
    centre, scale = x.mean(), x.std()
    design = sm.add_constant((x - centre) / scale)
    if family in ("normal", "lognormal"):
        found = sm.OLS(np.log(y) if family == "lognormal" else y, design).fit()
    elif family == "bernoulli":
        try:
            found = sm.Logit(y, design).fit(disp=0)
        except np.linalg.LinAlgError:  # classes that a plane separates have no maximum
            return None
    elif family in ("poisson", "negative-binomial"):
        kind = sm.Poisson if family == "poisson" else sm.NegativeBinomial
        found = kind(y, design).fit(disp=0, maxiter=500)
    else:
        return None
    return found.params[x.columns] / scale, found.bse[x.columns] / scale


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--out", type=Path, help="folder of the tables and the runs")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for source, target in TABLES[:2] if options.quick else TABLES:
        frame, name = frame_of(source), f"{source.removeprefix('load_')}-{target}"
        path, run = folder / f"{name}.csv", folder / f"{name}-run"
        frame.to_csv(path, index=False)
        words = [sys.executable, "-c", "from tractable.cli import main; main()", "fit", str(path), "--target", target]
        began = time.perf_counter()
        done = subprocess.run([*words, "--out", str(run)], capture_output=True, text=True)
        seconds = time.perf_counter() - began
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        size = f"{len(frame):,} × {frame.shape[1] - 1}"
        if not (run / "report.html").exists():
            rows.append([name, size, "–", "failed", "–", "–", "–", "–", seconds])
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append([name, size, *judged(pd.read_csv(path), target, run), seconds])
    heads = ["table", "size", "family", "verdict", "inside 50 %", "90 %", "means off", "sds", "seconds, cold"]
    table(heads, rows)
    sizes, seconds = [int(row[1].split()[0].replace(",", "")) for row in rows], [row[-1] for row in rows]
    verdicts = [row[3] for row in rows]
    counted = ["trust", "caution", "reject"]
    record(
        __file__,
        ["", "tables", "least rows", "most rows", *counted, "least seconds", "most seconds"],
        [["all", len(rows), min(sizes), max(sizes), *map(verdicts.count, counted), min(seconds), max(seconds)]],
    )


def judged(frame: pd.DataFrame, target: str, run: Path) -> list[str]:
    """A run's family, verdict, coverage of held-out rows, and effects compared with maximum likelihood."""
    from tractable.tables.models import data_of as as_rows

    spec = read_run(run)["problem"]
    model, encoder = model_in(spec)
    kept, rest = split_rows(frame, target, bool(encoder.target.classes), 0.2)
    posterior = load(run, model, as_rows(encoder, kept))
    scores = {score.name: score.value for score in held_out_scores(posterior, as_rows(encoder, rest), encoder).scores}
    inside = [f"{scores[f'coverage {level} %']:.2f}" if "CRPS" in scores else "–" for level in (50, 90)]
    found, beside = effects(posterior, encoder), likeliest(kept, target, encoder.target.family)
    if found is None or beside is None:
        return [encoder.target.family, posterior.report().verdict, *inside, "–", "–"]
    right, errors = beside
    own = found.loc[[name for name in right.index if name in found.index]]
    off = np.abs(own["mean"] - right[own.index]) / errors[own.index]
    ratio = own["sd"] / errors[own.index]
    ends = f"{ratio.min():.2f} to {ratio.max():.2f}"
    return [encoder.target.family, posterior.report().verdict, *inside, f"{off.max():.2f}", ends]


if __name__ == "__main__":
    main()
