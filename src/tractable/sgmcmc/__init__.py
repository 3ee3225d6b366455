"""Samplers that use a minibatch of rows at each step: SGLD (Welling & Teh 2011) and SGHMC (Chen et al. 2014).

Langevin dynamics with a stochastic gradient and without an accept step draw from the posterior as the step size goes to
0. At a fixed step size they have a bias, which depends on the curvature of the posterior and on the gradient's noise.

Read ``methods.py`` (the methods that users call, and their warm-up), then ``sgld.py`` or ``sghmc.py`` (one step),
``gradients.py`` (estimators of the gradient) and ``preconditioners.py`` (the metric of a step; with RMSprop's metric
SGLD is pSGLD, Li et al. 2016). ``bias.py`` measures curvature and noise, predicts the bias, and finds the largest step
size that keeps the bias within a tolerance.
"""
