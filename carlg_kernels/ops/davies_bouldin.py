"""Davies-Bouldin:  DB = (1/c) sum_j max_{k != j} (S_j + S_k) / ||mu_j - mu_k||,  S_j = (1/n_j) sum_{u in j} ||z_u - mu_j||.

c counts non-empty clusters; a pair of coinciding centroids scores 0, as in scikit-learn. With k_j the argmax ("rival"),
D_j = ||mu_j - mu_{k_j}||, r_j = (S_j + S_{k_j}) / D_j, x_j = e(mu_j - mu_{k_j}), e_u = e(z_u - mu_{y_u}), E_j = sum_{u in j} e_u:

    dDB/dS_j  = (1/c) ( 1/D_j + sum_{i: k_i=j} 1/D_i )
    dDB/dmu_j = (1/c) ( - r_j x_j / D_j + sum_{i: k_i=j} r_i x_i / D_i )          (S_j's own share through mu_j is below)
    dz_u      = (dDB/dS_{y_u} / n_{y_u}) (e_u - E_{y_u} / n_{y_u}) + dDB/dmu_{y_u} / n_{y_u}

``num_clusters`` = 0 means unknown, as in simplified_silhouette.
"""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import davies_bouldin as reference


def _fake(z: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, ...]:
    means = z.new_empty((num_clusters, z.shape[1]), dtype=compute_dtype(z.dtype))
    return (
        means.new_empty(()),
        means,
        means.new_empty((num_clusters,), dtype=torch.int64),
        means.new_empty((num_clusters,)),
        means.new_empty((num_clusters,), dtype=torch.int32),
        torch.empty_like(means),
    )


def _backward_fake(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    means: Tensor,
    counts: Tensor,
    dispersion: Tensor,
    rivals: Tensor,
    directions: Tensor,
) -> Tensor:
    return z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, labels, _ = inputs
    ctx.save_for_backward(z, labels, *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    return call("davies_bouldin_backward", grad, *ctx.saved_tensors), None, None


register(
    "davies_bouldin",
    "(Tensor z, Tensor labels, int num_clusters)"
    " -> (Tensor value, Tensor means, Tensor counts, Tensor dispersion, Tensor rivals, Tensor directions)",
    reference=reference.davies_bouldin,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "davies_bouldin_backward",
    "(Tensor grad, Tensor z, Tensor labels, Tensor means, Tensor counts, Tensor dispersion, Tensor rivals, Tensor directions) -> Tensor",
    reference=reference.davies_bouldin_backward,
    fake=_backward_fake,
)


def davies_bouldin(z: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    return call("davies_bouldin", z, labels, num_clusters)[0]  # type: ignore[no-any-return]
