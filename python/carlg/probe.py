"""A label-free stand-in for validation accuracy: how well a linear model reads the graph's communities off the embedding.

Communities come from the edges alone: random signals smoothed by A_hat many times, clustered by k-means. A ridge regression from unit
rows of H to the one-hot communities is fitted on a fifth of the nodes and scored on the rest, as the downstream classifier will be.
"""

import carlg_kernels as ck
import torch
from torch import Tensor

from carlg.propagation import SparseMatrix, multiply

_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)


def communities(adjacency: SparseMatrix, count: int, steps: int = 12, signals: int = 64, seed: int = 0) -> Tensor:
    """Labels (n,) of ``count`` groups of well-connected nodes."""
    matrix = adjacency.forward
    generator = torch.Generator().manual_seed(seed)
    nodes = matrix.shape[0]
    signal = torch.randn(nodes, signals, generator=generator).to(matrix.device)
    # The leading eigenvector of A_hat, the root of the degrees, says nothing about communities.
    trivial = matrix.crow_indices().diff().to(signal.dtype).sqrt()
    trivial = trivial / trivial.norm()
    for _ in range(steps):
        signal = multiply(matrix, signal)
        signal -= trivial[:, None] * (trivial @ signal)
        signal /= signal.norm(dim=0).clamp(min=1e-12)
    rows = torch.nn.functional.normalize(signal, dim=1)
    return ck.kmeans(rows, count, n_init=3, max_iter=50, generator=generator).labels


class Probe:
    """Scores embeddings of one graph; the same splits and communities for all of them."""

    def __init__(self, adjacency: SparseMatrix, count: int, splits: int = 8, seed: int = 0) -> None:
        self.labels = communities(adjacency, count, seed=seed)
        self.targets = torch.nn.functional.one_hot(self.labels, count).to(torch.float32)
        generator = torch.Generator().manual_seed(seed + 1)
        nodes = self.labels.shape[0]
        self.train = [torch.randperm(nodes, generator=generator)[: max(2, nodes // 5)] for _ in range(splits)]

    def score(self, h: Tensor) -> float:
        """Mean accuracy on the nodes that were not fitted, with the best of a few ridges."""
        x = torch.nn.functional.normalize(h, dim=1)
        total = torch.zeros(len(_RIDGES))
        for rows in self.train:
            mean, level = x[rows].mean(0), self.targets[rows].mean(0)
            fitted = (x[rows] - mean).double()
            values, basis = torch.linalg.eigh(fitted.t() @ fitted)
            response = basis.t() @ (fitted.t() @ (self.targets[rows] - level).double())
            rest = torch.ones(x.shape[0], dtype=torch.bool)
            rest[rows] = False
            held, truth = (x[rest] - mean) @ basis.to(x.dtype), self.labels[rest]
            for i, ridge in enumerate(_RIDGES):
                weights = (response / (values.clamp(min=0) + ridge)[:, None]).to(x.dtype)
                total[i] += ((held @ weights + level).argmax(1) == truth).float().mean()
        return float(total.max()) / len(self.train)
