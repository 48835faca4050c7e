"""Data, comparisons and the grids of shapes and dtypes that the tests share."""

import pytest
import torch
from torch import Tensor

# (n, c, d): odd sizes, one column, more columns than any tile, c = 2, c > n / 2, one more than a block of rows
SHAPES = [(1003, 17, 33), (257, 2, 5), (97, 60, 256), (640, 31, 64), (50, 7, 1), (2051, 113, 48)]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# relative to the largest value of the reference: rounding of the dtype that a result is stored in
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

shapes = pytest.mark.parametrize("shape", SHAPES, ids=["n{}-c{}-d{}".format(*s) for s in SHAPES])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=[str(t).removeprefix("torch.") for t in DTYPES])


def clustered(n: int, c: int, d: int, dtype=torch.float32, spread=0.7, seed=0) -> tuple[Tensor, Tensor]:
    """Unit vectors around c centres, with an outlier, and where c allows it a gap in the labels and a singleton."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, c, (n,), generator=g)
    z = torch.randn(c, d, generator=g)[labels] + spread * torch.randn(n, d, generator=g)
    if d > 1:
        z = torch.nn.functional.normalize(z, dim=1)
    labels[:2] = torch.tensor([0, 1])
    if c > 4:
        labels[labels == c // 2] = 0
        labels[labels == c - 1] = 0
        labels[3] = c - 1
    labels[5] = -1
    return z.to(dtype), labels


def assert_close(name: str, reference: Tensor, got: Tensor, ratio: float) -> None:
    """The largest deviation relative to the largest value of the reference."""
    assert got.shape == reference.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(reference.shape)}"
    assert torch.isfinite(got).all(), f"{name}: not finite"
    scale = reference.abs().max().clamp(min=1e-30)
    worst = ((got.double() - reference.double()).abs().max() / scale).item()
    assert worst <= ratio, f"{name}: {worst:.1e} of the largest value, allowed {ratio:.1e}"


def value_and_gradients(function, *tensors: Tensor, upstream: float = 3.0):
    """The value of function(*tensors) and the gradients of upstream * value; per-point values get uneven upstream gradients."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    value = function(*leaves)
    grad = torch.full_like(value, upstream)
    if value.dim():
        grad = torch.linspace(-1, 2, value.numel(), dtype=value.dtype)
    value.backward(grad)
    return value.detach(), [leaf.grad for leaf in leaves]


def compare(name, definition, function, dtype, *tensors: Tensor, slack: float = 1.0) -> None:
    """Value and gradients of ``function`` in ``dtype`` against ``definition`` in float64 on the same rounded input."""
    rounded = [t.to(dtype) for t in tensors]
    want, want_grads = value_and_gradients(definition, *[t.double() for t in rounded])
    got, got_grads = value_and_gradients(function, *rounded)
    value_ratio = TOLERANCE[torch.float64 if dtype == torch.float64 else torch.float32]
    assert_close(f"{name} value", want, got, value_ratio * slack)
    for i, (a, b) in enumerate(zip(want_grads, got_grads, strict=True)):
        assert b.dtype == dtype
        assert_close(f"{name} gradient {i}", a, b, TOLERANCE[dtype] * slack)
