"""Rejection sampling from the prior: independent and exact draws for small problems."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.core.errors import ModelError, RunError
from tractable.core.model import Kernel, Model, PyTree, counted_log_likelihoods
from tractable.core.rows import Data
from tractable.core.settings import Range, Share, at_least, is_number
from tractable.core.shared import compiled
from tractable.diagnostics.belief import Belief, Cost
from tractable.diagnostics.evidence import QUANTILE, Evidence, size_check
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks
from tractable.engine.drawing import Drawing, WarmUp
from tractable.engine.method import Program, Session
from tractable.engine.search import maximum
from tractable.mcmc.rejection import rejection

SURVEY = 1 << 14  # number of prior draws that forecast the acceptance rate and test the bound
SLACK = 1e-3  # nats (natural log units) added to a maximum that is used as bound; it costs a thousandth of the draws


@dataclass(frozen=True, kw_only=True)
class Rejection(Drawing):
    """Rejection sampling: draw θ from the prior, and accept it if log u < log p(y|θ) − log M, with u ~ U(0, 1).

    Args:
        chains, draws: as for every method that draws; all draws are independent.
        log_bound: log M ≥ sup_θ log p(y|θ). None searches for the maximum likelihood, and tests it on 16,384 prior
            draws. A draw that exceeds the bound raises an error that names the draw.
        least_acceptance: the run raises an error if it forecasts a smaller share of accepted draws.

    The expected share of accepted draws is p(y)/M, so the run also estimates the evidence. Do not use it for peaked
    posteriors: their share is too small.
    """

    label: ClassVar[str] = "rejection"
    exact: ClassVar[bool] = True
    log_bound: Annotated[float | int, Range("a finite number of nats", is_number)] | None = None
    least_acceptance: Share = 1e-6
    warmup: Annotated[int, at_least(0)] = 0

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        def sample(key: jax.Array) -> jax.Array:
            return model.position_of(model.sample_prior(key))

        limit = int(min(2**30, 20 / self.least_acceptance))
        return rejection(sample, lambda p: _log_likelihood(model, rows, p), tuned["log_bound"], limit=limit)

    def starts(self, session: Session, key: jax.Array) -> jax.Array:
        """Zeros, since rejection needs no starting points."""
        return jnp.zeros((self.chains, session.model.space.size))

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        model, data = session.model, session.data
        if model.prior_is_callable or model.likelihood is None or data is None:
            raise ModelError(
                "Rejection draws from the prior and accepts by the likelihood, so it needs a Model with a prior of "
                "distributions, a likelihood, and data. For a log density alone use NUTS."
            )
        draws, values = survey(model, data.arrays(), jax.random.fold_in(session.key, 1))
        values = np.nan_to_num(np.asarray(values), nan=-np.inf)
        bound = self.log_bound
        if bound is None:
            best = np.argsort(values)[-4:]
            maxima = [maximum(model, data, draws[i], prior=False) for i in best]
            bound = max(max(m.value for m in maxima), float(values.max())) + max(SLACK, 1e-6 * abs(float(values.max())))
        if values.max() > bound:
            raise RunError(_excess_message(model, draws[int(values.argmax())], float(values.max() - bound)))
        forecast = float(np.exp(values - bound).mean())
        if forecast < self.least_acceptance:
            raise RunError(
                f"Rejection would accept about {forecast:.1e} of its draws, as estimated by {SURVEY} prior draws. This "
                f"is less than least_acceptance = {self.least_acceptance:g}: the posterior is too narrow. Use NUTS."
            )
        tuned = {"log_bound": jnp.asarray(bound, jnp.result_type(float))}
        found = {"log_bound": float(bound), "forecast acceptance": forecast}
        return WarmUp(positions, tuned, found, 1)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return Cost(0.0, float(np.sum(belief.info["tries"], dtype=np.float64)))

    def watch(self, info: dict[str, np.ndarray], states: PyTree, session: Session) -> None:
        excess = np.asarray(states.excess)
        if excess.max() > 0:
            chain = int(excess.argmax())
            raise RunError(_excess_message(session.model, states.worst[chain], float(excess.max())))
        if info["gave_up"].any():
            raise RunError(
                f"A draw was given up after {int(info['tries'].max()):,} rejections: the acceptance rate is below "
                f"{1 / info['tries'].max():.1e}. Use NUTS, or a smaller log_bound if you gave one."
            )

    def checks(self, posterior: Learnt) -> list[Check]:
        tries = float(posterior.info["tries"].sum())
        accepted = posterior.info["tries"].size
        rate = accepted / tries
        known = evidence(posterior.info, posterior.found["log_bound"])
        return [
            Check("bound", float(posterior.info["excess"].max()), "trust",
                  "largest log p(y|θ) − log M of a proposal; if it were above 0, the run would end with an error"),
            Check("acceptance", rate, "trust",
                  f"share of draws accepted; log evidence {known.estimate:.4f} ± {known.standard_error:.4f}"),
            *[c for c in chain_checks(posterior) if c.name in ("R-hat", "bulk ESS")],
        ]  # fmt: skip


def evidence(info: dict[str, np.ndarray], log_bound: float) -> Evidence:
    """The log evidence, log p(y) = log M + log(share of draws accepted)."""
    tries, accepted = float(info["tries"].sum()), info["tries"].size
    rate = accepted / tries
    estimate, error = log_bound + float(np.log(rate)), float(np.sqrt((1 - rate) / accepted))
    check = size_check(float(accepted), 100.0, 20.0, f"draws accepted, of {int(tries):,} from the prior", "accepted")
    bounds = estimate - QUANTILE * error, estimate + QUANTILE * error
    return Evidence(estimate, error, *bounds, [check], method="rejection")


@compiled("model")
def survey(model: Model, rows: PyTree, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(draw, d) draws of the prior and (draw,) their log likelihoods, ``SURVEY`` of them."""

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        position = model.position_of(model.sample_prior(key))
        return position, _log_likelihood(model, rows, position)

    return jax.lax.map(one, jax.random.split(key, SURVEY), batch_size=256)


def _log_likelihood(model: Model, rows: PyTree, position: jax.Array) -> jax.Array:
    return jnp.sum(counted_log_likelihoods(model, model.params(position), rows))


def _excess_message(model: Model, position: jax.Array, excess: float) -> str:
    """The error message for a position whose log likelihood is above the bound."""
    params = jax.tree.map(lambda a: np.asarray(a).tolist(), model.params(position))
    return (
        f"log_bound is no bound: at {params} the log likelihood exceeds log_bound by {excess:.4g}, so accepted draws "
        "would not follow the posterior. Raise log_bound by at least so much, or leave it out: it is then searched for."
    )
