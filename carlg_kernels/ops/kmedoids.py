"""FasterPAM: swaps of a medoid m with a point x that lower  sum_u w_u min_m D(u, m), taken as soon as they are found.

With d1, d2 the distances of a point to its nearest and second-nearest medoid (n1, n2), the change by the swap (m, x) is

    change(m, x) = sum_u w_u min(D(u,x) - d1_u, 0) + sum_{u: n1_u = m} w_u (clamp(D(u,x), d1_u, d2_u) - d1_u)

so one pass over the column of x gives it for every m. ``candidates`` (row numbers) are tried in order. ``medoids``, ``nearest`` (n1 and n2,
positions in ``medoids``) and ``distances`` (d1 and d2) are updated in place; returned are the number of swaps and the position among the
candidates of the last one swapped in (-1: none). ``data`` is a distance matrix (``precomputed``; row x holds the distances to x) or points
with Euclidean distances, squared or not, which are computed in tiles and never stored. A swap must gain more than ``tolerance`` times the
loss, and more than rounding.
"""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels.reference import kmedoids as reference


def _fake(
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
    return data.new_empty(2, dtype=torch.int64)


register(
    "kmedoids",
    "(Tensor data, Tensor? weights, Tensor candidates, Tensor(a!) medoids, Tensor(b!) nearest, Tensor(c!) distances,"
    " bool precomputed, bool squared, float tolerance) -> Tensor",
    reference=reference.kmedoids,
    fake=_fake,
    triton=False,
)


def kmedoids(
    data: Tensor,
    weights: Tensor | None,
    candidates: Tensor,
    medoids: Tensor,
    nearest: Tensor,
    distances: Tensor,
    precomputed: bool = False,
    squared: bool = False,
    tolerance: float = 0.0,
) -> tuple[int, int]:
    """The number of swaps and the position of the last candidate swapped in."""
    swaps, last = torch.ops.carlg_kernels.kmedoids(
        data, weights, candidates, medoids, nearest, distances, precomputed, squared, tolerance
    ).tolist()
    return swaps, last
