"""The index of a variant and the loss made of it."""

from typing import Any

import torch
from torch import Tensor

import carlg_kernels as ck
from carlg.config import Config
from carlg_kernels.ops.dense_product import dense_product


def cluster_index(variant: str, z: Tensor, labels: Tensor, clusters: int, edge_index: Tensor) -> Tensor:
    """The index that the variant trains, differentiable in z. "mean" and "margin" are to be small, the others large."""
    if variant == "sim":
        return ck.simplified_silhouette(z, labels=labels, num_clusters=clusters)
    if variant == "sil":
        return ck.silhouette(z, labels)
    if variant == "vrc":
        return ck.variance_ratio(z, labels, num_clusters=clusters)
    if variant == "mean":
        return ck.mean_silhouette(z, labels)
    return ck.margin(z, edge_index)


def index_loss(config: Config, index: Tensor, z: Tensor, clusters: int) -> Tensor:
    """|target - index|, -index or -log(index); the index itself where it is to be small; plus the barrier."""
    if config.variant in ("mean", "margin"):
        loss = index
    elif config.target is not None:
        loss = (config.target - index).abs()
    else:
        loss = -index.log() if config.log_index else -index
    if config.barrier > 0:
        rank = config.barrier_rank or default_barrier_rank(clusters)
        loss = loss + config.barrier * (rank / participation(z)).log().relu()
    return loss


def default_barrier_rank(clusters: int) -> float:
    """Half of the dimensions that the centroids can span, and 16 where those are few."""
    return max(16.0, clusters / 2)


def participation(z: Tensor) -> Tensor:
    """Participation ratio (tr C)^2 / |C|_F^2 of the covariance C of the rows: between 1 and the dimension."""
    ratio: Tensor = _Participation.apply(z)
    return ratio


class _Participation(torch.autograd.Function):
    """With centred rows x, C = x^T x and t = tr C:  d PR / dx = 2 x (2 t I / |C|^2 - 2 t^2 C / |C|^4), one product of n rows."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        centred = z - z.mean(0)
        covariance = dense_product(centred.t(), centred)
        trace, square = covariance.diagonal().sum(), covariance.square().sum().clamp(min=1e-30)
        ctx.save_for_backward(centred, covariance, trace, square)
        return trace.square() / square

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        centred, covariance, trace, square = ctx.saved_tensors
        share = trace / square
        slope = covariance * (-4 * grad * share.square())
        slope.diagonal().add_(4 * grad * share)
        return dense_product(centred, slope)


def effective_rank(z: Tensor, rows: int = 2048) -> float:
    """exp of the entropy of the covariance spectrum, on evenly spaced rows where there are many."""
    z = z.detach()[:: max(1, z.shape[0] // rows)]
    centred = z - z.mean(0)
    spectrum = torch.linalg.eigvalsh(centred.t() @ centred).double().clamp(min=0)
    total = float(spectrum.sum())
    if not total > 1e-12 * z.shape[0]:
        return 1.0
    share = spectrum / total
    return float(torch.exp(-torch.special.xlogy(share, share).sum()))


def is_degenerate(labels: Tensor) -> bool:
    """Fewer than two clusters, or nothing but singletons: no index is defined."""
    sizes = torch.bincount(labels[labels >= 0])
    return not 2 <= int(sizes.count_nonzero()) < int(sizes.sum())
