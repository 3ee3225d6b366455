"""Models that come with the library."""

from tractable.models import conjugate, linear, network
from tractable.models.network import mlp, neural_network, scale_mixture

__all__ = ["conjugate", "linear", "mlp", "network", "neural_network", "scale_mixture"]
