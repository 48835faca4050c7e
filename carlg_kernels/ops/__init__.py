"""Operators: one file each, with schema, fake implementation, autograd formula and backends."""

from carlg_kernels import _dispatch
from carlg_kernels.ops import (
    assign,
    centroid_update,
    cluster_distances,
    davies_bouldin,
    edge_distances,
    kmeans_plus_plus,
    kmedoids,
    lloyd,
    own_distance,
    silhouette,
    simplified_silhouette,
    squared_silhouette,
    variance_ratio,
)

_dispatch.load_compiled()

__all__ = [
    "assign",
    "centroid_update",
    "cluster_distances",
    "davies_bouldin",
    "edge_distances",
    "kmeans_plus_plus",
    "kmedoids",
    "lloyd",
    "own_distance",
    "silhouette",
    "simplified_silhouette",
    "squared_silhouette",
    "variance_ratio",
]
