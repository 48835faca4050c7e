"""Variance ratio (Calinski-Harabasz):  V = kappa B / W,  kappa = (N - c) / (c - 1),  c non-empty clusters, N scored points.

"sqeuclidean":  B = sum_j n_j ||mu_j - mu||^2,  W = sum_u ||z_u - mu_{y_u}||^2.  "euclidean": the same without squares.
With mu_j the means of z by label ("tied"), e(x) = x / ||x||, f_j = e(mu_j - mu), e_u = e(z_u - mu_{y_u}), E_j = sum_{u in j} e_u:

    squared:    dB/dz_u = 2 (mu_{y_u} - mu)                dW/dz_u = 2 (z_u - mu_{y_u})
    unsquared:  dB/dz_u = f_{y_u} - (1/N) sum_j n_j f_j    dW/dz_u = e_u - E_{y_u} / n_{y_u}

With given centroids m_j and mu = mean of z:

    squared:    dB/dz_u = -(2/N) sum_j n_j (m_j - mu)   dB/dm_j = 2 n_j (m_j - mu)   dW/dz_u = 2 (z_u - m_{y_u})   dW/dm_j = -2 E_j
    unsquared:  dB/dz_u = -(1/N) sum_j n_j f_j          dB/dm_j = n_j f_j            dW/dz_u = e_u                 dW/dm_j = -E_j

where E_j = sum_{u in j} (z_u - m_j) in the squared case. dV = (kappa / W) (dB - (B / W) dW). Where W is zero it is replaced by
eps (B + W) and the gradient is zero. ``directions`` holds E (empty in the tied squared case, which needs none).
``num_clusters`` = 0 (tied only) means unknown, as in simplified_silhouette.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import variance_ratio as reference


def _fake(z: Tensor, labels: Tensor, centroids: Tensor | None, num_clusters: int, distance: str) -> tuple[Tensor, ...]:
    d = z.shape[1]
    tied = centroids is None
    grand_mean = z.new_empty((d,), dtype=compute_dtype(z.dtype))
    directions = 0 if tied and distance == "sqeuclidean" else num_clusters
    return (
        grand_mean.new_empty(()),
        grand_mean.new_empty((num_clusters if tied else 0, d)),
        grand_mean.new_empty((num_clusters,), dtype=torch.int64),
        grand_mean,
        grand_mean.new_empty((2,)),
        grand_mean.new_empty((directions, d)),
    )


def _backward_fake(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    centers: Tensor,
    counts: Tensor,
    grand_mean: Tensor,
    scatter: Tensor,
    directions: Tensor,
    tied: bool,
    distance: str,
    need_centroids: bool,
) -> tuple[Tensor, Tensor]:
    rows = centers.shape[0] if need_centroids else 0
    return z.new_empty(z.shape), grand_mean.new_empty((rows, z.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, labels, centroids, _, ctx.distance = inputs
    _, means, counts, grand_mean, scatter, directions = output
    ctx.tied = centroids is None
    ctx.save_for_backward(z, labels, means if ctx.tied else centroids, counts, grand_mean, scatter, directions)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    need_centroids = not ctx.tied and ctx.needs_input_grad[2]
    dz, dcentroids = call("variance_ratio_backward", grad, *ctx.saved_tensors, ctx.tied, ctx.distance, need_centroids)
    return dz, None, dcentroids if need_centroids else None, None, None


register(
    "variance_ratio",
    "(Tensor z, Tensor labels, Tensor? centroids, int num_clusters, str distance)"
    " -> (Tensor value, Tensor means, Tensor counts, Tensor grand_mean, Tensor scatter, Tensor directions)",
    reference=reference.variance_ratio,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "variance_ratio_backward",
    "(Tensor grad, Tensor z, Tensor labels, Tensor centers, Tensor counts, Tensor grand_mean, Tensor scatter, Tensor directions,"
    " bool tied, str distance, bool need_centroids) -> (Tensor dz, Tensor dcentroids)",
    reference=reference.variance_ratio_backward,
    fake=_backward_fake,
)


def variance_ratio(z: Tensor, labels: Tensor, centroids: Tensor | None, num_clusters: int, distance: str) -> Tensor:
    return call("variance_ratio", z, labels, centroids, num_clusters, distance)[0]  # type: ignore[no-any-return]
