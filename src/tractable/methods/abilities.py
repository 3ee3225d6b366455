"""What methods can do beside learning, and the sentence of one that cannot: for errors, the docs and the contract."""

from collections.abc import Callable
from typing import NamedTuple

from tractable.methods.method import Method
from tractable.tools.errors import SettingsError


class Ability(NamedTuple):
    """Something that only some methods can do.

    Attributes:
        can: whether a method can.
        sentence: of one that cannot, with its name to be filled in.
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
    "devices=": Ability(
        lambda method: method.chained or method.sums_rows,
        "{name} runs on one device; got devices={devices}. Chains of methods that draw (NUTS, SGLD) and the rows of EM "
        "and CoordinateAscent lie over several: leave devices= out, or use one of those.",
    ),
    "extend()": Ability(
        lambda method: method.chained, "{name} draws no chains that could go on; run it anew with other settings."
    ),
}


def needs(ability: str, method: Method, **asked: object) -> None:
    """Raise the sentence of a method that lacks an ability.

    Raises:
        SettingsError: it does.
    """
    can, sentence = ABILITIES[ability]
    if not can(method):
        raise SettingsError(sentence.format(name=type(method).__name__, **asked))
