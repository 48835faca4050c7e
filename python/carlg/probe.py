"""A label-free stand-in for validation accuracy: how well a linear model reads groups of the nodes off the embedding.

Communities come from the edges alone: random signals smoothed by A_hat many times, clustered by k-means into as many groups as give the
highest modularity,  Q = share of the edges inside a group - sum over groups of (its share of the sources) (its share of the targets),
in the largest connected component; the others are communities of their own.

Feature groups come from the features alone: k-means on half of some nodes, judged on the other half by

    gain = R2 - R2 of the same with every feature shuffled over the nodes,  R2 = 1 - |x - its centroid|^2 / |x - mean|^2 (sums over nodes)

so that it is zero for features that are independent of each other, whatever their distribution; the fewest groups that gain nearly as much
as any.

A ridge regression from unit rows of H to the one-hot groups is fitted on a fifth of the nodes and scored on the rest, as the downstream
classifier will be.
"""

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

import carlg_kernels as ck
from carlg.graph import scipy_csr, take_rows
from carlg.propagation import SparseMatrix, multiply

_RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
# Numbers of groups to try before the neighbours of the best one.
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 20, 30)
# Nodes whose features are grouped, and the dimensions that wider features are projected to (at random, which keeps distances).
_SAMPLE, _SKETCH = 2000, 256
# Share of the highest gain that makes fewer groups good enough.
_NEARLY = 0.95


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


def communities(adjacency: SparseMatrix, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Nodes of the largest connected component, and labels of well-connected groups of them, as many as give the highest modularity."""
    matrix = adjacency.forward.cpu()
    _, component = connected_components(scipy_csr(matrix), directed=False)
    inside = torch.from_numpy(component == np.bincount(component).argmax())
    nodes = inside.nonzero().flatten()
    number = inside.cumsum(0) - 1
    source = torch.repeat_interleave(torch.arange(matrix.shape[0]), matrix.crow_indices().diff())
    target = matrix.col_indices()
    edges = inside[source] & (source != target)
    source, target = number[source[edges]], number[target[edges]]
    if len(nodes) < 3:
        return nodes, torch.zeros_like(nodes)
    generator = torch.Generator().manual_seed(seed)
    rows = smooth_signals(adjacency.forward, generator).cpu()[nodes]
    found: dict[int, tuple[float, Tensor]] = {}

    def grouping(count: int) -> float:
        if count not in found:
            labels = ck.kmeans(rows, count, n_init=3, max_iter=50, generator=generator).labels
            found[count] = modularity(labels, source, target), labels
        return found[count][0]

    most = max(2, len(nodes) // 10)
    best = max((count for count in _COUNTS if count <= most), key=grouping)
    while len(better := [n for n in (best - 1, best + 1) if 2 <= n <= most and grouping(n) > grouping(best)]) > 0:
        best = max(better, key=grouping)
    return nodes, found[best][1]


def _samples(x: Tensor, nodes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Centred unit rows of some nodes' features, and the same with every feature shuffled over the nodes; wide ones projected."""
    rows = take_rows(x.cpu(), nodes)
    rows = torch.nn.functional.normalize((rows.to_dense() if rows.layout == torch.sparse_csr else rows).to(torch.float32), dim=1)
    rows -= rows.mean(0)
    if rows.shape[1] <= _SKETCH:
        return rows, _shuffled(rows, generator)
    projected = rows.new_zeros(len(rows), _SKETCH), rows.new_zeros(len(rows), _SKETCH)
    for part in rows.split(_SKETCH, dim=1):
        mixed = _shuffled(part, generator)
        sketch = torch.randn(part.shape[1], _SKETCH, generator=generator) / _SKETCH**0.5
        projected[0].addmm_(part, sketch)
        projected[1].addmm_(mixed, sketch)
    return projected


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Every column in an order of its own."""
    return rows.gather(0, torch.rand(rows.shape, generator=generator).argsort(0))


def feature_groups(x: Tensor, seed: int = 0) -> tuple[float, Tensor, Tensor]:
    """Gain of grouping the nodes by their features (dense or CSR), the nodes that were looked at, and their groups."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randperm(x.shape[0], generator=generator)[:_SAMPLE]
    samples = _samples(x, nodes, generator)
    half = len(nodes) // 2
    found: dict[int, tuple[float, Tensor]] = {}

    def gain(count: int) -> float:
        if count not in found:
            explained, labels = [], []
            for sample in samples:
                centroids = ck.kmeans(sample[:half].contiguous(), count, n_init=3, max_iter=50, generator=generator).centroids
                nearest, distances, *_ = ck.assign(sample, centroids)
                total = float(sample[half:].square().sum())
                explained.append(max(0.0, 1 - float(distances[half:].square().sum()) / total) if total > 0 else 0.0)
                labels.append(nearest)
            found[count] = explained[0] - explained[1], labels[0]
        return found[count][0]

    counts = [count for count in _COUNTS if count <= half // 10]
    if not counts:
        return 0.0, nodes, torch.zeros_like(nodes)
    enough = _NEARLY * max(gain(count) for count in counts)
    best = next(count for count in counts if gain(count) >= enough)
    while best > 2 and gain(best - 1) >= enough:
        best -= 1
    return found[best][0], nodes, found[best][1]


class Probe:
    """Scores embeddings of one graph by the groups of some of its nodes; the same splits for all embeddings."""

    def __init__(self, nodes: Tensor, labels: Tensor, splits: int = 4, seed: int = 0) -> None:
        self.nodes, self.labels = nodes, labels
        self.targets = torch.nn.functional.one_hot(labels).to(torch.float32)
        count = len(labels)
        generator = torch.Generator().manual_seed(seed + 1)
        cut = [max(2, count // 5)]
        self.splits = [torch.randperm(count, generator=generator).tensor_split(cut) for _ in range(splits)]

    def score(self, h: Tensor) -> float:
        """Mean accuracy on the nodes that were not fitted, with the best of a few ridges."""
        x = torch.nn.functional.normalize(h.detach()[self.nodes.to(h.device)].cpu(), dim=1)
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
