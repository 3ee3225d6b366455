"""Do our methods agree with the reference posteriors of posteriordb?

For NUTS the table shows the largest |z| of a mean and of an sd, where z is the difference divided by the Monte Carlo
error of both sides. For every method it shows the largest error of a mean in reference sds, the sd ratio furthest from
1, and the verdict of the report, which does not know the reference. All runs are in float64.

Predicted: NUTS has |z| ≤ 5.33 on every posterior. Random walk and MALA are within a tenth of an sd wherever their
verdict is trust. SGLD("auto") is within its tolerance of 5 % of an sd wherever its verdict is trust; where it is not
(few rows, funnels, heavy tails), its verdict is not trust.

    python benchmarks/posteriordb.py --data DIR [--only NAME ...] [--methods nuts,mala,random-walk,sgld] [--quick]

With ``--gradients SEEDS`` the table has instead the effective draws for 1,000 gradients, those of the warm-up included,
of NUTS here and of NUTS with Stan's warm-up by BlackJAX: the smaller of bulk and tail effective sizes, of the parameter
where it is smallest, in the median over the seeds. Predicted: the ratio is at least 1.3 in the median over the
posteriors, at least 3 in the median where the condition number after scaling exceeds 10, and nowhere below 0.9.

DIR holds posteriordb/, a folder for each posterior with data.json and reference.npz.
"""

import pathlib
import time
import warnings
from typing import Any

import jax
import numpy as np
from measuring import arguments, data_folder, record, say_where, table
from posteriordb_models import MODELS, Problem, Reference, load, read_reference

import tractable as tr
from tractable.diagnostics.convergence import diagnose
from tractable.engine.drawing import starts

TARGET = 0.8  # acceptance probability of both warm-ups in the comparison of gradients
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


def stan_warm_up(problem: Problem, seed: int) -> tuple[np.ndarray, float]:
    """Draws (chain, draw, d) by BlackJAX's NUTS after Stan's windowed warm-up, and the number of gradients."""
    import blackjax

    rows = None if problem.data is None else problem.data.arrays()
    density = tr.log_density(problem.model, rows, flat=True)
    dense = problem.nuts.get("dense", False)

    def chain(key: jax.Array, start: jax.Array) -> tuple:
        warm, run = jax.random.split(key)
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, density, is_mass_matrix_diagonal=not dense, target_acceptance_rate=TARGET,
            adaptation_info_fn=lambda state, info, _: info.num_integration_steps,
        )  # fmt: skip
        (state, parameters), spent = adaptation.run(warm, start, num_steps=1000)
        step = blackjax.nuts(density, **parameters).step

        def once(state: Any, key: jax.Array) -> tuple:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        positions, more = jax.lax.scan(once, state, jax.random.split(run, 1000))[1]
        return positions, spent.sum() + more.sum()

    begin = starts(problem.model, problem.data, jax.random.key(seed), 4)
    positions, gradients = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed + 1), 4), begin)
    return np.asarray(positions), float(gradients.sum())


def rate(positions: np.ndarray, gradients: float) -> float:
    """Effective draws for 1,000 gradients."""
    seen = diagnose(positions)
    return 1000 * float(min(seen.bulk.min(), seen.tail.min())) / gradients


def compare_gradients(folder: pathlib.Path, names: list[str], seeds: int) -> None:
    """The table of effective draws for 1,000 gradients."""
    rows = []
    for name in names:
        problem, ours, theirs = load(name, folder / MODELS[name][0]), [], []
        for seed in range(seeds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                method = tr.NUTS(**problem.nuts | {"target": TARGET})
                posterior = tr.infer(problem.model, problem.data, method, seed=seed, progress=False, verify=None)
            ours.append(rate(np.asarray(posterior.belief.positions), posterior.cost.gradients))
            theirs.append(rate(*stan_warm_up(problem, seed)))
        flat = np.asarray(posterior.belief.positions).reshape(-1, posterior.belief.positions.shape[-1])
        condition = float(np.linalg.cond(np.corrcoef(flat.T))) if flat.shape[1] > 1 else 1.0
        both = float(np.median(ours)), float(np.median(theirs))
        error = float(np.std(np.log(np.divide(ours, theirs)), ddof=1) / np.sqrt(seeds)) if seeds > 1 else np.nan
        rows.append([name, condition, *both, both[0] / both[1], error])
        print(name, *(f"{number:.3g}" for number in rows[-1][1:]), flush=True)
    print()
    table(["posterior", "condition", "here", "Stan's warm-up", "ratio", "error of its logarithm"], rows)
    ratios = np.array([row[4] for row in rows])
    stiff = np.array([row[1] > 10 for row in rows])
    print(
        f"\nMedian ratio {np.median(ratios):.2f}; where stiff {np.median(ratios[stiff]):.2f}; least {ratios.min():.2f}."
    )


def main() -> None:
    parser = arguments(__doc__, data=True)
    parser.add_argument("--only", nargs="+", choices=sorted(MODELS), metavar="NAME")
    parser.add_argument("--methods", help="of nuts,mala,random-walk,sgld; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", type=int, metavar="SEEDS", help="compare effective draws for 1,000 gradients")
    args = parser.parse_args()
    folder = data_folder(args.data, "posteriordb")
    jax.config.update("jax_enable_x64", True)
    say_where("Do our methods agree with posteriordb?")
    names = args.only or (["kidiq"] if args.quick else list(MODELS))
    if args.gradients:
        compare_gradients(folder, names, args.gradients)
        return
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
