"""V = (N - c) / (c - 1) * B / W between and within clusters, squared or not."""

import torch
from torch import Tensor

from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.common import (
    resolve_num_clusters,
    segment_mean,
    segment_sum,
    unit,
    wide,
)


def _kappa(counts: Tensor, dtype: torch.dtype) -> Tensor:
    present, scored = (counts > 0).sum(), counts.sum()
    return (scored - present).to(dtype) / (present - 1).clamp(min=1)


def _state(z: Tensor, labels: Tensor, centroids: Tensor | None, num_clusters: int, distance: str) -> tuple[Tensor, ...]:
    """centers, counts, grand mean, [B, W], E."""
    c = resolve_num_clusters(labels, num_clusters)
    means, counts = segment_mean(z, labels, c)
    centers = means if centroids is None else centroids
    weight = counts.to(z.dtype)
    grand_mean = (weight[:, None] * means).sum(0) / weight.sum().clamp(min=1)
    between = (centers - grand_mean).square().sum(1)
    difference = (z - centers[labels.clamp(min=0)]).masked_fill((labels < 0)[:, None], 0)
    within = difference.square().sum(1)
    if distance == "euclidean":
        between, within, difference = between.sqrt(), within.sqrt(), unit(difference)
    scatter = torch.stack(((weight * between).sum(), within.sum()))
    directions = z.new_empty((0, z.shape[1]))
    if centroids is not None or distance == "euclidean":
        directions = segment_sum(difference, labels, c)
    return centers, counts, grand_mean, scatter, directions


def variance_ratio(z: Tensor, labels: Tensor, centroids: Tensor | None, num_clusters: int, distance: str) -> tuple[Tensor, ...]:
    x, real = wide(z), compute_dtype(z.dtype)
    given = None if centroids is None else wide(centroids)
    centers, counts, grand_mean, scatter, directions = _state(x, labels, given, num_clusters, distance)
    between, within = scatter
    floor = torch.finfo(real).eps * (between + within)
    ratio = between / torch.where(within == 0, floor.masked_fill(floor == 0, 1), within)
    value = (_kappa(counts, x.dtype) * ratio).to(real)
    centers, grand_mean, scatter, directions = (t.to(real) for t in (centers, grand_mean, scatter, directions))
    if num_clusters == 0:
        empty = centers.new_empty((0, x.shape[1]))
        return value, empty, counts.new_empty(0), grand_mean, scatter, empty.clone()
    means = centers if centroids is None else centers.new_empty((0, x.shape[1]))
    return value, means, counts, grand_mean, scatter, directions


def variance_ratio_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    centers: Tensor,
    counts: Tensor,
    grand_mean: Tensor,
    scatter: Tensor,
    directions: Tensor,
    tied: bool,
    distance: str,
    need_centroids: bool,
) -> tuple[Tensor, Tensor]:
    # Made again, since the saved means are rounded.
    x, real = wide(z), compute_dtype(z.dtype)
    given = None if tied else wide(centers)
    centers, counts, grand_mean, scatter, directions = _state(x, labels, given, centers.shape[0], distance)
    keep = (labels >= 0)[:, None]
    index = labels.clamp(min=0)
    weight = counts.to(x.dtype)
    scored = weight.sum().clamp(min=1)
    between, within = scatter
    slope = grad * _kappa(counts, x.dtype) / within.masked_fill(within == 0, 1)
    slope = slope.masked_fill(within == 0, 0)
    ratio = between / within.masked_fill(within == 0, 1)

    outward = centers - grand_mean
    inner = x - centers[index]
    factor = 2.0
    if distance == "euclidean":
        outward, inner, factor = unit(outward), unit(inner), 1.0
    pull = (weight[:, None] * outward).sum(0) / scored
    dcentroids = x.new_empty((0, x.shape[1]))
    if tied:
        d_between = outward - pull
        d_within = torch.zeros_like(centers)
        if distance == "euclidean":
            d_within = -directions / weight.clamp(min=1)[:, None]
        dz = d_between[index] - ratio * (inner + d_within[index])
    else:
        dz = -pull - ratio * inner
        if need_centroids:
            dcentroids = factor * slope * (weight[:, None] * outward + ratio * directions)
    dz = (factor * slope * dz).masked_fill(~keep, 0)
    return dz.to(z.dtype), dcentroids.to(real)
