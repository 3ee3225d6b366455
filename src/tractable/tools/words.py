"""Words that sentences are made of."""

import warnings
from collections.abc import Iterable

from tractable.tools.errors import TractableWarning


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "row"), counted(1234, "row")
    ('1 row', '1,234 rows')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Iterable[object]) -> str:
    """Names in quotes, the first twelve."""
    quoted = [repr(str(name)) for name in names]
    return ", ".join(quoted if len(quoted) <= 12 else [*quoted[:11], f"and {len(quoted) - 11} more"])


def tell(sentence: str) -> None:
    warnings.warn(sentence, TractableWarning, stacklevel=3)
