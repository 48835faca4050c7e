"""binary_product against dense float64 products, and what it refuses."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from carlg_kernels.ops.binary_product import BITS, CODES, binary_product, encode


def _csr(matrix, dtype=torch.float32):
    matrix = sp.csr_matrix(matrix)
    places = torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices.astype(np.int32))
    return *places, torch.from_numpy(matrix.data).to(dtype)


def _case(n, f, width, share=0.35, entries=0.2, dtype=torch.float32, seed=0):
    """Bits (n, f), a sparse (n, n) matrix and its transpose, as CSR and dense, weights (f, width) and a gradient (n, width)."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.rand(n, f, generator=generator) < share
    spread = torch.randn(n, n, generator=generator, dtype=dtype) * (torch.rand(n, n, generator=generator) < entries)
    weights = torch.randn(f, width, generator=generator, dtype=dtype)
    grad = torch.randn(n, width, generator=generator, dtype=dtype)
    return bits, spread, weights, grad


def _both(bits, spread, weights, grad):
    """S (X W) and X^T (S^T G), ours and in float64."""
    forward = binary_product(*encode(bits), *_csr(spread, weights.dtype), False, weights)
    backward = binary_product(*encode(bits.t()), *_csr(spread.t(), weights.dtype), True, grad)
    x, s = bits.double(), spread.double()
    return (forward, s @ (x @ weights.double())), (backward, x.t() @ (s.t() @ grad.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 17), (61, 8, 16), (40, 64, 7), (130, 65, 33), (97, 500, 130), (2100, 70, 20)])
def test_equals_dense_products(shape, dtype):
    for got, expected in _both(*_case(*shape, entries=min(0.2, 20 / shape[0]), dtype=dtype)):
        assert got.dtype == dtype
        tolerance = (1e-5 if dtype == torch.float32 else 1e-13) * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)


@given(st.integers(0, 20), st.integers(0, 150), st.integers(0, 40), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 100))
def test_of_any_shape(n, f, width, share, seed):
    for got, expected in _both(*_case(n, f, width, share, entries=0.5, seed=seed)):
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-4)


def test_codes_hold_every_bit_once():
    matrix = torch.rand(50, 101, generator=torch.Generator().manual_seed(1)) < 0.4
    codes, columns = encode(matrix.float() / 3)
    assert columns == 101 and codes.dtype == torch.uint8 and codes.shape[1:] == (50, CODES)
    flat = codes.transpose(0, 1).flatten(1)
    unpacked = torch.stack([flat >> bit & 1 for bit in range(BITS)], 2).flatten(1).bool()
    assert torch.equal(unpacked[:, :101], matrix) and not unpacked[:, 101:].any()


def test_rows_of_any_strides():
    bits, spread, weights, _ = _case(30, 90, 24)
    arguments = (*encode(bits), *_csr(spread), False)
    scattered = torch.zeros(24, 180)[:, ::2].copy_(weights.t()).t()
    assert torch.equal(binary_product(*arguments, scattered), binary_product(*arguments, weights))


def test_infinities_stay_where_their_bits_are():
    bits, spread, weights, _ = _case(40, 100, 20)
    weights[3, 5], weights[70, 6] = float("inf"), float("nan")
    got = binary_product(*encode(bits), *_csr(torch.eye(40)), False, weights)
    clean = got.clone()
    clean[:, 5:7] = 0
    assert clean.isfinite().all()
    assert torch.equal(got[:, 5].isinf(), bits[:, 3]) and torch.equal(got[:, 6].isnan(), bits[:, 70])


def test_same_bits_for_any_number_of_threads(threads):
    bits, spread, weights, grad = _case(2500, 130, 100, entries=0.01)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append([got for got, _ in _both(bits, spread, weights, grad)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_refuses_what_it_cannot_read():
    bits, spread, weights, _ = _case(12, 70, 3)
    codes, depth = encode(bits)
    sparse = _csr(spread)
    for bad in (
        (codes, 56, *sparse, False, weights),
        (codes, 112, *sparse, False, torch.ones(113, 3)),
        (codes.int(), depth, *sparse, False, weights),
        (codes[..., :4], depth, *sparse, False, weights),
        (codes | 128, depth, *sparse, False, weights),
        (codes, depth, *sparse, False, weights[:56]),
        (codes, depth, *sparse, True, weights),
        (codes, depth, *sparse, False, weights.half()),
        (codes, depth, *sparse, False, weights.double()),
        (codes, depth, *sparse, False, weights[:, 0]),
        (codes, depth, sparse[0], sparse[1] + 12, sparse[2], False, weights),
        (codes, depth, sparse[0].flip(0), *sparse[1:], False, weights),
    ):
        with pytest.raises(RuntimeError):
            binary_product(*bad)


def test_refuses_to_be_differentiated():
    bits, spread, weights, _ = _case(12, 50, 3)
    arguments = (*encode(bits), *_csr(spread), False)
    with pytest.raises(RuntimeError, match="transposed matrices"):
        binary_product(*arguments, weights.requires_grad_()).sum().backward()
    with pytest.raises(RuntimeError, match="transposed matrices"):
        torch.func.grad(lambda dense: binary_product(*arguments, dense).sum())(weights.detach())
