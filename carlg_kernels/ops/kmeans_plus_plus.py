"""Greedy k-means++:  draw candidates with probability w_u closest_u, keep the one that leaves  sum_u w_u min(closest_u, ||z_u - x||^2)  least.

``closest`` holds the squared distance of every point to the nearest centroid chosen so far and is updated in place. One centroid is
chosen for every row of ``uniforms``, which holds the random numbers in [0, 1) that the candidates are drawn with. Where every point
coincides with a chosen one, candidates are drawn uniformly.
"""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels.reference import kmeans_plus_plus as reference


def _fake(z: Tensor, weights: Tensor | None, origin: Tensor, uniforms: Tensor, closest: Tensor) -> Tensor:
    return z.new_empty(uniforms.shape[0], dtype=torch.int64)


register(
    "kmeans_plus_plus",
    "(Tensor z, Tensor? weights, Tensor origin, Tensor uniforms, Tensor(a!) closest) -> Tensor",
    reference=reference.kmeans_plus_plus,
    fake=_fake,
    triton=False,
)


def kmeans_plus_plus(z: Tensor, weights: Tensor | None, origin: Tensor, uniforms: Tensor, closest: Tensor) -> Tensor:
    return torch.ops.carlg_kernels.kmeans_plus_plus(z, weights, origin, uniforms, closest)  # type: ignore[no-any-return]
