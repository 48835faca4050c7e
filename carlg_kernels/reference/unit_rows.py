"""Plain torch for carlg_kernels.ops.unit_rows."""

import torch
from torch import Tensor


def unit_rows(q: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    shifted = q + bias
    length = torch.linalg.vector_norm(shifted, dim=1)
    inverse = torch.where(length > eps, 1 / length.clamp(min=eps), torch.zeros_like(length))
    factor = torch.where(length > eps, inverse, torch.full_like(length, 1 / eps))
    return shifted * factor[:, None], inverse


def unit_rows_backward(grad: Tensor, z: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    dq = (grad - z * (grad * z).sum(1, keepdim=True)) * inverse[:, None]
    return dq, dq.sum(0, dtype=torch.float64).to(z.dtype)
