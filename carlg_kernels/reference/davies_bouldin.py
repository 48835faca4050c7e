"""DB = (1/c) sum_j max_{k != j} (S_j + S_k) / ||mu_j - mu_k||."""

import torch
from torch import Tensor

from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.common import (
    distance,
    resolve_num_clusters,
    row_blocks,
    segment_mean,
    segment_sum,
    unit,
    wide,
)


def _state(z: Tensor, labels: Tensor, c: int) -> tuple[Tensor, ...]:
    """value, means, counts, dispersion, rivals, directions; floating point as wide as the device has it."""
    x = wide(z)
    means, counts = segment_mean(x, labels, c)
    difference = x - means[labels.clamp(min=0)]
    directions = segment_sum(unit(difference), labels, c)
    spread = difference.square().sum(1).sqrt()
    dispersion = segment_sum(spread, labels, c) / counts.clamp(min=1)

    absent = counts == 0
    rounded = means.to(compute_dtype(z.dtype))
    worst = torch.zeros_like(dispersion)
    rivals = torch.full((c,), -1, dtype=torch.int32, device=x.device)
    for rows in row_blocks(c, c * x.shape[1]):
        same = (rounded[rows, None] == rounded[None]).all(-1)
        apart = distance(means[rows, None], means[None]).masked_fill(same, 1)
        ratio = ((dispersion[rows, None] + dispersion[None]) / apart).masked_fill(~apart.isfinite(), torch.nan)
        invalid = (same & ratio.isfinite()) | absent[None] | absent[rows, None]
        top, index = ratio.masked_fill(invalid, -1).max(1)
        found = ~(top <= 0)
        worst[rows] = torch.where(found, top, 0)
        rivals[rows] = torch.where(found, index, -1).to(torch.int32)
    value = worst.sum() / (~absent).sum().clamp(min=1)
    return value, means, counts, dispersion, rivals, directions


def davies_bouldin(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, ...]:
    real = compute_dtype(z.dtype)
    value, means, counts, dispersion, rivals, directions = _state(z, labels, resolve_num_clusters(labels, num_clusters))
    if num_clusters == 0:
        empty = means.new_empty((0, z.shape[1]), dtype=real)
        return value.to(real), empty, counts.new_empty(0), empty[:, 0], rivals.new_empty(0), empty.clone()
    return value.to(real), means.to(real), counts, dispersion.to(real), rivals, directions.to(real)


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
    # Made again, since the saved means are rounded.
    x, c = wide(z), means.shape[0] or resolve_num_clusters(labels, 0)
    _, means, counts, dispersion, rivals, directions = _state(z, labels, c)
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
