"""Embeddings of graphs whose activations do not fit: the layers by slabs of channels.

A channel of A_hat H W needs one column of W, and the next layer's product is a sum over channels, so of a layer only some channels
exist at a time. The graph LayerNorm needs the moments of all of them, hence two passes: moments first, then the activations, which go
straight into the next product. Kept are that product and the result, (n, width) each.
"""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from carlg.propagation import Inputs

# Channels of a layer that exist at a time.
_SLAB = 64


@torch.no_grad()
def embed_in_slabs(layers: list[nn.Module], inputs: Inputs, channels: int | None = None) -> Tensor:
    """H in evaluation mode, up to rounding that of the whole encoder; ``channels`` of a layer at a time."""
    channels = channels or _SLAB
    product: Callable[[slice], Tensor] = lambda columns: inputs.first_product(layers[0].weight[:, columns].contiguous())  # noqa: E731
    result = torch.empty(0)
    for layer, following in itertools.zip_longest(layers, layers[1:]):
        width = layer.weight.shape[1]
        factor, offset = _affine(layer, (product(columns) for columns in _slabs(width, channels)), width, channels)
        out_width = width if following is None else following.weight.shape[1]
        result = layer.weight.new_zeros(inputs.num_nodes, out_width)
        for columns in _slabs(width, channels):
            h = product(columns).mul_(factor[columns]).add_(offset[columns])
            h = F.leaky_relu_(h, float(layer.slope))
            if following is None:
                result[:, columns] = h
            else:
                result.addmm_(h, following.weight[columns])
        product = _propagated(inputs, result)
    return result


def _propagated(inputs: Inputs, projected: Tensor) -> Callable[[slice], Tensor]:
    return lambda columns: inputs.adjacency @ projected[:, columns].contiguous()


def _slabs(width: int, channels: int) -> Iterator[slice]:
    return (slice(begin, min(begin + channels, width)) for begin in range(0, width, channels))


def _affine(layer: nn.Module, products: Iterator[Tensor], width: int, channels: int) -> tuple[Tensor, Tensor]:
    """The layer before its activation as  factor_k x + offset_k."""
    if layer.batch_norm:
        factor = layer.gain / (layer.running_var + 1e-5).sqrt()
        return factor, layer.shift + (layer.bias - layer.running_mean) * factor
    count, mean, squares = 0, 0.0, 0.0
    for columns, x in zip(_slabs(width, channels), products, strict=True):
        variance, level = torch.var_mean(x.add_(layer.bias[columns]), correction=0)
        gap, more = float(level) - mean, x.numel()
        squares += float(variance) * more + gap * gap * count * more / (count + more)
        mean += gap * more / (count + more)
        count += more
    factor = layer.gain / (math.sqrt(squares / max(count, 1)) + 1e-5)
    return factor, layer.shift + (layer.bias - mean) * factor
