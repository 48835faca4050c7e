"""Lloyd's iterations from given centroids, with the policies for empty clusters."""

from typing import NamedTuple

import torch
from torch import Tensor

from carlg_kernels import _dispatch, ops
from carlg_kernels._init import draw_distinct
from carlg_kernels._sums import fixed_sum, origin_of

_BURST = 8
_CARRY_SAMPLE = 64


class Run(NamedTuple):
    """Where the iterations ended; ``n_steps`` counts mini-batches."""

    centroids: Tensor
    n_iter: int
    converged: bool
    n_steps: int = 0


class Carried(NamedTuple):
    """The points of an earlier run, and where they were with respect to its last centroids."""

    points: Tensor
    labels: Tensor
    centroids: Tensor
    second_distances: Tensor


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
        # Labels are those of the nearest centroids, and there is no Triton kernel for the distance to a given one.
        nearest = _dispatch.triton_serves(z.device.type)
        far = ops.assign.assign(z, centroids)[1] if nearest else ops.own_distance.own_distance(z, centroids, labels)
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


def on_sphere(means: Tensor, fallback: Tensor) -> Tensor:
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
    carried: Carried | None = None,
) -> Run:
    """Lloyd's iterations until no label changes, the squared move of the centroids is at most ``tolerance``, or ``max_iter``."""
    if not spherical and _dispatch.triton_serves(z.device.type):
        return _iterate_ahead(z, centroids, weights, max_iter, tolerance, empty, generator)
    return _Steps(z, centroids, weights, empty, spherical, generator, carried).run(max_iter, tolerance)


def _carried_state(z: Tensor, origin: Tensor, carried: Carried) -> tuple[Tensor, Tensor]:
    """Labels and bounds before the first step from those of the points before they moved, where a sample says that it pays.

    Carried bounds are looser than those of a search, and the points that they do not settle in the first step or the next are searched
    after all: docs/CLUSTERING.md has the measurement behind the share that is asked for.
    """
    n, c = z.shape[0], carried.centroids.shape[0]

    def bounds(step: int) -> Tensor:
        points, labels, second = carried.points[::step], carried.labels[::step], carried.second_distances[::step]
        return ops.carried_bounds.carried_bounds(z[::step], points, carried.centroids, origin, labels, second)

    upper, lower, _ = bounds(max(1, n // _CARRY_SAMPLE))
    if int((upper < lower).sum()) < (0.75 + 4 / c) * upper.numel():
        return ops.lloyd.new_state(z)
    return -2 - carried.labels, bounds(1)


class _Steps:
    """Steps that the host follows one by one."""

    def __init__(
        self,
        z: Tensor,
        centroids: Tensor,
        weights: Tensor | None,
        empty: str,
        spherical: bool,
        generator: torch.Generator,
        carried: Carried | None = None,
    ) -> None:
        self.z, self.weights, self.empty, self.generator = z, weights, empty, generator
        self.spherical = spherical
        self.centroids = self.previous = centroids
        self.origin = origin_of(z)
        if carried is None or z.device.type != "cpu" or _dispatch.triton_serves("cpu"):
            self.labels, self.bounds = ops.lloyd.new_state(z)
        else:
            self.previous = carried.centroids
            self.labels, self.bounds = _carried_state(z, self.origin, carried)

    def run(self, max_iter: int, tolerance: float) -> Run:
        for step in range(1, max_iter + 1):
            if self.advance(tolerance):
                return Run(self.centroids, step, True)
        return Run(self.centroids, max_iter, False)

    def advance(self, tolerance: float) -> bool:
        """One step; whether it was the last."""
        z, centroids = self.z, self.centroids
        means, mass, progress = ops.lloyd.lloyd(z, self.weights, centroids, self.previous, self.origin, self.labels, self.bounds)
        shift, changed, starved = progress.tolist()
        if starved and self.empty != "keep":
            seeds = _rows_for_empty(z, centroids, self.labels, mass, self.weights, self.empty, self.generator)
            means = _reseed(z, means, mass, self.labels, self.bounds, self.weights, *seeds)
        if self.spherical:
            means = on_sphere(means, centroids)
        if self.spherical or starved:
            shift = fixed_sum((means - centroids).square().flatten())
        self.previous, self.centroids = centroids, means
        return bool(changed == 0 or shift <= tolerance)


def _iterate_ahead(
    z: Tensor,
    centroids: Tensor,
    weights: Tensor | None,
    max_iter: int,
    tolerance: float,
    empty: str,
    generator: torch.Generator,
) -> Run:
    """Bursts of steps on a GPU between two looks of the host: convergence freezes the centroids on the device.

    A burst in which a cluster ran empty is taken back, and the host follows step by step from there, so that the policy applies where it
    should.
    """
    from carlg_kernels._triton.lloyd import lloyd_step

    done = torch.zeros((), dtype=torch.int32, device=z.device)
    n_iter = 0
    while n_iter < max_iter:
        burst = min(_BURST, max_iter - n_iter)
        start, taken = centroids, torch.zeros_like(done)
        starved = torch.zeros((), dtype=torch.bool, device=z.device)
        for _ in range(burst):
            taken = taken + 1 - done
            step = lloyd_step(z, centroids, weights, tolerance, done)
            centroids, done = step.centroids, torch.maximum(done, step.done)
            starved |= (step.mass == 0).any()
        steps, converged, emptied = torch.stack([taken, done, starved.int()]).tolist()
        if emptied and empty != "keep":
            rest = _Steps(z, start, weights, empty, False, generator).run(max_iter - n_iter, tolerance)
            return Run(rest.centroids, n_iter + rest.n_iter, rest.converged)
        n_iter += steps
        if converged:
            return Run(centroids, n_iter, True)
    return Run(centroids, max_iter, False)
