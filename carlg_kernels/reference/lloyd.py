"""label_u = argmin_j ||z_u - mu_j||, then mu_j = the weighted mean of the points with label j."""

import torch
from torch import Tensor

from carlg_kernels.reference.assign import two_nearest
from carlg_kernels.reference.centroid_update import centroid_update


def lloyd(
    z: Tensor,
    weights: Tensor | None,
    centroids: Tensor,
    previous: Tensor,
    origin: Tensor,
    labels: Tensor,
    bounds: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    nearest = two_nearest(z, centroids)[0]
    changed = (nearest != labels).sum()
    labels.copy_(nearest)
    means, mass = centroid_update(z, nearest, weights, centroids.shape[0])
    empty = mass == 0
    means = torch.where(empty[:, None], centroids, means)
    wide = torch.float32 if z.device.type == "mps" else torch.float64
    shift = (means - centroids).to(wide).square().sum()
    return means, mass.to(wide), torch.stack([shift, changed.to(wide), empty.sum().to(wide)])
