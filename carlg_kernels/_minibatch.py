"""Mini-batch k-means: Sculley's running means, with starved centres re-seeded as scikit-learn does.

A step draws a batch with replacement, assigns it, and moves every centre to the mean of all points it was ever given. Centres that were
given less than 1 % of what the busiest centre was given are re-seeded with points of the batch: at the first step and then each time 10c
points have been seen; at most half a batch of them at once. Counts begin at zero, so the first batch replaces given centres.
"""

import math

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._init import draw_distinct
from carlg_kernels._lloyd import Run, on_sphere
from carlg_kernels._sums import fixed_sum
from carlg_kernels._typing import compute_dtype

_PATIENCE = 10
_STARVED = 0.01


class MiniBatch:
    """Centres and the weight each was given so far; :meth:`step` takes one batch."""

    def __init__(
        self,
        centroids: Tensor,
        generator: torch.Generator,
        spherical: bool = False,
        starved_share: float = _STARVED,
    ) -> None:
        self.centroids = centroids.clone()
        self.given = torch.zeros(centroids.shape[0], dtype=torch.float64)
        self.generator = generator
        self.spherical = spherical
        self.seen_since_reseed = 0
        self.starved_share = starved_share

    def _reseed_due(self, rows: int) -> bool:
        self.seen_since_reseed += rows
        due = bool((self.given == 0).any()) or self.seen_since_reseed >= 10 * self.given.numel()
        if due:
            self.seen_since_reseed = 0
        return due

    def step(self, x: Tensor, weights: Tensor | None) -> tuple[float, float]:
        """Takes a batch; its inertia before the step, and the squared move of the centres."""
        c = self.given.numel()
        due = self._reseed_due(x.shape[0])
        labels, distances, *_ = ops.assign.assign(x, self.centroids)
        square = distances.double().square()
        inertia = fixed_sum(square if weights is None else square * weights)
        means, mass = ops.centroid_update.centroid_update(x, labels, weights, c)
        mass = mass.double().cpu()
        self.given += mass
        share = (mass / self.given.clamp(min=torch.finfo(torch.float64).tiny)).to(means)
        moved = torch.lerp(self.centroids, means, share[:, None])
        if due and self.starved_share > 0:
            moved = self._reseed(x, moved)
        if self.spherical:
            moved = on_sphere(moved, self.centroids)
        shift = fixed_sum((moved - self.centroids).double().square().flatten())
        self.centroids = moved
        return inertia, shift

    def _reseed(self, x: Tensor, centroids: Tensor) -> Tensor:
        rows = x.shape[0]
        starved = self.given < self.starved_share * self.given.max()
        if int(starved.sum()) > rows // 2:
            starved[self.given.argsort(stable=True)[rows // 2 :]] = False
        count = int(starved.sum())
        if count == 0:
            return centroids
        picked = draw_distinct(rows, count, None, self.generator, x.device)
        centroids = centroids.clone()
        centroids[starved.to(x.device)] = x[picked].to(centroids.dtype)
        self.given[starved] = self.given[~starved].min()
        return centroids


class Patience:
    """Stops when the running mean of the batch inertia has not improved for ten steps, as scikit-learn does."""

    def __init__(self, n: int, batch: int, tolerance: float, patience: int | None = _PATIENCE) -> None:
        self.weight = min(1.0, 2.0 * batch / (n + 1))
        self.tolerance = tolerance
        self.patience = patience
        self.mean: float | None = None
        self.best = math.inf
        self.idle = 0

    def done(self, inertia: float, shift: float) -> bool:
        if self.mean is None:
            self.mean = inertia
        else:
            self.mean += self.weight * (inertia - self.mean)
        if self.tolerance > 0 and shift <= self.tolerance:
            return True
        self.idle = 0 if self.mean < self.best else self.idle + 1
        self.best = min(self.best, self.mean)
        return self.patience is not None and self.idle >= self.patience


def iterate(
    z: Tensor,
    centroids: Tensor,
    weights: Tensor | None,
    batch: int,
    max_iter: int,
    tolerance: float,
    spherical: bool,
    generator: torch.Generator,
    *,
    patience: int | None = _PATIENCE,
    starved_share: float = _STARVED,
) -> Run:
    """Steps over random batches: at most ``max_iter`` times the points, or until the batch inertia stops falling."""
    n = z.shape[0]
    run = MiniBatch(centroids.to(compute_dtype(z.dtype)), generator, spherical, starved_share)
    stop = Patience(n, batch, tolerance, patience)
    steps = max(1, max_iter * n // batch)
    for step in range(1, steps + 1):
        rows = torch.randint(n, (batch,), generator=generator, device=generator.device).to(z.device)
        inertia, shift = run.step(z[rows], None if weights is None else weights[rows])
        # The first inertia is that of the start.
        if step > 1 and stop.done(inertia / batch, shift):
            return Run(run.centroids, math.ceil(step * batch / n), True, step)
    return Run(run.centroids, math.ceil(steps * batch / n), False, steps)
