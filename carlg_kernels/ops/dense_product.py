"""A dense product:  C = A B,  dA = dC B^T,  dB = A^T dC,  of two matrices or of two stacks of as many.

Any strides, so that transposed matrices are read as they lie. On x86 by kernels of our own: they keep nearer to the CPU's rate than the
BLAS inside torch, which does not use AVX-512 on every CPU that has it. Elsewhere by torch.
"""

import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels.reference import dense_product as reference

_X86 = platform.machine().lower() in ("x86_64", "amd64")


def _fake(a: Tensor, b: Tensor) -> Tensor:
    torch._check(a.dim() == b.dim() in (2, 3), lambda: f"a and b must be matrices or stacks, got {a.dim()} and {b.dim()} dimensions")
    torch._check(a.shape[-1] == b.shape[-2], lambda: f"b must have {a.shape[-1]} rows, got {b.shape[-2]}")
    torch._check(a.shape[:-2] == b.shape[:-2], lambda: f"b must hold {a.shape[0]} matrices, got {b.shape[0]}")
    torch._check(a.dtype == b.dtype, lambda: f"b must be {a.dtype}, got {b.dtype}")
    return a.new_empty(*a.shape[:-1], b.shape[-1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def register_product(name: str, reference: Callable[[Tensor, Tensor], Tensor]) -> None:
    """An operator (a, b) -> a b that is its own gradient's operator too."""

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        of_a = call(name, grad, b.mT) if ctx.needs_input_grad[0] else None
        of_b = call(name, a.mT, grad) if ctx.needs_input_grad[1] else None
        return of_a, of_b

    register(
        name,
        "(Tensor a, Tensor b) -> Tensor",
        reference=reference,
        fake=_fake,
        cpp=("cpu",) if _X86 else (),
        triton=False,
        setup_context=_save,
        backward=backward,
    )


register_product("dense_product", reference.dense_product)


def dense_product(a: Tensor, b: Tensor) -> Tensor:
    return call("dense_product", a, b)  # type: ignore[no-any-return]
