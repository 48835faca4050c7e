"""Fast, exact, differentiable clustering losses for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from carlg_kernels import metrics, nn
from carlg_kernels._typing import Assignment, KMeansResult, KMedoidsResult, SilhouetteParts
from carlg_kernels.clustering import graph_distance, kmeans, kmedoids
from carlg_kernels.functional import (
    assign,
    davies_bouldin,
    simplified_silhouette,
    update_centroids,
    variance_ratio,
)
from carlg_kernels.silhouettes import margin, mean_silhouette, silhouette, silhouette_parts

if TYPE_CHECKING:
    from carlg_kernels.estimators import KMeans, KMedoids, MiniBatchKMeans

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "KMeans",
    "KMeansResult",
    "KMedoids",
    "KMedoidsResult",
    "MiniBatchKMeans",
    "SilhouetteParts",
    "assign",
    "davies_bouldin",
    "graph_distance",
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

_ESTIMATORS = ("KMeans", "KMedoids", "MiniBatchKMeans")


def __getattr__(name: str) -> Any:
    """The estimators are imported on first use, so that scikit-learn is needed by those who use them only."""
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'carlg_kernels' has no attribute {name!r}")
    try:
        estimators = importlib.import_module("carlg_kernels.estimators")
    except ModuleNotFoundError as error:
        raise ImportError(f"carlg_kernels.{name} needs scikit-learn: pip install 'carlg-kernels[sklearn]' ({error})") from error
    return getattr(estimators, name)
