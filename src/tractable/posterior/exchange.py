"""Converts a posterior to an ArviZ DataTree."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np

from tractable.core import tree
from tractable.core.errors import DataError, ModelError, RunError, SettingsError
from tractable.core.model import Data
from tractable.core.tree import PyTree
from tractable.core.view import Label, View, as_label, unique_labels
from tractable.core.words import tell
from tractable.diagnostics.learnt import Learnt
from tractable.posterior import pointwise
from tractable.posterior.scaling import log_priors

GROUPS = (
    "posterior", "sample_stats", "log_likelihood", "log_prior", "posterior_predictive", "prior", "prior_predictive",
    "observed_data", "constant_data",
)  # fmt: skip
OF_PRIOR = 500  # default number of draws from the prior
# ArviZ's names of the traces that have other names here.
STATS = {"divergent": "diverging", "acceptance": "acceptance_rate", "saturated": "reached_max_treedepth"}
# Groups whose variables have an axis over rows.
OF_ROWS = ("log_likelihood", "posterior_predictive", "prior_predictive", "observed_data", "constant_data")
KINDS = ("datatree", "inferencedata")
AXES = ("chain", "draw", "sample")
VIEW = "view"  # the variable that holds the numbers of a table's view until these are split by their terms
Names = Mapping[str, Sequence[str]]


def as_kind(data_tree: Any, kind: str | None) -> Any:
    """The DataTree as what the installed ArviZ takes: before its version 1, that is an InferenceData."""
    if kind is not None and kind not in KINDS:
        raise SettingsError(f"to_arviz(kind=...) expects {' or '.join(map(repr, KINDS))}; got {kind!r}.")
    try:
        is_old = int(version("arviz").partition(".")[0]) < 1
    except PackageNotFoundError:
        is_old = False
    if kind == "datatree" or (kind is None and not is_old):
        return data_tree
    if not is_old:
        raise SettingsError("to_arviz(kind='inferencedata') needs ArviZ before version 1: pip install 'arviz<1'.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # ArviZ announces its version 1 at every import
        from arviz import InferenceData  # pyright: ignore[reportMissingImports]

    groups = {name: group.to_dataset() for name, group in data_tree.children.items()}
    return InferenceData(attrs=dict(data_tree.attrs), **groups)


def to_tree(
    posterior: Learnt, view: View | None, groups: Sequence[str], draws: int | None, dims: Names | None,
    coords: Mapping[str, Any] | None, seed: int,
) -> Any:  # fmt: skip
    """Makes the DataTree of ``Posterior.to_arviz``, which explains the arguments."""
    import arviz_base

    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        raise SettingsError(f"to_arviz(groups=...) expects some of {', '.join(GROUPS)}; got {unknown[0]!r}.")
    makers, left_out, contents = _makers(posterior, view, draws, seed), {}, {}
    for name in groups:
        try:
            contents[name] = makers[name]()
        except (DataError, ModelError, RunError) as error:
            if name == "posterior":  # every other group may be left out
                raise
            left_out[name] = str(error)
            if isinstance(error, DataError) and posterior.data is not None:  # the group would be too large
                tell(f"to_arviz leaves {name} out. {error}")
    contents = {name: variables for name, variables in contents.items() if variables}
    # Groups of rows are built separately: a parameter and a data column may have the same name, but not the same axes.
    own = posterior.model.labels or {} if view is None else {VIEW: view.names}
    terms = terms_of(own, [name for name in contents.get("posterior", ()) if name not in own])
    for name in ("posterior", "prior"):
        contents |= {name: split_terms(contents[name], terms)} if name in contents else {}
    levels = {term: term_levels for each in terms.values() for term, (_, term_levels) in each.items() if term_levels}
    axes = unique_labels(
        [Label(f"{term}_level") for term in levels], [term for each in terms.values() for term in each]
    )
    dims = {term: [axis] for term, axis in zip(levels, axes, strict=True)} | dict(dims or {})
    coords = dict(zip(axes, levels.values(), strict=True)) | dict(coords or {})
    labels = None if posterior.data is None else posterior.data.labels
    with warnings.catch_warnings():
        # The members of an ensemble are chains with few draws each.
        warnings.filterwarnings("ignore", "Found chain dimension to be longer")
        out = arviz_base.from_dict({k: v for k, v in contents.items() if k not in OF_ROWS}, dims=dims, coords=coords)
        for name in OF_ROWS:
            if name not in contents:
                continue
            by_group = labels is not None and name == "log_likelihood"  # each datum of the likelihood is then a group
            axis = "group" if by_group else "row"
            axis_names = {variable: [axis, *dims.get(variable, [])] for variable in contents[name]}
            axis_labels: Any = ({"group": labels} if by_group else {}) | coords
            out[name] = arviz_base.from_dict({name: contents[name]}, dims=axis_names, coords=axis_labels)[name]
    if left_out:  # one string, because netCDF attributes hold no dictionaries
        out.attrs["left_out"] = "\n".join(f"{name}: {why}" for name, why in left_out.items())
    return out


def terms_of(labels: Names, others: Sequence[str] = ()) -> dict[str, dict[str, tuple[list[int], list[str]]]]:
    """For each labelled parameter, the terms of its numbers: the places of a term's numbers, and their levels.

    A term is the name of a variable, so it gets " (column)" if it is the name of one of the ``others`` or of an axis of
    ArviZ; "_" replaces "/", which a DataTree refuses.

    >>> terms_of({"effects": [Label("x"), Label("z", "b"), Label("z", "c"), Label("draw")]})["effects"]
    {'x': ([0], []), 'z': ([1, 2], ['b', 'c']), 'draw (column)': ([3], [])}
    """
    out: dict[str, dict[str, tuple[list[int], list[str]]]] = {}
    taken = {*AXES, *others}
    for name, own in labels.items():
        found: dict[tuple[str, bool], tuple[list[int], list[str]]] = {}
        for place, label in enumerate(map(as_label, own)):
            places, levels = found.setdefault((label.term, label.level is None), ([], []))
            places.append(place)
            levels += [] if label.level is None else [label.level]
        variables = unique_labels([Label(term.replace("/", "_")) for term, _ in found], taken)
        taken |= set(variables)
        out[name] = dict(zip(variables, found.values(), strict=True))
    return out


def split_terms(variables: Mapping[str, np.ndarray], terms: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The variables, with one for each term in place of a parameter whose numbers have labels."""
    out: dict[str, np.ndarray] = {}
    for name, values in variables.items():
        out |= (
            {t: values[..., i if names else i[0]] for t, (i, names) in terms[name].items()}
            if name in terms
            else {name: values}
        )
    return out


def _makers(
    posterior: Any, view: View | None, draws: int | None, seed: int
) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
    """For each group's name, a function that makes the group's variables."""
    data = posterior.data
    rows = None if data is None else data.members()

    def thin(trace: np.ndarray) -> np.ndarray:
        count = trace.shape[1]
        return trace if draws is None or draws >= count else trace[:, np.linspace(0, count - 1, draws).astype(int)]

    def stats() -> dict[str, np.ndarray]:
        weights = {} if posterior.weights is None else {"weight": posterior.weights}
        traces = {} if posterior.curve is not None else posterior.info | weights
        traces = {STATS.get(name) or name: trace for name, trace in traces.items()}
        traces |= {name: traces[name] > 0 for name in ("diverging", "reached_max_treedepth") if name in traces}
        # Only traces with a number for each draw are thinned; a trace of optimisation steps, for example, is not.
        shape = (posterior.chains, posterior.count)
        return {name: thin(trace) if trace.shape[:2] == shape else trace for name, trace in traces.items()}

    def columns(part: int, name: str) -> dict[str, np.ndarray]:
        return {} if rows is None else named(rows.rows[part], name)

    def constant() -> dict[str, np.ndarray]:
        weights = {} if data is None or data.weights is None else {"weights": data.weights}
        of_groups = {} if data is None or data.labels is None else {"group_of_row": data.labels[data.places]}
        return columns(1, "x") | weights | of_groups

    def derived() -> dict[str, np.ndarray]:
        try:
            return named(posterior.derived(draws=draws), "derived")
        except DataError as error:  # the arrays would be too large
            tell(f"to_arviz leaves out the model's derived quantities. {error}")
            return {}

    def one_chain(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: a[None] for name, a in variables.items()}

    def parameters(arrays: PyTree, axes: int) -> dict[str, np.ndarray]:
        """The parameters, or the numbers of the table's view; ``axes`` is the number of leading axes."""
        if view is None:
            return named(arrays, "parameters")
        flat = [np.reshape(a, (*np.shape(a)[:axes], -1)) for a in jax.tree.leaves(arrays)]
        return {VIEW: view.values(np.concatenate(flat, -1))}

    return {
        "posterior": lambda: parameters(jax.tree.map(thin, posterior.draws), 2) | derived(),
        "sample_stats": stats,
        "log_likelihood": lambda: {_of_y(data): posterior.log_likelihood(draws=draws)},
        "log_prior": lambda: {"log_prior": thin(log_priors(posterior.model, posterior.draws))},
        "posterior_predictive": lambda: named(posterior.posterior_predictive(draws=draws, seed=seed), "y"),
        "prior": lambda: one_chain(parameters(pointwise.prior_draws(posterior.model, draws or OF_PRIOR, seed), 1)),
        "prior_predictive": lambda: one_chain(
            named(posterior.prior_predictive(draws=draws or OF_PRIOR, seed=seed), "y")
        ),
        "observed_data": lambda: columns(0, "y"),
        "constant_data": constant,
    }


def named(arrays: PyTree, alone: str) -> dict[str, np.ndarray]:
    """The leaves of a pytree by the names of their paths; a single array gets the name ``alone``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(arrays)
    return {tree.path_name(path) if path else alone: np.asarray(leaf) for path, leaf in leaves}


def _of_y(data: Data | None) -> str:
    """The variable name of y: the name of its only array, or "y" if there are several arrays or no data."""
    names = {} if data is None else named(data.y, "y")
    return next(iter(names)) if len(names) == 1 else "y"
