"""s_u = (b_u - a_u) / max(a_u, b_u) with distances to the own and to the nearest other centroid."""

import torch
from torch import Tensor

from carlg_kernels.reference.assign import two_nearest
from carlg_kernels.reference.common import (
    distance,
    points,
    resolve_num_clusters,
    segment_mean,
    segment_sum,
)


def silhouette_value(own: Tensor, other: Tensor) -> Tensor:
    """(b - a) / max(a, b), 0 where both are 0, NaN where one is not finite."""
    top = torch.maximum(own, other)
    return (other - own) / top.masked_fill(top == 0, 1)


def silhouette_slopes(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """(ds/da, ds/db), both 0 where a = b = 0, NaN where a or b is not finite."""
    inner = own <= other
    a, b = own.masked_fill(own == 0, 1), other.masked_fill(other == 0, 1)
    slope_own = torch.where(inner, -1 / b, -other / a / a)
    slope_other = torch.where(inner, own / b / b, 1 / a)
    none, lost = torch.maximum(own, other) == 0, ~(other - own).isfinite()
    slope_own, slope_other = (slope.masked_fill(none, 0).masked_fill(lost, torch.nan) for slope in (slope_own, slope_other))
    return slope_own, slope_other


def _weights(own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """p = (ds/da) / a and q = (ds/db) / b, 0 at zero distances, NaN where a or b is not finite."""
    slope_own, slope_other = silhouette_slopes(own, other)
    p = slope_own / own.masked_fill(own == 0, 1)
    q = slope_other / other.masked_fill(other == 0, 1)
    zero = (torch.minimum(own, other) == 0) & (other - own).isfinite()
    return p.masked_fill(zero, 0), q.masked_fill(zero, 0)


def _centre_sums(z: Tensor, own_labels: Tensor, other_labels: Tensor, p: Tensor, q: Tensor, centers: Tensor) -> Tensor:
    """M_j of the formula."""
    total = torch.zeros_like(centers)
    for labels, weight in ((own_labels, p), (other_labels, q)):
        index = labels.clamp(min=0).long()
        total -= segment_sum(weight[:, None] * (z - centers[index]), labels, centers.shape[0])
    return total


def simplified_silhouette(
    z: Tensor,
    labels: Tensor | None,
    centroids: Tensor | None,
    num_clusters: int,
    reduction: str,
    singleton_zero: bool,
    save_sums: bool,
) -> tuple[Tensor, ...]:
    x = points(z)
    if centroids is None:
        assert labels is not None
        c = resolve_num_clusters(labels, num_clusters)
        centers, counts = segment_mean(x, labels, c)
        allowed = counts > 0
    else:
        c = num_clusters = centroids.shape[0]
        centers, counts, allowed = centroids, labels_free_counts(c, x), None
    near, near_distance, second, second_distance = two_nearest(x, centers, allowed)
    own_labels = near if labels is None else labels
    hit = own_labels == near
    other_labels = torch.where(hit, second, near)
    other = torch.where(hit, second_distance, near_distance)
    # Without another cluster there is no score; a row that finds none although there is one cannot be ranked, and scores NaN.
    present = torch.full((), c, device=x.device) if allowed is None else allowed.sum()
    lonely = present < 2
    other = other.masked_fill(other_labels < 0, torch.nan).masked_fill(lonely, 0)
    own = distance(x, centers[own_labels.clamp(min=0)])
    value = silhouette_value(own, other).masked_fill(lonely, 0)
    if centroids is None and singleton_zero:
        value = value.masked_fill((counts[own_labels.clamp(min=0)] == 1) & value.isfinite(), 0)
    keep = own_labels >= 0
    value, own = value.masked_fill(~keep, 0), own.masked_fill(~keep, 0)
    other, other_labels = other.masked_fill(~keep, 0), other_labels.masked_fill(~keep, -1)
    sums = x.new_empty((0, x.shape[1]))
    if save_sums:
        sums = _centre_sums(x, own_labels, other_labels, *_weights(own, other), centers)
    if reduction == "sum":
        value = value.sum()
    elif reduction == "mean":
        value = value.sum() / keep.sum().clamp(min=1)
    tied_state = centroids is None and num_clusters > 0
    return (
        value,
        own_labels.to(torch.int32),
        other_labels.to(torch.int32),
        own,
        other,
        centers if tied_state else x.new_empty((0, x.shape[1])),
        counts if tied_state else counts.new_empty(0),
        sums,
    )


def labels_free_counts(c: int, x: Tensor) -> Tensor:
    return torch.zeros(c, dtype=torch.int64, device=x.device)


def simplified_silhouette_backward(
    grad: Tensor,
    z: Tensor,
    own_labels: Tensor,
    other_labels: Tensor,
    own: Tensor,
    other: Tensor,
    centers: Tensor,
    counts: Tensor,
    sums: Tensor,
    tied: bool,
    reduction: str,
    need_centroids: bool,
) -> tuple[Tensor, Tensor]:
    x = points(z)
    keep = own_labels >= 0
    if tied and centers.shape[0] == 0:
        c = resolve_num_clusters(own_labels, 0)
        centers, counts = segment_mean(x, own_labels, c)
    scale = grad / keep.sum().clamp(min=1) if reduction == "mean" else grad
    p, q = _weights(own, other)
    if reduction == "none":
        p, q = p * scale, q * scale
        scale = torch.ones_like(scale[:0]).sum() + 1
    if sums.shape[0] == 0:
        sums = _centre_sums(x, own_labels, other_labels, p, q, centers)
    own_index, other_index = own_labels.clamp(min=0).long(), other_labels.clamp(min=0).long()
    dz = p[:, None] * (x - centers[own_index]) + q[:, None] * (x - centers[other_index])
    if tied:
        dz += (sums / counts.clamp(min=1)[:, None])[own_index]
    dz = (scale * dz).masked_fill(~keep[:, None], 0)
    dcentroids = scale * sums if need_centroids else x.new_empty((0, x.shape[1]))
    return dz.to(z.dtype), dcentroids
