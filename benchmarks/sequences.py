"""How fast are hidden Markov models, beside dynamax and hmmlearn?

The model has K = 5 states that emit one normal number at each step. The data are 1,000 sequences of 1,000 steps, and
one of 1,000,000. Timed are the forward and backward passes (p(z_t | x), the sum of p(z_t, z_{t+1} | x), log p(x)), and
a whole fit of maximum likelihood by 20 steps of EM from the same parameters. All run in double precision, after
compiling. The figures are medians of runs in turn, in wall seconds and in processor seconds; the latter do not depend
on other work on the machine. hmmlearn uses scaling, its fastest way. dynamax uses its two-filter smoother, vmapped over
sequences, and ``fit_em``, which compiles again at every call, and whose emissions have a weak prior, so its likelihood
is a little lower.

A speed counts only if the answer is right: log likelihoods must equal hmmlearn's to a relative 1e-8, before and after
the fit. Otherwise the script fails.

    pip install hmmlearn dynamax  # without dynamax it is left out
    python benchmarks/sequences.py [--quick]
"""

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from hmmlearn import _hmmc
from hmmlearn.hmm import GaussianHMM as HmmlearnHMM
from measuring import arguments, medians, record, say_where, table

from tractable.core.model import whole
from tractable.latent.em import em
from tractable.latent.emissions import Normals
from tractable.latent.markov import HiddenMarkov, hidden_markov

try:
    from dynamax.hidden_markov_model import GaussianHMM, hmm_two_filter_smoother
except ImportError:
    GaussianHMM = hmm_two_filter_smoother = None

jax.config.update("jax_enable_x64", True)

K, STEPS = 5, 20
OFF = 1e-8


def drawn(count: int, length: int) -> tuple[np.ndarray, HiddenMarkov]:
    """Sequences (n, T), and the start of EM."""
    rng = np.random.default_rng(0)
    moves = 0.8 * np.eye(K) + 0.2 * rng.dirichlet(np.ones(K), K)
    truth = HiddenMarkov(np.full(K, 1 / K), moves, Normals(np.arange(K, dtype=float), np.full(K, 0.7)))
    model = hidden_markov(K, prior_counts=0, floor=0.0)
    y = np.asarray(model.simulate(jax.random.key(1), truth, count, length)[0])
    moves = np.full((K, K), 0.1) + 0.5 * np.eye(K)
    begin = HiddenMarkov(np.full(K, 1 / K), moves, Normals(np.arange(K) + 0.3, np.ones(K)))
    return y, begin


def ours(y: np.ndarray, begin: HiddenMarkov) -> tuple[Callable, Callable]:
    model = hidden_markov(K, prior_counts=0, floor=0.0)
    kernel = em(model.e_step, model.m_step)
    begin, rows = jax.tree.map(jnp.asarray, begin), jnp.asarray(y)

    @jax.jit
    def passes(theta: HiddenMarkov, rows: jax.Array) -> tuple:
        found = model.e_step(theta, whole(rows))
        return found.log_likelihood, found.statistics.transition

    @jax.jit
    def fit(theta: HiddenMarkov, rows: jax.Array) -> tuple:
        state, _ = jax.lax.scan(
            lambda s, _: kernel.step(jnp.zeros(0), s, whole(rows)), kernel.init(jax.random.key(0), theta), length=STEPS
        )
        return state.objective, state.position.transition

    return lambda: jax.block_until_ready(passes(begin, rows)), lambda: jax.block_until_ready(fit(begin, rows))


def hmmlearns(y: np.ndarray, begin: HiddenMarkov) -> tuple[Callable, Callable]:
    flat, lengths = y.reshape(-1, 1), [y.shape[1]] * len(y)

    def model() -> HmmlearnHMM:
        made = HmmlearnHMM(
            K, "diag", min_covar=0.0, covars_prior=0.0, covars_weight=0.0, means_weight=0.0, n_iter=STEPS, tol=-np.inf,
            init_params="", implementation="scaling",
        )  # fmt: skip
        made.startprob_, made.transmat_ = begin.initial, begin.transition
        made.means_, made.covars_ = begin.emission.mean[:, None], begin.emission.sd[:, None] ** 2
        return made

    def passes() -> tuple:
        log_b = -0.5 * ((y[..., None] - begin.emission.mean) / begin.emission.sd) ** 2
        b = np.exp(log_b - np.log(begin.emission.sd) - 0.5 * np.log(2 * np.pi))
        total, moves = 0.0, np.zeros((K, K))
        for one in b:
            log_p, forward, scale = _hmmc.forward_scaling(begin.initial, begin.transition, one)
            backward = _hmmc.backward_scaling(begin.initial, begin.transition, one, scale)
            moves += _hmmc.compute_scaling_xi_sum(forward, begin.transition, backward, one)
            total += log_p
        return total, moves

    def fit() -> tuple:
        made = model().fit(flat, lengths)
        return made.monitor_.history[-1], made.transmat_

    return passes, fit


def dynamaxs(y: np.ndarray, begin: HiddenMarkov) -> tuple[Callable, Callable]:
    model = GaussianHMM(K, 1, initial_probs_concentration=1.0, transition_matrix_concentration=1.0)
    rows = jnp.asarray(y)[..., None]
    params, properties = model.initialize(
        jax.random.key(0), method="prior", initial_probs=jnp.asarray(begin.initial),
        transition_matrix=jnp.asarray(begin.transition), emission_means=jnp.asarray(begin.emission.mean)[:, None],
        emission_covariances=jnp.asarray(begin.emission.sd)[:, None, None] ** 2,
    )  # fmt: skip

    @jax.jit
    def passes(rows: jax.Array) -> tuple:
        def one(y: jax.Array) -> tuple:
            log_b = model._inference_args(params, y, None)[2]
            found = hmm_two_filter_smoother(jnp.asarray(begin.initial), jnp.asarray(begin.transition), log_b)
            return found.marginal_loglik, found.trans_probs

        log_p, moves = jax.vmap(one)(rows)
        return jnp.sum(log_p), jnp.sum(moves, axis=0)

    def fit() -> tuple:
        found, log_p = model.fit_em(params, properties, rows, num_iters=STEPS, verbose=False)
        return float(log_p[-1]), found.transitions.transition_matrix

    return lambda: jax.block_until_ready(passes(rows)), fit


def main() -> None:
    quick = arguments(__doc__ or "").parse_args().quick
    say_where("How fast are hidden Markov models?")
    sizes = [(20, 200), (1, 4_000)] if quick else [(1000, 1000), (1, 1_000_000)]
    lines, wrong, beside = [], [], []
    for count, length in sizes:
        y, begin = drawn(count, length)
        who = {"tractable": ours, "hmmlearn": hmmlearns} | ({} if GaussianHMM is None else {"dynamax": dynamaxs})
        made = {name: make(y, begin) for name, make in who.items()}
        for i, what in enumerate(("forward and backward", f"{STEPS} steps of EM")):
            values = {name: float(each[i]()[0]) for name, each in made.items()}
            off = {name: abs(v / values["hmmlearn"] - 1) for name, v in values.items()}
            if off["tractable"] > OFF:
                wrong.append(f"{what}, {count} x {length}: {values}")
            runs, repeats = {name: each[i] for name, each in made.items()}, 1 if quick else (15, 3)[i]
            clocks = [medians(runs, repeats, clock) for clock in (time.perf_counter, time.process_time)]
            beside.append([f"{count:,} of {length:,}", what, clocks[1]["tractable"], clocks[1]["hmmlearn"]])
            for name in runs:
                took = [value for each in clocks for value in (each[name], each[name] / each["tractable"])]
                lines.append([f"{count:,} of {length:,}", what, name, *took, f"{off[name]:.0e}"])
    head = ["seconds", "ratio to ours", "processor's seconds", "ratio to ours"]
    table(["sequences", "what", "who", *head, "log likelihood off"], lines)
    if wrong:
        sys.exit("Log likelihoods differ from hmmlearn's: " + "; ".join(wrong))
    record(__file__, ["sequences", "what", "processor's seconds", "hmmlearn's"], beside, names=2)


if __name__ == "__main__":
    main()
