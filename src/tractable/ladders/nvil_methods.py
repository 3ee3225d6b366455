"""NVIL and VIMCO, which learn ladders by the score function; layers may be of any kind, discrete ones included."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import jax

from tractable.core.model import Model, Objective, PyTree
from tractable.core.settings import Count, at_least
from tractable.engine.method import Rate
from tractable.ladders.amortised import Amortised
from tractable.ladders.ladder import Ladder
from tractable.ladders.score import Reductions, begin_baselines, check, nvil, vimco


@dataclass(frozen=True, kw_only=True)
class NVIL(Amortised):
    """Neural variational inference and learning (Mnih & Gregor 2014): maximise the ELBO by the score function.

    The score function's gradient weights ∇ log q(h | x) by a learning signal, log p(x, h) − log q(h | x). The fields
    below change the signals so that the gradient is less noisy.

    Args:
        samples: draws of h per row and step.
        centre: subtract the running mean of the learning signals.
        baseline: subtract a perceptron's prediction of the signal, made from the layer below ("layers") or from x
            ("input"); None for no baseline.
        normalise: divide signals by their running sd where that is above 1.
        local: leave out of each layer's signal the terms that do not depend on the layer.
        leave_one_out: subtract the mean over a row's other samples − 1 draws instead of the running mean.
        baseline_size: number of tanh units of a baseline's perceptron.
        Other fields as for ``Amortised``.

    Which of these lower the variance depends on the model; ``ladders.variance.gradient_variance`` measures it.
    """

    label: ClassVar[str] = "nvil"
    learning_rate: Rate = 1e-2
    samples: Count = 1
    centre: bool = True
    baseline: Literal["layers", "input", None] = "layers"
    normalise: bool = True
    local: bool = True
    leave_one_out: bool = False
    baseline_size: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.samples > 1 or not self.leave_one_out, "samples", "a whole number ≥ 2")

    @property
    def switches(self) -> Reductions:
        """The fields that say how the learning signals are transformed."""
        return Reductions(self.centre, self.baseline, self.normalise, self.local, self.leave_one_out)

    def needed(self, model: Model) -> Ladder:
        ladder = super().needed(model)
        check(ladder, self.switches, self.samples)
        return ladder

    def initial(self, ladder: Ladder, key: jax.Array, rows: PyTree) -> dict[str, PyTree]:
        ladder_key, baseline_key = jax.random.split(key)
        params = super().initial(ladder, ladder_key, rows)
        if self.baseline is None:
            return params
        return params | {"psi": begin_baselines(ladder, baseline_key, self.baseline_size, baseline=self.baseline)}

    def objective(self, ladder: Ladder) -> Objective:
        return nvil(ladder, samples=self.samples, **self.switches._asdict())


@dataclass(frozen=True, kw_only=True)
class VIMCO(Amortised):
    """Variational inference for Monte Carlo objectives (Mnih & Rezende 2016): maximise the K-sample bound.

    Each draw's baseline is computed from the other draws, so there are no baselines to learn.

    Args:
        samples: K ≥ 2 draws of h per row and step; the bound is tighter with more draws.
        Other fields as for ``Amortised``.
    """

    label: ClassVar[str] = "vimco"
    learning_rate: Rate = 1e-2
    samples: Annotated[int, at_least(2)] = 5

    def objective(self, ladder: Ladder) -> Objective:
        return vimco(ladder, samples=self.samples)
