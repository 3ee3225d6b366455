"""A table of the abilities that only some methods have, each with the error message for the methods without it."""

from collections.abc import Callable
from typing import NamedTuple

from jax.sharding import Mesh

from tractable.core.errors import SettingsError
from tractable.core.rows import Data
from tractable.engine.method import Method
from tractable.engine.placement import ONE_DEVICE, OneDevice
from tractable.engine.sharding import CHAINS, ROWS, over


class Ability(NamedTuple):
    """An ability that only some methods have.

    Attributes:
        can: whether a method has the ability.
        sentence: the error message for methods without the ability; ``{name}`` stands for the method's name.
    """

    can: Callable[[Method], bool]
    sentence: str


ABILITIES = {
    "draws=FOLDER": Ability(
        lambda method: method.chained, "{name} has no draws to stream; posterior.save(FOLDER) writes its result."
    ),
    "draws='moments'": Ability(
        lambda method: method.chained, "{name} draws no chains whose moments could be kept; leave draws= out."
    ),
    "mesh over chains": Ability(
        lambda method: method.chained,
        "{name} has no chains to spread over devices; a mesh with the axis 'row' alone spreads its rows over them.",
    ),
    "mesh over rows": Ability(
        lambda method: method.sums_rows,
        "{name} runs with its rows on one device. NUTS, HMC, Microcanonical, MALA, RandomWalk, SGLD, SGHMC, "
        "MeanField, FullRank, LowRank, BayesByBackprop, IVON, EM, OnlineEM, CoordinateAscent and the methods of "
        "ladders can spread their rows over several devices: leave mesh= out, or use one of these methods.",
    ),
    "extend()": Ability(
        lambda method: method.chained, "{name} draws no chains that could go on; run it again with other settings."
    ),
}


def needs(ability: str, method: Method, **asked: object) -> None:
    """Raise the ability's error sentence if the method lacks the ability.

    Raises:
        SettingsError: the method lacks the ability.
    """
    can, sentence = ABILITIES[ability]
    if not can(method):
        raise SettingsError(sentence.format(name=type(method).__name__, **asked))


def placement_of(
    method: Method, data: Data | None, mesh: int | str | Mesh | None, reproducible: bool = True
) -> OneDevice:
    """The placement of a run; raises a SettingsError if the method cannot use the axes of the mesh."""
    if mesh is None:
        return ONE_DEVICE
    chains = method.settings()["chains"] if method.chained else None
    placement = over(mesh, CHAINS if method.chained else ROWS, reproducible, chains)
    if not method.chained and placement.mesh.shape[CHAINS] > 1:
        needs("mesh over chains", method)
    if placement.divides_rows:
        needs("mesh over rows", method)
        if data is None:
            raise SettingsError("Expected rows to spread over the devices of mesh=; got no data. Leave mesh= out.")
    return placement
