"""Several runs of one method from different starts, as one posterior: a baseline for comparison."""

import contextlib
import dataclasses
import functools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core.batches import Plan
from tractable.core.clock import work_time
from tractable.core.errors import RunError
from tractable.core.model import Model
from tractable.core.rows import Data
from tractable.core.settings import Jobs, at_least
from tractable.diagnostics.belief import Belief, Draws
from tractable.diagnostics.learnt import Learnt
from tractable.engine.drawing import Drawing
from tractable.engine.jobs import many_processes, run_jobs
from tractable.engine.method import Check, Method, Outcome, Session, as_method
from tractable.engine.stopping import interruptible
from tractable.points.points import MAP


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Method):
    """An equal mixture of ``size`` members, each learnt by the method ``member`` from its own starting point.

    With MAP members this is the ensemble of Lakshminarayanan, Pritzel & Blundell 2017 (without adversarial examples).
    It is not a posterior. It shows how much solutions differ, which is often a good guide to where predictions can be
    trusted, but without guarantee. Members are not chains: R-hat does not apply, and the sd of a single parameter over
    members means nothing where networks have symmetries.

    Args:
        member: the method of each member.
        size: number of members, ≥ 2.
        n_jobs: number of processes that learn members, as for ``compare``. It changes no result, so it is not among
            the settings that are saved. Within a process members are learnt one by one, since each may stop at its own
            time.
    """

    label: ClassVar[str] = "ensemble"
    independent: ClassVar[bool] = True
    outside: ClassVar[tuple[str, ...]] = ("n_jobs",)
    member: Annotated[Method, "a method, such as MAP() or BayesByBackprop()"] = dataclasses.field(default_factory=MAP)
    size: Annotated[int, at_least(2)] = 5
    n_jobs: Jobs | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "member", as_method(self.member))
        super().__post_init__()
        self.check(not isinstance(self.member, DeepEnsemble), "member", "a method that is no ensemble itself")

    @property
    def draws(self) -> int:
        """The number of draws that each member contributes."""
        return getattr(self.member, "draws", 1)

    @property
    def chains(self) -> int:
        return self.size

    def describe(self, belief: Belief) -> str:
        each = "" if belief.count == 1 else f" of {belief.count} draws"
        return f"{belief.chains} members{each}"

    @property
    def minibatch(self) -> bool:
        return self.member.minibatch

    def plan(self, data: Data | None) -> Plan | None:
        return self.member.plan(data)

    def settings(self) -> dict[str, Any]:
        return {"method": self.label, "size": self.size, "member": self.member.settings()}

    def learn(self, session: Session) -> Outcome:
        start_time = work_time()
        member = self.member
        if isinstance(member, Drawing):
            member = dataclasses.replace(member, chains=1)  # a member is one chain
        ends: dict[int, Outcome] = {}
        parallel = many_processes(self.n_jobs, "DeepEnsemble")
        shared = session.alone()._replace(stop=_never, saver=session.saver) if parallel else session
        shared = shared._replace(model=None, data=None)
        work = functools.partial(_learn_member, member=member, model=session.model, data=session.data, session=shared)
        for job in run_jobs(work, range(self.size), self.n_jobs, "DeepEnsemble", lambda: bool(ends) and session.stop()):
            job.tell()
            if job.lost:
                raise RunError(f"Member {job.index} of the ensemble was lost. {job.lost}")
            if job.result is not None:
                ends[job.index] = job.result
                session.say("learning members", len(ends), self.size)
        draws, objectives, climbs, evaluations = [], [], [], 0.0
        for i, outcome in sorted(ends.items()):
            belief = outcome.belief
            if belief.position is None and not belief.count:
                raise RunError(f"Member {i} of the ensemble was stopped before its first draw.")
            points: Any = belief.positions[0] if belief.positions is not None else belief.position[None]  # pyright: ignore
            draws.append(np.asarray(points, jnp.result_type(float))[: self.draws])
            objectives.append(outcome.found.get("objective", np.nan))
            climbs += np.asarray(belief.info.get("objective", np.zeros((0, 0)))).tolist()
            evaluations += outcome.found.get("evaluations", np.nan)
        figures: dict[str, Any] = {f"objective {i}": float(value) for i, value in enumerate(objectives)}
        figures |= {"evaluations": evaluations, "climb": climbs}
        seconds = {"learning": work_time() - start_time}
        length = min(len(d) for d in draws)
        positions = np.stack([d[:length] for d in draws])
        return Outcome(Draws(positions=positions), figures, seconds, len(draws) < self.size)

    def checks(self, posterior: Learnt) -> list[Check]:
        values = np.array([v for k, v in posterior.found.items() if k.startswith("objective ")], float)
        sentence = "solutions, which are not draws of a posterior: judge the ensemble by held-out predictions"
        out = [Check("members", float(posterior.chains), "caution", sentence)]
        if len(values) and np.all(np.isfinite(values)):
            spread = float(np.ptp(values))
            out.append(Check("spread of objectives", spread, "trust", "nats between best and worst member"))
        return out


def _learn_member(i: int, *, member: Method, model: Model, data: Data | None, session: Session) -> Outcome:
    """Learn member i, which is saved in its own subfolder of the ensemble's folder."""
    with contextlib.ExitStack() as stack:
        if session.stop is _never:  # a member in another process or thread than the ensemble
            session = session._replace(stop=stack.enter_context(interruptible()))
        inner = session._replace(model=model, data=data).inside(f"member-{i}")
        try:
            outcome = member.learn(inner._replace(key=jax.random.fold_in(session.key, i)))
        except RunError as error:
            raise RunError(f"Member {i} of the ensemble failed. {error}") from error
    return outcome._replace(run_state=None)


def _never() -> bool:
    return False
