"""FasterPAM: swaps of a medoid m with a point x that lower  sum_u min_m D(u, m), taken as soon as they are found.

With d1, d2 the distances of a point to its nearest and second-nearest medoid (n1, n2), the change by the swap (m, x) is

    change(m, x) = sum_u min(D(u,x) - d1_u, 0) + sum_{u: n1_u = m} clamp(D(u,x), d1_u, d2_u) - d1_u

so one pass over the column of x gives it for every m. Candidates ``begin`` .. ``end`` are tried in order. ``medoids``, ``nearest`` (n1 and
n2) and ``distances`` (d1 and d2) are updated in place; returned are the number of swaps and the last candidate swapped in (-1: none).
``data`` is a distance matrix (``precomputed``; row x holds the distances to x) or points under the Euclidean metric, whose distances are
computed in tiles and never stored.
"""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels.reference import kmedoids as reference


def _fake(
    data: Tensor,
    precomputed: bool,
    medoids: Tensor,
    nearest: Tensor,
    distances: Tensor,
    begin: int,
    end: int,
) -> Tensor:
    return data.new_empty(2, dtype=torch.int64)


register(
    "kmedoids",
    "(Tensor data, bool precomputed, Tensor(a!) medoids, Tensor(b!) nearest, Tensor(c!) distances, int begin, int end) -> Tensor",
    reference=reference.kmedoids,
    fake=_fake,
    triton=False,
    cpp=(),
)


def kmedoids(
    data: Tensor,
    precomputed: bool,
    medoids: Tensor,
    nearest: Tensor,
    distances: Tensor,
    begin: int,
    end: int,
) -> Tensor:
    return torch.ops.carlg_kernels.kmedoids(  # type: ignore[no-any-return]
        data, precomputed, medoids, nearest, distances, begin, end
    )
