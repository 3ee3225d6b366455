"""Do our methods agree with the reference posteriors of posteriordb?

For NUTS the table shows the largest |z| of a mean and of an sd, where z is the difference divided by the Monte Carlo
error of both sides. For every method it shows the largest error of a mean in reference sds, the sd ratio furthest from
1, and the verdict of the report, which does not know the reference. All runs are in float64.

Predicted: NUTS has |z| ≤ 5.33 on every posterior. Random walk and MALA are within a tenth of an sd wherever their
verdict is trust. SGLD("auto") is within its tolerance of 5 % of an sd wherever its verdict is trust; where it is not
(few rows, funnels, heavy tails), its verdict is not trust.

    python benchmarks/posteriordb.py --data DIR [--only NAME ...] [--methods nuts,mala,random-walk,sgld] [--quick]

With ``--gradients SEEDS`` the table has instead the effective draws for 1,000 gradients, those of the warm-up included,
of NUTS here, with Stan's warm-up by BlackJAX and with both warm-ups of nutpie if it is installed: the smaller of bulk
and tail effective sizes, of the parameter where it is smallest, in the median over the seeds. The posteriors of
``gradient_models.py`` are there too. Predicted: the ratio to Stan's is at least 1.3 in the median over the posteriors,
at least 3 in the median where the condition number after scaling exceeds 10, and nowhere below 0.9.

DIR holds posteriordb/, a folder for each posterior with data.json and reference.npz.
"""

import functools
import importlib.util
import time
import warnings
from collections.abc import Callable

import gradient_models
import jax
import numpy as np
import other_warm_ups
from measuring import arguments, data_folder, record, say_where, table
from posteriordb_models import MODELS, Problem, Reference, load, read_reference

import tractable as tr
from tractable.diagnostics.convergence import diagnose

MANY = 300_000  # gradients of Stan's warm-up and draws, beyond which nutpie with a diagonal matrix is left out
PATIENCE = 12.0  # no further seed is run for a warm-up of a posterior after so many processor seconds
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


def our_warm_up(problem: Problem) -> other_warm_ups.Run:
    """NUTS here, without its second run that halves steps."""
    settings = problem.nuts | {"target": other_warm_ups.TARGET}

    def run(seed: int) -> tuple[np.ndarray, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = tr.infer(problem.model, problem.data, tr.NUTS(**settings), seed=seed, progress=False, verify=None)
        return np.asarray(found.belief.positions), found.cost.gradients

    return run


def rate(positions: np.ndarray, gradients: float) -> float:
    """Effective draws for 1,000 gradients; 0 if a number does not move."""
    seen = diagnose(positions)
    return float(np.nan_to_num(1000 * min(seen.bulk.min(), seen.tail.min()) / gradients))


def compare_gradients(problems: dict[str, Callable[[], Problem]], seeds: int, whole: bool) -> None:
    """The table of effective draws for 1,000 gradients; a table of ``whole`` is recorded."""
    warm_ups = {"here": our_warm_up, "Stan": other_warm_ups.stan}
    if importlib.util.find_spec("nutpie"):
        low_rank = functools.partial(other_warm_ups.nutpie, low_rank=True)
        warm_ups |= {"nutpie": other_warm_ups.nutpie, "nutpie, low rank": low_rank}
    else:
        print("nutpie is not installed, so its columns are left out: pip install nutpie.\n")
    rows = []
    for name, make in problems.items():
        problem, rates, runs = make(), {}, []
        for label, warm_up in warm_ups.items():
            if label == "nutpie" and (runs[0][1] > MANY or problem.nuts.get("dense")):
                rates[label] = [np.nan]
                continue
            run, runs, began = warm_up(problem), [], time.process_time()
            while len(runs) < seeds and (not runs or time.process_time() < began + PATIENCE):
                runs.append(run(len(runs)))
            rates[label] = [rate(*each) for each in runs]
        flat = runs[0][0].reshape(-1, runs[0][0].shape[-1])
        condition = float(np.linalg.cond(np.corrcoef(flat.T))) if flat.shape[1] > 1 else 1.0
        logs = [np.log(ours / theirs) for ours, theirs in zip(rates["here"], rates["Stan"], strict=False)]
        error = float(np.std(logs, ddof=1) / np.sqrt(len(logs))) if len(logs) > 1 else np.nan
        middle = [float(np.median(each)) for each in rates.values()]
        rows.append([name, flat.shape[1], condition, *middle, middle[0] / middle[1], error])
        print(*rows[-1][:2], *(f"{number:.3g}" for number in rows[-1][2:]), sep="; ", flush=True)
    print()
    table(["posterior", "parameters", "condition", *warm_ups, "here / Stan", "error of its logarithm"], rows)
    figures = compared_rates(rows, list(warm_ups)[1:])
    table(["", "value"], figures)
    if whole:
        record(__file__, ["", "value"], figures)


def compared_rates(rows: list[list], others: list[str]) -> list[list]:
    """The figures of the table: medians of the ratios to the other warm-ups, and the least one to the first."""
    numbers, figures = np.array([row[1:] for row in rows]), []
    for column, other in enumerate(others, 3):
        known = np.isfinite(numbers[:, column]) & (numbers[:, column] > 0)
        ratios, stiff = numbers[known, 2] / numbers[known, column], numbers[known, 1] > 10
        figures.append([f"draws a gradient, over {other}", float(np.median(ratios))])
        if column == 3:
            figures.append(["the same, stiff ones", float(np.median(ratios[stiff]))])
            figures.append(["the same, least", float(ratios.min())])
    return figures


def main() -> None:
    parser = arguments(__doc__, data=True)
    parser.add_argument("--only", nargs="+", choices=sorted(MODELS | gradient_models.MODELS), metavar="NAME")
    parser.add_argument("--methods", help="of nuts,mala,random-walk,sgld; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", type=int, metavar="SEEDS", help="compare effective draws for 1,000 gradients")
    args = parser.parse_args()
    folder = data_folder(args.data, "posteriordb")
    jax.config.update("jax_enable_x64", True)
    say_where("Do our methods agree with posteriordb?")
    names = args.only or (["kidiq"] if args.quick else list(MODELS))
    if args.gradients:
        problems = dict(gradient_models.MODELS)
        problems |= {name: functools.partial(load, name, folder / MODELS[name][0]) for name in MODELS}
        chosen = names if args.only or args.quick else list(problems)
        compare_gradients({name: problems[name] for name in chosen}, args.gradients, not args.only)
        return
    if missing := [name for name in names if name not in MODELS]:
        parser.error(f"{', '.join(missing)}: there are no reference draws; pass --gradients SEEDS too.")
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
