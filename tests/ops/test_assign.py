import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import carlg_kernels as ck
from tests.definitions import distances
from tests.helpers import SHAPES, clustered, dtypes, shapes


def check_against_table(z, centroids, got, tolerance):
    """Right up to rounding: the distances are those of the chosen centroids, and no centroid is nearer than the chosen ones."""
    table = distances(z.double(), centroids.double())
    own = table.gather(1, got.labels[:, None])[:, 0]
    assert torch.allclose(got.distances.double(), own, rtol=tolerance, atol=tolerance * 1e-2)
    assert (own <= table.min(1).values * (1 + tolerance) + tolerance).all()
    if len(centroids) == 1:
        assert (got.second_labels == -1).all() and got.second_distances.isinf().all()
        return
    assert (got.second_labels != got.labels).all()
    second = table.gather(1, got.second_labels[:, None])[:, 0]
    assert torch.allclose(got.second_distances.double(), second, rtol=tolerance, atol=tolerance * 1e-2)
    others = table.scatter(1, got.labels[:, None], float("inf")).min(1).values
    assert (second <= others * (1 + tolerance) + tolerance).all()


@shapes
@dtypes
def test_two_nearest(shape, dtype):
    n, c, d = shape
    z, _ = clustered(n, c, d, dtype)
    centroids = z[:c].clone() + 0.05
    got = ck.assign(z, centroids)
    assert got.labels.dtype == torch.int64
    assert got.distances.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    check_against_table(z, centroids, got, 1e-10 if dtype == torch.float64 else 1e-5)


def test_labels_equal_float64_argmin():
    z, _ = clustered(3000, 40, 64)
    centroids = z[:40].clone()
    want = distances(z.double(), centroids.double()).topk(2, largest=False)
    got = ck.assign(z, centroids)
    assert torch.equal(got.labels, want.indices[:, 0]) and torch.equal(got.second_labels, want.indices[:, 1])


def test_one_centroid_and_one_point():
    z = torch.randn(5, 3)
    check_against_table(z, z[:1], ck.assign(z, z[:1]), 1e-5)
    got = ck.assign(z[:1], z)
    assert got.labels.tolist() == [0] and got.distances.tolist() == [0.0]


def test_ties_go_to_the_lowest_index():
    centroids = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).repeat(9, 1)
    got = ck.assign(torch.zeros(7, 2), centroids)
    assert got.labels.tolist() == [0] * 7 and got.second_labels.tolist() == [1] * 7
    same = ck.assign(torch.randn(11, 4), torch.zeros(50, 4))
    assert (same.labels == 0).all() and (same.second_labels == 1).all()


@pytest.mark.parametrize("offset", [0.0, 5.0, 300.0])
def test_far_from_the_origin(offset):
    g = torch.Generator().manual_seed(1)
    centroids = torch.randn(20, 16, generator=g)
    z = centroids[torch.randint(0, 20, (500,), generator=g)] + 0.1 * torch.randn(500, 16, generator=g)
    z, centroids = z + offset, centroids + offset
    got = ck.assign(z, centroids)
    check_against_table(z, centroids, got, 1e-4 if offset > 100 else 1e-5)


@pytest.mark.parametrize("layout", ["columns", "steps", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_strides(layout, dtype):
    base = torch.randn(300, 40).to(dtype)
    z = {
        "columns": base[:, 3:30],
        "steps": base[::2, ::3],
        "transposed": base[:40, :27].T,
        "expanded": base[:1].expand(60, 40),
    }[layout]
    centroids = torch.randn(9, z.shape[1]).to(dtype)
    for a, b in zip(ck.assign(z, centroids), ck.assign(z.contiguous(), centroids), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("c", [1, 2, 7, 8, 15, 16, 17, 24, 33, 48, 49, 65])
@pytest.mark.parametrize("n", [1, 5, 6, 7, 13, 95, 97, 193])
def test_every_edge_of_the_tiles(n, c):
    z, centroids = torch.randn(n, 10), torch.randn(c, 10)
    check_against_table(z, centroids, ck.assign(z, centroids), 1e-5)


@settings(max_examples=60)
@given(st.data())
def test_integer_grid_is_exact(data):
    """Small integers are exact in float32, so the labels must be the exact argmin, ties included."""
    n, c, d = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    z = torch.randint(-3, 4, (n, d), generator=g).float()
    centroids = torch.randint(-3, 4, (c, d), generator=g).float()
    square = (z[:, None] - centroids[None]).square().sum(-1)
    got = ck.assign(z, centroids)
    first = (square == square.min(1, keepdim=True).values).float().argmax(1)
    near = square.gather(1, got.labels[:, None])[:, 0]
    assert torch.equal(near, square.gather(1, first[:, None])[:, 0])
    assert torch.equal(got.distances, near.double().sqrt().float())


def test_large_c_and_small_d():
    z, centroids = torch.randn(500, 3), torch.randn(5000, 3)
    check_against_table(z, centroids, ck.assign(z, centroids), 1e-5)


def test_shapes_cover_more_than_one_block():
    assert max(n for n, _, _ in SHAPES) > 96
