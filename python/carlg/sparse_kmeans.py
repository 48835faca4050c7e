"""k-means of sparse rows: the nearest centroid of x is the one of least  |c_j|^2 / 2 - x.c_j.

Greedy k-means++ starts and plain Lloyd iterations, all starts at once: one product with their dense centroids each, and the sums of the
rows that moved. A start that is done leaves the others.
"""

import math

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from carlg.graph import scipy_csr
from carlg.propagation import short_columns
from carlg_kernels.ops.sparse_product import sparse_product

# The sparse product is several times faster on whole vectors of this many numbers.
_LANES = 16
# Centroids that go by at once: enough to share the reading of the rows, few enough for their scores to stay small.
_MOST_CENTROIDS = 160


class _Points:
    """Rows of a CSR matrix: products with dense points, sums by label, squared lengths."""

    def __init__(self, matrix: Tensor) -> None:
        self.parts = (matrix.crow_indices(), short_columns(matrix), matrix.values())
        self.matrix = scipy_csr(matrix)
        self.matrix.indices, self.matrix.indptr = self.matrix.indices.astype(np.int32), self.matrix.indptr.astype(np.int32)
        self.exact = self.matrix.astype(np.float64)
        self.count, self.width = matrix.shape
        self.squares = torch.from_numpy(self.exact.power(2) @ np.ones(self.width))

    def product(self, points: Tensor) -> Tensor:
        """x.p for every row x and every row p of ``points``, and zeros up to a multiple of the lanes."""
        padded = points.new_zeros(self.width, -(-len(points) // _LANES) * _LANES)
        padded[:, : len(points)] = points.t()
        return sparse_product(*self.parts, padded)

    def dense(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix[rows.numpy()].toarray())

    def sums(self, rows: Tensor, labels: Tensor, signs: Tensor, clusters: int) -> Tensor:
        """Sums (clusters, width) of signs times ``rows`` by label, in float64."""
        weights = sp.csr_matrix((signs.double().numpy(), (labels.numpy(), rows.numpy())), shape=(clusters, self.count))
        return torch.from_numpy((weights @ self.exact).toarray())


def sparse_kmeans(matrix: Tensor, clusters: int, starts: int, generator: torch.Generator, max_iter: int = 300, tol: float = 1e-4) -> Tensor:
    """Labels of the start of least inertia; ``matrix`` is CSR, ``tol`` as in ``ck.kmeans``."""
    points = _Points(matrix)
    mean = torch.from_numpy(np.asarray(points.exact.mean(0)).ravel())
    tolerance = tol * float(points.squares.mean() - mean.square().sum()) / points.width
    rows = _plus_plus(points, clusters, starts, generator)
    parts = rows.split(max(1, _MOST_CENTROIDS // clusters))
    fits = [_lloyd(points, points.dense(part.flatten()).unflatten(0, part.shape), max_iter, tolerance) for part in parts]
    labels, inertia = (torch.cat(part) for part in zip(*fits, strict=True))
    return labels[inertia.argmin()]


def _plus_plus(points: _Points, clusters: int, starts: int, generator: torch.Generator) -> Tensor:
    """Rows (starts, clusters): each next one is the best of 2 + log(clusters) drawn by their squared distance to those before."""
    trials = 2 + int(math.log(clusters))
    chosen = torch.randint(points.count, (starts, 1), generator=generator)
    closest = _squared_distances(points, chosen)[:, 0]
    each = torch.arange(starts)
    for _ in range(clusters - 1):
        total = closest.cumsum(1)
        uniform = torch.rand(starts, trials, generator=generator, dtype=total.dtype)
        drawn = torch.searchsorted(total, uniform * total[:, -1:], right=True).clamp_(max=points.count - 1)
        candidates = torch.minimum(_squared_distances(points, drawn), closest[:, None])
        best = candidates.sum(2).argmin(1)
        chosen, closest = torch.cat([chosen, drawn[each, best][:, None]], 1), candidates[each, best]
    return chosen


def _squared_distances(points: _Points, rows: Tensor) -> Tensor:
    """From the chosen ``rows`` (starts, trials) to all points: (starts, trials, n)."""
    flat = rows.flatten()
    product = points.product(points.dense(flat)).t()[: len(flat)]
    distances = (points.squares + points.squares[flat, None] - 2 * product).clamp_(min=0)
    return distances.unflatten(0, rows.shape)


def _lloyd(points: _Points, centroids: Tensor, max_iter: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Labels (starts, n) and inertia (starts,) from the centroids (starts, k, width) of every start.

    A start is done once none of its labels changes, or the squared move of its centroids is at most ``tolerance``.
    """
    starts, clusters = centroids.shape[:2]
    final, inertia = torch.empty(starts, points.count, dtype=torch.int64), torch.empty(starts, dtype=torch.float64)
    active = torch.arange(starts)
    labels = _nearest(points, centroids)
    every = torch.arange(points.count).repeat(starts)
    sums = points.sums(every, _flat(labels, clusters), torch.ones(len(every)), starts * clusters).unflatten(0, (starts, clusters))
    for step in range(max_iter):
        _refill(points, centroids, labels, sums)
        means = (sums / _sizes(labels, clusters).clamp(min=1)[:, :, None]).float()
        shift = (means - centroids).square().sum((1, 2))
        centroids = means
        found = _nearest(points, centroids)
        moved = found != labels
        _move(points, labels, sums, *moved.nonzero(as_tuple=True), found[moved])
        undone = moved.any(1) & (shift > tolerance) & (step + 1 < max_iter)
        if not bool(undone.all()):
            done = ~undone
            final[active[done]] = labels[done]
            inertia[active[done]] = _own_distances(points, centroids[done], labels[done]).sum(1)
            active, labels, sums, centroids = active[undone], labels[undone], sums[undone], centroids[undone]
            if len(active) == 0:
                break
    return final, inertia


def _flat(labels: Tensor, clusters: int) -> Tensor:
    """Labels (starts, n) as numbers of all starts' clusters, one after another."""
    return (labels + clusters * torch.arange(len(labels))[:, None]).flatten()


def _sizes(labels: Tensor, clusters: int) -> Tensor:
    """Points (starts, k) of every cluster."""
    return torch.bincount(_flat(labels, clusters), minlength=len(labels) * clusters).view(-1, clusters)


def _scores(points: _Points, centroids: Tensor) -> Tensor:
    """x.c (n, starts, k) for the centroids of every start."""
    flat = centroids.flatten(0, 1)
    return points.product(flat)[:, : len(flat)].unflatten(1, centroids.shape[:2])


def _nearest(points: _Points, centroids: Tensor) -> Tensor:
    return (_scores(points, centroids) - centroids.square().sum(2) / 2).argmax(2).t().contiguous()


def _own_distances(points: _Points, centroids: Tensor, labels: Tensor) -> Tensor:
    """Squared distances (starts, n) of the points to the centroids of their labels."""
    own = _scores(points, centroids).gather(2, labels.t()[:, :, None])[:, :, 0].t()
    return points.squares + centroids.double().square().sum(2).gather(1, labels) - 2 * own


def _move(points: _Points, labels: Tensor, sums: Tensor, starts: Tensor, rows: Tensor, found: Tensor) -> None:
    """Give ``rows`` of ``starts`` the labels ``found`` and bring the sums up to date."""
    signs = torch.ones(2 * len(rows))
    signs[len(rows) :] = -1
    base = sums.shape[1] * starts
    places = torch.cat([base + found, base + labels[starts, rows]])
    sums += points.sums(rows.repeat(2), places, signs, len(labels) * sums.shape[1]).view_as(sums)
    labels[starts, rows] = found


def _refill(points: _Points, centroids: Tensor, labels: Tensor, sums: Tensor) -> None:
    """Empty clusters take the points farthest from their centroids."""
    empty = _sizes(labels, sums.shape[1]) == 0
    for start in empty.any(1).nonzero().flatten().tolist():
        clusters = empty[start].nonzero().flatten()
        one = slice(start, start + 1)
        far = _own_distances(points, centroids[one], labels[one])[0].topk(len(clusters)).indices
        _move(points, labels, sums, torch.full_like(far, start), far, clusters)
