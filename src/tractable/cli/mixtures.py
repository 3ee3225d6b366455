"""Mixtures of a table's rows and hidden Markov models of its sequences: fits several sizes and chooses one."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from tractable.cli.folders import table_in
from tractable.cli.readers import Arguments, Option, one_of, refusals, share
from tractable.cli.show import COLUMNS, ROWS
from tractable.cli.task import Kind, Request, Result, Task, held_back, parted
from tractable.core import Data
from tractable.data.columns import Column, gap, kind_of
from tractable.data.encoder import Encoder, fit_numbers
from tractable.data.files import Source, of_table, read_table
from tractable.data.ordered import places
from tractable.data.targets import MOST_CLASSES, fit_target
from tractable.methods import Method
from tractable.models import bayesian_gaussian_mixture, mixture
from tractable.models.latent import LatentModel
from tractable.models.markov import HiddenMarkov, HiddenMarkovModel, hidden_markov, shares
from tractable.models.mixture import Gaussians
from tractable.pages import mixtures as pages
from tractable.pages.exhibit import Exhibit
from tractable.pages.mixtures import Components, States
from tractable.pages.page import write_page
from tractable.pages.terminal import to_terminal
from tractable.results.loading import load
from tractable.results.posterior import Posterior
from tractable.selection import CRITERIA, Selection, select
from tractable.tools.errors import DataError, SettingsError
from tractable.tools.words import counted, listing, tell
from tractable.tools.writing import write_table

NAME = "gaussian-mixture"
MOST = 1000  # components, at most
CHUNK = 1 << 14  # rows evaluated at once


def components_of(text: str, option: str = "components") -> tuple[int, ...]:
    """The numbers of components, or of states, in a text, ascending.

    >>> components_of("2..4"), components_of("5, 2"), components_of("1,3..4")
    ((2, 3, 4), (2, 5), (1, 3, 4))
    """
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = (piece.strip() for piece in part.partition(".."))
        ends = (low, high) if dots else (low, low)
        if not all(end.isascii() and end.isdigit() and int(end) > 0 for end in ends):
            raise SettingsError(
                f"--{option} expects a number, a list such as 2,3,5 or a range such as 2..10, of 1 or more; got "
                f"{text!r}."
            )
        first, last = map(int, ends)
        if first > last:
            raise SettingsError(f"--{option} expects ranges from few to many, such as {last}..{first}; got {text!r}.")
        if last > MOST:
            raise SettingsError(f"--{option} takes at most {MOST}; got {text!r}.")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


OPTIONS = {
    "components": Option(lambda text: components_of(text) and text, "1..10"),
    "covariance": Option(one_of(mixture.COVARIANCES, "--covariance is"), "full"),
    "choose": Option(one_of(CRITERIA, "--choose is"), "bic"),
    "held_out": Option(share, 0.2),
    "missing": Option(one_of(("raise", "drop", "exact"), "--missing of a mixture is"), "raise"),
    "exclude": Option(list, ()),
}
NOT_OF_MIXTURES = {
    "target": "it explains no column, it describes all columns of numbers; leave --target out.",
    "example": "it takes a table of your own.",
    "family": "its components are normal.",
    "hidden": "it has no hidden layers.",
    "prior": "it has no network.",
    "shifted": "it predicts no target; tractable predict gives rows their log density.",
    "mesh": "it tries several numbers of components or states, each on one device. In Python tr.infer spreads one.",
}


def read(kind: Kind, arguments: Arguments) -> Task:
    """The task of a table's numbers; warnings say what was left out."""
    if arguments.get("table") is None:
        raise DataError(f"--model {NAME} expects a table: tractable fit TABLE --model {NAME}.")
    path, choices = Path(arguments["table"]), kind.ask(arguments)
    if choices["choose"] == "held-out" and choices["held_out"] == 0:
        raise SettingsError("--choose held-out looks at held-out rows: give --held-out a share above 0.")
    if choices["choose"] == "evidence" and choices["missing"] == "exact":
        raise SettingsError("--choose evidence knows no gaps: use --missing drop, or --choose bic.")
    source = without_gaps(numbers_of(path, choices["exclude"]), choices["missing"])
    back = held_back(len(source.values), choices["held_out"])
    encoder, differs = fit_numbers(source.values[~back], source.names or (), missing=choices["missing"])
    for name, values in zip(source.of(~differs).names or (), source.values[~back][:, ~differs].T, strict=True):
        present = values[~np.isnan(values)]
        same = f"is {present[0]:g} in every row" if len(present) else "holds no value"
        tell(f"Column {name!r} {same} that is fitted; it is left out.")
    if not differs.any():
        raise DataError(f"No column of numbers in {path} differs between rows, so there is nothing to learn from.")
    asks, n = components_of(choices["components"])[-1], int(np.sum(~back))
    if asks > n:
        raise DataError(
            f"--components asks for up to {asks}, of {counted(n, 'row')} to fit: each needs a row at least. Ask for "
            f"fewer{', or set --held-out 0' if back.any() else ''}."
        )
    rows = encoder.standardise(source.of(differs).values)
    data = Data(rows, missing="keep" if np.isnan(rows).any() else "raise")
    words = f"{n:,} rows of {counted(int(differs.sum()), 'number')}"
    return Task.of_file(kind, path, words, choices, {"chosen": None}, encoder, **parted(data, back))


def numbers_of(path: Path, exclude: Sequence[str] = ()) -> Source:
    """The table's columns of numbers; a warning names those that hold no value."""
    source = of_table(without(read_table(path), exclude), path, purpose=", which a mixture of normals is of")
    some = np.any(np.isfinite(source.values), axis=0)
    if some.all():
        return source
    tell(f"Left out, as they hold no value at all: {listing(source.of(~some).names or ())}.")
    return source.of(some)


def without(frame: pd.DataFrame, exclude: Sequence[str]) -> pd.DataFrame:
    """The table without the columns named by --exclude."""
    if absent := [name for name in exclude if name not in frame]:
        raise DataError(f"--exclude {absent[0]} is not a column of the table; it has {listing(frame.columns)}.")
    return frame.drop(columns=[*exclude])


def without_gaps(source: Source, missing: str) -> Source:
    """The rows to use; a DataError about the first gap if ``missing`` is raise."""
    values, exact = source.values, missing == "exact"
    if exact:
        source.refuse_infinite()
    absent = np.isnan(values) if exact else ~np.isfinite(values)
    if missing == "raise" and absent.any():
        raise DataError(
            f"{gap(dict(zip(source.names or (), absent.T, strict=True)))} Use --missing exact, which learns from the "
            "numbers there are and imputes nothing, or leave out such rows (--missing drop) or the column."
        )
    gone = absent.all(1) if exact else absent.any(1)
    if gone.all():
        raise DataError("No row is left once those with missing values are left out. Use --missing exact.")
    if exact and gone.any():
        tell(f"Left out: {counted(int(gone.sum()), 'row')} without any number.")
    return source._replace(values=values[~gone])


def model_of(components: int, features: int, covariance: str, gaps: bool = False) -> LatentModel:
    """A mixture of normals; with ``gaps``, one for rows that may lack numbers."""
    return (mixture.with_missing if gaps else mixture.gaussian_mixture)(components, features, covariance)


def learn(task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
    """Fit each K and choose one; the criteria are in the table's units."""
    choices, encoder, rows = task.choices, task.encoder, task.data.y
    gaps, d = task.data.missing == "keep", len(encoder.columns)
    found = select(
        lambda k: model_of(k, d, choices["covariance"], gaps), task.data, components_of(choices["components"]), method,
        by=choices["choose"], held_out=task.held_out,
        bound_of=lambda k: bayesian_gaussian_mixture(k, d, choices["covariance"], weight_concentration=1.0),
        seed=seed, progress=progress, checkpoint=folder / "fits",
    )  # fmt: skip
    # log |d standardised / d x| is the same for every K, so the choice is that of the standardised units.
    units = encoder.log_scales(rows).sum()
    changes = {"log likelihood": -units, "BIC": 2 * units, "AIC": 2 * units, "evidence": -units}
    if task.held_out is not None:
        changes["held-out"] = -encoder.log_scales(task.held_out.y).mean()
    table = found.table.assign(**{name: found.table[name] + change for name, change in changes.items()})
    found.posterior.write(folder)
    write_table(folder / "components.csv", components(found.posterior, task).frame(len(rows)))
    write_table(folder / "criterion.csv", table)
    task.spec["chosen"] = found.components
    return Result(found.posterior, dataclasses.replace(found, table=table))


@functools.partial(jax.jit, static_argnames="model")
def _densities(model: LatentModel, theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return model.log_prob(theta, x), model.responsibilities(theta, x)  # pyright: ignore[reportOptionalCall]


def densities(
    model: LatentModel, theta: Gaussians, rows: np.ndarray, encoder: Encoder
) -> tuple[np.ndarray, np.ndarray]:
    """log p(x) of standardised rows, in nats and the table's units, (n,); and responsibilities (n, K)."""
    n, width, precision = len(rows), max(1, min(CHUNK, len(rows))), jnp.result_type(float)
    theta = jax.tree.map(lambda a: jnp.asarray(a, precision), theta)
    padded = np.concatenate([rows, np.zeros((-n % width, rows.shape[1]))])
    blocks = (jnp.asarray(padded[i : i + width], precision) for i in range(0, len(padded), width))
    parts = zip(*(_densities(model, theta, block) for block in blocks), strict=True)
    density, share = (np.concatenate([np.asarray(a, np.float64) for a in part])[:n] for part in parts)
    return density - encoder.log_scales(rows), share


def components(posterior: Posterior, task: Task) -> Components:
    """θ in the table's units, and standard errors of the weights."""
    theta, errors = posterior.mean(), posterior.sd()
    _, sd = task.encoder.scale
    k, d = theta.means.shape
    spread = np.asarray(theta.covariances, np.float64)
    if task.choices["covariance"] in ("full", "tied"):
        spread = np.broadcast_to(spread, (k, d, d))
    else:
        spread = spread.reshape(k, -1, 1) * np.eye(d)
    means = task.encoder.restore(np.asarray(theta.means, np.float64))
    weights, uncertain = (np.asarray(a.weights, np.float64) for a in (theta, errors))
    return Components(task.encoder.names, weights, uncertain, means, spread * np.outer(sd, sd))


def page(folder: Path, task: Task, result: Result) -> None:
    """Write the report."""
    posterior, rows = result.posterior, task.data.y
    found, model = cast(Selection, result.selection), cast(LatentModel, posterior.model)
    _, share = densities(model, posterior.mean(), rows, task.encoder)
    exhibits = pages.exhibits(
        found, components(posterior, task), task.encoder.restore(rows), share.argmax(1), task.choices["covariance"],
        0 if task.held_out is None else task.held_out.size,
    )  # fmt: skip
    title = f"{task.name} by a mixture of {counted(found.components, 'normal')}"
    facts, told = pages.facts(found, rows), task.spec["notes"]
    write_page(folder, posterior, title=title, facts=facts, exhibits=exhibits, notes=told)


def predict(run: Path, spec: Arguments, new: Path, request: Request) -> pd.DataFrame:
    """For each row of a table: its likeliest component, the probability of each component, and its log density."""
    encoder = Encoder.from_dict(spec["encoder"])
    source = of_table(read_table(new), new, encoder.names)
    source.refuse_infinite()
    rows = encoder.standardise(source.values)
    gaps = np.isnan(rows).any(1)
    if gaps.any():
        tell(f"{counted(int(gaps.sum()), 'row')} with missing values: judged by the numbers there are.")
    plain, gapped = (model_of(spec["chosen"], len(encoder.columns), spec["covariance"], each) for each in (False, True))
    density, share = densities(gapped if gaps.any() else plain, load(run, plain).mean(), rows, encoder)
    shares = {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
    return pd.DataFrame({"component": share.argmax(1) + 1, **shares, "log density": density})


def tables(task: Task, result: Result) -> Iterator[Any]:
    """The criteria of every K, and the chosen mixture's components."""
    found = cast(Selection, result.selection)
    yield to_terminal(Exhibit("Components tried", [pages.tried_table(found.table, found.best)]))
    shown = pages.components_of(components(result.posterior, task), task.data.size, task.choices["covariance"])
    yield to_terminal(shown, ROWS, COLUMNS)


def saved_tables(folder: Path, spec: Arguments, about: Arguments, noun: str = "components") -> Iterator[Any]:
    """The criteria of every number of components or states, from the run's folder."""
    tried = table_in(folder, "criterion.csv")
    best = list(tried["components"]).index(spec["chosen"])
    yield to_terminal(Exhibit(f"{noun.capitalize()} tried", [pages.tried_table(tried, best, noun)]))


# Sequences.

SEQUENCES = "hidden-markov"
OF_STATES = {"poisson": "rate", "bernoulli": "probability of 1", "categorical": "probability of"}
OF_SEQUENCES = {
    "states": Option(lambda text: components_of(text, "states") and text, "1..5"),
    "by": Option(),
    "time": Option(),
    "exclude": Option(list, ()),
    "family": Option(one_of(("normal", *OF_STATES), "--family of a hidden-markov is")),
    "covariance": Option(one_of(("diagonal", "full"), "--covariance of a hidden-markov is"), "diagonal"),
    "choose": Option(one_of(("bic", "held-out"), "--choose of a hidden-markov is"), "bic"),
    "held_out": Option(share, 0.2),
}
NOT_OF_SEQUENCES = NOT_OF_MIXTURES | {
    "family": "",
    "missing": "numbers and steps that are missing are summed over, exactly.",
}
FEW_SEQUENCES = 5  # with fewer sequences, none is held out


def read_sequences(kind: Kind, arguments: Arguments) -> Task:
    """The task of a table's sequences; warnings say how they were taken."""
    if arguments.get("table") is None:
        raise DataError(f"--model {SEQUENCES} expects a table: tractable fit TABLE --model {SEQUENCES} --time COLUMN.")
    path, choices = Path(arguments["table"]), kind.ask(arguments)
    frame = read_table(path)
    where = places(frame, choices["by"], choices["time"])
    source, family, classes = what_states_show(frame, path, choices)
    count = len(where.names)
    if choices["choose"] == "held-out" and (choices["held_out"] == 0 or count < FEW_SEQUENCES):
        raise SettingsError(
            f"--choose held-out looks at sequences held out: expected {FEW_SEQUENCES} or more and a share above 0; "
            f"got {count} and {choices['held_out']:g}."
        )
    back = held_back(count, choices["held_out"]) if count >= FEW_SEQUENCES else np.zeros(count, bool)
    fitted = source.values[~back[where.sequence]]
    if family == "normal":
        encoder, differs = fit_numbers(fitted, source.names or ())
        if not differs.any():
            raise DataError(f"No column of numbers in {path} differs between rows, so there is nothing to learn from.")
        if not differs.all():
            tell(f"Left out, being the same in every row: {listing(source.of(~differs).names or ())}.")
        source = source.of(differs)
    else:
        encoder = Encoder(tuple(Column(name, "number") for name in source.names or ()))
    data = Data(where.laid(encoder.standardise(source.values)), missing="keep")
    asks, steps = components_of(choices["states"], "states")[-1], int(np.sum(~np.isnan(fitted).all(1)))
    if asks > steps:
        raise DataError(f"--states asks for up to {asks}, of {counted(steps, 'step')} to fit; ask for fewer.")
    about = {"chosen": None, "classes": classes, "unit": where.unit} | {"family": family}
    words = f"{counted(int(np.sum(~back)), 'sequence')} of {steps:,} steps, {family}"
    return Task.of_file(kind, path, words, choices, about, encoder, **parted(data, back))


def what_states_show(frame: pd.DataFrame, path: Path, choices: Arguments) -> tuple[Source, str, list[str]]:
    """The columns that the states emit, their family, and the classes' names."""
    shown = without(frame, choices["exclude"]).drop(columns=[choices["by"], choices["time"]], errors="ignore")
    shown = shown.astype({name: float for name in shown if shown[name].dtype.kind == "b"})
    family = choices["family"]
    if len(shown.columns) == 1 and (
        family == "categorical" or (family is None and kind_of(shown.iloc[:, 0]) == "text")
    ):
        name = str(shown.columns[0])
        codes, levels = pd.factorize(shown[name], sort=True)
        if not 2 <= len(levels) <= MOST_CLASSES:
            raise DataError(f"{name!r} has {len(levels)} classes; expected 2 to {MOST_CLASSES}.")
        tell(f"States show one of {len(levels)} classes of {name!r}.")
        found = Source(np.where(codes < 0, np.nan, codes)[:, None], (1,), None, [name])
        return found, "categorical", list(map(str, levels))
    if family == "categorical":
        raise DataError(f"--family categorical is of one column; got {listing(shown.columns)}. Use --exclude.")
    source = of_table(shown, path, purpose=", which states could show")
    source.refuse_infinite()
    seen = source.values[~np.isnan(source.values)]
    if family is None:
        columns = {name: shown[name].dropna() for name in source.names or ()}
        families = {fit_target(values).family for values in columns.values() if len(set(values)) > 1}
        counts = {"poisson", "negative-binomial"}
        binary, counted_up = set(np.unique(seen)) <= {0.0, 1.0}, bool(families) and families <= counts
        family = "bernoulli" if binary else "poisson" if counted_up else "normal"
        tell(f"States show {FAMILY_WORDS[family]}. Choose another with --family.")
    if family in ("poisson", "bernoulli") and choices["covariance"] == "full":
        raise SettingsError(f"--covariance is of normal numbers; these are {family}.")
    return source, family, []


FAMILY_WORDS = {"normal": "normal numbers", "poisson": "counts (poisson)", "bernoulli": "zeros and ones (bernoulli)"}


def sequence_model(spec: Arguments, states: int, features: int, centre: np.ndarray | None = None) -> HiddenMarkovModel:
    """A hidden Markov model with that number of states."""
    family = "multivariate-normal" if (spec["family"], spec["covariance"]) == ("normal", "full") else spec["family"]
    if family == "categorical":
        return hidden_markov(states, family, classes=len(spec["classes"]))
    return hidden_markov(states, family, features, centre=centre if family == "poisson" else None)


def learn_sequences(task: Task, method: Method, seed: int, folder: Path, progress: bool | None) -> Result:
    """Fit each number of states and choose one; the criteria are in the table's units."""
    spec, encoder, rows = task.spec, task.encoder, task.data.y
    d = len(encoder.columns)
    centre = np.maximum(np.nanmean(rows.reshape(-1, d), 0), 1e-3) if spec["family"] == "poisson" else None
    spec["centre"] = None if centre is None else centre.tolist()
    data, held = (one and _of_one_column(spec, one) for one in (task.data, task.held_out))
    found = select(
        lambda k: sequence_model(spec, k, d, spec["centre"]), data, components_of(spec["states"], "states"), method,
        by=spec["choose"], held_out=held, seed=seed, progress=progress, checkpoint=folder / "fits", noun="state",
    )  # fmt: skip
    units = encoder.log_scales(rows.reshape(-1, d)).sum()
    changes = {"log likelihood": -units, "BIC": 2 * units, "AIC": 2 * units}
    if task.held_out is not None:
        held_units = encoder.log_scales(task.held_out.y.reshape(-1, d)).sum()
        changes["held-out"] = -held_units / task.held_out.size
    table = found.table.assign(**{name: found.table[name] + change for name, change in changes.items()})
    found.posterior.write(folder)
    states = states_of(found.posterior, task)
    write_table(folder / "states.csv", states.frame())
    write_table(folder / "transitions.csv", states.transitions())
    write_table(folder / "criterion.csv", table)
    spec["chosen"] = found.components
    return Result(found.posterior, dataclasses.replace(found, table=table))


def _of_one_column(spec: Arguments, data: Data) -> Data:
    """The data without its axis of columns if the emissions are classes: one number a step."""
    return Data(data.y[..., 0], missing="keep") if spec["family"] == "categorical" else data


def states_of(posterior: Posterior, task: Task) -> States:
    """θ in the table's units."""
    theta, errors, encoder, family = posterior.mean(), posterior.sd(), task.encoder, task.spec["family"]
    k, (_, sd) = len(theta.initial), encoder.scale
    if family == "categorical":
        names, values, spreads = task.spec["classes"], theta.emission.probs, None
    elif family != "normal":
        names, values, spreads = encoder.names, jax.tree.leaves(theta.emission)[0].reshape(k, -1), None
    else:
        names, values = encoder.names, encoder.restore(np.asarray(theta.emission.mean, np.float64).reshape(k, -1))
        full = task.spec["covariance"] == "full"
        found = np.sqrt(np.diagonal(theta.emission.covariance, axis1=1, axis2=2)) if full else theta.emission.sd
        spreads = np.asarray(found, np.float64).reshape(k, -1) * sd
    share_of_time = np.asarray(shares(jax.tree.map(jnp.asarray, theta)))
    says = OF_STATES.get(family, "mean of")
    initial, transition, errors = (
        np.asarray(a, np.float64) for a in (theta.initial, theta.transition, errors.transition)
    )
    values, unit = np.asarray(values, np.float64), task.spec["unit"]
    return States(list(names), values, spreads, share_of_time, initial, transition, errors, says, unit)


def sequence_page(folder: Path, task: Task, result: Result) -> None:
    """Write the report."""
    posterior, found = result.posterior, cast(Selection, result.selection)
    model, data = cast(HiddenMarkovModel, posterior.model), _of_one_column(task.spec, task.data)
    paths = np.asarray(model.paths(posterior.mean(), data.y))
    exhibits = pages.state_exhibits(
        found, states_of(posterior, task), task.encoder.restore(task.data.y), paths,
        0 if task.held_out is None else task.held_out.size,
    )  # fmt: skip
    title = f"{task.name} by a hidden Markov model of {counted(found.components, 'state')}"
    about = pages.facts(found, task.data.y, "states")
    write_page(folder, posterior, title=title, facts=about, exhibits=exhibits, notes=task.spec["notes"])


def predict_sequences(run: Path, spec: Arguments, new: Path, request: Request) -> pd.DataFrame:
    """For each row: its state on the likeliest path, each state's probability, and the mean and sd of what it emits."""
    encoder, frame = Encoder.from_dict(spec["encoder"]), read_table(new)
    where = places(frame, spec["by"], spec["time"], spec["unit"])
    if spec["family"] == "categorical":
        name = encoder.names[0]
        if name not in frame:
            raise DataError(f"The table lacks {name!r}; expected the column of the classes.")
        known = {level: float(i) for i, level in enumerate(spec["classes"])}
        values = frame[name].map(lambda v: np.nan if pd.isna(v) else known.get(str(v), -1.0)).to_numpy(np.float64)
        if (values < 0).any():
            raise DataError(f"{name!r} is {frame[name].iloc[int(np.argmax(values < 0))]!r}, a class never seen.")
        y = where.laid(values[:, None])[..., 0]
    else:
        numbers = frame.astype({column: float for column in encoder.names if column in frame})
        source = of_table(numbers, new, encoder.names)
        source.refuse_infinite()
        y = where.laid(encoder.standardise(source.values))
    model = sequence_model(spec, spec["chosen"], len(encoder.columns), spec["centre"])
    data = Data(y, missing="keep")
    model.check_rows(data)
    posterior = load(run, model)
    theta = jax.tree.map(jnp.asarray, posterior.mean())
    share = where.back(np.asarray(ahead_of(model, theta, y)))
    state = share.argmax(1) + 1
    path = where.back(np.asarray(model.paths(theta, y))) + 1
    told: dict[str, Any] = {"state": np.where(path > 0, path, state)}
    told |= {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
    states = states_of(posterior, Task(SEQUENCE_KIND, "", "", spec, dict(spec), data, None, encoder=encoder))
    for j, name in enumerate(states.names):
        told[f"{states.says} {name}"] = mean = share @ states.values[:, j]
        if states.spreads is not None:
            second = share @ (states.spreads[:, j] ** 2 + states.values[:, j] ** 2)
            told[f"sd of {name}"] = np.sqrt(np.maximum(second - mean**2, 0))
    return pd.DataFrame(told)


def ahead_of(model: HiddenMarkovModel, theta: HiddenMarkov, y: np.ndarray) -> np.ndarray:
    """p(z_t | x, θ) of every step (N, T, K), also of steps after a sequence's last observed one."""
    share = np.array(model.responsibilities(theta, y))  # pyright: ignore[reportOptionalCall]
    transition, initial = np.asarray(theta.transition), np.asarray(theta.initial)
    for t in range(share.shape[1]):
        gone = share[:, t].sum(1) == 0
        share[gone, t] = initial if t == 0 else share[gone, t - 1] @ transition
    return share


def sequence_tables(task: Task, result: Result) -> Iterator[Any]:
    """The criteria of every number of states, and the chosen model's states."""
    found = cast(Selection, result.selection)
    yield to_terminal(Exhibit("States tried", [pages.tried_table(found.table, found.best, "states")]))
    for shown in pages.states_shown(states_of(result.posterior, task)):
        yield to_terminal(shown, ROWS, COLUMNS)


SEQUENCE_KIND = Kind(
    SEQUENCES, "em", OF_SEQUENCES, refusals(SEQUENCES, {k: v for k, v in NOT_OF_SEQUENCES.items() if v}),
    read_sequences, learn_sequences, sequence_page, sequence_tables, predict_sequences,
    functools.partial(saved_tables, noun="states"), row_noun="rows", methods=("em",), noun="hidden Markov model",
    folder=SEQUENCES, learner="hidden Markov models",
)  # fmt: skip
MIXTURE = Kind(
    NAME, "em", OPTIONS, refusals(NAME, NOT_OF_MIXTURES), read, learn, page, tables, predict, saved_tables,
    methods=("em",), noun="mixture", folder=NAME, learner="mixtures of normals",
)  # fmt: skip
