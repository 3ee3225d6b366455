"""Deep latent-variable models with scikit-learn's interface: encoding, decoding, sampling and densities of rows.

A ladder is a model with one or more layers of latent variables h¹, …, h^L above the visible x.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from tractable.core.errors import DataError, SettingsError
from tractable.core.model import Data, PyTree
from tractable.core.settings import Range, is_number
from tractable.core.shared import compiled
from tractable.estimators import rows as tables
from tractable.estimators.base import Bayesian, RandomState, Scored, limit_batch_size, warn_of
from tractable.estimators.rows import Rows, Scaling
from tractable.ladders.amortised import Amortised
from tractable.ladders.bounds import log_weights, moments
from tractable.ladders.encoding import each_row, generate, network_of, rows_together
from tractable.ladders.ladder import Ladder
from tractable.ladders.ladders import latent_gaussian, sigmoid_belief_network
from tractable.ladders.pathwise import k_sample
from tractable.methods import AutoEncoding, ImportanceWeighted, Method, named

SCORED = 100  # draws of h for each row in score_samples
FLOATS: Any = [np.float64, np.float32]

BINARY = Range("0 or 1", lambda x: (x == 0) | (x == 1))
SUPPORTS = {  # by family: the numbers that rows can have
    "normal": Range("any number", np.isfinite),
    "bernoulli": BINARY,
    "continuous bernoulli": Range("from 0 to 1", lambda x: (x >= 0) & (x <= 1)),
    "poisson": Range("counts: 0, 1, 2, …", lambda x: (x >= 0) & (x == np.floor(x))),
}
Family = Annotated[
    Literal["normal", "bernoulli", "continuous bernoulli", "poisson"], f"one of {', '.join(map(repr, SUPPORTS))}"
]
Threshold = Annotated[float, Range("a threshold, above which x counts as 1", is_number)]


class LadderTransformer(Scored, ClassNamePrefixFeaturesOutMixin, TransformerMixin, Bayesian):
    """Base of transformers that fit a ladder; subclasses define the model and the method."""

    _model: Callable[[], Ladder]
    _method: Callable[[], Method]
    _support: Callable[[], Range]  # the values that rows may have
    _streams = 2  # how many random seeds there are: one for the fit and one for samples
    posterior_: Any
    bound_: float

    def _scale(self, x: np.ndarray) -> Scaling:
        """The scaling from the user's units to the model's units."""
        return Scaling(np.zeros(x.shape[1]), np.ones(x.shape[1]))

    def fit(self, X: object, y: object = None) -> Any:
        """Learn the model and its inference network.

        Args:
            X: (n, d), an array or a data frame of numbers, n ≥ 2.
            y: ignored.

        Returns:
            The estimator.

        Raises:
            ValueError: NaN, numbers outside the model's support, or settings out of range.

        Warns:
            TractableWarning: the report's verdict is "reject".
        """
        self._check_settings()
        x = self._read(X, reset=True)
        method, model = limit_batch_size(self._method(), len(x)), self._model()
        self._scaling = self._scale(np.asarray(x, np.float64))
        fitted = self._infer(model, Data(self._units(x)), method)
        self._keep(dataclasses.replace(fitted, data=None, run_state=None, judged=fitted.report()))
        self.bound_ = float(fitted.found["bound"]) - self._log_scale()
        warn_of(self.report_)
        return self

    def transform(self, X: object) -> np.ndarray:
        """E[h¹ | x] under the inference network, (n, units of h¹); float32 for float32 rows."""
        x = self._read(X)
        ladder, params = network_of(self._posterior, "transform")
        return self._map_rows(functools.partial(_codes, ladder, params), 1, self._units(x)).astype(x.dtype)

    def inverse_transform(self, X: object) -> np.ndarray:
        """E[x | h¹] for given codes h¹, (n, units of h¹): (n, d) in the fitted rows' units.

        Codes need not be values that h¹ can take. Note that the decoded mean of codes is not the mean of the decoded
        codes.
        """
        check_is_fitted(self, "posterior_")
        codes = np.asarray(check_array(X, dtype=FLOATS))
        if codes.shape[1] != self._n_features_out:
            shape = f"(n, {self._n_features_out}), as transform returns them"
            raise DataError(f"inverse_transform expects codes of shape {shape}; got shape {codes.shape}.")
        ladder, params = network_of(self._posterior, "inverse_transform")
        mean = self._map_rows(functools.partial(_decode, ladder, params), 1, codes.astype(jnp.result_type(float)))
        return self._from_units(mean).astype(codes.dtype)

    def score_samples(self, X: object) -> np.ndarray:
        """A lower bound of log p(x) for each row, (n,), in nats (units of the natural logarithm).

            log (1/K) Σ_k p(x, h_k) / q(h_k | x),   h_k ~ q(h | x),   K = 100

        p is the density in the fitted rows' units. The bound's expectation is at most log p(x) (Burda, Grosse &
        Salakhutdinov 2016). A row's draws depend only on the fit's seed and the row's numbers. So equal rows have equal
        scores, whatever the other rows are.
        """
        units = self._units(self._read(X))
        ladder, params = network_of(self._posterior, "score_samples")
        # Each row's key comes from the row's checksum, so it depends neither on other rows nor on their order.
        sums = np.array([zlib.crc32(row.tobytes()) for row in np.ascontiguousarray(units)], np.uint32)
        key = jax.random.fold_in(jax.random.key(self._posterior.seed or 0), 1)
        return self._map_rows(functools.partial(_scores, ladder, params, key), SCORED, units, sums) - self._log_scale()

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Draw rows (n_samples, d) from the model; ``random_state`` is the seed."""
        check_is_fitted(self, "posterior_")
        return self._from_units(np.asarray(generate(self._posterior, n_samples, seed=self._seeds()[1]).x, np.float64))

    @property
    def _n_features_out(self) -> int:
        return self._model().layers[1].size

    def _read(self, X: object, reset: bool = False) -> np.ndarray:
        """Rows in float32 or float64, checked to lie in the model's support."""
        x = self._check_table(X, reset=reset, dtype=FLOATS, ensure_min_samples=2 if reset else 1)
        support = self._support()
        good = support.holds(x)
        if not np.all(good):
            row, column = np.argwhere(~good)[0]
            raise DataError(
                f"X must be {support.expected} for {self!r}; row {row}, column {column} has {x[row, column]:g}."
            )
        return x

    def _units(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._scaling.inputs(np.asarray(x, np.float64)), jnp.result_type(float))

    def _from_units(self, x: np.ndarray) -> np.ndarray:
        return self._scaling.centre + self._scaling.scale * x

    def _log_scale(self) -> float:
        """log |∂x/∂x̃| of a row x with scaled numbers x̃; log densities in the user's units are lower by this number."""
        return float(np.log(self._scaling.scale).sum())

    def _map_rows(self, function: Callable, draws: int, *arrays: np.ndarray) -> np.ndarray:
        """``function`` of all rows, in blocks of as many rows as memory allows with ``draws`` draws for each row."""
        return tables.map_parts(function, tables.row_blocks(rows_together(self._model(), draws), *arrays))

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(eq=False, repr=False)
class VariationalAutoencoder(LadderTransformer):
    """A variational autoencoder: a perceptron decodes a few latent numbers z into a row.

        z ~ N(0, I),    x | z ~ family(decoder(z)),    q(z | x) = N(μ(x), diag σ²(x))

    For "normal", the columns are standardised inside the estimator and share one learnt sd. With ``hidden=()`` the
    model is then probabilistic PCA of standardised columns. ``transform`` gives μ(x). Kingma & Welling 2014.

    Args:
        latent: dimension of z, ≥ 1.
        hidden: widths of the decoder's tanh layers, from z towards x; the encoder has the same widths, from x towards
            z. () for linear maps.
        family: distribution of x: "normal", "bernoulli" (0 or 1), "continuous bernoulli" (0 to 1) or "poisson"
            (counts).
        samples: draws of z for each row in each step, ≥ 1.
        objective: the bound to maximise: "elbo", the evidence lower bound; or "iwae", the tighter bound of the
            importance-weighted autoencoder, which combines ``samples`` draws.
        epochs, batch_size: passes over the rows; rows per step, at most all rows.
        learning_rate: Adam's learning rate at the start, > 0; it falls to 0.
        warmup: for "elbo" only: the number of epochs over which the weight of the KL divergence grows to 1.
        free_bits: for "elbo" only: ≥ 0, nats of KL divergence per latent number that the objective does not count.
        random_state: int, RandomState or None, for the fit and for samples.

    Attributes:
        bound_: lower bound of log p(x), in nats per row, from 100 draws at the fitted rows, or at 1000 of them if
            there are more.
        posterior_: the parameters θ of the decoder and φ of the encoder as a Posterior. For "normal" it is for
            standardised columns, as for ``BayesianMLPRegressor``.
        report_: how far to trust the fit.
        n_features_in_, feature_names_in_: number and names of the fitted columns.

    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> X = z @ [[1.0, 2.0, -1.0]] + 0.1 * np.random.default_rng(1).normal(size=(200, 3))
    >>> model = VariationalAutoencoder(1, hidden=(), learning_rate=0.03, random_state=0).fit(X)
    >>> bool(abs(np.corrcoef(model.transform(X)[:, 0], z[:, 0])[0, 1]) > 0.95)
    True
    """

    latent: int = 2
    _: KW_ONLY
    hidden: Sequence[int] = (100,)
    family: Family = "normal"
    samples: int = 1
    objective: Literal["elbo", "iwae"] = "elbo"
    epochs: int = 100
    batch_size: int = 100
    learning_rate: float = 1e-3
    warmup: int = 0
    free_bits: float = 0.0
    random_state: RandomState = None

    @property
    def _scales_columns(self) -> bool:
        return self.family == "normal"

    def _model(self) -> Ladder:
        noise = "shared" if self.family == "normal" else None
        return latent_gaussian(self.n_features_in_, self.latent, hidden=self.hidden, family=self.family, noise=noise)

    def _method(self) -> Method:
        common = {name: getattr(self, name) for name in ("epochs", "batch_size", "samples", "learning_rate")}
        if self.objective == "elbo":
            return AutoEncoding(**common, warmup=self.warmup, free_bits=self.free_bits)
        if self.warmup or self.free_bits:
            raise SettingsError("warmup and free_bits are for objective='elbo'. Leave both at 0 for objective='iwae'.")
        return ImportanceWeighted(**common)

    def _support(self) -> Range:
        return SUPPORTS[self.family]

    def _scale(self, x: np.ndarray) -> Scaling:
        if self.family != "normal":
            return super()._scale(x)
        return tables.scaling(Rows(x, np.zeros(len(x)), np.ones(len(x))), False)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.family != "normal"
        return tags


@dataclass(eq=False, repr=False)
class BeliefNetwork(LadderTransformer):
    """A sigmoid belief network: layers of latent binary variables h explain binary rows (Neal 1992).

        h^L ~ Bernoulli(σ(b)),    h^i | h^{i+1} ~ Bernoulli(σ(W h^{i+1} + b)),    x | h¹ likewise

    ``transform`` gives the probabilities of h¹, the layer next to x, under the inference network.

    Args:
        hidden: number of units of h¹, …, h^L, where h¹ is next to x.
        method: "nvil", "vimco", "wake-sleep" or "reweighted-wake-sleep"; or such a method with its own settings, such
            as ``NVIL(samples=5)``, whose own epochs and batch_size then replace the ones here.
        binarise: a threshold b: columns become x > b, which leaves 0 and 1 unchanged if b is in [0, 1). With None,
            rows may hold only 0 and 1.
        epochs, batch_size, random_state: as for ``VariationalAutoencoder``.

    Attributes:
        bound_, posterior_, report_, n_features_in_, feature_names_in_: as for ``VariationalAutoencoder``.

    >>> X = np.repeat(np.random.default_rng(0).integers(0, 2, (100, 1)), 4, 1)
    >>> codes = BeliefNetwork((1,), epochs=200, batch_size=20, random_state=0).fit_transform(X)
    >>> bool(abs(np.corrcoef(codes[:, 0], X[:, 0])[0, 1]) > 0.9)
    True
    """

    hidden: Sequence[int] = (50,)
    _: KW_ONLY
    method: str | Method = "nvil"
    binarise: Threshold | None = 0.5
    epochs: int = 100
    batch_size: int = 100
    random_state: RandomState = None

    def _model(self) -> Ladder:
        return sigmoid_belief_network(self.n_features_in_, self.hidden)

    def _method(self) -> Method:
        kind: Any = named(self.method) if isinstance(self.method, str) else type(self.method)
        if not issubclass(kind, Amortised):
            raise SettingsError(
                "method must be 'nvil', 'vimco', 'wake-sleep', 'reweighted-wake-sleep', or such a method with its own "
                f"settings; got {self.method!r}."
            )
        return kind(epochs=self.epochs, batch_size=self.batch_size) if isinstance(self.method, str) else self.method

    def _support(self) -> Range:
        return BINARY if self.binarise is None else SUPPORTS["normal"]

    def _units(self, x: np.ndarray) -> np.ndarray:
        return super()._units(x if self.binarise is None else x > self.binarise)


@compiled("ladder")
def _codes(ladder: Ladder, params: PyTree, x: jax.Array) -> jax.Array:
    """E[h¹ | x], (n, units of h¹). It depends on x alone, so any key will do."""
    q = ladder.drawn(jax.random.key(0), params, x, 1)[1][0]
    return moments(q)[0][0]


@compiled("ladder")
def _decode(ladder: Ladder, params: PyTree, h: jax.Array) -> jax.Array:
    """E[x | h¹], (n, d)."""
    return moments(ladder.visible.distribution(params["theta"]["x"], h))[0]


@compiled("ladder")
def _scores(ladder: Ladder, params: PyTree, key: jax.Array, x: jax.Array, sums: jax.Array) -> jax.Array:
    """Lower bounds of log p(x) from ``SCORED`` draws, (n,)."""

    def one(key: jax.Array, x: jax.Array) -> jax.Array:
        h, q = ladder.drawn(key, params, x[None], SCORED)
        return k_sample(log_weights(ladder, params, x[None], h, q)[0])[0]

    return each_row(one, key, sums, x)
