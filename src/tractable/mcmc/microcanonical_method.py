"""The method Microcanonical."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from tractable.core import scaling
from tractable.core.errors import ModelError
from tractable.core.model import Kernel, Model, PyTree, whole
from tractable.core.settings import Positive, Share
from tractable.diagnostics.learnt import Learnt, Predicted
from tractable.diagnostics.report import check_bias
from tractable.engine.method import Check
from tractable.engine.search import curvature
from tractable.mcmc.hamiltonian_methods import NUTS, ROOT, NoHalving, divergences
from tractable.mcmc.microcanonical import microcanonical, variance_ratios

MEASURED_AT = 8  # number of draws over which the curvature is averaged for the report
DENSE = 400  # largest number of parameters for which the curvature is measured


@dataclass(frozen=True, kw_only=True)
class Microcanonical(NUTS):
    """Microcanonical Langevin Monte Carlo follows a particle of constant speed, whose direction the gradient turns.

        dθ = √(d − 1) L u dt,   du = (I − u uᵀ) Lᵀ∇log π(θ) / √(d − 1) dt,   |u| = 1

    Here θ has d ≥ 2 numbers, u is a direction (d,), and L Lᵀ is the inverse mass matrix (d, d), which the warm-up finds
    as for NUTS. The trajectories have a mean time that is fixed, so they need no search for a U-turn, and a step of
    constant speed stays stable where gradients are large. With the accept step the method is MAMS (Robnik, Cohn-Gordon
    & Seljak 2025) and draws from exactly the posterior; without it, it is MCLMC (Robnik, De Luca, Silverstein & Seljak
    2023), and its bias is predicted and reported.

    Args:
        chains, draws, warmup, thin: as for every method that draws.
        adjusted: accept or reject each trajectory. If False, the sds have a bias of second order in the step size.
        target: the mean acceptance probability for which the step size is tuned, if adjusted.
        bias_tolerance: the relative error of sds for which the step size is tuned, if not adjusted.
        length: the mean time of a trajectory, in the time of HMC, in which a standard normal has the period 2π.
        dense: adapt a full mass matrix instead of a diagonal one.
        max_depth: a trajectory takes at most 2^max_depth − 1 gradients.

    >>> import jax.numpy as jnp, tractable as tr
    >>> model = tr.Model.from_log_density(lambda x: -0.5 * jnp.sum((x / jnp.array([1.0, 9.0])) ** 2), jnp.zeros(2))
    >>> posterior = tr.infer(model, None, tr.Microcanonical(), progress=False)
    >>> [round(float(sd)) for sd in posterior.sd()]
    [1, 9]
    """

    label: ClassVar[str] = "microcanonical"
    cross_check_method: ClassVar[str] = "nuts"
    target: Share = 0.9
    max_halvings: NoHalving = None
    adjusted: bool = True
    bias_tolerance: Share = 0.05
    length: Positive = 1.6

    def needed(self, model: Model) -> Any:
        if model.space.size < 2:
            raise ModelError(
                "Microcanonical expects at least 2 parameters, since a particle of constant speed cannot turn in one "
                "dimension; this model has 1. Use NUTS()."
            )
        return super().needed(model)

    def aim(self, size: int) -> float:
        """The acceptance probability for which the step size is tuned.

        Without the accept step it is that of single steps at the tolerated energy error. On a standard normal, a step
        of size ε makes the sds ε²/24 too large, and its energy error has the variance v = ε⁶/144 per dimension. The
        mass matrix leaves directions of half the variance, whose bias is up to four times as large, so ε²/24 is a
        quarter of ``bias_tolerance``. The acceptance is E min(1, exp(−N(0, d v))).
        """
        if self.adjusted:
            return self.target
        variance = size * 1.5 * self.bias_tolerance**3
        return float(0.5 + 0.5 * special.erfcx(math.sqrt(variance / 2)))

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        step, mass, most = tuned["step_size"], tuned["inverse_mass"], 2**self.max_depth - 1
        return microcanonical(density, step, mass, self.length, self.adjusted, most)

    def predicted_bias(self, posterior: Learnt) -> Predicted | None:
        """The predicted bias of every marginal sd without the accept step; None with it, or if it is unknown.

        It is that of a normal target with the curvature of the posterior, averaged over draws (``variance_ratios``).
        For more than 400 parameters the curvature λ is not measured; it is then taken to be the same in all directions,
        where the variance of the energy errors per dimension is (ε² λ)³/144.
        """
        chains, belief, size = posterior.run_state, posterior.belief, posterior.model.space.size
        if self.adjusted or chains is None or belief.positions is None or not belief.count:
            return None
        step, energy = float(chains.tuned["step_size"]), float(np.mean(belief.info["energy"]))
        mean = float(np.cbrt(144 * energy))  # ε² λ of the energy errors
        if size > DENSE:
            inflation = np.full(size, np.sqrt(1 + mean / 12) - 1)
            return Predicted(np.full(size, np.nan), np.full(size, np.nan), inflation, float(inflation[0]))
        flat = belief.positions.reshape(-1, size)
        places = flat[np.linspace(0, len(flat) - 1, MEASURED_AT).astype(int)]
        batch = None if posterior.data is None else whole(posterior.data.arrays())
        measured = [np.asarray(curvature(posterior.model, jnp.asarray(p), batch, True, True)) for p in places]
        mass = scaling.LowRank(*(chains.tuned[name] for name in ROOT))
        root = np.asarray(jax.vmap(lambda e: scaling.multiply(mass, e), 0, 1)(jnp.eye(size)), np.float64)
        values, basis = np.linalg.eigh(root.T @ np.mean(measured, 0, np.float64) @ root)
        values = np.maximum(values, 1e-6 * values.max())
        ratios = variance_ratios(step, values)
        to_parameters = root @ basis
        covariance, target = ((to_parameters * v) @ to_parameters.T for v in (ratios / values, 1 / values))
        inflation = np.sqrt(np.diag(covariance) / np.diag(target)) - 1
        worst = max(np.abs(np.sqrt(np.maximum(ratios, 0)) - 1).max(), np.sqrt(1 + mean / 12) - 1)
        return Predicted(covariance, target, inflation, float(worst))

    def checks(self, posterior: Learnt) -> list[Check]:
        """The checks of NUTS, without those of quantities that this method does not have."""
        foreign = ("E-BFMI",) if self.adjusted else ("E-BFMI", "divergences", "acceptance")
        out = [check for check in super().checks(posterior) if check.name not in foreign]
        if self.adjusted:
            return out
        out.append(divergences(posterior, "lower bias_tolerance, or use adjusted=True"))
        if (predicted := posterior.predicted_bias) is not None:
            many = posterior.model.space.size > DENSE
            where = "in the mean over directions" if many else "in the worst direction"
            sentence = f"predicted relative error of an sd, {where}, from the step size; adjusted=True has none"
            check = check_bias(predicted.worst, self.bias_tolerance, sentence)
            # A mean over directions says little about the worst one.
            out.append(check._replace(verdict="caution") if many and check.verdict == "trust" else check)
        return out
