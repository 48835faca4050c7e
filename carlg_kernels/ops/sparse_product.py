"""A sparse matrix in compressed rows times a dense one:  Y_i = sum_p values_p B_{column_p},  p over the entries of row i.

For constants such as the normalised adjacency: the gradient of B is the product with the transposed matrix, which the caller keeps, so
the op itself refuses to be differentiated.
"""

from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels.reference import sparse_product as reference


def _fake(pointers: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    return dense.new_empty(pointers.shape[0] - 1, dense.shape[1])


register(
    "sparse_product",
    "(Tensor pointers, Tensor columns, Tensor values, Tensor dense) -> Tensor",
    reference=reference.sparse_product,
    fake=_fake,
    triton=False,
    constant="multiply the gradient by the transposed matrix",
)


def sparse_product(pointers: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    return call("sparse_product", pointers, columns, values, dense)  # type: ignore[no-any-return]
