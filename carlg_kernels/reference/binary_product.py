"""Plain torch for carlg_kernels.ops.binary_product."""

import torch
from torch import Tensor

from carlg_kernels.reference.sparse_product import sparse_product


def binary_product(
    codes: Tensor, bits: int, pointers: Tensor, columns: Tensor, values: Tensor, sparse_first: bool, dense: Tensor
) -> Tensor:
    if sparse_first:
        return _unpacked(codes, bits, sparse_product(pointers, columns, values, dense))
    return sparse_product(pointers, columns, values, _unpacked(codes, bits, dense))


def _unpacked(codes: Tensor, bits: int, dense: Tensor) -> Tensor:
    places = torch.arange(bits, dtype=torch.uint8, device=codes.device)
    matrix = (codes.transpose(0, 1).flatten(1)[:, :, None] >> places & 1).flatten(1)[:, : dense.shape[0]]
    return matrix.to(dense.dtype) @ dense
