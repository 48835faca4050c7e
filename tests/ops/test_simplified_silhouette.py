import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import carlg_kernels as ck
from carlg_kernels.reference import simplified_silhouette as reference
from tests import definitions
from tests.helpers import assert_close, clustered, compare, dtypes, shapes, value_and_gradients


def reduce(values, labels, reduction):
    if reduction == "none":
        return values
    total = values.sum()
    scored = values.numel() if labels is None else (labels >= 0).sum()
    return total / scored if reduction == "mean" else total


@shapes
@dtypes
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_by_labels(shape, dtype, reduction):
    z, labels = clustered(*shape)
    compare(
        "tied",
        lambda x: reduce(definitions.simplified_silhouette(x, labels=labels), labels, reduction),
        lambda x: ck.simplified_silhouette(x, labels=labels, reduction=reduction),
        dtype,
        z,
    )


def free_centroids(z, labels, c):
    g = torch.Generator().manual_seed(9)
    return definitions.means(z, labels, c)[0] + 0.05 * torch.randn(c, z.shape[1], generator=g)


@shapes
@dtypes
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_labels", [False, True], ids=["nearest", "both"])
def test_by_centroids(shape, dtype, reduction, with_labels):
    z, labels = clustered(*shape)
    centroids = free_centroids(z, labels, shape[1])
    given_labels = labels if with_labels else None
    compare(
        "free",
        lambda x, m: reduce(definitions.simplified_silhouette(x, m, given_labels), given_labels, reduction),
        lambda x, m: ck.simplified_silhouette(x, m, given_labels, reduction=reduction),
        dtype,
        z,
        centroids,
    )


def test_singleton_policies_share_their_gradient():
    z, labels = clustered(300, 9, 6, torch.float64)
    zero, grad_zero = value_and_gradients(lambda x: ck.simplified_silhouette(x, labels=labels, singleton="zero"), z)
    code, grad_code = value_and_gradients(lambda x: ck.simplified_silhouette(x, labels=labels, singleton="code"), z)
    counts = torch.bincount(labels[labels >= 0])
    alone = int((counts == 1).sum())
    assert alone == 1
    assert_close("value", zero + alone / int((labels >= 0).sum()), code, 1e-12)
    assert torch.equal(grad_zero[0], grad_code[0])


def test_labels_may_disagree_with_the_nearest_centroid():
    z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    values = ck.simplified_silhouette(z, torch.tensor([[0.5], [10.5]]), torch.tensor([1, 0, 1, 0]), reduction="none")
    assert values[0].item() == pytest.approx((0.5 - 10.5) / 10.5)


def test_duplicates_and_coinciding_centroids_give_no_nan():
    z = torch.ones(8, 3, requires_grad=True)
    labels = torch.arange(8) % 2
    s = ck.simplified_silhouette(z, labels=labels)
    s.backward()
    assert s.item() == 0.0 and (z.grad == 0).all()


def test_tied_is_free_plus_the_adjoint_of_the_mean():
    z, labels = clustered(200, 6, 5, torch.float64)
    labels = labels.clamp(min=0)
    leaf = z.clone().requires_grad_()
    centroids, _ = ck.update_centroids(leaf, labels, int(labels.max()) + 1)
    present = torch.bincount(labels, minlength=len(centroids)) > 0
    renumber = present.cumsum(0) - 1
    ck.simplified_silhouette(leaf, centroids[present], renumber[labels]).backward()
    _, (tied,) = value_and_gradients(lambda x: ck.simplified_silhouette(x, labels=labels), z, upstream=1.0)
    assert_close("gradient", tied, leaf.grad, 1e-10)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 12), st.booleans())
def test_invariance(seed, c, d, gaps):
    """Translation, scaling and renaming of labels change nothing; so the gradient sums to zero and is orthogonal to z."""
    g = torch.Generator().manual_seed(seed)
    n = 6 * c
    z = torch.randn(n, d, generator=g, dtype=torch.float64)
    labels = torch.arange(n) % c
    if gaps:
        labels = 3 * labels + 1
    value, (grad,) = value_and_gradients(lambda x: ck.simplified_silhouette(x, labels=labels), z, upstream=1.0)
    moved = ck.simplified_silhouette(2.5 * z + 3.0, labels=labels)
    renamed = ck.simplified_silhouette(z, labels=(int(labels.max()) - labels))
    assert abs(moved - value) < 1e-9 and abs(renamed - value) < 1e-12
    scale = grad.abs().max().clamp(min=1e-12)
    assert grad.sum(0).abs().max() / scale < 1e-8 and (z * grad).sum().abs() / scale < 1e-8


def test_tight_clusters_far_from_the_origin():
    g = torch.Generator().manual_seed(2)
    labels = torch.arange(400) % 4
    centres = torch.randn(4, 8, generator=g) * 1e-2 + 5.0
    z = centres[labels] + 1e-3 * torch.randn(400, 8, generator=g)
    want = definitions.simplified_silhouette(z.double(), labels=labels)
    got = ck.simplified_silhouette(z, labels=labels, reduction="none")
    assert (want - got).abs().max() < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_strides(dtype):
    base = torch.randn(40, 301).to(dtype)
    labels = torch.arange(300) % 5
    strided, packed = base.T[1:, ::2], base.T[1:, ::2].contiguous()
    a = value_and_gradients(lambda x: ck.simplified_silhouette(x, labels=labels), packed)
    leaf = base.clone().requires_grad_()
    (3.0 * ck.simplified_silhouette(leaf.T[1:, ::2], labels=labels)).backward()
    assert strided.stride(1) != 1
    assert torch.equal(a[1][0], leaf.grad.T[1:, ::2])


def test_unknown_number_of_clusters_gives_the_same_bits():
    z, labels = clustered(900, 12, 20)
    op, back = torch.ops.carlg_kernels.simplified_silhouette, torch.ops.carlg_kernels.simplified_silhouette_backward
    known = op(z, labels, None, 12, "mean", True, False)
    unknown = op(z, labels, None, 0, "mean", True, False)
    assert unknown[5].shape == (0, 20) and torch.equal(known[0], unknown[0])
    grad = torch.tensor(2.0)
    a, _ = back(grad, z, *known[1:], True, "mean", False)
    b, _ = back(grad, z, *unknown[1:], True, "mean", False)
    assert torch.equal(a, b)


def test_sums_of_the_forward_equal_those_of_the_backward():
    z, labels = clustered(20_011, 40, 24)
    op, back = torch.ops.carlg_kernels.simplified_silhouette, torch.ops.carlg_kernels.simplified_silhouette_backward
    riding, later = (op(z, labels, None, 40, "mean", True, save) for save in (True, False))
    assert riding[7].shape == (40, 24) and later[7].shape == (0, 24)
    grads = [back(torch.tensor(1.0), z, *saved[1:], True, "mean", False)[0] for saved in (riding, later)]
    assert_close("gradient", grads[1], grads[0], 1e-5)


def test_one_cluster_left_gives_zero_in_the_raw_op():
    """GPUs do not read label values, so the op itself must not turn a degenerate clustering into NaN; nor may the reference."""
    z, labels = torch.randn(20, 3), torch.zeros(20, dtype=torch.long)
    for forward, backward in (
        (torch.ops.carlg_kernels.simplified_silhouette, torch.ops.carlg_kernels.simplified_silhouette_backward),
        (reference.simplified_silhouette, reference.simplified_silhouette_backward),
    ):
        value, *saved = forward(z, labels, None, 4, "mean", True, True)
        grad, _ = backward(torch.tensor(1.0), z, *saved, True, "mean", False)
        assert value.item() == 0 and (grad == 0).all()
