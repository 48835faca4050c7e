"""k-medoids: starts, and the loop over FasterPAM's swaps."""

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._init import draw_distinct, uniform
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.kmeans_plus_plus import draw
from carlg_kernels.reference.kmedoids import distance_columns, two_nearest_medoids

_CANDIDATES = 1 << 12
_BLOCK_ELEMENTS = 1 << 22


def _column(data: Tensor, precomputed: bool, x: Tensor) -> Tensor:
    """D(u, x) of every u for one point x."""
    real = compute_dtype(data.dtype)
    if precomputed:
        return data[x[0]].to(real)
    return ops.assign.assign(data, data[x].to(real))[1]


def two_nearest(data: Tensor, precomputed: bool, medoids: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (2, n) and distances (2, n) of the nearest and second-nearest medoid of every point."""
    if precomputed:
        return two_nearest_medoids(distance_columns(data, medoids, True))
    first, near, second, far = ops.assign.assign(data, data[medoids].to(compute_dtype(data.dtype)))
    return torch.stack([first, second]), torch.stack([near, far])


def _spread(data: Tensor, precomputed: bool, c: int, generator: torch.Generator) -> Tensor:
    """k-means++ for medoids: each next one is drawn in proportion to its distance from those chosen."""
    chosen = draw_distinct(data.shape[0], 1, None, generator, data.device)
    closest = _column(data, precomputed, chosen)
    for u in uniform(generator, c - 1, 1):
        new = draw(closest.index_fill(0, chosen, 0), u.to(data.device))
        if bool(torch.isin(new, chosen)):
            free = torch.ones_like(closest, dtype=torch.bool).index_fill_(0, chosen, False)
            new = free.nonzero()[0]
        chosen = torch.cat([chosen, new])
        closest = torch.minimum(closest, _column(data, precomputed, new))
    return chosen


def _build(data: Tensor, precomputed: bool, c: int) -> Tensor:
    """PAM's greedy start: each next medoid is the point that lowers the loss most. O(c n^2)."""
    n = data.shape[0]
    everyone = torch.arange(n, device=data.device)
    chosen = everyone[:0]
    closest = torch.full((n,), float("inf"), device=data.device, dtype=compute_dtype(data.dtype))
    for _ in range(c):
        losses = [
            torch.minimum(distance_columns(data, index, precomputed), closest[:, None]).sum(0)
            for index in everyone.split(max(1, _BLOCK_ELEMENTS // n))
        ]
        new = torch.cat(losses).index_fill_(0, chosen, float("inf")).argmin()[None]
        chosen = torch.cat([chosen, new])
        closest = torch.minimum(closest, _column(data, precomputed, new))
    return chosen


def initial_medoids(data: Tensor, precomputed: bool, c: int, init: str, generator: torch.Generator) -> Tensor:
    if init == "random":
        return draw_distinct(data.shape[0], c, None, generator, data.device)
    if init == "build":
        return _build(data, precomputed, c)
    return _spread(data, precomputed, c, generator)


def swap_until_stable(data: Tensor, precomputed: bool, medoids: Tensor, max_iter: int) -> tuple[Tensor, Tensor, Tensor, int, bool]:
    """FasterPAM: rounds over all candidates until n of them in a row bring no swap.

    Returns the medoids, the positions and distances of the two nearest of every point, the number of rounds, and whether it was stable.
    """
    n = data.shape[0]
    medoids = medoids.clone()
    nearest, distances = two_nearest(data, precomputed, medoids)
    tried = 0
    for iteration in range(1, max_iter + 1):
        for candidates in torch.arange(n, device=data.device).split(_CANDIDATES):
            swaps, last = ops.kmedoids.kmedoids(data, None, candidates, medoids, nearest, distances, precomputed)
            size = candidates.numel()
            tried = size - 1 - last if swaps else tried + size
            if tried >= n:
                return medoids, nearest, distances, iteration, True
    return medoids, nearest, distances, max_iter, False
