"""The same quantities the way others write them: plain torch, vectorised, and the authors' loop over clusters."""

import torch
from torch import Tensor


def means(z: Tensor, labels: Tensor, c: int) -> tuple[Tensor, Tensor]:
    counts = torch.bincount(labels, minlength=c)
    return torch.zeros(c, z.shape[1]).index_add(0, labels, z) / counts[:, None], counts


def eager_simplified_silhouette(z: Tensor, labels: Tensor, c: int) -> Tensor:
    mu, _ = means(z, labels, c)
    table = torch.cdist(z, mu)
    a = table.gather(1, labels[:, None])[:, 0]
    b = table.scatter(1, labels[:, None], float("inf")).min(1).values
    return ((b - a) / torch.maximum(a, b)).mean()


def loop_simplified_silhouette(z: Tensor, labels: Tensor, c: int) -> Tensor:
    present = labels.unique()
    mu = torch.stack([z[labels == j].mean(0) for j in present])
    parts = []
    for i in range(len(present)):
        table = torch.cdist(z[labels == present[i]], mu)
        b = table[:, torch.arange(len(present)) != i].min(1).values
        parts.append((b - table[:, i]) / torch.maximum(b, table[:, i]))
    return torch.cat(parts).mean()


def eager_variance_ratio(z: Tensor, labels: Tensor, c: int) -> Tensor:
    mu, counts = means(z, labels, c)
    between = (counts * (mu - z.mean(0)).square().sum(1)).sum()
    return between / (z - mu[labels]).square().sum() * (len(z) - c) / (c - 1)


def eager_davies_bouldin(z: Tensor, labels: Tensor, c: int) -> Tensor:
    mu, counts = means(z, labels, c)
    spread = torch.zeros(c).index_add(0, labels, (z - mu[labels]).norm(dim=1)) / counts
    apart = torch.cdist(mu, mu) + torch.diag(torch.full((c,), float("inf")))
    return ((spread[:, None] + spread[None]) / apart).max(1).values.mean()


def cdist_top_two(z: Tensor, centroids: Tensor) -> Tensor:
    return torch.cdist(z, centroids).topk(2, largest=False).values


def loop_silhouette(z: Tensor, labels: Tensor) -> Tensor:
    """The exact silhouette with one autograd graph a pair of clusters, the way it is usually written."""
    parts, present = [], labels.unique()
    for j in present:
        own = z[labels == j]
        a = torch.cdist(own, own).sum(1) / max(len(own) - 1, 1)
        b = torch.stack([torch.cdist(own, z[labels == k]).mean(1) for k in present if k != j], 1).min(1).values
        parts.append((b - a) / torch.maximum(a, b))
    return torch.cat(parts).mean()
