"""Rows of length one:  t_u = q_u + bias,  r_u = ||t_u||,  z_u = t_u / max(r_u, eps).

Backward:  dq_u = (dz_u - z_u (z_u . dz_u)) / r_u,  0 where r_u <= eps (autograd would blow up there);  dbias = sum_u dq_u.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels.reference import unit_rows as reference


def _fake(q: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q).contiguous(), q.new_empty(q.shape[0])


def _fake_backward(grad: Tensor, z: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(z).contiguous(), z.new_empty(z.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, inverse = output
    ctx.mark_non_differentiable(inverse)
    ctx.save_for_backward(z, inverse)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    z, inverse = ctx.saved_tensors
    return *call("unit_rows_backward", grad, z, inverse), None


register(
    "unit_rows_backward",
    "(Tensor grad, Tensor z, Tensor inverse) -> (Tensor, Tensor)",
    reference=reference.unit_rows_backward,
    fake=_fake_backward,
    triton=False,
)
register(
    "unit_rows",
    "(Tensor q, Tensor bias, float eps) -> (Tensor, Tensor)",
    reference=reference.unit_rows,
    fake=_fake,
    triton=False,
    setup_context=_save,
    backward=_backward,
)


def unit_rows(q: Tensor, bias: Tensor, eps: float = 1e-12) -> Tensor:
    return call("unit_rows", q, bias, eps)[0]  # type: ignore[no-any-return]
