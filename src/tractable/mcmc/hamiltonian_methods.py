"""The methods HMC and NUTS."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import scaling
from tractable.core.errors import RunError
from tractable.core.model import Kernel, Model, PyTree, log_density
from tractable.core.settings import Count, Range, Share, is_number, is_whole
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import chain_checks, check_share
from tractable.diagnostics.shape import was_compared
from tractable.engine import run as loop
from tractable.engine.drawing import Drawing, WarmUp
from tractable.engine.method import Check, Method, Program, Session, as_method
from tractable.engine.placement import ONE_DEVICE
from tractable.mcmc import adaptation, hamiltonian

REMEDY = (
    "raise target, such as target=0.95, or max_halvings, such as max_halvings=10; if some remain, write each parameter "
    "of a learnt scale as mu + tau * u"
)
BLOCK = 25  # steps whose noise is drawn at once
START = 1 << 20  # folded into the session's key for the runs of ``start``
ROOT = scaling.LowRank._fields  # names of the tuned arrays that are the inverse mass matrix's root
FEW = 0.01  # share of divergent trajectories below which they are few
# The target of a warm-up is raised to CAREFUL if at least a share MANY of a chain's trajectories diverge, in the second
# half of a window if that has at least ENOUGH of them (docs/decisions/062).
MANY, ENOUGH, CAREFUL = 0.05, 100, 0.9
HALVINGS = 10  # ``max_halvings`` of the run that replaces a run with divergences
ALLOWED = 60.0  # it is run without being asked for if its forecast is at most these seconds


def divergences(posterior: Learnt, remedy: str) -> Check:
    """The check of how many trajectories diverged.

    Many divergences reject the result, unless verification has compared its means and sds with a second estimate. Of
    30 results that only divergences rejected, 23 were right (docs/decisions/016).
    """
    share = _share(posterior)
    few = share < FEW or was_compared(posterior.verification)
    verdict = "trust" if share == 0 else "caution" if few else "reject"
    sentence = "trajectories whose numerical error was too large to follow the density" + f"; {remedy}" * (share > 0)
    return Check("divergences", float(np.sum(posterior.info["divergent"]) * posterior.thin), verdict, sentence)


def _share(posterior: Learnt) -> float:
    """The share of trajectories that diverged."""
    divergent = posterior.info["divergent"]
    return float(np.mean(divergent)) if divergent.size else 0.0


HALVING = Range("a whole number from 0 to 20", lambda value: is_whole(value, 0) and value <= 20)
NoHalving = Annotated[None, Range("None, as only NUTS halves its steps", lambda value: value is None)]


@dataclass(frozen=True, kw_only=True)
class NUTS(Drawing):
    """The No-U-Turn sampler: the first choice if gradients on all rows are affordable.

    Args:
        chains, draws, warmup, thin: as for every method that draws.
        target: the mean acceptance probability for which the step size is tuned. A lower one is raised to 0.9 for the
            rest of the warm-up once 5 % of a chain's trajectories diverge; raise it further if divergences remain.
        dense: adapt a full mass matrix instead of a diagonal one.
        max_depth: largest number of doublings of a trajectory.
        max_halvings: how often a step may be halved where the density bends too much for it, as in the neck of a
            funnel (WALNUTS, Bou-Rabee, Carpenter, Kleppe & Liu 2025). ``target`` is then the acceptance probability of
            single steps that are not halved. By default steps are not halved, but a run with many divergences, or a
            rejected run with some, is followed by a run with ``max_halvings=10``; 0 never halves.
        start: the method that finds where the chains begin, each in a run of its own, such as ``MAP(optimizer="adam")``
            for a network. By default the chains begin at random points.

    The warm-up finds a step size and a mass matrix that all chains share (``mcmc.adaptation``).
    """

    label: ClassVar[str] = "nuts"
    cross_check_method: ClassVar[str] = "hmc"
    summands: ClassVar[bool] = False
    sums_rows: ClassVar[bool] = True
    long: ClassVar[bool] = True
    unsaved: ClassVar[tuple[str, ...]] = ("gradient",)
    outside: ClassVar[tuple[str, ...]] = (*Drawing.outside, "start")
    target: Share = 0.8
    dense: bool = False
    max_depth: Count = 10
    max_halvings: Annotated[int, HALVING] | None = None
    start: Annotated[Method, "a method such as MAP(optimizer='adam')"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", as_method(self.start))
        super().__post_init__()

    def begin(self, session: Session, positions: jax.Array) -> tuple[jax.Array, float]:
        """The chains' positions at the results of ``start``, (chain, d), and the gradients that these took."""
        if self.start is None:
            return positions, 0.0
        self.start.needed(session.model)  # raises an error for a model that it cannot learn
        points, gradients, run = [], 0.0, session.alone()._replace(placement=ONE_DEVICE)
        for key in jax.random.split(jax.random.fold_in(session.key, START), self.chains):
            belief, found, *_ = self.start.learn(run._replace(key=key))
            if session.stop():  # the warm-up will be discarded
                return positions, gradients
            points.append(belief.position if belief.positions is None else belief.positions[0, -1])
            gradients += self.start.cost(belief, found, session.data).gradients
            session.say("finding starts", len(points), self.chains)
        return jnp.asarray(np.stack(points), jnp.result_type(float)), gradients

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        density, root = log_density(model, rows, flat=True), scaling.LowRank(*(tuned[name] for name in ROOT))

        def plain(step_size: jax.Array) -> Kernel:
            return self.on(density, {"step_size": step_size, "inverse_mass": root})

        return adaptation.adaptive(plain, tuned)

    def aim(self, size: int) -> float:
        """The acceptance probability for which the step size is tuned."""
        return self.target

    def first_step(self, size: int) -> float:
        """A first step size, which suits a target of unit scale."""
        return 1 / size**0.25

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        """The kernel for a log density of position vectors."""
        return hamiltonian.nuts(
            density, tuned["step_size"], tuned["inverse_mass"], self.max_depth, self.max_halvings or 0
        )

    def shape(self, session: Session, program: Program, thin: int, draws: int | None = None) -> loop.Shape:
        """The loop's shape, whose blocks divide the warm-up; without thinning it serves warm-up and main run."""
        shape = super().shape(session, program, thin, draws)
        most = max(1, min(BLOCK, loop.BLOCK_NUMBERS // session.model.space.size))
        block = next(k for k in range(most, 0, -1) if self.warmup % k == 0)
        return shape if thin > 1 else shape._replace(block=block, capacity=-(-shape.capacity * shape.block // block))

    def warm_up(self, session: Session, program: Program, keys: jax.Array, positions: jax.Array) -> WarmUp:
        size, dtype = session.model.space.size, jnp.result_type(float)
        positions, gradients = self.begin(session, positions)
        rank = adaptation.rank(size, self.dense)

        def tuned(root: scaling.LowRank, step: float, adapts: bool) -> dict[str, jax.Array]:
            values = dict(zip(ROOT, root, strict=True)) | {"step_size": step, "adapts": float(adapts), "target": target}
            return {name: jnp.asarray(value, dtype) for name, value in values.items()}

        root, step, target = adaptation.first_root(size, rank), 0.1, self.aim(size)
        if not self.warmup:
            return WarmUp(positions, tuned(root, step, False), {"gradients of warm-up": gradients}, self.thin)
        shape = self.shape(session._replace(moments=False), program, 1)
        step, groups = self.first_step(size), self.warmup // shape.group
        states = loop.begin(
            program, tuned(root, step, True), loop.rows_of(program, session.data, None), keys, positions
        )
        root = adaptation.first_root(size, rank, np.asarray(session.placement.collect(states.point.gradient)))
        compiled_loop = loop.Loop(program, shape, None, self.long)
        session.say("warm-up", 0, self.warmup)
        ends = adaptation.windows(groups)
        for begin, end in itertools.pairwise([0, *ends]):
            window = adaptation.Window(rank, (end - begin) * shape.group * self.chains * size)
            result = loop.run(
                compiled_loop, session.data, tuned(root, step, True), keys, loop.Start(states, begin), end,
                loop.Host(window.add, session.stop), ("info",),
            )  # fmt: skip
            if session.stop():  # an interrupted warm-up is discarded
                return WarmUp(positions, {}, {}, self.thin)
            gradients += float(result.info["gradients"].sum())
            divergent = result.info["divergent"]
            late = divergent[:, divergent.shape[1] // 2 :]  # once the window's steps are tuned
            if late.shape[1] >= ENOUGH and not self.max_halvings and max(late.mean(1)) >= MANY:
                target = max(target, CAREFUL)
            step = adaptation.common_step(np.asarray(session.placement.collect(result.states.averaging)))
            if not (np.isfinite(step) and step > 0):
                raise RunError(
                    f"Warm-up ended with the step size {step}, since the log density or its gradient is not finite "
                    "where the chains went. Look for parameters whose prior is far wider than the data allow."
                )
            states = result.states._replace(averaging=jnp.zeros_like(result.states.averaging))
            if end < groups:
                root = window.root(root, self.dense)
            session.say("warm-up", end * shape.group, self.warmup)
        found = {"step_size": step, "directions": adaptation.directions(root), "gradients of warm-up": gradients}
        if target > self.aim(size):
            found["target"] = target
        return WarmUp(states.point.position, tuned(root, step, False), found, self.thin)

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
        if posterior.found.get("directions"):
            sentence = "directions that the mass matrix stretches beyond its diagonal, as warm-up chose"
            out.append(Check("mass matrix", posterior.found["directions"], "trust", sentence))
        if "target" in posterior.found:
            sentence = (
                "acceptance probability for which steps were tuned, raised because trajectories of warm-up diverged"
            )
            out.append(Check("target", posterior.found["target"], "trust", sentence))
        rate = float(np.mean(info["acceptance"]))
        out.append(check_share("acceptance", rate, 0.4, 0.9999, "mean acceptance probability"))
        return out

    def otherwise(self, posterior: Learnt) -> tuple[Method, Check] | None:
        if type(self) is not NUTS or self.max_halvings is not None:
            return None
        if not posterior.info:  # only moments were kept
            return None
        share = _share(posterior)
        unmixed = any(check.verdict == "reject" for check in self.checks(posterior))
        endless = any(check.name == "tails" and check.verdict == "reject" for check in posterior.verification)
        if endless or not (share >= FEW or (share > 0 and unmixed)):
            return None
        # A trajectory that ends at a wall, where no step is small enough, takes up to 2^(HALVINGS + 1) gradients.
        ratio = 1 + share * 2 ** (HALVINGS + 1) / float(np.mean(posterior.info["gradients"]))
        if ratio * sum(posterior.seconds.get(phase, 0.0) for phase in ("warm-up", "drawing")) > ALLOWED:
            return None
        sentence = "share of divergent trajectories of a first run; this run halves steps where the density bends"
        return replace(self, max_halvings=HALVINGS), Check("first run", share, "trust", sentence)


@dataclass(frozen=True, kw_only=True)
class HMC(NUTS):
    """Hamiltonian Monte Carlo with trajectories of a fixed number of leapfrog steps.

    Args: as for NUTS without ``max_halvings``, and
        leapfrogs: the number of steps in a trajectory.
        jitter: in [0, 1); the step size of each trajectory is uniform within this share of the tuned one, so that the
            length of trajectories does not match a period of the target.
    """

    label: ClassVar[str] = "hmc"
    leapfrogs: Count = 10
    jitter: Annotated[float | int, Range("a number in [0, 1)", lambda j: is_number(j) and 0 <= j < 1)] = 0.2
    max_halvings: NoHalving = None

    def on(self, density: Callable, tuned: PyTree) -> Kernel:
        return hamiltonian.hmc(density, tuned["step_size"], tuned["inverse_mass"], self.leapfrogs, self.jitter)
