"""The methods HMC and NUTS, with BlackJAX's kernels and warm-up."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import RunError
from tractable.core.model import Kernel, Model, PyTree, log_density
from tractable.core.settings import Count, Range, Share, is_number
from tractable.core.shared import COMPILE_FAST, compiled
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks, check_share
from tractable.diagnostics.shape import was_compared
from tractable.engine import run as loop
from tractable.engine.drawing import Drawing, WarmUp
from tractable.engine.method import Check, Program, Session
from tractable.engine.stopping import wait_for
from tractable.mcmc import hamiltonian

REMEDY = "raise target, such as target=0.95; if some remain, write each parameter of a learnt scale as mu + tau * u"
FEW = 0.01  # share of divergent trajectories below which they are few


def divergences(posterior: Learnt, remedy: str) -> Check:
    """The check of how many trajectories diverged.

    Many divergences reject the result, unless verification has compared its means and sds with a second estimate. Of
    30 results that only divergences rejected, 23 were right (docs/decisions/016).
    """
    divergent = posterior.info["divergent"]
    share = float(np.mean(divergent)) if divergent.size else 0.0
    few = share < FEW or was_compared(posterior.verification)
    verdict = "trust" if share == 0 else "caution" if few else "reject"
    sentence = "trajectories whose numerical error was too large to follow the density" + f"; {remedy}" * (share > 0)
    return Check("divergences", float(np.sum(divergent) * posterior.thin), verdict, sentence)


@dataclass(frozen=True, kw_only=True)
class NUTS(Drawing):
    """The No-U-Turn sampler: the first choice if gradients on all rows are affordable.

    Args:
        chains, draws, warmup, thin: as for every method that draws.
        target: the mean acceptance probability for which the step size is tuned; raise it if the report has
            divergences.
        dense: adapt a full mass matrix instead of a diagonal one.
        max_depth: largest number of doublings of a trajectory.

    Stan's windowed warm-up finds a step size and a mass matrix for each chain. All chains then use the median step size
    and the mean matrix.
    """

    label: ClassVar[str] = "nuts"
    cross_check_method: ClassVar[str] = "hmc"
    algorithm: ClassVar[str] = "nuts"
    summands: ClassVar[bool] = False
    sums_rows: ClassVar[bool] = True
    long: ClassVar[bool] = True
    target: Share = 0.8
    dense: bool = False
    max_depth: Count = 10

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.on(log_density(model, rows, flat=True), tuned)

    def aim(self, size: int) -> float:
        """The acceptance probability for which the step size is tuned."""
        return self.target

    def first_step(self, size: int) -> float:
        """A first step size, which suits a target of unit scale."""
        return 1 / size**0.25

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        """The kernel for a log density of position vectors."""
        return hamiltonian.nuts(density, tuned["step_size"], tuned["inverse_mass"], self.max_depth)

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        size, dtype = session.model.space.size, jnp.result_type(float)
        if not self.warmup:
            mass = jnp.eye(size, dtype=dtype) if self.dense else jnp.ones(size, dtype)
            return WarmUp(positions, {"step_size": jnp.asarray(0.1, dtype), "inverse_mass": mass}, {}, self.thin)
        rows = loop.rows_of(program, session.data, None)
        session.say("warm-up", 0, self.warmup)
        warm_up = functools.partial(_warm_up, program)
        new_positions, steps, masses = program.placement.run(warm_up, rows, keys, positions)
        # With many processes, ``session.stop`` makes all of them stop together, so all of them wait for the result.
        if session.stop() if program.placement.many_processes else not wait_for(steps, session.stop):
            return WarmUp(positions, {}, {}, self.thin)
        session.say("warm-up", self.warmup, self.warmup)
        step = np.median(np.asarray(steps))
        tuned = {"step_size": jnp.asarray(step), "inverse_mass": jnp.mean(masses, 0)}
        if not (np.isfinite(step) and step > 0):
            raise RunError(
                f"Warm-up ended with the step size {step}, since the log density or its gradient is not finite where "
                "the chains went. Look for parameters whose prior is far wider than the data allow."
            )
        return WarmUp(new_positions, tuned, {"step_size": float(step)}, self.thin)

    def checks(self, posterior: Learnt) -> list[Check]:
        info = posterior.info
        out = chain_checks(posterior)
        out.append(divergences(posterior, REMEDY))
        energies = info["energy"]
        if energies.shape[1] > 1 and np.all(energies.var(1) > 0):
            bfmi = float(np.min(np.square(np.diff(energies, axis=1)).mean(1) / energies.var(1)))
            sentence = "mean squared change of energy over its variance, in the worst chain; below 0.3 tails are missed"
            out.append(Check("E-BFMI", bfmi, "trust" if bfmi >= 0.3 else "caution", sentence))
        saturated = float(np.mean(info["saturated"]))
        if saturated > 0:
            verdict = "caution" if saturated > 0.01 else "trust"
            out.append(Check("depth", saturated, verdict, "share of trajectories that max_depth ended"))
        rate = float(np.mean(info["acceptance"]))
        out.append(check_share("acceptance", rate, 0.4, 0.9999, "mean acceptance probability"))
        return out


@dataclass(frozen=True, kw_only=True)
class HMC(NUTS):
    """Hamiltonian Monte Carlo with trajectories of a fixed number of leapfrog steps.

    Args: as for NUTS, and
        leapfrogs: the number of steps in a trajectory.
        jitter: in [0, 1); the step size of each trajectory is uniform within this share of the tuned one, so that the
            length of trajectories does not match a period of the target.
    """

    label: ClassVar[str] = "hmc"
    algorithm: ClassVar[str] = "hmc"
    leapfrogs: Count = 10
    jitter: Annotated[float | int, Range("a number in [0, 1)", lambda j: is_number(j) and 0 <= j < 1)] = 0.2

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        return hamiltonian.hmc(density, tuned["step_size"], tuned["inverse_mass"], self.leapfrogs, self.jitter)


@compiled("program", if_few=COMPILE_FAST)
def _warm_up(program: Program, rows: PyTree, keys: jax.Array, positions: jax.Array) -> tuple:
    method: Any = program.method

    length = method.leapfrogs if method.algorithm == "hmc" else method.max_depth
    settings = hamiltonian.Adaptation(method.algorithm, length, method.warmup, method.target, method.dense)

    def chain(rows: PyTree, key: jax.Array, begin: tuple) -> tuple:
        position, *first = begin
        return hamiltonian.warm_up(settings, log_density(program.model, rows, flat=True), key, position, tuple(first))

    chains, size = positions.shape
    mass = jnp.eye(size, dtype=positions.dtype) if method.dense else jnp.ones(size, positions.dtype)
    first = jnp.ones(chains, positions.dtype), jnp.broadcast_to(mass, (chains, *mass.shape))
    return program.placement.over_chains(chain)(rows, keys, (positions, *first))
