"""Losses as modules: |target - index|, or -index where target is None."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from carlg_kernels import functional, silhouettes
from carlg_kernels._typing import SilhouetteMetric, Singleton, VarianceDistance, compute_dtype
from carlg_kernels._validation import check_choice, check_labels, check_points, may_read_values

OnDegenerate = Literal["raise", "zero"]


def _is_clustering(labels: Tensor) -> Tensor:
    """Whether 2 <= (non-empty clusters) < (scored points), without reading values on the host."""
    ordered = labels.sort().values
    scored = ordered >= 0
    changes = ordered.diff(prepend=ordered.new_full((1,), -1)) != 0
    present = (changes & scored).sum()
    return (present >= 2) & (present < scored.sum())


class _IndexLoss(torch.nn.Module):
    """Turns a cluster validity index into a loss. Subclasses compute the index."""

    def __init__(self, target: float | None, on_degenerate: OnDegenerate) -> None:
        super().__init__()
        if target is not None and not isinstance(target, (int, float)):
            raise TypeError(f"target must be a number or None, got {type(target).__name__}")
        self.target = None if target is None else float(target)
        check_choice(on_degenerate, "on_degenerate", ("raise", "zero"))
        self.on_degenerate = on_degenerate

    def _loss(self, index: Tensor) -> Tensor:
        return -index if self.target is None else (self.target - index).abs()

    def _guarded(self, z: Tensor, labels: Tensor, loss: Callable[[], Tensor]) -> Tensor:
        """The loss; where the clustering is degenerate and that is asked for, a zero that keeps the graph connected.

        Where labels cannot be read (GPUs, torch.compile) the functions do not raise but give a finite index, which is masked.
        """
        if self.on_degenerate == "raise":
            return loss()
        fine = _is_clustering(check_labels(labels, check_points(z)))
        if not may_read_values(labels):
            value = loss()
            return torch.where(fine, value, torch.zeros_like(value))
        return loss() if bool(fine) else z[:0].sum(dtype=compute_dtype(z.dtype))

    def extra_repr(self) -> str:
        return f"target={self.target}, on_degenerate={self.on_degenerate!r}"


class SimplifiedSilhouetteLoss(_IndexLoss):
    """|target - mean simplified silhouette|; see :func:`carlg_kernels.simplified_silhouette`.

    Parameters
    ----------
    target : float or None
        None minimises -index.
    singleton : {"zero", "code"}
    on_degenerate : {"raise", "zero"}
        What a clustering with one cluster, or with nothing but singletons, gives: ValueError, or 0 with a zero gradient.

    Examples
    --------
    >>> loss = ck.nn.SimplifiedSilhouetteLoss(target=0.9)
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]], requires_grad=True)
    >>> round(loss(z, labels=torch.tensor([0, 0, 1, 1])).item(), 4)
    0.0499
    """

    def __init__(
        self,
        target: float | None = 0.9,
        singleton: Singleton = "zero",
        on_degenerate: OnDegenerate = "raise",
    ) -> None:
        super().__init__(target, on_degenerate)
        check_choice(singleton, "singleton", ("zero", "code"))
        self.singleton: Singleton = singleton

    def forward(
        self,
        z: Tensor,
        centroids: Tensor | None = None,
        labels: Tensor | None = None,
        num_clusters: int | None = None,
    ) -> Tensor:
        def loss() -> Tensor:
            index = functional.simplified_silhouette(z, centroids, labels, singleton=self.singleton, num_clusters=num_clusters)
            return self._loss(index)

        return loss() if centroids is not None or labels is None else self._guarded(z, labels, loss)


class SilhouetteLoss(_IndexLoss):
    """|target - mean exact silhouette|; see :func:`carlg_kernels.silhouette`.

    Parameters
    ----------
    target : float or None
        None minimises -index.
    metric : {"euclidean", "sqeuclidean", "cosine"}
    on_degenerate : {"raise", "zero"}
        What a clustering with one cluster, or with nothing but singletons, gives: ValueError, or 0 with a zero gradient.

    Examples
    --------
    >>> loss = ck.nn.SilhouetteLoss(target=0.9)
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]], requires_grad=True)
    >>> round(loss(z, torch.tensor([0, 0, 1, 1])).item(), 4)
    0.0003
    """

    def __init__(
        self,
        target: float | None = 0.9,
        metric: SilhouetteMetric = "euclidean",
        on_degenerate: OnDegenerate = "raise",
    ) -> None:
        super().__init__(target, on_degenerate)
        check_choice(metric, "metric", ("euclidean", "sqeuclidean", "cosine"))
        self.metric: SilhouetteMetric = metric

    def forward(self, z: Tensor, labels: Tensor, num_clusters: int | None = None) -> Tensor:
        return self._guarded(z, labels, lambda: self._loss(silhouettes.silhouette(z, labels, self.metric, num_clusters=num_clusters)))


class VarianceRatioLoss(_IndexLoss):
    """-VRC, or |target - VRC|; see :func:`carlg_kernels.variance_ratio`.

    Examples
    --------
    >>> loss = ck.nn.VarianceRatioLoss()
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> loss(z, torch.tensor([0, 0, 1, 1]))
    tensor(-200.)
    """

    def __init__(
        self,
        target: float | None = None,
        distance: VarianceDistance = "sqeuclidean",
        on_degenerate: OnDegenerate = "raise",
    ) -> None:
        super().__init__(target, on_degenerate)
        check_choice(distance, "distance", ("sqeuclidean", "euclidean"))
        self.distance: VarianceDistance = distance

    def forward(
        self,
        z: Tensor,
        labels: Tensor | None = None,
        centroids: Tensor | None = None,
        num_clusters: int | None = None,
    ) -> Tensor:
        chosen = labels
        if labels is None and centroids is not None and self.on_degenerate == "zero":
            chosen = functional.assign(z, centroids).labels

        def loss() -> Tensor:
            return self._loss(functional.variance_ratio(z, chosen, centroids, self.distance, num_clusters))

        return loss() if chosen is None else self._guarded(z, chosen, loss)


class DaviesBouldinLoss(_IndexLoss):
    """The Davies-Bouldin index itself, which is to be small; see :func:`carlg_kernels.davies_bouldin`.

    Examples
    --------
    >>> loss = ck.nn.DaviesBouldinLoss()
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> loss(z, torch.tensor([0, 0, 1, 1]))
    tensor(0.1000)
    """

    def __init__(self, on_degenerate: OnDegenerate = "raise") -> None:
        super().__init__(None, on_degenerate)

    def forward(self, z: Tensor, labels: Tensor, num_clusters: int | None = None) -> Tensor:
        return self._guarded(z, labels, lambda: functional.davies_bouldin(z, labels, num_clusters))
