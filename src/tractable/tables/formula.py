"""A model's formula, and the design matrix that it makes from a table.

The library formulae defines the language, ``y ~ x*z + bs(w, df=5) + (1 + x | school)``, and makes the matrix of the
common effects, which are the same for all rows. For group effects, this module stores the index of each row's group
instead of formulae's dense one-hot matrix: 10⁴ groups and 10⁵ rows take a few MB instead of 8 GB.
"""

import base64
import functools
import io
import itertools
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from formulae.environment import Environment
from formulae.expr import Binary, Grouping
from formulae.parser import Parser
from formulae.resolver import Resolver
from formulae.scanner import Scanner
from formulae.terms.terms import Model as Description
from formulae.terms.variable import Variable
from formulae.transforms import TRANSFORMS

from tractable.core.errors import DataError
from tractable.core.view import Label, unique_labels
from tractable.core.words import counted, listing, nearest, tell
from tractable.glm.families import PARAMETERS
from tractable.tables.columns import Values, kind_of, lacks, meaning, tell_of_equal_levels, text_of
from tractable.tables.files import Frame
from tractable.tables.levels import NEW, Term

ABSENT = "missing"  # the level of missing text
CURVED = re.compile(r"\b(bs|poly)\(")  # terms that are polynomials, and unreliable outside the training range
# The functions that a formula may call, besides those of formulae. Formulas may come from files of others, so no
# function here gives access to a module.
FUNCTIONS = {
    name: getattr(np, name)
    for name in (
        "abs", "arcsinh", "arctan", "ceil", "cos", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "maximum",
        "minimum", "power", "round", "sign", "sin", "sqrt", "square", "tan", "tanh",
    )
}  # fmt: skip
KNOWN = Environment([{**FUNCTIONS, "np": SimpleNamespace(**FUNCTIONS)}])


class Design(NamedTuple):
    """The design matrices of a table: η = offset + x β + Σ_t z_t u[group_t]."""

    x: np.ndarray  # (n, p)
    z: np.ndarray  # (n, T) the number by which each term's effect is multiplied
    group: np.ndarray  # (n, T) int32, the index in u of each term's effect
    offset: np.ndarray | None  # (n,)


class Formula:
    """A formula with its training table.

    A saved formula holds the training columns, and not what ``bs``, ``scale``, ``center`` or ``poly`` learnt from them.
    When it is loaded, it is evaluated on these columns again, which gives the same numbers to the last bit.

    Args:
        text: the formula.
        table: the training table; columns that the formula does not name are left out.
        other_columns: columns that are kept although they are no inputs.

    Raises:
        DataError: the formula cannot be read, its target is not a single column, or a column or function is unknown.
    """

    def __init__(self, text: str, table: Frame, other_columns: Sequence[str] = ()):
        self.text, self.target = text, _target(text)
        description, bars = _read(text)
        names = [self.target, *sorted(description.var_names - {"", self.target})]
        if absent := [name for name in dict.fromkeys([*names, *other_columns]) if name not in table]:
            hints = "".join(nearest(name, table.columns) for name in absent)
            raise DataError(
                f"{listing(absent)} {'is not a column' if len(absent) == 1 else 'are not columns'} of the table; the "
                f"formula is {text!r}, and the table has {listing(table.columns)}.{hints}"
            )
        self.names = names[1:]  # the names of the inputs
        self.table = pd.DataFrame(table[list(dict.fromkeys([*names, *other_columns]))]).reset_index(drop=True)
        # For each factor: the terms that vary by its groups, each with the number of its | (``_bars``).
        self._grouped: dict[tuple[str, ...], list[tuple[Any, int | None]]] = {}
        for term in description.group_terms:
            if not all(isinstance(part, Variable) for part in term.factor.components):
                raise DataError(f"{term.name!r} groups by {term.factor.name!r}; expected columns of the table.")
            columns = tuple(part.name for part in term.factor.components)
            self._grouped.setdefault(columns, []).append((term.expr, bars[term.name]))
        inputs = {*(name for term in description.common_terms for name in term.var_names)}
        inputs |= {name for term in description.group_terms for name in term.expr.var_names}
        if self.target in inputs or any(self.target in columns for columns in self._grouped):
            raise DataError(f"The formula {text!r} explains {self.target!r} by itself: leave it out on one side.")
        for name in inputs - {""}:
            there = self.table[name][~lacks(self.table[name])]
            if len(there) and (kind := meaning(there)[0]) in ("date", "duration"):
                raise DataError(
                    f"Column {name!r} is a {kind}, and a formula takes numbers, True/False and text; turn it into a "
                    "number in the table first, such as the days since its start or the hour."
                )
        self.groups = {name for columns in self._grouped for name in columns} - inputs
        for name in sorted((inputs | self.groups) - {""}):
            there = self.table[name][~lacks(self.table[name])]
            if len(there) and kind_of(there) == "text":
                tell_of_equal_levels(name, sorted(set(text_of(there))))
        if not description.common_terms and not self._grouped:
            raise DataError(f"The formula {text!r} explains {self.target!r} by nothing; name a column, or give 1.")

    @functools.cached_property
    def _common(self) -> list[Any]:
        """The terms of the common effects from the library formulae, fitted to the training table."""
        return _fit_terms(self.text, _read(self.text)[0].common_terms, self.table)

    @functools.cached_property
    def _factors(self) -> list[tuple[tuple[str, ...], list[Any], pd.Index]]:
        """For each factor: its columns, the terms that vary by its groups, and the groups."""
        found = []
        for columns, varying in self._grouped.items():
            each = pd.DataFrame(self.table[list(columns)]).drop_duplicates().sort_values(by=list(columns))
            expressions = _fit_terms(self.text, [term for term, _ in varying], self.table)
            found.append((columns, expressions, pd.Index(_keys(each, columns))))
        return found

    @functools.cached_property
    def features(self) -> list[str]:
        """Names of the columns of x, such as "Intercept", "x", "z[b]", "x:z[b]"."""
        return [label for term in self._common if term.kind != "offset" for label in _labels(term)]

    @functools.cached_property
    def labels(self) -> list[Label]:
        """The names of the effects of x's columns, each with its term and level."""
        common = [(term.name, label) for term in self._common if term.kind != "offset" for label in _labels(term)]
        return unique_labels([_split_label(name, label) for name, label in common], PARAMETERS)

    @functools.cached_property
    def terms(self) -> list[Term]:
        """The terms of the group effects, in the order of z's columns."""
        terms, start = [], 0
        for columns, expressions, groups in self._factors:
            factor = ":".join(columns)
            for label in (label for term in expressions for label in _labels(term)):
                name = f"{'1' if label == 'Intercept' else label}|{factor}"
                terms.append(Term(name, factor, (*groups, NEW), start))
                start += len(groups) + 1
        return terms

    @functools.cached_property
    def correlated(self) -> list[list[int]]:
        """The terms whose effects are correlated, as indices of ``terms``: a list for each factor of a |.

        Intercepts come last, as in ``coordinates.Coordinates.order``.
        """
        found, number = {}, itertools.count()
        for columns, expressions, _ in self._factors:
            for term, (_, bar) in zip(expressions, self._grouped[columns], strict=True):
                found.setdefault((columns, bar), []).extend(next(number) for _ in _labels(term))
        blocks = [terms for (_, bar), terms in found.items() if bar is not None and len(terms) > 1]
        return [sorted(terms, key=lambda t: self.terms[t].slope == "1") for terms in blocks]

    @property
    def correlations(self) -> list[Label]:
        """The names of the correlations, such as "school: correlation[intercept, x]", of each list of ``correlated``.

        They have the order of a matrix's lower triangle, (1, 0), (2, 0), (2, 1), (3, 0), …
        """
        pairs = [sorted((terms[i], terms[j])) for terms in self.correlated for i in range(len(terms)) for j in range(i)]
        return [
            Label(f"{self.terms[s].factor}: correlation", f"{_short(self.terms[s])}, {_short(self.terms[t])}")
            for s, t in pairs
        ]

    @functools.cached_property
    def parts(self) -> dict[str, list[str]]:
        """The features of each common term, such as {"z": ["z[b]", "z[c]"]}."""
        return {term.name: list(_labels(term)) for term in self._common if term.kind != "offset"}

    def rows(self, table: Frame) -> Design:
        """The design of a table.

        A group that was not in training gets the index of NEW, with a TractableWarning. A row whose group is missing
        has z = 0: its effect is 0, that of the population.
        """
        # The first use of self._common fits the terms to the training table, before any new row is evaluated.
        common = [(term, self._values(term, table)) for term in self._common]
        offsets = [values[:, 0] for term, values in common if term.kind == "offset"]
        x = [values for term, values in common if term.kind != "offset"]
        z, group, terms = [], [], iter(self.terms)
        for columns, expressions, groups in self._factors:
            keys, unknown = _keys(table, columns), np.any([lacks(table[name]) for name in columns], axis=0)
            place = np.where(unknown, -1, groups.get_indexer(pd.Index(keys)))
            if unseen := sorted({keys[i] for i in np.flatnonzero((place < 0) & ~unknown)}):
                tell(
                    f"{':'.join(columns)!r} has groups never seen in training, {listing(unseen)}: their effects are "
                    "drawn from the groups' distribution."
                )
            for expression in expressions:
                for column in self._values(expression, table).T:
                    z.append(np.where(unknown, 0.0, column))
                    group.append(next(terms).start + np.where(place < 0, len(groups), place))
        n = len(table)
        return Design(
            np.concatenate(x, 1) if x else np.zeros((n, 0)),
            np.stack(z, 1) if z else np.zeros((n, 0)),
            np.stack(group, 1).astype(np.int32) if group else np.zeros((n, 0), np.int32),
            np.sum(offsets, axis=0) if offsets else None,
        )

    def _values(self, term: Any, table: Frame) -> np.ndarray:
        """The values of a term for the rows of a table, (n, columns)."""
        if term.name == "Intercept":
            return np.ones((len(table), 1))
        for name in term.var_names - {""}:
            if self.table[name].dtype.kind in "iufb" and table[name].dtype.kind not in "iufb":
                raise DataError(f"Column {name!r} was numbers in training, and is {table[name].dtype} here.")
            if CURVED.search(term.name) and self.table[name].dtype.kind in "iuf":
                low, high = self.table[name].min(), self.table[name].max()
                if beyond := int(np.sum((table[name] < low) | (table[name] > high))):
                    tell(
                        f"In {counted(beyond, 'row')} {name!r} lies outside of the {low:g} to {high:g} of training: "
                        f"{term.name} is extrapolated there as a polynomial, which no data support."
                    )
        try:
            values = np.asarray(term.eval_new_data(table), np.float64)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{term.name!r} of the formula cannot be computed for these rows: {error} Give the columns of training."
            ) from error
        return values[:, None] if values.ndim == 1 else values

    def needed(self, table: Frame) -> np.ndarray:
        """Which rows must be in training so that all others can be encoded, (n,): the first row of each level."""
        inputs = {name for term in self._common if term.name != "Intercept" for name in term.var_names - {""}}
        texts = [name for name in sorted(inputs) if table[name].dtype.kind not in "iufb"]
        return np.any([np.zeros(len(table), bool), *(~table[name].duplicated().to_numpy() for name in texts)], axis=0)

    def filled(self, table: Frame, learnt: Frame | None = None) -> Frame:
        """The table with the missing values of its inputs imputed from the training rows ``learnt``.

        A missing number becomes the median, and a missing True/False the more frequent value. Missing text becomes
        "missing", a level or group of its own, if text was missing in training too. If it was not, missing text becomes
        the most frequent text, and a missing group stays missing (``rows``).
        """
        out, learnt = pd.DataFrame(table), self.table if learnt is None else learnt
        for name in self.names:
            gone = lacks(table[name])
            if not gone.any():
                continue
            lacking = lacks(learnt[name])
            known: Values = learnt[name][~lacking]
            kind = kind_of(known) if len(known) else "missing in every row"
            kind = "text" if name in self.groups else kind
            own = lacking.any() or ABSENT in text_of(known)
            if name in self.groups and not own:
                continue
            if kind == "number":
                values = table[name].to_numpy(np.float64, na_value=np.nan)
                values = np.where(gone, np.median(known.to_numpy(np.float64)), values)
            elif kind == "boolean":
                values = table[name].where(~gone, bool(known.astype(bool).mean() > 0.5)).astype(bool)
            elif kind == "text":
                usual = ABSENT if own else pd.Series(text_of(known)).value_counts().index[0]
                values = np.full(len(table), usual, object)
                values[~gone] = text_of(table[name][~gone])
                if isinstance(known.dtype, pd.CategoricalDtype):
                    levels = dict.fromkeys([*map(str, known.cat.categories), *([ABSENT] if own else [])])
                    values = pd.Categorical(values, list(levels), ordered=known.cat.ordered)
            else:
                raise DataError(f"Column {name!r} is {kind}, so its gaps cannot be filled in; fill them in first.")
            out = out.assign(**{name: values})
        return out

    def to_dict(self) -> dict[str, str]:
        """The formula, and its training columns as Parquet in base64, so that JSON can hold them to the last bit."""
        buffer = io.BytesIO()
        self.table.to_parquet(buffer, compression="zstd", index=False)
        return {"text": self.text, "table": base64.b64encode(buffer.getvalue()).decode()}

    @classmethod
    def from_dict(cls, saved: dict[str, str]) -> "Formula":
        try:
            table = pd.read_parquet(io.BytesIO(base64.b64decode(saved["table"], validate=True)))
        except (ValueError, OSError) as error:
            raise DataError(f"The formula's training columns are damaged: {error}. Fit the formula again.") from error
        return cls(saved["text"], table, list(table.columns))


def _short(term: Term) -> str:
    """The name of a term's effect within brackets, where a level "z[b]" is written "z=b"."""
    return "intercept" if term.slope == "1" else re.sub(r"\[([^\]]*)\]", r"=\1", term.slope)


def _read(text: str) -> tuple[Any, dict[str, int | None]]:
    """The description of a formula by the library formulae, and the ``_bars`` of its group terms.

    It is made anew each time, because a description remembers the table on which it was evaluated.
    """
    try:
        if re.search(r"\|\s*\|\s*\|", text):
            raise ValueError("||| is no operator")
        tokens = Scanner(text).scan()
        # formulae has no ||: the second | is left out here, and the first is remembered.
        double = [first for first, second in itertools.pairwise(tokens) if first.kind == second.kind == "PIPE"]
        single = [
            token for before, token in itertools.pairwise([None, *tokens]) if all(before is not d for d in double)
        ]
        tree = Parser(single).parse()
        description = Resolver(tree).resolve()
        bars = _bars(tree, double)
    except Exception as error:  # formulae's errors have no common base class
        raise DataError(f"The formula {text!r} cannot be read: {error}. Write, say, 'y ~ x*z + (1|school)'.") from error
    if "|" in text and not (isinstance(description, Description) and description.group_terms):
        raise DataError(f"The formula {text!r} has a | outside brackets; effects by group are (1 + x | school).")
    return description if isinstance(description, Description) else Description(description), bars


def _bars(tree: object, double: Sequence[Any]) -> dict[str, int | None]:
    """For each group term, such as "x|school", the number of the | that made it; None if it is a ||.

    Effects of one | are correlated. A term that several | name belongs to the first.
    """

    def find(node: object) -> list[Any]:
        if isinstance(node, Grouping):
            return find(node.expression)
        if not isinstance(node, Binary):
            return []
        return [node] if node.operator.kind == "PIPE" else [*find(node.left), *find(node.right)]

    found: dict[str, int | None] = {}
    for number, node in enumerate(find(tree)):
        terms, bar = Resolver(node).resolve(), None if any(node.operator is d for d in double) else number
        for term in terms.group_terms if isinstance(terms, Description) else [terms]:
            found.setdefault(term.name, bar)
    return found


def _target(text: str) -> str:
    response = _read(text)[0].response
    parts = () if response is None else response.term.components
    if len(parts) != 1 or not isinstance(parts[0], Variable) or parts[0].reference is not None:
        raise DataError(
            f"The formula {text!r} expects one column before its ~, or several as mvbind(a, b). Compute it in the "
            "table first; use family='lognormal' to explain its logarithm, and offset(...) for an exposure."
        )
    return parts[0].name


def _fit_terms(text: str, terms: Sequence[Any], table: Frame) -> list[Any]:
    """The terms, fitted to the training table."""
    description = Description(*terms)
    try:
        description.eval(table, KNOWN)
    except KeyError as error:
        missing, known = str(error.args[0]), [*TRANSFORMS, *FUNCTIONS]
        raise DataError(
            f"The formula {text!r} calls {missing!r}; it may call only {', '.join(known)}. Compute the column in the "
            f"table first.{nearest(missing, known)}"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"The formula {text!r} cannot be evaluated on this table: {error}.") from error
    strange = [term.name for term in description.common_terms if term.kind == "proportion"]
    if strange:
        raise DataError(f"The formula {text!r} has {strange[0]!r} among its inputs, which is not a number.")
    return description.common_terms


def _labels(term: Any) -> Sequence[str]:
    return ["Intercept"] if term.name == "Intercept" else term.labels


def _split_label(term: str, text: str) -> Label:
    """The label "g[A]:z[b]" of the term "g:z", as the level "A, b" of this term."""
    pattern = ":".join(re.escape(part) + r"(?:\[(.*)\])?" for part in term.split(":"))
    found = re.fullmatch(pattern, text)
    levels = [level for level in found.groups() if level is not None] if found else []
    return Label(term, ", ".join(levels)) if levels else Label(text)


def _keys(table: Frame, columns: Sequence[str]) -> list[str]:
    """Each row's group as text; several columns are joined with ":"."""
    parts: list[Values] = [text_of(table[name]) for name in columns]
    return [":".join(each) for each in zip(*parts, strict=True)]
