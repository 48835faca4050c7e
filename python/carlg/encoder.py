"""Encoder and predictor:  H = layers of PReLU(norm(A_hat H W + b)),  z = unit rows of Pred(H)."""

import math
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from carlg.config import ConfigError
from carlg.propagation import Inputs
from carlg.slabs import embed_in_slabs
from carlg_kernels.ops.norm_prelu import norm_prelu
from carlg_kernels.ops.strassen_product import strassen_product
from carlg_kernels.ops.unit_rows import unit_rows

# Bytes of the widest activations from which on a layer is never held whole.
_LARGE_ACTIVATIONS = 1 << 30
_CONVOLUTION = re.compile(r"model\.module_(\d+)\.lin\.weight")


class Layer(nn.Module):
    """One graph convolution with its norm and activation. ``weight`` is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int, norm: str, generator: torch.Generator | None) -> None:
        super().__init__()
        bound = math.sqrt(6.0 / (inputs + outputs))
        self.weight = nn.Parameter(torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = nn.Parameter(torch.ones(outputs))
        self.shift = nn.Parameter(torch.zeros(outputs))
        self.slope = nn.Parameter(torch.full((1,), 0.25))
        self.batch_norm = norm == "batch"
        if self.batch_norm:
            self.register_buffer("running_mean", torch.zeros(outputs))
            self.register_buffer("running_var", torch.ones(outputs))

    def forward(self, propagated: Tensor) -> Tensor:
        """``propagated`` is A_hat H W."""
        if not self.batch_norm:
            return norm_prelu(propagated, self.bias, self.gain, self.shift, self.slope)
        y = F.batch_norm(propagated + self.bias, self.running_mean, self.running_var, self.gain, self.shift, self.training, 0.99)
        return F.prelu(y, self.slope)


class Encoder(nn.Module):
    """Graph convolutions of the given widths; ``norm`` is "layer" (graph LayerNorm) or "batch"."""

    def __init__(
        self, features: int, widths: tuple[int, ...] = (512, 256), norm: str = "layer", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.features, self.widths, self.norm = features, tuple(widths), norm
        sizes = [features, *widths]
        self.layers = nn.ModuleList(Layer(i, o, norm, generator) for i, o in zip(sizes, sizes[1:], strict=False))

    def forward(self, inputs: Inputs) -> Tensor:
        """Embeddings H, a row a node in the order of the inputs."""
        if inputs.num_features != self.features:
            raise ConfigError(f"the encoder reads {self.features} features, the graph has {inputs.num_features}")
        h = self.layers[0](inputs.first_product(self.layers[0].weight))
        for layer in list(self.layers)[1:]:
            product = strassen_product(h, layer.weight)
            h = layer(inputs.adjacency @ product)
        return h

    @torch.no_grad()
    def embed(self, inputs: Inputs) -> Tensor:
        """Embeddings H in evaluation mode, a row a node of the graph as it came; by slabs of channels where the activations would take gigabytes."""
        if 4 * inputs.num_nodes * max(self.widths) > _LARGE_ACTIVATIONS:
            return inputs.restore(embed_in_slabs(list(self.layers), inputs))
        training = self.training
        self.eval()
        h = self(inputs)
        self.train(training)
        return inputs.restore(h)


class Predictor(nn.Module):
    """Linear, PReLU, Linear; hidden width 0 passes its input through."""

    def __init__(self, width: int, hidden: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.hidden = hidden
        if hidden:
            self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden, width)
            self.slope = nn.Parameter(torch.full((1,), 0.25))
            with torch.no_grad():
                for linear in (self.first, self.second):
                    bound = 1 / math.sqrt(linear.in_features)
                    linear.weight.uniform_(-bound, bound, generator=generator)
                    linear.bias.uniform_(-bound, bound, generator=generator)

    def forward(self, h: Tensor, normalize: bool = True) -> Tensor:
        if not self.hidden:
            return unit_rows(h, h.new_zeros(h.shape[1])) if normalize else h
        hidden = norm_prelu(strassen_product(h, self.first.weight.t()), self.first.bias, None, None, self.slope)
        if not normalize:
            return self.second(hidden)
        return unit_rows(strassen_product(hidden, self.second.weight.t()), self.second.bias)


def _published_names(place: int, norm: str) -> dict[str, str]:
    """Names in the authors' files of what a :class:`Layer` holds, for the convolution at ``place`` of their sequence."""
    conv, scale, act = (f"model.module_{place + i}" for i in range(3))
    scale = f"{scale}.module" if norm == "batch" else scale
    names = {
        "bias": f"{conv}.bias",
        "weight": f"{conv}.lin.weight",
        "gain": f"{scale}.weight",
        "shift": f"{scale}.bias",
        "slope": f"{act}.weight",
    }
    if norm == "batch":
        names |= {"running_mean": f"{scale}.running_mean", "running_var": f"{scale}.running_var"}
    return names


def to_published(encoder: Encoder) -> dict[str, Tensor]:
    """Parameters under the names of the authors' files: ``model.module_{3 i}.lin.weight`` and so on."""
    state = {}
    for i, layer in enumerate(encoder.layers):
        for own, published in _published_names(3 * i, encoder.norm).items():
            value = getattr(layer, own).detach()
            state[published] = value.t().contiguous() if own == "weight" else value.clone()
    return state


def from_published(state: dict[str, Any]) -> Encoder:
    """An encoder from a state dict under the authors' names; widths and norm are read off the shapes."""
    if isinstance(state, dict):
        state = state.get("model", state)
    if not isinstance(state, dict):
        raise ConfigError(f"an encoder's state must be a dictionary of tensors, got {type(state).__name__}")
    places = sorted(int(match[1]) for key in state if (match := _CONVOLUTION.fullmatch(str(key))))
    if not places:
        raise ConfigError(f"no encoder in this file; its keys are {', '.join(map(str, list(state)[:5])) or 'none'}")
    norm = "batch" if any(str(key).endswith("running_mean") for key in state) else "layer"
    weights = [_tensor(state, f"model.module_{place}.lin.weight") for place in places]
    encoder = Encoder(weights[0].shape[1], tuple(weight.shape[0] for weight in weights), norm)
    with torch.no_grad():
        for place, layer in zip(places, encoder.layers, strict=True):
            for own, published in _published_names(place, norm).items():
                target = layer.weight.t() if own == "weight" else getattr(layer, own)
                target.copy_(_tensor(state, published, tuple(target.shape)))
    return encoder


def _tensor(state: dict[str, Any], key: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """``state[key]``, a tensor of that shape; without one, any matrix."""
    value = state.get(key)
    if isinstance(value, Tensor):
        if value.shape == shape or (shape is None and value.dim() == 2 and value.numel()):
            return value
        got: Any = tuple(value.shape)
    else:
        got = "nothing" if value is None else type(value).__name__
    raise ConfigError(f"encoder: {key} must be a tensor of shape {shape or '(outputs, inputs)'}, got {got}")
