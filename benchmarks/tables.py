"""Does `tractable fit` tell what five tables hold, by defaults alone, and how soon?

Five tables that resemble well-known ones are simulated, so that the true effects are known. They have the flaws of real
tables: identifiers, dates as text, missing values, a semicolon between columns. Each is fitted by a new process.
"found" counts the effects whose true value is within two posterior sds; effects of levels are relative to the mean of
all levels.

Predicted: the right family is guessed for each, 95 % of the effects are found, and all are trusted. Each takes less
than 20 s, half of it for compiling.

    python benchmarks/tables.py [--quick] [--out DIR]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from measuring import arguments, record, table

WAYS = ("clear", "mist", "rain")


class Case(NamedTuple):
    """A table, the options of its fit, and the true effects."""

    frame: pd.DataFrame
    target: str
    family: str
    truth: dict[str, float]
    options: tuple[str, ...] = ()
    separator: str = ","


def centred(names: list[str], effects: list[float]) -> dict[str, float]:
    return dict(zip(names, np.array(effects) - np.mean(effects), strict=True))


def bikes(rng: np.random.Generator, rows: int) -> Case:
    """Rentals an hour: counts, more spread than Poisson's, with a date."""
    when = pd.date_range("2011-01-01", periods=rows, freq="7h")
    season = np.cos(2 * np.pi * (when.day_of_year.to_numpy() - 200) / 365.25)
    temperature = 15 + 10 * season + rng.normal(0, 3, rows)
    humidity, weather = rng.uniform(20, 100, rows), rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    hour = 0.9 * np.cos(2 * np.pi * (when.hour.to_numpy() - 17) / 24)
    weekend = when.day_of_week.to_numpy() >= 5
    rate = np.exp(3.5 + 0.04 * temperature - 0.008 * humidity - 0.8 * (weather == 2) + hour - 0.3 * weekend)
    frame = pd.DataFrame(
        {
            "instant": np.arange(1, rows + 1), "when": when.strftime("%Y-%m-%d %H:%M"), "temp": temperature.round(1),
            "humidity": humidity.round(), "weather": np.array(WAYS)[weather],
            "count": rng.negative_binomial(3, 3 / (3 + rate)),
        }
    )  # fmt: skip
    truth = {"temp": 0.04, "humidity": -0.008} | centred([f"weather[{w}]" for w in WAYS], [0, 0, -0.8])
    return Case(frame, "count", "negative-binomial", truth)


def wine(rng: np.random.Generator, rows: int) -> Case:
    """Grades by tasters, in a file with semicolons between columns."""
    names = ("alcohol", "volatile acidity", "sulphates", "pH", "citric acid")
    middle, scale = np.array([10.4, 0.53, 0.66, 3.3, 0.27]), np.array([1, 0.18, 0.17, 0.15, 0.19])
    weights, x = np.array([0.8, -0.6, 0.3, 0, 0.5]), rng.normal(size=(rows, 5))
    grade = np.digitize(x @ weights + rng.logistic(size=rows), [-4, -2, 0, 2, 3.5]) + 3
    frame = pd.DataFrame({name: (x[:, i] * scale[i] + middle[i]).round(4) for i, name in enumerate(names)})
    truth = dict(zip(names, weights / scale, strict=True))
    return Case(frame.assign(quality=grade), "quality", "ordered", truth, separator=";")


def houses(rng: np.random.Generator, rows: int) -> Case:
    """Prices with a long tail; the number of cars that fit a garage is missing for some."""
    places, offset = ["Center", "North", "Old Town", "South", "West"], [0.3, 0, 0.1, -0.2, 0]
    area, year = rng.lognormal(7.3, 0.35, rows).round(), rng.integers(1900, 2010, rows)
    place, cars = rng.integers(0, 5, rows), rng.integers(0, 4, rows).astype(float)
    log_price = 11.3 + 4e-4 * area + 0.004 * (year - 1970) + np.array(offset)[place] + 0.1 * cars
    cars[rng.random(rows) < 0.1] = np.nan
    frame = pd.DataFrame(
        {
            "Id": np.arange(1, rows + 1), "LotArea": area, "YearBuilt": year, "Neighborhood": np.array(places)[place],
            "GarageCars": cars, "SalePrice": np.exp(log_price + rng.normal(0, 0.15, rows)).round(-2),
        }
    )  # fmt: skip
    truth = {"LotArea": 4e-4, "YearBuilt": 0.004} | centred([f"Neighborhood[{p}]" for p in places], offset)
    return Case(frame, "SalePrice", "lognormal", truth, ("--missing", "impute"))


def titanic(rng: np.random.Generator, rows: int) -> Case:
    """Who survived: names and cabins carry no information, and some ages are missing."""
    deck, woman = rng.choice(3, rows, p=[0.24, 0.21, 0.55]) + 1, rng.random(rows) < 0.35
    age, port = rng.normal(30, 14, rows).clip(0.5, 80).round(1), rng.choice(3, rows, p=[0.2, 0.1, 0.7])
    chance = 1 / (1 + np.exp(-(1.1 - 1.1 * (deck - 1) + 2.6 * woman - 0.03 * (age - 30))))
    survived = (rng.random(rows) < chance).astype(int)
    age[rng.random(rows) < 0.2] = np.nan
    frame = pd.DataFrame(
        {
            "PassengerId": np.arange(1, rows + 1), "Survived": survived, "Pclass": deck,
            "Name": [f"Passenger {i}" for i in range(rows)], "Sex": np.where(woman, "female", "male"), "Age": age,
            "Embarked": np.array(["C", "Q", "S"])[port],
        }
    )  # fmt: skip
    truth = {"Pclass": -1.1} | centred(["Sex[female]", "Sex[male]"], [2.6, 0.0])
    return Case(frame, "Survived", "bernoulli", truth, ("--missing", "impute"))


def stays(rng: np.random.Generator, rows: int) -> Case:
    """Nights in hospital: at least one, many few and few many; the day of admission as day.month.year."""
    age, emergency, ward = rng.integers(18, 95, rows), rng.random(rows) < 0.4, rng.choice(3, rows)
    rate = np.exp(0.9 + 0.015 * (age - 50) + 0.5 * emergency + np.array([0.2, 0, -0.1])[ward])
    admitted = pd.Timestamp("2022-01-03") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    frame = pd.DataFrame(
        {
            "patient_id": rng.permutation(10**6)[:rows], "admitted": admitted.strftime("%d.%m.%Y"), "age": age,
            "emergency": np.where(emergency, "yes", "no"),
            "ward": np.array(["cardiology", "general", "surgery"])[ward],
            "nights": rng.negative_binomial(2, 2 / (2 + rate)),
        }
    )  # fmt: skip
    wards = centred([f"ward[{w}]" for w in ("cardiology", "general", "surgery")], [0.2, 0, -0.1])
    return Case(frame, "nights", "negative-binomial", {"age": 0.015, "emergency": 0.5} | wards)


CASES = {"bikes": (bikes, 2000), "wine": (wine, 1600), "houses": (houses, 1200), "titanic": (titanic, 891),
         "stays": (stays, 1500)}  # fmt: skip
CODE = """
import json, pathlib, sys
from tractable.tables.encoder import Encoder
from tractable.cli.models import model_in
from tractable.cli.folders import read_run
from tractable.tables.effects import effects
from tractable.posterior.loading import load
folder = pathlib.Path(sys.argv[1])
spec = read_run(folder)["problem"]
model, encoder = model_in(spec)
posterior = load(folder, model)
told = effects(posterior, encoder)
print(json.dumps({"family": encoder.target.family, "verdict": posterior.report().verdict,
                  "effects": {name: [row["mean"], row["sd"]] for name, row in told.iterrows()}}))
"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--out", type=Path, help="folder of the tables and the runs")
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows_of_all = []
    for seed, (name, (make, count)) in enumerate(CASES.items()):
        case = make(np.random.default_rng(seed), count // 10 if options.quick else count)
        path, run = folder / f"{name}.csv", folder / f"{name}-run"
        case.frame.to_csv(path, index=False, sep=case.separator)
        words = [
            sys.executable,
            "-c",
            "from tractable.cli import main; main()",
            "fit",
            str(path),
            "--target",
            case.target,
            "--out",
            str(run),
        ]
        began = time.perf_counter()
        done = subprocess.run([*words, "--target", case.target, *case.options], capture_output=True, text=True)
        seconds = time.perf_counter() - began
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        if not (run / "report.html").exists():
            raise SystemExit(f"{name}: {done.stderr}")
        told = json.loads(subprocess.check_output([sys.executable, "-c", CODE, str(run)], text=True).splitlines()[-1])
        missed = []
        for effect, right in case.truth.items():
            mean, sd = told["effects"][effect]
            if abs(mean - right) > 2 * sd:
                missed.append(f"{effect} by {abs(mean - right) / sd:.1f} sds")
        if told["family"] != case.family:
            raise SystemExit(f"{name} is of family {told['family']}; expected {case.family}.")
        found = f"{len(case.truth) - len(missed)} of {len(case.truth)}"
        rows_of_all.append(
            [name, len(case.frame), case.frame.shape[1] - 1, told["family"], found, "; ".join(missed) or "–",
             told["verdict"], seconds]
        )  # fmt: skip
    heads = ["table", "rows", "inputs", "family", "found", "missed", "verdict", "seconds, cold"]
    table(heads, rows_of_all)
    record(__file__, heads, rows_of_all)


if __name__ == "__main__":
    main()
