"""Estimates of the evidence (marginal likelihood) log p(y), with bounds and verdicts."""
