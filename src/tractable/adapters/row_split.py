"""Separates a NumPyro program into a prior and a likelihood of each row, and checks the result."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.ops.provenance import eval_provenance

from tractable.adapters.plates import KnownProgram, Row, axis_of, joint_values, log_prob, parts_of, row_of, scaled
from tractable.core.causes import base_of
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model, PyTree, Through
from tractable.core.words import listing
from tractable.vi.quadrature import structure

CHECKED = 3  # the number of random positions at which a split is compared with NumPyro's densities
# By distribution: the field of the mean parameter, its link to the linear predictor η, and the inverse link.
LINKS: dict[type, tuple[str, Callable, Callable]] = {
    dist.Normal: ("loc", jnp.asarray, jnp.asarray),
    dist.StudentT: ("loc", jnp.asarray, jnp.asarray),
    dist.BernoulliLogits: ("logits", jnp.asarray, jnp.asarray),
    dist.Poisson: ("rate", jnp.log, jnp.exp),
}


class RowAxis(NamedTuple):
    """The axis of the rows: a named plate, or else the leading batch axis."""

    plate: str | None
    size: int
    sites: dict[str, int]  # the observed sites that have rows, with the (negative) dimension of the rows
    local: dict[str, int]  # the latent sites that have rows, with the (negative) dimension of the rows


class NotSeparable(Exception):
    """The rows cannot be separated, for the reason in the message."""


def separate_rows(known: KnownProgram) -> tuple[tuple[Model, Data] | None, str]:
    """Separate the rows of a program.

    Returns:
        ((model, data), warning or ""); or (None, reason) if the rows cannot be separated.
    """
    try:
        axis = find_axis(known)
        rest = {name: site for name, site in known.observed.items() if name not in axis.sites}
        for name in axis.sites:
            if above := known.dependencies("observed", name):
                raise NotSeparable(f"the observed value of {name!r} depends on {listing(above)}")
        for name in set(known.discrete) - set(axis.local):
            raise NotSeparable(f"the discrete site {name!r} is shared by all rows")
        for name in (*known.latent, *rest):  # sites outside the sum over a row's z
            if above := known.dependencies("fn", name) & set(known.discrete):
                raise NotSeparable(f"{name!r} depends on the discrete site {listing(above)}")
        weights, failures = row_weights(known, axis), []
        for way in ("rows", "number", "all"):
            try:
                return RowSplit(known, axis, way).build(rest, weights), "" if way != "all" else (
                    f"The program does not run on one row ({failures[0]}), so split_numpyro runs it on all "
                    f"{axis.size:,} rows and takes one of them: a minibatch then costs at least as much as all rows, "
                    "and new rows cannot be predicted. To avoid this, pass the data as arguments, in arrays whose "
                    "leading axis is that of the rows, and pass counts over all rows as other arguments."
                )
            except NotSeparable:
                raise
            except Exception as error:  # the user's program may fail on a single row with any error
                failures.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise NotSeparable(f"one row cannot be separated from the rest ({'; '.join(dict.fromkeys(failures))})")
    except NotSeparable as error:
        return None, f"This NumPyro model is one density of all rows together: {error}."


def find_axis(known: KnownProgram) -> RowAxis:
    """The axis with the largest number of observed values; of several such axes, the longest."""
    axes: dict[tuple[str | None, int], dict[str, int]] = {}
    for name, site in known.observed.items():
        plates = [(plate.name, plate.size, plate.dim) for plate in site["cond_indep_stack"]]
        shape = site["fn"].batch_shape
        for plate, size, dim in plates or ([(None, shape[0], -len(shape))] if shape else []):
            axes.setdefault((plate, size), {})[name] = dim
    if not axes:
        raise NotSeparable("no observed site is in a plate or has a batch of rows")

    def numbers_and_size(key: tuple[str | None, int]) -> tuple[int, int]:
        return sum(int(np.size(known.observed[name]["value"])) for name in axes[key]), key[1]

    plate, size = max(axes, key=numbers_and_size)
    local = {
        name: each.dim
        for name, site in (known.latent | known.discrete).items()
        for each in site["cond_indep_stack"]
        if each.name == plate
    }
    return RowAxis(plate, size, axes[plate, size], local)


def row_weights(known: KnownProgram, axis: RowAxis) -> np.ndarray | None:
    """The weights of the rows, from the scales of the sites; None if all are 1."""
    scales = []
    for name, dim in (axis.sites | {z: axis.local[z] for z in known.discrete}).items():
        site = known.trace[name]
        if known.dependencies("scale", name):
            raise NotSeparable(f"the scale of {name!r} depends on latent sites")
        scale = np.broadcast_to(1.0 if site["scale"] is None else site["scale"], site["fn"].batch_shape)
        scales.append(np.moveaxis(scale, axis_of(site["fn"], dim), 0).reshape(axis.size, -1))
    first = scales[0][:, 0]
    if not all(np.all(scale == first[:, None]) for scale in scales):
        raise NotSeparable("its sites have different scales")
    return None if np.all(first == 1) else np.asarray(first, np.float64)


class RowSplit:
    """One way to separate a row from the other rows.

    Args:
        way: "rows" runs the program on one row of its arguments. "number" runs it on all arguments, with a plate that
            holds only the number of one row, for programs that use the row's number as an index. "all" runs the
            program on all rows and takes one of them.
    """

    def __init__(self, known: KnownProgram, axis: RowAxis, way: str) -> None:
        self.known, self.axis, self.way = known, axis, way
        self.local = {name: dim for name, dim in axis.local.items() if name in known.latent}
        self.table, self.count = joint_values(known.discrete, 1) if known.discrete else ({}, 1)
        self.dims = axis.sites | {name: axis.local[name] for name in self.table}  # by site, the dimension of the rows
        arrays = known.program.arrays if way == "rows" else {}
        self.sliced = {name: a for name, a in arrays.items() if jnp.shape(a)[0] == axis.size}
        # The inputs are the arguments on which a row's distribution depends. The argument y, for example, is no input.
        rows = {name: jnp.asarray(a[:1]) for name, a in self.sliced.items()}
        self.provenance = eval_provenance(self._parts, **rows) if rows else {}
        used = frozenset().union(*(names for parts in self.provenance.values() for names in parts.values()))
        self.inputs = [name for name in self.sliced if name in used]
        self.number = axis.plate if axis.plate and axis.plate not in self.inputs else "row"
        self.numbered = way != "rows" or bool(self.local)
        if way != "rows":
            self._check_neighbours()

    def _parts(self, **rows: jax.Array) -> dict[str, dict[str, Any]]:
        """The parameters of one row's distributions, which may depend on the rows of the arguments."""
        sites = self.sites(self.known.position, {name: values[0] for name, values in self.table.items()}, rows, 0)
        return {
            name: {str(i): leaf for i, leaf in enumerate(parts_of(fn))} if isinstance(fn, Row) else fields_of(fn)
            for name, fn in sites.items()
        }

    def _check_neighbours(self) -> None:
        """Raise NotSeparable if a row's distribution depends on the observations of other rows, as in a time series."""
        trace, program = self.known.trace, self.known.program
        latent = {name: trace[name]["value"] for name in (*self.known.latent, *self.known.discrete)}

        def parts(**arrays: Any) -> dict[str, tuple]:
            sites = program.trace(latent, arrays)
            return {name: (jax.tree.leaves(sites[name]["fn"]), sites[name]["value"]) for name in self.axis.sites}

        try:
            provenance = eval_provenance(parts, **program.arrays)
        except Exception:  # the program needs concrete arguments, so that its dependencies cannot be traced
            return
        for name, (fn, value) in provenance.items():
            if both := frozenset().union(*fn) & value:
                raise NotSeparable(f"the distribution of {name!r} and its values both depend on {listing(both)}")

    def sites(
        self, params: Mapping[str, Any], z: Mapping[str, Any], rows: Mapping[str, Any], number: Any
    ) -> dict[str, dist.Distribution]:
        """The distribution of one row of each observed site and each discrete site."""
        trace = self.known.trace
        values = dict(params)
        for name, dim in () if self.way == "all" else self.local.items():
            at = axis_of(trace[name]["fn"], dim)
            # A row outside the data has no value of this site, so its value is NaN.
            values[name] = jnp.take(values[name], jnp.asarray(number)[None], at, mode="fill", fill_value=jnp.nan)
        for name, value in z.items():
            shape = list(jnp.shape(trace[name]["value"]))
            shape[axis_of(trace[name]["fn"], self.axis.local[name])] = self.axis.size if self.way == "all" else 1
            if self.way != "all" and math.prod(shape) != 1:
                raise NotSeparable(f"the discrete site {name!r} has more than one value per row")
            values[name] = jnp.broadcast_to(value, shape)
        if self.way == "all":
            row_trace = self.known.program.trace(values)
        else:
            arrays: dict[str, Any] = {name: a[:1] for name, a in self.sliced.items()} | dict(rows)
            if self.way == "number":
                arrays = {name: jnp.asarray(a) for name, a in self.known.program.arrays.items()}
            row_trace = self.known.program.trace(values, arrays, self.axis.plate, number if self.way == "number" else 0)
        rows_of_sites = {}
        for name, dim in self.dims.items():
            fn = row_trace[name]["fn"]
            if self.way != "all" and fn.batch_shape[axis_of(fn, dim)] != 1:
                raise ValueError(f"{name!r} has {fn.batch_shape[axis_of(fn, dim)]} rows for one row of the arguments")
            rows_of_sites[name] = row_of(fn, dim, number if self.way == "all" else 0)
        return rows_of_sites

    def given(self, x: PyTree) -> tuple[dict[str, Any], Any]:
        """The row of each argument, and the number of the row, from one row x of ``Data.given``."""
        if x is None:
            return {}, 0
        if not isinstance(x, dict):
            x = {self.inputs[0]: x}
        return {name: jnp.asarray(x[name])[None] for name in self.inputs}, x[self.number] if self.numbered else 0

    def likelihood(self, params: PyTree, z: Mapping[str, Any], x: PyTree) -> PyTree:
        """The distribution of one datum."""
        sites = self.sites(params, z, *self.given(x))
        observed = {name: sites[name] for name in self.axis.sites}
        return observed if len(observed) > 1 else next(iter(observed.values()))

    def latent(self, params: PyTree, x: PyTree = None) -> dist.Distribution:
        """p(z) of one row, where z is an index of the joint values of its discrete sites."""

        def one(i: jax.Array) -> jax.Array:
            z = {name: values[i, 0] for name, values in self.table.items()}
            sites = self.sites(params, {name: value[None] for name, value in z.items()}, *self.given(x))
            return jnp.asarray(sum(sites[name].log_prob(z[name]) for name in z))

        return dist.CategoricalLogits(jax.vmap(one)(jnp.arange(self.count)))

    def data(self, weights: np.ndarray | None) -> Data:
        """The rows as Data: y, the inputs and the row numbers."""
        y = {}
        for name, dim in self.axis.sites.items():
            site = self.known.trace[name]
            value = np.broadcast_to(np.asarray(site["value"]), site["fn"].shape())
            y[name] = np.ascontiguousarray(np.moveaxis(value, axis_of(site["fn"], dim), 0))
        given: Any = {name: np.asarray(self.sliced[name]) for name in self.inputs}
        if self.numbered:
            given[self.number] = np.arange(self.axis.size)
        elif len(given) == 1:
            given = next(iter(given.values()))
        return Data(y if len(y) > 1 else next(iter(y.values())), given if len(given) else None, weights=weights)

    def build(self, rest: Mapping[str, Any], weights: np.ndarray | None) -> tuple[Model, Data]:
        """The model and its data, after a comparison with NumPyro's densities."""
        arguments, data = self.known.model_arguments(rest), self.data(weights)
        if self.table:

            def conditional(params: PyTree, z: jax.Array, x: PyTree = None) -> PyTree:
                return self.likelihood(params, {name: values[z] for name, values in self.table.items()}, x)

            model = LatentModel(latent=self.latent, likelihood=conditional, causes=jnp.arange(self.count), **arguments)
        else:
            model = Model(likelihood=lambda params, x=None: self.likelihood(params, {}, x), **arguments)
        self.compare(model, data, rest)
        linear = self.through(model, data)
        if linear is not None:
            self.compare(linear, data, rest)
        return linear or model, data

    def through(self, model: Model, data: Data) -> Model | None:
        """The same model, with a likelihood of the type ``Through``; None if this is impossible.

        ``Through`` is a likelihood that depends on the parameters through a linear predictor, as INLA and quadrature
        need it.
        """
        (name, *more), x = self.axis.sites, data.given
        if more or self.table or self.way != "rows" or model.prior_is_callable or x is None:
            return None
        first = jax.tree.map(lambda a: jnp.asarray(a[0]), x)
        kind = type(self.likelihood(self.known.position, {}, first))
        if kind not in LINKS:
            return None
        field, link, back = LINKS[kind]
        if any(used for other, used in self.provenance[name].items() if other != field) or self.numbered:
            return None  # another parameter, such as the noise, differs between rows

        def predictor(params: PyTree, x: PyTree) -> jax.Array:
            return link(getattr(self.likelihood(params, {}, x), field))

        def observe(params: PyTree, eta: jax.Array) -> dist.Distribution:
            return kind(**fields_of(self.likelihood(params, {}, first)) | {field: back(eta)})

        linear = replace(model, likelihood=Through(predictor, observe))
        return linear if structure(linear, data) is not None else None

    def compare(self, model: Model, data: Data, rest: Mapping[str, Any]) -> None:
        """Raise a ValueError unless the log densities of each row and of the prior equal NumPyro's."""
        program = self.known.program

        def theirs(params: PyTree) -> tuple[jax.Array, jax.Array]:
            def at(i: jax.Array) -> jax.Array:
                z = {
                    name: jnp.broadcast_to(values[i, 0], jnp.shape(self.known.trace[name]["value"]))
                    for name, values in self.table.items()
                }
                trace, terms = program.trace({**params, **z}), jnp.zeros(self.axis.size)
                for name, dim in self.dims.items():
                    logs = jnp.moveaxis(log_prob(trace[name]), axis_of(trace[name]["fn"], dim), 0)
                    terms += logs.reshape(self.axis.size, -1).sum(1)
                return terms

            trace = program.trace(self.known.first | params)
            others = sum((scaled(trace[name]) for name in (*self.known.latent, *rest)), start=jnp.zeros(()))
            return logsumexp(jax.lax.map(at, jnp.arange(self.count)), axis=0), others

        def ours(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
            return model.log_likelihoods(params, rows), model.log_prior(params)

        near = float(np.sqrt(jnp.finfo(jnp.result_type(float)).eps))
        rows = jax.tree.map(jnp.asarray, data.rows)
        for number in range(CHECKED):
            params = self.known.random_values(jax.random.fold_in(program.key, number))
            for want, got in zip(jax.jit(theirs)(params), jax.jit(ours)(params, rows), strict=True):
                want, got = np.asarray(want), np.asarray(got)
                known = np.abs(want[np.isfinite(want)])
                within = near * max(1.0, float(np.median(known)) if known.size else 1.0)
                if not known.size or not np.allclose(got, want, near, within, equal_nan=True):
                    raise ValueError("its log densities differ from NumPyro's")


def fields_of(fn: dist.Distribution) -> dict[str, Any]:
    """The parameters of a distribution by name, from which the distribution can be built again."""
    base = base_of(fn)
    return {name: getattr(base, name) for name in type(base).arg_constraints}
