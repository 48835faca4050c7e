"""PReLU after torch_geometric's LayerNorm in graph mode, or after a bias alone.

    with gain:     y = P(gain (x + bias - m) / (s + eps) + shift),  m, s mean and population deviation of all n d entries of x + bias
    without gain:  y = P(x + bias)
    P(t) = t where t > 0, else slope t

With g' = dy P'(.), G_k = sum_u g'_uk, C_k = sum_u g'_uk (x_uk + bias_k - m), v = s + eps:

    pull = sum_k gain_k C_k / (v^2 n d s)     level_k = pull (bias_k - m) + sum_k gain_k G_k / (n d v)
    dx_uk = g'_uk gain_k / v - pull x_uk - level_k    dbias = sum_u dx_u    dgain = C / v    dshift = G    dslope = sum dy min(t, 0)

Saved are x, the sums of its columns and (m, s): nothing of the size of x besides itself.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels.reference import norm_prelu as reference


def _fake(x: Tensor, bias: Tensor, gain: Tensor | None, shift: Tensor | None, slope: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    channels = 0 if gain is None else x.shape[1]
    return torch.empty_like(x).contiguous(), x.new_empty(channels, dtype=torch.float64), x.new_empty(2, dtype=torch.float64)


def _fake_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor,
    gain: Tensor | None,
    shift: Tensor | None,
    slope: Tensor,
    sums: Tensor,
    moments: Tensor,
    eps: float,
) -> tuple[Tensor, ...]:
    channels = 0 if gain is None else x.shape[1]
    return (
        torch.empty_like(x).contiguous(),
        torch.empty_like(bias),
        x.new_empty(channels),
        x.new_empty(channels),
        x.new_empty(1),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, bias, gain, shift, slope, ctx.eps = inputs
    _, sums, moments = output
    ctx.mark_non_differentiable(sums, moments)
    ctx.save_for_backward(x, bias, gain, shift, slope, sums, moments)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    x, bias, gain, shift, slope, sums, moments = ctx.saved_tensors
    dx, dbias, dgain, dshift, dslope = call("norm_prelu_backward", grad, x, bias, gain, shift, slope, sums, moments, ctx.eps)
    normalized = gain is not None
    return dx, dbias, dgain if normalized else None, dshift if normalized else None, dslope.reshape(slope.shape), None


register(
    "norm_prelu_backward",
    "(Tensor grad, Tensor x, Tensor bias, Tensor? gain, Tensor? shift, Tensor slope, Tensor sums, Tensor moments, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.norm_prelu_backward,
    fake=_fake_backward,
    triton=False,
)
register(
    "norm_prelu",
    "(Tensor x, Tensor bias, Tensor? gain, Tensor? shift, Tensor slope, float eps) -> (Tensor, Tensor, Tensor)",
    reference=reference.norm_prelu,
    fake=_fake,
    triton=False,
    setup_context=_save,
    backward=_backward,
)


def norm_prelu(x: Tensor, bias: Tensor, gain: Tensor | None, shift: Tensor | None, slope: Tensor, eps: float = 1e-5) -> Tensor:
    return call("norm_prelu", x, bias, gain, shift, slope, eps)[0]  # type: ignore[no-any-return]
