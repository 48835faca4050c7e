"""The modules: targets, signs, and training with them."""

import pytest
import torch

import carlg_kernels as ck
from tests.helpers import clustered


def test_targets():
    z, labels = clustered(300, 6, 8)
    s = ck.simplified_silhouette(z, labels=labels)
    v = ck.variance_ratio(z, labels)
    assert torch.equal(ck.nn.SimplifiedSilhouetteLoss(0.9)(z, labels=labels), (0.9 - s).abs())
    assert torch.equal(ck.nn.SimplifiedSilhouetteLoss(None)(z, labels=labels), -s)
    assert torch.equal(ck.nn.VarianceRatioLoss()(z, labels), -v)
    assert torch.equal(ck.nn.VarianceRatioLoss(5.0)(z, labels), (5.0 - v).abs())
    assert torch.equal(ck.nn.DaviesBouldinLoss()(z, labels), ck.davies_bouldin(z, labels))


def test_the_gradient_flips_at_the_target_and_vanishes_on_it():
    z, labels = clustered(300, 6, 8, torch.float64)
    s = ck.simplified_silhouette(z, labels=labels).item()
    grads = []
    for target in (s - 0.1, s + 0.1, s):
        q = z.clone().requires_grad_()
        ck.nn.SimplifiedSilhouetteLoss(target)(q, labels=labels).backward()
        grads.append(q.grad)
    assert torch.equal(grads[0], -grads[1]) and (grads[2] == 0).all()


@pytest.mark.parametrize(
    "loss", [ck.nn.SimplifiedSilhouetteLoss(None), ck.nn.VarianceRatioLoss(), ck.nn.DaviesBouldinLoss()], ids=lambda m: type(m).__name__
)
def test_descent_improves_the_index(loss):
    z, labels = clustered(300, 6, 8, spread=2.0)
    q = z.clone().requires_grad_()
    optimizer = torch.optim.Adam([q], lr=0.01)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        value = loss(q, labels=labels)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < values[0] and all(b < a + 1e-3 for a, b in zip(values, values[1:], strict=False))
