"""Simplified silhouette of an assignment that is known:  a_u = ||z_u - mu_{own_u}||,  b_u = ||z_u - mu_{other_u}||,
s_u = (b_u - a_u) / max(a_u, b_u).  No search: O(nd). Centroids are constants; the gradient with respect to z is that of
``simplified_silhouette`` with centroids of their own.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import assigned_silhouette as reference


def _fake(z: Tensor, centroids: Tensor, own_labels: Tensor, other_labels: Tensor, reduction: str) -> tuple[Tensor, Tensor, Tensor]:
    own = z.new_empty(z.shape[0], dtype=compute_dtype(z.dtype))
    value = torch.empty_like(own) if reduction == "none" else own.new_empty(())
    return value, own, torch.empty_like(own)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, centroids, own_labels, other_labels, ctx.reduction = inputs
    ctx.save_for_backward(z, centroids, own_labels, other_labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    z, centroids, own_labels, other_labels, own, other = ctx.saved_tensors
    dz, _ = call(
        "simplified_silhouette_backward",
        grad,
        z,
        own_labels.int(),
        other_labels.int(),
        own,
        other,
        centroids,
        own_labels.new_empty(0),
        own.new_empty((0, z.shape[1])),
        False,
        ctx.reduction,
        False,
    )
    return dz, None, None, None, None


register(
    "assigned_silhouette",
    "(Tensor z, Tensor centroids, Tensor own_labels, Tensor other_labels, str reduction) -> (Tensor value, Tensor own, Tensor other)",
    reference=reference.assigned_silhouette,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    cpp=(),
    triton=False,
)


def assigned_silhouette(z: Tensor, centroids: Tensor, own_labels: Tensor, other_labels: Tensor, reduction: str) -> Tensor:
    return call("assigned_silhouette", z, centroids, own_labels, other_labels, reduction)[0]  # type: ignore[no-any-return]
