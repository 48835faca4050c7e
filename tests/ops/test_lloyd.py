"""The Lloyd step against its reference, its bounds against plain search, and the same bits for any number of threads."""

import pytest
import torch

from carlg_kernels import ops, reference
from carlg_kernels._sums import origin_of
from tests.helpers import DTYPES, SHAPES, assert_close, clustered, dtypes, shapes

REAL = {t: torch.float64 if t == torch.float64 else torch.float32 for t in DTYPES}


def gaussian(n, d, dtype=torch.float32, shift=0.0, seed=0):
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + shift).to(dtype)


def run(z, centroids, steps, weights=None, *, bounded=True):
    """Labels and centroids of every step; without ``bounded`` nothing is known of any point before a step."""
    labels, bounds = ops.lloyd.new_state(z)
    previous, origin, trace = centroids, origin_of(z), []
    for _ in range(steps):
        if not bounded:
            labels.fill_(-1)
        means, mass, progress = ops.lloyd.lloyd(z, weights, centroids, previous, origin, labels, bounds)
        trace.append((labels.clone(), means, mass, progress))
        previous, centroids = centroids, means
    return trace


@shapes
@dtypes
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_step_against_the_reference(shape, dtype, weighted):
    n, c, d = shape
    z, _ = clustered(n, c, d, dtype)
    centroids = z[:c].to(REAL[dtype])
    weights = torch.rand(n, dtype=REAL[dtype]) + 0.1 if weighted else None
    wide = torch.full((n,), -1)
    want = reference.lloyd.lloyd(
        z.double(),
        None if weights is None else weights.double(),
        centroids.double(),
        centroids.double(),
        None,
        wide,
        None,
    )
    ((labels, means, mass, progress),) = run(z, centroids, 1, weights)
    exact = (z.double() - centroids.double()[labels]).norm(dim=1)
    best = (z.double() - centroids.double()[wide]).norm(dim=1)
    assert_close("distance to the label", best, exact, 1e-6)
    if torch.equal(labels, wide):
        assert_close("means", want[0], means, 1e-6)
        assert_close("mass", want[1], mass, 1e-6)
        assert_close("progress", want[2], progress, 1e-5)


DATA = {
    "blobs": lambda: clustered(4001, 40, 33, spread=0.5)[0],
    "gaussian": lambda: gaussian(3001, 17),
    "far from the origin": lambda: gaussian(2003, 9, shift=100.0),
    "duplicates": lambda: gaussian(300, 5).repeat(7, 1),
    "one column": lambda: gaussian(1501, 1),
    "an outlier": lambda: torch.cat([gaussian(2000, 8), torch.full((1, 8), 1e4)]),
    "float64": lambda: gaussian(1999, 12, torch.float64),
    "half": lambda: clustered(2000, 30, 20, torch.float16)[0],
    "every second row and column": lambda: gaussian(3000, 40)[::2, ::2],
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("c", [1, 2, 37, 130], ids=lambda c: f"c{c}")
def test_bounds_change_nothing(name, c):
    """Every step with bounds gives the bits of a step that searches all centroids for all points."""
    z = DATA[name]()
    start = z[torch.randperm(z.shape[0], generator=torch.Generator().manual_seed(1))[:c]]
    start = start.to(torch.float64 if z.dtype == torch.float64 else torch.float32)
    weights = torch.rand(z.shape[0]).to(start) if c == 37 else None
    for plain, bounded in zip(run(z, start, 12, weights, bounded=False), run(z, start, 12, weights), strict=True):
        assert torch.equal(plain[0], bounded[0])
        assert torch.equal(plain[1], bounded[1])
        assert torch.equal(plain[2], bounded[2])


def test_bounds_hold():
    z = DATA["blobs"]()
    labels, bounds = ops.lloyd.new_state(z)
    centroids = previous = z[:40].clone()
    for _ in range(8):
        means, *_ = ops.lloyd.lloyd(z, None, centroids, previous, origin_of(z), labels, bounds)
        table = torch.cdist(z.double(), centroids.double())
        own = table.gather(1, labels[:, None])[:, 0]
        others = table.scatter(1, labels[:, None], float("inf")).min(1).values
        assert (bounds[0] >= own * (1 - 1e-7)).all()
        assert (bounds[1] <= others * (1 + 1e-7)).all()
        previous, centroids = centroids, means


def test_bounds_survive_moved_centroids():
    """Centroids may be moved by others between two steps (empty clusters, the sphere): bounds follow ``previous``."""
    z = DATA["gaussian"]()
    labels, bounds = ops.lloyd.new_state(z)
    centroids = previous = z[:20].clone()
    for step in range(6):
        means, *_ = ops.lloyd.lloyd(z, None, centroids, previous, origin_of(z), labels, bounds)
        assert torch.equal(labels, run(z, centroids, 1)[0][0])
        means[step] = z[100 + step]
        previous, centroids = centroids, means


@pytest.mark.parametrize("shape", [(20_011, 40, 96), (777, 40, 8)], ids=["large", "small"])
def test_threads(shape, threads):
    z, _ = clustered(*shape)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(run(z, z[:40].clone(), 6))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_empty_clusters_keep_their_centroid():
    z = gaussian(100, 3)
    start = torch.cat([z[:2], torch.full((1, 3), 50.0)])
    ((_, means, mass, progress),) = run(z, start, 1)
    assert torch.equal(means[2], start[2]) and mass[2] == 0 and progress[2] == 1


def test_own_distance():
    for n, c, d in SHAPES:
        z, labels = clustered(n, c, d)
        centroids = torch.randn(c, d)
        want = reference.own_distance.own_distance(z.double(), centroids.double(), labels)
        assert_close("own distance", want, ops.own_distance.own_distance(z, centroids, labels), 1e-6)
        assert ops.own_distance.own_distance(z, centroids, labels)[5] == 0


@pytest.mark.parametrize("bad", ["labels", "bounds", "previous", "origin"])
def test_a_direct_call_with_wrong_shapes_raises(bad):
    z = gaussian(20, 3)
    labels, bounds = ops.lloyd.new_state(z)
    arguments = {"centroids": z[:4], "previous": z[:4], "origin": z[0], "labels": labels, "bounds": bounds}
    arguments[bad] = arguments[bad][:-1]
    with pytest.raises(RuntimeError, match=bad):
        ops.lloyd.lloyd(z, None, **arguments)
