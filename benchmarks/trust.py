"""Of posteriors told "trust", how many are wrong?

Every method runs on a population of targets with exact answers (``population.py``: 1,696 targets in 20 families), with
a quarter of its default draws or steps, with the default, and with four times as many. A posterior is right if for
every number that it reports (50 at most, among them the narrowest and the widest) |mean − truth| ≤ 0.2 sd, and its sd
is 0.8 to 1.25 times the true one. If the truth has no second moment, its 5, 50 and 95 % quantiles must be within 0.2
times half the width of the middle 68 %. A maximum with standard errors is judged by the same rule. A maximum without
them is right if its log density is within 0.1 nats (and rounding) of the best known. Maximum likelihood is judged in
this way too, because its standard errors do not belong to the posterior under the model's prior. Where there is no
posterior or, for a point estimate, no maximum, every result is wrong.

Goal: of the targets that any run trusted, at most 1 % are trusted wrongly, with an exact 95 % upper bound of 2 %, and
at most 5 % in each family. Of right posteriors at most 10 % are rejected and at least 60 % trusted. Once compiled,
checking takes at most half a second, or 25 % of the time of a run of more than two seconds.

    python benchmarks/trust.py --tune [--only FAMILY ...] [--methods nuts,map] [--budgets default] [--members 8]
    python benchmarks/trust.py --publish --processes 2 --record

Checks are chosen on the half ``--tune``; ``--publish`` runs the other half. It refuses to run that half again after the
source has changed, unless ``--again`` gives the reason, which is recorded. A hash of a target determines its half, and
files of both halves are never read together. The results have one line for each run; a study that was stopped continues
where it ended. By default runs use float32, as a user's runs do.
"""

import argparse
import functools
import hashlib
import json
import multiprocessing
import os
import pathlib
import platform
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import population
import population_realistic
from measuring import record, say_where, table
from population_truth import LEVELS, Truth, Variant
from scipy import optimize, stats

import tractable as tr
from tractable.core.model import counted_log_likelihoods

HERE = pathlib.Path(__file__).parent
BUDGETS = {"small": 0.25, "default": 1.0, "large": 4.0}
EVERYWHERE = ("map", "laplace", "meanfield", "fullrank", "lowrank", "nuts", "hmc", "mala", "random-walk")
METHODS: dict[str, tuple[type[tr.Method], tuple[str, ...]]] = {  # each with the settings that a budget multiplies
    "map": (tr.MAP, ("steps",)), "mle": (tr.MLE, ("steps",)), "laplace": (tr.Laplace, ("steps",)),
    "meanfield": (tr.MeanField, ("steps", "samples")), "fullrank": (tr.FullRank, ("steps", "samples")),
    "lowrank": (tr.LowRank, ("steps", "samples")), "bbb": (tr.BayesByBackprop, ("steps", "samples")),
    "nuts": (tr.NUTS, ("draws",)), "hmc": (tr.HMC, ("draws",)), "mala": (tr.MALA, ("draws",)),
    "random-walk": (tr.RandomWalk, ("draws",)), "sgld": (tr.SGLD, ("draws",)), "rejection": (tr.Rejection, ("draws",)),
}  # fmt: skip
MEAN, RATIO, QUANTILE, NATS = 0.2, (0.8, 1.25), 0.2, 0.1
REPORTED = 50
CLIMBS = 16
PATIENCE = 600  # seconds after which a run is stopped; it is then declined, as a run with an error is


class Judged(NamedTuple):
    """The comparison of a posterior's numbers with the truth.

    Attributes:
        right: whether the posterior is right.
        mean, ratio: the worst error of a mean in sds (of a quantile in half-widths), and the sd ratio furthest from 1;
            for a point without standard errors, the nats by which it lies below the best known maximum.
        worst: the name of the worst number, or of what does not exist (posterior, maximum).
    """

    right: bool
    mean: float
    ratio: float
    worst: str


def method_of(label: str, budget: str) -> tr.Method:
    """A method with its defaults, except for the budget."""
    kind, scaled = METHODS[label]
    defaults = kind()
    fixed = {"least_acceptance": 1e-4} if label == "rejection" else {}  # with a lower acceptance a run takes minutes
    numbers = {name: getattr(defaults, name) for name in scaled}
    # A setting that is None by default, such as the samples of Bayes by Backprop, depends on the model; it is left so.
    given = {name: max(1, round(number * BUDGETS[budget])) for name, number in numbers.items() if number is not None}
    return kind(**fixed, **given)


def applicable(variant: Variant, labels: Iterable[str]) -> list[str]:
    """Those of the methods that apply to a variant; for one or two numbers without LowRank, which equals FullRank."""
    fits = [label for label in (*EVERYWHERE, *variant.methods) if label != "lowrank" or variant.model.space.size > 2]
    return [label for label in labels if label in fits]


def flat(tree: Any) -> np.ndarray:
    """(k,) the numbers of a pytree, in the order of ``posterior.names``."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def reported(truth: Truth) -> np.ndarray:
    """Which of the k numbers are compared: all, or 50 from the narrowest to the widest."""
    width = truth.sd if truth.half is None else truth.half
    order = np.argsort(width, kind="stable")
    return order[np.unique(np.round(np.linspace(0, len(order) - 1, min(REPORTED, len(order)))).astype(int))]


def judged(target: population.Target, truth: Truth, posterior: tr.Posterior, label: str) -> Judged:
    """Whether a posterior is right, by the docstring's rule."""
    point = METHODS[label][0].point
    mean, sd = flat(posterior.mean()), flat(posterior.sd())
    if label == "mle" or (point and not np.any(np.isfinite(sd))):
        return judged_point(target, truth, mean, label)
    if not truth.proper:
        return Judged(False, np.inf, np.inf, "no posterior")
    index = reported(truth)
    if point:
        index = index[np.isfinite(sd[index])]
    if not np.all(np.isfinite(mean[index])) or not np.all(np.isfinite(sd[index])):
        return Judged(False, np.inf, np.inf, "not finite")
    named, exists = np.asarray(posterior.names)[index], np.isfinite(truth.sd[index])
    errors, ratios = np.zeros(len(index)), np.ones(len(index))
    with_moments = index[exists]
    errors[exists] = np.abs(mean - truth.mean)[with_moments] / truth.sd[with_moments]
    ratios[exists] = sd[with_moments] / truth.sd[with_moments]
    if not exists.all():
        if point:
            quantiles = mean + np.outer(stats.norm.ppf(LEVELS), sd)
        else:
            quantiles = np.quantile(values_of(posterior), LEVELS, axis=0)
        away = np.abs(quantiles - truth.quantiles) / truth.half
        errors[~exists] = away.max(0)[index[~exists]]
    good = (errors <= MEAN) & (RATIO[0] <= ratios) & (ratios <= RATIO[1])
    worst = int(np.argmax(np.maximum(errors / MEAN, np.abs(np.log(np.maximum(ratios, 1e-300))) / np.log(RATIO[1]))))
    furthest = int(np.argmax(np.abs(np.log(np.maximum(ratios, 1e-300)))))
    return Judged(bool(good.all()), float(errors.max()), float(ratios[furthest]), str(named[worst]))


def values_of(posterior: tr.Posterior) -> np.ndarray:
    """(draws, k) draws of all chains."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(posterior.draws)]
    return np.concatenate([leaf.reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves], 1)


def judged_point(target: population.Target, truth: Truth, place: np.ndarray, label: str) -> Judged:
    """Whether a point without standard errors is the maximum."""
    prior = label != "mle"
    if not (truth.peaked if prior else truth.likely):
        return Judged(False, np.inf, np.nan, "no maximum")
    model, rows = target.variant.model, target.data().arrays()
    here = model.position_of(shaped(model, place))
    at = float(height(model, here, rows, prior)[0])
    best = max(at, highest(target, truth, prior, np.asarray(here)))
    rounding = 8 * float(jnp.finfo(jnp.result_type(float)).eps) * abs(best)
    return Judged(bool(best - at <= NATS + rounding), best - at, np.nan, "log density")


def shaped(model: tr.Model, values: np.ndarray | jax.Array) -> Any:
    """(k,) numbers as the model's parameters."""
    leaves, treedef = jax.tree.flatten(jax.eval_shape(model.example, jax.random.key(0)))
    cuts = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
    pieces = jnp.split(jnp.asarray(values), cuts)
    given = [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(pieces, leaves, strict=True)]
    return jax.tree.unflatten(treedef, given)


@functools.partial(jax.jit, static_argnames=("model", "prior"))
def height(model: tr.Model, position: jax.Array, rows: Any, prior: bool) -> tuple[jax.Array, jax.Array]:
    """The log density of the user's parameters at an unconstrained position, and its gradient."""

    def of(position: jax.Array) -> jax.Array:
        if prior:
            return tr.log_density(model, rows, flat=True, jacobian=False)(position)
        return jnp.sum(counted_log_likelihoods(model, model.params(position), rows))

    return jax.value_and_grad(of)(position)


def highest(target: population.Target, truth: Truth, prior: bool, here: np.ndarray) -> float:
    """The best of long climbs from exact draws, if there are any, and from the ends of the methods' runs."""
    model, rows = target.variant.model, target.data().arrays()
    rng = np.random.default_rng(0)
    starts = [here, *(here + 3 * rng.standard_normal((CLIMBS, len(here))))]
    if truth.sample is not None:
        starts += [np.asarray(model.position_of(shaped(model, draw))) for draw in truth.sample(rng, CLIMBS)]

    def downhill(position: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = height(model, jnp.asarray(position, jnp.result_type(float)), rows, prior)
        if not np.isfinite(value):
            return 1e300, np.zeros(len(position))
        return -float(value), -np.asarray(slope, np.float64)

    ends = [optimize.minimize(downhill, s, jac=True, method="L-BFGS-B", options={"maxiter": 5000}) for s in starts]
    return max(-float(end.fun) for end in ends)


# One run, and a file of runs.
NO_TIME = {"run": 0.0, "checking": 0.0, "programs": 1}  # of what was not run


def variants_of(realistic: bool) -> dict[str, Variant]:
    """The variants of one of the two populations, by name."""
    return population_realistic.variants() if realistic else population.variants()


def target_fields(target: population.Target, label: str, budget: str, seed: int) -> dict[str, Any]:
    """What a line of the results says of the target and the settings."""
    return {
        "family": target.family, "variant": target.variant.name, "index": target.index, "hard": target.hard,
        "half": target.half, "method": label, "budget": budget, "seed": seed,
    }  # fmt: skip


class Counter:
    """How many programs XLA has compiled, or taken from a cache, since the last call."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, seconds: float, **about: Any) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


def stop(*_: Any) -> None:
    """Called by the alarm of a run that takes too long."""
    raise TimeoutError(f"This run had not ended after {PATIENCE} seconds.")


def run(
    target: population.Target, label: str, budget: str, seed: int, data: tr.Data, truth: Truth, counter: Counter
) -> dict:
    """What a line of the results says of a run: the verdict, and whether the posterior was right."""
    method = method_of(label, budget)
    counter.since()
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            signal.alarm(PATIENCE)
            posterior = tr.infer(target.variant.model, data, method, seed=seed, progress=False)
            inferred = time.perf_counter()
            verifying = float(posterior.seconds.get("verifying", 0.0))  # infer's part; the report's is timed here
            report = posterior.report()
        except Exception as error:  # an error message is a result too: there is no posterior to be trusted
            said = f"{type(error).__name__}: {error}"[:200]
            seconds = {"run": time.perf_counter() - began, "checking": 0.0, "programs": counter.since()}
            return {"verdict": "declined", "right": None, "said": said} | seconds
        finally:
            signal.alarm(0)
        ended, programs = time.perf_counter(), counter.since()
        found = judged(target, truth, posterior, label)
    line = {"verdict": report.verdict, "right": found.right, "mean": told(found.mean), "ratio": told(found.ratio),
            "worst": found.worst, "run": inferred - began - verifying, "checking": verifying + ended - inferred,
            "programs": programs}  # fmt: skip
    if target.half == "tune":  # thresholds are chosen by these runs, and must not be chosen by the others
        line["checks"] = [[c.name, told(float(c.value)), c.verdict] for c in report.checks]
    return line


def told(value: float) -> float | None:
    """JSON has no infinity."""
    return value if np.isfinite(value) else None


def hashed(files: Iterable[pathlib.Path], root: pathlib.Path) -> str:
    """A hash of files' names and bytes."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def source() -> str:
    """The version of the source that is measured."""
    root = pathlib.Path(tr.__file__).parent
    return hashed(root.rglob("*.py"), root)


def header(half: str, again: str | None) -> dict[str, Any]:
    """The header of a file: what all its lines have in common."""
    return {
        "half": half, "source": source(), "population": hashed(HERE.glob("population*.py"), HERE),
        "float64": bool(jax.config.jax_enable_x64), "again": again, "jax": jax.__version__,
        "machine": f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}, Python {platform.python_version()}",
    }  # fmt: skip


class Refused(Exception):
    """Files of results that must not be read together."""


class File:
    """The file of one variant's results: a header, then one line for each run, each written by one call."""

    def __init__(self, path: pathlib.Path, head: dict[str, Any]) -> None:
        self.path, self.lines = path, []
        if path.exists():
            whole = path.read_bytes()
            if not whole.endswith(b"\n"):  # a line that was being written when the machine stopped
                os.truncate(path, whole.rfind(b"\n") + 1)
        if path.exists() and path.stat().st_size:
            there, self.lines = read(path)
            for key in ("half", "source", "population", "float64"):
                if there[key] != head[key]:
                    raise Refused(
                        f"{path} holds results of {key} {there[key]}, and this run is of {head[key]}: "
                        "name another folder by --out, or move the old files away."
                    )
        else:
            self._write({"header": head})
        self.done = {key_of(line) for line in self.lines}

    def append(self, line: dict[str, Any]) -> None:
        self._write(line)
        self.lines.append(line)
        self.done.add(key_of(line))

    def _write(self, line: dict[str, Any]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def key_of(line: dict[str, Any]) -> tuple:
    return line["index"], line["method"], line["budget"], line["seed"]


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and lines of a file.

    Raises:
        Refused: a file without a header, or with lines of the other half.
    """
    first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    if "header" not in first:
        raise Refused(f"{path} has no header that says of which half it is: expected a file that trust.py wrote.")
    half = first["header"]["half"]
    strangers = {line["half"] for line in rest} - {half}
    if strangers or not path.name.startswith(f"{half}-"):
        raise Refused(
            f"{path} says it is of the half {half!r} and holds {', '.join(strangers) or 'another name'}: the halves "
            "may not be mixed, or thresholds would be chosen on what is published. Remove the file."
        )
    return first["header"], rest


def path_of(folder: pathlib.Path, half: str, version: str, variant: str) -> pathlib.Path:
    slug = re.sub(r"[^a-z0-9]+", "-", variant.lower().replace("τ", "tau")).strip("-")
    return folder / f"{half}-{version}-{slug}.jsonl"


def results(folder: pathlib.Path, half: str, version: str | None = None) -> tuple[list[dict], list[dict]]:
    """Headers and lines of a half, for one version of the source: the one asked for, or else the last one.

    Raises:
        Refused: there are no files, or they are of several populations or precisions.
    """
    files = sorted(folder.glob(f"{half}-{version or '*'}-*.jsonl"), key=lambda f: f.stat().st_mtime)
    if not files:
        raise Refused(f"{folder} holds no results of the half {half!r}: run --{half} first.")
    version = files[-1].name.split("-")[1]
    both = [read(file) for file in files if file.name.split("-")[1] == version]
    for key in ("half", "population", "float64"):
        if len(seen := {head[key] for head, _ in both}) > 1:
            raise Refused(
                f"{folder} holds results of several kinds ({key}: {seen}): one table is of one. Separate them."
            )
    return [head for head, _ in both], [line for _, lines in both for line in lines]


class Plan(NamedTuple):
    """The settings of a study, which are sent to every process."""

    head: dict[str, Any]
    folder: pathlib.Path
    methods: tuple[str, ...]
    budgets: tuple[str, ...]
    seeds: int
    members: int
    first: int
    until: float  # the value of time.time() at which to stop
    realistic: bool = False  # whether targets are those of ``population_realistic``

    @property
    def half(self) -> str:
        return self.head["half"]


def run_variant(plan: Plan, name: str) -> tuple[str, int, float]:
    """Make all runs of a variant that have no results yet; returns the variant, how many runs, and their seconds.

    Raises:
        Refused: the process was started after the source had been edited.
    """
    jax.config.update("jax_enable_x64", plan.head["float64"])
    signal.signal(signal.SIGALRM, stop)
    if multiprocessing.parent_process() is not None:
        now = header(plan.half, None)
        if any(now[key] != plan.head[key] for key in ("source", "population")):
            raise Refused("The source was edited while this ran: expected one version for all runs. Start again.")
    variant = variants_of(plan.realistic)[name]
    file = File(path_of(plan.folder, plan.half, plan.head["source"], name), plan.head)
    began, count, counter = time.time(), 0, Counter()
    members = [(t, t.data()) for t in population.members(variant, plan.half, plan.members, plan.first)]
    truths: dict[int, Truth | None] = {}
    for label in applicable(variant, plan.methods):
        for budget in plan.budgets:
            for target, data in members:
                for seed in range(plan.seeds):
                    if (target.index, label, budget, seed) in file.done:
                        continue
                    if time.time() > plan.until:
                        return name, count, time.time() - began
                    if target.index not in truths:
                        truths[target.index] = target.truth()
                    truth = truths[target.index]
                    line = target_fields(target, label, budget, seed)
                    if truth is None:
                        file.append(line | {"verdict": "declined", "right": None, "said": "no known truth", **NO_TIME})
                        continue
                    file.append(line | run(target, label, budget, seed, data, truth, counter))
                    count += 1
    return name, count, time.time() - began


def run_all(plan: Plan, names: list[str], processes: int) -> None:
    """Run one variant after another; with several processes, each variant in a process of its own."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    started = time.time()

    def tell(done: tuple[str, int, float]) -> None:
        print(
            f"{time.time() - started:6.0f} s  {done[0]}: {done[1]} runs in {done[2]:.0f} s", file=sys.stderr, flush=True
        )

    if processes == 1:
        for name in names:
            tell(run_variant(plan, name))
            jax.clear_caches()
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for done in pool.imap_unordered(functools.partial(run_variant, plan), names):
            tell(done)


# Tables of the results.
def bounds(wrong: int, trusted: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact interval of a rate, with equal tails."""
    tail = (1 - level) / 2
    low = stats.beta.ppf(tail, wrong, trusted - wrong + 1) if wrong else 0.0
    high = stats.beta.ppf(1 - tail, wrong + 1, trusted - wrong) if wrong < trusted else 1.0
    return float(low), float(high)


FURTHER = "beyond twice the limits"
HEAD = ["runs", "declined", "trusted", "wrong of them", "targets trusted", "wrong targets", "% of targets",
        "95 % bounds", "right", "right ones rejected, %", "right ones trusted, %", "s a run",
        "s of checking", "checking long runs, %", FURTHER]  # fmt: skip
RECORDED = ["runs", "targets trusted", "wrong targets", "% of targets", "95 % bounds", "right ones trusted, %",
            "right ones rejected, %", "s a run", "s of checking", "checking long runs, %"]  # fmt: skip
LONG = 2.0  # seconds from which on a run is long: its checks may take 25 % of its time, those of others half a second


def summary(lines: list[dict[str, Any]]) -> list[Any]:
    """A row: by runs, and by targets, of which one counts as wrong if any run of it was trusted and wrong."""

    def count(test: Callable[[dict], bool]) -> int:
        return sum(map(test, lines))

    def share(part: float, of: float) -> float:
        return 100 * part / of if of else float("nan")

    trusted = [line for line in lines if line["verdict"] == "trust"]
    wrong = [line for line in trusted if not line["right"]]
    targets, wrongly = ({(line["variant"], line["index"]) for line in some} for some in (trusted, wrong))
    right = count(lambda line: bool(line["right"]))
    rejected = count(lambda line: bool(line["right"]) and line["verdict"] == "reject")
    far = {(line["variant"], line["index"]) for line in wrong if is_far(line)}
    low, high = bounds(len(wrongly), len(targets)) if targets else (0.0, 1.0)
    warm = [line for line in lines if line["programs"] == 0 and line["verdict"] != "declined"]
    long = [line for line in warm if line["run"] > LONG]
    short = [line["checking"] for line in warm if line["run"] <= LONG]
    return [
        len(lines), count(lambda line: line["verdict"] == "declined"), len(trusted), len(wrong), len(targets),
        len(wrongly), share(len(wrongly), len(targets)), f"{100 * low:.1f} … {100 * high:.1f}", right,
        share(rejected, right), share(len(trusted) - len(wrong), right),
        float(np.mean([line["run"] for line in warm] or np.nan)), float(np.quantile(short or [np.nan], 0.9)),
        share(sum(line["checking"] for line in long), sum(line["run"] for line in long)), len(far),
    ]  # fmt: skip


def is_far(line: dict[str, Any]) -> bool:
    """Whether some number is wrong by more than twice the limits, or does not exist."""
    mean, ratio = line["mean"], line["ratio"]
    return mean is None or ratio is None or mean > 2 * MEAN or abs(np.log(ratio)) > 2 * np.log(RATIO[1])


def summaries(lines: list[dict]) -> list[list[Any]]:
    """Rows for the record: of all runs, by method, and of the families in which a target was trusted wrongly."""
    rows = [["all", *summary(lines)]]
    rows += [[method, *summary(some)] for method in METHODS if (some := [x for x in lines if x["method"] == method])]
    for family in sorted({line["family"] for line in lines}):
        row = [family, *summary([line for line in lines if line["family"] == family])]
        if row[1 + HEAD.index("wrong targets")]:
            rows.append(row)
    return rows


def tables(heads: list[dict], lines: list[dict]) -> None:
    """Print all tables of one half."""
    half, again = heads[0]["half"], sorted({h["again"] for h in heads if h["again"]})
    say_where(f"May a verdict be trusted? The half {half!r}")
    members = len({(line["variant"], line["index"]) for line in lines})
    head = heads[0]
    digits = "float64" if head["float64"] else "float32"
    print(f"{members} targets; source {head['source']}, population {head['population']}, {digits}; run on "
          f"{head['machine']}, JAX {head['jax']}.\n")  # fmt: skip
    if again:
        print(f"This half was run before, of another version of the source. Again, because: {'; '.join(again)}\n")
    table(["", *HEAD], [["all", *summary(lines)]])
    for by in ("method", "family", "budget"):
        groups = list(dict.fromkeys(line[by] for line in lines))
        order = {"method": list(METHODS), "budget": list(BUDGETS)}.get(by, sorted(groups))
        table([by, *HEAD], [[g, *summary([x for x in lines if x[by] == g])] for g in order if g in groups])
    print("Declined: an error in a sentence, no posterior. Targets: one counts as trusted if any run of it is, and as "
          "wrong if any run is trusted and wrong; the bounds are Clopper and Pearson's. Seconds: of runs that compiled "
          f"nothing; nine in ten runs of up to {LONG:g} s were checked in the seconds of checking.\n")  # fmt: skip


def wrongs(lines: list[dict]) -> None:
    """Print the runs that were trusted and wrong, by which checks are chosen."""
    rows = [
        [line["variant"], line["index"], "hard" if line["hard"] else "easy", line["method"], line["budget"],
         line["mean"], line["ratio"], line["worst"],
         "; ".join(f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value, _ in line["checks"])]
        for line in lines if line["verdict"] == "trust" and not line["right"]
    ]  # fmt: skip
    table(["variant", "#", "", "method", "budget", "error of a mean, sds", "sd ratio", "worst", "checks"], rows)


def chosen(text: str | None, among: Iterable[str], what: str) -> tuple[str, ...]:
    """Names from a list with commas; all without one."""
    every = tuple(among)
    names = every if text is None else tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in every]
    if unknown:
        raise Refused(f"{what} expects some of {', '.join(every)}; got {', '.join(unknown)}.")
    return names


def arguments(description: str | None = __doc__) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    halves = parser.add_mutually_exclusive_group(required=True)
    halves.add_argument("--tune", dest="half", action="store_const", const="tune", help="the half to choose checks by")
    halves.add_argument(
        "--publish", dest="half", action="store_const", const="publish", help="the half to be published"
    )
    parser.add_argument("--again", metavar="REASON", help="publish anew though the source has changed; kept")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="families or variants")
    parser.add_argument("--methods", help=f"of {','.join(METHODS)}; all by default")
    parser.add_argument("--budgets", help=f"of {','.join(BUDGETS)}; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="of every run")
    parser.add_argument("--members", type=int, default=population.MEMBERS, help="of a variant, both halves together")
    parser.add_argument("--first", type=int, default=0, help="member to begin with: those before took part already")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="after which it stops; run it again to go on"
    )
    parser.add_argument("--processes", type=int, default=1, help="side by side, a variant each")
    parser.add_argument("--shards", type=int, default=1, help="of how many machines")
    parser.add_argument("--shard", type=int, default=0, help="this is the one, from 0")
    parser.add_argument("--out", type=pathlib.Path, help="folder of results; by default runs/trust")
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--table", action="store_true", help="run nothing; print what there is")
    parser.add_argument("--wrong", action="store_true", help="list what was trusted and wrong (--tune only)")
    parser.add_argument("--record", action="store_true", help="write the summaries to benchmarks/results/trust.json")
    parser.add_argument("--quick", action="store_true", help="two members, three methods: shows that it runs")
    return parser


def published_before(folder: pathlib.Path) -> list[str]:
    """Other versions of the source with which the published half was run."""
    versions = {read(file)[0]["source"] for file in folder.glob("publish-*.jsonl")}
    return sorted(versions - {source()})


def main(script: str, description: str | None, realistic: bool = False) -> None:
    """Run the study of one of the populations from the command line; ``script`` is recorded as its source."""
    args = arguments(description).parse_args()
    jax.config.update("jax_enable_x64", args.float64)
    try:
        work(args, script, realistic)
    except Refused as sentence:
        print(sentence, file=sys.stderr)
        raise SystemExit(2) from None


def work(args: argparse.Namespace, script: str = __file__, realistic: bool = False) -> None:
    args.out = args.out or pathlib.Path("runs", pathlib.Path(script).stem)
    every = variants_of(realistic)
    unknown = set(args.only or []) - {v.family for v in every.values()} - set(every)
    if unknown:
        families = ", ".join(sorted({v.family for v in every.values()}))
        raise Refused(f"--only expects families or variants; got {', '.join(unknown)}. Families: {families}.")
    if not 0 <= args.shard < args.shards:
        raise Refused(f"--shard expects a number from 0 to {args.shards - 1}; got {args.shard}.")
    if args.record and args.half != "publish":
        raise Refused(
            "--record is for the published half, as checks are chosen on the other one: use it with --publish."
        )
    if (args.wrong or args.quick) and args.half == "publish":
        raise Refused("--wrong and --quick are for choosing checks, which the published half must not do: use --tune.")
    version = None
    if not args.table:
        before = published_before(args.out) if args.half == "publish" else []
        if before and not args.again:
            raise Refused(
                f"The half 'publish' was run of another version of the source ({', '.join(before)}), and a rate is "
                "only proven by targets that took no part in choosing checks: pass --again REASON, which is kept."
            )
        names = [n for n, v in every.items() if not args.only or n in args.only or v.family in args.only]
        methods = chosen("map,meanfield,nuts" if args.quick else args.methods, METHODS, "--methods")
        if realistic:  # whether a maximum exists is not known there
            methods = tuple(label for label in methods if not METHODS[label][0].point)
        budgets = chosen("default" if args.quick else args.budgets, BUDGETS, "--budgets")
        head, count = header(args.half, args.again), 4 if args.quick else args.members
        plan = Plan(head, args.out, methods, budgets, args.seeds, count, args.first, time.time() + 60 * args.minutes,
                    realistic)  # fmt: skip
        run_all(plan, names[args.shard :: args.shards], args.processes)
        version = head["source"]
    heads, lines = results(args.out, args.half, version)
    tables(heads, lines)
    if args.wrong:
        wrongs(lines)
    if args.record:
        columns = [*RECORDED, FURTHER] if realistic else RECORDED
        record(script, ["", *HEAD], summaries(lines), columns=columns, keep=False)


if __name__ == "__main__":
    main(__file__, __doc__)
