"""Fast, exact, differentiable clustering losses for PyTorch."""

from carlg_kernels import metrics, nn
from carlg_kernels._typing import Assignment, KMeansResult, KMedoidsResult
from carlg_kernels.clustering import kmeans, kmedoids
from carlg_kernels.functional import (
    assign,
    davies_bouldin,
    simplified_silhouette,
    update_centroids,
    variance_ratio,
)

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "KMeansResult",
    "KMedoidsResult",
    "assign",
    "davies_bouldin",
    "kmeans",
    "kmedoids",
    "metrics",
    "nn",
    "simplified_silhouette",
    "update_centroids",
    "variance_ratio",
]
