"""mu_j = sum_{u in j} w_u z_u / m_j,  m_j = sum_{u in j} w_u.

Gradient:  dz_u = (w_u / m_{y_u}) dmu_{y_u},  dw_u = dmu_{y_u}.(z_u - mu_{y_u}) / m_{y_u}.

Forward, one launch: a program lists the rows of one cluster from the labels and adds them in row order, in float64.
Backward, one launch: rows gather from their cluster.
"""

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
    member_sum,
    reciprocal,
    reset_counter,
)
from carlg_kernels._typing import compute_dtype


@triton.jit
def member_mass(weights_ptr, stride_w, order_ptr, first, count, BLOCK_N: tl.constexpr):
    """Sum of the weights of the listed rows, in float64."""
    total = tl.zeros((BLOCK_N,), tl.float64)
    for start in range(0, count, BLOCK_N):
        rows, keep = load_members(order_ptr, first, count, start, BLOCK_N)
        total += tl.load(weights_ptr + rows * stride_w, mask=keep, other=0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["n"])
def centroid_update_kernel(
    z_ptr, labels_ptr, weights_ptr, means_ptr, mass_ptr, order_ptr, counter_ptr,
    n, d, stride_zn, stride_zd, stride_l, stride_w, span,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    WEIGHTED: tl.constexpr = weights_ptr is not None
    cluster = tl.program_id(0)
    part = tl.program_id(1)
    reset_counter(counter_ptr, cluster + part == 0)
    order_ptr += part.to(tl.int64) * n
    first, count, _ = list_members(labels_ptr, stride_l, n, cluster, order_ptr, BLOCK_L)
    mass = member_mass(weights_ptr, stride_w, order_ptr, first, count, BLOCK_N) if WEIGHTED else count.to(tl.float64)
    if part == 0:
        tl.store(mass_ptr + cluster, mass.to(mass_ptr.dtype.element_ty))
    for begin in range(part * span, tl.minimum(d, part * span + span), BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        total = member_sum(
            z_ptr, stride_zn, stride_zd, weights_ptr, stride_w, order_ptr, first, count, dims, d,
            WEIGHTED, DTYPE, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        tl.store(means_ptr + cluster.to(tl.int64) * d + dims, (total * reciprocal(mass)).to(DTYPE), mask=dims < d)


@triton.jit(do_not_specialize=["n"])
def centroid_update_backward_kernel(
    grad_ptr, z_ptr, labels_ptr, weights_ptr, means_ptr, mass_ptr, dz_ptr, dweights_ptr,
    n, c, d, stride_gc, stride_gd, stride_zn, stride_zd, stride_l, stride_w,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    label = load_labels(labels_ptr, rows, stride_l, n, c)
    keep = label >= 0
    mass = tl.load(mass_ptr + label, mask=keep, other=0).to(DTYPE)
    scale = tl.where(keep, 1 / tl.where(mass == 0, 1, mass), 0)
    pull = scale
    if weights_ptr is not None:
        pull *= tl.load(weights_ptr + rows * stride_w, mask=keep, other=0.0).to(DTYPE)
    slope = tl.zeros((BLOCK_N,), DTYPE)
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        g = load_tile(grad_ptr, label, stride_gc, keep, dims, stride_gd, d, DTYPE)
        if dweights_ptr is not None:
            x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
            m = load_tile(means_ptr, label, d, keep, dims, 1, d, DTYPE)
            slope += tl.sum(g * (x - m), 1)
        tl.store(
            dz_ptr + rows[:, None] * d + dims[None, :],
            (pull[:, None] * g).to(dz_ptr.dtype.element_ty),
            mask=(rows < n)[:, None] & (dims < d)[None, :],
        )
    if dweights_ptr is not None:
        tl.store(dweights_ptr + rows, scale * slope, mask=rows < n)


def centroid_update(
    z: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    num_clusters: int,
    counter: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``counter``: an int32 that the kernel sets to zero for the launch that follows."""
    common.check_inputs(z, labels=labels, weights=weights)
    n, d = z.shape
    means = torch.empty((num_clusters, d), dtype=compute_dtype(z.dtype), device=z.device)
    mass_dtype = torch.int64 if weights is None else means.dtype
    mass = torch.empty(num_clusters, dtype=mass_dtype, device=z.device)
    tiles = _tiling.cluster_tiles(num_clusters, d)
    order = torch.empty((tiles.parts, n), dtype=torch.int32, device=z.device)
    common.launch(
        centroid_update_kernel,
        (num_clusters, tiles.parts),
        z, labels, weights, means, mass, order, counter,
        n, d, *z.stride(), labels.stride(0), weights.stride(0) if weights is not None else 0, tiles.span,
        BLOCK_L=tiles.block_l, BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return means, mass


def centroid_update_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    means: Tensor,
    mass: Tensor,
    need_weights: bool,
) -> tuple[Tensor, Tensor]:
    n, d = z.shape
    dz = torch.empty((n, d), dtype=z.dtype, device=z.device)
    dweights = torch.empty(n if need_weights else 0, dtype=means.dtype, device=z.device)
    tiles = _tiling.row_tiles(d)
    common.launch(
        centroid_update_backward_kernel,
        (-(-n // tiles.block_n),),
        grad, z, labels, weights, means, mass, dz, dweights if need_weights else None,
        n, means.shape[0], d, *grad.stride(), *z.stride(), labels.stride(0),
        weights.stride(0) if weights is not None else 0,
        BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return dz, dweights
