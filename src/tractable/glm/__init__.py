"""Generalised linear models, and INLA (Rue, Martino & Chopin 2009).

- The model: ``linear.py`` makes a model with a linear predictor; ``families.py`` has the distributions of y given the
  predictor.
- The method: given at most one other parameter, the posterior of the weights is nearly normal. ``inla.py`` integrates
  over that parameter on a grid and corrects the result by importance weights. ``conditional.py`` has the log density
  given the parameter, with its slope and curvature.
- ``narrow.py``: with more columns than rows, the rows see the weights only through their projection on the span of the
  rows, so that the work is that of a narrower table.
"""
