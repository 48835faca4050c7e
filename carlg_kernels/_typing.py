"""Types and dtype rules shared by every layer."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "none"]
Singleton = Literal["zero", "code"]
EmptyPolicy = Literal["keep", "zero", "error"]
StarvedPolicy = Literal["farthest", "keep", "random", "error"]
VarianceDistance = Literal["sqeuclidean", "euclidean"]
SilhouetteMetric = Literal["euclidean", "sqeuclidean", "cosine"]


class Assignment(NamedTuple):
    """Nearest and second-nearest centroid of every point, with true Euclidean distances.

    With a single centroid ``second_labels`` is -1 and ``second_distances`` is infinite.
    """

    labels: Tensor
    distances: Tensor
    second_labels: Tensor
    second_distances: Tensor


class KMeansResult(NamedTuple):
    """A clustering by :func:`carlg_kernels.kmeans`; the labels, distances and runners-up belong to the returned centroids."""

    labels: Tensor
    centroids: Tensor
    inertia: Tensor
    n_iter: int
    converged: bool
    distances: Tensor
    second_labels: Tensor
    second_distances: Tensor


class KMedoidsResult(NamedTuple):
    """A clustering by :func:`carlg_kernels.kmedoids`; ``medoids`` are row numbers."""

    labels: Tensor
    medoids: Tensor
    inertia: Tensor
    n_iter: int
    converged: bool


class SilhouetteParts(NamedTuple):
    """Mean distances of every point to its own cluster and to the nearest other one, and the label of that one."""

    own: Tensor
    other: Tensor
    nearest: Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half types are computed, and their values returned, in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
