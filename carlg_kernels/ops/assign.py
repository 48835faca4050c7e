"""Nearest and second-nearest centroid:  label_u = argmin_j ||z_u - mu_j||,  ties to the lowest index.

Ranked by ||m_j||^2 - 2 (z_u - t).m_j with m_j = mu_j - t around a point t amid the centroids, so that the digits are those of their spread;
the distances of the two winners are recomputed by direct difference.
"""

import torch
from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import assign as reference

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake(z: Tensor, centroids: Tensor) -> Outputs:
    n = z.shape[0]
    labels = z.new_empty(n, dtype=torch.int64)
    distances = z.new_empty(n, dtype=compute_dtype(z.dtype))
    return labels, distances, torch.empty_like(labels), torch.empty_like(distances)


register(
    "assign",
    "(Tensor z, Tensor centroids) -> (Tensor labels, Tensor distances, Tensor second_labels, Tensor second_distances)",
    reference=reference.assign,
    fake=_fake,
)


def assign(z: Tensor, centroids: Tensor) -> Outputs:
    return call("assign", z, centroids)  # type: ignore[no-any-return]
