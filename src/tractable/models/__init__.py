"""Models that come with the library."""

from tractable.models import conjugate, factors, linear, mixture, network
from tractable.models.network import mlp, neural_network, scale_mixture

__all__ = ["conjugate", "factors", "linear", "mixture", "mlp", "network", "neural_network", "scale_mixture"]
