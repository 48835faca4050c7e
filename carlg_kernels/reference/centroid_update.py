"""mu_j = sum_{u in j} w_u z_u / sum_{u in j} w_u."""

from torch import Tensor

from carlg_kernels.reference.common import points, segment_mean, segment_sum


def centroid_update(z: Tensor, labels: Tensor, weights: Tensor | None, num_clusters: int) -> tuple[Tensor, Tensor]:
    z = points(z)
    if weights is None:
        return segment_mean(z, labels, num_clusters)
    weights = weights.to(z.dtype)
    mass = segment_sum(weights, labels, num_clusters)
    sums = segment_sum(z * weights[:, None], labels, num_clusters)
    return sums / mass.masked_fill(mass == 0, 1)[:, None], mass


def centroid_update_backward(
    grad: Tensor,
    z: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    means: Tensor,
    mass: Tensor,
    need_weights: bool,
) -> tuple[Tensor, Tensor]:
    scaled = grad / mass.masked_fill(mass == 0, 1).to(grad.dtype)[:, None]
    keep = (labels >= 0)[:, None]
    rows = scaled[labels.clamp(min=0)].masked_fill(~keep, 0)
    dz = rows if weights is None else rows * weights.to(rows.dtype)[:, None]
    dweights = grad.new_empty(0)
    if need_weights:
        dweights = (rows * (points(z) - means[labels.clamp(min=0)])).sum(1)
    return dz.to(z.dtype), dweights
