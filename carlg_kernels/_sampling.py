"""Silhouettes from sampled distances, with an error bound.

The mean distance m of a point u to cluster j is estimated from M draws v, with replacement, of probability q_v = (1 + r_v / r) / (2 n_j),
where r_v = ||z_v - mu_j|| and r is the mean of the r_v:  X = D_uv / (n_j q_v)  has mean m. With l = ||z_u - mu_j||, D_uv <= l + r_v gives
X <= 2 max(l, r), and m >= max(l, r - l) gives max(l, r) <= 2 m; so 0 <= X <= 4 m, Var X <= 3 m^2, and by Bernstein's inequality

    P(|mean of X - m| >= e m) <= 2 exp(-M e^2 / (6 + 2 e)).

Relative errors of at most e = t / (2 + t) in a and in b change s = (b - a) / max(a, b) by at most t.
"""

import math

import torch
from torch import Tensor

from carlg_kernels import ops
from carlg_kernels._init import draw_distinct, uniform
from carlg_kernels._library import full_precision
from carlg_kernels._progress import paced
from carlg_kernels.reference.common import row_blocks
from carlg_kernels.reference.silhouette import pair_distances

FAILURE = 0.01


def draws(error: float, events: int, failure: float) -> int:
    """M such that ``events`` means all keep within a silhouette error of ``error``, but for a probability of ``failure``."""
    e = error / (2 + error)
    return math.ceil((6 + 2 * e) / e**2 * math.log(2 * events / failure))


def scored_rows(error: float, failure: float) -> int:
    """How many points' mean of values in [-1, 1] is within ``error`` of the mean of all (Hoeffding), but for ``failure``."""
    return math.ceil(2 * math.log(2 / failure) / error**2)


def _distances(x: Tensor, y: Tensor, centre: Tensor) -> Tensor:
    """All distances by a matrix product around the centre: samples are many and need no more digits."""
    return torch.cdist(x - centre, y - centre, compute_mode="use_mm_for_euclid_dist")


def _columns(x: Tensor, members: Tensor, mean: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sampled points of a cluster and what each counts for in the mean; all of them where the cluster is no larger than the sample."""
    n = members.shape[0]
    if n <= size:
        return x[members], torch.full((n,), 1 / n, dtype=x.dtype, device=x.device)
    radius = torch.cat([(x[members[b]] - mean).square().sum(1).sqrt() for b in row_blocks(n, x.shape[1])])
    share = radius.double()
    share = (1 + share / share.mean().clamp(min=torch.finfo(torch.float64).tiny)) / 2
    # Inverse transform: torch.multinomial takes at most 2^24 categories.
    total = share.cumsum(0)
    places = uniform(generator, size).to(x.device, total.dtype) * total[-1]
    drawn = torch.searchsorted(total, places).clamp(max=n - 1)
    return x[members[drawn]], (1 / (size * share[drawn])).to(x.dtype) * (total[-1] / n).to(x.dtype)


def sampled_silhouette(
    z: Tensor, labels: Tensor, clusters: int, error: float, averaged: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(points, values): sampled points where only their mean is wanted (``averaged``), otherwise every scored point."""
    with torch.no_grad(), full_precision():
        x = z.detach().to(torch.float64 if z.dtype == torch.float64 else torch.float32)
        means, counts = ops.centroid_update.centroid_update(x, labels, None, clusters)
        points = (labels >= 0).nonzero().flatten()
        present = (counts > 0).nonzero().flatten()
        events, failure, bound = len(present), FAILURE, error
        if averaged:
            wanted, bound, failure = scored_rows(error / 2, FAILURE / 2), error / 2, FAILURE / 2
            if wanted < len(points):
                points = points[draw_distinct(len(points), wanted, None, generator, z.device)].sort().values
            events *= len(points)
        size = draws(bound, events, failure)
        own, other = x.new_zeros(len(points)), x.new_full((len(points),), math.inf)
        order = labels.argsort(stable=True)
        ends = torch.cat((counts.new_zeros(1), counts.cumsum(0))) + (labels < 0).sum()
        mine, slack = labels[points], 1 + 1e-3
        spread = x.new_zeros(clusters)
        for block in row_blocks(len(x), 2 * x.shape[1]):
            square = (x[block] - means[labels[block].clamp(min=0)]).square().sum(1)
            spread.index_add_(0, labels[block].clamp(min=0), square * (labels[block] >= 0))
        spread /= counts.clamp(min=1)
        # Jensen's bounds, as in csrc/cpu/candidates.h: only these clusters can be the nearest other one.
        least = x.new_empty(len(points))
        for block in row_blocks(len(points), clusters):
            upper = pair_distances(x[points[block]], means[present]).square() + spread[present]
            least[block] = upper.masked_fill(mine[block, None] == present, math.inf).min(1).values.sqrt()
        for j in paced(present.tolist()):
            members = order[int(ends[j]) : int(ends[j + 1])]
            near = torch.cat([(x[points[b]] - means[j]).square().sum(1).sqrt() for b in row_blocks(len(points), x.shape[1])])
            asking = ((near <= least * slack) | (mine == j)).nonzero().flatten()
            if len(asking) == 0:
                continue
            columns, weight = _columns(x, members, means[j], size, generator)
            for block in row_blocks(len(asking), len(columns)):
                rows = asking[block]
                drawn = len(columns) < len(members)
                d = _distances(x[points[rows]], columns, means[j]) if drawn else pair_distances(x[points[rows]], columns)
                mean = d @ weight
                inside = mine[rows] == j
                own[rows] = torch.where(inside, mean * (len(members) / max(len(members) - 1, 1)), own[rows])
                other[rows] = torch.where(inside, other[rows], torch.minimum(other[rows], mean))
        top = torch.maximum(own, other)
        value = (other - own) / top.masked_fill(top == 0, 1)
        return points, value.masked_fill((counts[mine] <= 1) | (top == 0), 0)
