"""The model of an encoded table, and its numbers and predictions in the table's names and units."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import sparse

from tractable.core import tree
from tractable.core.arrays import columns_of
from tractable.core.censored import seen
from tractable.core.censoring import with_censoring
from tractable.core.errors import SettingsError
from tractable.core.model import Data, Model, PyTree
from tractable.core.shared import recorded, remember, shared
from tractable.core.view import Label, Table, View, as_label, unique_labels
from tractable.glm import linear
from tractable.glm.families import CLASSES, with_offset
from tractable.glm.horseshoe import SCALE, scale_for, with_horseshoe
from tractable.networks import multi_output, network
from tractable.posterior.predict import Prediction
from tractable.tables.encoder import Encoder, decode, decode_sd, drop_targets, encode
from tractable.tables.files import Frame
from tractable.tables.levels import with_levels
from tractable.tables.targets import COUNTS, PLAIN, POSITIVE, Target

ORDER = ("intercept", "weights", "sparse", "levels")  # the parameters that come first in a summary
LINEAR_PRIORS = ("normal", "horseshoe")  # of a linear model's weights


def table_model(encoder: Encoder, hidden: Sequence[int] | None = None, prior: PyTree = None) -> Model:
    """The model of an encoder of columns: generalised linear, or a network if ``hidden`` names its layers' widths.

    ``prior`` is the prior of a network's weights, as for ``neural_network``; or "horseshoe" for a sparse prior of a
    linear model's weights (``glm.horseshoe``).
    """
    family, features, classes = encoder.target.family, len(encoder.features), len(encoder.target.classes)
    names = [aim.name for aim in encoder.targets]
    # With many weights for the number of rows, the prior sd of a linear model's weights is learnt (scale is None).
    # A table with group effects has a fixed scale, as each group has a learnt scale of its own.
    scale = 2.5 if encoder.levels else linear.weight_scale_for(features, encoder.rows, family)
    if hidden is not None:
        model = _network(hidden, network.PRIORS[0] if prior is None else prior, features, classes, names, family)
    elif encoder.others:
        model = multi_output.several_linear(names, features, family, scale)
    else:
        model = linear.generalised_linear(features, family, classes if family in CLASSES else None, scale)
    model = with_censoring(model) if encoder.target.censoring else model
    model = with_offset(model) if family in COUNTS else model
    if hidden is None and isinstance(prior, str) and prior == "horseshoe":
        model = with_horseshoe(model, scale_for(features, encoder.rows))
    if encoder.levels:
        pooled = [column for column in encoder.columns if column.kind == "pooled"]
        rows, spreads = [np.array([*column.shares, 0.0]) for column in pooled], [column.sd for column in pooled]
        model = with_levels(model, encoder.levels, rows, spreads)
    model = replace(model, labels=(dict(model.labels or {}) | labels_of(encoder, model)) or None)
    model = replace(model, table=table_of(encoder, None if hidden is not None else view_of(encoder, model)))
    widths = None if hidden is None else list(hidden)
    return remember(model, made_from, lambda: {"encoder": encoder.to_dict(), "hidden": widths, "prior": prior})


@recorded
def made_from(encoder: dict[str, Any], hidden: list[int] | None, prior: PyTree) -> Model:
    """The model of a saved encoder."""
    return table_model(Encoder.from_dict(encoder), hidden, prior)


def _network(hidden: Sequence[int], prior: PyTree, features: int, classes: int, names: list[str], family: str) -> Model:
    """A network whose outputs are the targets named ``names``, or the logits of the classes."""
    family = "categorical" if family in CLASSES else family  # for a network, ordered classes are categorical
    if names[1:] and family != "normal":
        raise SettingsError(
            f"A network with several targets expects the family normal; got {family!r}. Or give one target."
        )
    mlp = network.mlp(features, tuple(hidden), classes if family == "categorical" else len(names))
    likelihood, extra = multi_output.multi_output_likelihood(family, len(names)) if names[1:] else (family, None)
    return network.neural_network(mlp, likelihood, prior=prior, extra=extra)


def labels_of(encoder: Encoder, model: Model) -> dict[str, list[Label]]:
    """The names of a linear model's weights ("weights[age]", of classes "setosa.weights[age]") and of learnt scales."""
    out: dict[str, list[Label]] = {}
    for path, leaf in _leaves(model):
        name = tree.path_name(path)
        if path[0].key == "scales" and leaf.shape == (len(encoder.features),):
            out[name] = [Label(name, feature) for feature in encoder.features]
        elif name == "sparse":
            out[name] = [SCALE, *(Label("weights", feature) for feature in encoder.features)]
        elif path[-1].key == "weights" and not model.network_weights:
            of_classes = [f"{label}." for label in encoder.target.classes] if len(leaf.shape) == 2 else [""]
            out[name] = [Label(label + name, feature) for feature in encoder.features for label in of_classes]
    return out


@shared
def with_labels(model: Model, names: Sequence[str], labels: Sequence[Sequence[str]]) -> Model:
    """The model with labels of the numbers of the parameters ``names``. Equal arguments give the same ``Model``."""
    return replace(model, labels={name: list(own) for name, own in zip(names, labels, strict=True)})


def _leaves(model: Model) -> list[tuple[Any, Any]]:
    """The path and shape of each parameter."""
    return jax.tree_util.tree_flatten_with_path(jax.eval_shape(model.example, jax.random.key(0)))[0]


def table_of(encoder: Encoder, view: View | None) -> Table:
    """What a model knows about the table of an encoder."""
    inputs, data, units = partial(inputs_of, encoder), partial(data_of, encoder), partial(in_units, encoder)
    return Table(inputs, data, units, partial(log_units, encoder), partial(decode, encoder), view)


def inputs_of(encoder: Encoder, table: object) -> PyTree:
    """The model's inputs for the rows of a table, which need not hold the target."""
    return encode(encoder, drop_targets(encoder, _frame(table))).given


def data_of(encoder: Encoder, table: object) -> Data:
    """The rows of a table, which holds the target, as the model's data."""
    rows = encode(encoder, _frame(table))
    return Data(rows.y, rows.given, weights=rows.weights)


def _frame(table: object) -> Frame:
    return table if isinstance(table, Frame) else Frame(columns_of(table))


def in_units(encoder: Encoder, prediction: Prediction) -> Prediction:
    """A prediction in the units of the table, with the names of its classes or of its several targets."""
    if prediction.probabilities is not None:
        return prediction._replace(labels=encoder.target.classes)
    decoders = dict.fromkeys(("mean", "lower", "upper"), decode)
    decoders |= dict.fromkeys(("sd", "aleatoric", "epistemic"), decode_sd)
    numbers = {name: of(encoder, getattr(prediction, name)) for name, of in decoders.items()}
    return prediction._replace(**numbers, labels=tuple(aim.name for aim in encoder.targets) if encoder.others else None)


def log_units(encoder: Encoder, y: PyTree) -> np.ndarray:
    """By how many nats a row's log density in the model's units exceeds the one in the table's units, (n,) or (1,).

    It is 0 for a row of which only bounds are known, as its probability has no units. A nat is the unit of the natural
    logarithm.
    """
    total = float(np.sum(np.log(encoder.units[0])))
    return total * (seen(y).astype(float) if encoder.target.censoring else np.ones(1))


def view_of(encoder: Encoder, model: Model) -> View:
    """The numbers of a linear model in the table's units: effects, intercept at mean inputs, and further parameters.

    The effect of a number is the change of the linear predictor η (of y, if normal) for one more unit. The effect of
    True/False is the change from False to True. The effect of a level is its difference from the mean of the levels,
    and the effect of a time in a cycle is its difference from the cycle's mean. With several classes, each class has
    its own effect, relative to the mean of the classes.
    """
    parts, start, size = [], 0, len(model.names)
    for path, leaf in _leaves(model):
        aim = next((aim for aim in encoder.others if path[0].key == aim.name), encoder.target)
        names, matrix, shift = _part(encoder, aim, path, leaf, (model.labels or {}).get(tree.path_name(path)))
        of_part, key = matrix.tocoo(), path[-1].key
        places = of_part.row, of_part.col + start
        start += int(np.prod(leaf.shape))
        rank = encoder.targets.index(aim), ORDER.index(key) if key in ORDER else len(ORDER)
        parts.append((rank, names, sparse.coo_array((of_part.data, places), (len(names), size)), shift))
    parts.sort(key=lambda part: part[0])
    _, names, matrices, shifts = zip(*parts, strict=True)
    labels = tuple(unique_labels(itertools.chain(*names)))
    return View(labels, sparse.vstack(matrices, format="csr"), np.concatenate(shifts))


def _part(
    encoder: Encoder, aim: Target, path: tuple, leaf: jax.ShapeDtypeStruct, labels: Sequence[str] | None
) -> tuple[list[Label], sparse.csr_array, np.ndarray]:
    """Names, matrix and shift of the numbers that one parameter gives."""
    key, size = path[-1].key, int(np.prod(leaf.shape))
    prefix = f"{aim.name}." if encoder.others else ""
    unit = aim.sd if aim.family in PLAIN else 1.0
    origin = aim.mean if aim.family in PLAIN else np.log(aim.sd if aim.family in POSITIVE else aim.level)
    if key == "weights":
        names, matrix = encoder.effects
        classes = [f"{label}." for label in encoder.target.classes] if len(leaf.shape) == 2 else [""]
        names = [name.of_part(prefix + label) for name in names for label in classes]
        return names, unit * sparse.csr_array(sparse.kron(matrix, np.eye(len(classes)))), np.zeros(len(names))
    if key == "sparse":
        names, matrix = [SCALE, *encoder.effects[0]], sparse.block_diag([np.ones((1, 1)), encoder.effects[1]])
        return names, unit * sparse.csr_array(matrix), np.zeros(len(names))
    if labels is None and key == "intercept" and leaf.shape:
        labels = [Label(f"{label}.intercept") for label in encoder.target.classes]
    names = [as_label(name) for name in labels or tree.names({tree.path_name(path): np.zeros(leaf.shape)})]
    scale = unit if key in ("intercept", "levels", "noise") else 1.0
    shift = np.zeros(size)
    if names[0] == f"{prefix}intercept":
        shift[0] = origin
    return names, sparse.csr_array(scale * sparse.eye_array(size)), shift
