"""Ladders climbed through their draws: variational autoencoders and importance-weighted ones."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax

from tractable.checks.learnt import Learnt
from tractable.core import Kernel, Model, Objective
from tractable.kernels.ascend import ascend
from tractable.methods.amortised import Amortised
from tractable.methods.method import Check
from tractable.models.ladder import Ladder, ladder_of
from tractable.objectives.pathwise import (
    KL,
    Gradient,
    ImportanceGradient,
    autoencoding,
    check_costs,
    importance_weighted,
)
from tractable.objectives.relaxed import check_relaxation
from tractable.tools.settings import Count, NotNegative, Positive, at_least

PyTree = Any


@dataclass(frozen=True, kw_only=True)
class AutoEncoding(Amortised):
    """The variational autoencoder's way: the ELBO, climbed through reparameterised draws (Kingma & Welling 2014).

    The trace is an estimate of the ELBO, whatever ``beta``, ``free_bits`` and ``warmup`` make of what is climbed
    (``objectives.pathwise.autoencoding`` has the equations); with ``relaxation`` it is the relaxed model's.

    Args:
        samples: draws of h a row and step.
        gradient: "reparameterised"; or "path", without the score of q, for kl="sampled": quieter where q is near the
            posterior.
        kl: "closed", what a layer pays in closed form where that is right; or "sampled".
        beta: > 0, weight of the KL. 1 is the ELBO.
        free_bits: ≥ 0, nats a hidden unit that cost nothing, on the mean of a batch: keeps units from being given up.
        warmup: epochs, ≤ ``epochs``, over which the weight of the KL grows from 0 to ``beta``.
        relaxation: τ > 0, at which discrete layers (Bernoulli, categorical) are drawn relaxed: what is climbed is then
            the ELBO of a relaxed model, biased for the discrete one; ½ to 1 is usual. What is reported at the end is
            of the discrete one. None refuses discrete layers.
        Others as for ``Amortised``.
    """

    label: ClassVar[str] = "autoencoding"
    pathwise: ClassVar[bool] = True
    samples: Count = 1
    gradient: Gradient = "reparameterised"
    kl: KL = "closed"
    beta: Positive = 1.0
    free_bits: NotNegative = 0.0
    warmup: Annotated[int, at_least(0)] = 0
    relaxation: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_costs(self.gradient, self.kl)
        self.check(self.warmup <= self.epochs, "warmup", f"at most the {self.epochs} epochs there are")

    def needed(self, model: Model) -> Ladder:
        ladder = ladder_of(model)
        if self.relaxation is None or ladder is None:
            return super().needed(model)
        check_relaxation(ladder, self.relaxation)
        return ladder

    def objective(self, ladder: Ladder, warmup: int | float | jax.Array = 0) -> Objective:
        return autoencoding(
            ladder, samples=self.samples, gradient=self.gradient, kl=self.kl, beta=self.beta,
            free_bits=self.free_bits, warmup=warmup, relaxation=self.relaxation,
        )  # fmt: skip

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        steps = tuned["steps"]
        warmup = steps * (self.warmup / self.epochs) if self.warmup else 0
        return ascend(self.objective(self.needed(model), warmup), self.optimiser(steps))

    def checks(self, posterior: Learnt) -> list[Check]:
        found = super().checks(posterior)
        if self.relaxation is None:
            return found
        sentence = (
            "temperature of the relaxed layers, whose ELBO was climbed: its gradient is biased for the discrete ones, "
            "which the bounds here are of. Compare with NVIL or ReweightedWakeSleep, or a lower temperature"
        )
        return [*found, Check("relaxation", float(self.relaxation), "caution", sentence)]


@dataclass(frozen=True, kw_only=True)
class ImportanceWeighted(Amortised):
    """The K-sample bound, climbed through its draws: importance-weighted autoencoders (Burda et al. 2016).

    A tighter bound for θ. φ becomes a proposal of K draws, broader than what an ELBO makes of it.

    Args:
        samples: K ≥ 1 draws of h a row and step; 1 is the ELBO.
        gradient: of φ: "doubly" reparameterised (Tucker et al. 2019), or "reparameterised", whose signal sinks in its
            noise as K grows (Rainforth et al. 2018).
        Others as for ``Amortised``.
    """

    label: ClassVar[str] = "importance-weighted"
    pathwise: ClassVar[bool] = True
    samples: Count = 5
    gradient: ImportanceGradient = "doubly"

    def objective(self, ladder: Ladder) -> Objective:
        return importance_weighted(ladder, samples=self.samples, gradient=self.gradient)
