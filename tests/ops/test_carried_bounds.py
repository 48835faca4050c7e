"""Bounds carried between two calls: they hold, and k-means with them gives the bits of plain Lloyd."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import _lloyd, ops, reference
from carlg_kernels._sums import origin_of
from tests.helpers import DTYPES, assert_close, clustered, dtypes, shapes

REAL = {t: torch.float64 if t == torch.float64 else torch.float32 for t in DTYPES}


def moved(z, size, seed=1):
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (z.double() + size * noise).to(z.dtype)


@shapes
@dtypes
def test_against_the_reference(shape, dtype):
    n, c, d = shape
    before, _ = clustered(n, c, d, dtype)
    z, centroids = moved(before, 0.01), before[:c].to(REAL[dtype])
    labels, _, _, second = ops.assign.assign(before, centroids)
    arguments = (z, before, centroids, origin_of(z), labels, second)
    got = ops.carried_bounds.carried_bounds(*arguments)
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    upper, lower, radius = reference.carried_bounds.carried_bounds(*wide)
    table = torch.cdist(z.double(), centroids.double(), compute_mode="donot_use_mm_for_euclid_dist")
    others = table.scatter(1, labels[:, None], torch.inf).amin(1)
    assert (got[0] >= table.gather(1, labels[:, None])[:, 0]).all() and (got[1] <= others).all()
    assert_close("upper", upper, got[0], 1e-4)
    assert_close("radius", radius, got[2], 1e-5)
    assert (got[1] <= lower + 1e-6 * lower.abs()).all()
    if c > 1 and dtype == torch.float64:
        assert_close("lower", lower, got[1], 1e-5)


DATA = {
    "blobs": lambda: clustered(3001, 40, 33, spread=0.5)[0],
    "unit rows": lambda: torch.nn.functional.normalize(clustered(2003, 30, 64)[0], dim=1),
    "far from the origin": lambda: clustered(2003, 30, 9)[0] + 100,
    "duplicates": lambda: clustered(300, 30, 5)[0].repeat(7, 1),
    "one column": lambda: clustered(1501, 30, 1)[0],
    "an outlier": lambda: torch.cat([clustered(2000, 20, 8)[0], torch.full((1, 8), 1e4)]),
    "float64": lambda: clustered(1999, 20, 12, torch.float64)[0],
    "half": lambda: clustered(2000, 30, 20, torch.float16)[0],
    "every second row and column": lambda: clustered(3000, 30, 40)[0][::2, ::2],
}


@pytest.fixture
def always(monkeypatch):
    """Carry bounds however few points they settle."""
    called = []

    def carry(z, origin, last):
        called.append(1)
        bounds = ops.carried_bounds.carried_bounds(z, last.points, last.centroids, origin, last.labels, last.second_distances)
        return -2 - last.labels, bounds

    monkeypatch.setattr(_lloyd, "_carried_state", carry)
    yield
    assert called


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("c", [1, 2, 37, 130], ids=lambda c: f"c{c}")
def test_carried_bounds_change_nothing(name, c, always):
    """Five epochs, from large moves to none at all, each as a call of plain Lloyd gives it, bit for bit."""
    z = DATA[name]()
    size = float(z.double().std())
    last = ck.kmeans(z, c, init="random", max_iter=5)
    weights = torch.rand(z.shape[0]).to(last.centroids) if c == 37 else None
    for epoch, share in enumerate((0.3, 0.03, 0.003, 0.0003, 0.0)):
        now = moved(z, share * size, epoch)
        options = {"max_iter": 4, "tol": 0.0, "weights": weights, "empty": "farthest" if epoch % 2 else "keep"}
        plain = ck.kmeans(now, c, init=last.centroids, **options)
        carried = ck.kmeans(now, c, init=last, init_points=z, **options)
        for field, want, got in zip(plain._fields, plain, carried, strict=True):
            assert torch.equal(torch.as_tensor(want), torch.as_tensor(got)), (epoch, field)
        z, last = now, plain


def test_spherical_and_tolerance(always):
    z = DATA["unit rows"]()
    last = ck.kmeans(z, 30, spherical=True)
    now = torch.nn.functional.normalize(moved(z, 1e-3), dim=1)
    for options in ({"spherical": True}, {"spherical": True, "tol": 0.0}, {"tol": 1e-2}):
        plain = ck.kmeans(now, 30, init=last.centroids, **options)
        carried = ck.kmeans(now, 30, init=last, init_points=z, **options)
        assert plain.n_iter == carried.n_iter and plain.converged == carried.converged
        assert torch.equal(plain.labels, carried.labels) and torch.equal(plain.centroids, carried.centroids)


def test_a_sample_decides_whether_to_carry():
    """Small moves settle labels, so that the step begins with guesses; large ones do not, and nothing is carried."""
    z = DATA["blobs"]()
    last = ck.kmeans(z, 40)
    for size, guesses in ((1e-4, True), (1.0, False)):
        now = moved(z, size)
        carried = _lloyd.Carried(z, last.labels, last.centroids, last.second_distances)
        labels, bounds = _lloyd._carried_state(now, origin_of(now), carried)
        assert bool((labels < -1).all()) == guesses and bounds.shape == (3, len(z))


def test_points_that_do_not_move_are_not_searched():
    """With bounds of the search itself the first step settles nearly every label without looking at the other centroids."""
    z = DATA["blobs"]()
    last = ck.kmeans(z, 40, tol=0.0)
    upper, lower, _ = ops.carried_bounds.carried_bounds(z, z, last.centroids, origin_of(z), last.labels, last.second_distances)
    assert float((upper < lower).double().mean()) > 0.95


def test_threads(threads, always):
    z = clustered(20_011, 40, 48)[0]
    last = ck.kmeans(z, 40, max_iter=5)
    now, results = moved(z, 0.01), []
    for count in (1, 2, 3):
        threads(count)
        results.append(ck.kmeans(now, 40, init=last, init_points=z, max_iter=4, tol=0.0))
    for other in results[1:]:
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(results[0], other, strict=True))


def test_a_result_is_a_warm_start_by_itself():
    z = DATA["blobs"]()
    last = ck.kmeans(z, 40, max_iter=2)
    now = moved(z, 0.1)
    for options in ({}, {"batch_size": 500}):
        by_result, by_tensor = ck.kmeans(now, 40, init=last, **options), ck.kmeans(now, 40, init=last.centroids, **options)
        assert torch.equal(by_result.centroids, by_tensor.centroids)


def test_bad_input():
    z = DATA["blobs"]()
    last = ck.kmeans(z, 5)
    with pytest.raises(ValueError, match="init_points must come with a KMeansResult as init, got init='random'"):
        ck.kmeans(z, 5, init="random", init_points=z)
    with pytest.raises(ValueError, match=r"init_points must be like z, float32 \(3001, 33\), got float32 \(3000, 33\)"):
        ck.kmeans(z, 5, init=last, init_points=z[1:])
    with pytest.raises(ValueError, match="init must be a result on 3000 points"):
        ck.kmeans(z[1:], 5, init=last, init_points=z[1:])
    with pytest.raises(ValueError, match="init_points must be the points that init was computed on"):
        ck.kmeans(z, 5, init=last, init_points=z.flip(0))
    with pytest.raises(ValueError, match=r"init must be of shape \(6, 33\), got \(5, 33\)"):
        ck.kmeans(z, 6, init=last)
    with pytest.raises(RuntimeError, match="labels must not be -1"):
        ops.carried_bounds.carried_bounds(z, z, last.centroids, z[0], last.labels - 1, last.distances)
