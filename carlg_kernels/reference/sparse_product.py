"""Plain torch for carlg_kernels.ops.sparse_product."""

import torch
from torch import Tensor


def sparse_product(pointers: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    size = (pointers.shape[0] - 1, dense.shape[0])
    matrix = torch.sparse_csr_tensor(pointers, columns.long(), values, size=size, check_invariants=False)
    return matrix @ dense
