"""Point estimates, and approximations that begin at a point estimate.

- ``points.py``: maximum likelihood and maximum a posteriori, by L-BFGS on all rows or by an optax optimiser on
  minibatches, with standard errors from the observed information.
- ``laplace.py``: the normal whose mean is a mode and whose precision is the curvature there (MacKay 1992). For networks
  the curvature is the generalised Gauss-Newton matrix, and predictions use the linearised network (Immer et al. 2021).
- ``ensemble.py``: deep ensembles (Lakshminarayanan, Pritzel & Blundell 2017): several fits from independent starts,
  whose predictions are averaged.
"""
