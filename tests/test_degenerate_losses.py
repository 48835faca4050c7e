"""Losses with on_degenerate="zero": a clustering without an index gives 0 with a zero gradient, in eager mode and compiled."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels.nn import _is_clustering

LOSSES = {
    "simplified silhouette": ck.nn.SimplifiedSilhouetteLoss,
    "silhouette": ck.nn.SilhouetteLoss,
    "variance ratio": ck.nn.VarianceRatioLoss,
    "davies-bouldin": ck.nn.DaviesBouldinLoss,
}
LABELS = {"one cluster": torch.zeros(30).long(), "singletons": torch.arange(30), "outliers": torch.full((30,), -1)}
FINE = torch.arange(30) % 3 - 1


def _run(loss, z, **arguments):
    leaf = z.clone().requires_grad_()
    value = loss(leaf, **arguments)
    value.backward()
    return value.detach(), leaf.grad


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", LOSSES)
def test_zero_in_eager_mode_and_compiled(name, compiled):
    z = torch.randn(30, 5)
    plain = LOSSES[name](on_degenerate="zero")
    loss = torch.compile(plain, backend="aot_eager", fullgraph=False) if compiled else plain
    for labels in LABELS.values():
        value, grad = _run(loss, z, labels=labels, num_clusters=30)
        assert value == 0 and value.dtype == torch.float32 and (grad == 0).all()
    value, grad = _run(loss, z, labels=FINE, num_clusters=30)
    want, want_grad = _run(LOSSES[name](), z, labels=FINE)
    torch.testing.assert_close((value, grad), (want, want_grad))
    assert value != 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_zero_of_any_dtype(dtype):
    z = torch.full((4000, 64), 100.0, dtype=dtype)
    value, grad = _run(ck.nn.VarianceRatioLoss(on_degenerate="zero"), z, labels=torch.zeros(4000).long())
    assert value == 0 and value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert grad.dtype == dtype and (grad == 0).all()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_all_points_at_one_centroid(compiled):
    z, centroids = torch.rand(30, 5), torch.stack([torch.zeros(5), torch.full((5,), 9.0)])
    loss = ck.nn.VarianceRatioLoss(on_degenerate="zero")
    loss = torch.compile(loss, backend="aot_eager", fullgraph=False) if compiled else loss
    value, grad = _run(loss, z, centroids=centroids)
    assert value == 0 and (grad == 0).all()
    with pytest.raises(ValueError, match="labels must be"):
        ck.nn.VarianceRatioLoss()(z, centroids=centroids)
    value, _ = _run(loss, z, centroids=centroids / 9)
    assert value == -ck.variance_ratio(z, centroids=centroids / 9)


def test_the_clustering_is_judged_without_reading_values():
    """On the meta device any look at a value raises, as on a GPU it would synchronise."""
    assert _is_clustering(torch.zeros(30, device="meta").long()).shape == ()
    z = torch.randn(9, 2)
    for labels in (torch.tensor([0, 0, 1]), torch.tensor([-1, 5, 3, 3]), torch.tensor([-1, 0, 0]), torch.tensor([-1, 4, 2])):
        scored = labels[labels >= 0]
        assert bool(_is_clustering(labels)) == (2 <= scored.unique().numel() < scored.numel())
    with pytest.raises(TypeError, match="labels must be int64"):
        ck.nn.DaviesBouldinLoss(on_degenerate="zero")(z, torch.zeros(9))
