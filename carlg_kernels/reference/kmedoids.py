"""FasterPAM's eager swaps, a block of candidates at a time."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import points
from carlg_kernels.reference.kmeans_plus_plus import squared_distances

_BLOCK_ELEMENTS = 1 << 22
_ROUNDING = 8


def distance_columns(data: Tensor, index: Tensor, precomputed: bool, squared: bool = False) -> Tensor:
    """D(u, x) for the points x of ``index``, shape (n, len(index)), in the compute dtype."""
    if precomputed:
        return points(data[index]).T
    table = squared_distances(points(data), points(data[index]))
    return table if squared else table.sqrt()


def two_nearest_medoids(table: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and distances of the two nearest medoids, each of shape (2, n); with one medoid the second is -1 at infinity."""
    near, first = table.min(1)
    far, second = table.scatter(1, first[:, None], float("inf")).min(1)
    second = torch.where(far < float("inf"), second, -1)
    return torch.stack([first, second]), torch.stack([near, far])


def swap_changes(columns: Tensor, weights: Tensor, nearest: Tensor, distances: Tensor, c: int) -> Tensor:
    """change(m, x) for every medoid m (rows) and candidate x (columns)."""
    near, far = distances[0][:, None], distances[1][:, None]
    gain = weights @ (columns - near).clamp(max=0)
    loss = weights[:, None] * (columns.clamp(near, far) - near)
    total = torch.zeros((c, columns.shape[1]), dtype=columns.dtype, device=columns.device)
    return total.index_add_(0, nearest[0], loss) + gain


def kmedoids(
    data: Tensor,
    weights: Tensor | None,
    candidates: Tensor,
    medoids: Tensor,
    nearest: Tensor,
    distances: Tensor,
    precomputed: bool,
    squared: bool,
    tolerance: float,
) -> Tensor:
    c, n = medoids.shape[0], data.shape[0]
    w = torch.ones_like(distances[0]) if weights is None else weights.to(distances.dtype)
    swaps, last, position = 0, -1, 0
    block = max(1, _BLOCK_ELEMENTS // n)
    while position < candidates.numel():
        index = candidates[position : position + block]
        columns = distance_columns(data, index, precomputed, squared)
        change, leaving = swap_changes(columns, w, nearest, distances, c).min(0)
        least = max(tolerance, _ROUNDING * torch.finfo(columns.dtype).eps) * (w @ distances[0])
        better = ((change < -least) & ~torch.isin(index, medoids)).nonzero()
        if better.numel() == 0:
            position += block
            continue
        found = int(better[0])
        medoids[leaving[found]] = index[found]
        swaps, last = swaps + 1, position + found
        table = distance_columns(data, medoids, precomputed, squared)
        for kept, new in zip((nearest, distances), two_nearest_medoids(table), strict=True):
            kept.copy_(new)
        position += found + 1
    return torch.tensor([swaps, last], device=data.device)
