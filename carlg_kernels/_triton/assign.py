"""label_u = argmin_j ||z_u - mu_j|| and the runner-up; both distances by direct difference.

Ranked by ||m_j||^2 - 2 (z_u - t).m_j with m_j = mu_j - t and t amid the centroids, both made by launch 1. In launch 2 a program ranks
BLOCK_N rows against all centroids, BLOCK_C at a time, with split-D products.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common
from carlg_kernels._triton.common import reset_counter, sort_pair, two_distances, two_nearest
from carlg_kernels._typing import compute_dtype


@triton.jit(do_not_specialize=["n"])
def assign_kernel(
    z_ptr, centers_ptr, origin_ptr, shifted_ptr, norms_ptr,
    labels_ptr, distances_ptr, second_labels_ptr, second_distances_ptr, counter_ptr,
    n, c, d, stride_zn, stride_zd, stride_cc, stride_cd,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = distances_ptr.dtype.element_ty
    program = tl.program_id(0)
    reset_counter(counter_ptr, program == 0)
    rows = program.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    label, second = two_nearest(
        z_ptr, stride_zn, stride_zd, origin_ptr, shifted_ptr, norms_ptr, rows, n, c, d,
        DTYPE, PRECISION, BLOCK_N, BLOCK_C, BLOCK_D,
    )  # fmt: skip
    near, far = two_distances(
        z_ptr, stride_zn, stride_zd, centers_ptr, stride_cc, stride_cd, rows, n, d, label, second,
        DTYPE, BLOCK_N, BLOCK_D,
    )  # fmt: skip
    label, near, second, far = sort_pair(label, near, second, far)
    tl.store(labels_ptr + rows, label.to(tl.int64), mask=rows < n)
    tl.store(distances_ptr + rows, near, mask=rows < n)
    tl.store(second_labels_ptr + rows, second.to(tl.int64), mask=rows < n)
    tl.store(second_distances_ptr + rows, far, mask=rows < n)


def assign(z: Tensor, centroids: Tensor, counter: Tensor | None = None) -> tuple[Tensor, ...]:
    """``counter``: an int32 that the kernel sets to zero for the launch that follows."""
    common.check_inputs(z, centroids=centroids)
    n, d = z.shape
    c, dtype = centroids.shape[0], compute_dtype(z.dtype)
    labels = torch.empty(n, dtype=torch.int64, device=z.device)
    distances = torch.empty(n, dtype=dtype, device=z.device)
    second_labels, second_distances = torch.empty_like(labels), torch.empty_like(distances)
    origin, shifted, norms = common.shift(centroids)
    tiles = _tiling.score_tiles(dtype, n, c, d)
    common.launch(
        assign_kernel,
        (-(-n // tiles.block_n),),
        z, centroids, origin, shifted, norms, labels, distances, second_labels, second_distances, counter,
        n, c, d, *z.stride(), *centroids.stride(),
        PRECISION=_tiling.precision(dtype),
        BLOCK_N=tiles.block_n, BLOCK_C=tiles.block_c, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return labels, distances, second_labels, second_distances
