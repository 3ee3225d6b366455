"""The marginal likelihood, log p(y): estimates, bounds and verdicts."""
