import pytest
import torch

import carlg_kernels as ck
from tests import definitions
from tests.helpers import assert_close, clustered, compare, dtypes, shapes, value_and_gradients

distances = pytest.mark.parametrize("distance", ["sqeuclidean", "euclidean"])


@shapes
@dtypes
@distances
def test_by_labels(shape, dtype, distance):
    z, labels = clustered(*shape)
    compare(
        "tied",
        lambda x: definitions.variance_ratio(x, labels, distance=distance),
        lambda x: ck.variance_ratio(x, labels, distance=distance),
        dtype,
        z,
    )


@shapes
@dtypes
@distances
@pytest.mark.parametrize("with_labels", [False, True], ids=["nearest", "both"])
def test_by_centroids(shape, dtype, distance, with_labels):
    n, c, d = shape
    z, labels = clustered(*shape)
    centroids = definitions.means(z, labels, c)[0] + 0.05 * torch.randn(c, d)

    def definition(x, m):
        y = labels if with_labels else definitions.distances(x, m).argmin(1)
        return definitions.variance_ratio(x, y, m, distance)

    compare(
        "free",
        definition,
        lambda x, m: ck.variance_ratio(x, labels if with_labels else None, m, distance),
        dtype,
        z,
        centroids,
    )


def test_gradient_sums_to_zero_and_is_orthogonal_to_z():
    z, labels = clustered(500, 8, 12, torch.float64)
    _, (grad,) = value_and_gradients(lambda x: ck.variance_ratio(x, labels), z)
    assert grad.sum(0).abs().max() < 1e-10 and (z * grad).sum().abs() < 1e-10


@distances
def test_every_point_on_its_centroid(distance):
    z = torch.tensor([[0.0], [0.0], [1.0], [1.0]], requires_grad=True)
    value = ck.variance_ratio(z, torch.tensor([0, 0, 1, 1]), distance=distance)
    value.backward()
    assert torch.isfinite(value) and value > 1e5 and (z.grad == 0).all()


@distances
def test_coinciding_centroids_are_stationary(distance):
    z = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], requires_grad=True)
    value = ck.variance_ratio(z, torch.tensor([0, 0, 1, 1]), distance=distance)
    value.backward()
    assert value.item() == 0 and (z.grad == 0).all()


def test_far_from_the_origin_keeps_its_digits():
    z, labels = clustered(800, 5, 16, torch.float64)
    near = ck.variance_ratio(z, labels)
    far = ck.variance_ratio((z + 1000).float(), labels)
    assert abs(far / near - 1) < 1e-3


@pytest.mark.parametrize("distance", ["sqeuclidean", "euclidean"])
def test_unknown_number_of_clusters_gives_the_same_bits(distance):
    z, labels = clustered(900, 12, 20)
    op, back = torch.ops.carlg_kernels.variance_ratio, torch.ops.carlg_kernels.variance_ratio_backward
    known, unknown = (op(z, labels, None, c, distance) for c in (12, 0))
    assert unknown[1].shape == (0, 20) and torch.equal(known[0], unknown[0])
    a, b = (back(torch.tensor(2.0), z, labels, *s[1:], True, distance, False)[0] for s in (known, unknown))
    assert_close("gradient", a, b, 1e-6)
