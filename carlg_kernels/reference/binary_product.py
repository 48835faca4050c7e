"""Plain torch for carlg_kernels.ops.binary_product."""

import torch
from torch import Tensor

from carlg_kernels.reference.sparse_product import sparse_product

# Bits of a code, as the kernel reads them.
BITS = 7


def binary_product(
    codes: Tensor, depth: int, pointers: Tensor, columns: Tensor, values: Tensor, sparse_first: bool, dense: Tensor
) -> Tensor:
    places = torch.arange(BITS, dtype=torch.uint8, device=codes.device)
    matrix = (codes.transpose(0, 1).flatten(1)[:, :, None] >> places & 1).flatten(1)[:, :depth].to(dense.dtype).to_sparse_csr()
    if sparse_first:
        return matrix @ sparse_product(pointers, columns, values, dense)
    return sparse_product(pointers, columns, values, matrix @ dense)
