"""A label-free stand-in for validation accuracy: how well a linear model reads the graph's communities off the embedding.

Communities come from the edges alone: random signals smoothed by A_hat many times, clustered by k-means. A ridge regression from unit
rows of H to the one-hot communities is fitted on a fifth of the nodes and scored on the rest, as the downstream classifier will be.
"""

import torch
from torch import Tensor

import carlg_kernels as ck
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
    """Scores embeddings of one graph; the same splits and communities (two resolutions) for all of them."""

    def __init__(self, adjacency: SparseMatrix, counts: tuple[int, ...] = (8, 20), splits: int = 4, seed: int = 0) -> None:
        nodes = adjacency.forward.shape[0]
        counts = tuple(max(2, min(count, nodes // 10)) for count in counts)
        self.labels = [communities(adjacency, count, seed=seed).cpu() for count in counts]
        hot = [torch.nn.functional.one_hot(labels, c) for labels, c in zip(self.labels, counts, strict=True)]
        self.targets = torch.cat(hot, 1).to(torch.float32)
        self.columns = counts
        generator = torch.Generator().manual_seed(seed + 1)
        cut = [max(2, nodes // 5)]
        self.splits = [torch.randperm(nodes, generator=generator).tensor_split(cut) for _ in range(splits)]

    def score(self, h: Tensor) -> float:
        """Mean accuracy on the nodes that were not fitted, over both resolutions, each with the best of a few ridges."""
        x = torch.nn.functional.normalize(h.detach().cpu(), dim=1)
        total = torch.zeros(len(_RIDGES), len(self.columns))
        for rows, rest in self.splits:
            mean, level = x[rows].mean(0), self.targets[rows].mean(0)
            fitted = x[rows] - mean
            values, basis = torch.linalg.eigh(fitted.t() @ fitted)
            response = basis.t() @ (fitted.t() @ (self.targets[rows] - level))
            held = (x[rest] - mean) @ basis
            for i, ridge in enumerate(_RIDGES):
                decisions = held @ (response / (values.clamp(min=0) + ridge)[:, None]) + level
                for j, part in enumerate(decisions.split(self.columns, dim=1)):
                    total[i, j] += (part.argmax(1) == self.labels[j][rest]).float().mean()
        return float(total.amax(0).mean()) / len(self.splits)
