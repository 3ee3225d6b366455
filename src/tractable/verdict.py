"""The function ``judge``: a verdict on draws that another program made."""

from tractable.core.bits import in_double
from tractable.core.clock import Stopwatch
from tractable.core.model import Data, Model, PyTree
from tractable.core.settings import expect
from tractable.core.words import spelt
from tractable.diagnostics.verify import Verify
from tractable.engine.identity import identified
from tractable.engine.method import Outcome
from tractable.inference import check
from tractable.mcmc.given_draws import GivenDraws, read_draws
from tractable.posterior.posterior import Posterior


@spelt
@identified()
def judge(
    draws: object, model: Model, data: Data | PyTree = None, *, verify: str | None = "auto", seed: int = 0,
    held_out: Data | PyTree = None,
) -> Posterior:  # fmt: skip
    """Judges draws of a posterior that another program made, by all that ``infer`` looks at.

    Chains are compared with one another and with the density: do they miss modes, are their means and sds right, is
    the mass finite? So draws are rejected too if they belong to another posterior than the model's, for example because
    a prior, a Jacobian or rows were forgotten, or the warm-up was kept.

    Args:
        draws: the model's parameters, as a dict of arrays (chain, draw, …) by name, nested as in the prior or with dots
            in the names; an ArviZ DataTree or InferenceData (its divergent transitions are checked too); or NumPyro's
            MCMC after its run. Further names are left out.
            For a model of one array, such as an unconstrained log density, the array (chain, draw, …) is enough.
        model: the model whose posterior the draws should be: priors and likelihood, or a log density.
        data: the rows; None for a model that is just a log density.
        verify, held_out: as for ``infer``.
        seed: the seed of the verification's random numbers.

    Returns:
        A Posterior with these draws: ``report()`` is the verdict, and it predicts, plots and saves as any other.

    Raises:
        DataError: a parameter is missing, its shape or its number of draws does not fit, or draws lie outside its
            support.
        ModelError, SettingsError: as for ``infer``.

    >>> import jax, numpy as np, numpyro.distributions as dist
    >>> coin = Model({"theta": dist.Beta(1.0, 1.0)}, lambda params: dist.Bernoulli(params["theta"]))
    >>> beta = np.random.default_rng(0).beta(8.0, 4.0, (4, 1000))  # the posterior of 7 heads and 3 tails
    >>> judge({"theta": beta}, coin, np.repeat([1, 0], [7, 3])).report().verdict
    'trust'
    >>> judge({"theta": beta}, coin, np.repeat([1, 0], [3, 7])).report().verdict
    'reject'
    """
    watch = Stopwatch()
    expect("judge(verify)", verify, Verify)
    problem = check(model, data, GivenDraws(), seed, held_out)
    with in_double(problem.double):
        belief = read_draws(draws, problem.model)
        found = {"double": True} if problem.double else {}
        posterior = problem.posterior(Outcome(belief, found, watch.phases({})))
        posterior = posterior.verify(verify, held_out=problem.held_out)
    posterior.seconds = watch.phases(posterior.seconds)
    return posterior
