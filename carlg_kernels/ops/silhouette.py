"""Exact silhouette:  a_u = mean_{v in y_u, v != u} D_uv,  b_u = min_{j != y_u} mean_{v in j} D_uv,  D_uv = ||z_u - z_v||.

The op returns ``own`` = a (0 for singletons), ``other`` = b and ``nearest`` = k, the argmin of b (lowest index on ties, empty clusters
left out, -1 where there is none). Outliers (label -1) get 0, 0 and -1 and are in no cluster. Gradient of sum_u p_u a_u + q_u b_u:

    C_u(j) = p_u / (n_{y_u} - 1)  for j = y_u,   q_u / n_{k_u}  for j = k_u,   0 otherwise
    W_uv   = (C_u(y_v) + C_v(y_u)) / D_uv,       0 where D_uv = 0
    dz_u   = sum_v W_uv (z_u - z_v)

so only own blocks and nearest-other rectangles carry weight. ``num_clusters`` = 0 means unknown: it is read from the labels.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import silhouette as reference

Outputs = tuple[Tensor, Tensor, Tensor]


def _fake(z: Tensor, labels: Tensor, num_clusters: int) -> Outputs:
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
    z, labels, ctx.num_clusters = inputs
    ctx.save_for_backward(z, labels, output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_own: Tensor | None, grad_other: Tensor | None, _grad_nearest: Any) -> tuple[Tensor | None, None, None]:
    given = grad_own if grad_own is not None else grad_other
    if given is None:
        return None, None, None
    p = torch.zeros_like(given) if grad_own is None else grad_own
    q = torch.zeros_like(given) if grad_other is None else grad_other
    z, labels, nearest = ctx.saved_tensors
    dz = call("silhouette_backward", p, q, z, labels, nearest, ctx.num_clusters)
    return dz, None, None


register(
    "silhouette",
    "(Tensor z, Tensor labels, int num_clusters) -> (Tensor own, Tensor other, Tensor nearest)",
    reference=reference.silhouette,
    fake=_fake,
    cpp=("cpu", "cuda"),
    triton=False,
    reports=True,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "silhouette_backward",
    "(Tensor grad_own, Tensor grad_other, Tensor z, Tensor labels, Tensor nearest, int num_clusters) -> Tensor",
    reference=reference.silhouette_backward,
    fake=_backward_fake,
    cpp=("cpu", "cuda"),
    triton=False,
    reports=True,
)


def silhouette(z: Tensor, labels: Tensor, num_clusters: int) -> Outputs:
    return call("silhouette", z, labels, num_clusters)  # type: ignore[no-any-return]
