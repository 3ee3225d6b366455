"""Verifies a posterior against its density: modes that it did not visit, its means and sds, its tails."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from tractable.core.belief import Fitted, Moments, Point, values_of, weighted_quantiles
from tractable.core.check import Check
from tractable.core.tree import PyTree
from tractable.diagnostics import climbs, moves, networks, tails
from tractable.diagnostics.climbs import Mode
from tractable.diagnostics.few import sampled
from tractable.diagnostics.importance import KHAT_USED, khat
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import ORDER
from tractable.diagnostics.reweighed import Reweighed, reweigh
from tractable.diagnostics.target import Target, gradient_work

Verify = Literal["auto", "thorough", None]

LARGEST = 200  # most parameters for which a posterior is verified
WORK = 1e10  # operations that verification may always spend: about two seconds
WORK_ON_MANY = 1.5e10  # the same where rows are many: their operations go side by side
SHARE = 0.25  # share of the run's own work that it may spend, where that is more
MEANS_OFF = 0.2  # allowed error of a mean, in posterior sds
SDS_OFF = 1.25  # allowed error of an sd, as a factor
REJECT_MARGIN = 2.5  # standard errors by which an error must exceed the limit for "reject"
UNCERTAIN = math.log(SDS_OFF) / REJECT_MARGIN  # standard error of log sd above which it is no estimate to compare with
TRUST_MARGIN = 2.0  # standard errors by which an error must lie below the limit for "trust"
SETTLED = 1.02  # largest R-hat at which another method's chains are compared with a result
LEAST_ESS = 200  # least effective sample size of the weights, and least number of draws, to judge by
HEAVY = 0.35  # tail index of the draws (1/ν of a t) above which quantiles are compared too
SHORT = 1.25  # moves alone see so much less than the error: in the arms of a banana in ten dimensions they take long
KHAT_ALONE = 0.5  # largest at which they need no second opinion
BEFORE = "places before"  # of what a run found: where results stood in whose place others are
SHAPE, ERRORS, HIDDEN = "means and sds", "standard errors", "no standard errors"
UNVISITED = 0.05  # share of the mass above which an unvisited mode rejects a posterior
RARE_SHARE = 0.02  # share of the climbs; a maximum met by no more of them suggests others that none met
FAR_BELOW = 100.0  # nats below the highest end of a climb at which another is no second mode
LEAST_ROWS = 1 << 14  # rows that may stand for all
TRIED, UNLIKE = 16, 0.2  # draws at which a sample's density is compared with all rows', and nats by which it may differ
LEAST_ON_ALL = 30  # gradients on all rows, besides a curvature's, that a look at a sample of them takes
ROUNDED, NOISE = 64, (0.1, 0.5)  # draws at which rounding is measured; nats of it up to which it is trust, and caution
BETTER = 0.1  # nats by which another maximum must be higher to reject a point


class Size(NamedTuple):
    """How much work verification does."""

    starts: int  # of climbs
    points: int  # screened for places that stand out, within the posterior and around it each
    places: int  # drawn in each round of importance sampling
    walkers: int  # draws moved by Hamiltonian Monte Carlo

    @property
    def gradients(self) -> float:
        """About how many gradients the climbs, the screening of their starts and importance sampling take."""
        return 60 * self.starts + 2 * self.points + 4 * self.places / 3


SIZES = [
    Size(24, 960, 1000, 256), Size(12, 480, 500, 128), Size(8, 320, 250, 64), Size(4, 160, 125, 32),
]  # fmt: skip
# Cheap climbs are worth repeating: of 31 components of mixtures in five dimensions 24 starts missed 5, 384 none.
MANY = Size(384, 15_360, 1000, 256)
# So are places: of 20 spikes in slabs of five dimensions MANY missed 7, MOST none; below four, neither missed any.
MOST, FEW_NUMBERS = MANY._replace(points=150_000), 3
THOROUGH = Size(96, 3840, 4000, 1024)


class Few(NamedTuple):
    """A size of verification that a sample of the rows allows."""

    size: Size
    count: int  # of rows


class View(NamedTuple):
    """The density that is compared with a posterior, by all rows or a sample, and where climbs on it ended."""

    checks: list[Check]  # of the sample
    target: Target
    climbed: Target
    rows: PyTree
    size: Size
    ends: climbs.Ends


class Compared(NamedTuple):
    """The worst mean or sd of a posterior against another estimate of it; errors in units of the allowed error."""

    error: float  # the larger of |difference of means|/0.2 sd and |log ratio of sds|/log 1.25; 1 is the limit
    chance: float  # standard error of ``error``
    name: str  # of the parameter
    means: float  # |difference of means|, in sds
    ratio: float  # reported sd over the other estimate
    tails: bool = False  # whether quantiles were compared; ``chance`` then includes the error of the draws
    doubtful: bool = False  # whether some sd that is reported may be finite, and another: no other estimate settles
    lenient: bool = False  # whether an error below the limit is enough for "trust", however near it is

    @classmethod
    def worst(
        cls, errors: np.ndarray, chances: np.ndarray, names: Sequence[str], means: np.ndarray, ratios: np.ndarray
    ) -> "Compared":
        """Of k parameters the one most surely wrong; where none surely is, the one whose error may be largest."""
        surely, perhaps = errors - REJECT_MARGIN * chances, errors + chances
        i = int(np.argmax(surely if surely.max() > 1 else perhaps))
        return cls(float(errors[i]), float(chances[i]), names[i], float(means[i]), float(ratios[i]))

    @property
    def verdict(self) -> str:
        """Chains need no margin below the limit for "trust" (``lenient``): their own checks say how well they know it.

        Where a variance comes from far out, they do not know it.
        """
        if self.error - REJECT_MARGIN * self.chance > 1:
            return "reject"
        slack = 0 if self.lenient else TRUST_MARGIN * self.chance
        return "trust" if self.error + slack < 1 and not self.doubtful else "caution"

    def words(self) -> str:
        if self.tails:
            far = "; tails decide some sd, which is not compared" * self.doubtful
            return f"a quantile of {self.name} is {self.means:.2f} half-widths of the middle 68 % off{far}"
        return f"the mean of {self.name} is {self.means:.2f} sd off and its sd {self.ratio:.2f} times the right one"


def unseen(learnt: Learnt) -> str | None:
    """Why a posterior cannot be compared with its density; None where it can."""
    size, belief = learnt.model.space.size, learnt.belief
    if learnt.model.network_weights and learnt.is_point:
        return "a network has many maxima, and this is one: judge it by held-out rows (held_out=)"
    if learnt.model.is_ladder:
        return "a ladder's weights are not identified: judge it by held-out rows (held_out=)"
    if isinstance(belief, Moments):
        return "not verified: the draws were not kept"
    if isinstance(belief, Fitted) and not belief.q.whole:
        return "not verified: q covers only some of the parameters"
    if size > LARGEST:
        return f"not verified: {size} parameters, and at most {LARGEST} are; compare with another method"
    if learnt.data is not None and not learnt.data.resident:
        return "not verified: the rows are on file; compare with a run on fewer rows in memory"
    return None


@np.errstate(over="ignore", invalid="ignore")  # densities overflow at starting points far out
def verify(learnt: Learnt, how: str | None, again: Callable[..., Learnt], by_rows: bool = False) -> list[Check]:
    """Checks of a posterior against its density; none for methods without a density.

    Each check seeks one kind of error: a mode that the draws did not visit (``climbs``), a mean or sd that is off
    (``reweighed``, or ``moves`` where the weights cannot tell), infinite mass in the tails (``tails``). A network is
    judged by its predictions (``networks``): ``again()`` fits it from another seed, and ``by_rows`` says that held-out
    rows judge it too. A thorough verification also runs another method, ``again(method.beside)``, and compares.
    """
    method, there = learnt.method, learnt.is_point or isinstance(learnt.belief, Moments) or learnt.count > 1
    if learnt.interrupted or not method.verified or method.exact or not there:
        return []
    if how is None:
        return [Check("verified", math.nan, "caution", "the result was not verified, as asked: verify=None")]
    if learnt.model.network_weights and learnt.belief.positions is not None and not learnt.model.is_ladder:
        return networks.look(learnt, how == "thorough", WORK, SHARE, again, by_rows)
    reason = unseen(learnt)
    narrow = method.row_space_posterior(learnt) if reason is not None and how == "auto" else None
    if narrow is not None and unseen(narrow) is None:
        sentence = "numbers that the rows tell of, which are verified; what is left of the weights is drawn given them"
        return [Check("rows' span", narrow.model.space.size, "trust", sentence), *verify(narrow, how, again, by_rows)]
    if reason is not None:
        return [Check("verified", math.nan, "caution", reason)]
    rows = None if learnt.data is None else learnt.data.arrays()
    seed = learnt.seed or 0
    point = learnt.is_point
    target = Target(learnt.model, prior=getattr(method, "prior", True), jacobian=not all(learnt.model.unbounded))
    climbed = target._replace(jacobian=target.jacobian and not point)
    size, few = _affordable(learnt, climbed, rows), _affordable_on_few(learnt, climbed, rows)
    if how == "thorough":
        starts, points = (0, 0) if size is None else size[:2]
        size, few = THOROUGH._replace(starts=max(THOROUGH.starts, starts), points=max(THOROUGH.points, points)), None
    if size is None and few is None:
        sentence = "not verified: with so many rows it would take too long; verify='thorough' does it all the same"
        return [Check("verified", 0.0, "caution", sentence)]
    frame = frame_of(learnt)
    if frame is None:
        sentence = "of the posterior in some direction: without any spread there it cannot be verified"
        return [Check("covariance", 0.0, "caution", sentence)]
    centre, root = frame
    view = None
    if few is not None:
        stands, view = _by_few(learnt, target, climbed, rows, centre, root, few)
        if view is None and size is None:
            return [stands]
    if view is None and size is not None:
        view = _by_all(target, climbed, rows, centre, root, size, seed, _known(learnt))
    assert view is not None  # as one of two sizes was there
    out, target, climbed, rows, size, ends = view
    out += _rounding(target, rows, _draws(learnt, centre, root, ROUNDED), seed)
    tail = tails.check(climbed, rows, centre, root, point, seed)
    out.append(tail)
    modes = climbs.modes(climbed, rows, ends, root)
    if point:
        out.append(_maximum(learnt, climbed, rows, centre, ends, modes))
        if learnt.belief.unconstrained_moments() is None:
            return out
        if target != climbed:
            unlike = np.unique(np.round(ends.values / climbs.SAME_MODE), return_index=True)[1]
            ends = climbs.climb(target, rows, ends.positions[unlike], centre, root)
            modes = climbs.modes(target, rows, ends, root)
    found = reweigh(target, rows, centre, root, modes, size.places, seed)
    if not point:
        out.append(_visited(learnt, modes, found))
    # A density that falls more slowly than r^−(d + 2) on a cone of rays has no variance; a ray stands for its cone.
    out.append(_shape(learnt, target, rows, centre, root, found, size, seed, tail.value > -len(centre) - 2))
    return (
        [*out, _against_other_method(learnt, again(method.cross_check_method))]
        if how == "thorough" and not point
        else out
    )


def _rounding(target: Target, rows: PyTree, draws: np.ndarray, seed: int) -> list[Check]:
    """How much rounding changes the log density from each draw (n, d) to its neighbour; nothing where it is little."""
    bits = np.finfo(jnp.result_type(float))
    here = draws.astype(bits.dtype)
    signs = np.random.default_rng(seed).choice([-2.0, 2.0], here.shape)
    there = (here * (1 + signs * bits.eps)).astype(bits.dtype)
    (values, slopes), others = target.look(rows, here), target.at(rows, there)
    steps = there.astype(np.float64) - here
    off = others - values - np.sum(slopes * steps, 1)
    noise = float(np.sqrt(np.mean(np.square(off[np.isfinite(off)])) / 2)) if np.isfinite(off).any() else 0.0
    if noise <= NOISE[0]:
        return []
    sentence = f"nats by which rounding to {bits.bits} bits moves the log density, so that draws and weights follow it"
    remedy = "use units in which numbers are near 1, or jax.config.update('jax_enable_x64', True)"
    return [Check("rounding", noise, "caution" if noise <= NOISE[1] else "reject", f"{sentence}: {remedy}")]


def _affordable(learnt: Learnt, target: Target, rows: PyTree) -> Size | None:
    """The largest size within a quarter of the run's work or two seconds, counted in operations; None if none fits."""
    work = gradient_work(target, rows)
    allowed = _allowed(learnt, work, WORK)
    if MANY.gradients * work <= WORK / 10:
        return MOST if MOST.gradients * work <= WORK / 5 and learnt.model.space.size > FEW_NUMBERS else MANY
    return next((size for size in SIZES if size.gradients * work <= allowed), None)


def _allowed(learnt: Learnt, work: float, least: float) -> float:
    """Operations that verification may spend, where a gradient takes ``work``."""
    return max(SHARE * (learnt.cost.gradients + learnt.cost.densities / 3) * work, least)


def _affordable_on_few(learnt: Learnt, target: Target, rows: PyTree) -> Few | None:
    """The largest size that a sample of the rows allows; None if none fits, or all rows do.

    All rows are needed for the sample's anchor, for the ends of climbs, and to see whether the sample stands for them.
    """
    model, data, work = learnt.model, learnt.data, gradient_work(target, rows)
    if data is None or not target.prior or model.prior_is_callable or work * SIZES[0].gradients <= WORK:
        return None
    left = _allowed(learnt, work, WORK_ON_MANY) / work - (model.space.size + LEAST_ON_ALL)
    for size in () if model.local is not None else SIZES:
        count = 1 << int(math.log2(max(1, min(data.size / 2, data.size * left / size.gradients))))
        if count >= LEAST_ROWS:
            return Few(size._replace(walkers=max(size.walkers, SIZES[1].walkers)), count)
    return None


def _by_all(
    target: Target, climbed: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, size: Size, seed: int,
    known: np.ndarray,
) -> View:  # fmt: skip
    begin = climbs.starts(climbed, rows, centre, root, size.starts, size.points, seed, known)
    return View([], target, climbed, rows, size, climbs.climb(climbed, rows, begin, centre, root))


def _by_few(
    learnt: Learnt, target: Target, climbed: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, few: Few
) -> tuple[Check, View | None]:
    """Whether a sample of the rows stands for all, and the view by it; None where it does not.

    Climbs go on from the highest places at which they end on the sample, on all rows. Where several modes are left
    their masses are compared, which needs all rows.
    """
    seed, size = learnt.seed or 0, few.size
    some = sampled(target, learnt.data, rows, centre, root, few.count, seed)
    draws = _draws(learnt, centre, root, TRIED)
    off = float(np.std(target._replace(anchored=True).at(some, draws) - target.at(rows, draws)))
    sentence = f"nats by which {few.count:,} rows, corrected to the slope and curvature of all, differ from all"
    if not off <= UNLIKE:
        sentence += ": too many to verify by them, and all would take too long; verify='thorough' takes all"
        return Check("rows looked at", off, "caution", sentence), None
    check, known = Check("rows looked at", off, "trust", sentence), _known(learnt)
    there = _by_all(
        target._replace(anchored=True), climbed._replace(anchored=True), some, centre, root, size, seed, known
    )
    which = climbs.places_met(there.ends, root)
    places = sorted(set(which), key=lambda i: -there.ends.values[i])[: climbs.MODES]
    further = climbs.climb(climbed, rows, there.ends.positions[places], centre, root)
    ends = climbs.Ends(*(a[[places.index(i) for i in which if i in places]] for a in further))
    high = climbs.places_met(ends, root)[ends.values > ends.values.max() - FAR_BELOW]
    if len(set(high)) > 1:
        return check, View([check], target, climbed, rows, SIZES[-1], ends)
    return check, there._replace(checks=[check], ends=ends)


def _known(learnt: Learnt) -> np.ndarray:
    """(k, d) places at which earlier results of this run stood, before it was begun again at better ones."""
    return np.reshape(np.asarray(learnt.found.get(BEFORE, []), np.float64), (-1, learnt.model.space.size))


def frame_of(learnt: Learnt) -> tuple[np.ndarray, np.ndarray] | None:
    """The posterior's mean (d,) and a root (d, d) of its covariance, unconstrained; None where it has no spread."""
    belief, size = learnt.belief, learnt.model.space.size
    if isinstance(belief, Point):
        centre = np.asarray(learnt.point, np.float64)
        if belief.information is None or belief.unconstrained_moments() is None:
            return centre, np.eye(size)
        return _rooted(centre, np.linalg.inv(belief.information))
    flat = np.asarray(belief.positions, np.float64).reshape(-1, size)
    weights = None if belief.weights is None else belief.weights.ravel()
    centre = np.average(flat, axis=0, weights=weights)
    return _rooted(centre, np.atleast_2d(np.cov(flat.T, aweights=weights)))


def _rooted(centre: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    scale = np.sqrt(np.diag(covariance))
    if not np.all(np.isfinite(covariance)) or not np.all(scale > 0):
        return None
    correlation = covariance / np.outer(scale, scale)
    return centre, scale[:, None] * np.linalg.cholesky((correlation + correlation.T) / 2 + 1e-9 * np.eye(len(scale)))


def _maximum(
    learnt: Learnt, target: Target, rows: PyTree, centre: np.ndarray, ends: climbs.Ends, modes: list[Mode]
) -> Check:
    """Whether a climb ended above the point, how many climbs agree with it, and whether other maxima may be unmet.

    A maximum that few climbs met suggests others that none met (Good 1953). Where the run stood before counts as one.
    """
    own = float(target.at(rows, centre[None])[0])
    slack = BETTER + 1e-6 * abs(own)
    best = int(np.argmax(ends.values))
    information = learnt.belief.information if isinstance(learnt.belief, Point) else None
    if information is not None and np.all(np.linalg.eigvalsh(information) > 0):
        around = Mode(centre, own, np.linalg.cholesky(np.linalg.inv(information)), 0.0)
        if not climbs.rounded(target, rows, around):
            sentence = "the density around it does not fall as around a maximum, by half a nat at one standard error"
            return Check("starts that agree", math.nan, "caution", f"{sentence}: it may be a ridge, or recede")
    above = float(ends.values[best]) - own
    same = int(np.sum(np.abs(ends.values - own) <= slack))
    if above > slack:
        where = _place(learnt, ends.positions[best])
        sentence = f"nats by which another climb ended higher, at {where}; use starts={2 * len(ends.values)}"
        return Check("higher maximum", above, "reject", sentence, tuple(ends.positions[best].tolist()))
    met = climbs.met(ends, modes)
    if len(modes) > 1 and met.min() <= max(1, RARE_SHARE * len(ends.values)):
        rare, where = met.min(), _place(learnt, modes[int(np.argmin(met))].position)
        sentence = f"maxima; of {len(ends.values)} climbs only {rare} met the one near {where}: others may be higher"
        return Check("starts that agree", float(len(modes)), "caution", sentence)
    sentence = f"of {len(ends.values)} climbs from overdispersed starts ended as high; none ended higher"
    return Check("starts that agree", float(same), "trust" if same else "caution", sentence)


def _place(learnt: Learnt, position: np.ndarray) -> str:
    values = values_of(learnt.model, position[None])[0]
    shown = ", ".join(f"{name} = {value:.3g}" for name, value in zip(learnt.names[:3], values, strict=False))
    return shown + (", …" if len(values) > 3 else "")


def _visited(learnt: Learnt, modes: list[Mode], found: Reweighed | None) -> Check:
    """Compares each mode's share of the mass with its share of the draws."""
    if not modes:
        return Check("modes", 0.0, "trust", "no climb from an overdispersed start ended at a maximum that is not flat")
    masses = np.array([m.log_mass for m in modes])
    share = np.exp(masses - masses.max())
    share /= share.sum()
    if found is not None and believed(found):
        share = found.weights @ _nearest(modes, found.positions)
    flat = np.asarray(learnt.belief.positions, np.float64).reshape(-1, learnt.model.space.size)
    weights = None if learnt.weights is None else learnt.weights.ravel()
    drawn = np.average(_nearest(modes, flat), axis=0, weights=weights)
    missed = np.flatnonzero((share > UNVISITED) & (drawn < share / 4))
    if len(missed):
        worst = missed[int(np.argmax(share[missed]))]
        where, mass = _place(learnt, modes[worst].position), f"about {100 * share[worst]:.0f} %"
        sentence = f"found; a mode near {where} holds {mass} of the mass and {100 * drawn[worst]:.0f} % of the draws"
        better = worst == int(np.argmax(share))
        return Check(
            "modes", float(len(modes)), "reject", sentence, tuple(modes[worst].position.tolist()) if better else None
        )
    sentence = "found by climbs from overdispersed starts; the draws visit all that hold more than 5 % of the mass"
    return Check("modes", float(len(modes)), "trust", sentence)


def _nearest(modes: list[Mode], positions: np.ndarray) -> np.ndarray:
    """(n, modes) one-hot: the mode that explains each place best."""
    if len(modes) == 1:
        return np.ones((len(positions), 1))
    logs = []
    for m in modes:
        white = np.linalg.solve(m.root, (positions - m.position).T)
        # By t's with 4 degrees of freedom: far out, normals would be told apart by their tails alone.
        logs.append(m.value - (4 + len(m.position)) / 2 * np.log1p(np.sum(white**2, 0) / 4))
    best = np.argmax(np.stack(logs, 1), 1)
    return np.eye(len(modes))[best]


def believed(found: Reweighed) -> bool:
    """Whether the importance weights are good enough to judge by."""
    return found.ess >= LEAST_ESS and found.khat <= KHAT_USED


def _shape(
    learnt: Learnt, target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, found: Reweighed | None,
    size: Size, seed: int, endless: bool,
) -> Check:  # fmt: skip
    """Compares means and sds with importance sampling's or, if its weights cannot tell, with those of moved draws."""
    point = learnt.is_point
    compared, by, short = None, "", ""
    if found is not None and believed(found):
        by = f"{len(found.values):,} weighted places with an ESS of {found.ess:,.0f}"
        moments = found.moments()
        compared = _against(learnt, *moments)
        if compared is not None:
            compared = compared._replace(lenient=learnt.method.chained and not found.long.any())
        elif not point:
            settled = (moments[3] <= UNCERTAIN) | learnt.model.fixed
            doubtful = not (endless or found.endless(~settled))
            compared = _quantiles(learnt, found.values, found.weights, found.ess)._replace(doubtful=doubtful)
    chained = learnt.method.chained
    # The k-hat of so many weights is known to 0.1: where it may exceed the limit, weights alone cannot earn trust.
    doubted = compared is not None and found is not None and not chained and found.khat > KHAT_ALONE
    if compared is None or doubted or (compared.verdict == "caution" and not compared.tails):
        again = _moved(learnt, target, rows, centre, root, size, seed)
        if again is not None and not chained and (found is None or not believed(found)):
            again = again._replace(error=SHORT * again.error, chance=SHORT * again.chance)
            short = " (they see too little: a quarter is added)"
        if again is not None and _preferred(again, compared, math.inf if found is None else found.khat, chained):
            compared, by = again, f"{size.walkers} draws moved by Hamiltonian Monte Carlo{short}"
    if compared is None:
        verdict, error = "trust" if chained else "caution", math.nan
        sentence = "neither reweighting nor moving draws can tell whether means and sds are right"
        sentence += "; only the chains' agreement speaks for them" if chained and not point else ""
    else:
        verdict, error = compared.verdict, compared.error
        sentence = f"largest error, where 1 is allowed: {compared.words()}, by {by}"
    if point:  # standard errors are shown only where they are the posterior's sds, and the point is its mean
        name, sentence = (ERRORS, sentence) if verdict == "trust" else (HIDDEN, f"not shown: {sentence}")
        return Check(name, error, "trust", sentence)
    other = "draw more, or change the parameters" if chained else "use another method, such as NUTS"
    remedy = {"trust": "", "caution": ": too near the limit to tell", "reject": f": {other}"}
    return Check(SHAPE, error, verdict, sentence if compared is None else sentence + remedy[verdict])


def _preferred(moved: Compared, weighed: Compared | None, shape: float, chained: bool) -> bool:
    """Whether moves decide: where weights cannot tell, if moves can; else if moves say worse.

    Weights are doubted by their k-hat, ``shape``. Where it is good and they see an error at the limit or beyond it,
    moves that see none may have stayed in the mode where they began; beside chains, which moves need only not reject,
    they settle nothing either.
    """
    if weighed is None:
        return True
    by_moves, by_weights = moved.verdict, weighed.verdict
    if (shape > KHAT_ALONE and not chained) or (shape <= KHAT_ALONE and (chained or weighed.error >= 1)):
        return ORDER.index(by_moves) > ORDER.index(by_weights)
    return by_moves != "caution"


def _against(
    learnt: Learnt, mean: np.ndarray, error: np.ndarray, sd: np.ndarray, sd_error: np.ndarray
) -> Compared | None:
    """The worst mean or sd against another estimate; None where that estimate's sds are too uncertain."""
    own_mean, own_sd = learnt.flat_moments
    # A parameter held at a kink of its prior has no sd, a constant none to compare.
    checked = np.flatnonzero(~np.isnan(own_sd) & ~learnt.model.fixed)
    own_mean, own_sd, names = own_mean[checked], own_sd[checked], [learnt.names[i] for i in checked]
    mean, error, sd, sd_error = mean[checked], error[checked], sd[checked], sd_error[checked]
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.abs(own_mean - mean) / sd / MEANS_OFF
        ratio = np.abs(np.log(own_sd / sd)) / math.log(SDS_OFF)
        off_error, ratio_error = error / sd / MEANS_OFF, sd_error / math.log(SDS_OFF)
    if not len(checked) or not np.all(np.isfinite(off)) or np.max(sd_error) > UNCERTAIN:
        return None
    by_mean = off >= ratio
    errors, chances = np.where(by_mean, off, ratio), np.where(by_mean, off_error, ratio_error)
    return Compared.worst(errors, chances, names, off * MEANS_OFF, own_sd / sd)


def _against_other_method(learnt: Learnt, other: Learnt) -> Check:
    """Compares means and sds with those of another method's chains, whose Monte-Carlo errors count."""
    name = type(other.method).__name__
    seen, (mean, sd) = other.diagnosed, other.flat_moments
    if not np.all(seen.rhat <= SETTLED):
        sentence = f"R-hat of {name}, whose chains do not agree and so cannot be compared"
        return Check(f"{name} beside it", float(np.nanmax(seen.rhat)), "caution", sentence)
    compared = _against(learnt, mean, seen.mcse_mean, sd, seen.mcse_sd / sd)
    if compared is None:
        sentence = f"the sds by {name} are too uncertain to compare: tails decide them"
        return Check(f"{name} beside it", math.nan, "caution", sentence)
    sentence = f"largest error, where 1 is allowed: {compared.words()}, by {name}"
    verdict = compared._replace(lenient=learnt.method.chained).verdict
    return Check(f"{name} beside it", compared.error, verdict, sentence)


def _with_tails(
    learnt: Learnt, compared: Compared | None, values: np.ndarray, weights: np.ndarray | None, worth: float
) -> Compared | None:
    """The comparison of moments; under heavy tails that of quantiles, or the worse of the two."""
    if learnt.is_point or (compared is not None and not _heavy(learnt)):
        return compared
    by_quantiles = _quantiles(learnt, values, weights, worth)
    if compared is None:
        return by_quantiles
    return max(compared, by_quantiles, key=lambda c: ORDER.index(c.verdict))


def _heavy(learnt: Learnt) -> bool:
    """Whether some parameter's draws have tails so heavy that an estimated sd does not settle."""
    flat = learnt.values.reshape(-1, len(learnt.names))[:, ~learnt.model.fixed]
    if len(flat) < LEAST_ESS:
        return False
    flat = flat[_evenly(learnt, len(flat))]
    with np.errstate(divide="ignore"):
        away = np.sort(np.log(np.abs(flat - np.median(flat, 0))), 0)[::-1]
    tail = away[: 3 * math.isqrt(len(flat))]
    hill = np.mean(tail - tail[-1], 0)  # overestimates the tail index: few parameters then need the costlier k-hat
    return any(khat(column[np.isfinite(column)]) > HEAVY for column in away.T[hill > HEAVY])


def _evenly(learnt: Learnt, count: int) -> np.ndarray:
    """Indices (count,) of draws that stand for the posterior: evenly over all, or over their weights' sum."""
    if learnt.weights is None:
        return np.linspace(0, learnt.belief.chains * learnt.count - 1, count).astype(int)
    reached = np.cumsum(learnt.weights.ravel(), dtype=np.float64)
    return np.searchsorted(reached, (np.arange(count) + 0.5) / count * reached[-1])


def _quantiles(learnt: Learnt, values: np.ndarray, weights: np.ndarray | None, worth: float) -> Compared:
    """Compares the 5, 50 and 95 % quantiles; the allowed error is a fifth of the half-width of the middle 68 %."""
    levels, moving = [0.05, 0.16, 0.5, 0.84, 0.95], ~learnt.model.fixed
    theirs = weighted_quantiles(values[:, moving], levels, weights)
    flat = learnt.values.reshape(-1, len(learnt.names))[:, moving]
    mine = None if learnt.weights is None else learnt.weights.ravel().astype(np.float64)
    own = weighted_quantiles(flat, levels, mine)
    half = (theirs[3] - theirs[1]) / 2
    off = np.abs(own - theirs)[[0, 2, 4]].max(0) / half
    worth_mine = len(flat) if mine is None else mine.sum() ** 2 / np.sum(mine**2)
    count = learnt.diagnosed.tail[moving] if learnt.method.chained else np.full(len(off), worth_mine)
    steps = [0.02, 0.08, 0.47, 0.53, 0.92, 0.98]  # either side of each of the three, for the slope dq/dp
    run = weighted_quantiles(flat, steps, mine)
    steep = np.stack([(run[i + 1] - run[i]) / (steps[i + 1] - steps[i]) for i in (0, 2, 4)]) / half
    spread = np.sqrt(np.array([0.05, 0.5, 0.95]) * np.array([0.95, 0.5, 0.05]))[:, None] * steep  # √p(1 − p) dq/dp
    chances = spread.max(0) * np.sqrt(1 / np.maximum(count, 1) + 1 / worth) / MEANS_OFF
    names = [learnt.names[i] for i in np.flatnonzero(moving)]
    found = Compared.worst(off / MEANS_OFF, chances, names, off, (own[3] - own[1]) / 2 / half)
    return found._replace(tails=True)


def _moved(
    learnt: Learnt, target: Target, rows: PyTree, centre: np.ndarray, root: np.ndarray, size: Size, seed: int
) -> Compared | None:
    """Compares the posterior's moments with those of its draws after moves; None where these could not be moved."""
    found = moves.move(target, rows, _draws(learnt, centre, root, size.walkers), centre, root, seed)
    if not found.usable:
        return None
    values = values_of(target.model, found.after).astype(np.float64)  # (t, c, k)
    walkers = values.mean(0)
    mean, sd = values.mean((0, 1)), values.std((0, 1))
    error = walkers.std(0, ddof=1) / math.sqrt(values.shape[1])
    squares = np.square(values - mean).mean(0)
    sd_error = squares.std(0, ddof=1) / math.sqrt(values.shape[1]) / np.maximum(squares.mean(0), 1e-300) / 2
    flat = values.reshape(-1, values.shape[-1])
    compared = _against(learnt, mean, error, sd, sd_error)
    if compared is not None:
        compared = compared._replace(lenient=learnt.method.chained)
    return _with_tails(learnt, compared, flat, None, float(values.shape[1]))


def _draws(learnt: Learnt, centre: np.ndarray, root: np.ndarray, count: int) -> np.ndarray:
    """(count, d) unconstrained draws that stand for the posterior; of a point those of the normal around it."""
    if learnt.is_point:
        return centre + np.random.default_rng(learnt.seed or 0).standard_normal((count, len(centre))) @ root.T
    return np.asarray(learnt.belief.positions, np.float64).reshape(-1, len(centre))[_evenly(learnt, count)]


def shape_seen(checks: Sequence[Check]) -> bool:
    """Whether means and sds were compared with another estimate, which does not reject them."""
    return any(c.name == SHAPE and c.verdict != "reject" and not math.isnan(c.value) for c in checks)
