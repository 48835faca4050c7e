"""The indices as their definitions read, in plain differentiable torch: what every kernel is compared with, in float64."""

import torch
from torch import Tensor


def distances(x: Tensor, y: Tensor) -> Tensor:
    square = (x[:, None] - y[None]).square().sum(-1)
    return torch.where(square > 0, square, 1).sqrt() * (square > 0)


def paired(x: Tensor, y: Tensor) -> Tensor:
    square = (x - y).square().sum(-1)
    return torch.where(square > 0, square, 1).sqrt() * (square > 0)


def means(z: Tensor, labels: Tensor, c: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    keep = labels >= 0
    w = torch.ones_like(z[:, 0]) if weights is None else weights
    onehot = torch.nn.functional.one_hot(labels[keep], c).to(z.dtype) * w[keep, None]
    mass = onehot.sum(0)
    return (onehot.T @ z[keep]) / torch.where(mass > 0, mass, 1)[:, None], mass


def score(a: Tensor, b: Tensor) -> Tensor:
    top = torch.maximum(a, b)
    return torch.where(top > 0, (b - a) / torch.where(top > 0, top, 1), 0)


def simplified_silhouette(z, centroids=None, labels=None, singleton="zero") -> Tensor:
    """One value a point, 0 for outliers."""
    if labels is None:
        labels = distances(z, centroids).argmin(1)
    keep, index = labels >= 0, labels.clamp(min=0)
    c = int(labels.max()) + 1 if centroids is None else len(centroids)
    alone = torch.zeros_like(keep)
    empty = torch.zeros(c, dtype=torch.bool)
    if centroids is None:
        centroids, mass = means(z, labels, c)
        empty = mass == 0
        alone = (mass[index] == 1) & (singleton == "zero")
    table = distances(z, centroids)
    own = torch.nn.functional.one_hot(index, c).bool()
    b = table.masked_fill(own | empty[None], float("inf")).min(1).values
    return torch.where(keep & ~alone, score(table[own], b), 0)


def variance_ratio(z, labels, centroids=None, distance="sqeuclidean") -> Tensor:
    keep = labels >= 0
    z, labels = z[keep], labels[keep]
    c = int(labels.max()) + 1 if centroids is None else len(centroids)
    mu, mass = means(z, labels, c)
    centers = mu if centroids is None else centroids
    between = (mass * paired(centers, z.mean(0)[None]).pow(2 if distance == "sqeuclidean" else 1)).sum()
    within = paired(z, centers[labels]).pow(2 if distance == "sqeuclidean" else 1).sum()
    present = (mass > 0).sum()
    return between / within * (len(z) - present) / (present - 1)


def davies_bouldin(z, labels) -> Tensor:
    keep = labels >= 0
    z, labels = z[keep], labels[keep].unique(return_inverse=True)[1]
    c = int(labels.max()) + 1
    mu, mass = means(z, labels, c)
    spread = torch.zeros(c, dtype=z.dtype).index_add(0, labels, paired(z, mu[labels])) / mass
    apart = distances(mu, mu)
    ratio = (spread[:, None] + spread[None]) / torch.where(apart > 0, apart, 1)
    return torch.where(apart > 0, ratio, 0).max(1).values.mean()


def pairwise(z: Tensor, metric: str = "euclidean") -> Tensor:
    """All distances. torch's direct mode, whose gradient at zero distance is zero."""
    if metric == "cosine":
        norm = z.square().sum(1, keepdim=True)
        unit = torch.where(norm > 0, z / torch.where(norm > 0, norm, 1).sqrt(), 0)
        return (1 - unit @ unit.T) * (1 - torch.eye(len(z), dtype=z.dtype))
    d = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
    return d.square() if metric == "sqeuclidean" else d


def silhouette(z, labels, metric="euclidean") -> Tensor:
    """One value a point, 0 for outliers."""
    keep, index = labels >= 0, labels.clamp(min=0)
    onehot = torch.nn.functional.one_hot(index, int(labels.max()) + 1).to(z.dtype) * keep[:, None]
    size = onehot.sum(0)
    sums = pairwise(z, metric) @ onehot
    own = torch.nn.functional.one_hot(index, len(size)).bool()
    a = sums[own] / (size[index] - 1).clamp(min=1)
    b = (sums / size.clamp(min=1)).masked_fill(own | (size == 0)[None], float("inf")).min(1).values
    return torch.where(keep & (size[index] > 1), score(a, b), 0)


def mean_silhouette(z, labels) -> Tensor:
    keep, index = labels >= 0, labels.clamp(min=0)
    onehot = torch.nn.functional.one_hot(index, int(labels.max()) + 1).to(z.dtype) * keep[:, None]
    size = onehot.sum(0)
    sums = pairwise(z) @ onehot
    own = torch.nn.functional.one_hot(index, len(size)).bool()
    others = (sums / size.clamp(min=1)).masked_fill(own, 0).sum(1) / ((size > 0).sum() - 1)
    return torch.where(keep, sums[own] / (size[index] - 1).clamp(min=1) - others, 0)


def margin(z, edge_index) -> Tensor:
    n = len(z)
    joined = torch.zeros(n, n, dtype=torch.bool)
    joined[edge_index[0], edge_index[1]] = True
    joined &= ~torch.eye(n, dtype=torch.bool)
    apart = ~joined & ~torch.eye(n, dtype=torch.bool)
    d = pairwise(z)
    return (d * joined).sum(1) / joined.sum(1).clamp(min=1) - (d * apart).sum(1) / apart.sum(1).clamp(min=1)
