"""Lloyd's iterations from given centroids, with the policies for empty clusters."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._init import draw_distinct
from carlg_kernels._sums import origin_of


class Run(NamedTuple):
    """Where Lloyd's iterations ended."""

    centroids: Tensor
    n_iter: int
    converged: bool


def _rows_for_empty(
    z: Tensor,
    centroids: Tensor,
    labels: Tensor,
    mass: Tensor,
    weights: Tensor | None,
    policy: str,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """The empty clusters and the rows that re-seed them, as many as there are rows to give."""
    empty = (mass == 0).nonzero().flatten()
    if policy == "error":
        raise ValueError(f"empty='error': clusters {empty[:10].tolist()} have no points; choose another init or policy")
    if policy == "random":
        rows = draw_distinct(z.shape[0], empty.numel(), weights, generator, z.device)
    else:
        far = ops.own_distance.own_distance(z, centroids, labels)
        if weights is not None:
            far = far.masked_fill(weights == 0, -1)
        rows = far.topk(empty.numel()).indices
        rows = rows[far[rows] > 0]
    return empty[: rows.numel()], rows


def _reseed(
    z: Tensor,
    means: Tensor,
    mass: Tensor,
    labels: Tensor,
    bounds: Tensor,
    weights: Tensor | None,
    clusters: Tensor,
    rows: Tensor,
) -> Tensor:
    """Move each of ``rows`` out of its cluster into one of the empty ``clusters``."""
    means = means.clone()
    for cluster, row in zip(clusters.tolist(), rows.tolist(), strict=True):
        x = z[row].to(means.dtype)
        w = 1.0 if weights is None else float(weights[row])
        giver = int(labels[row])
        left = float(mass[giver]) - w
        if left > 0:
            means[giver] += (means[giver] - x) * (w / left)
        means[cluster] = x
        mass[giver], mass[cluster] = left, w
        labels[row] = cluster
        bounds[0, row], bounds[1, row] = float("inf"), -float("inf")
    return means


def unit_rows(means: Tensor, fallback: Tensor) -> Tensor:
    """Rows scaled to length one; zero rows are taken from ``fallback``."""
    length = means.square().sum(1, keepdim=True).sqrt()
    return torch.where(length > 0, means / length.clamp(min=torch.finfo(means.dtype).tiny), fallback)


def iterate(
    z: Tensor,
    centroids: Tensor,
    weights: Tensor | None,
    max_iter: int,
    tolerance: float,
    empty: str,
    spherical: bool,
    generator: torch.Generator,
) -> Run:
    """Lloyd's iterations until no label changes, the squared move of the centroids is at most ``tolerance``, or ``max_iter``."""
    finish: Callable[[Tensor, Tensor], Tensor] = unit_rows if spherical else lambda means, _: means
    labels, bounds = ops.lloyd.new_state(z)
    previous, origin = centroids, origin_of(z)
    for step in range(1, max_iter + 1):
        means, mass, progress = ops.lloyd.lloyd(z, weights, centroids, previous, origin, labels, bounds)
        shift, changed, starved = progress.tolist()
        if starved and empty != "keep":
            seeds = _rows_for_empty(z, centroids, labels, mass, weights, empty, generator)
            means = _reseed(z, means, mass, labels, bounds, weights, *seeds)
        means = finish(means, centroids)
        if spherical or starved:
            shift = float((means - centroids).double().square().sum())
        previous, centroids = centroids, means
        if changed == 0 or shift <= tolerance:
            return Run(centroids, step, True)
    return Run(centroids, max_iter, False)
