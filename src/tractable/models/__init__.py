"""Models to begin with, and the exact answers against which others are judged."""

from tractable.models.network import mlp, neural_network, scale_mixture

__all__ = ["mlp", "neural_network", "scale_mixture"]
