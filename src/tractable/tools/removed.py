"""Public names that were removed, and what to write in place of each; a name stays here for one version."""

INSTEAD: dict[str, str] = {}


def no_attribute(module: str, name: str) -> AttributeError:
    """The error of a name that a module does not have: a sentence with the new call, where the name was removed."""
    full = f"{module}.{name}"
    if full in INSTEAD:
        return AttributeError(f"{full} was removed in 0.2; {INSTEAD[full]}")
    return AttributeError(f"module '{module}' has no attribute '{name}'")
