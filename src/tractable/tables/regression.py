"""Regression by a formula: effects common to all rows, and effects of groups, with the table's units and names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from tractable.core.censored import middle
from tractable.core.censoring import with_censoring
from tractable.core.errors import ModelError
from tractable.core.model import Data, Model, PyTree, Through
from tractable.core.shared import recorded, remember
from tractable.core.view import Label, unique_labels
from tractable.core.words import listing, nearest, spelt, tell
from tractable.glm.families import FAMILIES
from tractable.networks.multi_output import side_by_side, with_stacked_predictors
from tractable.tables.columns import spread_of_groups
from tractable.tables.coordinates import Coordinates, Effects
from tractable.tables.encoder import Encoded, Encoder, encode, fit_encoder
from tractable.tables.files import Frame, as_table
from tractable.tables.levels import Term
from tractable.tables.models import inputs_of, table_of
from tractable.tables.targets import COUNTS, robust

Prior = dist.Distribution
WIDE = 2.5  # prior sd of the change in η for one sd of x, as a multiple of s, the scale of η (``regression``)
CONCENTRATION = 1.0  # η of the LKJ prior of correlations: all correlation matrices have the same density
# Families of numbers ≥ 0 for which η is the log of a mean, rate or time:
LOGARITHMIC = ("gamma", "weibull", "exponential", *COUNTS)


class Regression(NamedTuple):
    """A formula applied to a table: ``model, data, encoder``."""

    model: Model
    data: Data
    encoder: Encoder

    def __repr__(self) -> str:
        text = self.encoder.formula.text if self.encoder.formula is not None else ""
        names = ", ".join(self.model.names[:12]) + ", …" * (len(self.model.names) > 12)
        return f"Regression({text!r}, family {self.encoder.target.family}, {self.data.size:,} rows; {names})"

    def rows(self, table: Frame) -> PyTree:
        """The model's inputs for new rows of a table, which need not hold the target.

        ``posterior.predict`` calls this for a table. A missing group, such as None, stands for the population: its
        effects are 0. A group that was not in training has effects of its own, drawn from N(0, Σ) in each posterior
        draw, together if they are correlated. All new groups share these draws. So an interval for one row is right,
        but an interval for a sum over several new groups is not.
        """
        return inputs_of(self.encoder, table)


@spelt
def regression(
    formula: str,
    table: object,
    *,
    family: str | None = None,
    priors: Mapping[str, Prior] | None = None,
    weights: str = "",
    exposure: str = "",
    missing: str = "raise",
) -> Regression:
    """Make a regression from a formula and a table: its model, its data, and the encoder of new rows.

        η = offset + X β + Σ_t z_t u_t[group],   y ~ family(η)
        u[g] ~ N(0, diag(sd) Ω diag(sd)),   Ω ~ LKJ(1),   for the effects of one (… | group);   Ω = I for (… || group)

    The language is that of the library formulae, which bambi uses: ``x*z`` for effects and their interaction, ``bs(x,
    df=5)``, ``poly(x, 2)``, ``scale(x)``, ``offset(log(hours))``, ``0 + x`` without an intercept, ``(1 + x | school)``
    for an intercept and a slope that differ by school.

    A censored y is written ``y | cens(status)`` or ``censored(y, status)`` with the status none, right or left;
    ``Surv(y, event)`` with whether the event was observed; or ``Surv(lower, upper, type="interval2")`` with bounds
    (``models.censored``; its families are weibull, exponential, lognormal and normal). The effects of text are
    differences from its first level.

    As in lme4 and brms, the effects of one term ``(1 + x | school)`` are correlated, and those of ``(1 + x || school)``
    or of ``(1 | school) + (0 + x | school)`` are independent. Under LKJ(1), brms' default, all correlation matrices
    have the same density (Lewandowski, Kurowicka & Joe 2009): the correlation of two effects is uniform on (−1, 1), and
    of K effects each is 2b − 1 with b ~ Beta(K/2, K/2).

    Effects and their priors are in the table's units. Default priors are weakly informative and scaled by the columns
    (Gelman et al. 2008); they are the defaults of rstanarm, and for most families of bambi (Capretto et al. 2022):

        β_j ~ N(0, (2.5 s / sd(x_j))²)
        s = sd(y) for normal, a robust sd of y for student-t, sd(log y) for lognormal targets; else 1
        intercept at a mean row ~ N(m, (2.5 s)²)
        m = mean of y for normal, median for student-t, mean of log y for lognormal, log mean of other y ≥ 0; else 0
        sd_t ~ HalfNormal(2.5 s / sd(z_t)),  for group intercepts HalfNormal(2.5 s)
        noise ~ Exponential(1 / s); other parameters of a family as in ``linear.generalised_linear``

    In a mean row, every column of x has its mean. Grades have cutpoints in place of an intercept; for them the columns
    of x are centred.

    Several targets are written ``mvbind(a, b) ~ x + (1 | school)`` as in brms. Each has its own effects, sds and noise,
    such as "a.x" and "b.noise" (``networks.multi_output.side_by_side``). For C classes there are C − 1 linear
    predictors, the log odds against the first class, as in brms and bambi: η_c = log P(y = c) / P(y = first). Each has
    its own effects and sds, such as "virginica.x".

    Args:
        formula: such as "y ~ x*z + (1 + x | school)".
        table: the training table, of pandas, polars or Arrow.
        family: a name of ``FAMILIES``; by default guessed from the target, with a warning.
        priors: distributions by name: of an effect ("x", "z[b]"), of all effects of a term ("z"), "Intercept" (at a
            mean row), of a group's sd ("sd(1|school)"), of correlations ("school: correlation", a ``dist.LKJ(2, η)``
            of two effects), of a parameter of the family ("noise"). With several targets or classes such names hold for
            each of them, and "virginica.x" for one.
        weights: a column of numbers ≥ 0, how often each row counts.
        exposure: for counts, a column of numbers > 0 by which each row's rate is multiplied.
        missing: "raise" raises an error for rows with missing values, and "drop" leaves them out. "impute" leaves out
            rows without a target and fills in missing inputs, also of new rows: numbers by their median, text and
            groups by a level "missing".

    Returns:
        A Regression. Its ``model`` has ``effects`` (k,) under names such as "x", "z[b]", "sd(1|school)",
        "school: correlation[intercept, x]", "1|school[A]" and "1|school[new]", and the family's further parameters.
        ``posterior.predict`` takes tables, also once loaded: ``tr.load(folder).predict(table)``. A saved posterior
        holds the columns of its formula.

    Raises:
        DataError: the formula cannot be read, a column does not exist, or the target does not suit the family.
        ModelError: a prior names no parameter, or has the wrong support: all numbers for effects, above 0 for sds.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"y": [1.0, 2.5, 2.9, 4.2], "x": [0.0, 1.0, 2.0, 3.0], "z": ["a", "b", "a", "b"]})
    >>> regression("y ~ x + z", table).model.names
    ['Intercept', 'x', 'z[b]', 'noise']
    """
    encoder = fit_encoder(as_table(table), "", missing, family, weights=weights, exposure=exposure, formula=formula)
    if encoder.target.reason and family is None:
        tell(f"{encoder.explained} holds {encoder.target.reason}: family={encoder.target.family!r}.")
    rows = training(encoder)
    return Regression(formula_model(encoder, priors), Data(rows.y, rows.given, weights=rows.weights), encoder)


def training(encoder: Encoder) -> Encoded:
    """The rows to which an encoder with a formula was fitted."""
    if encoder.formula is None:
        raise ModelError("Expected an encoder with a formula; this encoder has none.")
    return encode(encoder, encoder.formula.table)


class Scales(NamedTuple):
    """The scales of default priors."""

    centre: float  # prior mean of the intercept
    unit: float  # s
    columns: np.ndarray  # (p,) sd of each column of x; 1 for the intercept
    slopes: np.ndarray  # (T,) sd of each column of z


def formula_model(encoder: Encoder, priors: Mapping[str, Prior] | None = None) -> Model:
    """The model of an encoder's formula, as ``regression`` describes it, without its data."""
    rows, own = training(encoder), priors or {}
    if rows.y is None:
        raise ModelError("Expected an encoder with a formula, and the target in its table.")
    family, table = encoder.target.family, table_of(encoder, None)
    if encoder.others:
        names = [aim.name for aim in encoder.targets]
        given = _by_part(own, names)
        parts = {
            name: _of_one(each, rows._replace(y=rows.y[:, k]), family, given[name])
            for k, (name, each) in enumerate(zip(names, encoder.each, strict=True))
        }
        model = replace(side_by_side(parts, family), table=table)
    elif family == "categorical":
        # C − 1 predictors, log odds against the first class, each with its own effects.
        names = list(map(str, encoder.target.classes))[1:]
        codes, given = np.asarray(rows.y), _by_part(own, names)
        parts = {
            name: _of_one(encoder, rows._replace(y=(codes == k).astype(float)), "bernoulli", given[name])
            for k, name in enumerate(names, 1)
        }
        model = replace(with_stacked_predictors(parts, _log_odds), table=table)
    else:
        model = replace(_of_one(encoder, rows, family, own), table=table)
    model = with_censoring(model) if encoder.target.censoring else model
    return remember(model, made_from, lambda: {"encoder": encoder.to_dict(), "priors": _written(priors or {})})


def _log_odds(params: PyTree, eta: jax.Array) -> dist.Distribution:
    """The distribution of a class, from the log odds (C − 1,) against the first class."""
    return dist.CategoricalLogits(jnp.concatenate([jnp.zeros(1, eta.dtype), eta]))


def _by_part(priors: Mapping[str, Prior], names: Sequence[str]) -> dict[str, dict[str, Prior]]:
    """The priors of each part (a target or a class): "x" is for every part, and "part.x" only for this part."""
    of_some = {key for key in priors if any(key.startswith(f"{name}.") for name in names)}
    of_all = {key: prior for key, prior in priors.items() if key not in of_some}
    return {
        name: of_all | {k.removeprefix(f"{name}."): priors[k] for k in of_some if k.startswith(f"{name}.")}
        for name in names
    }


def _of_one(encoder: Encoder, rows: Encoded, family: str, priors: Mapping[str, Prior]) -> Model:
    """A model with one linear predictor."""
    formula: Any = encoder.formula
    names, terms = list(formula.features), formula.terms
    kind, x = FAMILIES[family], rows.x
    shown = np.array([kind.intercept or name != "Intercept" for name in names], bool)
    names, x = [name for name, keep in zip(names, shown, strict=True) if keep], x[:, shown]
    mean = x.mean(0)
    about = np.zeros_like(mean) if kind.intercept else mean
    scales = _scales(family, names, x, rows)
    parts = {part: features for part, features in formula.parts.items() if set(features) <= set(names)}
    blocks = [(f"{terms[block[0]].factor}: correlation", len(block)) for block in formula.correlated]
    others = kind.others(len(encoder.target.classes))
    effects, sds, matrices, others = _priors_of(priors, names, parts, terms, blocks, others, scales)
    centred = _terms_to_centre(x, rows, terms, family in ("lognormal", "gamma", "weibull", "exponential"))
    plan = _coordinates(names, x, rows, terms, centred, (effects, sds), scales)
    plan = plan._replace(blocks=formula.correlated, correlations=matrices)
    prior, start = {"effects": Effects(plan), **others}, plan.size - sum(map(len, centred))

    def predictor(params: dict[str, Any], given: PyTree) -> jax.Array:
        given = given if isinstance(given, dict) else {"x": given}
        each = params["effects"]
        u = each[start:]
        x = given["x"] if shown.all() else given["x"][shown]
        eta = jnp.dot(x - about, each[: len(names)]) + given.get("offset", 0.0)
        return eta + jnp.dot(given["z"], u[given["group"]]) if terms else eta

    common = [label for label, keep in zip(formula.labels, shown, strict=True) if keep]
    of_groups = [*formula.correlations, *(label for term in terms for label in term.labels)]
    labels = unique_labels([*common, *(Label(f"sd({term.name})") for term in terms), *of_groups])
    return Model(prior, Through(predictor, kind.observe), labels={"effects": labels})


@recorded
def made_from(encoder: dict[str, Any], priors: dict[str, Any]) -> Model:
    """The model of a saved encoder, with priors that ``_written`` saved."""
    own = {name: getattr(dist, family)(**numbers) for name, (family, numbers) in priors.items()}
    return formula_model(Encoder.from_dict(encoder), own)


def _written(priors: Mapping[str, Prior]) -> dict[str, tuple[str, dict[str, float]]]:
    """Priors in a form for JSON: the name of the distribution and its numbers.

    Raises:
        TypeError: a prior is not determined by its name and its numbers.
    """
    found = {}
    for name, prior in priors.items():
        family, numbers = type(prior), {each: float(getattr(prior, each)) for each in prior.arg_constraints}
        numbers |= {"dimension": prior.dimension} if isinstance(prior, dist.LKJ) else {}
        if getattr(dist, family.__name__, None) is not family:
            raise TypeError(family.__name__)
        family(**numbers)
        found[name] = family.__name__, numbers
    return found


def _scales(family: str, names: list[str], x: np.ndarray, rows: Encoded) -> Scales:
    y = middle(np.asarray(rows.y, np.float64))
    offset = np.zeros(len(y)) if rows.offset is None else rows.offset
    centre, unit = 0.0, 1.0
    if family == "student-t":
        centre, unit = robust("the target", y - offset)
    elif family in ("normal", "lognormal"):
        eta = (np.log(y) if family == "lognormal" else y) - offset
        centre, unit = float(eta.mean()), float(eta.std())
    elif family in LOGARITHMIC:
        centre = float(np.log(y.sum() / np.exp(offset).sum()))
    sds = x.std(0)
    for name, sd in zip(names, sds, strict=True):
        if name != "Intercept" and not sd > 1e-12:
            tell(f"The formula's column {name!r} is the same in every row, so only the prior determines its effect.")
    z = np.ones((len(y), 0)) if rows.groups is None else rows.groups["z"]
    spread = z.std(0)
    return Scales(centre, unit, np.where(sds > 1e-12, sds, 1.0), np.where(spread > 1e-12, spread, 1.0))


def _priors_of(
    priors: Mapping[str, Prior], names: list[str], parts: Mapping[str, list[str]], terms: list[Term],
    blocks: Sequence[tuple[str, int]], others: dict[str, Prior], scales: Scales,
) -> tuple[dict[int, Prior], list[Prior], list[Prior], dict[str, Prior]]:  # fmt: skip
    """The priors of a model; ``blocks`` are the names and sizes of its correlation matrices.

    Returns:
        The user's priors of effects, by the index of the effect; the priors of the sds, of the correlation matrices and
        of other parameters. Priors of the last three are defaults where the user gives none.
    """
    sds = [f"sd({term.name})" for term in terms]
    if "noise" in others:
        others = others | {"noise": dist.Exponential(1 / scales.unit)}
    for name, prior in priors.items():
        if name not in {*names, *parts, *sds, *dict(blocks), *others}:
            known = [*names, *(part for part in parts if part not in names), *sds, *dict(blocks), *others]
            raise ModelError(
                f"priors has {name!r}, but the formula has no such parameter; it has {listing(known)}."
                f"{nearest(name, known)}"
            )
        if name in others:
            if prior.shape() != others[name].shape() or type(prior.support) is not type(others[name].support):
                like = type(others[name]).__name__
                raise ModelError(f"The prior of {name!r} expects the support of {like}; got {type(prior).__name__}.")
            continue
        if name in dict(blocks):
            size = dict(blocks)[name]
            if not isinstance(prior, dist.LKJ) or prior.dimension != size:
                raise ModelError(f"The prior of {name!r} expects dist.LKJ({size}, concentration); got {prior!r}.")
            continue
        if prior.shape() != ():
            raise ModelError(f"The prior of {name!r} must be a distribution of one number; got {prior!r}.")
        if prior.support is not (constraints.positive if name in sds else constraints.real):
            what = "numbers above 0, as dist.HalfNormal draws" if name in sds else "any numbers, as dist.Normal draws"
            raise ModelError(f"The prior of {name!r} expects {what}; got {type(prior).__name__}.")
    whole = {each: priors[part] for part, features in parts.items() if part in priors for each in features}
    own = whole | {name: prior for name, prior in priors.items() if name in names}
    of_sds = zip(sds, scales.slopes, strict=True)
    return (
        {i: own[name] for i, name in enumerate(names) if name in own},
        [priors.get(name, dist.HalfNormal(WIDE * scales.unit / scale)) for name, scale in of_sds],
        [priors.get(name, dist.LKJ(size, CONCENTRATION)) for name, size in blocks],
        {name: priors.get(name, prior) for name, prior in others.items()},
    )


def _coordinates(
    names: list[str], x: np.ndarray, rows: Encoded, terms: list[Term], centred: list[np.ndarray],
    priors: tuple[dict[int, Prior], list[Prior]], scales: Scales,
) -> Coordinates:  # fmt: skip
    p, at = len(names), names.index("Intercept") if "Intercept" in names else -1
    mean = np.where(np.arange(p) == at, 0.0, x.mean(0)) if at >= 0 else np.zeros(p)
    scale = WIDE * scales.unit / scales.columns
    loc = np.where(np.arange(p) == at, scales.centre, 0.0)
    means, sds = loc.copy(), scale.copy()  # prior means and sds; NaN if not normal
    for i, prior in priors[0].items():
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
    slopes = [term.slope for term in terms]
    count = len(terms)
    lean, slopes_in = np.zeros((count, p)), np.zeros((count, count))
    for t, term in enumerate(terms):
        if slopes[t] == "1":  # a group intercept: the group's level at a mean row
            lean[t] = mean + (np.arange(p) == at)
            same = [s for s in range(count) if terms[s].factor == term.factor and s != t]
            slopes_in[t, same] = rows.groups["z"][:, same].mean(0) if rows.groups is not None else 0.0
        elif slopes[t] in names:
            lean[t, names.index(slopes[t])] = 1.0
    order = sorted(range(count), key=lambda t: slopes[t] == "1")
    return Coordinates(
        origin, root, at, mean, loc, scale, *priors, centred, scales.unit / scales.slopes, lean,
        slopes_in, order, normal,
    )  # fmt: skip


def _terms_to_centre(x: np.ndarray, rows: Encoded, terms: list[Term], logarithm: bool) -> list[np.ndarray]:
    """For each term, whether the rows of a group determine its effect more than the prior does, (G + 1,).

        S_g = Σ z² / noise²,   the rows' information about u_g;   centred if S_g τ² > 1

    noise² and τ² come from the least-squares residuals of y on x (``spread_of_groups``). The choice affects only the
    speed of methods; the model is the same.
    """
    if rows.groups is None or rows.y is None:
        return []
    y = middle(np.asarray(rows.y, np.float64))
    y = np.log(y) if logarithm else y
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    found = []
    for t, term in enumerate(terms):
        z, group, size = rows.groups["z"][:, t], rows.groups["group"][:, t] - term.start, len(term.groups)
        squares, ratio = spread_of_groups(left, z, group, size)
        found.append(squares * ratio > 1)
    return found
