"""Plain torch for carlg_kernels.ops.norm_prelu."""

import torch
from torch import Tensor


def _inner(x: Tensor, bias: Tensor, gain: Tensor | None, shift: Tensor | None, moments: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What the PReLU sees, and the factor of x in it."""
    if gain is None or shift is None:
        return x + bias, torch.ones_like(bias)
    scale = gain / (moments[1] + eps).to(gain.dtype)
    return (x + (bias - moments[0].to(bias.dtype))) * scale + shift, scale


def norm_prelu(
    x: Tensor, bias: Tensor, gain: Tensor | None, shift: Tensor | None, slope: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    moments = x.new_zeros(2, dtype=torch.float64)
    sums = x.new_zeros(0, dtype=torch.float64)
    if gain is not None:
        sums = x.sum(0, dtype=torch.float64)
        shifted = x.double() + bias.double()
        moments = torch.stack([shifted.mean(), shifted.std(correction=0)])
    inner, _ = _inner(x, bias, gain, shift, moments, eps)
    return torch.where(inner > 0, inner, inner * slope), sums, moments


def norm_prelu_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    slope: Tensor,
    sums: Tensor,
    moments: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inner, scale = _inner(x, bias, gain, shift, moments, eps)
    dslope = (grad * inner.clamp(max=0)).sum(dtype=torch.float64).to(x.dtype).reshape(1)
    g = torch.where(inner > 0, grad, grad * slope)
    total = g.sum(0, dtype=torch.float64)
    if gain is None:
        return g, total.to(x.dtype), x.new_zeros(0), x.new_zeros(0), dslope
    mean, deviation = moments[0], moments[1]
    broad, count = deviation + eps, max(x.numel(), 1)
    centred = (g * x).sum(0, dtype=torch.float64) + (bias.double() - mean) * total
    pull = torch.where(deviation > 0, (gain.double() @ centred) / (broad * broad * count * deviation), torch.zeros_like(deviation))
    level = pull * (bias.double() - mean) + (gain.double() @ total) / (count * broad)
    dx = g * scale - x * pull.to(x.dtype) - level.to(x.dtype)
    dbias = total * gain.double() / broad - pull * sums - x.shape[0] * level
    return dx, dbias.to(x.dtype), (centred / broad).to(x.dtype), total.to(x.dtype), dslope
