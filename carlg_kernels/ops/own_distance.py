"""Squared distance of every point to the centroid of its label:  ||z_u - mu_{label_u}||^2, 0 for label -1."""

from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import own_distance as reference


def _fake(z: Tensor, centroids: Tensor, labels: Tensor) -> Tensor:
    return z.new_empty(z.shape[0], dtype=compute_dtype(z.dtype))


register(
    "own_distance",
    "(Tensor z, Tensor centroids, Tensor labels) -> Tensor",
    reference=reference.own_distance,
    fake=_fake,
    triton=False,
)


def own_distance(z: Tensor, centroids: Tensor, labels: Tensor) -> Tensor:
    return call("own_distance", z, centroids, labels)  # type: ignore[no-any-return]
