"""Clustering: k-means, k-medoids and the distance that mixes embeddings with the graph. No gradient, private random numbers."""

import torch
from torch import Tensor

from carlg_kernels import _init, _lloyd, _medoids, _minibatch, ops
from carlg_kernels._sums import fixed_sum, mean_variance
from carlg_kernels._typing import KMeansResult, KMedoidsResult, StarvedPolicy, compute_dtype
from carlg_kernels._validation import (
    INTEGERS,
    check_centroids,
    check_choice,
    check_count,
    check_finite,
    check_points,
    check_weights,
    describe,
)

_SEED = 0
_STARTS = ("k-means++", "k-means||", "random")
_MEDOID_STARTS = ("k-means++", "build", "random")
_TABLE_ROWS = 8192


def _resolve_generator(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        return torch.Generator().manual_seed(_SEED)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {describe(generator)}")
    return generator


def _check_clusters(num_clusters: int, n: int) -> int:
    check_count(num_clusters, "num_clusters")
    if num_clusters > n:
        raise ValueError(f"num_clusters must be at most the number of points {n}, got {num_clusters}")
    return num_clusters


def _check_tol(tol: float) -> float:
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 <= tol < float("inf"):
        raise ValueError(f"tol must be a finite number of at least 0, got {describe(tol)}")
    return float(tol)


def kmeans(
    z: Tensor,
    num_clusters: int,
    init: str | Tensor = "k-means++",
    n_init: int = 1,
    max_iter: int = 100,
    tol: float = 1e-4,
    weights: Tensor | None = None,
    empty: StarvedPolicy = "farthest",
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    spherical: bool = False,
) -> KMeansResult:
    """k-means: centroids that lower the sum of squared distances of the points to their nearest one.

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points; float16, bfloat16, float32 or float64, any strides.
    num_clusters : int
        At least 1, at most n.
    init : {"k-means++", "k-means||", "random"} or Tensor of shape (num_clusters, d)
        The start. "k-means++" is greedy with 2 + log(c) trials a centroid; "k-means||" draws many at once and suits large c; "random" takes
        random points. A tensor is a warm start, for example the centroids of the last epoch; it ignores ``n_init``.
    n_init : int
        Starts to run; the one of least inertia is returned.
    max_iter : int
        Iterations; with ``batch_size``, passes over as many random points as z has.
    tol : float
        Stop when the squared move of all centroids is at most ``tol`` times the mean variance of the features. 0 waits until no label
        changes (in mini-batches: until the batch inertia has not improved for ten steps).
    weights : Tensor, shape (n,), optional
        Finite, not negative, not all zero.
    empty : {"farthest", "keep", "random", "error"}
        A cluster that loses all its points takes the point farthest from its centroid, keeps its centroid, takes a random point, or raises
        ValueError. Mini-batches re-seed starved centres by their own rule.
    batch_size : int, optional
        Mini-batches of that many points drawn with replacement, centres as running means, starved ones re-seeded.
    generator : torch.Generator, optional
        Source of all random numbers; the global one is never touched. None is a new generator with a fixed seed: the same call gives the
        same result.
    spherical : bool
        Scale centroids to length one, for points on the sphere. Nearest in angle is then nearest in distance.

    Returns
    -------
    KMeansResult
        ``labels`` (int64), ``centroids`` (float32, or float64 for float64 points), ``inertia`` (float64 scalar), ``n_iter``,
        ``converged``, and of the last assignment ``distances``, ``second_labels`` and ``second_distances`` as in :func:`assign`. Labels and
        distances belong to the returned centroids. ``ck.simplified_silhouette(z, result)`` needs no second search.

    Notes
    -----
    The result is that of plain Lloyd; points whose label cannot have changed are skipped by the triangle inequality. The same bits for
    any number of threads. O(n + cd) extra memory. With fewer distinct points than clusters some centroids coincide, which is no error:
    the result is finite, and ties go to the lowest index. Each iteration is one call into compiled code, so Ctrl-C is heard between
    iterations.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> result = ck.kmeans(z, 2, init=z[[0, 2]])
    >>> result.labels, result.centroids.flatten(), float(result.inertia)
    (tensor([0, 0, 1, 1]), tensor([ 0.5000, 10.5000]), 1.0)
    """
    z = check_points(z).detach()
    check_finite(z)
    c = _check_clusters(num_clusters, z.shape[0])
    check_count(n_init, "n_init")
    check_count(max_iter, "max_iter")
    tolerance = _check_tol(tol)
    check_choice(empty, "empty", ("farthest", "keep", "random", "error"))
    weights = check_weights(weights, z)
    if weights is not None and not fixed_sum(weights) > 0:
        raise ValueError("weights must have a positive sum, got only zeros")
    if batch_size is not None:
        batch_size = min(check_count(batch_size, "batch_size"), z.shape[0])
    generator = _resolve_generator(generator)
    given = init if isinstance(init, Tensor) else None
    if given is not None:
        given = check_centroids(given, z, name="init").detach()
        check_finite(given, "init")
        if given.shape[0] != c:
            raise ValueError(f"init must be of shape ({c}, {z.shape[1]}), got {tuple(given.shape)}")
    else:
        check_choice(init, "init", _STARTS)
    if tolerance > 0:
        tolerance *= mean_variance(z)
    best: KMeansResult | None = None
    for _ in range(1 if given is not None else n_init):
        start = given
        if start is None:
            start = _start(z, c, str(init), weights, batch_size, generator)
        if spherical:
            start = _lloyd.unit_rows(start, start)
        if batch_size is None:
            run = _lloyd.iterate(z, start, weights, max_iter, tolerance, empty, spherical, generator)
        else:
            run = _minibatch.iterate(z, start, weights, batch_size, max_iter, tolerance, spherical, generator)
        result = _labelled(z, run, weights)
        if best is None or result.inertia < best.inertia:
            best = result
    assert best is not None
    return best


def _start(
    z: Tensor,
    c: int,
    init: str,
    weights: Tensor | None,
    batch_size: int | None,
    generator: torch.Generator,
) -> Tensor:
    """Starting centroids; mini-batches start from a random subset, as scikit-learn's do."""
    n = z.shape[0]
    if batch_size is not None:
        size = min(3 * max(batch_size, c), n)
        rows = _init.draw_distinct(n, size, None, generator, z.device)
        z, weights = z[rows], None if weights is None else weights[rows]
    return z[_init.initial_rows(z, c, init, weights, generator)].to(compute_dtype(z.dtype))


def _labelled(z: Tensor, run: _lloyd.Run, weights: Tensor | None) -> KMeansResult:
    labels, distances, second_labels, second_distances = ops.assign.assign(z, run.centroids)
    square = distances.double().square() if z.device.type != "mps" else distances.square()
    inertia = fixed_sum(square if weights is None else square * weights)
    return KMeansResult(
        labels,
        run.centroids,
        square.new_tensor(inertia),
        run.n_iter,
        run.converged,
        distances,
        second_labels,
        second_distances,
    )


def kmedoids(
    distances_or_z: Tensor,
    num_clusters: int,
    init: str | Tensor = "k-means++",
    max_iter: int = 100,
    metric: str = "euclidean",
    generator: torch.Generator | None = None,
) -> KMedoidsResult:
    """k-medoids by FasterPAM: points of the data as centres, lowering the sum of (unsquared) distances to the nearest one.

    Parameters
    ----------
    distances_or_z : Tensor, shape (n, n) or (n, d)
        A symmetric matrix of distances with ``metric="precomputed"``, otherwise points.
    num_clusters : int
        At least 1, at most n.
    init : {"k-means++", "build", "random"} or Tensor of shape (num_clusters,)
        The start: spread by distance, PAM's greedy BUILD (O(c n^2)), or random points. A tensor of row numbers carries medoids over.
    max_iter : int
        Rounds over all candidates.
    metric : {"euclidean", "precomputed"}
    generator : torch.Generator, optional
        As in :func:`kmeans`.

    Returns
    -------
    KMedoidsResult
        ``labels`` (int64, positions in ``medoids``), ``medoids`` (int64 row numbers), ``inertia`` (float64 scalar, the sum of distances),
        ``n_iter``, ``converged`` (no swap lowers the inertia).

    Notes
    -----
    Above 8,192 points distances are computed in tiles and never stored: O(n) extra memory, O(n^2 d) time a round. Below, the matrix is.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]])
    >>> result = ck.kmedoids(z, 2)
    >>> sorted(result.medoids.tolist()), float(result.inertia)
    ([1, 4], 4.0)
    """
    check_choice(metric, "metric", ("euclidean", "precomputed"))
    data = check_points(distances_or_z, "distances_or_z").detach()
    n = data.shape[0]
    precomputed = metric == "precomputed"
    if precomputed and data.shape[1] != n:
        raise ValueError(f"distances_or_z must be square with metric='precomputed', got {describe(data)}")
    check_finite(data, "distances_or_z")
    if precomputed and data.device.type == "cpu" and float(data.min()) < 0:
        raise ValueError(f"distances_or_z must not be negative, got {float(data.min())}")
    c = _check_clusters(num_clusters, n)
    check_count(max_iter, "max_iter")
    generator = _resolve_generator(generator)
    if isinstance(init, Tensor):
        medoids = _check_medoids(init, c, n).to(data.device)
    else:
        check_choice(init, "init", _MEDOID_STARTS)
        medoids = None
    points = data
    if not precomputed and n <= _TABLE_ROWS:
        data, precomputed = pairwise_distances(data), True
    if medoids is None:
        medoids = _medoids.initial_medoids(data, precomputed, c, str(init), generator)
    medoids, nearest, near, rounds, stable = _medoids.swap_until_stable(data, precomputed, medoids, max_iter)
    if points is not data:
        nearest, near = _medoids.two_nearest(points, False, medoids)
    inertia = torch.tensor(fixed_sum(near[0]), dtype=near.dtype if near.device.type == "mps" else torch.float64)
    return KMedoidsResult(nearest[0].clone(), medoids, inertia.to(data.device), rounds, stable)


def _check_medoids(medoids: Tensor, c: int, n: int) -> Tensor:
    if medoids.dtype not in INTEGERS or medoids.shape != (c,):
        raise ValueError(f"init must be int64 row numbers of shape ({c},), got {describe(medoids)}")
    medoids = medoids.long()
    if int(medoids.min()) < 0 or int(medoids.max()) >= n or medoids.unique().numel() != c:
        raise ValueError(f"init must hold distinct row numbers in [0, {n}), got {medoids.tolist()[:10]}")
    return medoids


def pairwise_distances(z: Tensor) -> Tensor:
    """The n x n table of Euclidean distances, by direct difference where two points are near; zero on the diagonal."""
    x = z.to(compute_dtype(z.dtype))
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
