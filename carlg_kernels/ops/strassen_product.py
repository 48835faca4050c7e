"""A dense product by fewer multiplications:  C = A B,  dA = dC B^T,  dB = A^T dC,  of two matrices or of two stacks of as many.

On x86 large products of float32 are halved once and put together from seven products of halves instead of eight (Strassen, 1969, in
Winograd's form): an eighth less arithmetic. The error is bounded by the largest numbers of A and B, not by those of a row and a column:
a row beside one a million times larger has no digits left, and a NaN reaches other rows. So this is for matrices of one scale, such as the
layers of a network. For all others there is dense_product, which this is where the product is small, odd or of float64.
"""

from torch import Tensor

from carlg_kernels._library import call
from carlg_kernels.ops.dense_product import register_product
from carlg_kernels.reference import strassen_product as reference

register_product("strassen_product", reference.strassen_product)


def strassen_product(a: Tensor, b: Tensor) -> Tensor:
    return call("strassen_product", a, b)  # type: ignore[no-any-return]
