"""Fused steps between the products. Rows go by in blocks that stay in the cache, so each step reads and writes memory about once."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK_BYTES = 2 << 20
_EPS = 1e-5


def _blocks(x: Tensor) -> range:
    return range(0, x.shape[0], _rows(x))


def _rows(x: Tensor) -> int:
    return max(1, _BLOCK_BYTES // max(1, x.shape[1] * x.element_size()))


def _moments(x: Tensor, bias: Tensor, column: Tensor) -> tuple[float, float]:
    """Mean and population deviation of all entries of x + bias, given the column sums of x."""
    n, count = x.shape[0], x.numel()
    b = bias.double()
    square = float(torch.dot(x.view(-1), x.view(-1)))
    mean = float(column.double().sum() + n * b.sum()) / count
    second = (square + 2 * float(b @ column.double()) + n * float(b @ b)) / count
    variance = second - mean * mean
    if variance < 1e-3 * second:
        variance = sum(float((x[i : i + _rows(x)].double() + (b - mean)).square_().sum()) for i in _blocks(x)) / count
    return mean, max(variance, 0.0) ** 0.5


class GraphNormPReLU(torch.autograd.Function):
    """PReLU(gain * (x + bias - m) / (s + eps) + shift), m and s the mean and population deviation of all entries.

    Without a gradient to keep x for, the result is written over it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, slope: Tensor) -> Tensor:
        x = x.contiguous()
        column = x.sum(0)
        mean, deviation = _moments(x, bias, column)
        scale = gain / (deviation + _EPS)
        offset = shift + (bias - mean) * scale
        out = torch.empty_like(x) if ctx.needs_input_grad[0] else x
        negative = float(slope)
        for i in _blocks(x):
            block = torch.addcmul(offset, x[i : i + _rows(x)], scale, out=out[i : i + _rows(x)])
            F.leaky_relu_(block, negative)
        ctx.save_for_backward(x, out, bias, gain, shift, column)
        ctx.moments = (mean, deviation, negative)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, out, bias, gain, shift, column = ctx.saved_tensors
        mean, deviation, negative = ctx.moments
        n, count, wide = x.shape[0], x.numel(), deviation + _EPS
        scale = gain / wide
        offset = shift + (bias - mean) * scale
        inner = torch.empty_like(x)
        sums, products = torch.zeros_like(bias), torch.zeros_like(bias)
        slope = 0.0
        for i in _blocks(x):
            rows = slice(i, i + _rows(x))
            before = out[rows] if negative > 0 else torch.addcmul(offset, x[rows], scale)
            g = _activation_backward(grad[rows], before, negative, inner[rows])
            slope += _slope_gradient(grad[rows], before, negative)
            sums += g.sum(0)
            products += (g * x[rows]).sum(0)
        centred = products + (bias - mean) * sums
        pull = float(gain.double() @ centred.double())
        k = pull / (wide * wide * count * deviation) if deviation > 0 else 0.0
        constant = -k * (bias - mean) - float(gain.double() @ sums.double()) / (count * wide)
        for i in _blocks(x):
            rows = slice(i, i + _rows(x))
            torch.addcmul(constant, inner[rows], scale, out=inner[rows]).add_(x[rows], alpha=-k)
        bias_gradient = sums * scale - k * column + n * constant
        return inner, bias_gradient, centred / wide, sums, grad.new_full((1,), slope)


class PReLU(torch.autograd.Function):
    """max(x, 0) + slope * min(x, 0), written over x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        negative = float(slope)
        ctx.negative = negative
        if negative > 0:
            out = F.leaky_relu_(x, negative)
            ctx.mark_dirty(x)
            ctx.save_for_backward(out)
            return out
        ctx.save_for_backward(x)
        return F.leaky_relu(x, negative)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (before,) = ctx.saved_tensors
        inner = torch.empty_like(grad)
        slope = 0.0
        for i in _blocks(grad):
            rows = slice(i, i + _rows(grad))
            _activation_backward(grad[rows], before[rows], ctx.negative, inner[rows])
            slope += _slope_gradient(grad[rows], before[rows], ctx.negative)
        return inner, grad.new_full((1,), slope)


def _activation_backward(grad: Tensor, before: Tensor, negative: float, out: Tensor) -> Tensor:
    """``before`` is the input, or the output where the slope is positive: the sign is the same."""
    return torch.ops.aten.leaky_relu_backward(grad, before, negative, False, grad_input=out)


def _slope_gradient(grad: Tensor, before: Tensor, negative: float) -> float:
    below = before.clamp(max=0)
    total = float(torch.dot(below.view(-1), grad.reshape(-1)))
    return total / negative if negative > 0 else total


class UnitRows(torch.autograd.Function):
    """q / max(||q||, 1e-12) by rows; rows shorter than that get no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(q, dim=1, keepdim=True)
        inverse = torch.where(length > 1e-12, 1 / length.clamp(min=1e-12), torch.zeros_like(length))
        z = q * torch.where(length > 1e-12, inverse, torch.full_like(length, 1e12))
        ctx.save_for_backward(z, inverse)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, inverse = ctx.saved_tensors
        out = torch.empty_like(z)
        for i in _blocks(z):
            rows = slice(i, i + _rows(z))
            radial = (z[rows] * grad[rows]).sum(1, keepdim=True)
            torch.addcmul(grad[rows], z[rows], radial, value=-1, out=out[rows]).mul_(inverse[rows])
        return out


graph_norm_prelu = GraphNormPReLU.apply
prelu = PReLU.apply
unit_rows = UnitRows.apply
