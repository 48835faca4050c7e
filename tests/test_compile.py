"""torch.compile(fullgraph=True), autocast and torch.func on the public functions."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import carlg_kernels as ck
from tests.helpers import assert_close, clustered, value_and_gradients
from tests.losses import LOSSES, Setting, setting

MODULES = {
    "simplified silhouette and variance ratio modules": lambda x, s: (
        ck.nn.SimplifiedSilhouetteLoss(0.9)(x, labels=s.labels) + ck.nn.VarianceRatioLoss()(x, s.labels)
    ),
    "silhouette module": lambda x, s: ck.nn.SilhouetteLoss(0.9)(x, s.labels),
}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()


@pytest.mark.parametrize("loss", LOSSES | MODULES)
def test_fullgraph(loss):
    z, known = setting(300, 8, 12)
    function = (LOSSES | MODULES)[loss]
    compiled = torch.compile(lambda x: function(x, known), fullgraph=True)
    want, (want_grad,) = value_and_gradients(lambda x: function(x, known), z)
    got, (got_grad,) = value_and_gradients(compiled, z)
    # Inductor adds in an order of its own, and margin is a small difference of two means.
    assert_close("value", want, got, 1e-5 if loss == "margin" else 1e-6)
    assert_close("gradient", want_grad, got_grad, 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_dynamic_rows_do_not_recompile(loss):
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x, *known: LOSSES[loss](2 * x, Setting(*known)), fullgraph=True, dynamic=True, backend=counter)
    for n in (100, 201, 333):
        z, known = setting(n, 5, 6)
        assert_close("value", LOSSES[loss](2 * z, known), compiled(z, *known), 1e-6)
    assert counter.frame_count == 1


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
