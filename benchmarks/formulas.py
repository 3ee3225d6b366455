"""Do formulas give the posteriors that bambi gives, and in what time?

Five of bambi's published examples are used: sleepstudy (varying intercepts and slopes), radon (many small groups),
votes (logistic, an interaction), absences (negative binomial, an interaction), blossoms (splines). Their tables are not
part of bambi, so ours are simulated from models of the same shape and size. Both libraries get the same formula, use
their own default priors, and run NUTS with 4 chains of 1000 draws after 1000 steps of warm-up; bambi does so by PyMC,
on the same number of cores. Only for logistic regression, where bambi's default priors are narrower than ours, both get
the same priors by name. Time is the wall time from the table to the draws, with compilation, of one run. Ours runs
without verification (``verify=None``), which bambi does not have.

    python benchmarks/formulas.py --bambi /path/to/python    # of an environment with bambi
"""

import argparse
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FORMULAS = {
    "sleepstudy": ("Reaction ~ 1 + Days + (1 + Days | Subject)", "normal"),
    "radon": ("log_radon ~ floor + uranium + (1 | county)", "normal"),
    "votes": ("vote ~ party + party:age", "bernoulli"),
    "absences": ("days ~ 0 + prog + scale(math) + prog:scale(math)", "negative-binomial"),
    "blossoms": ("doy ~ bs(year, df=16)", "normal"),
}
PRIORS = {"votes": {"Intercept": 2.5, "party": 2.5, "party:age": 0.1}}  # sds, of normals around 0
BAMBI = {"normal": "gaussian", "bernoulli": "bernoulli", "negative-binomial": "negativebinomial"}


def tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    days, subject = np.tile(np.arange(10.0), 18), np.repeat(np.arange(18), 10)
    level, slope = 251 + 25 * rng.normal(size=18), 10.5 + 6 * rng.normal(size=18)
    reaction = level[subject] + slope[subject] * days + 26 * rng.normal(size=180)
    made = {"sleepstudy": {"Reaction": reaction, "Days": days, "Subject": [f"S{i}" for i in subject]}}

    county, floor = rng.choice(85, 919, p=rng.dirichlet(np.ones(85))), rng.random(919) < 0.17
    uranium = rng.normal(-0.13, 0.35, 85)
    log_radon = 1.46 + 0.15 * rng.normal(size=85)[county] + 0.7 * uranium[county] - 0.66 * floor
    log_radon = log_radon + 0.75 * rng.normal(size=919)
    made["radon"] = {
        "log_radon": log_radon, "floor": np.where(floor, "first", "basement"), "uranium": uranium[county],
        "county": [f"C{i}" for i in county],
    }  # fmt: skip

    party, age = rng.choice(3, 421, p=[0.44, 0.24, 0.32]), rng.integers(18, 95, 421).astype(float)
    eta = np.array([1.7, 0.6, -0.4])[party] + np.array([0.013, -0.003, -0.08])[party] * (age - 20) / 2
    vote = (rng.random(421) < 1 / (1 + np.exp(-eta))).astype(int)
    made["votes"] = {"vote": vote, "party": np.array(["democrat", "independent", "republican"])[party], "age": age}

    prog, math = rng.choice(3, 316, p=[0.13, 0.53, 0.34]), rng.normal(48, 25, 316).clip(1, 99)
    mean = np.exp(np.array([2.3, 1.9, 0.7])[prog] - 0.006 * (math - 48))
    made["absences"] = {
        "days": rng.negative_binomial(1.0, 1 / (1 + mean)), "prog": np.array(["academic", "general", "other"])[prog],
        "math": math,
    }  # fmt: skip

    year = np.sort(rng.choice(np.arange(812, 2016), 827, replace=False)).astype(float)
    doy = 104 + 3 * np.sin(year / 130) - 6 / (1 + np.exp(-(year - 1920) / 25)) + 6 * rng.normal(size=827)
    made["blossoms"] = {"year": year, "doy": doy}
    return {name: pd.DataFrame(columns) for name, columns in made.items()}


def ours(name: str, table: pd.DataFrame) -> dict[str, Any]:
    import numpyro.distributions as dist

    import tractable as tr

    formula, family = FORMULAS[name]
    priors = {each: dist.Normal(0.0, sd) for each, sd in PRIORS.get(name, {}).items()}
    began = time.perf_counter()
    fitted = tr.models.regression(formula, table, family=family, priors=priors)
    posterior = tr.infer(fitted.model, fitted.data, tr.NUTS(draws=1000, warmup=1000), verify=None, progress=False)
    seconds, told = time.perf_counter() - began, posterior.summary()
    told = told[["|" not in str(name) or str(name).startswith("sd(") for name in told.index]]
    return {
        "seconds": seconds, "mean": told["mean"].to_dict(), "sd": told["sd"].to_dict(),
        "ess": float(told["ess_bulk"].min()), "r_hat": float(told["r_hat"].max()),
    }  # fmt: skip


def theirs(folder: Path, names: list[str]) -> None:
    """A program for bambi's Python: prints, as JSON, what ``ours`` returns, for the tables in a folder."""
    import arviz
    import bambi

    for name in names:
        (formula, family), table = FORMULAS[name], pd.read_csv(folder / f"{name}.csv")
        priors = {each: bambi.Prior("Normal", mu=0, sigma=sd) for each, sd in PRIORS.get(name, {}).items()}
        began = time.perf_counter()
        model = bambi.Model(formula, table, family=BAMBI[family], priors=priors)
        drawn = model.fit(draws=1000, tune=1000, chains=4, random_seed=0, progressbar=False)
        seconds = time.perf_counter() - began
        told = arviz.summary(drawn, round_to="none")
        told = told[["|" not in each or "_sigma" in each for each in told.index]]
        (folder / f"{name}.json").write_text(
            json.dumps({
                "seconds": seconds, "mean": told["mean"].to_dict(), "sd": told["sd"].to_dict(),
                "ess": float(told["ess_bulk"].min()), "r_hat": float(told["r_hat"].max()),
            })
        )  # fmt: skip


def alike(name: str) -> str:
    """bambi's name for our parameter ``name``; "" if that parameter has another meaning there."""
    if name.startswith("sd("):
        return f"{name[3:-1]}_sigma"
    levels, bare = re.findall(r"\[(.*?)\]", name), re.sub(r"\[.*?\]", "", name)  # prog[b]:x is prog:x[b]
    return {"noise": "sigma", "dispersion": ""}.get(name, f"{bare}[{', '.join(levels)}]" if levels else name)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--bambi", default="", help="Python of an environment with bambi; without it ours alone")
    words.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    words.add_argument("--only", nargs="*", default=list(FORMULAS))
    said = words.parse_args()
    if said.theirs:
        return theirs(said.theirs, said.only)
    from measuring import record  # bambi's Python has no JAX

    head, rows = ["example", "Δ mean, sds", "sd ratio", "ours, s", "bambi, s"], []
    print("| example | rows | parameters compared | Δ mean, sds | sd ratio | ours: s, min ESS | bambi: s, min ESS |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as held:
        folder, made = Path(held), tables()
        for name, table in made.items():
            table.to_csv(folder / f"{name}.csv", index=False)
        if said.bambi:
            subprocess.run([said.bambi, __file__, "--theirs", str(folder), "--only", *said.only], check=True)
        for name in said.only:
            mine, line = ours(name, made[name]), [name, str(len(made[name]))]
            other = json.loads((folder / f"{name}.json").read_text()) if said.bambi else None
            if other is None:
                line += ["", "", "", f"{mine['seconds']:.1f}, {mine['ess']:.0f}", ""]
            else:
                pairs = [(each, alike(each)) for each in mine["mean"] if alike(each) in other["mean"]]
                away = [abs(mine["mean"][a] - other["mean"][b]) / other["sd"][b] for a, b in pairs]
                ratio = [mine["sd"][a] / other["sd"][b] for a, b in pairs]
                absent = [each for each in mine["mean"] if alike(each) and alike(each) not in other["mean"]]
                line += [f"{len(pairs)}" + (f" (not {', '.join(absent)})" if absent else ""), f"{max(away):.2f}"]
                line += [f"{min(ratio):.2f}–{max(ratio):.2f}", f"{mine['seconds']:.1f}, {mine['ess']:.0f}"]
                line += [f"{other['seconds']:.1f}, {other['ess']:.0f}"]
                rows.append([name, round(max(away), 2), line[-3], mine["seconds"], other["seconds"]])
            print(f"| {' | '.join(line)} |", flush=True)
    if rows:
        record(__file__, head, rows)


if __name__ == "__main__":
    main()
