"""Random-walk Metropolis and MALA, tuned between blocks of warm-up steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.errors import SettingsError
from tractable.core.model import Kernel, Model, PyTree, log_density
from tractable.core.rows import Data
from tractable.core.settings import Count, Share
from tractable.diagnostics.belief import Belief, Cost
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks, check_share
from tractable.engine import run as loop
from tractable.engine.drawing import Chains, Drawing, WarmUp
from tractable.engine.method import Check, Outcome, Program, Session
from tractable.engine.search import laplace_root, modes
from tractable.mcmc.mala import mala
from tractable.mcmc.metropolis import Proposal, metropolis
from tractable.mcmc.random_walk import random_walk

MANY = 10_000  # rows from which float32 log ratios are sums of the terms' differences
DENSE = 200  # parameters up to which "auto" measures a full covariance


@dataclass(frozen=True, kw_only=True)
class Metropolis(Drawing):
    """The base of RandomWalk and MALA: target acceptance rate, and covariance measured in warm-up."""

    sums_rows: ClassVar[bool] = True
    summands: ClassVar[bool] = True  # its kernel takes a log density as its summands
    preconditioner: Literal[None, "auto", "diagonal", "dense"] = "auto"
    target: Share | None = None

    def aim(self, size: int) -> float:
        """The target acceptance rate (Roberts & Rosenthal 1998)."""
        return self.target or 0.574

    def first_step(self, size: int) -> float:
        """A step size ε that suits a target of unit scale."""
        return 1.65**2 / size ** (1 / 3)

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        return self.on(self.density(model, rows), tuned)

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        """The kernel of a log density of flat positions, or its summands."""
        raise SettingsError(f"{type(self).__name__} has no kernel of its own.")

    def density(self, model: Model, rows: PyTree) -> Any:
        """The log density, as its summands where float32 needs them; of rows over devices there is only the sum."""
        in_summands = rows is not None and in_terms(jax.tree.leaves(rows)[0].shape[0])
        return log_density(model, rows, flat=True, terms=in_summands)

    def go_on(self, session: Session, chains: Chains, *args: Any, **more: Any) -> Outcome:
        program, data, states = self.program(session), session.data, chains.states
        by_term = data is not None and not session.placement.divides_rows and in_terms(data.size)
        if (states.terms.ndim > 1) != by_term:
            # It was saved, or drawn, with its rows over devices and goes on without, or the other way.
            rows = loop.rows_of(program, data, None)
            states = loop.begin(program, chains.tuned, rows, chains.keys, states.position)
        return super().go_on(session, chains._replace(states=states), *args, **more)

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        """Dual averaging of log ε towards the target acceptance rate, block by block, with three covariance updates.

        Acceptance and covariance are pooled over chains. The kernel itself never adapts, so warm-up and main run share
        one compiled program.
        """
        size = session.model.space.size
        dtype = jnp.result_type(float)
        dense = self.preconditioner == "dense" or (self.preconditioner == "auto" and size <= DENSE)
        positions, laplace = around_modes(session, positions) if self.preconditioner else (positions, None)
        scale = jnp.eye(size, dtype=dtype) if dense else jnp.ones(size, dtype)
        if laplace is not None:
            scale = jnp.asarray(laplace if dense else np.sqrt(np.square(laplace).sum(1)), dtype)
        step = self.first_step(size)
        tuned = {"step_size": jnp.asarray(step, dtype), "scale": scale}
        shape = self.shape(session._replace(moments=False), program, self.thin)
        rows = loop.rows_of(program, session.data, None)
        states = loop.begin(program, tuned, rows, keys, positions)
        rounds = max(1, self.warmup // shape.group)
        tuning_rounds = [round(rounds * share) for share in (0.15, 0.35, 0.75)] if self.preconditioner else []
        averaging = Averaging.around(step)
        seen: list[np.ndarray] = []
        acceptance, searching = float("nan"), True
        compiled_loop, host = loop.Loop(program, shape, None), loop.Host(stop=session.stop)
        for round_ in range(rounds if self.warmup else 0):
            result = loop.run(compiled_loop, session.data, tuned, keys, loop.Start(states, round_), round_ + 1, host)
            if session.stop():
                break
            states = result.states
            seen.append(np.asarray(result.draws))
            by_chain = np.nanmean(result.info["acceptance"], 1)
            # A chain stuck in a tail sets the step size until it is out; a mean over chains would leave it there.
            acceptance = float(by_chain.min() if by_chain.min() < 0.25 * by_chain.mean() else by_chain.mean())
            # A step size far off is first changed by large factors; draws then say nothing of the covariance.
            searching = searching and not 0.1 < acceptance < 0.95 and round_ < rounds // 2
            if searching:
                step *= 4.0 if acceptance > 0.5 else 0.2
                averaging, seen = Averaging.around(step), []
            else:
                averaging, step = averaging.updated(self.aim(size) - acceptance)
            if tuning_rounds and round_ + 1 >= tuning_rounds[0] and round_ + 1 < rounds and len(seen) > 1:
                tuning_rounds = tuning_rounds[1:]
                scale = jnp.asarray(root_of_covariance(np.concatenate(seen, 1), dense, laplace), dtype)
                step, seen = self.first_step(size), []
                averaging = Averaging.around(step)
            last = round_ == rounds - 1
            tuned = {"step_size": jnp.asarray(averaging.average if last else step, dtype), "scale": scale}
            session.say("warm-up", (round_ + 1) * shape.group, rounds * shape.group)
        found = {"step_size": float(tuned["step_size"]), "warm-up acceptance": acceptance}
        return WarmUp(states.position, tuned, found, self.thin)

    def checks(self, posterior: Learnt) -> list[Check]:
        rate = float(np.mean(posterior.info["acceptance"]))
        bad = float(np.mean(posterior.info["not_a_number"]))
        out = [*chain_checks(posterior), check_share("acceptance", rate, 0.05, 0.99, "share of proposals accepted")]
        if bad > 0:
            sentence = "share where the log density was NaN; refused as impossible"
            out.append(Check("NaN proposals", bad, "caution" if bad > 0.01 else "trust", sentence))
        return out


def in_terms(rows: int) -> bool:
    """Whether a log ratio of so many rows is the sum of its terms' differences."""
    return rows >= MANY and jnp.result_type(float) == jnp.float32


def around_modes(session: Session, positions: jax.Array) -> tuple[jax.Array, np.ndarray | None]:
    """Starts 2/√d widths of the normal approximation around the modes, and its root; else ``positions`` and None.

    From a random start a chain can take longer than the warm-up to reach the typical set, and learns nothing of the
    target's covariance on the way. Every chain climbs from its own random start, so several modes are still found.
    """
    if positions.shape[1] > DENSE:
        return positions, None
    climbed = modes(session, positions)
    if not np.all(np.isfinite(climbed)):
        return positions, None
    root = laplace_root(session.model, session.data, climbed[0])
    if root is None:
        return positions, None
    jitter = jax.random.normal(jax.random.fold_in(session.key, 5), positions.shape)
    off = 2 * np.asarray(jitter) @ root.T / np.sqrt(positions.shape[1])
    return jnp.asarray(climbed + off, positions.dtype), root


class Averaging(NamedTuple):
    """Dual averaging of log ε (Hoffman & Gelman 2014, eq. 6), one update per block of steps."""

    centre: float
    gap: float = 0.0
    weighted: float = 0.0
    time: int = 0

    @classmethod
    def around(cls, step: float) -> "Averaging":
        return cls(float(np.log(step)))

    def updated(self, miss: float) -> tuple["Averaging", float]:
        """(state, next step size) after a block whose acceptance was ``miss`` below the target."""
        time = self.time + 1
        # A block averages many acceptance probabilities, so updates may be bolder than after a single draw.
        gap = self.gap + (miss - self.gap) / (time + 2)
        step = self.centre - np.sqrt(time) / 0.25 * gap
        share = time**-0.75
        weighted = share * step + (1 - share) * self.weighted
        return Averaging(self.centre, gap, weighted, time), float(np.exp(step))

    @property
    def average(self) -> float:
        return float(np.exp(self.weighted if self.time else self.centre))


def root_of_covariance(draws: np.ndarray, dense: bool, laplace: np.ndarray | None) -> np.ndarray:
    """L of the mean covariance within chains of ``draws`` (chain, draw, d), shrunk towards the normal approximation.

    Without that approximation at a mode it is shrunk towards its diagonal, which is estimated better than the rest.
    """
    centred = draws - draws.mean(1, keepdims=True)
    flat = centred.reshape(-1, draws.shape[-1]).astype(np.float64)
    count, size = flat.shape
    # Fifty warm-up draws are worth perhaps one independent draw.
    weight = count / (count + 50 * (size if dense else 1))
    covariance = flat.T @ flat / max(count - 1, 1)
    prior = np.diag(np.diag(covariance)) if laplace is None else laplace @ laplace.T
    shrunk = weight * covariance + (1 - weight) * prior + 1e-12 * np.eye(size)
    if not dense:
        return np.sqrt(np.diag(shrunk))
    try:
        return np.linalg.cholesky(shrunk)
    except np.linalg.LinAlgError:
        return np.diag(np.sqrt(np.diag(shrunk)))


@dataclass(frozen=True, kw_only=True)
class RandomWalk(Metropolis):
    """Random-walk Metropolis: θ' = θ + s L z; step size and covariance are adapted in warm-up.

    Args:
        chains, draws, warmup: as for every method that draws.
        thin: steps per kept draw; ten by default: in ten dimensions a step is worth a thirtieth of a draw.
        preconditioner: None, "diagonal", "dense" or "auto" (dense up to 200 parameters).
        target: target acceptance rate; by default 0.44 in one dimension, falling to 0.234 in three or more.
        proposal: your own ``kernels.Proposal`` on flat unconstrained positions, symmetric or not, used unchanged.

    Needs no gradient. Beyond a few dozen parameters the effective sample size is small: prefer MALA or NUTS.
    """

    label: ClassVar[str] = "random-walk"
    thin: Count = 10
    proposal: Annotated[Proposal, "a kernels.Proposal"] | None = None

    def aim(self, size: int) -> float:
        return self.target or (0.44 if size == 1 else 0.35 if size == 2 else 0.234)

    def first_step(self, size: int) -> float:
        return 2.38 / np.sqrt(size)

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return Cost(0.0, self.steps(belief))

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        if self.proposal is not None:
            return metropolis(density, self.proposal)
        return random_walk(density, tuned["step_size"], tuned["scale"])


@dataclass(frozen=True, kw_only=True)
class MALA(Metropolis):
    """The Metropolis-adjusted Langevin algorithm; step size and preconditioner are adapted in warm-up.

    Args:
        chains, draws, warmup, thin: as for every method that draws.
        preconditioner: None, "diagonal", "dense" or "auto" (dense up to 200 parameters).
        target: target acceptance rate, by default 0.574.

    One gradient per step. NUTS is the better default; MALA is the exact counterpart of SGLD.
    """

    label: ClassVar[str] = "mala"

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        return mala(density, tuned["step_size"], tuned["scale"])
