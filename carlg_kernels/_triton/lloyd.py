"""One step of Lloyd's k-means:  y_u = argmin_j ||z_u - mu_j||,  mu'_j = sum_{u in j} w_u z_u / m_j,  shift = sum_j ||mu'_j - mu_j||^2.

Three launches, no sort, no float atomics: the assignment (two), then one program a cluster that adds its rows in row order; the last
program adds up the shift and sets the flag. Partial sums by row block would be P x c x d numbers to write and read back; this needs n
indices.
The host waits for nothing: a loop reads ``done`` every few iterations, and a step after the last one changes nothing, because a set
flag freezes the centroids on the device.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common
from carlg_kernels._triton.assign import assign
from carlg_kernels._triton.centroid_update import member_mass
from carlg_kernels._triton.common import (
    is_last,
    list_members,
    load_vector,
    member_sum,
    ordered_sum,
    reciprocal,
)
from carlg_kernels._typing import compute_dtype


@triton.jit(do_not_specialize=["n"])
def lloyd_kernel(
    z_ptr, labels_ptr, weights_ptr, centers_ptr, means_ptr, mass_ptr, order_ptr, partial_ptr, shift_ptr, done_ptr, frozen_ptr, counter_ptr,
    n, d, stride_zn, stride_zd, stride_w, stride_cc, stride_cd, span, tolerance,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    DTYPE: tl.constexpr = means_ptr.dtype.element_ty
    WEIGHTED: tl.constexpr = weights_ptr is not None
    cluster = tl.program_id(0)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    frozen = False
    if frozen_ptr is not None:
        frozen = tl.load(frozen_ptr) != 0
    order_ptr += part.to(tl.int64) * n
    first, count, _ = list_members(labels_ptr, 1, n, cluster, order_ptr, BLOCK_L)
    mass = member_mass(weights_ptr, stride_w, order_ptr, first, count, BLOCK_N) if WEIGHTED else count.to(tl.float64)
    if part == 0:
        tl.store(mass_ptr + cluster, mass.to(mass_ptr.dtype.element_ty))
    row = cluster.to(tl.int64)
    moved = tl.zeros((BLOCK_D,), tl.float64)
    for begin in range(part * span, tl.minimum(d, part * span + span), BLOCK_D):
        dims = begin + tl.arange(0, BLOCK_D)
        total = member_sum(
            z_ptr, stride_zn, stride_zd, weights_ptr, stride_w, order_ptr, first, count, dims, d,
            WEIGHTED, DTYPE, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        old = load_vector(centers_ptr + row * stride_cc, dims, stride_cd, d, DTYPE)
        # An empty cluster keeps its centroid.
        new = tl.where((mass > 0) & (frozen == 0), (total * reciprocal(mass)).to(DTYPE), old)
        tl.store(means_ptr + row * d + dims, new, mask=dims < d)
        step = (new - old).to(tl.float64)
        moved += step * step
    tl.store(partial_ptr + row * parts + part, tl.sum(moved, 0))
    programs = tl.num_programs(0) * parts
    if is_last(counter_ptr, programs):
        shift = ordered_sum(partial_ptr, programs, 1, 1024)
        tl.store(shift_ptr, shift.to(DTYPE))
        tl.store(done_ptr, (shift <= tolerance).to(tl.int32))


class LloydStep(NamedTuple):
    centroids: Tensor  # [c, d], means of the points by label; an empty cluster keeps its old row
    mass: Tensor  # [c], int64 sizes, or the sums of the weights
    labels: Tensor  # [n], int64, nearest of the old centroids
    distances: Tensor  # [n], to it
    second_labels: Tensor  # [n], second nearest of the old centroids, -1 with a single one
    second_distances: Tensor  # [n], to it
    shift: Tensor  # scalar, sum of the squared moves of the centroids
    done: Tensor  # scalar int32, 1 where shift <= tolerance


def lloyd_step(
    z: Tensor,
    centroids: Tensor,
    weights: Tensor | None = None,
    tolerance: float = 0.0,
    done: Tensor | None = None,
) -> LloydStep:
    """One step on GPU tensors, without host synchronisation.

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points, any strides and floating dtype.
    centroids : Tensor, shape (c, d)
        In the dtype that z is computed in (float32, or float64 for float64 points); not written to.
    weights : Tensor, shape (n,), optional
    tolerance : float
        ``done`` is set where the sum of squared moves is at most this (scikit-learn's tol times the mean variance).
    done : Tensor, scalar int32, optional
        ``done`` of the step before: where it is 1 the centroids stay as they are, so that a host that reads the flag late loses nothing.
    """
    common.check_inputs(z, weights=weights, centroids=centroids)
    n, d = z.shape
    c, dtype = centroids.shape[0], compute_dtype(z.dtype)
    counter = torch.empty(1, dtype=torch.int32, device=z.device)
    assignment = assign(z, centroids, counter)
    tiles = _tiling.cluster_tiles(c, d)
    means = torch.empty((c, d), dtype=dtype, device=z.device)
    mass = torch.empty(c, dtype=torch.int64 if weights is None else dtype, device=z.device)
    order = torch.empty((tiles.parts, n), dtype=torch.int32, device=z.device)
    partial = torch.empty((c, tiles.parts), dtype=torch.float64, device=z.device)
    shift, flag = means.new_empty(()), order.new_empty(())
    common.launch(
        lloyd_kernel,
        (c, tiles.parts),
        z, assignment[0], weights, centroids, means, mass, order, partial, shift, flag, done, counter,
        n, d, *z.stride(), weights.stride(0) if weights is not None else 0, *centroids.stride(), tiles.span, float(tolerance),
        BLOCK_L=tiles.block_l, BLOCK_N=tiles.block_n, BLOCK_D=tiles.block_d,
        num_warps=tiles.num_warps,
    )  # fmt: skip
    return LloydStep(means, mass, *assignment, shift, flag)


def lloyd(
    z: Tensor,
    weights: Tensor | None,
    centroids: Tensor,
    previous: Tensor,
    origin: Tensor,
    labels: Tensor,
    bounds: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator: one step, with the labels written in place; bounds are not used."""
    step = lloyd_step(z, centroids, weights)
    changed = (step.labels != labels).sum()
    labels.copy_(step.labels)
    empty = (step.mass == 0).sum()
    progress = torch.stack([step.shift.double(), changed.double(), empty.double()])
    return step.centroids, step.mass.double(), progress
