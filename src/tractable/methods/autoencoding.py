"""Ladders of normal layers, climbed through their draws: variational autoencoders."""

from dataclasses import dataclass
from typing import ClassVar

from tractable.amortised.pathwise import autoencoding
from tractable.methods.amortised import Amortised
from tractable.models.ladder import Ladder
from tractable.objectives import Objective


@dataclass(frozen=True, kw_only=True)
class AutoEncoding(Amortised):
    """The variational autoencoder's way: the ELBO, climbed through reparameterised draws (Kingma & Welling 2014).

    Args:
        samples: draws of h a row and step.
        Others as for ``Amortised``.
    """

    label: ClassVar[str] = "autoencoding"
    pathwise: ClassVar[bool] = True
    samples: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole("samples")

    def objective(self, ladder: Ladder) -> Objective:
        return autoencoding(ladder, samples=self.samples)
