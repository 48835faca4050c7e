"""Simplified silhouette:  a_u = ||z_u - mu_{y_u}||,  b_u = min_{k != y_u} ||z_u - mu_k||,  s_u = (b_u - a_u) / max(a_u, b_u).

Gradient of sum_u g_u s_u, with k_u the argmin, p_u = g_u (ds/da) / a_u and q_u = g_u (ds/db) / b_u:

    G_u = p_u (z_u - mu_{y_u}) + q_u (z_u - mu_{k_u})
    M_j = - sum_{u: y_u=j} p_u (z_u - mu_j) - sum_{u: k_u=j} q_u (z_u - mu_j)
    dz_u = G_u                      and dmu_j = M_j   with centroids of their own
    dz_u = G_u + M_{y_u} / n_{y_u}                    with centroids = means of z by label ("tied")

The forward saves O(n) scalars, and for reduction "mean" or "sum" also ``sums`` = M for unit upstream gradient: it is linear in the
upstream scalar, and the rows are in cache. ``num_clusters`` = 0 (tied only) means unknown: the op reads it from the labels, returns no
per-cluster state, and the backward recomputes it.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import simplified_silhouette as reference


def _fake(
    z: Tensor,
    labels: Tensor | None,
    centroids: Tensor | None,
    num_clusters: int,
    reduction: str,
    singleton_zero: bool,
    save_sums: bool,
) -> tuple[Tensor, ...]:
    n, d = z.shape
    tied = centroids is None
    real = z.new_empty((n,), dtype=compute_dtype(z.dtype))
    index = z.new_empty((n,), dtype=torch.int32)
    value = torch.empty_like(real) if reduction == "none" else real.new_empty(())
    state = num_clusters if tied else 0
    rows = num_clusters if save_sums else 0
    return (
        value,
        index,
        torch.empty_like(index),
        real,
        torch.empty_like(real),
        real.new_empty((state, d)),
        real.new_empty((state,), dtype=torch.int64),
        real.new_empty((rows, d)),
    )


def _backward_fake(
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
    rows = centers.shape[0] if need_centroids else 0
    return z.new_empty(z.shape), own.new_empty((rows, z.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, _, centroids, _, ctx.reduction, _, _ = inputs
    _, own_labels, other_labels, own, other, means, counts, sums = output
    ctx.tied = centroids is None
    ctx.save_for_backward(z, own_labels, other_labels, own, other, means if ctx.tied else centroids, counts, sums)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    need_centroids = not ctx.tied and ctx.needs_input_grad[2]
    dz, dcentroids = call("simplified_silhouette_backward", grad, *ctx.saved_tensors, ctx.tied, ctx.reduction, need_centroids)
    return dz, None, dcentroids if need_centroids else None, None, None, None, None


register(
    "simplified_silhouette",
    "(Tensor z, Tensor? labels, Tensor? centroids, int num_clusters, str reduction, bool singleton_zero, bool save_sums)"
    " -> (Tensor value, Tensor own_labels, Tensor other_labels, Tensor own, Tensor other, Tensor means, Tensor counts, Tensor sums)",
    reference=reference.simplified_silhouette,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "simplified_silhouette_backward",
    "(Tensor grad, Tensor z, Tensor own_labels, Tensor other_labels, Tensor own, Tensor other, Tensor centers, Tensor counts,"
    " Tensor sums, bool tied, str reduction, bool need_centroids) -> (Tensor dz, Tensor dcentroids)",
    reference=reference.simplified_silhouette_backward,
    fake=_backward_fake,
)


def simplified_silhouette(
    z: Tensor,
    labels: Tensor | None,
    centroids: Tensor | None,
    num_clusters: int,
    reduction: str,
    singleton_zero: bool,
) -> Tensor:
    """``num_clusters``: the number of centroids, or with labels alone the number of clusters (0: unknown)."""
    wants_grad = torch.is_grad_enabled() and (z.requires_grad or (centroids is not None and centroids.requires_grad))
    # On a GPU the sums would cost the forward a third launch; there the backward makes them.
    save_sums = wants_grad and reduction != "none" and num_clusters > 0 and z.device.type == "cpu"
    arguments = (z, labels, centroids, num_clusters, reduction, singleton_zero, save_sums)
    return call("simplified_silhouette", *arguments)[0]  # type: ignore[no-any-return]
