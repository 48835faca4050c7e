"""label_u = argmin_j ||z_u - mu_j||, and the runner-up."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import distance, points, row_blocks


def two_nearest(z: Tensor, centroids: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nearest and second-nearest of the ``allowed`` centroids, ties to the lowest index."""
    n, (c, d) = z.shape[0], centroids.shape
    z, centroids = points(z), points(centroids)
    labels = torch.empty(n, dtype=torch.int64, device=z.device)
    distances = torch.empty(n, dtype=z.dtype, device=z.device)
    second_labels = torch.full_like(labels, -1)
    second_distances = torch.full_like(distances, float("inf"))
    for rows in row_blocks(n, c * d):
        table = distance(z[rows, None], centroids[None])
        if allowed is not None:
            table = table.masked_fill(~allowed[None], float("inf"))
        distances[rows], labels[rows] = table.min(1)
        table.scatter_(1, labels[rows, None], float("inf"))
        second, index = table.min(1)
        found = second < float("inf")
        second_distances[rows] = second
        second_labels[rows] = torch.where(found, index, -1)
    return labels, distances, second_labels, second_distances


def assign(z: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return two_nearest(z, centroids)
