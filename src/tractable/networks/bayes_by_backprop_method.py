"""Bayes by Backprop: a mean field over a network's weights, fitted on minibatches."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import approximations
from tractable.core.approximations import Approximation
from tractable.core.batches import PlacedRows, Plan
from tractable.core.errors import SettingsError
from tractable.core.model import Kernel, Model, Objective, PyTree, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.settings import Count, Positive, Range
from tractable.core.tree import row_shapes
from tractable.core.words import tell
from tractable.diagnostics.belief import Belief, Cost
from tractable.engine import run as loop
from tractable.engine.ascend import ascend
from tractable.engine.bound import SIGMAS
from tractable.engine.drawing import chain_keys, starts
from tractable.engine.method import Outcome, Program, Rate, Session, on_all_rows, plan_batches
from tractable.engine.staged_climb import Problem
from tractable.networks.bayes_by_backprop import SMALL, bayes_by_backprop
from tractable.networks.spread import first_state, pairs, spread
from tractable.points.points import MAP
from tractable.vi.methods import Variational, anchored_likelihood

# The search for σ (networks/spread.py) is described in docs/decisions/020, the start at a maximum in 019.
MAXIMA = 6  # number of maxima that are searched for each start in a small network; the highest are used
# The search for σ ends when the relative error of every 1/σ² is at most ROUGHLY, before the stochastic optimisation
# (the climb), or at most KNOWN, after it.
KNOWN, ROUGHLY = 0.01, 0.1
# It takes at most LEAST gradients; after the climb at most SHARE times the climb's gradients, if that is more.
LEAST, SHARE = 20_000, 0.25
WIDE = 0.1  # σ at which the search begins; a search that begins at far smaller σ makes no progress


class Found(NamedTuple):
    """The result of a search for σ."""

    log_sd: np.ndarray  # (d,)
    gradients: int  # number of batch gradients that the search took
    error: float  # largest relative error of a 1/σ²
    interrupted: bool


class Spreads(Program):
    """The program of a compiled run that searches for σ: its position is log σ."""

    def __call__(self, rows: PyTree, tuned: PyTree) -> Kernel:
        target = log_posterior(self.model, flat=True)
        if not self.method.minibatch:
            batch = None if rows is None else whole(rows)
            return spread(lambda z, _: target(z, batch), tuned["mean"])
        return spread(target, tuned["mean"])


@dataclass(frozen=True, kw_only=True)
class BayesByBackprop(Variational):
    """Bayes by Backprop (Blundell et al. 2015): independent normals over the weights, q(w) = N(μ, σ²), σ = softplus(ρ).

    The method is for networks: a step is cheap, with one μ and one ρ per weight. Independent normals (a mean field)
    ignore the correlations and the symmetries of weights. Where the network is small, NUTS or SGLD on the same model
    shows how much that matters. For networks of up to 5,000 weights, ``networks.spread`` computes σ before the
    stochastic optimisation, which widens a σ that began too small by only 0.3 % a step. It does so again at the end of
    the steps, and for models that are no networks always, because the optimisation stops where its noise hides a gain
    of 0.01 nats, which is what a σ that is 10 % off costs.

    Args:
        batch_size: rows per step, or all rows if there are fewer.
        epochs: largest number of passes over the data; None stops when the stages of the optimisation no longer gain.
        kl_weights: "uniform", π_i = 1/M, or "geometric", 2^{M−i}/(2^M − 1): the share of the KL in batch i of M.
        samples: draws of the weights per step; None takes 4 for networks of up to 5,000 weights, and 1 for others.
        noise: "shared", one draw of the weights for all rows of a batch; "local" and "flipout" make the rows' noise
            uncorrelated, and cost more time per step.
        learning_rate: Adam's rate or a schedule of it, as for ``Variational``, in units of the weights; None takes 0.01
            where a step has 4 draws by default, and 0.003 elsewhere.
        start: "map" first searches maxima a posteriori: six per start for networks of up to 5,000 weights, one for
            others, in no more steps than ``steps`` or ``epochs`` allow. It begins at the highest, because a lower one
            can cost the bound a hundred nats. "random" begins at the network's own starting weights; from there the
            optimisation often learns a large noise and prunes units before it fits the data, and ends in a local
            maximum hundreds of nats lower. A model without a ``start`` of its own (the library's networks have one), of
            up to 1,000 parameters and with data in memory, begins at the mode with the curvature there, as for
            ``MeanField``.
        sd: > 0, starting σ of every weight with start="random", or where there are more than 5,000 weights. Elsewhere
            ``networks.spread`` finds the σ for the starting μ.
        Other fields as for ``Variational``.
    """

    label: ClassVar[str] = "bbb"
    default_rates: ClassVar[tuple[float, float]] = (0.01, 0.003)  # learning rates of small networks, and of others
    kind: ClassVar[str] = "mean field"
    long: ClassVar[bool] = True
    outside: ClassVar[tuple[str, ...]] = (*Variational.outside, "epochs", "sd")
    batch_size: Count | None = 128
    epochs: Count | None = None
    kl_weights: Literal["uniform", "geometric"] = "uniform"
    samples: Count | None = None
    noise: Literal["shared", "local", "flipout"] = "shared"
    learning_rate: Rate | None = None
    start: Literal["random", "map"] = "map"
    sd: Positive = 0.02
    divergence: Annotated[Literal["reverse"], "'reverse', since Bayes by Backprop maximises the ELBO"] = "reverse"
    solver: Literal["stochastic"] = "stochastic"
    tempering: Annotated[
        tuple[float, ...],
        Range("(), since this method has no temperatures", lambda ts: isinstance(ts, tuple | list) and not ts),
    ] = ()
    draws: Count = 200

    def plan(self, data: Data | None) -> Plan | None:
        if data is None or self.batch_size is None:
            return None
        if self.noise != "shared" and not data.resident:
            raise SettingsError(
                f"BayesByBackprop(noise={self.noise!r}) expects data in memory; use noise='shared' for data on file."
            )
        plan = plan_batches(self, data, min(self.batch_size, data.size))
        if self.kl_weights == "geometric" and plan.count > 126:
            tell(
                f"kl_weights='geometric' over {plan.count} batches: all but the first 126 KL weights are below "
                "the smallest single-precision number, so the other batches have no complexity cost. Use 'uniform' or "
                "larger batches.",
            )
        return plan

    @property
    def sums_rows(self) -> bool:
        return self.noise == "shared"  # with other noise every row has a draw of its own

    def family(self, size: int) -> Approximation:
        return approximations.mean_field(size)

    def objective(self, model: Model, rows: PyTree, tuned: PyTree) -> Objective:
        placed, rows = rows, rows.rows if isinstance(rows, PlacedRows) else rows
        given = None if rows is None or rows[1] is None else row_shapes(rows[1])
        full = 1 if rows is None else jax.tree.leaves(rows)[0].shape[0]
        objective = bayes_by_backprop(
            model, samples=self.samples or 1, kl_weights=self.kl_weights, noise=self.noise,
            size=full if self.batch_size is None else min(full, self.batch_size), given=given,
            likelihood=anchored_likelihood(model, tuned["anchor"]) if "anchor" in tuned else None,
        )  # fmt: skip
        return on_all_rows(objective, placed) if self.batch_size is None else objective

    def kernel(self, model: Model, rows: PyTree, tuned: PyTree) -> Kernel:
        optimizer = self.optimizer
        if optimizer == "adam":
            optimizer = self.adam(tuned)
        return ascend(self.objective(model, rows, tuned), optimizer)

    def at_mode(self, model: Model, data: Data | None) -> bool:
        return model.start is None and super().at_mode(model, data)

    def corrects(self, model: Model, data: Data | None) -> bool:
        # Geometric KL weights sum to 1 only over an epoch, and corrected batches are averaged over parts of epochs too.
        shared = self.noise == "shared" and self.kl_weights == "uniform"
        return shared and super().corrects(model, data)

    def positions(self, model: Model, means: jax.Array, sds: jax.Array) -> PyTree:
        trees = jax.vmap(model.space.unravel)
        return {"mean": trees(means), "rho": trees(approximations.inverse_softplus(sds))}

    def flat(self, model: Model, phi: PyTree) -> PyTree:
        return {"mean": model.space.ravel(phi["mean"]), "rho": model.space.ravel(phi["rho"])}

    def learn(self, session: Session) -> Outcome:
        """Learn as ``Variational``; the model's size decides ``samples`` and ``learning_rate`` where they are None."""
        small = session.model.space.size <= SMALL and not self.at_mode(session.model, session.data)
        samples, rate = (4, self.default_rates[0]) if small else (1, self.default_rates[1])
        sized = replace(self, samples=self.samples or samples, learning_rate=self.learning_rate or rate)
        outcome = super(BayesByBackprop, sized).learn(session)
        return outcome._replace(found=outcome.found | {"samples": sized.samples})

    def cost(self, belief: Belief, found: dict[str, Any], data: Data | None) -> Cost:
        return super(BayesByBackprop, replace(self, samples=found.get("samples", self.samples or 1))).cost(
            belief, found, data
        )

    def begin(self, session: Session, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = session.model
        if self.at_mode(model, session.data):
            return super().begin(session, key)
        if self.start == "map":
            plan = self.plan(session.data)
            large = model.space.size > SMALL  # a large network's climb of few epochs is not preceded by many
            each, steps = (1, min(MAP.steps, self.most(plan))) if large else (MAXIMA, MAP.steps)
            size = None if plan is None else plan.batch_size
            method = MAP(optimizer="adam", batch_size=size, starts=each * self.starts, steps=steps)
            maxima = method.climbed(session.alone()._replace(key=key)).maxima
            maxima.sort(key=lambda m: m.value if np.isfinite(m.value) else -np.inf, reverse=True)
            points = jnp.asarray(np.stack([m.position for m in maxima[: self.starts]]), jnp.result_type(float))
        else:
            points = starts(model, session.data, key, self.starts)
        sds = np.full(points.shape, self.sd)
        if self.start == "map" and model.space.size <= SMALL:
            keys, plan = jax.random.split(key, len(points)), self.plan(session.data)
            wide = np.full(model.space.size, math.log(WIDE))
            sds = np.stack([
                np.exp(self._spread(session, plan, one, mean, wide, LEAST, ROUGHLY).log_sd)
                for one, mean in zip(keys, points, strict=True)
            ])  # fmt: skip
        return points, jnp.asarray(sds, points.dtype)

    def finish(self, problem: Problem, phi: PyTree, steps: int) -> tuple[PyTree, dict[str, Any]]:
        """Replace σ by the one that ``spread`` finds, for few weights, unless the bound is then clearly lower.

        A σ that is 10 % off costs 0.01 nats, which the noise of the stochastic optimisation hides. For a network whose
        optimisation has settled the search gains no more, because its curvature varies over q (docs/decisions/020).
        """
        model, session = problem.session.model, problem.session
        settled = steps < self.most(problem.climber.plan)
        if model.space.size > SMALL or (model.start is not None and settled):
            return phi, {}
        flat, most = self.flat(model, phi), max(LEAST, int(SHARE * steps * (self.samples or 1)))
        log_sd = np.log(np.logaddexp(0, np.asarray(flat["rho"])))
        search = self._spread(session, problem.climber.plan, problem.climber.keys[0], flat["mean"], log_sd, most, KNOWN)
        if search.interrupted:
            return phi, {}
        new = self.positions(model, flat["mean"][None], jnp.exp(search.log_sd)[None])
        before, after = (problem.vector(phis) for phis in (jax.tree.map(lambda a: a[None], phi), new))
        gain, chance = problem.bound.gain(problem.tuned, problem.tree, before, after)
        found_by_search = {"gradients for σ": search.gradients, "error of 1/σ²": search.error, "gain by σ": gain}
        lost = gain < -max(self.tolerance, SIGMAS * chance)
        return phi if lost else jax.tree.map(lambda a: a[0], new), found_by_search

    def _spread(
        self, session: Session, plan: Plan | None, key: jax.Array, mean: jax.Array, log_sd: np.ndarray, most: int,
        known: float,
    ) -> "Found":  # fmt: skip
        """Search σ around ``mean`` (d,), starting at ``log_sd`` (d,).

        The search ends when the relative error of every 1/σ² is at most ``known``, or after ``most`` gradients.
        """
        model, data = session.model, session.data
        streams = plan is not None and data is not None and not data.resident
        program, each = Spreads(model, self, streams, placement=session.placement), 2 * pairs(model.space.size)
        # The loop's shape does not depend on the climb's length, so that one compiled program serves all climbs.
        shape, keys = loop.shape(1_000, 10, model.space.size, 1), chain_keys(key, 1)
        states, done, error = jax.device_put(first_state(log_sd[None].astype(mean.dtype))), 0, math.inf
        last = -(-most // (each * shape.group))
        while done < last and error > known:
            run = loop.run(
                loop.Loop(program, shape, plan, self.long), data, {"mean": mean}, keys, loop.Start(states, done),
                min(max(2, 2 * done), last), loop.Host(stop=session.stop), ("info",),
            )  # fmt: skip
            if run.interrupted or session.stop():
                return Found(log_sd, done * shape.group * each, error, True)
            states, done, error = run.states, run.groups, float(run.info["error"][0, -1])
        return Found(np.asarray(states.position)[0], done * shape.group * each, error, False)

    def most(self, plan: Plan | None) -> int:
        return self.steps if self.epochs is None else self.epochs * (1 if plan is None else plan.count)
