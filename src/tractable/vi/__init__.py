"""Variational inference: fit a normal q(z) over the unconstrained parameters by climbing the ELBO.

``methods.py`` holds what users call: ``MeanField`` (ADVI, Kucukelbir et al. 2017), ``FullRank`` and ``LowRank`` (Ong,
Nott & Smith 2018). Two ways lead from there to a formula:

- With draws of q: ``elbo.py`` has the objective and its gradient estimators, reparameterised, path or score function,
  and ``engine/staged_climb.py`` climbs it.
- Without draws, where rows see the parameters through a linear predictor: ``quadrature.py`` integrates over one number
  a row (as Challis & Barber 2013), ``multi_output.py`` over several numbers by quasi-random points, and L-BFGS climbs.

The families of q are in ``core/approximations.py``.
"""
