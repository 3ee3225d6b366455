"""The six kinds of model that the command line fits, and which options each kind takes."""

from pathlib import Path

from tractable.cli import explained, ladders, mixtures
from tractable.cli.readers import Arguments
from tractable.cli.task import Kind
from tractable.tools.errors import CheckpointError, SettingsError
from tractable.tools.words import nearest

KINDS = {
    kind.name: kind
    for kind in (
        explained.GLM, explained.MLP, mixtures.MIXTURE, mixtures.SEQUENCE_KIND, ladders.VAE, ladders.BELIEF,
    )
}  # fmt: skip
DEFAULT = explained.GLM.name


def named(name: str) -> Kind:
    """The kind of that name."""
    if name not in KINDS:
        raise unknown(name)
    return KINDS[name]


def compared(arguments: Arguments) -> Kind:
    """The kind named by --model, of those whose methods are set side by side, with options that it takes."""
    kind = named(arguments["model"])
    if kind.side_by_side is None:
        raise unknown(kind.name)
    check_options(kind, arguments)
    return kind


def unknown(name: str) -> SettingsError:
    """The error for a name that is no kind, or a kind that compare does not take."""
    compared = " or ".join(kind.name for kind in KINDS.values() if kind.side_by_side is not None)
    *others, last = [kind.name for kind in KINDS.values() if kind.side_by_side is None]
    return SettingsError(
        f"--model takes {compared}, and tractable fit takes {', '.join(others)} and {last} too; got {name!r}."
        f"{nearest(name, KINDS)}"
    )


def check_options(kind: Kind, arguments: Arguments) -> None:
    """Raises a SettingsError for the first given option that the kind does not take."""
    said = [option for option, value in arguments.items() if value not in (None, False)]
    for option in said:
        if option in kind.refusals:
            raise SettingsError(kind.refusals[option])
        owners = [each.name for each in KINDS.values() if option in each.options]
        if owners and kind.name not in owners:
            raise SettingsError(f"--{option} is for --model {' and '.join(owners)}; got --model {kind.name}.")


def kind_gone_on_with(folder: Path | None, saved: Arguments, name: str) -> Kind:
    """The kind of the saved run to resume; ``name`` is --model as typed, or the default."""
    if "method" not in saved:
        raise CheckpointError(f"{folder} is a comparison, which cannot be resumed; compare again.")
    kept = named(saved["problem"]["model"])
    if name not in (kept.name, DEFAULT):
        raise CheckpointError(f"{folder} is of --model {kept.name}; got --model {name}. Choose another --out.")
    return kept
