"""IVON (variational online Newton): a mean field over a network's weights, learnt by Newton steps."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax

from tractable.core.model import Kernel, Model, Objective, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Positive
from tractable.engine.method import on_all_rows
from tractable.networks.bayes_by_backprop_method import BayesByBackprop
from tractable.networks.ivon import ivon, partial_log_joint, phi_of


@dataclass(frozen=True, kw_only=True)
class IVON(BayesByBackprop):
    """IVON (Shen et al. 2024): the independent normals of Bayes by Backprop, by a Newton step instead of Adam's.

    The bound, the start and the checks are those of ``BayesByBackprop``. Steps are scaled by the sds of q, which are
    learnt from the same gradients. With one draw a step takes about 1.35 times as long as one of Adam.
    Targets should have about unit scale: with others the climb ends early, and the report rejects the result.

    Args:
        learning_rate: > 0, a share of a full Newton step, which falls from stage to stage; or a schedule of it. None
            takes 0.5 where a step has 4 draws by default, and 0.1 elsewhere.
        sd: > 0, starting σ of every weight with start="random", or where there are more than 5,000 weights. A small σ
            also makes the first steps small.
        forget: weight in (0, 1) of one step in the sds; None takes 1/(100 + 50 N/n), which is about 50 epochs
            of batches of n of the N rows, and 1/(100 + 250 N/n) for more than 5,000 weights.
        Other fields as for ``BayesByBackprop``.
    """

    label: ClassVar[str] = "ivon"
    default_rates: ClassVar[tuple[float, float]] = (0.5, 0.1)
    kl_weights: Literal["uniform"] = "uniform"
    noise: Literal["shared"] = "shared"
    optimizer: Literal["newton"] = "newton"
    forget: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.forget is None or self.forget < 1, "forget", "a number in (0, 1), or None")

    def objective(self, model: Model, rows: PyTree, tuned: PyTree) -> Objective:
        objective = super().objective(model, rows, tuned)
        return objective._replace(value=lambda noise, phi, batch: objective.value(noise, phi_of(phi), batch))

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        target = partial_log_joint(model)
        target = on_all_rows(target, rows) if self.batch_size is None else target
        return ivon(model, self.rate(tuned), forget=self.forget, samples=self.samples or 1, target=target)

    def corrects(self, model: Model, data: Data | None) -> bool:
        return False

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        trees = jax.vmap(model.space.unravel)
        return {"mean": trees(means), "sd": trees(sds)}

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        return super().flat(model, phi_of(phi))
