"""Bad input: every message names the argument, what was expected and what came."""

import numpy as np
import pytest
import torch

import carlg_kernels as ck
from carlg_kernels._validation import resolve_clusters

Z = torch.randn(50, 4)
Y = torch.arange(50) % 3
M = torch.randn(3, 4)

BAD = {
    "labels as floats": (
        lambda: ck.simplified_silhouette(Z, labels=Y.float()),
        TypeError,
        r"labels must be int64 of shape \(50,\), got float32 \(50,\)",
    ),
    "labels too short": (lambda: ck.simplified_silhouette(Z, labels=Y[:-1]), ValueError, r"labels must be .*\(50,\), got int64 \(49,\)"),
    "labels as a column": (lambda: ck.variance_ratio(Z, Y[:, None]), ValueError, r"labels must be .*got int64 \(50, 1\)"),
    "labels as a list": (lambda: ck.variance_ratio(Z, Y.tolist()), TypeError, r"labels must be .*got list"),
    "labels below -1": (lambda: ck.variance_ratio(Z, Y - 2), ValueError, r"labels must be -1 .* got a minimum of -2"),
    "labels beyond the centroids": (
        lambda: ck.simplified_silhouette(Z, M, Y + 100),
        ValueError,
        r"labels must be below 3 .* got a maximum of 102",
    ),
    "labels beyond num_clusters": (lambda: ck.davies_bouldin(Z, Y, num_clusters=2), ValueError, r"labels must be below 2"),
    "one cluster": (lambda: ck.simplified_silhouette(Z, labels=0 * Y), ValueError, r"labels must be .*got 1 clusters of 50 points"),
    "only singletons": (lambda: ck.variance_ratio(Z, torch.arange(50)), ValueError, r"got 50 clusters of 50 points"),
    "only outliers": (lambda: ck.davies_bouldin(Z, 0 * Y - 1), ValueError, r"got 0 clusters of 0 points"),
    "neither labels nor centroids": (lambda: ck.simplified_silhouette(Z), ValueError, r"got neither"),
    "neither, variance ratio": (lambda: ck.variance_ratio(Z), ValueError, r"got neither"),
    "centroids of another width": (
        lambda: ck.simplified_silhouette(Z, torch.randn(3, 5)),
        ValueError,
        r"centroids must be of shape \(c, 4\) .* got float32 \(3, 5\)",
    ),
    "one centroid": (lambda: ck.simplified_silhouette(Z, M[:1]), ValueError, r"centroids must be at least 2 rows, got float32 \(1, 4\)"),
    "integer centroids": (lambda: ck.assign(Z, M.long()), TypeError, r"centroids must be floating point"),
    "points of one dimension": (
        lambda: ck.variance_ratio(Z[0], Y),
        ValueError,
        r"z must be of shape \(n, d\), two dimensions, got float32 \(4,\)",
    ),
    "integer points": (lambda: ck.variance_ratio(Z.long(), Y), TypeError, r"z must be float16, .* got int64 \(50, 4\)"),
    "points as a list": (lambda: ck.assign(Z.tolist(), M), TypeError, r"z must be a torch.Tensor .* got list"),
    "no rows": (lambda: ck.assign(Z[:0], M), ValueError, r"z must be .*at least 1 row .*got float32 \(0, 4\)"),
    "no columns": (lambda: ck.variance_ratio(Z[:, :0], Y), ValueError, r"z must be .*got float32 \(50, 0\)"),
    "one row": (lambda: ck.simplified_silhouette(Z[:1], labels=Y[:1]), ValueError, r"z must be .*at least 2 rows"),
    "sparse points": (lambda: ck.variance_ratio(Z.to_sparse(), Y), TypeError, r"z must be a dense"),
    "unknown reduction": (
        lambda: ck.simplified_silhouette(Z, M, reduction="max"),
        ValueError,
        r"reduction must be one of 'mean', 'sum', 'none', got 'max'",
    ),
    "unknown singleton": (lambda: ck.simplified_silhouette(Z, M, singleton="one"), ValueError, r"singleton must be one of"),
    "unknown distance": (lambda: ck.variance_ratio(Z, Y, distance="l1"), ValueError, r"distance must be one of"),
    "num_clusters of zero": (lambda: ck.update_centroids(Z, Y, 0), ValueError, r"num_clusters must be an int of at least 1, got 0"),
    "num_clusters as a float": (lambda: ck.update_centroids(Z, Y, 3.0), TypeError, r"num_clusters must be an int"),
    "negative weights": (lambda: ck.update_centroids(Z, Y, 3, weights=Z[:, 0]), ValueError, r"weights must be finite and not negative"),
    "weights of another length": (
        lambda: ck.update_centroids(Z, Y, 3, weights=torch.ones(3)),
        ValueError,
        r"weights must be of shape \(50,\), got float32 \(3,\)",
    ),
    "weights elsewhere": (
        lambda: ck.update_centroids(Z, Y, 3, weights=torch.ones(50, device="meta")),
        ValueError,
        "weights must be on cpu like z, got meta",
    ),
    "weights of kmeans elsewhere": (
        lambda: ck.kmeans(Z, 3, weights=torch.ones(50, device="meta")),
        ValueError,
        "weights must be on cpu like z, got meta",
    ),
    "num_clusters as a bool": (lambda: ck.kmeans(Z, True), TypeError, "num_clusters must be an int of at least 1, got True"),
    "num_clusters as a numpy bool": (lambda: ck.kmeans(Z, np.bool_(True)), TypeError, "num_clusters must be an int of at least 1, got"),
    "num_clusters as a tensor": (lambda: ck.kmeans(Z, torch.tensor(3)), TypeError, "num_clusters must be an int of at least 1, got int64"),
    "no samples to score": (
        lambda: ck.metrics.silhouette_score(Z[:0], Y[:0]),
        ValueError,
        r"X must have at least one sample and one feature, got shape \(0, 4\)",
    ),
    "no features to score": (lambda: ck.metrics.davies_bouldin_score(Z[:, :0], Y), ValueError, "X must have at least one sample"),
    "previous of another shape": (
        lambda: ck.update_centroids(Z, Y, 3, previous=M[:2]),
        ValueError,
        r"previous must be of shape \(3, 4\), got \(2, 4\)",
    ),
    "unknown empty policy": (lambda: ck.update_centroids(Z, Y, 3, empty="drop"), ValueError, r"empty must be one of"),
    "target as a string": (lambda: ck.nn.SimplifiedSilhouetteLoss(target="0.9"), TypeError, r"target must be a number or None, got str"),
    "unknown on_degenerate": (lambda: ck.nn.VarianceRatioLoss(on_degenerate="nan"), ValueError, r"on_degenerate must be one of"),
}


@pytest.mark.parametrize("case", BAD)
def test_message(case):
    call, kind, pattern = BAD[case]
    with pytest.raises(kind, match=pattern):
        call()


def test_raw_ops_refuse_what_would_crash():
    op = torch.ops.carlg_kernels
    with pytest.raises(RuntimeError, match="labels must lie in"):
        op.variance_ratio(Z, Y + 100, None, 3, "sqeuclidean")
    with pytest.raises(RuntimeError, match="centroids"):
        op.assign(Z, torch.randn(3, 7))
    with pytest.raises(RuntimeError, match="labels"):
        op.simplified_silhouette(Z, Y[:10], None, 3, "mean", True, False)


def test_labels_with_huge_gaps_cost_no_memory():
    sparse_labels = Y * 10**12
    assert torch.equal(ck.simplified_silhouette(Z, labels=sparse_labels), ck.simplified_silhouette(Z, labels=Y))
    assert torch.equal(ck.variance_ratio(Z, sparse_labels), ck.variance_ratio(Z, Y))


@pytest.mark.parametrize("gap", [16, 33, 60, 10**6], ids=lambda gap: f"gap{gap}")
def test_gaps_in_labels_cost_nothing_and_change_nothing(gap):
    labels = Y.clone()
    labels[7] = -1
    wide = torch.where(labels >= 0, labels * gap, -1)
    assert resolve_clusters(wide, None)[1] <= 2 * 3 + 64
    for metric in ("euclidean", "sqeuclidean", "cosine"):
        assert torch.equal(ck.silhouette(Z, wide, metric, reduction="none"), ck.silhouette(Z, labels, metric, reduction="none"))
    for index in (ck.mean_silhouette, ck.variance_ratio, ck.davies_bouldin):
        assert torch.equal(index(Z, wide), index(Z, labels))
    assert torch.equal(ck.simplified_silhouette(Z, labels=wide), ck.simplified_silhouette(Z, labels=labels))
    nearest = ck.silhouette_parts(Z, labels).nearest
    assert torch.equal(ck.silhouette_parts(Z, wide).nearest, torch.where(nearest >= 0, nearest * gap, -1))


def test_given_numbers_of_clusters_are_kept():
    wide = Y * 1000
    resolved, clusters = resolve_clusters(wide, 5000)
    assert clusters == 5000 and resolved is wide
    assert ck.silhouette(Z, wide, num_clusters=5000).item() == pytest.approx(ck.silhouette(Z, Y).item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_any_integer_labels(dtype):
    assert torch.equal(ck.davies_bouldin(Z, Y.to(dtype)), ck.davies_bouldin(Z, Y))


@pytest.mark.parametrize("d", [1, 2, 15, 17, 4096])
def test_any_width(d):
    z = torch.randn(40, d, dtype=torch.float64)
    labels = torch.arange(40) % 3
    a = ck.simplified_silhouette(z, labels=labels), ck.variance_ratio(z, labels)
    b = ck.simplified_silhouette(z.float(), labels=labels), ck.variance_ratio(z.float(), labels)
    assert abs(a[0] - b[0]) < 1e-5 and abs(a[1] / b[1] - 1) < 1e-4


def test_degenerate_clusterings_in_the_losses():
    q = Z.clone().requires_grad_()
    for loss in (ck.nn.SimplifiedSilhouetteLoss, ck.nn.VarianceRatioLoss, ck.nn.DaviesBouldinLoss):
        for labels in (0 * Y, torch.arange(50), 0 * Y - 1):
            value = loss(on_degenerate="zero")(q, labels=labels)
            value.backward()
            assert value.item() == 0 and (q.grad == 0).all()
            with pytest.raises(ValueError, match="labels must be"):
                loss()(q, labels=labels)


def test_nan_rows_do_not_crash():
    z = Z.clone()
    z[7] = float("nan")
    got = ck.assign(z, M)
    assert got.labels[7] == 0 and got.distances[7].isnan() and torch.equal(got.labels[:7], ck.assign(Z, M).labels[:7])
