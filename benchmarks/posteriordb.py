"""Do our methods agree with the reference posteriors of posteriordb?

For NUTS the table shows the largest |z| of a mean and of an sd, where z is the difference divided by the Monte Carlo
error of both sides. For every method it shows the largest error of a mean in reference sds, the sd ratio furthest from
1, and the verdict of the report, which does not know the reference. All runs are in float64.

Predicted: NUTS has |z| ≤ 5.33 on every posterior. Random walk and MALA are within a tenth of an sd wherever their
verdict is trust. SGLD("auto") is within its tolerance of 5 % of an sd wherever its verdict is trust; where it is not
(few rows, funnels, heavy tails), its verdict is not trust.

    python benchmarks/posteriordb.py --data DIR [--only NAME ...] [--methods nuts,mala,random-walk,sgld] [--quick]

DIR holds posteriordb/, a folder for each posterior with data.json and reference.npz.
"""

import time
import warnings

import jax
import numpy as np
from measuring import arguments, data_folder, record, say_where, table
from posteriordb_models import MODELS, Problem, Reference, load, read_reference

import tractable as tr
from tractable.diagnostics.convergence import diagnose

WRONG_MEAN, WRONG_SD = 0.25, 0.07  # in sds, and of an sd, from which on no result should be trusted


def method(name: str, problem: Problem, quick: bool) -> tr.Method | None:
    """The settings of each method; None if it does not apply."""
    if name == "nuts":
        return tr.NUTS(draws=200 if quick else 2500, warmup=300 if quick else 1000, **problem.nuts)
    if name == "mala":
        return tr.MALA(draws=200 if quick else 2000, warmup=500 if quick else 5000, thin=1 if quick else 10)
    if name == "random-walk":
        return tr.RandomWalk(draws=200 if quick else 2000, warmup=1000 if quick else 20_000, thin=1 if quick else 50)
    if problem.data is None:
        return None
    size = problem.data.size
    return tr.SGLD(draws=200 if quick else 2000, warmup=500 if quick else 5000, batch_size=min(100, max(1, size // 4)))


def compared(values: np.ndarray, reference: Reference) -> dict[str, float]:
    """Compares draws (chain, draw, k) with the reference."""
    seen = diagnose(values)
    flat = values.reshape(-1, values.shape[-1])
    mean, sd = flat.mean(0), flat.std(0)
    z_mean = (mean - reference.mean) / np.hypot(seen.mcse_mean, reference.mcse_mean)
    z_sd = (sd - reference.sd) / np.hypot(seen.mcse_sd, reference.mcse_sd)
    ratio = sd / reference.sd
    return {
        "z mean": float(np.abs(z_mean).max()),
        "z sd": float(np.abs(z_sd).max()),
        "error": float(np.max(np.abs(mean - reference.mean) / reference.sd)),
        "sd ratio": float(ratio[np.argmax(np.abs(np.log(np.maximum(ratio, 1e-12))))]),
    }


def main() -> None:
    parser = arguments(__doc__, data=True)
    parser.add_argument("--only", nargs="+", choices=sorted(MODELS), metavar="NAME")
    parser.add_argument("--methods", help="of nuts,mala,random-walk,sgld; all by default")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = data_folder(args.data, "posteriordb")
    jax.config.update("jax_enable_x64", True)
    say_where("Do our methods agree with posteriordb?")
    names = args.only or (["kidiq"] if args.quick else list(MODELS))
    rows = []
    for name in names:
        place = folder / MODELS[name][0]
        reference, problem = read_reference(place), load(name, place)
        for label in (args.methods or ("nuts,sgld" if args.quick else "nuts,mala,random-walk,sgld")).split(","):
            chosen = method(label, problem, args.quick)
            if chosen is None:
                continue
            began = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    posterior = tr.infer(problem.model, problem.data, chosen, seed=args.seed, progress=False)
                    report = posterior.report()
            except Exception as error:  # an error message is a result too
                rows.append([name, label, None, None, None, None, None, None, "error", str(error)[:80]])
                print(f"{name}, {label}: {error}", flush=True)
                continue
            found = compared(problem.values(posterior.draws), reference)
            seen = posterior.diagnosed
            why = next((c.name for c in report.checks if c.verdict == report.verdict != "trust"), "")
            within = label == "nuts"
            rows.append(
                [name, label, found["z mean"] if within else None, found["z sd"] if within else None, found["error"],
                 found["sd ratio"], float(np.nanmax(seen.rhat)), float(seen.bulk.min()), report.verdict, why]
            )  # fmt: skip
            print(f"{name}, {label}: {time.perf_counter() - began:.0f} s", flush=True)
    print()
    table(
        ["posterior", "method", "largest z of a mean", "of an sd", "worst mean error, sds", "worst sd ratio", "R-hat",
         "min bulk ESS", "verdict", "because of"],
        rows,
    )  # fmt: skip
    if args.only or args.methods:
        return
    by_nuts, trusted = ([r for r in rows if r[i] == word] for i, word in ((1, "nuts"), (8, "trust")))
    counts = {
        "largest z of NUTS, of a mean": max(r[2] for r in by_nuts if r[2] is not None),
        "largest z of NUTS, of an sd": max(r[3] for r in by_nuts if r[3] is not None),
        "posteriors": len(names),
        "trusted by NUTS": sum(r[1] == "nuts" for r in trusted),
        "wrong results trusted": sum(not (r[4] <= WRONG_MEAN and abs(r[5] - 1) <= WRONG_SD) for r in trusted),
    }
    record(__file__, ["", "value"], list(counts.items()))


if __name__ == "__main__":
    main()
