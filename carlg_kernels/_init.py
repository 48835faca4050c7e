"""Starting centroids of k-means: row numbers of z, drawn with a private generator."""

import math

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._sums import fixed_sum, origin_of
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference.kmeans_plus_plus import draw

_ROUNDS = 5
_OVERSAMPLING = 2
_SEARCHES = 2
_WORTH = 0.2
_STEP_FLOPS = 2e10


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Random numbers in [0, 1), drawn where the generator lives."""
    wide = torch.float32 if generator.device.type == "mps" else torch.float64
    return torch.rand(shape, generator=generator, device=generator.device, dtype=wide)


def draw_distinct(n: int, count: int, weights: Tensor | None, generator: torch.Generator, device: torch.device) -> Tensor:
    """``count`` distinct numbers below n; with weights, each next one in proportion to its weight."""
    if weights is None:
        order = torch.randperm(n, generator=generator, device=generator.device)[:count]
        return order.to(device)
    key = -torch.log1p(-uniform(generator, n)).to(weights.device) / weights
    return key.nan_to_num(nan=math.inf).topk(count, largest=False).indices.to(device)


def _plus_plus(z: Tensor, c: int, weights: Tensor | None, generator: torch.Generator) -> Tensor:
    """Greedy k-means++ with 2 + log(c) trials as scikit-learn runs it, then a local search."""
    n, d = z.shape
    trials = 2 + int(math.log(c))
    first = draw_distinct(n, 1, weights, generator, z.device)
    uniforms = uniform(generator, c - 1, trials)
    closest = ops.assign.assign(z, z[first].to(compute_dtype(z.dtype)))[1].square()
    origin = origin_of(z)
    steps = max(1, int(_STEP_FLOPS / (2.0 * n * d * trials)))
    chosen = [first]
    for batch in uniforms.split(steps):
        chosen.append(ops.kmeans_plus_plus.kmeans_plus_plus(z, weights, origin, batch, closest))
    return _local_search(z, torch.cat(chosen), weights, generator)


def _local_search(z: Tensor, rows: Tensor, weights: Tensor | None, generator: torch.Generator) -> Tensor:
    """Swaps of starting centroids for points drawn as k-means++ draws them, where a swap lowers the inertia.

    Greedy seeding leaves some clusters with two centroids and others with none; a swap repairs both for the price of one column of
    distances. Swaps that gain less than a fifth of a cluster's share of the inertia are left to Lloyd's iterations. (Lattanzi & Sohler, "A better k-means++ algorithm via local search", 2019.)
    """
    c = rows.numel()
    first, near, second, far = ops.assign.assign(z, z[rows].to(compute_dtype(z.dtype)))
    nearest, distances = torch.stack([first, second]), torch.stack([near, far]).square_()
    for u in uniform(generator, _SEARCHES, c):
        mass = distances[0] if weights is None else distances[0] * weights
        candidates = draw(mass, u.to(z.device))
        ops.kmedoids.kmedoids(z, weights, candidates, rows, nearest, distances, squared=True, tolerance=_WORTH / c)
    return rows


def _parallel(z: Tensor, c: int, weights: Tensor | None, generator: torch.Generator) -> Tensor:
    """k-means||: a few rounds that each draw about 2c points at once, then k-means++ among what was drawn."""
    n = z.shape[0]
    real = compute_dtype(z.dtype)
    chosen = draw_distinct(n, 1, weights, generator, z.device)
    closest = ops.assign.assign(z, z[chosen].to(real))[1].square()
    for _ in range(_ROUNDS):
        mass = closest if weights is None else closest * weights
        chance = mass.double() * (_OVERSAMPLING * c / max(fixed_sum(mass), 1e-300))
        new = (uniform(generator, n).to(z.device) < chance).nonzero().flatten()
        if new.numel() == 0:
            continue
        chosen = torch.cat([chosen, new])
        near = ops.assign.assign(z, z[new].to(real))[1].square()
        closest = torch.minimum(closest, near)
    if chosen.numel() <= c:
        rest = draw_distinct(n, c, weights, generator, z.device)
        return torch.cat([chosen, rest])[:c]
    labels = ops.assign.assign(z, z[chosen].to(real))[0]
    mass = ops.centroid_update.centroid_update(z, labels, weights, chosen.numel())[1].to(real)
    return chosen[_plus_plus(z[chosen], c, mass, generator)]


def initial_rows(z: Tensor, c: int, init: str, weights: Tensor | None, generator: torch.Generator) -> Tensor:
    """The row numbers of ``c`` starting centroids."""
    if init == "random":
        return draw_distinct(z.shape[0], c, weights, generator, z.device)
    return (_plus_plus if init == "k-means++" else _parallel)(z, c, weights, generator)
