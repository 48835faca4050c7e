"""A matrix X of zeros and ones and a sparse matrix S times a dense one:  Y = S (X B)  or, with S first,  Y = X (S B).

The bits of X are packed once into codes of BITS neighbouring columns (:func:`encode`). Each names an entry of a table of subset sums,
so that a row adds one entry where a dense product multiplies BITS times. Made for features that are present or absent, X, spread
over a graph, S: a third of them set is too many for a sparse product, and a dense one multiplies by zero and one.

For constants: the gradient of B is the product with the transposed matrices in the other order, which the caller keeps, so the op itself
refuses to be differentiated.
"""

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels.reference import binary_product as reference
from carlg_kernels.reference.binary_product import BITS

# Codes of a row that lie together, as the kernel reads them.
CODES = 8


def encode(matrix: Tensor) -> tuple[Tensor, int]:
    """Codes (blocks, n, CODES) uint8 of a matrix (n, m), a bit where it is not zero; and m."""
    rows, columns = matrix.shape
    blocks = -(-columns // (BITS * CODES))
    whole = torch.nn.functional.pad((matrix != 0).to(torch.uint8), (0, blocks * BITS * CODES - columns))
    codes = whole[:, ::BITS].clone()
    for bit in range(1, BITS):
        codes |= whole[:, bit::BITS] << bit
    return codes.view(rows, blocks, CODES).transpose(0, 1).contiguous(), columns


def _fake(codes: Tensor, depth: int, pointers: Tensor, columns: Tensor, values: Tensor, sparse_first: bool, dense: Tensor) -> Tensor:
    return dense.new_empty(codes.shape[1] if sparse_first else pointers.shape[0] - 1, dense.shape[1])


register(
    "binary_product",
    "(Tensor codes, int depth, Tensor pointers, Tensor columns, Tensor values, bool sparse_first, Tensor dense) -> Tensor",
    reference=reference.binary_product,
    fake=_fake,
    triton=False,
    constant="multiply the gradient by the transposed matrices",
)


def binary_product(
    codes: Tensor, depth: int, pointers: Tensor, columns: Tensor, values: Tensor, sparse_first: bool, dense: Tensor
) -> Tensor:
    """``codes`` and ``depth`` as :func:`encode` gives them; S in compressed rows, ``columns`` int32; ``dense`` float32 or float64.

    A bit that is not set adds nothing, not even the NaN of zero times infinity.
    """
    return call("binary_product", codes, depth, pointers, columns, values, sparse_first, dense)  # type: ignore[no-any-return]
