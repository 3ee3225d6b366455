"""Models in which every datum has a latent z, and expectation–maximisation, which learns their θ with z summed out.

EM alternates two steps: expected statistics of (x, z) given θ, then the θ that maximises given these statistics
(Dempster, Laird & Rubin 1977). The statistics are sums over rows, so chunks, files and devices add up. Read EM from
``em_method`` (what users set, and what the report checks) to ``em_climb`` (the loop), ``em`` (one step) and
``core/sums`` (the sums). ``gradient_em`` is the M-step for models without a closed form.

The variants: ``online_em`` averages the statistics of minibatches (Cappé & Moulines 2009). ``coordinate_ascent`` takes
the same steps on the parameters of q(θ) (Attias 1999). Monte-Carlo EM draws z (Wei & Tanner 1990); read it from
``monte_carlo_em_method`` to ``monte_carlo_climb``, ``monte_carlo_em`` and ``latent_draws`` or ``latent_chains``.

The models: ``mixture`` (formulas in ``gaussians`` and ``linear_mixture``), ``factors``, ``markov`` (``markov_chain``,
``forward_backward``, ``emissions``), ``state_space`` (``kalman``, ``regressions``), and with a closed-form q(θ)
``variational_mixture``, ``variational_regression`` and ``conjugate_models``.
"""
