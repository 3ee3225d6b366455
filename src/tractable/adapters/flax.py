"""Makes networks from unchanged Flax modules."""

from tractable.core.errors import ModelError, SettingsError
from tractable.core.tree import PyTree
from tractable.networks.network import Network


def from_nnx(module: PyTree, example: PyTree = None) -> Network:
    """Turn a Flax NNX module into a Network, for ``tractable.models.neural_network``.

    The weights are the module's ``nnx.Param``, as nested dicts of arrays under the module's names. All other state
    (statistics, counters) stays fixed. Random starting weights have the same sd as the module's weights. The module is
    copied, so training it later does not change the network. A Linen module needs no adapter: pass the pair
    ``(variables["params"], lambda p, x: module.apply({"params": p}, x))``.

    Args:
        module: an ``nnx.Module`` that is called with one x.
        example: one x; if it is given, wrong shapes raise an error at once.

    Raises:
        SettingsError: Flax is not installed.
        ModelError: the module is not an NNX module, or has layers that use batch statistics or drop units at random.
    """
    try:
        from flax import nnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingsError("from_nnx needs Flax, which is not installed: pip install 'flax>=0.12'.") from error
    if not isinstance(module, nnx.Module):
        raise ModelError(f"from_nnx expects a flax.nnx.Module; got {type(module).__name__}.")
    for path, layer in nnx.iter_modules(module):
        where = f"The layer {'.'.join(map(str, path))!r} ({type(layer).__name__})"
        if getattr(layer, "use_running_average", True) is False:
            raise ModelError(
                f"{where} uses statistics of a batch, which cannot be computed for a single datum. Use LayerNorm, or "
                "fix the statistics with module.eval()."
            )
        rates = (getattr(layer, name, 0) or 0 for name in ("rate", "dropout_rate"))
        if getattr(layer, "deterministic", True) is False and max(rates) > 0:
            raise ModelError(
                f"{where} drops units at random, so the weights have no likelihood. Remove the layer, or switch it off "
                "with module.eval()."
            )
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    return Network(nnx.to_pure_dict(params), lambda params, x: nnx.merge(graph, params, rest)(x), example)
