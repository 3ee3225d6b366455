"""Nested Laplace: the weights are normal given one other parameter, which is integrated out numerically."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy  # its submodules load at first use

from tractable.core.check import Check
from tractable.core.errors import ModelError, RunError
from tractable.core.model import Model
from tractable.core.rows import Data
from tractable.core.settings import Count, Positive
from tractable.diagnostics.belief import Draws
from tractable.diagnostics.importance import KHAT_USED, khat, khat_limit
from tractable.diagnostics.learnt import Learnt
from tractable.diagnostics.report import number
from tractable.diagnostics.target import Target, gradient_work
from tractable.engine.method import Method, Outcome, Session
from tractable.engine.session import Counter
from tractable.glm.conditional import Conditional, Density, Joint
from tractable.glm.families import SphericalT
from tractable.glm.linear import with_priors
from tractable.glm.narrow import Narrow, narrowed
from tractable.mcmc.hamiltonian_methods import NUTS
from tractable.vi import quadrature
from tractable.vi.quadrature import Linear

FREEDOM, WIDER = 5.0, 1.2  # degrees of freedom of a t with longer tails, and its factor on the covariance
NEAR = 0.2  # k-hat of the normals' draws above which a t is drawn from instead
WEIGHED = 2e7  # rows × draws up to which importance weights are computed
FALL = 12.0  # nats below the maximum to which the density of u is followed
FALL_POOLED = 8.0  # the same where the weights' scale is integrated over too: the grid is one of two numbers
STEP = 0.75  # sds of u between grid points: the trapezoid rule's error is then below 1e-8
ROUNDING = 1e-2  # nats left to climb below which Newton steps may be rounding
REACH = 12.0  # largest |u|: a noise from 6e-6 to 160,000
FURTHEST = 40  # most grid points on either side
ALLOWED = 60.0  # seconds up to which NUTS is run unasked in place of a rejected result
COMPILING, LEAPFROGS, RATE = 12.0, 15, 1e10  # of its forecast: seconds, gradients a step, operations a second
DENSE = 100  # most numbers for which its mass matrix is a full one


@dataclass(frozen=True, kw_only=True)
class INLA(Method):
    """Nested Laplace for a linear predictor's weights β and at most one other parameter u (Rue, Martino & Chopin 2009).

        p(β, u | y) ≈ p̃(u | y) N(β; β̂(u), H(u)⁻¹),      H(u) = −∇²_β log p(y, β | u) at its maximum β̂(u)
        log p̃(u | y) = log p(y, β̂(u), u) − ½ log det H(u) + constant

    If y is normal, the only error is that of the integral over u (ridge regression with its noise integrated out).
    Elsewhere, as in logistic, Poisson or robust regression, the error depends on how far the likelihood is from normal.
    Importance weights correct it and k-hat measures it, where the rows are few enough to compute weights.

    Where columns are more than rows, weights are taken in the rows' span (``glm.narrow``): the work is that of a
    table with as many columns as rows, and the answer is the same.

    Weights that share a scale s (``glm.linear.pooled``, a spherical t: w | s ~ N(0, s²)) are normal given s too:
    log s has a grid of its own, and every point of it one of u.

    Where η has several components, as in softmax regression, or there are several other parameters, as the cutpoints
    of ordered grades, all are approximated together by one Laplace normal, up to 400 of them, weighted in the same way.

    Needs a likelihood that goes ``Through`` a linear predictor, normal priors on its weights, and data in memory, as
    ``glm.linear.generalised_linear`` makes. Parts of a model that have nothing in common (``Model.parts``), as
    several targets, are learnt one by one: p(θ | y) is the product of theirs.

    Where classes are nearly separable the posterior is skewed in many directions at once, and verification rejects the
    normal. Then ``NUTS`` learns it, if that is forecast to take a minute at most:

        seconds ≈ 12 + steps × 15 gradients × operations of a gradient / 10¹⁰,      steps: of all chains, warm-up too

    so up to about 600,000 numbers in the table, times classes. The forecast is good to a factor of three.

    Args:
        draws: independent draws of the posterior; the first two moments of β given u are exact.
        tolerance: nats left to climb at which a climb to β̂(u) ends.
        steps: most Newton steps to β̂(u).
        instead: "nuts" learns what verification rejects, and the report says so; None keeps the rejected result.
    """

    label: ClassVar[str] = "inla"
    independent: ClassVar[bool] = True
    verified: ClassVar[bool] = True
    draws: Count = 4000
    tolerance: Positive = 1e-6
    steps: Count = 50
    instead: Literal["nuts"] | None = "nuts"

    def learn(self, session: Session) -> Outcome:
        began = time.perf_counter()
        blocks = suited(session.model, session.data)
        if not blocks:
            raise ModelError(
                "INLA expects a likelihood that goes Through a linear predictor, normal priors on its weights and few "
                "other numbers, on data in memory; this model has another shape. Use Laplace() or NUTS()."
            )
        count = Counter(session, "climbing", 64)
        given = [(Conditional if each.nested else Joint)(*each[:3], count) for each in blocks]
        layers = [self._layers(each, block.pool, session) for each, block in zip(given, blocks, strict=True)]
        climbed = time.perf_counter()
        rng = np.random.default_rng(np.asarray(jax.random.key_data(session.key)).tolist())
        drawn = [self._draw(rng, *each) for each in zip(given, layers, strict=True)]
        positions = np.empty((len(drawn[0][0]), session.model.space.size))
        for each, (own, _, _) in zip(blocks, drawn, strict=True):
            positions[:, each.where] = own if each.narrow is None else each.narrow.widened(rng, own)
        logs = [log_weights for _, log_weights, _ in drawn if log_weights is not None]
        shapes = [shape for *_, shape in drawn if not np.isnan(shape)]
        weights, shape = None, max(shapes, default=float("nan"))
        if logs and shape != -np.inf:
            joint, of_all = _weigh(sum(logs, np.zeros(len(positions))))
            weights, shape = joint[None], shape if len(logs) == 1 else of_all
        tops = [max(layer.log_density for layer in each) for each in layers]
        heavy_layers = [
            [a for a in each if a.log_density > top - FALL / 2] for each, top in zip(layers, tops, strict=True)
        ]
        places = [layer.places for each in heavy_layers for layer in each]
        heights = [[layer.log_density for layer in each] for each in layers if each[1:]]
        heights += [[place.log_density for place in each] for each in places if each[1:] or not heights]
        found = {
            "evaluations": count.done, "places": max(map(len, heights)), "khat": shape,
            "left": max(place.left for each in places for place in each),
            "end": min(float(max(logs) - max(logs[0], logs[-1])) for logs in heights),
        }  # fmt: skip
        seconds = {"climbing": climbed - began, "drawing": time.perf_counter() - climbed}
        info = {} if weights is None else {"weight": weights}
        return Outcome(Draws(positions=positions[None], info=info, weights=weights), found, seconds, session.stop())

    def _draw(
        self, rng: np.random.Generator, given: Density, layers: list["_Layer"]
    ) -> tuple[np.ndarray, np.ndarray | None, float]:
        """Draws of a block, their log weights where these are known, and the k-hat of these."""
        counts = (
            [self.draws] if len(layers) == 1 else _share_draws(rng, [layer.log_density for layer in layers], self.draws)
        )
        known = not given.quadratic and self.draws * given.size <= WEIGHED
        drawn, logs = [], []
        for layer, count in zip(layers, counts, strict=True):
            if count:
                given.set_scale(layer.scale)
                positions, log_q = _draw_normals(rng, given.linear, layer.places, count)
                drawn.append(positions)
                if known:
                    one = layer.places[0].log_density if len(layers) > 1 and len(layer.places) == 1 else 0.0
                    log_q = given.log_densities(positions) - log_q - one
                logs.append(log_q)
        order = rng.permutation(self.draws) if len(layers) > 1 else slice(None)
        positions, log_weights = np.concatenate(drawn)[order], np.concatenate(logs)[order]
        if not known:
            return positions, None, float("nan")
        weights, shape = _weigh(log_weights)
        if shape > NEAR and len(layers) == 1:  # a t has tails that the normals miss, but lies worse where it is skewed
            wider, log_q = _draw_wider(rng, positions, weights)
            of_wider = given.log_densities(wider) - log_q
            _, other = _weigh(of_wider)
            if other < shape:
                return wider, of_wider, other
        return positions, log_weights, shape

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        return info.get("weight")

    def _layers(self, given: Density, pool: "_Pool | None", session: Session) -> list["_Layer"]:
        """The normals given each scale s of pooled weights at grid points of log s; one layer where none are pooled."""
        if pool is None:
            return [_Layer(0.0, None, self._places(given, session, FALL))]
        found: dict[float, _Layer] = {}

        def at(v: float) -> float:
            """Minus log p̃(v | y) of s = c eᵛ, v flat: s² ~ InverseGamma(ν/2, ν c²/2)."""
            if not abs(v) <= REACH:
                return 1e300
            near = min(found, key=lambda other: abs(other - v)) if found else None
            scale = np.where(pool.which, pool.scale * math.exp(v), 0.0)
            given.set_scale(scale)
            places = self._places(given, session, FALL_POOLED, None if near is None else found[near].places)
            prior = -pool.freedom * (v + math.exp(-2 * v) / 2) - np.sum(pool.which) * v
            found[v] = _Layer(prior + _evidence(places), scale, places)
            return -found[v].log_density

        return [found[v] for v in _grid(at, found, session.stop, 0.0, FALL_POOLED)]

    def _places(
        self, given: Density, session: Session, fall: float, like: "list[Place] | None" = None
    ) -> "list[Place]":
        """β̂ and H at grid points of u to where its density has fallen; a single point where there is no u.

        ``like`` are the places of a similar density, near which u is sought.
        """
        if given.linear.other is None:
            return [self._conditional(given, 0.0, given.linear.centre if like is None else like[0].beta, session)]
        found: dict[float, Place] = {}
        before = [] if like is None else like

        def at(u: float) -> float:
            """Minus log p̃(u); 1e300 where |u| > REACH, beyond single precision."""
            if not abs(u) <= REACH:
                return 1e300
            known = [*found.values(), *before]
            near = min(known, key=lambda p: abs(p.u - u)).beta if known else given.linear.centre
            found[u] = self._conditional(given, u, near, session)
            return -found[u].log_density

        start = max(before, key=lambda p: p.log_density).u if before else 0.0
        return [found[u] for u in _grid(at, found, session.stop, start, fall)]

    def _conditional(self, given: Density, u: float, beta: np.ndarray, session: Session) -> "Place":
        """Newton steps to β̂(u), halved while they do not climb."""
        value, slope, precision = given.slope(beta, u)
        if not np.isfinite(value):
            raise RunError("INLA began where the log density is not finite. Give NUTS(), or standardise the inputs.")
        before = np.inf
        for _ in range(self.steps):
            step = np.linalg.solve(precision, slope)
            left = float(slope @ step) / 2
            # Newton steps that stop gaining are rounding.
            if left <= self.tolerance or (left < ROUNDING and left > before / 4) or session.stop():
                break
            size, before = 1.0, left
            while True:
                new = given.slope(beta + size * step, u)
                if new[0] >= value - 1e-7 * abs(value) or size < 1e-12:
                    break
                size /= 2
            beta, (value, slope, precision) = beta + size * step, new
        root = np.linalg.cholesky(precision)
        narrow = np.linalg.inv(root).T
        if given.quadratic and not given.compared:  # the climb began at its end: look an sd or so away
            given.slope(beta + narrow.sum(1), u)
        return Place(u, beta, narrow, value - float(np.sum(np.log(np.diag(root)))), left)

    def checks(self, posterior: Learnt) -> list[Check]:
        found = posterior.found
        left, end = found["left"], found["end"]
        verdict = "trust" if left <= 1e-2 else "reject"
        out = [Check("left to climb", left, verdict, "nats that the climb to β had left, at the worst grid point")]
        if found["places"] > 1:
            verdict = "trust" if end > FALL / 2 else "reject"
            sentence = f"nats that the other parameter's log density falls at the ends of {found['places']} grid points"
            out.append(Check("ends", end, verdict, sentence))
        shape = found["khat"]
        if not np.isnan(shape):
            limit = khat_limit(posterior.count)
            verdict = "trust" if shape <= limit else "caution" if shape <= KHAT_USED else "reject"
            out.append(Check("k-hat", shape, verdict, f"tail of the draws' importance weights, good up to {limit:.2g}"))
        return out

    def row_space_posterior(self, posterior: Learnt) -> Learnt | None:
        model, data = posterior.model, posterior.data
        if data is None or model.parts or data.size >= model.space.size:
            return None
        # Of classes the draws are weighed, and what verification rejects NUTS would learn, which mixes badly there.
        narrow = narrowed(model, data) if math.isnan(posterior.found["khat"]) else None
        if narrow is None:
            return None
        positions = narrow.projected(np.asarray(posterior.belief.positions)[0])
        belief = replace(posterior.belief, positions=positions[None])
        return replace(posterior, model=narrow.model, belief=belief, verification=())

    def otherwise(self, posterior: Learnt) -> tuple[Method, Check] | None:
        wrong = [c for c in (*self.checks(posterior), *posterior.verification) if c.verdict == "reject"]
        if self.instead is None or not wrong or posterior.data is None or any(c.name == "tails" for c in wrong):
            return None  # no method draws from what has no finite mass
        method = NUTS(dense=posterior.model.space.size <= DENSE)
        work = gradient_work(Target(posterior.model), posterior.data.arrays())
        forecast = COMPILING + method.chains * (method.draws + method.warmup) * LEAPFROGS * work / RATE
        if forecast > ALLOWED:
            sentence = (
                f"seconds that NUTS is forecast to take, more than the {ALLOWED:.0f} that it may unasked; ask for it "
                f"by NUTS(dense={method.dense}), or --method nuts --set dense={str(method.dense).lower()}"
            )
            return method, Check("NUTS instead", forecast, "reject", sentence)
        why = "; ".join(f"{c.name} {number(float(c.value))}, {c.sentence}" for c in wrong)
        sentence = f"seconds; its result was rejected, so NUTS learnt this one: {why}"
        return method, Check("INLA first", sum(posterior.seconds.values()), "trust", sentence)


def _grid(
    at: Callable[[float], float], found: Mapping[float, Any], stop: Callable[[], bool], start: float, fall: float
) -> list[float]:
    """Evenly spaced numbers to where a density has fallen; ``at`` is minus its logarithm, kept in ``found``."""
    from scipy.optimize import minimize_scalar

    climbed: Any = minimize_scalar(at, bracket=(start, start - 0.5), tol=1e-3, options={"maxiter": 100})
    best = float(climbed.x)
    top, width = -at(best), 0.1
    for _ in range(20):  # find a width at which the log density falls by half a nat on the slower side
        falls = top + min(at(best + width), at(best - width))
        if stop() or 0.2 < falls < 1.0:
            break
        width *= float(np.clip(np.sqrt(0.5 / max(falls, 1e-6)), 0.1, 10.0))
    grid = [best]
    for side in (-1, 1):
        for i in range(1, FURTHEST + 1):
            u = best + side * i * STEP * width
            fallen = top + at(u)
            grid += [u] if u in found else []
            if stop() or fallen > fall:
                break
    return sorted(grid)


class Place(NamedTuple):
    """The weights' normal given u."""

    u: float
    beta: np.ndarray  # (d,) the normal's mean; 0 at ``other``
    root: np.ndarray  # (d, d) R, R Rᵀ = H⁻¹
    log_density: float  # of u, up to a constant
    left: float  # nats left to climb


class _Layer(NamedTuple):
    """The normals given one scale of pooled weights."""

    log_density: float  # of log s, up to a constant
    scale: np.ndarray | None  # (d,) s where a weight is pooled, else 0; None where none is
    places: list[Place]


class _Pool(NamedTuple):
    """Weights with a spherical t prior: w | s ~ N(0, s²), s² ~ InverseGamma(ν/2, ν c²/2)."""

    which: np.ndarray  # (d,)
    freedom: float  # ν
    scale: float  # c


def _evidence(places: list[Place]) -> float:
    """log ∫ p̃(u) du, up to a constant."""
    heights = np.array([place.log_density for place in places])
    step = places[1].u - places[0].u if len(places) > 1 else 1.0
    return float(scipy.special.logsumexp(heights)) + math.log(step)


class _Block(NamedTuple):
    """A part of a model that has nothing in common with others, or all of it."""

    model: Model
    data: Data
    linear: Linear  # what weights are normal given
    nested: bool  # at most one number; else all numbers are taken together
    where: np.ndarray  # its numbers in a position
    pool: _Pool | None = None
    narrow: Narrow | None = None  # how its numbers follow from the weights of ``model``, which are fewer


def suited(model: Model, data: Data | None) -> list[_Block]:
    """A model that INLA takes, by its parts; none of another."""
    if data is None or not model.parts or not data.resident:
        return _suited(model, data, np.arange(model.space.size))
    found = []
    for k, (name, part) in enumerate(model.parts.items()):
        own = Data(data.y[:, k], data.given, weights=data.weights, resident=True)
        found += _suited(part, own, model.part(name))
    return found if len(found) == len(model.parts) else []


def _suited(model: Model, data: Data | None, where: np.ndarray) -> list[_Block]:
    narrow = narrowed(model, data)
    model, pool = _pooled(model if narrow is None else narrow.model)
    linear = quadrature.structure(model, data)
    nested = linear is not None
    if linear is not None and np.any(linear.laplace[linear.weights > 0]):
        linear = None
    elif linear is None and pool is None:
        linear = quadrature.joint_structure(model, data)
    return [] if linear is None or data is None else [_Block(model, data, linear, nested, where, pool, narrow)]


def _pooled(model: Model) -> tuple[Model, _Pool | None]:
    """A model some of whose parameters have a spherical t prior, with normals in its place; and what it was."""
    priors = model.prior if type(model.prior) is dict else {}
    for name, prior in priors.items():
        if type(prior) is SphericalT and np.ndim(prior.df) == 0:
            scale, freedom = float(np.asarray(prior.scale)), float(np.asarray(prior.df))
            index = np.asarray(model.space.unravel(jnp.arange(model.space.size, dtype=float))[name], int)
            which = np.isin(np.arange(model.space.size), index)
            normal = dist.Normal(jnp.zeros(prior.shape()), scale)
            # A narrow model is of one fit, and holds its basis: ``with_priors`` would keep it.
            made = replace(model, prior=priors | {name: normal}) if model.shared else with_priors(model, {name: normal})
            return made, _Pool(which, freedom, scale)
    return model, None


def _draw_normals(
    rng: np.random.Generator, linear: Linear, places: list[Place], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws (count, d) of β and u, and their log density up to a constant.

    Draws of u are stratified, by a cubic spline of its log density at the ``places``. Another spline interpolates the
    mean of β; the root of its covariance is interpolated linearly.
    """
    size = len(linear.weights)
    index = np.flatnonzero(linear.weights > 0)
    noise = _standard(rng, count, len(index))
    log_q = -np.sum(noise**2, 1) / 2
    if len(places) == 1:
        means, share, which = np.repeat(places[0].beta[None, index], count, 0), np.zeros(count), np.zeros(count, int)
        us = np.full(count, places[0].u)
    else:
        at = np.array([place.u for place in places])
        log_density = scipy.interpolate.CubicSpline(at, np.array([place.log_density for place in places]))
        fine = np.linspace(at[0], at[-1], 64 * len(at))
        density = np.exp(log_density(fine) - log_density(fine).max())
        mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        half = (count + 1) // 2  # every u twice, with a noise and its mirror image: means are exact
        us = np.interp((rng.permutation(half) + 0.5) / half * mass[-1], mass, fine)
        us = np.concatenate([us, us])[:count]
        means = scipy.interpolate.CubicSpline(at, np.stack([place.beta[index] for place in places]))(us)
        which = np.clip(np.searchsorted(at, us) - 1, 0, len(at) - 2)
        share = (us - at[which]) / np.diff(at)[which]
        log_q = log_q + log_density(us)
    out = np.zeros((count, size))
    for j in np.unique(which):
        rows = np.flatnonzero(which == j)
        low = places[j].root[np.ix_(index, index)]
        high = places[min(j + 1, len(places) - 1)].root[np.ix_(index, index)]
        part = share[rows, None]
        out[np.ix_(rows, index)] = means[rows] + (1 - part) * (noise[rows] @ low.T) + part * (noise[rows] @ high.T)
        diagonal = (1 - part) * np.diag(low) + part * np.diag(high)
        log_q[rows] -= np.sum(np.log(np.abs(diagonal)), 1)
    if linear.other is not None:
        out[:, linear.other] = us
    return out, log_q


def _share_draws(rng: np.random.Generator, log_densities: list[float], count: int) -> list[int]:
    """Number of draws, of ``count`` in all, for each of evenly spaced points with these log densities."""
    heights = np.array(log_densities)
    shares = np.cumsum(np.exp(heights - heights.max()))
    edges = np.floor(shares / shares[-1] * count + rng.random()).astype(int)
    counts = np.diff(np.minimum(edges, count), prepend=0)
    counts[int(np.argmax(counts))] += count - counts.sum()
    return counts.tolist()


def _weigh(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Importance weights (n,) scaled to a largest of 1, 0 where the density is not finite; and their k-hat."""
    good = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    return np.exp(good - good.max()), khat(good[np.isfinite(good)])


def _draw_wider(rng: np.random.Generator, positions: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As many draws of a t with the mean of the weighted draws and a wider covariance, and their log density."""
    count, size = positions.shape
    mean, covariance = np.average(positions, axis=0, weights=weights), np.cov(positions.T, aweights=weights)
    try:
        root = np.linalg.cholesky(np.atleast_2d(covariance) * WIDER)
    except np.linalg.LinAlgError:  # few draws have all the weight
        root = np.linalg.cholesky(np.atleast_2d(np.cov(positions.T)) * WIDER)
    noise = rng.standard_normal((count, size)) / np.sqrt(rng.chisquare(FREEDOM, (count, 1)) / FREEDOM)
    return mean + noise @ root.T, -(FREEDOM + size) / 2 * np.log1p(np.sum(noise**2, 1) / FREEDOM)


def _standard(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """(count, size) standard normals in antithetic pairs; their covariance is exactly 1 if there are enough pairs."""
    half = (count + 1) // 2
    noise = rng.standard_normal((half, size))
    if half >= 4 * size:
        noise = np.linalg.solve(np.linalg.cholesky(noise.T @ noise / half), noise.T).T
    return np.concatenate([noise, -noise])[:count]
