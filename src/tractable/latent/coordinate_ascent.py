"""Variational Bayes by coordinate ascent, for models whose q(θ) has a closed form given q(z)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import tree
from tractable.core.clock import work_time
from tractable.core.errors import ModelError
from tractable.core.latent import LatentModel
from tractable.core.model import Model, PyTree
from tractable.core.rows import Data
from tractable.core.settings import Count
from tractable.core.shared import compiled
from tractable.diagnostics.belief import Draws, draws_key
from tractable.diagnostics.learnt import Learnt
from tractable.engine.method import Check, Outcome, Session
from tractable.latent.conjugate_models import ConjugateModel, conjugate_model
from tractable.latent.conjugate_variational import Conjugate
from tractable.latent.em import expected
from tractable.latent.em_climb import Reached
from tractable.latent.em_method import EM, choose_best, starting_points
from tractable.latent.online_em import OnlineEM, run_epochs


@dataclass(frozen=True, kw_only=True)
class CoordinateAscent(EM):
    """q(θ) q(z) for a conjugate-exponential model: the optimum of each factor given the other has a closed form.

        q(z) ∝ exp E_q(θ)[log p(x, z | θ)],   q(θ) ∝ p(θ) exp E_q(z)[log p(x, z | θ)]

    These are EM's steps on the same additive statistics, with the parameters λ of q(θ) in place of θ. The lower bound
    on the evidence never falls. The result has sds; they are too small where θ and z depend on each other, since q(θ)
    q(z) ignores that. Attias 1999; Bishop 2006, chapter 10.

    Args:
        batch_size: rows per step; None takes all rows. With batches this is stochastic variational inference (Hoffman
            et al. 2013): natural-gradient steps λ ← (1 − γ_t) λ + γ_t λ̂_t with γ_t = (1 + t)^−0.6, for ``epochs``
            passes; ``steps`` and ``tolerance`` are then unused.
        epochs: passes over the data; used only with batches.
        draws: number of independent draws of θ from q that the posterior holds.
        Other fields are as for ``EM``; ``prior``, ``inner`` and ``optimizer`` are unused here.

    The model must have a q(θ) in closed form: ``models.bayesian_gaussian_mixture``,
    ``models.bayesian_linear_regression``, ``models.normal_gamma``, or your own ``ConjugateModel``. Every step reads
    rows on file once.
    """

    label: ClassVar[str] = "cavi"
    point: ClassVar[bool] = False
    independent: ClassVar[bool] = True
    batch_size: Count | None = None
    epochs: Count = 20
    draws: Count = 4000

    def needed(self, model: Model) -> Any:
        conjugate = conjugate_model(model)
        if conjugate is not None:
            return conjugate
        raise ModelError(
            f"{type(self).__name__} needs closed forms of q(θ), which this model lacks: use MeanField, or one of "
            "models.bayesian_gaussian_mixture, models.bayesian_linear_regression, models.normal_gamma."
        )

    def exact(self, model: Any) -> bool:
        return True

    def halves(self, model: Any) -> tuple[Callable, Callable]:
        return model.conjugate.e_step, model.conjugate.m_step

    def log_prior(self, model: Any) -> Callable:
        return _minus(model.conjugate.divergence)

    def begin(self, model: Any, data: Data, key: jax.Array) -> PyTree:
        return starting_points(model.first, data, key, self.starts)

    def learn(self, session: Session) -> Outcome:
        model, data, _, reached, seconds = (self.climb if self.batch_size is None else self.follow)(session)
        start_time = work_time()
        best, figures = choose_best(reached, model, data)
        q = jax.tree.map(lambda a: a[best], reached.theta)
        positions = _draw_positions(model, q, draws_key(session.key), self.draws)
        figures["elbo"] = figures["objective"]
        figures |= {f"lambda {i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(q))}
        figures["climb"] = [one[np.isfinite(one)].tolist() for one in reached.trace]
        seconds |= {"drawing": work_time() - start_time}
        return Outcome(Draws(positions=np.asarray(positions)[None]), figures, seconds, reached.interrupted)

    def follow(self, session: Session) -> tuple[Any, Data, Any, Reached, dict[str, float]]:
        """What ``climb`` returns, but by minibatches; one exact step over all rows then improves each q at its end."""
        model, data = self.needed(session.model), session.data
        start_time = work_time()
        first = self.begin(model, data, session.key)
        online = OnlineEM(batch_size=self.batch_size or 1, epochs=self.epochs, starts=self.starts, average=False)
        ends, _, interrupted = run_epochs(online, over_lambda(model.conjugate), session, first, None, session.key)
        unravel = tree.raveller(jax.tree.map(lambda a: a[0], first))[1]
        bounds, qs, values = [], [], []
        for end in jnp.asarray(ends):
            value, improved = _pass(model.conjugate, unravel(end), data, self.chunk)
            bounds.append([value])
            qs.append(improved)
            values.append(_pass(model.conjugate, improved, data, self.chunk)[0])
        q = jax.tree.map(lambda *leaves: jnp.stack(leaves), *qs)
        reached = Reached(q, np.array(values), np.array(bounds), interrupted)
        return model, data, None, reached, {"climbing": work_time() - start_time}

    def checks(self, posterior: Learnt) -> list[Check]:
        out = [
            c if c.name != "largest fall" else c._replace(sentence="nats of the bound lost in one step; none should be")
            for c in super().checks(posterior)
        ]
        known = "log p(x) is at least this, in nats; q(θ) q(z) leaves out how θ and z depend on each other"
        return [*out, Check("bound", posterior.found["objective"], "trust", known)]


def _minus(function: Callable) -> Callable:
    return lambda q: -function(q)


def _pass(conjugate: Conjugate, q: PyTree, data: Data, chunk: int) -> tuple[float, PyTree]:
    """The lower bound (ELBO) of q on all rows, and the optimal q given the expected statistics."""
    sums = expected(conjugate.e_step, q, data, chunk)
    better = conjugate.m_step(sums.statistics)
    bound = float(sums.log_likelihood) - float(conjugate.divergence(q))
    return bound, jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), better, q)


@functools.lru_cache(maxsize=128)
def over_lambda(conjugate: Conjugate) -> LatentModel:
    """A model with θ = λ and log prior −KL, so that online EM on it is stochastic variational inference."""
    return LatentModel.from_steps(
        conjugate.e_step, conjugate.m_step, conjugate.predictive_log_prob, conjugate.prior,
        prior=_minus(conjugate.divergence),
    )  # fmt: skip


@compiled("model", "count")
def _draw_positions(model: ConjugateModel, q: PyTree, key: jax.Array, count: int) -> jax.Array:
    """(count, d) independent draws of θ from q, unconstrained."""
    theta = model.conjugate.sample(key, q, count)
    return jax.vmap(model.position_of)(theta)
