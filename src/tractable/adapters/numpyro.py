"""NumPyro models, unchanged: as one density, or split into a prior and a likelihood of each row."""

import functools
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

from tractable.adapters.plates import Program, Row, axis_of, log_prob, parts_of, row_of, scaled
from tractable.core.causes import base_of
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import Data, Model, PyTree, Through, counted_log_likelihoods
from tractable.core.priors import is_improper
from tractable.core.words import listing, tell
from tractable.vi.quadrature import structure

MOST = 512  # most joint values of discrete sites to sum over
NEAR = 1e-6  # radius around the unconstrained origin of the example position, the centre of starting points
CHECKED = 3  # random positions at which a split is compared with NumPyro's own densities
# By distribution: the field that holds the mean parameter, its link to η, and the inverse link.
LINKS: dict[type, tuple[str, Callable, Callable]] = {
    dist.Normal: ("loc", jnp.asarray, jnp.asarray),
    dist.StudentT: ("loc", jnp.asarray, jnp.asarray),
    dist.BernoulliLogits: ("logits", jnp.asarray, jnp.asarray),
    dist.Poisson: ("rate", jnp.log, jnp.exp),
}


def from_numpyro(model: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Model:
    """The posterior of a NumPyro model, its data bound in ``args`` and ``kwargs``, as one density without data.

    It works for any program, with point estimates and full-data samplers:
    ``tr.infer(from_numpyro(model, x, y), None, tr.NUTS())``. Minibatch methods, predictions and figures per row need
    the split model: ``split_numpyro``. Deterministic sites become ``model.derived``. Plates that subsample are run at
    full size. Discrete latent sites are summed over exactly: row by row in the observed rows' plate, else jointly.

    Raises:
        ModelError: no latent site; a site whose support depends on another; discrete sites with too many values.

    >>> import numpyro, numpyro.distributions as dist, tractable as tr
    >>> def coin(flips):
    ...     theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    ...     numpyro.sample("flips", dist.Bernoulli(theta).expand([len(flips)]), obs=flips)
    >>> from_numpyro(coin, jnp.array([1, 0, 1])).names
    ['theta']
    """
    known = _Known(Program(model, args, kwargs, seed))
    return _summed_density(known, *_split(known)) if known.discrete else _whole(known, None)


def split_numpyro(model: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[Model, Data | None]:
    """A NumPyro model and its data, separated: a prior and a likelihood of each row, and the rows.

        model, data = split_numpyro(program, x, y)
        tr.infer(model, data, tr.SGLD(batch_size=100)).predict(x_new)

    The rows are those of the plate, or of the batch axis, that holds the observed sites. To get one row's distribution,
    the program runs on one row of every argument with that many rows, and on all latent sites; latent sites within the
    plate are indexed at that row. The prior is a dict of the sites' distributions if these are independent, else a log
    density that can be sampled. ``handlers.scale`` becomes the rows' weights. Discrete sites within the plate become z
    of a ``LatentModel``, as one index of their joint values. The split is compared with NumPyro's log densities, row by
    row at random positions, and is returned only if they are equal.

    Returns:
        ``model, data``. ``data.given`` is the argument that has rows, or a dict of several by name; if a latent site
        has a value per row, it also holds the row numbers under the plate's name. If the program does not run on one
        row, rows are cut from a run on all rows, with a warning. If the rows cannot be separated, the model is the
        whole density and the data are None; minibatch methods then raise an error that says why.

    Raises:
        ModelError: as for ``from_numpyro``.

    >>> import numpyro, numpyro.distributions as dist
    >>> def line(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("rows", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    >>> model, data = split_numpyro(line, jnp.array([1.0, 2.0]), jnp.array([1.1, 1.9]))
    >>> model.names, data
    (['slope'], Data(2 rows, y=float32[2], given=float32[2]))
    """
    known = _Known(Program(model, args, kwargs, seed))
    found, why = _split(known)
    if found and why:
        tell(why)
    return found or ((_summed_density(known, None, why) if known.discrete else _whole(known, why)), None)


class Density:
    """log p of the latent sites.

    Attributes:
        why: why the rows cannot be separated; None for a prior.
        sample: ``key -> params``, only for a prior that can be sampled.
    """

    def __init__(self, value: Callable, why: str | None = None, sample: Callable | None = None) -> None:
        self.value, self.why = value, why
        if sample is not None:
            self.sample = sample

    def __call__(self, params: PyTree) -> jax.Array:
        return jnp.asarray(self.value(params), jnp.result_type(float))


class _Known:
    """A program's sites, sorted by kind, and what they depend on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.trace = program.values(program.key, NEAR)
        sites = {name: site for name, site in self.trace.items() if site["type"] == "sample"}
        self.observed = {name: site for name, site in sites.items() if site["is_observed"]}
        latent = {name: site for name, site in sites.items() if not site["is_observed"]}
        if not latent:
            raise ModelError("This NumPyro model has no latent site: nothing is unknown. Did all of them get obs=?")
        self.discrete = {name: site for name, site in latent.items() if site["fn"].support.is_discrete}
        self.first = {name: jnp.asarray(site["value"]) for name, site in self.discrete.items()}
        self.latent = {name: site for name, site in latent.items() if name not in self.discrete}
        if not self.latent:
            raise ModelError(
                f"All latent sites ({listing(latent)}) are discrete; the methods here move continuous ones."
            )
        self.upstream = eval_provenance(self._parts, **{name: site["value"] for name, site in latent.items()})
        for name in self.latent:
            if above := self._above("support", name):
                raise ModelError(
                    f"The support of {name!r} moves with {listing(above)}, and a parameter's bounds are fixed here. "
                    "Draw it on a scale of its own, such as (0, 1), and stretch it to a deterministic site."
                )

    def _parts(self, **values: jax.Array) -> dict[str, dict[str, list]]:
        """Everything that may depend on latent sites."""
        trace = self.program.trace(values)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        return {
            "fn": {name: parts_of(site["fn"]) for name, site in sites.items()},
            "support": {name: jax.tree.leaves(site["fn"].support) for name, site in sites.items()},
            "scale": {name: jax.tree.leaves(site["scale"]) for name, site in sites.items()},
            "seen": {name: [site["value"]] for name, site in sites.items() if site["is_observed"]},
            "value": {name: [site["value"]] for name, site in trace.items() if site["type"] == "deterministic"},
        }

    def _above(self, part: str, name: str) -> frozenset[str]:
        """The latent sites that a part of a site depends on."""
        return frozenset().union(*self.upstream[part][name])

    @functools.cached_property
    def position(self) -> dict[str, jax.Array]:
        return self.values_of(self.trace)

    @functools.cached_property
    def place(self) -> Callable[[jax.Array], dict[str, jax.Array]]:
        """``key -> `` random values of the latent sites, not far out."""

        return jax.jit(lambda key: self.values_of(self.program.values(key)))

    def values_of(self, trace: Mapping[str, Any]) -> dict[str, jax.Array]:
        """The values of the latent sites."""
        return {name: jnp.asarray(trace[name]["value"]) for name in self.latent}

    @property
    def support(self) -> dict[str, Any]:
        return {name: site["fn"].support for name, site in self.latent.items()}

    @property
    def derived(self) -> Callable[[PyTree], dict[str, Any]] | None:
        """The deterministic sites that depend on no discrete site, as a function; None if there are none."""
        names = [name for name in self.upstream["value"] if not self._above("value", name) & set(self.discrete)]
        if not names:
            return None

        def derived(params: PyTree) -> dict[str, Any]:
            trace = self.program.trace(self.first | params)
            return {name: trace[name]["value"] for name in names}

        return derived

    def prior(self, rest: Mapping[str, Any]) -> Any:
        """A dict of distributions if the sites are independent; else a density that includes the sites ``rest``."""
        # A density is that of its draws where it is neither scaled, improper nor masked.
        drawable = not any(
            site["scale"] is not None or is_improper(site["fn"]) or isinstance(site["fn"], dist.MaskedDistribution)
            for site in self.latent.values()
        )
        if drawable and not rest and not any(self._above("fn", name) for name in self.latent):
            return {name: site["fn"] for name, site in self.latent.items()}

        def value(params: PyTree) -> Any:
            trace = self.program.trace(self.first | params)
            return sum((scaled(trace[name]) for name in (*self.latent, *rest)), start=0.0)

        def sample(key: jax.Array) -> PyTree:
            return self.values_of(self.program.drawn(key))

        return Density(value, None, sample if drawable and not rest else None)

    def believed(self, rest: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a Model other than its likelihood."""
        prior = self.prior(rest)
        example = {} if isinstance(prior, dict) else {"position": self.position, "support": self.support}
        return {"prior": prior, "derived": self.derived} | example


# The program as one density.


def _whole(known: _Known, why: str | None, discrete: Mapping[str, Any] | None = None) -> Model:
    def joint(params: PyTree) -> jax.Array:
        trace = known.program.trace((discrete or {}) | params)
        return sum((scaled(site) for site in trace.values() if site["type"] == "sample"), start=jnp.zeros(()))

    return Model.from_log_density(Density(joint, why), known.position, known.support, known.derived)


def _summed_density(known: _Known, split: tuple[Model, Data] | None, why: str) -> Model:
    """One density with the discrete sites summed out: row by row, using the split, or jointly over all their values."""
    if split is not None:
        model, data = split

        def by_rows(params: PyTree) -> jax.Array:
            return model.log_prior(params) + jnp.sum(counted_log_likelihoods(model, params, data.arrays()))

        return Model.from_log_density(Density(by_rows), known.position, known.support, known.derived)
    if any(site["scale"] is not None for site in known.discrete.values()):
        raise ModelError(f"The discrete sites {listing(known.discrete)} are scaled, which no sum over them is.")
    table, count = _values(known.discrete)
    shapes = {name: jnp.shape(site["value"]) for name, site in known.discrete.items()}

    def summed(params: PyTree) -> jax.Array:
        def at(i: jax.Array) -> jax.Array:
            z = {name: table[name][i].reshape(shape) for name, shape in shapes.items()}
            return _whole(known, None, z).prior(params)

        return logsumexp(jax.lax.map(at, jnp.arange(count), batch_size=16))

    return Model.from_log_density(Density(summed, why), known.position, known.support, known.derived)


def _values(sites: Mapping[str, Any], size: int | None = None) -> tuple[dict[str, jax.Array], int]:
    """The m joint values of discrete sites, {site: (m, entries)}, and m; ``size`` entries of each site, or all."""
    each, count = [], 1.0
    for name, site in sites.items():
        kind = type(base_of(site["fn"])).__name__
        if not site["fn"].has_enumerate_support or site["fn"].event_dim:
            raise ModelError(f"The latent site {name!r} is discrete ({kind}) and takes no finite list of numbers.")
        support = np.asarray(site["fn"].enumerate_support(expand=False)).ravel()
        each += [support] * (int(np.size(site["value"])) if size is None else size)
        count = math.prod(float(len(values)) for values in each)
    if count > MOST:
        raise ModelError(
            f"The discrete sites {listing(sites)} take {count:.3g} values together; at most {MOST} are summed over. "
            "Where each row has its own, let them lie in the plate of the observed rows; models.hidden_markov sums "
            "over all paths of states that follow one another; or sum them out of the model."
        )
    index = np.indices([len(values) for values in each]).reshape(len(each), -1)
    columns = [jnp.asarray(values[i]) for values, i in zip(each, index, strict=True)]
    cuts = np.cumsum([int(np.size(site["value"])) if size is None else size for site in sites.values()])
    parts = [columns[start:end] for start, end in zip([0, *cuts[:-1]], cuts, strict=True)]
    return {name: jnp.stack(part, -1) for name, part in zip(sites, parts, strict=True)}, int(count)


# The program split into rows.


class _Axis(NamedTuple):
    """The axis of the rows: a named plate, or the leading batch axis without one."""

    plate: str | None
    size: int
    sites: dict[str, int]  # observed sites, and the (negative) dimension of their rows
    local: dict[str, int]  # the same for latent sites


class _NotRows(Exception):
    """Why the rows cannot be separated."""


def _split(known: _Known) -> tuple[tuple[Model, Data] | None, str]:
    """The model and its data, and a warning (or ""); or None, and the reason."""
    try:
        axis = _axis(known)
        rest = {name: site for name, site in known.observed.items() if name not in axis.sites}
        for name in axis.sites:
            if above := known._above("seen", name):
                raise _NotRows(f"what {name!r} is said to observe moves with {listing(above)}")
        for name in set(known.discrete) - set(axis.local):
            raise _NotRows(f"the discrete site {name!r} is shared by all rows")
        for name in (*known.latent, *rest):  # sites outside the sum over a row's z
            if above := known._above("fn", name) & set(known.discrete):
                raise _NotRows(f"{name!r} looks at the discrete site {listing(above)}")
        weights, said = _weights(known, axis), []
        for way in ("rows", "number", "all"):
            try:
                return _Split(known, axis, way).made(rest, weights), "" if way != "all" else (
                    f"split_numpyro takes a row out of all {axis.size:,}: a minibatch then costs as much as all rows, "
                    "all rows their number times as much if the distribution is no plain one, and no new row is "
                    f"predicted. The program would not run on one row ({said[0]}). Pass the data as arguments, arrays "
                    "whose leading axis is the rows', and counts over all rows as other arguments."
                )
            except _NotRows:
                raise
            except Exception as error:  # the user's program may fail on a single row
                said.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise _NotRows(f"one row cannot be told from all ({'; '.join(dict.fromkeys(said))})")
    except _NotRows as error:
        return None, f"This NumPyro model is one density of all rows together: {error}."


def _axis(known: _Known) -> _Axis:
    """The axis that holds the most observed numbers; among ties, the longest."""
    found: dict[tuple[str | None, int], dict[str, int]] = {}
    for name, site in known.observed.items():
        frames = [(frame.name, frame.size, frame.dim) for frame in site["cond_indep_stack"]]
        shape = site["fn"].batch_shape
        for plate, size, dim in frames or ([(None, shape[0], -len(shape))] if shape else []):
            found.setdefault((plate, size), {})[name] = dim
    if not found:
        raise _NotRows("no observed site lies in a plate or has a batch of rows")

    def numbers_and_size(key: tuple[str | None, int]) -> tuple[int, int]:
        return sum(int(np.size(known.observed[name]["value"])) for name in found[key]), key[1]

    plate, size = max(found, key=numbers_and_size)
    local = {
        name: frame.dim
        for name, site in (known.latent | known.discrete).items()
        for frame in site["cond_indep_stack"]
        if frame.name == plate
    }
    return _Axis(plate, size, found[plate, size], local)


def _weights(known: _Known, axis: _Axis) -> np.ndarray | None:
    """The rows' weights, from the sites' scales; None if all are 1."""
    each = []
    for name, dim in (axis.sites | {z: axis.local[z] for z in known.discrete}).items():
        site = known.trace[name]
        if known._above("scale", name):
            raise _NotRows(f"the scale of {name!r} depends on latent sites")
        scale = np.broadcast_to(1.0 if site["scale"] is None else site["scale"], site["fn"].batch_shape)
        each.append(np.moveaxis(scale, axis_of(site["fn"], dim), 0).reshape(axis.size, -1))
    first = each[0][:, 0]
    if not all(np.all(scale == first[:, None]) for scale in each):
        raise _NotRows("its sites are scaled unlike each other")
    return None if np.all(first == 1) else np.asarray(first, np.float64)


class _Split:
    """One way to separate a row from the rest.

    Args:
        way: "rows" runs the program with one row of its arguments; "number" with all arguments and a plate of one row
            with that row's number, for programs that index by it; "all" runs the whole program and cuts the row out.
    """

    def __init__(self, known: _Known, axis: _Axis, way: str) -> None:
        self.known, self.axis, self.way = known, axis, way
        self.local = {name: dim for name, dim in axis.local.items() if name in known.latent}
        self.table, self.count = _values(known.discrete, 1) if known.discrete else ({}, 1)
        arrays = known.program.arrays if way == "rows" else {}
        self.sliced = {name: a for name, a in arrays.items() if jnp.shape(a)[0] == axis.size}
        # The arguments that a row's distribution depends on; others, such as y, the program only asks for.
        rows = {name: jnp.asarray(a[:1]) for name, a in self.sliced.items()}
        self.provenance = eval_provenance(self._parts, **rows) if rows else {}
        seen = frozenset().union(*(names for parts in self.provenance.values() for names in parts.values()))
        self.inputs = [name for name in self.sliced if name in seen]
        self.number = axis.plate if axis.plate and axis.plate not in self.inputs else "row"
        self.numbered = way != "rows" or bool(self.local)
        if way != "rows":
            self._no_neighbours()

    def _parts(self, **rows: jax.Array) -> dict[str, dict[str, Any]]:
        """The fields of one row's distributions, which may depend on the arguments' rows."""
        found = self.sites(self.known.position, {name: values[0] for name, values in self.table.items()}, rows, 0)
        return {
            name: {str(i): leaf for i, leaf in enumerate(parts_of(fn))} if isinstance(fn, Row) else _fields(fn)
            for name, fn in found.items()
        }

    def _no_neighbours(self) -> None:
        """Raises _NotRows if a row's distribution depends on other rows' observations, as in a time series."""
        trace, program = self.known.trace, self.known.program
        latent = {name: trace[name]["value"] for name in (*self.known.latent, *self.known.discrete)}

        def parts(**arrays: Any) -> dict[str, tuple]:
            found = program.trace(latent, arrays)
            return {name: (jax.tree.leaves(found[name]["fn"]), found[name]["value"]) for name in self.axis.sites}

        try:
            provenance = eval_provenance(parts, **program.arrays)
        except Exception:  # the program needs concrete arguments
            return
        for name, (fn, value) in provenance.items():
            if both := frozenset().union(*fn) & value:
                raise _NotRows(f"the distribution of {name!r} looks at {listing(both)}, which holds its own values too")

    def sites(
        self, params: Mapping[str, Any], z: Mapping[str, Any], rows: Mapping[str, Any], number: Any
    ) -> dict[str, dist.Distribution]:
        """The distribution of one row of each observed site and each discrete site."""
        trace = self.known.trace
        values = dict(params)
        for name, dim in () if self.way == "all" else self.local.items():
            at = axis_of(trace[name]["fn"], dim)
            # A row outside the data has no value: NaN, not another row's value.
            row = jnp.take(values[name], jnp.asarray(number)[None], axis=at, mode="fill", fill_value=jnp.nan)
            values[name] = row
        for name, value in z.items():
            shape = list(jnp.shape(trace[name]["value"]))
            shape[axis_of(trace[name]["fn"], self.axis.local[name])] = self.axis.size if self.way == "all" else 1
            if self.way != "all" and math.prod(shape) != 1:
                raise _NotRows(f"the discrete site {name!r} has several values a row")
            values[name] = jnp.broadcast_to(value, shape)
        if self.way == "all":
            made = self.known.program.trace(values)
        else:
            arrays: dict[str, Any] = {name: a[:1] for name, a in self.sliced.items()} | dict(rows)
            if self.way == "number":
                arrays = {name: jnp.asarray(a) for name, a in self.known.program.arrays.items()}
            made = self.known.program.trace(values, arrays, self.axis.plate, number if self.way == "number" else 0)
        found = {}
        for name, dim in (self.axis.sites | {z: self.axis.local[z] for z in self.table}).items():
            fn = made[name]["fn"]
            if self.way != "all" and fn.batch_shape[axis_of(fn, dim)] != 1:
                raise ValueError(f"{name!r} has {fn.batch_shape[axis_of(fn, dim)]} rows for one row of the arguments")
            found[name] = row_of(fn, dim, number if self.way == "all" else 0)
        return found

    def given(self, x: PyTree) -> tuple[dict[str, Any], Any]:
        """The arguments' rows and the row's number, from one row of the data's ``given``."""
        if x is None:
            return {}, 0
        if not isinstance(x, dict):
            x = {self.inputs[0]: x}
        return {name: jnp.asarray(x[name])[None] for name in self.inputs}, x[self.number] if self.numbered else 0

    def likelihood(self, params: PyTree, z: Mapping[str, Any], x: PyTree) -> PyTree:
        """The distribution of one datum."""
        found = self.sites(params, z, *self.given(x))
        of = {name: found[name] for name in self.axis.sites}
        return of if len(of) > 1 else next(iter(of.values()))

    def latent(self, params: PyTree, x: PyTree = None) -> dist.Distribution:
        """p(z) of one row, z the index of its discrete sites' joint values."""

        def one(i: jax.Array) -> jax.Array:
            z = {name: values[i, 0] for name, values in self.table.items()}
            found = self.sites(params, {name: value[None] for name, value in z.items()}, *self.given(x))
            return jnp.asarray(sum(found[name].log_prob(z[name]) for name in z))

        return dist.CategoricalLogits(jax.vmap(one)(jnp.arange(self.count)))

    def data(self, weights: np.ndarray | None) -> Data:
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

    def made(self, rest: Mapping[str, Any], weights: np.ndarray | None) -> tuple[Model, Data]:
        """The model and its data, once they agree with NumPyro's densities."""
        believed, data = self.known.believed(rest), self.data(weights)
        if self.table:

            def conditional(params: PyTree, z: jax.Array, x: PyTree = None) -> PyTree:
                return self.likelihood(params, {name: values[z] for name, values in self.table.items()}, x)

            model = LatentModel(latent=self.latent, likelihood=conditional, causes=jnp.arange(self.count), **believed)
        else:
            model = Model(likelihood=lambda params, x=None: self.likelihood(params, {}, x), **believed)
        self.check(model, data, rest)
        linear = self.through(model, data)
        if linear is not None:
            self.check(linear, data, rest)
        return linear or model, data

    def through(self, model: Model, data: Data) -> Model | None:
        """The same model ``Through`` one linear predictor, if it has one; INLA and quadrature need that."""
        (name, *more), x = self.axis.sites, data.given
        if more or self.table or self.way != "rows" or model.prior_is_callable or x is None:
            return None
        first = jax.tree.map(lambda a: jnp.asarray(a[0]), x)
        kind = type(self.likelihood(self.known.position, {}, first))
        if kind not in LINKS:
            return None
        field, link, back = LINKS[kind]
        if any(seen for other, seen in self.provenance[name].items() if other != field) or self.numbered:
            return None  # each row has its own noise

        def predictor(params: PyTree, x: PyTree) -> jax.Array:
            return link(getattr(self.likelihood(params, {}, x), field))

        def observe(params: PyTree, eta: jax.Array) -> dist.Distribution:
            return kind(**_fields(self.likelihood(params, {}, first)) | {field: back(eta)})

        found = replace(model, likelihood=Through(predictor, observe))
        return found if structure(found, data) is not None else None

    def check(self, model: Model, data: Data, rest: Mapping[str, Any]) -> None:
        """Raises ValueError unless the log densities of every row, and of the rest, equal NumPyro's."""
        program, discrete = self.known.program, tuple(self.table)

        def theirs(params: PyTree) -> tuple[jax.Array, jax.Array]:
            def at(i: jax.Array) -> jax.Array:
                z = {
                    name: jnp.broadcast_to(values[i, 0], jnp.shape(self.known.trace[name]["value"]))
                    for name, values in self.table.items()
                }
                trace, terms = program.trace({**params, **z}), jnp.zeros(self.axis.size)
                for name, dim in (self.axis.sites | {z: self.axis.local[z] for z in discrete}).items():
                    each = jnp.moveaxis(log_prob(trace[name]), axis_of(trace[name]["fn"], dim), 0)
                    terms += each.reshape(self.axis.size, -1).sum(1)
                return terms

            trace = program.trace(self.known.first | params)
            others = sum((scaled(trace[name]) for name in (*self.known.latent, *rest)), start=jnp.zeros(()))
            return logsumexp(jax.lax.map(at, jnp.arange(self.count)), axis=0), others

        def ours(params: PyTree, rows: PyTree) -> tuple[jax.Array, jax.Array]:
            return model.log_likelihoods(params, rows), model.log_prior(params)

        near = float(np.sqrt(jnp.finfo(jnp.result_type(float)).eps))
        rows = jax.tree.map(jnp.asarray, data.rows)
        for number in range(CHECKED):
            params = self.known.place(jax.random.fold_in(program.key, number))
            for want, got in zip(jax.jit(theirs)(params), jax.jit(ours)(params, rows), strict=True):
                want, got = np.asarray(want), np.asarray(got)
                known = np.abs(want[np.isfinite(want)])
                within = near * max(1.0, float(np.median(known)) if known.size else 1.0)
                if not known.size or not np.allclose(got, want, near, within, equal_nan=True):
                    raise ValueError("its log densities differ from NumPyro's")


def _fields(fn: dist.Distribution) -> dict[str, Any]:
    """The parameters of a distribution by name, from which it can be rebuilt."""
    base = base_of(fn)
    return {name: getattr(base, name) for name in type(base).arg_constraints}
