"""The same bits for any number of threads, and for every call."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import ops
from carlg_kernels.reference.common import block_sum
from tests.helpers import clustered, value_and_gradients
from tests.losses import LOSSES, setting

PAIRS = ("silhouette", "silhouette_parts", "mean_silhouette", "margin")


def shapes(loss):
    """Losses that look at all pairs of points get fewer of them."""
    large = (5_003, 40, 33) if loss.split(",")[0].split()[0] in PAIRS else (20_011, 40, 96)
    return [pytest.param(loss, large, id=f"{loss}-large"), pytest.param(loss, (777, 40, 8), id=f"{loss}-small")]


@pytest.mark.parametrize(("loss", "shape"), [case for loss in LOSSES for case in shapes(loss)])
def test_threads(loss, shape, threads):
    z, known = setting(*shape)
    results = []
    for count in (1, 2, 3, 1):
        threads(count)
        results.append(value_and_gradients(lambda x: LOSSES[loss](x, known), z))
    for value, (grad,) in results[1:]:
        assert torch.equal(value, results[0][0]) and torch.equal(grad, results[0][1][0])


LONG = {
    "silhouette": lambda x, y, e, r: ck.silhouette(x, y),
    "silhouette, sqeuclidean": lambda x, y, e, r: ck.silhouette(x, y, "sqeuclidean"),
    "silhouette, cosine": lambda x, y, e, r: ck.silhouette(x, y, "cosine", reduction="sum"),
    "mean_silhouette": lambda x, y, e, r: ck.mean_silhouette(x, y),
    "margin": lambda x, y, e, r: ck.margin(x, e),
    "of a result": lambda x, y, e, r: ck.simplified_silhouette(x, r),
}


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_threads_at_lengths_that_torch_splits(case, dtype, threads, monkeypatch):
    # The sums of all pairs take seconds, and have their own test.
    monkeypatch.setattr(ops.cluster_distances, "cluster_distances", lambda z, labels, weights, clusters: z.sum(1) + weights)
    n = 40_000
    labels = torch.arange(n) % 20
    z = (10 * torch.randn(20, 3)[labels] + 0.3 * torch.randn(n, 3)).to(dtype)
    edges = torch.stack((torch.arange(n), (torch.arange(n) + 20) % n))
    result = ck.kmeans(z, 20, init=z[:20], max_iter=2)
    values = []
    for count in (1, 2, 3, 5):
        threads(count)
        values.append(LONG[case](z, labels, edges, result))
    assert all(torch.equal(values[0], v) for v in values[1:])


@pytest.mark.parametrize("n", [16_384, 40_000, 100_001, 1_000_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_block_sum(n, dtype, threads):
    x = torch.randn(n, dtype=dtype, requires_grad=True)
    sums = []
    for count in (1, 2, 3, 8):
        threads(count)
        sums.append(block_sum(x))
    assert all(torch.equal(sums[0], s) for s in sums[1:])
    assert sums[0].item() == pytest.approx(x.detach().double().sum().item(), abs=1e-5 * n**0.5)
    (grad,) = torch.autograd.grad(3 * sums[0], x)
    assert (grad == 3).all()


def test_assign_threads(threads):
    z, _ = clustered(20_011, 40, 96)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(ck.assign(z, z[:40]))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
