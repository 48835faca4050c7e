"""Helpers of the kernels: loads, ranking against all centroids, members of a cluster, ordered sums; and the one launch function.

No float is ever added atomically. Sums over the points of a cluster are made by one program that lists the cluster's rows in row
order and adds them in float64; sums over programs are made by the last program to finish (an integer counter), in program order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels._typing import compute_dtype
from carlg_kernels._validation import check_points, describe

# The shifted centroids are stored in multiples of these, which every tile of ``_tiling.score_tiles`` divides.
PAD_C = tl.constexpr(64)
PAD_D = tl.constexpr(32)


def check_inputs(z: Tensor, *, labels: Tensor | None = None, weights: Tensor | None = None, centroids: Tensor | None = None) -> None:
    """Shapes, dtypes and devices as the kernels take them for granted: a wrong one would be read out of bounds."""
    check_points(z, least=0)
    (n, d), real = z.shape, compute_dtype(z.dtype)
    for name, tensor, dtype, shape in (
        ("labels", labels, torch.int64, f"({n},)"),
        ("weights", weights, real, f"({n},)"),
        ("centroids", centroids, real, f"(c, {d})"),
    ):
        if tensor is None:
            continue
        fits = tensor.shape == (n,) if tensor is not centroids else tensor.dim() == 2 and tensor.shape[0] > 0 and tensor.shape[1] == d
        if tensor.dtype != dtype or not fits:
            expected = f"{str(dtype).removeprefix('torch.')} of shape {shape}"
            raise (ValueError if tensor.dtype == dtype else TypeError)(f"{name} must be {expected}, got {describe(tensor)}")
        if tensor.device != z.device:
            raise ValueError(f"{name} must be on {z.device} like z, got {tensor.device}")


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int, **options: Any) -> None:
    """Start ``kernel`` on the device of its first tensor argument."""
    device = next(a.device for a in args if isinstance(a, Tensor))
    options.update(num_warps=num_warps, enable_fp_fusion=True)
    if device.type == "cpu":
        kernel[grid](*args, **options)
        return
    with getattr(torch, device.type).device(device):
        kernel[grid](*args, **options)


@triton.jit
def square_root(x):
    # sqrt_rn exists for float32 only, and sqrt of float32 is an approximation.
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def reciprocal(x):
    """1 / x, and 0 where x = 0; NaN stays NaN."""
    return tl.where(x == 0, 0, 1 / tl.where(x == 0, 1, x))


@triton.jit
def load_tile(ptr, rows, stride_row, keep, dims, stride_dim, d, DTYPE: tl.constexpr):
    """ptr[rows, dims] as DTYPE, [len(rows), len(dims)]; 0 where ``keep`` is false or a dimension is beyond ``d``."""
    offsets = rows.to(tl.int64)[:, None] * stride_row + dims.to(tl.int64)[None, :] * stride_dim
    return tl.load(ptr + offsets, mask=keep[:, None] & (dims < d)[None, :], other=0.0).to(DTYPE)


@triton.jit
def load_vector(ptr, dims, stride_dim, d, DTYPE: tl.constexpr):
    return tl.load(ptr + dims.to(tl.int64) * stride_dim, mask=dims < d, other=0.0).to(DTYPE)


@triton.jit
def load_labels(ptr, rows, stride, n, c):
    """Labels of ``rows``; -1 for outliers, for rows beyond ``n`` and for labels that are no cluster."""
    label = tl.load(ptr + rows * stride, mask=rows < n, other=-1).to(tl.int32)
    return tl.where((label >= 0) & (label < c), label, -1)


@triton.jit
def load_present(centers_ptr, stride_cc, stride_cd, counts_ptr, start, c, dims, d, DTYPE: tl.constexpr, BLOCK_C: tl.constexpr):
    """BLOCK_C centroids from ``start`` on, and which of them exist and are not empty (``counts_ptr`` may be None)."""
    clusters = start + tl.arange(0, BLOCK_C)
    keep = clusters < c
    if counts_ptr is not None:
        keep &= tl.load(counts_ptr + clusters, mask=keep, other=0) > 0
    return load_tile(centers_ptr, clusters, stride_cc, keep, dims, stride_cd, d, DTYPE), keep


@triton.jit
def shift_kernel(
    centers_ptr, counts_ptr, origin_ptr, shifted_ptr, norms_ptr, c, d, stride_cc, stride_cd, BLOCK_C: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = origin_ptr.dtype.element_ty
    part = tl.program_id(0)
    width = tl.num_programs(0).to(tl.int64) * PAD_D
    padded = tl.cdiv(c, PAD_C) * PAD_C
    dims = part * PAD_D + tl.arange(0, PAD_D)
    total = tl.zeros((BLOCK_C, PAD_D), tl.float64)
    taken = tl.zeros((BLOCK_C,), tl.int32)
    for start in range(0, c, BLOCK_C):
        m, keep = load_present(centers_ptr, stride_cc, stride_cd, counts_ptr, start, c, dims, d, DTYPE, BLOCK_C)
        total += m.to(tl.float64)
        taken += keep.to(tl.int32)
    present = tl.maximum(tl.sum(taken, 0), 1).to(tl.float64)
    mean = tl.sum(total, 0) / present
    total = tl.zeros((BLOCK_C, PAD_D), tl.float64)
    for start in range(0, c, BLOCK_C):
        m, keep = load_present(centers_ptr, stride_cc, stride_cd, counts_ptr, start, c, dims, d, DTYPE, BLOCK_C)
        total += tl.where(keep[:, None], tl.abs(m.to(tl.float64) - mean[None, :]), 0)
    reach = 2 * tl.sum(total, 0) / present
    total = tl.zeros((BLOCK_C, PAD_D), tl.float64)
    inside = tl.zeros((BLOCK_C, PAD_D), tl.int32)
    for start in range(0, c, BLOCK_C):
        m, keep = load_present(centers_ptr, stride_cc, stride_cd, counts_ptr, start, c, dims, d, DTYPE, BLOCK_C)
        near = keep[:, None] & (tl.abs(m.to(tl.float64) - mean[None, :]) <= reach[None, :])
        total += tl.where(near, m, 0).to(tl.float64)
        inside += near.to(tl.int32)
    trimmed = tl.sum(total, 0) / tl.maximum(tl.sum(inside, 0), 1).to(tl.float64)
    origin = tl.where(reach < float("inf"), trimmed, mean).to(DTYPE)
    tl.store(origin_ptr + dims, origin)
    for start in range(0, padded, BLOCK_C):
        m, keep = load_present(centers_ptr, stride_cc, stride_cd, counts_ptr, start, c, dims, d, DTYPE, BLOCK_C)
        m = tl.where(keep[:, None], m - origin[None, :], 0)
        clusters = start + tl.arange(0, BLOCK_C)
        tl.store(shifted_ptr + clusters.to(tl.int64)[:, None] * width + dims[None, :], m)
        norm = tl.where(keep, tl.sum(m * m, 1), float("inf"))
        tl.store(norms_ptr + part.to(tl.int64) * padded + clusters, norm)


def shift(centers: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """What ``two_nearest`` ranks with: an origin t amid the centroids, m_j = mu_j - t, and ||m_j||^2 by blocks of PAD_D dimensions.

    t is, in every dimension, the mean of the values within twice the mean absolute deviation from the mean, because one far centroid
    would draw the plain mean away from all points. Padding lets a tile of centroids do without masks and aligns it for any d. Padding and
    clusters whose count is 0 have an infinite norm and no share in t. A centroid that is not finite makes all of t so.
    """
    c, d = centers.shape
    parts, padded = -(-d // PAD_D.value), -(-c // PAD_C.value) * PAD_C.value
    width = parts * PAD_D.value
    origin, shifted, norms = (centers.new_empty(shape) for shape in ((width,), (padded, width), (parts, padded)))
    launch(
        shift_kernel,
        (parts,),
        centers, counts, origin, shifted, norms, c, d, *centers.stride(),
        BLOCK_C=PAD_C.value,
        num_warps=4,
    )  # fmt: skip
    return origin, shifted, norms


@triton.jit
def two_nearest(
    z_ptr, stride_zn, stride_zd, origin_ptr, shifted_ptr, norms_ptr, rows, n, c, d,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Indices of the lowest and second-lowest ||m||^2 - 2 (z - t).m, ties to the lower index; the second is -1 where there is none.

    The order is that of ||z - mu||, and rounding errors grow with distances from t, not with distances from 0.
    """
    tl.static_assert(PAD_C % BLOCK_C == 0 and PAD_D % BLOCK_D == 0)
    parts = tl.cdiv(d, PAD_D)
    width = parts * PAD_D
    padded = tl.cdiv(c, PAD_C) * PAD_C
    best = tl.full((BLOCK_N,), float("inf"), DTYPE)
    second = tl.full((BLOCK_N,), float("inf"), DTYPE)
    best_label = tl.zeros((BLOCK_N,), tl.int32)
    second_label = tl.full((BLOCK_N,), -1, tl.int32)
    columns = tl.arange(0, BLOCK_C)
    for start in range(0, c, BLOCK_C):
        clusters = start + columns
        tile_ptr = shifted_ptr + tl.cast(start, tl.int64) * width
        product = tl.zeros((BLOCK_N, BLOCK_C), DTYPE)
        for begin in range(0, d, BLOCK_D):
            dims = begin + tl.arange(0, BLOCK_D)
            x = load_tile(z_ptr, rows, stride_zn, rows < n, dims, stride_zd, d, DTYPE) - tl.load(origin_ptr + dims)[None, :]
            m = tl.load(tile_ptr + columns[:, None] * width + dims[None, :])
            product = tl.dot(x, tl.trans(m), product, input_precision=PRECISION, out_dtype=DTYPE)
        norm = tl.zeros((BLOCK_C,), DTYPE)
        for part in range(0, parts):
            norm += tl.load(norms_ptr + part * padded + clusters)
        score = norm[None, :] - 2 * product  # [BLOCK_N, BLOCK_C]
        # A minimum over NaN depends on the order.
        score = tl.where(score < float("inf"), score, float("inf"))
        low, low_column = tl.min(score, 1, return_indices=True)
        score = tl.where(columns[None, :] == low_column[:, None], float("inf"), score)
        next_low, next_column = tl.min(score, 1, return_indices=True)
        wins = low < best
        # The runner-up of the merged list: the loser of the two firsts, or the second of the winner's side.
        rival = tl.where(wins, best, low)
        rival_label = tl.where(wins, best_label, start + low_column)
        spare = tl.where(wins, next_low, second)
        spare_label = tl.where(wins, start + next_column, second_label)
        # At equal scores the older list holds the lower index.
        takes_spare = tl.where(wins, spare < rival, spare <= rival)
        second = tl.where(takes_spare, spare, rival)
        second_label = tl.where(takes_spare, spare_label, rival_label)
        best = tl.where(wins, low, best)
        best_label = tl.where(wins, start + low_column, best_label)
    return best_label, tl.where(second < float("inf"), second_label, -1)


@triton.jit
def two_distances(
    z_ptr, stride_zn, stride_zd, centers_ptr, stride_cc, stride_cd, rows, n, d, first, second,
    DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """||z - mu_first|| and ||z - mu_second|| by direct difference; infinite where the index is -1."""
    near = tl.zeros((BLOCK_N,), DTYPE)
    far = tl.zeros((BLOCK_N,), DTYPE)
    for begin in range(0, d, BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        x = load_tile(z_ptr, rows, stride_zn, rows < n, dims, stride_zd, d, DTYPE)
        m = load_tile(centers_ptr, first, stride_cc, first >= 0, dims, stride_cd, d, DTYPE)
        near += tl.sum((x - m) * (x - m), 1)
        m = load_tile(centers_ptr, second, stride_cc, second >= 0, dims, stride_cd, d, DTYPE)
        far += tl.sum((x - m) * (x - m), 1)
    near = tl.where(first >= 0, square_root(near), float("inf"))
    far = tl.where(second >= 0, square_root(far), float("inf"))
    return near, far


@triton.jit
def sort_pair(first, near, second, far):
    """The two centroids in the order of their true distances: rounding in the ranking can have swapped them."""
    swap = (far < near) | ((far == near) & (second < first) & (second >= 0))
    return (
        tl.where(swap, second, first),
        tl.where(swap, far, near),
        tl.where(swap, first, second),
        tl.where(swap, near, far),
    )


@triton.jit
def list_members(labels_ptr, stride, n, cluster, order_ptr, BLOCK_L: tl.constexpr):
    """Write the rows of ``cluster``, ascending, to order_ptr[first : first + count]; also returns the number of labels >= 0.

    ``first`` counts the rows of lower clusters, so programs of different clusters share one list of n entries.
    """
    first = 0
    count = 0
    scored = 0
    for start in range(0, n, BLOCK_L):
        rows = start + tl.arange(0, BLOCK_L).to(tl.int64)
        label = tl.load(labels_ptr + rows * stride, mask=rows < n, other=-1).to(tl.int32)
        scored += tl.sum((label >= 0).to(tl.int32), 0)
        first += tl.sum(((label >= 0) & (label < cluster)).to(tl.int32), 0)
        count += tl.sum((label == cluster).to(tl.int32), 0)
    if count > 0:
        filled = first
        for start in range(0, n, BLOCK_L):
            rows = start + tl.arange(0, BLOCK_L).to(tl.int64)
            label = tl.load(labels_ptr + rows * stride, mask=rows < n, other=-1).to(tl.int32)
            hit = (label == cluster).to(tl.int32)
            tl.store(order_ptr + filled + tl.cumsum(hit, 0) - 1, rows.to(tl.int32), mask=hit > 0)
            filled += tl.sum(hit, 0)
    # The list is read back by other threads of this program.
    tl.debug_barrier()
    return first, count, scored


@triton.jit
def load_members(order_ptr, first, count, start, BLOCK_N: tl.constexpr):
    """Rows start .. start + BLOCK_N of the list of a cluster, and which of them exist."""
    index = start + tl.arange(0, BLOCK_N)
    keep = index < count
    return tl.load(order_ptr + first + index, mask=keep, other=0).to(tl.int64), keep


@triton.jit
def member_sum(
    z_ptr, stride_zn, stride_zd, weights_ptr, stride_w, order_ptr, first, count, dims, d,
    WEIGHTED: tl.constexpr, DTYPE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """sum_u w_u z_u over the listed rows, for the dimensions ``dims``, in float64. [BLOCK_D]"""
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float64)
    for start in range(0, count, BLOCK_N):
        rows, keep = load_members(order_ptr, first, count, start, BLOCK_N)
        x = load_tile(z_ptr, rows, stride_zn, keep, dims, stride_zd, d, DTYPE)
        if WEIGHTED:
            x *= tl.load(weights_ptr + rows * stride_w, mask=keep, other=0.0).to(DTYPE)[:, None]
        total += x.to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def ordered_sum(values_ptr, size, stride, BLOCK: tl.constexpr):
    """Sum of ``size`` values in float64, the same for any order of the programs that wrote it."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, size, BLOCK):
        index = start + tl.arange(0, BLOCK)
        total += tl.load(values_ptr + index * stride, mask=index < size, other=0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def count_clusters(counts_ptr, c, BLOCK: tl.constexpr):
    """(points in all clusters, non-empty clusters)."""
    points = tl.zeros((BLOCK,), tl.int64)
    present = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, c, BLOCK):
        index = start + tl.arange(0, BLOCK)
        count = tl.load(counts_ptr + index, mask=index < c, other=0)
        points += count
        present += (count > 0).to(tl.int32)
    return tl.sum(points, 0), tl.sum(present, 0)


@triton.jit
def reset_counter(counter_ptr, chosen):
    """Zero, by one chosen program, the counter of the launch that follows on the stream (``counter_ptr`` may be None)."""
    if counter_ptr is not None:
        tl.store(counter_ptr, 0, mask=chosen)


@triton.jit
def is_last(counter_ptr, programs):
    """True in the program that finishes last; it then sees everything the others stored before their call."""
    tl.debug_barrier()
    return tl.atomic_add(counter_ptr, 1, sem="acq_rel") == programs - 1
