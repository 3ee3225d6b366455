"""Verifies a posterior against its density: its modes, its means and sds, and its tails."""

import math
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np

from tractable.core.check import Check
from tractable.diagnostics import climbs, networks, tails
from tractable.diagnostics.arms import find_arms
from tractable.diagnostics.belief import Fitted, Moments
from tractable.diagnostics.climbs import Mode
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.modes import check_maximum, check_visits
from tractable.diagnostics.reweighed import reweigh
from tractable.diagnostics.shape import check_shape, compare_chains
from tractable.diagnostics.subject import Subject, subject_of
from tractable.diagnostics.target import Target
from tractable.diagnostics.view import SHARE, THOROUGH, WORK, View, affordable, affordable_on_few, view_all, view_few

Verify = Literal["auto", "thorough", None]

MOST_PARAMETERS = 200  # maximum number of parameters for which a posterior is verified
# Rounding errors of the log density are measured at ROUNDED_DRAWS draws; the limits for trust and caution are in nats.
ROUNDED_DRAWS, ROUNDING = 64, (0.1, 0.5)


@np.errstate(over="ignore", invalid="ignore")  # densities may overflow at starting points far from the posterior
def verify(learnt: Learnt, how: str | None, again: Callable[..., Learnt], by_rows: bool = False) -> list[Check]:
    """Checks a posterior against its density; there are no checks for exact methods and for runs without draws.

    Each check looks for one kind of error: a mode that the draws did not visit (``climbs``, ``modes``), a wrong mean or
    sd (``shape``), or infinite mass in the tails (``tails``). A network is judged by its predictions (``networks``).

    Args:
        learnt: the posterior.
        how: as for ``Posterior.verify``.
        again: ``again()`` fits a network with another seed. ``again(name)`` runs another method; a thorough
            verification compares its means and sds with those of the posterior.
        by_rows: whether held-out rows check the posterior too.
    """
    method, count = learnt.method, learnt.is_point or isinstance(learnt.belief, Moments) or learnt.count > 1
    if learnt.interrupted or not method.verified or method.exact or not count:
        return []
    if how is None:
        return [Check("verified", math.nan, "caution", "the result was not verified, as asked: verify=None")]
    if learnt.model.network_weights and learnt.belief.positions is not None and not learnt.model.is_ladder:
        return networks.look(learnt, how == "thorough", WORK, SHARE, again, by_rows)
    reason = why_not_verified(learnt)
    if reason is None:
        return _verify_density(learnt, how, again)
    narrow = method.row_space_posterior(learnt) if how == "auto" else None
    if narrow is None or why_not_verified(narrow) is not None:
        return [Check("verified", math.nan, "caution", reason)]
    sentence = "combinations of weights on which the rows depend; these are verified; all others are drawn given them"
    return [Check("rows' span", narrow.model.space.size, "trust", sentence), *verify(narrow, how, again, by_rows)]


def why_not_verified(learnt: Learnt) -> str | None:
    """The reason why a posterior cannot be compared with its density; None if it can."""
    size, belief = learnt.model.space.size, learnt.belief
    if learnt.model.network_weights and learnt.is_point:
        return "a network has many maxima, of which this is one: judge it by held-out rows (held_out=)"
    if learnt.model.is_ladder:
        return "a ladder's weights are not identified: judge it by held-out rows (held_out=)"
    if isinstance(belief, Moments):
        return "not verified: the draws were not kept"
    if isinstance(belief, Fitted) and not belief.q.whole:
        return "not verified: q covers only some of the parameters"
    if size > MOST_PARAMETERS:
        return f"not verified: {size} parameters are more than {MOST_PARAMETERS}; compare with another method"
    if learnt.data is not None and not learnt.data.resident:
        return "not verified: the rows are on file; compare with a run on fewer rows in memory"
    return None


def _verify_density(learnt: Learnt, how: str, again: Callable[..., Learnt]) -> list[Check]:
    """The checks of a posterior that can be compared with its density."""
    subject = subject_of(learnt)
    if subject is None:
        sentence = "not verified: the variance of the posterior in some direction is 0 or not finite"
        return [Check("covariance", 0.0, "caution", sentence)]
    view = _choose_view(subject, how)
    if isinstance(view, Check):
        return [view]
    centre, root, seed = subject.centre, subject.root, subject.seed
    tail = tails.check(view.climbed, view.rows, centre, root, subject.is_point, seed)
    out = [*view.checks, *_check_rounding(view, subject.draws(ROUNDED_DRAWS), seed), tail]
    modes = climbs.modes(view.climbed, view.rows, view.ends, root)
    if subject.is_point:
        out.append(check_maximum(subject, view, modes))
        if learnt.belief.unconstrained_moments() is None:
            return out
        if view.target != view.climbed:
            modes = _climb_target(subject, view)
    arms = find_arms(view.climbed, view.rows, view.path, centre, root, modes)
    reweighed = reweigh(view.target, view.rows, centre, root, [*modes, *arms], view.size.places, seed)
    if not subject.is_point:
        out.append(check_visits(subject, modes, reweighed))
    # A density that falls more slowly than r^−(d + 2) on a cone of rays has an infinite variance. The slope on one ray
    # is taken to hold on a cone around it.
    out.append(check_shape(subject, view, reweighed, tail.value > -len(centre) - 2))
    if how == "thorough" and not subject.is_point:
        out.append(compare_chains(learnt, again(learnt.method.cross_check_method)))
    return out


def _choose_view(subject: Subject, how: str) -> View | Check:
    """The density to compare with, and the amount of work that fits; or a check that says why there is none."""
    learnt = subject.learnt
    rows = None if learnt.data is None else learnt.data.arrays()
    prior = getattr(learnt.method, "prior", True)
    target = Target(learnt.model, prior=prior, jacobian=not all(learnt.model.unbounded))
    climbed = target._replace(jacobian=target.jacobian and not subject.is_point)
    size, few = affordable(learnt, climbed, rows), affordable_on_few(learnt, climbed, rows)
    if how == "thorough":
        starts, points = (0, 0) if size is None else size[:2]
        size, few = THOROUGH._replace(starts=max(THOROUGH.starts, starts), points=max(THOROUGH.points, points)), None
    sentence = "not verified: with so many rows it would take too long; use verify='thorough' to verify nevertheless"
    check = Check("verified", 0.0, "caution", sentence)
    if few is not None:
        check, view = view_few(subject, target, climbed, rows, few)
        if view is not None:
            return view
    return check if size is None else view_all(subject, target, climbed, rows, size)


def _climb_target(subject: Subject, view: View) -> list[Mode]:
    """The modes of the target with the Jacobian; earlier climbs of a point estimate maximised it without the Jacobian.

    The new climbs start at the earlier ends. Of ends with equal values, only one is used.
    """
    distinct = np.unique(np.round(view.ends.values / climbs.SAME_MODE), return_index=True)[1]
    ends = climbs.climb(view.target, view.rows, view.ends.positions[distinct], subject.centre, subject.root)
    return climbs.modes(view.target, view.rows, ends, subject.root)


def _check_rounding(view: View, draws: np.ndarray, seed: int) -> list[Check]:
    """Checks how much rounding errors change the log density between each draw (n, d) and a neighbouring number.

    There is no check if the change is small.
    """
    bits = np.finfo(jnp.result_type(float))
    positions = draws.astype(bits.dtype)
    signs = np.random.default_rng(seed).choice([-2.0, 2.0], positions.shape)
    neighbours = (positions * (1 + signs * bits.eps)).astype(bits.dtype)
    (values, slopes), others = view.target.look(view.rows, positions), view.target.at(view.rows, neighbours)
    steps = neighbours.astype(np.float64) - positions
    errors = others - values - np.sum(slopes * steps, 1)
    noise = float(np.sqrt(np.mean(np.square(errors[np.isfinite(errors)])) / 2)) if np.isfinite(errors).any() else 0.0
    if noise <= ROUNDING[0]:
        return []
    sentence = f"nats by which rounding to {bits.bits} bits changes the log density, and thereby draws and weights"
    remedy = "use units in which numbers are near 1, or jax.config.update('jax_enable_x64', True)"
    return [Check("rounding", noise, "caution" if noise <= ROUNDING[1] else "reject", f"{sentence}: {remedy}")]
