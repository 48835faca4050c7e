"""Helpers of the reference: row blocks, direct distances, labels."""

from collections.abc import Iterator

import torch
from torch import Tensor

from carlg_kernels._typing import compute_dtype

_BLOCK_ELEMENTS = 1 << 23
_SUM_BLOCK = 1 << 14


def points(z: Tensor) -> Tensor:
    """``z`` in the dtype that it is computed in."""
    return z.to(compute_dtype(z.dtype))


def wide(z: Tensor) -> Tensor:
    """``z`` in float64 where the device has it: sums and differences far from the origin keep their digits."""
    return points(z) if z.device.type == "mps" else z.double()


def row_blocks(n: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK_ELEMENTS // max(width, 1))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def distance(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distance of paired rows, by direct difference."""
    return (x - y).square().sum(-1).sqrt()


def resolve_num_clusters(labels: Tensor, num_clusters: int) -> int:
    """The number of clusters, read from the labels where it is 0."""
    if num_clusters > 0:
        return num_clusters
    return max(int(labels.max()) + 1, 1) if labels.numel() else 1


def unit(x: Tensor) -> Tensor:
    """x / ||x||, and 0 where x = 0."""
    norm = x.square().sum(-1, keepdim=True).sqrt()
    return torch.where(norm == 0, 0, x / norm.clamp(min=torch.finfo(x.dtype).tiny))


def block_sum(values: Tensor) -> Tensor:
    """The sum of a vector, with the same bits for any number of threads and differentiable.

    torch splits the sum of a long vector between its threads, but gives each row of a matrix to one of them.
    """
    n = values.shape[0]
    if torch.compiler.is_compiling() or values.device.type != "cpu" or n <= _SUM_BLOCK:
        return values.sum()
    return torch.nn.functional.pad(values, (0, -n % _SUM_BLOCK)).view(-1, _SUM_BLOCK).sum(1).sum()


def segment_sum(values: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """sum_{u: label_u = j} values_u, labels -1 left out; summed in float64 where the device has it."""
    keep = labels >= 0
    summands = wide(values[keep])
    total = summands.new_zeros((num_clusters, *values.shape[1:]))
    total.index_add_(0, labels[keep].long(), summands)
    return total.to(values.dtype)


def segment_count(labels: Tensor, num_clusters: int) -> Tensor:
    return torch.bincount(labels[labels >= 0].long(), minlength=num_clusters)


def segment_mean(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    counts = segment_count(labels, num_clusters)
    means = segment_sum(wide(z), labels, num_clusters) / counts.clamp(min=1)[:, None]
    return means.to(z.dtype), counts
