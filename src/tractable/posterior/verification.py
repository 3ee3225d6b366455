"""Verifies a result and improves it if a check fails: by optimisation from a better point, or by another method."""

import dataclasses
import functools
import time
from collections.abc import Callable

from tractable.core.check import Check
from tractable.core.clock import add
from tractable.core.errors import RunError
from tractable.core.model import Data
from tractable.diagnostics.subject import BEFORE, subject_of
from tractable.diagnostics.verify import MOST_PARAMETERS
from tractable.engine.climb import HELD_OUT_STEPS
from tractable.engine.method import Method, Outcome
from tractable.engine.session import Saver, open_session
from tractable.posterior.posterior import Posterior

# Seconds that another method may take which nobody asked for. Its forecast is at most half of this, but a trajectory at
# a wall can take thousands of times as many gradients as forecast.
PATIENCE = 120.0


def verify_and_improve(
    posterior: Posterior, how: str | None, held_out: Data | None = None, progress: bool | Callable | None = False,
    saver: Saver | None = None,
) -> Posterior:  # fmt: skip
    """The posterior after verification, or a better posterior to which verification leads.

    If a check found a higher maximum, or a mode of more mass, the method starts again there. If the result is rejected,
    and its method names another method to use instead, that method is run, for at most ``PATIENCE`` seconds.

    Args:
        posterior: the result.
        how, held_out: as for ``Posterior.verify``.
        progress: whether to show progress, as for ``infer``.
        saver: the run's saver; a run of another method is saved in its subfolder "instead".
    """
    posterior = _climb_again(posterior.verify(how, held_out=held_out), how, held_out)
    alternative = None if how is None or posterior.interrupted else posterior.method.otherwise(posterior)
    if alternative is None:
        return posterior
    method, check = alternative
    if check.verdict != "reject":
        verdict, deadline = "reject", time.monotonic() + PATIENCE
        try:
            subfolder = None if saver is None else saver.inside("instead")
            with open_session(posterior.model, posterior.data, posterior.seed, progress, saver=subfolder) as session:
                stop = functools.partial(_ends, session.stop, deadline)
                outcome = method.learn(session._replace(held_out=held_out, stop=stop))
            if not outcome.interrupted:
                return _replace(posterior, method, outcome, how, held_out, check)
            posterior = dataclasses.replace(posterior, seconds=add(posterior.seconds, outcome.seconds))
            reason = "it was stopped"
        except RunError as error:
            reason = f"it failed: {error}"
        if time.monotonic() > deadline:
            verdict = "caution"
            reason = f"a second run had not ended after {PATIENCE:.0f} seconds, so this is the result of the first"
        check = Check(f"{type(method).__name__} instead", float("nan"), verdict, reason)
    return dataclasses.replace(posterior, verification=(*posterior.verification, check), judged=None)


def _ends(stop: Callable[[], bool], deadline: float) -> bool:
    """Whether the user stopped the run, or its time is over."""
    return stop() or time.monotonic() > deadline


def _climb_again(posterior: Posterior, how: str | None, held_out: Data | None) -> Posterior:
    """The posterior; if verification found a better point, the result of the same method started there."""
    place = next((check.place for check in posterior.verification if check.place is not None), None)
    is_early = HELD_OUT_STEPS in posterior.found  # held-out rows stopped the optimisation early, on purpose
    if place is None or is_early or posterior.interrupted or not posterior.method.climbs:
        return posterior
    try:
        with open_session(posterior.model, posterior.data, posterior.seed, False) as session:
            outcome = posterior.method.learn(session._replace(near=place, held_out=held_out))
    except RunError as error:
        check = Check("begun again", float("nan"), "caution", f"it failed: {error}")
        return dataclasses.replace(posterior, verification=(*posterior.verification, check), judged=None)
    if outcome.interrupted:
        return posterior
    sentence = "the first optimisation ended lower, or at a mode of less mass; a check found this one's starting point"
    check = Check("begun again", 1.0, "trust", sentence)
    return _replace(posterior, posterior.method, outcome, how, held_out, check)


def _replace(
    first: Posterior, method: Method, outcome: Outcome, how: str | None, held_out: Data | None, check: Check
) -> Posterior:
    """The verified posterior of a second run, which also counts the first run's seconds and gradients.

    Its verification also climbs from the first run's result, which may be a mode that no other climb reaches.

    Args:
        first: the first run's posterior.
        method, outcome: method and result of the second run.
        how, held_out: as for ``Posterior.verify``.
        check: says why there was a second run.
    """
    found = {"double": True} if first.found.get("double") else {}
    found |= outcome.found | {"gradients before": first.cost.gradients, BEFORE: _places(first)}
    again = Posterior(first.model, first.data, method, first.seed, outcome.belief, found, run_state=outcome.run_state)
    again = again.verify(how, held_out=held_out)
    seconds = add(add(first.seconds, outcome.seconds), again.seconds)
    return dataclasses.replace(again, verification=(check, *again.verification), seconds=seconds)


def _places(posterior: Posterior) -> list[list[float]]:
    """The unconstrained points of a result and of earlier results: point estimates, or means of draws."""
    subject = subject_of(posterior) if posterior.model.space.size <= MOST_PARAMETERS else None
    return [*posterior.found.get(BEFORE, []), *([] if subject is None else [subject.centre.tolist()])]
