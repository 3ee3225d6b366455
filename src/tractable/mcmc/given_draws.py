"""Draws that another program made, as a method's result."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.core.errors import DataError
from tractable.core.model import Model, PyTree
from tractable.core.rows import Data
from tractable.core.words import listing
from tractable.diagnostics.belief import Belief, Cost, Draws
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks
from tractable.engine.method import Method
from tractable.mcmc.hamiltonian_methods import divergences

REMEDY = "raise the sampler's target acceptance, or change the parameters (non-centred groups)"
ORDER = "chain", "draw", ...  # of the dimensions of xarray
BLOCK = 4096  # draws that are mapped to unconstrained positions at once


@dataclass(frozen=True, kw_only=True)
class GivenDraws(Method):
    """The method of draws that ``tractable.judge`` was given. It cannot be run."""

    label: ClassVar[str] = "given"
    chained: ClassVar[bool] = True
    follows: ClassVar[bool] = False  # chains of another density may agree
    verified: ClassVar[bool] = True

    @property
    def advice(self) -> str:
        return "they are too few, or of another density: compare priors, Jacobians and rows"

    def checks(self, posterior: Learnt) -> list[Check]:
        return [
            *chain_checks(posterior),
            *([divergences(posterior, REMEDY)] if "divergent" in posterior.info else []),
        ]

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        """Nothing is known of the other program's cost, so a verification takes about two seconds at most."""
        return Cost(0.0, 0.0)


def read_draws(draws: object, model: Model) -> Draws:
    """Draws of another program as unconstrained positions; ``tractable.judge`` says which kinds there are.

    Raises:
        DataError: a parameter is missing, has another shape, or lies outside its support.
    """
    example = jax.eval_shape(model.example, jax.random.key(0))
    paths, tree = jax.tree.flatten_with_path(example)
    is_array = isinstance(draws, np.ndarray | jax.Array) and len(paths) == 1
    arrays, divergent = ({_name(paths[0][0]): np.asarray(draws)}, None) if is_array else _arrays_of(draws)
    leaves = [_leaf(arrays, _name(path), leaf.shape) for path, leaf in paths]
    chains, count = leaves[0].shape[:2]
    for (path, _), leaf in zip(paths, leaves, strict=True):
        if leaf.shape[:2] != (chains, count):
            raise DataError(
                f"The draws of {_name(path)!r} are {leaf.shape[0]} chains of {leaf.shape[1]}, and those of "
                f"{_name(paths[0][0])!r} {chains} chains of {count}. Give as many of each."
            )
    flat = [leaf.reshape(chains * count, *leaf.shape[2:]) for leaf in leaves]
    positions = np.concatenate([
        _positions(model, jax.tree.unflatten(tree, [jnp.asarray(a[i : i + BLOCK]) for a in flat]))
        for i in range(0, chains * count, BLOCK)
    ])  # fmt: skip
    outside = np.flatnonzero(~np.all(np.isfinite(positions), 1))
    if len(outside):
        number = int(np.flatnonzero(~np.isfinite(positions[outside[0]]))[0])
        raise DataError(
            f"{len(outside)} of {len(positions)} draws are not finite or lie outside the support of "
            f"{model.space.names[number]!r}: the first is draw {outside[0] % count} of chain {outside[0] // count}. "
            "Give draws of the model's own parameters, not of transformed ones."
        )
    info = {} if divergent is None else {"divergent": divergent}
    return Draws(positions=positions.reshape(chains, count, -1), info=info)


def _positions(model: Model, params: PyTree) -> np.ndarray:
    """(n, d) unconstrained positions of n draws."""
    return np.asarray(jax.jit(jax.vmap(model.position_of))(params))


def _arrays_of(given: object) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The arrays (chain, draw, …) by name, and (chain, draw) which transitions diverged; None if that is unknown."""
    draws: Any = given
    if hasattr(draws, "get_samples"):  # NumPyro's MCMC
        arrays = {name: np.asarray(a) for name, a in draws.get_samples(group_by_chain=True).items()}
        divergent = draws.get_extra_fields(group_by_chain=True).get("diverging")
        return arrays, None if divergent is None else np.asarray(divergent)
    if isinstance(draws, Mapping) and "posterior" not in draws:
        leaves = jax.tree.leaves_with_path(dict(draws), is_leaf=lambda a: not isinstance(a, Mapping))
        arrays = {_name(path): np.asarray(a) for path, a in leaves}
        return arrays, arrays.get("divergent__")  # Stan's name
    try:  # ArviZ's DataTree and InferenceData, and dicts of their groups
        posterior = draws["posterior"]
        arrays = {str(name): np.asarray(posterior[name].transpose(*ORDER)) for name in posterior.data_vars}
    except (TypeError, KeyError, AttributeError):
        raise DataError(
            "judge expects draws as a dict of arrays (chain, draw, …) by parameter, an ArviZ DataTree or "
            f"InferenceData, or NumPyro's MCMC after its run; got {type(draws).__name__}."
        ) from None
    statistics = draws["sample_stats"] if "sample_stats" in _groups(draws) else {}
    divergent = np.asarray(statistics["diverging"].transpose(*ORDER)) if "diverging" in statistics else None
    return arrays, divergent


def _groups(draws: object) -> set[str]:
    """The names of the groups of a DataTree, an InferenceData or a dict."""
    groups = getattr(draws, "groups", draws)
    names: Any = groups() if callable(groups) else groups
    return {str(name).strip("/") for name in names}


def _name(path: tuple) -> str:
    """The name of a parameter: its keys in the prior, with dots between them."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path) or "x"


def _leaf(arrays: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter's draws (chain, draw, *shape)."""
    if name not in arrays:
        raise DataError(f"There are no draws of {name!r}. The draws have {listing(sorted(arrays))}.")
    array = arrays[name]
    if array.ndim != 2 + len(shape) or array.shape[2:] != shape:
        wanted = ", ".join(["chain", "draw", *map(str, shape)])
        raise DataError(f"The draws of {name!r} must have the shape ({wanted}); they have {array.shape}.")
    return array
