"""A posterior as an ArviZ DataTree."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tractable.core import tree
from tractable.core.errors import DataError, ModelError, RunError, SettingsError
from tractable.core.tree import PyTree
from tractable.core.words import tell
from tractable.diagnostics.learnt import Learnt
from tractable.posterior import pointwise
from tractable.posterior.scaling import log_priors

GROUPS = (
    "posterior", "sample_stats", "log_likelihood", "log_prior", "posterior_predictive", "prior", "prior_predictive",
    "observed_data", "constant_data",
)  # fmt: skip
OF_PRIOR = 500  # draws of the prior by default
STATS = {"divergent": "diverging", "acceptance": "acceptance_rate", "saturated": "reached_max_treedepth"}  # ArviZ's
OF_ROWS = ("log_likelihood", "posterior_predictive", "prior_predictive", "observed_data", "constant_data")
Names = Mapping[str, Sequence[str]]


def to_tree(
    posterior: Learnt, groups: Sequence[str], draws: int | None, dims: Names | None, coords: Mapping[str, Any] | None,
    seed: int,
) -> Any:  # fmt: skip
    """See ``Posterior.to_arviz``."""
    import arviz_base

    strangers = sorted(set(groups) - set(GROUPS))
    if strangers:
        raise SettingsError(f"to_arviz(groups=...) expects some of {', '.join(GROUPS)}; got {strangers[0]!r}.")
    makers, left_out, made = _makers(posterior, draws, seed), {}, {}
    for name in groups:
        try:
            made[name] = makers[name]()
        except (DataError, ModelError, RunError) as error:
            if name == "posterior":  # the one indispensable group
                raise
            left_out[name] = str(error)
            if isinstance(error, DataError) and posterior.data is not None:  # too large
                tell(f"to_arviz leaves {name} out. {error}")
    made = {name: variables for name, variables in made.items() if variables}
    # Groups of rows are built apart: a parameter and a data column may share a name, but not axes.
    coords = {f"{name}_dim_0": list(names) for name, names in (posterior.model.labels or {}).items()} | dict(
        coords or {}
    )
    labels = None if posterior.data is None else posterior.data.labels
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer")  # e.g. an ensemble's members
        out = arviz_base.from_dict({k: v for k, v in made.items() if k not in OF_ROWS}, dims=dims, coords=coords)
        for name in OF_ROWS:
            if name not in made:
                continue
            by_group = labels is not None and name == "log_likelihood"  # then each datum is a group
            axis = "group" if by_group else "row"
            named_axes = {variable: [axis, *(dims or {}).get(variable, [])] for variable in made[name]}
            own: Any = ({"group": labels} if by_group else {}) | coords
            out[name] = arviz_base.from_dict({name: made[name]}, dims=named_axes, coords=own)[name]
    if left_out:  # as text, as netCDF requires
        out.attrs["left_out"] = "\n".join(f"{name}: {why}" for name, why in left_out.items())
    return out


def _makers(posterior: Any, draws: int | None, seed: int) -> dict[str, Callable[[], dict[str, np.ndarray]]]:
    """For each group's name, a function that makes its variables."""
    data = posterior.data
    rows = None if data is None else data.members()

    def thinned(trace: np.ndarray) -> np.ndarray:
        count = trace.shape[1]
        return trace if draws is None or draws >= count else trace[:, np.linspace(0, count - 1, draws).astype(int)]

    def stats() -> dict[str, np.ndarray]:
        weights = {} if posterior.weights is None else {"weight": posterior.weights}
        traces = {} if posterior.curve is not None else posterior.info | weights
        traces = {STATS.get(name) or name: trace for name, trace in traces.items()}
        traces |= {name: traces[name] > 0 for name in ("diverging", "reached_max_treedepth") if name in traces}
        shape = (posterior.chains, posterior.count)  # a fitted q has traces of its optimisation, not of draws
        return {name: thinned(trace) if trace.shape[:2] == shape else trace for name, trace in traces.items()}

    def columns(part: int, name: str) -> dict[str, np.ndarray]:
        return {} if rows is None else named(rows.rows[part], name)

    def constant() -> dict[str, np.ndarray]:
        weights = {} if data is None or data.weights is None else {"weights": data.weights}
        of_groups = {} if data is None or data.labels is None else {"group_of_row": data.labels[data.places]}
        return columns(1, "x") | weights | of_groups

    def derived() -> dict[str, np.ndarray]:
        try:
            return named(posterior.derived(draws=draws), "derived")
        except DataError as error:  # it would not fit
            tell(f"to_arviz leaves out what the model derives. {error}")
            return {}

    def one_chain(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: a[None] for name, a in variables.items()}

    return {
        "posterior": lambda: named(jax.tree.map(thinned, posterior.draws), "parameters") | derived(),
        "sample_stats": stats,
        "log_likelihood": lambda: {_of_y(data): posterior.log_likelihood(draws=draws)},
        "log_prior": lambda: {"log_prior": thinned(log_priors(posterior.model, posterior.draws))},
        "posterior_predictive": lambda: named(posterior.posterior_predictive(draws=draws, seed=seed), "y"),
        "prior": lambda: one_chain(
            named(pointwise.prior_draws(posterior.model, draws or OF_PRIOR, seed), "parameters")
        ),
        "prior_predictive": lambda: one_chain(
            named(posterior.prior_predictive(draws=draws or OF_PRIOR, seed=seed), "y")
        ),
        "observed_data": lambda: columns(0, "y"),
        "constant_data": constant,
    }


def named(arrays: PyTree, alone: str) -> dict[str, np.ndarray]:
    """Leaves by the names of their paths; ``alone`` names a single array."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(arrays)
    return {tree.path_name(path) if path else alone: np.asarray(leaf) for path, leaf in leaves}


def _of_y(data: Any) -> str:
    names = {} if data is None else named(data.y, "y")
    return next(iter(names)) if len(names) == 1 else "y"
