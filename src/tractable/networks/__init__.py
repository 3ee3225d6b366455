"""Bayesian neural networks, and Bayes by Backprop (Blundell et al. 2015).

- The model: ``network.py`` makes a model from a network, a likelihood and priors of the weights; ``architecture.py``
  describes networks; ``multi_output.py`` joins models of several targets of the same rows.
- The method: read ``bayes_by_backprop_method.py`` (what users call), then ``bayes_by_backprop.py`` (the objective: the
  ELBO of a mean field, with its KL divided among minibatches), ``weight_noise.py`` (draws of weights for each row:
  local reparameterisation, Kingma et al. 2015, and Flipout, Wen et al. 2018) and ``network.py``.
- ``spread.py`` finds the sds σ of the weights for given means, before and after the optimisation.
"""
