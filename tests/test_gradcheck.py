"""Numerical gradients in float64, for the kernels and for the plain-torch reference."""

import subprocess
import sys

import pytest
import torch
from torch.autograd import gradcheck

import carlg_kernels as ck

# A self-loop, a repeated edge and points without neighbours among them.
EDGES = torch.tensor([[0, 0, 1, 2, 5, 5, 9], [1, 2, 1, 7, 9, 9, 21]])


def result(z, centroids):
    near = ck.assign(z, centroids)
    return ck.KMeansResult(near.labels, centroids.detach(), near.distances.square().sum(), 1, True, *near[1:])


CASES = {
    "silhouette by labels": lambda z, m, w, y: (lambda x: ck.simplified_silhouette(x, labels=y), (z,)),
    "silhouette per point": lambda z, m, w, y: (lambda x: ck.simplified_silhouette(x, labels=y, reduction="none"), (z,)),
    "silhouette by centroids": lambda z, m, w, y: (lambda x, c: ck.simplified_silhouette(x, c, reduction="sum"), (z, m)),
    "silhouette by both": lambda z, m, w, y: (lambda x, c: ck.simplified_silhouette(x, c, y, reduction="none"), (z, m)),
    "silhouette of a result": lambda z, m, w, y: (lambda x: ck.simplified_silhouette(x, result(z, m), reduction="none"), (z,)),
    "exact silhouette": lambda z, m, w, y: (lambda x: ck.silhouette(x, y), (z,)),
    "exact silhouette per point": lambda z, m, w, y: (lambda x: ck.silhouette(x, y, reduction="none"), (z,)),
    "exact silhouette, squared": lambda z, m, w, y: (lambda x: ck.silhouette(x, y, "sqeuclidean", "none"), (z,)),
    "exact silhouette, cosine": lambda z, m, w, y: (lambda x: ck.silhouette(x, y, "cosine", "none"), (z,)),
    "silhouette parts": lambda z, m, w, y: (lambda x: ck.silhouette_parts(x, y)[:2], (z,)),
    "mean silhouette": lambda z, m, w, y: (lambda x: ck.mean_silhouette(x, y, reduction="none"), (z,)),
    "margin": lambda z, m, w, y: (lambda x: ck.margin(x, EDGES, reduction="none"), (z,)),
    "variance ratio": lambda z, m, w, y: (lambda x: ck.variance_ratio(x, y), (z,)),
    "variance ratio, unsquared": lambda z, m, w, y: (lambda x: ck.variance_ratio(x, y, distance="euclidean"), (z,)),
    "variance ratio by centroids": lambda z, m, w, y: (lambda x, c: ck.variance_ratio(x, y, c), (z, m)),
    "variance ratio by centroids, unsquared": lambda z, m, w, y: (lambda x, c: ck.variance_ratio(x, y, c, "euclidean"), (z, m)),
    "davies-bouldin": lambda z, m, w, y: (lambda x: ck.davies_bouldin(x, y), (z,)),
    "means": lambda z, m, w, y: (lambda x: ck.update_centroids(x, y, 4)[0], (z,)),
    "weighted means": lambda z, m, w, y: (lambda x, v: ck.update_centroids(x, y, 4, weights=v)[0], (z, w)),
}


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    z = torch.randn(22, 3, dtype=torch.float64, requires_grad=True)
    m = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    w = (torch.rand(22, dtype=torch.float64) + 0.2).requires_grad_()
    labels = torch.arange(22) % 4
    labels[0] = -1
    function, inputs = CASES[case](z, m, w, labels)
    assert gradcheck(function, inputs)


def test_reference_passes_the_same_checks():
    code = "import os, sys, pytest; os.environ['CK_BACKEND'] = 'reference'; sys.exit(pytest.main(['-q', 'tests/test_gradcheck.py', '-k', 'test_gradcheck and not reference']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_second_derivatives_are_refused():
    z = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    value = ck.simplified_silhouette(z, labels=torch.arange(20) % 3)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        (grad,) = torch.autograd.grad(value, z, create_graph=True)
        grad.sum().backward()
