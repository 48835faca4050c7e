"""Public functions: argument checks and documentation; the arithmetic is in ``carlg_kernels.ops``."""

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._typing import (
    Assignment,
    EmptyPolicy,
    KMeansResult,
    Reduction,
    Singleton,
    VarianceDistance,
)
from carlg_kernels._validation import (
    check_centroids,
    check_choice,
    check_count,
    check_labels,
    check_points,
    check_weights,
    resolve_clusters,
)


def assign(z: Tensor, centroids: Tensor) -> Assignment:
    """Nearest and second-nearest centroid of every point.

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points; float16, bfloat16, float32 or float64, any strides.
    centroids : Tensor, shape (c, d)

    Returns
    -------
    Assignment
        ``labels`` and ``second_labels`` (int64, shape (n,)), ``distances`` and ``second_distances`` (Euclidean, shape (n,), float32,
        or float64 for float64 points).

    Notes
    -----
    2ncd flops, O(n + cd) extra memory: the n x c table is never stored. The two distances are recomputed by direct difference, so they
    keep their digits where the expanded square loses them. Ties go to the lower index. With c = 1 the second label is -1 and its
    distance infinite. Not differentiable.

    Examples
    --------
    >>> z = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> ck.assign(z, torch.tensor([[0.0, 1.0], [3.0, 0.0], [3.0, 3.0]]))[:2]
    (tensor([0, 2]), tensor([1., 1.]))
    """
    check_points(z)
    centroids = check_centroids(centroids, z)
    return Assignment(*ops.assign.assign(z.detach(), centroids.detach()))


def update_centroids(
    z: Tensor,
    labels: Tensor,
    num_clusters: int,
    weights: Tensor | None = None,
    previous: Tensor | None = None,
    empty: EmptyPolicy = "keep",
) -> tuple[Tensor, Tensor]:
    """Means of the points by label, and the size of every cluster.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    labels : Tensor, shape (n,)
        Integers in [-1, num_clusters); -1 leaves a point out.
    num_clusters : int
    weights : Tensor, shape (n,), optional
        Not negative; the means are weighted by them.
    previous : Tensor, shape (num_clusters, d), optional
        Centroids that empty clusters keep.
    empty : {"keep", "zero", "error"}
        An empty cluster keeps its row of ``previous`` (zero without ``previous``), becomes zero, or raises ValueError.

    Returns
    -------
    centroids : Tensor, shape (num_clusters, d)
        Differentiable in ``z`` and ``weights``; float32, or float64 for float64 points.
    counts : Tensor, shape (num_clusters,)
        int64 sizes, or the sums of the weights where these are given.

    Examples
    --------
    >>> z = torch.tensor([[1.0], [3.0], [10.0]])
    >>> ck.update_centroids(z, torch.tensor([0, 0, 2]), 3)
    (tensor([[ 2.],
            [ 0.],
            [10.]]), tensor([2, 0, 1]))
    """
    check_points(z)
    num_clusters = check_count(num_clusters, "num_clusters")
    labels, _ = resolve_clusters(check_labels(labels, z), num_clusters, clustered=False)
    weights = check_weights(weights, z)
    check_choice(empty, "empty", ("keep", "zero", "error"))
    if previous is not None:
        previous = check_centroids(previous, z, name="previous")
        if previous.shape[0] != num_clusters:
            raise ValueError(f"previous must be of shape ({num_clusters}, {z.shape[1]}), got {tuple(previous.shape)}")
    centroids, mass = ops.centroid_update.centroid_update(z, labels, weights, num_clusters)
    if empty == "error":
        missing = (mass == 0).nonzero().flatten().tolist()
        if missing:
            raise ValueError(f"labels must leave no cluster empty with empty='error', got no point in {missing[:10]}")
    elif empty == "keep" and previous is not None:
        centroids = torch.where((mass == 0)[:, None], previous, centroids)
    return centroids, mass


def simplified_silhouette(
    z: Tensor,
    centroids: Tensor | KMeansResult | None = None,
    labels: Tensor | None = None,
    reduction: Reduction = "mean",
    singleton: Singleton = "zero",
    num_clusters: int | None = None,
) -> Tensor:
    """Simplified silhouette: every point's distance to its own centroid against that to the nearest other one.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    centroids : Tensor, shape (c, d), optional
        Without ``labels`` every point belongs to its nearest centroid. Without ``centroids`` they are the means of ``z`` by label, and
        the gradient flows through them. A :class:`KMeansResult` stands for its labels and centroids; its runners-up are taken as the nearest
        other centroids, so nothing is searched: O(nd). Its centroids are constants.
    labels : Tensor, shape (n,), optional
        Integers; -1 marks an outlier, which is in no centroid and not scored. Values may have gaps.
    reduction : {"mean", "sum", "none"}
        "none" gives one value a point, 0 for outliers.
    singleton : {"zero", "code"}
        The score of a point alone in its cluster, where centroids are means: 0, or 1 as in the authors' code. The gradient is the same.
    num_clusters : int, optional
        With labels alone: an upper bound of the labels. Saves reading them, which on a GPU means no synchronisation.

    Returns
    -------
    Tensor
        A scalar, or shape (n,); float32, or float64 for float64 points. Differentiable in ``z`` and ``centroids``.

    Notes
    -----
    Forward 2ncd flops, backward O(nd); O(n + cd) extra memory. Raises ValueError for fewer than two clusters or only singletons (on
    GPUs, where reading labels would synchronise, such input gives 0 with a zero gradient unless CK_VALIDATE=1). A point that is not finite scores NaN.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]], requires_grad=True)
    >>> s = ck.simplified_silhouette(z, labels=torch.tensor([0, 0, 1, 1]))
    >>> round(s.item(), 4)
    0.9499
    >>> s.backward()
    """
    check_points(z, least=2)
    check_choice(reduction, "reduction", ("mean", "sum", "none"))
    check_choice(singleton, "singleton", ("zero", "code"))
    if isinstance(centroids, KMeansResult):
        return _silhouette_of_result(z, centroids, labels, reduction)
    if centroids is None and labels is None:
        raise ValueError("centroids or labels must be given, got neither")
    if labels is not None:
        labels = check_labels(labels, z)
    if centroids is not None:
        centroids = check_centroids(centroids, z, least=2)
        clusters = centroids.shape[0]
        if labels is not None:
            labels, _ = resolve_clusters(labels, clusters, clustered=False)
    else:
        assert labels is not None
        labels, clusters = resolve_clusters(labels, num_clusters)
    return ops.simplified_silhouette.simplified_silhouette(z, labels, centroids, clusters, reduction, singleton == "zero")


def _silhouette_of_result(z: Tensor, result: KMeansResult, labels: Tensor | None, reduction: Reduction) -> Tensor:
    if labels is not None:
        raise ValueError("labels must be None where centroids is a KMeansResult, which has its own")
    centers = check_centroids(result.centroids, z, least=2)
    own = check_labels(result.labels, z)
    other = check_labels(result.second_labels, z)
    return ops.assigned_silhouette.assigned_silhouette(z, centers, own, other, reduction)


def variance_ratio(
    z: Tensor,
    labels: Tensor | None = None,
    centroids: Tensor | None = None,
    distance: VarianceDistance = "sqeuclidean",
    num_clusters: int | None = None,
) -> Tensor:
    """Variance ratio criterion (Calinski-Harabasz index): spread between clusters over spread within.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    labels : Tensor, shape (n,), optional
        Integers; -1 marks an outlier. Without labels every point belongs to its nearest centroid.
    centroids : Tensor, shape (c, d), optional
        Taken in place of the means of ``z`` by label.
    distance : {"sqeuclidean", "euclidean"}
        The classic index, or its unsquared variant.
    num_clusters : int, optional
        As in :func:`simplified_silhouette`.

    Returns
    -------
    Tensor
        A scalar; float32, or float64 for float64 points. Differentiable in ``z`` and ``centroids``.

    Notes
    -----
    O(nd) time with labels, O(n + cd) extra memory. Empty clusters do not count. Where every point sits on its centroid the spread
    within is replaced by the machine epsilon times the total spread, with a zero gradient. Points that are not finite give NaN.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.variance_ratio(z, torch.tensor([0, 0, 1, 1]))
    tensor(200.)
    """
    check_points(z, least=2)
    check_choice(distance, "distance", ("sqeuclidean", "euclidean"))
    if centroids is None and labels is None:
        raise ValueError("labels or centroids must be given, got neither")
    if centroids is not None:
        centroids = check_centroids(centroids, z, least=2)
        num_clusters = centroids.shape[0]
    if labels is None:
        assert centroids is not None
        labels = ops.assign.assign(z.detach(), centroids.detach())[0]
    labels, clusters = resolve_clusters(check_labels(labels, z), num_clusters)
    return ops.variance_ratio.variance_ratio(z, labels, centroids, clusters, distance)


def davies_bouldin(z: Tensor, labels: Tensor, num_clusters: int | None = None) -> Tensor:
    """Davies-Bouldin index: the mean over clusters of the worst ratio of spreads to the distance of centroids. Lower is better.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    labels : Tensor, shape (n,)
        Integers; -1 marks an outlier. Empty clusters do not count.
    num_clusters : int, optional
        As in :func:`simplified_silhouette`.

    Returns
    -------
    Tensor
        A scalar; float32, or float64 for float64 points. Differentiable in ``z``.

    Notes
    -----
    O(nd + c^2 d) time, O(n + cd) extra memory. A pair of coinciding centroids scores 0, as in scikit-learn. Points that are not finite give NaN.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.davies_bouldin(z, torch.tensor([0, 0, 1, 1]))
    tensor(0.1000)
    """
    check_points(z, least=2)
    labels, clusters = resolve_clusters(check_labels(labels, z), num_clusters)
    return ops.davies_bouldin.davies_bouldin(z, labels, clusters)
