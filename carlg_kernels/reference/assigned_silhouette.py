"""s_u = (b_u - a_u) / max(a_u, b_u) with the distances to two given centroids."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import block_sum
from carlg_kernels.reference.simplified_silhouette import silhouette_value


def assigned_silhouette(
    z: Tensor, centroids: Tensor, own_labels: Tensor, other_labels: Tensor, reduction: str
) -> tuple[Tensor, Tensor, Tensor]:
    squared_distance = torch.ops.carlg_kernels.own_distance
    own = squared_distance(z, centroids, own_labels).sqrt()
    other = squared_distance(z, centroids, other_labels).sqrt()
    value = silhouette_value(own, other)
    if reduction != "none":
        wide = value.dtype if value.device.type == "mps" else torch.float64
        total = block_sum(value.to(wide))
        value = (total / z.shape[0] if reduction == "mean" else total).to(own.dtype)
    return value, own, other
