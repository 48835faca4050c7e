"""Public functions of the exact silhouette and its linear relatives; the arithmetic is in ``carlg_kernels.ops``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from carlg_kernels import _sampling, ops
from carlg_kernels._progress import reporting
from carlg_kernels._typing import Reduction, SilhouetteMetric, SilhouetteParts, compute_dtype
from carlg_kernels._validation import (
    check_choice,
    check_edges,
    check_finite,
    check_labels,
    check_points,
    resolve_clusters,
)
from carlg_kernels.clustering import resolve_generator
from carlg_kernels.reference.common import block_sum

_METRICS = ("euclidean", "sqeuclidean", "cosine")
_REDUCTIONS = ("mean", "sum", "none")


def silhouette(
    z: Tensor,
    labels: Tensor,
    metric: SilhouetteMetric = "euclidean",
    reduction: Reduction = "mean",
    num_clusters: int | None = None,
    *,
    approximate: float | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[float], Any] | None = None,
) -> Tensor:
    """Exact silhouette: mean distance to the own cluster against that to the nearest other one, s = (b - a) / max(a, b).

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points; float16, bfloat16, float32 or float64, any strides.
    labels : Tensor, shape (n,)
        Integers; -1 marks an outlier, which is in no cluster and not scored. Values may have gaps.
    metric : {"euclidean", "sqeuclidean", "cosine"}
    reduction : {"mean", "sum", "none"}
        "none" gives one value a point, 0 for outliers.
    num_clusters : int, optional
        An upper bound of the labels. Saves reading them, which on a GPU means no synchronisation with metric "euclidean".
    approximate : float, optional
        Euclidean only, for clusterings too large for exact scores: sample distances so that the result errs by at most this much with a
        probability of at least 0.99 (each value for "none", the mean for "mean"; "sum" is the number of points times the mean). The
        cost grows with 1 / approximate^2; clusters smaller than the sample are computed exactly. Not differentiable.
    generator : torch.Generator, optional
        Random numbers for ``approximate``; the global ones are never touched. None is a new generator with a fixed seed: the same call
        gives the same result.
    progress : callable, optional
        Called about ten times a second with the fraction done, and with 1.0 at the end. CPU kernels can be interrupted (Ctrl-C) with
        or without it, in forward and backward.

    Returns
    -------
    Tensor
        A scalar, or shape (n,); float32, or float64 for float64 points. Differentiable in ``z``.

    Notes
    -----
    Points alone in their cluster score 0. Euclidean: bounds on the mean distances from the cluster means leave few of the n^2 pairs,
    and the gradient needs only those of the own and the nearest other cluster; O(n + cd) extra memory. Squared Euclidean and cosine need
    no pairs at all: 2ncd flops. Zero distances have zero gradient. Raises ValueError for fewer than two clusters or only singletons (on
    GPUs, where reading labels would synchronise, such input gives 0 unless CK_VALIDATE=1).

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]], requires_grad=True)
    >>> s = ck.silhouette(z, torch.tensor([0, 0, 1, 1]))
    >>> round(s.item(), 4)
    0.8997
    >>> s.backward()
    """
    check_choice(reduction, "reduction", _REDUCTIONS)
    labels, clusters = _checked(z, labels, num_clusters)
    if approximate is not None:
        with reporting(progress):
            return _approximate(z, labels, clusters, metric, reduction, approximate, generator)
    if progress is None:
        own, other, _ = _parts(z, labels, metric, clusters)
    else:
        with reporting(progress):
            own, other, _ = _parts(z, labels, metric, clusters)
    size = _cluster_sizes(labels, clusters)
    top = torch.maximum(own, other)
    value = (other - own) / top.masked_fill(top == 0, 1)
    return _reduce(value.masked_fill((size <= 1) | (top == 0), 0), labels >= 0, reduction)


def silhouette_parts(
    z: Tensor,
    labels: Tensor,
    metric: SilhouetteMetric = "euclidean",
    num_clusters: int | None = None,
) -> SilhouetteParts:
    """The parts of :func:`silhouette`, whose parameters it shares.

    Returns
    -------
    SilhouetteParts
        ``own``: mean distance to the other points of the own cluster (0 for singletons), ``other``: least mean distance to another
        cluster, both shape (n,) and differentiable in ``z``; ``nearest``: the label of that cluster, int64. Outliers: 0, 0 and -1.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.silhouette_parts(z, torch.tensor([4, 4, 7, 7])).nearest
    tensor([7, 7, 4, 4])
    """
    given = labels
    labels, clusters = _checked(z, labels, num_clusters)
    own, other, nearest = _parts(z, labels, metric, clusters)
    nearest = nearest.long()
    if labels is not given and not torch.compiler.is_compiling() and int(given.max()) >= clusters:
        # Labels with large gaps were renumbered in order.
        names = given[given >= 0].unique().long()
        nearest = torch.where(nearest >= 0, names[nearest.clamp(min=0)], -1)
    return SilhouetteParts(own, other, nearest)


def mean_silhouette(
    z: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
    num_clusters: int | None = None,
) -> Tensor:
    """Mean distance to the own cluster minus the mean, over the other clusters, of the mean distances to them. Lower is better.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    labels : Tensor, shape (n,)
        Integers; -1 marks an outlier.
    reduction : {"mean", "sum", "none"}
    num_clusters : int, optional
        As in :func:`silhouette`.

    Returns
    -------
    Tensor
        A scalar, or shape (n,). Differentiable in ``z``.

    Notes
    -----
    All n^2 / 2 pairs, each computed once; O(n + cd) extra memory. The own distance of singletons is 0. With clusters of equal size and
    a graph that joins exactly the points of a cluster this equals :func:`margin` for every ``z``.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.mean_silhouette(z, torch.tensor([0, 0, 1, 1]))
    tensor(-9.)
    """
    check_choice(reduction, "reduction", _REDUCTIONS)
    labels, clusters = _checked(z, labels, num_clusters)
    keep, size = labels >= 0, _cluster_sizes(labels, clusters)
    dtype = compute_dtype(z.dtype)
    own = ops.cluster_distances.cluster_distances(z, labels, keep.to(dtype), clusters)
    share = torch.where(keep, 1 / size.clamp(min=1).to(dtype), 0)
    # sum_v D_uv / n_{y_v}: every cluster's mean distance, the own one included; the shares add up to the number of clusters.
    every = ops.cluster_distances.cluster_distances(z, torch.where(keep, 0, -1), share, 1)
    others = (block_sum(share) - 1).clamp(min=1)
    value = own / (size - 1).clamp(min=1) - (every - own / size.clamp(min=1)) / others
    return _reduce(value.masked_fill(~keep, 0), keep, reduction)


def margin(z: Tensor, edge_index: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Mean distance to the neighbours in a graph minus the mean distance to all other points. Lower is better.

    Parameters
    ----------
    z : Tensor, shape (n, d)
    edge_index : Tensor, shape (2, edges)
        Integers in [0, n); column (u, v) makes v a neighbour of u. Self-loops and repeated edges are ignored.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor
        A scalar, or shape (n,). Differentiable in ``z``.

    Notes
    -----
    All n^2 / 2 pairs, each computed once and none stored; O(n + edges) extra memory. The first term of a point without neighbours, and
    the second of one that is joined to all, is 0.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.margin(z, torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]]))
    tensor(-9.)
    """
    check_points(z, least=2)
    check_finite(z)
    check_choice(reduction, "reduction", _REDUCTIONS)
    n = z.shape[0]
    edges = check_edges(edge_index, z)
    keys = (edges[0] * n + edges[1]).sort().values
    edges = torch.stack((keys // n, keys % n))
    # Masked and not taken out: the shapes stay known to torch.compile.
    repeated = torch.zeros_like(keys, dtype=torch.bool)
    repeated[1:] = keys[1:] == keys[:-1]
    counted = ~repeated & (edges[0] != edges[1])
    degree = torch.zeros(n, dtype=torch.int64, device=z.device)
    degree.scatter_add_(0, edges[0], counted.long())
    dtype = compute_dtype(z.dtype)
    near = torch.zeros(n, dtype=dtype, device=z.device)
    near = near.index_add(0, edges[0], ops.edge_distances.edge_distances(z, edges) * counted)
    one_cluster = torch.zeros(n, dtype=torch.int64, device=z.device)
    every = ops.cluster_distances.cluster_distances(z, one_cluster, torch.ones_like(near), 1)
    rest = n - 1 - degree
    far = torch.where(rest > 0, every - near, 0)
    value = near / degree.clamp(min=1) - far / rest.clamp(min=1)
    return _reduce(value, one_cluster == 0, reduction)


def _approximate(
    z: Tensor,
    labels: Tensor,
    clusters: int,
    metric: str,
    reduction: Reduction,
    error: float,
    generator: torch.Generator | None,
) -> Tensor:
    if metric != "euclidean":
        raise ValueError(f"approximate must be None with metric {metric!r}, whose closed form is exact, got {error!r}")
    if isinstance(error, bool) or not isinstance(error, (int, float)) or not 0 < error < 1:
        raise ValueError(f"approximate must be a number in (0, 1), got {error!r}")
    points, values = _sampling.sampled_silhouette(z, labels, clusters, float(error), reduction != "none", resolve_generator(generator))
    if reduction == "none":
        return values.new_zeros(z.shape[0]).index_copy(0, points, values)
    mean = values.mean()
    return mean if reduction == "mean" else mean * (labels >= 0).sum()


def _checked(z: Tensor, labels: Tensor, num_clusters: int | None) -> tuple[Tensor, int]:
    check_points(z, least=2)
    check_finite(z)
    return resolve_clusters(check_labels(labels, z), num_clusters)


def _parts(z: Tensor, labels: Tensor, metric: SilhouetteMetric, clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    check_choice(metric, "metric", _METRICS)
    if metric == "euclidean":
        return ops.silhouette.silhouette(z, labels, clusters)
    if metric == "sqeuclidean":
        return ops.squared_silhouette.squared_silhouette(z, labels, None, clusters)
    x = z.to(compute_dtype(z.dtype))
    square = x.square().sum(1)
    zero = square == 0
    unit = x / square.masked_fill(zero, 1).sqrt()[:, None]
    # 1 - cos = ||x - y||^2 / 2 on unit vectors; a zero vector is at distance 1 from everything, as in scikit-learn.
    unit = unit.masked_fill(zero[:, None], 0)
    own, other, nearest = ops.squared_silhouette.squared_silhouette(unit, labels, zero.to(x.dtype), clusters)
    return own / 2, other / 2, nearest


def _cluster_sizes(labels: Tensor, clusters: int) -> Tensor:
    """The size of every point's cluster, 0 for outliers."""
    if clusters > 0:
        counts = torch.zeros(clusters + 1, dtype=torch.int64, device=labels.device)
        sizes = counts.scatter_add(0, labels + 1, torch.ones_like(labels))[labels + 1]
    else:
        ordered = labels.sort().values
        above = torch.searchsorted(ordered, labels, right=True)
        sizes = above - torch.searchsorted(ordered, labels)
    return sizes.masked_fill(labels < 0, 0)


def _reduce(value: Tensor, scored: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return value
    total = block_sum(value)
    return total if reduction == "sum" else total / scored.sum().clamp(min=1)
