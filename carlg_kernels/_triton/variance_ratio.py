"""V = kappa B / W,  kappa = (N - c) / (c - 1),  B = sum_j n_j ||m_j - mu||^2,  W = sum_u ||z_u - m_{y_u}||^2; "euclidean": without squares.

Forward: statistics by cluster (launch 1), then one program adds them up (launch 2).
Backward: with o_j = m_j - mu (or its direction), pull = sum_j n_j o_j / N and k = factor g kappa / W

    shared_j = k ([tied] o_j - pull + [tied, euclidean] (B/W) E_j / n_j),  slope = -k B/W,  dm_j = k (n_j o_j + (B/W) E_j)    (launch 1)
    dz_u = slope (z_u - m_{y_u}) (or its direction) + shared_{y_u}                                                           (launch 2)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common
from carlg_kernels._triton.clusters import cluster_gradient, cluster_statistics
from carlg_kernels._triton.common import (
    count_clusters,
    load_tile,
    load_vector,
    ordered_sum,
    reciprocal,
    square_root,
)
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.common import resolve_num_clusters


@triton.jit
def kappa(points, present):
    return (points - present).to(tl.float64) / tl.maximum(present - 1, 1).to(tl.float64)


@triton.jit
def outward_norm(
    centers_ptr, stride_cc, stride_cd, grand_ptr, clusters, c, d,
    DTYPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """||m_j - mu||^2 of BLOCK_C clusters."""
    norm = tl.zeros((BLOCK_C,), DTYPE)
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        m = load_tile(centers_ptr, clusters, stride_cc, clusters < c, dims, stride_cd, d, DTYPE)
        m -= load_vector(grand_ptr, dims, 1, d, DTYPE)[None, :]
        norm += tl.sum(m * m, 1)
    return norm


@triton.jit(do_not_specialize=["spreads"])
def variance_ratio_kernel(
    centers_ptr, means_ptr, counts_ptr, spread_ptr, value_ptr, grand_ptr, scatter_ptr, c, d, spreads, stride_cc, stride_cd, epsilon,
    SQUARED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = value_ptr.dtype.element_ty
    points, present = count_clusters(counts_ptr, c, BLOCK)
    share = reciprocal(points.to(tl.float64))
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        total = tl.zeros((BLOCK_C, BLOCK_D), tl.float64)
        for start in range(0, c, BLOCK_C):
            clusters = start + tl.arange(0, BLOCK_C)
            count = tl.load(counts_ptr + clusters, mask=clusters < c, other=0).to(tl.float64)
            m = load_tile(means_ptr, clusters, d, clusters < c, dims, 1, d, DTYPE)
            total += count[:, None] * m.to(tl.float64)
        tl.store(grand_ptr + dims, (tl.sum(total, 0) * share).to(DTYPE), mask=dims < d)
    # The grand mean is read back by other threads.
    tl.debug_barrier()
    sums = tl.zeros((BLOCK_C,), tl.float64)
    for start in range(0, c, BLOCK_C):
        clusters = start + tl.arange(0, BLOCK_C)
        count = tl.load(counts_ptr + clusters, mask=clusters < c, other=0).to(tl.float64)
        norm = outward_norm(centers_ptr, stride_cc, stride_cd, grand_ptr, clusters, c, d, DTYPE, BLOCK_C, BLOCK_D)
        sums += count * (norm if SQUARED else square_root(norm)).to(tl.float64)
    between = tl.sum(sums, 0)
    within = ordered_sum(spread_ptr, spreads, 1, BLOCK)
    floor = epsilon * (between + within)
    safe = tl.where(within > 0, within, tl.where(floor > 0, floor, 1.0))
    tl.store(value_ptr, (kappa(points, present) * between / safe).to(DTYPE))
    tl.store(scatter_ptr, between.to(DTYPE))
    tl.store(scatter_ptr + 1, within.to(DTYPE))


@triton.jit
def variance_ratio_pull_kernel(
    grad_ptr, centers_ptr, counts_ptr, grand_ptr, scatter_ptr, directions_ptr, slope_ptr, shared_ptr, dcentroids_ptr,
    c, d, stride_cc, stride_cd,
    TIED: tl.constexpr, SQUARED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = shared_ptr.dtype.element_ty
    points, present = count_clusters(counts_ptr, c, BLOCK)
    between = tl.load(scatter_ptr)
    inverse = reciprocal(tl.load(scatter_ptr + 1))
    ratio = between * inverse
    factor = tl.load(grad_ptr).to(DTYPE) * kappa(points, present).to(DTYPE) * inverse
    if SQUARED:
        factor *= 2
    tile = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    grand = load_vector(grand_ptr, tile, 1, d, DTYPE)
    total = tl.zeros((BLOCK_C, BLOCK_D), tl.float64)
    for start in range(0, c, BLOCK_C):
        clusters = start + tl.arange(0, BLOCK_C)
        count = tl.load(counts_ptr + clusters, mask=clusters < c, other=0).to(DTYPE)
        outward = load_tile(centers_ptr, clusters, stride_cc, clusters < c, tile, stride_cd, d, DTYPE) - grand[None, :]
        if not SQUARED:
            norm = outward_norm(centers_ptr, stride_cc, stride_cd, grand_ptr, clusters, c, d, DTYPE, BLOCK_C, BLOCK_D)
            outward *= reciprocal(square_root(norm))[:, None]
        total += (count[:, None] * outward).to(tl.float64)
    pull = (tl.sum(total, 0) * reciprocal(points.to(tl.float64))).to(DTYPE)
    for start in range(0, c, BLOCK_C):
        clusters = start + tl.arange(0, BLOCK_C)
        mask = (clusters < c)[:, None] & (tile < d)[None, :]
        offsets = clusters.to(tl.int64)[:, None] * d + tile[None, :]
        count = tl.load(counts_ptr + clusters, mask=clusters < c, other=0).to(DTYPE)
        outward = load_tile(centers_ptr, clusters, stride_cc, clusters < c, tile, stride_cd, d, DTYPE) - grand[None, :]
        if not SQUARED:
            norm = outward_norm(centers_ptr, stride_cc, stride_cd, grand_ptr, clusters, c, d, DTYPE, BLOCK_C, BLOCK_D)
            outward *= reciprocal(square_root(norm))[:, None]
        shared = -pull[None, :] + tl.zeros((BLOCK_C, BLOCK_D), DTYPE)
        if TIED:
            shared += outward
            if not SQUARED:
                direction = tl.load(directions_ptr + offsets, mask=mask, other=0.0)
                shared += ratio * direction * reciprocal(count)[:, None]
        tl.store(shared_ptr + offsets, factor * shared, mask=mask)
        if dcentroids_ptr is not None:
            direction = tl.load(directions_ptr + offsets, mask=mask, other=0.0)
            own = factor * (count[:, None] * outward + ratio * direction)
            tl.store(dcentroids_ptr + offsets, own, mask=mask)
        if tl.program_id(0) == 0:
            tl.store(slope_ptr + clusters, tl.zeros((BLOCK_C,), DTYPE) - factor * ratio, mask=clusters < c)


def variance_ratio(z: Tensor, labels: Tensor, centroids: Tensor | None, num_clusters: int, distance: str) -> tuple[Tensor, ...]:
    common.check_inputs(z, labels=labels, centroids=centroids)
    d = z.shape[1]
    dtype = compute_dtype(z.dtype)
    squared = distance == "sqeuclidean"
    c = resolve_num_clusters(labels, num_clusters) if centroids is None else centroids.shape[0]
    means, counts, spread, directions = cluster_statistics(
        z, labels, centroids, c, squared=squared, directions=not (centroids is None and squared)
    )
    centers = means if centroids is None else centroids
    value, grand_mean, scatter = means.new_empty(()), means.new_empty(d), means.new_empty(2)
    tiles = _tiling.sum_tiles(d)
    common.launch(
        variance_ratio_kernel,
        (1,),
        centers, means, counts, spread, value, grand_mean, scatter, c, d, spread.numel(), *centers.stride(), torch.finfo(dtype).eps,
        SQUARED=squared, BLOCK=1024, BLOCK_C=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    empty = means.new_empty((0, d))
    if num_clusters == 0:
        return value, empty, counts.new_empty(0), grand_mean, scatter, empty.clone()
    return value, means if centroids is None else empty, counts, grand_mean, scatter, directions


def variance_ratio_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    centers: Tensor,
    counts: Tensor,
    grand_mean: Tensor,
    scatter: Tensor,
    directions: Tensor,
    tied: bool,
    distance: str,
    need_centroids: bool,
) -> tuple[Tensor, Tensor]:
    squared = distance == "sqeuclidean"
    d = z.shape[1]
    if counts.shape[0] == 0:
        c = resolve_num_clusters(labels, centers.shape[0])
        means, counts, _, directions = cluster_statistics(
            z, labels, None if tied else centers, c, squared=squared, directions=not (tied and squared)
        )
        centers = means if tied else centers
    c = centers.shape[0]
    slope, shared = grand_mean.new_empty(c), grand_mean.new_empty((c, d))
    dcentroids = grand_mean.new_empty((c if need_centroids else 0, d))
    tiles = _tiling.row_tiles(min(d, 32))
    common.launch(
        variance_ratio_pull_kernel,
        (-(-d // tiles.block_d),),
        grad, centers, counts, grand_mean, scatter, directions, slope, shared, dcentroids if need_centroids else None,
        c, d, *centers.stride(),
        TIED=tied, SQUARED=squared, BLOCK=1024, BLOCK_C=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return cluster_gradient(z, labels, centers, slope, shared, squared=squared), dcentroids
