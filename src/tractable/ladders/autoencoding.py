"""Variational and importance-weighted autoencoders: ladders learnt through reparameterised draws.

A ladder is a stack of stochastic layers with an inference network (``ladders.ladder``).
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from tractable.core.model import Kernel, Model, Objective, PyTree
from tractable.core.settings import Count, NotNegative, Positive, at_least
from tractable.diagnostics.learnt import Learnt
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.engine.method import Check, Outcome, Session
from tractable.ladders.amortised import DRAWS, Amortised, some_rows
from tractable.ladders.bounds import bounds
from tractable.ladders.checks import SIGMAS, trust_if
from tractable.ladders.ladder import Ladder
from tractable.ladders.pathwise import KL, Gradient, ImportanceGradient, autoencoding, check_costs, importance_weighted

# Names of results, in nats per row, of maximising the plain ELBO (beta=1, free_bits=0) for a while after the fit: the
# ELBO's gain, the gain's standard error, and the change of h's KL.
FOR_ITSELF = ("ELBO for itself", "ELBO for itself, error", "cost for itself")
MOST_LOST = 0.05  # nats per row of the ELBO that beta and free bits may cost before the check says caution


@dataclass(frozen=True, kw_only=True)
class AutoEncoding(Amortised):
    """Variational autoencoders: maximise the ELBO through reparameterised draws (Kingma & Welling 2014).

    The ELBO is the evidence lower bound, E_q[log p(x, h) − log q(h | x)]. The trace always estimates the ELBO, even
    where ``beta``, ``free_bits`` or ``warmup`` change the objective that is maximised
    (``ladders.pathwise.autoencoding`` has the equations).

    Args:
        samples: draws of h per row and step.
        gradient: "reparameterised"; or "path", which leaves out the score of q and is less noisy where q is near the
            posterior. "path" needs kl="sampled".
        kl: "closed" takes each layer's KL in closed form where that is correct; "sampled" estimates it from the draws.
        beta: > 0, the weight of the KL. With 1 the objective is the ELBO.
        free_bits: ≥ 0, nats of KL per hidden unit, averaged over a batch, that the objective does not count. This
            keeps units in use.
        warmup: epochs, ≤ ``epochs``, over which the weight of the KL grows from 0 to ``beta``.
        Other fields as for ``Amortised``.
    """

    label: ClassVar[str] = "autoencoding"
    pathwise: ClassVar[bool] = True
    samples: Count = 1
    gradient: Gradient = "reparameterised"
    kl: KL = "closed"
    beta: Positive = 1.0
    free_bits: NotNegative = 0.0
    warmup: Annotated[int, at_least(0)] = 0
    _removed: ClassVar = {
        "relaxation": "write NVIL(), VIMCO(), WakeSleep() or ReweightedWakeSleep() for a ladder of discrete layers, "
        "see docs/which-method.md."
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_costs(self.gradient, self.kl)
        self.check(self.warmup <= self.epochs, "warmup", f"at most the {self.epochs} epochs there are")

    def objective(self, ladder: Ladder, warmup: int | float | jax.Array = 0) -> Objective:
        return autoencoding(
            ladder, samples=self.samples, gradient=self.gradient, kl=self.kl, beta=self.beta,
            free_bits=self.free_bits, warmup=warmup,
        )  # fmt: skip

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        steps = tuned["steps"]
        warmup = steps * (self.warmup / self.epochs) if self.warmup else 0
        return ascend(self.objective(self.needed(model), warmup), self.optimiser(steps))

    def learn(self, session: Session) -> Outcome:
        outcome = super().learn(session)
        if outcome.interrupted or (self.free_bits == 0 and self.beta == 1):
            return outcome
        return outcome._replace(found=outcome.found | self._gain_of_plain_elbo(session, outcome.belief))

    def _gain_of_plain_elbo(self, session: Session, belief: Any) -> dict[str, float]:
        """How much the ELBO and the KL of h change when the plain ELBO is maximised for a tenth of the epochs more."""
        ladder, data = self.needed(session.model), session.data
        plain = replace(self, free_bits=0.0, beta=1.0, warmup=0, epochs=max(1, self.epochs // 10))
        key = jax.random.fold_in(session.key, 1)
        program, plan, shape, groups, tuned, keys = prepared = plain.prepare(session, key)
        before = {"theta": ladder.space.unravel(jnp.asarray(belief.position)), "phi": belief.network}
        first = prepared.begin(jax.tree.map(lambda a: jnp.asarray(a)[None], before))
        at = loop.Start(first)
        result = loop.run(loop.Loop(program, shape, plan), data, tuned, keys, at, groups, collect=())
        after = jax.tree.map(lambda a: a[0], result.states.position)
        first, second = (bounds(ladder, p, some_rows(data), key, DRAWS) for p in (before, after))
        gain = second.elbo - first.elbo
        cost = (second.costs - first.costs).sum(1)
        values = gain.mean(), gain.std() / math.sqrt(len(gain)), cost.mean()
        return {name: float(value) for name, value in zip(FOR_ITSELF, values, strict=True)}

    def checks(self, posterior: Learnt) -> list[Check]:
        checks = super().checks(posterior)
        if "ELBO for itself" in posterior.found:
            gain, error, cost = (posterior.found[name] for name in FOR_ITSELF)
            good = gain - SIGMAS * error <= MOST_LOST
            sentence = "nats a row that the ELBO gains when it alone is maximised for a while; the KL of h is then "
            sentence += f"{abs(cost):.2g} nats {'less' if cost < 0 else 'more'}"
            if not good:
                sentence += ": free_bits= or beta= cost the ELBO too much. Lower free_bits=, or take beta= nearer to 1"
            checks.append(Check("ELBO for itself", gain, trust_if(good), sentence))
        return checks


@dataclass(frozen=True, kw_only=True)
class ImportanceWeighted(Amortised):
    """Importance-weighted autoencoders: maximise the K-sample bound through its draws (Burda et al. 2016).

    The K-sample bound E log (1/K) Σ_k p(x, h_k) / q(h_k | x) is nearer to log p(x) than the ELBO is. The network q
    becomes an importance proposal for K draws, and is broader than the q of the ELBO.

    Args:
        samples: K ≥ 1 draws of h per row and step. With K = 1 the bound is the ELBO.
        gradient: the estimator of φ's gradient: "doubly" reparameterised (Tucker et al. 2019), or "reparameterised",
            whose signal-to-noise ratio falls as K grows (Rainforth et al. 2018).
        Other fields as for ``Amortised``.
    """

    label: ClassVar[str] = "importance-weighted"
    pathwise: ClassVar[bool] = True
    samples: Count = 5
    gradient: ImportanceGradient = "doubly"

    def objective(self, ladder: Ladder) -> Objective:
        return importance_weighted(ladder, samples=self.samples, gradient=self.gradient)
