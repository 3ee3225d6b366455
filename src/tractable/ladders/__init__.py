"""Ladders: stacks of stochastic layers p(x | h¹) p(h¹ | h²) …, learnt together with a network q(h | x) that infers h.

A variational autoencoder is a ladder with one normal layer; a sigmoid belief network has layers of binary units.
``ladders`` makes the usual ladders, ``ladder`` is the model and ``layers`` makes its layers. Each method maximises a
lower bound of log p(x), or a quantity near it, by stochastic gradients on minibatches. The methods differ in how they
estimate the gradient for φ, the weights of the inference network.

NVIL (Mnih & Gregor 2014) and VIMCO (Mnih & Rezende 2016) use the score function, so they can learn discrete layers.
Read ``nvil_methods``, then ``amortised`` (the optimisation that all methods share), ``score`` (the gradient) and
``ladder``. The variational autoencoder (Kingma & Welling 2014) and the importance-weighted one (Burda, Grosse &
Salakhutdinov 2016) differentiate through the draws of h: read ``autoencoding``, ``amortised``, ``pathwise``, and
``bounds`` or ``ladder``. For wake–sleep (Hinton et al. 1995) read ``wake_sleep_methods``, ``amortised`` and
``wake_sleep``.

``checks`` judges a learnt ladder, ``encoding`` and ``imputing`` use it, and ``variance`` measures the gradient's noise.
"""
