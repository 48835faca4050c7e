"""What the cluster indices share: statistics by cluster, and the gradient that rows gather from their cluster.

    cluster_statistics:  mu_j, n_j, with m_j the mean mu_j or a given centroid
                         spread_j = sum_{u in j} ||z_u - m_j||^2 (or unsquared),  E_j = sum_{u in j} (z_u - m_j) (or e(z_u - m_j))
    cluster_gradient:    dz_u = slope_{y_u} (z_u - m_{y_u}) (or e(z_u - m_{y_u})) + shared_{y_u}

A statistics program owns one cluster: it lists the rows, adds them for the mean, and reads them again for the rest.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common
from carlg_kernels._triton.common import (
    list_members,
    load_labels,
    load_members,
    load_tile,
    load_vector,
    member_sum,
    reciprocal,
    reset_counter,
    square_root,
)
from carlg_kernels._typing import compute_dtype


@triton.jit(do_not_specialize=["n"])
def cluster_statistics_kernel(
    z_ptr, labels_ptr, centers_ptr, means_ptr, counts_ptr, spread_ptr, directions_ptr, order_ptr, inverse_ptr, counter_ptr,
    n, d, stride_zn, stride_zd, stride_l, stride_cc, stride_cd, span,
    SQUARED: tl.constexpr, AVERAGE: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    cluster = tl.program_id(0)
    part = tl.program_id(1)
    reset_counter(counter_ptr, cluster + part == 0)
    order_ptr += part.to(tl.int64) * n
    first, count, _ = list_members(labels_ptr, stride_l, n, cluster, order_ptr, BLOCK_L)
    if part == 0:
        tl.store(counts_ptr + cluster, count.to(tl.int64))
    row = cluster.to(tl.int64)
    begin_part = part * span
    end_part = tl.minimum(d, begin_part + span)
    share = reciprocal(count.to(tl.float64))
    for begin in range(begin_part, end_part, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        total = member_sum(z_ptr, stride_zn, stride_zd, None, 0, order_ptr, first, count, dims, d, False, DTYPE, BLOCK_N, BLOCK_D)
        tl.store(means_ptr + row * d + dims, (total * share).to(DTYPE), mask=dims < d)
    if centers_ptr is None:
        # The mean is read back by other threads of this program.
        tl.debug_barrier()
        center_ptr = means_ptr + row * d
    else:
        center_ptr = centers_ptr + row * stride_cc
    spread = tl.zeros((BLOCK_N,), tl.float64)
    if not SQUARED:
        # Unit vectors need the norm of the whole row first.
        for start in range(0, count, BLOCK_N):
            rows, keep = load_members(order_ptr, first, count, start, BLOCK_N)
            norm = tl.zeros((BLOCK_N,), DTYPE)
            for begin in range(0, d, BLOCK_D):
                dims = begin + tl.arange(0, BLOCK_D)
                x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
                x -= load_vector(center_ptr, dims, stride_cd, d, DTYPE)[None, :]
                norm += tl.sum(x * x, 1)
            norm = tl.where(keep, square_root(norm), 0)
            spread += norm.to(tl.float64)
            index = start + tl.arange(0, BLOCK_N)
            tl.store(inverse_ptr + first + index, reciprocal(norm), mask=keep)
        tl.debug_barrier()
    for begin in range(begin_part, end_part, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        m = load_vector(center_ptr, dims, stride_cd, d, DTYPE)
        direction = tl.zeros((BLOCK_N, BLOCK_D), tl.float64)
        for start in range(0, count, BLOCK_N):
            rows, keep = load_members(order_ptr, first, count, start, BLOCK_N)
            x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
            x = tl.where(keep[:, None], x - m[None, :], 0)
            if SQUARED:
                spread += tl.sum((x * x).to(tl.float64), 1)
            else:
                index = start + tl.arange(0, BLOCK_N)
                x *= tl.load(inverse_ptr + first + index, mask=keep, other=0.0)[:, None]
            if directions_ptr is not None:
                direction += x.to(tl.float64)
        if directions_ptr is not None:
            tl.store(directions_ptr + row * d + dims, tl.sum(direction, 0).to(DTYPE), mask=dims < d)
    result = tl.sum(spread, 0)
    if AVERAGE:
        result *= share
    tl.store(spread_ptr + row * tl.num_programs(1) + part, result.to(spread_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["n"])
def cluster_gradient_kernel(
    z_ptr, labels_ptr, centers_ptr, slope_ptr, shared_ptr, dz_ptr, n, c, d, stride_zn, stride_zd, stride_l, stride_cc, stride_cd,
    SQUARED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = shared_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    label = load_labels(labels_ptr, rows, stride_l, n, c)
    keep = label >= 0
    slope = tl.load(slope_ptr + label, mask=keep, other=0.0)
    inverse = tl.full((BLOCK_N,), 1, DTYPE)
    if not SQUARED:
        norm = tl.zeros((BLOCK_N,), DTYPE)
        for begin in range(0, d, BLOCK_D):
            dims = begin + tl.arange(0, BLOCK_D)
            x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
            x -= load_tile(centers_ptr, label, stride_cc, keep, dims, stride_cd, d, DTYPE)
            norm += tl.sum(x * x, 1)
        inverse = reciprocal(square_root(norm))
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
        x -= load_tile(centers_ptr, label, stride_cc, keep, dims, stride_cd, d, DTYPE)
        dz = slope[:, None] * (x * inverse[:, None]) + load_tile(shared_ptr, label, d, keep, dims, 1, d, DTYPE)
        tl.store(
            dz_ptr + rows[:, None] * d + dims[None, :],
            dz.to(dz_ptr.dtype.element_ty),
            mask=(rows < n)[:, None] & (dims < d)[None, :],
        )


class Statistics(NamedTuple):
    means: Tensor  # [c, d]
    counts: Tensor  # [c], int64
    spread: Tensor  # [c, parts]
    directions: Tensor  # [c, d], or [0, d] where not asked for


def cluster_statistics(
    z: Tensor,
    labels: Tensor,
    centroids: Tensor | None,
    num_clusters: int,
    *,
    squared: bool,
    directions: bool,
    average: bool = False,
    counter: Tensor | None = None,
) -> Statistics:
    """``average``: the spread is divided by the size of the cluster; ``counter``: an int32 set to zero for the launch that follows."""
    n, d = z.shape
    dtype = compute_dtype(z.dtype)
    tiles = _tiling.cluster_tiles(num_clusters, d, whole_rows=not squared)
    means = torch.empty((num_clusters, d), dtype=dtype, device=z.device)
    counts = torch.empty(num_clusters, dtype=torch.int64, device=z.device)
    spread = torch.empty((num_clusters, tiles.parts), dtype=dtype if average else torch.float64, device=z.device)
    sums = means.new_empty((num_clusters if directions else 0, d))
    order = torch.empty((tiles.parts, n), dtype=torch.int32, device=z.device)
    inverse = means.new_empty(0 if squared else n)
    common.launch(
        cluster_statistics_kernel,
        (num_clusters, tiles.parts),
        z, labels, centroids, means, counts, spread, sums if directions else None, order, inverse, counter,
        n, d, *z.stride(), labels.stride(0), *(means if centroids is None else centroids).stride(), tiles.span,
        SQUARED=squared, AVERAGE=average, BLOCK_L=tiles.block_l, BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return Statistics(means, counts, spread, sums)


def cluster_gradient(z: Tensor, labels: Tensor, centers: Tensor, slope: Tensor, shared: Tensor, *, squared: bool) -> Tensor:
    """dz of the formula; ``slope`` [c], ``shared`` [c, d]. 0 for outliers."""
    n, d = z.shape
    dz = torch.empty((n, d), dtype=z.dtype, device=z.device)
    tiles = _tiling.row_tiles(d)
    common.launch(
        cluster_gradient_kernel,
        (-(-n // tiles.block_n),),
        z, labels, centers, slope, shared, dz,
        n, centers.shape[0], d, *z.stride(), labels.stride(0), *centers.stride(),
        SQUARED=squared, BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return dz
