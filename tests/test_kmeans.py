"""k-means against scikit-learn, its starts, policies and options."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans, MiniBatchKMeans

import carlg_kernels as ck
from carlg_kernels import _init, ops, reference
from carlg_kernels._sums import mean_variance, origin_of
from tests.helpers import assert_close, clustered


def blobs(n=2000, c=20, d=24, spread=0.6, seed=0, dtype=torch.float32):
    return clustered(n, c, d, dtype, spread, seed)[0]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows_of(z, c, seed=0):
    return z[torch.randperm(len(z), generator=seeded(seed))[:c]].clone()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("max_iter", [1, 4, 300])
def test_follows_scikit_learn(weighted, max_iter):
    z = blobs(dtype=torch.float64)
    init = rows_of(z, 25)
    weights = torch.rand(len(z), dtype=torch.float64) + 0.1 if weighted else None
    want = KMeans(25, init=init.numpy(), n_init=1, max_iter=max_iter, tol=0, algorithm="lloyd")
    want.fit(z.numpy(), sample_weight=None if weights is None else weights.numpy())
    got = ck.kmeans(z, 25, init=init, max_iter=max_iter, tol=0.0, weights=weights)
    assert np.array_equal(got.labels.numpy(), want.labels_)
    assert_close("centroids", torch.from_numpy(want.cluster_centers_), got.centroids, 1e-10)
    assert float(got.inertia) == pytest.approx(want.inertia_, rel=1e-10)
    assert got.n_iter == want.n_iter_


@pytest.mark.parametrize("tol", [1e-4, 1e-2])
def test_tol_is_that_of_scikit_learn(tol):
    z = blobs(dtype=torch.float64)
    init = rows_of(z, 30)
    want = KMeans(30, init=init.numpy(), n_init=1, tol=tol, algorithm="lloyd").fit(z.numpy())
    got = ck.kmeans(z, 30, init=init, tol=tol)
    assert got.n_iter == want.n_iter_ and got.converged
    assert mean_variance(z) == pytest.approx(float(z.var(0, unbiased=False).mean()), rel=1e-12)


def test_relocates_empty_clusters_as_scikit_learn():
    z = blobs(dtype=torch.float64)
    init = torch.cat([rows_of(z, 12), torch.full((3, z.shape[1]), 9.0, dtype=z.dtype)])
    want = KMeans(15, init=init.numpy(), n_init=1, max_iter=50, tol=0, algorithm="lloyd").fit(z.numpy())
    got = ck.kmeans(z, 15, init=init, max_iter=50, tol=0.0)
    assert float(got.inertia) == pytest.approx(want.inertia_, rel=1e-10)
    assert np.array_equal(got.labels.numpy(), want.labels_)


def test_policies_for_empty_clusters():
    z = blobs()
    init = torch.cat([rows_of(z, 4), torch.full((1, z.shape[1]), 9.0)])
    kept = ck.kmeans(z, 5, init=init, empty="keep")
    assert torch.equal(kept.centroids[4], init[4]) and (kept.labels != 4).all()
    for policy in ("farthest", "random"):
        assert (ck.kmeans(z, 5, init=init, empty=policy).labels == 4).any()
    with pytest.raises(ValueError, match=r"empty='error': clusters \[4\]"):
        ck.kmeans(z, 5, init=init, empty="error")


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_result_is_consistent(init):
    z = blobs(777, 9, 13)
    result = ck.kmeans(z, 9, init=init, generator=seeded())
    nearest = ck.assign(z, result.centroids)
    assert all(torch.equal(getattr(result, name), getattr(nearest, name)) for name in nearest._fields)
    means, _ = ck.update_centroids(z, result.labels, 9)
    assert_close("converged means", means, result.centroids, 5e-2)
    assert float(result.inertia) == pytest.approx(float(result.distances.double().square().sum()), rel=1e-12)


@pytest.mark.parametrize("init", ["k-means++", "k-means||"])
def test_quality_of_the_starts(init):
    """The best of five is within 1 % of scikit-learn's best of five; one start of ours is no worse than their average."""
    z = blobs(3000, 30, 32, spread=0.5)
    ours = [float(ck.kmeans(z, 30, init=init, generator=seeded(s)).inertia) for s in range(5)]
    theirs = [KMeans(30, n_init=1, random_state=s).fit(z.numpy()).inertia_ for s in range(5)]
    assert min(ours) < 1.01 * min(theirs)
    assert sum(ours) < 1.02 * sum(theirs)


def test_k_means_plus_plus_chooses_distinct_far_points():
    z = torch.cat([torch.zeros(500, 2), torch.tensor([[1e3, 0.0], [0.0, 1e3], [1e3, 1e3]])])
    for seed in range(5):
        rows = _init.initial_rows(z, 4, "k-means++", None, seeded(seed))
        assert z[rows].unique(dim=0).shape[0] == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("trials", [1, 4, 8, 9, 40])
def test_k_means_plus_plus_against_the_reference(dtype, weighted, trials):
    z = blobs(611, 8, 7, dtype=dtype)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    weights = torch.rand(611, dtype=real) if weighted else None
    uniforms = torch.rand(6, trials, dtype=torch.float64, generator=seeded())
    closest = (z.to(real) - z[0].to(real)).square().sum(1)
    got, want = closest.clone(), closest.clone()
    chosen = ops.kmeans_plus_plus.kmeans_plus_plus(z, weights, origin_of(z), uniforms, got)
    wanted = reference.kmeans_plus_plus.kmeans_plus_plus(z, weights, origin_of(z), uniforms, want)
    assert torch.equal(chosen, wanted)
    assert_close("closest", want, got, 1e-5)


def test_weights_move_the_start():
    z = torch.arange(100.0)[:, None]
    weights = torch.zeros(100)
    weights[[3, 50, 97]] = 1
    for init in ("k-means++", "k-means||", "random"):
        result = ck.kmeans(z, 3, init=init, weights=weights)
        assert sorted(result.centroids.flatten().tolist()) == [3, 50, 97]
        assert float(result.inertia) == 0


def test_weights_that_want_a_gradient_are_taken_as_numbers():
    z, weights = torch.randn(60, 3), torch.rand(60)
    want = ck.kmeans(z, 4, weights=weights)
    got = ck.kmeans(z, 4, weights=weights.requires_grad_())
    assert torch.equal(want.centroids, got.centroids) and not got.centroids.requires_grad


def test_seeds_fix_the_bits_for_any_number_of_threads(threads):
    z = blobs(20_011, 40, 48)
    for options in ({}, {"init": "k-means||"}, {"init": "random", "n_init": 3}, {"batch_size": 512}):
        results = []
        for count in (1, 2, 3):
            threads(count)
            results.append(ck.kmeans(z, 40, generator=seeded(5), max_iter=20, **options))
        for other in results[1:]:
            for name in ("labels", "centroids", "inertia", "second_labels", "second_distances"):
                assert torch.equal(getattr(results[0], name), getattr(other, name)), name


def test_the_global_generator_is_left_alone():
    z = blobs(300, 5, 4)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = ck.kmeans(z, 5), ck.kmeans(z, 5)
    ck.kmeans(z, 5, batch_size=50, init="random")
    ck.kmedoids(z, 5, init="random")
    assert torch.equal(before, torch.get_rng_state()) and np.array_equal(numpy_before, np.random.get_state()[1])
    assert torch.equal(first.centroids, second.centroids)


def test_n_init_takes_the_best():
    z = blobs(1500, 25, 8, spread=0.3)
    runs = ck.kmeans(z, 25, init="random", n_init=6, generator=seeded(1))
    generator = seeded(1)
    singles = [ck.kmeans(z, 25, init="random", generator=generator) for _ in range(6)]
    assert float(runs.inertia) == min(float(r.inertia) for r in singles)


@pytest.mark.parametrize("points", [1, 2, 3])
def test_fewer_distinct_points_than_clusters(points):
    z = torch.arange(float(points))[:, None].repeat(20, 3)
    for init in ("k-means++", "k-means||", "random"):
        for empty in ("farthest", "keep", "random"):
            result = ck.kmeans(z, 7, init=init, empty=empty, n_init=5)
            assert result.centroids.isfinite().all()
            if init != "random":
                assert float(result.inertia) == 0


def test_as_many_clusters_as_points_and_one_cluster():
    z = blobs(50, 5, 6)
    assert float(ck.kmeans(z, 50).inertia) == 0
    one = ck.kmeans(z, 1)
    assert_close("mean", z.double().mean(0)[None], one.centroids, 1e-6)
    assert (one.second_labels == -1).all()


def test_spherical():
    z = torch.nn.functional.normalize(torch.randn(900, 12) + 2 * torch.eye(12)[torch.arange(900) % 12], dim=1)
    result = ck.kmeans(z, 12, spherical=True)
    assert_close("lengths", torch.ones(12), result.centroids.norm(dim=1), 1e-6)
    cosine = (z.double() @ result.centroids.double().T).max(1)
    own = (z.double() * result.centroids.double()[result.labels]).sum(1)
    assert_close("nearest in angle", cosine.values, own, 1e-6)
    assert ck.kmeans(z, 12, spherical=True, batch_size=200).centroids.norm(dim=1).allclose(torch.ones(12))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes_and_strides(dtype):
    z = blobs(500, 6, 16).to(dtype)
    wide = torch.randn(500, 32).to(dtype)
    wide[:, ::2] = z
    for init in ("k-means++", z[:6]):
        a = ck.kmeans(z, 6, init=init)
        b = ck.kmeans(wide[:, ::2], 6, init=init)
        assert a.centroids.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert torch.equal(a.centroids, b.centroids) and torch.equal(a.labels, b.labels)


def test_minibatch_quality():
    """Single runs end in different local minima, so the sum over some seeds is compared."""
    z = blobs(6000, 12, 10, spread=0.3)
    init = rows_of(z, 12, 3)
    theirs = [MiniBatchKMeans(12, init=init.numpy(), n_init=1, batch_size=512, random_state=s).fit(z.numpy()).inertia_ for s in range(8)]
    ours = [ck.kmeans(z, 12, init=init, batch_size=512, tol=0.0, generator=seeded(s)) for s in range(8)]
    assert sum(float(run.inertia) for run in ours) < 1.1 * sum(theirs)
    assert all(run.n_iter >= 1 and run.converged for run in ours)


def test_minibatch_reseeds_starved_centres():
    """A given centre far from everything never wins a point: it must be replaced by a point of a batch."""
    z = blobs(2000, 4, 6)
    init = torch.cat([rows_of(z, 4), torch.full((1, 6), 40.0)])
    result = ck.kmeans(z, 5, init=init, batch_size=256, tol=0.0)
    assert float(result.centroids.abs().max()) < 5


def test_minibatch_first_batch_replaces_given_centres():
    from carlg_kernels._minibatch import MiniBatch

    z = blobs(400, 4, 6)
    run = MiniBatch(rows_of(z, 4), seeded(), starved_share=0.0)
    labels = ck.assign(z, run.centroids).labels
    run.step(z, None)
    assert_close("batch means", ck.update_centroids(z, labels, 4)[0], run.centroids, 1e-6)
    second = rows_of(z, 100, 2)
    labels2 = ck.assign(second, run.centroids).labels
    run.step(second, None)
    both = ck.update_centroids(torch.cat([z, second]), torch.cat([labels, labels2]), 4)[0]
    assert_close("running means", both, run.centroids, 1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_silhouette_of_a_result(reduction):
    z = blobs(600, 8, 11).requires_grad_()
    result = ck.kmeans(z, 8)
    grads = []
    for arguments in ((result,), (result.centroids, result.labels)):
        value = ck.simplified_silhouette(z, *arguments, reduction=reduction)
        value.backward(torch.full_like(value, 1.5))
        grads.append((value.detach(), z.grad.clone()))
        z.grad = None
    assert_close("value", grads[1][0], grads[0][0], 1e-6)
    assert_close("gradient", grads[1][1], grads[0][1], 1e-5)
    with pytest.raises(ValueError, match="labels must be None"):
        ck.simplified_silhouette(z, result, result.labels)
    with pytest.raises(ValueError, match="centroids must be at least 2 rows"):
        ck.simplified_silhouette(z, ck.kmeans(z, 1))


Z = torch.randn(50, 4)
BAD = {
    "c above n": (lambda: ck.kmeans(Z, 51), ValueError, "num_clusters must be at most the number of points 50, got 51"),
    "c of zero": (lambda: ck.kmeans(Z, 0), ValueError, "num_clusters must be an int of at least 1, got 0"),
    "c as a float": (lambda: ck.kmeans(Z, 3.0), TypeError, "num_clusters must be an int"),
    "NaN": (lambda: ck.kmeans(Z * torch.nan, 3), ValueError, "z must be finite"),
    "infinity": (lambda: ck.kmeans(torch.cat([Z, Z[:1] / 0]), 3), ValueError, "z must be finite"),
    "init of another shape": (lambda: ck.kmeans(Z, 3, init=Z[:2]), ValueError, r"init must be of shape \(3, 4\), got \(2, 4\)"),
    "init of NaN": (lambda: ck.kmeans(Z, 3, init=Z[:3] * torch.nan), ValueError, "init must be finite"),
    "an unknown init": (lambda: ck.kmeans(Z, 3, init="best"), ValueError, "init must be one of"),
    "negative weights": (lambda: ck.kmeans(Z, 3, weights=-torch.ones(50)), ValueError, "weights must be finite and not negative"),
    "zero weights": (lambda: ck.kmeans(Z, 3, weights=torch.zeros(50)), ValueError, "weights must have a positive sum"),
    "short weights": (lambda: ck.kmeans(Z, 3, weights=torch.ones(49)), ValueError, r"weights must be of shape \(50,\)"),
    "unknown policy": (lambda: ck.kmeans(Z, 3, empty="zero"), ValueError, "empty must be one of"),
    "negative tol": (lambda: ck.kmeans(Z, 3, tol=-1.0), ValueError, "tol must be a finite number of at least 0"),
    "no iterations": (lambda: ck.kmeans(Z, 3, max_iter=0), ValueError, "max_iter must be an int of at least 1"),
    "no starts": (lambda: ck.kmeans(Z, 3, n_init=0), ValueError, "n_init must be an int of at least 1"),
    "batch of zero": (lambda: ck.kmeans(Z, 3, batch_size=0), ValueError, "batch_size must be an int of at least 1"),
    "a seed for a generator": (lambda: ck.kmeans(Z, 3, generator=0), TypeError, "generator must be a torch.Generator or None, got 0"),
    "integers": (lambda: ck.kmeans(Z.long(), 3), TypeError, "z must be float16"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()


def test_memory_is_linear():
    """Ten iterations on 60 MB of points add a few bytes a point, not a table."""
    code = """
import resource, torch, carlg_kernels as ck
z = torch.randn(60_000, 256)
ck.kmeans(z[:2000], 50, max_iter=2, tol=0.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ck.kmeans(z, 200, init=z[:200].clone(), max_iter=10, tol=0.0)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 20
