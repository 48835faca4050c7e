"""k-means of sparse rows: the nearest centroid of x is the one of least  |c_j|^2 / 2 - x.c_j.

Greedy k-means++ starts and plain Lloyd iterations, all starts at once: one product with their dense centroids each, and the sums of the
rows that moved. A start that is done leaves the others. Rows of bits that are too dense for a sparse product, as words of Amazon's reviews
are, are multiplied by tables of subset sums.
"""

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from carlg.graph import scipy_csr
from carlg.propagation import short_columns, split_binary
from carlg_kernels.ops.binary_product import binary_product, encode
from carlg_kernels.ops.sparse_product import sparse_product
from carlg_kernels.reference.binary_product import BITS

# The sparse product is several times faster on whole vectors of this many numbers.
_LANES = 16
# Centroids that go by at once: enough to share the reading of the rows, few enough for their scores to stay small.
_MOST_CENTROIDS = 160


class Points:
    """Rows of a CSR matrix: products with dense points, sums by label, squared lengths. Made once for all fits."""

    def __init__(self, matrix: Tensor) -> None:
        self.parts = (matrix.crow_indices(), short_columns(matrix), matrix.values())
        self.bits = _as_bits(matrix)
        self.matrix = scipy_csr(matrix)
        self.matrix.indices, self.matrix.indptr = self.matrix.indices.astype(np.int32), self.matrix.indptr.astype(np.int32)
        self.exact = self.matrix.astype(np.float64)
        self.count, self.width = matrix.shape
        self.squares = torch.from_numpy(self.exact.power(2) @ np.ones(self.width))

    def product(self, points: Tensor) -> Tensor:
        """x.p for every row x and every row p of ``points``, and zeros up to a multiple of the lanes."""
        padded = points.new_zeros(self.width, -(-len(points) // _LANES) * _LANES)
        padded[:, : len(points)] = points.t()
        return sparse_product(*self.parts, padded) if self.bits is None else binary_product(*self.bits, padded)

    def dense(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix[rows.numpy()].toarray())

    def sums(self, rows: Tensor, labels: Tensor, signs: Tensor, clusters: int) -> Tensor:
        """Sums (clusters, width) of signs times ``rows`` by label, in float64."""
        weights = sp.csr_matrix((signs.double().numpy(), (labels.numpy(), rows.numpy())), shape=(clusters, self.count))
        return torch.from_numpy((weights @ self.exact).toarray())


def _as_bits(matrix: Tensor) -> tuple[Any, ...] | None:
    """What ``binary_product`` takes before the dense matrix, where rows have one value beside zero, and enough of it to pay."""
    if matrix.values().numel() * BITS < matrix.numel():
        return None
    binary = split_binary(matrix.to_dense())
    if binary is None:
        return None
    bits, scale = binary
    each = torch.arange(len(scale) + 1)
    return *encode(bits), each, each[:-1].to(torch.int32), scale, False


def sparse_kmeans(points: Points, clusters: int, starts: int, generator: torch.Generator, max_iter: int = 300, tol: float = 1e-4) -> Tensor:
    """Labels of the start of least inertia; ``tol`` as in ``ck.kmeans``."""
    mean = torch.from_numpy(np.asarray(points.exact.mean(0)).ravel())
    tolerance = tol * float(points.squares.mean() - mean.square().sum()) / points.width
    rows = _plus_plus(points, clusters, starts, generator)
    parts = rows.split(max(1, _MOST_CENTROIDS // clusters))
    fits = [_lloyd(points, points.dense(part.flatten()).unflatten(0, part.shape), max_iter, tolerance) for part in parts]
    labels, inertia = (torch.cat(part) for part in zip(*fits, strict=True))
    return labels[inertia.argmin()]


def _plus_plus(points: Points, clusters: int, starts: int, generator: torch.Generator) -> Tensor:
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


def _squared_distances(points: Points, rows: Tensor) -> Tensor:
    """From the chosen ``rows`` (starts, trials) to all points: (starts, trials, n)."""
    flat = rows.flatten()
    product = points.product(points.dense(flat)).t()[: len(flat)]
    distances = (points.squares + points.squares[flat, None] - 2 * product).clamp_(min=0)
    return distances.unflatten(0, rows.shape)


class _Fits:
    """Starts under way: labels (n, starts), and the sums (starts, k, width) and sizes (starts, k) of their clusters."""

    def __init__(self, points: Points, centroids: Tensor) -> None:
        self.points, self.centroids = points, centroids
        starts, clusters, width = centroids.shape
        self.labels = self.nearest()
        self.sums = centroids.new_zeros(starts, clusters, width, dtype=torch.float64)
        self.sizes = torch.zeros(starts, clusters, dtype=torch.int64)
        rows, which = torch.arange(points.count).repeat_interleave(starts), torch.arange(starts).repeat(points.count)
        self._add(rows, which, self.labels.flatten(), torch.ones(len(rows)))

    def _add(self, rows: Tensor, starts: Tensor, labels: Tensor, signs: Tensor) -> None:
        """Signs times ``rows`` to the sums of their starts' clusters ``labels``."""
        places = labels + self.sizes.shape[1] * starts
        self.sums += self.points.sums(rows, places, signs, self.sizes.numel()).view_as(self.sums)
        self.sizes += torch.bincount(places, signs.double(), self.sizes.numel()).to(torch.int64).view_as(self.sizes)

    def scores(self) -> Tensor:
        """x.c (n, starts, k) for the centroids of every start."""
        flat = self.centroids.flatten(0, 1)
        return self.points.product(flat)[:, : len(flat)].unflatten(1, self.centroids.shape[:2])

    def nearest(self) -> Tensor:
        return self.scores().sub_(self.centroids.square().sum(2) / 2).argmax(2)

    def own_distances(self) -> Tensor:
        """Squared distances (n, starts) of the points to the centroids of their labels."""
        own = self.scores().gather(2, self.labels[:, :, None])[:, :, 0]
        lengths = self.centroids.double().square().sum(2).t().gather(0, self.labels)
        return self.points.squares[:, None] + lengths - 2 * own

    def move(self, rows: Tensor, starts: Tensor, found: Tensor) -> None:
        """Give ``rows`` of ``starts`` the labels ``found``."""
        before = self.labels[rows, starts]
        signs = torch.ones(2 * len(rows))
        signs[len(rows) :] = -1
        self._add(rows.repeat(2), starts.repeat(2), torch.cat([found, before]), signs)
        self.labels[rows, starts] = found

    def refill(self) -> None:
        """Empty clusters take the points farthest from their centroids."""
        empty = self.sizes == 0
        if not bool(empty.any()):
            return
        distances = self.own_distances()
        for start in empty.any(1).nonzero().flatten().tolist():
            clusters = empty[start].nonzero().flatten()
            far = distances[:, start].topk(len(clusters)).indices
            self.move(far, torch.full_like(far, start), clusters)

    def step(self) -> tuple[Tensor, Tensor]:
        """Means, then labels; the squared move of every start's centroids, and whether any of its labels changed."""
        self.refill()
        means = (self.sums / self.sizes.clamp(min=1)[:, :, None]).float()
        shift = (means - self.centroids).square().sum((1, 2))
        self.centroids = means
        found = self.nearest()
        rows, starts = (found != self.labels).nonzero(as_tuple=True)
        self.move(rows, starts, found[rows, starts])
        return shift, torch.bincount(starts, minlength=len(shift)) > 0

    def keep(self, chosen: Tensor) -> None:
        """Go on with some of the starts."""
        self.labels, self.sums, self.sizes, self.centroids = (
            self.labels[:, chosen],
            self.sums[chosen],
            self.sizes[chosen],
            self.centroids[chosen],
        )


def _lloyd(points: Points, centroids: Tensor, max_iter: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Labels (starts, n) and inertia (starts,) from the centroids (starts, k, width) of every start.

    A start is done once none of its labels changes, or the squared move of its centroids is at most ``tolerance``.
    """
    fits = _Fits(points, centroids)
    final, inertia = torch.empty(len(centroids), points.count, dtype=torch.int64), torch.empty(len(centroids), dtype=torch.float64)
    active = torch.arange(len(centroids))
    for step in range(max_iter):
        shift, changed = fits.step()
        undone = changed & (shift > tolerance) & (step + 1 < max_iter)
        if not bool(undone.all()):
            done = ~undone
            final[active[done]] = fits.labels[:, done].t()
            inertia[active[done]] = fits.own_distances().sum(0)[done]
            active = active[undone]
            fits.keep(undone)
            if len(active) == 0:
                break
    return final, inertia
