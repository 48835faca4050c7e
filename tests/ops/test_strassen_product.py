"""strassen_product against float64, and against dense_product where it is that."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carlg_kernels.ops.dense_product import dense_product
from carlg_kernels.ops.strassen_product import strassen_product

HALVED = [(301, 512, 64), (24, 4096, 64), (97, 1501, 128), (1000, 67, 192), (50, 600, 256), (77, 33, 64 * 64), (13752 // 8, 256, 512)]


def _laid_out(rows, columns, layout, generator=None):
    if layout == "transposed":
        return torch.randn(columns, rows, generator=generator).t()
    if layout == "part":
        return torch.randn(rows + 3, columns + 5, generator=generator)[1:-2, 2:-3]
    return torch.randn(rows, columns, generator=generator)


def _bound(a, b):
    """Of the whole matrix: rounding that adds up like a random walk, of products of sums of up to four numbers of a and of b."""
    return 8 * a.shape[1] ** 0.5 * torch.finfo(torch.float32).eps * a.abs().max() * b.abs().max()


@pytest.mark.parametrize("layout", ["rows", "transposed", "part"])
@pytest.mark.parametrize("shape", HALVED)
def test_equals_its_definition(shape, layout):
    rows, depth, columns = shape
    a, b = _laid_out(rows, depth, layout), _laid_out(depth, columns, layout)
    expected = a.double() @ b.double()
    error, usual = strassen_product(a, b) - expected, dense_product(a, b) - expected
    assert (error.abs() <= _bound(a, b)).all()
    assert error.square().mean() <= 9 * usual.square().mean()


@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="kernels for x86")
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_large_products_take_the_seven(layout):
    a, b = _laid_out(480, 512, layout), _laid_out(512, 128, layout)
    assert not torch.equal(strassen_product(a, b), dense_product(a, b))


@pytest.mark.parametrize(
    "a, b",
    [
        (torch.randn(480, 512), torch.randn(512, 127)),
        (torch.randn(10, 9), torch.randn(9, 64)),
        (torch.randn(480, 512).double(), torch.randn(512, 128).double()),
        (torch.randn(5, 4000), torch.randn(4000, 512)),
        (torch.randn(4000, 10), torch.randn(10, 512)),
    ],
    ids=["no halves", "small", "float64", "few rows", "short sums"],
)
def test_is_a_dense_product_otherwise(a, b):
    assert torch.equal(strassen_product(a, b), dense_product(a, b))


@given(st.integers(24, 200), st.integers(1, 700), st.integers(1, 4), st.booleans(), st.integers(0, 100))
def test_any_shape_and_its_gradient(rows, depth, panels, transposed, seed):
    generator = torch.Generator().manual_seed(seed)
    layout = "transposed" if transposed else "rows"
    columns = 64 * panels
    a, b, upstream = (_laid_out(*s, layout, generator) for s in ((rows, depth), (depth, columns), (rows, columns)))
    a, b = a.requires_grad_(), b.requires_grad_()
    product = strassen_product(a, b)
    product.backward(upstream)
    x, y, g = (t.detach() for t in (a, b, upstream))
    for got, left, right in ((product.detach(), x, y), (a.grad, g, y.t()), (b.grad, x.t(), g)):
        assert ((got - left.double() @ right.double()).abs() <= _bound(left, right)).all()


def test_whole_numbers_are_exact():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-8, 9, s, generator=generator).float() for s in ((997, 512), (512, 256)))
    assert torch.equal(strassen_product(a, b), (a.double() @ b.double()).float())
    assert torch.equal(strassen_product(a.t(), a[:, :64].contiguous()), (a.double().t() @ a[:, :64].double()).float())


def test_nan_stays_visible():
    a, b = torch.randn(480, 512), torch.randn(512, 128)
    a[300, 511] = float("nan")
    assert strassen_product(a, b)[300].isnan().all()
    assert strassen_product(a.t(), torch.randn(480, 128))[511].isnan().all()


def test_same_bits_for_any_number_of_threads():
    a, b = torch.randn(1999, 512), torch.randn(512, 256)
    g = torch.randn(1999, 256)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((strassen_product(a, b), strassen_product(a.t(), g)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kept", [torch.randn(3, 200, 512), torch.randn(1, 200, 512)])
def test_stacks(kept):
    b = torch.randn(kept.shape[0], 512, 128)
    product = strassen_product(kept, b)
    assert all(torch.equal(product[i], strassen_product(kept[i], b[i])) for i in range(len(kept)))
