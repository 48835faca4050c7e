"""DB = (1/c) sum_j max_{k != j} (S_j + S_k) / ||mu_j - mu_k||."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import (
    distance,
    points,
    resolve_num_clusters,
    row_blocks,
    segment_mean,
    segment_sum,
    unit,
)


def davies_bouldin(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, ...]:
    x = points(z)
    c = resolve_num_clusters(labels, num_clusters)
    means, counts = segment_mean(x, labels, c)
    difference = x - means[labels.clamp(min=0)]
    directions = segment_sum(unit(difference), labels, c)
    spread = difference.square().sum(1).sqrt()
    dispersion = segment_sum(spread, labels, c) / counts.clamp(min=1)

    absent = counts == 0
    worst = torch.zeros_like(dispersion)
    rivals = torch.full((c,), -1, dtype=torch.int32, device=x.device)
    for rows in row_blocks(c, c * x.shape[1]):
        apart = distance(means[rows, None], means[None])
        ratio = (dispersion[rows, None] + dispersion[None]) / apart.masked_fill(apart == 0, 1)
        invalid = (apart == 0) | absent[None] | absent[rows, None]
        top, index = ratio.masked_fill(invalid, -1).max(1)
        found = top > 0
        worst[rows] = torch.where(found, top, 0)
        rivals[rows] = torch.where(found, index, -1).to(torch.int32)
    value = worst.sum() / (~absent).sum().clamp(min=1)
    if num_clusters == 0:
        empty = x.new_empty((0, x.shape[1]))
        return (
            value,
            empty,
            counts.new_empty(0),
            x.new_empty(0),
            rivals.new_empty(0),
            empty.clone(),
        )
    return value, means, counts, dispersion, rivals, directions


def davies_bouldin_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    means: Tensor,
    counts: Tensor,
    dispersion: Tensor,
    rivals: Tensor,
    directions: Tensor,
) -> Tensor:
    x = points(z)
    if means.shape[0] == 0:
        c = resolve_num_clusters(labels, 0)
        _, means, counts, dispersion, rivals, directions = davies_bouldin(z, labels, c)
    c = means.shape[0]
    scale = grad / (counts > 0).sum().clamp(min=1)
    has = rivals >= 0
    rival = rivals.clamp(min=0).long()
    step = means - means[rival]
    apart = step.square().sum(1).sqrt()
    inverse = torch.where(has, 1 / apart.masked_fill(apart == 0, 1), 0)
    ratio = (dispersion + dispersion[rival]) * inverse
    d_dispersion = inverse + segment_sum(inverse, rivals, c)
    push = (ratio * inverse)[:, None] * unit(step)
    d_means = segment_sum(push, rivals, c) - push

    weight = counts.clamp(min=1).to(x.dtype)[:, None]
    index = labels.clamp(min=0)
    per_point = scale * d_dispersion[:, None] / weight
    shared = scale * d_means / weight - per_point * directions / weight
    dz = per_point[index] * unit(x - means[index]) + shared[index]
    return dz.masked_fill((labels < 0)[:, None], 0).to(z.dtype)
