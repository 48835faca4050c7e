import pytest
import torch

import carlg_kernels as ck
from tests import definitions
from tests.helpers import assert_close, clustered, compare, dtypes, shapes


@shapes
@dtypes
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_means_and_gradients(shape, dtype, weighted):
    n, c, d = shape
    z, labels = clustered(n, c, d)
    if not weighted:
        compare(
            "means",
            lambda x: definitions.means(x, labels, c)[0].flatten(),
            lambda x: ck.update_centroids(x, labels, c)[0].flatten(),
            dtype,
            z,
        )
        return
    weights = torch.rand(n) + 0.1
    compare(
        "weighted means",
        lambda x, w: definitions.means(x, labels, c, w)[0].flatten(),
        lambda x, w: ck.update_centroids(x, labels, c, weights=w)[0].flatten(),
        dtype,
        z,
        weights,
    )


def test_counts_and_mass():
    z, labels = clustered(1003, 17, 33)
    _, counts = ck.update_centroids(z, labels, 17)
    assert counts.dtype == torch.int64 and torch.equal(counts, torch.bincount(labels[labels >= 0], minlength=17))
    weights = torch.rand(1003)
    _, mass = ck.update_centroids(z, labels, 17, weights=weights)
    want = torch.zeros(17, dtype=torch.float64).index_add(0, labels.clamp(min=0), weights.double() * (labels >= 0))
    assert_close("mass", want, mass, 1e-6)


def test_empty_policies():
    z, labels = torch.randn(6, 2), torch.tensor([0, 0, 2, 2, -1, 2])
    previous = torch.full((4, 2), 7.0)
    kept, _ = ck.update_centroids(z, labels, 4, previous=previous)
    assert (kept[[1, 3]] == 7).all() and torch.allclose(kept[0], z[:2].mean(0))
    assert (ck.update_centroids(z, labels, 4, previous=previous, empty="zero")[0][[1, 3]] == 0).all()
    assert (ck.update_centroids(z, labels, 4)[0][1] == 0).all()
    with pytest.raises(ValueError, match=r"no point in \[1, 3\]"):
        ck.update_centroids(z, labels, 4, empty="error")


def test_one_large_cluster_is_summed_accurately():
    z = torch.rand(200_001, 3) + 100
    labels = torch.zeros(200_001, dtype=torch.long)
    got, _ = ck.update_centroids(z, labels, 1)
    assert (got.double() - z.double().mean(0)).abs().max() < 2e-5


def test_all_outliers():
    got, counts = ck.update_centroids(torch.randn(4, 3), torch.full((4,), -1), 2)
    assert (got == 0).all() and (counts == 0).all()
