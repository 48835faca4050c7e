"""Greedy k-means++ with direct distances."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import points, row_blocks


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_u - y_j||^2 by direct difference, as a table of shape (rows of x, rows of y)."""
    table = x.new_empty((x.shape[0], y.shape[0]))
    for rows in row_blocks(x.shape[0], y.numel()):
        table[rows] = (x[rows, None] - y[None]).square().sum(-1)
    return table


def draw(mass: Tensor, uniforms: Tensor) -> Tensor:
    """Indices drawn in proportion to ``mass``; uniformly where it is zero."""
    if mass.device.type != "mps":
        mass = mass.double()
    running = mass.cumsum(0)
    total = running[-1]
    n = mass.shape[0]
    uniforms = uniforms.to(mass.dtype)
    index = torch.searchsorted(running, (uniforms * total).contiguous(), right=True)
    index = torch.where(total > 0, index, (uniforms * n).long())
    return index.clamp(max=n - 1)


def kmeans_plus_plus(z: Tensor, weights: Tensor | None, origin: Tensor, uniforms: Tensor, closest: Tensor) -> Tensor:
    x = points(z)
    chosen = torch.empty(uniforms.shape[0], dtype=torch.int64, device=z.device)
    w = torch.ones_like(closest) if weights is None else weights.to(closest.dtype)
    for step, u in enumerate(uniforms):
        candidates = draw(w * closest, u.to(z.device))
        table = torch.minimum(squared_distances(x, x[candidates]), closest[:, None])
        best = (w[:, None] * table).sum(0).argmin()[None]
        chosen[step : step + 1] = candidates.index_select(0, best)
        closest.copy_(table.index_select(1, best)[:, 0])
    return chosen
