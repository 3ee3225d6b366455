"""Generalised linear models, and INLA, the integrated nested Laplace approximation (Rue, Martino & Chopin 2009).

- The model: ``linear.py`` makes a model with a linear predictor; ``families.py`` has the distributions of y given the
  predictor.
- The method: given at most one other parameter, the posterior of the weights is nearly normal. ``inla.py`` integrates
  over that parameter on a grid and corrects the result by importance weights. ``conditional.py`` has the log density
  given the parameter, with its gradient and curvature.
- ``narrow.py`` is for tables of more columns than rows. The likelihood then depends on the weights only through their
  projection on the span of the rows, so fewer weights are enough.
"""
