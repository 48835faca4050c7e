"""Fast, exact, differentiable clustering losses for PyTorch."""

from carlg_kernels import metrics, nn
from carlg_kernels._typing import Assignment, KMeansResult, KMedoidsResult, SilhouetteParts
from carlg_kernels.clustering import kmeans, kmedoids
from carlg_kernels.functional import (
    assign,
    davies_bouldin,
    simplified_silhouette,
    update_centroids,
    variance_ratio,
)
from carlg_kernels.silhouettes import margin, mean_silhouette, silhouette, silhouette_parts

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "KMeansResult",
    "KMedoidsResult",
    "SilhouetteParts",
    "assign",
    "davies_bouldin",
    "kmeans",
    "kmedoids",
    "margin",
    "mean_silhouette",
    "metrics",
    "nn",
    "silhouette",
    "silhouette_parts",
    "simplified_silhouette",
    "update_centroids",
    "variance_ratio",
]
