"""DB = (1/c) sum_j max_{k != j} (S_j + S_k) / ||mu_j - mu_k||,  S_j = (1/n_j) sum_{u in j} ||z_u - mu_j||.

Forward: statistics by cluster (launch 1), then a program finds the rival k_j of each cluster, the last one adds up (launch 2).
Backward, with D_j = ||mu_j - mu_{k_j}||, push_j = (S_j + S_{k_j}) (mu_j - mu_{k_j}) / D_j^3 and the symbols of ops/davies_bouldin.py

    slope_j  = (g/c) (1/D_j + sum_{i: k_i=j} 1/D_i) / n_j                              (launch 1)
    shared_j = ((g/c) (sum_{i: k_i=j} push_i - push_j) - slope_j E_j) / n_j
    dz_u     = slope_{y_u} e(z_u - mu_{y_u}) + shared_{y_u}                            (launch 2)

A rival at a distance, or with a dispersion, that is not finite wins over all others and makes the value and the gradient NaN.
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
    is_last,
    list_members,
    load_members,
    load_tile,
    load_vector,
    ordered_sum,
    reciprocal,
    square_root,
)
from carlg_kernels.reference.common import resolve_num_clusters


@triton.jit
def distances_to(means_ptr, rows, keep, center, d, DTYPE: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr):
    """||mu_row - mu_center|| of BLOCK_C clusters and one other."""
    norm = tl.zeros((BLOCK_C,), DTYPE)
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        x = load_tile(means_ptr, rows, d, keep, dims, 1, d, DTYPE)
        x -= load_vector(means_ptr + center.to(tl.int64) * d, dims, 1, d, DTYPE)[None, :]
        norm += tl.sum(x * x, 1)
    return square_root(norm)


@triton.jit
def finite_or_nan(x):
    return tl.where(x < float("inf"), x, float("nan"))


@triton.jit
def davies_bouldin_kernel(
    means_ptr, counts_ptr, dispersion_ptr, rivals_ptr, worst_ptr, value_ptr, counter_ptr, c, d,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    cluster = tl.program_id(0)
    dispersion = tl.load(dispersion_ptr + cluster)
    worst = dispersion * 0
    rival = cluster * 0 - 1
    for start in range(0, c, BLOCK_C):
        others = start + tl.arange(0, BLOCK_C)
        valid = (tl.load(counts_ptr + others, mask=others < c, other=0) > 0) & (others != cluster)
        apart = distances_to(means_ptr, others, others < c, cluster, d, DTYPE, BLOCK_C, BLOCK_D)
        spread = dispersion + tl.load(dispersion_ptr + others, mask=valid, other=0.0)
        finite = (apart < float("inf")) & (spread < float("inf"))
        ratio = tl.where(valid, tl.where(finite, spread * reciprocal(apart), float("inf")), 0)
        top, column = tl.max(ratio, 0, return_indices=True)
        rival = tl.where(top > worst, start + column, rival)
        worst = tl.maximum(top, worst)
    present = tl.load(counts_ptr + cluster) > 0
    tl.store(rivals_ptr + cluster, tl.where(present, rival, -1))
    tl.store(worst_ptr + cluster, tl.where(present, finite_or_nan(worst), 0))
    if is_last(counter_ptr, c):
        _, clusters = count_clusters(counts_ptr, c, BLOCK)
        total = ordered_sum(worst_ptr, c, 1, BLOCK) / tl.maximum(clusters, 1).to(tl.float64)
        tl.store(value_ptr, total.to(DTYPE))


@triton.jit
def davies_bouldin_pull_kernel(
    grad_ptr, means_ptr, counts_ptr, dispersion_ptr, rivals_ptr, directions_ptr, slope_ptr, shared_ptr, order_ptr, push_ptr, c, d,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    cluster = tl.program_id(0)
    _, present = count_clusters(counts_ptr, c, BLOCK)
    scale = tl.load(grad_ptr).to(DTYPE) / tl.maximum(present, 1).to(DTYPE)
    share = reciprocal(tl.load(counts_ptr + cluster).to(DTYPE))
    dispersion = tl.load(dispersion_ptr + cluster)
    # A cluster without a rival takes itself: at distance 0 it neither pushes nor is pushed.
    rival = tl.load(rivals_ptr + cluster)
    rival = tl.where(rival >= 0, rival, cluster)
    single = tl.arange(0, BLOCK_C) == 0
    rival_rows = tl.zeros((BLOCK_C,), tl.int32) + rival
    apart = distances_to(means_ptr, rival_rows, single, cluster, d, DTYPE, BLOCK_C, BLOCK_D)
    inverse = tl.sum(tl.where(single, reciprocal(finite_or_nan(apart)), 0), 0)
    both = finite_or_nan(dispersion + tl.load(dispersion_ptr + rival))
    # The cube of a distance is beyond float32 long before the gradient is.
    push = (both * inverse).to(tl.float64) * inverse * inverse

    first, count, _ = list_members(rivals_ptr, 1, c, cluster, order_ptr, BLOCK)
    steps = tl.zeros((BLOCK_C,), tl.float64)
    for start in range(0, count, BLOCK_C):
        rows, keep = load_members(order_ptr, first, count, start, BLOCK_C)
        apart = distances_to(means_ptr, rows, keep, cluster, d, DTYPE, BLOCK_C, BLOCK_D)
        near = tl.where(keep, reciprocal(finite_or_nan(apart)), 0)
        steps += near.to(tl.float64)
        spread = finite_or_nan(dispersion + tl.load(dispersion_ptr + rows, mask=keep, other=0.0))
        index = start + tl.arange(0, BLOCK_C)
        tl.store(push_ptr + first + index, (spread * near).to(tl.float64) * near * near, mask=keep)
    tl.debug_barrier()
    slope = scale * (inverse + tl.sum(steps, 0).to(DTYPE)) * share
    tl.store(slope_ptr + cluster, slope)
    row = cluster.to(tl.int64) * d
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        m = load_vector(means_ptr + row, dims, 1, d, DTYPE)
        total = tl.zeros((BLOCK_C, BLOCK_D), tl.float64)
        for start in range(0, count, BLOCK_C):
            rows, keep = load_members(order_ptr, first, count, start, BLOCK_C)
            index = start + tl.arange(0, BLOCK_C)
            weight = tl.load(push_ptr + first + index, mask=keep, other=0.0)
            x = load_tile(means_ptr, rows, d, keep, dims, 1, d, DTYPE) - m[None, :]
            total += weight[:, None] * x
        other = load_vector(means_ptr + rival.to(tl.int64) * d, dims, 1, d, DTYPE)
        pull = (tl.sum(total, 0) - push * (m - other)).to(DTYPE)
        direction = load_vector(directions_ptr + row, dims, 1, d, DTYPE)
        shared = (scale * pull - slope * direction) * share
        tl.store(shared_ptr + row + dims, shared, mask=dims < d)


def davies_bouldin(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, ...]:
    common.check_inputs(z, labels=labels)
    d = z.shape[1]
    c = resolve_num_clusters(labels, num_clusters)
    counter = torch.empty(1, dtype=torch.int32, device=z.device)
    means, counts, spread, directions = cluster_statistics(
        z, labels, None, c, squared=False, directions=True, average=True, counter=counter
    )
    dispersion = spread.view(c)
    rivals = torch.empty(c, dtype=torch.int32, device=z.device)
    worst, value = means.new_empty(c), means.new_empty(())
    tiles = _tiling.row_tiles(d)
    common.launch(
        davies_bouldin_kernel,
        (c,),
        means, counts, dispersion, rivals, worst, value, counter, c, d,
        BLOCK=1024, BLOCK_C=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    if num_clusters == 0:
        empty = means.new_empty((0, d))
        return value, empty, counts.new_empty(0), means.new_empty(0), rivals.new_empty(0), empty.clone()
    return value, means, counts, dispersion, rivals, directions


def davies_bouldin_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    means: Tensor,
    counts: Tensor,
    dispersion: Tensor,
    rivals: Tensor,
    directions: Tensor,
) -> Tensor:
    if means.shape[0] == 0:
        c = resolve_num_clusters(labels, 0)
        _, means, counts, dispersion, rivals, directions = davies_bouldin(z, labels, c)
    c, d = means.shape
    slope, shared, push = means.new_empty(c), torch.empty_like(means), means.new_empty(c, dtype=torch.float64)
    order = torch.empty(c, dtype=torch.int32, device=z.device)
    tiles = _tiling.row_tiles(d)
    common.launch(
        davies_bouldin_pull_kernel,
        (c,),
        grad, means, counts, dispersion, rivals, directions, slope, shared, order, push, c, d,
        BLOCK=1024, BLOCK_C=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return cluster_gradient(z, labels, means, slope, shared, squared=False)
