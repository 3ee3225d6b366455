"""Variational inference: fit a normal q(z) over the unconstrained parameters.

The ELBO is the evidence lower bound E_q[log p(y, z)] + H[q] ≤ log p(y).

``methods.py`` holds what users call: ``MeanField`` (ADVI, Kucukelbir et al. 2017), ``FullRank`` and ``LowRank`` (Ong,
Nott & Smith 2018). The ELBO is maximised in one of two ways, and ``match.py`` does without it:

- With draws of q: ``elbo.py`` has the objective and its gradient estimators (reparameterised, path or score function),
  and ``engine/staged_climb.py`` maximises it by stochastic gradient ascent.
- Without draws, for models whose likelihood depends on the parameters through a linear predictor: ``quadrature.py``
  integrates over one number for each row (as Challis & Barber 2013), and ``multi_output.py`` over several numbers, by
  quasi-random points. L-BFGS maximises the ELBO.
- ``match.py`` finds the normal whose scores agree with those of the posterior, for ``LowRank`` (Cai et al. 2024).

The families of q are in ``core/approximations.py``.
"""
