"""Defines ``KINDS``, the kinds of model that ``--model`` names, with the options, model and tables of each kind."""

import contextlib
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from tractable import models as library
from tractable.cli import reading
from tractable.cli.ladders import Autoencoder, BeliefNetwork
from tractable.cli.reading import one_of, whole_numbers
from tractable.cli.task import HELD_OUT_SHARE, Arguments, Chosen, Kind, Option, Result, Task, flat_rows
from tractable.core.errors import DataError, SettingsError
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model
from tractable.core.shared import compiled
from tractable.core.words import counted, nearest, tell
from tractable.gallery import models as gallery
from tractable.latent import mixture
from tractable.latent.markov import HiddenMarkov, HiddenMarkovModel, shares
from tractable.latent.mixture import Gaussians
from tractable.methods import Method
from tractable.networks.network import PRIORS
from tractable.pages import mixtures as pages
from tractable.pages.effects import title_of
from tractable.pages.mixtures import Components, States
from tractable.pages.sections import Section
from tractable.posterior.loading import load
from tractable.posterior.posterior import Posterior
from tractable.selection import CRITERIA
from tractable.tables.encoder import MISSING, Encoder, explains
from tractable.tables.files import FORMAT, Source, of_table, read_table
from tractable.tables.fit import usual_method
from tractable.tables.models import LINEAR_PRIORS, table_model
from tractable.tables.ordered import Places, places
from tractable.tables.regression import formula_model
from tractable.tables.targets import COUNTS, fit_target

CHUNK = 1 << 14  # how many rows of a mixture are evaluated at a time


# Kinds that explain a target.


def number_or_name(text: str | float) -> str | float:
    """Read --prior: the sd of all weights, or the name of a prior."""
    with contextlib.suppress(ValueError):
        return float(text)
    return text


OF_TABLES = HELD_OUT_SHARE | {
    "missing": Option(one_of(MISSING, "--missing is"), "raise"),
    "family": Option(),
    "exclude": Option(list, ()),
    **dict.fromkeys((*reading.ROLES, *FORMAT), Option()),
    "shifted": Option(lambda path: str(Path(path).resolve())),
}


class Linear(Kind):
    """Generalised linear models of a table's target, and the built-in examples."""

    name, usual_method, compared = "glm", "nuts", "map,mala,nuts,sgld"
    options = OF_TABLES | {
        "formula": Option(),
        "prior": Option(one_of(LINEAR_PRIORS, "--prior of a glm is")),
        "pool": Option(list),
        "verify": Option(one_of(("auto", "thorough", "none"), "--verify is"), "auto"),
    }
    takes = frozenset({"table", "target", "example", "mesh", "calibrate"})

    def read(self, given: Arguments) -> Task:
        spec, table, example = self.ask(given), given.get("table"), given.get("example")
        if spec["shifted"] is not None and spec["held_out"] == 0:
            raise SettingsError("Rows of --shifted are compared with held-out rows: give --held-out a share above 0.")
        if (table is None) == (example is None):
            got = "neither" if table is None else "both"
            raise DataError(f"Expected either a table with --target, or --example; got {got}.")
        if spec.get("formula") and spec.get("prior"):
            raise SettingsError("--prior is not for a --formula: give priors to tractable.regression instead.")
        if example is not None:
            if any(spec[name] for name in ("formula", "shifted") if name in spec):
                raise SettingsError("--formula and --shifted are for a table, not for an --example: leave them out.")
            model, data, rest = gallery.example(example).build()
            about = {"example": example, "model": self.name, "verify": spec["verify"]}
            return Task(self, example, f"{example} ({size_of(data, model)})", about, data, rest, model)
        path = Path(str(table))
        read = reading.read_shards if path.is_dir() else reading.read_explained
        encoder, data, rest, _ = read(path, spec, given.get("target"))
        spec["family"] = family = encoder.target.family
        shifted = None if spec["shifted"] is None else reading.inputs(encoder, Path(spec["shifted"]), spec)
        model, label = model_of(encoder, spec), path.name.split(".")[0] or "table"
        spec |= {"target": ",".join(aim.name for aim in encoder.targets), "encoder": encoder.to_dict()}
        spec |= {"table": str(path.resolve()), "model": self.name}
        words = f"{label} ({size_of(data, model)}, family {family})"
        return Task(self, label, words, spec, data, rest, model, encoder, shifted)

    def usual(self, task: Task) -> dict[str, Any]:
        """The fields of the default method: of a table as ``tr.fit`` chooses, of an example NUTS."""
        return super().usual(task) if task.encoder is None else usual_method(task.model, task.data).settings()

    def title(self, task: Task, result: Result) -> str:
        return super().title(task, result) if task.encoder is None else title_of(task.encoder)

    def page(self, task: Task, result: Result) -> dict[str, Any]:
        return {"held_out": task.held_out, "encoder": task.encoder, "shifted": task.shifted}

    def predict(self, folder: Path, spec: dict[str, Any], given: Arguments) -> pd.DataFrame:
        """Predict the target for each row of a table; ``row`` counts from 0, and columns that identify rows stay."""
        if "example" in spec:
            raise DataError(f"{folder} holds a run of the example {spec['example']!r}; predict expects a table's run.")
        encoder, rows = Encoder.from_dict(spec["encoder"]), None
        # The model of a formula is loaded from the folder, with the priors that the user gave it.
        model = model_of(encoder, spec) if encoder.formula is None else None
        posterior, frame = load(folder, model), reading.read(given["new"], spec)
        if (path := given["calibrate"]) is not None:
            rows = reading.read(path, spec)
            if encoder.target.censoring:
                raise DataError("--calibrate measures errors, which censored rows do not have; leave it out.")
            if not explains(encoder, rows):
                raise DataError(f"--calibrate needs rows with the target {encoder.explained}; {path} lacks it.")
        table = posterior.predict(frame, given["level"], calibrate=rows).to_frame()
        table = table.rename(columns={"class": encoder.target.name})
        names = [name for name in identifiers(encoder, frame) if name not in (*table, "row")]
        return pd.concat([frame[names].reset_index(drop=True), table], axis=1).rename_axis("row").reset_index()


class Network(Linear):
    """Neural networks that explain a table's target."""

    name, compared, has_reference = "mlp", "map,bbb,ensemble", False
    options = OF_TABLES | {
        "hidden": Option(whole_numbers("hidden", "50 or 50,50"), "50"),
        "prior": Option(number_or_name, PRIORS[0]),
    }
    takes = Linear.takes - {"example"}

    def method(self, task: Task, settings: Arguments) -> Method:
        method = super().method(task, settings)
        if method.label == "rejection":
            raise SettingsError("Rejection sampling accepts no draw of so many weights: use bbb, ensemble or nuts.")
        return method


def identifiers(encoder: Encoder, frame: pd.DataFrame) -> list[str]:
    """The columns of a table that differ in every row, and that the model does not use."""
    inputs = encoder.names if encoder.formula is None else encoder.formula.names
    used = {*inputs, *(aim.name for aim in encoder.targets), encoder.weights, encoder.exposure}
    return [name for name in map(str, frame.columns) if name not in used and frame[name].is_unique]


def size_of(data: Data, model: Model) -> str:
    """The numbers of rows and parameters, in words."""
    return f"{data.size:,} rows, {counted(len(model.names), 'parameter')}"


def model_of(encoder: Encoder, spec: Arguments) -> Model:
    """The model of an encoded table, from the options ``spec``."""
    if encoder.formula is not None:
        return formula_model(encoder)
    return table_model(encoder, spec.get("hidden"), spec.get("prior"))


# Kinds that model whole rows.


class Mixture(Chosen):
    """Mixtures of normals for a table's columns of numbers."""

    name, row_noun = "gaussian-mixture", "predictions"
    remedy = "Or use --missing exact, which learns from the numbers that a row has and imputes none."
    options = HELD_OUT_SHARE | {
        "components": Option(whole_numbers("components", "3, 2,3,5 or 2..10"), "1..10"),
        "covariance": Option(one_of(mixture.COVARIANCES, "--covariance is"), "full"),
        "choose": Option(one_of(CRITERIA, "--choose is"), "bic"),
        "missing": Option(one_of(("raise", "drop", "exact"), "--missing of a mixture is"), "raise"),
        "exclude": Option(list, ()),
    }

    def source(self, path: Path, spec: Arguments, array: str | None, encoder: Encoder | None) -> tuple[Source, Any]:
        frame = read_table(path) if encoder is not None else reading.drop_columns(read_table(path), spec["exclude"])
        return of_table(frame, path, encoder.names if encoder else (), ", which a mixture of normals needs"), None

    def recognise(self, source: Source, spec: Arguments) -> tuple[dict[str, Any], float]:
        if spec["choose"] == "evidence" and spec["missing"] == "exact":
            raise SettingsError("--choose evidence needs complete rows: use --missing drop, or --choose bic.")
        return {"family": "normal", "gaps": bool(source.gaps.any())}, 0.0

    def model(self, spec: Arguments, encoder: Encoder) -> LatentModel:
        make = mixture.with_missing if spec.get("gaps") else mixture.gaussian_mixture
        return make(spec["chosen"], len(encoder.columns), spec["covariance"])

    def bound(self, task: Task, k: int) -> LatentModel:
        d, covariance = len(task.encoder.columns), task.spec["covariance"]
        return library.bayesian_gaussian_mixture(k, d, covariance, weight_concentration=1.0)

    def describe(self, posterior: Posterior, task: Task) -> Components:
        theta, errors = posterior.mean(), posterior.sd()
        _, sd = task.encoder.scale
        k, d = theta.means.shape
        spread = np.asarray(theta.covariances, np.float64)
        if task.spec["covariance"] in ("full", "tied"):
            spread = np.broadcast_to(spread, (k, d, d))
        else:
            spread = spread.reshape(k, -1, 1) * np.eye(d)
        means = task.encoder.restore(np.asarray(theta.means, np.float64))
        weights, weight_errors = (np.asarray(a.weights, np.float64) for a in (theta, errors))
        return Components(task.encoder.names, weights, weight_errors, means, spread * np.outer(sd, sd))

    def files(self, description: Components, task: Task) -> dict[str, pd.DataFrame]:
        return {"components.csv": description.frame(task.data.size)}

    def page_sections(self, description: Components, task: Task, posterior: Posterior) -> list[Section]:
        model: Any = posterior.model
        _, share = densities(model, posterior.mean(), task.data.y, task.encoder)
        rows = task.encoder.restore(task.data.y)
        return pages.of_components(description, rows, share.argmax(1), task.spec["covariance"])

    def columns(self, posterior: Posterior, task: Task, order: Places | None) -> dict[str, Any]:
        gaps = np.isnan(task.data.y).any(1)
        if gaps.any():
            tell(f"{counted(int(gaps.sum()), 'row')} with missing values: predicted from the numbers that they have.")
        model = self.model(task.spec | {"gaps": gaps.any()}, task.encoder)
        density, share = densities(model, posterior.mean(), task.data.y, task.encoder)
        shares = {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
        return {"component": share.argmax(1) + 1, **shares, "log density": density}


@compiled("model")
def _densities(model: LatentModel, theta: Gaussians, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log p(x), (n,), and responsibilities (n, K) of standardised rows x."""
    return model.log_prob(theta, x), model.responsibilities(theta, x)  # pyright: ignore[reportOptionalCall]


def densities(
    model: LatentModel, theta: Gaussians, rows: np.ndarray, encoder: Encoder
) -> tuple[np.ndarray, np.ndarray]:
    """log p(x) of standardised rows in nats, (n,), and responsibilities (n, K); p is the density in the table's units.

    A nat is the unit of the natural logarithm.
    """
    precision = jnp.result_type(float)
    theta = jax.tree.map(lambda a: jnp.asarray(a, precision), theta)
    blocks = (jnp.asarray(rows[i : i + CHUNK], precision) for i in range(0, len(rows), CHUNK))
    parts = zip(*(_densities(model, theta, block) for block in blocks), strict=True)
    density, share = (np.concatenate([np.asarray(a, np.float64) for a in part]) for part in parts)
    return density - encoder.log_scales(rows), share


class Sequences(Chosen):
    """Hidden Markov models for a table whose rows are steps of sequences."""

    name, tries, unit, row_noun, fewest = "hidden-markov", "states", "sequence", "rows", 5
    # By family: the words for a state's numbers.
    says: ClassVar[dict[str, str]] = {"normal": "mean of", "poisson": "rate", "bernoulli": "probability of 1"}
    options = HELD_OUT_SHARE | {
        "states": Option(whole_numbers("states", "3, 2,3,5 or 2..5"), "1..5"),
        "by": Option(),
        "time": Option(),
        "exclude": Option(list, ()),
        "family": Option(one_of(says, "--family of a hidden-markov is")),
        "covariance": Option(one_of(("diagonal", "full"), "--covariance of a hidden-markov is"), "diagonal"),
        "choose": Option(one_of(("bic", "held-out"), "--choose of a hidden-markov is"), "bic"),
    }

    def source(self, path: Path, spec: Arguments, array: str | None, encoder: Encoder | None) -> tuple[Source, Any]:
        frame = read_table(path)
        order = places(frame, spec["by"], spec["time"], None if encoder is None else spec["unit"])
        frame = frame.astype({name: float for name in frame if frame[name].dtype.kind == "b"})
        if encoder is not None:
            return of_table(frame, path, encoder.names), order
        frame = reading.drop_columns(frame, spec["exclude"]).drop(columns=[spec["by"], spec["time"]], errors="ignore")
        return of_table(frame, path, purpose=" for the states to explain"), order

    def recognise(self, source: Source, spec: Arguments) -> tuple[dict[str, Any], float]:
        """The family, as the user gives it or as guessed from the values: zeros and ones, counts, or other numbers."""
        values, family = source.values, spec["family"]
        if family is None:
            columns = [column[~np.isnan(column)] for column in values.T]
            each = {fit_target(pd.Series(column)).family for column in columns if len(set(column)) > 1}
            family = "poisson" if each and each <= {*COUNTS} else "normal"
            family = "bernoulli" if set(np.concatenate(columns)) <= {0.0, 1.0} else family
            tell(f"The numbers are taken as --family {family}. Choose another with --family.")
        if family != "normal" and spec["covariance"] == "full":
            raise SettingsError(f"--covariance is for --family normal; the family here is {family}. Leave it out.")
        return {"family": family}, float(family != "normal")

    def read(self, given: Arguments) -> Task:
        task = super().read(given)
        counts = task.spec["family"] == "poisson"
        task.spec["centre"] = np.maximum(np.nanmean(flat_rows(task.data.y), 0), 1e-3).tolist() if counts else None
        return task

    def model(self, spec: Arguments, encoder: Encoder) -> Any:
        full = (spec["family"], spec["covariance"]) == ("normal", "full")
        family = "multivariate-normal" if full else spec["family"]
        return library.hidden_markov(spec["chosen"], family, len(encoder.columns), centre=spec["centre"])

    def describe(self, posterior: Posterior, task: Task) -> States:
        theta, errors, encoder, family = posterior.mean(), posterior.sd(), task.encoder, task.spec["family"]
        k, emission, state_sds = len(theta.initial), theta.emission, None
        values = np.asarray(jax.tree.leaves(emission)[0] if family != "normal" else emission.mean, np.float64)
        values = values.reshape(k, -1)
        if family == "normal":
            full = task.spec["covariance"] == "full"
            sds = np.sqrt(np.diagonal(emission.covariance, axis1=1, axis2=2)) if full else emission.sd
            values, state_sds = encoder.restore(values), np.asarray(sds, np.float64).reshape(k, -1) * encoder.scale[1]
        time = np.asarray(shares(jax.tree.map(jnp.asarray, theta)))
        initial, moves, errors = (
            np.asarray(a, np.float64) for a in (theta.initial, theta.transition, errors.transition)
        )
        says, unit = self.says[family], task.spec["unit"]
        return States(encoder.names, values, state_sds, time, initial, moves, errors, says, unit)

    def files(self, description: States, task: Task) -> dict[str, pd.DataFrame]:
        return {"states.csv": description.frame(), "transitions.csv": description.transitions()}

    def page_sections(self, description: States, task: Task, posterior: Posterior) -> list[Section]:
        model: Any = posterior.model
        paths = np.asarray(model.paths(posterior.mean(), task.data.y))
        return pages.of_states(description, task.encoder.restore(task.data.y), paths)

    def columns(self, posterior: Posterior, task: Task, order: Places | None) -> dict[str, Any]:
        """The predictions for each row.

        They are the row's state on the most probable path, each state's probability, and the mean and sd of the row's
        numbers.
        """
        model: Any = task.model
        steps: Any = order
        model.check_rows(task.data)
        theta, states = jax.tree.map(jnp.asarray, posterior.mean()), self.describe(posterior, task)
        share = steps.back(expected_states(model, theta, task.data.y))
        path = steps.back(np.asarray(model.paths(theta, task.data.y))) + 1
        columns: dict[str, Any] = {"state": np.where(path > 0, path, share.argmax(1) + 1)}
        columns |= {f"p({k + 1})": share[:, k] for k in range(share.shape[1])}
        for j, name in enumerate(states.names):
            columns[f"{states.says} {name}"] = mean = share @ states.values[:, j]
            if states.spreads is not None:
                second = share @ (states.spreads[:, j] ** 2 + states.values[:, j] ** 2)
                columns[f"sd of {name}"] = np.sqrt(np.maximum(second - mean**2, 0))
        return columns


def expected_states(model: HiddenMarkovModel, theta: HiddenMarkov, y: np.ndarray) -> np.ndarray:
    """p(z_t | x, θ) of every step, (N, T, K), also of the steps after a sequence's last observed step."""
    share = np.array(model.responsibilities(theta, y))  # pyright: ignore[reportOptionalCall]
    transition, initial = np.asarray(theta.transition), np.asarray(theta.initial)
    for t in range(share.shape[1]):
        ended = share[:, t].sum(1) == 0
        share[ended, t] = initial if t == 0 else share[ended, t - 1] @ transition
    return share


DEFAULT = Linear.name
KINDS = {kind.name: kind for kind in (Linear(), Network(), Mixture(), Sequences(), Autoencoder(), BeliefNetwork())}


def kind_of(name: str) -> Kind:
    """The kind with this name."""
    if name not in KINDS:
        raise SettingsError(f"--model is one of {', '.join(KINDS)}; got {name!r}.{nearest(name, KINDS)}")
    return KINDS[name]


def comparable_kind(given: Arguments) -> Kind:
    """The kind that --model names.

    Raises:
        SettingsError: compare and calibrate do not accept this kind, or an option is for another kind.
    """
    kind = kind_of(given["model"])
    if not kind.compared:
        names = ", ".join(each.name for each in KINDS.values() if each.compared)
        raise SettingsError(f"compare and calibrate accept only --model {names}; got --model {kind.name}.")
    check_options(kind, given)
    return kind


def check_options(kind: Kind, given: Arguments) -> None:
    """Raise a SettingsError about the first option that the user set but that is only for other kinds."""
    for name, value in given.items():
        owners = [each.name for each in KINDS.values() if name in each.options or name in each.takes]
        if value not in (None, False) and owners and kind.name not in owners:
            names, option = ", ".join(owners), name.replace("_", "-")
            raise SettingsError(f"--{option} is for --model {names}; got --model {kind.name}.")
