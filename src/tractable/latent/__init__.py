"""Models in which every datum has a latent z, and expectation–maximisation, which learns their θ with z summed out.

EM alternates two steps. The E-step computes expected statistics of (x, z) given θ. The M-step finds the θ that
maximises the expected log density given these statistics (Dempster, Laird & Rubin 1977). The statistics are sums over
rows, so the sums of chunks, files and devices can be added. Read EM in this order: ``em_method`` (the settings, and the
checks of the report), ``em_climb`` (the loop over steps), ``em`` (one step), ``core/sums`` (the sums), and
``gradient_em`` (the M-step of models that have none in closed form).

Three methods vary EM. ``online_em`` averages the statistics of minibatches (Cappé & Moulines 2009).
``coordinate_ascent`` takes the same steps on the parameters of q(θ) (Attias 1999). Monte-Carlo EM draws z (Wei & Tanner
1990); read it from ``monte_carlo_em_method`` to ``monte_carlo_climb``, ``monte_carlo_em`` and ``latent_draws`` or
``latent_chains``.

The models are ``mixture`` (with formulas in ``gaussians`` and ``linear_mixture``), ``factors``, ``markov`` (with
``markov_chain``, ``forward_backward`` and ``emissions``) and ``state_space`` (with ``kalman`` and ``regressions``).
``variational_mixture``, ``variational_regression`` and ``conjugate_models`` have models whose q(θ) has a closed form.
"""
