"""Reads the left side of a formula: one target, several targets, or a censored target."""

import re

from tractable.core.errors import DataError

NAME = r"\s*(`[^`]+`|[\w.]+)\s*"
WAYS = {  # patterns for a censored target, and what the second column holds
    rf"{NAME}\|\s*cens\({NAME}\)\s*": "status",  # brms
    rf"\s*censored\({NAME},{NAME}\)\s*": "status",  # bambi
    rf"\s*Surv\({NAME},{NAME}\)\s*": "event",  # R's survival
    rf"\s*Surv\({NAME},{NAME},\s*type\s*=\s*[\"']interval2[\"']\s*\)\s*": "upper",
}


def multiple_targets(text: str) -> tuple[str, tuple[str, ...]]:
    """The formula with only the first of several targets before its ~, and all targets; () if it names only one.

    >>> multiple_targets("mvbind(height, weight) ~ age")
    ('height ~ age', ('height', 'weight'))
    """
    left, mark, right = text.partition("~")
    found = re.fullmatch(rf"\s*mvbind\(({NAME}(?:,{NAME})*)\)\s*", left)  # brms
    if mark and found:
        names = tuple(name.strip().strip("`") for name in found.group(1).split(","))
        return f"{found.group(1).split(',')[0].strip()} ~{right}", names
    if mark and "mvbind" in left:
        raise DataError(
            f"{left.strip()!r} of the formula cannot be read: write several targets as 'mvbind(a, b) ~ x'; none of "
            "them may be censored."
        )
    return text, ()


def response(text: str) -> tuple[str, tuple[str, str]]:
    """The formula with one column before its ~, and the kind and name of the column that says which rows are censored.

    Kind and name are "" if no row is censored.

    >>> response("days | cens(left) ~ age")
    ('days ~ age', ('status', 'left'))
    >>> response("Surv(days, died) ~ age")
    ('days ~ age', ('event', 'died'))
    """
    left, mark, right = text.partition("~")
    for way, what in WAYS.items():
        if found := re.fullmatch(way, left):
            value, other = found.groups()
            return f"{value} ~{right}", (what, other.strip("`"))
    if mark and re.search(r"\b(cens|censored|Surv)\s*\(", left):
        raise DataError(
            f"{left.strip()!r} of the formula cannot be read: write 'days | cens(status)' or 'censored(days, status)', "
            "with status none, right or left; 'Surv(days, event)' with event 1 if it was observed; or 'Surv(lower, "
            'upper, type="interval2")\' with bounds.'
        )
    return text, ("", "")
