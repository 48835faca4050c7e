"""Silhouette parts with squared distances, from the means: rows in blocks, never the whole n x c table."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import (
    points,
    resolve_num_clusters,
    row_blocks,
    segment_mean,
    segment_sum,
)


def squared_silhouette(z: Tensor, labels: Tensor, excess: Tensor | None, num_clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    x = points(z)
    c = resolve_num_clusters(labels, num_clusters)
    means, counts = segment_mean(x, labels, c)
    # Ranked around the mean of the means: the rounding of the expanded square grows with their spread, not with their place.
    centre = means.sum(0) / (counts > 0).sum().clamp(min=1)
    moved = means - centre
    keep = labels >= 0
    mine = labels.clamp(min=0)
    e = x.new_zeros(len(x)) if excess is None else excess.to(x.dtype)
    to_own, to_other = x.new_empty(len(x)), x.new_empty(len(x))
    nearest = torch.empty(len(x), dtype=torch.int64, device=x.device)
    blocks = list(row_blocks(len(x), c + 2 * x.shape[1]))
    for block in blocks:
        to_own[block] = (x[block] - means[mine[block]]).square().sum(1)
    spread = segment_sum(to_own + e, labels, c) / counts.clamp(min=1)
    bias = (moved.square().sum(1) + spread).masked_fill(counts == 0, torch.inf)
    for block in blocks:
        score = torch.addmm(bias, x[block] - centre, moved.T, alpha=-2)
        best, index = score.scatter(1, mine[block, None], torch.inf).min(1)
        nearest[block] = torch.where(best.isfinite(), index, -1)
        to_other[block] = (x[block] - means[index]).square().sum(1) + spread[index]
    size = counts[mine]
    own = (size * (to_own + spread[mine]) + (size - 2) * e) / (size - 1).clamp(min=1)
    nearest = nearest.masked_fill(~keep, -1)
    own = own.masked_fill(~keep | (size <= 1), 0)
    return own, (to_other + e).masked_fill(nearest < 0, 0), nearest.int()


def squared_silhouette_backward(
    grad_own: Tensor,
    grad_other: Tensor,
    z: Tensor,
    labels: Tensor,
    nearest: Tensor,
    num_clusters: int,
) -> Tensor:
    x = points(z)
    c = resolve_num_clusters(labels, num_clusters)
    means, counts = segment_mean(x, labels, c)
    mine, rival = labels.clamp(min=0), nearest.clamp(min=0).long()
    size = counts[mine]
    r = torch.where((labels >= 0) & (size > 1), grad_own * size / (size - 1).clamp(min=1), 0)
    q = torch.where(nearest >= 0, grad_other, 0)
    total = segment_sum(r, labels, c) + segment_sum(q, nearest, c)
    pull = torch.zeros_like(means)
    dz = torch.empty_like(z, memory_format=torch.contiguous_format)
    blocks = list(row_blocks(len(x), 4 * x.shape[1]))
    for block in blocks:
        pull -= segment_sum(r[block, None] * (x[block] - means[mine[block]]), labels[block], c)
        pull -= segment_sum(q[block, None] * (x[block] - means[rival[block]]), nearest[block], c)
    shift, slope = pull / counts.clamp(min=1)[:, None], total / counts.clamp(min=1)
    for block in blocks:
        j, k = mine[block], rival[block]
        dx = (r[block] + slope[j])[:, None] * (x[block] - means[j]) + shift[j]
        dx += q[block, None] * (x[block] - means[k])
        dz[block] = (2 * dx).masked_fill((labels[block] < 0)[:, None], 0).to(z.dtype)
    return dz
