"""How fast is EM of a Gaussian mixture, beside scikit-learn's, and how much memory does it take?

There are n = 200,000 rows, d = 8, K = 10, full covariances, and 50 iterations from the same parameters, in float32 and
float64 in one run. One covariance has a condition number of 4e6. scikit-learn's GaussianMixture has tol=0, max_iter=50
and the same start (its own initialisation is the cheapest one, and is overwritten). Ours is the kernel in one compiled
loop, with all rows at once or in chunks of 4096, in the parameters that ``EM`` uses. Memory is counted above the data:
ours is what the compiler reserves, and scikit-learn's is the traced peak of two iterations.

A speed counts only if the answer is right: the log likelihood a row, computed in double precision, must equal that of
scikit-learn in double precision within 1e-4 nats in float32 and 1e-8 in float64, and no step may fall by more than
rounding. Otherwise the script fails.

    python benchmarks/mixture_speed.py [--quick]
"""

import functools
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from measuring import arguments, medians, record, say_where, table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from tractable.core.model import whole
from tractable.latent.em import chunked, em
from tractable.latent.mixture import Gaussians, gaussian_mixture

CHUNK = 4096
FLOOR = 1e-6
OFF = {"float32": 1e-4, "float64": 1e-8}  # largest error of a log likelihood and largest fall of a step, nats a row
MIB = 2**20


def draw(rows: int, features: int, components: int) -> tuple[np.ndarray, Gaussians]:
    """Rows of overlapping components, and a start that differs from all of them."""
    rng = np.random.default_rng(0)
    means = 2 * rng.normal(size=(components, features))
    roots = 0.5 * rng.normal(size=(components, features, features)) + np.eye(features)
    k = rng.integers(0, components, rows)
    x = means[k] + np.einsum("nij,nj->ni", roots[k], rng.normal(size=(rows, features)))
    chosen = x[rng.choice(rows, components, replace=False)]
    spread = np.stack([np.cov(x.T)] * components)
    return x, Gaussians(np.full(components, 1 / components), chosen, spread)


def theirs(x: np.ndarray, start: Gaussians, steps: int) -> GaussianMixture:
    """scikit-learn's mixture before the fit, without its k-means start, so that only iterations are timed."""
    return GaussianMixture(
        len(start.weights), tol=0, reg_covar=FLOOR, max_iter=steps, init_params="random_from_data", random_state=0,
        weights_init=start.weights.astype(x.dtype), means_init=start.means.astype(x.dtype),
        precisions_init=np.linalg.inv(start.covariances).astype(x.dtype),
    )  # fmt: skip


def ours(x: jax.Array, start: Gaussians, steps: int, chunk: int | None) -> Callable:
    """The compiled loop: ``(theta, x) -> (theta, log likelihood before each step)``."""
    made = gaussian_mixture(len(start.weights), x.shape[1], floor=FLOOR, centre=np.asarray(x).mean(0)).climbed
    kernel = em(made.e_step if chunk is None else chunked(made.e_step, chunk), made.m_step)

    def go(theta: Gaussians, x: jax.Array) -> tuple[Gaussians, jax.Array]:
        state, batch = kernel.init(jax.random.key(0), theta), whole(x)
        noise = jnp.zeros(0)
        state, info = jax.lax.scan(lambda state, _: kernel.step(noise, state, batch), state, length=steps)
        return state.position, info.objective

    return jax.jit(go).lower(start, x).compile()


def traced_peak(call: Callable) -> float:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Candidate(NamedTuple):
    run: Callable
    memory: float  # bytes above the data
    found: Gaussians
    fall: float = 0.0  # nats a row, the largest of a step


def of_precision(dtype: type, x: np.ndarray, start: Gaussians, steps: int) -> dict[str, Candidate]:
    values = x.astype(dtype)
    peer = theirs(values, start, steps).fit(values)
    memory = traced_peak(lambda: theirs(values, start, 2).fit(values))
    found = Gaussians(peer.weights_, peer.means_, peer.covariances_)
    out = {"scikit-learn": Candidate(lambda: peer.fit(values).weights_, memory, found)}
    climbed = gaussian_mixture(len(start.weights), x.shape[1], floor=FLOOR).steps.climbed
    on_device, begin = jnp.asarray(values), jax.tree.map(lambda a: jnp.asarray(a, dtype), climbed.into(start))
    for name, chunk in {"all rows": None, f"chunks of {CHUNK}": CHUNK}.items():
        program = ours(on_device, begin, steps, chunk)
        run = functools.partial(program, begin, on_device)
        theta, objective = run()
        fall = max(0.0, -np.diff(np.asarray(objective, np.float64)).min()) / len(x)
        out[name] = Candidate(run, program.memory_analysis().temp_size_in_bytes, climbed.back(theta), fall)
    return out


def wrong(precision: str, name: str, nats: float, wanted: float, fall: float) -> str | None:
    """A sentence that says what is wrong with an answer."""
    if abs(nats - wanted) <= OFF[precision] and fall <= OFF[precision]:  # both are False for NaN
        return None
    return (
        f"{precision}, {name}: {nats:.6f} nats a row and steps that fall by up to {fall:.2g}, where scikit-learn in "
        f"double precision has {wanted:.6f} and {OFF[precision]:g} is allowed."
    )


def compared(rows: int, features: int, components: int, steps: int, repeats: int) -> None:
    x, start = draw(rows, features, components)
    score = jax.jit(gaussian_mixture(components, features, floor=FLOOR, centre=x.mean(0)).log_prob)
    print(f"### {rows:,} rows, d = {features}, K = {components}, full, {steps} iterations\n")
    found = {dtype.__name__: of_precision(dtype, x, start, steps) for dtype in (np.float32, np.float64)}
    everyone = {f"{precision}, {name}": each.run for precision, ways in found.items() for name, each in ways.items()}
    seconds = medians(everyone, repeats)
    lines, told = [], []
    scored = {
        (precision, name): float(jnp.mean(score(jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), each.found), x)))
        for precision, ways in found.items() for name, each in ways.items()
    }  # fmt: skip
    for precision, ways in found.items():
        base = seconds[f"{precision}, scikit-learn"]
        for name, each in ways.items():
            taken = seconds[f"{precision}, {name}"]
            nats = scored[precision, name]
            lines.append([precision, name, steps / taken, base / taken, each.memory / MIB, f"{nats:.6f}"])
            if name != "scikit-learn":
                told.append(wrong(precision, name, nats, scored["float64", "scikit-learn"], each.fall))
    head = ["precision", "what", "iterations/s", "× scikit-learn", "MiB above the data", "nats a row"]
    table(head, lines)
    record(__file__, head, lines, names=2)
    if any(told):
        sys.exit("\n".join(filter(None, told)))


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", ConvergenceWarning)  # with tol=0 scikit-learn always warns
    say_where("How fast is EM of a Gaussian mixture?")
    compared(*((20_000, 8, 10, 5, 1) if args.quick else (200_000, 8, 10, 50, 3)))


if __name__ == "__main__":
    main()
