"""Bounds of a Lloyd step from an assignment of the same points before they moved, to the same centroids:

    bounds[0]_u >= ||z_u - mu_{label_u}||                 by one distance
    bounds[1]_u <= min_{j != label_u} ||z_u - mu_j||      by second_u - ||z_u - before_u||, the triangle inequality
    bounds[2]_u  = ||z_u - origin||^2

``second`` are the second distances of ``assign(before, centroids)``; the rounding errors of its search are taken off.
"""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import carried_bounds as reference


def _fake(z: Tensor, before: Tensor, centroids: Tensor, origin: Tensor, labels: Tensor, second: Tensor) -> Tensor:
    return z.new_empty((3, z.shape[0]), dtype=compute_dtype(z.dtype))


register(
    "carried_bounds",
    "(Tensor z, Tensor before, Tensor centroids, Tensor origin, Tensor labels, Tensor second) -> Tensor",
    reference=reference.carried_bounds,
    fake=_fake,
    triton=False,
)


def carried_bounds(z: Tensor, before: Tensor, centroids: Tensor, origin: Tensor, labels: Tensor, second: Tensor) -> Tensor:
    return torch.ops.carlg_kernels.carried_bounds(z, before, centroids, origin, labels, second)  # type: ignore[no-any-return]
