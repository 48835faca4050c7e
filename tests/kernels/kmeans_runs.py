"""k-means through the public function, for any backend: ``python kmeans_runs.py FILE`` saves the outcome of every run.

test_interpreted_kmeans.py runs it under Triton's interpreter, in a process of its own, and compares with the CPU kernels.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import carlg_kernels as ck
from carlg_kernels import ops
from carlg_kernels._sums import origin_of
from carlg_kernels._typing import compute_dtype


def points(n: int = 131, d: int = 5, seed: int = 0) -> Tensor:
    """A few overlapping clouds, so that Lloyd takes some iterations."""
    generator = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(7, d, generator=generator)
    return centers[torch.randint(7, (n,), generator=generator)] + torch.randn(n, d, generator=generator)


def weights(n: int = 131) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(3)).masked_fill(torch.arange(n) % 5 == 0, 0)


def starving(z: Tensor, c: int = 5) -> Tensor:
    """Rows of z and two centroids far from everything."""
    return torch.cat([z[: c - 2], torch.full((2, z.shape[1]), 40.0, dtype=z.dtype)])


def run(z: Tensor, c: int, **options: Any) -> dict[str, Any]:
    """The fields of the result, or the message of the error."""
    try:
        return ck.kmeans(z, c, generator=torch.Generator().manual_seed(7), **options)._asdict()
    except ValueError as error:
        return {"error": str(error)}


def steps(z: Tensor, c: int, count: int, w: Tensor | None = None) -> dict[str, Any]:
    """Steps of the operator itself, with the labels that it writes in place."""
    labels, bounds = ops.lloyd.new_state(z)
    centroids = previous = z[:c].to(compute_dtype(z.dtype))
    out: dict[str, Any] = {}
    for step in range(count):
        means, mass, progress = ops.lloyd.lloyd(z, w, centroids, previous, origin_of(z), labels, bounds)
        out |= {f"labels {step}": labels.clone(), f"means {step}": means, f"mass {step}": mass, f"progress {step}": progress}
        previous, centroids = centroids, means
    return out


def _carried() -> dict[str, Any]:
    z = points()
    first = ck.kmeans(z, 5, init=z[:5], max_iter=2, tol=0.0)
    return run(z + 1e-3, 5, init=first, init_points=z, max_iter=2, tol=0.0, spherical=True)


Z = points()
DUPLICATES = points(20).repeat(6, 1)
# Means of eight copies have no rounding error, so that every order of summation ends at the point itself.
EXACT = (8 * points(2)).round() / 8
RUNS: dict[str, Callable[[], dict[str, Any]]] = {
    "operator": lambda: steps(Z, 5, 3),
    "operator, weighted": lambda: steps(Z, 5, 2, weights()),
    "operator, float64": lambda: steps(Z.double(), 3, 2),
    "operator, half": lambda: steps(Z.half(), 3, 2),
    "until no label changes": lambda: run(Z, 5, init=Z[20:25], tol=0.0),
    "until the tolerance": lambda: run(Z, 5, init=Z[20:25], tol=1e-2),
    "ends inside a burst": lambda: run(Z, 5, init=Z[20:25], max_iter=3, tol=0.0),
    "ends after a burst": lambda: run(Z, 5, init=Z[20:25], max_iter=9, tol=0.0),
    "weighted": lambda: run(Z, 5, init=Z[:5], max_iter=4, tol=0.0, weights=weights()),
    "spherical": lambda: run(Z, 4, init=Z[:4], max_iter=4, tol=0.0, spherical=True),
    "random start": lambda: run(Z, 4, init="random", n_init=2, max_iter=2),
    "empty, keep": lambda: run(Z, 5, init=starving(Z), tol=0.0, empty="keep"),
    "empty, farthest": lambda: run(Z, 5, init=starving(Z), max_iter=5, tol=0.0, empty="farthest"),
    "empty, farthest, weighted": lambda: run(Z, 5, init=starving(Z), max_iter=3, tol=0.0, weights=weights()),
    "empty, random": lambda: run(Z, 5, init=starving(Z), max_iter=4, tol=0.0, empty="random"),
    "empty, error": lambda: run(Z, 5, init=starving(Z), empty="error"),
    "empty, spherical": lambda: run(Z, 5, init=-starving(-Z), max_iter=3, tol=0.0, spherical=True),
    "duplicate points": lambda: run(DUPLICATES, 4, init=DUPLICATES[[0, 3, 5, 9]], max_iter=5, tol=0.0),
    "duplicate centroids": lambda: run(DUPLICATES, 4, init=DUPLICATES[[0, 20, 3, 3]], max_iter=4, tol=0.0),
    "fewer points than clusters": lambda: run(EXACT.repeat(8, 1), 4, init=points(4), max_iter=3, tol=0.0),
    "one cluster": lambda: run(Z, 1, init=Z[:1], tol=0.0),
    "as many clusters as points": lambda: run(Z[:9], 9, init=Z[:9], tol=0.0),
    "one point": lambda: run(Z[:1], 1, init=Z[:1]),
    "odd width, columns": lambda: run(points(67, 37).t().contiguous().t(), 3, init=points(67, 37)[:3], max_iter=3, tol=0.0),
    "a result as start": _carried,
}


if __name__ == "__main__":
    torch.save({name: outcome() for name, outcome in RUNS.items()}, sys.argv[1])
