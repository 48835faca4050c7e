"""Weighted distance sums within clusters:  t_u = sum_{v: y_v = y_u} w_v ||z_u - z_v||,  0 for outliers (label -1).

With one cluster of all points these are the row sums of the whole distance matrix. Gradient of sum_u g_u t_u, w constant:

    W_uv = (g_u w_v + g_v w_u) / D_uv   within a cluster, 0 elsewhere and where D_uv = 0
    dz_u = sum_v W_uv (z_u - z_v)

``num_clusters`` = 0 means unknown: it is read from the labels.
"""

from typing import Any

from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import cluster_distances as reference


def _fake(z: Tensor, labels: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    return z.new_empty((z.shape[0],), dtype=compute_dtype(z.dtype))


def _backward_fake(grad: Tensor, z: Tensor, labels: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    return z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    z, labels, weights, ctx.num_clusters = inputs
    ctx.save_for_backward(z, labels, weights)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    dz = call("cluster_distances_backward", grad, *ctx.saved_tensors, ctx.num_clusters)
    return dz, None, None, None


register(
    "cluster_distances",
    "(Tensor z, Tensor labels, Tensor weights, int num_clusters) -> Tensor",
    reference=reference.cluster_distances,
    fake=_fake,
    triton=False,
    reports=True,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "cluster_distances_backward",
    "(Tensor grad, Tensor z, Tensor labels, Tensor weights, int num_clusters) -> Tensor",
    reference=reference.cluster_distances_backward,
    fake=_backward_fake,
    triton=False,
    reports=True,
)


def cluster_distances(z: Tensor, labels: Tensor, weights: Tensor, num_clusters: int) -> Tensor:
    return call("cluster_distances", z, labels, weights, num_clusters)  # type: ignore[no-any-return]
