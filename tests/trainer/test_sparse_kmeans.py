"""k-means of sparse rows against the library's k-means of the same rows as a dense matrix."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import carlg_kernels as ck
from carlg.graph import csr_tensor
from carlg.sparse_kmeans import Points, _lloyd, _plus_plus, sparse_kmeans
from carlg.tasks import unit_length


def _rows(n=400, columns=90, groups=5, seed=0, share=0.06, bits=False):
    """Rows of length one: random entries (ones with ``bits``), and more of them in the columns of the row's group."""
    generator = np.random.default_rng(seed)
    chance = np.full((n, columns), share / 2)
    group = np.arange(n) % groups
    for g in range(groups):
        chance[group == g, g * columns // groups : (g + 1) * columns // groups] *= 10
    entries = np.ones((n, columns)) if bits else generator.random((n, columns))
    x = sp.csr_matrix((generator.random((n, columns)) < chance) * entries, dtype=np.float32)
    return unit_length(csr_tensor(x)), torch.from_numpy(group)


def _inertia(x, labels):
    means, _ = ck.update_centroids(x, labels, int(labels.max()) + 1)
    return float((x - means[labels]).square().sum())


@pytest.mark.parametrize("clusters", [2, 5, 17])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("bits", [False, True])
def test_iterations_from_the_same_start(clusters, seed, bits):
    z, _ = _rows(seed=seed, share=0.15 if bits else 0.06, bits=bits)
    assert (Points(z).bits is not None) == bits
    dense = z.to_dense()
    drawn = torch.randint(clusters, (400,), generator=torch.Generator().manual_seed(seed))
    start, _ = ck.update_centroids(dense, drawn, clusters)
    expected = ck.kmeans(dense, clusters, init=start, max_iter=300, tol=0)
    labels, inertia = _lloyd(Points(z), start[None], 300, 0.0)
    assert torch.equal(labels[0], expected.labels)
    assert float(inertia) == pytest.approx(float(expected.inertia), rel=1e-6)


@pytest.mark.parametrize("share, bits", [(0.02, True), (0.15, False)])
def test_few_bits_and_other_values_are_multiplied_as_sparse_rows(share, bits):
    assert Points(_rows(share=share, bits=bits)[0]).bits is None


def test_products_with_bits():
    z, _ = _rows(share=0.15, bits=True)
    points = torch.randn(37, 90, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(Points(z).product(points)[:, :37], z.to_dense() @ points.t(), rtol=1e-5, atol=1e-5)


def test_empty_clusters_take_the_farthest_points():
    z, _ = _rows()
    start = z.to_dense()[[3, 3, 3, 50]]
    labels, inertia = _lloyd(Points(z), start[None], 300, 0.0)
    assert bool((torch.bincount(labels[0], minlength=4) > 0).all())
    assert float(inertia) == pytest.approx(_inertia(z.to_dense(), labels[0]), rel=1e-6)


@pytest.mark.parametrize("max_iter, tolerance", [(300, 0.0), (300, 1e-3), (2, 0.0)])
def test_starts_at_once_end_as_they_do_alone(max_iter, tolerance):
    """Starts of very different lengths, one with empty clusters."""
    z, group = _rows()
    points = Points(z)
    dense = z.to_dense()
    good, _ = ck.update_centroids(dense, group, 5)
    starts = torch.stack([dense[:5], good, dense[[3, 3, 3, 3, 50]], dense[100:105], dense[[7, 12, 17, 22, 27]]])
    labels, inertia = _lloyd(points, starts, max_iter, tolerance)
    for i, start in enumerate(starts):
        alone = _lloyd(points, start[None], max_iter, tolerance)
        assert torch.equal(labels[i], alone[0][0]) and float(inertia[i]) == pytest.approx(float(alone[1]), rel=1e-9)


def test_fewer_distinct_rows_than_clusters():
    x = torch.zeros(12, 6)
    x[::2, 0], x[1::2, 3] = 1, 1
    labels = sparse_kmeans(Points(csr_tensor(x.numpy())), 4, 2, torch.Generator().manual_seed(0))
    assert bool((labels >= 0).all()) and _inertia(x, labels) == pytest.approx(0, abs=1e-6)


def test_starts_are_rows_far_apart():
    """Five groups that share no column: each start has one row of each."""
    n = 100
    x = torch.nn.functional.one_hot(torch.arange(n) % 5).float()
    rows = _plus_plus(Points(csr_tensor(x.numpy())), 5, 8, torch.Generator().manual_seed(0))
    assert rows.shape == (8, 5)
    assert torch.equal((rows % 5).sort(1).values, torch.arange(5).expand(8, 5))


def test_best_of_the_starts_is_as_good_as_with_dense_rows():
    z, group = _rows(n=600, seed=3, share=0.1)
    dense = z.to_dense()
    labels = sparse_kmeans(Points(z), 5, 10, torch.Generator().manual_seed(0))
    expected = ck.kmeans(dense, 5, n_init=10, max_iter=300, generator=torch.Generator().manual_seed(0))
    assert _inertia(dense, labels) <= 1.002 * float(expected.inertia)
    # The groups are what the least inertia finds.
    share = sum(int(torch.bincount(group[labels == k]).max()) for k in range(5)) / 600
    assert share > 0.95


def test_same_generator_same_labels():
    z, _ = _rows()
    first, again = (sparse_kmeans(Points(z), 5, 3, torch.Generator().manual_seed(2)) for _ in range(2))
    assert torch.equal(first, again)
