"""Plain torch for carlg_kernels.ops.dense_product."""

from torch import Tensor


def dense_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b
