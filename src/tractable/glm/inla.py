"""INLA, the integrated nested Laplace approximation.

The posterior of the weights is approximated by a normal given one other parameter, which is integrated out numerically.
Log densities are in nats, the units of the natural logarithm.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy  # its submodules load at first use

from tractable.core.check import Check
from tractable.core.clock import work_time
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
from tractable.glm.narrow import Narrow, narrow_model
from tractable.mcmc.hamiltonian_methods import NUTS
from tractable.vi import quadrature
from tractable.vi.quadrature import Linear

# docs/decisions/026 has the experiments for these numbers.
FREEDOM, WIDER = 5.0, 1.2  # degrees of freedom of a t proposal, and the factor that widens its covariance
NEAR = 0.2  # k-hat (tail index of importance weights) of normal draws above which the t proposal is tried instead
WEIGHED = 2e7  # largest product of rows and draws for which importance weights are computed
FALL = 12.0  # the grid of u ends where the log density is this far below its maximum
FALL_POOLED = 8.0  # the same if the weights' scale is integrated over too, since the grid then has two dimensions
STEP = 0.75  # distance of grid points, in sds of u; the trapezoid rule's error is then below 1e-8
ROUNDING = 1e-2  # nats; a Newton step's possible gain below this may be rounding error
REACH = 12.0  # the largest |u|; for a log noise scale this is a noise from 6e-6 to 160,000
FURTHEST = 40  # largest number of grid points on either side of the maximum
ALLOWED = 60.0  # NUTS replaces a rejected result without being asked for if its forecast is at most these seconds
# The forecast assumes so many seconds of compiling, gradients in a step, and operations in a second.
COMPILING, LEAPFROGS, RATE = 12.0, 15, 1e10
DENSE = 100  # largest number of parameters for which NUTS gets a full mass matrix


@dataclass(frozen=True, kw_only=True)
class INLA(Method):
    """Nested Laplace for a linear predictor's weights β and at most one other parameter u (Rue, Martino & Chopin 2009).

        p(β, u | y) ≈ p̃(u | y) N(β; β̂(u), H(u)⁻¹),      H(u) = −∇²_β log p(y, β | u) at its maximum β̂(u)
        log p̃(u | y) = log p(y, β̂(u), u) − ½ log det H(u) + constant

    If y is normal, the only error is that of the integral over u (ridge regression with its noise integrated out). For
    other likelihoods, as in logistic, Poisson or robust regression, the error depends on how far the likelihood is from
    normal. Importance weights correct this error, and their tail index k-hat measures it. They are computed if there
    are not too many rows.

    If a table has more columns than rows, the weights are projected on the span of the rows (``glm.narrow``). The work
    is then that of a table with as many columns as rows, and the posterior is the same.

    Weights may share a scale s (``glm.linear.pooled_prior``: w | s ~ N(0, s²)). They are normal given s, too. Then
    log s has a grid, and each of its points has a grid of u.

    If η has several components, as in softmax regression, or if there are several other parameters, such as the
    cutpoints of ordered grades, one normal (a Laplace approximation) is for all parameters together, up to 400 of them.
    Its draws are weighted in the same way.

    The model must have a likelihood ``Through`` a linear predictor and normal priors of its weights, as
    ``glm.linear.generalised_linear`` makes, and the data must be in memory. Parts of a model that share no parameters
    (``Model.parts``), such as several targets, are learnt one by one: p(θ | y) is the product of their posteriors.

    If classes are nearly separable, the posterior is skewed in many directions at once, and verification rejects the
    normal. Then ``NUTS`` learns the posterior, if it is forecast to take at most a minute:

        seconds ≈ 12 + steps × 15 gradients × operations of a gradient / 10¹⁰

    Steps are those of all chains, warm-up included. This allows about 600,000 for rows × columns × classes. The
    forecast may be wrong by a factor of three.

    Args:
        draws: independent draws of the posterior; the first two moments of β given u are exact.
        tolerance: the climb to β̂(u) ends when one more Newton step would gain at most so many nats.
        steps: largest number of Newton steps to β̂(u).
        instead: "nuts" runs NUTS if verification rejects the result, and the report says so; None keeps the result.
    """

    label: ClassVar[str] = "inla"
    independent: ClassVar[bool] = True
    verified: ClassVar[bool] = True
    draws: Count = 4000
    tolerance: Positive = 1e-6
    steps: Count = 50
    instead: Literal["nuts"] | None = "nuts"

    def learn(self, session: Session) -> Outcome:
        start_time = work_time()
        blocks = learnable_blocks(session.model, session.data)
        if not blocks:
            raise ModelError(
                "INLA expects a likelihood that goes Through a linear predictor, normal priors of its weights, few "
                "other parameters, and data in memory; got another model. Use Laplace() or NUTS()."
            )
        count = Counter(session, "climbing", 64)
        densities = [(Conditional if each.nested else Joint)(*each[:3], count) for each in blocks]
        layers = [self._layers(each, block.pool, session) for each, block in zip(densities, blocks, strict=True)]
        draw_time = work_time()
        rng = np.random.default_rng(np.asarray(jax.random.key_data(session.key)).tolist())
        draws = [self._draw(rng, *each) for each in zip(densities, layers, strict=True)]
        positions = np.empty((len(draws[0][0]), session.model.space.size))
        for each, (own, _, _) in zip(blocks, draws, strict=True):
            positions[:, each.where] = own if each.narrow is None else each.narrow.widened(rng, own)
        logs = [log_weights for _, log_weights, _ in draws if log_weights is not None]
        shapes = [shape for *_, shape in draws if not np.isnan(shape)]
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
        seconds = {"climbing": draw_time - start_time, "drawing": work_time() - draw_time}
        info = {} if weights is None else {"weight": weights}
        return Outcome(Draws(positions=positions[None], info=info, weights=weights), found, seconds, session.stop())

    def _draw(
        self, rng: np.random.Generator, density: Density, layers: list["_Layer"]
    ) -> tuple[np.ndarray, np.ndarray | None, float]:
        """Draws of a block's parameters, their log importance weights if these are computed, and the weights' k-hat."""
        counts = (
            [self.draws] if len(layers) == 1 else _share_draws(rng, [layer.log_density for layer in layers], self.draws)
        )
        has_weights = not density.quadratic and self.draws * density.size <= WEIGHED
        draws, logs = [], []
        for layer, count in zip(layers, counts, strict=True):
            if count:
                density.set_scale(layer.scale)
                positions, log_q = _draw_normals(rng, density.linear, layer.places, count)
                draws.append(positions)
                if has_weights:
                    one = layer.places[0].log_density if len(layers) > 1 and len(layer.places) == 1 else 0.0
                    log_q = density.log_densities(positions) - log_q - one
                logs.append(log_q)
        order = rng.permutation(self.draws) if len(layers) > 1 else slice(None)
        positions, log_weights = np.concatenate(draws)[order], np.concatenate(logs)[order]
        if not has_weights:
            return positions, None, float("nan")
        weights, shape = _weigh(log_weights)
        if shape > NEAR and len(layers) == 1:  # a t has longer tails, but fits worse if the posterior is skewed
            wider, log_q = _draw_wider(rng, positions, weights)
            of_wider = density.log_densities(wider) - log_q
            _, other = _weigh(of_wider)
            if other < shape:
                return wider, of_wider, other
        return positions, log_weights, shape

    def weigh(self, info: Mapping[str, jax.Array | np.ndarray]) -> Any:
        return info.get("weight")

    def _layers(self, density: Density, pool: "_Pool | None", session: Session) -> list["_Layer"]:
        """A layer for each grid point of log s, the log scale of pooled weights; one layer if no weights are pooled."""
        if pool is None:
            return [_Layer(0.0, None, self._places(density, session, FALL))]
        layers: dict[float, _Layer] = {}

        def minus_log_density(v: float) -> float:
            """−log p̃(v | y), where s = c eᵛ; its prior follows from s² ~ InverseGamma(ν/2, ν c²/2)."""
            if not abs(v) <= REACH:
                return 1e300
            nearest = min(layers, key=lambda other: abs(other - v)) if layers else None
            scale = np.where(pool.which, pool.scale * math.exp(v), 0.0)
            density.set_scale(scale)
            places = self._places(density, session, FALL_POOLED, None if nearest is None else layers[nearest].places)
            prior = -pool.freedom * (v + math.exp(-2 * v) / 2) - np.sum(pool.which) * v
            layers[v] = _Layer(prior + _evidence(places), scale, places)
            return -layers[v].log_density

        return [layers[v] for v in _grid(minus_log_density, layers, session.stop, 0.0, FALL_POOLED)]

    def _places(
        self, density: Density, session: Session, fall: float, like: "list[Place] | None" = None
    ) -> "list[Place]":
        """The normals of the weights at grid points of u, up to where the log density of u has fallen by ``fall``.

        There is a single normal if there is no u. ``like`` are the results for a similar density; the search for u
        begins at the best of them.
        """
        if density.linear.other is None:
            return [self._conditional(density, 0.0, density.linear.centre if like is None else like[0].beta, session)]
        places: dict[float, Place] = {}
        before = [] if like is None else like

        def minus_log_density(u: float) -> float:
            """−log p̃(u); 1e300 if |u| > REACH, beyond the range of single precision."""
            if not abs(u) <= REACH:
                return 1e300
            known = [*places.values(), *before]
            nearest = min(known, key=lambda p: abs(p.u - u)).beta if known else density.linear.centre
            places[u] = self._conditional(density, u, nearest, session)
            return -places[u].log_density

        start = max(before, key=lambda p: p.log_density).u if before else 0.0
        return [places[u] for u in _grid(minus_log_density, places, session.stop, start, fall)]

    def _conditional(self, density: Density, u: float, beta: np.ndarray, session: Session) -> "Place":
        """Climb to β̂(u) by Newton steps, each halved until it does not make the log density smaller."""
        value, slope, precision = density.slope(beta, u)
        if not np.isfinite(value):
            raise RunError("INLA began where the log density is not finite. Standardise the inputs, or use NUTS().")
        before = np.inf
        for _ in range(self.steps):
            step = np.linalg.solve(precision, slope)
            left = float(slope @ step) / 2
            # If the possible gain is small and hardly shrinks from step to step, it is rounding.
            if left <= self.tolerance or (left < ROUNDING and left > before / 4) or session.stop():
                break
            size, before = 1.0, left
            while True:
                new = density.slope(beta + size * step, u)
                if new[0] >= value - 1e-7 * abs(value) or size < 1e-12:
                    break
                size /= 2
            beta, (value, slope, precision) = beta + size * step, new
        root = np.linalg.cholesky(precision)
        inverse_root = np.linalg.inv(root).T
        # The curvature at one β does not show whether the log density is quadratic, so it is computed at a second one.
        if density.quadratic and not density.compared:
            density.slope(beta + inverse_root.sum(1), u)
        return Place(u, beta, inverse_root, value - float(np.sum(np.log(np.diag(root)))), left)

    def checks(self, posterior: Learnt) -> list[Check]:
        found = posterior.found
        left, end = found["left"], found["end"]
        verdict = "trust" if left <= 1e-2 else "reject"
        sentence = "nats that a further Newton step for the weights could gain, at the worst grid point"
        out = [Check("left to climb", left, verdict, sentence)]
        if found["places"] > 1:
            verdict = "trust" if end > FALL / 2 else "reject"
            sentence = f"nats from the log density's maximum down to the ends of a grid of {found['places']} points"
            out.append(Check("ends", end, verdict, sentence))
        shape = found["khat"]
        if not np.isnan(shape):
            limit = khat_limit(posterior.count)
            verdict = "trust" if shape <= limit else "caution" if shape <= KHAT_USED else "reject"
            out.append(Check("k-hat", shape, verdict, f"tail index of the draws' weights, good up to {limit:.2g}"))
        return out

    def row_space_posterior(self, posterior: Learnt) -> Learnt | None:
        model, data = posterior.model, posterior.data
        if data is None or model.parts or data.size >= model.space.size:
            return None
        # If the draws have importance weights, as for classes, their k-hat judges them. A rejection by verification of
        # the smaller model would only start NUTS, which mixes badly in such models.
        narrow = narrow_model(model, data) if math.isnan(posterior.found["khat"]) else None
        if narrow is None:
            return None
        positions = narrow.projected(np.asarray(posterior.belief.positions)[0])
        belief = replace(posterior.belief, positions=positions[None])
        return replace(posterior, model=narrow.model, belief=belief, verification=())

    def otherwise(self, posterior: Learnt) -> tuple[Method, Check] | None:
        wrong = [c for c in (*self.checks(posterior), *posterior.verification) if c.verdict == "reject"]
        if self.instead is None or not wrong or posterior.data is None or any(c.name == "tails" for c in wrong):
            return None  # if "tails" rejects, the posterior's mass is infinite, so no method can draw from it
        method = NUTS(dense=posterior.model.space.size <= DENSE)
        work = gradient_work(Target(posterior.model), posterior.data.arrays())
        forecast = COMPILING + method.chains * (method.draws + method.warmup) * LEAPFROGS * work / RATE
        if forecast > ALLOWED:
            sentence = (
                f"seconds that NUTS is forecast to take, more than the {ALLOWED:.0f} for which it is run without being "
                f"asked for: use NUTS(dense={method.dense}), or --method nuts --set dense={str(method.dense).lower()}"
            )
            return method, Check("NUTS instead", forecast, "reject", sentence)
        why = "; ".join(f"{c.name} {number(float(c.value))}, {c.sentence}" for c in wrong)
        sentence = f"seconds that INLA took; its result was rejected, so NUTS learnt this one: {why}"
        return method, Check("INLA first", sum(posterior.seconds.values()), "trust", sentence)


def _grid(
    energy: Callable[[float], float], results: Mapping[float, Any], stop: Callable[[], bool], start: float, fall: float
) -> list[float]:
    """Evenly spaced numbers around a density's maximum, up to where its logarithm has fallen by ``fall``.

    ``energy`` is minus the log density. It stores a result in ``results`` for each number at which it is computed.
    """
    from scipy.optimize import minimize_scalar

    minimum: Any = minimize_scalar(energy, bracket=(start, start - 0.5), tol=1e-3, options={"maxiter": 100})
    best = float(minimum.x)
    top, width = -energy(best), 0.1
    for _ in range(20):  # find a width at which the log density falls by half a nat on the side where it falls less
        fall_there = top + min(energy(best + width), energy(best - width))
        if stop() or 0.2 < fall_there < 1.0:
            break
        width *= float(np.clip(np.sqrt(0.5 / max(fall_there, 1e-6)), 0.1, 10.0))
    grid = [best]
    for side in (-1, 1):
        for i in range(1, FURTHEST + 1):
            u = best + side * i * STEP * width
            fall_there = top + energy(u)
            grid += [u] if u in results else []
            if stop() or fall_there > fall:
                break
    return sorted(grid)


class Place(NamedTuple):
    """The normal approximation of the weights given one value of u."""

    u: float
    beta: np.ndarray  # (d,) mean of the normal; 0 at the index of u
    root: np.ndarray  # (d, d) R with R Rᵀ = H⁻¹
    log_density: float  # log density of u, up to a constant
    left: float  # nats that a further Newton step could gain


class _Layer(NamedTuple):
    """The normal approximations given one scale s of pooled weights, one for each grid point of u."""

    log_density: float  # log density of log s, up to a constant
    scale: np.ndarray | None  # (d,) s for a pooled weight, 0 for other parameters; None if no weight is pooled
    places: list[Place]


class _Pool(NamedTuple):
    """Pooled weights, which share a scale s: w | s ~ N(0, s²), s² ~ InverseGamma(ν/2, ν c²/2)."""

    which: np.ndarray  # (d,) whether a parameter is a pooled weight
    freedom: float  # degrees of freedom ν
    scale: float  # scale c


def _evidence(places: list[Place]) -> float:
    """log ∫ p̃(u) du, up to a constant."""
    heights = np.array([place.log_density for place in places])
    step = places[1].u - places[0].u if len(places) > 1 else 1.0
    return float(scipy.special.logsumexp(heights)) + math.log(step)


class _Block(NamedTuple):
    """A part of a model that shares no parameters with the other parts, or the full model."""

    model: Model
    data: Data
    linear: Linear  # its linear part
    nested: bool  # whether at most one parameter is not a weight; otherwise one normal is for all parameters
    where: np.ndarray  # indices of its parameters in a position of the full model
    pool: _Pool | None = None
    narrow: Narrow | None = None  # the map between ``model`` and the part, if ``model`` has fewer weights


def learnable_blocks(model: Model, data: Data | None) -> list[_Block]:
    """The parts of a model that INLA can learn; empty if INLA cannot learn the model."""
    if data is None or not model.parts or not data.resident:
        return _single_block(model, data, np.arange(model.space.size))
    blocks = []
    for k, (name, part) in enumerate(model.parts.items()):
        own = Data(data.y[:, k], data.given, weights=data.weights, resident=True)
        blocks += _single_block(part, own, model.part(name))
    return blocks if len(blocks) == len(model.parts) else []


def _single_block(model: Model, data: Data | None, where: np.ndarray) -> list[_Block]:
    """The one block of a model without parts; empty if INLA cannot learn the model."""
    narrow = narrow_model(model, data)
    model, pool = _with_normal_prior(model if narrow is None else narrow.model)
    linear = quadrature.structure(model, data)
    nested = linear is not None
    if linear is not None and np.any(linear.laplace[linear.weights > 0]):
        linear = None
    elif linear is None and pool is None:
        linear = quadrature.joint_structure(model, data)
    return [] if linear is None or data is None else [_Block(model, data, linear, nested, where, pool, narrow)]


def _with_normal_prior(model: Model) -> tuple[Model, _Pool | None]:
    """The model with normals in place of a spherical t prior, and the weights that had it; None if there are none."""
    priors = model.prior if type(model.prior) is dict else {}
    for name, prior in priors.items():
        if type(prior) is SphericalT and np.ndim(prior.df) == 0:
            scale, freedom = float(np.asarray(prior.scale)), float(np.asarray(prior.df))
            index = np.asarray(model.space.unravel(jnp.arange(model.space.size, dtype=float))[name], int)
            which = np.isin(np.arange(model.space.size), index)
            normal = dist.Normal(jnp.zeros(prior.shape()), scale)
            # A narrow model belongs to one fit. ``with_priors`` would keep it in memory for later calls.
            made = replace(model, prior=priors | {name: normal}) if model.shared else with_priors(model, {name: normal})
            return made, _Pool(which, freedom, scale)
    return model, None


def _draw_normals(
    rng: np.random.Generator, linear: Linear, places: list[Place], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws (count, d) of β and u, and their log density up to a constant.

    Between the ``places``, cubic splines interpolate the log density of u and the mean of β, and the root of the
    covariance of β is interpolated linearly. Draws of u are stratified.
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
        half = (count + 1) // 2  # every u is used twice, with a noise and its negative, so that means are exact
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
    """How many of ``count`` draws each of evenly spaced points gets, in proportion to its density."""
    heights = np.array(log_densities)
    shares = np.cumsum(np.exp(heights - heights.max()))
    edges = np.floor(shares / shares[-1] * count + rng.random()).astype(int)
    counts = np.diff(np.minimum(edges, count), prepend=0)
    counts[int(np.argmax(counts))] += count - counts.sum()
    return counts.tolist()


def _weigh(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """The importance weights (n,), scaled so that the largest is 1, and their k-hat.

    A weight is 0 if its density is not finite.
    """
    good = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    return np.exp(good - good.max()), khat(good[np.isfinite(good)])


def _draw_wider(rng: np.random.Generator, positions: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As many draws of a t as there are positions, and their log density up to a constant.

    The t has the mean of the weighted positions, and their covariance times ``WIDER``.
    """
    count, size = positions.shape
    mean, covariance = np.average(positions, axis=0, weights=weights), np.cov(positions.T, aweights=weights)
    try:
        root = np.linalg.cholesky(np.atleast_2d(covariance) * WIDER)
    except np.linalg.LinAlgError:  # a few draws have all the weight
        root = np.linalg.cholesky(np.atleast_2d(np.cov(positions.T)) * WIDER)
    noise = rng.standard_normal((count, size)) / np.sqrt(rng.chisquare(FREEDOM, (count, 1)) / FREEDOM)
    return mean + noise @ root.T, -(FREEDOM + size) / 2 * np.log1p(np.sum(noise**2, 1) / FREEDOM)


def _standard(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """(count, size) standard normals in pairs of opposite sign; with enough pairs their covariance is exactly 1."""
    half = (count + 1) // 2
    noise = rng.standard_normal((half, size))
    if half >= 4 * size:
        noise = np.linalg.solve(np.linalg.cholesky(noise.T @ noise / half), noise.T).T
    return np.concatenate([noise, -noise])[:count]
