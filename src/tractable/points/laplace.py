"""Laplace's approximation: the normal whose mean is the mode and whose precision is the curvature there."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tractable.core import approximations, tree
from tractable.core.batches import split_weights
from tractable.core.clock import work_time
from tractable.core.errors import ModelError, SettingsError
from tractable.core.model import Model, Objective, PyTree, Through, is_distribution, log_posterior, whole
from tractable.core.rows import Data
from tractable.core.settings import Count
from tractable.core.shared import COMPILE_FASTEST, compiled
from tractable.diagnostics.belief import Belief, Fitted, draws_key
from tractable.diagnostics.importance import khat_check, log_weights, weigh
from tractable.diagnostics.learnt import Learnt
from tractable.engine.method import Check, Outcome, Session
from tractable.engine.search import curvature
from tractable.points.points import AWAY, MAP, choose_best

DENSE = 5000  # largest number of parameters for which a dense covariance is formed
ROWS = 64  # largest number of rows whose Jacobians are in memory at once
PROBED = 8  # number of rows for the test that finds the parameters in which the predictor is linear


@dataclass(frozen=True, kw_only=True)
class Laplace(MAP):
    """Laplace's approximation: q(z) = N(mode, Λ⁻¹), Λ = −∇² log p(z|y) at the mode; z is the *unconstrained* θ.

    It is a cheap reference: one maximisation and one matrix of second derivatives (MacKay 1992). It is right if the
    posterior is normal around that mode, and it ignores other modes. For networks Λ is the generalised Gauss–Newton
    matrix, which is never indefinite. Predictions then use the network linearised in its weights, for which that Λ is
    exact (Immer et al. 2021; docs/decisions/035).

    Args:
        structure: "full", a dense Λ, for at most 5000 parameters; "diagonal"; "last-layer", a dense Λ over the
            parameters in which the predictor is linear, with all other parameters fixed at the mode.
        curvature: "hessian"; "gauss-newton", Σ_n J_nᵀ (−∇²_η log p(y_n|η_n)) J_n plus the prior's own curvature, for
            a likelihood that goes ``Through`` a predictor η; "auto": "gauss-newton" for networks, else "hessian".
        draws: number of independent draws of q in the posterior.
        Other fields as for ``MAP``.
    """

    label: ClassVar[str] = "laplace"
    point: ClassVar[bool] = False
    structure: Literal["full", "diagonal", "last-layer"] = "full"
    curvature: Literal["auto", "hessian", "gauss-newton"] = "auto"
    draws: Count = 4000

    def objective(self, model: Model) -> Objective:
        target = log_posterior(model, flat=True)
        return Objective(
            lambda key, count, params: jnp.zeros((count, 0)), lambda noise, params, batch: target(params, batch)
        )

    def learn(self, session: Session) -> Outcome:
        model, data = session.model, session.data
        start_time = work_time()
        # The curvature needs the maximum, so held-out rows do not end this climb early.
        at = self.climbed(session._replace(held_out=None), jacobian=True)
        best, figures = choose_best(at.maxima)
        mode_time = work_time()
        family, phi, eigenvalue = self.fit(model, data, jnp.asarray(best.position, jnp.result_type(float)))
        figures |= {"eigenvalue": eigenvalue, "condition": eigenvalue}
        q = approximations.of(family, phi)
        weights = log_weights(model, data, q, phi, jax.random.fold_in(session.key, 1)) if q.whole else None
        draws = approximations.draws_of(q, phi, draws_key(session.key), self.draws)
        figures[AWAY] = float(np.std((np.asarray(draws, np.float64) - best.position) @ best.gradient))
        seconds = {"climbing": mode_time - start_time, "curvature": work_time() - mode_time}
        phi = jax.tree.map(np.asarray, phi)
        fitted = Fitted(positions=np.asarray(draws)[None], family=family, phi=phi, log_weights=weights, info=at.info)
        return Outcome(fitted, figures, seconds, at.interrupted)

    def fit(self, model: Model, data: Data | None, mode: jax.Array) -> tuple[str, PyTree, float]:
        """Compute Λ at the mode, and return q's family, q's parameters φ, and the smallest eigenvalue of Λ.

        If only the diagonal of Λ is computed, the smallest entry takes the place of the eigenvalue.
        """
        size = model.space.size
        through = model.through is not None and data is not None
        gauss = self.curvature == "gauss-newton" or (self.curvature == "auto" and through and model.start is not None)
        if gauss and not through:
            raise ModelError(
                "curvature='gauss-newton' expects a likelihood that goes Through a predictor, and data; "
                "use curvature='hessian'."
            )
        rows = None if data is None else data.arrays()
        if self.structure == "diagonal":
            diagonal = _gauss_newton(model, mode, rows, None) if gauss else jnp.diag(self._hessian(model, mode, rows))
            least = float(jnp.min(diagonal))
            _check_curved(least)
            return "mean field", approximations.mean_field(size).init(mode, 1 / jnp.sqrt(diagonal)), least
        index = np.arange(size)
        if self.structure == "last-layer":
            index = last_layer(model, data)
        if len(index) > DENSE:
            raise SettingsError(
                f"Laplace(structure={self.structure!r}) forms a covariance of {len(index)} parameters; at most {DENSE} "
                "are possible. Use structure='last-layer' or 'diagonal'."
            )
        if gauss:
            precision = np.asarray(_gauss_newton(model, mode, rows, tuple(index.tolist())), np.float64)
        else:
            precision = np.asarray(self._hessian(model, mode, rows), np.float64)[np.ix_(index, index)]
        if not np.all(np.isfinite(precision)):
            raise ModelError("The curvature at the mode is not finite: rescale the parameters or the data.")
        values, basis = np.linalg.eigh(precision)
        _check_curved(float(values[0]), float(values[-1]))
        root = jnp.asarray(np.linalg.cholesky((basis / values) @ basis.T), mode.dtype)
        if len(index) == size:
            return "full rank", approximations.of_root(mode, root), float(values[0])
        part = approximations.of_root(mode[index], root)
        phi = {"mean": mode, "index": jnp.asarray(index), "rho": part["rho"], "lower": part["lower"]}
        return "part", phi, float(values[0])

    def _hessian(self, model: Model, mode: jax.Array, rows: PyTree) -> jax.Array:
        if mode.size > DENSE:
            raise SettingsError(f"A Hessian of {mode.size} parameters is too large; use curvature='gauss-newton'.")
        return curvature(model, mode, None if rows is None else whole(rows), prior=True, jacobian=True)

    def predictive(self, model: Model, belief: Belief) -> Model:
        if not isinstance(belief, Fitted) or model.through is None or model.start is None:
            return model
        return linearise(model, jnp.asarray(belief.phi["mean"]))

    def checks(self, posterior: Learnt) -> list[Check]:
        out = super().checks(posterior)
        weights = None if posterior.fitted is None else posterior.fitted.log_weights
        return out if weights is None or posterior.verification else [*out, khat_check(weigh(weights))]


def _check_curved(least: float, largest: float = math.inf) -> None:
    if not least > (1e-10 * largest if math.isfinite(largest) else 0):
        raise ModelError(
            f"The curvature at the mode has an eigenvalue of {least:.3g}: a ridge or a saddle, around which no normal "
            "fits. Give the flat direction a proper prior, or use curvature='gauss-newton'. If a flexible model learns "
            "its noise from few rows, the noise goes to zero: fix it. Otherwise use NUTS."
        )


def linearise(model: Model, mode: jax.Array) -> Model:
    """The model with its predictor replaced by the tangent at the mode z*, f(z*) + J (z − z*)."""
    likelihood: Any = model.through
    form, arrays = model.split_arrays()
    predictor = jax.tree_util.Partial(Tangent(form), arrays, mode)
    return dataclasses.replace(model, likelihood=Through(predictor, likelihood.observe))


@dataclass(frozen=True)
class Tangent:
    """The predictor's tangent at the mode.

    Two tangents are equal if their models differ only in arrays, so that such models share compiled programs.
    """

    form: Any  # a Model without its arrays

    def __call__(self, arrays: tuple, mode: jax.Array, params: PyTree, x: PyTree) -> jax.Array:
        model = self.form.join_arrays(arrays)
        likelihood, centre = model.through, model.space.unravel(mode)
        step = jax.tree.map(jnp.subtract, model.unconstrain(params), centre)
        value, change = jax.jvp(lambda u: likelihood.predictor(model.constrain(u), x), (centre,), (step,))
        return value + change


def last_layer(model: Model, data: Data | None) -> np.ndarray:
    """The indices of the parameters in which the predictor η is jointly affine, or on which it does not depend.

    Leaves of the parameters are tried from the last to the first. η counts as affine in a set of parameters if its
    value halfway between two random points is the mean of its values at the two points.
    """
    likelihood = model.through
    if likelihood is None or data is None:
        raise ModelError("structure='last-layer' expects a likelihood that goes Through a predictor, and data.")
    shapes = model.space.shapes
    leaves = jax.tree.leaves(shapes)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    ends = np.cumsum(sizes)
    rows = jax.tree.map(lambda a: jnp.asarray(a[:PROBED]), data.given)
    keys = jax.random.split(jax.random.key(0), 3)
    base, first, second = (0.5 * jax.random.normal(k, (model.space.size,)) for k in keys)

    @jax.jit
    def outputs(z: jax.Array) -> jax.Array:
        return jax.vmap(lambda x: likelihood.predictor(model.params(z), x))(rows)

    def replace_base(mask: np.ndarray, new: jax.Array) -> jax.Array:
        return jnp.where(mask, new, base)

    affine, unused = np.zeros(len(leaves), bool), np.zeros(len(leaves), bool)
    for i in reversed(range(len(leaves))):
        mask = np.zeros(model.space.size, bool)
        mask[ends[i] - sizes[i] : ends[i]] = True
        if np.allclose(outputs(replace_base(mask, first)), outputs(base), rtol=0, atol=0):
            unused[i] = True
            continue
        trial = affine.copy()
        trial[i] = True
        mask = np.repeat(trial, sizes)
        a, b = outputs(replace_base(mask, first)), outputs(replace_base(mask, second))
        middle = outputs(replace_base(mask, (first + second) / 2))
        if np.allclose(middle, (a + b) / 2, rtol=1e-3, atol=1e-4 * float(jnp.abs(a).max())):
            affine = trial
    if not affine.any():
        raise ModelError("The predictor is linear in no parameter, so there is no last layer; use structure='full'.")
    return np.flatnonzero(np.repeat(affine | unused, sizes))


@compiled("model", "index", if_few=COMPILE_FASTEST)
def _gauss_newton(model: Model, mode: jax.Array, rows: PyTree, index: tuple | None) -> jax.Array:
    """The dense Gauss–Newton Λ of the parameters ``index``; if it is None, the diagonal of Λ for all parameters."""
    likelihood: Any = model.through
    (y, x), weights = split_weights(rows)
    keep = None if index is None else jnp.asarray(index)

    def eta(z: jax.Array, x: PyTree) -> jax.Array:
        return jnp.ravel(likelihood.predictor(model.params(z), x))

    shape = jax.eval_shape(lambda x: likelihood.predictor(model.params(mode), x), jax.tree.map(lambda a: a[0], x)).shape

    def log_prob(z: jax.Array, eta: jax.Array, y: PyTree) -> jax.Array:
        params = model.params(z)
        d = likelihood.observe(params, eta.reshape(shape))
        return tree.total(jax.tree.map(lambda d, v: d.log_prob(v), d, y, is_leaf=is_distribution))

    def scaled_jacobian(row: tuple) -> jax.Array:
        """√(−∇²_η log p) J of one row, (outputs, d)."""
        y, x = row
        at_mode = eta(mode, x)
        values, basis = jnp.linalg.eigh(-jax.hessian(lambda e: log_prob(mode, e, y))(at_mode))
        jacobian = jax.jacrev(eta)(mode, x)
        jacobian = jacobian if keep is None else jacobian[:, keep]
        return jnp.sqrt(jnp.maximum(values, 0))[:, None] * (basis.T @ jacobian)

    def rest(z: jax.Array) -> jax.Array:
        """log p(z, y) with η fixed at the mode: the prior, the log-determinant and the rest of the likelihood."""
        unconstrained = model.space.unravel(z)
        params = model.constrain(unconstrained)
        etas = jax.vmap(lambda x: eta(mode, x))(x)
        terms = jax.vmap(lambda e, y: log_prob(z, e, y))(etas, y)
        data = jnp.sum(terms if weights is None else jnp.where(weights > 0, weights * terms, 0))
        return model.log_prior(params) + model.log_jacobian(unconstrained, params) + data

    # This part of Λ is taken to be diagonal. That is exact if each parameter has its own prior, and if the likelihood
    # has at most one parameter besides the predictor's.
    gradient = jax.grad(rest)
    size = mode.size
    diagonal = jax.jvp(gradient, (mode,), (jnp.ones(size, mode.dtype),))[1]
    diagonal = jnp.maximum(-diagonal, 0)

    total = jnp.diag(diagonal if keep is None else diagonal[keep]) if keep is not None else diagonal
    count = jax.tree.leaves(y)[0].shape[0]
    chunks = -(-count // ROWS)
    width = -(-count // chunks)

    def add(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        at = jnp.minimum(start, count - width)
        rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, at, width), (y, x))
        fresh = (at + jnp.arange(width) >= start)[:, None, None]
        stacked = jnp.where(fresh, jax.vmap(scaled_jacobian)(rows), 0)
        if weights is not None:
            stacked = jnp.sqrt(jax.lax.dynamic_slice_in_dim(weights, at, width))[:, None, None] * stacked
        stacked = stacked.reshape(-1, stacked.shape[-1])
        return total + (jnp.sum(jnp.square(stacked), 0) if keep is None else stacked.T @ stacked), None

    return jax.lax.scan(add, total, jnp.arange(chunks) * width)[0]
