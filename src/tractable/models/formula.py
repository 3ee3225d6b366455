"""Regression by a formula: common effects, and effects of groups, told in the table's units and by name."""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from tractable.core import Data, Model, Through
from tractable.data.arrays import columns_of
from tractable.data.censored import middle
from tractable.data.encoder import Encoded, Encoder, encode, fit_encoder
from tractable.data.files import Frame
from tractable.data.formula import Term
from tractable.models.censoring import with_censoring
from tractable.models.families import FAMILIES
from tractable.tools.errors import ModelError
from tractable.tools.shared import maker, remember
from tractable.tools.words import listing, nearest, tell

PyTree = Any
Prior = dist.Distribution
WIDE = 2.5  # prior sds of effects, in sds of what they explain for one sd of what explains
LOGARITHMIC = ("gamma", "weibull", "exponential", "poisson", "negative-binomial")


class Regression(NamedTuple):
    """What a formula makes of a table: ``model, data, encoder``."""

    model: Model
    data: Data
    encoder: Encoder

    def rows(self, table: Frame) -> PyTree:
        """What the model sees of new rows of a table, which need not hold the target; ``posterior.predict`` does it.

        A group never seen has an effect drawn from N(0, sd²): every draw of the posterior holds one such effect of each
        term, which all new groups share, so an interval for one row is right and a sum over several new groups is not.
        """
        return _rows_of(self.encoder, table)


def _rows_of(encoder: Encoder, table: object) -> PyTree:
    table = table if isinstance(table, Frame) else Frame(columns_of(table))
    return encode(encoder, table.drop(columns=encoder.target.name, errors="ignore")).given


def regression(
    formula: str,
    table: Frame,
    *,
    family: str | None = None,
    priors: Mapping[str, Prior] | None = None,
    weights: str = "",
    exposure: str = "",
    missing: str = "raise",
) -> Regression:
    """A regression of one column of a table, as a formula says: its model, its data, and how new rows become theirs.

        η = offset + X β + Σ_t z_t u_t[group],   u_t[g] ~ N(0, sd_t²),   y ~ family(η)

    The language is that of the library formulae, which bambi uses: ``x*z`` for effects and their interaction, ``bs(x,
    df=5)``, ``poly(x, 2)``, ``scale(x)``, ``offset(log(hours))``, ``0 + x`` without an intercept, ``(1 + x | school)``
    for an intercept and a slope that differ by school. Of a y that may be censored ``y | cens(status)`` or
    ``censored(y, status)`` say how, none, right or left, ``Surv(y, event)`` whether it was seen, and ``Surv(lower,
    upper, type="interval2")`` between which bounds it lies (``models.censored``; weibull, exponential, lognormal,
    normal). Text is coded against its first level. Correlations of a group's effects are not modelled, as in bambi by
    default: in ``(1 + x | school)`` intercepts and slopes are independent.

    Effects are in the table's units, and so are their priors. Those that are not given are weakly informative, by what
    a column can do (Gelman et al. 2008; rstanarm's default, and bambi's of most families, Capretto et al. 2022):

        β_j ~ N(0, (2.5 s / sd(x_j))²)     s = sd(y) of normal, sd(log y) of lognormal targets, else 1
        intercept of a mean row ~ N(m, (2.5 s)²),  m = mean of y, or of its logarithm; of classes and shares 0
        sd_t ~ HalfNormal(2.5 s / sd(z_t)),  of an intercept HalfNormal(2.5 s)
        noise ~ Exponential(1 / s); other parameters of a family as in ``linear.generalised_linear``

    Of grades, which have cutpoints for an intercept, columns of x are less their means.

    Args:
        formula: such as "y ~ x*z + (1 + x | school)".
        table: the training table.
        family: a name of ``FAMILIES`` but "categorical"; by default told from the target, and said.
        priors: distributions by name: of an effect ("x", "z[b]"), of all of a term ("z"), "Intercept" (of a mean row),
            of a group's sd ("sd(1|school)"), of a parameter of the family ("noise").
        weights: a column of numbers ≥ 0, how often each row counts.
        exposure: of counts, a column of numbers > 0 that each row's rate is multiplied by.
        missing: "raise" refuses rows with missing values, "drop" leaves them out, "impute" leaves out rows without a
            target and fills inputs in, of new rows too: numbers by their median, text and groups by one called
            "missing".

    Returns:
        A Regression, of which ``model`` has ``effects`` (k,) under names such as "x", "z[b]", "sd(1|school)",
        "1|school[A]" and "1|school[new]", and the family's further parameters. ``posterior.predict`` takes tables, also
        once it is loaded: ``tr.load(folder).predict(table)``. A saved posterior holds the columns of its formula.

    Raises:
        DataError: a formula that cannot be read, columns that are not there, a target of another family.
        ModelError: a prior of no parameter, or that allows no negative effects or negative sds.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"y": [1.0, 2.5, 2.9, 4.2], "x": [0.0, 1.0, 2.0, 3.0], "z": ["a", "b", "a", "b"]})
    >>> regression("y ~ x + z", table).model.names
    ['Intercept', 'x', 'z[b]', 'noise']
    """
    encoder = fit_encoder(table, "", missing, family, weights=weights, exposure=exposure, formula=formula)
    if encoder.target.reason and family is None:
        tell(f"{encoder.target.name!r} holds {encoder.target.reason}: family={encoder.target.family!r}.")
    rows = training(encoder)
    return Regression(formula_model(encoder, priors), Data(rows.y, rows.given, weights=rows.weights), encoder)


def training(encoder: Encoder) -> Encoded:
    """The rows that an encoder with a formula was fitted to."""
    if encoder.formula is None:
        raise ModelError("Expected an encoder with a formula; this one has columns.")
    return encode(encoder, encoder.formula.table)


class Scales(NamedTuple):
    """What default priors are made of."""

    centre: float  # of an intercept
    unit: float  # s
    columns: np.ndarray  # (p,) sd of each column of x; 1 of the intercept
    slopes: np.ndarray  # (T,) of z


def formula_model(encoder: Encoder, priors: Mapping[str, Prior] | None = None) -> Model:
    """The model of an encoder's formula, as ``regression`` describes it, without its data."""
    rows, formula = training(encoder), encoder.formula
    if formula is None or rows.y is None:
        raise ModelError("Expected an encoder with a formula, and the target in its table.")
    family, names, terms = encoder.target.family, list(formula.features), formula.terms
    kind, x = FAMILIES[family], rows.x
    kept = np.array([kind.intercept or name != "Intercept" for name in names], bool)
    names, x = [name for name, keep in zip(names, kept, strict=True) if keep], x[:, kept]
    mean = x.mean(0)
    about = np.zeros_like(mean) if kind.intercept else mean
    scales = _scales(family, names, x, rows)
    parts = {part: features for part, features in formula.parts.items() if set(features) <= set(names)}
    told = _Given(priors or {}, names, parts, terms, kind.others(len(encoder.target.classes)), scales)
    centred = _centred(x, rows, terms, family in ("lognormal", "gamma", "weibull", "exponential"))
    prior = {"effects": Effects(_coordinates(names, x, rows, terms, centred, told, scales)), **told.others}

    def predictor(params: dict[str, Any], given: PyTree) -> jax.Array:
        given = given if isinstance(given, dict) else {"x": given}
        each = params["effects"]
        u = each[len(names) + len(terms) :]
        x = given["x"] if kept.all() else given["x"][kept]
        eta = jnp.dot(x - about, each[: len(names)]) + given.get("offset", 0.0)
        return eta + jnp.dot(given["z"], u[given["group"]]) if terms else eta

    labels = [*names, *(f"sd({term.name})" for term in terms), *(label for term in terms for label in term.labels)]
    through, of_table = Through(predictor, kind.observe), functools.partial(_rows_of, encoder)
    model = Model(prior, through, labels={"effects": labels}, of_table=of_table)
    model = with_censoring(model) if encoder.target.censoring else model
    return remember(model, made_from, lambda: {"encoder": encoder.to_dict(), "priors": _written(priors or {})})


@maker
def made_from(encoder: dict[str, Any], priors: dict[str, Any]) -> Model:
    """The model of a saved encoder, and of priors as their names and numbers."""
    own = {name: getattr(dist, family)(**numbers) for name, (family, numbers) in priors.items()}
    return formula_model(Encoder.from_dict(encoder), own)


def _written(priors: Mapping[str, Prior]) -> dict[str, tuple[str, dict[str, float]]]:
    """Priors as JSON holds them; a TypeError of those that are not known by their names and a few numbers."""
    found = {}
    for name, prior in priors.items():
        family, numbers = type(prior), {each: float(getattr(prior, each)) for each in prior.arg_constraints}
        if getattr(dist, family.__name__, None) is not family:
            raise TypeError(family.__name__)
        family(**numbers)
        found[name] = family.__name__, numbers
    return found


def _scales(family: str, names: list[str], x: np.ndarray, rows: Encoded) -> Scales:
    y = middle(np.asarray(rows.y, np.float64))
    offset = np.zeros(len(y)) if rows.offset is None else rows.offset
    centre, unit = 0.0, 1.0
    if family in ("normal", "lognormal"):
        eta = (np.log(y) if family == "lognormal" else y) - offset
        centre, unit = float(eta.mean()), float(eta.std())
    elif family in LOGARITHMIC:
        centre = float(np.log(y.sum() / np.exp(offset).sum()))
    sds = x.std(0)
    for name, sd in zip(names, sds, strict=True):
        if name != "Intercept" and not sd > 1e-12:
            tell(f"The formula's column {name!r} is the same in every row, so only its prior tells its effect.")
    z = np.ones((len(y), 0)) if rows.groups is None else rows.groups["z"]
    spread = z.std(0)
    return Scales(centre, unit, np.where(sds > 1e-12, sds, 1.0), np.where(spread > 1e-12, spread, 1.0))


class _Given:
    """Every parameter's prior: the user's, else the default."""

    def __init__(
        self, priors: Mapping[str, Prior], names: list[str], parts: Mapping[str, list[str]], terms: list[Term],
        others: dict[str, Prior], scales: Scales,
    ) -> None:  # fmt: skip
        sds = [f"sd({term.name})" for term in terms]
        if "noise" in others:
            others = others | {"noise": dist.Exponential(1 / scales.unit)}
        for name, prior in priors.items():
            if name not in {*names, *parts, *sds, *others}:
                known = [*names, *(part for part in parts if part not in names), *sds, *others]
                raise ModelError(
                    f"priors has {name!r}, and the formula no such parameter; it has {listing(known)}."
                    f"{nearest(name, known)}"
                )
            if name in others:
                if prior.shape() != others[name].shape() or type(prior.support) is not type(others[name].support):
                    like = type(others[name]).__name__
                    raise ModelError(
                        f"The prior of {name!r} expects the support of {like}; got {type(prior).__name__}."
                    )
                continue
            if prior.shape() != ():
                raise ModelError(f"The prior of {name!r} is a distribution of one number; got {prior!r}.")
            if prior.support is not (constraints.positive if name in sds else constraints.real):
                what = "above 0, such as dist.HalfNormal" if name in sds else "any sign, such as dist.Normal"
                raise ModelError(f"The prior of {name!r} expects numbers of {what}; got {type(prior).__name__}.")
        whole = {each: priors[part] for part, features in parts.items() if part in priors for each in features}
        own = whole | {name: prior for name, prior in priors.items() if name in names}
        self.effects = {i: own[name] for i, name in enumerate(names) if name in own}
        self.sds = [
            priors.get(name, dist.HalfNormal(WIDE * scales.unit / scale))
            for name, scale in zip(sds, scales.slopes, strict=True)
        ]
        self.others = {name: priors.get(name, prior) for name, prior in others.items()}


# The coordinates in which methods move.


class Coordinates(NamedTuple):
    """How coordinates become effects v = (β, sd, u) in the table's units.

        β = origin + root ζ,   sd_t = unit_t e^ζ,   u_t[g] = sd_t ζ where the group's rows say little about it,
        unit_t ζ − lean_t (β − origin) − Σ_s means_ts u_s[g] where they say much

    ``root`` makes columns of x uncorrelated, of mean 0 and of one scale; where every effect's prior is normal it is
    turned so that the coordinates are independent under that prior too, which nested Laplace asks for. A group that
    many rows tell is its rows' own level, whatever intercept and sd are: that level is the coordinate (centred). One
    that few rows tell is mostly its prior: u/sd is (non-centred; Papaspiliopoulos, Roberts & Sköld 2007).
    """

    origin: np.ndarray  # (p,)
    root: np.ndarray  # (p, p)
    intercept: int  # its column; −1 of none
    mean: np.ndarray  # (p,) of the columns of x, 0 of the intercept's
    loc: np.ndarray  # (p,) of default priors
    scale: np.ndarray
    given: dict[int, Prior]
    sds: list[Prior]
    centred: list[np.ndarray]  # of each term (G + 1,) of booleans
    unit: np.ndarray  # (T,)
    lean: np.ndarray  # (T, p)
    means: np.ndarray  # (T, T) of slopes in an intercept of the same factor; 0 elsewhere
    order: list[int]  # slopes before intercepts
    normal: tuple[np.ndarray, np.ndarray] | None  # means and sds (k,) of coordinates that are independent normals

    @property
    def common(self) -> int:
        return len(self.origin)

    @property
    def size(self) -> int:
        return self.common + len(self.sds) + sum(map(len, self.centred))

    def split(self, v: jax.Array) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        """β (p,), sds (T,) and effects of each term's groups."""
        p, t = self.common, len(self.sds)
        ends = np.cumsum([0, *map(len, self.centred)]) + p + t
        return v[:p], v[p : p + t], [v[a:b] for a, b in itertools.pairwise(ends)]


class _ToEffects(Transform):
    """From coordinates ζ (k,) to v = (β, sd, u)."""

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan

    def _level(self, t: int, beta: jax.Array, u: Mapping[int, jax.Array]) -> jax.Array:
        """What the rows of a group have in common beside u_t."""
        plan = self.plan
        level = jnp.asarray(plan.lean[t], beta.dtype) @ (beta - plan.origin)
        for s in np.flatnonzero(plan.means[t]):
            level = level + float(plan.means[t, s]) * u[int(s)]
        return level

    def __call__(self, x: jax.Array) -> jax.Array:
        plan = self.plan
        head, logs, parts = plan.split(x)
        beta = jnp.asarray(plan.origin, x.dtype) + jnp.asarray(plan.root, x.dtype) @ head
        sds, u = jnp.exp(logs) * jnp.asarray(plan.unit, x.dtype), {}
        for t in plan.order:
            own = float(plan.unit[t]) * parts[t] - self._level(t, beta, u)
            u[t] = jnp.where(plan.centred[t], own, sds[t] * parts[t])
        return jnp.concatenate([beta, sds, *(u[t] for t in range(len(parts)))])

    def _inverse(self, y: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, parts = plan.split(y)
        head = jnp.linalg.solve(jnp.asarray(plan.root, y.dtype), beta - plan.origin)
        u, out = dict(enumerate(parts)), {}
        for t in plan.order:
            own = (parts[t] + self._level(t, beta, u)) / float(plan.unit[t])
            out[t] = jnp.where(plan.centred[t], own, parts[t] / sds[t])
        logs = jnp.log(sds / jnp.asarray(plan.unit, y.dtype))
        return jnp.concatenate([head, logs, *(out[t] for t in range(len(parts)))])

    def log_abs_det_jacobian(self, x: jax.Array, y: jax.Array, intermediates: Any = None) -> jax.Array:
        plan = self.plan
        whole = np.linalg.slogdet(plan.root)[1] if plan.common else 0.0
        inside = np.array([centred.sum() for centred in plan.centred], float)
        outside = np.array([len(centred) for centred in plan.centred], float) - inside
        logs = jnp.log(plan.split(y)[1])
        return whole + float(inside @ np.log(plan.unit)) + jnp.sum(jnp.asarray(outside + 1, x.dtype) * logs)

    def tree_flatten(self) -> tuple:
        return (), ((), {"plan": self.plan})


class _Reached(constraints.ParameterFreeConstraint):
    """Effects v: real numbers, of which the sds are above 0."""

    event_dim = 1

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan

    def __call__(self, x: jax.Array) -> jax.Array:
        p, t = self.plan.common, len(self.plan.sds)
        return jnp.all(jnp.isfinite(x), -1) & jnp.all(x[..., p : p + t] > 0, -1)

    def feasible_like(self, prototype: jax.Array) -> jax.Array:
        return jnp.ones_like(prototype)


biject_to.register(_Reached, lambda constraint: _ToEffects(constraint.plan))


class Effects(dist.Distribution):
    """The prior of v = (β, sd, u): u_t ~ N(0, sd_t²) given the sds, all else independent."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, plan: Coordinates) -> None:
        self.plan = plan
        super().__init__((), (plan.size,), validate_args=False)

    @property
    def normal_coordinates(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Means and sds of the coordinates where they are independent normals: effects of no group, of such priors."""
        return self.plan.normal

    @property
    def support(self) -> Any:
        return _Reached(self.plan)

    def log_prob(self, value: jax.Array) -> jax.Array:
        return jnp.vectorize(self._log_prob, signature="(k)->()")(value)

    def _log_prob(self, v: jax.Array) -> jax.Array:
        plan = self.plan
        beta, sds, u = plan.split(v)
        at = beta if plan.intercept < 0 else beta.at[plan.intercept].add(jnp.asarray(plan.mean, v.dtype) @ beta)
        usual = np.array([i for i in range(plan.common) if i not in plan.given], int)
        total = jnp.sum(dist.Normal(plan.loc[usual], plan.scale[usual]).log_prob(at[usual]))
        total += sum((jnp.sum(prior.log_prob(at[i])) for i, prior in plan.given.items()), jnp.zeros_like(total))
        for t, prior in enumerate(plan.sds):
            total += prior.log_prob(sds[t]) + jnp.sum(dist.Normal(0.0, sds[t]).log_prob(u[t]))
        return total

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        if not sample_shape:
            return self._sample(key)
        drawn = jax.vmap(self._sample)(jax.random.split(key, math.prod(sample_shape)))
        return drawn.reshape(*sample_shape, -1)

    def _sample(self, key: jax.Array) -> jax.Array:
        plan = self.plan
        first, second, third, fourth = jax.random.split(key, 4)
        beta = dist.Normal(plan.loc, plan.scale).sample(first)
        for i, prior in plan.given.items():
            beta = beta.at[i].set(prior.sample(jax.random.fold_in(second, i)))
        if plan.intercept >= 0:
            beta = beta.at[plan.intercept].add(-(jnp.asarray(plan.mean, beta.dtype) @ beta))
        sds = [prior.sample(jax.random.fold_in(third, t)) for t, prior in enumerate(plan.sds)]
        u = [sd * jax.random.normal(jax.random.fold_in(fourth, t), (len(plan.centred[t]),)) for t, sd in enumerate(sds)]
        return jnp.concatenate([beta, *(jnp.reshape(sd, 1) for sd in sds), *u])


def _coordinates(
    names: list[str], x: np.ndarray, rows: Encoded, terms: list[Term], centred: list[np.ndarray], told: _Given,
    scales: Scales,
) -> Coordinates:  # fmt: skip
    p, at = len(names), names.index("Intercept") if "Intercept" in names else -1
    mean = np.where(np.arange(p) == at, 0.0, x.mean(0)) if at >= 0 else np.zeros(p)
    scale = WIDE * scales.unit / scales.columns
    loc = np.where(np.arange(p) == at, scales.centre, 0.0)
    means, sds = loc.copy(), scale.copy()  # of the priors, where they are normal
    for i, prior in told.effects.items():
        means[i], sds[i] = (prior.loc, prior.scale) if type(prior) is dist.Normal else (np.nan, np.nan)
    normal = None if terms or np.isnan(sds).any() else (np.zeros(p), np.ones(p))
    origin, root, free = np.zeros(p), np.zeros((p, p)), np.arange(p) != at
    if free.any():
        about = (x - mean)[:, free]
        moments = about.T @ about / len(x) + np.diag(np.square(scales.unit / scale[free]) / len(x))
        own = scales.unit * np.linalg.inv(np.linalg.cholesky(moments)).T
        if normal is not None:
            precisions, turn = np.linalg.eigh((own / np.square(sds[free])[:, None]).T @ own)
            own = own @ turn
            normal[0][free], normal[1][free] = np.linalg.solve(own, means[free]), 1 / np.sqrt(precisions)
        root[np.ix_(free, free)] = own
    if at >= 0:
        origin[at], root[at, at] = scales.centre, scales.unit
        root[at] -= mean @ root
        if normal is not None:
            normal[0][at], normal[1][at] = (means[at] - scales.centre) / scales.unit, sds[at] / scales.unit
    slopes = [term.name.removesuffix(f"|{term.factor}") for term in terms]
    count = len(terms)
    lean, slopes_in = np.zeros((count, p)), np.zeros((count, count))
    for t, term in enumerate(terms):
        if slopes[t] == "1":  # the level of a group at a mean row
            lean[t] = mean + (np.arange(p) == at)
            same = [s for s in range(count) if terms[s].factor == term.factor and s != t]
            slopes_in[t, same] = rows.groups["z"][:, same].mean(0) if rows.groups is not None else 0.0
        elif slopes[t] in names:
            lean[t, names.index(slopes[t])] = 1.0
    order = sorted(range(count), key=lambda t: slopes[t] == "1")
    return Coordinates(
        origin, root, at, mean, loc, scale, told.effects, told.sds, centred, scales.unit / scales.slopes, lean,
        slopes_in, order, normal,
    )  # fmt: skip


def _centred(x: np.ndarray, rows: Encoded, terms: list[Term], logarithm: bool) -> list[np.ndarray]:
    """Which groups' effects are told by their rows rather than by the others, of each term (G + 1,).

        S_g = Σ z² / noise²,   the rows' information about u_g;   centred where S_g τ² > 1

    with noise² and τ² from y less its least squares on x and, by the moments of the groups' own slopes b_g,
    E Σ S_g b_g² = G + τ² Σ S_g (DerSimonian & Laird 1986). A guess for speed: whatever it is, the model is the same.
    """
    if rows.groups is None or rows.y is None:
        return []
    y = middle(np.asarray(rows.y, np.float64))
    y = np.log(y) if logarithm else y
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    found = []
    for t, term in enumerate(terms):
        z, group, size = rows.groups["z"][:, t], rows.groups["group"][:, t] - term.start, len(term.groups)
        squares = np.bincount(group, z * z, size)
        told = squares > 0
        own = np.divide(np.bincount(group, z * left, size), squares, out=np.zeros(size), where=told)
        free = len(y) - told.sum()
        noise = np.sum(np.square(left - z * own[group])) / free if free > 0 else np.inf
        ratio = (np.sum(squares * own**2) / noise - told.sum()) / squares.sum() if noise > 0 else np.inf
        found.append(squares * max(ratio, 0.0) > 1)
    return found
