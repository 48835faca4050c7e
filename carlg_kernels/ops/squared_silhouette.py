"""Silhouette parts with D_uv = ||z_u - z_v||^2 + e_u + e_v, in closed form from the cluster means mu_j, without pairs.

    mean_{v in j} D_uv = ||z_u - mu_j||^2 + w_j + e_u,     w_j = mean_{v in j} (||z_v - mu_j||^2 + e_v)
    a_u = (n_j (||z_u - mu_j||^2 + w_j) + (n_j - 2) e_u) / (n_j - 1),  j = y_u
    b_u = min_{j != y_u} ||z_u - mu_j||^2 + w_j + e_u

``excess`` e is absent for the squared Euclidean distance. On unit vectors D = 2 (1 - cos), and e = 1 on zero vectors makes their cosine
distance to everything 1. Gradient of sum_u p_u a_u + q_u b_u, with r_u = p_u n_{y_u} / (n_{y_u} - 1), k_u the argmin, e constant:

    M_j  = - sum_{u: y_u=j} r_u (z_u - mu_j) - sum_{u: k_u=j} q_u (z_u - mu_j)
    V_j  = sum_{u: y_u=j} r_u + sum_{u: k_u=j} q_u
    dz_u = 2 ( r_u (z_u - mu_{y_u}) + q_u (z_u - mu_{k_u}) + (M_{y_u} + V_{y_u} (z_u - mu_{y_u})) / n_{y_u} )

O(ncd) forward, O(nd) backward. Outputs, outliers, singletons and ``num_clusters`` as in silhouette.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import squared_silhouette as reference

Outputs = tuple[Tensor, Tensor, Tensor]


def _fake(z: Tensor, labels: Tensor, excess: Tensor | None, num_clusters: int) -> Outputs:
    own = z.new_empty((z.shape[0],), dtype=compute_dtype(z.dtype))
    return own, torch.empty_like(own), torch.empty_like(own, dtype=torch.int32)


def _backward_fake(
    grad_own: Tensor,
    grad_other: Tensor,
    z: Tensor,
    labels: Tensor,
    nearest: Tensor,
    num_clusters: int,
) -> Tensor:
    return z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    z, labels, _, ctx.num_clusters = inputs
    ctx.save_for_backward(z, labels, output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_own: Tensor | None, grad_other: Tensor | None, _grad_nearest: Any) -> tuple[Tensor | None, None, None, None]:
    given = grad_own if grad_own is not None else grad_other
    if given is None:
        return None, None, None, None
    p = torch.zeros_like(given) if grad_own is None else grad_own
    q = torch.zeros_like(given) if grad_other is None else grad_other
    dz = call("squared_silhouette_backward", p, q, *ctx.saved_tensors, ctx.num_clusters)
    return dz, None, None, None


register(
    "squared_silhouette",
    "(Tensor z, Tensor labels, Tensor? excess, int num_clusters) -> (Tensor own, Tensor other, Tensor nearest)",
    reference=reference.squared_silhouette,
    fake=_fake,
    triton=False,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "squared_silhouette_backward",
    "(Tensor grad_own, Tensor grad_other, Tensor z, Tensor labels, Tensor nearest, int num_clusters) -> Tensor",
    reference=reference.squared_silhouette_backward,
    fake=_backward_fake,
    triton=False,
)


def squared_silhouette(z: Tensor, labels: Tensor, excess: Tensor | None, num_clusters: int) -> Outputs:
    return call("squared_silhouette", z, labels, excess, num_clusters)  # type: ignore[no-any-return]
