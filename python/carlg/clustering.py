"""Clustering of every epoch with what is carried from the last one: ``labels = clusterer(z)``."""

from typing import Any

import torch
from torch import Tensor

import carlg_kernels as ck
from carlg.config import Config


class Clusterer:
    """k-means whose centroids carry over. The first call starts ``restarts`` times and keeps the lowest inertia."""

    def __init__(self, config: Config, clusters: int, generator: torch.Generator) -> None:
        self.config, self.clusters, self.generator = config, clusters, generator
        self.centroids: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        config = self.config
        if config.clustering == "minibatch":
            options: dict[str, Any] = {"batch_size": min(config.cluster_batch, z.shape[0]), "tol": 0.0}
            first = {"init": "random", "n_init": config.restarts}
        else:
            options = {"max_iter": config.cluster_iterations, "tol": 0.0}
            first = {"init": "k-means++", "n_init": config.restarts, "max_iter": max(10, config.cluster_iterations)}
        start = first if self.centroids is None else {"init": self.centroids}
        result = ck.kmeans(z, self.clusters, generator=self.generator, **{**options, **start})
        self.centroids = result.centroids
        return result.labels

    def reset(self) -> None:
        """Forget the centroids: the next call seeds anew, as after a degenerate clustering."""
        self.centroids = None

    def state(self) -> Tensor | None:
        return self.centroids

    def load(self, state: Tensor | None) -> None:
        self.centroids = state


class MedoidClusterer(Clusterer):
    """k-medoids on lambda * L2 + (1 - lambda) * hops; the medoids' indices carry over, the loss still uses means."""

    def __init__(self, config: Config, clusters: int, generator: torch.Generator, edge_index: Tensor) -> None:
        super().__init__(config, clusters, generator)
        self.edge_index = edge_index
        self.medoids: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        weight, points, metric = self.config.graph_weight, z, "euclidean"
        if weight < 1:
            points, metric = ck.graph_distance(z, self.edge_index, mix=weight), "precomputed"
        options: dict[str, Any] = {"max_iter": 100}
        if self.medoids is not None:
            options = {"max_iter": self.config.cluster_iterations, "init": self.medoids}
        result = ck.kmedoids(points, self.clusters, metric=metric, generator=self.generator, **options)
        self.medoids = result.medoids
        return result.labels

    def reset(self) -> None:
        self.medoids = None

    def state(self) -> Tensor | None:
        return self.medoids

    def load(self, state: Tensor | None) -> None:
        self.medoids = state


def make_clusterer(config: Config, clusters: int, generator: torch.Generator, edge_index: Tensor) -> Clusterer:
    if config.clustering == "kmedoids":
        return MedoidClusterer(config, clusters, generator, edge_index)
    return Clusterer(config, clusters, generator)
