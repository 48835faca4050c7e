"""The ops of the trainer's layers against their definitions: norm_prelu, unit_rows, sparse_product, dense_product."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from carlg_kernels.ops.dense_product import dense_product
from carlg_kernels.ops.norm_prelu import norm_prelu
from carlg_kernels.ops.sparse_product import sparse_product
from carlg_kernels.ops.unit_rows import unit_rows


def _definition(x, bias, gain, shift, slope, eps=1e-5):
    t = x + bias
    if gain is not None:
        t = gain * (t - t.mean()) / (t.std(correction=0) + eps) + shift
    return torch.where(t > 0, t, slope * t)


def _parameters(n, d, slope, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, *channels = (torch.randn(s, generator=generator, dtype=dtype) for s in [(n, d), (d,), (d,), (d,)])
    return [t.requires_grad_() for t in (x, *channels, torch.full((1,), slope, dtype=dtype))]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("slope", [0.25, -0.1, 0.0, 1.5])
@pytest.mark.parametrize("shape", [(13, 5), (1, 3), (301, 17), (1030, 64)])
def test_norm_prelu_equals_its_definition(shape, slope, normalized):
    x, bias, gain, shift, a = _parameters(*shape, slope, torch.float32)
    wide = [t.detach().double().requires_grad_() for t in (x, bias, gain, shift, a)]
    inputs = (x, bias, gain, shift, a) if normalized else (x, bias, None, None, a)
    wide_inputs = wide if normalized else (wide[0], wide[1], None, None, wide[4])
    got, expected = norm_prelu(*inputs), _definition(*wide_inputs)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    (got * upstream).sum().backward()
    (expected * upstream).sum().backward()
    for mine, theirs in zip(inputs, wide_inputs, strict=True):
        if mine is not None:
            # autograd's std has no gradient for a single value of no spread; there ours is zero
            reference = torch.nan_to_num(theirs.grad)
            torch.testing.assert_close(mine.grad.double(), reference, rtol=1e-4, atol=1e-5 * max(1.0, float(reference.norm())))


@pytest.mark.parametrize("slope", [0.25, -0.1, 1.5])
@pytest.mark.parametrize("normalized", [True, False])
def test_norm_prelu_gradcheck(slope, normalized):
    x, bias, gain, shift, a = _parameters(13, 5, slope, torch.float64)
    if normalized:
        assert torch.autograd.gradcheck(norm_prelu, (x, bias, gain, shift, a))
    else:
        assert torch.autograd.gradcheck(lambda *t: norm_prelu(t[0], t[1], None, None, t[2]), (x, bias, a))


def test_norm_prelu_keeps_digits_far_from_zero():
    x = 100 + torch.randn(500, 8, generator=torch.Generator().manual_seed(0)) * 1e-2
    ones, zeros, slope = torch.ones(8), torch.zeros(8), torch.tensor([0.25])
    got = norm_prelu(x, zeros, ones, zeros, slope)
    expected = _definition(x.double(), zeros.double(), ones.double(), zeros.double(), 0.25)
    # float32 numbers near 100 are 7.6e-6 apart, 8e-4 of the deviation
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("case", ["first row far away", "every block elsewhere", "one entry far away"])
def test_norm_prelu_of_uneven_rows(case):
    x = torch.randn(3000, 24, generator=torch.Generator().manual_seed(0))
    if case == "first row far away":
        x[0] += 300
    elif case == "every block elsewhere":
        x += torch.linspace(-50, 50, 3000)[:, None]
    else:
        x[1234, 5] = 1e4
    ones, zeros, slope = torch.ones(24), torch.zeros(24), torch.tensor([0.25])
    got = norm_prelu(x, zeros, ones, zeros, slope)
    expected = _definition(x.double(), zeros.double(), ones.double(), zeros.double(), slope.double())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_norm_prelu_of_equal_entries():
    x = torch.full((6, 4), 3.0, requires_grad=True)
    y = norm_prelu(x, torch.zeros(4), torch.ones(4), torch.full((4,), 0.5), torch.tensor([0.25]))
    y.sum().backward()
    assert torch.equal(y, torch.full((6, 4), 0.5)) and torch.isfinite(x.grad).all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_unit_rows_equals_its_definition(n, d, seed):
    generator = torch.Generator().manual_seed(seed)
    q, bias = torch.randn(n, d, generator=generator, requires_grad=True), torch.randn(d, generator=generator, requires_grad=True)
    wide, wide_bias = q.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    got = unit_rows(q, bias)
    expected = torch.nn.functional.normalize(wide + wide_bias, dim=1)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    upstream = torch.randn(n, d, generator=generator)
    (got * upstream).sum().backward()
    (expected * upstream).sum().backward()
    # the gradient is as large as one over the length of the row, and so is its rounding
    shortest = float((wide + wide_bias).detach().norm(dim=1).min())
    for mine, theirs in ((q, wide), (bias, wide_bias)):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5 * n / min(1.0, shortest) ** 2)


def test_unit_rows_gradcheck_and_zero_rows():
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unit_rows, (q, bias))
    zero = torch.zeros(2, 3, requires_grad=True)
    z = unit_rows(zero, torch.zeros(3))
    z.sum().backward()
    assert not z.any() and not zero.grad.any()


def _csr(matrix):
    matrix = matrix.tocsr()
    pointers, columns = torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices.astype(np.int32))
    return pointers, columns, torch.from_numpy(matrix.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "rows,columns,density", [(1, 1, 1.0), (37, 5, 0.9), (5, 61, 0.3), (203, 90, 0.02), (400, 30, 0.5), (60, 400, 0.9), (3, 11000, 0.02)]
)
@pytest.mark.parametrize("width", [1, 7, 16, 33, 130])
def test_sparse_product_equals_scipy(rows, columns, density, width, dtype):
    generator = np.random.default_rng(rows)
    matrix = sp.random(rows, columns, density, dtype=dtype, random_state=generator)
    dense = generator.standard_normal((columns, width)).astype(dtype)
    got = sparse_product(*_csr(matrix), torch.from_numpy(dense))
    expected = matrix.astype(np.float64) @ dense.astype(np.float64)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_sparse_product_refuses_what_it_cannot_read():
    pointers, columns, values = torch.tensor([0, 1, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2)
    dense = torch.ones(2, 3)
    for bad in (
        (torch.tensor([0, 2, 1]), columns, values, dense),
        (torch.tensor([0, 1, 3]), columns, values, dense),
        (pointers, torch.tensor([0, 2], dtype=torch.int32), values, dense),
        (pointers, torch.tensor([-1, 0], dtype=torch.int32), values, dense),
        (pointers, columns, values.double(), dense),
        (pointers, columns.long(), values, dense),
    ):
        with pytest.raises(RuntimeError):
            sparse_product(*bad)


def test_sparse_product_refuses_to_be_differentiated():
    arguments = torch.tensor([0, 1, 2]), torch.tensor([0, 1], dtype=torch.int32), torch.ones(2)
    with pytest.raises(RuntimeError, match="transposed matrix"):
        sparse_product(*arguments, torch.randn(2, 3, requires_grad=True)).sum().backward()
    with pytest.raises(RuntimeError, match="transposed matrix"):
        torch.func.grad(lambda dense: sparse_product(*arguments, dense).sum())(torch.randn(2, 3))


def _laid_out(matrix, layout):
    """The same matrix in other strides."""
    if layout == "transposed":
        return matrix.t().contiguous().t()
    if layout == "strided":
        return torch.zeros(2 * matrix.shape[0], 3 * matrix.shape[1], dtype=matrix.dtype)[::2, ::3].copy_(matrix)
    if layout == "part":
        return torch.zeros(matrix.shape[0] + 1, matrix.shape[1] + 5, dtype=matrix.dtype)[1:, 2:-3].copy_(matrix)
    return matrix.contiguous()


def _rounding(a, b):
    """What the sums of a float32 product may be off by: their length times the sums of the absolute values, in epsilons."""
    return a.shape[1] ** 0.5 * (a.double().abs() @ b.double().abs()) * 2 * torch.finfo(torch.float32).eps + 1e-30


@pytest.mark.parametrize("layout", ["rows", "transposed", "strided", "part"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (5, 3, 1),
        (1, 700, 40),
        (12, 512, 32),
        (13, 513, 33),
        (301, 767, 96),
        (97, 1500, 17),
        (29, 1100, 16),
        (40, 1, 40),
        (767, 2, 31),
    ],
)
def test_dense_product_equals_its_definition(shape, layout):
    rows, depth, columns = shape
    a, b = (_laid_out(torch.randn(s), layout) for s in ((rows, depth), (depth, columns)))
    assert ((dense_product(a, b) - a.double() @ b.double()).abs() <= _rounding(a, b)).all()
    wide = a.double(), b.double()
    torch.testing.assert_close(dense_product(*wide), wide[0] @ wide[1], rtol=1e-12, atol=1e-12)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 70), st.booleans(), st.booleans(), st.integers(0, 100))
def test_dense_product_of_any_shape_and_its_gradient(rows, depth, columns, transpose_a, transpose_b, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b, upstream = (torch.randn(s, generator=generator) for s in ((rows, depth), (depth, columns), (rows, columns)))
    a, b = (x.t().contiguous().t() if transposed else x for x, transposed in ((a, transpose_a), (b, transpose_b)))
    a, b = a.requires_grad_(), b.requires_grad_()
    product = dense_product(a, b)
    product.backward(upstream)
    wide = [x.detach().double() for x in (a, b, upstream)]
    for got, expected in ((product, wide[0] @ wide[1]), (a.grad, wide[2] @ wide[1].t()), (b.grad, wide[0].t() @ wide[2])):
        torch.testing.assert_close(got.detach().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["rows", "transposed", "strided", "broadcast"])
def test_dense_product_of_stacks(layout):
    a, b = torch.randn(3, 17, 40), torch.randn(3, 40, 33)
    if layout == "transposed":
        a, b = (x.mT.contiguous().mT for x in (a, b))
    elif layout == "strided":
        a, b = torch.randn(6, 34, 40)[::2, ::2], torch.randn(3, 40, 66)[..., ::2]
    elif layout == "broadcast":
        a = torch.randn(17, 40).expand(3, 17, 40)
    a, b = a.requires_grad_(), b.requires_grad_()
    product = dense_product(a, b)
    for i in range(3):
        assert torch.equal(product[i], dense_product(a[i], b[i]))
    upstream = torch.randn(product.shape)
    of_a, of_b = torch.autograd.grad(product, (a, b), upstream)
    torch.testing.assert_close(of_a, upstream @ b.mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_b, a.mT @ upstream, rtol=1e-4, atol=1e-4)


def test_dense_product_hides_no_nan_and_spreads_none():
    a, b = torch.randn(30, 600), torch.randn(600, 40)
    a[3, 599], b[0, 39] = float("nan"), float("inf")
    expected = (a.double() @ b.double()).float()
    product = dense_product(a, b)
    assert torch.equal(product.isnan(), expected.isnan()) and torch.equal(product.isinf(), expected.isinf())


def test_dense_product_gradcheck_and_constants():
    a, b = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dense_product, (a, b))
    assert torch.autograd.gradgradcheck(dense_product, (a, b))
    dense_product(a.detach(), b).sum().backward()
    assert b.grad is not None and a.grad is None


def test_dense_product_refuses_what_does_not_fit():
    for bad in (
        (torch.ones(3, 4), torch.ones(3, 4)),
        (torch.ones(3, 4), torch.ones(4, 3).double()),
        (torch.ones(4), torch.ones(4, 3)),
        (torch.ones(2, 3, 4), torch.ones(4, 3)),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 3)),
        (torch.ones(1, 2, 3, 4), torch.ones(1, 2, 4, 3)),
    ):
        with pytest.raises(RuntimeError):
            dense_product(*bad)
        with pytest.raises(RuntimeError):
            dense_product(*(x.to("meta") for x in bad))


@pytest.mark.parametrize("name", ["norm_prelu", "unit_rows", "sparse_product", "dense_product"])
def test_same_bits_for_any_number_of_threads(name):
    generator = torch.Generator().manual_seed(4)
    x, bias, gain = torch.randn(3001, 48, generator=generator), torch.randn(48, generator=generator), torch.rand(48, generator=generator)
    sparse = _csr(sp.random(900, 3001, 0.05, dtype=np.float32, random_state=np.random.default_rng(0)))

    def compute():
        if name == "sparse_product":
            return (sparse_product(*sparse, x),)
        if name == "dense_product":
            return dense_product(x, x[:48].t()), dense_product(x.t(), x)
        q = x.clone().requires_grad_()
        y = norm_prelu(q, bias, gain, bias, torch.tensor([0.25])) if name == "norm_prelu" else unit_rows(q, bias)
        (y * x).sum().backward()
        return y, q.grad

    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(compute())
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
