"""IVON (variational online Newton): a mean field over a network's weights, learnt by Newton steps."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import jax

from tractable.core.batches import Plan
from tractable.core.model import Kernel, Model, Objective, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Positive
from tractable.engine.method import Outcome, Session, on_all_rows
from tractable.networks.bayes_by_backprop_method import BayesByBackprop
from tractable.networks.ivon import ivon, partial_log_joint, phi_of

LEAST, EPOCHS = 100, 50


@dataclass(frozen=True, kw_only=True)
class IVON(BayesByBackprop):
    """IVON (Shen et al. 2024): the independent normals of Bayes by Backprop, by a Newton step instead of Adam's.

    The bound, the start and the checks are those of ``BayesByBackprop``. The update scales the steps by the precisions
    of q itself, so it keeps two running averages per weight, half of what Adam keeps for μ and ρ, and has no softplus.

    Args:
        learning_rate: > 0, a share of a full Newton step. It falls from stage to stage.
        sd: > 0, starting σ of every weight with start="random", or where there are more than 5,000 weights. A small σ
            also makes the first steps small.
        forget: weight in (0, 1) of one step in the running precisions; None takes 1/(100 + 50 N/n), which is about 50
            epochs of batches of n of the N rows, so that the noise of batches moves a precision by about 10 %.
        Other fields as for ``BayesByBackprop``.
    """

    label: ClassVar[str] = "ivon"
    kl_weights: Literal["uniform"] = "uniform"
    noise: Literal["shared"] = "shared"
    optimizer: Literal["newton"] = "newton"
    learning_rate: Positive = 0.1
    forget: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(self.forget is None or self.forget < 1, "forget", "a number in (0, 1), or None")

    def learn(self, session: Session) -> Outcome:
        sized = replace(self, forget=self.forget or rate_of_forgetting(self.plan(session.data)))
        return super(IVON, sized).learn(session)

    def objective(self, model: Model, rows: PyTree, tuned: PyTree) -> Objective:
        objective = super().objective(model, rows, tuned)
        return objective._replace(value=lambda noise, phi, batch: objective.value(noise, phi_of(phi), batch))

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        target = partial_log_joint(model)
        target = on_all_rows(target, rows) if self.batch_size is None else target
        return ivon(model, tuned["learning_rate"], forget=self.forget or 1e-3, samples=self.samples or 1, target=target)

    def corrects(self, model: Model, data: Data | None) -> bool:
        return False

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        trees = jax.vmap(model.space.unravel)
        return {"mean": trees(means), "precision": trees(1 / sds**2)}

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        return super().flat(model, phi_of(phi))


def rate_of_forgetting(plan: Plan | None) -> float:
    """The weight of one step in the precisions, for batches of n of N rows: 1/(LEAST + EPOCHS N/n).

    A batch estimates a precision with a relative error of about √(N/n), where the rows' gradients make most of it. Over
    EPOCHS epochs this falls to 10 %. Without batches the error comes from the noise of the weights alone, and falls to
    10 % over LEAST steps.
    """
    return 1 / (LEAST + EPOCHS * (1 if plan is None else plan.size / plan.batch_size))
