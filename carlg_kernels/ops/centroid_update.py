"""Weighted segment means:  mu_j = sum_{u in j} w_u z_u / m_j,  m_j = sum_{u in j} w_u,  labels -1 left out.

Gradient:  dz_u = (w_u / m_{y_u}) dmu_{y_u},  dw_u = dmu_{y_u}.(z_u - mu_{y_u}) / m_{y_u}.
Empty clusters get the zero vector and mass 0; policies for them belong to the callers.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import centroid_update as reference


def _fake(z: Tensor, labels: Tensor, weights: Tensor | None, num_clusters: int) -> tuple[Tensor, Tensor]:
    means = z.new_empty((num_clusters, z.shape[1]), dtype=compute_dtype(z.dtype))
    mass_dtype = torch.int64 if weights is None else means.dtype
    return means, z.new_empty(num_clusters, dtype=mass_dtype)


def _backward_fake(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    means: Tensor,
    mass: Tensor,
    need_weights: bool,
) -> tuple[Tensor, Tensor]:
    size = z.shape[0] if need_weights else 0
    return z.new_empty(z.shape), z.new_empty(size, dtype=means.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, labels, weights, _ = inputs
    ctx.save_for_backward(z, labels, weights, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _grad_mass: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None, None
    z, labels, weights, means, mass = ctx.saved_tensors
    need_weights = weights is not None and ctx.needs_input_grad[2]
    dz, dweights = call("centroid_update_backward", grad, z, labels, weights, means, mass, need_weights)
    return dz, None, dweights.to(weights.dtype) if need_weights else None, None


register(
    "centroid_update",
    "(Tensor z, Tensor labels, Tensor? weights, int num_clusters) -> (Tensor means, Tensor mass)",
    reference=reference.centroid_update,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "centroid_update_backward",
    "(Tensor grad, Tensor z, Tensor labels, Tensor? weights, Tensor means, Tensor mass, bool need_weights) -> (Tensor dz, Tensor dweights)",
    reference=reference.centroid_update_backward,
    fake=_backward_fake,
)


def centroid_update(z: Tensor, labels: Tensor, weights: Tensor | None, num_clusters: int) -> tuple[Tensor, Tensor]:
    return call("centroid_update", z, labels, weights, num_clusters)  # type: ignore[no-any-return]
