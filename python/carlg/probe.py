"""A label-free stand-in for validation accuracy: how well a linear model reads the graph's communities off the embedding.

Communities come from the edges alone: random signals smoothed by A_hat many times, clustered by k-means into as many groups as give the
highest modularity,  Q = share of the edges inside a group - sum over groups of (its share of the sources) (its share of the targets).
A ridge regression from unit rows of H to the one-hot communities is fitted on a fifth of the nodes and scored on the rest, as the
downstream classifier will be.
"""

import torch
from torch import Tensor

import carlg_kernels as ck
from carlg.propagation import SparseMatrix, multiply

_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
# Numbers of groups to try before the neighbours of the best one.
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 20, 30)


def smooth_signals(matrix: Tensor, generator: torch.Generator, steps: int = 12, signals: int = 64) -> Tensor:
    """Unit rows (n, signals) that are alike for nodes that short walks connect; ``matrix`` is A_hat."""
    signal = torch.randn(matrix.shape[0], signals, generator=generator).to(matrix.device)
    # The leading eigenvector of A_hat, the root of the degrees, says nothing about communities.
    trivial = matrix.crow_indices().diff().to(signal.dtype).sqrt()
    trivial = trivial / trivial.norm()
    for _ in range(steps):
        signal = multiply(matrix, signal)
        signal -= trivial[:, None] * (trivial @ signal)
        signal /= signal.norm(dim=0).clamp(min=1e-12)
    return torch.nn.functional.normalize(signal, dim=1)


def modularity(labels: Tensor, source: Tensor, target: Tensor) -> float:
    """Of a grouping of the nodes; every edge goes from ``source`` to ``target``."""
    groups = int(labels.max()) + 1
    a, b = labels[source], labels[target]
    shares = [torch.bincount(side, minlength=groups).double() / max(1, len(side)) for side in (a, b)]
    return float((a == b).double().mean() - (shares[0] * shares[1]).sum())


def communities(adjacency: SparseMatrix, seed: int = 0) -> Tensor:
    """Labels (n,) of well-connected groups, as many as give the highest modularity; a graph without edges is one group."""
    matrix = adjacency.forward
    nodes = matrix.shape[0]
    source = torch.repeat_interleave(torch.arange(nodes, device=matrix.device), matrix.crow_indices().diff())
    target = matrix.col_indices()
    edges = source != target
    source, target = source[edges], target[edges]
    if len(source) == 0:
        return torch.zeros(nodes, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    rows = smooth_signals(matrix, generator)
    found: dict[int, tuple[float, Tensor]] = {}

    def grouping(count: int) -> float:
        if count not in found:
            labels = ck.kmeans(rows, count, n_init=3, max_iter=50, generator=generator).labels
            found[count] = modularity(labels, source, target), labels
        return found[count][0]

    most = max(2, nodes // 10)
    best = max((count for count in _COUNTS if count <= most), key=grouping)
    while len(better := [n for n in (best - 1, best + 1) if 2 <= n <= most and grouping(n) > grouping(best)]) > 0:
        best = max(better, key=grouping)
    return found[best][1].cpu()


class Probe:
    """Scores embeddings of one graph; the same communities and splits for all of them."""

    def __init__(self, adjacency: SparseMatrix, splits: int = 4, seed: int = 0) -> None:
        self.labels = communities(adjacency, seed)
        self.targets = torch.nn.functional.one_hot(self.labels).to(torch.float32)
        nodes = len(self.labels)
        generator = torch.Generator().manual_seed(seed + 1)
        cut = [max(2, nodes // 5)]
        self.splits = [torch.randperm(nodes, generator=generator).tensor_split(cut) for _ in range(splits)]

    def score(self, h: Tensor) -> float:
        """Mean accuracy on the nodes that were not fitted, with the best of a few ridges."""
        x = torch.nn.functional.normalize(h.detach().cpu(), dim=1)
        total = torch.zeros(len(_RIDGES))
        for rows, rest in self.splits:
            mean, level = x[rows].mean(0), self.targets[rows].mean(0)
            fitted = x[rows] - mean
            values, basis = torch.linalg.eigh(fitted.t() @ fitted)
            response = basis.t() @ (fitted.t() @ (self.targets[rows] - level))
            held = (x[rest] - mean) @ basis
            for i, ridge in enumerate(_RIDGES):
                decisions = held @ (response / (values.clamp(min=0) + ridge)[:, None]) + level
                total[i] += (decisions.argmax(1) == self.labels[rest]).float().mean()
        return float(total.max()) / len(self.splits)
