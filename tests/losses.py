"""Every public loss as a function of the points, so that the tests of autograd, compilation and threads can enumerate them."""

from typing import NamedTuple

import torch
from torch import Tensor

import carlg_kernels as ck
from tests.helpers import clustered


class Setting(NamedTuple):
    """What the losses take besides the points."""

    labels: Tensor
    centroids: Tensor
    edges: Tensor
    result: ck.KMeansResult


LOSSES = {
    "simplified_silhouette by labels": lambda x, s: ck.simplified_silhouette(x, labels=s.labels),
    "simplified_silhouette, clusters known": lambda x, s: ck.simplified_silhouette(x, labels=s.labels, num_clusters=len(s.centroids)),
    "simplified_silhouette per point": lambda x, s: ck.simplified_silhouette(x, labels=s.labels, reduction="none"),
    "simplified_silhouette by centroids": lambda x, s: ck.simplified_silhouette(x, s.centroids),
    "simplified_silhouette of a result": lambda x, s: ck.simplified_silhouette(x, s.result),
    "silhouette": lambda x, s: ck.silhouette(x, s.labels),
    "silhouette, clusters known": lambda x, s: ck.silhouette(x, s.labels, num_clusters=len(s.centroids)),
    "silhouette per point": lambda x, s: ck.silhouette(x, s.labels, reduction="none"),
    "silhouette, sqeuclidean": lambda x, s: ck.silhouette(x, s.labels, "sqeuclidean"),
    "silhouette, cosine": lambda x, s: ck.silhouette(x, s.labels, "cosine"),
    "silhouette_parts": lambda x, s: sum(ck.silhouette_parts(x, s.labels)[:2]),
    "mean_silhouette": lambda x, s: ck.mean_silhouette(x, s.labels),
    "margin": lambda x, s: ck.margin(x, s.edges),
    "variance_ratio": lambda x, s: ck.variance_ratio(x, s.labels),
    "variance_ratio by centroids": lambda x, s: ck.variance_ratio(x, centroids=s.centroids, distance="euclidean"),
    "davies_bouldin": lambda x, s: ck.davies_bouldin(x, s.labels),
    "update_centroids": lambda x, s: ck.update_centroids(x, s.labels, len(s.centroids))[0].square().sum(),
}


def setting(n: int, c: int, d: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Setting]:
    """Points, and what the losses take besides."""
    z, labels = clustered(n, c, d, dtype)
    near = ck.assign(z, z[:c] + 0.1)
    result = ck.KMeansResult(near.labels, z[:c] + 0.1, near.distances.square().sum(), 1, True, *near[1:])
    edges = torch.stack((torch.arange(n), (torch.arange(n) * 7 + 3) % n))
    return z, Setting(labels, z[:c] + 0.1, edges, result)
