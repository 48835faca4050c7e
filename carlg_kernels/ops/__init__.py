"""Operators: one file each, with schema, fake implementation, autograd formula and backends."""

from carlg_kernels import _dispatch, _progress
from carlg_kernels.ops import (
    assign,
    assigned_silhouette,
    binary_product,
    carried_bounds,
    centroid_update,
    cluster_distances,
    davies_bouldin,
    dense_product,
    edge_distances,
    hop_distance,
    kmeans_plus_plus,
    kmedoids,
    lloyd,
    norm_prelu,
    own_distance,
    silhouette,
    simplified_silhouette,
    sparse_product,
    squared_silhouette,
    strassen_product,
    unit_rows,
    variance_ratio,
)

_dispatch.load_compiled()
_progress.install()

__all__ = [
    "assign",
    "assigned_silhouette",
    "binary_product",
    "carried_bounds",
    "centroid_update",
    "cluster_distances",
    "davies_bouldin",
    "dense_product",
    "edge_distances",
    "hop_distance",
    "kmeans_plus_plus",
    "kmedoids",
    "lloyd",
    "norm_prelu",
    "own_distance",
    "silhouette",
    "simplified_silhouette",
    "sparse_product",
    "squared_silhouette",
    "strassen_product",
    "unit_rows",
    "variance_ratio",
]
