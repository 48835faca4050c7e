"""Operators: one file each, with schema, fake implementation, autograd formula and backends."""

from carlg_kernels import _dispatch
from carlg_kernels.ops import (
    assign,
    centroid_update,
    davies_bouldin,
    kmeans_plus_plus,
    kmedoids,
    lloyd,
    own_distance,
    simplified_silhouette,
    variance_ratio,
)

_dispatch.load_compiled()

__all__ = [
    "assign",
    "centroid_update",
    "davies_bouldin",
    "kmeans_plus_plus",
    "kmedoids",
    "lloyd",
    "own_distance",
    "simplified_silhouette",
    "variance_ratio",
]
