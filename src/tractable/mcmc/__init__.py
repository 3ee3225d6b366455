"""Markov chain Monte Carlo that leaves the posterior exactly invariant, and rejection sampling.

- Random walk (Metropolis et al. 1953): ``metropolis_methods.py``, then ``random_walk.py`` for the proposal and
  ``metropolis.py`` for the accept step.
- MALA (Roberts & Tweedie 1996), whose proposal follows the gradient: the same path, with ``mala.py``.
- HMC (Duane et al. 1987; Neal 2011) and NUTS (Hoffman & Gelman 2014): ``hamiltonian_methods.py``, then
  ``hamiltonian.py``, which wraps BlackJAX.
- Gibbs sampling (Geman & Geman 1984): ``gibbs_method.py`` chooses the blocks and ``gibbs.py`` sweeps over them.
  ``full_conditionals.py`` finds the parameters with a known full conditional, and ``conditionals.py`` recognises the
  family of a density by its derivatives.
- Rejection from the prior (von Neumann 1951): ``rejection_method.py``, then ``rejection.py``.
"""
