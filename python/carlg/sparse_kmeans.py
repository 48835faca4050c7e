"""k-means of sparse rows: the nearest centroid of x is the one of least  |c_j|^2 / 2 - x.c_j.

Greedy k-means++ starts and plain Lloyd iterations: one product with the dense centroids each, and the sums of the rows that moved.
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
    fits = (_lloyd(points, points.dense(rows), max_iter, tolerance) for rows in _plus_plus(points, clusters, starts, generator))
    return min(fits, key=lambda fit: fit[1])[0]


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


def _lloyd(points: _Points, centroids: Tensor, max_iter: int, tolerance: float) -> tuple[Tensor, float]:
    """Labels and inertia once no label changes, or the squared move of the centroids is at most ``tolerance``."""
    labels = _nearest(points, centroids)
    sums = points.sums(torch.arange(points.count), labels, torch.ones(points.count), len(centroids))
    for _ in range(max_iter):
        _refill(points, centroids, labels, sums)
        means = (sums / torch.bincount(labels, minlength=len(sums)).clamp(min=1)[:, None]).float()
        shift = float((means - centroids).square().sum())
        centroids = means
        found = _nearest(points, centroids)
        moved = (found != labels).nonzero().flatten()
        _move(points, labels, sums, moved, found[moved])
        if len(moved) == 0 or shift <= tolerance:
            break
    return labels, float(_own_distances(points, centroids, labels).sum())


def _nearest(points: _Points, centroids: Tensor) -> Tensor:
    scores = points.product(centroids)
    half = scores.new_full((scores.shape[1],), torch.inf)
    half[: len(centroids)] = centroids.square().sum(1) / 2
    return scores.sub_(half).argmax(1)


def _own_distances(points: _Points, centroids: Tensor, labels: Tensor) -> Tensor:
    """Squared distances of the points to the centroids of their labels."""
    own = points.product(centroids).gather(1, labels[:, None])[:, 0]
    return points.squares + centroids.double().square().sum(1)[labels] - 2 * own


def _move(points: _Points, labels: Tensor, sums: Tensor, rows: Tensor, found: Tensor) -> None:
    """Give ``rows`` the labels ``found`` and bring the sums up to date."""
    signs = torch.ones(2 * len(rows))
    signs[len(rows) :] = -1
    sums += points.sums(rows.repeat(2), torch.cat([found, labels[rows]]), signs, len(sums))
    labels[rows] = found


def _refill(points: _Points, centroids: Tensor, labels: Tensor, sums: Tensor) -> None:
    """Empty clusters take the points farthest from their centroids."""
    empty = (torch.bincount(labels, minlength=len(sums)) == 0).nonzero().flatten()
    if len(empty):
        far = _own_distances(points, centroids, labels).topk(len(empty)).indices
        _move(points, labels, sums, far, empty)
