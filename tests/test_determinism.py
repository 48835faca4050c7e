"""The same bits for any number of threads, and for every call."""

import pytest
import torch

import carlg_kernels as ck
from tests.helpers import clustered, value_and_gradients

CASES = {
    "silhouette by labels": lambda x, y, m: ck.simplified_silhouette(x, labels=y),
    "silhouette per point": lambda x, y, m: ck.simplified_silhouette(x, labels=y, reduction="none"),
    "silhouette by centroids": lambda x, y, m: ck.simplified_silhouette(x, m),
    "variance ratio": lambda x, y, m: ck.variance_ratio(x, y),
    "variance ratio, unsquared": lambda x, y, m: ck.variance_ratio(x, y, distance="euclidean"),
    "davies-bouldin": lambda x, y, m: ck.davies_bouldin(x, y),
    "means": lambda x, y, m: ck.update_centroids(x, y, 40)[0].sum(),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(20_011, 40, 96), (777, 40, 8)], ids=["large", "small"])
def test_threads(case, shape, threads):
    z, labels = clustered(*shape)
    centroids = z[:40].clone() + 0.1
    results = []
    for count in (1, 2, 3, 1):
        threads(count)
        results.append(value_and_gradients(lambda x: CASES[case](x, labels, centroids), z))
    for value, (grad,) in results[1:]:
        assert torch.equal(value, results[0][0]) and torch.equal(grad, results[0][1][0])


def test_assign_threads(threads):
    z, _ = clustered(20_011, 40, 96)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(ck.assign(z, z[:40]))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
