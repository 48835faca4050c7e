"""s_u = (b_u - a_u) / max(a_u, b_u),  a_u = ||z_u - mu_{y_u}||,  b_u = min_{k != y_u} ||z_u - mu_k||.

Forward: the means by label where no centroids are given (launch 1), the centroids shifted (launch 2), then rows ranked against
all of them, values summed by the last program (launch 3). Backward: M by cluster, scaled by the upstream gradient (launch 1), then

    dz_u = h_u (p_u (z_u - mu_{y_u}) + q_u (z_u - mu_{k_u})) + M_{y_u} / n_{y_u} (tied)    (launch 2)

with h_u = 1 / max(a_u, b_u), h_u p_u = g (ds/da) / a_u, h_u q_u = g (ds/db) / b_u: the products leave the range of float32 long before dz.
M_j = - sum_{u: y_u=j} h_u p_u (z_u - mu_j) - sum_{u: k_u=j} h_u q_u (z_u - mu_j) is made in the backward: in the forward it would be a
launch more.

A point whose distances are not finite, or whose nearest other centroid cannot be found although there is one, has the value NaN; its b_u is
saved as NaN, and so the backward gives it the gradient NaN.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common
from carlg_kernels._triton.centroid_update import centroid_update
from carlg_kernels._triton.common import (
    count_clusters,
    is_last,
    list_members,
    load_labels,
    load_members,
    load_tile,
    load_vector,
    reciprocal,
    sort_pair,
    two_distances,
    two_nearest,
)
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.common import resolve_num_clusters


@triton.jit
def gradient_weights(own, other, upstream):
    """p, q and h; 0 at zero distances, NaN where a distance is not finite."""
    inner = own <= other
    h = reciprocal(tl.where(inner, other, own))
    ratio = tl.where(inner, own, other) * h
    upstream = tl.where((own < float("inf")) & (other < float("inf")), upstream, float("nan"))
    p = -upstream * reciprocal(own) * tl.where(inner, 1, ratio)
    q = upstream * reciprocal(other) * tl.where(inner, ratio, 1)
    return p, q, h


@triton.jit(do_not_specialize=["n"])
def simplified_silhouette_kernel(
    z_ptr, labels_ptr, centers_ptr, origin_ptr, shifted_ptr, norms_ptr, counts_ptr, value_ptr,
    own_labels_ptr, other_labels_ptr, own_ptr, other_ptr, partial_ptr,
    n, c, d, stride_zn, stride_zd, stride_l, stride_cc, stride_cd,
    SINGLETON_ZERO: tl.constexpr, REDUCTION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = own_ptr.dtype.element_ty
    TIED: tl.constexpr = counts_ptr is not None
    if TIED:
        # The means are contiguous; one scalar register less.
        stride_cc = d
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    near, second = two_nearest(
        z_ptr, stride_zn, stride_zd, origin_ptr, shifted_ptr, norms_ptr, rows, n, c, d,
        DTYPE, PRECISION, BLOCK_N, BLOCK_C, BLOCK_D,
    )  # fmt: skip
    if labels_ptr is None:
        label = near
        rival = second
        keep = rows < n
    else:
        label = load_labels(labels_ptr, rows, stride_l, n, c)
        rival = tl.where(label == near, second, near)
        keep = label >= 0
    own, other = two_distances(
        z_ptr, stride_zn, stride_zd, centers_ptr, stride_cc, stride_cd, rows, n, d, label, rival,
        DTYPE, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    if labels_ptr is None:
        label, own, rival, other = sort_pair(label, own, rival, other)
    found = keep & (rival >= 0)
    own = tl.where(keep, own, 0)
    other = tl.where(found, other, 0)
    # Without another cluster there is no score.
    value = tl.where(found, other - own, 0) * reciprocal(tl.where(own < other, other, own))
    present = c
    if TIED:
        _, present = count_clusters(counts_ptr, c, 512)
        if SINGLETON_ZERO:
            value = tl.where(tl.load(counts_ptr + label, mask=keep, other=0) == 1, 0, value)
    sound = found & (own < float("inf")) & (other < float("inf"))
    broken = keep & (present > 1) & (sound == 0)
    value = tl.where(broken, float("nan"), value)
    other = tl.where(broken, float("nan"), other)
    tl.store(own_labels_ptr + rows, label, mask=rows < n)
    tl.store(other_labels_ptr + rows, tl.where(keep, rival, -1), mask=rows < n)
    tl.store(own_ptr + rows, own, mask=rows < n)
    tl.store(other_ptr + rows, other, mask=rows < n)
    if REDUCTION == "none":
        tl.store(value_ptr + rows, value, mask=rows < n)
    else:
        # Two numbers a program, and before them the counter.
        programs = tl.num_programs(0)
        counter_ptr = partial_ptr.to(tl.pointer_type(tl.int32))
        partial_ptr += 1
        tl.store(partial_ptr + 2 * tl.program_id(0), tl.sum(value.to(tl.float64), 0))
        tl.store(partial_ptr + 2 * tl.program_id(0) + 1, tl.sum(keep.to(tl.float64), 0))
        if is_last(counter_ptr, programs):
            total = tl.zeros((512,), tl.float64)
            scored = tl.zeros((512,), tl.float64)
            for start in range(0, programs, 512):
                index = start + tl.arange(0, 512)
                total += tl.load(partial_ptr + 2 * index, mask=index < programs, other=0.0)
                scored += tl.load(partial_ptr + 2 * index + 1, mask=index < programs, other=0.0)
            result = tl.sum(total, 0)
            if REDUCTION == "mean":
                result *= reciprocal(tl.sum(scored, 0))
            tl.store(value_ptr, result.to(DTYPE))


@triton.jit
def weighted_member_sum(
    z_ptr, stride_zn, stride_zd, own_ptr, other_ptr, grad_ptr, stride_g, order_ptr, first, count, center, dims, d,
    OWN: tl.constexpr, PER_POINT: tl.constexpr, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """sum of h_u p_u (or h_u q_u) times (z_u - center) over the listed rows, in float64. [BLOCK_D]"""
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float64)
    for start in range(0, count, BLOCK_N):
        rows, keep = load_members(order_ptr, first, count, start, BLOCK_N)
        upstream = 1.0
        if PER_POINT:
            upstream = tl.load(grad_ptr + rows * stride_g, mask=keep, other=0.0).to(DTYPE)
        own = tl.load(own_ptr + rows, mask=keep, other=0.0)
        other = tl.load(other_ptr + rows, mask=keep, other=0.0)
        p, q, h = gradient_weights(own, other, upstream)
        weight = p if OWN else q
        x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
        total += (h[:, None] * (weight[:, None] * (x - center[None, :]))).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["n"])
def simplified_silhouette_sums_kernel(
    grad_ptr, z_ptr, own_labels_ptr, other_labels_ptr, own_ptr, other_ptr, centers_ptr, sums_ptr, scale_ptr, order_ptr,
    n, d, stride_g, stride_zn, stride_zd, stride_cc, stride_cd, span,
    REDUCTION: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = own_ptr.dtype.element_ty
    PER_POINT: tl.constexpr = REDUCTION == "none"
    cluster = tl.program_id(0)
    part = tl.program_id(1)
    order_ptr += part.to(tl.int64) * 2 * n
    first, count, scored = list_members(own_labels_ptr, 1, n, cluster, order_ptr, BLOCK_L)
    scale = 1.0
    if REDUCTION != "none":
        scale = tl.load(grad_ptr).to(DTYPE)
        if REDUCTION == "mean":
            scale *= reciprocal(scored.to(DTYPE))
        if cluster + part == 0:
            tl.store(scale_ptr, scale)
    if sums_ptr is not None:
        other_order_ptr = order_ptr + n
        other_first, other_count, _ = list_members(other_labels_ptr, 1, n, cluster, other_order_ptr, BLOCK_L)
        row = cluster.to(tl.int64)
        for begin in range(part * span, tl.minimum(d, part * span + span), BLOCK_D):
            dims = begin + tl.arange(0, BLOCK_D)
            center = load_vector(centers_ptr + row * stride_cc, dims, stride_cd, d, DTYPE)
            total = weighted_member_sum(
                z_ptr, stride_zn, stride_zd, own_ptr, other_ptr, grad_ptr, stride_g, order_ptr, first, count,
                center, dims, d, True, PER_POINT, DTYPE, BLOCK_N, BLOCK_D,
            )  # fmt: skip
            total += weighted_member_sum(
                z_ptr, stride_zn, stride_zd, own_ptr, other_ptr, grad_ptr, stride_g, other_order_ptr, other_first, other_count,
                center, dims, d, False, PER_POINT, DTYPE, BLOCK_N, BLOCK_D,
            )  # fmt: skip
            tl.store(sums_ptr + row * d + dims, (-scale * total).to(DTYPE), mask=dims < d)


@triton.jit(do_not_specialize=["n"])
def simplified_silhouette_backward_kernel(
    grad_ptr, z_ptr, own_labels_ptr, other_labels_ptr, own_ptr, other_ptr, centers_ptr, counts_ptr, sums_ptr, scale_ptr, dz_ptr,
    n, c, d, stride_g, stride_zn, stride_zd, stride_cc, stride_cd,
    PER_POINT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = own_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    label = load_labels(own_labels_ptr, rows, 1, n, c)
    rival = load_labels(other_labels_ptr, rows, 1, n, c)
    keep = label >= 0
    upstream = tl.load(grad_ptr + rows * stride_g, mask=keep, other=0.0).to(DTYPE) if PER_POINT else tl.load(scale_ptr)
    own = tl.load(own_ptr + rows, mask=keep, other=0.0)
    other = tl.load(other_ptr + rows, mask=keep, other=0.0)
    p, q, h = gradient_weights(own, other, upstream)
    if sums_ptr is not None:
        share = reciprocal(tl.load(counts_ptr + label, mask=keep, other=0).to(DTYPE))
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
        m = load_tile(centers_ptr, label, stride_cc, keep, dims, stride_cd, d, DTYPE)
        dz = p[:, None] * (x - m)
        m = load_tile(centers_ptr, rival, stride_cc, rival >= 0, dims, stride_cd, d, DTYPE)
        dz = h[:, None] * (dz + q[:, None] * (x - m))
        if sums_ptr is not None:
            dz += share[:, None] * load_tile(sums_ptr, label, d, keep, dims, 1, d, DTYPE)
        tl.store(
            dz_ptr + rows[:, None] * d + dims[None, :],
            tl.where(keep[:, None], dz, 0).to(dz_ptr.dtype.element_ty),
            mask=(rows < n)[:, None] & (dims < d)[None, :],
        )


def simplified_silhouette(
    z: Tensor,
    labels: Tensor | None,
    centroids: Tensor | None,
    num_clusters: int,
    reduction: str,
    singleton_zero: bool,
    save_sums: bool,
) -> tuple[Tensor, ...]:
    common.check_inputs(z, labels=labels, centroids=centroids)
    n, d = z.shape
    dtype = compute_dtype(z.dtype)
    tied = centroids is None
    c = resolve_num_clusters(labels, num_clusters) if centroids is None else centroids.shape[0]
    tiles = _tiling.score_tiles(dtype, n, c, d)
    programs = -(-n // tiles.block_n)
    partial = torch.empty(1 + 2 * programs, dtype=torch.float64, device=z.device)
    counter = partial[:1].view(torch.int32)
    if centroids is None:
        assert labels is not None
        centers, counts = centroid_update(z, labels, None, c, counter)
    else:
        centers, counts = centroids, None
        if reduction != "none":
            counter.zero_()
    origin, shifted, norms = common.shift(centers, counts)
    own = torch.empty(n, dtype=dtype, device=z.device)
    other = torch.empty_like(own)
    own_labels = torch.empty(n, dtype=torch.int32, device=z.device)
    other_labels = torch.empty_like(own_labels)
    value = torch.empty_like(own) if reduction == "none" else own.new_empty(())
    common.launch(
        simplified_silhouette_kernel,
        (programs,),
        z, labels, centers, origin, shifted, norms, counts, value, own_labels, other_labels, own, other, partial,
        n, c, d, *z.stride(), labels.stride(0) if labels is not None else 0, *centers.stride(),
        SINGLETON_ZERO=singleton_zero, REDUCTION=reduction, PRECISION=_tiling.precision(dtype),
        BLOCK_N=tiles.block_n, BLOCK_C=tiles.block_c, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    sums = own.new_empty((0, d))
    if save_sums:
        unit = torch.ones((), dtype=dtype, device=z.device)
        sums, _ = _sums(unit, z, own_labels, other_labels, own, other, centers, "sum", True)
    known = tied and num_clusters > 0
    means = centers if known else own.new_empty((0, d))
    return (
        value, own_labels, other_labels, own, other, means,
        counts if known else own_labels.new_empty(0, dtype=torch.int64), sums,
    )  # fmt: skip


def _sums(
    grad: Tensor,
    z: Tensor,
    own_labels: Tensor,
    other_labels: Tensor,
    own: Tensor,
    other: Tensor,
    centers: Tensor,
    reduction: str,
    need_sums: bool,
) -> tuple[Tensor, Tensor]:
    """M scaled by the upstream gradient, and that scale (one number, made even where M is not needed)."""
    n, d = z.shape
    c = centers.shape[0]
    tiles = _tiling.cluster_tiles(c, d)
    sums = own.new_empty((c if need_sums else 0, d))
    scale = own.new_empty(1)
    order = torch.empty((tiles.parts, 2, n), dtype=torch.int32, device=z.device)
    common.launch(
        simplified_silhouette_sums_kernel,
        (c, tiles.parts) if need_sums else (1, 1),
        grad, z, own_labels, other_labels, own, other, centers, sums if need_sums else None, scale, order,
        n, d, grad.stride(0) if reduction == "none" else 0, *z.stride(), *centers.stride(), tiles.span,
        REDUCTION=reduction, BLOCK_L=tiles.block_l, BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return sums, scale


def simplified_silhouette_backward(
    grad: Tensor,
    z: Tensor,
    own_labels: Tensor,
    other_labels: Tensor,
    own: Tensor,
    other: Tensor,
    centers: Tensor,
    counts: Tensor,
    sums: Tensor,
    tied: bool,
    reduction: str,
    need_centroids: bool,
) -> tuple[Tensor, Tensor]:
    n, d = z.shape
    if tied and centers.shape[0] == 0:
        c = resolve_num_clusters(own_labels, 0)
        centers, counts = centroid_update(z, own_labels.long(), None, c)
    need_sums = tied or need_centroids
    sums, scale = _sums(grad, z, own_labels, other_labels, own, other, centers, reduction, need_sums)
    dz = torch.empty((n, d), dtype=z.dtype, device=z.device)
    tiles = _tiling.row_tiles(d)
    common.launch(
        simplified_silhouette_backward_kernel,
        (-(-n // tiles.block_n),),
        grad, z, own_labels, other_labels, own, other, centers, counts if tied else None, sums if tied else None, scale, dz,
        n, centers.shape[0], d, grad.stride(0) if reduction == "none" else 0, *z.stride(), *centers.stride(),
        PER_POINT=reduction == "none", BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return dz, sums if need_centroids else own.new_empty((0, d))
