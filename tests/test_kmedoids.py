"""k-medoids against plain PAM's definition, the kmedoids package, and the distance that mixes embeddings with the graph."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import ops, reference
from carlg_kernels.reference.kmedoids import swap_changes, two_nearest_medoids
from tests.helpers import assert_close, clustered


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def distance_table(z):
    return torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")


def loss(table, medoids):
    return float(table[:, medoids].double().min(1).values.sum())


@pytest.mark.parametrize("c", [1, 2, 9])
def test_changes_are_those_of_the_swaps(c):
    z = torch.randn(40, 3, dtype=torch.float64)
    table = torch.cdist(z, z)
    medoids = torch.arange(c)
    weights = torch.rand(40, dtype=torch.float64)
    changes = swap_changes(table, weights, *two_nearest_medoids(table[:, medoids]), c)
    before = weights @ table[:, medoids].min(1).values
    for m in range(c):
        for x in range(c, 40):
            swapped = medoids.clone()
            swapped[m] = x
            after = weights @ table[:, swapped].min(1).values
            assert torch.allclose(changes[m, x], after - before, atol=1e-12)


@pytest.mark.parametrize("precomputed", [False, True], ids=["points", "matrix"])
@pytest.mark.parametrize("squared", [False, True], ids=["distance", "square"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("c", [1, 2, 11])
def test_kernel_takes_the_swaps_of_the_reference(precomputed, squared, weighted, c):
    z = torch.randn(333, 5, dtype=torch.float64, generator=seeded(c))
    table = distance_table(z)
    data = table if precomputed else z
    squared = squared and not precomputed
    shown = table.square() if squared else table
    weights = torch.rand(333, dtype=torch.float64) if weighted else None
    candidates = torch.randperm(333, generator=seeded(1))
    results = []
    for function in (torch.ops.carlg_kernels.kmedoids, reference.kmedoids.kmedoids):
        medoids = torch.arange(c)
        nearest, distances = two_nearest_medoids(shown[:, medoids])
        counted = function(data, weights, candidates, medoids, nearest, distances, precomputed, squared, 0.0)
        results.append((medoids, nearest, distances, counted))
        assert_close("state", shown[:, medoids].min(1).values, distances[0], 1e-10)
    assert all(torch.equal(a, b) for a, b in zip(results[0][:2], results[1][:2], strict=True))
    assert torch.equal(results[0][3], results[1][3]) and results[0][3][0] > 0


@pytest.mark.parametrize("init", ["k-means++", "build", "random"])
def test_no_swap_is_left(init):
    z, _ = clustered(400, 8, 6, torch.float64)
    result = ck.kmedoids(z, 8, init=init, generator=seeded())
    table = distance_table(z)
    changes = swap_changes(table, torch.ones(400, dtype=torch.float64), *two_nearest_medoids(table[:, result.medoids]), 8)
    assert result.converged and changes.min() > -1e-9
    assert torch.equal(result.labels, table[:, result.medoids].argmin(1))
    assert float(result.inertia) == pytest.approx(loss(table, result.medoids), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_loss_against_the_package(seed):
    kmedoids = pytest.importorskip("kmedoids")
    z, _ = clustered(1200, 15, 12, seed=seed)
    table = torch.cdist(z.double(), z.double())
    theirs = min(kmedoids.fasterpam(table.numpy(), 15, random_state=s).loss for s in range(5))
    assert loss(table, ck.kmedoids(z, 15, generator=seeded(seed)).medoids) < 1.02 * theirs


def test_points_and_matrix_agree():
    z, _ = clustered(700, 10, 8, torch.float64)
    tiled = ck.kmedoids(z, 10, init=torch.arange(10))
    given = ck.kmedoids(distance_table(z), 10, init=torch.arange(10), metric="precomputed")
    assert torch.equal(tiled.medoids, given.medoids) and torch.equal(tiled.labels, given.labels)


@pytest.mark.parametrize("metric", ["euclidean", "precomputed"])
def test_threads(threads, metric):
    z, _ = clustered(1501, 12, 9)
    z = z if metric == "euclidean" else distance_table(z)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(ck.kmedoids(z, 12, metric=metric, generator=seeded(2)))
    for other in results[1:]:
        assert torch.equal(results[0].medoids, other.medoids) and torch.equal(results[0].inertia, other.inertia)


def test_carry_over_of_medoids_and_edge_sizes():
    z, _ = clustered(300, 6, 5)
    first = ck.kmedoids(z, 6)
    again = ck.kmedoids(z, 6, init=first.medoids)
    assert again.n_iter == 1 and torch.equal(again.medoids, first.medoids)
    assert float(ck.kmedoids(z[:7], 7).inertia) == 0
    one = ck.kmedoids(z, 1)
    table = torch.cdist(z.double(), z.double())
    assert loss(table, one.medoids) == pytest.approx(float(table.sum(0).min()), rel=1e-6)
    assert ck.kmedoids(torch.zeros(30, 2), 4).inertia == 0


def test_half_precision_and_strides():
    z, _ = clustered(200, 5, 8)
    for view in (z.half(), z.bfloat16(), torch.stack([z, z], 2)[..., 0]):
        assert ck.kmedoids(view, 5).converged


def hops_by_search(edges, n):
    neighbours = [set() for _ in range(n)]
    for a, b in edges.T.tolist():
        neighbours[a].add(b)
        neighbours[b].add(a)
    table = torch.full((n, n), -1, dtype=torch.int16)
    for source in range(n):
        frontier, level = {source}, 0
        while frontier:
            for v in frontier:
                table[source, v] = level
            frontier = {w for v in frontier for w in neighbours[v] if table[source, w] < 0}
            level += 1
    return table


@pytest.mark.parametrize("n,e", [(1, 0), (5, 0), (70, 60), (150, 400), (130, 129)])
def test_hops(n, e):
    edges = torch.randint(n, (2, e), generator=seeded(n))
    if e == n - 1:
        edges = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    want = hops_by_search(edges, n)
    assert torch.equal(ops.hop_distance.hop_distance(edges, n), want)
    assert torch.equal(reference.hop_distance.hop_distance(edges, n), want)


def test_graph_distance():
    z = torch.randn(60, 4, dtype=torch.float64)
    edges = torch.stack([torch.arange(49), torch.arange(1, 50)])
    table = ck.graph_distance(z, edges, mix=0.25)
    assert torch.allclose(table, table.T, rtol=1e-14) and (table.diagonal() == 0).all()
    far = 0.25 * (z[0] - z[55]).norm() + 0.75 * 49
    assert_close("no path", far, table[0, 55], 1e-12)
    assert_close("only points", distance_table(z), ck.graph_distance(z, edges, mix=1.0), 1e-12)
    assert ck.kmedoids(table, 5, metric="precomputed").converged


Z = torch.randn(30, 3)
BAD = {
    "c above n": (lambda: ck.kmedoids(Z, 31), "num_clusters must be at most"),
    "a matrix that is not square": (lambda: ck.kmedoids(Z, 3, metric="precomputed"), "distances_or_z must be square"),
    "negative distances": (lambda: ck.kmedoids(-torch.ones(5, 5), 2, metric="precomputed"), "distances_or_z must not be negative"),
    "NaN": (lambda: ck.kmedoids(Z * torch.nan, 3), "distances_or_z must be finite"),
    "unknown metric": (lambda: ck.kmedoids(Z, 3, metric="cosine"), "metric must be one of"),
    "unknown start": (lambda: ck.kmedoids(Z, 3, init="first"), "init must be one of"),
    "repeated medoids": (lambda: ck.kmedoids(Z, 3, init=torch.tensor([1, 1, 2])), "init must hold distinct row numbers"),
    "medoids beyond n": (lambda: ck.kmedoids(Z, 3, init=torch.tensor([1, 2, 30])), r"init must hold distinct row numbers in \[0, 30\)"),
    "medoids of another size": (lambda: ck.kmedoids(Z, 3, init=torch.tensor([1, 2])), r"init must be int64 row numbers of shape \(3,\)"),
    "mix above one": (lambda: ck.graph_distance(Z, torch.zeros(2, 1).long(), 1.5), r"mix must be a number in \[0, 1\], got 1.5"),
    "edges beyond n": (
        lambda: ck.graph_distance(Z, torch.tensor([[0], [30]])),
        r"edge_index must be in \[0, 30\), the rows of z, got an index 30",
    ),
    "edges of three rows": (lambda: ck.graph_distance(Z, torch.zeros(3, 4).long()), r"edge_index must be of shape \(2, edges\)"),
    "edges elsewhere": (lambda: ck.graph_distance(Z, torch.zeros(2, 1).long().to("meta")), "edge_index must be on cpu like z, got meta"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
