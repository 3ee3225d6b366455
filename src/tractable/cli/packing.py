"""The command that packs a table or an array into shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tractable.cli.explained import targets_in
from tractable.cli.speech import say
from tractable.cli.terminal import line
from tractable.data.packing import pack as packed
from tractable.data.shards import manifest_of
from tractable.data.sources import is_table, of_table
from tractable.tools.words import counted

ENCODING = ("formula", "family", "exclude", "weights", "exposure", "censored", "event", "until", "missing")


def pack(given: Mapping[str, Any]) -> None:
    """What ``tractable pack`` does, with every option by its name."""
    source, out = given["source"], given["out"]
    names = [str(name) for name in next(of_table(Path(source)).read(0, 1)).columns] if is_table(source) else []
    chosen = targets_in(given["columns"], names) if given["columns"] else None
    target = given["target"] and targets_in(given["target"], names)
    encoding = {name: given[name] for name in ENCODING if given[name]}
    progress = False if given["quiet"] else None
    packed(
        source, out, target=target or None, columns=chosen, seed=given["seed"] or 0,
        rows_per_shard=given["rows_per_shard"], progress=progress, **encoding,
    )  # fmt: skip
    about = manifest_of(out) or {}
    if given["quiet"]:
        line(out)
    else:
        say(f"{counted(about['rows'], 'row')} in random order, {counted(len(about['shards']), 'shard')}, in {out}")
