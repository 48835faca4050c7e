"""torch.compile(fullgraph=True), autocast and torch.func on the public functions."""

import pytest
import torch

import carlg_kernels as ck
from tests.helpers import assert_close, clustered, value_and_gradients
from tests.losses import LOSSES, setting

CASES = {
    "silhouette by labels": lambda x, y, m: ck.simplified_silhouette(x, labels=y),
    "silhouette, clusters known": lambda x, y, m: ck.simplified_silhouette(x, labels=y, num_clusters=8),
    "silhouette by centroids": lambda x, y, m: ck.simplified_silhouette(x, m, reduction="none").square().sum(),
    "variance ratio": lambda x, y, m: ck.variance_ratio(x, y),
    "variance ratio by centroids": lambda x, y, m: ck.variance_ratio(x, centroids=m, distance="euclidean"),
    "davies-bouldin": lambda x, y, m: ck.davies_bouldin(x, y),
    "means": lambda x, y, m: ck.update_centroids(x, y, 8)[0].square().sum(),
    "modules": lambda x, y, m: ck.nn.SimplifiedSilhouetteLoss(0.9)(x, labels=y) + ck.nn.VarianceRatioLoss()(x, y),
}


@pytest.mark.parametrize("case", CASES)
def test_fullgraph(case):
    z, labels = clustered(300, 8, 12)
    centroids = z[:8].clone() + 0.1
    compiled = torch.compile(lambda x: CASES[case](x, labels, centroids), fullgraph=True)
    want, (want_grad,) = value_and_gradients(lambda x: CASES[case](x, labels, centroids), z)
    got, (got_grad,) = value_and_gradients(compiled, z)
    assert_close("value", want, got, 1e-6)
    assert_close("gradient", want_grad, got_grad, 1e-5)


def test_dynamic_rows_do_not_recompile():
    compiled = torch.compile(lambda x, y: ck.simplified_silhouette(2 * x, labels=y), fullgraph=True, dynamic=True)
    for n in (100, 201, 333):
        z, labels = clustered(n, 5, 6)
        assert_close("value", ck.simplified_silhouette(2 * z, labels=labels), compiled(z, labels), 1e-6)


SAMPLED = {"silhouette, sampled": lambda x, s: ck.silhouette(x, s.labels, approximate=0.5, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("loss", LOSSES | SAMPLED)
def test_autocast_changes_no_bit(loss, dtype):
    z, known = setting(300, 8, 12, dtype)
    function = (LOSSES | SAMPLED)[loss]
    want = function(z, known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (z.float() @ z.float().T).dtype == torch.bfloat16
        got = function(z, known)
    assert got.dtype == torch.float32 and torch.equal(got, want)


@pytest.mark.parametrize("loss", LOSSES)
def test_autocast_gradients(loss):
    z, known = setting(300, 8, 12)
    weight = torch.randn(12, 12, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = z @ weight
        LOSSES[loss](q, known).sum().backward(inputs=[weight, q])
    assert q.dtype == torch.bfloat16 and weight.grad.abs().max() > 0
    want = value_and_gradients(lambda x: LOSSES[loss](x, known).sum(), q, upstream=1.0)[1][0]
    assert torch.equal(q.grad, want)


def test_autocast_with_wider_centroids():
    z, labels = clustered(200, 4, 6)
    centroids = torch.randn(4, 6, requires_grad=True)
    ck.simplified_silhouette(z.bfloat16().requires_grad_(), centroids).backward()
    assert centroids.grad.dtype == torch.float32


@pytest.mark.parametrize("loss", LOSSES)
def test_func_grad(loss):
    z, known = setting(100, 5, 6, torch.float64)
    want = value_and_gradients(lambda x: LOSSES[loss](x, known).sum(), z, upstream=1.0)[1][0]
    got = torch.func.grad(lambda x: LOSSES[loss](x, known).sum())(z)
    assert_close("gradient", want, got, 1e-12)


def test_no_grad_saves_nothing():
    z, labels = clustered(100, 5, 6)
    with torch.no_grad():
        value = ck.simplified_silhouette(z.requires_grad_(), labels=labels)
    assert not value.requires_grad
