"""Clustering: k-means, k-medoids and the distance that mixes embeddings with the graph. No gradient, private random numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from carlg_kernels import _init, _lloyd, _medoids, _minibatch, ops
from carlg_kernels._lloyd import Run
from carlg_kernels._sums import fixed_sum, mean_variance
from carlg_kernels._typing import KMeansResult, KMedoidsResult, StarvedPolicy, compute_dtype
from carlg_kernels._validation import (
    INTEGERS,
    check_centroids,
    check_choice,
    check_count,
    check_edges,
    check_finite,
    check_points,
    check_squares,
    check_weights,
    describe,
)

_SEED = 0
_STARTS = ("k-means++", "k-means||", "random")
_MEDOID_STARTS = ("k-means++", "build", "random")
_TABLE_BLOCK = 1024
_CHECKED_ROWS = 16


def resolve_generator(generator: torch.Generator | None) -> torch.Generator:
    if generator is None:
        return torch.Generator().manual_seed(_SEED)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {describe(generator)}")
    return generator


def _check_clusters(num_clusters: int, n: int) -> int:
    num_clusters = check_count(num_clusters, "num_clusters")
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
    init: str | Tensor | KMeansResult = "k-means++",
    n_init: int = 1,
    max_iter: int = 100,
    tol: float = 1e-4,
    weights: Tensor | None = None,
    empty: StarvedPolicy = "farthest",
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    spherical: bool = False,
    init_points: Tensor | None = None,
) -> KMeansResult:
    """k-means: centroids that lower the sum of squared distances of the points to their nearest one.

    Parameters
    ----------
    z : Tensor, shape (n, d)
        Points; float16, bfloat16, float32 or float64, any strides.
    num_clusters : int
        At least 1, at most n.
    init : {"k-means++", "k-means||", "random"}, Tensor of shape (num_clusters, d), or KMeansResult
        The start. "k-means++" is greedy with 2 + log(c) trials a centroid; "k-means||" draws many at once and suits large c; "random" takes
        random points. A tensor is a warm start, for example the centroids of the last epoch, and so is the result of an earlier call; both
        ignore ``n_init``.
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
    init_points : Tensor, shape (n, d), optional
        The points that the result ``init`` was computed on, not written to since: the same points before they moved. The result is
        the same, sooner: points that moved too little to change their label are not searched in the first iteration.

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
    check_squares(z)
    c = _check_clusters(num_clusters, z.shape[0])
    n_init = check_count(n_init, "n_init")
    max_iter = check_count(max_iter, "max_iter")
    tolerance = _check_tol(tol)
    check_choice(empty, "empty", ("farthest", "keep", "random", "error"))
    weights = check_weights(weights, z)
    if weights is not None:
        weights = weights.detach()
        if not fixed_sum(weights) > 0:
            raise ValueError("weights must have a positive sum, got only zeros")
    if batch_size is not None:
        batch_size = min(check_count(batch_size, "batch_size"), z.shape[0])
    generator = resolve_generator(generator)
    carried = _check_carried(init, init_points, z)
    init = check_init(init.centroids if isinstance(init, KMeansResult) else init, z, c)
    if tolerance > 0:
        tolerance *= mean_variance(z)

    def iterate(start: Tensor) -> Run:
        if spherical:
            start = _lloyd.on_sphere(start, start)
        if batch_size is None:
            return _lloyd.iterate(z, start, weights, max_iter, tolerance, empty, spherical, generator, carried)
        return _minibatch.iterate(z, start, weights, batch_size, max_iter, tolerance, spherical, generator)

    return best_of(z, c, init, n_init, weights, batch_size, generator, iterate)[0]


def _check_carried(init: str | Tensor | KMeansResult, points: Tensor | None, z: Tensor) -> _lloyd.Carried | None:
    """What an earlier result says of points that have moved since; some rows are checked to be those of the result."""
    if points is None:
        return None
    if not isinstance(init, KMeansResult):
        raise ValueError(f"init_points must come with a KMeansResult as init, got init={describe(init)}")
    points = check_points(points, "init_points").detach()
    if (points.shape, points.dtype, points.device) != (z.shape, z.dtype, z.device):
        raise ValueError(f"init_points must be like z, {describe(z)}, got {describe(points)}")
    if init.labels.shape != z.shape[:1]:
        raise ValueError(f"init must be a result on {z.shape[0]} points, got {describe(init.labels)}")
    some = slice(None, None, max(1, z.shape[0] // _CHECKED_ROWS))
    distances = (points[some].to(init.centroids.dtype) - init.centroids[init.labels[some]]).norm(dim=1)
    error, size = torch.stack([(distances - init.distances[some]).abs().max(), distances.max()]).tolist()
    if not error <= 1e-3 * size:
        raise ValueError("init_points must be the points that init was computed on, got others (or they were written to since)")
    return _lloyd.Carried(points, init.labels, init.centroids, init.second_distances)


def check_init(init: str | Tensor, z: Tensor, c: int) -> str | Tensor:
    """The name of a start, or given centroids in the dtype that ``z`` is computed in."""
    if not isinstance(init, Tensor):
        check_choice(init, "init", _STARTS)
        return init
    init = check_centroids(init, z, name="init").detach()
    check_squares(init, "init")
    if init.shape[0] != c:
        raise ValueError(f"init must be of shape ({c}, {z.shape[1]}), got {tuple(init.shape)}")
    return init


def best_of(
    z: Tensor,
    c: int,
    init: str | Tensor,
    n_init: int,
    weights: Tensor | None,
    batch_size: int | None,
    generator: torch.Generator,
    iterate: Callable[[Tensor], Run],
) -> tuple[KMeansResult, Run]:
    """The result of least inertia over ``n_init`` starts, and the run that led to it; a given start runs once."""
    best: tuple[KMeansResult, Run] | None = None
    for _ in range(1 if isinstance(init, Tensor) else n_init):
        start = init
        if not isinstance(start, Tensor):
            start = _starting_centroids(z, c, start, weights, batch_size, generator)
        run = iterate(start)
        result = _labelled(z, run, weights)
        if best is None or result.inertia < best[0].inertia:
            best = result, run
    assert best is not None
    return best


def _starting_centroids(
    z: Tensor,
    c: int,
    init: str,
    weights: Tensor | None,
    batch_size: int | None,
    generator: torch.Generator,
) -> Tensor:
    """Rows of z to start from; mini-batches start from a random subset, as scikit-learn's do."""
    n = z.shape[0]
    if batch_size is not None:
        size = min(3 * max(batch_size, c), n)
        rows = _init.draw_distinct(n, size, None, generator, z.device)
        z, weights = z[rows], None if weights is None else weights[rows]
        if weights is not None and not fixed_sum(weights) > 0:
            weights = None
    return z[_init.initial_rows(z, c, init, weights, generator)].to(compute_dtype(z.dtype))


def _labelled(z: Tensor, run: Run, weights: Tensor | None) -> KMeansResult:
    """The result of a run, with all points assigned to its centroids."""
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
    Distances of points are computed in tiles and never stored: O(n) extra memory, 2 n^2 d flops a round; two to five rounds are usual.

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
    (check_finite if precomputed else check_squares)(data, "distances_or_z")
    if precomputed and data.device.type == "cpu" and float(data.min()) < 0:
        raise ValueError(f"distances_or_z must not be negative, got {float(data.min())}")
    c = _check_clusters(num_clusters, n)
    max_iter = check_count(max_iter, "max_iter")
    generator = resolve_generator(generator)
    if isinstance(init, Tensor):
        medoids = _check_medoids(init, c, n).to(data.device)
    else:
        check_choice(init, "init", _MEDOID_STARTS)
        medoids = None
    if medoids is None:
        medoids = _medoids.initial_medoids(data, precomputed, c, str(init), generator)
    medoids, nearest, near, rounds, stable = _medoids.swap_until_stable(data, precomputed, medoids, max_iter)
    inertia = torch.tensor(fixed_sum(near[0]), dtype=near.dtype if near.device.type == "mps" else torch.float64)
    return KMedoidsResult(nearest[0].clone(), medoids, inertia.to(data.device), rounds, stable)


def _check_medoids(medoids: Tensor, c: int, n: int) -> Tensor:
    if medoids.dtype not in INTEGERS or medoids.shape != (c,):
        raise ValueError(f"init must be int64 row numbers of shape ({c},), got {describe(medoids)}")
    medoids = medoids.long()
    if int(medoids.min()) < 0 or int(medoids.max()) >= n or medoids.unique().numel() != c:
        raise ValueError(f"init must hold distinct row numbers in [0, {n}), got {medoids.tolist()[:10]}")
    return medoids


def _pairwise_distances(z: Tensor) -> Tensor:
    """The n x n table of Euclidean distances. Products in float64, so that near points keep their digits; zero on the diagonal."""
    real = compute_dtype(z.dtype)
    wide = real if z.device.type == "mps" else torch.float64
    x = z.to(wide)
    x = x - x.mean(0)
    square = x.square().sum(1)
    table = torch.empty((z.shape[0], z.shape[0]), dtype=real, device=z.device)
    for rows, own, out in zip(*(t.split(_TABLE_BLOCK) for t in (x, square, table)), strict=True):
        out.copy_(torch.addmm(own[:, None] + square, rows, x.T, alpha=-2).clamp_(min=0).sqrt_())
    return table.fill_diagonal_(0)


def graph_distance(z: Tensor, edge_index: Tensor, mix: float = 0.5) -> Tensor:
    """Distances that mix embeddings with the graph:  mix ||z_u - z_v|| + (1 - mix) hops(u, v).

    Parameters
    ----------
    z : Tensor, shape (n, d)
    edge_index : Tensor, shape (2, e)
        Edges between row numbers of z, taken as undirected.
    mix : float
        Share of the Euclidean distance, in [0, 1]; the lambda of the paper.

    Returns
    -------
    Tensor, shape (n, n)
        Symmetric with a zero diagonal, for :func:`kmedoids` with ``metric="precomputed"``. Pairs without a path get the largest number of
        hops that occurs between connected nodes.

    Notes
    -----
    Hops by breadth-first search, 64 sources at a time. The result and the hops are n x n: 8 n^2 bytes at peak for float32.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [2.0]])
    >>> ck.graph_distance(z, torch.tensor([[0, 1], [1, 2]]))
    tensor([[0., 1., 2.],
            [1., 0., 1.],
            [2., 1., 0.]])
    """
    z = check_points(z).detach()
    check_squares(z)
    if isinstance(mix, bool) or not isinstance(mix, (int, float)) or not 0 <= mix <= 1:
        raise ValueError(f"mix must be a number in [0, 1], got {describe(mix)}")
    edges = check_edges(edge_index, z)
    hops = ops.hop_distance.hop_distance(edges, z.shape[0])
    hops = torch.where(hops < 0, hops.max(), hops)
    return _pairwise_distances(z).mul_(mix).add_(hops, alpha=1 - mix)
