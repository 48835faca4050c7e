"""a_u and b_u from all pairs, in row blocks, and the gradient of sum_u p_u a_u + q_u b_u."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import (
    points,
    resolve_num_clusters,
    row_blocks,
    segment_count,
)


def pair_distances(x: Tensor, y: Tensor) -> Tensor:
    """All Euclidean distances by direct difference, shape (len(x), len(y))."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def silhouette(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, Tensor, Tensor]:
    x = points(z)
    c = resolve_num_clusters(labels, num_clusters)
    counts = segment_count(labels, c)
    own, other = x.new_zeros(len(x)), x.new_zeros(len(x))
    nearest = torch.full((len(x),), -1, dtype=torch.int32, device=x.device)
    keep = (labels >= 0).nonzero().flatten()
    kept, y = x[keep], labels[keep]
    for block in row_blocks(len(keep), len(keep) + c):
        rows = torch.arange(block.start, block.stop, device=x.device)
        d = pair_distances(kept[block], kept)
        d[rows - block.start, rows] = 0
        sums = x.new_zeros(len(rows), c).index_add_(1, y, d)
        mine = y[block, None]
        own[keep[block]] = sums.gather(1, mine)[:, 0] / (counts[y[block]] - 1).clamp(min=1)
        means = (sums / counts.clamp(min=1)).masked_fill(counts == 0, torch.inf)
        best, index = means.scatter(1, mine, torch.inf).min(1)
        found = best.isfinite()
        other[keep[block]] = torch.where(found, best, 0)
        nearest[keep[block]] = torch.where(found, index, -1).int()
    return own, other, nearest


def silhouette_backward(
    grad_own: Tensor,
    grad_other: Tensor,
    z: Tensor,
    labels: Tensor,
    nearest: Tensor,
    num_clusters: int,
) -> Tensor:
    c = resolve_num_clusters(labels, num_clusters)
    counts = segment_count(labels, c)
    keep = (labels >= 0).nonzero().flatten()
    x, y, k = points(z)[keep], labels[keep], nearest[keep].long()
    # The gradient does not see a translation; near the origin z_u sum_v W_uv - sum_v W_uv z_v loses fewer digits.
    x = x - x.mean(0)
    own = torch.where(counts[y] > 1, grad_own[keep] / (counts[y] - 1).clamp(min=1), 0)
    other = torch.where(k >= 0, grad_other[keep] / counts[k.clamp(min=0)].clamp(min=1), 0)
    dx = torch.zeros_like(x)
    for block in row_blocks(len(keep), 4 * len(keep)):
        u, v = (y[block, None], k[block, None]), (y[None], k[None])
        weight = (u[0] == v[0]) * (own[block, None] + own[None])
        weight = weight + (u[1] == v[0]) * other[block, None] + (v[1] == u[0]) * other[None]
        d = pair_distances(x[block], x)
        weight = torch.where(d > 0, weight / d.masked_fill(d == 0, 1), 0)
        dx[block] = weight.sum(1, keepdim=True) * x[block] - weight @ x
    dz = torch.zeros_like(z)
    dz[keep] = dx.to(z.dtype)
    return dz
