"""Markov chain Monte Carlo methods whose invariant distribution is the posterior, and rejection sampling.

For each method, the files are listed in the order in which they are best read.

- Random walk (Metropolis et al. 1953): ``metropolis_methods.py`` has the method, ``random_walk.py`` the proposal, and
  ``metropolis.py`` the accept step.
- MALA (Roberts & Tweedie 1996), whose proposal follows the gradient: the same files, with the proposal in ``mala.py``.
- HMC (Duane et al. 1987; Neal 2011) and NUTS (Hoffman & Gelman 2014): ``hamiltonian_methods.py`` has the methods,
  ``hamiltonian.py`` the kernels, and ``adaptation.py`` the warm-up.
- Microcanonical Langevin (Robnik et al. 2023, 2025): ``microcanonical_method.py`` has the method, ``microcanonical.py``
  the kernel; the warm-up is that of NUTS.
- Gibbs sampling (Geman & Geman 1984): ``gibbs_method.py`` chooses the blocks, and ``gibbs.py`` sweeps over them.
  ``full_conditionals.py`` finds the parameters with a known full conditional, and ``conditionals.py`` recognises the
  family of a density by its derivatives.
- Rejection from the prior (von Neumann 1951): ``rejection_method.py`` has the method, and ``rejection.py`` the kernel.
"""
