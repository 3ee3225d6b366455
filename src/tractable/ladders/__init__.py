"""Ladders: stacks of stochastic layers p(x | h¹) p(h¹ | h²) …, learnt together with a network q(h | x) that infers h.

A variational autoencoder is a ladder with one normal layer; a sigmoid belief network has layers of binary units.
``ladders`` makes the usual ones, ``ladder`` is the model and ``layers`` its layers. All methods climb a lower bound of
log p(x), or something near it, on minibatches; they differ in the gradient for φ, the weights of the inference network.

Read NVIL (Mnih & Gregor 2014) and VIMCO (Mnih & Rezende 2016), which use the score function and so learn discrete
layers, from ``nvil_methods`` to ``amortised`` (the climb that all methods share), ``score`` (the gradient) and
``ladder``. Read the variational autoencoder (Kingma & Welling 2014) and its importance-weighted kin (Burda, Grosse &
Salakhutdinov 2016), whose gradients pass through the draws of h, from ``autoencoding`` to ``amortised``, ``pathwise``
and ``bounds`` or ``ladder``. Wake–sleep (Hinton et al. 1995) is ``wake_sleep_methods``, ``amortised``, ``wake_sleep``.

``checks`` judges a learnt ladder, ``encoding`` and ``imputing`` use it, ``variance`` measures the gradient's noise.
"""
