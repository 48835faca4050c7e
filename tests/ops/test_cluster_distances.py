"""Distance sums within clusters, and what is built on them: the mean silhouette and the margin."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels.reference import cluster_distances as reference
from tests import definitions
from tests.helpers import assert_close, clustered, compare, dtypes, shapes

ops = torch.ops.carlg_kernels


@shapes
@dtypes
def test_sums_and_gradient(shape, dtype):
    z, labels = clustered(*shape)
    weights = torch.rand(len(z), dtype=torch.float64)

    def definition(x):
        same = (labels[:, None] == labels) & (labels >= 0)
        return (definitions.pairwise(x) * same) @ weights

    def function(x):
        real = torch.float64 if x.dtype == torch.float64 else torch.float32
        return ops.cluster_distances(x, labels, weights.to(real), shape[1])

    compare("sums", definition, function, dtype, z)


def test_one_large_cluster():
    z, weights = torch.randn(4_001, 9), torch.rand(4_001)
    labels = torch.zeros(4_001, dtype=torch.int64)
    labels[7] = -1
    want = reference.cluster_distances(z.double(), labels, weights.double(), 1)
    assert_close("sums", want, ops.cluster_distances(z, labels, weights, 1), 1e-5)
    grad = torch.randn(4_001)
    want = reference.cluster_distances_backward(grad.double(), z.double(), labels, weights.double(), 1)
    assert_close("gradient", want, ops.cluster_distances_backward(grad, z, labels, weights, 0), 1e-5)


@dtypes
def test_mean_silhouette(dtype):
    z, labels = clustered(203, 7, 11)
    compare(
        "mean silhouette",
        lambda x: definitions.mean_silhouette(x, labels),
        lambda x: ck.mean_silhouette(x, labels, reduction="none"),
        dtype,
        z,
        slack=4,  # a difference of two means of nearly the same size
    )


@dtypes
def test_margin(dtype):
    z, _ = clustered(151, 5, 6)
    edges = torch.randint(0, 151, (2, 700))
    edges = edges[:, (edges[0] != 3) & (edges[0] != 9)]  # an isolated point, and one that is joined to all
    every = torch.stack((torch.full((151,), 9), torch.arange(151)))
    edges = torch.cat((edges, every, edges[:, :50]), 1)
    compare("margin", lambda x: definitions.margin(x, edges), lambda x: ck.margin(x, edges, reduction="none"), dtype, z, slack=4)


def test_margin_without_edges_is_the_negative_mean_distance():
    z = torch.tensor([[0.0], [1.0], [3.0]])
    assert ck.margin(z, torch.empty(2, 0, dtype=torch.int64), "none").tolist() == [-2.0, -1.5, -2.5]


@pytest.mark.parametrize("seed", range(3))
def test_margin_equals_mean_silhouette_on_ideal_graphs(seed):
    """Clusters = classes of equal size, all edges inside and none between: the same for every embedding, gradient included."""
    z = torch.randn(60, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    labels = torch.arange(60) % 5
    edges = (labels[:, None] == labels).nonzero().T
    left, right = ck.margin(z, edges, "none"), ck.mean_silhouette(z, labels, "none")
    assert_close("value", left, right, 1e-14)
    upstream = torch.rand(60, dtype=torch.float64)
    grads = [torch.autograd.grad(v, z, upstream)[0] for v in (left, right)]
    assert_close("gradient", *grads, 1e-13)


@pytest.mark.parametrize("c", [3, 40])
def test_same_bits_for_any_number_of_threads(c, threads):
    z, labels = clustered(4_500, c, 12)
    results = []
    for count in (1, 2, 3):
        threads(count)
        leaf = z.clone().requires_grad_()
        value = ck.mean_silhouette(leaf, labels)
        value.backward()
        results.append((value.detach(), leaf.grad))
    for value, grad in results[1:]:
        assert torch.equal(value, results[0][0]) and torch.equal(grad, results[0][1])
