"""FasterPAM's eager swaps, a block of candidates at a time."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import points
from carlg_kernels.reference.kmeans_plus_plus import squared_distances

_BLOCK_ELEMENTS = 1 << 22


def distance_columns(data: Tensor, precomputed: bool, index: Tensor) -> Tensor:
    """D(u, x) for the points x of ``index``, shape (n, len(index)), in the compute dtype."""
    x = points(data)
    return x[index].T if precomputed else squared_distances(x, x[index]).sqrt()


def two_nearest_medoids(table: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and distances of the two nearest medoids, each of shape (2, n); with one medoid the second is -1 at infinity."""
    near, first = table.min(1)
    rest = table.scatter(1, first[:, None], float("inf"))
    far, second = rest.min(1)
    second = torch.where(far < float("inf"), second, -1)
    return torch.stack([first, second]), torch.stack([near, far])


def swap_changes(columns: Tensor, nearest: Tensor, distances: Tensor, c: int) -> Tensor:
    """change(m, x) for every medoid m (rows) and candidate x (columns)."""
    near, far = distances[0][:, None], distances[1][:, None]
    gain = (columns - near).clamp(max=0).sum(0)
    loss = columns.clamp(near, far) - near
    total = torch.zeros((c, columns.shape[1]), dtype=columns.dtype, device=columns.device)
    return total.index_add_(0, nearest[0], loss) + gain


def kmedoids(
    data: Tensor,
    precomputed: bool,
    medoids: Tensor,
    nearest: Tensor,
    distances: Tensor,
    begin: int,
    end: int,
) -> Tensor:
    c, n = medoids.shape[0], data.shape[0]
    swaps, last = 0, -1
    block = max(1, _BLOCK_ELEMENTS // n)
    for start in range(begin, end, block):
        index = torch.arange(start, min(start + block, end), device=data.device)
        columns = distance_columns(data, precomputed, index)
        position = 0
        while position < index.numel():
            rest = columns[:, position:]
            change, leaving = swap_changes(rest, nearest, distances, c).min(0)
            taken = torch.isin(index[position:], medoids)
            scale = torch.finfo(columns.dtype).eps * n**0.5 * distances[0].sum()
            better = ((change < -scale) & ~taken).nonzero()
            if better.numel() == 0:
                break
            found = position + int(better[0])
            medoids[leaving[found - position]] = index[found]
            swaps, last = swaps + 1, int(index[found])
            first_two, lengths = two_nearest_medoids(distance_columns(data, precomputed, medoids))
            nearest.copy_(first_two)
            distances.copy_(lengths)
            position = found + 1
    return torch.tensor([swaps, last], device=data.device)
