"""Verification of a result, and what follows from it: a climb from a better place, or another method."""

import dataclasses
from collections.abc import Callable

from tractable.core.check import Check
from tractable.core.errors import RunError
from tractable.core.model import Data
from tractable.diagnostics.subject import BEFORE, subject_of
from tractable.diagnostics.verify import MOST_PARAMETERS
from tractable.engine.climb import HELD_OUT_STEPS
from tractable.engine.method import Method, Outcome
from tractable.engine.session import Saver, open_session
from tractable.posterior.posterior import Posterior


def verify_and_improve(
    posterior: Posterior,
    how: str | None,
    held_out: Data | None = None,
    progress: bool | Callable | None = False,
    saver: Saver | None = None,
) -> Posterior:
    """The posterior after verification, or the better one that verification leads to.

    Where a check found a higher maximum or a mode of more mass, the climb starts again there. A rejected result gives
    way to the method that its own method turns to.

    Args:
        how, held_out: as for ``Posterior.verify``.
        saver: of the run; that of another method is saved in its subfolder "instead".
    """
    posterior = _climb_again(posterior.verify(how, held_out=held_out), how, held_out)
    turn = None if how is None or posterior.interrupted else posterior.method.otherwise(posterior)
    if turn is None:
        return posterior
    method, check = turn
    if check.verdict != "reject":
        try:
            inside = None if saver is None else saver.inside("instead")
            with open_session(posterior.model, posterior.data, posterior.seed, progress, saver=inside) as session:
                outcome = method.learn(session._replace(held_out=held_out))
            if not outcome.interrupted:
                return _replace(posterior, method, outcome, how, held_out, check)
            why = "it was stopped"
        except RunError as error:
            why = f"it failed: {error}"
        check = Check(f"{type(method).__name__} instead", float("nan"), "reject", why)
    return dataclasses.replace(posterior, verification=(*posterior.verification, check), judged=None)


def _climb_again(posterior: Posterior, how: str | None, held_out: Data | None) -> Posterior:
    """If verification found a better place, the result of the same climb started there."""
    place = next((check.place for check in posterior.verification if check.place is not None), None)
    early = HELD_OUT_STEPS in posterior.found  # held-out rows ended the climb below its maximum, on purpose
    if place is None or early or posterior.interrupted or not posterior.method.climbs:
        return posterior
    with open_session(posterior.model, posterior.data, posterior.seed, False) as session:
        outcome = posterior.method.learn(session._replace(near=place, held_out=held_out))
    if outcome.interrupted:
        return posterior
    sentence = "the first climb ended lower, or at a mode of less mass; this one began where a check found better"
    check = Check("begun again", 1.0, "trust", sentence)
    return _replace(posterior, posterior.method, outcome, how, held_out, check)


def _replace(
    first: Posterior, method: Method, outcome: Outcome, how: str | None, held_out: Data | None, check: Check
) -> Posterior:
    """A second result, verified, with the first one's seconds and gradients; ``check`` says why there are two.

    The second one's verification also climbs from where the first one stood: it may be a mode that nothing else meets.
    """
    seconds = first.seconds | {name: first.seconds.get(name, 0.0) + more for name, more in outcome.seconds.items()}
    found = {"double": True} if first.found.get("double") else {}
    found |= outcome.found | {"gradients before": first.cost.gradients, BEFORE: _places(first)}
    again = Posterior(first.model, first.data, method, first.seed, outcome.belief, found, run_state=outcome.run_state)
    again = again.verify(how, held_out=held_out)
    seconds = {name: seconds.get(name, 0.0) + again.seconds.get(name, 0.0) for name in seconds | again.seconds}
    return dataclasses.replace(again, verification=(check, *again.verification), seconds=seconds)


def _places(posterior: Posterior) -> list[list[float]]:
    """Where a result and those before it stood, unconstrained: the point, or the mean of the draws."""
    subject = subject_of(posterior) if posterior.model.space.size <= MOST_PARAMETERS else None
    return [*posterior.found.get(BEFORE, []), *([] if subject is None else [subject.centre.tolist()])]
