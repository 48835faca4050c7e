"""t_u = sum_{v: y_v = y_u} w_v ||z_u - z_v||, in row blocks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from carlg_kernels.reference.common import points, row_blocks
from carlg_kernels.reference.silhouette import pair_distances


def _blocks(x: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(rows, all scored points, distances, same cluster) of row blocks."""
    keep = (labels >= 0).nonzero().flatten()
    for block in row_blocks(len(keep), 3 * len(keep)):
        rows = keep[block]
        d = pair_distances(x[rows], x[keep]).masked_fill(rows[:, None] == keep, 0)
        yield rows, keep, d, labels[rows, None] == labels[keep]


def cluster_distances(z: Tensor, labels: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    x = points(z)
    total = x.new_zeros(len(x))
    for rows, keep, d, same in _blocks(x, labels):
        total[rows] = (d * same) @ weights[keep].to(x.dtype)
    return total


def cluster_distances_backward(grad: Tensor, z: Tensor, labels: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    x = points(z)
    x, w = x - x.mean(0), weights.to(x.dtype)
    dz = torch.zeros_like(z, memory_format=torch.contiguous_format)
    for rows, keep, d, same in _blocks(x, labels):
        pair = grad[rows, None] * w[keep] + w[rows, None] * grad[keep]
        pair = torch.where(same & (d > 0), pair / d.masked_fill(d == 0, 1), 0)
        dz[rows] = (pair.sum(1, keepdim=True) * x[rows] - pair @ x[keep]).to(z.dtype)
    return dz
